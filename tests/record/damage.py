"""Ways to damage a capture: some that know nothing of its format, and one that puts a checksum under what it forges."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from difftest.record.lines import seal


def files(path: Path) -> list[Path]:
    return sorted(entry for entry in path.rglob("*") if entry.is_file())


# Damage that does not know the format.


def truncate(rng: random.Random, path: Path) -> None:
    victim = rng.choice(files(path))
    os.truncate(victim, rng.randrange(victim.stat().st_size))


def flip(rng: random.Random, path: Path) -> None:
    victim = rng.choice(files(path))
    data = bytearray(victim.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 5))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    victim.write_bytes(data)


def swap(rng: random.Random, path: Path) -> None:
    first, second = rng.sample(files(path / "blobs"), 2)
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def lose(rng: random.Random, path: Path) -> None:
    rng.choice(files(path)).unlink()


def insert(rng: random.Random, path: Path) -> None:
    victim = rng.choice(files(path))
    data = victim.read_bytes()
    place = rng.randrange(len(data) + 1)
    victim.write_bytes(data[:place] + rng.randbytes(rng.choice((1, 8, 100))) + data[place:])


def shuffle_lines(rng: random.Random, path: Path) -> None:
    victim = rng.choice(sorted(path.glob("rank-*/manifest.jsonl")))
    lines = victim.read_bytes().splitlines(keepends=True)
    place = rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            lines.insert(place, lines[place])
        case 1:
            del lines[place]
        case 2:
            rng.shuffle(lines)
    victim.write_bytes(b"".join(lines))


def not_a_file(rng: random.Random, path: Path) -> None:
    victim = rng.choice(files(path))
    outside = path.parent / "outside"
    outside.write_bytes(victim.read_bytes())
    victim.unlink()
    match rng.randrange(3):
        case 0:
            victim.symlink_to(outside)
        case 1:
            victim.mkdir()
        case 2:
            os.mkfifo(victim)


# Damage with a checksum under it.

EVIL: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice((-1, 0, 1, 2, 7, 2**31, 2**48, 2**63, 2**64, 10**30, -(2**63))),
    lambda rng: rng.choice(("../../../etc/passwd", "/etc/passwd", "rank-0/manifest.jsonl", "\0", "a\nb", "x" * 5000)),
    lambda rng: rng.choice((None, True, 1.5, -0.0, 1e308, [], {}, [[]], [0] * 50, "", "0" * 64, "f" * 64)),
    lambda rng: rng.choice(("os:system", "float32", "float64", "int8", "object", "|O", "<U5", "<f8", "cuda:9", "meta")),
    lambda rng: {rng.choice(("again", "tuple", "dict", "set", "size", "opaque")): rng.choice(([], 0, 99, "x", [[1]]))},
    lambda rng: {"tensor": {"storage": 0, "dtype": "float32", "offset": 0, "shape": [2**40], "strides": [0]}},
    lambda rng: {"tensor": {"storage": 0, "dtype": "float64", "offset": 5, "shape": [99, 9], "strides": [7, -1]}},
    lambda rng: {"ndarray": {"storage": 0, "dtype": "<f8", "offset": 8, "shape": [2, 2], "strides": [-8, 99]}},
    lambda rng: nested(rng.choice((10, 70, 150))),
]  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"tuple": [value]} if depth != 70 else [value]
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from places(item)


def forge(rng: random.Random, path: Path) -> None:
    victim = path / "rank-0" / "manifest.jsonl"
    lines = victim.read_bytes().splitlines(keepends=True)
    number = rng.randrange(len(lines))
    record = json.loads(lines[number])
    del record["sha256"]
    for _ in range(rng.choice((1, 1, 2))):
        inside = [place for place in places(record) if rng.random() < 0.5] or list(places(record))
        container, key = rng.choice(inside)
        match rng.randrange(5):
            case 0 if isinstance(container, dict):
                container.pop(key, None)
            case 1 if isinstance(container, dict):
                container[rng.choice(("blob", "data", "extra", "tensor"))] = rng.choice(EVIL)(rng)
            case 2 if isinstance(container, dict):
                other, other_key = rng.choice(list(places(record)))
                container[key] = json.loads(json.dumps(other.get(other_key) if isinstance(other, dict) else None))
            case _ if key in container or isinstance(container, list):
                container[key if isinstance(container, dict) else min(key, len(container) - 1)] = rng.choice(EVIL)(rng)
    lines[number] = seal(record)
    victim.write_bytes(b"".join(lines))


def forge_inputs_after(rng: random.Random, path: Path) -> None:
    """What an `end` says of the inputs after its call: other bytes of the right size, or what no recorder writes."""
    victim = path / "rank-0" / "manifest.jsonl"
    lines = victim.read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    number = rng.choice([i for i, record in enumerate(records) if record["record"] == "end"])
    begin = next(r for r in records if r["record"] == "begin" and r["call"] == records[number]["call"])
    shared = [record["is"] for record in records if record["record"] == "value"]
    storages = [shared[entry["value"]] if "value" in entry else entry for entry in begin["storages"]]
    entries = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        which = rng.randrange(len(storages))
        size = storages[which]["size"]
        data = base64.b64encode(rng.randbytes(size if size < 100_000 else 1)).decode()
        entry: Any = {"storage": which, "size": size, "data": data}
        if rng.random() < 0.7:
            entry[rng.choice(("storage", "size", "data", "blob", "start", "whole", "device"))] = rng.choice(EVIL)(rng)
        if rng.random() < 0.2:
            del entry[rng.choice(("storage", "size", "data"))]
        entries.append(entry if rng.random() < 0.9 else rng.choice(EVIL)(rng))
    record = records[number]
    del record["sha256"]
    record["inputs"] = entries if rng.random() < 0.9 else rng.choice(EVIL)(rng)
    lines[number] = seal(record)
    victim.write_bytes(b"".join(lines))


class Victim:
    """One copy of a capture, damaged and mended again and again; only what changed is written."""

    def __init__(self, original: Path, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(original, path)
        self.path = path
        self.whole = {entry: entry.read_bytes() for entry in files(path)}

    def mend(self) -> None:
        """Undo the damage."""
        for entry, data in self.whole.items():
            if entry.is_symlink() or entry.is_fifo():
                entry.unlink()
            elif entry.is_dir():
                entry.rmdir()
            if not entry.exists() or entry.read_bytes() != data:
                entry.write_bytes(data)


BLIND = (truncate, flip, flip, flip, swap, lose, insert, shuffle_lines, not_a_file)
