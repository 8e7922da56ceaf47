"""The measuring processes of a bench: each loads the arms once, at addresses of its own, and times what it is asked to.

Started by the supervisor as `python -m difftest.timing.worker CONTROL_FD PARENT`, like :mod:`difftest.run.worker`, but
with memory, allocator and functions as production has them: nothing is poisoned, wrapped or traced.

The supervisor sends `{"list": name}` and gets the shapes of every target, or `{"turn": ...}`:

- `turn`: the number of the process; every process seeds the scattering of memory with it and turns round the order of
  loading and of calling;
- `items`: `{"target", "symbols": [base, head], "arms": [base, head]}`, the comparisons;
- `jobs`: `[item, shape, quads]` numbers in the order in which they are timed; `quads` and `seconds` are how much to
  measure of each; `deadline`: the time after which no job is begun;
- `under_way`: how many of the jobs are gone on with; those after them are begun within `spare` seconds only, of which
  the first process takes off its loading, down to `least`;
- `agree`: whether to compare results while timing; `bridge`: whether host memory stands for pinned memory.

It answers `{"begins": [item, shape]}` before and `{"measured": [item, shape], ...}` or `{"failed": ...}` after each
job. The items' first calls come before all jobs and are announced as shape -1. `{"spoiled": arm, ...}` ends the turn
early: that arm changed what all measurements of the process stand on.
"""

from __future__ import annotations

import functools
import gc
import random
import re
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from difftest.errors import ApiChange
from difftest.run.worker import Child, main
from difftest.target import Call, Made, Pool, Shape, Target
from difftest.timing.blocks import Fresh, Hooks, PairedBlocks, Settings, quiet_collector
from difftest.timing.layout import scatter
from difftest.timing.reading import may_be_lazy, read

WARM_NS = 2_000_000
"""Time for warming up both arms at a shape, short as other shapes have warmed the code already."""

SETTINGS = {
    "cpu": Settings(warm_ns=WARM_NS),
    # Each block waits for the device at its end, which costs as much as a small kernel and varies more.
    "cuda": Settings(block_ns=1_000_000, warm_ns=10 * WARM_NS, retained_bytes=1 << 30),
}

OBJECT_BYTES = 2_000
"""About what the Python objects of one call's inputs take, tensors' contents aside."""

AGREE_FIRST, AGREE_EVERY = 4, 16
"""Results are compared in the first pairs of a shape and in every so manieth pair after them."""

_CLOCKWORK: tuple[tuple[Any, str], ...] = (
    (time, "perf_counter_ns"),
    (time, "monotonic"),
    (gc, "collect"),
    (gc, "freeze"),
    (gc, "isenabled"),
    (resource, "getrusage"),
)
_CLOCKWORK_THEN = tuple(getattr(module, name) for module, name in _CLOCKWORK)

_NEEDS_BRIDGE = re.compile(r"pin(ned)?[ _]memory|CUDA|NVIDIA", re.IGNORECASE)


class Failed(Exception):
    """A job that cannot be timed; the message says why."""


class Spoiled(Exception):
    """An arm changed what all measurements of this process stand on.

    Attributes:
        label: the arm.
    """

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(reason)
        self.label = label


class TimingChild(Child):
    """One measuring process."""

    def __init__(self, setup: dict[str, Any], targets: dict[str, Target], slot: dict[str, Any]) -> None:
        super().__init__(setup, targets, slot)
        from difftest.call.outcome import Caller

        self.caller = Caller(self.device, self.states, self.scrub)
        self.bridged = False
        self.kept: list[Any] = []

    def handle(self, message: dict[str, Any]) -> None:
        if "list" in message:
            self.channel.send({"shapes": {name: _listed(t, message["list"]) for name, t in self.targets.items()}})
        elif "turn" in message:
            with quiet_collector():
                try:
                    Turn(self, message).run()
                except Spoiled as error:
                    self.channel.send({"spoiled": error.label, "reason": str(error)})
            strangers = [stranger for arm in self.arms.values() for stranger in arm.loader.strangers()]
            notes = {arm.label: list(arm.notes) for arm in self.arms.values()}
            self.channel.send({"done": message["turn"], "notes": notes, "strangers": strangers})
            self.exit(0)  # every turn has a process of its own

    def bridge(self) -> None:
        """Have plain memory stand for pinned memory, and load the arms anew on top of that."""
        from difftest.call.host import bridge_host

        bridge_host()
        self.bridged = True
        self.arms.clear()


