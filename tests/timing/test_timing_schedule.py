"""Which shapes a measuring process begins: no more than the time left brings to a verdict."""

from __future__ import annotations

import pytest
from bench_results import measured

from difftest.timing.schedule import QUADS, Begun, Spot, affordable, in_turn, offered, quads, spare


def grid(target: str, count: int) -> list[Spot]:
    return [(target, shape) for shape in range(count)]


def test_every_target_has_its_turn_and_its_first_shapes_lie_far_apart() -> None:
    order = in_turn([*grid("one", 8), *grid("two", 2), *grid("three", 1)])
    assert order[:5] == [("one", 0), ("two", 0), ("three", 0), ("one", 4), ("two", 1)]
    assert [shape for target, shape in order if target == "one"] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert in_turn([]) == []


def test_a_first_process_may_take_a_fifth_of_the_time() -> None:
    assert spare(20.0, {}, 0.0) == 4.0
    assert spare(-1.0, {}, 0.0) == 0.0


def test_what_is_under_way_keeps_the_time_that_it_needs() -> None:
    # 4 more layouts of a shape, and 1 more of another; 4 more loadings of two targets, 0.25 s each
    begun = {("one", 0): Begun(1, 1.0), ("two", 0): Begun(4, 2.0)}
    assert spare(26.0, begun, 0.25) == pytest.approx((26 - 4 - 2 - 2) / 5)
    assert spare(8.0, begun, 0.25) == 0.0


def test_of_what_is_under_way_goes_on_what_the_time_suffices_for() -> None:
    begun = {("one", 0): Begun(1, 1.0), ("one", 1): Begun(3, 4.0), ("one", 2): Begun(1, 2.0), ("one", 3): Begun(5, 1.0)}
    assert affordable(100.0, begun, 0.0) == [("one", 3), ("one", 1), ("one", 0), ("one", 2)]
    assert affordable(8.0, begun, 0.0) == [("one", 3), ("one", 1), ("one", 0)]  # 1 + 4 + 3 x 1 s
    assert affordable(8.0, begun, 1.1) == [("one", 3), ("one", 1)]
    assert affordable(0.5, begun, 0.0) == [("one", 3)]
    assert affordable(1.0, {}, 0.0) == []


def test_as_many_are_offered_as_times_of_others_make_likely() -> None:
    waiting = in_turn([*grid("one", 3), *grid("new", 2)])
    assert offered(waiting, 0.1, {}) == waiting  # nothing is known: the process sees how far it comes
    many = in_turn(spot for target in "abcdefgh" for spot in grid(target, 2))
    assert {target for target, _ in offered(many, 0.1, {})} == set("abcdef")
    known = {("one", 7): 1.0, ("one", 8): 3.0, ("other", 0): 5.0}
    assert offered(waiting, 5.0, known) == [("one", 0), ("new", 0)]  # 2 s, and the mean of all, 3 s
    assert offered(waiting, 1.9, known) == []
    assert offered(waiting, 2.9, known, {"one"}, 1.0) == [("one", 0)]
    assert offered(waiting, 2.9, known, (), 1.0) == []


def test_first_layouts_are_short_where_many_shapes_wait_and_later_ones_as_long_as_pays() -> None:
    few, usual, most = QUADS["cpu"]
    assert quads("cpu", [], 90, 270) == quads("cpu", measured(10, 0, layouts=3), 90, 270) == few
    assert quads("cpu", [], 4, 8) == usual
    layouts = measured(10, 0, layouts=8)
    alone, together = quads("cpu", layouts, 4, 1), quads("cpu", layouts, 90, 100)
    assert few <= together < alone <= most
    assert alone % 2 == together % 2 == 0
    assert quads("cpu", measured(10, 0, layouts=8, offset=0.0), 4, 1) >= alone
