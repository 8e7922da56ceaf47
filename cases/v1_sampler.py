"""V1 `Sampler`: the whole step from logits to tokens and logprobs, and its parts.

The step is observed on metadata that the case file builds for each version: penalties, bad words, allowed ids, drafts,
logits processors, logprobs of chosen ids and every logprobs mode, alone and in pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases import v1_metadata as metadata
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Invariant, Pool, Prepare, Relation, Sampling, Shape, Target

SAMPLER = "vllm.v1.sample.sampler:Sampler"
_TOP_K_TOP_P = metadata.PLATFORM_USER

MODES = ("raw_logprobs", "processed_logprobs", "processed_logits", "raw_logits")
_NONE = axes.Spread("none", ())
EPSILON = 1e-5
"""Below this temperature a request is greedy; the sampler's own number."""


def make_sampler(arm: Arm, pool: Pool) -> Any:
    """The arm's Sampler, in the logprobs mode and with the noise that the pool says.

    Raises:
        ApiChange: this version's sampler has no such mode, or no such noise.
    """
    cls = arm.get(SAMPLER)
    taken = takes(cls)
    mode, fp64 = pool.get("logprobs_mode", MODES[0]), pool.get("use_fp64_gumbel", False)
    if mode != MODES[0] and "logprobs_mode" not in taken:
        raise ApiChange("Sampler has no logprobs_mode")
    if fp64 and "use_fp64_gumbel" not in taken:
        raise ApiChange("Sampler has no use_fp64_gumbel")
    fields = {"logprobs_mode": metadata.logprobs_mode(arm, mode), "use_fp64_gumbel": fp64}
    with metadata.platform(arm, pool.get("platform", metadata.PLATFORMS[0])):
        return cls(**arm.bind(cls, fields))


