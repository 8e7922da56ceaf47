"""Whether capturing a real engine leaves it alone: the same tokens with capture on and off, for five seeds.

    python oracles/recordings/check_engine.py [--core inside|apart]

Run it in an environment with vLLM for CPUs and difftest (`make capture-demo` leaves one in .venv-engine).

Every run is made twice without capture, too: only where the engine agrees with itself can capture be told from chance.
With the engine's core inside the process, all requests are there at the first step and all are compared. With the core
in a process of its own, requests come one by one: which of them share the first batch is a matter of timing, and so is
what requests without a seed draw from the one default generator. There, requests with a seed and greedy ones count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from make_recordings import (  # type: ignore[import-not-found]
    RECORDINGS,
    TEMPERATURES,
    engine_command,
    prepare,
    set_environment,
)

from difftest.record.format import open_capture
from difftest.record.sites import Settings, chosen

SEEDS = 5

# Without speculation: with it the engine fails on a CPU unless the plugin mends it, and so not with capture off.
RECORDING = replace(next(r for r in RECORDINGS if r.name == "v1-plain-mixed"), ranks=1)


def tokens(command: list[str], environment: dict[str, str]) -> list[list[int]]:
    """The tokens of an engine's run: a list for each seed and request."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"check-engine: the engine failed: {done.stderr[-2000:]}")
    found = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("[["))
    return [list(row) for row in json.loads(found)]


def same(one: Sequence[list[int]], other: Sequence[list[int]], rows: Sequence[int]) -> int:
    """How many requests have the same tokens, of those in these rows of each batch."""
    batch = len(RECORDING.seeded)
    return sum(a == b for i, (a, b) in enumerate(zip(one, other, strict=True)) if i % batch in rows)


def check(core: str, out: Path, models: Path) -> bool:
    """Whether the tokens are the same with capture on and off; says how many are."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if core == "inside" else "1"}
    command = engine_command(RECORDING, models, SEEDS)
    off, again = tokens(command, environment), tokens(command, environment)
    on = tokens(command, {**environment, **Settings(str(out), chosen(())).to_environment()})
    calls = sum(rank.complete for rank in open_capture(out).ranks)
    rows = range(len(RECORDING.seeded))
    steady = [row for row in rows if RECORDING.seeded[row] or TEMPERATURES[row] == 0]
    counted = rows if core == "inside" else steady
    good = True
    for name, wanted in (("all requests", rows), ("seeded or greedy ones", steady)):
        control, captured, of = same(off, again, wanted), same(off, on, wanted), SEEDS * len(wanted)
        print(
            f"core {core}, {SEEDS} seeds, {calls} calls recorded, {name}: {captured} of {of} the same with capture on "
            f"and off; {control} of {of} the same twice without capture"
        )
        if wanted is counted:
            good = captured == control == of
    return good and calls > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--core", choices=("inside", "apart"), help="where the engine's core runs; both by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models, backend = prepare(Path(scratch))
        set_environment(RECORDING, backend)
        cores = (options.core,) if options.core else ("inside", "apart")
        found = [check(core, Path(scratch) / core, models) for core in cores]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
