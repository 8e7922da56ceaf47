"""What belongs together in a pool moves together; layouts keep their gaps when they are cut."""

from __future__ import annotations

import numpy as np
import torch

from difftest.call.freeze import Freezer
from difftest.shrink.sizes import FIRST, LATER, Cut, Sizes
from difftest.shrink.tree import copied, edited, laid_out_as, pool_bytes, walk
from difftest.target import Made, Pool, Seeded


def speculative_batch() -> Pool:
    """Three requests with 2, 0 and 2 drafts, a vocabulary of 40."""
    return {
        "logits": torch.arange(120, dtype=torch.float32).reshape(3, 40),
        "draft_token_ids": torch.tensor([7, 39, 2, 5], dtype=torch.int32),
        "num_draft_tokens": [2, 0, 2],
        "cu_num_draft_tokens": torch.tensor([2, 2, 4], dtype=torch.int32),
        "query_start": np.array([0, 3, 4, 7]),
        "sampled": torch.arange(7, dtype=torch.int64),
        "bitmask": torch.full((3, 2), -1, dtype=torch.int32),
        "generators": {2: Seeded(5), 0: Seeded(6)},
        "metadata": Made("m:C", {"num_reqs": 3, "vocab_size": 40, "output": [[1], [2, 3], [4]]}),
    }


def test_a_request_goes_with_its_drafts_keys_and_sums() -> None:
    pool = Sizes(speculative_batch()).cut(3, [0, 2], Cut((FIRST,), remap=False))
    assert pool["logits"].tolist() == [list(range(40)), list(range(80, 120))]
    assert pool["num_draft_tokens"] == [2, 2]
    assert pool["draft_token_ids"].tolist() == [7, 39, 2, 5]
    assert pool["cu_num_draft_tokens"].tolist() == [2, 4]
    assert pool["cu_num_draft_tokens"].dtype == torch.int32
    assert pool["query_start"].tolist() == [0, 3, 6]
    assert pool["sampled"].tolist() == [0, 1, 2, 4, 5, 6]
    assert pool["generators"] == {0: Seeded(6), 1: Seeded(5)}
    assert pool["metadata"].fields == {"num_reqs": 2, "vocab_size": 40, "output": [[1], [4]]}


def test_fewer_drafts_move_every_count_of_them() -> None:
    sizes = Sizes(speculative_batch())
    ragged = next(r for r in sizes.ragged if r.counts == (2, 0, 2))
    pool = sizes.with_counts(ragged, [1, 0, 0])
    assert pool["num_draft_tokens"] == [1, 0, 0]
    assert pool["draft_token_ids"].tolist() == [7]
    assert pool["cu_num_draft_tokens"].tolist() == [1, 1, 1]
    assert pool["query_start"].tolist() == [0, 2, 3, 4]
    assert pool["sampled"].tolist() == [0, 1, 3, 4]
    assert len(pool["logits"]) == 3


def test_a_smaller_vocabulary_takes_ids_bitmask_and_its_number_along() -> None:
    pool = Sizes(speculative_batch()).cut(40, range(8), Cut((LATER,)))
    assert pool["logits"].shape == (3, 8)
    assert pool["draft_token_ids"].tolist() == [7, 7, 2, 5]
    assert pool["bitmask"].shape == (3, 1)
    assert pool["metadata"].fields["vocab_size"] == 8
    assert pool["num_draft_tokens"] == [2, 0, 2]


def test_indices_into_requests_follow_or_go() -> None:
    pool: Pool = {"rows": torch.zeros(4, 2), "discard": np.array([1, 3]), "mapping": torch.tensor([3, 2, 1, 0])}
    found = Sizes(pool).cut(4, [1, 2], Cut((FIRST,)))
    assert found["discard"].tolist() == [0]
    assert found["mapping"].tolist() == [1, 0]


