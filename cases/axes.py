"""The axes of sampler inputs, declared once and used by every case file.

An axis is a sequence of values, the plain one first. :func:`cases_from` turns axes into cases: the plain row, each
value alone against plain rows, then rows that cover every pair of values of every two axes.

All values come from :class:`Stream`, so that a case has the same bytes on every machine and with every version of
numpy and torch. What tensors hold and how they lie in memory is in `logits`, `layouts` and `streams`, whose names are
all here, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from difftest.cases.layouts import (
    FAR_ROWS,
    LAYOUTS,
    POISON_ID,
    POISON_NUMBER,
    VECTOR_LAYOUTS,
    as_bytes,
    guarded,
    lay_out,
    lazy,
    poison,
    same_rows,
)
from difftest.cases.logits import (
    FINITE_LOGITS,
    INF,
    LOGITS,
    NAN,
    NOISE,
    PROBABILITIES,
    UNUSUAL_LOGITS,
    UNUSUAL_PROBABILITIES,
    Pattern,
    logits,
    next_up,
    noise,
    probabilities,
)
from difftest.cases.streams import (
    DIGITS,
    Stream,
    splitmix64,
    stream,
    to_dtype,
)
from difftest.target import Case, Family, Pool, Seeded

Tensor = torch.Tensor
Row = dict[str, Any]
"""One value of each axis, by the axis's name."""


# --- dtypes, sizes ----------------------------------------------------------------------------------------------------

FLOATS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
IDS: dict[str, torch.dtype] = {"int32": torch.int32, "int64": torch.int64}

BLOCKS = (16, 1024, 8192)
"""Block sizes that sampler kernels loop with; vocabularies lie on both sides of each."""


def around(size: int) -> tuple[int, int, int]:
    """Both sides of a block size or a dispatch threshold, and the size itself."""
    return size - 1, size, size + 1


VOCABS = (33, 1, 2, 7, 8, *around(16), 31, 32, *around(64), 128, 257, *around(1024), 1500)
"""Vocabulary sizes of ordinary cases: around vector widths, words of a bitmask, powers of two and small blocks."""
LARGE_VOCABS = (2049, 4097, 8191, 8192, 8193, 16385, 32000)
"""Vocabulary sizes for a few cases of a target: around large blocks, and one of production size."""

BATCHES = (4, 0, 1, 2, 3, 5, *around(8), 17, 33)
"""Batch sizes of ordinary cases; a target adds `around(threshold)` of its own dispatch."""

# --- parameters per request -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """How one parameter is spread over the requests of a batch.

    Attributes:
        name: how it is called in labels.
        values: given to the requests by turns. `V`, `V-1` and `V+1` stand for the vocabulary size and its neighbours.
        only: the one request that gets a value: `first`, `middle` or `last`; the others get `off`. Empty for all.
        off: the value that switches the parameter off.
    """

    name: str
    values: tuple[float | str, ...]
    only: str = ""
    off: float | str = 0.0

    def __str__(self) -> str:
        return self.name

    def over(self, batch: int, vocab: int = 0) -> list[float]:
        """One number a request."""
        rows = range(batch)
        if self.only:
            chosen = {"first": 0, "middle": batch // 2, "last": batch - 1}[self.only]
            picked = [self.values[0] if row == chosen else self.off for row in rows]
        else:
            picked = [self.values[row % len(self.values)] for row in rows]
        return [_number(value, vocab) for value in picked]

    def tensor(
        self, batch: int, dtype: torch.dtype = torch.float32, vocab: int = 0, layout: str = "contiguous"
    ) -> Tensor:
        """One number a request, [batch]."""
        made: Tensor = lay_out(torch.tensor(self.over(batch, vocab)).to(dtype), layout)
        return made


def _number(value: float | str, vocab: int) -> float:
    return {"V": vocab, "V-1": vocab - 1, "V+1": vocab + 1}[value] if isinstance(value, str) else value


JUST_BELOW_1 = 1.0 - 2.0**-24
_NAMES: dict[float | str, str] = {JUST_BELOW_1: "1-2^-24", 1 << 30: "2^30"}


def spreads(
    off: float | str, values: Sequence[float | str], sample: float | str, beyond: Sequence[float | str] = ()
) -> tuple[Spread, ...]:
    """The spreads of a parameter: off, each value everywhere, all by turns, and one request alone in each place.

    Args:
        off: the value that switches it off; the first spread.
        values: the other values, extremes among them.
        sample: the value that one request alone gets.
        beyond: values that no request has in production; everywhere or nowhere, never among others.
    """
    each = tuple(Spread(_NAMES.get(value, str(value)), (value,), off=off) for value in (off, *values, *beyond))
    mixed = Spread("mixed", (sample, off, *values), off=off)
    alone = tuple(Spread(f"{sample} on the {place}", (sample,), place, off) for place in ("first", "middle", "last"))
    return (*each[:1], mixed, *alone, *each[1:])


TEMPERATURES = spreads(1.0, (0.5, 1e-5, 1e-6, 0.0, 1.5, 100.0), 0.0)
"""Temperatures; 0 is greedy, 1e-5 the sampler's own threshold for greedy."""
RANDOM_TEMPERATURES = spreads(1.0, (1e-4, 0.5, 1.5, 100.0), 0.7)
"""Temperatures of batches in which no request is greedy."""
TOP_K = spreads("V", (1, 2, 5, "V-1"), 3, beyond=(0, -1, "V+1", 1 << 30))
TOP_P = spreads(1.0, (0.9, 0.5, 0.7, 1e-7, JUST_BELOW_1, 0.9999), 0.8, beyond=(0.0,))
MIN_P = spreads(0.0, (0.1, 1e-6, 0.5, JUST_BELOW_1, 1.0), 0.2)
REPETITION = spreads(1.0, (1.5, 0.5, 1e-3, 1e3), 1.3)
PRESENCE = spreads(0.0, (0.5, -0.5, 2.0, -2.0), 0.7)
FREQUENCY = spreads(0.0, (0.5, -0.5, 2.0, -2.0), 0.3)

