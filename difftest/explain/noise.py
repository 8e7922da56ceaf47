"""The same noise for both arms: what code draws is replaced by numbers that were fixed beforehand.

When two arms agree under every such noise, the difference between them is which numbers they draw, not what they do
with them. That holds only as long as two draws of one arm never share a number that they do not share in truth. So:

- a number belongs to a place in the drawn array (row, column, how often that place was drawn before), or to its turn;
- values drawn over others that nothing has read take the same numbers: the first ones have no effect;
- a generator that is found in a state in which it was before gives the same numbers as then.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Numbers = NDArray[np.int64]
"""Whole numbers below 2^24: uniform numbers, times 2^24, exact in float32 and float64 alike."""

BITS = 24
_MOST = (1 << BITS) - 1
_COARSE = {torch.bfloat16: BITS - 8, torch.float16: BITS - 11}
"""How many of the bits uniform numbers of a small dtype do not have: torch draws as many as its digits."""
SCHEMES = ("place", "turn")
"""How a draw finds its numbers: by its place in the array, or by how many numbers were drawn before."""


class Noise:
    """One noise: numbers by key, the same for every arm that asks.

    Args:
        number: which noise.
        ends: whether single uniform numbers are often exactly 0, or the largest below 1.
    """

    def __init__(self, number: int, ends: bool = False) -> None:
        self.number = number
        self.ends = ends

    def row(self, key: object, width: int, scalar: bool) -> Numbers:
        """`width` numbers of one key; `scalar`: they are compared one by one and may be ends."""
        digest = hashlib.blake2b(repr((self.number, key)).encode(), digest_size=16).digest()
        source = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        found = source.integers(0, _MOST + 1, width, dtype=np.int64)
        if self.ends and scalar:
            which = source.integers(0, 4, width)
            found[which == 0], found[which == 1] = 0, _MOST
        return found

    def hashed(self, keys: NDArray[np.uint64], scalar: bool) -> Numbers:
        """A number for each of many keys, as :meth:`row` with `width` 1 gives one."""
        mixed = mix64(keys ^ np.uint64(self.number + 1))
        found: Numbers = (mixed >> np.uint64(64 - BITS)).astype(np.int64)
        if self.ends and scalar:
            which = mixed & np.uint64(3)
            found[which == 0], found[which == 1] = 0, _MOST
        return found


def mix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014) over each word."""
    z = words * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class _Reads(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Tells of tensors whose memory Python code gets hold of, which no operator shows."""

    _NAMES = frozenset(("numpy", "__array__", "tolist", "data_ptr", "__dlpack__", "untyped_storage", "storage"))

    def __init__(self, told: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self._NAMES and args and isinstance(args[0], torch.Tensor):
            self.told(args[0])
        return func(*args, **(kwargs or {}))


class FixedNoise(TorchDispatchMode):
    """While it is on, torch's random operators give the numbers of a noise. The generators move as ever.

    Args:
        scheme: one of :data:`SCHEMES`.

    Attributes:
        draws: how many numbers were drawn, by source.
        unknown: random operators that could not be replaced.
        real: a hash of what was drawn in truth, and where to.
    """

    def __init__(self, noise: Noise, scheme: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noise = noise
        self.scheme = scheme
        self.draws: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.real = hashlib.blake2b(digest_size=16)
        self._times: Counter[object] = Counter()
        self._fresh: Counter[int] = Counter()
        self._unread: dict[tuple[int, int, int], tuple[object, int]] = {}
        self._known: dict[bytes, Numbers] = {}
        self._turn = 0
        self._stack = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to hide this from its compiler, which it loads for that, for as long as loading torch."""
        return False

    def __enter__(self) -> FixedNoise:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._stack.enter_context(_Reads(self.read))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self.draw(func, args, kwargs)
        if not func.is_view:
            for value in (*args, *kwargs.values()):
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(tensor, torch.Tensor):
                        self.read(tensor)
        return func(*args, **kwargs)

    def read(self, tensor: torch.Tensor) -> None:
        """Values of this memory may have had an effect."""
        if self._unread:
            storage = tensor.untyped_storage()._cdata
            self._unread = {key: at for key, at in self._unread.items() if key[0] != storage}

    # -- drawing --------------------------------------------------------------------------------------------------

    def draw(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.removeprefix("aten::")
        given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
        generator = given.get("generator")
        source = generator or torch.default_generator
        state = hashlib.blake2b(source.get_state().numpy().tobytes(), digest_size=16).digest()
        real = func(*args, **kwargs)
        family = _FAMILIES.get(name.removesuffix("_").removesuffix("_like"))
        if family is None or not isinstance(real, torch.Tensor):
            self.unknown.add(name)
            return real
        self.real.update(repr((state, name, real.storage_offset(), tuple(real.shape), real.dtype)).encode())
        whose = "a generator of its own" if generator is not None else "the default generator"
        if name == "multinomial":
            return self.multinomial(real, given, state, whose)
        kind = "uniform" if family in (_uniform, _bernoulli) else family.__name__.strip("_")
        self.draws[f"{kind} {str(real.dtype).removeprefix('torch.')}, {whose}"] += real.numel()
        numbers = self.numbers(real, state, family in (_uniform, _bernoulli) and real.dim() < 2)
        if family is _uniform and (coarse := _COARSE.get(real.dtype)):
            numbers = numbers >> coarse << coarse
        values = family(numbers, given)
        real.copy_(torch.from_numpy(np.ascontiguousarray(values)).reshape(real.shape))
        return real

    def multinomial(self, real: torch.Tensor, given: dict[str, Any], state: bytes, whose: str) -> torch.Tensor:
        """As torch does it: the largest of weight over exponential noise."""
        weights, count = given["self"], given["num_samples"]
        if count != 1:
            self.unknown.add("multinomial of several")
            return real
        self.draws[f"exponential {str(weights.dtype).removeprefix('torch.')}, {whose}"] += weights.numel()
        numbers = self.numbers(torch.empty(weights.shape, dtype=weights.dtype), state, False)
        noise = torch.from_numpy(_exponential(numbers, {})).to(weights.dtype)
        return real.copy_((weights / noise).argmax(-1, keepdim=True))

    def numbers(self, drawn: torch.Tensor, state: bytes, scalar: bool) -> Numbers:
        """The numbers of a drawn array, in its shape."""
        if not drawn.numel():
            return np.zeros(tuple(drawn.shape), np.int64)
        if self.scheme == "turn":
            found = self.noise.row(("turn", self._turn), drawn.numel(), scalar)
            self._turn += 1
            if drawn.dim() > 1:  # a row at a time, as code that draws row by row does
                self._turn += drawn.numel() // drawn.shape[-1] - 1
                first = self._turn - drawn.numel() // drawn.shape[-1]
                rows = range(first, self._turn)
                found = np.concatenate([self.noise.row(("turn", n), drawn.shape[-1], scalar) for n in rows])
        else:
            found = np.concatenate(
                [self.noise.row(key, drawn.shape[-1] if drawn.dim() else 1, scalar) for key in self.places(drawn)]
            )
        if (before := self._known.get(state)) is not None:  # the generator was here before
            found[: len(before)] = before[: len(found)]
        self._known[state] = found if before is None or len(found) > len(before) else before
        return found.reshape(tuple(drawn.shape))

    def places(self, drawn: torch.Tensor) -> list[object]:
        """A key for each row of the drawn array."""
        width = drawn.shape[-1] if drawn.dim() else 1
        rows = drawn.numel() // width
        storage = drawn.untyped_storage()._cdata
        whole = drawn.untyped_storage().nbytes() == drawn.numel() * drawn.element_size()
        if whole and drawn.dim() < 2:
            first = self._fresh[width]
            self._fresh[width] += 1
            offsets, names = [0], [(width, first)]
        elif drawn.dim() < 2:
            at = drawn.storage_offset()
            offsets, names = [at], [(width, at // width) if at % width == 0 else (width, "at", at)]  # type: ignore[list-item]
        else:
            step = drawn.stride(-2) or width
            first = drawn.storage_offset() // step
            offsets = [int(drawn.storage_offset() + n * step) for n in range(rows)]
            names = [(width, first + n) for n in range(rows)]
        keys: list[object] = []
        for offset, name in zip(offsets, names, strict=True):
            place = (storage, offset, width)
            if place in self._unread:
                key = self._unread[place]
            else:
                key = (name, self._times[name])
                self._times[name] += 1
            self._unread[place] = key
            keys.append(key)
        return keys


def _uniform(numbers: Numbers, given: dict[str, Any]) -> NDArray[Any]:
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    found: NDArray[Any] = low + (high - low) * (numbers / (_MOST + 1))
    return found


def _exponential(numbers: Numbers, given: dict[str, Any]) -> NDArray[Any]:
    """-log of a uniform number: what code that makes its own exponential noise of uniform numbers gets."""
    found: NDArray[Any] = -np.log((numbers + 0.5) / (_MOST + 1)) / given.get("lambd", 1.0)
    return found


def _normal(numbers: Numbers, given: dict[str, Any]) -> NDArray[Any]:
    middle = torch.from_numpy((numbers + 0.5) / (_MOST + 1))
    drawn = (torch.erfinv(2 * middle - 1) * math.sqrt(2)).numpy()
    mean, std = given.get("mean", 0.0), given.get("std", 1.0)
    found: NDArray[Any] = mean + std * drawn
    return found


def _bernoulli(numbers: Numbers, given: dict[str, Any]) -> NDArray[Any]:
    chance = given.get("p")
    if chance is None:
        chance = given["self"]
    if isinstance(chance, torch.Tensor):
        chance = chance.double().numpy()
    return ((numbers / (_MOST + 1)) < chance).astype(float)


def _integer(numbers: Numbers, given: dict[str, Any]) -> NDArray[Any]:
    low, high = given.get("low", given.get("from", 0)), given.get("high", given.get("to"))
    if high is None:
        high = 1 << BITS
    found: NDArray[Any] = (
        low + (numbers * (high - low) >> BITS) if high - low < 1 << 38 else low + numbers * ((high - low) >> BITS)
    )
    return found


_FAMILIES: dict[str, Callable[[Numbers, dict[str, Any]], NDArray[Any]]] = {
    "rand": _uniform,
    "uniform": _uniform,
    "exponential": _exponential,
    "multinomial": _exponential,
    "normal": _normal,
    "randn": _normal,
    "bernoulli": _bernoulli,
    "randint": _integer,
    "random": _integer,
}
