"""Timing shapes: batch by vocabulary by speculation, as a server meets them. No targets here.

One wide tensor of a pool holds at most :data:`MOST` numbers, 64 MB of float32, so that a pool stays below 256 MB:
the largest batches are met with the smaller vocabularies and with less speculation only.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from difftest.cases import axes
from difftest.target import Case, Family, Pool, Shape

VOCABULARIES = (32_000, 128_000, 151_936)
BATCHES = tuple(2**power for power in range(10))
DRAFTS = (1, 3, 5)
MOST = 512 * 32_000
"""Largest number of logits rows times vocabulary."""
QUICK = ((1, 8, 64, 512), (32_000, 151_936))
QUICK_MOST = 1_300_000
"""Largest batch times vocabulary of the quick list, whose calls take some milliseconds at most."""

WIDEST = 60_000_000
"""Largest number of logits of a pool that holds little else, so that it stays below 256 MB, too."""

_SEED = 0x5EED


def by_batch_and_vocabulary(make: Callable[[int, int, int], Pool], most: int) -> Callable[[str], Iterator[Shape]]:
    """Shapes of a target whose time goes with the logits: batch 1 to 512 by vocabulary.

    Args:
        make: the pool from batch, vocabulary and a number; another number gives other contents and the same work.
        most: largest batch times vocabulary, so that a call stays below some 50 ms on one core.
    """

    def shapes(name: str) -> Iterator[Shape]:
        batches, vocabularies = QUICK if name == "quick" else (BATCHES, VOCABULARIES)
        for vocabulary in vocabularies:
            for batch in batches:
                if batch * vocabulary <= (min(most, QUICK_MOST) if name == "quick" else most):
                    vary = functools.partial(make, batch, vocabulary)
                    yield Shape(
                        f"batch {batch}, vocabulary {vocabulary}",
                        functools.partial(vary, 0),
                        axes={"batch": batch, "vocabulary": vocabulary},
                        vary=vary,
                    )

    return shapes


class Size(NamedTuple):
    """Sizes of a shape: requests, draft tokens of each and vocabulary; 0 where the target has none."""

    batch: int
    drafts: int = 0
    vocabulary: int = 0

    @property
    def numbers(self) -> int:
        """How many logits there are."""
        return self.batch * (1 + self.drafts) * self.vocabulary

    def __str__(self) -> str:
        drafts = {0: "", 1: ", 1 draft"}.get(self.drafts, f", {self.drafts} drafts")
        return f"batch {self.batch}{drafts}" + (f", vocabulary {self.vocabulary}" if self.vocabulary else "")


def of_cases(
    cases: Callable[[], Iterable[Case]],
    *along: str,
    batches: Sequence[int] = BATCHES,
    most: int = MOST,
    also: Callable[[Size], axes.Row] | None = None,
    varies: bool = True,
) -> Callable[[str], Iterator[Shape]]:
    """Shapes of a target out of the family of its cases: the plain row, with the sizes of a server.

    A whole number on the axes `batch`, `rows` or `requests` becomes the batch, one on `vocab` or `vocabulary` the
    vocabulary; drafts become as many for each request. A builder whose cases have a fixed size finds the
    :class:`Size` as `row["size"]`.

    Args:
        cases: the target's cases; the first family among them is taken.
        along: `vocabulary` and `drafts`, where the target has them.
        batches: numbers of requests.
        most: largest number of logits, for targets with many wide tensors or slow calls.
        also: further values of axes for a size.
        varies: False for pools that hold no drawn numbers.
    """

    def shapes(name: str) -> Iterator[Shape]:
        family = next(case.family for case in cases() if case.family is not None)
        for size in sizes(name, along, batches, most):
            row = _sized(family, size) | (also(size) if also else {})
            vary = _Varied(family, row, size)
            named = {"batch": size.batch, "max_spec_len": size.drafts, "vocabulary": size.vocabulary}
            numbers = {axis: number for axis, number in named.items() if number}
            yield Shape(str(size), functools.partial(vary, 0), axes=numbers, vary=vary if varies else None)

    return shapes


def sizes(name: str, along: Sequence[str], batches: Sequence[int] = BATCHES, most: int = MOST) -> Iterator[Size]:
    """The sizes of the list `grid` or `quick`, those with more than `most` logits left out."""
    quick = name == "quick"
    most = min(most, QUICK_MOST) if quick else most
    for vocabulary in (QUICK[1] if quick else VOCABULARIES) if "vocabulary" in along else (0,):
        for drafts in ((3,) if quick else DRAFTS) if "drafts" in along else (0,):
            for batch in batches:
                size = Size(batch, drafts, vocabulary)
                if size.numbers <= most and (not quick or batch in QUICK[0] or batches is not BATCHES):
                    yield size


def _sized(family: Family, size: Size) -> axes.Row:
    row = axes.plain(family.axes)
    for axis, value in row.items():
        if axis in ("batch", "rows", "requests") and isinstance(value, int):
            row[axis] = size.batch
        elif axis in ("vocab", "vocabulary"):
            row[axis] = size.vocabulary or value
        elif axis == "drafts" and isinstance(value, tuple):
            row[axis] = (size.drafts,) * size.batch
        elif axis in ("drafts", "counts") and "full" in family.axes[axis]:
            row[axis] = "full"
        elif axis == "most drafts":
            row[axis] = size.drafts
    return {**row, "size": size}


@dataclass(frozen=True, eq=False)
class _Varied:
    """Pools of one shape by number. Wide tensors are those of number 0 but for a hair, for they take long to draw."""

    family: Family
    row: axes.Row
    size: Size

    def __call__(self, number: int) -> Pool:
        if not self.size.vocabulary:
            return self.drawn(number)
        first = _first(self)
        varied: Pool = _scaled(first, 1.0 - number % 1024 * 2.0**-16, self.size.vocabulary)
        nothing_wide = all(varied[name] is value for name, value in first.items())
        return self.drawn(number) if number and nothing_wide else varied

    def drawn(self, number: int) -> Pool:
        return self.family.build(dict(self.row), axes.stream(self.family.name, str(self.size), number))


@functools.lru_cache(maxsize=1)
def _first(varied: _Varied) -> Pool:
    return varied.drawn(0)


def _scaled(value: Any, factor: float, vocabulary: int) -> Any:
    """The same pool with its wide floating tensors times the factor, laid out as they were."""
    if isinstance(value, torch.Tensor):
        wide = vocabulary and value.is_floating_point() and value.dim() and value.shape[-1] == vocabulary
        return copy.deepcopy(value).mul_(factor) if wide and factor != 1.0 else value
    if isinstance(value, Mapping):
        return {key: _scaled(item, factor, vocabulary) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor | Mapping):
        return [_scaled(item, factor, vocabulary) for item in value]
    return value


@functools.lru_cache(maxsize=2)
def _block(rows: int, vocabulary: int) -> torch.Tensor:
    drawn = np.random.Generator(np.random.PCG64([_SEED, rows, vocabulary])).standard_normal(
        (rows, vocabulary), np.float32
    )
    return torch.from_numpy(drawn).mul_(3.0)


LAW = torch.tensor([0.05, 0.2, 0.1, 0.0, 0.3, 0.15, 0.05, 0.15])
"""Probabilities of a small vocabulary, for sampling many times; one id is impossible."""


def logits(rows: int, vocabulary: int, number: int = 0) -> torch.Tensor:
    """Logits [rows, vocabulary], float32, normal with a deviation of 3; another number turns every row round."""
    return _block(rows, vocabulary).roll(number * 7919 % vocabulary, 1)


@functools.lru_cache(maxsize=2)
def _softmax(rows: int, vocabulary: int) -> torch.Tensor:
    return _block(rows, vocabulary).softmax(-1)


def probabilities(rows: int, vocabulary: int, number: int = 0) -> torch.Tensor:
    """Their softmax."""
    return _softmax(rows, vocabulary).roll(number * 7919 % vocabulary, 1)


def token_ids(
    shape: tuple[int, ...], vocabulary: int, number: int = 0, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Ids in the vocabulary, moved on by another number."""
    count = int(np.prod(shape))
    ids = (torch.arange(count) * 104_729 + number * 7919) % vocabulary
    return ids.reshape(shape).to(dtype)
