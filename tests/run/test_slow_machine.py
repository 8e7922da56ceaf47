"""On a loaded machine calls take longer; that is no difference between two versions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from difftest import api
from difftest.result import Kind, TargetResult
from difftest.run import protocol, supervisor

CASES = """
import torch
from difftest.target import Case, Target


def cases():
    for number in range(1, 3):
        yield Case(f"{number} values", lambda number=number: {"values": torch.arange(number, dtype=torch.float32)})


TARGETS = (Target("user.double", ("pack.double:double",), cases, timeout={timeout}),)
"""


SLOW = """
import time


def one():
    time.sleep(2.5)
    return 1


ONE = one()
"""


def run(tmp_path: Path, head: str, timeout: float = 1.0, **options: Any) -> TargetResult:
    for name, body in (("base", "pass"), ("head", head)):
        package = tmp_path / name / "pack"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "slow.py").write_text(SLOW)
        (package / "double.py").write_text(f"import time\n\n\ndef double(values):\n    {body}\n    return values * 2\n")
    cases = tmp_path / "double_cases.py"
    cases.write_text(CASES.replace("{timeout}", str(timeout)))
    asked: dict[str, Any] = {"targets": ("user.double",), "cases_from": (cases,), "jobs": 1, "explain": False}
    trees: dict[str, Any] = {"base": str(tmp_path / "base"), "heads": (str(tmp_path / "head"),)}
    (target,) = api.run(api.RunOptions(**trees, **asked, **options)).targets
    return target


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not say how long one waits")
def test_a_call_that_waits_for_a_processor_does_not_hang(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(3)]
    try:
        target = run(tmp_path, "began = time.process_time()\n    while time.process_time() - began < 0.4: pass")
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, allowed)
    assert (target.verdict, target.kinds) == ("identical", {})


def end_a_call_once(monkeypatch: pytest.MonkeyPatch, how: str) -> list[int]:
    watch = supervisor._Loop.watch
    killed: list[int] = []

    def once(loop: supervisor._Loop) -> None:
        for slot in () if killed else loop.running:
            if loop.supervisor.board.read(slot)[5] == protocol.CALLING:
                killed.append(slot)
                if how == "time is up":
                    loop.kill(slot, Kind.TIMEOUT, "still running after 1 s")
                else:
                    os.kill(loop.supervisor.pids[slot], signal.Signals[how])
        watch(loop)

    monkeypatch.setattr(supervisor._Loop, "watch", once)
    return killed


@pytest.mark.parametrize("how", ["time is up", "SIGKILL"])
def test_what_ends_a_call_only_once_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    killed = end_a_call_once(monkeypatch, how)
    target = run(tmp_path, "time.sleep(0.3)")
    assert killed
    assert (target.verdict, target.cases.identical) == ("identical", 2)


def test_a_crash_that_does_not_happen_again_is_neither_a_difference_nor_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = end_a_call_once(monkeypatch, "SIGSEGV")
    target = run(tmp_path, "time.sleep(0.3)")
    assert killed
    assert (target.verdict, target.cases.identical, target.cases.unmeasured) == ("unmeasured", 1, 1)
    assert "ends the process with SIGSEGV once, and not when it was run again" in target.reason


def test_a_hang_that_happens_again_is_a_difference(tmp_path: Path) -> None:
    target = run(tmp_path, "time.sleep(1000)")
    assert (target.verdict, target.kinds) == ("different", {"timeout": 2})


def test_a_first_call_that_imports_for_long_is_made_small_like_any_other(tmp_path: Path) -> None:
    target = run(
        tmp_path,
        "from pack.slow import ONE\n    values = values + (len(values) > 1) * ONE",
        timeout=10.0,
        out=tmp_path / "out",
        shrink=4.0,
    )
    (reduced,) = target.reduced
    assert (reduced.kind, reduced.reason) == ("value", "")
