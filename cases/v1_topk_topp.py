"""V1 top-k and top-p: the filters in PyTorch and Triton, the choice between them, and sampling from what is left.

Ties at the k-th value and equal probabilities at the edge of top-p decide which tokens stay, and continuous random
logits have none; so most rows lie on grids. What a Triton kernel takes under the interpreter is counted in tens of
milliseconds a row, so its cases are few and the most telling come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from difftest.cases import axes, relations, shapes
from difftest.cases import v1_metadata as metadata
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Sampling, Target

_MODULE = "vllm.v1.sample.ops.topk_topp_sampler:"
_TRITON = "vllm.v1.sample.ops.topk_topp_triton:apply_top_k_top_p_triton"
_SAMPLER = f"{_MODULE}TopKTopPSampler"
MODES = ("raw_logprobs", "processed_logprobs", "processed_logits", "raw_logits")

_NONE = axes.Spread("none", ())
_TIES = (
    "half grid",
    "bf16 grid",
    "plateaus",
    "near ties",
    "two maxima",
    "all equal",
    "integer grid",
    "-inf some",
    "random",
)
_K = (*axes.TOP_K[1:5], _NONE, axes.TOP_K[0], *(k for k in axes.TOP_K[5:] if str(k) not in axes.BEYOND))
_K_BEYOND = tuple(k for k in axes.TOP_K if str(k) in axes.BEYOND)
_P = (_NONE, *axes.TOP_P[1:], axes.TOP_P[0])


def _named(spreads: tuple[axes.Spread, ...], *names: str) -> tuple[axes.Spread, ...]:
    by_name = {str(spread): spread for spread in spreads}
    return tuple(by_name[name] for name in names)


def _values(spread: axes.Spread, row: axes.Row) -> list[float]:
    return [] if spread is _NONE else spread.over(row["batch"], row["vocab"])


def _parameter(spread: axes.Spread, row: axes.Row, dtype: torch.dtype, layout: str = "contiguous") -> Any:
    if spread is _NONE:
        return None
    values = spread.tensor(row["batch"], dtype, row["vocab"])
    return axes.lay_out(axes.same_rows(values, layout), layout)


def _filter_pool(row: axes.Row, s: axes.Stream) -> Pool:
    layout = row.get("parameters", "contiguous")
    return {
        "logits": axes.logits(row["pattern"], row["batch"], row["vocab"], s, row["dtype"], row["layout"]),
        "k": _parameter(row["k"], row, row.get("k dtype", torch.int32), layout),
        "p": _parameter(row["p"], row, row.get("p dtype", torch.float32), layout),
    }


def _inside(row: axes.Row) -> bool:
    return (
        all(1 <= k <= row["vocab"] for k in _values(row["k"], row))
        and all(0 < p <= 1 for p in _values(row["p"], row))
        and row["pattern"] not in axes.UNUSUAL_LOGITS
        and row["layout"] != "expanded"
        and row.get("dtype", torch.float32) is not torch.float64
        and row["batch"] > 0
    )


# --- PyTorch ----------------------------------------------------------------------------------------------------------

_PYTORCH_AXES: axes.Axes = {
    "k": _K,
    "p": _P,
    "pattern": tuple(axes.LOGITS),
    "batch": axes.BATCHES,
    "vocab": axes.VOCABS,
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS[:-1],
    "sync": (False, True),
    "parameters": ("contiguous", "every other row", "expanded"),
}


def _pytorch_pool(row: axes.Row, s: axes.Stream) -> Pool:
    return {**_filter_pool(row, s), "allow_cpu_sync": row["sync"]}


def _pytorch_cases() -> Iterator[Case]:
    name = "v1.top_k_top_p_pytorch"
    yield from axes.cases_from(
        _PYTORCH_AXES,
        _pytorch_pool,
        name=name,
        contract=_inside,
        alone={"k": _K_BEYOND, "layout": ("expanded",)},
    )
    # Sums of many small probabilities: what the dtype of the sum does shows at the size of a real vocabulary only.
    wide: axes.Axes = {
        "dtype": (torch.float32, torch.bfloat16, torch.float16),
        "vocab": (8193, 32000),
        "pattern": ("random", "half grid"),
    }
    ends = {**axes.plain(_PYTORCH_AXES), "k": _NONE, "batch": 2}
    for p in _named(axes.TOP_P, "0.9", "mixed"):
        rows = [{**ends, **row, "p": p} for row in axes.product(wide)]
        yield from axes.cases_from(
            _PYTORCH_AXES, _pytorch_pool, name=name, contract=_inside, rows=rows, prefix="wide: "
        )


_TOP_K_AXES: axes.Axes = {
    "k": tuple(k for k in _K if k is not _NONE),
    "pattern": tuple(axes.LOGITS),
    "batch": tuple(batch for batch in axes.BATCHES if batch),
    "vocab": axes.VOCABS,
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS[:-1],
    "k dtype": (torch.int32, torch.int64),
    "parameters": ("contiguous", "every other row", "expanded"),
}


def _top_k_cases() -> Iterator[Case]:
    def pool(row: axes.Row, s: axes.Stream) -> Pool:
        made = _filter_pool({**row, "p": _NONE}, s)
        return {"logits": made["logits"], "k": made["k"]}

    def contract(row: axes.Row) -> bool:
        return _inside({**row, "p": _NONE})

    yield from axes.cases_from(
        _TOP_K_AXES,
        pool,
        name="v1.top_k_only",
        contract=contract,
        alone={"k": _K_BEYOND, "layout": ("expanded",), "batch": (0,)},
    )


# --- Triton, and the choice between the two ---------------------------------------------------------------------------

_KERNEL_AXES: axes.Axes = {
    "k": (axes.TOP_K[1], _NONE, *_named(axes.TOP_K, "1", "5", "V-1", "0", "V+1")),
    "p": (_NONE, axes.TOP_P[1], *_named(axes.TOP_P, "0.7", "1e-07", "0.0", "1-2^-24", "1.0")),
    "pattern": (*_TIES, "-inf everywhere", "NaN at the start", "+inf once", "wide range", "-inf all but one"),
    "batch": (3, 1, 8, 0),
    "vocab": (33, 257, 16, 1),
    "dtype": (torch.float32, torch.bfloat16),
    "layout": ("contiguous", "padded rows", "transposed", "every other row", "offset storage", "expanded"),
    "k dtype": (torch.int32, torch.int64),
}
_BOTH = (
    (axes.TOP_K[1], _NONE),
    (_NONE, *_named(axes.TOP_P, "0.7")),
    (*_named(axes.TOP_K, "5"), axes.TOP_P[1]),
)


def _kernel_rows(every: axes.Axes, pairs: int) -> list[axes.Row]:
    """Rows in the order of what they tell: ties under each filter, then single extremes, then some pairs."""
    first = axes.plain(every)
    names = [name for name in _TIES if name in every["pattern"]]
    ties = [{**first, "k": k, "p": p, "pattern": name} for name in names for k, p in _BOTH]
    wide = [{**row, "vocab": 257} for row in ties if row["pattern"] in ("half grid", "bf16 grid")]
    far = [{**ties[0], "layout": axes.FAR_ROWS, "k": k, "p": p} for k, p in _BOTH[:2]]
    single = axes.extremes(every)
    rows = [*ties[:9], *wide, *far, *single, *ties[9:18]]
    return [*rows, *axes.pairwise(every, single)[:pairs]]


def _kernel_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _KERNEL_AXES,
        _filter_pool,
        name="v1.top_k_top_p_triton",
        contract=lambda row: _inside(row) and row["dtype"] is torch.float32,
        rows=_kernel_rows(_KERNEL_AXES, 4),
    )


_DISPATCH_AXES: axes.Axes = {
    "k": _KERNEL_AXES["k"][:4],
    "p": _KERNEL_AXES["p"][:4],
    "pattern": ("half grid", "bf16 grid", "plateaus", "-inf everywhere", "NaN at the start", "random"),
    "batch": (3, 1, 9, 0),
    "vocab": (33, 257),
    "dtype": (torch.float32, torch.bfloat16),
    "layout": ("contiguous", "padded rows", "transposed", "expanded"),
    "platform": metadata.PLATFORMS[::-1],
}


def _dispatch_pool(row: axes.Row, s: axes.Stream) -> Pool:
    return {**_filter_pool(row, s), "platform": row["platform"]}


def _dispatch_cases() -> Iterator[Case]:
    first = axes.plain(_DISPATCH_AXES)
    # Each side of the batch size at which one implementation takes over from the other, under each filter.
    sides = [
        {**first, "batch": batch, "k": k, "p": p, "platform": name, "vocab": 16}
        for name in metadata.PLATFORMS
        for batch, (k, p) in zip((7, 8, 8), _BOTH, strict=True)
    ]
    rows = _kernel_rows(_DISPATCH_AXES, 0)
    yield from axes.cases_from(
        _DISPATCH_AXES,
        _dispatch_pool,
        name="v1.top_k_top_p",
        contract=_inside,
        rows=[rows[0], *sides, *rows[1:]],
    )


def _prepare_dispatch(arm: Arm, pool: Pool) -> Call:
    function = arm.get(f"{_MODULE}apply_top_k_top_p")
    call = metadata.on_platform(arm, pool["platform"], function)
    return Call(call, kwargs=arm.bind(function, pool))


# --- sampling ---------------------------------------------------------------------------------------------------------


_SAMPLE_AXES: axes.Axes = {
    "pattern": tuple(axes.PROBABILITIES),
    "seeds": axes.SEEDS,
    "batch": axes.BATCHES,
    "vocab": axes.VOCABS,
    "dtype": tuple(axes.FLOATS.values()),
    "layout": axes.LAYOUTS[:-1],
    "calls": (1, 2),
    "fp64": (False, None),  # None: left to its default
}


def _sample_pool(row: axes.Row, s: axes.Stream) -> Pool:
    probs = axes.probabilities(row["pattern"], row["batch"], row["vocab"], s, row["dtype"], row["layout"])
    return {
        "probs": probs,
        "generators": axes.seeds(row["seeds"], row["batch"]),
        **({} if row["fp64"] is None else {"use_fp64_gumbel": row["fp64"]}),
        "calls": row["calls"],
    }


def _prepare_sample(arm: Arm, pool: Pool) -> Call:
    function = arm.get(f"{_MODULE}random_sample")
    _demand_parameter(function, pool, "use_fp64_gumbel")
    kwargs = arm.bind(function, pool)
    later = [pool["probs"].clone() for _ in range(pool["calls"] - 1)]

    def run() -> Any:
        """One call, or several with the same generators, as in consecutive steps."""
        first = function(**kwargs)
        return [first, *[function(**{**kwargs, "probs": probs}) for probs in later]]

    return Call(run)


def _demand_parameter(function: Any, pool: Pool, name: str) -> None:
    """Refuse a case that switches on a feature which this version lacks."""
    if pool.get(name) and name not in takes(function):
        raise ApiChange(f"{function.__qualname__} has no {name}")


def _sample_contract(row: axes.Row) -> bool:
    return row["pattern"] not in axes.UNUSUAL_PROBABILITIES and row["dtype"] is torch.float32 and row["batch"] > 0


def _sample_cases() -> Iterator[Case]:
    name = "v1.random_sample"
    yield from axes.cases_from(_SAMPLE_AXES, _sample_pool, name=name, contract=_sample_contract, covers=2)
    # Later versions can be asked for finer noise; older ones refuse, so these cases are a block of their own.
    finer = {axis: values[:4] for axis, values in _SAMPLE_AXES.items()} | {"fp64": (True,)}
    yield from axes.cases_from(finer, _sample_pool, name=name, contract=_sample_contract, prefix="finer noise: ")


_NOISE_AXES: axes.Axes = {
    "noise": ("random", "near ties", "smallest", "half", "just below 1", "zero", "equal", "+inf", "NaN"),
    "pattern": tuple(axes.PROBABILITIES),
    "batch": axes.BATCHES,
    "vocab": axes.VOCABS,
    "dtype": (torch.float32, torch.bfloat16, torch.float64),
    "noise dtype": (None, torch.float64),
    "layout": axes.LAYOUTS[:-1],
}


def _noise_pool(row: axes.Row, s: axes.Stream) -> Pool:
    shape = (row["batch"], row["vocab"])
    probs = axes.probabilities(row["pattern"], *shape, s, row["dtype"], row["layout"])
    dtype = row["noise dtype"] or row["dtype"]
    constant = {"equal": 1.25, "+inf": axes.INF, "NaN": axes.NAN}.get(row["noise"])
    if row["noise"] == "near ties":  # scores of 1, but for a part that float32 does not tell apart in double noise
        wide = s.uniform(*shape, dtype=torch.float64)
        return {"probs": probs, "q": (probs.double().clamp(min=2.0**-40) * (1 + wide * 2.0**-30)).to(dtype)}
    drawn = axes.noise("random" if constant else row["noise"], shape, s, dtype)
    return {"probs": probs, "q": drawn if constant is None else torch.full(shape, constant, dtype=dtype)}


def _noise_cases() -> Iterator[Case]:
    yield from axes.cases_from(
        _NOISE_AXES,
        _noise_pool,
        name="v1.sample_with_noise",
        contract=lambda row: (
            row["pattern"] not in axes.UNUSUAL_PROBABILITIES
            and row["noise"] in ("random", "near ties", "smallest", "half", "just below 1")
            and row["batch"] > 0
        ),
    )


# --- the sampler module -----------------------------------------------------------------------------------------------

_MODULE_AXES: axes.Axes = {
    "seeds": axes.SEEDS,
    "mode": MODES,
    "k": (_NONE, axes.TOP_K[1], axes.TOP_K[5], axes.TOP_K[7]),
    "p": (_NONE, axes.TOP_P[1], axes.TOP_P[9]),
    "pattern": (
        "random",
        "half grid",
        "softmax tie",
        "one-hot",
        "-inf some",
        "all equal",
        "-inf everywhere",
        "NaN last row",
    ),
    "batch": (3, 1, 2, 7, 8, 0),
    "vocab": (16, 7, 33, 1),
    "dtype": (torch.float32, torch.bfloat16),
    "layout": ("contiguous", "padded rows", "transposed"),
    "fp64": (False, True, None),
    "platform": metadata.PLATFORMS,
}


def _module_pool(row: axes.Row, s: axes.Stream) -> Pool:
    return {
        **_filter_pool(row, s),
        "generators": axes.seeds(row["seeds"], row["batch"]),
        "logprobs_mode": row["mode"],
        **({} if row["fp64"] is None else {"use_fp64_gumbel": row["fp64"]}),
        "platform": row["platform"],
    }


def _module_cases(name: str) -> Iterator[Case]:
    single = axes.extremes(_MODULE_AXES)
    # Without a filter no kernel runs, and what is left to sampling costs little: pairs of these first. Older versions
    # have neither modes nor finer noise.
    bare: axes.Axes = {**_MODULE_AXES, "k": (_NONE,), "p": (_NONE,)}
    older: axes.Axes = {**bare, "mode": MODES[:1], "fp64": (False,)}
    pairs = axes.pairwise(older, axes.extremes(older)) + axes.pairwise({**bare, "pattern": bare["pattern"][:3]})[:24]
    rows = [*single, *pairs, *axes.pairwise(_MODULE_AXES, single)[:14]]
    yield from axes.cases_from(
        _MODULE_AXES,
        _module_pool,
        name=name,
        contract=lambda row: _inside(row) and row["dtype"] is torch.float32,
        rows=rows,
    )


def sampler_module(arm: Arm, pool: Pool) -> Any:
    """The arm's TopKTopPSampler in the logprobs mode, and with the noise, that the pool says."""
    cls = arm.get(_SAMPLER)
    fields = {"logprobs_mode": metadata.logprobs_mode(arm, pool["logprobs_mode"])}
    if "use_fp64_gumbel" in pool:
        fields["use_fp64_gumbel"] = pool["use_fp64_gumbel"]
    _demand_parameter(cls, {**pool, "logprobs_mode": None}, "use_fp64_gumbel")
    if pool["logprobs_mode"].startswith("processed"):
        _demand_parameter(cls, pool, "logprobs_mode")
    with metadata.platform(arm, pool["platform"]):
        return cls(**arm.bind(cls, fields))


