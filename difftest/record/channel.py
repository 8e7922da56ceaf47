"""Hands what was recorded to a process of its own, which hashes and writes it. No torch.

A writer in the engine's own process would hold the interpreter that the engine's thread waits for. Between the two
processes lies shared memory: a piece of it is reserved, filled by the engine's thread and then published. What was
published outlives the engine, even one that is killed (signal 9): the writer goes on until all of it is on disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import marshal
import math
import mmap
import os
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from difftest.processes import python_command

_PAGE = 4096
_ENTRIES = 1 << 15
"""Messages that may wait."""

MARGIN = 256
"""Of them, how many are kept for the ends of calls that have begun."""

PUBLISHED, CONSUMED, FAILED, WRITTEN, USED = range(5)
"""Counters at the start of the memory: messages published and consumed, whether the writer gave up, bytes on disk, and
the end of the memory that was ever used."""

_TABLE = _PAGE // 8
START = _PAGE + 16 * _ENTRIES
"""Where the memory for messages begins, behind the counters and the table of messages."""


def shared(room: int) -> int:
    """A file in memory, of `room` bytes for messages: its descriptor.

    Raises:
        OSError: there is no memory for it.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("difftest-capture", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, START + room)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class SharedMemory:
    """The shared memory, mapped: `bytes` as they are, `counters` and the table of messages as integers of 64 bits."""

    def __init__(self, descriptor: int) -> None:
        self.map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        with contextlib.suppress(AttributeError, OSError):
            self.map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = memoryview(self.map)
        self.counters = self.bytes[:START].cast("Q")

    def message(self, number: int) -> tuple[int, int]:
        """Where a message is and how long."""
        at = _TABLE + 2 * (number % _ENTRIES)
        return self.counters[at], self.counters[at + 1]

    def set_message(self, number: int, at: int, size: int) -> None:
        place = _TABLE + 2 * (number % _ENTRIES)
        self.counters[place], self.counters[place + 1] = at, size


@dataclass(slots=True)
class _Piece:
    """Reserved memory; it is free when the message numbered `until` is consumed."""

    start: int
    end: int
    until: float


