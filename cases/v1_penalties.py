"""V1 penalties: repetition, presence and frequency, over prompt tokens and output tokens so far."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from difftest.cases import axes, relations, shapes
from difftest.target import Case, Pool, Target

APPLY_ALL = "vllm.v1.sample.ops.penalties:apply_all_penalties"
APPLY = "vllm.model_executor.layers.utils:apply_penalties"

PROMPTS = ("ragged", "empty", "no columns", "repeated ids", "first and last id", "full")
_UNUSUAL_PROMPTS = ("id -1", "id V+1")
_REFUSED_HISTORIES = ("-1 in the middle", "id past V", "no list at all")
_PATTERNS = (
    "random",
    "integer grid",
    "bf16 grid",
    "-0.0",
    "all equal",
    "denormals",
    "huge",
    "wide range",
    "-inf some",
    "-inf everywhere",
    "+inf once",
    "NaN at the start",
)

_AXES: axes.Axes = {
    "presence": (axes.PRESENCE[1], axes.PRESENCE[0], *axes.PRESENCE[2:]),
    "frequency": axes.FREQUENCY,
    "repetition": axes.REPETITION,
    "history": tuple(name for name in axes.HISTORIES if name not in _REFUSED_HISTORIES),
    "prompt": PROMPTS,
    "pattern": _PATTERNS,
    "batch": axes.BATCHES,
    "vocab": (9, 1, 2, 8, 33, 1025),
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS[:-1],
}
_ALONE: axes.Axes = {"history": _REFUSED_HISTORIES, "prompt": _UNUSUAL_PROMPTS, "layout": ("expanded",)}
_TENSOR_AXES: axes.Axes = {
    **{name: values for name, values in _AXES.items() if name != "history"},
    "history": ("ragged", "empty", "repeated ids", "first and last id", "id V"),
    "parameters": ("contiguous", "every other row", "offset storage"),
    "ids": (torch.int64,),
}
_TENSORS_ALONE: axes.Axes = {
    **_ALONE,
    "history": ("id past V", "-1 only", "trailing -1"),
    "ids": (torch.int32,),
}


def prompt_ids(pattern: str, batch: int, vocab: int, s: axes.Stream) -> torch.Tensor:
    """Prompt tokens [batch, longest], int64, padded with V; `pattern` is one of :data:`PROMPTS`."""
    if pattern == "no columns":
        return torch.empty(batch, 0, dtype=torch.int64)
    out = torch.full((batch, 6), vocab)
    for row in range(batch):
        length = {"full": 6, "empty": 0}.get(pattern, (4, 6, 0, 1, 2)[row % 5])
        out[row, :length] = s.integers(0, vocab, (length,))
        if pattern == "repeated ids":
            out[row, :length] = row % vocab
        elif pattern == "first and last id":
            out[row, :2] = torch.tensor([0, vocab - 1])
        elif pattern in _UNUSUAL_PROMPTS:
            out[row, 1] = -1 if pattern == "id -1" else vocab + 1
    return out


def _penalties(row: axes.Row, layout: str = "contiguous") -> Pool:
    return {
        f"{name}_penalties": row[name].tensor(row["batch"], layout=layout)
        for name in ("presence", "frequency", "repetition")
    }


def _build(row: axes.Row, s: axes.Stream) -> Pool:
    batch, vocab = row["batch"], row["vocab"]
    return {
        "logits": axes.logits(row["pattern"], batch, vocab, s, row["dtype"], row["layout"]),
        "prompt_token_ids": prompt_ids(row["prompt"], batch, vocab, s),
        **_penalties(row),
        "output_token_ids": axes.histories(row["history"], batch, vocab, s),
    }


def _build_tensors(row: axes.Row, s: axes.Stream) -> Pool:
    pool = _build(row, s)
    batch, vocab = row["batch"], row["vocab"]
    lists = pool.pop("output_token_ids")
    width = max(map(len, lists), default=0)
    padded = [ids + [vocab] * (width - len(ids)) for ids in lists]
    ids = torch.tensor(padded, dtype=torch.int64).view(batch, width)
    return {
        **pool,
        **_penalties(row, row["parameters"]),
        "prompt_tokens_tensor": pool.pop("prompt_token_ids").to(row["ids"]),
        "output_tokens_tensor": ids.to(row["ids"]),
    }


def _contract(row: axes.Row) -> bool:
    return (
        row["history"] not in (*axes.UNUSUAL_HISTORIES, "no list at all", "-1 only")
        and row["prompt"] not in _UNUSUAL_PROMPTS
        and row["pattern"] not in axes.UNUSUAL_LOGITS
        and row["layout"] != "expanded"
        and row["batch"] > 0
        and row.get("ids", torch.int64) is torch.int64
    )


def _cases() -> Iterator[Case]:
    yield from axes.cases_from(_AXES, _build, name="v1.penalties", contract=_contract, alone=_ALONE, covers=2)


def _tensor_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _TENSOR_AXES, _build_tensors, name="v1.penalties_of_tensors", contract=_contract, alone=_TENSORS_ALONE
    )


_PROMPT, _OUTPUT = 512, 128
"""Tokens of each request while timed: a short prompt, in the middle of its answer."""


def _shape(batch: int, vocabulary: int, number: int) -> Pool:
    return {
        "logits": shapes.logits(batch, vocabulary, number),
        "prompt_token_ids": shapes.token_ids((batch, _PROMPT), vocabulary, number),
        "presence_penalties": torch.full((batch,), 0.5),
        "frequency_penalties": torch.full((batch,), 0.25),
        "repetition_penalties": torch.full((batch,), 1.1),
        "output_token_ids": shapes.token_ids((batch, _OUTPUT), vocabulary, number + 1).tolist(),
    }


def _tensor_shape(batch: int, vocabulary: int, number: int) -> Pool:
    pool = _shape(batch, vocabulary, number)
    pool["prompt_tokens_tensor"] = pool.pop("prompt_token_ids")
    pool["output_tokens_tensor"] = torch.tensor(pool.pop("output_token_ids"))
    return pool


_ROWS = (
    *("logits", "prompt_token_ids", "prompt_tokens_tensor", "output_token_ids", "output_tokens_tensor"),
    *("presence_penalties", "frequency_penalties", "repetition_penalties"),
)


def _off(pool: Pool) -> torch.Tensor:
    none = (pool["presence_penalties"] == 0) & (pool["frequency_penalties"] == 0)
    made: torch.Tensor = none & (pool["repetition_penalties"] == 1)
    return made


_INVARIANTS = (
    relations.unchanged("prompt_token_ids", "presence_penalties", "frequency_penalties", "repetition_penalties"),
    relations.off_rows("logits", _off, "no penalty"),
)
_RELATIONS = (*relations.of_rows(_ROWS, ("logits",)), relations.relaid("logits", ("logits",)))

TARGETS = (
    Target(
        name="v1.penalties",
        symbols=(APPLY_ALL,),
        cases=_cases,
        shapes=shapes.by_batch_and_vocabulary(_shape, 1_300_000),
        rows=("return", "logits"),
        invariants=_INVARIANTS,
        relations=_RELATIONS,
    ),
    Target(
        name="v1.penalties_of_tensors",
        symbols=(APPLY,),
        cases=_tensor_cases,
        shapes=shapes.by_batch_and_vocabulary(_tensor_shape, 1_300_000),
        rows=("return", "logits"),
        invariants=_INVARIANTS,
        relations=_RELATIONS,
    ),
)
