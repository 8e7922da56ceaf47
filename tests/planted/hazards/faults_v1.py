"""Faults of each hazard's kind in the V1 sampler of vLLM 0.32.0."""

from __future__ import annotations

from planted import Fault

SAMPLE = "vllm/v1/sample/"
REJECTION = f"{SAMPLE}rejection_sampler.py"
SAMPLER = f"{SAMPLE}sampler.py"
FILTERS = f"{SAMPLE}ops/topk_topp_sampler.py"
TRITON = f"{SAMPLE}ops/topk_topp_triton.py"
PENALTIES = f"{SAMPLE}ops/penalties.py"
COUNTS = "vllm/model_executor/layers/utils.py"
BAD_WORDS = f"{SAMPLE}ops/bad_words.py"
LOGPROBS = f"{SAMPLE}ops/logprobs.py"
PROCESSORS = f"{SAMPLE}logits_processor/builtin.py"
OUTPUTS = "vllm/v1/outputs.py"
GRAMMAR = "vllm/v1/structured_output/utils.py"

_RECOVERED_DRAW = "        if num_draft_tokens[i] > 0:\n            q[i].exponential_(generator=generator)"
_SAMPLE_DRAW = (
    "        for i, generator in generators.items():\n            q[i].exponential_(generator=generator)\n"
    "    return sample_with"
)
_UNIFORM_DRAW = "            uniform_probs[start_idx:end_idx].uniform_(generator=generator)"
_CPU_DRAW = "                0, 2**31, (1,), generator=gen, dtype=torch.long"
_NO_DRAFTS = "        if n == 0:\n            continue\n"
_ARGMAX = "    return scores.argmax(dim=-1).view(-1)"


def _after(draw: str, statement: str) -> str:
    """The last draw of a text, then a statement in the same block."""
    lines = draw.split("\n")
    at = max(n for n, line in enumerate(lines) if "generator" in line)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    return "\n".join([*lines[: at + 1], indent + statement, *lines[at + 1 :]])


