"""Bytes that hold no value: what alignment leaves between the fields of a record, and the unused end of a long double.

Nothing that reads a value reads them, and whoever writes a value may leave in them what was there before.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EXTENDED = 10
"""Bytes of a long double of 80 bits, which takes 12 or 16."""
_HAS_EXTENDED = np.finfo(np.longdouble).nmant == 63
_DATA: type = ctypes.c_int.__mro__[2]  # the base of all that ctypes makes, which has no public name


def array_bytes(value: NDArray[Any]) -> bytes:
    """The bytes of an array's elements in row-major order, zero where they hold no value."""
    mask = _of_dtype(value.dtype)
    data = value.tobytes()
    return data if mask is None else _masked(data, mask)


def buffer_bytes(value: memoryview) -> bytes:
    """The same of memory that is looked at through Python's buffer protocol."""
    if is_ctypes(value.obj):
        return ctypes_bytes(value.obj, bytes(value))
    kind = value.format.lstrip("@=<>!")
    if len(kind) == 1 and kind != "g":
        return bytes(value)
    try:
        return array_bytes(np.asarray(value))
    except (ValueError, NotImplementedError):  # a format that numpy does not read
        return bytes(value)


def is_ctypes(value: object) -> bool:
    return isinstance(value, _DATA)


def ctypes_bytes(value: Any, data: bytes) -> bytes:
    """The bytes of an object of ctypes, zero where they hold no value."""
    kind: Any = type(value)
    mask = _of_ctypes(kind)
    return _masked(data, mask) if len(mask) == len(data) else data


def _masked(data: bytes, mask: NDArray[np.uint8]) -> bytes:
    """Bytes of elements with those bits alone that are set in the mask of one."""
    return (np.frombuffer(data, np.uint8).reshape(-1, len(mask)) & mask).tobytes()


@functools.cache
def _of_dtype(dtype: np.dtype[Any]) -> NDArray[np.uint8] | None:
    """Which bits of an element hold its value; None where all do."""
    found = np.full(dtype.itemsize, 0xFF, np.uint8)
    if dtype.subdtype is not None:
        inner, shape = dtype.subdtype
        mask = _of_dtype(inner)
        return None if mask is None else np.tile(mask, int(np.prod(shape)))
    if dtype.names is not None:
        found[:] = 0
        assert dtype.fields is not None
        for name in dtype.names:
            inner, offset = dtype.fields[name][:2]
            mask = _of_dtype(inner)
            found[offset : offset + inner.itemsize] |= 0xFF if mask is None else mask
    elif dtype.char in "gG" and _HAS_EXTENDED:
        parts = found.reshape(2 if dtype.char == "G" else 1, -1)
        if dtype.isnative:
            parts[:, _EXTENDED:] = 0
        else:
            parts[:, :-_EXTENDED] = 0
    return None if (found == 0xFF).all() else found


@functools.cache
def _of_ctypes(kind: Any) -> NDArray[np.uint8]:
    """Which bits of an instance hold its value."""
    found = np.full(ctypes.sizeof(kind), 0xFF, np.uint8)
    if issubclass(kind, ctypes.Array):
        return np.tile(_of_ctypes(kind._type_), kind._length_)
    if issubclass(kind, ctypes.Structure | ctypes.Union):
        found[:] = 0
        for cls in kind.__mro__:
            for name, inner, *bits in vars(cls).get("_fields_", ()):
                place = getattr(cls, name)
                mask = _bits(place, bits[0], ctypes.sizeof(inner)) if bits else _of_ctypes(inner)
                found[place.offset : place.offset + len(mask)] |= mask
    elif issubclass(kind, ctypes.c_longdouble) and _HAS_EXTENDED:
        found[_EXTENDED:] = 0
    return found


def _bits(place: Any, count: int, size: int) -> NDArray[np.uint8]:
    """The bits of a bit field in the integer that it is part of."""
    start = place.bit_offset if hasattr(place, "bit_offset") else place.size & 0xFFFF
    return np.frombuffer((((1 << count) - 1) << start).to_bytes(size, sys.byteorder), np.uint8)
