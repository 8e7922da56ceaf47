"""Whether two samples of tokens follow the same law: chi-square tests of homogeneity, Holm's correction, power."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
"""Emitted tokens, [samples, positions]; -1 where a position emitted none."""

ALPHA = 0.001
"""How often two equal laws may be called different, over all tests of a target."""
POWER = 0.8
_LEAST_EXPECTED = 5.0


@dataclass(frozen=True)
class Test:
    """One test of homogeneity; `adjusted` is `p` after Holm's correction."""

    name: str
    statistic: float
    freedom: int
    p: float
    adjusted: float = 1.0


@dataclass(frozen=True)
class Law:
    """What the tests say.

    Attributes:
        different: whether a test rejects at :data:`ALPHA`.
        samples: rows of each arm.
        smallest_effect: the least total variation distance that every test sees with 80 % power.
    """

    different: bool
    samples: int
    smallest_effect: float
    tests: tuple[Test, ...]


def compare_laws(base: Tokens, head: Tokens, vocabulary: int) -> Law:
    """Tests of each position, of adjacent positions together, and of adjacent rows together.

    A noise stream that is used twice leaves each position's law as it is and shows only jointly.

    Args:
        base, head: independent samples, the same shape, rows that belong together next to each other.
        vocabulary: ids are below it.
    """
    codes = [np.asarray(side, np.int64) + 1 for side in (base, head)]
    size = vocabulary + 1
    tables: list[tuple[str, NDArray[np.int64], NDArray[np.int64], int]] = []
    for k in range(codes[0].shape[1]):
        tables.append((f"position {k}", codes[0][:, k], codes[1][:, k], size))
    for k in range(codes[0].shape[1] - 1):
        pairs = [side[:, k] * size + side[:, k + 1] for side in codes]
        tables.append((f"positions {k} and {k + 1} together", pairs[0], pairs[1], size * size))
    even = len(codes[0]) // 2 * 2
    if even >= 2:
        pairs = [side[0:even:2, 0] * size + side[1:even:2, 0] for side in codes]
        tables.append(("adjacent rows together", pairs[0], pairs[1], size * size))
    tests = [_homogeneity(name, left, right, cells) for name, left, right, cells in tables]
    adjusted = holm([test.p for test in tests])
    tests = [Test(test.name, test.statistic, test.freedom, test.p, p) for test, p in zip(tests, adjusted, strict=True)]
    effects = [
        smallest_effect(len(left), test.freedom, ALPHA / len(tests))
        for test, (_, left, _, _) in zip(tests, tables, strict=True)
        if test.freedom
    ]
    return Law(any(t.adjusted < ALPHA for t in tests), len(base), max(effects, default=1.0), tuple(tests))


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down method."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found, largest = [1.0] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, values[i] * (len(values) - rank)))
        found[i] = largest
    return found


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The chance of a chi-square variable with so many degrees of freedom to be at least `statistic`."""
    if freedom < 1:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def smallest_effect(samples: int, freedom: int, alpha: float) -> float:
    """The total variation distance from which on two samples of this size are told apart with 80 % power.

    With chi-square distance w between the laws the statistic's noncentrality is samples * w^2 / 2; two laws at total
    variation distance d have w >= 2 d.
    """
    critical = _solve(lambda x: alpha - chi_square_tail(x, freedom), 0.0, 10.0 * freedom + 200.0)

    def power(noncentrality: float) -> float:
        terms = torch.arange(0, int(noncentrality / 2 + 12 * math.sqrt(noncentrality + 1)) + 30, dtype=torch.float64)
        weights = torch.exp(
            terms * math.log(max(noncentrality / 2, 1e-300)) - noncentrality / 2 - torch.lgamma(terms + 1)
        )
        tails = torch.special.gammaincc(freedom / 2 + terms, torch.full_like(terms, critical / 2))
        return float((weights * tails).sum())

    noncentrality = _solve(lambda x: power(x) - POWER, 0.0, 20.0 * critical + 100.0)
    return min(1.0, math.sqrt(noncentrality / (2 * samples)))


def _solve(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def _homogeneity(name: str, base: NDArray[np.int64], head: NDArray[np.int64], cells: int) -> Test:
    """Pearson's statistic of two samples of the same size; cells too rare to count are one cell."""
    counts = np.stack([np.bincount(side, minlength=cells) for side in (base, head)]).astype(float)
    both = counts.sum(0)
    rare = both < 2 * _LEAST_EXPECTED
    table = counts[:, ~rare]
    if both[rare].sum():
        table = np.concatenate([table, counts[:, rare].sum(1, keepdims=True)], axis=1)
    expected = table.sum(0) / 2
    statistic = float((((table - expected) ** 2) / expected).sum()) if table.size else 0.0
    freedom = max(0, table.shape[1] - 1)
    return Test(name, statistic, freedom, chi_square_tail(statistic, freedom))
