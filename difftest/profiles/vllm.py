"""The vLLM profile: what stands in for the parts of vLLM that cannot be lifted.

Each stand-in's docstring says what it assumes; the report names those that a target touches. `--host vllm` takes the
installed package's own objects instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from difftest.lift.standins import StandIn


def triton_utils(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Triton is there and usable (HAS_TRITON is True), as on a GPU worker; kernels run in the mode the report gives.

    Where a captured engine had it otherwise, HAS_TRITON is as there; kernels that are called all the same run.
    """
    try:
        import triton
        import triton.language as tl
        from triton.language.extra import libdevice
    except ImportError as error:
        raise ImportError("this target needs triton: pip install 'difftest-sampler[triton]'") from error
    names: dict[str, Any] = {
        "HAS_TRITON": given.get("HAS_TRITON", True),
        "LOG2E": 1.4426950408889634,
        "LOGE2": 0.6931471805599453,
        "triton": triton,
        "tl": tl,
        "tldevice": libdevice,
        "use_tensor_descriptor": lambda: False,
    }
    with contextlib.suppress(ImportError):
        from triton.experimental import gluon
        from triton.experimental.gluon import language as gl
        from triton.language.core import _aggregate as aggregate

        names |= {"gluon": gluon, "gl": gl, "aggregate": aggregate}
    return names


class _Logger(logging.Logger):
    """A logger with vLLM's `*_once` methods, silent unless something is raised through it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, logging.CRITICAL)
        self.debug_once = self.debug
        self.info_once = self.info
        self.warning_once = self.warning


def logger() -> Mapping[str, Any]:
    """Messages are dropped; that a message is logged is not an outcome."""
    return {"init_logger": _Logger}


class Capability(NamedTuple):
    """A CUDA device's compute capability."""

    major: int
    minor: int

    def as_version_str(self) -> str:
        return f"{self.major}.{self.minor}"

    def to_int(self) -> int:
        return 10 * self.major + self.minor


class Platform:
    """The platform object; every `is_...` question that is not answered here is answered with False."""

    simple_compile_backend = "eager"
    dispatch_key = "CPU"
    supported_dtypes: tuple[Any, ...] = ()

    def __init__(self, device_type: str, given: Mapping[str, Any]) -> None:
        self.device_type = device_type
        self.device_name = device_type
        self._given = given

    def is_cpu(self) -> bool:
        return self.device_type == "cpu"

    def is_cuda(self) -> bool:
        return self.device_type == "cuda"

    def is_cuda_alike(self) -> bool:
        return self.is_cuda()

    def is_pin_memory_available(self) -> bool:
        return False

    def get_device_capability(self, device_id: int = 0) -> Any:
        if not self.is_cuda():
            return None
        import torch

        return Capability(*torch.cuda.get_device_capability(device_id))

    def has_device_capability(self, capability: int | tuple[int, int], device_id: int = 0) -> bool:
        have = self.get_device_capability(device_id)
        if have is None:
            return False
        return bool(have >= (capability if isinstance(capability, tuple) else divmod(capability, 10)))

    def is_device_capability(self, capability: Any, device_id: int = 0) -> bool:
        return False

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        return False

    def num_compute_units(self, device_id: int = 0) -> int:
        """On a CPU so few that one Triton program serves several rows, as with the large batches of a GPU."""
        if (recorded := self._given.get("num_compute_units")) is not None:
            return int(recorded)
        if not self.is_cuda():
            return 3
        import torch

        return int(torch.cuda.get_device_properties(device_id).multi_processor_count)

    def get_cpu_architecture(self) -> Any:
        return self._given.get("get_cpu_architecture")

    def opaque_attention_op(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., bool]:
        if name.startswith("is_"):
            return lambda *_, **__: False
        raise AttributeError(f"the platform stand-in has no {name}; run with --host vllm to use the real platform")


class _Names:
    """An enum-like object whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def platforms(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The platform is the device the run is on: a plain CPU without pinned memory, or CUDA.

    The processor's architecture and the number of compute units are those of a captured engine, where there is one.
    """
    return {
        "current_platform": Platform(given.get("device_type", os.environ.get("DIFFTEST_DEVICE", "cpu")), given),
        "CpuArchEnum": _Names(),
        "PlatformEnum": _Names(),
    }


def aiter_ops() -> Mapping[str, Any]:
    """ROCm's AITER kernels are not there."""

    class RocmAiterOps:
        def __getattr__(self, name: str) -> Callable[..., bool]:
            if name.startswith("is_"):
                return lambda *_, **__: False
            raise AttributeError(f"AITER is not there: {name}")

    return {"rocm_aiter_ops": RocmAiterOps()}


