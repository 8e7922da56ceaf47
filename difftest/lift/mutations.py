"""What code changes in place when it runs: the objects that the names of its file stand for. Pure syntax.

A registry is filled by whatever runs when a file is imported: a store, a method, a function that is called, a lambda,
a comprehension, a decorator, the making of an instance, the derivation of a class. This module follows these inside one
file; where an imported name leads is for the resolver to say.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from difftest.lift.statements import FunctionNode, all_args, last_name, root_name, walk_statements

Chain = tuple[str, ...]
How = Literal["set", "change", "call", "give", "base"]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "put", "register"}
    | {"remove", "setdefault", "sort", "update"}
    | {"__setitem__", "__delitem__", "__iadd__", "__ior__", "__setattr__", "move_to_end", "reverse", "rotate"}
)
SETTERS = re.compile(
    r"_*(set|use_|enable|disable|allow|manual_seed|seed|register|add_|insert|append|extend|update|put|patch|install|"
    r"configure|clear|reset|push|pop|remove|del|init|unset|simplefilter|filterwarnings)", re.IGNORECASE
)  # fmt: skip
"""How the names begin of a library's functions that change what all its users share."""

_CHANGE_ARGUMENTS = re.compile(r"heap|insort|setitem|delitem|setattr|i(add|or|and|xor|concat|sub|mul)\b")
_READERS = frozenset(
    {"get", "items", "keys", "values", "copy", "format", "join", "split", "rsplit", "strip", "lstrip", "rstrip"}
    | {"lower", "upper", "title", "replace", "encode", "decode", "startswith", "endswith", "index", "count", "find"}
    | {"union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint"}
    | {"partition", "rpartition", "removeprefix", "removesuffix", "match", "search", "fullmatch", "findall", "finditer"}
    | {"sub", "__getitem__", "__contains__", "__len__", "__iter__", "isdigit", "most_common", "elements", "as_posix"}
    | {"exists"}
)
_SAME_OBJECT = frozenset(
    {"partial", "nullcontext", "closing", "iter", "enumerate", "zip", "reversed", "cast", "list", "tuple", "sorted"}
    | {"set", "frozenset", "next", "chain", "getattr", "vars", "type", "wraps", "lru_cache", "cache", "attrgetter"}
)
"""Functions whose result is an argument, has it inside, or calls it."""
_CALLS_ARGUMENTS = frozenset(
    {"map", "filter", "reduce", "starmap", "accumulate", "partial", "run", "submit", "callback", "apply", "Thread"}
)
MAKING = ("__new__", "__init__", "__post_init__", "__set_name__")
DERIVING = ("__prepare__", "__new__", "__init__")
PLAIN_METACLASSES = frozenset({"ABCMeta", "EnumMeta", "EnumType", "type"})
_BUILTINS = frozenset(vars(builtins)) - {"exec", "eval", "next", "setattr", "delattr", "vars"}
_DEEPEST = 5
_PROPERTIES = frozenset({"property", "cached_property", "setter"})
_ENUMS = frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})


@dataclass(frozen=True)
class Change:
    """What some code does to an object that a name of its file stands for.

    Attributes:
        root, chain: the name, and what is read from it: `b.c[0] = 1` is ("b", ("c",)).
        how: `set`: the last of the chain is bound anew; `change`: its object is changed; `call`: it is called;
            `give`: it is an argument of a call whose result is used; `base`: a class is derived from it.
        plain: not of a decorator.
        nested: of a function in a function: it happens when that is called, if it ever is.
    """

    root: str
    chain: Chain
    how: How
    plain: bool = True
    nested: bool = False


class _Origin(NamedTuple):
    """Where the value of an expression comes from: a name, and the attributes read from it."""

    root: str
    chain: Chain = ()
    local: bool = False  # the name is a parameter of the function
    inside: bool = False  # the value is one of its items, or a result of a method
    held: bool = False  # it is an item of the value, a display

    def read(self, attribute: str) -> _Origin:
        return self if self.inside else self._replace(chain=(*self.chain, attribute))


@dataclass(frozen=True)
class _Scope:
    """Names that mean something else than at top level: local ones, with the expressions that they are bound to."""

    local: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    bound: Mapping[str, tuple[tuple[ast.expr, _Scope], ...]] = field(default_factory=dict)
    known: dict[str, frozenset[_Origin]] = field(default_factory=dict, init=False)


