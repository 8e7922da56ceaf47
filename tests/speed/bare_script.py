"""What `difftest run` is measured against: import torch, lift both versions, loop over the cases, compare with `==`.

usage: bare_script.py BASE HEAD TARGET
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from difftest.call.values import Copier
from difftest.lift.arm import LiftedArm
from difftest.lift.closure import Sources
from difftest.lift.loader import Loader
from difftest.profiles import standins_for
from difftest.trees import open_tree


def equal(x: Any, y: Any) -> bool:
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(equal(a, b) for a, b in zip(x, y, strict=True))
    same = x == y
    return same if isinstance(same, bool) else bool(same.all())


def lift(label: str, spec: str, folder: Path) -> LiftedArm:
    tree = open_tree(spec)

    def find(name: str) -> tuple[str | None, bool] | None:
        module = tree.module(name)
        return None if module is None else (module.path, module.is_package)

    def file_of(source: Any) -> str:
        path = folder / label / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.data)
        return str(path)

    return LiftedArm(label, Loader(label, Sources(find, tree.read), standins_for("vllm"), file_of))


def main(base: str, head: str, module: str) -> None:
    torch.set_num_threads(1)
    (target,) = importlib.import_module(f"difftest.cases.{module}").TARGETS
    with tempfile.TemporaryDirectory() as scratch:
        arms = [lift(label, spec, Path(scratch)) for label, spec in (("base", base), ("head", head))]
        equals = total = 0
        for case in target.cases():
            pool = case.build()
            outcomes = []
            for arm in arms:
                private = Copier(arm)(pool)
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
