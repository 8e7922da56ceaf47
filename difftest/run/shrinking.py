"""A unit of work in a child: one differing case, made small while it differs in the same way.

A candidate may end the child. What was decided before is in a journal, which the next child reads back: the passes are
deterministic, so it comes to the same candidate again, whose verdict then is how the child ended.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from difftest.call.bounds import BOUNDS
from difftest.call.outcome import NotCalled, Outcome, is_environment
from difftest.call.poison import fills
from difftest.call.values import case_id
from difftest.compare.outcomes import Difference, compare, undefined_leaves
from difftest.errors import DifftestError
from difftest.explain.ladder import direction
from difftest.record.casefile import read_case, write_case
from difftest.result import Kind
from difftest.run.protocol import ARM_NAMES, BASE, HEAD
from difftest.run.relations import Live, RelationChecks
from difftest.run.unit import UNSTEADY, UnitRun
from difftest.shrink.reduce import OutOfTimeError, Reducer, are_small, requests
from difftest.shrink.tree import copied, largest_axis, pool_bytes
from difftest.target import Case, Pool, Target

DEADLY = (Kind.CRASH, Kind.TIMEOUT)
ALONE = "the case does not differ in the same way when it is run alone"

_TURNS = {Kind.VALUE: Kind.UNDEFINED, Kind.UNDEFINED: Kind.VALUE}
"""What a difference may be found as when its case is run alone: which of the two it is may rest on what the process had
in memory before."""

_ROUNDS = 3
"""How often at most what a case became is looked at in a new process."""

_UNSTEADY = 8
"""How often a case must differ whose head is not deterministic."""

_MORE_TIME = 3
"""How much of the time that is meant for a case it may take while it is still large."""

_DIRECTED = 0.3
"""How much of the time that is meant for a case it may take to keep what becomes what, where that was lost."""

_OTHERS = 2
"""Other cases of the group that are tried in this time, too; further ones in the time that is meant for one."""


class ShrinkRun(UnitRun):
    """Reduces one case. The unit's `task`: `kind`, `leaf`, `place`, `seconds`, `folder`, and `choices`, of which the
    first that can be reduced is: each `index` or `file`, `case`, `position`, `ids` and `direction`."""

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
        every = self.cases() if any(not choice["file"] for choice in self.task["choices"]) else []
        originals = [self.case_of(choice, every) for choice in self.task["choices"]]
        self.reduce(originals)

    def reduce(self, originals: list[Case]) -> None:
        """Reduce one of the cases, and send what came of it."""
        found = self.tried(originals)
        if self.task["kind"] in _TURNS and all(record["reason"].startswith(ALONE) for record in found):
            self.task = {**self.task, "kind": _TURNS[self.task["kind"]]}
            found += self.tried(originals)
        self.send(min(found, key=lambda record: (bool(record["reason"]), not _is_small(record), _size(record))))

    def tried(self, originals: list[Case]) -> list[dict[str, Any]]:
        """What came of the cases, up to one that became small."""
        found: list[dict[str, Any]] = []
        most = (_MORE_TIME - 1) * float(self.task["seconds"])
        for number in self.in_order(originals):
            self.allowed = most
            found.append(self.use(number, originals[number]))
            if _is_small(found[-1]) or (not found[-1]["reason"] and self.task["kind"] in DEADLY):
                break
            allowed = most if len(found) <= _OTHERS else 0.0
            if not found[-1].get("no_file") and not self.decided(partial(self.has_time, allowed)):
                break
        return found

    def in_order(self, originals: list[Case]) -> Iterator[int]:
        """The first of the cases, and where that does not become small the others, small ones first."""
        yield 0
        yield from sorted(range(1, len(originals)), key=lambda number: pool_bytes(originals[number].build()))

    def case_of(self, choice: dict[str, Any], every: list[Case]) -> Case:
        return read_case(Path(choice["file"])).case() if choice["file"] else every[choice["index"]]

    def decided(self, question: Callable[[], bool]) -> bool:
        """What was answered when it was first asked."""
        number = self.candidates
        self.candidates += 1
        if number < len(self.journal):
            return bool(self.journal[number]["decided"])
        self.keep({"decided": (answer := question())})
        return answer

    def use(self, number: int, original: Case) -> dict[str, Any]:
        """Reduce one of the choices and say what came of it, or why it cannot be reduced."""
        self.choice = choice = self.task["choices"][number]
        self.original = original
        self.place = self.folder / str(number)
        self.place.mkdir(exist_ok=True)
        self.raised: list[str | None] | None = None
        self.arm: int | None = None
        self.seen: dict[str, Any] | None = None
        self.unjudged = ""
        self.briefly = self.carefully = False
        self.direction: str | None = None
        self.reaches: list[list[str]] | None = None  # what each arm did on the original
        pool = self.original.build()
        if case_id(self.target.name, pool) != choice["case"]:
            return {"reason": "the case is not the same when it is built again"}
        try:
            write_case(self.place / "original.safetensors", self.target.name, self.original, pool)
        except DifftestError as error:  # lazily reserved memory, or a value that is no bytes
            return {"reason": str(error), "no_file": not choice["file"]}
        self.before = pool_bytes(pool)
        self.best = pool
        if not self.starts(pool):
            return {"reason": f"{ALONE}{self.unjudged}"}
        found = self.lasting(self.reduced(pool))
        if self.seen is None:
            return {"reason": f"{ALONE}{self.unjudged}"}
        return self.record(self.directed(pool, found))

    def starts(self, pool: Pool) -> bool:
        """Whether the original differs when it is run alone."""
        # A brief look at each arm decides on the way, which is several times as fast; in full it is judged at the end.
        for briefly in (True, False) if self.task["kind"] not in DEADLY else (False,):
            self.briefly = briefly
            if self.accepts(pool, always=True):
                return True
        return False

    def directed(self, pool: Pool, found: Pool) -> Pool:
        """What the original was made to, or where that shows another thing become another one, what shows it as the
        original does: if it is small as well, or the smaller of the two."""
        free, way = self.seen, self.choice["direction"]
        assert free is not None
        if self.task["kind"] in DEADLY or free["direction"] == way or not self.decided(self.has_time):
            return found
        self.direction, self.allowed = way, min(0.0, self.late() + self.task["seconds"] * _DIRECTED)
        if self.starts(pool):
            made = self.lasting(self.reduced(pool))
            small, as_small = self.is_small(made), pool_bytes(made) <= pool_bytes(found)
            if self.seen is not None and (small or (as_small and not self.is_small(found))):
                return made
        self.seen = free
        return found

    def lasting(self, chain: list[Pool]) -> Pool:
        """The last of the steps, or of what an earlier one becomes instead, that differs in a new process as well. What
        an earlier one becomes has each of its steps looked at as the last one is: it went astray when it had not."""
        self.briefly = False
        for left in reversed(range(_ROUNDS)):
            self.renew()
            sound = self.last_sound(chain)
            if sound is chain[-1] or not left:
                break
            self.carefully = True
            chain = self.reduced(sound)
            self.carefully = False
        return sound

    def renew(self) -> None:
        """Go on in a new child, whose memory holds nothing of the candidates: what reads memory that is not its own
        finds there what earlier calls left."""
        number = self.candidates
        self.candidates += 1
        if number >= len(self.journal):
            self.keep({"waited": _queued() - self.queued})
            self.child.channel.send({"again": self.unit["number"]})
            self.child.exit(0)

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
            if not self.is_sound(chain[0]):
                self.seen = None
            return chain[0]
        return chain[-back]

    def is_sound(self, pool: Pool) -> bool:
        """Whether it differs when it is judged in full as its file has it, and again so, often where chance decides."""
        kept = write_case(self.place / "reduced.safetensors", self.target.name, self._named(pool), pool).pool()
        times = 0
        while times < (_UNSTEADY if self.unsteady else 2):
            if self.task["kind"] in DEADLY:
                self.renew()  # what wrote beyond its memory may have spoiled this process without ending it
            if not self.accepts(kept, always=True):
                return False
            times += 1
        return True

    @property
    def unsteady(self) -> bool:
        """Whether head was found not to be deterministic, so that it may do what base does by chance."""
        return self.seen is not None and any(line.startswith(UNSTEADY) for line in self.seen["detail"])

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
            if isinstance(state := self.journal[number], str):
                self.unjudged = state
                return False
            self.raised, self.arm, self.seen, self.reaches = state
            self.best = pool
            return True
        if not always and self.is_over():
            self.keep(False)
            raise OutOfTimeError
        before = self.seen
        verdict = self.judge(number, pool)
        self.seen = self.seen if verdict else before
        self.child.board.begin(self.child.slot)
        self.best = pool if verdict else self.best
        self.keep([self.raised, self.arm, self.seen, self.reaches] if verdict else self.unjudged)
        if verdict and self.task["kind"] in DEADLY:
            self.send(self.record(pool), leaving=False)  # the next candidate may be this child's last
        return verdict

    def keep(self, state: Any) -> None:
        """A line of the journal: what is known after an accepted candidate, why another is not, False at the end; where
        another child goes on, how long this one waited for a processor; what was decided by the clock."""
        with self.log.open("a") as file:
            file.write(json.dumps(state) + "\n")

    def is_over(self) -> bool:
        """Whether no further candidate is to be tried. What is large still has more time, and while other processes
        run instead of this one no time passes, up to a limit."""
        own, small = self.late(), self.is_small(self.best)
        waiting = 2 * (_MORE_TIME - 1) * self.task["seconds"]
        return time.monotonic() - self.until > waiting or own > self.allowed or (own > 0 and small)

    def is_small(self, pool: Pool) -> bool:
        return are_small([self.before, pool_bytes(pool)], requests(pool), largest_axis(pool))

    def has_time(self, allowed: float = 0.0) -> bool:
        return self.late() < allowed

    def late(self) -> float:
        """Seconds of its own by which it is over its time."""
        waited = _queued() - self.queued
        return time.monotonic() - float(self.until) - waited

    def judge(self, number: int, pool: Pool) -> bool:
        """Whether a candidate differs in the way that is looked for."""
        dead = self.dead.get(number)
        kind = self.task["kind"]
        if dead is not None and (kind not in DEADLY or self.arm not in (None, dead[0])):
            self.unjudged = f", but {ARM_NAMES[dead[0]]} {dead[2]}"
            return False
        case = replace(self.original, build=lambda: copied(pool))
        if case.contract and not self.relates(pool):
            return False
        identity = case_id(self.target.name, pool)
        if kind not in DEADLY and not self.seems(number, case, pool, identity):
            return False
        if self.briefly:
            return True
        times = (_UNSTEADY if self.unsteady else 1) ** (1 + self.carefully)  # as often as it will have to
        return all(self.in_full(number, case, pool, identity, dead) for _ in range(times))

    def is_looked_for(self, found: list[Difference]) -> bool:
        return any(self.is_it(item.kind, item.place, direction(item)) for item in found)

    def is_it(self, kind: str, place: str, way: str) -> bool:
        """Whether a difference is the one that is looked for."""
        return (kind, place) == (self.task["kind"], self.task["place"]) and self.direction in (None, way)

    def in_full(self, number: int, case: Case, pool: Pool, identity: str, dead: list[Any] | None) -> bool:
        """Whether a run of the candidate alone finds it."""
        self.counts, self.kinds, self.unmeasured = Counter(), Counter(), Counter()
        self.mismatches, self.detailed, self.index = [], 0, number
        self.earlier = None
        try:
            self.one(number, case, pool, identity, dead)
        except DifftestError:
            raise
        except Exception as error:  # a case file's own checks may expect what the candidate no longer holds
            self.unjudged = f": {type(error).__name__}: {error}"[:200]
            return False
        found = next((m for m in self.mismatches if self.is_it(m["kind"], m["place"], m["direction"])), None)
        if found is None:
            self.unjudged = self.instead()
            return False
        self.seen = found
        self.arm = self.arm if dead is None else dead[0]
        return True

    def instead(self) -> str:
        """What a run of the candidate found that is not what is looked for."""
        if self.unmeasured:
            return f", it is unmeasured: {next(iter(self.unmeasured))}"[:300]
        other = list(dict.fromkeys(f"{m['kind']} at {m['place']}" for m in self.mismatches))
        return f", but in {', '.join(other[:3])}" if other else ", it is identical"

    def seems(self, number: int, case: Case, pool: Pool, identity: str) -> bool:
        """One call of each arm: whether they raise what they did on the original, and, briefly, whether they differ."""
        fill, other = self.pair = fills(identity)
        base, base_reaches = self.kept_inside(number, BASE, case, pool, fill)
        base_live = self.caller.live
        head, head_reaches = self.kept_inside(number, HEAD, case, pool, fill)
        live = self.caller.live
        if self.reaches is None:
            self.reaches = [base_reaches, head_reaches]
        for name, there, here in zip(ARM_NAMES, self.reaches, (base_reaches, head_reaches), strict=True):
            if here and not there:
                self.unjudged = f", but {name} {' and '.join(here)} outside of its tensors"
                return False
        for outcome in (base, head):
            if isinstance(outcome, NotCalled):
                self.unjudged = f", it is unmeasured: {outcome.reason}"[:300]
                return False
            if is_environment(outcome):
                self.unjudged = f", it cannot run here: {outcome.raised}"[:300]
                return False
        assert isinstance(base, Outcome) and isinstance(head, Outcome)
        raised = [base.raised and base.raised[0], head.raised and head.raised[0]]
        if self.raised is None:
            self.raised = raised
        if raised != self.raised:
            self.unjudged = f", but raises {raised}, not {self.raised}"[:300]
            return False
        if not self.briefly:
            return True
        undefined: list[dict[str, Any]] = [{}, {}]
        if self.task["kind"] == Kind.UNDEFINED:
            again = [self.call(number, arm, case, pool, other) for arm in (BASE, HEAD)]
            if any(isinstance(outcome, NotCalled) for outcome in again):
                return False
            start = self.child.states.start
            undefined = [undefined_leaves(*pair, self.pair, start) for pair in zip((base, head), again, strict=True)]
        found = self.compared(case, pool, base, head, undefined)
        if self.checks is not None and case.contract:
            self.index = number
            found += self.checks.check(pool, (base_live, live))
        return self.is_looked_for(found)

    def kept_inside(
        self, number: int, arm: int, case: Case, pool: Pool, fill: int
    ) -> tuple[Outcome | NotCalled, list[str]]:
        """A call, and what its kernels do outside of their tensors: it ends those that kept to them on the original."""
        BOUNDS.ending = self.reaches is not None and not self.reaches[arm]
        try:
            return self.call(number, arm, case, pool, fill), sorted(BOUNDS.outside)
        finally:
            BOUNDS.ending = False

    def relates(self, pool: Pool) -> bool:
        """Whether the case file's relations can take the candidate, as they must when it is run by itself."""
        try:
            for relation in self.target.relations:
                relation.other(copied(pool))
        except Exception as error:
            self.unjudged = f", a relation cannot take it: {type(error).__name__}: {error}"[:300]
            return False
        return True

    def compared(
        self, case: Case, pool: Pool, base: Outcome, head: Outcome, undefined: list[dict[str, Any]]
    ) -> list[Difference]:
        initial = self.initial(case, pool, base, head)
        mode = self.options.get("exceptions", "message")
        return compare(base, head, undefined[BASE], undefined[HEAD], initial, mode, self.child.states.start)

    # -- what came of it ------------------------------------------------------------------------------------------

    def opinion(self, case: Case, pool: Pool, live: list[Live]) -> str:
        return ""  # an oracle may expect what a candidate no longer holds

    def read_journal(self) -> None:
        self.log = self.folder / "journal"
        if not self.log.exists():
            self.log.write_text(f"{time.monotonic() + self.task['seconds']!r}\n")
        self.queued = _queued()
        self.until, *self.journal = map(json.loads, self.log.read_text().splitlines())
        self.until += sum(line["waited"] for line in self.journal if type(line) is dict and "waited" in line)

    def record(self, pool: Pool) -> dict[str, Any]:
        """Keep what was reached, and what is to be said of it."""
        kept = write_case(self.place / "reduced.safetensors", self.target.name, self._named(pool), pool)
        before = self.original.build()
        return {
            "reason": "",
            "choice": self.place.name,
            "original": self.choice["case"],
            "case": kept.id,
            "bytes": [pool_bytes(before), pool_bytes(pool)],
            "requests": [requests(before), requests(pool)],
            "largest_axis": [largest_axis(before), largest_axis(pool)],
            "executed": self.candidates,
            "seconds": round(self.task["seconds"] - self.until + time.monotonic() - _queued() + self.queued, 3),
            "mismatch": self.seen,
        }

    def send(self, record: dict[str, Any], leaving: bool = True) -> None:
        """Say what came of it; `leaving`: that is all."""
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


def _is_small(record: dict[str, Any]) -> bool:
    return not record["reason"] and are_small(record["bytes"], record["requests"][1], record["largest_axis"][1])


def _size(record: dict[str, Any]) -> int:
    return int(record["bytes"][1]) if not record["reason"] else 0


def _queued() -> float:
    """Seconds that this process was ready to run and waited for a processor; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


__all__ = ["ShrinkRun"]
