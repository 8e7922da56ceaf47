"""Proof that the harness sees the head: two small versions that differ in one constant must come out different.

They go the same way as the arms do: lifted by a :class:`Loader` from files, called by a :class:`Caller`. In the first
pair the constant is Python's; in the second it is a `tl.constexpr` that a Triton kernel stores, which a cache of
compiled kernels keyed without it would hide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from difftest.call.outcome import Caller, NotCalled
from difftest.call.poison import FILLS
from difftest.errors import DifftestError
from difftest.lift.arm import LiftedArm
from difftest.lift.loader import Loader
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIns
from difftest.target import Case, Pool, Target

_PLAIN = """\
LIMIT = {constant}


def below(tokens):
    return [token for token in tokens if token < LIMIT]
"""

_TRITON = """\
import torch
import triton
import triton.language as tl

SCALE = tl.constexpr({constant})


@triton.jit
def _store(out):
    tl.store(out, SCALE)


def scaled(out):
    _store[(1,)](out)
    return out.tolist()
"""

_CONSTANTS = (3, 4)
_EXPECTED = {"below": ([2], [2, 3]), "scaled": ([3], [4])}


def check_plain(caller: Caller, folder: Path, make: Callable[[str, str, Path], LiftedArm] | None = None) -> None:
    """Raises DifftestError when two versions that differ in a module constant do not each do what they say."""
    _check(caller, folder, "below", _PLAIN, lambda: {"tokens": [2, 3, 5]}, make or partial(_arm, device=caller.device))


def check_triton(caller: Caller, folder: Path, make: Callable[[str, str, Path], LiftedArm] | None = None) -> None:
    """Raises DifftestError when two versions that differ in a `tl.constexpr` do not each do what they say."""
    _check(
        caller,
        folder,
        "scaled",
        _TRITON,
        lambda: {"out": torch.zeros(1, dtype=torch.int32)},
        make or partial(_arm, device=caller.device),
    )


def _check(
    caller: Caller,
    folder: Path,
    function: str,
    text: str,
    build: Callable[[], Pool],
    make: Callable[[str, str, Path], LiftedArm],
) -> None:
    symbol = f"canary:{function}"
    target = Target("canary", (symbol,), list)
    case = Case("canary", build)
    returned: list[Any] = []
    for arm, constant in zip(("canary_base", "canary_head"), _CONSTANTS, strict=True):
        outcome = caller.call(
            target, symbol, make(arm, text.format(constant=constant), folder), case, build(), FILLS[0]
        )
        if isinstance(outcome, NotCalled):
            raise DifftestError(f"the canary {function} could not be called: {outcome.reason}")
        if outcome.raised is not None:
            raise DifftestError(f"the canary {function} raises {outcome.raised[0]}: {outcome.raised[1][:200]}")
        returned.append(outcome.returned)
    wanted = [("ints", "list", tuple(values)) for values in _EXPECTED[function]]
    if returned != wanted:
        raise DifftestError(
            f"the harness is not seeing the head: two versions that differ in one constant gave {returned[0]} and "
            f"{returned[1]}, not {wanted[0]} and {wanted[1]}; nothing is claimed"
        )


def _arm(label: str, text: str, folder: Path, device: str = "cpu") -> LiftedArm:
    """An arm whose tree is one module, `canary`."""
    data = text.encode()

    def find(name: str) -> tuple[str | None, bool] | None:
        return ("canary.py", False) if name == "canary" else None

    def file_of(source: Any) -> str:
        path = folder / label / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return str(path)

    def read(path: str) -> bytes | None:
        return data if path == "canary.py" else None

    return LiftedArm(label, Loader(label, Sources(find, read), StandIns(), file_of), device)
