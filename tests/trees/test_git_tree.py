"""Trees out of git: what is read is what was committed, and nothing of the repository is run or changed."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from difftest.errors import TreeError
from difftest.trees import git as git_module
from difftest.trees import open_tree
from difftest.trees.git import Repository, commits, merge_base

Git = Callable[..., str]


def git_in(folder: Path) -> Git:
    def run(*command: str, **environment: str) -> str:
        settings = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_AUTHOR_NAME": "A",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "A",
            "GIT_COMMITTER_EMAIL": "a@example.org",
        }
        done = subprocess.run(
            ["git", "-C", str(folder), *command],
            env={**os.environ, **settings, **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    return run


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """main: `One`, `Two` (tag v1 annotated, light unannotated), and a branch `topic/fast` off `One`."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git = git_in(folder)
    git("init", "-q", "-b", "main")
    (folder / "pkg" / "sub").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "sub" / "__init__.py").write_text("X = 1\n")
    (folder / "pkg" / "mod.py").write_text("one\n")
    (folder / "pkg" / "größe.py").write_text("unicode\n")
    (folder / "pkg" / "alias.py").symlink_to("sub/../mod.py")
    (folder / "linked").symlink_to("pkg")
    (folder / "outside.py").symlink_to("../secret.py")
    (folder / "loop.py").symlink_to("loop.py")
    git("add", ".")
    git("commit", "-q", "-m", "One\n\nbody")
    git("branch", "topic/fast")
    (folder / "pkg" / "mod.py").write_text("two\n")
    git("commit", "-q", "-am", "Two")
    git("tag", "-a", "v1", "-m", "release")
    git("tag", "light")
    (tmp_path / "secret.py").write_text("secret")
    return folder


def test_every_way_to_name_a_commit_reads_that_commit(repo: Path) -> None:
    git = git_in(repo)
    two, one = git("rev-parse", "main"), git("rev-parse", "main~1")
    for spec in ("main", "v1", "light", "HEAD", "@", two, two[:8], "refs/heads/main", "HEAD^{/Two}"):
        with open_tree(spec, repo) as tree:
            assert (tree.read("pkg/mod.py"), tree.identity.resolved) == (b"two\n", two), spec
    for spec in ("HEAD~1", "topic/fast", "v1^", one):
        with open_tree(spec, repo) as tree:
            assert (tree.read("pkg/mod.py"), tree.identity.resolved) == (b"one\n", one), spec


def test_identity_names_commit_tree_and_subject(repo: Path) -> None:
    git = git_in(repo)
    with open_tree("HEAD~1", repo) as tree:
        assert tree.identity.kind == "git"
        assert tree.identity.spec == "HEAD~1"
        assert tree.identity.details == {
            "commit": git("rev-parse", "HEAD~1"),
            "tree": git("rev-parse", "HEAD~1^{tree}"),
            "subject": "One",
        }


def test_packed_refs_and_packed_objects(repo: Path) -> None:
    git = git_in(repo)
    git("pack-refs", "--all")
    git("gc", "-q", "--prune=now")
    with open_tree("topic/fast", repo) as tree:
        assert tree.read("pkg/mod.py") == b"one\n"


def test_repository_in_the_sha256_object_format(tmp_path: Path) -> None:
    git = git_in(tmp_path)
    git("init", "-q", "-b", "main", "--object-format=sha256")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text("long names\n")
    git("add", ".")
    git("commit", "-q", "-m", "One")
    with open_tree("main", tmp_path) as tree:
        assert tree.read("pkg/mod.py") == b"long names\n"
        assert tree.blob("pkg/mod.py") == git("rev-parse", "main:pkg/mod.py")


def test_bare_clone_and_remote_branch(repo: Path, tmp_path: Path) -> None:
    git_in(tmp_path)("clone", "-q", "--bare", str(repo), "bare.git")
    git_in(tmp_path)("clone", "-q", str(repo), "clone")
    with open_tree("topic/fast", tmp_path / "bare.git") as tree:
        assert tree.read("pkg/mod.py") == b"one\n"
    with open_tree("origin/topic/fast", tmp_path / "clone") as tree:
        assert tree.read("pkg/mod.py") == b"one\n"
    with pytest.raises(TreeError, match=r"unknown revision 'topic/fast'.*did you mean origin/topic/fast\?"):
        open_tree("topic/fast", tmp_path / "clone")


