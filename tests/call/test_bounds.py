"""A kernel that reads or writes beyond the tensors it is launched with is seen before it does."""

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
        "read beyond the end: load",
        "read before the start: load",
        "written beyond the end: store",
        "the last element sticks out: load",
        "added beyond the end: atomic_rmw",
        "swallowed by the caller: store",
        "in a device function: load",
        "through an address in a tensor: ",
        "through what is no address: load",
        "not watched: untouched",
    ]
