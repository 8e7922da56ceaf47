"""V1 `batched_count_greater_than`: how many logprobs of each row reach the row's value, which is the token's rank."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from difftest.cases import axes, relations, shapes
from difftest.target import Case, Pool, Target

COUNT = "vllm.v1.sample.ops.logprobs:batched_count_greater_than"

_AXES: axes.Axes = {
    "values": (
        "of a token",
        "of the first id",
        "of the last id",
        "largest",
        "smallest",
        "above all",
        "below all",
        "one ulp above",
        "zero",
        "-0.0",
        "+inf",
        "-inf",
        "NaN",
    ),
    "pattern": tuple(axes.LOGITS),
    "batch": axes.BATCHES,
    "vocab": (*axes.VOCABS, *axes.LARGE_VOCABS[:5]),
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS,
    "values layout": ("contiguous", "column of x", "every other row", "expanded"),
}
_CONSTANTS = {"zero": 0.0, "-0.0": -0.0, "+inf": axes.INF, "-inf": -axes.INF, "NaN": axes.NAN}


def _values(row: axes.Row, x: torch.Tensor, s: axes.Stream) -> torch.Tensor:
    kind, (batch, vocab) = row["values"], x.shape
    if kind in _CONSTANTS:
        return torch.full((batch, 1), _CONSTANTS[kind], dtype=x.dtype)
    if kind in ("of a token", "one ulp above"):
        picked: torch.Tensor = x.gather(1, s.integers(0, vocab, (batch, 1)))
        if kind == "of a token":
            return picked
        finite = picked.nan_to_num(nan=1.0, posinf=1.0, neginf=1.0).abs()
        above: torch.Tensor = axes.next_up(finite.clamp(max=torch.finfo(x.dtype).max / 2))
        return above.copysign(picked)
    if kind == "of the last id":
        return x[:, -1:].clone()
    if kind == "of the first id" or not batch:
        return x[:, :1].clone()
    ends = x.double().nan_to_num(nan=0.0)
    value = ends.amax(1, True) if kind in ("largest", "above all") else ends.amin(1, True)
    change = {"above all": 1.0, "below all": -1.0}.get(kind, 0.0)
    moved: torch.Tensor = axes.to_dtype(value + change * value.abs().clamp(1.0, 1e300), x.dtype)
    return moved


def _build(row: axes.Row, s: axes.Stream) -> Pool:
    x = axes.logits(row["pattern"], row["batch"], row["vocab"], s, row["dtype"], row["layout"])
    values = _values(row, x, s)
    layout = row["values layout"]
    if layout == "column of x":
        # The caller may pass a view of the logprobs themselves; the rank is that of the first id then.
        return {"x": x, "values": x[:, :1]}
    return {"x": x, "values": axes.lay_out(axes.same_rows(values, layout), layout)}


def _unequal(rows: int, values: tuple[int, int]) -> Case:
    def build() -> Pool:
        s = axes.stream(COUNT, rows, *values)
        return {"x": axes.logits("random", rows, 9, s), "values": s.normal_like(*values)}

    return Case(f"{rows} rows, values {values[0]} x {values[1]}", build, contract=False)


def _cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _AXES, _build, name="v1.batched_count_greater_than", contract=lambda row: row["batch"] > 0
    )
    for rows, values in ((4, (1, 1)), (1, (3, 1)), (4, (3, 1)), (4, (4, 2)), (4, (4, 9)), (0, (1, 1))):
        yield _unequal(rows, values)


def _shape(batch: int, vocabulary: int, number: int) -> Pool:
    x = shapes.logits(batch, vocabulary, number).log_softmax(-1)
    return {"x": x, "values": x.gather(1, shapes.token_ids((batch, 1), vocabulary, number))}


TARGETS = (
    Target(
        name="v1.batched_count_greater_than",
        symbols=(COUNT,),
        cases=_cases,
        shapes=shapes.by_batch_and_vocabulary(_shape, 5_000_000),
        rows=("return", "x", "values"),
        invariants=(relations.unchanged("x", "values"),),
        relations=(*relations.of_rows(("x", "values")), relations.relaid("x")),
    ),
)
