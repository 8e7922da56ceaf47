"""Workers forked from one process find what those with an interpreter of their own find, and end with it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_process_life import CASES, all_end, descendants

from difftest import api
from difftest.result import RunResult
from difftest.run import forkserver

HEADS = {
    "same": "return values + values",
    "other": "return values * 3",
    "crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "where": "import os, tempfile; raise ValueError(sorted(os.environ), os.getcwd() == os.environ['HOME'],"
    " tempfile.gettempdir() == os.environ['TMPDIR'])",
}


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    (tmp_path / "user_cases.py").write_text(CASES)
    for name, body in {"base": "return values * 2", **HEADS}.items():
        (tmp_path / name / "pack").mkdir(parents=True)
        (tmp_path / name / "pack/__init__.py").write_text("")
        (tmp_path / name / "pack/double.py").write_text(f"def double(values):\n    {body}\n")
    return tmp_path


def compared(trees: Path, *heads: str) -> RunResult:
    return api.run(
        api.RunOptions(
            base=str(trees / "base"),
            heads=tuple(str(trees / head) for head in heads),
            targets=("user.double",),
            cases_from=(trees / "user_cases.py",),
            jobs=1,
            explain=False,
        )
    )


def said(found: object) -> object:
    """A result's JSON without the times."""
    if isinstance(found, dict):
        return {name: said(value) for name, value in found.items() if name not in ("seconds", "started")}
    return [said(value) for value in found] if isinstance(found, list | tuple) else found


@pytest.fixture
def alone() -> Iterator[None]:
    """A thread's workers have nothing to do with another's, so a test has a thread of its own: without what is kept
    for the session."""
    held = forkserver._held
    forkserver._held = forkserver._Held()
    yield
    forkserver._held = held


def test_forked_workers_find_the_same(trees: Path, alone: None) -> None:
    apart = said(compared(trees, *HEADS).to_json())
    assert forkserver._held.server is None
    with forkserver.kept():
        together = [said(compared(trees, *HEADS).to_json()) for _ in range(2)]
        assert forkserver._held.server is not None
    assert together == [apart] * 2
    assert "'different'" in str(apart)


def test_nothing_stays_behind(trees: Path, alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    before = descendants(os.getpid())
    with forkserver.kept():
        for _ in range(2):
            compared(trees, "crash")
        assert len(descendants(os.getpid()) - before) == 1
    assert all_end(descendants(os.getpid()) - before)
    assert not list((tmp_path / "scratch").iterdir())


def test_a_server_that_was_killed_is_done_without(trees: Path, alone: None) -> None:
    before = descendants(os.getpid())
    with forkserver.kept():
        for _ in range(2):
            compared(trees, "same")
        (server,) = descendants(os.getpid()) - before
        os.kill(server, signal.SIGKILL)
        assert all_end({server})
        assert compared(trees, "same").verdict == "identical"
        assert compared(trees, "other").verdict == "different"


def test_another_environment_has_another_server(trees: Path, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with forkserver.kept():
        for _ in range(2):
            compared(trees, "where")
        first = forkserver._held.server
        monkeypatch.setenv("LC_ALL", "C")
        assert "'LC_ALL'" in str(compared(trees, "where").to_json())
        assert forkserver._held.server is first  # an interpreter of its own, this once
        result = compared(trees, "where")
        assert forkserver._held.server not in (None, first)
    assert "'LC_ALL'" in str(result.to_json())


def test_each_thread_has_its_own(trees: Path, alone: None) -> None:
    """The kernel ends a process with the thread that started it."""
    found: list[str] = []

    def runs() -> None:
        with forkserver.kept():
            found.extend(str(compared(trees, "same").verdict) for _ in range(2))

    with forkserver.kept():
        found.extend(str(compared(trees, "same").verdict) for _ in range(2))
        (thread := threading.Thread(target=runs)).start()
        thread.join()
        found.append(str(compared(trees, "same").verdict))
    assert found == ["identical"] * 5
