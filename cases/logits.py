"""Values of logits, probabilities and noise that tell versions of samplers apart, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from difftest.cases.layouts import lay_out, same_rows
from difftest.cases.streams import DIGITS, Stream, to_dtype

Tensor = torch.Tensor

# --- values of logits -------------------------------------------------------------------------------------------------

INF = float("inf")
NAN = float("nan")
Pattern = Callable[[Stream, int, int, torch.dtype], Tensor]


def _random(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    made: Tensor = s.normal_like(rows, vocab, scale=2.0, dtype=dtype)
    return made


def _grid(steps: int, size: float) -> Pattern:
    def pattern(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
        made: Tensor = (s.integers(-steps, steps + 1, (rows, vocab)).double() * size).to(dtype)
        return made

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
    made: Tensor = s.integers(0, max(vocab, 1), (rows,))
    return made


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
    made: Tensor = (part * sign * torch.finfo(dtype).max).to(dtype)
    return made


def _wide(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    span = 14 if dtype is torch.float16 else 60
    powers = s.integers(-span, span + 1, (rows, vocab)).numpy()
    signed = s.uniform(rows, vocab, dtype=torch.float64).numpy() * 2.0 - 1.0
    made: Tensor = to_dtype(torch.from_numpy(np.ldexp(signed, powers)), dtype)
    return made


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
        made: Tensor = to_dtype(steps.repeat(rows, 1), dtype)
        return made

    return pattern


def _padding_wins(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    out = torch.full((rows, vocab), -1.0, dtype=dtype)
    out[:, vocab - max(1, vocab // 4) :] = 0.0
    return out


def _negative(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """All below what a lane beyond the vocabulary holds when its load says 0."""
    made: Tensor = to_dtype(-0.5 - _random(s, rows, vocab, torch.float64).abs(), dtype)
    return made


def _far_from_zero(s: Stream, rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """All equal, and so large that a sum with noise keeps the noise in float64 only."""
    made: Tensor = to_dtype(torch.full((rows, vocab), 2.0**26, dtype=torch.float64), dtype)
    return made


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
    made: Tensor = lay_out(same_rows(values, layout), layout)
    return made


# --- probabilities ----------------------------------------------------------------------------------------------------


def _normalised(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole-number weights [rows, vocab] over their sum. Sums of integers and one division, so exact everywhere."""
    return (weights.double() / weights.sum(-1, keepdim=True).double()).to(dtype)


def _weights(s: Stream, rows: int, vocab: int) -> Tensor:
    made: Tensor = s.integers(1, 1 << 20, (rows, vocab))
    return made


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
    "below zero": _constant(-0.25),
}
"""Patterns of probabilities [rows, vocab] by name. All but the last three sum to about 1 along the vocabulary."""
UNUSUAL_PROBABILITIES = frozenset(("all zero", "NaN everywhere", "below zero"))


def probabilities(
    pattern: str,
    rows: int,
    vocab: int,
    s: Stream,
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
) -> Tensor:
    """Probabilities [rows, vocab]; `pattern` is a name of :data:`PROBABILITIES`."""
    made: Tensor = lay_out(same_rows(PROBABILITIES[pattern](s, rows, vocab, dtype), layout), layout)
    return made


NOISE = ("random", "zero", "smallest", "half", "just below 1")
"""Injected uniform noise: drawn, or one value everywhere, at the ends of [0, 1)."""


def noise(pattern: str, shape: Sequence[int], s: Stream, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform noise of a shape; `pattern` is a name of :data:`NOISE`."""
    if pattern == "random":
        made: Tensor = s.uniform(*shape, dtype=dtype)
        return made
    below_1 = 1.0 - 2.0 ** -DIGITS[dtype]
    value = {"zero": 0.0, "smallest": 2.0**-24, "half": 0.5, "just below 1": below_1}[pattern]
    return torch.full(tuple(shape), value, dtype=dtype)
