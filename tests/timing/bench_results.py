"""Measured layouts and results for tests, as a machine would give them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from difftest.result import Identity
from difftest.timing.blocks import Conditions, Pair
from difftest.timing.judge import Measured, corrected, judge_grids, judge_shape, regressions
from difftest.timing.result import BenchResult, ShapeResult, Untimed

CONDITIONS = Conditions(
    base_first_ns=900_000, head_first_ns=52_000_000, calls=7, loop_ns=31.5, base_garbage=0.0, head_garbage=0.0
)


def measured(
    base_us: float, change: float, *, layouts: int = 12, quads: int = 10, seed: int = 0, offset: float = 0.003
) -> list[Measured]:
    """Layouts in which head takes `1 + change` of base's time, with offsets and heavy-tailed noise."""
    rng = np.random.default_rng(seed)
    found = []
    for layout in range(layouts):
        shift = (1 + change) * (1 + rng.normal(0, offset))
        noise = 1 + 0.01 * np.abs(rng.standard_t(3, (2, 2 * quads)))
        base, head = base_us * 1e3 * noise[0], base_us * 1e3 * shift * noise[1]
        pairs = tuple(
            Pair(float(b), float(h), head_first=n % 4 in (1, 2))
            for n, (b, h) in enumerate(zip(base, head, strict=True))
        )
        found.append(Measured(layout // 4, "base" if layout % 2 else "head", pairs, CONDITIONS))
    return found


def shape(
    batch: int,
    base_us: float,
    change: float,
    head: str = "WORKTREE",
    drafts: int = 3,
    floor: bool = True,
    **options: int | float,
) -> ShapeResult:
    return judge_shape(
        "v1.parse_output",
        f"batch {batch}, {drafts} drafts",
        head,
        {"batch": batch, "max_spec_len": drafts},
        measured(base_us, change, seed=batch, **options),  # type: ignore[arg-type]
        floor=measured(base_us, 0.0, seed=batch + 1) if floor else (),
    )


BASE = Identity("main", "git", "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d")
HEADS = (Identity("WORKTREE", "worktree", "6f5e4d3c2b1a00998877665544332211ffeeddcc", {"dirty": True}),)


def bench(shapes: list[ShapeResult], limit: float | None = None, untimed: tuple[Untimed, ...] = ()) -> BenchResult:
    every = corrected(shapes)
    heads = tuple(replace(HEADS[0], spec=spec) for spec in dict.fromkeys(s.head for s in every)) or HEADS
    return BenchResult(
        base=BASE,
        heads=heads,
        environment={"python": "3.11.9", "torch": "2.13.0", "device": "cpu", "threads": 1},
        shapes=tuple(every),
        grids=tuple(judge_grids(every)),
        untimed=untimed,
        max_regression_percent=limit,
        regressions=tuple(regressions(every, limit)) if limit is not None else (),
        seconds={"total": 12.5},
        command="difftest bench --base main --head WORKTREE",
    )


def grid() -> BenchResult:
    """Two heads: one better everywhere but at batch 1, one worse everywhere by two percent."""
    shapes = [
        shape(batch, 4 + 0.3 * batch, (0.12 if batch == 1 else -0.3), drafts=drafts)
        for batch in (1, 4, 16, 64)
        for drafts in (1, 3)
    ]
    shapes += [shape(batch, 4 + 0.3 * batch, 0.02, head="gather") for batch in (1, 4, 16, 64)]
    return bench(shapes)
