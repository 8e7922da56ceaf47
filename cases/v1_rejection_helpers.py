"""V1 rejection sampling, what it is made of: uniform noise, values of requests for each draft, sampling constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import Row, Stream, cases_from
from difftest.cases.v1_metadata import METADATA as SAMPLING_METADATA
from difftest.cases.v1_metadata import PROCESSORS
from difftest.cases.v1_rejection import (
    APPLY_TEMPERATURE,
    BATCH,
    GREEDY,
    MODULE,
    MOST_DRAFTS,
    TEMPERATURES,
    VOCABULARY,
    cumulative,
    inside,
    metadata,
    repeated,
    sampling_fields,
)
from difftest.target import Arm, Call, Case, Pool, Prepare, Target

CONSTRAINTS = f"{MODULE}apply_sampling_constraints"
COMPUTE_PROBS = f"{MODULE}compute_probs"

# -- generate_uniform_probs ------------------------------------------------------------------------------------------

UNIFORM_AXES: axes.Axes = {
    "seeds": axes.SEEDS,
    "counts": axes.DRAFT_COUNTS,
    "batch": (BATCH, 0, 1, 5, 8),
    "most drafts": (MOST_DRAFTS, 1, 7, 16),
    "steps": (1, 2),
    "further tokens": (0, 2),
}


def _uniform_pool(row: Row, s: Stream) -> Pool:
    counts = axes.draft_counts(row["counts"], row["batch"], row["most drafts"])
    return {
        "num_tokens": sum(counts) + row["further tokens"],
        "num_draft_tokens": counts,
        "generators": axes.seeds(row["seeds"], row["batch"]),
        "steps": row["steps"],
    }


def uniform_cases() -> Iterator[Case]:
    """Seeds of every kind with drafts of every kind; more tokens than drafts is outside the contract."""
    yield from cases_from(
        UNIFORM_AXES,
        _uniform_pool,
        name="v1.generate_uniform_probs",
        contract=lambda row: row["further tokens"] == 0,
    )


def prepare_uniform(arm: Arm, pool: Pool) -> Call:
    function = arm.get(f"{MODULE}generate_uniform_probs")
    bound = arm.bind(function, {**pool, "device": torch.device(arm.device)})
    return Call(repeated(function, pool["steps"]), kwargs=bound)


# -- expand_batch_to_tokens ------------------------------------------------------------------------------------------

EXPAND_VALUES: Mapping[str, tuple[float, ...]] = {
    "some to replace": (0.0, 0.5, 2.0),
    "all to replace": (0.0,),
    "none to replace": (3.0, 1.0),
    "-0.0": (-0.0, 1.0),
    "NaN and inf": (axes.NAN, axes.INF, 0.0),
}
EXPAND_AXES: axes.Axes = {
    "dtype": (torch.float32, torch.int32, torch.int64, torch.float64, torch.bfloat16, torch.float16),
    "values": tuple(EXPAND_VALUES),
    "counts": axes.DRAFT_COUNTS,
    "replaced by": (None, (0, 1), (0, -1), (3, 0)),
    "cumulative counts": (torch.int32, torch.int64),
    "most drafts": (MOST_DRAFTS, 1, 127, 128, 129),
    "tokens beyond": (0, 2),
    "batch": (BATCH, 1, 6),
}


def _expand_counts(row: Row) -> list[int]:
    batch = 2 if row["most drafts"] > MOST_DRAFTS and "size" not in row else row["batch"]
    counts: list[int] = axes.draft_counts(row["counts"], batch, row["most drafts"])
    return counts


def _expand_values(row: Row, batch: int) -> torch.Tensor:
    values = EXPAND_VALUES[row["values"]]
    dtype: torch.dtype = row["dtype"]
    given = [values[index % len(values)] for index in range(batch)]
    return torch.tensor(given if dtype.is_floating_point else [int(value) for value in given], dtype=dtype)


def _expand_pool(row: Row, s: Stream) -> Pool:
    counts = _expand_counts(row)
    pool: Pool = {
        "x": axes.guarded(_expand_values(row, len(counts))),
        "cu_num_tokens": cumulative(counts).to(row["cumulative counts"]),
        "num_tokens": sum(counts) + row["tokens beyond"],
    }
    if row["replaced by"]:
        pool["replace_from"], pool["replace_to"] = row["replaced by"]
    return pool


def _expand_allowed(row: Row) -> bool:
    dtype: torch.dtype = row["dtype"]
    return row["values"] != "NaN and inf" or dtype.is_floating_point


def _expand_inside(row: Row) -> bool:
    return bool(row["most drafts"] <= 128 and row["tokens beyond"] == 0 and row["values"] != "NaN and inf")


def expand_cases() -> Iterator[Case]:
    """Values of every dtype spread over tokens; more than 128 tokens a request is outside the contract."""
    yield from cases_from(
        EXPAND_AXES,
        _expand_pool,
        name="v1.expand_batch_to_tokens",
        contract=_expand_inside,
        allowed=_expand_allowed,
    )


# -- apply_sampling_constraints --------------------------------------------------------------------------------------

CONSTRAINT_AXES: axes.Axes = {
    "temperatures": tuple(TEMPERATURES),
    "logits": ("random", "integer grid", "-inf some", "NaN last row"),
    "top-k": (None, *(spread for spread in axes.TOP_K if spread.name in ("V", "mixed", "3 on the middle", "0"))),
    "top-p": (None, *(spread for spread in axes.TOP_P if spread.name in ("1.0", "mixed", "0.8 on the middle"))),
    "counts": ("ragged", "full", "zero first", "only last"),
    "vocabulary": (VOCABULARY, 2),
}


def constraint_fields(row: Row, batch: int, vocabulary: int) -> Pool:
    """`top_k` int32 and `top_p` float32 [batch], or None."""
    top_k, top_p = row["top-k"], row["top-p"]
    return {
        "top_k": None if top_k is None else top_k.tensor(batch, torch.int32, vocabulary),
        "top_p": None if top_p is None else top_p.tensor(batch),
    }


def _constraint_pool(row: Row, s: Stream) -> Pool:
    batch, most = axes.sized(row, BATCH, 2)
    counts = axes.draft_counts(row["counts"], batch, most)
    logits = axes.logits(row["logits"], sum(counts), row["vocabulary"], s)
    return {
        "logits": logits,
        "cu_num_draft_tokens": cumulative(counts),
        **sampling_fields(row["temperatures"], batch, "none"),
        **constraint_fields(row, batch, row["vocabulary"]),
    }


def constraint_cases(name: str) -> Callable[[], Iterator[Case]]:
    """Temperature, top-k and top-p of requests over their drafts; the filters have targets of their own."""

    def cases() -> Iterator[Case]:
        yield from cases_from(
            CONSTRAINT_AXES,
            _constraint_pool,
            name=name,
            contract=lambda row: inside(row) and str(row["top-k"]) not in axes.BEYOND,
        )

    return cases


def prepare_constraints(symbol: str) -> Prepare:
    """The call of `apply_sampling_constraints` or of its forerunner `compute_probs`.

    They are two targets, as the one gives logits and the other the probabilities made of them.
    """

    def prepare(arm: Arm, pool: Pool) -> Call:
        function = arm.get(symbol)
        return Call(function, kwargs=arm.bind(function, {**pool, "sampling_metadata": metadata(arm, pool)}))

    return prepare


def _constraints(name: str, symbol: str) -> Target:
    cases = constraint_cases(name)
    return Target(
        name=name,
        symbols=(symbol,),
        cases=cases,
        prepare=prepare_constraints(symbol),
        uses=(SAMPLING_METADATA, *PROCESSORS, GREEDY, APPLY_TEMPERATURE),
        triton=True,
        shapes=shapes.of_cases(cases, "vocabulary", "drafts"),
    )


TARGETS = (
    Target(
        name="v1.generate_uniform_probs",
        symbols=(f"{MODULE}generate_uniform_probs",),
        cases=uniform_cases,
        prepare=prepare_uniform,
        shapes=shapes.of_cases(uniform_cases, "drafts", varies=False),
    ),
    Target(
        name="v1.expand_batch_to_tokens",
        symbols=(f"{MODULE}expand_batch_to_tokens",),
        cases=expand_cases,
        triton=True,
        rows=("x",),
        shapes=shapes.of_cases(expand_cases, "drafts", varies=False),
    ),
    _constraints("v1.apply_sampling_constraints", CONSTRAINTS),
    _constraints("v1.compute_probs", COMPUTE_PROBS),
)
