"""The passes that make a differing case small. Deterministic: the same verdicts lead to the same candidates."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from difftest.call.values import case_id
from difftest.record.decode import RecordedObject
from difftest.shrink.sizes import FIRST, INNER, LATER, Cut, Ragged, Sizes, sizes_of
from difftest.shrink.tree import (
    Path,
    edited,
    elements,
    general,
    is_array,
    is_numbers,
    is_plain_tensor,
    largest_axis,
    plain,
    pool_bytes,
    walk,
)
from difftest.shrink.values import (
    ANYTHING,
    Common,
    common,
    filled_up,
    normalised,
    pieces,
    simpler,
    with_integers,
    with_zeros,
)
from difftest.target import Made, Pool, Seeded

_FEW = 16
"""Positions that are left of what is long when everything is cut at once."""

_DRAWS = 8
"""Halves of what is long that are drawn at random."""

_LIKELY = 5
"""Requests that are tried as the only ones then."""

_REQUESTS = 3
"""Requests, and with `_FEW` ids of the vocabulary, that a reader looks through at once."""

_SHARE = 20
"""The part of the original's bytes of which the same is said."""

_CHANCES = 512
"""So many drawn at random are tried where what is left is more than that."""

_CHANCES_OF = 1 << 14
"""Bytes of an original up to which they are drawn in a moment."""

SMALL = (1, 2, 3, 4, 8, 16, 32)
"""Lengths to which a size is cut first; then one more than a block may have, a power of two."""

_COARSE = 32
"""Parts of a size of which each is left out at first; single positions of what is long only when values are simple."""

_UNFIT = (IndexError, ValueError, RuntimeError, TypeError, OverflowError)
"""What making a candidate raises when lengths that look alike are not: there is no such candidate then."""


class OutOfTimeError(Exception):
    """Raised by `accepts` when no further candidate is to be tried."""


