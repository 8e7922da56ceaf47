"""Mismatches that share a cause, and what the cases that have them have in common. Pure; no torch, no numpy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from difftest.result import Likeness

Axes = Mapping[str, str]
"""A case's axis values by axis."""

_INDEX = re.compile(r"\[\d+\]")
_FARTHEST = list(Likeness)
_FEW_VALUES = 5
_ALIKE = 0.5
"""A property that more than this share of the identical cases have, too, is not worth saying."""


@dataclass
class Signature:
    """A way to differ: mismatches alike in kind, place and class.

    Attributes:
        kind, leaf, likeness: the leaf without its indices.
        cases: indices of the cases that have it.
        mismatches: how many mismatches of that signature there are.
        outside: indices of its cases that are outside the contract.
    """

    kind: str
    leaf: str
    likeness: str
    cases: set[int] = field(default_factory=set)
    mismatches: int = 0
    outside: set[int] = field(default_factory=set)


@dataclass
class CaseGroup:
    """Signatures that the same cases have."""

    signatures: list[Signature]

    @property
    def cases(self) -> set[int]:
        return self.signatures[0].cases

    @property
    def outside(self) -> set[int]:
        return self.signatures[0].outside

    @property
    def likeness(self) -> str:
        return farthest(signature.likeness for signature in self.signatures)


def general_leaf(leaf: str) -> str:
    """A leaf without its indices: `return[0][3]` is `return[][]`. Keys of dicts stay."""
    return _INDEX.sub("[]", leaf)


def farthest(classes: Iterable[str]) -> str:
    """The class that says the values are the farthest apart."""
    return max(classes, key=lambda name: _FARTHEST.index(Likeness(name)))


def signatures(told: Iterable[Sequence[object]]) -> list[Signature]:
    """Signatures out of `(kind, leaf, likeness, case, mismatches, contract)` tuples, joined where they are alike."""
    found: dict[tuple[str, str, str], Signature] = {}
    for kind, leaf, alike, case, mismatches, contract in told:
        key = (str(kind), str(leaf), str(alike))
        signature = found.setdefault(key, Signature(*key))
        assert isinstance(case, int) and isinstance(mismatches, int)
        signature.cases.add(case)
        signature.mismatches += mismatches
        if not contract:
            signature.outside.add(case)
    return list(found.values())


def case_groups(found: Iterable[Signature]) -> list[CaseGroup]:
    """Signatures that appear in exactly the same cases belong together. Most cases first, then by first case."""
    together: dict[frozenset[int], list[Signature]] = {}
    for signature in found:
        together.setdefault(frozenset(signature.cases), []).append(signature)
    groups = [CaseGroup(sorted(each, key=lambda s: -s.mismatches)) for each in together.values()]
    return sorted(groups, key=lambda group: (-len(group.cases), min(group.cases)))


# -- what they have in common -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Property:
    """`axis is one of these values`, or with `but` set, `axis is anything else`."""

    axis: str
    values: tuple[str, ...]
    but: bool = False

    def holds(self, case: Axes) -> bool:
        return self.axis in case and (case[self.axis] in self.values) is not self.but

    def words(self) -> str:
        values = " or ".join(f"{value}" for value in self.values)
        return f"{self.axis}: not {values}" if self.but else f"{self.axis}: {values}"


def in_common(differing: Sequence[Axes], identical: Sequence[Axes], most: int = 3) -> tuple[str, ...]:
    """What tells the differing cases from the identical ones, in words; the best first.

    One property, or for several cases two together, that all differing cases and no identical one have; else what all
    differing cases and few identical ones have, and what most differing cases and no identical one have.
    """
    every_one = len(differing)
    differing, identical = [case for case in differing if case], [case for case in identical if case]
    if not differing:
        return ()
    if not identical:
        return ()  # nothing to tell them from
    single = list(_properties(differing, identical))
    every = [p for p in single if all(p.holds(case) for case in differing)]
    scored = sorted(every, key=lambda p: (_held(p, identical), p.but, len(p.values)))
    told: list[str] = []
    exact = [p for p in scored if not _held(p, identical)]
    many, others = len(differing), len(identical)
    named = "differing cases" if many == every_one else "differing cases that have axes"
    who = f"all {many} {named} have" if many > 1 else "the differing case has"
    if exact:
        return tuple(
            f"{who} {p.words()}; none of the {others} identical {'case' if others == 1 else 'cases'} has"
            for p in exact[:most]
        )
    for first, second in itertools.combinations(scored if many > 1 else (), 2):
        if not any(first.holds(case) and second.holds(case) for case in identical):
            told.append(f"{who} {first.words()} and {second.words()}; none of the {others} identical cases has both")
            if len(told) == most:
                return tuple(told)
    if not told:
        told = [
            f"{who} {p.words()}; so have {_held(p, identical)} of {others} identical ones"
            for p in scored
            if _held(p, identical) <= _ALIKE * others
        ]
    sure = [p for p in single if p not in every and not p.but and not _held(p, identical)]
    sure = [p for p in sure if _held(p, differing) >= max(2, len(differing) / 2)]
    for p in sorted(sure, key=lambda p: -_held(p, differing)):
        told.append(f"{_held(p, differing)} of {many} differing cases have {p.words()}; no identical case has")
    return tuple(told[:most])


def _properties(differing: Sequence[Axes], identical: Sequence[Axes]) -> Iterable[_Property]:
    for axis in dict.fromkeys(axis for case in differing for axis in case):
        here = list(dict.fromkeys(case[axis] for case in differing if axis in case))
        everywhere = set(here) | {case[axis] for case in identical if axis in case}
        if len(everywhere) < 2:
            continue
        for value in here:
            yield _Property(axis, (value,))
        if 1 < len(here) <= _FEW_VALUES and len(here) < len(everywhere) - 1:
            yield _Property(axis, tuple(sorted(here)))
        never = everywhere - set(here)
        if len(never) == 1 and len(here) > 1:
            yield _Property(axis, tuple(never), but=True)


def _held(prop: _Property, cases: Sequence[Axes]) -> int:
    return sum(prop.holds(case) for case in cases)
