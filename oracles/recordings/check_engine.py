"""Whether capturing a real engine leaves it alone: the same tokens with capture on and off, for five seeds.

    python oracles/recordings/check_engine.py

Run it in an environment with vLLM for CPUs and difftest (`make capture-demo` leaves one in .venv-engine).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from make_recordings import RECORDINGS, engine_command, prepare, set_environment  # type: ignore[import-not-found]

from difftest.record.format import open_capture
from difftest.record.sites import Settings, chosen

SEEDS = 5


def tokens(command: list[str], environment: dict[str, str]) -> list[list[int]]:
    """The tokens of an engine's run: a list for each seed and request."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"check-engine: the engine failed: {done.stderr[-2000:]}")
    found = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("[["))
    return [list(row) for row in json.loads(found)]


def main() -> int:
    # Without speculation: with it the engine fails on a CPU unless the plugin mends it, and so not with capture off.
    recording = replace(next(r for r in RECORDINGS if r.name == "v1-plain-mixed"), ranks=1)
    with tempfile.TemporaryDirectory() as scratch:
        models, backend = prepare(Path(scratch))
        set_environment(recording, backend)
        # In one process, so that all requests are there at the first step; else unseeded ones draw in another order.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        command = engine_command(recording, models, SEEDS)
        off = tokens(command, dict(os.environ))
        on = tokens(command, {**os.environ, **Settings(f"{scratch}/on", chosen(())).to_environment()})
        calls = sum(rank.complete for rank in open_capture(f"{scratch}/on").ranks)
        same = sum(a == b for a, b in zip(off, on, strict=True))
        print(
            f"{same} of {len(off)} requests have the same tokens with capture on and off, {SEEDS} seeds, {calls} calls"
        )
    return 0 if same == len(off) and calls else 1


if __name__ == "__main__":
    sys.exit(main())
