"""What a head does to the process ends as an outcome of the case it does it in; the other cases are reported.

All heads go through one run, one after another in the same children, so what one leaves behind would show in the next.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest import api
from difftest.result import RunResult, TargetResult
from difftest.run import supervisor

CASES = """
import torch
from difftest.target import Case, Target


def cases():
    for number in range(1, 9):
        yield Case(f"{number} values", lambda number=number: {"values": torch.arange(number, dtype=torch.float32)})


TARGETS = (Target("user.double", ("pack.double:double",), cases, timeout=2.0),)
"""

BASE = """
import torch


def double(values):
    return values * 2
"""

ENDS_THE_CALL = {
    "segfault": ("crash", "import ctypes; ctypes.string_at(0)"),
    "abort": ("crash", "import os; os.abort()"),
    "exit-0": ("crash", "import os; os._exit(0)"),
    "exit-1": ("crash", "import os; os._exit(1)"),
    "stack-overflow": (
        "crash",
        "x = []\n        for _ in range(10**5): x = [x]\n        sys.setrecursionlimit(10**9); repr(x)",
    ),
    "kills-itself": ("crash", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "closes-descriptors": ("crash", "import os; os.closerange(3, 4096)"),
    "loops": ("timeout", "while True: pass"),
    "sleeps": ("timeout", "import time; time.sleep(1000)"),
    "endless-output": ("timeout", "import os\n        while True: os.write(1, bytes(1 << 16))"),
    "endless-recursion": ("exception", "def f(): return f()\n        f()"),
    "100-gigabytes": ("exception", "torch.empty(100 << 30, dtype=torch.uint8)"),
    "system-exit": ("exception", "raise SystemExit(0)"),
    "keyboard-interrupt": ("exception", "raise KeyboardInterrupt"),
    "message-that-raises": ("exception", "raise Mute"),
    "exception-group": ("exception", "raise ExceptionGroup('several', [ValueError('one'), KeyError('two')])"),
    "forks": ("exception", "import os; os.fork()"),
    "starts-a-program": ("exception", "import subprocess; subprocess.run(['true'])"),
    "opens-a-socket": ("exception", "import socket; socket.socket()"),
    "reads-another-file": ("exception", "open('/etc/shadow').read()"),
    "looks-around": ("exception", "import os; os.listdir('/home')"),
    "writes-outside": ("exception", "open('/tmp/difftest-was-here', 'w')"),
    "reads-the-parent": ("exception", "import os; open(f'/proc/{os.getppid()}/environ').read()"),
    "kills-the-parent": ("exception", "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"),
    "kills-its-group": ("exception", "import os, signal; os.kill(0, signal.SIGKILL)"),
}
"""Head -> (kind of the mismatch, what it does in one case of the eight)."""

RETURNS_SOMETHING_ELSE = {
    "lambda": ("type", "return lambda: 0"),
    "generator": ("type", "return (x for x in values)"),
    "lock": ("type", "import threading; return threading.Lock()"),
    "holds-itself": ("type", "x = []; x.append(x); return x"),
    "property-that-raises": ("type", "return Mute()"),
    "64-megabytes": ("shape", "return values.new_zeros(1 << 24)"),
}

CHANGES_THE_PROCESS = {
    "default-dtype": ("torch default dtype", "torch.set_default_dtype(torch.float64)"),
    "default-device": ("torch default device", "torch.set_default_device('cpu')"),
    "deterministic": ("torch deterministic algorithms", "torch._C._set_deterministic_algorithms(True)"),
    "torch-threads": ("torch threads", "torch.set_num_threads(2)"),
    "no-gradients": ("torch gradients", "torch.set_grad_enabled(False)"),
    "flushes-denormals": ("denormals flushed to zero", "torch.set_flush_denormal(True)"),
    "numpy-errors": ("numpy error handling", "import numpy; numpy.seterr(all='raise')"),
    "folder": ("current folder", "import os; os.chdir('/')"),
    "recursion-limit": ("recursion limit", "sys.setrecursionlimit(1234)"),
    "signal-handler": ("signal handlers", "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)"),
    "thread": (
        "Python threads",
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    ),
    "standard-output": ("standard streams", "import io; sys.stdout = io.StringIO()"),
}

PULLS_THE_GROUND_AWAY = {
    "forgets-torch": "del sys.modules['torch']",
    "patches-torch": "torch.mul = torch.add",
    "patches-a-method": "torch.Tensor.clone = lambda self: self",
    "patches-builtins": "import builtins; builtins.sorted = lambda *a, **k: []",
    "patches-freezing": "from difftest.call.freeze import Freezer; Freezer.__call__ = lambda self, value: ('int', 1)",
    "patches-comparison": "import difftest.compare.outcomes as c; c._differing_leaves = lambda *a: iter(())",
    "hides-differences": "from difftest.compare.outcomes import _Walker; _Walker.walk = lambda *a: None",
}

HARMLESS = {
    "deletes-its-module": "sys.modules.pop(__name__)",
    "prints": "print('x' * 1000); print('y' * 100000, file=sys.stderr)",
}

HELPERS = """
import sys

