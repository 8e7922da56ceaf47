"""What one source file binds and uses, statement by statement. Pure syntax: nothing is imported or executed.

A module is a list of top-level statements. To lift a name is to keep the statements that bind it, cut down to the
part that does (`prune`), and the names that those statements use in turn (`uses`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from difftest.errors import LiftError

_N = TypeVar("_N", bound=ast.AST)
Chain = tuple[str, ...]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
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


@dataclass(frozen=True)
class Star:
    """`from module import *` in the top-level statement `index`."""

    module: str
    index: int


@dataclass
class Uses:
    """What a piece of code refers to.

    Attributes:
        names: global names read, written or deleted.
        chains: per global name, the attribute chains read from it (`envs.X` is ("X",)); () when it is used bare.
        local_chains: the same of names that an import inside a function binds.
        attributes: every attribute name accessed on anything, and constant strings given to getattr and its kin.
        patterns: (prefix, suffix) of attribute names that are made at run time: `getattr(x, f"apply_{kind}")`.
        imports: what is imported when the code runs.
        ops: custom operators named, as (namespace, operator); operator is empty when the code computes it.
        references: constant strings that may name a module or a definition in one (`import_module("a.b")`).
        namespace: the code asks for the module's namespace as a whole (`globals()`).
    """

    names: set[str] = field(default_factory=set)
    chains: dict[str, set[Chain]] = field(default_factory=dict)
    local_chains: dict[str, set[Chain]] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    patterns: set[tuple[str, str]] = field(default_factory=set)
    imports: list[Import] = field(default_factory=list)
    ops: set[tuple[str, str]] = field(default_factory=set)
    references: set[str] = field(default_factory=set)
    namespace: bool = False


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
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise LiftError(f"{path} cannot be parsed by this Python: {error}") from None
        self.statements = self.tree.body
        self._effects: dict[int, frozenset[str]] = {}
        self._binds: dict[int, frozenset[str]] = {}
        self._imports: dict[str, list[Import]] = {}

    # -- what is bound --------------------------------------------------------------------------------------------

    @cached_property
    def bindings(self) -> dict[str, list[int]]:
        """Name -> indices of the top-level statements that bind or change it, in source order."""
        found: dict[str, list[int]] = {}
        bound: set[str] = set()
        for index, node in enumerate(self.statements):
            names = self.binds(node)
            bound |= names
            for name in names | self.effects(node):
                found.setdefault(name, []).append(index)
        return {name: at for name, at in found.items() if name in bound}

    def binds(self, node: ast.stmt) -> frozenset[str]:
        """Names that a top-level statement binds in the module's namespace."""
        key = id(node)
        if key not in self._binds:
            self._binds[key] = frozenset(bound_names(node))
        return self._binds[key]

    def effects(self, node: ast.stmt) -> frozenset[str]:
        """Module-level names whose object a top-level statement changes in place.

        `x[k] = v`, `x.a = v`, `x.append(v)`, `f(x)`, `@x.register`, a call of or a decoration with one of the
        module's own functions that changes `x`, and a subclass of an `x` that keeps account of its subclasses.
        """
        key = id(node)
        if key not in self._effects:
            self._effects[key] = frozenset(self._changed(node)) - self._shared
        return self._effects[key]

    @cached_property
    def _shared(self) -> frozenset[str]:
        """Names bound by imports from outside the tree. What changes those patches what both arms share, so it is
        never lifted."""
        top = self.name.partition(".")[0]
        inside: set[str] = set()
        outside: set[str] = set()
        for node in walk_statements(self.statements):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for item in self.expand(node):
                    # A module of the tree that is imported whole is shared by nobody, yet patching it is the same.
                    whole = item.attribute is None
                    (outside if whole or item.module.partition(".")[0] != top else inside).add(item.bound)
        return frozenset(outside - inside)

    def _changed(self, node: ast.stmt) -> Iterator[str]:
        for inner in walk_statements([node], live=True):
            yield from _changed_roots(inner)
            yield from _given_roots(inner) - self._imported
            for called in _called_at_load(inner):
                yield from self._changers.get(called, ())
            if isinstance(inner, ast.ClassDef):
                for base in inner.bases:
                    if isinstance(base, ast.Name) and base.id in self._keeps_subclasses:
                        yield base.id

    @cached_property
    def _imported(self) -> frozenset[str]:
        """Names bound by imports: `@triton.jit` and `register(ImportedClass)` concern another module."""
        nodes = [n for n in walk_statements(self.statements) if isinstance(n, ast.Import | ast.ImportFrom)]
        return frozenset(item.bound for node in nodes for item in self.expand(node))

    @cached_property
    def _keeps_subclasses(self) -> frozenset[str]:
        return frozenset(
            node.name
            for node in walk_statements(self.statements, live=True)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(n, _FUNCTIONS) and n.name == "__init_subclass__" for n in node.body)
        )

    @cached_property
    def _changers(self) -> dict[str, frozenset[str]]:
        """The module's own functions -> the module-level names that they change when they are called."""
        functions = {
            node.name: node for node in walk_statements(self.statements, live=True) if isinstance(node, _FUNCTIONS)
        }
        top = {name for node in self.statements for name in self.binds(node)}
        direct: dict[str, set[str]] = {}
        calls: dict[str, set[str]] = {}
        for name, function in functions.items():
            changed: set[str] = set()
            for inner in ast.walk(function):
                if isinstance(inner, ast.Global):
                    changed.update(inner.names)
                elif isinstance(inner, ast.stmt):
                    changed |= {root for root in _changed_roots(inner, mutators_only=True) if root in top}
                elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id in functions:
                    calls.setdefault(name, set()).add(inner.func.id)
            if changed:
                parameters = {a.arg for n in ast.walk(function) if isinstance(n, ast.arguments) for a in _all_args(n)}
                direct[name] = changed - parameters
        for _ in range(4):  # helpers of helpers
            for name, called in calls.items():
                for other in called:
                    if other in direct:
                        direct.setdefault(name, set()).update(direct[other])
        return {name: frozenset(changed) for name, changed in direct.items()}

    @cached_property
    def postpones_annotations(self) -> bool:
        """Whether the file says `from __future__ import annotations`."""
        return any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations"
            for node in self.statements[:20]
        )

    @cached_property
    def stars(self) -> list[Star]:
        """Star imports at top level, weakest first: a later one wins, and `try` wins over `except`."""
        found: list[Star] = []
        for index, node in enumerate(self.statements):
            inner = list(walk_statements([node], live=True))
            handlers = {
                id(n) for t in inner if isinstance(t, ast.Try) for h in t.handlers for n in walk_statements(h.body)
            }
            stars = [n for n in inner if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
            for star in sorted(stars, key=lambda n: id(n) not in handlers):
                found.append(Star(self.absolute(star.module, star.level), index))
        return found

    @cached_property
    def exports(self) -> list[str] | None:
        """`__all__` when it is plain lists of strings, else None."""
        names: list[str] = []
        found = False
        for node in walk_statements(self.statements, live=True):
            value: ast.expr | None = None
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == "__all__":
                value = getattr(node, "value", None)
                if not isinstance(node, ast.AugAssign):
                    names = []
            elif (method := _called_method(node)) is not None and root_name(method.func) == "__all__":
                if getattr(method.func, "attr", "") not in ("extend", "append") or len(method.args) != 1:
                    return None
                value = method.args[0]
            if value is None:
                continue
            found = True
            try:
                given = ast.literal_eval(value)
            except (ValueError, TypeError):
                return None
            names += [given] if isinstance(given, str) else list(given)
        return names if found else None

    @cached_property
    def hides_exports(self) -> bool:
        """Whether `__all__` exists but is computed, so that any name may be exported."""
        return self.exports is None and "__all__" in self.bindings

    def absolute(self, module: str | None, level: int) -> str:
        """The absolute name of `from <level dots><module> import ...` in this file."""
        if not level:
            return module or ""
        base = self.package.split(".")
        base = base[: len(base) - (level - 1)]
        return ".".join([*base, module] if module else base)

    def imports_of(self, name: str) -> list[Import]:
        """The imports at top level (also inside `if` and `try`) that bind `name`."""
        if name not in self._imports:
            self._imports[name] = [
                item
                for index in self.bindings.get(name, ())
                for node in walk_statements([self.statements[index]], live=True)
                if isinstance(node, ast.Import | ast.ImportFrom)
                for item in self.expand(node)
                if item.bound == name
            ]
        return self._imports[name]

    def expand(self, node: ast.Import | ast.ImportFrom) -> list[Import]:
        """The names that one import statement binds."""
        if isinstance(node, ast.ImportFrom):
            module = self.absolute(node.module, node.level)
            return [Import(a.asname or a.name, module, a.name) for a in node.names if a.name != "*"]
        return [
            Import(a.asname, a.name, None)
            if a.asname
            else Import(top := a.name.split(".")[0], top, None, a.name if "." in a.name else None)
            for a in node.names
        ]

    def classes(self, name: str) -> list[ast.ClassDef]:
        """The class statements that bind `name`, wherever at top level they stand."""
        return [node for node in self._defining(name) if isinstance(node, ast.ClassDef)]

    def functions(self, name: str) -> list[FunctionNode]:
        return [node for node in self._defining(name) if isinstance(node, _FUNCTIONS)]

    def _defining(self, name: str) -> list[ast.stmt]:
        return [
            node
            for index in self.bindings.get(name, ())
            for node in walk_statements([self.statements[index]], live=True)
            if isinstance(node, _SCOPES) and getattr(node, "name", "") == name
        ]

    # -- parts of statements --------------------------------------------------------------------------------------

    def prune(self, node: ast.stmt, wanted: set[str]) -> ast.stmt | None:
        """The part of a top-level statement that binds or changes the wanted names; None when it does neither."""
        return _prune(node, lambda inner: bool(wanted & self.binds(inner) or wanted & self.effects(inner)), wanted)

    def registrations(self, operator: str) -> list[tuple[int, ast.stmt]]:
        """(index, part) of the top-level statements whose purpose is to register the operator: they hold its name
        as a string; those of every operator when it is empty."""
        if operator.encode() not in self.data:
            return []
        found = []
        for index, node in enumerate(self.statements):
            kept = _prune(node, lambda inner: _registers(inner, operator), set())
            if kept is not None:
                found.append((index, kept))
        return found

    def uses(self, node: ast.AST) -> Uses:
        """What a piece of code refers to outside itself."""
        return find_uses(self, node)


# -- names ------------------------------------------------------------------------------------------------------------


def bound_names(node: ast.AST) -> Iterator[str]:
    """Names that a statement binds in the scope it stands in."""
    todo = [node]
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind is ast.Name:
            if not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                yield node.id  # type: ignore[attr-defined]
            continue
        if kind in _LEAVES:
            continue
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
                continue
            case ast.Import():
                yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
                continue
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in node.names if alias.name != "*")
                continue
            case ast.If() if (truth := static_truth(node.test)) is not None:
                todo += node.body if truth else node.orelse
                continue
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case _ if isinstance(node, _COMPREHENSIONS):  # targets are local to it; only a walrus leaks
                yield from (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
                continue
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                todo += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                todo.append(value)


_LEAVES = frozenset({ast.Constant, ast.Lambda, ast.Load, ast.Store, ast.Del, ast.Pass, ast.alias, ast.Global})
_MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "put", "register"}
    | {"remove", "setdefault", "sort", "update"}
)


