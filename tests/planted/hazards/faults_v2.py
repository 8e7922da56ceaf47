"""Faults of each hazard's kind in the Model Runner V2 sampler of vLLM 0.32.0."""

from __future__ import annotations

from planted import Fault

GPU = "vllm/v1/worker/gpu/"
GUMBEL = f"{GPU}sample/gumbel.py"
MIN_P = f"{GPU}sample/min_p.py"
MASKS = f"{GPU}sample/output.py"
PENALTIES = f"{GPU}sample/penalties.py"
BAD_WORDS = f"{GPU}sample/bad_words.py"
LOGPROB = f"{GPU}sample/logprob.py"
BIAS = f"{GPU}sample/logit_bias.py"
STATES = f"{GPU}sample/states.py"
SAMPLER = f"{GPU}sample/sampler.py"
REJECTION = f"{GPU}spec_decode/rejection_sampler_utils.py"
REJECTION_SAMPLER = f"{GPU}spec_decode/rejection_sampler.py"
GRAMMAR = f"{GPU}structured_outputs.py"

_INT64 = ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)")
_DENSE = ("        logits.stride(0),", "        logits.shape[1],")
_SMALLEST = '            other=float("-inf"),'
_ZERO = "            other=0.0,"

_NOISE_FAULTS = (
    Fault("H3", "the position is not used", GUMBEL, "    pos = tl.load(pos_ptr + token_idx)\n    return",
          "    pos = tl.load(pos_ptr + token_idx) * 0\n    return", "v2.gumbel_sample"),
    Fault("H3", "verification repeats its number", REJECTION, "u = tl_rand32(seed, pos, includes_zero=False)",
          "u = tl_rand32(seed, tl.load(pos_ptr + start_idx), includes_zero=False)", "v2.rejection_sample"),
    Fault("H4", "unseeded requests share a seed", STATES, "seed = np.random.randint(_NP_INT64_MIN, _NP_INT64_MAX)",
          "seed = 0", "v2.sampling_states", "rng value"),
    Fault("H6", "noise of the next id", GUMBEL, "u = murmur3_uniform32(seed, pos, keys)",
          "u = murmur3_uniform32(seed, pos, keys + 1)", "v2.gumbel_sample"),
    Fault("H6", "noise of finer numbers", GUMBEL, "u = murmur3_uniform64(seed, pos, keys)",
          "u = murmur3_uniform32(seed, pos, keys).to(tl.float64)", "v2.gumbel_sample"),
    Fault("H9", "a seed from the operating system", STATES, "seed = np.random.randint(_NP_INT64_MIN, _NP_INT64_MAX)",
          "seed = np.random.default_rng().integers(_NP_INT64_MIN, _NP_INT64_MAX)", "v2.sampling_states", "rng value"),
    Fault("H10", "draft and target share noise", GUMBEL, "tl.constexpr(1 << 30)", "tl.constexpr(0)",
          "v2.gumbel_sample"),
    Fault("H10", "the target has the draft's noise", REJECTION,
          "        IS_DRAFTING=False,\n        APPLY_TEMPERATURE=False,",
          "        IS_DRAFTING=True,\n        APPLY_TEMPERATURE=False,", "v2.rejection_sample"),
    Fault("H10", "the high half of the seed is not used", GUMBEL, "((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)",
          "(seed & 0xFFFFFFFF).to(tl.uint32)", "v2.gumbel_sample"),
    Fault("H11", "noise by the place in its block", GUMBEL,
          "    return gumbel_noised_argmax(\n        logits,\n        block,",
          "    return gumbel_noised_argmax(\n        logits,\n        block % 1024,", "v2.gumbel_sample"),
)  # fmt: skip