def test_the_original_is_not_touched() -> None:
    pool = speculative_batch()
    before = Freezer(whole=True)(
        {name: value for name, value in pool.items() if name not in ("metadata", "generators")}
    )
    Sizes(pool).cut(3, [1], Cut((FIRST,)))
    pool_after = {name: value for name, value in pool.items() if name not in ("metadata", "generators")}
    assert Freezer(whole=True)(pool_after) == before


def test_a_cut_layout_keeps_padding_offset_and_guard_bytes() -> None:
    memory = torch.full((60,), 9.0)
    padded = memory.as_strided((4, 5), (8, 1), 3)
    padded.copy_(torch.arange(20.0).reshape(4, 5))
    found = laid_out_as(padded, padded[1:3, :2].contiguous())
    assert found.tolist() == [[5, 6], [10, 11]]
    assert (found.stride(), found.storage_offset()) == ((5, 1), 3)
    assert found.untyped_storage().nbytes() // 4 == 3 + 5 + 1 + 1 + (60 - 3 - 29)
    transposed = torch.arange(6.0).reshape(2, 3).T
    assert laid_out_as(transposed, transposed[:2].contiguous()).stride() == (1, 2)
    expanded = torch.arange(3.0).expand(4, 3)
    assert laid_out_as(expanded, expanded[:2].contiguous()).stride() == (0, 1)


def test_a_copy_shares_what_the_original_shares() -> None:
    memory = torch.arange(8.0)
    shared = [1, 2]
    found = copied({"whole": memory, "part": memory[2:4], "one": shared, "other": shared})
    found["whole"][2] = 50
    assert found["part"][0] == 50
    assert memory[2] == 2
    found["one"].append(3)
    assert found["other"] == [1, 2, 3]
    assert shared == [1, 2]


def test_changes_reach_into_made_objects_and_lists() -> None:
    pool: Pool = {"m": Made("m:C", {"x": [[1], [2]]}), "d": {3: {"y": 1.0}}}
    assert ("m", "x", 1) in dict(walk(pool))
    found = edited(pool, {("m", "x", 1): [lambda _: [5]], ("d", ("key", 3), "y"): [lambda v: v + 1]})
    assert found["m"].fields == {"x": [[1], [5]]}
    assert found["d"] == {3: {"y": 2.0}}
    assert pool["d"] == {3: {"y": 1.0}}


def test_bytes_count_shared_memory_once() -> None:
    memory = torch.zeros(10)
    assert pool_bytes({"a": memory, "b": memory[2:], "n": [1, 2], "k": 3}) == 40 + 16 + 8


def expanded_batch() -> Pool:
    """Two requests with two rows each: indices by row that add up to other lengths, and offsets, one longer."""
    return {
        "target_logits": torch.arange(160, dtype=torch.float32).reshape(4, 40),
        "idx_mapping": torch.tensor([2, 1]),
        "expanded_idx_mapping": torch.tensor([2, 2, 1, 1]),
        "expanded_local_pos": torch.tensor([0, 1, 0, 1]),
        "cu_num_logits": torch.tensor([0, 2, 4]),
        "temperature": torch.arange(6.0),
        "slots": torch.arange(3.0),
        "top_k": torch.tensor([40, 7]),
    }


def test_an_index_by_row_that_adds_up_to_a_length_is_no_count() -> None:
    pool = Sizes(expanded_batch()).cut(2, [1], Cut((FIRST,)))
    assert pool["cu_num_logits"].tolist() == [0, 2]
    assert pool["expanded_idx_mapping"].tolist() == [1, 1]
    assert pool["expanded_local_pos"].tolist() == [0, 1]
    assert pool["target_logits"].shape == (2, 40)
    assert len(pool["temperature"]) == 6


