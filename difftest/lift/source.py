"""What one source file binds and uses, statement by statement. Pure syntax: nothing is imported or executed.

A module is a list of top-level statements. To lift a name is to keep the statements that bind it, cut down to the
part that does (`prune`), and the names that those statements use in turn (`uses`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from difftest.errors import LiftError
from difftest.lift.mutations import Mutations
from difftest.lift.statements import FunctionNode, last_name, root_name, static_truth, walk_statements
from difftest.lift.syntax import parse

_N = TypeVar("_N", bound=ast.AST)
ANY = "*"
"""In place of the names that a statement binds when it computes them."""
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


class SourceModule:
    """One file of a tree, parsed.

    Args:
        name: dotted module name inside the tree.
        path: posix path of the file, relative to the tree's root.
        data: the file's bytes.
        is_package: whether the file is an `__init__.py`.
        lazy: the same file was parsed before, so it is parsed once that is needed.

    Raises:
        LiftError: the file is not Python that this interpreter can parse.
    """

    def __init__(self, name: str, path: str, data: bytes, is_package: bool, lazy: bool = False) -> None:
        self.name = name
        self.path = path
        self.data = data
        self.is_package = is_package
        self.package = name if is_package else name.rpartition(".")[0]
        self._effects: dict[int, tuple[ast.stmt, frozenset[str]]] = {}  # holds the node, so that its id stays its own
        self._binds: dict[int, tuple[ast.stmt, frozenset[str]]] = {}
        self._imports: dict[str, list[Import]] = {}
        if not lazy:
            self.tree  # noqa: B018

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return parse(self.data, self.path)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise LiftError(f"{self.path} cannot be parsed by this Python: {error}") from None

    @property
    def statements(self) -> list[ast.stmt]:
        """The top-level statements, in source order."""
        return self.tree.body

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
        every = found.pop(ANY, [])
        return {name: sorted({*at, *every}) for name, at in found.items() if name in bound}

    @cached_property
    def computed(self) -> list[int]:
        """Indices of the top-level statements that bind computed names: `globals()[name] = value`."""
        return [index for index, node in enumerate(self.statements) if ANY in self.binds(node)]

    def binding(self, name: str) -> list[int]:
        """Indices of the statements that bind or change a name, or may do so."""
        found = self.bindings.get(name)
        return self.computed if found is None else found

    def replaces(self, name: str) -> int:
        """Index of the last top-level statement that binds a name whatever it was before; -1 when there is none."""
        return max((i for i in self.bindings.get(name, ()) if _replaces(self.statements[i], name)), default=-1)

    def binds(self, node: ast.stmt) -> frozenset[str]:
        """Names that a top-level statement binds in the module's namespace; ANY when it binds computed ones."""
        key = id(node)
        if key not in self._binds:
            found = set(bound_names(node))
            if self._uses_namespaces:
                for inner in walk_statements([node], live=True):
                    found.update(_bound_in_namespace(inner))
            self._binds[key] = node, frozenset(found)
        return self._binds[key][1]

    def names_of(self, index: int) -> frozenset[str]:
        """Names that a top-level statement binds or changes; ANY when it binds computed ones."""
        if self._uses_namespaces:
            node = self.statements[index]
            return self.binds(node) | self.effects(node)
        return self._names_by_statement.get(index, frozenset())

    @cached_property
    def _names_by_statement(self) -> dict[int, frozenset[str]]:
        found: dict[int, list[str]] = {}
        for name, indices in self.bindings.items():
            for index in indices:
                found.setdefault(index, []).append(name)
        return {index: frozenset(names) for index, names in found.items()}

    @cached_property
    def _uses_namespaces(self) -> bool:
        """Whether the file may bind names in its namespace otherwise than by statements."""
        return _NAMESPACES.search(self.data) is not None

    def effects(self, node: ast.stmt) -> frozenset[str]:
        """Module-level names whose object a top-level statement changes in place.

        Whatever it takes to do so: a store, a method, one of the module's own functions, a decorator, a lambda, the
        making of an instance or of a class that is told; see :class:`Mutations`.
        """
        key = id(node)
        if key not in self._effects:
            self._effects[key] = node, frozenset(self._changed(node)) - self._shared
        return self._effects[key][1]

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
            for change in self.mutations.of(inner):
                if change.how in ("set", "change") and (change.plain or change.root not in self._imported):
                    yield change.root

    @cached_property
    def _imported(self) -> frozenset[str]:
        """Names bound by imports: `@triton.jit` and `register(ImportedClass)` concern another module."""
        return frozenset(item.bound for item in self._imports_at_load)

    @cached_property
    def _imports_at_load(self) -> list[Import]:
        nodes = [n for n in walk_statements(self.statements) if isinstance(n, ast.Import | ast.ImportFrom)]
        return [item for node in nodes for item in self.expand(node)]

    @cached_property
    def mutations(self) -> Mutations:
        """What the file's statements and functions change."""
        top = self.name.partition(".")[0]
        items = self._imports_at_load
        whole = {item.bound: item.attribute is None for item in items}
        return Mutations(self.statements, whole, frozenset(i.bound for i in items if i.module.partition(".")[0] == top))

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
    def may_fail(self) -> list[tuple[ast.stmt, list[str]]]:
        """Top-level statements by which importing the file may fail: those that raise or assert, and imports, each with
        the modules that it imports."""
        found: list[tuple[ast.stmt, list[str]]] = []
        for top in self.statements:
            inner = list(walk_statements([top], live=True))
            if any(isinstance(node, ast.Raise | ast.Assert) for node in inner):
                found.append((top, []))
            elif not any(isinstance(node, ast.Try) for node in inner):
                for node in inner:
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
                        level = getattr(node, "level", 0)
                        found.append((node, [self.absolute(name, level) for name in names]))
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
            elif isinstance(node, ast.Expr) and isinstance(method := node.value, ast.Call):
                if not isinstance(method.func, ast.Attribute) or root_name(method.func) != "__all__":
                    continue
                if method.func.attr not in ("extend", "append") or len(method.args) != 1:
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
            for index in self.binding(name)
            for node in walk_statements([self.statements[index]], live=True)
            if isinstance(node, _SCOPES) and getattr(node, "name", "") == name
        ]

    def class_pieces(self, node: ast.ClassDef) -> tuple[ast.ClassDef, dict[str, list[FunctionNode]]]:
        """A class without its methods, and its methods by name (a property and its setter share one).

        What making the class needs of its methods stays in it; so do methods that decorators or defaults register.
        """
        methods = [inner for inner in node.body if isinstance(inner, _FUNCTIONS)]
        return _class_pieces(node, {method.name for method in methods if self._registers_itself(method)})

    def _registers_itself(self, method: FunctionNode) -> bool:
        changes = self.mutations.of(method) if method.decorator_list or method.args.defaults else ()
        return any(
            change.root in self.mutations.inside
            if change.how == "call"
            else change.how != "give" and change.root in self.bindings and change.root != method.name
            for change in changes
        )

    # -- parts of statements --------------------------------------------------------------------------------------

    def prune(self, node: ast.stmt, wanted: set[str]) -> ast.stmt | None:
        """The part of a top-level statement that binds or changes the wanted names; None when it does neither."""
        names = wanted | {ANY}
        return _prune(node, lambda inner: bool(names & self.binds(inner) or wanted & self.effects(inner)), wanted)

    def part(self, index: int, wanted: ast.stmt) -> ast.stmt:
        """The part of a top-level statement that holds one statement, with the conditions it stands under."""
        # A condition is looked at as a statement of its own.
        keeps = lambda inner: inner is wanted or getattr(inner, "test", 0) is getattr(wanted, "test", 1)  # noqa: E731
        kept = _prune(self.statements[index], keeps, set())
        assert kept is not None
        return kept

    def registrations(self, namespace: str, operator: str) -> list[tuple[int, ast.stmt]]:
        """(index, part) of the top-level statements whose purpose is to register the operator: they, or the file's own
        functions that they call, hold its name as a string, or compute the name of what they register."""
        if operator.encode() not in self.data and not _REGISTERS.search(self.data):
            return []
        found = []
        for index, node in enumerate(self.statements):
            kept = _prune(node, lambda inner: self._registers(inner, namespace, operator), set())
            if kept is not None:
                found.append((index, kept))
        return found

    @cached_property
    def operators(self) -> list[tuple[str, str]]:
        """(namespace, name) of the operators that the file is seen to register, as strings in it say: the namespace is
        empty where they leave it out, the name where it is computed."""
        found: set[tuple[str, str]] = set()
        for node in walk_statements(self.statements, live=True) if _REGISTERS.search(self.data) else ():
            parts = self._registering(node)
            if is_registration(node) or len(parts) > 1:
                found.update((match["namespace"] or "", match["name"]) for match in _operator_names(parts))
                if _computes_operator(parts):
                    found.add(("", ""))
        return sorted(found)

    def _registers(self, node: ast.stmt, namespace: str, operator: str) -> bool:
        parts = self._registering(node)
        return _computes_operator(parts) or any(
            match["name"] == operator and match["namespace"] in (None, namespace) for match in _operator_names(parts)
        )

    def _registering(self, node: ast.stmt) -> list[ast.AST]:
        """What may register operators of a statement, and the file's own functions that do so when it runs."""
        parts = _registering(node)
        for part in parts if self._registering_functions else ():  # grows: functions that these functions call
            names = {inner.id for inner in ast.walk(part) if isinstance(inner, ast.Name)}
            parts += [f for name, f in self._registering_functions.items() if name in names and f not in parts]
        return parts

    @cached_property
    def _registering_functions(self) -> dict[str, FunctionNode]:
        """The file's own functions that register operators when they are called."""
        found: dict[str, FunctionNode] = {}
        if not _REGISTERS.search(self.data):
            return found
        functions = [n for n in walk_statements(self.statements, live=True) if isinstance(n, _FUNCTIONS)]
        for _ in range(4):  # helpers of helpers
            for function in functions:
                if any(last_name(call) in _REGISTRARS or last_name(call) in found for call in _calls(function.body)):
                    found[function.name] = function
        return found


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


