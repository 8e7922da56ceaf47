"""Hypothesis strategies for the inputs that the axes describe: the values of the grid, and what lies between them.

A drawn case is a row of the axes of a family, in which numbers may be any between the ends of their axis, and which
favours the numbers that the code under test is written with. Single numbers that a builder takes from its stream are
Hypothesis's choices, too, so sequences of steps shrink; whole tensors come from a drawn key.

Drawn cases stay inside what the family's axes span, and inside its contract where the axis's own values are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from difftest.cases.axes import INF, Spread, Stream, in_full, label_of, plain, stream, text
from difftest.target import Case, Family, Pool, Target


class Numbers(NamedTuple):
    """Numbers written in the code under test, which a fuzz favours.

    Attributes:
        fresh: those that one arm has and the other has not.
        common: those of both arms.
    """

    fresh: Sequence[float] = ()
    common: Sequence[float] = ()


NO_NUMBERS = Numbers()

LARGEST_SIZE = 2048
"""Sizes between the ends of an axis are drawn up to here; larger ones are only the axis's own."""
_DRAWN_NUMBERS = 256
"""So many numbers of a stream are Hypothesis's choices; a builder that takes more gets them from the key."""
_CELLS = 3
"""At most so many cells of the logits get a drawn value."""


class DrawnStream(Stream):  # type: ignore[misc]
    """A stream whose single numbers and short lists are drawn one by one, so that they shrink."""

    def __init__(self, key: int, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        super().__init__(key)
        self.draw = draw
        self.left = _DRAWN_NUMBERS

    def integer(self, low: int, high: int) -> int:
        if self.left <= 0 or high - low <= 0:
            return int(super().integer(low, high))
        self.left -= 1
        self.used += 1
        return int(self.draw(st.integers(low, high - 1)))

    def integers(
        self, low: int, high: int, shape: Sequence[int] = (), dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        count = math.prod(shape)
        if len(shape) > 1 or not 0 < count <= min(8, self.left):
            many: torch.Tensor = super().integers(low, high, shape, dtype)
            return many
        drawn = [self.integer(low, high) for _ in range(count)]
        return torch.tensor(drawn, dtype=torch.int64).reshape(tuple(shape)).to(dtype)


def of_target(target: Target, numbers: Numbers = NO_NUMBERS) -> st.SearchStrategy[Case] | None:
    """What a fuzz draws a target's cases from; None when there is nothing to draw from."""
    if target.fuzz is not None:
        found: st.SearchStrategy[Case] = target.fuzz()
        return found
    families = list(dict.fromkeys(_ByIdentity(case.family) for case in target.cases() if case.family is not None))
    if not families:
        return None
    return st.one_of([cases_of(item.family, numbers) for item in families])


class _ByIdentity:
    def __init__(self, family: Family) -> None:
        self.family = family

    def __hash__(self) -> int:
        return id(self.family)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.family is other.family


def cases_of(family: Family, numbers: Numbers = NO_NUMBERS) -> st.SearchStrategy[Case]:
    """Cases of one family.

    Args:
        numbers: to favour where they lie between the ends of an axis.
    """
    choices = {name: value_of(family, name, numbers) for name in family.axes}
    first = plain(family.axes)
    plainer = 2 if len(family.axes) > 5 else 1

    @st.composite
    def drawn(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
        # Many axes are plain, so that one extreme does not hide what another does.
        row = {name: draw(choices[name]) if draw(st.integers(0, 3)) >= plainer else first[name] for name in family.axes}
        key = draw(st.integers(0, 0xFFFF))
        try:
            if not family.allowed(row):
                reject()
            contract = family.contract(row)
            pool = family.build(row, DrawnStream(stream(family.name, "fuzz", key).key, draw))
        except HypothesisException:
            raise
        except Exception:  # no such input: a number between two ends that the builder has no place for
            reject()
        cells = _set_cells(draw, pool, numbers)
        label = ", ".join([in_full(label_of(row, family.axes), family.axes), f"key {key}", *cells])
        return Case(
            f"fuzz: {label}",
            lambda: pool,
            contract,
            "fuzz",
            {name: _shown(row[name], family.axes[name]) for name in row},
        )

    return drawn()


def _shown(value: Any, values: Sequence[Any]) -> str:
    """A value as coverage counts it: one that the axis does not have counts as drawn."""
    return text(value) if any(value is known for known in values) else "drawn"


def value_of(family: Family, axis: str, numbers: Numbers = NO_NUMBERS) -> st.SearchStrategy[Any]:
    """A value of one axis: one of its own, or where these are numbers one between them."""
    values = family.axes[axis]
    own = st.sampled_from(values)
    usual = [value for value in values if _inside(family, axis, value)]
    spreads = [value for value in usual if isinstance(value, Spread)]
    if spreads:
        one = between([v for spread in spreads for v in (*spread.values, spread.off)], numbers)
        if one is None:
            return own
        return st.one_of(own, st.lists(one, min_size=1, max_size=5).map(lambda drawn: _spread(drawn, spreads[0])))
    tuples = [value for value in usual if type(value) is tuple]
    if tuples and all(type(item) is int for value in tuples for item in value):
        one = between([item for value in tuples for item in value], numbers)
        sizes = [len(value) for value in tuples]
        if one is None:
            return own
        return st.one_of(own, st.lists(one, min_size=min(sizes), max_size=max(sizes)).map(tuple))
    number = between(usual, numbers)
    return own if number is None else st.one_of(own, number)


def _inside(family: Family, axis: str, value: Any) -> bool:
    try:
        return bool(family.contract({**plain(family.axes), axis: value}))
    except (LookupError, TypeError, ValueError):
        return False


def _spread(drawn: list[float], like: Spread) -> Spread:
    return Spread(f"drawn {' '.join(f'{value:.9g}' for value in drawn)}", tuple(drawn), off=like.off)


def between(values: Iterable[Any], numbers: Numbers = NO_NUMBERS) -> st.SearchStrategy[Any] | None:
    """A number between the least and the most of the numbers among `values`; None when these are not two.

    Whole when they all are. Numbers of the code, their neighbours, and what lies between two are favoured; those that
    only one arm has make up choices of their own.
    """
    ends = [v for v in values if type(v) in (int, float) and math.isfinite(v)]
    if len(set(ends)) < 2:
        return None
    choices: list[st.SearchStrategy[Any]]
    if all(type(v) is int for v in ends):
        low, high = min(1, *ends), max([v for v in ends if v <= LARGEST_SIZE], default=max(ends))
        choices = [st.integers(low, high)]
        for group in numbers:
            near = [int(v) + step for v in group if v == int(v) for step in (0, -1, 1, 0)]
            if inside := [v for v in near if low <= v <= max(ends)]:
                choices.append(st.sampled_from(inside))
        return st.one_of(choices)
    start, end = float(min(ends)), float(max(ends))
    fraction = st.integers(0, 1000).map(lambda part: start + (end - start) * part / 1000)
    choices = [fraction, st.floats(start, end, allow_nan=False)]
    for group in numbers:
        places = sorted({float(v) for v in group})
        ways = [
            [a + (b - a) * part / 4 for a, b in itertools.pairwise(places) for part in range(5)],
            [float(np.nextafter(np.float32(v), np.float32(to))) for v in places for to in (-INF, v, INF)],
        ]
        for way in ways:
            if within := [v for v in way if start <= v <= end]:
                choices.append(st.sampled_from(within))
    return st.one_of(choices)


def _set_cells(draw: Callable[[st.SearchStrategy[Any]], Any], pool: Pool, numbers: Numbers) -> list[str]:
    """Give a few cells of the logits drawn values; says which."""
    names = [
        name
        for name, value in pool.items()
        if "logits" in name and isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    ]
    if not names:
        return []
    value_strategy = between((-50.0, 50.0), numbers)
    assert value_strategy is not None
    done = []
    for _ in range(draw(st.integers(0, _CELLS))):
        name = draw(st.sampled_from(names))
        place = tuple(draw(st.integers(0, size - 1)) for size in pool[name].shape)
        value = draw(value_strategy)
        pool[name][place] = value
        done.append(f"{name}{list(place)} {value:.9g}")
    return done
