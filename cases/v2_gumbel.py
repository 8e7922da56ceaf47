"""V2 sampling by the Gumbel-max trick: logits [rows, vocab] to one token id a row; temperature; the raw kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases.axes import FLOATS, Row, Stream, guarded
from difftest.cases.v2_batch import (
    GPU,
    MAPPINGS,
    POSITIONS,
    SEED_VALUES,
    SLOTS,
    block_of,
    launch,
    map_rows,
    per_slot,
    row_positions,
    slot_seeds,
    strides,
)
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Sampling, Target

GUMBEL_SAMPLE = (f"{GPU}.sample.gumbel:gumbel_sample", f"{GPU}.sampler:gumbel_sample")
APPLY_TEMPERATURE = (f"{GPU}.sample.gumbel:apply_temperature",)
KERNEL = (f"{GPU}.sample.gumbel:_gumbel_sample_kernel", f"{GPU}.sampler:_gumbel_sample_kernel")
CACHES = ("none", "one column", "a column each", "wider than the vocabulary", "other dtype", "no column")
"""Where the sampled logits are kept for the rejection sampler: [slots, columns, vocab], and which column."""

PATTERNS = (
    "random",
    "integer grid",
    "bf16 grid",
    "near ties",
    "two maxima",
    "one-hot",
    "all equal",
    "-0.0",
    "huge",
    "-inf some",
    "-inf all but one",
    "-inf everywhere",
    "+inf once",
    "+inf twice",
    "NaN at the start",
    "NaN at the end",
    "NaN everywhere",
)
TEMPERATURES = axes.spreads(0.9, (0.0, 1.0, 1e-6, 100.0, float("inf")), 0.0)

_RANDOM_AND_GREEDY = axes.Spread("0.9 and 0", (0.9, 0.0))

SAMPLE_AXES = {
    "logits": PATTERNS,
    "temperature": TEMPERATURES,
    "mapping": MAPPINGS,
    "cache": CACHES,
    "vocab": (50, 1, 2, 1023, 1024, 1025, 1500, 2049),
    "rows": (3, 1, 0, 7),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "offset storage", "transposed", "expanded"),
    "apply_temperature": (True, False),
    "is_drafting": (False, True),
    "use_fp64": ("default", True, False),
    "seed": SEED_VALUES,
    "position": POSITIONS,
    "position layout": ("contiguous", "every other row", "offset storage"),
}


def _sample_pool(row: Row, s: Stream) -> Pool:
    rows, vocab, dtype = row["rows"], row["vocab"], FLOATS[row["dtype"]]
    mapping = map_rows(row["mapping"], rows)
    pool: Pool = {
        "logits": axes.logits(row["logits"], rows, vocab, s, dtype, row["layout"]),
        "expanded_idx_mapping": torch.tensor(mapping, dtype=torch.int32),
        "temperature": per_slot(row["temperature"].over(rows), mapping, 0.7, torch.float32),
        "seed": slot_seeds(row["seed"], mapping, s),
        "pos": axes.lay_out(row_positions(row["position"], rows, s), row["position layout"]),
        "apply_temperature": row["apply_temperature"],
        "is_drafting": row["is_drafting"],
    }
    if row["use_fp64"] != "default":
        pool["use_fp64"] = row["use_fp64"]
    slots = max(SLOTS, max(mapping, default=0) + 1)
    if row["cache"] != "none":
        wide = vocab + 5 if row["cache"] == "wider than the vocabulary" else vocab
        other = torch.bfloat16 if dtype is torch.float32 else torch.float32
        cache_dtype = other if row["cache"] == "other dtype" else dtype
        pool["logits_cache"] = guarded(axes.poison((slots, 2, wide), cache_dtype))
        if row["cache"] == "one column":
            pool["logits_cache_col"] = torch.tensor(1, dtype=torch.int32)
        elif row["cache"] != "no column":
            pool["logits_cache_col"] = torch.tensor([(0, 1, 1)[i % 3] for i in range(rows)], dtype=torch.int32)
    return pool


def _sample_contract(row: Row) -> bool:
    return (
        row["logits"] not in axes.UNUSUAL_LOGITS
        and row["layout"] not in ("transposed", "expanded")
        and row["cache"] not in ("other dtype", "no column")
        and row["temperature"].name != "inf"
    )


def sample_cases() -> Iterator[Case]:
    yield from axes.cases_from(SAMPLE_AXES, _sample_pool, name="v2.gumbel_sample", contract=_sample_contract, limit=90)
    # Noise differs by an ulp only now and then: many rows at once, of two blocks.
    for seed, pattern in enumerate(("random", "all equal", "near ties")):
        row = {**axes.plain(SAMPLE_AXES), "logits": pattern, "rows": 24, "vocab": 64 + seed, "cache": "a column each"}
        label = f"24 rows, {pattern}"
        yield Case(label, lambda row=row, label=label: _sample_pool(row, axes.stream("v2.gumbel_sample", label)))  # type: ignore[misc]
    # What the blocks of a row have in common: equal maxima, sums that only float64 tells apart.
    blocks: axes.Axes = {
        "logits": ("all equal", "far from zero", "negative", "-inf everywhere", "+inf twice"),
        "use_fp64": ("default", True),
    }
    plain = {**axes.plain(SAMPLE_AXES), "temperature": _RANDOM_AND_GREEDY, "rows": 8, "vocab": 2050}
    rows = [{**plain, **row} for row in axes.product(blocks)]
    rows.append({**plain, "layout": axes.FAR_ROWS, "vocab": 50, "rows": 3, "cache": "a column each"})
    yield from axes.cases_from(
        SAMPLE_AXES, _sample_pool, name="v2.gumbel_sample", contract=_sample_contract, rows=rows, prefix="blocks: "
    )


def prepare_sample(arm: Arm, pool: Pool) -> Call:
    """A call of `gumbel_sample` as each version takes it.

    Versions before slots take one temperature and seed a row; the first one takes `is_greedy`.
    """
    function = arm.first(*GUMBEL_SAMPLE)
    names = takes(function)
    values = dict(pool)
    if "expanded_idx_mapping" not in names and "idx_mapping" not in names:
        index = pool["expanded_idx_mapping"].long()
        values["temperature"], values["seed"] = pool["temperature"][index], pool["seed"][index]
        values["is_greedy"] = values["temperature"] == 0
        arm.note("temperature and seed are one a row, taken from their slots")
    return Call(
        function,
        kwargs=arm.bind(
            function,
            values,
            idx_mapping="expanded_idx_mapping",
            processed_logits_out="logits_cache",
            output_processed_logits="logits_cache",
            output_processed_logits_col="logits_cache_col",
        ),
    )


# -- temperature ---------------------------------------------------------------------------------------------------

TEMPERATURE_AXES = {
    "temperature": axes.spreads(0.7, (0.0, 1.0, 1e-6, 100.0, axes.JUST_BELOW_1, float("inf"), float("nan")), 0.0),
    "logits": (
        "random",
        "bf16 grid",
        "-0.0",
        "denormals",
        "huge",
        "wide range",
        "-inf some",
        "+inf once",
        "NaN everywhere",
    ),
    "vocab": (50, 1, 2, 33, 8191, 8192, 8193),
    "rows": (3, 1, 0, 9),
    "dtype": tuple(FLOATS),
    "layout": ("contiguous", "padded rows", "sliced columns", "offset storage", "every other row", "transposed"),
    "mapping": MAPPINGS[:3],
    "temperature dtype": ("float32", "float64"),
}


def _temperature_pool(row: Row, s: Stream) -> Pool:
    mapping = map_rows(row["mapping"], row["rows"])
    dtype = FLOATS[row["temperature dtype"]]
    return {
        "logits": axes.logits(row["logits"], row["rows"], row["vocab"], s, FLOATS[row["dtype"]], row["layout"]),
        "expanded_idx_mapping": torch.tensor(mapping, dtype=torch.int32),
        "temperature": per_slot(row["temperature"].over(row["rows"]), mapping, 0.3, dtype),
    }


def temperature_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        TEMPERATURE_AXES,
        _temperature_pool,
        name="v2.apply_temperature",
        contract=lambda row: (
            row["layout"] != "transposed"
            and row["temperature"].name not in ("nan", "inf")
            and row["logits"] not in axes.UNUSUAL_LOGITS
        ),
        alone={"layout": (axes.FAR_ROWS,)},
        limit=91,
    )


# -- the kernel ----------------------------------------------------------------------------------------------------

KERNEL_AXES = {
    "temperature": TEMPERATURES,
    "logits": PATTERNS,
    "mapping": MAPPINGS,
    "cache": ("none", "one column", "a column each"),
    "vocab": (24, 1, 15, 16, 17, 33),
    "dtype": ("float32", "bfloat16", "float16"),
    "apply_temperature": (True, False),
    "is_drafting": (False, True),
    "use_fp64": (False, True),
    "seed": SEED_VALUES,
    "position": POSITIONS,
}
_ROWS = 2


def _kernel_pool(row: Row, s: Stream) -> Pool:
    vocab, dtype = row["vocab"], FLOATS[row["dtype"]]
    rows, _ = axes.sized(row, _ROWS, 0)
    mapping = map_rows(row["mapping"], rows)
    blocks, slots = -(-vocab // block_of(vocab)), max(SLOTS, max(mapping) + 1)
    cached = row["cache"] != "none"
    columns = torch.tensor([1, 0], dtype=torch.int32) if row["cache"] == "a column each" else torch.tensor(1)
    return {
        "local_argmax": guarded(torch.full((rows, blocks), -7, dtype=torch.int64), fill=-9),
        "local_max": guarded(
            torch.full((rows, blocks), 77.0, dtype=torch.float64 if row["use_fp64"] else torch.float32), fill=99.0
        ),
        "logits_cache": guarded(axes.poison((slots, 2, vocab), dtype)) if cached else None,
        "logits_cache_col": columns.int() if cached else None,
        "logits": axes.logits(row["logits"], rows, vocab, s, dtype, "padded rows"),
        "expanded_idx_mapping": torch.tensor(mapping, dtype=torch.int32),
        "seeds": slot_seeds(row["seed"], mapping, s),
        "pos": row_positions(row["position"], rows, s),
        "temp": per_slot(row["temperature"].over(rows), mapping, 0.7, torch.float32),
        "APPLY_TEMPERATURE": row["apply_temperature"],
        "IS_DRAFTING": row["is_drafting"],
        "USE_FP64": row["use_fp64"],
    }


_CACHE = ("logits_cache_ptr", "processed_logits_ptr")
_COLUMN = ("logits_cache_col_ptr", "processed_logits_col_ptr")


def prepare_kernel(arm: Arm, pool: Pool) -> Call:
    """A launch of the sampling kernel with blocks of 16 ids, over buffers with guard rows."""
    kernel = arm.first(*KERNEL)
    logits, cache, column = pool["logits"], pool["logits_cache"], pool["logits_cache_col"]
    for given, names in ((cache, _CACHE), (column, _COLUMN)):
        if given is not None and set(names).isdisjoint(takes(kernel)):
            raise ApiChange(f"kernel {kernel.fn.__qualname__} has no {names[0]}")
    if "expanded_idx_mapping_ptr" not in takes(kernel) and "idx_mapping_ptr" not in takes(kernel):
        index = pool["expanded_idx_mapping"].long()
        pool = {
            **pool,
            "temp": pool["temp"][index],
            "seeds": pool["seeds"][index],
            "is_greedy": pool["temp"][index] == 0,
        }
        arm.note("temperature, seed and whether it is greedy are one a row, taken from their slots")
    pointers = {
        f"{name}_ptr": value for name, value in pool.items() if value is None or isinstance(value, torch.Tensor)
    }
    values = {
        **pool,
        **pointers,
        **strides(local_argmax=pool["local_argmax"], local_max=pool["local_max"], logits=logits),
        "logits_cache_stride_0": 0 if cache is None else cache.stride(0),
        "logits_cache_stride_1": 0 if cache is None else cache.stride(1),
        "logits_cache_source_ptr": None if cache is None else logits,
        "logits_cache_source_stride": 0 if cache is None else logits.stride(0),
        "processed_logits_stride": 0 if cache is None else cache.stride(0),
        "vocab_size": logits.shape[1],
        "BLOCK_SIZE": block_of(logits.shape[1]),
        "PER_TOKEN_COL": column is not None and column.dim() > 0,
    }
    others = {
        "expanded_idx_mapping_ptr": ("idx_mapping_ptr",),
        _CACHE[0]: _CACHE[1:],
        _COLUMN[0]: _COLUMN[1:],
    }
    launched: Call = launch(arm, kernel, tuple(pool["local_max"].shape), values, others)
    return launched


def kernel_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        KERNEL_AXES,
        _kernel_pool,
        name="v2.gumbel_kernel",
        contract=lambda row: row["logits"] not in axes.UNUSUAL_LOGITS and row["temperature"].name != "inf",
        limit=56,
    )


def _row_temperatures(pool: Pool) -> torch.Tensor:
    slots = pool["expanded_idx_mapping"].long()
    return torch.where(slots < 0, 0.0, pool["temperature"][slots])


def _other_seeds(pool: Pool) -> Pool | None:
    """Other seeds and positions, where every request is greedy."""
    if len(pool["pos"]) == 0 or (_row_temperatures(pool) != 0).any():
        return None
    return {"seed": pool["seed"] + 77, "pos": pool["pos"] + 5}


def _sampling_pool(number: int) -> Pool:
    """Alike rows over eight ids: consecutive positions of requests that have a seed each."""
    rows, slots = 24, 6
    logits = torch.tensor([0.05, 0.2, 0.1, 0.1, 0.2, 0.15, 0.05, 0.15]).log().repeat(rows, 1)
    mapping = [row * slots // rows for row in range(rows)]
    return {
        "logits": logits,
        "expanded_idx_mapping": torch.tensor(mapping, dtype=torch.int32),
        "temperature": torch.ones(slots),
        "seed": torch.arange(slots, dtype=torch.int64) + 1000 * number,
        "pos": torch.arange(rows, dtype=torch.int64) + 5,
        "apply_temperature": True,
        "is_drafting": False,
    }


TARGETS = (
    Target(
        "v2.gumbel_sample",
        GUMBEL_SAMPLE,
        sample_cases,
        prepare_sample,
        triton=True,
        rows=("return", "logits"),
        sampling=Sampling(_sampling_pool, lambda returned: returned.numpy(), 8),
        invariants=(
            relations.emitted("logits", -axes.INF),
            relations.unchanged("logits", "temperature", "seed", "pos", "expanded_idx_mapping"),
        ),
        relations=(
            *relations.of_rows(("logits", "expanded_idx_mapping", "pos", "logits_cache_col")),
            relations.relaid("logits"),
            relations.same_with("a greedy batch has no use for seeds", _other_seeds),
        ),
        shapes=shapes.of_cases(sample_cases, "vocabulary"),
    ),
    Target(
        "v2.apply_temperature",
        APPLY_TEMPERATURE,
        temperature_cases,
        lambda arm, pool: Call(
            arm.first(*APPLY_TEMPERATURE),
            kwargs=arm.bind(arm.first(*APPLY_TEMPERATURE), pool, idx_mapping="expanded_idx_mapping"),
        ),
        triton=True,
        rows=("logits",),
        invariants=(
            relations.unchanged("temperature", "expanded_idx_mapping"),
            relations.off_rows(
                "logits",
                lambda pool: (_row_temperatures(pool) == 0) | (_row_temperatures(pool) == 1),
                "temperature 0 or 1",
            ),
        ),
        relations=(
            *relations.of_rows(("logits", "expanded_idx_mapping"), ("logits",)),
            relations.relaid("logits", ("logits",)),
        ),
        shapes=shapes.of_cases(temperature_cases, "vocabulary"),
    ),
    Target(
        "v2.gumbel_kernel",
        KERNEL,
        kernel_cases,
        prepare_kernel,
        triton=True,
        rows=("local_argmax", "local_max"),
        shapes=shapes.of_cases(kernel_cases, "vocabulary"),
    ),
)
