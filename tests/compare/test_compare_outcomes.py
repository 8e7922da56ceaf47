"""What a difference is called, where it is said to be, and what is no difference."""

from __future__ import annotations

import enum
import math
import struct
from collections import namedtuple
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from difftest.call.freeze import DEPTH, Freezer
from difftest.call.outcome import Outcome
from difftest.compare.outcomes import (
    Difference,
    compare,
    only_poison,
    short,
    undefined_leaves,
    unstable_leaves,
)
from difftest.result import Kind

NAN = float("nan")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]


class Tokens(NamedTuple):
    ids: Any
    counts: Any = None


@dataclass
class State:
    step: int
    history: Any


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def outcome(returned: Any = None, *, whole: bool = False, **parts: Any) -> Outcome:
    """An outcome that returned a value; parts are frozen like inputs are."""
    freezer = Freezer(whole=True)
    changed = tuple((name, freezer(value)) for name, value in parts.pop("changed", {}).items())
    watched = tuple((name, Freezer()(value)) for name, value in parts.pop("watched", {}).items())
    empty = Outcome(Freezer(whole)(returned), None, changed, watched, None, ())
    return empty._replace(**parts)


def differences(base: Any, head: Any) -> list[Difference]:
    return compare(outcome(base), outcome(head))


def kinds(base: Any, head: Any) -> list[Kind]:
    return [item.kind for item in differences(base, head)]


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def bits(dtype: torch.dtype, *words: int) -> torch.Tensor:
    """A tensor of one-word elements with these bits."""
    size = torch.empty(0, dtype=dtype).element_size()
    signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    top = 1 << (8 * size - 1)
    return torch.tensor([w - 2 * top if w >= top else w for w in words], dtype=signed).view(dtype)


# -- what is equal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensor(-math.inf, 1.0, -0.0, NAN),
        lambda: bits(torch.bfloat16, 0x7FC1, 0x8000, 0xFF80),
        lambda: [[1, 2], [], (3.5, None)],
        lambda: np.array([[1, -1]], np.int32),
        lambda: {"a": 1, 2: tensor(NAN)},
        lambda: Tokens([1], NAN),
        lambda: State(1, [OTHER_NAN]),
        lambda: torch.Generator().manual_seed(3),
        lambda: Color.RED,
        lambda: {1, 2, 3},
        lambda: (x for x in ()),
        lambda: np.float32(-0.0),
    ],
)
def test_equal_values_are_no_difference(make: Any) -> None:
    assert outcome(make()) == outcome(make())
    assert differences(make(), make()) == []


def test_an_extra_field_that_is_none_is_no_difference() -> None:
    shorter = namedtuple("Tokens", "ids")
    assert differences(shorter([1, 2]), Tokens([1, 2])) == []
    assert differences(Tokens([1, 2]), shorter([1, 2])) == []


def test_an_extra_field_that_holds_something_is_a_difference() -> None:
    shorter = namedtuple("Tokens", "ids")
    (found,) = differences(shorter([1, 2]), Tokens([1, 2], [2]))
    assert (found.kind, found.leaf, found.base) == (Kind.STRUCTURE, "return.counts", "absent")


def test_strides_that_no_element_steps_along_are_no_difference() -> None:
    assert differences(torch.zeros(1, 5)[:, :3], torch.zeros(1, 3)) == []
    assert differences(torch.zeros(0, 5)[:, :3], torch.zeros(0, 3)) == []


# -- what each difference is called -----------------------------------------------------------------------------------

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_sign_of_zero(dtype: torch.dtype) -> None:
    (found,) = differences(tensor(1, 0.0, dtype=dtype), tensor(1, -0.0, dtype=dtype))
    assert (found.kind, found.index, found.base, found.head) == (Kind.SIGN_OF_ZERO, (1,), "0", "-0")


@pytest.mark.parametrize(
    ("dtype", "one", "other"),
    [
        (torch.float64, 0x7FF8 << 48, (0x7FF8 << 48) + 1),
        (torch.float32, 0x7FC00000, 0xFFC00000),
        (torch.float16, 0x7E00, 0x7E01),
        (torch.bfloat16, 0x7FC0, 0x7FC1),
    ],
)
def test_the_payload_of_a_nan(dtype: torch.dtype, one: int, other: int) -> None:
    (found,) = differences(bits(dtype, one), bits(dtype, other))
    assert found.kind is Kind.NAN_PAYLOAD
    assert f"bits {one:#x} against {other:#x}" in found.detail


