"""V2 thinking budgets: past the budget of reasoning tokens, the end marker's next token is forced; in place.

Markers lie in the prompt, in the output, in the draft tokens and across their borders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, by_name, guarded_logits, rows_of, slots_for
from difftest.cases.v2_state import add_request, flush, make_state, methods, process, token_state
from difftest.target import Arm, Call, Case, Pool, Target

APPLY = f"{GPU}.sample.thinking_budget:apply_thinking_budget"
STATE = f"{GPU}.sample.thinking_budget:ThinkingBudgetState"
APPLY_METHODS = ("apply",)

MARKERS = {
    "two tokens": ((20, 21), (30, 31), (33, 30, 31)),
    "one token": ((20,), (30,), (30,)),
    "repeating": ((20, 20), (30, 30), (30, 30, 30)),
    "start is end": ((20, 21), (20, 21), (20, 21)),
    "three tokens": ((20, 21, 22), (30, 31, 32), (30, 31, 32)),
}
"""Start, natural end and forced end of reasoning."""
STALE = ("start goes on in stale tokens", "end goes on in stale tokens")
"""A marker begins with the last of a request's tokens; the rest of it is what another request left behind them."""
PLACES = (
    *("in the prompt", "in the output", "at the very end", "across prompt and output", "across output and drafts"),
    *("in the drafts", "nowhere", "ended", "ended and begun again", "forced end begun", "forced end begun in drafts"),
    *("at the very start", "cut off", *STALE),
)
AXES = {
    "place": PLACES,
    "budget": (2, 0, 1, 5, 100, -1, 2**31 - 1),
    "markers": tuple(MARKERS),
    "drafts": ((2, 1), (0, 0), (3, 0), (2, 2)),
    "cache": ("cold", "warm", "stale", "past the end"),
    "only": ("both", "first", "second"),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "every other row"),
}
_PROMPT, _TOTAL = 6, 14
_SCANNED = 1024
"""Tokens of a block of the first scan."""


def _put(tokens: list[int], place: int, marker: Sequence[int]) -> None:
    for offset, token in enumerate(marker):
        if 0 <= place + offset < len(tokens):
            tokens[place + offset] = token


def _tokens(
    place: str, markers: tuple[Sequence[int], Sequence[int], Sequence[int]], drafts: int, s: Stream, total: int
) -> list[int]:
    """Prompt, output and draft tokens of one request, with markers."""
    start, natural, forced = markers
    tokens: list[int] = s.integers(0, 15, (total + drafts,)).tolist()
    at = {
        "in the prompt": 1,
        "in the output": _PROMPT + 1,
        "at the very end": total - len(start),
        "across prompt and output": _PROMPT - 1,
        "across output and drafts": total - 1,
        "across scanned blocks": total - _SCANNED - 1,
        "in the drafts": total,
        "at the very start": 0,
        "cut off": len(tokens) - 1,
    }.get(place, 2)
    if place in ("nowhere", STALE[0]):
        return tokens
    _put(tokens, at, start)
    if place.startswith("ended"):
        _put(tokens, _PROMPT + 2, natural)
    if place == "ended and begun again":
        _put(tokens, total - len(start) - 1, start)
    if place == "forced end begun":
        _put(tokens, total - 1, forced[:1])
    if place == "forced end begun in drafts":
        _put(tokens, len(tokens) - 1, forced[:1])
    return tokens


def _leave_stale(tokens: torch.Tensor, place: str, markers: tuple[Sequence[int], ...], total: int) -> None:
    """Put a marker of :data:`STALE` among the tokens of a slot."""
    if place in STALE:
        marker = markers[STALE.index(place)]
        tokens[total - 1 : total - 1 + len(marker)] = torch.tensor(marker, dtype=torch.int32)


def _pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"])
    markers = MARKERS[row["markers"]]
    vocab = row["size"].vocabulary if "size" in row else 40
    count = slots_for(len(rows.slots))
    total = row.get("total", _TOTAL)
    state = token_state(s, 15, [_PROMPT] * count, [total] * count, [total] * count, total + 6)
    input_ids: list[int] = []
    for slot, drafts in zip(rows.slots, rows.drafts, strict=True):
        tokens = _tokens(row["place"], markers, drafts, s, total)
        state["all_token_ids"][slot, :total] = torch.tensor(tokens[:total], dtype=torch.int32)
        _leave_stale(state["all_token_ids"][slot], row["place"], markers, total)
        input_ids += [int(state["all_token_ids"][slot, total - 1]), *tokens[total:]]
    budget = torch.full((count,), -1, dtype=torch.int32)
    for request, slot in enumerate(rows.slots):
        if row["only"] == "both" or request == ("first", "second").index(row["only"]):
            budget[slot] = row["budget"]
    start, end, scanned = {
        "cold": (-1, -1, 0),
        "warm": (-1, -1, 0),
        "stale": (3, 1, 5),
        "past the end": (3, 1, total + 4),
    }[row["cache"]]
    if row["cache"] == "warm":
        scanned = 1

    def filled(value: int) -> torch.Tensor:
        made: torch.Tensor = guarded(torch.full((count,), value, dtype=torch.int32), fill=-1)
        return made

    pool: Pool = {
        "logits": guarded_logits(
            "random",
            rows.count,
            vocab,
            s,
            FLOATS[row["dtype"]],
            row["layout"],
        ),
        **rows.pool(),
        **state,
        "req_ids": torch.tensor(rows.slots, dtype=torch.int32),
        "thinking_token_budget": guarded(budget, fill=0),
        "input_ids": torch.tensor(input_ids, dtype=torch.int32),
        "cached_last_start": filled(start),
        "cached_last_end": filled(end),
        "cached_scan_pos": filled(scanned),
    }
    for name, marker in zip(("reasoning_start", "natural_reasoning_end", "reasoning_end"), markers, strict=True):
        pool[f"{name}_token_ids"] = torch.tensor(marker, dtype=torch.int32)
    return pool


