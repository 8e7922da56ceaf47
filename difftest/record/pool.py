"""The pool of a case as JSON plus the memory behind it. Needs torch; :mod:`difftest.record.casefile` reads it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from difftest.record.decode import (
    Opaque,
    RecordedEnum,
    RecordedGenerator,
    RecordedMethod,
    RecordedObject,
    RecordedSymbol,
)
from difftest.record.encode import Encoder, Handler
from difftest.record.forms import Json
from difftest.record.storages import Storages
from difftest.target import GeneratorStates, Made, Seeded

_CONTAINERS = (list, tuple, dict, np.ndarray)
_KEPT = (
    torch.Tensor, np.generic, torch.dtype, np.dtype, torch.device, torch.Size, bytes, complex, range, slice,
)  # fmt: skip


class PoolEncoder(Encoder):
    """Encodes the values of one pool. Storages are kept whole, since bytes that no view shows are part of a case.

    Attributes:
        refused: what could not be encoded, in words.
    """

    __slots__ = ("refused",)

    def __init__(self) -> None:
        super().__init__("", storages=Storages(whole=True))
        self.refused: list[str] = []

    def __call__(self, value: Any) -> Json:
        node = super().__call__(value)
        if type(node) is dict and "opaque" in node and type(value) is not Opaque:
            self.refused.append(f"a {type(value).__qualname__}: {node['opaque']['why']}")
        return node

    def _handler(self, kind: type) -> Handler:
        own = _OWN.get(kind)
        if own is not None:
            return own
        if kind in _CONTAINERS or issubclass(kind, _KEPT):
            return super()._handler(kind)
        return lambda *_: {
            "opaque": {"class": "", "why": "a case file holds tensors, arrays, plain values, Seeded and Made"}
        }

    def _made(self, value: Made) -> Json:
        symbols = [value.symbol] if isinstance(value.symbol, str) else list(value.symbol)
        fields = {str(name): self(item) for name, item in value.fields.items()}
        return {"made": {"symbols": symbols, "fields": fields, "optional": sorted(value.optional)}}

    def _plain_set(self, value: set[Any]) -> Json:
        return self._again(value) or {"set": [self(item) for item in sorted(value, key=repr)]}

    def rng(self, states: GeneratorStates) -> Json:
        """The process-wide generators, in the form of a capture's `rng`."""
        _, words, position, has_gauss, gauss = states.numpy_state
        _, random_words, random_gauss = states.random_state
        return {
            "torch": self.states.keep(states.torch_cpu),
            "cuda": [self._generator_node(item)["generator"] for item in states.torch_cuda.values()],
            "numpy": self._twister(words, position, gauss if has_gauss else None),
            "random": self._twister(random_words[:-1], random_words[-1], random_gauss),
        }

    def _twister(self, words: Any, position: int, gauss: float | None) -> Json:
        state = np.asarray(words, np.uint32).astype("<u4").tobytes()
        return {"state": self.states.keep(state), "position": int(position), "gauss": gauss}

    def _recorded(self, value: RecordedObject) -> Json:
        if again := self._again(value):
            return again
        fields = {name: self(item) for name, item in value.fields.items()}
        return {"object": {"class": value.symbol, "kind": value.kind, "fields": fields}}

    def _recorded_generator(self, value: RecordedGenerator) -> Json:
        return self._again(value) or self._generator_node(value)

    def _generator_node(self, value: RecordedGenerator) -> dict[str, Any]:
        parts = {"index": value.index, "device": value.device, "seed": value.seed, "offset": value.offset}
        return {"generator": {**parts, "state": self.states.keep(value.state)}}


_OWN: dict[type, Callable[[Any, Any], Json]] = {
    Seeded: lambda _, value: {"seeded": value.seed},
    Made: PoolEncoder._made,
    set: PoolEncoder._plain_set,
    frozenset: lambda encode, value: {"frozenset": [encode(item) for item in sorted(value, key=repr)]},
    RecordedObject: PoolEncoder._recorded,
    RecordedGenerator: PoolEncoder._recorded_generator,
    RecordedSymbol: lambda _, value: {"symbol": value.symbol},
    RecordedEnum: lambda _, value: {"enum": {"class": value.symbol, "name": value.name}},
    RecordedMethod: lambda encode, value: {"method": {"self": encode(value.owner), "name": value.name}},
    Opaque: lambda _, value: {"opaque": {"class": value.symbol, "why": value.why}},
}
