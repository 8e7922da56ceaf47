"""The definitions that a symbol reaches inside its tree, found without running anything.

The closure says what a target's verdict rests on: its digest decides `code: same`, its pieces are what
`difftest extract` prints. Methods are reached by name: a class that is reached keeps the methods whose names are
accessed anywhere in the closure, so the closure may be larger than what runs, never smaller. Imports inside
functions are followed last and marked lazy; the loader lifts them only when they run.
"""

from __future__ import annotations

import ast
import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from difftest.errors import LiftError
from difftest.lift.source import Import, SourceModule, Uses, class_pieces, find_uses, prune, walk_statements
from difftest.lift.standins import StandIns
from difftest.lift.syntax import syntax_hash

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
    """

    roots: tuple[str, ...]
    pieces: dict[Key, Piece] = field(default_factory=dict)
    standins: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    missing: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    compiled: set[str] = field(default_factory=set)

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for module, qualname in sorted(self.pieces):
            digest.update(f"{module}:{qualname}={self.pieces[module, qualname].digest}\n".encode())
        for name in sorted(self.standins):
            digest.update(f"standin {name}\n".encode())
        return digest.hexdigest()

    @property
    def lines(self) -> int:
        """Lines of the pieces that are lifted at once, overlaps counted once."""
        return len(
            {(p.path, n) for p in self.pieces.values() if not p.lazy for n in range(p.first, p.last + 1)}
        )

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
    """The modules of one tree, parsed on demand. Files that two trees share are parsed once.

    Args:
        find: dotted name -> (path or None for a namespace package, is_package), or None when the tree lacks it.
        read: path -> bytes.
        blob: path -> content id; modules with equal ids and names are shared through `parsed`.
    """

    def __init__(
        self,
        find: Callable[[str], tuple[str | None, bool] | None],
        read: Callable[[str], bytes | None],
        blob: Callable[[str], str | None] | None = None,
        parsed: dict[tuple[str, str], SourceModule] | None = None,
    ) -> None:
        self._find = find
        self._read = read
        self._blob = blob
        self._parsed = parsed if parsed is not None else {}
        self._modules: dict[str, SourceModule | None] = {}

    def module(self, name: str) -> SourceModule | None:
        """The parsed module, or None when the tree has no such module.

        Raises:
            LiftError: the file cannot be parsed.
        """
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> SourceModule | None:
        found = self._find(name) if name else None
        if found is None:
            return None
        path, is_package = found
        if path is None:
            return SourceModule(name, name.replace(".", "/"), b"", True)
        blob = self._blob(path) if self._blob else None
        if blob is not None and (name, blob) in self._parsed:
            return self._parsed[name, blob]
        data = self._read(path)
        if data is None:
            return None
        module = SourceModule(name, path, data, is_package)
        if blob is not None:
            self._parsed[name, blob] = module
        return module

    def owns(self, name: str) -> bool:
        """Whether a dotted name belongs to this tree, judged by its top-level package."""
        return self.module(name.partition(".")[0]) is not None

    def provider(
        self, module: SourceModule, name: str, seen: frozenset[str] = frozenset()
    ) -> SourceModule | None:
        """The module that binds `name` for `module`: itself, or one it star-imports from."""
        if name in module.bindings:
            return module
        for star in module.stars:
            if star in seen or not self.owns(star) or (target := self.module(star)) is None:
                continue
            exported = target.exports
            if (name in exported) if exported is not None else not name.startswith("_"):
                found = self.provider(target, name, seen | {module.name})
                if found:
                    return found
        return None

    def defines(self, symbol: str) -> bool:
        """Whether the tree binds `module:qualname` (following re-exports); never raises."""
        try:
            return self.locate(symbol) is not None
        except LiftError:
            return False

    def locate(self, symbol: str) -> tuple[SourceModule, str, str | None] | None:
        """(module, top-level name, method or None) where a symbol is really defined, through re-exports."""
        name, _, qualname = symbol.partition(":")
        top, _, member = qualname.partition(".")
        for _ in range(20):
            module = self.module(name)
            if module is None:
                return None
            provider = self.provider(module, top)
            if provider is None:
                return None
            imports = [i for i in provider.imports_of(top) if self.owns(i.module)]
            if not imports or provider.classes(top) or provider.functions(top):
                if member and (classes := provider.classes(top)):
                    return (
                        (provider, top, member) if self.member_owner(provider, classes[0], member) else None
                    )
                return provider, top, member or None
            item = imports[0]
            if item.attribute is None:
                return None
            name, top = item.module, item.attribute
        return None

    def member_owner(self, module: SourceModule, node: ast.ClassDef, member: str, depth: int = 0) -> bool:
        """Whether a class, or a base of it inside the tree, defines the member."""
        first = member.partition(".")[0]
        for inner in walk_statements(node.body):
            if (
                isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and inner.name == first
            ):
                return True
            target = inner.targets[0] if isinstance(inner, ast.Assign) else getattr(inner, "target", None)
            if isinstance(target, ast.Name) and target.id == first:
                return True
        if depth > 10:
            return False
        for base in node.bases:
            if isinstance(base, ast.Name) and (found := self.locate(f"{module.name}:{base.id}")):
                owner, top, _ = found
                if any(self.member_owner(owner, c, member, depth + 1) for c in owner.classes(top)):
                    return True
        return False


_CALLED_BY_BASES = {"forward"}


class _Finder:
    def __init__(self, sources: Sources, standins: StandIns, roots: tuple[str, ...]) -> None:
        self.sources = sources
        self.standins = standins
        self.closure = Closure(roots)
        self.parents: dict[Key, Key | None] = {}
        self.queue: deque[tuple[Key, Key | None]] = deque()
        self.lazy_imports: list[tuple[Import, Uses, Key]] = []
        self.lazy = False
        self.attributes: set[str] = set()
        self.classes: dict[Key, _Class] = {}
        self.done: set[Key] = set()
        self.tables: set[Key] = set()

    # -- the walk -------------------------------------------------------------------------------------------------

    def need(self, key: Key, via: Key | None) -> None:
        if key not in self.done:
            self.done.add(key)
            self.parents[key] = via
            self.queue.append((key, via))

    def run(self) -> None:
        while True:
            while self.queue:
                key, _ = self.queue.popleft()
                self.define(key)
            if self.reach_methods():
                continue
            if not self.lazy_imports:
                return
            self.lazy = True
            pending, self.lazy_imports = self.lazy_imports, []
            for item, uses, key in pending:
                self.follow(item, uses.chains.get(item.bound, {()}), key, lazy=True)

    def define(self, key: Key) -> None:
        """Add what binds a name of a module, and queue what that uses."""
        name, qualname = key
        module = self.sources.module(name)
        assert module is not None
        for index in module.bindings.get(qualname, ()):
            kept = prune(module.statements[index], {qualname})
            if kept is None:
                continue
            if isinstance(kept, ast.ClassDef):
                header, methods = class_pieces(kept)
                self.classes.setdefault(key, _Class(module, [])).parts.append((header, methods))
                self.add(module, qualname, kept, header)
                self.use(
                    module,
                    module.uses(module.statements[index]) if not methods else find_uses(module, header),
                    key,
                )
                continue
            self.add(module, qualname, kept, kept)
            self.use(module, find_uses(module, kept), key)

    def add(self, module: SourceModule, qualname: str, span: ast.stmt, code: ast.stmt) -> None:
        key = (module.name, qualname)
        digest = syntax_hash(code)
        first, last = _span(span)
        old = self.closure.pieces.get(key)
        if old is not None:
            digest = hashlib.sha256((old.digest + digest).encode()).hexdigest()
            first, last = min(first, old.first), max(last, old.last)
        if isinstance(code, ast.ClassDef) and span is not code:
            last = max(
                [first, *(_span(inner)[1] for inner in code.body if inner in getattr(span, "body", ()))]
            )
        if old is None and any("compile" in ast.dump(d) for d in getattr(code, "decorator_list", ())):
            self.closure.compiled.add(f"{module.name}:{qualname}")
        self.closure.pieces[key] = Piece(module.name, qualname, module.path, first, last, self.lazy, digest)

    def use(self, module: SourceModule, uses: Uses, key: Key) -> None:
        self.attributes |= uses.attributes
        for name in sorted(uses.names):
            self.name(module, name, uses.chains.get(name, {()}), key)
        for item in uses.imports:
            if item.bound in module.bindings and key[1].partition(".")[0] == item.bound:
                continue  # the import statement that binds the name is followed by `name`
            self.lazy_imports.append((item, uses, key))
        for namespace, operator in sorted(uses.ops):
            if self.sources.owns(namespace):
                for index in module.mentions(operator):
                    self.statement(module, index, key)

    def statement(self, module: SourceModule, index: int, via: Key) -> None:
        """A statement that binds nothing but has the effect that `via` needs (registering an operator)."""
        key = (module.name, f"<line {module.statements[index].lineno}>")
        if key not in self.done:
            self.done.add(key)
            self.parents[key] = via
            node = module.statements[index]
            self.add(module, key[1], node, node)
            self.use(module, module.uses(node), key)

    def name(self, module: SourceModule, name: str, chains: set[tuple[str, ...]], via: Key) -> None:
        """A global name used in `module`: a definition, an import, a builtin, or nothing known."""
        if self.standin(module.name, name):
            return
        if via == (module.name, "__getattr__") and (module.name, name) in self.tables:
            return  # only the entries that are asked for count
        provider = self.sources.provider(module, name)
        if provider is None:
            return
        if provider is not module:
            self.name(provider, name, chains, via)
            return
        self.need((module.name, name), via)
        for item in module.imports_of(name):
            self.follow(item, chains, (module.name, name))
        if () in chains:
            self.instantiate((module.name, name))

    def follow(self, item: Import, chains: set[tuple[str, ...]], via: Key, lazy: bool = False) -> None:
        """What an import brings, as far as the chains read from it say."""
        if item.loads and self.sources.owns(item.module):
            if not lazy and self.sources.module(item.loads) is None and not self.standin(item.loads, None):
                self.missing(f"module {item.loads}", via)
            for chain in chains:
                self.attribute_of(item.module, chain, via)
            return
        if not self.sources.owns(item.module):
            self.closure.external.add(item.module.partition(".")[0])
            return
        if item.attribute is None:
            for chain in chains:
                self.attribute_of(item.module, chain, via)
        elif item.attribute == "*":
            self.attribute_of(item.module, (), via)
        else:
            for chain in chains or {()}:
                self.attribute_of(item.module, (item.attribute, *chain), via)

    def attribute_of(self, name: str, chain: tuple[str, ...], via: Key) -> None:
        """`chain` read from the module object `name`."""
        while chain:
            if self.standin(name, chain[0]):
                return
            module = self.sources.module(name)
            if module is None:
                self.missing(f"module {name}", via)
                return
            if self.sources.provider(module, chain[0]) is not None:
                self.name(module, chain[0], {chain[1:]}, via)
                return
            if self.sources.module(f"{name}.{chain[0]}") is None:
                if "__getattr__" in module.bindings:
                    self.table_entry(module, chain[0], via)
                    self.need((name, "__getattr__"), via)
                else:
                    self.missing(f"{name}:{chain[0]}", via)
                return
            name, chain = f"{name}.{chain[0]}", chain[1:]

    def table_entry(self, module: SourceModule, name: str, via: Key) -> None:
        """An attribute that a module's `__getattr__` looks up in a dict display: only that entry is needed."""
        for table, indices in module.bindings.items():
            for index in indices:
                node = module.statements[index]
                value = getattr(node, "value", None)
                if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(value, ast.Dict):
                    continue
                for key, entry in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        self.tables.add((module.name, table))
                        piece = (module.name, f"{table}[{name!r}]")
                        if piece not in self.done:
                            self.done.add(piece)
                            self.parents[piece] = via
                            statement = ast.copy_location(ast.Expr(entry), entry)
                            self.add(module, piece[1], statement, statement)
                            self.use(module, find_uses(module, statement), piece)
                        return

    def standin(self, module: str, name: str | None) -> bool:
        key = self.standins.key_for(module, name)
        if key is None:
            return False
        self.closure.standins.add(key)
        return True

    def missing(self, what: str, via: Key) -> None:
        if not self.lazy:
            self.closure.missing.append((what, self.chain(via)))

    def chain(self, key: Key | None) -> tuple[str, ...]:
        names: list[str] = []
        while key is not None and len(names) < 12:
            names.append(f"{key[0]}:{key[1]}")
            key = self.parents.get(key)
        return tuple(reversed(names))

    # -- classes --------------------------------------------------------------------------------------------------

    def instantiate(self, key: Key) -> None:
        self.classes.setdefault(key, _Class(self.sources.module(key[0]), [])).instantiated = True

    def reach_methods(self) -> bool:
        """Add methods of reached classes whose names are accessed somewhere; True when any was added."""
        found = False
        for key, cls in list(self.classes.items()):
            for _, methods in cls.parts:
                for name in methods:
                    if name not in cls.reached and self.is_reached(cls, name):
                        cls.reached.add(name)
                        found = True
                        self.method(key, cls, name, methods[name])
        return found

    def is_reached(self, cls: _Class, name: str) -> bool:
        if name in cls.roots or name in self.attributes:
            return True
        special = (name.startswith("__") and name.endswith("__")) or name in _CALLED_BY_BASES
        return special and (cls.instantiated or cls.has_instance)

    def method(
        self, key: Key, cls: _Class, name: str, nodes: list[ast.FunctionDef | ast.AsyncFunctionDef]
    ) -> None:
        module = cls.module
        assert module is not None
        qualname = f"{key[1]}.{name}"
        self.parents[key[0], qualname] = key
        for node in nodes:
            self.add(module, qualname, node, node)
            self.use(module, find_uses(module, node), (key[0], qualname))
            decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            if "staticmethod" not in decorators:
                cls.has_instance = True


