"""What every kind of tree has in common: one version's files, read-only, by POSIX path.

A subclass only lists folders and loads files. Paths, symbolic links, modules and content ids are handled
here, so that the same tree gives the same answers whether it comes out of git, a folder or a wheel.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from difftest.result import Identity

ROOTS = ("", "src", "python")
"""Folders, relative to a tree's root, in which top-level packages are looked for, in this order."""

MAX_LINKS = 40
"""Symbolic links followed for one path; the limit that Linux has."""


class Entry(NamedTuple):
    """One name in a folder.

    Attributes:
        kind: `file`, `folder` or `link` (symbolic).
        handle: what the tree needs to load it: an object name, a zip member, bytes; None where the path is
            enough.
    """

    kind: Literal["file", "folder", "link"]
    handle: Any = None


@dataclass(frozen=True)
class ModuleFile:
    """Where a module's source is.

    Attributes:
        name: dotted name.
        path: POSIX path relative to the tree's root; None for a namespace package (a folder without
            `__init__.py`).
        is_package: whether it can hold submodules.
    """

    name: str
    path: str | None
    is_package: bool


def git_blob_id(content: bytes) -> str:
    """The name git gives to this content as a blob (SHA-1, 40 hex digits)."""
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


class Tree(ABC):
    """One version's files. Thread-safe; use it as a context manager or call :meth:`close`.

    Paths are POSIX paths relative to the tree's root, without `.` and `..`. Symbolic links are followed as
    long as they stay inside the tree; one that leads out of it is no file. Every method raises TreeError when
    the tree's source can no longer be read (an object missing from the clone, a damaged archive member).
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._folders: dict[str, Mapping[str, Entry] | None] = {}
        self._modules: dict[str, ModuleFile | None] = {}
        self._roots: dict[str, str | None] = {}
        self._blobs: dict[str, str] = {}

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The resolved identity, for reports."""

    @abstractmethod
    def _list(self, folder: str) -> Mapping[str, Entry] | None:
        """Entries of a folder reached without links; `""` is the root. None when there is no such folder."""

    @abstractmethod
    def _load(self, path: str, entry: Entry) -> bytes | None:
        """Content of a file, or target of a link; None when it has vanished since it was listed."""

    def close(self) -> None:  # noqa: B027 (most trees hold nothing open)
        """Let go of processes and open files. A closed tree cannot be read. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, path: str) -> bytes | None:
        """The file's bytes as stored (no end-of-line or filter conversion); None when no such file."""
        found = self._find(path)
        return self._load(*found) if found and found[1].kind == "file" else None

    def exists(self, path: str) -> bool:
        """Whether a file or folder of this path is in the tree."""
        return self._find(path) is not None

    def is_file(self, path: str) -> bool:
        found = self._find(path)
        return found is not None and found[1].kind == "file"

    def is_folder(self, path: str) -> bool:
        found = self._find(path)
        return found is not None and found[1].kind == "folder"

    def blob(self, path: str) -> str | None:
        """Content id of a file: its git blob name, also in trees that are not git's; None when no such file.

        The same content has the same id in every tree. The one exception is a git repository in the sha256
        object format, whose ids are 64 hex digits long.
        """
        found = self._find(path)
        return self._blob(*found) if found and found[1].kind == "file" else None

    def paths(self, prefix: str = "") -> list[str]:
        """Files under a folder, recursively and sorted; empty when there is no such folder.

        A link to a file is listed. A link to a folder is not entered: its files stand where they really are.
        """
        found = self._find(prefix)
        if found is None or found[1].kind != "folder":
            return []
        listed: list[str] = []
        waiting = [(found[0], prefix)]
        while waiting:
            real, shown = waiting.pop()
            for name, entry in (self._listing(real) or {}).items():
                path = _join(shown, name)
                if entry.kind == "folder":
                    waiting.append((_join(real, name), path))
                elif entry.kind == "file" or self.is_file(path):
                    listed.append(path)
        return sorted(listed)

    def module(self, name: str) -> ModuleFile | None:
        """The file of a dotted module name, found as Python's import would; None when the tree has no such
        module.

        Top-level packages are looked for in :data:`ROOTS`, once for each. A package wins over a module of the
        same name, and that over a namespace package.
        """
        with self._lock:
            if name not in self._modules:
                self._modules[name] = self._find_module(name)
            return self._modules[name]

    def top_level_packages(self) -> list[str]:
        """Names of the packages (folders with an `__init__.py`) in :data:`ROOTS`, sorted."""
        names = set()
        for root in ROOTS:
            found = self._find(root)
            for name in (self._listing(found[0]) or {}) if found else ():
                if name.isidentifier() and self.is_file(_join(root, name, "__init__.py")):
                    names.add(name)
        return sorted(names)

    def _blob(self, path: str, entry: Entry) -> str | None:
        if path not in self._blobs:
            content = self._load(path, entry)
            if content is None:
                return None
            self._blobs[path] = git_blob_id(content)
        return self._blobs[path]

    def _listing(self, folder: str) -> Mapping[str, Entry] | None:
        with self._lock:
            if folder not in self._folders:
                self._folders[folder] = self._list(folder)
            return self._folders[folder]

    def _find(self, path: str) -> tuple[str, Entry] | None:
        """The real path, all links followed, and its entry; None when it does not exist inside the tree."""
        todo = path.split("/")[::-1] if path else []
        if any(part in ("", ".", "..") for part in todo):
            return None
        done: list[str] = []
        last = Entry("folder")
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                last = Entry("folder")
                continue
            here = "/".join(done)
            if last.kind != "folder":
                return None
            entry = (self._listing(here) or {}).get(part)
            if entry is None:
                return None
            if entry.kind == "link":
                links += 1
                target = self._load(_join(here, part), entry)
                if target is None or target.startswith(b"/") or links > MAX_LINKS:
                    return None
                todo.extend(target.decode("utf-8", "surrogateescape").split("/")[::-1])
                continue
            done.append(part)
            last = entry
        return "/".join(done), last

    def _find_module(self, name: str) -> ModuleFile | None:
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        if len(parts) == 1:
            root = self._root(name)
            return None if root is None else self._module_at(name, _join(root, name))
        parent = self.module(".".join(parts[:-1]))
        root = self._root(parts[0])
        if parent is None or not parent.is_package or root is None:
            return None
        return self._module_at(name, _join(root, *parts))

    def _module_at(self, name: str, stem: str) -> ModuleFile | None:
        if self.is_file(f"{stem}/__init__.py"):
            return ModuleFile(name, f"{stem}/__init__.py", True)
        if self.is_file(f"{stem}.py"):
            return ModuleFile(name, f"{stem}.py", False)
        return ModuleFile(name, None, True) if self.is_folder(stem) else None

    def _root(self, top: str) -> str | None:
        """The root that holds a top-level name. A real package wins over a bare folder of that name."""
        with self._lock:
            if top not in self._roots:
                found = [(root, self._module_at(top, _join(root, top))) for root in ROOTS]
                real = [root for root, module in found if module and module.path]
                bare = [root for root, module in found if module]
                self._roots[top] = next(iter(real + bare), None)
            return self._roots[top]


def expand(path: Path) -> Path:
    """`~` replaced by the home folder; a name that has none (`~nobody/x`) stays as it is."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)
