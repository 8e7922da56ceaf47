"""What the closure needs to know of one file, found once for each content and kept between runs. No execution.

A file's facts depend on its bytes and its module name alone, so they are kept in the cache folder by blob, as JSON;
a file whose facts are all there need not be parsed again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from difftest.lift.effects import Effect, Mark, effect_nodes, find_changes, find_effects, imports_for_effect
from difftest.lift.mutations import PLAIN_METACLASSES
from difftest.lift.operators import registered_namespaces
from difftest.lift.source import (
    ANY,
    Import,
    SourceModule,
    Star,
    bound_names,
    replace_fields,
)
from difftest.lift.statements import FunctionNode, walk_statements
from difftest.lift.syntax import syntax_hash
from difftest.lift.uses import Uses, annotation_uses, find_uses


@dataclass
class Code:
    """A stretch of code.

    Attributes:
        first, last: line numbers, 1-based, inclusive.
        digest: :func:`syntax_hash` of it.
        uses: what it refers to.
    """

    first: int
    last: int
    digest: str
    uses: Uses


@dataclass
class Method(Code):
    """A method; a property and its setter are one.

    Attributes:
        static: called without an instance or a class.
    """

    static: bool = False


@dataclass
class Part(Code):
    """The part of a top-level statement that binds or changes one name.

    Attributes:
        methods: of a class, which is then without them.
        is_class: the statement is a class; compiled: it is decorated with torch.compile.
    """

    methods: dict[str, Method] = field(default_factory=dict)
    is_class: bool = False
    compiled: bool = False


@dataclass
class Member:
    """What `locate` needs to know of a class or of what a name is bound to.

    Attributes:
        names: members of the class, with theirs where a member is a class.
        bases: names of its bases and of its metaclass, as written (`a.B`).
        alias: the name that `X = alias` makes X another name of.
        defined: whether a class or function statement binds the name.
        keeps: the class is told of classes derived from it.
        constant: nothing can change what the name stands for.
    """

    names: dict[str, Any] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)
    alias: str | None = None
    defined: bool = False
    is_class: bool = False
    keeps: bool = False
    constant: bool = False


Load = Callable[[bool], SourceModule]


class Facts:
    """The facts of one file, each found when it is asked for.

    Args:
        load: parses the file; lazily if it is told to. Raises LiftError when it cannot be parsed.
        known: facts found before, as :attr:`known` of an earlier object.
    """

    def __init__(
        self,
        name: str,
        path: str,
        is_package: bool,
        load: Load,
        known: dict[str, Any] | None = None,
        changed: Callable[[Facts], None] | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self.is_package = is_package
        self.known: dict[str, Any] = known if known is not None else {}
        self._load = load
        self._source: SourceModule | None = None
        self._changed = changed
        self._memory: dict[tuple[str, str], Any] = {}

    @property
    def source(self) -> SourceModule:
        return self.module(lazy=bool(self.known))

    def module(self, lazy: bool) -> SourceModule:
        """The file.

        Args:
            lazy: it need not be parsed yet, and may turn out to be none that can be.
        """
        if self._source is None:
            self._source = self._load(lazy)
            known = self.known.get("file")
            if isinstance(known, dict) and "bindings" in known:
                self._source.bindings = self.bindings
        return self._source

    def load_from(self, load: Load) -> None:
        """Another tree has the same file; the one that it was found in first may be closed by the time it is read."""
        self._load = load

    def _get(self, kind: str, key: str, find: Callable[[], Any], revive: Callable[[Any], Any]) -> Any:
        """A fact: remembered, else out of what is known, else found and put there as plain data."""
        memory = self._memory.get((kind, key))
        if memory is not None:
            return memory
        table = self.known.get(kind)
        if not isinstance(table, dict):
            table = self.known[kind] = {}
        if key in table:
            try:
                found = self._memory[kind, key] = revive(table[key])
                return found
            except (KeyError, TypeError, ValueError, AttributeError):
                del table[key]  # a damaged file of the cache; the fact is found again
        table[key] = _plain(find())
        if self._changed is not None:
            self._changed(self)
        found = self._memory[kind, key] = revive(table[key])
        return found

    @property
    def bindings(self) -> dict[str, list[int]]:
        """By name, the top-level statements that bind or change it, see :attr:`SourceModule.bindings`."""
        return self._get("file", "bindings", lambda: self.source.bindings, _revive_bindings)  # type: ignore[no-any-return]

    def last_binding(self, name: str) -> int:
        """Index of the last top-level statement that binds or changes a name; -1 when none does."""
        return self.bindings[name][-1] if name in self.bindings else -1

    def replaces(self, name: str) -> int:
        """Index of the last top-level statement that binds a name whatever it was before; -1 when there is none."""
        return self._get("replaces", name, lambda: self.source.replaces(name), int)  # type: ignore[no-any-return]

    @property
    def stars(self) -> list[Star]:
        """Star imports at top level, weakest first."""
        return self._get("file", "stars", lambda: self.source.stars, lambda v: [Star(**s) for s in v])  # type: ignore[no-any-return]

    def exports(self, name: str) -> bool:
        """Whether `from module import *` takes a name, if the module has it."""
        listed, hidden = self._get(
            "file", "exports", lambda: [self.source.exports, self.source.hides_exports], lambda v: v
        )
        return bool(hidden or (name in listed if listed is not None else not name.startswith("_")))

    def imports_of(self, name: str) -> list[Import]:
        if name not in self.bindings:
            return []
        return self._get("imports", name, lambda: self.source.imports_of(name), _imports)  # type: ignore[no-any-return]

    def imported(self) -> list[str]:
        """Modules that the file imports at top level."""

        def find() -> list[str]:
            nodes = walk_statements(self.source.statements, live=True)
            return _imported(self.source, nodes) + [star.module for star in self.source.stars]

        return self._get("file", "imported", find, list)  # type: ignore[no-any-return]

    def imported_anywhere(self) -> list[str]:
        """Modules that the file imports, also those that its functions do."""
        find = lambda: _imported(self.source, ast.walk(self.source.tree))  # noqa: E731
        return self._get("file", "imported anywhere", find, list)  # type: ignore[no-any-return]

    @property
    def computed(self) -> bool:
        """Whether a statement at top level binds names that it computes."""
        return self._get("file", "computed", lambda: [bool(self.source.computed)], lambda v: v)[0]  # type: ignore[no-any-return]

    @property
    def may_fail(self) -> list[tuple[str, str, list[str]]]:
        """(digest, line and text, modules imported) of the statements by which importing the file may fail."""

        def find() -> list[tuple[str, str, list[str]]]:
            return [
                (syntax_hash(node), f"{self.path}:{node.lineno} {ast.unparse(node).splitlines()[0][:80]}", modules)
                for node, modules in self.source.may_fail
            ]

        return self._get("file", "may fail", find, lambda v: [(a, b, list(c)) for a, b, c in v])  # type: ignore[no-any-return]

    @property
    def effects(self) -> list[Effect]:
        """What importing the file changes besides its own names."""
        return self._get("file", "effects", lambda: find_effects(self.source), _revive_effects)  # type: ignore[no-any-return]

    def effect(self, number: int) -> Part:
        """The statement of an effect."""
        find = lambda: [_effect_part(self.source, number)]  # noqa: E731
        return self._get("effect", str(number), find, _revive_parts)[0]  # type: ignore[no-any-return]

    def imported_for_effect(self) -> list[str]:
        """Modules that the file imports at top level without using them; those of a package all."""
        return self._get("file", "for effect", lambda: imports_for_effect(self.source), list)  # type: ignore[no-any-return]

    def changed_by(self, function: str) -> list[Mark]:
        """What a call of a function of the module, or of a method as `Class.method`, changes of the tree."""
        find = lambda: find_changes(self.source, function)  # noqa: E731
        return self._get("changed by", function, find, _revive_marks)  # type: ignore[no-any-return]

    def member(self, name: str) -> Member:
        return self._get("member", name, lambda: _member(self.source, name), lambda v: Member(**v))  # type: ignore[no-any-return]

    @property
    def definitions(self) -> dict[str, str]:
        """By qualified name, digests of the functions, methods, classes without them and values at top level."""
        return self._get("file", "definitions", lambda: _definitions(self.source), _revive_names)  # type: ignore[no-any-return]

    def parts(self, name: str) -> list[Part]:
        """What binds a name, in source order."""
        return self._get("parts", name, lambda: list(_parts(self.source, name)), _revive_parts)  # type: ignore[no-any-return]

    def registrations(self, namespace: str, operator: str) -> list[Part]:
        """What registers a custom operator."""
        find = lambda: [_registration(self.source, n) for _, n in self.source.registrations(namespace, operator)]  # noqa: E731
        return self._get("registrations", f"{namespace}::{operator}", find, _revive_parts)  # type: ignore[no-any-return]

    @property
    def operators(self) -> list[tuple[str, str]]:
        """Operators that the file registers, see :attr:`SourceModule.operators`; of each namespace that it makes also
        one without a name."""
        find = lambda: self.source.operators + [(name, "") for name in sorted(registered_namespaces(self.source))]  # noqa: E731
        revive = lambda v: [(namespace, name) for namespace, name in v]  # noqa: E731
        return self._get("file", "operators", find, revive)  # type: ignore[no-any-return]

    @property
    def tables(self) -> frozenset[str]:
        """Names that one statement binds to a dict display with constant strings as keys, and nothing changes."""
        return self._get("file", "tables", lambda: list(_tables(self.source)), frozenset)  # type: ignore[no-any-return]

    def entries(self, name: str) -> list[tuple[str, Part]]:
        """(table, entry) for each table that has an entry of that name."""
        if not self.tables:
            return []
        return self._get(  # type: ignore[no-any-return]
            "entries",
            name,
            lambda: list(_entries(self.source, name)),
            lambda v: [(table, _revive_parts([part])[0]) for table, part in v],
        )


# -- finding ----------------------------------------------------------------------------------------------------------


def _definitions(source: SourceModule) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for node in walk_statements(source.statements, live=True):
        if isinstance(node, ast.ClassDef):
            methods = [inner for inner in node.body if isinstance(inner, FunctionNode)]
            rest = [inner for inner in node.body if inner not in methods]
            found.setdefault(node.name, []).append(syntax_hash(replace_fields(node, body=rest or [ast.Pass()])))
            for method in methods:
                found.setdefault(f"{node.name}.{method.name}", []).append(syntax_hash(method))
        elif isinstance(node, FunctionNode):
            found.setdefault(node.name, []).append(syntax_hash(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for name in bound_names(node):
                found.setdefault(name, []).append(syntax_hash(node))
    return {name: " ".join(digests) for name, digests in found.items()}


def _imported(source: SourceModule, nodes: Iterable[ast.AST]) -> list[str]:
    found: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for item in source.expand(node):
                found[item.loads or item.module] = None
                if item.attribute:
                    found[f"{item.module}.{item.attribute}"] = None
    return list(found)


def _parts(source: SourceModule, name: str) -> Iterator[Part]:
    for index in source.binding(name):
        kept = source.prune(source.statements[index], {name})
        if kept is None:
            continue
        first, last = span(kept)
        if isinstance(kept, ast.ClassDef):
            header, methods = source.class_pieces(kept)
            last = max([kept.lineno, *(span(inner)[1] for inner in header.body if inner in kept.body)])
            uses = find_uses(source, header)
            digest = _with_order(source, syntax_hash(header), uses, index, name)
            yield Part(
                first,
                last,
                digest,
                uses,
                {method: _method(source, nodes) for method, nodes in methods.items()},
                True,
            )
            continue
        uses = find_uses(source, kept)
        at_load = uses
        if isinstance(kept, ast.FunctionDef | ast.AsyncFunctionDef):
            stub = ast.Expr(ast.Tuple([*kept.decorator_list, *kept.args.defaults], ast.Load()))
            at_load = find_uses(source, stub)
        digest = _with_order(source, syntax_hash(kept), at_load, index, name)
        yield Part(first, last, digest, uses, compiled=bool(compiling(kept)))


def _with_order(source: SourceModule, digest: str, at_load: Uses, index: int, name: str) -> str:
    """A digest that also says which of several bindings of a used name come before this statement."""
    order = []
    for used in sorted(at_load.names - {name}):
        indices = source.bindings.get(used, ())
        if len(indices) > 1:
            order.append(f"{used} {sum(i < index for i in indices)}")
    return hashlib.sha256(f"{digest} {order}".encode()).hexdigest() if order else digest


def _method(source: SourceModule, nodes: list[FunctionNode]) -> Method:
    digest = hashlib.sha256(" ".join(syntax_hash(node) for node in nodes).encode()).hexdigest()
    wrapper = ast.Module(body=list(nodes), type_ignores=[])
    decorators = {getattr(d, "id", getattr(d, "attr", "")) for node in nodes for d in node.decorator_list}
    spans = [span(node) for node in nodes]
    return Method(
        min(first for first, _ in spans),
        max(last for _, last in spans),
        digest,
        find_uses(source, wrapper),
        "staticmethod" in decorators,
    )


def _registration(source: SourceModule, node: ast.stmt) -> Part:
    """A statement that registers an operator. The annotations of functions it names make the operator's schema."""
    uses = find_uses(source, node)
    digests = [syntax_hash(node, annotations=True)]
    functions = [node] if isinstance(node, ast.FunctionDef) else []
    for name in sorted(uses.names):
        functions += [f for f in source.functions(name) if isinstance(f, ast.FunctionDef)]
    for function in functions:
        digests.append(syntax_hash(function, annotations=True))
        read = annotation_uses(source, function)
        uses.names |= read.names
        for name, chains in read.chains.items():
            uses.chains.setdefault(name, set()).update(chains)
    if isinstance(node, ast.FunctionDef):
        uses.names.add(node.name)
        uses.chains.setdefault(node.name, set()).add(())
    return Part(*span(node), hashlib.sha256(" ".join(digests).encode()).hexdigest(), uses)


