"""Every planted fault, and every difference of a labelled history, is made small and shown by a script of its own.

The history is named by DIFFTEST_HISTORY (a clone) and DIFFTEST_CORPUS (a JSON line for each commit: `id`, `parent`,
`commit`, `label`, `verified_targets`). `-s` prints the figures.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from edited_trees import replace_function
from test_mask_packer_heads import FAULTS as PACKER_FAULTS
from test_mask_packer_heads import FROM_LOGITS, PACKER
from test_parse_output_heads import _FAULTS as PARSE_FAULTS
from test_parse_output_heads import MASKED_GATHER, PARSE_OUTPUT
from test_replayed_faults import FAULTS as REPLAYED_FAULTS
from test_replayed_faults import captured, planted, replayed

from difftest import api
from difftest.record.casefile import read_case, write_case
from difftest.result import Reduced, TargetResult
from difftest.shrink.sizes import FIRST, Cut, Sizes

__all__ = ["captured"]  # a fixture

pytestmark = [pytest.mark.check, pytest.mark.index]

SECONDS = 10.0

NEEDS = {
    # (entry, target): requests without which the two versions do the same, and why
    ("30132cd14", "v1.top_k_top_p"): (8, "the line that changed chooses Triton for 8 requests or more"),
}


def is_small(item: Reduced) -> bool:
    """At most a twentieth of the bytes, or at most 3 requests and 16 ids."""
    return item.bytes[1] * 20 <= item.bytes[0] or (item.requests[1] <= 3 and item.largest_axis[1] <= 16)


def needs_its_requests(item: Reduced, needed: int, request: api.RunOptions, folder: Path) -> bool:
    """Whether a case is of so many requests and at most 16 ids, and does not differ with one request less."""
    case = read_case(Path(item.path) / "case.safetensors")
    pool = case.pool()
    if item.requests[1] != needed or item.largest_axis[1] > 16:
        return False
    fewer = Sizes(pool).cut(needed, range(needed - 1), Cut((FIRST,)))
    file = write_case(folder / "fewer.safetensors", case.target, case.case(), fewer)
    (target,) = api.run(replace(request, targets=(case.target,), case=str(file.path), out=None)).targets
    return target.verdict == "identical"


def reproduces(folder: Path, leaf: str) -> bool:
    done = subprocess.run([sys.executable, folder / "reproduce.py"], cwd="/", capture_output=True, text=True)
    return done.returncode == 1 and f" at {leaf}" in done.stdout


def figures(
    targets: Iterable[TargetResult], listed: Callable[[str, Reduced], bool] = lambda target, item: False
) -> tuple[list[str], list[float]]:
    """What falls short of what is promised, in words, and the seconds that each case took.

    Args:
        listed: whether a case that is not small is one that cannot be, which it shows.
    """
    short, seconds = [], []
    for target in targets:
        assert target.reduced, (target.name, target.head, target.verdict)
        for item in target.reduced:
            seconds.append(item.seconds)
            words = f"{Path(target.head).name} {target.name} {item.kind} at {item.leaf}"
            print(words, item.bytes, item.requests, item.largest_axis, item.executed, item.seconds, item.reason)
            if item.reason:
                short.append(f"{words}: {item.reason}")
            elif not is_small(item) and not listed(target.name, item):
                short.append(f"{words}: {item.bytes} bytes, {item.requests} requests, axis {item.largest_axis}")
            elif not reproduces(Path(item.path), item.leaf):
                short.append(f"{words}: reproduce.py does not show it")
    return short, seconds


@pytest.mark.parametrize("which", ["parse_output", "sampling_mask"])
def test_planted_faults_are_made_small(which: str, release: Path, tmp_path: Path) -> None:
    symbol, target = (PARSE_OUTPUT, "v1.parse_output") if which == "parse_output" else (FROM_LOGITS, "v2.sampling_mask")
    text = MASKED_GATHER if which == "parse_output" else PACKER
    heads = []
    for name, fault in (PARSE_FAULTS if which == "parse_output" else PACKER_FAULTS).items():
        shutil.copytree(release, head := tmp_path / name)
        replace_function(head, symbol, text.replace(fault[0], fault[1], 1))
        path = head / "vllm/v1/sample/rejection_sampler.py"
        path.write_text(path.read_text().replace("import torch\n", "import numpy as np\nimport torch\n", 1))
        heads.append(str(head))
    request = api.RunOptions(
        str(release), tuple(heads), targets=(target,), out=tmp_path / "out", shrink=SECONDS, explain=False
    )
    short, seconds = figures(api.run(request).targets)
    assert short == []
    assert statistics.median(seconds) <= SECONDS


@pytest.mark.parametrize("name", REPLAYED_FAULTS)
def test_planted_faults_that_recordings_show_are_made_small(name: str, captured: Path, tmp_path: Path) -> None:
    fault = REPLAYED_FAULTS[name]
    head = planted(captured, tmp_path / "head", fault)
    options = {"repeat": 1, "examples": 14, "out": tmp_path / "out", "shrink": SECONDS, "explain": False}
    short, seconds = figures([replayed(captured, head, fault.recording, fault.site, **options)])
    assert short == []
    assert statistics.median(seconds) <= SECONDS


def test_the_differences_of_a_history_are_made_small(tmp_path: Path) -> None:
    history, corpus = os.environ.get("DIFFTEST_HISTORY"), os.environ.get("DIFFTEST_CORPUS")
    if not history or not corpus:
        pytest.skip("no clone named: set DIFFTEST_HISTORY and DIFFTEST_CORPUS")
    short: list[str] = []
    seconds: list[float] = []
    for entry in map(json.loads, Path(corpus).read_text().splitlines()):
        if entry["label"] != "differs" or not entry["verified_targets"]:
            continue
        out = tmp_path / entry["id"]
        request = api.RunOptions(
            entry["parent"], (entry["commit"],), repo=Path(history), targets=tuple(entry["verified_targets"]), out=out,
            shrink=SECONDS, explain=False,
        )  # fmt: skip
        targets = [target for target in api.run(request).targets if target.verdict == "different"]
        assert targets, entry["id"]

        def listed(target: str, item: Reduced, entry: str = entry["id"], request: api.RunOptions = request) -> bool:
            needed = NEEDS.get((entry, target))
            return needed is not None and needs_its_requests(item, needed[0], request, tmp_path)

        found, times = figures(targets, listed)
        short += [f"{entry['id']}: {words}" for words in found]
        seconds += times
    assert statistics.median(seconds) <= SECONDS
    assert short == []
