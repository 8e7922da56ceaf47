"""Fills memory that code allocates without initialising, so that bytes nobody wrote can be told from bytes that were.

Every call of an arm that allocates such memory is made twice, under two fills. Bytes of the outcome that follow the
fill are undefined: they are what a reused block of the allocator happened to hold. The fills are such that common
comparisons of undefined numbers come out differently under the two: see :data:`_PAIRS`.

Two layers. Below, the C library's allocator fills every block it hands out (glibc's M_PERTURB; the worker runs without
the per-thread caches that skip it, see :mod:`difftest.run.supervisor`), so `torch.empty`, `Tensor.resize_`,
`torch.LongTensor(n)`, `numpy.ndarray(shape)` and operators that allocate for themselves are all covered. Above, the
allocating functions of torch and numpy are wrapped: they count, so that calls that allocate nothing need not be
repeated, and they fill what the layer below cannot reach: device memory, and host memory under another C library.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

FILLS = (0xA5, 0x5A)

_PAIRS = (FILLS, (0x7F, 0x00), (0x96, 0x69), (0xFE, 0x00))
"""By turns: two that differ in every bit, of which one is negative and the other positive as a float and as an int;
and zero, for what is compared with it, against the largest numbers: 3.4e38 as float32 and 2139062143 as int32 (0x7F),
-1.7e38 and -16843010 (0xFE). Zero is never first: an arm whose allocations nobody counts is called under the first
alone, and memory that it leaves unwritten must not look like zeros that the other arm wrote. 0xFF, which is NaN, cannot
be one: the C library takes its complement for no fill at all."""
_M_PERTURB = -6
_TORCH_FUNCTIONS = ("empty", "empty_like", "empty_strided", "empty_permuted")
_TENSOR_METHODS = ("new", "new_empty", "new_empty_strided", "resize_", "resize_as_")
_NUMPY_FUNCTIONS = ("empty", "empty_like")
_WITH_CONTENT = ("new", "resize_", "resize_as_")  # their memory may hold what was given or was there before


def fills(identity: str) -> tuple[int, int]:
    """The two fills of the case of this id, hexadecimal. They change from case to case, so that no value can pass for
    a fill in all, and are the same wherever the case is run."""
    return _PAIRS[int(identity, 16) % len(_PAIRS)]


class Poison:
    """State of the poisoned allocators of this process.

    Attributes:
        allocations: how many allocations by the wrapped functions were made since the count was last set to 0.
        native: whether the C library's allocator fills host memory.
    """

    def __init__(self) -> None:
        self.allocations = 0
        self.native = False
        self._fill: int | None = None
        self._installed = False
        self._perturb: Callable[[int, int], int] | None = None

    @property
    def fill(self) -> int | None:
        """The byte that new memory is filled with; None leaves memory as it comes."""
        return self._fill

    @fill.setter
    def fill(self, value: int | None) -> None:
        self._fill = value
        if self.native and self._perturb is not None:
            # glibc fills with the complement of what it is told, and freed blocks with what it is told.
            self._perturb(_M_PERTURB, 0 if value is None else value ^ 0xFF)

    def install(self) -> None:
        """Replace the allocating functions of torch and numpy. Once a process, before code under test is loaded."""
        if self._installed:
            return
        self._installed = True
        self._native()
        for name in _TORCH_FUNCTIONS:
            setattr(torch, name, self._torch(getattr(torch, name)))
        for name in _TENSOR_METHODS:
            setattr(torch.Tensor, name, self._torch(getattr(torch.Tensor, name)))
        for name in _NUMPY_FUNCTIONS:
            setattr(np, name, self._numpy(getattr(np, name)))

    def _native(self) -> None:
        """Use the C library's own fill where it works, which is tried out."""
        perturb = getattr(ctypes.CDLL(None), "mallopt", None)
        if perturb is None:
            return
        perturb.argtypes, perturb.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
        self._perturb = perturb
        self.native = True
        probe = []
        for fill in FILLS:
            self.fill = fill
            probe.append(torch.empty(64, dtype=torch.uint8).numpy().tobytes() == bytes([fill]) * 64)
        self.fill = None
        self.native = all(probe)
        if self.native:
            _numpy_uses_malloc()

    def _torch(self, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        with_content = real.__name__ in _WITH_CONTENT

        @functools.wraps(real)
        def allocate(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = real(*args, **kwargs)
            if self._fill is not None and "out" not in kwargs:
                self.allocations += 1
                device = tensor.device.type
                filled = self.native and device == "cpu" and not kwargs.get("pin_memory")
                if not (with_content or filled) and device != "meta" and tensor.numel():
                    tensor.untyped_storage().fill_(self._fill)  # type: ignore[attr-defined]
            return tensor

        return allocate

    def _numpy(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def allocate(*args: Any, **kwargs: Any) -> Any:
            array = real(*args, **kwargs)
            if self._fill is not None:
                self.allocations += 1
                if not self.native and not array.dtype.hasobject and array.size:
                    ctypes.memset(array.ctypes.data, self._fill, array.nbytes)
            return array

        return allocate


# -- numpy keeps small blocks for itself; with this handler it asks the C library for each --------------------------


class _Allocator(ctypes.Structure):
    """PyMemAllocatorEx; numpy's PyDataMemAllocator has the same members, but for a size that `free` may ignore."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """PyDataMem_Handler, version 1 (NumPy Enhancement Proposal 49)."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator)]


_RAW_DOMAIN = 0
_SET_HANDLER = 304  # PyDataMem_SetHandler in numpy's C interface, since 1.22
_kept: list[Any] = []


def _numpy_uses_malloc() -> bool:
    core = import_module(f"numpy.{'_core' if int(np.__version__.partition('.')[0]) > 1 else 'core'}._multiarray_umath")
    python = ctypes.pythonapi
    python.PyCapsule_New.restype = ctypes.py_object
    python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    allocator = _Allocator()
    python.PyMem_GetAllocator(_RAW_DOMAIN, ctypes.byref(allocator))
    handler = _Handler(b"difftest", 1, allocator)
    capsule = python.PyCapsule_New(ctypes.addressof(handler), b"mem_handler", None)
    table = ctypes.cast(python.PyCapsule_GetPointer(core._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    address = table[_SET_HANDLER]
    if address is None:
        return False
    previous = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)(capsule)
    _kept.extend((handler, capsule, previous))  # arrays point to the handler for as long as they live
    return bool(core.get_handler_name() == "difftest")


POISON = Poison()
