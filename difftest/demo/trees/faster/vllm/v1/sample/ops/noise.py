"""Noise for the draw."""

import torch


def exponential_noise(probs: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """Noise from Exp(1), shaped like `probs`. A request with its own generator draws its row from that."""
    noise = torch.empty_like(probs)
    # A batch of seeded requests leaves the default generator alone: its state must not depend on them.
    if len(generators) < probs.shape[0]:
        noise.exponential_()
    for request, generator in generators.items():
        noise[request].exponential_(generator=generator)
    return noise
