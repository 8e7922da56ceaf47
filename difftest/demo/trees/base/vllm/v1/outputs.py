"""What the samplers hand on: tensors while the step runs, lists and arrays once it is done."""

from typing import NamedTuple

import numpy as np
import torch


class LogprobsLists(NamedTuple):
    """Logprobs on the host. A position is one generated token; a row belongs to one position.

    Attributes:
        logprob_token_ids: int32 [num_positions, 1 + num_logprobs], the sampled token first.
        logprobs: float32 [num_positions, 1 + num_logprobs].
        sampled_token_ranks: int64 [num_positions], 1 for the most likely token.
        cu_num_generated_tokens: request r owns the rows from entry r to entry r + 1. None: one row each.
    """

    logprob_token_ids: np.ndarray
    logprobs: np.ndarray
    sampled_token_ranks: np.ndarray
    cu_num_generated_tokens: list[int] | None = None


class LogprobsTensors(NamedTuple):
    """Logprobs on the device; the fields are those of `LogprobsLists`."""

    logprob_token_ids: torch.Tensor
    logprobs: torch.Tensor
    selected_token_ranks: torch.Tensor
    cu_num_generated_tokens: list[int] | None = None

    def filter(self, mask: torch.Tensor) -> "LogprobsTensors":
        """The positions at which `mask` (bool [num_positions]) is true. They must not be grouped yet."""
        if self.cu_num_generated_tokens is not None:
            raise ValueError("the positions are grouped by request; filter them before that")
        per_position = (self.logprob_token_ids, self.logprobs, self.selected_token_ranks)
        return LogprobsTensors(*(field[mask] for field in per_position))

    def tolists(self, cu_num_generated_tokens: list[int] | None = None) -> LogprobsLists:
        """The same on the host, grouped by `cu_num_generated_tokens` or else as the object is."""
        if cu_num_generated_tokens is None:
            cu_num_generated_tokens = self.cu_num_generated_tokens
        per_position = (self.logprob_token_ids, self.logprobs, self.selected_token_ranks)
        return LogprobsLists(*(field.numpy(force=True) for field in per_position), cu_num_generated_tokens)


class SamplingMaskLists(NamedTuple):
    """Which tokens were open to sampling: position p owns `token_ids[offsets[p]:offsets[p + 1]]`, ascending.

    `token_ids` is int32, `offsets` is int64 [num_positions + 1].
    """

    token_ids: np.ndarray
    offsets: np.ndarray | None = None
    cu_num_generated_tokens: list[int] | None = None

    def slice_request(self, req_idx: int, num_positions: int) -> "SamplingMaskLists":
        """The masks of one request's positions, with offsets that begin at 0; none for a single position."""
        cu = self.cu_num_generated_tokens
        first = req_idx if cu is None else cu[req_idx]
        bounds = self.offsets[first : first + num_positions + 1]
        ids = self.token_ids[bounds[0] : bounds[-1]]
        return SamplingMaskLists(ids) if num_positions == 1 else SamplingMaskLists(ids, bounds - bounds[0])

    def to_nested_list(self) -> list[list[int]]:
        """A list of token ids for each position."""
        ids = self.token_ids.tolist()
        if self.offsets is None:
            return [ids]
        bounds = self.offsets.tolist()
        return [ids[first:last] for first, last in zip(bounds, bounds[1:])]
