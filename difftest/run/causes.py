"""After the verdicts: the mismatches grouped, the changed lines, and a pass in the worker that looks for causes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from difftest.explain.changes import RUN_BY_LOADING, closure_changes, lines_to_trace, marked
from difftest.explain.groups import CaseGroup, case_groups, signatures
from difftest.lift.lines import function_lines
from difftest.result import GROUPS_SHOWN, WAYS_SHOWN, Group, Kind, Mismatch, TargetResult, Way
from difftest.run.plan import ArmSource, Planned
from difftest.run.protocol import LOOKS
from difftest.run.supervisor import Supervisor, Unit

PATIENCE = 4.0
"""Times the processor time that looking for causes may take on a loaded machine."""

LEAST_SECONDS = 0.5
"""What one target gets at least; with very many, the last ones get nothing."""

_FOR_ORDER = ("number", "drawn", "change", "direction")
"""What is told of a mismatch beside the mismatch: its case's number, whether that was drawn, its way's change, what
becomes what."""


@dataclass
class Compared:
    """One target that was compared.

    Attributes:
        units: the shares of its cases.
        arms: base and the head it was compared with.
    """

    planned: Planned
    units: Sequence[Unit]
    arms: tuple[ArmSource, ArmSource]
    result: TargetResult


class Changed:
    """In what the code of a target's two versions differs."""

    def __init__(self, planned: Planned, arms: tuple[ArmSource, ArmSource]) -> None:
        self._reads = dict(zip(("base", "head"), (arm.tree.read for arm in arms), strict=True))
        self.changes = closure_changes(planned.base.closure, planned.head.closure, *self._reads.values())
        self.lines = lines_to_trace(self.changes)

    @cached_property
    def runnable(self) -> dict[str, dict[str, frozenset[int]]]:
        """Per arm and path, of the files of the changes, the lines that a call can run."""
        return {
            arm: {path: function_lines(read(path)) for path in self.lines[arm]} for arm, read in self._reads.items()
        }


def look_ahead(
    planned: Mapping[int, Planned], base: ArmSource, heads: Sequence[ArmSource], busy: Callable[[], bool]
) -> dict[int, Changed]:
    """What :func:`find_causes` needs to know of the changed code of targets that may differ, while there is nothing
    else to do.

    Args:
        busy: whether the worker, which takes its time to start, still does.
    """
    found: dict[int, Changed] = {}
    for number, item in planned.items():
        if item.code == "changed" and busy():
            found[number] = Changed(item, (base, heads[item.head_index]))
            if busy():
                found[number].runnable  # noqa: B018
    return found


def find_causes(
    found: Mapping[int, Compared],
    supervisor: Supervisor,
    options: Mapping[str, Any],
    seconds: float | None,
    known: dict[int, Changed],
) -> dict[int, TargetResult]:
    """The results with groups and changes, and what a look into the cases tells, when there is time for it.

    Args:
        found: by any number.
        known: by the same number, what :func:`look_ahead` has found; completed.
        options: those of the run (:meth:`Supervisor.run`).
        seconds: for all targets together; None runs no case again.
    """
    grouped = {n: case_groups(signatures(_told(each.units))) for n, each in found.items()}
    changed = complete(known, found)
    units: dict[int, list[Unit]] = {}
    if seconds is not None and found:
        children = len(supervisor.children)
        each_seconds = max(LEAST_SECONDS, seconds * children / len(found))
        # With children to spare, one target's looks are taken side by side.
        looks = [(look,) for look in LOOKS] if len(found) * len(LOOKS) <= children else [LOOKS]
        for n, each in found.items():
            first = each.units[0]
            asked = _asked(grouped[n], each, changed[n], min(seconds, each_seconds))
            units[n] = [
                Unit(
                    *(number, first.target, first.symbols, first.arms, (0, 1), first.timeout, n),
                    explain={**asked, "looks": taken},
                    dead={i: how for u in each.units if u.fuzz is None for i, how in u.dead.items()},
                )
                for number, taken in enumerate(looks, len(looks) * len(units))
            ]
        supervisor.run(
            [unit for each in units.values() for unit in each],
            {arm.label: arm for each in found.values() for arm in each.arms},
            options,
            lambda unit, done: None,
            lambda unit: None,
            time.monotonic() + PATIENCE * seconds,
        )
    return {n: _explained(each, grouped[n], changed[n], units.get(n, ())) for n, each in found.items()}


def complete(known: dict[int, Changed], found: Mapping[int, Compared]) -> dict[int, Changed]:
    """What is known of the changed code of some targets, what was not known before included."""
    for number in found.keys() - known.keys():
        known[number] = Changed(found[number].planned, found[number].arms)
    return {number: known[number] for number in found}


def _number(unit: Unit, case: int) -> int:
    """A case's index; below 0 for a case that a fuzz drew, which is in no list and so is not run again."""
    return case if unit.fuzz is None else -1 - case


def _told(units: Sequence[Unit]) -> list[tuple[object, ...]]:
    return [
        (kind, place, alike, change, _number(unit, case), count, contract)
        for unit in units
        for kind, place, alike, change, case, count, contract in unit.told
    ]


def _asked(groups: Sequence[CaseGroup], each: Compared, changed: Changed, seconds: float) -> dict[str, Any]:
    added: dict[str, list[int]] = {}
    for change in changed.changes:
        can_run = changed.runnable["head"].get(change.head_path, ())
        lines = [x for x in change.lines if x.sign == "+" and not x.text.lstrip().startswith(RUN_BY_LOADING)]
        added.setdefault(change.head_path, []).extend(line.head for line in lines if line.head and line.head in can_run)
    return {
        "groups": [[i for i in _in_order(g) if i >= 0] for g in groups[:GROUPS_SHOWN]],
        "only_states": all(s.kind == Kind.RNG for g in groups for s in g.signatures),
        "places": [[[s.kind, s.place] for s in g.signatures] for g in groups[:GROUPS_SHOWN]],
        "alike": sorted(i for u in each.units if u.fuzz is None for i in u.alike),
        "unclear": sorted(i for u in each.units if u.fuzz is None for i in u.unclear),
        "lines": changed.lines,
        "added": added,
        "seconds": seconds,
    }