def test_indices_and_a_constant_are_no_counts_though_they_add_up_to_a_length() -> None:
    slots, tokens = 6, 5
    pool = {
        "idx_mapping": torch.tensor([4, 2]),  # adds up to the slots
        "req_ids": torch.tensor([4, 2]),
        "prompt_len": torch.full((slots,), 6),  # and so does its last one, were it a sum
        "total_len": torch.full((slots,), 14),
        "cu_num_logits": torch.tensor([0, 3, 5]),
        "logits": torch.zeros(tokens, 8),
    }
    assert [[path for path, _ in ragged.leaves] for ragged in Sizes(pool).ragged] == [[("cu_num_logits",)]]


def test_offsets_are_no_axis_of_their_own_length() -> None:
    pool = Sizes(expanded_batch()).cut(3, [0], Cut((FIRST,)))
    assert pool["slots"].tolist() == [0.0]
    assert pool["cu_num_logits"].tolist() == [0, 2, 4]


def test_what_is_as_large_as_the_vocabulary_becomes_smaller_with_it() -> None:
    pool = Sizes(expanded_batch()).cut(40, range(16), Cut((LATER,)))
    assert pool["top_k"].tolist() == [16, 7]


def test_lists_among_positional_arguments_follow_the_requests() -> None:
    metadata = Made("m:C", {"num_draft_tokens": [0, 0, 0], "cu_num_sampled": torch.tensor([1, 2, 3])})
    pool = Sizes({"args": (metadata, torch.arange(3.0), [5, 6, 7])}).cut(3, [2], Cut((FIRST,), remap=False))
    assert pool["args"][0].fields["num_draft_tokens"] == [0]
    assert pool["args"][0].fields["cu_num_sampled"].tolist() == [1]
    assert (pool["args"][1].tolist(), pool["args"][2]) == ([2.0], [7])


def test_requests_that_are_named_elsewhere_are_used() -> None:
    assert Sizes({"requests": ["a", "b", "c"], "structured": ["c", "b"]}).used(3) == [[1, 2]]


def test_memory_that_tensors_share_is_copied_once() -> None:
    memory = torch.arange(6, dtype=torch.int16)
    found = copied({"whole": memory, "part": memory.view(2, 3)[:, 1]})
    assert (found["whole"].tolist(), found["part"].tolist()) == ([0, 1, 2, 3, 4, 5], [1, 4])
    assert found["part"].stride() == (3,)
    storage = found["whole"].untyped_storage()
    assert storage.data_ptr() == found["part"].untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()


def test_ids_that_lie_around_a_table_become_fewer_with_the_vocabulary() -> None:
    memory = torch.tensor([30, 30, 30, 3, 8, 9, 0, 1, 2, 30, 30], dtype=torch.int32)  # a row before it, what follows
    pool = Sizes({"logits": torch.zeros(2, 40), "ids": memory[3:9].view(2, 3)}).cut(40, range(4), Cut((LATER,)))
    assert pool["ids"].tolist() == [[3, 3, 3], [0, 1, 2]]
    around = pool["ids"].new_empty(0).set_(pool["ids"].untyped_storage())
    assert around.tolist() == [3, 3, 3, 3, 3, 3, 0, 1, 2, 3, 3]


def test_ids_of_one_request_follow_the_vocabulary_and_numbers_of_requests_do_not() -> None:
    pool = {
        "logits": torch.zeros(3, 40),
        "generators": {0: Seeded(1), 2: Seeded(2)},
        "requests": [{"logit_bias": {0: 1.5, 2: 2.5, 33: 3.5}}, {}, {}],
    }
    fewer = Sizes(pool).cut(40, [2, 33], Cut((LATER,)))
    assert fewer["requests"] == [{"logit_bias": {0: 2.5, 1: 3.5}}, {}, {}]
    assert fewer["generators"] == pool["generators"]
    first = Sizes(pool).cut(3, [2, 0], Cut((FIRST,), remap=False))
    assert first["generators"] == {0: Seeded(2), 1: Seeded(1)}
    assert first["requests"] == [{}, {"logit_bias": {0: 1.5, 2: 2.5, 33: 3.5}}]
