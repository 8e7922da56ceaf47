"""From measured layouts to the results of shapes and grids. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from . import statistics
from .blocks import Conditions, Pair
from .growth import by_axis, crossing_words, fit, growth_words
from .result import ArmTimes, GridResult, Layout, ShapeResult, TimedPair, speed_words
from .statistics import Decision, Estimate, Rule, SpeedVerdict

GROWTH_AXES = ("batch", "vocabulary")


@dataclass(frozen=True)
class Measured:
    """What one layout gave: whole quads in order.

    Attributes:
        process: which worker process.
        loaded_first: which arm was loaded first, `base` or `head`.
        pairs: as :meth:`difftest.timing.blocks.PairedBlocks.take` gives them.
        conditions: what they were measured under.
    """

    process: int
    loaded_first: str
    pairs: tuple[Pair, ...]
    conditions: Conditions


def estimate_of(measured: Sequence[Measured], confidence: float = 0.95) -> Estimate:
    """The change over all layouts. The last ones are remembered: what settles a shape is asked for again at the end.

    Raises:
        ValueError: nothing measured, or a layout without pairs.
    """
    return _estimate_of(tuple(measured), confidence)


@lru_cache(maxsize=2048)
def _estimate_of(measured: tuple[Measured, ...], confidence: float) -> Estimate:
    return statistics.estimate([_ratios(layout) for layout in measured], confidence=confidence)


def settled(measured: Sequence[Measured], rule: Rule) -> Decision | None:
    """The decision, once there is one; None while it is inconclusive."""
    decision = statistics.decide(estimate_of(measured, rule.confidence), rule)
    return None if decision.verdict is SpeedVerdict.INCONCLUSIVE else decision


def quads_wanted(measured: Sequence[Measured], loading: float) -> int:
    """Quads of a further layout with which the time says the most, where loading it costs that of so many quads."""
    return math.ceil(statistics.pairs_wanted([_ratios(layout) for layout in measured], 2 * loading) / 2)


def judge_shape(
    target: str,
    shape: str,
    head: str,
    axes: Mapping[str, float],
    measured: Sequence[Measured],
    *,
    rule: Rule | None = None,
    floor: Sequence[Measured] = (),
    differs: bool = False,
    notes: Sequence[str] = (),
) -> ShapeResult:
    """The result of one shape. `floor` is base against base, measured alike; where it proves a change, so may a head.

    Raises:
        ValueError: nothing measured, or a layout without pairs.
    """
    rule = rule or Rule()
    if floor:
        ground = estimate_of(floor, rule.confidence)
        rule = rule.above(ground.proven)
    found = estimate_of(measured, rule.confidence)
    decision = statistics.decide(found, rule)
    said = list(notes)
    disagreements = sum(layout.conditions.disagreements for layout in measured)
    own = sum(layout.conditions.disagreements for layout in floor)
    if disagreements and own:  # memory that nobody wrote, or results that are drawn anew
        said.append(f"base's results differ from base's own, too ({own} of {ground.pairs} pairs)")
    elif disagreements:
        said.append(f"results differed in {disagreements} of {found.pairs} pairs while timed")
        if decision.verdict is SpeedVerdict.FASTER:
            decision = Decision(
                SpeedVerdict.INCONCLUSIVE, f"{decision.words}, but its results are not base's: nothing is decided"
            )
    if any(layout.conditions.recycled for layout in measured):
        said.append("inputs are too large to be kept, so addresses may have come twice")
    kept = sum(layout.conditions.kept_interrupted for layout in measured)
    if 4 * kept > found.pairs // 2:
        said.append(
            f"the scheduler interrupted {kept} of {found.pairs // 2} quads that were kept: a quieter machine is needed"
        )
    base = _arm_times([[p.base_ns for p in m.pairs] for m in measured], measured, "base")
    times = _arm_times([[p.head_ns for p in m.pairs] for m in measured], measured, "head")
    for arm, of in (("base", base), ("head", times)):
        if of.garbage >= 0.5:
            said.append(f"{arm} leaves {of.garbage:.0f} objects a call in reference cycles; collecting them is counted")
    return ShapeResult(
        target=target,
        shape=shape,
        head=head,
        axes=dict(axes),
        base=base,
        head_times=times,
        delta_percent=100 * found.change,
        interval=(100 * found.low, 100 * found.high),
        verdict=decision.verdict,
        words=decision.words,
        probability=found.probability,
        corrected=found.probability,
        spread_percent=max(base.spread_percent, times.spread_percent),
        layouts=tuple(Layout(m.process, m.loaded_first, 100 * (float(np.median(_ratios(m))) - 1)) for m in measured),
        pairs=tuple(
            TimedPair(n, p.base_ns / 1e3, p.head_ns / 1e3, p.head_first)
            for n, layout in enumerate(measured)
            for p in layout.pairs
        ),
        calls=round(float(np.median([m.conditions.calls for m in measured]))),
        loop_ns=float(np.median([m.conditions.loop_ns for m in measured])),
        floor_percent=100 * ground.change if floor else None,
        floor_interval=(100 * ground.low, 100 * ground.high) if floor else None,
        more_pairs=decision.more_pairs,
        differs=differs,
        notes=tuple(said),
    )


def corrected(shapes: Sequence[ShapeResult]) -> list[ShapeResult]:
    """The same shapes, each probability corrected (Holm) for the shapes of its target and head."""
    every = list(shapes)
    for key in {(shape.target, shape.head) for shape in every}:
        places = [n for n, shape in enumerate(every) if (shape.target, shape.head) == key]
        for place, probability in zip(places, statistics.holm([every[n].probability for n in places]), strict=True):
            every[place] = replace(every[place], corrected=probability)
    return every


def judge_grids(shapes: Sequence[ShapeResult], rule: Rule | None = None) -> list[GridResult]:
    """One result for each target and head, in the order in which they first appear. Shapes should be corrected."""
    rule = rule or Rule()
    keys = list(dict.fromkeys((shape.target, shape.head) for shape in shapes))
    return [_grid(target, head, shapes, rule) for target, head in keys]


def regressions(shapes: Sequence[ShapeResult], max_regression_percent: float) -> list[str]:
    """The shapes that fail the gate: the whole interval is beyond it, and the verdict is slower."""
    return [
        f"{shape.target}, {shape.shape}, {shape.head}"
        for shape in shapes
        if shape.verdict == SpeedVerdict.SLOWER and shape.interval[0] > max_regression_percent
    ]


def _ratios(layout: Measured) -> statistics.Floats:
    return statistics.ratios([p.base_ns for p in layout.pairs], [p.head_ns for p in layout.pairs])


def _arm_times(layouts: list[list[float]], measured: Sequence[Measured], arm: str) -> ArmTimes:
    every = np.concatenate([np.asarray(times) for times in layouts]) / 1e3
    conditions = [layout.conditions for layout in measured]
    first = [c.base_first_ns if arm == "base" else c.head_first_ns for c in conditions]
    # Only a process' first layout meets an arm that never ran; what it compiles may serve the later ones.
    begun = {layout.process: ns for layout, ns in zip(reversed(measured), reversed(first), strict=True)}
    return ArmTimes(
        shortest=float(every.min()),
        median=float(np.median(every)),
        p95=statistics.nearest_rank(every, 95),
        first_call=float(np.median(list(begun.values()))) / 1e3,
        spread_percent=100 * statistics.spread(layouts),
        garbage=float(np.mean([c.base_garbage if arm == "base" else c.head_garbage for c in conditions])),
    )


def _grid(target: str, head: str, shapes: Sequence[ShapeResult], rule: Rule) -> GridResult:
    every = [shape for shape in shapes if shape.target == target]
    mine = [shape for shape in every if shape.head == head]
    counts = {str(v): sum(shape.verdict == v for shape in mine) for v in SpeedVerdict}
    # One loading of both arms may say anything: where there are shapes that rest on more, it counts for nothing.
    known = [shape for shape in mine if len(shape.layouts) >= statistics.FEWEST_LAYOUTS] or mine
    changes = [shape.delta_percent for shape in known]
    worst = max(known, key=lambda shape: shape.delta_percent)
    sure = sum(shape.verdict == SpeedVerdict.SLOWER and shape.corrected < 0.05 for shape in mine)
    result = GridResult(
        target=target,
        head=head,
        shapes=len(mine),
        verdicts=counts,
        median_percent=float(np.median(changes)),
        worst_percent=worst.delta_percent,
        worst_shape=worst.shape,
        slower_corrected=sure,
        words="",
        growth=_growth(mine),
        crossing=tuple(_crossings(mine, every, head, rule)),
    )
    return replace(result, words=_grid_words(result))


def _grid_words(grid: GridResult) -> str:
    of = f"of {grid.shapes}" if grid.shapes > 1 else "of 1 shape"
    counts = [
        f"{count} {'no change' if verdict == SpeedVerdict.NO_CHANGE else verdict}"
        for verdict, count in grid.verdicts.items()
        if count
    ]
    median, worst = speed_words(grid.median_percent), speed_words(grid.worst_percent)
    words = f"{', '.join(counts)} {of}; median {median}, worst {worst}"
    slower = grid.verdicts[SpeedVerdict.SLOWER]
    if grid.shapes == 1 or not slower:
        return f"{words}; none regresses" if not slower and not grid.verdicts[SpeedVerdict.INCONCLUSIVE] else words
    held = f"{grid.slower_corrected} of {slower} slower hold after correction for {grid.shapes} shapes"
    return f"{words} ({grid.worst_shape}); {held}"


def _growth(shapes: Sequence[ShapeResult]) -> tuple[str, ...]:
    said = []
    for axis in GROWTH_AXES:
        having = [shape for shape in shapes if axis in shape.axes]
        values = [shape.axes[axis] for shape in having]
        if len(set(values)) >= 3:
            base, head = (
                [t.median for t in times] for times in zip(*((s.base, s.head_times) for s in having), strict=True)
            )
            said.append(growth_words(axis, fit(values, base), fit(values, head)))
    return tuple(said)


def _crossings(mine: Sequence[ShapeResult], every: Sequence[ShapeResult], head: str, rule: Rule) -> list[str]:
    band = 100 * rule.threshold
    having = [shape for shape in mine if "batch" in shape.axes]
    if len({shape.axes["batch"] for shape in having}) < 2:
        return []
    # A shape that is not settled is neither alike nor better.
    settled_ones = [shape for shape in having if shape.verdict != SpeedVerdict.INCONCLUSIVE]
    said = [crossing_words("batch", by_axis(*_by_batch(settled_ones), band))] if settled_ones else []
    unknown = {shape.axes["batch"] for shape in having} - {shape.axes["batch"] for shape in settled_ones}
    if said and unknown:
        said[0] += f"; not settled at {', '.join(f'{batch:g}' for batch in sorted(unknown))}"
    having = [shape for shape in having if len(shape.layouts) >= statistics.FEWEST_LAYOUTS]
    others = dict.fromkeys(shape.head for shape in every if shape.head != head)
    for other in others:
        theirs = {shape.shape: shape.head_times.median / shape.base.median for shape in every if shape.head == other}
        both = [shape for shape in having if shape.shape in theirs]
        if len({shape.axes["batch"] for shape in both}) < 2:
            continue
        changes = [100 * (shape.head_times.median / shape.base.median / theirs[shape.shape] - 1) for shape in both]
        # Two heads meet only through base, so less is certain: twice the band.
        words = crossing_words("batch", by_axis([s.axes["batch"] for s in both], changes, 2 * band))
        said.append(f"against {other}: {words}")
    return said


def _by_batch(shapes: Sequence[ShapeResult]) -> tuple[list[float], list[float]]:
    """Batches and changes; a change that is not decided counts as none."""
    decided = (SpeedVerdict.FASTER, SpeedVerdict.SLOWER)
    return (
        [shape.axes["batch"] for shape in shapes],
        [shape.delta_percent if shape.verdict in decided else 0.0 for shape in shapes],
    )
