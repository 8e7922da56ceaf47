"""What one source file binds and uses, statement by statement. Pure syntax: nothing is imported or executed.

A module is a list of top-level statements. To lift a name is to keep the statements that bind it, cut down to the
part that does (`prune`), and the names that those statements use in turn (`uses`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

from difftest.errors import LiftError

_N = TypeVar("_N", bound=ast.AST)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Import:
    """One name bound by an import statement, with relative levels already resolved.

    `from a.b import c as d` is ("d", "a.b", "c"); `import a.b as d` is ("d", "a.b", None); `import a.b` binds the
    package at the top: ("a", "a", None) and remembers `a.b` in `loads`.
    """

    bound: str
    module: str
    attribute: str | None
    loads: str | None = None


@dataclass
class Uses:
    """What a piece of code refers to.

    Attributes:
        names: global names read, written or deleted.
        chains: per global name, the attribute chains read from it (`envs.X` is ("X",)); () when it is used bare.
        attributes: every attribute name accessed on anything, and constant strings given to getattr and its kin.
        imports: what is imported when the code runs.
        ops: custom operators named, as (namespace, operator).
    """

    names: set[str] = field(default_factory=set)
    chains: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    imports: list[Import] = field(default_factory=list)
    ops: set[tuple[str, str]] = field(default_factory=set)

    def update(self, other: Uses) -> None:
        self.names |= other.names
        for name, chains in other.chains.items():
            self.chains.setdefault(name, set()).update(chains)
        self.attributes |= other.attributes
        self.imports += other.imports
        self.ops |= other.ops


class SourceModule:
    """One parsed file of a tree.

    Args:
        name: dotted module name inside the tree.
        path: posix path of the file, relative to the tree's root.
        data: the file's bytes.
        is_package: whether the file is an `__init__.py`.

    Raises:
        LiftError: the file is not Python that this interpreter can parse.
    """

    def __init__(self, name: str, path: str, data: bytes, is_package: bool) -> None:
        self.name = name
        self.path = path
        self.data = data
        self.is_package = is_package
        self.package = name if is_package else name.rpartition(".")[0]
        try:
            self.tree = ast.parse(data, filename=path)
        except (SyntaxError, ValueError) as error:
            raise LiftError(f"{path} cannot be parsed by this Python: {error}") from None
        self.statements = self.tree.body
        self._uses: dict[int, tuple[ast.stmt, Uses]] = {}

    @cached_property
    def text(self) -> str:
        return self.data.decode("utf-8", errors="replace")

    @cached_property
    def bindings(self) -> dict[str, list[int]]:
        """Name -> indices of the top-level statements that bind or change it, in source order."""
        # A file that sets attributes of a module it imports patches what both arms share; that is never lifted.
        modules = {
            (alias.asname or alias.name.split(".")[0])
            for node in walk_statements(self.statements)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.statements):
            for name in bound_names(node) | (changed_roots(node) - modules):
                found.setdefault(name, []).append(index)
        return {
            name: at for name, at in found.items() if any(name in bound_names(self.statements[i]) for i in at)
        }

    @cached_property
    def stars(self) -> list[str]:
        """Modules imported with `from m import *` at top level."""
        return [
            self.absolute(node.module, node.level)
            for node in walk_statements(self.statements)
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]

    @cached_property
    def exports(self) -> list[str] | None:
        """`__all__` when it is a plain list of strings, else None."""
        names: list[str] = []
        for node in self.statements:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == "__all__":
                try:
                    names += ast.literal_eval(node.value)  # type: ignore[attr-defined]
                except (ValueError, TypeError):
                    return None
        return names or None

    def absolute(self, module: str | None, level: int) -> str:
        """The absolute name of `from <level dots><module> import ...` in this file."""
        if not level:
            return module or ""
        base = self.package.split(".")
        base = base[: len(base) - (level - 1)]
        return ".".join([*base, module] if module else base)

    def imports_of(self, name: str) -> list[Import]:
        """The imports at top level (also inside `if` and `try`) that bind `name`."""
        found: list[Import] = []
        for index in self.bindings.get(name, ()):
            for node in walk_statements([self.statements[index]]):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    found += [item for item in self.expand(node) if item.bound == name]
        return found

    def expand(self, node: ast.Import | ast.ImportFrom) -> list[Import]:
        """The names that one import statement binds."""
        if isinstance(node, ast.ImportFrom):
            module = self.absolute(node.module, node.level)
            return [Import(a.asname or a.name, module, a.name) for a in node.names if a.name != "*"]
        return [
            Import(a.asname, a.name, None)
            if a.asname
            else Import(top := a.name.split(".")[0], top, None, a.name)
            for a in node.names
        ]

    def uses(self, node: ast.stmt) -> Uses:
        """What a statement refers to; remembered per statement node."""
        key = id(node)
        if key not in self._uses:
            self._uses[key] = (node, find_uses(self, node))  # the node is kept, so that its id stays its own
        return self._uses[key][1]

    def classes(self, name: str) -> list[ast.ClassDef]:
        """The class statements that bind `name`, wherever at top level they stand."""
        return [
            node
            for index in self.bindings.get(name, ())
            for node in walk_statements([self.statements[index]])
            if isinstance(node, ast.ClassDef) and node.name == name
        ]

    def functions(self, name: str) -> list[FunctionNode]:
        return [
            node
            for index in self.bindings.get(name, ())
            for node in walk_statements([self.statements[index]])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]

    def mentions(self, operator: str) -> list[int]:
        """Top-level statements whose purpose is to register the operator: they hold its name as a string."""
        wanted = {operator}
        found = []
        for index, node in enumerate(self.statements):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                strings = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                strings = (
                    n.value for d in node.decorator_list for n in ast.walk(d) if isinstance(n, ast.Constant)
                )
            else:
                continue
            if any(isinstance(s, str) and s.rpartition("::")[2].split("(")[0] in wanted for s in strings):
                found.append(index)
        return found


@lru_cache(maxsize=65536)
def bound_names(node: ast.stmt) -> frozenset[str]:
    """Names that a top-level statement binds in the module's namespace."""
    return frozenset(_bound(node))


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
            return
        case ast.Import():
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0]
            return
        case ast.ImportFrom():
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name
            return
        case ast.Lambda():
            return
        case ast.If() if (truth := static_truth(node.test)) is not None:
            for inner in node.body if truth else node.orelse:
                yield from _bound(inner)
            return
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
            return
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
    if isinstance(node, _COMPREHENSIONS):  # targets are local to it; only a walrus leaks
        for child in ast.walk(node):
            if isinstance(child, ast.NamedExpr):
                yield child.target.id
        return
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