BEYOND = frozenset(("0", "-1", "V+1", "2^30"))
"""Names of top-k spreads whose values the front end replaces before a sampler sees them."""

SEEDS = ("none", "all", "mixed", "first", "last", "equal")
"""Which requests have a seed of their own; `equal` gives all the same one."""


def seeds(pattern: str, batch: int, first: int = 1000) -> dict[int, Seeded]:
    """Seeded generators by request index; `pattern` is one of :data:`SEEDS`."""
    chosen = {
        "none": [],
        "all": list(range(batch)),
        "mixed": list(range(0, batch, 2)),
        "first": list(range(batch))[:1],
        "last": list(range(batch))[-1:],
        "equal": list(range(batch)),
    }[pattern]
    return {row: Seeded(first if pattern == "equal" else first + 7 * row) for row in chosen}


# --- token histories and drafts ---------------------------------------------------------------------------------------

HISTORIES = (
    "ragged",
    "empty",
    "one token",
    "repeated ids",
    "first and last id",
    "trailing -1",
    "-1 only in one request",
    "-1 only",
    "-1 in the middle",
    "id V",
    "id past V",
    "no list at all",
)
"""Output tokens so far; -1 is a placeholder of asynchronous scheduling, V the padding id."""
UNUSUAL_HISTORIES = frozenset(("id V", "id past V", "-1 in the middle"))


def histories(pattern: str, batch: int, vocab: int, s: Stream) -> list[list[int]]:
    """Token ids a request, a list of `batch` lists (an empty list for `no list at all`)."""
    if pattern == "no list at all":
        return []
    lengths = [(3, 1, 6, 0, 2)[row % 5] for row in range(batch)]
    lists = [s.integers(0, vocab, (length,)).tolist() for length in lengths]
    last = max(vocab - 1, 0)
    for row, ids in enumerate(lists):
        if pattern == "empty":
            ids.clear()
        elif pattern == "one token":
            ids[:] = [s.integer(0, vocab)]
        elif pattern == "repeated ids":
            ids[:] = [row % vocab] * (row + 2)
        elif pattern == "first and last id":
            ids[:] = [0, last, last]
        elif pattern == "trailing -1":
            ids += [-1] * (1 + row % 2)
        elif pattern == "-1 only in one request" and row == batch // 2:
            ids[:] = [-1, -1]
        elif pattern == "-1 only":
            ids[:] = [-1] * (1 + row % 3)
        elif pattern == "-1 in the middle":
            ids[:] = [0, -1, last]
        elif pattern == "id V":
            ids[:] = [0, vocab]
        elif pattern == "id past V":
            ids[:] = [0, vocab + 1]
    return lists


DRAFT_COUNTS = ("ragged", "full", "one each", "none", "zero first", "zero last", "only first", "only last")
"""How many draft tokens the requests of a batch have."""


def draft_counts(pattern: str, batch: int, most: int = 3) -> list[int]:
    """Draft tokens a request, each at most `most`."""
    ragged = [(most, 0, 1, max(most - 1, 0), 0)[row % 5] for row in range(batch)]
    rows = range(batch)
    return {
        "ragged": ragged,
        "full": [most] * batch,
        "one each": [min(1, most)] * batch,
        "none": [0] * batch,
        "zero first": [0 if row == 0 else most for row in rows],
        "zero last": [0 if row == batch - 1 else most for row in rows],
        "only first": [most if row == 0 else 0 for row in rows],
        "only last": [most if row == batch - 1 else 0 for row in rows],
    }[pattern]