class Room:
    """Which memory is free. It is reserved, and given back, in the order of the messages.

    It begins again at the start whenever it can, since memory that was never used costs more than the copy: the kernel
    hands it out page by page.

    Args:
        start, end: the memory.

    Attributes:
        used: the end of what was ever reserved.
        held: bytes reserved and not yet free.
        pieces: those.
    """

    def __init__(self, start: int, end: int) -> None:
        self.used = start
        self.held = 0
        self.pieces: deque[_Piece] = deque()
        self._start, self._end = start, end
        self._next, self._limit = start, end
        self._count = 0

    def free(self, consumed: int) -> None:
        """So many messages were consumed."""
        pieces = self.pieces
        while pieces and pieces[0].until < consumed:
            gone = pieces.popleft()
            self.held -= gone.end - gone.start

    def reserve(self, size: int, hold: bool = False) -> int | None:
        """Memory for the next message, at a multiple of 64; None when there is none.

        Args:
            hold: keep it after the message was consumed, until :meth:`release`.
        """
        size = max(size + 63 & -64, 64)
        at = self._place(size)
        if at is None:
            return None
        self._next = at + size
        self.used = max(self.used, self._next)
        self.pieces.append(_Piece(at, at + size, math.inf if hold else self._count))
        self._count += 1
        self.held += size
        return at

    def _place(self, size: int) -> int | None:
        if not self.pieces:
            self._next, self._limit = self._start, self._end
        if self._next + size <= min(self._limit, self.used):
            return self._next
        first = min([piece.start for piece in self.pieces], default=self._end)
        last = max([piece.end for piece in self.pieces], default=self._start)
        if self._start + max(size, (self.used - self._start) // 4) <= first and self.pieces:
            self._next, self._limit = self._start, first
        elif self._next + size > self._limit and last + size <= self._end:
            self._next, self._limit = last, self._end
        elif self._next + size > self._limit and self._start + size <= first:
            self._next, self._limit = self._start, first
        return self._next if self._next + size <= self._limit else None

    def release(self, at: int) -> None:
        """Let a held piece go once the message reserved last is consumed."""
        for piece in reversed(self.pieces):
            if piece.start == at:
                piece.until = self._count - 1
                return


class Channel:
    """The engine's end. Not for several threads at once, but for `flush` and `finish`.

    Args:
        room: bytes for messages.
        out: the capture folder; the process's own folder in it, and its manifest, are made at once.
        opening: what the writer has to know, plain values.

    Attributes:
        bytes: the whole memory.
        address: where it begins.
        room: which of it is free.
        writer: the process that started the writer.

    Raises:
        OSError: no memory, or no process can be started.
    """

    def __init__(self, room: int, out: Path, opening: Mapping[str, Any]) -> None:
        descriptor = shared(room)
        manifest = -1
        try:
            manifest = _manifest(out, int(opening["rank"]))
            self._memory = SharedMemory(descriptor)
            self._socket, theirs = socket.socketpair()
            with theirs:
                self.writer = subprocess.Popen(
                    python_command("difftest.record.writer", str(theirs.fileno()), str(descriptor), str(manifest)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), descriptor, manifest),
                    start_new_session=True,
                )
        finally:
            os.close(descriptor)
            if manifest >= 0:
                os.close(manifest)
        self.bytes = self._memory.bytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory.map))
        self.room = Room(START, START + room)
        self._published = 0
        data = marshal.dumps({"out": str(out), "opening": dict(opening)}, 2)
        at = self.reserve(len(data))
        assert at is not None
        self.bytes[at : at + len(data)] = data
        self.publish(at, len(data))

    @property
    def failed(self) -> bool:
        """Whether the writer gave up, as on a full disk; it has said so."""
        return self._memory.counters[FAILED] != 0

    @property
    def written(self) -> int:
        """Bytes on disk."""
        return self._memory.counters[WRITTEN]

    @property
    def crowded(self) -> bool:
        """Whether so many messages wait that no further call should begin."""
        return len(self.room.pieces) >= _ENTRIES - MARGIN

    def free(self) -> int:
        """Take back what the writer is done with; bytes that are still held."""
        self.room.free(self._memory.counters[CONSUMED])
        return self.room.held

    def reserve(self, size: int, hold: bool = False) -> int | None:
        """Memory for a message, see :meth:`Room.reserve`. Each must be published, in the same order."""
        room = self.room
        if len(room.pieces) >= _ENTRIES:
            return None
        at = room.reserve(size, hold)
        self._memory.counters[USED] = room.used
        return at

    def publish(self, at: int, size: int) -> None:
        """The message that was reserved next is there: `size` bytes from `at` on.

        The writer is not woken, which would cost as much as everything here: it looks by itself.
        """
        self._memory.set_message(self._published, at, size)
        self._published += 1
        self._memory.counters[PUBLISHED] = self._published

    def flush(self, seconds: float) -> bool:
        """Wait until all that was published is on disk; whether it is, in time."""
        with contextlib.suppress(OSError):  # it has not yet read what was said before, or is gone
            self._socket.send(b"\0", _QUIETLY)
        published, ends = self._published, time.monotonic() + seconds
        wait = 0.00005
        while self._memory.counters[CONSUMED] < published:
            if self.failed or time.monotonic() > ends:
                return False
            time.sleep(wait)
            wait = min(2 * wait, 0.005)
        return True

    def finish(self, seconds: float) -> None:
        """Wait until everything is on disk, and let the writer end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.flush(seconds)
            self._socket.close()
            self.writer.wait(seconds)

    def abandon(self) -> None:
        """Close this end without a wait, also one that a fork brought here: the writer ends when all are closed."""
        self._socket.close()
        self.writer.returncode = self.writer.returncode or 0


_QUIETLY = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


def _manifest(out: Path, rank: int) -> int:
    """A new manifest, locked while the writer has it: whoever wants the whole capture can wait for that.

    Raises:
        OSError: it cannot be made.
    """
    folder = _own_folder(out, rank)
    manifest = os.open(folder / "manifest.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    fcntl.flock(manifest, fcntl.LOCK_EX)
    return manifest


def _own_folder(out: Path, rank: int) -> Path:
    """A new folder for this process: `rank-<rank>`, or with a number behind when another process has that."""
    out.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = out / (f"rank-{rank}" if number == 1 else f"rank-{rank}.{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")
