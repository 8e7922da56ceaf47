"""The report of a bench for a pull request on GitHub: what matters first, every shape folded away below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from difftest.timing.result import BenchResult, ShapeResult
from difftest.timing.statistics import SpeedVerdict

from .bench_words import (
    bench_sentence,
    change_words,
    floor_words,
    grid_lines,
    grid_title,
    remark_lines,
    shapes_of,
    times_words,
    verdict_words,
)
from .markdown import LIMIT, code, text
from .words import plural

SIGNS = {
    SpeedVerdict.FASTER: "🟢",
    SpeedVerdict.SLOWER: "🔴",
    SpeedVerdict.NO_CHANGE: "⚪",
    SpeedVerdict.INCONCLUSIVE: "🟡",
}
FEW = 12
"""So many shapes are shown openly; of more, only those that are slower or undecided."""

ROWS = (2_000, 200, 60, 20, 5)
"""Rows of a folded table: the largest number with which the report fits."""

LINES_SHOWN = 20
COLUMNS = (
    "shape",
    "base µs (min · median · p95)",
    "head µs (min · median · p95)",
    "time of head (95 % interval)",
    "verdict",
    "base/base",
    "spread",
    "pairs",
)


def render(result: BenchResult, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The report in GitHub's Markdown, at most :data:`difftest.reports.markdown.LIMIT` bytes; what is cut is counted.

    Args:
        result: what the bench found.
        pictures: title and file name of pictures that lie beside the report.
    """
    for rows in ROWS:
        report = _render(result, pictures, rows)
        if len(report.encode()) <= LIMIT:
            break
    return report


def _render(result: BenchResult, pictures: Sequence[tuple[str, str]], rows: int) -> str:
    parts = ["## difftest bench", text(bench_sentence(result), 2_500)]
    arms = [("base", result.base), *(("head", head) for head in result.heads)]
    parts.append(_table(("arm", "version", "identity"), ((arm, code(i.spec), code(i.resolved)) for arm, i in arms)))
    for grid in result.grids:
        shapes = shapes_of(result, grid)
        parts += [f"### {code(grid_title(result, grid))}", "\n".join(f"- {_words(line)}" for line in grid_lines(grid))]
        open_rows = shapes if len(shapes) <= FEW else [s for s in shapes if s.verdict in _OPEN]
        if open_rows:
            parts.append(_shapes(open_rows, rows))
        if len(open_rows) < len(shapes):
            summary = f"<details><summary>all {plural(len(shapes), 'shape')}</summary>"
            parts.append(f"{summary}\n\n{_shapes(shapes, rows)}\n\n</details>")
    parts += [f"![{text(title)}]({name})" for title, name in pictures]
    for heading, lines in remark_lines(result):
        kept = [f"- {text(line)}" for line in lines[:LINES_SHOWN]]
        more = [f"- and {len(lines) - LINES_SHOWN} more"] if len(lines) > LINES_SHOWN else []
        parts.append("\n".join([f"**{heading}**", "", *kept, *more]))
    environment = ", ".join(f"{text(key, 80)} {code(value, 200)}" for key, value in result.environment.items())
    if environment:
        parts.append(f"Environment: {environment}")
    if result.command:
        parts.append(f"Repeat: {code(result.command, 1_000)}")
    return "\n\n".join(parts) + "\n"


def _words(line: str) -> str:
    return text(line).replace("`→`", "→")


_OPEN = (SpeedVerdict.SLOWER, SpeedVerdict.INCONCLUSIVE)


def _shapes(shapes: Sequence[ShapeResult], most: int) -> str:
    rows = [
        (
            code(shape.shape),
            times_words(shape, "base"),
            times_words(shape, "head"),
            change_words(shape),
            f"{SIGNS[SpeedVerdict(shape.verdict)]} {text(verdict_words(shape))}",
            floor_words(shape),
            f"{shape.spread_percent:.1f} %",
            str(len(shape.pairs)),
        )
        for shape in shapes[:most]
    ]
    more = f"\n\nand {plural(len(shapes) - most, 'more shape')}" if len(shapes) > most else ""
    return _table(COLUMNS, rows) + more


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