def by_field(value: Any) -> Any:
    """What a step returned as plain dicts of fields; fields that are None are left out, for they came and went."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        value = dict(zip(value._fields, value, strict=True))
    elif dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    elif type(value) in (tuple, list):
        return type(value)([by_field(item) for item in value])
    if isinstance(value, Mapping):
        return {name: by_field(item) for name, item in value.items() if item is not None}
    return value


# --- the whole step ---------------------------------------------------------------------------------------------------

PENALTIES = ("none", "presence", "frequency", "repetition", "all", "one request")
ALLOWED = ("none", "some", "one id", "no id for one request", "all")
BAD_WORDS = ("none", "single", "matching pair", "on the last request")
PROCESSORS = ("none", "min_p", "logit_bias", "min_tokens", "all", "one request")
LOGPROBS = (5, None, 0, 1, "V", -1)
TOKEN_IDS = ("none", "equal lists", "ragged", "one request", "first and last id", "repeated ids")
THINKING = ("none", "all", "one request")
DRAFTS = ("none", "ragged", "full", "empty lists", "-1 last", "no bonus token")

STEP_AXES: axes.Axes = {
    "temperature": axes.TEMPERATURES,
    "logprobs": LOGPROBS,
    "mode": MODES,
    "override": (None, *MODES),
    "penalties": PENALTIES,
    "history": ("ragged", "empty", "repeated ids", "trailing -1", "-1 only in one request", "no list at all"),
    "allowed": ALLOWED,
    "bad words": BAD_WORDS,
    "processors": PROCESSORS,
    "drafts": DRAFTS,
    "thinking": THINKING,
    "logprob ids": TOKEN_IDS,
    "seeds": axes.SEEDS,
    "pattern": (
        "random",
        "integer grid",
        "two maxima",
        "softmax tie",
        "bf16 grid",
        "near ties",
        "all equal",
        "-0.0",
        "-inf some",
        "-inf all but one",
        "padding wins",
        "-inf first row",
        "+inf once",
        "NaN at the start",
        "NaN last row",
        "huge",
    ),
    "batch": (4, 1, 2, 3, 8, 0),
    "vocab": (17, 8, 33, 129),
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS[:-1],
    "k": (_NONE,),
    "p": (_NONE,),
    "fp64": (False, True),
    "platform": metadata.PLATFORMS,
}
_FILTERS: axes.Axes = {
    # Ties: random logits do not show which tokens a filter keeps at its edge.
    "pattern": ("integer grid", "bf16 grid", "padding wins", "two maxima", "-inf some", "random"),
    "processors": ("none", "min_p", "logit_bias"),
    "k": (axes.TOP_K[1], _NONE, axes.TOP_K[2], axes.TOP_K[5]),
    "p": (_NONE, axes.TOP_P[1], axes.TOP_P[2], axes.TOP_P[5]),
    "batch": (3, 1, 2, 8),
    "vocab": (17, 8, 33),
}
_LATER = (("mode", "override"), ("drafts",), ("thinking",), ("logprob ids",), ("fp64",))
"""Axes that came with later versions, by the feature that they belong to. Each feature has a block of cases of its own,
so that versions refuse the cases of those that they do not have, and no others."""
_FORM = ("mode", "dtype", "logprobs")
"""Axes that together decide in which form logprobs come; all their combinations are taken."""


def blocks(
    every: axes.Axes,
    build: Callable[[axes.Row, axes.Stream], Pool],
    *,
    later: Sequence[Sequence[str]] = _LATER,
    filtered: int = 0,
    **options: Any,
) -> Iterator[Case]:
    """Cases in blocks: what every version takes, each later feature alone, all of them together, rows with filters.

    Args:
        later: the axes of each feature that some versions do not have.
        filtered: how many rows with top-k or top-p; these run a kernel in some versions, which takes long under the
            interpreter.
        options: of :func:`difftest.cases.axes.cases_from`.
    """
    names = [name for feature in later for name in feature if len(every.get(name, ())) > 1]
    first = {name: values[:1] if name in names else values for name, values in every.items()}
    yield from axes.cases_from(first, build, **options)
    options.pop("alone", None)
    second = {name: values if name in names else values[:3] for name, values in every.items()}
    rows: list[axes.Row] = []
    for feature in [*later, names]:
        block = {
            name: values if name in feature or name not in names else values[:1] for name, values in second.items()
        }
        rows += [row for row in axes.pairwise(block) if any(row[n] is not every[n][0] for n in names if n in feature)]
    form = {name: second[name] for name in _FORM if name in second}
    if "mode" in names:
        rows += [{**axes.plain(every), **row} for row in axes.product(form) if row["mode"] is not every["mode"][0]]
    yield from axes.cases_from(second, build, rows=rows, prefix="later: ", **options)
    third = {**first, **_FILTERS}
    rows = [row for row in axes.pairwise(third) if (row["k"], row["p"]) != (_NONE, _NONE)] if filtered else []
    allowed = options.get("allowed") or (lambda row: True)
    rows = [row for row in rows if allowed(row)][:filtered]
    yield from axes.cases_from(third, build, rows=rows, prefix="filtered: ", **options)


def _per_request(name: str, row: axes.Row) -> torch.Tensor:
    """One of the penalties, [batch]."""
    off, on = {"presence": (0.0, 0.75), "frequency": (0.0, -0.5), "repetition": (1.0, 1.5)}[name]
    batch, kind = row["batch"], row["penalties"]
    values = torch.full((batch,), off)
    if kind in (name, "all"):
        values[:] = on
    elif kind == "one request" and batch:
        values[batch // 2] = on
    return values


def _requests(row: axes.Row, s: axes.Stream) -> list[dict[str, Any]]:
    """What logits processors read of each request."""
    kind, batch, vocab = row["processors"], row["batch"], row["vocab"]
    on = {
        "none": range(0),
        "one request": range(batch // 2, min(batch // 2 + 1, batch)),
    }.get(kind, range(batch))
    requests: list[dict[str, Any]] = [{} for _ in range(batch)]
    for i in on:
        if kind not in ("logit_bias", "min_tokens"):
            requests[i]["min_p"] = (0.2, 0.0, 0.9)[i % 3]
        if kind not in ("min_p", "min_tokens"):
            requests[i]["logit_bias"] = {s.integer(0, vocab): (3.0, -100.0)[i % 2], vocab - 1: 0.5}
        if kind not in ("min_p", "logit_bias"):
            requests[i] |= {"min_tokens": 2 + i % 3, "stop_token_ids": [s.integer(0, vocab), 0]}
    return requests


def _allowed(row: axes.Row, s: axes.Stream) -> torch.Tensor | None:
    """Which ids are forbidden, bool [batch, vocab]."""
    kind, batch, vocab = row["allowed"], row["batch"], row["vocab"]
    if kind == "none":
        return None
    forbidden: torch.Tensor = s.integers(0, 2, (batch, vocab)) == 0
    if kind == "all":
        forbidden[:] = False
    elif kind == "one id":
        forbidden[:] = True
        forbidden[:, s.integer(0, vocab)] = False
    elif kind == "no id for one request" and batch:
        forbidden[batch // 2] = True
    return forbidden


def _bad_words(row: axes.Row, outputs: list[list[int]], s: axes.Stream) -> dict[int, list[list[int]]]:
    kind, vocab = row["bad words"], row["vocab"]
    requests = {"none": [], "on the last request": [row["batch"] - 1]}.get(kind, list(range(0, row["batch"], 2)))
    words: dict[int, list[list[int]]] = {}
    for i in requests:
        ids = outputs[i] if 0 <= i < len(outputs) else []
        pair = [ids[-1] if ids else 0, s.integer(0, vocab)]
        words[i] = [[s.integer(0, vocab)]] if kind == "single" else [pair, [1, 2, 3]]
    return {i: word for i, word in words.items() if i >= 0}


def _drafts(row: axes.Row, s: axes.Stream) -> list[list[int]] | None:
    kind, batch = row["drafts"], row["batch"]
    if kind == "none":
        return None
    counts = axes.draft_counts({"full": "full", "empty lists": "none"}.get(kind, "ragged"), batch)
    drafts = [s.integers(0, row["vocab"], (count,)).tolist() for count in counts]
    return [[*ids[:-1], -1] if ids and kind == "-1 last" else ids for ids in drafts]


def _budgets(row: axes.Row) -> list[int | None]:
    """Thinking budgets by request: spent, about to be, and not yet."""
    kind, batch = row["thinking"], row["batch"]
    return [
        (0, 2, 9)[i % 3] if kind == "all" or (kind == "one request" and i == batch // 2) else None for i in range(batch)
    ]


def token_ids(row: axes.Row, s: axes.Stream) -> dict[int, list[int]] | None:
    kind, batch, vocab = row["logprob ids"], row["batch"], row["vocab"]
    if kind == "none":
        return None
    if kind == "one request":
        return {batch // 2: s.integers(0, vocab, (3,)).tolist()} if batch else {}
    ids = {i: s.integers(0, vocab, (1 + i % 3 if kind == "ragged" else 2,)).tolist() for i in range(batch)}
    if kind == "first and last id":
        return {i: [0, vocab - 1] for i in ids}
    return {i: [own[0]] * 3 for i, own in ids.items()} if kind == "repeated ids" else ids


def step_pool(row: axes.Row, s: axes.Stream) -> Pool:
    """Logits, and the fields of SamplingMetadata, of one step."""
    batch, vocab = row["batch"], row["vocab"]
    outputs = axes.histories(row["history"], batch, vocab, s)
    temperatures = row["temperature"].over(batch)
    greedy = [value < EPSILON for value in temperatures]
    off = row["penalties"] == "none"
    prompt = s.integers(0, vocab + 1, (batch, 4))
    return {
        "logits": axes.logits(row["pattern"], batch, vocab, s, row["dtype"], row["layout"]),
        "temperature": None if all(greedy) else row["temperature"].tensor(batch),
        "all_greedy": all(greedy),
        "all_random": not any(greedy) and not all(greedy),
        "top_k": None if row["k"] is _NONE else row["k"].tensor(batch, torch.int32, vocab),
        "top_p": None if row["p"] is _NONE else row["p"].tensor(batch),
        "generators": axes.seeds(row["seeds"], batch),
        "max_num_logprobs": vocab if row["logprobs"] == "V" else row["logprobs"],
        "no_penalties": off,
        "prompt_token_ids": None if off else prompt,
        "presence_penalties": _per_request("presence", row),
        "frequency_penalties": _per_request("frequency", row),
        "repetition_penalties": _per_request("repetition", row),
        "output_token_ids": outputs,
        "allowed_token_ids_mask": _allowed(row, s),
        "bad_words_token_ids": _bad_words(row, outputs, s),
        "requests": _requests(row, s),
        "thinking": _budgets(row),
        "logprob_token_ids": token_ids(row, s),
        "spec_token_ids": _drafts(row, s),
        "predict_bonus_token": row["drafts"] not in ("none", "no bonus token"),
        "logprobs_mode": row["mode"],
        "logprobs_mode_override": row["override"],
        "use_fp64_gumbel": row["fp64"],
        "platform": row["platform"],
    }


def _sensible(row: axes.Row) -> bool:
    """Whether the engine could have built the metadata."""
    readers = ("penalties", "bad words", "processors", "drafts", "thinking")
    return row["history"] != "no list at all" or all(row[name] == "none" for name in readers)


def _contract(row: axes.Row) -> bool:
    return (
        row["pattern"] not in axes.UNUSUAL_LOGITS
        and row["dtype"] is not torch.float64
        and row["batch"] > 0
        and all(
            1 <= k <= row["vocab"] for k in ([] if row["k"] is _NONE else row["k"].over(row["batch"], row["vocab"]))
        )
    )


def _step_cases() -> Iterator[Case]:
    yield from blocks(
        STEP_AXES,
        step_pool,
        filtered=16,
        name="v1.sampler.forward",
        contract=_contract,
        allowed=_sensible,
    )


def checked(function: Callable[..., Any], pool: Pool, *names: str) -> None:
    """Refuse a case that switches on what this version's function cannot be asked for."""
    taken = takes(function)
    for name in names:
        if pool.get(name) and name not in taken:
            raise ApiChange(f"{function.__qualname__} has no {name}")


