"""Heads that only rearrange the code: no false alarm. Made from vLLM 0.29.0 by rewriting its syntax."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from edited_trees import linked, write

from difftest import api

pytestmark = pytest.mark.index

TARGETS = ("v1.parse_output", "v2.sampling_mask", "v2.gumbel_sample")
REJECTION = "vllm/v1/sample/rejection_sampler.py"
OUTPUTS = "vllm/v1/outputs.py"
MASK = "vllm/v1/worker/gpu/sample/output.py"
GUMBEL = "vllm/v1/worker/gpu/sample/gumbel.py"
FILES = (REJECTION, OUTPUTS, MASK, GUMBEL)

Edit = Callable[[Path], None]


def _rewrite(*transformers: type[ast.NodeTransformer]) -> Edit:
    """Parse each file, transform it, and print it anew: layout, comments and quotes change in any case."""

    def edit(folder: Path) -> None:
        for name in FILES:
            path = folder / name
            tree = ast.parse(path.read_text())
            for transformer in transformers:
                tree = ast.fix_missing_locations(transformer().visit(tree))
            write(path, ast.unparse(tree) + "\n")

    return edit


class RenameLocals(ast.NodeTransformer):
    """Local variables of functions get another name; parameters keep theirs, they are the interface."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        parameters = {a.arg for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
        nested = [
            n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.Lambda | ast.ClassDef) and n is not node
        ]
        kept = {n.id for inner in nested for n in ast.walk(inner) if isinstance(n, ast.Name)}
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        outer = {n for g in ast.walk(node) if isinstance(g, ast.Global | ast.Nonlocal) for n in g.names}
        renamed = {name: f"renamed_{name}" for name in stored - parameters - kept - outer}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in renamed:
                inner.id = renamed[inner.id]
        return node


class AddAnnotations(ast.NodeTransformer):
    """Parameters and results without an annotation get one that nothing reads."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if not any("jit" in ast.unparse(d) for d in node.decorator_list):
            for argument in node.args.args:
                if argument.annotation is None and argument.arg not in ("self", "cls"):
                    argument.annotation = ast.Constant("object")
            node.returns = node.returns or ast.Constant("object")
        return node


class AddDocstrings(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is None:
            node.body.insert(0, ast.Expr(ast.Constant("Says what it does.")))
        return node


class DropDocstrings(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            del node.body[0]
        return node


class ReorderMethods(ast.NodeTransformer):
    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        names = [m.name for m in methods]
        if len(set(names)) == len(names):
            rest = [n for n in node.body if n not in methods]
            node.body = [*rest, *sorted(methods, key=lambda m: m.name, reverse=True)]
        return node


class NameComparisons(ast.NodeTransformer):
    """`if a < b:` becomes `condition = a < b` and `if condition:`; not in kernels, whose rules differ."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if any("jit" in ast.unparse(d) for d in node.decorator_list):
            return node
        body: list[ast.stmt] = []
        for number, inner in enumerate(node.body):
            if isinstance(inner, ast.If):
                name = f"condition_{number}"
                body.append(ast.Assign([ast.Name(name, ast.Store())], inner.test))
                inner.test = ast.Name(name, ast.Load())
            body.append(inner)
        node.body = body
        return node


def _reindent(folder: Path) -> None:
    for name in FILES:
        path = folder / name
        write(path, path.read_text().replace("\n\n\n", "\n\n\n\n") + "\n# the end\n")


def _comments(folder: Path) -> None:
    for name in FILES:
        path = folder / name
        lines = path.read_text().splitlines()
        at = next(
            i for i, line in enumerate(lines) if line.startswith(("import ", "from ")) and "__future__" not in line
        )
        write(path, "\n".join([*lines[:at], "# A comment that was not there.", *lines[at:]]) + "\n")


