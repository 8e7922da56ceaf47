"""Whether what an arm returned is what a definition says, whatever classes the arm's version returns it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def agrees(expected: Any, value: Any) -> bool:
    """Whether a value is the expected one, byte for byte in its numbers.

    Args:
        expected: plain values: numpy arrays, numbers, None, lists and tuples of such; a mapping stands for an object
            with attributes, or a mapping, of these names, which may have more.
        value: a tensor in CPU memory stands for its array; any integer type stands for a number; lists and tuples
            stand for each other.
    """
    if isinstance(expected, Mapping):
        if isinstance(value, Mapping):
            return all(name in value and agrees(item, value[name]) for name, item in expected.items())
        return value is not None and all(
            hasattr(value, name) and agrees(item, getattr(value, name)) for name, item in expected.items()
        )
    if isinstance(expected, np.ndarray):
        array = _array(value)
        return array is not None and _same_bytes(expected, array)
    if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        array = _array(value)
        items = value if array is None else array.tolist()
        if not isinstance(items, Sequence) or isinstance(items, str | bytes) or len(items) != len(expected):
            return False
        return all(agrees(one, other) for one, other in zip(expected, items, strict=True))
    if expected is None:
        return value is None
    return isinstance(value, int | float | np.generic) and bool(expected == value)


def opinion(expected: Any, base: Any, head: Any) -> str:
    """Which of two arms' values the definition agrees with, as a sentence."""
    sides = [name for name, value in (("base", base), ("head", head)) if agrees(expected, value)]
    if len(sides) == 2:
        return "the oracle agrees with both in what it says: the difference is in what it leaves open"
    return f"the oracle agrees with {sides[0]}" if sides else "the oracle agrees with neither"


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        found: np.ndarray[Any, Any] = value.detach().cpu().numpy()
        return found
    return None


def _same_bytes(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
