"""What a run will compare: arms, targets, closures; decided before anything is executed. No torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from difftest.catalog import Outline, direct_matches
from difftest.errors import DifftestError, LiftError, UsageError
from difftest.lift.closure import Closure, find_closure
from difftest.lift.extract import compile_decorators
from difftest.lift.facts import Facts, FactsStore
from difftest.lift.resolve import Key
from difftest.lift.signature import Signature, conflict, merged, signature_of, symbols_in, unmakeable
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIns
from difftest.profiles import standins_for
from difftest.target import Target
from difftest.trees import Tree
from difftest.trees.cache import cache_folder

_FOR_LOADING = ("file", "imports", "member", "replaces")
"""Facts of a module that loading it asks for, too."""
_GIVE_CASES = "give cases of your own with --cases-from FILE"


class ArmSource:
    """One arm's tree, and the folder in which its files become real files.

    Attributes:
        label: `base`, or `head`, `head2`, ... when there are several.
        tree: where the source comes from.
        folder: the arm's own folder; a file of the tree appears in it when it is needed.
        shared: facts of files, shared by the arms of one run.
        cache: the cache folder, in which facts of files are kept between runs.
        effects: what importing modules changes of the targets bound in this arm, see :class:`Closure`.
    """

    def __init__(
        self,
        label: str,
        tree: Tree,
        folder: Path,
        shared: dict[tuple[str, str], Facts],
        cache: Path | None = None,
    ) -> None:
        self.label = label
        self.tree = tree
        self.folder = folder
        self.found: dict[str, tuple[str | None, bool] | None] = {}
        store = FactsStore(cache_folder(cache))
        self.sources = Sources(self.find, tree.read, tree.blob, shared, store, tree.paths)
        self.effects: dict[tuple[str, Key], bool] = {}
        self._written: set[str] = set()

    def find(self, name: str) -> tuple[str | None, bool] | None:
        """(path, is_package) of a module of the tree, or None."""
        if name not in self.found:
            module = self.tree.module(name)
            self.found[name] = None if module is None else (module.path, module.is_package)
        return self.found[name]

    def write(self, path: str) -> bool:
        """Make a file of the tree a real file in the arm's folder; False when the tree has no such file."""
        if path in self._written:
            return True
        data = self.tree.read(path)
        target = self.folder / path
        if data is None or not target.resolve().is_relative_to(self.folder.resolve()):
            return False
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise DifftestError(f"{target} cannot be written: {error.strerror or error}; set TMPDIR") from None
        self._written.add(path)
        return True


def _no_package(arm: ArmSource, outline: Outline) -> str:
    """What is wrong with a tree that has nothing of the package of a target: another folder was meant; else nothing."""
    package = outline.package
    if arm.find(package) is not None:
        return ""
    return f"{arm.label} has no package {package}: name the folder that holds {package}/"


_NAME = {
    "directory": "name a folder that holds {package}/",
    "git": "name a revision that holds {package}/, of the repository that --repo names",
    "worktree": "name the repository that holds {package}/ with --repo",
}


def refuse_without_package(outlines: Sequence[Outline], arms: Sequence[ArmSource], option: str = "") -> None:
    """Refuse a tree that holds nothing of the packages that the targets observe: another one was meant.

    Args:
        option: what the trees were given by, if not by `--base` and `--head`.

    Raises:
        UsageError: an arm is such a tree.
    """
    symbols = {symbol.partition(":")[0] for outline in outlines for symbol in outline.symbols}
    for arm in arms:
        if not symbols or any(_holds(arm, module) for module in symbols):
            continue
        packages = sorted({outline.package for outline in outlines})
        identity, package = arm.tree.identity, packages[0]
        given = option or ("--base" if arm.label == "base" else "--head")
        hint = _NAME.get(identity.kind, "name a release that holds {package}/").format(package=package)
        if identity.kind == "directory" and arm.tree.is_file(f"{package}/{package}/__init__.py"):
            hint = f"name the folder {package}/ in it, which does"
        names = " or ".join(repr(name) for name in packages)
        raise UsageError(f"{given} {identity.spec}: holds no package {names}; {hint}")


def _holds(arm: ArmSource, module: str) -> bool:
    """Whether the tree has the package of a module: its `__init__.py`, or, where there is none, what is next below."""
    top, *below = module.split(".")
    found = arm.find(top)
    return found is not None and (found[0] is not None or (below != [] and arm.find(f"{top}.{below[0]}") is not None))