@pytest.mark.parametrize(
    ("dtype", "one", "other", "ulp"),
    [
        (torch.float64, 0x3FF0 << 48, (0x3FF0 << 48) + 3, 3),
        (torch.float32, 0x3F800000, 0x3F800001, 1),
        (torch.float32, 0x00000001, 0x80000001, 2),  # across zero
        (torch.float16, 0x3C00, 0x3C05, 5),
        (torch.bfloat16, 0x3F80, 0x3F82, 2),
    ],
)
def test_distance_in_units_in_the_last_place(dtype: torch.dtype, one: int, other: int, ulp: int) -> None:
    (found,) = differences(bits(dtype, one), bits(dtype, other))
    assert found.kind is Kind.VALUE
    assert f"{ulp} ulp apart" in found.detail


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool, *FLOATS],
)
def test_a_value_and_how_many_differ(dtype: torch.dtype) -> None:
    base = torch.tensor([[0, 1, 1], [0, 0, 1]]).to(dtype)
    head = torch.tensor([[0, 1, 0], [0, 1, 1]]).to(dtype)
    (found,) = differences(base, head)
    assert (found.kind, found.leaf, found.index, found.count, found.size) == (Kind.VALUE, "return", (0, 2), 2, 6)
    assert float(found.base) == 1 and float(found.head) == 0


def test_an_infinity_of_the_other_sign_is_a_value_without_a_distance() -> None:
    (found,) = differences(tensor(math.inf), tensor(-math.inf))
    assert (found.kind, found.base, found.head) == (Kind.VALUE, "inf", "-inf")
    assert not any("ulp" in line for line in found.detail)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype: torch.dtype) -> None:
    assert kinds(tensor(1 + 2j, dtype=dtype), tensor(1 + 3j, dtype=dtype)) == [Kind.VALUE]
    assert kinds(tensor(complex(1, 0.0), dtype=dtype), tensor(complex(1, -0.0), dtype=dtype)) == [Kind.SIGN_OF_ZERO]
    assert kinds(complex(1, 0.0), complex(1, -0.0)) == [Kind.SIGN_OF_ZERO]


@pytest.mark.parametrize(
    ("base", "head", "kind"),
    [
        (tensor(1), tensor(1, dtype=torch.float64), Kind.DTYPE),
        (np.int32([1]), np.int64([1]), Kind.DTYPE),
        (tensor(1, 2), tensor(1, 2, 3), Kind.SHAPE),
        (torch.zeros(2, 3), torch.zeros(3, 2).T, Kind.STRIDE),
        (np.zeros((2, 3)), np.zeros((3, 2)).T, Kind.STRIDE),
        (tensor(1), np.float32([1]), Kind.TYPE),
        (torch.tensor(3), 3, Kind.TYPE),
        ([1, 2], (1, 2), Kind.TYPE),
        ([1], [np.int32(1)], Kind.TYPE),
        ([1], [True], Kind.TYPE),
        (np.int32(1), np.int64(1), Kind.TYPE),
        (1, 1.0, Kind.TYPE),
        (None, [], Kind.TYPE),
        ({}, Tokens(1), Kind.TYPE),
        (Color.RED, Color.BLUE, Kind.VALUE),
        (Tokens([1]), namedtuple("Ids", "ids counts")([1], None), Kind.TYPE),
        (Tokens([1], [2]), namedtuple("Tokens", "counts ids")([2], [1]), Kind.STRUCTURE),
        ([1, 2, 3], [1, 2], Kind.STRUCTURE),
        ([[1], 2], [[1]], Kind.STRUCTURE),
        ({"a": 1}, {"b": 1}, Kind.STRUCTURE),
        ({1: 0}, {"1": 0}, Kind.STRUCTURE),
        ({"a": None}, {}, Kind.STRUCTURE),
        ("greedy", "random", Kind.VALUE),
        (0.0, -0.0, Kind.SIGN_OF_ZERO),
        (NAN, OTHER_NAN, Kind.NAN_PAYLOAD),
        (0.1, 0.1 + 2**-56, Kind.VALUE),
        (np.float32(0.0), np.float32(-0.0), Kind.SIGN_OF_ZERO),
        (len, max, Kind.TYPE),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2), Kind.RNG),
    ],
)
def test_the_kind(base: Any, head: Any, kind: Kind) -> None:
    for one, other in ((base, head), (head, base)):
        assert set(kinds(one, other)) == {kind}


