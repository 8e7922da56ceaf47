"""Fills memory that code allocates without initialising, so that bytes nobody wrote can be told from bytes that were.

Every call of an arm that allocates such memory is made twice, under two fills. Bytes of the outcome that follow the
fill are undefined: they are what a reused block of the allocator happened to hold. The fills differ in every bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

FILLS = (0xA5, 0x5A)

_TORCH_FUNCTIONS = ("empty", "empty_like", "empty_strided", "empty_permuted")
_TENSOR_METHODS = ("new_empty", "new_empty_strided")
_NUMPY_FUNCTIONS = ("empty", "empty_like")


class Poison:
    """State of the poisoned allocators of this process.

    Attributes:
        fill: the byte that new memory is filled with; None leaves memory as it comes.
        allocations: how many poisoned allocations were made since the count was last set to 0.
    """

    def __init__(self) -> None:
        self.fill: int | None = None
        self.allocations = 0
        self._installed = False

    def install(self) -> None:
        """Replace the allocating functions of torch and numpy. Once a process, before code under test is loaded."""
        if self._installed:
            return
        self._installed = True
        for name in _TORCH_FUNCTIONS:
            setattr(torch, name, self._torch(getattr(torch, name)))
        for name in _TENSOR_METHODS:
            setattr(torch.Tensor, name, self._torch(getattr(torch.Tensor, name)))
        for name in _NUMPY_FUNCTIONS:
            setattr(np, name, self._numpy(getattr(np, name)))

    def _torch(self, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(real)
        def allocate(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = real(*args, **kwargs)
            if self.fill is not None and "out" not in kwargs:
                self.allocations += 1
                if tensor.numel() and tensor.device.type != "meta":
                    tensor.untyped_storage().fill_(self.fill)  # type: ignore[attr-defined]
            return tensor

        return allocate

    def _numpy(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def allocate(*args: Any, **kwargs: Any) -> Any:
            array = real(*args, **kwargs)
            if self.fill is not None:
                self.allocations += 1
                if array.dtype.hasobject is False and array.size:
                    (array.T if array.flags.f_contiguous and not array.flags.c_contiguous else array).view(
                        np.uint8
                    ).fill(self.fill) if array.ndim else array.view(np.uint8).fill(self.fill)
            return array

        return allocate


POISON = Poison()
