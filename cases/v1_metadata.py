"""What V1 case files share: `SamplingMetadata`, logits processors and batch updates of an arm, out of plain values.

A pool holds plain values under the names of `SamplingMetadata`'s fields, and `min_p`, `logit_bias`, `min_tokens` and
`structured` by request; this module turns them into the arm's own objects, whatever its version calls them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Pool

METADATA = "vllm.v1.sample.metadata:SamplingMetadata"
SAMPLING_PARAMS = "vllm.sampling_params:SamplingParams"
_BUILTIN = "vllm.v1.sample.logits_processor.builtin:"
_INTERFACE = "vllm.v1.sample.logits_processor.interface:"
_STATE = "vllm.v1.sample.logits_processor.state:"
_FLAT = "vllm.v1.sample.logits_processor:"

MIN_P = (f"{_BUILTIN}MinPLogitsProcessor", f"{_FLAT}MinPLogitsProcessor")
LOGIT_BIAS = (f"{_BUILTIN}LogitBiasLogitsProcessor", f"{_FLAT}LogitBiasLogitsProcessor")
MIN_TOKENS = (f"{_BUILTIN}MinTokensLogitsProcessor", f"{_FLAT}MinTokensLogitsProcessor")
PROCESSORS = (f"{_STATE}LogitsProcessors", f"{_FLAT}LogitsProcessors", f"{_FLAT}LogitsProcessorManager")
BATCH_UPDATE = (f"{_INTERFACE}BatchUpdate", f"{_FLAT}BatchUpdate")
ADDED_REQUEST = (f"{_INTERFACE}AddedRequest", f"{_FLAT}AddedRequest")
MOVE_DIRECTIONALITY = (f"{_INTERFACE}MoveDirectionality", f"{_FLAT}MoveDirectionality")
THINKING_BUDGET = "vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder"
PLATFORM_USER = "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler"


def methods(symbols: Sequence[str], *names: str) -> tuple[str, ...]:
    """Methods of classes, for `Target.uses`: a case file calls them, which no code of the tree shows."""
    return tuple(f"{symbol}.{name}" for symbol in symbols for name in names)


LOGPROBS_MODE = ("vllm.config.model:LogprobsMode", "vllm.config:LogprobsMode")
"""What :func:`logprobs_mode` reads, for `Target.uses`."""

UPDATE = (*BATCH_UPDATE, *ADDED_REQUEST, *MOVE_DIRECTIONALITY)
"""What :func:`batch_update` builds, for `Target.uses`."""
USES = (
    METADATA,
    *PROCESSORS,
    *UPDATE,
    *methods((THINKING_BUDGET,), "__init__", "sync_batch"),
    *[
        symbol
        for one in (MIN_P, LOGIT_BIAS, MIN_TOKENS)
        for symbol in (*one, *methods(one, "__init__", "is_argmax_invariant", "update_state", "apply"))
    ],
)
"""What :func:`sampling_metadata` builds, for `Target.uses`."""

PLATFORMS = ("accelerator", "cpu")
"""What the arm's platform says of itself. The sampler takes other branches on a CPU."""

Step = Mapping[str, Any]
"""One change of the batch, in plain values:

    size: requests in the batch after it
    removed: indices
    added: (index, parameters of the request by name, prompt token ids or None, name of its list of output tokens)
    moved: (from, to, swap)
"""


@contextlib.contextmanager
def platform(arm: Arm, name: str) -> Iterator[None]:
    """The arm's platform says that it is, or is not, a CPU. Kernels run where the case's tensors are all the same.

    A version without the class that asks chooses nothing by it.
    """
    if not arm.has(PLATFORM_USER):
        yield
        return
    module = sys.modules[arm.get(PLATFORM_USER).__module__]
    current = module.current_platform
    current.is_cpu = lambda: name == "cpu"
    try:
        yield
    finally:
        del current.is_cpu


