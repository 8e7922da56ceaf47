"""V1 `apply_grammar_bitmask`: logits of ids that a grammar forbids become -inf, in place.

The scheduler sends bitmask rows for structured requests only, in its own order: 1 + K rows for a request with K draft
tokens. The batch has its order; its logits have 1 + K rows for each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import Row, Stream, cases_from
from difftest.target import Arm, Call, Case, Pool, Target

APPLY = "vllm.v1.structured_output.utils:apply_grammar_bitmask"

_STRUCTURED: Mapping[str, tuple[int, ...]] = {
    # Batch indices in the scheduler's order; 9 is a request that is not in the batch.
    "all": (0, 1, 2, 3),
    "all, reordered": (2, 0, 3, 1),
    "some": (1, 3),
    "some, reordered": (3, 0),
    "first only": (0,),
    "last only": (3,),
    "none": (),
    "one that left the batch": (1, 9, 3),
}
BITMASK_AXES: axes.Axes = {
    "structured": tuple(_STRUCTURED),
    "drafts": ("none", "ragged", "full", "only first", "only last", "zero first"),
    "sizes": ((64, 2), (40, 2), (33, 2), (32, 1), (31, 1), (70, 2), (20, 2)),
    "bits": ("random", "all set", "none set", "none set in one row", "set beyond the vocabulary only", "one set"),
    "logits": ("random", "-inf some", "all equal", "-0.0", "NaN at the start", "NaN everywhere", "+inf once"),
    "dtype": tuple(axes.FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "offset storage", "transposed"),
    "rows beyond": (0, 2),
    "rows missing": (0, 1),
}


def _bits(pattern: str, rows: int, words: int, vocabulary: int, s: Stream) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Bitmask words int32 [rows, words]; bit i of a row is id i."""
    if pattern == "all set":
        return np.full((rows, words), -1, dtype=np.int32)
    if pattern == "none set":
        return np.zeros((rows, words), dtype=np.int32)
    bits = s.integers(0, 2, (rows, words * 32)).numpy().astype(bool)
    if pattern == "none set in one row":
        bits[rows // 2 : rows // 2 + 1] = False
    elif pattern == "set beyond the vocabulary only":
        bits[:, :vocabulary] = False
    elif pattern == "one set":
        bits[:] = False
        bits[np.arange(rows), s.integers(0, min(vocabulary, words * 32), (rows,)).numpy()] = True
    packed: np.ndarray[Any, np.dtype[np.int32]] = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    return packed.reshape(rows, words)


def _pool(row: Row, s: Stream) -> Pool:
    batch, most = axes.sized(row, 4, 2)
    counts = [0] * batch if row["drafts"] == "none" else axes.draft_counts(row["drafts"], batch, most)
    vocabulary, words = row["sizes"]
    names = [f"request-{index}" for index in range(batch)]
    spec = {
        name: s.integers(0, vocabulary, (count,)).tolist() for name, count in zip(names, counts, strict=True) if count
    }
    structured = names if "size" in row else [f"request-{index}" for index in _STRUCTURED[row["structured"]]]
    rows = sum(1 + len(spec.get(name, ())) for name in structured)
    return {
        "logits": axes.logits(
            row["logits"],
            sum(counts) + batch + row["rows beyond"],
            vocabulary,
            s,
            axes.FLOATS[row["dtype"]],
            row["layout"],
        ),
        "grammar_bitmask": _bits(row["bits"], max(rows - row["rows missing"], 0), words, vocabulary, s),
        "structured": structured,
        "scheduled_spec_decode_tokens": spec,
        "req_ids": names,
    }


def _sizes(size: shapes.Size) -> Row:
    return {"sizes": (size.vocabulary, -(-size.vocabulary // 32))}


def _inside(row: Row) -> bool:
    """No model yields float64 logits; no engine sends fewer rows than drafts ask for, or a mask that is too wide."""
    usual = row["logits"] not in axes.UNUSUAL_LOGITS and row["dtype"] != "float64"
    return usual and row["rows missing"] == 0 and row["sizes"] != (20, 2)


def cases() -> Iterator[Case]:
    """Every order of requests with every shape of drafts; masks narrower and wider than the logits."""
    yield from cases_from(
        BITMASK_AXES,
        _pool,
        name="v1.apply_grammar_bitmask",
        contract=_inside,
        allowed=lambda row: row["rows missing"] == 0 or row["structured"] != "none",
    )


def prepare(arm: Arm, pool: Pool) -> Call:
    """The scheduler's and the runner's objects carry what the function reads of them, where its version reads it."""
    function = arm.get(APPLY)
    names: Sequence[str] = pool["structured"]
    ids: Any = list(names)
    taken = arm.bind(function, dict.fromkeys(("scheduler_output", "grammar_output", "input_batch", "logits", "device")))
    if "device" in taken:
        arm.note("structured_output_request_ids is a dict of positions in this version")
        ids = {name: position for position, name in enumerate(names)}
    grammar = {"structured_output_request_ids": ids, "grammar_bitmask": pool["grammar_bitmask"]}
    scheduler = {"scheduled_spec_decode_tokens": pool["scheduled_spec_decode_tokens"]}
    if "grammar_output" not in taken:
        arm.note("the bitmask is part of scheduler_output in this version")
        scheduler |= grammar
    order = {name: index for index, name in enumerate(pool["req_ids"])}
    given = {
        "scheduler_output": SimpleNamespace(**scheduler),
        "grammar_output": SimpleNamespace(**grammar),
        "input_batch": SimpleNamespace(req_ids=pool["req_ids"], req_id_to_index=order),
        "logits": pool["logits"],
        "device": torch.device(arm.device),
    }
    return Call(function, kwargs=arm.bind(function, given))


def _reordered(pool: Pool) -> Pool | None:
    """The scheduler's requests from the last to the first, with their mask rows."""
    counts = [1 + len(pool["scheduled_spec_decode_tokens"].get(name, ())) for name in pool["structured"]]
    if len(counts) < 2:
        return None
    starts = np.cumsum([0, *counts])
    rows = [row for i in reversed(range(len(counts))) for row in range(starts[i], starts[i + 1])]
    return {"structured": pool["structured"][::-1], "grammar_bitmask": pool["grammar_bitmask"][rows]}


TARGETS = (
    Target(
        name="v1.apply_grammar_bitmask",
        symbols=(APPLY,),
        cases=cases,
        prepare=prepare,
        rows=("logits",),
        invariants=(relations.filters("logits"),),
        relations=(
            relations.same_with(
                "requests in another order of the scheduler have the same masks", _reordered, ("logits",)
            ),
            relations.relaid("logits", ("logits",)),
        ),
        shapes=shapes.of_cases(cases, "vocabulary", "drafts", also=_sizes),
    ),
)
