"""What the reports of a bench show: never a bare number, and everything that stands against a verdict."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import bench_results
import pytest
from bench_results import bench, shape
from rich.console import Console

from difftest.reports import bench_markdown, bench_svg, bench_terminal
from difftest.reports.bench_words import bench_sentence, microseconds
from difftest.reports.markdown import LIMIT
from difftest.timing.pairs import judge_pairs, read_runs
from difftest.timing.result import BenchResult, Untimed

GRID = bench_results.grid()


def shown(result: BenchResult, width: int = 140, **options: object) -> str:
    console = Console(file=io.StringIO(), width=width, **options)  # type: ignore[arg-type]
    bench_terminal.render(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_the_terminal_keeps_to_the_width_and_ends_with_the_sentence(width: int) -> None:
    lines = shown(GRID, width).splitlines()
    assert lines[-1] == bench_sentence(GRID)
    assert [line for line in lines[:-1] if len(line) > width] == []


def test_the_sentence_says_the_change_in_words_with_both_medians() -> None:
    slower = shape(1, 10.0, 0.2)
    said = bench_sentence(bench([slower, shape(4, 10.0, -0.3)]))
    times = f"base {microseconds(slower.base.median)} µs, head {microseconds(slower.head_times.median)} µs"
    assert f", worst slower by {slower.delta_percent:.1f} % ({slower.shape}: {times})" in said


def test_every_shape_has_its_verdict_its_interval_and_its_spread() -> None:
    text = shown(GRID, 200)
    for found in GRID.shapes:
        line = next(line for line in text.splitlines() if found.shape in line and found.words in line)
        assert f"{found.interval[0]:+.1f} to {found.interval[1]:+.1f}" in line
        assert f"{found.spread_percent:.1f} %" in line and str(len(found.pairs)) in line


def test_colour_and_bars_show_the_direction() -> None:
    plain, coloured = shown(GRID), shown(GRID, force_terminal=True, color_system="standard")
    assert "\x1b[" not in plain and "\x1b[32m" in coloured and "\x1b[1;31m" in coloured
    assert bench_terminal.bar(-10, 10).plain == "████████│        "
    assert bench_terminal.bar(5, 10).plain == "        │████    "
    assert bench_terminal.bar(0, 0).plain == "        │        "


def test_what_stands_against_a_verdict_is_said() -> None:
    result = bench(
        [replace(shape(1, 10.0, -0.1), differs=True, spread_percent=7.5), shape(2, 10.0, 0.2)],
        limit=2.0,
        untimed=(Untimed("v1.topk", "WORKTREE", "head does not define it"),),
    )
    for text in (shown(result), bench_markdown.render(result).replace("`", "")):
        assert "(outputs differ)" in text
        assert "1 of 2 shapes; widest 7.5 %" in text
        assert "v1.topk, WORKTREE: head does not define it" in text
        assert "the gate fails: 1 shape slower by more than 2 %" in text
        assert "Beyond the gate" in text and "v1.parse_output, batch 2, 3 drafts, WORKTREE" in text
        assert "the measuring loop costs 32 ns a call" in text
    assert "1 not timed" in bench_sentence(result)


def test_the_sentence_says_the_whole() -> None:
    assert bench_sentence(bench([])) == (
        "difftest bench: nothing was timed; WORKTREE (6f5e4d3c2b1a, dirty) against main (1a2b3c4d5e6f)"
    )
    one = bench([shape(1, 10.0, 0.0), shape(2, 10.0, 0.2)], limit=30.0)
    assert bench_sentence(one).startswith(
        "difftest bench: WORKTREE (6f5e4d3c2b1a, dirty) against main (1a2b3c4d5e6f): 1 slower, 1 no change of 2 shapes"
    )
    assert bench_sentence(one).endswith("the gate holds: no interval lies beyond +30 %")


def test_a_gate_does_not_hold_for_what_was_not_timed() -> None:
    left = bench([shape(1, 10.0, 0.0)], limit=30.0, untimed=(Untimed("v1.topk", "WORKTREE", "the budget ended"),))
    assert left.exit_code == 3
    said = bench_sentence(left)
    assert "the gate holds" not in said
    assert "no interval lies beyond the gate of +30 %, but not all that was asked for was timed (exit code 3)" in said


def test_markdown_shows_what_is_slower_openly_and_folds_the_rest() -> None:
    shapes = [shape(batch, 10.0, 0.2 if batch == 1 else -0.3, layouts=4) for batch in range(1, 21)]
    text = bench_markdown.render(bench(shapes))
    before, after = text.split("<details>")
    assert before.count("🔴") == 1 and before.count("🟢") == 0
    assert "all 20 shapes" in after and after.count("🟢") == 19
    assert bench_markdown.render(GRID, [("Batch × drafts", "grid.svg")]).count("](grid.svg)") == 1


def test_markdown_never_grows_beyond_what_a_comment_takes() -> None:
    one = shape(1, 10.0, 0.2, layouts=4, floor=False)
    text = bench_markdown.render(bench([replace(one, shape=f"shape {n} " + "x" * 40) for n in range(700)]))
    assert len(text.encode()) <= LIMIT
    assert "more shapes" in text


def test_names_from_outside_are_never_markup() -> None:
    hostile = replace(shape(1, 10.0, 0.2), shape="[bold]|x|`y` @someone <b>", head="a|b")
    result = bench([hostile])
    assert "[bold]|x|`y` @someone <b>" in shown(result, 200)
    text = bench_markdown.render(result)
    for spanned in ("`<b>`", "`@someone`"):
        text = text.replace(spanned, "")
    assert "<b>" not in text and "@someone" not in text


def test_microseconds_are_never_in_powers_of_ten() -> None:
    assert [microseconds(v) for v in (0.0271, 0.5, 10.44, 123.4, 45678.0)] == [
        "0.0271",
        "0.500",
        "10.4",
        "123",
        "45678",
    ]


def test_pairs_in_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("arm,pair,tps\nbase,1,100\nhead,1,110\nhead,2,110\nbase,2,100\nbase,3,100\nhead,3,111\n")
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    bench_terminal.render_pairs(judge_pairs(read_runs([path])), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "3 pairs; interleaved, order alternated" in text and "\x1b[32mtps: 100 → 110, +10.0 %" in text


SVG = "{http://www.w3.org/2000/svg}"


def test_the_heat_map_has_a_cell_for_each_place_and_says_its_verdict() -> None:
    picture = ET.fromstring(bench_svg.heat_map(GRID, "v1.parse_output", "WORKTREE"))
    cells = picture.findall(f"{SVG}g")
    assert len(cells) == 8
    title, text = cells[0].find(f"{SVG}title"), cells[0].find(f"{SVG}text")
    assert title is not None and title.text == f"batch 1, 1 drafts: {GRID.shapes[0].words}"
    assert text is not None and text.text == f"{GRID.shapes[0].delta_percent:+.1f}"
    undecided = bench([replace(shape(b, 9.0, 0.0), verdict=v) for b, v in ((1, "inconclusive"), (2, "no-change"))])
    texts = [e.text or "" for e in ET.fromstring(bench_svg.heat_map(undecided, "v1.parse_output", "WORKTREE")).iter()]
    assert sum(text.endswith("?") for text in texts) == 1 and sum(text.endswith("=") for text in texts) == 1


def test_the_ratio_against_batch_has_a_point_and_an_interval_for_each_shape() -> None:
    picture = ET.fromstring(bench_svg.against_batch(GRID, "v1.parse_output"))
    points = picture.findall(f"{SVG}circle")
    assert len(points) == len(GRID.shapes) == 12
    height = {float(point.attrib["cy"]) for point in points}
    upright = [e for e in picture.findall(f"{SVG}line") if e.attrib["x1"] == e.attrib["x2"]]
    assert len(upright) == 12 and len(picture.findall(f"{SVG}polyline")) == 2
    # batch 1 of the first head is slower, so above the line of no change; all its others are below it
    even = next(e for e in picture.findall(f"{SVG}line") if e.attrib["stroke"] == "#24292f")
    assert min(height) < float(even.attrib["y1"]) < max(height)


def test_pictures_carry_names_from_outside_safely_and_are_empty_without_axes() -> None:
    hostile = [replace(shape(batch, 9.0, 0.1), target="<script>&\"'", head="]]>\x00") for batch in (1, 2)]
    for picture in (
        bench_svg.heat_map(bench(hostile), hostile[0].target, hostile[0].head),
        bench_svg.against_batch(bench(hostile), hostile[0].target),
    ):
        ET.fromstring(picture)
        assert "<script>" not in picture
    assert bench_svg.heat_map(bench([shape(1, 9.0, 0.1)]), "v1.parse_output", "WORKTREE") == ""
    assert bench_svg.against_batch(bench([shape(1, 9.0, 0.1)]), "v1.parse_output") == ""
