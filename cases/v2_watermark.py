"""V2 watermarks: sampling by a keyed function of the tokens before, and which contexts have occurred already."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from difftest.cases import axes, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import (
    GPU,
    SEED_VALUES,
    SLOTS,
    by_name,
    guarded_logits,
    launch,
    map_rows,
    per_slot,
    row_positions,
    slot_seeds,
    slots_for,
    strides,
)
from difftest.cases.v2_rejection import AXES as REJECTION_AXES
from difftest.cases.v2_rejection import REJECTION_SAMPLE, contract, step_pool
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Target

MODULE = f"{GPU}.sample.watermark"
SAMPLE = f"{MODULE}:philox_gumbel_sample"
REPEATED = f"{MODULE}:repeated_context_mask"
DRAFTING = f"{MODULE}:draft_watermarking_mask"
MASK_KERNEL = f"{MODULE}:_repeated_context_mask_kernel"
KEYS = {
    "plain": 0x0123_4567_89AB_CDEF,
    "zero": 0,
    "largest": 2**64 - 1,
    "low half": 0xFFFF_FFFF,
    "high half": 0xFFFF_FFFF << 32,
}

AXES = {
    "logits": (
        *(
            "random",
            "integer grid",
            "near ties",
            "all equal",
            "-0.0",
            "-inf some",
            "-inf all but one",
            "-inf everywhere",
        ),
        *("+inf once", "NaN at the start", "NaN everywhere"),
    ),
    "key": tuple(KEYS),
    "context width": (4, 1, 2, 3, 5, 8, 9),
    "contexts": ("random", "equal", "-1", "partly -1", "0", "above 2^31"),
    "vocab": (50, 1, 3, 4, 5, 1023, 1024, 1025),
    "skipped": ("no mask", "none", "first", "all"),
    "cache": ("none", "one column", "a column each"),
    "temperature": axes.spreads(1.0, (0.0, 0.5), 0.0),
    "use_fp64": (False, True),
    "drafting": (False, True),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "transposed"),
    "context layout": ("contiguous", "padded rows", "transposed"),
    "context dtype": ("int64", "int32"),
    "mapping": ("permuted", "-1 at the end"),
    "seed": SEED_VALUES[:4],
}
_ROWS = 2

_PEAKS = (None, 0, 1, 2)
"""The block of 1024 ids in which the first row's likeliest id is; that of the next row is in the next one."""


