"""The tests of two samples: how often they are wrong, what they see, and what they say they would see."""

from __future__ import annotations

import numpy as np
import pytest

from difftest.explain.law import ALPHA, chi_square_tail, compare_laws, holm, smallest_effect

LAW = [0.1, 0.4, 0.2, 0.3]


def drawn(seed: int, law: list[float], rows: int = 4000, positions: int = 2) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(seed).choice(len(law), (rows, positions), p=law).astype(np.int64)


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"), [(3.841459, 1, 0.05), (11.070498, 5, 0.05), (6.634897, 1, 0.01), (0.0, 3, 1.0)]
)
def test_the_tail_of_chi_square_has_the_tabled_values(statistic: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(tail, abs=1e-6)


def test_holm_steps_down_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_equal_laws_are_hardly_ever_called_different() -> None:
    wrong = sum(compare_laws(drawn(2 * n, LAW), drawn(2 * n + 1, LAW), 4).different for n in range(100))
    assert wrong <= 2


def test_the_smallest_effect_is_what_is_seen_in_four_of_five() -> None:
    """At the effect that it names, the test of one position rejects in about 80 % or more of many samples."""
    rows = 4000
    effect = smallest_effect(rows, 3, ALPHA)
    moved = [LAW[0] + effect / 2, LAW[1] - effect / 2, LAW[2] - effect / 2, LAW[3] + effect / 2]
    seen = 0
    for n in range(100):
        law = compare_laws(drawn(2 * n, LAW, rows, 1), drawn(2 * n + 1, moved, rows, 1), 4)
        seen += law.tests[0].p < ALPHA
    assert seen >= 70
    assert smallest_effect(4 * rows, 3, ALPHA) == pytest.approx(effect / 2, rel=0.01)


def test_positions_that_are_equal_each_but_not_together_are_different() -> None:
    base, head = drawn(1, LAW), drawn(2, LAW)
    head[:, 1] = head[:, 0]
    law = compare_laws(base, head, 4)
    told = {test.name: test.adjusted for test in law.tests}
    assert law.different
    assert told["positions 0 and 1 together"] < ALPHA < told["position 1"]


def test_rows_that_emit_nothing_count_as_a_value() -> None:
    base, head = drawn(1, LAW), drawn(2, LAW)
    head[::3, 1] = -1
    assert compare_laws(base, head, 4).different


def test_too_few_samples_do_not_make_two_laws_the_same() -> None:
    from difftest.run.chance import _law_said, _likeness

    ids = np.arange(40)[:, None] % 8
    few = compare_laws(ids, ids, 8)
    assert (_likeness(few), "too few" in _law_said(few)) == ("different", True)
    many = compare_laws(np.tile(ids, (500, 1)), np.tile(ids, (500, 1)), 8)
    assert (_likeness(many), "too few" in _law_said(many)) == ("same distribution", False)
