"""A hash of code as syntax: layout, comments, docstrings and annotations that nothing reads do not count."""

from __future__ import annotations

import ast
import gc
import hashlib
import re
from collections.abc import Iterable

_kept = False
_SKIPPED = frozenset({"type_comment", "ctx", "kind", "type_params", "type_ignores"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Decorators that are known not to look at annotations. Any other may, so under it they count.
_BLIND_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "setter", "getter", "deleter", "cached_property", "abstractmethod"}
    | {"overload", "override", "final", "deprecated", "wraps", "total_ordering", "cache", "lru_cache", "compile"}
    | {"contextmanager", "asynccontextmanager", "inference_mode", "no_grad", "enable_grad"}
)
_BLIND_BASES = frozenset({"object", "ABC", "Module", "Exception", "ValueError", "RuntimeError", "Generic"})


def syntax_hash(node: ast.AST, annotations: bool = False) -> str:
    """Hex digest of a piece of code as syntax.

    Two pieces with equal digests do the same when the names they use mean the same. Annotations are left out unless
    something may read them: fields of a class other than a plain one, and parameters of a function whose decorator
    is not known to be blind to them.

    Args:
        annotations: those of the function `node` count in any case.
    """
    out: list[str] = []
    _write(node, out, isinstance(node, ast.ClassDef) and _reads_fields(node), annotations)
    return hashlib.sha256("\0".join(out).encode("utf-8", "surrogatepass")).hexdigest()


def _write(node: ast.AST, out: list[str], fields_count: bool, annotations: bool) -> None:
    kind = type(node)
    if kind is ast.Name:
        out.append("Name")
        out.append(node.id)  # type: ignore[attr-defined]
        return
    if kind is ast.Constant:
        value = node.value  # type: ignore[attr-defined]
        out.append(type(value).__name__)
        out.append(repr(value))
        return
    if kind is ast.AnnAssign and not fields_count:
        assert isinstance(node, ast.AnnAssign)
        if node.value is not None:
            out += ["Assign(", "targets[1]"]
            _write(node.target, out, False, annotations)
            out.append("value")
            _write(node.value, out, False, annotations)
            out.append(")")
        else:
            out.append("local")
            _write(node.target, out, False, annotations)
        return
    out.append(kind.__name__ + "(")
    inner_fields_count = fields_count
    body: list[ast.stmt] | None = None
    if isinstance(node, _SCOPES):
        inner_fields_count = isinstance(node, ast.ClassDef) and _reads_fields(node)
        if isinstance(node, _FUNCTIONS):
            annotations = annotations or not _is_blind(node.decorator_list)
            body = _without_declarations(node)
        elif isinstance(node, ast.ClassDef):
            body = without_docstring(node.body)
            annotations = False
            if not inner_fields_count:
                body = [n for n in body if not (isinstance(n, ast.AnnAssign) and n.value is None)] or [ast.Pass()]
    for name in node._fields:
        if name in _SKIPPED:
            continue
        value = getattr(node, name, None)
        if name == "annotation" and value is not None:
            if not (fields_count if kind is ast.AnnAssign else annotations or _is_constexpr(value)):
                continue
        elif name == "returns" and not annotations:
            continue
        elif name == "body" and body is not None:
            value = body
        if isinstance(value, ast.AST):
            out.append(name)
            _write(value, out, inner_fields_count, annotations)
        elif isinstance(value, list):
            out.append(f"{name}[{len(value)}]")
            for item in value:
                if isinstance(item, ast.AST):
                    _write(item, out, inner_fields_count, annotations)
                else:
                    out.append(repr(item))
        elif value is not None:
            out.append(f"{name}={value!r}")
    out.append(")")


def _reads_fields(node: ast.ClassDef) -> bool:
    """Whether anything may look at the annotations in a class body."""
    plain = all(_last_name(base) in _BLIND_BASES for base in node.bases)
    return not plain or bool(node.keywords) or not _is_blind(node.decorator_list)


def _is_blind(decorators: Iterable[ast.expr]) -> bool:
    return all(_last_name(decorator) in _BLIND_DECORATORS for decorator in decorators)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _is_constexpr(annotation: ast.expr) -> bool:
    """Triton reads `constexpr`, also in the parameters of a function that a jitted one calls."""
    return any(
        "constexpr" in (getattr(inner, "attr", "") or getattr(inner, "id", "") or str(getattr(inner, "value", "")))
        for inner in ast.walk(annotation)
    )


def _without_declarations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """A function's body without its docstring, and without `x: int` of a variable that it binds anyway."""
    body = without_docstring(node.body)
    if not any(isinstance(n, ast.AnnAssign) and n.value is None for n in body):
        return body
    bound = {a.arg for n in ast.walk(node.args) if isinstance(n, ast.arg) for a in [n]}
    for inner in body:
        if not (isinstance(inner, ast.AnnAssign) and inner.value is None):
            bound |= {n.id for n in ast.walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    kept = [
        n
        for n in body
        if not (
            isinstance(n, ast.AnnAssign) and n.value is None and isinstance(n.target, ast.Name) and n.target.id in bound
        )
    ]
    return kept or [ast.Pass()]


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest or [ast.Pass()]
    return body


def parse(data: bytes, path: str = "<unknown>") -> ast.Module:
    """The syntax tree of a file, in half the time: no cycle can be among nodes that come to be, so none is looked for.

    In a process that keeps its trees (:func:`keep_trees`), none is looked for later, either.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is not Python that this interpreter can parse.
    """
    collects = gc.isenabled()
    kept = _kept and collects
    if kept:
        gc.collect()  # or what nobody holds any more would be kept as well; the rest is kept, so this takes little
    gc.disable()
    try:
        return ast.parse(data, filename=path)
    finally:
        if kept:
            gc.freeze()
        if collects:
            gc.enable()


def keep_trees() -> None:
    """Tell that this process holds on to the trees that it parses until it ends."""
    global _kept
    _kept = True


def source_lines(data: bytes | None) -> list[str]:
    """The lines of a source file as Python counts them: a form feed, say, ends none."""
    lines = re.split("\r\n|\r|\n", (data or b"").decode("utf-8", errors="replace"))
    return lines[:-1] if lines[-1] == "" else lines
