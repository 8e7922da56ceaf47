"""What the catalog reaches in trees, without running anything: `difftest targets` and `difftest extract`. No torch."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from difftest import catalog
from difftest.catalog import Outline
from difftest.errors import LiftError, UsageError
from difftest.lift.closure import Closure, find_closure
from difftest.lift.extract import extract
from difftest.profiles import standins_for
from difftest.run.plan import ArmSource, Bound, Planner, refuse_without_package
from difftest.trees import open_tree
from difftest.trees.cache import cache_folder


@dataclass(frozen=True)
class TargetSurvey:
    """One target as far as it can be known without running it.

    Attributes:
        code: `same`, `changed`, `added`, `removed`, `absent`, `refused`; `present` when only base was given; empty
            without trees.
        changed: what of the closure changed: `module:qualname`, with `+` added and `-` removed in front.
    """

    name: str
    symbols: tuple[str, ...]
    code: str = ""
    reason: str = ""
    lines: int = 0
    pieces: int = 0
    files: int = 0
    standins: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}


def survey(
    base: str | None = None,
    head: str | None = None,
    repo: Path | None = None,
    targets: Sequence[str] = (),
    cases_from: Sequence[Path] = (),
    cache: Path | None = None,
) -> list[TargetSurvey]:
    """The catalog, with what each target reaches in `base` and what a change from `base` to `head` affects."""
    outlines = catalog.outline(cache_folder(cache), [str(p) for p in cases_from])
    if base is None:
        chosen = Planner().select(outlines, targets, [])
        return [TargetSurvey(o.name, o.symbols) for o in chosen]
    with _arms([base] if head is None else [base, head], repo, cache) as arms:
        planner = Planner()
        chosen = planner.select(outlines, targets, arms)
        refuse_without_package(chosen, arms)
        if head is None:
            return [_one(o, planner.bind(o, arms[0])) for o in chosen]
        return [_pair(planner, o, arms) for o in chosen]


@contextlib.contextmanager
def _arms(specs: Sequence[str], repo: Path | None, cache: Path | None) -> Iterator[list[ArmSource]]:
    parsed: dict[tuple[str, str], Any] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="difftest-")))
        trees = [stack.enter_context(open_tree(spec, repo, cache)) for spec in specs]
        yield [
            ArmSource(label, tree, folder, parsed, cache) for label, tree in zip(("base", "head"), trees, strict=False)
        ]


def _one(outline: Outline, bound: Bound) -> TargetSurvey:
    code = "refused" if bound.reason else "present" if bound.symbol else "absent"
    return TargetSurvey(outline.name, outline.symbols, code, bound.reason, **_extent(bound))


def _extent(bound: Bound) -> dict[str, Any]:
    closure = bound.closure
    if closure is None:
        return {}
    return {
        "lines": closure.lines,
        "pieces": len(closure.pieces),
        "files": len({p.path for p in closure.pieces.values() if not p.lazy}),
        "standins": tuple(sorted(closure.standins)),
        "external": tuple(sorted(closure.external)),
    }


def _pair(planner: Planner, outline: Outline, arms: Sequence[ArmSource]) -> TargetSurvey:
    planned = planner.plan(outline, arms[0], arms[1], 0)
    changed = changed_names(planned.base.closure, planned.head.closure)
    extent = _extent(planned.head if planned.head.closure is not None else planned.base)
    return TargetSurvey(outline.name, outline.symbols, planned.code, planned.reason, changed=changed, **extent)


def changed_names(base: Closure | None, head: Closure | None) -> tuple[str, ...]:
    """What differs between two closures: `module:qualname`, with `+` added and `-` removed in front."""
    if base is None or head is None:
        return ()
    changed = []
    left, right = base.pieces, head.pieces
    for key in sorted({*left, *right}):
        if key not in right:
            changed.append(f"-{key[0]}:{key[1]}")
        elif key not in left:
            changed.append(f"+{key[0]}:{key[1]}")
        elif left[key].digest != right[key].digest:
            changed.append(f"{key[0]}:{key[1]}")
    return tuple(changed)


def extract_target(tree: str, target: str, repo: Path | None = None, cache: Path | None = None) -> str:
    """The lifted source of a target, or of a raw symbol that the catalog does not know, with provenance.

    Raises:
        UsageError: no such target or symbol; LiftError becomes one too.
    """
    outlines = catalog.outline(cache_folder(cache))
    with _arms([tree], repo, cache) as arms:
        planner = Planner()
        parts = []
        if ":" in target and arms[0].sources.defines(target):
            package = target.partition(".")[0].partition(":")[0]
            try:
                closure = find_closure(arms[0].sources, [target], standins_for(package))
            except LiftError as error:
                raise UsageError(f"{target} cannot be lifted: {error}; name another target or tree") from None
            return extract(closure, arms[0].tree.read)
        chosen = planner.select(outlines, [target], arms)
        refuse_without_package(chosen, arms, "--tree")
        for outline in chosen:
            bound = planner.bind(outline, arms[0])
            if bound.reason:
                raise UsageError(f"{outline.name} cannot be lifted: {bound.reason}; name another target or tree")
            if bound.closure is not None:
                parts.append(f"# target {outline.name}: {bound.symbol}\n" + extract(bound.closure, arms[0].tree.read))
        if not parts:
            raise UsageError(
                f"{tree} defines none of the symbols of {target}; difftest targets --base {tree} lists what it has"
            )
        return "\n".join(parts)
