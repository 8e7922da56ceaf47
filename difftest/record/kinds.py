"""How the instances of a class are recorded: as memory, as fields, as one leaf, or not at all. Needs torch."""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import types
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from difftest.record.forms import Json, number, opaque

What = Literal["tensor", "subclass", "array", "generator", "method", "dict", "set", "object", "leaf"]

_MODULE_OWN = frozenset(torch.nn.Module().__dict__)
_CODE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """How instances of a class are recorded.

    Attributes:
        what: as memory (`tensor`, its `subclass`, `array`), by their parts (`generator`, `method`, `dict`, `set`,
            `object`) or as a `leaf`.
        name: of the class, `module:qualname`.
        leaf: the JSON of a leaf.
        of: for objects `dataclass`, `namedtuple`, `module` or `object`.
        names: for objects, attributes beyond the `__dict__`.
    """

    what: What
    name: str
    leaf: Callable[[Any], Json] | None = None
    of: str = ""
    names: tuple[str, ...] = ()


def kind_of(cls: type, package: str, hidden: tuple[str, ...]) -> Kind:
    """How instances of a class are recorded; lists, tuples, dicts and atoms are not asked for.

    Args:
        package: top-level package whose objects' state is recorded; other plain objects are opaque. Dataclasses,
            named tuples and torch modules are recorded wherever they come from.
        hidden: module prefixes whose objects are opaque all the same.
    """
    name = symbol(cls)
    if cls in (torch.Tensor, torch.nn.Parameter):
        return Kind("tensor", name)
    if cls is np.ndarray:
        return Kind("array", name)
    for base, what in _PARTS:
        if issubclass(cls, base):
            return Kind(what, name)
    for base, leaf in _LEAVES:
        if issubclass(cls, base):
            return Kind("leaf", name, leaf)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Kind("object", name, of="namedtuple")
    if issubclass(cls, list | tuple | str | int | float):
        return _refused(name, "a subclass of a plain type")
    module = cls.__module__
    if any(module == prefix or module.startswith(prefix + ".") for prefix in hidden):
        return _refused(name, "its state is not recorded")
    # msgspec's structs name their fields in their own way.
    names = list(getattr(cls, "__struct_fields__", ()))
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    has_dict = any("__dict__" in base.__dict__ for base in cls.__mro__)
    found = Kind("object", name, of="object", names=tuple(n for n in names if n not in ("__dict__", "__weakref__")))
    if issubclass(cls, torch.nn.Module):
        return dataclasses.replace(found, of="module")
    if dataclasses.is_dataclass(cls):
        return dataclasses.replace(found, of="dataclass")
    if not names and not has_dict:
        return _refused(name, "its state cannot be seen")
    if module.partition(".")[0] == package:
        return found
    return _refused(name, "an object of another package")


def fields(value: Any, kind: Kind) -> dict[str, Any]:
    """The state of an object."""
    if kind.of == "namedtuple":
        return dict(zip(value._fields, value, strict=True))
    state = getattr(value, "__dict__", None)
    if kind.names or type(state) is not dict:
        state = dict(state or ())
        for name in kind.names:
            if hasattr(value, name):
                state[name] = getattr(value, name)
    if kind.of == "module":
        own = _own(tuple(state))(state)
        for parts in (value._parameters, value._buffers, value._modules):
            if parts:
                own |= parts
        own["training"] = value.training
        return own
    return state


@functools.lru_cache(1024)
def _own(names: tuple[str, ...]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Takes from a module's state, of these names, what is not torch's own."""
    wanted = [name for name in names if name not in _MODULE_OWN]
    if len(wanted) < 2:
        return lambda state: {name: state[name] for name in wanted}
    items = operator.itemgetter(*wanted)
    return lambda state: dict(zip(wanted, items(state), strict=True))


def plain_subclass(value: torch.Tensor) -> torch.Tensor | None:
    """The tensor without its subclass; None when what it is made of is that class's own affair."""
    if getattr(type(value), "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__:
        return None
    return value.detach().as_subclass(torch.Tensor)


def method_leaf(value: Any) -> Json | None:
    """JSON of a method that is a function of a module; None for one of an object."""
    owner = value.__self__
    return {"symbol": symbol(value)} if owner is None or isinstance(owner, types.ModuleType) else None


def symbol(value: Any) -> str:
    """`module:qualname` of a class, function or module."""
    if isinstance(value, types.ModuleType):
        return f"{value.__name__}:"
    module = getattr(value, "__module__", None) or type(value).__module__
    return f"{module}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _refused(name: str, why: str) -> Kind:
    return Kind("leaf", name, lambda _: opaque(name, why))


def _scalar(value: np.generic) -> Json:
    if value.dtype.kind not in "biufc":
        return opaque(symbol(type(value)), f"dtype {value.dtype}")
    return {"scalar": {"dtype": value.dtype.str, "bytes": value.tobytes().hex()}}


def _indices(value: range | slice) -> Json:
    parts = [value.start, value.stop, value.step]
    if not all(part is None or type(part) is int for part in parts):
        return opaque(symbol(type(value)), "its parts are no integers")
    return {type(value).__name__: parts}


_LEAVES: tuple[tuple[Any, Callable[[Any], Json]], ...] = (
    (enum.Enum, lambda value: {"enum": {"class": symbol(type(value)), "name": value.name}}),
    (np.generic, _scalar),
    (torch.dtype, lambda value: {"dtype": str(value).removeprefix("torch.")}),
    (np.dtype, lambda value: {"numpy dtype": value.str}),
    (torch.device, lambda value: {"device": str(value)}),
    (torch.Size, lambda value: {"size": list(value)}),
    (bytes, lambda value: {"bytes": value.hex()}),
    (complex, lambda value: {"complex": [number(value.real), number(value.imag)]}),
    ((range, slice), _indices),
    (_CODE, lambda value: {"symbol": symbol(value)}),
)

_PARTS: tuple[tuple[Any, What], ...] = (
    (torch.Tensor, "subclass"),
    (torch.Generator, "generator"),
    ((types.MethodType, types.BuiltinMethodType), "method"),
    (dict, "dict"),
    (set | frozenset, "set"),
)
