"""A case's pool of values: its content hash, and a private copy of it for each call."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import mmap
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from difftest.call import padding
from difftest.errors import DifftestError
from difftest.target import Arm, Made, Pool, Seeded

LARGE = 1 << 30
"""Storages of this many bytes and more are lazily reserved memory: made anew for each call, read by the pages that hold
anything."""
PAGE = mmap.PAGESIZE


def case_id(target: str, pool: Pool) -> str:
    """The id of a case: a hash of its content, the same on every machine. 16 hex digits."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(target.encode())
    try:
        _hash(digest, pool, {})
    except RecursionError:
        raise DifftestError(f"a case of {target} holds values nested without end; mend what builds it") from None
    return digest.hexdigest()


_PLAIN = frozenset(
    {int, bool, str, bytes, complex, range, slice, Seeded, torch.dtype, torch.device, torch.Size, np.dtype}
)


def _hash(digest: Any, value: Any, storages: dict[int, int]) -> None:
    kind = type(value)
    if kind is torch.Tensor:
        storage = value.untyped_storage()
        address = storage.data_ptr() if storage.nbytes() else 0  # without memory, the address is chance
        number = storages.setdefault(address, len(storages)) if address else -1
        layout = (str(value.dtype), tuple(value.shape), value.stride(), value.storage_offset(), number)
        digest.update(repr(layout).encode())
        if number == len(storages) - 1 and storage.nbytes() < LARGE:
            plain = storage if storage.device.type == "cpu" else storage.cpu()
            digest.update(storage_bytes(plain))
    elif kind is np.ndarray:
        if value.dtype.hasobject:
            raise TypeError("a case cannot hold an array of Python objects; use a list")
        digest.update(f"nd{value.dtype.str}{value.shape}{value.strides}".encode())
        digest.update(padding.array_bytes(value))
    elif kind in (list, tuple):
        digest.update(f"{kind.__name__}{len(value)}".encode())
        if set(map(type, value)) == {int}:
            digest.update(repr(value).encode())
        else:
            for item in value:
                _hash(digest, item, storages)
    elif isinstance(value, Mapping):
        digest.update(f"map{len(value)}".encode())
        for key, item in value.items():
            digest.update(repr(key).encode())
            _hash(digest, item, storages)
    elif kind is float:
        digest.update(b"f" + struct.pack("<d", value))
    elif kind is Made:
        digest.update(f"made{value.symbol}".encode())
        _hash(digest, value.fields, storages)
    elif value is None or kind in _PLAIN:
        digest.update(f"{kind.__name__}{value!r}".encode())
    elif isinstance(value, np.generic):
        digest.update(f"{value.dtype.str}".encode() + padding.array_bytes(np.asarray(value)))
    elif dataclasses.is_dataclass(kind):  # a recorded object, which may hold itself
        met = -id(value) in storages
        digest.update(f"{kind.__name__}{storages.setdefault(-id(value), len(storages))}".encode())
        if not met:
            for field in dataclasses.fields(value):
                _hash(digest, getattr(value, field.name), storages)
    elif kind in (set, frozenset):
        digest.update(f"{kind.__name__}{sorted(map(repr, value))}".encode())
    else:
        raise TypeError(f"a case cannot hold a {kind.__qualname__}; use tensors, arrays, plain values, Seeded or Made")


