"""V2 rejection sampling: draft tokens against target logits, up to the first rejected or the bonus token.

Draft logits are kept a slot and a step. Rows of logits lie between guard rows, and the last id is often likely, so
that a placeholder of -1 that is used as an id reads something telling.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, INF, NAN, Row, Stream, guarded
from difftest.cases.v2_batch import (
    GPU,
    POSITIONS,
    SEED_VALUES,
    SLOTS,
    Rows,
    block_of,
    guarded_logits,
    launch,
    map_rows,
    per_slot,
    row_positions,
    slot_seeds,
    strides,
)
from difftest.cases.versions import takes
from difftest.target import Arm, Call, Case, Invariant, Pool, Relation, Sampling, Target

SPEC = f"{GPU}.spec_decode"
REJECTION_SAMPLE = (
    f"{SPEC}.rejection_sampler_utils:rejection_sample",
    f"{SPEC}.probabilistic_rejection_sampler_utils:probabilistic_rejection_sample",
    f"{SPEC}.rejection_sampler:probabilistic_rejection_sample",
)
BLOCK_KERNEL = f"{SPEC}.rejection_sampler_utils:_compute_cumulative_log_p_kernel"
STRICT = (f"{SPEC}.rejection_sampler:strict_rejection_sample", f"{SPEC}.rejection_sample:rejection_sample")
SYNTHETIC = (f"{SPEC}.synthetic_rejection_sampler_utils:synthetic_rejection_sample",)
STEPS = 2
"""Draft tokens that a request has at most."""

PATTERNS = (
    *("two maxima", "random", "last id likely", "integer grid", "bf16 grid", "near ties", "one-hot", "all equal"),
    *("-inf some", "-inf all but one", "-inf everywhere", "+inf once", "NaN at the end", "NaN everywhere"),
)
DRAFT_LOGITS = (
    "noisy",
    "none",
    "same as target",
    "random",
    "narrower",
    "sure of the draft",
    "-inf some",
    "NaN at the start",
)
AXES = {
    "drafts": ((1, 1), (2, 1), (2, 2), (0, 0), (0, 2), (1, 0, 2)),
    "draft ids": (
        *("likely", "random", "-1 first", "-1 middle", "-1 everywhere", "-1 in one request", "second likeliest"),
        *("id 0", "id V-1", "id V"),
    ),
    "temperature": axes.spreads(1.0, (0.0, 0.6, 100.0, 1e-3), 0.0),
    "logits": PATTERNS,
    "draft logits": DRAFT_LOGITS,
    "vocab": (40, 2, 1023, 1025, 1500, 8193),
    "mapping": ("permuted", "identity"),
    "rates": ("none", "0", "1", "falling"),
    "use_fp64": ("default", True, False),
    "dtype": ("float32", "bfloat16", "float16"),
    "draft dtype": ("float32", "bfloat16"),
    "id dtype": ("int32", "int64"),
    "layout": ("contiguous", "padded rows", "every other row"),
    "seed": SEED_VALUES[:4],
    "position": ("plain", "zero", "above 2^30"),
}


def target_logits(pattern: str, rows: int, vocab: int, s: Stream, dtype: torch.dtype, layout: str) -> torch.Tensor:
    """Logits [rows, vocab] between guard rows; two patterns more: the last, or the first, id is likeliest."""
    ends = {"last id likely": -1, "first id likely": 0}
    logits = guarded_logits("all zero" if pattern in ends else pattern, rows, vocab, s, dtype, layout)
    if pattern in ends:
        logits[:, ends[pattern]] = 12.0
    made: torch.Tensor = logits
    return made


def draft_tokens(pattern: str, rows: Rows, logits: torch.Tensor, s: Stream) -> torch.Tensor:
    """`draft_sampled` [rows], int64: a request's last token, then its draft tokens, which the row before judges."""
    vocab = logits.shape[1]
    finite = logits.double().nan_to_num(nan=0.0, posinf=1e300, neginf=-1e300)
    if vocab < 32_000:
        order = torch.sort(finite, dim=-1, descending=True, stable=True).indices
    else:  # a sort of a timing shape takes seconds
        order = finite.topk(2).indices
    flat: list[int] = []
    drawn = axes.draft_ids("random" if "like" in pattern else pattern, rows.drafts, vocab, s).tolist()
    for request, count in enumerate(rows.drafts):
        first, done = rows.first[request], sum(rows.drafts[:request])
        flat.append(s.integer(0, vocab))
        for step in range(count):
            place = {
                "likely": (first + step) % 2,
                "second likeliest": 1,
                "unlikeliest": vocab - 1,
                "likeliest, then unlikeliest": 0 if step == 0 else vocab - 1,
            }.get(pattern)
            flat.append(drawn[done + step] if place is None else int(order[first + step, place % vocab]))
    return torch.tensor(flat)


