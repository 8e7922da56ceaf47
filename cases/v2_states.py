"""V2 sampling parameters a slot, and the tensors that hold staged writes until a step begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import Row, Stream
from difftest.cases.v2_batch import GPU, guarded_logits, map_rows, slots_for
from difftest.cases.v2_state import (
    NO_REQUEST,
    SAMPLING_DEFAULTS,
    add_request,
    chosen_requests,
    flush,
    life_state,
    make_state,
    methods,
    of_step_rows,
    request_slots,
    snapshot,
)
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

SAMPLING_STATES = f"{GPU}.sample.states:SamplingStates"
STAGED = f"{GPU}.buffer_utils:StagedWriteTensor"
SAMPLED_AND_REJECTED = f"{GPU}.input_batch:get_num_sampled_and_rejected"
STAGES = ("apply_temperature", "apply_min_p", "apply_top_k_top_p")
"""Methods that process logits, in the order in which a sampler calls them."""
STAGE_FUNCTIONS = {
    "apply_temperature": f"{GPU}.sample.gumbel:apply_temperature",
    "apply_min_p": f"{GPU}.sample.min_p:apply_min_p",
    "apply_top_k_top_p": "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p",
}
"""What these call, and what the sampler of versions without them called itself."""
SNAPSHOT = ("temperature.np", "top_k.np", "top_p.np", "min_p.np", "seeds.np", "num_logprobs")

_REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 11, "logprobs": 3},
    "defaults": {},
    "greedy": {"temperature": 0.0},
    "tiny temperature": {"temperature": 1e-6, "seed": 3},
    "top_k 0": {"top_k": 0, "seed": 3},
    "top_k -1": {"top_k": -1, "seed": 3},
    "top_k 1": {"top_k": 1, "seed": 3},
    "top_k V": {"top_k": 40, "seed": 3},
    "top_k V+1": {"top_k": 41, "seed": 3},
    "top_p 0": {"top_p": 0.0, "seed": 3},
    "top_p 1e-7": {"top_p": 1e-7, "seed": 3},
    "top_p just below 1": {"top_p": axes.JUST_BELOW_1, "seed": 3},
    "min_p 1": {"min_p": 1.0, "seed": 3},
    "min_p tiny": {"min_p": 1e-9, "seed": 3},
    "temperature alone": {"temperature": 0.5, "seed": 3},
    "seed 0": {"seed": 0},
    "seed -1": {"seed": -1},
    "largest seed": {"seed": 2**63 - 1},
    "seed past int64": {"seed": 2**63},
    "no seed": {"seed": None, "temperature": 0.7},
    "logprobs 0": {"logprobs": 0},
    "logprobs -1": {"logprobs": -1},
    "logprobs V": {"logprobs": 40},
}
AXES = {
    "request": tuple(_REQUESTS),
    "neighbour": ("defaults", "greedy", "plain", "no seed"),
    "again": ("no", "slot with defaults", "slot with a plain one"),
    "batch": ("all", "one", "reversed"),
    "drafts": ("none", "one each"),
}


def _pool(row: Row, s: Stream) -> Pool:
    vocab = row["size"].vocabulary if "size" in row else 40
    count = axes.sized(row, 3, 0)[0]
    chosen = chosen_requests(row["batch"], count)
    slots = [request_slots(count)[index] for index in chosen]
    each = 1 if row["drafts"] == "none" else 2
    return {
        **life_state(s, vocab, count),
        "requests": [_REQUESTS[("greedy", row["request"], row["neighbour"])[i % 3]] for i in range(count)],
        "again": row["again"],
        "idx_mapping": torch.tensor(slots, dtype=torch.int32),
        "expanded_idx_mapping": torch.tensor([slot for slot in slots for _ in range(each)], dtype=torch.int32),
        "logits": guarded_logits("random", each * len(slots), vocab, s),
    }


def cases() -> Iterator[Case]:
    yield from axes.cases_from(
        AXES,
        _pool,
        name="v2.sampling_states",
        contract=lambda row: row["request"] != "seed past int64" and row["batch"] != NO_REQUEST,
        alone={"batch": (NO_REQUEST,)},
        limit=61,
    )


def _is_processed(given: Mapping[str, Any], vocab: int) -> bool:
    """Whether a request changes logits, by definition: where a version does not say, it processes all."""
    asked = {**SAMPLING_DEFAULTS, **given}
    top_k = asked["top_k"] if 0 < asked["top_k"] <= vocab else vocab
    changed = asked["temperature"] != 1.0 or asked["min_p"] != 0.0 or top_k != vocab or asked["top_p"] != 1.0
    return bool(asked["temperature"] != 0.0 and changed)


def run_stages(arm: Arm, state: Any, logits: torch.Tensor, expanded: torch.Tensor, slots: Any) -> torch.Tensor:
    """Logits after temperature, min-p, top-k and top-p of a step's requests; possibly the given ones, in place.

    The sampler of versions without these methods made the same calls itself, so they are made as it made them. What
    is left out instead would compare processed logits with unprocessed ones.

    Args:
        expanded: slot of each row.
        slots: slot of each request, an array.

    Raises:
        ApiChange: this version has a stage's method neither here nor as a function of its own.
    """
    known = {"expanded_idx_mapping": expanded, "idx_mapping": expanded, "idx_mapping_np": slots}
    for name in STAGES:
        if method := getattr(state, name, None):
            after = method(**arm.bind(method, {"logits": logits, **known}))
        else:
            after = _as_sampler_did(arm, state, name, {"logits": logits, **known})
        logits = logits if after is None else after
    return logits


def _as_sampler_did(arm: Arm, state: Any, name: str, known: Mapping[str, Any]) -> Any:
    slots, rows = known["idx_mapping_np"], known["expanded_idx_mapping"].long()

    def asked(question: str) -> bool:
        if not hasattr(state, question):
            raise ApiChange(f"this version's SamplingStates has neither {name} nor {question}")
        return bool(getattr(state, question)(slots))

    if name == "apply_temperature":
        values = {"temperature": state.temperature.gpu}
        needed = bool(((state.temperature.np[slots] != 0) & (state.temperature.np[slots] != 1)).any())
    elif name == "apply_min_p":
        values = {"min_p": state.min_p.gpu}
        needed = asked("do_min_p")
    else:
        limits = (("k", "do_top_k", state.top_k), ("p", "do_top_p", state.top_p))
        values = {short: held.gpu[rows] if asked(question) else None for short, question, held in limits}
        needed = any(value is not None for value in values.values())
    if not needed:
        return None
    if not arm.has(STAGE_FUNCTIONS[name]):
        raise ApiChange(f"this version has no {name}, neither in SamplingStates nor as a function")
    arm.note(f"SamplingStates has no {name}: the function is called, as the sampler of this version did")
    function = arm.get(STAGE_FUNCTIONS[name])
    return function(**arm.bind(function, {**known, **values}))


def prepare(arm: Arm, pool: Pool) -> Call:
    """Requests come into slots 4, 1 and 2, perhaps again; then temperature, min-p, top-k and top-p are applied."""
    logits = pool["logits"]
    vocab = logits.shape[1]
    state = make_state(arm, SAMPLING_STATES, pool, vocab)
    slots = pool["idx_mapping"].cpu().numpy()
    expanded = pool["expanded_idx_mapping"]

    def life() -> dict[str, Any]:
        seeded: dict[int, bool] = {}
        needed = []
        for slot, given in zip(request_slots(len(pool["requests"])), pool["requests"], strict=True):
            said = add_request(arm, state, slot, given, pool)
            needed.append(_is_processed(given, vocab) if said is None else bool(said))
            seeded[slot] = given.get("seed") is not None
        flush(arm, state, pool)
        if pool["again"] != "no":
            again = _REQUESTS["plain" if "plain" in pool["again"] else "defaults"]
            add_request(arm, state, 1, again, pool)
            seeded[1] = again.get("seed") is not None
            flush(arm, state, pool)
        asked = getattr(state, "any_explicit_seed", lambda chosen: any(seeded[int(slot)] for slot in chosen))
        found: dict[str, Any] = {
            "max_num_logprobs": state.max_num_logprobs(slots),
            "needs processing": needed,
            "explicit seeds": [asked(slots[at : at + 1]) for at in range(len(slots))],
        }
        result = run_stages(arm, state, logits, expanded, slots)
        device = {
            name: getattr(state, name).gpu.clone() for name in ("temperature", "top_k", "top_p", "min_p", "seeds")
        }
        return {**found, "logits": result, "device": device, **snapshot(state, SNAPSHOT)}

    return Call(life)


# -- staged writes -------------------------------------------------------------------------------------------------

_WRITES: dict[str, list[tuple[int, int, int]]] = {
    "three rows": [(0, 0, 5), (3, 2, 4), (1, 0, 7)],
    "none": [],
    "one": [(2, 1, 3)],
    "same row twice": [(1, 0, 6), (1, 2, 3)],
    "empty ones": [(0, 0, 0), (1, 0, 2), (2, 0, 0)],
    "across blocks": [(0, 0, 1023), (1, 0, 1024), (2, 3, 1025), (3, 0, 1)],
    "more writes than rows": [(row % 4, 0, 2) for row in range(9)],
    "whole row": [(3, 0, 1100)],
    "past the row": [(0, 1098, 6)],
    "negative row": [(-1, 0, 2)],
}
STAGED_AXES = {
    "writes": tuple(_WRITES),
    "dtype": ("int32", "int64", "float32", "int16"),
    "elements": (False, True),
    "again": (False, True),
    "width": (1100, 0),
}


def _staged_pool(row: Row, s: Stream) -> Pool:
    writes: list[Any] = []
    batch = axes.sized(row, 4, 0)[0]
    for place, start, length in [(at, 0, 64) for at in range(batch)] if "size" in row else _WRITES[row["writes"]]:
        values = s.integers(-50, 1000, (length,)).tolist()
        writes.append([place, start, [value / 4 for value in values] if row["dtype"] == "float32" else values])
    return {
        "size": [batch, row["width"]] if row["width"] else batch,
        "dtype": getattr(torch, row["dtype"]),
        "device": torch.device("cpu"),
        "writes": writes,
        "elements": row["elements"] or not row["width"],
        "again": row["again"],
    }


def staged_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        STAGED_AXES,
        _staged_pool,
        name="v2.staged_writes",
        contract=lambda row: (
            row["writes"] not in ("past the row", "negative row", "more writes than rows") and row["dtype"] != "int16"
        ),
        allowed=lambda row: row["writes"] != "past the row" or (row["width"] and not row["elements"]),
        limit=60,
    )


def prepare_staged(arm: Arm, pool: Pool) -> Call:
    """Writes are staged, flushed, and perhaps staged and flushed once more."""
    cls = arm.get(STAGED)

    def life() -> dict[str, Any]:
        staged = cls(**arm.bind(cls, pool))
        steps = []
        for turn in range(2 if pool["again"] else 1):
            for row, start, given in reversed(pool["writes"]) if turn else pool["writes"]:
                values = given[turn:] or given
                if pool["elements"]:
                    staged.stage_write_elem(row, values[0] + turn if values else turn)
                else:
                    staged.stage_write(row, start, [value + turn for value in values])
            staged.apply_write()
            steps.append(staged.gpu.clone())
        return {"steps": steps}

    return Call(life)


# -- what was sampled ----------------------------------------------------------------------------------------------

COUNT_AXES = {
    "prefill": ("done", "one request still prefilling", "all prefilling", "exactly done"),
    "drafts": ((2, 0, 1), (0, 0, 0), (3,), (1, 1, 1, 1)),
    "sampled": ("one each", "all", "none"),
    "dtype": ("int32", "int64"),
}


def _count_pool(row: Row, s: Stream) -> Pool:
    drafts = row["drafts"]
    slots = map_rows("permuted", len(drafts))
    ends = [0]
    for count in drafts:
        ends.append(ends[-1] + count + 1)
    lengths = s.integers(5, 50, (len(drafts),)).int()
    prefill = torch.full((slots_for(len(drafts)),), 3, dtype=torch.int32)
    for request, slot in enumerate(slots):
        late = row["prefill"] == "all prefilling" or (row["prefill"].startswith("one") and request == 0)
        prefill[slot] = int(lengths[request]) + (1 if late else 0 if row["prefill"] == "exactly done" else -4)
    sampled = {"one each": [1] * len(drafts), "all": [d + 1 for d in drafts], "none": [0] * len(drafts)}[row["sampled"]]
    return {
        "num_sampled": axes.guarded(torch.tensor(sampled, dtype=axes.IDS[row["dtype"]]), fill=8),
        "seq_lens": lengths,
        "cu_num_logits": torch.tensor(ends, dtype=torch.int32),
        "idx_mapping": torch.tensor(slots, dtype=torch.int32),
        "prefill_len": axes.guarded(prefill, fill=100),
    }


def count_cases() -> Iterator[Case]:
    yield from axes.cases_from(COUNT_AXES, _count_pool, name="v2.num_sampled_and_rejected")


TARGETS = (
    Target(
        "v2.sampling_states",
        (SAMPLING_STATES,),
        cases,
        prepare,
        uses=(
            *methods(SAMPLING_STATES, *STAGES),
            *STAGE_FUNCTIONS.values(),
            f"{SAMPLING_STATES}.any_explicit_seed",
            f"{SAMPLING_STATES}.max_num_logprobs",
        ),
        triton=True,
        relations=of_step_rows(),
        shapes=shapes.of_cases(cases, "vocabulary"),
    ),
    Target(
        "v2.staged_writes",
        (STAGED,),
        staged_cases,
        prepare_staged,
        uses=tuple(f"{STAGED}.{name}" for name in ("__init__", "stage_write", "stage_write_elem", "apply_write")),
        triton=True,
        shapes=shapes.of_cases(staged_cases),
    ),
    Target(
        "v2.num_sampled_and_rejected",
        (SAMPLED_AND_REJECTED,),
        count_cases,
        triton=True,
        shapes=shapes.of_cases(count_cases, "drafts"),
    ),
)
