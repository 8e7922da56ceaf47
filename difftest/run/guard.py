"""Notices that code under test replaced what both arms and the harness stand on: functions of torch, numpy, builtins,
or of the harness itself. What was claimed since the last look is then withdrawn.
"""

from __future__ import annotations

import builtins
import math
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import difftest.call.freeze
import difftest.call.functions
import difftest.call.outcome
import difftest.call.process
import difftest.call.rng
import difftest.call.values
import difftest.compare.arrays
import difftest.compare.outcomes
import difftest.lift.arm
import difftest.lift.loader
import difftest.run.protocol
from difftest.call.freeze import Freezer
from difftest.call.outcome import Outcome
from difftest.compare.outcomes import compare

_SHARED = (builtins, math, random, np, np.random, torch, torch.Tensor, torch.nn.functional, torch.cuda, torch.random)
_HARNESS = (
    difftest.call.freeze,
    difftest.call.functions,
    difftest.call.outcome,
    difftest.call.process,
    difftest.call.rng,
    difftest.call.values,
    difftest.compare.arrays,
    difftest.compare.outcomes,
    difftest.lift.arm,
    difftest.lift.loader,
    difftest.run.protocol,
)
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_MODULES = ("builtins", "torch", "numpy", "sys", "random", "difftest.call.freeze", "difftest.compare.outcomes")


class _Place(NamedTuple):
    name: str
    now: Any  # the namespace as it is now; changes with it
    saved: dict[str, Any]
    inherited: frozenset[str] = frozenset()  # of a class: names that it must not begin to define for itself


class Guard:
    """Remembers the functions and classes that everything stands on, as they are when this object is made."""

    def __init__(self) -> None:
        places: list[tuple[str, Any]] = [(getattr(o, "__name__", str(o)), vars(o)) for o in (*_SHARED, *_HARNESS)]
        for module in _HARNESS:
            for name, value in vars(module).items():
                if isinstance(value, type) and value.__module__ == module.__name__:
                    places.append((f"{module.__name__}.{name}", vars(value)))
        self._places = [
            _Place(name, now, {key: value for key, value in now.items() if callable(value) and key != "__builtins__"})
            for name, now in places
        ]
        own = {key for key in vars(torch.Tensor) if not callable(vars(torch.Tensor)[key])}
        shadowed = frozenset(name for cls in torch.Tensor.__mro__[1:] for name in vars(cls)) - own
        self._places = [p._replace(inherited=shadowed) if p.now == vars(torch.Tensor) else p for p in self._places]
        self._modules = {name: sys.modules[name] for name in _MODULES}

    def replaced(self) -> list[str]:
        """Names of what is no longer what it was; empty when all is well."""
        found = []
        for place in self._places:
            now = place.now
            for key, value in place.saved.items():
                if now.get(key) is not value and not _wrapped_by_torch(now.get(key), value):
                    found.append(f"{place.name}.{key}")
            if place.inherited:
                found += [f"{place.name}.{key}" for key in now if key in place.inherited and key not in place.saved]
        found += [f"sys.modules[{n!r}]" for n, module in self._modules.items() if sys.modules.get(n) is not module]
        if not found and not _sees_differences():
            found.append("the comparison, which no longer sees a planted difference")
        return found


def _wrapped_by_torch(now: Any, before: Any) -> bool:
    """Whether torch put a function around its own, as its compiler does when it is imported."""
    code = getattr(now, "__code__", None)
    inner = getattr(now, "__wrapped__", getattr(now, "_torchdynamo_orig_callable", None))
    return code is not None and inner is before and code.co_filename.startswith(_TORCH_FOLDER)


def _sees_differences() -> bool:
    """Whether two outcomes that differ in one element still come out different."""
    outcomes = []
    for value in (3, 4):
        frozen = Freezer()((torch.tensor([1, 2, value]), [value]))
        outcomes.append(Outcome(frozen, None, (), (), None, ()))
    first, second = outcomes
    found = compare(first, second)
    return first != second and [d.leaf for d in found] == ["return[0]", "return[1]"]
