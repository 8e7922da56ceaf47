"""What freezing must not lose: field names of structured arrays, shapes of object arrays, values of odd dict keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from difftest.call.freeze import Freezer

PAIRS = {
    "field names": (np.zeros(3, [("a", "i4"), ("b", "i4")]), np.zeros(3, [("b", "i4"), ("a", "i4")])),
    "object shape": (np.full((2, 2), None), np.full(4, None)),
    "numpy key": ({np.int64(1): 1}, {np.int64(2): 1}),
    "dtype key": ({torch.float32: 1}, {torch.float64: 1}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_they_are_told_apart(name: str) -> None:
    left, right = PAIRS[name]
    assert Freezer()(left) != Freezer()(right)
    assert Freezer()(left) == Freezer()(left)