def test_items_are_counted_in_words() -> None:
    (found,) = differences([7], [7, 8])
    assert (found.base, found.head) == ("1 item [7]", "2 items [7, 8]")


def test_values_are_compared_across_dtypes_too() -> None:
    assert kinds(tensor(1, 2), tensor(1, 3, dtype=torch.float64)) == [Kind.DTYPE, Kind.VALUE]
    assert kinds(tensor(1, NAN), tensor(1, NAN, dtype=torch.float64)) == [Kind.DTYPE]


def test_each_kind_of_an_array_is_reported_by_itself() -> None:
    base, head = tensor(0.0, 1.0, 5.0, 0.0), tensor(-0.0, 2.0, 6.0, -0.0)
    assert {item.kind: item.count for item in differences(base, head)} == {Kind.VALUE: 2, Kind.SIGN_OF_ZERO: 2}


# -- where ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "head", "leaf", "index"),
    [
        (([[1, 2, 3, 4]],), ([[1, 2, 3, 5]],), "return[0][0]", (3,)),
        ([1, 2.5], [1, 3.5], "return[1]", ()),
        (Tokens(tensor(1, 2)), Tokens(tensor(1, 3)), "return.ids", (1,)),
        ({"top_k": [1], 3: 1}, {"top_k": [2], 3: 1}, "return['top_k']", (0,)),
        ({3: 1}, {3: 2}, "return[3]", ()),
        (State(1, {"x": (1.0,)}), State(1, {"x": (2.0,)}), "return.history['x'][0]", ()),
        (torch.zeros(2, 8), torch.eye(8)[5:7].flip(0) * 0 + torch.eye(8)[[7, 7]], "return", (0, 7)),
    ],
)
def test_the_location_is_as_a_person_writes_it(base: Any, head: Any, leaf: str, index: tuple[int, ...]) -> None:
    (found,) = differences(base, head)
    assert (found.leaf, found.index) == (leaf, index)


def test_every_field_is_reported_not_only_the_first() -> None:
    found = differences(Tokens([1], tensor(1)), Tokens([2], tensor(2)))
    assert [item.leaf for item in found] == ["return.ids", "return.counts"]


def test_neighbours_are_shown() -> None:
    (found,) = differences(tensor(1, 2, 3, 4, 5), tensor(1, 2, 9, 4, 5))
    assert "base ... 1  2  3  4  5" in found.detail
    assert "head ... 1  2  9  4  5" in found.detail


# -- inputs after the call --------------------------------------------------------------------------------------------


def test_a_mutation_in_one_arm_is_located() -> None:
    logits = torch.zeros(3, 8)
    changed = logits.clone()
    changed[2, 7] = 1
    initial = {"logits": Freezer(whole=True)(logits)}
    (found,) = compare(outcome(), outcome(changed={"logits": changed}), initial=initial)
    assert (found.kind, found.leaf, found.index) == (Kind.MUTATION, "logits", (2, 7))
    assert (found.base, found.head) == ("0", "1")
    assert "base leaves it unchanged" in found.detail
    (found,) = compare(outcome(changed={"logits": changed}), outcome(), initial=initial)
    assert "head leaves it unchanged" in found.detail


def test_a_mutation_in_both_arms_is_compared_as_a_value() -> None:
    base, head = outcome(changed={"logits": tensor(1, 2)}), outcome(changed={"logits": tensor(1, 3)})
    (found,) = compare(base, head)
    assert (found.kind, found.leaf, found.index) == (Kind.VALUE, "logits", (1,))


