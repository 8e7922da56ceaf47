"""What a recorded call is checked against beyond base against head: what was recorded, its twins, repetitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from difftest.call.freeze import Freezer, Frozen
from difftest.call.outcome import NotCalled, Outcome
from difftest.call.rng import GlobalStates, generator_state
from difftest.compare.outcomes import Difference, compare
from difftest.errors import ApiChange, LiftError
from difftest.target import After, Arm, Call, Case, Pool, Recorded

NAMED = 3
"""Differences from the recording that a note names, for each target and child."""


class Recordings:
    """Counts, by recorded process, of what became of its calls.

    Attributes:
        counts: per process: `calls`, `exact` (base and head), `repeats` (asked for), `repeats_exact`, `as_recorded`,
            `not_as_recorded`, `not_compared` (with the recording), `twins`, `twins_apart`.
        apart: the first calls in which base does not do what was recorded, in words.
        notes: what else the reader must know.
    """

    def __init__(self, states: GlobalStates, repeats: int) -> None:
        self.states = states
        self.repeats = repeats
        self.counts: dict[str, Counter[str]] = {}
        self.apart: list[str] = []
        self.notes: list[str] = []
        self._named = 0

    def of(self, case: Case) -> Counter[str]:
        """The counts that a case belongs to."""
        assert case.recorded is not None
        return self.counts.setdefault(case.recorded.process, Counter())

    def check(
        self, case: Case, arm: Arm, base: Outcome, states: Mapping[int, tuple[Any, ...]], undefined: Mapping[str, Any]
    ) -> None:
        """Compare what base did with what was recorded, and that with what the lowest rank recorded.

        Args:
            states: the call's generators after base ran, frozen, by number.
            undefined: leaves of base that follow memory which nobody wrote; the recording's are such, too.
        """
        recorded, counts = case.recorded, self.of(case)
        assert recorded is not None
        try:
            after = recorded.after(arm)
            twin = recorded.twin(arm)
            expected, initial = self._outcome(after, recorded, base, states)
            other = None if twin is None else self._outcome(twin, recorded, base, states)[0]
        except (ApiChange, LiftError) as error:
            counts["not_compared"] += 1
            self._note(f"what was recorded cannot be compared with base: {error}")
            return
        did = base._replace(watched=_watched(states))
        found = _differences(expected, did, undefined, self.states.start, initial)
        counts["not_as_recorded" if found else "as_recorded"] += 1
        if found and len(self.apart) < NAMED:
            self.apart.append(f"{case.label}: {_words(found[0], 'recorded', 'base')}")
        if other is None:
            return
        found = _differences(expected, other, undefined, self.states.start, initial)
        counts["twins_apart" if found else "twins"] += 1
        if found:
            self._note(
                f"ranks disagree in what was recorded: {case.label}: {_words(found[0], 'here', 'on the lowest rank')}"
            )

    def repeat(
        self,
        case: Case,
        fills: tuple[int, int],
        first: tuple[tuple[Outcome | NotCalled, ...], tuple[Outcome | NotCalled, ...]],
        call: Callable[[int, int], Outcome | NotCalled],
        same: Callable[[Any, Any], bool],
    ) -> tuple[list[str], list[str]]:
        """Repeat the call in both arms until each was called `repeats` times, restored each time.

        Args:
            fills: poison of the even and of the odd repetitions.
            first: per arm, the outcomes under these fills.
            call: calls an arm under a fill.
            same: whether two outcomes of an arm are the same.

        Returns:
            Per arm, in which repetitions it did something else than under this fill before.
        """
        apart: tuple[list[str], list[str]] = ([], [])
        counts = self.of(case)
        counts["repeats"] += self.repeats
        for repetition in range(self.repeats):
            exact = True
            for arm in (0, 1):
                known = first[arm][repetition % 2]
                if repetition > 1 and not same(call(arm, fills[repetition % 2]), known):
                    apart[arm].append(f"repetition {repetition + 1}")
                    exact = False
            counts["repeats_exact"] += exact
        return apart

    def flush(self) -> dict[str, Any]:
        """What was found since the last time, as a message."""
        message = {"counts": {name: dict(counts) for name, counts in self.counts.items()}, "apart": self.apart}
        self.counts, self.apart = {}, []
        return message

    def take_notes(self) -> list[str]:
        found, self.notes = self.notes, []
        return found

    def _note(self, text: str) -> None:
        if self._named < NAMED:
            self.notes.append(text)
        self._named += 1

    def _outcome(
        self, after: After, recorded: Recorded, base: Outcome, states: Mapping[int, tuple[Any, ...]]
    ) -> tuple[Outcome, Mapping[str, Frozen]]:
        """A recorded outcome in the form of base's, and the inputs before it; what no recording holds is as in base."""
        rng = None if after.rng is None else self.states.as_read(after.rng)
        devices = {number: state[1] for number, state in states.items()}
        generators = {n: ("generator", devices.get(n, "cpu"), state) for n, state in after.generators.items()}
        changed, initial = _changed(after, base)
        outcome = base._replace(
            returned=None if after.raised else Freezer()(after.returned),
            raised=after.raised and (after.raised[0].rpartition(":")[2], after.raised[1]),
            changed=changed,
            rng=base.rng if rng is None else None if rng == self.states.start else rng,
            watched=_watched(generators),
        )
        return outcome, initial


