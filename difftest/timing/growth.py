"""How time grows with the batch or the vocabulary, and from where on one candidate is better. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

UNITS = {"batch": "request", "vocabulary": "token of the vocabulary", "max_spec_len": "draft token"}
"""What one more on an axis is."""


@dataclass(frozen=True)
class Growth:
    """Time as a fixed part and a part in proportion to an axis.

    Attributes:
        fixed_us: time at 0, never below 0.
        each_us: time that one more takes, never below 0.
        error_us: standard error of `each_us`.
        deviation: median relative distance of the times from the line.
        reach: share of the time at the axis' largest value that the axis accounts for.
    """

    fixed_us: float
    each_us: float
    error_us: float
    deviation: float
    reach: float

    @property
    def grows(self) -> bool:
        """Whether the axis matters: certainly more than nothing, and more than a tenth of the largest time."""
        return self.each_us > 2 * self.error_us and self.reach > 0.1


def fit(axis: ArrayLike, times_us: ArrayLike) -> Growth:
    """Least squares on relative distances, so that a batch of 1 counts as much as one of 512.

    Raises:
        ValueError: fewer than three different values on the axis, or times that are not above 0.
    """
    x, y = np.asarray(axis, np.float64), np.asarray(times_us, np.float64)
    if x.shape != y.shape or len(np.unique(x)) < 3 or not (y > 0).all():
        raise ValueError("a fit needs times above 0 at three different values or more")
    design = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    solution, *_ = np.linalg.lstsq(design, np.ones_like(y), rcond=None)
    fixed, each = float(solution[0]), float(solution[1])
    if fixed < 0:
        fixed, each = 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))
    elif each < 0:
        fixed, each = float(np.sum(1 / y) / np.sum(1 / y**2)), 0.0
    away = design @ np.array([fixed, each]) - 1
    variance = float(away @ away) / max(1, y.size - 2)
    error = float(np.sqrt(variance * np.linalg.inv(design.T @ design)[1, 1]))
    largest = float(x.max())
    return Growth(fixed, each, error, float(np.median(np.abs(away))), each * largest / (fixed + each * largest))


def growth_words(axis: str, base: Growth, head: Growth) -> str:
    """`grows with the batch: 0.27 -> 0.13 µs a request`, base's figure first."""
    unit = UNITS.get(axis, axis)
    name = axis.replace("_", " ")
    if not base.grows and not head.grows:
        return f"does not grow with the {name}"
    one, two = (_figure(fitted.each_us) if fitted.grows else "0" for fitted in (base, head))
    rough = max(base.deviation, head.deviation)
    roughly = f" (roughly: times lie {100 * rough:.0f} % off a straight line)" if rough > 0.15 else ""
    return f"grows with the {name}: {one} → {two} µs a {unit}{roughly}"


def crossing_words(axis: str, better: Mapping[float, bool | None]) -> str:
    """From where on it is better: `better from batch 4 on`.

    Args:
        better: by value of the axis: better, worse, or None where the two are alike or nothing is known.
    """
    name = axis.replace("_", " ")
    known = [(value, better[value]) for value in sorted(better) if better[value] is not None]
    if not known:
        return f"no difference shown at any {name}"
    alike = sum(side is None for side in better.values())
    rest = f", alike at {alike} of {len(better)}" if alike else ""
    turns = [n for n in range(1, len(known)) if known[n][1] != known[n - 1][1]]
    if not turns:
        word = "better" if known[0][1] else "worse"
        return f"{word} at every {name}" if not alike else f"{word} or alike at every {name}{rest}"
    if len(turns) == 1:
        if known[0][1]:
            return f"better up to {name} {known[turns[0] - 1][0]:g}, worse from {known[turns[0]][0]:g} on{rest}"
        return f"better from {name} {known[turns[0]][0]:g} on, worse up to {known[turns[0] - 1][0]:g}{rest}"
    wins = ", ".join(f"{value:g}" for value, side in known if side)
    return f"better at {name} {wins}, worse elsewhere{rest}"


def by_axis(values: Sequence[float], changes: Sequence[float], band: float) -> dict[float, bool | None]:
    """Whether each value of an axis is better, by the median change there; None within `band` on either side of 0."""
    found: dict[float, list[float]] = {}
    for value, change in zip(values, changes, strict=True):
        found.setdefault(value, []).append(change)
    middle = {value: float(np.median(some)) for value, some in found.items()}
    return {value: None if abs(change) <= band else change < 0 for value, change in middle.items()}


def _figure(value: float) -> str:
    """Two significant digits, never in powers of ten."""
    if value == 0:
        return "0"
    digits = max(0, 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:.{digits}f}"
