"""V1 `RejectionSampler`: the whole step after the target model ran, and the parts of it that have a name.

The logits have one row for each draft token and one more for the bonus token of each request, request by request:
[N + B, V]. `target_logits_indices` and `bonus_logits_indices` say which is which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import Row, Stream, cases_from
from difftest.cases.v1_metadata import (
    LOGPROBS_MODE,
    METADATA,
    PLATFORM_USER,
    USES,
    logprobs_mode,
    on_platform,
    platform,
    sampling_metadata,
)
from difftest.cases.v1_rejection import (
    MODULE,
    TEMPERATURES,
    UNUSUAL_TEMPERATURES,
    cumulative,
    draft_probabilities,
    drafts,
    mark_greedy,
    repeated,
    row_of,
    sampling_fields,
    target_logits,
)
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

CLASS = f"{MODULE}RejectionSampler"
SAMPLER = "vllm.v1.sample.sampler:Sampler"
SPEC_METADATA = "vllm.v1.spec_decode.metadata:SpecDecodeMetadata"
_INPUT_BATCH = "vllm.v1.worker.gpu_input_batch:InputBatch"
RUNNER_METADATA = f"{_INPUT_BATCH}._make_sampling_metadata"
RUNNER_LEAVES_OUT = f"{_INPUT_BATCH}.update_async_output_token_ids"
"""Came in the change from which on the runner passes an empty list where no request needs its output tokens."""
BATCH = 3
MOST_DRAFTS = 2
VOCABULARY = 24

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
PENALTIES: Mapping[str, tuple[axes.Spread, axes.Spread, axes.Spread]] = {
    # repetition, presence, frequency
    "mixed": (axes.REPETITION[1], axes.PRESENCE[1], axes.FREQUENCY[1]),
    "repetition only": (axes.Spread("1.3", (1.3,)), axes.PRESENCE[0], axes.FREQUENCY[0]),
    "presence only": (axes.REPETITION[0], axes.Spread("0.7", (0.7,)), axes.FREQUENCY[0]),
    "frequency only": (axes.REPETITION[0], axes.PRESENCE[0], axes.Spread("0.3", (0.3,))),
    "on the first": tuple(each[2] for each in (axes.REPETITION, axes.PRESENCE, axes.FREQUENCY)),
    "on the last": tuple(each[4] for each in (axes.REPETITION, axes.PRESENCE, axes.FREQUENCY)),
    "all off": (axes.REPETITION[0], axes.PRESENCE[0], axes.FREQUENCY[0]),
}


# -- pools -----------------------------------------------------------------------------------------------------------


def split(ids: torch.Tensor, counts: Sequence[int]) -> list[list[int]]:
    """Draft ids by request, as the runner keeps them beside the flat tensor."""
    flat, lists, start = ids.tolist(), [], 0
    for count in counts:
        lists.append(flat[start : start + count])
        start += count
    return lists


def spec_fields(ids: torch.Tensor, counts: Sequence[int]) -> Pool:
    """Fields of SpecDecodeMetadata; indices int32, as the runner computes them."""
    sampled = [count + 1 for count in counts]
    last = cumulative(sampled) - 1
    every = torch.arange(sum(sampled), dtype=torch.int32)
    return {
        "draft_token_ids": ids,
        "num_draft_tokens": list(counts),
        "cu_num_draft_tokens": cumulative(counts),
        "cu_num_sampled_tokens": cumulative(sampled),
        "target_logits_indices": every[~torch.isin(every, last)],
        "bonus_logits_indices": last,
        "logits_indices": every,
    }


def allowed_mask(pattern: str, batch: int, vocabulary: int, s: Stream) -> torch.Tensor | None:
    """True where an id is not allowed, bool [batch, V]; None when no request restricts its ids."""
    if pattern == "none":
        return None
    mask: torch.Tensor = s.integers(0, 3, (batch, vocabulary)) == 0
    if pattern == "on the middle":
        mask[torch.arange(batch) != batch // 2] = False
    elif pattern == "all but one":
        mask = torch.ones(batch, vocabulary, dtype=torch.bool)
        mask[torch.arange(batch), s.integers(0, vocabulary, (batch,))] = False
    elif pattern == "no id at all":
        mask[batch // 2] = True
    return mask


def bad_words(
    pattern: str, outputs: Sequence[Sequence[int]], given: Sequence[Sequence[int]], vocabulary: int
) -> dict[int, list[list[int]]]:
    """Bad words by request. Their prefixes end in what was committed, in the drafts, or straddle the two."""
    words: dict[int, list[list[int]]] = {}
    if pattern == "none":
        return words
    for request, (output, spec) in enumerate(zip(outputs, given, strict=True)):
        if pattern == "on the last" and request != len(outputs) - 1:
            continue
        # Placeholders are no part of a word.
        past = [token for token in output if 0 <= token < vocabulary]
        ahead = [token for token in spec if 0 <= token < vocabulary]
        found = [[request + 1]]
        if pattern != "single ids":
            found += [[*past[-1:], 5], [*past[-2:], 6], [*ahead[:1], 7], [*past[-1:], *ahead[:1], 8]]
            found += [[*past[-2:], *ahead, 9], [0, 0, 0, 0, 0, 0, 0, 0, 3], [vocabulary - 1]]
        if pattern == "beyond the vocabulary":
            found += [[vocabulary], [-1], [*past[-1:], vocabulary + 1]]
        words[request] = found
    return words


def feature_fields(row: Row, counts: Sequence[int], ids: torch.Tensor, vocabulary: int, s: Stream) -> Pool:
    """What of penalties, bad words, allowed ids and min tokens a case has, as fields of SamplingMetadata.

    The runner keeps output tokens only for a batch that has penalties or bad words; else the list is empty. Where the
    runner of a version did otherwise, :func:`make_metadata` does, too.
    """
    batch = len(counts)
    given = split(ids, counts)
    outputs: list[list[int]] = axes.histories(row["output tokens"], batch, vocabulary, s)
    fields: Pool = {
        "output_token_ids": outputs,
        "spec_token_ids": given,
        "allowed_token_ids_mask": allowed_mask(row["allowed ids"], batch, vocabulary, s),
        "bad_words_token_ids": bad_words(row["bad words"], outputs or [[]] * batch, given, vocabulary),
    }
    if row["penalties"] != "none":
        repetition, presence, frequency = PENALTIES[row["penalties"]]
        prompt = s.integers(0, vocabulary, (batch, 5))
        prompt[:, 3:] = vocabulary
        fields |= {
            "no_penalties": False,
            "prompt_token_ids": prompt,
            "repetition_penalties": repetition.tensor(batch),
            "presence_penalties": presence.tensor(batch),
            "frequency_penalties": frequency.tensor(batch),
        }
    if row["min tokens"] != "none":
        lengths = [len(output) for output in (outputs or [[]] * batch)]
        ahead = {"far": 10, "within the drafts": 1, "reached": 0}[row["min tokens"]]
        fields["requests"] = [
            {} if request == 1 else {"min_tokens": length + ahead, "stop_token_ids": [2, vocabulary - 1 - request]}
            for request, length in enumerate(lengths)
        ]
    return fields


FEATURE_AXES: axes.Axes = {
    "allowed ids": ("none", "some", "on the middle", "all but one", "no id at all"),
    "penalties": ("none", *PENALTIES),
    "bad words": ("none", "straddling", "single ids", "on the last", "beyond the vocabulary"),
    "output tokens": ("no list at all", *(each for each in axes.HISTORIES if each != "no list at all")),
    "min tokens": ("none", "far", "within the drafts", "reached"),
}


def features_fit(row: Row) -> bool:
    """Penalties and bad words need output tokens."""
    needed = row["penalties"] != "none" or row["bad words"] != "none"
    return row["output tokens"] != "no list at all" or not needed


def features_usual(row: Row) -> bool:
    """Nothing that no request can ask for, and no history that no engine can have."""
    return (
        row["allowed ids"] != "no id at all"
        and row["bad words"] != "beyond the vocabulary"
        and row["output tokens"] not in axes.UNUSUAL_HISTORIES
        and row["drafts"] not in axes.UNUSUAL_DRAFT_IDS
    )


# -- objects of the arm ----------------------------------------------------------------------------------------------


def make_sampler(arm: Arm, pool: Pool) -> Any:
    """The arm's Sampler, in the logprobs mode of the pool."""
    cls = arm.get(SAMPLER)
    fields = {"use_fp64_gumbel": pool.get("use_fp64_gumbel", False)}
    if "mode" in pool:
        fields["logprobs_mode"] = logprobs_mode(arm, pool["mode"])
    bound = arm.bind(cls, fields)
    if fields["use_fp64_gumbel"] and "use_fp64_gumbel" not in bound:
        raise ApiChange("Sampler does not take use_fp64_gumbel")
    if pool.get("mode", "raw_logprobs") != "raw_logprobs" and "logprobs_mode" not in bound:
        raise ApiChange("Sampler does not take logprobs_mode")
    return cls(**bound)


