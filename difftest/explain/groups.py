"""Mismatches that share a cause, and what the cases that have them have in common. Pure; no torch, no numpy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from difftest.result import Kind, Likeness

Axes = Mapping[str, str]
"""A case's axis values by axis."""

_ENDS = (Kind.CRASH, Kind.TIMEOUT, Kind.EXCEPTION)
_FOLLOWS = (Kind.MUTATION, Kind.RNG, Kind.ALIAS, Kind.UNDEFINED)
_FARTHEST = list(Likeness)
_FEW_VALUES = 3
_TOGETHER = 2
"""Values that a property may be a choice of, and one that is said together with another."""
_LIKELY = 6
_WORD = re.compile(r"-?\w+")
_ALIKE = 0.5
"""A property that more than this share of the identical cases have, too, is not worth saying."""


@dataclass
class Signature:
    """A way to differ: mismatches alike in kind, place, class and, for some kinds, in what becomes what.

    Attributes:
        kind, place, likeness, change: as in :class:`difftest.result.Way`.
        cases: indices of the cases that have it.
        mismatches: how many mismatches of that signature there are.
        outside: indices of its cases that are outside the contract.
        follows: class and change of the exception that it follows from.
    """

    kind: str
    place: str
    likeness: str
    change: str = ""
    cases: set[int] = field(default_factory=set)
    mismatches: int = 0
    outside: set[int] = field(default_factory=set)
    follows: tuple[str, str] | None = None


@dataclass
class CaseGroup:
    """Signatures that the same cases have, and those that follow from the first of them."""

    signatures: list[Signature]

    @property
    def cases(self) -> set[int]:
        """All of its cases: the first signature is of each."""
        return self.signatures[0].cases

    @property
    def outside(self) -> set[int]:
        return self.signatures[0].outside

    @property
    def likeness(self) -> str:
        return farthest(signature.likeness for signature in self.signatures)


def farthest(classes: Iterable[str]) -> str:
    """The class that says the values are the farthest apart."""
    return max(classes, key=lambda name: _FARTHEST.index(Likeness(name)))


def signatures(told: Iterable[Sequence[object]]) -> list[Signature]:
    """Signatures out of `(kind, place, likeness, change, case, mismatches, contract)`, joined where they are alike.

    A call that raised has left its inputs, generators and memory as they were by then: where these differ in a case
    with another exception, they follow from it.
    """
    rows = [tuple(row) for row in told]
    raised = {row[4]: (str(row[2]), str(row[3])) for row in rows if row[0] == Kind.EXCEPTION}
    found: dict[tuple[str, ...], Signature] = {}
    for kind, place, alike, change, case, mismatches, contract in rows:
        key: tuple[str, ...] = (str(kind), str(place), str(alike), str(change))
        follows = raised.get(case) if kind in _FOLLOWS else None
        if follows is not None:
            key = (str(kind), str(place), Likeness.DIFFERENT, "", *follows)
        signature = found.setdefault(key, Signature(key[0], key[1], key[2], key[3], follows=follows))
        assert isinstance(case, int) and isinstance(mismatches, int)
        signature.cases.add(case)
        signature.mismatches += mismatches
        if not contract:
            signature.outside.add(case)
    return list(found.values())


def case_groups(found: Iterable[Signature]) -> list[CaseGroup]:
    """Signatures that appear in exactly the same cases belong together, and what follows from one of them.

    Most cases first, then by first case.
    """
    every = list(found)
    together: dict[frozenset[int], list[Signature]] = {}
    for signature in every:
        if signature.follows is None:
            together.setdefault(frozenset(signature.cases), []).append(signature)
    groups = [CaseGroup(sorted(each, key=_telling)) for each in together.values()]
    for group in groups:
        ends = {(s.likeness, s.change) for s in group.signatures if s.kind == Kind.EXCEPTION}
        group.signatures += [s for s in every if s.follows in ends]
    return sorted(groups, key=lambda group: (-len(group.cases), min(group.cases)))


def _telling(signature: Signature) -> tuple[bool, bool, int]:
    """Orders signatures of the same cases: what ended a call, then results, then what is left behind."""
    return (signature.kind not in _ENDS, signature.kind in _FOLLOWS, -signature.mismatches)


# -- what they have in common -----------------------------------------------------------------------------------------


class Common(NamedTuple):
    """What the differing cases have in common.

    Attributes:
        condition: what all of them and no other case have; empty when nothing is.
        rules: sentences that say so, or what comes next to it, the best first.
    """

    condition: str = ""
    rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Property:
    """`axis is one of these values`, or with `but` set, `axis is anything else`; with `word` set, all values that have
    that word."""

    axis: str
    values: tuple[str, ...]
    but: bool = False
    word: str = ""

    def holds(self, case: Axes) -> bool:
        return self.axis in case and (case[self.axis] in self.values) is not self.but

    def words(self) -> str:
        if self.word:
            return f'{self.axis} with "{self.word}"'
        values = " or ".join(f'"{value}"' for value in self.values)
        return f"{self.axis} other than {values}" if self.but else f"{self.axis} {values}"


