"""The report for a pull request on GitHub. Also the step summary of a workflow.

Every value goes through :func:`code` or :func:`text`: a code span is the one place in which GitHub neither
reads markup nor turns `@name` and `#123` into a mention or a reference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from difftest.result import Change, Group, Identity, Mismatch, RunResult, TargetResult, Verdict

from .causes import (
    both_values,
    cause_words,
    chance_facts,
    class_words,
    differ_words,
    further_detail,
    group_facts,
    group_title,
    more_groups,
    ulp_words,
)
from .changes import by_relevance, change_lines, change_title, legend, telling_changes
from .sentence import sentence
from .words import (
    by_weight,
    contract_split,
    contract_words,
    counts_words,
    environment_words,
    extent,
    identity_facts,
    input_lines,
    kinds_words,
    label,
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
ENVIRONMENT_SHOWN = 1_500
"""The most that each part may take, so that the parts after it and some mismatches always fit."""

ALIKE_SHOWN = 4
"""Mismatches of one kind and place that are shown one by one."""

FOLDED_BYTES = 8_000
ROWS_OPEN = 12
"""Of more targets than these, the identical ones are in a table of their own, folded away."""

INPUTS_SHOWN = 8
SECTIONS = ("Not measured", "Not run", "Not reached", "Expected")
"""Topics that a reader must not miss."""


class Step(NamedTuple):
    """How much of each target that differs is shown.

    Attributes:
        groups, lines: groups and changed lines shown openly.
        mismatches, all_lines: single mismatches and changed lines in the folded part.
        cause: characters of the sentence that names the cause.
    """

    groups: int
    lines: int
    mismatches: int
    all_lines: int
    cause: int = 1_200


STEPS = (
    Step(5, 40, 20, 160),
    Step(5, 40, 10, 100),
    Step(4, 30, 5, 60),
    Step(3, 24, 3, 0),
    Step(2, 16, 2, 0),
    Step(1, 10, 1, 0, 800),
    Step(1, 0, 0, 0, 600),
    Step(0, 0, 0, 0, 400),
)
"""The first with which all targets fit is taken."""

_NAME = re.compile(r"^(?P<open>[(\"']*)(?P<core>.*?)(?P<close>[:,;.!?)\"']*)$")
_SPECIAL = re.compile(r"[^\w.,;:()'\"+=%!?…-]|_|\w:\w|^:|\w\.[A-Za-z]|^GH-\d|^[-+=.]+$|^\d+\)?$")
_WORD = re.compile(r"\S*\['[^'`]*'\]\S*|(?<!\S)\[[^][`]*\][:,;.!?]?(?!\S)|\S+")  # a list of values is one word
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
    return "\n\n".join([*before, *_differences(result, LIMIT - used), *after]) + "\n"


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
            if name not in ("spec", "kind") and value != identity.spec
        ]
        rows.append((arm, code(identity.spec), identity.kind, "<br>".join(facts)))
    return _table(("arm", "version", "kind", "identity"), rows, IDENTITY_BYTES, "head")


def _targets(result: RunResult) -> str:
    """A row a target; those that need no reader are folded away when there are many."""
    if not result.targets:
        return "No target was compared."
    targets = by_weight(result.targets)
    folded = [t for t in targets if t.verdict == Verdict.IDENTICAL]
    folded = folded if len(targets) > ROWS_OPEN else []
    shown = [t for t in targets if t not in folded]
    parts = [_target_table(shown, result, TABLE_BYTES)] if shown else []
    if folded:
        executed = [t for t in folded if t.cases.executed]
        same = [code(label(t, result), 120) for t in folded if not t.cases.executed]
        listed, cut = _fit(same, FOLDED_BYTES // 2)
        inside = [_target_table(executed, result, FOLDED_BYTES)] if executed else []
        more = f" and {cut} more" if cut else ""
        inside += [f"The same code, not executed: {', '.join(listed)}{more}."] if same else []
        parts.append(_folded(plural(len(folded), "identical target"), "\n\n".join(inside)))
    return "\n\n".join(parts)


def _target_table(targets: Sequence[TargetResult], result: RunResult, budget: int) -> str:
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
        for target in targets
    ]
    columns = ("verdict", "target", "code", "cases", "mismatches", "mode", "time")
    return _table(columns, rows, budget, "target")


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _differences(result: RunResult, budget: int) -> list[str]:
    """A section per target that differs, as much of each as fits for all of them, then as many as fit."""
    targets = [t for t in by_weight(result.targets) if t.mismatches or t.groups]
    if not targets:
        return []
    heading = "### What differs"
    budget -= len(heading) + 100  # the count of what was cut
    blocks: list[str] = []
    for step in STEPS:
        blocks = [_difference(target, result, step) for target in targets]
        if sum(len(block.encode()) + 2 for block in blocks) <= budget:
            return [heading, *blocks]
    kept, cut = _fit((f"{block}\n" for block in blocks), budget)
    more = f"and {plural(cut, 'more target')} with mismatches; the JSON and HTML reports have them"
    return [heading, *(block.rstrip("\n") for block in kept), more]


def _difference(target: TargetResult, result: RunResult, step: Step) -> str:
    """Openly what a reviewer needs: the cause, a group each with an example, the lines that tell. The rest folded."""
    parts = [f"#### {code(label(target, result), 120)}: {differ_words(target)}"]
    if cause := cause_words(target):
        parts.append(f"**Likely cause.** {text(cause, step.cause)}")
    parts += [f"**{name.capitalize()}.** {text(value, 1_200)}." for name, value in chance_facts(target) if step.groups]
    parts += [_group(number, group) for number, group in enumerate(target.groups[: step.groups], 1)]
    parts += [more_groups(target, step.groups)] if step.groups else []
    open_lines = telling_changes(target, step.lines)
    parts += [_code_of(change) for change in open_lines]
    if open_lines and (marks := legend(target)):
        parts.append(f"Marks: {text(marks, 600)}.")
    parts.append(_one_by_one(target, step, open_lines))
    return "\n\n".join(part for part in parts if part)


def _group(number: int, group: Group) -> str:
    lines = [f"**{number}. {text(group_title(group), 600)}**", ""]
    if group.first is not None:
        lines += _example(group.first)
    for fact in group_facts(group):
        line = f": {code(fact.line)}" if fact.line else ""
        lines.append(f"- {fact.name}: {text(fact.words, 600)}{line}")
    return "\n".join(lines).rstrip()


def _example(mismatch: Mismatch) -> list[str]:
    base, head = both_values(mismatch, VALUE_SHOWN)
    facts = "; ".join(filter(None, (ulp_words(mismatch), extent(mismatch))))
    lines = [f"- for example {code(place(mismatch))}: base {code(base)}, head {code(head)}{f'; {facts}' * bool(facts)}"]
    lines += [f"  - {text(line)}" for line in further_detail(mismatch)[:4]]
    name = f", {text(mismatch.label)}" if mismatch.label else ""
    return [*lines, f"- its case: {code(mismatch.case, 64)}{name}, {contract_words(mismatch)}"]


def _code_of(change: Change) -> str:
    return f"{text(change_title(change), 300)}\n\n{_fence(change_lines(change, len(change.lines)), 'diff')}"


def _one_by_one(target: TargetResult, step: Step, open_lines: Sequence[Change]) -> str:
    """The folded rest: symbols, single mismatches, all changed lines."""
    shown = _of_each(target.mismatches)[: step.mismatches]
    rest = target.mismatches_total - len(shown)
    if not shown:
        return f"{plural(target.mismatches_total, 'mismatch')}: {kinds_words(target.kinds)}"
    symbols = {arm: target.symbol.get(arm) for arm in ("base", "head")}
    bound = ", ".join(f"{arm} {code(symbol) if symbol else 'none'}" for arm, symbol in symbols.items())
    bound = code(symbols["base"]) if symbols["base"] and symbols["base"] == symbols["head"] else bound
    parts = [
        f"Symbol: {bound}. Code: {target.code}. Mode: {text(mode_words(target.mode))}. "
        f"Mismatches: {kinds_words(target.kinds)}."
    ]
    changes = by_relevance(target)
    everything = open_lines != changes and step.all_lines > 0
    if everything:
        left = step.all_lines
        for change in changes:
            if left > 0:
                parts.append(f"{text(change_title(change), 300)}\n\n{_fence(change_lines(change, left), 'diff')}")
                left -= len(change.lines)
        if left <= 0:
            parts.append("and further changed lines; the JSON and HTML reports have them")
    parts += [_mismatch(number, mismatch) for number, mismatch in enumerate(shown, 1)]
    parts += [f"and {plural(rest, 'more mismatch')}"] if rest > 0 else []
    said = f"{len(shown)} of " * (rest > 0) + plural(target.mismatches_total, "mismatch")
    return _folded(f"{said} one by one{', changed lines' * everything}", "\n\n".join(parts))


def _of_each(mismatches: Iterable[Mismatch]) -> list[Mismatch]:
    """The mismatches without those of which so many others are alike."""
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for mismatch in mismatches:
        seen[mismatch.kind, mismatch.place or mismatch.leaf] += 1
        if seen[mismatch.kind, mismatch.place or mismatch.leaf] <= ALIKE_SHOWN:
            kept.append(mismatch)
    return kept


def _mismatch(number: int, mismatch: Mismatch) -> str:
    name = f": {text(mismatch.label)}" if mismatch.label else ""
    base, head = both_values(mismatch, VALUE_SHOWN)
    facts = "; ".join(filter(None, (ulp_words(mismatch), extent(mismatch))))
    lines = [
        f"**{number}. {text(class_words(mismatch))}** at {code(place(mismatch))}, {contract_words(mismatch)}",
        "",
        f"- base {code(base)}",
        f"- head {code(head)}",
        *([f"- {facts}"] if facts else []),
        f"- case {code(mismatch.case, 64)}{name}",
    ]
    detail = further_detail(mismatch)[:12]
    return "\n".join(lines) + (f"\n\n{_fence(detail, 'text')}" if detail else "")


def _compared(result: RunResult) -> str:
    executed = [t for t in result.targets if t.cases.executed]
    same = [t for t in result.targets if t.code == "same" and not t.cases.executed]
    ran = sum(t.cases.executed for t in executed)
    compared = ran - sum(t.cases.unmeasured for t in executed)
    some = f"{compared} of {plural(ran, 'case')}" if compared < ran else plural(ran, "case")
    lines = [f"{some} of {plural(len(executed), 'target')} compared"]
    lines += [text(line, 600) for line in input_lines(executed[:INPUTS_SHOWN], result)]
    if len(executed) > INPUTS_SHOWN:
        lines.append(f"and the inputs of {plural(len(executed) - INPUTS_SHOWN, 'more target')}")
    if same:
        lines.append(f"{plural(len(same), 'target')} with the same code in both arms, not executed")
    if result.seconds:
        lines.append(text(f"time: {time_words(result)}"))
    if environment := ", ".join(f"{key} {value}" for key, value in environment_words(result)):
        lines.append(text(environment, ENVIRONMENT_SHOWN))
    return f"### What was compared\n\n{_bullets(lines, REMARK_BYTES + ENVIRONMENT_SHOWN)}"


def _remarks(result: RunResult) -> list[str]:
    """What was not measured or was expected in sections of their own, the rest in one."""
    topics = remarks(result)
    parts = [
        f"### {title}\n\n{_bullets((text(line, 600) for line in lines), REMARK_BYTES)}"
        for title, lines in topics
        if title in SECTIONS
    ]
    rest = []
    for title, lines in topics:
        if title not in SECTIONS:
            rest += [f"- **{title}**: {text(lines[0], 600)}"] if len(lines) == 1 else [f"- **{title}**"]
        if title not in SECTIONS and len(lines) > 1:
            rest += [f"  {line}" for line in _bullets((text(line, 600) for line in lines), REMARK_BYTES).splitlines()]
    return [*parts, "\n".join(["### How it ran", "", *rest])] if rest else parts


def _repeat(result: RunResult) -> str:
    if not result.command:
        return "### How to repeat it\n\nThe run was started from Python; no command line is known."
    return f"### How to repeat it\n\n{_fence([result.command], 'sh')}"
