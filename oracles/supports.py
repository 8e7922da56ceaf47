"""Supports: the ids that a row can be sampled from, after top-k and top-p; as booleans, as bits, as lists of ids."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating]


def top_k(logits: Floats, k: int) -> Bools:
    """Whether each id [V] is at least as large as the k-th largest; ids that tie with that one are all kept."""
    kept: Bools = logits > -np.inf
    if 0 < k < len(logits):
        kept &= logits >= np.sort(logits)[-k]
    return kept


def top_p(logits: Floats, p: float) -> Bools:
    """Whether each id [V] belongs to the smallest set of most probable ids whose probabilities sum to p or more.

    The most probable id always belongs to it. Among equal ids the higher one comes first. Sums are float64 here; a
    sampler that sums in float32 may differ by an id whose cumulated probability is p up to rounding.
    """
    kept: Bools = logits > -np.inf
    if p >= 1 or not kept.any():
        return kept
    weights = np.exp(logits.astype(np.float64) - np.max(logits))
    order = np.argsort(logits, kind="stable")  # ascending
    before = 1 - np.cumsum(weights[order]) / weights.sum()  # probability of what is more probable
    chosen = np.zeros_like(kept)
    chosen[order] = before < p
    chosen[order[-1]] = True
    return kept & chosen


def support(logits: Floats, k: int | None = None, p: float | None = None) -> Bools:
    """Ids [V] that are left after top-k and then top-p, None for neither."""
    kept = top_k(logits, len(logits) if k is None else k)
    return kept if p is None else top_p(np.where(kept, logits, -np.inf), p)


def pack(kept: Bools) -> NDArray[np.uint8]:
    """Booleans [R, V] as bytes [R, ceil(V / 8)]: id i is bit i mod 8 of byte i div 8; bits past V are 0."""
    rows, vocabulary = kept.shape
    found = np.zeros((rows, (vocabulary + 7) // 8), dtype=np.uint8)
    for token in range(vocabulary):
        found[:, token // 8] |= kept[:, token].astype(np.uint8) << np.uint8(token % 8)
    return found


def unpack(packed: NDArray[np.uint8], vocabulary: int) -> Bools:
    """Booleans [R, V] of bytes as :func:`pack` makes them; bits past V do not count."""
    tokens = np.arange(vocabulary)
    found: Bools = (packed[:, tokens // 8] >> (tokens % 8).astype(np.uint8)) & 1 == 1
    return found


def unpack_words(words: NDArray[np.int32], vocabulary: int) -> Bools:
    """Booleans [R, V] of a grammar's int32 words [R, ceil(V / 32)]: id i is bit i mod 32 of word i div 32."""
    tokens = np.arange(vocabulary)
    found: Bools = (words.view(np.uint32)[:, tokens // 32] >> (tokens % 32).astype(np.uint32)) & 1 == 1
    return found


class Compact(NamedTuple):
    """Supports of rows as lists: how many ids each row has [R], and the ids of all rows in ascending order."""

    counts: NDArray[np.int64]
    token_ids: NDArray[np.int64]

    def rows(self) -> list[NDArray[np.int64]]:
        """The ids row by row."""
        return np.split(self.token_ids, np.cumsum(self.counts)[:-1]) if len(self.counts) else []


def compact(kept: Bools) -> Compact:
    """Booleans [R, V] as lists of ids."""
    return Compact(kept.sum(axis=1, dtype=np.int64), np.nonzero(kept)[1].astype(np.int64))


def committed_rows(first_rows: NDArray[np.integer], committed: NDArray[np.integer]) -> list[int]:
    """The logits rows that committed tokens were sampled from, request by request.

    Args:
        first_rows: [B + 1], where each request's logits rows begin.
        committed: [B], tokens that each request committed; they belong to its first rows.
    """
    return [int(first) + slot for first, count in zip(first_rows[:-1], committed, strict=True) for slot in range(count)]