def kept_draft_logits(
    pattern: str, rows: Rows, logits: torch.Tensor, drafts: torch.Tensor, s: Stream, dtype: torch.dtype
) -> torch.Tensor | None:
    """Draft logits [slots, steps, vocab] between guard slots, or None; slots and steps without a draft are stale."""
    if pattern == "none":
        return None
    vocab = logits.shape[1]
    whole = s.normal_like(max(SLOTS, len(rows.slots) + 1), max([STEPS, *rows.drafts]), vocab, dtype=dtype)
    for request, slot in enumerate(rows.slots):
        for step in range(rows.drafts[request]):
            row = rows.first[request] + step
            target = logits[row].double()
            chosen = int(drafts[row + 1])
            if pattern == "same as target":
                values = target
            elif pattern == "random":
                values = s.normal_like(vocab, scale=2.0).double()
            elif pattern == "sure of the draft":
                values = torch.full((vocab,), -INF, dtype=torch.float64)
                values[min(max(chosen, 0), vocab - 1)] = 3.0
            else:
                values = target.nan_to_num(nan=0.0, posinf=50.0, neginf=-50.0) + s.normal_like(vocab).double()
                if pattern == "-inf some":
                    values[s.integers(0, 3, (vocab,)) == 0] = -INF
                elif pattern == "NaN at the start":
                    values[0] = NAN
            if slot >= 0:
                whole[slot, step] = axes.to_dtype(values, dtype)
    if pattern == "narrower" and vocab > 4:
        whole = whole[..., : vocab - 3].contiguous()
    made: torch.Tensor = guarded(whole, fill=-1.0)
    return made


def step_pool(row: Row, s: Stream) -> Pool:
    """Everything that a verification step takes."""
    slots = map_rows(row["mapping"], len(row["drafts"]), max(SLOTS, len(row["drafts"]) + 1))
    rows = Rows(tuple(row["drafts"]), tuple(slots))
    logits = target_logits(row["logits"], rows.count, row["vocab"], s, FLOATS[row["dtype"]], row["layout"])
    if row["draft ids"].startswith("-1"):
        logits[:, -1] = 12.0  # a placeholder used as an id reads the end of the row before
    drafts = draft_tokens(row["draft ids"], rows, logits, s)
    kept = kept_draft_logits(row["draft logits"], rows, logits, drafts, s, FLOATS[row["draft dtype"]])
    pool: Pool = {
        "target_logits": logits,
        "draft_logits": kept,
        "draft_sampled": drafts.to(axes.IDS[row["id dtype"]]),
        **rows.pool(),
        "pos": row_positions(row["position"], rows.count, s),
        "temperature": per_slot(row["temperature"].over(len(slots)), slots, 0.7, torch.float32),
        "seed": slot_seeds(row["seed"], slots, s),
        "num_speculative_steps": max([STEPS, *row["drafts"]]),
    }
    if row["use_fp64"] != "default":
        pool["use_fp64"] = row["use_fp64"]
    if row["rates"] != "none":
        falling = row["rates"] == "falling"
        pool["synthetic_conditional_rates"] = torch.tensor([0.8, 0.3] if falling else [float(row["rates"])] * STEPS)
    return pool


def contract(row: Row) -> bool:
    return (
        len(row["drafts"]) > 0
        and row["draft ids"] not in axes.UNUSUAL_DRAFT_IDS
        and row["logits"] not in axes.UNUSUAL_LOGITS
        and row["draft logits"] != "NaN at the start"
    )


