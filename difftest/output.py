"""From a result to the terminal and to files. The renderers are in `reports/`; they are imported when needed."""

from __future__ import annotations

import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from difftest.bisect import Bisection
from difftest.errors import DifftestError, UsageError
from difftest.record.command import Shown
from difftest.record.sites import KNOWN
from difftest.result import EXIT_CODES, RunResult, TargetResult, Verdict
from difftest.survey import TargetSurvey
from difftest.sweep import SCHEMA, SweptCommit, overall
from difftest.timing.result import BenchResult

UNWRAPPED = 100_000
"""Columns of what is no terminal."""

TARGETS_NAMED = 6
"""Targets of a commit that a sweep names for each reason why they were not compared, or on fewer cases."""

ABSENT_EXPLAINED = 10
"""Targets that the trees do not have, up to which `difftest targets` says of each which symbols were looked for; more
are counted, and named when targets were asked for."""


@dataclass(frozen=True)
class Formats:
    """Files to write, checked before the run begins.

    Attributes:
        items: kinds and paths.
        writer: the module that writes them: `difftest.reports` for a run, `difftest.reports.bench_files` for a bench.
    """

    items: tuple[tuple[str, Path], ...]
    writer: str

    @classmethod
    def parse(cls, values: Sequence[str], writer: str = "difftest.reports") -> Formats:
        """Parse `KIND:PATH` values.

        Raises:
            UsageError: an unknown kind, a missing path, or a path that cannot be written.
        """
        reports = importlib.import_module(writer)
        items = []
        for value in values:
            kind, colon, path = value.partition(":")
            if not colon or not path:
                raise UsageError(f"--format {value} should be KIND:PATH, for example json:result.json")
            reports.check_writable(kind, Path(path))
            items.append((kind, Path(path)))
        return cls(tuple(items), writer)

    def write(self, result: RunResult | BenchResult) -> list[str]:
        """Write each file, whatever becomes of the others; what could not be written, in words."""
        reports = importlib.import_module(self.writer)
        lost = []
        for kind, path in self.items:
            try:
                reports.write(result, kind, path)
            except DifftestError as error:
                lost.append(f"the {kind} report is missing: {error}")
        return lost


def deliver(result: Any, shows: Sequence[Callable[[Any, Console], None]], outputs: Formats, lost: list[str]) -> None:
    """Show a result and write its files. A fault of one of them does not keep the others.

    Args:
        shows: what prints it, in order.
        lost: what could not be written so far, in words; receives what cannot be written here.
    """
    try:
        for printed in shows:
            printed(result, stdout())
    finally:
        lost += outputs.write(result)


def check_place(path: Path) -> None:
    """Fail before the work if a file cannot be written.

    Raises:
        UsageError: it cannot be.
    """
    importlib.import_module("difftest.reports").check_place(path)


def write_text(path: Path, text: str) -> None:
    """Write a file whole, or to a stream.

    Raises:
        UsageError: it cannot be written.
    """
    importlib.import_module("difftest.reports").write_text(text, path)


