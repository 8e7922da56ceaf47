"""The definitions in which two closures differ, line by line, with true files and line numbers. Pure."""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from difftest.lift.closure import Closure, Key, Piece
from difftest.lift.syntax import source_lines
from difftest.result import CONTEXT_LINES, Change, ChangedLine

Read = Callable[[str], bytes | None]
"""The text of a file of a tree."""

RUN_BY_LOADING = ("def ", "async def ", "class ", "@", "import ", "from ")
"""Begin lines that run when code is lifted, which the first case that needs it does."""

LINES_SHOWN = 600
"""Lines of one target's changes that a result holds."""

DEFINITION_LINES = 160
"""Lines of one definition's change that a result holds."""


class _Line(NamedTuple):
    number: int
    text: str


def closure_changes(base: Closure | None, head: Closure | None, read_base: Read, read_head: Read) -> tuple[Change, ...]:
    """What is changed, added and removed between two closures; what only moved is left out."""
    left = {} if base is None else dict(base.pieces)
    right = {} if head is None else dict(head.pieces)
    files: dict[tuple[bool, str], list[str]] = {}

    def lines(piece: Piece | None, of_head: bool) -> list[_Line]:
        if piece is None:
            return []
        read = read_head if of_head else read_base
        key = (of_head, piece.path)
        if key not in files:
            files[key] = source_lines(read(piece.path))
        return _own_lines(piece, files[key])

    found = []

    def imports(piece: Piece, of_head: bool) -> bool:
        return any(line.text.lstrip().startswith(("import ", "from ")) for line in lines(piece, of_head)[:1])

    for old, new in _pairs(left, right, imports):
        before, after = lines(old, False), lines(new, True)
        named = new or old
        assert named is not None
        shown = list(_hunks(before, after))
        if not any(line.sign != " " for line in shown):
            continue
        found.append(
            Change(
                symbol=f"{named.module}:{named.qualname}",
                status="added" if old is None else "removed" if new is None else "changed",
                base_path="" if old is None else old.path,
                head_path="" if new is None else new.path,
                lines=tuple(shown[:DEFINITION_LINES]),
                cut=max(0, len(shown) - DEFINITION_LINES),
                runs=_when_run(before, after, shown),
            )
        )
    found.sort(key=lambda c: (c.status != "changed", c.head_path or c.base_path, _first_line(c)))
    return _within(found, LINES_SHOWN)


def marked(
    changes: Iterable[Change],
    ran: Mapping[str, Mapping[str, Mapping[int, str]]],
    runnable: Mapping[str, Mapping[str, Collection[int]]],
    apart: bool = True,
) -> tuple[Change, ...]:
    """The changes with who ran each line.

    Args:
        ran: per arm (`base`, `head`) and path, for each line that was run: `differing`, `identical` or `both`.
        runnable: per arm and path the lines that a call can run.
        apart: whether identical cases were traced, too; without them no line can be one that only differing cases run.
    """

    def who(found: str) -> str:
        return "run" if found in ("differing", "both") and not apart else found

    def mark(change: Change, line: ChangedLine) -> ChangedLine:
        if change.runs == "load" and line.sign != " ":
            return replace(line, ran=who("both")) if ran.get("head") else line
        arm = "base" if line.head is None else "head"
        path, number = (change.base_path, line.base) if line.head is None else (change.head_path, line.head)
        found = ran.get(arm, {}).get(path, {}).get(number or 0)
        if not ran.get(arm) or number not in runnable.get(arm, {}).get(path, ()):
            return line  # no call of this arm was traced, or there is nothing that a call, and not loading, could run
        return replace(line, ran=who(found or "none"))

    return tuple(replace(change, lines=tuple(mark(change, line) for line in change.lines)) for change in changes)


def lines_to_trace(changes: Iterable[Change]) -> dict[str, dict[str, list[int]]]:
    """Per arm and path the lines of the changes."""
    found: dict[str, dict[str, set[int]]] = {"base": {}, "head": {}}
    for change in changes:
        for line in change.lines:
            if line.head is not None:
                found["head"].setdefault(change.head_path, set()).add(line.head)
            elif line.base is not None:
                found["base"].setdefault(change.base_path, set()).add(line.base)
    return {arm: {path: sorted(numbers) for path, numbers in files.items()} for arm, files in found.items()}


