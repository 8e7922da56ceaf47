"""The same noise for both arms in Triton kernels, under the interpreter.

A kernel's noise is a function of whole numbers: seed, position, offset. Its values are replaced by those of a noise,
one for each set of arguments: the same arguments give the same number, as in truth, so that a stream used twice stays
used twice.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from difftest.explain.noise import BITS, Noise, Numbers, mix64

SCHEMES = ("place", "arguments")
"""How a set of arguments finds its number: by the launch, program and call that first used it, or by themselves."""

_WORD = (1 << 64) - 1
_REPLACED = ("rand",)
_NOT_REPLACED = ("rand4x", "randn", "randn4x")


class KernelNoise:
    """While it is on, `tl.rand` and an arm's own noise functions give the numbers of a noise.

    Args:
        functions: the arm's own functions that return a uniform number for whole-number arguments.
        modules: the arm's modules by name, in which they are found; more may be loaded while it is on.
        scheme: one of :data:`SCHEMES`.

    Attributes:
        draws: how many numbers were drawn, by function.
        unknown: functions that could not be replaced.
        real: a hash of what was drawn in truth, in order.
    """

    def __init__(self, noise: Noise, scheme: str, functions: Iterable[Any], modules: Mapping[str, Any]) -> None:
        self.noise = noise
        self.scheme = scheme
        self.functions = list(functions)
        self.modules = modules
        self.draws: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.real = hashlib.blake2b(digest_size=16)
        self._numbers: dict[int, int] = {}
        self._launches = 0
        self._drew = True
        self._calls: Counter[object] = Counter()
        self._inside = False
        self._own: dict[int, tuple[Any, Any]] = {}
        self._put_back: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> KernelNoise:
        if "triton" not in sys.modules:
            return self
        import triton.language as tl
        from triton.language import random
        from triton.runtime import interpreter

        for name in _REPLACED:
            self._replace(tl, name, self._noise(name, getattr(tl, name)))
            self._replace(random, name, getattr(tl, name))
        for name in _NOT_REPLACED:
            self._replace(tl, name, self._unknown(name, getattr(tl, name)))
        for function in self.functions:
            name = getattr(function, "fn", function).__name__
            own = self._noise(name, function)
            self._own[id(own)] = (own, function)
            for module in list(self.modules.values()):
                for held in [n for n, value in vars(module).items() if value is function]:
                    self._replace(module, held, own)
        launch = interpreter.GridExecutor.__call__

        def launched(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self._launches += self._drew
            self._drew = False
            return launch(executor, *args, **kwargs)

        self._replace(interpreter.GridExecutor, "__call__", launched)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for owner, name, value in reversed(self._put_back):
            setattr(owner, name, value)
        self._put_back.clear()
        for module in list(self.modules.values()) if self._own else ():  # modules that were loaded meanwhile
            for name, value in list(vars(module).items()):
                if id(value) in self._own and self._own[id(value)][0] is value:
                    setattr(module, name, self._own[id(value)][1])

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._put_back.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _unknown(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.unknown.add(f"tl.{name}")
            return function(*args, **kwargs)

        return call

    def _noise(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            try:
                real = function(*args, **kwargs)
            finally:
                self._inside = False
            if not hasattr(real, "handle"):
                self.unknown.add(name)
                return real
            data = real.handle.data
            self.real.update(data.tobytes())
            given = _whole_numbers((*args, *kwargs.values()))
            if data.size > 1 and all(np.size(value) == 1 for value in given):  # it makes the offsets of a block itself
                given.append(np.arange(data.size, dtype=np.uint64).reshape(data.shape))
            columns = [np.broadcast_to(value, data.shape).ravel() for value in given]
            numbers = self._of(np.stack(columns, axis=-1), scalar=data.size == 1)
            self.draws[name] += data.size
            uniform = numbers.astype(np.float64) / (1 << BITS)
            real.handle.data = uniform.reshape(data.shape).astype(data.dtype)
            return real

        return call

    def _of(self, arguments: np.ndarray[Any, Any], scalar: bool) -> Numbers:
        """A number for each row of arguments."""
        from triton.runtime.interpreter import interpreter_builder

        self._drew = True
        keys = np.full(len(arguments), arguments.shape[1], np.uint64)
        for column in arguments.T:
            keys = mix64(keys ^ column)
        if self.scheme == "place":
            program = (self._launches, *interpreter_builder.grid_idx)
            turn = self._calls[program]
            self._calls[program] += 1
            fresh = self.noise.row(("kernel", program, turn), len(keys), scalar)
            known = map(self._numbers.setdefault, keys.tolist(), fresh.tolist())
            numbers = np.fromiter(known, np.int64, len(keys))
        else:
            numbers = self.noise.hashed(keys, scalar)
        # Only single numbers may be 0: code that takes the logarithm of a block's does not expect it.
        return numbers if scalar else np.maximum(numbers, 1)


def _whole_numbers(values: Iterable[Any]) -> list[Any]:
    """The data of arguments that are whole numbers, as 64 bits; compile-time constants and flags are none."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool):
            found.append(np.uint64(value & _WORD))
        elif hasattr(value, "handle") and value.handle.data.dtype.kind in "iu":
            found.append(value.handle.data.astype(np.uint64))
    return found


def total(draws: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Draws of several sources together."""
    found: Counter[str] = Counter()
    for each in draws:
        found.update(each)
    return dict(found)