def _padded(gap: float, value: float = 1.0) -> torch.Tensor:
    """[2, 3] out of rows of 5, the gaps filled."""
    rows = torch.full((2, 5), gap)
    rows[:, :3] = value
    return rows[:, :3]


def test_a_write_between_the_rows_is_a_mutation() -> None:
    (found,) = compare(outcome(changed={"logits": _padded(0.0)}), outcome(changed={"logits": _padded(7.0)}))
    assert (found.kind, found.leaf) == (Kind.MUTATION, "logits")
    assert "outside the view: byte 14 of its storage was written" in found.detail
    assert found.count == 8  # two numbers after each row, two bytes of each differ


@pytest.mark.parametrize(("base", "head", "who"), [(0.0, 7.0, "head"), (7.0, 0.0, "base"), (7.0, 9.0, "base and head")])
def test_who_wrote_between_the_rows(base: float, head: float, who: str) -> None:
    before = dict(outcome(changed={"logits": _padded(0.0)}).changed)
    left, right = (outcome(changed={"logits": _padded(gap)}) for gap in (base, head))
    (found,) = compare(left, right, initial=before)
    assert found.detail == (f"outside the view: byte 14 of its storage was written by {who}", "8 bytes there differ")


def test_a_write_between_the_rows_does_not_hide_behind_a_changed_value() -> None:
    base, head = outcome(changed={"logits": _padded(0.0)}), outcome(changed={"logits": _padded(7.0, 2.0)})
    assert [item.kind for item in compare(base, head)] == [Kind.VALUE, Kind.MUTATION]


def test_a_generator_moved_in_one_arm_is_rng() -> None:
    before, after = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    torch.rand(1, generator=after)
    initial = {"generator": Freezer()(before)}
    (found,) = compare(outcome(), outcome(changed={"generator": after}), initial=initial)
    assert (found.kind, found.leaf) == (Kind.RNG, "generator")


def test_watched_objects_are_compared() -> None:
    base, head = (outcome(watched={"processor": State(step, [])}) for step in (1, 2))
    (found,) = compare(base, head)
    assert (found.kind, found.leaf) == (Kind.VALUE, "processor.step")


# -- exceptions, generators, aliases, process -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "head", "policy", "differs"),
    [
        (("ValueError", "x"), ("ValueError", "x"), "message", False),
        (("ValueError", "x"), ("ValueError", "y"), "message", True),
        (("ValueError", "x"), ("ValueError", "y"), "type", False),
        (("ValueError", "x"), ("KeyError", "x"), "type", True),
        (("ValueError", "x"), ("KeyError", "y"), "any", False),
        (None, ("KeyError", "y"), "any", True),
        (("KeyError", "y"), None, "any", True),
    ],
)
def test_exception_policies(base: Any, head: Any, policy: str, differs: bool) -> None:
    found = compare(outcome(raised=base), outcome(raised=head), exceptions=policy)
    assert [item.kind for item in found] == [Kind.EXCEPTION] * differs


def test_an_exception_is_told_against_a_return() -> None:
    (found,) = compare(outcome(), outcome(raised=("ValueError", "no tokens")))
    assert (found.leaf, found.base, found.head) == ("raised", "returns", "raises ValueError: no tokens")


def test_the_same_result_with_another_generator_state_is_a_difference() -> None:
    start = (b"torch", b"numpy", b"random")
    found = compare(outcome(), outcome(rng=(b"torch moved", b"numpy", b"random")), start=start)
    assert [(item.kind, item.leaf, item.base) for item in found] == [(Kind.RNG, "rng.torch", "not used")]


def test_the_alias_graph_is_compared() -> None:
    (found,) = compare(outcome(), outcome(aliases=((0, "logits", 8),)))
    assert (found.kind, found.base) == (Kind.ALIAS, "owns all its memory")
    assert found.head == "array 0 shares memory with logits at byte 8"


def test_a_setting_of_the_process_is_a_difference() -> None:
    (found,) = compare(outcome(), outcome(process=(("current folder", "/"),)))
    assert (found.kind, found.leaf, found.base, found.head) == (
        Kind.MUTATION, "process.current folder", "unchanged", "/",
    )  # fmt: skip


# -- undefined bytes --------------------------------------------------------------------------------------------------


