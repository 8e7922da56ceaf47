"""Cases for a function that no case file knows, guessed from its signature: annotations, names, defaults. No targets.

What is guessed is what the field's words mean: `logits` are [batch, vocabulary], `cu_num_*` are cumulative counts,
`vocab_size` is the vocabulary of the same case's logits. Sizes are shared by all parameters of a case.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from difftest.cases import axes
from difftest.cases.axes import Row, Stream, Tensor
from difftest.lift.signature import Kind, Parameter, Signature
from difftest.target import Arm, Call, Case, Made, Pool, Prepare, Seeded, Target

SIZES: dict[str, Sequence[Any]] = {
    "batch": (4, 0, 1, 2, 3, 5, 8, 17),
    "vocabulary": (33, 1, 2, 8, 32, 128, 257, 1025),
    "drafts": axes.DRAFT_COUNTS,
    "most drafts": (3, 1, 2, 5),
    "float dtype": tuple(axes.FLOATS),
    "id dtype": tuple(reversed(axes.IDS)),
    "layout": ("contiguous", "padded rows", "offset storage", "every other row", "transposed"),
}
"""Axes that the parameters of a case share; those that no parameter takes up are left out."""
MOST_CASES = 320
_MANY_AXES = 7
_FEW_VALUES = 6
_OWNER = "self"


@dataclass(frozen=True)
class Choice:
    """A value of a parameter's axis that depends on the sizes of the case."""

    label: str
    make: Callable[[Sizes], Any]
    contract: bool = True

    def __str__(self) -> str:
        return self.label


LEFT_OUT = Choice("left out", lambda sizes: None)
"""The parameter is not given, so that its default counts."""


class _Seen(dict[str, Any]):
    """A row that knows which axes were read."""

    def __init__(self, row: Row, read: set[str]) -> None:
        super().__init__(row)
        self.read = read

    def __getitem__(self, axis: str) -> Any:
        self.read.add(axis)
        return super().__getitem__(axis)


class Sizes:
    """The sizes of one case, and the stream that its values come from."""

    def __init__(self, row: Row, s: Stream) -> None:
        self.row = row
        self.s = s

    @property
    def batch(self) -> int:
        return int(self.row["batch"])

    @property
    def vocabulary(self) -> int:
        return int(self.row["vocabulary"])

    @property
    def drafts(self) -> int:
        return int(self.row["most drafts"])

    @property
    def counts(self) -> list[int]:
        found: list[int] = axes.draft_counts(self.row["drafts"], self.batch, self.drafts)
        return found

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    @property
    def float_dtype(self) -> torch.dtype:
        found: torch.dtype = axes.FLOATS[self.row["float dtype"]]
        return found

    @property
    def id_dtype(self) -> torch.dtype:
        found: torch.dtype = axes.IDS[self.row["id dtype"]]
        return found

    def laid_out(self, tensor: Tensor) -> Tensor:
        layout = self.row["layout"]
        if tensor.dim() == 1:
            layout = {"padded rows": "column of a matrix", "transposed": "contiguous"}.get(layout, layout)
        return axes.lay_out(tensor, layout)

    def size(self, name: str, place: int, count: int) -> int:
        """What a name of an axis, such as `num_tokens` or `max_spec_len + 1`, means in this case."""
        if match := re.fullmatch(r"(.+?)\s*\+\s*(\d+)", name):
            return self.size(match[1], place, count) + int(match[2])
        if name.isdigit():
            return int(name)
        for pattern, size in _DIMENSIONS:
            if re.fullmatch(pattern, name, re.IGNORECASE):
                return size(self)
        return self.vocabulary if place and place == count - 1 else self.batch


_DIMENSIONS: tuple[tuple[str, Callable[[Sizes], int]], ...] = (
    (r".*vocab.*|v", lambda sizes: sizes.vocabulary),
    (r".*(batch|req|rows|seqs).*|b|bs|n", lambda sizes: sizes.batch),
    (r".*(spec|step|max_.*draft|max_.*len|num_draft).*|k", lambda sizes: sizes.drafts),
    (r".*tokens.*|t", lambda sizes: sizes.tokens),
)


