"""What importing a file does beyond binding its own names: it changes objects of other modules, or the process.

A module that registers its functions in another one's table, or patches another one, does so when it is imported,
whether or not anybody uses its names. Pure syntax; where a name leads is for the resolver to say.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from difftest.lift.mutations import SETTERS, Chain, Change, How
from difftest.lift.source import SourceModule, is_registration
from difftest.lift.statements import walk_statements
from difftest.lift.syntax import syntax_hash

HARMLESS = (
    "abc", "atexit", "argparse", "collections", "contextlib", "copy", "copyreg", "dataclasses", "enum",
    "faulthandler", "functools", "importlib", "inspect", "itertools", "json", "logging", "multiprocessing", "pathlib",
    "pickle", "re", "resource", "signal", "subprocess", "sys.path", "threading", "time", "types", "typing",
    "typing_extensions", "warnings", "weakref", "torch._dynamo", "torch._functorch", "torch._inductor",
    "torch.accelerator", "torch.cuda", "torch.distributed", "torch._library", "torch._logging", "torch.compiler",
    "torch.export", "torch.fx", "torch.library", "torch.serialization",
)  # fmt: skip
"""Modules outside the tree whose state no eager computation reads, so that changing it at import does not count."""


@dataclass(frozen=True)
class Mark:
    """What a statement may change.

    Attributes:
        module, chain: `module` as imported and what is read from it: `from a import b; b.c = 1` is ("a", ("b", "c")).
        how: `set`: the last of the chain is bound anew; `change`: its object is changed; `call`: it is called;
            `give`: it is an argument of a call; `base`: a class is derived from it.
    """

    module: str
    chain: Chain
    how: How

    @property
    def sets(self) -> bool:
        """Whether it changes a library: by its name, if it is a call; `torch.zeros` changes nothing."""
        return self.how in ("set", "change") or (
            self.how == "call" and bool(self.chain) and SETTERS.match(self.chain[-1]) is not None
        )


@dataclass(frozen=True)
class Effect:
    """One statement that runs at import and may change what does not belong to its own file.

    Attributes:
        number: its place among the statements of the file, those in branches included.
        first, last: lines. text: the statement in short.
        digest: of the statement and of the file's own functions that it calls.
    """

    number: int
    first: int
    last: int
    text: str
    digest: str
    marks: tuple[Mark, ...]


def effect_nodes(source: SourceModule) -> dict[int, tuple[int, ast.stmt]]:
    """number -> (index of the top-level statement, statement) of all statements that run at import."""
    found = {}
    number = 0
    for index, top in enumerate(source.statements):
        for node in walk_statements([top], live=True):
            found[number] = (index, node)
            number += 1
    return found


def find_effects(source: SourceModule) -> list[Effect]:
    """The effects of importing a file."""
    found = []
    for number, (_, node) in effect_nodes(source).items():
        changes = _in_order(source.mutations.of(node))
        decorates = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        marks = tuple(dict.fromkeys(m for c in changes for m in _marks(source, c, decorates) if not _harmless(m)))
        if marks and not is_registration(node):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            text = ast.unparse(node).splitlines()[0][:80]
            digest = syntax_hash(node, annotations=True)
            called = sorted(_called_functions(source, node))
            if called:
                bodies = [syntax_hash(source.mutations.functions[name]) for name in called]
                digest = hashlib.sha256(" ".join([digest, *bodies]).encode()).hexdigest()
            found.append(Effect(number, first, node.end_lineno or first, text, digest, marks))
    return found


def _harmless(mark: Mark) -> bool:
    name = ".".join([mark.module, *mark.chain])
    return any(name == other or name.startswith(other + ".") for other in HARMLESS)


def find_changes(source: SourceModule, function: str) -> list[Mark]:
    """What a call of a function of a file, or of a method as `Class.method`, changes of the tree."""
    top = source.name.partition(".")[0]
    changes = _in_order(source.mutations.of_call(function))
    marks = dict.fromkeys(mark for change in changes for mark in _marks(source, change, own=True))
    return [mark for mark in marks if mark.module.partition(".")[0] == top]


def _in_order(changes: Iterable[Change]) -> list[Change]:
    return sorted(changes, key=lambda c: (c.root, c.chain, c.how, c.plain, c.nested))


def _marks(source: SourceModule, change: Change, nested: bool = False, own: bool = False) -> Iterator[Mark]:
    """The marks of a change of what a name stands for, for each import that binds it.

    Args:
        nested: also of a library what functions in functions change: one of them decorates, and so is called.
        own: also those of what the file itself defines.
    """
    top = source.name.partition(".")[0]
    items = source.imports_of(change.root)
    for item in items:
        theirs = change.plain and change.how != "give" and (nested or not change.nested)
        if theirs or item.module.partition(".")[0] == top:
            start = () if item.attribute is None else (item.attribute,)
            yield Mark(item.module, (*start, *change.chain), change.how)
        # else a decorator of a library changes what it decorates
    if not items and (
        (own and change.root in source.bindings) or (change.how == "base" and source.classes(change.root))
    ):
        yield Mark(source.name, (change.root, *change.chain), change.how)


def _called_functions(source: SourceModule, node: ast.stmt) -> set[str]:
    """The file's own functions that run when a statement does, those that they call included."""
    functions = source.mutations.functions
    found: set[str] = set()
    todo = [name for part in _own_parts(node) for name in _named(part)]
    while todo:
        name = todo.pop()
        if name in functions and name not in found:
            found.add(name)
            todo += _named(functions[name])
    return found


def _own_parts(node: ast.stmt) -> list[ast.AST]:
    """What a statement evaluates by itself, without the statements in it; a class with its body."""
    if isinstance(node, ast.ClassDef):
        return [node]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [*node.decorator_list, node.args]
    return [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt | ast.ExceptHandler)]


def _named(part: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(part) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load))


def imports_for_effect(source: SourceModule) -> list[str]:
    """Modules whose import a file performs at top level without using a name that it binds; a package's all."""
    used: set[str] = set(source.exports or ())
    if not source.is_package:
        used |= {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
    return list(_imported(source, used))


def _imported(source: SourceModule, used: Iterable[str]) -> dict[str, None]:
    found: dict[str, None] = {}
    for node in walk_statements(source.statements, live=True):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for item in source.expand(node):
                if item.bound not in used:
                    found[item.loads or item.module] = None
                    if item.attribute:
                        found[f"{item.module}.{item.attribute}"] = None
    return found
