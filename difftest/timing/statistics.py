"""From pairs of block times to a verdict. Pure functions over numpy arrays, no torch.

The unit of evidence is a *layout*: one loading of both arms in one process. Code and data land at other addresses at
every loading, and that alone shifts the ratio of two identical functions by about half a percent (measured: standard
deviation 0.5 % for pure Python of 3 µs, 0.4 % for small torch operations), however many pairs are taken. So pairs say
how precisely a layout is known, and only several layouts say anything about the code.

Rule. A layout's ratio is the median of its per-pair ratios, as many with base first as with head first: drift and the
place in the order cancel, and disturbed blocks do not count. (On the same blocks, at a load of 7 to 9 on 2 cores, this
had a standard deviation over layouts of 0.3 to 0.4 %; ratios of whole quads 0.4 to 0.5 %, of lower quartiles 0.3 to
0.6 %, of minima 0.5 to 1 %.) The estimate is the mean of the layouts' medians with the outermost tenth left out on each
side. A hierarchical bootstrap (layouts, and pairs within layouts) gives its error, widened as Student's t asks for at
few layouts. A head is

- *slower* or *faster* when the estimate is beyond `Rule.threshold` (0.5 %) and a change of nothing would give it with a
  probability below `Rule.alpha` (1 in 10,000: a bench asks many shapes, and asks again after more layouts);
- *no change* when the whole 95 % interval is within `Rule.margin` (0.8 %);
- *inconclusive* otherwise: more layouts are needed.

What it does, simulated with layout offsets of 0.45 % (a seventh of them three times the rest), shifts of whole
processes of 0.1 %, Student-t noise (3 degrees) of 1 % a pair, 15 % of the pairs disturbed by 30 % on average and a
place effect of 0.4 %; 48 pairs in the first four layouts, then as many as :func:`pairs_wanted` says for four shapes,
asked after 4, 6, 8 … and at most 80:

====== ================================================ ========= ======
truth  verdicts                                         layouts   pairs
====== ================================================ ========= ======
0      1000 no change of 1000                           9         330
0.5 %  30 slower, 70 no change of 100                   24        760
1 %    300 slower of 300                                18        610
2 %    100 slower of 100                                10        360
3 %    100 slower of 100                                7         290
5 %    100 slower of 100                                6         260
====== ================================================ ========= ======

With pairs four times as noisy and layouts as above: 600 no change of 600 (18 layouts, 1640 pairs) and 200 of 200
changes of 1 % found (31 layouts, 3010 pairs).

Why asking again and again is allowed: each of the at most 13 questions has the small alpha to itself, so by Bonferroni
fewer than 13 in 10,000 shapes without a change would be called changed, were there no threshold as well. Layouts of
unlike numbers of pairs vary by unlike amounts; Student's t of a mean of such ones is at small alphas never beyond its
quantiles more often than of like ones (Bakirov and Székely 2006; Ibragimov and Müller 2010). How many pairs the next
layout has depends on how far those before lie apart, never on which arm they favour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

RESAMPLES = 50_000
FEWEST_LAYOUTS = 4
"""Layouts below which nothing is said of the code: what layouts vary by is not known from so few."""
OFFSET = 0.002
"""What layouts vary by at least, however little they seem to: a few of them may be alike by chance."""
_MEDIANS = 512
"""Resampled medians that are kept for each layout; the bootstrap draws from them."""


class SpeedVerdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    NO_CHANGE = "no-change"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Rule:
    """When something counts as changed; fractions, not percent.

    Attributes:
        threshold: an estimate within it is never called faster or slower.
        alpha: largest probability, without a change, of an estimate that is called faster or slower.
        margin: an interval within it is called no change.
        confidence: of the interval.
        layouts: fewest layouts for any verdict but inconclusive.
    """

    threshold: float = 0.005
    alpha: float = 1e-4
    margin: float = 0.008
    confidence: float = 0.95
    layouts: int = FEWEST_LAYOUTS

    def above(self, floor: float) -> Rule:
        """The rule where base against base already shows `floor`: neither threshold nor margin is below it."""
        return Rule(max(self.threshold, floor), self.alpha, max(self.margin, floor), self.confidence, self.layouts)


@dataclass(frozen=True)
class Estimate:
    """How head compares with base; fractions of base's time, 0.01 is 1 % slower.

    Attributes:
        change: the estimate.
        low, high: its interval; below :data:`FEWEST_LAYOUTS` only the range of what the layouts' own pairs say, since
            Student's t of two or three layouts spans everything and says nothing.
        error: standard error; infinite with a single layout.
        probability: of an estimate at least as far from 0, if nothing had changed.
        layouts, pairs: what it rests on.
    """

    change: float
    low: float
    high: float
    error: float
    probability: float
    layouts: int
    pairs: int

    @property
    def proven(self) -> float:
        """The part of the change that the whole interval has; 0 where it holds no change at all.

        Of base against base, this is the floor. The estimate is not: one disturbed layout of four moves it far,
        and a verdict of "no change" within so much would say nothing.
        """
        return max(0.0, self.low, -self.high) if self.layouts >= FEWEST_LAYOUTS else 0.0


@dataclass(frozen=True)
class Decision:
    """A verdict, and what was decided.

    Attributes:
        verdict: faster, slower, no change or inconclusive.
        words: the verdict as a person says it: `no change within ±0.6 %`.
        within: for no change, the bound that holds; otherwise 0.
        more_pairs: for inconclusive, about how many pairs more would settle it (with too few layouts, how many are
            missing at least); otherwise 0.
    """

    verdict: SpeedVerdict
    words: str
    within: float = 0.0
    more_pairs: int = 0


def ratios(base: ArrayLike, head: ArrayLike) -> Floats:
    """Head's time over base's, pair by pair.

    Raises:
        ValueError: the arms have different numbers of times, or none, or a time that is not above 0 and finite.
    """
    one, two = np.asarray(base, np.float64), np.asarray(head, np.float64)
    if one.shape != two.shape or one.ndim != 1 or not one.size:
        raise ValueError(f"base has {one.size} times and head {two.size}; both need the same number, and at least one")
    if not (np.isfinite(one).all() and np.isfinite(two).all() and (one > 0).all() and (two > 0).all()):
        raise ValueError("times must be finite and above 0")
    return two / one


def nearest_rank(values: ArrayLike, percent: float) -> float:
    """The smallest of the values that at least `percent` of them do not exceed.

    Raises:
        ValueError: no values, or a percentage that is not above 0 and at most 100.
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=None)
    if not ordered.size or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} of {ordered.size} values")
    return float(ordered[math.ceil(percent * ordered.size / 100) - 1])


