"""What changed of the code that the catalog is about, and no target reaches: nothing is claimed of it. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from difftest.errors import LiftError
from difftest.lift.resolve import Key
from difftest.profiles import concerns
from difftest.run.plan import ArmSource, Planned


def unreached(planned: Sequence[Planned], base: ArmSource, heads: Sequence[ArmSource]) -> tuple[str, ...]:
    """Symbols `module:qualname` of functions, methods, classes and values that differ between base and a head, and that
    no planned target reaches in either."""
    found: dict[str, None] = {}
    for number, head in enumerate(heads):
        items = [item for item in planned if item.head_index == number]
        closures = [bound.closure for item in items for bound in (item.base, item.head) if bound.closure is not None]
        reached = {key for closure in closures for key in closure.pieces}
        for package in dict.fromkeys(item.outline.package for item in items):
            for path in _files(concerns(package), base, head):
                if base.tree.blob(path) != head.tree.blob(path):
                    keys = _changed(path, base, head)
                    found |= dict.fromkeys(":".join(key) for key in keys if not _within(key, reached, keys))
    return tuple(found)


def _files(places: Iterable[str], *arms: ArmSource) -> list[str]:
    """The Python files in some folders, or that are named, of any of the arms."""
    found: dict[str, None] = {}
    for place in places:
        if place.endswith(".py"):
            found[place] = None
        else:
            found |= dict.fromkeys(p for arm in arms for p in arm.sources.paths(place) if p.endswith(".py"))
    return [path for path in found if any(arm.tree.is_file(path) for arm in arms)]


def _changed(path: str, base: ArmSource, head: ArmSource) -> list[Key]:
    """The definitions of a file that differ, each class before its methods."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    one, other = _definitions(base, module), _definitions(head, module)
    return [(module, name) for name in (one | other) if one.get(name) != other.get(name)]


def _definitions(arm: ArmSource, module: str) -> dict[str, str]:
    try:
        facts = arm.sources.facts(module)
        return {} if facts is None else facts.definitions
    except LiftError:
        return {}  # a target that needs it is refused, and says so


def _within(key: Key, reached: set[Key], changed: Sequence[Key]) -> bool:
    """Whether a definition is reached, or is a method of a class that is named itself."""
    module, name = key
    owner = (module, name.rpartition(".")[0])
    return key in reached or (owner in changed and owner not in reached)
