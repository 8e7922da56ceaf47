"""From the command line to a bench and back: files to write, progress, what the terminal shows. No torch."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from difftest.errors import UsageError
from difftest.timing.pairs import PairsResult
from difftest.timing.result import BenchResult


def percentage(text: str) -> float:
    """`2%`, `2 %` or `2`.

    Raises:
        UsageError: it is no number from 0 on.
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1000:
        raise UsageError(f"{text} is not a percentage; write 2% or 2")
    return value


def show_bench(result: BenchResult, console: Console) -> None:
    """The report for a person; its last line is the sentence for a pull request."""
    importlib.import_module("difftest.reports.bench_terminal").render(result, console)


def show_pairs(result: PairsResult, console: Console, path: Path | None) -> None:
    """What end-to-end pairs say; as JSON, too, where a path is given."""
    importlib.import_module("difftest.reports.bench_terminal").render_pairs(result, console)
    if path is not None:
        importlib.import_module("difftest.reports").write_text(json.dumps(result.to_json()) + "\n", path)


class BenchProgress:
    """The live display of a bench; what :func:`difftest.timing.bench.bench` tells its observer."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task: Any = None

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task("lifting", total=None, state="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def progress(self, settled: int, comparisons: int, layout: int) -> None:
        state = f"{settled} of {comparisons} settled, process {layout}"
        self._progress.update(self._task, total=comparisons, completed=settled, state=state)
