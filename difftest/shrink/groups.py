"""Which mismatches are reduced: the first of each group of one kind at one leaf, the largest groups first. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from difftest.shrink.leaves import general_leaf, leaf_indices, leaf_key

GROUPS = 3
"""Groups of one target that are reduced."""


CHOICES = 4
"""Cases of a group, of which the first that can be reduced is."""


def groups(mismatches: Iterable[Mapping[str, Any]], limit: int = GROUPS) -> list[list[Mapping[str, Any]]]:
    """The first mismatches of the largest groups, one a case; of groups that differ by one position only, one comes
    first.

    Args:
        mismatches: as a unit of a run reports them, in the order in which they are shown.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in mismatches:
        found.setdefault((item["kind"], leaf_key(item["leaf"])), []).append(item)
    ordered = sorted(found.values(), key=lambda items: (not items[0]["contract"], -len(items)))
    seen: set[tuple[str, str]] = set()
    first: list[list[Mapping[str, Any]]] = []
    later: list[list[Mapping[str, Any]]] = []
    for items in ordered:
        rough = (items[0]["kind"], general_leaf(items[0]["leaf"]))
        by_case: dict[str, Mapping[str, Any]] = {}
        for item in items:
            by_case.setdefault(item["case"], item)
        (later if rough in seen else first).append(list(by_case.values())[:CHOICES])
        seen.add(rough)
    return [*first, *later][:limit]


def found_file(home: Path, case: str) -> Path:
    """Where a child keeps a differing case that is in no list, below the run's home."""
    return home / "found" / f"{case}.safetensors"


def whole_numbers(mismatch: Mapping[str, Any]) -> list[int]:
    """The values of base and head that may be ids."""
    texts = dict.fromkeys((mismatch["base"], mismatch["head"]))
    return [int(text) for text in texts if text.isdecimal() and len(text) < 8]


def position(mismatch: Mapping[str, Any]) -> list[int]:
    """Where inside its leaf a mismatch is, rows of lists included; last what may be a position in a tuple."""
    inside = leaf_indices(mismatch["leaf"])
    first = inside[:1] if mismatch["leaf"].startswith("return[") else []
    return [*inside[len(first) :][::-1], *mismatch["index"], *first]
