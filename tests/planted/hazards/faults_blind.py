"""Mistakes of kernel authors in vLLM 0.32.0, thought of from its source alone, without a look at the cases.

What is caught of them measures the cases better than faults planted beside a case. `hazard` names a family here.
"""

from __future__ import annotations

from faults_v1 import (
    BAD_WORDS,
    COUNTS,
    FILTERS,
    GRAMMAR,
    OUTPUTS,
    PROCESSORS,
    REJECTION,
    SAMPLER,
    TRITON,
)
from faults_v2 import BAD_WORDS as BAD_WORDS_2
from faults_v2 import BIAS as BIAS_2
from faults_v2 import GPU, GUMBEL, LOGPROB, MASKS, MIN_P, PENALTIES, STATES
from faults_v2 import GRAMMAR as GRAMMAR_2
from faults_v2 import REJECTION as REJECTION_2
from faults_v2 import REJECTION_SAMPLER as REJECTION_SAMPLER_2
from faults_v2 import SAMPLER as SAMPLER_2
from planted import Fault

STATE = "vllm/v1/sample/logits_processor/state.py"
THINKING = "vllm/v1/sample/thinking_budget_state.py"
EAGLE = "vllm/v1/spec_decode/utils.py"
PROMPT_2 = f"{GPU}sample/prompt_logprob.py"
THINKING_2 = f"{GPU}sample/thinking_budget.py"
WATERMARK_2 = f"{GPU}sample/watermark.py"
BATCH_1 = "vllm/v1/worker/gpu_input_batch.py"
INPUTS_2 = f"{GPU}input_batch.py"
TRACES_2 = f"{GPU}sample/trace_replay.py"
ADAPTERS = "vllm/v1/sample/logits_processor/__init__.py"
BUFFERS_2 = f"{GPU}buffer_utils.py"

_TEMPERATURE = """\
        logits = self.apply_temperature(
            logits, sampling_metadata.temperature, sampling_metadata.all_random
        )

        # Apply logits processors that only apply to random sampling
        # (argmax invariant)
        for processor in sampling_metadata.logitsprocs.argmax_invariant:
            logits = processor.apply(logits)
"""
_TEMPERATURE_LAST = """\
        for processor in sampling_metadata.logitsprocs.argmax_invariant:
            logits = processor.apply(logits)
        logits = self.apply_temperature(
            logits, sampling_metadata.temperature, sampling_metadata.all_random
        )
"""
_PROCESSORS = """\
        for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
            logits = processor.apply(logits)

        # Apply penalties (e.g., freq_penalties).
        logits = self.apply_penalties(logits, sampling_metadata, output_token_ids)
"""
_PENALTIES_FIRST = """\
        logits = self.apply_penalties(logits, sampling_metadata, output_token_ids)
        for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
            logits = processor.apply(logits)
"""
_TEMPERATURE_2 = """\
        # Apply temperature in place.
        self.sampling_states.apply_temperature(
            logits, expanded_idx_mapping, idx_mapping_np
        )

        # Apply min_p in place.
        self.sampling_states.apply_min_p(logits, expanded_idx_mapping, idx_mapping_np)
"""
_TEMPERATURE_LAST_2 = """\
        self.sampling_states.apply_min_p(logits, expanded_idx_mapping, idx_mapping_np)
        self.sampling_states.apply_temperature(
            logits, expanded_idx_mapping, idx_mapping_np
        )
"""
_FREQUENCY = """\
    logits -= frequency_penalties.unsqueeze(dim=1) * output_bin_counts
    logits -= presence_penalties.unsqueeze(dim=1) * output_mask
"""
_BLOCK_STORE = "                tl.store(sampled_ptr + req_idx * sampled_stride + i, draft_sampled)\n            else:"

