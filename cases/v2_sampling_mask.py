"""V2 sampling masks: which ids a row was sampled from, as a bitmask and as lists of ids.

Up to 0.29 a request had one row and a packed bitmask. Since then it has a fixed number of rows and compact ids with
the bitmask for wider rows. What both mean is compared: the number of ids a row kept, which these are, and the lists
that come of them. Within one generation the kernels are compared whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, block_of, guarded_logits, launch
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

TENSORS = f"{GPU}.sample.output:SamplingMaskTensors"
FROM_LOGITS, TOLISTS, CAT = (f"{TENSORS}.{name}" for name in ("from_logits", "tolists", "cat"))
LISTS = "vllm.v1.outputs:SamplingMaskLists"
COMPACT = f"{GPU}.sample.output:_compact_sampling_mask_kernel"
PACK = f"{GPU}.sample.output:_pack_sampling_mask_kernel"

PATTERNS = (
    *("-inf some", "-inf all but one", "random", "integer grid", "-0.0", "denormals", "huge"),
    *(
        "-inf first row",
        "-inf everywhere",
        "+inf once",
        "+inf twice",
        "NaN at the start",
        "NaN at the end",
        "NaN everywhere",
    ),
)
SAMPLED = ("one each", "none on the first", "none on the last", "none", "mixed")
AXES = {
    "logits": PATTERNS,
    "sampled": SAMPLED,
    "most kept": ("V", 1, 5, "one below", 3000),
    "vocab": (50, 1, 7, 8, 9, 63, 64, 2047, 2048, 2049, 8191, 8192, 8193),
    "requests": (3, 1, 0, 6),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "every other row", "transposed"),
    "sampled dtype": ("int32", "int64"),
}


def _sampled(pattern: str, requests: int, most: int) -> list[int]:
    """Tokens that each request sampled, at most `most`."""
    each = {"none": [0] * requests, "mixed": [(most, 0, 1)[i % 3] for i in range(requests)]}
    plain = each.get(pattern, [most] * requests)
    if pattern == "none on the first":
        plain[:1] = [0] * min(1, requests)
    elif pattern == "none on the last" and requests:
        plain[-1] = 0
    return plain


def _pool(row: Row, s: Stream, per_request: int = 1) -> Pool:
    requests, vocab = row["requests"], row["vocab"]
    logits = guarded_logits(row["logits"], requests * per_request, vocab, s, FLOATS[row["dtype"]], row["layout"])
    kept = {"V": vocab, "one below": max(1, vocab - 1)}.get(row["most kept"], row["most kept"])
    return {
        "logits": logits,
        "cu_num_logits": torch.arange(0, requests * per_request + 1, per_request, dtype=torch.int32),
        "num_sampled_tokens": torch.tensor(
            _sampled(row["sampled"], requests, per_request), dtype=axes.IDS[row["sampled dtype"]]
        ),
        "max_num_kept": kept,
        "rows_per_request": per_request,
    }


def _contract(row: Row) -> bool:
    return row["logits"] not in axes.UNUSUAL_LOGITS - {"huge"} and row["requests"] > 0


def cases() -> Iterator[Case]:
    yield from axes.cases_from(AXES, _pool, name="v2.sampling_mask", contract=_contract, limit=90)


def _make(arm: Arm, pool: Pool) -> Any:
    """The arm's mask of the pool's logits."""
    function = arm.get(FROM_LOGITS)
    if "rows_per_request" not in takes(function):
        arm.note("the packed bitmask is the mask; there are no compact ids")
    return function(**arm.bind(function, pool))


def _active(pool: Pool) -> list[int]:
    sampled = pool["num_sampled_tokens"].tolist()
    return [
        request * pool["rows_per_request"] + position
        for request, number in enumerate(sampled)
        for position in range(min(number, pool["rows_per_request"]))
    ]


def prepare(arm: Arm, pool: Pool) -> Call:
    """The mask, as the ids that its bitmask holds in each row that was sampled from."""

    def meaning() -> dict[str, Any]:
        mask = _make(arm, pool)
        packed = mask.packed_mask.cpu().numpy()
        rows = _active(pool)
        bits = [np.unpackbits(packed[row], bitorder="little") for row in rows]
        return {
            "counts": mask.counts,
            "ids": [np.flatnonzero(row).tolist() for row in bits],
            "vocab_size": mask.vocab_size,
            "width": mask.packed_mask.shape,
            "dtypes": [mask.counts.dtype, mask.packed_mask.dtype],
        }

    arm.note("the ids that the bitmask holds, in rows that were sampled from")
    return Call(meaning)


def oracle(pool: Pool) -> Any:
    """The ids of each row that was sampled from: those above -inf. None where a logit is NaN or +inf."""
    logits: torch.Tensor = pool["logits"]
    if logits.isnan().any() or logits.isposinf().any():
        return None
    return {"ids": [torch.nonzero(logits[row] > -torch.inf)[:, 0].tolist() for row in _active(pool)]}


def prepare_lists(arm: Arm, pool: Pool) -> Call:
    """The lists of ids of each request's tokens, as the scheduler slices them.

    Raises:
        ApiChange: the pool has several rows a request and the arm knows only one.
    """
    if pool["rows_per_request"] != 1 and "rows_per_request" not in takes(arm.get(FROM_LOGITS)):
        raise ApiChange("SamplingMaskTensors.from_logits knows one row a request")

    def meaning() -> dict[str, Any]:
        sampled = pool["num_sampled_tokens"].cpu().numpy()
        mask = _make(arm, pool)
        lists = mask.tolists(**arm.bind(mask.tolists, {"num_sampled_tokens": sampled}))
        each = [
            lists.slice_request(request, int(number)).to_nested_list() if number else []
            for request, number in enumerate(sampled)
        ]
        return {"ids": each, "dtype": lists.token_ids.dtype}

    arm.note("lists as a request's slice holds them")
    return Call(meaning)


def several_cases() -> Iterator[Case]:
    def build(row: Row, s: Stream) -> Pool:
        return _pool(row, s, 3)

    chosen = {**AXES, "vocab": (50, 9, 2049), "requests": (2, 1), "sampled": ("mixed", *SAMPLED[:4])}
    yield from axes.cases_from(chosen, build, name="v2.sampling_mask_rows", contract=_contract, limit=45)


# -- joining chunks ------------------------------------------------------------------------------------------------


def cat_cases() -> Iterator[Case]:
    def build(row: Row, s: Stream) -> Pool:
        each = (2, 1, 3) if row["requests"] <= 3 else (row["requests"] // 2, row["requests"] - row["requests"] // 2)
        return {"chunks": [_pool({**row, "requests": n}, s, 2) for n in each][: row["requests"]]}

    chosen = {**AXES, "vocab": (50, 9), "requests": (3, 1), "sampled": ("mixed", "none"), "dtype": ("float32",)}
    chosen["most kept"] = ("V", 5)
    yield from axes.cases_from(chosen, build, name="v2.sampling_mask_cat", contract=_contract, limit=24)


def prepare_cat(arm: Arm, pool: Pool) -> Call:
    """Chunks of a batch, joined, as lists."""
    chunks = [_make(arm, chunk) for chunk in pool["chunks"]]
    sampled = np.concatenate([chunk["num_sampled_tokens"].cpu().numpy() for chunk in pool["chunks"]])
    joined = arm.get(CAT)

    def both() -> dict[str, Any]:
        mask = joined(chunks)
        return {
            "counts": mask.counts,
            "lists": mask.tolists(sampled),
            "shapes": [mask.token_ids.shape, mask.packed_mask.shape],
        }

    return Call(both)


# -- kernels -------------------------------------------------------------------------------------------------------

KERNEL_AXES = {
    "logits": PATTERNS,
    "sampled": ("mixed", *SAMPLED[:4]),
    "most kept": ("V", 1, 5),
    "vocab": (40, 1, 15, 16, 17, 33),
    "rows per request": (1, 2),
    "dtype": ("float32", "bfloat16"),
    "layout": ("contiguous", "padded rows", "transposed"),
}


def _kernel_pool(row: Row, s: Stream) -> Pool:
    requests, _ = axes.sized(row, 3, 0)
    rows = {**row, "requests": requests, "sampled dtype": "int32"}
    pool = _pool(rows, s, row["rows per request"])
    count = requests * row["rows per request"]
    width = min(pool["max_num_kept"], row["vocab"])
    return {
        **pool,
        "max_num_kept": width,
        "token_ids": guarded(torch.full((count, width), -3, dtype=torch.int32), fill=-9),
        "packed_mask": guarded(torch.full((count, -(-row["vocab"] // 8)), 0xAA, dtype=torch.uint8), fill=0x55),
        "counts": guarded(torch.full((count,), -4, dtype=torch.int32), fill=-9),
    }


def kernel_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        KERNEL_AXES,
        _kernel_pool,
        name="v2.sampling_mask_kernel",
        contract=lambda row: row["logits"] in PATTERNS[:6],
        limit=45,
    )


def pack_cases() -> Iterator[Case]:
    chosen = {**KERNEL_AXES, "rows per request": (1,), "most kept": ("V",)}
    yield from axes.cases_from(
        chosen, _kernel_pool, name="v2.pack_mask_kernel", contract=lambda row: row["logits"] in PATTERNS[:6], limit=30
    )


def _prepare_kernel(symbol: str) -> Any:
    def prepare_kernel(arm: Arm, pool: Pool) -> Call:
        """A launch of the kernel with blocks of 16 ids, over buffers with guard rows."""
        logits, packed = pool["logits"], pool["packed_mask"]
        kernel = arm.get(symbol)
        several = "ROWS_PER_REQUEST" in takes(kernel)
        grid = pool["counts" if several else "num_sampled_tokens"].shape[0]
        pointers = {f"{name}_ptr": value for name, value in pool.items() if isinstance(value, torch.Tensor)}
        values = {
            **pointers,
            "logits_row_stride": logits.stride(0),
            "logits_col_stride": logits.stride(1),
            "token_ids_row_stride": pool["token_ids"].stride(0),
            "packed_mask_row_stride": packed.stride(0),
            "vocab_size": logits.shape[1],
            "max_num_kept": pool["max_num_kept"],
            "ROWS_PER_REQUEST": pool["rows_per_request"],
            "BLOCK_SIZE": block_of(logits.shape[1]),
        }
        launched: Call = launch(arm, kernel, (grid,), values)
        return launched

    return prepare_kernel


TARGETS = (
    Target(
        "v2.sampling_mask",
        (FROM_LOGITS,),
        cases,
        prepare,
        uses=(TENSORS,),
        triton=True,
        oracle=oracle,
        invariants=(relations.unchanged("logits", "num_sampled_tokens"),),
        relations=(
            relations.permuted(
                ("logits", "num_sampled_tokens"),
                ("return.counts", "return.ids"),
                lambda pool: bool((pool["num_sampled_tokens"] == 1).all()),
            ),
            relations.relaid("logits", ("return.counts", "return.ids")),
        ),
        shapes=shapes.of_cases(cases, "vocabulary"),
    ),
    Target(
        "v2.sampling_mask_lists",
        (TOLISTS,),
        cases,
        prepare_lists,
        uses=(TENSORS, FROM_LOGITS, LISTS, f"{LISTS}.slice_request", f"{LISTS}.to_nested_list"),
        triton=True,
        shapes=shapes.of_cases(cases, "vocabulary"),
    ),
    Target(
        "v2.sampling_mask_rows",
        (FROM_LOGITS,),
        several_cases,
        prepare_lists,
        uses=(TENSORS, TOLISTS, LISTS, f"{LISTS}.slice_request", f"{LISTS}.to_nested_list"),
        triton=True,
        shapes=shapes.of_cases(several_cases, "vocabulary"),
    ),
    Target(
        "v2.sampling_mask_cat",
        (CAT,),
        cat_cases,
        prepare_cat,
        uses=(TENSORS, FROM_LOGITS, TOLISTS),
        triton=True,
        shapes=shapes.of_cases(cat_cases, "vocabulary"),
    ),
    Target(
        "v2.sampling_mask_kernel",
        (COMPACT,),
        kernel_cases,
        _prepare_kernel(COMPACT),
        triton=True,
        shapes=shapes.of_cases(kernel_cases, "vocabulary"),
    ),
    Target(
        "v2.pack_mask_kernel",
        (PACK,),
        pack_cases,
        _prepare_kernel(PACK),
        triton=True,
        shapes=shapes.of_cases(pack_cases, "vocabulary"),
    ),
)