def spread(layouts: Sequence[ArrayLike]) -> float:
    """Spread of one arm's times within a layout: interquartile range over median, median over layouts; a fraction."""
    if not layouts:
        raise ValueError("no times")
    quarters = [np.percentile(np.asarray(times, np.float64), (25, 50, 75)) for times in layouts]
    return float(np.median([(high - low) / middle for low, middle, high in quarters]))


def estimate(
    layouts: Sequence[ArrayLike], *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """The change and its interval from per-pair ratios, one sequence a layout.

    Raises:
        ValueError: no layout, or a layout without ratios.
    """
    if not layouts:
        raise ValueError("no layouts")
    logs = [np.sort(np.log(np.asarray(values, np.float64))) for values in layouts]
    if not all(values.size for values in logs):
        raise ValueError("a layout without pairs")
    pairs = sum(values.size for values in logs)
    count = len(logs)
    rng = np.random.default_rng(seed)
    middles = np.array([_median(values) for values in logs])
    center = float(_trimmed_mean(middles[None])[0])
    medians = _at_most_half(np.stack([_resampled_medians(values, rng) for values in logs]), middles)
    tail = (1 - confidence) / 2
    picked = medians.ravel()[rng.integers(0, medians.size, (resamples, count), np.int32)]
    means = _trimmed_mean(picked)
    if count == 1:
        low, high = _range_of(medians, tail)
        return Estimate(math.expm1(center), low, high, math.inf, 1.0, 1, pairs)
    low, high = (float(v) for v in np.quantile(means, (tail, 1 - tail)))
    # A bootstrap of few things is too narrow: it takes their own spread for the true one, and the normal for t.
    few = math.sqrt(count / (count - 1))
    wider = few * student_quantile(1 - tail, count - 1) / NormalDist().inv_cdf(1 - tail)
    error = few * float(means.std())
    beyond = abs(center) / error if error else (math.inf if center else 0.0)
    if count < FEWEST_LAYOUTS:
        low, high = _range_of(medians, tail)
    else:
        low = math.expm1(center + wider * min(low - center, 0.0))
        high = math.expm1(center + wider * max(high - center, 0.0))
    return Estimate(
        change=math.expm1(center),
        low=low,
        high=high,
        error=error,
        probability=2 * student_tail(beyond, count - 1),
        layouts=count,
        pairs=pairs,
    )


def pairs_wanted(layouts: Sequence[ArrayLike], loading: float) -> float:
    """Pairs of a layout with which a given time says the most, as far as a few layouts tell.

    With n pairs, layouts vary by `between + pair / n` and cost `loading + n`; so the variance of their mean after a
    given time goes with the product, which is least at `sqrt(loading * pair / between)`.

    Args:
        layouts: per-pair ratios of what was measured.
        loading: what loading a layout costs, in the time of a pair.

    Raises:
        ValueError: fewer than two layouts.
    """
    if len(layouts) < 2:
        raise ValueError("a single layout varies by nothing")
    logs = [np.log(np.asarray(values, np.float64)) for values in layouts]
    middles = np.array([np.median(values) for values in logs])
    # A median of normal values has pi / 2 times the variance of their mean; quartiles, since pairs have heavy tails.
    spreads = [float(np.subtract(*np.percentile(values, (75, 25)))) / 1.349 for values in logs]
    pair = math.pi / 2 * float(np.mean([spread * spread for spread in spreads]))
    within = pair * float(np.mean([1 / values.size for values in logs]))
    between = max(float(middles.var(ddof=1)) - within, OFFSET**2)
    return math.sqrt(loading * pair / between)


def decide(found: Estimate, rule: Rule | None = None) -> Decision:
    """The verdict that an estimate allows."""
    rule = rule or Rule()
    if found.layouts >= rule.layouts:
        if abs(found.change) > rule.threshold and found.probability < rule.alpha and found.low * found.high > 0:
            verdict = SpeedVerdict.SLOWER if found.change > 0 else SpeedVerdict.FASTER
            return Decision(verdict, f"{verdict} by {percent(abs(found.change))}")
        within = max(-found.low, found.high)
        if within <= rule.margin:
            return Decision(SpeedVerdict.NO_CHANGE, f"no change within ±{bound(within)}", within=within)
    more = more_pairs(found, rule)
    if found.layouts < rule.layouts:
        few = f"too few loadings, {found.layouts} of at least {rule.layouts}"
        said = f"{few}; {signed(found.change)} so far, at least {more} more pairs needed"
    else:
        said = f"between {signed(found.low)} and {signed(found.high)}"
        if max(found.low, -found.high) > rule.threshold:
            said = f"likely {'slower' if found.change > 0 else 'faster'}, {said}, yet not certain"
        said += f"; about {more} more pairs would settle it"
    return Decision(SpeedVerdict.INCONCLUSIVE, f"inconclusive: {said}", more_pairs=more)


def more_pairs(found: Estimate, rule: Rule) -> int:
    """About how many pairs more would settle an inconclusive estimate, if it stays where it is.

    With fewer layouts than any verdict needs, how many are missing: what they vary by is not known yet.
    """
    per_layout = max(1, found.pairs // found.layouts)
    if found.layouts < rule.layouts:
        return per_layout * (rule.layouts - found.layouts)
    size = abs(found.change)
    single = found.error * math.sqrt(found.layouts)
    for count in range(found.layouts + 1, 100_000):
        error = single / math.sqrt(count)
        changed = size > rule.threshold and 2 * student_tail(size / error, count - 1) < rule.alpha
        unchanged = size + student_quantile(0.5 + rule.confidence / 2, count - 1) * error <= rule.margin
        if changed or unchanged:
            return (count - found.layouts) * per_layout
        if count > 4 * found.layouts:  # far from few: t has become the normal, and the rest follows in one step
            break
    wanted = NormalDist().inv_cdf(1 - rule.alpha / 2) if size > rule.threshold else 1.96
    room = size if size > rule.threshold else rule.margin - size
    return math.ceil((single * wanted / room) ** 2 - found.layouts) * per_layout if room > 0 else 100_000 * per_layout


def power(effect: float, single: float, layouts: int, rule: Rule | None = None) -> float:
    """Probability that a change of `effect` is found.

    Args:
        effect: true change, a fraction.
        single: standard deviation of one layout's median ratio, `Estimate.error * sqrt(layouts)`.
        layouts: how many there are, at least 2.
    """
    rule = rule or Rule()
    error = single / math.sqrt(layouts)
    needed = max(rule.threshold, student_quantile(1 - rule.alpha / 2, layouts - 1) * error)
    return NormalDist(abs(effect), error).cdf(2 * abs(effect) - needed) if error else float(abs(effect) > needed)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities corrected for their number (Holm 1979): none of the shapes below alpha is there by chance."""
    values = np.asarray(probabilities, np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(values.size, 0, -1)
    corrected = np.empty(values.size)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return [float(value) for value in corrected]


def benjamini_hochberg(probabilities: Sequence[float]) -> list[float]:
    """Probabilities corrected so that, of the shapes below alpha, at most the share alpha is there by chance (1995)."""
    values = np.asarray(probabilities, np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * values.size / np.arange(1, values.size + 1)
    corrected = np.empty(values.size)
    corrected[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return [float(value) for value in corrected]


def beyond(found: Estimate, limit: float) -> bool:
    """Whether head is slower by more than `limit` (a fraction): its whole interval lies beyond it. The speed gate."""
    return found.layouts > 1 and found.low > limit


def signed(fraction: float) -> str:
    """`+1.2 %`."""
    return f"{100 * fraction:+.1f} %"


def percent(fraction: float) -> str:
    """`1.2 %`."""
    return f"{100 * fraction:.1f} %"


def bound(fraction: float) -> str:
    """A bound in percent, rounded up, so that it stays true."""
    return f"{max(1, math.ceil(1000 * fraction - 1e-9)) / 10:.1f} %"


def _range_of(medians: NDArray[np.floating], tail: float) -> tuple[float, float]:
    """From the lowest to the highest that any layout's own pairs say, as changes."""
    low, high = np.quantile(medians, (tail, 1 - tail), axis=1)
    return math.expm1(float(low.min())), math.expm1(float(high.max()))


def _median(ordered: Floats) -> float:
    return float((ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2)


def _resampled_medians(ordered: Floats, rng: np.random.Generator) -> Floats:
    """Medians of resamples, without resampling: the middle order statistics of n uniform numbers have a known law.

    A resample's k-th smallest value is the original's at the place where the k-th smallest of n uniform numbers falls.
    """
    size = ordered.size
    lower = (size + 1) // 2
    first = rng.beta(lower, size - lower + 1, _MEDIANS)
    second = first if size % 2 else 1 - (1 - first) * rng.random(_MEDIANS) ** (1 / (size - lower))
    places = np.minimum((np.stack([first, second]) * size).astype(np.intp), size - 1)
    middle: Floats = ordered[places].mean(axis=0)
    return middle


def _at_most_half(medians: Floats, middles: Floats) -> NDArray[np.float32]:
    """Resampled medians, contracted so that resampling adds at most half of the variance of the layouts' own medians.

    A layout's median already varies by what its pairs vary, so resampling pairs within resampled layouts counts that
    twice (Davison and Hinkley 1997, section 3.8). A part of it is kept on purpose: it smooths a bootstrap of few
    layouts, and it pays for asking again after more of them. Where the machine is noisy it would be far too much: pairs
    are stratified by order, so drift and the place in a pair cancel in a layout's median but not in a resample of it
    (measured on a machine whose pairs vary by 5 %: an error of 0.37 %, when that of repeated benches was 0.2 %).

    Args:
        medians: resampled ones, [layouts, resamples].
        middles: the layouts' own, [layouts].
    """
    if middles.size > 1 and (within := float(medians.var(axis=1).mean())):
        kept = min(1.0, float(middles.var(ddof=1)) / 2 / within)
        medians = middles[:, None] + math.sqrt(kept) * (medians - middles[:, None])
    return medians.astype(np.float32)


def _trimmed_mean(values: NDArray[np.floating]) -> Floats:
    """Mean of each row without the outermost tenth on each side."""
    cut = values.shape[1] // 10
    if cut:
        values = np.sort(values, axis=1)[:, cut:-cut]
    means: Floats = values.mean(axis=1, dtype=np.float64)
    return means


def student_tail(t: float, df: int) -> float:
    """Probability that Student's t with `df` degrees of freedom is above `t` >= 0.

    A finite series (Abramowitz and Stegun 26.7.3 and 26.7.4); far out, where it cancels, the leading term of the tail
    is exact enough.
    """
    if math.isinf(t):
        return 0.0
    theta = math.atan(t / math.sqrt(df))
    cosine, sine = math.cos(theta), math.sin(theta)
    term, total = 1.0, 0.0
    if df % 2:
        total = theta
        term = sine * cosine
        for n in range(1, df, 2):
            total += term
            term *= cosine * cosine * (n + 1) / (n + 2)
        inside = 2 * total / math.pi
    else:
        term = sine
        for n in range(0, df, 2):
            total += term
            term *= cosine * cosine * (n + 1) / (n + 2)
        inside = total
    tail = (1 - inside) / 2
    if tail > 1e-9:
        return tail
    constant = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    leading = constant * t * math.exp(-(df + 1) / 2 * math.log1p(t * t / df)) / df * (1 + df / (t * t))
    return min(1e-9, leading)


@lru_cache(maxsize=1024)
def student_quantile(probability: float, df: int) -> float:
    """The value that Student's t with `df` degrees of freedom stays below with `probability` in (0.5, 1)."""
    low, high = 0.0, 1.0
    while student_tail(high, df) > 1 - probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, df) > 1 - probability else (low, middle)
    return high
