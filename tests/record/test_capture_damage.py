"""Two thousand damaged captures: each is refused in one line, or read as what it says; nothing else may happen.

Damage of the first kind does not know the format: bits, lengths, files. It must be found, or change nothing that is
read. Damage of the second kind puts a checksum under what it forged, as an attacker would.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import BLIND, Victim, forge, nested
from recorded_calls import tiny_capture

from difftest.call.freeze import Freezer
from difftest.errors import CaptureError
from difftest.record.command import show
from difftest.record.format import RecordedGenerator, open_capture
from difftest.record.lines import seal, unseal

LIMIT = 8 << 20

_watched: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is None:
        return
    if event == "open":
        _, mode, flags = arguments
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & writes):
            _watched.append(f"{event} {arguments}")
    elif event in ("exec", "compile", "import", "pickle.find_class") or event.startswith(
        ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "subprocess")
    ):
        _watched.append(f"{event} {arguments}")


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def nothing_is_left_of_earlier_tests() -> None:
    """What they no longer use may be written to a cache when it is collected, which is no doing of a capture's."""
    gc.collect()


def read_all(path: Path) -> list[Any]:
    """Everything that can be read of a capture, frozen; an incomplete rank adds what is missing."""
    capture = open_capture(path, max_bytes=LIMIT)
    found: list[Any] = []
    for rank in capture.ranks:
        for call in capture.calls(rank):
            inputs = call.inputs()
            freeze = Freezer(whole=True)
            values = [freeze(inputs.args), freeze(inputs.kwargs), freeze(call.rng_before), freeze(call.rng_after)]
            values.append(freeze(dict(call.generators_after or {})))
            if call.complete:
                values.append(freeze(call.output()) if call.raised is None else call.raised)
            for node in inputs.args:
                if isinstance(node, RecordedGenerator):
                    node.make()
            found.append((rank.name, call.number, call.site, call.step, call.request_ids, call.opaque, values))
        if rank.incomplete:
            found.append((rank.name, rank.incomplete))
    return found


def attempt(path: Path) -> list[Any] | str:
    """What is read, or the line that refuses it. Any other exception, write, or import is a failed test."""
    global _watched
    _watched = []
    try:
        read = read_all(path)
        shown: Any = show(path)
        assert shown
        return read
    except CaptureError as error:
        text = str(error)
        assert "\n" not in text and len(text) < 1000, text
        assert str(path) in text
        return text
    finally:
        events, _watched = _watched, None
        assert events == []


def apart(read: list[Any], whole: list[Any]) -> list[Any]:
    """What a damaged capture gave that the whole one does not have, but for what it says to be missing."""
    if any(len(item) == 2 for item in read):
        known = {item[:3] for item in whole}
        return [item for item in read if len(item) != 2 and item[:3] not in known]
    return [] if read == whole else [item for item in read if item not in whole] or ["something is missing"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "original"
    tiny_capture(path, steps=1)
    tiny_capture(path, steps=1)
    (path / "rank-0.2").rename(path / "rank-0.7")
    return path


def test_blind_damage_is_refused_or_changes_nothing_that_is_read(original: Path) -> None:
    whole = read_all(original)
    victim = Victim(original, original.parent / "blind")
    refused = 0
    for seed in range(1000):
        rng = random.Random(seed)
        rng.choice(BLIND)(rng, victim.path)
        found = attempt(victim.path)
        victim.mend()
        if isinstance(found, str):
            refused += 1
        else:
            assert apart(found, whole) == [], seed
    assert refused > 700


def test_forged_lines_are_refused_or_read_as_they_say(original: Path) -> None:
    victim = Victim(original, original.parent / "forged")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for seed in range(1000):
        rng = random.Random(seed)
        forge(rng, victim.path)
        refused += isinstance(attempt(victim.path), str)
        victim.mend()
    assert refused > 400
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, f"{grown} KB more memory: something large was taken before it was refused"


def forged(original: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """What refuses a capture whose first call's record was changed and sealed again."""
    path = Victim(original, original.parent / "one").path
    manifest = path / "rank-0" / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    shared = [record["is"] for record in records if record["record"] == "value"]
    number = next(i for i, record in enumerate(records) if record["record"] == "begin")
    record = records[number]
    del record["sha256"]
    record["storages"] = [dict(shared[entry["value"]]) if "value" in entry else entry for entry in record["storages"]]
    change(record)
    lines[number] = seal(record)
    manifest.write_bytes(b"".join(lines))
    found = attempt(path)
    assert isinstance(found, str)
    return found


def test_each_fault_is_named(original: Path) -> None:
    def tensor(record: dict[str, Any]) -> Any:
        return record["args"][1]["tensor"]

    def storage(record: dict[str, Any]) -> Any:
        return record["storages"][tensor(record)["storage"]]

    assert "manifest.jsonl: line " in forged(original, lambda r: tensor(r).update(shape=[2**40], strides=[0]))
    assert "bytes allowed" in forged(original, lambda r: tensor(r).update(shape=[2**40], strides=[0]))
    assert "args[1]" in forged(original, lambda r: tensor(r).update(strides=[4000, 1]))
    assert "reaches outside its storage" in forged(original, lambda r: tensor(r).update(strides=[4000, 1]))
    assert "no known torch dtype" in forged(original, lambda r: tensor(r).update(dtype="load"))
    assert "is no blob name" in forged(original, lambda r: r["states"][0].update(blob="../" * 20))
    assert "cannot be read" in forged(original, lambda r: r["states"][0].update(blob="0" * 64))
    assert "not within" in forged(original, lambda r: storage(r).update(size=2**20))
    assert "reaches outside" in forged(original, lambda r: storage(r).update(size=4, data="AAAAAA=="))
    assert "bytes of data where" in forged(original, lambda r: storage(r).update(size=481, whole=481))
    assert "allowed" in forged(original, lambda r: storage(r).update(size=2**40, whole=2**40))
    assert "nested too deeply" in forged(original, lambda r: r["args"].append(nested(100)))
    assert "shared values" in forged(original, lambda r: r["args"].append({"value": 1000}))
    assert "no earlier value" in forged(original, lambda r: r["args"].append({"again": 1000}))
    assert "needs exactly" in forged(original, lambda r: r.pop("rng"))


def test_shared_values_cannot_grow_without_end(original: Path) -> None:
    path = Victim(original, original.parent / "bomb").path
    manifest = path / "rank-0" / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)[:1]
    for value in range(60):
        node = [{"value": value - 1}] * 10 if value else [[]]
        lines.append(seal({"record": "value", "n": len(lines), "value": value, "is": node}))
    begin = next(json.loads(line) for line in manifest.read_bytes().splitlines() if b'"record":"begin"' in line)
    del begin["sha256"]
    lines.append(seal(begin | {"n": len(lines), "args": [{"value": 50}], "storages": []}))
    manifest.write_bytes(b"".join(lines))
    started = time.process_time()
    found = attempt(path)
    assert isinstance(found, str) and ("nested too deeply" in found or "more than" in found)
    assert time.process_time() - started < 20


def test_nesting_that_json_itself_cannot_follow_is_refused() -> None:
    body = b'{"record":"note","deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    line = body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    with pytest.raises(CaptureError, match="nested too deeply"):
        unseal(line, "line 1")


def test_a_line_that_is_too_long_is_refused_before_it_is_read(original: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("difftest.record.lines.MAX_LINE", 500)
    found = attempt(original)
    assert isinstance(found, str) and "longer than 500 bytes" in found
