"""`difftest replay`: the calls of captures, made again on both versions, from the recorded state. No torch.

A replay is a run over recorded cases alone, in which targets whose code is the same are executed as well: it also
says whether base does what was recorded.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from difftest import api
from difftest.errors import UsageError
from difftest.record.cases import open_captures
from difftest.record.format import Capture, Rank
from difftest.result import RunResult
from difftest.run.supervisor import Supervisor


def replay(
    captures: Sequence[str | os.PathLike[str]],
    base: str,
    heads: Sequence[str],
    repeat: int = 5,
    observer: api.Observer | None = None,
    supervisor: Supervisor | None = None,
    **options: Any,
) -> RunResult:
    """Replay captures on base and heads.

    Every recorded call that ended is made `repeat` times in each arm, from the recorded arguments and generator
    states; all of them must come out the same, in base and head, byte for byte. The result's targets have counts by
    process in `recorded`; its notes say what is missing of a capture and how ranks fit together.

    Args:
        captures: folders.
        base: the tree that was captured.
        heads: the trees in question.
        repeat: calls in each arm, at least 1.
        observer: is told how it goes.
        supervisor: as :func:`difftest.api.run` takes one.
        options: further fields of :class:`difftest.api.RunOptions`.

    Raises:
        CaptureError: no capture, or damaged.
        DifftestError: the request cannot be carried out.
    """
    paths = tuple(Path(path) for path in captures)
    if not paths:
        raise UsageError("no capture to replay; name a folder that difftest capture wrote")
    notes = [note for capture in open_captures(paths) for note in capture_notes(capture, len(paths) > 1)]
    options.setdefault("command", "")
    request = api.RunOptions(
        base=base,
        heads=tuple(heads),
        cases=("recorded",),
        recorded=paths,
        repeat=repeat,
        execute_same=True,
        **options,
    )
    result = api.run(request, observer, supervisor)
    return replace(result, notes=(*result.notes, *notes))


def capture_notes(capture: Capture, named: bool = False) -> list[str]:
    """What the reader of a replay must know of a capture: what is missing, whether its ranks fit, where it was made.

    Args:
        named: begin each note with the capture's name.
    """
    found: list[str] = []
    for rank in capture.ranks:
        if rank.incomplete:
            found.append(f"{rank.name} is incomplete: {rank.incomplete}; what ended was replayed")
        found += [f"{rank.name}: {note}" for note in rank.notes]
    sizes = {rank.world_size for rank in capture.ranks}
    there = {rank.rank for rank in capture.ranks}
    if missing := sorted(set(range(max(sizes))) - there):
        found.append(f"no recording of rank {', '.join(map(str, missing))} of {max(sizes)}")
    found += _joined(capture)
    found += _made_elsewhere(capture.ranks[0])
    prefix = f"{capture.path.resolve().name}: " if named else ""
    return [prefix + note for note in found]


def _joined(capture: Capture) -> list[str]:
    """Steps in which the ranks did not call the same sites equally often, or for other requests."""
    steps: list[Counter[tuple[str, int | None]]] = []
    requests: dict[tuple[str, int | None], tuple[str, ...] | None] = {}
    found: dict[str, None] = {}
    lowest = capture.ranks[0].rank
    first: Counter[tuple[str, int | None]] = Counter()
    for rank in capture.ranks:
        calls: Counter[tuple[str, int | None]] = Counter()
        for call in capture.calls(rank):
            if not call.complete:
                continue
            key = (call.site, call.step)
            calls[key] += 1
            if rank.rank == lowest:
                requests.setdefault(key, call.request_ids)
            elif key in requests and requests[key] != call.request_ids:
                found.setdefault(f"{rank.name} had other requests than rank {lowest} in step {call.step}")
        if rank.rank == lowest:
            first += calls
        else:
            steps.append(calls)
            if apart := [key for key in {**first, **calls} if first[key] != calls[key]]:
                site, step = min(apart, key=str)
                found.setdefault(
                    f"{rank.name} and rank {lowest} did not record the same calls in {len(apart)} steps and sites, "
                    f"first {site} in step {step}: {calls[(site, step)]} and {first[(site, step)]}"
                )
    return list(found)[:5]


def _made_elsewhere(rank: Rank) -> list[str]:
    """In what the recording was made under other versions than there are here: floats may differ for that alone."""
    versions: dict[str, str] = dict(rank.environment.get("versions", {}))
    differing = []
    for name in ("torch", "triton", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            here = metadata.version(name)
            if name in versions and versions[name] != here:
                differing.append(f"{name} {versions[name]} (here {here})")
    if (machine := rank.environment.get("machine")) and machine != platform.machine():
        differing.append(f"{machine} (here {platform.machine()})")
    return [f"recorded with {', '.join(differing)}"] if differing else []
