"""Addresses in texts: numbers that say where something lies in memory, elsewhere in each run and in each arm."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"\b0[xX][0-9a-fA-F]{6,16}\b")
_OF_OBJECT = re.compile(r"\bat 0x[0-9a-f]{9,16}\b")
_RANGE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)
_MAPS = Path("/proc/self/maps")


def without_addresses(text: str) -> str:
    """A text with `0x...` for addresses: of an object (`<K object at 0x7f5c1c0a3d90>`), or in memory of this process.

    Any other hexadecimal number is what the code computed, and stays.
    """
    text = _OF_OBJECT.sub("at 0x...", text)
    if _NUMBER.search(text) is None:
        return text
    memory = _memory()
    return _NUMBER.sub(lambda found: "0x..." if _lies_in(int(found[0], 16), memory) else found[0], text)


def _memory() -> list[tuple[int, int]] | None:
    """Where this process's memory begins and ends; None where the system does not say."""
    try:
        return [(int(start, 16), int(end, 16)) for start, end in _RANGE.findall(_MAPS.read_text(errors="replace"))]
    except OSError:
        return None


def _lies_in(number: int, memory: list[tuple[int, int]] | None) -> bool:
    if memory is None:
        return number >= 1 << 32
    return any(start <= number < end for start, end in memory)
