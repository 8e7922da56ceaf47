"""What a confined process is kept from, by the kernel and, where that cannot, by the interpreter."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from difftest.run.sandbox import _ARCHITECTURES, Confinement, _libc, seccomp_program

ATTEMPTS = """
import os, socket, subprocess, sys
from pathlib import Path
import difftest.run.sandbox as sandbox

own, other = Path(sys.argv[1]), Path(sys.argv[2])
{setup}
found = sandbox.confine([], [own], "cpu")

def attempt(name, function):
    try:
        function()
        print(name, "done")
    except OSError as error:
        print(name, type(error).__name__)

attempt("own-write", lambda: (own / "x").write_text("x"))
attempt("own-read", lambda: (own / "x").read_text())
attempt("import", lambda: __import__("sqlite3"))
attempt("other-read", lambda: (other / "secret").read_text())
attempt("other-list", lambda: os.listdir(other))
attempt("other-write", lambda: (other / "y").write_text("y"))
attempt("other-remove", lambda: (other / "secret").unlink())
attempt("python-write", lambda: Path(sandbox.__file__).with_name("planted.py").write_text(""))
attempt("shadow", lambda: open("/etc/shadow").read())
attempt("environ", lambda: open(f"/proc/{{os.getppid()}}/environ").read())
attempt("socket", lambda: socket.socket())
attempt("unix-socket", lambda: socket.socket(socket.AF_UNIX))
attempt("program", lambda: subprocess.run(["/bin/true"]))
attempt("fork", lambda: os.fork() or os._exit(0))
attempt("kill", lambda: os.kill(os.getppid(), 0))
print("sandbox", found)
"""
FULL = sys.platform == "linux" and os.uname().machine in _ARCHITECTURES and _libc.syscall(444, None, 0, 1) >= 1
"""Whether this machine's kernel can do all of it."""

ALLOWED = ("own-write", "own-read", "import")


def attempts(tmp_path: Path, setup: str = "") -> dict[str, str]:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    (other / "secret").write_text("secret")
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS.format(setup=setup), str(own), str(other)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (other / "secret").read_text() == "secret"
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_a_confined_process_reaches_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    found = attempts(tmp_path)
    assert {name: result for name, result in found.items() if result == "done"} == dict.fromkeys(ALLOWED, "done")
    assert found["sandbox"] in (
        "network, processes, files",
        "network, processes; files (by an interpreter hook only)",
        "network, processes, files (by an interpreter hook only)",
    )


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("sandbox._landlock = lambda *a: False", "network, processes; files (by an interpreter hook only)"),
        ("sandbox._seccomp = lambda *a: False", "files; network, processes (by an interpreter hook only)"),
        (
            "sandbox._landlock = sandbox._seccomp = lambda *a: False",
            "network, processes, files (by an interpreter hook only)",
        ),
    ],
)
def test_where_the_kernel_cannot_the_interpreter_refuses_and_the_report_says_so(
    tmp_path: Path, setup: str, said: str
) -> None:
    found = attempts(tmp_path, setup)
    assert {name: result for name, result in found.items() if result == "done"} == dict.fromkeys(ALLOWED, "done")
    assert "by an interpreter hook only" in found["sandbox"]
    if FULL:
        assert found["sandbox"] == said


def test_no_isolation_is_said_as_such() -> None:
    assert str(Confinement("no", "no", "no")) == "environment only"


@pytest.mark.parametrize("machine", _ARCHITECTURES)
@pytest.mark.parametrize("programs", [True, False])
def test_the_filter_decides_as_written(machine: str, programs: bool) -> None:
    """The program is run here, instruction by instruction, for every number and argument that matters."""
    program = seccomp_program(machine, 42, programs)
    assert program is not None
    audit, numbers = _ARCHITECTURES[machine]

    def decide(number: int, argument: int = 0, architecture: int = audit) -> str:
        data = struct.pack("=iIQ6Q", number, architecture, 0, argument, 0, 0, 0, 0, 0)
        at, value = 0, 0
        while True:
            operation, yes, no, k = struct.unpack_from("=HBBI", program, at * 8)
            at += 1
            if operation == 0x20:
                value = struct.unpack_from("=I", data, k)[0]
            elif operation == 0x06:
                return {0x7FFF0000: "allow", 0x80000000: "kill"}.get(k, "deny")
            else:
                true = {0x15: value == k, 0x45: bool(value & k), 0x35: value >= k}[operation]
                at += yes if true else no

    assert decide(0) == "allow"  # read on x86-64, io_setup on arm64: not named
    assert decide(0, architecture=audit ^ 1) == "kill"
    for name in ("socket", "connect", "ptrace", "process_vm_readv", "mount", "bpf", "tkill"):
        assert decide(numbers[name]) == "deny", name
    assert decide(425) == "deny"
    for name in ("kill", "tgkill"):
        assert (decide(numbers[name], 42), decide(numbers[name], 43), decide(numbers[name], 0)) == (
            "allow", "deny", "deny",
        )  # fmt: skip
    assert (decide(numbers["prlimit64"], 0), decide(numbers["prlimit64"], 43)) == ("allow", "deny")
    may_start = "allow" if programs else "deny"
    assert (decide(numbers["socket"], 1), decide(numbers["socket"], 2)) == (may_start, "deny")
    assert decide(numbers["execve"]) == may_start
    assert decide(numbers["clone"], 0x11) == may_start
    assert decide(numbers["clone"], 0x10000) == "allow"  # a thread


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    assert seccomp_program("riscv64", 1, False) is None
