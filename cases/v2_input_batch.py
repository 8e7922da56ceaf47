"""V2 steps before and after sampling: where a step's logits and drafts are, and what sampled tokens leave behind."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import POISON_ID, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, MAPPINGS, launch, rows_of, slots_for, strides
from difftest.cases.v2_state import token_state
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

BATCH = f"{GPU}.input_batch"
EXPAND = f"{BATCH}:expand_idx_mapping"
COMBINE = f"{BATCH}:combine_sampled_and_draft_tokens"
POSITIONS = f"{BATCH}:prepare_pos_seq_lens"
UPDATE = f"{BATCH}:post_update"
GATHER = f"{GPU}.spec_decode.rejection_sampler:gather_draft_sampled"
FLATTEN = f"{GPU}.spec_decode.rejection_sampler:_flatten_sampled_kernel"

_DRAFTS = ((2, 0, 1), (0, 0, 0), (3, 3), (1,), (0, 3, 0, 1))
_INT = torch.int32


def _slot_values(values: Sequence[int], slots: Sequence[int], other: int, dtype: torch.dtype = _INT) -> torch.Tensor:
    """A state tensor [slots] between guard slots: the values of a step's requests, `other` everywhere else."""
    state = torch.full((slots_for(len(slots)),), other, dtype=dtype)
    for slot, value in zip(slots, values, strict=True):
        if slot >= 0:
            state[slot] = value
    made: torch.Tensor = guarded(state, fill=other)
    return made


# -- one row a logit -----------------------------------------------------------------------------------------------

EXPAND_AXES = {
    "drafts": ((2, 0, 1), (0, 0, 0), (3, 3), (0, 3, 0, 1), (7, 1)),
    "mapping": MAPPINGS,
    "most": ("exact", "more than any has"),
}


def _expand_pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"], row["mapping"])
    made = rows.pool()
    return {
        "idx_mapping": made["idx_mapping"],
        "cu_num_logits": made["cu_num_logits"],
        "total_num_logits": rows.count,
        "max_expand_len": max(rows.drafts) + 1 + (0 if row["most"] == "exact" else 5),
    }


def expand_cases() -> Iterator[Case]:
    yield from axes.cases_from(EXPAND_AXES, _expand_pool, name="v2.expand_idx_mapping", limit=30)


def prepare_expand(arm: Arm, pool: Pool) -> Call:
    """The slot of each row, and its position among those of its request."""
    function = arm.get(EXPAND)
    kwargs = arm.bind(function, pool)

    def expanded() -> Any:
        result = function(**kwargs)
        if isinstance(result, torch.Tensor):
            raise ApiChange("this version's expand_idx_mapping gives slots without positions")
        return result

    return Call(expanded)


# -- the inputs of a step --------------------------------------------------------------------------------------------

STAGES = (
    "decode",
    "prefill",
    "prefill ends",
    "one token after the prefill",
    "drafts begin in the prefill",
    "logits begin where the prefill ends",
    "one prefills",
)
COMBINE_AXES = {
    "stage": STAGES,
    "drafts": _DRAFTS,
    "mapping": ("permuted", "identity"),
    "bonus": (1, 0),
    "scheduled": ("only logits", "more tokens than logits"),
    "id dtype": ("int32", "int64"),
}


def _prefills(stage: str, lengths: Sequence[int], logits: Sequence[int]) -> list[int]:
    """Prefill tokens of each request, by its tokens at the end of the step and its logits."""
    after = {
        "decode": [length - count - 2 for length, count in zip(lengths, logits, strict=True)],
        "prefill": [length + 3 for length in lengths],
        "prefill ends": list(lengths),
        "one token after the prefill": [length - 1 for length in lengths],
        "logits begin where the prefill ends": [length - count for length, count in zip(lengths, logits, strict=True)],
        "drafts begin in the prefill": [length - count + 1 for length, count in zip(lengths, logits, strict=True)],
    }
    if stage == "one prefills":
        return [lengths[0] + 3, *after["decode"][1:]]
    return after[stage]


def _combine_pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"])
    counts = [drafts + row["bonus"] for drafts in rows.drafts]
    scheduled = [count + (0 if row["scheduled"] == "only logits" else s.integer(1, 5)) for count in counts]
    lengths = [count + s.integer(8, 30) for count in scheduled]
    slots = list(range(len(counts))) if row["mapping"] == "identity" else list(rows.slots)
    most = max(1, *rows.drafts)
    ids = axes.IDS[row["id dtype"]]
    state = (slots_for(len(slots)), most)
    return {
        "input_ids": guarded(s.integers(100, 200, (sum(scheduled),), _INT), fill=7),
        "idx_mapping": torch.tensor(slots, dtype=_INT),
        "last_sampled_tokens": guarded(s.integers(200, 300, (state[0], 1), ids), fill=8),
        "query_start_loc": torch.tensor([0, *itertools.accumulate(scheduled)], dtype=_INT),
        "seq_lens": torch.tensor(lengths, dtype=_INT),
        "prefill_len": _slot_values(_prefills(row["stage"], lengths, counts), slots, 1000),
        "draft_tokens": guarded(s.integers(300, 400, state, ids), fill=9),
        "cu_num_logits": torch.tensor([0, *itertools.accumulate(counts)], dtype=_INT),
        "num_logits": sum(counts),
        "num_new_sampled_tokens": row["bonus"],
    }


