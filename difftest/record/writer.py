"""The process that writes what a recorder took, a manifest and its blobs; `Channel` starts it. No torch.

All that is slow and can wait is done here, away from the interpreter that the engine's own thread needs.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import io
import json
import marshal
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from difftest.record.channel import CONSUMED, FAILED, PUBLISHED, START, USED, WRITTEN, SharedMemory
from difftest.record.forms import Nodes, unpickled
from difftest.record.lines import INLINE, seal_text, write_blob

_VALUE = 400
"""Characters from which on a part of a value is written once and then referred to."""

_ENTRY = 60
"""The same for the description of a storage."""

_KNOWN = 256 << 10
"""Bytes up to which a blob is kept, to know it when it comes again: generator states hardly change."""

_KNOWN_BYTES = 32 << 20
"""Bytes of all that are kept."""

_AHEAD = 64 << 20
"""Bytes of shared memory that are made ready, at most, before the engine needs them."""

_OFTEN, _SELDOM = 0.002, 0.1
"""Seconds between two looks for messages, while they come and when none came for long."""

_PLAIN = (int, str, bool, float, type(None))


Message = tuple[
    dict[str, Any],
    Any,
    list[tuple[Any, ...]],
    list[tuple[int, int]],
    list[tuple[int, int, int, int]] | None,
    dict[str, str],
]
"""A record of the manifest, but for what follows; its values (see :func:`_nodes`); what lies in memory: its storages
(start, size, whole, device, number of the input that it is, place; -1 for left out), states of generators (place, size)
and input storages after the call (number, where in the shared memory it was before, place, size; None when that is not
known). Places are counted from where the message's memory begins. Last, strings that are renamed from now on."""


