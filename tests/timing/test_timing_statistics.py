"""The statistics of a bench: what they say when the truth is known."""

import math
import time

import numpy as np
import pytest

from difftest.timing import statistics
from difftest.timing.statistics import Rule, SpeedVerdict, decide, estimate, ratios


def layouts(change: float, count: int, seed: int, offset: float = 0.004, pairs: int = 32) -> list[np.ndarray]:
    """Per-pair ratios as a busy machine gives them: offsets by layout, heavy tails, preempted blocks."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        noise = 0.005 * rng.standard_t(3, pairs)
        preempted = rng.random(pairs) < 0.05
        noise[preempted] += rng.exponential(0.5, preempted.sum()) * rng.choice([-1, 1], preempted.sum())
        found.append(np.exp(np.log1p(change) + rng.normal(0, offset) + noise))
    return found


def test_pairs_of_whole_quads_are_free_of_drift_and_of_the_place_in_a_pair() -> None:
    # base head head base, base head head base, on a machine that slows down by 1 % a block; every second costs 5 %
    times = np.array([100.0 + n for n in range(8)]) * np.array([1, 1.05] * 4)
    base, head = times[[0, 3, 4, 7]], times[[1, 2, 5, 6]]
    assert max(abs(ratios(base, head) - 1)) > 0.04
    assert np.median(ratios(base, head)) == pytest.approx(1, abs=0.003)


@pytest.mark.parametrize(
    "base, head, said",
    [
        ([], [], "base has 0 times and head 0"),
        ([1.0], [1.0, 2.0], "base has 1 times and head 2"),
        ([1.0, 0.0], [1.0, 1.0], "above 0"),
        ([1.0, math.nan], [1.0, 1.0], "finite"),
    ],
)
def test_times_that_are_no_pairs_are_refused(base: list[float], head: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ratios(base, head)


def test_the_nearest_rank_is_one_of_the_values() -> None:
    assert statistics.nearest_rank([15, 20, 35, 40, 50], 30) == 20  # the textbook's example
    assert statistics.nearest_rank([15, 20, 35, 40, 50], 100) == 50
    assert statistics.nearest_rank(range(1, 101), 95) == 95
    with pytest.raises(ValueError):
        statistics.nearest_rank([], 95)


def test_the_spread_is_within_layouts_not_between_them() -> None:
    assert statistics.spread([[10, 10, 10, 10], [20, 20, 20, 20]]) == 0
    assert statistics.spread([[9, 10, 10, 10, 11], [9, 10, 10, 12, 14]]) == pytest.approx(0.1)


def test_students_t_is_that_of_the_tables() -> None:
    table = {(0.975, 1): 12.7062, (0.975, 4): 2.7764, (0.975, 19): 2.0930, (0.9995, 7): 5.4079, (0.99995, 10): 6.2111}
    for (probability, df), value in table.items():
        assert statistics.student_quantile(probability, df) == pytest.approx(value, abs=2e-4)
    far = [statistics.student_tail(t, 19) for t in (8.0, 9.0, 10.0, 30.0)]
    assert far == sorted(far, reverse=True) and far[2] == pytest.approx(2.6e-9, rel=0.1) and far[3] > 0


def test_resampled_medians_follow_the_law_of_resampling() -> None:
    """The shortcut through order statistics against resampling itself."""
    rng = np.random.default_rng(3)
    for size in (7, 12):
        values = np.sort(rng.normal(size=size))
        direct = np.median(rng.choice(values, (20_000, size)), axis=1)
        short = np.concatenate([statistics._resampled_medians(values, rng) for _ in range(40)])
        assert np.quantile(short, (0.05, 0.25, 0.5, 0.75, 0.95)) == pytest.approx(
            np.quantile(direct, (0.05, 0.25, 0.5, 0.75, 0.95)), abs=0.12
        )
        assert short.std() == pytest.approx(direct.std(), rel=0.03)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(300):
        found = estimate(layouts(0.01, 6, seed), resamples=1000, seed=seed)
        held += found.low <= 0.01 <= found.high
    assert 0.92 <= held / 300 <= 0.995


def test_pairs_that_vary_much_do_not_hide_what_the_layouts_agree_on() -> None:
    """Pairs lie 6 % to one side or the other by their place, and as many on each: a layout's median hardly varies."""
    rng = np.random.default_rng(1)
    layouts = [np.exp(np.tile([0.06, -0.06], 12) + rng.normal(0, 0.02, 24)) for _ in range(40)]
    medians = [math.log(float(np.median(layout))) for layout in layouts]
    error = float(np.std(medians, ddof=1)) / math.sqrt(len(medians))
    assert error < estimate(layouts).error < 1.3 * error


@pytest.mark.parametrize(
    "change, verdict", [(0.02, SpeedVerdict.SLOWER), (-0.02, SpeedVerdict.FASTER), (0.0, SpeedVerdict.NO_CHANGE)]
)
def test_verdicts_when_the_truth_is_known(change: float, verdict: SpeedVerdict) -> None:
    verdicts = [decide(estimate(layouts(change, 20, seed), resamples=1000)).verdict for seed in range(60)]
    assert verdicts.count(verdict) == 60


def test_no_false_alarm_however_often_it_is_asked() -> None:
    """Every second layout from the fourth on, as a bench that goes on until it is settled."""
    alarms = 0
    for seed in range(400):
        data = layouts(0.0, 16, seed)
        for count in range(4, 17, 2):
            verdict = decide(estimate(data[:count], resamples=500)).verdict
            if verdict is not SpeedVerdict.INCONCLUSIVE:
                break
        alarms += verdict in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER)
    assert alarms == 0