FAULTS_V1 = (
    Fault("boundary", "min tokens end a position early with drafts", PROCESSORS,
          "            remaining = min_tok - current_len\n", "            remaining = min_tok - current_len - 1\n",
          "v1.min_tokens_with_drafts", "value mutation"),
    Fault("row", "rows are counted with bonus ones", PROCESSORS, "np.cumsum(num_draft_arr)]",
          "np.cumsum(num_draft_arr + 1)]", "v1.min_tokens_with_drafts", "value mutation exception"),
    Fault("boundary", "min tokens last a step too long", PROCESSORS, "if len(out_tok_ids) >= min_toks",
          "if len(out_tok_ids) > min_toks", "v1.min_tokens", "value mutation"),
    Fault("order", "the highest slot is reused first", STATE, "self._removed.sort(reverse=True)",
          "self._removed.sort()", "v1.batch_update_builder", "value structure"),
    Fault("stale", "moves of the last step stay", STATE, "        self._removed = []\n        self.moved = []\n",
          "        self._removed = []\n", "v1.batch_update_builder", "value structure"),
    Fault("stale", "a swap moves one way", PROCESSORS,
          "                    if direct == MoveDirectionality.SWAP:\n"
          "                        self.min_p_cpu[adx] = min_p_b\n", "", "v1.min_p", "value mutation"),
    Fault("row", "offsets of a slice start elsewhere", OUTPUTS, "self.offsets[start : end + 1] - lo",
          "self.offsets[start : end + 1]", "v1.sampling_mask_slice_request"),
    Fault("boundary", "a slice of no position is one of one", OUTPUTS,
          "        if num_positions == 1:\n            return Samp",
          "        if num_positions <= 1:\n            return Samp", "v1.sampling_mask_slice_request",
          "type structure value"),
    Fault("boundary", "a position without ids is left out", OUTPUTS, "for i in range(len(offsets) - 1)]",
          "for i in range(len(offsets) - 1) if offsets[i] < offsets[i + 1]]", "v1.sampling_mask_lists", "structure"),
    Fault("boundary", "requests of more than 64 tokens", REJECTION, "dict(MAX_NUM_TOKENS=MAX_SPEC_LEN)",
          "dict(MAX_NUM_TOKENS=64)", "v1.expand_batch_to_tokens", "value undefined"),
    Fault("greedy", "what is below is replaced as well", REJECTION, "tl.where(src_val == replace_from,",
          "tl.where(src_val <= replace_from,", "v1.expand_kernel", "value mutation"),
    Fault("order", "filters before temperature", REJECTION, "    return apply_top_k_top_p(logits, top_k, top_p)",
          "    logits.mul_(temperature.unsqueeze(-1))\n"
          "    return apply_top_k_top_p(logits, top_k, top_p).div_(temperature.unsqueeze(-1))",
          "v1.apply_sampling_constraints"),
    Fault("default", "logprobs of processed logits are logits", REJECTION,
          "            if self.is_logits_logprobs_mode\n", "            if self.is_processed_logprobs_mode\n",
          "v1.rejection_logprobs"),
    Fault("row", "the first logits row of a request is the next one's", REJECTION,
          "        cu_num_sampled_tokens[1:] = metadata.cu_num_sampled_tokens[:-1]\n",
          "        cu_num_sampled_tokens[1:] = metadata.cu_num_draft_tokens[:-1]\n", "v1.rejection_logprobs"),
    Fault("dtype", "logprobs in the logits' own precision", SAMPLER, "logits.log_softmax(dim=-1, dtype=torch.float32)",
          "logits.log_softmax(dim=-1).float()", "v1.sampler.compute_logprobs"),
    Fault("boundary", "requests without drafts have rejected ones", EAGLE,
          "    num_rejected_tokens = tl.where(num_draft_tokens > 0, num_rejected_tokens, 0)\n", "",
          "v1.eagle_prepare_inputs_padded_kernel", "mutation value"),
    Fault("row", "the last token of the request before", EAGLE, "tl.load(query_start_loc_gpu_ptr + req_idx + 1) - 1",
          "tl.load(query_start_loc_gpu_ptr + req_idx)", "v1.eagle_prepare_inputs_padded_kernel", "mutation value"),
    Fault("mask", "id 0 is no token", EAGLE, "is_valid_mask = (token_ids != -1)", "is_valid_mask = (token_ids > 0)",
          "v1.eagle_prepare_next_token_padded_kernel", "mutation value"),
    Fault("stride", "sampled rows are taken to be dense", EAGLE, "req_idx * stride_sampled_token_ids",
          "req_idx * num_sampled_tokens_per_req", "v1.eagle_prepare_next_token_padded_kernel", "mutation value"),
    Fault("nan", "after a rate of 0 all is accepted", EAGLE, "p / q if q > 0.0 else 0.0", "p / q if q > 0.0 else 1.0",
          "v1.unconditional_to_conditional_rates"),
    Fault("boundary", "the budget is one longer", THINKING,
          'state["think_count"] + len(state["spec_token_ids"]) + 1\n',
          'state["think_count"] + len(state["spec_token_ids"])\n', "v1.thinking_budget", "value mutation"),
    Fault("stale", "a moved request's budget stays behind", THINKING,
          "                state = self._state.pop(i1, None)\n", "                state = self._state.get(i1)\n",
          "v1.thinking_budget", "value mutation structure"),
    Fault("default", "a prompt without marks thinks", THINKING, "in_think = last_start > last_end",
          "in_think = last_start >= last_end", "v1.thinking_budget", "value mutation"),
    Fault("row", "an end is forced one draft early", THINKING, 'state["force_index"] = [remaining_budget]',
          'state["force_index"] = [remaining_budget - 1]', "v1.thinking_budget", "value mutation"),
    Fault("boundary", "k of V-1 does not filter", TRITON, "            if k < VOCAB_SIZE:",
          "            if k < VOCAB_SIZE - 1:", "v1.top_k_top_p", "value mutation"),
    Fault("boundary", "the search ends early", TRITON, "num_iters >= 18", "num_iters >= 6", "v1.top_k_top_p_triton",
          "value mutation"),
    Fault("boundary", "one more of equal probabilities is kept", TRITON,
          "(p_pivots_sum - p) / min_larger_prob, tl.uint32", "(p_pivots_sum - p) / min_larger_prob - 1.0, tl.uint32",
          "v1.top_k_top_p_triton", "value mutation"),
    Fault("dtype", "probabilities in the logits' own precision", FILTERS,
          "    probs = logits.softmax(dim=-1, dtype=torch.float32)\n    q = torch.empty_like(probs)",
          "    probs = logits.softmax(dim=-1)\n    q = torch.empty_like(probs)", "v1.compiled_random_sample",
          "value rng"),
    Fault("default", "noise of float64 by default", FILTERS,
          '    use_fp64_gumbel: bool = False,\n) -> torch.Tensor:\n    """Randomly',
          '    use_fp64_gumbel: bool = True,\n) -> torch.Tensor:\n    """Randomly', "v1.random_sample",
          "value rng mutation"),
    Fault("dtype", "the logarithm of rounded probabilities", FILTERS,
          "logits_to_return = logits.log_softmax(dim=-1, dtype=torch.float32)",
          "logits_to_return = logits.softmax(dim=-1, dtype=torch.float32).log()", "v1.top_k_top_p_sampler.native"),
    Fault("order", "minus infinity becomes a number", FILTERS, "            logits_to_return = logits\n",
          "            logits_to_return = logits.clone().clamp_(min=-1e30)\n", "v1.top_k_top_p_sampler.cpu"),
    Fault("default", "no logprobs for 0 of them", SAMPLER, "        if num_logprobs is None:\n",
          "        if not num_logprobs:\n", "v1.sampler.forward", "type structure"),
    Fault("default", "top logprobs although ids are given", SAMPLER,
          "if logprob_token_ids_tensors is not None and num_logprobs is not None:", "if num_logprobs is None:",
          "v1.sampler.forward", "value shape"),
    Fault("order", "min-p before temperature", SAMPLER, _TEMPERATURE, _TEMPERATURE_LAST, "v1.sampler.sample"),
    Fault("order", "penalties before biases", SAMPLER, _PROCESSORS, _PENALTIES_FIRST,
          "v1.sampler.apply_logits_processors", "value mutation"),
    Fault("mask", "padding of short lists has a logprob", SAMPLER,
          'gathered_logprobs = gathered_logprobs.masked_fill(~valid_mask, float("-inf"))', "pass",
          "v1.sampler.gather_specific_token_logprobs"),
    Fault("row", "the bonus is drawn from the last draft's row", REJECTION,
          "bonus_logits = logits[bonus_logits_indices]",
          "bonus_logits = logits[(bonus_logits_indices - 1).clamp(min=0)]", "v1.rejection_sampler"),
    Fault("dtype", "target logits keep their precision", REJECTION,
          "        raw_target_logits = raw_target_logits.to(torch.float32)\n", "", "v1.rejection_sampler",
          "value exception"),
    Fault("row", "min tokens of a batch without drafts", REJECTION,
          "                logits = processor.apply_with_spec_decode(\n"
          "                    logits, metadata.num_draft_tokens\n                )",
          "                logits = processor.apply(logits)", "v1.rejection_apply_logits_processors",
          "value mutation exception"),
    Fault("greedy", "a tiny temperature is greedy in verification", REJECTION,
          "sampling_metadata.temperature == GREEDY_TEMPERATURE", "sampling_metadata.temperature < 1e-5",
          "v1.rejection_sample"),
    Fault("row", "the bonus stands in the last column", REJECTION, "(max_spec_len + 1) + num_draft_tokens,",
          "(max_spec_len + 1) + max_spec_len,", "v1.rejection_greedy_sample_kernel", "mutation value"),
    Fault("mapping", "noise by token rather than by request", REJECTION, "inv_q_ptr + req_idx * vocab_size",
          "inv_q_ptr + token_idx * vocab_size", "v1.sample_recovered_tokens", "value crash exception"),
    Fault("boundary", "the last of equal blocks wins", REJECTION, "        if local_max > max_val:",
          "        if local_max >= max_val:", "v1.sample_recovered_tokens_kernel", "mutation value"),
    Fault("row", "requests without bad words have no rows", BAD_WORDS, "        start_idx += n",
          "            start_idx += n", "v1.bad_words_with_drafts", "value mutation exception"),
    Fault("dtype", "masks of half precision are lost", GRAMMAR, "        logits.copy_(logits_fp32.to(logits.dtype))",
          "        pass", "v1.apply_grammar_bitmask", "value mutation"),
    Fault("default", "boundaries in a tensor are not read", OUTPUTS,
          "            if self.cu_num_generated_tokens_tensor is not None:\n",
          "            if self.cu_num_generated_tokens is not None:\n", "v1.logprobs_tolists",
          "type structure value exception"),
    Fault("row", "one rank a request", OUTPUTS, "self.sampled_token_ranks[req_idx:end_idx]",
          "self.sampled_token_ranks[req_idx : req_idx + 1]", "v1.logprobs_slice_request", "shape value"),
    Fault("order", "presence before frequency", COUNTS, _FREQUENCY,
          "    logits -= presence_penalties.unsqueeze(dim=1) * output_mask\n"
          "    logits -= frequency_penalties.unsqueeze(dim=1) * output_bin_counts\n", "v1.penalties_of_tensors",
          "value mutation"),
    Fault("stale", "what is forced is forgotten in a step without a token", THINKING,
          "                if spec_len > 0:\n                    if 0 < remaining_budget < spec_len:",
          "                if spec_len > 0:\n                    if False:", "v1.thinking_budget"),
    Fault("stale", "a swap of allowed ids moves one way", BATCH_1,
          "            self.allowed_token_ids_mask_cpu_tensor[[i1, i2]] = (\n"
          "                self.allowed_token_ids_mask_cpu_tensor[[i2, i1]]\n            )\n",
          "            mask = self.allowed_token_ids_mask_cpu_tensor\n"
          "            mask[i1], mask[i2] = mask[i2], mask[i1]\n",
          "v1.input_batch"),
    Fault("row", "a generator stays in the row that its request left", BATCH_1,
          "            if generator is not None:\n                self.generators[empty_index] = generator\n",
          "            if generator is not None:\n                self.generators[last_req_index] = generator\n",
          "v1.input_batch", "value structure"),
    Fault("stale", "a request that left still wants top-k", BATCH_1, "        self.top_k_reqs.discard(req_id)\n", "",
          "v1.input_batch", "value type structure"),
    Fault("default", "all logprobs are the last one's", BATCH_1,
          "return max(self.num_logprobs.values()) if self.num_logprobs else None",
          "return list(self.num_logprobs.values())[-1] if self.num_logprobs else None", "v1.input_batch"),
    Fault("row", "tokens of the step before by this step's rows", BATCH_1,
          "            prev_index = self.prev_req_id_to_index.get(req_id)\n            if prev_index is None:\n"
          "                continue\n            req_output",
          "            prev_index = self.prev_req_id_to_index.get(req_id)\n            if prev_index is None:\n"
          "                continue\n            prev_index = min(index, len(self.prev_req_id_to_index) - 1)\n"
          "            req_output", "v1.input_batch", "value structure"),
    Fault("row", "processors are told a swap as a move", BATCH_1,
          "append((i1, i2, MoveDirectionality.SWAP))", "append((i1, i2, MoveDirectionality.UNIDIRECTIONAL))",
          "v1.input_batch", "value structure"),
    Fault("stale", "processors get a copy of the output tokens", BATCH_1,
          "request.output_token_ids,\n                )\n            )\n\n        return new",
          "list(request.output_token_ids),\n                )\n            )\n\n        return new", "v1.input_batch"),
    Fault("row", "ids of logprobs in the order of arrival", BATCH_1,
          "                    logprob_token_ids_by_index[req_index] = token_ids\n",
          "                    logprob_token_ids_by_index[len(logprob_token_ids_by_index)] = token_ids\n",
          "v1.input_batch", "value structure"),
    Fault("default", "processors that take the prompt are not known", ADAPTERS,
          "if len(inspect.signature(req_lp).parameters) == 3:", "if len(inspect.signature(req_lp).parameters) > 3:",
          "v1.adapter", "exception"),
    Fault("row", "a new row is not put into the logits", ADAPTERS, "                    logits[req_idx] = new_logits\n",
          "                    pass\n", "v1.adapter"),
)  # fmt: skip

