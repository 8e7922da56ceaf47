"""V1 `LogprobsTensors`, `LogprobsLists` and `SamplingMaskLists`: what a step's logprobs and masks are handed on in.

Rows of several requests follow one another; `cu_num_generated_tokens` says where each request's begin.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import Row, Stream, cases_from
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Made, Pool, Target

MODULE = "vllm.v1.outputs:"
TENSORS = f"{MODULE}LogprobsTensors"
LISTS = f"{MODULE}LogprobsLists"
MASKS = f"{MODULE}SamplingMaskLists"
COUNTS = ("ragged", "full", "one each", "zero first", "zero last", "none", "only last")


def offsets(counts: list[int]) -> list[int]:
    """Where each request's rows begin, and where the last one's end; [batch + 1]."""
    return [0, *itertools.accumulate(counts)]


def _given(arm: Arm, cls: Any, fields: Pool, later: tuple[str, ...]) -> Any:
    """An instance out of the fields that its version has; a case that sets a later one is refused without it."""
    bound = arm.bind(cls, fields)
    for name in later:
        if fields.get(name) is not None and name not in bound:
            raise ApiChange(f"{cls.__qualname__} does not take {name}")
    return cls(**bound)


def _twenty(size: shapes.Size) -> Row:
    return {"logprobs": 20}


def _chunks(size: shapes.Size) -> Row:
    """A chunk for each request."""
    return {"logprobs": 20, "chunks": size.batch}


def _first_request(size: shapes.Size) -> Row:
    """One id is kept of each row, so that every mask has the same size."""
    return {"logprobs": 20, "request": 0, "kept": "one each"}


# -- LogprobsTensors -------------------------------------------------------------------------------------------------

TENSOR_AXES: axes.Axes = {
    "rows": (6, 0, 1, 2, 17),
    "logprobs": (3, 1, 2, 0),
    "values": ("random", "-0.0", "-inf some", "NaN everywhere", "denormals", "all equal"),
    "scores": ("float32", "bfloat16", "float16", "float64"),
    "ids": ("int32", "int64"),
    "ranks": ("int64", "int32"),
    "layout": ("contiguous", "padded rows", "transposed", "offset storage", "every other row"),
}


def _tensor_fields(row: Row, s: Stream, rows: int) -> Pool:
    width = row["logprobs"]
    return {
        "logprob_token_ids": axes.lay_out(s.integers(0, 1 << 20, (rows, width), axes.IDS[row["ids"]]), row["layout"]),
        "logprobs": axes.logits(row["values"], rows, width, s, axes.FLOATS[row["scores"]], row["layout"])
        if width
        else torch.zeros(rows, 0, dtype=axes.FLOATS[row["scores"]]),
        "selected_token_ranks": s.integers(1, 1 << 20, (rows,), axes.IDS[row["ranks"]]),
    }


def _readable(row: Row) -> bool:
    """NumPy has no bfloat16; a matrix without columns has one layout."""
    return bool(row["logprobs"] > 0 or row["layout"] == "contiguous")


FILTER_AXES: axes.Axes = {
    "kept": ("some", "all", "none", "first", "last"),
    "mask": ("tensor", "ndarray", "offset tensor"),
    **TENSOR_AXES,
}


def _filter_pool(row: Row, s: Stream) -> Pool:
    rows = row["rows"]
    kept = s.integers(0, 2, (rows,)).bool()
    if row["kept"] != "some":
        kept[:] = row["kept"] == "all"
        kept[{"first": slice(0, 1), "last": slice(-1, None)}.get(row["kept"], slice(0, 0))] = True
    mask: Any = kept.numpy() if row["mask"] == "ndarray" else kept
    if row["mask"] == "offset tensor":
        mask = axes.lay_out(kept, "offset storage")
    return {"self": Made(TENSORS, _tensor_fields(row, s, rows)), "mask": mask}


def filter_cases() -> Iterator[Case]:
    """Masks as the caller gives them (an array) and as the signature says (a tensor)."""
    yield from cases_from(FILTER_AXES, _filter_pool, name="v1.logprobs_filter", allowed=_readable, limit=90)


def prepare_method(name: str) -> Any:
    """The call of a method of the object that the pool holds as `self`."""

    def prepare(arm: Arm, pool: Pool) -> Call:
        function = getattr(pool["self"], name)
        bound = arm.bind(function, pool)
        for given in set(pool) - {"self"} - set(bound):
            raise ApiChange(f"{type(pool['self']).__qualname__}.{name} does not take {given}")
        return Call(function, kwargs=bound)

    return prepare


TOLISTS_AXES: axes.Axes = {
    "boundaries": ("none", "given", "own", "own and given", "own tensor"),
    "counts": COUNTS,
    **{name: values for name, values in TENSOR_AXES.items() if name != "rows"},
}


def _tolists_pool(row: Row, s: Stream) -> Pool:
    counts = axes.draft_counts(row["counts"], *axes.sized(row, 4, 2))
    bounds = offsets(counts)
    pool: Pool = _tensor_fields(row, s, bounds[-1])
    if row["boundaries"] in ("own", "own and given"):
        pool["cu_num_generated_tokens"] = bounds
    if row["boundaries"] == "own tensor":
        pool["cu_num_generated_tokens_tensor"] = torch.tensor(bounds, dtype=torch.int32)
    if row["boundaries"] in ("given", "own and given"):
        pool["given"] = bounds if row["boundaries"] == "given" else [0, *bounds]
    return pool


def tolists_cases() -> Iterator[Case]:
    """Boundaries from the caller, from the object, or from both."""
    yield from cases_from(
        TOLISTS_AXES,
        _tolists_pool,
        name="v1.logprobs_tolists",
        contract=lambda row: row["scores"] != "bfloat16",  # NumPy has no such dtype
        allowed=_readable,
        limit=90,
    )


_TENSOR_LATER = ("cu_num_generated_tokens", "cu_num_generated_tokens_tensor")


def prepare_tolists(arm: Arm, pool: Pool) -> Call:
    """Boundaries that this version's object does not hold are given to the method, as its caller did."""
    cls = arm.get(TENSORS)
    fields = {name: value for name, value in pool.items() if name != "given"}
    given = {"cu_num_generated_tokens": pool["given"]} if "given" in pool else {}
    own = arm.bind(cls, fields)
    if "cu_num_generated_tokens" in fields and "cu_num_generated_tokens" not in own and not given:
        arm.note("the boundaries are given to tolists, as this version's LogprobsTensors cannot hold them")
        given["cu_num_generated_tokens"] = fields["cu_num_generated_tokens"]
    elif "cu_num_generated_tokens_tensor" in fields and "cu_num_generated_tokens_tensor" not in own:
        raise ApiChange("LogprobsTensors does not take cu_num_generated_tokens_tensor")
    tolists = cls(**own).tolists
    bound = arm.bind(tolists, given)
    if given and not bound:
        raise ApiChange("LogprobsTensors.tolists does not take cu_num_generated_tokens")
    return Call(tolists, kwargs=bound)


