"""Numbers that have the same bytes on every machine and with every version of numpy and torch.

:class:`Stream` is a counter-based generator in integer arithmetic; no transcendental function is used anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor

_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def splitmix64(key: int, first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Numbers `first` to `first + count - 1` of the splitmix64 sequence that starts at `key`; uint64 [count].

    The definition is Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    z = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    z += np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


class Stream:
    """A stream of numbers that depends on its key only. Every draw moves it on."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.used = 0

    def bits(self, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The next `count` words, uint64 [count]."""
        words = splitmix64(self.key, self.used, count)
        self.used += count
        return words

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers in [0, 1): multiples of 2^-53, 2^-24, 2^-11 or 2^-8 for float64, float32, float16 and bfloat16."""
        digits = DIGITS[dtype]
        words = self.bits(int(np.prod(shape))) >> np.uint64(64 - digits)
        return torch.from_numpy(words.astype(np.float64) * 2.0**-digits).reshape(shape).to(dtype)

    def integers(self, low: int, high: int, shape: Sequence[int] = (), dtype: torch.dtype = torch.int64) -> Tensor:
        """Whole numbers in [low, high); `high - low` is below 2^31."""
        if not 0 < high - low < 1 << 31:
            raise ValueError(f"integers between {low} and {high}: the range must be positive and below 2^31")
        words = self.bits(int(np.prod(tuple(shape))))
        drawn = ((words >> np.uint64(32)) * np.uint64(high - low)) >> np.uint64(32)
        return torch.from_numpy(drawn.astype(np.int64) + low).reshape(tuple(shape)).to(dtype)

    def integer(self, low: int, high: int) -> int:
        """One whole number in [low, high)."""
        if not 0 < high - low < 1 << 31:
            raise ValueError(f"an integer between {low} and {high}: the range must be positive and below 2^31")
        # The same sequence as :func:`splitmix64`, without the cost of an array.
        self.used += 1
        z = (self.key + self.used * _GOLDEN) & _WORD
        z = ((z ^ (z >> 30)) * _MIX_1) & _WORD
        z = ((z ^ (z >> 27)) * _MIX_2) & _WORD
        return low + ((((z ^ (z >> 31)) >> 32) * (high - low)) >> 32)

    def permutation(self, count: int) -> Tensor:
        """The numbers 0 to `count - 1` in some order, int64 [count]."""
        return torch.from_numpy(np.argsort(self.bits(count), kind="stable").astype(np.int64))

    def choice(self, items: Sequence[Any]) -> Any:
        """One of the items."""
        return items[self.integer(0, len(items))]

    def normal_like(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Bell-shaped numbers of mean 0 and deviation `scale`, within 3.47 deviations: sums of four uniforms.

        The sums are exact integers of 34 bits, so rounding happens once; a row of a few thousand has hardly a tie.
        """
        count = int(np.prod(shape))
        words = self.bits(2 * count)
        low = np.uint64(0xFFFFFFFF)
        total = ((words >> np.uint64(32)) + (words & low)).reshape(2, count).sum(axis=0, dtype=np.uint64)
        centred = total.astype(np.int64) - (1 << 33)
        plain = centred.astype(np.float64) * (2.0**-32 * 1.7320508075688772 * scale)
        return to_dtype(torch.from_numpy(plain).reshape(shape), dtype)


def stream(*key: object) -> Stream:
    """The stream of a readable key: strings and numbers (`stream("v1.sampler", "batch 4", 0)`)."""
    text = "\x1f".join(str(part) for part in key)
    return Stream(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def to_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in another float dtype: finite ones stay finite (clamped to its largest), the rest is kept."""
    most = torch.finfo(dtype).max
    clamped = torch.where(values.isfinite(), values.clamp(-most, most), values)
    return clamped.to(dtype)
