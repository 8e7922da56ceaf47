"""The Triton kernels of V1 rejection sampling, launched as they are, with guard rows around every buffer.

A kernel reads and writes by address, so an index of -1 or one past the end reaches the row before or after. Guard rows
hold what would be taken for real there (probability 1, a valid id); buffers are compared whole, guards included.
Noise is given, not drawn: at its ends, and where the acceptance test is a tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from difftest.cases import axes, rejection_oracles, shapes
from difftest.cases.axes import Row, Stream, cases_from
from difftest.cases.v1_rejection import (
    MODULE,
    VOCABULARY,
    cumulative,
    draft_probabilities,
    drafts,
    require,
    row_of,
)
from difftest.cases.v1_rejection_helpers import EXPAND_VALUES
from difftest.target import Arm, Call, Case, Invariant, Pool, Target

BATCH = 3
MOST_DRAFTS = 3
_FILLED = 7  # what output buffers hold before the launch, where the caller did not put placeholders
_COUNTS = ("full", "ragged", "zero first", "zero last", "one each", "none", "only last")
_RATES: Mapping[str, tuple[float, float, float]] = {
    "mixed": (0.9, 0.5, 0.1),
    "never": (0.0, 0.0, 0.0),
    "always": (1.0, 1.0, 1.0),
}


def launch(arm: Arm, pool: Pool, kernel: str, *later: str, grid: tuple[int, ...]) -> Call:
    """A launch of a kernel with what it asks for by name; `later` arguments refuse the case where they are missing."""
    found = arm.get(f"{MODULE}{kernel}")
    bound = arm.bind(found, pool)
    require(found, bound, pool, *later)
    return Call(found[grid], kwargs=bound)


def _output(batch: int, width: int) -> torch.Tensor:
    """[batch, width] placeholders with a guard row on both sides."""
    rows: torch.Tensor = axes.guarded(torch.full((batch, width), -1, dtype=torch.int32), fill=_FILLED)
    return rows


def _synthetic(row: Row, pool: Pool) -> None:
    rates = row["synthetic"]
    pool["SYNTHETIC_MODE"] = rates is not None
    pool["synthetic_conditional_rates_ptr"] = None if rates is None else torch.tensor(_RATES[rates])


def _is_greedy(pattern: str, batch: int) -> torch.Tensor | None:
    flags = {"some": (True, False, True), "others": (False, True, False), "all": (True,) * 3, "none": (False,) * 3}
    return None if pattern == "not said" else torch.tensor([flags[pattern][row % 3] for row in range(batch)])


# -- rejection_greedy_sample_kernel ----------------------------------------------------------------------------------

GREEDY_AXES: axes.Axes = {
    "drafts": ("as the argmax", *axes.DRAFT_IDS),
    "counts": _COUNTS,
    "greedy": ("not said", "some", "others", "all", "none"),
    "argmax": (torch.int64, torch.int32),
    "bonus ids": (torch.int32, torch.int64),
    "columns beyond": (0, 2),
    "synthetic": (None, "mixed", "never", "always"),
    "noise": ("random", "zero", "just below 1", "half"),
}


def _greedy_pool(row: Row, s: Stream) -> Pool:
    batch, most = axes.sized(row, BATCH, MOST_DRAFTS)
    counts = axes.draft_counts(row["counts"], batch, most)
    rows = sum(counts)
    vocabulary = row["size"].vocabulary if "size" in row else VOCABULARY
    argmax = s.integers(0, vocabulary, (rows,), row["argmax"])
    if row["drafts"] == "as the argmax":
        ids = argmax.to(torch.int32)
        # Request 0 accepts all, request 1 rejects its last draft, request 2 its second.
        for request, wrong in ((1, counts[1] - 1), (2, 1)) if batch > 2 else ():
            if 0 <= wrong < counts[request]:
                ids[sum(counts[:request]) + wrong] = (int(ids[sum(counts[:request]) + wrong]) + 1) % vocabulary
    else:
        ids = drafts(row["drafts"], counts, vocabulary, s, unguarded=False)
    width = most + row["columns beyond"]
    synthetic = row["synthetic"] is not None
    pool: Pool = {
        "output_token_ids_ptr": _output(batch, width + 1),
        "cu_num_draft_tokens_ptr": cumulative(counts),
        "draft_token_ids_ptr": axes.guarded(ids, fill=3),
        "target_argmax_ptr": axes.guarded(argmax, fill=3),
        "bonus_token_ids_ptr": axes.guarded(s.integers(0, vocabulary, (batch,), row["bonus ids"]), fill=5),
        "is_greedy_ptr": _is_greedy(row["greedy"], batch),
        "max_spec_len": width,
        "uniform_probs_ptr": axes.noise(row["noise"], (rows,), s, torch.float64) if synthetic else None,
    }
    _synthetic(row, pool)
    return pool


def _not_beyond(row: Row) -> bool:
    return row["drafts"] not in axes.UNUSUAL_DRAFT_IDS


def greedy_cases() -> Iterator[Case]:
    """Noise belongs to the synthetic mode only, which comes last."""
    common: axes.Axes = {**GREEDY_AXES, "synthetic": (None,), "noise": ("random",)}
    later: axes.Axes = {
        **GREEDY_AXES,
        "drafts": ("as the argmax", "-1 middle", "-1 everywhere"),
        "argmax": (torch.int64,),
    }
    rows = axes.extremes(common) + axes.pairwise(common, axes.extremes(common))
    rows += [row for row in axes.pairwise(later) if row["synthetic"]]
    yield from cases_from(
        GREEDY_AXES, _greedy_pool, name="v1.rejection_greedy_sample_kernel", contract=_not_beyond, rows=rows
    )


def prepare_greedy(arm: Arm, pool: Pool) -> Call:
    return launch(
        arm,
        pool,
        "rejection_greedy_sample_kernel",
        "synthetic_conditional_rates_ptr",
        grid=(len(pool["cu_num_draft_tokens_ptr"]),),
    )


# -- rejection_random_sample_kernel ----------------------------------------------------------------------------------

RANDOM_AXES: axes.Axes = {
    "drafts": axes.DRAFT_IDS,
    "draft probabilities": (
        "random",
        "none",
        "zero at the draft",
        "one-hot at the draft",
        "few levels",
        "as the target",
    ),
    "target probabilities": tuple(axes.PROBABILITIES),
    "noise": (*axes.NOISE, "the ratio itself", "just above the ratio"),
    "counts": _COUNTS,
    "greedy": ("none", "some", "others", "all"),
    "bonus ids": (torch.int32, torch.int64),
    "columns beyond": (0, 2),
    "synthetic": (None, "mixed", "never", "always"),
    "vocabulary": (VOCABULARY, 1, 2, 33),
}


def _ratio(ids: torch.Tensor, target: torch.Tensor, draft: torch.Tensor | None) -> torch.Tensor:
    """Target over draft probability of each draft token, float64 [N], clamped to [0, 1); 0.5 for ids not in range."""
    vocabulary = target.shape[1]
    known = (ids >= 0) & (ids < vocabulary)
    at = torch.arange(len(ids)), ids.long().clamp(0, vocabulary - 1)
    ratio = target[at] if draft is None else target[at] / draft[at]
    ratio = torch.where(known & ratio.isfinite(), ratio, 0.5)
    return ratio.double().clamp(0.0, 1.0 - 2.0**-53)


def _random_pool(row: Row, s: Stream) -> Pool:
    vocabulary = row["vocabulary"]
    batch, most = axes.sized(row, BATCH, MOST_DRAFTS)
    counts = axes.draft_counts(row["counts"], batch, most)
    rows = sum(counts)
    ids = drafts(row["drafts"], counts, vocabulary, s, unguarded=False)
    target = axes.probabilities(row["target probabilities"], rows, vocabulary, s)
    same = row["draft probabilities"] == "as the target"
    draft = target.clone() if same else draft_probabilities(row["draft probabilities"], rows, vocabulary, ids, s)
    if "ratio" in row["noise"]:
        uniform = _ratio(ids, target, draft)
        if row["noise"] == "just above the ratio":
            uniform = torch.nextafter(uniform, torch.ones_like(uniform)).clamp(max=1.0 - 2.0**-53)
    else:
        uniform = axes.noise(row["noise"], (rows,), s, torch.float64)
    width = most + row["columns beyond"]
    pool: Pool = {
        "output_token_ids_ptr": _output(batch, width + 1),
        "cu_num_draft_tokens_ptr": cumulative(counts),
        "draft_token_ids_ptr": axes.guarded(ids, fill=0),
        "draft_probs_ptr": None if draft is None else axes.guarded(draft, fill=1.0),
        "target_probs_ptr": axes.guarded(target, fill=1.0),
        "bonus_token_ids_ptr": axes.guarded(s.integers(0, vocabulary, (batch,), row["bonus ids"]), fill=0),
        "recovered_token_ids_ptr": axes.guarded(s.integers(0, vocabulary, (rows,), torch.int32), fill=0),
        "uniform_probs_ptr": axes.guarded(uniform, fill=0.5),
        "is_greedy_ptr": _is_greedy(row["greedy"], batch),
        "max_spec_len": width,
        "vocab_size": vocabulary,
        "NO_DRAFT_PROBS": draft is None,
    }
    _synthetic(row, pool)
    return pool


def random_cases() -> Iterator[Case]:
    """Placeholders with every kind of probabilities, ties of the acceptance test; the synthetic mode comes last."""
    common: axes.Axes = {**RANDOM_AXES, "synthetic": (None,)}
    single = axes.extremes(common)
    together = [
        row_of(RANDOM_AXES, drafts=ids, draft_probabilities=probs, target_probabilities=target)
        for ids in ("-1 first", "-1 middle", "-1 last", "-1 everywhere")
        for probs in ("none", "random")
        for target in ("mostly the last id", "all on the last id")
    ]
    ties = [
        row_of(RANDOM_AXES, noise=tie, draft_probabilities=probs, target_probabilities=target)
        for tie in ("the ratio itself", "just above the ratio", "zero")
        for probs in ("none", "few levels", "as the target")
        for target in ("few levels", "tail has none")
    ]
    later = [
        row_of(RANDOM_AXES, synthetic=rates, drafts=ids, noise=noise)
        for rates in ("mixed", "never", "always")
        for ids in ("random", "-1 middle", "-1 everywhere")
        for noise in ("random", "zero", "just below 1")
    ]
    narrow: axes.Axes = {**common, "vocabulary": (VOCABULARY, 2)}
    pairs = axes.pairwise(narrow, [row for row in [*single, *together, *ties] if row["vocabulary"] in (VOCABULARY, 2)])
    yield from cases_from(
        RANDOM_AXES,
        _random_pool,
        name="v1.rejection_random_sample_kernel",
        contract=lambda row: _not_beyond(row) and row["target probabilities"] not in axes.UNUSUAL_PROBABILITIES,
        # An id so large reads far outside any guard row.
        allowed=lambda row: row["drafts"] != "largest id" or row["synthetic"],
        rows=[*single, *together, *ties, *later, *pairs],
    )


def prepare_random(arm: Arm, pool: Pool) -> Call:
    return launch(
        arm,
        pool,
        "rejection_random_sample_kernel",
        "synthetic_conditional_rates_ptr",
        grid=(len(pool["cu_num_draft_tokens_ptr"]),),
    )


# -- sample_recovered_tokens_kernel ----------------------------------------------------------------------------------

KERNEL_BLOCKS = (32, 16, 1024, 8192)
RECOVERED_AXES: axes.Axes = {
    "draft probabilities": (
        "random",
        "none",
        "zero at the draft",
        "one-hot at the draft",
        "few levels",
        "as the target",
    ),
    "target probabilities": tuple(axes.PROBABILITIES),
    "noise": ("random", "near ties", "equal", "one very small", "one zero", "one infinite"),
    "drafts": axes.DRAFT_IDS,
    "counts": ("ragged", *(each for each in _COUNTS if each != "ragged")),
    "vocabulary": (VOCABULARY, 1, 2, 15, 16, 17, 33),
    "block": KERNEL_BLOCKS,
    "positions beyond": (0, 2),
    "fp64 noise": (False, True),
    "batch": (BATCH, 2),
}


def _exponential(pattern: str, weights: torch.Tensor, s: Stream) -> torch.Tensor:
    """Noise float32 of the shape of `weights` [batch, V]: positive numbers, as an exponential draw gives.

    `near ties` makes it proportional to the weights, so that weight over noise is the same for all ids up to rounding.
    """
    batch, vocabulary = weights.shape
    plain: torch.Tensor = s.uniform(batch, vocabulary) * 3 + 2.0**-10
    if pattern == "near ties":
        scale = s.uniform(batch, 1) + 1.0
        return torch.where(weights > 0, weights * scale, plain)
    if pattern == "equal":
        return torch.ones_like(plain)
    if pattern.startswith("one "):
        value = {"one very small": 2.0**-120, "one zero": 0.0, "one infinite": axes.INF}[pattern]
        plain[torch.arange(batch), s.integers(0, vocabulary, (batch,))] = value
    return plain


def _recovered_pool(row: Row, s: Stream) -> Pool:
    vocabulary, batch = row["vocabulary"], row["batch"]
    batch, most = axes.sized(row, batch, MOST_DRAFTS if batch == BATCH else 2)
    counts = axes.draft_counts(row["counts"], batch, most)
    rows = sum(counts)
    ids = drafts(row["drafts"], counts, vocabulary, s, unguarded=False)
    target = axes.probabilities(row["target probabilities"], rows, vocabulary, s)
    same = row["draft probabilities"] == "as the target"
    draft = target.clone() if same else draft_probabilities(row["draft probabilities"], rows, vocabulary, ids, s)
    left = target if draft is None else (target - draft).clamp(min=0)
    starts = [min(sum(counts[:request]), max(rows - 1, 0)) for request in range(batch)]
    weights = left[starts] if rows else torch.ones(batch, vocabulary)
    noise = _exponential(row["noise"], weights, s)
    if row["fp64 noise"]:
        noise = noise.double()
    pool: Pool = {
        "output_token_ids_ptr": axes.guarded(torch.full((rows,), _FILLED, dtype=torch.int32), fill=_FILLED),
        "cu_num_draft_tokens_ptr": cumulative(counts),
        "draft_token_ids_ptr": axes.guarded(ids, fill=0),
        "draft_probs_ptr": None if draft is None else axes.guarded(draft, fill=1.0),
        "target_probs_ptr": axes.guarded(target, fill=1.0),
        "q_ptr": axes.guarded(noise, fill=2.0**-100),
        "vocab_size": vocabulary,
        "positions": most + row["positions beyond"],
        "NO_DRAFT_PROBS": draft is None,
        "BLOCK_SIZE": row["block"],
        "PADDED_VOCAB_SIZE": 1 << (vocabulary - 1).bit_length(),
    }
    if row["fp64 noise"]:
        pool["USE_FP64_GUMBEL"] = True
    return pool


def recovered_cases() -> Iterator[Case]:
    """Noise that ties, with every kind of probabilities; blocks smaller than the vocabulary; fp64 noise comes last."""
    common: axes.Axes = {**RECOVERED_AXES, "fp64 noise": (False,)}
    single = axes.extremes(common)
    together = [
        row_of(RECOVERED_AXES, noise="near ties", draft_probabilities=probs, target_probabilities=target, block=block)
        for probs in ("none", "random")
        for target in ("random", "few levels", "peaked", "most have none")
        for block in (16, 1024)
    ]
    tails = [
        row_of(RECOVERED_AXES, draft_probabilities="none", target_probabilities=target, vocabulary=vocabulary)
        for target in ("all on id 0", "tail has none", "all zero", "all on the last id")
        for vocabulary in (2, 15, 17, 33)
    ]
    # A placeholder keeps no id from being recovered, the last one included, which it is as an index from the end; and
    # with all ids left and all below zero, what lies beyond them is larger.
    tails += [
        row_of(RECOVERED_AXES, draft_probabilities="none", target_probabilities=target, drafts=ids)
        for target in ("all on the last id", "below zero")
        for ids in ("-1 first", "-1 last", "-1 everywhere")
    ]
    later = [row_of(RECOVERED_AXES, fp64_noise=True, noise=noise) for noise in ("random", "near ties", "one zero")]
    # Pairs are met by two requests: a third would only take time.
    narrow: axes.Axes = {**common, "vocabulary": (VOCABULARY, 2, 17), "batch": (2,)}
    pairs = axes.pairwise(narrow)
    yield from cases_from(
        RECOVERED_AXES,
        _recovered_pool,
        name="v1.sample_recovered_tokens_kernel",
        contract=lambda row: (
            _not_beyond(row)
            and row["target probabilities"] not in axes.UNUSUAL_PROBABILITIES
            and row["noise"] not in ("one zero", "one infinite")
        ),
        # An id so large is written to by some versions, far outside any guard row.
        allowed=lambda row: row["drafts"] != "largest id",
        rows=[*single, *together, *tails, *later, *pairs],
    )


def prepare_recovered(arm: Arm, pool: Pool) -> Call:
    """Versions whose kernel multiplies get the reciprocal of the noise, as their caller computes it."""
    noise: torch.Tensor = pool["q_ptr"]
    given = dict(pool)
    kernel = arm.get(f"{MODULE}sample_recovered_tokens_kernel")
    if "inv_q_ptr" in arm.bind(kernel, {**pool, "inv_q_ptr": None, "USE_FP64_GUMBEL": None}):
        arm.note("inv_q_ptr is the reciprocal of the noise, as this version's caller computes it")
        given["inv_q_ptr"] = axes.guarded(noise.reciprocal(), fill=2.0**100)
    if "USE_FP64_GUMBEL" not in pool:
        given["USE_FP64_GUMBEL"] = False
    grid = (len(pool["cu_num_draft_tokens_ptr"]), pool["positions"])
    return launch(arm, given, "sample_recovered_tokens_kernel", "USE_FP64_GUMBEL", grid=grid)


# -- expand_kernel ---------------------------------------------------------------------------------------------------

EXPAND_AXES: axes.Axes = {
    "dtype": (torch.float32, torch.int32, torch.int64, torch.float64, torch.bfloat16, torch.float16),
    "values": tuple(EXPAND_VALUES),
    "counts": _COUNTS,
    "replaced by": ((0, 1), (0, 0), (0, -1), (3, 0)),
    "block": (128, 4, 2),
    "cumulative counts": (torch.int32, torch.int64),
}


def _expand_pool(row: Row, s: Stream) -> Pool:
    batch, most = axes.sized(row, BATCH, MOST_DRAFTS)
    counts = axes.draft_counts(row["counts"], batch, most)
    values, dtype = EXPAND_VALUES[row["values"]], row["dtype"]
    given: list[Any] = [values[index % len(values)] for index in range(batch)]
    source = torch.tensor(given if dtype.is_floating_point else [int(value) for value in given], dtype=dtype)
    replace_from, replace_to = row["replaced by"]
    return {
        "output_ptr": axes.guarded(torch.full((sum(counts),), 9).to(dtype), fill=9),
        "input_ptr": axes.guarded(source),
        "cu_num_tokens_ptr": cumulative(counts).to(row["cumulative counts"]),
        "replace_from": replace_from,
        "replace_to": replace_to,
        "MAX_NUM_TOKENS": row["block"],
    }


def expand_cases() -> Iterator[Case]:
    """A block smaller than a request's tokens leaves the rest as it is, which no caller does."""
    yield from cases_from(
        EXPAND_AXES,
        _expand_pool,
        name="v1.expand_kernel",
        contract=lambda row: row["block"] > 2 and row["values"] != "NaN and inf",
        allowed=lambda row: row["values"] != "NaN and inf" or row["dtype"].is_floating_point,
    )


