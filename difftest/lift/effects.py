"""What importing a file does beyond binding its own names: it changes objects of other modules, or the process.

A module that registers its functions in another one's table, or patches another one, does so when it is imported,
whether or not anybody uses its names. Pure syntax; where a name leads is for the resolver to say.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from difftest.lift.source import (
    Chain,
    SourceModule,
    all_args,
    bound_names,
    is_registration,
    walk_statements,
)
from difftest.lift.syntax import syntax_hash

How = Literal["set", "change", "call", "base"]

HARMLESS = (
    "abc", "atexit", "argparse", "collections", "contextlib", "copy", "copyreg", "dataclasses", "enum",
    "faulthandler", "functools", "importlib", "inspect", "itertools", "json", "logging", "multiprocessing", "pathlib",
    "pickle", "re", "resource", "signal", "subprocess", "sys.path", "threading", "time", "types", "typing",
    "typing_extensions", "warnings", "weakref", "torch._dynamo", "torch._functorch", "torch._inductor",
    "torch.accelerator", "torch.cuda", "torch.distributed", "torch._library", "torch._logging", "torch.compiler",
    "torch.export", "torch.fx", "torch.library", "torch.serialization",
)  # fmt: skip
"""Modules outside the tree whose state no eager computation reads, so that changing it at import does not count."""


_SETTERS = re.compile(
    r"_*(set|use_|enable|disable|allow|manual_seed|seed|register|add_|insert|append|extend|update|put|patch|install|"
    r"configure|clear|reset|push|pop|remove|del|init|unset|simplefilter|filterwarnings)", re.IGNORECASE
)  # fmt: skip
"""How the names begin of a library's functions that change what all its users share."""


