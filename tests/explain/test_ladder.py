"""How far apart two values are said to be, and what is said of the first differing element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from difftest.call.freeze import Freezer
from difftest.call.outcome import Outcome
from difftest.compare.outcomes import Difference, compare
from difftest.explain.ladder import ULPS, change, direction, evidence, likeness
from difftest.result import Kind, Likeness


def difference(base: Any, head: Any) -> Difference:
    first, second = (Outcome(Freezer()(value), None, (), (), None, ()) for value in (base, head))
    (found,) = compare(first, second)
    return found


def after(value: float, steps: int) -> float:
    for _ in range(steps):
        value = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    return value


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), Likeness.SIGN_OF_ZERO),
        (np.array([np.nan], np.float32), np.array([0x7FC00001], np.uint32).view(np.float32), Likeness.NAN_PAYLOAD),
        (torch.tensor([1.0, 2.0]), torch.tensor([after(1.0, 1), 2.0]), Likeness.ULP),
        (torch.tensor([1.0, 2.0]), torch.tensor([after(1.0, ULPS), 2.0]), Likeness.ULP),
        (torch.tensor([1.0, 2.0]), torch.tensor([after(1.0, ULPS + 1), 2.0]), Likeness.DIFFERENT),
        # One element far off: the others being near does not make it near.
        (torch.tensor([1.0, 2.0]), torch.tensor([after(1.0, 1), 7.0]), Likeness.DIFFERENT),
        (torch.tensor([1.0, 2.0]), torch.tensor([after(1.0, 1), float("inf")]), Likeness.DIFFERENT),
        (torch.tensor([[3, 1], [2, 2]]), torch.tensor([[1, 3], [2, 2]]), Likeness.SET_EQUAL),
        # The same ids, but not in the same row.
        (torch.tensor([[3, 1], [2, 4]]), torch.tensor([[3, 2], [1, 4]]), Likeness.DIFFERENT),
        (torch.tensor([[3, 3, 1]]), torch.tensor([[3, 1, 1]]), Likeness.DIFFERENT),
        ([5, 7, 7], [7, 5, 7], Likeness.SET_EQUAL),
        # A rejected draft that became another one.
        (torch.tensor([[-1, 23, -1]]), torch.tensor([[23, -1, -1]]), Likeness.DIFFERENT),
        (torch.tensor([[5, 7, -1]]), torch.tensor([[7, 5, -1]]), Likeness.SET_EQUAL),
        ([5, 7], [5, 8], Likeness.DIFFERENT),
        ([1 << 80, 7], [7, 1 << 80], Likeness.DIFFERENT),
        (np.array([[256, 1]], np.int16), np.array([[1, 256]], np.int16), Likeness.SET_EQUAL),
        (1.0, float(np.nextafter(1.0, 2.0)), Likeness.ULP),
        (torch.tensor([1]), torch.tensor([1], dtype=torch.int32), Likeness.DIFFERENT),
    ],
)  # fmt: skip
def test_the_class_of_a_difference(base: Any, head: Any, expected: Likeness) -> None:
    assert likeness(difference(base, head)) == expected


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (torch.tensor([1.0, -INF]), torch.tensor([1.0, 2.5]), "-inf in base, finite in head"),
        (torch.tensor([2.5]).half(), torch.tensor([NAN]).half(), "finite in base, nan in head"),
        (torch.tensor([NAN]).bfloat16(), torch.tensor([2.5]).bfloat16(), "nan in base, finite in head"),
        (np.array([INF]), np.array([-INF]), "inf in base, -inf in head"),
        (torch.tensor([2.5]), torch.tensor([-3.0]), ""),
        (torch.tensor([-0.0]), torch.tensor([0.0]), "-0 in base"),
        (torch.tensor([7, -1]), torch.tensor([7, 3]), "-1 in base, a number in head"),
        (torch.tensor([7, 4]), torch.tensor([7, 3]), ""),
        (torch.tensor([True]), torch.tensor([False]), "1 in base, 0 in head"),
        (torch.tensor([1]), torch.tensor([1], dtype=torch.int32), "int64 in base, int32 in head"),
        ([1, 2], (1, 2), "list in base, tuple in head"),
    ],
)  # fmt: skip
def test_what_becomes_what(base: Any, head: Any, expected: str) -> None:
    assert direction(difference(base, head)) == expected


def test_messages_are_alike_whatever_numbers_they_name() -> None:
    first, second, other = (
        Difference(Kind.EXCEPTION, "raised", "returns", f"raises IndexError: {text}")
        for text in ("index 3 is beyond [2, 4]", "index 17 is beyond [5]", "too many indices: 4")
    )
    assert direction(first) == direction(second) != direction(other)
    assert direction(first) == "returns, raises IndexError: index … is beyond …"


def test_requests_that_exchange_their_tokens_are_not_the_same_set() -> None:
    swapped = difference(torch.tensor([5, 7]), torch.tensor([7, 5]))
    assert likeness(swapped) == Likeness.SET_EQUAL
    assert likeness(swapped, ("return",)) == Likeness.DIFFERENT


def test_the_evidence_names_the_first_byte_the_bits_and_the_distance() -> None:
    base = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    head = torch.tensor([[1.0, 2.0], [3.0, after(1.0, 3)]])
    assert evidence(difference(base, head)) == {
        "byte": 12,
        "base_hex": "0x3f800000",
        "head_hex": "0x3f800003",
        "ulp": 3.0,
        "ulp_largest": 3.0,
    }


def test_the_distance_of_the_farthest_pair_is_told_beside_that_of_the_first() -> None:
    found = evidence(difference(torch.tensor([1.0, 1.0]), torch.tensor([after(1.0, 1), after(1.0, 9)])))
    assert (found["ulp"], found["ulp_largest"]) == (1.0, 9.0)
    infinite = evidence(difference(torch.tensor([float("inf")]), torch.tensor([1.0])))
    assert (infinite["ulp"], infinite["ulp_largest"], infinite["byte"]) == (None, None, 3)


def test_what_has_no_elements_has_no_evidence() -> None:
    assert set(evidence(difference("one", "other")).values()) == {None, ""}


def test_a_place_keeps_positions_in_tuples_and_keys_but_not_positions_in_lists() -> None:
    assert difference([[1.5], [2.5]], [[1.5], [3.5]]).place == "return[*][*]"
    assert difference(([1.5], {"ids": [0.5]}), ([1.5], {"ids": [1.5]})).place == "return[1]['ids'][*]"
    assert difference({0: "a", 1: "b"}, {0: "a", 1: "c"}).place == "return[*]"
    assert difference((0.5,) * 20, (*(0.5,) * 19, 1.5)).place == "return[*]"
    assert difference("a", "b").place == "return"


def test_what_becomes_what_is_said_of_exceptions_and_dtypes() -> None:
    raised = compare(
        Outcome(None, ("IndexError", "index 7 is out of bounds"), (), (), None, ()),
        Outcome(Freezer()(1), None, (), (), None, ()),
    )[0]
    assert change(raised) == "base raises IndexError, head returns"
    halves = difference(np.zeros(2, np.float16), np.zeros(2, np.float32))
    assert change(halves) == "float16 in base, float32 in head"
    assert change(difference([1.5], [2.5])) == ""
    mutation = Difference(Kind.MUTATION, "logits", "1", "2", detail=("3 ulp apart", "base leaves it unchanged"))
    assert change(mutation) == "input changed in head only"
    assert change(replace(mutation, detail=())) == ""


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        (np.zeros(2, np.int32), [0, 0], "ndarray int32 in base, list in head"),
        (torch.zeros(2, 3), None, "tensor float32 in base, None in head"),
        (3, torch.zeros(()), "number in base, tensor float32 in head"),
        (3, "three", "number in base, value in head"),
        ({"a": 1}, True, "dict in base, True in head"),
    ],
)
def test_the_sort_of_thing_is_said_where_types_differ(base: object, head: object, said: str) -> None:
    assert change(difference(base, head)) == said
