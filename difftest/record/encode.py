"""A live value as JSON plus the memory behind it, taken without touching the value. Needs torch.

What each form means is said in `difftest/schema/capture.json`; :mod:`difftest.record.decode` reads them back. The
recorder walks values in a quicker way (:mod:`difftest.record.walk`), and in this one those that do not bear it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from difftest.record.forms import DEPTH, Json, described, number, opaque
from difftest.record.generators import States
from difftest.record.kinds import Kind, fields, kind_of, method_leaf, plain_subclass, symbol
from difftest.record.storages import Storages

_ATOMS = frozenset({type(None), int, bool})
_INTS = frozenset({int})


class Encoder:
    """Encodes the values of one call side (all its arguments, or its result) with what they share.

    Args:
        package: top-level package whose objects' state is recorded; other plain objects are opaque. Dataclasses,
            named tuples and torch modules are recorded wherever they come from.
        hidden: module prefixes whose objects are opaque all the same (configuration, tokenizers).
        renamed: strings (request ids) and what stands for them.
        storages: gets what tensors and arrays lie in.

    Attributes:
        generators: the torch generators met, by their index.
        described: what they are.
        states: theirs.
        storages: as given.
    """

    __slots__ = (
        "_alive",
        "_depth",
        "_handlers",
        "_hidden",
        "_numbers",
        "_package",
        "_renamed",
        "described",
        "generators",
        "states",
        "storages",
    )

    def __init__(
        self,
        package: str,
        hidden: tuple[str, ...] = (),
        renamed: Mapping[str, str] | None = None,
        storages: Storages | None = None,
    ) -> None:
        self.generators: list[torch.Generator] = []
        self.described: list[dict[str, Any]] = []
        self.states = States()
        self.storages = Storages() if storages is None else storages
        self._package, self._hidden = package, hidden
        self._renamed = renamed or {}
        self._handlers = _HANDLERS.setdefault((type(self), package, hidden), {})
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._depth = 0

    def __call__(self, value: Any) -> Json:
        """The value as JSON. Never raises for a value that it cannot record: that is opaque."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is str:
            return self._renamed.get(value, value)
        if kind is float:
            return number(value)
        if self._depth >= DEPTH:
            return opaque(symbol(kind), "nested too deeply")
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
            return opaque(symbol(kind), f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            self._depth -= 1

    def _handler(self, kind: type) -> Handler:
        """What encodes the instances of a class; asked once for each class."""
        if kind in _CONTAINERS:
            return _CONTAINERS[kind]
        known = kind_of(kind, self._package, self._hidden)
        if (leaf := known.leaf) is not None:
            return lambda _, value: leaf(value)
        encode = _PARTS[known.what]
        return lambda encoder, value: encode(encoder, value, known)

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
        return list(value) if set(map(type, value)) == _INTS else [self(item) for item in value]

    def _pairs(self, value: dict[Any, Any]) -> list[list[Json]]:
        return [[self(key), self(item)] for key, item in value.items()]

    def _tensor(self, value: torch.Tensor, _: Kind | None = None) -> Json:
        return described("tensor", self.storages.tensor(value))

    def _array(self, value: np.ndarray[Any, Any], _: Kind | None = None) -> Json:
        return described("ndarray", self.storages.array(value))

    def _subclass(self, value: torch.Tensor, kind: Kind) -> Json:
        plain = plain_subclass(value)
        return opaque(kind.name, OWN_DISPATCH) if plain is None else self._tensor(plain)

    def _method(self, value: Any, _: Kind) -> Json:
        return method_leaf(value) or {"method": {"self": self(value.__self__), "name": value.__name__}}

    def _generator(self, value: torch.Generator, _: Kind | None = None) -> Json:
        if again := self._again(value):
            return again
        node = self.states.generator(value, len(self.generators))
        self.generators.append(value)
        self.described.append(node)
        return {"generator": node}

    def _mapping(self, value: dict[Any, Any], kind: Kind) -> Json:
        return self._again(value) or {"dict": self._pairs(value), "class": kind.name}

    def _set(self, value: set[Any] | frozenset[Any], kind: Kind) -> Json:
        again = self._again(value)
        return again or {"set": [self(item) for item in sorted(value, key=repr)], "class": kind.name}

    def _object(self, value: Any, kind: Kind) -> Json:
        if again := self._again(value):
            return again
        parts = {str(name): self(item) for name, item in fields(value, kind).items()}
        return {"object": {"class": kind.name, "kind": kind.of, "fields": parts}}


OWN_DISPATCH = "a tensor subclass with its own dispatch"

Handler = Callable[[Any, Any], Json]
_HANDLERS: dict[tuple[type, str, tuple[str, ...]], dict[type, Handler]] = {}
"""By kind of encoder, package and hidden modules: what encodes the instances of a class, as far as it was asked."""

_CONTAINERS: dict[type, Handler] = {list: Encoder._list, tuple: Encoder._tuple, dict: Encoder._dict}

_PARTS: dict[str, Callable[[Encoder, Any, Kind], Json]] = {
    "tensor": Encoder._tensor,
    "subclass": Encoder._subclass,
    "array": Encoder._array,
    "generator": Encoder._generator,
    "method": Encoder._method,
    "dict": Encoder._mapping,
    "set": Encoder._set,
    "object": Encoder._object,
}
