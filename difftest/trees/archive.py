"""Trees out of wheels and source archives. Nothing is unpacked to disk, and no build step is run."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from difftest.errors import TreeError
from difftest.result import Identity
from difftest.trees.base import Entry, Tree
from difftest.trees.cache import file_sha256

SUFFIXES = (".whl", ".zip", ".tar.gz", ".tgz")
"""Files that hold a tree."""

PROJECT_FILES = frozenset({"PKG-INFO", "pyproject.toml", "setup.py", "setup.cfg"})
"""What the one top-level folder of a source archive contains; that folder is then the tree's root."""

MAX_UNPACKED_BYTES = 2**30
"""A tar archive is held in memory; a larger one is refused."""

_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression method that zipfile does not know
    RuntimeError,  # an encrypted member
)


class ArchiveTree(Tree):
    """A wheel or source archive.

    Members with an absolute path or `..` in it are left out. In a wheel, `NAME.data/purelib` and
    `NAME.data/platlib` stand at the root, where an installer would put them. The identity is the SHA-256 of
    the file.

    Args:
        spec: the file as the user wrote it.
        file: the file.
        cache: the cache folder, which remembers the SHA-256.

    Raises:
        TreeError: the file is missing, damaged, or too large.
    """

    def __init__(self, spec: str, file: Path, cache: Path) -> None:
        super().__init__()
        self._file = file
        self._zip: zipfile.ZipFile | None = None
        self._closed = False
        try:
            if file.name.lower().endswith((".whl", ".zip")):
                self._zip = zipfile.ZipFile(file)
                members = _zip_members(self._zip)
            else:
                members = _tar_members(file)
            digest = file_sha256(file, cache)
        except _DAMAGE as error:
            self.close()
            raise TreeError(f"{file} is damaged or not what its name says: {_words(error)}; fetch it again") from error
        except OSError as error:
            self.close()
            raise TreeError(f"cannot read {file}: {error.strerror or error}; make it readable") from error
        except TreeError:
            self.close()
            raise
        wheel = file.name.lower().endswith(".whl")
        layout = _installed(members) if wheel else _inside_top_folder(members)
        self._entries = _nest(layout)
        details: dict[str, str | bool] = {"sha256": digest, "file": file.name}
        self._identity = Identity(spec, "wheel" if wheel else "sdist", f"sha256:{digest}", details)

    @property
    def identity(self) -> Identity:
        return self._identity

    def close(self) -> None:
        self._closed = True
        if self._zip is not None:
            self._zip.close()

    def _list(self, folder: str) -> Mapping[str, Entry] | None:
        return self._entries.get(folder)

    def _load(self, path: str, entry: Entry) -> bytes:
        if self._closed:
            raise ValueError(f"the tree {self._identity.spec} is closed")
        if isinstance(entry.handle, bytes):
            return entry.handle
        assert self._zip is not None
        try:
            return self._zip.read(entry.handle)
        except (*_DAMAGE, OSError) as error:
            raise TreeError(f"{self._file} is damaged at {path}: {_words(error)}; fetch it again") from error


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _safe(name: str) -> bool:
    return bool(name) and all(part not in ("", ".", "..") for part in name.split("/")) and "\0" not in name


def _zip_members(archive: zipfile.ZipFile) -> dict[str, Entry]:
    return {
        name: Entry("file", info) for name, info in archive.NameToInfo.items() if not name.endswith("/") and _safe(name)
    }


def _tar_members(file: Path) -> dict[str, Entry]:
    """All files and links of a tar archive, with their contents: there is no random access to it."""
    members: dict[str, Entry] = {}
    total = 0
    with tarfile.open(file, "r:gz") as archive:
        for item in archive:
            name = item.name.removeprefix("./")
            if not _safe(name):
                continue
            if item.issym():
                members[name] = Entry("link", item.linkname.encode("utf-8", "surrogateescape"))
            elif item.islnk():
                original = members.get(item.linkname.removeprefix("./"))
                if original is not None:
                    members[name] = original
            elif item.isfile():
                total += item.size
                if total > MAX_UNPACKED_BYTES:
                    raise TreeError(
                        f"{file} holds more than {MAX_UNPACKED_BYTES >> 20} MiB; unpack it, give the folder"
                    )
                content = archive.extractfile(item)
                assert content is not None
                members[name] = Entry("file", content.read())
    return members


def _installed(members: Mapping[str, Entry]) -> dict[str, Entry]:
    """A wheel's files where an installer would put them."""
    placed = {}
    for name, entry in members.items():
        parts = name.split("/", 2)
        if len(parts) == 3 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib"):
            placed[parts[2]] = entry
        else:
            placed[name] = entry
    return placed


def _inside_top_folder(members: Mapping[str, Entry]) -> dict[str, Entry]:
    """Without the one folder that holds a whole source archive (`NAME-VERSION/`), where there is one."""
    tops = {name.split("/", 1)[0] for name in members}
    if len(tops) == 1:
        top = tops.pop()
        if any(f"{top}/{name}" in members for name in PROJECT_FILES):
            return {name[len(top) + 1 :]: entry for name, entry in members.items()}
    return dict(members)


def _nest(members: Mapping[str, Entry]) -> dict[str, dict[str, Entry]]:
    """Folder path -> name -> entry."""
    folders: dict[str, dict[str, Entry]] = {"": {}}
    for path, entry in members.items():
        folder, _, name = path.rpartition("/")
        if folder not in folders:
            _add_folders(folders, folder)
        folders[folder][name] = entry
    return folders


def _add_folders(folders: dict[str, dict[str, Entry]], folder: str) -> None:
    for path in _ancestors(folder):
        if path not in folders:
            folders[path] = {}
            parent, _, name = path.rpartition("/")
            folders[parent][name] = Entry("folder")


def _ancestors(folder: str) -> Iterable[str]:
    """`a`, `a/b`, `a/b/c` for `a/b/c`."""
    parts = folder.split("/")
    return ("/".join(parts[: end + 1]) for end in range(len(parts)))
