"""The result of a bench: one immutable object that every report reads and none changes. No torch here.

The JSON form of :class:`BenchResult` is the schema `difftest.bench/1` (`difftest/schema/bench.json`). Times are in
microseconds a call, changes in percent of base's time, positive where head is slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from difftest.result import Identity

from .statistics import SpeedVerdict

SCHEMA = "difftest.bench/1"
GATE_FAILED = 4
NOTHING_MEASURED = 3


def speed_words(percent: float) -> str:
    """The change of head's time in words: `faster by 64.6 %`, `slower by 2.0 %`, `as fast`."""
    shown = f"{abs(percent):.1f} %"
    return "as fast" if shown == "0.0 %" else f"{'faster' if percent < 0 else 'slower'} by {shown}"


@dataclass(frozen=True)
class TimedPair:
    """A block of base beside a block of head.

    Attributes:
        layout: index into :attr:`ShapeResult.layouts`.
        base_us, head_us: microseconds a call.
        head_first: whether head's block came first.
    """

    layout: int
    base_us: float
    head_us: float
    head_first: bool


@dataclass(frozen=True)
class Layout:
    """One loading of both arms.

    Attributes:
        process: which worker process, counted from 0.
        loaded_first: `base` or `head`.
        delta_percent: what this layout alone says.
    """

    process: int
    loaded_first: str
    delta_percent: float


@dataclass(frozen=True)
class ArmTimes:
    """One arm's times of one shape, in microseconds a call.

    Attributes:
        shortest: the shortest block.
        median: the median block.
        p95: nearest-rank 95th percentile of the blocks.
        first_call: the first call of all in a process (compiling included), median over processes.
        spread_percent: interquartile range over median of the blocks within a layout.
        garbage: objects in reference cycles that a call leaves; collecting them is part of the times.
    """

    shortest: float
    median: float
    p95: float
    first_call: float
    spread_percent: float
    garbage: float = 0.0


@dataclass(frozen=True)
class ShapeResult:
    """One target at one input shape: base against one head.

    Attributes:
        target, shape, head: names; `axes` are the shape's numbers (`batch`, `vocabulary`), where it has them.
        base, head_times: the times of each arm.
        delta_percent, interval: the change and its 95 % interval; with fewer than four layouts the interval is only the
            range of what their pairs say.
        verdict, words: the verdict, and as a person says it, bound included (`no change within ±0.6 %`).
        probability: of such a change without any cause; `corrected` for the number of shapes in its grid.
        spread_percent: the larger of the arms' spreads.
        floor_percent, floor_interval: base against base, measured alike; None where it was not asked for.
        layouts, pairs: what it rests on.
        calls: calls in a block.
        loop_ns: the measuring loop's own cost of a call; part of both arms' times.
        more_pairs: how many pairs more would settle it, if it is inconclusive.
        differs: the outputs differ, and it was timed all the same.
        notes: everything else that a reader must know.
    """

    target: str
    shape: str
    head: str
    axes: Mapping[str, float]
    base: ArmTimes
    head_times: ArmTimes
    delta_percent: float
    interval: tuple[float, float]
    verdict: str
    words: str
    probability: float
    corrected: float
    spread_percent: float
    layouts: tuple[Layout, ...]
    pairs: tuple[TimedPair, ...]
    calls: int
    loop_ns: float
    floor_percent: float | None = None
    floor_interval: tuple[float, float] | None = None
    more_pairs: int = 0
    differs: bool = False
    notes: tuple[str, ...] = ()

    @property
    def base_us(self) -> float:
        return self.base.shortest

    @property
    def head_us(self) -> float:
        return self.head_times.shortest


@dataclass(frozen=True)
class GridResult:
    """All shapes of one target for one head.

    Attributes:
        shapes: how many were timed; `verdicts` counts them by verdict.
        median_percent, worst_percent, worst_shape: of the changes; the worst is the slowest head.
        slower_corrected: slower shapes that remain after correction for the number of shapes.
        words: the whole in one sentence.
        growth: sentences on how time grows with an axis.
        crossing: sentences on where head is better, alone and against the other heads.
    """

    target: str
    head: str
    shapes: int
    verdicts: Mapping[str, int]
    median_percent: float
    worst_percent: float
    worst_shape: str
    slower_corrected: int
    words: str
    growth: tuple[str, ...] = ()
    crossing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Untimed:
    """A shape or a whole target that was not timed.

    Attributes:
        asked: whether its absence means that something is unmeasured. Not so for a target that nobody named and that
            cannot be timed here at all (no timing shapes, needs another device), or for which the time did not suffice.
    """

    target: str
    head: str
    reason: str
    shape: str = ""
    asked: bool = True


@dataclass(frozen=True)
class BenchResult:
    """Everything a bench found.

    Attributes:
        spread_limit_percent: a spread above it is said.
        max_regression_percent: the gate, where one was asked for; `regressions` are the shapes whose interval lies
            beyond it, as `target, shape, head` lines.
    """

    base: Identity
    heads: tuple[Identity, ...]
    environment: Mapping[str, Any]
    shapes: tuple[ShapeResult, ...]
    grids: tuple[GridResult, ...]
    untimed: tuple[Untimed, ...] = ()
    spread_limit_percent: float = 1.5
    max_regression_percent: float | None = None
    regressions: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA

    @property
    def exit_code(self) -> int:
        """0; 4 when a shape is beyond the gate; 3 when something asked for was not timed and no gate failed."""
        if self.regressions:
            return GATE_FAILED
        return NOTHING_MEASURED if self.missed or not self.shapes else 0

    @property
    def missed(self) -> tuple[Untimed, ...]:
        """What was asked for and not timed."""
        return tuple(item for item in self.untimed if item.asked)

    def count(self, verdict: SpeedVerdict) -> int:
        return sum(shape.verdict == verdict for shape in self.shapes)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, as `difftest/schema/bench.json` describes them."""
        data: dict[str, Any] = asdict(self)
        for shape, source in zip(data["shapes"], self.shapes, strict=True):
            shape["base_us"], shape["head_us"] = source.base_us, source.head_us
        return {"schema": data.pop("schema"), **_plain(data)}


def _plain(value: Any) -> Any:
    """Tuples as lists, as they come back from a file."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
