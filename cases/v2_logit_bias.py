"""V2 logit bias: allowed token ids, biases, and no stop token before the minimum length; in place.

`min_lens` counts prompt and output tokens; a row's position is that of the token it is computed from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, MAPPINGS, expanded_only, guarded_logits, map_rows, slots_for
from difftest.cases.v2_state import (
    NO_REQUEST,
    add_request,
    chosen_requests,
    flush,
    life_state,
    make_state,
    methods,
    of_step_rows,
    process,
    request_slots,
    snapshot,
)
from difftest.target import Arm, Call, Case, Pool, Target

APPLY_LOGIT_BIAS = f"{GPU}.sample.logit_bias:apply_logit_bias"
STATE = f"{GPU}.sample.logit_bias:LogitBiasState"
APPLY_METHODS = ("apply", "apply_logit_bias")

IDS = ("some", "none", "one", "first and last id", "every id", "the same id twice", "only on one request", "id V", "-1")
AXES = {
    "allowed": IDS,
    "bias": IDS,
    "stop": IDS,
    "before the minimum": ("by one", "by two", "at it", "past it", "mixed"),
    "restored": ("no", "flag off", "flag on", "on one request"),
    "widths": ("equal", "allowed widest", "bias widest", "stop widest", "allowed 17 of 32"),
    "amount": ("plain", "+inf", "-inf", "NaN", "zero", "huge"),
    "logits": (
        "random",
        "integer grid",
        "-inf some",
        "-inf everywhere",
        "-inf all but one",
        "-0.0",
        "+inf once",
        "NaN at the start",
    ),
    "vocab": (40, 1, 2, 33, 8191, 8193),
    "rows": (2, 1, 0, 4),
    "mapping": MAPPINGS[:4],
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "every other row"),
}
_WIDEST = ("allowed", "bias", "stop")
_WIDTHS = {
    "equal": (16, 16, 16),
    "allowed widest": (64, 16, 8),
    "bias widest": (8, 64, 16),
    "stop widest": (8, 16, 64),
    "allowed 17 of 32": (32, 16, 8),
}


def _ids(pattern: str, request: int, width: int, vocab: int, s: Stream) -> list[int]:
    drawn = sorted({s.integer(0, vocab) for _ in range(min(width, 5 + request))})
    return {
        "some": drawn,
        "none": [],
        "one": drawn[:1],
        "first and last id": sorted({0, vocab - 1}),
        "every id": list(range(min(width, vocab))),
        "the same id twice": [drawn[0], drawn[0]],
        "only on one request": drawn if request == 1 else [],
        "id V": [*drawn[:2], vocab],
        "-1": [-1, *drawn[:2]],
    }[pattern]


def _table(lists: list[list[int]], slots: list[int], width: int, stale: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [slots, width] and their number [slots]; other slots and what is past the number hold a stale id."""
    count = slots_for(len(slots))
    ids = torch.full((count, width), stale, dtype=torch.int32)
    number = torch.full((count,), 2, dtype=torch.int32)
    for slot, given in zip(slots, lists, strict=True):
        if slot >= 0:
            ids[slot, : len(given)] = torch.tensor(given[:width], dtype=torch.int32)
            number[slot] = len(given)
    return guarded(ids, fill=stale), guarded(number, fill=1)


