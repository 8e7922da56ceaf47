"""What a person reads in a terminal: progress while the run goes on, and the report after it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
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
from rich.text import Text

from difftest.result import Group, Mismatch, RunResult, TargetResult, Verdict

from .causes import (
    both_values,
    cause_words,
    chance_facts,
    class_words,
    differ_words,
    further_detail,
    group_facts,
    group_title,
    more_groups,
    ulp_words,
)
from .changes import change_title, legend, numbered_lines, telling_changes
from .sentence import sentence
from .words import (
    NOT_EXECUTED,
    by_weight,
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
    symbol_words,
    time_words,
    total,
)

STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.EXPECTED: "cyan",
    Verdict.DIFFERENT: "bold red",
    Verdict.UNMEASURED: "yellow",
}
SIGNS = {"+": "green", "-": "red"}
VALUE_SHOWN = 400
"""Characters of one value that are shown."""

MISMATCHES_IN_TERMINAL = 5
"""Mismatches that are shown of a target whose mismatches are not grouped."""

GROUPS_IN_TERMINAL = 4
CHANGED_LINES_IN_TERMINAL = 30
"""Groups and changed lines of one target that are shown; the other reports carry the rest."""

SAME_IN_TERMINAL = 8
"""Of more targets than these whose code is the same, only the number is shown."""

LEAST_TEXT = 24
"""Columns that a value has at least, however long its name."""


def render(result: RunResult, console: Console) -> None:
    """Print the report. The last line is the sentence for a pull request, unbroken at any width."""
    _identities(result, console)
    _heading(console, "Targets")
    _targets(result, console)
    for target in by_weight(result.targets):
        if target.mismatches or target.verdict == Verdict.DIFFERENT:
            _differing(target, result, console)
    _remarks(result, console)
    console.print()
    _line(console, sentence(result), style=STYLES[Verdict(result.verdict)], whole=True)


def _line(
    console: Console,
    text: str,
    style: str = "",
    indent: int = 0,
    whole: bool = False,
    first: Text | None = None,
) -> None:
    """One line; wrapped with its indent kept, or left `whole` for copying. Nothing in `text` is markup.

    Args:
        first: what stands before the first line; the others begin below `text`.
    """
    shown = Text(text, style=style)
    if whole:
        console.print(shown, soft_wrap=True, highlight=False)
        return
    before = Text(" " * indent).append_text(first or Text())
    width = console.width - before.cell_len
    if width < LEAST_TEXT and first is not None:
        before, indent = Text(" " * indent), indent + 2
        console.print(before.append_text(first), soft_wrap=True, highlight=False)
        before = Text(" " * indent)
        width = console.width - indent
    for number, part in enumerate(shown.wrap(console, max(1, width), overflow="fold") or [Text()]):
        part.rstrip()
        line = (before if number == 0 else Text(" " * before.cell_len)) + part
        line.rstrip()
        console.print(line, soft_wrap=True, highlight=False)


def _heading(console: Console, text: str, style: str = "bold") -> None:
    console.print()
    _line(console, text, style=style)


def _pairs(console: Console, rows: Sequence[tuple[str, str]], indent: int = 2) -> None:
    """A name and a value per row, values aligned."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        _line(console, value, indent=indent, first=Text(name.ljust(width + 2), style="dim"))


def _identities(result: RunResult, console: Console) -> None:
    arms = [("base", result.base)] + [("head", head) for head in result.heads]
    for arm, identity in arms:
        _line(console, f"{arm} {plain(identity.spec, VALUE_SHOWN)}", style="bold")
        facts = [
            (name, plain(value, VALUE_SHOWN))
            for name, value in identity_facts(identity)
            if name != "spec" and value != identity.spec
        ]
        _pairs(console, facts)


