"""One side of a call, taken as quickly as Python can: `pickle` walks plain values by itself. Needs torch.

Only what is not plain is asked for here, once for each object; tensors are looked at afterwards, all together.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from difftest.record import forms
from difftest.record.encode import OWN_DISPATCH, Encoder
from difftest.record.generators import States
from difftest.record.kinds import Kind, fields, kind_of, method_leaf, plain_subclass, symbol
from difftest.record.storages import Storages

Reduced = tuple[Any, ...]
Reducer = Callable[[Any, Any], Reduced]


@dataclass(slots=True)
class Taken:
    """One side of a call.

    Attributes:
        value: what the writer makes JSON of: a pickle, what its tensors and arrays are; or JSON alone.
        storages: what they lie in.
        generators: the torch generators met.
        described: what these are.
        states: those of generators.
    """

    value: Any
    storages: Storages
    generators: list[torch.Generator]
    described: list[dict[str, Any]]
    states: States


def take(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    package: str,
    hidden: tuple[str, ...],
    renamed: Mapping[str, str],
    inputs: Storages | None = None,
) -> Taken:
    """Take down values, all that one side of a call is. They are not touched, and what they share is kept.

    Args:
        package, hidden: whose objects' state is recorded, see :class:`Encoder`.
        renamed: strings and what stands for them; the writer is to know them, too.
        inputs: those of the call's inputs, when this is its output.
    """
    storages, walk = Storages(inputs), _Walk(package, hidden)
    try:
        walk.dump((args, kwargs))
    except Exception:
        # Nested more deeply than `pickle` goes, or changed meanwhile: value by value, so that the rest is recorded.
        encode = Encoder(package, hidden, renamed, storages)
        nodes = [encode(value) for value in args], {name: encode(value) for name, value in kwargs.items()}
        return Taken(nodes, storages, encode.generators, encode.described, encode.states)
    states = States()
    described = [states.generator(generator, n) for n, generator in enumerate(walk.generators)]
    value = walk.file.getvalue(), storages.tensors(walk.tensors), storages.arrays(walk.arrays)
    return Taken(value, storages, walk.generators, described, states)


class _Walk(pickle.Pickler):
    """Pickles values as :mod:`difftest.record.forms`. No code of theirs is called that would not be called anyway."""

    def __init__(self, package: str, hidden: tuple[str, ...]) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, 5)
        self.memo = _MEMO
        self.tensors: list[torch.Tensor] = []
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.generators: list[torch.Generator] = []
        self._package, self._hidden = package, hidden
        self._reducers = _REDUCERS.setdefault((package, hidden), {})

    def reducer_override(self, value: Any) -> Reduced:
        """How a value that is not plain is pickled."""
        kind = type(value)
        if kind is torch.Tensor:
            tensors = self.tensors
            tensors.append(value)
            return forms.Tensor, (len(tensors) - 1,)
        try:
            reducer = self._reducers.get(kind)
            if reducer is None:
                reducer = self._reducers[kind] = _reducer(kind_of(kind, self._package, self._hidden))
            return reducer(self, value)
        except Exception as error:
            return forms.Leaf, (forms.opaque(symbol(kind), f"{type(error).__name__}: {str(error)[:200]}"),)


_MEMO = forms.known_to_pickler()
_REDUCERS: dict[tuple[str, tuple[str, ...]], dict[type, Reducer]] = {}
"""By package and hidden modules: how the instances of a class are pickled, as far as it was asked."""


def _reducer(kind: Kind) -> Reducer:
    if kind.leaf is not None:
        leaf = kind.leaf
        return lambda _, value: (forms.Leaf, (leaf(value),))
    if kind.what == "object":
        content = (kind.name, kind.of)
        return lambda _, value: (forms.Object, content, fields(value, kind))
    if kind.what == "dict":
        return lambda _, value: (forms.Dict, (kind.name,), list(dict.items(value)))
    if kind.what == "set":
        return lambda _, value: (forms.Set, (kind.name,), list(value))
    if kind.what == "subclass":
        return lambda walk, value: _subclass(walk, value, kind)
    return _PARTS[kind.what]


def _tensor(walk: _Walk, value: torch.Tensor) -> Reduced:
    walk.tensors.append(value)
    return forms.Tensor, (len(walk.tensors) - 1,)


def _subclass(walk: _Walk, value: torch.Tensor, kind: Kind) -> Reduced:
    plain = plain_subclass(value)
    return (forms.Leaf, (forms.opaque(kind.name, OWN_DISPATCH),)) if plain is None else _tensor(walk, plain)


def _array(walk: _Walk, value: np.ndarray[Any, Any]) -> Reduced:
    walk.arrays.append(value)
    return forms.Array, (len(walk.arrays) - 1,)


def _generator(walk: _Walk, value: torch.Generator) -> Reduced:
    walk.generators.append(value)
    return forms.Generator, (len(walk.generators) - 1,)


def _method(walk: _Walk, value: Any) -> Reduced:
    leaf = method_leaf(value)
    return (forms.Method, (value.__name__,), value.__self__) if leaf is None else (forms.Leaf, (leaf,))


_PARTS: dict[str, Reducer] = {"tensor": _tensor, "array": _array, "generator": _generator, "method": _method}