def _replaces(node: ast.stmt, name: str) -> bool:
    if name not in bound_names(node) or isinstance(node, ast.Delete):
        return False
    if isinstance(node, ast.Assign | ast.AnnAssign):
        reads = [] if node.value is None else [inner for inner in ast.walk(node.value) if isinstance(inner, ast.Name)]
        return name not in {inner.id for inner in reads}
    return isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


_NAMESPACES = re.compile(rb"\bexec\(|globals\(|vars\(|locals\(|\.modules\[__name__")


def _bound_in_namespace(node: ast.stmt) -> Iterator[str]:
    """Names that a simple statement binds through the module's namespace: `globals()["x"] = 1`,
    `setattr(sys.modules[__name__], "x", 1)`; ANY for a computed one."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            pass
        case ast.AugAssign(target=only) | ast.AnnAssign(target=only):
            targets = [only]
        case ast.Expr(value=ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[first, name, *_])):
            if _is_namespace(first):
                yield _constant(name)
        case ast.Expr(value=ast.Call(func=ast.Name(id="exec"), args=[code])):
            text = code.value if isinstance(code, ast.Constant) else None
            try:
                yield from bound_names(ast.parse(text)) if isinstance(text, str) else (ANY,)
            except (SyntaxError, ValueError):
                return  # it raises when it runs
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=first, attr=method), args=args, keywords=keywords)):
            if not _is_namespace(first):
                return
            if method in ("setdefault", "pop", "__setitem__") and args:
                yield _constant(args[0])
            elif method == "update":
                yield from (k.arg or ANY for k in keywords)
                for given in args:
                    keys = given.keys if isinstance(given, ast.Dict) else [None]
                    yield from (ANY if key is None else _constant(key) for key in keys)
    for target in targets:
        match target:
            case ast.Subscript(value=first, slice=name) if _is_namespace(first):
                yield _constant(name)
            case ast.Attribute(value=owner, attr=attr) if isinstance(owner, ast.Subscript) and _is_namespace(owner):
                yield attr


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ANY


def _is_namespace(node: ast.expr) -> bool:
    """`globals()`, `vars()`, `locals()`, `sys.modules[__name__]`, or that module's namespace."""
    match node:
        case ast.Call(func=ast.Name(id="globals" | "locals" | "vars"), args=[]):
            return True
        case ast.Call(func=ast.Name(id="vars"), args=[inner]) | ast.Attribute(value=inner, attr="__dict__"):
            return _is_namespace(inner)
        case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Name(id="__name__")):
            return True
    return False