def test_one_layout_never_settles_anything_however_many_pairs_it_has() -> None:
    decision = decide(estimate(layouts(0.5, 1, 0, pairs=5000)))
    assert decision.verdict is SpeedVerdict.INCONCLUSIVE and decision.more_pairs >= 3 * 5_000


def test_more_pairs_are_wanted_the_more_they_vary_and_the_more_a_loading_costs() -> None:
    rng = np.random.default_rng(2)
    offsets = np.exp(rng.normal(0, 0.004, 1000))
    calm = [offset * np.exp(0.002 * rng.standard_normal(24)) for offset in offsets]
    rough = [offset * np.exp(0.02 * rng.standard_normal(24)) for offset in offsets]
    # sqrt(loading * pi / 2 * pair / between)
    assert statistics.pairs_wanted(calm, 50) == pytest.approx(math.sqrt(50 * math.pi / 2) * 0.5, rel=0.3)
    assert statistics.pairs_wanted(rough, 50) == pytest.approx(math.sqrt(50 * math.pi / 2) * 5, rel=0.3)
    assert statistics.pairs_wanted(rough, 200) == pytest.approx(2 * statistics.pairs_wanted(rough, 50))
    with pytest.raises(ValueError, match="a single layout"):
        statistics.pairs_wanted(calm[:1], 50)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_layouts_are_said_and_have_no_absurd_interval(count: int) -> None:
    data = [np.full(24, ratio) * np.linspace(0.999, 1.001, 24) for ratio in (0.15, 0.2, 0.17)[:count]]
    found = estimate(data)
    assert -0.86 < found.low <= found.change <= found.high < -0.79
    assert found.proven == 0
    decision = decide(found)
    assert decision.verdict is SpeedVerdict.INCONCLUSIVE and decision.more_pairs == 24 * (4 - count)
    so_far = statistics.signed(found.change)
    assert decision.words == (
        f"inconclusive: too few loadings, {count} of at least 4; {so_far} so far, at least {24 * (4 - count)} more "
        "pairs needed"
    )


def test_a_change_that_lacks_only_certainty_says_which_way_it_likely_goes() -> None:
    faster = statistics.Estimate(-0.5, -0.55, -0.45, 0.0314, 2e-4, 4, 32)
    decision = decide(faster)
    assert decision.verdict is SpeedVerdict.INCONCLUSIVE
    assert decision.words.startswith(
        "inconclusive: likely faster, between -55.0 % and -45.0 %, yet not certain; about "
    )
    within = statistics.Estimate(0.006, 0.001, 0.011, 0.002, 2e-2, 6, 48)
    assert decide(within).words.startswith("inconclusive: between +0.1 % and +1.1 %; about ")


def test_a_layout_that_went_wrong_does_not_decide() -> None:
    data = layouts(0.0, 20, 5)
    data[7] = data[7] * 1.3
    found = estimate(data)
    assert abs(found.change) < 0.003
    assert decide(found).verdict not in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER)


def test_no_change_says_within_what_and_rounds_up() -> None:
    found = statistics.Estimate(0.001, -0.0031, 0.0052, 0.002, 0.6, 10, 320)
    assert decide(found).words == "no change within ±0.6 %"
    assert decide(found).within == 0.0052


def test_how_many_pairs_more_is_about_right() -> None:
    data = layouts(0.01, 40, 11)
    first = estimate(data[:6])
    decision = decide(first)
    assert decision.verdict is SpeedVerdict.INCONCLUSIVE
    more = decision.more_pairs // 32
    assert 1 <= more <= 34
    assert decide(estimate(data[: 6 + 2 * more])).verdict is SpeedVerdict.SLOWER
    assert f"about {decision.more_pairs} more pairs" in decision.words


def test_a_floor_of_base_against_base_raises_the_threshold() -> None:
    found = statistics.Estimate(0.02, 0.018, 0.022, 0.001, 1e-9, 10, 320)
    assert decide(found).verdict is SpeedVerdict.SLOWER
    assert decide(found, Rule().above(0.025)).verdict is SpeedVerdict.NO_CHANGE


def test_power_agrees_with_what_is_found() -> None:
    single, count = 0.0045, 12
    found = sum(
        decide(estimate(layouts(0.01, count, seed), resamples=500)).verdict is SpeedVerdict.SLOWER
        for seed in range(100)
    )
    assert abs(statistics.power(0.01, single, count) - found / 100) < 0.25
    assert statistics.power(0.03, single, count) > 0.999
    assert statistics.power(0.002, single, count) < 0.01


def test_corrections_are_those_of_the_textbook() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert statistics.holm([]) == []


def test_the_gate_closes_only_when_the_interval_is_beyond_it() -> None:
    found = statistics.Estimate(0.03, 0.018, 0.042, 0.006, 1e-3, 10, 320)
    assert not statistics.beyond(found, 0.02)
    assert statistics.beyond(found, 0.017)


def test_fifty_thousand_resamples_take_no_time() -> None:
    data = layouts(0.01, 5, 0, pairs=50)
    estimate(data)
    shortest = math.inf
    for _ in range(5):
        begin = time.process_time()
        estimate(data)
        shortest = min(shortest, time.process_time() - begin)
    assert shortest < 0.05
