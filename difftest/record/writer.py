"""Writes what the recorder took: one process's manifest and its blobs. Used by one background thread.

All that is slow and can wait is done here, and little of it in Python: the engine's own thread needs the interpreter.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import itertools
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from difftest import __version__
from difftest.record.decode import INLINE
from difftest.record.encode import Again, Buffer, Memory, Pack, Rows, cuda_in_use
from difftest.record.lines import SCHEMA, seal_text, write_blob

_VALUE = 400
"""Characters from which on a part of a value is written once and then referred to."""

_ENTRY = 60
"""The same for the description of a storage."""

_KNOWN_BYTES = 32 << 20
"""Bytes of small blobs that are kept, to know them when they come again: generator states hardly change."""

_PLAIN = (int, str, bool, float, type(None))


@dataclass(slots=True)
class Item:
    """A record on its way to the writer: its JSON, the memory and states behind it, and when its copies are there.

    Attributes:
        record: the manifest's record, but for storages and states.
        memory: of its storages, by number.
        states: of its generators, by number.
        again: of an `end`, input storages after the call.
        ready: the copies on a device are made when this has happened.
        size: bytes of all that.
    """

    record: dict[str, Any]
    memory: list[Memory] = field(default_factory=list)
    states: list[bytes | torch.Tensor] = field(default_factory=list)
    again: list[Again] = field(default_factory=list)
    ready: torch.cuda.Event | None = None
    size: int = 0


@dataclass(frozen=True)
class Limits:
    """What was to be recorded, as the manifest says it."""

    max_calls: int | None
    max_bytes: int | None
    one_in: int


class Writer:
    """Writes one process's manifest and its blobs.

    Args:
        out: the capture folder.
        sites: what is recorded.
        engine_fixes: faults of the engine that are worked around.
        limits: how much is recorded.

    Attributes:
        written: bytes so far.

    Raises:
        OSError: the files cannot be made.
    """

    def __init__(self, out: Path, sites: list[str], engine_fixes: list[str], limits: Limits) -> None:
        self.written = 0
        self._lines = 0
        self._blobs = out / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._values: dict[bytes, int] = {}
        self._known: dict[bytes, dict[str, Any]] = {}
        self._known_bytes = 0
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._relaxed = False
        rank, world_size = _rank()
        folder = _own_folder(out, rank)
        self._file = (folder / "manifest.jsonl").open("xb", buffering=0)
        self._line(
            {
                "record": "open",
                "schema": SCHEMA,
                "rank": rank,
                "world_size": world_size,
                "pid": os.getpid(),
                "environment": environment() | {"engine_fixes": list(engine_fixes)},
                "sites": list(sites),
                "limits": {"max_calls": limits.max_calls, "max_bytes": limits.max_bytes, "one_in": limits.one_in},
            }
        )

    def write(self, item: Item) -> None:
        """Write a record with all that it refers to.

        Raises:
            OSError: it cannot be written.
        """
        record, parts = item.record, {}
        if record["record"] in ("begin", "end"):
            if item.ready is not None:
                if not self._relaxed:
                    self._relaxed = True
                    relax_graph_capture()
                item.ready.synchronize()
            packs: dict[int, Any] = {}
            storages = [self._memory(memory, packs) for memory in item.memory]
            parts["storages"] = _list([self._once(_json(entry), _ENTRY) for entry in storages])
            parts["states"] = _json([self._data(_state(state)) for state in item.states])
            if record["record"] == "begin":
                record = record.copy()
                args, kwargs = record.pop("args"), record.pop("kwargs")
                parts["args"] = _list([self._text(node) for node in args])
                parts["kwargs"] = _object({name: self._text(node) for name, node in kwargs.items()})
            else:
                record = record.copy()
                parts["result"] = self._text(record.pop("result"))
                parts["inputs"] = _json([entry for again in item.again for entry in self._after(again, packs)])
        self._line(record, parts)
        if record["record"] == "close":
            self._file.close()

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
        if kind is Rows:
            return self._once(_list([self._once(_json(row), _VALUE) for row in node.lists()]), _VALUE)
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

    def _after(self, again: Again, packs: dict[int, Any]) -> list[dict[str, Any]]:
        """An input storage after the call: its entry; none when it is as before."""
        before, after = (self._bytes(memory, packs) for memory in (again.before, again.after))
        if before == after:
            return []
        return [{"storage": again.number, **self._data(after)}]

    def _memory(self, memory: Memory, packs: dict[int, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = {"start": memory.start, "whole": memory.whole, "device": memory.device}
        if memory.input is not None:
            entry["input"] = memory.input
        if memory.data is None:
            return entry | {"size": memory.size, "omitted": True}
        return entry | self._data(self._bytes(memory, packs))

    def _bytes(self, memory: Memory, packs: dict[int, Any]) -> bytes | memoryview:
        """The bytes on the CPU; those of a pack are fetched once."""
        data = memory.data
        if isinstance(data, bytes):
            return data
        if isinstance(data, Buffer):
            return memoryview(data.tensor.numpy())  # type: ignore[arg-type]
        if isinstance(data, Pack):
            view = packs.get(id(data))
            if view is None:
                view = packs[id(data)] = self._on_cpu(data.data)
            return bytes(view[memory.at : memory.at + memory.size])
        assert data is not None
        return self._on_cpu(data)

    def _on_cpu(self, tensor: torch.Tensor) -> memoryview:
        if tensor.is_cuda:
            stream = self._streams.setdefault(tensor.device, torch.cuda.Stream(tensor.device))  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                tensor = tensor.cpu()
        return memoryview(tensor.numpy())  # type: ignore[arg-type]

    def _data(self, data: bytes | memoryview) -> dict[str, Any]:
        if len(data) <= INLINE:
            return {"size": len(data), "data": base64.b64encode(data).decode()}
        known = self._known.get(data) if type(data) is bytes else None
        if known is not None:
            return known
        name, added = write_blob(self._blobs, data)
        self.written += added
        found = {"size": len(data), "blob": name}
        if type(data) is bytes:
            if self._known_bytes + len(data) > _KNOWN_BYTES:
                self._known.clear()
                self._known_bytes = 0
            self._known[data] = found
            self._known_bytes += len(data)
        return found


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


def _state(state: bytes | torch.Tensor) -> bytes:
    if isinstance(state, bytes):
        return state
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _list(texts: list[str]) -> str:
    return f"[{','.join(texts)}]"


def _object(texts: Mapping[str, str]) -> str:
    return f"{{{','.join([f'{_string(key)}:{text}' for key, text in texts.items()])}}}"


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


def relax_graph_capture() -> None:
    """Let this thread wait for a device and copy from it while another thread captures a CUDA graph.

    In the default mode, such calls of any thread end the capture with an error. That is
    `cuThreadExchangeStreamCaptureMode` of the CUDA driver, with CU_STREAM_CAPTURE_MODE_RELAXED.

    Raises:
        OSError: there is no driver library.
    """
    relaxed = ctypes.c_int(2)
    status = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))
    if status:
        raise RuntimeError(f"cuThreadExchangeStreamCaptureMode: error {status} of the CUDA driver")
