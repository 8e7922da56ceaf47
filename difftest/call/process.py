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
    device = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)  # is a function mode too
    try:
        folder = os.getcwd()  # noqa: PTH109 - seven times as fast as Path.cwd
    except OSError:
        folder = "a folder that no longer exists"
    return (
        torch.get_default_dtype(),
        device,
        (core._len_torch_function_stack() - (device is not None), core._len_torch_dispatch_stack()),
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
        for name, value, start in zip(NAMES, now, self.start, strict=True):
            if value != start:
                _restore(name, start)
        self.start = _read()
        return changed


def _restore(name: str, value: Any) -> None:
    """Put one setting back. By the lowest-level setter, since some of torch's public ones import its compiler."""
    core: Any = torch._C
    if name == "torch default dtype":
        torch.set_default_dtype(value)
    elif name == "torch default device":
        torch.set_default_device(value and value.device)
    elif name == "torch modes":
        functions, dispatches = value
        while core._len_torch_function_stack() > functions:
            core._pop_torch_function_stack()
        while core._len_torch_dispatch_stack() > dispatches:
            core._pop_torch_dispatch_stack(None)
    elif name == "torch threads":
        torch.set_num_threads(value)
    elif name == "torch deterministic algorithms":
        core._set_deterministic_algorithms(value[0], warn_only=value[1])
    elif name == "torch float32 matmul precision":
        core._set_float32_matmul_precision(value)
    elif name == "torch gradients":
        torch.set_grad_enabled(value[0])
    elif name == "torch cuDNN settings":
        core._set_cudnn_deterministic(value[0])
        core._set_cudnn_benchmark(value[1])
        core._set_cudnn_allow_tf32(value[2])
    elif name == "denormals flushed to zero":
        torch.set_flush_denormal(value)
    elif name == "numpy error handling":
        np.seterr(**value)
    elif name == "current folder":
        with contextlib.suppress(OSError):  # it may be gone, which the outcome says
            os.chdir(value)
    elif name == "recursion limit":
        sys.setrecursionlimit(value)
    elif name == "signal handlers":
        for number, handler in zip(_SIGNALS, value, strict=True):
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)
    elif name == "standard streams":
        sys.stdin, sys.stdout, sys.stderr = value
    elif name == "tracing":
        sys.settrace(value[0])
        sys.setprofile(value[1])
    elif name == "garbage collection":
        (gc.enable if value else gc.disable)()
    elif name == "warning filters":
        warnings.resetwarnings()
        warnings.filters[:] = value  # type: ignore[index]


def _text(value: Any) -> str:
    """A setting in words, without addresses."""
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str | dict | torch.dtype):
        return str(value)
    return str(getattr(value, "device", None) or getattr(value, "__name__", None) or type(value).__name__)
