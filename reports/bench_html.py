"""The page of a bench: one HTML file with its pictures in it, as the page of a run without network and other files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from difftest.timing.result import BenchResult, GridResult, ShapeResult
from difftest.timing.statistics import SpeedVerdict

from . import bench_svg
from .bench_words import (
    bench_sentence,
    change_words,
    floor_words,
    gate_words,
    grid_lines,
    microseconds,
    remark_lines,
    shapes_of,
    times_words,
    verdict_words,
)
from .html import LIMIT, check_available, fill
from .words import identity_facts, plain, plural

ROWS = (1_000, 200, 60, 20, 5)
"""Rows of a table: the largest number with which the page stays within its limit."""

TARGETS = 60
"""Most targets with pictures and tables of their own."""


def render(result: BenchResult) -> str:
    """The page, at most :data:`difftest.reports.html.LIMIT` bytes where its pictures allow it; what is cut is counted.

    Raises:
        DifftestError: jinja2 is not installed.
    """
    check_available()
    for rows in ROWS:
        page = _page(result, rows)
        if len(page.encode()) < LIMIT:
            break
    return page


def overall(result: BenchResult) -> tuple[str, str]:
    """The page's verdict in words, and the class that colours it: what needs a reader most comes first."""
    if result.regressions:
        return "the speed gate fails", "slower"
    for verdict in (SpeedVerdict.SLOWER, SpeedVerdict.INCONCLUSIVE, SpeedVerdict.FASTER, SpeedVerdict.NO_CHANGE):
        if count := result.count(verdict):
            words = "no change" if verdict is SpeedVerdict.NO_CHANGE else str(verdict)
            of = "" if count == len(result.shapes) else f" at {count} of {plural(len(result.shapes), 'shape')}"
            return f"{words}{of}", str(verdict)
    return "nothing was timed", "inconclusive"


def _page(result: BenchResult, rows: int) -> str:
    words, look = overall(result)
    arms = [("base", result.base), *(("head", head) for head in result.heads)]
    names = list(dict.fromkeys(grid.target for grid in result.grids))
    return fill(
        "bench_page.html.jinja",
        words=words,
        look=look,
        gate=gate_words(result),
        sentence=plain(bench_sentence(result), 8_000),
        arms=[
            (arm, [(plain(name, 40), plain(value, 300)) for name, value in identity_facts(identity)])
            for arm, identity in arms
        ],
        targets=[_target(result, name, rows) for name in names[:TARGETS]],
        targets_left_out=max(0, len(names) - TARGETS),
        remarks=[
            (title, [plain(line, 600) for line in lines[:60]], max(0, len(lines) - 60))
            for title, lines in remark_lines(result)
        ],
        environment=[(plain(key, 80), plain(value, 300)) for key, value in result.environment.items()],
        seconds=f"{result.seconds['total']:.1f} s" if "total" in result.seconds else "",
        command=plain(result.command, 4_000),
    )


def _target(result: BenchResult, name: str, rows: int) -> dict[str, Any]:
    from markupsafe import Markup

    grids = [grid for grid in result.grids if grid.target == name]
    drawn = [bench_svg.against_batch(result, name), *(bench_svg.heat_map(result, name, grid.head) for grid in grids)]
    return {
        "name": plain(name, 200),
        # Markup, since its texts were escaped when it was drawn.
        "pictures": [Markup(picture) for picture in drawn if picture],
        "beside": _beside([shapes_of(result, grid) for grid in grids], grids, rows) if len(grids) > 1 else None,
        "heads": [_head(shapes_of(result, grid), grid, rows) for grid in grids],
    }


def _head(shapes: Sequence[ShapeResult], grid: GridResult, rows: int) -> dict[str, Any]:
    largest = max(abs(shape.delta_percent) for shape in shapes) or 1.0
    return {
        "name": plain(grid.head, 200),
        "lines": [plain(line, 600) for line in grid_lines(grid)],
        "shapes": [
            {
                "name": plain(shape.shape, 200),
                "base": times_words(shape, "base"),
                "head": times_words(shape, "head"),
                "change": change_words(shape),
                "faster": round(min(100.0, max(0.0, -100 * shape.delta_percent / largest)), 1),
                "slower": round(min(100.0, max(0.0, 100 * shape.delta_percent / largest)), 1),
                "verdict": str(shape.verdict),
                "words": plain(verdict_words(shape), 300),
                "floor": floor_words(shape),
                "spread": f"{shape.spread_percent:.1f} %",
                "pairs": len(shape.pairs),
            }
            for shape in shapes[:rows]
        ],
        "left_out": max(0, len(shapes) - rows),
    }


def _beside(shapes: Sequence[Sequence[ShapeResult]], grids: Sequence[GridResult], rows: int) -> dict[str, Any]:
    """Every head's change at every shape, the best head of each shape marked where its interval is the lowest alone."""
    by_label = [{shape.shape: shape for shape in some} for some in shapes]
    labels = list(dict.fromkeys(shape.shape for some in shapes for shape in some))
    lines = []
    for label in labels[:rows]:
        here = [some.get(label) for some in by_label]
        known = [shape for shape in here if shape is not None]
        best = min(known, key=lambda shape: shape.interval[1])
        alone = all(shape is best or shape.interval[0] > best.interval[1] for shape in known)
        cells = [
            None
            if shape is None
            else {
                "change": change_words(shape),
                "verdict": str(shape.verdict),
                "best": shape is best and alone and len(known) > 1 and best.interval[1] < 0,
            }
            for shape in here
        ]
        lines.append({"name": plain(label, 200), "base": microseconds(known[0].base.median), "cells": cells})
    heads = [plain(grid.head, 60) for grid in grids]
    return {"heads": heads, "lines": lines, "left_out": max(0, len(labels) - rows)}
