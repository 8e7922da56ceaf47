"""Drives the per-request states of Model Runner V2 (penalties, bias, bad words, sampling parameters, budgets).

Every version has the same life cycle: a request is put into a slot, staged writes are flushed, then a step's logits
are processed. How the methods are called has changed; what they mean has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import relations
from difftest.cases.axes import Stream, guarded
from difftest.cases.v2_batch import SLOTS, expanded_only
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Pool, Relation

SAMPLING_DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": None,
    "logprobs": None,
    "prompt_logprobs": None,
    "logprob_token_ids": None,
    "prompt_logprob_token_ids": None,
    "prompt_logprob_start": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "bad_words_token_ids": None,
    "allowed_token_ids": None,
    "logit_bias": None,
    "min_tokens": 0,
    "all_stop_token_ids": (),
    "structured_outputs": None,
    "thinking_token_budget": None,
    "trace_decode_token_ids": None,
    "extra_args": None,
    "watermark": None,
}
"""What a request asks for when it asks for nothing; field names as in vLLM's SamplingParams."""

LENGTHS = ((3, 2, 1, 5, 4, 2), (6, 5, 3, 5, 9, 2), (6, 5, 3, 5, 9, 2))
"""Prompt, prefill and total tokens of the slots."""

STATE_TENSORS = ("all_token_ids", "prompt_len", "prefill_len", "total_len", "num_computed_tokens")


def methods(symbol: str, *processing: str) -> tuple[str, ...]:
    """Symbols of the methods of a state that are called: its life cycle, and what processes logits."""
    return tuple(f"{symbol}.{name}" for name in ("__init__", "add_request", "apply_staged_writes", *processing))


def sampling_params(given: Mapping[str, Any]) -> SimpleNamespace:
    """An object with the fields that a state reads from SamplingParams."""
    values = {**SAMPLING_DEFAULTS, **given}
    values["all_stop_token_ids"] = set(values["all_stop_token_ids"])
    return SimpleNamespace(**values)


def token_state(
    s: Stream, vocab: int, prompts: Sequence[int], prefills: Sequence[int], totals: Sequence[int], width: int = 0
) -> Pool:
    """Tokens of every slot, between guard rows: `all_token_ids` [slots, width], lengths [slots]; int32."""
    slots = max(SLOTS, len(prompts))
    width = width or max([*totals, 1]) + 3

    def lengths(values: Sequence[int]) -> torch.Tensor:
        padded = [*values, *[2] * (slots - len(values))]
        made: torch.Tensor = guarded(torch.tensor(padded, dtype=torch.int32), fill=3)
        return made

    return {
        "all_token_ids": guarded(s.integers(0, max(vocab, 1), (slots, width), torch.int32), fill=0),
        "prompt_len": lengths(prompts),
        "prefill_len": lengths(prefills),
        "total_len": lengths(totals),
    }


def request_slots(count: int) -> Sequence[int]:
    """Slots that requests come into: 4, 1 and 2, or all from 0 on where there are more."""
    return (4, 1, 2)[:count] if count <= 3 else range(count)


NO_REQUEST = "no request"
"""A step without requests, which the runner never has: it returns before it samples."""


def chosen_requests(pattern: str, count: int) -> list[int]:
    """Requests of a step, out of those that came in."""
    return {"all": list(range(count)), "one": [1], "reversed": [2, 1, 0], NO_REQUEST: []}[pattern]


def life_state(s: Stream, vocab: int, count: int, lengths: Sequence[Sequence[int]] = LENGTHS) -> Pool:
    """:func:`token_state` for so many requests; prompts, prefills and totals by turns."""
    slots = max(SLOTS, count)
    each = [[values[slot % len(values)] for slot in range(slots)] for values in lengths]
    return token_state(s, vocab, each[0], each[1], each[2])


