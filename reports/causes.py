"""What is said of the cause of a difference: groups, the changed lines, fixed noise, laws. Plain text."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import NamedTuple

from difftest.result import (
    GROUPS_SHOWN,
    Group,
    Kind,
    Likeness,
    Mismatch,
    TargetResult,
    Way,
)

from .changes import code_words, line_ranges
from .words import contract_split, plain, plural, total

WAYS_SAID = 3
BROKEN_SAID = 2
ONLY_DIFFERING = "of those looked at only differing cases run"
_ULP = re.compile(r"\d+ ulp apart")
_FAR = 1e6
"""From here on a distance in ulp is no more than an order of magnitude."""

_WORDS = {
    Kind.VALUE: "values differ",
    Kind.SIGN_OF_ZERO: "zeros have another sign",
    Kind.NAN_PAYLOAD: "NaNs have other bits",
    Kind.DTYPE: "dtype differs",
    Kind.SHAPE: "shape differs",
    Kind.STRIDE: "memory layout (strides) differs",
    Kind.TYPE: "type differs",
    Kind.STRUCTURE: "number of items or fields differs",
    Kind.EXCEPTION: "another exception",
    Kind.MUTATION: "input is left in another state",
    Kind.ALIAS: "memory is shared with something else",
    Kind.RNG: "the generator is left in another state",
    Kind.UNDEFINED: "one version leaves memory unwritten",
    Kind.CRASH: "one version ends the process",
    Kind.TIMEOUT: "one version hangs",
    Kind.INVARIANT: "does not hold in head",
}
_CLASSES = {
    Likeness.ULP: "by a few units in the last place",
    Likeness.SET_EQUAL: "in their order only",
    Likeness.SAME_NOISE: "but agree when both versions draw the same noise",
    Likeness.SAME_LAW: "but follow the same distribution",
    Likeness.OTHER_LAW: "and follow another distribution",
}


# -- one mismatch -----------------------------------------------------------------------------------------------------


def class_words(mismatch: Mismatch) -> str:
    """Kind and class of a mismatch: `value, at most 3 ulp apart`; the class only where it says more than the kind."""
    if mismatch.likeness == Likeness.ULP and mismatch.ulp_largest is not None:
        return f"{mismatch.kind}, at most {mismatch.ulp_largest:.0f} ulp apart"
    said = mismatch.likeness not in (Likeness.DIFFERENT, mismatch.kind.replace("-", " "))
    return f"{mismatch.kind}, {mismatch.likeness}" if said else mismatch.kind


def both_values(mismatch: Mismatch, limit: int) -> tuple[str, str]:
    """Both values, numbers with their bits: `0.5 (0x3f000000)`."""
    return tuple(  # type: ignore[return-value]
        f"{plain(value, limit)} ({bits})" if bits and bits != value else plain(value, limit)
        for value, bits in ((mismatch.base, mismatch.base_hex), (mismatch.head, mismatch.head_hex))
    )


def ulp_words(mismatch: Mismatch) -> str:
    """`1 ulp apart, largest 3`; empty where that has no meaning."""
    if mismatch.ulp is None:
        return ""
    largest = ""
    if mismatch.ulp_largest is not None and mismatch.count > 1:
        largest = f", largest {_ulp(mismatch.ulp_largest)}"
    return f"{_ulp(mismatch.ulp)} ulp apart{largest}"


def further_detail(mismatch: Mismatch, neighbours: bool = True) -> list[str]:
    """The lines of detail that say more than :func:`both_values` and :func:`ulp_words` do."""
    lines = []
    for line in mismatch.detail:
        arm, near, numbers = line.partition(" ... ")
        if near and arm in ("base", "head"):
            lines += [f"around it in {arm}: {numbers}"] if neighbours else []
        elif not (mismatch.base_hex and line.startswith("bits ")) and not (
            mismatch.ulp is not None and _ULP.match(line)
        ):
            lines.append(line)
    return lines


def _ulp(distance: float) -> str:
    return f"{distance:.0f}" if distance < _FAR else f"{distance:.1e}".replace("e+", "e")


# -- groups -----------------------------------------------------------------------------------------------------------


def more_groups(target: TargetResult, shown: int) -> str:
    """`and 2 more groups`; empty when all are shown. A result holds the first ones only."""
    rest = len(target.groups[shown:])
    if not rest:
        return ""
    if len(target.groups) >= GROUPS_SHOWN:
        return f"and at least {plural(rest, 'more group')}"
    return f"and {plural(rest, 'more group')}"


def way_words(way: Way, cases: int) -> str:
    """`return[1]: values differ`, with the number of cases where these are not all of the group."""
    what = f"{plain(way.place, 80)}: {_WORDS[Kind(way.kind)]}"
    if way.kind == Kind.EXCEPTION and way.change:
        what = plain(way.change, 200)
    elif way.kind in (Kind.CRASH, Kind.TIMEOUT):
        what = _WORDS[Kind(way.kind)]
    elif way.change:
        what = f"{plain(way.place, 80)}: {plain(way.change, 120)}"
    if way.kind == Kind.VALUE and way.likeness in _CLASSES:
        what += f" {_CLASSES[Likeness(way.likeness)]}"
    return what if way.cases in (0, cases) else f"in {way.cases} of them also {what}"


def group_title(group: Group) -> str:
    """`14 cases: return[*]: values differ; 3 of these cases are outside the contract`."""
    within = f" of group {group.within}" if group.within else ""
    return f"{plural(group.cases, 'case')}{within}: {ways_words(group)}{outside_words(group)}"


def ways_words(group: Group, most: int = WAYS_SAID) -> str:
    """In which ways the cases of a group differ, the most telling first."""
    said = [way_words(way, group.cases) for way in _of_class(group)]
    if not said:
        said = [f"{', '.join(group.kinds)} at {', '.join(plain(leaf, 80) for leaf in group.leaves)}"]
    more = f"; and {plural(len(said) - most, 'more way')}" if len(said) > most else ""
    return "; ".join(said[:most]) + more


def _of_class(group: Group) -> list[Way]:
    """The ways, those in values with the class of the group where noise and samples told one."""
    told = (Likeness.SAME_NOISE, Likeness.SAME_LAW, Likeness.OTHER_LAW)
    likeness = group.likeness if group.likeness in told else None
    return [replace(way, likeness=likeness or way.likeness) for way in group.ways]


def outside_words(group: Group) -> str:
    if not group.outside_contract:
        return ""
    if group.outside_contract == group.cases:
        return "; all outside the contract"
    verb = "is" if group.outside_contract == 1 else "are"
    return f"; {group.outside_contract} of the {group.cases} cases {verb} outside the contract"


class Fact(NamedTuple):
    """What is known of a group beside its example: a name, words, and a line of code that belongs to them."""

    name: str
    words: str
    line: str = ""

    @property
    def whole(self) -> str:
        return f"{self.words}: {self.line}" if self.line else self.words


def group_facts(group: Group) -> list[Fact]:
    """What is known of a group beside its example."""
    facts = [Fact("in common", plain(rule, 400)) for rule in group.rules]
    for at, line in itertools.zip_longest(group.raised, group.raising, fillvalue=""):
        arm, _, place = at.partition(" ")
        facts.append(Fact(f"{arm} raises", f"at {arm}'s {plain(place, 300)}", plain(line, 200)))
    for name, lines in ((ONLY_DIFFERING, group.lines), ("run changed", group.shared_lines)):
        if lines:
            facts.append(Fact(name, plain(", ".join(line_ranges(lines)), 400)))
    return facts + [Fact("note", plain(note, 300)) for note in group.notes]


# -- the sentence that names the cause --------------------------------------------------------------------------------


def differ_words(target: TargetResult) -> str:
    """`87 of 358 cases differ, 37 cases inside the contract, 50 outside`."""
    differing = target.cases.different
    said = f"{differing} of {plural(total(target.cases), 'case')} {'differs' if differing == 1 else 'differ'}"
    return f"{said}, {split}" if (split := contract_split(target)) else said


def cause_words(target: TargetResult) -> str:
    """What the evidence says of the cause: where it shows, in what, and which changed code those cases run."""
    parts = [_shown_by(target), _broken(target), code_words(target), _chance(target)]
    return " ".join(part for part in parts if part)


def _shown_by(target: TargetResult) -> str:
    if not target.groups:
        return ""
    group = target.groups[0]
    what = ways_words(group, 2)
    rest = sum(not other.within for other in target.groups[1:])
    least = "At least " if len(target.groups) >= GROUPS_SHOWN else ""
    more = f" {least}{plural(rest, 'other group')} {'differs' if rest == 1 else 'differ'} otherwise." if rest else ""
    more += (
        " Some of these cases differ in other ways, too." if any(other.within == 1 for other in target.groups) else ""
    )
    if group.condition:
        return f"Cases with {plain(group.condition, 300)} differ, and no identical case is like that: {what}.{more}"
    share = f"all {group.cases}" if group.cases == target.cases.different else f"{group.cases} of the"
    of = "" if group.cases == target.cases.different else f" {target.cases.different}"
    if group.cases > 1 and (rule := "".join(group.rules[:1])):  # what one case alone has may be so by chance
        more = f" {plain(rule[:1].upper() + rule[1:], 300)}.{more}"
    if target.cases.different == 1:
        return f"In the differing case: {what}.{more}"
    return f"In {share}{of} differing cases: {what}.{more}"


def _broken(target: TargetResult) -> str:
    """The invariants and relations that one version keeps and the other does not."""
    said = []
    for arm, other in (("head", "base"), ("base", "head")):
        names = [name for name, counts in target.relations.items() if counts.get(arm) and not counts.get(other)]
        counts = [(name, target.relations[name]) for name in names[:BROKEN_SAID]]
        shown = [f'"{plain(name, 120)}" ({n[arm]} of {plural(n["checked"], "case")})' for name, n in counts]
        more = f" and {len(names) - BROKEN_SAID} more" if len(names) > BROKEN_SAID else ""
        if names:
            said.append(f"Only {arm} breaks {', '.join(shown)}{more}.")
    return " ".join(said)


def _chance(target: TargetResult) -> str:
    likeness = target.fixed_noise.get("likeness")
    every = len(target.groups) < GROUPS_SHOWN and all(
        group.likeness == Likeness.SAME_NOISE or set(group.kinds) == {Kind.RNG} for group in target.groups
    )
    if likeness == Likeness.SAME_NOISE and every and target.fixed_noise.get("cases"):
        equal, cases = target.fixed_noise["equal"], target.fixed_noise["cases"]
        tried = f"{equal} of {plural(cases, 'case')} tried {'agrees' if equal == 1 else 'agree'}"
        return f"Only which random numbers are drawn seems to differ: {tried} when both versions draw the same."
    if target.distribution.get("likeness") == Likeness.OTHER_LAW:
        return "Sampled many times, the two versions follow different distributions."
    if target.distribution.get("likeness") == Likeness.SAME_LAW:
        return f"In {target.distribution.get('samples')} samples of each version the distributions show no difference."
    if "base_draws" in target.fixed_noise and likeness is None and set(target.kinds) == {Kind.RNG}:
        return "Results agree; only the states in which the generators are left differ."
    return ""


def chance_facts(target: TargetResult) -> list[tuple[str, str]]:
    """What the same noise in both arms and many samples say, as (name, value)."""
    found = []
    for name, told in (("fixed noise", target.fixed_noise), ("distribution", target.distribution)):
        if told.get("said"):
            found.append((name, plain(told["said"], 1000)))
    return found
