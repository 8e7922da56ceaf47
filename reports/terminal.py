"""What a person reads in a terminal: progress while the run goes on, and the report after it."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from difftest.result import Mismatch, RunResult, TargetResult, Verdict

from .causes import (
    LEGEND,
    chance_facts,
    change_lines,
    change_title,
    class_words,
    group_facts,
    group_title,
    traced_words,
)
from .sentence import sentence
from .words import (
    by_weight,
    contract_split,
    contract_words,
    counts_words,
    environment_words,
    extent,
    identity_facts,
    kinds_words,
    label,
    left_out,
    place,
    plain,
    plural,
    remarks,
    seconds_words,
    time_words,
)

STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.EXPECTED: "cyan",
    Verdict.DIFFERENT: "bold red",
    Verdict.UNMEASURED: "yellow",
}
VALUE_SHOWN = 400
"""Characters of one value that are shown."""

MISMATCHES_IN_TERMINAL = 5
"""Mismatches of one target that are shown; the other reports carry the rest."""

GROUPS_IN_TERMINAL = 4
CHANGED_LINES_IN_TERMINAL = 40
"""Groups and changed lines of one target that are shown."""


def render(result: RunResult, console: Console) -> None:
    """Print the report. The last line is the sentence for a pull request, unbroken at any width."""
    _identities(result, console)
    _heading(console, "Targets")
    _targets(result, console)
    for target in by_weight(result.targets):
        if target.mismatches or target.verdict == Verdict.DIFFERENT:
            _mismatches(target, result, console)
    _remarks(result, console)
    console.print()
    _line(console, sentence(result), style=STYLES[Verdict(result.verdict)], whole=True)


def _line(console: Console, text: str, style: str = "", indent: int = 0, whole: bool = False) -> None:
    """One line; wrapped with its indent kept, or left `whole` for copying. Nothing in `text` is markup."""
    shown = Text(text, style=style, overflow="fold")
    if whole:
        console.print(shown, soft_wrap=True, highlight=False)
    else:
        console.print(Padding(shown, (0, 0, 0, indent), expand=False), highlight=False)


def _heading(console: Console, text: str) -> None:
    console.print()
    _line(console, text, style="bold")


def _pairs(console: Console, rows: list[tuple[str, str]], indent: int = 2) -> None:
    """A name and a value per row, values aligned."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console.print(Padding(table, (0, 0, 0, indent), expand=False), highlight=False)


def _identities(result: RunResult, console: Console) -> None:
    arms = [("base", result.base)] + [("head", head) for head in result.heads]
    for arm, identity in arms:
        _line(console, f"{arm} {plain(identity.spec, VALUE_SHOWN)}", style="bold")
        facts = [(name, plain(value, VALUE_SHOWN)) for name, value in identity_facts(identity) if name != "spec"]
        _pairs(console, facts)


def _targets(result: RunResult, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for target in by_weight(result.targets):
        table.add_row(
            Text(target.verdict, style=STYLES[Verdict(target.verdict)]),
            Text(plain(label(target, result), VALUE_SHOWN)),
            Text(counts_words(target)),
            Text(plain(target.mode, 40), style="dim"),
        )
    if result.targets:
        console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)
    else:
        _line(console, "none: nothing was compared", indent=2)


def _mismatches(target: TargetResult, result: RunResult, console: Console) -> None:
    _heading(console, f"{plain(label(target, result), VALUE_SHOWN)}: {target.verdict}")
    split = contract_split(target)
    facts = [
        ("base symbol", plain(target.symbol.get("base") or "none", VALUE_SHOWN)),
        ("head symbol", plain(target.symbol.get("head") or "none", VALUE_SHOWN)),
        ("mismatches", f"{target.mismatches_total} ({kinds_words(target.kinds)})"),
    ]
    _pairs(console, facts + ([("contract", split)] if split else []))
    _causes(target, console)
    shown = target.mismatches[:MISMATCHES_IN_TERMINAL]
    for number, mismatch in enumerate(shown, 1):
        console.print()
        _mismatch(number, mismatch, console)
    rest = left_out(target) + len(target.mismatches) - len(shown)
    if rest:
        console.print()
        _line(console, f"and {plural(rest, 'more mismatch')}", indent=2, style="dim")