def _tokens_and_logprobs(value: Any) -> Any:
    """What `sample` returned, by name: older versions return the tokens alone."""
    tokens, logprobs = value if isinstance(value, tuple) else (value, None)
    return by_field({"sampled": tokens, "processed_logprobs": logprobs})


def _prepare_step(method: str, shown: Callable[[Any], Any] = by_field) -> Prepare:
    def prepare(arm: Arm, pool: Pool) -> Call:
        sampler = make_sampler(arm, pool)
        function = getattr(sampler, method)
        checked(function, pool, "logprobs_mode_override", "predict_bonus_token")
        override = pool["logprobs_mode_override"]
        fields = {
            **pool,
            "sampling_metadata": metadata.sampling_metadata(arm, pool),
            "logprobs_mode_override": override and metadata.logprobs_mode(arm, override),
        }
        kwargs = arm.bind(function, fields)
        call = metadata.on_platform(arm, pool["platform"], function)
        return Call(lambda: shown(call(**kwargs)))

    return prepare


_SAMPLE_AXES: axes.Axes = {
    **{
        name: values
        for name, values in STEP_AXES.items()
        if name not in ("penalties", "allowed", "bad words", "drafts", "thinking", "history")
    },
    "dtype": (torch.float32,),
}
_SAMPLE_FIXED: axes.Row = {
    "penalties": "none",
    "allowed": "none",
    "bad words": "none",
    "drafts": "none",
    "thinking": "none",
    "history": "ragged",
}


