"""Reading a capture: calls of a live engine, one manifest a process, `difftest/schema/capture.json`.

    DIR/rank-0/manifest.jsonl          one JSON object a line: open, value, begin, end, note, close
    DIR/rank-1/manifest.jsonl          the next rank; `rank-0.2` is a second process of the same rank
    DIR/blobs/<sha256>.safetensors     memory behind the values, each content once

Reading runs no code of the capture and imports nothing that it names. torch is imported when a tensor is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

from difftest.errors import CaptureError, UsageError
from difftest.record.decode import (
    Decoder,
    Opaque,
    RecordedEnum,
    RecordedGenerator,
    RecordedMethod,
    RecordedObject,
    RecordedSymbol,
    RngStates,
    Storages,
    generator,
    rng_states,
)
from difftest.record.host import fault_of
from difftest.record.lines import MAX_BYTES, SCHEMA, lines, unseal

__all__ = [
    "SCHEMA",
    "Capture",
    "CaptureError",
    "Inputs",
    "Opaque",
    "Rank",
    "RecordedCall",
    "RecordedEnum",
    "RecordedGenerator",
    "RecordedMethod",
    "RecordedObject",
    "RecordedSymbol",
    "RngStates",
    "open_capture",
    "symbols_of",
]

_RANK = re.compile(r"rank-(\d{1,6})(?:\.(\d{1,6}))?")
_CACHED_VALUES = 10_000
_KEYS = {
    "open": {"schema", "rank", "world_size", "pid", "environment", "sites", "limits"},
    "begin": {
        "call", "parent", "site", "step", "request_ids", "thread", "args", "kwargs", "rng", "storages", "states",
    },
    "end": {"call", "result", "raised", "generators", "rng", "storages", "states"},
    "value": {"value", "is"},
    "note": {"kind", "message", "count"},
    "close": {"reason", "calls"},
}  # fmt: skip
_OPTIONAL = {"end": {"inputs"}}
"""Keys that came later; captures made before do not have them."""


@dataclass(frozen=True)
class Inputs:
    """What a call was given, made anew: changing it changes no other reading.

    Attributes:
        args: positional arguments, `self` among them.
        kwargs: keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class _Span:
    """Where a record is: line, byte offset, bytes."""

    line: int
    offset: int
    size: int


@dataclass(frozen=True)
class Rank:
    """One process of the captured engine.

    Attributes:
        name: its folder, `rank-0`.
        rank, world_size: as torch.distributed has them; 0 of 1 without it.
        environment: versions, device, driver, flags, engine fixes in force, `host` (:mod:`difftest.record.host`).
        sites: what was to be recorded.
        limits: max_calls, max_bytes, one_in.
        calls: how many calls begin in it.
        complete: how many of them also end.
        notes: what the recorder says: calls skipped, dropped, limits reached, faults.
        closed: why the recording ended (`finished`, `limit`, `fault`), None when it was cut off (a kill, a crash).
        torn: whether the last line is not whole.
        faults: those of the notes that say what ended the recording; the process said them on stderr, too.
    """

    name: str
    rank: int
    world_size: int
    environment: Mapping[str, Any]
    sites: tuple[str, ...]
    limits: Mapping[str, Any]
    calls: int
    complete: int
    notes: tuple[str, ...]
    closed: str | None
    torn: bool
    faults: tuple[str, ...] = ()
    _index: tuple[tuple[_Span, _Span | None], ...] = field(repr=False, default=())
    _values: tuple[_Span, ...] = field(repr=False, default=())

    @property
    def incomplete(self) -> str:
        """What is missing of this rank's recording, in words; empty when nothing is."""
        faults = []
        if self.torn:
            faults.append("the last line is torn")
        if self.closed is None:
            faults.append("the recording was cut off")
        if self.calls != self.complete:
            faults.append(f"{self.calls - self.complete} of {self.calls} calls did not end")
        return "; ".join(faults)


