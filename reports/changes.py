"""What is said of the changed lines: which of them the cause is about, and the diff with who ran them. Plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from difftest.result import CONTEXT_LINES, Change, ChangedLine, Kind, Likeness, TargetResult

from .words import plain, plural

_MARKS = {"differing": "!", "identical": ".", "none": "x"}
_MEANS = {
    "!": "run only by cases that differ",
    ".": "run only by cases that agree",
    "x": "run by none of them",
}
RANGES_SAID = 6
CHANGES_SAID = 3
LEAST_SHARE = 12
"""Lines that each definition that is shown gets at least, while there are any left."""


# -- which of them the cause is about ---------------------------------------------------------------------------------


def code_words(target: TargetResult) -> str:
    """Which changed code the cases of the largest group run, or draw their noise in; else what changed at all."""
    changes = [change for change in target.changes if change.runs != "import"] or list(target.changes)
    if not changes:
        return ""
    if raised := _where_raised(target):
        return f"The changed line that raises is in {_said(raised)}."
    if drawn := _where_drawn(target):
        base, head = (" and ".join(names) for names in _draws_apart(target))
        if base and head:
            return f"Base draws with {base}, head with {head}: {_said(drawn)}."
        only, other = ("Base", "head") if base else ("Head", "base")
        return f"{only} draws with {base or head}, which {other} does not: {_said(drawn)}."
    one = len(changes) == 1
    if telling := _of_largest_group(target):
        only = f"of the {plural(sum(target.traced.values()), 'case')} looked at only differing ones run"
        if one:
            return f"The only changed definition is {_name(telling[0][0])}; {only} {_where(*telling[0])}."
        loaded = [(change, _ran(change, "")) for change in changes if change.runs == "load"]
        too = f" Changed, too, and run when they are loaded: {_said(loaded)}." if loaded else ""
        return f"{only.capitalize()} the changed lines in {_said(telling)}.{too}"
    run = [(c, lines) for c in by_relevance(target) if c.runs != "import" and (lines := _ran(c, "both"))]
    run = [(change, lines) for change, lines in run if change.runs == "call"] or run
    known = run or [(change, _ran(change, "")) for change in changes]
    if one:
        return f"The only changed definition is {_said(known)}."
    if run:
        too = ", as identical ones do" if target.traced.get("identical") else ""
        return f"Differing cases run {len(run)} of the {len(changes)} changed definitions{too}: {_said(run)}."
    return f"{len(changes)} definitions changed: {_said(known)}."


def cause_place(target: TargetResult) -> tuple[str, int] | None:
    """File and line, in head, of the first changed line that the cause names, else that differing cases ran."""
    leading = _where_raised(target) or _where_drawn(target) or _of_largest_group(target)
    further = [(c, ran) for who in ("differing", "both", "") for c in by_relevance(target) if (ran := _ran(c, who))]
    for change, lines in (*leading, *further):
        first = next((line for line in lines if line.sign == "+"), lines[0])
        at = change.lines.index(first)
        near = (*change.lines[at:], *reversed(change.lines[:at]))  # head has nothing in place of what it removed
        if change.head_path and (found := [line.head for line in near if line.head is not None]):
            return change.head_path, found[0]
    return None


def _place(change: Change, line: ChangedLine) -> str:
    """A line that only head has, as a group names it."""
    return f"{change.head_path}:{line.head}" if line.sign == "+" else ""


_Named = tuple[Change, list[ChangedLine]]
"""A change, and those of its lines that are named."""


def _said(named: Sequence[_Named]) -> str:
    more = f" and {len(named) - CHANGES_SAID} more" if len(named) > CHANGES_SAID else ""
    return "; ".join(f"{_name(change)} ({_where(change, lines)})" for change, lines in named[:CHANGES_SAID]) + more


def _where_raised(target: TargetResult) -> list[_Named]:
    """The changed lines at which one arm raises, where that is how the largest group differs."""
    if not target.groups or not target.groups[0].raised or target.groups[0].kinds[:1] != (Kind.EXCEPTION,):
        return []
    found = []
    for change in target.changes:
        places = {f"base {change.base_path}:": "base", f"head {change.head_path}:": "head"}
        at = {(arm, place.removeprefix(name)) for place in target.groups[0].raised for name, arm in places.items()}
        lines = [x for x in change.lines if x.sign != " " and {("base", str(x.base)), ("head", str(x.head))} & at]
        if lines:
            found.append((change, lines))
    return found


def _where_drawn(target: TargetResult) -> list[_Named]:
    """Changed lines that call what only one arm draws with, when that is all that makes the largest group differ."""
    if not target.groups or target.groups[0].likeness != Likeness.SAME_NOISE:
        return []
    base, head = _draws_apart(target)
    found = []
    for change in target.changes:
        lines = [
            line
            for line in change.lines
            if line.ran not in ("none", "identical")
            and any(re.search(rf"\b{re.escape(n)}_?\(", line.text) for n in {"-": base, "+": head}.get(line.sign, ()))
            and not line.text.lstrip().startswith("def ")
        ]
        if lines:
            found.append((change, lines))
    modules = {str(symbol).partition(":")[0] for symbol in target.symbol.values()}
    return sorted(found, key=lambda each: each[0].symbol.partition(":")[0] not in modules)  # the target's own first


def _draws_apart(target: TargetResult) -> tuple[list[str], list[str]]:
    """The functions that only base, and only head, draws with."""
    drawn = [
        dict.fromkeys(re.split(r"\W", source, maxsplit=1)[0] for source in target.fixed_noise.get(name, ()))
        for name in ("base_draws", "head_draws")
    ]
    return [n for n in drawn[0] if n not in drawn[1]], [n for n in drawn[1] if n not in drawn[0]]


def _of_largest_group(target: TargetResult) -> list[_Named]:
    """Changed lines that all of the largest group's cases run and no identical case does; where there is no other
    group, base's, too, that only differing cases run."""
    if not target.groups:
        return []
    own = set(target.groups[0].lines)
    alone = len(target.groups) == 1
    named = [
        (c, [x for x in c.lines if _place(c, x) in own or (alone and x.sign == "-" and x.ran == "differing")])
        for c in target.changes
    ]
    return [(change, lines) for change, lines in named if lines and change.runs != "import"]