_LEAVES = frozenset({ast.Constant, ast.Lambda, ast.Load, ast.Store, ast.Del, ast.Pass, ast.alias, ast.Global})
# -- statements -------------------------------------------------------------------------------------------------------


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
            test = ast.copy_location(ast.Assert(node.test), node.test)
            if wanted.intersection(bound_names(node.test)) or keeps(test):
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


def is_registration(node: ast.stmt) -> bool:
    """Whether a statement registers a custom operator."""
    parts = _registering(node)
    return any("::" in text for text in _strings(parts)) or any(last_name(c) in _REGISTRARS for c in _calls(parts))


_REGISTRARS = frozenset({"custom_op", "triton_op", "define", "impl", "direct_register_custom_op"})
_REGISTERS = re.compile(rb"::|\blibrary\b|Library|custom_op|triton_op")
_OPERATOR = re.compile(r"(?:(?P<namespace>\w+)::)?(?P<name>\w+)(?=[.(]|\Z)")


def _registering(node: ast.stmt) -> list[ast.AST]:
    """What may register an operator of a simple statement or a definition."""
    if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
        return [node.value]
    return [ast.Tuple(node.decorator_list)] if isinstance(node, _FUNCTIONS) and node.decorator_list else []


def _operator_names(parts: Iterable[ast.AST]) -> Iterator[re.Match[str]]:
    return (match for text in _strings(parts) if (match := _OPERATOR.match(text)))


