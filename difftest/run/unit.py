"""A unit of work in a child: one target, base against one head, over a share of the target's cases."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from difftest.call.bounds import BOUNDS, WRITE
from difftest.call.freeze import Freezer
from difftest.call.host import ASKED as HOST_ASKED
from difftest.call.outcome import Caller, NotCalled, Outcome, is_environment, own_pool
from difftest.call.poison import FILLS, POISON, fills
from difftest.call.values import case_id
from difftest.compare.excerpts import excerpts
from difftest.compare.outcomes import (
    BEYOND,
    Difference,
    compare,
    only_poison,
    uncompared,
    undefined_leaves,
    unstable_leaves,
)
from difftest.errors import DifftestError
from difftest.expect import Expectation
from difftest.explain.ladder import change, direction, evidence, likeness
from difftest.result import MISMATCHES_SHOWN, Kind, accelerator_note, far_note, outside_detail, outside_note
from difftest.run.history import History, Kept
from difftest.run.protocol import ARM_NAMES, BASE, HEAD
from difftest.run.recording import Recordings, generator_states
from difftest.run.relations import Live, RelationChecks
from difftest.target import Case, Left, Pool, Target, labelled

if TYPE_CHECKING:
    from difftest.call.lines import LineRecorder

UNSTEADY = "head is not deterministic at"
_RAISED = object()  # what no oracle expects
_OUTCOMES = ("identical", "different", "expected", "unmeasured")
_CHARACTERS = 400  # of a value that are kept
_DETAILED_CASES = 200  # differing cases explained in full; beyond that they are counted and named by kind
_WAYS = 200  # ways to differ of which a first example is kept whatever the number of cases
_REST = 20  # results are handed over after a look at what both arms stand on, which so takes a twentieth of the time
_REPEATS_ON_DEVICE = 6  # calls of base under each fill before a difference on a device is blamed on head


class _Earlier(NamedTuple):
    """A case that was identical.

    Attributes:
        live: its live values in base and head.
        returned: what they returned, frozen.
        given: by arm, the inputs after its first call, frozen; None when they are not to be looked at again.
    """

    number: int
    case: Case
    identity: str
    live: list[Live]
    returned: tuple[Any, Any]
    given: Mapping[int, Mapping[str, Any]] | None


class UnitRun:
    """Runs one unit and reports to the supervisor as it goes.

    The unit: `number`, `target`, `symbols` (per arm), `arms` (labels: base, head), `share` ([k, n]: share k of n),
    `start` (first case index to run), `dead` ({case index: [arm, kind, text]} for calls that killed a child),
    `shaky` ({case index: arm and text} for calls that crashed a child once), `options`.
    """

    def __init__(self, child: Any, unit: dict[str, Any]) -> None:
        self.child = child
        self.unit = unit
        self.target = child.targets[unit["target"]]
        self.options = unit["options"]
        self.arms_by_host: dict[str, list[Any]] = {}
        self.host: dict[str, set[str]] = {}
        self.current: Mapping[str, Any] = {}  # what is known of the host of the case at hand
        self.arms = self.arms_of({})
        self.caller = Caller(child.device, child.states, child.scrub, self.in_tree)
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.mismatches: list[dict[str, Any]] = []
        self.unmeasured: Counter[str] = Counter()
        self.detailed = 0
        self.told: Counter[tuple[str, str, str, str, int, bool]] = Counter()
        self.ways: set[tuple[str, str, str, str]] = set()
        self.alike: list[int] = []
        self.unclear: list[int] = []
        self.shaky = {int(index): text for index, text in unit.get("shaky", {}).items()}
        self.sources: Counter[str] = Counter()
        self.axes: Counter[tuple[str, str, str]] = Counter()
        self.expected = [
            (number, Expectation(**{**entry, "kind": tuple(entry["kind"])}))
            for number, entry in enumerate(self.options.get("expect", ()))
        ]
        self.expected = [(n, entry) for n, entry in self.expected if entry.covers_target(self.target.name)]
        self.expected_used: Counter[int] = Counter()
        self.checks = RelationChecks(self.target, self.related) if _has_checks(self.target) else None
        self.lines: LineRecorder | None = None
        if self.options.get("lines"):
            from difftest.call.lines import LineRecorder

            self.lines = LineRecorder(child.setup["arms"][label]["folder"] for label in unit["arms"])
            self.caller.recorder = self.lines
        self.repeats = self.options.get("repeat", 1)
        self.history = History()
        self.recordings = Recordings(child.states, self.repeats)
        self.index = 0
        self.pair = FILLS
        self.earlier: _Earlier | None = None
        self.slowest = 0.0
        self.notes: list[str] = []
        self.gone: set[str] = set()  # parameters of base that head does not take
        self.outside: tuple[set[str], set[str]] = (set(), set())  # what was noted of head, and of both
        self.first: tuple[int, Case, Pool, int, Outcome] | None = None

    def arms_of(self, host: Mapping[str, Any]) -> list[Any]:
        """Base and head, lifted with what the host of a recorded call had decided."""
        taken = {} if self.child.setup.get("host") else host  # the installed package answers for itself
        key = json.dumps(taken, sort_keys=True) if taken else ""
        if key not in self.arms_by_host:
            arms = self.arms_by_host[key] = [self.child.arm(label, taken) for label in self.unit["arms"]]
            for arm in arms:
                arm.notes.clear()  # what was adapted for an earlier target
                arm.loader.operators.clear()
            for name, value in taken.items():
                self.host.setdefault(name, set()).add(str(value))
        return self.arms_by_host[key]

    def both(self) -> list[tuple[str, Any]]:
        """The arms of the cases so far, with their names."""
        return [pair for arms in self.arms_by_host.values() for pair in zip(ARM_NAMES, arms, strict=True)]

    def related(self, arm: int, pool: Pool) -> tuple[Outcome | NotCalled, Live]:
        """Run an arm on inputs that a relation made."""
        case = Case("related", lambda: pool, host=self.current)
        outcome = self.call(self.index, arm, case, pool, self.pair[0])
        return outcome, self.caller.live

    def run(self) -> None:
        """Run the cases and report.

        Raises:
            Exception: the harness failed, though nothing that it stands on was replaced.
        """
        try:
            self._run()
        except (MemoryError, DifftestError):
            raise
        except Exception:
            if not self.spoiled(self.child.guard.replaced()):
                raise

    def _run(self) -> None:
        share, total = self.unit["share"]
        dead = {int(index): value for index, value in self.unit["dead"].items()}
        until = self.unit["until"]
        self.child.prove(self.target.triton, self.caller)
        self.child.board.enter(self.child.slot, self.child.pid, self.unit["number"], -1, BASE)
        self.child.board.begin(self.child.slot)
        cases = self.cases()
        wanted = self.options.get("case")
        began = time.monotonic()
        budget = self.options.get("seconds")
        due = self.child.timed_flush()
        rested = began  # the monotonic time from which on results may be handed over again
        done = 0
        for index, case in enumerate(cases):
            if share_of(index, total) != share:
                continue
            if index < self.unit["start"]:
                done += 1
                continue
            if until is not None and index >= until:
                left = sum(share_of(later, total) == share for later in range(index, len(cases)))
                self.unmeasured["not run: too many earlier cases crashed or hung"] += left
                self.counts["unmeasured"] += left
                break
            if self.options.get("contract") == ("outside" if case.contract else "inside"):
                self.counts["left_out"] += 1
                continue
            try:
                pool = case.build()
                identity = case_id(self.target.name, pool)
            except MemoryError:
                raise
            except Exception as error:
                if not wanted:
                    self.not_built(case, error)
                    self.unclear.append(index)
                continue
            if wanted and not identity.startswith(wanted):
                continue
            before = self.counts.copy()
            self.one(index, case, pool, identity, dead.get(index))
            self.sources[case.source] += 1
            self.counts["outside"] += not case.contract
            outcome = next((o for o in _OUTCOMES if self.counts[o] > before[o]), "unmeasured")
            if outcome == "unmeasured":
                self.unclear.append(index)
            for axis, value in case.axes.items():
                self.axes[axis, str(value), outcome] += 1
            done += 1
            self.child.board.begin(self.child.slot)
            if (next(due) and time.monotonic() >= rested) or index in dead:
                now = time.monotonic()
                if self.spoiled(self.replaced()):
                    return
                self.flush(index + 1)
                rested = time.monotonic() + _REST * (time.monotonic() - now)
            if self.options.get("examples") and done >= self.options["examples"]:
                self.counts["beyond_examples"] += self.left_behind(cases, index, until)
                break
            if budget and time.monotonic() - began > budget:
                self.counts["cut"] += max(1, self.left_behind(cases, index, until))
                break
        self.second_look()
        if not self.spoiled(self.replaced()):
            self.flush(None)

    def left_behind(self, cases: list[Case], index: int, until: int | None) -> int:
        """How many cases of this share come after `index`, of those that were asked for."""
        share, total = self.unit["share"]
        other = {"inside": False, "outside": True}.get(self.options.get("contract", "all"))
        later = range(index + 1, len(cases) if until is None else until)
        return sum(share_of(n, total) == share and cases[n].contract is not other for n in later)

    def not_built(self, case: Case, error: Exception) -> None:
        """A case file failed to make one of its cases; the others go on."""
        text = f"{type(error).__name__}: {error}"[:200]
        self.not_measured(f"the case {case.label!r} cannot be built: {text}")

    def second_look(self) -> None:
        """Run a sample of the identical cases again, after all others."""

        alive: deque[Live] = deque(maxlen=4)  # or what a later call makes would lie where an earlier result was

        def again(arm: int, kept: Kept) -> tuple[Outcome | NotCalled, Freezer]:
            outcome = self.call(kept.number, arm, kept.case, kept.case.build(), fills(kept.identity)[0])
            alive.append(self.caller.live)
            return outcome, self.caller.output

        for kept, found in self.history.second_look(again, _same):
            self.withdraw(kept.number)
            self.differs(kept.number, kept.case, kept.identity, found)
        self.child.board.begin(self.child.slot)

    def withdraw(self, index: int) -> None:
        """A case that was found identical is not."""
        self.counts["identical"] -= 1
        self.alike = [number for number in self.alike if number != index]
        self.history.forget(index)

    def replaced(self) -> list[str]:
        """What code under test replaced of what both arms and the comparison stand on, by name."""
        replaced: list[str] = self.child.guard.replaced()
        if not replaced and self.first is not None and self.counts["identical"]:
            index, case, pool, fill, outcome = self.first
            now = self.call(index, BASE, case, pool, fill)
            self.child.board.begin(self.child.slot)
            if not _same(now, outcome):
                return [f"base's own outcome for the case {case.label!r}, which it no longer gives"]
        return replaced

    def spoiled(self, replaced: list[str]) -> bool:
        """Whether anything was replaced. If so, the unit ends, and so does the child.

        What was found identical since the last look is withdrawn; differences stay.
        """
        if not replaced:
            return False
        reason = f"withdrawn: code under test replaced {', '.join(replaced[:3])}, which both arms stand on"
        withdrawn = self.counts.pop("identical", 0)
        self.counts["unmeasured"] += withdrawn + 1
        self.unmeasured[reason] += withdrawn + 1
        self.unclear, self.alike = self.unclear + self.alike, []
        moved: Counter[tuple[str, str, str]] = Counter()
        for (axis, value, outcome_name), count in self.axes.items():
            moved[axis, value, "unmeasured" if outcome_name == "identical" else outcome_name] += count
        self.axes = moved
        self.flush(None, leaving=True)
        self.child.exit(0)
        return True

    def in_tree(self, module: str) -> bool:
        return any(arm.loader.answers_for(module) for _, arm in self.both())

    def cases(self) -> list[Case]:
        if self.options.get("shapes"):
            shapes = self.target.shapes(self.options["shapes"]) if self.target.shapes is not None else ()
            wanted = self.options.get("shape_patterns")
            kept = [s for s in shapes if not wanted or any(labelled(s.label, pattern) for pattern in wanted)]
            return [Case(shape.label, shape.build, axes={"shape": shape.label}) for shape in kept]
        kinds = self.options.get("kinds")
        every = list(self.target.cases())
        return [case for case in every if not kinds or case.source in kinds]

    # -- one case -------------------------------------------------------------------------------------------------

    def earlier_results(self, live: list[Live]) -> None:
        """Whether the calls just made changed what the last identical case was given or gave, in head only.

        A function that hands out the same buffer at every call gives each caller what the next one asked for; one that
        keeps what it is given may change it when nobody expects it.
        """
        if self.earlier is None:
            return
        index, case, identity, then, returned, given = self.earlier
        self.earlier = None
        changed = [
            one is not None and live[arm] is not None and self.caller.frozen_result(one[1]) != returned[arm]
            for arm, one in enumerate(then)
        ]
        found = []
        if changed[HEAD] and not changed[BASE]:
            found.append(Difference(Kind.ALIAS, "return", "keeps its value", "is overwritten by the next call"))
        if given is not None and then[BASE] is not None and then[HEAD] is not None:
            base, head = [self.caller.frozen_inputs(one[0]) for one in then if one is not None]
            for name in head:
                if head[name] != given[HEAD].get(name) and base.get(name) == given[BASE].get(name):
                    text = "is changed by the next call"
                    found.append(Difference(Kind.MUTATION, name, "keeps its value", text))
        if found:
            self.withdraw(index)
            self.differs(index, case, identity, found)

    def one(self, index: int, case: Case, pool: Pool, identity: str, dead: list[Any] | None) -> None:
        self.counts["executed"] += 1
        if dead is not None:
            self.after_death(index, case, pool, identity, dead)
            return
        fill, other_fill = self.pair = fills(identity)
        first_arm = HEAD if share_of(index + 1, 2) and self.first is not None else BASE
        runs: dict[int, list[Outcome | NotCalled]] = {BASE: [], HEAD: []}
        uninitialised = {}
        live: list[Live] = [None, None]
        inputs: dict[int, Any] = {}
        missing: dict[int, list[str]] = {}
        taken: dict[int, tuple[set[str], set[str], set[str]]] = {}  # chosen instead of a default; left by all; taken
        asked: dict[int, set[str]] = {}
        generators: dict[int, Any] = {}
        repeats = self.repeats if case.recorded is not None else 1
        outside: dict[int, set[str]] = {}
        followed: dict[int, bool] = {}
        for arm in (first_arm, 1 - first_arm):
            runs[arm].append(self.call(index, arm, case, pool, fill))
            outside[arm], followed[arm] = BOUNDS.outside, BOUNDS.followed
            uninitialised[arm] = POISON.allocations > 0
            live[arm] = self.caller.live
            inputs[arm] = self.caller.inputs
            missing[arm] = list(self.arms[arm].loader.missing)
            asked[arm] = set(HOST_ASKED)
            of = self.arms[arm]
            taken[arm] = set(of.chosen), of.dropped - of.took, set(of.took)
            if arm == BASE:
                generators = generator_states(self.caller.prepared)
        base, head = runs[BASE][0], runs[HEAD][0]
        self.earlier_results(live)
        alone = outside[HEAD] - outside[BASE]
        compared = {WRITE} if _writes_compared(base, head) else set()
        self.note_outside(alone - compared, identity, False, followed[BASE])
        self.note_outside(outside[HEAD] & outside[BASE], identity, True, followed[BASE])
        if isinstance(base, NotCalled) or isinstance(head, NotCalled):
            reason = _not_called_reason(base, head)
            self.counts["in_neither"] += base == head and reason.startswith("api-change")
            unmade = [
                isinstance(o, NotCalled) and o.reason.startswith("inputs could not be made") for o in (base, head)
            ]
            if self.target.guessed and all(unmade):  # a guess that no object of the tree is made from
                reason = f"not exercised: {reason}"
            self.not_measured(reason)
            return
        if is_environment(base) or is_environment(head):
            raised = base.raised if is_environment(base) else head.raised
            assert raised is not None
            if base.raised == head.raised:
                self.not_measured(f"not exercised: both arms cannot run here: {raised[1][:200]}")
            else:  # what the other arm did is not what this one did, wherever the reason lies
                who = ARM_NAMES[BASE if is_environment(base) else HEAD]
                self.not_measured(f"{who} cannot run here: {raised[1][:200]}")
            return
        for arm in (BASE, HEAD):
            self.notes += [accelerator_note(ARM_NAMES[arm], what) for what in sorted(asked[arm] - asked[1 - arm])]
        if gone := sorted(taken[HEAD][1] & taken[BASE][2] - self.gone):
            self.gone.update(gone)
            self.notes.append(f"head takes no {' and no '.join(gone)}, which base takes")
        # base against base, under the other fill
        again, base_undefined, unsteady = self.under_other_fill(index, BASE, case, pool, base)
        self.counts["aa_cases"] += 1
        if unsteady:
            self.counts["aa_differences"] += 1
            self.not_measured(f"base is not deterministic: base against base differs at {', '.join(unsteady[:3])}")
            return
        if self.first is None and _same(again, base):
            self.first = (index, case, pool, fill, base)
        base = _lasting(base, again)
        head_undefined: dict[str, Any] = {}
        other: Outcome | NotCalled = head
        if uninitialised[HEAD] or base_undefined or base != head or repeats > 1:
            other, head_undefined, unsteady = self.under_other_fill(index, HEAD, case, pool, head)
            if isinstance(other, NotCalled):
                head_undefined, unsteady = {}, ["call"]
            head = _lasting(head, other)
        if not _writes_compared(base, head):
            self.note_outside(alone & compared, identity, False, followed[BASE])
        if case.recorded is not None:
            self.recordings.of(case)["calls"] += 1
            self.recordings.check(case, self.arms[BASE], base, generators, base_undefined)
        if repeats > 1:
            apart = self.recordings.repeat(
                case,
                (fill, other_fill),
                ((base, again), (head, other)),
                lambda arm, chosen: self.call(index, arm, case, pool, chosen),
                _same,
            )
            if apart[BASE]:
                self.counts["aa_differences"] += 1
                self.not_measured(f"base is not deterministic: it differs in {', '.join(apart[BASE][:3])}")
                return
            unsteady += apart[HEAD]
        if base.raised is not None and base.raised == head.raised:
            if (case.contract or self.target.guessed) and base == head and case.recorded is None:
                # Inputs that production sends do not raise; what raises here in both arms is the surroundings, or
                # inputs that the function does not take.
                self.not_measured(f"not exercised: both arms raise {base.raised[0]}: {base.raised[1][:200]}")
                return
            self.counts["both_raised"] += 1
        broken: list[Difference] = []
        if self.checks is not None and case.contract and case.recorded is None and not self.options.get("shapes"):
            self.index = index
            broken = self.checks.check(pool, (live[BASE], live[HEAD]))
        if base == head and not base_undefined and not head_undefined and not broken and not unsteady:
            if base.unread:
                self.not_measured(uncompared(base, head))
                return
            if unseen := [name for name in missing[HEAD] if name not in missing[BASE]]:
                # Code that asks whether there is an operator falls back on what base does where it was not compiled.
                text = f"not exercised: head looks for {', '.join(unseen[:3])}, which is not there, and base does not"
                self.not_measured(text)
                return
            self.same(index, case)
            # Memory of recorded inputs is used again, so those of an earlier call need not stay as they were.
            due = case.recorded is None and self.history.due()
            results = (base.returned, head.returned)
            self.earlier = _Earlier(index, case, identity, live, results, inputs if due else None)
            if due:
                self.history.keep(Kept(index, case, identity, base), self.caller.output)
            return
        known = ((fill, base), (other_fill, again))
        if self.child.device == "cuda" and (leaves := self.wavering(index, case, pool, known)):
            self.counts["aa_differences"] += 1
            self.not_measured(f"base is not deterministic: base against base differs at {', '.join(leaves[:3])}")
            return
        initial = self.initial(case, pool, base, head)
        found = compare(
            base,
            head,
            base_undefined,
            head_undefined,
            initial,
            self.options.get("exceptions", "message"),
            self.child.states.start,
        )
        found += broken
        if unsteady and not found:
            found = [Difference(Kind.VALUE, "return", "the same each time", "not the same each time")]
        if not found:
            if reason := uncompared(base, head):
                self.not_measured(reason)
            else:
                self.same(index, case)
            return
        if names := sorted(taken[HEAD][0] & taken[BASE][1]):  # what head no longer takes is a difference
            more = ", ".join(names[:3])
            self.not_measured(f"api-change: head alone takes {more}, which this case gives")
            return
        if unsteady:
            note = f"{UNSTEADY} {', '.join(unsteady[:3])}"
            found = [item.noted(note) for item in found]
        if said := self.opinion(case, pool, live):
            found = [i.noted(said) if i.leaf.startswith(("return", "raised")) else i for i in found]
        for arm in (BASE, HEAD):
            does = outside[arm] - outside[1 - arm]
            if any(item.leaf == BEYOND for item in found):
                does = does - {WRITE}
            if does and followed[1 - arm] and base.raised is None and head.raised is None:
                found[0] = found[0].noted(outside_detail(ARM_NAMES[arm], ARM_NAMES[1 - arm], does))
        self.differs(index, case, identity, found)

    def note_outside(self, does: set[str], identity: str, both: bool, base_followed: bool) -> None:
        """Note what head's kernels, or `both` versions', do outside of their tensors, the first time that they do."""
        if does - self.outside[both]:
            self.outside[both].update(does)
            self.notes.append(outside_note(does, identity, both, base_followed))

    def wavering(
        self, index: int, case: Case, pool: Pool, known: tuple[tuple[int, Outcome | NotCalled], ...]
    ) -> list[str]:
        """Leaves at which base, called again and again, is not always the same: threads of a device may race."""
        for fill, earlier in known * _REPEATS_ON_DEVICE:
            now = self.call(index, BASE, case, pool, fill)
            if not _same(now, earlier):
                if isinstance(now, NotCalled) or isinstance(earlier, NotCalled):
                    return ["call"]
                return unstable_leaves(earlier, now)
        return []

    def call(self, index: int, arm: int, case: Case, pool: Pool, fill: int) -> Outcome | NotCalled:
        child = self.child
        label = self.unit["arms"][arm]
        child.board.enter(child.slot, child.pid, self.unit["number"], index, arm, first=label not in child.called)
        began = time.monotonic()
        if case.host != self.current:
            self.current, self.arms = case.host, self.arms_of(case.host)
        self.arms[arm].loader.missing.clear()
        self.arms[arm].forget()
        HOST_ASKED.clear()
        BOUNDS.lost = lambda does: child.channel.send(
            {"note": self.unit["number"], "text": far_note(ARM_NAMES[arm], does)}
        )
        try:
            return self.caller.call(self.target, self.unit["symbols"][arm], self.arms[arm], case, pool, fill)
        finally:
            if os.getpid() != child.pid:
                child.exit(0)  # a process that the code under test forked came back here; the case is not its own
            child.called.add(label)
            child.board.leave(child.slot)
            child.check_channel()
            self.slowest = max(self.slowest, time.monotonic() - began)
            child.trim_log()

    def under_other_fill(
        self, index: int, arm: int, case: Case, pool: Pool, first: Outcome
    ) -> tuple[Outcome | NotCalled, dict[str, Any], list[str]]:
        """One arm's call once more, with other bytes in memory that nobody wrote.

        Returns:
            What came of it, what so shows to be undefined (:func:`undefined_leaves`), and where chance decides: the
            call under the first fill does not come out the same again.
        """
        fill, other_fill = self.pair
        again = self.call(index, arm, case, pool, other_fill)
        if _same(again, first):
            return again, {}, []
        if isinstance(again, NotCalled) or not only_poison(first, again, self.pair):
            third = self.call(index, arm, case, pool, fill)
            if not _same(third, first):
                return again, {}, ["call"] if isinstance(third, NotCalled) else unstable_leaves(first, third)
        if isinstance(again, NotCalled):
            return again, {"call": None}, []
        return again, undefined_leaves(first, again, self.pair, self.child.states.start), []

    def opinion(self, case: Case, pool: Pool, live: list[Live]) -> str:
        """Which arm the target's reference implementation agrees with; empty when it says nothing."""
        try:
            expected = None if self.target.oracle is None else self.target.oracle(pool)
        except Exception:
            if case.source != "recorded":
                raise
            return ""  # it may expect what a case that was made small, say, no longer holds
        if expected is None:
            return ""
        from difftest.oracles.agreement import opinion

        part = 1
        if isinstance(expected, Left):
            expected, part = expected.values, 0
        left, right = (_RAISED if each is None else each[part] for each in live)
        said: str = opinion(expected, left, right)
        return said

    def same(self, index: int, case: Case) -> None:
        if index in self.shaky:
            self.not_measured(f"{self.shaky[index]} once, and not when it was run again")
            return
        self.counts["identical"] += 1
        self.alike.append(index)
        if case.recorded is not None:
            self.recordings.of(case)["exact"] += 1

    def initial(self, case: Case, pool: Pool, base: Outcome, head: Outcome) -> dict[str, Any]:
        """Inputs before the call, for those that are not the same after it."""
        left, right = dict(base.changed), dict(head.changed)
        names = {name for name in left.keys() | right.keys() if left.get(name) != right.get(name)}
        if not names:
            return {}
        arm = self.arms[BASE]
        private = own_pool(arm, case, pool)
        if case.recorded is not None:  # what the call is given comes to be only there
            self.caller.prepare(self.target, self.unit["symbols"][BASE], arm, private)
        freezer = Freezer(whole=True, scrub=self.child.scrub)
        return {name: freezer.root(name, private[name]) for name in private if name in names}

    def after_death(self, index: int, case: Case, pool: Pool, identity: str, dead: list[Any]) -> None:
        """The call of one arm killed a child; what the other arm does decides what that means."""
        arm, kind, text = dead[0], dead[1], dead[2]
        other = dead[3] if len(dead) > 3 else None
        if other is not None:
            self.not_measured(f"both arms end alike: {ARM_NAMES[arm]} {text}; {other}")
            return
        if self.target.guessed and self.target.triton and kind == Kind.CRASH:
            # A kernel that is given indices at a guess reaches beyond its memory; what that hits is chance.
            self.not_measured(f"not exercised: with guessed inputs {ARM_NAMES[arm]} {text}")
            return
        outcome = self.call(index, 1 - arm, case, pool, fills(identity)[0])
        if isinstance(outcome, NotCalled):
            self.not_measured(outcome.reason)
            return
        raised = outcome.raised
        fine = "returns" if raised is None else f"raises {raised[0]}: {raised[1]}"[:300]
        sides = (text, fine) if arm == BASE else (fine, text)
        self.differs(index, case, identity, [Difference(kind, "call", *sides)])

    # -- what it adds up to ---------------------------------------------------------------------------------------

    def not_measured(self, reason: str) -> None:
        self.counts["unmeasured"] += 1
        self.unmeasured[reason] += 1

    def is_expected(self, case: Case, identity: str, found: list[Difference]) -> bool:
        """Whether the manifest expects every mismatch of the case."""
        used = []
        for item in found:
            matching = [
                n for n, e in self.expected if e.matches(case.label, identity, case.contract, item.kind, item.leaf)
            ]
            if not matching:
                return False
            used += matching
        self.expected_used.update(set(used))
        return True

    def differs(self, index: int, case: Case, identity: str, found: list[Difference]) -> None:
        if self.expected and self.is_expected(case, identity, found):
            self.counts["expected"] += 1
            return
        self.counts["different"] += 1
        if not case.contract:
            self.counts["outside_contract"] += 1
        self.counts["mismatches"] += len(found)
        alike = [likeness(item, self.target.rows) for item in found]
        kept = 0
        detailed = self.detailed < _DETAILED_CASES
        self.detailed += detailed
        for item, name in zip(found, alike, strict=True):
            way = (str(item.kind), item.place, str(name), change(item))
            self.kinds[str(item.kind)] += 1
            self.told[*way, index, case.contract] += 1
            new = way not in self.ways and len(self.ways) < _WAYS
            if not new and (not detailed or kept >= MISMATCHES_SHOWN):
                continue
            self.ways.add(way)
            kept += 1
            base, head = excerpts(item.base, item.head, _CHARACTERS)
            self.mismatches.append(
                {
                    "number": index,
                    "case": identity,
                    "kind": str(item.kind),
                    "leaf": item.leaf,
                    "index": list(item.index),
                    "base": base,
                    "head": head,
                    "count": item.count,
                    "contract": case.contract,
                    "size": item.size,
                    "label": case.label,
                    "request": item.index[0] if item.index and root_of(item.leaf) in self.target.rows else None,
                    "detail": [line[:400] for line in item.detail],
                    "likeness": str(name),
                    "place": item.place,
                    "change": way[3],
                    "direction": direction(item),
                    **evidence(item),
                }
            )

    def flush(self, following: int | None, leaving: bool = False) -> None:
        """Send what was found since the last flush. `following` is the next case index; None when all is done."""
        arms = self.both()
        adapters = sorted({f"{name}: {note}" for name, arm in arms for note in arm.notes})
        adapters += [
            f"{name}: {operator} is a stand-in of the profile"
            for name, arm in arms
            for operator in arm.loader.operators
        ]
        strangers = [s for _, a in arms for s in a.loader.strangers()] if following is None and not leaving else []
        self.child.channel.send(
            {
                "result": self.unit["number"],
                "next": following,
                "counts": dict(self.counts),
                "kinds": dict(self.kinds),
                "mismatches": self.mismatches,
                "unmeasured": dict(self.unmeasured),
                "expected": dict(self.expected_used),
                "relations": {} if self.checks is None else {n: dict(c) for n, c in self.checks.counts.items()},
                "sources": dict(self.sources),
                "axes": [[*key, count] for key, count in self.axes.items()],
                "adapters": adapters,
                "host": {name: sorted(values) for name, values in self.host.items()},
                "lines": [] if self.lines is None else self.lines.take(),
                "strangers": strangers,
                "slowest": self.slowest,
                "recorded": self.recordings.flush(),
                "notes": list(dict.fromkeys(self.notes)) + self.recordings.take_notes(),
                "told": [[*key[:5], count, key[5]] for key, count in self.told.items()],
                "alike": self.alike,
                "unclear": self.unclear,
                "leaving": leaving,
                **self.more(),
            }
        )
        self.notes = []
        self.counts, self.kinds, self.unmeasured, self.mismatches = Counter(), Counter(), Counter(), []
        self.expected_used = Counter()
        self.sources, self.axes = Counter(), Counter()
        self.told, self.alike, self.unclear = Counter(), [], []
        if self.checks is not None:
            self.checks.counts = {}

    def more(self) -> dict[str, Any]:
        """What a kind of unit has to tell beyond this."""
        return {}