class Turn:
    """All that one process measures: one layout of every job."""

    def __init__(self, child: TimingChild, request: Mapping[str, Any]) -> None:
        self.child = child
        self.request = request
        self.number: int = request["turn"]
        self.rng = random.Random(self.number)
        self.items: list[dict[str, Any]] = request["items"]
        self.shapes: dict[str, list[Shape]] = {}
        for item in self.items:
            if item["target"] not in self.shapes:
                target = child.targets[item["target"]]
                assert target.shapes is not None
                self.shapes[item["target"]] = list(target.shapes(request["shapes"]))
        self.first_ns: dict[tuple[str, str], int] = {}
        self.lazy: dict[tuple[str, str], bool] = {}
        self.failed: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        began = time.monotonic()
        if self.request["bridge"]:
            self.child.bridge()
        self.load()
        until, under_way = self.request["deadline"], self.request["under_way"]
        for place, (index, shape, quads) in enumerate(self.request["jobs"]):
            if place == under_way:  # what loading takes is known before and left out, but of the first process
                loading = 0.0 if under_way else time.monotonic() - began
                seconds = max(self.request["spare"] - loading, self.request["least"])
                until = min(until, time.monotonic() + seconds)
            if time.monotonic() > (until if place else self.request["deadline"]):
                break
            self.child.channel.send({"begins": [index, shape]})
            answer: dict[str, Any]
            try:
                answer = {"measured": [index, shape], **self.measure(self.items[index], shape, quads)}
            except Failed as error:
                answer = {"failed": [index, shape], "reason": str(error)}
            except Exception as error:
                answer = {"failed": [index, shape], "reason": f"{type(error).__name__}: {self.child.scrub(str(error))}"}
            self.check_clockwork(self.items[index]["arms"][1])
            self.child.channel.send(answer)

    # -- loading ------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load every arm, whole and one after the other, each after memory was scattered; time their first calls."""
        timed = {index for index, _, _ in self.request["jobs"]}
        items = [(index, item) for index, item in enumerate(self.items) if index in timed]
        labels = list(dict.fromkeys(label for _, item in items for label in item["arms"]))
        for label in reversed(labels) if self.number % 2 else labels:
            self.child.kept.append(scatter(self.rng))
            for index, item in items:
                if label not in item["arms"] or (item["target"], label) in self.first_ns:
                    continue
                self.child.channel.send({"begins": [index, -1]})
                self.first_call(index, label)
                self.check_clockwork(label)

    def first_call(self, index: int, label: str) -> None:
        item = self.items[index]
        key = (item["target"], label)
        if key in self.failed:
            return
        shape = self.shapes[item["target"]][next(shape for i, shape, _ in self.request["jobs"] if i == index)]
        for attempt in (0, 1):
            try:
                call = self.fresh(item, label, shape.build(), shape.vary)(0)
                self.child.states.restore()
                self.synchronise()
                begin = time.perf_counter_ns()
                result = call.fn(*call.args, **call.kwargs)
                self.lazy[key] = may_be_lazy(result)
                if self.lazy[key]:
                    read(result)
                self.synchronise()
                self.first_ns[key] = time.perf_counter_ns() - begin
                return
            except ApiChange as error:
                self.failed[key] = f"api-change: {error}"
                return
            except Exception as error:
                text = f"{type(error).__name__}: {self.child.scrub(str(error))}"[:500]
                if attempt or self.child.bridged or not _NEEDS_BRIDGE.search(text):
                    self.failed[key] = f"{label} raises {text}"
                    return
                self.child.bridge()
                self.child.channel.send({"bridged": True})

    # -- measuring ----------------------------------------------------------------------------------------------------

    def measure(self, item: Mapping[str, Any], number: int, quads: int) -> dict[str, Any]:
        target, (base, head) = item["target"], item["arms"]
        for label in (base, head):
            if (target, label) in self.failed:
                raise Failed(self.failed[target, label])
        shape = self.shapes[target][number]
        pool = shape.build()
        vary = None if shape.vary is None else functools.lru_cache(maxsize=2)(shape.vary)  # both arms copy the same
        size = _bytes(pool) + OBJECT_BYTES
        lazy = self.lazy[target, base] or self.lazy[target, head]
        hooks = Hooks(
            restore=self.restore,
            synchronise=self.synchronise if self.child.device == "cuda" else None,
            materialise=read if lazy else None,
            agree=_agreement() if self.request["agree"][target] else None,
        )
        blocks = PairedBlocks(
            self.fresh(item, base, pool, vary),
            self.fresh(item, head, pool, vary),
            replace(SETTINGS[self.child.device], input_bytes=size),
            hooks,
            head_first=bool(self.number % 2),
        )
        pairs = blocks.take(quads, self.request["seconds"])
        conditions = blocks.conditions
        conditions = replace(  # what only the first call of all does is done by now, whatever the shape
            conditions,
            base_first_ns=max(conditions.base_first_ns, self.first_ns[target, base]),
            head_first_ns=max(conditions.head_first_ns, self.first_ns[target, head]),
        )
        return {
            "pairs": [[pair.base_ns, pair.head_ns, pair.head_first] for pair in pairs],
            "conditions": asdict(conditions),
            "varies": shape.vary is not None,
        }

    def fresh(self, item: Mapping[str, Any], label: str, pool: Pool, vary: Callable[[int], Pool] | None) -> Fresh:
        """Makes calls of one arm: inputs copied from one pool, or from one of its own where the shape can vary."""
        from difftest.call.values import own_copy

        child = self.child
        target = child.targets[item["target"]]
        symbol = item["symbols"][item["arms"].index(label)]
        arm = child.arm(label)
        prepare = child.caller.prepare
        if vary is not None:

            def varied(number: int) -> Call:
                return prepare(target, symbol, arm, own_copy(arm, vary(number)))

            return varied
        return lambda number: prepare(target, symbol, arm, own_copy(arm, pool))

    def restore(self) -> None:
        self.child.states.after()

    def synchronise(self) -> None:
        if self.child.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def check_clockwork(self, label: str) -> None:
        """No arm may have its hands on the clock, the garbage collector or what both arms stand on."""
        replaced = [
            f"{module.__name__}.{name}"
            for (module, name), then in zip(_CLOCKWORK, _CLOCKWORK_THEN, strict=True)
            if getattr(module, name) is not then
        ]
        replaced += self.child.guard.replaced()
        if replaced:
            raise Spoiled(label, f"its code replaced {', '.join(replaced[:3])}, which the measurement stands on")
        if gc.isenabled():
            raise Spoiled(label, "its code switches the garbage collector on")


def _agreement() -> Callable[[Any, Any], bool]:
    from difftest.call.freeze import Freezer

    asked = 0

    def agree(base: Any, head: Any) -> bool:
        nonlocal asked
        asked += 1
        if asked > AGREE_FIRST and asked % AGREE_EVERY:
            return True
        return bool(Freezer()(base) == Freezer()(head))

    return agree


def _listed(target: Target, name: str) -> list[list[Any]]:
    if target.shapes is None:
        return []
    return [[shape.label, dict(shape.axes), shape.vary is not None] for shape in target.shapes(name)]


def _bytes(value: Any) -> int:
    """Bytes of the tensors and arrays in a pool."""
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, Made):
        return _bytes(value.fields)
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value)) if value and not isinstance(value[0], int) else 8 * len(value)
    return int(getattr(value, "nbytes", 8))


def _as_it_comes() -> None:
    """Nothing stands between the code under test and the machine."""


if __name__ == "__main__":
    raise SystemExit(main(TimingChild, _as_it_comes))