CAT_AXES: axes.Axes = {
    "chunks": (2, 1, 3),
    "boundaries": ("none", "given", "own"),
    "counts": COUNTS,
    "logprobs": (3, 1),
    "values": ("random", "-0.0", "NaN everywhere"),
    "scores": ("float32", "bfloat16"),
    "ids": ("int32", "int64"),
    "ranks": ("int64", "int32"),
    "layout": ("contiguous", "padded rows", "transposed"),
}


def _cat_pool(row: Row, s: Stream) -> Pool:
    counts = axes.draft_counts(row["counts"], *axes.sized(row, 4, 2))
    chunks = []
    for chunk in range(row["chunks"]):
        fields = _tensor_fields(row, s, counts[chunk])
        if row["boundaries"] == "own":
            fields["cu_num_generated_tokens"] = [0, counts[chunk]]
        chunks.append(Made(TENSORS, fields))
    pool: Pool = {"tensors": chunks}
    if row["boundaries"] == "given":
        pool["cu_num_generated_tokens"] = offsets(counts[: row["chunks"]])
    return pool


def cat_cases() -> Iterator[Case]:
    """Chunks of requests, empty ones among them; chunks with boundaries of their own are outside the contract."""
    yield from cases_from(
        CAT_AXES, _cat_pool, name="v1.logprobs_cat", contract=lambda row: row["boundaries"] != "own", limit=60
    )


# -- LogprobsLists ---------------------------------------------------------------------------------------------------