def _changed_roots(node: ast.stmt, mutators_only: bool = False) -> set[str]:
    """Names whose object one simple statement changes in place."""
    found: set[str] = set()
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and not mutators_only:
            found.add(node.target.id)
    elif isinstance(node, ast.Delete):
        targets = list(node.targets)
    elif (call := _called_method(node)) is not None and (
        not mutators_only or getattr(call.func, "attr", "") in _MUTATORS
    ):
        targets = [call.func]
    for target in targets:
        for inner in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(inner, ast.Attribute | ast.Subscript) and (root := root_name(inner)):
                found.add(root)
    return found


def _called_method(node: ast.stmt) -> ast.Call | None:
    """The call of a statement `x.method(...)`."""
    call = node.value if isinstance(node, ast.Expr) else None
    return call if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None


def _given_roots(node: ast.stmt) -> set[str]:
    """Names whose object may be changed by a call that it is given to, or by a method that decorates a definition."""
    found: set[str] = set()
    if isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
        found |= {a.id for a in [*call.args, *[k.value for k in call.keywords]] if isinstance(a, ast.Name)}
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Attribute) and (root := root_name(called)):
                found.add(root)
    return found


def _called_at_load(node: ast.stmt) -> Iterator[str]:
    """Plain names that one statement calls, or decorates a definition with, when it runs at top level."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Name):
                yield decorator.id
            parts.append(decorator)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr) and node.value is not None:
        parts.append(node.value)
    while parts:
        part = parts.pop()
        if isinstance(part, ast.Lambda):
            continue
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            yield part.func.id
        parts += ast.iter_child_nodes(part)


def root_name(node: ast.expr) -> str | None:
    """`a` of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _all_args(node: ast.arguments) -> list[ast.arg]:
    every = [*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg]
    return [a for a in every if a is not None]