class Reducer:
    """Makes a pool small as long as `accepts` says that what is wrong with it stays the same.

    Args:
        pool: the original; never changed.
        accepts: executes a candidate. Raises OutOfTimeError when the time is over.
        hint: the position of the mismatch inside its leaf, so that its row and column are tried first.
        contract: the original is inside its target's contract, and so must be what it becomes.
        ids: what may be ids of the vocabulary by which the mismatch shows.

    Attributes:
        pool: the smallest accepted so far.
        steps: the original, and all that was accepted, one after the other.
    """

    def __init__(
        self,
        pool: Pool,
        accepts: Callable[[Pool], bool],
        hint: Sequence[int] = (),
        contract: bool = True,
        ids: Sequence[int] = (),
    ) -> None:
        self.pool = pool
        self.contract = contract
        self._accepts = accepts
        self.steps = [pool]
        self._hint = tuple(dict.fromkeys(hint))
        self._ids = tuple(ids)
        self._refused: set[str] = set()
        self._fine = False
        leaves: dict[Path, list[Any]] = {}
        for path, value in walk(pool):
            leaves.setdefault(general(path), []).append(value)
        self._common = {path: common(values) for path, values in leaves.items()}
        self._none = {path for path, values in leaves.items() if any(value is None for value in values)}

    def run(self) -> Pool:
        """The smallest pool found; ends when no pass gets further or the time is over."""
        try:
            self._all_passes()
            if not self._is_small(self.pool) and (self._by_chance() or self._beyond_by_chance()):
                self._all_passes()
        except OutOfTimeError:
            pass
        return self.pool

    def _all_passes(self) -> None:
        boldly = (self._all_at_once,)
        shape = (self._layouts, self._requests, self._drafts, self._sizes, self._features, self._lists)
        values = (self._dtypes, self._values, self._elements)
        self._repeated(boldly)  # what is small is executed in a moment, and so is all that follows
        for self._fine in (False, True):
            before = -1
            while len(self.steps) > before:
                before = len(self.steps)
                self._repeated(shape)  # first: what is simpler may no longer differ when it is cut
                for each in values:
                    each()
            if largest_axis(self.pool) < 2 * _COARSE:
                break  # that was all

    def _repeated(self, passes: Sequence[Callable[[], None]]) -> None:
        before = -1
        while len(self.steps) > before:
            before = len(self.steps)
            for each in passes:
                each()

    # -- trying ---------------------------------------------------------------------------------------------------

    def _try(self, make: Callable[[], Pool]) -> bool:
        try:
            made = make()
            broken = self._broken(made)
            candidates = [edited(made, {path: [way] for path in broken}) for way in (normalised, filled_up)]
        except _UNFIT:
            return False
        return any(map(self._is_accepted, candidates if broken else [made]))

    def _is_accepted(self, candidate: Pool) -> bool:
        identity = case_id("", candidate)
        if identity in self._refused:
            return False
        if not self._accepts(candidate):
            self._refused.add(identity)
            return False
        self._refused.add(identity)  # it is what we have; no pass gains by trying it again
        self.pool = candidate
        self.steps.append(candidate)
        return True

    def _broken(self, pool: Pool) -> list[Path]:
        """Leaves whose rows were probabilities and do not add up to one any more."""
        found = []
        for path, value in walk(pool):
            kept = self._common.get(general(path), ANYTHING)
            was = self.contract and kept.distribution and is_array(value) and elements(value)
            if was and not common([value]).distribution:
                found.append(path)
        return found

    def _set(self, path: Path, value: Any) -> bool:
        return self._try(lambda: edited(self.pool, {path: [lambda _: value]}))

    def _kept(self, path: Path) -> Common:
        return self._common.get(general(path), ANYTHING) if self.contract else ANYTHING

    # -- all at once ----------------------------------------------------------------------------------------------

    def _all_at_once(self) -> None:
        """Few requests, few drafts and few ids in one step; then two of these, then one."""
        few: list[Callable[[Pool], Pool]] = [
            functools.partial(_few_requests, hint=self._hint, which=which) for which in range(_LIKELY)
        ]
        narrow: list[Callable[[Pool], Pool]] = [
            functools.partial(_narrow, ids=ids) for ids in dict.fromkeys(((), self._ids, self._hint[-1:]))
        ]
        more: list[tuple[Callable[[Pool], Pool], ...]] = [(_only_used, _few_drafts), (_few_drafts,), (_only_used,), ()]
        plans = [(one, *steps, way) for one in few for steps in more for way in narrow]
        plans += [(*steps, way) for steps in more[1::2] for way in narrow]
        plans += [(one, *steps) for one in few for steps in more]
        after = _Steps()
        for plan in plans:
            if self._try(lambda plan=plan: functools.reduce(after, plan, self.pool)):  # type: ignore[misc]
                return

    def _by_chance(self) -> bool:
        """Few requests and few ids of the original, drawn at random: what shows where values and noise happen to meet
        is lost when any of them is left out, and is found again with others. Whether they were."""
        original = self.steps[0]
        draw = random.Random(len(self.steps))

        def drawn() -> Pool:
            made = _drawn(original, draw)
            if not self._is_small(made):
                raise ValueError("there are more where nothing was drawn")
            return made

        return pool_bytes(original) <= _CHANCES_OF and any(self._try(drawn) for _ in range(_CHANCES))

    def _beyond_by_chance(self) -> bool:
        """As many ids as a block may have, a power of two, and fewer of those beyond it, with other integers in a leaf,
        drawn at random: which id shows it is decided by noise, whose seed they may be. Whether any was left out."""
        before = len(self.steps)
        draw = random.Random(before)
        largest = {path: _largest(_at(self.steps[0], path)) or 0 for path, _ in self._leaves()}
        seeds = {path: most for path, most in largest.items() if most > 0}
        for _ in range(_CHANCES):
            size = max((length for length, _ in sizes_of(self.pool).lengths(LATER)), default=0)
            block = 1 << max(1, size - 1).bit_length() - 1
            if not seeds or size < max(block, SMALL[-1]) + 2:
                break
            self._try(functools.partial(self._fewer_beyond, block, size, seeds, draw))
        return len(self.steps) > before

    def _fewer_beyond(self, block: int, size: int, seeds: dict[Path, int], draw: random.Random) -> Pool:
        path = draw.choice(list(seeds))
        far = sorted(draw.sample(range(block, size), draw.randrange((size - block) // 2, size - block)))

        def redrawn(value: Any) -> Any:
            return with_integers(value, [draw.randint(0, seeds[path]) for _ in range(elements(value))])

        return edited(sizes_of(self.pool).cut(size, [*range(block), *far], Cut((LATER,))), {path: [redrawn]})

    def _is_small(self, pool: Pool) -> bool:
        return are_small((pool_bytes(self.steps[0]), pool_bytes(pool)), requests(pool), largest_axis(pool))

    # -- passes ---------------------------------------------------------------------------------------------------

    def _layouts(self) -> None:
        """Contiguous memory, each leaf its own."""
        shared: dict[int, int] = {}
        arrays = [(path, value) for path, value in walk(self.pool) if is_array(value)]
        for _, value in arrays:
            address = _memory(value)
            shared[address] = shared.get(address, 0) + 1
        odd = [path for path, value in arrays if shared[_memory(value)] > 1 or not _is_plain(value)]
        if not odd or self._try(lambda: edited(self.pool, {path: [plain] for path in odd})):
            return
        for path in odd:
            self._try(lambda path=path: edited(self.pool, {path: [plain]}))  # type: ignore[misc]

    def _requests(self) -> None:
        variants = [Cut((FIRST,)), Cut((FIRST,), remap=False), Cut((FIRST, LATER, INNER))]
        variants += [Cut((FIRST,), scalars=False), Cut((FIRST,), ragged=False, remap=False)]
        for size in sizes_of(self.pool).by_request()[:4]:
            self._cut(size, variants[:1], quick=True)
        for size in sizes_of(self.pool).by_request()[:4]:
            self._cut(size, variants)

    def _sizes(self) -> None:
        variants = [Cut((LATER,)), Cut((LATER, FIRST, INNER)), Cut((LATER,), partner=True)]
        if not self.contract:
            variants.append(Cut((LATER,), remap=False))
        for size, _ in sorted(sizes_of(self.pool).lengths(LATER, FIRST), reverse=True)[:8]:
            self._cut(size, variants[:1], prefixes=True, quick=True)
        for size, _ in sorted(sizes_of(self.pool).lengths(LATER, FIRST), reverse=True)[:8]:
            self._cut(size, variants, prefixes=True)

    def _cut(self, size: int, variants: Sequence[Cut], prefixes: bool = False, quick: bool = False) -> None:
        """Keep few positions of a size, in the first of several ways that lets any be left out.

        `quick`: a few likely ones only, so that a size that cannot be cut does not use up the time of those that can.
        """
        start = sizes_of(self.pool)
        hints = list(dict.fromkeys(h for h in (*self._hint, 0, size - 1) if h < size))
        first: list[list[int]] = [*start.pointing(size, self._hint)[:2], *([h] for h in hints)]
        last = [[h] for h in self._hint[-1:] if h < size]
        if prefixes:
            first = last + [list(range(n)) for n in SMALL if n < size] + self._beyond_blocks(size) + first
            first += [[0, h] for h in hints if h]
        first[1:1] = start.used(size)[:3]
        if quick:
            self._first(start, size, [*last, list(range(min(8, size - 1)))] if prefixes else first[:4], variants[0])
            return
        half = size // 2
        first += [list(range(half)), list(range(half, size))]
        for number, how in enumerate(variants):
            kept = self._first(start, size, first, how)
            if kept is None and number == 0 and prefixes:
                kept = self._sampled(start, size, how)
            if kept is None and (number == 0 or size <= _FEW // 2):
                kept = self._thinned(start, size, list(range(size)), how, max(1, size // (64 if self._fine else 8)))
            if kept is not None:
                self._thinned(start, size, kept, how, 1)
                return

    def _beyond_blocks(self, size: int) -> list[list[int]]:
        """As many positions as a block may have, a power of two, and one more, or those in question beyond it."""
        found = []
        for block in (1 << power for power in range(5, (size - 1).bit_length())):
            far = sorted({i for i in (*self._ids, *self._hint) if block <= i < size})
            found += [[*range(block), *more] for more in ([block], far) if more and block + len(more) < size]
        return found

    def _first(self, start: Sizes, size: int, keeps: Sequence[list[int]], how: Cut) -> list[int] | None:
        for keep in keeps:
            if keep and self._try(lambda keep=keep: start.cut(size, keep, how)):  # type: ignore[misc]
                return keep
        return None

    def _sampled(self, start: Sizes, size: int, how: Cut) -> list[int] | None:
        """Keep half of what is long, drawn at random, again and again: what shows by how many values are rounded, say,
        rests on no position. None when nothing could be left out."""
        found = None
        keep = list(range(size))
        draw = random.Random(size)
        while len(keep) > _FEW:
            halves = [sorted(draw.sample(keep, len(keep) // 2)) for _ in range(_DRAWS)]
            kept = self._first(start, size, halves, how)
            if kept is None:
                break
            keep = found = kept
        return found

    def _thinned(self, start: Sizes, size: int, keep: list[int], how: Cut, least: int) -> list[int] | None:
        """Leave out runs of positions, long ones first; None when nothing could be."""
        found = None
        width = len(keep) // 2
        if not self._fine:
            least = max(least, len(keep) // _COARSE)
        while width >= least:
            at = 0
            while at < len(keep):
                rest = keep[:at] + keep[at + width :]
                if rest and self._try(lambda rest=rest: start.cut(size, rest, how)):  # type: ignore[misc]
                    keep = found = rest
                else:
                    at += width
            width //= 2
        return found

    def _features(self) -> None:
        """What may be left out or be None."""
        found = []
        for path, value in walk(self.pool):
            parent = _at(self.pool, path[:-1])
            named = isinstance(parent, Made | RecordedObject) or (type(parent) is dict and type(path[-1]) is str)
            each = isinstance(value, int | float) and "*" in general(path)  # a number of each request, which has one
            if each and general(path) not in self._none:
                continue
            if named and not isinstance(value, str | bool | None | RecordedObject):
                found.append((-_weight(value), path))
        for _, path in sorted(found, key=lambda item: item[0]):
            if _at(self.pool, path) is None:
                continue
            parent = _at(self.pool, path[:-1])
            if not self._set(path, None) and isinstance(parent, Made) and path[-1] in parent.optional:
                self._try(lambda path=path: edited(self.pool, {path[:-1]: [_without(path[-1])]}))  # type: ignore[misc]

    def _drafts(self) -> None:
        """Fewer items in each request."""
        for number in range(len(sizes_of(self.pool).ragged)):
            for cap in (0, 1, 2):
                sizes = sizes_of(self.pool)
                if number < len(sizes.ragged):
                    ragged = sizes.ragged[number]
                    if max(ragged.counts) > cap:
                        self._try(lambda s=sizes, r=ragged, c=cap: s.with_counts(r, [min(n, c) for n in r.counts]))  # type: ignore[misc]
            sizes = sizes_of(self.pool)
            if number < len(sizes.ragged):
                self._each_request(sizes.ragged[number], number)

    def _each_request(self, ragged: Ragged, number: int) -> None:
        for request in range(min(len(ragged.counts), 64)):
            for target in (0, 1, ragged.counts[request] // 2, ragged.counts[request] - 1):
                sizes = sizes_of(self.pool)
                if number >= len(sizes.ragged) or request >= len(sizes.ragged[number].counts):
                    return
                now = sizes.ragged[number]
                counts = [target if i == request else n for i, n in enumerate(now.counts)]
                if 0 <= target < now.counts[request] and self._try(
                    lambda s=sizes, r=now, c=counts: s.with_counts(r, c)  # type: ignore[misc]
                ):
                    break

    def _lists(self) -> None:
        """Shorter lists inside lists, fewer keys."""
        groups: dict[Path, list[Path]] = {}
        for path, value in walk(self.pool):
            if type(value) is list and value and any(type(step) is int for step in path):
                groups.setdefault(general(path), []).append(path)
        for paths in groups.values():
            for length in (0, 1, 2):
                if self._try(lambda n=length, p=paths: edited(self.pool, {path: [lambda v: v[:n]] for path in p})):  # type: ignore[misc]
                    break
        for path, value in list(walk(self.pool)):
            if _at(self.pool, path) is not value:
                continue
            if type(value) is list and value and any(type(step) is int for step in path):
                self._shorter(path, value)
            elif type(value) is dict and value and all(type(key) is int for key in value):
                for key in list(value):
                    self._try(lambda p=path, k=key: edited(self.pool, {p: [_without(k)]}))  # type: ignore[misc]
            elif isinstance(value, set | frozenset) and value:
                for item in sorted(value, key=repr):
                    now = _at(self.pool, path)
                    self._set(path, now - {item})

    def _shorter(self, path: Path, value: list[Any]) -> None:
        for keep in ([], value[:1], value[-1:], value[: len(value) // 2], value[len(value) // 2 :]):
            if len(keep) < len(value) and self._set(path, list(keep)):
                return

    def _dtypes(self) -> None:
        floats = [
            path
            for path, value in walk(self.pool)
            if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dtype != torch.float32
        ]
        if not floats or self._try(lambda: edited(self.pool, {path: [_single] for path in floats})):
            return
        for path in floats:
            self._try(lambda path=path: edited(self.pool, {path: [_single]}))  # type: ignore[misc]

    def _values(self) -> None:
        lengths = {axis.length for axis in sizes_of(self.pool).axes}
        for path, value in self._leaves():
            limit = _largest(value)
            for candidate in simpler(value, self._kept(path)):
                if type(value) is int and value in lengths and not 0 < candidate < value:
                    continue  # which states a length, or is as large as one may be
                if self.contract and limit is not None and (_largest(candidate) or 0) > max(limit, 0):
                    continue
                if self._set(path, candidate):
                    break

    def _elements(self) -> None:
        for path, value in self._leaves():
            if not is_array(value):
                continue
            kept = self._kept(path)
            for start, end in pieces(value, kept):
                made = with_zeros(_at(self.pool, path), start, end)
                if made is not None and kept.allows(made):
                    self._set(path, made)

    def _leaves(self) -> Iterator[tuple[Path, Any]]:
        """Leaves whose values are not what holds the pool together, large ones first."""
        sizes = sizes_of(self.pool)
        structure = {path for ragged in sizes.ragged for path, _ in ragged.leaves}
        lengths = {axis.length for axis in sizes.axes}
        found = []
        for path, value in sizes.nodes.items():
            if path in structure or (type(value) is int and value in lengths and value <= _FEW):
                continue
            if isinstance(value, bool) and self.contract:
                continue
            if (is_array(value) or is_numbers(value) or isinstance(value, int | float | Seeded)) and elements(value):
                found.append((path, value))
        yield from sorted(found, key=lambda item: -elements(item[1]))


_Step = Callable[[Pool], Pool]


class _Steps:
    """Takes a step from a pool, each from the same pool once; what comes out the same is one pool, however it came."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._taken: dict[tuple[int, _Step], Pool | Exception] = {}

    def __call__(self, pool: Pool, step: _Step) -> Pool:
        key = id(pool), step
        if key not in self._taken:
            try:
                found = step(pool)
                self._taken[key] = self._pools.setdefault(case_id("", found), found)
            except _UNFIT as error:
                self._taken[key] = error
        taken = self._taken[key]
        if isinstance(taken, Exception):
            raise taken
        return taken


def are_small(sizes: Sequence[int], many: int, longest: int) -> bool:
    """Whether the bytes, before and after, are a twentieth of what they were, or the requests and the ids are few."""
    return sizes[1] * _SHARE <= sizes[0] or (many <= _REQUESTS and longest <= _FEW)


def requests(pool: Pool) -> int:
    """How many requests a pool seems to be of: those that it lists as `requests`, else the most frequent length of
    first axes that is not that of what is flat in another leaf. Offsets are one longer."""
    listed = pool.get("requests")
    if isinstance(listed, list):
        return len(listed)
    sizes = sizes_of(pool)
    flat = {rows * columns for rows, columns in sizes.grids}
    flat |= {sum(ragged.counts) for ragged in sizes.ragged if len(ragged.counts) != sum(ragged.counts)}
    first = [axis for axis in sizes.axes if axis.role == FIRST]
    lengths = [n for n in (axis.length - (axis.path in sizes.offsets) for axis in first) if n > 0]
    counts = Counter(n for n in lengths if n not in flat) or Counter(lengths)
    return max(counts, key=lambda n: (counts[n], -n)) if counts else 0


def _few_requests(pool: Pool, hint: Sequence[int], which: int) -> Pool:
    """One request, or two that are neighbours, or those that are used: `which` of several likely ones."""
    size = next(iter(sizes_of(pool).by_request()), 0)
    likely = [[h] for h in dict.fromkeys((*hint, 0, size - 1)) if h < size]
    sizes = sizes_of(pool)
    pair = [[max(0, h - 1), max(1, h)] for (h,) in likely[:1] if size > 2]
    likely = [*likely[:1], *pair, *sizes.used(size)[:1], *sizes.pointing(size, hint), *likely[1:]]
    if which >= len(likely):
        raise ValueError("no further request is likely")
    return sizes.cut(size, likely[which], Cut((FIRST,)))


def _only_used(pool: Pool) -> Pool:
    """Of each size only the positions that some leaf of indices points to."""
    for size in sizes_of(pool).by_request():
        used = sizes_of(pool).used(size)
        if used:
            pool = sizes_of(pool).cut(size, used[0], Cut((FIRST,)))
    return pool


def _few_drafts(pool: Pool) -> Pool:
    """One item in each request, where there are more."""
    for number in range(len(sizes_of(pool).ragged)):
        sizes = sizes_of(pool)
        if number < len(sizes.ragged):
            ragged = sizes.ragged[number]
            least = min(min(ragged.counts), 1)
            pool = sizes.with_counts(ragged, [min(n, least + 1) for n in ragged.counts])
    return pool


def _narrow(pool: Pool, ids: Sequence[int]) -> Pool:
    """Of every long later axis the first positions, or some ids and what fills up with the first."""
    before = pool
    for size, _ in sorted(sizes_of(pool).lengths(LATER), reverse=True):
        if size > _FEW:
            chosen = {i for i in ids if i < size}
            first = [i for i in range(_FEW) if i not in chosen]
            keep = sorted([*first[: _FEW - len(chosen)], *chosen])
            pool = sizes_of(pool).cut(size, keep, Cut((LATER,)))
    if pool is before:
        raise ValueError("nothing is long")
    return pool


def _drawn(pool: Pool, draw: random.Random) -> Pool:
    """No more requests and ids than are looked through at once, as many as are drawn and those that are drawn."""
    size = next(iter(sizes_of(pool).by_request()), 0)
    if size > _REQUESTS:
        pool = sizes_of(pool).cut(size, sorted(draw.sample(range(size), draw.randint(1, _REQUESTS))), Cut((FIRST,)))
    for size, _ in sorted(sizes_of(pool).lengths(LATER), reverse=True):
        if size > _FEW:
            pool = sizes_of(pool).cut(size, sorted(draw.sample(range(size), draw.randint(2, _FEW))), Cut((LATER,)))
    return pool


def _at(pool: Pool, path: Path) -> Any:
    value: Any = pool
    for step in path:
        if isinstance(value, Made | RecordedObject):
            value = value.fields
        key = step[1] if type(step) is tuple else step
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _without(name: Any) -> Callable[[Any], Any]:
    def change(old: Any) -> Any:
        if isinstance(old, Made):
            return replace(old, fields={key: item for key, item in old.fields.items() if key != name})
        return {key: item for key, item in old.items() if key != name}

    return change


def _weight(value: Any) -> int:
    return pool_bytes({"": value})


def _memory(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.untyped_storage().data_ptr())
    while isinstance(value.base, np.ndarray):
        value = value.base
    return int(value.__array_interface__["data"][0])


def _is_plain(value: Any) -> bool:
    return is_plain_tensor(value) if isinstance(value, torch.Tensor) else value.flags.c_contiguous


def _single(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float32)


def _largest(value: Any) -> int | None:
    """The largest of a leaf's integers."""
    if type(value) is int:
        return value
    if is_numbers(value) and set(map(type, value)) == {int}:
        return int(max(value))
    if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point and value.dtype != torch.bool:
        return int(value.to(torch.int64).max())
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return int(value.max())
    return None
