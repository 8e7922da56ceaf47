"""The report for a pull request on GitHub. Also the step summary of a workflow.

Every value goes through :func:`code` or :func:`text`: a code span is the one place in which GitHub neither
reads markup nor turns `@name` and `#123` into a mention or a reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from difftest.result import Identity, Mismatch, RunResult, TargetResult, Verdict

from .causes import (
    LEGEND,
    chance_facts,
    change_lines,
    change_title,
    class_words,
    group_facts,
    group_title,
    traced_words,
)
from .sentence import sentence
from .words import (
    by_weight,
    contract_split,
    contract_words,
    counts_words,
    environment_words,
    extent,
    identity_facts,
    kinds_words,
    label,
    left_out,
    mode_words,
    place,
    plain,
    plural,
    remarks,
    seconds_words,
    time_words,
)

LIMIT = 65_536
"""Longest comment that GitHub takes, in characters. Counted here in UTF-8 bytes, which are never fewer."""

VALUE_SHOWN = 300
SENTENCE_SHOWN = 2_500
IDENTITY_BYTES = 6_000
TABLE_BYTES = 14_000
REMARK_BYTES = 2_000
ENVIRONMENT_BYTES = 3_000
"""The most that each part may take, so that the parts after it and some mismatches always fit."""

MISMATCH_STEPS = (20, 10, 5, 3, 2, 1)
"""Mismatches shown per target: the largest number with which all targets fit."""

CHANGED_LINES = {20: 120, 10: 100, 5: 80, 3: 60, 2: 40, 1: 20}
"""Changed lines shown per target, by the number of mismatches shown."""

_NAME = re.compile(r"^(?P<open>[(\"']*)(?P<core>.*?)(?P<close>[:,;.!?)\"']*)$")
_SPECIAL = re.compile(r"[^\w.,;:()'\"+=%!?…-]|_|\w:\w|^:|\w\.[A-Za-z]|^GH-\d|^[-+=.]+$|^\d+\)?$")
_WORD = re.compile(r"(?<!\S)\[[^][`]*\][:,;.!?]?(?!\S)|\S+")  # a list of values is one word
_QUOTED = re.compile(r"`[^`]+`")


def code(value: object, limit: int = VALUE_SHOWN) -> str:
    """`value` as a code span that is safe in running text and in a table cell."""
    shown = plain(value, limit)
    if not shown.strip():
        return "(empty)" if not shown else f"({plural(len(shown), 'space')})"
    if "`" not in shown and "|" not in shown and "\\" not in shown and shown == shown.strip():
        return f"`{shown}`"
    return html_code(value, limit)


def html_code(value: object, limit: int = VALUE_SHOWN) -> str:
    """`value` as an HTML code element, for where code spans are not read or would break."""
    shown = plain(value, limit)
    return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in shown)}</code>"


def text(value: object, limit: int = VALUE_SHOWN) -> str:
    """Running text: words stay as they are, whatever could be read as markup becomes a code span."""
    return " ".join(_word(word, first=n == 0) for n, word in enumerate(_WORD.findall(plain(value, limit))))


def _word(word: str, first: bool) -> str:
    match = _NAME.match(word)
    assert match is not None  # every string matches
    opening, core, closing = match["open"], match["core"], match["close"]
    if first and re.fullmatch(r"[-+=]+|\d+[.)]", word):
        return code(word)
    if _QUOTED.fullmatch(core):
        core = core[1:-1]
    elif not _SPECIAL.search(core) or re.fullmatch(r"\d+", core):
        return word
    return f"{opening}{code(core)}{closing}"


def render(result: RunResult) -> str:
    """The report in GitHub's Markdown, at most :data:`LIMIT` bytes; what does not fit is counted."""
    before = [
        f"## difftest: {result.verdict}",
        text(sentence(result), SENTENCE_SHOWN),
        _identities(result),
        _targets(result),
    ]
    after = [_compared(result), *_remarks(result), _repeat(result)]
    used = sum(len(part.encode()) + 2 for part in [*before, *after])
    return "\n\n".join([*before, *_details(result, LIMIT - used), *after]) + "\n"


def _fit(entries: Iterable[str], budget: int) -> tuple[list[str], int]:
    """The first entries whose bytes stay within the budget, and how many were cut."""
    kept: list[str] = []
    cut = 0
    for entry in entries:
        budget -= len(entry.encode()) + 1
        if budget < 0 or cut:
            cut += 1
        else:
            kept.append(entry)
    return kept, cut


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], budget: int, noun: str) -> str:
    head = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    kept, cut = _fit((f"| {' | '.join(row)} |" for row in rows), budget)
    more = [f"\nand {plural(cut, f'more {noun}')}"] if cut else []
    return "\n".join([*head, *kept, *more])


def _bullets(lines: Iterable[str], budget: int) -> str:
    kept, cut = _fit((f"- {line}" for line in lines), budget)
    return "\n".join(kept + ([f"- and {cut} more"] if cut else []))


def _fence(lines: Iterable[str], language: str) -> str:
    body = [plain(line, VALUE_SHOWN) if language == "text" else plain(line, 1_000) for line in lines]
    longest = max((len(run) for line in body for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *body, fence])


def _identities(result: RunResult) -> str:
    arms: list[tuple[str, Identity]] = [("base", result.base)] + [("head", head) for head in result.heads]
    rows = []
    for arm, identity in arms:
        facts = [
            f"{plain(name, 40)} {code(value)}"
            for name, value in identity_facts(identity)
            if name not in ("spec", "kind")
        ]
        rows.append((arm, code(identity.spec), identity.kind, "<br>".join(facts)))
    return _table(("arm", "version", "kind", "identity"), rows, IDENTITY_BYTES, "head")


