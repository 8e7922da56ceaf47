"""Calls that allocate without initialising, each under two fills; run in a process that is set up like a worker.

Prints JSON: name -> what is undefined: null for nothing, or {leaf: [indices] or "whole"}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from difftest.call.poison import POISON, fills

POISON.install()

from torch import empty as imported_empty  # noqa: E402 - as code under test imports it: after the worker's set-up

from difftest.call.outcome import Caller, Outcome  # noqa: E402
from difftest.call.rng import GlobalStates  # noqa: E402
from difftest.compare.outcomes import undefined_leaves  # noqa: E402
from difftest.target import Call, Case, Pool, Target  # noqa: E402


class Arm:
    label, device = "base", "cpu"

    def note(self, text: str) -> None:
        pass


def partly(tensor: Any) -> Any:
    """All but element 1 written."""
    flat = tensor.reshape(-1)
    flat[0] = 1
    flat[2:] = 2
    return tensor


def summed(x: torch.Tensor) -> int:
    return int(torch.empty(3, dtype=torch.int64).sum() & 0xFFFF)


def length(x: torch.Tensor) -> list[int]:
    return [1] * int(torch.empty(1, dtype=torch.uint8)[0] & 7)


def branch(x: torch.Tensor) -> int:
    if torch.empty(1, dtype=torch.int8)[0] < 0:
        raise IndexError("negative")
    return 1


kept: list[torch.Tensor] = []


def cached(x: torch.Tensor) -> torch.Tensor:
    """A buffer of the module that is made once, and written before it is used: defined."""
    if not kept:
        kept.append(torch.empty(3))
    return kept[0].copy_(x)


def reused(x: torch.Tensor) -> torch.Tensor:
    """Frees a block that holds good values and leaves its successor, likely the same block, unwritten."""
    first = x + 1
    del first
    return torch.empty_like(x)


def out(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(3, out=x)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "written": lambda x: torch.empty(3).copy_(x),
    "torch.empty": lambda x: partly(torch.empty(3)),
    "torch.empty of a shape": lambda x: partly(torch.empty((3, 1), dtype=torch.bfloat16)),
    "torch.empty with more arguments": lambda x: partly(
        torch.empty(3, dtype=torch.int32, device="cpu", requires_grad=False, memory_format=torch.contiguous_format)
    ),
    "from torch import empty": lambda x: partly(imported_empty(3)),
    "torch.empty_like": lambda x: partly(torch.empty_like(x)),
    "torch.empty_strided": lambda x: partly(torch.empty_strided((3,), (2,))),
    "torch.empty_permuted": lambda x: partly(torch.empty_permuted((3, 1), (1, 0))),
    "new_empty": lambda x: partly(x.new_empty(3, dtype=torch.int64)),
    "new_empty_strided": lambda x: partly(x.new_empty_strided((3,), (1,))),
    "resize_": lambda x: partly(torch.zeros(0).resize_(3)),
    "resize_ that grows": lambda x: torch.zeros(2).resize_(3),
    "resize_as_": lambda x: partly(torch.zeros(0).resize_as_(x)),
    "torch.Tensor(n)": lambda x: partly(torch.Tensor(3)),
    "torch.LongTensor(n)": lambda x: partly(torch.LongTensor(3)),
    "torch.FloatTensor(n, m)": lambda x: partly(torch.FloatTensor(3, 1)),
    "tensor.new(n)": lambda x: partly(x.new(3)),
    "UntypedStorage(n)": lambda x: partly(torch.tensor([], dtype=torch.uint8).set_(torch.UntypedStorage(3))),
    "torch.empty of nothing": lambda x: torch.empty(0, 3),
    "torch.empty of a scalar": lambda x: torch.empty(()),
    "numpy.empty": lambda x: partly(np.empty(3)),
    "numpy.empty of bytes": lambda x: partly(np.empty(3, np.uint8)),
    "numpy.empty in columns": lambda x: partly(np.empty((3, 1), order="F")),
    "numpy.empty_like": lambda x: partly(np.empty_like(x.numpy())),
    "numpy.ndarray(shape)": lambda x: partly(np.ndarray((3,), np.int32)),
    "numpy.empty of a scalar": lambda x: np.empty(()),
    "numpy.empty of objects": lambda x: [np.empty(2, object)[0]],
    "numpy.zeros": lambda x: np.zeros(3),
    "torch.zeros": lambda x: torch.zeros(1000),
    "a sum of undefined bytes": summed,
    "a list as long as they say": length,
    "an exception that depends on them": branch,
    "a buffer kept by the module": cached,
    "a block that was used before": reused,
    "torch.empty into an input": out,
    "a large tensor": lambda x: torch.empty(1 << 22)[-1:].clone(),
    "an operator's own buffer": lambda x: torch.nonzero(x),
}


def call(caller: Caller, function: Callable[..., Any], fill: int) -> Outcome:
    def prepare(arm: Any, pool: Pool) -> Call:
        return Call(function, kwargs=pool)

    pool: Pool = {"x": torch.tensor([1.0, 2.0, 3.0])}
    found = caller.call(Target("t", (), list, prepare), "", Arm(), Case("c", dict), pool, fill)  # type: ignore[arg-type]
    assert isinstance(found, Outcome)
    return found


def elements(returned: Any, part: Any) -> Any:
    """The elements of the array that was returned which the undefined bytes are in."""
    if part is None or len(part) != len(returned[5]):
        return "whole"
    return np.unique(part.nonzero()[0] // (len(part) // math.prod(returned[2]))).tolist()


def main() -> None:
    caller = Caller("cpu", GlobalStates(), str)
    result: dict[str, Any] = {"native": POISON.native}
    for number, (name, function) in enumerate(CALLS.items()):
        first, second = fills(f"{number:x}")
        for _ in range(20):  # blocks of every size come to be reused
            torch.full((3,), 9.0), np.full(3, 9.0)
        one, other = call(caller, function, first), call(caller, function, second)
        assert call(caller, function, first) == one
        found = undefined_leaves(one, other, (first, second))
        result[name] = {leaf: elements(one.returned, part) for leaf, part in found.items()} or None
    print(json.dumps(result))


if __name__ == "__main__":
    main()
