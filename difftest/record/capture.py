"""The recorder: takes down calls of a live engine without changing what they do.

In the engine's thread the arguments are copied and nothing else; hashing and writing happen in a process of their own,
behind memory that is bounded (:mod:`difftest.record.channel`). Whatever goes wrong in here stops the recording, never
the engine.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import itertools
import marshal
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

from difftest.record import device
from difftest.record.channel import Channel
from difftest.record.environment import environment, own_rank
from difftest.record.generators import cuda_in_use, process_states, twisters
from difftest.record.host import host_facts
from difftest.record.lines import SCHEMA
from difftest.record.storages import Pieces, Storages
from difftest.record.walk import Taken, take

MAX_QUEUE = 512 << 20
"""Bytes that may wait to be written before calls are left out."""

MAX_CALL = 2 << 30
"""Bytes that a call may have of which the memory is recorded at all, and its end may have beyond those that wait."""

_PARALLEL = 1 << 20
"""Bytes from which on copying is worth several threads."""

_JOIN_SECONDS = 60.0

# The second keeps other threads out, which costs less for little memory.
_copy = ctypes.CDLL(None).memcpy
_copy_small = ctypes.PyDLL(None).memcpy
for _function in (_copy, _copy_small):
    _function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _function.restype = None


@dataclass(slots=True)
class _Call:
    """A call in progress: what is recorded of its inputs, and where in the shared memory their copies are.

    Attributes:
        held: the piece of shared memory that is kept until the call ends.
        places: of the inputs' copies, by the number of the storage; 0 where there is none.
    """

    number: int
    site: str
    storages: Storages
    generators: list[torch.Generator]
    pieces: Pieces
    held: int
    places: list[int]


@dataclass(slots=True)
class _Message:
    """A message that waits for copies from a device, or for those before it."""

    at: int
    size: int
    copies: device.Copies | None


class _Context(threading.local):
    """What is known in one thread: calls in progress (None: not recorded), the engine's step and its requests."""

    def __init__(self) -> None:
        self.calls: list[_Call | None] = []
        self.step: int | None = None
        self.request_ids: list[str] | None = None
        self.paused = ""
        self.thread = threading.current_thread().name


