"""What is said of the cause of a difference: groups, the changed lines, fixed noise, laws. Plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from difftest.result import (
    CONTEXT_LINES,
    Change,
    ChangedLine,
    Group,
    Kind,
    Likeness,
    Mismatch,
    TargetResult,
    Way,
)

from .words import contract_split, plain, plural, total

_MARKS = {"differing": "!", "identical": ".", "none": "x"}
_MEANS = {
    "!": "run only by cases that differ",
    ".": "run only by cases that agree",
    "x": "run by none of them",
}
WAYS_SAID = 3
RANGES_SAID = 6
CHANGES_SAID = 3
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
    Kind.MUTATION: "input changed otherwise",
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
    return f"{plural(group.cases, 'case')}: {ways_words(group)}{outside_words(group)}"


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


def group_facts(group: Group) -> list[tuple[str, str]]:
    """What is known of a group beside its example, as (name, value)."""
    facts = [("in common", plain(rule, 400)) for rule in group.rules]
    if group.lines:
        facts.append(("only they run", plain(", ".join(line_ranges(group.lines)), 400)))
    return facts + [("note", plain(note, 300)) for note in group.notes]


def line_ranges(lines: Iterable[str], most: int = RANGES_SAID) -> list[str]:
    """`path:line` places with neighbouring lines joined: `vllm/a.py:62-63, 71`."""
    files: dict[str, list[int]] = {}
    for line in lines:
        path, _, number = line.rpartition(":")
        files.setdefault(path, []).append(int(number))
    found = []
    for path, numbers in files.items():
        spans = _spans(numbers)
        more = f" and {len(spans) - most} more" if len(spans) > most else ""
        found.append(f"{path}:{', '.join(spans[:most])}{more}")
    return found


def _spans(numbers: Iterable[int]) -> list[str]:
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number <= spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in spans]


# -- the sentence that names the cause --------------------------------------------------------------------------------


def differ_words(target: TargetResult) -> str:
    """`87 of 358 cases differ, 37 cases inside the contract, 50 outside`."""
    differing = target.cases.different
    said = f"{differing} of {plural(total(target.cases), 'case')} {'differs' if differing == 1 else 'differ'}"
    return f"{said}, {split}" if (split := contract_split(target)) else said


def cause_words(target: TargetResult) -> str:
    """What the evidence says of the cause: where it shows, in what, and which changed code those cases run."""
    parts = [_shown_by(target), _code(target), _chance(target)]
    return " ".join(part for part in parts if part)


def _shown_by(target: TargetResult) -> str:
    if not target.groups:
        return ""
    group = target.groups[0]
    what = ways_words(group, 1)
    rest = len(target.groups) - 1
    more = f" {plural(rest, 'smaller group')} {'differs' if rest == 1 else 'differ'} otherwise." if rest else ""
    if group.condition:
        return f"Cases with {plain(group.condition, 300)} differ, and no identical case is like that: {what}.{more}"
    share = f"all {group.cases}" if group.cases == target.cases.different else f"{group.cases} of the"
    of = "" if group.cases == target.cases.different else f" {target.cases.different}"
    if rule := "".join(group.rules[:1]):
        more = f" {plain(rule[:1].upper() + rule[1:], 300)}.{more}"
    if target.cases.different == 1:
        return f"In the differing case: {what}.{more}"
    return f"In {share}{of} differing cases: {what}.{more}"


def _code(target: TargetResult) -> str:
    changes = [change for change in target.changes if not _is_import(change)] or list(target.changes)
    if not changes:
        return ""
    one = len(changes) == 1
    telling = [change for change in changes if _ran(change, "differing")]
    if telling:
        said = "; ".join(f"{_name(c)} ({_where(c, 'differing')})" for c in telling[:CHANGES_SAID])
        if one:
            where = _where(telling[0], "differing")
            return f"The only changed definition is {_name(telling[0])}; only differing cases run {where}."
        return f"Changed lines that only differing cases run are in {said}{_and_more(telling)}."
    run = [change for change in changes if _ran(change, "both")]
    known = run or changes
    said = "; ".join(f"{_name(c)} ({_where(c, 'both' if run else '')})" for c in known[:CHANGES_SAID])
    if one:
        return f"The only changed definition is {said}."
    if run:
        too = ", as identical ones do" if target.traced.get("identical") else ""
        which = f"Differing cases run {len(run)} of the {len(changes)} changed definitions{too}"
        return f"{which}: {said}{_and_more(run)}."
    return f"{len(changes)} definitions changed: {said}{_and_more(changes)}."


def _and_more(changes: Sequence[Change]) -> str:
    return f" and {len(changes) - CHANGES_SAID} more" if len(changes) > CHANGES_SAID else ""


def _is_import(change: Change) -> bool:
    texts = [line.text.lstrip() for line in change.lines if line.sign != " " and line.text.strip()]
    return bool(texts) and all(text.startswith(("import ", "from ", ")")) or text.endswith(",") for text in texts)


def _ran(change: Change, who: str) -> list[ChangedLine]:
    runs = ("both", "run") if who == "both" else (who,)
    return [line for line in change.lines if line.sign != " " and (not who or line.ran in runs)]


def _name(change: Change) -> str:
    return plain(change.symbol.rpartition(":")[2] or change.symbol, 100)


def _where(change: Change, who: str) -> str:
    """The lines in head; where only base has any, those in base: `lines 48, 56-57 of vllm/a.py`."""
    lines = _ran(change, who) or _ran(change, "")
    head = [line.head for line in lines if line.head is not None]
    base = [line.base for line in lines if line.base is not None]
    spans = _spans(head or base)
    more = f" and {len(spans) - RANGES_SAID} more" if len(spans) > RANGES_SAID else ""
    path = plain(change.head_path if head or not base else change.base_path, 200)
    which = "base's " if base and not head else ""
    return f"{which}line{'s' if len(head or base) > 1 else ''} {', '.join(spans[:RANGES_SAID])}{more} of {path}"


def _chance(target: TargetResult) -> str:
    likeness = target.fixed_noise.get("likeness")
    if likeness == Likeness.SAME_NOISE:
        return "With the same noise in both versions they agree: only which random numbers are drawn differs."
    if target.distribution.get("likeness") == Likeness.OTHER_LAW:
        return "Sampled many times, the two versions follow different distributions."
    if target.distribution.get("likeness") == Likeness.SAME_LAW:
        return f"In {target.distribution.get('samples')} samples of each version the distributions show no difference."
    if "base_draws" in target.fixed_noise and likeness is None:
        return "Results agree; only the states in which the generators are left differ."
    return ""


def chance_facts(target: TargetResult) -> list[tuple[str, str]]:
    """What the same noise in both arms and many samples say, as (name, value)."""
    found = []
    for name, told in (("fixed noise", target.fixed_noise), ("distribution", target.distribution)):
        if told.get("said"):
            found.append((name, plain(told["said"], 1000)))
    return found


# -- the changed lines ------------------------------------------------------------------------------------------------


def telling_changes(target: TargetResult, most: int) -> list[Change]:
    """The changed lines that a reader needs first, in at most so many lines in all.

    All of them when they fit; else those that only differing cases ran, then those that differing cases ran among
    others, each with its neighbours. What is left out is counted in `cut`.
    """
    changes = sorted(target.changes, key=lambda c: (not _ran(c, "differing"), not _ran(c, "both")))
    if sum(len(change.lines) for change in changes) <= most:
        return changes
    chosen: list[Change] = []
    for who in ("differing", "both", ""):
        chosen = [_around(change, who) for change in changes if _ran(change, who)]
        if chosen:
            break
    kept = []
    for change in chosen:
        shown = change.lines[: max(0, most)]
        most -= len(shown)
        if shown:
            kept.append(replace(change, lines=shown, cut=change.cut + len(change.lines) - len(shown)))
    return kept


def _around(change: Change, who: str) -> Change:
    """The change with only those lines, and the few before and after each of them."""
    wanted = set(map(id, _ran(change, who)))
    at = [n for n, line in enumerate(change.lines) if id(line) in wanted]
    near = {n + step for n in at for step in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    lines = tuple(line for n, line in enumerate(change.lines) if n in near)
    return replace(change, lines=lines, cut=change.cut + len(change.lines) - len(lines))


def legend(target: TargetResult) -> str:
    """What the marks beside the changed lines mean; empty when there are none."""
    marks = {_MARKS.get(line.ran, "") for change in target.changes for line in change.lines if line.sign != " "}
    said = [f"{mark} {meaning}" for mark, meaning in _MEANS.items() if mark in marks]
    if not said or not target.traced:
        return ""
    cases = " and ".join(plural(target.traced.get(who, 0), f"{who} case") for who in ("differing", "identical"))
    return f"{', '.join(said)} (looked at: {cases})"


def change_title(change: Change) -> str:
    """`Sampler.forward, vllm/v1/sample/sampler.py`, with what became of it unless it is changed."""
    path = change.head_path or change.base_path
    moved = f" (base: {change.base_path})" if change.base_path not in ("", path) else ""
    status = "" if change.status == "changed" else f", {change.status}"
    return plain(f"{_name(change)}{status}, {path}{moved}", 300)


def change_lines(change: Change, most: int) -> Iterator[str]:
    """The lines of a change as in a diff: sign, who ran it, line number, text; at most so many."""
    for prefix, text in numbered_lines(change, most):
        yield f"{prefix}{text}".rstrip()


def numbered_lines(change: Change, most: int) -> Iterator[tuple[str, str]]:
    """The lines of a change, each in two parts: sign, mark and number, and the text without the common indent."""
    shown = change.lines[:most]
    indent = min((len(line.text) - len(line.text.lstrip()) for line in shown if line.text.strip()), default=0)
    width = max((len(str(line.head or line.base or 0)) for line in shown), default=1)
    before: ChangedLine | None = None
    for line in shown:
        if before is not None and _gap(before, line):
            yield "", "  ..."
        # A line around the changed ones is run or not for other reasons, too.
        mark = _MARKS.get(line.ran, " ") if line.sign != " " else " "
        yield f"{line.sign}{mark} {line.head or line.base or 0:>{width}}  ", line.text[indent:]
        before = line
    if rest := change.cut + len(change.lines) - len(shown):
        yield "", f"  and {plural(rest, 'more line')}"


def _gap(before: ChangedLine, line: ChangedLine) -> bool:
    return any(
        old is not None and new is not None and new > old + 1
        for old, new in ((before.base, line.base), (before.head, line.head))
    )
