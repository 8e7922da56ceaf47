"""Readers of a result: one module a format, each a pure function of :class:`difftest.result.RunResult`.

`terminal` is for the screen and is not in :data:`FORMATS`, which holds what `--format KIND:PATH` writes.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from difftest.errors import UsageError
from difftest.result import RunResult

FORMATS: Mapping[str, str] = {
    "json": "json",
    "markdown": "markdown",
    "html": "html",
    "junit": "junit",
    "github": "github",
}
"""What `--format` takes, and the module in this package whose `render(result) -> str` makes it."""


def write(result: RunResult, kind: str, path: str | os.PathLike[str]) -> None:
    """Write the result as `kind` to `path`: the whole file or, when that fails, the one that was there before.

    Raises:
        UsageError: the kind is unknown, or the path cannot be written.
        DifftestError: the format needs a package that is not installed.
    """
    text: str = _module(kind).render(result)
    write_text(text, path)


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write a text to `path`: the whole file or, when that fails, the one that was there before.

    Raises:
        UsageError: the path cannot be written.
    """
    target = Path(path)
    try:
        _check_place(target)
        if _is_stream(target):
            with target.open("a", encoding="utf-8") as stream:
                stream.write(text)
        else:
            _replace(target.resolve(), text)
    except OSError as error:
        raise _unwritable(target, error) from error


def check_writable(kind: str, path: str | os.PathLike[str]) -> None:
    """Fail now rather than at the end of a run if :func:`write` would fail. Leaves nothing behind.

    Raises:
        UsageError: the kind is unknown, or the path cannot be written.
        DifftestError: the format needs a package that is not installed.
    """
    module = _module(kind)
    if kind == "html":
        module.check_available()
    check_place(path)


def check_place(path: str | os.PathLike[str]) -> None:
    """Fail if :func:`write_text` would fail. Leaves nothing behind.

    Raises:
        UsageError: the path cannot be written.
    """
    target = Path(path)
    try:
        _check_place(target)
        if not _is_stream(target):
            beside = _beside(target.resolve())
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            beside.unlink()
        elif not os.access(target, os.W_OK):
            raise PermissionError("no permission")
    except OSError as error:
        raise _unwritable(target, error) from error


def _module(kind: str) -> ModuleType:
    if kind not in FORMATS:
        raise UsageError(f"unknown report format {kind!r}; known are {', '.join(FORMATS)}")
    return import_module(f".{FORMATS[kind]}", __name__)


def _check_place(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError("it is a folder; name a file in it")
    if not target.resolve().parent.is_dir():
        raise FileNotFoundError("its folder does not exist; create it first")


def _is_stream(target: Path) -> bool:
    """Whether `target` is to be written to, not replaced: /dev/stdout, a pipe, a terminal."""
    return target.absolute().parts[1:2] in (("dev",), ("proc",)) or (target.exists() and not target.is_file())


def _beside(target: Path) -> Path:
    return target.with_name(f".{secrets.token_hex(8)}.part")


def _replace(target: Path, text: str) -> None:
    """Write beside the target and rename, so that no reader ever finds half a report."""
    part = _beside(target)
    try:
        part.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _unwritable(target: Path, error: OSError) -> UsageError:
    reason = str(error.strerror or error)
    return UsageError(f"cannot write {str(target)!r}: {reason}{'' if ';' in reason else '; name another file'}")
