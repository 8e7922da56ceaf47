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
    ("pages", "torch.float32", shape, strides, offset, ((page, digest), ...))         a very large input
    ("generator", device, state bytes)
    ("function", "name", digest of its code, (("name", frozen), ...))                 :mod:`difftest.call.functions`
    ("opaque", "ClassName")                                                           compared by class only
    ("deep", "ClassName")                                                             nested beyond DEPTH levels
    ("again", "ClassName", n)                                                         the nth object that can change
An array that is more than its elements has a seventh member, (("requires_grad", frozen), ...): :func:`_marks`.
Strides of axes that no element steps along are 0: nothing can depend on them.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import re
import struct
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, cast

import numpy as np
import torch

from difftest.call import functions, padding
from difftest.call.rng import held_state, tensor_bytes
from difftest.call.values import LARGE, storage_bytes, written_pages

Frozen = tuple[Any, ...]
_Marks = tuple[tuple[tuple[str, Frozen], ...], ...]

DEPTH = 100
"""Containers are followed this deep, so that what is nested without end comes to one."""

_INT_ONLY = frozenset({int})
_FLOAT_ONLY = frozenset({float})
_LIST_ONLY = frozenset({list})
_pack_float = struct.Struct("<d").pack
_PLAIN = (int, bool, bytes, type(None))
_ARM = "difftest"
"""In every name that differs between the arms by the arm only: of modules, and of the folders of their files."""
_OF_COMPILER = ("_dynamo", "_has_dynamo", "_specialize")  # attributes that torch's compiler gives a tensor
_ENUM_VALUES = (int, float, complex, str, bytes, tuple, list, dict, set, frozenset, torch.Tensor, type(None))
_CONTENTLESS = (object, type(threading.Lock()), type(threading.RLock()), type(...), type(NotImplemented))
_PRINTED = (
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.finfo, torch.iinfo, np.dtype, range,
    slice, types.GenericAlias, types.UnionType,
)  # fmt: skip
_PRINTED_KEYS = (bool, int, float, complex, frozenset, enum.Enum, np.generic, torch.dtype, torch.device)
_TRUE: Frozen = ("bool", True)
_plain_keys = {torch._C._dispatch_keys(torch.empty(0)).raw_repr()}
"""Dispatch keys of a tensor that is one strided block of numbers and nothing else; one look instead of five."""


