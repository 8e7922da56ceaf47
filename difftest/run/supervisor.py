"""Runs the planned targets in a worker process and survives what the code under test does to it. No torch.

A crash, a hang or an allocation beyond the limit is the outcome of the case it happened in; the child is replaced and
the run goes on with the next case. What plans a run is not imported: a worker can start before that is.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difftest.errors import DifftestError
from difftest.processes import python_command
from difftest.result import Kind
from difftest.run import forkserver
from difftest.run.protocol import AFTER, ARM_NAMES, BETWEEN, CALLING, CHANNEL_LOST, FIRST_CALL, LINES, Board, Channel

if TYPE_CHECKING:
    from difftest.run.plan import ArmSource

MEMORY_BYTES = 64 << 30
"""Address space of one child: room for several copies of a case whose rows lie past 2^31 elements, 9 GiB each, of which
hardly a page is touched."""
RESIDENT_BYTES = 12 << 30
"""What one child may hold; less where the machine has less."""
MAX_DEATHS = 3
"""Calls of one target that may kill the child before the rest of its cases is left unmeasured."""
MAX_RENEWALS = 60
"""How often one case that is made small may go on in a new child; more often than it ever wants to."""
SILENT_SECONDS = 120.0
"""How long a child may do nothing but build cases, or be lost in code under test after a call, before it is killed."""
_SAME_STEP = 0.02  # seconds: what two readings of when a step of a child began may be apart
WORKER = "difftest.run.worker"
"""The program that runs cases."""
ALLOCATOR = "glibc.malloc.tcache_count=0"
"""The C library's per-thread caches skip the fill that tells undefined bytes (:mod:`difftest.call.poison`)."""