def _windows_newlines(folder: Path) -> None:
    for name in FILES:
        path = folder / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def _move(source: str, symbol: str, target: str) -> Edit:
    """Move a top-level function, with the imports of its file, to a new file, and import it from there."""

    def edit(folder: Path) -> None:
        path = folder / source
        tree = ast.parse(path.read_text())
        moved = next(n for n in tree.body if getattr(n, "name", None) == symbol)
        imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        constants = [n for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign)]
        write(folder / target, ast.unparse(ast.Module([*imports, *constants, moved], [])) + "\n")
        module = target.removesuffix(".py").replace("/", ".")
        at = tree.body.index(moved)
        tree.body[at] = ast.ImportFrom(module, [ast.alias(symbol)], 0)
        write(path, ast.unparse(ast.fix_missing_locations(tree)) + "\n")

    return edit


def _alias_import(folder: Path) -> None:
    path = folder / REJECTION
    tree = ast.parse(path.read_text())
    tree.body.append(ast.parse("Sampler_ = RejectionSampler").body[0])
    write(path, ast.unparse(tree) + "\n")


def _rename_constant(folder: Path) -> None:
    path = folder / REJECTION
    write(path, path.read_text().replace("PLACEHOLDER_TOKEN_ID", "PLACEHOLDER_ID"))


def _constant_elsewhere(folder: Path) -> None:
    path = folder / REJECTION
    text = path.read_text()
    line = next(line for line in text.splitlines() if line.startswith("PLACEHOLDER_TOKEN_ID"))
    write(folder / "vllm/v1/sample/constants.py", f"from vllm.triton_utils import tl\n\n{line}\n")
    write(path, text.replace(line, "from vllm.v1.sample.constants import PLACEHOLDER_TOKEN_ID"))


def _unused_code(folder: Path) -> None:
    for name in FILES:
        path = folder / name
        write(path, path.read_text() + "\n\ndef never_called(a, b):\n    return a + b\n")


def _changed_neighbour(folder: Path) -> None:
    """Another method of the same class changes; none of the targets reaches it."""
    path = folder / REJECTION
    tree = ast.parse(path.read_text())
    cls = next(n for n in tree.body if getattr(n, "name", None) == "RejectionSampler")
    assert isinstance(cls, ast.ClassDef)
    cls.body.append(ast.parse("def unrelated(self):\n    raise RuntimeError('never')").body[0])
    write(path, ast.unparse(ast.fix_missing_locations(tree)) + "\n")


HEADS: dict[str, Edit] = {
    "untouched": lambda folder: None,
    "printed-anew": _rewrite(),
    "blank-lines": _reindent,
    "comments": _comments,
    "windows-newlines": _windows_newlines,
    "docstrings-added": _rewrite(AddDocstrings),
    "docstrings-dropped": _rewrite(DropDocstrings),
    "annotations": _rewrite(AddAnnotations),
    "locals-renamed": _rewrite(RenameLocals),
    "locals-renamed-and-annotated": _rewrite(RenameLocals, AddAnnotations, AddDocstrings),
    "methods-reordered": _rewrite(ReorderMethods),
    "conditions-named": _rewrite(NameComparisons),
    "everything-at-once": _rewrite(DropDocstrings, RenameLocals, ReorderMethods, NameComparisons, AddAnnotations),
    "class-alias": _alias_import,
    "constant-renamed": _rename_constant,
    "constant-moved": _constant_elsewhere,
    "kernel-moved": _move(GUMBEL, "_temperature_kernel", "vllm/v1/worker/gpu/sample/temperature_kernel.py"),
    "helper-moved": _move(GUMBEL, "apply_temperature", "vllm/v1/worker/gpu/sample/temperature.py"),
    "unused-code": _unused_code,
    "neighbour-changed": _changed_neighbour,
}


def test_heads_that_only_rearrange_are_identical(release: Path, tmp_path: Path) -> None:
    assert len(HEADS) >= 20
    specs = []
    for name, edit in HEADS.items():
        head = linked(release, tmp_path / name)
        edit(head)
        specs.append(str(head))
    result = api.run(api.RunOptions(base=str(release), heads=tuple(specs), targets=TARGETS, examples=60))
    alarms = {
        (Path(t.head).name, t.name): (t.verdict, t.reason, t.kinds) for t in result.targets if t.verdict != "identical"
    }
    assert alarms == {}
    assert len(result.targets) == len(HEADS) * len(TARGETS)
    # Heads whose syntax is the same are not executed; the others must be enough to mean something.
    assert sum(t.cases.executed > 0 for t in result.targets) >= 10
