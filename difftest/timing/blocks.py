"""The measuring loop: two callables in one process, in adjacent blocks, in ABBA order. No torch here.

A *block* is a run of calls of one arm between two readings of the clock. A *pair* is a block of base beside a block of
head; four blocks make a *quad* (base head head base, the next one head base base head), so that neither drift nor
the place within a pair favours an arm. One block more, of the second arm, runs ahead of each quad and does not count:
the first block after inputs were made finds everything cold. (Measured with functions of 14 to 260 µs: without it the
first pair of a quad is off by 2 to 4 %, to and fro, and the other one by 1 %; with it both are off by 1 %, and medians
of 8 pairs vary between loadings by half as much, 0.4 to 0.6 % instead of 0.8 to 1 %.)

What is timed is called as production calls it: the loop is generated for the number of arguments and the keyword
names of the call, so that there is no `*args`, no partial, no proxy between the clock and the function; base and head
each have a loop of their own, because the interpreter specialises a call site for what it calls. Everything else is
outside the timed region: inputs are prepared for the whole quad, states are restored, garbage is collected.

Where the machine is busy, the scheduler takes the core away in the middle of a block. The kernel counts that, and a
quad to which it happened is measured again: not because it was slow, but because it was interrupted. Waiting of the
code's own accord is no interruption and stays in its time.

What could give a head a false "faster", and what stands against it:

- a first call that compiles: the first call is timed apart, and further calls warm up before anything is measured;
- results cached by the identity or the address of the inputs: every call has inputs of its own, and used ones are kept
  alive (:attr:`Settings.retained_bytes`), so that no object and no address comes back;
- results cached by content: `fresh(number)` makes other contents for other numbers. Where it cannot, a content cache is
  not seen here; :attr:`Hooks.agree` compares results of calls with the same number and so catches a stale one;
- lazy results: :attr:`Hooks.materialise` reads them inside the timed region, for both arms;
- work left to the device: :attr:`Hooks.synchronise` waits for it inside the timed region;
- garbage: collection is off while the clock runs. What a block left is collected after it, and the time that takes
  is charged to that block.
"""

from __future__ import annotations

import functools
import gc
import keyword
import math
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from difftest.target import Call

Fresh = Callable[[int], Call]
"""Makes the call with the given number: inputs that no other call has, the same contents in both arms for the same
number, other contents for another number where the shape allows it."""

_Prepared = list[tuple[Any, ...]]
_Loop = Callable[[_Prepared], tuple[int, Any]]


_BLOCKS = 5
"""Blocks of a quad, with the one that runs ahead of it."""


@dataclass(frozen=True)
class Settings:
    """How blocks are made.

    Attributes:
        block_ns: time that a block should last; many times the clock's step, few enough calls to stay adjacent.
        max_calls: most calls in a block.
        warm_calls, warm_ns: calls of each arm before measuring; the first limit that is reached ends it, yet never
            before `min_warm_calls`.
        warm_quads: quads that are not kept, at the end of the warming: the first ones still run cold.
        lead_in: calls before each block that are not timed, so that every block begins with the same warm code. Without
            them no block runs ahead of a quad either.
        repeats: a quad that was interrupted is measured again, at most so many times for each quad asked for.
        retained_bytes: used inputs are kept until they take this much, so that addresses do not come back.
        input_bytes: size of the inputs of one call, as far as the caller knows.
    """

    block_ns: int = 60_000
    max_calls: int = 256
    warm_calls: int = 40
    warm_ns: int = 100_000_000
    min_warm_calls: int = 3
    warm_quads: int = 2
    lead_in: int = 1
    repeats: int = 2
    retained_bytes: int = 256 << 20
    input_bytes: int = 1 << 12


@dataclass(frozen=True)
class Hooks:
    """What the measuring loop does not know how to do.

    Attributes:
        restore: puts shared state (RNG) back, before each block, outside the timed region.
        synchronise: waits until the device is idle, before each reading of the clock.
        materialise: reads a result in full, inside the timed region; needed where results may be lazy.
        agree: whether a result of base and one of head, of calls with the same number, are the same; asked once a pair
            outside the timed region.
    """

    restore: Callable[[], None] | None = None
    synchronise: Callable[[], None] | None = None
    materialise: Callable[[Any], Any] | None = None
    agree: Callable[[Any, Any], bool] | None = None


