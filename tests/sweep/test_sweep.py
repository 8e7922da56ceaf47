"""`difftest sweep`: each commit against its parent, and what its limits left out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from difftest.api import RunOptions
from difftest.demo import make_repository
from difftest.output import show_sweep
from difftest.sweep import sweep


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> RunOptions:
    repository = tmp_path_factory.mktemp("sweep") / "sampler"
    make_repository(repository)
    return RunOptions(base="", heads=("",), repo=repository, targets=("v1.parse_output", "v1.logprobs_filter"), jobs=1)


def said(options: RunOptions, **limits: float) -> tuple[int, list[str]]:
    console = Console(width=200, file=io.StringIO(), record=True)
    code = show_sweep(sweep(RunOptions(**{**vars(options), **limits}), "base..subtle-bug"), console, None)
    return code, [line.strip() for line in console.export_text().splitlines()]


def test_without_limits_nothing_is_left_out(options: RunOptions) -> None:
    code, lines = said(options)
    assert code == 1
    assert lines[1:] == ["v1.parse_output", "1 commit that touches a target: 1 different"]


def test_examples_that_leave_cases_out_are_said(options: RunOptions) -> None:
    code, lines = said(options, examples=10)
    assert code == 0, "the first ten cases agree"
    assert "v1.parse_output: --examples 10: 2550 further cases of the grid left out" in lines
    assert lines[-1].startswith("1 commit was not compared on all cases of all targets: --examples or --budget")


def test_a_budget_that_ends_before_a_target_is_said(options: RunOptions) -> None:
    code, lines = said(options, budget=0.001)
    assert code == 3
    assert "v1.parse_output: not compared: the time budget ended before this target was begun" in lines
    assert lines[-1].startswith("1 commit was not compared on all cases of all targets")
