"""Every commit that touches the sampler in a real clone is planned without a traceback, and revisions load.

DIFFTEST_HISTORY=/path/to/a/vllm/clone pytest -m check tests/lift/test_real_history.py
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections import Counter
from pathlib import Path

import pytest

from difftest import catalog
from difftest.lift.arm import LiftedArm
from difftest.lift.facts import Facts
from difftest.lift.loader import Loader
from difftest.lift.source import SourceModule
from difftest.lift.sources import Sources
from difftest.run.plan import ArmSource, Planner
from difftest.trees import open_tree
from difftest.trees.cache import cache_folder

pytestmark = pytest.mark.check

VARIABLE = "DIFFTEST_HISTORY"
WATCHED = ("vllm/v1/sample", "vllm/v1/worker/gpu/sample")
COMMITS, REVISIONS = 300, 15


@pytest.fixture(scope="module")
def commits() -> list[tuple[str, str]]:
    """(parent, commit) of the last commits that touch the sampler, newest first."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"{VARIABLE} names no clone of vLLM")
    command = ["git", "-C", os.environ[VARIABLE], "log", "--format=%P %H", f"-{COMMITS}", "HEAD", "--", *WATCHED]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(parts[0], parts[-1]) for line in lines if len(parts := line.split()) > 1]


def test_every_commit_is_planned(commits: list[tuple[str, str]], tmp_path: Path) -> None:
    repo = Path(os.environ[VARIABLE])
    outlines = catalog.outline(cache_folder())
    shared: dict[tuple[str, str], Facts] = {}
    codes: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for parent, commit in commits:
        with open_tree(parent, repo) as base, open_tree(commit, repo) as head:
            arms = [ArmSource("base", base, tmp_path / "b", shared), ArmSource("head", head, tmp_path / "h", shared)]
            planner = Planner()
            for outline in outlines:
                planned = planner.plan(outline, arms[0], arms[1], 0)
                codes[planned.code] += 1
                if planned.code == "refused":
                    refused[planned.reason] += 1
    print(f"{len(commits)} commits, {len(outlines)} targets: {dict(codes)}; refused: {refused.most_common(20)}")
    assert len(commits) > 100 and codes["same"] > codes["changed"] > 0
    assert not refused


def test_all_targets_load_at_many_revisions(commits: list[tuple[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("triton")
    repo = Path(os.environ[VARIABLE])
    outlines = catalog.outline(cache_folder())
    step = max(1, len(commits) // REVISIONS)
    loaded = 0
    failed: Counter[str] = Counter()
    for number, (_, commit) in enumerate(commits[::step]):
        folder = tmp_path / str(number)
        with open_tree(commit, repo) as tree:
            arm_source = ArmSource("base", tree, folder, {})
            planner = Planner()

            def file_of(source: SourceModule, folder: Path = folder) -> str:
                path = folder / source.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.data)
                return str(path)

            standins = planner.standins("vllm")
            loader = Loader(f"history{number}", Sources(arm_source.find, tree.read), standins, file_of)
            arm = LiftedArm("base", loader)
            for outline in outlines:
                bound = planner.bind(outline, arm_source)
                for symbol in [bound.symbol, *[s for s in outline.uses if arm.has(s)]] if bound.symbol else []:
                    try:
                        with warnings.catch_warnings():  # what an old version does with torch is not the matter here
                            warnings.simplefilter("ignore")
                            arm.get(symbol)
                        loaded += 1
                    except Exception as error:
                        failed[f"{commit[:10]} {outline.name} {symbol}: {type(error).__name__}: {error}"] += 1
            assert loader.strangers() == []
    print(f"{loaded} symbols loaded; failed: {failed.most_common(30)}")
    assert loaded > 500 and not failed
