"""A unit of work that fuzzes: cases are drawn by Hypothesis, a difference is made small, then reported.

What an earlier run into the same output folder found comes first, from its bytes: they stay the same case when axes and
strategies change, which Hypothesis's own record of choices does not.

Every call of the condition that Hypothesis searches with has a number. What the condition said is told to the
supervisor, so that the child that follows one that crashed draws the same cases again and takes up where it ended.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hypothesis import Phase, find, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import Flaky, FlakyFailure, HypothesisException, NoSuchExample, Unsatisfiable
from hypothesis.internal.conjecture import providers

from difftest.call.outcome import NotCalled, Outcome
from difftest.call.values import case_id, has_large
from difftest.compare.outcomes import Difference
from difftest.errors import UsageError
from difftest.record.casefile import read_case, write_case
from difftest.result import Kind
from difftest.run.unit import UnitRun, root_of
from difftest.shrink.groups import found_file
from difftest.target import Case, Pool

EXAMPLES = 400
"""Cases of a target when neither a time nor a number is given."""
MOST_EXAMPLES = 1_000_000
MOST_FOUND = 4
"""Kinds of difference that are sought in one target; the cases that show the same again are only counted."""
_REPEATS = 8
"""Hypothesis may draw so many times the cases that are run: it repeats itself."""
SHRINK_SECONDS = 10.0
"""How long a case is made smaller, less where the budget ends before."""

Signature = tuple[str, str]
"""Kind of a difference and where it is: what must stay the same while a case is made smaller."""


class _Enough(KeyboardInterrupt):
    """Ends a search: Hypothesis lets this one through at once."""


class _Attempt(NamedTuple):
    case: Case
    pool: Pool
    signature: Signature


def same_everywhere() -> None:
    """Have Hypothesis draw the same on every machine: by itself it favours numbers of modules that it takes to be the
    user's own, and which those are depends on how this package is installed."""
    if hasattr(providers.HypothesisProvider, "_local_constants"):
        none = providers.Constants()  # type: ignore[attr-defined]
        providers.HypothesisProvider._local_constants = property(lambda self: none)  # type: ignore[assignment]


