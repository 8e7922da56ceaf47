"""Copies of memory on a device: made there in the order of its work, and fetched by a thread that may wait for it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

PACKED = 1 << 20
"""Storages up to this many bytes are copied together, by one operation."""


@dataclass(frozen=True)
class Copies:
    """Copies that the device makes when it comes to it.

    Attributes:
        parts: tensors of bytes, and which bytes of them go where: (tensor, [(first byte, size, place)]).
        ready: has happened when they are made.
    """

    parts: Sequence[tuple[torch.Tensor, Sequence[tuple[int, int, int]]]]
    ready: torch.cuda.Event


def copy(pieces: Sequence[tuple[torch.UntypedStorage, int, int, int]]) -> Copies:
    """Let the devices copy pieces of storages: (storage, first byte, size, place that they go to)."""
    parts: list[tuple[torch.Tensor, list[tuple[int, int, int]]]] = []
    packs: dict[torch.device, tuple[list[torch.Tensor], list[tuple[int, int, int]]]] = {}
    for storage, start, size, place in pieces:
        view = torch.empty(0, dtype=torch.uint8, device=storage.device)
        view.set_(storage, start, (size,), (1,))
        if size > PACKED:
            parts.append((view.clone(), [(0, size, place)]))
            continue
        views, places = packs.setdefault(storage.device, ([], []))
        places.append((places[-1][0] + places[-1][1] if places else 0, size, place))
        views.append(view)
    parts += [(torch.cat(views), places) for views, places in packs.values()]
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record(torch.cuda.current_stream(parts[-1][0].device))
    return Copies(parts, ready)


class Fetcher:
    """Fetches copies into memory. Used by one thread, which waits for the device.

    Args:
        memory: where they go.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._relaxed = False

    def __call__(self, copies: Copies) -> None:
        """Wait until the copies are made, and fetch them."""
        if not self._relaxed:
            self._relaxed = True
            relax_graph_capture()
        copies.ready.synchronize()
        for tensor, places in copies.parts:
            if tensor.is_cuda:
                stream = self._streams.setdefault(tensor.device, torch.cuda.Stream(tensor.device))  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    tensor = tensor.cpu()
            view = memoryview(tensor.numpy())  # type: ignore[arg-type]
            for first, size, place in places:
                self._memory[place : place + size] = view[first : first + size]


def relax_graph_capture() -> None:
    """Let this thread wait for a device and copy from it while another thread captures a CUDA graph.

    In the default mode, such calls of any thread end the capture with an error. That is
    `cuThreadExchangeStreamCaptureMode` of the CUDA driver, with CU_STREAM_CAPTURE_MODE_RELAXED.

    Raises:
        OSError: there is no driver library.
    """
    relaxed = ctypes.c_int(2)
    status = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))
    if status:
        raise RuntimeError(f"cuThreadExchangeStreamCaptureMode: error {status} of the CUDA driver")
