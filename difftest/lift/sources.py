"""The modules of one tree by name: parsed when asked for, and where a symbol is really defined. No execution."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from difftest.errors import LiftError
from difftest.lift.facts import Facts, FactsStore
from difftest.lift.source import SourceModule


class Sources:
    """The modules of one tree, parsed on demand. Facts of files that two trees share are found once.

    Args:
        find: dotted name -> (path or None for a namespace package, is_package), or None when the tree lacks it.
        read: path -> bytes.
        blob: path -> content id; facts of modules with equal ids and names are shared through `shared`.
        store: keeps facts between runs.
        paths: folder -> the files in it and below it.
        known: by dotted name, facts of the tree's modules that are known, as :meth:`known` gives them.
    """

    def __init__(
        self,
        find: Callable[[str], tuple[str | None, bool] | None],
        read: Callable[[str], bytes | None],
        blob: Callable[[str], str | None] | None = None,
        shared: dict[tuple[str, str], Facts] | None = None,
        store: FactsStore | None = None,
        paths: Callable[[str], list[str]] | None = None,
        known: Mapping[str, dict[str, Any]] | None = None,
    ) -> None:
        self._find = find
        self._read = read
        self._blob = blob
        self._shared = shared if shared is not None else {}
        self._store = store
        self._paths = paths
        self._known = known or {}
        self._listed: dict[str, list[str]] = {}
        self._blobs: dict[str, str] = {}
        self._facts: dict[str, Facts | None] = {}
        self._providers: dict[tuple[str, str], Facts | None] = {}
        self.resolvers: dict[int, Any] = {}  # see :func:`difftest.lift.resolve.resolver_of`

    def module(self, name: str, lazy: bool = False) -> SourceModule | None:
        """The parsed module, or None when the tree has no such module.

        Args:
            lazy: it need not be parsed yet.

        Raises:
            LiftError: the file cannot be parsed.
        """
        facts = self.facts(name)
        return None if facts is None else facts.module(lazy) if lazy else facts.source

    def facts(self, name: str) -> Facts | None:
        """What is known of a module, or None when the tree has no such module. Its file may not be parsed yet."""
        if name not in self._facts:
            self._facts[name] = self._load(name)
        return self._facts[name]

    def known(self, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
        """By module, those facts of some kinds that were found so far, as plain data."""
        return {
            name: {kind: facts.known[kind] for kind in kinds if kind in facts.known}
            for name, facts in self._facts.items()
            if facts is not None
        }

    def _load(self, name: str) -> Facts | None:
        found = self._find(name) if name else None
        if found is None:
            return None
        path, is_package = found
        if path is None:
            folder = name.replace(".", "/")
            return Facts(name, folder, True, lambda _: SourceModule(name, folder, b"", True))
        blob = self._blob(path) if self._blob else None
        if blob is None:
            data = self._read(path)
            if data is None:
                return None
            return Facts(name, path, is_package, lambda lazy: SourceModule(name, path, data, is_package, lazy))

        def load(lazy: bool) -> SourceModule:
            data = self._read(path)
            if data is None:
                raise LiftError(f"{path} cannot be read any more")
            return SourceModule(name, path, data, is_package, lazy)

        facts = self._shared.get((name, blob))
        if facts is not None and facts.path == path:
            facts.load_from(load)
            return facts
        facts = (
            self._store.facts(name, path, is_package, blob, load)
            if self._store is not None
            else Facts(name, path, is_package, load, self._known.get(name))
        )
        self._shared[name, blob] = facts
        return facts

    def blob(self, path: str) -> str:
        """Content id of a file."""
        if path not in self._blobs:
            found = self._blob(path) if self._blob else None
            self._blobs[path] = found or hashlib.sha256(self._read(path) or b"").hexdigest()
        return self._blobs[path]

    def paths(self, folder: str) -> list[str]:
        """Files in a folder and below it; none when the tree was not given with its listing."""
        if folder not in self._listed:
            self._listed[folder] = [] if self._paths is None else self._paths(folder)
        return self._listed[folder]

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
        if own < 0 and facts.computed and not hasattr(builtins, name):  # `globals()[name] = ...` may bind it
            return facts if self.facts(f"{module}.{name}") is None else None
        return facts if own >= 0 else None

    def beneath(self, module: str, name: str) -> str | None:
        """The module that `module` has a name from by a star import before it binds the name itself, where that may
        show: `try: C; except NameError: C = 2`."""
        facts = self.facts(module)
        for star in reversed(facts.stars) if facts is not None and name in facts.bindings else ():
            target = self.facts(star.module) if self.owns(star.module) else None
            if target is not None and target.exports(name) and self.provider(star.module, name) is not None:
                return star.module if facts is not None and facts.replaces(name) < star.index else None
        return None

    def names(self, module: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Names that a module binds, those that it star-imports from the tree included."""
        facts = self.facts(module) if module not in seen and self.owns(module) else None
        if facts is None:
            return set()
        found = set(facts.bindings)
        for star in facts.stars:
            target = self.facts(star.module)
            found |= {n for n in self.names(star.module, seen | {module}) if target is not None and target.exports(n)}
        return found

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
