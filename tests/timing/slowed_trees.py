"""Trees whose `parse_output` is slower than base's by a known amount: the demonstration's, with a longer loop in it.

Base has the loop, too, so that a head differs in nothing but how often it goes round. What a lap costs is calibrated
with a loop so long that it takes a good part of the time; a head of one percent is then so many laps more, and its true
change is known without measuring anything small.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

if __name__ == "__main__":  # beside the checkout's difftest, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from difftest.demo import TREES
from difftest.target import Call

BATCHES = (1, 16, 64, 256)
DRAFTS, ACCEPTANCE = 3, 0.6
LAPS = 40
"""Laps of base's loop at every batch."""

TARGET = "v1.parse_output"
_FILE = "vllm/v1/sample/rejection_sampler.py"
_BEFORE = "        token_ids = output_token_ids.numpy(force=True)\n"
# Not `range`: numbers up to 256 are there already and larger ones are made, so the long loop's laps would cost more.
_LOOP = "        for _ in itertools.repeat(None, _LAPS[len(output_token_ids)]):\n            pass\n"


def label(batch: int) -> str:
    """The shape's label in the case file."""
    return f"batch {batch}, {DRAFTS} drafts, acceptance {ACCEPTANCE}"


def write_shapes(path: Path, batches: Sequence[int] = BATCHES) -> str:
    """A file for `--shapes` that names one shape for each batch."""
    path.write_text("".join(f"{label(batch)}\n" for batch in batches))
    return str(path)


def write_tree(folder: Path, more: Mapping[int, int] | None = None) -> Path:
    """The demonstration's base with the loop in `parse_output`; `more` laps than base by batch."""
    laps = {batch: LAPS + (more or {}).get(batch, 0) for batch in BATCHES}
    shutil.copytree(TREES / "base", folder)
    text = (folder / _FILE).read_text()
    assert text.count(_BEFORE) == 1
    text = text.replace("import numpy as np\n", "import itertools\n\nimport numpy as np\n", 1)
    (folder / _FILE).write_text(text.replace(_BEFORE, _LOOP + _BEFORE) + f"\n\n_LAPS = {laps}\n")
    return folder


def load(tree: Path, name: str) -> ModuleType:
    """The tree's file of `parse_output` as a module of its own. What it imports of `vllm` comes from the first tree."""
    if "vllm" not in sys.modules:
        sys.path.insert(0, str(tree))
    spec = importlib.util.spec_from_file_location(name, tree / _FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_MANY = {batch: 250 + 20 * batch for batch in BATCHES}
"""Laps that take about a quarter of the time: in a much longer loop one lap costs less."""


def lap_shares(scratch: Path, processes: int = 6) -> dict[int, float]:
    """What one lap more adds to base's time, as a fraction of it, by batch.

    A lap costs up to a fifth more where a process happens to place the loop badly, which it does for all of its life,
    so this is the mean over processes, as a bench's change is.
    """
    trees = write_tree(scratch / "calibrate-base"), write_tree(scratch / "calibrate-slow", _MANY)
    found = []
    for turn in range(processes):
        command = [sys.executable, __file__, *map(str, trees), str(turn)]
        found.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    return {batch: statistics.fmean(shares[str(batch)] for shares in found) for batch in BATCHES}


def main() -> None:
    """Print the shares that this process sees, as JSON: `slowed_trees.py BASE SLOW TURN`."""
    from difftest.timing.blocks import PairedBlocks, quiet_collector

    *trees, turn = sys.argv[1:]
    arms = [load(Path(tree), name) for tree, name in zip(trees, ("base", "slow"), strict=True)]
    shares = {}
    with quiet_collector():
        for batch in BATCHES:
            fresh = [calls(arm.RejectionSampler.parse_output, batch) for arm in arms]
            pairs = PairedBlocks(*fresh, head_first=bool(int(turn) % 2)).take(24)
            shares[batch] = (statistics.median(pair.head_ns / pair.base_ns for pair in pairs) - 1) / _MANY[batch]
    print(json.dumps(shares))


def calls(function: Callable[..., object], batch: int) -> Callable[[int], Call]:
    """Calls of one version of `parse_output`, each with inputs of its own."""
    from difftest.cases import v1_parse_output

    shape = next(shape for shape in v1_parse_output.shapes("grid") if shape.label == label(batch))
    assert shape.vary is not None
    vary = shape.vary
    return lambda number: Call(function, (), vary(number))


def laps_for(percent: float, shares: Mapping[int, float]) -> tuple[dict[int, int], dict[int, float]]:
    """Laps more for a slowdown of about so many percent, and the true slowdown in percent, by batch."""
    laps = {batch: round(percent / 100 / shares[batch]) for batch in BATCHES}
    return laps, {batch: 100 * laps[batch] * shares[batch] for batch in BATCHES}


if __name__ == "__main__":
    main()
