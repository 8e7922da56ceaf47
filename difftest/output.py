"""From a result to the terminal and to files. The renderers are in `reports/`; they are imported when needed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from difftest.errors import UsageError
from difftest.result import RunResult, TargetResult


@dataclass(frozen=True)
class Formats:
    """Files to write, checked before the run begins."""

    items: tuple[tuple[str, Path], ...]

    @classmethod
    def parse(cls, values: Sequence[str]) -> Formats:
        """Parse `KIND:PATH` values.

        Raises:
            UsageError: an unknown kind, a missing path, or a path that cannot be written.
        """
        reports = importlib.import_module("difftest.reports")
        items = []
        for value in values:
            kind, colon, path = value.partition(":")
            if not colon or not path:
                raise UsageError(f"--format {value} should be KIND:PATH, for example json:result.json")
            reports.check_writable(kind, Path(path))
            items.append((kind, Path(path)))
        return cls(tuple(items))

    def write(self, result: RunResult) -> None:
        reports = importlib.import_module("difftest.reports")
        for kind, path in self.items:
            reports.write(result, kind, path)


def show(result: RunResult, console: Console) -> None:
    """The report for a person; its last line is the sentence for a pull request."""
    importlib.import_module("difftest.reports.terminal").render(result, console)


class Progress:
    """The live display, made when the first target starts."""

    def __init__(self, console: Console, heads: int) -> None:
        self._console = console
        self._display: Any = None

    def __enter__(self) -> Self:
        terminal = importlib.import_module("difftest.reports.terminal")
        self._display = terminal.Progress(self._console, 0)
        self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, traceback)

    def target(self, name: str, total_cases: int) -> None:
        self._display.target(name, total_cases)

    def advance(self, name: str, done: int) -> None:
        self._display.advance(name, done)

    def finish(self, result: TargetResult) -> None:
        self._display.finish(result)