class Freezer:
    """Freezes values, one root after another; remembers every array and every object that can change, for the alias
    graph.

    Args:
        whole: freeze the whole storage of each tensor, gaps and guard rows included, as inputs need.
        scrub: takes out of a text what differs between arms by name only.

    Attributes:
        name: the root that is being frozen now.
        memory: (name, address of the first element, address of the storage, its bytes) of each array met, in order.
        objects: per root, its lists, dicts, sets and objects: `id` -> number in the order met.
        strict: what is frozen is a return value. Functions count by what they do, and what cannot be read is `unread`;
            of objects that a call is given and keeps, the classes are all that is asked there.
        unread: what could not be read, in words, so that nothing can be said of its content.
    """

    __slots__ = (
        "_alive", "_depth", "_functions", "_seen", "_whole", "memory", "name", "objects", "scrub", "strict", "unread",
    )  # fmt: skip

    def __init__(self, whole: bool = False, scrub: Callable[[str], str] = str) -> None:
        self.memory: list[tuple[str, int, int, int]] = []
        self.unread: list[str] = []
        self.scrub = scrub
        self.name = ""
        self._whole = whole
        self._depth = 0
        self._seen: dict[int, int] = {}
        self.objects: list[tuple[str, dict[int, int]]] = [("", self._seen)]
        self._alive: list[Any] = []
        self._functions: dict[int, int] = {}
        self.strict = not whole

    def root(self, name: str, value: Any) -> Frozen:
        """Freeze a value of code under test, whose properties may raise anything. `name` is said with its arrays."""
        self.name = name
        self._depth = 0
        self._seen = {}
        self.objects.append((name, self._seen))
        try:
            return self(value)
        except BaseException as error:
            words = f"{type(value).__name__} that cannot be read: {type(error).__qualname__}"
            self._unread(words)
            return ("opaque", words)

    def __call__(self, value: Any) -> Frozen:
        kind = type(value)
        if kind is list or kind is tuple:
            if kind is list:
                key = id(value)
                if key in self._seen:
                    return ("again", "list", self._seen[key])
                self._seen[key] = len(self._seen)
                self._alive.append(value)
            kinds = set(map(type, value))
            if kinds == _INT_ONLY:
                return ("ints", kind.__name__, tuple(value))
            if not kinds:
                return ("items", kind.__name__, ())
            if kinds == _FLOAT_ONLY:
                return ("items", kind.__name__, tuple([("float", _pack_float(item)) for item in value]))
            if kinds == _LIST_ONLY and (rows := self._rows(value)):
                return ("items", kind.__name__, rows)
            return self._nested(self._sequence, value, kind.__name__)
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind in _PLAIN:
            return (kind.__name__, value)
        if kind is str:
            return ("str", self.scrub(value) if _ARM in value else value)
        if kind is float:
            return ("float", _pack_float(value))
        if kind is np.ndarray:
            return self._array(value)
        if kind is dict:
            return self._once(self._mapping, value)
        return self._nested(self._other, value, kind.__name__)

    def met(self, value: Any) -> bool:
        """Whether an object that can change was met under this root."""
        return id(value) in self._seen

    def function_once(self, value: Any, freeze: Callable[[Freezer, Any], Frozen]) -> Frozen:
        """Freeze a function or class, which may use itself. They have no part in the alias graph."""
        key = id(value)
        if key in self._functions:
            return ("reference", f"{type(value).__name__} {self._functions[key]} of those met before")
        self._functions[key] = len(self._functions)
        self._alive.append(value)
        return self._nested(functools.partial(freeze, self), value, type(value).__name__)

    def _unread(self, words: str) -> None:
        if self.strict:
            self.unread.append(f"{words}, whose content cannot be read")

    def _rows(self, value: Any) -> tuple[Frozen, ...]:
        """Lists of ints in one go, the usual token ids of a batch; nothing when it is anything else."""
        keys = list(map(id, value))
        if len(set(keys)) < len(keys) or not self._seen.keys().isdisjoint(keys) or self._depth >= DEPTH:
            return ()
        found = []
        for row in value:
            if row and set(map(type, row)) != _INT_ONLY:
                return ()
            found.append(("ints", "list", tuple(row)) if row else ("items", "list", ()))
        self._seen.update(zip(keys, range(len(self._seen), len(self._seen) + len(keys)), strict=True))
        self._alive.append(value)
        return tuple(found)

    def _nested(self, freeze: Callable[[Any], Frozen], value: Any, name: str) -> Frozen:
        if self._depth >= DEPTH:
            self.unread.append(f"something nested deeper than {DEPTH} levels")
            return ("deep", name)
        self._depth += 1
        found = freeze(value)
        self._depth -= 1
        return found

    def _once(self, freeze: Callable[[Any], Frozen], value: Any) -> Frozen:
        """Freeze an object that can change, or say that it was met before."""
        key, name = id(value), type(value).__name__
        if key in self._seen:
            return ("again", name, self._seen[key])
        self._seen[key] = len(self._seen)
        self._alive.append(value)
        return self._nested(freeze, value, name)

    def _sequence(self, value: Any) -> Frozen:
        name = type(value).__name__
        if set(map(type, value)) == _INT_ONLY:
            return ("ints", name, tuple(value))
        return ("items", name, tuple([self(item) for item in value]))

    # -- arrays ---------------------------------------------------------------------------------------------------

    def _tensor(self, value: torch.Tensor) -> Frozen:
        marks: _Marks = ()
        if value.requires_grad or value.grad is not None or value.__dict__ or _keys(value) not in _plain_keys:
            if value.layout is not torch.strided or value.is_nested:
                return self._sparse(value)
            marks = self._marks(value)
        on_host = value.is_cpu
        device = "cpu" if on_host else value.device.type
        shape = tuple(value.shape)
        strides = _relevant(shape, value.stride())
        dtype = _dtype_name(value.dtype)
        if device == "meta":
            return ("tensor", dtype, shape, strides, device, b"", *marks)
        storage = value.untyped_storage()
        size = storage.nbytes()
        if size and value.numel():  # an empty view has no address
            self.memory.append((self.name, value.data_ptr(), storage.data_ptr(), size))
        if self._whole:
            place = (dtype, shape, value.stride(), value.storage_offset())
            if size >= LARGE:
                return ("pages", *place, written_pages(storage), *marks)
            if not on_host:
                storage = storage.cpu()  # type: ignore[no-untyped-call]
            return ("storage", *place, storage_bytes(storage), *marks)
        plain = value.detach()
        if not on_host:
            plain = plain.cpu()
        if marks and (plain.is_conj() or plain.is_neg()):
            plain = plain.resolve_conj().resolve_neg()
        if not plain.is_contiguous():
            plain = plain.contiguous()
        return ("tensor", dtype, shape, strides, device, tensor_bytes(plain), *marks)

    def _marks(self, value: torch.Tensor) -> _Marks:
        """What a tensor is beyond its elements, where it is anything: part of autograd, lazily conjugated, quantized,
        with attributes that code gave it."""
        marks: dict[str, Any] = {
            "requires_grad": value.requires_grad,
            "grad_fn": value.grad_fn is not None,
            "inference": value.is_inference(),
            "conj": value.is_conj(),
            "neg": value.is_neg(),
            "hooks": len(getattr(value, "_backward_hooks", None) or ()),
        }
        found = {name: mark for name, mark in marks.items() if mark}
        if value.is_leaf and value.grad is not None:  # asking it of any other tensor warns
            found["grad"] = value.grad
        if value.is_quantized:
            found["qscheme"] = str(value.qscheme())
            if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
                found |= {"scale": value.q_scale(), "zero_point": value.q_zero_point()}
            else:
                found |= {
                    "scale": value.q_per_channel_scales(),
                    "zero_point": value.q_per_channel_zero_points(),
                    "axis": value.q_per_channel_axis(),
                }
        found |= {name: item for name, item in sorted(vars(value).items()) if not name.startswith(_OF_COMPILER)}
        return (tuple([(name, self._nested(self, mark, name)) for name, mark in found.items()]),) if found else ()

    def _sparse(self, value: torch.Tensor) -> Frozen:
        """A tensor that is not one strided block: what it is made of."""
        parts: dict[str, Any] = {"layout": str(value.layout)}
        nested = value.is_nested
        if nested:
            parts["tensors"] = list(value.unbind())
        elif value.layout is torch.sparse_coo:
            parts |= {"indices": value._indices(), "values": value._values(), "coalesced": value.is_coalesced()}
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts |= {"rows": value.crow_indices(), "columns": value.col_indices(), "values": value.values()}
        elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts |= {"rows": value.row_indices(), "columns": value.ccol_indices(), "values": value.values()}
        else:
            parts["dense"] = value.to_dense()
        if not nested:
            parts["shape"] = tuple(value.shape)
        frozen = [(name, self(part)) for name, part in parts.items()]
        if not nested:
            frozen += [mark for marks in self._marks(value) for mark in marks]
        return ("fields", "Tensor", tuple(frozen))

    def _tensor_subclass(self, value: torch.Tensor) -> Frozen:
        if value.layout is torch.jagged:
            return self._sparse(value)
        with torch._C.DisableTorchFunctionSubclass():
            flatten = getattr(value, "__tensor_flatten__", None)
            if flatten is None:
                # Of the tensor itself, since any view of it has another place in autograd.
                plain = self._tensor(value)
            else:
                names, _ = flatten()
                inner = tuple([(name, self(getattr(value, name))) for name in names])
                plain = ("fields", "Tensor", (*inner, ("shape", self(tuple(value.shape)))))
        return ("fields", type(value).__name__, (("data", plain),))

    def _array(self, value: np.ndarray[Any, Any]) -> Frozen:
        if value.dtype.hasobject:
            items = value.ravel().tolist()
            self._alive.append(items)
            fields = f" {_fields_of(value.dtype)}" if value.dtype.names is not None else ""
            return ("items", f"ndarray[object]{fields} {value.shape}", tuple([self(item) for item in items]))
        if value.dtype.names is not None:  # a structured array: the names and types of its fields count too
            plain = self._numbers(value, f"|V{value.dtype.itemsize}")
            return ("fields", "ndarray", (("dtype", ("str", _fields_of(value.dtype))), ("data", plain)))
        return self._numbers(value, value.dtype.str)

    def _numbers(self, value: np.ndarray[Any, Any], dtype: str) -> Frozen:
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        if base.nbytes:
            first = value.__array_interface__["data"][0]
            root = base.__array_interface__["data"][0] if base is not value else first
            self.memory.append((self.name, first, root, base.nbytes))
        strides = _relevant(value.shape, value.strides)
        frozen = ("ndarray", dtype, value.shape, strides, "", padding.array_bytes(value))
        return frozen if value.flags.writeable else (*frozen, (("read-only", _TRUE),))

    def _array_subclass(self, value: np.ndarray[Any, Any]) -> Frozen:
        parts = [("data", self._array(value.view(np.ndarray)))]
        if isinstance(value, np.ma.MaskedArray):
            parts += [("mask", self(np.ma.getmaskarray(value))), ("fill_value", self(value.fill_value))]
        elif not isinstance(value, np.memmap):
            parts += self._attributes(value)
        return ("fields", type(value).__name__, tuple(parts))

    # -- everything else ------------------------------------------------------------------------------------------

    def _mapping(self, value: Mapping[Any, Any]) -> Frozen:
        keyed = [(self._key(key), item) for key, item in value.items()]
        keyed.sort(key=lambda item: item[0])  # first, since objects are numbered in the order met
        items = [(name, self(item)) for name, item in keyed]
        names = collections.Counter(name for name, _ in items)
        if len(names) < len(items):  # keys that read alike are told apart by their order
            numbers = {name: iter(range(count)) for name, count in names.items()}
            items = [(f"{name} #{next(numbers[name]) + 1}" if names[name] > 1 else name, item) for name, item in items]
        return ("dict", type(value).__name__, tuple(items))

    def _key(self, key: Any) -> str:
        """A key of a dict in a few words that tell it from others."""
        if type(key) is int:
            return str(key)
        if type(key) in (str, bytes):
            text = repr(key)
            return self.scrub(text) if _ARM in text else text
        if isinstance(key, tuple):
            return f"({', '.join(map(self._key, key))})"
        name = type(key).__name__
        if key is None or isinstance(key, _PRINTED_KEYS):
            return f"{name} {key!r}"
        frozen = Freezer(scrub=self.scrub)(key)
        if len(frozen) == 2:
            return f"{name} {frozen[1]}"
        return f"{name} {hashlib.blake2b(repr(frozen).encode(), digest_size=4).hexdigest()}"

    def _other(self, value: Any) -> Frozen:
        """A value that is none of the usual ones: immutable kinds first, then what can change."""
        kind = type(value)
        name = kind.__name__
        if isinstance(value, torch.Tensor):
            return self._tensor_subclass(value)
        if isinstance(value, np.ndarray):
            return self._array_subclass(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ("fields", name, tuple([(n, self(i)) for n, i in zip(value._fields, value, strict=True)]))
        if isinstance(value, np.generic):
            return self._numpy_scalar(value)
        if isinstance(value, enum.Enum):
            held = value.value
            return ("enum " + name, value.name, self(held) if isinstance(held, _ENUM_VALUES) else type(held).__name__)
        if (state := held_state(value)) is not None:
            return ("generator", *state)
        if isinstance(value, complex):
            number = complex.__complex__(value)
            return self._with_attributes(value, (name, struct.pack("<dd", number.real, number.imag)))
        if isinstance(value, _PRINTED):
            return (name, str(value))
        if isinstance(value, PurePath):
            return (name, self.scrub(str(value)))
        if kind is re.Pattern:
            return ("fields", name, (("pattern", self(value.pattern)), ("flags", ("int", value.flags))))
        if functions.is_function(value):
            return functions.freeze(self, value)
        if isinstance(value, frozenset):
            return self._with_attributes(value, ("items", name, self._unordered(value)))
        if isinstance(value, tuple):
            return self._with_attributes(value, self._sequence(value))
        if isinstance(value, int | float | str | bytes):  # a subclass of a plain type
            return self._plain_subclass(value)
        if dataclasses.is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen:  # noqa: B009
            return self._dataclass(value)
        if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
            return self._storage(value)
        if kind in _CONTENTLESS:
            return ("opaque", name)
        return self._once(self._mutable, value)

    def _mutable(self, value: Any) -> Frozen:
        kind = type(value)
        name = kind.__name__
        if isinstance(value, list):
            return self._with_attributes(value, self._sequence(value))
        if isinstance(value, Mapping):
            content = self._mapping(value)
            if isinstance(value, collections.defaultdict):
                content = ("fields", name, (("content", content), ("factory", self(value.default_factory))))
            elif isinstance(value, collections.OrderedDict):
                order = ("items", "list", tuple([("str", self._key(key)) for key in value]))
                content = ("fields", name, (("content", content), ("order", order)))
            return self._with_attributes(value, content)
        if isinstance(value, set):
            return self._with_attributes(value, ("items", name, self._unordered(value)))
        if isinstance(value, bytearray | memoryview):
            return (name, padding.buffer_bytes(memoryview(value)))
        if isinstance(value, collections.deque):
            items = ("items", name, tuple([self(item) for item in value]))
            content = ("fields", name, (("content", items), ("maxlen", self(value.maxlen))))
            return self._with_attributes(value, content)
        if isinstance(value, collections.abc.MappingView):
            held = list(cast(Any, value))
            ordered = isinstance(value, collections.abc.ValuesView)
            return ("items", name, tuple([self(item) for item in held]) if ordered else self._unordered(held))
        if isinstance(value, BaseException):
            return self._exception(value)
        if isinstance(value, functools.partial):
            parts = (("func", value.func), ("args", value.args), ("keywords", value.keywords))
            return ("fields", name, (*[(n, self(part)) for n, part in parts], *self._attributes(value)))
        if dataclasses.is_dataclass(value):
            return self._dataclass(value)
        if hasattr(value, "__dict__") or any(_slots(cls) for cls in kind.__mro__):
            attributes = tuple(self._attributes(value))
            if _compiled_base(cast(Any, kind)) is object or (made := _made_from(value)) is None:
                return ("fields", name, attributes)
            return ("fields", name, (*attributes, ("content", self._remade(made, getattr(value, "__dict__", None)))))
        return self._reduced(value)

    def _storage(self, value: Any) -> Frozen:
        """The memory of a tensor as an object of its own."""
        typed = isinstance(value, torch.TypedStorage)
        held = value._untyped_storage if typed else value
        data = torch.empty(0, dtype=torch.uint8, device=held.device).set_(held)
        parts = [("data", self._tensor(data)), ("dtype", ("str", str(value.dtype) if typed else ""))]
        return ("fields", type(value).__name__, tuple(parts))

    def _dataclass(self, value: Any) -> Frozen:
        names = [f.name for f in dataclasses.fields(value)]
        names += [n for n in getattr(value, "__dict__", ()) if n not in names]
        return ("fields", type(value).__name__, tuple([(n, self(getattr(value, n, None))) for n in sorted(names)]))

    def _attributes(self, value: Any) -> list[tuple[str, Frozen]]:
        """What an object holds in its `__dict__` and its slots, private ones included."""
        held = dict(getattr(value, "__dict__", None) or {})
        for cls in type(value).__mro__:
            held |= {n: getattr(value, n) for n in _slots(cls) if hasattr(value, n)}
        return [(n, self(held[n])) for n in sorted(held)]

    def _with_attributes(self, value: Any, content: Frozen) -> Frozen:
        attributes = self._attributes(value)
        return ("fields", type(value).__name__, (("content", content), *attributes)) if attributes else content

    def _unordered(self, values: Any) -> tuple[Frozen, ...]:
        return tuple(sorted((self(item) for item in values), key=repr))

    def _plain_subclass(self, value: Any) -> Frozen:
        plain = next(base for base in (int, float, str, bytes) if isinstance(value, base))
        name = type(value).__name__
        if plain is float:
            return ("fields", name, (("value", ("float", _pack_float(value))), *self._attributes(value)))
        return self._with_attributes(value, (name, plain.__str__(value)))

    def _numpy_scalar(self, value: np.generic) -> Frozen:
        if value.dtype.names is not None:
            kind = ("str", _fields_of(value.dtype))
            return ("fields", "numpy.void", (("dtype", kind), ("data", self(value.item()))))
        name = value.dtype.name if value.dtype.kind in "mM" else type(value).__name__  # with the unit of time
        return ("numpy." + name, padding.array_bytes(np.asarray(value)))

    def _exception(self, value: BaseException) -> Frozen:
        parts = {"args": value.args, "cause": value.__cause__, **getattr(value, "__dict__", {})}
        if isinstance(value, BaseExceptionGroup):
            parts["exceptions"] = value.exceptions
        return ("fields", type(value).__name__, tuple([(name, self(parts[name])) for name in sorted(parts)]))

    def _reduced(self, value: Any) -> Frozen:
        """An object of a compiled class, which has neither attributes nor slots: what it would be made from again."""
        name = type(value).__name__
        made = _made_from(value)
        if made is None:
            self._unread(name)
            return ("opaque", name)
        if isinstance(made, str):
            return (name, made)
        return ("fields", name, (("content", self._remade(made, None)),))

    def _remade(self, made: Any, known: Any) -> Frozen:
        """What pickle would make an object from, without the attributes that are `known`."""
        if isinstance(made, str):
            return ("str", made)
        self._alive.append(made)
        state = [item for item in made[2:3] if item is not known]
        content = (made[1], *state, *[list(items) for items in made[3:5] if items is not None])
        self._alive.append(content)
        return self(content)


def _keys(value: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(value).raw_repr())


def _made_from(value: Any) -> Any:
    """What pickle would make an object from again, or None."""
    try:
        made = value.__reduce_ex__(2)
    except Exception:
        return None
    if not padding.is_ctypes(value):
        return made
    rebuild, (kind, (attributes, data)) = made
    return rebuild, (kind, (attributes, padding.ctypes_bytes(value, data)))


def _fields_of(dtype: np.dtype[Any]) -> str:
    """The names and types of a record's fields, and where they lie."""
    try:
        return str(dtype.descr)
    except ValueError:  # they overlap, or stand in another order than in memory
        return str(dtype)


_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE


@functools.cache
def _compiled_base(kind: type) -> type:
    """The first class above one that is not written in Python: its instances may hold what no attribute shows."""
    return next(cls for cls in kind.__mro__ if not cls.__flags__ & _HEAP or cls.__flags__ & _IMMUTABLE)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype)


@functools.cache
def _slots(cls: type) -> tuple[str, ...]:
    """The slots that a class adds, by the names that they are kept under."""
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    owner = cls.__name__.lstrip("_")
    private = [n.startswith("__") and not n.endswith("__") and bool(owner) for n in names]
    mangled = [f"_{owner}{n}" if hidden else n for n, hidden in zip(names, private, strict=True)]
    return tuple(n for n in mangled if n not in ("__dict__", "__weakref__"))


def _relevant(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    if 0 in shape:
        return (0,) * len(shape)
    return tuple([0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)])
