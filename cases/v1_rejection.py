"""V1 rejection sampling: draft tokens accepted or replaced against the target's logits or probabilities.

Requests have K draft tokens each (N in all), a vocabulary of V ids, and one bonus token. Row `i` of an [N, V] tensor
belongs to draft `i`. A draft of -1 is a placeholder: the kernels of some versions read before row 0 with it, so a
case whose probabilities are made inside the call never starts with one, and all others have guard rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from difftest.cases import axes, rejection_oracles, relations, shapes
from difftest.cases.axes import Row, Stream, cases_from
from difftest.cases.v1_metadata import METADATA as SAMPLING_METADATA
from difftest.cases.v1_metadata import PROCESSORS
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Invariant, Pool, Relation, Sampling, Shape, Target

MODULE = "vllm.v1.sample.rejection_sampler:"
GREEDY = f"{MODULE}GREEDY_TEMPERATURE"
APPLY_TEMPERATURE = "vllm.v1.sample.sampler:Sampler.apply_temperature"
BATCH = 3
MOST_DRAFTS = 3
VOCABULARY = 40

TEMPERATURES: Mapping[str, tuple[float, ...]] = {
    "mixed": (0.7, 0.0, 1.0),
    "random": (1.0, 0.5, 1.5),
    "greedy": (0.0,),
    "all zero, not said to be greedy": (0.0,),
    "greedy first": (0.0, 1.0, 1.0),
    "-0.0 on one": (1.0, -0.0, 0.7),
    "tiny on one": (1.0, 1e-6, 0.7),
}
"""Temperatures, given to the requests by turns. Runners pass no tensor at all when every request is greedy."""
UNUSUAL_TEMPERATURES = frozenset(("-0.0 on one", "tiny on one"))
"""Values that the front end does not let through."""


# -- pools: what all targets of this file share ----------------------------------------------------------------------


def cumulative(counts: Sequence[int]) -> torch.Tensor:
    """Inclusive cumulative sums, int32 [batch]."""
    return torch.tensor(list(itertools.accumulate(counts)), dtype=torch.int32)


def drafts(pattern: str, counts: Sequence[int], vocabulary: int, s: Stream, unguarded: bool) -> torch.Tensor:
    """Draft ids int32 [N]; `unguarded` keeps an id whose row index leaves the [N, V] tensor out of its ends."""
    ids: torch.Tensor = axes.draft_ids(pattern, counts, vocabulary, s)
    if unguarded and len(ids):
        if ids[0] < 0:
            ids[0] = 0
        if ids[-1] >= vocabulary:
            ids[-1] = 0
    return ids


def sampling_fields(temperatures: str, batch: int, seeds: str) -> Pool:
    """Fields of a SamplingMetadata with nothing but temperatures and seeds, as the runner passes them."""
    values = TEMPERATURES[temperatures]
    given = [values[row % len(values)] for row in range(batch)]
    return {
        "temperature": None if temperatures == "greedy" else torch.tensor(given),
        "all_greedy": temperatures == "greedy",
        "all_random": not any(value == 0 for value in given),
        "top_p": None,
        "top_k": None,
        "min_p": None,
        "generators": axes.seeds(seeds, batch),
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": torch.zeros(batch),
        "presence_penalties": torch.zeros(batch),
        "repetition_penalties": torch.ones(batch),
        "output_token_ids": [],
        "min_tokens": {},
        "logit_bias": [None] * batch,
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logprob_token_ids": None,
        "spec_token_ids": None,
        "thinking_budget_state_holder": None,
    }


def mark_greedy(arm: Arm, pool: Pool) -> None:
    """Write -1 for the temperature of greedy requests, in place, where the runner of this version did."""
    temperature: torch.Tensor | None = pool["temperature"]
    if temperature is None or not arm.has(GREEDY) or arm.get(GREEDY) != -1:
        return
    # A sampler that is told whether all requests are random divides by 1 where the temperature is 0.
    told = arm.has(APPLY_TEMPERATURE) and "all_random" in takes(arm.get(APPLY_TEMPERATURE))
    if not told:
        arm.note("greedy requests have temperature -1 in this version")
        temperature[temperature == 0] = -1.0


def metadata(arm: Arm, pool: Pool, **more: Any) -> Any:
    """The arm's SamplingMetadata out of a pool's fields. The fields are watched by their own names."""
    mark_greedy(arm, pool)
    processors = {"logitsprocs": arm.first(*PROCESSORS)()} if any(map(arm.has, PROCESSORS)) else {}
    made = arm.get(SAMPLING_METADATA)
    return made(**arm.bind(made, {**processors, **pool, **more}))


def require(function: Callable[..., Any], bound: Pool, pool: Pool, *names: str) -> None:
    """Refuse the case when it sets an argument that this version lacks: it has no such mode.

    Raises:
        ApiChange: naming the argument.
    """
    for name in names:
        if name not in bound and pool.get(name) is not None and pool[name] is not False:
            raise ApiChange(f"{getattr(function, 'fn', function).__qualname__} does not take {name}")


def target_logits(pattern: str, rows: int, vocabulary: int, s: Stream) -> torch.Tensor:
    """Logits float32 [rows, V]: a pattern of :data:`axes.LOGITS`, or nearly all mass on the last id."""
    known = "random" if pattern == "last id wins" else pattern
    out: torch.Tensor = axes.logits(known, rows, vocabulary, s)
    if pattern == "last id wins":
        out[:, -1] = 14.0
    return out


def draft_probabilities(pattern: str, rows: int, vocabulary: int, ids: torch.Tensor, s: Stream) -> torch.Tensor | None:
    """Draft probabilities float32 [rows, V], or None as for n-gram drafts."""
    if pattern == "none":
        return None
    known = (ids >= 0) & (ids < vocabulary)
    drafted = torch.arange(rows)[known], ids[known].long()
    if pattern == "one-hot at the draft":
        out = torch.zeros(rows, vocabulary)
        out[drafted] = 1.0
        return out
    probs: torch.Tensor = axes.probabilities("random" if "zero" in pattern else pattern, rows, vocabulary, s)
    if pattern == "zero at the draft":
        probs[drafted] = 0.0
    return probs


def row_of(space: axes.Axes, **given: Any) -> Row:
    """The plain row with some values in place; a name stands for its axis with spaces for underscores.

    Values are the axis's own objects, as :mod:`axes` knows them again by identity.
    """
    row: Row = axes.plain(space)
    for name, value in given.items():
        axis = name.replace("_", " ")
        row[axis] = next(own for own in space[axis] if own == value and type(own) is type(value))
    return row


def repeated(function: Callable[..., Any], steps: int) -> Callable[..., Any]:
    """The function, called once, or so many times with the same arguments (and so the same generators)."""
    if steps == 1:
        return function

    def step(**arguments: Any) -> list[Any]:
        return [function(**arguments) for _ in range(steps)]

    return step


# -- rejection_sample ------------------------------------------------------------------------------------------------

_RATES: Mapping[str, tuple[float, ...]] = {"mixed": (0.9, 0.5, 0.1), "never": (0.0,), "always": (1.0,)}
_LOGITS = (
    "random",
    "last id wins",
    "softmax tie",
    "near ties",
    "two maxima",
    "integer grid",
    "one-hot",
    "all equal",
    "-0.0",
    "bf16 grid",
    "-inf some",
    "-inf all but one",
    "wide range",
    "NaN last row",
    "-inf everywhere",
    "+inf once",
)
SAMPLE_AXES: axes.Axes = {
    "temperatures": tuple(TEMPERATURES),
    "draft probabilities": (
        "random",
        "none",
        "zero at the draft",
        "one-hot at the draft",
        "peaked",
        "all on the last id",
    ),
    "logits": _LOGITS,
    "drafts": ("random", "likely", "-1 middle", "-1 last", "-1 first", "-1 everywhere", "id V-1", "id V"),
    "counts": ("ragged", "full", "zero first", "zero last", "one each", "only last", "only first"),
    "seeds": axes.SEEDS,
    "vocabulary": (VOCABULARY, 2, 33, 1, 8193),
    "steps": (1, 2),
    "bonus ids": ("int32", "int64"),
    "batch": (BATCH, 1, 2, 5),
    "synthetic": (None, "mixed", "never", "always"),
    "fp64 noise": (False, True),
}


def inside(row: Row) -> bool:
    return (
        row.get("batch") != 0
        and row["logits"] not in axes.UNUSUAL_LOGITS
        and row.get("drafts") not in axes.UNUSUAL_DRAFT_IDS
        and row["temperatures"] not in UNUSUAL_TEMPERATURES
    )


def _sample_pool(row: Row, s: Stream) -> Pool:
    batch, vocabulary = row["batch"], row["vocabulary"]
    counts = axes.draft_counts(row["counts"], batch, MOST_DRAFTS if batch in (1, BATCH) else 2)
    rows = sum(counts)
    logits = target_logits(row["logits"], rows, vocabulary, s)
    if row["drafts"] == "likely":
        # Half of the drafts are the most likely id, so that acceptance runs on to the bonus token.
        ids = logits.nan_to_num().argmax(-1).to(torch.int32)
        ids[3::4] = (ids[3::4] + 1) % vocabulary
    else:
        ids = drafts(row["drafts"], counts, vocabulary, s, unguarded=True)
    pool: Pool = {
        "draft_token_ids": ids,
        "num_draft_tokens": counts,
        "max_spec_len": max(counts, default=0),
        "cu_num_draft_tokens": cumulative(counts),
        "draft_probs": draft_probabilities(row["draft probabilities"], rows, vocabulary, ids, s),
        "target_logits": logits,
        "bonus_token_ids": s.integers(0, vocabulary, (batch, 1), axes.IDS[row["bonus ids"]]),
        "use_fp64_gumbel": row["fp64 noise"],
        "steps": row["steps"],
        **sampling_fields(row["temperatures"], batch, row["seeds"]),
    }
    if row["synthetic"]:
        rates = _RATES[row["synthetic"]]
        pool["synthetic_mode"] = True
        pool["synthetic_conditional_rates"] = torch.tensor(
            [rates[min(position, len(rates) - 1)] for position in range(max(counts, default=0))]
        )
    return pool


def sample_cases() -> Iterator[Case]:
    """Each value alone, then combinations that matter together, then pairs."""
    name = "v1.rejection_sample"
    alone = axes.extremes(SAMPLE_AXES)
    together = [
        row_of(SAMPLE_AXES, drafts=ids, draft_probabilities=probs, logits=logits, counts="full")
        for ids in ("-1 middle", "-1 everywhere")
        for probs in ("none", "random")
        for logits in ("last id wins", "all equal")
    ]
    together += [
        row_of(SAMPLE_AXES, temperatures="greedy", logits=logits, drafts=ids, counts="full")
        for logits in ("softmax tie", "near ties", "two maxima")
        for ids in ("likely", "-1 middle")
    ]
    # Modes that came later, in one block, so that older versions still meet every pair of the rest.
    together += [
        row_of(SAMPLE_AXES, synthetic=rates, temperatures=temperatures, drafts=ids, seeds="all")
        for rates, temperatures, ids in (
            ("mixed", "greedy", "likely"),
            ("mixed", "random", "-1 middle"),
            ("always", "greedy", "-1 first"),
            ("always", "mixed", "-1 everywhere"),
            ("never", "random", "likely"),
        )
    ]
    together += [
        row_of(SAMPLE_AXES, fp64_noise=True, temperatures="random", draft_probabilities=probs)
        for probs in ("none", "peaked")
    ]
    # Pairs are met by two requests with small vocabularies: the rest would only take time.
    small = {**SAMPLE_AXES, "vocabulary": (VOCABULARY, 2), "batch": (2, 1), "synthetic": (None,)}
    small |= {"fp64 noise": (False,), "logits": _LOGITS[:12], "seeds": ("none", "all", "mixed")}
    rows = [*alone, *together, *axes.pairwise(small), {**axes.plain(SAMPLE_AXES), "batch": 0}]
    yield from cases_from(SAMPLE_AXES, _sample_pool, name=name, contract=inside, rows=rows)


def prepare_sample(arm: Arm, pool: Pool) -> Call:
    """`rejection_sample`; versions before `target_logits` get the softmax that their caller applied."""
    function = arm.get(f"{MODULE}rejection_sample")
    bound = arm.bind(function, {**pool, "sampling_metadata": metadata(arm, pool), "target_probs": None})
    require(function, bound, pool, "synthetic_conditional_rates", "use_fp64_gumbel")
    call = repeated(function, pool["steps"])
    if "target_probs" not in bound:
        return Call(call, kwargs=bound)
    bound["target_probs"] = _caller_probabilities(arm, pool)
    return Call(call, kwargs=bound, watch={"target_probs": bound["target_probs"]})


def _caller_probabilities(arm: Arm, pool: Pool) -> torch.Tensor:
    logits: torch.Tensor = pool["target_logits"]
    if pool["all_greedy"] and arm.has(f"{MODULE}compute_probs"):
        arm.note("target_probs is target_logits for all-greedy batches, as this version's compute_probs returned them")
        return logits
    arm.note("target_probs is softmax(target_logits), as this version's caller computed it")
    return logits.softmax(dim=-1, dtype=torch.float32)


# -- sample_recovered_tokens -----------------------------------------------------------------------------------------

RECOVERED_AXES: axes.Axes = {
    "draft probabilities": ("random", "none", "zero at the draft", "one-hot at the draft", "as the target"),
    "target probabilities": tuple(axes.PROBABILITIES),
    "drafts": ("random", *axes.DRAFT_IDS[1:]),
    "counts": ("ragged", "full", "zero first", "zero last", "one each", "only last"),
    "seeds": axes.SEEDS,
    "vocabulary": (VOCABULARY, 1, 2, 33, 8192, 8193),
    "steps": (1, 2),
    "fp64 noise": (False, True),
    "batch": (BATCH, 2, 1),
}


def _recovered_pool(row: Row, s: Stream) -> Pool:
    vocabulary, batch = row["vocabulary"], row["batch"]
    counts = axes.draft_counts(row["counts"], *axes.sized(row, batch, MOST_DRAFTS if batch == BATCH else 2))
    rows = sum(counts)
    ids = drafts(row["drafts"], counts, vocabulary, s, unguarded=False)
    target = axes.probabilities(row["target probabilities"], rows, vocabulary, s)
    same = row["draft probabilities"] == "as the target"
    probs = target.clone() if same else draft_probabilities(row["draft probabilities"], rows, vocabulary, ids, s)
    return {
        "max_spec_len": max(counts, default=0),
        "num_draft_tokens": counts,
        "cu_num_draft_tokens": cumulative(counts),
        "draft_token_ids": ids,
        "draft_probs": None if probs is None else axes.guarded(probs, fill=1.0),
        "target_probs": axes.guarded(target, fill=1.0),
        "use_fp64_gumbel": row["fp64 noise"],
        "steps": row["steps"],
        **sampling_fields("random", batch, row["seeds"]),
    }


def recovered_cases() -> Iterator[Case]:
    """Each value alone, then pairs, met by two requests with small vocabularies."""
    alone = axes.extremes(RECOVERED_AXES)
    small = {**RECOVERED_AXES, "vocabulary": (VOCABULARY, 2), "batch": (2,), "fp64 noise": (False,), "steps": (1,)}
    yield from cases_from(
        RECOVERED_AXES,
        _recovered_pool,
        name="v1.sample_recovered_tokens",
        contract=lambda row: (
            row["batch"] > 0
            and row["drafts"] not in axes.UNUSUAL_DRAFT_IDS
            and row["target probabilities"] not in axes.UNUSUAL_PROBABILITIES
        ),
        # An id so large reads far outside any guard row.
        allowed=lambda row: row["drafts"] != "largest id",
        rows=[*alone, *axes.pairwise(small), {**axes.plain(RECOVERED_AXES), "batch": 0}],
    )


def prepare_recovered(arm: Arm, pool: Pool) -> Call:
    function = arm.get(f"{MODULE}sample_recovered_tokens")
    more = {"sampling_metadata": metadata(arm, pool), "device": torch.device(arm.device)}
    bound = arm.bind(function, {**pool, **more})
    require(function, bound, pool, "use_fp64_gumbel")
    return Call(repeated(function, pool["steps"]), kwargs=bound)


def _sample_shape(batch: int, most: int, vocabulary: int, number: int = 0) -> Pool:
    """Drafts of an n-gram proposer, which has no probabilities; all requests draw at random, none has a seed."""
    counts = [most] * batch
    ids = shapes.token_ids((batch * most,), vocabulary, number, torch.int32)
    return {
        "draft_token_ids": ids,
        "num_draft_tokens": counts,
        "max_spec_len": most,
        "cu_num_draft_tokens": cumulative(counts),
        "draft_probs": None,
        "target_logits": shapes.logits(batch * most, vocabulary, number),
        "bonus_token_ids": shapes.token_ids((batch, 1), vocabulary, number, torch.int32),
        "use_fp64_gumbel": False,
        "steps": 1,
        **sampling_fields("random", batch, "none"),
    }


def _sample_shapes(name: str) -> Iterator[Shape]:
    """Batch by speculation by vocabulary, as far as one pool stays below 256 MB."""
    quick = name == "quick"
    for vocabulary in (151_936,) if quick else shapes.VOCABULARIES:
        for most in (3,) if quick else (1, 3, 5):
            for batch in (1, 16, 128) if quick else shapes.BATCHES:
                if batch * (most + 1) * vocabulary <= 2 * shapes.MOST:
                    vary = functools.partial(_sample_shape, batch, most, vocabulary)
                    drafts = "1 draft" if most == 1 else f"{most} drafts"
                    yield Shape(
                        f"batch {batch}, {drafts}, vocabulary {vocabulary}",
                        vary,
                        axes={"batch": batch, "max_spec_len": most, "vocabulary": vocabulary},
                        vary=vary,
                    )


# -- what holds of each call -----------------------------------------------------------------------------------------


def _possible(given: Pool, after: Pool, result: Any) -> str | None:
    """Ids, then placeholders; each id in the vocabulary and, but for the bonus, possible in its row."""
    logits, counts = given["target_logits"], given["num_draft_tokens"]
    vocab, start = logits.shape[1], 0
    for request, row in enumerate((result[0] if isinstance(result, list) else result).tolist()):
        ids = [token for token in row if token != -1]
        if row[: len(ids)] != ids or len(ids) > counts[request] + 1:
            return f"request {request} has {row} for {counts[request]} drafts"
        for place, token in enumerate(ids):
            if not 0 <= token < vocab:
                return f"request {request} has id {token} of {vocab}"
            weights = logits[start + place] if place < counts[request] and "synthetic_mode" not in given else None
            if weights is not None and weights[token] == -axes.INF and (weights > -axes.INF).any():
                return f"request {request} has id {token}, which is impossible in its row {place}"
        start += counts[request]
    return None


def _recovers(given: Pool, after: Pool, result: Any) -> str | None:
    """An id that the draft had too often is not recovered; where nothing is left, any id of the vocabulary will do."""
    target, draft = given["target_probs"], given["draft_probs"]
    ids = (result[0] if isinstance(result, list) else result).long()
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < target.shape[1]:
        return f"ids from {int(ids.min())} to {int(ids.max())} of {target.shape[1]}"
    if draft is None:
        left = target.clone()
        drafted = given["draft_token_ids"].long()
        known = (drafted >= 0) & (drafted < target.shape[1])
        left[torch.arange(len(drafted))[known], drafted[known]] = 0
    else:
        left = target - draft
    # A weight below the smallest normal number may become 0 on the way.
    wrong = (left > 2.0**-126).any(1) & (left.gather(1, ids[:, None]).reshape(-1) <= 0)
    return f"row {int(wrong.nonzero()[0])} recovers an id that has nothing left" if wrong.any() else None


def _reversed(pool: Pool) -> Pool | None:
    """The requests from the last to the first, with their drafts, where no draw depends on the order."""
    counts, size = pool["num_draft_tokens"], len(pool["num_draft_tokens"])
    own = (pool["all_greedy"] and "synthetic_mode" not in pool) or len(pool["generators"]) == size
    if size < 2 or pool["steps"] > 1 or not own:
        return None
    order = list(reversed(range(size)))
    rows = [sum(counts[:request]) + place for request in order for place in range(counts[request])]
    requests = ("num_draft_tokens", "bonus_token_ids", "temperature", "generators")
    return {
        **pool,
        **{name: relations.take(pool[name], rows) for name in ("draft_token_ids", "draft_probs", "target_logits")},
        **{name: relations.take(pool[name], order) for name in requests},
        "cu_num_draft_tokens": cumulative(counts[::-1]),
    }


def _reversed_alike(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
    said: str | None = relations.unlike(result.flip(0), other_result, "return")
    return said


def _greedy_with_other_seeds(pool: Pool) -> Pool | None:
    if not pool["all_greedy"] or "synthetic_mode" in pool or not pool["generators"]:
        return None
    return {"generators": relations.other_seeds(pool["generators"])}


def _sampling_pool(number: int) -> Pool:
    """Alike requests of two drafts over six ids; drafts are taken by turns, in the shares of their probabilities."""
    requests, most = 60, 2
    target = torch.tensor([[0.3, 0.1, 0.25, 0.05, 0.1, 0.2], [0.05, 0.35, 0.1, 0.2, 0.2, 0.1]])
    draft = torch.tensor([[0.2, 0.3, 0.1, 0.1, 0.2, 0.1], [0.1, 0.2, 0.2, 0.1, 0.1, 0.3]])
    turns = [[id_ for id_, share in enumerate(row.tolist()) for _ in range(round(10 * share))] for row in draft]
    ids = [turns[step][(7 * request + 3 * step) % 10] for request in range(requests) for step in range(most)]
    counts = [most] * requests
    return {
        "draft_token_ids": torch.tensor(ids, dtype=torch.int32),
        "num_draft_tokens": counts,
        "max_spec_len": most,
        "cu_num_draft_tokens": cumulative(counts),
        "draft_probs": draft.repeat(requests, 1),
        "target_logits": target.log().repeat(requests, 1),
        "bonus_token_ids": torch.zeros(requests, 1, dtype=torch.int32),
        "use_fp64_gumbel": False,
        "steps": 1,
        **sampling_fields("random", requests, "none"),
        "temperature": torch.ones(requests),
    }


def _sampling_recovered(number: int) -> Pool:
    """The same requests, of which each position is resampled."""
    pool = _sampling_pool(number)
    taken = ("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs", "steps")
    fields = sampling_fields("random", len(pool["num_draft_tokens"]), "none")
    target = pool["target_logits"].exp()
    return {**{name: pool[name] for name in taken}, "target_probs": target, "use_fp64_gumbel": False, **fields}


TARGETS = (
    Target(
        name="v1.rejection_sample",
        symbols=(f"{MODULE}rejection_sample",),
        cases=sample_cases,
        prepare=prepare_sample,
        oracle=rejection_oracles.rejection_sample,
        shapes=_sample_shapes,
        uses=(SAMPLING_METADATA, *PROCESSORS, GREEDY, APPLY_TEMPERATURE),
        triton=True,
        rows=("return", "bonus_token_ids"),
        sampling=Sampling(_sampling_pool, lambda returned: returned.numpy(), 6),
        invariants=(
            Invariant("a committed id is in the vocabulary and possible", _possible),
            relations.unchanged("draft_token_ids", "draft_probs", "bonus_token_ids", "cu_num_draft_tokens"),
        ),
        relations=(
            Relation("requests in another order have the same results", _reversed, _reversed_alike, every=30),
            relations.same_with("a greedy batch has no use for seeds", _greedy_with_other_seeds, every=30),
        ),
    ),
    Target(
        name="v1.sample_recovered_tokens",
        symbols=(f"{MODULE}sample_recovered_tokens",),
        cases=recovered_cases,
        prepare=prepare_recovered,
        uses=(SAMPLING_METADATA, *PROCESSORS, GREEDY),
        triton=True,
        sampling=Sampling(_sampling_recovered, lambda returned: returned.reshape(-1, 2).numpy(), 6),
        invariants=(
            Invariant("a recovered id is in the vocabulary and possible", _recovers),
            relations.unchanged("draft_token_ids", "draft_probs", "target_probs"),
        ),
        shapes=shapes.of_cases(recovered_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
)