_ARGMAX_FAULTS = (
    Fault("H12", "a greedy request has noise", GUMBEL, "    if temp != 0.0:\n        if IS_DRAFTING",
          "    if temp >= 0.0:\n        if IS_DRAFTING", "v2.gumbel_sample"),
    Fault("H12", "a tiny temperature is greedy", GUMBEL, "    if temp != 0.0:\n        if IS_DRAFTING",
          "    if temp > 1e-5:\n        if IS_DRAFTING", "v2.gumbel_sample"),
    Fault("H12", "greedy drafts are verified by chance", REJECTION, "    is_greedy = temp == 0.0",
          "    is_greedy = temp < 0.0", "v2.rejection_sample"),
    Fault("H14", "the last block wins", GUMBEL, "    max_block_idx = local_max.argmax(dim=-1, keepdim=True)",
          "    max_block_idx = num_blocks - 1 - local_max.flip(-1).argmax(dim=-1, keepdim=True)", "v2.gumbel_sample"),
    Fault("H14", "blocks compared as float32", GUMBEL, "local_max.argmax(", "local_max.float().argmax(",
          "v2.gumbel_sample"),
    Fault("H14", "ids of int32", GUMBEL, "index=max_block_idx).view(-1)", "index=max_block_idx).view(-1).int()",
          "v2.gumbel_sample", "dtype"),
    Fault("H14", "always the first column of the cache", GUMBEL, "            + col * logits_cache_stride_1",
          "            + 0 * logits_cache_stride_1", "v2.gumbel_sample", "mutation value"),
    Fault("H14", "the cache is written past its rows", GUMBEL, "            mask=mask & is_valid_req,",
          "            mask=is_valid_req,", "v2.gumbel_sample", "mutation value crash"),
    Fault("H14", "the cache keeps logits after temperature", GUMBEL,
          "        cached_logits = tl.load(\n"
          "            logits_cache_source_ptr + token_idx * logits_cache_source_stride + block,\n"
          "            mask=mask,\n        )",
          "        cached_logits = logits / tl.maximum(temp, 1e-3)", "v2.gumbel_sample", "mutation value"),
)  # fmt: skip

_INDEX_FAULTS = (
    Fault("H15", "a placeholder is verified", REJECTION, "            verifying &= is_valid_draft", "            pass",
          "v2.rejection_sample"),
    Fault("H15", "a greedy placeholder is accepted", REJECTION, "                accepted &= is_valid_draft\n", "",
          "v2.rejection_sample"),
    Fault("H15", "the residual of a placeholder", REJECTION, "if is_bonus or not is_valid_rejected_draft:",
          "if is_bonus:", "v2.resample_kernel"),
    Fault("H15", "a block ends with a placeholder", REJECTION, "                if next_draft_token >= 0:",
          "                if i < num_draft_tokens - 1:", "v2.rejection_block", "value crash"),
    Fault("H15", "a padding row's slot is read", GUMBEL, "    is_valid_req = req_state_idx >= 0",
          "    is_valid_req = req_state_idx >= -1", "v2.gumbel_sample", "value mutation crash"),
    Fault("H16", "logprob boundaries are dropped", REJECTION_SAMPLER,
          "                cu_num_generated_tokens = cu_num_logits_np.tolist()",
          "                cu_num_generated_tokens = None", "v2.rejection_sampler", "type value structure"),
    Fault("H18", "padding wins where logits are negative", GUMBEL, '        other=float("-inf"),', "        other=0.0,",
          "v2.gumbel_sample", "value crash exception"),
    Fault("H18", "padding has noise", GUMBEL, '        logits = tl.where(mask, logits + gumbel_noise, float("-inf"))',
          "        logits = tl.where(mask, logits, 0.0) + gumbel_noise", "v2.gumbel_sample", "value crash exception"),
    Fault("H18", "padding in the sum", LOGPROB, "        e = tl.where(block < vocab_size, e, 0.0)\n", "",
          "v2.token_logprobs"),
    Fault("H18", "padding has a rank", LOGPROB,
          'logits = tl.load(row_ptr + block, mask=block < vocab_size, other=float("-inf"))\n        n +=',
          "logits = tl.load(row_ptr + block, mask=block < vocab_size, other=0.0)\n        n +=", "v2.ranks_kernel"),
    Fault("H18", "padding is the maximum", MIN_P, _SMALLEST, _ZERO, "v2.apply_min_p", "mutation value"),
    Fault("H18", "padding is kept", MASKS, '            other=-float("inf"),', "            other=0.0,",
          "v2.sampling_mask"),
    Fault("H18", "padding is a target", REJECTION,
          'block_offsets,\n            mask=mask,\n            other=float("-inf"),\n'
          "        ).to(tl.float32)\n        value, idx",
          "block_offsets,\n            mask=mask,\n            other=0.0,\n        ).to(tl.float32)\n"
          "        value, idx",
          "v2.rejection_sample"),
    Fault("H20", "a masked row sums to NaN", REJECTION, '        max > float("-inf"),', "        max == max,",
          "v2.rejection_sample"),
    Fault("H20", "a masked row has a maximum", GUMBEL, "    return tl.max(logits, axis=0, return_indices=True)",
          '    return tl.max(tl.where(logits == float("-inf"), -1e30, logits), axis=0, return_indices=True)',
          "v2.gumbel_kernel", "value"),
    Fault("H20", "bits past the vocabulary count", GRAMMAR,
          "mask=position_is_active & bitmask & (block_offset < vocab_size)", "mask=position_is_active & bitmask",
          "v2.grammar_bitmask_kernel", "mutation value crash"),
    Fault("H20", "a row with no bit is left alone", GRAMMAR, "    bitmask = bitmask.reshape(BLOCK_SIZE)\n",
          "    bitmask = bitmask.reshape(BLOCK_SIZE)\n    bitmask = bitmask & (tl.sum(packed_bitmask != 0) > 0)\n",
          "v2.grammar_bitmask_kernel", "mutation value"),
    Fault("H20", "stop ids do not come back", BIAS, '                if row_max == -float("inf"):',
          '                if row_max == float("inf"):', "v2.apply_logit_bias", "mutation value"),
    Fault("H21", "temperature's rows by 32 bits", GUMBEL, *_INT64, "v2.apply_temperature", "value mutation crash"),
    Fault("H21", "sampling's rows by 32 bits", GUMBEL, *_INT64, "v2.gumbel_sample", "value mutation crash"),
    Fault("H21", "min-p's rows by 32 bits", MIN_P, *_INT64, "v2.apply_min_p", "value mutation crash"),
    Fault("H21", "bad words' rows by 32 bits", BAD_WORDS, *_INT64, "v2.apply_bad_words", "value mutation crash"),
    Fault("H21", "bias rows by 32 bits", BIAS, *_INT64, "v2.apply_logit_bias", "value mutation crash"),
    Fault("H21", "logprobs' rows by 32 bits", LOGPROB, *_INT64, "v2.token_logprobs", "value mutation crash"),
    Fault("H21", "ranks' rows by 32 bits", LOGPROB, *_INT64, "v2.ranks_kernel", "value mutation crash"),
    Fault("H21", "verified rows by 32 bits", REJECTION, "logit_idx = tl.program_id(0).to(tl.int64)",
          "logit_idx = tl.program_id(0)", "v2.rejection_sample", "value mutation crash"),
)  # fmt: skip