def test_listing_and_missing_paths(repo: Path) -> None:
    with open_tree("main", repo) as tree:
        assert tree.paths("pkg") == [
            "pkg/__init__.py",
            "pkg/alias.py",
            "pkg/größe.py",
            "pkg/mod.py",
            "pkg/sub/__init__.py",
        ]
        assert tree.paths() == tree.paths("pkg")  # links to folders, out of the tree and in circles are no files
        assert tree.paths("absent") == tree.paths("pkg/mod.py") == []
        assert tree.read("pkg/größe.py") == b"unicode\n"
        for path in (
            "absent.py",
            "pkg",
            "pkg/mod.py/x",
            "/pkg/mod.py",
            "pkg/../pkg/mod.py",
            "./pkg/mod.py",
            "",
        ):
            assert tree.read(path) is None, path
        assert tree.is_folder("pkg") and tree.is_folder("") and tree.exists("pkg/mod.py")
        assert not tree.is_folder("pkg/mod.py") and not tree.exists("pkg/absent")


def test_links_are_followed_inside_the_tree_only(repo: Path) -> None:
    with open_tree("main", repo) as tree:
        assert tree.read("pkg/alias.py") == b"two\n"
        assert tree.read("linked/alias.py") == b"two\n"
        assert tree.blob("linked/mod.py") == tree.blob("pkg/mod.py")
        assert tree.paths("linked/sub") == ["linked/sub/__init__.py"]
        assert tree.read("outside.py") is None
        assert tree.read("loop.py") is None


def test_blob_is_the_name_git_gives(repo: Path) -> None:
    with open_tree("main", repo) as tree:
        assert tree.blob("pkg/mod.py") == git_in(repo)("rev-parse", "main:pkg/mod.py")
        assert tree.blob("pkg") is None
    with open_tree("WORKTREE", repo) as work, open_tree("main", repo) as tree:
        assert work.blob("pkg/mod.py") == tree.blob("pkg/mod.py")


def test_no_filter_and_no_end_of_line_conversion(repo: Path, tmp_path: Path) -> None:
    git = git_in(repo)
    (repo / ".gitattributes").write_text("*.py text eol=crlf filter=shout\n")
    (repo / "lines.py").write_bytes(b"a\r\nb\r\n")
    git("config", "core.autocrlf", "true")
    git("config", "filter.shout.smudge", f"touch {tmp_path / 'ran'}; tr a-z A-Z")
    git("add", ".")
    git("commit", "-q", "-m", "attributes")
    with open_tree("HEAD", repo) as tree:
        assert tree.read("lines.py") == b"a\nb\n"
    with open_tree("WORKTREE", repo) as tree:
        assert tree.read("lines.py") == b"a\r\nb\r\n"
    assert not (tmp_path / "ran").exists()


def test_submodules_are_absent(repo: Path) -> None:
    git = git_in(repo)
    git("update-index", "--add", "--cacheinfo", f"160000,{git('rev-parse', 'HEAD')},third_party")
    git("commit", "-q", "-m", "submodule")
    with open_tree("HEAD", repo) as tree:
        assert not tree.exists("third_party")


def test_the_environment_of_a_hook_does_not_mislead(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git_in(other)("init", "-q", "-b", "main")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "no-index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git" / "objects"))
    monkeypatch.setenv("GIT_TRACE", "1")
    with open_tree("main", repo) as tree, open_tree("WORKTREE", repo) as work:
        assert tree.read("pkg/mod.py") == work.read("pkg/mod.py") == b"two\n"
        assert work.identity.details["dirty"] is False


def test_replaced_objects_are_not_used(repo: Path) -> None:
    git = git_in(repo)
    git("replace", git("rev-parse", "HEAD"), git("rev-parse", "HEAD~1"))
    with open_tree("main", repo) as tree:
        assert tree.read("pkg/mod.py") == b"two\n"


def test_the_current_folder_s_repository_is_the_default(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo / "pkg")
    with open_tree("main") as tree, open_tree("WORKTREE") as work:
        assert tree.read("pkg/mod.py") == work.read("pkg/mod.py") == b"two\n"


