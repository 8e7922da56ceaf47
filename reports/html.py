"""One HTML file: no network, no other file, readable on a phone, in dark mode and by keyboard.

The page is `page.html.jinja`. Everything works without scripts except the filters, which then do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from difftest.errors import DifftestError
from difftest.result import Change, Group, Mismatch, RunResult, TargetResult, Verdict

from .causes import both_values, cause_words, further_detail, group_facts, group_title, ulp_words
from .changes import by_relevance, status_words
from .sentence import sentence
from .words import (
    ORDER,
    aa_words,
    by_weight,
    contract_split,
    contract_words,
    counts_words,
    environment_words,
    extent,
    host_words,
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
    symbol_words,
    time_words,
    why_unmeasured,
)

LIMIT = 1_000_000
"""Longest page, in bytes."""


class Step(NamedTuple):
    """How much of each target is shown.

    Attributes:
        mismatches, characters: mismatches of a target, and characters of a value.
        changed_lines: lines of source, of a target.
        pictures: of which targets the axes are drawn: `all`, those that are `not identical`, or `none`.
    """

    mismatches: int
    characters: int
    changed_lines: int
    pictures: str


STEPS = (
    Step(20, 400, 400, "all"),
    Step(20, 400, 200, "not identical"),
    Step(10, 300, 120, "not identical"),
    Step(5, 200, 60, "not identical"),
    Step(2, 120, 30, "none"),
    Step(1, 80, 10, "none"),
    Step(0, 80, 0, "none"),
)
"""The first with which the page stays within the limit is taken."""

LEAST_BYTES = 400
"""A mismatch never takes less in the page; saves rendering pages that cannot fit."""

DETAIL_LINES = 12
VALUES_OF_AN_AXIS = 40

_RAN = {"differing": "◆", "both": "◇", "run": "◇", "identical": "·", "none": "✕", "": ""}
"""Marks of changed lines, by which of the traced cases ran them."""


def check_available() -> None:
    """Raise DifftestError when the template engine is not installed."""
    if find_spec("jinja2") is None:
        raise DifftestError("the html report needs jinja2: pip install 'difftest-sampler[html]'")


def render(result: RunResult) -> str:
    """The page, at most :data:`LIMIT` bytes; mismatches and targets that do not fit are counted.

    Raises:
        DifftestError: jinja2 is not installed.
    """
    targets = by_weight(result.targets)
    check_available()
    carried = sum(len(t.mismatches) for t in targets)
    for step in STEPS:
        if min(carried, step.mismatches * len(targets)) * LEAST_BYTES < LIMIT:
            page = _page(result, targets, step)
            if len(page.encode()) < LIMIT:
                return page
    while True:
        # Only with thousands of targets. Those at the end are the ones a reader needs least.
        page = _page(result, targets, STEPS[-1])
        size = len(page.encode())
        if size < LIMIT:
            return page
        targets = targets[: int(len(targets) * LIMIT / size * 0.9)]


def fill(template: str, **values: Any) -> str:
    """One of the templates beside this file, filled in; every value is escaped unless it is markup already."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def _page(result: RunResult, targets: Sequence[TargetResult], step: Step) -> str:
    arms = [("base", result.base)] + [("head", head) for head in result.heads]
    present = [kind for kind, _ in sorted({k: 1 for t in targets for k in t.kinds}.items())]
    verdicts = [(v.value, sum(t.verdict == v for t in result.targets)) for v in ORDER]
    return fill(
        "page.html.jinja",
        verdict=result.verdict,
        sentence=plain(sentence(result), 8_000),
        arms=[
            (
                arm,
                [
                    (plain(name, 40), plain(value, 300))
                    for name, value in identity_facts(identity)
                    if name == "spec" or value != identity.spec
                ],
            )
            for arm, identity in arms[:20]
        ],
        arms_left_out=max(0, len(arms) - 20),
        verdicts=[(verdict, count) for verdict, count in verdicts if count],
        kinds=present,
        targets=[_target(t, result, step) for t in targets],
        targets_left_out=len(result.targets) - len(targets),
        remarks=[
            (title, [plain(line, 600) for line in lines[:60]], max(0, len(lines) - 60))
            for title, lines in remarks(result)
        ],
        environment=environment_words(result)[:100],
        time=time_words(result),
        command=plain(result.command, 4_000),
    )


