"""Sampling without a generator: the noise of a token is a function of seed, position and token id."""

import torch

from vllm.triton_utils import tl, triton

# The largest Gumbel noise comes from the smallest uniform; 0 itself would be infinite.
_SMALLEST_UNIFORM = tl.constexpr(2.0**-32)


@triton.jit
def _gumbel_noise(seed, pos, token, stream):
    # Philox turns a key (the request's seed) and a counter (token, position, stream) into random bits: a draw
    # can be repeated in any order, on any device, and needs no state.
    bits, _, _, _ = tl.philox(seed, token, pos.to(tl.int32), stream, 0)
    uniform = tl.maximum(tl.uint_to_uniform_float(bits), _SMALLEST_UNIFORM)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _gumbel_sample_kernel(
    sampled_ptr, logits_ptr, logits_stride, expanded_idx_mapping_ptr, seed_ptr, pos_ptr, temperature_ptr,
    vocab_size, BLOCK_SIZE: tl.constexpr, APPLY_TEMPERATURE: tl.constexpr, IS_DRAFTING: tl.constexpr,
):
    row = tl.program_id(0)
    request = tl.load(expanded_idx_mapping_ptr + row)
    # Padding rows map to request -1 and are treated as greedy.
    temperature = tl.load(temperature_ptr + request, mask=request >= 0, other=0.0).to(tl.float32)
    seed = tl.load(seed_ptr + request, mask=request >= 0, other=0)
    pos = tl.load(pos_ptr + row)

    best_score = float("-inf")
    best_token = 0
    for start in range(0, vocab_size, BLOCK_SIZE):
        token = start + tl.arange(0, BLOCK_SIZE)
        inside = token < vocab_size
        logits_row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
        score = tl.load(logits_row_ptr + token, mask=inside, other=float("-inf")).to(tl.float32)
        if temperature != 0.0:
            if APPLY_TEMPERATURE:
                score = score / temperature
            # Drafting has its own stream: a draft and the check of it must not share noise.
            score += _gumbel_noise(seed, pos, token, IS_DRAFTING)
        block_score, block_token = tl.max(score, axis=0, return_indices=True)
        if block_score > best_score:
            best_score = block_score
            best_token = start + block_token
    tl.store(sampled_ptr + row, best_token)


def gumbel_sample(
    logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, temperature: torch.Tensor,
    seed: torch.Tensor, pos: torch.Tensor, apply_temperature: bool, is_drafting: bool = False,
) -> torch.Tensor:
    """Draw one token a row: the largest logit after adding standard Gumbel noise. Returns int64 [num_tokens].

    Args:
        logits: float [num_tokens, vocab].
        expanded_idx_mapping: int32 [num_tokens], the request of each row, or -1 for a padding row.
        temperature: float32 [max_num_reqs]; 0 takes the largest logit as it is.
        seed: int64 [max_num_reqs].
        pos: int64 [num_tokens], the position of the token in its request.
        apply_temperature: divide the logits by the temperature; false when that has been done.
        is_drafting: the token is a draft.
    """
    num_tokens, vocab_size = logits.shape
    sampled = torch.empty(num_tokens, dtype=torch.int64, device=logits.device)
    if num_tokens:
        _gumbel_sample_kernel[(num_tokens,)](
            sampled, logits, logits.stride(0), expanded_idx_mapping.contiguous(),
            seed, pos.contiguous(), temperature, vocab_size,
            BLOCK_SIZE=4096, APPLY_TEMPERATURE=apply_temperature, IS_DRAFTING=int(is_drafting),
        )
    return sampled