_PROBABILITY_FAULTS = (
    Fault("H23", "impossible drafts are accepted", REJECTION, "accepted = target_logprob > tl.log(u) + draft_logprob",
          "accepted = target_logprob >= tl.log(u) + draft_logprob", "v2.rejection_sample"),
    Fault("H23", "the refused draft is drawn again", REJECTION, "            block != rejected_draft_token,",
          "            block != rejected_draft_token + vocab_size,", "v2.rejection_sample"),
    Fault("H25", "logits are processed in place", SAMPLER,
          "logits = torch.empty_like(logits, dtype=torch.float32).copy_(logits)", "logits = logits.float()",
          "v2.sampler", "mutation value"),
    Fault("H25", "the mask is written into logits", MASKS, "        keep = (logits >",
          "        tl.store(\n            logits_ptr + source_row * logits_row_stride + offsets * logits_col_stride,\n"
          "            tl.where(logits != logits, 0.0, logits),\n            mask=offsets < vocab_size,\n        )\n"
          "        keep = (logits >", "v2.sampling_mask", "mutation value"),
    Fault("H26", "temperature goes into a copy", GUMBEL,
          "    BLOCK_SIZE = 8192\n    num_blocks = triton.cdiv(vocab_size, BLOCK_SIZE)\n"
          "    _temperature_kernel",
          "    BLOCK_SIZE = 8192\n    logits = logits.contiguous()\n"
          "    num_blocks = triton.cdiv(vocab_size, BLOCK_SIZE)\n    _temperature_kernel",
          "v2.apply_temperature", "mutation"),
    Fault("H26", "min-p goes into a copy", MIN_P, "    BLOCK_SIZE = 1024\n    _min_p_kernel",
          "    logits = logits.contiguous()\n    BLOCK_SIZE = 1024\n    _min_p_kernel", "v2.apply_min_p", "mutation"),
    Fault("H26", "joined chunks of one share memory", MASKS, "        first = chunks[0]\n",
          "        first = chunks[0]\n        if len(chunks) == 1:\n"
          "            return first._replace(counts=first.counts.long())\n",
          "v2.sampling_mask_cat", "dtype alias"),
    Fault("H27", "temperature takes rows to be dense", GUMBEL, *_DENSE, "v2.apply_temperature", "mutation value crash"),
    Fault("H27", "sampling takes rows to be dense", GUMBEL, *_DENSE, "v2.gumbel_sample", "mutation value crash"),
    Fault("H27", "sampling takes positions to be dense", GUMBEL, "    pos = pos.contiguous()\n", "",
          "v2.gumbel_sample"),
    Fault("H27", "min-p takes rows to be dense", MIN_P, *_DENSE, "v2.apply_min_p", "mutation value crash"),
    Fault("H27", "penalties take rows to be dense", PENALTIES, *_DENSE, "v2.apply_penalties", "mutation value crash"),
    Fault("H27", "bad words take rows to be dense", BAD_WORDS, *_DENSE, "v2.apply_bad_words", "mutation value crash"),
    Fault("H27", "bias takes rows to be dense", BIAS, *_DENSE, "v2.apply_logit_bias", "mutation value crash"),
    Fault("H27", "logprobs take rows to be dense", LOGPROB, *_DENSE, "v2.token_logprobs", "value crash"),
    Fault("H27", "ranks take rows to be dense", LOGPROB, *_DENSE, "v2.topk_logprobs", "value crash"),
    Fault("H27", "grammar takes rows to be dense", GRAMMAR, "            logits.stride(0),",
          "            logits.shape[1],", "v2.grammar_bitmask", "mutation value crash"),
    Fault("H27", "masks take columns to be dense", MASKS, "            logits.stride(1),", "            1,",
          "v2.sampling_mask", "value crash"),
    Fault("H27", "target rows are taken to be dense", REJECTION, "        target_logits.stride(0),",
          "        target_logits.shape[1],", "v2.rejection_sample", "value crash"),
    Fault("H29", "the rank counts greater ones only", LOGPROB, "(logits >= x)", "(logits > x)", "v2.ranks_kernel"),
    Fault("H29", "the rank counts greater ones and itself", LOGPROB, "    tl.store(output_ptr + req_idx, n)",
          "    tl.store(output_ptr + req_idx, tl.maximum(n, 2) - 1)", "v2.topk_logprobs"),
    Fault("H30", "sampled ids of int32", REJECTION, "        num_reqs, num_speculative_steps + 1, dtype=torch.int64",
          "        num_reqs, num_speculative_steps + 1, dtype=torch.int32", "v2.rejection_sample", "dtype"),
    Fault("H30", "counts of int64", REJECTION, "sampled.new_empty(num_reqs, dtype=torch.int32)",
          "sampled.new_empty(num_reqs, dtype=torch.int64)", "v2.rejection_sample", "dtype"),
    Fault("H30", "mask counts of int64", MASKS, "torch.empty(num_output_rows, dtype=torch.int32",
          "torch.empty(num_output_rows, dtype=torch.int64", "v2.sampling_mask", "dtype"),
    Fault("H30", "the bonus is not resampled", REJECTION,
          "    if temp == 0.0 and not is_bonus:\n        # Greedy + non-bonus token. No",
          "    if is_bonus or temp == 0.0:\n        # Greedy + non-bonus token. No", "v2.rejection_sample",
          "undefined value"),
)  # fmt: skip