DRAFT_IDS = (
    "random",
    "-1 first",
    "-1 middle",
    "-1 last",
    "-1 everywhere",
    "-1 in one request",
    "id 0",
    "id V-1",
    "id V",
    "id V+1",
    "largest id",
)
"""Draft token ids; -1 is a placeholder. The last three are beyond the vocabulary."""
UNUSUAL_DRAFT_IDS = frozenset(("id V", "id V+1", "largest id"))


def draft_ids(pattern: str, counts: Sequence[int], vocab: int, s: Stream, dtype: torch.dtype = torch.int32) -> Tensor:
    """Draft token ids of all requests, one after another, [sum(counts)]."""
    special = {
        "id 0": 0,
        "id V-1": vocab - 1,
        "id V": vocab,
        "id V+1": vocab + 1,
        "largest id": 2**31 - 1,
    }.get(pattern)
    ids: list[int] = []
    for row, count in enumerate(counts):
        drafts = s.integers(0, vocab, (count,)).tolist()
        if count and special is not None:
            drafts[s.integer(0, count)] = special
        elif count and pattern in ("-1 first", "-1 middle", "-1 last"):
            drafts[{"first": 0, "middle": count // 2, "last": count - 1}[pattern[3:]]] = -1
        elif pattern == "-1 everywhere" or (pattern == "-1 in one request" and row == len(counts) // 2):
            drafts = [-1] * count
        ids += drafts
    return torch.tensor(ids, dtype=dtype)


# --- rows of axes, and cases out of them ------------------------------------------------------------------------------

Axes = Mapping[str, Sequence[Any]]


def plain(axes: Axes) -> Row:
    """The first value of each axis."""
    return {name: values[0] for name, values in axes.items()}


def extremes(axes: Axes) -> list[Row]:
    """The plain row, then each other value of each axis alone."""
    first = plain(axes)
    return [first] + [{**first, name: value} for name, values in axes.items() for value in values[1:]]


def product(axes: Axes) -> list[Row]:
    """Every combination. For small axes."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def pairwise(axes: Axes, given: Iterable[Row] = (), turn: int = 0) -> list[Row]:
    """Rows in which every pair of values of every two axes occurs: the plain row, then a greedy cover, always alike.

    Args:
        given: rows that are there already; pairs they hold are not sought again, and they are not returned.
        turn: another number gives another cover, in which what a pair leaves free is drawn, not plain.
    """
    draw = stream("pairwise", turn)
    names = list(axes)
    sizes = [len(axes[name]) for name in names]
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(sizes[a])
        for j in range(sizes[b])
    }

    def cover(row: Sequence[int]) -> None:
        left.difference_update((a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(names)), 2))

    for row in given:
        cover([_index(axes[name], row[name]) for name in names])
    chosen: list[list[int]] = []
    if not given:
        chosen.append([0] * len(names))
        cover(chosen[0])
    pairs = sorted(left)
    for position in draw.permutation(len(pairs)).tolist() if turn else range(len(pairs)):
        pair = pairs[position]
        if pair not in left:
            continue
        row_ids: dict[int, int] = {pair[0]: pair[1], pair[2]: pair[3]}
        for axis in range(len(names)):
            if axis not in row_ids:
                gains = [
                    sum(
                        ((other, j, axis, i) if other < axis else (axis, i, other, j)) in left
                        for other, j in row_ids.items()
                    )
                    for i in range(sizes[axis])
                ]
                best = [i for i, gain in enumerate(gains) if gain == max(gains)]
                row_ids[axis] = draw.choice(best) if turn else best[0]
        chosen.append([row_ids[axis] for axis in range(len(names))])
        cover(chosen[-1])
    return [{name: axes[name][i] for name, i in zip(names, row, strict=True)} for row in chosen]


def _index(values: Sequence[Any], value: Any) -> int:
    return next(i for i, known in enumerate(values) if known is value)


def sized(row: Row, batch: int, drafts: int) -> tuple[int, int]:
    """The batch and the most drafts of a request: those of the cases, or of a timing shape (`row["size"]`)."""
    size = row.get("size")
    return (batch, drafts) if size is None else (size.batch, size.drafts)


def text(value: object) -> str:
    """A value of an axis as labels show it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")


def label_of(row: Row, axes: Axes) -> str:
    """A row in words: the values that are not the plain ones."""
    first = plain(axes)
    words = [f"{name} {text(value)}" for name, value in row.items() if value is not first[name]]
    return ", ".join(words) or "plain"


def in_full(label: str, axes: Axes) -> str:
    """A row's label; where no value is in it, with the plain values that it stands for."""
    if label != "plain":
        return label
    words = [f"{name} {text(values[0])}" for name, values in axes.items() if len(values) > 1]
    return f"plain: {', '.join(words)}" if words else label


def cases_from(
    axes: Axes,
    build: Callable[[Row, Stream], Pool],
    *,
    name: str,
    contract: bool | Callable[[Row], bool] = True,
    allowed: Callable[[Row], bool] | None = None,
    limit: int | None = None,
    covers: int = 1,
    alone: Axes | None = None,
    rows: Sequence[Row] | None = None,
    prefix: str = "",
) -> Iterator[Case]:
    """Cases out of axes: the plain row, each value alone, then all pairs, so that a budget cuts off the pairs first.

    Args:
        axes: values by axis, the plain one first.
        build: makes the pool of a row; draws from the stream only.
        name: of the target; keys the streams.
        contract: whether a row is inside the target's contract.
        allowed: says which rows make sense; the others are left out.
        limit: at most so many cases; what is cut off are pairs at the end.
        covers: how many covers of all pairs; further ones meet other triples of values.
        alone: further values by axis that meet plain values only; for those that end the call at once.
        rows: take these rows instead, in this order.
        prefix: begins each label.
    """
    family = Family(
        name,
        axes,
        build,
        contract if callable(contract) else lambda row: contract,
        allowed or (lambda row: True),
    )
    made = 0
    labels: set[str] = set()
    for row in _ordered(axes, covers, alone or {}) if rows is None else rows:
        if allowed is not None and not allowed(row):
            continue
        if limit is not None and made >= limit:
            return
        words = label_of(row, axes)
        label = f"{prefix}{words}"  # keys the stream, so it stays what it is when values come to an axis
        if label in labels:
            continue
        labels.add(label)
        made += 1
        yield Case(
            f"{prefix}{in_full(words, axes)}",
            _Build(build, row, name, label),
            contract=contract if isinstance(contract, bool) else contract(row),
            axes={axis: text(value) for axis, value in row.items()},
            family=family,
        )


def _ordered(axes: Axes, covers: int, alone: Axes) -> Iterator[Row]:
    """The rows of :func:`cases_from`; pairs take long to find, and are sought when they are asked for."""
    single = extremes(axes)
    yield from single
    yield from ({**single[0], axis: value} for axis, values in alone.items() for value in values)
    yield from pairwise(axes, single)
    for turn in range(1, covers):
        yield from pairwise(axes, single[:1], turn)


@dataclass(frozen=True)
class _Build:
    build: Callable[[Row, Stream], Pool]
    row: Row
    name: str
    label: str

    def __call__(self) -> Pool:
        return self.build(self.row, stream(self.name, self.label))


__all__ = [
    "BATCHES",
    "BEYOND",
    "BLOCKS",
    "DIGITS",
    "DRAFT_COUNTS",
    "DRAFT_IDS",
    "FAR_ROWS",
    "FINITE_LOGITS",
    "FLOATS",
    "FREQUENCY",
    "HISTORIES",
    "IDS",
    "INF",
    "JUST_BELOW_1",
    "LARGE_VOCABS",
    "LAYOUTS",
    "LOGITS",
    "MIN_P",
    "NAN",
    "NOISE",
    "POISON_ID",
    "POISON_NUMBER",
    "PRESENCE",
    "PROBABILITIES",
    "RANDOM_TEMPERATURES",
    "REPETITION",
    "SEEDS",
    "TEMPERATURES",
    "TOP_K",
    "TOP_P",
    "UNUSUAL_DRAFT_IDS",
    "UNUSUAL_HISTORIES",
    "UNUSUAL_LOGITS",
    "UNUSUAL_PROBABILITIES",
    "VECTOR_LAYOUTS",
    "VOCABS",
    "Axes",
    "Pattern",
    "Row",
    "Spread",
    "Stream",
    "Tensor",
    "around",
    "as_bytes",
    "cases_from",
    "draft_counts",
    "draft_ids",
    "extremes",
    "guarded",
    "histories",
    "in_full",
    "label_of",
    "lay_out",
    "lazy",
    "logits",
    "next_up",
    "noise",
    "pairwise",
    "plain",
    "poison",
    "probabilities",
    "product",
    "same_rows",
    "seeds",
    "sized",
    "splitmix64",
    "spreads",
    "stream",
    "text",
    "to_dtype",
]
