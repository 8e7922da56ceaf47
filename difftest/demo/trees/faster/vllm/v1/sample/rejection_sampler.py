"""What speculative decoding hands back: several token ids a request, of which some were accepted."""

from collections.abc import Sequence
from itertools import accumulate

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
        # One conversion for the batch: for rows this short, a NumPy call a row costs more than plain Python.
        rows = output_token_ids.tolist()
        tokens = [[id_ for id_ in row if id_ != PLACEHOLDER_TOKEN_ID and id_ < vocab_size] for row in rows]

        logprobs = None
        if logprobs_tensors is not None:
            kept = [id_ != PLACEHOLDER_TOKEN_ID and id_ < vocab_size for row in rows for id_ in row]
            filtered = logprobs_tensors.filter(torch.tensor(kept, dtype=torch.bool))
            logprobs = filtered.tolists([0, *accumulate(map(len, tokens))])

        if len(discard_req_indices) > 0:
            stays = np.ones(len(rows), dtype=np.bool_)
            stays[np.asarray(discard_req_indices, dtype=np.int64)] = False
            tokens = [row if stay else [] for row, stay in zip(tokens, stays.tolist(), strict=True)]
        return tokens, logprobs
