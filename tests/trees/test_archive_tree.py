"""Wheels, source archives, and the cache folder that remembers their digests."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from difftest.errors import TreeError
from difftest.trees import archive as archive_module
from difftest.trees import cache as cache_module
from difftest.trees import open_tree
from difftest.trees.base import git_blob_id

WHEEL = {
    "pkg/__init__.py": b"",
    "pkg/mod.py": b"mod\r\n",
    "pkg-1.0.dist-info/METADATA": b"Name: pkg\n",
    "pkg-1.0.data/purelib/extra/__init__.py": b"extra",
    "pkg-1.0.data/scripts/tool": b"",
}


def make_wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_sdist(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
        for name, target in (links or {}).items():
            item = tarfile.TarInfo(name)
            item.type = tarfile.SYMTYPE
            item.linkname = target
            archive.addfile(item)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_wheel(tmp_path: Path, cache: Path) -> None:
    file = make_wheel(tmp_path / "pkg-1.0-py3-none-any.whl", WHEEL)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    with open_tree(str(file), cache=cache) as tree:
        assert tree.identity.kind == "wheel"
        assert tree.identity.resolved == f"sha256:{digest}"
        assert tree.identity.details == {"sha256": digest, "file": file.name}
        assert tree.read("pkg/mod.py") == b"mod\r\n"
        assert tree.blob("pkg/mod.py") == git_blob_id(b"mod\r\n")
        assert tree.read("extra/__init__.py") == b"extra"
        assert tree.read("absent.py") is None
        assert tree.paths("pkg") == ["pkg/__init__.py", "pkg/mod.py"]
        assert tree.top_level_packages() == ["extra", "pkg"]
    with pytest.raises(ValueError, match="closed"):
        tree.read("pkg/mod.py")


@pytest.mark.parametrize("ending", [".tar.gz", ".zip", ".tgz"])
def test_source_archive_s_root_is_the_project_folder(tmp_path: Path, cache: Path, ending: str) -> None:
    files = {
        "pkg-1.0/pyproject.toml": b"",
        "pkg-1.0/src/pkg/__init__.py": b"",
        "pkg-1.0/src/pkg/mod.py": b"mod",
    }
    make = make_wheel if ending == ".zip" else make_sdist
    file = make(tmp_path / f"pkg-1.0{ending}", files)
    with open_tree(str(file), cache=cache) as tree:
        assert tree.identity.kind == "sdist"
        found = tree.module("pkg.mod")
        assert found is not None and found.path == "src/pkg/mod.py"
        assert tree.read("src/pkg/mod.py") == b"mod"
        assert tree.top_level_packages() == ["pkg"]


def test_archive_without_a_project_folder_keeps_its_layout(tmp_path: Path, cache: Path) -> None:
    file = make_sdist(tmp_path / "a.tar.gz", {"pkg/__init__.py": b"", "pkg/mod.py": b"mod"})
    with open_tree(str(file), cache=cache) as tree:
        assert tree.paths() == ["pkg/__init__.py", "pkg/mod.py"]


def test_members_outside_the_tree_are_left_out(tmp_path: Path, cache: Path) -> None:
    bad = {"../up.py": b"", "/abs.py": b"", "pkg/../../up.py": b"", "pkg/ok.py": b"ok"}
    wheel = make_wheel(tmp_path / "a.whl", bad)
    sdist = make_sdist(
        tmp_path / "a.tar.gz",
        bad,
        {"pkg/in.py": "ok.py", "pkg/out.py": "../../etc/passwd", "pkg/abs.py": "/etc/passwd"},
    )
    with open_tree(str(wheel), cache=cache) as tree:
        assert tree.paths() == ["pkg/ok.py"]
    with open_tree(str(sdist), cache=cache) as tree:
        assert tree.paths() == ["pkg/in.py", "pkg/ok.py"]
        assert tree.read("pkg/in.py") == b"ok"
        assert tree.read("pkg/out.py") is None


@pytest.mark.parametrize("name", ["x.whl", "x.zip", "x.tar.gz"])
@pytest.mark.parametrize("damage", ["empty", "noise", "cut"])
def test_damaged_file_is_one_line_that_names_it(tmp_path: Path, cache: Path, name: str, damage: str) -> None:
    file = tmp_path / name
    make = make_sdist if name.endswith("gz") else make_wheel
    whole = make(file, {"pkg/__init__.py": os.urandom(5000)}).read_bytes()
    file.write_bytes({"empty": b"", "noise": os.urandom(3000), "cut": whole[:2000]}[damage])
    with pytest.raises(TreeError, match=rf"^\S*{name} is damaged or not what its name says: ") as caught:
        open_tree(str(file), cache=cache)
    assert "\n" not in str(caught.value)


def test_damaged_member_is_one_line_that_names_it(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "x.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pkg/mod.py", b"content of the module")
    file.write_bytes(file.read_bytes().replace(b"content of", b"CONTENT OF"))
    message = r"x\.whl is damaged at pkg/mod\.py: .*CRC"
    with open_tree(str(file), cache=cache) as tree, pytest.raises(TreeError, match=message):
        tree.read("pkg/mod.py")


def test_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MAX_UNPACKED_BYTES", 2**20)
    file = make_sdist(tmp_path / "bomb.tar.gz", {"a": bytes(2**20), "b": b"1"})
    with pytest.raises(TreeError, match=r"bomb\.tar\.gz holds more than 1 MiB"):
        open_tree(str(file), cache=cache)


def test_digest_is_remembered_until_the_file_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SETTLED_SECONDS", -1.0)
    file = make_wheel(tmp_path / "a.whl", WHEEL)
    with open_tree(str(file), cache=cache) as tree:
        first = tree.identity
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)  # calling it would fail
        with open_tree(str(file), cache=cache) as tree:
            assert tree.identity == first
    make_wheel(file, {**WHEEL, "pkg/mod.py": b"dom\r\n"})
    with open_tree(str(file), cache=cache) as tree:
        assert tree.identity.resolved == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
        assert tree.identity != first


def test_cache_folder_that_cannot_be_used_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_wheel(tmp_path / "a.whl", WHEEL)
    (tmp_path / "taken").write_text("a file")
    message = r"^cannot use the cache folder .*taken.*: (Not a directory|File exists); set DIFFTEST_CACHE$"
    for folder in ("taken", "taken/below"):
        with pytest.raises(TreeError, match=message):
            open_tree(str(file), cache=tmp_path / folder)
    monkeypatch.setenv("DIFFTEST_CACHE", str(tmp_path / "taken"))
    for spec in (str(file), "pypi:pkg==1.0"):
        with pytest.raises(TreeError, match=message):
            open_tree(spec)
    with open_tree(str(tmp_path)) as tree, pytest.raises(TreeError, match=message):
        assert tree.identity


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_cache_folder_without_permission(tmp_path: Path) -> None:
    file = make_wheel(tmp_path / "a.whl", WHEEL)
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(TreeError, match=r"locked: Permission denied; set DIFFTEST_CACHE$"):
        open_tree(str(file), cache=tmp_path / "locked")


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SETTLED_SECONDS", -1.0)
    file = make_wheel(tmp_path / "a.whl", WHEEL)

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TreeError, match=r"^cannot use the cache folder .*: No space left on device; set"):
        open_tree(str(file), cache=cache)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_cache_folder_of_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DIFFTEST_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache_module.sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_module.cache_folder() == tmp_path / ".cache" / "difftest"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_module.cache_folder() == tmp_path / "xdg" / "difftest"
    monkeypatch.setenv("DIFFTEST_CACHE", "~/mine")
    assert cache_module.cache_folder() == tmp_path / "mine"
    assert cache_module.cache_folder(tmp_path / "argument") == tmp_path / "argument"