def make_rejection_sampler(arm: Arm, pool: Pool) -> Any:
    """The arm's RejectionSampler over its own Sampler, made while the platform is the pool's."""
    cls = arm.get(CLASS)
    with platform(arm, pool.get("platform", "accelerator")):
        fields = {"sampler": make_sampler(arm, pool), "spec_config": None, "device": torch.device(arm.device)}
        if rates := pool.get("acceptance rates"):
            fields["spec_config"] = SimpleNamespace(
                rejection_sample_method="synthetic", synthetic_acceptance_rates=list(rates)
            )
        bound = arm.bind(cls, fields)
        if fields["spec_config"] is not None and "spec_config" not in bound:
            raise ApiChange("RejectionSampler does not take spec_config")
        return cls(**bound)


def make_metadata(arm: Arm, pool: Pool) -> Any:
    """The arm's SamplingMetadata; versions without `spec_token_ids` do without."""
    mark_greedy(arm, pool)
    names = [field.name for field in dataclasses.fields(arm.get(METADATA))]
    if "spec_token_ids" not in names:
        arm.note("SamplingMetadata of this version has no spec_token_ids")
        pool = {**pool, "spec_token_ids": None}
    if not pool["output_token_ids"] and arm.has(RUNNER_METADATA) and not arm.has(RUNNER_LEAVES_OUT):
        arm.note("output tokens are a list for each request, as this version's runner always passed them")
        pool = {**pool, "output_token_ids": [[] for _ in pool["num_draft_tokens"]]}
    return sampling_metadata(arm, pool)