def _explained(each: Compared, groups: Sequence[CaseGroup], changed: Changed, units: Sequence[Unit]) -> TargetResult:
    told = {name: part for unit in units for name, part in unit.explained.items()}
    kept = [(_number(u, m["number"]), m) for u in each.units for m in u.mismatches]
    named = dict(reversed(kept))
    classes: Sequence[str | None] = told.get("classes", ())
    changes = changed.changes
    shown = []
    for number, group in enumerate(groups[:GROUPS_SHOWN]):
        first = _first_of(group, kept)
        shown.append(
            Group(
                kinds=tuple(dict.fromkeys(s.kind for s in group.signatures)),
                leaves=tuple(dict.fromkeys(s.place for s in group.signatures)),
                likeness=(classes[number] if number < len(classes) else None) or group.likeness,
                cases=len(group.cases),
                mismatches=sum(s.mismatches for s in group.signatures),
                example="" if first is None else first.case,
                label="" if first is None else first.label,
                outside_contract=len(group.outside),
                rules=_of(told.get("rules"), number),
                condition="".join(_of(told.get("conditions"), number)),
                ways=_ways(group),
                first=first,
                lines=_of(told.get("lines"), number),
                shared_lines=_of(told.get("shared_lines"), number),
                notes=_notes(number, groups, classes, told.get("tried", ())),
                raised=_of(told.get("raised"), number),
                raising=_of(told.get("raising"), number),
                within=_within(number, groups),
            )
        )
    if told.get("ran") and told["traced"]["differing"]:  # else nobody knows which lines matter
        ran = {
            arm: {path: {int(n): str(who) for n, who in lines} for path, lines in files.items()}
            for arm, files in told["ran"].items()
        }
        apart = bool(told.get("traced", {}).get("identical"))
        changes = marked(changes, ran, changed.runnable, apart)
    notes = (*each.result.notes, *dict.fromkeys(note for unit in units for note in unit.notes))
    return replace(
        each.result,
        groups=tuple(shown),
        mismatches=_with_classes(each.result, groups, classes, named),
        changes=changes,
        traced=dict(told.get("traced", {})),
        fixed_noise=dict(told.get("fixed_noise", {})),
        distribution=dict(told.get("distribution", {})),
        notes=tuple(notes),
    )


def _with_classes(
    result: TargetResult,
    groups: Sequence[CaseGroup],
    classes: Sequence[str | None],
    named: Mapping[int, Mapping[str, Any]],
) -> tuple[Mismatch, ...]:
    """The mismatches with the classes of their groups; a generator's state keeps its own."""
    known: dict[tuple[str, str, str], str] = {}
    for group, name in zip(groups, classes, strict=False):
        for signature in group.signatures:
            if name is not None and signature.kind != Kind.RNG:
                places = (signature.kind, signature.place)
                known.update({(named[i]["case"], *places): name for i in group.cases if i in named})
    return tuple(replace(m, likeness=known.get((m.case, m.kind, m.place), m.likeness)) for m in result.mismatches)


def mismatch_of(told: Mapping[str, Any]) -> Mismatch:
    """The mismatch that a worker told of."""
    fields = {name: value for name, value in told.items() if name not in _FOR_ORDER}
    return Mismatch(**{**fields, "index": tuple(told["index"]), "detail": tuple(told["detail"])})


def _first_of(group: CaseGroup, kept: Sequence[tuple[int, Mapping[str, Any]]]) -> Mismatch | None:
    """The first mismatch of the group's first way that has one, of a case inside the contract if there is one."""
    for way in group.signatures:
        wanted = (way.kind, way.place, way.likeness, way.change)
        found = [
            (number in group.outside, number, m)
            for number, m in kept
            if number in group.cases and (m["kind"], m["place"], m["likeness"], m["change"]) == wanted
        ]
        if found:
            return mismatch_of(min(found, key=lambda each: each[:2])[2])
    return None


def _ways(group: CaseGroup) -> tuple[Way, ...]:
    return tuple(
        Way(s.kind, s.place, s.likeness, s.change, len(s.cases), s.mismatches) for s in group.signatures[:WAYS_SHOWN]
    )


def _notes(
    number: int, groups: Sequence[CaseGroup], classes: Sequence[str | None], tried: Sequence[int]
) -> tuple[str, ...]:
    """On how many cases a group's class rests, where these are not all."""
    cases = len(groups[number].cases)
    if number >= len(classes) or classes[number] is None or tried[number] == cases:
        return ()
    return (f"tried on the same noise: {tried[number]} of its {cases} cases",)


def _within(number: int, groups: Sequence[CaseGroup]) -> int:
    """The number of the first larger group whose cases a group's are, from 1; 0 when there is none."""
    cases = groups[number].cases
    return next((n for n, other in enumerate(groups[:number], 1) if cases < other.cases), 0)


def _in_order(group: CaseGroup) -> list[int]:
    """The group's cases, those inside the contract first."""
    return sorted(group.cases, key=lambda i: (i in group.outside, i))


def _of(found: Sequence[Sequence[str]] | None, number: int) -> tuple[str, ...]:
    return tuple(map(str, found[number])) if found is not None and number < len(found) else ()
