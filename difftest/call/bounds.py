"""Keeps kernels in Triton's CPU interpreter to the memory of the tensors that they are launched with.

What lies beyond it is another thing in each process. During a call of an arm it is memory that nobody wrote: what a
kernel reads there is the fill (:mod:`difftest.call.poison`), and what it writes there is dropped. Far beyond there may
be no memory at all: that ends the process, as it does on a device. A kernel that makes pointers of numbers follows them
to memory that is not known here, so it is left alone from then on.

Which of a launch's tensors lie beside each other is another thing in each process, too. So a pointer into one of them
carries its number, in bits that no address of a process has, and reaches no other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from difftest.call.poison import POISON

FAR = 1 << 30
"""Bytes beyond a tensor from which on there is taken to be no memory."""

_BITS = 48
_ADDRESS = np.uint64((1 << _BITS) - 1)
"""The bits of a pointer that are an address; the number of its tensor is in those above."""

READ, WRITE = "reads", "writes"
"""What a kernel does outside of its tensors. An atomic operation does both."""


class Bounds:
    """What the kernels of this process keep to.

    Attributes:
        outside: what was done beyond the tensors since this was last emptied.
        followed: whether since then every launch was looked at to its end.
        known: the memory of the launch under way; None leaves its accesses as they are.
        numbered: whether its pointers carry the numbers of tensors.
        ending: whether a kernel that reaches outside ends there, with an error. What it reads there may be how often it
            does something.
        lost: told what is done far beyond the tensors, before that ends the process.
    """

    def __init__(self) -> None:
        self.outside: set[str] = set()
        self.followed = True
        self.known: _Known | None = None
        self.numbered = False
        self.ending = False
        self.lost: Callable[[Sequence[str]], None] | None = None

    def reached(
        self, does: Sequence[str], pointers: NDArray[Any], mask: NDArray[Any] | None, size: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """The addresses of an access, and which of its elements are beyond the tensors: None when none is known to be.

        Args:
            pointers: uint64, of any shape; those that `mask` leaves out are not accessed.
            size: bytes of an element.
        """
        known = self.known
        addresses = pointers & _ADDRESS if self.numbered else pointers
        if known is None or known.hold(pointers, size):
            return addresses, None
        if mask is not None and known.hold(pointers[mask], size):
            return addresses, None
        away = known.lack(pointers, size)
        if mask is not None:
            away &= mask
        if not away.any():
            return addresses, None
        self.outside.update(does)
        if self.ending:
            raise IndexError("a place outside of the kernel's tensors")
        far = known.lack(pointers, size, FAR)
        if (far if mask is None else far & mask).any():
            if self.lost is not None:
                self.lost(does)
            os.kill(os.getpid(), signal.SIGSEGV)
        POISON.allocations += READ in does  # what is there is undefined
        return addresses, away


BOUNDS = Bounds()


def keep_to_tensors(interpreter: Any) -> None:
    """Look at each place that a kernel is about to read or write, in each call of an arm. Once a process."""
    memory, executor, builder = interpreter._interpreter, interpreter.GridExecutor, interpreter.InterpreterBuilder
    launch, bitcast, convert = executor.__call__, builder.create_bitcast, interpreter._implicit_cvt
    own_load, own_store, own_update, own_exchange = (
        memory.load, memory.store, memory.atomic_rmw, memory.atomic_cas
    )  # fmt: skip

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = BOUNDS.known, BOUNDS.numbered
        known = None if POISON.fill is None else _known((*args, *kwargs.values()))
        BOUNDS.known, BOUNDS.numbered = known, known is not None
        BOUNDS.followed &= known is not None
        try:
            return launch(self, *args, **kwargs)
        finally:
            BOUNDS.known, BOUNDS.numbered = before

    def argument(value: Any) -> Any:
        found = convert(value)
        if BOUNDS.known is not None and hasattr(value, "data_ptr"):
            found.handle.data |= BOUNDS.known.number(found.handle.data.item())
        return found

    def load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        addresses, away = BOUNDS.reached((READ,), pointers, mask, dtype.itemsize)
        if away is None:
            return own_load(addresses, mask, other, dtype)
        return _filled(own_load(addresses, mask & ~away, other, dtype), away)

    def store(pointers: Any, values: Any, mask: Any) -> Any:
        addresses, away = BOUNDS.reached((WRITE,), pointers, mask, values.itemsize)
        return own_store(addresses, values, mask if away is None else mask & ~away)

    def update(operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        addresses, away = BOUNDS.reached((READ, WRITE), pointers, mask, values.itemsize)
        if away is None:
            return own_update(operation, addresses, values, mask, order)
        return _filled(own_update(operation, addresses, values, mask & ~away, order), away)

    def exchange(pointers: Any, expected: Any, values: Any, order: Any) -> Any:
        addresses, away = BOUNDS.reached((READ, WRITE), pointers, None, values.itemsize)
        if away is None:
            return own_exchange(addresses, expected, values, order)
        found = np.zeros_like(expected)
        if not away.all():
            found[~away] = own_exchange(addresses[~away], expected[~away], values[~away], order)
        return _filled(found, away)

    def cast(self: Any, source: Any, target: Any) -> Any:
        to = target.scalar
        if to.is_ptr() and not (source.dtype.is_ptr() and not to.element_ty.is_ptr()):
            BOUNDS.known, BOUNDS.followed = None, False  # a pointer made of a number, or one to such numbers
        return bitcast(self, source, target)

    executor.__call__, interpreter._implicit_cvt = call, argument
    builder.create_bitcast = builder.create_int_to_ptr = cast
    memory.load, memory.store, memory.atomic_rmw, memory.atomic_cas = load, store, update, exchange


def _filled(found: NDArray[Any], away: NDArray[np.bool_]) -> NDArray[Any]:
    """What was read, with the fill where it is beyond the tensors."""
    found[away] = np.frombuffer(bytes([POISON.fill or 0]) * found.itemsize, found.dtype)
    return found


class _Known:
    """The memory of some tensors.

    Args:
        parts: (first byte, byte after the last) of each. Those that overlap are one.
    """

    def __init__(self, parts: set[tuple[int, int]]) -> None:
        self._memory: list[list[int]] = []
        for start, end in sorted(part for part in parts if part[0] < part[1]):
            if self._memory and start < self._memory[-1][1]:
                self._memory[-1][1] = max(end, self._memory[-1][1])
            else:
                self._memory.append([start, end])
        # As pointers.
        self.parts = [(n << _BITS | start, n << _BITS | end) for n, (start, end) in enumerate(self._memory, 1)]
        self.last = (0, 0)  # where the last access was

    def number(self, address: int) -> np.uint64:
        """The number of the tensor that is there, where a pointer has it; 0 for none."""
        found = [n for n, (start, end) in enumerate(self._memory, 1) if start <= address < end]
        return np.uint64(found[0] << _BITS if found else 0)

    def hold(self, pointers: NDArray[Any], size: int) -> bool:
        """Whether all elements are in the memory of one of them."""
        if not pointers.size:
            return True
        if pointers.size == 1:
            least = most = pointers.item()
        else:
            least, most = int(np.minimum.reduce(pointers, None)), int(np.maximum.reduce(pointers, None))
        most += size
        if self.last[0] <= least and most <= self.last[1]:
            return True
        for start, end in self.parts:
            if start <= least and most <= end:
                self.last = start, end
                return True
        return False

    def lack(self, pointers: NDArray[Any], size: int, around: int = 0) -> NDArray[np.bool_]:
        """Which elements are in none of them, nor so many bytes before or after one."""
        lacking = np.ones(pointers.shape, np.bool_)
        for start, end in self.parts:
            first, last = max(0, start - around), end + around - size
            if first <= last:
                lacking &= (pointers < first) | (pointers > last)
        return lacking


def _known(values: Sequence[Any]) -> _Known | None:
    """The memory of the tensors among a launch's arguments; None where an argument may hold some that are not seen."""
    parts: set[tuple[int, int]] = set()
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            if not value.is_cpu:
                return None
            storage = value.untyped_storage()
            start = storage.data_ptr()
            parts.add((start, start + storage.nbytes()))
        elif isinstance(value, tuple | list):
            left += value
        elif isinstance(getattr(value, "base", None), torch.Tensor):  # it stands for a tensor, or describes one
            left.append(value.base)
        elif hasattr(value, "data_ptr") or _holds_tensors(value):
            return None
    return _Known(parts)


def _holds_tensors(value: Any) -> bool:
    """Whether an object has attributes that are tensors."""
    return any(isinstance(held, torch.Tensor) for held in getattr(value, "__dict__", {}).values())
