"""The pass after a target differs: in a child, cases are run again to see what tells the differing ones apart.

Nothing here bears on the verdict; what the compared calls did is known by then.
"""

from __future__ import annotations

import linecache
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from difftest.call.outcome import NotCalled, Outcome
from difftest.call.poison import fills
from difftest.call.values import case_id
from difftest.explain.groups import in_common
from difftest.result import GROUP_LINES
from difftest.run.chance import Chance
from difftest.run.protocol import ARM_NAMES, BASE, CHANCE, EXECUTED, HEAD, LINES
from difftest.run.unit import UnitRun
from difftest.target import Arm, Call, Case, Pool, Target

if TYPE_CHECKING:
    from difftest.call.lines import LineRecorder

_CASES_TRACED = 2
_ALIKE_NEAR, _ALIKE_FAR = 4, 4
"""Identical cases that are traced: those that have most in common with a differing one, and some of all others."""
_CHUNK = 64
"""Identical cases that are traced before a look at what they have run."""
_WALL = 2.0
"""Times the processor time that a look at identical cases may take."""
_TRACE_SHARE = 0.4
"""Of the time allowed."""

Around = Callable[[Callable[..., Any]], Callable[..., Any]]


class Explanation:
    """Looks into one target, base against one head, and sends what it finds as it finds it.

    What ended the process in an earlier look is left out (the unit's `dead`).

    The unit's `explain`: `groups` (case indices of each group, those inside the contract first), `places` (of each
    group kinds and leaves), `alike` and `unclear` (indices of identical and of unmeasured cases), `lines` (per arm and
    path the lines to watch), `added` (per path the lines only head has), `looks` (which of :data:`protocol.LOOKS` to
    take), `seconds`: of processor time for all looks, so that what is found does not depend on what else the machine
    does. Of an identical target, whose look is `EXECUTED`: `lines`, `seconds`, and `cases`, indices of what to look at.
    """

    clock = staticmethod(time.process_time)

    def __init__(self, unit: UnitRun) -> None:
        self.unit = unit
        self.asked: dict[str, Any] = unit.unit["explain"]
        self.target = unit.target
        self.cases = unit.cases()
        self.dead = {int(index) for index in unit.unit["dead"]}
        self.groups = [[i for i in group if i not in self.dead] for group in self.asked.get("groups", ())]
        unit.caller.recorder = nullcontext()
        self.ends = self.clock() + self.asked["seconds"]
        self.recorders: dict[int, LineRecorder] = {}
        self.raised_at: list[tuple[str, str]] = []

    def run(self) -> None:
        try:
            if EXECUTED in self.asked["looks"]:
                self.execute()
            elif LINES in self.asked["looks"]:
                self.rules()
                self.trace()
            elif self.traces():
                self.ends -= _TRACE_SHARE * self.asked["seconds"]
            if CHANCE in self.asked["looks"]:
                Chance(self).run()
        finally:
            self.send({}, done=True)

    def send(self, parts: dict[str, Any], done: bool = False) -> None:
        self.unit.child.channel.send({"explained": self.unit.unit["number"], "parts": parts, "done": done})

    # -- what the cases have in common ----------------------------------------------------------------------------

    def rules(self) -> None:
        alike = [self.cases[index].axes for index in self.asked["alike"]]
        unclear = [self.cases[index].axes for index in self.asked["unclear"]]
        found = [
            in_common([self.cases[i].axes for i in group], alike, unclear, sum(self.cases[i].contract for i in group))
            for group in self.asked["groups"]
        ]
        conditions = [[each.condition] if each.condition else [] for each in found]
        self.send({"rules": [each.rules for each in found], "conditions": conditions})

    # -- which changed lines they run -----------------------------------------------------------------------------

    def traces(self) -> bool:
        """Whether there are lines to watch, and something to watch them with."""
        return any(self.asked["lines"][arm] for arm in ARM_NAMES) and find_spec("coverage") is not None

    def trace(self) -> None:
        """Run a few differing cases of each group, and identical ones that are like them, with a tracer on."""
        if not self.traces():
            return
        self.watch()
        ends = min(self.ends, self.clock() + _TRACE_SHARE * self.asked["seconds"])
        ran: dict[str, dict[str, dict[int, set[str]]]] = {name: {} for name in ARM_NAMES}
        groups: list[list[set[str]]] = [[] for _ in self.groups]
        raised: list[dict[str, str]] = [{} for _ in groups]
        apart: set[str] = set()
        traced = {"differing": 0, "identical": 0}
        for index, group in self._to_trace():
            if self.clock() > ends:
                break
            who = "identical" if group is None else "differing"
            seen: dict[int, dict[str, set[int]]] = {}
            places: dict[str, str] = {}
            for arm in (HEAD, BASE):
                lines = self.lines_run(index, arm)
                if lines is not None:
                    seen[arm] = lines
                    places |= {f"{ARM_NAMES[arm]} {place}": text for place, text in self.raised_at}
            if group is not None:
                raised[group] |= places
            if HEAD not in seen:
                continue
            traced[who] += 1
            for arm, files in seen.items():
                for path, numbers in files.items():
                    marks = ran[ARM_NAMES[arm]].setdefault(path, {})
                    for number in numbers:
                        marks.setdefault(number, set()).add(who)
            added = {
                f"{path}:{number}"
                for path, numbers in seen[HEAD].items()
                for number in numbers & set(self.asked["added"].get(path, ()))
            }
            if group is None:
                apart |= added
            else:
                groups[group].append(added)
        each_ran = [set.intersection(*each) if each else set() for each in groups]
        only = [ran - apart if traced["identical"] else set() for ran in each_ran]
        shared = [set() if own else ran for own, ran in zip(only, each_ran, strict=True)]
        self.send(
            {
                "traced": traced,
                "ran": {
                    arm: {path: [[n, _who(marks)] for n, marks in lines.items()] for path, lines in files.items()}
                    for arm, files in ran.items()
                },
                "lines": [sorted(lines, key=_by_line)[:GROUP_LINES] for lines in only],
                "raised": [sorted(places) for places in raised],
                "raising": [[places[place] for place in sorted(places)] for places in raised],
                "shared_lines": [sorted(lines, key=_by_line)[:GROUP_LINES] for lines in shared],
            }
        )

    def watch(self) -> None:
        from difftest.call.lines import LineRecorder

        arms = self.unit.child.setup["arms"]
        self.recorders = {arm: LineRecorder([arms[self.unit.unit["arms"][arm]]["folder"]]) for arm in (BASE, HEAD)}

    def _to_trace(self) -> list[tuple[int, int | None]]:
        """Case indices with their group (None: identical), so ordered that a cut leaves some of each."""
        first = [(group[0], number) for number, group in enumerate(self.groups) if group]
        more = [(i, n) for n, group in enumerate(self.groups) for i in group[1:_CASES_TRACED]]
        like = self.cases[first[0][0]].axes if first else {}
        identical = [i for i in self.asked["alike"] if i not in self.dead]
        near = sorted(identical, key=lambda i: -sum(self.cases[i].axes.get(a) == v for a, v in like.items()))
        far = near[_ALIKE_NEAR:][:: max(1, (len(near) - _ALIKE_NEAR) // _ALIKE_FAR)]
        alike: list[tuple[int, int | None]] = [(i, None) for i in (*near[:_ALIKE_NEAR], *far[:_ALIKE_FAR])]
        return [*first[:1], *alike[:2], *first[1:4], *alike[2:], *more[:4], *first[4:]]

    def lines_run(self, index: int, arm: int) -> dict[str, set[int]] | None:
        """The watched lines that one arm's call runs, and making what it is given, by path; None when the case does not
        come to a call."""
        watched: dict[str, list[int]] = self.asked["lines"][ARM_NAMES[arm]]
        folder = self.unit.child.setup["arms"][self.unit.unit["arms"][arm]]["folder"]
        self.raised_at = []
        recorder = self.recorders[arm]
        recorder.restart()

        def around(function: Callable[..., Any]) -> Callable[..., Any]:
            def traced(*args: Any, **kwargs: Any) -> Any:
                try:
                    with recorder:
                        return function(*args, **kwargs)
                except BaseException as error:
                    self.raised_at = _raised_at(error, f"{folder}/")
                    raise

            return traced

        if isinstance(self.call(index, arm, around, recorder), NotCalled):
            return None
        return {path: set(lines) & set(watched[path]) for _, path, lines in recorder.take() if path in watched}

    # -- which changed lines no case runs --------------------------------------------------------------------------

    def execute(self) -> None:
        """Run identical cases, each unlike those before it, with a tracer on, until all that is watched has run."""
        if not self.traces():
            return
        if self.unit.child.called:  # what runs once, when it is loaded or asked for first, has run there
            self.unit.child.channel.send({"again": self.unit.unit["number"]})
            self.unit.child.exit(0)
        self.watch()
        gives_up = time.monotonic() + _WALL * self.asked["seconds"]
        left = {
            arm: {p: set(lines) for p, lines in self.asked["lines"][ARM_NAMES[arm]].items()} for arm in (HEAD, BASE)
        }
        ran: dict[str, dict[str, list[int]]] = {name: {} for name in ARM_NAMES}
        cases = list(varied(self.asked["cases"], [self.cases[i].axes for i in self.asked["cases"]]))
        looked = 0
        while looked < len(cases) and any(some for files in left.values() for some in files.values()):
            if self.clock() > self.ends or time.monotonic() > gives_up:
                break
            chunk = cases[looked : looked + min(looked + 1, _CHUNK)]  # to ask what ran takes a while
            for arm in (HEAD, BASE):
                if any(left[arm].values()):
                    for path, numbers in self.lines_of(chunk, arm).items():
                        ran[ARM_NAMES[arm]].setdefault(path, []).extend(sorted(numbers & left[arm][path]))
                        left[arm][path] -= numbers
            looked += len(chunk)
        self.send({"executed": ran, "looked": looked})

    def lines_of(self, cases: Sequence[int], arm: int) -> dict[str, set[int]]:
        """The watched lines that one arm's calls of some cases run, and making what they are given, by path."""
        recorder = self.recorders[arm]
        recorder.restart()

        def around(function: Callable[..., Any]) -> Callable[..., Any]:
            def traced(*args: Any, **kwargs: Any) -> Any:
                with recorder:
                    return function(*args, **kwargs)

            return traced

        for index in cases:
            self.call(index, arm, around, recorder)
        watched: dict[str, list[int]] = self.asked["lines"][ARM_NAMES[arm]]
        return {path: set(lines) & set(watched[path]) for _, path, lines in recorder.take() if path in watched}

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(self, index: int, arm: int, around: Around, preparing: AbstractContextManager[Any]) -> Outcome | NotCalled:
        """A call of one case in one arm with something around the function that is called, and around what precedes."""
        case = self.cases[index]
        return self.call_pool(index, arm, case, case.build(), around, preparing)

    def call_pool(
        self,
        index: int,
        arm: int,
        case: Case,
        pool: Pool,
        around: Around,
        preparing: AbstractContextManager[Any] | None = None,
    ) -> Outcome | NotCalled:
        if index in self.dead:
            return NotCalled("it ended the process before")
        unit = self.unit
        unit.target = _wrapped(self.target, unit.unit["symbols"][arm], around, preparing or nullcontext())
        try:
            return unit.call(index, arm, case, pool, fills(case_id(self.target.name, pool))[0])
        finally:
            unit.target = self.target
            unit.child.board.begin(unit.child.slot)


def _wrapped(target: Target, symbol: str, around: Around, preparing: AbstractContextManager[Any]) -> Target:
    """The target with something around each call, and around making what it is given."""

    def prepare(arm: Arm, pool: Pool) -> Call:
        with preparing:
            if target.prepare is not None:
                call = target.prepare(arm, pool)
            else:
                function = arm.get(symbol)
                call = Call(function, kwargs=arm.bind(function, pool))
        return replace(call, fn=around(call.fn))

    return replace(target, prepare=prepare)


def _raised_at(error: BaseException, folder: str) -> list[tuple[str, str]]:
    """The last line of the arm that an exception passed through, `path:line`, and its text, if it passed through one;
    where others' code raised it from another exception, as Triton's interpreter does, of that one."""
    while error.__cause__ is not None and not _is_raised_in(error, folder):
        error = error.__cause__
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if file.startswith(folder)]
    return [(f"{file.removeprefix(folder)}:{line}", linecache.getline(file, line).strip()) for file, line in own[-1:]]


def _is_raised_in(error: BaseException, folder: str) -> bool:
    last = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    return bool(last) and last[0].startswith(folder)


def varied(cases: Sequence[int], axes: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """The cases, each time one that has most of what none before it had; where none has any, in their order."""
    left = {case: {(name, str(value)) for name, value in of.items()} for case, of in zip(cases, axes, strict=True)}
    seen: set[tuple[str, str]] = set()
    while left:
        chosen = max(left, key=lambda case: len(left[case] - seen))
        new = left.pop(chosen) - seen
        yield chosen
        seen |= new
        if not new:
            break
    yield from left


def _who(marks: set[str]) -> str:
    return "both" if len(marks) > 1 else next(iter(marks))


def _by_line(place: str) -> tuple[str, int]:
    path, _, number = place.rpartition(":")
    return path, int(number)


__all__: Sequence[str] = ("Explanation",)