def on_platform(arm: Arm, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called while the arm's platform is the one of that name (:data:`PLATFORMS`)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with platform(arm, name):
            return function(*args, **kwargs)

    return call


def logprobs_mode(arm: Arm, name: str) -> Any:
    """`raw_logprobs` and so on, as the arm takes it: a string, or a member of its enumeration."""
    for symbol in LOGPROBS_MODE:
        if arm.has(symbol):
            found = arm.get(symbol)
            return found(name) if isinstance(found, type) else name
    return name


def processor(arm: Arm, cls: Any, max_requests: int, device: torch.device, **config: Any) -> Any:
    """A logits processor of the arm that has seen no request.

    Args:
        cls: its class.
        max_requests: most requests in a batch.
        config: further attributes of the engine's configuration.
    """
    scheduler = SimpleNamespace(max_num_seqs=max_requests)
    engine = SimpleNamespace(scheduler_config=scheduler, **config)
    pool = {"vllm_config": engine, "_": engine, "device": device, "is_pin_memory": False}
    pool |= {"max_num_reqs": max_requests, "pin_memory": False}
    return cls(**arm.bind(cls, pool))


def batch_update(arm: Arm, step: Step, outputs: Mapping[str, list[int]]) -> Any:
    """The arm's own BatchUpdate of one step.

    Args:
        outputs: the running lists of output tokens by name; a processor keeps references to them.
    """
    swap = arm.first(*MOVE_DIRECTIONALITY)
    arity = len(typing.get_args(arm.first(*ADDED_REQUEST)))
    added = []
    for index, fields, prompt, name in step["added"]:
        params = request_params(arm, fields)
        request = (index, params, prompt, outputs[name])
        added.append(request if arity == 4 else (index, params, outputs[name]))
    return arm.make(
        BATCH_UPDATE,
        {
            "batch_size": step["size"],
            "removed": list(step["removed"]),
            "added": added,
            "moved": [(a, b, swap.SWAP if both else swap.UNIDIRECTIONAL) for a, b, both in step["moved"]],
        },
    )


def request_params(arm: Arm, fields: Mapping[str, Any]) -> Any:
    """Parameters of one request; fields as SamplingParams takes them (`min_p`, `logit_bias`, `stop_token_ids`...)."""
    return arm.get(SAMPLING_PARAMS)(**fields)


def logits_processors(arm: Arm, batch: int, requests: Sequence[Mapping[str, Any]], outputs: Sequence[list[int]]) -> Any:
    """The arm's container of built-in processors, after all requests of a batch were added in one step.

    Args:
        requests: parameters by request, as SamplingParams takes them.
        outputs: output tokens so far by request.
    """
    device = torch.device(arm.device)
    if not any(arm.has(symbol) for symbol in PROCESSORS):
        raise ApiChange("there are no logits processors in this tree")
    size = max(batch, 1)
    made = [processor(arm, arm.first(*symbols), size, device) for symbols in (MIN_TOKENS, LOGIT_BIAS, MIN_P)]
    if any(requests):
        lists = {str(i): outputs[i] if i < len(outputs) else [] for i in range(batch)}
        step = {
            "size": batch,
            "removed": (),
            "added": [(i, fields, [], str(i)) for i, fields in enumerate(requests)],
            "moved": (),
        }
        update = batch_update(arm, step, lists)
        for one in made:
            one.update_state(update)
    container = arm.first(*PROCESSORS)
    if "logitsprocs" in takes(container):
        return container(made)
    return container(
        argmax_invariant=[one for one in made if one.is_argmax_invariant()],
        non_argmax_invariant=[one for one in made if not one.is_argmax_invariant()],
    )


FEATURES = ("logprob_token_ids", "spec_token_ids", "thinking_budget_state_holder")
"""Fields that came later; a case that uses one is refused by a version without it."""


def sampling_metadata(arm: Arm, pool: Pool) -> Any:
    """The arm's SamplingMetadata out of a pool.

    The pool has the class's fields by name, but for `logitsprocs`, built from `requests`, the parameters of each
    request, and for the holder of thinking budgets, built from `thinking`, the budget of each request or None.

    Raises:
        ApiChange: the case uses a feature that this version's metadata cannot express.
    """
    cls = arm.get(METADATA)
    names = [field.name for field in dataclasses.fields(cls)]
    fields = {name: pool[name] for name in names if name in pool}
    requests: Sequence[Mapping[str, Any]] = pool.get("requests", ())
    batch = len(pool["output_token_ids"]) or len(requests)
    if "logitsprocs" in names:
        fields["logitsprocs"] = logits_processors(arm, batch, requests, pool["output_token_ids"])
    else:
        fields |= _before_processors(batch, requests)
    if any(budget is not None for budget in pool.get("thinking", ())):
        fields["thinking_budget_state_holder"] = _thinking_holder(arm, names, pool)
    for name in FEATURES:
        if pool.get(name) is not None and name not in names:
            raise ApiChange(f"SamplingMetadata has no {name}")
    return cls(**arm.bind(cls, fields))


THINK_START, THINK_END = 1, 2
"""Tokens that begin and end thinking, where a case says nothing else."""


def _thinking_holder(arm: Arm, names: Sequence[str], pool: Pool) -> Any:
    """The arm's holder of thinking budgets; every prompt is one in which thinking has just begun."""
    if "thinking_budget_state_holder" not in names:
        raise ApiChange("SamplingMetadata has no thinking_budget_state_holder")
    outputs, budgets = pool["output_token_ids"], pool["thinking"]
    config = SimpleNamespace(enabled=True, reasoning_start_token_ids=[THINK_START], reasoning_end_token_ids=[THINK_END])
    cls = arm.get(THINKING_BUDGET)
    fields = {
        "reasoning_config": config,
        "max_num_seqs": max(len(budgets), 1),
        "num_spec_tokens": max((len(ids) for ids in pool.get("spec_token_ids") or ()), default=0),
        "device": torch.device(arm.device),
        "is_pin_memory": False,
    }
    holder = cls(**arm.bind(cls, fields))
    step = {
        "size": len(budgets),
        "removed": (),
        "added": [(i, {"thinking_token_budget": budget}, [0, THINK_START], str(i)) for i, budget in enumerate(budgets)],
        "moved": (),
    }
    holder.sync_batch(batch_update(arm, step, {str(i): outputs[i] for i in range(len(budgets))}))
    return holder


def _before_processors(batch: int, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of versions in which min-p, logit bias and min tokens were part of the metadata."""
    rows = list(requests) or [{}] * batch
    min_p = [float(fields.get("min_p", 0.0)) for fields in rows]
    return {
        "min_p": torch.tensor(min_p) if any(min_p) else None,
        "logit_bias": [fields.get("logit_bias") for fields in rows],
        "min_tokens": {
            i: (fields["min_tokens"], set(fields.get("stop_token_ids", ())))
            for i, fields in enumerate(rows)
            if fields.get("min_tokens")
        },
    }
