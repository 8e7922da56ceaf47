"""The definitions that a symbol reaches inside its tree, found without running anything.

The closure says what a target's verdict rests on: its digest decides `code: same`, its pieces are what
`difftest extract` prints. Methods are reached by name: a class that is reached keeps the methods whose names are
accessed anywhere in the closure, so the closure may be larger than what runs, never smaller. Imports inside
functions are followed last and marked lazy; the loader lifts them only when they run.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from difftest.errors import LiftError
from difftest.lift.facts import Code, Facts, FactsStore, Method
from difftest.lift.source import Chain, Import, SourceModule, Uses
from difftest.lift.standins import StandIns

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


@dataclass
class Closure:
    """What a set of symbols reaches.

    Attributes:
        pieces: by (module, qualname), in the order found.
        standins: keys of the stand-ins that take part.
        external: top-level packages outside the tree that are imported.
        missing: in-tree names that do not exist, with the chain of names that led there.
        compiled: functions decorated with torch.compile.
        broken: files that cannot be parsed, reached only through imports inside functions; path and content id.
    """

    roots: tuple[str, ...]
    pieces: dict[Key, Piece] = field(default_factory=dict)
    standins: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    missing: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    compiled: set[str] = field(default_factory=set)
    broken: set[tuple[str, str]] = field(default_factory=set)
    _digest: str = ""

    @property
    def digest(self) -> str:
        """Equal for two closures when the code that they hold is the same as syntax."""
        if not self._digest:
            lines = [f"{module}:{qualname}={piece.digest}" for (module, qualname), piece in self.pieces.items()]
            lines += [f"standin {name}" for name in self.standins]
            lines += [f"broken {path} {blob}" for path, blob in self.broken]
            lines += [f"missing {what}" for what, _ in self.missing]
            self._digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        return self._digest

    @property
    def lines(self) -> int:
        """Lines of the pieces that are lifted at once, overlaps counted once."""
        return len({(p.path, n) for p in self.pieces.values() if not p.lazy for n in range(p.first, p.last + 1)})

    @property
    def modules(self) -> list[str]:
        return sorted({p.module for p in self.pieces.values() if not p.lazy})

    def reaches(self, symbol: str) -> bool:
        """Whether `module:qualname`, a class or a method of one, is among the pieces."""
        module, _, qualname = symbol.partition(":")
        return (module, qualname) in self.pieces or any(
            m == module and q.startswith(qualname + ".") for m, q in self.pieces
        )


class Sources:
    """The modules of one tree, parsed on demand. Facts of files that two trees share are found once.

    Args:
        find: dotted name -> (path or None for a namespace package, is_package), or None when the tree lacks it.
        read: path -> bytes.
        blob: path -> content id; facts of modules with equal ids and names are shared through `shared`.
        store: keeps facts between runs.
    """

    def __init__(
        self,
        find: Callable[[str], tuple[str | None, bool] | None],
        read: Callable[[str], bytes | None],
        blob: Callable[[str], str | None] | None = None,
        shared: dict[tuple[str, str], Facts] | None = None,
        store: FactsStore | None = None,
    ) -> None:
        self._find = find
        self._read = read
        self._blob = blob
        self._shared = shared if shared is not None else {}
        self._store = store
        self._facts: dict[str, Facts | None] = {}
        self._providers: dict[tuple[str, str], Facts | None] = {}
        self._resolvers: dict[int, Resolver] = {}

    def module(self, name: str) -> SourceModule | None:
        """The parsed module, or None when the tree has no such module.

        Raises:
            LiftError: the file cannot be parsed.
        """
        facts = self.facts(name)
        return None if facts is None else facts.source

    def facts(self, name: str) -> Facts | None:
        """What is known of a module, or None when the tree has no such module. Its file may not be parsed yet."""
        if name not in self._facts:
            self._facts[name] = self._load(name)
        return self._facts[name]

    def _load(self, name: str) -> Facts | None:
        found = self._find(name) if name else None
        if found is None:
            return None
        path, is_package = found
        if path is None:
            folder = name.replace(".", "/")
            return Facts(name, folder, True, lambda: SourceModule(name, folder, b"", True))
        blob = self._blob(path) if self._blob else None
        if blob is None:
            data = self._read(path)
            if data is None:
                return None
            return Facts(name, path, is_package, lambda: SourceModule(name, path, data, is_package))

        def load() -> SourceModule:
            data = self._read(path)
            if data is None:
                raise LiftError(f"{path} cannot be read any more")
            return SourceModule(name, path, data, is_package)

        facts = self._shared.get((name, blob))
        if facts is not None and facts.path == path:
            facts.load_from(load)
            return facts
        facts = (
            self._store.facts(name, path, is_package, blob, load)
            if self._store is not None
            else Facts(name, path, is_package, load)
        )
        self._shared[name, blob] = facts
        return facts

    def blob(self, path: str) -> str:
        """Content id of a file."""
        found = self._blob(path) if self._blob else None
        return found or hashlib.sha256(self._read(path) or b"").hexdigest()

    def owns(self, name: str) -> bool:
        """Whether a dotted name belongs to this tree, judged by its top-level package."""
        return self.facts(name.partition(".")[0]) is not None

    def provider(self, module: str, name: str) -> Facts | None:
        """The module that binds `name` for `module`: itself, or one it star-imports from."""
        key = (module, name)
        if key not in self._providers:
            self._providers[key] = self._provider(module, name, frozenset())
        return self._providers[key]

    def _provider(self, module: str, name: str, seen: frozenset[str]) -> Facts | None:
        facts = self.facts(module)
        if facts is None:
            return None
        own = facts.last_binding(name)
        for star in reversed(facts.stars):
            if own > star.index:
                break
            target = self.facts(star.module) if star.module not in seen and self.owns(star.module) else None
            if target is not None and target.exports(name):
                found = self._provider(star.module, name, seen | {module})
                if found is not None:
                    return found
        return facts if own >= 0 else None

    def resolver(self, standins: StandIns) -> Resolver:
        """The resolver for this tree and these stand-ins; the same one each time."""
        key = id(standins)
        if key not in self._resolvers:
            self._resolvers[key] = Resolver(self, standins)  # which holds the stand-ins, so that the id stays theirs
        return self._resolvers[key]

    # -- symbols --------------------------------------------------------------------------------------------------

    def defines(self, symbol: str) -> bool:
        """Whether the tree binds `module:qualname` (following re-exports); never raises."""
        try:
            return self.locate(symbol) is not None
        except LiftError:
            return False

    def locate(self, symbol: str) -> tuple[str, str, str | None] | None:
        """(module, top-level name, member or None) where a symbol is really defined, through re-exports.

        Raises:
            LiftError: a file on the way cannot be parsed.
        """
        name, _, qualname = symbol.partition(":")
        top, _, member = qualname.partition(".")
        for _ in range(20):
            provider = self.provider(name, top)
            if provider is None:
                return None
            what = provider.member(top)
            imports = [i for i in provider.imports_of(top) if self.owns(i.module)]
            if imports and not what.defined:
                item = imports[0]
                if item.attribute is None:
                    return None
                name, top = item.module, item.attribute
            elif member and what.alias and not what.defined and self.provider(provider.name, what.alias):
                name, top = provider.name, what.alias
            elif member and what.is_class:
                found = self._has_member(provider, top, member.split("."))
                return (provider.name, top, member) if found else None
            else:
                return provider.name, top, member or None
        return None

    def _has_member(self, facts: Facts, top: str, member: list[str], depth: int = 0) -> bool:
        """Whether a class, or a base of it inside the tree, defines the member."""
        what = facts.member(top)
        names = what.names
        for number, part in enumerate(member):
            if part not in names:
                break
            inner = names[part]
            if number == len(member) - 1 or inner is None:
                return True
            names = inner["names"]
        if depth > 10:
            return False
        for base in what.bases:
            first, _, rest = base.partition(".")
            symbol = f"{facts.name}:{first}"
            if rest:  # `module.Base`
                modules = [i.loads or i.module for i in facts.imports_of(first) if i.attribute is None]
                modules += [f"{i.module}.{i.attribute}" for i in facts.imports_of(first) if i.attribute]
                symbol = next((f"{m}:{rest}" for m in modules if self.provider(m, rest)), symbol)
            found = self.locate(symbol)
            owner = self.facts(found[0]) if found is not None and found[2] is None else None
            if found is not None and owner is not None and self._has_member(owner, found[1], member, depth + 1):
                return True
        return False


# -- one definition ---------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """Where the names that a piece of code uses lead.

    Attributes:
        needs: definitions, each with the one that leads to it.
        bare: of these, the ones that are used as they are, so that a class may be instantiated.
        escaped: modules that are used as objects, so that any attribute accessed anywhere may be theirs.
        lazy: imports that run when the code does, as (import, chains read from what it binds).
    """

    needs: list[tuple[Key, Key | None]] = field(default_factory=list)
    bare: list[Key] = field(default_factory=list)
    escaped: list[str] = field(default_factory=list)
    standins: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    missing: list[tuple[str, Key]] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)
    patterns: set[tuple[str, str]] = field(default_factory=set)
    lazy: list[tuple[Import, tuple[Chain, ...]]] = field(default_factory=list)


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
        self._closures: dict[tuple[str, ...], Closure] = {}

    def definition(self, key: Key) -> Definition:
        """What binds a name of a module; `table['x']` is an entry of a table, `<operator x>` what registers it.

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
            parts = facts.registrations(qualname[len("<operator ") : -1])
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
        names = sorted(facts.binds) if uses.namespace else sorted(uses.names)
        for name in names:
            if key[1] == "__getattr__" and name in facts.tables:
                continue  # only the entries that are asked for count
            self._name(step, facts.name, name, uses.chains.get(name, set()), key)
        own = key[1].partition(".")[0]
        for item in uses.imports:
            if item.bound == own and item in facts.imports_of(own):
                continue  # the import statement that binds the name is followed by its users
            chains = uses.chains.get(item.bound, set()) | uses.local_chains.get(item.bound, set())
            step.lazy.append((item, tuple(sorted(chains)) or ((),)))
        for text in sorted(uses.references):
            step.lazy += [(item, ((),)) for item in self._reference(facts, text)]
        for namespace, operator in sorted(uses.ops):
            self._operator(step, facts, namespace, operator, key)

    def _name(self, step: Step, module: str, name: str, chains: Iterable[Chain], via: Key | None) -> None:
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
        for item in provider.imports_of(name):
            self._follow(step, item, chains, key)
        if () in chains:
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
                self._name(step, name, chain[0], [chain[1:]], via)
                return
            if self.sources.facts(f"{name}.{chain[0]}") is None and not self._standin(step, f"{name}.{chain[0]}"):
                if "__getattr__" in facts.binds:
                    for table, _ in facts.entries(chain[0]):
                        step.needs.append(((name, f"{table}[{chain[0]!r}]"), via))
                    step.needs.append(((name, "__getattr__"), via))
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

    def _operator(self, step: Step, facts: Facts, namespace: str, operator: str, via: Key) -> None:
        """What registers a custom operator: in the same file, else in one that it imports, or that these import."""
        seen = {facts.name}
        level = [facts]
        for _ in range(3):
            holders = [f for f in level if f.registrations(operator)]
            for holder in holders:
                step.needs.append(((holder.name, f"<operator {operator}>"), via))
            if holders or not self.sources.owns(namespace):
                return
            names = [n for f in level for n in f.imported() if n not in seen and self.sources.owns(n)]
            seen.update(names)
            level = [
                f for n in dict.fromkeys(names) if not self.standins.key_for(n, None) if (f := self.sources.facts(n))
            ]

    def _standin(self, step: Step, module: str, name: str | None = None) -> bool:
        key = self.standins.key_for(module, name)
        if key is None:
            return False
        step.standins.add(key)
        return True

    # -- closures -------------------------------------------------------------------------------------------------

    def closure(self, symbols: Iterable[str]) -> Closure:
        """See :func:`find_closure`."""
        roots = tuple(symbols)
        if roots not in self._closures:
            self._closures[roots] = _Walk(self, roots).run()
        return self._closures[roots]


