"""V2 states through sequences of steps: requests come into slots and leave, writes are flushed, rows are processed.

Each sequence is plain values, so that a fuzz draws its rules one by one and makes what differs short. `lifelike`
sequences do what the runner does: requests that ended leave, new ones take the slots that were left last, writes are
flushed, then a step is processed for the requests that there are. The others break its habits.

No row here maps to slot -1: what lies before a version's own tensors is chance. The targets of the kernels have such
rows, and guard rows for them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from difftest.cases import (
    axes,
    relations,
    shapes,
    v2_bad_words,
    v2_logit_bias,
    v2_penalties,
    v2_states,
    v2_thinking_budget,
)
from difftest.cases.axes import Row, Stream
from difftest.cases.v2_batch import GPU, SLOTS, Rows
from difftest.cases.v2_state import (
    LENGTHS,
    add_request,
    flush,
    make_state,
    methods,
    process,
    sampling_params,
    snapshot,
    token_state,
)
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Relation, Target

REQUEST_STATE = f"{GPU}.states:RequestState"

SEQUENCES = (
    "lifelike",
    "one slot by turns",
    "flushed twice",
    "rows in any order",
    "slots that were left",
    "flushed late",
    "wild",
)
_BREAKS_HABITS = frozenset(("slots that were left", "flushed late", "wild"))
_FREQUENT = 8
"""Ids below it are what requests bring, so that markers and words meet among them."""

Operation = dict[str, Any]
Draw = Callable[[Stream, int], dict[str, Any]]
"""What a request asks for, out of a stream and the vocabulary size."""


class _Script:
    """The operations of a sequence in plain values: `leave`, `add`, `flush`, `step` and, for a request that is given
    without its earlier steps, `grow`."""

    def __init__(self, row: Row, s: Stream, draw: Draw) -> None:
        self.row, self.s, self.draw = row, s, draw
        self.held: list[int] = []
        self.free = list(range(_slots(row)))
        self.done: list[Operation] = []

    def leave(self, slot: int) -> None:
        self.held.remove(slot)
        self.free.append(slot)
        self.done.append({"do": "leave", "slot": slot})

    def add(self, slot: int) -> None:
        self.held = [*[each for each in self.held if each != slot], slot]
        self.free = [each for each in self.free if each != slot]
        vocab, brought = self.row["vocab"], _at_first(1, slot)
        tokens = [self.s.integer(0, min(vocab, _FREQUENT)) for _ in range(brought)]
        self.done.append({"do": "add", "slot": slot, "tokens": tokens, "request": self.draw(self.s, vocab)})

    def flush(self) -> None:
        self.done.append({"do": "flush"})

    def step(self, slots: Sequence[int]) -> None:
        drafts = [self.s.integer(0, 3) if self.row["drafts"] == "some" else 0 for _ in slots]
        self.done.append({"do": "step", "slots": list(slots), "drafts": drafts})

    def shuffled(self, slots: Sequence[int]) -> list[int]:
        left, chosen = list(slots), []
        while left:
            chosen.append(left.pop(self.s.integer(0, len(left))))
        return chosen

    def turn(self) -> None:
        """What the runner does at a step, or nearly."""
        s, kind = self.s, self.row["sequence"]
        if kind == "wild":
            self.wild()
            return
        one = kind == "one slot by turns"
        for slot in list(self.held):
            if one or s.integer(0, 3) == 0:
                self.leave(slot)
        arriving = 1 if one else s.integer(0, 3)
        new = [self.free[-1 - i] for i in range(min(arriving, len(self.free)))]
        for slot in new:
            self.add(slot)
        if new and kind != "flushed late":
            for _ in range(2 if kind == "flushed twice" else 1):
                self.flush()
        slots = self.shuffled(self.held) if kind == "rows in any order" else list(self.held)
        if kind == "slots that were left":
            slots += self.free[-1:]
        if slots:
            self.step(slots)
        if new and kind == "flushed late":
            self.flush()

    def wild(self) -> None:
        match self.s.integer(0, 4):
            case 0:
                self.add(self.s.integer(0, SLOTS))
            case 1:
                self.flush()
            case 2 if self.held:
                self.leave(self.s.choice(self.held))
            case _:
                self.step([self.s.integer(0, SLOTS) for _ in range(self.s.integer(1, 4))])


def _slots(row: Row) -> int:
    count: int = max(SLOTS, axes.sized(row, 0, 0)[0])
    return count


def script(row: Row, s: Stream, draw: Draw) -> list[Operation]:
    """The operations of a row; the first request comes into a slot of its own."""
    made = _Script(row, s, draw)
    if "size" in row:  # a timing shape: all requests at once, then a step
        for slot in range(_slots(row)):
            made.add(slot)
        made.flush()
        made.step(range(row["size"].batch))
        return made.done
    made.add(made.free[-1])
    made.flush()
    for _ in range(row["steps"]):
        made.turn()
    if not any(operation["do"] == "step" for operation in made.done):
        made.step(made.held or [0])
    return made.done


def _at_first(which: int, slot: int) -> int:
    """Prompt, prefill or total tokens of a request that comes into a slot."""
    tokens: int = LENGTHS[which][slot % len(LENGTHS[which])]
    return tokens


def _pool(row: Row, s: Stream, draw: Draw) -> Pool:
    vocab, operations = row["vocab"], script(row, s, draw)
    steps = [operation for operation in operations if operation["do"] == "step"]
    rows = sum(count + 1 for step in steps for count in step["drafts"])
    each = [[_at_first(which, slot) for slot in range(_slots(row))] for which in range(len(LENGTHS))]
    return {
        **token_state(s, vocab, each[0], each[1], each[2], width=max(each[2]) + len(steps) + 4),
        "operations": operations,
        "logits": axes.logits(row["logits"], rows, vocab, s),
        "input_ids": s.integers(0, vocab, (rows,), torch.int32),
    }


def _axes(**more: Sequence[Any]) -> dict[str, Sequence[Any]]:
    return {
        "sequence": SEQUENCES,
        "steps": (2, 5),
        "drafts": ("some", "none"),
        "logits": ("random", "-inf some"),
        "vocab": (33, 129),
        **more,
    }


def _contract(row: Row) -> bool:
    return row["sequence"] not in _BREAKS_HABITS


def _cases(name: str, draw: Draw) -> Callable[[], Iterator[Case]]:
    def cases() -> Iterator[Case]:
        build = functools.partial(_pool, draw=draw)
        yield from axes.cases_from(_axes(), build, name=name, contract=_contract, covers=2, limit=32)
        if draw is _sampling:  # the oldest versions have no stage for the temperature
            build = functools.partial(_pool, draw=_without_temperature)
            yield from axes.cases_from(
                _axes(), build, name=name, contract=_contract, limit=5, prefix="no temperature: "
            )

    return cases


def context_of(pool: Pool, step: Operation, first: int) -> dict[str, Any]:
    """What a step knows, by the names of the newest context object; its rows begin at `first`."""
    rows = Rows(tuple(step["drafts"]), tuple(step["slots"]))
    device = pool["logits"].device
    made = {name: tensor.to(device) for name, tensor in rows.pool().items()}
    slots = made["expanded_idx_mapping"].long()
    return {
        **made,
        "idx_mapping_np": made["idx_mapping"].cpu().numpy(),
        "input_ids": pool["input_ids"][first : first + rows.count],
        "pos": pool["total_len"][slots].long() - 1 + made["expanded_local_pos"],
        "num_speculative_tokens": 2,
        "temperature": torch.ones(len(pool["total_len"]), device=device),
    }


Process = Callable[[Arm, Any, torch.Tensor, dict[str, Any]], Any]


def _prepare(symbol: str, work: Process, kept: Sequence[str], **more: Any) -> Callable[[Arm, Pool], Call]:
    """Prepares a call that takes a state through the operations; returns the logits of each step, and what the state
    holds at the end.

    Args:
        work: processes the logits of a step in the state.
        kept: what the state holds, by path.
    """

    def prepare(arm: Arm, pool: Pool) -> Call:
        state = make_state(arm, symbol, pool, pool["logits"].shape[1], **more)

        def life() -> dict[str, Any]:
            seen, first = [], 0
            for operation in pool["operations"]:
                match operation["do"]:
                    case "add":
                        _move_in(pool, operation)
                        add_request(arm, state, operation["slot"], operation["request"], pool)
                    case "flush":
                        flush(arm, state, pool)
                    case "step":
                        context = context_of(pool, operation, first)
                        rows = len(context["expanded_idx_mapping"])
                        seen.append(work(arm, state, pool["logits"][first : first + rows], context))
                        first += rows
                        for slot in set(operation["slots"]):
                            pool["total_len"][slot] += 1
                    case "grow":
                        pool["total_len"][operation["slot"]] += operation["by"]
            return {"steps": seen, **snapshot(state, kept)}

        return Call(life)

    return prepare


def _move_in(pool: Pool, operation: Operation) -> None:
    """A request's tokens come into its slot, in front of what is left there of the one before."""
    slot, tokens = operation["slot"], operation["tokens"]
    pool["all_token_ids"][slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    pool["total_len"][slot] = _at_first(2, slot)


def _applied(names: Sequence[str]) -> Process:
    def work(arm: Arm, state: Any, logits: torch.Tensor, context: dict[str, Any]) -> torch.Tensor:
        processed: torch.Tensor = process(arm, state, names, logits, context)
        return processed.clone()

    return work


def _sampling_work(arm: Arm, state: Any, logits: torch.Tensor, context: dict[str, Any]) -> Any:
    slots = context["idx_mapping_np"]
    found: dict[str, Any] = {"max_num_logprobs": state.max_num_logprobs(slots)}
    logits = v2_states.run_stages(arm, state, logits, context["expanded_idx_mapping"], slots)
    return {**found, "logits": logits.clone()}


def _asked(name: str) -> Process:
    """Asks a question about the requests of a step."""

    def work(arm: Arm, state: Any, logits: torch.Tensor, context: dict[str, Any]) -> Any:
        return getattr(state, name)(context["idx_mapping_np"])

    return work


# -- what requests ask for ---------------------------------------------------------------------------------------------


def _penalties(s: Stream, vocab: int) -> dict[str, Any]:
    return {
        "repetition_penalty": s.choice((1.0, 1.5, 0.5)),
        "frequency_penalty": s.choice((0.0, 0.5, -0.5)),
        "presence_penalty": s.choice((0.0, 0.7)),
    }


def _biases(s: Stream, vocab: int) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if s.integer(0, 2):
        asked["allowed_token_ids"] = sorted({s.integer(0, vocab) for _ in range(s.integer(1, 4))})
    if s.integer(0, 2):
        asked["logit_bias"] = {s.integer(0, vocab): s.choice((2.5, -100.0, 1e-3)) for _ in range(s.integer(1, 3))}
    if s.integer(0, 2):
        asked["min_tokens"] = s.integer(0, 8)
        asked["all_stop_token_ids"] = sorted({s.integer(0, vocab) for _ in range(s.integer(0, 3))})
    return asked


def _bad_words(s: Stream, vocab: int) -> dict[str, Any]:
    return {
        "bad_words_token_ids": [[s.integer(0, vocab) for _ in range(s.integer(1, 3))] for _ in range(s.integer(0, 4))]
        or None
    }


def _sampling(s: Stream, vocab: int) -> dict[str, Any]:
    return {
        "temperature": s.choice((1.0, 0.0, 0.7, 1e-6)),
        "top_k": s.choice((0, -1, 1, 5, vocab, vocab + 1)),
        "top_p": s.choice((1.0, 0.5, axes.JUST_BELOW_1)),
        "min_p": s.choice((0.0, 0.2)),
        "seed": s.choice((None, 0, 7)),
        "logprobs": s.choice((None, 0, 3, -1)),
    }


def _without_temperature(s: Stream, vocab: int) -> dict[str, Any]:
    return {**_sampling(s, vocab), "temperature": s.choice((1.0, 0.0))}


def _budgets(s: Stream, vocab: int) -> dict[str, Any]:
    return {"thinking_token_budget": s.choice((None, 0, 1, 2, 100))}


def _reasoning() -> SimpleNamespace:
    """Markers of one id each, small enough that drawn tokens meet them."""
    return SimpleNamespace(
        reasoning_start_token_ids=[3], reasoning_end_token_ids=[5, 4], natural_reasoning_end_token_ids=[4]
    )


# -- the states of requests --------------------------------------------------------------------------------------------

_LENGTH = 16


def _request(s: Stream, vocab: int) -> dict[str, Any]:
    tokens = [s.integer(0, vocab) for _ in range(s.integer(1, 6))]
    prompt = s.integer(1, len(tokens) + 1)
    computed = s.integer(0, len(tokens))
    return {"tokens": tokens, "prompt": prompt, "computed": computed, "most": s.integer(1, 9)}


_LATER_PARTS = {"draft_tokens": 30, "next_prefill_tokens": 10, "total_len": 10}
"""Parts of the state that the oldest versions lack, and how many cases look at each; all others compare the rest."""


def _request_pool(row: Row, s: Stream, parts: Sequence[str] = ()) -> Pool:
    made = script(row, s, _request)
    pool: Pool = {"operations": made, "slots": _slots(row), "vocab_size": row["vocab"], "ahead": row["ahead"]}
    return {**pool, "parts": list(parts)}


def request_cases() -> Iterator[Case]:
    """Which slot a request comes into is the state's choice; that of the sequence only says how often."""
    chosen = {name: values for name, values in _axes(ahead=(1, 3)).items() if name not in ("drafts", "logits")}
    space, name = {**chosen, "drafts": ("none",)}, "v2.request_state"
    yield from axes.cases_from(space, _request_pool, name=name, contract=_contract, limit=30)
    for part, limit in _LATER_PARTS.items():
        build = functools.partial(_request_pool, parts=(part,))
        yield from axes.cases_from(space, build, name=name, contract=_contract, limit=limit, prefix=f"{part}: ")


_HELD = {
    **{name: (f"{name}.gpu", f"{name}.np", name) for name in ("prompt_len", "prefill_len", "num_computed_tokens")},
    **{f"{name} on the host": (f"{name}.np", name) for name in ("prompt_len", "prefill_len")},
    "token ids": ("all_token_ids.gpu", "prefill_token_ids.gpu", "prefill_token_ids.np", "prefill_token_ids"),
    **{name: (name,) for name in ("num_computed_prefill_tokens", "last_sampled_tokens")},
    **{name: (f"{name}.gpu", name) for name in _LATER_PARTS},
}
"""What is compared of the state: its names in versions, of which the first that there is counts."""

_BOOKS = ("req_id_to_index", "index_to_req_id", "free_indices", "num_reqs", "last_sampled_tokens")
"""What the cases read and write by these names in all versions."""


def _held(state: Any, staged: bool, parts: Sequence[str]) -> dict[str, Any]:
    """Copies of what the state holds, by name.

    Args:
        staged: memory of the device is written by then; before January 2026 that was done as a batch was made.
        parts: those of the later parts that are looked at.
    """
    found: dict[str, Any] = {}
    for name, paths in _HELD.items():
        if name in _LATER_PARTS and name not in parts:
            continue
        for path in paths:
            value: Any = state
            for part in path.split("."):
                value = getattr(value, part, None)
            if isinstance(value, torch.Tensor | np.ndarray) and (staged or not path.endswith(".gpu")):
                found[name] = value.clone() if isinstance(value, torch.Tensor) else torch.from_numpy(value.copy())
                break
    return found


def prepare_requests(arm: Arm, pool: Pool) -> Call:
    """Requests are added and removed by name, as the runner does; a step writes drafts and sampled tokens."""
    cls = arm.get(REQUEST_STATE)
    values = {
        "max_num_reqs": pool["slots"],
        "max_model_len": _LENGTH,
        "max_num_batched_tokens": 64,
        "num_speculative_steps": 2,
        "vocab_size": pool["vocab_size"],
        "device": torch.device(arm.device),
        "num_prefill_lookahead": pool["ahead"],
        "pin_memory": False,
        "model_dtype": torch.float32,
        "cache_draft_logits": False,
    }
    state = cls(**arm.bind(cls, values))
    parts = pool["parts"]
    if lacking := [name for name in (*_BOOKS, *parts) if not hasattr(state, name)]:
        raise ApiChange(f"{cls.__qualname__} has no {', '.join(lacking)}")
    drafts = "draft_tokens" in parts
    # Once it returned nothing, then whether there was such a request, now its slot.
    gives_slot = "int" in str(inspect.signature(cls.remove_request).return_annotation)
    if not gives_slot:
        arm.note("the slot that is left is looked up before remove_request, which does not return it")
    write = getattr(state, "apply_staged_writes", None)
    if write is None:
        arm.note("apply_staged_writes is not called: requests are written when they are added")

    def life() -> dict[str, Any]:
        seen: list[Any] = []
        names: dict[int, str] = {}
        for number, operation in enumerate(pool["operations"]):
            match operation["do"]:
                case "add":
                    if name := names.pop(operation["slot"], None):
                        state.remove_request(name)
                    name, asked = f"request {number}", operation["request"]
                    names[operation["slot"]] = name
                    given = {
                        "req_id": name,
                        "prompt_len": asked["prompt"],
                        "all_token_ids": asked["tokens"],
                        "prefill_token_ids": asked["tokens"],
                        "num_computed_tokens": asked["computed"],
                        "max_tokens": asked["most"],
                        "sampling_params": sampling_params({}),
                        "lora_request": None,
                    }
                    state.add_request(**arm.bind(state.add_request, given))
                    slot = state.req_id_to_index[name]
                    stale = state.draft_tokens[slot].clone() if drafts else None
                    seen.append((slot, state.last_sampled_tokens[slot].clone(), stale))
                case "leave":
                    name = names.pop(operation["slot"])
                    slot = state.req_id_to_index.get(name)
                    left = state.remove_request(name)
                    again = state.remove_request(name)
                    seen.append((left, again) if gives_slot else (slot, None))
                case "flush":
                    if write is not None:
                        write()
                case "step":
                    for slot in state.req_id_to_index.values():
                        if drafts:
                            state.draft_tokens[slot] = number
                        state.last_sampled_tokens[slot] = number
                    seen.append((state.num_reqs, dict(state.req_id_to_index), dict(state.index_to_req_id)))
        return {"seen": seen, "free": list(state.free_indices), **_held(state, write is not None, parts)}

    return Call(life)


# -- targets -----------------------------------------------------------------------------------------------------------


def _without_those_before(pool: Pool) -> Pool | None:
    """The same last step without the requests that left before and whose slots others took, nor earlier steps."""
    operations: list[Operation] = pool["operations"]
    last = max(i for i, operation in enumerate(operations) if operation["do"] == "step")
    newest = {o["slot"]: i for i, o in enumerate(operations[:last]) if o["do"] == "add"}
    if last < 4 or not set(operations[last]["slots"]) <= set(newest):
        return None
    kept = [o for i, o in enumerate(operations[:last]) if o["do"] == "add" and newest[o["slot"]] == i]
    used = sum(count + 1 for o in operations[:last] if o["do"] == "step" for count in o["drafts"])
    grown: list[Operation] = [
        {"do": "grow", "slot": slot, "by": sum(slot in o.get("slots", ()) for o in operations[came:last])}
        for slot, came in newest.items()
    ]
    return {
        **pool,
        "operations": [*kept, {"do": "flush"}, *grown, operations[last]],
        "logits": pool["logits"][used:],
        "input_ids": pool["input_ids"][used:],
    }


def _same_last_step(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
    said: str | None = relations.unlike(result["steps"][-1], other_result["steps"][-1], "the last step")
    return said


_NO_TRACE = Relation(
    "requests that left leave no trace in those that take their slots",
    _without_those_before,
    _same_last_step,
    every=2,
)

_STATES: tuple[tuple[str, str, Draw, Process, tuple[str, ...], tuple[str, ...], dict[str, Any], bool], ...] = (
    (
        "v2.penalties_sequence",
        v2_penalties.STATE,
        _penalties,
        _applied(v2_penalties.APPLY_METHODS),
        v2_penalties.SNAPSHOT,
        methods(v2_penalties.STATE, *v2_penalties.APPLY_METHODS),
        {},
        False,  # counts of output tokens are kept by another kernel, from the tokens that there are at a flush
    ),
    (
        "v2.logit_bias_sequence",
        v2_logit_bias.STATE,
        _biases,
        _applied(v2_logit_bias.APPLY_METHODS),
        v2_logit_bias.SNAPSHOT,
        methods(v2_logit_bias.STATE, *v2_logit_bias.APPLY_METHODS),
        {},
        True,
    ),
    (
        "v2.bad_words_sequence",
        v2_bad_words.STATE,
        _bad_words,
        _applied(v2_bad_words.APPLY_METHODS),
        ("num_bad_words.np",),
        methods(v2_bad_words.STATE, *v2_bad_words.APPLY_METHODS),
        {},
        True,
    ),
    (
        "v2.sampling_states_sequence",
        v2_states.SAMPLING_STATES,
        _sampling,
        _sampling_work,
        v2_states.SNAPSHOT,
        (
            *methods(v2_states.SAMPLING_STATES, *v2_states.STAGES),
            *v2_states.STAGE_FUNCTIONS.values(),
            f"{v2_states.SAMPLING_STATES}.max_num_logprobs",
        ),
        {},
        True,
    ),
    (
        "v2.thinking_budget_sequence",
        v2_thinking_budget.STATE,
        _budgets,
        _applied(v2_thinking_budget.APPLY_METHODS),
        (),
        methods(v2_thinking_budget.STATE, *v2_thinking_budget.APPLY_METHODS),
        {"reasoning_config": _reasoning()},
        True,
    ),
)


def _targets() -> Iterator[Target]:
    for name, symbol, draw, work, kept, uses, more, no_trace in _STATES:
        cases = _cases(name, draw)
        yield Target(
            name,
            (symbol,),
            cases,
            _prepare(symbol, work, kept, **more),
            uses=uses,
            triton=True,
            relations=(_NO_TRACE,) if no_trace else (),
            shapes=shapes.of_cases(cases, "vocabulary", also=lambda size: {"drafts": "none"}),
        )


def _question(name: str) -> Target:
    cases = _cases(f"v2.sampling_states_{name}", _sampling)
    symbol = f"{v2_states.SAMPLING_STATES}.{name}"
    return Target(
        f"v2.sampling_states_{name}",
        (symbol,),
        cases,
        _prepare(v2_states.SAMPLING_STATES, _asked(name), ()),
        uses=methods(v2_states.SAMPLING_STATES),
        triton=True,
        shapes=shapes.of_cases(cases, "vocabulary", also=lambda size: {"drafts": "none"}),
    )


TARGETS = (
    *_targets(),
    _question("any_greedy"),
    _question("any_explicit_seed"),
    Target(
        "v2.request_state",
        (REQUEST_STATE,),
        request_cases,
        prepare_requests,
        uses=methods(REQUEST_STATE, "remove_request", "num_reqs"),
        triton=True,
        shapes=shapes.of_cases(request_cases),
    ),
)
