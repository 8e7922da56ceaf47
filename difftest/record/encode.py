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
from typing import Any, ClassVar

import numpy as np
import torch

from difftest.record.lines import MAX_DEPTH

Json = Any

SMALL = 256 << 10
"""Storages up to this many bytes in CPU memory are copied as bytes, larger ones as tensors."""

PACKED = 1 << 20
"""Storages up to this many bytes in a device's memory are copied together, by one operation."""

REUSED = 512 << 20
"""Bytes of memory for copies that may wait to be used again."""

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
class Rows:
    """A list of lists of integers, copied and not yet JSON: the tokens of each request."""

    data: bytes

    def lists(self) -> list[list[int]]:
        found: list[list[int]] = marshal.loads(self.data)
        return found


@dataclasses.dataclass(slots=True)
class _Storage:
    address: int
    whole: int
    device: str
    first: int
    last: int
    owner: Any
    input: int | None = None


class Buffer:
    """A copy in CPU memory, which is used again for the next one when nobody holds this one any more.

    Memory that is new costs more than the copy: the kernel hands it out page by page.

    Args:
        view: what is copied, uint8, in CPU memory.

    Attributes:
        tensor: the copy.
    """

    __slots__ = ("_whole", "tensor")

    free: ClassVar[dict[int, list[torch.Tensor]]] = {}
    """Memory that waits to be used again, by its bytes."""

    def __init__(self, view: torch.Tensor) -> None:
        size = view.numel()
        step = max(1 << size.bit_length() >> 4, 1)
        room = -(-size // step) * step
        try:
            self._whole = Buffer.free[room].pop()
        except (KeyError, IndexError):
            self._whole = torch.empty(room, dtype=torch.uint8)
        self.tensor = self._whole[:size].copy_(view)

    def __del__(self) -> None:
        waiting = Buffer.free.setdefault(self._whole.numel(), [])
        if sum([room * len(those) for room, those in list(Buffer.free.items())]) + self._whole.numel() <= REUSED:
            waiting.append(self._whole)


@dataclasses.dataclass(slots=True)
class Pack:
    """Small storages of one device, copied one after the other into one tensor, uint8."""

    data: torch.Tensor


@dataclasses.dataclass(slots=True)
class Memory:
    """The copied bytes of one storage, as far as recorded views reach.

    Attributes:
        data: bytes; or a buffer; or a uint8 tensor on the storage's own device; or a pack that has them from byte `at`
            on; or None: left out, too large.
        start, size: which bytes of the storage these are.
        whole: bytes in the whole storage.
        device: where it was.
        input: for outputs, the number of the input storage that is the same memory.
        at: see `data`.
    """

    data: bytes | Buffer | torch.Tensor | Pack | None
    start: int
    size: int
    whole: int
    device: str
    input: int | None = None
    at: int = 0


@dataclasses.dataclass(slots=True)
class Again:
    """The copied bytes of an input storage after the call, when they may have changed: its number, before and after."""

    number: int
    before: Memory
    after: Memory


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
        """The value as JSON, but for :class:`Rows`. Never raises for a value that it cannot record: that is opaque."""
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

    def _rows(self, value: list[list[Any]]) -> Rows | None:
        """A list of lists of integers, each list numbered; None when it is not that.

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
        return Rows(data)

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

    def memory(self, largest: int) -> list[Memory]:
        """Copies of the storages met so far, in the order of their numbers.

        Args:
            largest: bytes; what is larger is left out, and says so.
        """
        found = []
        for _, entry in self._storages.values():
            start = entry.first // 64 * 64
            size = entry.last - start
            found.append(Memory(b"" if size <= largest else None, start, size, entry.whole, entry.device, entry.input))
        _copy([entry for _, entry in self._storages.values()], found)
        return found

    def again(self, before: list[Memory]) -> list[Again]:
        """Copies of the storages that are not as they were before the call, or on a device and so not yet known to be.

        Args:
            before: what :meth:`memory` gave.
        """
        entries, found = [], []
        for (number, entry), memory in zip(self._storages.values(), before, strict=True):
            data = memory.data
            if data is None or not memory.size:
                continue
            owner = entry.owner
            if isinstance(owner, torch.UntypedStorage) and owner.data_ptr() != entry.address:
                continue  # resized by the call: its old memory is gone
            address = entry.address + memory.start
            if type(data) is bytes:
                compare = _compare_small if memory.size <= SMALL else _compare
                if compare(address, data, memory.size) == 0:
                    continue
            elif type(data) is Buffer and _compare(address, data.tensor.data_ptr(), memory.size) == 0:
                continue
            entries.append(entry)
            found.append(Again(number, memory, dataclasses.replace(memory, data=b"")))
        _copy(entries, [item.after for item in found])
        return found


def _copy(entries: list[_Storage], memories: list[Memory]) -> None:
    """Copy bytes of storages into memories that are to have them (their `data` is empty); on a device in few steps."""
    packs: dict[str, tuple[list[torch.Tensor], list[Memory]]] = {}
    for entry, memory in zip(entries, memories, strict=True):
        size = memory.size
        if memory.data is None or not size:
            continue
        if entry.device == "cpu" and (size <= SMALL or not isinstance(entry.owner, torch.UntypedStorage)):
            memory.data = ctypes.string_at(entry.address + memory.start, size)
            continue
        view = torch.empty(0, dtype=torch.uint8, device=entry.owner.device)
        view.set_(entry.owner, memory.start, (size,), (1,))
        if size > PACKED or entry.device == "cpu":
            memory.data = Buffer(view) if entry.device == "cpu" else view.clone()
            continue
        views, packed = packs.setdefault(entry.device, ([], []))
        memory.at = packed[-1].at + packed[-1].size if packed else 0
        views.append(view)
        packed.append(memory)
    for views, packed in packs.values():
        pack = Pack(torch.cat(views))
        for memory in packed:
            memory.data = pack


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
