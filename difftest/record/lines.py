"""The two parts of a capture on disk, sealed: lines of a manifest and blobs. No torch here.

A manifest line is one JSON object whose last key is the SHA-256 of the rest, so that a flipped bit is found before
the line is believed. A blob is a safetensors file with one tensor `data` of bytes, named by the SHA-256 of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difftest.errors import CaptureError

SCHEMA = "difftest.capture/1"

MAX_LINE = 64 << 20
"""Bytes in one manifest line."""

MAX_DEPTH = 64
"""Nesting of a recorded value."""

MAX_BYTES = 8 << 30
"""Bytes in one storage, in one tensor, and in all storages of one call, unless the reader is told otherwise."""

INLINE = 1024
"""Bytes of memory up to which it stands in the manifest itself."""

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SEAL = b',"sha256":"'
_TAIL = len(_SEAL) + 64 + len(b'"}\n')
_ALIGNMENT = 64


def seal(record: Mapping[str, Any]) -> bytes:
    """One manifest line, newline included.

    Raises:
        ValueError, TypeError: the record is not JSON, or is longer than a line may be.
    """
    return seal_text(json.dumps(record, separators=(",", ":"), allow_nan=False))


def seal_text(text: str) -> bytes:
    """One manifest line, newline included, of a record that is JSON already.

    Raises:
        ValueError: it is longer than a line may be.
    """
    body = text.encode()
    line = body[:-1] + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    if len(line) > MAX_LINE:
        raise ValueError(f"a record of {len(line)} bytes is longer than a manifest line may be ({MAX_LINE})")
    return line


def unseal(line: bytes, where: str) -> dict[str, Any]:
    """The record of a manifest line, once its checksum is right.

    Args:
        where: file and line, for the message.

    Raises:
        CaptureError: wrong checksum, no JSON object, or nested too deeply.
    """
    if len(line) < _TAIL or line[-_TAIL : -_TAIL + len(_SEAL)] != _SEAL or line[-3:] != b'"}\n':
        raise CaptureError(f"{where}: the line carries no checksum; it is damaged or was not written by difftest")
    body = line[:-_TAIL] + b"}"
    if hashlib.sha256(body).hexdigest().encode() != line[-_TAIL + len(_SEAL) : -3]:
        raise CaptureError(f"{where}: the line does not match its checksum; it is damaged")
    try:
        record = json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise CaptureError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise CaptureError(f"{where}: not JSON: {str(error)[:200]}") from None
    if not isinstance(record, dict):
        raise CaptureError(f"{where}: not a JSON object")
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, bytes) of each line of a manifest; a last line without newline is given as it is.

    Raises:
        CaptureError: not a regular file, unreadable, or a line longer than a line may be.
    """
    regular_file(path)
    try:
        with path.open("rb") as file:
            offset = number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise CaptureError(f"{path}: line {number} is longer than {MAX_LINE} bytes")
                yield number, offset, line
                offset += len(line)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror}", "make it readable, or name another") from None


def regular_file(path: Path) -> int:
    """The size of a regular file in bytes; links, pipes and devices are refused, so that reading cannot be led astray.

    Raises:
        CaptureError: missing, or not a regular file.
    """
    try:
        found = path.lstat()
    except (OSError, ValueError) as error:
        raise CaptureError(
            f"{path}: cannot be read: {getattr(error, 'strerror', error)}", "make it readable, or name another"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise CaptureError(f"{path}: not a regular file")
    return found.st_size


def blob_header(size: int) -> bytes:
    """The safetensors header of a blob that holds `size` bytes; a multiple of 8 bytes long."""
    text = json.dumps({"data": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text.encode()


def blob_path(folder: Path, name: str, where: str) -> Path:
    """Where the blob of this name is.

    Raises:
        CaptureError: the name is not 64 hexadecimal digits.
    """
    if not isinstance(name, str) or not _DIGEST.fullmatch(name):
        raise CaptureError(f"{where}: {str(name)[:80]!r} is no blob name (64 hexadecimal digits)")
    return folder / f"{name}.safetensors"


def write_blob(folder: Path, data: bytes | memoryview) -> tuple[str, int]:
    """Write bytes as a blob, once: (name, bytes added to the folder; 0 when it was there).

    The file appears under its name only when it is whole, so several processes may write the same blob at once.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    header = blob_header(len(data))
    digest = hashlib.sha256(header)
    digest.update(data)
    name = digest.hexdigest()
    path = folder / f"{name}.safetensors"
    if path.exists():
        return name, 0
    temporary = folder / f".{name}.{os.getpid()}"
    try:
        with temporary.open("wb", buffering=0) as file:
            _write_all(file, header)
            _write_all(file, data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return name, len(header) + len(data)


def _write_all(file: Any, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def read_blob(path: Path, size: int) -> Bytes:
    """The `size` bytes of a blob, uint8, writable, aligned as torch aligns its own memory.

    Raises:
        CaptureError: size, header or hash is wrong; the size is checked before memory is taken.
    """
    header = blob_header(size)
    there = regular_file(path)
    if there != len(header) + size:
        raise CaptureError(f"{path}: {there} bytes, where {size} bytes of data make {len(header) + size}")
    data = aligned(size)
    try:
        with path.open("rb", buffering=0) as file:
            start = file.read(len(header))
            view = data.data
            while view and (count := file.readinto(view)):
                view = view[count:]
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror}", "make it readable, or name another") from None
    if start != header or view:
        raise CaptureError(f"{path}: it does not begin as a blob of {size} bytes does")
    digest = hashlib.sha256(header)
    digest.update(data.data)
    if digest.hexdigest() != path.name.partition(".")[0]:
        raise CaptureError(f"{path}: the content does not match its name (SHA-256); it is damaged or was swapped")
    return data


def aligned(size: int) -> Bytes:
    """`size` bytes of memory, not set, at an address that is a multiple of 64."""
    import numpy as np  # what writes captures has no need of it

    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size]
