"""One HTML file: no network, no other file, readable on a phone, in dark mode and by keyboard.

The page is `page.html.jinja`. Everything works without scripts except the filters, which then do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from difftest.errors import DifftestError
from difftest.result import Mismatch, RunResult, TargetResult

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
    why_unmeasured,
)

LIMIT = 1_000_000
"""Longest page, in bytes."""

STEPS = ((20, 400), (10, 300), (5, 200), (2, 120), (1, 80), (0, 80))
"""Mismatches per target and characters per value: the first pair with which the page stays within the limit."""

LEAST_BYTES = 400
"""A mismatch never takes less in the page; saves rendering pages that cannot fit."""

DETAIL_LINES = 12


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
    for most, characters in STEPS:
        if min(carried, most * len(targets)) * LEAST_BYTES < LIMIT:
            page = _page(result, targets, most, characters)
            if len(page.encode()) < LIMIT:
                return page
    while True:
        # Only with thousands of targets. Those at the end are the ones a reader needs least.
        page = _page(result, targets, 0, 80)
        size = len(page.encode())
        if size < LIMIT:
            return page
        targets = targets[: int(len(targets) * LIMIT / size * 0.9)]


def _page(result: RunResult, targets: Sequence[TargetResult], most: int, characters: int) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    arms = [("base", result.base)] + [("head", head) for head in result.heads]
    present = [kind for kind, _ in sorted({k: 1 for t in targets for k in t.kinds}.items())]
    verdicts = [(v.value, sum(t.verdict == v for t in result.targets)) for v in ORDER]
    return environment.get_template("page.html.jinja").render(
        verdict=result.verdict,
        sentence=plain(sentence(result), 8_000),
        arms=[
            (arm, [(plain(name, 40), plain(value, 300)) for name, value in identity_facts(identity)])
            for arm, identity in arms[:20]
        ],
        arms_left_out=max(0, len(arms) - 20),
        verdicts=[(verdict, count) for verdict, count in verdicts if count],
        kinds=present,
        targets=[_target(t, result, most, characters) for t in targets],
        targets_left_out=len(result.targets) - len(targets),
        remarks=[
            (title, [plain(line, 600) for line in lines[:60]], max(0, len(lines) - 60))
            for title, lines in remarks(result)
        ],
        environment=environment_words(result)[:100],
        time=time_words(result),
        command=plain(result.command, 4_000),
    )


def _target(target: TargetResult, result: RunResult, most: int, characters: int) -> dict[str, Any]:
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
    shown = target.mismatches[:most]
    facts = [
        ("verdict", target.verdict + (f": {plain(target.reason, 600)}" if target.reason else "")),
        ("not measured", plain(why_unmeasured(target), 600)),
        ("symbol in base", plain(target.symbol.get("base") or "none", 300)),
        ("symbol in head", plain(target.symbol.get("head") or "none", 300)),
        ("code", target.code + (f" ({', '.join(closure)})" if closure else "")),
        ("mode", plain(mode_words(target.mode), 200)),
        ("mismatches", kinds_words(target.kinds)),
        ("contract", contract_split(target)),
        ("A/A control", aa_words(target)),
        ("both raised", f"the same exception in {plural(target.both_raised, 'case')}" * bool(target.both_raised)),
        ("stand-ins", plain(", ".join(target.standins), 600)),
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
        "bar": bar,
        "facts": [(key, value) for key, value in facts if value],
        "mismatches": [_mismatch(m, characters) for m in shown],
        "left_out": left_out(target) + len(target.mismatches) - len(shown),
    }


def _mismatch(mismatch: Mismatch, characters: int) -> dict[str, Any]:
    facts = (extent(mismatch), contract_words(mismatch))
    return {
        "kind": mismatch.kind,
        "place": plain(place(mismatch), characters),
        "base": plain(mismatch.base, characters),
        "head": plain(mismatch.head, characters),
        "facts": ", ".join(fact for fact in facts if fact),
        "case": plain(mismatch.case, 64),
        "label": plain(mismatch.label, characters),
        "detail": [plain(line, characters) for line in mismatch.detail[:DETAIL_LINES]],
    }
