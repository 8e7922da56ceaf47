"""Custom operators: both arms register theirs in one process, and each reaches its own."""

# ruff: noqa: E501 (a row of a table stays on its line)
from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from small_trees import arm_of, closure_of, names

torch = pytest.importorskip("torch")

_number = itertools.count()

CUSTOM_OP = """
    import torch
    from torch.library import custom_op
    @custom_op("{ns}::scale", mutates_args=())
    def scale(x: torch.Tensor, by: int = 1) -> torch.Tensor:
        return x * {value} * by
    @scale.register_fake
    def _(x, by=1): return torch.empty_like(x)
    def f(x): return {call}
    """
LIBRARY = """
    import torch
    from torch.library import Library
    lib = Library("{ns}", "FRAGMENT")
    lib.define("scale(Tensor x) -> Tensor")
    def _scale(x): return x * {value}
    lib.impl("scale", _scale, "CPU")
    def f(x): return torch.ops.{ns}.scale(x)
    """
DEFINE = """
    import torch
    torch.library.define("{ns}::scale", "(Tensor x) -> Tensor")
    @torch.library.impl("{ns}::scale", "cpu")
    def _scale(x): return x * {value}
    def f(x): return torch.ops.{ns}.scale(x)
    """
# The way of vLLM: a helper that reads the schema off the annotations, here in another file than the operator.
DIRECT = """
    import torch
    from {ns}.helper import direct_register_custom_op
    Tensor = torch.Tensor
    def _scale(x: Tensor, by: "int" = 1) -> torch.Tensor: return x * {value} * by
    def _scale_fake(x: Tensor, by: int = 1) -> torch.Tensor: return torch.empty_like(x)
    direct_register_custom_op(op_name="scale", op_func=_scale, fake_impl=_scale_fake)
    def f(x): return {call}
    """
HELPER = """
    import torch
    from torch.library import Library, infer_schema
    the_library = Library("{ns}", "FRAGMENT")
    def direct_register_custom_op(op_name, op_func, fake_impl=None):
        the_library.define(op_name + infer_schema(op_func, mutates_args=[]))
        the_library.impl(op_name, op_func, dispatch_key="CPU")
        if fake_impl is not None:
            the_library._register_fake(op_name, fake_impl)
    """
ELSEWHERE = """
    import torch
    import {ns}.ops
    def f(x): return torch.ops.{ns}.scale(x)
    """


def _arms(folder: Path, files: dict[str, str], namespace: str, call: str) -> list[Any]:
    made = []
    for value in (2, 3):
        texts = {
            path.format(ns=namespace): text.replace("{ns}", namespace).replace("{value}", str(value)).replace("{call}", call.format(ns=namespace))
            for path, text in files.items()
        }  # fmt: skip
        made.append(arm_of(folder, texts))
    return made


@pytest.mark.parametrize(
    ("files", "call"),
    [
        ({"{ns}/m.py": CUSTOM_OP}, "scale(x)"),
        ({"{ns}/m.py": CUSTOM_OP}, "torch.ops.{ns}.scale(x)"),
        ({"{ns}/m.py": CUSTOM_OP}, "torch.ops.{ns}.scale.default(x, 1)"),
        ({"{ns}/m.py": CUSTOM_OP}, "getattr(torch.ops.{ns}, 'scale')(x)"),
        ({"{ns}/m.py": LIBRARY}, ""),
        ({"{ns}/m.py": DEFINE}, ""),
        ({"{ns}/m.py": DIRECT, "{ns}/helper.py": HELPER}, "torch.ops.{ns}.scale(x)"),
        ({"{ns}/m.py": DIRECT, "{ns}/helper.py": HELPER}, "torch.ops.{ns}.scale(x, by=1)"),
        ({"{ns}/ops.py": DIRECT, "{ns}/helper.py": HELPER, "{ns}/m.py": ELSEWHERE}, ""),
    ],
)
def test_both_arms_register_an_operator_and_each_reaches_its_own(
    tmp_path: Path, files: dict[str, str], call: str
) -> None:
    namespace = f"liftops{next(_number)}"
    base, head = _arms(tmp_path, {"{ns}/__init__.py": "", **files}, namespace, call)
    x = torch.ones(2)
    for _ in range(2):
        assert base.get(f"{namespace}.m:f")(x).tolist() == [2, 2]
        assert head.get(f"{namespace}.m:f")(x).tolist() == [3, 3]
    made = [getattr(torch.ops, f"{namespace}_difftest_{arm.label}").scale for arm in (base, head)]
    assert made[0] is not made[1] and [op(x).tolist() for op in made] == [[2, 2], [3, 3]]
    assert not hasattr(getattr(torch.ops, namespace), "scale")


