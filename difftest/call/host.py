"""What accelerator code asks of torch and a host without an accelerator cannot give: pinned memory, streams and the
properties of a device.

Pinned memory is plain memory there, and everything runs in the order it is written in. Neither is an outcome of a
call, so both arms get the same; where one arm alone asks for it, the report says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_PINNING = ("zeros", "ones", "full", "empty", "empty_strided", "tensor", "arange", "zeros_like", "empty_like")
ASKED: set[str] = set()
"""What code asked for since this was cleared that PyTorch refuses where there is no accelerator."""
PINNED = "pinned memory"
_bridged: tuple[str, ...] | None = None


class HostStream:
    """A stream on a host: work is done when it is handed in."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event if event is not None else HostEvent()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class HostEvent:
    """An event on a host: it has always happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class HostProperties:
    """What launches go by, as the platform's stand-in has it: so few compute units that one program serves several
    rows, as with the large batches of an accelerator."""

    name = "host"
    multi_processor_count = 3


def bridge_host() -> tuple[str, ...]:
    """Give accelerator code what it asks of a host; once a process, before the code under test is loaded.

    Returns:
        What was bridged, in words; empty where there is an accelerator, which is left as it is.
    """
    global _bridged
    if _bridged is None:
        _bridged = () if torch.cuda.is_available() else _install()
    return _bridged


def _install() -> tuple[str, ...]:
    for name in _PINNING:
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = _pin_memory  # type: ignore[method-assign, assignment]
    stream: Any = HostStream()
    torch.cuda.Stream = HostStream  # type: ignore[misc, assignment]
    torch.cuda.Event = HostEvent  # type: ignore[misc, assignment]
    properties: Any = HostProperties()
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.current_stream = lambda device=None: stream
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.stream = lambda chosen: chosen if chosen is not None else stream  # type: ignore
    return ("pinned memory is plain memory", "streams run in order", "a device has 3 compute units")


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.pop("pin_memory", None):
            ASKED.add(PINNED)
        return make(*args, **kwargs)

    return call


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy, as pinning is for memory that is not pinned yet."""
    ASKED.add(PINNED)
    return self.clone()
