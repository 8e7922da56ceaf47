"""Directories, and the worktree of a repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from difftest.errors import TreeError
from difftest.trees import ModuleFile, open_tree
from difftest.trees import cache as cache_module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "head"
    (root / "pkg" / "sub").mkdir(parents=True)
    (root / "pkg" / "__init__.py").write_text("")
    (root / "pkg" / "mod.py").write_text("mod\n")
    (root / "pkg" / "sub" / "leaf.py").write_text("leaf\n")
    return root


@pytest.fixture
def repo(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text("ignored.py\nbuild/\n")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "One")
    return folder


def git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_directory_is_read_as_it_is(folder: Path, tmp_path: Path) -> None:
    (folder / ".venv" / "lib").mkdir(parents=True)
    (folder / ".venv" / "lib" / "x.py").write_text("")
    (folder / "env" / "lib").mkdir(parents=True)
    (folder / "env" / "pyvenv.cfg").write_text("")
    (folder / "env" / "lib" / "x.py").write_text("")
    (folder / "inside.py").symlink_to("pkg/mod.py")
    (folder / "outside.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "secret.py").write_text("secret")
    with open_tree(str(folder), cache=tmp_path / "cache") as tree:
        assert tree.paths() == ["inside.py", "pkg/__init__.py", "pkg/mod.py", "pkg/sub/leaf.py"]
        assert tree.read("inside.py") == tree.read("pkg/mod.py") == b"mod\n"
        assert tree.read("outside.py") is None
        assert tree.identity.kind == "directory"
        assert tree.identity.details["file"] == "head"
        assert str(tmp_path) not in tree.identity.resolved


def test_directory_identity_is_its_python_content(folder: Path, tmp_path: Path) -> None:
    def resolved(path: Path) -> str:
        with open_tree(str(path), cache=tmp_path / "cache") as tree:
            return tree.identity.resolved

    first = resolved(folder)
    copy = tmp_path / "copy" / "head"
    shutil.copytree(folder, copy)
    assert resolved(copy) == first
    (folder / "notes.txt").write_text("no code")
    assert resolved(folder) == first
    stat = (folder / "pkg" / "mod.py").stat()
    (folder / "pkg" / "mod.py").write_text("dom\n")  # the same size and time stamp
    os.utime(folder / "pkg" / "mod.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert resolved(folder) != first


def test_directory_identity_is_remembered(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SETTLED_SECONDS", -1.0)
    with open_tree(str(folder), cache=tmp_path / "cache") as tree:
        first = tree.identity
    entry = next((tmp_path / "cache" / "digests").rglob("*.json"))
    entry.write_text('{"digest": "' + "ab" * 32 + '"}')
    with open_tree(str(folder), cache=tmp_path / "cache") as tree:
        assert tree.identity.details["sha256"] == "ab" * 32
    entry.write_text("damaged")
    with open_tree(str(folder), cache=tmp_path / "cache") as tree:
        assert tree.identity == first


def test_a_file_just_changed_is_not_remembered(folder: Path, tmp_path: Path) -> None:
    with open_tree(str(folder), cache=tmp_path / "cache") as tree:
        assert tree.identity.details["sha256"]
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_edits_after_the_first_read_do_not_show(folder: Path, tmp_path: Path) -> None:
    with open_tree(str(folder), cache=tmp_path / "cache") as tree:
        assert tree.read("pkg/mod.py") == b"mod\n"
        (folder / "pkg" / "mod.py").write_text("edited\n")
        assert tree.read("pkg/mod.py") == b"mod\n"


def test_modules(tmp_path: Path) -> None:
    for path in (
        "pkg/__init__.py",
        "pkg/mod.py",
        "pkg/both.py",
        "pkg/both/__init__.py",
        "pkg/both/leaf.py",
        "pkg/shadow.py",
        "pkg/shadow/leaf.py",
        "pkg/space/leaf.py",
        "src/inner/__init__.py",
        "python/third/__init__.py",
        "python/third/x.py",
        "docs/third/readme.py",
        "third/data.txt",
        "single.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    with open_tree(str(tmp_path), cache=tmp_path / "cache") as tree:
        assert tree.module("pkg") == ModuleFile("pkg", "pkg/__init__.py", True)
        assert tree.module("pkg.mod") == ModuleFile("pkg.mod", "pkg/mod.py", False)
        assert tree.module("pkg.both") == ModuleFile("pkg.both", "pkg/both/__init__.py", True)
        assert tree.module("pkg.both.leaf") == ModuleFile("pkg.both.leaf", "pkg/both/leaf.py", False)
        assert tree.module("pkg.shadow") == ModuleFile("pkg.shadow", "pkg/shadow.py", False)
        assert tree.module("pkg.shadow.leaf") is None
        assert tree.module("pkg.space") == ModuleFile("pkg.space", None, True)
        assert tree.module("pkg.space.leaf") == ModuleFile("pkg.space.leaf", "pkg/space/leaf.py", False)
        assert tree.module("inner") == ModuleFile("inner", "src/inner/__init__.py", True)
        assert tree.module("third.x") == ModuleFile("third.x", "python/third/x.py", False)
        assert tree.module("single") == ModuleFile("single", "single.py", False)
        for name in ("absent", "pkg.absent", "pkg.mod.x", "", "pkg.", "..", "pkg/mod", "pkg..mod"):
            assert tree.module(name) is None, name
        assert tree.top_level_packages() == ["inner", "pkg", "third"]


def test_clean_worktree_is_its_commit(repo: Path) -> None:
    with open_tree("WORKTREE", repo) as tree:
        assert tree.identity.kind == "worktree"
        assert tree.identity.resolved == git(repo, "rev-parse", "HEAD")
        assert tree.identity.details["dirty"] is False
        assert tree.identity.details["subject"] == "One"


def test_worktree_holds_untracked_but_not_ignored_files(repo: Path) -> None:
    (repo / "new.py").write_text("new")
    (repo / "fresh" / "deep").mkdir(parents=True)
    (repo / "fresh" / "deep" / "x.py").write_text("x")
    (repo / "ignored.py").write_text("ignored")
    (repo / "build").mkdir()
    (repo / "build" / "x.py").write_text("ignored")
    (repo / "pkg" / "mod.py").unlink()
    with open_tree("WORKTREE", repo) as tree:
        assert tree.paths() == [
            ".gitignore",
            "fresh/deep/x.py",
            "new.py",
            "pkg/__init__.py",
            "pkg/sub/leaf.py",
        ]
        assert tree.read("fresh/deep/x.py") == b"x"
        assert tree.read("ignored.py") is None
        assert tree.read("build/x.py") is None
        assert tree.read("pkg/mod.py") is None
        assert tree.read(".git/config") is None


def test_each_dirty_state_has_its_own_identity(repo: Path) -> None:
    def resolved() -> str:
        with open_tree("WORKTREE", repo) as tree:
            assert tree.identity.details["dirty"] is True
            assert tree.identity.details["commit"] == git(repo, "rev-parse", "HEAD")
            assert tree.identity.resolved.startswith(git(repo, "rev-parse", "HEAD"))
            return tree.identity.resolved

    mod = repo / "pkg" / "mod.py"
    mod.write_text("edit 1\n")
    first = resolved()
    assert resolved() == first
    mod.write_text("edit 2\n")
    second = resolved()
    git(repo, "add", ".")
    assert resolved() == second  # the index is not read
    (repo / "new.py").write_text("1")
    third = resolved()
    (repo / "new.py").write_text("2")
    fourth = resolved()
    mod.unlink()
    fifth = resolved()
    assert len({first, second, third, fourth, fifth}) == 5


def test_reading_the_worktree_runs_nothing_and_writes_nothing(repo: Path, tmp_path: Path) -> None:
    script = tmp_path / "monitor"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    script.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(script))
    (repo / "pkg" / "mod.py").touch()
    before = (repo / ".git" / "index").stat().st_mtime_ns
    with open_tree("WORKTREE", repo) as tree:
        assert tree.read("pkg/mod.py") == b"mod\n"
    assert not (tmp_path / "ran").exists()
    assert (repo / ".git" / "index").stat().st_mtime_ns == before


def test_bare_repository_has_no_worktree(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    with pytest.raises(TreeError, match=r"is a bare repository and has no worktree; name a revision$"):
        open_tree("WORKTREE", tmp_path / "bare.git")


def test_a_linked_worktree_is_its_own(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "pkg" / "mod.py").write_text("side\n")
    with (
        open_tree("WORKTREE", tmp_path / "side" / "pkg") as tree,
        open_tree("HEAD", tmp_path / "side") as head,
    ):
        assert tree.read("pkg/mod.py") == b"side\n"
        assert head.read("pkg/mod.py") == b"mod\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_unreadable_file_is_one_line(folder: Path, tmp_path: Path) -> None:
    (folder / "pkg" / "mod.py").chmod(0)
    message = r"^cannot read .*mod.py: Permission denied$"
    with open_tree(str(folder), cache=tmp_path / "cache") as tree, pytest.raises(TreeError, match=message):
        tree.read("pkg/mod.py")
