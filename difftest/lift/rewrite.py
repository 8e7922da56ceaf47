"""What is changed in lifted code before it is compiled, so that it reads as in production."""

from __future__ import annotations

import ast

_ANNOTATED = {ast.arg: "annotation", ast.AnnAssign: "annotation"} | dict.fromkeys(
    (ast.FunctionDef, ast.AsyncFunctionDef), "returns"
)
"""By the kind of a node, its field that is an annotation."""


def is_quoted(node: ast.AST) -> bool:
    """Whether a node has an annotation that is written as a string."""
    name = _ANNOTATED.get(type(node))
    written = None if name is None else getattr(node, name)
    return isinstance(written, ast.Constant) and isinstance(written.value, str)


class Unquoted(ast.NodeTransformer):
    """Takes annotations out of their quotes.

    Lifted code postpones all annotations, so each becomes a string; one that is a string already would be quoted
    twice, and what reads it (dataclass, the schema of an operator) would not know it any more.
    """

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if is_quoted(node):
            name = _ANNOTATED[type(node)]
            written = getattr(node, name)
            try:
                bare = ast.parse(written.value.strip(), mode="eval").body
            except (SyntaxError, ValueError):
                return node  # not an expression, so nothing can read it as one
            for inner in ast.walk(bare):
                ast.copy_location(inner, written)
            setattr(node, name, bare)
        return node


def is_own_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "__name__"


class ProductionName(ast.NodeTransformer):
    """Has code read its module's `__name__` as in production, but where it looks the module up by that name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "__name__" and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Constant(self.name), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return node if _is_modules(node.value) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        method = isinstance(node.func, ast.Attribute) and _is_modules(node.func.value)
        return node if method else self.generic_visit(node)


def _is_modules(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "modules") or (
        isinstance(node, ast.Name) and node.id == "modules"
    )