# -- statements -------------------------------------------------------------------------------------------------------


def walk_statements(body: Iterable[ast.stmt], live: bool = False) -> Iterator[ast.stmt]:
    """Statements that run in the same scope: into `if`, `try`, `with`, loops; not into functions and classes.

    Args:
        live: leave out the branch of an `if` that never runs (`TYPE_CHECKING`).
    """
    for node in body:
        yield node
        if isinstance(node, _SCOPES):
            continue
        truth = static_truth(node.test) if live and isinstance(node, ast.If) else None
        for name in ("body", "orelse", "finalbody"):
            if (name == "body" and truth is False) or (name == "orelse" and truth is True):
                continue
            yield from walk_statements(getattr(node, name, ()), live)
        for handler in getattr(node, "handlers", ()):
            yield from walk_statements(handler.body, live)
        for case in getattr(node, "cases", ()):
            yield from walk_statements(case.body, live)


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


def _prune(node: ast.stmt, keeps: Callable[[ast.stmt], bool], wanted: set[str]) -> ast.stmt | None:
    """The part of a statement that is to be kept.

    Originals are never changed. `try`, `with` and loops are kept whole: what they do in one branch decides another.
    """
    match node:
        case ast.Import():
            kept = [a for a in node.names if (a.asname or a.name.split(".")[0]) in wanted]
            return replace_fields(node, names=kept) if kept else None
        case ast.ImportFrom():
            kept = [a for a in node.names if a.name != "*" and (a.asname or a.name) in wanted]
            return replace_fields(node, names=kept) if kept else None
        case ast.If():
            if wanted.intersection(bound_names(node.test)):
                return node
            truth = static_truth(node.test)
            body = [] if truth is False else _prune_all(node.body, keeps, wanted)
            orelse = [] if truth is True else _prune_all(node.orelse, keeps, wanted)
            if not body and not orelse:
                return None
            if truth is not None:
                true = ast.copy_location(ast.Constant(value=True), node)
                return replace_fields(node, test=true, body=body or orelse, orelse=[])
            return replace_fields(node, body=body or [ast.copy_location(ast.Pass(), node)], orelse=orelse)
        case ast.Try() | ast.With() | ast.For() | ast.While() | ast.Match():
            return node if any(keeps(inner) for inner in walk_statements([node], live=True)) else None
    return node if keeps(node) else None


