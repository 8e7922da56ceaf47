"""What the requests of a batch asked of the sampler."""

from dataclasses import dataclass, field

import torch


@dataclass
class SamplingMetadata:
    """Sampling parameters of a batch.

    Attributes:
        temperature: float32 [batch], 0 for a greedy request. None when all are greedy.
        all_greedy, all_random: every request is greedy, or none is.
        top_p: float32 [batch] in (0, 1]. None: no request uses it.
        top_k: int32 [batch], from 1 to the vocabulary size. None: no request uses it.
        generators: request index to the generator of a request that set a seed.
    """

    temperature: torch.Tensor | None
    all_greedy: bool
    all_random: bool
    top_p: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    generators: dict[int, torch.Generator] = field(default_factory=dict)
