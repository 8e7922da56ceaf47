"""Which lines of a closure a run could execute, and which it did not. No torch.

Only lines inside functions count: what stands at a module's or a class's top level runs when it is loaded.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from difftest.lift.closure import Closure, Piece


@dataclass(frozen=True)
class Exercise:
    """How much of a closure the cases executed.

    Attributes:
        lines: executable lines inside the functions that are lifted at once.
        executed: how many of them ran.
        missed: per file, the lines that did not, as ranges (`12-14, 20`).
        unused: functions of which no line ran, `module:qualname`.
    """

    lines: int
    executed: int
    missed: Mapping[str, str]
    unused: tuple[str, ...]


def exercise(
    closure: Closure, read: Callable[[str], bytes | None], executed: Mapping[str, Collection[int]]
) -> Exercise:
    """Sets the lines that ran against those that a closure has.

    Args:
        read: the tree's files by path.
        executed: line numbers that ran, by path.
    """
    pieces: dict[str, list[Piece]] = {}
    for piece in closure.pieces.values():
        if not piece.lazy:
            pieces.setdefault(piece.path, []).append(piece)
    total = ran = 0
    missed: dict[str, str] = {}
    unused: list[str] = []
    for path in pieces:  # in the order found: what is called first, then what it calls
        code = compile(read(path) or b"", path, "exec", dont_inherit=True)
        functions = list(_functions(code))
        of_path: set[int] = set()
        for piece in pieces[path]:
            lines = {n for f in functions if _belongs(f, piece) for n in _lines(f)}
            of_path |= lines
            if lines and lines.isdisjoint(executed.get(path, ())):
                unused.append(f"{piece.module}:{piece.qualname}")
        left = of_path.difference(executed.get(path, ()))
        total += len(of_path)
        ran += len(of_path) - len(left)
        if left:
            missed[path] = ranges(left)
    return Exercise(total, ran, missed, tuple(unused))


def function_lines(data: bytes | None) -> frozenset[int]:
    """The lines of a file that can run when one of its functions is called; none of a file that is no Python."""
    try:
        code = compile(data or b"", "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(n for function in _functions(code) for n in _lines(function))


def ranges(numbers: Iterable[int]) -> str:
    """Line numbers as a person writes them: `3, 7-9`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _functions(code: types.CodeType, inside: bool = False) -> Iterator[types.CodeType]:
    """The functions in there, and the class bodies inside of functions."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            runs = inside or bool(constant.co_flags & 0x02)  # CO_NEWLOCALS: a function, no class body
            if runs:
                yield constant
            yield from _functions(constant, runs)


def _belongs(function: types.CodeType, piece: Piece) -> bool:
    """Whether a function is the piece, or is defined inside it."""
    name = function.co_qualname
    inside = name == piece.qualname or name.startswith(f"{piece.qualname}.<locals>.")
    return inside and piece.first <= function.co_firstlineno <= piece.last


def _lines(function: types.CodeType) -> Iterator[int]:
    """Lines of a function's body; the line of its `def` belongs to it only when the body is there too."""
    header = function.co_firstlineno
    numbers = {line for _, _, line in function.co_lines() if line is not None}
    yield from numbers - {header} or numbers
