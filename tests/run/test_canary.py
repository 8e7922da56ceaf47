"""A harness that does not see the head says so and claims nothing."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from difftest.call.outcome import Caller
from difftest.call.rng import GlobalStates
from difftest.errors import DifftestError
from difftest.lift.arm import LiftedArm
from difftest.run import canary
from difftest.run.guard import Guard


@pytest.fixture
def caller() -> Caller:
    return Caller("cpu", GlobalStates(), str)


def test_two_versions_that_differ_in_a_constant_are_seen(caller: Caller, tmp_path: Path) -> None:
    canary.check_plain(caller, tmp_path)
    assert (tmp_path / "canary_base/canary.py").read_text() != (tmp_path / "canary_head/canary.py").read_text()


def test_modules_that_are_shared_between_the_arms_stop_the_run(caller: Caller, tmp_path: Path) -> None:
    @functools.cache
    def first_made() -> dict[str, LiftedArm]:
        return {}

    def sharing(label: str, text: str, folder: Path) -> LiftedArm:
        return first_made().setdefault("arm", canary._arm(label, text, folder))

    with pytest.raises(DifftestError, match="the harness is not seeing the head"):
        canary.check_plain(caller, tmp_path, sharing)


def test_a_canary_that_cannot_run_stops_the_run(caller: Caller, tmp_path: Path) -> None:
    def broken(label: str, text: str, folder: Path) -> LiftedArm:
        return canary._arm(label, "def below(tokens):\n    return LIMIT\n", folder)

    with pytest.raises(DifftestError, match="the canary below raises NameError"):
        canary.check_plain(caller, tmp_path, broken)


TRITON = """
import sys
from pathlib import Path
import difftest.call.interpreter as interpreter
interpreter.bridge()
from difftest.call.outcome import Caller
from difftest.call.rng import GlobalStates
from difftest.errors import DifftestError
from difftest.run import canary

caller, folder = Caller("cpu", GlobalStates(), str), Path(sys.argv[1])
canary.check_triton(caller, folder)
kept = []
try:
    canary.check_triton(caller, folder / "shared", lambda *args: (kept.append(canary._arm(*args)), kept[0])[1])
except DifftestError as error:
    print(error)
"""


def test_a_constexpr_is_seen_and_a_stale_kernel_stops_the_run(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", TRITON, str(tmp_path)],
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the harness is not seeing the head")


def test_the_guard_sees_a_planted_difference_and_no_replaced_function() -> None:
    assert Guard().replaced() == []
