"""Lazy results: told from finished ones, and read in full inside the timed region. No torch import here.

A head that hands back a promise looks fast, because the work is done when somebody looks. Results that consist of plain
values need no reading, and reading them would only dilute what is measured; so look at a result of each arm first:

    materialise = read if may_be_lazy(base_result) or may_be_lazy(head_result) else None
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future
from typing import Any

import numpy as np

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range, np.ndarray})
_CONTAINERS = (list, tuple, dict, set, frozenset)
_LAZY_METHODS = ("__getattr__", "__getitem__", "__iter__", "__next__", "__array__", "__await__", "__call__")
"""What a class may define so that its work is done when somebody looks."""


def may_be_lazy(result: object) -> bool:
    """Whether some part of a result is not a plain, finished value.

    Plain are numbers, strings, None, arrays and tensors of exactly the class that numpy and torch give them, and
    containers, named tuples, dataclasses and simple objects made of those.
    """
    return any(_suspect(part) for part in _parts(result, set()))


def read(result: Any) -> Any:
    """Read a result in full: iterate what can be iterated, wait for what is pending, convert what is array-like.

    Returns:
        The result itself, or a list of what an iterator gave, since that can be read only once.
    """
    if isinstance(result, Iterator):
        read_items = list(result)
        for item in read_items:
            read(item)
        return read_items
    _read(result, set())
    return result


def _read(result: Any, seen: set[int]) -> None:
    for part in _parts(result, seen):
        if not _suspect(part):
            continue
        if isinstance(part, Future):
            _read(part.result(), seen)
        elif callable(getattr(part, "tolist", None)):
            part.tolist()
        elif hasattr(type(part), "__array__"):
            np.asarray(part)
        elif isinstance(part, Mapping):
            for value in part.values():
                _read(value, seen)
        elif isinstance(part, Iterable):
            for item in part:
                _read(item, seen)
        elif isinstance(part, Sized) and hasattr(part, "__getitem__"):
            for place in range(len(part)):
                _read(part[place], seen)


def _suspect(part: object) -> bool:
    kind = type(part)
    if kind in _PLAIN or _is_tensor(kind) or isinstance(part, np.generic | type):
        return False
    # A subclass of a container is finished unless it brings a way of its own to be looked at.
    own = [base for base in kind.__mro__ if not (isinstance(part, _CONTAINERS) and base.__module__ == "builtins")]
    return any(name in vars(base) for base in own for name in _LAZY_METHODS)


def _is_tensor(kind: type) -> bool:
    return kind.__module__ in ("torch", "torch.nn.parameter") and kind.__name__ in ("Tensor", "Parameter")


def _parts(result: Any, seen: set[int]) -> Iterator[Any]:
    """A result and what it holds; containers of plain values only are given as a whole."""
    kind = type(result)
    yield result
    if kind in _PLAIN or _is_tensor(kind) or isinstance(result, np.generic | type):
        return
    if id(result) in seen:
        return
    seen.add(id(result))
    inside: Iterable[object] = ()
    if isinstance(result, dict):
        inside = [*result.keys(), *result.values()]
    elif isinstance(result, list | tuple | set | frozenset):
        inside = result
    elif dataclasses.is_dataclass(result):
        inside = [getattr(result, item.name, None) for item in dataclasses.fields(result)]
    elif hasattr(result, "__dict__"):
        inside = list(vars(result).values())
    if inside and not set(map(type, inside)) <= _PLAIN:
        for item in inside:
            yield from _parts(item, seen)
