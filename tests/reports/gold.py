"""Gold files: what a report looked like when a person last read it and found it right."""

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "gold"


def scrubbed(text: str) -> str:
    """`text` without durations and without spaces at line ends."""
    text = re.sub(r"\b\d+(\.\d+)? s\b", "N s", text)
    text = re.sub(r'\btime="[^"]*"', 'time="N"', text)
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def compare(name: str, text: str) -> None:
    """Assert that `text` is what the gold file holds; GOLD=write in the environment writes it first."""
    path = FOLDER / name
    if os.environ.get("GOLD") == "write":
        path.write_text(scrubbed(text), encoding="utf-8")
    assert scrubbed(text) == path.read_text(encoding="utf-8"), f"{name} changed; read it, then GOLD=write pytest"
