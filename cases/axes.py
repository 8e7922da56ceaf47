"""The axes of sampler inputs, declared once and used by every case file.

An axis is a sequence of values, the plain one first. :func:`cases_from` turns axes into cases: the plain row, each
value alone against plain rows, then rows that cover every pair of values of every two axes.

All values come from :class:`Stream`, a counter-based generator in integer arithmetic, so that a case has the same
bytes on every machine and with every version of numpy and torch. No transcendental function is used anywhere.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from difftest.target import Case, Family, Pool, Seeded

Tensor = torch.Tensor
Row = dict[str, Any]
"""One value of each axis, by the axis's name."""

# --- deterministic values ---------------------------------------------------------------------------------------------

_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def splitmix64(key: int, first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Numbers `first` to `first + count - 1` of the splitmix64 sequence that starts at `key`; uint64 [count].

    The definition is Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    z = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    z += np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


class Stream:
    """A stream of numbers that depends on its key only. Every draw moves it on."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.used = 0

    def bits(self, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The next `count` words, uint64 [count]."""
        words = splitmix64(self.key, self.used, count)
        self.used += count
        return words

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers in [0, 1): multiples of 2^-53, 2^-24, 2^-11 or 2^-8 for float64, float32, float16 and bfloat16."""
        digits = _DIGITS[dtype]
        words = self.bits(int(np.prod(shape))) >> np.uint64(64 - digits)
        return torch.from_numpy(words.astype(np.float64) * 2.0**-digits).reshape(shape).to(dtype)

    def integers(self, low: int, high: int, shape: Sequence[int] = (), dtype: torch.dtype = torch.int64) -> Tensor:
        """Whole numbers in [low, high); `high - low` is below 2^31."""
        if not 0 < high - low < 1 << 31:
            raise ValueError(f"integers between {low} and {high}: the range must be positive and below 2^31")
        words = self.bits(int(np.prod(tuple(shape))))
        drawn = ((words >> np.uint64(32)) * np.uint64(high - low)) >> np.uint64(32)
        return torch.from_numpy(drawn.astype(np.int64) + low).reshape(tuple(shape)).to(dtype)

    def integer(self, low: int, high: int) -> int:
        """One whole number in [low, high)."""
        if not 0 < high - low < 1 << 31:
            raise ValueError(f"an integer between {low} and {high}: the range must be positive and below 2^31")
        # The same sequence as :func:`splitmix64`, without the cost of an array.
        self.used += 1
        z = (self.key + self.used * _GOLDEN) & _WORD
        z = ((z ^ (z >> 30)) * _MIX_1) & _WORD
        z = ((z ^ (z >> 27)) * _MIX_2) & _WORD
        return low + ((((z ^ (z >> 31)) >> 32) * (high - low)) >> 32)

    def permutation(self, count: int) -> Tensor:
        """The numbers 0 to `count - 1` in some order, int64 [count]."""
        return torch.from_numpy(np.argsort(self.bits(count), kind="stable").astype(np.int64))

    def choice(self, items: Sequence[Any]) -> Any:
        """One of the items."""
        return items[self.integer(0, len(items))]

    def normal_like(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Bell-shaped numbers of mean 0 and deviation `scale`, within 3.47 deviations: sums of four uniforms.

        The sums are exact integers of 34 bits, so rounding happens once; a row of a few thousand has hardly a tie.
        """
        count = int(np.prod(shape))
        words = self.bits(2 * count)
        low = np.uint64(0xFFFFFFFF)
        total = ((words >> np.uint64(32)) + (words & low)).reshape(2, count).sum(axis=0, dtype=np.uint64)
        centred = total.astype(np.int64) - (1 << 33)
        plain = centred.astype(np.float64) * (2.0**-32 * 1.7320508075688772 * scale)
        return to_dtype(torch.from_numpy(plain).reshape(shape), dtype)


def stream(*key: object) -> Stream:
    """The stream of a readable key: strings and numbers (`stream("v1.sampler", "batch 4", 0)`)."""
    text = "\x1f".join(str(part) for part in key)
    return Stream(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def to_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in another float dtype: finite ones stay finite (clamped to its largest), the rest is kept."""
    most = torch.finfo(dtype).max
    clamped = torch.where(values.isfinite(), values.clamp(-most, most), values)
    return clamped.to(dtype)


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


# --- layouts ----------------------------------------------------------------------------------------------------------

LAYOUTS = (
    "contiguous",
    "padded rows",
    "sliced columns",
    "offset storage",
    "every other row",
    "transposed",
    "expanded",
)
"""How a tensor of two or more axes lies in its storage. `expanded` takes equal rows: see :func:`same_rows`."""
FAR_ROWS = "rows past 2^31"
"""A layout of few rows so far apart that the last begins past 2^31 elements, which an offset of 32 bits cannot hold.

The storage is lazily reserved (see :func:`lazy`), so it costs a few pages; it is made anew for each call and what code
writes into it shows in what it returns only.
"""
VECTOR_LAYOUTS = ("contiguous", "offset storage", "every other row", "column of a matrix", "expanded")
"""How a tensor of one axis lies in its storage."""

POISON_NUMBER = 1e30
POISON_ID = 1_000_003


def poison(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of what lies in gaps: 1e30 (the largest number of a smaller dtype) and NaN by turns; ids 1000003
    and -1 by turns (the largest and -1 of a smaller dtype); True and False by turns."""
    count = int(np.prod(tuple(shape)))
    out = torch.empty(count, dtype=dtype)
    if dtype.is_floating_point:
        out[0::2] = min(POISON_NUMBER, torch.finfo(dtype).max)
        out[1::2] = float("nan")
    elif dtype is torch.bool:
        out[0::2] = True
        out[1::2] = False
    else:
        out[0::2] = min(POISON_ID, torch.iinfo(dtype).max)
        out[1::2] = -1 if torch.iinfo(dtype).min < 0 else torch.iinfo(dtype).max
    return out.reshape(tuple(shape))


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """A tensor of equal values whose storage is laid out otherwise; gaps hold :func:`poison`.

    Args:
        tensor: any dtype; one axis for :data:`VECTOR_LAYOUTS`, two or more for :data:`LAYOUTS`.
        layout: a name of one of these, or :data:`FAR_ROWS`. `padded rows` leaves a gap after each row, `sliced
            columns` on both sides, `every other row` a whole row between two, `offset storage` starts inside the
            storage, `transposed` swaps the strides of the first and the last axis, `expanded` has stride 0 along
            the first.

    Raises:
        ValueError: the layout is unknown or does not suit the shape, or rows differ and the layout is `expanded`.
    """
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if layout == "contiguous" or not shape:
        return tensor.contiguous()
    if layout == "expanded":
        if shape[0] == 0:
            return tensor.contiguous()
        if not all(torch.equal(as_bytes(row), as_bytes(tensor[0])) for row in tensor[1:]):
            raise ValueError("an expanded tensor needs equal rows; take same_rows() first")
        return tensor[:1].clone().expand(shape)
    view: Tensor
    if layout == "transposed":
        view = torch.empty(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    elif layout == FAR_ROWS:
        return far_apart(tensor, shape[0] - 1)
    elif layout == "every other row":
        view = poison((2 * shape[0] + 1, *shape[1:]), dtype)[1::2]
    elif layout == "offset storage":
        view = poison((tensor.numel() + 8,), dtype)[5 : 5 + tensor.numel()].view(shape)
    elif layout == "column of a matrix" and len(shape) == 1:
        view = poison((shape[0], 3), dtype)[:, 1]
    elif layout == "padded rows" and len(shape) > 1:
        view = poison((*shape[:-1], shape[-1] + 7), dtype)[..., : shape[-1]]
    elif layout == "sliced columns" and len(shape) > 1:
        view = poison((*shape[:-1], shape[-1] + 5), dtype)[..., 3 : 3 + shape[-1]]
    else:
        raise ValueError(f"no layout {layout!r} for a tensor of {len(shape)} axes")
    view.copy_(tensor)
    return view


def far_apart(tensor: Tensor, index: int) -> Tensor:
    """A tensor of equal values whose row `index`, 1 or more, begins past 2^31 elements, at a stride of 32 bits."""
    if not 1 <= index < tensor.shape[0]:
        raise ValueError("rows lie apart when there are two or more")
    row = tensor[0].numel()
    apart = (1 << 31) // index + max(row, 1)
    whole = lazy(((tensor.shape[0] - 1) * apart + row,), tensor.dtype)
    view = whole.as_strided(tuple(tensor.shape), (apart, *tensor[0].contiguous().stride()))
    view.copy_(tensor)
    return view


def same_rows(tensor: Tensor, layout: str = "expanded") -> Tensor:
    """The tensor, each row a copy of row 0 when the layout is `expanded`."""
    return tensor[:1].repeat(tensor.shape[0], *[1] * (tensor.dim() - 1)) if layout == "expanded" else tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's values in row-major order, uint8."""
    # A tensor of one element is contiguous whatever its strides are, and a view of another width wants a stride of 1.
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def guarded(tensor: Tensor, before: int = 1, after: int = 1, fill: float | bool | None = None) -> Tensor:
    """The tensor as rows in the middle of a larger storage, so that an index of -1 or one past the end lands on a
    guard row: a read is seen by what comes of it, a write because whole storages of inputs are compared.

    Args:
        tensor: one axis or more; the result is a view with equal values.
        before, after: guard rows on either side.
        fill: what guard rows hold; :func:`poison` when left out.
    """
    shape = (before + tensor.shape[0] + after, *tensor.shape[1:])
    whole = poison(shape, tensor.dtype) if fill is None else torch.full(shape, fill, dtype=tensor.dtype)
    view = whole[before : before + tensor.shape[0]]
    view.copy_(tensor)
    return view


_MAP_NORESERVE = 0x4000  # Linux on x86 and Arm; Python 3.11 has no name for it


def lazy(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of many gigabytes of which only the pages that are written take memory.

    For offsets past 2^31 elements. The storage must be 1 GiB or more for the harness to leave it unread.
    """
    count = int(np.prod(tuple(shape), dtype=np.int64))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_NORESERVE if sys.platform == "linux" else 0)
    gc.collect()  # each launch under Triton's interpreter leaves a cycle that holds on to what it was given
    pages = mmap.mmap(-1, max(count * dtype.itemsize, 1), flags=flags)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(tuple(shape))


# --- values of logits -------------------------------------------------------------------------------------------------

INF = float("inf")
NAN = float("nan")
Pattern = Callable[[Stream, int, int, torch.dtype], Tensor]


def _random(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return s.normal_like(rows, vocab, scale=2.0, dtype=dtype)


def _grid(steps: int, size: float) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        return (s.integers(-steps, steps + 1, (rows, vocab)).double() * size).to(dtype)

    return pattern


def _bf16_grid(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return _random(s, rows, vocab, torch.bfloat16).to(dtype)


def next_up(values: Tensor, steps: Tensor | int = 1) -> Tensor:
    """Positive finite floats moved up by so many units in the last place."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    moved = values.contiguous().view(whole) + (steps if isinstance(steps, int) else steps.to(whole))
    return moved.view(values.dtype)


def _near_ties(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    coarse = (s.integers(2, 6, (rows, vocab)).double() * 0.75).to(dtype)
    return next_up(coarse, s.integers(0, 3, (rows, vocab)))


def _place(values: Tensor, positions: Tensor, value: float) -> Tensor:
    if values.numel():
        values[torch.arange(values.shape[0]), positions] = value
    return values


def _positions(s: Stream, rows: int, vocab: int) -> Tensor:
    return s.integers(0, max(vocab, 1), (rows,))


def _one_hot(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return _place(torch.zeros(rows, vocab, dtype=dtype), _positions(s, rows, vocab), 30.0)


def _constant(value: float) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        return torch.full((rows, vocab), value, dtype=dtype)

    return pattern


def _once(value: float, times: int = 1) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        out = _random(s, rows, vocab, dtype)
        for _ in range(times):
            _place(out, _positions(s, rows, vocab), value)
        return out

    return pattern


def _some_masked(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    out = _random(s, rows, vocab, dtype)
    return out.masked_fill_(s.integers(0, 3, (rows, vocab)) == 0, -INF)


def _all_but_one_masked(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return _place(torch.full((rows, vocab), -INF, dtype=dtype), _positions(s, rows, vocab), -2.0)


def _whole_row(value: float, row: int) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        out = _random(s, rows, vocab, dtype)
        if rows:
            out[row] = value
        return out

    return pattern


def _at(value: float, column: int) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        out = _random(s, rows, vocab, dtype)
        if vocab:
            out[:, column] = value
        return out

    return pattern


def _signed_zeros(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(rows, vocab, dtype=dtype)
    return torch.where(s.integers(0, 2, (rows, vocab)) == 0, zeros, -zeros)


def _denormals(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    bits = torch.finfo(dtype).bits
    whole = {16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    small = s.integers(0, 120, (rows, vocab), whole).view(dtype)
    return torch.where(s.integers(0, 2, (rows, vocab)) == 0, small, -small)


def _huge(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    part = 1.0 - s.uniform(rows, vocab, dtype=torch.float64) * 0.5
    sign = s.integers(0, 2, (rows, vocab)).double() * 2 - 1
    return (part * sign * torch.finfo(dtype).max).to(dtype)


def _wide(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    span = 14 if dtype is torch.float16 else 60
    powers = s.integers(-span, span + 1, (rows, vocab)).numpy()
    signed = s.uniform(rows, vocab, dtype=torch.float64).numpy() * 2.0 - 1.0
    return to_dtype(torch.from_numpy(np.ldexp(signed, powers)), dtype)


def _plateaus(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    steps = torch.div(torch.arange(vocab, dtype=torch.float64), 3, rounding_mode="floor") * -0.25 + 4.0
    out = [steps[s.permutation(vocab)] for _ in range(rows)]
    return to_dtype(torch.stack(out), dtype) if out else torch.zeros(0, vocab, dtype=dtype)


def _two_maxima(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    out = _random(s, rows, vocab, dtype)
    for _ in range(2):
        _place(out, _positions(s, rows, vocab), 9.0)
    if vocab:
        out[1::2, -1] = 9.0
        out[1::2, 0] = 9.0
    return out


def _softmax_tie(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """Two top logits 1e-9 apart, the larger one after the smaller on even rows and before it on odd ones."""
    out = torch.full((rows, vocab), -5.0, dtype=dtype)
    if vocab > 1:
        early = s.integers(0, vocab // 2, (rows,))
        late = s.integers(vocab // 2, vocab, (rows,))
        even = torch.arange(rows) % 2 == 0
        _place(out, torch.where(even, early, late), 0.0)
        _place(out, torch.where(even, late, early), 1e-9)
    return out


def _sorted(sign: int) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        steps = torch.arange(vocab, dtype=torch.float64) * (8.0 / max(vocab, 1) * sign)
        return to_dtype(steps.repeat(rows, 1), dtype)

    return pattern


def _padding_wins(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    out = torch.full((rows, vocab), -1.0, dtype=dtype)
    out[:, vocab - max(1, vocab // 4) :] = 0.0
    return out


def _negative(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """All below what a lane beyond the vocabulary holds when its load says 0."""
    return to_dtype(-0.5 - _random(s, rows, vocab, torch.float64).abs(), dtype)


def _far_from_zero(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """All equal, and so large that a sum with noise keeps the noise in float64 only."""
    return to_dtype(torch.full((rows, vocab), 2.0**26, dtype=torch.float64), dtype)


LOGITS: dict[str, Pattern] = {
    "random": _random,
    "integer grid": _grid(3, 1.0),
    "half grid": _grid(8, 0.5),
    "bf16 grid": _bf16_grid,
    "near ties": _near_ties,
    "plateaus": _plateaus,
    "two maxima": _two_maxima,
    "softmax tie": _softmax_tie,
    "one-hot": _one_hot,
    "all equal": _constant(0.25),
    "all zero": _constant(0.0),
    "-0.0": _signed_zeros,
    "ascending": _sorted(1),
    "descending": _sorted(-1),
    "padding wins": _padding_wins,
    "negative": _negative,
    "far from zero": _far_from_zero,
    "denormals": _denormals,
    "huge": _huge,
    "wide range": _wide,
    "-inf some": _some_masked,
    "-inf all but one": _all_but_one_masked,
    "-inf first row": _whole_row(-INF, 0),
    "-inf everywhere": _constant(-INF),
    "+inf once": _once(INF),
    "+inf twice": _once(INF, 2),
    "NaN at the start": _at(NAN, 0),
    "NaN at the end": _at(NAN, -1),
    "NaN last row": _whole_row(NAN, -1),
    "NaN everywhere": _constant(NAN),
}
"""Patterns of logits [rows, vocab] by name, the plain one first. Each works with no rows and with one id."""

FINITE_LOGITS = tuple(LOGITS)[: tuple(LOGITS).index("-inf some")]
"""Patterns without infinities and NaN."""
UNUSUAL_LOGITS = frozenset(
    {
        "huge",
        "-inf first row",
        "-inf everywhere",
        "+inf once",
        "+inf twice",
        "NaN at the start",
        "NaN at the end",
        "NaN last row",
        "NaN everywhere",
    }
)
"""Patterns that no sound model yields; a case with one is outside the contract of most targets."""


def logits(
    pattern: str,
    rows: int,
    vocab: int,
    s: Stream,
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    only: int | None = None,
) -> Tensor:
    """Logits [rows, vocab].

    Args:
        pattern: a name of :data:`LOGITS`.
        only: the one row that has the pattern; the others are random.
    """
    values = LOGITS[pattern](s, rows, vocab, dtype)
    if only is not None and rows:
        others = LOGITS["random"](s, rows, vocab, dtype)
        others[only] = values[only]
        values = others
    return lay_out(same_rows(values, layout), layout)


# --- probabilities ----------------------------------------------------------------------------------------------------


def _normalised(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole-number weights [rows, vocab] over their sum. Sums of integers and one division, so exact everywhere."""
    return (weights.double() / weights.sum(-1, keepdim=True).double()).to(dtype)


def _weights(s: Stream, rows: int, vocab: int) -> Tensor:
    return s.integers(1, 1 << 20, (rows, vocab))


def _random_probs(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return _normalised(_weights(s, rows, vocab), dtype)


def _few_levels(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return _normalised(s.integers(1, 4, (rows, vocab)), dtype)


def _peaked(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    weights = _weights(s, rows, vocab)
    return _normalised(_place(weights, _positions(s, rows, vocab), 1 << 30), dtype)


def _zeroed(columns: Callable[[int], slice]) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        weights = _weights(s, rows, vocab)
        if vocab > 1:
            weights[:, columns(vocab)] = 0
        return _normalised(weights, dtype)

    return pattern


def _certain(column: int | None) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        out = torch.zeros(rows, vocab, dtype=dtype)
        where = _positions(s, rows, vocab) if column is None else torch.full((rows,), column)
        return _place(out, where, 1.0)

    return pattern


def _mostly_last(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    weights = _weights(s, rows, vocab)
    if vocab:
        weights[:, -1] = 1 << 34
    return _normalised(weights, dtype)


def _masked_probs(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    weights = _weights(s, rows, vocab) * (s.integers(0, 3, (rows, vocab)) == 0)
    return _normalised(_place(weights, _positions(s, rows, vocab), 1000), dtype)


PROBABILITIES: dict[str, Pattern] = {
    "random": _random_probs,
    "few levels": _few_levels,
    "uniform": lambda s, rows, vocab, dtype: _normalised(torch.ones(rows, vocab, dtype=torch.int64), dtype),
    "peaked": _peaked,
    "one-hot": _certain(None),
    "all on id 0": _certain(0),
    "all on the last id": _certain(-1),
    "mostly the last id": _mostly_last,
    "id 0 has none": _zeroed(lambda vocab: slice(0, 1)),
    "tail has none": _zeroed(lambda vocab: slice(max(1, vocab // 2), vocab)),
    "most have none": _masked_probs,
    "all zero": _constant(0.0),
    "NaN everywhere": _constant(NAN),
}
"""Patterns of probabilities [rows, vocab] by name. All but the last two sum to about 1 along the vocabulary."""
UNUSUAL_PROBABILITIES = frozenset(("all zero", "NaN everywhere"))


def probabilities(
    pattern: str,
    rows: int,
    vocab: int,
    s: Stream,
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
) -> Tensor:
    """Probabilities [rows, vocab]; `pattern` is a name of :data:`PROBABILITIES`."""
    return lay_out(same_rows(PROBABILITIES[pattern](s, rows, vocab, dtype), layout), layout)


NOISE = ("random", "zero", "smallest", "half", "just below 1")
"""Injected uniform noise: drawn, or one value everywhere, at the ends of [0, 1)."""


def noise(pattern: str, shape: Sequence[int], s: Stream, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform noise of a shape; `pattern` is a name of :data:`NOISE`."""
    if pattern == "random":
        return s.uniform(*shape, dtype=dtype)
    below_1 = 1.0 - 2.0 ** -_DIGITS[dtype]
    value = {"zero": 0.0, "smallest": 2.0**-24, "half": 0.5, "just below 1": below_1}[pattern]
    return torch.full(tuple(shape), value, dtype=dtype)


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
        return lay_out(torch.tensor(self.over(batch, vocab)).to(dtype), layout)


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
    return str(value).removeprefix("torch.")


def label_of(row: Row, axes: Axes) -> str:
    """A row in words: the values that are not the plain ones."""
    first = plain(axes)
    words = [f"{name} {text(value)}" for name, value in row.items() if value is not first[name]]
    return ", ".join(words) or "plain"


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
        label = f"{prefix}{label_of(row, axes)}"
        if label in labels:
            continue
        labels.add(label)
        made += 1
        yield Case(
            label,
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
