"""V1 `Sampler`, its parts: temperature, greedy choice, logprobs of all ids, of the likeliest and of chosen ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases import v1_metadata as metadata
from difftest.cases.v1_sampler import (
    EPSILON,
    STEP_AXES,
    TOKEN_IDS,
    by_field,
    checked,
    make_sampler,
    sampler_target,
    token_ids,
)
from difftest.cases.versions import takes
from difftest.target import Arm, Call, Case, Pool, Prepare


def _part(method: str, *switches: str) -> Prepare:
    """Calls a method of a sampler of the arm with what it asks for by name."""

    def prepare(arm: Arm, pool: Pool) -> Call:
        function = getattr(make_sampler(arm, pool), method)
        checked(function, pool, *switches)
        kwargs = arm.bind(function, pool)
        call = metadata.on_platform(arm, pool.get("platform", metadata.PLATFORMS[0]), function)
        return Call(lambda: by_field(call(**kwargs)))

    return prepare


_LOGITS_AXES: axes.Axes = {
    "pattern": tuple(axes.LOGITS),
    "batch": axes.BATCHES,
    "vocab": axes.VOCABS,
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS,
}


def _logits(row: axes.Row, s: axes.Stream) -> torch.Tensor:
    made: torch.Tensor = axes.logits(row["pattern"], row["batch"], row["vocab"], s, row["dtype"], row["layout"])
    return made


def _usual(row: axes.Row) -> bool:
    return row["pattern"] not in axes.UNUSUAL_LOGITS and row["dtype"] is not torch.float64 and row["batch"] > 0


def _temperature_cases() -> Iterator[Case]:
    every: axes.Axes = {
        "temperature": axes.TEMPERATURES,
        "all_random": ("as the temperatures say", "yes", "no"),
        **_LOGITS_AXES,
        "temperatures": ("contiguous", "every other row", "expanded"),
        "layout": axes.LAYOUTS[:-1],
    }

    def pool(row: axes.Row, s: axes.Stream) -> Pool:
        values = row["temperature"].tensor(row["batch"])
        said = {"yes": True, "no": False}.get(row["all_random"], bool((values >= EPSILON).all()))
        temp = axes.lay_out(axes.same_rows(values, row["temperatures"]), row["temperatures"])
        return {"logits": _logits(row, s), "temp": temp, "all_random": said}

    yield from axes.cases_from(
        every,
        pool,
        name="v1.sampler.apply_temperature",
        contract=lambda row: _usual(row) and row["all_random"] != "yes",
        alone={"layout": ("expanded",)},
    )


def _greedy_cases() -> Iterator[Case]:
    every: axes.Axes = {**_LOGITS_AXES, "platform": metadata.PLATFORMS}
    yield from axes.cases_from(
        every,
        lambda row, s: {"logits": _logits(row, s), "platform": row["platform"]},
        name="v1.sampler.greedy_sample",
        contract=lambda row: _usual(row) and row["dtype"] is torch.float32,
    )


def _logprob_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _LOGITS_AXES,
        lambda row, s: {"logits": _logits(row, s)},
        name="v1.sampler.compute_logprobs",
        contract=_usual,
    )


def _gather_cases() -> Iterator[Case]:
    every: axes.Axes = {
        "count": (5, 0, 1, 2, "V"),
        "tokens": ("random", "most likely", "least likely", "first id", "last id", "tied"),
        **_LOGITS_AXES,
        "batch": tuple(batch for batch in axes.BATCHES if batch),
        "ids": (torch.int64,),
        "layout": axes.LAYOUTS[:-1],
    }

    def pool(row: axes.Row, s: axes.Stream) -> Pool:
        logprobs, vocab = _logits(row, s), row["vocab"]
        kind, finite = row["tokens"], logprobs.double().nan_to_num(nan=0.0)
        fixed = {"first id": 0, "last id": vocab - 1, "tied": vocab // 2, "id V": vocab, "id -1": -1}
        if kind in fixed:
            ids = torch.full((row["batch"],), fixed[kind])
        elif kind == "random":
            ids = s.integers(0, vocab, (row["batch"],))
        else:
            ids = finite.argmax(1) if kind == "most likely" else finite.argmin(1)
        if row["tokens"] == "tied" and vocab > 1:
            logprobs[:, 0] = logprobs[:, vocab // 2]
        return {
            "logprobs": logprobs,
            "num_logprobs": min(row["count"], vocab)
            if isinstance(row["count"], int)
            else vocab + (row["count"] == "V+1"),
            "token_ids": ids.to(row["ids"]),
        }

    def contract(row: axes.Row) -> bool:
        return _usual(row) and row["count"] != "V+1" and row["tokens"] not in ("id V", "id -1")

    yield from axes.cases_from(
        every,
        pool,
        name="v1.sampler.gather_logprobs",
        contract=contract,
        alone={"count": ("V+1",), "tokens": ("id V", "id -1"), "batch": (0,), "ids": (torch.int32,)},
    )


def _specific_cases() -> Iterator[Case]:
    every: axes.Axes = {
        "logprob ids": (*TOKEN_IDS[1:], TOKEN_IDS[0]),
        **_LOGITS_AXES,
        "pattern": STEP_AXES["pattern"],
        "batch": (4, 1, 2, 3, 9),
        "vocab": (33, 1, 2, 8, 17, 129, 1025),
        "layout": axes.LAYOUTS[:-1],
    }

    def pool(row: axes.Row, s: axes.Stream) -> Pool:
        ids = token_ids({**row, "logprob ids": "ragged"} if row["logprob ids"][:2] == "id" else row, s) or {}
        if row["logprob ids"] in ("id V", "id -1"):
            ids = {i: [row["vocab"] if row["logprob ids"] == "id V" else -1, *own] for i, own in ids.items()}
        if row["logprob ids"] == "an empty list":
            ids = {i: ([] if i % 2 else own) for i, own in ids.items()}
        logits = _logits(row, s)
        return {
            # Ids beyond the vocabulary land on guard rows, not on whatever lies beside the logits.
            "logits": axes.guarded(logits) if row["logprob ids"].startswith("id ") else logits,
            "logprob_token_ids": ids,
            "sampled": s.integers(0, row["vocab"], (row["batch"],)),
        }

    yield from axes.cases_from(
        every,
        pool,
        name="v1.sampler.gather_specific_token_logprobs",
        contract=lambda row: _usual(row) and not row["logprob ids"].startswith("id "),
        alone={"logprob ids": ("an empty list", "id V", "id -1"), "batch": (0,)},
    )


def _prepare_specific(arm: Arm, pool: Pool) -> Call:
    """Older versions take logits and make logprobs of them; what later ones take is made by this version's sampler."""
    sampler = make_sampler(arm, pool)
    function = sampler.gather_specific_token_logprobs
    fields = dict(pool)
    if "logprobs" in takes(function):
        fields["logprobs"] = sampler.compute_logprobs(pool["logits"])
        arm.note("logprobs are made from the case's logits before the call")
    kwargs = arm.bind(function, fields)
    return Call(lambda: by_field(function(**kwargs)))