def storage_bytes(storage: Any) -> bytes:
    """The bytes of a storage in CPU memory."""
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def written_pages(storage: Any) -> tuple[tuple[int, bytes], ...]:
    """Of a storage in lazily reserved memory, the pages that are not all zero: (number, hash of its bytes).

    What was never touched takes no memory and is not looked at.
    """
    address, size = storage.data_ptr(), storage.nbytes()
    first = address // PAGE * PAGE
    count = -(-(address + size - first) // PAGE)
    resident = (ctypes.c_ubyte * count)()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    if mincore(first, address + size - first, ctypes.addressof(resident)):
        raise OSError(ctypes.get_errno(), "the pages of a very large input cannot be listed")
    found = []
    for page in np.flatnonzero(np.frombuffer(resident, np.uint8) & 1).tolist():
        start, end = max(address, first + page * PAGE), min(address + size, first + (page + 1) * PAGE)
        data = ctypes.string_at(start, end - start)
        if data.count(0) < len(data):
            found.append((page, hashlib.blake2b(data, digest_size=8).digest()))
    return tuple(found)


def has_large(value: Any) -> bool:
    """Whether a pool holds lazily reserved memory."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes() >= LARGE
    if isinstance(value, Made):
        return has_large(value.fields)
    if isinstance(value, Mapping):
        return any(has_large(item) for item in value.values())
    return isinstance(value, list | tuple) and any(not isinstance(i, int) and has_large(i) for i in value)


def is_plain(value: Any) -> bool:
    """Whether a value is numbers, text, tensors, arrays and generators, however nested: nothing that an arm makes."""
    kind = type(value)
    if kind is list or kind is tuple:
        return all(is_plain(item) for item in value)
    if kind is dict:
        return all(is_plain(item) for item in value.values())
    plain = (int, float, bool, str, bytes, type(None), torch.Tensor, np.ndarray, Seeded, torch.dtype, torch.device)
    return kind in plain or isinstance(value, np.generic)


class Copier:
    """Copies a pool for one call in one arm. Strides, offsets, gaps and shared memory are kept, on a CPU also that of
    an array and a tensor."""

    __slots__ = ("arm", "arrays", "blocks", "device", "storages")

    def __init__(self, arm: Arm, pool: Pool) -> None:
        self.arm = arm
        self.device = arm.device
        self.storages: dict[int, Any] = {}
        self.arrays: dict[int, np.ndarray[Any, Any]] = {}
        self.blocks = _Blocks(pool) if self.device == "cpu" else None

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind is np.ndarray:
            return self._array(value)
        if kind is list:
            return [self(item) for item in value] if value and set(map(type, value)) != {int} else list(value)
        if kind is tuple:
            return tuple(self(item) for item in value)
        if kind is dict:
            return {key: self(item) for key, item in value.items()}
        if kind is Seeded:
            return torch.Generator(device=self.device).manual_seed(value.seed)
        if kind is Made:
            return self.arm.make(value.symbol, {k: self(v) for k, v in value.fields.items()}, value.optional)
        return value

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        size, address = storage.nbytes(), storage.data_ptr()
        if size >= LARGE:
            return value
        if self.blocks is not None and (shared := self.blocks.tensor(value)) is not None:
            return shared
        copied = self.storages.get(address) if address else None
        if copied is None:
            if size == value.nbytes and value.is_contiguous() and self.device == "cpu":
                copy = value.clone()
                self.storages[address] = copy.untyped_storage()
                return copy
            moved: Any = storage
            copied = moved.clone() if self.device == "cpu" else moved.cuda()
            self.storages[address] = copied
        out = torch.tensor([], dtype=value.dtype, device=self.device)
        return out.set_(copied, value.storage_offset(), value.shape, value.stride())

    def _array(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy with the same strides, negative and zero ones included; views of one array stay views of one."""
        if self.blocks is not None and (shared := self.blocks.array(value)) is not None:
            return shared
        root = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        flags = root.flags
        if not (flags.c_contiguous or flags.f_contiguous) or value.dtype.hasobject or value.nbytes == 0:
            return _spread_copy(value)
        start = root.__array_interface__["data"][0]
        copied = self.arrays.get(start)
        if copied is None:
            copied = self.arrays[start] = np.copy(root)
        if root is not value:
            offset = value.__array_interface__["data"][0] - start
            flat = np.ndarray((root.nbytes,), np.uint8, buffer=copied.data if flags.c_contiguous else copied.T.data)
            copied = np.ndarray(value.shape, value.dtype, buffer=flat.data, offset=offset, strides=value.strides)
        if not value.flags.writeable:
            copied = copied.view()
            copied.flags.writeable = False
        return copied


def own_copy(arm: Arm, pool: Pool) -> Pool:
    """A private copy of a pool for one call in one arm."""
    copy: Pool = Copier(arm, pool)(pool)
    return copy


class _Blocks:
    """Copies of the memory that arrays and tensors of a pool share, one for each stretch of it."""

    def __init__(self, pool: Pool) -> None:
        tensors: dict[int, int] = {}
        arrays: dict[int, int] = {}
        _stretches(pool, tensors, arrays)
        self.copies: list[tuple[int, torch.Tensor]] = []
        if not any(a < end and start < b for start, end in arrays.items() for a, b in tensors.items()):
            return
        merged: list[list[int]] = []
        for start, end in sorted([*tensors.items(), *arrays.items()]):
            if merged and start < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        for start, end in merged:
            if any(start <= at < end for at in arrays) and any(start <= at < end for at in tensors):
                copy = np.frombuffer(bytearray(ctypes.string_at(start, end - start)), np.uint8)
                self.copies.append((start, torch.from_numpy(copy)))

    def _holding(self, address: int) -> tuple[int, torch.Tensor] | None:
        return next(((start, copy) for start, copy in self.copies if start <= address < start + len(copy)), None)

    def tensor(self, value: torch.Tensor) -> torch.Tensor | None:
        """The tensor in a shared copy, or None where it shares its memory with no array."""
        storage = value.untyped_storage()
        held = self._holding(storage.data_ptr()) if self.copies and storage.nbytes() else None
        if held is None or (storage.data_ptr() - held[0]) % value.dtype.itemsize:
            return None
        offset = (storage.data_ptr() - held[0]) // value.dtype.itemsize + value.storage_offset()
        out = torch.tensor([], dtype=value.dtype)
        return out.set_(held[1].untyped_storage(), offset, value.shape, value.stride())

    def array(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """The array in a shared copy, or None where it shares its memory with no tensor."""
        address = value.__array_interface__["data"][0]
        held = self._holding(address) if self.copies and value.size and not value.dtype.hasobject else None
        if held is None:
            return None
        buffer = held[1].numpy().data
        shared = np.ndarray(value.shape, value.dtype, buffer=buffer, offset=address - held[0], strides=value.strides)
        shared.flags.writeable = value.flags.writeable
        return shared


def _stretches(value: Any, tensors: dict[int, int], arrays: dict[int, int]) -> None:
    """Where the memory of tensors and of arrays begins and ends, as far as it is to be copied."""
    kind = type(value)
    if kind is torch.Tensor:
        storage = value.untyped_storage()
        if value.is_cpu and 0 < storage.nbytes() < LARGE:
            start = storage.data_ptr()
            tensors[start] = max(tensors.get(start, 0), start + storage.nbytes())
    elif kind is np.ndarray:
        if value.size and not value.dtype.hasobject:
            start, end = np.lib.array_utils.byte_bounds(value)
            arrays[start] = max(arrays.get(start, 0), end)
    elif kind is Made:
        _stretches(value.fields, tensors, arrays)
    elif kind is dict:
        for item in value.values():
            _stretches(item, tensors, arrays)
    elif (kind is list or kind is tuple) and set(map(type, value)) != {int}:
        for item in value:
            _stretches(item, tensors, arrays)


def _spread_copy(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy with the same strides of an array whose memory is not one whole block that numpy owns."""
    if value.size == 0 or value.dtype.hasobject:
        return np.copy(value)
    low, high = np.lib.array_utils.byte_bounds(value)
    block = bytearray(ctypes.string_at(low, high - low))
    offset = value.__array_interface__["data"][0] - low
    return np.ndarray(value.shape, value.dtype, buffer=block, offset=offset, strides=value.strides)
