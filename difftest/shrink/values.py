"""Simpler values for a leaf, within what the original's values had in common, so that a case stays in its contract.

What is kept: sign, the unit interval, finite, no NaN, rows that add up to one, values that are all distinct. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from difftest.shrink.tree import is_array, is_numbers, plain, select
from difftest.target import Seeded

_SUM = 2e-2  # how far a row of bfloat16 probabilities may be from one


@dataclass(frozen=True)
class Common:
    """What the values of a leaf have in common.

    Attributes:
        low, high: the smallest and largest of the bounds -1, 0, 1 that hold; None where none does.
        open_low, open_high: whether the bound itself does not occur.
        finite, distribution, distinct: all finite; each row adds up to one and is not negative; no value twice.
    """

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    finite: bool = False
    distribution: bool = False
    distinct: bool = False

    def allows(self, value: Any) -> bool:
        """Whether an array of values keeps to it."""
        array = _as_array(value)
        if array is None or not array.size:
            return True
        if self.finite and not np.isfinite(array).all():
            return False
        if self.low is not None and not (array > self.low if self.open_low else array >= self.low).all():
            return False
        if self.high is not None and not (array < self.high if self.open_high else array <= self.high).all():
            return False
        return not (self.distinct and len(np.unique(array)) < array.size)


ANYTHING = Common()


def common(values: list[Any]) -> Common:
    """What some leaves' values have in common."""
    arrays = [a for a in map(_as_array, values) if a is not None and a.size]
    if not arrays:
        return ANYTHING
    flat = np.concatenate([a.reshape(-1) for a in arrays])
    finite = bool(np.isfinite(flat).all())
    if np.isnan(flat).any():
        return Common()
    low = next((bound for bound in (1.0, 0.0, -1.0) if flat.min() >= bound), None)
    high = next((bound for bound in (0.0, 1.0) if flat.max() <= bound), None)
    integers = all(a.dtype.kind in "iu" for a in arrays)
    return Common(
        low if not (low == 1.0 and not integers) else 0.0,
        None if integers else high,
        bool(not integers and low is not None and flat.min() > min(low, 0.0)),
        bool(not integers and high is not None and flat.max() < high),
        finite,
        any(is_array(v) and v.ndim and _is_float(v) for v in values) and all(_adds_up(a) for a in arrays),
        all(a.ndim == 1 and len(np.unique(a)) == a.size for a in arrays) and any(a.size > 1 for a in arrays),
    )


def _adds_up(array: Any) -> bool:
    if not array.ndim or array.shape[-1] < 2 or array.dtype.kind != "f":
        return False
    return bool((array >= 0).all() and (np.abs(array.sum(-1) - 1) < _SUM).all())


def normalised(value: Any) -> Any:
    """Rows that were probabilities and lost some of them, made to add up to one again."""
    if isinstance(value, torch.Tensor):
        numbers = value.to(torch.float64)
        sums = numbers.sum(-1, keepdim=True)
        first = torch.zeros_like(numbers)
        first[..., 0] = 1
        rows = torch.where(sums > 0, numbers / sums, first)
        return select(value, 0, np.arange(len(value))).copy_(rows.to(value.dtype))
    sums = value.sum(-1, keepdims=True)
    first = np.zeros_like(value)
    first[..., 0] = 1
    return np.where(sums > 0, value / np.where(sums > 0, sums, 1), first).astype(value.dtype)


def filled_up(value: Any) -> Any:
    """The same rows made to add up to one by their smallest value alone, so that all others are what they were."""
    array = value.to(torch.float64).numpy() if isinstance(value, torch.Tensor) else value.astype(np.float64)
    at = array.argmin(-1)[..., None]
    missing = 1 - array.sum(-1, keepdims=True) + np.take_along_axis(array, at, -1)
    np.put_along_axis(array, at, np.maximum(missing, 0), -1)
    if isinstance(value, torch.Tensor):
        return select(value, 0, np.arange(len(value))).copy_(torch.from_numpy(array))
    return array.astype(value.dtype)


def simpler(value: Any, kept: Common) -> Iterator[Any]:
    """Values of the same kind and shape that are simpler, the simplest first; none where elements share memory."""
    if isinstance(value, torch.Tensor) and any(
        n > 1 and not s for n, s in zip(value.shape, value.stride(), strict=True)
    ):
        return
    if not kept.distribution:
        candidates = _constants(value, kept)
    elif is_array(value) and value.ndim and value.shape[-1]:
        candidates = (make(value) for make in (_one_hot, _uniform))
    else:
        return
    for made in candidates:
        if _equal(made, value):
            return  # what follows is no simpler than what is there
        if kept.allows(made):
            yield made