def make_spec_metadata(arm: Arm, pool: Pool) -> Any:
    """The arm's SpecDecodeMetadata."""
    cls = arm.get(SPEC_METADATA)
    return cls(**arm.bind(cls, pool))


# -- apply_logits_processors -----------------------------------------------------------------------------------------

PROCESSOR_AXES: axes.Axes = {
    **FEATURE_AXES,
    "counts": ("ragged", "full", "zero first", "zero last", "one each", "only last", "none"),
    "drafts": ("random", "-1 last", "-1 first", "-1 everywhere", "id V-1", "id V"),
    "logits": ("random", "integer grid", "-0.0", "-inf some", "all equal", "NaN at the end"),
    "vocabulary": (VOCABULARY, 12, 65),
    "batch": (BATCH, 1, 5),
}


def _processor_pool(row: Row, s: Stream) -> Pool:
    batch, vocabulary = row["batch"], row["vocabulary"]
    counts = axes.draft_counts(row["counts"], *axes.sized(row, batch, 3))
    ids = drafts(row["drafts"], counts, vocabulary, s, unguarded=False)
    return {
        "logits": axes.logits(row["logits"], sum(counts), vocabulary, s),
        **spec_fields(ids, counts),
        **sampling_fields("mixed", batch, "none"),
        **feature_fields(row, counts, ids, vocabulary, s),
    }


def processor_cases() -> Iterator[Case]:
    """Each feature on all requests and on one, alone and in pairs, with histories of every kind."""
    space = PROCESSOR_AXES
    single = axes.extremes(space)
    together = [
        row_of(space, penalties=penalties, bad_words=words, output_tokens=outputs)
        for penalties, words in (("mixed", "none"), ("none", "straddling"), ("on the last", "on the last"))
        for outputs in FEATURE_AXES["output tokens"][1:]
    ]
    together += [row_of(space, penalties=each, output_tokens="ragged") for each in PENALTIES]
    together += [row_of(space, bad_words=each, output_tokens="ragged") for each in FEATURE_AXES["bad words"][1:]]
    together += [
        row_of(space, bad_words="straddling", output_tokens="ragged", counts=each) for each in space["counts"][1:]
    ]
    pairs = axes.pairwise(space, single + together)
    yield from cases_from(
        space,
        _processor_pool,
        name="v1.rejection_apply_logits_processors",
        contract=lambda row: features_usual(row) and row["logits"] not in axes.UNUSUAL_LOGITS,
        allowed=features_fit,
        rows=[*single, *together, *pairs],
    )


