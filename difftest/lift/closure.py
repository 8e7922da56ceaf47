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
from dataclasses import dataclass, field

from difftest.errors import LiftError
from difftest.lift.facts import Facts
from difftest.lift.resolve import Beside, Definition, ImportEffects, Key, Piece, Resolver, Step, resolver_of
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIns

READS_ANNOTATIONS = frozenset({"__annotations__", "get_annotations", "get_type_hints"})


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
        effects: what importing a module changes of the closure: (module, definition, whether by a lazy import).
        shared: what importing changes outside the tree: digest -> file, line and text.
        failures: what makes imports fail that the code tries: digest -> file, line and text.
        whole: words by which the code reads what a digest of syntax leaves out; whole files count then.
        data: files that code reads beside its own, by path, with their content ids.
    """

    roots: tuple[str, ...]
    pieces: dict[Key, Piece] = field(default_factory=dict)
    standins: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    missing: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    compiled: set[str] = field(default_factory=set)
    broken: set[tuple[str, str]] = field(default_factory=set)
    effects: dict[tuple[str, Key], bool] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    data: dict[str, str] = field(default_factory=dict)
    _digest: str = ""

    @property
    def digest(self) -> str:
        """Equal for two closures when the code that they hold is the same as syntax."""
        if not self._digest:
            lines = [f"{module}:{qualname}={piece.digest}" for (module, qualname), piece in self.pieces.items()]
            lines += [f"standin {name}" for name in self.standins]
            lines += [f"broken {path} {blob}" for path, blob in self.broken]
            lines += [f"missing {what}" for what, _ in self.missing]
            lines += [f"shared {digest}" for digest in self.shared]
            lines += [f"failure {digest}" for digest in self.failures]
            lines += [f"file {path} {blob}" for path, blob in self.data.items()]
            self._digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        return self._digest

    @property
    def lines(self) -> int:
        """Lines of the pieces that are lifted at once, overlaps counted once."""
        total, path, end = 0, "", 0
        for here, first, last in sorted((p.path, p.first, p.last) for p in self.pieces.values() if not p.lazy):
            end = end if here == path else 0
            path = here
            total += max(0, last - max(first - 1, end))
            end = max(end, last)
        return total

    @property
    def modules(self) -> list[str]:
        return sorted({p.module for p in self.pieces.values() if not p.lazy})

    def reaches(self, symbol: str) -> bool:
        """Whether `module:qualname`, a class or a method of one, is among the pieces."""
        module, _, qualname = symbol.partition(":")
        return (module, qualname) in self.pieces or any(
            m == module and q.startswith(qualname + ".") for m, q in self.pieces
        )


# -- the walk ---------------------------------------------------------------------------------------------------------

# What a base class outside the tree calls by name: torch.nn.Module, Enum, Thread, JSONEncoder, Handler.
_CALLED_BY_BASES = frozenset(
    {"forward", "backward", "setup_context", "extra_repr", "_missing_", "run", "default", "emit", "format", "filter"}
)


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
        self.imported: set[str] = set()  # modules whose imports have been looked at
        self.imports: dict[str, ImportEffects] = {}
        self.beside: dict[Beside, None] = {}
        self.namespaces: set[tuple[str, str]] = set()

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
                    self.resolver.name(step, *key, [tuple(member.split(".")) if member else ()], None)
                    self.take(step)
                self.parents[current] = None
            while True:
                while self.queue:
                    current = self.queue.popleft()
                    self.define(current)
                if self.reach_methods() or self.reach_attributes() or self.reach_operators() or self.reach_effects():
                    continue
                if not self.lazy_steps:
                    self.reach_files()
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
        self.namespaces |= step.namespaces
        self.closure.failures |= step.failures
        self.closure.standins |= step.standins
        self.closure.external |= step.external
        if step.whole or step.beside:
            self.closure.whole |= step.whole
            self.beside.update(dict.fromkeys(step.beside))
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
            names = {name for name in facts.bindings if name not in seen and self.accessed(name)}
            if facts.is_package or "__getattr__" in facts.bindings:
                names |= {n for n in self.attributes - seen if n not in facts.bindings and self.is_part(facts, n)}
            for name in sorted(names):
                seen.add(name)
                self.take(self.resolver.attribute(module, (name,)))
                found = True
        return found

    def reach_operators(self) -> bool:
        """Add operators of namespaces used as objects whose names are accessed somewhere; True when any was added."""
        step = Step()
        for module, namespace in self.namespaces:
            for key, name in self.resolver.operators_of(module, namespace):
                if key not in self.done and (not name or self.accessed(name)):
                    step.needs.append((key, None))
        self.take(step)
        return bool(step.needs)

    # -- what is reached by importing -----------------------------------------------------------------------------

    def reach_effects(self) -> bool:
        """Add what importing the modules changes of what is reached; True when any was added."""
        for module in ({module for module, _ in self.done} | self.escaped.keys()) - self.imported:
            self.imported.add(module)
            for name in self.resolver.imported_with(module):
                if name not in self.imports:
                    effects = self.imports[name] = self.resolver.effects(name)
                    self.closure.shared.update(effects.shared)
            self.closure.shared.update(self.imports[module].environment if module in self.imports else {})
        found = False
        absent = {tuple(what.split(":")) for what, _ in self.closure.missing if ":" in what}
        for name, effects in list(self.imports.items()):
            for table, told in ((effects.changes, True), (effects.subclasses, "__subclasses__" in self.attributes)):
                for key, numbers in table.items():
                    reached = key in self.done or key in absent
                    if reached and (name, key) not in self.closure.effects and (told or self.is_told(key)):
                        found = True
                        self.closure.effects[name, key] = self.lazy
                        added = (name, f"<changes {key[0]}:{key[1]}>")
                        self.parents[added] = key
                        self.add(added, self.resolver.effect_on(name, key, numbers))
        return found

    def is_told(self, key: Key) -> bool:
        """Whether a class is told of the classes that are derived from it."""
        facts = self.resolver.sources.facts(key[0])
        return facts is not None and facts.member(key[1]).keeps

    def reach_files(self) -> None:
        """Find the files that are read beside the code; all of the code's own when it reads what a digest lacks."""
        sources = self.resolver.sources
        found: set[str] = set()
        for beside in self.beside:
            found.update(self.resolver.files_beside(beside))
        if self.closure.whole:
            found |= {piece.path for piece in self.closure.pieces.values()}
            named = set(self.escaped)
            if not self.closure.whole.isdisjoint(READS_ANNOTATIONS):  # which names they mean counts, too
                named |= {n for m in self.imported if (f := sources.facts(m)) for n in f.imported() if sources.owns(n)}
            found |= {f.path for name in named if (f := sources.facts(name)) and f.path.endswith(".py")}
        self.closure.data = {path: sources.blob(path) for path in sorted(found)}

    def is_part(self, facts: Facts, name: str) -> bool:
        return self.resolver.sources.facts(f"{facts.name}.{name}") is not None or bool(facts.entries(name))


def find_closure(sources: Sources, symbols: Iterable[str], standins: StandIns) -> Closure:
    """The closure of `module:qualname` symbols.

    Raises:
        LiftError: a symbol does not exist in the tree, or a file on the way cannot be parsed; the chain of names
            that led there is part of the error.
    """
    resolver = resolver_of(sources, standins)
    roots = tuple(symbols)
    if roots not in resolver.closures:
        resolver.closures[roots] = _Walk(resolver, roots).run()
    found: Closure = resolver.closures[roots]
    return found


__all__ = ["Closure", "Facts", "Key", "Piece", "Resolver", "Sources", "find_closure"]
