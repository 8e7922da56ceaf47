"""Recorded values as one arm has them: instances of its own classes, its own generators, its own functions.

What a recording names is looked up in the arm's tree and nowhere else, so that a capture cannot choose what code runs.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from difftest.errors import ApiChange, LiftError
from difftest.lift.loader import LazyMethod
from difftest.record.decode import (
    Opaque,
    RecordedEnum,
    RecordedGenerator,
    RecordedMethod,
    RecordedObject,
    RecordedSymbol,
)
from difftest.target import Arm


class Rebuilder:
    """Makes the values of one call in one arm. What the recorded values share is shared again.

    Attributes:
        generators: those made so far, by their number in the recording.
    """

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        self.generators: dict[int, torch.Generator] = {}
        self._made: dict[int, Any] = {}
        self._held: list[Any] = []  # keeps ids of what was met from being used again
        self._recorded: dict[int, frozenset[str]] = {}

    def __call__(self, value: Any, path: str) -> Any:
        """The arm's own value.

        Args:
            path: where it stands, for messages.

        Raises:
            ApiChange: the arm's class needs a field that was not recorded, or the class is not in its tree.
            LiftError: the recording holds a placeholder instead of the value, or the class cannot be lifted.
        """
        kind = type(value)
        if kind not in _READERS and kind not in _CONTAINERS:
            return value
        if id(value) in self._made:
            return self._made[id(value)]
        self._held.append(value)
        if kind is tuple:
            return tuple(self(item, f"{path}[{i}]") for i, item in enumerate(value))
        if kind is list:
            made = self._made[id(value)] = []
            made.extend(self(item, f"{path}[{i}]") for i, item in enumerate(value))
            return made
        if kind is dict:
            found = self._made[id(value)] = {}
            found.update({self(key, f"{path} key"): self(item, f"{path}[{key!r:.40}]") for key, item in value.items()})
            return found
        if kind is set:
            self._made[id(value)] = {self(item, f"{path} item") for item in value}
            return self._made[id(value)]
        return _READERS[kind](self, value, path)

    def lacks(self, error: AttributeError) -> str | None:
        """Says which field the recording lacks when that is why an attribute was not there, else None."""
        owner = getattr(error, "obj", None)
        recorded = self._recorded.get(id(owner))
        name = getattr(error, "name", None)
        if recorded is None or name is None or name in recorded:
            return None
        if type(owner) in _BARE.values():
            return f"{type(owner).__qualname__} needs {name}, and its class cannot be loaded here"
        if name not in _fields_of(type(owner)):
            return None
        return f"{type(owner).__qualname__} needs {name}, which was not recorded"

    def _generator(self, value: RecordedGenerator, path: str) -> torch.Generator:
        made = value.make(self.arm.device if value.device != "cpu" else "cpu")
        self._made[id(value)] = self.generators[value.index] = made
        return made

    def _symbol(self, value: RecordedSymbol | RecordedObject | RecordedEnum, path: str) -> Any:
        if _is_local(value):
            raise LiftError(f"{path} is {value.symbol}, a function made inside another one")
        if not self.arm.has(value.symbol):
            raise ApiChange(f"{path} is {value.symbol}, which this version does not have")
        return self.arm.get(value.symbol)

    def _enum(self, value: RecordedEnum, path: str) -> Any:
        found = getattr(self._symbol(value, path), value.name, None)
        if found is None:
            raise ApiChange(f"{path} is {value.symbol}.{value.name}, which this version does not have")
        return found

    def _method(self, value: RecordedMethod, path: str) -> Any:
        owner = self(value.owner, path)
        method = inspect.getattr_static(type(owner), value.name, None)
        if method is None:
            raise ApiChange(f"{path} is {type(owner).__qualname__}.{value.name}, which this version does not have")
        return getattr(owner, value.name)

    def _opaque(self, value: Opaque, path: str) -> Any:
        raise LiftError(f"not recorded: {path}, a {value.symbol.replace(':', '.')}: {value.why}")

    def _object(self, value: RecordedObject, path: str) -> Any:
        try:
            cls = self._symbol(value, path)
        except ImportError as error:  # a library that the engine has and this process has not
            cls = self._bare(value.symbol, error)
        if not isinstance(cls, type):
            raise ApiChange(f"{path} is an instance of {value.symbol}, which is no class in this version")
        if issubclass(cls, tuple):
            return self._named_tuple(cls, value, path)
        made = object.__new__(cls)
        if isinstance(made, torch.nn.Module):
            torch.nn.Module.__init__(made)
        self._made[id(value)] = made
        # A function made inside another one cannot be had; a call that asks for it is refused then.
        there = {name: item for name, item in value.fields.items() if not _is_local(item)}
        fields = {name: self(item, f"{path}.{name}") for name, item in there.items()}
        known = _fields_of(cls)
        if dataclasses.is_dataclass(cls):
            fields = {name: item for name, item in fields.items() if name in known}
            fields |= _defaults(cls, fields)
        for name, item in fields.items():
            if isinstance(inspect.getattr_static(cls, name, None), property):
                continue
            if isinstance(made, torch.nn.Module):
                setattr(made, name, item)
            else:
                object.__setattr__(made, name, item)
        unknown = [name for name in value.fields if name not in known and name not in _MODULE_OWN]
        if unknown and cls not in _BARE.values():
            self.arm.note(f"{cls.__qualname__} of this version has no {', '.join(unknown[:5])}")
        self._recorded[id(made)] = frozenset(fields)
        self._held.append(made)
        return made

    def _bare(self, symbol: str, error: ImportError) -> type:
        """A class without methods in the place of one that cannot be loaded; its instances have the recorded fields."""
        name = symbol.rpartition(":")[2].rpartition(".")[2]
        self.arm.note(f"{name} cannot be loaded here ({error}); its recorded fields stand in for it, without methods")
        return _BARE.setdefault(symbol, type(name, (), {}))

    def _named_tuple(self, cls: type, value: RecordedObject, path: str) -> Any:
        names: tuple[str, ...] = getattr(cls, "_fields", ())
        defaults: dict[str, Any] = getattr(cls, "_field_defaults", {})
        if missing := [name for name in names if name not in value.fields and name not in defaults]:
            raise ApiChange(f"{cls.__qualname__} requires {', '.join(missing)}, which was not recorded")
        if unknown := [name for name in value.fields if name not in names]:
            self.arm.note(f"{cls.__qualname__} of this version has no {', '.join(unknown[:5])}")
        fields = {name: self(item, f"{path}.{name}") for name, item in value.fields.items() if name in names}
        self._made[id(value)] = cls(**fields)
        return self._made[id(value)]


_CONTAINERS = frozenset({list, tuple, dict, set})
_READERS: dict[type, Callable[[Rebuilder, Any, str], Any]] = {
    RecordedObject: Rebuilder._object,
    RecordedGenerator: Rebuilder._generator,
    RecordedSymbol: Rebuilder._symbol,
    RecordedEnum: Rebuilder._enum,
    RecordedMethod: Rebuilder._method,
    Opaque: Rebuilder._opaque,
}
_BARE: dict[str, type] = {}
_MODULE_OWN = frozenset({"training"})


def _is_local(value: Any) -> bool:
    return isinstance(value, RecordedSymbol) and "<locals>" in value.symbol


def _defaults(cls: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Defaults of a dataclass's fields that were not recorded."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in fields:
            continue
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        else:
            raise ApiChange(f"{cls.__qualname__} requires {field.name}, which was not recorded")
    return found


_KNOWN_FIELDS: dict[type, frozenset[str]] = {}


def _fields_of(cls: type) -> frozenset[str]:
    """Names of the attributes that instances of a class have, as its own code and its bases' say."""
    if cls in _KNOWN_FIELDS:
        return _KNOWN_FIELDS[cls]
    found: set[str] = set()
    for base in cls.__mro__[:-1]:
        if base is torch.nn.Module:
            continue
        found.update(getattr(base, "__annotations__", ()))
        slots = base.__dict__.get("__slots__", ())
        found.update((slots,) if isinstance(slots, str) else slots)
        for member in vars(base).values():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(member, LazyMethod):  # not compiled yet
                found.update(
                    node.attr
                    for method in member.syntax
                    for node in ast.walk(method)
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                )
            elif isinstance(member, types.FunctionType):
                found.update(_stored(member.__code__))
    _KNOWN_FIELDS[cls] = frozenset(found)
    return _KNOWN_FIELDS[cls]


def _stored(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _stored(constant)
