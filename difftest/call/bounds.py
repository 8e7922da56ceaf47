"""Whether kernels in Triton's CPU interpreter keep to the memory of the tensors that they are launched with.

What a kernel reads beyond it is another thing in each process, and changes what comes out, or does so by chance only.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from difftest.call.interpreter import interpreting

_LOW, _HIGH = 1 << 40, 1 << 47
"""Between these are the addresses of a process's memory."""

_ACCESSES = ("load", "store", "atomic_rmw", "atomic_cas")


@dataclass
class Reach:
    """What the kernels launched meanwhile did.

    Attributes:
        outside: the name of an access beyond the tensors, `load` or `store` say; empty when there was none.
    """

    outside: str = ""


@contextlib.contextmanager
def watched(ending: bool = True) -> Iterator[Reach]:
    """Look at each place that a kernel is about to read or write. Compiled kernels cannot be looked at.

    Args:
        ending: a kernel that reaches outside ends there, with an error, and touches nothing outside.
    """
    reach = Reach()
    if not interpreting():
        yield reach
        return
    from triton.runtime import interpreter

    memory, executor = interpreter._interpreter, interpreter.GridExecutor
    launch, own = executor.__call__, {name: getattr(memory, name) for name in _ACCESSES if hasattr(memory, name)}
    known: list[_Known | None] = [None]  # of the launch under way

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, known[0] = known[0], _known((*args, *kwargs.values()))
        try:
            return launch(self, *args, **kwargs)
        finally:
            known[0] = before

    def looked_at(name: str, access: Any) -> Any:
        def looked(*args: Any) -> Any:
            if known[0] is not None and not known[0].holds(name, args):
                if known[0].has_addresses():
                    known[0] = None
                    return access(*args)
                reach.outside = name
                if ending:
                    raise IndexError(f"a {name} outside of the kernel's tensors")
                known[0] = None
            return access(*args)

        return looked

    executor.__call__ = call
    for name, access in own.items():
        setattr(memory, name, looked_at(name, access))
    try:
        yield reach
    finally:
        executor.__call__ = launch
        for name, access in own.items():
            setattr(memory, name, access)


class _Known:
    """The memory of some tensors.

    Args:
        parts: (first byte, byte after the last) of each.
        numbers: those of 64-bit integers.
    """

    def __init__(self, parts: set[tuple[int, int]], numbers: list[torch.Tensor]) -> None:
        self.numbers = numbers
        self.parts = sorted(parts)
        self.starts = [start for start, _ in self.parts]

    def holds(self, name: str, args: Sequence[Any]) -> bool:
        """Whether an access keeps to it: `args` are those of the interpreter's own function of that name."""
        if name == "load":
            pointers, mask, _, dtype = args
            size = dtype.itemsize
        elif name == "store":
            pointers, values, mask = args
            size = values.itemsize
        elif name == "atomic_rmw":
            _, pointers, values, mask, _ = args
            size = values.itemsize
        else:
            pointers, values, mask = args[0], args[1], None
            size = values.itemsize
        places = pointers if mask is None else pointers[mask]
        if not places.size:
            return True
        least, most = int(places.min()), int(places.max())
        at = bisect_right(self.starts, least) - 1
        if at >= 0 and most + size <= self.parts[at][1]:
            return True
        return all(self.has(int(place), size) for place in places.reshape(-1))  # of several tensors, or outside

    def has_addresses(self) -> bool:
        """Whether some tensor seems to hold addresses: a kernel follows them to memory that is not known here."""
        return any(bool(((found >= _LOW) & (found < _HIGH)).any()) for found in self.numbers)

    def has(self, place: int, size: int) -> bool:
        at = bisect_right(self.starts, place) - 1
        return at >= 0 and place + size <= self.parts[at][1]


def _known(values: Sequence[Any]) -> _Known | None:
    """The memory of the tensors among a launch's arguments; None where an argument may hold some that are not seen."""
    parts: set[tuple[int, int]] = set()
    numbers: list[torch.Tensor] = []
    left = list(values)
    while left:
        value = left.pop()
        value = getattr(value, "base", value)  # of what stands for a tensor as another dtype, or describes one
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            parts.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
            numbers += [value.view(torch.int64)] if value.dtype in (torch.int64, torch.uint64) else []
        elif isinstance(value, tuple | list):
            left += value
        elif hasattr(value, "data_ptr"):
            return None
    return _Known(parts, numbers)