def combine_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        COMBINE_AXES,
        _combine_pool,
        name="v2.combine_sampled_and_draft_tokens",
        contract=lambda row: row["bonus"] == 1,
        limit=50,
    )


def prepare_combine(arm: Arm, pool: Pool) -> Call:
    """The step's input ids are completed in place; returned are the places of its logits."""
    function = arm.get(COMBINE)
    if pool["num_new_sampled_tokens"] != 1 and "num_new_sampled_tokens" not in takes(function):
        raise ApiChange("this version samples one token beside the drafts")
    return Call(function, kwargs=arm.bind(function, pool))


LENGTH_AXES = {
    "lengths": ((3, 5, 1), (1,), (1, 1, 1, 1), (1023, 2), (1024, 1), (1025, 3)),
    "mapping": ("permuted", "identity", "two rows of one slot"),
    "computed": (4, 0, 1000),
    "padding": (2, 0, 1023, 1025),
}


def _length_pool(row: Row, s: Stream) -> Pool:
    lengths = (1,) * row["size"].batch if "size" in row else row["lengths"]
    slots = rows_of((0,) * len(lengths), row["mapping"]).slots
    computed = [row["computed"] + 3 * request for request in range(len(lengths))]
    return {
        "idx_mapping": torch.tensor(slots, dtype=_INT),
        "query_start_loc": torch.tensor([0, *itertools.accumulate(lengths)], dtype=_INT),
        "num_computed_tokens": _slot_values(computed, slots, 77),
        "pos": guarded(torch.full((sum(lengths) + 2,), 5, dtype=torch.int64), fill=6),
        "seq_lens": guarded(torch.full((len(lengths) + row["padding"],), 9, dtype=_INT), fill=9),
    }


def length_cases() -> Iterator[Case]:
    yield from axes.cases_from(LENGTH_AXES, _length_pool, name="v2.prepare_pos_seq_lens", limit=35)


# -- drafts that are judged ------------------------------------------------------------------------------------------

GATHER_AXES = {
    "stage": STAGES,
    "drafts": (*_DRAFTS, (3,) * 300),
    "mapping": ("permuted", "identity"),
    "scheduled": ("only logits", "more tokens than logits"),
    "id dtype": ("int32", "int64"),
}


def _gather_pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"])
    counts = [drafts + 1 for drafts in rows.drafts]
    scheduled = [count + (0 if row["scheduled"] == "only logits" else s.integer(1, 5)) for count in counts]
    starts = [0, *itertools.accumulate(scheduled)]
    lengths = [count + s.integer(8, 30) for count in scheduled]
    slots = list(range(len(counts))) if row["mapping"] == "identity" else list(rows.slots)
    places = zip(starts[1:], lengths, counts, strict=True)
    ends = [(end - count, length - count, count) for end, length, count in places]
    positions = torch.full((starts[-1],), 3, dtype=torch.int64)
    for first, position, count in ends:
        positions[first : first + count] = torch.arange(position, position + count)
    return {
        "input_ids": guarded(s.integers(0, 500, (starts[-1],), axes.IDS[row["id dtype"]]), fill=7),
        "positions": guarded(positions, fill=-9),
        "logits_indices": torch.tensor([first + i for first, _, count in ends for i in range(count)]),
        "expanded_idx_mapping": torch.tensor(rows.expand(slots), dtype=_INT),
        "expanded_local_pos": torch.tensor(rows.local, dtype=_INT),
        "prefill_len": _slot_values(_prefills(row["stage"], lengths, counts), slots, 1000),
    }


def gather_cases() -> Iterator[Case]:
    yield from axes.cases_from(GATHER_AXES, _gather_pool, name="v2.gather_draft_sampled", limit=45)


FLATTEN_AXES = {"drafts": _DRAFTS, "sampled": ("all", "one each", "none", "ragged"), "id dtype": ("int64", "int32")}


def _sampled(how: str, counts: Sequence[int], s: Stream) -> list[int]:
    """How many of at most so many tokens each request sampled."""
    chosen = {"all": list(counts), "one each": [1] * len(counts), "none": [0] * len(counts)}
    return chosen.get(how) or [s.integer(0, count + 1) for count in counts]


