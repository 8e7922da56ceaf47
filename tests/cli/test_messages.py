"""Every message of a request that cannot be carried out says what to do, not only what is wrong."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import difftest
from difftest import errors
from difftest.errors import CaptureError, DifftestError

ADVICE = re.compile(r"; \w|should be|is none of|is not a kind of|needs? |must be|at least|is not one|unknown ")
RAISED = {name for name, item in vars(errors).items() if inspect.isclass(item) and issubclass(item, DifftestError)}


def messages() -> Iterator[tuple[str, str]]:
    """Where a message stands, and its text, what is filled in as `{}`; those that pass another's on are left out.

    Of a case that cannot be kept as a file, it is said where it is said that it cannot how it is shown.
    """
    for package in (difftest, importlib.import_module("difftest.reports")):
        assert package.__file__
        for path in sorted(Path(package.__file__).parent.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    name = getattr(node.exc.func, "id", "")
                    text = re.sub(r"\{[^{}]*\}", "{}", ast.unparse(node.exc.args[0]))
                    passed_on = text.endswith(("{}'", '{}"')) or "'.join(" in text
                    kept = text.startswith("f'case {} of {}")
                    if name in RAISED - {"CaptureError"} and text[:1] in "f'\"" and not passed_on and not kept:
                        yield f"{path.name}:{node.lineno}", text


def test_each_message_says_what_to_do() -> None:
    every = list(messages())
    assert len(every) > 100
    assert [f"{where}: {text}" for where, text in every if not ADVICE.search(text)] == []


@pytest.mark.parametrize(
    "error", [CaptureError("x.safetensors: damaged"), CaptureError("x: cannot be read", "make it so")]
)
def test_what_is_wrong_with_a_capture_comes_with_what_to_do(error: CaptureError) -> None:
    assert str(error) == f"{error.fault}; {error.advice}"
    assert error.advice and error.exit_code == 2
