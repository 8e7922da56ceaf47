"""Timing shapes: batch by vocabulary, as a server meets them. No targets here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import torch

from difftest.target import Pool, Shape

VOCABULARIES = (32_000, 128_000, 151_936)
BATCHES = tuple(2**power for power in range(10))
QUICK = ((1, 8, 64, 512), (32_000, 151_936))
QUICK_MOST = 1_300_000
"""Largest batch times vocabulary of the quick list, whose calls take some milliseconds at most."""

_SEED = 0x5EED


def by_batch_and_vocabulary(make: Callable[[int, int, int], Pool], most: int) -> Callable[[str], Iterator[Shape]]:
    """Shapes of a target whose time goes with the logits: batch 1 to 512 by vocabulary.

    Args:
        make: the pool from batch, vocabulary and a number; another number gives other contents and the same work.
        most: largest batch times vocabulary, so that a call stays below some 50 ms on one core.
    """

    def shapes(name: str) -> Iterator[Shape]:
        batches, vocabularies = QUICK if name == "quick" else (BATCHES, VOCABULARIES)
        for vocabulary in vocabularies:
            for batch in batches:
                if batch * vocabulary <= (min(most, QUICK_MOST) if name == "quick" else most):
                    vary = functools.partial(make, batch, vocabulary)
                    yield Shape(
                        f"batch {batch}, vocabulary {vocabulary}",
                        functools.partial(vary, 0),
                        axes={"batch": batch, "vocabulary": vocabulary},
                        vary=vary,
                    )

    return shapes


@functools.lru_cache(maxsize=2)
def _block(rows: int, vocabulary: int) -> torch.Tensor:
    drawn = np.random.Generator(np.random.PCG64([_SEED, rows, vocabulary])).standard_normal(
        (rows, vocabulary), np.float32
    )
    return torch.from_numpy(drawn).mul_(3.0)


def logits(rows: int, vocabulary: int, number: int = 0) -> torch.Tensor:
    """Logits [rows, vocabulary], float32, normal with a deviation of 3; another number turns every row round."""
    return _block(rows, vocabulary).roll(number * 7919 % vocabulary, 1)


@functools.lru_cache(maxsize=2)
def _softmax(rows: int, vocabulary: int) -> torch.Tensor:
    return _block(rows, vocabulary).softmax(-1)


def probabilities(rows: int, vocabulary: int, number: int = 0) -> torch.Tensor:
    """Their softmax."""
    return _softmax(rows, vocabulary).roll(number * 7919 % vocabulary, 1)


def token_ids(
    shape: tuple[int, ...], vocabulary: int, number: int = 0, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Ids in the vocabulary, moved on by another number."""
    count = int(np.prod(shape))
    ids = (torch.arange(count) * 104_729 + number * 7919) % vocabulary
    return ids.reshape(shape).to(dtype)
