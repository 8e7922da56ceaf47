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
    """Implements :class:`difftest.target.Arm` over a :class:`Loader`."""

    def __init__(self, label: str, loader: Loader, device: str = "cpu") -> None:
        self.label = label
        self.device = device
        self.loader = loader
        self.notes: dict[str, None] = {}
        self._objects: dict[str, Any] = {}
        self._parameters: dict[Any, tuple[tuple[str, bool], ...]] = {}

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

    def parameters(self, function: Callable[..., Any]) -> tuple[tuple[str, bool], ...]:
        """(name, required) of what a callable takes by name; a Triton kernel's are those of its function."""
        key = getattr(function, "__func__", function)
        try:
            return self._parameters[key]
        except (KeyError, TypeError):
            pass
        target = getattr(function, "fn", function) if not inspect.isroutine(function) else function
        found = tuple(
            (p.name, p.default is p.empty)
            for p in inspect.signature(target).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        )
        with contextlib.suppress(TypeError):
            self._parameters[key] = found
        return found

    def bind(self, function: Callable[..., Any], pool: Mapping[str, Any], **renamed: str) -> dict[str, Any]:
        bound: dict[str, Any] = {}
        for name, required in self.parameters(function):
            if name in pool:
                bound[name] = pool[name]
            elif name in renamed and renamed[name] in pool:
                bound[name] = pool[renamed[name]]
                self.note(f"{name} is {renamed[name]} of the case")
            elif required:
                named = getattr(function, "fn", function)  # a Triton kernel goes by its function's name
                raise ApiChange(f"{getattr(named, '__qualname__', named)} requires {name}")
        return bound

    def make(self, symbol: str | tuple[str, ...], fields: Mapping[str, Any], optional: Iterable[str] = ()) -> Any:
        symbols = (symbol,) if isinstance(symbol, str) else symbol
        cls = self.first(*symbols)
        taken = {name for name, _ in self.parameters(cls)}
        unknown = [name for name in fields if name not in taken]
        skippable = set(optional)
        if bad := [name for name in unknown if name not in skippable]:
            raise ApiChange(f"{cls.__qualname__} does not take {', '.join(bad)}")
        if unknown:
            self.note(f"{cls.__qualname__} has no {', '.join(unknown)}")
        return cls(**self.bind(cls, fields))

    def note(self, text: str) -> None:
        self.notes.setdefault(text)
