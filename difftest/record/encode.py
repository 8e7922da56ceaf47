"""A live value as JSON plus the memory behind it, taken quickly and without touching the value. Needs torch.

What each form means is said in `difftest/schema/capture.json`; :mod:`difftest.record.decode` reads them back.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import marshal
import math
import struct
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from difftest.record.lines import MAX_DEPTH

Json = Any

SMALL = 64 << 10
"""Bytes up to which memory is compared without letting other threads run meanwhile, which would cost more."""

LARGE = 1 << 20
"""Bytes up to which memory is compared whole: reading all of it twice takes as long as the copy."""

_LOOKS = 16
_LOOK = 4096
"""How often, and at how many bytes each time, larger memory is looked at."""

_ATOMS = frozenset({type(None), int, bool})
_INTS = frozenset({int})
_LISTS = frozenset({list})
_MODULE_OWN = frozenset(torch.nn.Module().__dict__)
_CODE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_BYTES_OF_AN_INT = 5
"""What `marshal` writes for an integer of 32 bits, and for the head of a list: a letter and four bytes."""

# Compares memory without copying it; the second keeps other threads out, which costs less for little memory.
_compare = ctypes.CDLL(None).memcmp
_compare_small = ctypes.PyDLL(None).memcmp
for _function in (_compare, _compare_small):
    _function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _function.restype = ctypes.c_int


@dataclasses.dataclass(slots=True)
class _Storage:
    address: int
    whole: int
    device: str
    first: int
    last: int
    owner: Any
    input: int | None = None


@dataclasses.dataclass(slots=True)
class Memory:
    """The bytes of one storage, as far as recorded views reach.

    Attributes:
        start, size: which bytes of the storage these are.
        whole: bytes in the whole storage.
        device: where it is.
        owner: what keeps it alive; on a device the storage.
        address: of its first byte here, in CPU memory.
        input: for outputs, the number of the input storage that is the same memory.
    """

    start: int
    size: int
    whole: int
    device: str
    owner: Any
    address: int
    input: int | None = None

    def bytes(self) -> bytes:
        """A copy."""
        if self.device == "cpu":
            return ctypes.string_at(self.address, self.size)
        view = torch.empty(0, dtype=torch.uint8, device=self.owner.device)
        view.set_(self.owner, self.start, (self.size,), (1,))
        return view.cpu().numpy().tobytes()


class Encoder:
    """Encodes the values of one call side (all its arguments, or its result) with what they share.

    Args:
        package: top-level package whose objects' state is recorded; other plain objects are opaque. Dataclasses,
            named tuples and torch modules are recorded wherever they come from.
        opaque: module prefixes whose objects are opaque all the same (configuration, tokenizers).
        rename: replaces strings (request ids), None to keep them.
        inputs: the encoder of the call's inputs, when this one takes its outputs: memory shared with them is marked.

    Attributes:
        generators: the torch generators met, by their index.
        states: generator states by their number, bytes or tensors of bytes that nothing else refers to.
        package: as given.
    """

    __slots__ = (
        "_alive",
        "_depth",
        "_handlers",
        "_input_storages",
        "_numbers",
        "_opaque",
        "_rename",
        "_storages",
        "generators",
        "package",
        "states",
    )

    def __init__(
        self,
        package: str,
        opaque: tuple[str, ...] = (),
        rename: Callable[[str], str] | None = None,
        inputs: Encoder | None = None,
    ) -> None:
        self.generators: list[torch.Generator] = []
        self.states: list[bytes | torch.Tensor] = []
        self.package = package
        self._opaque = opaque
        self._rename = rename
        self._handlers = _HANDLERS.setdefault((type(self), package, opaque), {})
        self._storages: dict[tuple[str, int], tuple[int, _Storage]] = {}
        self._input_storages = inputs._storages if inputs is not None else {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._depth = 0

    def __call__(self, value: Any) -> Json:
        """The value as JSON, but for :meth:`_rows`. Never raises for a value that it cannot record: that is opaque."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is str:
            return value if self._rename is None else self._rename(value)
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if self._depth >= MAX_DEPTH // 2:
            return _opaque(kind, "nested too deeply")
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._handlers[kind] = self._handler(kind)
        mark = len(self._numbers)
        self._depth += 1
        try:
            return handler(self, value)
        except Exception as error:
            # What was numbered inside it is not written, so the reader will not count it.
            while len(self._numbers) > mark:
                self._numbers.popitem()
            return _opaque(kind, f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            self._depth -= 1

    def _handler(self, kind: type) -> Handler:
        """What encodes the instances of a class; asked once for each class."""
        return _FIXED.get(kind) or _by_class(kind, self.package, self._opaque)

    def _again(self, value: Any) -> Json | None:
        """The number of a value that was met before; else it has one from now on."""
        key = id(value)
        number = self._numbers.get(key)
        if number is not None:
            return {"again": number}
        self._numbers[key] = len(self._numbers)
        self._alive.append(value)
        return None

    def _list(self, value: list[Any]) -> Json:
        return self._again(value) or self._items(value)

    def _tuple(self, value: tuple[Any, ...]) -> Json:
        return {"tuple": self._items(value)}

    def _dict(self, value: dict[Any, Any]) -> Json:
        return self._again(value) or {"dict": self._pairs(value)}

    def _items(self, value: Any) -> Json:
        kinds = set(map(type, value))
        if kinds == _INTS:
            return list(value)
        if kinds == _LISTS and type(value) is list and (rows := self._rows(value)) is not None:
            return rows
        return [self(item) for item in value]

    def _rows(self, value: list[list[Any]]) -> bytes | None:
        """A list of lists of integers as `marshal` writes it, each list numbered; None when it is not that.

        The tokens of each request are many, and copied whole without a look at each: that they are integers of 32 bits
        is seen from the copy.
        """
        ids = list(map(id, value))
        if len(set(ids)) < len(ids) or not self._numbers.keys().isdisjoint(ids) or self._depth >= MAX_DEPTH // 2:
            return None
        count = sum(map(len, value))
        try:
            data = marshal.dumps(value, 2)
        except ValueError:
            return None
        if len(data) != _BYTES_OF_AN_INT * (1 + len(ids) + count) or data[::_BYTES_OF_AN_INT].count(b"i") != count:
            return None
        first = len(self._numbers)
        self._numbers.update(zip(ids, range(first, first + len(ids)), strict=True))
        return data

    def _pairs(self, value: dict[Any, Any]) -> list[list[Json]]:
        return [[self(key), self(item)] for key, item in value.items()]

    def _view(self, device: str, address: int, whole: int, first: int, last: int, owner: Any) -> int:
        """Note that bytes `first` to `last` of a storage are needed; the storage's number."""
        key = (device, address) if whole else ("", id(owner))
        found = self._storages.get(key)
        if found is None:
            entry = _Storage(address, whole, device, first, last, owner)
            shared = self._input_storages.get(key) if whole else None
            if shared is not None:
                entry.input = shared[0]
            number = len(self._storages)
            self._storages[key] = (number, entry)
            return number
        entry = found[1]
        if whole > entry.whole:  # a storage that began as part of a longer one, as a view of another library's memory
            entry.whole, entry.owner = whole, owner
        if first < entry.first:
            entry.first = first
        if last > entry.last:
            entry.last = last
        return found[0]

    def _tensor(self, value: torch.Tensor) -> Json:
        if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
            return _opaque(type(value), f"layout {value.layout}, device {value.device}")
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        storage = value.untyped_storage()
        shape, strides, offset = list(value.shape), list(value.stride()), int(value.storage_offset())
        size = value.element_size()
        first = last = 0
        if count := value.numel():
            first = offset * size
            if value.is_contiguous():
                last = first + count * size
            else:
                last = first + size
                for n, stride in zip(shape, strides, strict=True):
                    last += (n - 1) * stride * size
        device = "cpu" if value.is_cpu else _text(value.device)
        return {
            "tensor": {
                "storage": self._view(device, storage.data_ptr(), storage.nbytes(), first, last, storage),
                "dtype": _dtype(value.dtype),
                "offset": offset,
                "shape": shape,
                "strides": strides,
            }
        }

    def _array(self, value: np.ndarray[Any, Any]) -> Json:
        if value.dtype.kind not in "biufc":
            return _opaque(np.ndarray, f"dtype {value.dtype}")
        root: Any = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        owner: Any = root
        if isinstance(root.base, torch.Tensor):
            owner = root.base.untyped_storage()
            low, whole = owner.data_ptr(), owner.nbytes()
        else:
            low, high = _bounds(root)
            whole = high - low
        first, last = _bounds(value)
        address = value.__array_interface__["data"][0]
        if not value.size:
            first = last = address = low
        return {
            "ndarray": {
                "storage": self._view("cpu", low, whole, first - low, last - low, owner),
                "dtype": value.dtype.str,
                "offset": address - low,
                "shape": list(value.shape),
                "strides": list(value.strides),
            }
        }

    def _subclass(self, value: torch.Tensor) -> Json:
        if getattr(type(value), "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__:
            return _opaque(type(value), "a tensor subclass with its own dispatch")
        return self._tensor(value.detach().as_subclass(torch.Tensor))

    def _scalar(self, value: np.generic) -> Json:
        if value.dtype.kind not in "biufc":
            return _opaque(type(value), f"dtype {value.dtype}")
        return {"scalar": {"dtype": value.dtype.str, "bytes": value.tobytes().hex()}}

    def _parts(self, value: range | slice) -> Json:
        parts = [value.start, value.stop, value.step]
        if not all(part is None or type(part) is int for part in parts):
            return _opaque(type(value), "its parts are no integers")
        return {type(value).__name__: parts}

    def _method(self, value: types.MethodType | types.BuiltinMethodType) -> Json:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return {"symbol": _name(value)}
        return {"method": {"self": self(owner), "name": value.__name__}}

    def _generator(self, value: torch.Generator) -> Json:
        if again := self._again(value):
            return again
        self.generators.append(value)
        return {"generator": self.generator(value, len(self.generators) - 1)}

    def _mapping(self, value: dict[Any, Any]) -> Json:
        return self._again(value) or {"dict": self._pairs(value), "class": _name(type(value))}

    def _set(self, value: set[Any] | frozenset[Any]) -> Json:
        again = self._again(value)
        return again or {"set": [self(item) for item in sorted(value, key=repr)], "class": _name(type(value))}

    def _fields(self, value: Any, shape: _Shape) -> Json:
        """An instance of a class whose state is recorded."""
        if again := self._again(value):
            return again
        if shape.kind == "namedtuple":
            return self._object(shape, dict(zip(value._fields, value, strict=True)))
        state = dict(getattr(value, "__dict__", ()))
        for name in shape.names:
            if hasattr(value, name):
                state[name] = getattr(value, name)
        if shape.kind == "module":
            own = {name: item for name, item in state.items() if name not in _MODULE_OWN}
            own |= value._parameters | value._buffers | value._modules | {"training": value.training}
            return self._object(shape, own)
        return self._object(shape, state)

    def _object(self, shape: _Shape, state: dict[str, Any]) -> Json:
        fields = {str(name): self(item) for name, item in state.items()}
        return {"object": {"class": shape.name, "kind": shape.kind, "fields": fields}}

    def generator(self, value: torch.Generator, index: int) -> dict[str, Any]:
        """Device, seed, offset (where it has one) and number of the state of a generator. Nothing is drawn from it."""
        states, device = self.states, value.device
        states.append(value.get_state())
        return {
            "index": index,
            "device": _text(device),
            "seed": value.initial_seed(),
            "offset": value.get_offset() if device.type == "cuda" else None,
            "state": len(states) - 1,
        }

    def state(self, data: bytes | torch.Tensor) -> int:
        """Keep a generator state, bytes or a tensor of its own; its number."""
        self.states.append(data)
        return len(self.states) - 1

    def memory(self) -> list[Memory]:
        """What the values lie in, in the order of the numbers of storages. Nothing is copied."""
        found = []
        for _, entry in self._storages.values():
            start = entry.first & -64
            found.append(
                Memory(
                    start,
                    entry.last - start,
                    entry.whole,
                    entry.device,
                    entry.owner,
                    entry.address + start,
                    entry.input,
                )
            )
        return found


def changed(memory: Memory, before: int) -> bool | None:
    """Whether memory is not as it was; None when that would take too long to know.

    On a device it is not known yet, and so it may be. In large memory some places are looked at: a sampler that works
    on all logits in place is seen by that.

    Args:
        before: address of its copy.
    """
    owner, size = memory.owner, memory.size
    if isinstance(owner, torch.UntypedStorage) and owner.data_ptr() + memory.start != memory.address:
        return False  # resized by the call: its old memory is gone
    if memory.device != "cpu":
        return True
    if size <= LARGE:
        return bool((_compare_small if size <= SMALL else _compare)(memory.address, before, size))
    for place in [*range(0, size - _LOOK, size // _LOOKS), size - _LOOK]:
        if _compare_small(memory.address + place, before + place, _LOOK):
            return True
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """How instances of a class are recorded: the class's name, the kind of object, attributes beyond its `__dict__`."""

    name: str
    kind: str
    names: tuple[str, ...]


Handler = Callable[[Encoder, Any], Json]
_HANDLERS: dict[tuple[type, str, tuple[str, ...]], dict[type, Handler]] = {}
"""By kind of encoder, package and opaque modules: what encodes the instances of a class, as far as it was asked."""

_FIXED: dict[type, Handler] = {
    torch.Tensor: Encoder._tensor,
    torch.nn.Parameter: Encoder._tensor,
    torch.Generator: Encoder._generator,
    list: Encoder._list,
    tuple: Encoder._tuple,
    dict: Encoder._dict,
    np.ndarray: Encoder._array,
}

_BY_BASE: tuple[tuple[Any, Handler], ...] = (
    (torch.Tensor, Encoder._subclass),
    (torch.Generator, Encoder._generator),
    (enum.Enum, lambda _, value: {"enum": {"class": _name(type(value)), "name": value.name}}),
    (np.generic, Encoder._scalar),
    (torch.dtype, lambda _, value: {"dtype": str(value).removeprefix("torch.")}),
    (np.dtype, lambda _, value: {"numpy dtype": value.str}),
    (torch.device, lambda _, value: {"device": str(value)}),
    (torch.Size, lambda _, value: {"size": list(value)}),
    (bytes, lambda _, value: {"bytes": value.hex()}),
    (complex, lambda encoder, value: {"complex": [encoder(value.real), encoder(value.imag)]}),
    ((range, slice), Encoder._parts),
    ((types.MethodType, types.BuiltinMethodType), Encoder._method),
    (_CODE, lambda _, value: {"symbol": _name(value)}),
)
"""What is encoded by the first class here that its own is one of."""


def _by_class(kind: type, package: str, opaque: tuple[str, ...]) -> Handler:
    """What encodes instances of a class."""
    for base, handler in _BY_BASE:
        if issubclass(kind, base):
            return handler
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _having(_Shape(_name(kind), "namedtuple", ()))
    if issubclass(kind, dict):
        return Encoder._mapping
    if issubclass(kind, set | frozenset):
        return Encoder._set
    if issubclass(kind, list | tuple | str | int | float):
        return _refusing(kind, "a subclass of a plain type")
    module = kind.__module__
    if any(module == prefix or module.startswith(prefix + ".") for prefix in opaque):
        return _refusing(kind, "its state is not recorded")
    # msgspec's structs name their fields in their own way.
    names = list(getattr(kind, "__struct_fields__", ()))
    for cls in kind.__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    has_dict = any("__dict__" in cls.__dict__ for cls in kind.__mro__)
    shape = _Shape(_name(kind), "object", tuple(n for n in names if n not in ("__dict__", "__weakref__")))
    if issubclass(kind, torch.nn.Module):
        return _having(dataclasses.replace(shape, kind="module"))
    if dataclasses.is_dataclass(kind):
        return _having(dataclasses.replace(shape, kind="dataclass"))
    if not names and not has_dict:
        return _refusing(kind, "its state cannot be seen")
    if module.partition(".")[0] == package:
        return _having(shape)
    return _refusing(kind, "an object of another package")


def _having(shape: _Shape) -> Handler:
    return lambda encoder, value: encoder._fields(value, shape)


def _refusing(kind: type, why: str) -> Handler:
    return lambda _, value: _opaque(kind, why)


@functools.cache
def _text(value: torch.device) -> str:
    return str(value)


@functools.cache
def _dtype(value: torch.dtype) -> str:
    return str(value).removeprefix("torch.")


def cuda_in_use() -> bool:
    """Whether this process has begun to use CUDA; asking does not begin it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


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


def _name(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return f"{value.__name__}:"
    module = getattr(value, "__module__", None) or type(value).__module__
    return f"{module}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _opaque(kind: type, why: str) -> Json:
    return {"opaque": {"class": _name(kind), "why": why}}
