"""Executes lifted definitions in modules of their own, name by name, as they are needed. Runs in the worker.

Each module of a tree becomes an :class:`ArmModule` under the arm's own name (`difftest_base.vllm.v1.outputs`). When
a name is asked for, the statements that bind it are executed, cut down to what does so, after those that they use in
turn. Imports inside the tree's code, at load and during calls, resolve in the same arm: the arm's modules carry their
own `__import__`. Methods are compiled when they are first looked up, custom operators are registered when they are
first named.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from difftest.errors import MissingSymbol
from difftest.lift.effects import effect_nodes
from difftest.lift.failures import mark_load_failure
from difftest.lift.hosted import hosted_modules
from difftest.lift.operators import (
    REGISTRATION,
    OperatorNamespaces,
    Operators,
    concerns_operators,
    registered_namespaces,
)
from difftest.lift.resolve import Key, resolver_of
from difftest.lift.rewrite import ProductionName, Unquoted, is_own_name, is_quoted
from difftest.lift.source import (
    ANY,
    SourceModule,
    replace_fields,
)
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIns
from difftest.lift.statements import FunctionNode, all_nodes, copied
from difftest.lift.torch_helpers import KERNEL_HELPERS, kernel_helpers
from difftest.lift.uses import annotation_uses, find_uses

_FLAGS = __future__.annotations.compiler_flag


class ArmModule(types.ModuleType):
    """A module of one arm. An attribute that is not there yet is lifted when it is read."""

    def __init__(self, name: str, loader: Loader, source: SourceModule | None, tree_name: str) -> None:
        super().__init__(name)
        state = self.__dict__
        state["__difftest__"] = (loader, source, tree_name)
        state["__builtins__"] = loader.builtins
        state["__package__"] = name if source is None or source.is_package else name.rpartition(".")[0]
        state["__difftest_lazy__"] = loader.lazy_method
        state["__difftest_ops__"] = Operators(loader, self)
        if source is None or source.is_package:
            folder = loader.folder_of(tree_name)
            state["__path__"] = [] if folder is None else [str(folder)]
        if source is not None and source.path.endswith(".py"):
            state["__file__"] = loader.file_of(source)

    def __getattr__(self, name: str) -> Any:
        loader, source, tree_name = self.__dict__["__difftest__"]
        return loader.attribute(self, source, tree_name, name)


class LazyMethod:
    """Stands in a class body for a method that has not been compiled yet; replaced by it on first access."""

    def __init__(self, loader: Loader, number: int) -> None:
        self.loader = loader
        self.number = number
        self.lifted: tuple[type, str] | None = None

    @property
    def syntax(self) -> Sequence[FunctionNode]:
        """Its definitions, as they are written."""
        return self.loader._methods[self.number][2]

    def lift(self, kind: type, instance: object = None) -> Any:
        """The method itself, now also in its class."""
        if self.lifted is None:
            # `inspect` binds what it found in a class to that class, as if it were an instance.
            lines = (*kind.__mro__, *(type.mro(instance) if issubclass(type(instance), type) else ()))  # type: ignore[arg-type]
            places = ((cls, name) for cls in lines for name, value in vars(cls).items() if value is self)
            self.lifted = next(places, None)
            if self.lifted is None:
                raise AttributeError(f"method {self.syntax[0].name} was looked up in {kind.__name__}, which lacks it")
            return self.loader.lift_method(*self.lifted, self.number)
        # Somebody kept this object from before, as an interpreter's own caches may.
        owner, name = self.lifted
        found = vars(owner).get(name)
        return self.loader.lift_method(owner, name, self.number) if found is self else found

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        kind = owner if owner is not None else type(instance)
        found = self.lift(kind, instance)
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, instance, owner)

    def __call__(self, instance: object, *args: Any, **kwargs: Any) -> Any:
        """For code that takes a method out of a class body and calls it."""
        return self.__get__(instance, type(instance))(*args, **kwargs)


class LazyDescriptor(LazyMethod):
    """A decorated method: it may turn out to be a property with a setter."""

    def __set__(self, instance: object, value: object) -> None:
        self.lift(type(instance))
        object.__setattr__(instance, self.loader.method_name(self.number, type(instance)), value)

    def __delete__(self, instance: object) -> None:
        self.lift(type(instance))
        object.__delattr__(instance, self.loader.method_name(self.number, type(instance)))


def module_prefix(label: str) -> str:
    """What the names of an arm's modules begin with."""
    return "difftest_" + label.replace("-", "_")


