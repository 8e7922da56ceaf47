"""Numbers that code is written with: where a fault hides behind `vocab == 977`, 977 is in the code."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable

from difftest.lift.closure import Closure
from difftest.lift.syntax import parse

MOST = 64
"""How many numbers of each kind are kept."""


def code_numbers(arms: Iterable[tuple[Callable[[str], bytes | None], Closure]]) -> tuple[list[float], list[float]]:
    """The numbers written in the closures of the arms: those that not every arm has, and the others; ascending.

    Args:
        arms: what reads a file of the arm's tree, and what a target reaches in it.
    """
    per_arm = [_numbers_of(read, closure) for read, closure in arms]
    every: set[int | float] = set().union(*per_arm)
    common = every.intersection(*per_arm)
    return sorted(every - common)[:MOST], sorted(common)[:MOST]


def _numbers_of(read: Callable[[str], bytes | None], closure: Closure) -> set[int | float]:
    found: set[int | float] = set()
    for path in {piece.path for piece in closure.pieces.values()}:
        wanted = [(p.first, p.last) for p in closure.pieces.values() if p.path == path]
        for node in ast.walk(_parsed(read(path) or b"")):
            if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
                continue
            assert isinstance(node.value, int | float)
            if math.isfinite(node.value) and any(first <= node.lineno <= last for first, last in wanted):
                found.add(node.value)
    return found


def _parsed(data: bytes) -> ast.AST:
    try:
        return parse(data)
    except (SyntaxError, ValueError):  # reached through an import inside a function only
        return ast.Module([], [])