_HISTORY_FAULTS = (
    Fault("H32", "drafts are not part of the history", BAD_WORDS, "    effective_len = output_len + pos",
          "    effective_len = output_len", "v2.apply_bad_words", "mutation value"),
    Fault("H32", "one draft to the left", BAD_WORDS, "cur_req_first_pos + spec_offset + 1)",
          "cur_req_first_pos + spec_offset)", "v2.apply_bad_words", "mutation value"),
    Fault("H32", "the first draft is taken for a committed id", BAD_WORDS, "actual_pos >= output_len",
          "actual_pos > output_len", "v2.apply_bad_words", "mutation value"),
    Fault("H32", "a word as long as the history", BAD_WORDS, "    if prefix_len > effective_len:",
          "    if prefix_len >= effective_len and prefix_len > 0:", "v2.apply_bad_words", "mutation value"),
    Fault("H32", "penalties see the committed id again", PENALTIES, "token_ids_ptr + start_idx + prev_pos + 1)",
          "token_ids_ptr + start_idx + prev_pos)", "v2.apply_penalties", "mutation value"),
    Fault("H34", "a placeholder penalises the last id", PENALTIES, "        token_match = block == prev_token",
          "        token_match = block == (prev_token + vocab_size) % vocab_size", "v2.apply_penalties",
          "mutation value"),
    Fault("H34", "presence counts", PENALTIES, "    logits -= pres_penalty * output_bin_mask",
          "    logits -= pres_penalty * output_bin_counts", "v2.apply_penalties", "mutation value"),
    Fault("H34", "the prompt counts as output", PENALTIES, "        mask &= block >= prompt_len\n", "", "v2.bincount",
          "mutation value"),
    Fault("H34", "the last prompt token is output", PENALTIES, "        mask &= block >= prompt_len\n",
          "        mask &= block >= prompt_len - 1\n", "v2.bincount", "mutation value"),
    Fault("H34", "penalties only where repetition is on", PENALTIES,
          "    use_penalty = use_rep_penalty or use_freq_penalty or use_pres_penalty",
          "    use_penalty = use_rep_penalty or use_freq_penalty", "v2.apply_penalties", "mutation value"),
    Fault("H37", "mask rows by the stride", GRAMMAR,
          "        mapping.extend(\n"
          "            req_idx * mask_stride + position for position in range(num_positions)",
          "        mapping.extend(\n"
          "            req_idx * (mask_stride - 1) + position for position in range(num_positions)",
          "v2.grammar_bitmask", "mutation value exception"),
    Fault("H37", "positions past the drafts are masked", GRAMMAR,
          "    position_is_active = position_idx < num_req_logits",
          "    position_is_active = position_idx <= num_req_logits", "v2.grammar_bitmask_kernel",
          "mutation value crash"),
    Fault("H37", "all positions are active", GRAMMAR, "    position_is_active = position_idx < num_req_logits",
          "    position_is_active = position_idx >= 0", "v2.grammar_bitmask_kernel", "mutation value crash"),
    Fault("H38", "the draft's vocabulary is not the smaller one", REJECTION,
          "        vocab_size = min(vocab_size, draft_logits.size(-1))\n", "", "v2.rejection_scores", "value crash"),
    Fault("H38", "the mask is read past its row", GRAMMAR, "        mask=bitmask_offset < bitmask_stride,\n", "",
          "v2.grammar_bitmask_kernel", "mutation value crash"),
    Fault("H38", "allowed ids leave the tail as it is", BIAS,
          "        for i in range(0, vocab_size, LOGITS_BLOCK_SIZE):\n"
          "            offset = i + tl.arange(0, LOGITS_BLOCK_SIZE)\n            tl.store(",
          "        for i in range(0, vocab_size - 1, LOGITS_BLOCK_SIZE):\n"
          "            offset = i + tl.arange(0, LOGITS_BLOCK_SIZE)\n            tl.store(",
          "v2.apply_logit_bias", "mutation value"),
)  # fmt: skip