class Writer:
    """Writes one process's manifest and its blobs.

    Args:
        out: the capture folder.
        manifest: this process's manifest, new and locked.
        opening: the manifest's first record.
        memory: the shared memory that messages lie in.

    Attributes:
        written: bytes so far.

    Raises:
        OSError: the files cannot be made.
    """

    def __init__(self, out: Path, manifest: io.FileIO, opening: Mapping[str, Any], memory: memoryview) -> None:
        self.written = 0
        self._memory = memory
        self._lines = 0
        self._blobs = out / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._values: dict[bytes, int] = {}
        self._known: dict[bytes, dict[str, Any]] = {}
        self._known_bytes = 0
        self._renamed: dict[str, str] = {}
        self._open: dict[int, Met] = {}
        self._file = manifest
        self._line(opening)

    def write(self, message: Message, data: int) -> bool:
        """Write a record with all that it refers to; whether it was the last.

        Args:
            message: what the recorder took.
            data: where the message's memory begins.

        Raises:
            OSError: it cannot be written.
        """
        record, values, storages, states, again, renamed = message
        self._renamed |= renamed
        parts: dict[str, str] = {}
        kind = record["record"]
        if kind in ("begin", "end"):
            described = record.pop("generators" if kind == "begin" else "result generators")
            args, kwargs, met = _nodes(values, described, len(storages), self._renamed)
            before = met if kind == "begin" else self._open.pop(record["call"])
            entries = [self._storage(data, storages[number], before.storages) for number in met.storages]
            parts["storages"] = _list([self._once(_json(entry), _ENTRY) for entry in entries])
            parts["states"] = _json([self._data(data + at, size) for at, size in states])
            if kind == "begin":
                self._open[record["call"]] = met
                parts["args"] = _list([self._text(node) for node in args])
                parts["kwargs"] = _object({name: self._text(node) for name, node in kwargs.items()})
            else:
                parts["result"] = self._text(args[0])
                after = [record["generators"][number] | {"index": n} for n, number in enumerate(before.generators)]
                record["generators"] = after
                if again is not None:
                    found = [(before.storages[one[0]], *one[1:]) for one in again if one[0] in before.storages]
                    parts["inputs"] = _json([entry for one in found for entry in self._after(data, *one)])
        self._line(record, parts)
        if kind == "close":
            self._file.close()
        return bool(kind == "close")

    def abandon(self) -> None:
        """Close the manifest as it is."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _line(self, record: Mapping[str, Any], parts: Mapping[str, str] | None = None) -> None:
        plain = _json({**record, "n": self._lines})
        text = plain if not parts else f"{plain[:-1]},{_object(parts)[1:]}"
        view = memoryview(seal_text(text))
        self._lines += 1
        self.written += len(view)
        while view:
            view = view[self._file.write(view) :]

    def _once(self, text: str, least: int) -> str:
        """The JSON of a part; from `least` characters on a line of its own, written once, and here its number."""
        if len(text) < least:
            return text
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        number = self._values.get(key)
        if number is None:
            number = len(self._values)
            self._line({"record": "value", "value": number}, {"is": text})
            self._values[key] = number
        return f'{{"value":{number}}}'

    def _text(self, node: Any) -> str:
        """A value's JSON, with large parts that came before replaced by their number.

        The state of a sampler is large and hardly changes from call to call.
        """
        kind = type(node)
        if kind is list:
            if all(type(item) in _PLAIN for item in node):
                return self._once(_json(node), _VALUE)
            return self._once(_list([self._text(item) for item in node]), _VALUE)
        if kind is not dict:
            return _json(node)
        ((tag, content), *more) = node.items()
        if tag in ("tuple", "set"):
            parts = {tag: _list([self._text(item) for item in content])}
        elif tag == "dict":
            parts = {tag: _list([f"[{self._text(key)},{self._text(item)}]" for key, item in content])}
        elif tag == "object":
            fields = _object({name: self._text(item) for name, item in content["fields"].items()})
            kind_of = {key: _json(item) for key, item in content.items() if key != "fields"}
            parts = {tag: _object({**kind_of, "fields": fields})}
        elif tag == "method":
            parts = {tag: _object({"self": self._text(content["self"]), "name": _json(content["name"])})}
        else:
            return self._once(_json(node), _VALUE)
        return self._once(_object({**parts, **{key: _json(item) for key, item in more}}), _VALUE)

    def _after(self, data: int, number: int, before: int, at: int, size: int) -> list[dict[str, Any]]:
        """An input storage after the call: its entry; none when it is as before."""
        at += data
        if self._memory[before : before + size] == self._memory[at : at + size]:
            return []
        return [{"storage": number, **self._data(at, size)}]

    def _storage(self, data: int, storage: tuple[Any, ...], inputs: Mapping[int, int]) -> dict[str, Any]:
        start, size, whole, device, shared, at = storage
        entry: dict[str, Any] = {"start": start, "whole": whole, "device": device}
        if shared in inputs:
            entry["input"] = inputs[shared]
        return entry | ({"size": size, "omitted": True} if at < 0 else self._data(data + at, size))

    def _data(self, at: int, size: int) -> dict[str, Any]:
        view = self._memory[at : at + size]
        if size <= INLINE:
            return {"size": size, "data": base64.b64encode(view).decode()}
        kept = bytes(view) if size <= _KNOWN else None
        known = self._known.get(kept) if kept is not None else None
        if known is not None:
            return known
        name, added = write_blob(self._blobs, view if kept is None else kept)
        self.written += added
        found = {"size": size, "blob": name}
        if kept is not None:
            if self._known_bytes + size > _KNOWN_BYTES:
                self._known.clear()
                self._known_bytes = 0
            self._known[kept] = found
            self._known_bytes += size
        return found


@dataclass(frozen=True)
class Met:
    """What was met in one side of a call: its storages and generators as the recorder counted them.

    Attributes:
        storages: their numbers in the manifest, by the recorder's.
        generators: in the order of their numbers in the manifest, the recorder's.
    """

    storages: Mapping[int, int]
    generators: Sequence[int]


def _nodes(
    values: Any, described: list[dict[str, Any]], storages: int, renamed: Mapping[str, str]
) -> tuple[list[Any], dict[str, Any], Met]:
    """The JSON of positional and keyword values, and what was met in them.

    Args:
        values: a pickle of both, and what its tensors and arrays are (:mod:`difftest.record.forms`); or both as JSON.
        described: the generators.
        storages: how many there are.
    """
    if len(values) == 2:
        return *values, Met({n: n for n in range(storages)}, range(len(described)))
    data, tensors, arrays = values
    node = Nodes(tensors, arrays, described, renamed)
    args, kwargs = unpickled(data)
    nodes = [node(value) for value in args], {name: node(value) for name, value in kwargs.items()}
    return *nodes, Met(node.storages, node.generators_met)


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
_string = json.encoder.encode_basestring_ascii
_CONSTANTS = {None: "null", True: "true", False: "false"}


def _json(node: Any) -> str:
    """JSON; the quick way for what is most frequent."""
    kind = type(node)
    if kind is str:
        return _string(node)
    if kind is int:
        return str(node)
    if node is None or kind is bool:
        return _CONSTANTS[node]
    return _encode(node)


def _list(texts: list[str]) -> str:
    return f"[{','.join(texts)}]"


def _object(texts: Mapping[str, str]) -> str:
    return f"{{{','.join([f'{_string(key)}:{text}' for key, text in texts.items()])}}}"


def serve(connection: socket.socket, shared: SharedMemory, manifest: io.FileIO) -> None:
    """Write messages until the last, or until nobody is left who could publish one.

    An error ends the recording, and is said on stderr.
    """
    counters, memory = shared.counters, shared.bytes
    out, writer, touched, consumed, there = Path(), None, START, 0, True
    pause = _OFTEN
    try:
        while there or consumed < counters[PUBLISHED]:
            pause = min(2 * pause, _SELDOM) if consumed == counters[PUBLISHED] else _OFTEN
            while consumed < counters[PUBLISHED]:
                at, size = shared.message(consumed)
                message = marshal.loads(memory[at : at + size])
                if writer is None:
                    out = Path(message["out"])
                    writer = Writer(out, manifest, message["opening"], memory)
                elif writer.write(message, at + -(-size // 64) * 64):
                    there = False
                counters[WRITTEN] = writer.written
                consumed += 1
                counters[CONSUMED] = consumed
            touched = _touch(shared, touched)
            connection.settimeout(pause)
            with contextlib.suppress(TimeoutError):
                there = there and bool(connection.recv(1 << 16))
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = "the disk is full" if full else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            print(f"difftest: recording stopped, the engine goes on: {out}: {why}", file=sys.stderr, flush=True)
        counters[FAILED] = 1


def _touch(shared: SharedMemory, touched: int) -> int:
    """Look at memory that the engine will need next, so that the kernel has it ready; up to where that is done."""
    used = shared.counters[USED]
    ahead = min(len(shared.bytes), used + min(used - START, _AHEAD))
    if ahead > touched:
        bytes(shared.bytes[touched : ahead : os.sysconf("SC_PAGE_SIZE")])
    return max(ahead, touched)


def main() -> int:
    connection, descriptor, manifest = map(int, sys.argv[1:])
    # Nobody's child: an engine that is stopped, and all its children with it, leaves this process to end its work.
    if os.fork():
        os._exit(0)
    # Being woken by the engine's thread must not take the processor from it.
    with contextlib.suppress(AttributeError, OSError):
        os.nice(5)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    shared = SharedMemory(descriptor)
    os.close(descriptor)
    with socket.socket(fileno=connection) as theirs, io.FileIO(manifest, "wb") as file:
        serve(theirs, shared, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