def _same(one: Outcome | NotCalled, other: Outcome | NotCalled) -> bool:
    """Whether two runs of one arm agree. What a first call alone does to the process, such as starting threads, is not
    a sign that the arm is not deterministic."""
    if isinstance(one, NotCalled) or isinstance(other, NotCalled):
        return one == other
    return one._replace(process=(), beyond=None) == other._replace(process=(), beyond=None)


def _writes_compared(base: Outcome | NotCalled, head: Outcome | NotCalled) -> bool:
    """Whether a write of one version alone outside of its kernels' tensors is a difference."""
    both = [o for o in (base, head) if isinstance(o, Outcome) and o.raised is None and o.beyond is not None]
    return len(both) == len((base, head))


def _lasting(outcome: Outcome, again: Outcome | NotCalled) -> Outcome:
    """An outcome with those changes of the process only that both of two calls leave: what one call alone does, such
    as importing a library, or a thread of an earlier call that ended meanwhile, is not what the code does. Where it
    wrote is known if it wrote there both times."""
    if not isinstance(again, Outcome):
        return outcome
    if outcome.beyond != again.beyond:
        outcome = outcome._replace(beyond=None)
    if outcome.process == again.process:
        return outcome
    names = {name for name, _ in outcome.process}
    return outcome._replace(process=tuple([(name, text) for name, text in again.process if name in names]))


def share_of(index: int, total: int) -> int:
    """Which of `total` shares a case belongs to. Scattered, since neighbours in a grid differ in cost by turns."""
    return (index * 2_654_435_761 >> 16) % total


def _has_checks(target: Target) -> bool:
    return bool(target.invariants or target.relations)


def root_of(leaf: str) -> str:
    """The output or input that a leaf is part of."""
    return leaf.split("[")[0]


def _not_called_reason(base: Outcome | NotCalled, head: Outcome | NotCalled) -> str:
    if isinstance(base, NotCalled) and isinstance(head, NotCalled):
        if base.reason != head.reason:
            return f"{base.reason}, head: {head.reason}"
        return f"{base.reason} (in either version)" if base.reason.startswith("api-change") else base.reason
    found = base if isinstance(base, NotCalled) else head
    assert isinstance(found, NotCalled)
    arm = ARM_NAMES[BASE if found is base else HEAD]
    reason = found.reason.removeprefix("not exercised: ")  # the other arm came to its call
    return f"{reason} (in {arm})" if arm not in reason else reason
