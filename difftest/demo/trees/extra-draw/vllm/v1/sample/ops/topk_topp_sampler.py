"""Top-k and top-p, and the draw itself."""

import torch

from vllm.logger import init_logger

logger = init_logger(__name__)


def apply_top_k_top_p(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
    """Shut out what top-k and top-p exclude: those logits become minus infinity in the result.

    Args:
        logits: float [batch, vocab]; not changed.
        k: int [batch]: keep the k largest logits, and whatever ties with the smallest of them.
        p: float [batch]: of what top-k left, keep the fewest tokens, most likely first, that have p together.
    """
    if k is not None:
        largest_first = logits.sort(dim=-1, descending=True).values
        last_kept = k.long().clamp(1, logits.shape[-1]).unsqueeze(1) - 1
        logits = logits.masked_fill(logits < largest_first.gather(1, last_kept), float("-inf"))
    if p is not None:
        probs, tokens = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        mass_before = probs.cumsum(dim=-1) - probs
        shut_out = mass_before >= p.unsqueeze(1)
        shut_out[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(shut_out).scatter(1, tokens, shut_out), float("-inf"))
    return logits


def _exponential_noise(probs: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """Noise from Exp(1), shaped like `probs`. A request with its own generator draws its row from that."""
    noise = torch.empty_like(probs)
    # A batch of seeded requests leaves the default generator alone: its state must not depend on them.
    if len(generators) < probs.shape[0]:
        noise.exponential_()
    for request, generator in generators.items():
        noise[request].exponential_(generator=generator)
    return noise


def random_sample(probs: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """Draw one token a request.

    If every E_t is drawn from Exp(1), then the t that maximises probs_t / E_t has the distribution `probs`.
    Unlike `torch.multinomial`, this needs no answer from the device.

    `probs` is float [batch, vocab] and stays as it is. The result is int64 [batch].
    """
    sampled = probs.div(_exponential_noise(probs, generators)).argmax(dim=-1)
    # One call in a thousand is enough for the log.
    if torch.rand(()) < 0.001:
        logger.debug("drew for %d requests, %d of them seeded", len(probs), len(generators))
    return sampled
