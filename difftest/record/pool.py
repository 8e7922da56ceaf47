"""The pool of a case as JSON plus the memory behind it. Needs torch; :mod:`difftest.record.casefile` reads it back."""

from __future__ import annotations

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
from difftest.record.encode import Encoder, Json
from difftest.target import GeneratorStates, Made, Seeded

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
        super().__init__("")
        self.refused: list[str] = []

    def _view(self, device: str, address: int, whole: int, first: int, last: int, owner: Any) -> int:
        return super()._view(device, address, whole, 0, whole, owner)

    def _guarded(self, value: Any, kind: type) -> Json:
        node = super()._guarded(value, kind)
        if kind is not Opaque and type(node) is dict and "opaque" in node:
            self.refused.append(f"a {kind.__qualname__}: {node['opaque']['why']}")
        return node

    def _other(self, value: Any, kind: type) -> Json:
        if kind is Seeded:
            return {"seeded": value.seed}
        if kind is Made:
            symbols = [value.symbol] if isinstance(value.symbol, str) else list(value.symbol)
            fields = {str(name): self(item) for name, item in value.fields.items()}
            return {"made": {"symbols": symbols, "fields": fields, "optional": sorted(value.optional)}}
        if kind is frozenset:
            return {"frozenset": [self(item) for item in sorted(value, key=repr)]}
        if kind is set:
            return self._numbered(value) or {"set": [self(item) for item in sorted(value, key=repr)]}
        if kind is RecordedObject:
            return self._numbered(value) or self._recorded(value)
        if kind is RecordedGenerator:
            return self._numbered(value) or self._recorded_generator(value)
        if kind is RecordedSymbol:
            return {"symbol": value.symbol}
        if kind is RecordedEnum:
            return {"enum": {"class": value.symbol, "name": value.name}}
        if kind is RecordedMethod:
            return {"method": {"self": self(value.owner), "name": value.name}}
        if kind is Opaque:
            return {"opaque": {"class": value.symbol, "why": value.why}}
        if isinstance(value, _KEPT):
            return super()._other(value, kind)
        return {"opaque": {"class": "", "why": "a case file holds tensors, arrays, plain values, Seeded and Made"}}

    def rng(self, states: GeneratorStates) -> Json:
        """The process-wide generators, in the form of a capture's `rng`."""
        _, words, position, has_gauss, gauss = states.numpy_state
        _, random_words, random_gauss = states.random_state
        return {
            "torch": self.state(states.torch_cpu),
            "cuda": [self._recorded_generator(item)["generator"] for item in states.torch_cuda.values()],
            "numpy": self._twister(words, position, gauss if has_gauss else None),
            "random": self._twister(random_words[:-1], random_words[-1], random_gauss),
        }

    def _twister(self, words: Any, position: int, gauss: float | None) -> Json:
        state = np.asarray(words, np.uint32).astype("<u4").tobytes()
        return {"state": self.state(state), "position": int(position), "gauss": gauss}

    def _recorded(self, value: RecordedObject) -> Json:
        fields = {name: self(item) for name, item in value.fields.items()}
        return {"object": {"class": value.symbol, "kind": value.kind, "fields": fields}}

    def _recorded_generator(self, value: RecordedGenerator) -> Json:
        parts = {"index": value.index, "device": value.device, "seed": value.seed, "offset": value.offset}
        return {"generator": {**parts, "state": self.state(value.state)}}
