"""Changed lines that no case of an identical target runs: that its cases agree says nothing of them. No torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from difftest.profiles import concerns
from difftest.result import Change, Unexecuted
from difftest.run.causes import Changed, Compared, complete
from difftest.run.protocol import ARM_NAMES, EXECUTED
from difftest.run.supervisor import Supervisor, Unit

SECONDS = 4.0
"""Processor time in which one target's cases are looked at; it takes less where they soon have run all that changed."""

ALL_SECONDS = 4.0
"""What each child has for all of its targets."""

PATIENCE = 2.0
"""Times that, which it may take on a loaded machine."""

TIMEOUT = 5.0
"""Seconds for one call, which took less when it was compared."""


class _Lines(NamedTuple):
    """The changed lines of one definition that a call can run: head's, or base's where head has none."""

    symbol: str
    arm: str
    path: str
    numbers: frozenset[int]


def unexecuted(
    identical: Mapping[int, Compared],
    differing: Mapping[int, Compared],
    supervisor: Supervisor,
    options: Mapping[str, Any],
    known: dict[int, Changed],
    budget: float | None = None,
) -> tuple[Unexecuted, ...]:
    """Look at cases of identical targets until they have run what changed, or the time is over.

    Args:
        identical: targets whose code changed, by any number.
        differing: targets in which what they reach may show otherwise, so that nothing is to be said of it, by their
            numbers.
        options: those of the run (:meth:`Supervisor.run`).
        known: by the numbers, what is known of their changed code; completed.
        budget: seconds that the whole run was given.
    """
    shown = {
        (differing[number].planned.head_index, change.symbol)
        for number, changed in complete(known, differing).items()
        for change in changed.changes
    }
    wanted: dict[int, list[_Lines]] = {}
    for number, changed in complete(known, identical).items():
        planned = identical[number].planned
        found = [_lines(change, changed) for change in changed.changes if _is_watched(change)]
        wanted[number] = [
            lines
            for lines in found
            if lines.numbers
            and not lines.symbol.endswith(">")  # the loader's own name for what it makes
            and (planned.head_index, lines.symbol) not in shown
            and _is_concerned(lines.path, planned.outline.package)
        ]
    todo = [number for number, lines in wanted.items() if lines]
    together = min(ALL_SECONDS, budget or ALL_SECONDS)
    seconds = min(SECONDS, together * len(supervisor.children) / max(len(todo), 1))
    units = {
        number: Unit(
            *(place, (first := identical[number].units[0]).target, first.symbols, first.arms, (0, 1), TIMEOUT),
            number,
            explain={
                "looks": (EXECUTED,),
                "lines": _by_arm(wanted[number]),
                "cases": sorted(i for u in identical[number].units if u.fuzz is None for i in u.alike),
                "seconds": seconds,
            },
        )
        for place, number in enumerate(todo)
    }
    if units:
        supervisor.run(
            list(units.values()),
            {arm.label: arm for number in todo for arm in identical[number].arms},
            options,
            lambda unit, done: None,
            lambda unit: None,
            time.monotonic() + PATIENCE * together,
        )
    return _not_run(identical, wanted, units)


def _is_watched(change: Change) -> bool:
    """Whether a call runs what changed, line by line, and all of it is known."""
    scripted = any("jit.script" in line.text for line in change.lines if line.text.lstrip().startswith("@"))
    return change.runs == "call" and not change.cut and not scripted


def _is_concerned(path: str, package: str) -> bool:
    """Whether a file is of what the catalog is about, where that is known: settings, say, change all the time."""
    places = concerns(package)
    return not places or any(path == place or path.startswith(f"{place}/") for place in places)


def _lines(change: Change, changed: Changed) -> _Lines:
    for arm, path, numbers in (
        ("head", change.head_path, {line.head for line in change.lines if line.sign == "+"}),
        ("base", change.base_path, {line.base for line in change.lines if line.sign == "-"}),
    ):
        runnable = frozenset(numbers) & changed.runnable[arm].get(path, frozenset())
        if runnable:
            break
    return _Lines(change.symbol, arm, path, frozenset(number for number in runnable if number is not None))


def _by_arm(wanted: list[_Lines]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, set[int]]] = {name: {} for name in ARM_NAMES}
    for lines in wanted:
        found[lines.arm].setdefault(lines.path, set()).update(lines.numbers)
    return {arm: {path: sorted(numbers) for path, numbers in files.items()} for arm, files in found.items()}


def _not_run(
    identical: Mapping[int, Compared], wanted: Mapping[int, list[_Lines]], units: Mapping[int, Unit]
) -> tuple[Unexecuted, ...]:
    """What none of the cases looked at ran, of all targets that reach it."""
    ran: dict[tuple[int, str, str], set[int]] = {}
    held: dict[tuple[int, str, str, str], tuple[set[int], list[int]]] = {}
    for number, unit in units.items():
        head = identical[number].planned.head_index
        for arm, files in unit.explained.get("executed", {}).items():
            for path, numbers in files.items():
                ran.setdefault((head, arm, path), set()).update(numbers)
        for lines in wanted[number]:
            changed, holders = held.setdefault((head, lines.symbol, lines.arm, lines.path), (set(), []))
            changed.update(lines.numbers)  # of a long change, a target may show a part only
            holders.append(number)
    found = []
    for (head, symbol, arm, path), (changed, holders) in held.items():
        missing = sorted(changed - ran.get((head, arm, path), set()))
        cases = sum(units[number].explained.get("looked", 0) for number in holders)
        if missing and cases:  # of what could not be looked at, nothing is known
            found.append(
                Unexecuted(
                    symbol=symbol,
                    head=identical[holders[0]].result.head,
                    arm=arm,
                    path=path,
                    lines=tuple(missing),
                    changed=len(changed),
                    targets=tuple(identical[number].result.name for number in holders),
                    cases=cases,
                    of=sum(len(asked["cases"]) for number in holders if (asked := units[number].explain)),
                )
            )
    return tuple(sorted(found, key=lambda each: (each.head, each.path, each.lines)))
