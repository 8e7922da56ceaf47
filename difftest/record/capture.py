"""The recorder: takes down calls of a live engine without changing what they do.

In the engine's thread the arguments are copied and nothing else; hashing and writing happen in a background thread
behind a queue that is bounded in bytes. Whatever goes wrong in here stops the recording, never the engine.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes
import errno
import functools
import hashlib
import itertools
import json
import multiprocessing.util
import os
import platform
import random
import struct
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from difftest import __version__
from difftest.record.decode import INLINE
from difftest.record.encode import Encoder, Memory, cuda_in_use, generator_state
from difftest.record.lines import SCHEMA, seal, write_blob

MAX_QUEUE = 512 << 20
"""Bytes that may wait to be written before calls are left out."""

_JOIN_SECONDS = 60.0

_VALUE = 400
"""Characters from which on a part of a value is written once and then referred to."""

_ENTRY = 60
"""The same for the description of a storage."""

_PLAIN = (int, str, bool, float, type(None))


@dataclass(slots=True)
class _Call:
    number: int
    site: str
    inputs: Encoder


@dataclass(slots=True)
class _Item:
    """A record on its way to the writer: its JSON, the memory and states behind it, and when its copies are there."""

    record: dict[str, Any]
    memory: list[Memory] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    ready: torch.cuda.Event | None = None
    size: int = 0


class _Context(threading.local):
    """What is known in one thread: calls in progress (None: not recorded), the engine's step and its requests."""

    def __init__(self) -> None:
        self.calls: list[_Call | None] = []
        self.step: int | None = None
        self.request_ids: list[str] | None = None
        self.paused = ""


