"""Code that marks tensors for torch's compiler runs without loading it; code that asks for more gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
from difftest.call.compiler import run_eagerly, without_compiler

run_eagerly()
without_compiler()
without_compiler()
loaded = lambda: "torch._dynamo" in sys.modules
"""


def said(code: str) -> str:
    """What a fresh process prints, in which nothing was imported by tests before."""
    done = subprocess.run([sys.executable, "-c", PROGRAM + code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_marks_and_decorators_leave_the_compiler_out() -> None:
    code = """
@torch.compile(dynamic=True)
@torch.compiler.disable(recursive=False)
@torch.compiler.allow_in_graph
def twice(values):
    torch._dynamo.decorators.mark_unbacked(values, 0)
    torch._dynamo.mark_dynamic(values, [0])
    torch._dynamo.maybe_mark_dynamic(values, 0)
    torch._dynamo.mark_static(values)
    torch._check(values.shape[0] >= 1, lambda: "not asked")
    torch._check_index(True)
    return 2 * values

assert twice is torch.compile(twice)
print(twice(torch.arange(3)).tolist(), loaded(), "sympy" in sys.modules)
"""
    assert said(code) == "[0, 2, 4] False False"


def test_what_is_given_by_name_is_taken_by_name() -> None:
    code = """
def twice(values):
    torch._dynamo.mark_dynamic(t=values, index=0)
    torch._dynamo.maybe_mark_dynamic(t=values, index=0)
    torch._dynamo.mark_static(t=values)
    torch._dynamo.decorators.mark_unbacked(t=values, index=0)
    return 2 * values

wrapped = [
    torch.compile(model=twice),
    torch.compile(model=twice, dynamic=True),
    torch.compile(model=None)(twice),
    torch.compiler.disable(fn=twice),
    torch.compiler.disable(fn=None, recursive=False)(twice),
    torch.compiler.disable(recursive=False, reason="slow", fn=twice),
    torch.compiler.allow_in_graph(fn=twice),
]
print({str(each(torch.arange(3)).tolist()) for each in wrapped}, loaded())
"""
    assert said(code) == "{'[0, 2, 4]'} False"


@pytest.mark.parametrize(
    "asked", ["torch._dynamo.config.cache_size_limit", "torch._dynamo.decorators.mark_static_address"]
)
def test_what_is_no_mark_is_the_compilers_own(asked: str) -> None:
    code = f"""
found = {asked}
import torch._dynamo
print(found == {asked} and loaded(), torch._dynamo is sys.modules["torch._dynamo"])
"""
    assert said(code) == "True True"


@pytest.mark.parametrize("condition", ["False", "1", "torch.tensor(True)"])
def test_a_condition_that_does_not_plainly_hold_is_torchs_own(condition: str) -> None:
    code = f"""
def raised(check):
    try:
        check(RuntimeError, {condition}, lambda: "said")
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

print(raised(torch._check_with) == raised(torch._check_with.__wrapped__) != None)
"""
    assert said(code) == "True"


@pytest.mark.parametrize("message", ["lambda: 'said'", "lambda: 1 / 0", "None", "3"])
@pytest.mark.parametrize("error_type", ["IndexError", "UserWarning"])
def test_a_condition_that_plainly_fails_leaves_the_compilers_symbols_out(error_type: str, message: str) -> None:
    code = f"""
def raised(check):
    try:
        check({error_type}, False, {message})
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

found = raised(torch._check_with)
symbols = "torch.fx.experimental.symbolic_shapes"
print("sympy" in sys.modules, symbols in sys.modules, found == raised(torch._check_with.__wrapped__) != None)
"""
    assert said(code) == "False False True"


def test_a_message_may_ask_for_the_compilers_symbols() -> None:
    code = """
def message():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    return ShapeEnv.__name__

for _ in range(2):
    try:
        torch._check(False, message)
    except RuntimeError as error:
        print(error, hasattr(torch.fx.experimental.symbolic_shapes, "ShapeEnv"))
"""
    assert said(code) == "ShapeEnv True\nShapeEnv True"


def test_a_name_that_the_compiler_lacks_is_an_attribute_error() -> None:
    assert (
        said("print(hasattr(torch._dynamo, 'no_such_name'), hasattr(torch._dynamo, '__no_such_name__'))")
        == "False False"
    )


def test_every_mark_is_a_function_of_the_compiler() -> None:
    code = """
from difftest.call.compiler import _MARKS
import torch._dynamo.decorators
marks = [getattr(sys.modules[module], name).__module__ for module, names in _MARKS.items() for name in names]
print(len(marks), set(marks))
"""
    assert said(code) == "7 {'torch._dynamo.decorators'}"


def test_replacing_noise_leaves_the_compiler_out() -> None:
    code = """
from difftest.explain.noise import FixedNoise, Noise
with FixedNoise(Noise(0), "place") as noise:
    drawn = torch.empty(4).exponential_()
print(dict(noise.draws), (drawn > 0).all().item(), loaded())
"""
    assert said(code) == "{'exponential float32, the default generator': 4} True False"


REFUSED = (
    "torch.compile(3)",
    "torch.compile(nonsense=True)",
    "torch.compiler.disable(3)",
    "torch.compiler.disable(nonsense=1)",
    "torch.compiler.allow_in_graph(5)",
    "torch._dynamo.mark_dynamic(torch.arange(3), 'zero')",
    "torch._dynamo.mark_dynamic(torch.arange(3))",
    "torch._dynamo.mark_dynamic(3, 0)",
)


def test_what_torch_refuses_is_refused() -> None:
    code = f"""
for call in {REFUSED}:
    try:
        eval(call)
    except Exception as error:
        print(call, type(error).__name__)
"""
    program = [sys.executable, "-c", f"import torch\nimport torch._dynamo\n{code}"]
    plain = subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()
    assert len(plain.splitlines()) == len(REFUSED)
    assert said(code) == plain
