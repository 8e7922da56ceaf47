"""How a tensor lies in its storage, and what lies in the gaps, so that a wrong stride or index shows."""

from __future__ import annotations

import gc
import math
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

Tensor = torch.Tensor

LAYOUTS = (
    "contiguous",
    "padded rows",
    "sliced columns",
    "offset storage",
    "every other row",
    "transposed",
    "expanded",
)
"""How a tensor of two or more axes lies in its storage. `expanded` takes equal rows: see :func:`same_rows`."""
FAR_ROWS = "rows past 2^31"
"""A layout of few rows so far apart that the last begins past 2^31 elements, which an offset of 32 bits cannot hold.

The storage is lazily reserved (see :func:`lazy`), so it costs a few pages; it is made anew for each call and what code
writes into it shows in what it returns only.
"""
VECTOR_LAYOUTS = ("contiguous", "offset storage", "every other row", "column of a matrix", "expanded")
"""How a tensor of one axis lies in its storage."""

POISON_NUMBER = 1e30
POISON_ID = 1_000_003


def poison(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of what lies in gaps: 1e30 (the largest number of a smaller dtype) and NaN by turns; ids 1000003
    and -1 by turns (the largest and -1 of a smaller dtype); True and False by turns."""
    count = int(np.prod(tuple(shape)))
    out = torch.empty(count, dtype=dtype)
    if dtype.is_floating_point:
        out[0::2] = min(POISON_NUMBER, torch.finfo(dtype).max)
        out[1::2] = float("nan")
    elif dtype is torch.bool:
        out[0::2] = True
        out[1::2] = False
    else:
        out[0::2] = min(POISON_ID, torch.iinfo(dtype).max)
        out[1::2] = -1 if torch.iinfo(dtype).min < 0 else torch.iinfo(dtype).max
    return out.reshape(tuple(shape))


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """A tensor of equal values whose storage is laid out otherwise; gaps hold :func:`poison`.

    Args:
        tensor: any dtype; one axis for :data:`VECTOR_LAYOUTS`, two or more for :data:`LAYOUTS`.
        layout: a name of one of these, or :data:`FAR_ROWS`. `padded rows` leaves a gap after each row, `sliced
            columns` on both sides, `every other row` a whole row between two, `offset storage` starts inside the
            storage, `transposed` swaps the strides of the first and the last axis, `expanded` has stride 0 along
            the first.

    Raises:
        ValueError: the layout is unknown or does not suit the shape, or rows differ and the layout is `expanded`.
    """
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if layout == "contiguous" or not shape:
        return tensor.contiguous()
    if layout == "expanded":
        if shape[0] == 0:
            return tensor.contiguous()
        if not all(torch.equal(as_bytes(row), as_bytes(tensor[0])) for row in tensor[1:]):
            raise ValueError("an expanded tensor needs equal rows; take same_rows() first")
        return tensor[:1].clone().expand(shape)
    view: Tensor
    if layout == "transposed":
        view = torch.empty(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    elif layout == FAR_ROWS:
        if shape[0] < 2:
            raise ValueError("rows lie apart when there are two or more")
        row = tensor[0].numel()
        apart = (1 << 31) // (shape[0] - 1) + max(row, 1)
        whole = lazy(((shape[0] - 1) * apart + row,), dtype)
        view = whole.as_strided(shape, (apart, *tensor[0].contiguous().stride()))
    elif layout == "every other row":
        view = poison((2 * shape[0] + 1, *shape[1:]), dtype)[1::2]
    elif layout == "offset storage":
        view = poison((tensor.numel() + 8,), dtype)[5 : 5 + tensor.numel()].view(shape)
    elif layout == "column of a matrix" and len(shape) == 1:
        view = poison((shape[0], 3), dtype)[:, 1]
    elif layout == "padded rows" and len(shape) > 1:
        view = poison((*shape[:-1], shape[-1] + 7), dtype)[..., : shape[-1]]
    elif layout == "sliced columns" and len(shape) > 1:
        view = poison((*shape[:-1], shape[-1] + 5), dtype)[..., 3 : 3 + shape[-1]]
    else:
        raise ValueError(f"no layout {layout!r} for a tensor of {len(shape)} axes")
    view.copy_(tensor)
    return view


def same_rows(tensor: Tensor, layout: str = "expanded") -> Tensor:
    """The tensor, each row a copy of row 0 when the layout is `expanded`."""
    return tensor[:1].repeat(tensor.shape[0], *[1] * (tensor.dim() - 1)) if layout == "expanded" else tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's values in row-major order, uint8."""
    # A tensor of one element is contiguous whatever its strides are, and a view of another width wants a stride of 1.
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def guarded(tensor: Tensor, before: int = 1, after: int = 1, fill: float | bool | None = None) -> Tensor:
    """The tensor as rows in the middle of a larger storage, so that an index of -1 or one past the end lands on a
    guard row: a read is seen by what comes of it, a write because whole storages of inputs are compared.

    Args:
        tensor: one axis or more; the result is a view with equal values.
        before, after: guard rows on either side.
        fill: what guard rows hold; :func:`poison` when left out.
    """
    shape = (before + tensor.shape[0] + after, *tensor.shape[1:])
    whole = poison(shape, tensor.dtype) if fill is None else torch.full(shape, fill, dtype=tensor.dtype)
    view = whole[before : before + tensor.shape[0]]
    view.copy_(tensor)
    return view


_MAP_NORESERVE = 0x4000  # Linux on x86 and Arm; Python 3.11 has no name for it
_ROOMY, _FULL = 24 << 30, 42 << 30
"""Bytes of address space up to which nothing is looked for that could be given back, which takes 70 ms; and up to which
it is not looked for in what is kept from the collector, too, which takes half a second."""


def lazy(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of many gigabytes of which only the pages that are written take memory.

    For offsets past 2^31 elements. The storage must be 1 GiB or more for the harness to leave it unread.
    """
    count = int(np.prod(tuple(shape), dtype=np.int64))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_NORESERVE if sys.platform == "linux" else 0)
    if _address_space() > _ROOMY:
        gc.collect()  # each launch under Triton's interpreter leaves a cycle that holds on to what it was given
    if _address_space() > _FULL and gc.get_freeze_count():
        gc.unfreeze()  # such a cycle was there when a file was parsed (difftest.lift.syntax)
        gc.collect()
        gc.freeze()
    pages = mmap.mmap(-1, max(count * dtype.itemsize, 1), flags=flags)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(tuple(shape))


def _address_space() -> float:
    """Bytes of address space that this process takes; infinity where nothing tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except OSError:
        return math.inf
