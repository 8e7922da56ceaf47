"""The process-wide generators of a live engine: torch's, numpy's and that of `random`. Read, never drawn from."""

from __future__ import annotations

import contextlib
import ctypes
import random
import struct
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from difftest.record.storages import compare_small, device_name

_STATE = 4 * 625
"""Bytes of the words and the position."""


class Twister:
    """A process-wide Mersenne Twister, read whole (slow: 30 µs) only when it moved (quick to see).

    Args:
        full: its state as (624 words little-endian, position, second value of a Gaussian pair or None).
        address: of its words and position in memory, 0 where they cannot be found there.
        spare: the second Gaussian, where it can be asked for cheaply; else it is only trusted while there is none.
    """

    def __init__(
        self,
        full: Callable[[], tuple[bytes, int, float | None]],
        address: int,
        spare: Callable[[], float | None] | None = None,
    ) -> None:
        self._full = full
        self._address = address
        self._spare = spare
        self._last: tuple[bytes, tuple[bytes, int, float | None]] | None = None

    def read(self) -> tuple[bytes, int, float | None]:
        """Its state. The same bytes object when it did not move."""
        if not self._address:
            return self._full()
        if (last := self._last) is not None and not compare_small(self._address, last[0], _STATE):
            # A Gaussian draw either takes the spare one or moves the words.
            spare = self._spare() if self._spare is not None else None
            if spare == last[1][2]:
                return last[1]
        raw, found = ctypes.string_at(self._address, _STATE), self._full()
        self._last = raw, found
        return found


def _numpy_full() -> tuple[bytes, int, float | None]:
    state = cast(tuple[str, Any, int, int, float], np.random.get_state())
    return state[1].astype("<u4").tobytes(), int(state[2]), float(state[4]) if state[3] else None


def _random_full() -> tuple[bytes, int, float | None]:
    _, words, spare = random.getstate()
    return struct.pack("<624I", *words[:-1]), words[-1], spare


def twisters() -> tuple[Twister, Twister]:
    """numpy's and `random`'s. Where the words are in memory is checked against the state itself, without drawing."""

    def checked(address: int, first: bytes, last: bytes) -> int:
        return address if ctypes.string_at(address, _STATE) == first + last else 0

    numpy_address = random_address = 0
    with contextlib.suppress(AttributeError):
        words, position, _ = _numpy_full()
        address = np.random.mtrand._rand._bit_generator.ctypes.state_address
        numpy_address = checked(address, words, struct.pack("<i", position))
    with contextlib.suppress(AttributeError):
        words, position, _ = _random_full()
        address = id(random._inst) + object.__basicsize__
        random_address = checked(address, struct.pack("<i", position), words)
    return Twister(_numpy_full, numpy_address), Twister(_random_full, random_address, lambda: random._inst.gauss_next)  # type: ignore[attr-defined]


class States:
    """States of generators, by their number.

    Attributes:
        kept: bytes, or tensors of bytes that nothing else refers to.
    """

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: list[bytes | torch.Tensor] = []

    def keep(self, data: bytes | torch.Tensor) -> int:
        """Keep a state; its number."""
        self.kept.append(data)
        return len(self.kept) - 1

    def generator(self, value: torch.Generator, index: int) -> dict[str, Any]:
        """Device, seed, offset (where it has one) and number of the state of a generator. Nothing is drawn from it."""
        self.kept.append(value.get_state())
        device = device_name(value.device)
        return {
            "index": index,
            "device": device,
            "seed": value.initial_seed(),
            "offset": value.get_offset() if device.startswith("cuda") else None,
            "state": len(self.kept) - 1,
        }


def process_states(states: States, pair: tuple[Twister, Twister]) -> dict[str, Any]:
    """The process-wide generators now. They are read, never drawn from."""
    cuda = []
    if cuda_in_use():
        index = torch.cuda.current_device()
        cuda.append(states.generator(torch.cuda.default_generators[index], index))
    found = {}
    for name, twister in zip(("numpy", "random"), pair, strict=True):
        words, position, spare = twister.read()
        found[name] = {"state": states.keep(words), "position": position, "gauss": spare}
    return {"torch": states.keep(torch.default_generator.get_state()), "cuda": cuda, **found}


def cuda_in_use() -> bool:
    """Whether this process has begun to use CUDA; asking does not begin it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
