"""What speculative decoding hands back: several token ids a request, of which some were accepted."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn as nn

from vllm.v1.outputs import LogprobsLists, LogprobsTensors

# Fills the columns after the last accepted token of a request.
PLACEHOLDER_TOKEN_ID = -1


class RejectionSampler(nn.Module):
    """The demonstration carries only the last step, which turns the batch's token ids into lists."""

    @staticmethod
    def parse_output(
        output_token_ids: torch.Tensor,
        vocab_size: int,
        discard_req_indices: Sequence[int] = (),
        logprobs_tensors: LogprobsTensors | None = None,
    ) -> tuple[list[list[int]], LogprobsLists | None]:
        """Keep the real tokens of each request: no placeholders, nothing beyond the vocabulary.

        Args:
            output_token_ids: int32 or int64 [batch, max_spec_len + 1].
            vocab_size: ids from here on are not tokens.
            discard_req_indices: requests that get no tokens in this step (a list, an array or a tensor).
                Their logprobs stay, since whoever reads them goes by the boundaries.
            logprobs_tensors: a row for each entry of `output_token_ids`, row by row.

        Returns:
            A list of ints for each request, and the logprobs of the kept tokens.
        """
        token_ids = output_token_ids.numpy(force=True)
        is_token = np.not_equal(token_ids, PLACEHOLDER_TOKEN_ID)
        is_token &= token_ids <= vocab_size

        logprobs = None
        if logprobs_tensors is not None:
            boundaries = np.zeros(len(token_ids) + 1, dtype=np.int64)
            boundaries[1:] = np.cumsum(np.count_nonzero(is_token, axis=1))
            kept = torch.from_numpy(is_token.ravel())
            logprobs = logprobs_tensors.filter(kept).tolists(boundaries.tolist())

        is_token[np.asarray(discard_req_indices, dtype=np.int64)] = False
        return [row[keep].tolist() for row, keep in zip(token_ids, is_token, strict=True)], logprobs
