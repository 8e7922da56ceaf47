"""Trees out of git's object database. Nothing is checked out, no filter, hook or fetch is run.

One `git cat-file --batch` process serves all trees of a repository: it resolves revisions and hands out
commits, trees and blobs as they are stored.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from difftest.errors import TreeError
from difftest.result import Identity
from difftest.trees.base import Entry, Tree, expand

# What the caller's environment may say about git: where its settings are. All else (GIT_DIR, GIT_INDEX_FILE
# and so on) is set while a hook runs and would point every command at the hook's repository.
_KEPT = (
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_KEY_",
    "GIT_CONFIG_VALUE_",
    "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_EXEC_PATH",
)

# Settings of a repository that would run a program of its own, or change what an object contains.
_SETTINGS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


class GitObject(NamedTuple):
    name: str
    """Object name in hex."""
    kind: str
    """`commit`, `tree`, `blob` or `tag`."""
    content: bytes


class Commit(NamedTuple):
    sha: str
    tree: str
    subject: str


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key.startswith(_KEPT)}
    return kept | {
        "LC_ALL": "C",  # messages are read
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",  # an identity must name the content that is read
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",  # for versions of git that do not know the line above
        "GIT_TERMINAL_PROMPT": "0",
    }


def _start(command: Sequence[str], stdin: int, stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["git", *_SETTINGS, *command],
            env=_environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    except FileNotFoundError as error:
        raise TreeError("the program git is not on PATH; install git") from error
    except OSError as error:
        raise TreeError(f"the program git cannot be started: {error.strerror}; install git anew") from error


def _run(command: Sequence[str]) -> tuple[int, bytes, str]:
    """Exit code, output, and errors of one git command."""
    with _start(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    return process.returncode, out, os.fsdecode(err)


def _reason(errors: str) -> str:
    """The line of git's errors that says what failed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    line = (fatal or lines or ["no reason given"])[0]
    return line.removeprefix("fatal: ").removeprefix("error: ")


_open_repositories: weakref.WeakValueDictionary[str, Repository] = weakref.WeakValueDictionary()
_registry_lock = threading.Lock()


