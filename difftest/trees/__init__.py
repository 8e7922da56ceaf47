"""Read-only views of one version's files: git, worktree, directory, wheel, source archive, package index."""

# os.path says no to a name that the system cannot even look up (too long, no permission); Path raises.
# ruff: noqa: PTH110, PTH112, PTH113

from __future__ import annotations

import os
from pathlib import Path

from difftest.errors import TreeError
from difftest.trees.archive import SUFFIXES, ArchiveTree
from difftest.trees.base import ModuleFile, Tree, expand
from difftest.trees.cache import cache_folder
from difftest.trees.disk import DirectoryTree, WorkTree
from difftest.trees.git import GitTree, Repository
from difftest.trees.index import PREFIX, IndexTree

__all__ = ["ModuleFile", "Tree", "open_tree"]

WORKTREE = "WORKTREE"


def open_tree(spec: str, repo: Path | None = None, cache: Path | None = None) -> Tree:
    """Open one version's files.

    What `spec` may be, tried in this order:

    1. `WORKTREE`: the files of the repository's worktree as they are on disk.
    2. `pypi:NAME==VERSION`: a release, from the cache folder or fetched by pip.
    3. An existing wheel or source archive (`.whl`, `.tar.gz`, `.tgz`, `.zip`).
    4. An existing directory. When the spec has no path separator (`main`) and a repository was given or
       found, a revision of that name wins over the directory; write `./main` for the directory.
    5. A git revision of `repo`: branch, tag, sha, short sha, `HEAD~3`, `origin/main`.

    Args:
        spec: see above.
        repo: a git repository, bare or not, or a folder inside one; by default the one that holds the current
            folder.
        cache: the cache folder; by default `$DIFFTEST_CACHE`, else `difftest` in the user's cache folder. Git
            trees do not use it.

    Raises:
        TreeError: nothing of that name, or it cannot be read. One line that says what to do.
    """
    if not spec.strip():
        raise TreeError("an empty tree name; give a revision, WORKTREE, a folder, a wheel or pypi:NAME==VERSION")
    if "\0" in spec or "\n" in spec:
        raise TreeError(f"{spec!r} is not the name of a tree: it holds a control character; give it without")
    if spec == WORKTREE:
        return WorkTree(spec, repo)
    if spec.startswith(PREFIX):
        return IndexTree(spec, cache_folder(cache))
    if spec.startswith("-"):
        raise TreeError(f"{spec!r} is not the name of a tree: it begins with '-'; name a revision, a folder or a file")
    path = expand(Path(spec))
    archive = spec.lower().endswith(SUFFIXES)
    if archive and os.path.isfile(path):
        return ArchiveTree(spec, path, cache_folder(cache))
    if os.path.isdir(path):
        if not _has_separator(spec) and (revision := _revision(spec, repo)) is not None:
            return revision
        return DirectoryTree(spec, path, cache_folder(cache))
    if path.is_absolute() or spec.startswith(("./", "../", "~")):
        if not os.path.exists(path):
            raise TreeError(f"{spec} does not exist: no such file or folder; name one that does")
        raise TreeError(f"{spec} is not a tree; a file must be one of {', '.join(SUFFIXES)}")
    try:
        return GitTree(spec, Repository.find(repo))
    except TreeError as error:
        if archive:
            raise TreeError(f"{spec} does not exist: no such file, and no such revision; name one that does") from error
        if os.path.exists(path):
            raise TreeError(f"{spec} is not a tree; a file must be one of {', '.join(SUFFIXES)}") from error
        if repo is None and "is not in a git repository" in str(error):
            raise TreeError(f"{spec!r} is no file or folder, and {error}") from error
        raise


def _has_separator(spec: str) -> bool:
    return spec in (".", "..") or "/" in spec or os.sep in spec


def _revision(spec: str, repo: Path | None) -> GitTree | None:
    """The revision of this name; None when no repository is around or it has no such revision."""
    try:
        repository = Repository.find(repo)
    except TreeError:
        if repo is not None:
            raise
        return None
    if repository.object(f"{spec}^{{commit}}") is None:
        return None
    return GitTree(spec, repository)