class Loader:
    """Loads the code of one tree as one arm.

    Args:
        label: the arm's label; its modules are named `difftest_<label>.<module>`.
        sources: the tree's modules.
        standins: what takes the place of names that cannot be lifted.
        file_of: writes a module's file, if need be, and returns its real path, the arm's own.
    """

    def __init__(
        self, label: str, sources: Sources, standins: StandIns, file_of: Callable[[SourceModule], str]
    ) -> None:
        self.prefix = module_prefix(label)
        self.label = label
        self.sources = sources
        self.standins = standins
        self._file_of = file_of
        self.files: dict[str, str] = {}
        self.operators: dict[str, None] = {}  # compiled operators that a stand-in was called for
        self.missing: dict[str, None] = {}  # operators that functions looked for and that nothing provides
        self.builtins = {**vars(builtins), "__import__": self.import_}
        self.modules: dict[str, ArmModule] = {}
        self.namespaces: set[str] = set()
        self._executed: dict[str, dict[int, set[str]]] = {}
        self._running: set[tuple[str, int, str]] = set()
        self._starred: set[tuple[str, int]] = set()
        self._methods: list[tuple[ArmModule, ast.ClassDef, list[FunctionNode]]] = []
        self._hosted = hosted_modules(self.import_module, self.folder_of)
        self._effects: dict[str, dict[str, list[str]]] = {}
        self._lazy_effects: dict[str, list[Key]] = {}
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
        whole = name in self.standins.items
        source = self.sources.module(name, lazy=whole)
        if source is None and not whole:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if source is not None:
            self.namespaces |= registered_namespaces(source)
        module = ArmModule(f"{self.prefix}.{name}", self, source, name)
        self.modules[name] = module
        sys.modules[module.__name__] = module
        if whole:
            provided = self.standins.make(name)
            provided = provided if isinstance(provided, Mapping) else vars(provided)
            module.__dict__.update({k: v for k, v in provided.items() if not (k.startswith("__") and k.endswith("__"))})
        return module

    def attribute(self, module: ArmModule, source: SourceModule | None, tree_name: str, name: str) -> Any:
        """`getattr(module, name)` for a name that is not in the module yet."""
        state = module.__dict__
        key = f"{tree_name}:{name}"
        if key in self.standins.items:
            state[name] = self.standins.make(key)
            return state[name]
        special = name.startswith("__") and name.endswith("__")
        if special and (source is None or name not in source.bindings):
            raise AttributeError(f"module {tree_name!r} has no attribute {name!r}")
        standin = self.standins.key_for(tree_name, name)
        if source is not None and standin is None:
            provider = self.sources.provider(tree_name, name)
            if self._imports_submodule(source, name):
                pass
            elif provider is not None and provider.name == tree_name:
                self.need(module, source, {name})
                if name in state:
                    return state[name]
            elif provider is not None:
                state[name] = getattr(self.module(provider.name), name)
                return state[name]
        elif standin is not None and standin != tree_name and ":" not in standin:
            return getattr(self.module(standin), name)  # a submodule of what a stand-in takes the place of
        submodule = f"{tree_name}.{name}"
        if self.sources.facts(submodule) is not None or submodule in self.standins.items:
            return self.module(submodule)
        if source is not None and not special:
            if self._star_from_outside(module, source, name):
                return state[name]
            if "__getattr__" in source.bindings:
                if "__getattr__" not in state:
                    self.need(module, source, {"__getattr__"})
                return state["__getattr__"](name)
            if self._run_effects(source.name, name) and name in state:
                return state[name]
        if standin is not None:
            raise AttributeError(f"the stand-in for {standin} has no {name}")
        raise AttributeError(f"module {tree_name!r} has no attribute {name!r}")

    def _imports_submodule(self, source: SourceModule, name: str) -> bool:
        """Whether the statement that binds the name, `from . import h` in a package, is importing a submodule now."""
        running = any(module == source.name and bound == name for module, _, bound in self._running)
        return running and self.sources.facts(f"{source.name}.{name}") is not None

    # -- what importing does --------------------------------------------------------------------------------------

    def expect_effects(self, effects: Iterable[tuple[str, Key, bool]]) -> None:
        """What importing modules changes, as closures found it: (module, definition, whether by a lazy import).

        The statements run once the definition that they change is there; those of a lazy import, once that runs.
        """
        for module, key, lazy in effects:
            if lazy:
                known = self._lazy_effects.setdefault(module, [])
            else:
                known = self._effects.setdefault(key[0], {}).setdefault(key[1], [])  # type: ignore[assignment]
            item = key if lazy else module
            if item not in known:
                known.append(item)  # type: ignore[arg-type]

    def _run_effects(self, module: str, name: str) -> bool:
        """Execute what changes a definition when modules are imported; whether there was anything."""
        if any(holder == module and bound == name for holder, _, bound in self._running):
            return False  # its own module is not done with it; what is made now may be imported by the others
        known = self._effects.get(module, {})
        busy = {running for running, _, _ in self._running}
        waiting = [holder for holder in known.get(name, ()) if holder not in busy]
        if waiting:
            known[name] = [holder for holder in known[name] if holder in busy]  # one that imports this: later
        for holder in waiting:
            self._run_effect(holder, (module, name))
        return bool(waiting)

    def _import_effects(self, module: str, names: Iterable[str]) -> None:
        """Execute what importing a module inside a function changes."""
        for name in [module, *(f"{module}.{name}" for name in names)] if self._lazy_effects else ():
            for key in self._lazy_effects.pop(name, []):
                target = self.module(key[0])
                getattr(target, key[1], None)  # it is there before it is changed
                self._run_effect(name, key)

    def _run_effect(self, holder: str, key: Key) -> None:
        source = self.sources.module(holder)
        assert source is not None
        module = self.module(holder)
        effects = resolver_of(self.sources, self.standins).effects(holder)
        nodes = effect_nodes(source)
        for number in [*effects.changes.get(key, ()), *effects.subclasses.get(key, ())]:
            index, node = nodes[number]
            bound = (source.binds(node) | source.effects(node)) - {ANY}
            if bound:
                self.need(module, source, set(bound))
                continue
            kept = source.part(index, node)
            mark = f"<effect {number}>"
            if mark in self._executed.setdefault(holder, {}).get(index, ()):
                continue
            self.need(module, source, set(self._in_module(module, source, self._names_at_load(source, kept))))
            self._run(module, source, index, kept, {mark})

    def _star_from_outside(self, module: ArmModule, source: SourceModule, name: str) -> bool:
        """Execute the star imports from outside the tree; whether the name is there now."""
        for star in source.stars:
            if not self.sources.owns(star.module) and (source.name, star.index) not in self._starred:
                self._starred.add((source.name, star.index))
                self._execute(module, source, source.statements[star.index])
        return name in module.__dict__

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
            for index in source.binding(name):
                if name in executed.get(index, ()) or (source.name, index, name) in self._running:
                    continue
                wanted.setdefault(index, set()).add(name)
                used = self._names_at_load(source, source.prune(source.statements[index], {name}))
                queue += self._in_module(module, source, used - seen)
                seen |= used
        for index in sorted(wanted):
            # What an import above asked for in a circle may have been executed meanwhile.
            left = {
                n for n in wanted[index] - executed.get(index, set()) if (source.name, index, n) not in self._running
            }
            kept = source.prune(source.statements[index], left) if left else None
            if kept is not None:
                for name in left - state.keys():
                    if (beneath := self.sources.beneath(source.name, name)) is not None:
                        self._take(module, beneath, name)
                self._run(module, source, index, kept, left)
        for other in (source.name,) if self._running else tuple(self._effects):
            loaded = vars(self.modules[other]) if other in self.modules else {}
            for name in [n for n, holders in self._effects.get(other, {}).items() if holders and n in loaded]:
                self._run_effects(other, name)

    def _take(self, module: ArmModule, other: str, name: str) -> None:
        """What a star import takes of another module, if it has it: it may have deleted the name."""
        with contextlib.suppress(AttributeError):
            module.__dict__[name] = getattr(self.module(other), name)

    def _take_all(self, source: SourceModule) -> None:
        """What the star imports of a module take, for code that looks at its namespace as a whole."""
        module = self.module(source.name)
        for name in sorted(self.sources.names(source.name) - module.__dict__.keys()):
            provider = self.sources.provider(source.name, name)
            if provider is not None and provider.name != source.name:
                self._take(module, provider.name, name)

    def _in_module(self, module: ArmModule, source: SourceModule, names: set[str]) -> list[str]:
        """Those of the names that the module itself binds; what it has from a star import is put into it."""
        state = module.__dict__
        own: list[str] = []
        for name in sorted(names):
            if name in state:
                continue
            provider = self.sources.provider(source.name, name)
            if f"{source.name}:{name}" in self.standins.items or (provider and provider.name == source.name):
                own.append(name)
            elif provider is not None:
                state[name] = getattr(self.module(provider.name), name)
            elif name not in self.builtins and source.stars:
                self._star_from_outside(module, source, name)
        return own

    def _run(self, module: ArmModule, source: SourceModule, index: int, kept: ast.stmt, names: set[str]) -> None:
        """Execute a statement, once for each name that it binds."""
        whole = source.statements[index]
        if kept is whole:
            names = names | source.names_of(index)
        marks = {(source.name, index, name) for name in names} - self._running
        self._running |= marks
        try:
            self._execute(module, source, self._with_lazy_methods(module, kept))
        finally:
            self._running -= marks
        self._executed.setdefault(source.name, {}).setdefault(index, set()).update(names)

    def _names_at_load(self, source: SourceModule, kept: ast.stmt | None) -> set[str]:
        """Names that must be there before a statement runs: also those that its functions use when they are called."""
        if kept is None:
            return set()
        if isinstance(kept, ast.ClassDef):
            kept, _ = source.class_pieces(kept)
        uses = find_uses(source, kept)
        if uses.namespace:
            self._take_all(source)
            uses.names.update(source.bindings)
        if isinstance(kept, ast.Expr) and REGISTRATION.search(ast.dump(kept)):
            for name in list(uses.names):  # the schema of an operator is read off the annotations of its function
                for function in source.functions(name):
                    uses.names |= annotation_uses(source, function).names
        return uses.names

    def _execute(self, module: ArmModule, source: SourceModule, statement: ast.stmt) -> None:
        statement = self._rewritten(source, statement)
        code = compile(
            ast.Module(body=[statement], type_ignores=[]),
            self.file_of(source),
            "exec",
            flags=_FLAGS,
            dont_inherit=True,
        )
        try:
            exec(code, module.__dict__)
        except BaseException as error:
            mark_load_failure(error)
            raise

    def _rewritten(self, source: SourceModule, statement: ast.stmt) -> ast.stmt:
        """The statement, or a copy of it with what must be changed for it to do in an arm what it does in its tree."""
        nodes = all_nodes(statement)
        changes: list[ast.NodeTransformer] = []
        if not source.postpones_annotations and any(map(is_quoted, nodes)):
            changes.append(Unquoted())
        if any(map(concerns_operators, nodes)):
            changes.append(OperatorNamespaces(self, source))
        if b"__name__" in source.data and any(map(is_own_name, nodes)):
            changes.append(ProductionName(source.name))
        changed = copied(statement) if changes else statement
        for change in changes:
            changed = change.visit(changed)
        return changed

    # -- custom operators -----------------------------------------------------------------------------------------

    def register_operator(self, module: ArmModule, namespace: str, operator: str) -> None:
        """Execute what registers a custom operator, found as the closure finds it: from the file that names it."""
        tree_name = module.__dict__["__difftest__"][2]
        for name in resolver_of(self.sources, self.standins).registering(tree_name, namespace, operator):
            target = self.module(name)
            holder = self.sources.module(name)
            assert holder is not None
            executed = self._executed.setdefault(name, {})
            for index, kept in holder.registrations(namespace, operator):
                if "" in executed.setdefault(index, set()) or (name, index, "") in self._running:
                    continue
                used = self._names_at_load(holder, kept)
                self.need(target, holder, set(self._in_module(target, holder, used)))
                bound = holder.binds(kept) | holder.effects(kept)
                if not bound or not bound <= executed[index]:
                    self._run(target, holder, index, kept, {"", *bound})
                executed[index].add("")

    def own_namespace(self, name: str) -> str:
        """The arm's own name for a namespace of operators."""
        return f"{name}_{self.prefix}"

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
        _, methods = module.__dict__["__difftest__"][1].class_pieces(node)
        body: list[ast.stmt] = []
        placed: set[str] = set()
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name in methods:
                if inner.name not in placed:
                    placed.add(inner.name)
                    body.append(self._place(module, node, methods[inner.name]))
            else:
                body.append(inner)
        return replace_fields(node, body=body)

    def _place(self, module: ArmModule, owner: ast.ClassDef, nodes: list[FunctionNode]) -> ast.stmt:
        self._methods.append((module, owner, nodes))
        arguments: list[ast.expr] = [ast.Constant(len(self._methods) - 1), ast.Constant(bool(nodes[0].decorator_list))]
        call = ast.Call(ast.Name("__difftest_lazy__", ast.Load()), arguments, [])
        assign = ast.Assign([ast.Name(nodes[0].name, ast.Store())], call)
        return ast.fix_missing_locations(ast.copy_location(assign, owner))  # no line of a method runs yet

    def lazy_method(self, number: int, decorated: bool) -> LazyMethod:
        return LazyDescriptor(self, number) if decorated else LazyMethod(self, number)

    def method_name(self, number: int, kind: type) -> str:
        """The name under which a class has a method: a private one carries the name of its class."""
        _, owner, nodes = self._methods[number]
        name = nodes[0].name
        private = name.startswith("__") and not name.endswith("__")
        return f"_{owner.name.lstrip('_')}{name}" if private and owner.name.strip("_") else name

    def lift_method(self, owner: type, name: str, number: int) -> Any:
        """Compile a method and put it into its class; returns the object now in the class's namespace."""
        module, node, methods = self._methods[number]
        source = module.__dict__["__difftest__"][1]
        stub = ast.Module(body=list(methods), type_ignores=[])
        uses = find_uses(source, stub)
        used = uses.names | set(source.bindings) if uses.namespace else uses.names
        if uses.namespace:
            self._take_all(source)
        self.need(module, source, set(self._in_module(module, source, used)))
        if isinstance(found := vars(owner).get(name), LazyMethod) and found.number != number:
            return found
        if not isinstance(found, LazyMethod):
            return found  # lifted meanwhile, in a circle
        namespace = _MethodBody(owner)
        module.__dict__["__difftest_body__"] = namespace
        keyword = ast.keyword("metaclass", ast.Name("__difftest_body__", ast.Load()))
        body = replace_fields(node, decorator_list=[], bases=[], keywords=[keyword], body=list(methods))
        ast.fix_missing_locations(ast.copy_location(keyword, node))
        missing = object()
        kept = module.__dict__.get(node.name, missing)
        try:
            self._execute(module, source, body)
        finally:
            del module.__dict__["__difftest_body__"]
            if kept is missing:
                module.__dict__.pop(node.name, None)
            else:
                module.__dict__[node.name] = kept
        found = namespace.made[name]
        setattr(owner, name, found)
        if hasattr(type(found), "__set_name__"):  # what making the class would have called
            type(found).__set_name__(found, owner, name)
        return vars(owner)[name]

    def operator(self, namespace: str, name: str) -> Any:
        """What stands in for a compiled operator that this process does not have, or None."""
        key = f"torch.ops.{namespace}"
        if key not in self.standins.items or self.standins.host:
            return None
        found = self.standins.attributes(key).get(name)
        if found is None:
            return None

        def operator(*args: Any, **kwargs: Any) -> Any:
            self.operators[f"{key}.{name}"] = None
            return found(*args, **kwargs)

        return operator

    def missed(self, namespace: str, name: str) -> None:
        """Note that an operator was looked for in vain; what modules look for when they are loaded is not noted, since
        they register what concerns others, too."""
        if not self._running:
            self.missing[f"torch.ops.{namespace}.{name}"] = None

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
        if name in self._hosted or name.startswith("importlib."):
            found = self._hosted.get(name) or importlib.import_module(name)
            return found if fromlist else self._hosted[name.partition(".")[0]]
        if (
            name == KERNEL_HELPERS
            and fromlist
            and name not in sys.modules
            and (helpers := kernel_helpers()) is not None
        ):
            return helpers
        if not self.sources.owns(name) and name not in self.standins.items:
            return builtins.__import__(name, globals, locals, fromlist or (), 0)
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = self.module(".".join(parts[:end]))
            parent, _, last = ".".join(parts[:end]).rpartition(".")
            if parent and last not in vars(self.module(parent)) and self.sources.provider(parent, last) is None:
                vars(self.module(parent))[last] = module
            self._import_effects(module.__dict__["__difftest__"][2], fromlist or ())
        if not fromlist:
            return self.module(parts[0])
        if "*" in fromlist:
            self._load_all(module)
        return module

    def _load_all(self, module: ArmModule) -> None:
        """What `from module import *` takes; only executed inside a function or a `try` that is kept whole."""
        source = module.__dict__["__difftest__"][1]
        if source is None:
            return
        names = source.exports if source.exports is not None else [n for n in source.bindings if not n.startswith("_")]
        for name in names:
            getattr(module, name, None)
        for star in source.stars:
            if source.exports is None and self.sources.owns(star.module):
                inner = self.module(star.module)
                self._load_all(inner)
                for name, value in list(vars(inner).items()):
                    if not name.startswith("_"):
                        module.__dict__.setdefault(name, value)
        if source.exports is not None:
            module.__dict__.setdefault("__all__", source.exports)

    def import_module(self, name: str, package: str | None = None) -> Any:
        """`importlib.import_module` for the arm's code."""
        if name.startswith("."):
            name = importlib.util.resolve_name(name, package or "")
        name = name.removeprefix(f"{self.prefix}.")
        if self.sources.owns(name) or name in self.standins.items:
            self.import_(name)
            return self.module(name)
        return importlib.import_module(name)

    def folder_of(self, package: Any) -> Path | None:
        """The folder of a package of the tree, or of the package that a module is in; None for any other."""
        name = getattr(package, "__name__", package)
        name = str(name).removeprefix(f"{self.prefix}.")
        if not self.sources.owns(name):
            return None
        facts = self.sources.facts(name)
        if facts is None:
            return None
        if not facts.is_package:
            return self.folder_of(name.rpartition(".")[0])
        if facts.path.endswith(".py"):
            return Path(self.file_of(facts.source)).parent
        parent = self.folder_of(name.rpartition(".")[0])  # a folder without __init__.py
        return None if parent is None else parent / name.rpartition(".")[2]

    def answers_for(self, name: str) -> bool:
        """Whether failing to import a module is what the tree's code does: not a gap of a stand-in, and not a module
        that only a build makes."""
        if self.standins.key_for(name, None) or self.standins.is_built(name):
            return False
        if self.sources.facts(name) is not None:
            return True
        return self.sources.owns(name) and not any(part.startswith("_") for part in name.split("."))

    # -- whose code is it -----------------------------------------------------------------------------------------

    def strangers(self) -> list[str]:
        """Functions in the arm's modules that another arm's modules define; must be empty."""
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
                if (
                    code is not None
                    and origin.startswith("difftest_")
                    and not f"{origin}.".startswith(f"{self.prefix}.")
                ):
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


def missing_symbol(symbol: str) -> MissingSymbol:
    return MissingSymbol(f"no symbol {symbol} in this tree")
