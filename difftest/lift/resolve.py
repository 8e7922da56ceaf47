"""Where the names that one definition uses lead, in one tree. Nothing here depends on which closure asks."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from difftest.errors import LiftError
from difftest.lift.effects import Mark
from difftest.lift.facts import Code, Facts, Method
from difftest.lift.mutations import DERIVING, MAKING, PLAIN_METACLASSES, Chain
from difftest.lift.operators import TORCH_NAMESPACES
from difftest.lift.source import Import
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIns
from difftest.lift.uses import ABOVE, MODULES, NAMED, Uses

Key = tuple[str, str]


@dataclass(frozen=True)
class Piece:
    """One definition in a closure.

    Attributes:
        module, qualname: where it is defined; a class without its methods has the class's name.
        path: the file inside the tree; first, last: line numbers, 1-based, inclusive.
        lazy: only reached through an import inside a function.
        digest: :func:`syntax_hash` of it.
    """

    module: str
    qualname: str
    path: str
    first: int
    last: int
    lazy: bool
    digest: str


class Beside(NamedTuple):
    """Files that code reads beside its own file.

    Attributes:
        folder: where they are, or below it.
        names: file or folder names that the code has as constants.
        modules: also Python files: it imports modules whose names it computes.
        named: it reads no others than those of these names.
    """

    folder: str
    names: frozenset[str]
    modules: bool
    named: bool


@dataclass(frozen=True)
class ImportEffects:
    """What importing one module changes.

    Attributes:
        changes: definition of the tree -> numbers of the statements that change it, in order.
        subclasses: class of the tree -> numbers of the statements that derive a class from it.
        shared: what changes things outside the tree, which both arms share: digest -> file, line and text.
        environment: of these, what changes the environment variables, which a program sets up in files that the code
            in question seldom knows.
    """

    changes: dict[Key, list[int]] = field(default_factory=dict)
    subclasses: dict[Key, list[int]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.changes or self.subclasses or self.shared or self.environment)


@dataclass
class Step:
    """Where the names that a piece of code uses lead.

    Attributes:
        needs: definitions, each with the one that leads to it.
        bare: of these, the ones that are used as they are, so that a class may be instantiated.
        escaped: modules that are used as objects, so that any attribute accessed anywhere may be theirs.
        whole: words by which code reads what a digest leaves out, see :class:`difftest.lift.uses.Uses`.
        beside: files that code reads beside its own.
        lazy: imports that run when the code does, as (import, chains read from what it binds).
        namespaces: where operators are used whose names are not known, as (module, namespace); the namespace is empty
            where it is not known either.
        failures: what makes the import of a module fail which code tries to import: digest -> file, line and text.
    """

    needs: list[tuple[Key, Key | None]] = field(default_factory=list)
    bare: list[Key] = field(default_factory=list)
    escaped: list[str] = field(default_factory=list)
    standins: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    missing: list[tuple[str, Key]] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)
    patterns: set[tuple[str, str]] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    beside: list[Beside] = field(default_factory=list)
    lazy: list[tuple[Import, tuple[Chain, ...]]] = field(default_factory=list)
    namespaces: set[tuple[str, str]] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)


_NOT_READ = (".so", ".pyd", ".dylib", ".pyc", ".pyi", ".md")


def _parts_of(path: str, folder: str) -> set[str]:
    """What code may call a file below a folder: its name, a folder's on the way, the way itself."""
    below = path.removeprefix(folder).lstrip("/")
    parts = below.split("/")
    return {*parts, *("/".join(parts[n:]) for n in range(len(parts)))}


