"""The passes reach the smallest case that still differs, and leave what its contract rests on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from difftest.shrink.groups import groups, position
from difftest.shrink.reduce import OutOfTimeError, Reducer, requests
from difftest.shrink.tree import is_plain_tensor, largest_axis
from difftest.target import Made, Pool, Seeded


def batch() -> Pool:
    generator = torch.Generator().manual_seed(3)
    probabilities = torch.rand(12, 50, generator=generator).softmax(-1)
    counts = [3, 0, 2, 1, 3, 0, 1, 2]
    wide = torch.randn(12, 64, generator=generator)
    return {
        "target_probs": probabilities,
        "logits": wide.to(torch.bfloat16)[:, :50],
        "draft_token_ids": torch.randint(0, 50, (12,), generator=generator),
        "num_draft_tokens": counts,
        "cu_num_draft_tokens": torch.tensor(counts).cumsum(0),
        "temperature": torch.rand(8, generator=generator) + 0.25,
        "uniform": torch.rand(12, generator=generator),
        "slots": torch.randperm(8, generator=generator),
        "generators": {i: Seeded(100 + i) for i in range(8)},
        "metadata": Made("m:C", {"top_k": torch.full((8,), 5), "output": [[i, i + 1] for i in range(8)]}),
    }


def holds_together(pool: Pool) -> None:
    """What a target's contract would ask of the batch."""
    counts = pool["num_draft_tokens"]
    total, rows = sum(counts), len(counts)
    assert pool["cu_num_draft_tokens"].tolist() == np.cumsum(counts).tolist()
    vocabulary = pool["target_probs"].shape[1]
    assert len(pool["target_probs"]) == total
    assert torch.allclose(pool["target_probs"].sum(-1), torch.ones(total))
    assert all(0 <= i < vocabulary for i in pool["draft_token_ids"].tolist())
    assert len(pool["draft_token_ids"]) == len(pool["uniform"]) == total
    if pool["temperature"] is not None:
        assert len(pool["temperature"]) == rows
        assert (pool["temperature"] > 0).all()
    assert ((pool["uniform"] >= 0) & (pool["uniform"] < 1)).all()
    if pool["slots"] is not None:
        assert len(set(pool["slots"].tolist())) == rows
    assert set(pool["generators"] or {}) <= set(range(rows))


def reduced(pool: Pool, wrong: Any, hint: tuple[int, ...] = (), contract: bool = True) -> tuple[Pool, int]:
    executed = 0

    def accepts(candidate: Pool) -> bool:
        nonlocal executed
        executed += 1
        try:
            if contract:
                holds_together(candidate)
            return bool(wrong(candidate))
        except (AssertionError, TypeError, IndexError, KeyError, AttributeError):
            return False

    return Reducer(pool, accepts, hint, contract).run(), executed


def test_one_request_with_one_draft_is_left_when_that_is_enough() -> None:
    found, executed = reduced(batch(), lambda p: p["target_probs"].numel() and (p["temperature"] is not None))
    assert found["num_draft_tokens"] == [1]
    assert found["target_probs"].tolist() == [[1.0]]
    assert found["metadata"] is None
    assert found["generators"] is None
    assert found["slots"] is None
    assert found["logits"] is None or found["logits"].dtype == torch.float32
    assert largest_axis(found) == 1
    assert executed < 150


def test_what_the_mismatch_needs_stays() -> None:
    def wrong(pool: Pool) -> bool:
        ids = pool["draft_token_ids"].tolist()
        return len(ids) >= 2 and ids[-1] >= 3 and pool["metadata"].fields["output"][0] is not None

    found, _ = reduced(batch(), wrong)
    assert sum(found["num_draft_tokens"]) == 2
    assert found["draft_token_ids"].tolist()[-1] == found["target_probs"].shape[1] - 1 == 3
    assert largest_axis(found) == 4


def test_a_number_that_each_request_has_stays_one() -> None:
    """No request comes without it, so a case without it is outside of the contract."""
    requests = [{"min_p": 0.5, "seed": None, "tokens": [1, 2]}, {"min_p": 0.25, "seed": 7, "tokens": [3]}]
    found, _ = reduced({"requests": requests, "top_p": 0.5}, lambda p: len(p["requests"]) == 2, contract=False)
    assert found["top_p"] is None
    assert all(type(each["min_p"]) is float and each["seed"] is None for each in found["requests"])


def test_a_layout_that_matters_is_kept_while_the_rest_becomes_small() -> None:
    def wrong(pool: Pool) -> bool:
        return not pool["logits"].is_contiguous() and pool["logits"].dtype == torch.bfloat16

    found, _ = reduced(batch(), wrong)
    assert not is_plain_tensor(found["logits"])
    assert largest_axis(found) == 2


def test_rows_that_are_one_memory_are_cut_and_keep_their_values() -> None:
    pool = {"k": torch.tensor([5]).expand(4), "logits": torch.ones(4, 9)}
    found, _ = reduced(
        pool, lambda p: p["k"] is not None and p["k"].stride() == (0,) and len(p["k"]) > 1, contract=False
    )
    assert found["k"].tolist() == [5, 5]