def arm_sources(
    scratch: Path, base: Tree, heads: Sequence[Tree], cache: Path | None = None
) -> tuple[ArmSource, list[ArmSource]]:
    """Base and the heads (labels `base`, `head`, `head2`, ...), each with its folder below `scratch`."""
    parsed: dict[tuple[str, str], Facts] = {}
    labels = ["head", *[f"head{n}" for n in range(2, len(heads) + 1)]]
    folders = [scratch / "arms" / label for label in ("base", *labels)]
    for folder in folders:
        folder.mkdir(parents=True)
    return ArmSource("base", base, folders[0], parsed, cache), [
        ArmSource(label, tree, at, parsed, cache) for label, tree, at in zip(labels, heads, folders[1:], strict=True)
    ]


@dataclass
class Bound:
    """A target in one arm: which symbol it is, and what that reaches; or why it cannot be had."""

    symbol: str | None = None
    closure: Closure | None = None
    reason: str = ""


@dataclass
class Planned:
    """One target, base against one head.

    Attributes:
        code: `same`, `changed`, `added`, `removed`, `absent` or `refused`.
        reason: why it cannot be compared, when it cannot.
        unseen: what differs between the arms and is not applied here, so that no `identical` can be claimed.
    """

    outline: Outline
    base: Bound
    head: Bound
    head_index: int
    code: str
    reason: str = ""
    unseen: str = ""
    standins: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


