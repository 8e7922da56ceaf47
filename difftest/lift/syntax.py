"""A hash of code as syntax: layout, comments, docstrings and annotations do not count."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator

_SKIPPED = {"type_comment", "ctx", "kind", "type_params", "type_ignores", "returns"}


def syntax_hash(node: ast.AST) -> str:
    """Hex digest of a piece of code as syntax.

    Two pieces with equal digests do the same when the names they use mean the same. Annotations are left out unless
    something reads them: fields of a class body, and `constexpr`, which Triton reads.
    """
    digest = hashlib.sha256()
    for token in _tokens(node, in_class=isinstance(node, ast.ClassDef)):
        digest.update(token.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


def _tokens(node: ast.AST, in_class: bool) -> Iterator[str]:
    yield type(node).__name__
    is_class = isinstance(node, ast.ClassDef)
    for name in node._fields:
        if name in _SKIPPED:
            continue
        value = getattr(node, name, None)
        if name == "annotation" and not _annotation_counts(node, value, in_class):
            continue
        if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            value = without_docstring(value or [])
        if isinstance(value, ast.AST):
            yield name
            yield from _tokens(value, is_class)
        elif isinstance(value, list):
            yield f"{name}[{len(value)}]"
            for item in value:
                if isinstance(item, ast.AST):
                    yield from _tokens(item, is_class)
                else:
                    yield repr(item)
        elif value is not None:
            yield f"{name}={type(value).__name__}:{value!r}"


def _annotation_counts(node: ast.AST, annotation: ast.expr | None, in_class: bool) -> bool:
    if annotation is None:
        return False
    if isinstance(node, ast.AnnAssign) and in_class:
        return True
    return any(
        "constexpr"
        in (getattr(inner, "attr", "") or getattr(inner, "id", "") or str(getattr(inner, "value", "")))
        for inner in ast.walk(annotation)
    )


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest or [ast.Pass()]
    return body
