"""V1 logits processors: min-p, logit bias and min tokens, driven through sequences of batch updates.

A processor's state is as much its outcome as the logits it leaves: after each step of a sequence the logits, and what
the processor holds for each request, are taken down. `lifelike` sequences are what the engine's batch does: requests
finish, new ones take their places, the last ones move into holes, two swap places. The others break its habits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases import v1_metadata as metadata
from difftest.target import Arm, Call, Case, Family, Pool, Relation, Shape, Target

_BUILDER = (
    "vllm.v1.sample.logits_processor.state:BatchUpdateBuilder",
    "vllm.v1.sample.logits_processor:BatchUpdateBuilder",
)
_ADAPTER = ("vllm.v1.sample.logits_processor:AdapterLogitsProcessor",)
_MOST = 8
"""Most requests in a batch."""

SEQUENCES = (
    "lifelike",
    "add once",
    "add and replace",
    "remove all",
    "move onto others",
    "move chain",
    "swap twice",
    "swap with nobody",
    "move from nobody",
    "remove what is not there",
    "remove and add the same",
    "grow and shrink",
    "no update",
    "empty update",
    "wild",
)
_BREAKS_HABITS = frozenset(
    ("wild", "swap with nobody", "move from nobody", "remove what is not there", "remove and add the same")
)
WHO = ("some", "all", "none", "first", "last")
Fields = Callable[[axes.Row, axes.Stream], dict[str, Any]]
Step = dict[str, Any]


class _Batch:
    """A persistent batch whose changes become steps. Requests are numbered; each has a list of output tokens."""

    def __init__(self, row: axes.Row, s: axes.Stream, fields: Fields) -> None:
        self.row, self.s, self.fields = row, s, fields
        self.steps: list[Step] = []
        self.names: list[str | None] = [None] * max(_MOST, _batch(row))
        self.count = 0

    def request(self, index: int) -> tuple[Any, ...]:
        """A new request for a place of the batch: (index, parameters, prompt, name of its output tokens)."""
        number, self.count = self.count, self.count + 1
        who = self.row["who"]
        on = {"all": True, "none": False, "first": index == 0, "last": index >= 3}.get(who, number % 3 != 1)
        name = f"request {number}"
        self.names[index] = name
        prompt = self.s.integers(0, self.row["vocab"], (number % 3,)).tolist()
        return (index, self.fields(self.row, self.s) if on else {}, prompt if number % 4 else None, name)

    def step(
        self,
        added: Sequence[int] = (),
        removed: Sequence[int] = (),
        moved: Sequence[tuple[int, int, bool]] = (),
        size: int | None = None,
        update: bool = True,
    ) -> None:
        """One change. Requests in the batch get tokens before the next one."""
        for index in removed:
            self.names[index] = None
        requests = [self.request(index) for index in added]
        for a, b, swap in moved:
            self.names[a], self.names[b] = (self.names[b], self.names[a]) if swap else (None, self.names[a])
        occupied = [i for i, name in enumerate(self.names) if name]
        tokens = {
            name: self.s.integers(-1, self.row["vocab"], (self.s.integer(0, 3),)).tolist()
            for name in self.names
            if name
        }
        self.steps.append(
            {
                "update": update,
                "size": (max(occupied) + 1 if occupied else 0) if size is None else size,
                "removed": list(removed),
                "added": requests,
                "moved": list(moved),
                "tokens": tokens,
            }
        )

    def lifelike(self) -> None:
        """What the engine does in a step: finish, take freed places, close holes from the end, swap."""
        held = [i for i, name in enumerate(self.names) if name]
        finished = [i for i in held if self.s.integer(0, 4) == 0]
        removed = sorted(finished)
        arriving = self.s.integer(0, min(3, _MOST - len(held) + len(finished)) + 1)
        places = removed[:arriving]
        places += range(len(held), len(held) + arriving - len(places))
        left = removed[arriving:]
        size = len(held) - len(finished) + arriving
        moved: list[tuple[int, int, bool]] = []
        taken = {i for i in (*held, *places) if i not in left}
        for hole in left:
            last = max(taken, default=-1)
            if last > hole:
                moved.append((last, hole, False))
                taken = (taken - {last}) | {hole}
        if size > 1 and self.s.integer(0, 2):
            a = self.s.integer(0, size)
            b = (a + self.s.integer(1, size)) % size
            moved.append((a, b, True))
        for index in left:
            self.names[index] = None
        self.step(places, left[::-1], moved, size, update=bool(places or left or moved))

    def wild(self) -> None:
        """Any indices, in any combination."""

        def some() -> list[int]:
            indices: list[int] = self.s.integers(0, _MOST, (self.s.integer(0, 3),)).tolist()
            return indices

        moved = [(a, self.s.integer(0, _MOST), self.s.integer(0, 2) == 1) for a in some()]
        moved = [(a, b, swap) for a, b, swap in moved if a != b]
        self.step(list(dict.fromkeys(some())), list(dict.fromkeys(some())), moved, self.s.integer(1, _MOST + 1))


def _batch(row: axes.Row) -> int:
    """Requests of the sequences that begin with a whole batch."""
    count: int = axes.sized(row, 5, 0)[0]
    return count


def _added_once(size: shapes.Size) -> axes.Row:
    return {"sequence": "add once"}


def steps(row: axes.Row, s: axes.Stream, fields: Fields) -> list[Step]:
    """The steps of a sequence (:data:`SEQUENCES`), in plain values."""
    batch = _Batch(row, s, fields)
    name = row["sequence"]
    if name in ("lifelike", "wild"):
        batch.step(range(3))
        for _ in range(row["steps"]):
            batch.lifelike() if name == "lifelike" else batch.wild()
        return batch.steps
    batch.step(range(_batch(row)))
    changes: dict[str, Sequence[Mapping[str, Any]]] = {
        "add once": [],
        "add and replace": [{"added": (2,)}, {"added": (0, 4)}, {"added": (0, 1, 2, 3, 4)}],
        "remove all": [
            {"removed": (4, 3, 2, 1, 0)},
            {"added": (0,)},
            {"removed": (0,)},
            {},
            {"added": (0, 1)},
        ],
        "move onto others": [
            {"moved": ((4, 0, False),)},
            {"moved": ((3, 1, False),)},
            {"removed": (2,)},
            {"added": (3,)},
        ],
        "move chain": [
            {"removed": (0, 1), "moved": ((4, 0, False), (3, 1, False))},
            {"moved": ((0, 5, False), (1, 0, False), (5, 1, False))},
        ],
        "swap twice": [
            {"moved": ((0, 1, True),)},
            {"moved": ((0, 4, True), (1, 2, True))},
            {"moved": ((0, 1, True), (1, 0, True))},
        ],
        "swap with nobody": [
            {"moved": ((0, 6, True),)},
            {"moved": ((6, 7, True), (7, 1, True))},
            {"added": (0,)},
        ],
        "move from nobody": [{"moved": ((6, 0, False),)}, {"moved": ((7, 6, False),)}, {"added": (0,)}],
        "remove what is not there": [
            {"removed": (7, 6)},
            {"removed": (4,)},
            {"removed": (4,)},
            {"added": (4,)},
        ],
        "remove and add the same": [{"removed": (1, 0), "added": (0, 1)}, {"removed": (4,), "added": (4,)}],
        "grow and shrink": [
            {"added": (5, 6, 7)},
            {"removed": (7, 6, 5, 4)},
            {"added": (4,)},
            {"removed": (4, 3, 2)},
        ],
        "no update": [{"update": False}, {"update": False}, {"removed": (4,)}, {"update": False}],
        "empty update": [{}, {}, {"removed": (4,)}, {}],
    }
    for change in changes[name]:
        batch.step(**change)
    batch.step(update=False)
    return batch.steps


def _logits(row: axes.Row, s: axes.Stream, count: int) -> torch.Tensor:
    """Logits of all steps, [steps * 8, vocab]."""
    most = max(_MOST, _batch(row))
    made: torch.Tensor = axes.logits(row["pattern"], count * most, row["vocab"], s, row["dtype"], row["layout"])
    return made


def _pool(row: axes.Row, s: axes.Stream, fields: Fields) -> Pool:
    made = steps(row, s, fields)
    outputs: dict[str, list[int]] = {request[3]: [] for step in made for request in step["added"]}
    return {"steps": made, "outputs": outputs, "logits": _logits(row, s, len(made))}


def _drive(find: Sequence[str] | Callable[[Arm], Any], state: Callable[[Any], Any]) -> Callable[[Arm, Pool], Call]:
    """Prepares a call that takes a processor through the steps and returns the logits and its state after each.

    Args:
        find: symbols of the processor's class, newest first; or what makes it of the arm's classes.
    """

    def prepare(arm: Arm, pool: Pool) -> Call:
        most = len(pool["logits"]) // len(pool["steps"])
        cls = find(arm) if callable(find) else arm.first(*find)
        processor = metadata.processor(arm, cls, most, torch.device(arm.device))
        outputs = pool["outputs"]
        updates = [metadata.batch_update(arm, step, outputs) if step["update"] else None for step in pool["steps"]]
        logits = pool["logits"]

        def run() -> list[Any]:
            seen = []
            for number, (step, update) in enumerate(zip(pool["steps"], updates, strict=True)):
                processor.update_state(update)
                rows = logits[number * most : number * most + step["size"]]
                seen.append((processor.apply(rows), state(processor)))
                for name, tokens in step["tokens"].items():
                    outputs[name] += tokens
            return seen

        return Call(run)

    return prepare


def _as_if_new(pool: Pool) -> Pool | None:
    """The last step of a batch into which the requests of that step came at once."""
    held: dict[int, Any] = {}
    outputs: dict[str, list[int]] = {name: [] for name in pool["outputs"]}
    given: Sequence[Step] = pool["steps"]
    for step in given:
        for index in step["removed"]:
            held.pop(index, None)
        held |= {request[0]: request for request in step["added"]}
        for a, b, swap in step["moved"]:
            first, second = held.pop(a, None), held.pop(b, None)
            held |= {b: first} if first is not None else {}
            held |= {a: second} if swap and second is not None else {}
        if step is not given[-1]:
            for name, tokens in step["tokens"].items():
                outputs[name] += tokens
    if len(given) < 2:
        return None
    added = [(index, *request[1:]) for index, request in sorted(held.items())]
    step = {"update": True, "size": given[-1]["size"], "removed": [], "added": added, "moved": [], "tokens": {}}
    return {
        **pool,
        "steps": [step],
        "outputs": outputs,
        "logits": pool["logits"][-(len(pool["logits"]) // len(given)) :],
    }


def _same_last_step(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
    said: str | None = relations.unlike(result[-1], other_result[-1], "the last step")
    return said


_RELATIONS = (
    Relation(
        "requests that left, moved or swapped places leave no trace", _as_if_new, _same_last_step, every=relations.EVERY
    ),
    relations.relaid("logits"),
)


# --- min-p ------------------------------------------------------------------------------------------------------------


def _min_p_fields(row: axes.Row, s: axes.Stream) -> dict[str, Any]:
    return {"min_p": s.choice((0.1, 0.5, 1e-6, 1.0, 0.25, 0.9)) if row["value"] == "mixed" else row["value"]}


def _min_p_state(processor: Any) -> dict[str, Any]:
    return {
        "requests with min_p": processor.min_p_count,
        "min_p": [processor.get_min_p_by_index(index) for index in range(_MOST)],
    }


_COMMON: axes.Axes = {
    "sequence": SEQUENCES,
    "who": WHO,
    "steps": (6, 20),
    "vocab": (12, 33, 129),
    "pattern": (
        "random",
        "integer grid",
        "near ties",
        "all equal",
        "-inf some",
        "-inf all but one",
        "-inf everywhere",
        "+inf once",
        "NaN at the end",
        "bf16 grid",
        "huge",
    ),
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS[:-1],
}
_MIN_P_AXES: axes.Axes = {**_COMMON, "value": ("mixed", 0.1, 1.0, 1e-6, axes.JUST_BELOW_1, 0.5, 0.0)}


def _sent(row: axes.Row) -> bool:
    """Samplers make logits float32 before processors see them."""
    return row["pattern"] not in axes.UNUSUAL_LOGITS and row["dtype"] is torch.float32


def _contract(row: axes.Row) -> bool:
    return row["sequence"] not in _BREAKS_HABITS and _sent(row)


def _min_p_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _MIN_P_AXES, lambda row, s: _pool(row, s, _min_p_fields), name="v1.min_p", contract=_contract
    )


# --- logit bias -------------------------------------------------------------------------------------------------------


def _bias_fields(row: axes.Row, s: axes.Stream) -> dict[str, Any]:
    vocab, kind = row["vocab"], row["bias"]
    ids = {
        "first and last id": [0, vocab - 1],
        "no ids": [],
        "id V": [vocab],
        "id -1": [-1, 1],
        "whole vocabulary": list(range(vocab)),
    }.get(kind, s.permutation(vocab)[: s.integer(1, 4)].tolist())
    values = {
        "zero": (0.0,),
        "extreme": (100.0, -100.0),
        "infinite": (-axes.INF, axes.INF),
        "NaN": (axes.NAN,),
    }
    return {"logit_bias": {i: s.choice(values.get(kind, (1.5, -2.0, 0.25, 1e-3))) for i in ids}}


def _bias_state(processor: Any) -> dict[str, Any]:
    return {"biases": processor.biases}


_BIAS_AXES: axes.Axes = {
    **_COMMON,
    "bias": (
        "some ids",
        "first and last id",
        "no ids",
        "zero",
        "extreme",
        "infinite",
        "NaN",
        "whole vocabulary",
    ),
}


def _bias_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _BIAS_AXES,
        lambda row, s: _pool(row, s, _bias_fields),
        name="v1.logit_bias",
        contract=lambda row: _contract(row) and row["bias"] not in ("infinite", "NaN", "id V", "id -1"),
        alone={"bias": ("id V", "id -1")},
    )


# --- min tokens -------------------------------------------------------------------------------------------------------


def _min_tokens_fields(row: axes.Row, s: axes.Stream) -> dict[str, Any]:
    vocab = row["vocab"]
    stop = {
        "none": [],
        "first id": [0],
        "last id": [vocab - 1],
        "id V": [vocab],
        "whole vocabulary": list(range(vocab)),
    }.get(row["stop"], s.permutation(vocab)[: s.integer(1, 4)].tolist())
    least = s.integer(1, 9) if row["least"] == "mixed" else row["least"]
    fields: dict[str, Any] = {"min_tokens": least, "stop_token_ids": stop}
    if row["structured"] == "all" or (row["structured"] == "some" and s.integer(0, 2)):
        fields["structured_outputs"] = "a grammar"
    return fields


def _min_tokens_state(processor: Any) -> dict[str, Any]:
    return {"below": {index: (entry[0], sorted(entry[2])) for index, entry in processor.min_toks.items()}}


_MIN_TOKENS_AXES: axes.Axes = {
    **_COMMON,
    "dtype": (torch.float32,),  # the mask is float32 and cannot be put into another dtype
    "least": ("mixed", 0, 1, 2, 100),
    "stop": ("some ids", "none", "first id", "last id", "whole vocabulary"),
    "structured": ("none", "some", "all"),
}
_MIN_TOKENS_DRAFT_AXES: axes.Axes = {
    **{name: values for name, values in _MIN_TOKENS_AXES.items() if name not in ("sequence", "steps")},
    "drafts": axes.DRAFT_COUNTS,
    "batch": (4, 1, 2, 7),
    "so far": ("ragged", "empty", "one short", "just enough", "more than enough"),
}


def _min_tokens_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _MIN_TOKENS_AXES,
        lambda row, s: _pool(row, s, _min_tokens_fields),
        name="v1.min_tokens",
        contract=_contract,
        covers=2,
        alone={"stop": ("id V",), "dtype": (torch.bfloat16, torch.float64)},
    )


def _draft_pool(row: axes.Row, s: axes.Stream) -> Pool:
    """Requests added once, with tokens so far; then logits of each draft row, [sum of drafts, vocab]."""
    batch = _Batch(row, s, _min_tokens_fields)
    batch.step(range(row["batch"]))
    step = batch.steps[0]
    outputs: dict[str, list[int]] = {}
    for number, (_, fields, _, name) in enumerate(step["added"]):
        least = fields.get("min_tokens", 2)
        length = {
            "ragged": number % 4,
            "empty": 0,
            "one short": min(least, 20) - 1,
            "just enough": min(least, 20),
            "more than enough": min(least, 20) + 2,
        }[row["so far"]]
        outputs[name] = s.integers(0, row["vocab"], (max(length, 0),)).tolist()
    counts = axes.draft_counts(row["drafts"], *axes.sized(row, row["batch"], 3))
    return {
        "step": step,
        "outputs": outputs,
        "num_draft_tokens": counts,
        "logits": axes.logits(row["pattern"], sum(counts), row["vocab"], s, row["dtype"], row["layout"]),
    }


def _prepare_drafts(arm: Arm, pool: Pool) -> Call:
    most = max(_MOST, len(pool["num_draft_tokens"]))
    processor = metadata.processor(arm, arm.first(*metadata.MIN_TOKENS), most, torch.device(arm.device))
    processor.update_state(metadata.batch_update(arm, pool["step"], pool["outputs"]))
    function = processor.apply_with_spec_decode
    return Call(function, kwargs=arm.bind(function, pool))


def _draft_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _MIN_TOKENS_DRAFT_AXES,
        _draft_pool,
        name="v1.min_tokens_with_drafts",
        covers=4,
        contract=lambda row: _sent(row) and row["batch"] > 0,
        alone={"stop": ("id V",), "dtype": (torch.bfloat16, torch.float64), "batch": (0,)},
    )


# --- a processor of the user's own, for one request at a time ---------------------------------------------------------


def _adapted_fields(row: axes.Row, s: axes.Stream) -> dict[str, Any]:
    kind = s.choice(_KINDS[:-1]) if row["kind"] == "mixed" else row["kind"]
    return {"extra_args": {"kind": kind, "add": float(s.integer(1, 9))}}


_KINDS = ("in place", "a new row", "with the prompt", "not wanted")
"""What a request's own processor does; whether it takes the prompt beside the output tokens."""

