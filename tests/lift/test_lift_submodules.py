"""`from . import h` in a package's own `__init__`: the name is the submodule, in the closure and when loaded."""

from __future__ import annotations

from pathlib import Path

from difftest.lift.closure import find_closure
from difftest.lift.load import load_arms
from difftest.lift.standins import StandIns
from difftest.run.plan import ArmSource
from difftest.trees import open_tree

FILES = {
    "pack/__init__.py": "from . import h\n",
    "pack/h.py": "def q(x):\n    return x + 1\n",
    "pack/m.py": "from . import h\n\n\ndef f(x):\n    return h.q(x)\n\n\ng = eval('lambda x: x * 2')\n",
}


def tree(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_closure_ends_and_holds_the_submodule(tmp_path: Path) -> None:
    with open_tree(str(tree(tmp_path / "tree"))) as opened:
        arm = ArmSource("base", opened, tmp_path / "arm", {})
        closure = find_closure(arm.sources, ["pack.m:f"], StandIns())
    assert closure.reaches("pack.h:q")


def test_it_runs_and_code_made_by_eval_is_nobody_elses(tmp_path: Path) -> None:
    with load_arms([str(tree(tmp_path / "tree"))], tmp_path / "arms") as (arm,):
        assert arm.get("pack.m:f")(1) == 2
        assert arm.get("pack.m:g")(4) == 8
        assert arm.loader.strangers() == []
