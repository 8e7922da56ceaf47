"""What a person reads in a terminal after a bench, and after `difftest pairs`."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from difftest.timing.pairs import PairsResult
from difftest.timing.result import BenchResult, ShapeResult
from difftest.timing.statistics import SpeedVerdict

from .bench_words import (
    bench_sentence,
    change_words,
    floor_words,
    grid_lines,
    grid_title,
    microseconds,
    remark_lines,
    shapes_of,
    times_words,
    verdict_words,
)
from .words import plain

STYLES = {
    SpeedVerdict.FASTER: "green",
    SpeedVerdict.SLOWER: "bold red",
    SpeedVerdict.NO_CHANGE: "dim",
    SpeedVerdict.INCONCLUSIVE: "yellow",
}
PAIR_STYLES = {"better": "green", "worse": "bold red", "flat": "dim", "cannot tell": "yellow"}
HALF_BAR = 8
"""Characters of a bar on either side of no change."""

LINES_SHOWN = 12
"""Lines under one heading; the other reports carry the rest."""

WIDE = 132
"""From this width on, all times, base against base and the spread have columns."""

BARS = 90
"""From this width on, changes are drawn as bars."""


def render(result: BenchResult, console: Console) -> None:
    """Print the report. The last line is the sentence for a pull request, unbroken at any width."""
    for arm, identity in [("base", result.base), *(("head", head) for head in result.heads)]:
        _line(console, f"{arm} {plain(identity.short())}", style="bold")
    for grid in result.grids:
        console.print()
        _line(console, plain(grid_title(result, grid)), style="bold")
        console.print(_table(shapes_of(result, grid), console.width), highlight=False)
        for words in grid_lines(grid):
            _line(console, plain(words), indent=2)
    for heading, lines in remark_lines(result):
        console.print()
        _line(console, heading, style="bold")
        for words in lines[:LINES_SHOWN]:
            _line(console, plain(words), indent=2)
        if len(lines) > LINES_SHOWN:
            _line(console, f"and {len(lines) - LINES_SHOWN} more", indent=2)
    console.print()
    console.print(Text(bench_sentence(result), style=_style(result)), soft_wrap=True, highlight=False)


def render_pairs(result: PairsResult, console: Console) -> None:
    """Print what end-to-end pairs say, a line each."""
    verdicts = [""] * (len(result.lines()) - len(result.metrics)) + [metric.verdict for metric in result.metrics]
    for words, verdict in zip(result.lines(), verdicts, strict=True):
        _line(console, plain(words), style=PAIR_STYLES.get(verdict, ""))


def bar(percent: float, largest: float) -> Text:
    """A change as a bar from the middle: to the left where head is faster, to the right where it is slower."""
    length = round(HALF_BAR * min(1.0, abs(percent) / largest)) if largest else 0
    faster, slower = ("█" * length, "") if percent < 0 else ("", "█" * length)
    text = Text(faster.rjust(HALF_BAR), style="green")
    return text.append("│", style="dim").append(slower.ljust(HALF_BAR), style="red")


def _table(shapes: list[ShapeResult], width: int) -> Table:
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("shape", overflow="fold", min_width=12)
    if wide:
        table.add_column("base µs\nmin · median · p95", justify="right", no_wrap=True)
        table.add_column("head µs\nmin · median · p95", justify="right", no_wrap=True)
    else:
        table.add_column("µs, median\nbase → head", justify="right", overflow="fold")
    table.add_column("time of head\n(95 % interval)", justify="right", overflow="fold")
    if width >= BARS:
        table.add_column("", no_wrap=True)
    table.add_column("verdict", overflow="fold", min_width=10)
    if wide:
        for name in ("base\n/base", "spread", "pairs"):
            table.add_column(name, justify="right", no_wrap=True)
    largest = max(abs(shape.delta_percent) for shape in shapes)
    for shape in shapes:
        medians = f"{microseconds(shape.base.median)} → {microseconds(shape.head_times.median)}"
        cells = [Text(plain(shape.shape))]
        cells += [Text(times_words(shape, arm)) for arm in ("base", "head")] if wide else [Text(medians)]
        cells.append(Text(change_words(shape)))
        if width >= BARS:
            cells.append(bar(shape.delta_percent, largest))
        cells.append(Text(verdict_words(shape), style=STYLES[SpeedVerdict(shape.verdict)]))
        if wide:
            cells += [Text(floor_words(shape)), Text(f"{shape.spread_percent:.1f} %"), Text(str(len(shape.pairs)))]
        table.add_row(*cells)
    return table


def _line(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    shown = Text(text, style=style, overflow="fold")
    console.print(Padding(shown, (0, 0, 0, indent), expand=False), highlight=False)


def _style(result: BenchResult) -> str:
    if result.regressions or result.count(SpeedVerdict.SLOWER):
        return STYLES[SpeedVerdict.SLOWER]
    if result.missed or not result.shapes or result.count(SpeedVerdict.INCONCLUSIVE):
        return STYLES[SpeedVerdict.INCONCLUSIVE]
    return STYLES[SpeedVerdict.FASTER]