def prepare_expand(arm: Arm, pool: Pool) -> Call:
    return launch(arm, pool, "expand_kernel", grid=(len(pool["cu_num_tokens_ptr"]),))


def _accepts(given: Pool, after: Pool, result: Any) -> str | None:
    """A draft is in the output although the target gives it no probability; recovered ids are given."""
    ends, ids = given["cu_num_draft_tokens_ptr"].tolist(), given["draft_token_ids_ptr"].tolist()
    target, recovered = given["target_probs_ptr"], given["recovered_token_ids_ptr"].tolist()
    if given["SYNTHETIC_MODE"]:
        return None
    for request, row in enumerate(after["output_token_ids_ptr"].tolist()):
        start = ends[request - 1] if request else 0
        for place in range(start, ends[request]):
            token = row[place - start]
            if token == ids[place] != recovered[place] and token >= 0 and target[place, token] == 0:
                return f"request {request} accepts id {token}, which has probability 0"
    return None


def _recovers_known(given: Pool, after: Pool, result: Any) -> str | None:
    ids = after["output_token_ids_ptr"].tolist()
    beyond = [row for row, token in enumerate(ids) if token != _FILLED and not 0 <= token < given["vocab_size"]]
    return f"row {beyond[0]} recovers id {ids[beyond[0]]} of {given['vocab_size']}" if beyond else None


