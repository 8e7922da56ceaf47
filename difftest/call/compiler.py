"""What code says to torch's compiler, without the compiler: nothing is compiled here, and loading it takes as long as
loading torch.

A mark changes no value, and a condition that holds has no effect, so both arms lose nothing by it.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

_COMPILER = "torch._dynamo"
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
    torch.compile = _compiled


def without_compiler() -> None:
    """Have marks for compiled code do nothing, and conditions that hold; once a process, before the code under test is
    loaded."""
    if _COMPILER in sys.modules:
        return
    torch._check_with = _checked(torch._check_with)
    package, decorators = map(_Unloaded, _MARKS)
    for module in (package, decorators):
        module.__dict__.update(dict.fromkeys(_MARKS[module.__name__], _mark))
    package.__dict__["decorators"] = decorators
    torch._dynamo = package
    torch.compiler.disable = _itself
    torch.compiler.allow_in_graph = _itself


# The parameters that code may give by name are called as torch's own.


def _itself(fn: Any = None, *_: Any, **__: Any) -> Any:
    """What a decorator for compiled code comes to: the function as it is."""
    return fn if fn is not None else _same


def _compiled(model: Any = None, **_: Any) -> Any:
    """What `torch.compile` comes to."""
    return _itself(model)


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _checked(real: Callable[..., None]) -> Callable[..., None]:
    """`torch._check` and its like, without the compiler's symbols for what plainly holds."""

    @functools.wraps(real)
    def check(error_type: Any, cond: Any, message: Any) -> None:
        if cond is not True:
            real(error_type, cond, message)

    return check


def _mark(t: torch.Tensor, index: Any = None, *_: Any, **__: Any) -> None:
    """What a mark comes to."""