def _tables(source: SourceModule) -> Iterator[str]:
    for name, indices in source.bindings.items():
        node = source.statements[indices[0]]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) and len(indices) == 1 else None
        if isinstance(value, ast.Dict) and value.keys and all(isinstance(k, ast.Constant) for k in value.keys):
            yield name


def _entries(source: SourceModule, name: str) -> Iterator[tuple[str, Part]]:
    for table in _tables(source):
        node = source.statements[source.bindings[table][0]]
        assert isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        found = None
        for key, entry in zip(node.value.keys, node.value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                found = entry  # the last one counts
        if found is not None:
            statement = ast.copy_location(ast.Expr(found), found)
            uses = find_uses(source, statement)
            for other in node.value.values:  # what makes the other entries runs with it
                if other is not found and not isinstance(other, ast.Lambda):
                    made = find_uses(source, ast.Expr(other))
                    uses.names |= made.names
                    for name_used, chains in made.chains.items():
                        uses.chains.setdefault(name_used, set()).update(chains)
            for inner in ast.walk(found):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    uses.references.add(inner.value)
            yield table, Part(*span(statement), syntax_hash(statement), uses)


def _effect_part(source: SourceModule, number: int) -> Part:
    """A statement that changes what is not its file's own. One that binds a name is found by that name."""
    effect = next(e for e in find_effects(source) if e.number == number)
    _, node = effect_nodes(source)[number]
    bound = source.binds(node) - {ANY}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        uses = Uses(names=set(bound), chains={name: {()} for name in bound})
    else:
        uses = find_uses(source, node)
    return Part(effect.first, effect.last, effect.digest, uses)


def _member(source: SourceModule, name: str) -> Member:
    classes = source.classes(name)
    if classes:
        return _class_member(classes[0])
    found = Member(defined=bool(source.functions(name)), constant=source.mutations.is_constant(name))
    for index in source.bindings.get(name, ()):
        node = source.statements[index]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id != name:
            found.alias = node.value.id
    return found


def _class_member(node: ast.ClassDef) -> Member:
    found = Member(defined=True, is_class=True, bases=[text for b in node.bases if (text := _dotted(b))])
    metaclasses = [text for k in node.keywords if k.arg == "metaclass" and (text := _dotted(k.value))]
    found.keeps = bool(set(metaclasses) - PLAIN_METACLASSES or PLAIN_METACLASSES & set(found.bases))
    found.bases += metaclasses
    for inner in walk_statements(node.body, live=True):
        found.keeps |= getattr(inner, "name", "") == "__init_subclass__"
        if isinstance(inner, ast.ClassDef):
            found.names[inner.name] = _plain(_class_member(inner))
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            found.names[inner.name] = None
        else:
            targets = inner.targets if isinstance(inner, ast.Assign) else [getattr(inner, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    found.names[target.id] = None
    return found


def _dotted(node: ast.expr) -> str:
    node = node.value if isinstance(node, ast.Subscript) else node  # Generic[T]
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def compiling(node: ast.stmt) -> list[ast.expr]:
    """The decorators of a statement that have torch compile it."""
    return [decorator for decorator in getattr(node, "decorator_list", ()) if "compile" in ast.dump(decorator)]


def span(node: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement, decorators included."""
    decorators = [d.lineno for d in getattr(node, "decorator_list", ())]
    return min([node.lineno, *decorators]), node.end_lineno or node.lineno


# -- as plain data ----------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """A fact as what JSON has; sets become sorted lists."""
    if isinstance(value, Uses):
        return {
            f.name: plain
            for f in fields(value)
            if (plain := _plain(getattr(value, f.name)))  # most are empty
        }
    if isinstance(value, Code | Member | Import | Star | Effect | Mark):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _revive_names(data: dict[str, str]) -> dict[str, str]:
    if not all(type(digest) is str for digest in data.values()):
        raise ValueError("not digests")
    return data


def _revive_bindings(data: dict[str, list[int]]) -> dict[str, list[int]]:
    if not all(at and all(type(index) is int for index in at) for at in data.values()):
        raise ValueError("not the indices of statements")
    return data


def _imports(items: list[dict[str, Any]]) -> list[Import]:
    return [Import(**item) for item in items]


def _revive_effects(items: list[dict[str, Any]]) -> list[Effect]:
    return [Effect(**{**item, "marks": tuple(_revive_marks(item["marks"]))}) for item in items]


def _revive_marks(items: list[dict[str, Any]]) -> list[Mark]:
    return [Mark(m["module"], tuple(m["chain"]), m["how"]) for m in items]


def _revive_uses(data: dict[str, Any]) -> Uses:
    return Uses(
        set(data.get("names", ())),
        {name: {tuple(c) for c in chains} for name, chains in data.get("chains", {}).items()},
        {name: {tuple(c) for c in chains} for name, chains in data.get("local_chains", {}).items()},
        set(data.get("attributes", ())),
        {(a, b) for a, b in data.get("patterns", ())},
        _imports(data.get("imports", [])),
        {(a, b) for a, b in data.get("ops", ())},
        set(data.get("references", ())),
        data.get("namespace", False),
        set(data.get("whole", ())),
        set(data.get("files", ())),
        set(data.get("strings", ())),
        set(data.get("tried", ())),
    )


def _revive_parts(items: list[dict[str, Any]]) -> list[Part]:
    return [
        Part(
            item["first"],
            item["last"],
            item["digest"],
            _revive_uses(item["uses"]),
            {
                name: Method(m["first"], m["last"], m["digest"], _revive_uses(m["uses"]), m["static"])
                for name, m in item["methods"].items()
            },
            item["is_class"],
            item["compiled"],
        )
        for item in items
    ]


# -- kept between runs ------------------------------------------------------------------------------------------------


class FactsStore:
    """Facts of files by module name and blob, kept in a folder between runs.

    What is there is only trusted as far as it has the right form; a folder that cannot be written makes the next run
    slower, no more. New facts are written when the store is no longer used, at the latest when the process ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "facts" / _version()
        # Plain data: an object in it would keep the store alive until the process ends.
        self._fresh: dict[Path, dict[str, Any]] = {}
        weakref.finalize(self, _write, self._fresh)

    def facts(self, name: str, path: str, is_package: bool, blob: str, load: Load) -> Facts:
        file = self._folder / blob[:2] / f"{blob[2:]}-{name[-80:]}.json"
        known: dict[str, Any] | None = None
        try:
            known = json.loads(file.read_bytes())
            if not isinstance(known, dict) or known.pop("name", None) != name:
                known = None
        except (OSError, ValueError):
            pass
        fresh = self._fresh
        return Facts(
            name, path, is_package, load, known, lambda facts: fresh.__setitem__(file, {"name": name, **facts.known})
        )


def _write(fresh: dict[Path, dict[str, Any]]) -> None:
    try:
        for file, facts in fresh.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_name(f"{file.name}.{os.getpid()}.part")
            partial.write_text(json.dumps(facts, separators=(",", ":")))
            partial.replace(file)
    except OSError:
        pass  # they are found again next time
    fresh.clear()


@lru_cache(maxsize=1)
def _version() -> str:
    """Changes when the code that finds facts does, or the Python that parses."""
    digest = hashlib.sha256(sys.version.encode())
    for name in (
        "facts.py",
        "source.py",
        "effects.py",
        "mutations.py",
        "operators.py",
        "uses.py",
        "statements.py",
        "syntax.py",
    ):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:16]