class Repository:
    """A git repository, read through one `git cat-file --batch` process. Thread-safe.

    Made by :meth:`find`. The process starts at the first object that is read and ends when the last tree over
    the repository is closed.

    Attributes:
        path: the folder that the user named; stands in messages.
        git_dir: absolute path of the git directory.
        bare: it has no worktree.
        shallow: its history is cut off.
    """

    def __init__(self, path: Path, git_dir: str, bare: bool, shallow: bool) -> None:
        self.path = path
        self.git_dir = git_dir
        self.bare = bare
        self.shallow = shallow
        self._lock = threading.Lock()
        self._process: _CatFile | None = None
        self._trees: dict[str, Mapping[str, Entry]] = {}

    @classmethod
    def find(cls, path: Path | None = None) -> Repository:
        """The repository at `path` or around it; by default the one that holds the current folder.

        Raises:
            TreeError: it does not exist, is not a repository, or git refuses to read it.
        """
        place = Path() if path is None else expand(path)
        if not place.is_dir():
            raise TreeError(f"{place} is not a folder; give --repo the folder of a git repository")
        code, out, err = _run(
            [
                "-C",
                str(place),
                "rev-parse",
                "--absolute-git-dir",
                "--is-bare-repository",
                "--is-shallow-repository",
            ]
        )
        if code:
            shown = Path.cwd() if path is None else place
            if "dubious ownership" in err:
                raise TreeError(
                    f"git will not read {shown}: it belongs to another user; "
                    f"to trust it, run: git config --global --add safe.directory {shown.resolve()}"
                )
            if "not a git repository" in err:
                raise TreeError(f"{shown} is not in a git repository; give --repo the folder of one")
            raise TreeError(f"git cannot read the repository {shown}: {_reason(err)}; clone it again")
        *folder, bare, shallow = os.fsdecode(out).rstrip("\n").split("\n")
        git_dir = "\n".join(folder)
        with _registry_lock:
            repository = _open_repositories.get(git_dir)
            if repository is None:
                repository = cls(place, git_dir, bare == "true", shallow == "true")
                _open_repositories[git_dir] = repository
            return repository

    def run(self, *command: str) -> bytes:
        """Output of one git command in this repository.

        Raises:
            TreeError: git ended with an error.
        """
        return self._output_of((f"--git-dir={self.git_dir}",), command)

    def run_in(self, folder: str, *command: str) -> bytes:
        """The same for a command that needs the worktree around `folder`."""
        return self._output_of(("-C", folder), command)

    def _output_of(self, where: tuple[str, ...], command: tuple[str, ...]) -> bytes:
        code, out, err = _run([*where, *command])
        if code:
            raise TreeError(
                f"git {command[0]} failed in {self.path}: {_reason(err)}; git fsck says whether it is whole"
            )
        return out

    def object(self, name: str) -> GitObject | None:
        """The object of an object name or revision expression; None when the repository lacks it.

        Raises:
            TreeError: the object is damaged, or git ended.
        """
        if "\n" in name or "\0" in name:
            return None
        with self._lock:
            # A forked child must not talk to its parent's process.
            if self._process is None or self._process.owner != os.getpid():
                self._process = _CatFile(self)
            try:
                return self._process.ask(name)
            except BaseException as error:
                # Also when interrupted half-way: the rest of this answer must not be taken for the next one.
                self._process = None
                if isinstance(error, _Ended):
                    # A partial clone; git before 2.45 ends when it may not fetch, later ones say "missing".
                    if "promisor" in str(error):
                        return None
                    raise TreeError(
                        f"git cannot read {name} in {self.path}: {error}; git fsck says whether it is whole"
                    ) from error
                raise

    def commit(self, revision: str) -> Commit:
        """The commit that a revision names; annotated tags are followed.

        Raises:
            TreeError: there is no such commit. The message suggests near names.
        """
        if revision.startswith("-"):
            raise TreeError(f"{revision!r} is not a revision: it begins with '-'; name a branch, a tag or a commit")
        found = self.object(f"{revision}^{{commit}}")
        if found is None or found.kind != "commit":
            raise TreeError(self._unknown(revision))
        head, _, message = found.content.partition(b"\n\n")
        tree = head.split(b"\n", 1)[0].removeprefix(b"tree ").decode("ascii")
        subject = message.lstrip(b"\n").split(b"\n", 1)[0].decode("utf-8", "replace").strip()
        return Commit(found.name, tree, subject)

    def contains(self, commit: str, other: str) -> bool:
        """Whether `other` is `commit` or one of its ancestors; both full object names."""
        return self.common(commit, other) == [other]

    def common(self, commit: str, other: str) -> list[str]:
        """The latest commits that two have in common; all full object names."""
        command = ("merge-base", "--all", commit, other)
        code, out, _ = _run([f"--git-dir={self.git_dir}", *command])
        if code == 1 and not out:
            return []
        return (out if not code else self.run(*command)).decode("ascii").split()

    def folder(self, tree: str) -> Mapping[str, Entry] | None:
        """Entries of a tree object, object names as handles, without submodules. None when it is missing."""
        if tree not in self._trees:
            found = self.object(tree)
            if found is None:
                return None
            self._trees[tree] = _parse_tree(found.content, len(found.name) // 2)
        return self._trees[tree]

    def _unknown(self, revision: str) -> str:
        if ".." in revision and not revision.startswith(".."):
            return f"{revision!r} is a range; a tree is one revision"
        other = self.object(revision)
        if other is not None:
            return f"{revision!r} names a {other.kind} in {self.path}, not a commit"
        names = os.fsdecode(self.run("for-each-ref", "--format=%(refname:lstrip=2)")).split()
        if not names:
            return f"unknown revision {revision!r}: {self.path} has no branch or tag"
        same = [name for name in names if name.endswith(f"/{revision}")]
        near = difflib.get_close_matches(revision, names, n=3, cutoff=0.6)
        suggestions = ", ".join(dict.fromkeys([*same[:3], *near]))
        message = f"unknown revision {revision!r} in {self.path}"
        if suggestions:
            message += f"; did you mean {suggestions}?"
        if self.shallow:
            message += "; the clone is shallow: git fetch --unshallow gets the rest"
        return message if suggestions or self.shallow else f"{message}; git branch -a and git tag list the names"


class _Ended(Exception):
    """The process ended instead of answering; the message is git's."""


class _CatFile:
    """A running `git cat-file --batch`. Not thread-safe by itself."""

    def __init__(self, repository: Repository) -> None:
        self.owner = os.getpid()
        # A file, not a pipe: a pipe that nobody reads would block git once it is full of warnings.
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by the finalizer)
        except OSError as error:
            raise TreeError(f"cannot write a temporary file: {error.strerror}; set TMPDIR") from error
        command = [f"--git-dir={repository.git_dir}", "cat-file", "--batch"]
        try:
            self._process = _start(command, stdin=subprocess.PIPE, stderr=self._errors)
        except TreeError:
            self._errors.close()
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        weakref.finalize(self, _stop, self._process, self._errors, self.owner)

    def ask(self, name: str) -> GitObject | None:
        try:
            self._input.write(os.fsencode(name) + b"\n")
            self._input.flush()
            header = self._output.readline()
            words = header.split()
            if len(words) >= 2 and words[-1] in (b"missing", b"ambiguous"):
                return None
            if len(words) != 3 or not words[2].isdigit():
                raise _Ended(self._said())
            size = int(words[2])
            content = self._output.read(size + 1)
        except OSError as error:
            raise _Ended(self._said()) from error
        if len(content) != size + 1:
            raise _Ended(self._said())
        return GitObject(words[0].decode("ascii"), words[1].decode("ascii"), content[:-1])

    def _said(self) -> str:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return _reason(os.fsdecode(self._errors.read()))


