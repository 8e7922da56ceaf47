"""After a run: the differing cases made small in the same worker, and a folder for each. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from difftest.errors import UsageError
from difftest.result import Identity, Kind, Reduced, TargetResult
from difftest.run.found import file_name
from difftest.run.plan import ArmSource
from difftest.run.supervisor import Supervisor, Unit
from difftest.shrink.groups import found_file, groups, position, whole_numbers
from difftest.shrink.reproducer import write_folder

DEATHS = 60
"""Children that may die while one case is reduced: of a crash, every step costs one."""


@dataclass(frozen=True)
class Found:
    """A target that differs.

    Attributes:
        unit: one of its units; the others are of the same target and arms.
        mismatches: of all its units, in the order in which they are shown.
        result: its result so far.
        base, head: the trees.
    """

    unit: Unit
    mismatches: Sequence[Mapping[str, Any]]
    result: TargetResult
    base: Identity
    head: Identity


@dataclass(frozen=True)
class Request:
    """How the differing cases are to be reduced.

    Attributes:
        out: folder for what is found.
        seconds: for one case.
        repo: git repository of the revisions, None when there is none.
        repo_named: it was named; the command that shows a case names it, too.
        options: `device`, `host`, `exceptions`, `seed`, `cases_from` of the run, for the reproducer.
        environment: of the run.
    """

    out: Path
    seconds: float
    repo: Path | None
    repo_named: bool
    options: Mapping[str, Any]
    environment: Mapping[str, Any]


def reduce_found(
    supervisor: Supervisor,
    arms: Mapping[str, ArmSource],
    run_options: Mapping[str, Any],
    found: Sequence[Found],
    request: Request,
) -> tuple[list[TargetResult], list[str]]:
    """Reduce the first mismatch of each group and write its folder.

    Returns:
        The results with what came of it, and the folders that could not be written, in words.

    Raises:
        DifftestError: the worker failed.
    """
    home = supervisor.scratch / "home"
    units: list[Unit] = []
    tasks: list[list[Unit]] = []
    for item in found:
        chosen = groups(item.mismatches)
        tasks.append([])
        for mismatches in chosen:
            number = len(units)
            choices = [
                {
                    "index": mismatch["number"],
                    "file": str(found_file(home, mismatch["case"])) if mismatch["drawn"] else "",
                    "case": mismatch["case"],
                    "position": position(mismatch),
                    "ids": whole_numbers(mismatch),
                    "direction": mismatch["direction"],
                }
                for mismatch in mismatches
            ]
            task = {
                "choices": choices,
                "kind": mismatches[0]["kind"],
                "leaf": mismatches[0]["leaf"],
                "place": mismatches[0]["place"],
                "seconds": request.seconds,
                "folder": str(home / f"reduce-{number}"),
            }
            # A call that hangs ends the candidate: waiting for it as long as a run does would use up the time.
            timeout = min(item.unit.timeout, max(2.0, request.seconds / 4))
            like = item.unit
            unit = Unit(
                number, like.target, like.symbols, like.arms, (0, 1), timeout, ("reduce", number), task=task,
                patience=DEATHS, first_timeout=0.0 if task["kind"] == Kind.TIMEOUT else like.timeout,
            )  # fmt: skip
            units.append(unit)
            tasks[-1].append(unit)
    options = {**run_options, "expect": [], "examples": None, "seconds": None, "lines": False, "repeat": 1}
    if units:
        supervisor.run(units, arms, options, lambda unit, done: None, lambda unit: None)
    lost: list[str] = []
    return [_with_reduced(item, its, request, lost) for item, its in zip(found, tasks, strict=True)], lost


def _with_reduced(item: Found, units: Sequence[Unit], request: Request, lost: list[str]) -> TargetResult:
    reduced = []
    code = {arm: closure["digest"] for arm, closure in item.result.closure.items()}
    for unit in units:
        assert unit.task is not None
        record = unit.reduced or {"reason": next(iter(unit.unmeasured), "the worker ended before it was done")}
        mismatch = record.get("mismatch")
        if mismatch is None:
            first = unit.task["choices"][0]["case"]
            reason = record["reason"]
            if record.get("no_file"):
                reason += f"; it is shown by: {_by_id(item, first, request)}"
            reduced.append(Reduced(first, unit.task["kind"], unit.task["leaf"], reason=reason))
            continue
        arm = item.unit.arms[1]
        folder = request.out.resolve() / file_name(item.result.name + ("" if arm == "head" else f"-{arm}"))
        # two groups may be found in one case, and what it is reduced to may show both
        taken = {other.case: other.path for other in reduced if other.path and other.original == record["original"]}
        place = folder / (file_name(record["original"]) + (f"-{len(set(taken.values())) + 1}" if taken else ""))
        place = Path(taken.get(record["case"], place))
        text = {
            "record": record, "target": item.result.name, "base": item.base, "head": item.head, "code": code,
            "options": request.options, "environment": request.environment, "repo": request.repo,
        }  # fmt: skip
        if record["case"] not in taken:
            try:
                write_folder(place, Path(unit.task["folder"], str(int(record["choice"]))), text)
            except UsageError as error:
                lost.append(str(error))
                reduced.append(Reduced(record["original"], unit.task["kind"], unit.task["leaf"], reason=str(error)))
                continue
        reduced.append(
            Reduced(
                original=record["original"],
                kind=mismatch["kind"],
                leaf=mismatch["leaf"],
                case=record["case"],
                index=tuple(mismatch["index"]),
                base=mismatch["base"],
                head=mismatch["head"],
                bytes=tuple(record["bytes"]),
                requests=tuple(record["requests"]),
                largest_axis=tuple(record["largest_axis"]),
                executed=record["executed"],
                seconds=record["seconds"],
                path=str(place),
            )
        )
    return replace(item.result, reduced=tuple(reduced))


def _by_id(item: Found, case: str, request: Request) -> str:
    """The command that runs one case of a target."""
    words = ["difftest", "run", *(["--repo", str(request.repo)] if request.repo_named else [])]
    words += ["--base", item.base.spec, "--head", item.head.spec, "--target", item.result.name]
    words += ["--case", case]
    for file in request.options["cases_from"]:
        words += ["--cases-from", file]
    return shlex.join(words)