@dataclass(frozen=True)
class Word:
    """What tensors and lists of a name hold.

    Attributes:
        pattern: of the name.
        shapes: likely shapes, by names of axes, where the source says nothing.
        values: makes the values by label: given sizes and shape; False: outside what production sends.
    """

    pattern: str
    shapes: tuple[tuple[str, ...], ...]
    values: tuple[tuple[str, Callable[[Sizes, tuple[int, ...]], Tensor], bool], ...]


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns; of one axis, one row."""
    return (int(np.prod(shape[:-1])), shape[-1]) if shape else (1, 1)


def _patterns(
    known: dict[str, axes.Pattern], unusual: frozenset[str]
) -> tuple[tuple[str, Callable[[Sizes, tuple[int, ...]], Tensor], bool], ...]:
    def make(pattern: axes.Pattern, sizes: Sizes, shape: tuple[int, ...]) -> Tensor:
        if 0 in shape[-1:]:
            return torch.zeros(shape, dtype=sizes.float_dtype)
        return pattern(sizes.s, *_flat(shape), sizes.float_dtype).reshape(shape)

    return tuple((name, functools.partial(make, pattern), name not in unusual) for name, pattern in known.items())


def _spread(
    spreads: Sequence[axes.Spread], integer: bool = False
) -> tuple[tuple[str, Callable[[Sizes, tuple[int, ...]], Tensor], bool], ...]:
    def make(spread: axes.Spread, sizes: Sizes, shape: tuple[int, ...]) -> Tensor:
        numbers = spread.over(int(np.prod(shape)), sizes.vocabulary if integer else 0)
        return torch.tensor(numbers).to(sizes.id_dtype if integer else torch.float32).reshape(shape)

    return tuple((str(s), functools.partial(make, s), not (integer and str(s) in axes.BEYOND)) for s in spreads)


def _integers(
    low: int, high: Callable[[Sizes], int], dtype: torch.dtype | None = None
) -> Callable[[Sizes, tuple[int, ...]], Tensor]:
    return lambda sizes, shape: sizes.s.integers(low, max(low + 1, high(sizes)), shape, dtype or sizes.id_dtype)


def _filled(value: Callable[[Sizes], int], dtype: torch.dtype | None = None) -> Any:
    return lambda sizes, shape: torch.full(shape, value(sizes), dtype=dtype or sizes.id_dtype)


def _cumulative(sizes: Sizes, shape: tuple[int, ...]) -> Tensor:
    """Sums of the draft counts; from 0 on when there is one more than requests."""
    sums = np.cumsum([0] * (int(np.prod(shape)) - sizes.batch) + sizes.counts)[: int(np.prod(shape))]
    return torch.from_numpy(sums.astype(np.int32)).reshape(shape)


def _counts(sizes: Sizes, shape: tuple[int, ...]) -> Tensor:
    if shape == (sizes.batch,):
        return torch.tensor(sizes.counts, dtype=torch.int32)
    return sizes.s.integers(0, sizes.drafts + 1, shape, torch.int32)


def _some_placeholders(sizes: Sizes, shape: tuple[int, ...]) -> Tensor:
    ids = sizes.s.integers(0, sizes.vocabulary, shape, sizes.id_dtype)
    return torch.where(sizes.s.integers(0, 3, shape) == 0, -1, ids)


_BOOLS = (
    ("some", lambda sizes, shape: sizes.s.integers(0, 2, shape).bool(), True),
    ("all", _filled(lambda sizes: 1, torch.bool), True),
    ("none set", _filled(lambda sizes: 0, torch.bool), True),
)
_NOISE = tuple((name, lambda sizes, shape, name=name: axes.noise(name, shape, sizes.s), True) for name in axes.NOISE)
_IDS = (
    ("ids", _integers(0, lambda sizes: sizes.vocabulary), True),
    ("id 0", _filled(lambda sizes: 0), True),
    ("id V-1", _filled(lambda sizes: sizes.vocabulary - 1), True),
    ("some -1", _some_placeholders, True),
    ("-1 everywhere", _filled(lambda sizes: -1), True),
)
_LOGITS = _patterns(axes.LOGITS, axes.UNUSUAL_LOGITS)
_ROWS = ("batch", "vocab")
_EACH = ("batch",)

WORDS = (
    # Numbers of rows, of ids and of logits come before what the logits themselves are.
    Word(r".*start_locs?(_.*)?|cu_num_logits|cu_seq.*", (("batch + 1",), ("batch",)), (
        ("sums", _cumulative, True),
    )),
    Word(r"cu_.*|.*cumsum.*|.*cumulative.*", (("batch",), ("batch + 1",)), (
        ("sums", _cumulative, True),
    )),
    Word(r".*(idx|indices|index|mapping|slots?).*|.*_to_.*|prev_positions", (_EACH,), (
        ("a permutation", lambda sizes, shape: sizes.s.permutation(int(np.prod(shape))).reshape(shape)
            .remainder(max(1, sizes.batch)).to(torch.int32), True),
        ("indices", _integers(0, lambda sizes: sizes.batch, torch.int32), True),
        ("index 0", _filled(lambda sizes: 0, torch.int32), True),
    )),
    Word(r".*log_?probs?_token_ids", (_ROWS,), _IDS),
    Word(r"num_.*log(it|prob)s", (_EACH,), (
        ("counts", _counts, True),
        ("ones", _filled(lambda sizes: 1, torch.int32), True),
    )),
    Word(r".*logit_?bias.*|.*logits?.*|.*log_?probs?.*", (_ROWS,), _LOGITS),
    Word(r".*uniform.*|.*noise.*|(inv_)?q", (_EACH, _ROWS), _NOISE),
    Word(r".*prob(s|abilities)?(_.*)?", (_ROWS,), _patterns(axes.PROBABILITIES, axes.UNUSUAL_PROBABILITIES)),
    Word(r".*temperatures?|temp", (_EACH,), _spread(axes.TEMPERATURES)),
    Word(r".*top_ps?|p", (_EACH,), _spread(axes.TOP_P)),
    Word(r".*min_ps?", (_EACH,), _spread(axes.MIN_P)),
    Word(r".*top_ks?|k", (_EACH,), _spread(axes.TOP_K, integer=True)),
    Word(r".*repetition_penalt.*", (_EACH,), _spread(axes.REPETITION)),
    Word(r".*presence_penalt.*", (_EACH,), _spread(axes.PRESENCE)),
    Word(r".*frequency_penalt.*", (_EACH,), _spread(axes.FREQUENCY)),
    Word(r".*masks?|is_.*|.*_flags?|needs_.*|has_.*", (_EACH, _ROWS), _BOOLS),
    Word(r"num_.*|.*_lens?|.*lengths?|.*counts?", (_EACH,), (
        ("counts", _counts, True),
        ("zeros", _filled(lambda sizes: 0, torch.int32), True),
        ("ones", _filled(lambda sizes: 1, torch.int32), True),
    )),
    Word(r".*seeds?", (_EACH,), (
        ("seeds", _integers(0, lambda sizes: 1 << 30, torch.int64), True),
        ("seed 0", _filled(lambda sizes: 0, torch.int64), True),
    )),
    Word(r"pos|.*positions?", (_EACH,), (
        ("positions", _integers(0, lambda sizes: 64, torch.int64), True),
        ("position 0", _filled(lambda sizes: 0, torch.int64), True),
    )),
    Word(r".*draft.*", (("batch", "max_spec"), ("num_tokens",)), _IDS),
    Word(r".*(token|ids?|argmax|sampled).*", (("batch", "max_spec"), _EACH, ("num_tokens",)), _IDS),
)  # fmt: skip
"""What names mean, the first that fits."""
_ANY = Word(".*", (_ROWS, _EACH), _LOGITS)
_SIZE_WORDS: tuple[tuple[str, Callable[[Sizes], int]], ...] = (
    (r".*vocab.*", lambda sizes: sizes.vocabulary),
    (r"batch_size|num_(reqs|requests|rows|seqs)|.*_batch_size|bs", lambda sizes: sizes.batch),
    (r".*max_spec_len|num_spec.*|num_draft_steps|max_num_draft.*", lambda sizes: sizes.drafts),
    (r".*num_(draft_)?tokens|total_.*(tokens|logits)", lambda sizes: sizes.tokens),
    (r"max_expand_len|max_.*query_len", lambda sizes: sizes.drafts + 1),
)
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "int": (2, 0, 1, 3, 7, 8, 9, 33, 1000, -1),
    "float": (0.5, 0.0, 1.0, 2.0, -1.0, 1e-6, 1000.0),
    "bool": (False, True),
    "str": ("a", "", "Some words, 7"),
    "none": (None,),
    "dtype": (torch.float32, torch.bfloat16, torch.float16, torch.int64),
    "generator": (Seeded(7), Seeded(0)),
}
_SCALARS = (
    (r".*temperature", axes.TEMPERATURES),
    (r".*top_p", axes.TOP_P),
    (r".*min_p", axes.MIN_P),
    (r".*repetition_penalty", axes.REPETITION),
)


def word_for(name: str) -> Word:
    """What a tensor or list of this name holds."""
    return next((word for word in WORDS if re.fullmatch(word.pattern, name)), _ANY)


def targets(descriptions: Sequence[str], device: str) -> dict[str, Target]:
    """Targets whose cases come from signatures, by name.

    Args:
        descriptions: JSON objects with `symbol`, `triton`, `uses` and `signature`
            (:class:`difftest.lift.signature.Signature`).
        device: `cpu` or `cuda`; what a parameter for a device is given.
    """
    found = {}
    for text in descriptions:
        item = json.loads(text)
        signature: Signature = item["signature"]
        symbol = item["symbol"]
        found[symbol] = Target(
            symbol,
            (symbol,),
            functools.partial(cases, symbol, signature, device),
            prepare=_method(symbol.rpartition(".")[2]) if "owner" in signature else None,
            uses=tuple(item["uses"]),
            triton=item["triton"],
            guessed=True,
        )
    return found


def _method(name: str) -> Prepare:
    def prepare(arm: Arm, pool: Pool) -> Call:
        method = getattr(pool[_OWNER], name)
        return Call(method, kwargs=arm.bind(method, pool))

    return prepare


def cases(symbol: str, signature: Signature, device: str) -> Iterator[Case]:
    """Cases of a function. Inputs that are unusual by their name's meaning are outside the contract."""
    parameters = list(signature["parameters"])
    if "owner" in signature:
        owner = Parameter(name=_OWNER, kinds=[signature["owner"]], annotation="", default=False)
        parameters = [owner, *parameters]
    own: dict[str, Sequence[Any]] = {}
    for parameter in parameters:
        _declare(parameter, parameter["name"], own, device)
    fewer = len(own) > _MANY_AXES
    every = SIZES | {name: values[:_FEW_VALUES] if fewer else values for name, values in own.items()}
    build = functools.partial(_pool, parameters)
    read: set[str] = set()
    for row in axes.extremes(every):
        build(_Seen(row, read), axes.stream(symbol, "axes"))
    used = {name: values for name, values in every.items() if name in read}
    if not used:
        yield Case("no arguments", lambda: build({}, axes.stream(symbol)))
        return
    yield from axes.cases_from(used, build, name=symbol, contract=_inside, limit=MOST_CASES)


