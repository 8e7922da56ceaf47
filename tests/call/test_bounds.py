"""A kernel that reads or writes beyond the tensors it is launched with finds the fill there, and changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("bounds_kernels.py")


def test_what_is_outside_is_seen_and_not_touched() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "inside: ",
        "a view of a longer row: ",
        "masked beyond the end: ",
        "another tensor of the launch: ",
        "read before the start: load",
        "far away: load",
        "the last element sticks out: load",
        "in a device function: load",
        "  0x5a5a5a5a",
        "written beyond the end: store",
        "added beyond the end: atomic_rmw",
        "  0x5a5a5a5a",
        "exchanged inside: ",
        "  1 0",
        "exchanged beyond the end: atomic_cas",
        "  0x5a5a5a5a untouched",
        "through an address in a tensor: ",
        "  40.0",
        "through an address that is an argument: ",
        "  41.0",
        "through what is no address: load",
        "  0x5a5a5a5a",
        "a block beyond the end: load",
        "  [0.0] {'0x5a5a5a5a'}",
        "a block beyond the end: load",
        "  [0.0] {'0xa5a5a5a5'}",
        "not in a call: ",
        "  changed",
    ]
