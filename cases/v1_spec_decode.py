"""V1 kernels that prepare the next draft out of what rejection sampling left, launched as they are.

Buffers have guard rows; a launch has more programs than requests, as padded batches do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import Row, Stream, cases_from
from difftest.cases.v1_rejection import cumulative
from difftest.target import Arm, Call, Case, Pool, Target

MODULE = "vllm.v1.spec_decode.utils:"
BATCH = 4
MOST_DRAFTS = 3
_FILLED = 77


def _filled(rows: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """An output buffer that nothing was written to yet, guard rows included."""
    buffer: torch.Tensor = axes.guarded(torch.full((rows,), _FILLED, dtype=dtype), fill=_FILLED)
    return buffer


def launcher(kernel: str) -> Callable[[Arm, Pool], Call]:
    """Launches a kernel over the pool's `programs`."""

    def prepare(arm: Arm, pool: Pool) -> Call:
        found = arm.get(f"{MODULE}{kernel}")
        return Call(found[(pool["programs"],)], kwargs=arm.bind(found, pool))

    return prepare


# -- eagle_prepare_inputs_padded_kernel ------------------------------------------------------------------------------

INPUTS_AXES: axes.Axes = {
    "counts": ("ragged", "full", "none", "zero first", "zero last", "one each", "only last"),
    "valid": ("some accepted", "all accepted", "none accepted", "none valid", "more than drafted"),
    "dtype": (torch.int32, torch.int64),
    "requests": (BATCH, 1, 2),
    "programs beyond": (0, 2),
    "first query": (0, 5),
}


def _inputs_pool(row: Row, s: Stream) -> Pool:
    batch = row["requests"]
    counts = axes.draft_counts(row["counts"], *axes.sized(row, batch, MOST_DRAFTS))
    valid = {
        "some accepted": [1 + index % (count + 1) for index, count in enumerate(counts)],
        "all accepted": [count + 1 for count in counts],
        "none accepted": [1] * batch,
        "none valid": [0] * batch,
        "more than drafted": [count + 2 for count in counts],
    }[row["valid"]]
    starts = [row["first query"], *(cumulative([count + 1 for count in counts]) + row["first query"]).tolist()]
    return {
        "cu_num_draft_tokens_ptr": axes.guarded(cumulative(counts).to(row["dtype"]), fill=_FILLED),
        "valid_sampled_tokens_count_ptr": axes.guarded(torch.tensor(valid, dtype=row["dtype"]), fill=_FILLED),
        "query_start_loc_gpu_ptr": axes.guarded(torch.tensor(starts, dtype=torch.int32), fill=_FILLED),
        "token_indices_to_sample_ptr": _filled(batch),
        "num_rejected_tokens_gpu_ptr": _filled(batch),
        "num_reqs": batch,
        "programs": batch + row["programs beyond"],
    }


def inputs_cases() -> Iterator[Case]:
    """Acceptance of every extent; more valid tokens than drafts and a bonus is outside the contract."""
    yield from cases_from(
        INPUTS_AXES,
        _inputs_pool,
        name="v1.eagle_prepare_inputs_padded_kernel",
        contract=lambda row: row["valid"] != "more than drafted",
    )


# -- eagle_prepare_next_token_padded_kernel --------------------------------------------------------------------------

_SAMPLED: Mapping[str, str] = {
    "runs": "an accepted prefix of every length, then placeholders",
    "placeholders only": "nothing was sampled",
    "full": "everything was accepted",
    "id V at the end": "the last id is one that no request may have",
    "id V at the start": "the first id is",
    "gaps": "placeholders between ids",
    "largest id": "ids at the end of int32",
    "id -2": "a negative id that is no placeholder",
    "ids 0 and V-1": "both ends of the vocabulary",
}
NEXT_AXES: axes.Axes = {
    "sampled": tuple(_SAMPLED),
    "discarded": ("none", "some", "all", "first", "last"),
    "columns": (4, 1, 2, 3, 5),
    "block": ("just enough", "twice that"),
    "columns beyond": (0, 3),
    "backup ids": ("in the vocabulary", "-1"),
    "programs beyond": (0, 2),
    "dtype": (torch.int32, torch.int64),
    "vocabulary": (40, 1),
}


