"""Timing shapes: labels and axes, what varies from call to call, and that the work does not."""

from __future__ import annotations

import pytest
import torch

from difftest.call.values import case_id
from difftest.cases.shapes import BATCHES, DRAFTS, VOCABULARIES
from difftest.catalog import case_modules, load_targets
from difftest.target import Shape, Target
from difftest.timing.worker import _bytes

TARGETS = load_targets(case_modules())
_MOST_BYTES = 256 << 20


def _shapes(target: Target, name: str) -> list[Shape]:
    assert target.shapes is not None
    return list(target.shapes(name))


def _size(shape: Shape) -> float:
    axes = shape.axes
    return axes.get("batch", 1) * axes.get("vocabulary", 1) * (1 + axes.get("max_spec_len", 0))


def test_the_grid_of_parse_output_has_90_shapes() -> None:
    grid = _shapes(TARGETS["v1.parse_output"], "grid")
    axes = {(s.axes["batch"], s.axes["max_spec_len"], s.axes["acceptance"]) for s in grid}
    assert len(grid) == len(axes) == 90


def test_every_target_can_be_timed_from_one_request_to_a_full_server() -> None:
    """Batch 1 to 512 by the vocabularies by the drafts, where a target has them, up to what a call may take."""
    assert len(TARGETS) > 100
    to_the_full = 0
    for name, target in TARGETS.items():
        grid = _shapes(target, "grid")
        batches, vocabularies, drafts = (
            {shape.axes.get(axis) for shape in grid} for axis in ("batch", "vocabulary", "max_spec_len")
        )
        assert vocabularies in ({None}, set(VOCABULARIES)), name
        assert drafts in ({None}, set(DRAFTS)), name
        assert len(batches) == 1 or (min(batches) == 1 and len(grid) >= 8), name
        to_the_full += batches == set(BATCHES)
    assert to_the_full > len(TARGETS) / 2


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_shapes_of_a_target(name: str) -> None:
    quick, grid = (_shapes(TARGETS[name], which) for which in ("quick", "grid"))
    for shapes in (quick, grid):
        assert len({shape.label for shape in shapes}) == len(shapes) >= 1
        for shape in shapes:
            assert 1 <= shape.axes["batch"] <= 512
            assert shape.axes.get("vocabulary", 32_000) in VOCABULARIES
            assert shape.axes.get("max_spec_len", 1) in (1, 3, 5)
    assert len(grid) > 1
    smallest, largest = min(quick, key=_size), max(quick, key=_size)
    first, other = smallest.build(), smallest.build() if smallest.vary is None else smallest.vary(1)
    assert case_id(name, first) == case_id(name, smallest.build())
    assert (case_id(name, first) == case_id(name, other)) == (smallest.vary is None)
    for key, value in first.items():
        if isinstance(value, torch.Tensor):
            assert (value.shape, value.dtype) == (other[key].shape, other[key].dtype)
    if "vocabulary" in largest.axes:  # inputs of the largest shape of the grid, as they grow with its size
        held = _bytes(largest.build())
        assert held * _size(max(grid, key=_size)) / _size(largest) <= _MOST_BYTES


def test_wide_tensors_vary_by_a_hair_and_keep_their_order() -> None:
    shape = _shapes(TARGETS["v2.apply_min_p"], "quick")[0]
    assert shape.vary is not None
    first, other = shape.vary(0)["logits"], shape.vary(3)["logits"]
    assert not torch.equal(first, other)
    assert torch.equal(first.argsort(stable=True), other.argsort(stable=True))
    torch.testing.assert_close(first, other, rtol=1e-4, atol=0.0)