class Planner:
    """Binds targets in arms and finds their closures, each once.

    Args:
        host: the installed package that real objects are taken from; stand-ins take their place without it.

    Raises:
        UsageError: that package is not installed.
    """

    def __init__(self, host: str | None = None) -> None:
        if host is not None and find_spec(host) is None:
            raise UsageError(
                f"--host {host}: no package {host} is installed here; without --host stand-ins take its place"
            )
        self.host = host
        self._standins: dict[str, StandIns] = {}
        self._bound: dict[tuple[str, str], Bound] = {}
        self._signatures: dict[tuple[str, str], Signature] = {}
        self._lacking: dict[tuple[str, str], str] = {}  # by arm and target, the symbol that was asked for

    def standins(self, package: str) -> StandIns:
        if package not in self._standins:
            self._standins[package] = standins_for(package, self.host)
        return self._standins[package]

    def bind(self, outline: Outline, arm: ArmSource) -> Bound:
        """The target in one arm."""
        key = (arm.label, outline.name)
        if key not in self._bound:
            self._bound[key] = self._bind(outline, arm)
        return self._bound[key]

    def _bind(self, outline: Outline, arm: ArmSource) -> Bound:
        symbol: str | None = None
        try:
            symbol = next((s for s in outline.symbols if arm.sources.locate(s) is not None), None)
            if symbol is None or (outline.needs and not any(map(arm.sources.defines, outline.needs))):
                return Bound()
            module, _, name = symbol.partition(":")
            if replaced := self.standins(outline.package).key_for(module, name.partition(".")[0]):
                # It would be the stand-in that is compared, with itself.
                return Bound(symbol, None, f"{replaced} has a stand-in, so that {symbol} of the tree is never run")
            symbols = [symbol, *[s for s in outline.uses if arm.sources.defines(s)]]
            closure = find_closure(arm.sources, symbols, self.standins(outline.package))
            arm.effects.update(closure.effects)
            return Bound(symbol, closure)
        except LiftError as error:
            return Bound(symbol, None, str(error))

    def plan(self, outline: Outline, base: ArmSource, head: ArmSource, head_index: int) -> Planned:
        """One target, base against one head."""
        left, right = self.bind(outline, base), self.bind(outline, head)
        standins = sorted({n for b in (left, right) if b.closure for n in b.closure.standins})
        planned = Planned(outline, left, right, head_index, "changed", standins=tuple(standins))
        refused = [f"cannot be lifted from {n}: {b.reason}" for n, b in (("base", left), ("head", right)) if b.reason]
        if outline.refusal:
            planned.code, planned.reason = "refused", outline.refusal
        elif refused:
            planned.code, planned.reason = "refused", "; ".join(refused)
        elif left.symbol is None and right.symbol is None:
            planned.code, planned.reason = (
                "absent",
                f"neither tree defines {' or '.join(outline.needs or outline.symbols)}",
            )
        elif left.symbol is None:
            planned.code = "added"
            planned.reason = f"api-change: added in head ({right.symbol}), base has nothing to compare it with"
            planned.reason = _no_package(base, outline) or planned.reason
        elif right.symbol is None:
            planned.code = "removed"
            planned.reason = f"api-change: removed in head, base has {left.symbol}"
            planned.reason = _no_package(head, outline) or planned.reason
        elif left.closure is not None and right.closure is not None:
            planned.code = "same" if left.closure.digest == right.closure.digest else "changed"
            for arm, other in ((base, "head"), (head, "base")):
                if symbol := self._lacking.get((arm.label, outline.name)):
                    without = f"{symbol} is in {other} alone, so there is nothing to compare it with"
                    planned.notes.append(f"{without}; this target reaches it")
            if outline.signature:
                planned.notes.append(
                    f"cases from the signature of {outline.name}, so the inputs are guesses; "
                    "what raises alike in both arms is not exercised"
                )
                reason = conflict(*[self.signature(outline.name, arm) for arm in (base, head)])
                if reason:
                    planned.code, planned.reason = "refused", f"{reason}; {_GIVE_CASES}"
            if planned.code == "changed":
                planned.notes += _unlike_syntax(left.closure, right.closure)
                planned.unseen = _unapplied(left.closure, right.closure)
            compiled = sorted({n.partition(":")[2] for b in (left, right) if b.closure for n in b.closure.compiled})
            if compiled:
                planned.notes.append(f"torch.compile'd functions ran eagerly: {', '.join(compiled[:5])}")
            if decorated := _recompiled(left.closure, base.tree.read, right.closure, head.tree.read):
                planned.notes.append(
                    f"the change of how torch.compile is told to compile {', '.join(decorated[:5])} was not exercised: "
                    "both versions ran without it"
                )
        return planned

    def select(self, outlines: Sequence[Outline], patterns: Sequence[str], arms: Sequence[ArmSource]) -> list[Outline]:
        """The targets that `--target` values ask for; all of them when none is given.

        A raw symbol that no target is bound to selects the targets whose closure holds it; when there is none, a
        target of its own is made from its signature.

        Raises:
            UsageError: a value matches nothing, with the names that come close.
        """
        if not patterns:
            return list(outlines)
        chosen: dict[str, Outline] = {}
        for pattern in patterns:
            found = direct_matches(outlines, pattern)
            if ":" in pattern and not any(c in pattern for c in "*?["):
                present = [arm for arm in arms if arm.sources.defines(pattern)]
                if not present:
                    if not found:
                        raise UsageError(f"no symbol {pattern} in base or head; write it as package.module:qualname")
                else:
                    # A class asks for its methods; one that neither tree has was not asked for.
                    found = [o for o in found if any(self.bind(o, arm).symbol for arm in present)]
                    if not found:
                        found = [o for o in outlines if any(self.observes(o, arm, pattern) for arm in present)]
                        lacking = [arm.label for arm in arms if arm not in present]
                        self._lacking.update({(label, o.name): pattern for o in found for label in lacking})
                    found = found or [self.from_signature(pattern, present)]
            if not found:
                raise UsageError(f"--target {pattern} matches nothing{_close(pattern, outlines)}")
            chosen.update({o.name: o for o in found})
        return list(chosen.values())

    def signature(self, symbol: str, arm: ArmSource) -> Signature:
        key = (arm.label, symbol)
        if key not in self._signatures:
            self._signatures[key] = signature_of(arm.sources, symbol)
        return self._signatures[key]

    def from_signature(self, symbol: str, arms: Sequence[ArmSource]) -> Outline:
        """A target of its own for a function that no target observes, with cases made from its signature."""
        try:
            first, *others = [self.signature(symbol, arm) for arm in arms]
        except LiftError as error:
            return Outline(symbol, (symbol,), (), (), False, (), Target.timeout, "", False, "", str(error))
        # Where a version asks for something else, it is refused when it is planned; the others go on.
        signature = merged(first, [other for other in others if not other["refusal"] and not conflict(first, other)])
        refusal = unmakeable(signature) or next((s["refusal"] for s in others if s["refusal"]), "")
        plain = Outline(symbol, (symbol,), symbols_in(signature), (), False, (), Target.timeout, "", False)
        if refusal:
            return replace(plain, refusal=f"no target of the catalog observes it, and {refusal}; {_GIVE_CASES}")
        closures = [closure for arm in arms if (closure := self.bind(plain, arm).closure) is not None]
        triton = any("triton" in name for closure in closures for name in {*closure.standins, *closure.external})
        item = {"symbol": symbol, "triton": triton, "uses": plain.uses, "signature": signature}
        return replace(plain, triton=triton, signature=json.dumps(item, sort_keys=True))

    def observes(self, outline: Outline, arm: ArmSource, symbol: str) -> bool:
        bound = self.bind(outline, arm)
        return bound.closure is not None and bound.closure.reaches(symbol)