def _many(name: str, **more: Any) -> Iterator[Case]:
    """Many requests at once: differences that a draw in twenty shows."""
    for number, pattern in enumerate(("noisy", "none", "same as target")):
        row = {**axes.plain(AXES), "drafts": (2,) * 8, "vocab": 12 + 26 * number, "draft logits": pattern, **more}
        label = f"8 requests of 2 drafts, draft logits {pattern}"
        yield Case(label, lambda row=row, label=label: step_pool(row, axes.stream(name, label)))  # type: ignore[misc]


def cases() -> Iterator[Case]:
    name = "v2.rejection_sample"
    many = list(_many(name))
    single = list(axes.cases_from(AXES, step_pool, name=name, contract=contract, limit=62))
    none = [{**axes.plain(AXES), "drafts": ()}]
    single += axes.cases_from(AXES, step_pool, name=name, contract=contract, rows=none)
    together = axes.cases_from(AXES, step_pool, name=name, contract=contract, rows=_together(), prefix="together: ")
    yield from (*single[:1], *many, *together, *single[1:])


def _together() -> Iterator[Row]:
    """Values that tell only when they meet."""
    plain = {**axes.plain(AXES), "drafts": (2, 2)}
    greedy = {**plain, "temperature": AXES["temperature"][5]}
    for ids in ("-1 first", "-1 everywhere"):
        yield {**greedy, "draft ids": ids, "logits": "first id likely"}
        yield {**greedy, "draft ids": ids, "rates": "1"}
        yield {**plain, "draft ids": ids, "logits": "first id likely", "draft logits": "none"}
    # A lane beyond the vocabulary that holds 0 is larger than all that is in it.
    yield {**greedy, "logits": "negative", "draft ids": "likely"}
    yield {**plain, "logits": "negative", "draft logits": "none", "vocab": 1025}
    # A draft that neither model can emit.
    for kept in ("same as target", "sure of the draft", "none"):
        yield {**plain, "logits": "-inf some", "draft ids": "unlikeliest", "draft logits": kept}
    # A block of ids of which none is possible, beside one that has some.
    for temperature in (plain["temperature"], greedy["temperature"]):
        yield {**plain, "temperature": temperature, "logits": "-inf all but one", "vocab": 8200, "draft logits": "none"}
    # The first draft is taken, the second refused: what is drawn instead depends on what the second was drawn from.
    for kept in ("sure of the draft", "same as target", "none"):
        second = {**plain, "logits": "-inf all but one", "draft ids": "likeliest, then unlikeliest"}
        yield {**second, "draft logits": kept}
    yield {**plain, "draft logits": "narrower", "logits": "last id likely", "draft ids": "id V-1"}
    # The last row is that of a draft when the request has fewer than the most.
    for one in (plain, greedy):
        yield {**one, "drafts": (2, 1), "layout": axes.FAR_ROWS}


def prepare(arm: Arm, pool: Pool) -> Call:
    """A call of the rejection sampler as each version takes it."""
    function = arm.first(*REJECTION_SAMPLE)
    return Call(function, kwargs=_arguments(arm, function, pool))


def _arguments(arm: Arm, function: Any, pool: Pool) -> dict[str, Any]:
    values = dict(pool)
    if "expanded_idx_mapping" not in takes(function) and pool["draft_logits"] is not None:
        values["draft_logits"] = pool["draft_logits"][pool["idx_mapping"].long()]
        arm.note("draft logits are one a request, taken from their slots")
    return arm.bind(function, values, seeds="seed")


class _Recorder:
    """Stands in an arm's module for a kernel and keeps copies of what it was launched with."""

    def __init__(self, kernel: Any, names: tuple[str, ...], kept: dict[str, Any]) -> None:
        self.kernel = kernel
        self.names = names
        self.kept = kept

    def __getitem__(self, grid: Any) -> Any:
        launched = self.kernel[grid]
        signature = inspect.signature(self.kernel.fn)

        def call(*args: Any, **kwargs: Any) -> Any:
            known = {k: v for k, v in kwargs.items() if k in signature.parameters}
            given = signature.bind_partial(*args, **known).arguments
            for name in self.names:
                self.kept[name.removesuffix("_ptr")] = given[name].clone()
            return launched(*args, **kwargs)

        return call