def test_the_position_of_the_mismatch_is_tried_first() -> None:
    found, executed = reduced(batch(), lambda p: 104 in [s.seed for s in p["generators"].values()], hint=(4,))
    assert found["generators"] == {0: Seeded(104)}
    assert found["num_draft_tokens"] == [0]
    assert requests(found) == 1
    assert executed < 150


def test_outside_the_contract_anything_goes() -> None:
    found, _ = reduced(batch(), lambda p: p["target_probs"].numel() > 0, contract=False)
    assert found["target_probs"].tolist() == [[0.0]]


def test_time_is_up_when_the_caller_says_so() -> None:
    calls = 0

    def accepts(pool: Pool) -> bool:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OutOfTimeError
        return True

    found = Reducer(batch(), accepts).run()
    assert calls == 4
    assert len(found["num_draft_tokens"]) < 8


def test_the_same_verdicts_lead_to_the_same_candidates() -> None:
    from difftest.call.values import case_id

    def candidates() -> list[str]:
        met = []

        def accepts(pool: Pool) -> bool:
            met.append(case_id("t", pool))
            return len(met) % 3 == 1

        Reducer(batch(), accepts).run()
        return met

    assert candidates() == candidates()


def test_probabilities_that_are_kept_stay_what_they_were() -> None:
    """The rest of the row takes up what the ids that are left out had."""
    row = torch.rand(1, 40, generator=torch.Generator().manual_seed(1))
    row /= row.sum()
    pool = {"probabilities": row, "draft": torch.tensor([21]), "uniform": row[:, 21].clone()}

    def wrong(p: Pool) -> bool:
        rows = p["probabilities"]
        if any(value is None or not len(value) for value in p.values()):
            return False
        assert torch.allclose(rows.sum(-1), torch.ones(1)) and (rows >= 0).all()
        return bool(rows[0, p["draft"]] == p["uniform"])

    found = Reducer(pool, wrong, hint=(0,)).run()
    assert largest_axis(found) <= 3


def test_what_rests_on_no_position_is_halved_at_random() -> None:
    values = np.random.default_rng(3).standard_normal((1, 179)).astype(np.float32)

    def wrong(p: Pool) -> bool:
        row = np.zeros(0, np.float32) if p["values"] is None else p["values"].reshape(-1)
        return len(row) > 20 and bool(row.cumsum()[-1] != row[::-1].cumsum()[-1])

    assert wrong({"values": values})
    assert 20 < Reducer({"values": values}, wrong).run()["values"].size < 40


def test_what_shows_by_chance_is_found_again_with_few() -> None:
    """Noise of bfloat16 against float64 chooses another id in about one of 400 rows, whichever noise meets it there."""

    def differs(pool: Pool) -> bool:
        probabilities = pool["probs"]
        noises = (
            torch.empty(probabilities.shape, dtype=dtype).exponential_(generator=torch.Generator().manual_seed(5))
            for dtype in (torch.bfloat16, torch.float64)
        )
        one, other = ((probabilities / noise).argmax(-1) for noise in noises)
        return not torch.equal(one, other)

    found = []
    for seed in range(400):
        made = torch.rand(17, 17, generator=torch.Generator().manual_seed(seed))
        pool: Pool = {"probs": (made / made.sum(-1, keepdim=True)).to(torch.bfloat16)}
        if differs(pool):
            small, _ = reduced(pool, differs, contract=False)
            found.append((requests(small), largest_axis(small)))
    assert len(found) > 4
    assert all(rows <= 3 and ids <= 16 for rows, ids in found), found


def test_what_noise_shows_beyond_a_block_is_found_again_nearer_to_it() -> None:
    """Beyond the first 64 ids head has the noise of the first block; it shows when one of them is chosen."""

    def differs(pool: Pool) -> bool:
        scores = pool["scores"]
        if scores is None or pool["seed"] is None:
            return False
        noise = torch.rand(scores.shape, generator=torch.Generator().manual_seed(pool["seed"])) ** 2
        again = noise[:, torch.arange(scores.shape[1]) % 64]
        return not torch.equal((scores + noise).argmax(-1), (scores + again).argmax(-1))

    found = []
    for seed in range(100, 160):
        pool = {"scores": torch.zeros(1, 110), "seed": seed}
        if differs(pool):
            found.append(largest_axis(Reducer(pool, differs).run()))
    assert len(found) > 8
    assert set(found) == {65}


