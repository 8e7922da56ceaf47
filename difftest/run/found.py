"""What fuzzes found, as case files under the output folder: `DIR/fuzz/TARGET/ID.safetensors`. No torch.

A later run into the same folder begins with them, and `--recorded DIR/fuzz` runs them by themselves.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from difftest.errors import CaptureError, UsageError
from difftest.record.casefile import SUFFIX, CaseFile, case_files, read_case
from difftest.shrink.groups import found_file
from difftest.trees.cache import write_atomic


def file_name(text: str) -> str:
    """The name of a target or a case as that of a file."""
    return re.sub(r"[^\w.-]", "_", text)[:120]


def folder(out: Path) -> Path:
    """Where an output folder keeps what fuzzes found."""
    return out.resolve() / "fuzz"


def check_out(out: Path) -> None:
    """Fail before a run rather than after it if nothing can be written to its output folder. Leaves nothing behind.

    Raises:
        UsageError: nothing can be.
    """
    place = out.absolute()
    missing = [folder for folder in (place, *place.parents) if not folder.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}; name another folder") from None
    finally:
        for made in missing:
            with contextlib.suppress(OSError):  # it was not made, or another run has put something there
                made.rmdir()


def kept(out: Path, target: str) -> list[str]:
    """The case files of a target that earlier runs left.

    Raises:
        CaptureError: one of them is damaged; its message names it.
    """
    place = folder(out) / file_name(target)
    return [str(file.path) for file in (case_files(place) or ()) if file.target == target]


def with_id(out: Path, case: str) -> list[CaseFile]:
    """The case files, of any target, whose id is or begins with this.

    Raises:
        CaptureError: one of them is damaged; its message names it.
    """
    return [read_case(path) for path in sorted(folder(out).glob(f"*/{case}*{SUFFIX}"))]


def keep(out: Path, target: str, home: Path, cases: Iterable[str]) -> list[str]:
    """Copy what children left of a target's cases, given by id, to the output folder.

    Returns:
        The ids of those that are there now; what holds no bytes is not.

    Raises:
        UsageError: it cannot be written.
        CaptureError: what a child left is no case file.
    """
    kept = []
    for case in cases:
        made = found_file(home, case)
        place = folder(out) / file_name(target) / f"{file_name(case)}{SUFFIX}"
        if place.exists():
            kept.append(case)
            continue
        if not made.exists():
            continue
        if read_case(made).id != case:
            raise CaptureError(
                f"{made}: a child left another case than the one it reported", "trust nothing that this head says"
            )
        try:
            write_atomic(place, made.read_bytes())
        except OSError as error:
            raise UsageError(f"{place} cannot be written: {error.strerror or error}; name another --out") from None
        kept.append(case)
    return kept