_ADAPTED_AXES: axes.Axes = {**_COMMON, "kind": ("mixed", *_KINDS), "prompt": ("there", "absent")}


def _adapted_pool(row: axes.Row, s: axes.Stream) -> Pool:
    pool = _pool(row, s, _adapted_fields)
    for step in pool["steps"]:
        step["added"] = [
            (index, fields, (prompt or []) if row["prompt"] == "there" else None, name)
            for index, fields, prompt, name in step["added"]
        ]
    return pool


def _adapts(row: axes.Row) -> bool:
    """A function that takes the prompt is refused where there is none."""
    return bool(row["prompt"] == "there" or row["kind"] not in ("with the prompt", "mixed"))


def _adapted_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _ADAPTED_AXES, _adapted_pool, name="v1.adapter", contract=_contract, allowed=_adapts, limit=70
    )


def _in_place(add: float, outputs: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[: len(outputs)] += add
    return logits


def _new_row(add: float, outputs: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits - add * len(outputs)


def _with_prompt(add: float, prompt: list[int], outputs: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits + add * len(prompt) - len(outputs)


def _own_processor(arm: Arm) -> Any:
    """A user's subclass of the arm's adapter, as its documentation asks for."""

    def is_argmax_invariant(self: Any) -> bool:
        return False

    def new_req_logits_processor(self: Any, params: Any) -> Any:
        asked = params.extra_args
        kind = asked["kind"] if asked else _KINDS[-1]
        if kind == _KINDS[-1]:
            return None
        add = asked["add"]
        if kind == "with the prompt":
            return lambda prompt, outputs, logits: _with_prompt(add, prompt, outputs, logits)
        function = _in_place if kind == "in place" else _new_row
        return lambda outputs, logits: function(add, outputs, logits)

    adapter = arm.first(*_ADAPTER)
    own = {"is_argmax_invariant": is_argmax_invariant, "new_req_logits_processor": new_req_logits_processor}
    return type(adapter.__name__, (adapter,), {**own, "__module__": adapter.__module__})


# --- the builder of batch updates -------------------------------------------------------------------------------------

_OPERATIONS = ("remove", "pop", "peek", "read", "has", "add", "move", "take", "reset")


def _script(number: int, count: int = 0) -> Pool:
    s = axes.stream("v1.batch_update_builder", number, *[count][: bool(count)])
    made = range(count or 4 + number % 30)
    return {"operations": [(s.choice(_OPERATIONS), s.integer(0, 9)) for _ in made]}


_SCRIPTS = Family(
    "v1.batch_update_builder",
    {"length": (4, 33)},
    lambda row, s: {"operations": [(s.choice(_OPERATIONS), s.integer(0, 9)) for _ in range(row["length"])]},
    lambda row: True,
    lambda row: True,
)


def _prepare_script(arm: Arm, pool: Pool) -> Call:
    builder = arm.first(*_BUILDER)()

    def one(operation: str, index: int) -> Any:
        match operation:
            case "remove":
                return builder.removed_append(index)
            case "pop":
                return builder.pop_removed()
            case "peek":
                return builder.peek_removed()
            case "read":
                return list(builder.removed)
            case "has":
                return builder.has_removed()
            case "add":
                return builder.added.append((index, None, None, [index]))
            case "move":
                return builder.moved.append((index, index + 1, None))
            case "take":
                update = builder.get_and_reset(index)
                return update and (update.batch_size, update.removed, update.added, update.moved)
            case _:
                # Versions without a reset: taking leaves the same. What it returns differs by design.
                getattr(builder, "reset", lambda: builder.get_and_reset(0))()
                return None

    def run() -> list[Any]:
        seen: list[Any] = []
        for operation, index in pool["operations"]:
            try:
                seen.append(one(operation, index))
            except RuntimeError as error:
                seen.append(f"RuntimeError: {error}")
        return seen

    return Call(run)


def _script_cases() -> Iterator[Case]:
    for number in range(120):
        yield Case(f"operations {number}", functools.partial(_script, number), family=_SCRIPTS)


def _script_shapes(name: str) -> Iterator[Shape]:
    """Scripts of as many operations as a step of a batch has, four for each request."""
    for size in shapes.sizes(name, ()):
        vary = functools.partial(_script, count=4 * size.batch)
        yield Shape(str(size), functools.partial(vary, 0), axes={"batch": size.batch}, vary=vary)


def _uses(symbols: Sequence[str], *more: str) -> tuple[str, ...]:
    called = metadata.methods(symbols, "__init__", "update_state", "apply", "is_argmax_invariant", *more)
    return (*symbols, *called, *metadata.UPDATE)


TARGETS = (
    Target(
        name="v1.min_p",
        symbols=metadata.methods(metadata.MIN_P, "update_state"),
        cases=_min_p_cases,
        prepare=_drive(metadata.MIN_P, _min_p_state),
        uses=_uses(metadata.MIN_P, "get_min_p_by_index"),
        relations=_RELATIONS,
        shapes=shapes.of_cases(_min_p_cases, "vocabulary", most=shapes.MOST // 2, also=_added_once),
    ),
    Target(
        name="v1.logit_bias",
        symbols=metadata.methods(metadata.LOGIT_BIAS, "update_state"),
        cases=_bias_cases,
        prepare=_drive(metadata.LOGIT_BIAS, _bias_state),
        uses=_uses(metadata.LOGIT_BIAS),
        relations=_RELATIONS,
        shapes=shapes.of_cases(_bias_cases, "vocabulary", most=shapes.MOST // 2, also=_added_once),
    ),
    Target(
        name="v1.min_tokens",
        symbols=metadata.methods(metadata.MIN_TOKENS, "update_state"),
        cases=_min_tokens_cases,
        prepare=_drive(metadata.MIN_TOKENS, _min_tokens_state),
        uses=_uses(metadata.MIN_TOKENS),
        relations=_RELATIONS,
        shapes=shapes.of_cases(_min_tokens_cases, "vocabulary", most=shapes.MOST // 2, also=_added_once),
    ),
    Target(
        name="v1.min_tokens_with_drafts",
        symbols=metadata.methods(metadata.MIN_TOKENS, "apply_with_spec_decode"),
        cases=_draft_cases,
        prepare=_prepare_drafts,
        uses=_uses(metadata.MIN_TOKENS),
        relations=(relations.relaid("logits"),),
        rows=("return", "logits"),
        shapes=shapes.of_cases(_draft_cases, "vocabulary", "drafts"),
    ),
    Target(
        name="v1.adapter",
        symbols=_ADAPTER,
        cases=_adapted_cases,
        prepare=_drive(_own_processor, lambda processor: sorted(processor.req_info)),
        uses=_uses(_ADAPTER, "_new_state"),
        relations=_RELATIONS,
        shapes=shapes.of_cases(_adapted_cases, "vocabulary", most=shapes.MOST // 2, also=_added_once),
    ),
    Target(
        name="v1.batch_update_builder",
        symbols=_BUILDER,
        cases=_script_cases,
        shapes=_script_shapes,
        prepare=_prepare_script,
        uses=(
            *metadata.methods(
                _BUILDER,
                "__init__",
                "removed_append",
                "removed",
                "has_removed",
                "peek_removed",
                "pop_removed",
                "reset",
                "get_and_reset",
            ),
            *metadata.BATCH_UPDATE,
        ),
    ),
)