def prepare_processors(arm: Arm, pool: Pool) -> Call:
    function = make_rejection_sampler(arm, pool).apply_logits_processors
    more = {"sampling_metadata": make_metadata(arm, pool), "metadata": make_spec_metadata(arm, pool)}
    return Call(function, kwargs=arm.bind(function, {**pool, **more}))


# -- _get_logprobs_tensors -------------------------------------------------------------------------------------------

LOGPROB_AXES: axes.Axes = {
    "logprobs": (2, 0, 1, VOCABULARY),
    "mode": MODES,
    "sampled": ("runs", "all accepted", "all rejected at once", "placeholders only", "two maxima"),
    "counts": ("ragged", "full", "zero first", "zero last", "one each", "none"),
    "logits": ("random", "integer grid", "all equal", "-0.0", "two maxima", "-inf some", "NaN last row", "wide range"),
    "dtype": tuple(axes.FLOATS),
}


def _logprob_pool(row: Row, s: Stream) -> Pool:
    batch, most = axes.sized(row, BATCH, MOST_DRAFTS)
    vocabulary = row["size"].vocabulary if "size" in row else VOCABULARY
    counts = axes.draft_counts(row["counts"], batch, most)
    rows, width = sum(counts) + batch, max(counts) + 1
    fields = spec_fields(drafts("random", counts, vocabulary, s, unguarded=False), counts)
    logits = axes.logits(row["logits"], rows, vocabulary, s, axes.FLOATS[row["dtype"]])
    processed = axes.logits("random", rows, vocabulary, s)
    sampled = s.integers(0, vocabulary, (batch, width), torch.int32)
    if row["sampled"] == "two maxima":
        sampled[:] = vocabulary - 1
    kept = {"all accepted": counts, "all rejected at once": [0] * batch, "placeholders only": [-1] * batch}.get(
        row["sampled"], [min(request, count) for request, count in enumerate(counts)]
    )
    sampled[torch.arange(width) > torch.tensor(kept)[:, None]] = -1
    return {
        "max_num_logprobs": row["logprobs"],
        "mode": row["mode"],
        "logits": logits,
        "target_logits": processed[fields["target_logits_indices"]],
        "bonus_logits": processed[fields["bonus_logits_indices"]],
        "sampled_token_ids": sampled,
        **fields,
    }


def logprob_cases() -> Iterator[Case]:
    """Every mode with every number of logprobs, and tokens sampled up to every position."""
    yield from cases_from(
        LOGPROB_AXES,
        _logprob_pool,
        name="v1.rejection_logprobs",
        contract=lambda row: row["logits"] not in axes.UNUSUAL_LOGITS,
    )


def prepare_logprobs(arm: Arm, pool: Pool) -> Call:
    function = make_rejection_sampler(arm, pool)._get_logprobs_tensors
    return Call(function, kwargs=arm.bind(function, {**pool, "metadata": make_spec_metadata(arm, pool)}))


# -- forward ---------------------------------------------------------------------------------------------------------

FORWARD_AXES: axes.Axes = {
    "temperatures": tuple(TEMPERATURES),
    "draft probabilities": ("random", "none", "zero at the draft", "peaked"),
    "drafts": ("likely", "random", "-1 middle", "-1 last", "-1 everywhere"),
    "counts": ("ragged", "full", "zero first", "zero last", "one each"),
    "logits": ("random", "softmax tie", "integer grid", "last id wins", "two maxima", "-inf some", "NaN last row"),
    "dtype": ("float32", "bfloat16", "float16"),
    "seeds": ("mixed", "none", "all", "last"),
    "logprobs": (None, 0, 3),
    "mode": MODES,
    **FEATURE_AXES,
    "steps": (1, 2),
    "top-k and top-p": (False, True),
    "acceptance rates": (None, (0.8, 0.4)),
    "fp64 noise": (False, True),
    "platform": ("accelerator", "cpu"),
}


