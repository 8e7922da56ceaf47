"""One loaded version, as case files see it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from difftest.errors import ApiChange
from difftest.lift.failures import mark_load_failure
from difftest.lift.loader import Loader, missing_symbol


class LiftedArm:
    """Implements :class:`difftest.target.Arm` over a :class:`Loader`.

    Attributes:
        took: names of a pool that functions took; chosen: those of them that have a default, and were given another
            value; dropped: names that a function did not take. All since :meth:`forget`.
    """

    def __init__(self, label: str, loader: Loader, device: str = "cpu") -> None:
        self.label = label
        self.device = device
        self.loader = loader
        self.notes: dict[str, None] = {}
        self._objects: dict[str, Any] = {}
        self._parameters: dict[Any, tuple[inspect.Parameter, ...]] = {}
        self.took: set[str] = set()
        self.chosen: set[str] = set()
        self.dropped: set[str] = set()

    def get(self, symbol: str) -> Any:
        found = self._objects.get(symbol)
        if found is None:
            name, _, qualname = symbol.partition(":")
            if not self.has(symbol):
                raise missing_symbol(symbol)
            try:
                found = self.loader.module(name)
                for part in qualname.split("."):
                    found = getattr(found, part)
            except BaseException as error:
                mark_load_failure(error)
                raise
            self._objects[symbol] = found
        return found

    def has(self, symbol: str) -> bool:
        return symbol in self._objects or self.loader.sources.defines(symbol)

    def first(self, *symbols: str) -> Any:
        for symbol in symbols:
            if self.has(symbol):
                return self.get(symbol)
        raise missing_symbol(" or ".join(symbols))

    def forget(self) -> None:
        """Begin a call: what functions took of a pool is noted anew."""
        self.took.clear()
        self.chosen.clear()
        self.dropped.clear()

    def parameters(self, function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
        """What a callable takes by name; a Triton kernel's are those of its function."""
        key = getattr(function, "__func__", function)
        try:
            return self._parameters[key]
        except (KeyError, TypeError):
            pass
        target = getattr(function, "fn", function) if not inspect.isroutine(function) else function
        found = tuple(
            p
            for p in inspect.signature(target).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        )
        with contextlib.suppress(TypeError):
            self._parameters[key] = found
        return found

    def bind(self, function: Callable[..., Any], pool: Mapping[str, Any], **renamed: str) -> dict[str, Any]:
        bound, taken, chosen = self._bound(function, pool, renamed)
        self.took |= taken
        self.chosen |= chosen
        self.dropped.update(pool.keys() - taken)
        return bound

    def _bound(
        self, function: Callable[..., Any], pool: Mapping[str, Any], renamed: Mapping[str, str]
    ) -> tuple[dict[str, Any], set[str], set[str]]:
        """Arguments by name, and the names in the pool that they are; those that are not a default."""
        bound: dict[str, Any] = {}
        taken, chosen = set(), set()
        for parameter in self.parameters(function):
            name = parameter.name
            given = name if name in pool else renamed.get(name)
            if given is not None and given in pool:
                bound[name] = pool[given]
                taken.add(given)
                if given != name:
                    self.note(f"{name} is {given} of the case")
                if parameter.default is not parameter.empty and not _is_default(bound[name], parameter.default):
                    chosen.add(given)
            elif parameter.default is parameter.empty:
                named = getattr(function, "fn", function)  # a Triton kernel goes by its function's name
                raise ApiChange(f"{getattr(named, '__qualname__', named)} requires {name}")
        return bound, taken, chosen

    def make(self, symbol: str | tuple[str, ...], fields: Mapping[str, Any], optional: Iterable[str] = ()) -> Any:
        symbols = (symbol,) if isinstance(symbol, str) else symbol
        cls = self.first(*symbols)
        taken = {parameter.name for parameter in self.parameters(cls)}
        unknown = [name for name in fields if name not in taken]
        skippable = set(optional)
        if bad := [name for name in unknown if name not in skippable]:
            raise ApiChange(f"{cls.__qualname__} does not take {', '.join(bad)}")
        if unknown:
            self.note(f"{cls.__qualname__} has no {', '.join(unknown)}")
        return cls(**self._bound(cls, fields, {})[0])

    def note(self, text: str) -> None:
        self.notes.setdefault(text)


def _is_default(value: Any, default: Any) -> bool:
    """Whether a parameter is given what it has anyway."""
    return value is default or (type(value) is type(default) and type(value) in _PLAIN and bool(value == default))


_PLAIN = (bool, int, float, str)
