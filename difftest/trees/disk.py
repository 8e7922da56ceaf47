"""Trees on disk: a plain directory, and the worktree of a git repository as it is now."""

# A Path for each of thousands of files costs more than reading them.
# ruff: noqa: PTH112, PTH114, PTH115, PTH116, PTH123

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from difftest.errors import TreeError
from difftest.result import Identity
from difftest.trees.base import Entry, Tree, expand
from difftest.trees.cache import remembered
from difftest.trees.git import Repository

WHOLE_FILE_BYTES = 16 * 2**20
"""A changed file larger than this enters a worktree's identity by size and time, not by content."""

_STATUS = (
    "status",
    "--porcelain",
    "-z",
    "--no-renames",
    "--untracked-files=all",
    "--ignore-submodules=all",
)


class DiskTree(Tree):
    """Files below a folder on disk. A file is read once: edits during a run do not show."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root_folder = os.fspath(root)
        self._contents: dict[str, bytes] = {}

    def _where(self, path: str) -> str:
        return f"{self._root_folder}/{path}" if path else self._root_folder

    def _list(self, folder: str) -> Mapping[str, Entry] | None:
        entries = {}
        try:
            with os.scandir(self._where(folder)) as found:
                for item in found:
                    if item.is_symlink():
                        entries[item.name] = Entry("link")
                    elif item.is_dir(follow_symlinks=False):
                        entries[item.name] = Entry("folder")
                    elif item.is_file(follow_symlinks=False):
                        entries[item.name] = Entry("file")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TreeError(
                f"cannot read the folder {self._where(folder)}: {error.strerror}; make it readable"
            ) from error
        return entries

    def _load(self, path: str, entry: Entry) -> bytes | None:
        where = self._where(path)
        try:
            if entry.kind == "link":
                return os.fsencode(os.readlink(where))
            with self._lock:
                if path not in self._contents:
                    self._contents[path] = _read(where)
                return self._contents[path]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TreeError(f"cannot read {where}: {error.strerror}; make it readable") from error


class DirectoryTree(DiskTree):
    """A directory: an unpacked wheel, a `site-packages` folder, an edited copy.

    Folders whose name begins with a dot, `__pycache__` and virtual environments are left out.

    The identity is a SHA-256 over the paths and contents of all `.py` files, so it is the same on every
    machine. It is computed when first asked for (about 0.1 ms a file) and remembered in the cache by paths,
    sizes, inodes and time stamps (about 0.02 ms a file).

    Args:
        spec: the directory as the user wrote it.
        folder: the directory.
        cache: the cache folder.
    """

    def __init__(self, spec: str, folder: Path, cache: Path) -> None:
        super().__init__(folder.resolve())
        self._spec = spec
        self._cache = cache
        self._identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        with self._lock:
            if self._identity is None:
                digest = self._digest()
                name = Path(self._root_folder).name or self._root_folder
                self._identity = Identity(
                    self._spec, "directory", f"{name} sha256:{digest[:16]}", {"sha256": digest, "file": name}
                )
            return self._identity

    def _list(self, folder: str) -> Mapping[str, Entry] | None:
        entries = super()._list(folder)
        if entries is None:
            return None
        if folder and "pyvenv.cfg" in entries:
            return {}
        return {
            name: entry
            for name, entry in entries.items()
            if entry.kind != "folder" or not (name.startswith(".") or name == "__pycache__")
        }

    def _digest(self) -> str:
        paths = [path for path in self.paths() if path.endswith(".py")]
        signature = [f"directory {self._root_folder}"]
        newest = 0
        try:
            for path in paths:
                stat = os.stat(self._where(path))
                newest = max(newest, stat.st_mtime_ns, stat.st_ctime_ns)
                signature.append(f"{path} {stat.st_size} {stat.st_ino} {stat.st_mtime_ns} {stat.st_ctime_ns}")
        except OSError as error:
            raise TreeError(f"cannot read {error.filename}: {error.strerror}; make it readable") from error

        def compute() -> str:
            total = hashlib.sha256()
            for path in paths:
                content = self._contents.get(path)
                if content is None:
                    content = _read(self._where(path))
                total.update(b"%d %s %d\n" % (len(os.fsencode(path)), os.fsencode(path), len(content)))
                total.update(content)
            return total.hexdigest()

        try:
            return remembered(self._cache, "\n".join(signature), newest, compute)
        except OSError as error:
            raise TreeError(f"cannot read {error.filename}: {error.strerror}; make it readable") from error


class WorkTree(DiskTree):
    """The worktree of a git repository as it is on disk: tracked files, and untracked ones that are not
    ignored.

    The identity is the commit of HEAD, whether anything differs from it, and a digest over what differs.

    Raises:
        TreeError: not a repository, or a bare one.
    """

    def __init__(self, spec: str, repo: Path | None) -> None:
        repository = Repository.find(repo)
        if repository.bare:
            raise TreeError(f"{repository.path} is a bare repository and has no worktree; name a revision")
        place = "." if repo is None else str(expand(repo))
        top = os.fsdecode(repository.run_in(place, "rev-parse", "--show-toplevel")).removesuffix("\n")
        super().__init__(Path(top))
        self._repository: Repository | None = repository
        tracked = _split(repository.run_in(top, "ls-files", "-z", "--cached"))
        changed = _split(repository.run_in(top, *_STATUS))
        self._names = _by_folder(tracked + [line[3:] for line in changed if line.startswith("??")])
        self._identity = self._identify(spec, repository, sorted({line[3:] for line in changed}))

    @property
    def identity(self) -> Identity:
        return self._identity

    def close(self) -> None:
        self._repository = None

    def _list(self, folder: str) -> Mapping[str, Entry] | None:
        known = self._names.get(folder)
        entries = super()._list(folder) if known is not None else None
        if known is None or entries is None:
            return None
        # The kind is that of the disk: a tracked file may have been replaced by a folder.
        return {
            name: entry
            for name, entry in entries.items()
            if name in known and (entry.kind == "folder") == (f"{folder}/{name}".lstrip("/") in self._names)
        }

    def _identify(self, spec: str, repository: Repository, changed: list[str]) -> Identity:
        head = repository.object("HEAD^{commit}")
        commit = repository.commit("HEAD") if head is not None else None
        sha = commit.sha if commit else "no-commit"
        details: dict[str, str | bool] = {"dirty": bool(changed)}
        if commit:
            details |= {"commit": commit.sha, "tree": commit.tree, "subject": commit.subject}
        if not changed:
            return Identity(spec, "worktree", sha, details)
        digest = hashlib.sha256()
        for path in changed:
            digest.update(os.fsencode(path) + b"\0" + self._state(path) + b"\0")
        details["changes"] = digest.hexdigest()
        return Identity(spec, "worktree", f"{sha}-dirty-{digest.hexdigest()[:12]}", details)

    def _state(self, path: str) -> bytes:
        """What a changed path is now; the index does not count, since it is not read."""
        where = self._where(path)
        try:
            if os.path.islink(where):
                return b"link " + os.fsencode(os.readlink(where))
            if os.path.isdir(where):
                return b"folder"
            stat = os.stat(where)
            if stat.st_size > WHOLE_FILE_BYTES:
                return b"large %d %d" % (stat.st_size, stat.st_mtime_ns)
            content = _read(where)
            if path.endswith(".py"):
                self._contents[path] = content  # what the identity names is what will be read
            return b"file " + hashlib.sha256(content).digest()
        except (FileNotFoundError, NotADirectoryError):
            return b"absent"
        except OSError as error:
            raise TreeError(f"cannot read {where}: {error.strerror}; make it readable") from error


def _split(listing: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listing.split(b"\0") if name]


def _by_folder(paths: list[str]) -> dict[str, set[str]]:
    """Names in each folder, folders included, for a list of file paths."""
    names: dict[str, set[str]] = {"": set()}
    for path in paths:
        if path.endswith("/"):
            continue  # a repository inside the worktree: not part of it
        while path:
            folder, _, name = path.rpartition("/")
            known = folder in names
            names.setdefault(folder, set()).add(name)
            if known and folder:
                break
            path = folder
    return names


def _read(where: str) -> bytes:
    with open(where, "rb") as stream:
        return stream.read()
