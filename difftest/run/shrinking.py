"""A unit of work in a child: one differing case, made small while it differs in the same way.

A candidate may end the child. What was decided before is in a journal, which the next child reads back: the passes are
deterministic, so it comes to the same candidate again, whose verdict then is how the child ended.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from difftest.call.outcome import NotCalled, Outcome, is_environment
from difftest.call.poison import fills
from difftest.call.values import case_id
from difftest.compare.outcomes import compare
from difftest.errors import DifftestError
from difftest.record.casefile import read_case, write_case
from difftest.result import Kind
from difftest.run.protocol import BASE, HEAD
from difftest.run.relations import Live, RelationChecks
from difftest.run.unit import UnitRun
from difftest.shrink.reduce import OutOfTimeError, Reducer, requests
from difftest.shrink.tree import copied, largest_axis, pool_bytes
from difftest.target import Case, Pool

DEADLY = (Kind.CRASH, Kind.TIMEOUT)
_FULL = (*DEADLY, Kind.UNDEFINED, Kind.INVARIANT, Kind.ALIAS)  # not to be seen in one call of each arm
_INDEX = re.compile(r"\[-?\d+\]")


class ShrinkRun(UnitRun):
    """Reduces one case. The unit's `task`: `index` or `file`, `case`, `kind`, `leaf`, `position`, `seconds`,
    `folder`."""

    def _run(self) -> None:
        self.task = self.unit["task"]
        self.folder = Path(self.task["folder"])
        self.folder.mkdir(exist_ok=True)
        self.dead = {int(index): value for index, value in self.unit["dead"].items()}
        self.candidates = 0
        self.expected = []
        self.child.prove(self.target.triton, self.caller)
        self.child.board.enter(self.child.slot, self.child.pid, self.unit["number"], -1, BASE)
        self.child.board.begin(self.child.slot)
        file = self.task["file"]  # of a case that a fuzz drew
        self.original = read_case(Path(file)).case() if file else self.cases()[self.task["index"]]
        pool = self.original.build()
        if case_id(self.target.name, pool) != self.task["case"]:
            self.report(pool, "the case is not the same when it is built again")
            return
        self.raised: list[str | None] | None = None
        self.rows = False
        self.arm: int | None = None
        self.whole = True
        self.seen: dict[str, Any] | None = None
        self.read_journal()
        try:
            write_case(self.folder / "original.safetensors", self.target.name, self.original, pool)
            read_case(self.folder / "original.safetensors")
        except DifftestError as error:  # lazily reserved memory, or a value that is no bytes
            self.report(pool, str(error))
            return
        wanted = self.checks is not None and self.task["kind"] == Kind.INVARIANT
        self.checks = RelationChecks(self.target, self.related, always=True) if wanted else None
        if not self.accepts(pool):
            self.report(pool, "the case does not differ in the same way when it is run alone")
            return
        # One look at each arm decides on the way, which is three times as fast; what is reached is judged in full.
        self.whole = False
        small = self.reduced(pool)
        self.whole = True
        if small is not pool and not self.accepts(small, always=True):
            small = self.reduced(pool)
        self.report(small)

    def reduced(self, pool: Pool) -> Pool:
        return Reducer(pool, self.accepts, self.task["position"], self.original.contract).run()

    # -- one candidate --------------------------------------------------------------------------------------------

    def accepts(self, pool: Pool, always: bool = False) -> bool:
        number = self.candidates
        self.candidates += 1
        if number < len(self.journal):
            return self.journal[number] is not None
        if number and not always and time.monotonic() > self.until:
            raise OutOfTimeError
        verdict = self.judge(number, pool)
        self.child.board.begin(self.child.slot)
        state = [self.raised, self.rows, self.arm, self.seen] if verdict else None
        with self.log.open("a") as file:
            file.write(json.dumps(state) + "\n")
        if verdict and self.task["kind"] in DEADLY:
            self.report(pool, leaving=False)  # the next candidate may be this child's last
        return verdict

    def judge(self, number: int, pool: Pool) -> bool:
        """Whether a candidate differs in the way that is looked for."""
        dead = self.dead.get(number)
        kind = self.task["kind"]
        if (dead is not None and kind not in DEADLY) or (dead is not None and self.arm not in (None, dead[0])):
            return False
        case = replace(self.original, build=lambda: copied(pool))
        if dead is None and kind not in DEADLY and not self.seems(number, case, pool):
            return False
        if case.contract and not self.relates(pool):
            return False
        if not self.whole and kind not in _FULL:
            return True
        self.counts, self.kinds, self.unmeasured = Counter(), Counter(), Counter()
        self.mismatches, self.detailed, self.index = [], 0, number
        self.earlier = None
        try:
            self.one(number, case, pool, self.task["case"], dead)
        except DifftestError:
            raise
        except Exception:  # a case file's own checks may expect what the candidate no longer holds
            return False
        found = next((m for m in self.mismatches if m["kind"] == kind and self.same_leaf(m["leaf"])), None)
        if found is None:
            return False
        self.seen = found
        self.arm = self.arm if dead is None else dead[0]
        return True

    def seems(self, number: int, case: Case, pool: Pool) -> bool:
        """One call of each arm: a cheap look, and whether they raise what they did on the original."""
        fill = fills(number)[0]
        base, head = (self.call(number, arm, case, pool, fill) for arm in (BASE, HEAD))
        live = self.caller.live
        if isinstance(base, NotCalled) or isinstance(head, NotCalled) or is_environment(base) or is_environment(head):
            return False
        raised = [base.raised and base.raised[0], head.raised and head.raised[0]]
        if self.raised is None:
            self.raised = raised
            self.rows = live is not None and not isinstance(live[1], tuple)
        if raised != self.raised:
            return False
        return self.task["kind"] in _FULL or self.differs_alike(case, pool, base, head)

    def relates(self, pool: Pool) -> bool:
        """Whether the case file's relations can take the candidate, as they must when it is run by itself."""
        try:
            for relation in self.target.relations:
                relation.other(copied(pool))
        except Exception:
            return False
        return True

    def differs_alike(self, case: Case, pool: Pool, base: Outcome, head: Outcome) -> bool:
        initial = self.initial(case, pool, base, head)
        mode = self.options.get("exceptions", "message")
        found = compare(base, head, {}, {}, initial, mode, self.child.states.start)
        return any(item.kind == self.task["kind"] and self.same_leaf(item.leaf) for item in found)

    def same_leaf(self, leaf: str) -> bool:
        """Whether it is the leaf that is looked for, but for rows."""
        return _key(leaf, self.rows) == _key(self.task["leaf"], self.rows)

    # -- what came of it ------------------------------------------------------------------------------------------

    def opinion(self, pool: Pool, live: list[Live]) -> str:
        return ""  # an oracle may expect what a candidate no longer holds

    def read_journal(self) -> None:
        self.log = self.folder / "journal"
        if not self.log.exists():
            self.log.write_text(f"{time.monotonic() + self.task['seconds']!r}\n")
        self.until, *self.journal = map(json.loads, self.log.read_text().splitlines())
        for state in self.journal:
            if state is not None:
                self.raised, self.rows, self.arm, self.seen = state

    def report(self, pool: Pool, reason: str = "", leaving: bool = True) -> None:
        """Keep what was reached, and say so; `leaving`: that is all."""
        record: dict[str, Any] = {"reason": reason}
        if not reason:
            kept = write_case(self.folder / "reduced.safetensors", self.target.name, self._named(pool), pool)
            before = self.original.build()
            record |= {
                "case": kept.id,
                "bytes": [pool_bytes(before), pool_bytes(pool)],
                "requests": [requests(before), requests(pool)],
                "largest_axis": [largest_axis(before), largest_axis(pool)],
                "executed": self.candidates,
                "seconds": round(self.task["seconds"] - self.until + time.monotonic(), 3),
                "mismatch": self.seen,
            }
        self.child.channel.send({"reduced": self.unit["number"], "record": record})
        if leaving:
            self.counts, self.kinds, self.unmeasured, self.mismatches = Counter(), Counter(), Counter(), []
            replaced = self.child.guard.replaced()
            self.flush(None, leaving=bool(replaced))
            if replaced:
                self.child.exit(0)

    def _named(self, pool: Pool) -> Case:
        label = f"reduced from {self.task['case']}: {self.original.label}"
        named: Case = replace(self.original, label=label, axes={})
        return named


def _key(leaf: str, rows: bool) -> str:
    """The leaf without positions. What a tuple returns is told apart by its position, what a list does is not."""
    if rows or not leaf.startswith("return["):
        return _INDEX.sub("[]", leaf)
    head, _, rest = leaf.partition("]")
    return f"{head}]{_INDEX.sub('[]', rest)}"


__all__ = ["ShrinkRun"]