@dataclass(frozen=True)
class Mark:
    """What a statement may change.

    Attributes:
        module, chain: `module` as imported and what is read from it: `from a import b; b.c = 1` is ("a", ("b", "c")).
        how: `set`: the last of the chain is bound anew; `change`: its object is changed; `call`: it is called;
            `base`: a class is derived from it.
    """

    module: str
    chain: Chain
    how: How

    @property
    def sets(self) -> bool:
        """Whether it changes a library: by its name, if it is a call; `torch.zeros` changes nothing."""
        return self.how in ("set", "change") or (
            self.how == "call" and bool(self.chain) and _SETTERS.match(self.chain[-1]) is not None
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
    finder = _Finder(source)
    found = []
    for number, (_, node) in effect_nodes(source).items():
        marks = tuple(dict.fromkeys(m for m in finder.at_import(node) if not _harmless(m)))
        if marks and not is_registration(node):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            text = ast.unparse(node).splitlines()[0][:80]
            digest = syntax_hash(node, annotations=True)
            called = sorted(finder.called_functions(node))
            if called:
                bodies = [syntax_hash(finder.functions[name]) for name in called]
                digest = hashlib.sha256(" ".join([digest, *bodies]).encode()).hexdigest()
            found.append(Effect(number, first, node.end_lineno or first, text, digest, marks))
    return found


def _harmless(mark: Mark) -> bool:
    name = ".".join([mark.module, *mark.chain])
    return any(name == other or name.startswith(other + ".") for other in HARMLESS)


class _Finder:
    def __init__(self, source: SourceModule) -> None:
        self.source = source
        self.functions = {
            node.name: node
            for node in walk_statements(source.statements, live=True)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self._inside: dict[tuple[str, bool], frozenset[Mark]] = {}

    def at_import(self, node: ast.stmt) -> Iterator[Mark]:
        """What one statement may change when it runs."""
        yield from self.direct(node)
        decorates = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for name in self.called_functions(node):
            yield from self.inside(name, decorates)

    def direct(self, node: ast.stmt) -> Iterator[Mark]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                yield from self._marks(decorator.func if isinstance(decorator, ast.Call) else decorator, "call", True)
            if isinstance(node, ast.ClassDef):
                for base in [*node.bases, *(k.value for k in node.keywords if k.arg == "metaclass")]:
                    yield from self._marks(base.value if isinstance(base, ast.Subscript) else base, "base")
                    if isinstance(base, ast.Name) and self.source.classes(base.id):
                        yield Mark(self.source.name, (base.id,), "base")
                for inner in walk_statements(node.body, live=True):
                    if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        yield from self.direct(inner)
            return
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = list(node.targets)
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Delete():
                targets = list(node.targets)
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(part, ast.Attribute):
                    yield from self._marks(part, "set")
                elif isinstance(part, ast.Subscript):
                    yield from self._marks(_without_subscripts(part), "change")
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr):
            for call in _calls(node.value):  # also those of a comprehension
                yield from self._call(call)
        elif isinstance(value, ast.Call):
            yield from self._marks(value.func, "call", True)

    def _call(self, call: ast.Call) -> Iterator[Mark]:
        if isinstance(call.func, ast.Name) and call.func.id in ("setattr", "delattr") and len(call.args) >= 2:
            name = call.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                for mark in self._marks(call.args[0], "set"):
                    yield Mark(mark.module, (*mark.chain, name.value), "set")
            else:
                yield from self._marks(call.args[0], "change")
            return
        yield from self._marks(_without_subscripts(call.func), "call")
        for argument in [*call.args, *[k.value for k in call.keywords]]:
            if isinstance(argument, ast.Name):
                yield from self._marks(argument, "change", True)

    def _marks(self, node: ast.expr, how: How, inside_only: bool = False) -> Iterator[Mark]:
        """The marks of `a.b.c`, for each import that binds `a`."""
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return
        top = self.source.name.partition(".")[0]
        for item in self.source.imports_of(node.id):
            if inside_only and item.module.partition(".")[0] != top:
                continue  # a decorator of a library changes what it decorates
            start = () if item.attribute is None else (item.attribute,)
            yield Mark(item.module, (*start, *reversed(chain)), how)

    def called_functions(self, node: ast.stmt) -> set[str]:
        """The file's own functions that run when a statement does, those that they call included."""
        parts: list[ast.AST] = []
        decorates = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts += node.decorator_list
        elif isinstance(node, ast.If | ast.While):
            parts.append(node.test)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr) and node.value is not None:
            parts.append(node.value)
        found: set[str] = set()
        todo = [name for part in parts for name in _called(part)]
        todo += [d.id for d in getattr(node, "decorator_list", ()) if isinstance(d, ast.Name)]
        while todo:
            name = todo.pop()
            if name in self.functions and name not in found:
                found.add(name)
                todo += [n for inner in _runs(self.functions[name], decorates) for n in _called(inner)]
        return found

    def inside(self, name: str, nested: bool) -> frozenset[Mark]:
        """What the body of a function of the file changes of what the file has imported; with `nested`, also what the
        functions in it do, one of which decorates."""
        if (name, nested) not in self._inside:
            function = self.functions[name]
            local = {a.arg for n in ast.walk(function) if isinstance(n, ast.arguments) for a in all_args(n)}
            local |= {n for inner in function.body for n in bound_names(inner)}
            marks: list[Mark] = []
            for inner in _runs(function, nested):
                if isinstance(inner, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete | ast.Expr):
                    marks += [m for m in self.direct(inner) if self._root(inner) not in local]
            self._inside[name, nested] = frozenset(marks)
        return self._inside[name, nested]

    @staticmethod
    def _root(node: ast.stmt) -> str:
        """The name that a simple statement begins with."""
        inner: ast.AST = node
        while not isinstance(inner, ast.Name):
            match inner:
                case ast.Assign(targets=[first, *_]) | ast.Delete(targets=[first, *_]):
                    inner = first
                case ast.AugAssign(target=first) | ast.AnnAssign(target=first):
                    inner = first
                case ast.Expr(value=first) | ast.Call(func=first):
                    inner = first
                case ast.Attribute(value=first) | ast.Subscript(value=first):
                    inner = first
                case _:
                    return ""
        return inner.id


def _without_subscripts(node: ast.expr) -> ast.expr:
    """`a.b` of `a.b[c].d`: the object that is changed, as far as its name goes."""
    found = node
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute | ast.Subscript):
        if isinstance(inner, ast.Subscript):
            found = inner.value
        inner = inner.value
    return found


def _runs(function: ast.FunctionDef | ast.AsyncFunctionDef, nested: bool) -> list[ast.stmt]:
    """The statements of a function's body; with `nested`, those of the functions in it as well."""
    if nested:
        return [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    return list(walk_statements(function.body))


def _called(part: ast.AST) -> Iterator[str]:
    """Plain names that code calls when it runs."""
    return (call.func.id for call in _calls(part) if isinstance(call.func, ast.Name))


def _calls(part: ast.AST) -> Iterator[ast.Call]:
    """The calls that code makes when it runs; not what lambdas and functions in it call later."""
    todo: list[ast.AST] = [part]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        todo += ast.iter_child_nodes(node)


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
