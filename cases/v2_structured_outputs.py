"""V2 grammar bitmasks: a bit of 0 sets the logit to -inf, in rows of requests that follow a grammar; in place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import FLOATS, Row, Stream
from difftest.cases.v2_batch import GPU, guarded_logits, launch, rows_of, strides
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

WORKER = f"{GPU}.structured_outputs:StructuredOutputsWorker"
APPLY = f"{WORKER}.apply_grammar_bitmask"
KERNEL = f"{GPU}.structured_outputs:_apply_grammar_bitmask_kernel"
INVALID = f"{GPU}.structured_outputs:grammar_invalid_drafts"

AXES = {
    "bits": ("random", "all set", "none set", "first only", "last only", "only past V", "one word"),
    "requests": ("all", "first", "last", "reordered", "none", "middle"),
    "drafts": ((2, 0, 1), (0, 0, 0), (1, 1, 1), (0, 3, 0)),
    "vocab": (50, 1, 31, 32, 33, 63, 64, 65, 8191, 8192, 8193),
    "logits": ("random", "-inf some", "+inf once", "NaN at the end", "-0.0"),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "every other row"),
    "mask width": ("of the vocabulary", "wider", "narrower"),
}


def _mask(bits: str, rows: int, vocab: int, width: str, s: Stream) -> np.ndarray[Any, Any]:
    words = max(1, -(-vocab // 32) + {"wider": 1, "narrower": -1}.get(width, 0))
    mask: np.ndarray[Any, Any] = s.integers(1 - (1 << 30), 1 << 30, (rows, words)).int().numpy() * np.int32(2)
    if bits == "all set":
        mask[:] = -1
    elif bits != "random":
        mask[:] = 0
        place = {"first only": 0, "last only": vocab - 1, "only past V": vocab}.get(bits)
        if bits == "one word":
            mask[:, words // 2] = -1
        elif place is not None and place // 32 < words:
            mask[:, place // 32] = np.array(1 << (place % 32), dtype=np.uint32).astype(np.int32)
    return mask


def _pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"])
    names = [f"request {index}" for index in range(len(rows.drafts))]
    chosen = {
        "all": names,
        "first": names[:1],
        "last": names[-1:],
        "middle": names[1:2],
        "reordered": names[::-1],
        "none": [],
    }[row["requests"]]
    bonus = row.get("bonus", 1)
    masks = sum(rows.drafts[names.index(name)] + bonus for name in chosen)
    return {
        "logits": guarded_logits(row["logits"], rows.count, row["vocab"], s, FLOATS[row["dtype"]], row["layout"]),
        **rows.pool(),
        "req_ids": names,
        "grammar_req_ids": chosen,
        "grammar_bitmask": _mask(row["bits"], masks, row["vocab"], row["mask width"], s),
        "most_drafts": max(3, *rows.drafts),
        "num_bonus_tokens": bonus,
    }


def _contract(row: Row) -> bool:
    usual = row["logits"] not in axes.UNUSUAL_LOGITS and row["mask width"] != "narrower"
    return usual and row["bits"] not in ("none set", "only past V")


def cases() -> Iterator[Case]:
    yield from axes.cases_from(AXES, _pool, name="v2.grammar_bitmask", contract=_contract, limit=75)
    space = {**AXES, "bonus": (2, 3)}
    rows = [{**axes.plain(AXES), "bonus": n, "requests": each} for n in (2, 3) for each in ("all", "last")]
    yield from axes.cases_from(space, _pool, name="v2.grammar_bitmask", rows=rows, prefix="more bonus tokens: ")


def batch_of(pool: Pool) -> SimpleNamespace:
    """The batch object of the step."""
    ends = pool["cu_num_logits"].cpu().numpy()
    return SimpleNamespace(
        req_ids=pool["req_ids"],
        num_reqs=len(pool["req_ids"]),
        cu_num_logits=pool["cu_num_logits"],
        cu_num_logits_np=ends,
        num_draft_tokens=int(ends[-1]) - len(pool["req_ids"]),
        num_draft_tokens_per_req=ends[1:] - ends[:-1] - 1,
        expanded_local_pos=pool["expanded_local_pos"],
    )


def prepare(arm: Arm, pool: Pool) -> Call:
    """The worker applies the masks of a step's grammar requests."""
    logits = pool["logits"]
    cls = arm.get(WORKER)
    wide = pool["grammar_bitmask"].shape[1] * 32
    values = {
        "max_num_logits": max(logits.shape[0], len(pool["grammar_bitmask"])) + 2,
        "vocab_size": max(logits.shape[1], wide),
        "device": logits.device,
        "mask_stride": pool["most_drafts"] + pool["num_bonus_tokens"],
        "num_bonus_tokens": pool["num_bonus_tokens"],
    }
    if pool["num_bonus_tokens"] != 1 and "num_bonus_tokens" not in takes(cls):
        raise ApiChange("this version knows of one bonus token")
    if "mask_stride" in takes(cls):
        arm.note("mask_stride is most_drafts and num_bonus_tokens of the case together")
    worker = cls(**arm.bind(cls, values))
    known = {**pool, "input_batch": batch_of(pool)}
    return Call(worker.apply_grammar_bitmask, kwargs=arm.bind(worker.apply_grammar_bitmask, known))