def _forward_pool(row: Row, s: Stream) -> Pool:
    batch, most = axes.sized(row, BATCH, MOST_DRAFTS)
    vocabulary = row["size"].vocabulary if "size" in row else VOCABULARY
    counts = axes.draft_counts(row["counts"], batch, most)
    rows = sum(counts)
    logits = target_logits(row["logits"], rows + batch, vocabulary, s).to(axes.FLOATS[row["dtype"]])
    if row["drafts"] == "likely":
        drafted = spec_fields(torch.zeros(rows, dtype=torch.int32), counts)["target_logits_indices"]
        ids = logits[drafted].nan_to_num().argmax(-1).to(torch.int32)
        ids[2::3] = (ids[2::3] + 1) % vocabulary
    else:
        ids = drafts(row["drafts"], counts, vocabulary, s, unguarded=True)
    pool: Pool = {
        "draft_probs": draft_probabilities(row["draft probabilities"], rows, vocabulary, ids, s),
        "logits": logits,
        "mode": row["mode"],
        "use_fp64_gumbel": row["fp64 noise"],
        "acceptance rates": row["acceptance rates"],
        "steps": row["steps"],
        "platform": row["platform"],
        **spec_fields(ids, counts),
        **sampling_fields(row["temperatures"], batch, row["seeds"]),
        **feature_fields(row, counts, ids, vocabulary, s),
        "max_num_logprobs": row["logprobs"],
    }
    if row["top-k and top-p"]:
        pool["top_k"] = axes.TOP_K[1].tensor(batch, torch.int32, vocabulary)
        pool["top_p"] = axes.TOP_P[1].tensor(batch)
    return pool


def forward_cases() -> Iterator[Case]:
    """Each value alone, features and logprobs in the combinations that a request can ask for, then pairs."""
    space = FORWARD_AXES
    single = [row for row in axes.extremes(space) if features_fit(row)]
    # Empty output tokens are what the runner passes when no request needs them.
    together = [
        row_of(space, allowed_ids=each, temperatures=temperatures)
        for each in ("some", "on the middle")
        for temperatures in ("greedy", "random")
    ]
    together += [
        row_of(space, logprobs=3, mode=mode, temperatures=temperatures)
        for mode in MODES
        for temperatures in ("greedy", "mixed")
    ]
    together += [
        row_of(space, penalties="mixed", output_tokens="ragged", logprobs=3, mode=mode, dtype=dtype)
        for mode in MODES
        for dtype in space["dtype"][1:]
    ]
    together += [
        row_of(space, penalties="mixed", output_tokens="ragged", logprobs=3, mode="processed_logprobs"),
        row_of(space, penalties="on the last", output_tokens="trailing -1", drafts="-1 last"),
        row_of(space, bad_words="straddling", output_tokens="ragged", counts="full"),
        row_of(space, logits="softmax tie", temperatures="greedy", counts="full"),
        row_of(space, drafts="-1 middle", logits="last id wins", draft_probabilities="none", counts="full"),
        row_of(space, drafts="-1 everywhere", logits="last id wins", counts="full", temperatures="random"),
    ]
    kept = ("temperatures", "draft probabilities", "drafts", "counts", "logits", "seeds", "logprobs", "allowed ids")
    narrow: axes.Axes = {name: values if name in kept else values[:1] for name, values in space.items()}
    pairs = axes.pairwise(
        narrow, [row for row in single if all(row[n] is narrow[n][0] for n in space if n not in kept)]
    )
    yield from _forward_rows(space, [*single, *together, *pairs], "")
    yield from _forward_rows(_DECISIVE_AXES, list(_decisive_rows()), "decisive: ")


def _forward_rows(space: axes.Axes, rows: list[Row], prefix: str) -> Iterator[Case]:
    yield from cases_from(
        space,
        _forward_pool,
        name="v1.rejection_sampler",
        contract=lambda row: (
            features_usual(row)
            and row["logits"] not in axes.UNUSUAL_LOGITS
            and row["temperatures"] not in UNUSUAL_TEMPERATURES
        ),
        allowed=features_fit,
        rows=rows,
        prefix=prefix,
    )


