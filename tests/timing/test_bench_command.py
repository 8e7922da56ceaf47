"""`difftest bench` and `difftest pairs` as commands; what bench writes."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import bench_results
import pytest
from click.testing import CliRunner

from difftest.cli import cli
from difftest.errors import UsageError
from difftest.output import Formats
from difftest.timing.show import percentage

_WRITER = "difftest.reports.bench_files"


def test_every_format_is_written(tmp_path: Path) -> None:
    result = bench_results.grid()
    outputs = Formats.parse(
        [f"{kind}:{tmp_path}/bench.{kind}" for kind in ("json", "markdown", "html", "svg")], _WRITER
    )
    outputs.write(result)
    assert json.loads((tmp_path / "bench.json").read_text()) == result.to_json()
    assert (tmp_path / "bench.html").read_text().startswith("<!doctype html>")
    report = (tmp_path / "bench.markdown").read_text()
    named = re.findall(r"!\[[^]]*\]\(([^)]+)\)", report)
    assert len(named) == 3  # a heat map for each head that has two axes, and the ratio against the batch
    for name in named:
        assert ElementTree.fromstring((tmp_path / name).read_text()).tag.endswith("svg")
    whole = ElementTree.fromstring((tmp_path / "bench.svg").read_text())
    assert len(whole) == 3
    tops = [int(picture.get("y", "-1")) for picture in whole]
    assert tops == sorted(set(tops))
    assert float(whole.get("height", "0")) == tops[-1] + float(whole[-1].get("height", "0"))


def test_a_result_without_pictures_has_an_svg_that_says_so() -> None:
    files = import_module("difftest.reports.bench_files")
    assert "nothing to draw" in ElementTree.fromstring(files.stacked([]))[0].text


@pytest.mark.parametrize("value", ["pdf:x", "json", "json:", "svg:/nowhere/x.svg"])
def test_a_format_that_cannot_be_written_is_refused_at_once(value: str) -> None:
    with pytest.raises(UsageError):
        Formats.parse([value], _WRITER)


def test_percentages() -> None:
    assert [percentage(text) for text in ("2%", "2 %", "2.5", "0")] == [2.0, 2.0, 2.5, 0.0]
    for text in ("two", "-1%", "", "nan"):
        with pytest.raises(UsageError):
            percentage(text)


def test_pairs_are_judged_from_files(tmp_path: Path) -> None:
    lines = ["arm,pair,request_throughput"]
    for pair, (base, head) in enumerate([(50, 90), (100, 106), (100.4, 105.2), (99.8, 105.5)]):
        lines += [f"base,{pair},{base}", f"head,{pair},{head}"]
    runs = tmp_path / "runs.csv"
    runs.write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(cli, ["pairs", str(runs), "--drop-first", "--format", f"json:{tmp_path}/pairs.json"])
    assert done.exit_code == 0, done.output
    assert "3 pairs" in done.output
    written = json.loads((tmp_path / "pairs.json").read_text())
    assert written["schema"] == "difftest.pairs/1"
    assert written["metrics"][0]["verdict"] == "better"


def test_pairs_from_no_file_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["pairs", str(tmp_path / "none.csv")])
    assert isinstance(done.exception, UsageError)
    assert "cannot be read" in str(done.exception)
