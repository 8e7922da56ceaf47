"""Turns what a call returned into plain immutable data that can be compared with `==` and explained later.

A frozen value is one of
    ("int", 3)  ("float", b"8 bytes")  ("str", "x")  ("NoneType", None) ...           a scalar, exact by type and bits
    ("ints", "list", (1, 2, 3))                                                       a list or tuple of plain ints
    ("items", "list", (frozen, ...))                                                  any other list or tuple
    ("fields", "ClassName", (("name", frozen), ...))          named tuple in its order; dataclass and object by name
    ("dict", "dict", ((key, frozen), ...))                                            keys by their text, sorted
    ("tensor", "torch.float32", shape, strides, device, bytes)                        bytes in row-major order
    ("ndarray", "<f4", shape, strides, "", bytes)
    ("storage", "torch.float32", shape, strides, offset, bytes of the whole storage)  an input, with its gaps
    ("generator", device, state bytes)
    ("opaque", "ClassName")                                                           compared by class only
    ("deep", "ClassName")                                                             nested beyond DEPTH levels
    ("again", n)                                                                      an object met before
Strides of axes that no element steps along are 0: nothing can depend on them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
import types
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from difftest.call.rng import generator_state, tensor_bytes
from difftest.call.values import LARGE, storage_bytes

Frozen = tuple[Any, ...]

DEPTH = 100
"""Containers are followed this deep: a list that holds itself must come to an end."""

_INT_ONLY = frozenset({int})
_FLOAT_ONLY = frozenset({float})
_pack_float = struct.Struct("<d").pack
_PLAIN = (int, bool, str, bytes, type(None))


class Freezer:
    """Freezes values; remembers the memory of every tensor and array it met, for the alias graph.

    Args:
        whole: freeze the whole storage of each tensor, gaps and guard rows included, as inputs need.

    Attributes:
        name: what is being frozen now.
        memory: (name, address of the first element, address of the storage, its bytes) of each array met, in order.
    """

    __slots__ = ("_alive", "_depth", "_seen", "_whole", "memory", "name")

    def __init__(self, whole: bool = False) -> None:
        self.memory: list[tuple[str, int, int, int]] = []
        self.name = ""
        self._whole = whole
        self._depth = 0
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []

    def __call__(self, value: Any) -> Frozen:
        kind = type(value)
        if kind is list or kind is tuple:
            kinds = set(map(type, value))
            if kinds == _INT_ONLY:
                return ("ints", kind.__name__, tuple(value))
            if not kinds:
                return ("items", kind.__name__, ())
            if kinds == _FLOAT_ONLY:
                return ("items", kind.__name__, tuple([("float", _pack_float(item)) for item in value]))
            return self._nested(self._sequence, value, kind.__name__)
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind in _PLAIN:
            return (kind.__name__, value)
        if kind is float:
            return ("float", _pack_float(value))
        if kind is np.ndarray:
            return self._array(value)
        if kind is dict:
            return self._nested(self._mapping, value, "dict")
        return self._nested(self._other, value, kind.__name__)

    def _nested(self, freeze: Callable[[Any], Frozen], value: Any, name: str) -> Frozen:
        if self._depth >= DEPTH:
            return ("deep", name)
        self._depth += 1
        found = freeze(value)
        self._depth -= 1
        return found

    def _sequence(self, value: Any) -> Frozen:
        name = type(value).__name__
        if set(map(type, value)) == _INT_ONLY:
            return ("ints", name, tuple(value))
        return ("items", name, tuple([self(item) for item in value]))

    def _tensor(self, value: torch.Tensor) -> Frozen:
        if value.layout is not torch.strided:
            return (
                "fields",
                "Tensor",
                (("layout", ("str", str(value.layout))), ("dense", self(value.to_dense()))),
            )
        on_host = value.is_cpu
        device = "cpu" if on_host else value.device.type
        shape = tuple(value.shape)
        strides = _relevant(shape, value.stride())
        if device == "meta":
            return ("tensor", str(value.dtype), shape, strides, device, b"")
        storage = value.untyped_storage()
        size = storage.nbytes()
        if size and value.numel():  # an empty view has no address
            self.memory.append((self.name, value.data_ptr(), storage.data_ptr(), size))
        if self._whole:
            if size >= LARGE:
                return ("opaque", f"lazily reserved storage of {size} bytes")
            if not on_host:
                storage = storage.cpu()  # type: ignore[no-untyped-call]
            return (
                "storage",
                _dtype_name(value.dtype),
                shape,
                value.stride(),
                value.storage_offset(),
                storage_bytes(storage),
            )
        plain = value.detach()
        if not on_host:
            plain = plain.cpu()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        if not plain.is_contiguous():
            plain = plain.contiguous()
        return ("tensor", _dtype_name(value.dtype), shape, strides, device, tensor_bytes(plain))

    def _array(self, value: np.ndarray[Any, Any]) -> Frozen:
        if value.dtype.hasobject:
            return ("items", f"ndarray[object] {value.shape}", tuple(self(item) for item in value.ravel().tolist()))
        if value.dtype.names is not None:  # a structured array: the names and types of its fields count too
            plain = self._array(value.view(f"V{value.dtype.itemsize}"))
            return ("fields", "ndarray", (("dtype", ("str", str(value.dtype.descr))), ("data", plain)))
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        if base.nbytes:
            first = value.__array_interface__["data"][0]
            root = base.__array_interface__["data"][0] if base is not value else first
            self.memory.append((self.name, first, root, base.nbytes))
        strides = _relevant(value.shape, value.strides)
        return ("ndarray", value.dtype.str, value.shape, strides, "", value.tobytes())

    def _mapping(self, value: Mapping[Any, Any]) -> Frozen:
        items = [(_key_text(key), self(item)) for key, item in value.items()]
        items.sort(key=lambda item: item[0])
        names = Counter(name for name, _ in items)
        if len(names) < len(items):  # keys that read alike are told apart by their order
            numbers = {name: iter(range(count)) for name, count in names.items()}
            items = [(f"{name} #{next(numbers[name]) + 1}" if names[name] > 1 else name, item) for name, item in items]
        return ("dict", type(value).__name__, tuple(items))

    def _other(self, value: Any) -> Frozen:
        kind = type(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ("fields", kind.__name__, tuple([(n, self(i)) for n, i in zip(value._fields, value, strict=True)]))
        if isinstance(value, torch.Tensor):
            return self._tensor(value.as_subclass(torch.Tensor))
        if isinstance(value, np.generic):
            return ("numpy." + kind.__name__, value.tobytes())
        if isinstance(value, enum.Enum):
            return ("enum " + kind.__name__, value.name)
        if isinstance(value, torch.Generator):
            return ("generator", value.device.type, generator_state(value))
        if kind is complex:
            return ("complex", struct.pack("<dd", value.real, value.imag))
        if isinstance(value, torch.dtype | torch.device | torch.Size | np.dtype | range | slice):
            return (kind.__name__, str(value))
        if isinstance(
            value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType | types.ModuleType
        ):
            return ("reference", getattr(value, "__qualname__", getattr(value, "__name__", kind.__name__)))
        if id(value) in self._seen:
            return ("again", self._seen[id(value)])
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if isinstance(value, list | tuple):
            return self._sequence(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, set | frozenset):
            return ("items", kind.__name__, tuple(sorted((self(item) for item in value), key=repr)))
        if isinstance(value, int | float | str | bytes):  # a subclass of a plain type
            return (kind.__name__, str(value))
        if dataclasses.is_dataclass(value):
            names = [f.name for f in dataclasses.fields(value)]
            names += [n for n in getattr(value, "__dict__", ()) if n not in names]
            return ("fields", kind.__name__, tuple((n, self(getattr(value, n, None))) for n in sorted(names)))
        state = getattr(value, "__dict__", None)
        slots = [n for cls in kind.__mro__ for n in _slots(cls) if hasattr(value, n)]
        if state is not None or slots:
            held = {**(state or {}), **{n: getattr(value, n) for n in slots}}
            return ("fields", kind.__name__, tuple((n, self(held[n])) for n in sorted(held)))
        return ("opaque", kind.__name__)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype)


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _relevant(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    if 0 in shape:
        return (0,) * len(shape)
    return tuple([0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)])


_PRINTED_KEYS = (bool, int, float, complex, frozenset, enum.Enum, np.generic, torch.dtype, torch.device)


def _key_text(key: Any) -> str:
    if type(key) is int:
        return str(key)
    if type(key) in (str, bytes):
        return repr(key)
    if isinstance(key, tuple):
        return f"({', '.join(map(_key_text, key))})"
    text = repr(key) if key is None or isinstance(key, _PRINTED_KEYS) else ""
    return f"{type(key).__name__} {text}".rstrip()
