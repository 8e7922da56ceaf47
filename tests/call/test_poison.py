"""Memory that nobody wrote is told from memory that somebody did, however it was allocated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from difftest.call.poison import fills
from difftest.run.supervisor import ALLOCATOR

DEFINED = [
    "written", "torch.empty of nothing", "numpy.empty of objects", "numpy.zeros", "torch.zeros",
    "a buffer kept by the module", "torch.empty into an input", "an operator's own buffer",
]  # fmt: skip
MIDDLE = [
    "torch.empty", "torch.empty of a shape", "torch.empty with more arguments", "from torch import empty",
    "torch.empty_like", "torch.empty_strided", "torch.empty_permuted", "new_empty", "new_empty_strided", "resize_",
    "resize_as_", "torch.Tensor(n)", "torch.LongTensor(n)", "torch.FloatTensor(n, m)", "tensor.new(n)",
    "UntypedStorage(n)", "numpy.empty", "numpy.empty of bytes", "numpy.empty in columns", "numpy.empty_like",
    "numpy.ndarray(shape)",
]  # fmt: skip
OTHERS: dict[str, Any] = {
    "resize_ that grows": {"return": [2]},
    "torch.empty of a scalar": {"return": [0]},
    "numpy.empty of a scalar": {"return": [0]},
    "a large tensor": {"return": [0]},
    "a block that was used before": {"return": [0, 1, 2]},
    "a sum of undefined bytes": {"return": "whole"},
    "a list as long as they say": {"return": "whole"},
    "an exception that depends on them": {"raised": "whole", "return": "whole"},
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("poison_calls.py"))],
        env={**os.environ, "GLIBC_TUNABLES": ALLOCATOR, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    if not result.pop("native"):
        pytest.skip("this C library cannot fill what it allocates")
    return result


@pytest.mark.parametrize("name", DEFINED)
def test_what_was_written_is_defined(found: dict[str, Any], name: str) -> None:
    assert found[name] is None


@pytest.mark.parametrize("name", MIDDLE)
def test_the_element_nobody_wrote_is_undefined_and_no_other(found: dict[str, Any], name: str) -> None:
    assert found[name] == {"return": [1]}


@pytest.mark.parametrize("name", OTHERS)
def test_what_follows_the_fill_is_undefined(found: dict[str, Any], name: str) -> None:
    assert found[name] == OTHERS[name]


def test_every_call_is_looked_at(found: dict[str, Any]) -> None:
    assert sorted(found) == sorted([*DEFINED, *MIDDLE, *OTHERS])


def test_fills_change_from_case_to_case_and_differ_in_every_bit_or_are_zero_by_turns() -> None:
    pairs = [fills(f"{number:x}") for number in range(8)]
    assert all(one ^ other == 0xFF for one, other in pairs[::2])
    assert all(min(pair) == 0 and max(pair) not in (0, 0xFF) for pair in pairs[1::2])  # glibc cannot fill with 0xFF
    assert len(set(pairs)) == 4
    assert 0 not in [first for first, _ in pairs]
