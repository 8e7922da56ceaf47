"""The page of a bench: one file, safe, whole, and readable in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import bench_results
import pytest
from bench_results import bench, shape

from difftest.reports import bench_html
from difftest.reports.bench_words import bench_sentence
from difftest.reports.html import LIMIT
from difftest.timing.result import BenchResult, Untimed

GRID = bench_results.grid()
NOTHING = bench([], untimed=(Untimed("v1.topk", "WORKTREE", "head does not define it"),))
HOSTILE = bench([replace(shape(b, 9.0, 0.1), target="<script>&\"'", shape=f"{b}</td>{{{{ 7*7 }}}}") for b in (1, 2)])


class Page(HTMLParser):
    """Elements with their attributes, and the text beside styles; asserts that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


@pytest.mark.parametrize("result", [GRID, NOTHING, HOSTILE], ids=["grid", "nothing", "hostile"])
def test_it_is_one_well_formed_page_that_asks_for_nothing(result: BenchResult) -> None:
    page = Page(bench_html.render(result))
    tags = {tag for tag, _ in page.elements}
    assert not {"script", "iframe", "img", "image", "object", "embed", "base", "a", "use"} & tags
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action", "background", "xlink:href"} & set(attributes)
        assert attributes.get("href", "data:,") == "data:,"
        assert not [name for name in attributes if name.startswith("on")]
    assert bench_sentence(result) in page.text


def test_every_shape_has_its_times_its_interval_and_its_verdict() -> None:
    text = Page(bench_html.render(GRID)).text
    for found in GRID.shapes:
        assert f"{found.delta_percent:+.1f} % ({found.interval[0]:+.1f} to {found.interval[1]:+.1f})" in text
        assert found.words in text
    for grid in GRID.grids:
        for line in (grid.words, *grid.crossing, *grid.growth):
            assert line in text
    assert "head over base, with 95 % intervals" in text


def test_candidates_stand_side_by_side_and_the_best_is_marked_where_it_is_alone() -> None:
    page = bench_html.render(GRID)
    rows = re.findall(r"<tr><td>(batch [^<]*)</td>(.*)</tr>", page.split("Side by side")[1].split("</table>")[0])
    assert [name for name, _ in rows] == list(dict.fromkeys(s.shape for s in GRID.shapes))
    best = {name for name, cells in rows if "best" in cells}
    assert best == {"batch 4, 3 drafts", "batch 16, 3 drafts", "batch 64, 3 drafts"}
    assert all("not timed" in cells for name, cells in rows if "1 drafts" in name)
    one = bench([shape(batch, 9.0, -0.2) for batch in (1, 2)])
    assert "Side by side" not in bench_html.render(one)


def test_the_verdict_is_what_needs_a_reader_most() -> None:
    assert bench_html.overall(NOTHING) == ("nothing was timed", "inconclusive")
    assert bench_html.overall(bench([shape(1, 9.0, 0.0)])) == ("no change", "no-change")
    assert bench_html.overall(GRID) == ("slower at 6 of 12 shapes", "slower")
    assert bench_html.overall(bench([shape(1, 9.0, 0.2), shape(2, 9.0, -0.2)], 2.0)) == (
        "the speed gate fails",
        "slower",
    )


def test_it_stays_within_its_limit_and_counts_what_it_leaves_out() -> None:
    one = shape(1, 10.0, 0.2, layouts=4, floor=False)
    page = bench_html.render(bench([replace(one, shape=f"shape {n} " + "x" * 40) for n in range(3_000)]))
    assert len(page.encode()) < LIMIT
    (left_out,) = re.findall(r"and (\d+) more shapes", page)
    assert page.count("<tr><td>") + int(left_out) == 3_000


@pytest.mark.check
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("dark", [0, 1], ids=["light", "dark"])
def test_in_a_browser_it_fits_and_can_be_read(tmp_path: Path, width: int, dark: int) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium on this machine")
    look = """<script>addEventListener("load", () => {
      const say = (name, value) => { const p = document.createElement("p"); p.id = "said-" + name;
        p.textContent = value; document.body.append(p); };
      const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number); return r + g + b > 382; };
      const page = light(getComputedStyle(document.body).backgroundColor);
      const inks = [...document.querySelectorAll("td, .picture svg > text")].map(e => getComputedStyle(e));
      say("width", document.documentElement.scrollWidth <= innerWidth);
      say("ink", inks.every(s => light(s.fill === "rgb(0, 0, 0)" ? s.color : s.fill) !== page));
      say("dark", !page);
      say("requests", performance.getEntriesByType("resource").length);
    });</script></body>"""
    text = bench_html.render(GRID).replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    page = tmp_path / "page.html"
    page.write_text(text.replace("</body>", look), encoding="utf-8")
    options = ["--headless", "--disable-gpu", f"--window-size={width},1600", f"--user-data-dir={tmp_path / 'profile'}"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [browser, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    said = dict(re.findall(r'<p id="said-(\w+)">([^<]*)</p>', done.stdout))
    assert said == {"width": "true", "ink": "true", "dark": str(bool(dark)).lower(), "requests": "0"}