def prepare_scores(arm: Arm, pool: Pool) -> Call:
    """The best score and id of each block when a token is resampled, before the best block is chosen."""
    function = arm.first(*REJECTION_SAMPLE)
    home = getattr(function, "__globals__", {})
    insert = "_insert_resampled_kernel"
    names = ("resampled_local_max_ptr", "resampled_local_argmax_ptr")
    kwargs = _arguments(arm, function, pool)

    def scores() -> dict[str, Any]:
        kept: dict[str, Any] = {}
        kernel = home[insert]
        home[insert] = _Recorder(kernel, names, kept)
        try:
            sampled, num_sampled = function(**kwargs)
        finally:
            home[insert] = kernel
        return {**kept, "num_sampled": num_sampled, "sampled": sampled}

    return Call(scores)


def scores_cases() -> Iterator[Case]:
    name = "v2.rejection_scores"
    chosen = {key: AXES[key] for key in AXES if key not in ("draft ids", "id dtype", "rates", "position", "mapping")}
    rest = {"draft ids": "random", "id dtype": "int32", "rates": "none", "position": "plain", "mapping": "permuted"}

    def build(row: Row, s: Stream) -> Pool:
        return step_pool({**rest, **row}, s)

    yield from _many(name, **{"draft ids": "random"})
    yield from axes.cases_from(chosen, build, name=name, contract=lambda row: contract({**rest, **row}), limit=30)
    narrow = {**axes.plain(chosen), "drafts": (2, 2), "draft logits": "narrower"}
    rows = [narrow, {**narrow, "temperature": AXES["temperature"][6]}]
    yield from axes.cases_from(chosen, build, name=name, rows=rows, prefix="narrow: ")


def block_cases() -> Iterator[Case]:
    chosen = {key: AXES[key] for key in AXES if key not in ("rates", "id dtype", "layout", "position")}
    rest = {"id dtype": "int32", "rates": "none", "position": "plain", "layout": "padded rows"}

    def build(row: Row, s: Stream) -> Pool:
        return {**step_pool({**rest, **row}, s), "use_block_verification": True}

    name = "v2.rejection_block"
    yield from axes.cases_from(chosen, build, name=name, contract=lambda row: contract({**rest, **row}), limit=48)
    # A placeholder in the second place ends the block before it.
    ends: axes.Axes = {"draft ids": ("-1 middle", "-1 first"), "draft logits": ("noisy", "none")}
    rows = [{**axes.plain(chosen), "drafts": (2, 2), **row} for row in axes.product(ends)]
    yield from axes.cases_from(chosen, build, name=name, rows=rows, prefix="ends: ")
    # The last row is that of a draft when the request has fewer than the most.
    chosen |= {"layout": ("padded rows", axes.FAR_ROWS)}
    rows = [{**axes.plain(chosen), "drafts": (2, 1), "layout": axes.FAR_ROWS}]
    yield from axes.cases_from(chosen, build, name=name, rows=rows)


# -- the older samplers --------------------------------------------------------------------------------------------

OLD_AXES = {
    "drafts": ((2, 1), (2, 2), (0, 0), (0, 2), (1, 0, 2, 2)),
    "agreement": ("first", "all", "none", "last only", "-1 drafts"),
    "target dtype": ("int64", "int32"),
    "draft dtype": ("int32", "int64"),
    "rates": ("falling", "0", "1"),
    "seed": SEED_VALUES,
    "position": POSITIONS,
}


