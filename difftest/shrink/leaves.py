"""Names of leaves, such as `return[0][12]`, without the positions in them. Pure text."""

from __future__ import annotations

import re

_INDEX = re.compile(r"\[(-?\d+)\]")


def general_leaf(leaf: str) -> str:
    """A leaf without its indices: `return[0][3]` is `return[][]`. Keys of dicts stay."""
    return _INDEX.sub("[]", leaf)


def leaf_key(leaf: str) -> str:
    """A leaf without its rows: `return[0][3]` is `return[0][]`, since what a tuple returns differs by position."""
    head, bracket, rest = leaf.partition("]")
    return f"{head}]{general_leaf(rest)}" if leaf.startswith("return[") and bracket else general_leaf(leaf)


def leaf_indices(leaf: str) -> list[int]:
    """The indices in a leaf, outer ones first."""
    return [int(number) for number in _INDEX.findall(leaf)]
