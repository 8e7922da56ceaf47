"""Loads versions side by side in the current process, without supervisor, worker or sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from difftest.lift.arm import LiftedArm
from difftest.lift.loader import Loader
from difftest.lift.source import SourceModule
from difftest.lift.sources import Sources
from difftest.profiles import standins_for
from difftest.trees import Tree, open_tree


@contextlib.contextmanager
def load_arms(
    specs: Sequence[str], folder: Path, repo: Path | None = None, labels: Sequence[str] = ("base", "head")
) -> Iterator[list[LiftedArm]]:
    """Arms of some trees, as case files see them. Their code runs in this process, with its rights.

    Args:
        specs: trees, as :func:`difftest.trees.open_tree` takes them.
        folder: where the arms' files become real files; an arm has its own folder there.
        labels: the arms' names, by position.
    """
    with contextlib.ExitStack() as stack:
        trees = [stack.enter_context(open_tree(spec, repo)) for spec in specs]
        yield [_arm(label, tree, folder / label) for label, tree in zip(labels, trees, strict=False)]


def _arm(label: str, tree: Tree, folder: Path) -> LiftedArm:
    def find(name: str) -> tuple[str | None, bool] | None:
        module = tree.module(name)
        return None if module is None else (module.path, module.is_package)

    def file_of(source: SourceModule) -> str:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.data)
        return str(path)

    packages = [name for name in tree.top_level_packages() if (m := tree.module(name)) and m.path]
    items = {key: item for name in packages for key, item in standins_for(name).items.items()}
    standins = standins_for(packages[0] if packages else "")
    standins.items = items
    return LiftedArm(label, Loader(label, Sources(find, tree.read), standins, file_of))