def _prepare_module(method: str) -> Any:
    def prepare(arm: Arm, pool: Pool) -> Call:
        sampler = sampler_module(arm, pool)
        function = getattr(sampler, method)
        call = metadata.on_platform(arm, pool["platform"], function)
        return Call(call, kwargs=arm.bind(function, pool))

    return prepare


def _compiled_cases() -> Iterator[Case]:
    every = {n: v for n, v in _SAMPLE_AXES.items() if n in ("batch", "vocab", "dtype", "layout")}
    yield from axes.cases_from(
        {"pattern": tuple(axes.LOGITS), **every},
        lambda row, s: {
            "logits": axes.logits(row["pattern"], row["batch"], row["vocab"], s, row["dtype"], row["layout"])
        },
        name="v1.compiled_random_sample",
        contract=lambda row: row["pattern"] not in axes.UNUSUAL_LOGITS and row["batch"] > 0,
    )


def _filter_shape(batch: int, vocabulary: int, number: int) -> Pool:
    """Every request filters by both, as chat defaults do."""
    return {
        "logits": shapes.logits(batch, vocabulary, number),
        "k": torch.full((batch,), 50, dtype=torch.int32),
        "p": torch.full((batch,), 0.95),
    }


def _dispatch_shape(batch: int, vocabulary: int, number: int) -> Pool:
    return {**_filter_shape(batch, vocabulary, number), "platform": metadata.PLATFORMS[0]}