_RANDOM_FAULTS = (
    # Noise is drawn, and then not used.
    Fault("H1", "noise for requests without drafts", REJECTION, _RECOVERED_DRAW,
          _RECOVERED_DRAW.replace("num_draft_tokens[i] > 0", "True"), "v1.sample_recovered_tokens", "rng"),
    Fault("H1", "a uniform for requests without drafts", REJECTION, _NO_DRAFTS,
          "        if n == 0:\n            if (g := generators.get(req_idx)) is not None:\n"
          "                torch.rand(1, generator=g)\n            continue\n", "v1.generate_uniform_probs", "rng"),
    Fault("H1", "uniforms for greedy batches", REJECTION, "if synthetic_mode or not sampling_metadata.all_greedy:",
          "if True:", "v1.rejection_sample", "rng"),
    Fault("H1", "one draw too many", FILTERS, _SAMPLE_DRAW,
          _after(_SAMPLE_DRAW, "torch.rand(1, generator=generator)"), "v1.random_sample", "rng"),
    Fault("H1", "shared noise although all are seeded", FILTERS, "if len(generators) != probs.shape[0]:",
          "if True:", "v1.random_sample", "rng"),
    # Rewinding.
    Fault("H2", "the generator is rewound after use", FILTERS, _SAMPLE_DRAW,
          _after(_SAMPLE_DRAW, "generator.manual_seed(generator.initial_seed())"), "v1.random_sample", "rng"),
    Fault("H2", "the state is put back", REJECTION, _UNIFORM_DRAW,
          "            state = generator.get_state()\n" + _UNIFORM_DRAW + "\n"
          "            generator.set_state(state)", "v1.generate_uniform_probs", "rng"),
    Fault("H2", "arithmetic on offsets", REJECTION, _RECOVERED_DRAW,
          _after(_RECOVERED_DRAW, "generator.set_offset(generator.get_offset() - 4)"),
          "v1.sample_recovered_tokens", "exception"),
    # Made anew at each step.
    Fault("H3", "a new generator a step", FILTERS, _SAMPLE_DRAW, _SAMPLE_DRAW.replace(
          "generator=generator", "generator=torch.Generator().manual_seed(generator.initial_seed())"),
          "v1.random_sample", "rng value"),
    Fault("H3", "a new generator a verification", REJECTION, _UNIFORM_DRAW, _UNIFORM_DRAW.replace(
          "generator=generator", "generator=torch.Generator().manual_seed(generator.initial_seed())"),
          "v1.generate_uniform_probs", "rng value"),
    Fault("H3", "a new generator for recovery", REJECTION, _RECOVERED_DRAW, _RECOVERED_DRAW.replace(
          "generator=generator", "generator=torch.Generator().manual_seed(generator.initial_seed())"),
          "v1.sample_recovered_tokens", "rng value"),
    # Seeded and unseeded requests in one batch.
    Fault("H4", "noise lands in a copy", FILTERS, _SAMPLE_DRAW, _SAMPLE_DRAW.replace("q[i]", "q[[i]]"),
          "v1.random_sample", "value"),
    Fault("H4", "uniforms land in a copy", REJECTION, "uniform_probs[start_idx:end_idx].uniform_",
          "uniform_probs[torch.arange(start_idx, end_idx)].uniform_", "v1.generate_uniform_probs", "value"),
    Fault("H4", "unseeded requests have no noise", FILTERS, "if len(generators) != probs.shape[0]:",
          "if not generators:", "v1.random_sample", "undefined value rng"),
    Fault("H4", "unseeded requests have no recovery noise", REJECTION, "    q.exponential_()\n    for i",
          "    if not sampling_metadata.generators:\n        q.exponential_()\n    for i",
          "v1.sample_recovered_tokens", "undefined value rng"),
    Fault("H4", "a seed lands in a copy", FILTERS, "            seeds[i] = torch.randint(",
          "            seeds[[i]][0] = torch.randint(", "v1.top_k_top_p_sampler.cpu", "value"),
    # The order of draws.
    Fault("H5", "rows drawn from the last", FILTERS, "        q.exponential_()\n    if generators:",
          "        for row in reversed(range(len(q))):\n            q[row].exponential_()\n    if generators:",
          "v1.random_sample", "value"),
    Fault("H5", "uniforms from the last", REJECTION, "    start_idx = 0\n    for req_idx, n in enumerate",
          "    uniform_probs = uniform_probs.flip(0)\n    start_idx = 0\n    for req_idx, n in enumerate",
          "v1.generate_uniform_probs", "value"),
    Fault("H5", "recovery before acceptance", REJECTION, "    uniform_probs: torch.Tensor | None = None\n",
          "    uniform_probs: torch.Tensor | None = None\n    if not sampling_metadata.all_greedy:\n"
          "        torch.empty(batch_size, vocab_size).exponential_()\n", "v1.rejection_sample", "value rng"),
    Fault("H5", "a column at a time", FILTERS, "        q.exponential_()\n    if generators:",
          "        for column in range(q.shape[1]):\n            q[:, column].exponential_()\n    if generators:",
          "v1.random_sample", "value"),
    # Which id a random number belongs to.
    Fault("H6", "noise by the order of probabilities", FILTERS, "    if q.dtype == probs.dtype:\n        scores",
          "    order = probs.sort(dim=-1, descending=True, stable=True).indices\n"
          "    q = q.gather(-1, order.argsort(dim=-1))\n    if q.dtype == probs.dtype:\n        scores",
          "v1.sample_with_noise", "value"),
    Fault("H6", "inverse of cumulated probabilities", FILTERS, "    return sample_with_exponential_noise(probs, q)\n",
          "    u = torch.rand(len(probs), 1)\n"
          "    return torch.searchsorted(probs.cumsum(-1), u).clamp(max=probs.shape[1] - 1).view(-1)\n",
          "v1.random_sample", "value rng"),
    Fault("H6", "noise in reverse", REJECTION, "    inv_q = q.reciprocal()", "    inv_q = q.reciprocal().flip(-1)",
          "v1.sample_recovered_tokens", "value"),
    # What is drawn from the process's own generators.
    Fault("H9", "a seeded request draws from the process", REJECTION, _UNIFORM_DRAW,
          _UNIFORM_DRAW.replace("generator=generator", ""), "v1.generate_uniform_probs", "rng value"),
    Fault("H9", "a seeded request's recovery draws from the process", REJECTION, _RECOVERED_DRAW,
          _RECOVERED_DRAW.replace("generator=generator", ""), "v1.sample_recovered_tokens", "rng value"),
    Fault("H9", "another draw each time", FILTERS, _SAMPLE_DRAW,
          _SAMPLE_DRAW.replace("generator=generator", "generator=torch.Generator(); g.seed()").replace(
              "q[i].exponential_(generator=torch.Generator(); g.seed())",
              "g = torch.Generator()\n            g.seed()\n            q[i].exponential_(generator=g)"),
          "v1.random_sample", "value rng"),
    Fault("H9", "a seed of the process", FILTERS, _CPU_DRAW, _CPU_DRAW.replace("generator=gen, ", ""),
          "v1.top_k_top_p_sampler.cpu", "rng value"),
    Fault("H9", "ties broken at random", SAMPLER, "        return logits.argmax(dim=-1).view(-1)",
          "        return (logits + torch.rand_like(logits) * 0).argmax(dim=-1).view(-1)",
          "v1.sampler.greedy_sample", "rng"),
    # One stream used twice.
    Fault("H10", "recovery repeats the uniform's stream", REJECTION, _RECOVERED_DRAW,
          _RECOVERED_DRAW.replace("generator=generator", "generator=generator.clone_state()"),
          "v1.sample_recovered_tokens", "rng"),
    Fault("H10", "one seed for all requests", FILTERS, _SAMPLE_DRAW, _SAMPLE_DRAW.replace(
          "generator=generator", "generator=next(iter(generators.values()))"), "v1.random_sample", "value rng"),
    # What numbers depend on beside the seed.
    Fault("H11", "noise in a transposed buffer", FILTERS,
          "return torch.empty(probs.shape, dtype=dtype, device=probs.device)",
          "return torch.empty(probs.shape[::-1], dtype=dtype, device=probs.device).t()", "v1.random_sample", "value"),
    Fault("H11", "noise of padded rows", FILTERS, "        q.exponential_()\n    if generators:",
          "        padded = q.new_empty(len(q), q.shape[1] + -q.shape[1] % 8)\n"
          "        q.copy_(padded.exponential_()[:, : q.shape[1]])\n    if generators:",
          "v1.random_sample", "value rng"),
    Fault("H11", "uniforms of float32", REJECTION,
          "        dtype=torch.float64,\n        device=device,\n    )\n    start",
          "        dtype=torch.float32,\n        device=device,\n    ).double()\n    start",
          "v1.generate_uniform_probs", "value"),
    Fault("H11", "noise row by row of another width", REJECTION, "    q.exponential_()\n    for i",
          "    q.copy_(torch.empty(batch_size, vocab_size + 1).exponential_()[:, 1:])\n    for i",
          "v1.sample_recovered_tokens", "value rng"),
)  # fmt: skip