def _ran(change: Change, who: str) -> list[ChangedLine]:
    runs = ("both", "run") if who == "both" else (who,)
    return [line for line in change.lines if line.sign != " " and (not who or line.ran in runs)]


def _name(change: Change) -> str:
    return plain(change.symbol.rpartition(":")[2] or change.symbol, 100)


def _where(change: Change, lines: Sequence[ChangedLine]) -> str:
    """The lines in head; where only base has any, those in base: `lines 48, 56-57 of vllm/a.py`."""
    head = [line.head for line in lines if line.head is not None]
    base = [line.base for line in lines if line.base is not None]
    spans = _spans(head or base)
    more = f" and {len(spans) - RANGES_SAID} more" if len(spans) > RANGES_SAID else ""
    path = plain(change.head_path if head or not base else change.base_path, 200)
    which = "base's " if base and not head else ""
    return f"{which}line{'s' if len(head or base) > 1 else ''} {', '.join(spans[:RANGES_SAID])}{more} of {path}"


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


# -- the diff ---------------------------------------------------------------------------------------------------------


def by_relevance(target: TargetResult) -> list[Change]:
    """The changes, first those with lines that only differing cases ran, then those with lines that were run at all;
    what runs when it is loaded, and imports, come last."""
    last = ("call", "load", "import")
    return sorted(target.changes, key=lambda c: (not _ran(c, "differing"), last.index(c.runs), not _ran(c, "both")))


