"""The grid of 90 shapes for two heads equivalent to vLLM 0.29.0: which shapes become slower, and in what time."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_parse_output_heads import EQUIVALENT, write_heads

from difftest.timing.bench import BUDGET_SECONDS, BenchOptions, bench
from difftest.timing.statistics import SpeedVerdict

pytestmark = [pytest.mark.index, pytest.mark.check]


def test_the_filter_regresses_nowhere_and_the_gather_at_the_smallest_batches(release: Path, tmp_path: Path) -> None:
    heads = write_heads(release, EQUIVALENT, tmp_path)
    result = bench(BenchOptions(str(release), tuple(heads), targets=("v1.parse_output",), shapes="grid"))
    for grid in result.grids:
        print(Path(grid.head).name, grid.words, *grid.crossing, sep="\n  ")
    print(result.seconds)
    slower = [(Path(s.head).name, s.axes["batch"]) for s in result.shapes if s.verdict == SpeedVerdict.SLOWER]
    assert {head for head, _ in slower} == {"masked-gather"}
    assert {batch for _, batch in slower} <= {1, 2}
    assert slower.count(("masked-gather", 1)) == 9
    python_filter, gather = result.grids
    assert python_filter.verdicts["faster"] == 90
    assert gather.crossing[0].startswith("better from batch 4 on, worse up to ")
    assert not result.untimed
    assert result.seconds["total"] <= BUDGET_SECONDS + 1