_GREEDY_FAULTS = (
    Fault("H12", "the last maximum wins", SAMPLER, "        return logits.argmax(dim=-1).view(-1)",
          "        return logits.shape[-1] - 1 - logits.flip(-1).argmax(dim=-1).view(-1)",
          "v1.sampler.greedy_sample", "value"),
    Fault("H12", "greedy is top-k of 1", SAMPLER, "            greedy_sampled = self.greedy_sample(logits)",
          "            top = (logits == logits.amax(-1, keepdim=True)).float()\n"
          "            greedy_sampled = torch.multinomial(top + 1e-30, 1).view(-1)", "v1.sampler.sample", "rng value"),
    Fault("H12", "only 0 is greedy", SAMPLER, "            sampling_metadata.temperature < _SAMPLING_EPS,",
          "            sampling_metadata.temperature == 0,", "v1.sampler.sample", "value"),
    Fault("H12", "verified against the last maximum", REJECTION, "target_argmax = target_logits.argmax(dim=-1)",
          "target_argmax = target_logits.shape[1] - 1 - target_logits.flip(1).argmax(dim=-1)",
          "v1.rejection_sample", "value"),
    Fault("H12", "greedy verified by chance", REJECTION,
          "        is_greedy = sampling_metadata.temperature == GREEDY_TEMPERATURE",
          "        is_greedy = torch.zeros_like(sampling_metadata.temperature, dtype=torch.bool)",
          "v1.rejection_sample", "value"),
    Fault("H14", "the last score wins", FILTERS, _ARGMAX,
          "    return scores.shape[-1] - 1 - scores.flip(-1).argmax(dim=-1).view(-1)", "v1.sample_with_noise", "value"),
    Fault("H14", "NaN loses", FILTERS, _ARGMAX, "    return scores.nan_to_num(nan=-1.0).argmax(dim=-1).view(-1)",
          "v1.sample_with_noise", "value"),
    Fault("H14", "scores compared as float32", FILTERS, _ARGMAX, "    return scores.float().argmax(dim=-1).view(-1)",
          "v1.sample_with_noise", "value"),
    Fault("H14", "ids of int32", FILTERS, _ARGMAX, "    return scores.argmax(dim=-1).view(-1).int()",
          "v1.random_sample", "dtype"),
)  # fmt: skip