def stdout() -> Console:
    """The console of stdout. Lines are wrapped for a person's terminal only: what is piped is read by programs, too."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=UNWRAPPED)


def show(result: RunResult, console: Console) -> None:
    """The report for a person; its last line is the sentence for a pull request."""
    importlib.import_module("difftest.reports.terminal").render(result, console)


def json_path(formats: Sequence[str]) -> Path | None:
    """The file of `--format json:PATH`, for commands that write nothing else; checked before the work begins."""
    if not formats:
        return None
    if len(formats) > 1 or not formats[0].startswith("json:"):
        raise UsageError(f"--format {formats[-1]} should be json:PATH")
    return Formats.parse(formats).items[0][1]


def show_survey(found: Sequence[TargetSurvey], console: Console, path: Path | None, asked: bool = False) -> None:
    """The catalog as a table: with trees, lines and stand-ins of each target, and what changed in it.

    Args:
        asked: whether the targets were named, which names those that the trees do not have, too.
    """
    rows = [("target", "code", "lines", "stand-ins", "symbol or reason")]
    absent = [item for item in found if item.code == "absent"]
    if len(absent) <= ABSENT_EXPLAINED:
        absent = []
    for item in found:
        if item in absent:
            continue
        lines = str(item.lines) if item.lines else ""
        standins = ", ".join(name.rpartition(".")[2] for name in item.standins)
        rows.append((item.name, item.code, lines, standins, item.reason or item.symbols[0]))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    used = [n for n in range(4) if any(row[n] for row in rows[1:])]
    for row in rows:
        # The last column is never broken: a symbol that a person copies, or greps for, is in one piece.
        cells = [row[n].ljust(widths[n]) for n in used]
        console.print(Text("  ".join([*cells, row[4]]), style="bold" if row is rows[0] else ""), soft_wrap=True)
    if absent and asked:
        console.print(Text(f"\nabsent: {', '.join(item.name for item in absent)}"))
    elif absent:
        console.print(Text(f"\nabsent: {len(absent)} targets of the catalog; --target '*' names them"))
    changed = {name for item in found for name in item.changed}
    if changed:
        console.print(f"\nchanged, added (+) or removed (-) in these closures: {len(changed)}")
        for name in sorted(changed, key=lambda n: n.lstrip("+-")):
            console.print(Text(f"  {name}"))
    counts = Counter(item.code for item in found if item.code)
    if counts:
        console.print("\n" + ", ".join(f"{count} {code}" for code, count in counts.most_common()), markup=False)
    if path is not None:
        write_text(path, json.dumps([item.to_json() for item in found], indent=1) + "\n")


def show_replay(result: RunResult, console: Console) -> None:
    """A line for each site, head and process: calls, exact ones, repetitions, what was recorded, the other ranks."""
    table = _table(
        "site", "head", "process", "calls", "exact", "repeats exact", "base as recorded", "as the lowest rank"
    )
    for item in result.targets:
        for process, counts in item.recorded.items():
            twins = counts["twins"] + counts["twins_apart"]
            row = (
                item.name.removeprefix("recorded."),
                item.head,
                process,
                str(counts["calls"]),
                str(counts["exact"]),
                f"{counts['repeats_exact']} of {counts['repeats']}",
                f"{counts['as_recorded']} of {counts['calls']}",
                f"{counts['twins']} of {twins}" if twins else "",
            )
            table.add_row(*map(Text, row))
    console.print(table)


def show_capture(shown: Shown, console: Console) -> None:
    """What is in a capture: a line for each process and site, one for each call, then what the recorder said.

    Sites go by their short names and requests by numbers, so that a call is one line; what they are is said below.
    """
    names = {symbol: name for name, symbol in KNOWN.items()}
    sites = _table("process", "site", "calls", "ended", "raised", "steps", "bytes")
    for line in shown.sites:
        steps = "" if line.steps is None else f"{line.steps[0]} to {line.steps[1]}"
        counts = (str(line.calls), str(line.complete), str(line.raised), steps, str(line.size))
        sites.add_row(*map(Text, (line.rank, names.get(line.site, line.site), *counts)))
    console.print(sites)
    calls = _table("process", "call", "in", "site", "step", "bytes", "requests", "")
    requests: dict[str, int] = {}
    for call in shown.calls:
        ended = call.raised or ("" if call.complete else "did not end")
        parent = "" if call.parent is None else str(call.parent)
        step = "" if call.step is None else str(call.step)
        numbers = [requests.setdefault(name, len(requests) + 1) for name in call.request_ids or ()]
        site = names.get(call.site, call.site.rpartition(":")[2])
        row = (call.rank, str(call.number), parent, site, step, str(call.size), _ranges(numbers), ended)
        calls.add_row(*map(Text, row))
    console.print()
    console.print(calls)
    console.print()
    for symbol in dict.fromkeys(line.site for line in shown.sites if line.site in names):
        console.print(Text(f"{names[symbol]} is {symbol}"), soft_wrap=True)
    for name, number in requests.items():
        console.print(Text(f"request {number} is {name}"), soft_wrap=True)
    for rank, environment in shown.environments.items():
        versions = environment.get("versions")
        words = [f"{name} {version}" for name, version in versions.items()] if isinstance(versions, dict) else []
        console.print(Text(f"{rank}: {environment.get('device', 'unknown device')}, {', '.join(words)}"))
    for note in shown.notes:
        console.print(Text(note))
    console.print(Text(f"{len(shown.calls)} calls, {shown.blobs} blobs, {shown.disk_bytes} bytes on disk"))


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in their order; what counts up by one is `first-last`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show_sweep(found: Iterable[SweptCommit], console: Console, path: Path | None) -> int:
    """A line a commit as it is compared; the exit code of the whole."""
    every = []
    for item in found:
        every.append(item)
        words = [f"{len(names)} {verdict}" for verdict in Verdict if (names := item.targets(verdict))]
        line = f"{item.commit[:12]}  {item.verdict:10}  {', '.join(words) or item.error}  {item.subject}"
        console.print(Text(line), soft_wrap=True)
        for name in item.targets(Verdict.DIFFERENT):
            console.print(Text(f"              {name}"))
        for reason, names in _less_measured(item).items():
            more = f" and {len(names) - TARGETS_NAMED} more" if len(names) > TARGETS_NAMED else ""
            console.print(Text(f"              {', '.join(names[:TARGETS_NAMED])}{more}: {reason}"), soft_wrap=True)
    counts = Counter(str(item.verdict) for item in every)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    commits = "1 commit that touches" if len(every) == 1 else f"{len(every)} commits that touch"
    console.print(Text(f"{commits} a target: {summary}"))
    if cut := sum(any(target.cut for target in item.result.targets) for item in every if item.result is not None):
        limited = "1 commit was" if cut == 1 else f"{cut} commits were"
        console.print(Text(f"{limited} not compared on all cases of all targets: --examples or --budget left some out"))
    if path is not None:
        data = {"schema": SCHEMA, "commits": [item.to_json() for item in every]}
        write_text(path, json.dumps(data, default=str) + "\n")
    return EXIT_CODES[overall(every)]


def _less_measured(item: SweptCommit) -> dict[str, list[str]]:
    """The targets of a commit that were not compared, or on fewer cases than they have, by why."""
    found: dict[str, list[str]] = {}
    for target in item.result.targets if item.result else ():
        unmeasured = [f"not compared: {target.reason}"] if target.verdict == Verdict.UNMEASURED else []
        for reason in (*unmeasured, *[text for text in target.cut if text != target.reason]):
            found.setdefault(reason, []).append(target.name)
    return found


def show_bisection(found: Bisection, console: Console) -> int:
    """The commit, what it changed and how it was found; the exit code."""
    lines = [f"{found.commit}", f"  {found.subject}", f"  {found.author}, {found.date}"]
    if found.suspects:
        lines[0] = f"one of {len(found.suspects)} commits, up to {found.commit}; the others cannot be compared"
    lines += [f"  changes {name}" for name in found.changed]
    if found.mismatch is not None:
        index = str(list(found.mismatch.index)) if found.mismatch.index else ""
        lines.append(f"  {found.mismatch.kind} at {found.mismatch.leaf}{index}")
        lines += [f"    good {found.mismatch.base[:200]}", f"    here {found.mismatch.head[:200]}"]
    lines += [f"skipped {commit[:12]}: {reason}" for commit, reason in found.skipped]
    lines.append(f"{found.target}: commits that may touch it: {found.listed}; executed: {found.executed}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return EXIT_CODES[Verdict.DIFFERENT]


class Progress:
    """The live display of a run; what :func:`difftest.api.run` tells its observer."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._display: Any = None
        self._done: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.__exit__(kind, error, traceback)

    def begin(self, targets: int) -> None:
        self._display = importlib.import_module("difftest.reports.terminal").Progress(self._console, targets)
        self._display.__enter__()

    def target(self, name: str, total_cases: int) -> None:
        self._display.target(name, total_cases)

    def advance(self, name: str, done: int) -> None:
        self._done[name] += done
        self._display.advance(name, self._done[name])

    def finish(self, result: TargetResult) -> None:
        self._display.finish(result)