def test_a_namespace_that_is_not_the_package_is_the_arms_own_too(tmp_path: Path) -> None:
    text = CUSTOM_OP.replace("{call}", "torch.ops.{ns}.scale(x)").replace("{ns}", "lift_other_namespace")
    arms = [arm_of(tmp_path, {"oppkg/__init__.py": "", "oppkg/m.py": text.replace("{value}", v)}) for v in ("2", "3")]
    assert [arm.get("oppkg.m:f")(torch.ones(1)).item() for arm in arms] == [2, 3]


def test_torch_and_its_own_operators_stay_what_they_are(tmp_path: Path) -> None:
    text = "import torch\ndef f(x): return torch.ops.aten.relu(x), torch.ops.aten.add.Tensor(x, x)\nNOTE = 'a::b and oppkg::c d'\ndef g(): return NOTE\n"
    arm = arm_of(tmp_path, {"oppkg/__init__.py": "", "oppkg/m.py": text})
    assert [t.item() for t in arm.get("oppkg.m:f")(torch.tensor(-1.0))] == [0, -2]
    assert arm.get("oppkg.m:g")() == "a::b and oppkg::c d"


def test_an_operator_that_nobody_registers_raises_as_torch_does(tmp_path: Path) -> None:
    text = "import torch\ndef f(x): return torch.ops.oppkg.nothing(x)\ndef g(): return hasattr(torch.ops.oppkg, 'nothing')\n"
    arm = arm_of(tmp_path, {"oppkg/__init__.py": "", "oppkg/m.py": text})
    assert arm.get("oppkg.m:g")() is False
    with pytest.raises(AttributeError, match="nothing"):
        arm.get("oppkg.m:f")(1)


@pytest.mark.parametrize("text", [CUSTOM_OP, LIBRARY, DEFINE, DIRECT])
def test_what_registers_an_operator_is_in_the_closure_and_its_schema_counts(text: str) -> None:
    def digest(text: str, value: str = "2", helper: str = HELPER) -> tuple[str, set[str]]:
        files = {
            "oppkg/__init__.py": "",
            "oppkg/helper.py": helper.replace("{ns}", "oppkg"),
            "oppkg/m.py": text.replace("{call}", "torch.ops.{ns}.scale(x)").replace("{ns}", "oppkg").replace("{value}", value),
        }  # fmt: skip
        closure = closure_of(files, "oppkg.m:f")
        return closure.digest, names(closure)

    before, pieces = digest(text)
    assert "oppkg.m:<operator oppkg.scale>" in pieces
    assert digest("\n\n    # moved down\n" + text)[0] == before
    assert digest(text, "5")[0] != before
    if "by: " in text:
        assert digest(text.replace("by: int", "by: float").replace('by: "int"', "by: float"))[0] != before
    if text is DIRECT:
        assert digest(text, helper=HELPER.replace('"CPU"', '"CUDA"'))[0] != before


OP = "import torch\n@torch.library.custom_op('{ns}::dbl', mutates_args=())\ndef dbl(x: torch.Tensor) -> torch.Tensor: return x * {value}\ndef other(x): return x\n"
CALLS = "import torch\nimport pkg.k\ndef f(x): return torch.ops.{ns}.dbl(x)\n"
SET_UP = """
    from torch.library import Library
    def g(x): return x * {value}
    def setup():
        global lib
        lib = Library("{ns}", "FRAGMENT")
        lib.define("dbl(Tensor x) -> Tensor")
        lib.impl("dbl", g, "CPU")
    setup()
    """
