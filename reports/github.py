"""GitHub Actions: annotations, as workflow commands to print, and the step summary.

GitHub shows at most ten annotations of each level a step. When there are more, the last one counts the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from difftest.result import RunResult, TargetResult, Verdict

from . import markdown
from .causes import both_values, cause_words
from .changes import cause_place
from .sentence import sentence
from .words import by_weight, contract_split, counts_words, kinds_words, label, place, plain, plural, why_unmeasured

MOST = 10
"""Annotations of one level that GitHub shows for a step."""

VALUE_SHOWN = 300
CAUSE_SHOWN = 800
"""Characters of a cause or a reason: an annotation is read in passing."""

SENTENCE_SHOWN = 4_000
LEVELS = {Verdict.DIFFERENT: "error", Verdict.UNMEASURED: "warning", Verdict.EXPECTED: "notice"}
NAMES_SHOWN = 20


def render(result: RunResult) -> str:
    """Workflow commands, one a line: an error per different target, a warning per unmeasured, a notice per expected.

    The last line is a notice with the sentence of the run, a warning where nothing was compared. An annotation stands
    on the changed line that the cause names, else on one that differing cases ran, or any. `closure[arm]` may carry
    `file` and `line`, the place to annotate; without these the file comes from the symbol's module and the annotation
    stands at its top.
    """
    lines: list[str] = []
    sayings: list[tuple[Verdict, Callable[[TargetResult], str]]] = [
        (Verdict.DIFFERENT, _difference),
        (Verdict.UNMEASURED, why_unmeasured),
        (Verdict.EXPECTED, lambda target: target.reason or "differs as the expect file says"),
    ]
    for verdict, saying in sayings:
        targets = [t for t in by_weight(result.targets) if t.verdict == verdict]
        most = MOST - (verdict == Verdict.EXPECTED)  # the sentence is a notice as well
        shown = targets if len(targets) <= most else targets[: most - 1]
        for target in shown:
            title = f"difftest: {verdict}: {plain(label(target, result), VALUE_SHOWN)}"
            message = _cut(saying(target)) if verdict != Verdict.DIFFERENT else saying(target)
            lines.append(_command(LEVELS[verdict], message, title, **_location(target)))
        lines += _rest(targets[len(shown) :], verdict, result)
    last = "notice" if result.targets else "warning"
    lines.append(_command(last, plain(sentence(result), SENTENCE_SHOWN), f"difftest: {result.verdict}"))
    return "".join(f"{line}\n" for line in lines)


def summary(result: RunResult) -> str:
    """Markdown for the step summary (`$GITHUB_STEP_SUMMARY`), well under its limit of 1 MiB."""
    return markdown.render(result)


def _cut(text: str) -> str:
    """The text with its line ends, cut as :func:`plain` cuts a line."""
    return text if len(text) <= CAUSE_SHOWN else f"{text[:CAUSE_SHOWN]}… ({len(text)} characters)"


def _rest(targets: Sequence[TargetResult], verdict: Verdict, result: RunResult) -> list[str]:
    if not targets:
        return []
    names = [plain(label(t, result), VALUE_SHOWN) for t in targets[:NAMES_SHOWN]]
    more = f" and {len(targets) - len(names)} more" if len(targets) > len(names) else ""
    title = f"difftest: {plural(len(targets), f'more {verdict} target')}"
    return [_command(LEVELS[verdict], ", ".join(names) + more, title)]


def _difference(target: TargetResult) -> str:
    lines = [f"{counts_words(target)}; mismatches: {kinds_words(target.kinds)}"]
    if contract_split(target):
        lines.append(contract_split(target))
    if cause := cause_words(target):
        lines.append(plain(cause, CAUSE_SHOWN))
    first = next((group.first for group in target.groups if group.first is not None), None)
    for mismatch in (target.mismatches if first is None else (first,))[:1]:
        base, head = both_values(mismatch, VALUE_SHOWN)
        lines.append(f"for example {mismatch.kind} at {plain(place(mismatch), VALUE_SHOWN)}")
        lines += [f"base {base}", f"head {head}"]
        lines.append(f"case {plain(mismatch.case, 64)} {plain(mismatch.label, VALUE_SHOWN)}".rstrip())
    return "\n".join(lines)


def _location(target: TargetResult) -> dict[str, str]:
    """Where the annotation stands: the changed line of head that the cause is about, else the file of an arm's code."""
    if (cause := cause_place(target)) is not None:
        return {"file": cause[0], "line": str(cause[1])}
    for arm in ("head", "base"):
        closure = target.closure.get(arm, {})
        if isinstance(closure.get("file"), str):
            line = closure.get("line")
            return {"file": closure["file"]} | ({"line": str(line)} if isinstance(line, int) else {})
        module = (target.symbol.get(arm) or "").partition(":")[0]
        if re.fullmatch(r"\w+(\.\w+)*", module):
            return {"file": module.replace(".", "/") + ".py"}
    return {}


def _command(level: str, message: str, title: str, **properties: str) -> str:
    named = {**properties, "title": title}
    listed = ",".join(f"{key}={_property(value)}" for key, value in named.items())
    return f"::{level} {listed}::{_message(message)}"


def _message(text: str) -> str:
    """`text` with its line ends kept, escaped as a workflow command's message."""
    lines = (plain(line) for line in text.split("\n"))
    return "%0A".join(line.replace("%", "%25") for line in lines)


def _property(text: str) -> str:
    """`text` escaped as a workflow command's property."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.replace(":", "%3A").replace(",", "%2C")