import torch


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no message")

    @property
    def __dict__(self):
        raise RuntimeError("no state")


def _write(fd):
    import os
    try:
        os.write(fd, b"{not json\\n")
    except OSError:
        pass


def double(values):
    if len(values) == 3:
        BODY
    return values * 2
"""


def write_tree(folder: Path, text: str) -> str:
    (folder / "pack").mkdir(parents=True)
    (folder / "pack/__init__.py").write_text("")
    (folder / "pack/double.py").write_text(text)
    return str(folder)


def run(folder: Path, heads: dict[str, str], **options: object) -> RunResult:
    """Compare the base with heads, given as what they do in the case of three values."""
    (folder / "double_cases.py").write_text(CASES)
    return api.run(
        api.RunOptions(
            base=write_tree(folder / "base", BASE),
            heads=tuple(write_tree(folder / name, HELPERS.replace("BODY", body)) for name, body in heads.items()),
            targets=("user.double",),
            cases_from=(folder / "double_cases.py",),
            **{"jobs": 1, **options},  # type: ignore[arg-type]
        )
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TargetResult]:
    folder = tmp_path_factory.mktemp("hostile")
    pairs = {**ENDS_THE_CALL, **RETURNS_SOMETHING_ELSE, **CHANGES_THE_PROCESS}
    bodies = {**{name: body for name, (_, body) in pairs.items()}, **PULLS_THE_GROUND_AWAY, **HARMLESS}
    result = run(folder, bodies)
    assert (result.verdict, result.exit_code) == ("different", 1)
    assert "network" in result.environment["sandbox"]
    return dict(zip(bodies, result.targets, strict=True))


@pytest.mark.parametrize("head", [*ENDS_THE_CALL, *RETURNS_SOMETHING_ELSE])
def test_the_case_is_different_and_the_others_are_reported(results: dict[str, TargetResult], head: str) -> None:
    target = results[head]
    kind = {**ENDS_THE_CALL, **RETURNS_SOMETHING_ELSE}[head][0]
    assert target.verdict == "different", target
    assert set(target.kinds) == {kind}
    assert {m.label for m in target.mismatches} == {"3 values"}
    assert (target.cases.executed, target.cases.different, target.cases.identical) == (8, 1, 7)


@pytest.mark.parametrize("head", CHANGES_THE_PROCESS)
def test_a_changed_setting_is_a_difference_of_its_case_alone(results: dict[str, TargetResult], head: str) -> None:
    target = results[head]
    (mismatch,) = target.mismatches
    assert mismatch.kind == "mutation"
    assert mismatch.leaf == f"process.{CHANGES_THE_PROCESS[head][0]}"
    assert (mismatch.base, mismatch.label) == ("unchanged", "3 values")
    assert (target.cases.different, target.cases.identical) == (1, 7)


@pytest.mark.parametrize("head", PULLS_THE_GROUND_AWAY)
def test_nothing_is_claimed_once_the_ground_was_pulled_away(results: dict[str, TargetResult], head: str) -> None:
    target = results[head]
    assert target.cases.identical == 0
    assert target.verdict in ("unmeasured", "different")
    assert any("withdrawn: code under test replaced" in note for note in target.notes), target


@pytest.mark.parametrize("head", HARMLESS)
def test_what_changes_no_outcome_is_identical(results: dict[str, TargetResult], head: str) -> None:
    assert (results[head].verdict, results[head].cases.identical) == ("identical", 8)


def test_messages_of_exceptions_are_told(results: dict[str, TargetResult]) -> None:
    group = results["exception-group"].mismatches[0].head
    assert "ValueError: one" in group
    assert "KeyError: 'two'" in group
    assert "a message that cannot be had: RuntimeError" in results["message-that-raises"].mismatches[0].head


def test_a_head_that_writes_to_the_channel_is_not_believed(tmp_path: Path) -> None:
    heads = {"forges": "import os\n        for fd in range(3, 64): _write(fd)", "fine": "pass"}
    forged, fine = run(tmp_path, heads).targets
    assert forged.verdict in ("unmeasured", "different")  # as the supervisor reads it during a call or after
    said = [forged.reason, *forged.notes, *(m.head for m in forged.mismatches)]
    assert any("breaks the channel to the harness" in text for text in said)
    assert fine.verdict == "identical"


def test_a_growing_list_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESIDENT_BYTES", 1 << 30)
    body = "kept = []\n        while True: kept.append(b'x' * (32 << 20))"
    (target,) = run(tmp_path, {"grows": body}, timeout=60.0).targets
    assert set(target.kinds) == {"crash"}
    assert "of memory" in target.mismatches[0].head
    assert (target.cases.different, target.cases.identical) == (1, 7)


def test_a_head_that_always_crashes_is_given_up_and_still_different(tmp_path: Path) -> None:
    result = run(tmp_path, {"crashes": "pass\n    import os; os.abort()"})
    (target,) = result.targets
    assert result.exit_code == 1
    assert target.kinds == {"crash": target.cases.different}
    assert 0 < target.cases.different <= 4
    assert any("too many earlier cases crashed or hung" in note for note in target.notes)


def test_a_base_that_crashes_like_head_is_not_a_difference(tmp_path: Path) -> None:
    crash = "import os\n\n\ndef double(values):\n    if len(values) == 3: os.abort()\n    return values * {}\n"
    (tmp_path / "double_cases.py").write_text(CASES)
    options = api.RunOptions(
        base=write_tree(tmp_path / "base", crash.format(2)),
        heads=(write_tree(tmp_path / "head", crash.format("(1 + 1)")),),
        targets=("user.double",),
        cases_from=(tmp_path / "double_cases.py",),
        jobs=1,
    )
    (target,) = api.run(options).targets
    assert (target.verdict, target.cases.identical, target.cases.unmeasured) == ("identical", 7, 1)
    assert any("both arms end alike" in note for note in target.notes)


def test_secrets_of_the_environment_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-heads")
    monkeypatch.setenv("GITHUB_TOKEN", "not-for-heads")
    body = "import os; return [k for k, v in os.environ.items() if 'not-for-heads' in v] or values * 2"
    (target,) = run(tmp_path, {"curious": body}).targets
    assert (target.verdict, target.cases.identical) == ("identical", 8)


def test_a_run_on_the_cpu_sees_no_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    body = "import os; return os.environ['CUDA_VISIBLE_DEVICES'] or values * 2"
    (target,) = run(tmp_path, {"looks-for-a-device": body}).targets
    assert (target.verdict, target.cases.identical) == ("identical", 8)