def _old_pool(row: Row, s: Stream) -> Pool:
    slots = map_rows("permuted", len(row["drafts"]))
    rows = Rows(tuple(row["drafts"]), tuple(slots))
    sampled = s.integers(0, 50, (rows.count,))
    drafts = torch.full_like(sampled, 3)
    for request, count in enumerate(rows.drafts):
        for step in range(count):
            agrees = {"first": step == 0, "all": True, "last only": step == count - 1}.get(row["agreement"], False)
            at = rows.first[request] + step
            drafts[at + 1] = sampled[at] if agrees else (sampled[at] + 1) % 50
            if row["agreement"] == "-1 drafts":
                drafts[at + 1] = -1
    later = max([STEPS, *row["drafts"]]) - 1
    rate = {"falling": 0.7, "0": 0.0, "1": 1.0}[row["rates"]]
    drafts = drafts.to(axes.IDS[row["draft dtype"]])
    return {
        "target_sampled": sampled.to(axes.IDS[row["target dtype"]]),
        "draft_sampled": drafts,
        "input_ids": drafts.clone(),
        **rows.pool(),
        "pos": row_positions(row["position"], rows.count, s),
        "seed": slot_seeds(row["seed"], slots, s),
        "num_speculative_steps": max([STEPS, *row["drafts"]]),
        "base_acceptance_rate": rate,
        "decay_factor": 0.5 if row["rates"] == "falling" else 1.0,
        "acceptance_rates": torch.tensor([rate, *[rate / 2 if row["rates"] == "falling" else rate] * later]),
    }


def strict_cases() -> Iterator[Case]:
    chosen = {key: OLD_AXES[key] for key in ("drafts", "agreement", "target dtype", "draft dtype")}
    rest = {"rates": "1", "seed": "plain", "position": "plain"}

    def build(row: Row, s: Stream) -> Pool:
        return _old_pool({**rest, **row}, s)

    yield from axes.cases_from(chosen, build, name="v2.strict_rejection_sample")


def synthetic_cases() -> Iterator[Case]:
    yield from axes.cases_from(OLD_AXES, _old_pool, name="v2.synthetic_rejection_sample", limit=60)


def _old(symbols: tuple[str, ...]) -> Any:
    def prepare_old(arm: Arm, pool: Pool) -> Call:
        function = arm.first(*symbols)
        return Call(function, kwargs=arm.bind(function, pool, seeds="seed"))

    return prepare_old


# -- kernels -------------------------------------------------------------------------------------------------------

UTILS = (f"{SPEC}.rejection_sampler_utils", f"{SPEC}.probabilistic_rejection_sampler_utils")
RESAMPLE = tuple(f"{module}:_resample_kernel" for module in UTILS)
INSERT = tuple(f"{module}:_insert_resampled_kernel" for module in UTILS)

KERNEL_AXES = {
    "rejected": ("first", "second", "bonus", "mixed"),
    "draft ids": ("likely", "random", "-1 everywhere", "id V-1"),
    "temperature": axes.spreads(1.0, (0.0, 0.6, 100.0), 0.0),
    "logits": ("random", "two maxima", "last id likely", "near ties", "-inf some", "-inf everywhere", "NaN everywhere"),
    "draft logits": ("noisy", "none", "same as target", "random", "sure of the draft"),
    "vocab": (24, 1, 15, 16, 17),
    "USE_FP64": (False, True),
    "seed": SEED_VALUES,
}


def _resample_pool(row: Row, s: Stream) -> Pool:
    requests, most = axes.sized(row, 2, 2)
    rest = {
        "drafts": (most,) * requests,
        "use_fp64": "default",
        "rates": "none",
        "id dtype": "int32",
        "position": "plain",
    }
    more = {"mapping": "permuted", "dtype": "float32", "draft dtype": "float32", "layout": "padded rows"}
    pool = step_pool({"drafts": (most,) * requests, **rest, **more, **row}, s)
    blocks = -(-row["vocab"] // block_of(row["vocab"]))
    steps = {"first": (0, 0), "second": (1, 1), "bonus": (2, 2), "mixed": (0, 2)}[row["rejected"]]
    best = torch.float64 if row["USE_FP64"] else torch.float32
    return {
        **{key: value for key, value in pool.items() if key not in ("num_speculative_steps",)},
        "resampled_local_argmax": guarded(torch.full((requests, blocks), -7), fill=-9),
        "resampled_local_max": guarded(torch.full((requests, blocks), 77.0, dtype=best), fill=99.0),
        "target_rejected_logsumexp": guarded(s.normal_like(requests) + 3.0, fill=50.0),
        "draft_rejected_logsumexp": guarded(s.normal_like(requests) + 3.0, fill=50.0),
        "rejected_step": torch.tensor([steps[request % 2] for request in range(requests)], dtype=torch.int32),
        "USE_FP64": row["USE_FP64"],
    }


def resample_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        KERNEL_AXES,
        _resample_pool,
        name="v2.resample_kernel",
        contract=lambda row: row["logits"] not in axes.UNUSUAL_LOGITS,
        limit=45,
    )