def _target(target: TargetResult, result: RunResult, step: Step) -> dict[str, Any]:
    cases = target.cases
    bar = [
        (name, count)
        for name, count in (
            ("different", cases.different),
            ("unmeasured", cases.unmeasured),
            ("expected", cases.expected),
            ("identical", cases.identical),
        )
        if count
    ]
    closure = [
        f"{arm} {plural(int(lines), 'line')}"
        for arm in ("base", "head")
        if isinstance(lines := target.closure.get(arm, {}).get("lines"), int)
    ]
    shown = target.mismatches[: step.mismatches]
    facts = [
        ("verdict", target.verdict + (f": {plain(target.reason, 600)}" if target.reason else "")),
        ("not measured", plain(why_unmeasured(target), 600)),
        ("symbol", symbol_words(target)),
        ("code", target.code + (f" ({', '.join(closure)})" if closure else "")),
        ("mode", plain(mode_words(target.mode), 200)),
        ("mismatches", kinds_words(target.kinds)),
        ("contract", contract_split(target)),
        ("A/A control", aa_words(target)),
        ("fixed noise", plain(target.fixed_noise.get("said", ""), 600)),
        ("distribution", plain(target.distribution.get("said", ""), 600)),
        ("both raised", f"the same exception in {plural(target.both_raised, 'case')}" * bool(target.both_raised)),
        ("stand-ins", plain(", ".join(target.standins), 600)),
        ("host of the capture", plain(host_words(target), 600)),
        ("adapters", plain("; ".join(target.adapters), 600)),
        ("notes", plain("; ".join(target.notes), 600)),
        ("time", seconds_words(target.seconds)),
    ]
    name = plain(label(target, result), 200)
    return {
        "name": name,
        "verdict": target.verdict,
        "kinds": " ".join(target.kinds),
        "search": " ".join((name, *(plain(target.symbol.get(arm) or "", 300) for arm in ("base", "head")))).lower(),
        "counts": counts_words(target),
        "cause": plain(cause_words(target), 1_500),
        "bar": bar,
        "facts": [(key, value) for key, value in facts if value],
        "groups": [_group(group, step.characters) for group in target.groups] if step.mismatches else [],
        "axes": _axes(target) if _is_drawn(target, step) else [],
        "changes": _changes(by_relevance(target), step),
        "traced": target.traced,
        "mismatches": [_mismatch(m, step.characters) for m in shown],
        "left_out": left_out(target) + len(target.mismatches) - len(shown),
    }


def _is_drawn(target: TargetResult, step: Step) -> bool:
    return step.pictures == "all" or (step.pictures == "not identical" and target.verdict != Verdict.IDENTICAL)


def _axes(target: TargetResult) -> list[tuple[str, list[dict[str, Any]], int]]:
    """Per axis its values, each with the worst outcome of its cases and the share of these; how many are left out."""
    rows = []
    for axis, values in target.axes.items():
        cells = []
        for value, outcomes in list(values.items())[:VALUES_OF_AN_AXIS]:
            worst = next((v.value for v in ORDER if outcomes.get(v.value)), Verdict.IDENTICAL.value)
            total = sum(outcomes.values())
            hit = outcomes.get(worst, 0)
            words = "" if worst == Verdict.IDENTICAL else f"{hit} of {total}"
            cells.append(
                {"value": plain(value, 40), "worst": worst, "words": words, "percent": round(100 * hit / total)}
            )
        rows.append((plain(axis, 40), cells, max(0, len(values) - VALUES_OF_AN_AXIS)))
    return rows


def _group(group: Group, characters: int) -> dict[str, Any]:
    return {
        "title": plain(group_title(group), 3 * characters),
        "first": None if group.first is None else _mismatch(group.first, characters),
        "facts": [(fact.name, plain(fact.whole, 2 * characters)) for fact in group_facts(group)],
    }


def _changes(changes: Sequence[Change], step: Step) -> list[dict[str, Any]]:
    """The changed definitions as far as `step` allows, each line with its numbers and who ran it."""
    left = step.changed_lines
    shown = []
    for change in changes:
        lines = change.lines[: max(0, left)]
        left -= len(lines)
        indent = min((len(x.text) - len(x.text.lstrip()) for x in lines if x.text.strip()), default=0)
        shown.append(
            {
                "title": f"{change.symbol} ({status_words(change)})",
                "path": change.head_path or change.base_path,
                "lines": [
                    {
                        "sign": {"+": "add", "-": "del"}.get(line.sign, "same"),
                        "numbers": f"{line.base or '':>4} {line.head or '':>4}",
                        "mark": _RAN.get(line.ran, ""),
                        "text": f"{line.sign} {plain(line.text[indent:], 200)}",
                    }
                    for line in lines
                ],
                "cut": change.cut + len(change.lines) - len(lines),
            }
        )
    return shown


def _mismatch(mismatch: Mismatch, characters: int) -> dict[str, Any]:
    facts = (ulp_words(mismatch), extent(mismatch), contract_words(mismatch))
    base, head = both_values(mismatch, characters)
    return {
        "kind": mismatch.kind,
        "place": plain(place(mismatch), characters),
        "base": base,
        "head": head,
        "facts": ", ".join(fact for fact in facts if fact),
        "case": plain(mismatch.case, 64),
        "label": plain(mismatch.label, characters),
        "likeness": mismatch.likeness,
        "detail": [plain(line, characters) for line in further_detail(mismatch)[:DETAIL_LINES]],
    }
