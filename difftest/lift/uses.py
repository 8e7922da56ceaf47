"""What a piece of code refers to outside itself: names, attributes, imports, operators. Pure syntax."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from difftest.lift.mutations import Chain
from difftest.lift.source import Import, SourceModule, bound_names
from difftest.lift.statements import FunctionNode, all_args, last_name, static_truth, walk_statements


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
        whole: words by which the code reads what a digest of syntax leaves out: docstrings, lines, annotations.
        files: it reads files that lie beside its own, or imports modules whose names begin with a constant: DATA,
            MODULES, ABOVE (those of the whole package), NAMED (all by constants). strings: these constants.
        tried: modules that are imported in a `try`, which does something else when that fails.
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
    whole: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)


DATA, MODULES, ABOVE, NAMED = "data", "modules", "above", "named"
_READS_WHOLE = frozenset(
    {"__doc__", "__annotations__", "__dict__", "get_type_hints", "get_annotations", "getsource", "getsourcelines"}
    | {"getdoc", "getcomments", "getmembers", "currentframe", "_getframe", "extract_stack", "format_exc", "print_exc"}
    | {"format_exception", "format_stack", "tb_lineno", "f_lineno", "co_firstlineno", "co_lines", "co_consts"}
    | {"co_code", "linecache", "dir"}
)
_READS_FILES = {
    "__file__": DATA, "__path__": DATA, "__spec__": DATA, "__loader__": DATA, "getfile": DATA, "getsourcefile": DATA,
    "iter_modules": MODULES, "walk_packages": MODULES,
}  # fmt: skip
_TAKES_NAMES = frozenset(
    {"join", "joinpath", "with_name", "with_suffix", "get_data", "open_text", "open_binary", "read_text", "read_binary"}
    | {"resource_filename", "resource_string", "resource_stream", "glob", "rglob", "listdir", "iterdir", "scandir"}
)
_RESOURCES = ("pkgutil.get_data", "importlib.resources", "importlib_resources", "pkg_resources")

READS_ANNOTATIONS = frozenset({"custom_op", "triton_op", "register", "register_fake", "validate_call"})
"""Decorators that evaluate the annotations of the function they are given."""
_READS_FIELDS = frozenset({"BaseModel", "Struct", "RootModel"})
_FIELD_MARKS = frozenset({"ClassVar", "InitVar", "KW_ONLY"})
_STRING_ACCESS = frozenset(
    {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "__getattribute__"}
)
_LOOK_THROUGH = frozenset(
    {"dict", "list", "set", "frozenset", "tuple", "sorted", "len", "iter", "map", "filter", "str"}
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
    _note_reading(module, node, finder)
    top = module.name.partition(".")[0] + "."
    found.references |= {s for s in finder.strings if s.startswith(top) and _REFERENCE.fullmatch(s)}
    return found


def _note_reading(module: SourceModule, node: ast.AST, finder: _UseFinder) -> None:
    """Fill in what the code reads besides code."""
    found = finder.found
    words = found.attributes | found.names
    found.whole |= words & _READS_WHOLE
    if "vars" in found.names:
        found.whole.add("vars")
    found.files |= {kind for word, kind in _READS_FILES.items() if word in words}
    if finder.computes_module and finder.strings:
        found.files.add(MODULES)
    imports = [item for name in found.names for item in module.imports_of(name)] + found.imports
    for item in imports:
        chains = found.chains.get(item.bound, set()) | found.local_chains.get(item.bound, set())
        start = item.module if item.attribute is None else f"{item.module}.{item.attribute}"
        for chain in chains:
            read = [*start.split("."), *chain, "", ""]
            if read[:2] == ["torch", "ops"]:
                found.ops.add((read[2], read[3]))
        for chain in chains or ((),):
            name = ".".join([start, *chain])
            if any(name == other or name.startswith(other + ".") for other in _RESOURCES):
                found.files.add(DATA)
    if found.files:
        named, computed = _file_names(node)
        found.strings = {text for text in finder.strings if text} if MODULES in found.files else named
        if named and not computed:
            found.files.add(NAMED)
        ups = sum(
            (isinstance(inner, ast.Attribute) and inner.attr in ("parent", "dirname"))
            or (isinstance(inner, ast.Name) and inner.id == "dirname")
            for inner in ast.walk(node)
        )
        if ups > 1 or "parents" in found.attributes or any(".." in text for text in found.strings):
            found.files.add(ABOVE)


def _file_names(node: ast.AST) -> tuple[set[str], bool]:
    """Constants that name files, by where they stand, and whether other names are computed."""
    names: set[str] = set()
    computed = False
    for inner in ast.walk(node):
        parts: list[ast.expr] = []
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div):
            parts = [inner.right]
        elif isinstance(inner, ast.Call) and last_name(inner.func) in _TAKES_NAMES:
            parts = [*inner.args, *(k.value for k in inner.keywords if k.arg in ("resource", "name", "path"))]
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                names |= {part.value, *part.value.split("/")}
            elif not isinstance(part, ast.Constant | ast.Call | ast.BinOp):
                computed = computed or not (isinstance(part, ast.Name) and part.id in ("__file__", "__name__"))
    return names - {""}, computed


def annotation_uses(module: SourceModule, node: FunctionNode) -> Uses:
    """What the annotations of a function refer to."""
    found = Uses()
    finder = _UseFinder(module, found)
    for annotation in [*[a.annotation for a in all_args(node.args)], node.returns]:
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
        self.computes_module = False

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
            if last_name(decorator) in READS_ANNOTATIONS:
                for annotation in [*[a.annotation for a in all_args(node.args)], node.returns]:
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
        local = {a.arg for a in all_args(args)}
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
        reads_all = any(last_name(base) in _READS_FIELDS for base in node.bases)
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

    def try_(self, node: ast.Try, scopes: Scopes) -> None:
        for inner in walk_statements(node.body) if node.handlers else ():
            if isinstance(inner, ast.Import | ast.ImportFrom):
                for item in self.module.expand(inner):
                    self.found.tried.add(item.loads or item.module)
                    if item.attribute:
                        self.found.tried.add(f"{item.module}.{item.attribute}")
        self.children(node, scopes)

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
        self.reads(generator.iter for generator in node.generators)
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
        if _is_globals(value):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                self.note(node.slice.value, (), ())
            elif isinstance(node.ctx, ast.Load):
                self.found.namespace = True
            self.note("globals", (), scopes)
            self.visit(node.slice, scopes)
            return
        if isinstance(value, ast.Attribute) and value.attr == "modules" and "__name__" in ast.dump(node.slice):
            self.found.namespace = True
        self.children(node, scopes)

    def compare(self, node: ast.Compare, scopes: Scopes) -> None:
        """`"x" in globals()` depends on x."""
        match node:
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[namespace]) if _is_globals(namespace):
                self.note(name, (), ())
                self.note("globals", (), scopes)
            case _:
                self.reads(node.comparators)
                self.children(node, scopes)

    def reads(self, values: Iterable[ast.expr]) -> None:
        """The values are looked through; the module's namespace among them may be read for any name."""
        self.found.namespace |= any(map(_is_globals, values))

    def loop(self, node: ast.For, scopes: Scopes) -> None:
        self.reads([node.iter])
        self.children(node, scopes)

    def starred(self, node: ast.Starred, scopes: Scopes) -> None:
        self.reads([node.value])
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
            self.note(inner.id, tuple(chain), scopes)
        else:
            self.visit(inner, scopes)

    def call(self, node: ast.Call, scopes: Scopes) -> None:
        if isinstance(node.func, ast.Name) and len(node.args) == 1:  # one more names the namespace
            self.evaluated(node.func.id, node.args[0], scopes)
        if last_name(node.func) in _IMPORTERS and node.args and isinstance(node.args[0], ast.JoinedStr | ast.BinOp):
            self.computes_module = True
        if last_name(node.func) in _STRING_ACCESS:
            self.string_access(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "update" and _is_globals(node.func.value):
            for part in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self.visit(part, scopes)
            return
        if isinstance(node.func, ast.Attribute):
            self.reads([node.func.value])  # `globals().get(name)`
        elif isinstance(node.func, ast.Name) and node.func.id in _LOOK_THROUGH:
            self.reads(node.args)
        self.reads(keyword.value for keyword in node.keywords if keyword.arg is None)
        self.children(node, scopes)

    def evaluated(self, name: str, code: ast.expr, scopes: Scopes) -> None:
        """`eval("x + 1")` uses x; of a computed string, anything of the module may be used."""
        if name not in ("eval", "exec") or any(name in scope for scope in scopes):
            return
        if isinstance(code, ast.Constant) and isinstance(code.value, str):
            try:
                self.visit(ast.parse(code.value.strip()), scopes)
            except (SyntaxError, ValueError):
                return  # it raises when it runs, whatever the names mean
        else:
            self.found.namespace = True

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


def _is_globals(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "globals"


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
    ast.Try: _UseFinder.try_,
    ast.Name: _UseFinder.name,
    ast.Global: _UseFinder.global_,
    ast.ListComp: _UseFinder.comprehension,
    ast.SetComp: _UseFinder.comprehension,
    ast.DictComp: _UseFinder.comprehension,
    ast.GeneratorExp: _UseFinder.comprehension,
    ast.Attribute: _UseFinder.attribute,
    ast.Call: _UseFinder.call,
    ast.Subscript: _UseFinder.subscript,
    ast.Compare: _UseFinder.compare,
    ast.For: _UseFinder.loop,
    ast.Starred: _UseFinder.starred,
    ast.Load: _UseFinder.nothing,
    ast.Store: _UseFinder.nothing,
    ast.Del: _UseFinder.nothing,
}