FILLS = (0xA5, 0x5A)


def undefined(one: Any, other: Any) -> dict[str, Any]:
    """What follows the fill, out of the values returned under two fills."""
    return undefined_leaves(outcome(one), outcome(other), FILLS)


def compared(base: tuple[Any, Any], head: tuple[Any, Any]) -> list[Difference]:
    """Differences of two arms, each given as what it returns under the two fills."""
    return compare(outcome(base[0]), outcome(head[0]), undefined(*base), undefined(*head))


def test_what_is_undefined_beside_a_difference_is_not_shown_as_a_value() -> None:
    base, head = tensor(1, 111, 3), tensor(1, 111, 4)
    mask = undefined(base, tensor(1, 222, 3))
    (found,) = compare(outcome(base), outcome(head), mask, mask)
    assert {"base ... 1  undefined  3", "head ... 1  undefined  4"} <= set(found.detail)


def test_what_one_arm_alone_returns_is_not_undefined_in_it_alone() -> None:
    raised = Outcome(None, ("ValueError", "no"), (), (), None, ())
    one, other = torch.full((3,), 1.0), torch.tensor([1.0, 2.0, 1.0])
    (found,) = compare(raised, outcome(one), {}, undefined(one, other))
    assert found.kind == Kind.EXCEPTION
    (found,) = compare(outcome(one), raised, undefined(one, other), {})
    assert found.kind == Kind.EXCEPTION


def test_bytes_undefined_in_both_arms_are_not_compared() -> None:
    base = (torch.tensor([1, 165, 2]), torch.tensor([1, 90, 2]))
    assert compared(base, base) == []
    found = compared(base, (torch.tensor([1, 165, 3]), torch.tensor([1, 90, 3])))
    assert [(item.kind, item.index) for item in found] == [(Kind.VALUE, (2,))]


def test_a_part_of_a_row_undefined_in_one_arm_is_its_own_kind() -> None:
    base = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 4]]))
    head = (torch.tensor([[1, 2], [3, 165]]), torch.tensor([[1, 2], [3, 90]]))
    (found,) = compared(base, head)
    assert (found.kind, found.index, found.base, found.head) == (Kind.UNDEFINED, (1, 1), "4", "undefined")
    (found,) = compared(head, base)
    assert (found.base, found.head) == ("undefined", "4")


def test_a_fill_that_happens_to_equal_the_value_does_not_make_the_arms_agree() -> None:
    found = compared((torch.tensor([1, 165]),) * 2, (torch.tensor([1, 165]), torch.tensor([1, 90])))
    assert [(item.kind, item.base, item.head) for item in found] == [(Kind.UNDEFINED, "defined", "undefined")]


def test_one_undefined_id_does_not_hide_the_rest_of_its_list() -> None:
    found = compared(([[1, 165, 2]], [[1, 90, 2]]), ([[1, 165, 3]], [[1, 90, 3]]))
    assert [(item.kind, item.leaf, item.index) for item in found] == [(Kind.VALUE, "return[0]", (2,))]
    found = compared(([1, 5], [1, 5]), ([1, 165], [1, 90]))
    assert [(item.kind, item.index, item.head) for item in found] == [(Kind.UNDEFINED, (1,), "undefined")]


@pytest.mark.parametrize("values", [(3, 4), (1.5, 2.5), ([1, 2], [1]), (None, [1]), ("x", "y"), ([[1]], [[2, 3]])])
def test_what_is_computed_from_undefined_bytes_is_undefined(values: tuple[Any, Any]) -> None:
    assert compared(values, values) == []
    (found,) = compared((values[0], values[0]), values)
    assert found.kind is Kind.UNDEFINED


POISONED = torch.tensor([0xA5, 0x5A], dtype=torch.uint8)[:, None].expand(2, 24)


def filled(first: int, second: int, **parts: Any) -> tuple[Outcome, Outcome]:
    """Two outcomes that return 1, 2 and a third int64 of one byte each, and the same with changes of the second."""
    returned = [torch.tensor([1, 2, byte * 0x0101010101010101 - (byte > 127) * 2**64]) for byte in (first, second)]
    return outcome(returned[0]), outcome(returned[1], **parts)