@dataclass(frozen=True)
class Pair:
    """A block of base beside a block of head, in nanoseconds per call.

    Attributes:
        base_ns, head_ns: time of a call, garbage of the block included.
        head_first: whether head's block came first.
    """

    base_ns: float
    head_ns: float
    head_first: bool


@dataclass(frozen=True)
class Conditions:
    """What a measurement was made under; grows with it.

    Attributes:
        base_first_ns, head_first_ns: the first call of each arm, apart from everything else.
        calls: calls in a block.
        loop_ns: the loop's own cost of a call: the same loop over a function that does nothing.
        base_garbage, head_garbage: objects in reference cycles that a call leaves behind, on average.
        disagreements: pairs whose results differed.
        interrupted: quads that were measured again because the scheduler took the core away; `kept_interrupted` are
            those that were kept all the same, when every further attempt was used up.
        recycled: whether inputs were given back before the end, so that addresses may have come twice.
    """

    base_first_ns: int
    head_first_ns: int
    calls: int
    loop_ns: float
    base_garbage: float = 0.0
    head_garbage: float = 0.0
    disagreements: int = 0
    interrupted: int = 0
    kept_interrupted: int = 0
    recycled: bool = False


@dataclass(frozen=True)
class _Quad:
    pairs: list[Pair]
    interrupted: bool
    disagreements: int


