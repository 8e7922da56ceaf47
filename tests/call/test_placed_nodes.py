"""Rewritten kernels have their nodes where Triton's interpreter puts them."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import difftest
from difftest.call.interpreter_speed import _place, _rewriting

OWN = sorted(Path(difftest.__file__).parent.rglob("*.py"))
ATTRIBUTES = ("lineno", "col_offset", "end_lineno", "end_col_offset")


@pytest.mark.parametrize("lines", [0, 41])
def test_nodes_are_placed_as_ast_places_them(lines: int) -> None:
    for path in OWN:
        trees = [ast.parse(path.read_text()) for _ in range(2)]
        for tree in trees:
            for number, node in enumerate(ast.walk(tree)):
                for name in ATTRIBUTES:
                    if node._attributes and (number + len(name)) % 7 == 0:
                        delattr(node, name)
        expected = ast.increment_lineno(ast.fix_missing_locations(trees[0]), lines)
        _place(trees[1], lines)
        assert ast.dump(trees[1], include_attributes=True) == ast.dump(expected, include_attributes=True)


def test_a_rewriter_that_does_something_else_is_left_alone() -> None:
    class Rewriter:
        def _transform_ast(self, src: str) -> ast.AST:
            return ast.parse(src)

    theirs = Rewriter._transform_ast
    _rewriting(SimpleNamespace(FunctionRewriter=Rewriter))
    assert Rewriter._transform_ast is theirs


def test_this_triton_is_one_that_is_known() -> None:
    import triton.runtime.interpreter as interpreter

    rewriter: Any = type("Rewriter", (interpreter.FunctionRewriter,), {})
    theirs = inspect.unwrap(rewriter._transform_ast)
    assert theirs.__module__ in (interpreter.__name__, "difftest.call.interpreter_speed")
    if theirs.__module__ == interpreter.__name__:
        _rewriting(SimpleNamespace(FunctionRewriter=rewriter))
        assert rewriter._transform_ast.__module__ == "difftest.call.interpreter_speed"
