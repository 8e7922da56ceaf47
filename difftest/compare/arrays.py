"""Array leaves: which elements differ in bytes, and what kind of difference each is. numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difftest.result import Kind

Frozen = tuple[Any, ...]

# dtype name -> (bytes an element, how its values are read)
_TORCH_DTYPES: dict[str, tuple[int, str]] = {
    "torch.float64": (8, "<f8"),
    "torch.float32": (4, "<f4"),
    "torch.float16": (2, "<f2"),
    "torch.bfloat16": (2, "bfloat16"),
    "torch.int64": (8, "<i8"),
    "torch.int32": (4, "<i4"),
    "torch.int16": (2, "<i2"),
    "torch.int8": (1, "<i1"),
    "torch.uint8": (1, "<u1"),
    "torch.uint16": (2, "<u2"),
    "torch.uint32": (4, "<u4"),
    "torch.uint64": (8, "<u8"),
    "torch.bool": (1, "bool"),
    "torch.complex64": (8, "<c8"),
    "torch.complex128": (16, "<c16"),
}


@dataclass(frozen=True)
class Elements:
    """The elements of a frozen array, flat in row-major order.

    Attributes:
        words: unsigned bytes, shape [elements, bytes an element].
        reader: how to read values, a numpy dtype string, `bfloat16` or `bool`.
        shape: logical shape.
    """

    words: NDArray[np.uint8]
    reader: str
    shape: tuple[int, ...]

    def values(self, at: NDArray[np.intp]) -> NDArray[Any]:
        """Values of some elements; narrower floats are widened to float64, bfloat16 included."""
        words = np.ascontiguousarray(self.words[at])
        if self.reader == "bfloat16":
            wide = np.zeros((len(at), 4), np.uint8)
            wide[:, 2:] = words
            return wide.view("<f4").ravel().astype(np.float64)
        if self.reader == "bool":
            return words.ravel()
        found = words.view(np.dtype(self.reader)).ravel()
        return found.astype(np.float64) if found.dtype.kind == "f" and found.dtype.itemsize < 8 else found

    @property
    def is_float(self) -> bool:
        return self.reader == "bfloat16" or np.dtype(self.reader).kind == "f"

    @property
    def is_number(self) -> bool:
        return self.reader in ("bfloat16", "bool") or np.dtype(self.reader).kind in "biufc"

    def hex(self, flat: int) -> str:
        """The element's bits as a person writes them, most significant first."""
        return "0x" + bytes(self.words[flat][::-1]).hex()

    def text(self, flat: int) -> str:
        value = self.values(np.array([flat]))[0]
        if self.is_float and self.words.shape[1] <= 8:
            digits = {"<f8": 17, "<f4": 9}.get(self.reader, 5)
            return f"{value:.{digits}g}"
        return str(value)

    def index(self, flat: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else ()


def elements_of(frozen: Frozen) -> Elements:
    """The logical elements of a frozen tensor, ndarray or storage."""
    tag, dtype, shape = frozen[0], frozen[1], frozen[2]
    if tag == "ndarray":
        size, reader = np.dtype(dtype).itemsize, "bool" if dtype == "|b1" else dtype
    else:
        size, reader = _TORCH_DTYPES.get(dtype, (1, "<u1"))
    raw = np.frombuffer(frozen[5], np.uint8)
    if tag == "storage":
        strides, offset = frozen[3], frozen[4]
        usable = raw[: len(raw) // size * size].reshape(-1, size)
        flat = np.array(offset)
        for axis, (length, stride) in enumerate(zip(shape, strides, strict=True)):
            step = np.arange(length) * stride
            flat = flat[..., None] + step if axis or flat.ndim else flat + step
        return Elements(usable[flat.ravel()] if math.prod(shape) else usable[:0], reader, shape)
    count = math.prod(shape)
    if count and len(raw) != count * size:  # a dtype this table does not know: compare its bytes
        size = len(raw) // count
        reader = "<u1" if size == 1 else f"|V{size}"
    return Elements(raw.reshape(-1, size) if count else raw[:0].reshape(0, size), reader, shape)


def scalar_elements(dtype: str, raw: bytes) -> Elements | None:
    """One number as an array of one element; None when the dtype is no number."""
    try:
        kind = np.dtype(dtype)
    except TypeError:
        return None
    if kind.kind not in "biufc" or kind.itemsize != len(raw):
        return None
    return Elements(np.frombuffer(raw, np.uint8).reshape(1, -1), "bool" if kind.kind == "b" else kind.str, ())


def covered_bytes(frozen: Frozen) -> NDArray[np.bool_]:
    """Which bytes of a frozen storage its view shows; the others are gaps and guard rows."""
    _, dtype, shape, strides, offset, raw = frozen[:6]
    size = _TORCH_DTYPES.get(dtype, (1, "<u1"))[0]
    covered = np.zeros(len(raw) // size, bool)
    flat = np.array([offset])
    for length, stride in zip(shape, strides, strict=True):
        flat = (flat[:, None] + np.arange(length) * stride).ravel()
    covered[flat] = True
    found: NDArray[np.bool_] = np.zeros(len(raw), bool)
    found[: len(covered) * size] = covered.repeat(size)
    return found


def differing(base: Elements, head: Elements) -> NDArray[np.bool_]:
    """Which elements differ in any byte; shapes and sizes must be equal."""
    found: NDArray[np.bool_] = (base.words != head.words).any(axis=1)
    return found


def kinds_of(base: Elements, head: Elements, at: NDArray[np.intp]) -> dict[Kind, NDArray[np.intp]]:
    """Differing elements by kind: value, sign of zero, NaN payload. Complex numbers: of either part."""
    if not base.is_float and np.dtype(base.reader).kind != "c":
        return {Kind.VALUE: at}
    left, right = base.values(at), head.values(at)
    with np.errstate(invalid="ignore"):
        both_nan = np.isnan(left) & np.isnan(right)
        both_zero = (left == right) & ~both_nan  # equal numbers with different bytes
    split = {
        Kind.VALUE: at[~both_nan & ~both_zero],
        Kind.SIGN_OF_ZERO: at[both_zero],
        Kind.NAN_PAYLOAD: at[both_nan],
    }
    return {kind: where for kind, where in split.items() if len(where)}


def ulps(base: Elements, head: Elements, at: NDArray[np.intp]) -> NDArray[np.float64] | None:
    """Distance in units in the last place of finite pairs of the same float type; None when there are none."""
    if not base.is_float or base.reader != head.reader or base.words.shape[1] not in (2, 4, 8):
        return None
    left, right = base.values(at), head.values(at)
    finite = np.isfinite(left) & np.isfinite(right)
    if not finite.any():
        return None
    size = base.words.shape[1]
    signed = np.dtype(f"<i{size}")

    def ordered(elements: Elements) -> NDArray[np.float64]:
        bits = np.ascontiguousarray(elements.words[at[finite]]).view(signed).ravel().astype(object)
        low = -(1 << (8 * size - 1))
        return np.array([b if b >= 0 else low - b for b in bits], dtype=object)

    found: NDArray[np.float64] = np.abs(ordered(base) - ordered(head)).astype(np.float64)
    return found
