"""`difftest capture`: run a command with the recorder on, and say what is in a capture. No torch here."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from difftest.errors import CaptureError, UsageError
from difftest.record.format import open_capture
from difftest.record.sites import Settings, chosen


@dataclass(frozen=True)
class SiteLine:
    """One site of one process in a capture.

    Attributes:
        rank: folder of the process.
        site: `module:qualname`.
        calls, complete, raised: how many calls began, ended, and ended by raising.
        steps: first and last step, None when the engine did not say.
        size: bytes of memory behind the calls, as copied.
    """

    rank: str
    site: str
    calls: int
    complete: int
    raised: int
    steps: tuple[int, int] | None
    size: int


@dataclass(frozen=True)
class CallLine:
    """One call in a capture: process, number, number of the call it was made in, site, step, requests, bytes, ended."""

    rank: str
    number: int
    parent: int | None
    site: str
    step: int | None
    request_ids: tuple[str, ...] | None
    size: int
    complete: bool
    raised: str | None


@dataclass(frozen=True)
class Shown:
    """What `difftest capture --show DIR` tables.

    Attributes:
        sites: a line for each process and site.
        calls: a line for each call.
        environments: by process.
        notes: what the recorder said, and what is incomplete, a line each.
        faults: those of the notes that the processes have said on stderr.
        blobs, disk_bytes: files in the blob folder, and bytes of the capture on disk.
    """

    sites: tuple[SiteLine, ...]
    calls: tuple[CallLine, ...]
    environments: Mapping[str, Mapping[str, object]]
    notes: tuple[str, ...]
    blobs: int
    disk_bytes: int
    faults: tuple[str, ...] = ()


def show(path: str | os.PathLike[str]) -> Shown:
    """What is in a capture, from its manifests alone.

    Raises:
        CaptureError: no capture, or damaged.
    """
    capture = open_capture(path)
    sites: list[SiteLine] = []
    calls: list[CallLine] = []
    notes: list[str] = []
    for rank in capture.ranks:
        mine = [
            CallLine(
                rank.name,
                call.number,
                call.parent,
                call.site,
                call.step,
                call.request_ids,
                call.size,
                call.complete,
                call.raised[0] if call.raised else None,
            )
            for call in capture.calls(rank)
        ]
        calls += mine
        for site, count in Counter(line.site for line in mine).items():
            lines = [line for line in mine if line.site == site]
            steps = [line.step for line in lines if line.step is not None]
            sites.append(
                SiteLine(
                    rank.name,
                    site,
                    count,
                    sum(line.complete for line in lines),
                    sum(line.raised is not None for line in lines),
                    (min(steps), max(steps)) if steps else None,
                    sum(line.size for line in lines),
                )
            )
        notes += [f"{rank.name}: {note}" for note in rank.notes]
        if rank.incomplete:
            notes.append(f"{rank.name}: incomplete: {rank.incomplete}")
    files = [entry for entry in Path(path).rglob("*") if entry.is_file() and not entry.is_symlink()]
    return Shown(
        tuple(sites),
        tuple(calls),
        {rank.name: rank.environment for rank in capture.ranks},
        tuple(notes),
        sum(entry.suffix == ".safetensors" for entry in files),
        sum(entry.stat().st_size for entry in files),
        tuple(f"{rank.name}: {fault}" for rank in capture.ranks for fault in rank.faults),
    )


def capture(
    out: str | os.PathLike[str],
    command: Sequence[str],
    site: Sequence[str] = (),
    max_calls: int | None = None,
    max_bytes: int | None = None,
    one_in: int = 1,
    redact: bool = False,
    wait: bool = False,
) -> int:
    """Run a command with the recorder on in every vLLM process that it starts.

    Args:
        out: folder for the capture; must not exist or be empty.
        command: program and arguments.
        site: names, globs or symbols `module:qualname`; without any, the sampler calls of V1 and V2.
        max_calls, max_bytes: limits for each process.
        one_in: record one step in so many.
        redact: replace request ids by hashes whose key is thrown away.
        wait: inputs are on disk before each call goes on, so that they outlive the machine, too. Slow.

    Returns:
        The command's exit code; 128 + n when signal n ended it; 3 when it succeeded and nothing was recorded.

    Raises:
        UsageError: the folder is in use, a site does not exist, the command cannot be started.
    """
    folder = Path(out).absolute()
    if not command:
        raise UsageError("capture needs a command: difftest capture --out DIR -- COMMAND...")
    for name, value, least in (("max-calls", max_calls, 0), ("max-bytes", max_bytes, 0), ("one-in", one_in, 1)):
        if value is not None and value < least:
            raise UsageError(f"--{name} {value}: at least {least}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {out}: there is something in it already; name a new folder")
    settings = Settings(
        str(folder), chosen(site), max_calls, max_bytes, one_in, secrets.token_hex(16) if redact else "", wait
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be made: {error.strerror}; name another folder") from None
    try:
        process = subprocess.Popen(list(command), env={**os.environ, **settings.to_environment()})
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}; name a program after --") from None
    code = _wait(process)
    settle(folder)
    for left in (folder / "blobs").glob(".*"):
        left.unlink(missing_ok=True)
    if not any(folder.glob("rank-*")):
        print(
            f"nothing was recorded in {out}: no process that the command started called "
            f"{', '.join(settings.sites)} once vLLM or pytest had loaded its plugins, as an engine does at its start; "
            "difftest must be installed where vLLM runs, and code that uses a sampler with neither of them must call "
            "difftest.record.plugin.register() first",
            file=sys.stderr,
        )
        return code or 3
    try:
        shown = show(folder)
    except CaptureError as error:  # such as one that could not even begin, for want of space
        print(
            f"nothing was recorded in {out}: {error.fault}; what stopped the recording is said above", file=sys.stderr
        )
        return code or 3
    _say(shown, out)
    called = {line.site for line in shown.sites}
    for symbol in settings.sites if site else ():
        if symbol not in called:
            print(f"  no call of {symbol} was recorded")
    return code if shown.calls else code or 3


def settle(folder: Path, seconds: float = 60.0) -> bool:
    """Wait for the processes that still write a capture, as after the engine was killed; whether they ended in time."""
    ends = time.monotonic() + seconds
    for manifest in folder.glob("rank-*/manifest.jsonl"):
        with manifest.open("rb") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > ends:
                        return False
                    time.sleep(0.02)
    return True


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code as a shell gives it. A Ctrl-C reaches the command by itself; here it is waited for."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    forwarded = signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    try:
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, forwarded)
    return code if code >= 0 else 128 - code


def _say(shown: Shown, out: str | os.PathLike[str]) -> None:
    ranks = len(shown.environments)
    print(
        f"{len(shown.calls)} calls of {ranks} {'process' if ranks == 1 else 'processes'} recorded in {out}, "
        f"{shown.disk_bytes} bytes on disk"
    )
    for note in shown.notes:
        rank = note.partition(":")[0]
        print(f"  {rank}: the recording stopped, for the reason above" if note in shown.faults else f"  {note}")