_KEPT_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "COVERAGE_PROCESS_START",
)  # fmt: skip
_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Name the accelerators that a process sees; empty, it sees none."""


@dataclass
class Unit:
    """A share of one target's cases, and what came of it so far.

    Attributes:
        fuzz: of a fuzz, the `numbers` to favour and the case files `kept` of earlier runs; None else.
        memory: what a fuzz needs to know again when its child has died.
        explain: what :class:`difftest.run.explaining.Explanation` is to look into; None in a run.
        ended: how the call of a case ended its child for the first time: run again before that counts.
        explained: what that found.
        told, alike, unclear: which cases differ in what way, which are identical and which are unmeasured, by case
            index.
        task: the case to make small (:class:`difftest.run.shrinking.ShrinkRun`); None in a run.
        patience: deaths of children after which it is given up.
        first_timeout: of the first call of an arm in a child, when `timeout` is too little for what it imports.
        renewed: how often it asked to go on in a new child.
        reduced: what came of that.
    """

    number: int
    target: str
    symbols: tuple[str, str]
    arms: tuple[str, str]
    share: tuple[int, int]
    timeout: float
    planned: Any = None
    fuzz: dict[str, Any] | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    explain: dict[str, Any] | None = None
    explained: dict[str, Any] = field(default_factory=dict)
    told: list[list[Any]] = field(default_factory=list)
    alike: list[int] = field(default_factory=list)
    unclear: list[int] = field(default_factory=list)
    task: dict[str, Any] | None = None
    patience: int = 2 * MAX_DEATHS + 2
    first_timeout: float = 0.0
    renewed: int = 0
    reduced: dict[str, Any] | None = None
    start: int = 0
    until: int | None = None
    dead: dict[int, list[Any]] = field(default_factory=dict)
    deaths: int = 0
    ended: dict[int, str] = field(default_factory=dict)
    slowest: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    unmeasured: Counter[str] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)
    relations: dict[str, Counter[str]] = field(default_factory=dict)
    sources: Counter[str] = field(default_factory=Counter)
    axes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    recorded: dict[str, Counter[str]] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)
    adapters: set[str] = field(default_factory=set)
    host: dict[str, set[str]] = field(default_factory=dict)
    lines: dict[tuple[int, str], set[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0
    finished: bool = False


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for one run, gone afterwards."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="difftest-"))
    except OSError as error:
        raise DifftestError(f"no scratch folder can be made: {error.strerror or error}; set TMPDIR") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def started(device: str, jobs: int | None) -> Iterator[Supervisor]:
    """A supervisor with a scratch folder of its own. Its worker imports torch, which takes long, from here on, so the
    command line starts one before it imports what plans a run.

    Args:
        jobs: children at work; as many as cores when None.

    Raises:
        DifftestError: no folder can be made, or no process be started.
    """
    slots = max(1, jobs or os.cpu_count() or 1)
    with scratch_folder() as scratch:
        supervisor = Supervisor(scratch, device, slots, triton_interpreter=device == "cpu")
        try:
            yield supervisor
        finally:
            supervisor.stop()


class Supervisor:
    """Owns the worker process of one run.

    Args:
        scratch: the run's folder; the worker's home and current folder.
        device: `cpu` or `cuda`.
        slots: how many children work at the same time.
        module: the program that the worker process runs.
        allocator: settings of the C library's allocator; empty leaves it as production has it.

    Attributes:
        sandbox: what the children are kept from, in words; empty until the first one has begun.

    Raises:
        DifftestError: the scratch folder cannot be written, or no process can be started.
    """

    def __init__(
        self,
        scratch: Path,
        device: str,
        slots: int,
        triton_interpreter: bool,
        module: str = WORKER,
        allocator: str = ALLOCATOR,
    ) -> None:
        try:
            scratch.mkdir(exist_ok=True)
            self._start(scratch, device, slots, triton_interpreter, module, allocator)
        except OSError as error:
            raise DifftestError(
                f"no worker can be started in {scratch}: {error.strerror or error}; set TMPDIR, or make room"
            ) from None

    def _start(
        self, scratch: Path, device: str, slots: int, triton_interpreter: bool, module: str, allocator: str
    ) -> None:
        self.scratch = scratch
        self.sandbox = ""
        self.pids: dict[int, int] = {}
        self.resident = min(RESIDENT_BYTES, available_memory() * 4 // 5 // slots)
        self.device = device
        self.board = Board(scratch / "board", slots)
        self.log = scratch / "worker.log"
        ours, theirs = socket.socketpair()
        pairs = [socket.socketpair() for _ in range(slots)]
        self.control = Channel(ours)
        self.children = [Channel(mine) for mine, _ in pairs]
        self.slots: list[dict[str, Any]] = [
            {"number": i, "fd": other.fileno(), "log": str(scratch / f"child{i}.log")}
            for i, (_, other) in enumerate(pairs)
        ]
        home = scratch / "home"
        home.mkdir(exist_ok=True)
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        environment |= {
            "HOME": str(home),
            "TMPDIR": str(home),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", ""),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "DIFFTEST_DEVICE": device,
            # Asking whether there is a device must not start the driver: the children are forks, which it forbids.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }
        if device == "cpu":  # what is measured on the CPU is the same on a machine that has an accelerator
            environment |= dict.fromkeys(_DEVICE_VARIABLES, "")
        if allocator:
            environment["GLIBC_TUNABLES"] = allocator
        if triton_interpreter:
            environment["TRITON_INTERPRET"] = "1"
        inherited = [theirs.fileno(), *[other.fileno() for _, other in pairs]]
        forked = forkserver.begin(environment, self.log, inherited) if module == WORKER else None
        self.process: forkserver.Process
        if forked is None:
            command = python_command(module, str(theirs.fileno()), str(os.getpid()))
            self.process = forkserver.Begun(command, environment, self.log, inherited)
        else:
            self.process = forked
        theirs.close()
        for _, other in pairs:
            other.close()

    def setup(
        self,
        arms: Mapping[str, dict[str, Any]],
        modules: Sequence[str],
        triton: bool,
        host: str | None,
        readable: Sequence[Path] = (),
        recorded: Sequence[Path] = (),
        alone: bool = False,
        fuzz: bool = False,
        signatures: Sequence[str] = (),
    ) -> None:
        """Tell the worker what the run is about; returns at once, the worker may still be importing torch.

        Args:
            readable: further files and folders that the case files read.
            recorded: captures and case files.
            alone: of targets that case files are for, run only the cases of the files.
            fuzz: cases will be drawn.
            signatures: of functions that no case file knows, what their cases are made from.

        Raises:
            DifftestError: the worker is gone.
        """
        request = {
            "arms": dict(arms),
            "modules": list(modules),
            "triton": triton,
            "device": self.device,
            "host": host,
            "board": str(self.scratch / "board"),
            "slots": self.slots,
            "memory": MEMORY_BYTES,
            "home": str(self.scratch / "home"),
            "readable": [*(arm["folder"] for arm in arms.values()), *map(str, (*readable, *recorded))],
            "recorded": [str(path) for path in recorded],
            "alone": alone,
            "fuzz": fuzz,
            "signatures": list(signatures),
            "writable": [str(self.scratch / "home"), *(arm["triton_cache"] for arm in arms.values())],
        }
        try:
            for arm in arms.values():
                Path(arm["triton_cache"]).mkdir(exist_ok=True)
            self.control.send(request)
        except ConnectionError:
            raise DifftestError(
                f"the worker process ended: {self.last_words()}; run it again with fewer --jobs"
            ) from None

    def starting(self) -> bool:
        """Whether the worker has not said yet that it is ready, or that it cannot be."""
        readable, _, _ = select.select([self.control.connection], [], [], 0)
        return not readable

    def run(
        self,
        units: Sequence[Unit],
        arms: Mapping[str, ArmSource],
        options: Mapping[str, Any],
        progress: Callable[[Unit, int], None],
        finished: Callable[[Unit], None],
        deadline: float | None = None,
    ) -> None:
        """Run all units; returns when each is finished.

        Args:
            progress: called with a unit and the number of cases just done.
            finished: called when a unit is complete.
            deadline: `time.monotonic()` after which no further unit is begun.

        Raises:
            DifftestError: the worker itself failed.
        """
        _Loop(self, units, arms, dict(options), progress, finished, deadline).run()

    def stop(self) -> None:
        """End the worker and all its children, whatever they do."""
        for pid in self.pids.values():  # a child may have left the group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self.process.end()
        for channel in (self.control, *self.children):
            channel.connection.close()

    def last_words(self, slot: int | None = None) -> str:
        """The last line that the worker, or one of its children, wrote to its log."""
        paths = [self.log] if slot is None else [Path(self.slots[slot]["log"]), self.log]
        for path in paths:
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
                if lines:
                    return lines[-1][:300]
        return "no message"


class _Loop:
    def __init__(
        self,
        supervisor: Supervisor,
        units: Sequence[Unit],
        arms: Mapping[str, ArmSource],
        options: dict[str, Any],
        progress: Callable[[Unit, int], None],
        finished: Callable[[Unit], None],
        deadline: float | None,
    ) -> None:
        self.supervisor = supervisor
        self.arms = arms
        self.options = options
        self.progress = progress
        self.finished = finished
        self.deadline = deadline
        self.waiting = deque(units)
        self.units = {unit.number: unit for unit in units}
        self.running: dict[int, Unit] = {}
        self.idle: set[int] = set(supervisor.pids)  # of an earlier run, whose children are still there
        self.queued: dict[int, tuple[float, float]] = {}  # slot -> when its step began, seconds queued until then
        self.killed: dict[int, tuple[str, str]] = {}
        self.sent: dict[int, float] = {}
        self.hung: Counter[Any] = Counter()  # by planned target: all its shares run the same code
        self.dead: Counter[Any] = Counter()
        self.left = len(units)
        self.early_deaths = 0

    def run(self) -> None:
        supervisor = self.supervisor
        with selectors.DefaultSelector() as selector:
            selector.register(supervisor.control.connection, selectors.EVENT_READ, -1)
            for slot, channel in enumerate(supervisor.children):
                selector.register(channel.connection, selectors.EVENT_READ, slot)
            self.dispatch()
            while self.left:
                for key, _ in selector.select(0.1):
                    try:
                        self.read(key.data)
                    except (EOFError, ConnectionError):
                        raise DifftestError(
                            f"the worker process ended: {supervisor.last_words()}; run it again with fewer --jobs"
                        ) from None
                self.watch()

    def read(self, slot: int) -> None:
        channel = self.supervisor.control if slot < 0 else self.supervisor.children[slot]
        if slot < 0:
            for message in channel.arrived():
                self.from_parent(message)
            return
        try:
            for message in channel.arrived():
                self.from_child(slot, message)
        except (ValueError, KeyError, TypeError, LookupError) as error:
            # Code under test can write to the channel as well; only the child is lost.
            self.kill(slot, Kind.CRASH, f"breaks the channel to the harness ({type(error).__name__})")

    def from_parent(self, message: dict[str, Any]) -> None:
        if "failed" in message:
            raise DifftestError(f"the worker cannot start: {message['failed']}")
        if "died" in message:
            self.died(message["died"], message["status"])
            self.supervisor.control.send({"again": True})

    def from_child(self, slot: int, message: dict[str, Any]) -> None:
        channel = self.supervisor.children[slot]
        if "hello" in message:
            self.supervisor.pids[slot] = message["hello"]
            self.supervisor.sandbox = message["sandbox"]
            self.idle.add(slot)
            self.dispatch()
        elif "find" in message or "read" in message:
            channel.send({"answer": answer(self.arms, message)})
        elif "fault" in message:
            unit = self.units[message["fault"]]
            unit.notes.append(f"the harness failed on this target: {message['error']}")
            unit.unmeasured[f"the harness failed: {message['error']} at {message['where'][0].strip()}"] += 1
            unit.counts["unmeasured"] += 1
            self.complete(slot, unit, leaving=True)
        elif "result" in message:
            self.result(slot, message)
        elif "note" in message:
            unit = self.units[message["note"]]
            unit.notes += [message["text"]] if message["text"] not in unit.notes else []
        elif "explained" in message:
            unit = self.units[message["explained"]]
            unit.explained |= message["parts"]
            if message["done"]:
                self.complete(slot, unit)
        elif "again" in message:  # the child ends itself, and the next one goes on
            unit = self.running[slot]
            if (unit.task is None and unit.explain is None) or unit.renewed == MAX_RENEWALS:
                raise ValueError("asks for a new child without end")
            unit.renewed += 1
            self.waiting.appendleft(self.running.pop(slot))
            self.dispatch()
        elif "reduced" in message:
            self.units[message["reduced"]].reduced = message["record"]
        elif "stop" in message:
            raise DifftestError(message["stop"])

    def result(self, slot: int, message: dict[str, Any]) -> None:
        unit = self.units[message["result"]]
        unit.counts.update(message["counts"])
        unit.kinds.update(message["kinds"])
        unit.unmeasured.update(message["unmeasured"])
        unit.expected.update({int(number): count for number, count in message["expected"].items()})
        unit.mismatches += message["mismatches"]
        unit.sources.update(message["sources"])
        unit.axes.update({(axis, value, outcome): count for axis, value, outcome, count in message["axes"]})
        for name, counts in message["relations"].items():
            unit.relations.setdefault(name, Counter()).update(counts)
        for process, counts in message["recorded"]["counts"].items():
            unit.recorded.setdefault(process, Counter()).update(counts)
        unit.apart += message["recorded"]["apart"]
        unit.adapters.update(message["adapters"])
        for name, values in message["host"].items():
            unit.host.setdefault(name, set()).update(values)
        for arm, path, numbers in message["lines"]:
            unit.lines.setdefault((arm, path), set()).update(numbers)
        if message["strangers"]:
            raise DifftestError(
                f"code of another arm was reached through {message['strangers'][0]}; nothing is claimed"
            )
        unit.slowest = max(unit.slowest, message["slowest"])
        unit.notes += message["notes"]
        unit.memory = message.get("memory", {})
        unit.told += message["told"]
        unit.alike += message["alike"]
        unit.unclear += message["unclear"]
        self.progress(unit, message["counts"].get("executed", 0))
        if message["next"] is None:
            self.complete(slot, unit, message["leaving"])
        else:
            unit.start = message["next"]

    def complete(self, slot: int, unit: Unit, leaving: bool = False) -> None:
        """A unit is done. `leaving`: the child ends itself now and is replaced, so it gets no further unit."""
        if unit.finished:
            return
        self.running.pop(slot, None)
        self.close(unit)
        if not leaving:
            self.idle.add(slot)
        self.dispatch()

    def close(self, unit: Unit) -> None:
        unit.finished = True
        unit.seconds = time.monotonic() - unit.began
        self.left -= 1
        self.finished(unit)

    def dispatch(self) -> None:
        while self.idle and self.waiting:
            unit = self.waiting.popleft()
            if self.deadline is not None and time.monotonic() > self.deadline:
                unit.counts["unmeasured"] += 1
                unit.unmeasured["the time budget ended before this target was begun"] += 1
                unit.finished = True
                self.left -= 1
                self.finished(unit)
                continue
            slot = self.idle.pop()
            unit.began = unit.began or time.monotonic()
            self.running[slot] = unit
            self.sent[slot] = time.monotonic()
            self.supervisor.children[slot].send(
                {
                    "unit": {
                        "number": unit.number,
                        "target": unit.target,
                        "symbols": unit.symbols,
                        "arms": unit.arms,
                        "share": unit.share,
                        "start": unit.start,
                        "until": unit.until,
                        "dead": unit.dead,
                        "shaky": {case: text for case, text in unit.ended.items() if text},
                        "fuzz": unit.fuzz,
                        "memory": unit.memory,
                        "explain": unit.explain,
                        "task": unit.task,
                        "options": self.options,
                    }
                }
            )

    # -- deaths ---------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Kill children whose call takes too long or holds too much memory."""
        for slot, unit in self.running.items():
            if slot in self.killed:
                continue
            _, number, _, _, seconds, state = self.supervisor.board.read(slot)
            if number != unit.number:
                state = BETWEEN
            limit = self.limit(unit, state)
            waited = self.waited(slot, seconds)
            if state in (CALLING, FIRST_CALL) and seconds - waited > limit:
                self.kill(slot, Kind.TIMEOUT, f"still running after {limit:.3g} s")
            elif min(seconds, time.monotonic() - self.sent[slot]) - waited > SILENT_SECONDS + limit:
                self.kill(slot, Kind.TIMEOUT, f"no progress for {SILENT_SECONDS + limit:.3g} s outside a call")
            elif (held := _resident(self.supervisor.pids[slot])) > self.supervisor.resident:
                self.kill(slot, Kind.CRASH, f"killed while holding {held / 2**30:.1f} GiB of memory")

    def waited(self, slot: int, seconds: float) -> float:
        """For how many of the seconds since a child's last step it was ready to run, but other processes ran: on a
        loaded machine a call takes long without hanging."""
        began, now = time.monotonic() - seconds, _queued(self.supervisor.pids.get(slot))
        known, then = self.queued.get(slot, (0.0, 0.0))
        if abs(began - known) > _SAME_STEP:
            self.queued[slot] = began, now
            return 0.0
        return max(0.0, now - then)

    def limit(self, unit: Unit, state: int) -> float:
        """Seconds one call may take. Once the target hung, no longer than its finished calls make likely."""
        first = unit.first_timeout if state == FIRST_CALL else 0.0
        if not self.hung[unit.planned]:
            return max(first, unit.timeout)
        return max(first, min(unit.timeout, max(1.0, unit.timeout / 4, 10 * unit.slowest)))

    def kill(self, slot: int, kind: Kind, text: str) -> None:
        self.killed[slot] = (kind, text)
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(self.supervisor.pids[slot], signal.SIGKILL)

    def died(self, slot: int, status: int) -> None:
        # What the child sent before it died is still to be read.
        channel = self.supervisor.children[slot]
        channel.connection.setblocking(False)
        with contextlib.suppress(BlockingIOError, EOFError, ValueError, LookupError, TypeError):
            while True:
                for message in channel.arrived():
                    if not message.keys().isdisjoint(
                        ("result", "note", "explained", "reduced", "again", "fault", "stop")
                    ):
                        self.from_child(slot, message)
        channel.drain()
        began = self.supervisor.pids.pop(slot, None) is not None
        self.idle.discard(slot)
        unit = self.running.pop(slot, None)
        kind, text = self.killed.pop(slot, ("", ""))
        was_killed = bool(kind)
        kind, text = kind or Kind.CRASH, text or status_text(status)
        _, number, case, arm, _, state = self.supervisor.board.read(slot)
        self.supervisor.board.begin(slot)
        if unit is None or unit.finished:
            self.early_deaths += not began
            if self.early_deaths > MAX_DEATHS:
                raise DifftestError(f"the worker's children end at once ({text}): {self.supervisor.last_words(slot)}")
            return
        if unit.explain is not None and not unit.deaths and state == BETWEEN and not unit.explained:
            unit.deaths += 1  # the child had nothing of it yet: it ended for what it did before
            self.waiting.appendleft(unit)
            return
        if unit.explain is not None:
            unit.deaths += 1 if kind is Kind.CRASH else MAX_DEATHS + 1  # what hangs takes all the time there is
            in_case = state != BETWEEN and number == unit.number and case in _looked_at(unit.explain)
            if in_case and unit.deaths <= MAX_DEATHS:
                unit.dead[case] = [arm, str(kind), text]
                unit.notes.append(f"looking for the cause leaves out where a call {text}")
                unit.explain["seconds"] /= 2
                if "traced" in unit.explained:  # what is found without the case is less
                    unit.explain["looks"] = [look for look in unit.explain["looks"] if look != LINES]
                self.waiting.appendleft(unit)
                return
            unit.notes.append(f"looking for the cause ended early: a call {text}")
            self.close(unit)
            return
        signalled = status < 0 and kind is Kind.CRASH and not was_killed
        once = signalled or (kind is Kind.TIMEOUT and not self.hung[unit.planned])
        known = state == BETWEEN or number != unit.number or case in unit.ended
        if once and not known and unit.task is None:
            # A loaded machine hangs, and kills what takes memory; the code does so each time.
            unit.ended[case] = f"{ARM_NAMES[arm]} {text}" if signalled and status != -signal.SIGKILL else ""
            self.waiting.appendleft(unit)
            return
        unit.deaths += 1
        self.hung[unit.planned] += kind is Kind.TIMEOUT
        if state != BETWEEN and number == unit.number:
            text += " after the call" if state == AFTER else ""
            if case in unit.dead:
                unit.dead[case].append(f"{ARM_NAMES[arm]} {text}")
            else:
                self.dead[unit.planned] += 1
                unit.dead[case] = [arm, str(kind), text]
        else:
            unit.unmeasured[f"the worker died outside a call ({text}): {self.supervisor.last_words(slot)}"] += 1
            unit.counts["unmeasured"] += 1
            unit.start += 1
        if unit.deaths > unit.patience or (unit.task is None and unit.until is not None and state == BETWEEN):
            unit.unmeasured["not run: earlier cases crashed or hung, again and again"] += 1
            unit.counts["unmeasured"] += 1
            self.close(unit)
            return
        if self.dead[unit.planned] > MAX_DEATHS:
            # The next child takes up what is known of the cases so far, and no further ones.
            unit.until = max(unit.dead, default=unit.start) + 1
            if not any("stopped after" in note for note in unit.notes):
                unit.notes.append("stopped after several calls that crashed or hung; further cases were not run")
        self.waiting.appendleft(unit)


