"""V2 logprobs: of chosen ids, of the top k, ranks of the sampled ids, and of ids that a request names."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, block_of, by_name, guarded_logits, map_rows, slots_for
from difftest.cases.v2_state import sampling_params
from difftest.cases.versions import takes
from difftest.target import Arm, Call, Case, Pool, Target

TOKEN_LOGPROBS = (f"{GPU}.sample.logprob:compute_token_logprobs", f"{GPU}.sampler:compute_token_logprobs")
TOPK = (
    f"{GPU}.sample.logprob:compute_topk_scores",
    f"{GPU}.sample.logprob:compute_topk_logprobs",
    f"{GPU}.sampler:compute_topk_logprobs",
)
STATE = f"{GPU}.sample.logprob:LogprobTokenIdsState"

PATTERNS = (
    *(
        "random",
        "integer grid",
        "bf16 grid",
        "near ties",
        "plateaus",
        "one-hot",
        "all equal",
        "-0.0",
        "huge",
        "denormals",
    ),
    *(
        "-inf some",
        "-inf all but one",
        "-inf everywhere",
        "+inf once",
        "NaN at the start",
        "NaN at the end",
        "NaN everywhere",
    ),
)

# -- chosen ids ----------------------------------------------------------------------------------------------------

TOKEN_AXES = {
    "logits": PATTERNS,
    "ids": ("random", "same id", "first and last id", "id V", "-1"),
    "number": (3, 1, 2, 17, 1023, 1024, 1025, 1500),
    "vocab": (50, 1, 1023, 1024, 1025, 2049),
    "rows": (3, 1, 0, 9),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "every other row"),
    "id dtype": ("int64", "int32"),
    "id layout": ("contiguous", "padded rows", "every other row"),
}


def token_ids(pattern: str, rows: int, number: int, vocab: int, s: Stream) -> torch.Tensor:
    """Ids [rows, number], int64."""
    ids = s.integers(0, vocab, (rows, number))
    if pattern == "same id":
        ids.fill_(vocab // 2)
    elif pattern != "random":
        ids[:, ::2] = {"first and last id": 0, "id V": vocab, "-1": -1}[pattern]
        if pattern == "first and last id":
            ids[:, 1::2] = vocab - 1
    made: torch.Tensor = ids
    return made


def _between(ids: torch.Tensor, layout: str, other: int) -> torch.Tensor:
    """The ids with gaps of another id of the vocabulary, so that code that reads a gap goes on with a wrong id."""
    laid = axes.lay_out(ids, layout)
    if layout != "contiguous":
        whole = laid.as_strided((laid.untyped_storage().nbytes() // laid.element_size(),), (1,), 0)
        whole.fill_(other)
        laid.copy_(ids)
    made: torch.Tensor = laid
    return made


def _token_pool(row: Row, s: Stream) -> Pool:
    ids = token_ids(row["ids"], row["rows"], row["number"], row["vocab"], s).to(axes.IDS[row["id dtype"]])
    return {
        "logits": guarded_logits(row["logits"], row["rows"], row["vocab"], s, FLOATS[row["dtype"]], row["layout"]),
        "token_ids": _between(ids, row["id layout"], row["vocab"] // 2),
    }


def token_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        TOKEN_AXES,
        _token_pool,
        name="v2.token_logprobs",
        contract=lambda row: (
            row["ids"] not in ("id V", "-1")
            and row["logits"] not in axes.UNUSUAL_LOGITS
            and row["id layout"] == "contiguous"
        ),
        alone={"layout": (axes.FAR_ROWS,)},
        limit=86,
    )


# -- the top k -----------------------------------------------------------------------------------------------------

TOPK_AXES = {
    "logits": PATTERNS,
    "number": (4, 0, 1, 20, "V"),
    "sampled": ("random", "likeliest", "id 0", "id V-1", "same id"),
    "expanded": ("no", "list", "uneven list"),
    "vocab": (50, 21, 1025, 8191, 8192, 8193),
    "rows": (3, 1, 6),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "every other row"),
}


def _topk_pool(row: Row, s: Stream) -> Pool:
    rows, vocab = row["rows"], row["vocab"]
    logits = guarded_logits(row["logits"], rows, vocab, s, FLOATS[row["dtype"]], row["layout"])
    drawn = s.integers(0, vocab, (rows,))
    sampled = {
        "random": drawn,
        "likeliest": logits.double().nan_to_num(neginf=-1e300).argmax(-1),
        "id 0": torch.zeros_like(drawn),
        "id V-1": torch.full_like(drawn, vocab - 1),
        "same id": torch.full_like(drawn, vocab // 2),
    }[row["sampled"]]
    pool: Pool = {
        "logits": logits,
        "num_logprobs": min(vocab, 60) if row["number"] == "V" else row["number"],
        "sampled_token_ids": sampled,
    }
    if row["expanded"] != "no":
        pool["cu_num_logits"] = list(range(rows + 1)) if row["expanded"] == "list" else [0, 1, rows]
    return pool


def _twenty(size: shapes.Size) -> Row:
    return {"number": 20}


def _topk_contract(row: Row) -> bool:
    return row["logits"] not in axes.UNUSUAL_LOGITS


def topk_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        TOPK_AXES,
        _topk_pool,
        name="v2.topk_logprobs",
        contract=_topk_contract,
        limit=76,
        alone={"layout": (axes.FAR_ROWS,)},
    )


def topk_logits_cases() -> Iterator[Case]:
    def build(row: Row, s: Stream) -> Pool:
        return {**_topk_pool(row, s), "logits_mode": True}

    yield from axes.cases_from(TOPK_AXES, build, name="v2.topk_logits", contract=_topk_contract, limit=60)


# -- ids that a request names --------------------------------------------------------------------------------------

NAMED_AXES = {
    "ids": ("some", "none", "on the first", "on the last", "many on one", "129 ids", "id V"),
    "number": (2, 0, 6, 12),
    "mapping": ("permuted", "identity", "two rows of one slot"),
    "logits": ("random", "integer grid", "-inf some", "NaN at the start"),
    "vocab": (50, 200, 1500),
    "dtype": ("float32", "bfloat16"),
    "logits_mode": (False, True),
}


def _named_pool(row: Row, s: Stream) -> Pool:
    vocab = row["vocab"]
    rows, _ = axes.sized(row, 3, 0)
    drawn = [sorted({s.integer(0, vocab) for _ in range(3 + request)}) for request in range(3)]
    choices: dict[str, list[list[int] | None]] = {
        "some": [drawn[0], drawn[1], None],
        "none": [None, None, None],
        "on the first": [drawn[0], None, None],
        "on the last": [None, None, drawn[2]],
        "many on one": [None, list(range(0, vocab, 3))[:40], drawn[2]],
        "128 ids": [None, list(range(128)), None],
        "129 ids": [None, list(range(129)), None],
        "id V": [[vocab, 1], None, None],
    }
    slots = map_rows(row["mapping"], rows)
    pool: Pool = {
        "logits": guarded_logits(row["logits"], rows, vocab, s, FLOATS[row["dtype"]], "padded rows"),
        "num_logprobs": row["number"],
        "sampled_token_ids": s.integers(0, vocab, (rows,)),
        "expanded_idx_mapping": torch.tensor(slots, dtype=torch.int32),
        "named": [choices[row["ids"]][at % 3] for at in range(rows)],
    }
    if row["logits_mode"]:
        pool["logits_mode"] = True
    return pool


def named_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        NAMED_AXES,
        _named_pool,
        name="v2.logprob_token_ids",
        contract=lambda row: row["ids"] not in ("129 ids", "id V") and row["logits"] not in axes.UNUSUAL_LOGITS,
        limit=45,
    )
    most = {**axes.plain(NAMED_AXES), "ids": "128 ids", "vocab": 200}
    yield from axes.cases_from(NAMED_AXES, _named_pool, name="v2.logprob_token_ids", rows=[most], prefix="most: ")


def prepare_named(arm: Arm, pool: Pool) -> Call:
    """Requests name ids; then the scores of a step are computed."""
    state = arm.get(STATE)(slots_for(len(pool["named"])), pool["logits"].device)
    function = arm.first(*TOPK)
    slots = pool["expanded_idx_mapping"]
    if "max_per_req_token_ids" in takes(function):
        arm.note("max_per_req_token_ids is what this version's max_num_token_ids says of the case's slots")

    def life() -> dict[str, Any]:
        for slot, named in zip(slots.tolist(), pool["named"], strict=True):
            state.add_request(slot, sampling_params({"logprob_token_ids": named}))
        state.apply_staged_writes()
        most = state.max_num_token_ids(slots.cpu().numpy())
        values = {**pool, "logprob_token_ids_state": state, "max_per_req_token_ids": most}
        return {"scores": function(**arm.bind(function, values)), "most": most, "counts": state.num_token_ids.np.copy()}

    return Call(life)


# -- kernels -------------------------------------------------------------------------------------------------------

RANKS = (f"{GPU}.sample.logprob:_ranks_kernel", f"{GPU}.sampler:_ranks_kernel")
RANK_AXES = {
    "logits": PATTERNS,
    "ids": ("random", "first and last id", "id V", "-1"),
    "vocab": (40, 1, 15, 16, 17, 33),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "every other row"),
}


def _rank_pool(row: Row, s: Stream) -> Pool:
    rows, _ = axes.sized(row, 3, 0)
    return {
        "logits": guarded_logits(row["logits"], rows, row["vocab"], s, FLOATS[row["dtype"]], row["layout"]),
        "token_ids": token_ids(row["ids"], 1, rows, row["vocab"], s).reshape(rows),
        "output": guarded(torch.full((rows,), -5), fill=-9),
    }


def rank_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        RANK_AXES,
        _rank_pool,
        name="v2.ranks_kernel",
        contract=lambda row: row["ids"] not in ("id V", "-1") and row["logits"] not in axes.UNUSUAL_LOGITS,
        alone={"layout": (axes.FAR_ROWS,)},
        limit=61,
    )
    # Counts that 16 bits do not hold.
    rows = [{**axes.plain(RANK_AXES), "logits": "all equal", "vocab": vocab} for vocab in (40_000, 70_000)]
    yield from axes.cases_from(RANK_AXES, _rank_pool, name="v2.ranks_kernel", rows=rows, prefix="large: ")


def prepare_ranks(arm: Arm, pool: Pool) -> Call:
    """A launch of the kernel of ranks with blocks of 16 ids."""
    kernel = arm.first(*RANKS)
    logits = pool["logits"]
    values = SimpleNamespace(
        output_ptr=pool["output"],
        logits_ptr=logits,
        logits_stride=logits.stride(0),
        token_ids_ptr=pool["token_ids"],
        vocab_size=logits.shape[1],
        BLOCK_SIZE=block_of(logits.shape[1]),
    )
    return Call(kernel[(len(logits),)], kwargs=arm.bind(kernel.fn, vars(values)))


_SCORES = ("return.logprob_token_ids", "return.logprobs", "return.selected_token_ranks")

TARGETS = (
    Target(
        "v2.token_logprobs",
        TOKEN_LOGPROBS,
        token_cases,
        by_name(*TOKEN_LOGPROBS),
        triton=True,
        rows=("return",),
        invariants=(relations.unchanged("logits", "token_ids"),),
        relations=(*relations.of_rows(("logits", "token_ids")), relations.relaid("logits")),
        shapes=shapes.of_cases(token_cases, "vocabulary"),
    ),
    Target(
        "v2.topk_logprobs",
        TOPK,
        topk_cases,
        by_name(*TOPK),
        triton=True,
        invariants=(relations.unchanged("logits", "sampled_token_ids"),),
        relations=(
            *relations.of_rows(("logits", "sampled_token_ids"), _SCORES, lambda pool: "cu_num_logits" not in pool),
            relations.relaid("logits", _SCORES),
        ),
        shapes=shapes.of_cases(topk_cases, "vocabulary", also=_twenty),
    ),
    Target(
        "v2.topk_logits",
        TOPK[:1],
        topk_logits_cases,
        by_name(*TOPK[:1]),
        triton=True,
        shapes=shapes.of_cases(topk_logits_cases, "vocabulary", also=_twenty),
    ),
    Target(
        "v2.logprob_token_ids",
        (STATE,),
        named_cases,
        prepare_named,
        uses=(
            *TOPK,
            *(f"{STATE}.{m}" for m in ("__init__", "add_request", "apply_staged_writes", "max_num_token_ids")),
        ),
        triton=True,
        shapes=shapes.of_cases(named_cases, "vocabulary"),
    ),
    Target(
        "v2.ranks_kernel",
        RANKS,
        rank_cases,
        prepare_ranks,
        triton=True,
        rows=("output",),
        shapes=shapes.of_cases(rank_cases, "vocabulary"),
    ),
)
