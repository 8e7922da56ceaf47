"""Pictures of a bench as SVG text: where on the grid head is faster, and how sure that is.

Both read on a light and on a dark page: they bring their own background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from difftest.timing.result import BenchResult, ShapeResult
from difftest.timing.statistics import SpeedVerdict

from .words import plain

_FONT = "font-family='system-ui, sans-serif' font-size='12'"
_INK, _FAINT, _PAPER = "#24292f", "#d0d7de", "#ffffff"
_FASTER, _SLOWER, _UNDECIDED = (26, 127, 55), (207, 34, 46), (154, 103, 0)
_SERIES = ("#0969da", "#bf3989", "#1a7f37", "#9a6700", "#8250df", "#57606a")


def heat_map(result: BenchResult, target: str, head: str, across: str = "batch", down: str = "max_spec_len") -> str:
    """One cell for each value of two axes: the median change there, in colour and in figures; empty without such axes.

    A cell marked `=` holds no change in any shape, one marked `?` an undecided shape.
    """
    shapes = _having(result, target, head, across, down)
    columns = sorted({shape.axes[across] for shape in shapes})
    rows = sorted({shape.axes[down] for shape in shapes})
    if len(columns) < 2:
        return ""
    cell, left, top = 62, 110, 52
    title = f"{target}, {head}: change of time in percent"
    size = (max(left + cell * len(columns), 7 * len(title)) + 16, top + 34 * len(rows) + 34)
    largest = max(abs(shape.delta_percent) for shape in shapes) or 1.0
    parts = [_text(8, 20, title, weight="600")]
    for n, column in enumerate(columns):
        parts.append(_text(left + cell * (n + 0.5), top - 8, f"{column:g}", anchor="middle"))
    parts.append(_text(left + cell * len(columns) / 2, size[1] - 10, _axis(across), anchor="middle"))
    for m, row in enumerate(rows):
        y = top + 34 * m
        parts.append(_text(left - 8, y + 21, f"{_axis(down)} {row:g}", anchor="end"))
        for n, column in enumerate(columns):
            here = [shape for shape in shapes if (shape.axes[across], shape.axes[down]) == (column, row)]
            if here:
                parts.append(_cell(left + cell * n, y, cell, here, largest))
    return _svg(size, parts, f"Heat map of {target} for {head}")


def against_batch(result: BenchResult, target: str, axis: str = "batch") -> str:
    """Head's time over base's with its interval against an axis, a colour for each head; empty without the axis."""
    shapes = [shape for shape in result.shapes if shape.target == target and axis in shape.axes]
    values = sorted({shape.axes[axis] for shape in shapes})
    if len(values) < 2:
        return ""
    width, height, left, top, bottom = 680, 340, 60, 40, 60
    heads = list(dict.fromkeys(shape.head for shape in shapes))
    low = min(0.0, *(shape.interval[0] for shape in shapes))
    high = max(0.0, *(shape.interval[1] for shape in shapes))
    room = 0.06 * (high - low) or 1.0
    low, high = low - room, high + room

    def across(value: float) -> float:
        """Batches double, so their places are those of their logarithms."""
        start, end = math.log2(max(values[0], 0.5)), math.log2(max(values[-1], 1.0))
        return left + 20 + (width - left - 40) * (math.log2(max(value, 0.5)) - start) / (end - start)

    def up(percent: float) -> float:
        return top + (height - top - bottom) * (high - percent) / (high - low)

    parts = [_text(8, 20, f"{target}: head over base, with 95 % intervals", weight="600")]
    for percent in _ticks(low, high):
        colour = _INK if percent == 0 else _FAINT
        parts.append(_line(left, up(percent), width - 12, up(percent), colour))
        parts.append(_text(left - 8, up(percent) + 4, f"{1 + percent / 100:.2f}", anchor="end"))
    parts += [_text(across(value), height - bottom + 18, f"{value:g}", anchor="middle") for value in values]
    parts.append(_text((left + width) / 2, height - bottom + 36, _axis(axis), anchor="middle"))
    for number, head in enumerate(heads):
        colour = _SERIES[number % len(_SERIES)]
        mine = sorted((s for s in shapes if s.head == head), key=lambda s: s.axes[axis])
        middle = [
            (value, float(np.median([s.delta_percent for s in mine if s.axes[axis] == value])))
            for value in values
            if any(s.axes[axis] == value for s in mine)
        ]
        path = " ".join(f"{across(value):.1f},{up(percent):.1f}" for value, percent in middle)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>")
        for place, shape in enumerate(mine):
            # Shapes of one batch stand beside each other, so that their intervals can be told apart.
            same = [n for n, other in enumerate(mine) if other.axes[axis] == shape.axes[axis]]
            x = across(shape.axes[axis]) + 3 * (same.index(place) - (len(same) - 1) / 2) + 2 * number
            parts.append(_line(x, up(shape.interval[0]), x, up(shape.interval[1]), colour))
            title = f"<title>{_safe(f'{shape.shape}, {head}: {shape.words}')}</title>"
            parts.append(
                f"<circle cx='{x:.1f}' cy='{up(shape.delta_percent):.1f}' r='2.5' fill='{colour}'>{title}</circle>"
            )
        parts.append(_line(left + 150 * number, height - 12, left + 18 + 150 * number, height - 12, colour))
        parts.append(_text(left + 24 + 150 * number, height - 8, plain(head, 18)))
    return _svg((width, height), parts, f"Ratio of times against {_axis(axis)} for {target}")


def _having(result: BenchResult, target: str, head: str, *axes: str) -> list[ShapeResult]:
    return [
        shape
        for shape in result.shapes
        if (shape.target, shape.head) == (target, head) and all(axis in shape.axes for axis in axes)
    ]


def _cell(x: float, y: float, width: float, shapes: Sequence[ShapeResult], largest: float) -> str:
    change = float(np.median([shape.delta_percent for shape in shapes]))
    verdicts = {SpeedVerdict(shape.verdict) for shape in shapes}
    undecided = SpeedVerdict.INCONCLUSIVE in verdicts
    colour = _UNDECIDED if undecided else _FASTER if change < 0 else _SLOWER
    depth = 0.0 if verdicts == {SpeedVerdict.NO_CHANGE} else 0.12 + 0.58 * min(1.0, abs(change) / largest)
    mixed = ", ".join(str(round(255 + (part - 255) * depth)) for part in colour)
    mark = "?" if undecided else "=" if verdicts == {SpeedVerdict.NO_CHANGE} else ""
    title = "; ".join(f"{shape.shape}: {shape.words}" for shape in shapes)
    return (
        f"<g><title>{_safe(title)}</title>"
        f"<rect x='{x + 1:.0f}' y='{y + 1:.0f}' width='{width - 2:.0f}' height='32' rx='3' fill='rgb({mixed})' "
        f"stroke='{_FAINT}'/>{_text(x + width / 2, y + 21, f'{change:+.1f}{mark}', anchor='middle')}</g>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round percentages between two, 0 among them."""
    rough = (high - low) / 6
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [round(n * step, 6) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axis(name: str) -> str:
    return {"max_spec_len": "drafts"}.get(name, name.replace("_", " "))


def _safe(value: str) -> str:
    return escape(plain(value, 2_000), quote=True)


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "400") -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text {place} fill='{_INK}' {_FONT}>{_safe(words)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'/>"


def _svg(size: tuple[float, float], parts: Sequence[str], title: str) -> str:
    width, height = (math.ceil(value) for value in size)
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' "
    body = "\n".join(parts)
    return (
        f"{head}role='img'>\n<title>{_safe(title)}</title>\n"
        f"<rect width='{width}' height='{height}' fill='{_PAPER}'/>\n{body}\n</svg>\n"
    )
