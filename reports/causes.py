"""What is said of the cause of a difference: groups, fixed noise, laws, changed lines. Plain text."""

from __future__ import annotations

from collections.abc import Iterator

from difftest.result import Change, ChangedLine, Group, Likeness, Mismatch, TargetResult

from .words import plain, plural

LEGEND = "! run by differing cases only, . run by identical cases only, x run by no traced case"
_MARKS = {"differing": "!", "identical": ".", "none": "x"}
LEAVES_SHOWN = 4


def class_words(mismatch: Mismatch) -> str:
    """Kind and class of a mismatch: `value, 3 ulp apart`; the class only where it says more than `different`."""
    if mismatch.likeness == Likeness.ULP and mismatch.ulp_largest is not None:
        return f"{mismatch.kind}, at most {mismatch.ulp_largest:.0f} ulp apart"
    said = mismatch.likeness not in (Likeness.DIFFERENT, mismatch.kind.replace("-", " "))
    return f"{mismatch.kind}, {mismatch.likeness}" if said else mismatch.kind


def group_title(group: Group) -> str:
    """`14 cases: value at return[] (same under fixed noise), all outside the contract`."""
    leaves = ", ".join(plain(leaf, 80) for leaf in group.leaves[:LEAVES_SHOWN])
    more = f" and {len(group.leaves) - LEAVES_SHOWN} more" if len(group.leaves) > LEAVES_SHOWN else ""
    outside = ""
    if group.outside_contract:
        all_of = group.outside_contract == group.cases
        outside = ", all outside the contract" if all_of else f", {group.outside_contract} outside the contract"
    kinds = ", ".join(group.kinds)
    return f"{plural(group.cases, 'case')}: {kinds} at {leaves}{more} ({group.likeness}){outside}"


def group_facts(group: Group) -> list[tuple[str, str]]:
    """What is known of a group, as (name, value)."""
    facts = [("in common", plain(rule, 300)) for rule in group.rules]
    if group.lines:
        facts.append(("only they run", plain(", ".join(group.lines), 400)))
    facts += [("note", plain(note, 300)) for note in group.notes]
    if group.example:
        facts.append(("example", f"case {plain(group.example, 64)}, {plain(group.label, 300)}"))
    return facts


def chance_facts(target: TargetResult) -> list[tuple[str, str]]:
    """What the same noise in both arms and many samples say, as (name, value)."""
    found = []
    for name, told in (("fixed noise", target.fixed_noise), ("distribution", target.distribution)):
        if told.get("said"):
            found.append((name, plain(told["said"], 1000)))
    return found


def traced_words(target: TargetResult) -> str:
    """`seen in 4 differing and 6 identical cases`; empty when no case was traced."""
    if not target.traced:
        return ""
    cases = " and ".join(f"{target.traced.get(who, 0)} {who}" for who in ("differing", "identical"))
    return f"which cases run a line was seen in {cases} ones"


def change_title(change: Change) -> str:
    """`changed vllm.x:f, vllm/x.py`."""
    path = change.head_path or change.base_path
    moved = f" (base: {change.base_path})" if change.base_path not in ("", path) else ""
    return plain(f"{change.status} {change.symbol}, {path}{moved}", 300)


def change_lines(change: Change, most: int) -> Iterator[str]:
    """The lines of a change as in a diff: sign, who ran it, line number, text; at most so many."""
    shown = change.lines[:most]
    before: ChangedLine | None = None
    for line in shown:
        if before is not None and _gap(before, line):
            yield "  ..."
        mark = _MARKS.get(line.ran, " ")
        yield f"{line.sign}{mark} {line.head or line.base or 0:>4}  {line.text}".rstrip()
        before = line
    if rest := change.cut + len(change.lines) - len(shown):
        yield f"  and {plural(rest, 'more line')}"


def _gap(before: ChangedLine, line: ChangedLine) -> bool:
    return any(
        old is not None and new is not None and new > old + 1
        for old, new in ((before.base, line.base), (before.head, line.head))
    )