class RecordedCall:
    """One call. Values are made on demand, new ones each time.

    Attributes:
        rank: the process that made it.
        number: its number in that process; order of calls.
        parent: number of the recorded call that it was made in, or None.
        site: `module:qualname` of what was called.
        step: number of the engine's step in that process, None when the engine did not say.
        request_ids: of the batch's requests in row order, None when the engine did not say.
        complete: whether its end is recorded; without it there is no result and no state after.
        raised: (class, message) when it raised.
    """

    def __init__(
        self, blobs: Path, rank: Rank, begin: Mapping[str, Any], end: Mapping[str, Any] | None,
        where: tuple[str, str], max_bytes: int, values: Callable[[int], Any],
    ) -> None:  # fmt: skip
        self.rank = rank
        self.number: int = begin["call"]
        self.parent: int | None = begin["parent"]
        self.site: str = begin["site"]
        self.step: int | None = begin["step"]
        self.request_ids: tuple[str, ...] | None = (
            tuple(begin["request_ids"]) if begin["request_ids"] is not None else None
        )
        self.complete = end is not None
        raised = end["raised"] if end is not None else None
        self.raised: tuple[str, str] | None = (raised["class"], raised["message"]) if raised else None
        self._begin = begin
        self._end = end
        self._blobs = blobs
        self._where = where
        self._max_bytes = max_bytes
        self._values = values

    def __repr__(self) -> str:
        return f"<call {self.number} of {self.rank.name}: {self.site}, step {self.step}>"

    @property
    def environment(self) -> Mapping[str, Any]:
        """Of the process: versions, device, driver, flags."""
        return self.rank.environment

    @cached_property
    def _before(self) -> Storages:
        return Storages(
            self._begin["storages"],
            self._begin["states"],
            self._blobs,
            self._where[0],
            self._max_bytes,
            self._values,
        )

    @cached_property
    def _after(self) -> Storages | None:
        if self._end is None:
            return None
        return Storages(
            self._end["storages"],
            self._end["states"],
            self._blobs,
            self._where[1],
            self._max_bytes,
            self._values,
        )

    def inputs(self, device: str = "cpu") -> Inputs:
        """Arguments and keywords, with strides, offsets and everything they share.

        Args:
            device: where tensors go that were not in CPU memory. Those that were stay there.

        Raises:
            CaptureError: a blob is missing or damaged, or a value says something impossible.
        """
        return self._decoded(self._before, device)

    def _decoded(self, storages: Storages, device: str) -> Inputs:
        decode = Decoder(storages, device)
        args = tuple(decode(node, f"args[{i}]") for i, node in enumerate(self._begin["args"]))
        return Inputs(args, {name: decode(node, name) for name, node in self._begin["kwargs"].items()})

    @property
    def changed_inputs(self) -> tuple[int, ...] | None:
        """Numbers of the input storages whose recorded bytes the call changed; None when that was not recorded."""
        if self._changed is None:
            return None
        return tuple(entry["storage"] for entry in self._end["inputs"]) if self._end is not None else None

    def inputs_after(self, device: str = "cpu") -> Inputs | None:
        """The inputs with the memory that they had after the call; what is no tensor or array is as before it.

        Returns:
            None when the call did not end, or its capture does not say.

        Raises:
            CaptureError: as for :meth:`inputs`.
        """
        return None if self._changed is None else self._decoded(self._changed, device)

    @cached_property
    def _changed(self) -> Storages | None:
        if self._end is None or "inputs" not in self._end:
            return None
        return self._before.changed(self._end["inputs"], self._where[1])

    def output(self, device: str = "cpu") -> Any:
        """What the call returned.

        Raises:
            CaptureError: damaged, or the call did not end or raised.
        """
        if self._after is None or self._end is None:
            self._fail(0, "the call did not end; there is no result")
        if self.raised:
            self._fail(1, f"the call raised {self.raised[0][:80]!a}; there is no result")
        return Decoder(self._after, device)(self._end["result"], "result")

    @property
    def args(self) -> tuple[Any, ...]:
        return self.inputs().args

    @property
    def kwargs(self) -> dict[str, Any]:
        return self.inputs().kwargs

    @property
    def result(self) -> Any:
        return self.output()

    @property
    def rng_before(self) -> RngStates:
        """The process-wide generators before the call."""
        return rng_states(self._before, self._begin["rng"])

    @property
    def rng_after(self) -> RngStates | None:
        """The process-wide generators after the call, None when it did not end."""
        if self._after is None or self._end is None:
            return None
        return rng_states(self._after, self._end["rng"])

    @property
    def generators_after(self) -> Mapping[int, RecordedGenerator] | None:
        """The generators among the arguments after the call, by their index; None when it did not end."""
        if self._after is None or self._end is None:
            return None
        found = [generator(self._after, node) for node in self._end["generators"]]
        return {item.index: item for item in found}

    @property
    def shared_with_inputs(self) -> Mapping[int, int]:
        """Output storages that were input memory: number of the output storage to number of the input storage."""
        return self._after.inputs if self._after is not None else {}

    @property
    def size(self) -> int:
        """Bytes of memory behind the call's inputs and outputs, as they were copied (identical ones count twice)."""
        after = self._after
        return self._before.total + (after.total if after is not None else 0)

    @property
    def opaque(self) -> tuple[tuple[str, Opaque], ...]:
        """Where in the inputs something stands that could not be recorded. No tensor is made."""
        decode = Decoder(self._before, None)
        for i, node in enumerate(self._begin["args"]):
            decode(node, f"args[{i}]")
        for name, node in self._begin["kwargs"].items():
            decode(node, name)
        return tuple(decode.opaque)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Code that takes part through the inputs: classes, how they are called, functions. No tensor is made."""
        decode = Decoder(self._before, None)
        values = [decode(node, f"args[{i}]") for i, node in enumerate(self._begin["args"])]
        return symbols_of([*values, *(decode(node, name) for name, node in self._begin["kwargs"].items())])

    def _fail(self, which: int, fault: str) -> NoReturn:
        raise CaptureError(f"{self._where[which]}: {fault}")


def symbols_of(values: Iterable[Any]) -> tuple[str, ...]:
    """Code that recorded values name: their classes, how these are called, functions."""
    found: dict[str, None] = {}
    waiting = list(values)
    met: dict[int, Any] = {}
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | dict | RecordedObject):
            if id(value) in met:
                continue
            met[id(value)] = value
        if isinstance(value, list | tuple | set):
            waiting += value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, RecordedSymbol | RecordedEnum):
            found[value.symbol] = None
        elif isinstance(value, RecordedMethod):
            waiting.append(value.owner)
            if isinstance(value.owner, RecordedObject):
                found[f"{value.owner.symbol}.{value.name}"] = None
        elif isinstance(value, RecordedObject):
            found[value.symbol] = None
            found[f"{value.symbol}.{'forward' if value.kind == 'module' else '__call__'}"] = None
            waiting += value.fields.values()
    return tuple(sorted(found))


class Capture:
    """A capture folder, checked line by line when it is opened; blobs are checked when they are loaded.

    Attributes:
        path: the folder.
        ranks: its processes, by rank.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self.ranks = tuple(self._rank(name) for name in _rank_folders(path))

    def rank(self, rank: Rank | str | int) -> Rank:
        """A process by its folder's name or by its rank (the first of that rank).

        Raises:
            UsageError: there is none.
        """
        for found in self.ranks:
            if rank in (found.name, found.rank) or rank is found:
                return found
        raise UsageError(f"{self.path} has no rank {rank}; it has {', '.join(r.name for r in self.ranks)}")

    def calls(self, rank: Rank | str | int) -> Iterator[RecordedCall]:
        """The calls of one process in the order they began; each is read when its turn comes.

        Raises:
            UsageError: there is no such rank.
            CaptureError: the manifest changed and no longer holds together.
        """
        found = self.rank(rank)
        manifest = self.path / found.name / "manifest.jsonl"

        @lru_cache(_CACHED_VALUES)
        def value(number: int) -> Any:
            if number >= len(found._values):
                raise CaptureError(f"{manifest}: {number} is no number of its {len(found._values)} shared values")
            return self._read(manifest, found._values[number])["is"]

        for begin, end in found._index:
            records = [self._read(manifest, span) for span in (begin, end) if span is not None]
            where = tuple(f"{manifest}: line {span.line}" for span in (begin, end or begin))
            yield RecordedCall(
                self.path / "blobs",
                found,
                records[0],
                records[1] if end is not None else None,
                (where[0], where[1]),
                self._max_bytes,
                value,
            )

    def _read(self, manifest: Path, span: _Span) -> dict[str, Any]:
        try:
            with manifest.open("rb") as file:
                file.seek(span.offset)
                line = file.read(span.size)
        except OSError as error:
            raise CaptureError(
                f"{manifest}: cannot be read: {error.strerror}", "make it readable, or name another"
            ) from None
        return _checked(unseal(line, f"{manifest}: line {span.line}"), f"{manifest}: line {span.line}")

    def _rank(self, name: str) -> Rank:
        manifest = self.path / name / "manifest.jsonl"
        header: dict[str, Any] | None = None
        begins: dict[int, _Span] = {}
        ends: dict[int, _Span] = {}
        values: list[_Span] = []
        notes: list[str] = []
        faults: list[str] = []
        closed: str | None = None
        torn = False
        for number, offset, line in lines(manifest):
            where = f"{manifest}: line {number}"
            if not line.endswith(b"\n"):
                torn = True
                break
            record = _checked(unseal(line, where), where)
            kind, span = record["record"], _Span(number, offset, len(line))
            if record["n"] != number - 1:
                raise CaptureError(f"{where}: it is record {record['n']}; lines were lost, moved or repeated")
            if (kind == "open") != (number == 1):
                raise CaptureError(f"{where}: `open` is the first record and no other")
            if closed is not None:
                raise CaptureError(f"{where}: a record after `close`")
            if kind == "open":
                header = record
            elif kind == "value":
                if record["value"] != len(values):
                    raise CaptureError(f"{where}: shared value {record['value']} where {len(values)} comes next")
                values.append(span)
            elif kind == "note":
                notes.append(
                    f"{record['message']} ({record['count']} times)" if record["count"] > 1 else record["message"]
                )
                faults += notes[-1:] if record["kind"] == "fault" else []
            elif kind == "close":
                closed = record["reason"]
            else:
                place = begins if kind == "begin" else ends
                call = record["call"]
                if call in place:
                    raise CaptureError(f"{where}: call {call} has a second `{kind}`")
                if kind == "end" and call not in begins:
                    raise CaptureError(f"{where}: call {call} ends and never began")
                if kind == "begin" and record["parent"] is not None and record["parent"] not in begins:
                    raise CaptureError(f"{where}: call {call} is inside call {record['parent']}, which never began")
                place[call] = span
        if header is None:
            raise CaptureError(f"{manifest}: no whole record in it")
        expected = _RANK.fullmatch(name)
        if expected is None or int(expected[1]) != header["rank"]:
            raise CaptureError(f"{manifest}: it is the manifest of rank {header['rank']}, in the folder {name}")
        return Rank(
            name,
            header["rank"],
            header["world_size"],
            header["environment"],
            tuple(header["sites"]),
            header["limits"],
            len(begins),
            len(ends),
            tuple(notes),
            closed,
            torn,
            tuple(faults),
            tuple((span, ends.get(call)) for call, span in begins.items()),
            tuple(values),
        )