def _looked_at(explain: Mapping[str, Any]) -> set[int]:
    """The cases of a target that differs that are called to find the cause."""
    return {index for group in (*explain.get("groups", ()), explain.get("alike", ())) for index in group}


def answer(arms: Mapping[str, ArmSource], question: Mapping[str, Any]) -> Any:
    """What a child asks while it lifts: where a module is (`find`), or that a file be made real (`read`)."""
    if "read" in question:
        label, path = question["read"]
        return arms[label].write(path)
    label, name = question["find"]
    found = arms[label].find(name)
    if found is not None and found[0] is not None:
        arms[label].write(found[0])
    return found


def status_text(status: int) -> str:
    """How a process ended, in words that follow its name."""
    if status == CHANNEL_LOST:
        return "closes descriptors that it did not open"
    if status == -signal.SIGKILL:
        return "ends the process with SIGKILL, as the system does when memory runs out"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"ends the process with {signal.Signals(-status).name}"
    return f"ends the process with exit status {status}"


def _queued(pid: int | None) -> float:
    """Seconds that a process was ready to run and waited for a processor; 0 where the kernel does not say."""
    try:
        with Path(f"/proc/{pid}/schedstat").open() as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _resident(pid: int) -> int:
    try:
        with Path(f"/proc/{pid}/statm").open() as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available_memory() -> int:
    """Bytes that processes here may still take: of the machine, or of the control group when that has less."""
    found = 1 << 62
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(found, 1 << 30)