def _stop(process: subprocess.Popen[bytes], errors: IO[bytes], owner: int) -> None:
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            # A broken pipe: the process ended by itself, and its message has been reported.
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    if os.getpid() == owner:
        process.wait()
    else:
        process.returncode = 0  # the parent's child, which only the parent can wait for


def _parse_tree(content: bytes, width: int) -> dict[str, Entry]:
    """Entries of a tree object: mode, space, name, NUL, object name of `width` bytes."""
    entries = {}
    at = 0
    while at < len(content):
        space = content.index(b" ", at)
        end = content.index(b"\0", space)
        mode = content[at:space]
        name = content[space + 1 : end].decode("utf-8", "surrogateescape")
        handle = content[end + 1 : end + 1 + width].hex()
        at = end + 1 + width
        if mode == b"40000":
            entries[name] = Entry("folder", handle)
        elif mode == b"120000":
            entries[name] = Entry("link", handle)
        elif mode != b"160000":
            entries[name] = Entry("file", handle)
    return entries


class GitTree(Tree):
    """A revision's files, from the object database.

    Args:
        spec: the revision as the user wrote it.
        repository: where it is; shared by all trees over it.

    Raises:
        TreeError: unknown revision.
    """

    def __init__(self, spec: str, repository: Repository) -> None:
        super().__init__()
        self._repository: Repository | None = repository
        self._commit = repository.commit(spec)
        details = {"commit": self._commit.sha, "tree": self._commit.tree, "subject": self._commit.subject}
        self._identity = Identity(spec, "git", self._commit.sha, details)

    @property
    def identity(self) -> Identity:
        return self._identity

    def close(self) -> None:
        self._repository = None

    def _open(self) -> Repository:
        if self._repository is None:
            raise ValueError(f"the tree {self._identity.spec} is closed")
        return self._repository

    def _list(self, folder: str) -> Mapping[str, Entry] | None:
        repository = self._open()
        handle = self._commit.tree
        if folder:
            parent, _, name = folder.rpartition("/")
            entry = (self._listing(parent) or {}).get(name)
            if entry is None or entry.kind != "folder":
                return None
            handle = entry.handle
        entries = repository.folder(handle)
        if entries is None:
            raise self._missing(repository, handle, folder or "the root folder")
        return entries

    def _load(self, path: str, entry: Entry) -> bytes:
        repository = self._open()
        found = repository.object(entry.handle)
        if found is None:
            raise self._missing(repository, entry.handle, path)
        return found.content

    def _blob(self, path: str, entry: Entry) -> str:
        return str(entry.handle)

    def _missing(self, repository: Repository, handle: str, path: str) -> TreeError:
        return TreeError(
            f"{path} of {self._identity.spec} (object {handle[:12]}) is not in {repository.path}: "
            f"the clone is partial or damaged; git fetch --refetch --no-filter gets it"
        )


def merge_base(repo: Path | None, head: str = "HEAD") -> str:
    """Sha of the commit at which `head` left the default branch.

    The default branch is `origin/HEAD`, else `main`, else `master`, else `origin/main`, else `origin/master`
    (a continuous-integration checkout often has only the last two).

    Raises:
        TreeError: no default branch, an unknown head, or no common commit.
    """
    repository = Repository.find(repo)
    tip = repository.commit(head).sha
    names = (
        "refs/remotes/origin/HEAD",
        "refs/heads/main",
        "refs/heads/master",
        "refs/remotes/origin/main",
        "refs/remotes/origin/master",
    )
    trunk = next((name for name in names if repository.object(f"{name}^{{commit}}") is not None), None)
    if trunk is None:
        raise TreeError(f"{repository.path} has no origin/HEAD, main or master; name the base with --base")
    code, out, err = _run([f"--git-dir={repository.git_dir}", "merge-base", tip, trunk])
    if code == 0:
        return out.decode("ascii").strip()
    if code != 1:
        raise TreeError(f"git merge-base failed in {repository.path}: {_reason(err)}; name the base with --base")
    shown = trunk.removeprefix("refs/heads/").removeprefix("refs/remotes/")
    hint = "the clone is shallow: git fetch --unshallow" if repository.shallow else "name the base with --base"
    raise TreeError(f"{head} and {shown} have no common commit in {repository.path}; {hint}")


def commits(repo: Path | None, range: str, paths: Sequence[str] = (), first_parent: bool = False) -> list[str]:
    """Shas of a range `A..B`, parents before children; with `paths`, only those that touch one of them.

    `first_parent`: those of the line of first parents alone, a merge counting as what it changes there.

    Raises:
        TreeError: not a range, or an unknown revision in it.
    """
    repository = Repository.find(repo)
    start, dots, end = range.partition("..")
    if not dots or end.startswith("."):
        raise TreeError(f"{range!r} is not a range of commits; write A..B")
    first = repository.commit(start or "HEAD").sha
    last = repository.commit(end or "HEAD").sha
    listed = repository.run(
        "rev-list",
        "--topo-order",
        "--reverse",
        *(["--first-parent"] if first_parent else []),
        f"{first}..{last}",
        "--",
        *(f":(top,literal){p}" for p in paths),
    )
    return listed.decode("ascii").split()