@dataclass
class _Summary:
    """What calling a function does."""

    changes: set[Change] = field(default_factory=set)
    parameters: set[Change] = field(default_factory=set)  # the same, with parameters as roots
    returns: set[_Origin] = field(default_factory=set)

    def size(self) -> int:
        return len(self.changes) + len(self.parameters) + len(self.returns)


Arguments = tuple[list[frozenset[_Origin]], dict[str, frozenset[_Origin]]]
_NOTHING: frozenset[_Origin] = frozenset()


class Mutations:
    """What the statements and functions of one file change.

    Args:
        statements: the file's.
        imported: names bound by imports -> whether they are whole modules.
        inside: of these, names that come from the file's own tree.
    """

    def __init__(self, statements: list[ast.stmt], imported: Mapping[str, bool], inside: frozenset[str]) -> None:
        self.imported = imported
        self.inside = inside
        self.functions: dict[str, FunctionNode | ast.Lambda] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.bound: dict[str, list[ast.expr]] = {}
        for node in walk_statements(statements, live=True):
            if isinstance(node, _FUNCTIONS):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                self._add_class(node)
            for name, value in _bound_values(node):
                self.bound.setdefault(name, []).append(value)
                if isinstance(value, ast.Lambda):
                    self.functions[name] = value
        self._summaries: dict[str, _Summary] = {}
        self._open: list[str] = []  # functions whose summaries are being found
        self.known: dict[str, frozenset[_Origin]] = {}  # where what names of the file mean comes from
        self._owners: dict[str, str] = {n: n.partition(".")[0] for n in self.functions if "." in n}

    def _add_class(self, node: ast.ClassDef) -> None:
        self.classes[node.name] = node
        for inner in walk_statements(node.body, live=True):
            if isinstance(inner, _FUNCTIONS):
                self.functions[f"{node.name}.{inner.name}"] = inner
            elif isinstance(inner, ast.ClassDef):
                self._add_class(inner)

    def of(self, node: ast.stmt) -> set[Change]:
        """What one statement changes when it runs at top level; those inside it are asked for themselves."""
        return _Run(self, None).statement(node, _Scope())

    def of_call(self, name: str) -> set[Change]:
        """What calling a function of the file, or a method as `Class.method`, changes."""
        return self.summary(name).changes if name in self.functions else set()

    def summary(self, name: str) -> _Summary:
        """What calling a function does; while that is being found, what is known so far."""
        if name not in self._summaries:
            self._summaries[name] = _Summary()
            self._open.append(name)
            if self._open == [name]:
                self._summarize()
        return self._summaries[name]

    def _summarize(self) -> None:
        before = -1
        for _ in range(2 * _DEEPEST):  # until functions that call each other tell nothing new
            self.known.clear()
            for name in self._open:  # grows: functions that these call
                self._summaries[name] = _Run(self, name).function(self.functions[name])
            size = sum(self._summaries[name].size() + 1 for name in self._open)
            if size == before:
                break
            before = size
        self._open.clear()
        self.known.clear()

    # -- classes --------------------------------------------------------------------------------------------------

    def line(self, name: str) -> list[str]:
        """A class of the file and those that it is derived from, as far as the file has them or imports them."""
        found: dict[str, None] = {}
        todo = [name]
        while todo:
            name = todo.pop(0)
            if name not in found:
                found[name] = None
                node = self.classes.get(name)
                todo += [root for base in node.bases if (root := root_name(_plain(base)))] if node else []
        return list(found)

    def metaclass(self, name: str) -> str | None:
        for ancestor in self.line(name):
            node = self.classes.get(ancestor)
            for keyword in node.keywords if node else ():
                if keyword.arg == "metaclass" and (root := root_name(keyword.value)):
                    return root
        return None

    def is_metaclass(self, name: str) -> bool:
        return not PLAIN_METACLASSES.isdisjoint(self.lasts(name))

    def lasts(self, name: str) -> Iterator[str]:
        for ancestor in self.line(name):
            yield ancestor
            node = self.classes.get(ancestor)
            yield from (last_name(base) for base in node.bases) if node else ()

    def method(self, owner: str, name: str) -> str | None:
        """The key of a method that a class has or inherits inside the file."""
        keys = (f"{ancestor}.{name}" for ancestor in self.line(owner))
        return next((key for key in keys if key in self.functions), None)

    def operators(self, owner: str, attribute: str | None) -> list[str]:
        """Keys of the methods of a class that may run without being called by name: for an operator or an item, or
        when one attribute is read or set."""
        methods = [key for name in self.line(owner) for key in self.functions if key.startswith(f"{name}.__")]
        methods = [key for key in methods if key.endswith("__") and key.rpartition(".")[2] not in MAKING]
        if attribute is None:
            return methods
        found = [key for key in methods if "attr" in key.rpartition(".")[2]]
        key = self.method(owner, attribute)
        if key is not None and any(
            last_name(d) in _PROPERTIES for d in getattr(self.functions[key], "decorator_list", ())
        ):
            found.append(key)
        return found

    def class_names(self, name: str) -> set[str]:
        """Names that the body of a class binds to values."""
        node = self.classes.get(name)
        return {bound for inner in node.body for bound, _ in _bound_values(inner)} if node else set()

    def is_constant(self, name: str) -> bool:
        """Whether a name stands for what nothing can change: a number, a text, a tuple of these."""
        values = self.bound.get(name)
        return bool(values) and all(map(_is_constant, values or ()))

    def kinds(self, name: str) -> set[str]:
        """Classes of the file of which a name is an instance."""
        found = set()
        for value in self.bound.get(name, ()):
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in self.classes:
                found.add(value.func.id)
        return found