def flashinfer_attention() -> Mapping[str, Any]:
    """FlashInfer is not there."""

    class FlashInferBackend:
        @staticmethod
        def supports_compute_capability(capability: Any) -> bool:
            return False

    return {"FlashInferBackend": FlashInferBackend}


def custom_ops() -> Mapping[str, Any]:
    """vLLM's compiled operators, written from their definitions in plain torch: repetition penalties only.

    A positive logit of a token seen before is divided by the penalty, any other is multiplied by it, in place.
    """
    import torch

    def apply_repetition_penalties(
        logits: torch.Tensor,
        prompt_mask: torch.Tensor,
        output_mask: torch.Tensor,
        repetition_penalties: torch.Tensor,
    ) -> None:
        penalty = repetition_penalties.unsqueeze(1).repeat(1, logits.size(1))
        penalty = torch.where(prompt_mask | output_mask, penalty, 1.0)
        logits *= torch.where(logits > 0, 1.0 / penalty, penalty)

    return {
        "apply_repetition_penalties": apply_repetition_penalties,
        "apply_repetition_penalties_torch": apply_repetition_penalties,
        "apply_repetition_penalties_cuda": apply_repetition_penalties,
    }


def view_of_host_memory() -> Callable[[Any], Any]:
    """A device's view of host memory (UVA) is that memory: writes are seen on both sides, as on a GPU."""
    return lambda cpu_tensor: cpu_tensor


class SamplingParams:
    """What samplers read of a request's parameters, with the package's defaults; the package's own needs msgspec."""

    def __init__(self, **fields: Any) -> None:
        self.n = 1
        self.temperature = 1.0
        self.top_p = 1.0
        self.top_k = 0
        self.min_p = 0.0
        self.seed: int | None = None
        self.presence_penalty = 0.0
        self.frequency_penalty = 0.0
        self.repetition_penalty = 1.0
        self.min_tokens = 0
        self.max_tokens: int | None = 16
        self.stop_token_ids: list[int] | None = None
        self.ignore_eos = False
        self.logprobs: int | None = None
        self.prompt_logprobs: int | None = None
        self.logprob_token_ids: list[int] | None = None
        self.logit_bias: dict[int, float] | None = None
        self.allowed_token_ids: list[int] | None = None
        self.bad_words_token_ids: list[list[int]] | None = None
        self.structured_outputs: Any = None
        self.extra_args: dict[str, Any] | None = None
        self.thinking_token_budget: int | None = None
        self.eos_token_id: int | None = None
        vars(self).update(fields)
        self.all_stop_token_ids = set(fields.get("all_stop_token_ids", self.stop_token_ids or ()))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the stand-in for SamplingParams has no {name}")


class PoolingParams:
    """Parameters of a request that is not sampled; samplers only ask whether a request has them."""


def sampling_params() -> type:
    """The parameters of a request are plain attributes, unchecked; all_stop_token_ids are its stop_token_ids."""
    return SamplingParams


def pooling_params() -> type:
    """The parameters of a pooling request have no attributes."""
    return PoolingParams


def uva_available(given: Mapping[str, Any]) -> Callable[[], bool]:
    """A device can view host memory (UVA), as on a GPU worker, unless a captured engine could not."""
    available = bool(given.get("is_uva_available", True))
    return lambda: available


def set_stream() -> Callable[..., Any]:
    """torch's own `set_stream`: vLLM's, which remembers the stream, would be put into torch for both arms."""
    import torch

    return torch.cuda.set_stream


def xgrammar() -> Mapping[str, Any]:
    """xgrammar's apply_token_bitmask_inplace, from its definition, for logits of any dtype on any device.

    Bit i of a row of int32 words says whether id i is allowed; a logit that is not becomes -inf. Ids past the words
    keep their logits. With indices, these rows of both are used; without, logits and words have equally many rows.
    """
    import torch

    def apply_token_bitmask_inplace(
        logits: torch.Tensor, bitmask: torch.Tensor, *, vocab_size: int | None = None, indices: Any = None
    ) -> None:
        if bitmask.dtype != torch.int32:
            raise ValueError("bitmask must be of type int32")
        if logits.device.type != bitmask.device.type:
            raise ValueError("logits and bitmask must be on the same device")
        if indices is None and logits.shape[0] != bitmask.shape[0]:
            raise ValueError(f"logits have {logits.shape[0]} rows, the bitmask has {bitmask.shape[0]}")
        width = min(logits.shape[-1] if vocab_size is None else vocab_size, logits.shape[-1], bitmask.shape[-1] * 32)
        shifts = torch.arange(32, dtype=torch.int32, device=bitmask.device)
        forbidden = ((bitmask.unsqueeze(-1) >> shifts) & 1 == 0).flatten(-2)[..., :width]
        rows = torch.arange(logits.shape[0]) if indices is None else torch.as_tensor(indices, dtype=torch.int64)
        for row in rows.tolist():
            logits[row, :width].masked_fill_(forbidden[row], float("-inf"))

    return {"apply_token_bitmask_inplace": apply_token_bitmask_inplace}


