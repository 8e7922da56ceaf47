"""The V1 sampler: from logits to one token a request."""

import torch
import torch.nn as nn

from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.logprobs import batched_count_greater_than
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample

# A temperature below this asks for the most likely token.
_SAMPLING_EPS = 1e-5


class Sampler(nn.Module):
    """Temperature, then top-k and top-p, then the draw; logprobs for whoever asks."""

    def sample(self, logits: torch.Tensor, sampling_metadata: SamplingMetadata) -> torch.Tensor:
        """Token ids int64 [batch]. `logits` (float32 [batch, vocab]) are scaled in place."""
        if sampling_metadata.all_greedy:
            return self.greedy_sample(logits)
        temperature = sampling_metadata.temperature
        most_likely = None if sampling_metadata.all_random else self.greedy_sample(logits)
        logits = self.apply_temperature(logits, temperature, sampling_metadata.all_random)
        logits = apply_top_k_top_p(logits, sampling_metadata.top_k, sampling_metadata.top_p)
        drawn = random_sample(self.compute_logprobs(logits).exp(), sampling_metadata.generators)
        return drawn if most_likely is None else torch.where(temperature < _SAMPLING_EPS, most_likely, drawn)

    @staticmethod
    def greedy_sample(logits: torch.Tensor) -> torch.Tensor:
        """The most likely token of each request, int64 [batch]."""
        return torch.argmax(logits, dim=1)

    @staticmethod
    def apply_temperature(logits: torch.Tensor, temp: torch.Tensor, all_random: bool) -> torch.Tensor:
        """Divide each row of `logits` (float32 [batch, vocab]) by its temperature, in place.

        Greedy rows keep their logits. With `all_random` the caller vouches that there are none.
        """
        divisor = temp if all_random else temp.masked_fill(temp < _SAMPLING_EPS, 1.0)
        logits /= divisor[:, None]
        return logits

    @staticmethod
    def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
        """float32 [batch, vocab]."""
        return torch.log_softmax(logits, dim=-1, dtype=torch.float32)

    @staticmethod
    def gather_logprobs(
        logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor
    ) -> LogprobsTensors:
        """Logprobs (float32 [batch, vocab]) of the sampled `token_ids` (int64 [batch]) and the most likely.

        Rows have 1 + num_logprobs columns, the sampled token first.
        """
        sampled = token_ids[:, None]
        sampled_logprobs = logprobs.take_along_dim(sampled, dim=1)
        top = logprobs.topk(num_logprobs, dim=1)
        return LogprobsTensors(
            logprob_token_ids=torch.hstack((sampled, top.indices)).to(torch.int32),
            logprobs=torch.hstack((sampled_logprobs, top.values)),
            selected_token_ranks=batched_count_greater_than(logprobs, sampled_logprobs),
        )
