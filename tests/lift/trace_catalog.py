"""Runs the first cases of catalog targets and prints, as JSON, which lines of the tree ran outside the closure.

python trace_catalog.py TREE CASES [TARGET...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from difftest import catalog
from difftest.call.interpreter import bridge
from difftest.call.values import own_copy
from difftest.lift.arm import LiftedArm
from difftest.lift.closure import Closure
from difftest.lift.loader import Loader
from difftest.lift.source import SourceModule
from difftest.run.plan import ArmSource, Planner
from difftest.trees import open_tree
from difftest.trees.cache import cache_folder


def _tracer(folder: str, seen: set[tuple[str, int, str]]) -> Callable[[FrameType, str, Any], Any]:
    def lines(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen.add((frame.f_code.co_filename[len(folder) + 1 :], frame.f_lineno, frame.f_code.co_name))
        return lines

    inside: dict[CodeType, bool] = {}

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in inside:
            inside[code] = code.co_filename.startswith(folder)
        return lines if inside[code] else None

    return calls


def _allowed(closure: Closure, arm: ArmSource) -> set[tuple[str, int]]:
    """Lines of the closure's pieces. The rows of a table of which entries are pieces run when the table is made."""
    found = {(p.path, n) for p in closure.pieces.values() for n in range(p.first, p.last + 1)}
    for module, qualname in closure.pieces:
        if qualname.endswith("]"):
            facts = arm.sources.facts(module)
            assert facts is not None
            for part in facts.parts(qualname.partition("[")[0]):
                found |= {(facts.path, n) for n in range(part.first, part.last + 1)}
    return found


def main(spec: str, count: int, wanted: list[str]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.compile = lambda model=None, **_: model if model is not None else lambda function: function
    bridge()
    targets = catalog.load_targets(catalog.case_modules())
    outlines = [o for o in catalog.outline(cache_folder()) if not wanted or o.name in wanted]
    report: dict[str, Any] = {}
    with open_tree(spec) as tree, tempfile.TemporaryDirectory() as scratch:
        arm = ArmSource("traced", tree, Path(scratch), {})
        planner = Planner()
        for number, outline in enumerate(outlines):
            bound = planner.bind(outline, arm)
            if bound.closure is None:
                report[outline.name] = {"ran": 0, "failed": 0, "outside": [], "reason": bound.reason or "absent"}
                continue
            folder = str(Path(scratch, str(number)))

            def file_of(source: SourceModule, folder: str = folder) -> str:
                path = Path(folder, source.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.data)
                return str(path)

            loader = Loader(f"traced{number}", arm.sources, planner.standins(outline.package), file_of)
            lifted = LiftedArm("base", loader)
            target = targets[outline.name]
            seen: set[tuple[str, int, str]] = set()
            ran = failed = 0
            errors: list[str] = []
            for index, case in enumerate(target.cases()):
                if index >= count:
                    break
                torch.manual_seed(0)
                sys.settrace(_tracer(folder, seen))
                try:
                    pool = own_copy(lifted, case.build())
                    if target.prepare is not None:
                        call = target.prepare(lifted, pool)
                        call.fn(*call.args, **call.kwargs)
                    else:
                        function = lifted.first(*outline.symbols)
                        function(**lifted.bind(function, pool))
                    ran += 1
                except Exception as error:
                    failed += 1
                    errors.append(f"{type(error).__name__}: {str(error)[:200]}")
                finally:
                    sys.settrace(None)
            allowed = _allowed(bound.closure, arm)
            outside = sorted({(path, line, name) for path, line, name in seen if (path, line) not in allowed})
            report[outline.name] = {
                "ran": ran,
                "failed": failed,
                "outside": outside,
                "lines": len(seen),
                "errors": errors[:2],
            }
    return report


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])))
