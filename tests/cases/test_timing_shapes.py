"""Timing shapes: labels and axes, what varies from call to call, and that the work does not."""

from __future__ import annotations

import pytest
import torch

from difftest.call.values import case_id
from difftest.catalog import case_modules, load_targets
from difftest.target import Shape, Target

TIMED = {name: target for name, target in load_targets(case_modules()).items() if target.shapes is not None}


def _shapes(target: Target, name: str) -> list[Shape]:
    assert target.shapes is not None
    return list(target.shapes(name))


def test_the_grid_of_parse_output_has_90_shapes() -> None:
    grid = _shapes(TIMED["v1.parse_output"], "grid")
    axes = {(s.axes["batch"], s.axes["max_spec_len"], s.axes["acceptance"]) for s in grid}
    assert len(grid) == len(axes) == 90


@pytest.mark.parametrize("name", sorted(TIMED))
def test_shapes_of_a_target(name: str) -> None:
    quick, grid = (_shapes(TIMED[name], which) for which in ("quick", "grid"))
    for shapes in (quick, grid):
        assert len({shape.label for shape in shapes}) == len(shapes) >= 2
        assert all(shape.axes["batch"] >= 1 for shape in shapes)
    smallest = min(quick, key=lambda shape: shape.axes["batch"] * shape.axes.get("vocabulary", 1))
    assert smallest.vary is not None
    first, again, other = smallest.vary(0), smallest.build(), smallest.vary(1)
    assert case_id(name, first) == case_id(name, again) != case_id(name, other)
    for key, value in first.items():
        if isinstance(value, torch.Tensor):
            assert (value.shape, value.dtype) == (other[key].shape, other[key].dtype)