@lru_cache(maxsize=65536)
def changed_roots(node: ast.stmt) -> frozenset[str]:
    """Module-level names whose object a statement changes in place: `x[k] = v`, `x.a = v`, `x.append(v)`."""
    found = set()
    for inner in walk_statements([node]):
        targets: list[ast.expr] = []
        if isinstance(inner, ast.Assign):
            targets = list(inner.targets)
        elif isinstance(inner, ast.AugAssign | ast.AnnAssign):
            targets = [inner.target]
        elif isinstance(inner, ast.Delete):
            targets = list(inner.targets)
        elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
            function = inner.value.func
            if isinstance(function, ast.Attribute):
                targets = [function]
        for target in targets:
            if isinstance(target, ast.Attribute | ast.Subscript) and (root := root_name(target)):
                found.add(root)
    return frozenset(found)


def root_name(node: ast.expr) -> str | None:
    """`a` of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def walk_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run in the same scope: into `if`, `try`, `with`, loops; not into functions and classes."""
    for node in body:
        yield node
        if isinstance(node, _SCOPES):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from walk_statements(getattr(node, name, ()))
        for handler in getattr(node, "handlers", ()):
            yield from walk_statements(handler.body)
        for case in getattr(node, "cases", ()):
            yield from walk_statements(case.body)