_FILTER_FAULTS = (
    Fault("H40", "min-p shuts out what reaches it", MIN_P, "logits < threshold", "logits <= threshold",
          "v2.apply_min_p", "mutation value"),
    Fault("H40", "min-p of probabilities", MIN_P, "    threshold = max_val + tl.log(min_p)",
          "    threshold = tl.log(tl.exp(max_val) * min_p)", "v2.apply_min_p", "mutation value"),
    Fault("H40", "k of 0 is kept", STATES, "        if top_k <= 0 or top_k > self.vocab_size:",
          "        if top_k < 0 or top_k > self.vocab_size:", "v2.sampling_states", "value mutation"),
    Fault("H40", "k past the vocabulary is kept", STATES, "        if top_k <= 0 or top_k > self.vocab_size:",
          "        if top_k <= 0:", "v2.sampling_states", "value mutation"),
    Fault("H42", "a reused slot's bias stays", BIAS, "            self.num_logit_bias.np[req_idx] = 0",
          "            pass", "v2.logit_bias_state", "value mutation"),
    Fault("H42", "a reused slot's allowed ids stay", BIAS, "            self.num_allowed_token_ids.np[req_idx] = 0",
          "            pass", "v2.logit_bias_state", "value mutation"),
    Fault("H42", "a reused slot's stop ids stay", BIAS, "            self.num_stop_token_ids.np[req_idx] = 0",
          "            pass", "v2.logit_bias_state", "value mutation"),
    Fault("H42", "a reused slot's bad words stay", BAD_WORDS, "            self.num_bad_words.np[req_idx] = 0",
          "            pass", "v2.bad_words_state", "value mutation"),
    Fault("H42", "counts of a reused slot stay", PENALTIES, "    output_bin_counts.index_fill_(0, idx_long, 0)\n", "",
          "v2.bincount", "value mutation"),
    Fault("H42", "logprob ids of a reused slot stay", LOGPROB,
          "            self.num_token_ids.np[req_idx] = 0\n            return", "            return",
          "v2.logprob_token_ids", "value mutation shape"),
)  # fmt: skip

FAULTS = (
    *_NOISE_FAULTS,
    *_ARGMAX_FAULTS,
    *_INDEX_FAULTS,
    *_PROBABILITY_FAULTS,
    *_HISTORY_FAULTS,
    *_FILTER_FAULTS,
)
