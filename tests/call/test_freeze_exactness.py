"""What freezing must not lose: field names of structured arrays, shapes of object arrays, values of odd dict keys.
And what it must not take for a value: padding."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from difftest.call.freeze import Freezer

PAIRS = {
    "field names": (np.zeros(3, [("a", "i4"), ("b", "i4")]), np.zeros(3, [("b", "i4"), ("a", "i4")])),
    "object shape": (np.full((2, 2), None), np.full(4, None)),
    "numpy key": ({np.int64(1): 1}, {np.int64(2): 1}),
    "dtype key": ({torch.float32: 1}, {torch.float64: 1}),
    "field types beside objects": (np.zeros(1, [("a", "O"), ("b", "i4")]), np.zeros(1, [("a", "O"), ("b", "i8")])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_they_are_told_apart(name: str) -> None:
    left, right = PAIRS[name]
    assert Freezer()(left) != Freezer()(right)
    assert Freezer()(left) == Freezer()(left)


class Inner(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int8), ("b", ctypes.c_int32)]


class Record(ctypes.Structure):
    _fields_ = [("c", ctypes.c_int8), ("inner", Inner * 2), ("bits", ctypes.c_int32, 3), ("d", ctypes.c_double)]


class Either(ctypes.Union):
    _fields_ = [("a", ctypes.c_int8), ("inner", Inner)]


ALIGNED = np.dtype([("a", "i1"), ("b", "i8")], align=True)
DTYPES = {
    "longdouble": np.dtype(np.longdouble),
    "complex longdouble": np.dtype(np.clongdouble),
    "swapped longdouble": np.dtype(np.longdouble).newbyteorder(),
    "aligned": ALIGNED,
    "nested": np.dtype([("x", "i2"), ("y", ALIGNED, (2,)), ("z", np.longdouble)], align=True),
    "one field of a record": np.dtype({"names": ["b"], "formats": ["i4"], "offsets": [8], "itemsize": 16}),
    "fields that overlap": np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2], "itemsize": 8}),
}
KINDS: dict[str, Any] = {"record": Record, "array": Record * 2, "union": Either, "number": ctypes.c_longdouble}


def made(dtype: np.dtype[Any], fill: int, value: int = 1) -> np.ndarray[Any, Any]:
    """An array of one value, all other bytes `fill`."""
    array = np.frombuffer(bytearray([fill]) * (3 * dtype.itemsize), dtype)
    write(array, value)
    return array


def write(array: np.ndarray[Any, Any], value: int) -> None:
    for name in array.dtype.names or ():
        write(array[name], value)
    if array.dtype == np.longdouble and np.finfo(np.longdouble).nmant == 63:
        number = np.full(array.shape, value, np.longdouble).view(np.uint8)
        array[..., None].view(np.uint8)[..., :10] = number.reshape(*array.shape, -1)[..., :10]
    elif not array.dtype.names:
        array[...] = value


def ctypes_made(kind: Any, fill: int, value: int = 1) -> Any:
    found = kind.from_buffer_copy(bytes([fill]) * ctypes.sizeof(kind))
    fill_in(found, value)
    return found


def fill_in(item: Any, value: int) -> None:
    if isinstance(item, ctypes.c_longdouble):
        item.value = value
    for part in item if isinstance(item, ctypes.Array) else ():
        fill_in(part, value)
    for name, inner, *_ in getattr(item, "_fields_", ()):
        if issubclass(inner, ctypes._SimpleCData):
            setattr(item, name, value)
        else:
            fill_in(getattr(item, name), value)


@pytest.mark.parametrize("name", DTYPES)
def test_padding_of_arrays_is_no_value(name: str) -> None:
    dtype = DTYPES[name]
    one, other, another = made(dtype, 0xA5), made(dtype, 0x5A), made(dtype, 0xA5, 2)
    for read in (lambda a: a, lambda a: a[0], lambda a: a[::-2], lambda a: {"x": [a]}):
        assert Freezer()(read(one)) == Freezer()(read(other))
        assert Freezer()(read(one)) != Freezer()(read(another))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("read", [lambda value: value, memoryview], ids=["object", "memoryview"])
def test_padding_of_ctypes_is_no_value(name: str, read: Any) -> None:
    kind = KINDS[name]
    assert Freezer()(read(ctypes_made(kind, 0xA5))) == Freezer()(read(ctypes_made(kind, 0x5A)))
    assert Freezer()(read(ctypes_made(kind, 0xA5))) != Freezer()(read(ctypes_made(kind, 0xA5, 2)))