def _next_pool(row: Row, s: Stream) -> Pool:
    batch, drafts = axes.sized(row, BATCH, row["columns"] - 1)
    columns, vocabulary, kind = drafts + 1, row["vocabulary"], row["sampled"]
    ids = s.integers(0, vocabulary, (batch, columns), row["dtype"])
    if kind == "runs":
        ids[
            torch.arange(columns) >= torch.tensor([[(1, 3, 2, 4)[index % 4] % (columns + 1)] for index in range(batch)])
        ] = -1
    elif kind == "placeholders only":
        ids[:] = -1
    elif kind == "id V at the end":
        ids[:, -1] = vocabulary
    elif kind == "id V at the start":
        ids[:, 0] = vocabulary
    elif kind == "gaps":
        ids[:, ::2] = -1
    elif kind == "largest id":
        ids[1::2] = 2**31 - 1
    elif kind == "id -2":
        ids[:, -1] = -2
    elif kind == "ids 0 and V-1":
        ids[:, 0::2] = 0
        ids[:, 1::2] = vocabulary - 1
    whole = torch.full((batch, columns + row["columns beyond"]), 3, dtype=row["dtype"])
    whole[:, :columns] = ids
    discarded = {
        "none": [False] * batch,
        "some": [False, True, True, False],
        "all": [True] * batch,
        "first": [True, False, False, False],
        "last": [False, False, False, True],
    }[row["discarded"]]
    backup = s.integers(0, vocabulary, (batch,), torch.int32) if row["backup ids"] != "-1" else torch.full((batch,), -1)
    block = 1 << (columns - 1).bit_length()
    return {
        "sampled_token_ids_ptr": axes.guarded(whole, fill=3),
        "discard_request_mask_ptr": axes.guarded(torch.tensor(discarded), fill=True),
        "backup_next_token_ids_ptr": axes.guarded(backup.to(torch.int32), fill=_FILLED),
        "next_token_ids_ptr": _filled(batch),
        "valid_sampled_tokens_count_ptr": _filled(batch),
        "vocab_size": vocabulary,
        "num_sampled_tokens_per_req": columns,
        "num_reqs": batch,
        "stride_sampled_token_ids": whole.stride(0),
        "BLOCK_SIZE_TOKENS": block if row["block"] == "just enough" else 2 * block,
        "programs": batch + row["programs beyond"],
    }


def next_cases() -> Iterator[Case]:
    """Runs of accepted ids of every length, discarded requests in every place."""
    yield from cases_from(
        NEXT_AXES,
        _next_pool,
        name="v1.eagle_prepare_next_token_padded_kernel",
        contract=lambda row: row["sampled"] in ("runs", "placeholders only", "full", "ids 0 and V-1"),
        limit=80,
    )


# -- unconditional_to_conditional_rates ------------------------------------------------------------------------------

_RATES: Mapping[str, list[float]] = {
    "falling": [0.9, 0.5, 0.1],
    "one": [0.7],
    "no rate": [],
    "equal": [0.5, 0.5, 0.5],
    "certain": [1.0, 1.0],
    "zero at once": [0.0, 0.0],
    "falling to zero": [0.5, 0.0, 0.0],
    "zero, then not": [0.5, 0.0, 0.25],
    "rising": [0.1, 0.5, 0.9],
    "tiny": [2.0**-1022, 2.0**-1074],
    "inexact": [1 / 3, 0.1, 0.1 / 3],
    "integers": [1, 0, 0],
    "-0.0": [-0.0, 0.5],
    "NaN": [float("nan"), 0.5],
}


def _rates(size: shapes.Size) -> Row:
    """One rate a position, falling."""
    return {"rates": tuple(0.9**place for place in range(1, size.drafts + 1))}


def rate_cases() -> Iterator[Case]:
    """Acceptance rates by position; rates that rise cannot be."""
    outside = ("zero, then not", "rising", "-0.0", "NaN")
    yield from cases_from(
        {"rates": tuple(_RATES)},
        lambda row, s: {"rates": list(_RATES.get(row["rates"], row["rates"]))},
        name="v1.unconditional_to_conditional_rates",
        contract=lambda row: row["rates"] not in outside,
    )


TARGETS = (
    Target(
        name="v1.eagle_prepare_inputs_padded_kernel",
        symbols=(f"{MODULE}eagle_prepare_inputs_padded_kernel",),
        cases=inputs_cases,
        prepare=launcher("eagle_prepare_inputs_padded_kernel"),
        triton=True,
        rows=("token_indices_to_sample_ptr", "num_rejected_tokens_gpu_ptr"),
        shapes=shapes.of_cases(inputs_cases, "drafts", varies=False),
    ),
    Target(
        name="v1.eagle_prepare_next_token_padded_kernel",
        symbols=(f"{MODULE}eagle_prepare_next_token_padded_kernel",),
        cases=next_cases,
        prepare=launcher("eagle_prepare_next_token_padded_kernel"),
        triton=True,
        rows=("next_token_ids_ptr", "valid_sampled_tokens_count_ptr"),
        shapes=shapes.of_cases(next_cases, "vocabulary", "drafts"),
    ),
    Target(
        name="v1.unconditional_to_conditional_rates",
        symbols=(f"{MODULE}unconditional_to_conditional_rates",),
        cases=rate_cases,
        shapes=shapes.of_cases(rate_cases, "drafts", batches=(1,), also=_rates, varies=False),
    ),
)
