"""What the numbers of a recording may depend on, and which rank this process is. Needs torch."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from difftest import __version__
from difftest.record.generators import cuda_in_use

_FLAGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "TRITON_INTERPRET",
    "VLLM_BATCH_INVARIANT",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "VLLM_USE_V1",
    "VLLM_USE_V2_MODEL_RUNNER",
)


def environment() -> dict[str, Any]:
    """What the numbers may depend on: versions, device, driver, flags. No names of machines, users or folders."""
    versions = {"difftest": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "triton", "vllm"):
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if isinstance(version, str):
            versions[name] = str(version)
    found: dict[str, Any] = {
        "versions": versions,
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "flags": {name: os.environ[name] for name in _FLAGS if name in os.environ},
        "device": "cpu",
    }
    if cuda_in_use():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
        with contextlib.suppress(OSError):
            found["driver"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return found


def own_rank() -> tuple[int, int]:
    """Rank of this process and number of ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