def _sample_cases() -> Iterator[Case]:
    def pool(row: axes.Row, s: axes.Stream) -> Pool:
        return step_pool({**row, **_SAMPLE_FIXED}, s)

    yield from blocks(
        _SAMPLE_AXES,
        pool,
        filtered=16,
        name="v1.sampler.sample",
        contract=lambda row: _contract(row) and row["dtype"] is torch.float32,
        alone={"dtype": (torch.bfloat16, torch.float16, torch.float64)},
    )


_BEFORE_SAMPLING = (
    "penalties",
    "allowed",
    "bad words",
    "drafts",
    "thinking",
    "history",
    "processors",
    "pattern",
    "batch",
    "vocab",
    "layout",
)
_PROCESSOR_AXES: axes.Axes = {name: values for name, values in STEP_AXES.items() if name in _BEFORE_SAMPLING}


def _processor_cases() -> Iterator[Case]:
    fixed = {name: values[0] for name, values in STEP_AXES.items() if name not in _PROCESSOR_AXES}

    def pool(row: axes.Row, s: axes.Stream) -> Pool:
        return step_pool({**fixed, **row}, s)

    yield from blocks(
        _PROCESSOR_AXES,
        pool,
        later=(("thinking",),),
        name="v1.sampler.apply_logits_processors",
        contract=lambda row: _contract({**fixed, **row}),
        allowed=_sensible,
        covers=2,
    )