_INDEX_FAULTS = (
    Fault("H15", "a placeholder is looked up", REJECTION, "            if draft_token_id < 0:", "            if False:",
          "v1.rejection_random_sample_kernel", "value crash"),
    Fault("H15", "a placeholder passes in synthetic mode", REJECTION, "(uniform_prob < rate) and draft_token_id >= 0",
          "uniform_prob < rate", "v1.rejection_greedy_sample_kernel", "value"),
    Fault("H15", "a placeholder shuts out the last id", REJECTION, "vocab_offset != draft_token_id)",
          "vocab_offset != (draft_token_id + vocab_size) % vocab_size)", "v1.sample_recovered_tokens_kernel", "value"),
    Fault("H15", "only a placeholder in the first place is one", REJECTION, "            if draft_token_id < 0:",
          "            if draft_token_id < 0 and pos == 0:", "v1.rejection_sample", "value crash"),
    Fault("H15", "-1 penalises the last id", PENALTIES, "output_tokens_t == -1, vocab_size)",
          "output_tokens_t == -1, vocab_size - 1)", "v1.penalties", "value"),
    Fault("H16", "logprobs of discarded requests", REJECTION, "            valid_mask[discard_req_indices] = False",
          "            pass", "v1.parse_output", "structure"),
    Fault("H16", "discarded before logprobs", REJECTION,
          "        output_logprobs = None\n        if logprobs_tensors is not None:",
          "        if len(discard_req_indices) > 0:\n            valid_mask[discard_req_indices] = False\n"
          "        output_logprobs = None\n        if logprobs_tensors is not None:",
          "v1.parse_output", "shape value structure"),
    Fault("H16", "a slice is one too long", OUTPUTS, "        end_idx = req_idx + num_positions",
          "        end_idx = req_idx + num_positions + 1", "v1.logprobs_slice_request", "shape value"),
    Fault("H16", "ranks are not filtered", OUTPUTS, "            self.selected_token_ranks[mask],",
          "            self.selected_token_ranks[: int(mask.sum())],", "v1.logprobs_filter", "value alias"),
    Fault("H16", "offsets are dropped", OUTPUTS, "            return tensor._replace(cu_num_generated_tokens=cu_num",
          "            return tensor\n            return tensor._replace(cu_num_generated_tokens=cu_num",
          "v1.logprobs_cat", "value type structure"),
    Fault("H17", "an id of V is valid", REJECTION, "            output_token_ids_np < vocab_size",
          "            output_token_ids_np <= vocab_size", "v1.parse_output", "structure"),
    Fault("H17", "ids past V count for logprobs only", REJECTION, "logprobs_tensors.filter(valid_mask.flatten())",
          "logprobs_tensors.filter((output_token_ids_np != -1).flatten())", "v1.parse_output", "shape structure"),
    Fault("H17", "negative ids are placeholders", REJECTION, "(output_token_ids_np != PLACEHOLDER_TOKEN_ID)",
          "(output_token_ids_np >= 0)", "v1.parse_output", "structure"),
    Fault("H18", "padding takes part", REJECTION, '        score = tl.where(vocab_mask, score, float("-inf"))\n', "",
          "v1.sample_recovered_tokens_kernel", "value"),
    Fault("H18", "padding takes part and nothing clamps", REJECTION, """\
        score = tl.where(vocab_mask, score, float("-inf"))
        local_max, local_id = tl.max(score, axis=0, return_indices=True)

        if local_max > max_val:
            max_val = local_max
            recovered_id = v + local_id

    recovered_id = tl.minimum(recovered_id, vocab_size - 1)
""", """\
        local_max, local_id = tl.max(score, axis=0, return_indices=True)

        if local_max > max_val:
            max_val = local_max
            recovered_id = v + local_id

""", "v1.sample_recovered_tokens_kernel", "value invariant"),
    Fault("H18", "the last tile is left out", REJECTION, "for v in range(0, vocab_size, BLOCK_SIZE):",
          "for v in range(0, vocab_size // BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE):",
          "v1.sample_recovered_tokens_kernel", "value"),
    Fault("H20", "an impossible row is uniform", FILTERS,
          "        probs = logits.softmax(dim=-1, dtype=torch.float32)\n        return (",
          "        probs = logits.softmax(dim=-1, dtype=torch.float32).nan_to_num(1.0)\n        return (",
          "v1.top_k_top_p_sampler.native", "value"),
    Fault("H20", "an impossible target row is uniform", REJECTION,
          "target_probs = target_logits.softmax(dim=-1, dtype=torch.float32)",
          "target_probs = target_logits.softmax(dim=-1, dtype=torch.float32).nan_to_num(1.0)",
          "v1.rejection_sample", "value"),
    Fault("H20", "stop ids come back to a dead end that is none", PROCESSORS, "row_needs_restore[inverse_indices] & ",
          "", "v1.min_tokens", "value"),
    Fault("H21", "rows by offsets of 32 bits", TRITON, "row_id.to(tl.int64) * LOGITS_STRIDE_0",
          "row_id * LOGITS_STRIDE_0", "v1.top_k_top_p_triton", "value crash"),
)  # fmt: skip

