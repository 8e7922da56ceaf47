"""What one side of a call is while it travels to the writer: a pickle that calls nothing but these. No torch.

The engine's thread has no time for more than `pickle`, which walks plain values by itself; the writer makes of it the
JSON of a manifest. Such a pickle never leaves the memory that the two processes share.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from difftest.record.lines import MAX_DEPTH

Json = Any

Row = tuple[int, str, int, Sequence[int], Sequence[int]]
"""A tensor or array: number of its storage, dtype, offset, shape, strides."""

DEPTH = MAX_DEPTH // 2
"""Values inside each other from which on they are opaque."""


class Form:
    """A value that is not plain.

    Attributes:
        content: what it was made of.
        state: further values, which may refer to it.
    """

    __slots__ = ("content", "state")

    name = "builtins:object"

    def __init__(self, *content: Any) -> None:
        self.content = content
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.content}"


class Leaf(Form):
    """JSON as it will be in the manifest."""

    __slots__ = ()


class Tensor(Form):
    """Its number among the tensors of this side of the call."""

    __slots__ = ()
    name = "torch:Tensor"


class Array(Form):
    """Its number among the arrays of this side of the call."""

    __slots__ = ()
    name = "numpy:ndarray"


class Generator(Form):
    """Its number among the generators of this side of the call."""

    __slots__ = ()
    name = "torch._C:Generator"


class Object(Form):
    """Class and kind of an object; its state are the fields."""

    __slots__ = ()


class Method(Form):
    """A method's name; its state is the object."""

    __slots__ = ()


class Dict(Form):
    """The class of a dict that is more than one; its state are the pairs."""

    __slots__ = ()


class Set(Form):
    """The class of a set that is more than one; its state are the items."""

    __slots__ = ()


_FORMS: tuple[Any, ...] = (Leaf, Tensor, Array, Generator, Object, Method, Dict, Set)


def known_to_pickler() -> Any:
    """The memo that a pickler has to begin with: the forms are known by their numbers."""
    pickler = pickle.Pickler(io.BytesIO(), 5)
    pickler.memo = {id(form): (number, form) for number, form in enumerate(_FORMS)}
    return pickler.memo


class _Unpickler(pickle.Unpickler):
    """Knows the forms, and nothing else by name."""

    def find_class(self, module: str, name: str) -> Any:
        if module != "forms":
            raise pickle.UnpicklingError(f"{module}:{name} is no form")
        return _FORMS[int(name)]


_KNOWN = b"".join([b"cforms\n%d\n\x940" % number for number in range(len(_FORMS))]) + b"N."
"""A pickle in which each form is found, noted and dropped, and then None: what is read after it knows their numbers."""


def unpickled(data: bytes) -> Any:
    """Plain values and forms."""
    unpickler = _Unpickler(io.BytesIO(_KNOWN + data))
    unpickler.load()
    return unpickler.load()


def opaque(name: str, why: str) -> Json:
    """A value that is not recorded.

    Args:
        name: of its class, `module:qualname`.
    """
    return {"opaque": {"class": name, "why": why}}


def described(tag: str, row: Row | Json, storage: int | None = None) -> Json:
    """A tensor or array in JSON.

    Args:
        tag: `tensor` or `ndarray`.
        row: what it is, or already JSON when it is opaque.
        storage: the number of its storage, where it is not the row's.
    """
    if type(row) is not tuple:
        return row
    number, dtype, offset, shape, strides = row
    return {
        tag: {
            "storage": number if storage is None else storage,
            "dtype": dtype,
            "offset": offset,
            "shape": list(shape),
            "strides": list(strides),
        }
    }


def number(value: float) -> Json:
    """A float in JSON, which knows finite ones only."""
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


class Nodes:
    """Makes JSON of plain values and forms: of all that is one side of a call, in the order in which it was recorded.

    Args:
        tensors, arrays: what they are.
        generators: their descriptions.
        renamed: strings and what stands for them.

    Attributes:
        storages: the numbers of the storages that were met, in order; in JSON they are counted anew.
        generators_met: the numbers of the generators that were met, in order, counted anew as well.
    """

    def __init__(
        self,
        tensors: Sequence[Row | Json],
        arrays: Sequence[Row | Json],
        generators: Sequence[dict[str, Any]],
        renamed: Mapping[str, str],
    ) -> None:
        self.storages: dict[int, int] = {}
        self.generators_met: list[int] = []
        self._tensors, self._arrays, self._generators = tensors, arrays, generators
        self._renamed = renamed
        self._numbers: dict[int, int] = {}
        self._depth = 0

    def __call__(self, value: Any) -> Json:
        kind = type(value)
        if value is None or kind is int or kind is bool:
            return value
        if kind is str:
            return self._renamed.get(value, value)
        if kind is float:
            return number(value)
        if self._depth >= DEPTH:
            return opaque(_class(value), "nested too deeply")
        self._depth += 1
        try:
            return self._node(kind, value)
        finally:
            self._depth -= 1

    def _node(self, kind: type, value: Any) -> Json:
        if kind is tuple:
            return {"tuple": [self(item) for item in value]}
        if kind is bytes:
            return {"bytes": value.hex()}
        if kind is bytearray:
            return opaque("builtins:bytearray", "its state cannot be seen")
        if kind is Leaf:
            return value.content[0]
        if kind is Tensor:
            return self._in_memory("tensor", self._tensors[value.content[0]])
        if kind is Array:
            return self._in_memory("ndarray", self._arrays[value.content[0]])
        if kind is Method:
            return {"method": {"self": self(value.state), "name": value.content[0]}}
        again = self._numbers.get(id(value))
        if again is not None:
            return {"again": again}
        self._numbers[id(value)] = len(self._numbers)
        if kind is list:
            return [self(item) for item in value]
        if kind is dict:
            return {"dict": self._pairs(value.items())}
        if kind is Generator:
            described = self._generators[value.content[0]] | {"index": len(self.generators_met)}
            self.generators_met.append(value.content[0])
            return {"generator": described}
        if kind is Object:
            name, of = value.content
            fields = {str(key): self(item) for key, item in value.state.items()}
            return {"object": {"class": name, "kind": of, "fields": fields}}
        if kind is Dict:
            return {"dict": self._pairs(value.state), "class": value.content[0]}
        items, name = (value.state, value.content[0]) if kind is Set else (value, f"builtins:{kind.__name__}")
        return {"set": [self(item) for item in sorted(items, key=repr)], "class": name}

    def _pairs(self, pairs: Any) -> list[list[Json]]:
        return [[self(key), self(item)] for key, item in pairs]

    def _in_memory(self, tag: str, row: Row | Json) -> Json:
        if type(row) is not tuple:
            return row
        return described(tag, row, self.storages.setdefault(row[0], len(self.storages)))


def _class(value: Any) -> str:
    if not isinstance(value, Form):
        return f"builtins:{type(value).__name__}"
    return value.content[0] if isinstance(value, Object | Dict | Set) else value.name