# -- the kernel ----------------------------------------------------------------------------------------------------

KERNEL_AXES = {
    "bits": AXES["bits"],
    "drafts": ((1, 0), (0, 0), (2, 1)),
    "vocab": (40, 1, 31, 32, 33, 64, 65),
    "logits": AXES["logits"],
    "dtype": tuple(FLOATS),
    "layout": AXES["layout"],
    "mask width": AXES["mask width"],
    "rows": ("every second", "all", "reversed", "with places past the drafts"),
}


def _kernel_pool(row: Row, s: Stream) -> Pool:
    rows = rows_of(row["drafts"])
    keys = [(request, place) for request, drafts in enumerate(rows.drafts) for place in range(drafts + 1)]
    beyond = [(request, place) for request, drafts in enumerate(rows.drafts) for place in range(drafts + 2)]
    chosen = {"every second": keys[::2], "all": keys, "reversed": keys[::-1], "with places past the drafts": beyond}
    keys = chosen[row["rows"]]
    mask = _mask(row["bits"], len(keys), row["vocab"], row["mask width"], s)
    return {
        "logits": guarded_logits(row["logits"], rows.count, row["vocab"], s, FLOATS[row["dtype"]], row["layout"]),
        "cu_num_logits": rows.pool()["cu_num_logits"],
        "keys": [list(key) for key in keys],
        "bitmask": torch.from_numpy(mask),
    }


def kernel_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        KERNEL_AXES, _kernel_pool, name="v2.grammar_bitmask_kernel", contract=_contract, limit=60
    )


def prepare_kernel(arm: Arm, pool: Pool) -> Call:
    """A launch with blocks of 32 ids; rows are named by request and place, or by their index in older versions."""
    kernel = arm.get(KERNEL)
    logits, mask, first = pool["logits"], pool["bitmask"], pool["cu_num_logits"].tolist()
    names = takes(kernel)
    if "MASK_STRIDE" not in names and any(first[at] + place >= first[at + 1] for at, place in pool["keys"]):
        raise ApiChange("this version's kernel names rows by their index, so none is past a request's drafts")
    stride = max(4, *(end - begin for begin, end in itertools.pairwise(first)))
    block = 32 if logits.shape[1] < 32_000 else 1024
    rows = [first[request] + place for request, place in pool["keys"]]
    keyed = [request * stride + place for request, place in pool["keys"]]
    values: dict[str, Any] = {
        "logits_ptr": logits,
        "logits_indices_ptr": torch.tensor(keyed if "MASK_STRIDE" in names else rows, dtype=torch.int32),
        "cu_num_logits_ptr": pool["cu_num_logits"],
        "bitmask_ptr": mask,
        **strides(logits=logits, bitmask=mask),
        "vocab_size": logits.shape[1],
        "MASK_STRIDE": stride,
        "BLOCK_SIZE": block,
    }
    grid = (len(rows), -(-logits.shape[1] // block))
    if "bitmask_indices_ptr" in names:
        indices = [rows.index(row) if row in rows else -1 for row in range(logits.shape[0])]
        values["bitmask_indices_ptr"] = torch.tensor(indices, dtype=torch.int32)
        grid = (logits.shape[0], grid[1])
    launched: Call = launch(arm, kernel, grid, values)
    return launched


# -- drafts that a grammar rules out -------------------------------------------------------------------------------

INVALID_AXES = {
    "requests": AXES["requests"],
    "drafts": ((2, 0, 1), (0, 0, 0), (3, 3, 3), (0, 3, 0)),
    "acceptable": ("one", "none", "all", "not known", "more than there are"),
}


def _invalid_pool(row: Row, s: Stream) -> Pool:
    rest = {"bits": "all set", "vocab": 50, "logits": "random", "dtype": "float32", "layout": "contiguous"}
    pool = _pool({**rest, "mask width": "of the vocabulary", **row}, s)
    number = {"one": 1, "none": 0, "all": 3, "more than there are": 9}.get(row["acceptable"])
    pool["num_acceptable_drafts"] = None if number is None else [number] * len(pool["grammar_req_ids"])
    return pool


def invalid_cases() -> Iterator[Case]:
    yield from axes.cases_from(INVALID_AXES, _invalid_pool, name="v2.grammar_invalid_drafts")


def prepare_invalid(arm: Arm, pool: Pool) -> Call:
    """Which rows' drafts were judged by a mask that lets everything through."""
    function = arm.get(INVALID)
    return Call(function, kwargs=arm.bind(function, {**pool, "input_batch": batch_of(pool)}))


TARGETS = (
    Target(
        "v2.grammar_bitmask",
        (APPLY,),
        cases,
        prepare,
        uses=(WORKER, f"{WORKER}.__init__"),
        triton=True,
        rows=("logits",),
        shapes=shapes.of_cases(cases, "vocabulary", "drafts"),
    ),
    Target(
        "v2.grammar_bitmask_kernel",
        (KERNEL,),
        kernel_cases,
        prepare_kernel,
        triton=True,
        rows=("logits",),
        shapes=shapes.of_cases(kernel_cases, "vocabulary", "drafts"),
    ),
    Target(
        "v2.grammar_invalid_drafts",
        (INVALID,),
        invalid_cases,
        prepare_invalid,
        shapes=shapes.of_cases(invalid_cases, "drafts"),
    ),
)