def _inside(row: Row) -> bool:
    return all(value.contract for value in row.values() if isinstance(value, Choice))


def _pool(parameters: Sequence[Parameter], row: Row, s: Stream) -> Pool:
    return _values(parameters, "", Sizes(row, s))


def _values(parameters: Sequence[Parameter], prefix: str, sizes: Sizes) -> Pool:
    found = {}
    for parameter in parameters:
        if not parameter["kinds"]:
            continue
        value = sizes.row[prefix + parameter["name"]]
        if value is not LEFT_OUT:
            found[parameter["name"]] = value.make(sizes) if isinstance(value, Choice) else value
    return found


def _declare(parameter: Parameter, path: str, found: dict[str, Sequence[Any]], device: str) -> None:
    """Add the axis of a parameter, and those of its fields."""
    if not parameter["kinds"]:
        return
    kinds = sorted(parameter["kinds"], key=lambda kind: bool(kind["kind"] == "none"))
    values = [value for kind in kinds for value in _choices(kind, parameter, path, device)]
    if parameter["default"]:
        values.append(LEFT_OUT)
    found[path] = values
    for kind in kinds:
        for field in kind.get("fields", ()):
            _declare(field, f"{path}.{field['name']}", found, device)


def _choices(kind: Kind, parameter: Parameter, path: str, device: str) -> list[Any]:
    name, what = parameter["name"], kind["kind"]
    if what in ("tensor", "ndarray"):
        return _arrays(name, parameter.get("dims"), what == "ndarray")
    if what == "int":
        size = next((size for pattern, size in _SIZE_WORDS if re.fullmatch(pattern, name)), None)
        if size is not None:
            return [Choice("as the others", size)]
    if what == "float":
        spreads = next((spreads for pattern, spreads in _SCALARS if re.fullmatch(pattern, name)), None)
        if spreads is not None:
            return list(dict.fromkeys(float(v) for spread in spreads for v in spread.values))
    if what == "literal":
        return list(kind["values"])
    if what == "device":
        return [torch.device(device)]
    if what == "made":
        return [Choice("made", lambda sizes: Made(kind["symbol"], _values(kind["fields"], f"{path}.", sizes)))]
    if what == "list":
        return _lists(kind, name, path, device)
    if what == "dict":
        return _dicts(kind, name, path, device)
    if what == "tuple":
        items = [_first(of, name, path, device) for of in kind["of"]]
        if kind.get("any"):
            return [
                Choice("one a request", lambda sizes: tuple(items[0](sizes) for _ in range(sizes.batch))),
                Choice("empty", lambda sizes: ()),
            ]
        return [Choice("of each one", lambda sizes: tuple(item(sizes) for item in items))]
    return list(_NUMBERS[what])