class _Run:
    """Follows code of one file: a statement at top level, or the body of one function."""

    def __init__(self, file: Mutations, name: str | None) -> None:
        self.file = file
        self.name = name  # of the function; None at top level
        self.found: set[Change] = set()
        self.parameters: set[Change] = set()
        self.owner = file._owners.get(name) if name is not None else None
        self.first = ""

    # -- statements -----------------------------------------------------------------------------------------------

    def function(self, node: FunctionNode | ast.Lambda) -> _Summary:
        """What a call of a function does, the functions in it included."""
        outer = {name for n in ast.walk(node) if isinstance(n, ast.Global) for name in n.names}
        parameters = {a.arg for a in all_args(node.args)}
        self.first = next((a.arg for a in all_args(node.args)), "") if self.owner else ""
        local = {a.arg for n in ast.walk(node) if isinstance(n, ast.arguments) for a in all_args(n)}
        statements = [n for n in ast.walk(node) if isinstance(n, ast.stmt) and n is not node]
        bound: dict[str, list[tuple[ast.expr, _Scope]]] = {}
        scope = _Scope(frozenset(), frozenset(parameters), {})
        for inner in statements:
            if isinstance(inner, _DEFINITIONS):
                local.add(inner.name)
            elif isinstance(inner, ast.Import | ast.ImportFrom):
                local |= {a.asname or a.name.partition(".")[0] for a in inner.names}
            for name, value in _bound_values(inner):
                local.add(name)
                bound.setdefault(name, []).append((value, scope))
        object.__setattr__(scope, "local", frozenset(local - outer))
        object.__setattr__(scope, "bound", {n: tuple(values) for n, values in bound.items() if n not in outer})
        returned: list[ast.expr] = [node.body] if isinstance(node, ast.Lambda) else []
        for name in outer:
            self.found.add(Change(name, (), "change"))
        own = set(map(id, walk_statements(node.body) if not isinstance(node, ast.Lambda) else ()))
        for inner in sorted(statements, key=lambda inner: id(inner) not in own):
            with nullcontext() if id(inner) in own else self.nested():
                self.statement(inner, scope)
            if isinstance(inner, ast.Return) and inner.value is not None:
                returned.append(inner.value)
        if isinstance(node, ast.Lambda):
            self.expression(node.body, scope, False)
        returns = {origin for value in returned for origin in self.origins(value, scope)}
        return _Summary(self.found, self.parameters, returns)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """What is found meanwhile happens later, if at all."""
        before = set(self.found)
        yield
        self.found = before | {replace(change, nested=True) for change in self.found - before}

    def statement(self, node: ast.stmt, scope: _Scope) -> set[Change]:
        """What a statement does by itself, without those inside it; a class with its body."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.decorated(node, scope)
                for default in [*node.args.defaults, *node.args.kw_defaults]:
                    if default is not None:
                        self.expression(default, scope, False)
            case ast.ClassDef():
                self.decorated(node, scope)
                self.derive(node, scope)
            case ast.Expr(value=value):
                self.expression(value, scope, True)
                if isinstance(value, ast.BinOp):  # `pipeline << step`
                    self.change(value.left, scope, "change")
            case _:
                for target in _targets(node):
                    self.store(target, scope)
                if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and self.name is None:
                    self.add(self.origins(node.target, scope), "change")
                    self.operate([node.target], scope)
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        self.expression(part, scope, False)
                    elif isinstance(part, ast.withitem):
                        self.expression(part.context_expr, scope, False)
                        self.entered(part.context_expr, scope)
                    elif isinstance(part, ast.match_case) and part.guard is not None:
                        self.expression(part.guard, scope, False)
                    elif isinstance(part, ast.ExceptHandler) and part.type is not None:
                        self.expression(part.type, scope, False)
        return self.found

    def decorated(self, node: FunctionNode | ast.ClassDef, scope: _Scope) -> None:
        given: Arguments = ([frozenset({_Origin(node.name)})], {})
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                self.expression(decorator, scope, False, decorates=True)
                self.call(self.origins(decorator, scope), given, True, plain=False)
                called = decorator.func
            else:
                self.expression(decorator, scope, False)
                called = decorator
            if not isinstance(called, ast.Lambda):
                self.call(self.origins(called, scope), given, True, plain=False)

    def derive(self, node: ast.ClassDef, scope: _Scope) -> None:
        """What making a class does: its body, what its bases and metaclass are told, what is told its name in it."""
        for base in [*node.bases, *(k.value for k in node.keywords)]:
            self.expression(base, scope, False)
        bases = [_plain(b) for b in [*node.bases, *(k.value for k in node.keywords if k.arg == "metaclass")]]
        self.derived([origin for base in bases for origin in self.origins(base, scope)])
        for keyword in node.keywords:
            if keyword.arg == "metaclass" and root_name(keyword.value) in self.file.functions:
                self.call(self.origins(keyword.value, scope), ([], {}), False)
        if not _ENUMS.isdisjoint(self.file.lasts(node.name)):
            self.make(node.name, ([], {}), 0)  # its members
        inner = list(walk_statements(node.body, live=True))
        values = [(name, value) for statement in inner for name, value in _bound_values(statement)]
        names = {name for name, _ in values} | {s.name for s in inner if isinstance(s, _DEFINITIONS)}
        bound = {**scope.bound, **{name: ((value, scope),) for name, value in values}}
        body = replace(scope, local=scope.local | names, bound=bound)
        for statement in inner:
            self.statement(statement, body)
        for _, value in values:
            if isinstance(value, ast.Name):
                for kind in self.file.kinds(value.id):
                    self.run_method(kind, "__set_name__", frozenset({_Origin(value.id)}), ([], {}))

    def derived(self, bases: Iterable[_Origin]) -> None:
        for base in bases:
            if base.local or base.inside:
                continue
            self.found.add(Change(base.root, base.chain, "base"))
            if base.chain or base.root not in self.file.classes:
                continue
            keeper = self.file.method(base.root, "__init_subclass__")
            if keeper is not None:
                self.found |= {Change(name, (), "change") for name in (base.root, keeper.partition(".")[0])}
                self.run_method(base.root, "__init_subclass__", frozenset({base}), ([], {}))
            for metaclass in (self.file.metaclass(base.root), base.root):
                if metaclass is not None and self.file.is_metaclass(metaclass):
                    for name in DERIVING:
                        self.run_method(metaclass, name, frozenset({base}), ([], {}))

    def entered(self, context: ast.expr, scope: _Scope) -> None:
        """`with R():` of a class of the file."""
        func = context.func if isinstance(context, ast.Call) else context
        if isinstance(func, ast.Name) and func.id not in scope.local:
            kinds = {func.id} & self.file.classes.keys() if func is not context else self.file.kinds(func.id)
            for kind in kinds:
                for name in ("__enter__", "__exit__"):
                    self.run_method(kind, name, frozenset({_Origin(func.id)}), ([], {}))

    def store(self, target: ast.expr, scope: _Scope) -> None:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.store(part, scope)
            case ast.Starred(value=inner):
                self.store(inner, scope)
            case ast.Attribute(value=inner, attr=attribute):
                self.change(target, scope, "set")
                self.operate([inner], scope, attribute)
            case ast.Subscript(value=inner):
                self.change(inner, scope, "change")

    def change(self, node: ast.expr, scope: _Scope, how: How) -> None:
        self.add(self.origins(node, scope), how)

    def add(self, origins: Iterable[_Origin], how: How, plain: bool = True) -> None:
        for origin in origins:
            if origin.held:
                continue
            done: How = "change" if origin.inside and how == "set" else how
            if origin.local:
                self.parameters.add(Change(origin.root, origin.chain, done))
                self.own_class(origin, done)
            else:
                chain = tuple(c for c in origin.chain if c not in ("__dict__", "__class__"))
                self.found.add(Change(origin.root, chain, done, plain))

    def own_class(self, origin: _Origin, how: How) -> None:
        """A method that changes what its class holds, not only its instance."""
        if self.owner is None or origin.root != self.first or self.name is None:
            return
        node = self.file.functions[self.name]
        decorators = {last_name(d) for d in getattr(node, "decorator_list", ())}
        of_class = "classmethod" in decorators or self.name.rpartition(".")[2] in ("__new__", "__init_subclass__")
        chain = origin.chain
        if chain[:1] == ("__class__",):
            of_class, chain = True, chain[1:]
        line = [name for name in self.file.line(self.owner) if name in self.file.classes or name in self.file.inside]
        holders = [name for name in line if chain and chain[0] in self.file.class_names(name)]
        if of_class or (holders and (how == "change" or len(chain) > 1)):
            self.found |= {Change(name, (), "change") for name in holders or line}

    # -- expressions ----------------------------------------------------------------------------------------------

    def expression(self, node: ast.expr, scope: _Scope, discarded: bool, decorates: bool = False) -> None:
        """What evaluating an expression does. The body of a lambda runs when it is called: at once, as far as seen
        here, or by a function that it is given to; inside functions, sooner or later."""
        match node:
            case ast.Lambda():
                if self.name is not None:
                    with self.nested():
                        self.expression(node.body, _nested(scope, node, ()), False)
                return
            case ast.Call(func=ast.Lambda() as function):
                inner = _nested(scope, function, [*node.args, *(k.value for k in node.keywords)])
                self.expression(function.body, inner, discarded)
            case ast.Call():
                self.called(node, scope, discarded, not decorates)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for generator in node.generators:
                    self.expression(generator.iter, scope, discarded)
                    names = _names_in(generator.target)
                    bound = {**scope.bound, **dict.fromkeys(names, ((_items(generator.iter), scope),))}
                    scope = replace(scope, local=scope.local | names, bound=bound)
                    self.store(generator.target, scope)
                    for condition in generator.ifs:
                        self.expression(condition, scope, discarded)
                for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                    self.expression(part, scope, discarded)
                return
            case ast.BinOp() | ast.Compare() | ast.Subscript() | ast.UnaryOp():
                self.operate([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)], scope)
            case ast.Attribute(value=value, attr=attribute):
                self.operate([value], scope, attribute)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                self.expression(child.value, scope, discarded)
            elif isinstance(child, ast.expr):
                self.expression(child, scope, discarded)

    def called(self, node: ast.Call, scope: _Scope, discarded: bool, plain: bool) -> None:
        given = self.arguments(node, scope)
        name = last_name(node.func)
        if name in ("setattr", "delattr") and isinstance(node.func, ast.Name) and len(node.args) >= 2:
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                self.add([origin.read(attribute.value) for origin in given[0][0]], "set")
            else:
                self.add(given[0][0], "change")
            return
        if name in ("eval", "exec") and isinstance(node.func, ast.Name) and node.args:
            self.evaluated(node.args[0], scope)
        if name in _CALLS_ARGUMENTS:
            self.call(given[1].get("target", ()), ([], {}), discarded)
        if name in _CALLS_ARGUMENTS and node.args:
            first, rest = node.args[0], node.args[1:]
            if isinstance(first, ast.Lambda):
                self.expression(first.body, _nested(scope, first, rest), discarded)
            else:
                self.call(given[0][0], (given[0][1:], given[1]), discarded)
        if name == "type" and len(node.args) == 3 and isinstance(node.args[1], ast.Tuple):
            self.derived([o for base in node.args[1].elts for o in self.origins(base, scope)])
        self.call(self.origins(node.func, scope), given, discarded, plain)
        self.gives(node, scope, discarded)

    def evaluated(self, code: ast.expr, scope: _Scope) -> None:
        if isinstance(code, ast.Constant) and isinstance(code.value, str):
            try:
                statements = ast.parse(code.value.strip()).body
            except (SyntaxError, ValueError):
                return  # it raises when it runs
            for statement in walk_statements(statements, live=True):
                self.statement(statement, scope)

    def operate(self, operands: Iterable[ast.expr], scope: _Scope, attribute: str | None = None) -> None:
        """Operators, items and attributes of instances of the file's classes are methods of these."""
        for operand in operands:
            name = operand.id if isinstance(operand, ast.Name) and operand.id not in scope.local else None
            for kind in self.file.kinds(name) if name is not None else ():
                assert name is not None
                for method in self.file.operators(kind, attribute):
                    self.run(method, ([], {}), frozenset({_Origin(name)}), 0)

    def gives(self, node: ast.Call, scope: _Scope, discarded: bool) -> None:
        """A function that is not known may change what it is given."""
        if self.name is not None and not discarded:
            return
        func = node.func
        root = root_name(func)
        name = last_name(func)
        if isinstance(func, ast.Name) and func.id in _BUILTINS and func.id not in self.file.bound:
            return
        outside = root is None or root in self.file.imported.keys() - self.file.inside or root in _BUILTINS
        known = outside or (isinstance(func, ast.Name) and self.is_defined(func.id))
        changes = _CHANGE_ARGUMENTS.match(name) is not None or (outside and name in MUTATORS)
        arguments = [*node.args, *(k.value for k in node.keywords)]
        for origin in {o for a in arguments if isinstance(a, ast.Name) for o in self.origins(a, scope)}:
            if origin.local:
                if changes:
                    self.parameters.add(Change(origin.root, origin.chain, "change"))
            elif self.file.is_constant(origin.root):
                continue
            elif origin.root in self.file.imported:
                if discarded or changes:
                    self.found.add(Change(origin.root, origin.chain, "change", plain=False))
                elif not known:
                    self.found.add(Change(origin.root, origin.chain, "give", plain=False))
            elif changes or (self.name is None and (discarded or not (known or self.is_defined(origin.root)))):
                self.found.add(Change(origin.root, origin.chain, "change"))

    def is_defined(self, name: str) -> bool:
        return name in self.file.functions or name in self.file.classes

    def arguments(self, node: ast.Call, scope: _Scope) -> Arguments:
        positional = [frozenset(self.origins(a, scope)) for a in node.args]
        named = {k.arg or "": k.value if k.arg else _items(k.value) for k in node.keywords}
        return positional, {name: frozenset(self.origins(value, scope)) for name, value in named.items()}

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(
        self, functions: Iterable[_Origin], given: Arguments, discarded: bool, plain: bool = True, depth: int = 0
    ) -> None:
        """What calling one of these does."""
        for function in {function for function in functions if not function.held}:
            self.call_one(function, given, discarded, plain, depth)

    def call_one(self, called: _Origin, given: Arguments, discarded: bool, plain: bool, depth: int) -> None:
        file, root, chain = self.file, called.root, called.chain
        if depth > _DEEPEST:
            return
        if called.local:
            self.parameters.add(Change(root, chain, "call"))
            if len(chain) == 1 and root == self.first and self.owner and file.method(self.owner, chain[0]) is not None:
                self.run_method(self.owner, chain[0], frozenset({called._replace(chain=())}), given, depth)
                return
            if chain and chain[-1] in MUTATORS:
                self.add([called._replace(chain=chain[:-1])], "change")
        elif root in file.imported:
            self.found.add(Change(root, chain, "call", plain and (discarded or self.name is not None)))
            changes = chain and (chain[-1] in MUTATORS or (discarded and self.name is None))
            if changes and plain and root in file.inside and not file.imported[root]:
                self.found.add(Change(root, chain[:-1], "change"))
        elif called.inside:
            if not chain or chain[-1] not in _READERS:
                self.found.add(Change(root, (), "change"))
        elif not chain and root in file.functions:
            self.run(root, given, None, depth)
        elif not chain and root in file.classes:
            self.make(root, given, depth)
        elif len(chain) == 1 and root in file.classes and file.method(root, chain[0]) is not None:
            self.run_method(root, chain[0], frozenset({_Origin(root)}), given, depth)
            if discarded and self.name is None:
                self.unknown(called, discarded, plain)  # what the method calls may change the class
        elif len(chain) <= 1 and file.kinds(root):
            for kind in file.kinds(root):
                if file.method(kind, chain[0] if chain else "__call__") is None:
                    self.unknown(called, discarded, plain)
                else:
                    self.run_method(kind, chain[0] if chain else "__call__", frozenset({_Origin(root)}), given, depth)
            if discarded and self.name is None:
                self.unknown(called, discarded, plain)
        else:
            self.unknown(called, discarded, plain)

    def unknown(self, called: _Origin, discarded: bool, plain: bool) -> None:
        """A call of a method of an object of which nothing is known, or of the object itself."""
        root, chain = called.root, called.chain
        if root in self.file.imported or (root in _BUILTINS and root not in self.file.bound):
            return
        if not chain:
            changes = self.name is None and root in self.file.bound
        elif self.name is not None:
            changes = chain[-1] in MUTATORS
        elif discarded:
            changes = True
        elif all(isinstance(v, _DISPLAYS) for v in self.file.bound.get(root, ())):
            changes = chain[-1] in MUTATORS
        else:
            changes = chain[-1] not in _READERS
        if changes:
            self.found.add(Change(root, chain[:-1], "change", plain))

    def make(self, name: str, given: Arguments, depth: int) -> None:
        """An instance of a class of the file is made."""
        for method in MAKING:
            self.run_method(name, method, _NOTHING, given, depth)
        metaclass = self.file.metaclass(name)
        if metaclass in self.file.classes:
            self.run_method(metaclass, "__call__", frozenset({_Origin(name)}), given, depth)
        for ancestor in self.file.line(name):
            if ancestor in self.file.imported:
                self.found.add(Change(ancestor, (), "call"))

    def run_method(self, owner: str, name: str, instance: frozenset[_Origin], given: Arguments, depth: int = 0) -> None:
        key = self.file.method(owner, name)
        if key is not None:
            self.run(key, given, instance, depth)

    def run(self, key: str, given: Arguments, instance: frozenset[_Origin] | None, depth: int) -> None:
        """What a function of the file does, with what it is given in place of its parameters."""
        summary = self.file.summary(key)
        self.found |= summary.changes
        for change in summary.parameters:
            for origin in self.bind(key, change.root, given, instance):
                at = origin if origin.inside else origin._replace(chain=(*origin.chain, *change.chain))
                if change.how == "call":
                    if not change.chain and not origin.inside and key != self.name:
                        self.call_one(at, ([], {}), False, True, depth + 1)
                else:
                    self.add([at], change.how)

    def bind(
        self, key: str, parameter: str, given: Arguments, instance: frozenset[_Origin] | None
    ) -> frozenset[_Origin]:
        """Where what a parameter stands for comes from, in one call."""
        node = self.file.functions[key]
        names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
        static = any(last_name(d) == "staticmethod" for d in getattr(node, "decorator_list", ()))
        positional = list(given[0])
        if instance is not None and not static:
            positional.insert(0, instance)
        if parameter in given[1]:
            return given[1][parameter]
        if parameter in names:
            at = names.index(parameter)
            if at < len(positional):
                return positional[at]
            defaults = node.args.defaults
            if "" in given[1]:  # `**arguments`
                return given[1][""]
            at -= len(names) - len(defaults)
            return frozenset(self.origins(defaults[at], _Scope())) if 0 <= at < len(defaults) else _NOTHING
        return frozenset(origin for origins in [*positional, *given[1].values()] for origin in origins)

    # -- where values come from -----------------------------------------------------------------------------------

    def origins(self, node: ast.expr, scope: _Scope) -> set[_Origin]:
        """Names whose object the value of an expression is, or belongs to."""
        again: Callable[[ast.expr], set[_Origin]] = lambda n: self.origins(n, scope)  # noqa: E731
        match node:
            case ast.Name(id=name):
                return set(self.named(name, scope))
            case ast.Attribute(value=value, attr=attribute):
                return {origin.read(attribute) for origin in again(value) if not origin.held}
            case ast.Subscript(value=value):
                return {o._replace(held=False) if o.held else o._replace(inside=True) for o in again(value)}
            case ast.Call():
                return self.result(node, scope)
            case ast.IfExp(body=one, orelse=other):
                return again(one) | again(other)
            case ast.BoolOp(values=parts):
                return {origin for part in parts for origin in again(part)}
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
                return {origin._replace(held=True) for part in parts for origin in again(part)}
            case ast.Starred(value=value):
                return {origin._replace(held=False) for origin in again(value)}
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return again(value)
        return set()

    def named(self, name: str, scope: _Scope) -> frozenset[_Origin]:
        here = name in scope.local
        known = scope.known if here else self.file.known
        if name not in known:
            known[name] = frozenset()  # in a circle
            found = {_Origin(name, local=here)} if not here or name in scope.parameters else set()
            bound = (
                scope.bound.get(name, ()) if here else [(value, _Scope()) for value in self.file.bound.get(name, ())]
            )
            for value, around in bound:
                if not isinstance(value, ast.Lambda):
                    found |= self.origins(value, around)
            known[name] = frozenset(found)
        return known[name]

    def result(self, node: ast.Call, scope: _Scope) -> set[_Origin]:
        func = node.func
        if isinstance(func, ast.Lambda):
            return self.origins(func.body, _nested(scope, func, node.args))
        name = last_name(func)
        if isinstance(func, ast.Name) and name == "super" and self.first:
            return {_Origin(self.first, local=True)}
        if name in _SAME_OBJECT:
            found = {origin for argument in node.args for origin in self.origins(argument, scope)}
            if name == "type":
                return {origin.read("__class__") for origin in found}
            if name in ("partial", "vars", "nullcontext", "cast"):
                return found
            return {origin._replace(inside=True) for origin in found}
        if isinstance(func, ast.Name):
            key = func.id if func.id in self.file.functions and func.id not in scope.local else None
            if key is None:
                return set()
            given = self.arguments(node, scope)
            returned: set[_Origin] = set()
            for origin in self.file.summary(key).returns:
                if not origin.local:
                    returned.add(origin)
                    continue
                for bound in self.bind(key, origin.root, given, None):
                    returned.add(bound if bound.inside else bound._replace(chain=(*bound.chain, *origin.chain)))
            return returned
        if isinstance(func, ast.Attribute):
            found = self.origins(func.value, scope)
            return {o._replace(inside=True) for o in found if not self.is_module(o)}
        return set()

    def is_module(self, origin: _Origin) -> bool:
        """Whether a name is imported from outside, or a module: what its functions return does not belong to it."""
        imported = self.file.imported
        return (
            origin.root in imported
            and not origin.local
            and (imported[origin.root] or origin.root not in self.file.inside)
        )