_PROBABILITY_FAULTS = (
    Fault("H23", "a draft at the edge is refused", REJECTION, "target_prob / draft_prob >= uniform_prob",
          "target_prob / draft_prob > uniform_prob", "v1.rejection_random_sample_kernel", "value"),
    Fault("H23", "a draft without probability is divided by", REJECTION, "accepted = draft_prob > 0 and target_prob",
          "accepted = target_prob", "v1.rejection_random_sample_kernel", "value"),
    Fault("H23", "a rate of 0 accepts", REJECTION, "                accepted = uniform_prob < rate\n",
          "                accepted = uniform_prob <= rate\n", "v1.rejection_random_sample_kernel", "value"),
    Fault("H23", "top-p loses the last id", FILTERS, "        top_p_mask[:, -1] = False\n", "",
          "v1.top_k_top_p_pytorch", "value"),
    Fault("H23", "recovery ignores what the draft had", REJECTION, "prob = tl.maximum(target_prob - draft_prob, 0.0)",
          "prob = target_prob", "v1.sample_recovered_tokens", "value"),
    Fault("H25", "target logits are not copied", REJECTION, "            target_logits = target_logits.clone()\n",
          "            pass\n", "v1.rejection_sampler", "value"),
    Fault("H25", "raw logits are not copied", SAMPLER, "                    raw_logprobs = logits.clone()",
          "                    raw_logprobs = logits", "v1.sampler.forward", "value alias"),
    Fault("H25", "temperature makes a copy", SAMPLER, "return logits.div_(temp.unsqueeze(dim=1))",
          "return logits.div(temp.unsqueeze(dim=1))", "v1.sampler.apply_temperature", "mutation"),
    Fault("H25", "k is changed", FILTERS, "    k = k.masked_fill(no_top_k_mask, 1)",
          "    k.masked_fill_(no_top_k_mask, 1)", "v1.top_k_only", "mutation"),
    Fault("H25", "top-k makes a copy", FILTERS, "return logits.masked_fill_(logits < top_k_mask",
          "return logits.masked_fill(logits < top_k_mask", "v1.top_k_only", "mutation alias"),
    Fault("H25", "bad words go into a copy", BAD_WORDS, "        _apply_bad_words_single_batch(logits[i], ",
          "        _apply_bad_words_single_batch(logits[i].clone(), ", "v1.bad_words", "mutation value"),
    Fault("H26", "contiguous copies are filtered", FILTERS, "    no_top_k_mask = k == logits.shape[1]\n",
          "    logits = logits.contiguous()\n    no_top_k_mask = k == logits.shape[1]\n",
          "v1.top_k_only", "mutation alias"),
    Fault("H26", "the result is another tensor", FILTERS,
          "    return logits.scatter_(dim=-1, index=logits_idx, src=logits_sort)",
          "    logits.scatter_(dim=-1, index=logits_idx, src=logits_sort)\n    return logits.clone()",
          "v1.top_k_top_p_pytorch", "alias"),
    Fault("H26", "penalties return another tensor", COUNTS,
          "    logits -= presence_penalties.unsqueeze(dim=1) * output_mask\n",
          "    logits = logits - presence_penalties.unsqueeze(dim=1) * output_mask\n", "v1.penalties",
          "mutation alias"),
    Fault("H26", "one chunk is copied", OUTPUTS, "                return tensor\n",
          "                return tensor._replace(logprobs=tensor.logprobs.clone())\n", "v1.logprobs_cat", "alias"),
    Fault("H26", "lists own their memory", OUTPUTS, "            self.logprobs.cpu().numpy(),",
          "            self.logprobs.cpu().numpy().copy(),", "v1.logprobs_tolists", "alias"),
    Fault("H27", "rows are taken to be dense", TRITON, "row_id.to(tl.int64) * LOGITS_STRIDE_0", "row_id * VOCAB_SIZE",
          "v1.top_k_top_p_triton", "value mutation crash"),
    Fault("H27", "a view that needs dense rows", FILTERS,
          "    logits_sort, logits_idx = logits.sort(dim=-1, descending=False)",
          "    logits_sort, logits_idx = logits.view(-1).view(logits.shape).sort(dim=-1, descending=False)",
          "v1.top_k_top_p_pytorch", "exception"),
    Fault("H27", "temperatures are taken to be dense", SAMPLER, "return logits.div_(temp.unsqueeze(dim=1))",
          "return logits.div_(temp.as_strided(temp.shape, (1,)).unsqueeze(dim=1))", "v1.sampler.apply_temperature",
          "value mutation"),
    Fault("H29", "the rank counts greater ones only", LOGPROBS, "return (x >= values).sum(-1)",
          "return (x > values).sum(-1)", "v1.batched_count_greater_than", "value"),
    Fault("H29", "the rank of gathered logprobs", SAMPLER,
          "            token_ranks = batched_count_greater_than(logprobs, token_logprobs)",
          "            token_ranks = (logprobs > token_logprobs).sum(-1) + 1", "v1.sampler.gather_logprobs", "value"),
    Fault("H29", "the rank of particular ids", SAMPLER,
          "        token_ranks = batched_count_greater_than(logprobs, sampled_logprobs)\n",
          "        token_ranks = (logprobs > sampled_logprobs).sum(-1) + 1\n",
          "v1.sampler.gather_specific_token_logprobs", "value"),
    Fault("H29", "equal ids in another order", SAMPLER,
          "        topk_logprobs, topk_indices = torch.topk(logprobs, num_logprobs, dim=-1)",
          "        topk_logprobs, topk_indices = logprobs.flip(-1).topk(num_logprobs, dim=-1)\n"
          "        topk_indices = logprobs.shape[-1] - 1 - topk_indices", "v1.sampler.gather_logprobs", "value"),
    Fault("H30", "output of int64", REJECTION, "        dtype=torch.int32,  # Consistent",
          "        dtype=torch.int64,  # Consistent", "v1.rejection_sample", "dtype"),
    Fault("H30", "recovered ids of int64", REJECTION, "recovered_token_ids = torch.empty_like(draft_token_ids)",
          "recovered_token_ids = torch.empty_like(draft_token_ids, dtype=torch.int64)",
          "v1.sample_recovered_tokens", "dtype"),
    Fault("H30", "output as wide as the batch needs", REJECTION,
          "        (batch_size, max_spec_len + 1),\n        PLACE",
          "        (batch_size, max_spec_len + 2),\n        PLACE", "v1.rejection_sample", "shape"),
    Fault("H30", "no recovery noise for certain targets", REJECTION, "    q.exponential_()\n    for i",
          "    if (target_probs.max(-1).values < 0.9).any():\n        q.exponential_()\n    for i",
          "v1.sample_recovered_tokens", "rng undefined value"),
    Fault("H30", "indices of int64", SAMPLER, "        indices = indices.to(torch.int32)\n", "",
          "v1.sampler.gather_logprobs", "dtype"),
)  # fmt: skip