def _noise_shape(batch: int, vocabulary: int, number: int) -> Pool:
    """Exponential noise, as each step draws it anew."""
    noise = torch.empty(batch, vocabulary).exponential_(generator=torch.Generator().manual_seed(number))
    return {"probs": shapes.probabilities(batch, vocabulary, number), "q": noise}


def _top_k_shape(batch: int, vocabulary: int, number: int) -> Pool:
    return {
        "logits": shapes.logits(batch, vocabulary, number),
        "k": torch.full((batch,), 50, dtype=torch.int32),
    }


def _sample_shape(batch: int, vocabulary: int, number: int) -> Pool:
    probs = shapes.probabilities(batch, vocabulary, number)
    return {"probs": probs, "generators": {}, "use_fp64_gumbel": False, "calls": 1}


def _all_seeded(pool: Pool) -> bool:
    """The order of the batch is that of the draws otherwise."""
    return pool["calls"] == 1 and len(pool["generators"]) == len(pool["probs"])


_FILTERS = (
    relations.filters("return"),
    relations.keeps_the_likeliest("return"),
    relations.unchanged("k", "p"),
)


def _sampling_pool(number: int) -> Pool:
    """Alike rows over eight ids; no row has a seed, so the pool is the same at each number."""
    return {"probs": shapes.LAW.repeat(4000, 1), "generators": {}, "use_fp64_gumbel": False, "calls": 2}


