"""A kernel that reads or writes beyond the tensors it is launched with finds the fill there, and changes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from difftest.call.bounds import FAR

SCRIPT = Path(__file__).with_name("bounds_kernels.py")


@pytest.mark.parametrize(("beyond", "ended"), [(FAR // 8, False), (-FAR // 8, False), (FAR, True), (-(1 << 45), True)])
def test_far_beyond_there_is_no_memory(beyond: int, ended: bool) -> None:
    done = subprocess.run([sys.executable, SCRIPT, str(beyond)], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGSEGV if ended else 0), done.stderr


def test_what_is_outside_is_seen_and_not_touched() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "inside: ",
        "a view of a longer row: ",
        "masked beyond the end: ",
        "another tensor of the launch: ",
        "read before the start: reads",
        "read in the tensor beside: reads",
        "  0x5a5a5a5a",
        "written into the tensor beside: writes",
        "  12.0",
        "a part of a tensor, and all of it: ",
        "  1.0",
        "ended: True ['reads']",
        "the last element sticks out: reads",
        "in a device function: reads",
        "  0x5a5a5a5a",
        "written beyond the end: writes",
        "added beyond the end: reads writes",
        "  0x5a5a5a5a",
        "exchanged inside: ",
        "  1 0",
        "exchanged beyond the end: reads writes",
        "  0x5a5a5a5a untouched",
        "through an address in a tensor: ",
        "  40.0",
        "through an address that is an argument: ",
        "  41.0",
        "through a table of which a view is given: ",
        "  42.0",
        "through a table of bytes: ",
        "  43.0",
        "through an address that is taken out: ",
        "  43.0 0",
        "a number that may be an address: reads",
        "a tuple with a field named base: ",
        "  [1.401298464324817e-45, 1.0, 2.0, 3.0]",
        "a tensor with a property named base: ",
        "what stands for a tensor: reads",
        "a block beyond the end: reads",
        "  [0.0] {'0x5a5a5a5a'}",
        "a block beyond the end: reads",
        "  [0.0] {'0xa5a5a5a5'}",
        "not in a call: ",
        "  changed",
    ]