def prepare_resample(arm: Arm, pool: Pool) -> Call:
    """A launch of the kernel that resamples a rejected token, with blocks of 16 ids, without block verification."""
    target, drafts = pool["target_logits"], pool["draft_logits"]
    pointers = {
        f"{name}_ptr": value for name, value in pool.items() if value is None or isinstance(value, torch.Tensor)
    }
    values = {
        **pointers,
        **strides(
            resampled_local_argmax=pool["resampled_local_argmax"],
            resampled_local_max=pool["resampled_local_max"],
            target_logits=target,
        ),
        "draft_logits_stride_0": 0 if drafts is None else drafts.stride(0),
        "draft_logits_stride_1": 0 if drafts is None else drafts.stride(1),
        "temp_ptr": pool["temperature"],
        "vocab_size": target.shape[1],
        "BLOCK_SIZE": block_of(target.shape[1]),
        "HAS_DRAFT_LOGITS": drafts is not None,
        "USE_FP64": pool["USE_FP64"],
        "USE_BLOCK_VERIFICATION": False,
        "cumulative_log_p_ptr": None,
        **_no_watermark(),
    }
    kernel = arm.first(*RESAMPLE)
    launched: Call = launch(arm, kernel, tuple(pool["resampled_local_max"].shape), values)
    return launched


def _no_watermark() -> Mapping[str, Any]:
    return {
        "contexts_ptr": None,
        "contexts_stride": 0,
        "watermarking_ptr": None,
        "watermarking_skip_mask_ptr": None,
        "watermark_key_0": 0,
        "watermark_key_1": 0,
        "CONTEXT_WIDTH": 1,
        "WATERMARK": False,
        "DEDUPLICATE_CONTEXTS": False,
    }


INSERT_AXES = {
    "accepted": ("first rejected", "one accepted", "all accepted", "mixed"),
    "scores": ("random", "ties", "-inf", "NaN in one block", "NaN everywhere", "+inf"),
    "blocks": (3, 1, 2, 4),
    "temperature": axes.spreads(1.0, (0.0,), 0.0),
}


def _insert_pool(row: Row, s: Stream) -> Pool:
    requests, most = axes.sized(row, 2, 2)
    slots = map_rows("permuted", requests)
    rows = Rows((most,) * requests if "size" in row else (2, 1), tuple(slots))
    accepted = {"first rejected": [0, 0], "one accepted": [1, 1], "all accepted": [2, 1], "mixed": [0, 1]}
    kept = (accepted[row["accepted"]] * requests)[:requests]
    scores = s.normal_like(requests, row["blocks"])
    if row["scores"] == "ties":
        scores = torch.full_like(scores, 1.5)
    elif row["scores"] == "NaN in one block":
        scores[:, 0] = NAN
    elif row["scores"] != "random":
        scores.fill_({"-inf": -INF, "NaN everywhere": NAN, "+inf": INF}[row["scores"]])
    return {
        "sampled": guarded(torch.full((requests, most + 1), -7), fill=-9),
        "num_sampled": guarded(torch.tensor(kept, dtype=torch.int32), fill=0),
        "resampled_local_argmax": guarded(s.integers(0, 99, (requests, row["blocks"])), fill=77),
        "resampled_local_max": guarded(scores, fill=99.0),
        **rows.pool(),
        "temp": per_slot(row["temperature"].over(requests), slots, 0.7, torch.float32),
    }


def _blocks(size: shapes.Size) -> Row:
    """Blocks of 1024 ids of a vocabulary of 151,936."""
    return {"blocks": 149}