def _logits_shape(batch: int, vocabulary: int, number: int) -> Pool:
    return {"logits": shapes.logits(batch, vocabulary, number)}


def _temperature_shape(batch: int, vocabulary: int, number: int) -> Pool:
    return {**_logits_shape(batch, vocabulary, number), "temp": torch.full((batch,), 0.7), "all_random": True}


def _gather_shape(batch: int, vocabulary: int, number: int) -> Pool:
    return {
        "logprobs": shapes.logits(batch, vocabulary, number).log_softmax(-1),
        "num_logprobs": 5,
        "token_ids": shapes.token_ids((batch,), vocabulary, number),
    }


def _as_is(pool: Pool) -> torch.Tensor:
    """Rows whose temperature does nothing."""
    made: torch.Tensor = (pool["temp"] == 1) | ((pool["temp"] < EPSILON) & (not pool["all_random"]))
    return made


TARGETS = (
    sampler_target(
        "apply_temperature",
        _temperature_cases,
        _part("apply_temperature"),
        ("return", "logits", "temp"),
        timed=shapes.by_batch_and_vocabulary(_temperature_shape, 10_000_000),
        invariants=(relations.unchanged("temp"), relations.off_rows("return", _as_is, "temperature 1 or greedy")),
        related=(*relations.of_rows(("logits", "temp")), relations.relaid("logits")),
    ),
    sampler_target(
        "greedy_sample",
        _greedy_cases,
        _part("greedy_sample"),
        ("return", "logits"),
        timed=shapes.by_batch_and_vocabulary(_logits_shape, 10_000_000),
        invariants=(relations.emitted("logits", -axes.INF), relations.unchanged("logits")),
        related=(*relations.of_rows(("logits",)), relations.relaid("logits")),
    ),
    sampler_target(
        "compute_logprobs",
        _logprob_cases,
        _part("compute_logprobs"),
        ("return", "logits"),
        timed=shapes.by_batch_and_vocabulary(_logits_shape, 5_000_000),
        invariants=(relations.unchanged("logits"),),
        related=(*relations.of_rows(("logits",)), relations.relaid("logits")),
    ),
    sampler_target(
        "gather_logprobs",
        _gather_cases,
        _part("gather_logprobs"),
        ("logprobs",),
        timed=shapes.by_batch_and_vocabulary(_gather_shape, 2_500_000),
        invariants=(relations.unchanged("logprobs", "token_ids"),),
        related=(*relations.of_rows(("logprobs", "token_ids")), relations.relaid("logprobs")),
    ),
    sampler_target(
        "gather_specific_token_logprobs",
        _specific_cases,
        _prepare_specific,
        ("logits",),
        triton=True,
        timed=shapes.of_cases(_specific_cases, "vocabulary"),
    ),
)