def telling_changes(target: TargetResult, most: int) -> list[Change]:
    """The changed lines that a reader needs first, in at most so many lines in all.

    All of them when they fit; else those that the cause names, then those that only differing cases ran, or differing
    cases among others, each with its neighbours. What is left out is counted in `cut`.
    """
    changes = by_relevance(target)
    if sum(len(change.lines) for change in changes) <= most:
        return changes
    leading = _where_raised(target) or _where_drawn(target) or _of_largest_group(target)
    named = {change.symbol for change, _ in leading}
    for who in ("differing",) if leading else ("differing", "both", ""):
        if further := [(c, ran) for c in changes if (ran := _ran(c, who)) and c.symbol not in named]:
            leading += further
            break
    kept = []
    for number, (change, lines) in enumerate(leading):
        share = min(max(0, most), max(LEAST_SHARE, most // (len(leading) - number)))
        chosen = _of_share(change, lines, share)
        shown = chosen.lines[:share]
        most -= len(shown)
        if shown:
            kept.append(replace(chosen, lines=shown, cut=chosen.cut + len(chosen.lines) - len(shown)))
    return kept


def _of_share(change: Change, lines: Sequence[ChangedLine], most: int) -> Change:
    """The change, whole if it has no more lines than that; else around its telling lines, and around others as long as
    these fit: those that only differing cases ran, and those with new words."""
    if len(change.lines) <= most:
        return change
    wanted = [*_new(change, lines)]
    chosen = _around(change, wanted)
    for more in (_ran(change, "differing"), _new(change, _ran(change, ""))):
        wanted += more
        if len((larger := _around(change, wanted)).lines) <= most:
            chosen = larger
    return chosen


def _new(change: Change, lines: Sequence[ChangedLine]) -> Sequence[ChangedLine]:
    """Those whose words the other version does not have in the definition, where some are of that kind: what is only
    indented otherwise tells less."""
    words = {sign: {line.text.strip() for line in change.lines if line.sign == sign} for sign in "-+"}
    new = [line for line in lines if line.text.strip() not in words["+" if line.sign == "-" else "-"]]
    return new or lines


def _around(change: Change, lines: Sequence[ChangedLine]) -> Change:
    """The change with only those lines, and the few before and after each of them."""
    wanted = set(map(id, lines))
    at = [n for n, line in enumerate(change.lines) if id(line) in wanted]
    near = {n + step for n in at for step in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    kept = tuple(line for n, line in enumerate(change.lines) if n in near)
    return replace(change, lines=kept, cut=change.cut + len(change.lines) - len(kept))


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
    status = status_words(change)
    return plain(f"{_name(change)}{f', {status}' * (status != 'changed')}, {path}{moved}", 300)


def status_words(change: Change) -> str:
    """What became of a definition; one that one version alone reaches may well be in both trees."""
    return {"added": "reached by head alone", "removed": "reached by base alone"}.get(change.status, change.status)


def change_lines(change: Change, most: int) -> Iterator[str]:
    """The lines of a change as in a diff: sign, who ran it, line number, text; at most so many."""
    for prefix, text in numbered_lines(change, most):
        yield f"{prefix}{text}".rstrip()


def numbered_lines(change: Change, most: int) -> Iterator[tuple[str, str]]:
    """The lines of a change, each in two parts: sign, mark and number, and the text without the common indent."""
    shown = change.lines[:most]
    indent = min((len(line.text) - len(line.text.lstrip()) for line in shown if line.text.strip()), default=0)
    width = max((len(str(line.head or line.base or 0)) for line in shown), default=1)
    base, head = 0, 0  # the last lines of each version
    skipped = False  # before the removed lines just above; the added ones in their place lie behind the same gap
    for line in shown:
        jumps = (base and line.base and line.base > base + 1) or (head and line.head and line.head > head + 1)
        if jumps and not (skipped and line.sign == "+"):
            yield "", "  ..."
            skipped = True
        skipped = skipped and line.sign == "-"
        # A line around the changed ones is run or not for other reasons, too.
        mark = _MARKS.get(line.ran, " ") if line.sign != " " else " "
        yield f"{line.sign}{mark} {line.head or line.base or 0:>{width}}  ", line.text[indent:]
        base, head = line.base or base, line.head or head
    if rest := change.cut + len(change.lines) - len(shown):
        yield "", f"  and {plural(rest, 'more line')}"
