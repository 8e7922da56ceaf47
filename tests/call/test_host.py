"""On a host without an accelerator, code that pins memory and uses streams runs; elsewhere nothing is touched."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

needs_host = pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_host
def test_the_gap_is_still_there() -> None:
    with pytest.raises(RuntimeError):
        torch.zeros(2, pin_memory=True)
    with pytest.raises((RuntimeError, AssertionError)):
        torch.cuda.current_stream()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.cuda.get_device_properties(0)


@needs_host
def test_pinned_memory_and_streams() -> None:
    run(
        "import torch; from difftest.call.host import bridge_host; first = bridge_host(); kept = torch.zeros;"
        "assert bridge_host() == first and len(first) == 3 and torch.zeros is kept;"
        "assert torch.zeros((2, 3), dtype=torch.int32, pin_memory=True).tolist() == [[0] * 3] * 2;"
        "assert torch.tensor([1, 2], pin_memory=True, device='cpu').tolist() == [1, 2];"
        "plain = torch.ones(2); pinned = plain.pin_memory(); pinned += 1; assert plain.tolist() == [1, 1];"
        "side = torch.cuda.Stream();\n"
        "with torch.cuda.stream(side): moved = torch.ones(1).to('cpu', non_blocking=True)\n"
        "torch.cuda.current_stream().wait_stream(side); torch.cuda.synchronize();"
        "event = torch.cuda.Event(); event.record(); event.synchronize();"
        "assert torch.cuda.get_device_properties(plain.device).multi_processor_count == 3"
    )


def test_an_accelerator_is_left_as_it_is() -> None:
    run(
        "import torch; torch.cuda.is_available = lambda: True; from difftest.call.host import bridge_host;"
        "kept = torch.zeros; assert bridge_host() == (); assert torch.zeros is kept"
    )