class FuzzRun(UnitRun):
    """Runs the fuzz of one target. Of the unit, `memory` holds what an earlier child found out: `hits` (number of a
    case that differed -> kind and place), `cuts` (numbers at which time ran out), `began` (monotonic seconds)."""

    def __init__(self, child: Any, unit: dict[str, Any]) -> None:
        super().__init__(child, unit)
        same_everywhere()
        memory = unit["memory"]
        self.hits: dict[int, Signature] = {int(k): (str(v[0]), str(v[1])) for k, v in memory.get("hits", {}).items()}
        self.cuts: set[int] = set(memory.get("cuts", ()))
        self.began: float = memory.get("began", time.monotonic())
        self.database = InMemoryExampleDatabase()
        self.dead = {int(index): value for index, value in unit["dead"].items()}
        self.recursion = sys.getrecursionlimit()
        self.number = 0
        self.most = self.options.get("examples") or (MOST_EXAMPLES if self.options.get("seconds") else EXAMPLES)
        self.searched = 0
        self.seen: set[str] = set()
        self.known: set[Signature] = set()
        self.seeking: Signature | None = None
        self.best: _Attempt | None = None
        self.shrink_began = 0.0
        self.shrunk = 0
        self.found: list[Difference] = []
        self.due: Iterator[bool] = child.timed_flush()

    def _run(self) -> None:
        from difftest.cases.strategies import Numbers, of_target

        self.child.prove(self.target.triton, self.caller)
        self.child.board.enter(self.child.slot, self.child.pid, self.unit["number"], -1, 0)
        self.child.board.begin(self.child.slot)
        strategy = of_target(self.target, Numbers(*self.unit["fuzz"]["numbers"]))
        if strategy is None:
            self.counts["no_strategy"] += 1
            self.run_kept()
            self.flush(None)
            return
        self.run_kept()
        rounds = 0
        while self.searched < self.most and rounds < MOST_FOUND:
            key = f"{self.target.name} {rounds}"
            try:
                self.search(strategy, key)
            except _Enough:
                if self.best is None:
                    break
            if self.best is None:
                break
            self.report(self.best)
            rounds += 1
        if not self.spoiled(self.replaced()):
            self.flush(None)

    def run_kept(self) -> None:
        """Run what earlier runs found; what it shows again need not be sought. It does not count towards a number of
        examples."""
        for file in self.unit["fuzz"]["kept"]:
            number, self.number = self.number, self.number + 1
            if (until := self.unit["until"]) is not None and number >= until:
                return
            case = read_case(Path(file)).case()
            pool = case.build()
            identity = case_id(self.target.name, pool)
            self.seen.add(identity)
            if number < self.unit["start"]:
                signature = self.remembered(number, case, pool)
            else:
                signature = self.look(number, case, pool, identity)
            if signature is not None:
                self.hits[number] = signature
                self.report(_Attempt(case, pool, signature))
            elif number >= self.unit["start"] and next(self.due) and not self.spoiled(self.replaced()):
                self.flush(self.number)

    def search(self, strategy: Any, key: str) -> None:
        """Search until a case differs as none did before, and make that smaller; the result is `self.best`."""
        self.seeking, self.best, self.shrunk = None, None, 0
        try:
            find(
                strategy,
                self.condition,
                settings=settings(
                    database=self.database,
                    max_examples=_REPEATS * self.most,
                    deadline=None,
                    phases=(Phase.reuse, Phase.generate, Phase.shrink),
                ),
                random=Random(f"{self.options.get('seed', 0)} {key}"),
                database_key=key.encode(),
            )
        except (NoSuchExample, Unsatisfiable):
            pass
        except Flaky as flaky:  # what was found once stays found
            for error in flaky.exceptions if isinstance(flaky, FlakyFailure) else ():
                if not isinstance(error, HypothesisException):  # the search failed, not the code that it looks at
                    raise error from None

    def condition(self, case: Case) -> bool:
        """Whether a drawn case is what is sought: a difference of a new kind, or the one that is being made small."""
        try:
            pool = case.build()
        except (MemoryError, HypothesisException):
            raise
        except Exception as error:
            if self.seeking is None:
                self.not_built(case, error)
            return False
        number, self.number = self.number, self.number + 1
        if (until := self.unit["until"]) is not None and number >= until:
            raise _Enough
        past = number < self.unit["start"]
        if number in self.cuts or (not past and self.out_of_time()):
            self.cuts.add(number)
            raise _Enough
        identity = ""
        if self.seeking is None:
            identity = case_id(self.target.name, pool)
            if identity in self.seen:  # Hypothesis likes to repeat parts of what it drew before
                return False
            if self.searched == self.most:
                raise _Enough
            self.seen.add(identity)
            self.searched += 1
        if past:
            signature = self.remembered(number, case, pool)
        elif self.seeking is None:
            signature = self.look(number, case, pool, identity)
        else:
            signature = self.look_again(number, case, pool)
        if self.seeking is None:
            wanted = signature is not None
        else:
            # A case inside the contract is not given up for a smaller one outside it.
            assert self.best is not None
            wanted = signature == self.seeking and case.contract >= self.best.case.contract
        if wanted:
            assert signature is not None
            if self.seeking is None:
                self.seeking, self.shrink_began = signature, time.monotonic()
            self.hits[number] = signature
            self.best = _Attempt(case, pool, signature)
        if not past and next(self.due):
            if self.spoiled(self.replaced()):
                raise _Enough
            self.flush(self.number)
        return wanted

    def remembered(self, number: int, case: Case, pool: Pool) -> Signature | None:
        """What an earlier child found of this case."""
        signature = self.hits.get(number)
        if signature is not None and number in self.dead:
            self.report(_Attempt(case, pool, signature), "reported")
            return None
        return signature

    def out_of_time(self) -> bool:
        now = time.monotonic()
        budget = self.options.get("seconds")
        late = budget is not None and now - self.began > budget
        if self.seeking is not None:  # a case that was found is made a little smaller in any case
            return now - self.shrink_began > (1.0 if late else SHRINK_SECONDS)
        if late:
            self.counts["cut"] += 1
        return late

    def look(self, number: int, case: Case, pool: Pool, identity: str) -> Signature | None:
        """Run a drawn case; the signature of its difference when there is none like it yet."""
        if has_large(pool) or self.options.get("contract") == ("outside" if case.contract else "inside"):
            return None
        self.found, self.earlier = [], None
        self.one(number, case, pool, identity, self.dead.get(number))
        self.child.board.begin(self.child.slot)
        self.sources["fuzz"] += 1
        self.counts["outside"] += not case.contract
        self.count_axes(case)
        if not self.found:
            return None
        signature = _signature(self.found)
        if signature in self.known:
            self.counts["different"] += 1
            self.counts["outside_contract"] += not case.contract
            self.counts["mismatches"] += len(self.found)
            self.kinds.update(str(item.kind) for item in self.found)
            return None
        if number in self.dead:
            # Each smaller case would cost another process; it is kept as it was found.
            self.hits[number] = signature
            self.counts.subtract({"executed": 1, "outside": not case.contract})
            self.report(_Attempt(case, pool, signature), identity)
            return None
        self.counts.subtract({"executed": 1, "outside": not case.contract})  # its smallest form is what counts
        return signature

    def look_again(self, number: int, case: Case, pool: Pool) -> Signature | None:
        """Run a smaller case, of which nothing is counted."""
        if number in self.dead or has_large(pool):
            return None
        self.shrunk += 1
        kept = self.counts, self.unmeasured, self.expected_used, self.sources
        self.counts, self.unmeasured, self.expected_used, self.sources = Counter(), Counter(), Counter(), Counter()
        self.found, self.earlier = [], None
        try:
            self.one(number, case, pool, case_id(self.target.name, pool), None)
        finally:
            self.counts, self.unmeasured, self.expected_used, self.sources = kept
        self.child.board.begin(self.child.slot)
        return _signature(self.found) if self.found else None

    def call(self, index: int, arm: int, case: Case, pool: Pool, fill: int) -> Outcome | NotCalled:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(self.recursion)  # Hypothesis moves it with the depth of the stack
        try:
            return super().call(index, arm, case, pool, fill)
        finally:
            sys.setrecursionlimit(limit)

    def differs(self, index: int, case: Case, identity: str, found: list[Difference]) -> None:
        if self.expected and self.is_expected(case, identity, found):
            self.counts["expected"] += 1
            return
        self.found = found

    def report(self, attempt: _Attempt, identity: str = "") -> None:
        """Report a case that differs, as small as it got."""
        self.known.add(attempt.signature)
        number, self.number = self.number, self.number + 1
        if number < self.unit["start"]:
            return
        if not identity:
            identity = case_id(self.target.name, attempt.pool)
            self.found, self.earlier = [], None
            kept = self.counts, self.unmeasured
            self.counts, self.unmeasured = Counter(), Counter()
            try:
                self.one(number, attempt.case, attempt.pool, identity, self.dead.get(number))
            finally:
                self.counts, self.unmeasured = kept
            self.child.board.begin(self.child.slot)
        found = self.found or [Difference(Kind.VALUE, "return", "the same each time", "not the same each time")]
        self.counts.update({"executed": 1, "outside": not attempt.case.contract})
        super().differs(number, attempt.case, identity, found)
        if self.options.get("keep"):  # it is in no list, so who wants to run it again needs it as bytes
            with contextlib.suppress(UsageError):
                write_case(found_file(self.child.home, identity), self.target.name, attempt.case, attempt.pool)
        if self.shrunk:
            steps = "1 step" if self.shrunk == 1 else f"{self.shrunk} steps"
            self.notes.append(f"fuzz: a case that differs was made smaller in {steps}")
        self.flush(self.number)

    def count_axes(self, case: Case) -> None:
        outcome = "different" if self.found else "identical"
        for axis, value in case.axes.items():
            self.axes[axis, str(value), outcome] += 1

    def more(self) -> dict[str, Any]:
        return {"memory": {"hits": self.hits, "cuts": sorted(self.cuts), "began": self.began}}


def _signature(found: list[Difference]) -> Signature:
    return str(found[0].kind), root_of(found[0].leaf)
