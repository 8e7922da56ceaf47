"""What `difftest run` is measured against: import torch, lift both versions, loop over the cases, compare with `==`.

usage: bare_script.py BASE HEAD TARGET
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from difftest.call.values import own_copy
from difftest.lift.load import load_arms


def equal(x: Any, y: Any) -> bool:
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(equal(a, b) for a, b in zip(x, y, strict=True))
    same = x == y
    return same if isinstance(same, bool) else bool(same.all())


def main(base: str, head: str, module: str) -> None:
    torch.set_num_threads(1)
    (target,) = importlib.import_module(f"difftest.cases.{module}").TARGETS
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        arms = stack.enter_context(load_arms([base, head], Path(scratch)))
        equals = total = 0
        for case in target.cases():
            pool = case.build()
            outcomes = []
            for arm in arms:
                private = own_copy(arm, pool)
                call = target.prepare(arm, private)
                try:
                    outcomes.append(call.fn(*call.args, **call.kwargs))
                except Exception as error:
                    outcomes.append(str(error))
            total += 1
            equals += equal(*outcomes)
    print(f"{equals} of {total} equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
