"""How time grows, and where candidates cross."""

import numpy as np
import pytest

from difftest.timing.growth import by_axis, crossing_words, fit, growth_words

BATCHES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512])


def test_the_fit_finds_fixed_and_growing_part() -> None:
    noise = np.random.default_rng(0).normal(1, 0.01, BATCHES.size)
    found = fit(BATCHES, (6 + 0.27 * BATCHES) * noise)
    assert found.fixed_us == pytest.approx(6, rel=0.03)
    assert found.each_us == pytest.approx(0.27, rel=0.03)
    assert found.grows and found.deviation < 0.02


def test_no_part_is_ever_negative() -> None:
    steep = fit(BATCHES, 0.3 * BATCHES - 0.2)
    falling = fit(BATCHES, 10 - 0.01 * BATCHES)
    assert steep.fixed_us == 0 and steep.each_us > 0
    assert falling.each_us == 0 and falling.fixed_us > 0 and not falling.grows


def test_growth_in_words() -> None:
    base, head = fit(BATCHES, 6 + 0.27 * BATCHES), fit(BATCHES, 5 + 0.13 * BATCHES)
    assert growth_words("batch", base, head) == "grows with the batch: 0.27 → 0.13 µs a request"
    flat = fit(BATCHES, np.full(10, 5.0) + np.arange(10) % 2 * 0.1)
    assert growth_words("batch", flat, flat) == "does not grow with the batch"
    assert growth_words("batch", base, flat) == "grows with the batch: 0.27 → 0 µs a request"
    vocabulary = np.array([32_000, 128_000, 151_936])
    slow = fit(vocabulary, 10 + 0.0012 * vocabulary)
    assert growth_words("vocabulary", slow, slow) == (
        "grows with the vocabulary: 0.0012 → 0.0012 µs a token of the vocabulary"
    )


def test_a_line_through_something_else_is_called_rough() -> None:
    curved = fit(BATCHES, 1 + 0.01 * BATCHES.astype(float) ** 2)
    assert "roughly" in growth_words("batch", curved, curved)


def test_a_fit_needs_three_places() -> None:
    with pytest.raises(ValueError, match="three different values"):
        fit([1, 2, 2], [1.0, 2.0, 2.0])


def test_where_candidates_cross() -> None:
    assert crossing_words("batch", {1: False, 2: None, 4: True, 8: True}) == (
        "better from batch 4 on, worse up to 1, alike at 1 of 4"
    )
    assert crossing_words("batch", {1: True, 2: True, 4: False}) == "better up to batch 2, worse from 4 on"
    assert crossing_words("batch", {1: True, 2: True}) == "better at every batch"
    assert crossing_words("batch", {1: False, 2: None}) == "worse or alike at every batch, alike at 1 of 2"
    assert crossing_words("batch", {1: None, 2: None}) == "no difference shown at any batch"
    assert crossing_words("batch", {1: True, 2: False, 4: True}) == "better at batch 1, 4, worse elsewhere"


def test_one_side_at_each_value_by_the_median() -> None:
    found = by_axis([1, 1, 1, 2, 2, 4], [5.0, 4.0, -9.0, 0.2, -0.3, -5.0], band=0.5)
    assert found == {1: False, 2: None, 4: True}