def _when_run(before: Sequence[_Line], after: Sequence[_Line], shown: Iterable[ChangedLine]) -> str:
    """When what changed of a definition runs: a function's decorators and defaults do when it is loaded."""
    texts = [line.text for line in after or before]
    if texts and texts[0].startswith(("import ", "from ")):
        return "import"
    if not any(text.lstrip().startswith(("def ", "async def ")) for text in texts):
        return "load"
    heads = _head_lines(before), _head_lines(after)
    at_load = all(line.sign == " " or line.base in heads[0] or line.head in heads[1] for line in shown)
    return "load" if at_load and before and after else "call"


def _head_lines(lines: Sequence[_Line]) -> set[int | None]:
    """Numbers of the lines of a function before its body."""
    try:
        body: list[ast.stmt] = ast.parse(textwrap.dedent("\n".join(line.text for line in lines))).body
    except SyntaxError:
        return set()
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    ends = functions[0].body[0].lineno if len(functions) == len(body) == 1 else 0
    return {line.number for n, line in enumerate(lines, 1) if n < ends}


def _pairs(
    left: Mapping[Key, Piece], right: Mapping[Key, Piece], imports: Callable[[Piece, bool], bool]
) -> list[tuple[Piece | None, Piece | None]]:
    """Pieces of the two closures that belong together and are not the same, and those that have no counterpart.

    A definition that stands in another module under the same name is the same one; one that has the same syntax there
    is not listed at all, nor is the import that took its place.

    Args:
        imports: whether a piece (of head) is an import statement.
    """
    pairs: list[tuple[Piece | None, Piece | None]] = []
    removed = {key: piece for key, piece in left.items() if key not in right}
    added = {key: piece for key, piece in right.items() if key not in left}
    for key, piece in left.items():
        other = right.get(key)
        if other is None or other.digest == piece.digest:
            continue
        from_elsewhere = (imports(piece, False), imports(other, True))
        if from_elsewhere == (False, True):
            removed[key] = piece
        elif from_elsewhere == (True, False):
            added[key] = other
        else:
            pairs.append((piece, other))
    for piece in added.values():
        same = next((k for k, old in removed.items() if old.digest == piece.digest), None)
        named = same or next((k for k, old in removed.items() if old.qualname == piece.qualname), None)
        if same is None:
            pairs.append((removed.get(named) if named else None, piece))
        if named is not None:
            removed.pop(named)
    pairs += [(piece, None) for piece in removed.values()]
    return pairs


def _own_lines(piece: Piece, text: Sequence[str]) -> list[_Line]:
    """The lines of a piece; of a class, those outside its methods, which are pieces of their own."""
    lines = [_Line(n, text[n - 1]) for n in range(piece.first, min(piece.last, len(text)) + 1)]
    if "." in piece.qualname or not any(line.text.startswith("class ") for line in lines):
        return lines
    try:
        body: list[ast.stmt] = ast.parse("\n".join(line.text for line in lines)).body
    except SyntaxError:
        return lines
    methods: set[int] = set()
    for node in body:
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([inner.lineno, *[d.lineno for d in inner.decorator_list]])
                methods.update(range(first, (inner.end_lineno or inner.lineno) + 1))
    return [line for n, line in enumerate(lines, 1) if n not in methods]


def _hunks(before: list[_Line], after: list[_Line]) -> Iterable[ChangedLine]:
    matcher = difflib.SequenceMatcher(None, [x.text for x in before], [x.text for x in after], autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        for tag, i, j, k, m in group:
            if tag == "equal":
                for old, new in zip(before[i:j], after[k:m], strict=True):
                    yield ChangedLine(" ", old.number, new.number, new.text)
                continue
            for old in before[i:j]:
                yield ChangedLine("-", old.number, None, old.text)
            for new in after[k:m]:
                yield ChangedLine("+", None, new.number, new.text)


def _first_line(change: Change) -> int:
    return next((line.head or line.base or 0 for line in change.lines), 0)


def _within(changes: list[Change], most: int) -> tuple[Change, ...]:
    """The changes with at most so many lines in all; what is cut is counted."""
    kept = []
    for change in changes:
        shown = change.lines[: max(0, most)]
        most -= len(shown)
        kept.append(replace(change, lines=shown, cut=change.cut + len(change.lines) - len(shown)))
    return tuple(kept)