def _prune_all(body: list[ast.stmt], keeps: Callable[[ast.stmt], bool], wanted: set[str]) -> list[ast.stmt]:
    return [kept for node in body if (kept := _prune(node, keeps, wanted)) is not None]


def replace_fields(node: _N, **changes: object) -> _N:
    """A shallow copy of a node with some fields replaced."""
    fields = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return ast.copy_location(type(node)(**{**fields, **changes}), node)


def _registers(node: ast.stmt, operator: str) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        parts: list[ast.AST] = [node]
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        parts = [node.value]
    elif isinstance(node, _FUNCTIONS):
        parts = list(node.decorator_list)
    else:
        return False
    strings = [
        n.value for part in parts for n in ast.walk(part) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    if not operator:
        return any("::" in s for s in strings) or any(_last_name(p) in _REGISTRARS for p in _calls(parts))
    return any(s.rpartition("::")[2].split("(")[0].split(".")[0] == operator for s in strings)


_REGISTRARS = frozenset({"custom_op", "triton_op", "define", "impl", "direct_register_custom_op"})


def _calls(parts: list[ast.AST]) -> Iterator[ast.expr]:
    return (n.func for part in parts for n in ast.walk(part) if isinstance(n, ast.Call))


def _last_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", "") or getattr(node, "id", "")


# -- classes ----------------------------------------------------------------------------------------------------------

# Looked at by `type.__new__` itself, by Enum, or by the interpreter without the descriptor protocol.
_NEVER_PUT_OFF = frozenset(
    {"__new__", "__init_subclass__", "__class_getitem__", "__set_name__", "__prepare__", "__get__"}
    | {"_generate_next_value_"}
)


def class_pieces(node: ast.ClassDef) -> tuple[ast.ClassDef, dict[str, list[FunctionNode]]]:
    """A class without its methods, and its methods by name (a property and its setter share one).

    A method that the class body itself needs when it runs (abstract, used by a statement of the body or by the
    decorator of another method) stays in the class.
    """
    methods: dict[str, list[FunctionNode]] = {}
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            methods.setdefault(inner.name, []).append(inner)
    kept = {name for name in methods if name in _NEVER_PUT_OFF}
    used: set[str] = set()
    for inner in node.body:
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            used |= {n.id for n in ast.walk(inner) if isinstance(n, ast.Name)}
            kept |= {name for name in bound_names(inner) if name in methods}
    for name, nodes in methods.items():
        at_load = [
            *(d for n in nodes for d in n.decorator_list),
            *(d for n in nodes for d in [*n.args.defaults, *n.args.kw_defaults] if d is not None),
        ]
        mentioned = {n.id for part in at_load for n in ast.walk(part) if isinstance(n, ast.Name)}
        others = mentioned & methods.keys() - {name}
        if any("abstract" in _last_name(d) for n in nodes for d in n.decorator_list) or others:
            kept.add(name)
        used |= others
    kept |= used & methods.keys()
    rest = [n for n in node.body if not isinstance(n, _FUNCTIONS) or n.name in kept]
    header = replace_fields(node, body=rest or [ast.copy_location(ast.Pass(), node)])
    return header, {name: nodes for name, nodes in methods.items() if name not in kept}


# -- uses -------------------------------------------------------------------------------------------------------------

READS_ANNOTATIONS = frozenset({"custom_op", "triton_op", "register", "register_fake", "validate_call"})
"""Decorators that evaluate the annotations of the function they are given."""
_READS_FIELDS = frozenset({"BaseModel", "Struct", "RootModel"})
_FIELD_MARKS = frozenset({"ClassVar", "InitVar", "KW_ONLY"})
_STRING_ACCESS = frozenset(
    {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "__getattribute__"}
)
_IMPORTERS = frozenset({"import_module", "__import__"})
_REFERENCE = re.compile(r"\.*[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


def find_uses(module: SourceModule, node: ast.AST) -> Uses:
    """What a piece of code refers to outside itself.

    Annotations do not count, they are never evaluated; except where something is known to read them.
    """
    found = Uses()
    finder = _UseFinder(module, found)
    finder.visit(node, ())
    bound = {item.bound for item in found.imports}
    found.local_chains = {name: chains for name, chains in found.local_chains.items() if name in bound}
    if finder.imports_by_name:
        found.references |= {s for s in finder.strings if _REFERENCE.fullmatch(s)}
    top = module.name.partition(".")[0] + "."
    found.references |= {s for s in finder.strings if s.startswith(top) and _REFERENCE.fullmatch(s)}
    return found


def annotation_uses(module: SourceModule, node: FunctionNode) -> Uses:
    """What the annotations of a function refer to."""
    found = Uses()
    finder = _UseFinder(module, found)
    for annotation in [*[a.annotation for a in _all_args(node.args)], node.returns]:
        finder.annotation(annotation, ())
    return found


Scopes = tuple[frozenset[str], ...]


class _UseFinder:
    """Walks code with the names local to each enclosing function in hand."""

    def __init__(self, module: SourceModule, found: Uses) -> None:
        self.module = module
        self.found = found
        self.strings: set[str] = set()
        self.imports_by_name = False

    def visit(self, node: ast.AST, scopes: Scopes) -> None:
        handler = _VISITORS.get(type(node))
        if handler is not None:
            handler(self, node, scopes)
        else:
            self.children(node, scopes)

    def children(self, node: ast.AST, scopes: Scopes) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.visit(item, scopes)
            elif isinstance(value, ast.AST):
                self.visit(value, scopes)

    def nothing(self, node: ast.AST, scopes: Scopes) -> None:
        pass

    def constant(self, node: ast.Constant, scopes: Scopes) -> None:
        if isinstance(node.value, str) and len(node.value) < 200:
            self.strings.add(node.value)

    def function(self, node: FunctionNode, scopes: Scopes) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator, scopes)
            if _last_name(decorator) in READS_ANNOTATIONS:
                for annotation in [*[a.annotation for a in _all_args(node.args)], node.returns]:
                    self.annotation(annotation, scopes)
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]  # a docstring
        self.body(node.args, body, scopes)

    def function_expression(self, node: ast.Lambda, scopes: Scopes) -> None:
        self.body(node.args, [node.body], scopes)

    def body(self, args: ast.arguments, body: list[ast.stmt] | list[ast.expr], scopes: Scopes) -> None:
        for default in [*args.defaults, *args.kw_defaults]:
            if default is not None:
                self.visit(default, scopes)
        local = {a.arg for a in _all_args(args)}
        outer: set[str] = set()
        for statement in body:
            if isinstance(statement, ast.stmt):
                for inner in walk_statements([statement]):
                    if isinstance(inner, ast.Global):
                        outer.update(inner.names)
            local.update(bound_names(statement))
        inside = (*scopes, frozenset(local - outer))
        for statement in body:
            self.visit(statement, inside)

    def class_(self, node: ast.ClassDef, scopes: Scopes) -> None:
        for part in [*node.decorator_list, *node.bases, *[k.value for k in node.keywords]]:
            self.visit(part, scopes)
        reads_all = any(_last_name(base) in _READS_FIELDS for base in node.bases)
        # A name bound in a class body is seen by the body, not by the functions in it.
        for inner in node.body:
            self.visit(inner, scopes)
            if isinstance(inner, ast.AnnAssign):
                self.annotation(inner.annotation, scopes, None if reads_all else _FIELD_MARKS)

    def annotated(self, node: ast.AnnAssign, scopes: Scopes) -> None:
        self.visit(node.target, scopes)
        if node.value:
            self.visit(node.value, scopes)

    def annotation(self, node: ast.expr | None, scopes: Scopes, only: frozenset[str] | None = None) -> None:
        """The names in an annotation; with `only`, those that are these of typing or dataclasses, or the modules."""
        if node is None:
            return
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                try:
                    self.annotation(ast.parse(inner.value, mode="eval").body, scopes, only)
                except (SyntaxError, ValueError):
                    continue  # not an expression, so nothing can read it as one
            elif isinstance(inner, ast.Name):
                marks = (
                    [i for i in self.module.imports_of(inner.id) if i.attribute is None or i.attribute in only]
                    if only
                    else [1]
                )
                if marks:
                    self.note(inner.id, (), scopes)

    def import_(self, node: ast.Import | ast.ImportFrom, scopes: Scopes) -> None:
        self.found.imports += self.module.expand(node)

    def if_(self, node: ast.If, scopes: Scopes) -> None:
        truth = static_truth(node.test)
        if truth is None:
            self.children(node, scopes)
            return
        for inner in node.body if truth else node.orelse:
            self.visit(inner, scopes)

    def name(self, node: ast.Name, scopes: Scopes) -> None:
        if isinstance(node.ctx, ast.Load):
            self.note(node.id, (), scopes)
        elif not any(node.id in scope for scope in scopes):
            self.found.names.add(node.id)

    def global_(self, node: ast.Global, scopes: Scopes) -> None:
        self.found.names.update(node.names)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scopes: Scopes) -> None:
        self.visit(node.generators[0].iter, scopes)  # evaluated outside
        inside = (*scopes, frozenset(n for g in node.generators for n in bound_names(g.target)))
        for number, generator in enumerate(node.generators):
            self.visit(generator.target, inside)
            if number:
                self.visit(generator.iter, inside)
            for condition in generator.ifs:
                self.visit(condition, inside)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(part, inside)

    def note(self, name: str, chain: Chain, scopes: Scopes) -> None:
        for scope in scopes:
            if name in scope:
                self.found.local_chains.setdefault(name, set()).add(chain)
                return
        self.found.names.add(name)
        self.found.chains.setdefault(name, set()).add(chain)
        if name in _IMPORTERS or (chain and chain[-1] in _IMPORTERS):
            self.imports_by_name = True

    def subscript(self, node: ast.Subscript, scopes: Scopes) -> None:
        """`globals()["x"]` uses x; `globals()[x]`, or one of `sys.modules[__name__]`, anything of the module."""
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "globals":
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                self.note(node.slice.value, (), ())
            elif isinstance(node.ctx, ast.Load):
                self.found.namespace = True
        elif isinstance(value, ast.Attribute) and value.attr == "modules" and "__name__" in ast.dump(node.slice):
            self.found.namespace = True
        self.children(node, scopes)

    def attribute(self, node: ast.Attribute, scopes: Scopes) -> None:
        chain: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        chain.reverse()
        self.found.attributes.update(chain)
        if isinstance(inner, ast.Name):
            if chain[0] == "ops" and len(chain) >= 2 and inner.id == "torch":
                self.found.ops.add((chain[1], chain[2] if len(chain) > 2 else ""))
            self.note(inner.id, tuple(chain), scopes)
        else:
            self.visit(inner, scopes)

    def call(self, node: ast.Call, scopes: Scopes) -> None:
        if _last_name(node.func) in _STRING_ACCESS:
            self.string_access(node)
        elif isinstance(node.func, ast.Attribute) and node.func.attr != "update":
            inner = node.func.value
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "globals":
                self.found.namespace = True  # `globals().get(name)`
        self.children(node, scopes)

    def string_access(self, node: ast.Call) -> None:
        """`getattr(x, "a")` accesses `a`; `getattr(x, f"a_{b}")` any name that begins like that."""
        is_function = isinstance(node.func, ast.Name)
        names = node.args[1:2] if is_function and node.func.id not in ("attrgetter", "methodcaller") else node.args  # type: ignore[attr-defined]
        for argument in names:
            match argument:
                case ast.Constant(value=str(text)):
                    self.found.attributes.update(text.split("."))
                case ast.JoinedStr(values=[*parts]) if parts:
                    first, last = parts[0], parts[-1]
                    self.found.patterns.add((_text(first), _text(last) if len(parts) > 1 else ""))
                case ast.BinOp(left=left, op=ast.Add(), right=right):
                    self.found.patterns.add((_text(left), _text(right)))
                case ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(other))):
                    self.found.attributes.update((one, other))
                case ast.Constant():
                    pass
                case _:
                    self.found.patterns.add(("", ""))


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


_VISITORS: dict[type[ast.AST], Callable[[Any, Any, Scopes], None]] = {
    ast.Constant: _UseFinder.constant,
    ast.FunctionDef: _UseFinder.function,
    ast.AsyncFunctionDef: _UseFinder.function,
    ast.Lambda: _UseFinder.function_expression,
    ast.ClassDef: _UseFinder.class_,
    ast.AnnAssign: _UseFinder.annotated,
    ast.Import: _UseFinder.import_,
    ast.ImportFrom: _UseFinder.import_,
    ast.If: _UseFinder.if_,
    ast.Name: _UseFinder.name,
    ast.Global: _UseFinder.global_,
    ast.ListComp: _UseFinder.comprehension,
    ast.SetComp: _UseFinder.comprehension,
    ast.DictComp: _UseFinder.comprehension,
    ast.GeneratorExp: _UseFinder.comprehension,
    ast.Attribute: _UseFinder.attribute,
    ast.Call: _UseFinder.call,
    ast.Subscript: _UseFinder.subscript,
    ast.Load: _UseFinder.nothing,
    ast.Store: _UseFinder.nothing,
    ast.Del: _UseFinder.nothing,
}