def _two_steps(returned: list[torch.Tensor]) -> Any:
    """The ids of two steps, [rows, 2]: a stream that the second step uses again shows jointly."""
    return torch.stack(returned, dim=1).numpy()


def _sampling_logits(number: int) -> Pool:
    """The same as logits, for what takes these."""
    return {"logits": shapes.LAW.log().repeat(4000, 1)}


def _sampling_module(number: int) -> Pool:
    """The same as logits, for the module: nothing filters, so that the rows stay alike."""
    return {**_module_pool(axes.plain(_MODULE_AXES), axes.stream("sampling")), **_sampling_logits(number)}


def _ids_of_module(returned: Any) -> Any:
    """The ids; beside them newer versions return logprobs."""
    ids = returned[0] if isinstance(returned, tuple) else returned
    return ids.reshape(-1).numpy()


_MODULE_SAMPLING = Sampling(_sampling_module, _ids_of_module, 8, ("return[0]",))

TARGETS = (
    Target(
        name="v1.top_k_top_p",
        symbols=(f"{_MODULE}apply_top_k_top_p",),
        cases=_dispatch_cases,
        prepare=_prepare_dispatch,
        shapes=shapes.by_batch_and_vocabulary(_dispatch_shape, shapes.WIDEST),
        triton=True,
        rows=("return", "logits"),
        timeout=60.0,
    ),
    Target(
        name="v1.top_k_top_p_pytorch",
        symbols=(f"{_MODULE}apply_top_k_top_p_pytorch", f"{_MODULE}apply_top_k_top_p"),
        cases=_pytorch_cases,
        shapes=shapes.by_batch_and_vocabulary(_filter_shape, 310_000),
        rows=("return", "logits"),
        invariants=_FILTERS,
        relations=(
            *relations.of_rows(("logits", "k", "p")),
            relations.relaid("logits"),
            *relations.no_filter(),
        ),
    ),
    Target(
        name="v1.top_k_only",
        symbols=(f"{_MODULE}apply_top_k_only",),
        cases=_top_k_cases,
        shapes=shapes.by_batch_and_vocabulary(_top_k_shape, 2_500_000),
        rows=("return", "logits"),
        invariants=_FILTERS[:2],
        relations=(*relations.of_rows(("logits", "k")), relations.relaid("logits")),
    ),
    Target(
        name="v1.top_k_top_p_triton",
        symbols=(_TRITON,),
        cases=_kernel_cases,
        shapes=shapes.by_batch_and_vocabulary(_filter_shape, shapes.WIDEST),
        triton=True,
        rows=("return", "logits"),
        invariants=_FILTERS,
        relations=(
            relations.permuted(("logits", "k", "p"), every=30),
            relations.alone(("logits", "k", "p"), every=30),
            relations.relaid("logits", every=30),
        ),
        timeout=60.0,
    ),
    Target(
        name="v1.random_sample",
        symbols=(f"{_MODULE}random_sample",),
        cases=_sample_cases,
        prepare=_prepare_sample,
        shapes=shapes.by_batch_and_vocabulary(_sample_shape, 2_500_000),
        rows=("probs",),
        sampling=Sampling(_sampling_pool, _two_steps, 8),
        invariants=(relations.emitted("probs", 0.0, lambda result: result[0]),),
        relations=relations.of_rows(("probs", "generators"), ("return.0",), _all_seeded),
    ),
    Target(
        name="v1.sample_with_noise",
        symbols=(f"{_MODULE}sample_with_exponential_noise",),
        cases=_noise_cases,
        shapes=shapes.by_batch_and_vocabulary(_noise_shape, 2_500_000),
        rows=("return", "probs", "q"),
        invariants=(relations.emitted("probs", 0.0),),
        relations=(*relations.of_rows(("probs", "q")), relations.relaid("probs")),
    ),
    Target(
        name="v1.compiled_random_sample",
        symbols=(f"{_MODULE}compiled_random_sample",),
        cases=_compiled_cases,
        rows=("return", "logits"),
        sampling=Sampling(_sampling_logits, lambda returned: returned.reshape(-1).numpy(), 8),
        shapes=shapes.of_cases(_compiled_cases, "vocabulary"),
    ),
    Target(
        name="v1.top_k_top_p_sampler.native",
        symbols=(f"{_SAMPLER}.forward_native",),
        cases=lambda: _module_cases("v1.top_k_top_p_sampler.native"),
        prepare=_prepare_module("forward_native"),
        uses=(f"{_SAMPLER}.__init__", *metadata.LOGPROBS_MODE),
        triton=True,
        rows=("logits",),
        timeout=60.0,
        sampling=_MODULE_SAMPLING,
        shapes=shapes.of_cases(lambda: _module_cases("v1.top_k_top_p_sampler.native"), "vocabulary"),
    ),
    Target(
        name="v1.top_k_top_p_sampler.cpu",
        symbols=(f"{_SAMPLER}.forward_cpu",),
        cases=lambda: _module_cases("v1.top_k_top_p_sampler.cpu"),
        prepare=_prepare_module("forward_cpu"),
        uses=(f"{_SAMPLER}.__init__", *metadata.LOGPROBS_MODE),
        triton=True,
        rows=("logits",),
        timeout=60.0,
        sampling=_MODULE_SAMPLING,
        shapes=shapes.of_cases(lambda: _module_cases("v1.top_k_top_p_sampler.cpu"), "vocabulary"),
    ),
)