_HISTORY_FAULTS = (
    Fault("H32", "matched one row late", BAD_WORDS, "                    past_tokens_ids[draft_idx],",
          "                    past_tokens_ids[max(draft_idx - 1, start_idx)],", "v1.bad_words_with_drafts",
          "value mutation"),
    Fault("H32", "a word as long as the history", BAD_WORDS, "if len(bad_word_ids) > len(past_tokens_ids) + 1:",
          "if len(bad_word_ids) > len(past_tokens_ids):", "v1.bad_words", "value mutation"),
    Fault("H32", "a prefix one to the left", BAD_WORDS,
          "past_tokens_ids[-prefix_length:] if prefix_length > 0 else []",
          "past_tokens_ids[-prefix_length - 1 : -1] if prefix_length > 0 else []", "v1.bad_words_of_one_request",
          "value mutation exception"),
    Fault("H32", "histories without the last draft", REJECTION, "                result.append([*result[-1], spec[i]])",
          "                result.append([*out, spec[i]])", "v1.rejection_apply_logits_processors", "value mutation"),
    Fault("H32", "the next draft is known already", REJECTION,
          "            result.append(out)\n            for i in range(len(spec) - 1):",
          "            result.append([*out, spec[0]])\n            for i in range(1, len(spec)):",
          "v1.rejection_apply_logits_processors", "value mutation"),
    Fault("H32", "drafts of the bonus row are left out", SAMPLER, "            [*out, *spec] if spec else out",
          "            [*out, *spec[:-1]] if spec else out", "v1.sampler.apply_logits_processors", "value mutation"),
    Fault("H34", "placeholders are counted", PENALTIES,
          "output_tokens_t.masked_fill_(output_tokens_t == -1, vocab_size)", "output_tokens_t.clamp_(min=0)",
          "v1.penalties", "value"),
    Fault("H34", "placeholders are not replaced", PENALTIES,
          "    output_tokens_t.masked_fill_(output_tokens_t == -1, vocab_size)\n", "", "v1.penalties", "exception"),
    Fault("H34", "the padding id is counted", COUNTS,
          "    bin_counts = bin_counts[:, :vocab_size]\n    mask = bin_counts > 0",
          "    bin_counts[:, vocab_size - 1] += bin_counts[:, vocab_size]\n"
          "    bin_counts = bin_counts[:, :vocab_size]\n    mask = bin_counts > 0",
          "v1.penalties", "value"),
    Fault("H34", "presence counts", COUNTS, "presence_penalties.unsqueeze(dim=1) * output_mask",
          "presence_penalties.unsqueeze(dim=1) * output_bin_counts", "v1.penalties", "value"),
    Fault("H34", "frequency is presence", COUNTS, "frequency_penalties.unsqueeze(dim=1) * output_bin_counts",
          "frequency_penalties.unsqueeze(dim=1) * output_mask", "v1.penalties_of_tensors", "value"),
    Fault("H37", "mask rows by the most drafts", GRAMMAR, "            for i in range(1 + num_spec_tokens):",
          "            for i in range(1 + max(map(len, spec_tokens.values()), default=0)):",
          "v1.apply_grammar_bitmask", "value mutation exception"),
    Fault("H37", "mask rows without the bonus", GRAMMAR, "        cumulative_index += 1 + num_spec_tokens",
          "        cumulative_index += max(1, num_spec_tokens)", "v1.apply_grammar_bitmask",
          "value mutation exception"),
    Fault("H37", "logits rows without drafts", GRAMMAR,
          "        cumulative_offset += len(spec_tokens.get(req_id, ()))",
          "        cumulative_offset += bool(spec_tokens.get(req_id, ()))", "v1.apply_grammar_bitmask",
          "value mutation"),
    Fault("H37", "requests that left are counted", GRAMMAR, "        cumulative_index += 1 + num_spec_tokens",
          "            cumulative_index += 1 + num_spec_tokens", "v1.apply_grammar_bitmask", "value mutation"),
    Fault("H38", "logits past the mask are allowed", SAMPLER,
          'logits.masked_fill_(sampling_metadata.allowed_token_ids_mask, float("-inf"))',
          'logits[:, : sampling_metadata.allowed_token_ids_mask.shape[1] - 1].masked_fill_(\n'
          '                sampling_metadata.allowed_token_ids_mask[:, :-1], float("-inf"))',
          "v1.sampler.apply_logits_processors", "value mutation"),
    Fault("H38", "the mask's last word is left out", GRAMMAR,
          "sorted_bitmask[bitmask_index] = grammar_bitmask[cumulative_index + i]",
          "sorted_bitmask[bitmask_index, :-1] = grammar_bitmask[cumulative_index + i, :-1]",
          "v1.apply_grammar_bitmask", "value mutation"),
)  # fmt: skip

