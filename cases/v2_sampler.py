"""V2 `Sampler` and `RejectionSampler` from end to end: requests come in, writes are flushed, a step is sampled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream
from difftest.cases.v2_batch import GPU, Rows, expanded_only, guarded_logits, rows_of
from difftest.cases.v2_gumbel import GUMBEL_SAMPLE
from difftest.cases.v2_penalties import packed
from difftest.cases.v2_rejection import draft_tokens, kept_draft_logits
from difftest.cases.v2_state import (
    SAMPLING_DEFAULTS,
    add_request,
    flush,
    life_state,
    make_state,
    methods,
    request_slots,
)
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Invariant, Pool, Target

SAMPLERS = (f"{GPU}.sample.sampler:Sampler", f"{GPU}.sampler:Sampler")
METADATA = (f"{GPU}.sample.metadata:SamplingMetadata", f"{GPU}.states:SamplingMetadata")
REJECTION_SAMPLER = f"{GPU}.spec_decode.rejection_sampler:RejectionSampler"
SAMPLER_PARTS = tuple(
    part
    for symbol in SAMPLERS
    for part in methods(symbol, "__call__", "sample", "apply_sampling_params", "_sample_random")
)

_REQUESTS: dict[str, dict[str, Any]] = {
    "seeded": {"temperature": 0.9, "seed": 11},
    "greedy": {"temperature": 0.0, "seed": 1},
    "greedy with penalties": {"temperature": 0.0, "seed": 1, "repetition_penalty": 1.4, "presence_penalty": 0.5},
    "tiny temperature": {"temperature": 1e-6, "seed": 5},
    "temperature 1": {"temperature": 1.0, "seed": 5},
    "top k": {"temperature": 0.8, "top_k": 3, "seed": 7},
    "top p": {"temperature": 0.8, "top_p": 0.6, "seed": 7},
    "top k and top p": {"temperature": 1.2, "top_k": 10, "top_p": 0.9, "seed": 7},
    "top k 1": {"temperature": 1.0, "top_k": 1, "seed": 7},
    "min p": {"temperature": 1.0, "min_p": 0.3, "seed": 9},
    "min p 1": {"temperature": 1.0, "min_p": 1.0, "seed": 9},
    "penalties": {"frequency_penalty": 0.4, "repetition_penalty": 0.7, "seed": 3},
    "bias": {"logit_bias": {3: 4.0, 7: -100.0}, "seed": 3},
    "allowed": {"allowed_token_ids": [2, 5, 9], "seed": 3},
    "allowed and bias and penalties": {
        "allowed_token_ids": [2, 5, 9],
        "logit_bias": {2: 1.0},
        "presence_penalty": 1.0,
        "repetition_penalty": 1.3,
        "seed": 3,
    },
    "minimum length": {"min_tokens": 9, "all_stop_token_ids": [1, 4], "seed": 3},
    "bad words": {"bad_words_token_ids": [[6], [1, 2]], "temperature": 0.0, "seed": 3},
    "logprobs": {"logprobs": 4, "seed": 3},
    "logprobs 0": {"logprobs": 0, "seed": 3},
    "all logprobs": {"logprobs": -1, "seed": 3},
    "logprobs, filtered": {"logprobs": 5, "top_k": 2, "temperature": 0.5, "seed": 3},
    # Stages that do not commute, with what comes out of them for every id.
    "bias and penalties": {
        "logit_bias": {token: (token % 5 - 2) * 1.5 for token in range(33)},
        "repetition_penalty": 1.6,
        "frequency_penalty": 0.5,
        "logprobs": -1,
        "seed": 3,
    },
    "cold min p": {"temperature": 0.4, "min_p": 0.2, "logprobs": -1, "seed": 9},
    "hot and filtered": {"temperature": 1.8, "min_p": 0.02, "top_k": 20, "top_p": 0.8, "logprobs": -1, "seed": 9},
    "everything": {
        "temperature": 0.7,
        "top_k": 12,
        "top_p": 0.95,
        "min_p": 0.01,
        "frequency_penalty": 0.2,
        "presence_penalty": -0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {1: 2.0},
        "bad_words_token_ids": [[8]],
        "min_tokens": 9,
        "all_stop_token_ids": [4],
        "logprobs": 2,
        "seed": 13,
    },
}
"""Requests by name. All have a seed: without one the slot's is drawn from numpy's generator (see the states)."""

_EARLY: dict[str, dict[str, Any]] = {
    "cold, filtered, with penalties": {
        "temperature": 0.5,
        "top_k": 8,
        "top_p": 0.9,
        "frequency_penalty": 0.8,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.6,
        "logprobs": 12,
        "seed": 17,
    },
    "hot with penalties": {"temperature": 1.7, "repetition_penalty": 1.5, "frequency_penalty": 1.1, "seed": 17},
    "top k and penalties": {"top_k": 4, "presence_penalty": 1.4, "repetition_penalty": 0.6, "seed": 17},
    "top p and penalties": {"top_p": 0.5, "frequency_penalty": -0.9, "logprobs": 12, "seed": 17},
    "cold, filtered": {"temperature": 0.4, "top_k": 9, "top_p": 0.7, "logprobs": 12, "seed": 17},
}
"""Requests whose stages do not commute and that the oldest sampler knew: no min-p, bias, bad words or all logprobs."""

PENALTIES = ("repetition", "frequency", "presence")
MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
PATTERNS = (
    *("random", "integer grid", "bf16 grid", "near ties", "two maxima", "all equal", "-inf some", "-inf all but one"),
    *("-inf first row", "+inf once", "NaN at the end", "NaN everywhere"),
)
AXES = {
    "request": tuple(_REQUESTS),
    "neighbours": ("greedy", "seeded", "everything", "logprobs"),
    "mode": MODES[:2],
    "logits": PATTERNS,
    "vocab": (50, 33, 1100),
    "dtype": ("float32", "bfloat16", "float16"),
    "layout": ("contiguous", "padded rows", "every other row"),
    "prefilling": ("no", "first request"),
}


def _step(rows: Rows, slots: Sequence[int], state: Pool, input_ids: torch.Tensor, late: bool, s: Stream) -> Pool:
    """What a step's batch object holds, as plain values."""
    lengths = [int(state["total_len"][slot]) for slot in slots]
    positions: list[int] = []
    for length, drafts in zip(lengths, rows.drafts, strict=True):
        positions += range(length - 1, length + drafts)
    seq_lens = [length + drafts for length, drafts in zip(lengths, rows.drafts, strict=True)]
    if late:
        seq_lens[0] = 1
        positions[0] = 0
    return {
        **rows.pool(),
        "idx_mapping": torch.tensor(slots, dtype=torch.int32),
        "expanded_idx_mapping": torch.tensor(rows.expand(slots), dtype=torch.int32),
        "positions": torch.tensor(positions, dtype=torch.int64),
        "logits_indices": torch.arange(rows.count),
        "input_ids": input_ids,
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32),
    }