def _around(module: str) -> list[str]:
    """The packages around a module, the inmost first."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


@dataclass
class Definition:
    """One definition with what it leads to; a class with its methods apart."""

    piece: Piece | None
    lazy_piece: Piece | None
    step: Step
    methods: dict[str, list[tuple[Definition, bool]]] = field(default_factory=dict)
    compiled: bool = False
    is_class: bool = False


class Resolver:
    """Resolves what code refers to in one tree. Nothing here depends on which closure asks, so it is remembered."""

    def __init__(self, sources: Sources, standins: StandIns) -> None:
        self.sources = sources
        self.standins = standins
        self._definitions: dict[Key, Definition] = {}
        self._attributes: dict[tuple[str, Chain], Step] = {}
        self._lazy: dict[Key, Step] = {}
        self._imported_with: dict[str, tuple[str, ...]] = {}
        self._effects: dict[str, ImportEffects] = {}
        self._beside: dict[Beside, tuple[str, ...]] = {}
        self._imported_by: dict[str, tuple[str, ...]] = {}
        self._operators: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self.closures: dict[tuple[str, ...], Any] = {}  # see :func:`difftest.lift.closure.find_closure`

    def definition(self, key: Key) -> Definition:
        """What binds a name of a module; `table['x']` is an entry of a table, `<operator a.x>` what registers it.

        Raises:
            LiftError: a file that it leads to cannot be parsed.
        """
        if key not in self._definitions:
            self._definitions[key] = self._define(key)
        return self._definitions[key]

    def _define(self, key: Key) -> Definition:
        facts = self.sources.facts(key[0])
        assert facts is not None
        qualname = key[1]
        if qualname.startswith("<operator "):
            namespace, _, operator = qualname[len("<operator ") : -1].partition(".")
            parts = facts.registrations(namespace, operator)
        elif qualname.endswith("]"):
            table, _, entry = qualname.partition("[")
            parts = [part for name, part in facts.entries(entry[1:-2]) if name == table]
        else:
            parts = facts.parts(qualname)
        step = Step()
        found = Definition(None, None, step)
        for part in parts:
            self._use(step, facts, part.uses, key)
            found.compiled = found.compiled or part.compiled
            found.is_class = found.is_class or part.is_class
            for name, method in part.methods.items():
                found.methods.setdefault(name, []).append((self._method(facts, qualname, name, method), method.static))
        if found.is_class and not (facts.member(qualname).is_class and len(parts) == 1):
            step.bare.append(key)  # what holds classes may make instances of them
        if parts:
            found.piece = _piece(facts, qualname, parts)
            found.lazy_piece = replace(found.piece, lazy=True)
        return found

    def _method(self, facts: Facts, owner: str, name: str, method: Method) -> Definition:
        qualname = f"{owner}.{name}"
        step = Step()
        self._use(step, facts, method.uses, (facts.name, qualname))
        piece = _piece(facts, qualname, [method])
        return Definition(piece, replace(piece, lazy=True), step)

    def lazy(self, key: Key, definition: Definition) -> Step:
        """Where the imports inside a definition's functions lead."""
        if key not in self._lazy:
            step = self._lazy[key] = Step()
            for item, chains in definition.step.lazy:
                self._follow(step, item, chains, key, lazy=True)
        return self._lazy[key]

    def attribute(self, module: str, chain: Chain) -> Step:
        """Where `chain` read from a module object leads."""
        key = (module, chain)
        if key not in self._attributes:
            step = self._attributes[key] = Step()
            self._attribute_of(step, module, chain, (module, ".".join(chain)))
        return self._attributes[key]

    # -- names ----------------------------------------------------------------------------------------------------

    def _use(self, step: Step, facts: Facts, uses: Uses, key: Key) -> None:
        step.attributes |= uses.attributes
        step.patterns |= uses.patterns
        step.whole |= uses.whole
        if uses.files:
            around = facts.name.partition(".")[0] if ABOVE in uses.files else facts.name
            if MODULES in uses.files:
                begins = [text.rpartition(".")[0] for text in uses.strings if "." in text]
                around = next((name for name in begins if name and self.sources.facts(name)), around)
            path = (self.sources.facts(around) or facts).path
            folder = path.rpartition("/")[0] if path.endswith(".py") else path  # a namespace package has no file
            step.beside.append(Beside(folder, frozenset(uses.strings), MODULES in uses.files, NAMED in uses.files))
        names = sorted(self.sources.names(facts.name) if uses.namespace else uses.names)
        for name in names:
            if key[1] == "__getattr__" and name in facts.tables:
                continue  # only the entries that are asked for count
            self.name(step, facts.name, name, uses.chains.get(name, set()), key)
        own = key[1].partition(".")[0]
        for item in uses.imports:
            if item.bound == own and item in facts.imports_of(own):
                continue  # the import statement that binds the name is followed by its users
            chains = uses.chains.get(item.bound, set()) | uses.local_chains.get(item.bound, set())
            step.lazy.append((item, tuple(sorted(chains)) or ((),)))
        for text in sorted(uses.references):
            step.lazy += [(item, ((),)) for item in self._reference(facts, text)]
        for module in sorted(uses.tried):
            step.failures |= self.failures(module)
        for namespace, operator in sorted(uses.ops):
            if not operator:
                step.namespaces.add((facts.name, namespace))
                continue
            for holder in self.registering(facts.name, namespace, operator):
                step.needs.append(((holder, f"<operator {namespace}.{operator}>"), key))

    def name(self, step: Step, module: str, name: str, chains: Iterable[Chain], via: Key | None) -> None:
        """A global name used in `module`: a definition, an import, a builtin, or nothing known."""
        if self._standin(step, module, name):
            return
        provider = self.sources.provider(module, name)
        if provider is None:
            facts = self.sources.facts(module)
            for star in facts.stars if facts else ():
                if not self.sources.owns(star.module):
                    step.external.add(star.module.partition(".")[0])
            return
        if provider.name != module and self._standin(step, provider.name, name):
            return
        key = (provider.name, name)
        step.needs.append((key, via))
        if (beneath := self.sources.beneath(provider.name, name)) is not None:
            self.name(step, beneath, name, chains, key)
        for item in provider.imports_of(name):
            self._follow(step, item, chains, key)
        if () in chains or _may_make(provider, name, chains):
            step.bare.append(key)

    def _follow(self, step: Step, item: Import, chains: Iterable[Chain], via: Key, lazy: bool = False) -> None:
        """What an import brings, as far as the chains read from it say."""
        if not self.sources.owns(item.module):
            step.external.add(item.module.partition(".")[0])
            return
        if item.loads and not lazy and self.sources.facts(item.loads) is None and not self._standin(step, item.loads):
            step.missing.append((f"module {item.loads}", via))
        if item.attribute is not None and not chains:
            self._attribute_of(step, item.module, (item.attribute,), via)
        for chain in chains:
            self._attribute_of(step, item.module, chain if item.attribute is None else (item.attribute, *chain), via)

    def _attribute_of(self, step: Step, name: str, chain: Chain, via: Key) -> None:
        """`chain` read from the module object `name`."""
        while chain:
            if self._standin(step, name, chain[0]):
                return
            facts = self.sources.facts(name)
            if facts is None:
                step.missing.append((f"module {name}", via))
                return
            # `from . import h` in a package binds its own submodule: there the name means the submodule.
            own = via == (name, chain[0]) and self.sources.facts(f"{name}.{chain[0]}") is not None
            if not own and self.sources.provider(name, chain[0]) is not None:
                self.name(step, name, chain[0], [chain[1:]], via)
                return
            if self.sources.facts(f"{name}.{chain[0]}") is None and not self._standin(step, f"{name}.{chain[0]}"):
                if "__getattr__" in facts.bindings:
                    for table, _ in facts.entries(chain[0]):
                        step.needs.append(((name, f"{table}[{chain[0]!r}]"), via))
                    step.needs.append(((name, "__getattr__"), via))
                elif chain[0] == "__dict__":
                    step.escaped.append(name)  # any of its names may be looked up
                elif not (chain[0].startswith("__") and chain[0].endswith("__")):
                    step.missing.append((f"{name}:{chain[0]}", via))
                return
            name, chain = f"{name}.{chain[0]}", chain[1:]
        if self._standin(step, name):
            return
        if self.sources.facts(name) is None:
            step.missing.append((f"module {name}", via))
        else:
            step.escaped.append(name)

    def _reference(self, facts: Facts, text: str) -> list[Import]:
        """What a string names: a module of the tree, or a definition in one."""
        module, _, attribute = text.partition(":")
        if module.startswith("."):
            package = facts.name if facts.is_package else facts.name.rpartition(".")[0]
            level = len(module) - len(module.lstrip("."))
            parts = package.split(".")
            parts = parts[: len(parts) - (level - 1)]
            module = ".".join([*parts, module.lstrip(".")] if module.lstrip(".") else parts)
        if not module or not all(part.isidentifier() for part in module.split(".")) or not self.sources.owns(module):
            return []
        if self.sources.facts(module) is not None or self.standins.key_for(module, None):
            return [Import("", module, attribute or None)] if "." in module or attribute else []
        parent, _, last = module.rpartition(".")
        if parent and not attribute and self.sources.provider(parent, last) is not None:
            return [Import("", parent, last)]
        return []

    def registering(self, module: str, namespace: str, operator: str) -> tuple[str, ...]:
        """Modules that register a custom operator which code of `module` names: of those that it imports, directly or
        not, all that are seen to do so, else the first that has the name in a statement which may."""
        key = (module, namespace, operator)
        if key not in self._operators:
            files = self._registering_files(module, namespace)
            texts = {(namespace, operator), ("", operator), ("", "")}
            seen = [facts.name for facts in files if not texts.isdisjoint(facts.operators)]
            may = (facts.name for facts in files if facts.registrations(namespace, operator))
            self._operators[key] = tuple(seen or itertools.islice(may, 1))
        return self._operators[key]

    def operators_of(self, module: str, namespace: str) -> list[tuple[Key, str]]:
        """(what registers it, name) of the operators of a namespace, or of all, that code of `module` may use."""
        files = self._registering_files(module, namespace)
        spaces = {namespace}
        if not namespace or self.sources.owns(namespace) or any(s == namespace for f in files for s, _ in f.operators):
            spaces.add("")  # a file that does not say its namespace may mean this one
        return [
            ((facts.name, f"<operator {space or namespace}.{operator}>"), operator)
            for facts in files
            for space, operator in facts.operators
            if space in spaces or not namespace
        ]

    def _registering_files(self, module: str, namespace: str) -> list[Facts]:
        """Files that may register operators of a namespace that code of `module` uses."""
        compiled = f"torch.ops.{namespace}" in self.standins.items
        names = () if namespace in TORCH_NAMESPACES else (module,) if compiled else self.imported_by(module)
        return [facts for name in names if (facts := self.sources.facts(name)) is not None]

    def imported_by(self, module: str) -> tuple[str, ...]:
        """Modules of the tree that are loaded when the functions of `module` have run: itself, what it imports,
        the packages around these, and what they import in turn; the nearest first."""
        if module not in self._imported_by:
            facts = self.sources.facts(module)
            found = {module: None}
            level = [*_around(module), *facts.imported(), *facts.imported_anywhere()] if facts is not None else []
            while level:
                names = dict.fromkeys(part for name in level for part in (name, *_around(name)))
                level = []
                for name in names:
                    if name in found or not self.sources.owns(name) or self.standins.key_for(name, None):
                        continue
                    facts = self.sources.facts(name)
                    if facts is not None:
                        with contextlib.suppress(LiftError):  # a file that cannot be parsed registers nothing
                            level += facts.imported()
                            found[name] = None
            self._imported_by[module] = tuple(found)
        return self._imported_by[module]

    def files_beside(self, beside: Beside) -> tuple[str, ...]:
        """The files that code reads beside its own."""
        if beside not in self._beside:
            paths = [p for p in self.sources.paths(beside.folder) if not p.endswith(_NOT_READ)]
            if not beside.modules:
                paths = [p for p in paths if not p.endswith(".py")]
                if beside.named:
                    paths = [p for p in paths if not beside.names.isdisjoint(_parts_of(p, beside.folder))]
            self._beside[beside] = tuple(paths)
        return self._beside[beside]

    # -- what importing a module does -----------------------------------------------------------------------------

    def imported_with(self, module: str) -> tuple[str, ...]:
        """Modules with effects that run when `module` is imported: itself, the packages around it, what these import,
        and what is imported for its effect only, again and again."""
        if module not in self._imported_with:
            around = [module, *_around(module)]
            found: dict[str, None] = {}
            todo = around[::-1]
            for name in around:
                facts = self.sources.facts(name)
                todo += facts.imported() if facts is not None else ()
            while todo:
                name = todo.pop()
                if name in found or not self.sources.owns(name) or self.standins.key_for(name, None):
                    continue
                parent = self.sources.facts(name.rpartition(".")[0])
                facts = self.sources.facts(name) if parent is None or parent.is_package else None
                if facts is not None:
                    found[name] = None
                    todo += facts.imported_for_effect()
            self._imported_with[module] = tuple(name for name in found if self.effects(name))
        return self._imported_with[module]

    def failures(self, module: str) -> dict[str, str]:
        """What makes importing a module fail, as far as its own file says: it raises, or imports what is not there."""
        facts = self.sources.facts(module) if self.sources.owns(module) else None
        if facts is None or self.standins.key_for(module, None):
            return {}
        return {
            digest: text
            for digest, text, modules in facts.may_fail
            if not modules or not all(map(self._is_there, modules))
        }

    def _is_there(self, module: str) -> bool:
        if self.sources.owns(module):
            replaced = self.standins.key_for(module, None) is not None or self.standins.is_built(module)
            return replaced or self.sources.facts(module) is not None
        return _is_installed(module.partition(".")[0])

    def effects(self, module: str) -> ImportEffects:
        """What importing a module changes besides its own names."""
        if module not in self._effects:
            found = self._effects[module] = ImportEffects()
            facts = self.sources.facts(module)
            for effect in facts.effects if facts is not None else ():
                for mark in effect.marks:
                    if not self.sources.owns(mark.module):
                        if mark.sets:
                            told = found.environment if mark.module.partition(".")[0] == "os" else found.shared
                            told[effect.digest] = f"{facts.path}:{effect.first} {effect.text}"  # type: ignore[union-attr]
                        continue
                    keys = self._changed_by(mark)
                    if mark.how == "base":
                        ancestors = [ancestor for key in keys for ancestor in self._line(key)]
                        _number(found.subclasses, ancestors, effect.number)
                        keys = self._told(ancestors)
                    _number(found.changes, keys, effect.number)
        return self._effects[module]

    def _told(self, line: Iterable[Key]) -> list[Key]:
        """What deriving a class from one with these ancestors changes, by what they do when they are told."""
        found: list[Key] = []
        for module, name in line:
            found += self._called(module, f"{name}.__init_subclass__")
            if any(not PLAIN_METACLASSES.isdisjoint(self._bases(key)) for key in self._line((module, name))):
                for method in DERIVING:
                    found += self._called(module, f"{name}.{method}")
        return list(dict.fromkeys(found))

    def _bases(self, key: Key) -> list[str]:
        facts = self.sources.facts(key[0])
        return facts.member(key[1]).bases if facts is not None else []

    def _called(self, module: str, function: str, depth: int = 0) -> list[Key]:
        """The definitions that a call of a function of the tree changes."""
        facts = self.sources.facts(module)
        marks = facts.changed_by(function) if facts is not None and depth < 8 else ()
        return [key for mark in marks if mark.how != "base" for key in self._changed_by(mark, depth + 1)]

    def _line(self, key: Key, depth: int = 0) -> list[Key]:
        """A class and those of the tree that it is derived from, its metaclass included."""
        facts = self.sources.facts(key[0])
        found = [key]
        for base in facts.member(key[1]).bases if facts is not None and depth < 10 else ():
            located = None if "." in base else self.sources.locate(f"{key[0]}:{base}")
            if located is not None and located[2] is None and (located[0], located[1]) != key:
                found += self._line((located[0], located[1]), depth + 1)
        return list(dict.fromkeys(found))

    def _changed_by(self, mark: Mark, depth: int = 0) -> list[Key]:
        """The definitions that a statement with this mark changes."""
        name, chain = mark.module, mark.chain
        for _ in range(20):
            if not chain or self.standins.key_for(name, chain[0]):
                return []
            facts = self.sources.facts(name)
            if facts is None:
                return []
            submodule = self.sources.facts(f"{name}.{chain[0]}") is not None
            provider = self.sources.provider(name, chain[0])
            imports = [i for i in provider.imports_of(chain[0]) if self.sources.owns(i.module)] if provider else []
            own = [i for i in imports if submodule and f"{i.module}.{i.attribute}" == f"{name}.{chain[0]}"]
            if submodule and (provider is None or own):
                name, chain = f"{name}.{chain[0]}", chain[1:]
            elif mark.how == "set" and len(chain) == 1:
                return [(name, chain[0])]
            elif provider is None:
                return []
            elif imports and not provider.member(chain[0]).defined:
                item = imports[0]
                name = item.module
                chain = chain[1:] if item.attribute is None else (item.attribute, *chain[1:])
            else:
                return self._changed_object(mark, provider, chain, depth)
        return []

    def _changed_object(self, mark: Mark, provider: Facts, chain: Chain, depth: int) -> list[Key]:
        key = (provider.name, chain[0])
        what = provider.member(chain[0])
        if mark.how in ("give", "change") and what.constant:
            return []
        if mark.how == "give":
            return [] if what.defined else [key]
        if mark.how != "call" or not what.defined:
            return [key]
        if not what.is_class:
            return [key] if len(chain) > 1 else self._called(*key, depth)
        line = self._line(key)
        if len(chain) > 1:
            return [key] + [k for module, name in line for k in self._called(module, f"{name}.{chain[1]}", depth)]
        return [
            k for module, name in line for method in MAKING for k in self._called(module, f"{name}.{method}", depth)
        ]

    def effect_on(self, module: str, key: Key, numbers: Iterable[int]) -> Definition:
        """The statements of `module` that change a definition when it is imported."""
        known = (module, f"<changes {key[0]}:{key[1]}>")
        if known not in self._definitions:
            facts = self.sources.facts(module)
            assert facts is not None
            parts = [facts.effect(number) for number in numbers]
            step = Step()
            for part in parts:
                self._use(step, facts, part.uses, known)
            piece = _piece(facts, known[1], parts)
            self._definitions[known] = Definition(piece, replace(piece, lazy=True), step)
        return self._definitions[known]

    def _standin(self, step: Step, module: str, name: str | None = None) -> bool:
        key = self.standins.key_for(module, name)
        if key is None:
            return False
        step.standins.add(key)
        return True


