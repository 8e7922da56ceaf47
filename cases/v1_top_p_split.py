"""V1 top-p of small batches: each row split over several programs, launched on CUDA tensors only.

`apply_top_k_top_p_triton` calls it after its own kernel, for at most 64 rows of float32 logits [batch, vocab] whose ids
lie side by side, with top-k as int32 or None, top-p as float32, and the number of a GPU's multiprocessors, which says
into how many slices a row is split. It masks rows with top-p below 1 whose top-k is not below the vocabulary; the
others it leaves as they are. What it keeps between calls are buffers, whose contents no call may depend on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.target import Arm, Call, Case, Pool, Target

_SPLIT = "vllm.v1.sample.ops.topk_topp_triton:_apply_topp_split"
_ULP = 2.0**-22
"""Between neighbouring numbers from 2 to 4."""


def _narrow(steps: int) -> axes.Pattern:
    """Neighbouring numbers: wider apart than a uniform row, closer than the pivots that a search gets to."""

    def pattern(s: axes.Stream, rows: int, vocab: int, dtype: torch.dtype) -> torch.Tensor:
        made: torch.Tensor = (3.0 + s.integers(0, steps + 1, (rows, vocab)).double() * _ULP).to(dtype)
        return made

    return pattern


def _part(first: bool) -> axes.Pattern:
    """Whole blocks and slices of a row are shut, as by a grammar; what is left is at one end."""

    def pattern(s: axes.Stream, rows: int, vocab: int, dtype: torch.dtype) -> torch.Tensor:
        values: torch.Tensor = axes.LOGITS["half grid"](s, rows, vocab, dtype)
        left = min(vocab // 6 + 1, 100)
        values[:, slice(left, None) if first else slice(vocab - left)] = -axes.INF
        return values

    return pattern


def _tied_ends(s: axes.Stream, rows: int, vocab: int, dtype: torch.dtype) -> torch.Tensor:
    """A maximum, then one value for a dozen ids at either end of the row: what top-p cuts is in the last slices."""
    values = torch.full((rows, vocab), -9.0, dtype=dtype)
    values[:, :12] = values[:, max(vocab - 12, 0) :] = 1.0
    values[:, vocab // 2] = 2.0
    return values


_PATTERNS: dict[str, axes.Pattern] = {
    **axes.LOGITS,
    "narrow": _narrow(40),
    "almost uniform": _narrow(1),
    "-inf but the first": _part(True),
    "-inf but the last": _part(False),
    "ties at the ends": _tied_ends,
}
_NONE = axes.Spread("none", ())
_K = {str(spread): spread for spread in axes.TOP_K}
_P = {str(spread): spread for spread in axes.TOP_P}

_AXES: axes.Axes = {
    "pattern": (
        *("half grid", "two maxima", "almost uniform", "ties at the ends", "-inf some", "-inf but the last"),
        *("-inf all but one", "all equal", "wide range", "-inf everywhere", "NaN at the start", "+inf once"),
    ),
    "p": (  # one row of the plain two: what is left alone costs nothing
        axes.Spread("1.0, 0.8 by turns", (1.0, 0.8)),
        _P["mixed"],
        *(axes.Spread(f"{p} on the last", (p,), "last", 1.0) for p in (0.5, 1e-7, 0.9999)),
        _P["1.0"],
    ),
    "k": (_NONE, *(_K[name] for name in ("mixed", "V", "1", "V-1"))),
    "num_sm": (6, 1),  # with two rows: 2 slices and 1
    "batch": (2, 1, 4),
    "vocab": (257, 33, 5, 1),
    "earlier": ("none", "more rows"),
    "layout": ("contiguous", "padded rows"),
    "mask_value": (-axes.INF, -1000.0),
}
_CERTAIN = axes.Spread("1-2^-24 on the last", (axes.JUST_BELOW_1,), "last", 1.0)


def _step(row: axes.Row, s: axes.Stream) -> Pool:
    batch, vocab = row["batch"], row["vocab"]
    values = _PATTERNS[row["pattern"]](s, batch, vocab, torch.float32)
    k = None if row["k"] is _NONE else row["k"].tensor(batch, torch.int32, vocab)
    return {"logits": axes.lay_out(values, row["layout"]), "k": k, "p": row["p"].tensor(batch, torch.float32, vocab)}


def _pool(row: axes.Row, s: axes.Stream) -> Pool:
    pool = {**_step(row, s), "num_sm": row["num_sm"], "mask_value": row["mask_value"], "earlier": None}
    if row["earlier"] == "more rows":
        earlier = {**axes.plain(_AXES), "vocab": row["vocab"], "pattern": "random", "batch": row["batch"] + 1}
        pool["earlier"] = _step(earlier, s)
    return pool


def _contract(row: axes.Row) -> bool:
    p, k = row["p"].over(row["batch"]), row["k"]
    return (
        row["pattern"] not in axes.UNUSUAL_LOGITS
        and all(0 < value <= 1 for value in p)
        and (k is _NONE or all(1 <= value <= row["vocab"] for value in k.over(row["batch"], row["vocab"])))
        and row["mask_value"] == -axes.INF
    )


def _cases() -> Iterator[Case]:
    first = axes.plain(_AXES)
    # A slice of several blocks: the kernels take 2048 ids at a time, and 8192.
    large = [
        {**first, "vocab": 8300, "num_sm": 1, "batch": 1, "p": _P["mixed"], "pattern": pattern}
        for pattern in ("ascending", "-inf but the first", "-inf but the last", "ties at the ends", "near ties")
    ]
    # Slices between those that have the value at which top-p cuts; a row past 2^31 whose stride is below.
    apart = [
        {**first, "num_sm": 12, "pattern": "ties at the ends"},
        {**first, "batch": 4, "num_sm": 1, "layout": axes.FAR_ROWS},
    ]
    # How a search ends: at a pivot, without one in time, in no range at all.
    small: list[axes.Row] = [
        {**first, "vocab": 33, "pattern": "near ties"},
        *({**first, "vocab": 33, "num_sm": 1, "pattern": name, "p": _CERTAIN} for name in ("near ties", "narrow")),
        {**first, "vocab": 33, "num_sm": 1, "pattern": "narrow"},
        {**first, "vocab": 33, "num_sm": 1, "pattern": "ties at the ends", "p": _CERTAIN},
    ]
    rows = [*axes.extremes(_AXES), *large, *apart, *small]
    yield from axes.cases_from(_AXES, _pool, name="v1.top_p_split", contract=_contract, rows=rows)


def _prepare(arm: Arm, pool: Pool) -> Call:
    function = arm.get(_SPLIT)
    kwargs = arm.bind(function, pool)

    def run() -> Any:
        """The call, after another one where there is one; the logits, which it masks in place."""
        if pool["earlier"] is not None:
            function(**{**kwargs, **pool["earlier"]})
        function(**kwargs)
        return pool["logits"]

    return Call(run)


def _first_call(pool: Pool) -> Pool | None:
    return None if pool["earlier"] is None else {"earlier": None}


def _left_alone(pool: Pool) -> torch.Tensor:
    off: torch.Tensor = pool["p"] >= 1
    return off if pool["k"] is None else off | (pool["k"] < pool["logits"].shape[1])


def _shape(batch: int, vocabulary: int, number: int) -> Pool:
    """Every request filters by top-p alone, on the multiprocessors of an H200."""
    return {
        "logits": shapes.logits(batch, vocabulary, number),
        "k": None,
        "p": torch.full((batch,), 0.95),
        "num_sm": 132,
        "mask_value": -axes.INF,
        "earlier": None,
    }


TARGETS = (
    Target(
        name="v1.top_p_split",
        symbols=(_SPLIT,),
        cases=_cases,
        prepare=_prepare,
        shapes=shapes.by_batch_and_vocabulary(_shape, 64 * 32_000),  # its buffers are for 64 rows
        triton=True,
        rows=("return", "logits"),
        invariants=(
            relations.filters("return"),
            relations.keeps_the_likeliest("return"),
            relations.off_rows("return", _left_alone, "top-p of 1, or top-k below the vocabulary,"),
            relations.unchanged("k", "p"),
        ),
        relations=(
            relations.permuted(("logits", "k", "p"), every=30),
            relations.relaid("logits", every=30),
            relations.same_with("what an earlier call left behind makes no difference", _first_call),
            *relations.no_filter()[:1],
        ),
        timeout=60.0,
    ),
)
