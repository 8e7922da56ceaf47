"""What the definition of rejection sampling says of the V1 cases; None wherever it leaves something open.

It is left open where noise is drawn inside the call, where rounding decides which id is the most likely, and where a
case is outside of what a caller may send.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from difftest.oracles import rejection
from difftest.target import Left, Pool

_MARGIN = 1e-4
"""By how much, relatively, the best must be ahead of the second for rounding not to decide."""


def rejection_sample(pool: Pool) -> Any:
    """The ids that an all-greedy batch commits."""
    logits: torch.Tensor = pool["target_logits"]
    if not pool["all_greedy"] or pool.get("synthetic_mode") or pool["steps"] != 1 or not _decided(logits):
        return None
    bonus = pool["bonus_token_ids"].numpy()[:, 0]
    argmax = logits.argmax(-1).numpy()
    return rejection.greedy(pool["num_draft_tokens"], pool["draft_token_ids"].numpy(), argmax, bonus).tolist()


def greedy_kernel(pool: Pool) -> Any:
    """What the kernel writes for greedy requests; of the others it leaves the placeholders."""
    if pool["SYNTHETIC_MODE"]:
        return None
    counts = _counts(pool)
    given = (pool[f"{name}_ptr"].numpy() for name in ("draft_token_ids", "target_argmax", "bonus_token_ids"))
    return _written(pool, rejection.greedy(counts, *given), greedy=True)


def random_kernel(pool: Pool) -> Any:
    """What the kernel writes for requests that sample; of the others it leaves the placeholders."""
    ids, target, draft = pool["draft_token_ids_ptr"], pool["target_probs_ptr"], pool["draft_probs_ptr"]
    if pool["SYNTHETIC_MODE"] or not _plain(ids, target, draft):
        return None
    found = rejection.random(
        _counts(pool),
        ids.numpy(),
        None if draft is None else draft.numpy(),
        target.numpy(),
        *(pool[f"{name}_ptr"].numpy() for name in ("bonus_token_ids", "recovered_token_ids", "uniform_probs")),
    )
    return _written(pool, found, greedy=False)


def recovered_kernel(pool: Pool) -> Any:
    """The ids that the kernel writes, where the race is not decided by rounding."""
    ids, target, draft = pool["draft_token_ids_ptr"], pool["target_probs_ptr"], pool["draft_probs_ptr"]
    noise = pool["q_ptr"]
    if not _plain(ids, target, draft) or not (noise.isfinite().all() and (noise > 0).all()):
        return None
    weights = target.double().clone() if draft is None else (target.double() - draft.double()).clamp(min=0)
    if draft is None:
        known = ids >= 0
        weights[known.nonzero()[:, 0], ids[known].long()] = 0
    counts = _counts(pool)
    requests = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    if not _decided(weights / noise.double()[requests]):
        return None
    found = rejection.recovered(
        counts, ids.numpy(), None if draft is None else draft.numpy(), target.numpy(), noise.numpy()
    )
    return Left({"output_token_ids_ptr": found.tolist()})


def _counts(pool: Pool) -> list[int]:
    ends: torch.Tensor = pool["cu_num_draft_tokens_ptr"]
    return torch.diff(ends, prepend=ends.new_zeros(1)).tolist()


def _decided(values: torch.Tensor) -> bool:
    """Whether each row [R, V] has a largest value that no rounding of the values can change."""
    if not values.isfinite().all():
        return False
    if values.shape[1] < 2 or not len(values):
        return True
    best, second = values.double().topk(2, dim=-1).values.unbind(-1)
    return bool(((best - second) > _MARGIN * torch.maximum(best.abs(), second.abs())).all())


def _plain(ids: torch.Tensor, target: torch.Tensor, draft: torch.Tensor | None) -> bool:
    """Whether ids are in the vocabulary or no draft, and probabilities are finite and not negative."""
    probabilities = [target] if draft is None else [target, draft]
    return bool((ids < target.shape[1]).all()) and all(
        bool(one.isfinite().all() and (one >= 0).all()) for one in probabilities
    )


def _written(pool: Pool, found: Any, greedy: bool) -> Any:
    """The output buffer [B, S + 1] after the kernel wrote the rows of requests that are greedy, or that are not."""
    output = pool["output_token_ids_ptr"].numpy().copy()
    flags = pool["is_greedy_ptr"]
    mine = np.full(len(output), greedy if flags is None else False)
    if flags is not None:
        mine = flags.numpy() == greedy
    elif not greedy:
        mine[:] = True
    output[mine, : found.shape[1]] = found[mine]
    return Left({"output_token_ids_ptr": output.tolist()})