@functools.cache
def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # it is loaded, but not by an import
        return True


def resolver_of(sources: Sources, standins: StandIns) -> Resolver:
    """The resolver for a tree and these stand-ins; the same one each time."""
    key = id(standins)
    if key not in sources.resolvers:
        sources.resolvers[key] = Resolver(sources, standins)  # which holds the stand-ins, so that the id stays theirs
    found: Resolver = sources.resolvers[key]
    return found


def _number(table: dict[Key, list[int]], keys: Iterable[Key], number: int) -> None:
    """Note that a statement changes definitions."""
    for key in keys:
        numbers = table.setdefault(key, [])
        if number not in numbers:
            numbers.append(number)


def _may_make(facts: Facts, name: str, chains: Iterable[Chain]) -> bool:
    """Whether reading attributes of a class may make an instance: what is none of its own methods may be a class method
    that it inherits, or a member of an Enum, which are made with it."""
    what = facts.member(name)
    if what.keeps:
        return True  # it may hold the classes that are derived from it
    if not what.is_class or not what.bases:
        return False
    own = {method for part in facts.parts(name) for method in part.methods}
    return any(chain and chain[0] not in own for chain in chains)


def _piece(facts: Facts, qualname: str, parts: Iterable[Code]) -> Piece:
    parts = list(parts)
    digest = parts[0].digest
    for part in parts[1:]:
        digest = hashlib.sha256((digest + part.digest).encode()).hexdigest()
    first, last = min(p.first for p in parts), max(p.last for p in parts)
    return Piece(facts.name, qualname, facts.path, first, last, False, digest)
