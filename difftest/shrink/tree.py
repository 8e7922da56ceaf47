"""A pool as a tree: walking it, changing it at some places, and cutting an axis of a tensor. Pure; needs torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from difftest.record.decode import RecordedObject
from difftest.target import Made, Pool

Path = tuple[Any, ...]
Change = Callable[[Any], Any]

_NUMBERS = frozenset({int, float, bool})


def is_numbers(value: Any) -> bool:
    """Whether a value is a list of plain numbers, the empty list included."""
    return type(value) is list and set(map(type, value)) <= _NUMBERS


def is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def general(path: Path) -> Path:
    """The path with the numbers of list items taken out: what the items of a list have in common."""
    return tuple("*" if type(step) is int else step for step in path)


def children(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a container holds, with the step to it."""
    if isinstance(value, Made | RecordedObject):
        yield from value.fields.items()
    elif isinstance(value, Mapping):
        yield from ((("key", key) if type(key) is not str else key, item) for key, item in value.items())
    elif isinstance(value, tuple):  # each item has a meaning of its own, as fields have
        yield from ((("item", position), item) for position, item in enumerate(value))
    elif isinstance(value, list) and not is_numbers(value):
        yield from enumerate(value)


def walk(pool: Pool) -> Iterator[tuple[Path, Any]]:
    """Every value of a pool with its path, outer ones first, a shared one once."""
    met: dict[int, Any] = {}
    waiting: list[tuple[Path, Any]] = [((name,), value) for name, value in reversed(pool.items())]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list | dict | RecordedObject):
            if id(value) in met:
                continue
            met[id(value)] = value
        yield path, value
        waiting += reversed([((*path, step), item) for step, item in children(value)])


class _Editor:
    def __init__(self, changes: Mapping[Path, list[Change]]) -> None:
        self.changes = changes
        self.made: dict[int, Any] = {}

    def __call__(self, value: Any, path: Path) -> Any:
        if id(value) in self.made:
            return self.made[id(value)]
        found = self.inside(value, path)
        for change in self.changes.get(path, ()):
            found = change(found)
        if isinstance(value, list | dict | RecordedObject):
            self.made[id(value)] = found
        return found

    def inside(self, value: Any, path: Path) -> Any:
        if isinstance(value, RecordedObject):
            made = self.made[id(value)] = RecordedObject(value.symbol, value.kind, {})
            made.fields.update({name: self(item, (*path, name)) for name, item in value.fields.items()})
            return made
        if isinstance(value, Made):
            return replace(value, fields={name: self(item, (*path, name)) for name, item in value.fields.items()})
        if type(value) is dict:
            steps = zip(value, children(value), strict=True)
            return {key: self(item, (*path, step)) for key, (step, item) in steps}
        if type(value) in (list, tuple) and not is_numbers(value):
            return type(value)(self(item, (*path, step)) for step, item in children(value))
        return value


def edited(pool: Pool, changes: Mapping[Path, list[Change]]) -> Pool:
    """A pool with some values changed, inner ones first. What is not changed is shared with the given one."""
    edit = _Editor(changes)
    return {name: edit(value, (name,)) for name, value in pool.items()}


def copied(pool: Pool) -> Pool:
    """A pool with memory of its own; tensors that share memory still do."""
    storages: dict[int, Any] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        old = value.untyped_storage()
        if old.data_ptr() not in storages:
            storages[old.data_ptr()] = old.clone()
        return value.new_empty(0).set_(storages[old.data_ptr()], value.storage_offset(), value.shape, value.stride())

    found = edited(pool, {path: [copy] for path, value in walk(pool) if is_array(value)})
    return edited(found, {path: [list] for path, value in walk(found) if type(value) is list})


# -- tensors and arrays ----------------------------------------------------------------------------------------------


def select(value: Any, axis: int, keep: np.ndarray[Any, Any]) -> Any:
    """Some positions of an axis of a tensor, an array or a list. A layout with gaps keeps its gaps."""
    if isinstance(value, list):
        return [value[i] for i in keep]
    if isinstance(value, np.ndarray):
        return np.take(value, keep, axis)
    index = torch.from_numpy(np.asarray(keep, np.int64))
    chosen = _bits(value).index_select(axis, index).view(value.dtype)
    return chosen if is_plain_tensor(value) else laid_out_as(value, chosen)


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.uint8) if value.dtype.itemsize == 1 else value


def is_plain_tensor(value: torch.Tensor) -> bool:
    """Whether a tensor is contiguous and all of its memory."""
    return value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes


def plain(value: Any) -> Any:
    """The same values, contiguous, in memory of their own."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).copy()
    return value.clone(memory_format=torch.contiguous_format)


def laid_out_as(old: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values in memory laid out as another tensor's is: order of axes, gaps between rows, offset, guard bytes."""
    if not old.numel():
        return values
    order = sorted(range(old.ndim), key=lambda a: (old.stride(a), -a))
    strides = [0] * old.ndim
    extent = new_extent = 1
    for axis in order:
        stride = old.stride(axis)
        strides[axis] = 0 if stride == 0 else max(1, new_extent + stride - extent) if stride >= extent else stride
        extent = max(extent, stride * old.shape[axis])
        new_extent = max(new_extent, strides[axis] * values.shape[axis])
    size = old.dtype.itemsize
    used = sum((n - 1) * s for n, s in zip(old.shape, old.stride(), strict=True)) + 1
    spare = old.untyped_storage().nbytes() // size - old.storage_offset() - used
    needed = sum(max(n - 1, 0) * s for n, s in zip(values.shape, strides, strict=True)) + 1
    whole = old.new_empty(0).set_(old.untyped_storage(), 0, (old.untyped_storage().nbytes() // size,), (1,))
    total = old.storage_offset() + needed + spare
    guard = whole[-1:] if spare else whole[:1]
    memory = guard.expand(total).clone()
    found = memory.as_strided(values.shape, strides, old.storage_offset())
    if 0 not in strides:
        found.copy_(values)
    elif values.numel():  # an axis whose positions are one and the same memory
        ones = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
        found[ones].copy_(values[ones])
    return found


# -- sizes, for a reader ---------------------------------------------------------------------------------------------


def pool_bytes(pool: Pool) -> int:
    """Bytes of a pool: memory behind tensors and arrays, each once, and 8 for each plain number."""
    memory: dict[int, int] = {}
    total = 0
    for _, value in walk(pool):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            memory[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, np.ndarray):
            total += value.nbytes
        elif is_numbers(value):
            total += 8 * len(value)
        elif isinstance(value, int | float | np.generic):
            total += 8
        elif isinstance(value, str | bytes | set | frozenset):
            total += len(value)
    return total + sum(memory.values())


def largest_axis(pool: Pool) -> int:
    """The longest axis of a pool's tensors, arrays and lists."""
    lengths = [0]
    for _, value in walk(pool):
        lengths += value.shape if is_array(value) else [len(value)] if isinstance(value, list) else []
    return max(lengths)


def elements(value: Any) -> int:
    """How many numbers a leaf holds."""
    return math.prod(value.shape) if is_array(value) else len(value) if isinstance(value, list) else 1
