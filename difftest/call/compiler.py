"""What code says to torch's compiler, without the compiler: nothing is compiled here, and loading it takes as long as
loading torch.

A mark changes no value, and a condition that holds has no effect, so both arms lose nothing by it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

_COMPILER = "torch._dynamo"
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
_MARKS = {
    _COMPILER: ("mark_dynamic", "maybe_mark_dynamic", "mark_static"),
    f"{_COMPILER}.decorators": ("mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_unbacked"),
}
"""By module, the functions that tell the compiler about a tensor's dimensions, and do nothing else."""


class _Unloaded(types.ModuleType):
    """Stands where a module of the compiler will be, and loads it for whoever asks for more than a mark."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def run_eagerly() -> None:
    """Have `torch.compile` give back the function itself; once a process, before the code under test is loaded."""
    torch.compile = _decorator(torch.compile)


def without_compiler() -> None:
    """Have marks for compiled code do nothing, and conditions that hold; once a process, before the code under test is
    loaded."""
    if _COMPILER in sys.modules:
        return
    torch._check_with = _checked(torch._check_with)
    package, decorators = map(_Unloaded, _MARKS)
    for module in (package, decorators):
        module.__dict__.update({name: _mark(module.__name__, name) for name in _MARKS[module.__name__]})
    package.__dict__["decorators"] = decorators
    torch._dynamo = package
    torch.compiler.disable = _decorator(torch.compiler.disable)
    torch.compiler.allow_in_graph = _decorator(torch.compiler.allow_in_graph)


# What torch would refuse, or what is not plainly of the kind that does nothing here, is left to torch.


def _decorator(real: Callable[..., Any]) -> Callable[..., Any]:
    """What a decorator for compiled code comes to: the function as it is."""
    signature = inspect.signature(real)
    (parameter, *_) = signature.parameters

    @functools.wraps(real)
    def decorate(*args: Any, **kwargs: Any) -> Any:
        function = signature.bind(*args, **kwargs).arguments.get(parameter)
        if function is None:
            return _same
        return function if callable(function) else real(*args, **kwargs)

    return decorate


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _checked(real: Callable[..., None]) -> Callable[..., None]:
    """`torch._check` and its like, without the compiler's symbols for what plainly holds, or plainly does not."""

    @functools.wraps(real)
    def check(error_type: Any, cond: Any, message: Any) -> None:
        if cond is True:
            return
        if cond is not False or _SYMBOLS in sys.modules:
            return real(error_type, cond, message)
        symbols = sys.modules[_SYMBOLS] = types.ModuleType(_SYMBOLS)
        symbols.__dict__["expect_true"] = _expect_plainly  # all that `real` asks of it, before it asks for the message
        try:
            real(error_type, cond, message)
        finally:
            _leave(symbols)

    return check


def _expect_plainly(condition: bool) -> bool:
    _leave(sys.modules[_SYMBOLS])
    return condition


def _leave(symbols: types.ModuleType) -> None:
    if sys.modules.get(_SYMBOLS) is symbols:
        del sys.modules[_SYMBOLS]


def _mark(module: str, name: str) -> Callable[..., None]:
    """What a mark comes to: nothing."""

    def mark(t: Any, index: Any = None, *args: Any, **kwargs: Any) -> None:
        if isinstance(t, torch.Tensor) and not args and not kwargs:
            indices = index if isinstance(index, list | tuple) else [index]
            static = index is None and name == "mark_static"
            if static or all(type(i) is int and -t.dim() <= i < t.dim() for i in indices):
                return
        given = () if index is None else (index,)
        getattr(importlib.import_module(module), name)(t, *given, *args, **kwargs)

    return mark