def sampler_target(
    method: str,
    cases: Callable[[], Iterator[Case]],
    prepare: Prepare,
    rows: tuple[str, ...],
    triton: bool = False,
    builds_metadata: bool = False,
    sampling: Sampling | None = None,
    timed: Callable[[str], Iterator[Shape]] | None = None,
    invariants: tuple[Invariant, ...] = (),
    related: tuple[Relation, ...] = (),
) -> Target:
    return Target(
        name=f"v1.sampler.{method}",
        symbols=(f"{SAMPLER}.{method}",),
        cases=cases,
        prepare=prepare,
        uses=(
            f"{SAMPLER}.__init__",
            f"{_TOP_K_TOP_P}.__init__",
            *metadata.LOGPROBS_MODE,
            *(metadata.USES if builds_metadata else ()),
        ),
        triton=triton,
        sampling=sampling,
        shapes=timed,
        rows=rows,
        invariants=invariants,
        relations=related,
        timeout=60.0,
    )


def _step_shape(batch: int, vocabulary: int, number: int) -> Pool:
    """One step as chat defaults make it: temperature 0.7, top-k 50 and top-p 0.95 for all, nothing else asked for."""
    plain = {**axes.plain(STEP_AXES), "batch": batch, "vocab": 64}
    return {
        **step_pool(plain, axes.stream("timing", batch, number)),
        "logits": shapes.logits(batch, vocabulary, number),
        "temperature": torch.full((batch,), 0.7),
        "all_greedy": False,
        "all_random": True,
        "top_k": torch.full((batch,), 50, dtype=torch.int32),
        "top_p": torch.full((batch,), 0.95),
        "generators": {},
    }


def _sampling_step(number: int) -> Pool:
    """Alike rows over eight ids; no row has a seed and nothing filters, so that the rows stay alike."""
    plain = {**axes.plain(STEP_AXES), "batch": 1000, "vocab": 8}
    return {
        **step_pool(plain, axes.stream("sampling")),
        "logits": shapes.LAW.log().repeat(1000, 1),
        "temperature": torch.ones(1000),
        "all_greedy": False,
        "all_random": True,
        "top_k": None,
        "top_p": None,
        "generators": {},
    }


def _sampling_of(field: str) -> Sampling:
    return Sampling(_sampling_step, lambda returned: returned[field].reshape(-1).numpy(), 8, (f"return['{field}']",))


def _reseeded(pool: Pool) -> Pool | None:
    if not pool["all_greedy"] or not pool["generators"]:
        return None
    return {"generators": relations.other_seeds(pool["generators"])}


def _sampled(result: Any) -> torch.Tensor:
    ids: torch.Tensor = result["sampled"]
    return ids


_GREEDY = relations.same_with("a greedy batch has no use for seeds", _reseeded)

TARGETS = (
    sampler_target(
        "forward",
        _step_cases,
        _prepare_step("forward"),
        ("logits",),
        True,
        True,
        sampling=_sampling_of("sampled_token_ids"),
        timed=shapes.by_batch_and_vocabulary(_step_shape, shapes.WIDEST),
        invariants=(
            relations.emitted_ids("return.sampled_token_ids"),
            relations.logprobs_of_emitted("return.sampled_token_ids", "return.logprobs_tensors"),
        ),
        related=(_GREEDY,),
    ),
    sampler_target(
        "sample",
        _sample_cases,
        _prepare_step("sample", _tokens_and_logprobs),
        ("logits",),
        True,
        True,
        sampling=_sampling_of("sampled"),
        timed=shapes.by_batch_and_vocabulary(_step_shape, shapes.WIDEST),
        invariants=(relations.emitted("logits", -axes.INF, _sampled),),
        related=(_GREEDY,),
    ),
    sampler_target(
        "apply_logits_processors",
        _processor_cases,
        _prepare_step("apply_logits_processors"),
        ("return", "logits"),
        builds_metadata=True,
        timed=shapes.by_batch_and_vocabulary(_step_shape, 2_500_000),
    ),
)