class PairedBlocks:
    """Measures base against head, in one process, for one shape.

    Use it inside :func:`quiet_collector`. Making one calls each arm for the first time, warms both up and fits the
    block to the clock; :meth:`take` then measures as often as it is asked to.
    """

    def __init__(
        self,
        base: Fresh,
        head: Fresh,
        settings: Settings | None = None,
        hooks: Hooks | None = None,
        *,
        head_first: bool = False,
    ) -> None:
        """Whatever a call raises is raised, unchanged.

        Args:
            base, head: make the calls of each arm.
            settings, hooks: how blocks are made, and what the loop cannot do by itself.
            head_first: whether head's first call and first block come first. Turn it round from process to process: the
                first call of all also sets up what both arms share.
        """
        self._settings = settings or Settings()
        self._hooks = hooks or Hooks()
        self._fresh = {"base": base, "head": head}
        self._number = 0
        self._turn = int(head_first)
        self._quads = self._turn
        self._garbage = {"base": 0, "head": 0}
        self._measured = 0
        self._disagreements = 0
        self._interrupted = 0
        self._kept_interrupted = 0
        self._recycled = False
        kept = max(1, self._settings.retained_bytes // max(1, self._settings.input_bytes))
        self._kept: deque[_Prepared] = deque()
        self._kept_calls = 0
        self._kept_limit = kept
        sample = {arm: fresh(0) for arm, fresh in self._fresh.items()}
        self._loops = {arm: timed_loop(call, self._hooks) for arm, call in sample.items()}
        turns = ("head", "base") if head_first else ("base", "head")
        self._first = {arm: self._one(arm, sample[arm]) for arm in turns}
        self._number = 1
        call_ns = min(self._warm().values())
        # A call that lasts for many blocks warms itself.
        self._lead_in = 0 if call_ns > 10 * self._settings.block_ns else self._settings.lead_in
        warm_quads = 0 if call_ns > 100 * self._settings.block_ns else self._settings.warm_quads
        self._calls = self._fit(call_ns)
        self._loop_ns = loop_cost(sample["base"], self._hooks)
        gc.collect()
        gc.freeze()
        for _ in range(warm_quads):
            self._quad()
        self._quads = self._turn
        self._measured = 0
        self._garbage = {"base": 0, "head": 0}

    @property
    def conditions(self) -> Conditions:
        measured = max(1, self._measured)
        return Conditions(
            base_first_ns=self._first["base"],
            head_first_ns=self._first["head"],
            calls=self._calls,
            loop_ns=self._loop_ns,
            base_garbage=self._garbage["base"] / measured,
            head_garbage=self._garbage["head"] / measured,
            disagreements=self._disagreements,
            interrupted=self._interrupted,
            kept_interrupted=self._kept_interrupted,
            recycled=self._recycled,
        )

    def take(self, quads: int, seconds: float = math.inf) -> list[Pair]:
        """Measure so many quads, each of two pairs, or fewer when the time is up, yet never fewer than two.

        A list of pairs always holds whole quads in order, and as many that begin with base as with head if `quads` is
        even.
        """
        pairs: list[Pair] = []
        spare = self._settings.repeats * quads
        end = time.monotonic() + seconds
        for taken in range(quads):
            if taken >= 2 and taken % 2 == 0 and time.monotonic() > end:
                break
            quad = self._quad()
            while quad.interrupted and spare and time.monotonic() < end:
                spare -= 1
                self._interrupted += 1
                self._quads -= 1  # the same order again, so that both orders stay equally frequent
                quad = self._quad()
            self._kept_interrupted += quad.interrupted
            self._disagreements += quad.disagreements
            pairs += quad.pairs
        return pairs

    def _quad(self) -> _Quad:
        first, second = ("base", "head") if self._quads % 2 == 0 else ("head", "base")
        self._quads += 1
        order = (first, second, second, first)
        per_block = self._calls + self._lead_in
        starts = (self._number, self._number, self._number + per_block, self._number + per_block)
        numbers = [range(start, start + per_block) for start in starts]
        ahead = range(self._number + 2 * per_block, self._number + (3 if self._lead_in else 2) * per_block)
        self._number = ahead.stop
        if _BLOCKS * per_block <= self._kept_limit:
            leading = [_prepared(self._fresh[second](number)) for number in ahead]
            blocks: list[_Prepared] = [[] for _ in order]
            # Inputs of both arms are made in turn, so that those of neither are always the fresher ones in the caches.
            for beside in ((0, 1), (2, 3)):
                for number in numbers[beside[0]]:
                    for block in beside:
                        blocks[block].append(_prepared(self._fresh[order[block]](number)))
            gc.collect()
            if leading:
                self._restore()
                self._loops[second](leading)
                gc.collect(0)
            timed = [self._block(arm, prepared) for arm, prepared in zip(order, blocks, strict=True)]
            self._retain([leading, *blocks])
        else:  # too large to be there for a whole quad
            timed = []
            for arm, wanted in zip(order, numbers, strict=True):
                prepared = [_prepared(self._fresh[arm](number)) for number in wanted]
                gc.collect()
                timed.append(self._block(arm, prepared))
                self._retain([prepared])
        disagreements = 0
        if self._hooks.agree is not None:
            for pair in (0, 1):
                results = {order[n]: timed[n][1] for n in (2 * pair, 2 * pair + 1)}
                disagreements += not self._hooks.agree(results["base"], results["head"])
        self._measured += 2 * self._calls
        gc.freeze()
        one, two = ({order[n]: timed[n][0] for n in (2 * pair, 2 * pair + 1)} for pair in (0, 1))
        pairs = [
            Pair(one["base"], one["head"], head_first=first == "head"),
            Pair(two["base"], two["head"], head_first=first == "base"),
        ]
        return _Quad(pairs, any(interrupted for _, _, interrupted in timed), disagreements)

    def _block(self, arm: str, prepared: _Prepared) -> tuple[float, Any, bool]:
        lead_in = self._lead_in
        loop = self._loops[arm]
        if lead_in:
            self._restore()
            loop(prepared[:lead_in])
            gc.collect(0)
        self._restore()
        calls = prepared[lead_in:]
        switches = _interruptions()
        elapsed, result = loop(calls)
        interrupted = _interruptions() != switches
        begin = time.perf_counter_ns()
        left = gc.collect(0)
        if left:
            elapsed += time.perf_counter_ns() - begin
            self._garbage[arm] += left
        return elapsed / len(calls), result, interrupted

    def _restore(self) -> None:
        if self._hooks.restore is not None:
            self._hooks.restore()

    def _retain(self, blocks: list[_Prepared]) -> None:
        for block in blocks:
            self._kept.append(block)
            self._kept_calls += len(block)
        while self._kept_calls > self._kept_limit and self._kept:
            self._kept_calls -= len(self._kept.popleft())
            self._recycled = True

    def _one(self, arm: str, call: Call) -> int:
        self._restore()
        prepared = [_prepared(call)]
        elapsed, _ = self._loops[arm](prepared)
        self._retain([prepared])
        return elapsed

    def _warm(self) -> dict[str, int]:
        """Call both arms in turn until they are warm; the shortest call of each, in nanoseconds."""
        settings = self._settings
        shortest: dict[str, int] = {}
        begin = time.perf_counter_ns()
        for done in range(settings.warm_calls):
            if done >= settings.min_warm_calls and time.perf_counter_ns() - begin > settings.warm_ns:
                break
            for arm, fresh in self._fresh.items():
                elapsed = self._one(arm, fresh(self._number))
                shortest[arm] = min(elapsed, shortest.get(arm, elapsed))
            self._number += 1
        return shortest

    def _fit(self, call_ns: int) -> int:
        """Calls in a block: enough to last, few enough that the inputs of a quad stay within what is retained."""
        wanted = math.ceil(self._settings.block_ns / max(call_ns, 1))
        fits = self._kept_limit // _BLOCKS - self._lead_in
        return max(1, min(wanted, self._settings.max_calls, fits))


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Garbage collection off, and what is there already left out of later collections; as it was afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def timed_loop(call: Call, hooks: Hooks) -> _Loop:
    """A loop of its own for calls with as many arguments and the keyword names of `call`.

    The loop takes prepared calls and gives the time they took together, in nanoseconds, and the last result. Results
    are dropped inside the timed region, as a caller in production drops them.
    """
    positional = len(call.args)
    names = tuple(call.kwargs)
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise ValueError(f"keyword arguments {names} are not all names")
    code = _loop_code(positional, names, hooks.materialise is not None, hooks.synchronise is not None)
    space: dict[str, Any] = {
        "clock": time.perf_counter_ns,
        "materialise": hooks.materialise,
        "synchronise": hooks.synchronise,
    }
    exec(compile(code, "<timed loop>", "exec"), space)  # compiled anew: code objects hold the call site's caches
    loop: _Loop = space["loop"]
    return loop


@functools.cache
def _loop_code(positional: int, names: tuple[str, ...], materialise: bool, synchronise: bool) -> str:
    values = [f"a{n}" for n in range(positional)] + [f"k{n}" for n in range(len(names))]
    arguments = values[:positional] + [f"{name}=k{n}" for n, name in enumerate(names)]
    called = f"fn({', '.join(arguments)})"
    lines = [
        "def loop(calls):",
        "    result = None",
        "    synchronise()" if synchronise else "",
        "    begin = clock()",
        f"    for {', '.join(['fn', *values])}, in calls:",
        f"        result = {f'materialise({called})' if materialise else called}",
        "    synchronise()" if synchronise else "",
        "    return clock() - begin, result",
    ]
    return "\n".join(line for line in lines if line)


def _interruptions() -> int:
    """How often the scheduler has taken the core from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _prepared(call: Call) -> tuple[Any, ...]:
    return (call.fn, *call.args, *call.kwargs.values())


def loop_cost(call: Call, hooks: Hooks, calls: int = 200, repeats: int = 15) -> float:
    """Nanoseconds that the loop spends on each call by itself: with a function of the same arguments that does nothing.

    The shortest of several blocks; hooks are left out of it, since what they cost depends on the result.
    """
    positional = ", ".join(f"a{n}" for n in range(len(call.args)))
    parameters = [positional] if positional else []
    parameters += [f"{name}=None" for name in call.kwargs]
    space: dict[str, Any] = {}
    exec(f"def nothing({', '.join(parameters)}): pass", space)
    loop = timed_loop(call, Hooks())
    prepared = [_prepared(Call(space["nothing"], call.args, call.kwargs))] * calls
    return min(loop(prepared)[0] for _ in range(repeats)) / calls
