"""The lifted source as text, each piece with the file and lines it comes from."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable

from difftest.lift.closure import Closure, Piece
from difftest.lift.facts import compiling
from difftest.lift.syntax import source_lines


def extract(closure: Closure, read: Callable[[str], bytes | None]) -> str:
    """Source of the pieces that are lifted at once, in file and line order, then what is lifted only when it runs.

    Args:
        read: the tree's files by path.
    """
    by_file: dict[str, list[Piece]] = {}
    for piece in closure.pieces.values():
        if not piece.lazy:
            by_file.setdefault(piece.path, []).append(piece)
    parts: list[str] = []
    for path in sorted(by_file):
        lines = source_lines(read(path))
        shown = 0
        for piece in sorted(by_file[path], key=lambda p: (p.first, p.last)):
            first = max(piece.first, shown + 1)
            if first > piece.last:
                continue
            shown = piece.last
            parts.append(f"# {path}:{first}-{piece.last}  {piece.module}:{piece.qualname}")
            parts += [*lines[first - 1 : piece.last], ""]
    lazy = sorted({f"{p.path}  {p.module}:{p.qualname}" for p in closure.pieces.values() if p.lazy})
    if lazy:
        parts += ["# lifted only when an import inside a function runs:", *[f"#   {text}" for text in lazy], ""]
    if closure.standins:
        parts += [f"# stand-ins: {', '.join(sorted(closure.standins))}"]
    for what, chain in closure.missing:
        parts.append(f"# not in the tree: {what} (reached by {' -> '.join(chain)})")
    return "\n".join(parts).rstrip() + "\n"


def compile_decorators(piece: Piece, data: bytes | None) -> list[str]:
    """The decorators of a definition that have torch compile it, as source, whatever its layout.

    Args:
        data: the piece's file.
    """
    text = textwrap.dedent("\n".join(source_lines(data)[piece.first - 1 : piece.last]))
    try:
        return [ast.unparse(decorator) for node in ast.parse(text).body for decorator in compiling(node)]
    except SyntaxError:  # it is no statement by itself
        return []