def _constants(value: Any, kept: Common) -> Iterator[Any]:
    if isinstance(value, Seeded):
        yield from (Seeded(n) for n in (0, 1))
    elif type(value) is bool:
        if value and kept is ANYTHING:
            yield False
    elif type(value) is int or type(value) is float:
        yield from (type(value)(n) for n in (0, 1, -1, 2))
        if type(value) is float and abs(value) < 1e6:
            yield float(round(value))
            yield round(value * 2) / 2
    elif is_numbers(value):
        yield from ([type(x)(n) for x in value] for n in (0, 1))
        yield [type(x)(i) for i, x in enumerate(value)]
    elif is_array(value):
        yield from _arrays(value, masks=kept.low is None and not _is_float(value))


def _arrays(value: Any, masks: bool) -> Iterator[Any]:
    def like(numbers: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.asarray(numbers).astype(value.dtype)
        made = select(value, 0, np.arange(len(value))) if value.ndim else value.clone()
        return made.copy_(torch.as_tensor(np.asarray(numbers)))

    shape = tuple(value.shape)
    yield from (like(np.full(shape, n)) for n in (0, 1, *([-1] if masks else [])))  # -1: every bit
    array = _as_array(value)
    if array is None or array.dtype.kind not in "iuf" or array.size > 1 << 20:
        return
    if array.ndim == 1:
        yield like(np.arange(array.size))
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            for scale in (1, 2, 8):  # keeps the order of values that are not close
                yield like(np.where(np.isfinite(array), np.rint(np.clip(array, -8, 8) * scale) / scale, array))
    ranks = np.unique(array, return_inverse=True)[1].reshape(shape)
    if ranks.max(initial=0) < 64:
        yield like(ranks)


def pieces(value: Any, kept: Common) -> Iterator[tuple[int, int]]:
    """(start, end) of runs of elements, in memory order, to be set to 0 one after the other, large ones first."""
    count = value.size if isinstance(value, np.ndarray) else value.numel()
    if kept.distribution or kept.distinct or not 1 < count <= 4096:
        return
    width = count // 2
    while width and count // width <= 64:
        yield from ((start, min(start + width, count)) for start in range(0, count, width))
        width //= 2


def with_zeros(value: Any, start: int, end: int) -> Any | None:
    """A copy with a run of elements set to 0; None when they are."""
    if isinstance(value, np.ndarray):
        made = value.copy()
        if not made.reshape(-1)[start:end].any():
            return None
        made.reshape(-1)[start:end] = 0
        return made
    if not value.is_contiguous() or not value.reshape(-1)[start:end].to(torch.float64).abs().sum().item():
        return None
    made = value.clone()
    made.reshape(-1)[start:end] = 0
    return made


def with_integers(value: Any, numbers: list[int]) -> Any:
    """A leaf of integers with others in their place."""
    if type(value) is int:
        return numbers[0]
    if is_numbers(value):
        return numbers
    array = np.array(numbers).reshape(tuple(value.shape))
    return array.astype(value.dtype) if isinstance(value, np.ndarray) else torch.from_numpy(array).to(value.dtype)


def _one_hot(value: Any) -> Any:
    made = value.copy() if isinstance(value, np.ndarray) else select(value, 0, np.arange(len(value)))
    made[...] = 0
    made[..., 0] = 1
    return made


def _uniform(value: Any) -> Any:
    made = value.copy() if isinstance(value, np.ndarray) else select(value, 0, np.arange(len(value)))
    made[...] = 1 / value.shape[-1]
    return made


def _equal(one: Any, other: Any) -> bool:
    if is_array(one):
        left, right = (_raw(v) for v in (one, other))
        return left == right
    return bool(one == other)


def _raw(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    found: bytes = plain(value).reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


def _is_float(value: Any) -> bool:
    return value.dtype.is_floating_point if isinstance(value, torch.Tensor) else value.dtype.kind == "f"


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """A leaf's numbers as an array of int64 or float64; None of what is no number."""
    if isinstance(value, torch.Tensor):
        if value.dtype.is_complex or value.dtype == torch.bool:
            return None
        return value.to(torch.float64 if value.dtype.is_floating_point else torch.int64).numpy()
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "iuf" else None
    if is_numbers(value) and bool not in set(map(type, value)):
        return np.array(value) if all(abs(x) < 1 << 62 for x in value if type(x) is int) else None
    if type(value) is float or (type(value) is int and abs(value) < 1 << 62):
        return np.array(value)
    return None