def _causes(target: TargetResult, console: Console) -> None:
    """Groups of mismatches, what noise and samples say, and the changed lines."""
    for number, group in enumerate(target.groups[:GROUPS_IN_TERMINAL], 1):
        _line(console, f"group {number}: {group_title(group)}", indent=2, style="bold")
        _pairs(console, group_facts(group), indent=5)
    if (rest := len(target.groups) - GROUPS_IN_TERMINAL) > 0:
        _line(console, f"and {plural(rest, 'more group')}", indent=2, style="dim")
    _pairs(console, chance_facts(target))
    left = CHANGED_LINES_IN_TERMINAL
    for change in target.changes:
        if left <= 0:
            _line(console, "and further changed definitions; the other reports have them", indent=2, style="dim")
            break
        _line(console, change_title(change), indent=2, style="bold")
        for line in change_lines(change, left):
            _line(console, plain(line, 200), indent=4)
        left -= len(change.lines)
    if any(line.ran for change in target.changes for line in change.lines):
        _line(console, f"{LEGEND}; {traced_words(target)}", indent=2, style="dim")


def _mismatch(number: int, mismatch: Mismatch, console: Console) -> None:
    _line(console, f"{number}. {plain(place(mismatch), VALUE_SHOWN)}: {class_words(mismatch)}", indent=2, style="bold")
    rows = [("base", plain(mismatch.base, VALUE_SHOWN)), ("head", plain(mismatch.head, VALUE_SHOWN))]
    rows += [("", plain(line, VALUE_SHOWN)) for line in mismatch.detail]
    rows += [("extent", extent(mismatch))] if extent(mismatch) else []
    case = plain(mismatch.case, 64) + (f", {plain(mismatch.label, VALUE_SHOWN)}" if mismatch.label else "")
    _pairs(console, [*rows, ("case", f"{case}, {contract_words(mismatch)}")], indent=5)


def _remarks(result: RunResult, console: Console) -> None:
    """What bears on the verdicts besides the mismatches, one section a topic."""
    sections = remarks(result)
    if result.environment:
        sections.append(("Environment", [", ".join(f"{k} {v}" for k, v in environment_words(result))]))
    if result.seconds:
        sections.append(("Time", [time_words(result)]))
    for title, lines in sections:
        _heading(console, title)
        for line in lines:
            _line(console, line, indent=2)
    if result.command:
        _heading(console, "Repeat")
        _line(console, plain(result.command), whole=True)


class _Rate(ProgressColumn):
    """Cases a second, as rich estimates it over the last half minute."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f} cases/s", style="dim")


class Progress:
    """Progress of a run: a bar per target that runs, with rate and time left, and one for the whole run.

    When the console is no terminal, one plain line per finished target instead. Use it as a context manager.

    Args:
        console: where it is shown; best the one of stderr, so that the report on stdout stays clean.
        total_targets: how many results :meth:`finish` will be given.
    """

    def __init__(self, console: Console, total_targets: int) -> None:
        self._console = console
        self._total = total_targets
        self._finished = 0
        self._tasks: dict[str, TaskID] = {}
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("all targets", total=total_targets)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def target(self, name: str, total_cases: int) -> None:
        """A target starts to run; a second start of the same name begins its bar anew."""
        self._drop(name)
        self._tasks[name] = self._bars.add_task(plain(name, 60), total=total_cases)

    def advance(self, name: str, done: int) -> None:
        """`done` cases of the target have finished so far, in all; ignored unless the target runs."""
        if name in self._tasks:
            self._bars.update(self._tasks[name], completed=done)

    def finish(self, result: TargetResult) -> None:
        """A target has its result."""
        self._drop(result.name)
        self._finished += 1
        self._bars.update(self._all, completed=self._finished)
        if not self._console.is_terminal:
            name = f"{plain(result.name, 120)} against {plain(result.head, 80)}"
            line = f"[{self._finished}/{self._total}] {result.verdict} {name}"
            words = f"{line}: {counts_words(result)}, {seconds_words(result.seconds)}"
            _line(self._console, words, whole=True)

    def _drop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            self._bars.remove_task(task)
