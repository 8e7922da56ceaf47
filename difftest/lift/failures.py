"""Tells an exception of a module's own code while it is loaded from any other."""

from __future__ import annotations

import contextlib

_MARK = "__difftest_load__"


def mark_load_failure(error: BaseException) -> None:
    """Note on an exception that it left code that runs when its module is imported."""
    with contextlib.suppress(Exception):  # a class of the code under test may refuse
        setattr(error, _MARK, True)


def is_load_failure(error: BaseException) -> bool:
    return getattr(error, _MARK, False) is True