def cases() -> Iterator[Case]:
    yield from axes.cases_from(
        AXES,
        _pool,
        name="v2.apply_thinking_budget",
        contract=lambda row: row["cache"] != "stale" and len(row["drafts"]) > 0,
        alone={"drafts": ((),)},
        limit=70,
    )
    rows = [
        {**axes.plain(AXES), "place": place, "markers": markers, "cache": "warm", "drafts": drafts}
        for place in STALE
        for markers, drafts in (("two tokens", (2, 1)), ("three tokens", (0, 0)), ("two tokens", (0, 0)))
    ]
    yield from axes.cases_from(AXES, _pool, name="v2.apply_thinking_budget", rows=rows, prefix="left behind: ")
    # Histories that are scanned in blocks, from the end.
    places = ("across scanned blocks", "at the very start", "in the output", "ended", "nowhere")
    rows = [
        {**axes.plain(AXES), "place": place, "markers": markers, "total": total}
        for place, markers, total in [
            *[(place, "two tokens", _SCANNED + 76) for place in places],
            *[("across scanned blocks", markers, _SCANNED + 76) for markers in ("three tokens", "one token")],
            *[("at the very start", "two tokens", total) for total in (_SCANNED - 1, _SCANNED, _SCANNED + 1)],
        ]
    ]
    space = {**AXES, "total": (_TOTAL,)}
    yield from axes.cases_from(space, _pool, name="v2.apply_thinking_budget", rows=rows, prefix="long: ")


# -- the state -----------------------------------------------------------------------------------------------------

STATE_AXES = {
    "place": PLACES,
    "budget": (2, 0, 100, None, 2**40),
    "markers": (*MARKERS, "none"),
    "drafts": ((1, 0), (0, 0)),
    "again": ("no", "slot without a budget", "slot with another budget"),
    "steps": (2, 1),
}


def _state_pool(row: Row, s: Stream) -> Pool:
    markers = row["markers"] if row["markers"] != "none" else "two tokens"
    rest = {"cache": "cold", "only": "both", "dtype": "float32", "layout": "padded rows", "budget": 0}
    pool = _pool({**rest, **row, "markers": markers, "budget": 0}, s)
    later = _tokens("at the very start", MARKERS[markers], 0, s, _TOTAL)
    return {
        **pool,
        "later_tokens": torch.tensor(later, dtype=torch.int32),
        "markers": [] if row["markers"] == "none" else [list(marker) for marker in MARKERS[markers]],
        "budget": row["budget"],
        "again": row["again"],
        "steps": row["steps"],
    }


def state_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        STATE_AXES,
        _state_pool,
        name="v2.thinking_budget_state",
        contract=lambda row: len(row["drafts"]) > 0,
        alone={"drafts": ((),)},
        limit=44,
    )
    again = {**axes.plain(STATE_AXES), "again": "slot with another budget"}
    rows = [{**again, "place": place} for place in PLACES]
    yield from axes.cases_from(
        STATE_AXES, _state_pool, name="v2.thinking_budget_state", rows=rows, prefix="a slot that is taken again: "
    )


def prepare_state(arm: Arm, pool: Pool) -> Call:
    """Requests with a budget come into the step's slots; one or two steps of the same rows are processed.

    Before the second another request, with tokens of its own, may have come into the first slot.
    """
    config = None
    if pool["markers"]:
        start, natural, forced = pool["markers"]
        config = SimpleNamespace(
            reasoning_start_token_ids=start,
            reasoning_end_token_ids=forced,
            natural_reasoning_end_token_ids=natural,
        )
    state = make_state(arm, STATE, pool, pool["logits"].shape[1], reasoning_config=config)
    names = ("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "input_ids")
    context = {**{name: pool[name] for name in names}, "idx_mapping_np": pool["idx_mapping"].cpu().numpy()}

    def life() -> dict[str, Any]:
        slots = pool["idx_mapping"].tolist()
        for slot in slots:
            add_request(arm, state, slot, {"thinking_token_budget": pool["budget"]}, pool)
        flush(arm, state, pool)
        found: dict[str, Any] = {}
        for step in range(pool["steps"]):
            if step and pool["again"] != "no":
                other = 1 if "another" in pool["again"] else None
                pool["all_token_ids"][slots[0], : len(pool["later_tokens"])] = pool["later_tokens"]
                add_request(arm, state, slots[0], {"thinking_token_budget": other}, pool)
                flush(arm, state, pool)
            found[f"logits {step}"] = process(arm, state, APPLY_METHODS, pool["logits"], context).clone()
        return found

    return Call(life)


TARGETS = (
    Target(
        "v2.apply_thinking_budget",
        (APPLY,),
        cases,
        by_name(APPLY),
        triton=True,
        rows=("logits",),
        shapes=shapes.of_cases(cases, "vocabulary", "drafts"),
    ),
    Target(
        "v2.thinking_budget_state",
        (STATE,),
        state_cases,
        prepare_state,
        uses=methods(STATE, *APPLY_METHODS),
        triton=True,
        shapes=shapes.of_cases(state_cases, "vocabulary", "drafts"),
    ),
)