def insert_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        INSERT_AXES,
        _insert_pool,
        name="v2.insert_resampled_kernel",
        contract=lambda row: row["scores"] in ("random", "ties"),
    )


def prepare_insert(arm: Arm, pool: Pool) -> Call:
    """A launch of the kernel that puts the resampled token behind the accepted ones."""
    pointers = {f"{name}_ptr": value for name, value in pool.items()}
    blocks = pool["resampled_local_max"].shape[1]
    values = {
        **pointers,
        **strides(
            sampled=pool["sampled"],
            resampled_local_argmax=pool["resampled_local_argmax"],
            resampled_local_max=pool["resampled_local_max"],
        ),
        "resample_num_blocks": blocks,
        "PADDED_RESAMPLE_NUM_BLOCKS": 1 << (blocks - 1).bit_length(),
    }
    launched: Call = launch(arm, arm.first(*INSERT), (len(pool["sampled"]),), values)
    return launched


# -- what holds of each call ---------------------------------------------------------------------------------------


def committed(result: Any) -> list[list[int]]:
    """The ids that each request committed."""
    sampled, counts = result
    return [row[:count] for row, count in zip(sampled.tolist(), counts.tolist(), strict=True)]


def _possible(given: Pool, after: Pool, result: Any) -> str | None:
    """Each id is in the vocabulary and possible in its row; as many as drafts and a bonus token at most."""
    logits, first = given["target_logits"], given["cu_num_logits"].tolist()
    vocab = logits.shape[1]
    for request, ids in enumerate(committed(result)):
        if not 1 <= len(ids) <= first[request + 1] - first[request]:
            return f"request {request} commits {len(ids)} ids"
        for place, token in enumerate(ids):
            row = logits[first[request] + place]
            if not 0 <= token < vocab:
                return f"request {request} commits id {token} of {vocab}"
            if row[token] == -INF and (row > -INF).any() and "synthetic_conditional_rates" not in given:
                return f"request {request} commits id {token}, which is impossible in its row {place}"
    return None


INVARIANTS = (
    Invariant("a committed id is in the vocabulary and possible", _possible),
    relations.unchanged(
        "target_logits", "draft_logits", "draft_sampled", "temperature", "seed", "pos", "cu_num_logits"
    ),
)


def _some_committed(given: Pool, after: Pool, result: Any) -> str | None:
    """Each request commits one id at least, and no more than it has rows; ids are the target's own."""
    first, known = (
        given["cu_num_logits"].tolist(),
        {*given["target_sampled"].tolist(), *given["draft_sampled"].tolist()},
    )
    for request, ids in enumerate(committed(result)):
        if not 1 <= len(ids) <= first[request + 1] - first[request]:
            return f"request {request} commits {len(ids)} ids"
        if stranger := next((token for token in ids if token not in known or token < 0), None):
            return f"request {request} commits id {stranger}, which was neither sampled nor drafted"
    return None


_OLD_INVARIANTS = (
    Invariant("a committed id was sampled from the target or drafted", _some_committed),
    relations.unchanged("target_sampled", "draft_sampled", "cu_num_logits"),
)


def _reversed(pool: Pool) -> Pool | None:
    """The requests from the last to the first, with their rows."""
    first = pool["cu_num_logits"].tolist()
    order = list(reversed(range(len(first) - 1)))
    if len(order) < 2:
        return None
    rows = [row for request in order for row in range(first[request], first[request + 1])]
    names = ("target_logits", "draft_sampled", "expanded_idx_mapping", "expanded_local_pos", "pos")
    ends = [0]
    for request in order:
        ends.append(ends[-1] + first[request + 1] - first[request])
    return {
        **pool,
        **{name: relations.take(pool[name], rows) for name in names},
        "idx_mapping": pool["idx_mapping"].flip(0),
        "cu_num_logits": torch.tensor(ends, dtype=torch.int32),
    }


