"""The recorder: takes down calls of a live engine without changing what they do.

In the engine's thread the arguments are copied and nothing else; hashing and writing happen in a background thread
behind a queue that is bounded in bytes. Whatever goes wrong in here stops the recording, never the engine.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import itertools
import multiprocessing.util
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from difftest.record.encode import Encoder, Memory, Pack, cuda_in_use
from difftest.record.generators import process_states, twisters
from difftest.record.writer import Item, Limits, Writer

MAX_QUEUE = 512 << 20
"""Bytes that may wait to be written before calls are left out."""

STATE = 5056
"""Bytes of a generator's state, more or less."""

_JOIN_SECONDS = 60.0


@dataclass(slots=True)
class _Call:
    number: int
    site: str
    inputs: Encoder
    memory: list[Memory]


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
        self._queue: deque[Item] = deque()
        self._queued = 0
        self._writing = False
        self._writer: Writer | None = None
        self._thread: threading.Thread | None = None
        self._stopped = ""
        self._closed = False
        self._numbers = itertools.count()
        self._calls = 0
        self._seen: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._steps = itertools.count()
        self._context = _Context()
        self._twisters = twisters()

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
            self._queue.append(Item({"record": "note", "kind": "fault", "message": message, "count": 1}))
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
                    self._queue.append(Item({"record": "note", "kind": "skipped", "message": message, "count": count}))
                self._queue.append(Item({"record": "close", "reason": reason, "calls": self._calls}))
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
        return _Call(number, site, inputs, item.memory)

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
            self._queue.append(Item({"record": "note", "kind": "limit", "message": message, "count": 1}))
            self._wake.notify_all()

    def _end(self, call: _Call, result: Any, raised: BaseException | None) -> None:
        try:
            outputs = Encoder(call.inputs.package, self.opaque, self._rename, inputs=call.inputs)
            record: dict[str, Any] = {
                "record": "end",
                "call": call.number,
                "result": outputs(result),
                "raised": None,
                "generators": [outputs.generator(item, n) for n, item in enumerate(call.inputs.generators)],
            }
            if raised is not None:
                kind = type(raised)
                record["raised"] = {
                    "class": f"{kind.__module__}:{kind.__qualname__}",
                    "message": str(raised)[:2000],
                }
            item = self._item(record, outputs, call)
            with self._lock:
                if self._stopped != "fault":
                    self._put(item)
        except Exception as error:
            self.fault(f"outputs of {call.site}", error)

    def _item(self, record: dict[str, Any], encoder: Encoder, call: _Call | None = None) -> Item:
        """A record with copies of its memory; of a call that ended, also of the inputs that it changed."""
        record["rng"] = process_states(encoder, self._twisters)
        memory = encoder.memory(self.max_queue)
        item = Item(record, memory, encoder.states, call.inputs.again(call.memory) if call is not None else [])
        size, device = len(encoder.states) * STATE, None
        for one in [*memory, *[again.after for again in item.again]]:
            data = one.data
            if data is None:
                continue
            size += one.size
            if isinstance(data, Pack | torch.Tensor):
                tensor = data.data if isinstance(data, Pack) else data
                if tensor.is_cuda:
                    device = tensor.device
        if device is not None:
            item.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            item.ready.record(torch.cuda.current_stream(device))
        item.size = size
        return item

    def _put(self, item: Item) -> None:
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
            limits = Limits(self.max_calls, self.max_bytes, self.one_in)
            writer = self._writer = Writer(self.out, self.sites, self.engine_fixes, limits)
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


def redacted(name: str, key: bytes) -> str:
    """A request id as a hash that cannot be turned back without the key."""
    return "request-" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=6).hexdigest()