def _flatten_pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"])
    counts = [drafts + 1 for drafts in rows.drafts]
    ids = axes.IDS[row["id dtype"]]
    return {
        "flat_sampled": guarded(torch.full((rows.count,), -5, dtype=ids), fill=-5),
        "sampled": guarded(s.integers(0, 500, (len(counts), max(counts)), ids), fill=POISON_ID),
        "num_sampled": torch.tensor(_sampled(row["sampled"], counts, s), dtype=_INT),
        "cu_num_logits": rows.pool()["cu_num_logits"],
    }


def flatten_cases() -> Iterator[Case]:
    yield from axes.cases_from(FLATTEN_AXES, _flatten_pool, name="v2.flatten_sampled_kernel", limit=25)


def prepare_flatten(arm: Arm, pool: Pool) -> Call:
    """A launch that lays the sampled tokens of all requests in a row."""
    pointers = {f"{name}_ptr": value for name, value in pool.items()}
    values = {**pointers, **strides(sampled=pool["sampled"])}
    made: Call = launch(arm, arm.get(FLATTEN), (len(pool["num_sampled"]),), values)
    return made


# -- after sampling --------------------------------------------------------------------------------------------------

UPDATE_AXES = {
    "drafts": _DRAFTS,
    "sampled": ("ragged", "all", "one each", "none"),
    "mapping": ("permuted", "identity", "-1 at the end", "-1 in the middle"),
    "counts": ("there", "none"),
    "queries": ("there", "none"),
    "ids": ("drawn", "all the same", "the last id"),
}
_VOCABULARY = 12


def _update_pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"], row["mapping"])
    slots, counts = rows.slots, [drafts + 1 for drafts in rows.drafts]
    sampled = _sampled(row["sampled"], counts, s)
    states = slots_for(len(slots))
    tokens = s.integers(0, _VOCABULARY, (len(slots), max(counts)))
    if row["ids"] != "drawn":
        tokens[:] = 3 if row["ids"] == "all the same" else _VOCABULARY - 1
    for request, count in enumerate(sampled):
        tokens[request, count:] = POISON_ID
    lengths = [5 + slot % 4 for slot in range(states)]
    state = token_state(s, _VOCABULARY, lengths, lengths, lengths, max(lengths) + max(counts) + 3)
    counted = guarded(s.integers(0, 4, (states, _VOCABULARY), _INT), fill=50)
    return {
        "idx_mapping": torch.tensor(slots, dtype=_INT),
        "num_computed_tokens": guarded(s.integers(1, 40, (states,), _INT), fill=60),
        "last_sampled_tokens": guarded(s.integers(0, _VOCABULARY, (states, 1)), fill=70),
        "output_bin_counts": counted if row["counts"] == "there" else None,
        "sampled_tokens": guarded(tokens, fill=POISON_ID),
        "num_sampled": torch.tensor(sampled, dtype=_INT),
        "num_rejected": torch.tensor([c - n for c, n in zip(counts, sampled, strict=True)], dtype=_INT),
        "query_start_loc": rows.pool()["cu_num_logits"] if row["queries"] == "there" else None,
        "all_token_ids": state["all_token_ids"],
        "total_len": state["total_len"],
    }


def update_cases() -> Iterator[Case]:
    yield from axes.cases_from(UPDATE_AXES, _update_pool, name="v2.post_update", limit=45)


def prepare_update(arm: Arm, pool: Pool) -> Call:
    """What was sampled goes into the states of its requests; nothing is returned."""
    function = arm.get(UPDATE)
    parameters = inspect.signature(function).parameters
    for name in ("output_bin_counts", "query_start_loc"):
        if pool[name] is None and name in parameters and "None" not in str(parameters[name].annotation):
            raise ApiChange(f"this version's post_update takes no {name} of None")
    return Call(function, kwargs=arm.bind(function, pool))


TARGETS = (
    Target(
        "v2.expand_idx_mapping",
        (EXPAND,),
        expand_cases,
        prepare_expand,
        triton=True,
        shapes=shapes.of_cases(expand_cases, "drafts", varies=False),
    ),
    Target(
        "v2.combine_sampled_and_draft_tokens",
        (COMBINE,),
        combine_cases,
        prepare_combine,
        triton=True,
        shapes=shapes.of_cases(combine_cases, "drafts"),
    ),
    Target(
        "v2.prepare_pos_seq_lens",
        (POSITIONS,),
        length_cases,
        triton=True,
        shapes=shapes.of_cases(length_cases, varies=False),
    ),
    Target(
        "v2.gather_draft_sampled",
        (GATHER,),
        gather_cases,
        triton=True,
        shapes=shapes.of_cases(gather_cases, "drafts"),
    ),
    Target(
        "v2.flatten_sampled_kernel",
        (FLATTEN,),
        flatten_cases,
        prepare_flatten,
        triton=True,
        shapes=shapes.of_cases(flatten_cases, "drafts"),
    ),
    Target(
        "v2.post_update",
        (UPDATE,),
        update_cases,
        prepare_update,
        triton=True,
        shapes=shapes.of_cases(update_cases, "drafts"),
    ),
)
