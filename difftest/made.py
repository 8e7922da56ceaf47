"""Classes of the code under test that a target's cases make, whether or not the target says that it uses them.

A case file makes instances of an arm's classes, by :class:`difftest.target.Made` in a pool or by `arm.make`. No code of
the tree shows that, yet a change of such a class is a change of what the target runs.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from difftest.target import Made, Target

_SYMBOL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_LOOKED_AT = 256
"""Cases that are built to see what they hold."""


def made_symbols(target: Target) -> tuple[str, ...]:
    """`module:qualname` of the classes, sorted, of the packages that the target observes: constants in the functions
    that make instances, and what its cases hold, as far as they are looked at."""
    packages = {symbol.partition(":")[0].partition(".")[0] for symbol in (*target.symbols, *target.needs)}
    reader = _Reader()
    reader.read(target.cases)
    reader.read(target.prepare)
    found = reader.symbols | (set(_held(target)) if reader.makes else set())
    return tuple(sorted(text for text in found if text.partition(":")[0].partition(".")[0] in packages))


def _held(target: Target) -> Iterator[str]:
    """Symbols of the classes that cases make, however their names come about."""
    try:
        cases = list(target.cases())
        for case in cases[:: -(-len(cases) // _LOOKED_AT) or 1]:
            yield from _made(case.build())
    except Exception:
        return  # a case that cannot be built is told of when it is run


def _made(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, Made):
        yield from [value.symbol] if isinstance(value.symbol, str) else value.symbol
        yield from _made(value.fields, depth + 1)
    elif depth < 8 and isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            if not isinstance(item, int | float | str):
                yield from _made(item, depth + 1)


class _Reader:
    """Follows functions of case files to all that they refer to.

    Attributes:
        symbols: of the classes: constants of the functions that make instances, and of `Made` that is there already.
        makes: whether any refers to `Made`.
    """

    def __init__(self) -> None:
        self.symbols: set[str] = set()
        self.makes = False
        self._seen: dict[int, Any] = {}

    def read(self, value: Any) -> None:
        todo = [value]
        while todo:
            item = todo.pop()
            if id(item) not in self._seen:
                self._seen[id(item)] = item  # which is kept, so that its id stays its own
                todo += self._parts(item)

    def _parts(self, item: Any) -> Iterator[Any]:
        match item:
            case Made():
                self.symbols.update(_texts([item.symbol]))
                yield item.fields
            case types.FunctionType() if _is_of_cases(item.__module__):
                yield from self._function(item)
            case types.MethodType():
                yield from (item.__func__, item.__self__)
            case staticmethod() | classmethod():
                yield item.__func__
            case functools.partial():
                yield from (item.func, item.args, item.keywords)
            case type() if _is_of_cases(item.__module__):
                yield from vars(item).values()
            case Mapping():
                yield from itertools.chain(item.keys(), item.values())
            case list() | tuple() | set() | frozenset():
                yield from item
            case _ if not isinstance(item, type) and _is_of_cases(type(item).__module__):
                yield from (type(item), getattr(item, "__dict__", {}))

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        yield from (function.__defaults__ or (), function.__kwdefaults__ or {})
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not bound yet
                continue
        for code in _codes(function.__code__):
            used = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
            for module in [item for item in used if isinstance(item, types.ModuleType) and _is_of_cases(item.__name__)]:
                used += [vars(module)[name] for name in code.co_names if name in vars(module)]
            made = any(item is Made for item in used) or "Made" in code.co_names
            self.makes |= made
            if made or "make" in code.co_names:
                self.symbols.update(text for text in _texts([code.co_consts, used]) if _SYMBOL.fullmatch(text))
            yield from used


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_of_cases(module: str) -> bool:
    """Whether a module is a case file, or what one brings along: nothing that is installed."""
    if module == "difftest.cases" or module.startswith("difftest.cases."):
        return True
    if module.partition(".")[0] in ("difftest", "builtins", *sys.stdlib_module_names):
        return False
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path