def request_states(pool: Pool, vocab: int) -> SimpleNamespace:
    """The runner's request states, as far as samplers read them; its buffers are the case's tensors."""

    def buffer(tensor: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(gpu=tensor, np=tensor.cpu().numpy(), cpu=tensor)

    tensors = {name: buffer(pool[name]) for name in STATE_TENSORS if name in pool}
    tokens = pool["all_token_ids"]
    return SimpleNamespace(
        max_num_reqs=tokens.shape[0],
        max_model_len=tokens.shape[1],
        vocab_size=vocab,
        device=tokens.device,
        num_speculative_steps=pool.get("num_speculative_steps", 3),
        last_sampled_tokens=pool.get("last_sampled_tokens"),
        draft_tokens=pool.get("draft_tokens"),
        **tensors,
    )


def make_state(arm: Arm, symbols: str | tuple[str, ...], pool: Pool, vocab: int, **more: Any) -> Any:
    """The arm's state object, made of whichever of the known values its constructor takes.

    Args:
        symbols: of its class, newest first.
    """
    states = request_states(pool, vocab)
    tokens = pool["all_token_ids"]
    values = {
        "req_states": states,
        "vllm_config": None,
        "max_num_reqs": tokens.shape[0],
        "vocab_size": vocab,
        "device": tokens.device,
        "all_token_ids": tokens,
        "prompt_len": pool["prompt_len"],
        "total_len": pool["total_len"],
        **more,
    }
    cls = arm.first(*((symbols,) if isinstance(symbols, str) else symbols))
    return cls(**arm.bind(cls, values))


def add_request(arm: Arm, state: Any, slot: int, given: Mapping[str, Any], pool: Pool) -> Any:
    """Put a request into a slot. What later versions return says whether the state is needed for it."""
    values = {
        "req_idx": slot,
        "req_id": f"request {slot}",
        "prompt_len": int(pool["prompt_len"][slot]),
        "sampling_params": sampling_params(given),
    }
    return state.add_request(**arm.bind(state.add_request, values))


def flush(arm: Arm, state: Any, pool: Pool) -> None:
    """Flush the staged writes."""
    values = {
        "prefill_token_ids": pool["all_token_ids"],
        "all_token_ids": pool["all_token_ids"],
        "prefill_lens": pool["prefill_len"].cpu().numpy(),
        "prompt_lens": pool["prompt_len"].cpu().numpy(),
    }
    state.apply_staged_writes(**arm.bind(state.apply_staged_writes, values))


def process(
    arm: Arm, state: Any, names: Sequence[str], logits: torch.Tensor, context: Mapping[str, Any]
) -> torch.Tensor:
    """Process a step's logits; returns the processed logits, which are the given ones when done in place.

    Args:
        names: method names, newest first.
        context: what a step knows, by the names of the newest context object.
    """
    method = next((getattr(state, name) for name in names if hasattr(state, name)), None)
    if method is None:
        raise ApiChange(f"{type(state).__qualname__} has none of {', '.join(names)}")
    if "ctx" in takes(method):
        result = method(logits, SimpleNamespace(**context))
    else:
        result = method(**arm.bind(method, {"logits": logits, **expanded_only(arm, method, context)}))
    return logits if result is None else result


def snapshot(state: Any, paths: Sequence[str]) -> dict[str, Any]:
    """Copies of what a state holds, by path (`min_p.np`)."""
    found: dict[str, Any] = {}
    for path in paths:
        value = state
        for part in path.split("."):
            value = getattr(value, part)
        found[path] = value.clone() if isinstance(value, torch.Tensor) else value.copy()
    return found


def of_step_rows(*more: str, outputs: Sequence[str] = ("return.logits",)) -> tuple[Relation, ...]:
    """A step's rows, without drafts, depend on their own requests only, and on no other row's place.

    Args:
        more: further values of the pool with one row for each row of logits.
        outputs: names of what comes out with one row for each row of logits.
    """
    made: tuple[Relation, ...] = relations.of_rows(
        ("logits", "idx_mapping", "expanded_idx_mapping", *more),
        outputs,
        lambda pool: len(pool["idx_mapping"]) == len(pool["expanded_idx_mapping"]),
    )
    return made
