"""One case in one file, as bytes: a safetensors file that is checked by its hash and runs no code when read.

The metadata say which target the case is for and hold the pool in the form of a capture's values
(`difftest/schema/capture.json`), plus `seeded`, `made` and `frozenset`. The tensors are the storages behind it, whole,
each named by the SHA-256 of its bytes. `host`, where a recorded call has it, is what the captured engine's host had
decided. torch is imported when the pool is made, not when a file is opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from difftest.errors import CaptureError, LiftError, UsageError
from difftest.record.decode import Decoder, RngStates, Storages, rng_states
from difftest.record.host import fault_of
from difftest.record.lines import MAX_BYTES, MAX_LINE, aligned, regular_file
from difftest.target import After, Arm, Case, GeneratorStates, Made, Pool, Seeded
from difftest.trees.cache import write_atomic

if TYPE_CHECKING:
    from difftest.record.lines import Bytes

SCHEMA = "difftest.case/1"
SUFFIX = ".safetensors"

_KEYS = frozenset(
    {"schema", "target", "id", "label", "source", "contract", "axes", "rng", "pool", "storages", "states", "sha256"}
)
_OPTIONAL = frozenset({"host"})
_SOURCES = ("grid", "fuzz", "recorded")


@dataclass(frozen=True)
class CaseFile:
    """A case file, its metadata checked; the pool is made when the case is built.

    Attributes:
        path: the file.
        target: name of the target that the case is for.
        id: the case's content hash (:func:`difftest.call.values.case_id`).
        label, source, contract, axes: as in :class:`difftest.target.Case`.
        rng: of a recorded call, the process-wide generators before it.
        host: of a recorded call, as in :class:`difftest.target.Case`; empty in files written before it was kept.
    """

    path: Path
    target: str
    id: str
    label: str
    source: str
    contract: bool
    axes: Mapping[str, str]
    rng: RngStates | None
    host: Mapping[str, Any]
    _pool: Mapping[str, Any] = field(repr=False)
    _storages: Storages = field(repr=False)

    def pool(self, device: str | None = "cpu") -> Pool:
        """The pool, made anew: strides, offsets, gap bytes and shared memory as they were. Imports torch.

        Args:
            device: None checks everything and makes no tensor, nor imports torch.

        Raises:
            CaptureError: the file's bytes are damaged.
        """
        decode = _CaseDecoder(self._storages, device)
        return {name: decode(node, name) for name, node in self._pool.items()}

    def case(self) -> Case:
        """The case, for a run."""
        recorded = None if self.rng is None else KeptCall(self.rng)
        return Case(self.label, self.pool, self.contract, self.source, dict(self.axes), recorded, host=dict(self.host))


@dataclass(frozen=True)
class KeptCall:
    """What a case file knows of a recorded call beyond its inputs; implements :class:`difftest.target.Recorded`."""

    rng: GeneratorStates
    process: str = "case file"

    def after(self, arm: Arm) -> After:
        raise LiftError("a case file keeps inputs, not results")

    def twin(self, arm: Arm) -> After | None:
        return None


def read_case(path: Path, max_bytes: int = MAX_BYTES) -> CaseFile:
    """Open a case file.

    Raises:
        CaptureError: not a case file, damaged, or of another version.
    """
    size = regular_file(path)
    try:
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror}", "make it readable, or name another") from None
    if not 0 < header <= min(size, MAX_LINE):
        raise CaptureError(f"{path}: not a case file, or cut short")
    try:
        with safe_open(path, "numpy") as opened:
            said = dict(opened.metadata() or {})
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path}: not a case file, or damaged: {str(error)[:200]}") from None
    if said.get("schema") != SCHEMA:
        fault = f"{path}: schema {said.get('schema', 'none')!r:.60}, this difftest reads {SCHEMA}"
        raise CaptureError(fault, "have the version that wrote it read it, or keep the case again")
    if set(said) - _OPTIONAL != _KEYS or _seal(said) != said["sha256"]:
        raise CaptureError(f"{path}: the metadata do not match their hash; the file is damaged")
    try:
        axes, contract, pool, rng = (json.loads(said[name]) for name in ("axes", "contract", "pool", "rng"))
        storages, states = (json.loads(said[name]) for name in ("storages", "states"))
        host = json.loads(said.get("host", "{}"))
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: not JSON: {str(error)[:200]}") from None
    if type(contract) is not bool or said["source"] not in _SOURCES or not _is_text(axes) or type(pool) is not dict:
        raise CaptureError(f"{path}: contract, source, axes or pool are not what {SCHEMA} says")
    if fault := fault_of(host):
        raise CaptureError(f"{path}: {fault}")
    memory = _FileStorages(storages, states, path, str(path), max_bytes, _no_values)
    before = None if rng is None else rng_states(memory, rng)
    return CaseFile(
        path, said["target"], said["id"], said["label"], said["source"], contract, axes, before, host, pool, memory
    )


def write_case(path: Path, target: str, case: Case, pool: Pool | None = None) -> CaseFile:
    """Keep a case in a file; the same case makes the same bytes.

    Args:
        path: the file; its folder is made.
        target: name of the target that the case is for.
        pool: the case's pool when it is at hand; else it is built.

    Returns:
        The file, read again.

    Raises:
        UsageError: the case holds what cannot be kept as bytes, or the file cannot be written.
    """
    data = case_bytes(target, case, case.build() if pool is None else pool)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; name another folder") from None
    return read_case(path)


def case_bytes(target: str, case: Case, pool: Pool) -> bytes:
    """The content of a case file.

    Raises:
        UsageError: the case holds what cannot be kept as bytes.
    """
    from difftest.call.values import case_id, has_large
    from difftest.record.pool import PoolEncoder

    if has_large(pool):
        raise UsageError(f"case {case.label!r:.80} of {target} reserves more memory than a file may hold")
    encode = PoolEncoder()
    nodes = {name: encode(value) for name, value in pool.items()}
    rng = None if case.recorded is None else encode.rng(case.recorded.rng)
    if encode.refused:
        raise UsageError(f"case {case.label!r:.80} of {target} cannot be kept as bytes: {encode.refused[0]}")
    blobs: dict[str, bytes] = {}
    storages = []
    pieces = encode.storages.pieces()
    for number, (start, size, whole) in enumerate(zip(pieces.starts, pieces.sizes, pieces.wholes, strict=True)):
        if size > MAX_BYTES:
            raise UsageError(f"case {case.label!r:.80} of {target}: {size} bytes in one tensor are too many")
        entry: dict[str, Any] = {"start": start, "size": size, "whole": whole, "device": "cpu"}
        storages.append(entry | _kept(pieces.bytes(number), blobs))
    states = [{"size": len(state)} | _kept(bytes(state), blobs) for state in encode.states.kept]
    said = {
        "schema": SCHEMA,
        "target": target,
        "id": case_id(target, pool),
        "label": case.label,
        "source": case.source,
        "contract": json.dumps(case.contract),
        "axes": json.dumps({name: str(value) for name, value in case.axes.items()}),
        "rng": json.dumps(rng, allow_nan=False),
        "pool": json.dumps(nodes, separators=(",", ":"), allow_nan=False),
        "storages": json.dumps(storages, separators=(",", ":")),
        "states": json.dumps(states, separators=(",", ":")),
    }
    if case.host:
        said["host"] = json.dumps(dict(case.host), sort_keys=True)
    return _safetensors(said | {"sha256": _seal(said)}, blobs)


def case_files(path: Path) -> list[CaseFile] | None:
    """The case files that a path names: itself, or all below a folder; None when it is no case file and holds none.

    Raises:
        CaptureError: one of them is damaged.
    """
    if path.is_file():
        return [read_case(path)]
    if not path.is_dir() or any(path.glob("rank-*")):
        return None  # a capture, whose blobs have the same ending
    found = sorted(path.rglob(f"*{SUFFIX}"))
    return [read_case(file) for file in found] or None


def _kept(data: bytes, blobs: dict[str, bytes]) -> dict[str, str]:
    if not data:
        return {"data": ""}
    name = hashlib.sha256(data).hexdigest()
    blobs[name] = data
    return {"blob": name}


def _seal(said: Mapping[str, str]) -> str:
    """SHA-256 of the metadata without the hash itself; what the tensors hold is in their names."""
    text = json.dumps({name: said[name] for name in sorted(said) if name != "sha256"}, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _safetensors(said: Mapping[str, str], blobs: Mapping[str, bytes]) -> bytes:
    """The bytes of the file. Written here because the library orders metadata by chance, and bytes must repeat."""
    header: dict[str, Any] = {"__metadata__": dict(said)}
    offset = 0
    for name, data in blobs.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text.encode() + b"".join(blobs.values())


def _is_text(value: Any) -> bool:
    return type(value) is dict and all(type(item) is str for item in value.values())


def _no_values(number: int) -> Any:
    raise CaptureError(f"a case file has no shared value {number}")


class _FileStorages(Storages):
    """The memory behind a case, in the case file itself."""

    def _load(self, entry: Mapping[str, Any], label: str) -> Bytes:
        if "blob" not in entry:
            return super()._load(entry, label)
        memory = aligned(entry["size"])
        try:
            with safe_open(self._blobs, "numpy") as opened:
                data = opened.get_tensor(entry["blob"])
        except (SafetensorError, OSError) as error:
            self.fail(f"{label}: {error}")
        if data.dtype != np.uint8 or data.shape != memory.shape:
            self.fail(f"{label}: {data.nbytes} bytes where {entry['size']} are declared")
        memory[:] = data
        if hashlib.sha256(memory.data).hexdigest() != entry["blob"]:
            self.fail(f"{label}: its bytes do not match their hash; the file is damaged")
        return memory


class _CaseDecoder(Decoder):
    """Reads what only the pools of case files hold, too."""

    def _value(self, node: Any, kind: type) -> Any:
        if kind is dict and len(node) == 1:
            tag = next(iter(node))
            if tag == "seeded":
                if type(node[tag]) is not int:
                    self._fail("a seed is an integer")
                return Seeded(node[tag])
            if tag == "frozenset":
                return frozenset(self._items(self._list(node[tag], "a set")))
            if tag == "made":
                return self._made(node[tag])
            if tag == "tensor":
                return self._placed(super()._value(node, kind), node[tag]["offset"])
        return super()._value(node, kind)

    def _made(self, node: Any) -> Made:
        parts = self._object(node, "an object that an arm makes", "symbols", "fields", "optional")
        symbols = [self._symbol(text) for text in self._list(parts["symbols"], "`symbols`")]
        names = self._list(parts["optional"], "`optional`")
        if not symbols or not all(isinstance(name, str) for name in names) or not isinstance(parts["fields"], dict):
            self._fail("an object that an arm makes needs symbols, fields by name and names of optional ones")
        fields = {name: self(item, f".{name[:60]}") for name, item in parts["fields"].items()}
        return Made(symbols[0] if len(symbols) == 1 else tuple(symbols), fields, frozenset(names))

    def _placed(self, found: Any, offset: int) -> Any:
        """Where a tensor without elements stands in its memory belongs to the case."""
        if self._device is None or 0 not in found.shape:
            return found
        return found.new_empty(0).set_(found.untyped_storage(), offset, found.shape, found.stride())


__all__ = ["SCHEMA", "SUFFIX", "CaseFile", "KeptCall", "case_bytes", "case_files", "read_case", "write_case"]