def test_revision_wins_over_a_directory_of_the_same_plain_name(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main").mkdir()
    (tmp_path / "topic" / "fast").mkdir(parents=True)
    kinds = {
        ("main", repo): "git",
        ("./main", repo): "directory",
        ("topic/fast", repo): "directory",
        ("repo", repo): "directory",
        ("main", None): "directory",
    }
    for (spec, where), kind in kinds.items():
        with open_tree(spec, where, tmp_path / "cache") as tree:
            assert tree.identity.kind == kind, (spec, where)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mian", r"^unknown revision 'mian' in .*repo; did you mean main\?$"),
        ("fast", r"^unknown revision 'fast' in .*; did you mean topic/fast"),
        ("zzzzzz", r"^unknown revision 'zzzzzz' in .*; git branch -a and git tag list the names$"),
        ("0" * 40, r"^unknown revision '0{40}'"),
        ("HEAD~99", r"^unknown revision 'HEAD~99'"),
        ("main..topic/fast", r"^'main..topic/fast' is a range; a tree is one revision$"),
        ("HEAD:pkg", r"^'HEAD:pkg' names a tree in .*, not a commit$"),
        ("HEAD:pkg/mod.py", r"^'HEAD:pkg/mod.py' names a blob in .*, not a commit$"),
        ("--upload-pack=x", r"^'--upload-pack=x' is not the name of a tree: it begins with '-'; name a revision"),
        ("", r"^an empty tree name; give a revision"),
        ("main\nHEAD", r"holds a control character; give it without$"),
        ("a" * 5000, r"^unknown revision 'a{5000}'"),
        ("~no-such-user/x", r"^~no-such-user/x does not exist: no such file or folder; name one that does$"),
        ("/absent/folder", r"^/absent/folder does not exist: no such file or folder; name one that does$"),
        ("../absent", r"^../absent does not exist: no such file or folder; name one that does$"),
        ("absent.whl", r"^absent.whl does not exist: no such file, and no such revision; name one that does$"),
    ],
)
def test_a_bad_name_is_one_clear_line(repo: Path, spec: str, message: str) -> None:
    with pytest.raises(TreeError, match=message) as caught:
        open_tree(spec, repo)
    assert "\n" not in str(caught.value)


