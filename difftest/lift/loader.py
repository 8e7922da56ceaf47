"""Executes lifted definitions in modules of their own, name by name, as they are needed. Runs in the worker.

Each module of a tree becomes an :class:`ArmModule` under the arm's own name (`difftest_base.vllm.v1.outputs`). When
a name is asked for, the statements that bind it are executed, cut down to what does so, after those that they use in
turn. Imports inside the tree's code, at load and during calls, resolve in the same arm: the arm's modules carry their
own `__import__`. Methods are compiled when they are first looked up.
"""

from __future__ import annotations

import __future__

import ast
import builtins
import importlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from difftest.errors import LiftError
from difftest.lift.closure import Sources
from difftest.lift.source import FunctionNode, SourceModule, class_pieces, find_uses, prune, replace_fields
from difftest.lift.standins import StandIns

_FLAGS = __future__.annotations.compiler_flag
# Looked at by `type.__new__` itself or by decorators of the class, so never put off.
_EAGER_METHODS = {"__new__", "__init_subclass__", "__class_getitem__", "__set_name__", "__prepare__"}
_IMPORTERS = {"importlib"}


class ArmModule(types.ModuleType):
    """A module of one arm. An attribute that is not there yet is lifted when it is read."""

    def __init__(self, name: str, loader: Loader, source: SourceModule | None, tree_name: str) -> None:
        super().__init__(name)
        state = self.__dict__
        state["__difftest__"] = (loader, source, tree_name)
        state["__builtins__"] = loader.builtins
        state["__package__"] = name if source is None or source.is_package else name.rpartition(".")[0]
        state["__difftest_lazy__"] = loader.lazy_method
        if source is None or source.is_package:
            state["__path__"] = []
        if source is not None and source.data:
            state["__file__"] = loader.file_of(source)

    def __getattr__(self, name: str) -> Any:
        loader, source, tree_name = self.__dict__["__difftest__"]
        return loader.attribute(self, source, tree_name, name)


class LazyMethod:
    """Stands in a class body for a method that has not been compiled yet; replaced by it on first access."""

    def __init__(self, loader: Loader, number: int) -> None:
        self.loader = loader
        self.number = number

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        kind = owner if owner is not None else type(instance)
        for cls in kind.__mro__:
            for name, value in vars(cls).items():
                if value is self:
                    return self.loader.lift_method(cls, name, self.number).__get__(instance, owner)
        raise AttributeError("a lifted method was looked up outside its class")


