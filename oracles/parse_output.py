"""Sampled ids as lists: what a request's row of a rejection sampler's output says.

A row holds the ids that a request committed and placeholders. An id counts when it is neither a placeholder nor
beyond the vocabulary; a request that is discarded has none. Logprob rows belong to the ids of all rows, row by row,
whether the request is discarded or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PLACEHOLDER = -1


class Logprobs(NamedTuple):
    """Of each position: candidate ids [R * C, K + 1], their logprobs (the same shape), the id's rank [R * C]."""

    token_ids: NDArray[np.integer]
    logprobs: NDArray[np.floating]
    ranks: NDArray[np.integer]


class Parsed(NamedTuple):
    """Ids by request, and the logprob rows that belong to ids, with where each request's rows begin; or None."""

    tokens: list[list[int]]
    logprobs: Logprobs | None
    starts: list[int] | None


def parse_output(
    sampled: NDArray[np.integer], vocabulary: int, discarded: Iterable[int] = (), logprobs: Logprobs | None = None
) -> Parsed:
    """Ids [R, C] by request.

    Args:
        sampled: ids and placeholders.
        vocabulary: ids from it on do not count.
        discarded: requests whose ids do not count; negative indices count from the end.
    """
    kept = [[PLACEHOLDER != token < vocabulary for token in row] for row in sampled.tolist()]
    tokens = [
        [token for token, keep in zip(row, keeps, strict=True) if keep]
        for row, keeps in zip(sampled.tolist(), kept, strict=True)
    ]
    starts = [0]
    for row in tokens:
        starts.append(starts[-1] + len(row))
    found = None
    if logprobs is not None:
        rows = np.array([keep for keeps in kept for keep in keeps], dtype=bool)
        found = Logprobs(logprobs.token_ids[rows], logprobs.logprobs[rows], logprobs.ranks[rows])
    for request in discarded:
        tokens[request] = []
    return Parsed(tokens, found, starts if logprobs is not None else None)