def in_common(
    differing: Sequence[Axes], identical: Sequence[Axes], unclear: Sequence[Axes] = (), inside: int = 0
) -> Common:
    """What tells the differing cases from the identical ones, in words; the best first.

    One property, or two together, that all differing cases and no identical one have; else what all differing cases and
    few identical ones have, or what most differing cases and no identical one have. Of one case it says what no
    identical one has, which is no condition: the case itself is named beside it. Nor is it one if a case has it of
    which nothing is known (`unclear`).

    Args:
        inside: how many of the differing cases, the first ones, are inside the contract; where these by themselves are
            told apart better, that is said.
    """
    found, held = _in_common(differing, identical, unclear)
    if held and 0 < inside < len(differing):
        own, own_held = _in_common(differing[:inside], identical, unclear, " inside the contract")
        if own.rules and own_held < held:
            return Common("", own.rules)
    return found


def _in_common(
    differing: Sequence[Axes], identical: Sequence[Axes], unclear: Sequence[Axes], which: str = ""
) -> tuple[Common, int]:
    """What they have in common, and how many identical cases have it, too; more than there are if nothing is."""
    every_one, all_identical = len(differing), len(identical)
    differing, identical = [case for case in differing if case], [case for case in identical if case]
    if not differing or not identical:
        return Common(), 0  # nothing to tell, or nothing to tell them from
    single = list(_properties(differing, identical))
    every = [p for p in single if all(p.holds(case) for case in differing)]
    scored = sorted(every, key=lambda p: (_held((p,), identical), p.but, len(p.values)))
    many = len(differing)
    who = "the case" if many == 1 else f"{'both' if many == 2 else f'all {many}'} cases"
    who += which + " whose axes are known" * (many < every_one)
    have = "has" if many == 1 else "have"
    others = f"{len(identical)} identical case{'' if len(identical) == 1 else 's'}"
    others += " whose axes are known" * (len(identical) < all_identical)
    for parts in _combinations(scored, min(many, 2)):
        if not _held(parts, identical):
            none = "not the" if len(identical) == 1 else "none of the"
            words = _words(parts)
            rule = f"{who}, but {none} {others}, {have} {words}"
            known = many == every_one > 1 and not _held(parts, unclear)
            return Common(words if known else "", (rule,)), 0
    if scored and many > 1:
        pairs = sorted(_combinations(scored[:_LIKELY], 2), key=lambda parts: (_held(parts, identical), len(parts)))
        best = pairs[0]
        if 2 * _held(best, identical) > _held(scored[:1], identical):
            best = (scored[0],)
        held = _held(best, identical)
        if held <= _ALIKE * len(identical):
            return Common("", (f"{who}, and {held} of the {others}, have {_words(best)}",)), held
    sure = [p for p in single if p not in every and not p.but and not _held((p,), identical)]
    sure = [p for p in sure if _held((p,), differing) >= max(2, many / 2)]
    told = []
    if sure:
        best_one = max(sure, key=lambda p: _held((p,), differing))
        some = f"{_held((best_one,), differing)} of {many} cases{which}"
        none = "not the" if len(identical) == 1 else "none of the"
        told.append(f"{some}, but {none} {others}, have {best_one.words()}")
    return Common("", tuple(told)), len(identical) + 1


def _words(parts: Sequence[_Property]) -> str:
    return ", and ".join(part.words() for part in parts)


def _combinations(properties: Sequence[_Property], most: int) -> Iterable[tuple[_Property, ...]]:
    """Single properties, then some together, none of which is a choice of many values."""
    yield from itertools.combinations(properties, 1)
    plain = [p for p in properties if p.word or len(p.values) <= _TOGETHER]
    for size in range(2, most + 1):
        yield from itertools.combinations(plain, size)


def _properties(differing: Sequence[Axes], identical: Sequence[Axes]) -> Iterable[_Property]:
    for axis in dict.fromkeys(axis for case in differing for axis in case):
        here = list(dict.fromkeys(case[axis] for case in differing if axis in case))
        everywhere = set(here) | {case[axis] for case in identical if axis in case}
        if len(everywhere) < 2:
            continue
        for value in here:
            yield _Property(axis, (value,))
        never = everywhere - set(here)
        if len(never) == 1 and len(here) > 1:
            yield _Property(axis, tuple(never), but=True)
        elif 1 < len(here) <= _FEW_VALUES and never:
            yield _Property(axis, tuple(sorted(here)))
        elif len(here) > _FEW_VALUES:
            for word in filter(_WORD.fullmatch, dict.fromkeys(here[0].split())):
                having = tuple(value for value in everywhere if word in value.split())
                if set(here) <= set(having) != everywhere:
                    yield _Property(axis, having, word=word)


def _held(parts: Sequence[_Property], cases: Sequence[Axes]) -> int:
    """How many cases have all of some properties."""
    return sum(all(part.holds(case) for part in parts) for case in cases)
