"""However a run ends, no process and no scratch folder of it stays behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from difftest.run.supervisor import MAX_RENEWALS, Unit, _Loop

CASES = """
import torch
from difftest.target import Case, Target


def cases():
    for number in range(1, 4):
        yield Case(f"{number} values", lambda number=number: {"values": torch.arange(number, dtype=torch.float32)})


TARGETS = (Target("user.double", ("pack.double:double",), cases),)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A run whose head hangs, with its scratch folder in `tmp_path/scratch`."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "hang_cases.py").write_text(CASES)
    for name, body in (("base", "return values * 2"), ("head", "while True: pass")):
        (tmp_path / name / "pack").mkdir(parents=True)
        (tmp_path / name / "pack/__init__.py").write_text("")
        (tmp_path / name / "pack/double.py").write_text(f"def double(values):\n    {body}\n")
    trees = ["--base", str(tmp_path / "base"), "--head", str(tmp_path / "head")]
    which = ["--target", "user.double", "--cases-from", str(tmp_path / "hang_cases.py"), "--jobs", "1"]
    return [sys.executable, "-m", "difftest", "run", *trees, *which]


def descendants(pid: int) -> set[int]:
    """Processes below one, by what the system says of their parents."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended meanwhile
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_end(pids: set[int], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.05)
    return False


@contextmanager
def hanging(command: list[str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """The run, once its worker and the child that hangs are there, and their process ids."""
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background inherit none
    ) as run:
        try:
            until = time.monotonic() + 60
            while len(pids := descendants(run.pid)) < 2 or not list((tmp_path / "scratch").glob("*/child0.log")):
                assert run.poll() is None and time.monotonic() < until, run.communicate()
                time.sleep(0.1)
            yield run, pids
        finally:
            run.kill()


def test_a_killed_run_takes_its_workers_with_it(command: list[str], tmp_path: Path) -> None:
    with hanging(command, tmp_path) as (run, pids):
        run.send_signal(signal.SIGKILL)
        run.wait(10)
        assert all_end(pids)


def test_an_interrupted_run_says_so_and_leaves_nothing(command: list[str], tmp_path: Path) -> None:
    with hanging(command, tmp_path) as (run, pids):
        run.send_signal(signal.SIGINT)
        _, error = run.communicate(timeout=10)
        assert run.returncode == 130
        assert error.splitlines()[-1] == "difftest: interrupted"
        assert "Traceback" not in error
        assert all_end(pids)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_killed_worker_ends_the_run_with_one_line(command: list[str], tmp_path: Path) -> None:
    with hanging(command, tmp_path) as (run, pids):
        worker = min(pids, key=lambda pid: len(descendants(pid)) == 0)
        os.kill(worker, signal.SIGKILL)
        _, error = run.communicate(timeout=10)
        assert run.returncode == 2
        assert "the worker process ended" in error
        assert "Traceback" not in error
        assert all_end(pids)


@pytest.mark.parametrize(("size", "line"), [(0, "no scratch folder can be made"), (200, "File too large")])
def test_a_full_disk_is_one_line(command: list[str], tmp_path: Path, size: int, line: str) -> None:
    """A limit on the size of files stands in for the disk: 0 bytes stop the first file, 200 an arm's files."""
    for name in ("base", "head"):
        path = tmp_path / name / "pack/double.py"
        path.write_text(path.read_text() + "#" * 4096)
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert line in done.stderr
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_case_that_is_made_small_goes_on_in_new_children_but_not_without_end() -> None:
    unit = Unit(0, "t", ("m:f", "m:f"), ("base", "head"), (0, 1), 1.0, task={"kind": "value"})
    worker = SimpleNamespace(pids={}, children=[None])
    loop = _Loop(worker, [unit], {}, {}, lambda unit, done: None, lambda unit: None, None)  # type: ignore[arg-type]
    for _ in range(MAX_RENEWALS):
        loop.running[0] = loop.waiting.popleft()
        loop.from_child(0, {"again": 0})
    assert list(loop.waiting) == [unit] and not loop.running
    loop.running[0] = loop.waiting.popleft()
    with pytest.raises(ValueError, match="without end"):
        loop.from_child(0, {"again": 0})
    loop.running[0] = Unit(1, "t", ("m:f", "m:f"), ("base", "head"), (0, 1), 1.0)
    with pytest.raises(ValueError, match="without end"):
        loop.from_child(0, {"again": 1})