def open_capture(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Capture:
    """Open a capture folder and check every manifest line. Nothing is written, no tensor is loaded.

    Args:
        path: the folder that `difftest capture` wrote.
        max_bytes: more memory than this behind one call or one tensor is refused.

    Raises:
        CaptureError: no capture, or damaged; one line that names the file and the fault. A torn last line or a call
            without an end is no damage: see :attr:`Rank.incomplete`.
    """
    return Capture(Path(path), max_bytes)


def _rank_folders(path: Path) -> list[str]:
    found = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = _RANK.fullmatch(entry.name)
                if name is None:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    raise CaptureError(f"{path}: {entry.name} is not a folder")
                found.append((int(name[1]), int(name[2] or 1), entry.name))
        blobs = path / "blobs"
        if blobs.is_symlink():
            raise CaptureError(f"{blobs}: not a folder")
    except (OSError, ValueError) as error:
        raise CaptureError(
            f"{path}: cannot be read: {getattr(error, 'strerror', error)}", "make it readable, or name another"
        ) from None
    if not found:
        raise CaptureError(
            f"{path}: no capture: it has no folder rank-<number>", "name the folder that difftest capture wrote"
        )
    return [name for _, _, name in sorted(found)]


def _checked(record: dict[str, Any], where: str) -> dict[str, Any]:
    """The record, once it has the keys of its kind with values of the right types."""

    def need(holds: bool, what: str) -> None:
        if not holds:
            raise CaptureError(f"{where}: {what}")

    def count(name: str) -> bool:
        return type(record[name]) is int and record[name] >= 0

    def text(value: Any) -> bool:
        return isinstance(value, str)

    kind = record.get("record")
    need(text(kind) and kind in _KEYS, f"{str(kind)[:40]!r} is no kind of record")
    keys = _KEYS[str(kind)] | {"record", "n"}
    need(set(record) - _OPTIONAL.get(str(kind), set()) == keys, f"`{kind}` needs exactly {', '.join(sorted(keys))}")
    need(count("n"), "`n` is no count")
    if kind == "open":
        need(record["schema"] == SCHEMA, f"schema {str(record['schema'])[:40]!r}, this reads {SCHEMA}")
        need(count("rank") and count("world_size") and count("pid"), "rank, world_size and pid are counts")
        need(isinstance(record["environment"], dict), "`environment` is no object")
        need(not (fault := fault_of(record["environment"].get("host", {}))), f"`environment`: {fault}")
        need(isinstance(record["limits"], dict), "`limits` is no object")
        need(isinstance(record["sites"], list) and all(map(text, record["sites"])), "`sites` is no list of names")
    elif kind == "begin":
        need(count("call"), "`call` is no count")
        need(record["parent"] is None or count("parent"), "`parent` is no call")
        need(record["step"] is None or count("step"), "`step` is no count")
        need(text(record["site"]) and len(record["site"]) < 500, "`site` is no name")
        ids = record["request_ids"]
        need(ids is None or (isinstance(ids, list) and all(map(text, ids))), "`request_ids` is no list of names")
        need(isinstance(record["args"], list), "`args` is no list")
        need(isinstance(record["kwargs"], dict), "`kwargs` is no object")
    elif kind == "end":
        need(count("call"), "`call` is no count")
        raised = record["raised"]
        need(
            raised is None
            or (isinstance(raised, dict) and set(raised) == {"class", "message"} and all(map(text, raised.values()))),
            "`raised` needs class and message",
        )
        need(isinstance(record["generators"], list), "`generators` is no list")
        need(isinstance(record.get("inputs", []), list), "`inputs` is no list")
    elif kind == "value":
        need(count("value"), "`value` is no count")
    elif kind == "note":
        need(text(record["kind"]) and text(record["message"]) and count("count"), "a note needs kind, message, count")
    else:
        need(text(record["reason"]) and count("calls"), "`close` needs a reason and a count of calls")
    return record