def test_only_bytes_that_are_the_fill_under_both_fills_were_never_written() -> None:
    assert only_poison(*filled(*FILLS), FILLS)
    assert only_poison(outcome({"rows": (POISONED[0], 3)}), outcome({"rows": (POISONED[1], 3)}), FILLS)
    assert only_poison(outcome(POISONED[0].numpy().copy()), outcome(POISONED[1].numpy().copy()), FILLS)
    changed = [outcome(changed={"buffer": row.clone()}) for row in POISONED]
    assert only_poison(changed[0], changed[1], FILLS)


@pytest.mark.parametrize(
    "pair",
    [
        filled(FILLS[0], 3),
        filled(3, FILLS[1]),
        filled(FILLS[1], FILLS[0]),
        filled(*FILLS, rng=(("torch", b"later"),)),
        filled(*FILLS, aliases=((0, "logits", 8),)),
        (outcome([0xA5]), outcome([0x5A])),
        (outcome(POISONED[0].clone()), outcome(POISONED[1, :23].clone())),
        (outcome(POISONED[0].clone()), outcome(POISONED[1].clone().view(torch.int64))),
        (outcome((POISONED[0].clone(), 1)), outcome((POISONED[1].clone(), 2))),
        (outcome(), outcome(raised=("IndexError", "out of range"))),
    ],
)
def test_what_else_differs_between_two_fills_takes_a_third_run(pair: tuple[Outcome, Outcome]) -> None:
    assert not only_poison(*pair, FILLS)


def test_an_exception_under_one_fill_only_is_undefined() -> None:
    good, bad = outcome([1]), outcome(raised=("IndexError", "out of range"))._replace(returned=None)
    found = compare(good, good, {}, undefined_leaves(good, bad, FILLS))
    assert Kind.UNDEFINED in {item.kind for item in found}
    assert compare(good, good, undefined_leaves(good, bad, FILLS), undefined_leaves(good, bad, FILLS)) == []


def test_undefined_bytes_of_an_input_are_not_a_write_beside_it() -> None:
    one, other = outcome(changed={"out": tensor(1, 2)}), outcome(changed={"out": tensor(1, 9)})
    head = outcome(changed={"out": tensor(1, 5)})
    mask = undefined_leaves(one, other, FILLS)
    assert compare(one, head, mask, mask) == []


def under_fills(value: Any) -> tuple[Any, Any]:
    """A bytes object or an array under the two fills: its bytes 0xEE are memory that nobody wrote."""
    raw = [bytes(value).replace(b"\xee", bytes([fill])) for fill in FILLS]
    if isinstance(value, bytes):
        return raw[0], raw[1]
    return np.frombuffer(raw[0], value.dtype), np.frombuffer(raw[1], value.dtype)


@pytest.mark.parametrize("dtype", [None, np.int32, np.complex64, np.dtype("V8")])
def test_bytes_written_beside_undefined_ones_of_an_element_are_compared(dtype: Any) -> None:
    one, two, less = (
        under_fills(raw if dtype is None else np.frombuffer(raw, dtype))
        for raw in (b"\x01\x02\xee\xee" + b"\xee" * 4, b"\x01\x03\xee\xee" + b"\xee" * 4, b"\x01" + b"\xee" * 7)
    )
    assert compared(one, one) == []
    assert [item.kind for item in compared(one, two)] == [Kind.VALUE]
    assert [item.kind for item in compared(one, less)] == [Kind.UNDEFINED]


def test_an_element_computed_from_undefined_bytes_has_no_defined_byte() -> None:
    base, head = (tensor(1), tensor(2)), (tensor(1.1), tensor(2.2))  # of each pair, two bytes are equal by chance
    assert undefined(*base)["return"].all()
    assert compared(base, head) == []


def marked(value: float, **marks: Any) -> torch.Tensor:
    found = tensor(value)
    vars(found).update(marks)
    return found


def gap(value: float, beside: float) -> Outcome:
    return outcome(changed={"x": torch.tensor([value, beside, value])[::2]})