def contexts(pattern: str, rows: int, width: int, s: Stream, dtype: torch.dtype, layout: str) -> torch.Tensor:
    """Token ids before each row, [rows, width]; -1 where the history is shorter."""
    drawn = s.integers(0, 1000, (rows, width))
    if pattern == "equal":
        drawn[:] = drawn[:1].clone()
    elif pattern == "partly -1":
        drawn[:, : (width + 1) // 2] = -1
    elif pattern != "random":
        drawn.fill_({"-1": -1, "0": 0, "above 2^31": 2**31 - 1 if dtype is torch.int32 else 2**31 + 5}[pattern])
    made: torch.Tensor = axes.lay_out(drawn.to(dtype), layout)
    return made


def _pool(row: Row, s: Stream) -> Pool:
    if row["cache"] != "none" and row["skipped"] == "no mask":
        row = {**row, "skipped": "none"}  # a cache needs slots, and slots come with a mask
    dtype = FLOATS[row["dtype"]]
    rows, _ = axes.sized(row, _ROWS, 0)
    mapping = map_rows(row["mapping"], rows)
    pool: Pool = {
        "logits": guarded_logits(row["logits"], rows, row["vocab"], s, dtype, row["layout"]),
        "contexts": contexts(
            row["contexts"], rows, row["context width"], s, axes.IDS[row["context dtype"]], row["context layout"]
        ),
        "key": KEYS[row["key"]],
        "use_fp64": row["use_fp64"],
        "is_drafting": row["drafting"],
    }
    if row.get("peak") is not None:
        blocks = (row["vocab"] + 1023) // 1024
        for place in range(rows):
            start = (row["peak"] + place) % blocks * 1024
            pool["logits"][place, s.integer(start + 1, min(start + 1024, row["vocab"]))] = 40.0
    if row["skipped"] != "no mask":
        pool["expanded_idx_mapping"] = torch.tensor(mapping, dtype=torch.int32)
    if row["skipped"] != "no mask":
        skipped = {"none": [False] * rows, "first": [True, *[False] * (rows - 1)], "all": [True] * rows}[row["skipped"]]
        pool |= {
            "skip_mask": torch.tensor(skipped),
            "temperatures": per_slot(row["temperature"].over(rows), mapping, 0.7, torch.float32),
            "seeds": slot_seeds(row["seed"], mapping, s),
            "positions": row_positions("plain", rows, s),
        }
    if row["cache"] != "none":
        pool["logits_cache"] = guarded(axes.poison((slots_for(rows), 2, row["vocab"]), dtype))
        pool["logits_cache_source"] = axes.logits("random", rows, row["vocab"], s, dtype)
        each = row["cache"] == "a column each"
        pool["logits_cache_col"] = torch.tensor([1, 0] if each else 1, dtype=torch.int32)
    return pool


def _contract(row: Row) -> bool:
    return row["logits"] not in axes.UNUSUAL_LOGITS and row["contexts"] != "above 2^31"


def cases() -> Iterator[Case]:
    name = "v2.watermark_sample"
    yield from axes.cases_from(AXES, _pool, name=name, contract=_contract, limit=75)
    # Later blocks have several ids, and any of them may hold the maximum: by noise, or far above it.
    wide: axes.Axes = {**AXES, "vocab": (2500,), "peak": _PEAKS, "skipped": ("first", "no mask", "all")}
    plain = {**axes.plain(wide), "logits": "all equal"}
    rows = [{**plain, "peak": peak} for peak in _PEAKS]
    rows += [{**plain, "skipped": skipped} for skipped in wide["skipped"][1:]]
    rows += [{**plain, "peak": 1, "use_fp64": True}]
    yield from axes.cases_from(wide, _pool, name=name, contract=_contract, rows=rows, prefix="blocks: ")


# -- contexts that have occurred -----------------------------------------------------------------------------------

MASK_AXES = {
    "history": ("repeats", "no repeat", "all the same", "empty", "prompt repeats", "one token", "first token again"),
    "max_history": (None, 1, 3, 100),
    "include_prompt": (False, True),
    "skip_partial_context": (False, True),
    "offsets": ("none", "zero", "some", "equal row"),
    "width": (2, 1, 3, 5),
    "local": ("none", "block"),
    "mapping": ("permuted", "-1 at the end", "two rows of one slot"),
}
_PROMPT, _TOTAL = 4, 12


def _mask_pool(row: Row, s: Stream) -> Pool:
    (rows, _), width = axes.sized(row, 4, 0), row["width"]
    count = slots_for(rows)
    whole = _TOTAL if "size" not in row else 1024
    slots = map_rows(row["mapping"], rows)
    if row["local"] == "block":
        slots = [slots[0], slots[0], slots[0], slots[2]]
    tokens = s.integers(0, 3 if row["history"] == "repeats" else 900, (count, whole + 3)).int()
    if row["history"] == "all the same":
        tokens.fill_(7)
    total = {"empty": _PROMPT, "one token": _PROMPT + 1}.get(row["history"], whole)
    ends = []
    for slot in slots:
        past = tokens[slot, :total].tolist()
        if row["history"] == "prompt repeats":
            past = tokens[slot, :_PROMPT].tolist()
        elif row["history"] == "first token again":  # what padding would be, were it read
            past = tokens[slot, [0 if row["include_prompt"] else _PROMPT] * width].tolist()
        ends.append(([-1] * width + past)[-width:])
    pool: Pool = {
        "all_token_ids": guarded(tokens, fill=0),
        "req_indices": torch.tensor(slots, dtype=torch.int32),
        "prompt_lens": guarded(torch.full((count,), _PROMPT, dtype=torch.int32), fill=1),
        "total_lens": guarded(torch.full((count,), total, dtype=torch.int32), fill=2),
        "contexts": torch.tensor(ends, dtype=torch.int64),
        "max_history": row["max_history"],
        "include_prompt": row["include_prompt"],
        "skip_partial_context": row["skip_partial_context"],
    }
    if row["offsets"] != "none":
        given = {"zero": [0] * rows, "some": [0, 1, 2, 5], "equal row": [2] * rows}[row["offsets"]]
        pool["history_offsets"] = torch.tensor(given, dtype=torch.int32)
    if row["local"] == "block":
        pool["local_positions"] = torch.tensor([0, 1, 2, 0], dtype=torch.int32)
        pool["num_speculative_steps"] = 2
    return pool


def mask_cases() -> Iterator[Case]:
    yield from axes.cases_from(MASK_AXES, _mask_pool, name="v2.repeated_contexts", limit=60)


def prepare_mask_kernel(arm: Arm, pool: Pool) -> Call:
    """A launch of the kernel that looks for repeated contexts; both functions take another way on a CPU.

    With `prior_contexts` it is that of `draft_watermarking_mask`.
    """
    kernel = arm.get(MASK_KERNEL)
    rows, width = pool["contexts"].shape
    steps, prior = pool.get("steps"), pool.get("prior_contexts")
    offsets, local = pool.get("history_offsets", steps), pool.get("local_positions")
    if prior is not None and "DRAFT_CONTEXTS" not in inspect.signature(kernel.fn).parameters:
        raise ApiChange("the kernel knows no contexts of drafts")
    values: dict[str, Any] = {
        "output_ptr": pool["output"],
        "all_token_ids_ptr": pool["all_token_ids"],
        "req_indices_ptr": pool["req_indices"],
        "prompt_lens_ptr": pool["prompt_lens"],
        "total_lens_ptr": pool["total_lens"],
        "history_offsets_ptr": offsets,
        "history_offsets_stride": 0 if offsets is None else offsets.stride(0),
        "contexts_ptr": pool["contexts"],
        "context_stride": pool["contexts"].stride(0),
        "local_positions_ptr": local,
        "prior_contexts_ptr": prior,
        "prior_contexts_stride_0": 0 if prior is None else prior.stride(0),
        "prior_contexts_stride_1": 0 if prior is None else prior.stride(1),
        "steps_ptr": steps,
        "enabled_ptr": pool.get("enabled"),
        **strides(all_token_ids=pool["all_token_ids"], steps=steps),
        "CONTEXT_WIDTH": width,
        "NUM_SPECULATIVE_STEPS": pool.get("num_speculative_steps", 0) if prior is None else prior.shape[1],
        "MAX_HISTORY": pool["max_history"] or 0,
        "INCLUDE_PROMPT": pool["include_prompt"],
        "SKIP_PARTIAL_CONTEXT": pool.get("skip_partial_context", False),
        "HAS_HISTORY_OFFSETS": offsets is not None,
        "SPECULATIVE_CONTEXTS": local is not None,
        "DRAFT_CONTEXTS": prior is not None,
        "BLOCK": 4 if pool["all_token_ids"].shape[1] < 1000 else 128,
    }
    launched: Call = launch(arm, kernel, (rows,), values)
    return launched


DRAFT_AXES = {
    "step": (1, 0, 2),
    "max_history": (None, 1, 3),
    "include_prompt": (False, True),
    "enabled": ("all", "none", "first"),
    "history": MASK_AXES["history"],
    "prior": ("other", "the same", "first step the same", "last step the same"),
}


def _draft_pool(row: Row, s: Stream) -> Pool:
    rest = {"skip_partial_context": False, "offsets": "none", "width": 2, "local": "none", "mapping": "permuted"}
    pool = _mask_pool({**rest, **row}, s)
    rows, width = pool["contexts"].shape
    prior = s.integers(0, 900, (rows + 1, 3, width))
    if row["prior"] == "the same":
        prior[:rows] = pool["contexts"].unsqueeze(1)
    elif row["prior"] in ("first step the same", "last step the same"):
        prior[:rows, 0 if row["prior"].startswith("first") else max(0, row["step"] - 1)] = pool["contexts"]
    enabled = {"all": [True] * rows, "none": [False] * rows, "first": [True, *[False] * (rows - 1)]}[row["enabled"]]
    kept = ("all_token_ids", "req_indices", "prompt_lens", "total_lens", "contexts", "max_history", "include_prompt")
    return {
        **{name: pool[name] for name in kept},
        "prior_contexts": prior,
        "steps": torch.full((rows,), row["step"], dtype=torch.int64),
        "enabled": torch.tensor(enabled),
    }


def draft_cases() -> Iterator[Case]:
    yield from axes.cases_from(DRAFT_AXES, _draft_pool, name="v2.draft_watermarks", limit=40)
    # What is repeated only in the drafts of the block, inside the window, at its end and outside.
    drafted: axes.Axes = {"step": (1, 2), "max_history": (None, 1, 2, 3), "prior": DRAFT_AXES["prior"][1:]}
    rows = [{**axes.plain(DRAFT_AXES), "history": "empty", **row} for row in axes.product(drafted)]
    yield from axes.cases_from(DRAFT_AXES, _draft_pool, name="v2.draft_watermarks", rows=rows, prefix="drafted: ")
    # A context that begins before the request.
    partial: axes.Axes = {**DRAFT_AXES, "width": (5,)}
    rows = [{**axes.plain(partial), "history": "empty", "include_prompt": whole} for whole in (False, True)]
    yield from axes.cases_from(partial, _draft_pool, name="v2.draft_watermarks", rows=rows, prefix="partial: ")


# The kernel reads what the function on a CPU does not: strides, and steps that rows have of their own.
_DRAFT_KERNEL_AXES: axes.Axes = {
    **DRAFT_AXES,
    "step": ("some", *DRAFT_AXES["step"]),
    "prior": ("a step each", *DRAFT_AXES["prior"]),
    "width": MASK_AXES["width"],
    "mapping": MASK_AXES["mapping"],
}


def _output(row: Row) -> torch.Tensor:
    made: torch.Tensor = guarded(torch.full((axes.sized(row, 4, 0)[0],), 9, dtype=torch.uint8), fill=8)
    return made


def _draft_kernel_pool(row: Row, s: Stream) -> Pool:
    pool = _draft_pool({**row, "step": 0 if row["step"] == "some" else row["step"]}, s)
    rows = len(pool["contexts"])
    if row["step"] == "some":
        pool["steps"] = torch.tensor([2, 0, 1, 2])
    else:  # one step for all rows, as the runner expands it
        pool["steps"] = pool["steps"][:1].expand(rows)
    if row["prior"] == "a step each":
        pool["prior_contexts"][[0, 2, 3], [1, 0, 2]] = pool["contexts"][[0, 2, 3]]
    return {**pool, "prior_contexts": guarded(pool["prior_contexts"], fill=5), "output": _output(row)}


def mask_kernel_cases() -> Iterator[Case]:
    name = "v2.repeated_contexts_kernel"
    yield from axes.cases_from(
        MASK_AXES, lambda row, s: {**_mask_pool(row, s), "output": _output(row)}, name=name, limit=45
    )
    yield from axes.cases_from(_DRAFT_KERNEL_AXES, _draft_kernel_pool, name=name, limit=36, prefix="drafting: ")
    drafted: axes.Axes = {"max_history": (None, 1, 2, 3), "prior": ("a step each", *DRAFT_AXES["prior"][1:])}
    partial: axes.Axes = {"width": (5,), "include_prompt": (False, True), "prior": ("other",)}
    differ = [*axes.product(drafted), *axes.product(partial)]
    rows = [{**axes.plain(_DRAFT_KERNEL_AXES), "history": "empty", **row} for row in differ]
    yield from axes.cases_from(_DRAFT_KERNEL_AXES, _draft_kernel_pool, name=name, rows=rows, prefix="drafted: ")


# -- rejection sampling with a watermark ---------------------------------------------------------------------------


def rejection_cases() -> Iterator[Case]:
    names = ("drafts", "draft ids", "temperature", "logits", "draft logits", "vocab", "use_fp64", "dtype")
    chosen: dict[str, Any] = {
        "marked": ("all", "one slot", "none"),
        "skipped": ("no mask", "some", "all"),
        "width": (4, 1, 5),
    }
    chosen |= {name: REJECTION_AXES[name] for name in names}
    chosen["vocab"], chosen["logits"] = (40, 1025, 2500), ("two maxima", "random", "-inf some", "NaN everywhere")
    rest = {name: values[0] for name, values in REJECTION_AXES.items()}

    def build(row: Row, s: Stream) -> Pool:
        pool = step_pool({**rest, **row}, s)
        rows = pool["target_logits"].shape[0]
        marked = torch.zeros(max(SLOTS, len(row["drafts"]) + 1), dtype=torch.bool)
        slots = pool["idx_mapping"].tolist()
        marked[{"all": slots, "one slot": slots[:1], "none": []}[row["marked"]]] = True
        pool |= {
            "contexts": contexts("random", rows, row["width"], s, torch.int64, "contiguous"),
            "watermarking": marked,
            "watermark_key": KEYS["plain"],
        }
        if row["skipped"] != "no mask":
            pool["watermarking_skip_mask"] = (
                torch.arange(rows) % 2 == 0 if row["skipped"] == "some" else torch.ones(rows) > 0
            )
        step: Pool = pool
        return step

    yield from axes.cases_from(
        chosen, build, name="v2.rejection_watermark", contract=lambda row: contract({**rest, **row}), limit=40
    )
    # Every block of ids has a chance.
    flat = {**axes.plain(chosen), "logits": "all equal", "vocab": 2500, "drafts": (2, 2)}
    rows = [{**flat, "draft logits": kept} for kept in ("none", "noisy")]
    yield from axes.cases_from(chosen, build, name="v2.rejection_watermark", rows=rows, prefix="flat: ")


TARGETS = (
    Target(
        "v2.watermark_sample",
        (SAMPLE,),
        cases,
        by_name(SAMPLE),
        triton=True,
        rows=("return",),
        shapes=shapes.of_cases(cases, "vocabulary"),
    ),
    Target(
        "v2.repeated_contexts",
        (REPEATED,),
        mask_cases,
        by_name(REPEATED),
        shapes=shapes.of_cases(mask_cases),
    ),
    Target(
        "v2.repeated_contexts_kernel",
        (MASK_KERNEL,),
        mask_kernel_cases,
        prepare_mask_kernel,
        triton=True,
        shapes=shapes.of_cases(mask_kernel_cases),
    ),
    Target(
        "v2.draft_watermarks",
        (DRAFTING,),
        draft_cases,
        by_name(DRAFTING),
        shapes=shapes.of_cases(draft_cases),
    ),
    Target(
        "v2.rejection_watermark",
        (f"{MODULE}:philox_gumbel_block_argmax",),
        rejection_cases,
        by_name(*REJECTION_SAMPLE),
        uses=REJECTION_SAMPLE[:1],
        triton=True,
        shapes=shapes.of_cases(rejection_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
)
