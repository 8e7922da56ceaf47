"""V2 penalties: counts of prompt and output tokens a slot, and the repetition, frequency and presence terms.

A slot's prompt tokens are a bitmask, its output tokens counts. Under speculative decoding a row also counts the
draft tokens of the rows before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import GPU, MAPPINGS, SLOTS, expanded_only, per_slot, rows_of, slots_for
from difftest.cases.v2_gumbel import GUMBEL_SAMPLE
from difftest.cases.v2_state import (
    LENGTHS,
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
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

APPLY_PENALTIES = (f"{GPU}.sample.penalties:apply_penalties", f"{GPU}.penalties:apply_penalties")
FUSED = f"{GPU}.sample.penalties:apply_penalties_and_temperature"
APPLY_TEMPERATURE = f"{GPU}.sample.gumbel:apply_temperature"
BINCOUNT = (f"{GPU}.sample.penalties:bincount", f"{GPU}.states:bincount")
STATE = f"{GPU}.sample.penalties:PenaltiesState"
APPLY_METHODS = ("apply", "apply_penalties", "apply_penalties_and_temperature")

AXES = {
    "repetition": (axes.REPETITION[1], axes.REPETITION[0], *axes.REPETITION[2:]),
    "frequency": (axes.FREQUENCY[1], axes.FREQUENCY[0], *axes.FREQUENCY[2:]),
    "presence": (axes.PRESENCE[1], axes.PRESENCE[0], *axes.PRESENCE[2:]),
    "logits": (
        *("random", "integer grid", "bf16 grid", "all equal", "all zero", "-0.0", "huge", "denormals"),
        *("-inf some", "-inf everywhere", "+inf once", "NaN at the start"),
    ),
    "history": ("some", "none", "prompt only", "output only", "every token"),
    "drafts": ("none", "ragged", "full", "zero first", "only last"),
    "draft ids": ("random", "-1 first", "-1 everywhere", "same id", "id V-1", "id V"),
    "vocab": (50, 1, 31, 32, 33, 65, 8191, 8192, 8193),
    "requests": (2, 1, 4),
    "mapping": MAPPINGS[:4],
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "offset storage", "every other row"),
}


def counts_pool(history: str, vocab: int, s: Stream, slots: int = SLOTS) -> Pool:
    """`prompt_bin_mask` [slots, vocab / 32] and `output_bin_counts` [slots, vocab], int32, between guard rows."""
    words = -(-vocab // 32)
    mask = s.integers(0, 1 << 30, (slots, words)) & s.integers(0, 1 << 30, (slots, words))
    counts = s.integers(0, 6, (slots, vocab)).sub_(3).clamp_(min=0)
    if history in ("none", "output only"):
        mask.zero_()
    if history in ("none", "prompt only"):
        counts.zero_()
    if history == "every token":
        mask.fill_(-1)
        counts.fill_(2)
    return {
        "prompt_bin_mask": guarded(mask.int(), fill=-1),
        "output_bin_counts": guarded(counts.int(), fill=5),
    }


def penalty_tensors(row: Row, slots: tuple[int, ...]) -> Pool:
    """One value a slot; slots without a request hold values that would change any logit."""
    count = len(slots)
    stale = {"repetition": 1.9, "frequency": 0.9, "presence": 0.8}
    return {f"{name}_penalty": per_slot(row[name].over(count), slots, stale[name], torch.float32) for name in stale}


def _ids(row: Row, drafts: list[int], vocab: int, s: Stream) -> torch.Tensor:
    """Input ids of each row: a request's last token, then its draft tokens; int32 [rows]."""
    if row["draft ids"] == "same id":
        flat = torch.full((sum(drafts),), vocab // 2, dtype=torch.int32)
    else:
        flat = axes.draft_ids(row["draft ids"], drafts, vocab, s)
    ids: list[int] = []
    done = 0
    for count in drafts:
        ids += [s.integer(0, vocab), *flat[done : done + count].tolist()]
        done += count
    return torch.tensor(ids, dtype=torch.int32)


def _pool(row: Row, s: Stream) -> Pool:
    vocab = row["vocab"]
    drafts = axes.draft_counts(row["drafts"], *axes.sized(row, row["requests"], 3))
    rows = rows_of(drafts, row["mapping"])
    return {
        "logits": axes.logits(row["logits"], rows.count, vocab, s, FLOATS[row["dtype"]], row["layout"]),
        **rows.pool(),
        "token_ids": _ids(row, drafts, vocab, s),
        **penalty_tensors(row, rows.slots),
        **counts_pool(row["history"], vocab, s, slots_for(len(drafts))),
        "num_speculative_tokens": max([3, *drafts]),
    }


def _contract(row: Row) -> bool:
    return (
        row["requests"] > 0
        and row["logits"] not in axes.UNUSUAL_LOGITS
        and row["draft ids"] not in axes.UNUSUAL_DRAFT_IDS
        and not row["mapping"].startswith("-1")
    )


def cases() -> Iterator[Case]:
    name = "v2.apply_penalties"
    yield from axes.cases_from(AXES, _pool, name=name, contract=_contract, alone={"requests": (0,)}, limit=91)
    far = {**axes.plain(AXES), "layout": axes.FAR_ROWS, "drafts": "full"}
    yield from axes.cases_from(AXES, _pool, name=name, rows=[far])


def _prompt_counts(pool: Pool) -> torch.Tensor:
    """Counts of a slot's prompt tokens as versions before packed masks kept them, int32 [slots, vocab]."""
    words, vocab = pool["prompt_bin_mask"], pool["output_bin_counts"].shape[1]
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    made: torch.Tensor = guarded((bits.flatten(1)[:, :vocab] * 2).contiguous(), fill=5)
    return made


def packed(seen: torch.Tensor) -> torch.Tensor:
    """`seen`, bool [slots, vocab], as the bits of int32 words [slots, vocab / 32]."""
    slots, vocab = seen.shape
    bits = torch.nn.functional.pad(seen, (0, -vocab % 32)).view(slots, -(-vocab // 32), 32).long()
    return (bits << torch.arange(32, device=seen.device)).sum(-1).to(torch.int32)


def _metadata(arm: Arm, pool: Pool) -> SimpleNamespace:
    """The metadata object that versions before states took: penalties and temperature one a row or one a slot,
    counts one a slot.

    They became one a slot in the change that let sampling read seeds through a mapping, too.
    """
    index = pool["expanded_idx_mapping"].long()
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty", "temperature")
    by_slot = any(map(arm.has, GUMBEL_SAMPLE)) and "idx_mapping" in takes(arm.first(*GUMBEL_SAMPLE))
    if not by_slot:
        arm.note("penalties are one a row, taken from their slots")
    each = {name: pool[name] if by_slot else pool[name][index] for name in names if name in pool}
    return SimpleNamespace(
        idx_mapping=pool["expanded_idx_mapping"],
        prompt_bin_mask=pool["prompt_bin_mask"],
        prompt_bin_counts=_prompt_counts(pool),
        output_bin_counts=pool["output_bin_counts"],
        **each,
    )


def _penalties_call(arm: Arm, function: Any, pool: Pool) -> dict[str, Any]:
    values = expanded_only(arm, function, pool)
    if "sampling_metadata" in takes(function):
        values["sampling_metadata"] = _metadata(arm, pool)
    if "token_ids" not in takes(function):
        arm.note("draft tokens are not counted")
    return arm.bind(function, values)


def prepare(arm: Arm, pool: Pool) -> Call:
    """A call of `apply_penalties` as each version takes it."""
    function = arm.first(*APPLY_PENALTIES)
    return Call(function, kwargs=_penalties_call(arm, function, pool))


# -- penalties and temperature together ----------------------------------------------------------------------------

TEMPERATURES = axes.spreads(0.7, (1.0, 0.0, 1e-3), 0.0)


def fused_cases() -> Iterator[Case]:
    chosen = {name: values for name, values in AXES.items() if name not in ("drafts", "draft ids", "mapping", "layout")}
    fused: dict[str, Any] = {"temperature": TEMPERATURES, **chosen}
    fused["vocab"] = (50, 31, 33, 8193)

    def build(row: Row, s: Stream) -> Pool:
        plain = _pool(
            {**row, "drafts": "none", "draft ids": "random", "mapping": "permuted", "layout": "padded rows"}, s
        )
        slots = tuple(plain["idx_mapping"].tolist())
        return {**plain, "temperature": per_slot(row["temperature"].over(row["requests"]), slots, 0.3, torch.float32)}

    def contract(row: Row) -> bool:
        # Samplers copy logits to float32 first; in other types two calls round twice where one kernel rounds once.
        return row["logits"] not in axes.UNUSUAL_LOGITS and row["dtype"] == "float32"

    name = "v2.penalties_and_temperature"
    yield from axes.cases_from(fused, build, name=name, contract=contract, limit=70)
    # The oldest versions have no function for the temperature.
    fused["temperature"] = (axes.Spread("1 and 0", (1.0, 0.0)), axes.Spread("1", (1.0,)))
    prefix = "no temperature: "
    yield from axes.cases_from(fused, build, name=name, contract=contract, limit=20, prefix=prefix)


def prepare_fused(arm: Arm, pool: Pool) -> Call:
    """Penalties, then temperature: one kernel in early versions, two later.

    Raises:
        ApiChange: a request has a temperature that changes logits, and the version has no function for it.
    """
    if arm.has(FUSED):
        function = arm.get(FUSED)
        return Call(function, kwargs=_penalties_call(arm, function, pool))
    penalties = arm.first(*APPLY_PENALTIES)
    first = _penalties_call(arm, penalties, pool)
    if not arm.has(APPLY_TEMPERATURE):
        given = pool["temperature"][pool["expanded_idx_mapping"].long()]
        if not ((given == 0) | (given == 1)).all():
            raise ApiChange("this version has no function that applies the temperature")
        arm.note("the temperature is left out: this version has no function for it, and here it changes nothing")
        return Call(penalties, kwargs=first)
    temperature = arm.get(APPLY_TEMPERATURE)
    arm.note("penalties and temperature are two calls")
    second = arm.bind(temperature, expanded_only(arm, temperature, pool))

    def both() -> None:
        penalties(**first)
        temperature(**second)

    return Call(both)


# -- counting ------------------------------------------------------------------------------------------------------

COUNT_AXES = {
    "lengths": (
        "plain",
        "no output",
        "no prompt",
        "empty",
        "one token",
        "across blocks",
        "block exactly",
        "long output",
    ),
    "slots": ("some", "all", "one", "none"),
    "ids": ("random", "same id", "bits 31 and 32", "id V-1", "few ids", "-1", "id V"),
    "vocab": (50, 1, 31, 32, 33, 2000),
    "before": ("clean", "dirty"),
    "layout": ("contiguous", "padded rows"),
    "mapping dtype": ("int32", "int64"),
}
_LENGTHS = {
    "plain": ((3, 7), (5, 5), (1, 4)),
    "no output": ((4, 4), (6, 6), (1, 1)),
    "no prompt": ((0, 4), (0, 6), (0, 1)),
    "empty": ((0, 0), (2, 3), (0, 0)),
    "one token": ((1, 1), (0, 1), (1, 1)),
    "across blocks": ((1000, 1500), (700, 700), (1030, 1100)),
    "block exactly": ((1024, 2048), (1023, 1024), (1025, 1026)),
    "long output": ((2, 2100), (1, 1025), (5, 6)),
}


def _count_pool(row: Row, s: Stream) -> Pool:
    vocab = row["vocab"]
    lengths = _LENGTHS[row["lengths"]]
    count = slots_for(axes.sized(row, 6, 0)[0])
    pairs = [lengths[slot % 3] for slot in range(count)]
    slots = {"some": [4, 1, 2], "all": [2, 0, 5, 4, 3, 1], "one": [3], "none": []}[row["slots"]]
    if "size" in row:
        slots = list(range(row["size"].batch))
    prompts, prefills = [p for p, _ in pairs], [q for _, q in pairs]
    pool = token_state(s, vocab, prompts, prefills, prefills)
    tokens = pool["all_token_ids"]
    if row["ids"] == "same id":
        tokens.fill_(vocab // 2)
    elif row["ids"] == "bits 31 and 32":
        tokens.copy_((tokens % 2 + 31).clamp(max=vocab - 1))
    elif row["ids"] == "few ids":
        tokens.remainder_(3).clamp_(max=vocab - 1)
    elif row["ids"] != "random":
        tokens[:, 1::5] = {"id V-1": vocab - 1, "-1": -1, "id V": vocab}[row["ids"]]
    if row["layout"] == "padded rows":
        pool["all_token_ids"] = axes.lay_out(tokens, "padded rows")
    counts = counts_pool("some" if row["before"] == "dirty" else "none", vocab, s, count)
    return {
        **pool,
        **counts,
        "expanded_idx_mapping": torch.tensor(slots, dtype=axes.IDS[row["mapping dtype"]]),
        "max_prefill_len": max([prefills[slot] for slot in slots], default=0),
    }


def _long(size: shapes.Size) -> Row:
    return {"lengths": "across blocks"}


def count_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        COUNT_AXES,
        _count_pool,
        name="v2.bincount",
        contract=lambda row: row["ids"] not in ("-1", "id V") and row["slots"] != "none" and row["lengths"] != "empty",
        limit=70,
    )


def prepare_count(arm: Arm, pool: Pool) -> Call:
    """A call of `bincount`; versions before batches take one request at a time, as row views."""
    function = arm.first(*BINCOUNT)
    if "max_prefill_len" in takes(function):
        return Call(function, kwargs=arm.bind(function, pool, idx_mapping="expanded_idx_mapping"))
    arm.note("called once a request, with views of its rows")
    slots, calls = pool["expanded_idx_mapping"].tolist(), []
    counts = _prompt_counts(pool) if "prompt_bin_counts" in takes(function) else None
    if counts is not None:
        arm.note("counts of prompt tokens are compared as the mask that later versions keep")
    for slot in slots:
        values = {
            "all_token_ids": pool["all_token_ids"][slot],
            "prefill_len": int(pool["prefill_len"][slot]),
            "prompt_len": int(pool["prompt_len"][slot]),
            "prompt_bin_mask": pool["prompt_bin_mask"][slot],
            "output_bin_counts": pool["output_bin_counts"][slot],
            **({} if counts is None else {"prompt_bin_counts": counts[slot]}),
        }
        calls.append(arm.bind(function, values, prefill_token_ids="all_token_ids"))

    def each() -> None:
        for kwargs in calls:
            function(**kwargs)
        if counts is not None:
            pool["prompt_bin_mask"][slots] = packed(counts[slots] > 0)

    return Call(each)


# -- the state -----------------------------------------------------------------------------------------------------

SNAPSHOT = (
    "repetition_penalty.np",
    "frequency_penalty.np",
    "presence_penalty.np",
    "prompt_bin_mask",
    "output_bin_counts",
)
_PENALTIES: dict[str, dict[str, float]] = {
    "all": {"repetition_penalty": 1.4, "frequency_penalty": 0.25, "presence_penalty": 0.5},
    "none": {},
    "repetition": {"repetition_penalty": 0.8},
    "frequency": {"frequency_penalty": -0.75},
    "presence": {"presence_penalty": 1.5},
}
STATE_AXES = {
    "requests": (
        ("all", "none", "repetition"),
        ("none", "none", "none"),
        ("none", "frequency", "none"),
        ("none", "none", "presence"),
        ("presence", "all", "all"),
    ),
    "again": ("no", "same slot without penalties", "same slot with other penalties", "flushed twice"),
    "batch": ("all", "one", "reversed"),
    "lengths": ("short", "first long", "last long"),
    "vocab": (50, 33),
    "dtype": ("float32", "bfloat16"),
}
_LONG = 1500  # tokens: more than one block of counting


def _state_pool(row: Row, s: Stream) -> Pool:
    count = axes.sized(row, 3, 0)[0]
    chosen = chosen_requests(row["batch"], count)
    rows = rows_of([0] * len(chosen))
    mapping = torch.tensor([request_slots(count)[i] for i in chosen], dtype=torch.int32)
    lengths = [list(each) for each in LENGTHS]
    if row["lengths"] != "short":
        for each in lengths[1:]:
            each[request_slots(count)[0 if row["lengths"] == "first long" else -1] % len(each)] = _LONG
    return {
        **life_state(s, row["vocab"], count, lengths),
        "requests": [_PENALTIES[row["requests"][i % 3]] for i in range(count)],
        "again": row["again"],
        "logits": axes.logits("random", len(chosen), row["vocab"], s, FLOATS[row["dtype"]]),
        "idx_mapping": mapping,
        "expanded_idx_mapping": mapping.clone(),
        "expanded_local_pos": torch.zeros(rows.count, dtype=torch.int32),
        "input_ids": s.integers(0, row["vocab"], (rows.count,), torch.int32),
    }


def state_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        STATE_AXES,
        _state_pool,
        name="v2.penalties_state",
        contract=lambda row: row["batch"] != NO_REQUEST,
        alone={"batch": (NO_REQUEST,)},
        limit=46,
    )


def prepare_state(arm: Arm, pool: Pool) -> Call:
    """Requests come into slots 4, 1 and 2, perhaps again; then a step is processed."""
    vocab = pool["logits"].shape[1]
    state = make_state(arm, STATE, pool, vocab)
    context = {
        **{name: pool[name] for name in ("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "input_ids")},
        "idx_mapping_np": pool["idx_mapping"].cpu().numpy(),
        "num_speculative_tokens": 1,
        "temperature": torch.ones(pool["all_token_ids"].shape[0]),
    }

    def life() -> dict[str, Any]:
        for slot, given in zip(request_slots(len(pool["requests"])), pool["requests"], strict=True):
            add_request(arm, state, slot, given, pool)
        flush(arm, state, pool)
        if pool["again"] == "flushed twice":
            flush(arm, state, pool)
        elif pool["again"] != "no":
            add_request(arm, state, 1, {"presence_penalty": 0.3} if "other" in pool["again"] else {}, pool)
            flush(arm, state, pool)
        logits = process(arm, state, APPLY_METHODS, pool["logits"], context)
        return {"logits": logits, **snapshot(state, SNAPSHOT)}

    return Call(life)


def _off(pool: Pool) -> torch.Tensor:
    slots = pool["expanded_idx_mapping"].long()
    none = (pool["frequency_penalty"][slots] == 0) & (pool["presence_penalty"][slots] == 0)
    made: torch.Tensor = none & (pool["repetition_penalty"][slots] == 1)
    return made


TARGETS = (
    Target(
        "v2.apply_penalties",
        APPLY_PENALTIES,
        cases,
        prepare,
        triton=True,
        rows=("logits",),
        invariants=(
            relations.unchanged("token_ids", "prompt_bin_mask", "output_bin_counts", "repetition_penalty"),
            relations.off_rows("logits", _off, "no penalty"),
        ),
        relations=(
            *relations.of_rows(
                ("logits", "expanded_idx_mapping", "expanded_local_pos", "token_ids"),
                ("logits",),
                lambda pool: not pool["expanded_local_pos"].any(),
            ),
            relations.relaid("logits", ("logits",)),
        ),
        shapes=shapes.of_cases(cases, "vocabulary", "drafts"),
    ),
    Target(
        "v2.penalties_and_temperature",
        (FUSED, *APPLY_PENALTIES),
        fused_cases,
        prepare_fused,
        uses=(APPLY_TEMPERATURE,),
        triton=True,
        rows=("logits",),
        shapes=shapes.of_cases(fused_cases, "vocabulary"),
    ),
    Target(
        "v2.bincount",
        BINCOUNT,
        count_cases,
        prepare_count,
        triton=True,
        shapes=shapes.of_cases(count_cases, "vocabulary", also=_long),
    ),
    Target(
        "v2.penalties_state",
        (STATE,),
        state_cases,
        prepare_state,
        uses=methods(STATE, *APPLY_METHODS),
        triton=True,
        relations=of_step_rows("expanded_local_pos", "input_ids"),
        shapes=shapes.of_cases(state_cases, "vocabulary"),
    ),
)