def test_not_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TreeError, match=r"^.* is not in a git repository; give --repo the folder of one$"):
        open_tree("main", tmp_path)
    with pytest.raises(TreeError, match=r"^'main' is no file or folder, and .* is not in a git repository"):
        open_tree("main")
    with pytest.raises(TreeError, match=r"^.*absent is not a folder; give --repo"):
        open_tree("main", tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(TreeError, match=r"^notes.txt is not a tree; a file must be one of \.whl"):
        open_tree("notes.txt")


def test_a_repository_of_another_user_is_one_line(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # git's own switch for testing this; it is not among the variables that are passed on.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setattr(git_module, "_KEPT", (*git_module._KEPT, "GIT_TEST_ASSUME_DIFFERENT_OWNER"))
    with pytest.raises(TreeError, match=r"belongs to another user; .*git config --global --add safe.directory /"):
        open_tree("main", repo)


def test_git_not_installed(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TreeError, match=r"^the program git is not on PATH; install git$"):
        open_tree("main", repo)


def test_repository_without_a_commit(tmp_path: Path) -> None:
    git_in(tmp_path)("init", "-q", "-b", "main")
    with pytest.raises(TreeError, match="has no branch or tag"):
        open_tree("HEAD", tmp_path)
    (tmp_path / "a.py").write_text("a")
    with open_tree("WORKTREE", tmp_path) as tree:
        assert tree.read("a.py") == b"a"
        assert tree.identity.resolved.startswith("no-commit-dirty-")


def test_shallow_clone(repo: Path, tmp_path: Path) -> None:
    git_in(tmp_path)("clone", "-q", "--depth=1", repo.as_uri(), "shallow")
    with open_tree("HEAD", tmp_path / "shallow") as tree:
        assert tree.read("pkg/mod.py") == b"two\n"
    with pytest.raises(TreeError, match=r"^unknown revision 'HEAD~1' .*shallow: git fetch --unshallow"):
        open_tree("HEAD~1", tmp_path / "shallow")


def test_blobless_clone_says_which_file_is_missing_and_fetches_nothing(repo: Path, tmp_path: Path) -> None:
    git_in(repo)("config", "uploadpack.allowFilter", "true")
    git_in(tmp_path)("clone", "-q", "--bare", "--filter=blob:none", repo.as_uri(), "part")
    with open_tree("main", tmp_path / "part") as tree:
        assert tree.paths("pkg/sub") == ["pkg/sub/__init__.py"]
        for _ in range(2):
            with pytest.raises(TreeError, match=r"^pkg/mod.py of main \(.*\) is not in .*partial") as caught:
                tree.read("pkg/mod.py")
        assert "\n" not in str(caught.value)
    missing = git_in(tmp_path / "part")("rev-list", "--objects", "--missing=print", "main")
    assert f"?{git_in(repo)('rev-parse', 'main:pkg/mod.py')}" in missing.splitlines()


def test_damaged_object_is_one_line_and_the_tree_goes_on(repo: Path) -> None:
    name = git_in(repo)("rev-parse", "main:pkg/mod.py")
    file = repo / ".git" / "objects" / name[:2] / name[2:]
    file.chmod(0o644)
    file.write_bytes(b"not zlib")
    with open_tree("main", repo) as tree:
        with pytest.raises(TreeError, match=f"({name}|pkg/mod.py of main).* .*repo: ") as caught:
            tree.read("pkg/mod.py")
        assert "\n" not in str(caught.value)
        assert tree.read("pkg/sub/__init__.py") == b"X = 1\n"


def test_trees_of_one_repository_share_a_process_that_ends_with_them(repo: Path) -> None:
    base, head = open_tree("HEAD~1", repo), open_tree("HEAD", repo)
    assert base.read("pkg/mod.py") == b"one\n"
    assert head.read("pkg/mod.py") == b"two\n"
    repository = Repository.find(repo)
    assert repository._process is not None
    process = repository._process._process
    del repository
    base.close()
    assert process.poll() is None
    assert head.read("pkg/mod.py") == b"two\n"
    head.close()
    head.close()
    assert process.poll() == 0
    with pytest.raises(ValueError, match="closed"):
        head.read("pkg/mod.py")


def test_threads_get_their_own_answers(repo: Path) -> None:
    wrong: list[object] = []
    with open_tree("HEAD~1", repo) as base, open_tree("HEAD", repo) as head:

        def work() -> None:
            for _ in range(100):
                found = (base.read("pkg/mod.py"), head.read("pkg/mod.py"))
                if found != (b"one\n", b"two\n"):
                    wrong.append(found)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_names_that_are_not_utf8(repo: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    (repo / name).write_text("latin")
    git = git_in(repo)
    git("add", ".")
    git("commit", "-q", "-m", "latin")
    for spec in ("HEAD", "WORKTREE"):
        with open_tree(spec, repo) as tree:
            assert name in tree.paths()
            assert tree.read(name) == b"latin"


def test_merge_base(repo: Path, tmp_path: Path) -> None:
    git = git_in(repo)
    assert merge_base(repo, "topic/fast") == git("rev-parse", "HEAD~1")
    assert merge_base(repo) == git("rev-parse", "HEAD")
    git("branch", "-m", "main", "master")
    assert merge_base(repo, "topic/fast") == git("rev-parse", "HEAD~1")
    git("branch", "-m", "master", "trunk")
    with pytest.raises(TreeError, match=r"has no origin/HEAD, main or master; name the base with --base"):
        merge_base(repo)
    git_in(tmp_path)("clone", "-q", str(repo), "clone")  # origin/HEAD is trunk
    assert merge_base(tmp_path / "clone", "origin/topic/fast") == git("rev-parse", "HEAD~1")
    git("checkout", "-q", "--orphan", "main")
    git("commit", "-q", "-m", "unrelated")
    with pytest.raises(TreeError, match="topic/fast and main have no common commit"):
        merge_base(repo, "topic/fast")


def test_commits_of_a_range_come_parents_first(repo: Path) -> None:
    git = git_in(repo)
    (repo / "other.py").write_text("")
    git("add", ".")
    git("commit", "-q", "-m", "Three")
    two, three = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    assert commits(repo, "topic/fast..main") == [two, three]
    assert commits(repo, "topic/fast..") == [two, three]
    assert commits(repo, "topic/fast..main", ["pkg"]) == [two]
    assert commits(repo, "main..main") == []
    for bad in ("main", "main...topic/fast"):
        with pytest.raises(TreeError, match=r"is not a range of commits; write A\.\.B"):
            commits(repo, bad)
    with pytest.raises(TreeError, match="unknown revision 'absent'"):
        commits(repo, "absent..main")
    with pytest.raises(TreeError, match="begins with '-'"):
        commits(repo, "--all..main")


def test_a_commit_of_another_history_is_not_contained(repo: Path) -> None:
    git = git_in(repo)
    before, first = git("rev-parse", "HEAD"), git("rev-parse", "HEAD~1")
    git("checkout", "-q", "--orphan", "other")
    git("commit", "-q", "-m", "unrelated")
    repository = Repository.find(repo)
    assert not repository.contains(before, git("rev-parse", "HEAD"))
    assert repository.contains(before, first) and not repository.contains(first, before)
    with pytest.raises(TreeError, match="git merge-base failed"):
        repository.contains(before, "0" * 40)