class Recorder:
    """Records calls of wrapped functions into a capture folder; one manifest for each process that makes a call.

    Args:
        out: the capture folder; made on the first call.
        max_calls: stop after this many calls; a call that has begun is recorded whole, with the calls inside it.
        max_bytes: stop when this many bytes are written.
        one_in: record one step in so many; calls outside of steps, one in so many of each site.
        redact: key under which request ids are replaced by a hash; the same id has the same hash in every process.
        wait: write the inputs before the call goes on, so that a crash inside it leaves them. Slow.
        max_queue: bytes that may wait; a call that finds no room is left out, and the capture says so.
        opaque: module prefixes whose objects are not looked into.

    Attributes:
        engine_fixes: names of the engine faults that are worked around, for the capture's environment.

    A process that is forked while it records goes on with a manifest of its own.
    """

    def __init__(
        self,
        out: Path,
        *,
        max_calls: int | None = None,
        max_bytes: int | None = None,
        one_in: int = 1,
        redact: bytes | None = None,
        wait: bool = False,
        max_queue: int = MAX_QUEUE,
        opaque: Sequence[str] = (),
    ) -> None:
        if one_in < 1 or (max_calls is not None and max_calls < 0) or (max_bytes is not None and max_bytes < 0):
            raise ValueError("one_in is at least 1, limits are not negative")
        self.out = out
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.one_in = one_in
        self.wait = wait
        self.max_queue = max_queue
        self.opaque = tuple(opaque)
        self.engine_fixes: list[str] = []
        self.sites: list[str] = []
        self._key = redact
        self._renamed: dict[str, str] = {}
        self._rename = (lambda text: self._renamed.get(text, text)) if redact is not None else None
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[_Item] = deque()
        self._queued = 0
        self._writing = False
        self._writer: _Writer | None = None
        self._thread: threading.Thread | None = None
        self._stopped = ""
        self._closed = False
        self._numbers = itertools.count()
        self._calls = 0
        self._seen: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._steps = itertools.count()
        self._context = _Context()
        self._twisters = _twisters()

    def wrap(self, function: Callable[..., Any], site: str) -> Callable[..., Any]:
        """The function, recorded at every call as `site`. It returns and raises what `function` does."""
        self.sites.append(site)

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            calls = self._context.calls
            if (self._stopped and not calls) or torch.compiler.is_compiling():
                return function(*args, **kwargs)
            call = self._begin(site, args, kwargs)
            calls.append(call)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                if call is not None:
                    self._end(call, None, error)
                raise
            else:
                if call is not None:
                    self._end(call, result, None)
                return result
            finally:
                calls.pop()

        return recorded

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step of the engine: calls made inside it, in this thread, carry its number."""
        context = self._context
        context.step, context.request_ids = next(self._steps), None
        try:
            yield
        finally:
            context.step = context.request_ids = None

    def requests(self, request_ids: Sequence[str]) -> None:
        """Say which requests the rest of this step is for, in row order. Never raises."""
        try:
            names = [str(name) for name in request_ids]
            if self._key is not None:
                for name in names:
                    self._renamed.setdefault(name, redacted(name, self._key))
                names = [self._renamed[name] for name in names]
            self._context.request_ids = names
        except Exception as error:
            self.fault("request ids", error)

    @contextlib.contextmanager
    def paused(self, reason: str) -> Iterator[None]:
        """Calls made inside are left out, and counted under this reason."""
        context = self._context
        before, context.paused = context.paused, reason
        try:
            yield
        finally:
            context.paused = before

    def fault(self, where: str, error: BaseException) -> None:
        """Stop recording because of an error; said once on stderr and in the manifest. Never raises."""
        message = f"{where}: {type(error).__name__}: {str(error)[:300]}".replace("\n", " ")
        with contextlib.suppress(Exception), self._lock:
            if self._stopped:
                return
            self._stopped = "fault"
            self._queue.append(_Item({"record": "note", "kind": "fault", "message": message, "count": 1}))
            self._wake.notify_all()
        with contextlib.suppress(Exception):
            print(f"difftest: recording stopped, the engine goes on: {message}", file=sys.stderr)

    def close(self) -> None:
        """Write what is waiting and end this process's recording. Never raises; a second call does nothing."""
        thread = self._thread
        if thread is None or threading.current_thread() is thread:
            return
        with contextlib.suppress(Exception):
            with self._lock:
                reason = self._stopped or "finished"
                self._stopped = reason
                for message, count in self._skipped.items():
                    self._queue.append(_Item({"record": "note", "kind": "skipped", "message": message, "count": count}))
                self._queue.append(_Item({"record": "close", "reason": reason, "calls": self._calls}))
                self._thread = None
                self._closed = True
                self._wake.notify_all()
            thread.join(_JOIN_SECONDS)

    def flush(self, seconds: float = _JOIN_SECONDS) -> bool:
        """Wait until everything queued so far is written; whether it was, in time."""
        with self._lock:
            return self._wake.wait_for(lambda: (not self._queue and not self._writing) or self._thread is None, seconds)

    def _skip(self, reason: str) -> None:
        with self._lock:
            self._skipped[reason] += 1

    def _begin(self, site: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        try:
            return self._recorded_begin(site, args, kwargs)
        except Exception as error:
            self.fault(f"inputs of {site}", error)
            return None

    def _recorded_begin(self, site: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        context = self._context
        parent = context.calls[-1] if context.calls else None
        if context.calls and parent is None:
            return None
        if cuda_in_use() and torch.cuda.is_current_stream_capturing():
            self._skip("calls during CUDA graph capture are not recorded")
            return None
        if context.paused:
            self._skip(context.paused)
            return None
        if parent is None and not self._wanted(site, context.step):
            return None
        inputs = Encoder(site.partition(".")[0].partition(":")[0], self.opaque, self._rename)
        record: dict[str, Any] = {
            "record": "begin",
            "call": -1,
            "parent": None if parent is None else parent.number,
            "site": site,
            "step": context.step,
            "request_ids": context.request_ids,
            "thread": threading.current_thread().name,
            "args": [inputs(value) for value in args],
            "kwargs": {name: inputs(value) for name, value in kwargs.items()},
        }
        item = self._item(record, inputs)
        with self._lock:
            if self._stopped == "fault" or (self._stopped and parent is None):
                return None
            if parent is None and self._queued and self._queued + item.size > self.max_queue:
                self._skipped["left out, because the disk is slower than the engine"] += 1
                return None
            record["call"] = number = next(self._numbers)
            self._calls += 1
            self._put(item)
        if self.wait:
            self.flush()
        return _Call(number, site, inputs)

    def _wanted(self, site: str, step: int | None) -> bool:
        """Whether the limits let an outermost call in."""
        with self._lock:
            written = self._writer.written if self._writer is not None else 0
            if self.max_calls is not None and self._calls >= self.max_calls:
                self._limit(f"stopped after {self.max_calls} calls, as asked")
            elif self.max_bytes is not None and written + self._queued >= self.max_bytes:
                self._limit(f"stopped after {self.max_bytes} bytes, as asked")
            if self._stopped:
                return False
            if step is not None:
                return step % self.one_in == 0
            self._seen[site] += 1
            return (self._seen[site] - 1) % self.one_in == 0

    def _limit(self, message: str) -> None:
        self._stopped = "limit"
        if self._thread is not None:
            self._queue.append(_Item({"record": "note", "kind": "limit", "message": message, "count": 1}))
            self._wake.notify_all()

    def _end(self, call: _Call, result: Any, raised: BaseException | None) -> None:
        try:
            outputs = Encoder(call.inputs.package, self.opaque, self._rename, inputs=call.inputs)
            record: dict[str, Any] = {
                "record": "end",
                "call": call.number,
                "result": outputs(result),
                "raised": None,
                "generators": [
                    {"index": index, **outputs.generator(item)} for index, item in enumerate(call.inputs.generators)
                ],
            }
            if raised is not None:
                kind = type(raised)
                record["raised"] = {
                    "class": f"{kind.__module__}:{kind.__qualname__}",
                    "message": str(raised)[:2000],
                }
            item = self._item(record, outputs)
            with self._lock:
                if self._stopped != "fault":
                    self._put(item)
        except Exception as error:
            self.fault(f"outputs of {call.site}", error)

    def _item(self, record: dict[str, Any], encoder: Encoder) -> _Item:
        record["rng"] = _rng(encoder, self._twisters)
        memory = encoder.memory(self.max_queue)
        item = _Item(record, memory, encoder.states)
        devices = [m.data.device for m in memory if isinstance(m.data, torch.Tensor) and m.data.is_cuda]
        if devices:
            item.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            item.ready.record(torch.cuda.current_stream(devices[0]))
        item.size = sum(m.size for m in memory if m.data is not None) + sum(map(len, encoder.states))
        return item

    def _put(self, item: _Item) -> None:
        """Hand an item to the writer, which is started by the first. The lock is held."""
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="difftest-capture", daemon=True)
            self._thread.start()
            # Children of multiprocessing leave without running atexit; its own finalizers do run there.
            atexit.register(self.close)
            multiprocessing.util.Finalize(None, self.close, exitpriority=100)
        self._queue.append(item)
        self._queued += item.size
        self._wake.notify_all()

    def _write(self) -> None:
        """The background thread: writes items until `close`; an error ends the recording, not the process."""
        try:
            writer = self._writer = _Writer(self)
        except Exception as error:
            self._writer = None
            self._gave_up(error)
            return
        while True:
            with self._lock:
                while not self._queue:
                    self._wake.wait()
                item = self._queue.popleft()
                self._writing = True
            try:
                writer.write(item)
            except Exception as error:
                writer.abandon()
                self._gave_up(error)
                return
            with self._lock:
                self._queued -= item.size
                self._writing = False
                self._wake.notify_all()
            if item.record["record"] == "close":
                return

    def _gave_up(self, error: Exception) -> None:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = "the disk is full" if full else f"{type(error).__name__}: {error}"
        with self._lock:
            self._stopped = "fault"
            self._queue.clear()
            self._queued = 0
            self._writing = False
            self._wake.notify_all()
        with contextlib.suppress(Exception):
            print(f"difftest: recording stopped, the engine goes on: {self.out}: {why}", file=sys.stderr)


class _Writer:
    """Writes one process's manifest and its blobs. Used by one thread.

    Attributes:
        written: bytes so far.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.written = 0
        self._lines = 0
        self._blobs = recorder.out / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._values: dict[bytes, int] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        rank, world_size = _rank()
        folder = _own_folder(recorder.out, rank)
        self._file = (folder / "manifest.jsonl").open("xb", buffering=0)
        self._line(
            {
                "record": "open",
                "schema": SCHEMA,
                "rank": rank,
                "world_size": world_size,
                "pid": os.getpid(),
                "environment": environment() | {"engine_fixes": list(recorder.engine_fixes)},
                "sites": list(recorder.sites),
                "limits": {
                    "max_calls": recorder.max_calls,
                    "max_bytes": recorder.max_bytes,
                    "one_in": recorder.one_in,
                },
            }
        )

    def write(self, item: _Item) -> None:
        if item.record["record"] in ("begin", "end"):
            if item.ready is not None:
                item.ready.synchronize()
            item.record["storages"] = [self._memory(memory) for memory in item.memory]
            item.record["states"] = [self._data(state) for state in item.states]
            item.record["storages"] = [self._once(entry, _ENTRY) for entry in item.record["storages"]]
            if "args" in item.record:
                item.record["args"] = [self._shared(node) for node in item.record["args"]]
                item.record["kwargs"] = {k: self._shared(node) for k, node in item.record["kwargs"].items()}
            else:
                item.record["result"] = self._shared(item.record["result"])
        self._line(item.record)
        if item.record["record"] == "close":
            self._file.close()

    def abandon(self) -> None:
        """Close the manifest as it is."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _line(self, record: dict[str, Any]) -> None:
        view = memoryview(seal({**record, "n": self._lines}))
        self._lines += 1
        self.written += len(view)
        while view:
            view = view[self._file.write(view) :]

    def _once(self, node: Any, least: int) -> Any:
        """The node; from `least` characters on a line of its own, written once, and here its number."""
        text = json.dumps(node, separators=(",", ":"))
        if len(text) < least:
            return node
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        number = self._values.get(key)
        if number is None:
            self._values[key] = number = len(self._values)
            self._line({"record": "value", "value": number, "is": node})
        return {"value": number}

    def _shared(self, node: Any) -> Any:
        """A value's JSON, with large parts that came before replaced by their number.

        The state of a sampler is large and hardly changes from call to call.
        """
        if type(node) is list:
            if all(type(item) in _PLAIN for item in node):
                return self._once(node, _VALUE)
            return self._once([self._shared(item) for item in node], _VALUE)
        if type(node) is not dict:
            return node
        ((tag, content), *_) = node.items()
        if tag in ("tuple", "set"):
            node = node | {tag: [self._shared(item) for item in content]}
        elif tag == "dict":
            node = node | {tag: [[key, self._shared(item)] for key, item in content]}
        elif tag == "object":
            fields = {name: self._shared(item) for name, item in content["fields"].items()}
            node = {tag: content | {"fields": fields}}
        return self._once(node, _VALUE)

    def _memory(self, memory: Memory) -> dict[str, Any]:
        entry: dict[str, Any] = {"start": memory.start, "whole": memory.whole, "device": memory.device}
        if memory.input is not None:
            entry["input"] = memory.input
        if memory.data is None:
            return entry | {"size": memory.size, "omitted": True}
        data = memory.data
        return entry | self._data(data if isinstance(data, bytes) else self._on_cpu(data))

    def _on_cpu(self, tensor: torch.Tensor) -> memoryview:
        if tensor.is_cuda:
            stream = self._streams.setdefault(tensor.device, torch.cuda.Stream(tensor.device))  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                tensor = tensor.cpu()
        return memoryview(tensor.numpy())  # type: ignore[arg-type]

    def _data(self, data: bytes | memoryview) -> dict[str, Any]:
        if len(data) <= INLINE:
            return {"size": len(data), "data": base64.b64encode(data).decode()}
        name, added = write_blob(self._blobs, data)
        self.written += added
        return {"size": len(data), "blob": name}


class _Twister:
    """A process-wide Mersenne Twister, read whole (slow: 30 µs) only when it moved (quick to see).

    Args:
        full: its state as (624 words little-endian, position, second value of a Gaussian pair or None).
        raw: its words and position straight from memory, None where they cannot be found there.
        spare: the second Gaussian, where it can be asked for cheaply; else it is only trusted while there is none.
    """

    def __init__(
        self,
        full: Callable[[], tuple[bytes, int, float | None]],
        raw: Callable[[], bytes] | None,
        spare: Callable[[], float | None] | None = None,
    ) -> None:
        self._full = full
        self._raw = raw
        self._spare = spare
        self._last: tuple[bytes, tuple[bytes, int, float | None]] | None = None

    def read(self) -> tuple[bytes, int, float | None]:
        if self._raw is None:
            return self._full()
        raw, last = self._raw(), self._last
        if last is not None and raw == last[0]:
            # A Gaussian draw either takes the spare one or moves the words.
            if self._spare is None and last[1][2] is None:
                return last[1]
            if self._spare is not None and self._spare() == last[1][2]:
                return last[1]
        found = self._full()
        self._last = (raw, found)
        return found


def _numpy_full() -> tuple[bytes, int, float | None]:
    state = cast(tuple[str, Any, int, int, float], np.random.get_state())
    return state[1].astype("<u4").tobytes(), int(state[2]), float(state[4]) if state[3] else None


def _random_full() -> tuple[bytes, int, float | None]:
    _, words, spare = random.getstate()
    return struct.pack("<624I", *words[:-1]), words[-1], spare


def _twisters() -> tuple[_Twister, _Twister]:
    """numpy's and `random`'s. Where the words are in memory is checked against the state itself, without drawing."""
    size = 4 * 625

    def found(address: int, first: bytes, last: bytes) -> Callable[[], bytes] | None:
        return (
            functools.partial(ctypes.string_at, address, size)
            if ctypes.string_at(address, size) == first + last
            else None
        )

    raw_numpy = raw_random = None
    with contextlib.suppress(AttributeError):
        words, position, _ = _numpy_full()
        address = np.random.mtrand._rand._bit_generator.ctypes.state_address
        raw_numpy = found(address, words, struct.pack("<i", position))
    with contextlib.suppress(AttributeError):
        words, position, _ = _random_full()
        instance = random._inst
        raw_random = found(id(instance) + object.__basicsize__, struct.pack("<i", position), words)
    return _Twister(_numpy_full, raw_numpy), _Twister(_random_full, raw_random, lambda: random._inst.gauss_next)  # type: ignore[attr-defined]


def _rng(encoder: Encoder, twisters: tuple[_Twister, _Twister]) -> dict[str, Any]:
    """The process-wide generators now. They are read, never drawn from."""
    cuda = []
    if cuda_in_use():
        index = torch.cuda.current_device()
        cuda.append({"index": index, **encoder.generator(torch.cuda.default_generators[index])})
    states = {}
    for name, twister in zip(("numpy", "random"), twisters, strict=True):
        words, position, spare = twister.read()
        states[name] = {"state": encoder.state(words), "position": position, "gauss": spare}
    return {"torch": encoder.state(generator_state(torch.default_generator)), "cuda": cuda, **states}


def _rank() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _own_folder(out: Path, rank: int) -> Path:
    """A new folder for this process: `rank-<rank>`, or with a number behind when another process has that."""
    for number in itertools.count(1):
        folder = out / (f"rank-{rank}" if number == 1 else f"rank-{rank}.{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")


_FLAGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "TRITON_INTERPRET",
    "VLLM_BATCH_INVARIANT",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "VLLM_USE_V1",
    "VLLM_USE_V2_MODEL_RUNNER",
)


def environment() -> dict[str, Any]:
    """What the numbers may depend on: versions, device, driver, flags. No names of machines, users or folders."""
    versions = {"difftest": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "triton", "vllm"):
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if isinstance(version, str):
            versions[name] = version
    found: dict[str, Any] = {
        "versions": versions,
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "flags": {name: os.environ[name] for name in _FLAGS if name in os.environ},
        "device": "cpu",
    }
    if cuda_in_use():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
        with contextlib.suppress(OSError):
            found["driver"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return found


def redacted(name: str, key: bytes) -> str:
    """A request id as a hash that cannot be turned back without the key."""
    return "request-" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=6).hexdigest()