def without_helpers(planned: Sequence[Planned], patterns: Sequence[str]) -> list[Planned]:
    """What is planned, without targets that head adds and that another one runs: that one, which both versions have,
    says whether they do the same, and names them. One that was asked for by its name or symbol stays.
    """
    kept = []
    for item in planned:
        symbol = item.head.symbol
        asked = not {item.outline.name, *item.outline.symbols}.isdisjoint(patterns)
        through = (
            []
            if item.code != "added" or asked or symbol is None
            else [
                other
                for other in planned
                if other.code == "changed"
                and other.head_index == item.head_index
                and other.head.closure is not None
                and other.head.closure.reaches(symbol)
            ]
        )
        if not through:
            kept.append(item)
        for other in through[:1]:
            added = f"added in head ({symbol}), so base has nothing to compare it with"
            other.notes.append(f"{item.outline.name}: {added}; this target reaches it")
    return kept


def _unlike_syntax(base: Closure, head: Closure) -> list[str]:
    """Why a target is executed though the definitions it reaches are the same as syntax."""
    if {k: p.digest for k, p in base.pieces.items()} != {k: p.digest for k, p in head.pieces.items()}:
        return []
    paths = sorted(p for p in {*base.data, *head.data} if base.data.get(p) != head.data.get(p))
    if not paths:
        return []
    words = sorted(base.whole | head.whole)
    why = f"reads {', '.join(words)}, so whole files count" if words else "reads files beside it"
    return [f"executed though the code is the same as syntax: it {why}, and {', '.join(paths[:3])} differs"]


_Read = Callable[[str], bytes | None]


def _recompiled(base: Closure, read_base: _Read, head: Closure, read_head: _Read) -> list[str]:
    """The functions, by qualified name, whose decorators that compile them differ between the arms."""
    found = []
    for symbol in sorted(base.compiled | head.compiled):
        module, _, name = symbol.partition(":")
        left, right = base.pieces.get((module, name)), head.pieces.get((module, name))
        if left is not None and right is not None and left.digest != right.digest:
            one, two = compile_decorators(left, read_base(left.path)), compile_decorators(right, read_head(right.path))
            found += [name] if one != two else []
    return found


def _unapplied(base: Closure, head: Closure) -> str:
    """What importing does in one arm only and not here: it changes what both share, such as torch's settings and the
    environment, or it fails where the code goes on without."""
    reasons = (
        (base.shared, head.shared, "importing changes what both arms share, which is not applied here"),
        (base.failures, head.failures, "an import that the code tries may fail, which it does not here"),
    )
    for left, right, reason in reasons:
        found = [f"base {text}" for digest, text in left.items() if digest not in right]
        found += [f"head {text}" for digest, text in right.items() if digest not in left]
        if found:
            more = f" and {len(found) - 2} more" if len(found) > 2 else ""
            return f"{reason}: {', '.join(found[:2])}{more}"
    return ""


def _close(name: str, outlines: Sequence[Outline]) -> str:
    """Targets that may have been meant: the text is in their name or symbols, or is nearly a name."""
    import difflib

    names = [o.name for o in outlines if name in o.name]
    symbols = [o.name for o in outlines if any(name in symbol.partition(":")[2] for symbol in o.symbols)]
    within = list(dict.fromkeys([*names, *symbols])) if len(name) > 2 else []
    close = within[:3] or difflib.get_close_matches(name, [o.name for o in outlines], 3)
    return f"; close: {', '.join(close)}" if close else "; `difftest targets` lists the catalog"


def write_closures(planned: Sequence[Planned], base: ArmSource, heads: Sequence[ArmSource]) -> None:
    """Make the files of all closures real, so that the worker need not ask for them."""
    jobs: set[tuple[int, str]] = set()
    arms = [base, *heads]
    for item in planned:
        for index, bound in ((0, item.base), (item.head_index + 1, item.head)):
            if bound.closure is not None:
                jobs.update((index, p.path) for p in bound.closure.pieces.values() if not p.lazy)
                jobs.update((index, path) for path in bound.closure.data)
    if not jobs:
        return
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda job: arms[job[0]].write(job[1]), sorted(jobs)))


def arm_setup(arm: ArmSource, package: str, scratch: Path) -> dict[str, Any]:
    """What the worker needs to know of an arm."""
    return {
        "effects": [(module, *key, lazy) for (module, key), lazy in arm.effects.items()],
        "folder": str(arm.folder),
        "modules": dict(arm.found),
        "facts": arm.sources.known(_FOR_LOADING),
        "packages": [p for p in arm.tree.top_level_packages() if (m := arm.find(p)) and m[0]] or [package],
        "package": package,
        "triton_cache": str(scratch / f"triton-{arm.label}"),
    }