@dataclass
class _Class:
    module: SourceModule | None
    parts: list[tuple[ast.ClassDef, dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]]]
    instantiated: bool = False
    has_instance: bool = False
    reached: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)


def _span(node: ast.stmt) -> tuple[int, int]:
    decorators = [d.lineno for d in getattr(node, "decorator_list", ())]
    return min([node.lineno, *decorators]), node.end_lineno or node.lineno


def find_closure(sources: Sources, symbols: Iterable[str], standins: StandIns) -> Closure:
    """The closure of `module:qualname` symbols.

    Raises:
        LiftError: a symbol does not exist in the tree, or a file on the way cannot be parsed; the chain of names
            that led there is part of the error.
    """
    roots = tuple(symbols)
    finder = _Finder(sources, standins, roots)
    current: Key | None = None
    try:
        for symbol in roots:
            located = sources.locate(symbol)
            if located is None:
                raise LiftError(f"no symbol {symbol} in this tree")
            module, top, member = located
            current = (module.name, top)
            if module.classes(top):
                finder.classes.setdefault(current, _Class(module, []))
                if member:
                    finder.attributes.add(member.partition(".")[0])
                    finder.classes[current].roots.add(member.partition(".")[0])
                else:
                    finder.classes[current].instantiated = True
            finder.name(module, top, {tuple(member.split(".")) if member else ()}, current)
            finder.parents[current] = None
        finder.run()
    except LiftError as error:
        if not error.chain and current is not None:
            raise LiftError(str(error), finder.chain(current)) from None
        raise
    return finder.closure