def _reversed_alike(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
    said: str | None = relations.unlike(committed(result)[::-1], committed(other_result), "request")
    return said


def _greedy_with_other_seeds(pool: Pool) -> Pool | None:
    greedy = (pool["temperature"][pool["idx_mapping"].long()] == 0).all()
    drafts = len(pool["draft_sampled"]) - len(pool["idx_mapping"])
    if not greedy or not drafts or "synthetic_conditional_rates" in pool:
        return None
    return {**pool, "seed": pool["seed"] + 77}


def _alike(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
    said: str | None = relations.unlike(committed(result), committed(other_result), "request")
    return said


RELATIONS = (
    Relation("requests in another order have the same results", _reversed, _reversed_alike, every=relations.EVERY),
    Relation("a greedy batch has no use for seeds", _greedy_with_other_seeds, _alike, every=relations.EVERY),
)


def _sampling_pool(number: int) -> Pool:
    """Alike requests of two drafts over eight ids; each has a seed of its own, another one for each number."""
    requests, most = 16, 2
    target = torch.stack([shapes.LAW, shapes.LAW.roll(3), shapes.LAW.flip(0)]).log()
    draft = torch.stack([shapes.LAW.roll(1), shapes.LAW.roll(2)]).log()
    rows = Rows((most,) * requests, tuple(range(requests)))
    # Each likely draft by turns: whether it is accepted, and what follows, is what is random here.
    drafts = [[7, 4 + request % 2, 1 + request % 3] for request in range(requests)]
    return {
        "target_logits": target.repeat(requests, 1),
        "draft_logits": draft.repeat(requests, 1, 1),
        "draft_sampled": torch.tensor(drafts).flatten(),
        **rows.pool(),
        "pos": torch.arange(rows.count) + 5,
        "temperature": torch.ones(requests),
        "seed": torch.arange(requests) + 1000 * number,
        "num_speculative_steps": most,
    }


def _committed_ids(result: Any) -> Any:
    """The ids that each request committed, [requests, 3], -1 where it committed none."""
    sampled, counts = (part.long() for part in result[:2])
    none = torch.arange(sampled.shape[1]) >= counts[:, None]
    return sampled.masked_fill(none, -1).numpy()


SAMPLING = Sampling(_sampling_pool, _committed_ids, 8, ("return[0]", "return[1]"))

TARGETS = (
    Target(
        "v2.rejection_sample",
        REJECTION_SAMPLE,
        cases,
        prepare,
        triton=True,
        sampling=SAMPLING,
        rows=("return[0]", "return[1]"),
        invariants=INVARIANTS,
        relations=RELATIONS,
        shapes=shapes.of_cases(cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
    Target(
        "v2.rejection_scores",
        REJECTION_SAMPLE,
        scores_cases,
        prepare_scores,
        needs=tuple(f"{module}:_insert_resampled_kernel" for module in UTILS),
        triton=True,
        shapes=shapes.of_cases(scores_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
    Target(
        "v2.rejection_block",
        (BLOCK_KERNEL,),
        block_cases,
        prepare,
        uses=(REJECTION_SAMPLE[0],),
        triton=True,
        sampling=SAMPLING,
        rows=("return[0]", "return[1]"),
        invariants=INVARIANTS,
        relations=RELATIONS,
        shapes=shapes.of_cases(block_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
    Target(
        "v2.strict_rejection_sample",
        STRICT,
        strict_cases,
        _old(STRICT),
        triton=True,
        invariants=_OLD_INVARIANTS,
        shapes=shapes.of_cases(strict_cases, "drafts"),
    ),
    Target(
        "v2.synthetic_rejection_sample",
        SYNTHETIC,
        synthetic_cases,
        _old(SYNTHETIC),
        triton=True,
        invariants=_OLD_INVARIANTS,
        shapes=shapes.of_cases(synthetic_cases, "drafts"),
    ),
    Target(
        "v2.resample_kernel",
        RESAMPLE,
        resample_cases,
        prepare_resample,
        triton=True,
        shapes=shapes.of_cases(resample_cases, "vocabulary", "drafts", most=shapes.MOST // 2),
    ),
    Target(
        "v2.insert_resampled_kernel",
        INSERT,
        insert_cases,
        prepare_insert,
        triton=True,
        shapes=shapes.of_cases(insert_cases, "drafts", also=_blocks),
    ),
)
