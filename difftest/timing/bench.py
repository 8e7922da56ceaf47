"""`difftest bench`: which head is faster than base, by how much, or that nobody can tell. No torch in this process.

    result = bench(BenchOptions(base="main", heads=("my-branch",), targets=("v1.parse_output",)))
    print(result.exit_code)

The arms are lifted as for a run. First the outputs of both arms are compared on every shape; what differs is not timed
unless asked for. Then measuring processes follow one after the other, never two at a time. Each loads all arms anew, at
other addresses and in turned order, and times every comparison that is not settled yet. Base is loaded twice: base
against base, measured alike, is the floor below which nothing is believed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import selectors
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from difftest import catalog
from difftest.api import no_target
from difftest.catalog import Outline
from difftest.errors import DifftestError, NothingCompared, UsageError
from difftest.run.plan import (
    ArmSource,
    Planned,
    Planner,
    arm_setup,
    arm_sources,
    refuse_without_package,
    write_closures,
)
from difftest.run.supervisor import Supervisor, Unit, answer, scratch_folder, status_text
from difftest.target import labelled
from difftest.timing import judge, schedule
from difftest.timing.blocks import Conditions, Pair
from difftest.timing.judge import Measured
from difftest.timing.result import BenchResult, ShapeResult, Untimed
from difftest.timing.statistics import Rule
from difftest.timing.surroundings import surroundings
from difftest.trees import open_tree
from difftest.trees.cache import cache_folder, using

SHAPE_LISTS = ("grid", "quick")
AGAIN = "again"
"""Label of the second loading of base."""

LOOKS = (4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80)
"""Numbers of layouts at which a verdict is asked for; the last is the most that is measured."""

FLOOR_LAYOUTS = 4
JOB_SECONDS = {"cpu": 0.25, "cuda": 0.5}
"""Time to measure one shape in one layout, where calls are long; at least two quads are measured all the same."""

SILENT_SECONDS = 60.0
"""How long a measuring process may say nothing, beyond the target's time for a call, before it counts as hanging."""

JUDGE_SECONDS = 0.008
"""Time to judge one comparison that is open at the end."""

COMPARE_SHARE = 0.3
"""Share of the time left after lifting for comparing the outputs, beyond the start of the comparing process."""

SPREAD_LIMIT_PERCENT = 1.5
BUDGET_SECONDS = 30.0

_OK, _LATE = "identical", "late"


@dataclass(frozen=True)
class BenchOptions:
    """A request to time. Names follow the command line of `difftest bench`.

    Attributes:
        base, heads: trees, as :func:`difftest.trees.open_tree` takes them.
        targets: names, globs or raw symbols; all targets when empty.
        shapes: `grid`, `quick`, or a text file with a shape label or glob a line, which picks from the grid.
        budget: seconds for the whole command; measuring ends then, what is not settled is inconclusive. Comparing the
            outputs takes part of it; shapes whose outputs were not compared in time are untimed.
        max_regression: the gate in percent; None for no gate.
        force: time pairs whose outputs differ, too.
        execute_same: time targets whose code is the same in both arms, too (`--all`).
        command: the command line, for the report.
    """

    base: str
    heads: tuple[str, ...]
    repo: Path | None = None
    targets: tuple[str, ...] = ()
    shapes: str = "quick"
    budget: float = BUDGET_SECONDS
    max_regression: float | None = None
    device: str = "cpu"
    host: str | None = None
    cases_from: tuple[Path, ...] = ()
    force: bool = False
    execute_same: bool = False
    cache: Path | None = None
    command: str = ""


class BenchObserver(Protocol):
    """Is told how a bench goes."""

    def stage(self, text: str) -> None:
        """What is done now."""

    def progress(self, settled: int, comparisons: int, layout: int) -> None:
        """How many comparisons are settled, and how many layouts were measured."""


class Silent:
    """An observer that shows nothing."""

    def stage(self, text: str) -> None:
        pass

    def progress(self, settled: int, comparisons: int, layout: int) -> None:
        pass


