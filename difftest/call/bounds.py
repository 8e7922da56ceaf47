"""Keeps kernels in Triton's CPU interpreter to the memory of the tensors that they are launched with.

What lies beyond it is another thing in each process. During a call of an arm it is memory that nobody wrote: what a
kernel reads there is the fill (:mod:`difftest.call.poison`), and what it writes there is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from difftest.call.poison import POISON

_LOW, _HIGH = 1 << 40, 1 << 47
"""Between these are the addresses of a process's memory."""


class Bounds:
    """What the kernels of this process keep to.

    Attributes:
        outside: the first access beyond the tensors, `load` or `store` say, since this was last emptied.
        known: the memory of the launch under way; None leaves its accesses as they are.
    """

    def __init__(self) -> None:
        self.outside = ""
        self.known: _Known | None = None

    def away(self, name: str, pointers: NDArray[Any], mask: NDArray[Any] | None, size: int) -> NDArray[np.bool_] | None:
        """Which elements of an access are beyond the tensors; None when none is, or the tensors are not known.

        Args:
            name: of the interpreter's function.
            pointers: uint64, of any shape; those that `mask` leaves out are not accessed.
            size: bytes of an element.
        """
        if self.known is None or self.known.hold(pointers, size):
            return None
        away = self.known.lacks(pointers, size)
        if mask is not None:
            away &= mask
        if not away.any():
            return None
        if self.known.has_addresses():
            self.known = None
            return None
        self.outside = self.outside or name
        POISON.allocations += 1  # what is there is undefined
        return away


BOUNDS = Bounds()


def keep_to_tensors(interpreter: Any) -> None:
    """Look at each place that a kernel is about to read or write, in each call of an arm. Once a process."""
    memory, executor = interpreter._interpreter, interpreter.GridExecutor
    launch = executor.__call__
    own_load, own_store, own_update, own_exchange = (
        memory.load, memory.store, memory.atomic_rmw, memory.atomic_cas
    )  # fmt: skip

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = BOUNDS.known
        BOUNDS.known = None if POISON.fill is None else _known((*args, *kwargs.values()))
        try:
            return launch(self, *args, **kwargs)
        finally:
            BOUNDS.known = before

    def load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        away = BOUNDS.away("load", pointers, mask, dtype.itemsize)
        if away is None:
            return own_load(pointers, mask, other, dtype)
        return _filled(own_load(pointers, mask & ~away, other, dtype), away)

    def store(pointers: Any, values: Any, mask: Any) -> Any:
        away = BOUNDS.away("store", pointers, mask, values.itemsize)
        return own_store(pointers, values, mask if away is None else mask & ~away)

    def update(operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        away = BOUNDS.away("atomic_rmw", pointers, mask, values.itemsize)
        if away is None:
            return own_update(operation, pointers, values, mask, order)
        return _filled(own_update(operation, pointers, values, mask & ~away, order), away)

    def exchange(pointers: Any, expected: Any, values: Any, order: Any) -> Any:
        away = BOUNDS.away("atomic_cas", pointers, None, values.itemsize)
        if away is None:
            return own_exchange(pointers, expected, values, order)
        found = np.zeros_like(expected)
        if not away.all():
            found[~away] = own_exchange(pointers[~away], expected[~away], values[~away], order)
        return _filled(found, away)

    executor.__call__ = call
    memory.load, memory.store, memory.atomic_rmw, memory.atomic_cas = load, store, update, exchange


def _filled(found: NDArray[Any], away: NDArray[np.bool_]) -> NDArray[Any]:
    """What was read, with the fill where it is beyond the tensors."""
    found[away] = np.frombuffer(bytes([POISON.fill or 0]) * found.itemsize, found.dtype)
    return found


class _Known:
    """The memory of some tensors.

    Args:
        parts: (first byte, byte after the last) of each.
        numbers: those of 64-bit integers.
        is_address: whether a number among the arguments seems to be an address.
    """

    def __init__(self, parts: set[tuple[int, int]], numbers: list[torch.Tensor], is_address: bool) -> None:
        self.numbers = numbers
        self.is_address = is_address
        self.parts = sorted(parts)
        self.last = (0, 0)  # where the last access was

    def hold(self, pointers: NDArray[Any], size: int) -> bool:
        """Whether all elements are in the memory of one of them."""
        if pointers.size == 1:
            least = most = pointers.item()
        elif not pointers.size:
            return True
        else:
            least, most = pointers.min().item(), pointers.max().item()
        if self.last[0] <= least and most + size <= self.last[1]:
            return True
        for start, end in self.parts:
            if start <= least and most + size <= end:
                self.last = start, end
                return True
        return False

    def lacks(self, pointers: NDArray[Any], size: int) -> NDArray[np.bool_]:
        """Which elements are in none of them."""
        found = np.zeros(pointers.shape, np.bool_)
        for start, end in self.parts:
            if end - start >= size:
                found |= (pointers >= start) & (pointers <= end - size)
        return ~found

    def has_addresses(self) -> bool:
        """Whether an argument seems to hold addresses: a kernel follows them to memory that is not known here."""
        return self.is_address or any(bool(((found >= _LOW) & (found < _HIGH)).any()) for found in self.numbers)


def _known(values: Sequence[Any]) -> _Known | None:
    """The memory of the tensors among a launch's arguments; None where an argument may hold some that are not seen."""
    parts: set[tuple[int, int]] = set()
    numbers: list[torch.Tensor] = []
    is_address = False
    left = list(values)
    while left:
        value = left.pop()
        value = getattr(value, "base", value)  # of what stands for a tensor as another dtype, or describes one
        if isinstance(value, torch.Tensor):
            if not value.is_cpu:
                return None
            storage = value.untyped_storage()
            start = storage.data_ptr()
            parts.add((start, start + storage.nbytes()))
            if value.dtype in (torch.int64, torch.uint64):
                numbers.append(value.view(torch.int64))
        elif isinstance(value, int):
            is_address |= _LOW <= value < _HIGH
        elif isinstance(value, tuple | list):
            left += value
        elif hasattr(value, "data_ptr"):
            return None
    return _Known(parts, numbers, is_address)
