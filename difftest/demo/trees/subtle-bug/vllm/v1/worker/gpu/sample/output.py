"""Sampling masks: which tokens were open to sampling, packed on the device for the way to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vllm.triton_utils import tl, triton
from vllm.v1.outputs import SamplingMaskLists

# No list of token ids is longer than this; a row with more open tokens is read from its bitmask.
MAX_COMPACT_SUPPORT = 2048


@triton.jit
def _compact_sampling_mask_kernel(
    logits_ptr, logits_row_stride, logits_col_stride, cu_num_logits_ptr, num_sampled_tokens_ptr,
    token_ids_ptr, token_ids_row_stride, packed_mask_ptr, packed_mask_row_stride, counts_ptr,
    vocab_size, max_num_kept, ROWS_PER_REQUEST: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    # One program writes one output row: slot `slot` of request `request`. It walks the vocabulary in tiles of
    # 8 columns: a row of the tile is a byte of the mask, least significant bit first.
    BLOCK_BYTES: tl.constexpr = BLOCK_SIZE // 8
    row = tl.program_id(0)
    request = row // ROWS_PER_REQUEST
    slot = row % ROWS_PER_REQUEST
    kept = 0
    if slot < tl.load(num_sampled_tokens_ptr + request):
        source_row = (tl.load(cu_num_logits_ptr + request) + slot).to(tl.int64)
        bit = tl.arange(0, 8)
        for first_byte in range(0, tl.cdiv(vocab_size, 8), BLOCK_BYTES):
            byte = first_byte + tl.arange(0, BLOCK_BYTES)
            token = byte[:, None] * 8 + bit[None, :]
            logit = tl.load(
                logits_ptr + source_row * logits_row_stride + token * logits_col_stride,
                mask=token < vocab_size, other=float("-inf"),
            )
            # Also false for NaN.
            is_open = tl.abs(logit) < float("inf")
            as_bits = tl.sum(is_open.to(tl.int32) << bit[None, :], axis=1)
            mask_row_ptr = packed_mask_ptr + row * packed_mask_row_stride
            tl.store(mask_row_ptr + byte, as_bits.to(tl.uint8), mask=byte < vocab_size // 8)
            # In the order of the tokens, the n-th open one goes to place n.
            open_in_order = tl.reshape(is_open, [BLOCK_SIZE])
            place = kept + tl.cumsum(open_in_order.to(tl.int32), 0) - 1
            tl.store(
                token_ids_ptr + row * token_ids_row_stride + place, tl.reshape(token, [BLOCK_SIZE]),
                mask=open_in_order & (place < max_num_kept),
            )
            kept += tl.sum(open_in_order.to(tl.int32), 0)
    tl.store(counts_ptr + row, kept)


class SamplingMaskTensors(NamedTuple):
    """The open tokens of each output row, twice: as a list that may be too short, and as a bitmask.

    Request r owns the rows from r * rows_per_request on, and uses as many as it sampled tokens. What nobody
    reads is left as it was allocated: lists behind their count, and the lists and bitmasks of unused rows.

    Attributes:
        token_ids: int32 [rows, max_num_kept], ascending.
        packed_mask: uint8 [rows, vocab_size / 8 rounded up]; token t is bit t % 8 of byte t // 8.
        counts: int32 [rows], how many tokens are open, even beyond the list's room; 0 in unused rows.
    """

    token_ids: torch.Tensor
    packed_mask: torch.Tensor
    counts: torch.Tensor
    vocab_size: int
    rows_per_request: int = 1

    @classmethod
    def from_logits(
        cls,
        logits: torch.Tensor, cu_num_logits: torch.Tensor, num_sampled_tokens: torch.Tensor,
        max_num_kept: int, rows_per_request: int = 1,
    ) -> SamplingMaskTensors:
        """Pack the masks of the tokens that were sampled. A token is open when its logit is finite.

        Args:
            logits: float [num_logits, vocab].
            cu_num_logits: int32 [num_requests + 1]; request r owns the logits from entry r on.
            num_sampled_tokens: int32 [num_requests], at most rows_per_request.
            max_num_kept: room in the lists.
        """
        rows = num_sampled_tokens.shape[0] * rows_per_request
        vocab_size = logits.shape[1]
        room = min(max_num_kept, vocab_size, MAX_COMPACT_SUPPORT)
        token_ids = torch.empty(rows, room, dtype=torch.int32, device=logits.device)
        packed_mask = torch.empty(rows, -(-vocab_size // 8), dtype=torch.uint8, device=logits.device)
        counts = torch.empty(rows, dtype=torch.int32, device=logits.device)
        if rows:
            _compact_sampling_mask_kernel[(rows,)](
                logits, *logits.stride(), cu_num_logits, num_sampled_tokens,
                token_ids, token_ids.stride(0), packed_mask, packed_mask.stride(0), counts,
                vocab_size, room, ROWS_PER_REQUEST=rows_per_request, BLOCK_SIZE=8192,
            )
        return cls(token_ids, packed_mask, counts, vocab_size, rows_per_request)

    @classmethod
    def cat(cls, chunks: Sequence[SamplingMaskTensors]) -> SamplingMaskTensors:
        """One batch out of consecutive chunks of it, which must agree on vocabulary and rows a request."""
        layouts = {chunk[3:] for chunk in chunks}
        if len(layouts) != 1:
            raise ValueError(f"chunks differ in (vocab_size, rows_per_request): {sorted(layouts)}")
        tensors = zip(*(chunk[:3] for chunk in chunks), strict=True)
        return cls(*map(torch.cat, tensors), *layouts.pop())

    def tolists(self, num_sampled_tokens: np.ndarray | None = None) -> SamplingMaskLists:
        """The masks of the sampled tokens; `num_sampled_tokens` (int [num_requests]) picks the rows."""
        token_ids, packed_mask, counts = (tensor.numpy(force=True) for tensor in self[:3])
        used_rows = np.arange(len(counts))
        boundaries = None
        if self.rows_per_request > 1:
            if num_sampled_tokens is None:
                raise ValueError("num_sampled_tokens says which rows are in use; it is missing")
            slot = used_rows % self.rows_per_request
            used_rows = used_rows[slot < np.repeat(num_sampled_tokens, self.rows_per_request)]
            boundaries = [0, *np.cumsum(num_sampled_tokens).tolist()]

        open_tokens = [np.empty(0, dtype=np.int32)]
        for row in used_rows:
            if counts[row] <= token_ids.shape[1]:
                open_tokens.append(token_ids[row, : counts[row]])
            else:
                is_open = np.unpackbits(packed_mask[row], count=self.vocab_size, bitorder="little")
                open_tokens.append(is_open.nonzero()[0].astype(np.int32))
        # The empty array in front gives the leading 0, and the concatenation a type when no row is in use.
        offsets = np.cumsum([len(tokens) for tokens in open_tokens], dtype=np.int64)
        return SamplingMaskLists(np.concatenate(open_tokens), offsets, boundaries)
