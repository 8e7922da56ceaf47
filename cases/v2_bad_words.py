"""V2 bad words: when a row's tokens end with all but the last token of a bad word, that last token gets -inf.

A row's tokens are the output tokens of its request, then the draft tokens before it. Words are laid across the
border between the two at every split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, MAPPINGS, by_name, guarded_logits, rows_of, slots_for
from difftest.cases.v2_state import (
    NO_REQUEST,
    add_request,
    chosen_requests,
    flush,
    life_state,
    make_state,
    methods,
    of_step_rows,
    process,
    request_slots,
    snapshot,
    token_state,
)
from difftest.target import Arm, Call, Case, Pool, Target

APPLY_BAD_WORDS = f"{GPU}.sample.bad_words:apply_bad_words"
STATE = f"{GPU}.sample.bad_words:BadWordsState"
APPLY_METHODS = ("apply", "apply_bad_words")
_NO_ROW = "no row"

AXES = {
    "words": (
        *(
            "every split",
            "one token each",
            "no match",
            "last token differs",
            "first token differs",
            "longer than the row",
        ),
        *("whole row", "the same word twice", "a row of one id", "no words", "15 words"),
    ),
    "on": ("every request", "first request", "last request"),
    "last token": ("random", "id 0", "id V-1", "same as drafted", "id V", "-1"),
    "drafts": ("ragged", "full", "none", "zero first", "only last"),
    "draft ids": ("random", "-1 middle", "-1 everywhere", "id V"),
    "outputs": ((3, 1), (0, 0), (1, 5), (0, 4)),
    "prompts": ((2, 4), (0, 0), (7, 1)),
    "mapping": (*MAPPINGS[:2], "-1 at the end"),
    "vocab": (40, 1, 12, 1500),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "every other row"),
}


def bad_words(pattern: str, tokens: Sequence[int], outputs: int, last: int, vocab: int, s: Stream) -> list[list[int]]:
    """The bad words of one request whose output and draft tokens are `tokens`, the first `outputs` of them output.

    Words end differently, so that each is seen to match or not; every third one ends with `last`.
    """
    size = max(vocab, 1)

    def ending() -> int:
        return last if len(words) % 3 == 1 else (3 * len(words) + 5) % size

    words: list[list[int]] = []
    for end in range(outputs, len(tokens) + 1):
        for length in (1, 2, 3):
            if length - 1 <= end and (length > 1 or end == outputs):
                words.append([*tokens[end - length + 1 : end], ending()])
    if pattern == "one token each":
        return [[last], [s.integer(0, size)]]
    if pattern == "no words":
        return []
    if pattern == "no match":
        return [[(token + 1) % size for token in word[:-1]] + word[-1:] for word in words if len(word) > 1]
    if pattern == "last token differs":
        return [[*word[:-1], (word[-1] + 1) % size] for word in words]
    if pattern == "first token differs":
        return [[(word[0] + 1) % size, *word[1:]] for word in words if len(word) > 1]
    if pattern == "longer than the row":
        return [[*([7 % size] * (len(tokens) + 1)), last]]
    if pattern == "whole row":
        return [[*tokens[:end], (last + end) % size] for end in range(outputs, len(tokens) + 1)]
    if pattern == "the same word twice":
        return words[:3] + words[:3]
    if pattern == "15 words":
        return [[s.integer(0, size)] for _ in range(9)] + words[:6]
    return words


def _pool(row: Row, s: Stream) -> Pool:
    vocab, outputs, prompts = row["vocab"], row["outputs"], row["prompts"]
    drafts = axes.draft_counts(row["drafts"], *axes.sized(row, 0 if row["on"] == _NO_ROW else 2, 2))
    rows = rows_of(drafts, row["mapping"])
    slots = slots_for(len(drafts))
    prompts, outputs = prompts[: len(drafts)], outputs[: len(drafts)]
    if "size" in row:
        prompts, outputs = [4] * len(drafts), [3] * len(drafts)
    lengths: dict[int, tuple[int, int]] = {}
    for slot, prompt, output in zip(rows.slots, prompts, outputs, strict=True):
        lengths[slot] = (prompt, prompt + output)
    every = [lengths.get(slot, (1, 2)) for slot in range(slots)]
    state = token_state(s, vocab, [p for p, _ in every], [t for _, t in every], [t for _, t in every])
    if row["words"] == "a row of one id":
        state["all_token_ids"].fill_(vocab // 2)
    flat = axes.draft_ids(row["draft ids"], drafts, vocab, s).tolist()
    token_width, most = 600, 140
    ids = torch.full((slots, token_width), 5 % vocab, dtype=torch.int32)
    offsets = torch.zeros((slots, most + 1), dtype=torch.int32)
    number = torch.ones(slots, dtype=torch.int32)
    offsets[:, 1:] = torch.arange(1, most + 1, dtype=torch.int32)
    input_ids: list[int] = []
    words_given: list[list[list[int]]] = []
    for request, slot in enumerate(rows.slots):
        mine = flat[sum(drafts[:request]) : sum(drafts[: request + 1])]
        if row["words"] == "a row of one id":
            mine = [vocab // 2] * len(mine)
        prompt, total = lengths[slot]
        produced = state["all_token_ids"][slot, prompt:total].tolist()
        input_ids += [produced[-1] if produced else s.integer(0, vocab), *mine]
        last = {
            "random": s.integer(0, vocab),
            "id 0": 0,
            "id V-1": vocab - 1,
            "same as drafted": mine[0] if mine else 0,
            "id V": vocab,
            "-1": -1,
        }[row["last token"]]
        chosen = {"every request": True, "first request": request == 0, "last request": request == 1}[row["on"]]
        words = bad_words(row["words"], [*produced, *mine], len(produced), last, vocab, s) if chosen else []
        words_given.append(words)
        if slot < 0:
            continue
        ends = torch.tensor([0, *[len(word) for word in words]]).cumsum(0)
        joined = [token for word in words for token in word]
        ids[slot, : len(joined)] = torch.tensor(joined, dtype=torch.int32)
        offsets[slot, : len(ends)] = ends.int()
        number[slot] = len(words)
    return {
        "logits": guarded_logits("random", rows.count, vocab, s, FLOATS[row["dtype"]], row["layout"]),
        **rows.pool(),
        **state,
        "input_ids": torch.tensor(input_ids, dtype=torch.int32),
        "bad_word_token_ids": guarded(ids, fill=0),
        "bad_word_offsets": guarded(offsets, fill=0),
        "num_bad_words": guarded(number, fill=0),
        "max_num_bad_words": max((len(words) for words in words_given), default=0),
    }


def _contract(row: Row) -> bool:
    return (
        row["last token"] not in ("id V", "-1")
        and row["draft ids"] != "id V"
        and not row["mapping"].startswith("-1")
        and row["words"] != "no words"
        and row["on"] != _NO_ROW
    )


def cases() -> Iterator[Case]:
    yield from axes.cases_from(
        AXES,
        _pool,
        name="v2.apply_bad_words",
        contract=_contract,
        alone={"layout": (axes.FAR_ROWS,), "on": (_NO_ROW,)},
        limit=57,
    )


# -- the state -----------------------------------------------------------------------------------------------------

STATE_AXES = {
    "words": (
        *("two tokens", "one token", "three tokens", "many", "empty list"),
        *("128 words", "129 words", "1024 tokens", "1025 tokens"),
    ),
    "requests": ("all", "first", "last", "none"),
    "again": ("no", "slot without words", "slot with one word"),
    "batch": ("all", "one", "reversed"),
    "drafts": ("none", "full"),
    "vocab": (40, 300),
}


def _state_pool(row: Row, s: Stream) -> Pool:
    vocab = row["vocab"]
    count = axes.sized(row, 3, 0)[0]
    chosen = chosen_requests(row["batch"], count)
    drafts = axes.draft_counts(row["drafts"], *axes.sized(row, len(chosen), 2))
    rows = rows_of(drafts)
    slots = [request_slots(count)[index] for index in chosen]
    state = life_state(s, vocab, count)
    words: list[Any] = []
    for slot in request_slots(count):
        prompt, total = int(state["prompt_len"][slot]), int(state["total_len"][slot])
        produced = state["all_token_ids"][slot, prompt:total].tolist()
        given = {
            "two tokens": [[*produced[-1:], 7], [3, 4]],
            "one token": [[7], [0], [vocab - 1]],
            "three tokens": [[*produced[-2:], 9], [*produced[-2:], 9]],
            "many": [[index % vocab] for index in range(20)],
            "empty list": [],
            "128 words": [[index % vocab] for index in range(128)],
            "129 words": [[index % vocab] for index in range(129)],
            "1024 tokens": [[3] * 1023, [5]],
            "1025 tokens": [[3] * 1024, [5]],
        }[row["words"]]
        wanted = row["requests"] == "all" or (row["requests"] == "first" and slot == 4)
        wanted |= row["requests"] == "last" and slot == request_slots(count)[-1]
        words.append({"bad_words_token_ids": given} if wanted else {})
    return {
        **state,
        **rows.pool(),
        "idx_mapping": torch.tensor(slots, dtype=torch.int32),
        "expanded_idx_mapping": torch.tensor(rows.expand(slots), dtype=torch.int32),
        "input_ids": s.integers(0, vocab, (rows.count,), torch.int32),
        "logits": axes.logits("random", rows.count, vocab, s),
        "requests": words,
        "again": row["again"],
    }


def state_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        STATE_AXES,
        _state_pool,
        name="v2.bad_words_state",
        contract=lambda row: row["words"] not in ("129 words", "1025 tokens") and row["batch"] != NO_REQUEST,
        alone={"batch": (NO_REQUEST,)},
        limit=31,
    )


def prepare_state(arm: Arm, pool: Pool) -> Call:
    """Requests come into slots 4, 1 and 2, perhaps again; then a step is processed."""
    state = make_state(arm, STATE, pool, pool["logits"].shape[1])
    names = ("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "input_ids")
    context = {**{name: pool[name] for name in names}, "idx_mapping_np": pool["idx_mapping"].cpu().numpy()}

    def life() -> dict[str, Any]:
        for slot, given in zip(request_slots(len(pool["requests"])), pool["requests"], strict=True):
            add_request(arm, state, slot, given, pool)
        flush(arm, state, pool)
        if pool["again"] != "no":
            add_request(arm, state, 1, {"bad_words_token_ids": [[11]]} if "one word" in pool["again"] else {}, pool)
            flush(arm, state, pool)
        logits = process(arm, state, APPLY_METHODS, pool["logits"], context)
        return {"logits": logits, **snapshot(state, ("num_bad_words.np",))}

    return Call(life)


TARGETS = (
    Target(
        "v2.apply_bad_words",
        (APPLY_BAD_WORDS,),
        cases,
        by_name(APPLY_BAD_WORDS),
        triton=True,
        rows=("logits",),
        invariants=(
            relations.filters("logits"),
            relations.unchanged("bad_word_token_ids", "bad_word_offsets", "num_bad_words", "input_ids"),
        ),
        relations=(
            relations.permuted(
                ("logits", "expanded_idx_mapping", "expanded_local_pos", "input_ids"),
                ("logits",),
                lambda pool: not pool["expanded_local_pos"].any(),
            ),
            relations.relaid("logits", ("logits",)),
        ),
        shapes=shapes.of_cases(cases, "vocabulary", "drafts"),
    ),
    Target(
        "v2.bad_words_state",
        (STATE,),
        state_cases,
        prepare_state,
        uses=methods(STATE, *APPLY_METHODS),
        triton=True,
        relations=of_step_rows("expanded_local_pos", "input_ids"),
        shapes=shapes.of_cases(state_cases, "vocabulary", "drafts"),
    ),
)