def test_one_of_each_group_is_reduced_those_inside_the_contract_first() -> None:
    def mismatch(leaf: str, place: str = "", kind: str = "value", **more: Any) -> dict[str, Any]:
        found = {"leaf": leaf, "place": place or leaf, "kind": kind, "contract": True, "index": []}
        return {**found, "case": f"of {leaf}", **more}

    rows = [mismatch(f"return[{i}]", "return[*]") for i in range(3)]
    others = [mismatch("raised", kind="exception", contract=False), mismatch("logits", index=[2, 7])]
    found = groups([*rows, *others, *rows])
    assert [[item["leaf"] for item in items] for items in found] == [
        ["return[0]", "return[1]", "return[2]"],
        ["logits"],
        ["raised"],
    ]
    parts = [mismatch("return[1]"), mismatch("return[0]"), mismatch("logits")]
    assert [items[0]["leaf"] for items in groups(parts)] == ["return[1]", "logits", "return[0]"]
    assert position(mismatch("return[1][5]", "return[1][*]", index=[2, 7])) == [5, 2, 7, 1]
    assert position(mismatch("return[3][5]", "return[*][*]")) == [5, 3]


def test_rows_that_are_the_positions_of_a_batch_follow_it() -> None:
    ids = torch.tensor([[-1, -1, -1], [0, 7, 8], [4, -1, -1]], dtype=torch.int32)
    pool = {"ids": ids, "scores": torch.arange(1.0, 10.0)[:, None], "ranks": torch.arange(20, 29)}

    def wrong(p: Pool) -> bool:
        if p["ids"] is None or p["scores"] is None or len(p["scores"]) != p["ids"].numel():
            return False
        valid = p["ids"].flatten() != -1
        return not torch.equal(p["scores"][valid], p["scores"][: int(valid.sum())])

    found = Reducer(pool, wrong).run()
    assert found["ids"].flatten().tolist() == [-1, 0]
    assert found["scores"].shape == (2, 1)


def test_what_is_flat_is_not_taken_for_requests() -> None:
    flat = {name: torch.arange(6.0) for name in ("logprobs", "ranks", "scores")}
    assert requests({"ids": torch.zeros(3, 2), **flat}) == 3
    assert requests({"counts": [3, 0, 3], "keys": torch.zeros(3), **flat}) == 3
    assert requests({"offsets": [0, 3, 3, 6], "keys": torch.zeros(3), **flat}) == 3
    assert requests(flat) == 6


def test_what_indices_point_to_is_kept_first() -> None:
    logits = torch.arange(240.0).reshape(24, 10)
    pool = {"slots": torch.tensor([17, 5]), "logits": logits, "seeds": torch.arange(24) * 3 + 1}
    tried = []

    def wrong(p: Pool) -> bool:
        if p["seeds"] is None or p["slots"] is None:
            return False
        tried.append(len(p["seeds"]))
        return [int(p["seeds"][i]) for i in p["slots"]] in ([52, 16], [16], [52])

    Reducer(pool, wrong).run()
    assert tried.index(2) <= 4


def test_a_length_may_also_be_a_limit_and_the_limit_is_lowered() -> None:

    def wrong(p: Pool) -> bool:
        logits, most = p["logits"], p["most"]
        return logits is not None and most is not None and (most == 200 or 1 <= most < logits.shape[1])

    found = Reducer({"logits": torch.ones(1, 200), "most": 200}, wrong).run()
    assert (found["most"], found["logits"].shape[1]) == (1, 2)


def test_each_way_to_leave_requests_out_is_tried_for_each_of_few() -> None:
    """Here the numbers of `k` are below the number of requests, and yet no indices of them."""
    pool = {"logits": torch.arange(8.0).reshape(4, 2), "k": torch.tensor([3, 2, 1, 2])}

    def wrong(p: Pool) -> bool:
        return p["logits"] is not None and p["k"] is not None and {1, 3} <= set(p["k"].tolist())

    found = Reducer(pool, wrong).run()
    assert found["k"].tolist() == [3, 1]


def test_what_shows_beyond_a_block_is_cut_to_one_more_than_it() -> None:
    tried = []

    def wrong(p: Pool) -> bool:
        tried.append(p["logits"].shape[1] if p["logits"] is not None else 0)
        return tried[-1] > 1024

    found = Reducer({"logits": torch.ones(1, 5000)}, wrong).run()
    assert largest_axis(found) == 1025
    assert tried.index(1025) < 16


def test_an_id_beyond_a_block_is_kept_behind_as_many_as_the_block_has() -> None:
    tried = []

    def wrong(p: Pool) -> bool:
        tried.append(p["logits"].shape[1] if p["logits"] is not None else 0)
        return tried[-1] > 1024 and bool((p["logits"][0, 1024:] == 7.0).any())

    logits = torch.ones(1, 5000)
    logits[0, 3000] = 7.0
    found = Reducer({"logits": logits}, wrong, ids=(3000,)).run()
    assert largest_axis(found) == 1025
    assert tried.index(1025) < 24


def test_a_mask_has_every_bit_where_that_is_enough() -> None:
    mask = torch.tensor([[1942862150, 5], [-1724449360, 7]], dtype=torch.int32)
    found = Reducer({"mask": mask}, lambda p: p["mask"] is not None and bool((p["mask"] < 0).any())).run()
    assert set(found["mask"].flatten().tolist()) == {-1}