def _targets(result: RunResult) -> str:
    if not result.targets:
        return "No target was compared."
    rows = [
        (
            f"**{target.verdict}**" if target.verdict != Verdict.IDENTICAL else target.verdict,
            code(label(target, result)),
            target.code,
            counts_words(target),
            "; ".join(filter(None, (kinds_words(target.kinds), contract_split(target)))),
            text(target.mode, 40),
            seconds_words(target.seconds),
        )
        for target in by_weight(result.targets)
    ]
    columns = ("verdict", "target", "code", "cases", "mismatches", "mode", "time")
    return _table(columns, rows, TABLE_BYTES, "target")


def _details(result: RunResult, budget: int) -> list[str]:
    """A folded block per target with mismatches: as many mismatches each as fit, then as many targets."""
    targets = [t for t in by_weight(result.targets) if t.mismatches]
    if not targets:
        return []
    heading = "### Mismatches"
    budget -= len(heading) + 100  # the count of what was cut
    blocks: list[str] = []
    for most in MISMATCH_STEPS:
        blocks = [_block(target, result, most) for target in targets]
        if sum(len(block.encode()) + 2 for block in blocks) <= budget:
            return [heading, *blocks]
    kept, cut = _fit((f"{block}\n" for block in blocks), budget)
    more = f"and {plural(cut, 'more target')} with mismatches; the JSON and HTML reports have them"
    return [heading, *(block.rstrip("\n") for block in kept), more]


def _block(target: TargetResult, result: RunResult, most: int) -> str:
    shown = target.mismatches[:most]
    rest = left_out(target) + len(target.mismatches) - len(shown)
    counts = f"{counts_words(target)}; {kinds_words(target.kinds)}"
    symbols = {arm: target.symbol.get(arm) for arm in ("base", "head")}
    bound = ", ".join(f"{arm} {code(symbol) if symbol else 'none'}" for arm, symbol in symbols.items())
    parts = [
        f"<details><summary>{html_code(label(target, result))}: {counts}</summary>",
        f"Symbol: {bound}. Code: {target.code}. Mode: {text(mode_words(target.mode))}.",
        *_causes(target, most),
        *(_mismatch(number, mismatch) for number, mismatch in enumerate(shown, 1)),
    ]
    if rest:
        parts.append(f"and {plural(rest, 'more mismatch')}")
    return "\n\n".join([*parts, "</details>"])


def _causes(target: TargetResult, most: int) -> list[str]:
    """What tells of the cause, before single mismatches: groups, noise and samples, the changed lines."""
    parts = []
    for number, group in enumerate(target.groups[:most], 1):
        facts = [f"- {name}: {text(value, 600)}" for name, value in group_facts(group)]
        parts.append("\n".join([f"**Group {number}: {text(group_title(group), 600)}**", "", *facts]).rstrip())
    if rest := len(target.groups[most:]):
        parts.append(f"and {plural(rest, 'more group')}")
    parts += [f"**{name.capitalize()}**: {text(value, 1_200)}." for name, value in chance_facts(target)]
    left = CHANGED_LINES[most]
    for change in target.changes:
        if left <= 0:
            parts.append("and further changed definitions; the JSON and HTML reports have them")
            break
        lines = _fence(change_lines(change, left), "diff")
        parts.append(f"**Code** {text(change_title(change), 300)}\n\n{lines}")
        left -= len(change.lines)
    if any(line.ran for change in target.changes for line in change.lines):
        parts.append(f"Marks: {code(LEGEND)}; {traced_words(target)}.")
    return parts


def _mismatch(number: int, mismatch: Mismatch) -> str:
    name = f": {text(mismatch.label)}" if mismatch.label else ""
    lines = [
        f"**{number}. {text(class_words(mismatch))}** at {code(place(mismatch))}, {contract_words(mismatch)}",
        "",
        f"- base {code(mismatch.base)}",
        f"- head {code(mismatch.head)}",
        *([f"- {extent(mismatch)}"] if extent(mismatch) else []),
        f"- case {code(mismatch.case, 64)}{name}",
    ]
    return "\n".join(lines) + (f"\n\n{_fence(mismatch.detail[:12], 'text')}" if mismatch.detail else "")


def _compared(result: RunResult) -> str:
    executed = [t for t in result.targets if t.cases.executed]
    same = [t for t in result.targets if t.code == "same" and not t.cases.executed]
    ran = sum(t.cases.executed for t in executed)
    lines = [f"{plural(ran, 'case')} of {plural(len(executed), 'target')} executed in both arms"]
    if same:
        lines.append(f"{plural(len(same), 'target')} with the same code in both arms, not executed")
    if result.seconds:
        lines.append(text(f"time: {time_words(result)}"))
    rows = [(text(key), text(value)) for key, value in environment_words(result)]
    table = "\n\n" + _table(("environment", ""), rows, ENVIRONMENT_BYTES, "entry") if rows else ""
    return f"### What was compared\n\n{_bullets(lines, REMARK_BYTES)}{table}"


def _remarks(result: RunResult) -> list[str]:
    return [
        f"### {title}\n\n{_bullets((text(line, 600) for line in lines), REMARK_BYTES)}"
        for title, lines in remarks(result)
    ]


def _repeat(result: RunResult) -> str:
    if not result.command:
        return "### How to repeat it\n\nThe run was started from Python; no command line is known."
    return f"### How to repeat it\n\n{_fence([result.command], 'sh')}"
