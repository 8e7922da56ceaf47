"""V1 `RejectionSampler.parse_output`: sampled ids [batch, columns] to one list of token ids a request.

The grid has 2560 cases: 64 input shapes, ids inside or beyond the vocabulary, two vocabulary sizes, five forms of
`discard_req_indices`, with and without logprobs. Rows are cut out of a few blocks of 128 rows, made once, so that
the whole grid is built in some tens of milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from difftest.cases.axes import Row, Stream
from difftest.errors import ApiChange
from difftest.oracles.parse_output import Logprobs, parse_output
from difftest.target import Arm, Call, Case, Family, Invariant, Made, Pool, Shape, Target

PARSE_OUTPUT = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"
LOGPROBS_TENSORS = "vllm.v1.outputs:LogprobsTensors"
LOGPROBS_LISTS = "vllm.v1.outputs:LogprobsLists"
PLACEHOLDER = -1
_LOGPROB_FIELDS = ("logprob_token_ids", "logprobs", "selected_token_ranks")

_ROWS = 128
_COLUMNS = range(1, 7)
_VOCABULARIES = (32, 151936)
_BATCHES = (0, 1, 2, 3, 7, 8, 16, 33, 63, 64)
# How the ids are stored in the shapes that are not plain contiguous int32.
_SPECIAL = ((5, 4, "padded rows"), (17, 2, "transposed"), (32, 5, "int64"), (48, 3, "offset storage"))
_DISCARDS = ("absent", "list", "ndarray", "tensor", "every row")
_SEED = 0x5EED
_VALUES = np.array([0.0, -0.0, -1.5, -np.inf, np.nan, -1e-45, -88.75, -0.1, -(2.0**-24), -3.4e38], dtype=np.float32)


def splitmix64(seed: int, count: int) -> NDArray[np.uint64]:
    """`count` values of the splitmix64 sequence that starts at `seed`; the same on every machine."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _strange(vocabulary: int) -> tuple[int, ...]:
    """Ids that no sampler may emit."""
    return (vocabulary, -2, vocabulary + 1, 2**31 - 1, -(2**31))