class Loader:
    """Loads the code of one tree as one arm.

    Args:
        label: the arm's label; its modules are named `difftest_<label>.<module>`.
        sources: the tree's modules. They are changed while loading, so two arms must not share them.
        standins: what takes the place of names that cannot be lifted.
        file_of: writes a module's file, if need be, and returns its real path, the arm's own.
    """

    def __init__(
        self, label: str, sources: Sources, standins: StandIns, file_of: Callable[[SourceModule], str]
    ) -> None:
        self.prefix = "difftest_" + label.replace("-", "_")
        self.label = label
        self.sources = sources
        self.standins = standins
        self._file_of = file_of
        self.files: dict[str, str] = {}
        self.builtins = {**vars(builtins), "__import__": self.import_}
        self.modules: dict[str, ArmModule] = {}
        self._executed: dict[str, dict[int, set[str]]] = {}
        self._methods: list[tuple[ArmModule, ast.ClassDef, list[FunctionNode]]] = []
        self._importlib = self._importlib_module()
        self._rewritten: set[str] = set()
        root = types.ModuleType(self.prefix)
        root.__path__ = []
        sys.modules[self.prefix] = root

    def file_of(self, source: SourceModule) -> str:
        if source.path not in self.files:
            self.files[source.path] = self._file_of(source)
        return self.files[source.path]

    # -- modules and names ----------------------------------------------------------------------------------------

    def module(self, name: str) -> ArmModule:
        """The arm's module of that name.

        Raises:
            ModuleNotFoundError: the tree has no such module.
        """
        if name in self.modules:
            return self.modules[name]
        source = self.sources.module(name)
        whole = name in self.standins.items
        if source is None and not whole:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if source is not None and source.path not in self._rewritten:
            self._rewritten.add(source.path)
            _OperatorNamespaces(self).visit(source.tree)
        module = ArmModule(f"{self.prefix}.{name}", self, source, name)
        self.modules[name] = module
        sys.modules[module.__name__] = module
        if whole:
            provided = self.standins.make(name)
            provided = provided if isinstance(provided, Mapping) else vars(provided)
            module.__dict__.update(
                {k: v for k, v in provided.items() if not (k.startswith("__") and k.endswith("__"))}
            )
        return module

    def attribute(self, module: ArmModule, source: SourceModule | None, tree_name: str, name: str) -> Any:
        """`getattr(module, name)` for a name that is not in the module yet."""
        state = module.__dict__
        key = f"{tree_name}:{name}"
        if key in self.standins.items:
            state[name] = self.standins.make(key)
            return state[name]
        if name.startswith("__") and name.endswith("__") and name != "__all__":
            raise AttributeError(name)
        if source is not None and self.standins.key_for(tree_name, name) is None:
            provider = self.sources.provider(source, name)
            if provider is source:
                self.need(module, source, {name})
                if name in state:
                    return state[name]
            elif provider is not None:
                state[name] = getattr(self.module(provider.name), name)
                return state[name]
        submodule = f"{tree_name}.{name}"
        if self.sources.module(submodule) is not None or submodule in self.standins.items:
            return self.module(submodule)
        if source is not None and "__getattr__" in source.bindings and "__getattr__" not in state:
            self.need(module, source, {"__getattr__"})
            return state["__getattr__"](name)
        raise AttributeError(f"module {tree_name!r} has no attribute {name!r}")

    def need(self, module: ArmModule, source: SourceModule, names: set[str]) -> None:
        """Execute what binds the names, and what that uses, in source order."""
        state = module.__dict__
        executed = self._executed.setdefault(source.name, {})
        wanted: dict[int, set[str]] = {}
        queue = [n for n in names if n not in state]
        seen = set(queue)
        while queue:
            name = queue.pop()
            if f"{source.name}:{name}" in self.standins.items:
                state[name] = self.standins.make(f"{source.name}:{name}")
                continue
            for index in source.bindings.get(name, ()):
                if name in executed.get(index, ()):
                    continue
                wanted.setdefault(index, set()).add(name)
                node = source.statements[index]
                used = self._names_at_load(source, node, name)
                for other in used:
                    if other in seen or other in state:
                        continue
                    seen.add(other)
                    if other in source.bindings or f"{source.name}:{other}" in self.standins.items:
                        queue.append(other)
                    elif (provider := self.sources.provider(source, other)) is not None:
                        state[other] = getattr(self.module(provider.name), other)
        body: list[ast.stmt] = []
        for index in sorted(wanted):
            kept = prune(source.statements[index], wanted[index])
            executed.setdefault(index, set()).update(wanted[index])
            if kept is not None:
                body.append(self._with_lazy_methods(module, kept))
        if body:
            self._execute(module, source, body)
        self._register_operators(module, source, body, executed)

    def _names_at_load(self, source: SourceModule, node: ast.stmt, name: str) -> set[str]:
        kept = prune(node, {name})
        if kept is None:
            return set()
        if isinstance(kept, ast.ClassDef):
            header, methods = class_pieces(kept)
            used = set(find_uses(source, header).names)
            for method, nodes in methods.items():
                if not _is_lazy(method, nodes):
                    for inner in nodes:
                        used |= find_uses(source, inner).names
            return used
        return find_uses(source, kept).names

    def _execute(self, module: ArmModule, source: SourceModule, body: list[ast.stmt]) -> None:
        code = compile(
            ast.Module(body=body, type_ignores=[]),
            self.file_of(source),
            "exec",
            flags=_FLAGS,
            dont_inherit=True,
        )
        exec(code, module.__dict__)

    def _register_operators(
        self, module: ArmModule, source: SourceModule, body: list[ast.stmt], executed: dict[int, set[str]]
    ) -> None:
        """Execute the statements that register the custom operators that `body` calls."""
        for node in body:
            for namespace, operator in find_uses(source, node).ops:
                if namespace.removesuffix(f"_{self.label}") and self.sources.owns(
                    namespace.removesuffix(f"_{self.label}")
                ):
                    for index in source.mentions(operator):
                        if "" not in executed.setdefault(index, set()):
                            executed[index].add("")
                            statement = source.statements[index]
                            self.need(
                                module, source, find_uses(source, statement).names & set(source.bindings)
                            )
                            if isinstance(statement, ast.Expr):
                                self._execute(module, source, [statement])

    # -- methods --------------------------------------------------------------------------------------------------

    def _with_lazy_methods(self, module: ArmModule, node: ast.stmt) -> ast.stmt:
        """A class statement whose methods are compiled when they are first looked up."""
        if isinstance(node, ast.If):
            return replace_fields(
                node,
                body=[self._with_lazy_methods(module, n) for n in node.body],
                orelse=[self._with_lazy_methods(module, n) for n in node.orelse],
            )
        if not isinstance(node, ast.ClassDef):
            return node
        _, methods = class_pieces(node)
        lazy = {name for name, nodes in methods.items() if _is_lazy(name, nodes)}
        body: list[ast.stmt] = []
        placed: set[str] = set()
        for inner in node.body:
            name = getattr(inner, "name", None)
            if name in lazy and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                if name not in placed:
                    placed.add(name)
                    self._methods.append((module, node, methods[name]))
                    call = ast.Call(
                        ast.Name("__difftest_lazy__", ast.Load()), [ast.Constant(len(self._methods) - 1)], []
                    )
                    assign = ast.Assign([ast.Name(name, ast.Store())], call)
                    body.append(ast.fix_missing_locations(ast.copy_location(assign, inner)))
            else:
                body.append(inner)
        return replace_fields(node, body=body)

    def lazy_method(self, number: int) -> LazyMethod:
        return LazyMethod(self, number)

    def lift_method(self, owner: type, name: str, number: int) -> Any:
        """Compile a method and put it into its class; returns the object now in the class's namespace."""
        module, node, methods = self._methods[number]
        source = module.__dict__["__difftest__"][1]
        used: set[str] = set()
        for inner in methods:
            used |= find_uses(source, inner).names
        self.need(module, source, {n for n in used if n in source.bindings})
        for other in used:
            if other not in module.__dict__ and other not in self.builtins:
                provider = self.sources.provider(source, other)
                if provider is not None and provider is not source:
                    module.__dict__[other] = getattr(self.module(provider.name), other)
        namespace = _MethodBody(owner)
        module.__dict__["__difftest_body__"] = namespace
        keyword = ast.keyword("metaclass", ast.Name("__difftest_body__", ast.Load()))
        body = replace_fields(node, decorator_list=[], bases=[], keywords=[keyword], body=list(methods))
        ast.fix_missing_locations(ast.copy_location(keyword, node))
        kept = module.__dict__.get(node.name)
        try:
            self._execute(module, source, [body])
        finally:
            del module.__dict__["__difftest_body__"]
            if kept is None:
                module.__dict__.pop(node.name, None)
            else:
                module.__dict__[node.name] = kept
        found = namespace.made[name]
        setattr(owner, name, found)
        if hasattr(type(found), "__set_name__"):  # what making the class would have called
            type(found).__set_name__(found, owner, name)
        self._register_operators(module, source, list(methods), self._executed.setdefault(source.name, {}))
        return vars(owner)[name]

    # -- imports of the arm's code --------------------------------------------------------------------------------

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """`__import__` for the arm's code: what the tree owns comes from the arm, all else from the host."""
        if level:
            source = (globals or {}).get("__difftest__", (None, None, ""))[1]
            if source is None:
                raise ImportError("relative import outside a lifted module")
            name = source.absolute(name or None, level)
        if name in _IMPORTERS or name.startswith("importlib."):
            found = importlib.import_module(name) if name not in _IMPORTERS else self._importlib
            return found if fromlist else self._importlib
        if not self.sources.owns(name) and name not in self.standins.items:
            return builtins.__import__(name, globals, locals, fromlist or (), 0)
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = self.module(".".join(parts[:end]))
            if end > 1 and parts[end - 1] not in self.module(".".join(parts[: end - 1])).__dict__:
                self.module(".".join(parts[: end - 1])).__dict__[parts[end - 1]] = module
        if not fromlist:
            return self.module(parts[0])
        if "*" in fromlist:
            self._load_all(module)
        return module

    def _load_all(self, module: ArmModule) -> None:
        source = module.__dict__["__difftest__"][1]
        if source is not None:
            for name in source.exports or [n for n in source.bindings if not n.startswith("_")]:
                getattr(module, name, None)
            if source.exports is not None:
                module.__dict__.setdefault("__all__", source.exports)

    def _importlib_module(self) -> types.ModuleType:
        """`importlib` whose `import_module` resolves the tree's names in this arm."""
        shim = types.ModuleType("importlib")
        shim.__dict__.update({k: v for k, v in vars(importlib).items() if not k.startswith("__")})

        def import_module(name: str, package: str | None = None) -> Any:
            if name.startswith("."):
                name = importlib.util.resolve_name(name, package or "")
            name = name.removeprefix(f"{self.prefix}.")
            if self.sources.owns(name) or name in self.standins.items:
                self.import_(name)
                return self.module(name)
            return importlib.import_module(name)

        shim.__dict__["import_module"] = import_module
        return shim

    # -- whose code is it -----------------------------------------------------------------------------------------

    def strangers(self) -> list[str]:
        """Functions in the arm's modules whose code comes from another arm's files; must be empty."""
        own = set(self.files.values())
        found = []
        for name, module in self.modules.items():
            for attribute, value in list(vars(module).items()):
                if isinstance(value, types.ModuleType):
                    continue  # asking an arm's module for an attribute would lift it
                function = getattr(value, "fn", value)
                while hasattr(function, "__wrapped__"):  # a decorator of the standard library took its names
                    function = function.__wrapped__
                code = getattr(function, "__code__", None)
                origin = getattr(function, "__module__", "") or ""
                if code is not None and origin.startswith("difftest_") and code.co_filename not in own:
                    found.append(f"{name}:{attribute}")
        return found