def _changed(after: After, base: Outcome) -> tuple[tuple[tuple[str, Frozen], ...], Mapping[str, Frozen]]:
    """The inputs that the recorded call changed, with what else base changed in them, and all inputs before it.

    A recording holds the memory that tensors and arrays had after the call, and nothing else of its inputs.
    """
    if after.changes is None:
        return base.changed, {}
    if not after.changes and not base.changed:
        return (), {}
    before, now = (_frozen(pool) for pool in after.inputs())
    known = dict(base.changed)
    found = {name: _with_memory(known.get(name, before[name]), now[name]) for name in before}
    return tuple((name, frozen) for name, frozen in found.items() if frozen != before[name]), before


def _frozen(pool: Pool) -> dict[str, Frozen]:
    freezer = Freezer(whole=True)
    return {name: freezer(value) for name, value in pool.items()}


def _with_memory(one: Frozen, memory: Frozen) -> Frozen:
    """A frozen value with the tensors and arrays of another one of the same structure."""
    if one[0] != memory[0] or one == memory:
        return one
    if one[0] in ("storage", "ndarray"):
        alike = one[1:5] == memory[1:5] and len(one[5]) == len(memory[5])
        return (*one[:5], memory[5], *one[6:]) if alike else one
    if one[0] not in ("items", "fields", "dict") or one[1] != memory[1] or len(one[2]) != len(memory[2]):
        return one
    if one[0] == "items":
        return (*one[:2], tuple(_with_memory(a, b) for a, b in zip(one[2], memory[2], strict=True)))
    if [name for name, _ in one[2]] != [name for name, _ in memory[2]]:
        return one
    return (*one[:2], tuple((n, _with_memory(a, b)) for (n, a), (_, b) in zip(one[2], memory[2], strict=True)))


def generator_states(call: Call) -> dict[int, tuple[Any, ...]]:
    """States of a recorded call's generators now, frozen, by number."""
    return {n: ("generator", g.device.type, generator_state(g)) for n, g in call.generators.items()}


def _watched(generators: Mapping[int, tuple[Any, ...]]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    return (("generators", ("dict", "dict", tuple((str(n), generators[n]) for n in sorted(generators)))),)


def _differences(
    one: Outcome,
    other: Outcome,
    undefined: Mapping[str, Any],
    start: tuple[Any, ...],
    initial: Mapping[str, Frozen],
) -> list[Difference]:
    return compare(one, other, undefined, undefined, initial, "type", start, as_recorded=True)


def _words(item: Difference, one: str, other: str) -> str:
    more = f", and {item.count - 1} more elements" if item.count > 1 else ""
    index = f"[{', '.join(map(str, item.index))}]" if item.index else ""
    return f"{item.leaf}{index} is {item.base[:80]} {one}, {item.head[:80]} {other}{more}"
