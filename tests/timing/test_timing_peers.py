"""The comparison with other tools: its counts, and that each tool's program is what Python takes."""

from __future__ import annotations

import ast

import peers
from peers import Verdict


def test_the_table_counts_what_each_tool_said() -> None:
    found = [Verdict("difftest", 0, 1, says, 0.001 * says, 1.0) for says in (0, 0, 1)]
    found += [Verdict("difftest", 2, 1, 1, 0.021, 2.0), Verdict("difftest", 3, 1, -1, -0.02, 3.0)]
    (row,) = (line for line in peers.table(found).splitlines() if line.startswith("| difftest |"))
    assert row.endswith("| default settings | 1 of 3 | 1 of 1 | 0 of 1 | 1 of 2 | 0.1 | 1.0 |")


def test_the_limit_lies_below_the_smaller_slowdown_on_both_sides() -> None:
    assert [peers._beyond(change)[0] for change in (-0.02, -0.01, 0.0, 0.01, 0.02)] == [-1, 0, 0, 0, 1]
    assert 0 < peers.LIMIT < min(filter(None, peers.PERCENTS)) / 100


def test_the_programs_of_the_tools_are_python() -> None:
    asv = peers._ASV.format(paths=["x"], arms=["base", "head"], batches=[1])
    for program in (peers._imports("tree") + peers._PYTEST, peers._imports("tree") + peers._PYPERF, asv):
        ast.parse(program)