_DECISIVE_AXES: axes.Axes = {**FORWARD_AXES, "logits": ("all equal", "last id wins"), "drafts": ("random", "likely")}


def _decisive_rows() -> Iterator[Row]:
    """Features that decide which id is sampled, without logprobs: versions that return none have them all the same."""
    space = _DECISIVE_AXES
    for penalties in PENALTIES:
        for temperatures, outputs in (("greedy", "repeated ids"), ("random", "ragged")):
            yield row_of(space, penalties=penalties, output_tokens=outputs, temperatures=temperatures)
    for counts in ("full", "zero first", "one each"):
        yield row_of(space, penalties="mixed", output_tokens="repeated ids", counts=counts, drafts="likely")
    for temperatures in ("greedy", "random"):
        last = {"logits": "last id wins", "temperatures": temperatures, "output_tokens": "ragged"}
        yield row_of(space, bad_words="straddling", **last)
        yield row_of(space, bad_words="on the last", **last, counts="full", drafts="likely")
        yield row_of(space, allowed_ids="some", **last, drafts="likely")
        yield row_of(space, min_tokens="far", **last)
        yield row_of(space, penalties="mixed", bad_words="straddling", allowed_ids="some", **last, counts="full")


def prepare_forward(arm: Arm, pool: Pool) -> Call:
    """`forward`; the versions whose caller sampled the bonus token get that part of the caller around it."""
    rejection_sampler = make_rejection_sampler(arm, pool)
    more = {"sampling_metadata": make_metadata(arm, pool), "metadata": make_spec_metadata(arm, pool)}
    bound = arm.bind(rejection_sampler.forward, {**pool, **more, "target_logits": None, "bonus_token_ids": None})
    call = rejection_sampler.forward
    if "logits" not in bound:
        if pool["max_num_logprobs"] is not None:
            raise ApiChange("RejectionSampler.forward of this version returns no logprobs")
        arm.note("the bonus token is sampled before the call, as this version's caller did")
        with platform(arm, pool["platform"]):
            sampler = make_sampler(arm, pool)

        def call(**arguments: Any) -> Any:
            logits: torch.Tensor = pool["logits"]
            sampling = {"sampling_metadata": arguments["sampling_metadata"], "predict_bonus_token": True}
            sampling["logits"] = logits[pool["bonus_logits_indices"]]
            output = sampler(**arm.bind(sampler.forward, sampling))
            arguments["bonus_token_ids"] = output.sampled_token_ids
            arguments["target_logits"] = logits[pool["target_logits_indices"]]
            output.sampled_token_ids = rejection_sampler.forward(**arguments)
            return output

    return Call(on_platform(arm, pool["platform"], repeated(call, pool["steps"])), kwargs=bound)


_USES = (*USES, SAMPLER, SPEC_METADATA, PLATFORM_USER, *LOGPROBS_MODE)

TARGETS = (
    Target(
        name="v1.rejection_sampler",
        symbols=(f"{CLASS}.forward",),
        cases=forward_cases,
        prepare=prepare_forward,
        uses=(CLASS, f"{CLASS}.__init__", f"{SAMPLER}.forward", *_USES),
        triton=True,
        rows=("return",),
        invariants=(
            relations.emitted_ids("return.sampled_token_ids"),
            relations.logprobs_of_emitted("return.sampled_token_ids", "return.logprobs_tensors"),
        ),
        shapes=shapes.of_cases(forward_cases, "vocabulary", "drafts"),
    ),
    Target(
        name="v1.rejection_apply_logits_processors",
        symbols=(f"{CLASS}.apply_logits_processors",),
        cases=processor_cases,
        prepare=prepare_processors,
        uses=(f"{CLASS}.__init__", *_USES),
        triton=True,
        shapes=shapes.of_cases(processor_cases, "vocabulary", "drafts"),
    ),
    Target(
        name="v1.rejection_logprobs",
        symbols=(f"{CLASS}._get_logprobs_tensors",),
        cases=logprob_cases,
        prepare=prepare_logprobs,
        uses=(f"{CLASS}.__init__", *_USES),
        triton=True,
        shapes=shapes.of_cases(logprob_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
)