def static_truth(test: ast.expr) -> bool | None:
    """The value of a condition that is the same in every run: TYPE_CHECKING is False; None when unknown."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.Constant(value=value):
            return bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = static_truth(operand)
            return None if truth is None else not truth
        case ast.BoolOp(op=ast.And(), values=values):
            truths = [static_truth(v) for v in values]
            return False if False in truths else True if all(truths) else None
        case ast.BoolOp(op=ast.Or(), values=values):
            truths = [static_truth(v) for v in values]
            return True if True in truths else False if all(t is False for t in truths) else None
    return None


def prune(node: ast.stmt, wanted: set[str]) -> ast.stmt | None:
    """The part of a top-level statement that binds or changes the wanted names; None when it does neither.

    Originals are never changed. `try`, `with` and loops are kept whole: what they do in one branch decides another.
    """
    match node:
        case ast.Import():
            kept = [a for a in node.names if (a.asname or a.name.split(".")[0]) in wanted]
            return _with(node, names=kept) if kept else None
        case ast.ImportFrom():
            if node.names[0].name == "*":
                return None
            kept = [a for a in node.names if (a.asname or a.name) in wanted]
            return _with(node, names=kept) if kept else None
        case ast.If():
            truth = static_truth(node.test)
            body = [] if truth is False else _prune_all(node.body, wanted)
            orelse = [] if truth is True else _prune_all(node.orelse, wanted)
            if not body and not orelse:
                return None
            if truth is not None:
                return _with(node, test=_copy(ast.Constant(value=True), node), body=body or orelse, orelse=[])
            return _with(node, body=body or [_copy(ast.Pass(), node)], orelse=orelse)
    if wanted & bound_names(node) or wanted & changed_roots(node):
        return node
    return None


def _prune_all(body: list[ast.stmt], wanted: set[str]) -> list[ast.stmt]:
    return [kept for node in body if (kept := prune(node, wanted)) is not None]


def _copy(new: _N, old: ast.AST) -> _N:
    return ast.copy_location(new, old)


def _with(node: _N, **changes: object) -> _N:
    """A shallow copy of a node with some fields replaced."""
    fields = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return ast.copy_location(type(node)(**{**fields, **changes}), node)


replace_fields = _with


def is_method(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def class_pieces(node: ast.ClassDef) -> tuple[ast.ClassDef, dict[str, list[FunctionNode]]]:
    """A class without its methods, and its methods by name (a property and its setter share one)."""
    methods: dict[str, list[FunctionNode]] = {}
    rest: list[ast.stmt] = []
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            methods.setdefault(inner.name, []).append(inner)
        else:
            rest.append(inner)
    return _with(node, body=rest or [ast.copy_location(ast.Pass(), node)]), methods


def find_uses(module: SourceModule, node: ast.AST) -> Uses:
    """What a piece of code refers to outside itself. Annotations do not count: they are never evaluated."""
    found = Uses()
    _UseFinder(module, found).visit(node, ())
    return found


_STRING_ACCESS = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller"}


class _UseFinder:
    """Walks code with the names local to each enclosing function in hand."""

    def __init__(self, module: SourceModule, found: Uses) -> None:
        self.module = module
        self.found = found

    def visit(self, node: ast.AST, scopes: tuple[frozenset[str], ...]) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    self.visit(decorator, scopes)
                self._function(node.args, node.body, scopes)
            case ast.Lambda():
                self._function(node.args, [node.body], scopes)
            case ast.ClassDef():
                for part in [*node.decorator_list, *node.bases, *[k.value for k in node.keywords]]:
                    self.visit(part, scopes)
                # A name bound in a class body is seen by the body, not by the functions in it.
                for inner in node.body:
                    self.visit(inner, scopes)
            case ast.AnnAssign():
                self.visit(node.target, scopes)
                if node.value:
                    self.visit(node.value, scopes)
            case ast.Import() | ast.ImportFrom():
                self.found.imports += self.module.expand(node)
                if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                    self.found.imports.append(Import("*", self.module.absolute(node.module, node.level), "*"))
            case ast.If() if (truth := static_truth(node.test)) is not None:
                for inner in node.body if truth else node.orelse:
                    self.visit(inner, scopes)
            case ast.Attribute():
                self._attribute(node, scopes)
            case ast.Name(id=name):
                self._name(name, (), scopes)
            case ast.Global(names=names):
                for name in names:
                    self.found.names.add(name)
            case ast.Call():
                self._strings(node)
                self._children(node, scopes)
            case _ if isinstance(node, _COMPREHENSIONS):
                local = frozenset(n for g in node.generators for n in _bound(g.target))
                self._children(node, (*scopes, local))
            case _:
                self._children(node, scopes)

    def _children(self, node: ast.AST, scopes: tuple[frozenset[str], ...]) -> None:
        for child in ast.iter_child_nodes(node):
            self.visit(child, scopes)

    def _function(
        self, args: ast.arguments, body: list[ast.stmt] | list[ast.expr], scopes: tuple[frozenset[str], ...]
    ) -> None:
        for default in [*args.defaults, *[d for d in args.kw_defaults if d is not None]]:
            self.visit(default, scopes)
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        local = {a.arg for a in every if a is not None}
        outer: set[str] = set()
        for statement in body:
            for inner in walk_statements([statement]) if isinstance(statement, ast.stmt) else [statement]:
                if isinstance(inner, ast.Global):
                    outer.update(inner.names)
            local.update(_bound(statement))
        local -= outer
        inside = (*scopes, frozenset(local))
        for statement in body:
            self.visit(statement, inside)

    def _name(self, name: str, chain: tuple[str, ...], scopes: tuple[frozenset[str], ...]) -> None:
        if any(name in scope for scope in scopes):
            return
        self.found.names.add(name)
        self.found.chains.setdefault(name, set()).add(chain)

    def _attribute(self, node: ast.Attribute, scopes: tuple[frozenset[str], ...]) -> None:
        chain: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        chain.reverse()
        self.found.attributes.update(chain)
        if isinstance(inner, ast.Name):
            if len(chain) >= 3 and chain[0] == "ops":
                self.found.ops.add((chain[1], chain[2]))
            self._name(inner.id, tuple(chain), scopes)
        else:
            self.visit(inner, scopes)

    def _strings(self, node: ast.Call) -> None:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name in _STRING_ACCESS:
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    self.found.attributes.update(argument.value.split("."))
