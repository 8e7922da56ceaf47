"""Settings of the whole process that code can change: torch's defaults and modes, numpy's error handling, the folder.

They are read after every call. What a call leaves changed is part of its outcome and is put back, so that one arm's
call can make the other arm's neither agree nor differ.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import torch

_getsignal = import_module("_signal").getsignal  # without the enum members, which take most of the time
_SMALLEST = [5e-324]  # in a list, so that no compiler multiplies it beforehand
_SIGNALS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)

NAMES = (
    "torch default dtype",
    "torch default device",
    "torch modes",
    "torch threads",
    "torch deterministic algorithms",
    "torch float32 matmul precision",
    "torch gradients",
    "torch autocast",
    "torch cuDNN settings",
    "denormals flushed to zero",
    "numpy error handling",
    "current folder",
    "recursion limit",
    "signal handlers",
    "Python threads",
    "standard streams",
    "tracing",
    "garbage collection",
    "warning filters",
)

_SILENT = "warning filters"
"""Put back, but never reported: importing a library changes them."""


def _read() -> tuple[Any, ...]:
    core = torch._C
    try:
        folder = os.getcwd()  # noqa: PTH109 - seven times as fast as Path.cwd
    except OSError:
        folder = "a folder that no longer exists"
    return (
        torch.get_default_dtype(),
        getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None),
        (core._len_torch_function_stack(), core._len_torch_dispatch_stack()),
        torch.get_num_threads(),
        (core._get_deterministic_algorithms(), core._get_deterministic_algorithms_warn_only()),
        core._get_float32_matmul_precision(),
        (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        core._is_any_autocast_enabled(),
        (core._get_cudnn_deterministic(), core._get_cudnn_benchmark(), core._get_cudnn_allow_tf32()),
        _SMALLEST[0] * 1.0 == 0.0,
        np.geterr(),
        folder,
        sys.getrecursionlimit(),
        tuple([_getsignal(number) for number in _SIGNALS]),
        len(threading._active),  # type: ignore[attr-defined]
        (sys.stdin, sys.stdout, sys.stderr),
        (sys.gettrace(), sys.getprofile()),
        gc.isenabled(),
        tuple(warnings.filters),
    )


class ProcessState:
    """The settings that every call starts from: those at the time this object is made."""

    def __init__(self) -> None:
        self.start = _read()

    def settle(self) -> tuple[tuple[str, str], ...]:
        """What is not as it was: (name, value now). It is put back; what cannot be becomes the new start."""
        now = _read()
        if now == self.start:
            return ()
        changed = tuple(
            (name, _text(value))
            for name, value, start in zip(NAMES, now, self.start, strict=True)
            if value != start and name != _SILENT
        )
        self._restore()
        self.start = _read()
        return changed

    def _restore(self) -> None:
        core = torch._C
        start = dict(zip(NAMES, self.start, strict=True))
        torch.set_default_device(start["torch default device"] and start["torch default device"].device)
        functions, dispatches = start["torch modes"]
        while core._len_torch_function_stack() > functions:
            core._pop_torch_function_stack()
        while core._len_torch_dispatch_stack() > dispatches:
            core._pop_torch_dispatch_stack(None)
        torch.set_default_dtype(start["torch default dtype"])
        torch.set_num_threads(start["torch threads"])
        deterministic, warn_only = start["torch deterministic algorithms"]
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_float32_matmul_precision(start["torch float32 matmul precision"])
        torch.set_grad_enabled(start["torch gradients"][0])
        cudnn: Any = torch.backends.cudnn
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = start["torch cuDNN settings"]
        torch.set_flush_denormal(start["denormals flushed to zero"])
        np.seterr(**start["numpy error handling"])
        with contextlib.suppress(OSError):  # it may be gone, which the outcome says
            os.chdir(start["current folder"])
        sys.setrecursionlimit(start["recursion limit"])
        for number, handler in zip(_SIGNALS, start["signal handlers"], strict=True):
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)
        sys.stdin, sys.stdout, sys.stderr = start["standard streams"]
        trace, profile = start["tracing"]
        sys.settrace(trace)
        sys.setprofile(profile)
        (gc.enable if start["garbage collection"] else gc.disable)()
        if tuple(warnings.filters) != start["warning filters"]:
            warnings.resetwarnings()
            warnings.filters[:] = start["warning filters"]  # type: ignore[index]


def _text(value: Any) -> str:
    """A setting in words, without addresses."""
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str | dict | torch.dtype):
        return str(value)
    return str(getattr(value, "device", None) or getattr(value, "__name__", None) or type(value).__name__)