_FILTER_FAULTS = (
    Fault("H40", "k of V filters", FILTERS, "    no_top_k_mask = k == logits.shape[1]",
          "    no_top_k_mask = k > logits.shape[1]", "v1.top_k_only", "value nan-payload exception"),
    Fault("H40", "ties with the k-th are shut out", FILTERS, "        top_k_mask = logits_sort < top_k_mask",
          "        top_k_mask = logits_sort <= top_k_mask", "v1.top_k_top_p_pytorch", "value"),
    Fault("H40", "p is reached exactly", FILTERS, "top_p_mask = probs_sum <= 1 - p.unsqueeze(dim=1)",
          "top_p_mask = probs_sum < 1 - p.unsqueeze(dim=1)", "v1.top_k_top_p_pytorch", "value"),
    Fault("H40", "sums of float64", FILTERS, "probs_sort = logits_sort.softmax(dim=-1)",
          "probs_sort = logits_sort.softmax(dim=-1, dtype=torch.float64)", "v1.top_k_top_p_pytorch", "value"),
    Fault("H40", "sums from the other end", FILTERS, "probs_sum = torch.cumsum(probs_sort, dim=-1, out=probs_sort)",
          "probs_sum = 1 - probs_sort.flip(-1).cumsum(-1).flip(-1) + probs_sort", "v1.top_k_top_p_pytorch", "value"),
    Fault("H40", "top-p before top-k", FILTERS, "        probs_sort = logits_sort.softmax(dim=-1)",
          "        probs_sort = logits.sort(dim=-1).values.softmax(dim=-1)", "v1.top_k_top_p_pytorch", "value"),
    Fault("H40", "min-p shuts out what reaches it", PROCESSORS, "probability_values < adjusted_min_p",
          "probability_values <= adjusted_min_p", "v1.min_p", "value"),
    Fault("H40", "min-p on logits", PROCESSORS, "        invalid_token_mask = probability_values < adjusted_min_p",
          "        invalid_token_mask = logits < logits.amax(-1, keepdim=True) + self.min_p.log()", "v1.min_p",
          "value"),
    Fault("H42", "a removed min-p is still counted", PROCESSORS,
          "                        self.min_p_cpu[index] = 0\n                        self.min_p_count -= 1",
          "                        self.min_p_cpu[index] = 0", "v1.min_p", "value"),
    Fault("H42", "a replaced min-p is still counted", PROCESSORS,
          "                elif not min_p and min_p_before:\n                    self.min_p_count -= 1\n", "",
          "v1.min_p", "value"),
    Fault("H42", "an overwritten min-p is still counted", PROCESSORS,
          "                    if min_p_b:\n                        self.min_p_count -= 1\n", "", "v1.min_p", "value"),
    Fault("H42", "a replaced request's bias stays", PROCESSORS,
          "        elif req_entries.pop(index, None) is not None:\n            updated = True\n", "",
          "v1.logit_bias", "value mutation"),
    Fault("H42", "a removed request's tensors stay", PROCESSORS,
          "            if req_entries.pop(index, None):\n                updated = True",
          "            if req_entries.pop(index, None):\n                pass", "v1.logit_bias", "value mutation"),
    Fault("H42", "moved requests' tensors stay", PROCESSORS,
          "                req_entries[b_index] = a_entry\n                updated = True",
          "                req_entries[b_index] = a_entry", "v1.min_tokens", "value mutation"),
    Fault("H42", "reached min tokens stay", PROCESSORS,
          "            if to_remove:\n                needs_update = True",
          "            if to_remove:\n                needs_update = needs_update", "v1.min_tokens",
          "value mutation"),
)  # fmt: skip

FAULTS = (
    *_RANDOM_FAULTS,
    *_GREEDY_FAULTS,
    *_INDEX_FAULTS,
    *_PROBABILITY_FAULTS,
    *_HISTORY_FAULTS,
    *_FILTER_FAULTS,
)