@functools.cache
def _tokens(columns: int, vocabulary: int, beyond: bool) -> NDArray[np.int32]:
    """[128, columns] ids: an accepted prefix, then placeholders.

    Of each `columns + 2` rows one is full, one is empty and one is drawn; the order is drawn too. Ids 0 and V-1 are
    frequent. With `beyond`, about every third id is one that no sampler may emit, placeholders stand between ids,
    and some rows hold nothing but ids beyond the vocabulary.
    """
    draws = splitmix64(_SEED + columns * 1000 + vocabulary, 4 * _ROWS * columns).reshape(4, _ROWS, columns)
    lengths = (np.arange(_ROWS) % (columns + 2)) % (columns + 1)
    lengths = lengths[np.argsort(draws[0, :, 0], kind="stable")]
    ids = (draws[1] % np.uint64(vocabulary)).astype(np.int32)
    ids[draws[2] % np.uint64(8) == 0] = 0
    ids[draws[2] % np.uint64(8) == 1] = vocabulary - 1
    if beyond:
        strange = np.array([*_strange(vocabulary), PLACEHOLDER, vocabulary], dtype=np.int32)
        chosen = strange[(draws[3] % np.uint64(len(strange))).astype(np.int64)]
        ids = np.where(draws[3] >> np.uint64(40) < np.uint64(2**24 // 3), chosen, ids)
        ids[5::16] = vocabulary
    return np.where(np.arange(columns) < lengths[:, None], ids, np.int32(PLACEHOLDER))


class _Logprobs(NamedTuple):
    """Logprob rows for 128 requests: ids [128 * columns, k + 1], scores of the same shape, ranks [128 * columns]."""

    token_ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    ranks: NDArray[np.int64]


@functools.cache
def _logprobs(columns: int) -> _Logprobs:
    """`columns % 3` candidates besides the sampled token; every row differs, zeros of both signs and NaN occur."""
    count, width = _ROWS * columns, columns % 3 + 1
    draws = splitmix64(_SEED + 7 * columns, count * width).reshape(count, width)
    scores = -(draws >> np.uint64(40)).astype(np.float32) / np.float32(2**20)
    special = draws % np.uint64(4) == 0
    scores[special] = _VALUES[(draws[special] // np.uint64(4) % np.uint64(len(_VALUES))).astype(np.int64)]
    return _Logprobs((draws % np.uint64(2**20)).astype(np.int32), scores, np.arange(1, count + 1))


@functools.cache
def _discarded(batch: int, kind: str, beyond: bool, number: int) -> tuple[int, ...]:
    """Row indices: one row as list, some in order as ndarray, some unordered and repeated as tensor, or every row."""
    if kind == "every row":
        return tuple(range(batch))
    if not batch:
        return ()
    if kind == "list":
        return (number % batch, -1) if beyond else (number % batch,)
    chosen = tuple((splitmix64(number, batch) & np.uint64(1)).nonzero()[0].tolist()) or (batch - 1,)
    return chosen if kind == "ndarray" else (*reversed(chosen), chosen[0])


def _discard_argument(rows: tuple[int, ...], kind: str, number: int) -> Any:
    if kind == "tensor":
        return torch.tensor(rows, dtype=torch.int64)
    if kind == "ndarray":
        return np.array(rows, dtype=np.int64)
    if kind == "every row" and (number % 2 or len(rows) < 2):
        return np.array(rows, dtype=np.int32)
    return list(rows)


def _stored(ids: NDArray[np.int32], layout: str) -> torch.Tensor:
    """The ids as a tensor in the layout asked for; the gaps hold ids that would be valid."""
    if layout == "contiguous":
        return torch.from_numpy(ids)
    if layout == "int64":
        return torch.from_numpy(ids.astype(np.int64))
    if layout == "transposed":
        return torch.from_numpy(np.ascontiguousarray(ids.T)).T
    batch, columns = ids.shape
    if layout == "padded rows":
        padded = torch.full((batch, columns + 3), 3, dtype=torch.int32)
        padded[:, :columns] = torch.from_numpy(ids)
        return padded[:, :columns]
    whole = torch.full((batch + 2, columns), 3, dtype=torch.int32)
    whole[1:-1] = torch.from_numpy(ids)
    return whole[1:-1]


def _build(
    batch: int,
    columns: int,
    vocabulary: int,
    beyond: bool,
    layout: str,
    discard: str,
    logprobs: bool,
    number: int,
) -> Pool:
    start = (number * 7) % (_ROWS - batch + 1)
    ids = _tokens(columns, vocabulary, beyond)[start : start + batch].copy()
    if beyond and batch:
        # However few the rows, one id is strange; over the shapes it stands in every column.
        ids[number % batch, number % columns] = _strange(vocabulary)[number % 5]
    pool: Pool = {"output_token_ids": _stored(ids, layout), "vocab_size": vocabulary}
    if discard != "absent":
        pool["discard_req_indices"] = _discard_argument(_discarded(batch, discard, beyond, number), discard, number)
    if logprobs:
        source = _logprobs(columns)
        rows = slice(start * columns, (start + batch) * columns)
        pool["logprobs_tensors"] = Made(
            LOGPROBS_TENSORS,
            {
                "logprob_token_ids": torch.from_numpy(source.token_ids[rows].copy()),
                "logprobs": torch.from_numpy(source.scores[rows].copy()),
                "selected_token_ranks": torch.from_numpy(source.ranks[rows].copy()),
            },
        )
    return pool


_LAYOUTS = ("contiguous", *[layout for _, _, layout in _SPECIAL])
_IDS = ("ids in the vocabulary", "ids beyond the vocabulary")


def _drawn(row: Row, s: Stream) -> Pool:
    """What the grid's cases consist of, with each number drawn: how many ids a row has, which, which rows go."""
    batch, columns, vocabulary = row["batch"], row["columns"], row["vocabulary"]
    beyond = row["ids"] == _IDS[1]
    ids = np.full((batch, columns), PLACEHOLDER, dtype=np.int32)
    strange = (*_strange(vocabulary), PLACEHOLDER)
    for request in range(batch):
        count = s.integer(0, columns + 1)
        ids[request, :count] = s.integers(0, vocabulary, (count,), torch.int32).numpy()
        for place in range(count if beyond else 0):
            if s.integer(0, 3) == 0:
                ids[request, place] = s.choice(strange)
    pool: Pool = {"output_token_ids": _stored(ids, row["layout"]), "vocab_size": vocabulary}
    if (kind := row["discard"]) != "absent":
        chosen = [request for request in range(batch) if kind == "every row" or s.integer(0, 2)]
        if kind == "tensor":
            chosen = [*reversed(chosen), *chosen[:1]]
        pool["discard_req_indices"] = _discard_argument(tuple(chosen), kind, s.integer(0, 2))
    if row["logprobs"] == "logprobs":
        shape = (batch * columns, s.integer(1, 4))
        scores = -s.uniform(*shape)
        for _ in range(s.integer(0, 4) if scores.numel() else 0):
            scores.view(-1)[s.integer(0, scores.numel())] = float(s.choice(_VALUES.tolist()))
        fields = {
            "logprob_token_ids": s.integers(0, vocabulary, shape, torch.int32),
            "logprobs": scores,
            "selected_token_ranks": s.integers(1, vocabulary + 1, shape[:1]),
        }
        pool["logprobs_tensors"] = Made(LOGPROBS_TENSORS, fields)
    return pool


FAMILY = Family(
    "v1.parse_output",
    {
        "batch": (3, *_BATCHES),
        "columns": (4, 1, 6, 8),
        "vocabulary": (*_VOCABULARIES, 2),
        "ids": _IDS,
        "layout": _LAYOUTS,
        "discard": _DISCARDS,
        "logprobs": ("no logprobs", "logprobs"),
    },
    _drawn,
    lambda row: row["ids"] == _IDS[0],
    lambda row: True,
)
"""What a fuzz draws from; the grid's own cases are cut out of blocks."""


def cases() -> Iterator[Case]:
    """The 2560 cases; one plain case of each kind comes early, so that a budget cuts the large batches first."""
    shapes = [(batch, columns, "contiguous") for batch in _BATCHES for columns in _COLUMNS]
    shapes += _SPECIAL
    for number, (batch, columns, layout) in enumerate(shapes):
        for beyond in (False, True):
            # Without rows nothing tells the two apart but the type of the ids.
            kept = "int64" if beyond and not batch else layout
            ids = _IDS[beyond]
            for vocabulary in _VOCABULARIES:
                shape = f"batch {batch}, {columns} columns, vocabulary {vocabulary}, {ids}, {kept}"
                axes = {
                    "batch": str(batch),
                    "columns": str(columns),
                    "vocabulary": str(vocabulary),
                    "ids": ids,
                    "layout": kept,
                }
                for discard in _DISCARDS:
                    for logprobs in (False, True):
                        text = "logprobs" if logprobs else "no logprobs"
                        yield Case(
                            f"{shape}, discard {discard}, {text}",
                            functools.partial(
                                _build, batch, columns, vocabulary, beyond, kept, discard, logprobs, number
                            ),
                            contract=not beyond,
                            axes={**axes, "discard": discard, "logprobs": text},
                            family=FAMILY,
                        )


def prepare(arm: Arm, pool: Pool) -> Call:
    """The call; versions whose caller discarded rows or filtered logprobs get that part of the caller around it."""
    function = arm.get(PARSE_OUTPUT)
    bound = arm.bind(function, {"logprobs_tensors": None, **pool})
    if "logprobs_tensors" in bound:
        if bound["logprobs_tensors"] is None:
            del bound["logprobs_tensors"]  # left to its default
        return Call(function, kwargs=bound)
    return _with_caller(arm, function, pool)


def _with_caller(arm: Arm, function: Callable[..., Any], pool: Pool) -> Call:
    """A version without `logprobs_tensors`; the oldest have no `discard_req_indices` and return the bare lists.

    Only what the function itself returns is compared: where it says which rows of logprobs are whose, these rows are
    put beside it as they are, without the version's other code.

    Raises:
        ApiChange: the case has logprobs, of which this version's function does not say anything.
    """
    logprobs = pool.get("logprobs_tensors")
    bound = arm.bind(function, {**pool, "return_cu_num_tokens": logprobs is not None})
    if logprobs is not None and "return_cu_num_tokens" not in bound:
        raise ApiChange("parse_output of this version has nothing to do with logprobs")
    rows: Sequence[int] = ()
    if "discard_req_indices" not in arm.bind(function, {**pool, "discard_req_indices": ()}):
        arm.note("returns the ids alone; later versions return (ids, logprobs), so it is compared as (ids, None)")
        rows = pool.get("discard_req_indices", ())
    if len(rows):
        arm.note("discard_req_indices: rows emptied after the call, as the caller of this version did")
    if logprobs is not None:
        arm.note("returns where each request's rows begin; the rows of logprobs are put beside it")

    def parse() -> tuple[Any, Any]:
        returned = function(**bound)
        tokens, starts = returned if isinstance(returned, tuple) else (returned, None)
        lists = None
        if logprobs is not None:
            ids = pool["output_token_ids"]
            kept = ((ids != PLACEHOLDER) & (ids < pool["vocab_size"])).flatten()
            lists = arm.get(LOGPROBS_LISTS)(*(field[kept].cpu().numpy() for field in logprobs[:3]), starts)
        for row in rows:
            tokens[int(row)] = tokens[int(row)][:0]
        return tokens, lists

    return Call(parse)


def oracle(pool: Pool) -> Any:
    """What a call must return (:mod:`difftest.oracles.parse_output`); None when it discards rows that there are not."""
    made = pool.get("logprobs_tensors")
    logprobs = None if made is None else Logprobs(*(made.fields[name].numpy() for name in _LOGPROB_FIELDS))
    rows = [int(row) for row in pool.get("discard_req_indices", ())]
    batch = len(pool["output_token_ids"])
    if not all(-batch <= row < batch for row in rows):
        return None
    found = parse_output(pool["output_token_ids"].numpy(), pool["vocab_size"], rows, logprobs)
    if found.logprobs is None:
        return found.tokens, None
    lists = dict(zip(("logprob_token_ids", "logprobs", "sampled_token_ranks"), found.logprobs, strict=True))
    return found.tokens, {**lists, "cu_num_generated_tokens": found.starts}


def _in_vocabulary(given: Pool, after: Pool, result: Any) -> str | None:
    for request, ids in enumerate(result[0]):
        if beyond := [token for token in ids if not 0 <= token < given["vocab_size"]]:
            return f"request {request} has id {beyond[0]} of {given['vocab_size']}"
    return None


def _rows_of_logprobs(discarded: bool) -> Callable[[Pool, Pool, Any], str | None]:
    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        tokens, lists = result
        ends = None if lists is None else getattr(lists, "cu_num_generated_tokens", None)
        if ends is None:
            return None
        gone = {int(row) % len(tokens) for row in given.get("discard_req_indices", ())} if tokens else set()
        for request, ids in enumerate(tokens):
            rows = ends[request + 1] - ends[request]
            if (request in gone) == discarded and rows != len(ids):
                return f"request {request} has {len(ids)} ids and {rows} rows of logprobs"
        return None

    return broken


_INVARIANTS = (
    Invariant("an id is in the vocabulary", _in_vocabulary),
    Invariant("a request has as many rows of logprobs as ids", _rows_of_logprobs(False)),
    Invariant("a discarded request has no rows of logprobs", _rows_of_logprobs(True)),
)


@functools.cache
def _timing_ids(batch: int, max_spec_len: int, acceptance: float, vocabulary: int) -> NDArray[np.int32]:
    """Sampled ids as rejection sampling leaves them: drafts accepted one after the other, each with `acceptance`."""
    draws = splitmix64(_SEED + batch * 64 + max_spec_len, 2 * batch * (max_spec_len + 1))
    draws = draws.reshape(2, batch, max_spec_len + 1)
    accepted = (draws[0, :, :max_spec_len] >> np.uint64(11)).astype(np.float64) * 2.0**-53 < acceptance
    lengths = np.cumprod(accepted, axis=1).sum(axis=1) + 1
    ids: NDArray[np.int32] = (draws[1] % np.uint64(vocabulary)).astype(np.int32)
    ids[np.arange(max_spec_len + 1) >= lengths[:, None]] = PLACEHOLDER
    return ids


def _timing_pool(batch: int, max_spec_len: int, acceptance: float, vocabulary: int, number: int = 0) -> Pool:
    """Another `number` moves every id within the vocabulary; the placeholders stay where they are."""
    ids = _timing_ids(batch, max_spec_len, acceptance, vocabulary)
    moved = np.where(ids == PLACEHOLDER, ids, (ids + np.int32(number * 7919 % vocabulary)) % np.int32(vocabulary))
    return {"output_token_ids": torch.from_numpy(moved), "vocab_size": vocabulary}


def shapes(name: str) -> Iterator[Shape]:
    """90 shapes for `grid`: batch 1 to 512 x max_spec_len 1, 3, 5 x acceptance 0.3, 0.6, 0.9; 4 for `quick`."""
    vocabulary = 151936
    batches: Sequence[int] = (1, 8, 64, 512) if name == "quick" else tuple(2**n for n in range(10))
    lengths: Sequence[int] = (3,) if name == "quick" else (1, 3, 5)
    rates: Iterable[float] = (0.6,) if name == "quick" else (0.3, 0.6, 0.9)
    for batch in batches:
        for max_spec_len in lengths:
            for acceptance in rates:
                drafts = "1 draft" if max_spec_len == 1 else f"{max_spec_len} drafts"
                yield Shape(
                    f"batch {batch}, {drafts}, acceptance {acceptance}",
                    functools.partial(_timing_pool, batch, max_spec_len, acceptance, vocabulary),
                    axes={"batch": batch, "max_spec_len": max_spec_len, "acceptance": acceptance},
                    vary=functools.partial(_timing_pool, batch, max_spec_len, acceptance, vocabulary),
                )


TARGETS = (
    Target(
        name="v1.parse_output",
        symbols=(PARSE_OUTPUT,),
        cases=cases,
        prepare=prepare,
        uses=(f"{LOGPROBS_TENSORS}.filter", f"{LOGPROBS_TENSORS}.tolists"),
        shapes=shapes,
        oracle=oracle,
        invariants=_INVARIANTS,
        rows=("output_token_ids", "return"),
    ),
)