class _MethodBody:
    """Collects a class body without making a class; what the owner already has is visible to the body."""

    def __init__(self, owner: type) -> None:
        self.owner = owner
        self.made: dict[str, Any] = {}

    def __prepare__(self, name: str, bases: tuple[type, ...], **_: Any) -> dict[str, Any]:
        self.made = {k: v for k, v in vars(self.owner).items() if not isinstance(v, LazyMethod)}
        for special in ("__dict__", "__weakref__", "__qualname__", "__module__", "__doc__", "__classcell__"):
            self.made.pop(special, None)
        return self.made

    def __call__(self, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> type:
        cell = namespace.pop("__classcell__", None)
        if cell is not None:
            cell.cell_contents = self.owner  # what `super()` and `__class__` mean in the methods
        return self.owner


def _is_lazy(name: str, nodes: Sequence[FunctionNode]) -> bool:
    if name in _EAGER_METHODS:
        return False
    return not any(
        "abstract" in (getattr(d, "id", "") or getattr(d, "attr", ""))
        for n in nodes
        for d in n.decorator_list
    )


class _OperatorNamespaces(ast.NodeTransformer):
    """Gives the tree's custom operators a namespace of the arm's own, so that both arms can register theirs."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def _owned(self, namespace: str) -> bool:
        return namespace.isidentifier() and self.loader.sources.owns(namespace)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and "::" in node.value:
            namespace, _, rest = node.value.partition("::")
            if self._owned(namespace):
                return ast.copy_location(ast.Constant(f"{namespace}_{self.loader.label}::{rest}"), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        inner = node.value
        if isinstance(inner, ast.Attribute) and inner.attr == "ops" and self._owned(node.attr):
            if isinstance(inner.value, ast.Name) and inner.value.id == "torch":
                return replace_fields(node, attr=f"{node.attr}_{self.loader.label}")
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name == "Library" and node.args and isinstance(first := node.args[0], ast.Constant):
            if isinstance(first.value, str) and self._owned(first.value):
                first.value = f"{first.value}_{self.loader.label}"
        return node


def missing_symbol(symbol: str) -> LiftError:
    return LiftError(f"no symbol {symbol} in this tree")
