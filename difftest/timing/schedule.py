"""What the next measuring process is to measure, and how much of it.

A short budget is to end in a few verdicts and not in none. A verdict needs at least :data:`FEWEST_LAYOUTS` loadings of
a shape, and most take :data:`PLANNED_LAYOUTS`. So no more shapes are begun than the time left can give that many: in
the first process as many as fit into that part of it; those that are begun are gone on with, as many as still can be
settled; and others begin when time is left over. A shape that so many layouts did not settle waits until no other does.
Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .judge import Measured, quads_wanted
from .statistics import FEWEST_LAYOUTS

PLANNED_LAYOUTS = FEWEST_LAYOUTS + 1
LEAST_SHARE = 0.05
"""Share of the time left that further shapes of loaded targets may have even where loading takes most of the time."""

TARGETS_FIRST = 6
"""Targets that the first process loads, when it is not known yet what loading and measuring take."""

QUADS = {"cpu": (4, 24, 96), "cuda": (12, 24, 96)}
"""Quads of a layout. The first: few where many shapes wait, of which most settle with few; else the second number,
with which four layouts settle what is alike or far apart. From the fourth layout on as many as pay for the loading
(:func:`difftest.timing.judge.quads_wanted`), at most the third number."""

FEW_SHAPES = 12
LOADING_QUADS = 100
"""What a process costs until it measures, in the time of quads; its jobs share it. (A tenth of a second, and 1 ms a
quad, for `v1.parse_output` at batch 16.)"""

Spot = tuple[str, int]
"""A shape of a target, by the target's name and the shape's number: base against base and against every head."""


class Begun(NamedTuple):
    """A shape that was measured before and is not settled.

    Attributes:
        layouts: how many it has.
        seconds: what one of them took.
    """

    layouts: int
    seconds: float


def quads(device: str, measured: Sequence[Measured], shapes: int, jobs: int) -> int:
    """How many quads the next layout of a comparison has; an even number, so that both orders are equally frequent.

    Args:
        measured: its layouts so far.
        shapes: how many shapes the bench has in all.
        jobs: comparisons that the next process measures.
    """
    few, usual, most = QUADS[device]
    if len(measured) < FEWEST_LAYOUTS:
        return few if shapes > FEW_SHAPES else usual
    wanted = quads_wanted(measured, LOADING_QUADS / jobs)
    return max(few, 2 * min(math.ceil(wanted / 2), most // 2))


def in_turn(spots: Iterable[Spot]) -> list[Spot]:
    """One shape of every target, then a second one of every target, and so on; a target's first ones far apart.

    Wherever a budget ends, every target has had its part, and small and large shapes alike.
    """
    by_target: dict[str, list[Spot]] = {}
    for spot in spots:
        by_target.setdefault(spot[0], []).append(spot)
    ranked = []
    for place, mine in enumerate(by_target.values()):
        bits = max(1, (len(mine) - 1).bit_length())
        far_apart = sorted(range(len(mine)), key=lambda n: int(f"{n:0{bits}b}"[::-1], 2))
        ranked += [(rank, place, mine[n]) for rank, n in enumerate(far_apart)]
    return [spot for _, _, spot in sorted(ranked)]


def affordable(left: float, begun: Mapping[Spot, Begun], loading: float) -> list[Spot]:
    """Those under way that the time left suffices for, the nearest to a verdict first; one at least, if there is any.

    Args:
        left: seconds until the budget ends.
        begun: what is under way; where others wait, only what has not had its layouts yet.
        loading: seconds for each of its targets, in every process.
    """
    missing = {spot: max(FEWEST_LAYOUTS - layouts, 1) for spot, (layouts, _) in begun.items()}
    chosen: list[Spot] = []
    needed = 0.0
    targets: set[str] = set()
    for spot in sorted(begun, key=lambda spot: (missing[spot], begun[spot].seconds)):
        needed += missing[spot] * (begun[spot].seconds + (loading if spot[0] not in targets else 0.0))
        targets.add(spot[0])
        if chosen and needed > left:
            break
        chosen.append(spot)
    return chosen


def spare(left: float, begun: Mapping[Spot, Begun], loading: float) -> float:
    """Seconds of a process for shapes that are not begun yet.

    Args:
        left: seconds until the budget ends.
        begun: what is under way and has not had its layouts yet.
        loading: seconds for each of its targets, in every process.
    """
    missing = [max(PLANNED_LAYOUTS - layouts, 0) for layouts, _ in begun.values()]
    needed = sum(count * had.seconds for count, had in zip(missing, begun.values(), strict=True))
    needed += max(missing, default=0) * loading * len({target for target, _ in begun})
    return max(left - needed, 0.0) / PLANNED_LAYOUTS


def least(left: float) -> float:
    """Seconds that further shapes of loaded targets may have in any case."""
    return max(left, 0.0) * LEAST_SHARE


def offered(
    waiting: Sequence[Spot],
    seconds: float,
    known: Mapping[Spot, float],
    loaded: Iterable[str] = (),
    loading: float = 0.0,
) -> list[Spot]:
    """Those to offer to a process that has so many seconds for new ones, as far as can be told from others' times.

    Every arm of a target that is offered gets loaded, so offering much for nothing costs time. The process itself
    begins nothing when its seconds are over.

    Args:
        waiting: those not begun, in the order in which they should.
        seconds: time for them.
        known: what a layout of others took.
        loaded: targets that the process loads in any case.
        loading: seconds to load another one.
    """
    if not known:
        first = list(dict.fromkeys(target for target, _ in waiting))[:TARGETS_FIRST]
        return [spot for spot in waiting if spot[0] in first]
    usual = sum(known.values()) / len(known)
    by_target: dict[str, list[float]] = {}
    for (target, _), took in known.items():
        by_target.setdefault(target, []).append(took)
    chosen = []
    targets = set(loaded)
    for spot in waiting:
        times = by_target.get(spot[0])
        seconds -= sum(times) / len(times) if times else usual
        seconds -= loading if spot[0] not in targets else 0.0
        targets.add(spot[0])
        if seconds < 0:
            break
        chosen.append(spot)
    return chosen
