"""A live value as JSON plus the memory behind it, taken quickly and without touching the value. Needs torch.

What each form means is said in `difftest/schema/capture.json`; :mod:`difftest.record.decode` reads them back.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import math
import struct
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from difftest.record.lines import MAX_DEPTH

Json = Any

SMALL = 256 << 10
"""Storages up to this many bytes in CPU memory are copied as bytes, larger ones as tensors."""

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
    """The copied bytes of one storage, as far as recorded views reach.

    Attributes:
        data: bytes, or a uint8 tensor where the storage was (its own copy), or None: left out, too large.
        start, size: which bytes of the storage these are.
        whole: bytes in the whole storage.
        device: where it was.
        input: for outputs, the number of the input storage that is the same memory.
    """

    data: bytes | torch.Tensor | None
    start: int
    size: int
    whole: int
    device: str
    input: int | None = None


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
        states: generator states as bytes, by their number.
        package: as given.
    """

    __slots__ = (
        "_alive",
        "_depth",
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
        self.states: list[bytes] = []
        self.package = package
        self._opaque = opaque
        self._rename = rename
        self._storages: dict[tuple[str, int], tuple[int, _Storage]] = {}
        self._input_storages = inputs._storages if inputs is not None else {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._depth = 0

    def __call__(self, value: Any) -> Json:
        """The value as JSON. Never raises for a value that it cannot record: that is opaque, with the reason."""
        kind = type(value)
        if value is None or kind is int or kind is bool:
            return value
        if kind is str:
            return value if self._rename is None else self._rename(value)
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if self._depth >= MAX_DEPTH // 2:
            return _opaque(kind, "nested too deeply")
        self._depth += 1
        mark, depth = len(self._numbers), self._depth
        node = self._guarded(value, kind)
        self._depth = depth - 1
        if type(node) is dict and "opaque" in node:
            # What was numbered inside it is not written, so the reader will not count it.
            while len(self._numbers) > mark:
                self._numbers.popitem()
        return node

    def _guarded(self, value: Any, kind: type) -> Json:
        try:
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                return self._tensor(value)
            if kind is list:
                return self._list(value)
            if kind is tuple:
                return {"tuple": self._items(value)}
            if kind is np.ndarray:
                return self._array(value)
            if kind is dict:
                return self._numbered(value) or {"dict": self._pairs(value)}
            return self._other(value, kind)
        except Exception as error:
            return _opaque(kind, f"{type(error).__name__}: {str(error)[:200]}")

    def _numbered(self, value: Any) -> Json | None:
        number = self._numbers.get(id(value))
        if number is not None:
            return {"again": number}
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return None

    def _list(self, value: list[Any]) -> Json:
        return self._numbered(value) or self._items(value)

    def _items(self, value: Any) -> list[Json]:
        kinds = set(map(type, value))
        if kinds == _INTS:
            return list(value)
        if kinds == _LISTS and self._depth < MAX_DEPTH // 2:
            # The tokens of each request: many short lists, so the way to them is short too.
            self._depth += 1
            items = [self._list(item) for item in value]
            self._depth -= 1
            return items
        return [self(item) for item in value]

    def _pairs(self, value: Any) -> list[list[Json]]:
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
            self._storages[key] = found = (len(self._storages), entry)
            self._alive.append(owner)
        else:
            entry = found[1]
            if first < entry.first:
                entry.first = first
            if last > entry.last:
                entry.last = last
        return found[0]

    def _tensor(self, value: torch.Tensor) -> Json:
        if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
            return _opaque(type(value), f"layout {value.layout}, device {value.device}")
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        storage = value.untyped_storage()
        shape, strides, offset = tuple(value.shape), value.stride(), int(value.storage_offset())
        size = value.element_size()
        first = last = 0
        if value.numel():
            first = offset * size
            last = (offset + 1) * size
            for n, stride in zip(shape, strides, strict=True):
                last += (n - 1) * stride * size
        device = _text(value.device)
        number = self._view(device, storage.data_ptr(), storage.nbytes(), first, last, storage)
        return {
            "tensor": {
                "storage": number,
                "dtype": _text(value.dtype)[6:],
                "offset": offset,
                "shape": list(shape),
                "strides": list(strides),
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

    def _other(self, value: Any, kind: type) -> Json:
        if isinstance(value, torch.Tensor):
            if getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__:
                return _opaque(kind, "a tensor subclass with its own dispatch")
            return self._tensor(value.detach().as_subclass(torch.Tensor))
        if isinstance(value, torch.Generator):
            return self._numbered(value) or self._generator(value)
        if isinstance(value, enum.Enum):
            return {"enum": {"class": _name(kind), "name": value.name}}
        if isinstance(value, np.generic):
            if value.dtype.kind not in "biufc":
                return _opaque(kind, f"dtype {value.dtype}")
            return {"scalar": {"dtype": value.dtype.str, "bytes": value.tobytes().hex()}}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value)[6:]}
        if isinstance(value, np.dtype):
            return {"numpy dtype": value.str}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, torch.Size):
            return {"size": list(value)}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, complex):
            return {"complex": [self(value.real), self(value.imag)]}
        if isinstance(value, range | slice):
            parts = [value.start, value.stop, value.step]
            if not all(part is None or type(part) is int for part in parts):
                return _opaque(kind, "its parts are no integers")
            return {kind.__name__: parts}
        if isinstance(value, types.MethodType | types.BuiltinMethodType):
            owner = value.__self__
            if owner is not None and not isinstance(owner, types.ModuleType):
                return {"method": {"self": self(owner), "name": value.__name__}}
        if isinstance(value, _CODE):
            return {"symbol": _name(value)}
        return self._numbered(value) or self._object(value, kind)

    def _generator(self, value: torch.Generator) -> Json:
        self.generators.append(value)
        return {"generator": {"index": len(self.generators) - 1, **self.generator(value)}}

    def generator(self, value: torch.Generator) -> dict[str, Any]:
        """Device, seed, offset (where it has one) and number of the state of a generator. Nothing is drawn from it."""
        return {
            "device": _text(value.device),
            "seed": value.initial_seed(),
            "offset": value.get_offset() if value.device.type == "cuda" else None,
            "state": self.state(generator_state(value)),
        }

    def state(self, data: bytes) -> int:
        """Keep the bytes of a generator state; its number."""
        self.states.append(data)
        return len(self.states) - 1

    def _object(self, value: Any, kind: type) -> Json:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._fields(kind, "namedtuple", dict(zip(value._fields, value, strict=True)))
        if isinstance(value, dict):
            return {"dict": self._pairs(value), "class": _name(kind)}
        if isinstance(value, set | frozenset):
            return {"set": [self(item) for item in sorted(value, key=repr)], "class": _name(kind)}
        if isinstance(value, list | tuple | str | int | float):
            return _opaque(kind, "a subclass of a plain type")
        module = kind.__module__
        if any(module == prefix or module.startswith(prefix + ".") for prefix in self._opaque):
            return _opaque(kind, "its state is not recorded")
        state = dict(getattr(value, "__dict__", ()))
        visible = hasattr(value, "__dict__")
        # msgspec's structs name their fields in their own way.
        for name in getattr(kind, "__struct_fields__", ()):
            state[name] = getattr(value, name)
        visible = visible or bool(state)
        for cls in kind.__mro__:
            slots = cls.__dict__.get("__slots__", ())
            visible = visible or bool(slots)
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                    state[slot] = getattr(value, slot)
        if isinstance(value, torch.nn.Module):
            own = {name: item for name, item in state.items() if name not in _MODULE_OWN}
            own |= value._parameters | value._buffers | value._modules | {"training": value.training}
            return self._fields(kind, "module", own)
        if dataclasses.is_dataclass(value):
            return self._fields(kind, "dataclass", state)
        if not visible:
            return _opaque(kind, "its state cannot be seen")
        if module.partition(".")[0] == self.package:
            return self._fields(kind, "object", state)
        return _opaque(kind, "an object of another package")

    def _fields(self, kind: type, sort: str, state: dict[str, Any]) -> Json:
        fields = {str(name): self(item) for name, item in state.items()}
        return {"object": {"class": _name(kind), "kind": sort, "fields": fields}}

    def memory(self, largest: int) -> list[Memory]:
        """Copies of the storages met so far, in the order of their numbers.

        Args:
            largest: bytes; what is larger is left out, and says so.
        """
        return [self._copy(entry, largest) for _, entry in self._storages.values()]

    def _copy(self, entry: _Storage, largest: int) -> Memory:
        start = entry.first // 64 * 64
        size = entry.last - start
        memory = Memory(b"", start, size, entry.whole, entry.device, entry.input)
        if size > largest:
            memory.data = None
        elif size and entry.device == "cpu" and (size <= SMALL or not isinstance(entry.owner, torch.UntypedStorage)):
            memory.data = ctypes.string_at(entry.address + start, size)
        elif size:
            whole = torch.empty(0, dtype=torch.uint8, device=entry.owner.device)
            memory.data = whole.set_(entry.owner, start, (size,), (1,)).clone()
        return memory


@functools.cache
def _text(value: torch.dtype | torch.device) -> str:
    return str(value)


def cuda_in_use() -> bool:
    """Whether this process has begun to use CUDA; asking does not begin it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def generator_state(value: torch.Generator) -> bytes:
    """The whole state of a torch generator."""
    state = value.get_state()
    return ctypes.string_at(state.data_ptr(), state.nbytes)


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