class Recorder:
    """Records calls of wrapped functions into a capture folder; one manifest for each process that makes a call.

    Args:
        out: the capture folder; made on the first call.
        max_calls: stop after this many calls; a call that has begun is recorded whole, with the calls inside it.
        max_bytes: stop when this many bytes are written.
        one_in: record one step in so many; calls outside of steps, one in so many of each site.
        redact: key under which request ids are replaced by a hash; the same id has the same hash in every process.
        wait: the inputs are on disk before the call goes on. Slow; without it they outlive this process only.
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
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        if (channel := getattr(self, "_channel", None)) is not None:
            channel.abandon()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._channel: Channel | None = None
        self._waiting: deque[_Message] = deque()
        self._fetching: threading.Thread | None = None
        self._stopped = ""
        self._closed = False
        self._calls = 0
        self._open = 0
        self._seen: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._steps = itertools.count()
        self._names_sent = 0
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
            self._note("fault", message)
        with contextlib.suppress(Exception):
            print(f"difftest: recording stopped, the engine goes on: {message}", file=sys.stderr)

    def close(self) -> None:
        """Write what is waiting and end this process's recording. Never raises; a second call does nothing."""
        with contextlib.suppress(Exception):
            with self._lock:
                channel = self._channel
                if channel is None:
                    return
                if not self._closed:
                    self._last()
                self._wake.wait_for(lambda: not self._waiting, _JOIN_SECONDS)
            channel.finish(_JOIN_SECONDS)

    def _last(self) -> None:
        """Say what was left out and that this is all. The lock is held."""
        self._stopped = reason = self._stopped or "finished"
        for message, count in self._skipped.items():
            self._note("skipped", message, count)
        self._send({"record": "close", "reason": reason, "calls": self._calls})
        self._closed = True
        self._wake.notify_all()

    def flush(self, seconds: float = _JOIN_SECONDS) -> bool:
        """Wait until everything recorded so far is written; whether it was, in time."""
        with self._lock:
            there = self._wake.wait_for(lambda: not self._waiting, seconds)
            channel = self._channel
        return there and (channel is None or channel.flush(seconds))

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
        inputs = take(args, kwargs, site.partition(".")[0].partition(":")[0], self.opaque, self._renamed)
        record: dict[str, Any] = {
            "record": "begin",
            "call": -1,
            "parent": None if parent is None else parent.number,
            "site": site,
            "step": context.step,
            "request_ids": context.request_ids,
            "thread": context.thread,
            "generators": inputs.described,
            "rng": process_states(inputs.states, self._twisters),
        }
        pieces = inputs.storages.pieces()
        with self._lock:
            if self._closed or self._stopped == "fault" or (self._stopped and parent is None):
                return None
            record["call"] = number = self._calls
            try:
                held, places = self._send(record, inputs, pieces, outermost=parent is None)
            except _NoRoom as reason:
                self._skipped[str(reason)] += 1
                return None
            self._calls += 1
            self._open += 1
        if self.wait:
            self.flush()
        return _Call(number, site, inputs.storages, inputs.generators, pieces, held, places)

    def _wanted(self, site: str, step: int | None) -> bool:
        """Whether the limits let an outermost call in."""
        with self._lock:
            channel = self._channel
            if channel is not None and channel.failed:
                self._stopped = "fault"
            if self.max_calls is not None and self._calls >= self.max_calls:
                self._limit(f"stopped after {self.max_calls} calls, as asked")
            elif self.max_bytes is not None and channel and channel.written + channel.free() >= self.max_bytes:
                self._limit(f"stopped after {self.max_bytes} bytes, as asked")
            if self._stopped:
                return False
            if step is not None:
                return step % self.one_in == 0
            self._seen[site] += 1
            return (self._seen[site] - 1) % self.one_in == 0

    def _limit(self, message: str) -> None:
        self._stopped = "limit"
        if self._channel is not None:
            self._note("limit", message)
            self._last_if_ended()

    def _last_if_ended(self) -> None:
        """After a limit, end the recording with the last call: the engine may be stopped any time. The lock is held."""
        if self._stopped == "limit" and not self._open and not self._closed:
            self._last()

    def _note(self, kind: str, message: str, count: int = 1) -> None:
        self._send({"record": "note", "kind": kind, "message": message, "count": count})

    def _end(self, call: _Call, result: Any, raised: BaseException | None) -> None:
        try:
            package = call.site.partition(".")[0].partition(":")[0]
            outputs = take((result,), {}, package, self.opaque, self._renamed, call.storages)
            states = outputs.states
            record: dict[str, Any] = {
                "record": "end",
                "call": call.number,
                "raised": None,
                "result generators": outputs.described,
                "generators": [states.generator(item, n) for n, item in enumerate(call.generators)],
            }
            if raised is not None:
                kind = type(raised)
                record["raised"] = {
                    "class": f"{kind.__module__}:{kind.__qualname__}",
                    "message": str(raised)[:2000],
                }
            record["rng"] = process_states(states, self._twisters)
            with self._lock:
                if self._stopped != "fault" and not self._closed:
                    self._send(record, outputs, outputs.storages.pieces(), ended=call)
                self._open -= 1
                self._last_if_ended()
        except Exception as error:
            self.fault(f"outputs of {call.site}", error)

    def _send(
        self,
        record: dict[str, Any],
        taken: Taken | None = None,
        pieces: Pieces | None = None,
        outermost: bool = False,
        ended: _Call | None = None,
    ) -> tuple[int, list[int]]:
        """Copy a record, and the memory behind it, to where the writer finds it. The lock is held.

        Args:
            pieces: of its storages.
            outermost: it is left out, rather than wait, when too much waits already.
            ended: the call that it ends; its inputs are copied again where they changed.

        Returns:
            The piece of shared memory that is held until the call ends, and where the storages' copies are.

        Raises:
            _NoRoom: it does not fit.
            OSError: the writer cannot be started.
        """
        channel = self._opened()
        copies = _Copies(self.max_queue)
        value, storages, kept, again = None, [], [], None
        places: list[int] = []
        if taken is not None and pieces is not None:
            value, kept = taken.value, taken.states.kept
            places = copies.add(pieces)
            columns = pieces.starts, pieces.sizes, pieces.wholes, pieces.devices, pieces.inputs, places
            storages = list(zip(*columns, strict=True))
        states = [(copies.room(size), size) for size in map(_length, kept)]
        if ended is not None and (found := ended.pieces.changed(ended.places)) is not None:
            again = [
                (n, ended.places[n] - channel.address, copies.again(ended.pieces, n), ended.pieces.sizes[n])
                for n in found
            ]
        renamed = dict(itertools.islice(self._renamed.items(), self._names_sent, None)) if self._key else {}
        text = marshal.dumps((record, value, storages, states, again, renamed), 2)
        head, size = len(text) + 63 & -64, copies.size
        held = channel.free()
        if outermost and held and (channel.crowded or held + head + size > self.max_queue):
            raise _NoRoom("left out, because the disk is slower than the engine")
        at = channel.reserve(head + size, hold=record["record"] == "begin")
        if ended is not None:
            channel.room.release(ended.held)
        if at is None:
            raise _NoRoom(f"left out, because {head + size} bytes found no room")
        self._names_sent += len(renamed)
        shared = channel.bytes
        shared[at : at + len(text)] = text
        data = channel.address + at + head
        for state, (place, length) in zip(kept, states, strict=True):
            if isinstance(state, bytes):
                shared[at + head + place : at + head + place + length] = state
            else:
                _copy_small(data + place, state.data_ptr(), length)
        later = self._copied(channel, copies, at + head)
        if later is None and not self._waiting:
            channel.publish(at, len(text))
        else:
            self._waiting.append(_Message(at, len(text), later))
            self._wake.notify_all()
        return at, [0 if place < 0 else data + place for place in places]

    def _copied(self, channel: Channel, copies: _Copies, data: int) -> device.Copies | None:
        """Copy memory to its places, counted from `data` on; what is on a device will be there later."""
        base, later = channel.address + data, []
        for pieces, places in copies.whole:
            deque(map(_copy_small, [base + place for place in places], pieces.addresses, pieces.small), maxlen=0)
        for pieces, number, place in copies.single:
            size, owner = pieces.sizes[number], pieces.owners[number]
            if pieces.devices[number] != "cpu":
                later.append((owner, pieces.starts[number], size, data + place))
            elif size >= _PARALLEL and isinstance(owner, torch.UntypedStorage):
                # All of it begins at a multiple of 64; in words of 8 bytes torch is quicker than in single ones.
                words, rest = size // 8, size % 8
                view = torch.empty(0, dtype=torch.int64)
                view.set_(owner, pieces.starts[number] // 8, (words,), (1,))
                first = (data + place) // 8
                self._room[first : first + words].copy_(view)
                _copy_small(base + place + size - rest, pieces.addresses[number] + size - rest, rest)
            else:
                _copy(base + place, pieces.addresses[number], size)
        if not later:
            return None
        if self._fetching is None:
            self._fetching = threading.Thread(target=self._fetch, args=(channel,), name="difftest-capture", daemon=True)
            self._fetching.start()
        return device.copy(later)

    def _opened(self) -> Channel:
        """The channel, opened for the first record. The lock is held."""
        channel = self._channel
        if channel is not None:
            return channel
        rank, world_size = own_rank()
        limits = {"max_calls": self.max_calls, "max_bytes": self.max_bytes, "one_in": self.one_in}
        opening = {
            "record": "open",
            "schema": SCHEMA,
            "rank": rank,
            "world_size": world_size,
            "pid": os.getpid(),
            "environment": environment() | {"engine_fixes": list(self.engine_fixes), "host": host_facts()},
            "sites": list(self.sites),
            "limits": limits,
        }
        channel = Channel(self.max_queue + MAX_CALL, self.out.absolute(), opening)
        self._room = torch.frombuffer(channel.bytes, dtype=torch.int64, count=len(channel.bytes) // 8)
        self._channel = channel
        # Children of multiprocessing leave without running atexit; its own finalizers do run there.
        atexit.register(self.close)
        multiprocessing.util.Finalize(None, self.close, exitpriority=100)
        return channel

    def _fetch(self, channel: Channel) -> None:
        """A thread: fetches what devices copied, and publishes it in order. An error ends the recording."""
        fetch = device.Fetcher(channel.bytes)
        while True:
            with self._lock:
                self._wake.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                message = self._waiting[0]
            try:
                if message.copies is not None:
                    fetch(message.copies)
            except Exception as error:
                with self._lock:
                    self._stopped, self._closed = "fault", True
                    self._waiting.clear()
                    self._wake.notify_all()
                channel.abandon()
                with contextlib.suppress(Exception):
                    print(f"difftest: recording stopped, the engine goes on: {error}", file=sys.stderr)
                return
            with self._lock:
                self._waiting.popleft()
                channel.publish(message.at, message.size)
                self._wake.notify_all()


class _Copies:
    """What is to be copied to shared memory, and where to, counted from where a message's memory begins.

    Args:
        most: bytes of one piece from which on it is left out.

    Attributes:
        size: bytes so far.
        whole: pieces of which the small ones are copied, and their places.
        single: pieces, which of them, and its place.
    """

    __slots__ = ("most", "single", "size", "whole")

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self.whole: list[tuple[Pieces, list[int]]] = []
        self.single: list[tuple[Pieces, int, int]] = []

    def room(self, size: int) -> int:
        """A place for so many bytes."""
        place = self.size
        self.size = place + size + 63 & -64
        return place

    def add(self, pieces: Pieces) -> list[int]:
        """Places for pieces; -1 for those that are left out."""
        sizes = pieces.sizes
        if out := [number for number, size in enumerate(sizes) if size > self.most]:
            pieces.leave_out(out)
            pieces.remote = [number for number in pieces.remote if number not in out]
            sizes = [0 if number in out else size for number, size in enumerate(sizes)]
        places = list(itertools.accumulate([size + 63 & -64 for size in sizes], initial=self.size))
        self.size = places.pop()
        for number in out:
            places[number] = -1
        self.whole.append((pieces, places))
        self.single += [(pieces, number, places[number]) for number in (*pieces.large, *pieces.remote)]
        return places

    def again(self, pieces: Pieces, number: int) -> int:
        """A place for one of the pieces."""
        place = self.room(pieces.sizes[number])
        self.single.append((pieces, number, place))
        return place


def _length(state: bytes | torch.Tensor) -> int:
    return len(state) if isinstance(state, bytes) else state.nbytes


class _NoRoom(Exception):
    """There is no room for a record."""


def redacted(name: str, key: bytes) -> str:
    """A request id as a hash that cannot be turned back without the key."""
    return "request-" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=6).hexdigest()