def _is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Tuple(elts=parts):
            return all(map(_is_constant, parts))
        case ast.UnaryOp(operand=operand):
            return _is_constant(operand)
        case ast.BinOp(left=left, right=right):
            return _is_constant(left) and _is_constant(right)
    return isinstance(node, ast.Constant)


_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Constant, ast.JoinedStr, *_COMPREHENSIONS)


def _nested(scope: _Scope, node: ast.Lambda, given: Iterable[ast.expr]) -> _Scope:
    """The scope in a lambda that is called with these arguments, whichever is for which parameter."""
    values = tuple((value, scope) for value in given)
    names = {a.arg for a in all_args(node.args)}
    return replace(
        scope,
        local=scope.local | names,
        parameters=scope.parameters - names,
        bound={**scope.bound, **dict.fromkeys(names, values)},
    )


def _bound_values(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Names that a statement binds by itself, each with the expression that the value is, or is part of."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [(target, value) for target in targets]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            pairs = [(target, value)]
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            pairs = [(target, _items(value))]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            pairs = [(item.optional_vars, item.context_expr) for item in items if item.optional_vars is not None]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                yield from ((name, other) for name in sorted(_names_in(one)))
        else:
            whole = _items(value) if isinstance(target, ast.Tuple | ast.List) else value
            yield from ((name, whole) for name in sorted(_names_in(target)))
    if not isinstance(node, _DEFINITIONS):
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                for inner in ast.walk(part):
                    if isinstance(inner, ast.NamedExpr):
                        yield inner.target.id, inner.value


def _items(value: ast.expr) -> ast.expr:
    """What stands for the items of a value."""
    return ast.Starred(value=value)


def _names_in(target: ast.expr) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _targets(node: ast.stmt) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            return [target]
        case ast.With(items=items):
            return [item.optional_vars for item in items if item.optional_vars is not None]
    return []


def _plain(base: ast.expr) -> ast.expr:
    """`Generic` of `Generic[T]`."""
    return base.value if isinstance(base, ast.Subscript) else base
