"""V1 bad words: the last token of a forbidden sequence is masked where the tokens before it stand at the end.

Words are made from the history, so that matches, near matches and matches shifted by one all occur. With drafts,
the history of each row is the committed tokens and the drafts before it, and words straddle the boundary.
"""

from __future__ import annotations

from collections.abc import Iterator

from difftest.cases import axes, relations, shapes
from difftest.target import Case, Pool, Target

_MODULE = "vllm.v1.sample.ops.bad_words:"

MATCHES = (
    "at the end",
    "first token differs",
    "last token differs",
    "one row early",
    "one row late",
    "anywhere but the end",
    "placeholder before it",
    "as long as the history",
    "longer than the history",
)
LASTS = ("random", "id 0", "id V-1", "in the prefix", "id V", "id -1")
_MORE_LASTS = ("id V+1", "id -V", "id -V-1", "large")
_BEYOND = frozenset(("id V", "id -1", *_MORE_LASTS))
WHO = ("mixed", "all", "first", "middle", "last", "none", "backwards", "no words for one")

_COMMON: axes.Axes = {
    "match": MATCHES,
    "length": (2, 1, 3, 4),
    "last id": LASTS,
    "who": WHO,
    "words": (2, 1, 4),
    "batch": (4, 1, 2, 3, 9),
    "vocab": (12, 2, 33),
    "pattern": ("random", "-inf some", "-inf everywhere", "all equal", "NaN at the end", "+inf once"),
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS,
}
_ONE_ALONE: axes.Axes = {"match": ("empty word",), "last id": _MORE_LASTS}
_ALONE: axes.Axes = {**_ONE_ALONE, "who": ("beyond the batch",), "batch": (0,)}
_PLAIN: axes.Axes = {**_COMMON, "history": (5, 3, 2, 1, 0)}
_DRAFTS: axes.Axes = {
    **_COMMON,
    "history": (5, 2, 1, 0),
    "drafts": axes.DRAFT_COUNTS,
    "draft ids": axes.DRAFT_IDS[:-1],
    "split": (0, 1, 2, 3),
}


def _word(row: axes.Row, history: list[int], s: axes.Stream) -> list[int]:
    """One forbidden sequence that relates to the end of a history as the row says."""
    vocab, length, match = row["vocab"], row["length"], row["match"]
    if match == "empty word":
        return []
    if match in ("as long as the history", "longer than the history"):
        length = len(history) + (1 if match == "as long as the history" else 2)
    prefix = length - 1
    shift = {"one row early": 1, "one row late": -1, "anywhere but the end": 2}.get(match, 0)
    end = len(history) - shift
    before = [history[i] if 0 <= i < len(history) else s.integer(0, vocab) for i in range(end - prefix, end)]
    if match == "placeholder before it" and before:
        before[-1] = -1
    if match == "first token differs" and before:
        before[0] = (before[0] + 1) % vocab
    if match == "last token differs" and before:
        before[-1] = (before[-1] + 1) % vocab
    last = {
        "random": s.integer(0, vocab),
        "id 0": 0,
        "id V-1": vocab - 1,
        "id V": vocab,
        "id V+1": vocab + 1,
        "id -1": -1,
        "id -V": -vocab,
        "id -V-1": -vocab - 1,
        "large": 2**31 - 1,
        "in the prefix": before[0] if before else 0,
    }[row["last id"]]
    return [*before, last]


