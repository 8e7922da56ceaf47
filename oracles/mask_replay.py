"""Checks of a replayed sampling mask: what the mask of each committed token must have to do with its logits.

Each check gives the rows that fail it, as lines; none is no failure. C committed tokens, masks [C, V] one a token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from difftest.oracles.supports import Bools, Floats

Ids = NDArray[np.integer]


def membership(token_ids: Ids, masks: Bools) -> list[str]:
    """Every committed token is in its own mask."""
    return [
        f"token {number}: id {token} is not in its mask of {int(mask.sum())} ids"
        for number, (token, mask) in enumerate(zip(token_ids.tolist(), masks, strict=True))
        if not (0 <= token < len(mask) and mask[token])
    ]


def row_alignment(counts: Ids, committed: Ids) -> list[str]:
    """There are as many mask rows for each request as tokens it committed.

    Args:
        counts: [B], mask rows by request. committed: [B].
    """
    if len(counts) != len(committed):
        return [f"masks of {len(counts)} requests for {len(committed)} requests"]
    return [
        f"request {request}: {rows} mask rows for {tokens} tokens"
        for request, (rows, tokens) in enumerate(zip(counts.tolist(), committed.tolist(), strict=True))
        if rows != tokens
    ]


def support_alignment(masks: Bools, logits: Floats, rows: list[int]) -> list[str]:
    """Every mask is the support of the logits row that its token was sampled from: the ids whose logit is finite.

    Args:
        logits: [L, V], processed.
        rows: [C], the row of each token.
    """
    if len(rows) != len(masks):
        return [f"{len(masks)} masks for {len(rows)} rows"]
    found = []
    for number, (mask, row) in enumerate(zip(masks, rows, strict=True)):
        expected = np.isfinite(logits[row])
        if apart := np.flatnonzero(mask != expected).tolist():
            other = [r for r in range(len(logits)) if np.array_equal(np.isfinite(logits[r]), mask)]
            hint = f"; it is that of row {other[0]}" if other else ""
            found.append(f"token {number}: mask and row {row} differ in {len(apart)} ids, first {apart[0]}{hint}")
    return found


def probabilities(mask: Bools, logits: Floats) -> Floats:
    """Probabilities [V] of one row from its unmasked logits and its mask: softmax over the mask's ids, 0 elsewhere.

    In the dtype of the logits, the sum over the mask's ids alone, so that it does not depend on the other logits.
    """
    found = np.zeros_like(logits)
    ids = np.flatnonzero(mask)
    weights = np.exp(logits[ids] - np.max(logits[ids]))
    found[ids] = weights / np.sum(weights)
    return found


def reconstruction(masks: Bools, unmasked: Floats, processed: Floats, rows: list[int]) -> list[str]:
    """The probabilities of each token's row are the same bytes from unmasked logits and mask as from processed logits.

    Args:
        unmasked: [L, V], the logits before masking (temperature applied). processed: [L, V], after it.
    """
    found = []
    for number, (mask, row) in enumerate(zip(masks, rows, strict=True)):
        if not mask.any():
            found.append(f"token {number}: its mask is empty")
            continue
        from_mask = probabilities(mask, unmasked[row])
        from_logits = probabilities(np.isfinite(processed[row]), processed[row])
        if apart := np.flatnonzero(
            from_mask.view(_BITS[from_mask.dtype.itemsize]) != from_logits.view(_BITS[from_logits.dtype.itemsize])
        ).tolist():
            found.append(f"token {number}: probabilities of row {row} differ in {len(apart)} ids, first {apart[0]}")
    return found


_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
