"""What belongs together in a pool, found from its lengths: axes that move as one, counts and the axes they add up to.

A *cut* keeps some positions of a size everywhere it occurs: rows of tensors, items of lists, keys of dicts by request,
counts with their cumulative sums and flat axes, plain numbers that state the size, and indices that point into it.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from difftest.shrink.tree import Change, Path, edited, general, is_array, is_numbers, is_plain_tensor, select, walk
from difftest.target import Pool

FIRST, LATER, INNER = "first", "later", "inner"
"""Of an axis: the first of a tensor or of a list that stands by itself, a later one, or that of a list in a list."""

Indices = np.ndarray[Any, np.dtype[np.int64]]

_FORMS = ("offsets", "sums", "counts")
"""How counts may stand in a leaf; what is likeliest not to be so by chance comes first."""

_WORD = 32  # ids in one word of a bitmask

_POINTS = re.compile(r"(^|_)(idx|index|indices|ids?|pos|positions?|mapping|seeds?)(_|$)")
"""In the name of what points to rows or numbers them, and so never counts them, though it may add up to a length."""


class Axis(NamedTuple):
    path: Path
    axis: int
    length: int
    role: str


@dataclass(frozen=True)
class Cut:
    """How a size is cut.

    Attributes:
        roles: which axes of that length take part.
        scalars: plain integers that equal the size, or a total, follow.
        ragged: counts and flat axes follow.
        remap: integers below the size are indices into it and follow.
        partner: axes that are one longer follow and keep their last position (a bonus column).
    """

    roles: tuple[str, ...]
    scalars: bool = True
    ragged: bool = True
    remap: bool = True
    partner: bool = False


@dataclass(frozen=True)
class Ragged:
    """Counts by request, and the axes that are as long as they add up to.

    Attributes:
        counts: by request.
        leaves: where they stand, as `counts`, `sums` (inclusive) or `offsets` (sums with a leading 0).
        flats: axes of that total.
    """

    counts: tuple[int, ...]
    leaves: list[tuple[Path, str]] = field(default_factory=list)
    flats: list[tuple[Path, int]] = field(default_factory=list)


class Sizes:
    """The sizes of one pool.

    Attributes:
        dicts, by_id: dicts whose keys are numbers: of requests, and in an item of a list, which is of one request, ids.
        offsets: leaves that are one longer than a size, which they are the offsets of.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.nodes = dict(walk(pool))
        self.axes = list(self._axes())
        self.integers = {path: value for path, value in self.nodes.items() if type(value) is int}
        keyed = {p: v for p, v in self.nodes.items() if type(v) is dict and v and all(type(k) is int for k in v)}
        self.dicts = {p: v for p, v in keyed.items() if all(type(step) is not int for step in p)}
        self.by_id = {p: v for p, v in keyed.items() if p not in self.dicts}
        self.ragged = self._find_ragged()
        self._structure = {path for ragged in self.ragged for path, _ in ragged.leaves}
        self.offsets = {path for ragged in self.ragged for path, form in ragged.leaves if form == "offsets"}
        self._structure |= set(self._positions())
        self.grids = self._find_grids()
        self._below = self._index_leaves()

    def lengths(self, *roles: str) -> list[tuple[int, int]]:
        """(length, number of axes) of the axes of some roles, most frequent first; lengths of 1 and 0 left out."""
        flats = {flat for ragged in self.ragged for flat in ragged.flats if len(ragged.counts) != sum(ragged.counts)}
        axes = [a for a in self.axes if a.role in roles and (a.path, a.axis) not in flats]
        found = Counter(a.length for a in axes if a.path not in self.offsets)  # which are one longer than a size
        for keys in self.dicts.values():
            found.update({n: 1 for n in found if n > max(keys) >= 0})
        return sorted(((n, count) for n, count in found.items() if n > 1), key=lambda item: (-item[1], -item[0]))

    def by_request(self) -> list[int]:
        """Lengths of first axes of which a few are tried, likely numbers of requests first: what counts are given for,
        then what is most frequent, and last the lengths of what is flat in another leaf."""
        counted = {len(ragged.counts) for ragged in self.ragged}
        flat = {rows * columns for rows, columns in self.grids}
        return sorted((n for n, _ in self.lengths(FIRST)), key=lambda n: (n not in counted, n in flat))

    def used(self, size: int) -> list[list[int]]:
        """Positions of a size that one leaf of indices, or of names, points to, where they are fewer, those of fewest
        first."""
        found = []
        for path, (least, most) in self._below.items():
            if least >= 0 and most < size and path not in self._structure:
                values = _every_integer(self.nodes[path])
                if values is not None and len(chosen := np.unique(values)) < size:
                    found.append(tuple(chosen.tolist()))
        names = [value for value in self.nodes.values() if type(value) is list and set(map(type, value)) == {str}]
        for every in names:
            if len(every) == size == len(set(every)):
                found += [tuple(sorted(map(every.index, some))) for some in names if set(some) < set(every)]
        return [list(chosen) for chosen in sorted(set(found), key=lambda c: (len(c), c))]

    def pointing(self, size: int, positions: Sequence[int]) -> list[list[int]]:
        """Positions of a size whose index, in a leaf of indices, is one of some positions: the first of each."""
        leaves = [
            values
            for path in self._below
            if path not in self._structure and len(values := _integers(self.nodes[path]) or []) == size
        ]
        found = [values.index(position) for position in positions for values in leaves if position in values]
        return [[index] for index in dict.fromkeys(found)]

    def cut(self, size: int, keep: Sequence[int], how: Cut) -> Pool:
        """The pool with only some positions of a size."""
        index: Indices = np.asarray(keep, np.int64)
        changes: dict[Path, list[Change]] = {}
        done: set[tuple[Path, int]] = set()
        totals: dict[int, int] = {size: len(index)}

        def change(path: Path, *change: Change) -> None:
            changes.setdefault(path, []).extend(change)

        if how.ragged and FIRST in how.roles:
            for ragged in self.ragged:
                if len(ragged.counts) == size:
                    self._cut_ragged(ragged, index, [ragged.counts[i] for i in index], change, done, totals)
        self._cut_grids(size, index, how, change, done, totals)
        for axis in self.axes:
            if axis.role not in how.roles or (axis.path, axis.axis) in done:
                continue
            if axis.length == size and axis.path not in self.offsets:
                change(axis.path, _selecting(axis.axis, index))
            elif how.partner and axis.length == size + 1:
                change(axis.path, _selecting(axis.axis, np.append(index, size)))
            elif self._is_bitmask(axis, size) and len(index) and index[-1] == len(index) - 1:
                change(axis.path, _selecting(axis.axis, np.arange(-(-len(index) // _WORD))))
            else:
                continue
            done.add((axis.path, axis.axis))
        if how.scalars:
            for path, number in self.integers.items():
                if number in totals and number > 1:
                    change(path, lambda old: totals[old])
        position = {int(old): new for new, old in enumerate(index)}
        followers = [(FIRST, self.dicts), (LATER, self.by_id if how.remap else {})]
        for path, by_key in (item for role, some in followers if role in how.roles for item in some.items()):
            if max(by_key) < size:
                change(path, lambda old: {position[k]: item for k, item in old.items() if k in position})
        if how.scalars and LATER in how.roles:
            for path, (least, most) in self._below.items():
                if most == size and least >= 0 and path not in self._structure:
                    change(path, _at_most(len(index)))  # such as top-k, which is the vocabulary's size when it is off
        if how.remap:
            for path, (least, most) in self._below.items():
                if most < size and least >= -1 and path not in self._structure:
                    free = FIRST in how.roles and (path, 0) not in done
                    change(path, _remapping(size, index, free))
        return edited(self.pool, changes)

    def with_counts(self, ragged: Ragged, counts: Sequence[int]) -> Pool:
        """The pool with fewer items in some requests: the first ones of each are kept, here and in related counts."""
        changes: dict[Path, list[Change]] = {}
        done: set[tuple[Path, int]] = set()
        totals: dict[int, int] = {}
        every: Indices = np.arange(len(counts))

        def change(path: Path, *change: Change) -> None:
            changes.setdefault(path, []).extend(change)

        for other in self.ragged:
            apart = {a - b for a, b in zip(other.counts, ragged.counts, strict=False)}
            if len(other.counts) == len(ragged.counts) and len(apart) == 1:
                more = apart.pop()
                self._cut_ragged(other, every, [n + more for n in counts], change, done, totals)
                if max(other.counts) not in totals:
                    totals[max(other.counts)] = max(n + more for n in counts)
        for path, number in self.integers.items():
            if number in totals and number > 1:
                change(path, lambda old: totals[old])
        return edited(self.pool, changes)

    # -- finding --------------------------------------------------------------------------------------------------

    def _axes(self) -> Any:
        for path, value in self.nodes.items():
            nested = any(type(step) is int for step in path)
            if is_array(value):
                for axis, length in enumerate(value.shape):
                    yield Axis(path, axis, length, LATER if axis else FIRST)
            elif type(value) is list:
                yield Axis(path, 0, len(value), INNER if nested else FIRST)

    def _find_ragged(self) -> list[Ragged]:
        firsts = [a for a in self.axes if a.role == FIRST]
        lengths = Counter(a.length for a in firsts)
        lengths.update(len(keys) for keys in self.dicts.values())
        found: dict[tuple[int, ...], Ragged] = {}
        for axis in firsts:
            values = _integers(self.nodes[axis.path])
            if values is None or not values or min(values) < 0 or _POINTS.search(str(axis.path[-1])):
                continue
            forms = [("counts", values)]
            if values == sorted(values) and (len(values) == 1 or values[0] < values[-1]):
                steps = [b - a for a, b in zip([0, *values], values, strict=False)]
                forms.append(("offsets", steps[1:]) if values[0] == 0 and len(values) > 1 else ("sums", steps))
            for form, counts in forms:
                total = sum(counts)
                others = lengths[len(counts)] - (form != "offsets")  # something else that is by request
                if counts and others and lengths[total]:
                    ragged = found.setdefault(tuple(counts), Ragged(tuple(counts)))
                    ragged.leaves.append((axis.path, form))
        return self._without_chance(found.values(), firsts, lengths)

    def _without_chance(
        self, found: Iterable[Ragged], firsts: Sequence[Axis], lengths: Mapping[int, int]
    ) -> list[Ragged]:
        """The counts with their flat axes. What is flat for better counts is none itself, though it may add up to a
        length by chance: an index by row, say, beside offsets of the rows of each request."""
        kept, own, flat = [], set[Path](), set[Path]()
        better = sorted(found, key=lambda r: (min(_FORMS.index(form) for _, form in r.leaves), -lengths[sum(r.counts)]))
        for ragged in better:
            leaves = [(path, form) for path, form in ragged.leaves if path not in flat and path not in own]
            own |= {path for path, _ in leaves}
            flats = [(a.path, a.axis) for a in firsts if a.length == sum(ragged.counts) and a.path not in own]
            if leaves and flats:
                kept.append(Ragged(ragged.counts, leaves, flats))
                flat |= {path for path, _ in flats}
        return kept

    def _positions(self) -> Iterator[Path]:
        """Leaves that number the rows of each request from 0: they look like indices of requests and are not."""
        for ragged in self.ragged:
            numbers = [place for count in ragged.counts for place in range(count)]
            for path, _ in ragged.flats if max(ragged.counts) > 1 else ():
                if _integers(self.nodes[path]) == numbers:
                    yield path

    def _find_grids(self) -> list[tuple[int, int]]:
        """(rows, columns) of leaves whose positions are the rows of other leaves, one after the other."""
        lengths = {a.length for a in self.axes if a.role == FIRST}
        shapes = [value.shape[:2] for value in self.nodes.values() if is_array(value) and value.ndim > 1]
        return sorted({(a, b) for a, b in shapes if a > 1 and b > 1 and a * b in lengths})

    def _index_leaves(self) -> dict[Path, tuple[int, int]]:
        """Integer leaves with the least and the largest value of what stands in their place in all items of a list."""
        ranges: dict[Path, tuple[int, int]] = {}
        leaves = []
        for path, value in self.nodes.items():
            values = _every_integer(value)
            if values is None:
                continue
            leaves.append(path)
            if len(values):
                low, high = ranges.get(general(path), (1 << 62, -(1 << 62)))
                ranges[general(path)] = min(low, int(values.min())), max(high, int(values.max()))
        return {path: ranges[general(path)] for path in leaves if general(path) in ranges}

    def _is_bitmask(self, axis: Axis, size: int) -> bool:
        value = self.nodes[axis.path]
        return (
            axis.role == LATER
            and axis.length == -(-size // _WORD)
            and is_array(value)
            and str(value.dtype).removeprefix("torch.") == "int32"
            and axis.axis == value.ndim - 1
        )

    def _cut_grids(
        self,
        size: int,
        index: Indices,
        how: Cut,
        change: Callable[..., None],
        done: set[tuple[Path, int]],
        totals: dict[int, int],
    ) -> None:
        """The rows of what is flat follow rows and columns."""
        for rows, columns in self.grids:
            if rows * columns == size or rows * columns in totals:
                continue
            down: Indices = index if rows == size and FIRST in how.roles else np.arange(rows)
            across: Indices = index if columns == size and LATER in how.roles else np.arange(columns)
            if down is not index and across is not index:
                continue
            flat: Indices = (down[:, None] * columns + across).reshape(-1)
            for axis in self.axes:
                if axis.role == FIRST and axis.length == rows * columns and (axis.path, axis.axis) not in done:
                    change(axis.path, _selecting(axis.axis, flat))
                    done.add((axis.path, axis.axis))
            totals[rows * columns] = len(flat)

    def _cut_ragged(
        self,
        ragged: Ragged,
        index: Indices,
        counts: Sequence[int],
        change: Callable[..., None],
        done: set[tuple[Path, int]],
        totals: dict[int, int],
    ) -> None:
        starts = np.concatenate([[0], np.cumsum(ragged.counts)])
        parts = [np.arange(starts[i], starts[i] + n) for i, n in zip(index, counts, strict=True)]
        flat: Indices = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        for path, axis in ragged.flats:
            if (path, axis) not in done:
                change(path, _selecting(axis, flat))
                done.add((path, axis))
        sums = np.cumsum(counts).tolist()
        for path, form in ragged.leaves:
            values = {"counts": list(counts), "sums": sums, "offsets": [0, *sums]}[form]
            if (path, 0) not in done:
                change(path, _replacing(values))
                done.add((path, 0))
        totals[sum(ragged.counts)] = sum(counts)


_RECENT = 8  # pools that are kept alive for it
_recent: deque[Sizes] = deque(maxlen=_RECENT)


def sizes_of(pool: Pool) -> Sizes:
    """The sizes of a pool that is not changed any more; those of the last pools asked for are kept."""
    for known in _recent:
        if known.pool is pool:
            return known
    _recent.appendleft(Sizes(pool))
    return _recent[0]


def _selecting(axis: int, index: Indices) -> Change:
    return lambda old: select(old, axis, index)


def _replacing(values: Sequence[int]) -> Change:
    return lambda old: filled(old, values)


def filled(old: Any, values: Sequence[int]) -> Any:
    """A one-dimensional leaf of the same kind with these values."""
    if isinstance(old, list):
        return list(values)
    kept = select(old, 0, np.zeros(len(values), np.int64))
    if isinstance(old, np.ndarray):
        return np.asarray(values, old.dtype)
    kept.copy_(torch.tensor(values, dtype=old.dtype))
    return kept


def _remapping(size: int, index: Indices, free: bool) -> Change:
    """Indices below a size, once only some positions are left: moved with them, else the last one; -1 stays.

    `free`: a list of indices whose length is its own loses those whose position is gone.
    """
    table = np.minimum(np.arange(size + 1), max(len(index) - 1, 0))
    there = np.zeros(size + 1, bool)
    table[index], there[index] = np.arange(len(index)), True
    table[size], there[size] = -1, True  # what -1 looks up

    def remap(old: Any) -> Any:
        if type(old) is int:
            return int(table[old])
        if isinstance(old, set | frozenset):
            return type(old)(int(table[i]) for i in old if there[i])
        if isinstance(old, list):
            return [int(table[i]) for i in old if there[i] or not free]
        values = _int64(old)
        if free and old.ndim == 1:
            at = np.flatnonzero(there[values])
            old, values = select(old, 0, at), values[at]
        if isinstance(old, np.ndarray):
            return table[values].astype(old.dtype)
        moved = select(old, 0, np.arange(len(old))) if old.ndim else old.clone()
        if not is_plain_tensor(moved):  # a row or a column that is not there is read from what lies around
            memory = moved.untyped_storage()
            around = moved.new_empty(0).set_(memory, 0, (memory.nbytes() // moved.itemsize,), (1,))
            numbers = _int64(around)
            around.copy_(torch.from_numpy(np.where((numbers >= 0) & (numbers < size), table[numbers % size], numbers)))
        return moved.copy_(torch.from_numpy(table[values]))

    return remap


def _at_most(largest: int) -> Change:
    def clamp(old: Any) -> Any:
        if isinstance(old, torch.Tensor):
            return old.clamp(max=largest)
        if isinstance(old, np.ndarray):
            return np.minimum(old, largest).astype(old.dtype)
        return type(old)(min(value, largest) for value in old)

    return clamp


def _integers(value: Any) -> list[int] | None:
    """A one-dimensional leaf of integers as a list, at most 65,536 of them."""
    if type(value) is list:
        return value if value and set(map(type, value)) == {int} else None
    if is_array(value) and value.ndim == 1 and len(value) <= 1 << 16 and _is_integer(value):
        found: list[int] = value.tolist()
        return found
    return None


def _every_integer(value: Any) -> Indices | None:
    if isinstance(value, set | frozenset) and value and set(map(type, value)) == {int}:
        value = list(value)
    if is_numbers(value) and value and set(map(type, value)) == {int}:
        return np.array(value, np.int64) if max(map(abs, value)) < 1 << 62 else None
    if is_array(value) and _is_integer(value) and value.ndim:
        return _int64(value).reshape(-1)
    return None


def _int64(value: Any) -> Indices:
    found: Indices = value.to(torch.int64).numpy() if isinstance(value, torch.Tensor) else value.astype(np.int64)
    return found


def _is_integer(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool)
    return value.dtype.kind in "iu"