FAULTS_V2 = (
    Fault("dtype", "logits keep their precision", LOGPROB,
          "scores = logits.gather(-1, logprob_token_ids).to(torch.float32)",
          "scores = logits.gather(-1, logprob_token_ids)", "v2.topk_logits", "dtype"),
    Fault("boundary", "columns by the ids that are given", LOGPROB, "PADDED_COLS=triton.next_power_of_2(num_cols)",
          "PADDED_COLS=triton.next_power_of_2(max_per_req_token_ids)", "v2.logprob_token_ids"),
    Fault("boundary", "the first 1024 columns only", LOGPROB, "for j in range(0, topk, TOPK_BLOCK_SIZE):",
          "for j in range(0, 1, TOPK_BLOCK_SIZE):", "v2.token_logprobs", "value undefined"),
    Fault("overflow", "ranks of 16 bits", LOGPROB, "    tl.store(output_ptr + req_idx, n)",
          "    tl.store(output_ptr + req_idx, n.to(tl.int16))", "v2.ranks_kernel", "mutation value"),
    Fault("mapping", "the first new request's length", PENALTIES, "int(prefill_lens.max())", "int(prefill_lens[0])",
          "v2.penalties_state", "value mutation undefined"),
    Fault("stale", "new requests are counted each step", PENALTIES, "            self._new_penalties_reqs.clear()\n",
          "", "v2.penalties_state", "value mutation structure"),
    Fault("boundary", "a last word that is not full", PENALTIES, "packed_block < tl.cdiv(vocab_size, 32)",
          "packed_block < vocab_size // 32", "v2.apply_penalties", "value mutation"),
    Fault("boundary", "outputs in the prompt's last block", PENALTIES,
          "    if (block_idx + 1) * BLOCK_SIZE >= prompt_len:", "    if block_idx * BLOCK_SIZE >= prompt_len:",
          "v2.bincount", "value mutation"),
    Fault("order", "presence before repetition", PENALTIES,
          "        logits *= tl.where(logits > 0, 1.0 / scale, scale)\n",
          "        logits *= tl.where(logits - pres_penalty > 0, 1.0 / scale, scale)\n",
          "v2.penalties_and_temperature", "value mutation"),
    Fault("row", "the token itself rather than the next one", PROMPT_2, "target_pos = num_computed_tokens + 1 + block",
          "target_pos = num_computed_tokens + block", "v2.prompt_token_ids"),
    Fault("boundary", "ranks of the first chunk", PROMPT_2,
          "ranks = torch.cat(ranks, dim=0) if len(ranks) > 1 else ranks[0]", "ranks = ranks[0]", "v2.prompt_scores",
          "shape"),
    Fault("row", "a prompt's last row is always left out", PROMPT_2,
          "            if not req_is_prompt_chunked:\n                end_idx -= 1", "            end_idx -= 1",
          "v2.prompt_logprobs_worker", "shape structure value exception"),
    Fault("boundary", "a prompt of the prefill's length was resumed", PROMPT_2,
          "prompt_lens < input_batch.prefill_len_np\n        needs",
          "prompt_lens <= input_batch.prefill_len_np\n        needs", "v2.prompt_logprobs_worker",
          "structure value shape"),
    Fault("row", "the count is without what is inserted", REJECTION_2,
          "tl.store(num_sampled_ptr + req_idx, num_sampled + 1)", "tl.store(num_sampled_ptr + req_idx, num_sampled)",
          "v2.insert_resampled_kernel", "mutation value"),
    Fault("greedy", "a greedy request's bonus is not inserted", REJECTION_2,
          "    if temp == 0.0 and not is_bonus:\n        # Greedy + non-bonus token. The",
          "    if temp == 0.0:\n        # Greedy + non-bonus token. The", "v2.insert_resampled_kernel",
          "mutation value"),
    Fault("boundary", "the ratio of the request before", REJECTION_2, "            if resample_idx > 0:",
          "            if resample_idx >= 0:", "v2.rejection_block", "value undefined invariant"),
    Fault("row", "a block goes on in the next request", REJECTION_2, "mask=i < num_draft_tokens - 1,",
          "mask=i < num_draft_tokens,", "v2.rejection_block", "value crash"),
    Fault("row", "the residual of the first draft", REJECTION_2, "+ resample_idx * draft_logits_stride_1",
          "+ 0 * draft_logits_stride_1", "v2.rejection_sample"),
    Fault("order", "draft sums before temperature", REJECTION_2,
          "                ).to(tl.float32)\n                / temp\n            )\n            draft_max",
          "                ).to(tl.float32)\n            )\n            draft_max", "v2.rejection_sample"),
    Fault("mask", "the bonus shuts out id 0", REJECTION_2, "    if is_bonus or not is_valid_rejected_draft:",
          "    if not is_valid_rejected_draft:", "v2.resample_kernel", "mutation value"),
    Fault("row", "local positions of the first chunk", REJECTION_SAMPLER_2, "input_batch.expanded_local_pos[lo:hi],",
          "input_batch.expanded_local_pos[: hi - lo],", "v2.rejection_sampler"),
    Fault("default", "invalid drafts are verified", REJECTION_SAMPLER_2, "        if invalid_drafts is not None:",
          "        if False:", "v2.rejection_sampler"),
    Fault("row", "sampled ids of a request one row on", REJECTION_SAMPLER_2,
          "tl.store(flat_sampled_ptr + start_idx + i, token_id)",
          "tl.store(flat_sampled_ptr + start_idx + num_sampled - 1 - i, token_id)", "v2.rejection_sampler"),
    Fault("order", "min-p before temperature", SAMPLER_2, _TEMPERATURE_2, _TEMPERATURE_LAST_2, "v2.sampler"),
    Fault("order", "bad words before biases", SAMPLER_2,
          "            logit_bias_state,\n            self.penalties_state,\n            bad_words_state,\n",
          "            self.penalties_state,\n            bad_words_state,\n            logit_bias_state,\n",
          "v2.sampler"),
    Fault("default", "processed logits are taken for logprobs", SAMPLER_2,
          'logits_mode=self.logprobs_mode in ("raw_logits", "processed_logits")',
          'logits_mode=self.logprobs_mode == "raw_logits"', "v2.sampler_logits_mode"),
    Fault("order", "bits from the other end", MASKS, 'bitorder="little"', 'bitorder="big"', "v2.sampling_mask_lists"),
    Fault("row", "always the request's first row", MASKS, "tl.load(cu_num_logits_ptr + req_idx) + slot_idx",
          "tl.load(cu_num_logits_ptr + req_idx)", "v2.sampling_mask_rows"),
    Fault("boundary", "a last byte that is not full", MASKS, "mask=byte_offsets < tl.cdiv(vocab_size, 8)",
          "mask=byte_offsets < vocab_size // 8", "v2.sampling_mask_kernel", "undefined value mutation"),
    Fault("nan", "infinity is kept", MASKS, 'keep = (logits > -float("inf")) & (logits < float("inf"))',
          'keep = logits > -float("inf")', "v2.sampling_mask_kernel", "value mutation"),
    Fault("row", "writes start at the row's start", BUFFERS_2, "row_ptr += row_idx * row_stride + start_idx",
          "row_ptr += row_idx * row_stride", "v2.staged_writes", "value mutation"),
    Fault("stale", "lengths of earlier writes stay", BUFFERS_2, "        self._staged_write_cu_lens.clear()\n", "",
          "v2.staged_writes", "value mutation crash undefined structure"),
    Fault("boundary", "a finished prefill is a chunk", INPUTS_2,
          "is_chunked_prefilling = seq_len < prefill_len\n\n    num_sampled",
          "is_chunked_prefilling = seq_len <= prefill_len\n\n    num_sampled", "v2.num_sampled_and_rejected",
          "value mutation"),
    Fault("boundary", "the last acceptable draft is invalid", GRAMMAR_2, "    return local_pos > row_limit",
          "    return local_pos >= row_limit", "v2.grammar_invalid_drafts"),
    Fault("default", "one request within its limit suffices", GRAMMAR_2, "(limit >= num_drafts).all()",
          "(limit >= num_drafts).any()", "v2.grammar_invalid_drafts", "type value"),
    Fault("row", "one bonus position whatever is asked", GRAMMAR_2,
          "int(num_draft_tokens_per_req[req_idx]) + num_bonus_tokens", "int(num_draft_tokens_per_req[req_idx]) + 1",
          "v2.grammar_bitmask", "mutation value exception"),
    Fault("boundary", "the budget is one longer", THINKING_2, "    if num_reasoning_tokens < budget:",
          "    if num_reasoning_tokens <= budget:", "v2.apply_thinking_budget", "mutation value"),
    Fault("boundary", "a mark across two steps", THINKING_2, "    new_scan_pos = total_len - (MAX_LEN - 1)",
          "    new_scan_pos = total_len", "v2.apply_thinking_budget", "mutation value"),
    Fault("boundary", "a mark across two blocks", THINKING_2, "(offs < block_hi) & (offs + START_LEN <= total_len)",
          "(offs < block_hi) & (offs + START_LEN <= block_hi)", "v2.apply_thinking_budget", "mutation value"),
    Fault("stale", "a reused slot is scanned from where it was", THINKING_2,
          "            self.cached_scan_pos.index_fill_(0, idx, 0)\n", "", "v2.thinking_budget_state",
          "value mutation"),
    Fault("default", "the low half of the key", WATERMARK_2, "        key >> 32,", "        0,", "v2.watermark_sample"),
    Fault("boundary", "the last of equal candidates wins", WATERMARK_2,
          "tl.min(tl.where(best_value == value, best_token, vocab_size), axis=0)",
          "tl.max(tl.where(best_value == value, best_token, -1), axis=0)", "v2.watermark_sample"),
    Fault("boundary", "a context that is no multiple of four", WATERMARK_2, "_UINT32_MASK - 3", "_UINT32_MASK - 2",
          "v2.watermark_sample"),
    Fault("mask", "a padding row writes into the cache", WATERMARK_2, "            mask=mask & valid_req,",
          "            mask=mask,", "v2.watermark_sample", "mutation value crash"),
    Fault("boundary", "the oldest of the window is left out", WATERMARK_2, "if history_pos >= history_start and (",
          "if history_pos > history_start and (", "v2.repeated_contexts"),
    Fault("mask", "padding before the history is its first token", WATERMARK_2,
          "mask=in_window & (historical_pos >= 0),", "mask=in_window,", "v2.repeated_contexts_kernel",
          "mutation value"),
    Fault("boundary", "the window begins with its block", WATERMARK_2,
          "in_window = (previous_pos >= scan_start) & (previous_pos < history_len)",
          "in_window = previous_pos < history_len", "v2.repeated_contexts_kernel", "mutation value"),
    Fault("boundary", "drafts of the window are one fewer", WATERMARK_2,
          "in_history &= prior_steps >= steps.unsqueeze(1) - max_history",
          "in_history &= prior_steps > steps.unsqueeze(1) - max_history", "v2.draft_watermarks"),
    Fault("stale", "contexts are written one step on", WATERMARK_2,
          "prior_contexts.index_put_((row_indices, steps), contexts)",
          "prior_contexts.index_put_((row_indices, steps.clamp(max=prior_contexts.shape[1] - 2)), contexts)",
          "v2.draft_watermarks", "mutation value exception"),
    Fault("mapping", "each block has the first one's noise", WATERMARK_2,
          "groups = block_idx * (BLOCK_SIZE // 4) + tl.arange", "groups = 0 * (BLOCK_SIZE // 4) + tl.arange",
          "v2.rejection_watermark"),
    Fault("order", "words in the order of computation", WATERMARK_2,
          "tl.interleave(output_0, output_2),\n        tl.interleave(output_1, output_3),",
          "tl.interleave(output_0, output_1),\n        tl.interleave(output_2, output_3),", "v2.rejection_watermark"),
    Fault("dtype", "52 bits of noise", GUMBEL, "((hi << 32) | lo) >> 11", "(((hi << 32) | lo) >> 12) << 1",
          "v2.gumbel_kernel", "mutation value"),
    Fault("boundary", "the series is used too far", GUMBEL, "tl.where(value < 0.25, series, direct)",
          "tl.where(value < 0.5, series, direct)", "v2.gumbel_kernel", "mutation value"),
    Fault("mapping", "the column of another request", GUMBEL, "col = tl.load(logits_cache_col_ptr + token_idx)",
          "col = tl.load(logits_cache_col_ptr + req_state_idx, mask=is_valid_req, other=0)", "v2.gumbel_kernel",
          "mutation value crash"),
    Fault("greedy", "temperature 0 is divided by", GUMBEL, "if temperature == 0.0 or temperature == 1.0:",
          "if temperature == 1.0:", "v2.apply_temperature", "mutation value"),
    Fault("dtype", "times the reciprocal", GUMBEL, "    logits = logits / temperature\n",
          "    logits = logits * (1.0 / temperature)\n", "v2.apply_temperature", "mutation value"),
    Fault("boundary", "the maximum of the last block", MIN_P, "max_val = tl.max(tl.maximum(logits, max_val))",
          "max_val = tl.max(logits)", "v2.apply_min_p", "mutation value"),
    Fault("boundary", "min tokens end a position late", BIAS_2, "pos + 1 < min_len", "pos < min_len",
          "v2.apply_logit_bias", "mutation value"),
    Fault("boundary", "as wide as the allowed ids", BIAS_2,
          "            logit_bias_token_ids.shape[-1],\n            stop_token_ids.shape[-1],\n        )",
          "            1,\n        )", "v2.apply_logit_bias", "mutation value"),
    Fault("default", "min tokens count the prompt", BIAS_2, "min_len = prompt_len + min_tokens",
          "min_len = min_tokens", "v2.logit_bias_state", "value mutation"),
    Fault("boundary", "as many ids as there may be", LOGPROB, "        if n > MAX_LOGPROB_TOKEN_IDS:",
          "        if n >= MAX_LOGPROB_TOKEN_IDS:", "v2.logprob_token_ids", "exception"),
    Fault("boundary", "as many bad words as there may be", BAD_WORDS_2,
          "        if num_bad_words > max_num_bad_words:", "        if num_bad_words >= max_num_bad_words:",
          "v2.bad_words_state", "exception"),
    Fault("mapping", "as many bad words as the first request has", BAD_WORDS_2,
          "int(self.num_bad_words.np[ctx.idx_mapping_np].max())", "int(self.num_bad_words.np[ctx.idx_mapping_np][0])",
          "v2.bad_words_state", "value mutation"),
    Fault("row", "the prompt is taken for outputs", BAD_WORDS_2, "* all_token_ids_stride + prompt_len\n",
          "* all_token_ids_stride\n", "v2.apply_bad_words", "mutation value"),
    Fault("default", "min-p alone needs no processing", STATES, "            or min_p != 0.0\n", "",
          "v2.sampling_states"),
    Fault("default", "a seed of 0 is none", STATES, "self.seeds_set[req_idx] = seed is not None",
          "self.seeds_set[req_idx] = bool(seed)", "v2.sampling_states", "value mutation"),
    Fault("default", "all logprobs are none", STATES,
          "        elif num_logprobs == -1:\n            num_logprobs = self.vocab_size\n", "", "v2.sampling_states",
          "value mutation"),
    Fault("stale", "the slots rather than their requests", STATES, "self.top_p.gpu[expanded_idx_mapping]",
          "self.top_p.gpu[: len(expanded_idx_mapping)]", "v2.sampling_states"),
    Fault("order", "chunks by request", MASKS, "torch.cat([chunk.counts for chunk in chunks])",
          "torch.cat([chunk.counts for chunk in reversed(chunks)])", "v2.sampling_mask_cat"),
    Fault("stale", "what was found in a slot stays for the next request", THINKING_2,
          "        if self._reset_reqs:\n", "        if False:\n", "v2.thinking_budget_sequence", "value mutation"),
    Fault("stale", "what was found in a slot stays for its next request", THINKING_2,
          "        if self._reset_reqs:\n", "        if False:\n", "v2.thinking_budget_state", "value mutation"),
    Fault("boundary", "a marker may end past the tokens", THINKING_2, "if i + NATURAL_END_LEN <= total_len:",
          "if i < total_len:", "v2.apply_thinking_budget", "mutation value"),
    Fault("mask", "places of rows are not masked", INPUTS_2,
          "tl.store(expanded_idx_mapping_ptr + start_idx + block, req_state_idx, mask=mask)",
          "tl.store(expanded_idx_mapping_ptr + start_idx + block, req_state_idx)", "v2.expand_idx_mapping", "mutation"),
    Fault("row", "places count from the batch's first row", INPUTS_2, "+ start_idx + block, block, mask=mask)",
          "+ start_idx + block, start_idx + block, mask=mask)", "v2.expand_idx_mapping"),
    Fault("boundary", "a prompt's last token is sampled over", INPUTS_2,
          "if NUM_NEW_SAMPLED_TOKENS > 0 and first_logit_seq_pos >= prefill_len:",
          "if NUM_NEW_SAMPLED_TOKENS > 0 and first_logit_seq_pos >= prefill_len - 1:",
          "v2.combine_sampled_and_draft_tokens", "mutation value"),
    Fault("mapping", "drafts of the request in that row", INPUTS_2,
          "draft_tokens_ptr + req_state_idx * draft_tokens_stride + block",
          "draft_tokens_ptr + batch_idx * draft_tokens_stride + block",
          "v2.combine_sampled_and_draft_tokens", "mutation value"),
    Fault("stale", "lengths of a larger batch stay", INPUTS_2,
          "            tl.store(seq_lens_ptr + block, 0, mask=mask)\n", "",
          "v2.prepare_pos_seq_lens", "mutation value"),
    Fault("boundary", "positions count from 1", INPUTS_2, "pos = num_computed_tokens + block\n",
          "pos = num_computed_tokens + block + 1\n", "v2.prepare_pos_seq_lens", "mutation value"),
    Fault("boundary", "the first draft is never a placeholder", REJECTION_SAMPLER_2, "(local_pos > 0) & (pos",
          "(local_pos > 1) & (pos", "v2.gather_draft_sampled"),
    Fault("boundary", "drafts right after the prefill are placeholders", REJECTION_SAMPLER_2,
          "(pos - local_pos < prefill_len)", "(pos - local_pos <= prefill_len)", "v2.gather_draft_sampled"),
    Fault("row", "as many tokens as there may be", REJECTION_SAMPLER_2,
          "    for i in range(num_sampled):\n        token_id",
          "    for i in range(num_sampled + 1):\n        token_id",
          "v2.flatten_sampled_kernel", "mutation value"),
    Fault("mapping", "padding rows are not left out", INPUTS_2,
          "    if req_state_idx < 0:\n        # Filter rows with negative index entries.\n        return\n", "",
          "v2.post_update", "mutation value"),
    Fault("boundary", "the token before the last is the last", INPUTS_2, "sampled_tokens_stride + num_sampled - 1",
          "sampled_tokens_stride + tl.maximum(num_sampled - 2, 0)", "v2.post_update", "mutation value"),
    Fault("boundary", "the last token of a trace is sampled", TRACES_2, "step >= trace_len:", "step >= trace_len - 1:",
          "v2.trace_replay", "mutation value"),
    Fault("stale", "a trace is written when the next request comes", TRACES_2,
          "        self.trace_token_ids.apply_write()\n", "", "v2.trace_replay_state"),
    Fault("boundary", "the row that predicts the first token is scored", PROMPT_2,
          "hi = min(chunk_end, prompt_len - 1)", "hi = min(chunk_end, prompt_len)",
          "v2.prompt_token_id_scores", "exception value crash"),
    Fault("row", "ids of another chunk's rows", PROMPT_2, "ids = req.token_ids[a - req.start : b - req.start]",
          "ids = req.token_ids[max(a - lo, 0) : max(b - lo, 0)]", "v2.prompt_token_id_scores", "value exception"),
    Fault("stale", "a request that left is still scored", PROMPT_2,
          "        self.token_id_scores.pop(req_id, None)\n\n    def", "\n    def", "v2.prompt_token_id_scores",
          "structure value"),
)  # fmt: skip

FAULTS = (*FAULTS_V1, *FAULTS_V2)
