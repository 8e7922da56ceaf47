"""The worker: imports torch once, then forks children that hold the arms and run the cases.

Started by the supervisor as `python -m difftest.run.worker CONTROL_FD`. The parent here never runs code under test,
so a child that crashes is replaced in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import json
import os
import resource
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from difftest.errors import DifftestError
from difftest.run.protocol import BASE, CHANNEL_LOST, HEAD, Board, Channel
from difftest.run.sandbox import confine

FILE_BYTES = 1 << 30
"""The largest file that code under test may write, its error output included."""

_FLUSH_SECONDS = 0.25
_LOG_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


def main(kind: type[Child] | None = None, prepare: Callable[[], None] | None = None) -> int:
    """Serve one run.

    Args:
        kind: what the children are; :class:`Child` when None.
        prepare: readies the process for the code under test, once torch is there; by default memory is poisoned, and
            what the code asks of an accelerator and of the compiler is bridged.
    """
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    get_ready(int(sys.argv[2]), prepare)
    return serve(control, kind or Child)


def get_ready(parent: int, prepare: Callable[[], None] | None = None) -> None:
    """Import torch and ready the process for the code under test; what it takes before it knows of a run.

    Args:
        parent: the process with which this one ends.
        prepare: as for :func:`main`.
    """
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # all that is imported here stays; looking for garbage in it takes a sixth of importing torch
    import torch

    from difftest.call.compiler import run_eagerly

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    run_eagerly()
    (prepare or _poison)()


def serve(control: Channel, kind: type[Child], numbers: Mapping[int, int] | None = None) -> int:
    """Wait for `setup`, then fork a child for each slot and a new one for each that dies. The exit status.

    Args:
        control: the way to the supervisor.
        kind: what the children are.
        numbers: what the descriptors that the setup names are called here; None where they have the same numbers.
    """
    import torch

    setup = control.receive()
    if setup is None:
        return 0
    if setup["device"] == "cuda" and not torch.cuda.is_available():
        text = f"--device cuda: PyTorch {torch.__version__} finds no GPU here; leave --device out to run on the CPU"
        control.send({"failed": text})
        return 2
    try:
        if setup["triton"]:
            _import_triton()
        from difftest.catalog import load_targets

        targets = load_targets(setup["modules"])
        if setup["signatures"]:
            from difftest.cases import signature

            targets |= signature.targets(setup["signatures"], setup["device"])
        if setup["recorded"]:
            from difftest.record import cases

            recorded = [Path(path) for path in setup["recorded"]]
            targets |= cases.targets(recorded, setup["device"], targets, setup["alone"])
        # Everything the children need, imported once here.
        if setup["fuzz"]:
            import difftest.cases.strategies
            import difftest.run.fuzzing
        import difftest.oracles.agreement
        import difftest.run.canary
        import difftest.run.explaining
        import difftest.run.unit  # noqa: F401
        from difftest.run.guard import Guard
        from difftest.run.sandbox import python_paths

        setup["guard"], setup["python"] = Guard(), python_paths()
    except Exception as error:
        control.send({"failed": f"{type(error).__name__}: {error}"})
        return 2
    control.send({"ready": True})
    gc.freeze()
    gc.enable()  # in the children
    children: dict[int, dict[str, Any]] = {}
    for slot in setup["slots"]:
        if numbers is not None:
            slot["fd"] = numbers[slot["fd"]]
    for slot in setup["slots"]:
        children[_fork(kind, setup, targets, slot, control)] = slot
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid not in children:
            continue
        slot = children.pop(pid)
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        try:
            control.send({"died": slot["number"], "status": code})
        except OSError:
            return 0
        message = control.receive()
        if message is None or not message.get("again"):
            if not children:
                return 0
            continue
        children[_fork(kind, setup, targets, slot, control)] = slot


def _poison() -> None:
    from difftest.call.compiler import without_compiler
    from difftest.call.host import bridge_host
    from difftest.call.poison import POISON

    POISON.install()
    without_compiler()
    bridge_host()  # code that no kernel is reached from pins memory too


def _import_triton() -> None:
    try:
        import triton

        from difftest.call.interpreter import bridge

        if bridge():  # the interpreter loads this at the first launch: here once, and not in each child
            with contextlib.suppress(ImportError):
                import triton.experimental.gluon  # noqa: F401
    except ImportError:
        pass  # the stand-in says so, for each target that needs it


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it ended before it could be asked for


def _fork(
    kind: type[Child], setup: dict[str, Any], targets: dict[str, Any], slot: dict[str, Any], control: Channel
) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        die_with(parent)
        for other in (control.connection.fileno(), *[s["fd"] for s in setup["slots"] if s is not slot]):
            os.close(other)
        kind(setup, targets, slot).serve()
        code = 0
    except BaseException as error:
        import traceback

        traceback.print_exc()
        print(f"difftest worker: {error}", file=sys.stderr, flush=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return 0


class Child:
    """Holds the arms and runs units of work: one target against one head."""

    def __init__(self, setup: dict[str, Any], targets: dict[str, Any], slot: dict[str, Any]) -> None:
        from difftest.call.rng import GlobalStates
        from difftest.lift.loader import module_prefix
        from difftest.lift.syntax import keep_trees

        self.setup = setup
        self.targets = targets
        self.slot = slot["number"]
        self.slot_fd = slot["fd"]
        self.channel_inode = os.fstat(self.slot_fd).st_ino
        self.channel = Channel(socket.socket(fileno=self.slot_fd))
        self.board = Board(Path(setup["board"]))
        self.device = setup["device"]
        limit = setup.get("memory")
        if limit and self.device == "cpu":
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # should memory run out, this is what may go
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(slot["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for old, new in ((null, 0), (null, 1), (log, 2)):
            os.dup2(old, new)
        os.close(null)
        os.close(log)
        sys.setrecursionlimit(5000)
        sys.set_int_max_str_digits(0)  # any number can be shown
        self.states = GlobalStates(self.device)
        self.arms: dict[tuple[str, str], Any] = {}
        self.shared: dict[tuple[str, str], Any] = {}  # parsed files: most are the same in all arms
        self.hosts: list[str] = []  # what is known of hosts, as JSON; an arm is loaded for each
        keep_trees()
        self.pid = os.getpid()
        self.called: set[str] = set()  # arms
        self.exit = os._exit
        self.guard = setup["guard"]
        self.home = Path(setup["home"])
        self._proven: set[str] = set()
        self._prefixes = sorted(map(module_prefix, setup["arms"]), key=len, reverse=True)
        self.sandbox = str(
            confine([*setup["python"], *map(Path, setup["readable"])], map(Path, setup["writable"]), self.device)
        )

    def prove(self, triton: bool, caller: Any) -> None:
        """Have the canaries differ, each once in this process. Raises DifftestError when one does not."""
        from difftest.run import canary

        for name, needed, check in (
            ("plain", True, canary.check_plain),
            ("triton", triton and "triton" in sys.modules, canary.check_triton),
        ):
            if needed and name not in self._proven:
                check(caller, self.home / f"canary-{self.pid}")
                self._proven.add(name)

    def check_channel(self) -> None:
        """End at once when the code under test closed the way to the supervisor, so that the death is its call's."""
        try:
            if os.fstat(self.slot_fd).st_ino == self.channel_inode:
                return
        except OSError:
            pass
        self.exit(CHANNEL_LOST)

    def trim_log(self) -> None:
        """Keep what code under test printed from filling the disk, and one call's output from limiting another's."""
        with contextlib.suppress(OSError):  # it may have been closed
            if os.fstat(2).st_size > _LOG_BYTES:
                os.ftruncate(2, 0)

    # -- arms -----------------------------------------------------------------------------------------------------

    def arm(self, label: str, host: Mapping[str, Any] | None = None) -> Any:
        """The loaded arm, made on first use.

        Args:
            host: what a captured engine's host had decided. An arm is loaded anew for it: modules ask when they are
                imported, too.
        """
        from difftest.lift.arm import LiftedArm
        from difftest.lift.loader import Loader
        from difftest.lift.sources import Sources
        from difftest.profiles import standins_for

        known_of_host = json.dumps(host, sort_keys=True) if host else ""
        if (label, known_of_host) in self.arms:
            return self.arms[label, known_of_host]
        if known_of_host and known_of_host not in self.hosts:
            self.hosts.append(known_of_host)
        info = self.setup["arms"][label]
        known: dict[str, Any] = info["modules"]
        packages = set(info["packages"])
        folder = info["folder"]

        def find(name: str) -> tuple[str | None, bool] | None:
            if name.partition(".")[0] not in packages:
                return None
            if name not in known:
                known[name] = self.ask({"find": [label, name]})
            found = known[name]
            return None if found is None else (found[0], found[1])

        def read(path: str) -> bytes | None:
            file = Path(folder, path)
            if not file.is_file():
                self.ask({"read": [label, path]})
            return file.read_bytes() if file.is_file() else None

        def blob(path: str) -> str | None:
            data = read(path)
            return None if data is None else hashlib.sha256(data).hexdigest()

        os.environ["TRITON_CACHE_DIR"] = info["triton_cache"]
        standins = standins_for(info["package"], self.setup.get("host"), host)
        name = f"{label}-host{self.hosts.index(known_of_host)}" if known_of_host else label
        sources = Sources(find, read, blob, self.shared, known=info["facts"])
        loader = Loader(name, sources, standins, lambda source: str(Path(folder, source.path)))
        loader.expect_effects((module, (changed, name), lazy) for module, changed, name, lazy in info["effects"])
        arm = self.arms[label, known_of_host] = LiftedArm(label, loader, self.device)
        self._prefixes = sorted({*self._prefixes, loader.prefix}, key=len, reverse=True)
        return arm

    def ask(self, question: dict[str, Any]) -> Any:
        self.channel.send(question)
        answer = self.channel.receive()
        if answer is None:
            self.exit(0)
        assert answer is not None
        return answer["answer"]

    # -- units ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        self.channel.drain()  # answers meant for a child that died
        self.channel.send({"hello": self.pid, "sandbox": self.sandbox})
        while (message := self.channel.receive()) is not None:
            self.handle(message)

    def handle(self, message: dict[str, Any]) -> None:
        """Do what the supervisor asks."""
        if "unit" not in message:
            return
        try:
            self.unit(message["unit"]).run()
        except MemoryError:
            raise
        except DifftestError as error:
            self.channel.send({"stop": str(error)})
        except Exception as error:
            import traceback

            where = traceback.format_exc().strip().splitlines()[-3:]
            text = f"{type(error).__name__}: {error}"
            self.channel.send({"fault": message["unit"]["number"], "error": text, "where": where})
            self.exit(0)  # whatever made it fail must not reach the next target

    def unit(self, unit: dict[str, Any]) -> Any:
        if unit["fuzz"] is not None:
            from difftest.run.fuzzing import FuzzRun

            return FuzzRun(self, unit)
        from difftest.run.unit import UnitRun

        if unit["task"] is not None:
            from difftest.run.shrinking import ShrinkRun

            return ShrinkRun(self, unit)
        if unit["explain"] is not None:
            from difftest.run.explaining import Explanation

            return Explanation(UnitRun(self, unit))
        return UnitRun(self, unit)

    def scrub(self, text: str) -> str:
        """Take out of a message what differs between the arms by name only."""
        for prefix in self._prefixes:  # of modules, and behind the names of operators
            text = text.replace(f"{prefix}.", "").replace(f"_{prefix}", "")
        for info in self.setup["arms"].values():
            text = text.replace(info["folder"] + "/", "")
        return text

    def timed_flush(self) -> Iterator[bool]:
        """Yields True when a quarter of a second has passed since it last did."""
        last = time.monotonic()
        while True:
            now = time.monotonic()
            due = now - last > _FLUSH_SECONDS
            if due:
                last = now
            yield due


__all__ = ["BASE", "HEAD", "main"]

if __name__ == "__main__":
    raise SystemExit(main())
