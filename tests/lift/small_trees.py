"""Small source trees, written in the test that uses them, lifted as arms."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from difftest.lift.arm import LiftedArm
from difftest.lift.closure import Closure, find_closure
from difftest.lift.facts import Facts
from difftest.lift.loader import Loader
from difftest.lift.source import SourceModule
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIn, StandIns
from difftest.trees.base import git_blob_id

_number = itertools.count()


def sources_of(files: Mapping[str, str], shared: dict[tuple[str, str], Facts] | None = None) -> Sources:
    """The modules of a tree given as {path: text}."""
    texts = {path: textwrap.dedent(text).lstrip("\n").encode() for path, text in files.items()}
    folders = {"/".join(path.split("/")[:n]) for path in texts for n in range(1, path.count("/") + 1)}

    def find(name: str) -> tuple[str | None, bool] | None:
        stem = name.replace(".", "/")
        if f"{stem}/__init__.py" in texts:
            return f"{stem}/__init__.py", True
        if f"{stem}.py" in texts:
            return f"{stem}.py", False
        return (None, True) if stem in folders else None

    if shared is None:
        return Sources(find, texts.get)
    return Sources(find, texts.get, lambda path: git_blob_id(texts[path]), shared)


def arm_of(
    folder: Path, files: Mapping[str, str], standins: Iterable[StandIn] = (), label: str | None = None
) -> LiftedArm:
    """An arm of a tree; its files are made real below `folder` when they are lifted."""
    sources = sources_of(files)
    label = label or f"t{next(_number)}"

    def file_of(source: SourceModule) -> str:
        path = folder / label / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.data)
        return str(path)

    return LiftedArm(label, Loader(label, sources, StandIns({s.name: s for s in standins}), file_of))


_shared: dict[tuple[str, str], Facts] = {}


def closure_of(files: Mapping[str, str], *symbols: str, standins: Iterable[StandIn] = ()) -> Closure:
    """The closure of symbols in a tree; what does not change between two trees is parsed once."""
    return find_closure(sources_of(files, _shared), symbols, StandIns({s.name: s for s in standins}))


def names(closure: Closure) -> set[str]:
    """Pieces as `module:qualname`."""
    return {f"{module}:{qualname}" for module, qualname in closure.pieces}


def get(folder: Path, files: Mapping[str, str], symbol: str) -> Any:
    return arm_of(folder, files).get(symbol)
