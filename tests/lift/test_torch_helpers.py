"""Kernels' helpers of torch's compiler are had without importing the compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

CHILD = """
import sys
from pathlib import Path
import torch
from difftest.lift.torch_helpers import KERNEL_HELPERS, kernel_helpers
from small_trees import get

helpers = kernel_helpers()
assert helpers is not None and helpers is kernel_helpers()
assert not [name for name in sys.modules if name.startswith(("torch._inductor", "torch._dynamo."))]

module = "from torch._inductor.runtime.triton_helpers import libdevice\\nfound = libdevice.log1p\\n"
found = get(Path(sys.argv[1]), {"small/a.py": module}, "small.a:found")
assert not [name for name in sys.modules if name.startswith("torch._inductor")]

import torch._inductor.runtime.triton_helpers as real  # what the compiler itself imports later is its own

assert real is sys.modules[KERNEL_HELPERS] and real is not helpers
assert found is real.libdevice.log1p is torch._inductor.runtime.triton_helpers.libdevice.log1p
print("fine")
"""


def test_the_helpers_come_without_the_compiler(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert child.stdout == "fine\n", child.stderr