def _arrays(name: str, dims: list[str] | None, numpy: bool) -> list[Choice]:
    word = word_for(name)
    shapes = (tuple(dims),) if dims is not None else word.shapes

    def make(values: Callable[[Sizes, tuple[int, ...]], Tensor], dims: tuple[str, ...], sizes: Sizes) -> Any:
        shape = tuple(sizes.size(name, place, len(dims)) for place, name in enumerate(dims))
        tensor = values(sizes, shape)
        if numpy:
            return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()
        return sizes.laid_out(tensor)

    found = []
    for number, shape in enumerate(shapes):
        # Of a less likely shape, a few values say whether the function takes it.
        for label, values, contract in word.values if not number else word.values[:2]:
            shown = label if not number else f"{label} [{', '.join(shape)}]"
            found.append(Choice(shown, functools.partial(make, values, shape), contract))
    return found


def _first(kinds: Sequence[Kind], name: str, path: str, device: str) -> Callable[[Sizes], Any]:
    """The plain value of what a container holds."""
    parameter = Parameter(name=name, kinds=list(kinds), annotation="", default=False)
    values = _choices(kinds[0], parameter, path, device) if kinds[0]["kind"] != "made" else []
    if not values:
        fields = kinds[0]["fields"]
        inner = {field["name"]: _first(field["kinds"], field["name"], path, device) for field in fields}
        return lambda sizes: Made(kinds[0]["symbol"], {key: item(sizes) for key, item in inner.items()})
    first = values[0]
    return first.make if isinstance(first, Choice) else lambda sizes: first