def _piece(facts: Facts, qualname: str, parts: Iterable[Code]) -> Piece:
    parts = list(parts)
    digest = parts[0].digest
    for part in parts[1:]:
        digest = hashlib.sha256((digest + part.digest).encode()).hexdigest()
    first, last = min(p.first for p in parts), max(p.last for p in parts)
    return Piece(facts.name, qualname, facts.path, first, last, False, digest)


# -- the walk ---------------------------------------------------------------------------------------------------------

# What a base class outside the tree calls by name: torch.nn.Module, Enum, Thread, JSONEncoder, Handler.
_CALLED_BY_BASES = frozenset({"forward", "extra_repr", "_missing_", "run", "default", "emit", "format", "filter"})


@dataclass
class _Class:
    key: Key
    pending: dict[str, list[tuple[Definition, bool]]]
    instantiated: bool = False


class _Walk:
    """Collects one closure."""

    def __init__(self, resolver: Resolver, roots: tuple[str, ...]) -> None:
        self.resolver = resolver
        self.closure = Closure(roots)
        self.parents: dict[Key, Key | None] = {}
        self.queue: deque[Key] = deque()
        self.done: set[Key] = set()
        self.lazy = False
        self.lazy_steps: list[tuple[Key, Definition]] = []
        self.attributes: set[str] = set()
        self.patterns: set[tuple[str, str]] = set()
        self.classes: dict[Key, _Class] = {}
        self.bare: set[Key] = set()
        self.escaped: dict[str, set[str]] = {}

    def run(self) -> Closure:
        sources = self.resolver.sources
        current: Key | None = None
        try:
            for symbol in self.closure.roots:
                located = sources.locate(symbol)
                if located is None:
                    raise LiftError(f"no symbol {symbol} in this tree")
                module, top, member = located
                current = (module, top)
                if member:
                    self.attributes.update(member.split("."))
                # what stands between the symbol and its definition, `from .x import f`, takes part too
                name, _, qualname = symbol.partition(":")
                for key in {(name, qualname.partition(".")[0]): None, current: None}:
                    step = Step()
                    self.resolver._name(step, *key, [tuple(member.split(".")) if member else ()], None)
                    self.take(step)
                self.parents[current] = None
            while True:
                while self.queue:
                    current = self.queue.popleft()
                    self.define(current)
                if self.reach_methods() or self.reach_attributes():
                    continue
                if not self.lazy_steps:
                    return self.closure
                self.lazy = True
                pending, self.lazy_steps = self.lazy_steps, []
                for current, definition in pending:
                    self.guarded(current, lambda k=current, d=definition: self.take(self.resolver.lazy(k, d)))  # type: ignore[misc]
        except LiftError as error:
            if not error.chain and current is not None:
                raise LiftError(str(error), self.chain(current)) from None
            raise

    def guarded(self, key: Key, do: Callable[[], None]) -> None:
        """Once only what imports inside functions bring is left, a file that cannot be parsed does not matter yet."""
        try:
            do()
        except LiftError as error:
            facts = self.resolver.sources.facts(key[0])
            path = str(error).partition(" ")[0]
            if not self.lazy or facts is None:
                raise
            self.closure.broken.add((path, self.resolver.sources.blob(path)))

    def define(self, key: Key) -> None:
        self.guarded(key, lambda: self._define(key))

    def _define(self, key: Key) -> None:
        definition = self.resolver.definition(key)
        if definition.compiled:
            self.closure.compiled.add(f"{key[0]}:{key[1]}")
        if definition.is_class:
            self.classes[key] = _Class(key, dict(definition.methods), key in self.bare)
        self.add(key, definition)

    def add(self, key: Key, definition: Definition) -> None:
        piece = definition.lazy_piece if self.lazy else definition.piece
        if piece is not None:
            self.closure.pieces[key] = piece
        self.take(definition.step)
        if definition.step.lazy:
            self.lazy_steps.append((key, definition))

    def take(self, step: Step) -> None:
        for key, via in step.needs:
            if key not in self.done:
                self.done.add(key)
                self.parents[key] = via
                self.queue.append(key)
        for key in step.bare:
            if key not in self.bare:
                self.bare.add(key)
                if key in self.classes:
                    self.classes[key].instantiated = True
        for name in step.escaped:
            self.escaped.setdefault(name, set())
        self.attributes |= step.attributes
        self.patterns |= step.patterns
        self.closure.standins |= step.standins
        self.closure.external |= step.external
        if not self.lazy:
            known = {what for what, _ in self.closure.missing}
            self.closure.missing += [(what, self.chain(via)) for what, via in step.missing if what not in known]

    def chain(self, key: Key | None) -> tuple[str, ...]:
        names: list[str] = []
        while key is not None and len(names) < 12:
            names.append(f"{key[0]}:{key[1]}")
            key = self.parents.get(key)
        return tuple(reversed(names))

    # -- what is reached by name ----------------------------------------------------------------------------------

    def accessed(self, name: str) -> bool:
        return name in self.attributes or any(name.startswith(a) and name.endswith(b) for a, b in self.patterns)

    def reach_methods(self) -> bool:
        """Add methods of reached classes whose names are accessed somewhere; True when any was added."""
        found = False
        for cls in list(self.classes.values()):
            for name in [n for n in cls.pending if self.is_reached(cls, n)]:
                found = True
                for definition, static in cls.pending.pop(name):
                    key = (cls.key[0], f"{cls.key[1]}.{name}")
                    self.parents[key] = cls.key
                    self.add(key, definition)
                    cls.instantiated = cls.instantiated or not static
        return found

    def is_reached(self, cls: _Class, name: str) -> bool:
        special = (name.startswith("__") and name.endswith("__")) or name in _CALLED_BY_BASES
        return (special and cls.instantiated) or self.accessed(name)

    def reach_attributes(self) -> bool:
        """Add what is accessed by name somewhere and may be an attribute of a module used as an object."""
        found = False
        sources = self.resolver.sources
        for module, seen in list(self.escaped.items()):
            facts = sources.facts(module)
            if facts is None:
                continue
            names = {name for name in facts.binds if name not in seen and self.accessed(name)}
            if facts.is_package or "__getattr__" in facts.binds:
                names |= {n for n in self.attributes - seen if n not in facts.binds and self.is_part(facts, n)}
            for name in sorted(names):
                seen.add(name)
                self.take(self.resolver.attribute(module, (name,)))
                found = True
        return found

    def is_part(self, facts: Facts, name: str) -> bool:
        return self.resolver.sources.facts(f"{facts.name}.{name}") is not None or bool(facts.entries(name))


def find_closure(sources: Sources, symbols: Iterable[str], standins: StandIns) -> Closure:
    """The closure of `module:qualname` symbols.

    Raises:
        LiftError: a symbol does not exist in the tree, or a file on the way cannot be parsed; the chain of names
            that led there is part of the error.
    """
    return sources.resolver(standins).closure(symbols)


__all__ = ["Closure", "Facts", "Key", "Piece", "Resolver", "Sources", "find_closure"]