def _targets(result: RunResult, console: Console) -> None:
    """A line a target; the same words of how it ran stand only where they differ."""
    targets = by_weight(result.targets)
    if not targets:
        _line(console, "none: nothing was compared", indent=2)
        return
    modes = {target.mode for target in targets}
    names = [plain(label(target, result), VALUE_SHOWN) for target in targets]
    width = min(max(map(len, names)), max(24, console.width // 2))
    verdicts = max(len(target.verdict) for target in targets)
    same = [target for target in targets if target.verdict == Verdict.IDENTICAL and target.mode == NOT_EXECUTED]
    folded = same if len(same) > SAME_IN_TERMINAL else []
    for target, name in zip(targets, names, strict=True):
        if target in folded:
            continue
        first = Text(target.verdict.ljust(verdicts + 2), style=STYLES[Verdict(target.verdict)])
        first.append(name.ljust(width + 2), style="none")
        mode = f", {plain(target.mode, 40)}" if len(modes) > 1 and target.cases.executed else ""
        _line(console, f"{counts_words(target)}{mode}", indent=2, first=first)
    if folded:
        first = Text("identical".ljust(verdicts + 2), style=STYLES[Verdict.IDENTICAL])
        _line(console, f"and {plural(len(folded), 'target')} with the same code, not executed", indent=2, first=first)


def _differing(target: TargetResult, result: RunResult, console: Console) -> None:
    """A target that differs: what it comes from, one example of each group, the changed lines that tell."""
    _heading(console, f"{plain(label(target, result), VALUE_SHOWN)}: {differ_words(target)}", style="bold red")
    _line(console, symbol_words(target), indent=2, style="dim")
    if cause := cause_words(target):
        _line(console, f"Likely cause: {cause}", indent=2)
    _pairs(console, chance_facts(target))
    for number, group in enumerate(target.groups[:GROUPS_IN_TERMINAL], 1):
        console.print()
        _group(number, group, console)
    if more := more_groups(target, GROUPS_IN_TERMINAL):
        _line(console, more, indent=2, style="dim")
    if not target.groups:
        _ungrouped(target, console)
    _changes(target, console)
    console.print()
    _line(console, f"{plural(target.mismatches_total, 'mismatch')}: {kinds_words(target.kinds)}", indent=2)


def _ungrouped(target: TargetResult, console: Console) -> None:
    shown = target.mismatches[:MISMATCHES_IN_TERMINAL]
    for number, mismatch in enumerate(shown, 1):
        console.print()
        title = f"{number}. {plain(place(mismatch), VALUE_SHOWN)}: {class_words(mismatch)}"
        _line(console, title, indent=2, style="bold")
        _mismatch(mismatch, console)
    if rest := left_out(target) + len(target.mismatches) - len(shown):
        console.print()
        _line(console, f"and {plural(rest, 'more mismatch')}", indent=2, style="dim")


def _group(number: int, group: Group, console: Console) -> None:
    """A group: its ways, one mismatch, and what its cases have in common."""
    _line(console, group_title(group), indent=2, style="bold", first=Text(f"{number}. ", style="bold"))
    if group.first is not None:
        _line(console, f"for example {plain(place(group.first), VALUE_SHOWN)}", indent=5)
        _mismatch(group.first, console)
    _pairs(console, [(fact.name, fact.whole) for fact in group_facts(group)], indent=5)


def _mismatch(mismatch: Mismatch, console: Console) -> None:
    base, head = both_values(mismatch, VALUE_SHOWN)
    rows = [("base", base), ("head", head)]
    extents = "; ".join(filter(None, (ulp_words(mismatch), extent(mismatch))))
    rows += [("extent", extents)] if extents else []
    rows += [("", plain(line, VALUE_SHOWN)) for line in further_detail(mismatch, neighbours=False)]
    case = plain(mismatch.case, 64) + (f", {plain(mismatch.label, VALUE_SHOWN)}" if mismatch.label else "")
    _pairs(console, [*rows, ("case", f"{case}, {contract_words(mismatch)}")], indent=5)


def _changes(target: TargetResult, console: Console) -> None:
    left = CHANGED_LINES_IN_TERMINAL
    shown = telling_changes(target, left)
    for change in shown:
        console.print()
        _line(console, change_title(change), indent=2, style="bold")
        for prefix, text in numbered_lines(change, len(change.lines)):
            style = SIGNS.get(prefix[:1], "")
            _line(console, plain(text, VALUE_SHOWN), indent=4, style=style, first=Text(prefix, style=style))
    if rest := len(target.changes) - len(shown):
        _line(
            console,
            f"and {plural(rest, 'more changed definition')}; the other reports have them",
            indent=2,
            style="dim",
        )
    if marks := legend(target):
        _line(console, marks, indent=4, style="dim")


def _remarks(result: RunResult, console: Console) -> None:
    """What bears on the verdicts besides the mismatches, a topic a block, its name before its first line."""
    sections = remarks(result)
    if result.environment:
        sections.append(("Environment", [", ".join(f"{k} {v}" for k, v in environment_words(result))]))
    if result.seconds:
        sections.append(("Time", [time_words(result)]))
    console.print()
    _pairs(console, [(title if n == 0 else "", line) for title, lines in sections for n, line in enumerate(lines)], 0)
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

    When the console is no terminal, one plain line per target that ran instead. Use it as a context manager.

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
        if not total(result.cases):  # no case of it was run; the report says why
            self._total -= 1
            self._bars.update(self._all, total=self._total)
            return
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
