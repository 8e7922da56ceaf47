"""V1 thinking budget: when a request has thought for as many tokens as it may, the end of thinking is forced.

A case is a short run of the engine: each request has a script, the tokens its model would emit; what is forced
overrides it. Drafts are the script's next tokens, some of them wrong; they are accepted greedily, so that a token
forced, missed or forced twice changes all that follows. Requests come, go and swap places on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import axes, shapes
from difftest.cases import v1_metadata as metadata
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

HOLDER = metadata.THINKING_BUDGET
PROCESSOR = "vllm.v1.sample.logits_processor.builtin:ThinkingTokenBudgetLogitsProcessor"

_MOST = 6
_START, _END = (2, 3, 4), (5, 6, 7)
_OTHER = (8, 9, 10, 11)
_OBSERVED = ("in_think", "in_end", "think_count", "end_count")
_FORCED = 1e9

SCRIPTS = (
    "thinks on",
    "ends in time",
    "ends on the budget",
    "thinks again",
    "starts late",
    "never thinks",
    "ends without a start",
    "begins to end",
    "end and start at once",
    "starts twice",
)
PROMPTS = ("plain", "thinking", "thought", "thinking for long", "absent", "start at its end", "thinks again")
BUDGETS = ("mixed", 3, 0, 1, 2, 8, 100, "none", -1)
DRAFTS = ("none", "right", "one wrong", "all wrong", "ragged", "end tokens", "placeholders")
CHANGES = ("none", "one leaves", "moved", "swapped", "replaced", "all leave")

_STALLS: dict[str, tuple[int, ...]] = {
    "never": (),
    "first steps": (0, 1),
    "on the way": (4, 6, 7),
    "every other step": (1, 3, 5, 7, 9, 11, 13),
    **{f"step {number}": (number,) for number in range(1, 7)},
}
"""Steps whose token the first request does not get, as while its prompt is computed in chunks, or again."""

_AXES: axes.Axes = {
    "script": SCRIPTS,
    "prompt": PROMPTS,
    "budget": BUDGETS,
    "start": (1, 2),
    "end": (1, 2, 3),
    "drafts": DRAFTS,
    "change": CHANGES,
    "batch": (3, 1, 5),
    "who": ("all", "first", "last", "none"),
    "rows": ("one a request", "one a draft"),
    "stalls": tuple(_STALLS),
}


def _script(row: axes.Row, s: axes.Stream, budget: int) -> list[int]:
    """Tokens that the model of one request would emit, 40 of them."""
    start, end = list(_START[: row["start"]]), list(_END[: row["end"]])
    filler = [_OTHER[i] for i in s.integers(0, len(_OTHER), (40,)).tolist()]

    def other(count: int) -> list[int]:
        return filler[: max(count, 0)]

    kind = row["script"]
    ids = {
        "thinks on": [*start, *other(40)],
        "ends in time": [*start, *other(min(budget, 4) - 2), *end, *other(40)],
        "ends on the budget": [*start, *other(min(budget, 12)), *end, *other(40)],
        "thinks again": [*start, *other(1), *end, *other(2), *start, *other(40)],
        "starts late": [*other(5), *start, *other(40)],
        "never thinks": other(40),
        "ends without a start": [*other(2), *end, *other(40)],
        "begins to end": [*start, *other(1), *end[:-1], *other(2), *end[:1], *other(40)],
        "end and start at once": [*start, *end, *start, *end, *start, *other(40)],
        "starts twice": [*start, *other(1), *start, *other(40)],
    }[kind]
    return ids[:40]


def _prompt(row: axes.Row, s: axes.Stream) -> list[int] | None:
    start, end = list(_START[: row["start"]]), list(_END[: row["end"]])
    filler = [s.choice(_OTHER) for _ in range(4)]
    return {
        "plain": filler,
        "thinking": [*filler[:2], *start, *filler[2:]],
        "thought": [*start, *filler, *end, *filler[:1]],
        "thinking for long": [*start, *filler, *filler, *filler],
        "absent": None,
        "start at its end": [*filler, *start],
        "thinks again": [*start, *filler[:1], *end, *start, *filler[:2]],
    }[row["prompt"]]


def _budget(row: axes.Row, number: int) -> int | None:
    value = (3, 0, 8, 1, 5)[number % 5] if row["budget"] == "mixed" else row["budget"]
    first, last = row["who"] == "first" and number > 0, row["who"] == "last" and number != row["batch"] - 1
    return None if row["who"] == "none" or first or last or value == "none" else int(value)


def _changes(row: axes.Row) -> dict[int, dict[str, Any]]:
    """Changes of the batch by step. Removed, added (index, request) and moved (from, to, swap)."""
    batch = row["batch"]
    last = batch - 1
    changes: dict[str, dict[int, dict[str, Any]]] = {
        "none": {},
        "one leaves": {4: {"removed": [last]}},
        "moved": {5: {"removed": [0], "moved": [(last, 0, False)] if last else []}},
        "swapped": {
            3: {"moved": [(0, last, True)] if last else []},
            7: {"moved": [(0, last, True)] if last else []},
        },
        "replaced": {4: {"added": [(0, batch)]}},
        "all leave": {5: {"removed": list(range(batch))[::-1]}, 6: {"added": [(0, batch)]}},
    }
    return changes[row["change"]]


def _build(row: axes.Row, s: axes.Stream) -> Pool:
    requests = []
    for number in range(row["batch"] + 1):
        budget = _budget(row, number)
        requests.append(
            {
                "budget": budget,
                "prompt": _prompt(row, s),
                "script": _script(row, s, 3 if budget is None else max(budget, 0)),
            }
        )
    return {
        "requests": requests,
        "batch": row["batch"],
        "changes": _changes(row),
        "start_ids": list(_START[: row["start"]]),
        "end_ids": list(_END[: row["end"]]),
        "drafts": row["drafts"],
        "wrong": s.integers(0, 4, (64,)).tolist(),
        "rows": row["rows"],
        "stalls": list(_STALLS[row["stalls"]]),
        "steps": 14,
    }


class _Engine:
    """The part of an engine that a budget sees: a batch of requests, their outputs, drafts and acceptance."""

    def __init__(self, arm: Arm, pool: Pool) -> None:
        self.arm, self.pool = arm, pool
        self.outputs: dict[str, list[int]] = {str(i): [] for i in range(len(pool["requests"]))}
        self.slots: list[int] = list(range(pool["batch"]))
        self.most_drafts = 0 if pool["drafts"] == "none" else 3
        self.draw = 0

    def update(self, step: int) -> Any:
        """The batch update before a step, or None."""
        change = self.pool["changes"].get(step, {})
        if step == 0:
            change = {"added": [(i, i) for i in range(self.pool["batch"])]}
        if not change:
            return None
        slots: dict[int, int] = dict(enumerate(self.slots))
        for index in change.get("removed", ()):
            slots.pop(index, None)
        slots.update(change.get("added", ()))
        for a, b, swap in change.get("moved", ()):
            if swap:
                slots[a], slots[b] = slots[b], slots[a]
            else:
                slots[b] = slots.pop(a)
        self.slots = [slots[i] for i in sorted(slots)]
        requests = self.pool["requests"]
        added = [
            (
                index,
                {"thinking_token_budget": requests[number]["budget"]},
                requests[number]["prompt"],
                str(number),
            )
            for index, number in change.get("added", ())
        ]
        plain = {
            "size": len(self.slots),
            "removed": change.get("removed", ()),
            "added": added,
            "moved": change.get("moved", ()),
        }
        return metadata.batch_update(self.arm, plain, self.outputs)

    def wanted(self, number: int, position: int) -> int:
        script: list[int] = self.pool["requests"][number]["script"]
        return script[position] if position < len(script) else _OTHER[0]

    def drafts(self, number: int) -> list[int]:
        """Draft tokens of one request for this step."""
        kind, at = self.pool["drafts"], len(self.outputs[str(number)])
        if kind == "none":
            return []
        self.draw = (self.draw + 1) % len(self.pool["wrong"])
        drawn = self.pool["wrong"][self.draw]
        ids = [self.wanted(number, at + i) for i in range(self.most_drafts)]
        if kind == "ragged":
            ids = ids[:drawn]
        elif kind == "one wrong" and drawn < len(ids):
            ids[drawn] = _OTHER[-1]
        elif kind == "all wrong":
            ids = [1] * len(ids)
        elif kind == "end tokens":
            ids = (self.pool["end_ids"] * 3)[: self.most_drafts]
        elif kind == "placeholders":
            ids[drawn % len(ids) :] = [-1] * (len(ids) - drawn % len(ids))
        return ids

    def logits(self, positions: list[tuple[int, int]]) -> torch.Tensor:
        """Logits [rows, 16]: what the script wants at (request, position)."""
        out = torch.zeros(len(positions), 16)
        for row, (number, position) in enumerate(positions):
            out[row, self.wanted(number, position)] = 5.0
        return out

    def accept(self, step: int, drafts: list[list[int]], target: torch.Tensor, bonus: torch.Tensor) -> list[list[int]]:
        """Greedy acceptance: drafts up to the first that is not the likeliest, which replaces it; then the bonus.

        A request that stalls in this step gets nothing of it.
        """
        likeliest, extra = target.argmax(1).tolist(), bonus.argmax(1).tolist()
        emitted, row = [], 0
        for slot, number in enumerate(self.slots):
            tokens: list[int] = []
            for place, draft in enumerate(drafts[slot]):
                tokens.append(likeliest[row + place])
                if tokens[-1] != draft:
                    break
            else:
                tokens.append(extra[slot])
            row += len(drafts[slot])
            if number == 0 and step in self.pool["stalls"]:
                tokens = []
            self.outputs[str(number)] += tokens
            emitted.append(tokens)
        return emitted


def _forced(logits: torch.Tensor) -> list[list[int]]:
    found: list[list[int]] = (logits == _FORCED).nonzero().tolist()
    return found


def _state(holder: Any) -> dict[int, dict[str, Any]]:
    """What is held of each request. Nowhere to force is None, as in versions that have no such list."""
    states = holder._state
    return {
        index: {name: states[index].get(name) for name in _OBSERVED} | _places(states[index])
        for index in sorted(states)
    }


def _places(state: dict[str, Any]) -> dict[str, Any]:
    return {"force_index": state.get("force_index") or None}


def _step_of_holder(engine: _Engine, holder: Any) -> Callable[[int], Any]:
    """A step as the sampler and the rejection sampler take it: the bonus rows first, then the draft rows."""
    # Versions that take the drafts off again are given outputs with drafts, as their callers did.
    takes_off = "spec_len" in holder.update_state.__code__.co_varnames
    if takes_off and engine.most_drafts:
        engine.arm.note("output tokens are given with the drafts, which update_state takes off")

    def step(number: int) -> Any:
        holder.sync_batch(engine.update(number))
        drafts = [engine.drafts(request) for request in engine.slots]
        committed = [engine.outputs[str(request)] for request in engine.slots]
        seen = [[*ids, *own] for ids, own in zip(committed, drafts, strict=True)] if takes_off else committed
        spec = drafts if engine.most_drafts else None
        ends = [(request, len(engine.outputs[str(request)])) for request in engine.slots]
        bonus = engine.logits([(r, at + len(own)) for (r, at), own in zip(ends, drafts, strict=True)])
        target = engine.logits(
            [(r, at + i) for (r, at), own in zip(ends, drafts, strict=True) for i in range(len(own))]
        )
        tracked = holder.has_tracked_requests()
        if tracked:
            if engine.pool["rows"] == "one a draft" and all(drafts):
                repeated = [i for i, own in enumerate(drafts) for _ in own]
                holder.update_state([seen[i] for i in repeated], spec, torch.tensor(repeated))
            else:
                holder.update_state([list(ids) for ids in seen], spec, None)
            bonus = holder.apply_to_logits(bonus, engine.most_drafts > 0, spec)
            if engine.most_drafts:
                target = holder.apply_to_logits(target, False, spec)
        forced = (_forced(bonus), _forced(target))
        return tracked, engine.accept(number, drafts, target, bonus), forced, _state(holder)

    return step


def _step_of_processor(engine: _Engine, processor: Any) -> Callable[[int], Any]:
    def step(number: int) -> Any:
        processor.update_state(engine.update(number))
        bonus = engine.logits([(request, len(engine.outputs[str(request)])) for request in engine.slots])
        bonus = processor.apply(bonus)
        nothing = torch.zeros(0, 16)
        emitted = engine.accept(number, [[] for _ in engine.slots], nothing, bonus)
        return bool(processor._state), emitted, (_forced(bonus), []), _state(processor)

    return step


def _prepare(arm: Arm, pool: Pool) -> Call:
    engine = _Engine(arm, pool)
    names = (
        ("reasoning_start_token_ids", "think_start_token_ids"),
        ("reasoning_end_token_ids", "think_end_token_ids"),
    )
    config = SimpleNamespace(
        enabled=True, **dict.fromkeys(names[0], pool["start_ids"]), **dict.fromkeys(names[1], pool["end_ids"])
    )
    device = torch.device(arm.device)
    if arm.has(HOLDER):
        cls = arm.get(HOLDER)
        fields = {
            "reasoning_config": config,
            "max_num_seqs": _MOST,
            "num_spec_tokens": engine.most_drafts,
            "device": device,
            "is_pin_memory": False,
        }
        step = _step_of_holder(engine, cls(**arm.bind(cls, fields)))
    elif engine.most_drafts:
        raise ApiChange("ThinkingTokenBudgetLogitsProcessor does not take drafts")
    else:
        step = _step_of_processor(
            engine, metadata.processor(arm, arm.get(PROCESSOR), _MOST, device, reasoning_config=config)
        )
    return Call(lambda: [step(number) for number in range(pool["steps"])], watch={"outputs": engine.outputs})


def _contract(row: axes.Row) -> bool:
    return bool(row["budget"] != -1 and row["drafts"] != "placeholders")


def _cases() -> Iterator[Case]:
    name = "v1.thinking_budget"
    # Older versions refuse drafts, so these are a block of their own.
    bare = {**_AXES, "drafts": DRAFTS[:1], "rows": _AXES["rows"][:1]}
    yield from axes.cases_from(bare, _build, name=name, contract=_contract, covers=3)
    drafted = {**_AXES, "drafts": DRAFTS[1:]}
    yield from axes.cases_from(drafted, _build, name=name, contract=_contract, prefix="drafts: ")
    stalls = {**drafted, "stalls": tuple(_STALLS)[4:], "drafts": ("right", "one wrong"), "budget": (3, 8, 2)}
    rows = [
        {**axes.plain(stalls), "stalls": stall, "drafts": drafts, "budget": budget, "end": end}
        for stall in stalls["stalls"]
        for drafts in stalls["drafts"]
        for budget in stalls["budget"]
        for end in (1, 2)
    ]
    yield from axes.cases_from(stalls, _build, name=name, contract=_contract, rows=rows, prefix="stalls: ")


TARGETS = (
    Target(
        name="v1.thinking_budget",
        symbols=(HOLDER, PROCESSOR),
        cases=_cases,
        prepare=_prepare,
        uses=(
            *metadata.methods(
                (HOLDER,),
                "__init__",
                "sync_batch",
                "update_state",
                "apply_to_logits",
                "has_tracked_requests",
            ),
            *metadata.methods((PROCESSOR,), "__init__", "update_state", "apply"),
            *metadata.UPDATE,
        ),
        shapes=shapes.of_cases(_cases),
    ),
)