SLICE_AXES: axes.Axes = {
    "request": (1, 0, 2, 3, 4, -1),
    "positions": ("its own", 0, 1, 2, 100),
    "boundaries": ("given", "none", "empty"),
    "counts": COUNTS,
    "logprobs": (3, 1),
    "values": ("random", "-0.0", "NaN everywhere"),
    "as": ("ndarray", "lists"),
}


def _slice_pool(row: Row, s: Stream) -> Pool:
    counts = axes.draft_counts(row["counts"], *axes.sized(row, 4, 2))
    bounds = offsets(counts)
    fields = _tensor_fields(
        {**row, "scores": "float32", "ids": "int32", "ranks": "int64", "layout": "contiguous"}, s, bounds[-1]
    )
    arrays = {name: value.numpy() for name, value in fields.items()}
    arrays["sampled_token_ranks"] = arrays.pop("selected_token_ranks")
    held: Pool = {name: value.tolist() if row["as"] == "lists" else value for name, value in arrays.items()}
    held["cu_num_generated_tokens"] = {"given": bounds, "none": None, "empty": []}[row["boundaries"]]
    request = row["request"]
    own = counts[request] if 0 <= request < len(counts) else 1
    return {"fields": held, "request": request, "positions": own if row["positions"] == "its own" else row["positions"]}


def _slice_inside(row: Row) -> bool:
    """A caller asks for as many rows as the request has; without boundaries, for rows that are there."""
    counts: list[int] = axes.draft_counts(row["counts"], 4, 2)
    request, positions = row["request"], row["positions"]
    if not 0 <= request < 4 or row["boundaries"] == "empty" or row["as"] == "lists":
        return False
    if row["boundaries"] == "none":
        return bool(request + (counts[request] if positions == "its own" else positions) <= sum(counts))
    return positions in ("its own", counts[request])


def slice_cases() -> Iterator[Case]:
    """Every request of a batch, with its own number of rows and with others."""
    yield from cases_from(SLICE_AXES, _slice_pool, name="v1.logprobs_slice_request", contract=_slice_inside, limit=120)


def prepare_slice(arm: Arm, pool: Pool) -> Call:
    """`slice_request`, or `slice` over one request in the versions before it, which found the end by themselves."""
    lists = _given(arm, arm.get(LISTS), pool["fields"], ("cu_num_generated_tokens",))
    request, positions = pool["request"], pool["positions"]
    if hasattr(lists, "slice_request"):
        return Call(lists.slice_request, (request, positions))
    if pool["fields"]["cu_num_generated_tokens"] is None:
        arm.note("slice_request(row, n) is slice(row, row + n)")
        return Call(lists.slice, (request, request + positions))
    arm.note("slice_request(request, n) is slice(request, request + 1), cut to n rows, without its boundaries")

    def slice_request() -> Any:
        found = lists.slice(request, request + 1)
        cut = [field[:positions] for field in found[:3]]
        return type(found)(*cut, *[None] * (len(found) - 3))

    return Call(slice_request)


RANGE_AXES: axes.Axes = {
    "range": ((1, 2), (0, 4), (0, 2), (1, 3), (2, 4), (0, 1), (3, 4), (2, 2), (0, 0), (4, 4), (3, 1), (-1, 4), (2, 9)),
    **{name: values for name, values in SLICE_AXES.items() if name not in ("request", "positions")},
}


def _range_pool(row: Row, s: Stream) -> Pool:
    held = _slice_pool({**row, "request": 0, "positions": 1}, s)["fields"]
    start, end = (0, row["size"].batch) if "size" in row else row["range"]
    return {"fields": held, "start": start, "end": end}


def _range_inside(row: Row) -> bool:
    start, end = row["range"]
    rows = 4 if row["boundaries"] == "given" else sum(axes.draft_counts(row["counts"], 4, 2))
    return bool(row["boundaries"] != "empty" and 0 <= start <= end <= min(4, rows))


def range_cases() -> Iterator[Case]:
    """One request, several and none of a batch, with the boundaries that are left of them."""
    yield from cases_from(RANGE_AXES, _range_pool, name="v1.logprobs_lists_slice", contract=_range_inside, limit=130)


def prepare_range(arm: Arm, pool: Pool) -> Call:
    """`slice` as it is, with all that it returns."""
    lists = _given(arm, arm.get(LISTS), pool["fields"], ("cu_num_generated_tokens",))
    return Call(lists.slice, (pool["start"], pool["end"]))


# -- SamplingMaskLists -----------------------------------------------------------------------------------------------

