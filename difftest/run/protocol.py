"""What the supervisor and its worker say to each other: JSON lines over a socket, and a board of what runs now.

No torch: both sides import this.
"""

from __future__ import annotations

import json
import mmap
import socket
import struct
import time
from pathlib import Path
from typing import Any

BASE, HEAD = 0, 1
ARM_NAMES = ("base", "head")

_RECORD = struct.Struct("<qqqqdq")  # pid, unit, case, arm, time of the last change, state
_SINCE = struct.Struct("<dq")
_SIZE = 64

CHANNEL_LOST = 71
"""Exit status of a child whose code under test closed its way to the supervisor."""

BETWEEN, CALLING, AFTER, FIRST_CALL = 0, 1, 2, 3
"""States of a child: between cases; in a call; after a call of the same case, before the next call; in the first
call of an arm, which imports what its others find."""

LINES, CHANCE = LOOKS = ("lines", "chance")
"""What is looked at in a target that differs: which changed lines the cases run; whether only the random numbers
differ. Neither needs what the other finds."""

EXECUTED = "executed"
"""What is looked at in an identical target: which changed lines its cases run."""


class Board:
    """A small shared file in which each child says which call it is in. Survives the child's death.

    Args:
        path: the file; made by the supervisor.
        slots: number of children; None in a child, which only opens the file.
    """

    def __init__(self, path: Path, slots: int | None = None) -> None:
        if slots is not None:
            path.write_bytes(bytes(_SIZE * slots))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def begin(self, slot: int) -> None:
        """The child is alive and between cases."""
        _SINCE.pack_into(self._map, slot * _SIZE + 32, time.monotonic(), BETWEEN)

    def enter(self, slot: int, pid: int, unit: int, case: int, arm: int, first: bool = False) -> None:
        """A call begins; `first`: the first one of this arm in this child."""
        state = FIRST_CALL if first else CALLING
        _RECORD.pack_into(self._map, slot * _SIZE, pid, unit, case, arm, time.monotonic(), state)

    def leave(self, slot: int) -> None:
        """The call is over."""
        _SINCE.pack_into(self._map, slot * _SIZE + 32, time.monotonic(), AFTER)

    def read(self, slot: int) -> tuple[int, int, int, int, float, int]:
        """(pid, unit, case, arm, seconds since the last change, state)."""
        pid, unit, case, arm, since, state = _RECORD.unpack_from(self._map, slot * _SIZE)
        return pid, unit, case, arm, time.monotonic() - since, state


class Channel:
    """JSON lines over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        """Raises ConnectionError when the other side is gone."""
        self.connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other side is gone."""
        while b"\n" not in self._buffer:
            data = self.connection.recv(1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def drain(self) -> None:
        """Throw away what has arrived."""
        self.connection.setblocking(False)
        try:
            while self.connection.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        self.connection.setblocking(True)
        self._buffer = b""

    def arrived(self) -> list[dict[str, Any]]:
        """All whole messages that can be read without waiting for more than one read."""
        data = self.connection.recv(1 << 20)
        if not data:
            raise EOFError
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]
