"""V2 min-p: ids whose probability is below min_p times the largest get a logit of -inf, in place."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream
from difftest.cases.v2_batch import GPU, MAPPINGS, map_rows, per_slot
from difftest.cases.versions import takes
from difftest.target import Arm, Call, Case, Pool, Target

APPLY_MIN_P = (f"{GPU}.sample.min_p:apply_min_p",)

AXES = {
    "min_p": axes.MIN_P,
    "logits": (
        *("random", "integer grid", "bf16 grid", "near ties", "plateaus", "one-hot", "all equal", "-0.0", "huge"),
        *(
            "wide range",
            "-inf some",
            "-inf all but one",
            "-inf everywhere",
            "+inf once",
            "NaN at the start",
            "NaN everywhere",
        ),
    ),
    "vocab": (50, 1, 2, 1023, 1024, 1025, 2049),
    "rows": (3, 1, 0, 9),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "offset storage", "every other row", "transposed"),
    "mapping": MAPPINGS[:4],
}


def _pool(row: Row, s: Stream) -> Pool:
    mapping = map_rows(row["mapping"], row["rows"])
    return {
        "logits": axes.logits(row["logits"], row["rows"], row["vocab"], s, FLOATS[row["dtype"]], row["layout"]),
        "expanded_idx_mapping": torch.tensor(mapping, dtype=torch.int32),
        "min_p": per_slot(row["min_p"].over(row["rows"]), mapping, 0.6, torch.float32),
    }


def cases() -> Iterator[Case]:
    # The plain value of the parameter is "off"; the extremes of the other axes say something only when it is on.
    on = {**AXES, "min_p": (axes.MIN_P[1], *axes.MIN_P[:1], *axes.MIN_P[2:])}
    yield from axes.cases_from(
        on,
        _pool,
        name="v2.apply_min_p",
        contract=lambda row: (
            row["logits"] not in axes.UNUSUAL_LOGITS
            and row["layout"] != "transposed"
            and not row["mapping"].startswith("-1")
        ),
        alone={"layout": (axes.FAR_ROWS,)},
        limit=100,
    )
    yield Case("no tensor of min_p", lambda: {**_pool(axes.plain(on), axes.stream("no min_p")), "min_p": None}, False)


def prepare(arm: Arm, pool: Pool) -> Call:
    """A call of `apply_min_p`; versions before slots take one value a row."""
    function = arm.first(*APPLY_MIN_P)
    values = dict(pool)
    if "expanded_idx_mapping" not in takes(function) and "idx_mapping" not in takes(function):
        if pool["min_p"] is not None:
            values["min_p"] = pool["min_p"][pool["expanded_idx_mapping"].long()]
        arm.note("min_p is one a row, taken from its slot")
    return Call(function, kwargs=arm.bind(function, values, idx_mapping="expanded_idx_mapping"))


def _of_rows(pool: Pool) -> torch.Tensor:
    made: torch.Tensor = pool["min_p"][pool["expanded_idx_mapping"].long()]
    return made


def _tiny(pool: Pool) -> Pool | None:
    """A value so small that it shuts out nothing."""
    off = pool["min_p"] is not None and bool((_of_rows(pool) == 0).all())
    return {"min_p": torch.full_like(pool["min_p"], 2.0**-24)} if off and relations.likely(pool["logits"]) else None


_ROWS = ("logits", "expanded_idx_mapping")

TARGETS = (
    Target(
        "v2.apply_min_p",
        APPLY_MIN_P,
        cases,
        prepare,
        triton=True,
        rows=("logits",),
        invariants=(
            relations.filters("logits"),
            relations.keeps_the_likeliest("logits"),
            relations.unchanged("min_p", "expanded_idx_mapping"),
            relations.off_rows("logits", lambda pool: _of_rows(pool) == 0, "min-p of 0"),
        ),
        relations=(
            *relations.of_rows(_ROWS, ("logits",)),
            relations.relaid("logits", ("logits",)),
            relations.same_with("min-p near 0 is none where every id is likely", _tiny, ("logits",)),
        ),
        shapes=shapes.of_cases(cases, "vocabulary"),
    ),
)