def test_an_undefined_attribute_or_gap_of_a_tensor_hides_only_itself() -> None:
    base, same, head = ((marked(v, scratch=tensor(1)), marked(v, scratch=tensor(2))) for v in (5, 5, 6))
    assert compared(base, same) == []
    assert [(item.kind, item.leaf) for item in compared(base, head)] == [(Kind.VALUE, "return")]
    masks = [undefined_leaves(gap(value, 1), gap(value, 2), FILLS) for value in (5, 6)]
    assert compare(gap(5, 1), gap(5, 3), masks[0], masks[0]) == []
    assert [item.kind for item in compare(gap(5, 1), gap(6, 1), *masks)] == [Kind.VALUE]


def test_a_key_that_is_an_undefined_number_hides_no_other_key() -> None:
    base, other = ({"a": 1, -7: 2}, {"a": 1, 8: 2}), ({"a": 1, -9: 2}, {"a": 1, 6: 2})
    assert compared(base, other) == []
    assert [item.leaf for item in compared(base, ({"a": 3, -7: 2}, {"a": 3, 8: 2}))] == ["return['a']"]
    assert [item.leaf for item in compared(base, ({"b": 1, -7: 2}, {"b": 1, 8: 2}))] == ["return['a']", "return['b']"]
    assert [item.kind for item in compared(base, ({"a": 1}, {"a": 1}))] == [Kind.UNDEFINED]


@pytest.mark.parametrize(
    ("base", "same", "head"),
    [
        (("got 1.5 of 3", "got nan of 3"), ("got -2 of 3", "got 7e+16 of 3"), ("got 1.5 of 4", "got nan of 4")),
        (("ids [-1]", "ids [1, 2]"), ("ids [2, 3]", "ids [7]"), ("rows [-1]", "rows [1, 2]")),
    ],
)
def test_words_of_a_text_that_are_defined_are_compared(
    base: tuple[str, str], same: tuple[str, str], head: tuple[str, str]
) -> None:
    assert compared(base, same) == []
    assert [item.kind for item in compared(base, head)] == [Kind.VALUE]


def raising(name: str, words: str) -> tuple[Outcome, Outcome]:
    """What an arm raises under the two fills, with an undefined number in the message."""
    return outcome(raised=(name, f"{words} -7")), outcome(raised=(name, f"{words} 8"))


def test_an_exception_with_undefined_words_is_compared_by_its_type_and_the_others() -> None:
    base = raising("ValueError", "bad id")
    for head, expected in (
        ((outcome(raised=("ValueError", "bad id nan")), base[1]), []),
        (raising("ValueError", "bad row"), [Kind.EXCEPTION]),
        (raising("KeyError", "bad id"), [Kind.EXCEPTION]),
    ):
        masks = undefined_leaves(*base, FILLS), undefined_leaves(*head, FILLS)
        assert [item.kind for item in compare(base[0], head[0], *masks)] == expected


def test_one_undefined_generator_hides_no_other() -> None:
    start = (b"t", b"n", b"r")
    base, other = outcome(rng=(b"1", b"n", b"r")), outcome()
    head, again = outcome(rng=(b"1", b"2", b"r")), outcome(rng=(b"t", b"2", b"r"))
    masks = undefined_leaves(base, other, FILLS, start), undefined_leaves(head, again, FILLS, start)
    assert list(masks[0]) == ["rng.torch"]
    assert [item.leaf for item in compare(base, head, *masks, start=start)] == ["rng.numpy"]


def test_pages_that_hold_undefined_bytes_hide_no_others() -> None:
    base, other, head = (
        outcome()._replace(changed=(("x", ("pages", "torch.float32", (1,), (1,), 0, ((0, first), (1, second)))),))
        for first, second in ((b"1", b"v"), (b"2", b"v"), (b"1", b"w"))
    )
    mask = undefined_leaves(base, other, FILLS)
    assert compare(base, base, mask, mask) == []
    assert [item.kind for item in compare(base, head, mask, mask)] == [Kind.MUTATION]


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ((((0, b"v"),), ((0, b"w"),)), ("some bytes", "other bytes")),
        (((), ((3, b"w"),)), ("all zero", "some bytes")),
    ],
)
def test_a_page_of_a_very_large_input_is_not_shown_as_its_hash(
    pages: tuple[tuple[tuple[int, bytes], ...], ...], said: tuple[str, str]
) -> None:
    base, head = (
        outcome()._replace(changed=(("x", ("pages", "torch.float32", (1,), (1,), 0, held)),)) for held in pages
    )
    (item,) = compare(base, head)
    assert (item.base, item.head) == said
    assert f"page {pages[1][0][0]} of its storage; " in item.detail[0]


