"""A unit of work in a child: one differing case, made small while it differs in the same way.

A candidate may end the child. What was decided before is in a journal, which the next child reads back: the passes are
deterministic, so it comes to the same candidate again, whose verdict then is how the child ended.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from difftest.call.outcome import NotCalled, Outcome, is_environment
from difftest.call.poison import fills
from difftest.call.values import case_id
from difftest.compare.outcomes import Difference, compare, undefined_leaves
from difftest.errors import DifftestError
from difftest.record.casefile import read_case, write_case
from difftest.result import Kind
from difftest.run.protocol import BASE, HEAD
from difftest.run.relations import Live, RelationChecks
from difftest.run.unit import UnitRun
from difftest.shrink.leaves import general_leaf, leaf_key
from difftest.shrink.reduce import OutOfTimeError, Reducer, requests
from difftest.shrink.tree import copied, largest_axis, pool_bytes
from difftest.target import Case, Pool, Target

DEADLY = (Kind.CRASH, Kind.TIMEOUT)
ALONE = "the case does not differ in the same way when it is run alone"

_MORE_TIME = 3
"""How much of the time that is meant for a case it may take while it is still large."""


class ShrinkRun(UnitRun):
    """Reduces one case. The unit's `task`: `kind`, `leaf`, `seconds`, `folder`, and `choices`, of which the first that
    can be reduced is: each `index` or `file`, `case`, `position` and `ids`."""

    def _run(self) -> None:
        self.task = self.unit["task"]
        self.folder = Path(self.task["folder"])
        self.folder.mkdir(exist_ok=True)
        self.dead = {int(index): value for index, value in self.unit["dead"].items()}
        self.candidates = 0
        self.expected = []
        wanted = self.checks is not None and self.task["kind"] == Kind.INVARIANT
        self.checks = RelationChecks(self.looked_for(), self.related, always=True) if wanted else None
        self.child.prove(self.target.triton, self.caller)
        self.child.board.enter(self.child.slot, self.child.pid, self.unit["number"], -1, BASE)
        self.child.board.begin(self.child.slot)
        self.read_journal()
        refused: list[dict[str, Any]] = []
        for choice in self.task["choices"]:
            if not (record := self.use(choice)):
                return
            refused.append(record)
        self.send(refused[0])

    def use(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Reduce a case and report; or say why it cannot be reduced."""
        self.choice = choice
        self.raised: list[str | None] | None = None
        self.rows = False
        self.arm: int | None = None
        self.seen: dict[str, Any] | None = None
        self.briefly = self.task["kind"] not in DEADLY
        file = choice["file"]  # of a case that a fuzz drew
        self.original = read_case(Path(file)).case() if file else self.cases()[choice["index"]]
        pool = self.original.build()
        if case_id(self.target.name, pool) != choice["case"]:
            return {"reason": "the case is not the same when it is built again"}
        try:
            write_case(self.folder / "original.safetensors", self.target.name, self.original, pool)
        except DifftestError as error:  # lazily reserved memory, or a value that is no bytes
            return {"reason": str(error), "no_file": not file}
        self.before = pool_bytes(pool)
        self.best = pool
        # A brief look at each arm decides on the way, which is several times as fast; in full it is judged at the end.
        if not (self.briefly and self.accepts(pool, always=True)):
            self.briefly = False
            if not self.accepts(pool, always=True):
                return {"reason": ALONE}
        chain = self.reduced(pool)
        if self.briefly:
            self.briefly = False
            sound = self.last_sound(chain)
            chain = [sound] if sound is chain[-1] else self.reduced(sound)
        if self.seen is None:
            return {"reason": ALONE}
        self.report(chain[-1])
        return {}

    def reduced(self, pool: Pool) -> list[Pool]:
        """The pool and what it became, step by step."""
        choice = self.choice
        reducer = Reducer(pool, self.accepts, choice["position"], self.original.contract, choice["ids"])
        reducer.run()
        return reducer.steps

    def last_sound(self, chain: list[Pool]) -> Pool:
        """The last of the steps, nearly, that is found to differ when it is judged in full; the first if none is."""
        back = 1
        while back < len(chain) and not self.is_sound(chain[-back]):
            back *= 2
        if back >= len(chain):
            self.seen = None
            self.is_sound(chain[0])
            return chain[0]
        return chain[-back]

    def is_sound(self, pool: Pool) -> bool:
        """Whether it differs when it is judged in full, and again so: what reads memory that is not its own may not."""
        return all(self.accepts(pool, always=True) for _ in range(2))

    def looked_for(self) -> Target:
        """The target with that check alone which is broken."""
        checks = (self.target.invariants, self.target.relations)
        invariants, relations = ([c for c in each if c.name == self.task["leaf"]] for each in checks)
        narrowed: Target = replace(self.target, invariants=tuple(invariants), relations=tuple(relations))
        return narrowed

    # -- one candidate --------------------------------------------------------------------------------------------

    def accepts(self, pool: Pool, always: bool = False) -> bool:
        number = self.candidates
        self.candidates += 1
        if number < len(self.journal):
            if self.journal[number] is False:
                raise OutOfTimeError
            if (state := self.journal[number]) is not None:
                self.raised, self.rows, self.arm, self.seen = state
                self.best = pool
            return state is not None
        if not always and self.is_over():
            self.keep(False)
            raise OutOfTimeError
        verdict = self.judge(number, pool)
        self.child.board.begin(self.child.slot)
        state = [self.raised, self.rows, self.arm, self.seen] if verdict else None
        self.best = pool if verdict else self.best
        self.keep(state)
        if verdict and self.task["kind"] in DEADLY:
            self.report(pool, leaving=False)  # the next candidate may be this child's last
        return verdict

    def keep(self, state: Any) -> None:
        """A line of the journal: what is known after an accepted candidate, None after another, False at the end."""
        with self.log.open("a") as file:
            file.write(json.dumps(state) + "\n")

    def is_over(self) -> bool:
        """Whether no further candidate is to be tried. What is large still has more time, and while other processes
        run instead of this one no time passes, up to a limit."""
        late, waited = time.monotonic() - self.until, _queued() - self.queued
        own, more = late - waited, (_MORE_TIME - 1) * self.task["seconds"]
        return late > 2 * more or own > more or (own > 0 and self.is_small(self.best))

    def is_small(self, pool: Pool) -> bool:
        few = requests(pool) <= 3 and largest_axis(pool) <= 16
        return few or pool_bytes(pool) * 20 <= self.before

    def judge(self, number: int, pool: Pool) -> bool:
        """Whether a candidate differs in the way that is looked for."""
        dead = self.dead.get(number)
        kind = self.task["kind"]
        if dead is not None and (kind not in DEADLY or self.arm not in (None, dead[0])):
            return False
        case = replace(self.original, build=lambda: copied(pool))
        if case.contract and not self.relates(pool):
            return False
        if kind not in DEADLY and not self.seems(number, case, pool):
            return False
        return self.briefly or self.in_full(number, case, pool, dead)

    def in_full(self, number: int, case: Case, pool: Pool, dead: list[Any] | None) -> bool:
        """Whether a run of the candidate alone finds it."""
        kind = self.task["kind"]
        self.counts, self.kinds, self.unmeasured = Counter(), Counter(), Counter()
        self.mismatches, self.detailed, self.index = [], 0, number
        self.earlier = None
        try:
            self.one(number, case, pool, self.choice["case"], dead)
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
        """One call of each arm: whether they raise what they did on the original, and, briefly, whether they differ."""
        fill, other = fills(number)
        base, base_live = self.call(number, BASE, case, pool, fill), self.caller.live
        head, live = self.call(number, HEAD, case, pool, fill), self.caller.live
        if isinstance(base, NotCalled) or isinstance(head, NotCalled) or is_environment(base) or is_environment(head):
            return False
        raised = [base.raised and base.raised[0], head.raised and head.raised[0]]
        if self.raised is None:
            self.raised = raised
            self.rows = live is not None and not isinstance(live[1], tuple)
        if raised != self.raised:
            return False
        if not self.briefly:
            return True
        undefined: list[dict[str, Any]] = [{}, {}]
        if self.task["kind"] == Kind.UNDEFINED:
            again = [self.call(number, arm, case, pool, other) for arm in (BASE, HEAD)]
            if any(isinstance(outcome, NotCalled) for outcome in again):
                return False
            undefined = [undefined_leaves(*pair) for pair in zip((base, head), again, strict=True)]
        found = self.compared(case, pool, base, head, undefined)
        if self.checks is not None and case.contract:
            self.index = number
            found += self.checks.check(pool, (base_live, live))
        return any(item.kind == self.task["kind"] and self.same_leaf(item.leaf) for item in found)

    def relates(self, pool: Pool) -> bool:
        """Whether the case file's relations can take the candidate, as they must when it is run by itself."""
        try:
            for relation in self.target.relations:
                relation.other(copied(pool))
        except Exception:
            return False
        return True

    def compared(
        self, case: Case, pool: Pool, base: Outcome, head: Outcome, undefined: list[dict[str, Any]]
    ) -> list[Difference]:
        initial = self.initial(case, pool, base, head)
        mode = self.options.get("exceptions", "message")
        return compare(base, head, undefined[BASE], undefined[HEAD], initial, mode, self.child.states.start)

    def same_leaf(self, leaf: str) -> bool:
        """Whether it is the leaf that is looked for, but for rows."""
        key = general_leaf if self.rows else leaf_key  # what a list returns is not told apart by its position
        return key(leaf) == key(self.task["leaf"])

    # -- what came of it ------------------------------------------------------------------------------------------

    def opinion(self, pool: Pool, live: list[Live]) -> str:
        return ""  # an oracle may expect what a candidate no longer holds

    def read_journal(self) -> None:
        self.log = self.folder / "journal"
        if not self.log.exists():
            self.log.write_text(f"{time.monotonic() + self.task['seconds']!r}\n")
        self.queued = _queued()
        self.until, *self.journal = map(json.loads, self.log.read_text().splitlines())

    def report(self, pool: Pool, leaving: bool = True) -> None:
        """Keep what was reached, and say so; `leaving`: that is all."""
        kept = write_case(self.folder / "reduced.safetensors", self.target.name, self._named(pool), pool)
        before = self.original.build()
        record = {
            "reason": "",
            "original": self.choice["case"],
            "case": kept.id,
            "bytes": [pool_bytes(before), pool_bytes(pool)],
            "requests": [requests(before), requests(pool)],
            "largest_axis": [largest_axis(before), largest_axis(pool)],
            "executed": self.candidates,
            "seconds": round(self.task["seconds"] - self.until + time.monotonic() - _queued() + self.queued, 3),
            "mismatch": self.seen,
        }
        self.send(record, leaving)

    def send(self, record: dict[str, Any], leaving: bool = True) -> None:
        self.child.channel.send({"reduced": self.unit["number"], "record": record})
        if leaving:
            self.counts, self.kinds, self.unmeasured, self.mismatches = Counter(), Counter(), Counter(), []
            replaced = self.child.guard.replaced()
            self.flush(None, leaving=bool(replaced))
            if replaced:
                self.child.exit(0)

    def _named(self, pool: Pool) -> Case:
        label = f"reduced from {self.choice['case']}: {self.original.label}"
        named: Case = replace(self.original, label=label, axes={})
        return named


def _queued() -> float:
    """Seconds that this process was ready to run and waited for a processor; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


__all__ = ["ShrinkRun"]
