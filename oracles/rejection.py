"""Rejection sampling of draft tokens, given the noise: which drafts are accepted, what replaces the first that is not.

From the definition of speculative sampling: a draft token x is accepted with probability min(1, p(x) / q(x)), where p
is the target's and q the draft's distribution; after the first rejection one token is drawn from max(p - q, 0), scaled
to sum to 1; when all are accepted, one more token, the bonus token, is drawn from p. A greedy request accepts a draft
token when it is the target's argmax, which also replaces it. Written a request and a position at a time.

Shapes: N draft tokens of B requests, request by request; `counts` [B] says how many each has. The result is int
[B, S + 1], S the most drafts of a request, with placeholders after a request's last token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

PLACEHOLDER = -1

Floats = NDArray[np.floating]
Ids = NDArray[np.integer]


def greedy(counts: Sequence[int], drafts: Ids, target_argmax: Ids, bonus: Ids) -> Ids:
    """Greedy requests.

    Args:
        drafts, target_argmax: [N].
        bonus: [B], the token after all drafts.
    """
    found = _placeholders(counts)
    for request, start, count in _spans(counts):
        for position in range(count):
            found[request, position] = target_argmax[start + position]
            if drafts[start + position] != target_argmax[start + position]:
                break
        else:
            found[request, count] = bonus[request]
    return found


def accepts(draft: int, target: Floats, draft_probabilities: Floats | None, uniform: float) -> bool:
    """Whether a draft token is accepted, given the uniform number drawn for it.

    Args:
        draft: the id; a negative one stands for no draft and is never accepted.
        target: p [V]. draft_probabilities: q [V]; None when the draft was not drawn, so that q(draft) = 1.
    """
    if draft < 0:
        return False
    q = np.float32(1) if draft_probabilities is None else draft_probabilities[draft]
    return bool(q > 0 and np.float64(target[draft] / q) >= uniform)


def random(
    counts: Sequence[int],
    drafts: Ids,
    draft_probabilities: Floats | None,
    target: Floats,
    bonus: Ids,
    recovered: Ids,
    uniform: Floats,
) -> Ids:
    """Requests that sample.

    Args:
        drafts, recovered, uniform: [N]. draft_probabilities, target: [N, V]. bonus: [B].
    """
    found = _placeholders(counts)
    for request, start, count in _spans(counts):
        for position in range(start, start + count):
            q = None if draft_probabilities is None else draft_probabilities[position]
            accepted = accepts(int(drafts[position]), target[position], q, float(uniform[position]))
            found[request, position - start] = drafts[position] if accepted else recovered[position]
            if not accepted:
                break
        else:
            found[request, count] = bonus[request]
    return found


def recovered(
    counts: Sequence[int], drafts: Ids, draft_probabilities: Floats | None, target: Floats, exponential: Floats
) -> Ids:
    """The token that replaces each draft token should it be rejected, [N].

    Drawn by the exponential race: of independent exponential numbers e, the argmax of w / e is x with probability
    w(x) / sum(w). The lowest id wins among equals.

    Args:
        exponential: e [B, V], one row for each request.
    """
    found = np.zeros(len(drafts), dtype=np.int64)
    for request, start, count in _spans(counts):
        for position in range(start, start + count):
            weights = target[position].copy()
            if draft_probabilities is None:
                if 0 <= drafts[position] < len(weights):
                    weights[drafts[position]] = 0
            else:
                weights = np.maximum(weights - draft_probabilities[position], 0)
            inverse = (np.float32(1) / exponential[request]).astype(exponential.dtype)
            found[position] = int(np.argmax(weights * inverse))
    return found


def _spans(counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(request, first draft token, how many)."""
    start = 0
    for request, count in enumerate(counts):
        yield request, start, count
        start += count


def _placeholders(counts: Sequence[int]) -> Ids:
    return np.full((len(counts), max(counts, default=0) + 1), PLACEHOLDER, dtype=np.int64)
