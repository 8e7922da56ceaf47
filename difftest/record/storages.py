"""The memory behind tensors and arrays: which of it is needed, and whether a call changed it. Needs torch."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from difftest.record.forms import Json, Row, opaque

SMALL = 64 << 10
"""Bytes up to which memory is compared without letting other threads run meanwhile, which would cost more."""

LARGE = 1 << 20
"""Bytes up to which memory is compared whole: reading all of it twice takes as long as the copy."""

_LOOKS = 16
_LOOK = 4096
"""How often, and at how many bytes each time, larger memory is looked at."""

# Compares memory without copying it; the second keeps other threads out, which costs less for little memory.
_compare = ctypes.CDLL(None).memcmp
compare_small = ctypes.PyDLL(None).memcmp
for _function in (_compare, compare_small):
    _function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _function.restype = ctypes.c_int

_DTYPES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype in (torch.bool, torch.uint8))
} | {getattr(torch, name): name for name in ("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")}
"""Those whose tensors cannot be conjugated or quantized."""

# Called by `map`, which is quicker than a loop and, when the processor's caches hold an engine's data, much quicker.
_layout = torch.Tensor.layout.__get__  # type: ignore[attr-defined]
_is_cpu = torch.Tensor.is_cpu.__get__  # type: ignore[attr-defined]
_dtype = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_shape = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_nbytes = torch.Tensor.nbytes.__get__  # type: ignore[attr-defined]
_address_now = operator.methodcaller("data_ptr")
_STRIDED = {torch.strided}


@dataclass(frozen=True, slots=True)
class _Array:
    """What keeps the memory of an array alive."""

    array: np.ndarray[Any, Any]
    address: int

    def data_ptr(self) -> int:
        return self.address


@dataclass(slots=True)
class Pieces:
    """The bytes of storages, as far as recorded views reach: columns, by the number of the storage.

    Attributes:
        starts, sizes: which bytes of the storages these are.
        addresses: of their first bytes.
        wholes: bytes in the whole storages.
        devices: where they are.
        inputs: for outputs, the numbers of the input storages that are the same memory.
        owners: what keeps them alive; on a device the storages.
        bases: where the storages begin.
        small: the sizes again, 0 for memory that is large or not here.
        large: numbers of the large ones that are here.
        remote: numbers of those on a device.
    """

    starts: Sequence[int]
    sizes: Sequence[int]
    addresses: Sequence[int]
    wholes: Sequence[int]
    devices: Sequence[str]
    inputs: Sequence[int | None]
    owners: Sequence[Any]
    bases: Sequence[int]
    small: list[int] = field(init=False)
    large: list[int] = field(init=False)
    remote: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.small = [size if size <= SMALL else 0 for size in self.sizes]
        self.large = [number for number, size in enumerate(self.sizes) if size > SMALL]
        self.remote = []
        if self.devices.count("cpu") < len(self.devices):
            self.remote = [n for n, device in enumerate(self.devices) if device != "cpu" and self.sizes[n]]
            self.leave_out(self.remote)

    def leave_out(self, numbers: Sequence[int]) -> None:
        """Copy and compare these no more."""
        for number in numbers:
            self.small[number] = 0
        self.large = [number for number in self.large if number not in numbers]

    def bytes(self, number: int) -> bytes:
        """A copy of one of them."""
        start, size, owner = self.starts[number], self.sizes[number], self.owners[number]
        if self.devices[number] == "cpu":
            return ctypes.string_at(self.addresses[number], size)
        view = torch.empty(0, dtype=torch.uint8, device=owner.device)
        view.set_(owner, start, (size,), (1,))
        return view.cpu().numpy().tobytes()

    def gone(self) -> list[int]:
        """Numbers of those that were resized, so that what was recorded of them is no longer there."""
        now = list(map(_address_now, self.owners))
        return [] if now == self.bases else [n for n, base in enumerate(self.bases) if now[n] != base]

    def changed(self, before: Sequence[int]) -> list[int] | None:
        """Numbers of those that are not as they were; None when that would take too long to know.

        On a device it is not known yet, and so they may be. In large memory some places are looked at: a sampler that
        works on all logits in place is seen by that.

        Args:
            before: addresses of their copies.
        """
        if gone := self.gone():
            self.leave_out(gone)
        found = [n for n, differs in enumerate(map(compare_small, self.addresses, before, self.small)) if differs]
        for number in self.large:
            address, old, size = self.addresses[number], before[number], self.sizes[number]
            if size <= LARGE:
                if _compare(address, old, size):
                    found.append(number)
                continue
            for place in [*range(0, size - _LOOK, size // _LOOKS), size - _LOOK]:
                if compare_small(address + place, old + place, _LOOK):
                    found.append(number)
                    break
            else:
                return None
        return sorted(found + [number for number in self.remote if number not in gone])


class Storages:
    """What the tensors and arrays of one side of a call lie in, numbered as they are met.

    Args:
        inputs: those of the call's inputs, when these are of its outputs.
        whole: keep all bytes of a storage, whatever views reach.
    """

    __slots__ = ("_addresses", "_devices", "_firsts", "_inputs", "_lasts", "_numbers", "_owners", "_whole", "_wholes")

    def __init__(self, inputs: Storages | None = None, whole: bool = False) -> None:
        self._addresses: list[int] = []
        self._wholes: list[int] = []
        self._devices: list[str] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._owners: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._inputs = {} if inputs is None else inputs._numbers
        self._whole = whole

    def tensors(self, values: Sequence[torch.Tensor]) -> list[Row | Json]:
        """What tensors are, none of a subclass. Never raises for one that cannot be recorded: it is opaque."""
        if not self._owners and not self._whole:
            try:
                found = self._usual(values)
            except (RuntimeError, TypeError, NotImplementedError):
                found = None
            if found is not None:
                return found
        return [self._or_opaque(self.tensor, value) for value in values]

    def arrays(self, values: Sequence[np.ndarray[Any, Any]]) -> list[Row | Json]:
        """What arrays are. Never raises for one that cannot be recorded: it is opaque."""
        return [self._or_opaque(self.array, value) for value in values]

    def _or_opaque(self, describe: Any, value: Any) -> Row | Json:
        try:
            return describe(value)
        except Exception as error:
            kind = type(value)
            return opaque(f"{kind.__module__}:{kind.__qualname__}", f"{type(error).__name__}: {str(error)[:200]}")

    def _usual(self, values: Sequence[torch.Tensor]) -> list[Row | Json] | None:
        """What tensors in CPU memory are, all at once; None when one of them is out of the ordinary."""
        if (
            not all(map(_is_cpu, values))
            or (values and set(map(_layout, values)) != _STRIDED)
            or any(map(torch.Tensor.is_neg, values))
        ):
            return None
        dtypes = list(map(_DTYPES.get, map(_dtype, values)))
        if None in dtypes:
            return None
        owners = list(map(torch.Tensor.untyped_storage, values))
        addresses = list(map(torch.UntypedStorage.data_ptr, owners))
        wholes = list(map(torch.UntypedStorage.nbytes, owners))
        offsets = list(map(torch.Tensor.storage_offset, values))
        shapes = list(map(tuple, map(_shape, values)))
        strides = list(map(torch.Tensor.stride, values))
        sizes = list(map(_nbytes, values))
        numbers = dict(zip(addresses, range(len(values)), strict=True))
        numbers.pop(0, None)
        empty = addresses.count(0)
        apart = len(numbers) + empty == len(values) and wholes.count(0) == empty
        if apart and not any(offsets) and all(map(torch.Tensor.is_contiguous, values)):
            self._addresses, self._wholes, self._owners, self._numbers = addresses, wholes, owners, numbers
            self._devices, self._firsts, self._lasts = ["cpu"] * len(values), [0] * len(values), sizes
            return list(zip(range(len(values)), dtypes, offsets, shapes, strides, strict=True))
        rows: list[Row | Json] = []
        for n, value in enumerate(values):
            first, last = _reach(value, shapes[n], strides[n], int(offsets[n]), sizes[n])
            number = self._view("cpu", addresses[n], wholes[n], first, last, owners[n])
            rows.append((number, dtypes[n], offsets[n], shapes[n], strides[n]))
        return rows

    def tensor(self, value: torch.Tensor) -> Row | Json:
        """What a tensor is, opaque when its memory does not say that."""
        if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
            return opaque(_class(value), f"layout {value.layout}, device {value.device}")
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        storage = value.untyped_storage()
        shape, strides, offset = tuple(value.shape), value.stride(), int(value.storage_offset())
        first, last = _reach(value, shape, strides, offset, value.nbytes)
        device = "cpu" if value.is_cpu else device_name(value.device)
        number = self._view(device, storage.data_ptr(), storage.nbytes(), first, last, storage)
        return number, str(value.dtype).removeprefix("torch."), offset, shape, strides

    def array(self, value: np.ndarray[Any, Any]) -> Row | Json:
        """What an array is, opaque when its memory does not say that."""
        if value.dtype.kind not in "biufc":
            return opaque("numpy:ndarray", f"dtype {value.dtype}")
        root: Any = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        owner: Any
        if isinstance(root.base, torch.Tensor):
            owner = root.base.untyped_storage()
            low, whole = owner.data_ptr(), owner.nbytes()
        else:
            low, high = _bounds(root)
            owner, whole = _Array(root, low), high - low
        first, last = _bounds(value)
        address = value.__array_interface__["data"][0]
        if not value.size:
            first = last = address = low
        number = self._view("cpu", low, whole, first - low, last - low, owner)
        return number, value.dtype.str, address - low, value.shape, value.strides

    def _view(self, device: str, address: int, whole: int, first: int, last: int, owner: Any) -> int:
        """Note that bytes `first` to `last` of a storage are needed; the storage's number."""
        if self._whole:
            first, last = 0, whole
        key: Any = address if device == "cpu" else (device, address)
        if not whole:
            key = ("", id(owner.array if isinstance(owner, _Array) else owner))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._owners)
            self._addresses.append(address)
            self._wholes.append(whole)
            self._devices.append(device)
            self._firsts.append(first)
            self._lasts.append(last)
            self._owners.append(owner)
            return number
        if whole > self._wholes[number]:  # it began as part of a longer one, as a view of another library's memory
            self._wholes[number], self._owners[number] = whole, owner
        self._firsts[number] = min(self._firsts[number], first)
        self._lasts[number] = max(self._lasts[number], last)
        return number

    def pieces(self) -> Pieces:
        """What the values lie in, in the order of the numbers of storages. Nothing is copied."""
        starts, sizes, addresses = self._firsts, self._lasts, self._addresses
        if any(starts):
            starts = [first & -64 for first in starts]
            sizes = [last - start for last, start in zip(sizes, starts, strict=True)]
            addresses = [address + start for address, start in zip(addresses, starts, strict=True)]
        inputs: Sequence[int | None] = [None] * len(sizes)
        if self._inputs:
            keys = {number: key for key, number in self._numbers.items()}
            inputs = [self._inputs.get(keys[n]) if self._wholes[n] else None for n in range(len(sizes))]
        return Pieces(starts, sizes, addresses, self._wholes, self._devices, inputs, self._owners, self._addresses)


@functools.cache
def device_name(device: torch.device) -> str:
    """The device in words."""
    return str(device)


def _reach(
    value: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int, nbytes: int
) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the byte after its last; both 0 when it has none."""
    if not nbytes:
        return 0, 0
    size = value.element_size()
    first = offset * size
    if value.is_contiguous():
        return first, first + nbytes
    return first, first + size + sum([(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]) * size


def _class(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}:{kind.__qualname__}"


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Addresses of the first byte of an array and of the byte after its last."""
    low = high = array.__array_interface__["data"][0]
    if array.size:
        for n, stride in zip(array.shape, array.strides, strict=True):
            if stride < 0:
                low += (n - 1) * stride
            else:
                high += (n - 1) * stride
        high += array.itemsize
    return low, high