@dataclass
class _Comparison:
    """One shape of one target, base against one head, or against base again (`head` None)."""

    item: int
    target: str
    shape: int
    label: str
    axes: Mapping[str, float]
    head: int | None
    differs: bool = False
    measured: list[Measured] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    settled: bool = False
    proven: float = 0.0
    failed: str = ""
    varies: bool = True

    @property
    def spot(self) -> schedule.Spot:
        return self.target, self.shape


@dataclass
class _Bench:
    """The parts of one bench while it is under way."""

    options: BenchOptions
    observer: BenchObserver
    began: float
    scratch: Path
    base: ArmSource
    heads: list[ArmSource]
    shapes: str
    patterns: tuple[str, ...]
    untimed: list[Untimed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    timeouts: dict[str, float] = field(default_factory=dict)
    comparisons: list[_Comparison] = field(default_factory=list)
    floors: dict[tuple[str, int], _Comparison] = field(default_factory=dict)
    layouts: int = 0
    bridged: bool = False
    ended: bool = False

    @property
    def deadline(self) -> float:
        """When measuring ends, so that what is open then can still be judged within the budget."""
        return (
            self.began
            + self.options.budget
            - JUDGE_SECONDS * sum(bool(c.measured) and not c.settled for c in self.comparisons)
        )

    def spec(self, head: int) -> str:
        return self.options.heads[head]


def bench(options: BenchOptions, observer: BenchObserver | None = None) -> BenchResult:
    """Time base against each head and say which is faster.

    Raises:
        DifftestError: the request cannot be carried out; its `exit_code` is the process's.
    """
    began = time.monotonic()
    shapes, patterns = _check(options)
    cache = cache_folder(options.cache)
    with using(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        base_tree = stack.enter_context(open_tree(options.base, options.repo, cache))
        head_trees = [stack.enter_context(open_tree(head, options.repo, cache)) for head in options.heads]
        scratch = stack.enter_context(scratch_folder())
        # Both import torch while this process lifts. The one that compares poisons memory, the other does not.
        interpreter = options.device == "cpu"
        comparer = Supervisor(scratch / "compare", options.device, 1, triton_interpreter=interpreter)
        stack.callback(comparer.stop)
        timer = Supervisor(scratch / "time", options.device, 1, interpreter, "difftest.timing.worker", allocator="")
        stack.callback(timer.stop)
        base, heads = arm_sources(scratch, base_tree, head_trees, options.cache)
        state = _Bench(options, observer or Silent(), began, scratch, base, heads, shapes, patterns)
        planned = _plan(state, catalog.outline(cache, [str(path) for path in options.cases_from]))
        lifted = time.monotonic()
        if planned:
            _set_up(state, planned, comparer, timer)
            state.observer.stage("comparing outputs")
            units = _compare(state, planned, comparer)
            comparer.stop()
            compared = time.monotonic()
            _Timing(state, planned, units, timer).run()
        else:
            compared = lifted
        found, rule = _judged(state), Rule()
        limit = options.max_regression
        return BenchResult(
            base=base_tree.identity,
            heads=tuple(tree.identity for tree in head_trees),
            environment=surroundings(options.device, options.host, timer.sandbox),
            shapes=tuple(found),
            grids=tuple(judge.judge_grids(found, rule)),
            untimed=tuple(state.untimed),
            spread_limit_percent=SPREAD_LIMIT_PERCENT,
            max_regression_percent=limit,
            regressions=tuple(judge.regressions(found, limit)) if limit is not None else (),
            seconds={
                "total": round(time.monotonic() - began, 3),
                "lift": round(lifted - began, 3),
                "compare": round(compared - lifted, 3),
                "measure": round(time.monotonic() - compared, 3),
            },
            command=options.command,
            notes=tuple(dict.fromkeys(state.notes)),
        )


def _check(options: BenchOptions) -> tuple[str, tuple[str, ...]]:
    """The shape list's name, and patterns of labels to keep."""
    if not options.heads:
        raise UsageError("no head to compare with; give --head TREE")
    twice = [head for head in options.heads if options.heads.count(head) > 1]
    if twice:
        raise UsageError(f"--head {twice[0]} is given twice; results are told apart by what --head says")
    if not options.budget > 0:
        raise UsageError(f"--budget must be more than 0, not {options.budget:g}")
    if options.max_regression is not None and not 0 <= options.max_regression < 1000:
        raise UsageError(f"--max-regression must be a percentage from 0 on, not {options.max_regression:g}")
    if options.shapes in SHAPE_LISTS:
        return options.shapes, ()
    try:
        lines = Path(options.shapes).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"--shapes {options.shapes} is none of grid, quick, and no file: {reason}") from None
    patterns = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not patterns:
        raise UsageError(f"--shapes {options.shapes} names no shape; write a label or a glob of labels on each line")
    return "grid", patterns


# -- what is timed -----------------------------------------------------------------------------------------------------


def _plan(state: _Bench, outlines: Sequence[Outline]) -> list[Planned]:
    """The targets that can be timed; the others are noted with their reasons."""
    options = state.options
    planner = Planner(options.host)
    chosen = planner.select(outlines, options.targets, [state.base, *state.heads])
    refuse_without_package(chosen, [state.base, *state.heads])
    explicit = bool(options.targets) and not any(c in p for p in options.targets for c in "*?[")
    found, same, shared = [], [], False
    for outline in chosen:
        for index, head in enumerate(state.heads):
            item = planner.plan(outline, state.base, head, index)
            if item.code == "absent" and not explicit:
                continue
            shared = True
            reason, possible = item.reason, True
            if item.code == "same" and not options.execute_same:
                same.append(outline.name)
                continue
            if not reason and not outline.has_shapes:
                reason, possible = "its case file has no timing shapes", False
            if not reason and outline.triton and options.device == "cpu":
                reason = "it launches Triton kernels, which a CPU only interprets; time it with --device cuda"
                possible = False
            if reason:
                asked = possible or bool(options.targets)
                state.untimed.append(Untimed(outline.name, state.spec(index), reason, asked=asked))
                continue
            state.notes += [f"{outline.name}: {note}" for note in item.notes]
            found.append(item)
    if not shared:
        raise NothingCompared(no_target(options.targets))
    if same:
        names = list(dict.fromkeys(same))
        state.notes.append(f"same code in both versions, not timed (--all does): {_few(names)}")
    return found


def _set_up(state: _Bench, planned: Sequence[Planned], comparer: Supervisor, timer: Supervisor) -> None:
    write_closures(planned, state.base, state.heads)
    package = planned[0].outline.package
    modules = sorted({item.outline.module for item in planned})
    triton = any(item.outline.triton for item in planned)
    for supervisor in (comparer, timer):
        arms = {arm.label: arm_setup(arm, package, supervisor.scratch) for arm in (state.base, *state.heads)}
        if supervisor is timer:
            again = str(supervisor.scratch / "triton-again")
            arms[AGAIN] = {**arm_setup(state.base, package, supervisor.scratch), "triton_cache": again}
        supervisor.setup(arms, modules, triton, state.options.host)


def _compare(state: _Bench, planned: Sequence[Planned], supervisor: Supervisor) -> list[Unit]:
    """Run every shape once as a case; a unit for each planned item, in order.

    Each item that is begun in time compares one shape at least, and goes on for its part of the time for comparing.
    """
    seconds = max(0.0, COMPARE_SHARE * (state.deadline - time.monotonic()))
    arms = {arm.label: arm for arm in (state.base, *state.heads)}
    units = [
        Unit(
            number,
            item.outline.name,
            (item.base.symbol or "", item.head.symbol or ""),
            ("base", state.heads[item.head_index].label),
            (0, 1),
            item.outline.timeout,
            number,
        )
        for number, item in enumerate(planned)
    ]
    supervisor.run(
        units,
        arms,
        {
            "shapes": state.shapes,
            "shape_patterns": list(state.patterns),
            "exceptions": "message",
            "contract": "all",
            "expect": [],
            "seconds": max(seconds / len(units), 1e-3),
        },
        lambda unit, done: None,
        lambda unit: None,
        time.monotonic() + 2 * seconds,
    )
    return units


def _why_not(unit: Unit, label: str) -> tuple[str, str]:
    """How the outputs of a shape compare, and the reason when they are not identical."""
    outcomes = [outcome for (_, value, outcome), count in unit.axes.items() if value == label and count]
    if outcomes == [_OK]:
        return _OK, ""
    found = next((m for m in unit.mismatches if m["label"] == label), None)
    if "different" in outcomes:
        where = f": {found['kind']} at {found['leaf']}, base {found['base']}, head {found['head']}" if found else ""
        return "different", f"its outputs differ{where}"[:400]
    if not outcomes and (unit.counts["cut"] or not unit.began):
        return _LATE, "out of time: --budget ended before its outputs were compared"
    reasons = [text for text, _ in unit.unmeasured.most_common(1)] or unit.notes[:1]
    return "unmeasured", f"its outputs were not compared: {reasons[0] if reasons else 'the shape was not reached'}"


# -- measuring ---------------------------------------------------------------------------------------------------------


class _Timing:
    """Drives the measuring processes until all is settled or the budget ends."""

    def __init__(self, state: _Bench, planned: Sequence[Planned], units: Sequence[Unit], timer: Supervisor) -> None:
        self.state = state
        self.planned = planned
        self.units = units
        self.timer = timer
        self.arms = {AGAIN: state.base, **{arm.label: arm for arm in (state.base, *state.heads)}}
        self.selector = selectors.DefaultSelector()
        self.selector.register(timer.control.connection, selectors.EVENT_READ, True)
        self.selector.register(timer.children[0].connection, selectors.EVENT_READ, False)
        self.current: list[int] | None = None
        self.current_since = 0.0
        self.loading = 0.0
        self.at = ""
        self.ended_well = False
        self.jobs: list[_Comparison] = []

    def run(self) -> None:
        state = self.state
        with self.selector:
            self.await_child()
            self.timer.children[0].send({"list": state.shapes})
            self.lay_out(self.await_message("shapes")["shapes"])
            state.observer.stage("measuring")
            heads = [c for c in state.comparisons if c.head is not None]
            while (active := self.active()) and (not state.layouts or time.monotonic() < state.deadline):
                self.turn(active)
                state.layouts += 1
                state.observer.progress(sum(c.settled or bool(c.failed) for c in heads), len(heads), state.layouts)
            state.ended = any(not c.settled and not c.failed for c in heads)

    def lay_out(self, listed: Mapping[str, list[Any]]) -> None:
        """Make the comparisons out of targets, shapes and heads."""
        state = self.state
        matched: set[str] = set()
        for number, (item, unit) in enumerate(zip(self.planned, self.units, strict=True)):
            name, spec = item.outline.name, state.spec(item.head_index)
            state.timeouts[name] = item.outline.timeout
            label = state.heads[item.head_index].label
            symbols = [item.base.symbol, item.head.symbol]
            state.items.append({"target": name, "symbols": symbols, "arms": ["base", label]})
            kept = []
            for index, (text, axes, _) in enumerate(listed[name]):
                hits = [pattern for pattern in state.patterns if labelled(text, pattern)]
                matched.update(hits)
                if hits or not state.patterns:
                    kept.append((index, text, axes))
            if not kept:
                state.untimed.append(Untimed(name, spec, "none of its shapes was asked for"))
            reasons: dict[str, list[str]] = {}
            named = bool(state.options.targets)
            for index, text, axes in kept:
                outcome, reason = _why_not(unit, text)
                if outcome == _LATE or (outcome != _OK and not state.options.force):
                    reasons.setdefault(reason, []).append(text)
                    continue
                state.comparisons.append(
                    _Comparison(number, name, index, text, axes, item.head_index, differs=outcome != _OK)
                )
            for reason, labels in reasons.items():
                force = (
                    ""
                    if reason.startswith(("its outputs were not", "out of time"))
                    else " (--force times it all the same)"
                )
                asked = named or not reason.startswith("out of time")
                if len(labels) == len(kept) > 1:
                    state.untimed.append(Untimed(name, spec, f"every shape: {reason}{force}", asked=asked))
                else:
                    state.untimed += [Untimed(name, spec, f"{reason}{force}", text, asked) for text in labels]
        unused = [pattern for pattern in state.patterns if pattern not in matched]
        if unused:
            raise UsageError(
                f"--shapes {state.options.shapes}: no shape is called {unused[0]}; a bench with --shapes grid has all"
            )
        self.add_floors()

    def add_floors(self) -> None:
        """Base against base for every shape of every target."""
        state = self.state
        for comparison in list(state.comparisons):
            key = (comparison.target, comparison.shape)
            if key in state.floors:
                continue
            symbols = [state.items[comparison.item]["symbols"][0]] * 2
            item = {"target": comparison.target, "symbols": symbols, "arms": ["base", AGAIN]}
            if item not in state.items:
                state.items.append(item)
            floor = _Comparison(
                state.items.index(item), comparison.target, comparison.shape, comparison.label, comparison.axes, None
            )
            state.floors[key] = floor
            state.comparisons.append(floor)

    def active(self) -> list[_Comparison]:
        """What the next process is to measure; base against base only as far as it is needed."""
        every = [c for c in self.state.comparisons if not c.settled and not c.failed]
        heads = {(c.target, c.shape) for c in every if c.head is not None}
        return [c for c in every if c.head is not None or (c.target, c.shape) in heads] if heads else []

    def turn(self, active: Sequence[_Comparison]) -> None:
        """One process: what is under way, once, and as much of the rest as there is time for."""
        state = self.state
        left = state.deadline - time.monotonic()
        begun = {
            spot: schedule.Begun(min(len(c.measured) for c in mine), _seconds(mine))
            for spot in dict.fromkeys(c.spot for c in active if c.measured)
            if (mine := [c for c in active if c.spot == spot])
        }
        waiting = schedule.in_turn(dict.fromkeys(c.spot for c in active if c.spot not in begun))
        if waiting:
            begun = {spot: had for spot, had in begun.items() if had.layouts < schedule.PLANNED_LAYOUTS}
        under_way = schedule.affordable(left, begun, self.loading)
        random.Random(state.layouts).shuffle(under_way)
        least = schedule.least(left)
        spare = max(least, schedule.spare(left, begun, self.loading))
        measured = {c.spot for c in state.comparisons if c.measured}
        known = {spot: _seconds(c for c in state.comparisons if c.spot == spot) for spot in measured}
        shapes = [*under_way, *schedule.offered(waiting, spare, known, {t for t, _ in begun}, self.loading)] or waiting[
            :1
        ]
        place = {shape: n for n, shape in enumerate(shapes)}
        # Base against base comes before the heads of its shape, whose verdicts rest on it.
        self.jobs = sorted((c for c in active if c.spot in place), key=lambda c: (place[c.spot], c.head is not None))
        quads = functools.partial(schedule.quads, state.options.device)
        request = {
            "turn": state.layouts,
            "shapes": state.shapes,
            "items": state.items,
            "jobs": [[c.item, c.shape, quads(c.measured, len(state.floors), len(self.jobs))] for c in self.jobs],
            "under_way": sum(c.spot in begun for c in self.jobs),
            "spare": spare,
            "least": least,
            "seconds": JOB_SECONDS[state.options.device],
            "deadline": state.deadline,
            "agree": {c.target: not any(d.differs for d in active if d.target == c.target) for c in active},
            "bridge": state.bridged,
        }
        if state.layouts:
            self.await_child()
        self.current = None
        began, measuring = time.monotonic(), sum(sum(c.seconds) for c in self.jobs)
        self.timer.children[0].send(request)
        self.collect()
        measuring = sum(sum(c.seconds) for c in self.jobs) - measuring
        targets = len({comparison.target for comparison in self.jobs})
        self.loading = max(0.0, time.monotonic() - began - measuring) / targets

    def collect(self) -> None:
        """Take what the process sends until it has ended, whatever ends it."""
        self.at, self.ended_well = "", False
        while True:
            limit = SILENT_SECONDS + self.state.timeouts.get(self.at, 0.0)
            source, messages = self.read(limit)
            if source is None:
                with contextlib.suppress(ProcessLookupError, KeyError):
                    os.kill(self.timer.pids[0], signal.SIGKILL)
                self.lost(f"no call of it ended within {limit:.0f} s")
                source, messages = self.read(limit)
            try:
                if self.handle(messages):
                    return
            except (KeyError, TypeError, ValueError, StopIteration, IndexError) as error:
                raise DifftestError(
                    f"code under test writes to the channel of the harness ({type(error).__name__}); nothing is claimed"
                ) from None

    def handle(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Take messages; True once the process has ended."""
        for message in messages:
            if "begins" in message:
                self.current = message["begins"]
                self.current_since = time.monotonic()
                self.at = self.state.items[message["begins"][0]]["target"]
            elif "measured" in message:
                self.take(message)
            elif "failed" in message:
                self.comparison(message["failed"]).failed = message["reason"]
                self.current = None
            elif "spoiled" in message:
                self.spoiled(message["spoiled"], message["reason"])
            elif "bridged" in message:
                self.state.bridged = True
            elif "done" in message:
                self.current = None
                self.ended_well = True
                self.finish(message)
            elif "find" in message or "read" in message:
                self.timer.children[0].send({"answer": answer(self.arms, message)})
            elif "died" in message:
                self.lost(f"the process {status_text(message['status'])}")
                if not self.ended_well:
                    raise DifftestError(f"a measuring process failed: {self.timer.last_words(0)}; run it again")
                self.timer.children[0].drain()
                self.timer.control.send({"again": True})
                return True
            elif "failed_to_start" in message:
                raise DifftestError(f"the measuring process cannot start: {message['failed_to_start']}")
        return False

    def read(self, seconds: float) -> tuple[bool | None, list[dict[str, Any]]]:
        """Messages of the child, or when it sent none, of its parent; None after so many seconds of silence."""
        ready = [key.data for key, _ in self.selector.select(seconds)]
        if not ready:
            return None, []
        control = False not in ready
        channel = self.timer.control if control else self.timer.children[0]
        try:
            messages = channel.arrived()
        except (EOFError, ConnectionError):
            raise DifftestError(f"the measuring process ended: {self.timer.last_words()}; run it again") from None
        except ValueError as error:
            raise DifftestError(f"code under test writes to the channel of the harness: {error}") from None
        if control:
            messages = [{"failed_to_start": m["failed"]} if "failed" in m else m for m in messages]
        return control, messages

    def await_child(self) -> None:
        message = self.await_message("hello")
        self.timer.pids[0], self.timer.sandbox = message["hello"], message["sandbox"]

    def await_message(self, key: str) -> dict[str, Any]:
        while True:
            source, messages = self.read(SILENT_SECONDS)
            if source is None or any("died" in m for m in messages):
                raise DifftestError(f"the measuring process does not begin: {self.timer.last_words(0)}; run it again")
            for message in messages:
                if "failed_to_start" in message:
                    raise DifftestError(f"the measuring process cannot start: {message['failed_to_start']}")
                if key in message:
                    return message

    def comparison(self, job: Sequence[int]) -> _Comparison:
        return next(c for c in self.jobs if [c.item, c.shape] == list(job))

    def take(self, message: Mapping[str, Any]) -> None:
        comparison = self.comparison(message["measured"])
        comparison.seconds.append(time.monotonic() - self.current_since)
        self.current = None
        comparison.varies = message["varies"]
        pairs = tuple(Pair(base, head, head_first) for base, head, head_first in message["pairs"])
        labels = self.state.items[comparison.item]["arms"]
        loaded_first = "head" if self.state.layouts % 2 else "base"
        if labels[1] == AGAIN:
            loaded_first = "base"
        comparison.measured.append(
            Measured(self.state.layouts, loaded_first, pairs, Conditions(**message["conditions"]))
        )
        self.settle(comparison)  # while the process measures the next one

    def finish(self, message: Mapping[str, Any]) -> None:
        if message["strangers"]:
            raise DifftestError(
                f"code of another arm was reached through {message['strangers'][0]}; nothing is claimed"
            )
        for label, notes in message["notes"].items():
            if label != AGAIN:
                self.state.notes += [f"{label}: {note}" for note in notes]

    def spoiled(self, label: str, reason: str) -> None:
        """An arm is not timed any more; base takes every comparison with it."""
        for comparison in self.state.comparisons:
            if label in self.state.items[comparison.item]["arms"] or label == AGAIN:
                comparison.failed = comparison.failed or f"{'base' if label == AGAIN else label}: {reason}"

    def lost(self, reason: str) -> None:
        """The process ended or hung; what it was at is not timed any more."""
        if self.current is None:
            return
        item, shape = self.current
        self.current = None
        for comparison in self.jobs:
            if comparison.item == item and shape in (comparison.shape, -1):
                comparison.failed = comparison.failed or reason
                self.ended_well = True  # its end is accounted for

    def settle(self, comparison: _Comparison) -> None:
        """Decide if that can be done; nothing is looked at but at :data:`LOOKS` layouts."""
        count = len(comparison.measured)
        if comparison.head is None:
            comparison.settled = count >= FLOOR_LAYOUTS
            if comparison.settled:
                comparison.proven = judge.estimate_of(comparison.measured).proven
        elif count in LOOKS:
            floor = self.state.floors[comparison.target, comparison.shape]
            rule = Rule().above(floor.proven)
            comparison.settled = count == LOOKS[-1] or judge.settled(comparison.measured, rule) is not None


def _seconds(comparisons: Iterable[_Comparison]) -> float:
    """What one layout of them all takes; of those not measured yet, nothing is known."""
    return sum(sum(c.seconds) / len(c.seconds) for c in comparisons if c.seconds)


# -- what it adds up to ------------------------------------------------------------------------------------------------


def _judged(state: _Bench) -> list[ShapeResult]:
    found = []
    same_contents = []
    comparisons = [c for c in state.comparisons if c.head is not None]
    for comparison in comparisons:
        assert comparison.head is not None
        spec = state.spec(comparison.head)
        if comparison.failed or not comparison.measured:
            reason = comparison.failed or "the time budget ended before it was timed; give --budget SECONDS"
            asked = bool(comparison.failed or state.options.targets)
            state.untimed.append(Untimed(comparison.target, spec, reason, comparison.label, asked))
            continue
        if not comparison.varies:
            same_contents.append(comparison.target)
        found.append(
            judge.judge_shape(
                comparison.target,
                comparison.label,
                spec,
                comparison.axes,
                comparison.measured,
                floor=state.floors[comparison.target, comparison.shape].measured,
                differs=comparison.differs,
            )
        )
    if same_contents:
        names = _few(list(dict.fromkeys(same_contents)))
        state.notes.append(
            f"every call got inputs of its own with the same contents, so caches by content help: {names}"
        )
    if state.bridged:
        state.notes.append("plain memory stood for pinned memory, since there is no accelerator")
    if state.ended:
        open_ = sum(not c.settled and not c.failed for c in comparisons)
        state.notes.append(
            f"the time budget of {state.options.budget:g} s ended with {open_} of {len(comparisons)} comparisons open"
        )
    return judge.corrected(found)


def _few(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
