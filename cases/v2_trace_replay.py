"""V2 trace replay: requests that bring a trace emit its tokens in place of sampled ones; in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import IDS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, MAPPINGS, rows_of, slots_for
from difftest.cases.v2_state import add_request, flush, make_state, methods, request_slots, token_state
from difftest.target import Arm, Call, Case, Pool, Target

APPLY = f"{GPU}.sample.trace_replay:apply_trace_tokens"
STATE = f"{GPU}.sample.trace_replay:TraceReplayState"

_WIDTH = 12
_PROMPT = 3
STEPS = ("inside", "first", "last", "past the trace", "before the prompt's end")

AXES = {
    "step": STEPS,
    "traces": ("some", "all", "none", "as long as a request may be"),
    "mapping": MAPPINGS,
    "requests": (4, 1, 0),
    "id dtype": ("int64", "int32"),
}


def _pool(row: Row, s: Stream) -> Pool:
    count = row["requests"]
    slots = rows_of((0,) * count, row["mapping"]).slots
    states = slots_for(count)
    lengths = torch.zeros(states, dtype=torch.int32)
    for slot in range(states):
        long = {"all": 5, "none": 0, "as long as a request may be": _WIDTH}.get(row["traces"], (4, 0, 6)[slot % 3])
        lengths[slot] = long
    step = {
        "inside": lengths // 2,
        "first": torch.zeros_like(lengths),
        "last": lengths - 1,
        "past the trace": lengths,
        "before the prompt's end": torch.full_like(lengths, -1),
    }[row["step"]]
    return {
        "sampled": guarded(s.integers(0, 500, (count,), IDS[row["id dtype"]]), fill=7),
        "idx_mapping": torch.tensor(slots, dtype=torch.int32),
        "trace_token_ids": guarded(s.integers(500, 900, (states, _WIDTH), torch.int32), fill=8),
        "trace_len": guarded(lengths, fill=3),
        "total_len": guarded((step + _PROMPT).int(), fill=4),
        "prompt_len": guarded(torch.full((states,), _PROMPT, dtype=torch.int32), fill=3),
    }


def cases() -> Iterator[Case]:
    yield from axes.cases_from(AXES, _pool, name="v2.trace_replay", limit=40)


STATE_AXES = {
    "traces": ((3, None, 5), (None, None, None), (1, 1, 1), (9, 2, 0)),
    "again": ("no", "without a trace", "with a shorter one"),
    "order": ("as they came", "reversed"),
    "steps": (6, 1),
}


def _state_pool(row: Row, s: Stream) -> Pool:
    count = axes.sized(row, 3, 0)[0]
    longs = [row["traces"][number % 3] for number in range(count)]
    traces = [None if long is None else s.integers(500, 900, (long,)).tolist() for long in longs]
    slots = list(request_slots(count))
    lengths = [_PROMPT] * slots_for(count)
    return {
        **token_state(s, 100, lengths, lengths, lengths, _PROMPT + _WIDTH),
        "traces": traces,
        "again": row["again"],
        "slots": slots,
        "idx_mapping": torch.tensor(slots if row["order"] == "as they came" else slots[::-1], dtype=torch.int32),
        "sampled": s.integers(0, 500, (row["steps"], count)),
    }


def state_cases() -> Iterator[Case]:
    yield from axes.cases_from(STATE_AXES, _state_pool, name="v2.trace_replay_state", covers=2)


def prepare_state(arm: Arm, pool: Pool) -> Call:
    """Requests come into slots; each step samples a token for each, and half way another request may have come into
    the first one's slot."""
    state = make_state(arm, STATE, pool, 100)
    slots = pool["slots"]

    def life() -> list[Any]:
        for slot, trace in zip(slots, pool["traces"], strict=True):
            add_request(arm, state, slot, {"trace_decode_token_ids": trace}, pool)
        flush(arm, state, pool)
        found = []
        for number, sampled in enumerate(pool["sampled"]):
            if number == len(pool["sampled"]) // 2 and number and pool["again"] != "no":
                trace = None if pool["again"] == "without a trace" else [901]
                add_request(arm, state, slots[0], {"trace_decode_token_ids": trace}, pool)
                pool["total_len"][slots[0]] = _PROMPT
                flush(arm, state, pool)
            state.apply_trace(**arm.bind(state.apply_trace, {**pool, "sampled": sampled}))
            found.append(sampled.clone())
            for slot in slots:
                pool["total_len"][slot] += 1
        return found

    return Call(life)


TARGETS = (
    Target(
        "v2.trace_replay",
        (APPLY,),
        cases,
        triton=True,
        rows=("sampled",),
        shapes=shapes.of_cases(cases),
    ),
    Target(
        "v2.trace_replay_state",
        (STATE,),
        state_cases,
        prepare_state,
        uses=methods(STATE, "apply_trace"),
        triton=True,
        shapes=shapes.of_cases(state_cases),
    ),
)
