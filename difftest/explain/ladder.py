"""How far apart two differing values are: the ladder from a sign of zero to different. Pure; numpy only."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difftest.compare.arrays import Elements, ulps
from difftest.compare.outcomes import BEYOND, OUTSIDE_THE_VIEW, WRITTEN, Difference
from difftest.result import Kind, Likeness

_LEFT_ALONE = (("base", "head leaves it unchanged"), ("head", "base leaves it unchanged"))
_SORT = re.compile(r"(?:tensor|ndarray) \S+|[A-Za-z_][\w.]*(?= \[| of |$)")
_OF_A_CASE = re.compile(r"\[[^\]]*\]|\([\d, ]*\)|\d[\d.e+-]*|'[^']*'")
"""What a message says of one case: numbers, shapes, names."""
_NUMBER = re.compile(r"[-+.\d]\S*|nan|-?inf")
ULPS = 16
"""Values at most so many units in the last place apart, in every differing element, are of class `ulp`."""


def likeness(item: Difference, rows: Collection[str] = ()) -> Likeness:
    """The class of one difference, as far as its two values alone say.

    Args:
        rows: names of outputs or inputs whose first axis is the request: in these, two requests that exchange their
            values are not the same values in another order.
    """
    if item.kind is Kind.SIGN_OF_ZERO:
        return Likeness.SIGN_OF_ZERO
    if item.kind is Kind.NAN_PAYLOAD:
        return Likeness.NAN_PAYLOAD
    if item.pair is None or item.at is None or item.kind not in (Kind.VALUE, Kind.MUTATION):
        return Likeness.DIFFERENT
    base, head = item.pair
    distance = ulps(base, head, item.at)
    if distance is not None and len(distance) == len(item.at) and distance.max() <= ULPS:
        return Likeness.ULP
    by_request = item.leaf in rows and len(base.shape) == 1
    if not by_request and _same_sets(base, head, item.at):
        return Likeness.SET_EQUAL
    return Likeness.DIFFERENT


def change(item: Difference) -> str:
    """What becomes what, where a kind of difference has few such changes, each with a cause of its own."""
    if item.kind is Kind.EXCEPTION:
        return ", ".join(f"{arm} {_outcome(text)}" for arm, text in (("base", item.base), ("head", item.head)))
    if item.leaf == BEYOND:
        return "head writes there, base does not" if item.head == WRITTEN else "base writes there, head does not"
    if item.kind is Kind.MUTATION:
        return next((f"input changed in {arm} only" for arm, said in _LEFT_ALONE if said in item.detail), "")
    if item.kind is Kind.TYPE:
        base, head = _sort(item.base), _sort(item.head)
        return f"{base} in base, {head} in head" if base != head else ""
    return f"{item.base} in base, {item.head} in head" if item.kind is Kind.DTYPE else ""


def direction(item: Difference) -> str:
    """What becomes what, as far as the cause shows in it: of exceptions the messages without their numbers, of what is
    outside of a view who wrote it, of elements what the first is where the two are not of one sort, such as `-inf in
    base, finite in head`."""
    if item.kind is Kind.EXCEPTION:
        return ", ".join(_OF_A_CASE.sub("…", text) for text in (item.base, item.head))
    if item.kind is Kind.SIGN_OF_ZERO:
        return f"{item.base} in base"
    if item.kind is Kind.MUTATION and item.detail and item.detail[0].startswith(OUTSIDE_THE_VIEW):
        return item.detail[0].rpartition(" by ")[2]
    if (said := change(item)) or item.pair is None or item.at is None or not len(item.at):
        return said
    base, head = (_sort_of(elements, int(item.at[0])) for elements in item.pair)
    return f"{base} in base, {head} in head" if base != head else ""


def _sort_of(elements: Elements, flat: int) -> str:
    """What a value is beside a number: not finite, a truth value, or the -1 that stands for no id."""
    text = elements.text(flat)
    if elements.is_float:
        return text if text in ("nan", "inf", "-inf") else "finite"
    return text if elements.reader == "bool" or text == "-1" else "a number"


def _sort(text: str) -> str:
    """`tensor int64` of `tensor int64 [3]`, `list` of `list [1, 2]`, `number` of a number."""
    if _NUMBER.fullmatch(text):
        return "number"
    found = _SORT.match(text)
    return found[0] if found is not None else "value"


def _outcome(text: str) -> str:
    """`raises IndexError` of `raises IndexError: index 3 is out of bounds`; what is no exception stays."""
    return text.partition(":")[0]


def evidence(item: Difference) -> dict[str, Any]:
    """What a report shows of the first differing element: fields of :class:`difftest.result.Mismatch`."""
    if item.pair is None or item.at is None or not len(item.at):
        return {"byte": None, "base_hex": "", "head_hex": "", "ulp": None, "ulp_largest": None}
    base, head = item.pair
    first = int(item.at[0])
    apart = np.flatnonzero(base.words[first] != head.words[first])
    distance = ulps(base, head, item.at)
    near = ulps(base, head, item.at[:1])
    return {
        "byte": first * base.words.shape[1] + int(apart[0]) if len(apart) else None,
        "base_hex": base.hex(first),
        "head_hex": head.hex(first),
        "ulp": None if near is None else float(near[0]),
        "ulp_largest": None if distance is None else float(distance.max()),
    }


def _same_sets(base: Elements, head: Elements, at: NDArray[np.intp]) -> bool:
    """Whether each row (along the last axis) that differs holds the same values, as bytes, in both arms. A -1, which
    stands for no id, has no place but its own."""
    if not base.shape or base.words.shape != head.words.shape:
        return False
    width = base.shape[-1]
    size = base.words.shape[1]
    if width < 2 or not size:
        return False
    if base.reader.startswith("<i") and any((side.values(at) == -1).any() for side in (base, head)):
        return False

    def rows(elements: Elements) -> NDArray[Any]:
        whole = np.ascontiguousarray(elements.words).view(f"V{size}").reshape(-1, width)
        chosen: NDArray[Any] = whole[np.unique(at // width)]
        # Records of plain bytes sort; numpy has no order for void.
        return np.sort(chosen.view(f"S{size}") if size > 1 else chosen.view("u1"), axis=-1)

    return bool((rows(base) == rows(head)).all())