COMPUTES = """
    import torch
    NAME = "d" + "bl"
    lib = torch.library.Library("{ns}", "FRAGMENT")
    lib.define(NAME + "(Tensor x) -> Tensor")
    lib.impl(NAME, lambda x: x * {value}, "CPU")
    """
BESIDE = "import torch\nlib = torch.library.Library('{ns}', 'FRAGMENT')\nlib.define('dbl(Tensor x) -> Tensor')\ndef impl(x): return x * {value}\nlib.impl('dbl', impl, 'CPU')\n"
FAR = {
    "m.py": CALLS,
    "k.py": "import pkg.k1",
    "k1.py": "import pkg.k2",
    "k2.py": "import pkg.k3",
    "k3.py": "import pkg.k4",
}


@pytest.mark.parametrize(
    "files",
    [
        {"m.py": CALLS, "k.py": OP},
        {"m.py": CALLS.replace("import pkg.k", "from pkg.k import other"), "k.py": OP},
        {"m.py": CALLS.replace("import pkg.k", "import torch as T").replace("torch.ops", "T.ops") + "import pkg.k\n", "k.py": OP},
        {"m.py": CALLS.replace("pkg.k", "pkg.k\nfrom torch import ops, nn").replace("torch.ops", "ops"), "k.py": OP},
        {"m.py": CALLS.replace("pkg.k", "pkg.k\nOPS = torch.ops").replace("torch.ops.", "OPS."), "k.py": OP},
        {"m.py": "import torch\ndef f(x):\n    from pkg.k import other\n    return torch.ops.{ns}.dbl(x)\n", "k.py": OP},
        {"m.py": CALLS.replace("pkg.k", "pkg.p.a"), "p/__init__.py": "from . import k", "p/a.py": "", "p/k.py": OP},
        {**FAR, "k4.py": OP},
        {"m.py": CALLS.replace("torch.ops.{ns}.dbl(x)", "getattr(torch.ops.{ns}, 'd' + 'bl')(x)"), "k.py": OP},
        {"m.py": CALLS.replace("torch.ops.{ns}.dbl(x)", "getattr(getattr(torch.ops, '{ns}'), 'dbl')(x)"), "k.py": OP},
        {"m.py": CALLS + "print('dbl')\n", "k.py": OP},
        {"m.py": CALLS, "k.py": SET_UP},
        {"m.py": CALLS, "k.py": COMPUTES},
        {"m.py": CALLS, "k.py": BESIDE},
        {"m.py": CALLS.replace(".dbl(x)", ".dbl.default(x)"), "k.py": DEFINE.replace("scale", "dbl")},
    ],
)  # fmt: skip
def test_an_operator_registered_in_another_file_is_in_the_closure_and_is_what_runs(
    tmp_path: Path, files: dict[str, str]
) -> None:
    namespace = f"liftfar{next(_number)}"
    found = []
    for value in ("2", "3"):
        texts = {
            f"pkg/{path}": text.replace("{ns}", namespace).replace("{value}", value) for path, text in files.items()
        }
        texts.setdefault("pkg/__init__.py", "")
        result = arm_of(tmp_path, texts).get("pkg.m:f")(torch.ones(1)).item()
        found.append((result, closure_of(texts, "pkg.m:f").digest))
    assert [result for result, _ in found] == [2, 3]
    assert found[0][1] != found[1][1]


def test_an_operator_of_another_name_or_namespace_does_not_count() -> None:
    files = {"pkg/__init__.py": "", "pkg/m.py": CALLS.replace("{ns}", "one")}
    registers = OP.replace("{ns}", "one").replace("{value}", "2")
    others = [OP.replace("{ns}", "two").replace("def dbl", "def two"), OP.replace("{ns}", "one").replace("dbl", "half")]
    digests = {
        closure_of({**files, "pkg/k.py": registers + text.replace("{value}", value)}, "pkg.m:f").digest
        for text in others
        for value in ("2", "3")
    }
    assert len(digests) == 1
