"""Helpers for logprobs."""

import torch


def batched_count_greater_than(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Per row of `x` [batch, n], how many elements are no smaller than the row's one in `values` [batch, 1].

    For the logprob of a token among those of its row this is the token's rank, 1 being the most likely.
    Returns int64 [batch].
    """
    return torch.count_nonzero(x.ge(values), dim=1)