def test_leaves_of_a_base_that_is_not_deterministic_are_named() -> None:
    assert unstable_leaves(outcome(Tokens([1, 2], 3)), outcome(Tokens([1, 5], 3))) == ["return.ids"]
    assert unstable_leaves(outcome(rng=(b"1",)), outcome(rng=(b"2",))) == ["rng.torch"]


# -- any two values ---------------------------------------------------------------------------------------------------

FLOAT_VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, NAN, OTHER_NAN, 5e-324])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), FLOAT_VALUES, st.sampled_from(["", "a", b"a"]),
    st.builds(complex, FLOAT_VALUES, FLOAT_VALUES), st.sampled_from([Color.RED, Color.BLUE, torch.int32, range(2)]),
    st.sampled_from([np.float32(0.0), np.float32(-0.0), np.int32(1), np.int64(1), np.bool_(True), np.str_("a")]),
)  # fmt: skip
ARRAYS = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_, np.complex64, "<U1"]),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2),
    elements=None,
    fill=st.nothing(),
)
TENSORS = ARRAYS.filter(lambda a: a.dtype.kind != "U").map(torch.from_numpy)
LEAVES = st.one_of(
    SCALARS,
    ARRAYS,
    TENSORS,
    TENSORS.filter(lambda t: t.ndim == 2).map(lambda t: t.T),
    st.just(torch.zeros(2).to_sparse()),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(st.integers(0, 2), max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", 1, None, ("a", 1)]), inner, max_size=3),
        st.builds(Tokens, inner, inner),
        st.builds(State, st.integers(0, 1), inner),
        st.sets(st.integers(0, 3)),
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(VALUES, VALUES)
def test_a_difference_is_found_exactly_when_values_differ(one: Any, other: Any) -> None:
    base, head = outcome(one), outcome(other)
    there, back = compare(base, head), compare(head, base)
    assert bool(there) == (base != head)
    assert sorted(item.kind for item in there) == sorted(item.kind for item in back)
    assert {item.leaf for item in there} == {item.leaf for item in back}
    assert compare(base, base) == []
    for item in there:
        assert item.base and item.head and item.leaf


@settings(max_examples=150, deadline=None)
@given(VALUES, VALUES, st.booleans())
def test_inputs_watched_objects_and_fills_never_crash(one: Any, other: Any, undefined_in_base: bool) -> None:
    base = outcome(changed={"x": one}, watched={"y": other})
    head = outcome(changed={"x": other}, watched={"y": one})
    mask = undefined_leaves(base, head, FILLS)
    assert bool(compare(base, head)) == (base != head)
    assert compare(base, head, mask, mask) == []
    one_sided = compare(base, head, *((mask, {}) if undefined_in_base else ({}, mask)))
    assert bool(one_sided) == (base != head)
    assert bool(unstable_leaves(base, head)) == (base != head)


def test_values_nested_too_deep_and_into_themselves_are_compared_as_far_as_they_are_followed() -> None:
    def chain(depth: int, end: Any) -> Any:
        for _ in range(depth):
            end = [end]
        return end

    assert differences(chain(DEPTH - 1, 1), chain(DEPTH - 1, 2))
    assert differences(chain(DEPTH * 20, 1), chain(DEPTH * 20, 2)) == []
    endless: list[Any] = []
    endless.append(endless)
    assert differences(endless, endless) == []
    assert differences(endless, [[]])


def test_long_values_are_said_shortly() -> None:
    assert short(Freezer()(list(range(100)))) == "list [0, 1, 2, 3, 4, 5, 6, 7, ...]"
    assert short(Freezer()(torch.zeros(3, 4))) == "tensor float32 [3, 4]"


def test_a_difference_is_data() -> None:
    (found,) = differences([1], [2])
    assert replace(found, leaf="x").leaf == "x"
