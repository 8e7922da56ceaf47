"""A process that has imported torch, from which the workers of several runs are forked. No torch in the one that asks.

Importing torch is most of what a small run takes. A sweep, a bisection and a test session make many runs, one after
the other: within :func:`kept` the workers of all but the first begin as forks of one process that runs nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from difftest.processes import python_command
from difftest.run.protocol import Channel

_OWN = ("HOME", "TMPDIR")
"""Variables that each worker has for itself."""
_LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
_UNFIT = 2
"""So many workers in succession that a server could not serve, and another one takes its place."""
_MOST_FDS = 250  # what one message may carry: SCM_MAX_FD, less a few


class Process(Protocol):
    """A worker process, however it was begun."""

    def end(self) -> None:
        """Kill it and the processes of its group, and wait until it has ended."""


class Begun:
    """A worker with an interpreter of its own.

    Args:
        command: what it runs.
        environment: its variables, all of them.
        log: where its output goes.
        descriptors: what it inherits; it finds them under the same numbers.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, descriptors: Sequence[int]) -> None:
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                cwd=environment["HOME"],
                pass_fds=descriptors,
                start_new_session=True,
            )

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class ForkServer:
    """The process that workers are forked from, as it is seen from the process that wants them.

    Args:
        environment: variables of the workers.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._inherited = _inherited(environment)
        ours, theirs = socket.socketpair()
        self._home = tempfile.TemporaryDirectory(prefix="difftest-")
        home = Path(self._home.name)
        variables = {**environment, **dict.fromkeys(_OWN, str(home))}
        command = python_command("difftest.run.forkserver", str(theirs.fileno()), str(os.getpid()))
        self._process = Begun(command, variables, home / "log", [theirs.fileno()])
        theirs.close()
        self._connection = ours
        self._begun = 0

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a worker with these variables would be the same as one with an interpreter of its own."""
        return self._inherited == _inherited(environment)

    def begin(self, environment: Mapping[str, str], log: Path, descriptors: Sequence[int]) -> Process:
        """Have a worker forked; returns at once, the server may still be importing torch.

        Args:
            environment: its variables, all of them.
            log: where its output goes.
            descriptors: sockets that it inherits, the way to its supervisor first.

        Raises:
            OSError: the server is gone.
        """
        self._begun += 1
        own = {name: environment[name] for name in _OWN}
        request = {"begin": self._begun, "own": own, "log": str(log), "numbers": list(descriptors)}
        socket.send_fds(self._connection, [json.dumps(request).encode() + b"\n"], descriptors)
        return _Forked(self, self._begun)

    def kill(self, number: int) -> None:
        """End the worker that was begun as the `number`th."""
        try:
            self._connection.sendall(json.dumps({"end": number}).encode() + b"\n")
            ended = self._connection.recv(1)
        except BaseException:
            self.end()  # what it says next may be of this worker
            raise
        if not ended:
            self.end()

    def end(self) -> None:
        """End the server, and with it its workers."""
        self._connection.close()
        self._process.end()
        self._home.cleanup()


@dataclass(frozen=True)
class _Forked:
    server: ForkServer
    number: int

    def end(self) -> None:
        with contextlib.suppress(OSError):  # the server is gone, and its workers with it
            self.server.kill(self.number)


class _Held(threading.local):
    """Of one thread, as the kernel ends a process with the thread that started it."""

    kept = 0
    begun = 0
    unfit = 0
    server: ForkServer | None = None

    def drop(self) -> None:
        if self.server is not None:
            self.server.end()
        self.server = None


_held = _Held()


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within it, the workers of the second run on are forked from one process; that ends with it."""
    _held.kept += 1
    try:
        yield
    finally:
        _held.kept -= 1
        if not _held.kept:
            _held.begun = 0
            _held.drop()


def begin(environment: dict[str, str], log: Path, descriptors: Sequence[int]) -> Process | None:
    """A forked worker, or None where it must have an interpreter of its own: outside of :func:`kept`, for a first run,
    and where no fork server can be had."""
    if not _held.kept or len(descriptors) > _MOST_FDS:
        return None
    _held.begun += 1
    if _held.begun == 1:
        return None
    try:
        if _held.server is not None and not _held.server.serves(environment):
            _held.unfit += 1
            if _held.unfit < _UNFIT:
                return None
            _held.drop()
        _held.unfit = 0
        if _held.server is None:
            _held.server = ForkServer(environment)
        return _held.server.begin(environment, log, descriptors)
    except OSError:
        _held.drop()
        return None


def _inherited(environment: Mapping[str, str]) -> tuple[Any, ...]:
    """What a process has from the one that starts it."""
    variables = sorted((name, value) for name, value in environment.items() if name not in _OWN)
    limits = [resource.getrlimit(number) for number in _LIMITS]
    umask = os.umask(0o077)
    os.umask(umask)
    return sys.executable, variables, limits, umask, os.sched_getaffinity(0), os.nice(0)


# -- in the server ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Serve the process that started this one, until it closes the connection."""
    from difftest.run import worker

    connection = socket.socket(fileno=int(sys.argv[1]))
    worker.get_ready(int(sys.argv[2]))
    workers: dict[int, int] = {}
    waiting = b""
    while True:
        arrived, received, _, _ = socket.recv_fds(connection, 1 << 16, _MOST_FDS)
        if not arrived:
            return 0
        *lines, waiting = (waiting + arrived).split(b"\n")
        for message in map(json.loads, lines):
            if "end" in message:
                _end(workers.pop(message["end"]))
                connection.sendall(b".")
                continue
            server = os.getpid()
            pid = os.fork()
            if not pid:
                connection.close()
                os._exit(_work(server, message, received))
            workers[message["begin"]] = pid
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            for descriptor in received:
                os.close(descriptor)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _work(server: int, message: dict[str, Any], received: list[int]) -> int:
    """Be the worker that the message asks for. Its exit status."""
    code = 70
    try:
        os.setpgid(0, 0)
        os.environ.update(message["own"])
        os.chdir(message["own"]["HOME"])
        log = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        from difftest.run import worker

        worker.die_with(server)
        numbers = dict(zip(message["numbers"], received, strict=True))
        code = worker.serve(Channel(socket.socket(fileno=received[0])), worker.Child, numbers)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
