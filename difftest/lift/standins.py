"""What takes the place of in-tree names that cannot be lifted: compiled operators, the platform, the logger.

Which names, and what stands in for them, is a profile's business (`difftest/profiles/`); this module only knows how
to look one up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StandIn:
    """One stand-in.

    Attributes:
        name: `package.module` for a whole module, `package.module:attribute`, or `torch.ops.NAMESPACE` for compiled
            operators; one of these that the process has is used itself.
        make: makes the object (for a module: a mapping of its attributes). Called in the worker, once an arm.
            Its docstring says what the stand-in assumes. With `facts` it is given those that are known, by name.
        partial: names of the module that the stand-in lacks are lifted from the tree all the same.
        facts: what it assumes of the host unless it is told, as `name` of the fact `module:name`.
    """

    name: str
    make: Callable[..., Any]
    partial: bool = False
    facts: tuple[str, ...] = ()

    @property
    def assumes(self) -> str:
        return " ".join((self.make.__doc__ or "").split())


class StandIns:
    """The stand-ins of a profile.

    Args:
        items: the stand-ins.
        host: take the objects from the installed package instead (`--host`).
        built: modules that a build makes, so that a source tree lacks them.
        facts: what is known of the host, by `module:name`; stand-ins that take them assume nothing else.
    """

    def __init__(
        self,
        items: Mapping[str, StandIn] | None = None,
        host: str | None = None,
        built: Iterable[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.items = dict(items or {})
        self.host = host
        self.built = tuple(built)
        self.facts = dict(facts or {})
        self._attributes: dict[str, Mapping[str, Any]] = {}

    def key_for(self, module: str, attribute: str | None) -> str | None:
        """The stand-in that takes the place of `attribute` of `module`, or of the module itself, if any."""
        if attribute is not None and f"{module}:{attribute}" in self.items:
            return f"{module}:{attribute}"
        while module:
            item = self.items.get(module)
            if item is not None:
                if not item.partial or attribute is None or attribute in self.attributes(module):
                    return module
                return None
            module = module.rpartition(".")[0]
        return None

    def is_built(self, module: str) -> bool:
        """Whether a build makes a module or a package around it."""
        return any(f"{module}.".startswith(f"{name}.") for name in self.built)

    def attributes(self, module: str) -> Mapping[str, Any]:
        """What a stand-in for a whole module provides."""
        if module not in self._attributes:
            self._attributes[module] = self._make(self.items[module])
        return self._attributes[module]

    def make(self, key: str) -> Any:
        """The object that stands in: the host package's own with `--host`, else the profile's."""
        if self.host:
            module, _, attribute = key.partition(":")
            found = importlib.import_module(module)
            return getattr(found, attribute) if attribute else found
        return self._make(self.items[key])

    def _make(self, item: StandIn) -> Any:
        if not item.facts:
            return item.make()
        module = item.name.partition(":")[0]
        names = {name: f"{module}:{name}" for name in item.facts}
        return item.make({name: self.facts[fact] for name, fact in names.items() if fact in self.facts})
