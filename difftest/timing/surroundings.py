"""What a bench was measured on and under, for its report. No torch here."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from difftest.api import environment


def surroundings(device: str, host: str | None, sandbox: str) -> dict[str, Any]:
    """Versions, processor, load, and what is held fixed while the clock runs."""
    facts: dict[str, Any] = {
        **environment(device, host),
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
        "threads": 1,
        "hash seed": 0,
        "garbage collection": "off while the clock runs; a block's own garbage is collected at its cost",
        "torch.compile": "eager",
    }
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts["processor"] = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown")
    return {**facts, "sandbox": sandbox} if sandbox else facts