MASK_AXES: axes.Axes = {
    "request": (1, 0, 2, 3),
    "positions": ("its own", 0, 1, 2),
    "boundaries": ("given", "none"),
    "counts": COUNTS,
    "kept": ("some", "none anywhere", "one each", "many"),
    "ids": (np.int32, np.int64),
    "offsets": (np.int64, np.int32),
}


def _mask_pool(row: Row, s: Stream) -> Pool:
    counts = axes.draft_counts(row["counts"], *axes.sized(row, 4, 2))
    bounds = offsets(counts)
    most = {"some": 4, "none anywhere": 1, "one each": 2, "many": 40}[row["kept"]]
    least = 1 if row["kept"] == "one each" else 0
    kept = s.integers(least, most, (bounds[-1] + 4,)).tolist()
    ends = np.array(offsets(kept), dtype=row["offsets"])
    request = row["request"]
    return {
        "fields": {
            "token_ids": s.integers(0, 1 << 20, (int(ends[-1]),)).numpy().astype(row["ids"]),
            "offsets": ends,
            "cu_num_generated_tokens": bounds if row["boundaries"] == "given" else None,
        },
        "request": request,
        "positions": counts[request] if row["positions"] == "its own" else row["positions"],
    }


def mask_cases(name: str) -> Any:
    """Masks of several requests, empty ones among them."""

    def cases() -> Iterator[Case]:
        yield from cases_from(MASK_AXES, _mask_pool, name=name, limit=80)

    return cases


def prepare_mask_slice(arm: Arm, pool: Pool) -> Call:
    """The slice, then its token ids by position: versions agree on these, not on how one position is held."""
    masks = arm.get(MASKS)(**arm.bind(arm.get(MASKS), pool["fields"]))

    def slice_request() -> Any:
        return masks.slice_request(pool["request"], pool["positions"]).to_nested_list()

    return Call(slice_request)


def prepare_mask_lists(arm: Arm, pool: Pool) -> Call:
    return Call(arm.get(MASKS)(**arm.bind(arm.get(MASKS), pool["fields"])).to_nested_list)


TARGETS = (
    Target(
        name="v1.logprobs_filter",
        symbols=(f"{TENSORS}.filter",),
        cases=filter_cases,
        prepare=prepare_method("filter"),
        uses=(TENSORS,),
        shapes=shapes.of_cases(filter_cases, also=_twenty),
    ),
    Target(
        name="v1.logprobs_tolists",
        symbols=(f"{TENSORS}.tolists",),
        cases=tolists_cases,
        prepare=prepare_tolists,
        uses=(TENSORS, LISTS),
        shapes=shapes.of_cases(tolists_cases, "drafts", also=_twenty),
    ),
    Target(
        name="v1.logprobs_cat",
        symbols=(f"{TENSORS}.cat",),
        cases=cat_cases,
        uses=(TENSORS,),
        shapes=shapes.of_cases(cat_cases, "drafts", also=_chunks),
    ),
    Target(
        name="v1.logprobs_slice_request",
        symbols=(f"{LISTS}.slice_request", f"{LISTS}.slice"),
        cases=slice_cases,
        prepare=prepare_slice,
        uses=(LISTS,),
        shapes=shapes.of_cases(slice_cases, "drafts", also=_first_request),
    ),
    Target(
        name="v1.logprobs_lists_slice",
        symbols=(f"{LISTS}.slice",),
        cases=range_cases,
        prepare=prepare_range,
        uses=(LISTS,),
        shapes=shapes.of_cases(range_cases, "drafts", also=_twenty),
    ),
    Target(
        name="v1.sampling_mask_slice_request",
        symbols=(f"{MASKS}.slice_request",),
        cases=mask_cases("v1.sampling_mask_slice_request"),
        prepare=prepare_mask_slice,
        uses=(MASKS, f"{MASKS}.to_nested_list"),
        shapes=shapes.of_cases(mask_cases("v1.sampling_mask_slice_request"), "drafts", also=_first_request),
    ),
    Target(
        name="v1.sampling_mask_lists",
        symbols=(f"{MASKS}.to_nested_list",),
        cases=mask_cases("v1.sampling_mask_lists"),
        prepare=prepare_mask_lists,
        uses=(MASKS,),
        shapes=shapes.of_cases(mask_cases("v1.sampling_mask_lists"), "drafts", also=_first_request),
    ),
)
