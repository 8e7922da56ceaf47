"""Settings of the whole process that code can change: torch's defaults and modes, numpy's error handling, the folder,
environment variables, warning filters, the standard streams and their descriptors.

They are read after every call. What a call leaves changed is part of its outcome and is put back, so that one arm's
call can make the other arm's neither agree nor differ.
"""

from __future__ import annotations

import _locale
import contextlib
import gc
import logging
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

_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
_PRINTING: Any = torch._tensor_str.PRINT_OPTS
_environment: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # bytes, so quickly compared

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
RARE = (
    "environment variables",
    "module search path",
    "decimal context",
    "locale",
    "torch print options",
    "numpy print options",
    "logging level",
    "standard descriptors",
)

_IMPORTING = "warning filters"
"""Importing a library changes them: put back, but not worth a word when loading an arm does it."""
_kept: list[int] = []  # copies of the standard descriptors


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


def _read_rare() -> tuple[Any, ...]:
    """What calls hardly ever change, read after them only, and as it is: dicts and lists are the process's own."""
    return (
        _environment,
        sys.path,
        None if (decimal := sys.modules.get("decimal")) is None else _decimal_context(decimal),
        _locale.setlocale(_locale.LC_ALL),
        tuple(vars(_PRINTING).values()),
        np.get_printoptions(),
        (logging.root.level, logging.root.manager.disable),
        (_is_open(0), _is_open(1), _is_open(2)),
    )


def _decimal_context(decimal: Any) -> tuple[Any, ...]:
    context = decimal.getcontext()
    return tuple([getattr(context, setting) for setting in _DECIMAL])


def _is_open(descriptor: int) -> bool:
    """Whether a descriptor is what programs are started with: open, and handed on to programs that are started."""
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False


class ProcessState:
    """The settings that every call starts from: those at the time this object is made."""

    def __init__(self) -> None:
        if not _kept:
            _kept.extend(os.dup(number) if _is_open(number) else -1 for number in range(3))
        self.start = _read()
        self.rare = _copied(_read_rare())

    def loaded(self) -> tuple[tuple[str, str], ...]:
        """What making the inputs of a call changed; put back. Of what importing a library changes, nothing is said."""
        now = _read()
        if now == self.start:
            return ()
        return tuple([(name, text) for name, text in self._put_back(NAMES, self.start, now) if name != _IMPORTING])

    def settle(self) -> tuple[tuple[str, str], ...]:
        """What is not as it was: (name, value now). It is put back; what cannot be becomes the new start."""
        now, rare = _read(), _read_rare()
        if now == self.start and rare == self.rare:
            return ()
        return self._put_back(NAMES, self.start, now) + self._put_back(RARE, self.rare, _copied(rare))

    def _put_back(
        self, names: tuple[str, ...], start: tuple[Any, ...], now: tuple[Any, ...]
    ) -> tuple[tuple[str, str], ...]:
        changed = [(n, value, before) for n, value, before in zip(names, now, start, strict=True) if value != before]
        for name, _, before in changed:
            _restore(name, before)
        if changed:
            self.start, self.rare = _read(), _copied(_read_rare())
        return tuple([(name, _changed_text(value, before)) for name, value, before in changed])


def _copied(rare: tuple[Any, ...]) -> tuple[Any, ...]:
    return (dict(rare[0]), list(rare[1]), *rare[2:])


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
    elif name == "environment variables":
        for variable in set(os.environ) - {os.fsdecode(key) for key in value}:
            del os.environ[variable]
        for key, held in value.items():
            if _environment.get(key) != held:
                os.environ[os.fsdecode(key)] = os.fsdecode(held)
    elif name == "module search path":
        sys.path[:] = value
    elif name == "decimal context" and value is not None:
        context = sys.modules["decimal"].getcontext()
        for setting, held in zip(_DECIMAL, value, strict=True):
            setattr(context, setting, held)
    elif name == "locale":
        _locale.setlocale(_locale.LC_ALL, value)
    elif name == "torch print options":
        for setting, held in zip(vars(_PRINTING), value, strict=True):
            setattr(_PRINTING, setting, held)
    elif name == "numpy print options":
        np.set_printoptions(**value)
    elif name == "logging level":
        logging.root.setLevel(value[0])
        logging.disable(value[1])
    elif name == "standard descriptors":
        for descriptor, was_open in enumerate(value):
            if was_open:
                os.dup2(_kept[descriptor], descriptor)


def _changed_text(value: Any, start: Any) -> str:
    """A setting in words; of a whole collection only what is new, changed or gone."""
    if isinstance(value, dict) and isinstance(start, dict) and value and isinstance(next(iter(value)), bytes):
        names = sorted(key for key in {**start, **value} if start.get(key) != value.get(key))
        texts = [f"{os.fsdecode(n)}={os.fsdecode(value[n])}" if n in value else f"no {os.fsdecode(n)}" for n in names]
        return "; ".join(texts)
    if isinstance(value, dict) and isinstance(start, dict):
        return "; ".join([f"{key}={held}" for key, held in value.items() if start.get(key) != held])
    if isinstance(value, list):
        return "; ".join(
            [*[f"with {x}" for x in value if x not in start], *[f"no {x}" for x in start if x not in value]]
        )
    return _text(value)


def _text(value: Any) -> str:
    """A setting in words, without addresses."""
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str | dict | torch.dtype):
        return str(value)
    return str(getattr(value, "device", None) or getattr(value, "__name__", None) or type(value).__name__)
