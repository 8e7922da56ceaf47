"""What `difftest bench --format KIND:PATH` writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from difftest.errors import UsageError
from difftest.timing.result import BenchResult

from . import bench_html, bench_markdown, bench_svg, check_place, write_text
from .html import check_available

KINDS = ("json", "markdown", "html", "svg")


def check_writable(kind: str, path: str | os.PathLike[str]) -> None:
    """Fail now rather than at the end of a bench if :func:`write` would fail. Leaves nothing behind.

    Raises:
        UsageError: the kind is unknown, or the path cannot be written.
        DifftestError: the format needs a package that is not installed.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown bench format {kind!r}; known are {', '.join(KINDS)}")
    if kind == "html":
        check_available()
    check_place(path)


def write(result: BenchResult, kind: str, path: str | os.PathLike[str]) -> None:
    """Write the result as `kind` to `path`; the pictures of a markdown report lie beside it.

    Raises:
        UsageError: the kind is unknown, or the path cannot be written.
    """
    check_writable(kind, path)
    if kind == "json":
        write_text(json.dumps(result.to_json(), allow_nan=False) + "\n", path)
        return
    if kind == "html":
        write_text(bench_html.render(result), path)
        return
    drawn = pictures(result)
    if kind == "svg":
        write_text(stacked([picture for _, picture in drawn]), path)
        return
    target = Path(path)
    names = []
    if target.suffix:  # a stream has no files beside it
        for title, picture in drawn:
            name = f"{target.stem}-{re.sub(r'[^A-Za-z0-9.]+', '-', title).strip('-')[:80]}.svg"
            write_text(picture, target.with_name(name))
            names.append((title, name))
    write_text(bench_markdown.render(result, names), path)


def pictures(result: BenchResult) -> list[tuple[str, str]]:
    """Title and SVG text of every picture that the result has axes for: heat maps of each head, ratios by batch."""
    found = []
    for target in dict.fromkeys(grid.target for grid in result.grids):
        for number, head in enumerate(dict.fromkeys(g.head for g in result.grids if g.target == target), 1):
            found.append((f"{target} head {number} heat map", bench_svg.heat_map(result, target, head)))
        found.append((f"{target} against batch", bench_svg.against_batch(result, target)))
    return [(title, picture) for title, picture in found if picture]


def stacked(drawn: list[str]) -> str:
    """One SVG with all pictures below each other; one that says so where there is none."""
    if not drawn:
        return (
            "<svg xmlns='http://www.w3.org/2000/svg' width='420' height='40'>"
            "<text x='8' y='24'>no shapes with a batch: nothing to draw</text></svg>\n"
        )
    sizes = []
    for picture in drawn:
        found = re.search(r"width='(\d+)' height='(\d+)'", picture)
        assert found is not None
        sizes.append((int(found[1]), int(found[2])))
    parts, top = [], 0
    for picture, (_, height) in zip(drawn, sizes, strict=True):
        parts.append(picture.replace("<svg ", f"<svg y='{top}' ", 1).strip())
        top += height + 12
    width = max(width for width, _ in sizes)
    body = "\n".join(parts)
    return f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{top - 12}'>\n{body}\n</svg>\n"
