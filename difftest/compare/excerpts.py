"""Long texts in few characters, so that it can be seen where two of them differ. Pure."""

from __future__ import annotations

from itertools import takewhile

_KEPT = 40
"""Characters kept from the beginning of a text, and from before the place where it differs."""


def excerpts(base: str, head: str, limit: int) -> tuple[str, str]:
    """Two texts that differ, each in about `limit` characters; one that is cut at its end says how long it was."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(base, head, strict=False)))
    skipped = alike - _KEPT if alike > limit // 2 and max(len(base), len(head)) > limit else 0
    return _excerpt(base, skipped, limit), _excerpt(head, skipped, limit)


def _excerpt(text: str, skipped: int, limit: int) -> str:
    begin = f"{text[:_KEPT]} … " if skipped > _KEPT else ""
    rest = text[skipped if begin else 0 :]
    room = limit - len(begin)
    return begin + rest if len(rest) <= room else f"{begin}{rest[:room]}… ({len(text)} characters)"
