"""The cache folder: digests of files that are costly to hash, and files fetched from the package index.

Nothing in it is needed: it can be deleted at any time. Writes are atomic, so several processes may share it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from difftest.errors import TreeError
from difftest.trees.base import expand

VARIABLE = "DIFFTEST_CACHE"

SETTLED_SECONDS = 2.0
"""A digest of a file that changed less than this ago is not remembered: time stamps are that coarse."""


def cache_folder(cache: Path | None = None) -> Path:
    """The folder to use: the argument, else `$DIFFTEST_CACHE`, else `difftest` in the user's cache folder.

    It is not created here.
    """
    if cache is not None:
        return expand(cache)
    if named := os.environ.get(VARIABLE):
        return expand(Path(named))
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    elif sys.platform == "darwin":
        base = Path("~/Library/Caches")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return expand(base) / "difftest"


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """Turns a fault of the file system into one line about the cache folder.

    Raises:
        TreeError: it cannot be created, read or written (permissions, a full disk, a file in its place).
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise TreeError(f"cannot use the cache folder {folder}: {reason}; set {VARIABLE}") from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write a whole file or nothing; the last of several writers wins. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remembered(folder: Path, signature: str, changed_ns: int, compute: Callable[[], str]) -> str:
    """A digest, computed once for each signature.

    Args:
        folder: the cache folder.
        signature: what identifies the state that is hashed: paths, sizes and time stamps.
        changed_ns: the newest of these time stamps, in nanoseconds since the epoch.
        compute: makes the digest. Its own OSError is passed on untouched.

    Raises:
        TreeError: the cache folder cannot be used.
    """
    key = hashlib.sha256(signature.encode("utf-8", "surrogateescape")).hexdigest()
    entry = folder / "digests" / key[:2] / f"{key}.json"
    with using(folder):
        try:
            stored = json.loads(entry.read_bytes())
        except FileNotFoundError:
            stored = None
        except ValueError:
            stored = None  # not written by this version; it is written again below
        entry.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(stored, dict) and isinstance(stored.get("digest"), str):
        return str(stored["digest"])
    settled = time.time_ns() - changed_ns > SETTLED_SECONDS * 1e9
    digest = compute()
    if settled:
        with using(folder):
            write_atomic(entry, json.dumps({"digest": digest}).encode())
    return digest


def file_sha256(path: Path, folder: Path) -> str:
    """SHA-256 of a file, remembered by its path, size, inode and time stamps.

    Raises:
        OSError: the file cannot be read.
        TreeError: the cache folder cannot be used.
    """
    path = path.resolve()
    stat = path.stat()
    signature = f"file {path} {stat.st_size} {stat.st_ino} {stat.st_mtime_ns} {stat.st_ctime_ns}"

    def compute() -> str:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    return remembered(folder, signature, max(stat.st_mtime_ns, stat.st_ctime_ns), compute)
