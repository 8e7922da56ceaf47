"""How versions differ in what they take. No targets."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def takes(function: Any) -> tuple[str, ...]:
    """Names of what a function, a class or a Triton kernel takes; of a method, without its instance."""
    bound = hasattr(function, "__self__") and hasattr(function, "__func__")
    names = _parameters(function.__func__ if bound else getattr(function, "fn", function))
    return names[1:] if bound else names


@functools.lru_cache(maxsize=1024)
def _parameters(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)
