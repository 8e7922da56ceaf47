"""What the reports of a bench say in words, the same in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from difftest.timing.result import BenchResult, GridResult, ShapeResult, Untimed, speed_words
from difftest.timing.statistics import FEWEST_LAYOUTS, SpeedVerdict

from .words import plain, plural


def microseconds(value: float) -> str:
    """Three significant digits, never in powers of ten: `0.271`, `10.4`, `1240`."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{digits}f}"


def times_words(shape: ShapeResult, arm: str) -> str:
    """Shortest, median and 95th percentile of one arm: `10.1 · 10.4 · 12.0`."""
    times = shape.base if arm == "base" else shape.head_times
    return " · ".join(microseconds(value) for value in (times.shortest, times.median, times.p95))


def change_words(shape: ShapeResult) -> str:
    """The change and its interval: `+5.1 % (+4.6 to +5.7)`; of too few loadings for one, only how many there are. The
    verdict beside it says in words which way that is."""
    if len(shape.layouts) < FEWEST_LAYOUTS:
        return f"{shape.delta_percent:+.1f} % ({plural(len(shape.layouts), 'loading')})"
    low, high = shape.interval
    return f"{shape.delta_percent:+.1f} % ({low:+.1f} to {high:+.1f})"


def floor_words(shape: ShapeResult) -> str:
    """Base against base: `+0.1 %`; a dash where it was not measured."""
    return "–" if shape.floor_percent is None else f"{shape.floor_percent:+.1f} %"


def verdict_words(shape: ShapeResult) -> str:
    """The verdict with its bound, and what stands against it."""
    return f"{shape.words} (outputs differ)" if shape.differs else shape.words


def shapes_of(result: BenchResult, grid: GridResult) -> list[ShapeResult]:
    return [shape for shape in result.shapes if (shape.target, shape.head) == (grid.target, grid.head)]


def grid_title(result: BenchResult, grid: GridResult) -> str:
    """The target, and the head where there are several."""
    return f"{grid.target}, {grid.head}" if len(result.heads) > 1 else grid.target


def grid_lines(grid: GridResult) -> list[str]:
    """What all shapes of a grid say together."""
    return [grid.words, *grid.crossing, *grid.growth]


def gate_words(result: BenchResult) -> str:
    """Whether the speed gate holds; empty where none was asked for."""
    if result.max_regression_percent is None:
        return ""
    limit = f"{result.max_regression_percent:g} %"
    if not result.regressions:
        if result.exit_code:
            return (
                f"no interval lies beyond the gate of +{limit}, but not all that was asked for was timed (exit code 3)"
            )
        return f"the gate holds: no interval lies beyond +{limit}"
    return f"the gate fails: {plural(len(result.regressions), 'shape')} slower by more than {limit}"


def remark_lines(result: BenchResult) -> list[tuple[str, list[str]]]:
    """What the reader must know besides the tables, by heading."""
    remarks = [
        ("Beyond the gate", list(result.regressions)),
        ("Not timed", [_untimed_words(item) for item in result.missed]),
        ("Neither named nor timed", [_untimed_words(item) for item in result.untimed if not item.asked]),
        ("Outputs differ", [_place(shape) for shape in result.shapes if shape.differs]),
        (f"Spread above {result.spread_limit_percent:g} %", _spread_lines(result)),
        ("Notes", [f"{_place(shape)}: {note}" for shape in result.shapes for note in shape.notes] + list(result.notes)),
        ("Measured with", _method_lines(result.shapes)),
    ]
    return [(heading, lines) for heading, lines in remarks if lines]


def bench_sentence(result: BenchResult) -> str:
    """The bench in one line, for a pull request."""
    base = plain(result.base.short())
    heads = " and ".join(plain(head.short()) for head in result.heads)
    if not result.shapes:
        return f"difftest bench: nothing was timed; {heads} against {base}"
    if len(result.heads) > 1:
        each = [_counts([s for s in result.shapes if s.head == head.spec]) for head in result.heads]
        said = ", ".join(f"{plain(h.spec)}: {counts}" for h, counts in zip(result.heads, each, strict=True) if counts)
    else:
        said = _counts(result.shapes)
    if len(result.grids) == 1:
        grid = result.grids[0]
        worst = next(s for s in shapes_of(result, grid) if s.shape == grid.worst_shape)
        times = f"base {microseconds(worst.base.median)} µs, head {microseconds(worst.head_times.median)} µs"
        said += f", median {speed_words(grid.median_percent)}, worst {speed_words(grid.worst_percent)}"
        said += f" ({plain(grid.worst_shape)}: {times})"
    parts = [said, *filter(None, [gate_words(result)])]
    if result.missed:
        parts.append(f"{len(result.missed)} not timed")
    return f"difftest bench: {heads} against {base}: {'; '.join(parts)}"


def _counts(shapes: Sequence[ShapeResult]) -> str:
    counts = [
        f"{count} {'no change' if verdict is SpeedVerdict.NO_CHANGE else verdict}"
        for verdict in SpeedVerdict
        if (count := sum(shape.verdict == verdict for shape in shapes))
    ]
    return f"{', '.join(counts)} of {plural(len(shapes), 'shape')}" if counts else ""


def _untimed_words(item: Untimed) -> str:
    return f"{', '.join(part for part in (item.target, item.shape, item.head) if part)}: {item.reason}"


def _place(shape: ShapeResult) -> str:
    return f"{shape.target}, {shape.shape}, {shape.head}"


def _spread_lines(result: BenchResult) -> list[str]:
    wide = [shape for shape in result.shapes if shape.spread_percent > result.spread_limit_percent]
    if not wide:
        return []
    most = max(wide, key=lambda shape: shape.spread_percent)
    return [
        f"{len(wide)} of {plural(len(result.shapes), 'shape')}; widest {most.spread_percent:.1f} % ({_place(most)})"
    ]


def _method_lines(shapes: Sequence[ShapeResult]) -> list[str]:
    if not shapes:
        return []
    layouts = [len(shape.layouts) for shape in shapes]
    processes = [len({layout.process for layout in shape.layouts}) for shape in shapes]
    pairs = [len(shape.pairs) for shape in shapes]
    loop = max(shape.loop_ns for shape in shapes)
    first = max(shapes, key=lambda shape: shape.head_times.first_call)
    return [
        f"{_range(pairs)} pairs a shape in {_range(layouts)} loadings of both arms, {_range(processes)} processes",
        f"the measuring loop costs {loop:.0f} ns a call, in both arms' times",
        f"first call, apart: base {microseconds(first.base.first_call)} µs, head "
        f"{microseconds(first.head_times.first_call)} µs ({_place(first)}, the longest of head)",
    ]


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
