"""V2 logprobs of prompt tokens: which ids are judged, and their scores, over steps that hold parts of prompts."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, SLOTS, by_name, slots_for
from difftest.cases.v2_state import sampling_params, token_state
from difftest.cases.versions import takes
from difftest.target import Arm, Call, Case, Pool, Target

TOKEN_IDS = f"{GPU}.sample.prompt_logprob:get_prompt_logprobs_token_ids"
SCORES = (
    f"{GPU}.sample.prompt_logprob:compute_prompt_logprobs_with_chunking",
    f"{GPU}.sample.logprob:compute_prompt_logprobs",
    f"{GPU}.sampler:compute_prompt_logprobs",
)
WORKER = f"{GPU}.sample.prompt_logprob:PromptLogprobsWorker"
CHUNK = 4
"""Tokens a chunk in these cases, where the version's chunk can be set."""


# -- ids -----------------------------------------------------------------------------------------------------------

ID_AXES = {
    "lengths": ((3, 5), (1, 1), (0, 4), (4, 0), (1023, 2), (1024, 1), (1025, 3)),
    "computed": (0, 1, 3),
    "mapping": ((4, 1), (0, 1), (1, 1)),
    "layout": ("contiguous", "padded rows"),
}


def _id_pool(row: Row, s: Stream) -> Pool:
    lengths = (512,) * row["size"].batch if "size" in row else row["lengths"]
    count = slots_for(len(lengths))
    mapping = range(len(lengths)) if "size" in row else row["mapping"]
    width = max(lengths) + 8
    state = token_state(s, 1000, [width] * count, [width] * count, [width - 3] * count, width)
    tokens = state["all_token_ids"]
    return {
        "num_tokens": sum(lengths),
        "query_start_loc": torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
        "idx_mapping": torch.tensor(mapping, dtype=torch.int32),
        "num_computed_tokens": guarded(torch.full((count,), row["computed"], dtype=torch.int32), fill=2),
        "all_token_ids": axes.lay_out(tokens, row["layout"]) if row["layout"] != "contiguous" else tokens,
    }


def id_cases() -> Iterator[Case]:
    yield from axes.cases_from(ID_AXES, _id_pool, name="v2.prompt_token_ids", limit=45)


# -- scores --------------------------------------------------------------------------------------------------------

SCORE_AXES = {
    "tokens": (5, 1, CHUNK - 1, CHUNK, CHUNK + 1, 9),
    "number": (2, 0, -1, 7),
    "logits": ("random", "integer grid", "bf16 grid", "all equal", "-inf some", "NaN at the start"),
    "vocab": (30, 8, 1025),
    "dtype": tuple(FLOATS),
    "mode": ("default", "raw_logprobs", "processed_logprobs"),
    "id dtype": ("int64", "int32"),
}


def _score_pool(row: Row, s: Stream) -> Pool:
    pool: Pool = {
        "prompt_token_ids": s.integers(0, row["vocab"], (row["tokens"],), axes.IDS[row["id dtype"]]),
        "prompt_hidden_states": axes.logits(row["logits"], row["tokens"], row["vocab"], s, FLOATS[row["dtype"]]),
        "num_prompt_logprobs": row["number"],
    }
    if row["mode"] != "default":
        pool["logprobs_mode"] = row["mode"]
    return pool


def _prompt(size: shapes.Size) -> Row:
    return {"tokens": 32}


def score_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        SCORE_AXES,
        _score_pool,
        name="v2.prompt_scores",
        contract=lambda row: row["logits"] not in axes.UNUSUAL_LOGITS,
        limit=50,
    )


def _same(hidden: torch.Tensor) -> torch.Tensor:
    """The head of a model whose hidden states are its logits."""
    return hidden.clone()