def _computes_operator(parts: Sequence[ast.AST]) -> bool:
    """Whether the name of an operator is computed: by the statement, or by a function that it gives no string to."""
    return any(map(_computes_name, _calls(parts[:1]))) or (
        not any(_strings(parts[:1])) and any(map(_computes_name, _calls(parts[1:])))
    )


def _computes_name(call: ast.Call) -> bool:
    named = [*call.args[:2], *(k.value for k in call.keywords if k.arg in ("name", "op_name", "qualname", "schema"))]
    return last_name(call) in _REGISTRARS and not any(isinstance(argument, ast.Constant) for argument in named)


def _strings(parts: Iterable[ast.AST]) -> Iterator[str]:
    nodes = (n for part in parts for n in ast.walk(part))
    return (n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))


def _calls(parts: Iterable[ast.AST]) -> Iterator[ast.Call]:
    return (n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call))


# -- classes ----------------------------------------------------------------------------------------------------------

# Looked at by `type.__new__` itself, by Enum, or by the interpreter without the descriptor protocol.
_NEVER_PUT_OFF = frozenset(
    {"__new__", "__init_subclass__", "__class_getitem__", "__set_name__", "__prepare__", "__get__"}
    | {"_generate_next_value_"}
)


def _class_pieces(node: ast.ClassDef, whole: Iterable[str]) -> tuple[ast.ClassDef, dict[str, list[FunctionNode]]]:
    """A class without its methods, and its methods by name (a property and its setter share one).

    A method that the class body itself needs when it runs (abstract, used by a statement of the body or by the
    decorator of another method) stays in the class, and so do those of the names `whole`.
    """
    methods: dict[str, list[FunctionNode]] = {}
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            methods.setdefault(inner.name, []).append(inner)
    kept = {name for name in methods if name in _NEVER_PUT_OFF or name in whole}
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
        if any("abstract" in last_name(d) for n in nodes for d in n.decorator_list) or others:
            kept.add(name)
        used |= others
    kept |= used & methods.keys()
    rest = [n for n in node.body if not isinstance(n, _FUNCTIONS) or n.name in kept]
    header = replace_fields(node, body=rest or [ast.copy_location(ast.Pass(), node)])
    return header, {name: nodes for name, nodes in methods.items() if name not in kept}