def _chosen(who: str, batch: int) -> list[int]:
    rows = list(range(batch))
    return {
        "all": rows,
        "mixed": rows[::2],
        "first": rows[:1],
        "middle": rows[batch // 2 : batch // 2 + 1],
        "last": rows[-1:],
        "none": [],
        "backwards": rows[::-1],
        "no words for one": rows,
        "beyond the batch": [*rows, batch],
    }[who]


def _words(row: axes.Row, histories: list[list[int]], s: axes.Stream) -> dict[int, list[list[int]]]:
    """Words by request: the ones that the row asks for, and others that do not match."""
    words: dict[int, list[list[int]]] = {}
    for request in _chosen(row["who"], row["batch"]):
        history = histories[request] if request < len(histories) else []
        own = [_word(row, history, s)]
        for _ in range(row["words"] - 1):
            own.append(s.integers(0, row["vocab"], (s.integer(1, 4),)).tolist())
        words[request] = own[::-1] if request % 2 else own
    if row["who"] == "no words for one" and words:
        words[row["batch"] // 2] = []
    return words


def _contract(row: axes.Row) -> bool:
    return (
        row["last id"] not in _BEYOND
        and row.get("batch") != 0
        and row["match"] != "empty word"
        and row["who"] != "beyond the batch"
        and row["layout"] != "expanded"
        and row["pattern"] not in axes.UNUSUAL_LOGITS
        and row.get("draft ids") not in axes.UNUSUAL_DRAFT_IDS
    )


def _build(row: axes.Row, s: axes.Stream) -> Pool:
    batch, vocab = row["batch"], row["vocab"]
    histories = [s.integers(0, vocab, (max(0, row["history"] - i % 2),)).tolist() for i in range(batch)]
    if row["match"] == "placeholder before it":
        histories = [[*ids[:-1], -1] if ids else ids for ids in histories]
    return {
        "logits": axes.logits(row["pattern"], batch, vocab, s, row["dtype"], row["layout"]),
        "bad_words_token_ids": _words(row, histories, s),
        "past_tokens_ids": histories,
    }


def _build_drafts(row: axes.Row, s: axes.Stream) -> Pool:
    """Logits and histories by draft row; each word ends `split` tokens into the drafts of its request."""
    batch, vocab = row["batch"], row["vocab"]
    counts = axes.draft_counts(row["drafts"], *axes.sized(row, batch, 3))
    drafts = axes.draft_ids(row["draft ids"], counts, vocab, s).tolist()
    committed = [s.integers(0, vocab, (max(0, row["history"] - i % 2),)).tolist() for i in range(batch)]
    past: list[list[int]] = []
    ends: list[list[int]] = []
    for ids, count in zip(committed, counts, strict=True):
        own, drafts = drafts[:count], drafts[count:]
        past += [[*ids, *own[:i]] for i in range(count)]
        ends.append([*ids, *own[: row["split"]]])
    return {
        "logits": axes.logits(row["pattern"], len(past), vocab, s, row["dtype"], row["layout"]),
        "bad_words_token_ids": _words(row, ends, s),
        "past_tokens_ids": past,
        "num_draft_tokens": counts,
    }


def _single(row: axes.Row, s: axes.Stream) -> Pool:
    pool = _build({**row, "batch": 1, "who": "all"}, s)
    return {
        "logits": pool["logits"][0],
        "bad_words_token_ids": pool["bad_words_token_ids"][0],
        "past_tokens_ids": pool["past_tokens_ids"][0],
    }


_ONE: axes.Axes = {name: values for name, values in _PLAIN.items() if name not in ("who", "batch")}


def _cases() -> Iterator[Case]:
    yield from axes.cases_from(_PLAIN, _build, name="v1.bad_words", contract=_contract, alone=_ALONE, covers=6)


def _draft_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _DRAFTS,
        _build_drafts,
        name="v1.bad_words_with_drafts",
        contract=_contract,
        alone=_ALONE,
        covers=4,
    )


def _single_cases() -> Iterator[Case]:
    def contract(row: axes.Row) -> bool:
        return _contract({**row, "who": "all"})

    yield from axes.cases_from(
        _ONE, _single, name="v1.bad_words_of_one_request", contract=contract, alone=_ONE_ALONE, covers=5
    )


TARGETS = (
    Target(
        name="v1.bad_words",
        symbols=(f"{_MODULE}apply_bad_words",),
        cases=_cases,
        rows=("logits",),
        invariants=(relations.filters("logits"),),
        relations=(
            *relations.of_rows(("logits", "bad_words_token_ids", "past_tokens_ids"), ("logits",)),
            relations.relaid("logits", ("logits",)),
        ),
        shapes=shapes.of_cases(_cases, "vocabulary"),
    ),
    Target(
        name="v1.bad_words_with_drafts",
        symbols=(f"{_MODULE}apply_bad_words_with_drafts",),
        cases=_draft_cases,
        rows=("logits",),
        invariants=(relations.filters("logits"),),
        relations=(relations.relaid("logits", ("logits",)),),
        shapes=shapes.of_cases(_draft_cases, "vocabulary", "drafts"),
    ),
    Target(
        name="v1.bad_words_of_one_request",
        symbols=(f"{_MODULE}_apply_bad_words_single_batch",),
        cases=_single_cases,
        shapes=shapes.of_cases(_single_cases, "vocabulary", batches=(1,)),
    ),
)