def _in_chunks(arm: Arm, symbol: str, function: Any) -> Any:
    """The function with chunks of 4 tokens in place of its 1024, which is a constant of the module or of the function.

    A result does not depend on the size of chunks; whether it is joined from chunks does show in shared memory.
    """
    code = function.__code__
    arm.note(f"chunks are {CHUNK} tokens")
    if "CHUNK_SIZE" not in code.co_names:
        constants = tuple(CHUNK if constant == 1024 else constant for constant in code.co_consts)
        changed = types.FunctionType(
            code.replace(co_consts=constants),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        changed.__kwdefaults__ = function.__kwdefaults__
        owner = getattr(function, "__self__", None)
        return changed if owner is None else types.MethodType(changed, owner)
    arm.get(f"{symbol.partition(':')[0]}:CHUNK_SIZE")
    home = function.__globals__

    def chunked(**kwargs: Any) -> Any:
        size = home["CHUNK_SIZE"]
        home["CHUNK_SIZE"] = CHUNK
        try:
            return function(**kwargs)
        finally:
            home["CHUNK_SIZE"] = size

    return chunked


def prepare_scores(arm: Arm, pool: Pool) -> Call:
    """A call that scores prompt tokens in chunks; the hidden states are the logits."""
    function = arm.first(*SCORES)
    if "num_prompt_logprobs" not in takes(function):
        arm.note("scores of the prompt tokens only")
    symbol = next(name for name in SCORES if arm.has(name))
    return Call(_in_chunks(arm, symbol, function), kwargs=arm.bind(function, {**pool, "logits_fn": _same}))


# -- the worker ----------------------------------------------------------------------------------------------------

WORKER_AXES = {
    "requests": ((2, None), (None, 3), (0, 0), (None, None), (-1, 1), (4, 4)),
    "steps": ("in one", "in two", "cut at the last token", "resumed", "one token at a time"),
    "removed": (False, True),
    "vocab": (30, 12),
    "dtype": ("float32", "bfloat16"),
}
_PROMPTS = (5, 4)


def _spans(steps: str) -> list[list[tuple[int, int]]]:
    """For each step, (first token, end) of each request."""
    whole = [(0, _PROMPTS[0]), (0, _PROMPTS[1])]
    return {
        "in one": [whole],
        "in two": [[(0, 3), (0, 2)], [(3, 5), (2, 4)]],
        "cut at the last token": [[(0, 4), (0, 3)], [(4, 5), (3, 4)]],
        "resumed": [whole],
        "begun in a cache": [[(3, 5), (1, 4)]],
        "all in a cache": [[(5, 6), (4, 5)]],
        "one token at a time": [[(i, i + 1), (min(i, 3), min(i, 3) + 1)] for i in range(5)],
    }[steps]


def _worker_pool(row: Row, s: Stream) -> Pool:
    vocab = row["vocab"]
    later = 2 if row["steps"] == "resumed" else 0
    prompts = [_PROMPTS[slot % 2] for slot in range(SLOTS)]
    totals = [prompt + later for prompt in prompts]
    state = token_state(s, vocab, prompts, totals, totals, 12)
    spans = _spans(row["steps"])
    hidden = [
        axes.logits("random", sum(end - first for first, end in step), vocab, s, FLOATS[row["dtype"]]) for step in spans
    ]
    return {
        **state,
        "requests": list(row["requests"]),
        "spans": [[list(span) for span in step] for step in spans],
        "hidden": hidden,
        "removed": row["removed"],
        "num_computed_tokens": torch.zeros(SLOTS, dtype=torch.int32),
    }


def worker_cases() -> Iterator[Case]:
    yield from axes.cases_from(WORKER_AXES, _worker_pool, name="v2.prompt_logprobs_worker", limit=40)


_METHODS = ("compute_prompt_logprobs", "compute_prompt_token_id_logprobs")

GIVEN_AXES = {
    "first row": ((0, 2), (None, None), (3, 4), (1, 0), (0, 5)),
    "ids": ("drawn", "padded", "one", "read-only", "only padding"),
    "who": ("both", "first", "neither"),
    "mode": ("raw_logprobs", "raw_logits", "processed_logits", "processed_logprobs"),
    **WORKER_AXES,
    "steps": (*WORKER_AXES["steps"], "begun in a cache", "all in a cache"),
    "requests": ((None, None),),
}


def _given_pool(row: Row, s: Stream) -> Pool:
    """Requests that name the ids whose scores they want, in each row of the prompt from one on; -1 pads."""
    width = 1 if row["ids"] == "one" else 3
    given: list[dict[str, Any]] = []
    for number, (first, prompt) in enumerate(zip(row["first row"], _PROMPTS, strict=True)):
        wanted = row["who"] == "both" or (row["who"] == "first" and number == 0)
        ids = s.integers(0, row["vocab"], (max(prompt - 1 - (first or 0), 0), width))
        if row["ids"] == "only padding":
            ids[:] = -1
        elif row["ids"] == "padded":
            ids[:, -1] = -1
        given.append({"prompt_logprob_token_ids": ids.numpy(), "prompt_logprob_start": first} if wanted else {})
    made = {"given": given, "read-only": row["ids"] == "read-only", "mode": row["mode"], "method": _METHODS[1]}
    return {**_worker_pool(row, s), **made}


def given_cases() -> Iterator[Case]:
    name, first = "v2.prompt_token_id_scores", axes.plain(GIVEN_AXES)
    yield from axes.cases_from(GIVEN_AXES, _given_pool, name=name, limit=45)
    rows = [{**first, "first row": row, "steps": s} for row in GIVEN_AXES["first row"] for s in GIVEN_AXES["steps"]]
    yield from axes.cases_from(GIVEN_AXES, _given_pool, name=name, rows=rows, prefix="rows by steps: ")
    rows = [{**first, "steps": steps, "removed": True} for steps in ("in two", "cut at the last token", "resumed")]
    yield from axes.cases_from(GIVEN_AXES, _given_pool, name=name, rows=rows, prefix="one leaves: ")


def prepare_worker(arm: Arm, pool: Pool) -> Call:
    """Two requests in slots 2 and 1; their prompts come in one or several steps."""
    cls = arm.get(WORKER)
    values = {"max_num_reqs": SLOTS, "device": pool["all_token_ids"].device}
    if "mode" in pool:
        values["logprobs_mode"] = pool["mode"]
    worker = cls(**arm.bind(cls, values))
    method = pool.get("method", _METHODS[0])
    slots = np.array([2, 1], dtype=np.int32)
    prompt_lens = pool["prompt_len"].cpu().numpy()
    prefill_lens = pool["prefill_len"].cpu().numpy()

    def step(number: int) -> Any:
        spans = pool["spans"][number]
        lengths = [end - first for first, end in spans]
        computed = np.zeros(SLOTS, dtype=np.int32)
        for slot, (first, _) in zip(slots, spans, strict=True):
            computed[slot] = first
        starts = np.array([0, lengths[0], sum(lengths)], dtype=np.int32)
        batch = SimpleNamespace(
            req_ids=["a", "b"],
            num_reqs=2,
            num_tokens=sum(lengths),
            idx_mapping_np=slots,
            idx_mapping=torch.from_numpy(slots),
            query_start_loc=torch.from_numpy(starts),
            query_start_loc_np=starts,
            num_scheduled_tokens=np.array(lengths, dtype=np.int32),
            num_computed_prefill_tokens_np=computed[slots],
            prefill_len_np=prefill_lens[slots],
        )
        values = {
            "logits_fn": _same,
            "hidden_states": pool["hidden"][number],
            "input_batch": batch,
            "all_token_ids": pool["all_token_ids"],
            "prefill_token_ids": pool["all_token_ids"],
            "num_computed_tokens": torch.from_numpy(computed),
            "prompt_lens": prompt_lens,
            "prefill_lens": prefill_lens,
            "num_computed_prefill_tokens": computed,
        }
        compute = getattr(worker, method)
        values = arm.bind(compute, values)
        return (compute if method == _METHODS[0] else _in_chunks(arm, WORKER, compute))(**values)

    def life() -> list[Any]:
        asked = [{"prompt_logprobs": number} for number in pool["requests"]]
        for name, slot, one, more in zip("ab", slots.tolist(), asked, pool.get("given", ({}, {})), strict=True):
            if more and pool["read-only"]:
                more["prompt_logprob_token_ids"].flags.writeable = False
            worker.add_request(name, slot, sampling_params({**one, **more}))
        found: list[Any] = []
        for number in range(len(pool["spans"])):
            found.append(step(number))
            if number == 0 and pool["removed"]:
                worker.remove_request("b")
                worker.add_request("b", 1, sampling_params({"prompt_logprobs": 1}))
        return found

    return Call(life)


TARGETS = (
    Target(
        "v2.prompt_token_ids",
        (TOKEN_IDS,),
        id_cases,
        by_name(TOKEN_IDS, prefill_token_ids="all_token_ids"),
        triton=True,
        shapes=shapes.of_cases(id_cases),
    ),
    Target(
        "v2.prompt_scores",
        SCORES,
        score_cases,
        prepare_scores,
        triton=True,
        shapes=shapes.of_cases(score_cases, "vocabulary", batches=(1,), also=_prompt),
    ),
    Target(
        "v2.prompt_logprobs_worker",
        (WORKER,),
        worker_cases,
        prepare_worker,
        uses=tuple(f"{WORKER}.{m}" for m in ("__init__", "add_request", "remove_request", _METHODS[0])),
        triton=True,
        shapes=shapes.of_cases(worker_cases, "vocabulary", batches=(2,)),
    ),
    Target(
        "v2.prompt_token_id_scores",
        (f"{WORKER}.{_METHODS[1]}",),
        given_cases,
        prepare_worker,
        uses=tuple(f"{WORKER}.{m}" for m in ("__init__", "add_request", "remove_request")),
        triton=True,
        shapes=shapes.of_cases(given_cases, "vocabulary", batches=(2,)),
    ),
)