TARGETS = (
    Target(
        name="v1.rejection_greedy_sample_kernel",
        symbols=(f"{MODULE}rejection_greedy_sample_kernel",),
        cases=greedy_cases,
        prepare=prepare_greedy,
        oracle=rejection_oracles.greedy_kernel,
        triton=True,
        rows=("output_token_ids_ptr",),
        shapes=shapes.of_cases(greedy_cases, "vocabulary", "drafts"),
    ),
    Target(
        name="v1.rejection_random_sample_kernel",
        symbols=(f"{MODULE}rejection_random_sample_kernel",),
        cases=random_cases,
        prepare=prepare_random,
        oracle=rejection_oracles.random_kernel,
        triton=True,
        rows=("output_token_ids_ptr",),
        invariants=(Invariant("an accepted draft is possible", _accepts),),
        shapes=shapes.of_cases(random_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
    Target(
        name="v1.sample_recovered_tokens_kernel",
        symbols=(f"{MODULE}sample_recovered_tokens_kernel",),
        cases=recovered_cases,
        prepare=prepare_recovered,
        invariants=(Invariant("a recovered id is in the vocabulary", _recovers_known),),
        oracle=rejection_oracles.recovered_kernel,
        triton=True,
        shapes=shapes.of_cases(recovered_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
    Target(
        name="v1.expand_kernel",
        symbols=(f"{MODULE}expand_kernel",),
        cases=expand_cases,
        prepare=prepare_expand,
        triton=True,
        rows=("input_ptr",),
        shapes=shapes.of_cases(expand_cases, "drafts", varies=False),
    ),
)
