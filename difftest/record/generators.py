"""The process-wide generators of a live engine: torch's, numpy's and that of `random`. Read, never drawn from."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import struct
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from difftest.record.encode import Encoder, cuda_in_use


class Twister:
    """A process-wide Mersenne Twister, read whole (slow: 30 µs) only when it moved (quick to see).

    Args:
        full: its state as (624 words little-endian, position, second value of a Gaussian pair or None).
        raw: its words and position straight from memory, None where they cannot be found there.
        spare: the second Gaussian, where it can be asked for cheaply; else it is only trusted while there is none.
    """

    def __init__(
        self,
        full: Callable[[], tuple[bytes, int, float | None]],
        raw: Callable[[], bytes] | None,
        spare: Callable[[], float | None] | None = None,
    ) -> None:
        self._full = full
        self._raw = raw
        self._spare = spare
        self._last: tuple[bytes, tuple[bytes, int, float | None]] | None = None

    def read(self) -> tuple[bytes, int, float | None]:
        if self._raw is None:
            return self._full()
        raw, last = self._raw(), self._last
        if last is not None and raw == last[0]:
            # A Gaussian draw either takes the spare one or moves the words.
            if self._spare is None and last[1][2] is None:
                return last[1]
            if self._spare is not None and self._spare() == last[1][2]:
                return last[1]
        found = self._full()
        self._last = (raw, found)
        return found


def _numpy_full() -> tuple[bytes, int, float | None]:
    state = cast(tuple[str, Any, int, int, float], np.random.get_state())
    return state[1].astype("<u4").tobytes(), int(state[2]), float(state[4]) if state[3] else None


def _random_full() -> tuple[bytes, int, float | None]:
    _, words, spare = random.getstate()
    return struct.pack("<624I", *words[:-1]), words[-1], spare


def twisters() -> tuple[Twister, Twister]:
    """numpy's and `random`'s. Where the words are in memory is checked against the state itself, without drawing."""
    size = 4 * 625

    def found(address: int, first: bytes, last: bytes) -> Callable[[], bytes] | None:
        return (
            functools.partial(ctypes.string_at, address, size)
            if ctypes.string_at(address, size) == first + last
            else None
        )

    raw_numpy = raw_random = None
    with contextlib.suppress(AttributeError):
        words, position, _ = _numpy_full()
        address = np.random.mtrand._rand._bit_generator.ctypes.state_address
        raw_numpy = found(address, words, struct.pack("<i", position))
    with contextlib.suppress(AttributeError):
        words, position, _ = _random_full()
        instance = random._inst
        raw_random = found(id(instance) + object.__basicsize__, struct.pack("<i", position), words)
    return Twister(_numpy_full, raw_numpy), Twister(_random_full, raw_random, lambda: random._inst.gauss_next)  # type: ignore[attr-defined]


def process_states(encoder: Encoder, pair: tuple[Twister, Twister]) -> dict[str, Any]:
    """The process-wide generators now. They are read, never drawn from."""
    cuda = []
    if cuda_in_use():
        index = torch.cuda.current_device()
        cuda.append(encoder.generator(torch.cuda.default_generators[index], index))
    states = {}
    for name, twister in zip(("numpy", "random"), pair, strict=True):
        words, position, spare = twister.read()
        states[name] = {"state": encoder.state(words), "position": position, "gauss": spare}
    return {"torch": encoder.state(torch.default_generator.get_state()), "cuda": cuda, **states}
