"""Edited copies of a real release: a whole function or method is replaced by text that stands in the tests."""

from __future__ import annotations

import ast
import os
import shutil
import textwrap
from pathlib import Path

from difftest.trees import Tree


def copy_package(tree: Tree, folder: Path, prefix: str) -> None:
    """Write a tree's Python files below `prefix` into a folder."""
    for path in tree.paths(prefix):
        if path.endswith(".py"):
            data = tree.read(path)
            assert data is not None
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def linked(release: Path, folder: Path) -> Path:
    """A copy whose files are those of the release until one is written anew; edit it with :func:`write`."""
    shutil.copytree(release, folder, copy_function=os.link)
    return folder


def write(path: Path, text: str) -> None:
    """Write a file of a linked copy, and of no other."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def replace_function(folder: Path, symbol: str, source: str) -> None:
    """Put `source` in place of the function or method `module:qualname` of the copy, decorators included.

    Raises:
        LookupError: the copy has no such function.
    """
    module, _, qualname = symbol.partition(":")
    path = folder / (module.replace(".", "/") + ".py")
    text = path.read_text()
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.AST | None = None
    for name in qualname.split("."):
        node = next((n for n in body if getattr(n, "name", None) == name), None)
        if node is None:
            raise LookupError(f"{path} has no {qualname}")
        body = getattr(node, "body", [])
    assert isinstance(node, ast.FunctionDef)
    first = min([node.lineno, *[d.lineno for d in node.decorator_list]]) - 1
    lines = text.splitlines()
    lines[first : node.end_lineno] = textwrap.indent(
        textwrap.dedent(source).strip(), " " * node.col_offset
    ).splitlines()
    write(path, "\n".join(lines) + "\n")