def _pool(row: Row, s: Stream) -> Pool:
    rows, vocab = row["rows"], row["vocab"]
    slots = map_rows(row["mapping"], rows)
    widths = dict(zip(("allowed", "bias", "stop"), _WIDTHS[row["widths"]], strict=True))
    if row["widths"] == "allowed 17 of 32":
        lists = {"allowed": [list(range(min(17 + i, vocab))) for i in range(rows)]}
    else:
        lists = {"allowed": [_ids(row["allowed"], i, widths["allowed"], vocab, s) for i in range(rows)]}
    for name in ("bias", "stop"):
        lists[name] = [_ids(row[name], i, widths[name], vocab, s) for i in range(rows)]
    tables = {name: _table(given, slots, widths[name], vocab // 2) for name, given in lists.items()}
    amount = {"plain": 0.0, "+inf": float("inf"), "-inf": float("-inf"), "NaN": float("nan"), "zero": 0.0, "huge": 3e38}
    count = slots_for(rows)
    bias = s.normal_like(count, widths["bias"], scale=4.0)
    if row["amount"] != "plain":
        bias[:, ::2] = amount[row["amount"]]
    distance = {"by one": [1], "by two": [2], "at it": [0], "past it": [-3], "mixed": [2, 0, 1, -1]}
    positions = s.integers(5, 30, (rows,))
    minimum = torch.full((count,), 1000, dtype=torch.int32)
    restored = torch.ones(count, dtype=torch.int32)
    for request, slot in enumerate(slots):
        if slot >= 0:
            choice = distance[row["before the minimum"]]
            minimum[slot] = int(positions[request]) + 1 + choice[request % len(choice)]
            restored[slot] = {"flag on": 1, "on one request": int(request == 1)}.get(row["restored"], 0)
    pool: Pool = {
        "logits": guarded_logits(row["logits"], rows, vocab, s, FLOATS[row["dtype"]], row["layout"]),
        "expanded_idx_mapping": torch.tensor(slots, dtype=torch.int32),
        "pos": positions,
        "num_allowed_token_ids": tables["allowed"][1],
        "allowed_token_ids": tables["allowed"][0],
        "num_logit_bias": tables["bias"][1],
        "logit_bias_token_ids": tables["bias"][0],
        "logit_bias": guarded(bias, fill=9.0),
        "min_lens": guarded(minimum, fill=1000),
        "num_stop_token_ids": tables["stop"][1],
        "stop_token_ids": tables["stop"][0],
        "restore_when_all_masked": guarded(restored, fill=1),
        "check_all_masked_rows": row["restored"] != "no",
    }
    return pool


def _contract(row: Row) -> bool:
    ids = (row["allowed"], row["bias"], row["stop"])
    return (
        not any(given in ("id V", "-1", "the same id twice") for given in ids)
        and row["logits"] not in axes.UNUSUAL_LOGITS
        and row["amount"] in ("plain", "zero", "-inf")
        and not row["mapping"].startswith("-1")
    )


def cases() -> Iterator[Case]:
    name = "v2.apply_logit_bias"
    yield from axes.cases_from(AXES, _pool, name=name, contract=_contract, limit=85)
    far = {**axes.plain(AXES), "layout": axes.FAR_ROWS, "rows": 4}
    yield from axes.cases_from(AXES, _pool, name=name, rows=[far])
    # More ids of one kind than the table of another is wide.
    wide = [{**axes.plain(AXES), "widths": f"{kind} widest", kind: "every id"} for kind in _WIDEST]
    yield from axes.cases_from(AXES, _pool, name=name, rows=wide, prefix="wide: ")


def prepare(arm: Arm, pool: Pool) -> Call:
    """A call of `apply_logit_bias` as each version takes it."""
    function = arm.get(APPLY_LOGIT_BIAS)
    return Call(function, kwargs=arm.bind(function, expanded_only(arm, function, pool)))


# -- the state -----------------------------------------------------------------------------------------------------

SNAPSHOT = ("num_allowed_token_ids.np", "num_logit_bias.np", "min_lens.np", "num_stop_token_ids.np")
_REQUESTS: dict[str, dict[str, Any]] = {
    "allowed": {"allowed_token_ids": [3, 5, 31]},
    "bias": {"logit_bias": {0: 2.5, 7: -100.0, 32: 1e-3}},
    "minimum": {"min_tokens": 8, "all_stop_token_ids": [2, 9]},
    "minimum just reached": {"min_tokens": 3, "all_stop_token_ids": [2, 9]},
    "minimum without stop ids": {"min_tokens": 8},
    "minimum reached": {"min_tokens": 1, "all_stop_token_ids": [2, 9]},
    "structured minimum": {"min_tokens": 9, "all_stop_token_ids": [3, 5, 31], "structured_outputs": True},
    "only stop ids allowed": {
        "allowed_token_ids": [2],
        "min_tokens": 9,
        "all_stop_token_ids": [2],
        "structured_outputs": True,
    },
    "all three": {
        "allowed_token_ids": [1, 2, 3],
        "logit_bias": {1: 50.0, 2: 60.0},
        "min_tokens": 9,
        "all_stop_token_ids": [2],
    },
    "nothing": {},
    "empty lists": {"allowed_token_ids": [], "logit_bias": {}},
    "1024 allowed": {"allowed_token_ids": list(range(1024))},
    "1024 biases": {"logit_bias": dict.fromkeys(range(1024), 1.0)},
    "128 stop ids": {"min_tokens": 9, "all_stop_token_ids": list(range(128))},
    "1025 allowed": {"allowed_token_ids": list(range(1025))},
    "1025 biases": {"logit_bias": dict.fromkeys(range(1025), 1.0)},
    "129 stop ids": {"min_tokens": 9, "all_stop_token_ids": list(range(129))},
}
STATE_AXES = {
    "request": tuple(_REQUESTS),
    "neighbour": ("nothing", "all three", "allowed", "structured minimum"),
    "again": ("no", "slot without", "slot with a bias"),
    "batch": ("all", "one", "reversed"),
    "vocab": (40, 1100),
    "dtype": ("float32", "bfloat16"),
}


def _state_pool(row: Row, s: Stream) -> Pool:
    if row["request"].startswith(("1024", "128")):
        row = {**row, "vocab": 1100}  # every id is in the vocabulary
    count = axes.sized(row, 3, 0)[0]
    chosen = chosen_requests(row["batch"], count)
    slots = torch.tensor([request_slots(count)[index] for index in chosen], dtype=torch.int32)
    state = life_state(s, row["vocab"], count)
    return {
        **state,
        "requests": [_REQUESTS[("nothing", row["request"], row["neighbour"])[i % 3]] for i in range(count)],
        "again": row["again"],
        "idx_mapping": slots,
        "expanded_idx_mapping": slots.clone(),
        "pos": (state["total_len"][slots.long()] - 1).long(),
        "logits": guarded_logits("random", len(chosen), row["vocab"], s, FLOATS[row["dtype"]], "padded rows"),
    }


def state_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        STATE_AXES,
        _state_pool,
        name="v2.logit_bias_state",
        contract=lambda row: not row["request"].startswith(("1025", "129")) and row["batch"] != NO_REQUEST,
        alone={"batch": (NO_REQUEST,)},
        limit=37,
    )


def prepare_state(arm: Arm, pool: Pool) -> Call:
    """Requests come into slots 4, 1 and 2, perhaps again; then a step is processed."""
    state = make_state(arm, STATE, pool, pool["logits"].shape[1])
    context = {
        **{name: pool[name] for name in ("idx_mapping", "expanded_idx_mapping", "pos")},
        "idx_mapping_np": pool["idx_mapping"].cpu().numpy(),
    }

    def life() -> dict[str, Any]:
        for slot, given in zip(request_slots(len(pool["requests"])), pool["requests"], strict=True):
            add_request(arm, state, slot, given, pool)
        flush(arm, state, pool)
        if pool["again"] != "no":
            add_request(arm, state, 1, {"logit_bias": {4: 9.0}} if "bias" in pool["again"] else {}, pool)
            flush(arm, state, pool)
        logits = process(arm, state, APPLY_METHODS, pool["logits"], context)
        return {"logits": logits, **snapshot(state, SNAPSHOT)}

    return Call(life)


TARGETS = (
    Target(
        "v2.apply_logit_bias",
        (APPLY_LOGIT_BIAS,),
        cases,
        prepare,
        triton=True,
        rows=("logits",),
        invariants=(relations.unchanged("pos", "allowed_token_ids", "logit_bias", "min_lens", "stop_token_ids"),),
        relations=(
            *relations.of_rows(("logits", "expanded_idx_mapping", "pos"), ("logits",)),
            relations.relaid("logits", ("logits",)),
        ),
        shapes=shapes.of_cases(cases, "vocabulary"),
    ),
    Target(
        "v2.logit_bias_state",
        (STATE,),
        state_cases,
        prepare_state,
        uses=methods(STATE, *APPLY_METHODS),
        triton=True,
        relations=of_step_rows("pos"),
        shapes=shapes.of_cases(state_cases, "vocabulary"),
    ),
)