def _state(s: Stream, vocab: int, count: int) -> Pool:
    step: Pool = life_state(s, vocab, count, ((3, 2, 1, 5, 4, 2), (4, 3, 1, 5, 6, 2), (6, 5, 3, 7, 9, 4)))
    return step


def _request(name: str) -> dict[str, Any]:
    return _EARLY[name] if name in _EARLY else _REQUESTS[name]


def _pool(row: Row, s: Stream) -> Pool:
    count, _ = axes.sized(row, 3, 0)
    state = _state(s, row["vocab"], count)
    rows = rows_of((0,) * count)
    ids = s.integers(0, row["vocab"], (rows.count,), torch.int32)
    return {
        **state,
        **_step(rows, request_slots(count), state, ids, row["prefilling"] != "no", s),
        "requests": [_request((row["neighbours"], row["request"], "greedy")[i % 3]) for i in range(count)],
        "logprobs_mode": row["mode"],
        "logits": guarded_logits(row["logits"], rows.count, row["vocab"], s, FLOATS[row["dtype"]], row["layout"]),
    }


def _contract(row: Row) -> bool:
    return row["logits"] not in axes.UNUSUAL_LOGITS


def cases() -> Iterator[Case]:
    yield from axes.cases_from(AXES, _pool, name="v2.sampler", contract=_contract, limit=48)
    stages = ("bias and penalties", "cold min p", "hot and filtered", "everything")
    plain = {**axes.plain(AXES), "mode": "processed_logprobs"}
    rows = [{**plain, "request": each, "neighbours": "logprobs"} for each in stages]
    yield from axes.cases_from(AXES, _pool, name="v2.sampler", rows=rows, prefix="stages: ")
    space = {**AXES, "request": tuple(_EARLY), "neighbours": ("logprobs", "greedy", "seeded")}
    rows = [
        {**plain, "request": each, "neighbours": neighbours, "mode": mode}
        for each in _EARLY
        for neighbours, mode in (("logprobs", "processed_logprobs"), ("greedy", "raw_logprobs"))
    ]
    yield from axes.cases_from(space, _pool, name="v2.sampler", rows=rows, prefix="early stages: ")


