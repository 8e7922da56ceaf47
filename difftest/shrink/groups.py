"""Which mismatches are reduced: the first of each group of one kind at one leaf, the largest groups first. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_STEP = re.compile(r"\[(\*|-?\d+)\]")

GROUPS = 3
"""Groups of one target that are reduced."""


CHOICES = 12
"""Cases of a group, of which the first that can be reduced is."""


def groups(mismatches: Iterable[Mapping[str, Any]], limit: int = GROUPS) -> list[list[Mapping[str, Any]]]:
    """The first mismatches of the largest groups, one a case; of groups that differ by one position only, one comes
    first.

    Args:
        mismatches: as a unit of a run reports them, in the order in which they are shown.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in mismatches:
        found.setdefault((item["kind"], item["place"]), []).append(item)
    ordered = sorted(found.values(), key=lambda items: (not items[0]["contract"], -len(items)))
    seen: set[tuple[str, str]] = set()
    first: list[list[Mapping[str, Any]]] = []
    later: list[list[Mapping[str, Any]]] = []
    for items in ordered:
        rough = (items[0]["kind"], _STEP.sub("[]", items[0]["place"]))
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
    """Where inside its leaf a mismatch is, rows of lists included; last positions in a tuple."""
    steps = list(zip(_STEP.findall(mismatch["leaf"]), _STEP.findall(mismatch["place"]), strict=True))
    rows = [int(at) for at, general in steps if general == "*"]
    return [*rows[::-1], *mismatch["index"], *(int(at) for at, general in steps if general != "*")]