def _lists(kind: Kind, name: str, path: str, device: str) -> list[Choice]:
    of = kind["of"][0]
    inner = of[0]["kind"]
    found: list[Choice] = []
    if inner == "int":
        word = word_for(name)
        for label, values, contract in _IDS if word is _ANY else word.values:
            found.append(Choice(label, _as_list(values), contract))
    elif inner == "list" and of[0]["of"][0][0]["kind"] == "int":
        for pattern in axes.HISTORIES:
            make = functools.partial(_histories, pattern)
            found.append(Choice(pattern, make, pattern not in axes.UNUSUAL_HISTORIES))
        return found
    else:
        item = _first(of, name, path, device)
        found.append(Choice("one a request", lambda sizes: [item(sizes) for _ in range(sizes.batch)]))
        found.append(Choice("one", lambda sizes: [item(sizes)]))
    found.append(Choice("empty", lambda sizes: []))
    return found


def _histories(pattern: str, sizes: Sizes) -> list[list[int]]:
    found: list[list[int]] = axes.histories(pattern, sizes.batch, sizes.vocabulary, sizes.s)
    return found


def _as_list(values: Callable[[Sizes, tuple[int, ...]], Tensor]) -> Callable[[Sizes], list[int]]:
    return lambda sizes: [int(value) for value in values(sizes, (sizes.batch,)).tolist()]


def _dicts(kind: Kind, name: str, path: str, device: str) -> list[Choice]:
    key, value = kind["of"]
    if value[0]["kind"] == "generator":
        return [Choice(p, functools.partial(_seeded, p)) for p in ("mixed", *[s for s in axes.SEEDS if s != "mixed"])]
    item = _first(value, name, path, device)
    if key[0]["kind"] == "str":
        parameter = Parameter(name=name, kinds=list(value), annotation="", default=False)
        plain = _choices(value[0], parameter, path, device) if value[0]["kind"] != "made" else []

        def one_of_each(sizes: Sizes) -> dict[str, Any]:
            made = [each.make(sizes) if isinstance(each, Choice) else each for each in plain]
            return {chr(ord("a") + number % 26) + "a" * (number // 26): each for number, each in enumerate(made)}

        return [
            Choice("two entries", lambda sizes: {text: item(sizes) for text in ("a", "b")}),
            *([Choice("an entry of each kind", one_of_each)] if len(plain) > 1 else []),
            Choice("empty", lambda sizes: {}),
        ]
    return [
        Choice("every other request", lambda sizes: {row: item(sizes) for row in range(0, sizes.batch, 2)}),
        Choice("every request", lambda sizes: {row: item(sizes) for row in range(sizes.batch)}),
        Choice("empty", lambda sizes: {}),
    ]


def _seeded(pattern: str, sizes: Sizes) -> dict[int, Seeded]:
    found: dict[int, Seeded] = axes.seeds(pattern, sizes.batch)
    return found