def cpu_operators() -> Mapping[str, Any]:
    """vLLM's compiled sampling operators for CPUs, from their definitions as of 0.32.0, for float32 logits [batch, V].

    greedy_argmax is the lowest id with the largest logit. fused_gumbel_argmax is the lowest id with the largest sum of
    logit and noise; the noise of id i in a row with seed s is -log(-log(u)), where u is (bits + 0.5) / 2**53 for the
    upper 53 bits of entry i of the SplitMix64 sequence that begins at the SplitMix64 hash of s.
    """
    import numpy as np
    import torch

    def hashed(z: Any) -> Any:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    def checked(logits: torch.Tensor) -> torch.Tensor:
        if logits.dim() != 2:
            raise RuntimeError("logits must be 2-D [batch, vocab]")
        if logits.dtype != torch.float32:
            raise RuntimeError("logits must be float32")
        return logits

    def greedy_argmax(logits: torch.Tensor) -> torch.Tensor:
        return checked(logits).argmax(dim=-1)

    def fused_gumbel_argmax(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        if seeds.dim() != 1 or seeds.shape[0] != checked(logits).shape[0]:
            raise RuntimeError("seeds must be 1-D with batch_size elements")
        steps = np.arange(1, logits.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        key = hashed(seeds.numpy().astype(np.uint64))
        bits = hashed(key[:, np.newaxis] + steps) >> np.uint64(11)
        noise = -np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-53))
        return (logits.double() + torch.from_numpy(noise)).argmax(dim=-1)

    return {"greedy_argmax": greedy_argmax, "fused_gumbel_argmax": fused_gumbel_argmax}


STANDINS = (
    StandIn("torch.ops._C", cpu_operators),
    StandIn("xgrammar", xgrammar),
    StandIn("vllm.triton_utils", triton_utils, facts=("HAS_TRITON",)),
    StandIn("vllm.logger", logger),
    StandIn("vllm.platforms", platforms, facts=("device_type", "get_cpu_architecture", "num_compute_units")),
    StandIn("vllm._aiter_ops", aiter_ops),
    StandIn("vllm.v1.attention.backends.flashinfer", flashinfer_attention),
    StandIn("vllm._custom_ops", custom_ops),
    StandIn("vllm:SamplingParams", sampling_params),
    StandIn("vllm.sampling_params:SamplingParams", sampling_params),
    StandIn("vllm:PoolingParams", pooling_params),
    StandIn("vllm.pooling_params:PoolingParams", pooling_params),
    StandIn("vllm.utils.platform_utils:is_uva_available", uva_available, facts=("is_uva_available",)),
    StandIn("vllm.utils.torch_utils:_patched_set_stream", set_stream),
    StandIn("vllm.utils.torch_utils:get_accelerator_view_from_cpu_tensor", view_of_host_memory),
    StandIn("vllm.utils.torch_utils:get_cuda_view_from_cpu_tensor", view_of_host_memory),
)

BUILT = (
    "vllm.vllm_flash_attn",
    "vllm.grpc",
    "vllm.third_party",
)
"""Modules that a build of vLLM makes or fetches, besides those whose names begin with an underscore."""

NOISE = tuple(
    f"vllm.v1.worker.gpu.sample.gumbel:{name}"
    for name in ("tl_rand32", "tl_rand64", "murmur3_uniform32", "murmur3_uniform64")
)
"""Functions that give a kernel its uniform numbers, besides Triton's own; no version has all of them."""

CONCERNS = (
    "vllm/v1/outputs.py",
    "vllm/v1/sample",
    "vllm/v1/spec_decode",
    "vllm/v1/structured_output",
    "vllm/v1/watermarking",
    "vllm/v1/worker/gpu/buffer_utils.py",
    "vllm/v1/worker/gpu/input_batch.py",
    "vllm/v1/worker/gpu/sample",
    "vllm/v1/worker/gpu/spec_decode",
    "vllm/v1/worker/gpu/states.py",
    "vllm/v1/worker/gpu/structured_outputs.py",
    "vllm/v1/worker/gpu_input_batch.py",
)
"""Sampler and mask code, and what prepares its inputs."""
