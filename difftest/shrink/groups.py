"""Which mismatches are reduced: the first of each group of one kind at one leaf, the largest groups first. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

GROUPS = 3
"""Groups of one target that are reduced."""

_INDEX = re.compile(r"\[(-?\d+)\]")


def leaf_key(leaf: str) -> str:
    """A leaf without positions; `return[1][3]` is `return[1][]`, since what a tuple returns differs by position."""
    head, bracket, rest = leaf.partition("]")
    if leaf.startswith("return[") and bracket:
        return f"{head}]{_INDEX.sub('[]', rest)}"
    return _INDEX.sub("[]", leaf)


def groups(mismatches: Iterable[Mapping[str, Any]], limit: int = GROUPS) -> list[Mapping[str, Any]]:
    """The first mismatch of each of the largest groups; of groups that differ by one position only, one comes first.

    Args:
        mismatches: as a unit of a run reports them, in the order in which they are shown.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in mismatches:
        found.setdefault((item["kind"], leaf_key(item["leaf"])), []).append(item)
    ordered = sorted(found.values(), key=lambda items: (not items[0]["contract"], -len(items)))
    seen: set[tuple[str, str]] = set()
    first: list[Mapping[str, Any]] = []
    later: list[Mapping[str, Any]] = []
    for items in ordered:
        rough = (items[0]["kind"], _INDEX.sub("[]", items[0]["leaf"]))
        (later if rough in seen else first).append(items[0])
        seen.add(rough)
    return [*first, *later][:limit]


def found_file(home: Path, case: str) -> Path:
    """Where a child keeps a differing case that is in no list, below the run's home."""
    return home / "found" / f"{case}.safetensors"


def position(mismatch: Mapping[str, Any]) -> list[int]:
    """Where inside its leaf a mismatch is, rows of lists included."""
    inside = [int(number) for number in _INDEX.findall(mismatch["leaf"])]
    return [*inside[::-1], *mismatch["index"]]