def batch_of(pool: Pool) -> SimpleNamespace:
    """The batch object that a sampler is called with."""
    requests = pool["idx_mapping"].shape[0]
    drafts = pool["expanded_idx_mapping"].shape[0] - requests
    each = (pool["cu_num_logits"][1:] - pool["cu_num_logits"][:-1] - 1).cpu().numpy()
    return SimpleNamespace(
        num_reqs=requests,
        num_tokens=pool["input_ids"].shape[0],
        num_draft_tokens=drafts,
        num_draft_tokens_per_req=each,
        req_ids=[f"request {slot}" for slot in pool["idx_mapping"].tolist()],
        idx_mapping_np=pool["idx_mapping"].cpu().numpy(),
        cu_num_logits_np=pool["cu_num_logits"].cpu().numpy(),
        seq_lens_cpu_upper_bound=pool["seq_lens"].cpu().clone(),
        **{
            name: pool[name]
            for name in (
                *("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "cu_num_logits"),
                *("positions", "logits_indices", "input_ids", "seq_lens"),
            )
        },
    )


def make_sampler(arm: Arm, pool: Pool, **more: Any) -> Any:
    """The arm's sampler, as a model without reasoning uses it."""
    return make_state(
        arm,
        SAMPLERS,
        pool,
        pool["logits"].shape[1],
        vllm_config=SimpleNamespace(reasoning_config=None),
        reasoning_config=None,
        logprobs_mode=pool["logprobs_mode"],
        num_speculative_tokens=pool.get("num_speculative_steps", 1),
        **{name: pool[name] for name in ("use_fp64_gumbel", "return_sampling_mask") if name in pool},
        **more,
    )


def call_arguments(arm: Arm, sampler: Any, pool: Pool) -> dict[str, Any]:
    """Arguments of a sampler's call, as an object or one by one."""
    batch = batch_of(pool)
    method = type(sampler).__call__
    values = {
        **vars(batch),
        "logits": pool["logits"],
        "input_batch": batch,
        "pos": pool["positions"][pool["logits_indices"]],
        "draft_logits": pool.get("draft_logits"),
    }
    if "invalid_drafts" in pool:
        if "invalid_drafts" not in takes(method):
            raise ApiChange("this version is not told which drafts a grammar rules out")
        values["invalid_drafts"] = pool["invalid_drafts"]
    if "input_batch" not in takes(method):
        values = expanded_only(arm, method, values)
    return arm.bind(sampler.__call__, values)


def outcome(output: Any) -> dict[str, Any]:
    """What a sampler's output object holds, by the names that all versions use."""
    names = ("sampled_token_ids", "logprobs_tensors", "num_nans", "num_sampled", "num_rejected")
    return {name: getattr(output, name) for name in names if hasattr(output, name)}


_NOT_IN_METADATA = ("allowed_token_ids", "logit_bias", "bad_words_token_ids", "min_tokens")
_SOMETIMES_IN_METADATA = ("min_p", *(f"{kind}_penalty" for kind in PENALTIES))


def step_metadata(arm: Arm, pool: Pool) -> Any:
    """What the sampler of versions before it kept requests was told of a step, of each row or of each slot.

    Raises:
        ApiChange: a request asks for what these versions do not do.
    """
    cls = arm.first(*METADATA)
    fields = takes(cls)
    by_place = dict(zip(request_slots(len(pool["requests"])), pool["requests"], strict=True))
    given = [{**SAMPLING_DEFAULTS, **by_place[slot]} for slot in pool["idx_mapping"].tolist()]
    asked = {name for request in given for name in request if request[name] != SAMPLING_DEFAULTS[name]}
    limited = (*_NOT_IN_METADATA, *_SOMETIMES_IN_METADATA)
    if missing := [name for name in limited if name in asked and name not in fields]:
        raise ApiChange(f"this version's sampler knows no {missing[0]}")
    tokens, vocab = pool["all_token_ids"], pool["logits"].shape[1]
    prompt, output = (torch.zeros(tokens.shape[0], vocab, dtype=torch.int32) for _ in range(2))
    for slot in pool["idx_mapping"].tolist():
        start, end = int(pool["prompt_len"][slot]), int(pool["prefill_len"][slot])
        prompt[slot] = torch.bincount(tokens[slot, :start], minlength=vocab)[:vocab]
        output[slot] = torch.bincount(tokens[slot, start:end], minlength=vocab)[:vocab]
    logprobs = max(-1 if request["logprobs"] is None else request["logprobs"] for request in given)
    top_k = [request["top_k"] or vocab for request in given]
    by_slot = "idx_mapping" in takes(arm.first(*GUMBEL_SAMPLE))

    def each(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        rows = torch.tensor([request[name] for request in given], dtype=dtype)
        if not by_slot:
            return rows
        slots = torch.ones(tokens.shape[0], dtype=dtype)
        slots[pool["idx_mapping"].long()] = rows
        return slots

    values = {
        "idx_mapping": pool["idx_mapping"],
        "temperature": each("temperature"),
        "top_k": torch.tensor(top_k, dtype=torch.int32) if "top_k" in asked else None,
        "top_p": torch.tensor([request["top_p"] for request in given]) if "top_p" in asked else None,
        "min_p": each("min_p") if "min_p" in asked else None,
        **{f"{kind}_penalty": each(f"{kind}_penalty") for kind in PENALTIES},
        "seeds": each("seed", torch.int64),
        "pos": pool["positions"],
        "max_num_logprobs": None if logprobs < 0 else logprobs,
        "prompt_bin_counts": prompt,
        "prompt_bin_mask": packed(prompt > 0),
        "output_bin_counts": output,
    }
    return cls(**arm.bind(cls, values))


def prepare(arm: Arm, pool: Pool) -> Call:
    """Requests come into slots 4, 1 and 2; then a step of one row a request is sampled."""
    sampler = make_sampler(arm, pool)
    if "sampling_metadata" in takes(type(sampler).__call__):
        metadata = step_metadata(arm, pool)
        return Call(lambda: outcome(sampler(pool["logits"], metadata)))

    def step() -> dict[str, Any]:
        for slot, given in zip(request_slots(len(pool["requests"])), pool["requests"], strict=True):
            add_request(arm, sampler, slot, given, pool)
        flush(arm, sampler, pool)
        return outcome(sampler(**call_arguments(arm, sampler, pool)))

    return Call(step)


def logits_mode_cases() -> Iterator[Case]:
    """The modes that return logits in place of logprobs."""
    chosen = {**AXES, "mode": MODES[2:], "request": ("logprobs", "all logprobs", "logprobs, filtered", "everything")}
    yield from axes.cases_from(chosen, _pool, name="v2.sampler_logits_mode", contract=_contract, limit=30)


# -- rejection sampler ---------------------------------------------------------------------------------------------

REJECTION_AXES = {
    "request": (
        *("seeded", "greedy", "temperature 1", "top k", "min p", "penalties", "bad words", "logprobs", "all logprobs"),
        *("logprobs, filtered", "everything"),
    ),
    "neighbours": ("seeded", "greedy", "everything"),
    "mode": MODES[:2],
    "method": ("standard", "block", "synthetic"),
    "drafts": ((2, 0), (2, 1), (0, 0), (1, 1), (0, 2)),
    "draft ids": ("likely", "random", "-1 first", "-1 everywhere"),
    "draft logits": ("noisy", "none", "same as target"),
    "prefilling": ("no", "first request"),
    "logits": ("two maxima", "random", "-inf some", "NaN everywhere"),
    "vocab": (50, 1100),
    "dtype": ("float32", "bfloat16"),
}


def _rejection_pool(row: Row, s: Stream) -> Pool:
    vocab = row["vocab"]
    count = len(row["drafts"])
    state = _state(s, vocab, count)
    slots = tuple(request_slots(count))
    rows = rows_of(row["drafts"])
    logits = guarded_logits(row["logits"], rows.count, vocab, s, FLOATS[row["dtype"]])
    mapped = Rows(rows.drafts, slots)
    drafts = draft_tokens(row["draft ids"], mapped, logits, s)
    return {
        **state,
        **_step(mapped, slots, state, drafts.int(), row["prefilling"] != "no", s),
        "requests": [_request((row["neighbours"], row["request"])[i % 2]) for i in range(count)],
        "logprobs_mode": row["mode"],
        "logits": logits,
        "draft_logits": kept_draft_logits(row["draft logits"], mapped, logits, drafts, s, torch.float32),
        "num_speculative_steps": max(2, *row["drafts"]),
        "method": row["method"],
    }


def rejection_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        REJECTION_AXES, _rejection_pool, name="v2.rejection_sampler", contract=_contract, limit=34
    )
    yield from _later_cases()


def _later_cases() -> Iterator[Case]:
    """What later versions do besides: drafts that a grammar rules out, and a batch that is verified in chunks."""
    name = "v2.rejection_sampler"
    sure: axes.Axes = {**REJECTION_AXES, "drafts": ((2, 1), (1, 2)), "draft logits": ("same as target",)}
    sure = {**sure, "request": ("penalties", "greedy"), "neighbours": ("seeded",)}
    plain = axes.plain(sure)

    def ruled_out(row: Row, s: Stream) -> Pool:
        pool = _rejection_pool(row, s)
        return {**pool, "invalid_drafts": pool["expanded_local_pos"] > row["acceptable"]}

    rows = [
        {**plain, "acceptable": acceptable, "drafts": sure["drafts"][acceptable], "request": request}
        for acceptable in (0, 1)
        for request in sure["request"]
    ]
    yield from axes.cases_from({**sure, "acceptable": (0, 1)}, ruled_out, name=name, rows=rows, prefix="ruled out: ")

    # Without draft logits, early versions have a method of their own.
    plain = {**axes.plain(REJECTION_AXES), "draft logits": "none", "mode": "processed_logprobs"}
    chosen = (("seeded", (2, 1)), ("greedy", (1, 1)), ("everything", (2, 0)), ("logprobs, filtered", (0, 2)))
    rows = [{**plain, "request": request, "drafts": drafts} for request, drafts in chosen]
    yield from axes.cases_from(REJECTION_AXES, _rejection_pool, name=name, rows=rows, prefix="no draft logits: ")

    def in_chunks(row: Row, s: Stream) -> Pool:
        return {**_rejection_pool(row, s), "rows a chunk": row["rows a chunk"]}

    plain = {**axes.plain(REJECTION_AXES), "mode": "processed_logprobs"}
    rows = [
        {**plain, "rows a chunk": size, "drafts": drafts, "request": request, "method": method}
        for size, drafts, request, method in (
            (2, (2, 1, 1), "logprobs", "standard"),
            (3, (1, 2, 0), "bias and penalties", "block"),
            (3, (2, 0, 1), "bias and penalties", "standard"),
            (4, (2, 0, 1), "bad words", "standard"),
        )
    ]
    space = {**REJECTION_AXES, "rows a chunk": (2, 3, 4)}
    yield from axes.cases_from(space, in_chunks, name=name, rows=rows, prefix="in chunks: ")


_CHUNK_BYTES = "MAX_CHUNK_BYTES"


def _chunked(verifier: Any, pool: Pool, call: Callable[[], Any]) -> Any:
    """Call with so small a bound on a chunk's memory that it holds the case's number of rows."""
    home = type(verifier).__call__.__globals__
    if "rows a chunk" not in pool:
        return call()
    bytes_before = home[_CHUNK_BYTES]
    home[_CHUNK_BYTES] = pool["rows a chunk"] * pool["logits"].shape[1] * 4
    try:
        return call()
    finally:
        home[_CHUNK_BYTES] = bytes_before


@functools.cache
def _names(cls: Any, method: str) -> bool:
    return f'"{method}"' in inspect.getsource(cls)


def prepare_rejection(arm: Arm, pool: Pool) -> Call:
    """Requests come into slots 4 and 1; then a step with draft tokens is verified."""
    sampler = make_sampler(arm, pool)
    cls = arm.get(REJECTION_SAMPLER)
    method = pool["method"]
    if method != "standard" and not _names(cls, method):
        raise ApiChange(f"{cls.__qualname__} has no method {method}")
    by_flag = "use_strict_rejection_sampling" in takes(cls)
    if method == "standard" and (by_flag or _names(cls, "probabilistic")):
        method = "strict" if pool.get("draft_logits") is None else "probabilistic"
        arm.note("the method standard is strict where no draft logits are kept, else probabilistic")
    config = SimpleNamespace(
        num_speculative_tokens=pool["num_speculative_steps"],
        rejection_sample_method=method,
        synthetic_acceptance_rates=[0.8, 0.4],
        synthetic_acceptance_rate=0.6,
        enable_adaptive_verification=False,
    )
    values = {
        "sampler": sampler,
        "spec_config": config,
        "device": pool["logits"].device,
        "num_speculative_steps": pool["num_speculative_steps"],
        "use_strict_rejection_sampling": method == "strict",
    }
    verifier = cls(**arm.bind(cls, values))
    arguments = call_arguments(arm, verifier, pool)
    if "rows a chunk" in pool and _CHUNK_BYTES not in cls.__call__.__globals__:
        raise ApiChange("this version verifies a batch in one piece")

    def step() -> dict[str, Any]:
        for slot, given in zip(request_slots(len(pool["requests"])), pool["requests"], strict=True):
            add_request(arm, sampler, slot, given, pool)
        flush(arm, sampler, pool)
        return outcome(_chunked(verifier, pool, lambda: verifier(**arguments)))

    return Call(step)


def _committed(given: Pool, after: Pool, result: Any) -> str | None:
    """Ids of the vocabulary, as many as there are rows at most; their rows of logprobs begin with them."""
    vocab, first = given["logits"].shape[1], given["cu_num_logits"].tolist()
    counts = result.get("num_sampled")
    if counts is None:
        return None
    tensors = result.get("logprobs_tensors")
    for request, count in enumerate(counts.tolist()):
        rows = first[request + 1] - first[request]
        if not 0 <= count <= rows:
            return f"request {request} commits {count} ids in {rows} rows"
        for place, token in enumerate(result["sampled_token_ids"][request, :count].tolist()):
            if not 0 <= token < vocab:
                return f"request {request} commits id {token} of {vocab}"
            if tensors is not None and (held := int(tensors.logprob_token_ids[first[request] + place, 0])) != token:
                return f"request {request} commits id {token}, and its row of logprobs begins with {held}"
    return None


_IN_ORDER = relations.permuted(
    ("logits", "idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "positions", "input_ids", "seq_lens"),
    ("return.sampled_token_ids",),
)

TARGETS = (
    Target(
        "v2.sampler",
        SAMPLERS,
        cases,
        prepare,
        uses=SAMPLER_PARTS,
        triton=True,
        invariants=(
            relations.emitted_ids("return.sampled_token_ids"),
            relations.logprobs_of_emitted("return.sampled_token_ids", "return.logprobs_tensors"),
        ),
        relations=(_IN_ORDER,),
        shapes=shapes.of_cases(cases, "vocabulary"),
    ),
    Target(
        "v2.sampler_logits_mode",
        SAMPLERS,
        logits_mode_cases,
        prepare,
        uses=SAMPLER_PARTS,
        needs=(f"{GPU}.sample.logprob:compute_topk_scores",),
        triton=True,
        shapes=shapes.of_cases(logits_mode_cases, "vocabulary"),
    ),
    Target(
        "v2.rejection_sampler",
        (REJECTION_SAMPLER,),
        rejection_cases,
        prepare_rejection,
        uses=(
            *(f"{REJECTION_SAMPLER}.{name}" for name in ("__init__", "__call__", "_get_logprobs_tensors", "_verify")),
            f"{REJECTION_SAMPLER}._verify_in_chunks",
            *SAMPLERS,
            *SAMPLER_PARTS,
        ),
        triton=True,
        invariants=(
            Invariant("a committed id is in the vocabulary, and its row of logprobs begins with it", _committed),
        ),
        shapes=shapes.of_cases(rejection_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
)
