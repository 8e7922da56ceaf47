"""Records which lines of the arms' files run, with coverage.py. It slows every call, so only on request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from coverage import Coverage


class LineRecorder:
    """A context in which lines are recorded; entered for each call, over and over.

    Args:
        folders: only files below these count.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = [os.path.realpath(folder) for folder in folders]
        # A pattern of coverage.py takes no brackets but as a set of characters, which holds no bracket.
        include = [f"{re.sub(r'[][*?]', '?', folder)}/*" for folder in self._folders]
        self._recorder = Coverage(data_file=None, config_file=False, include=include, messages=False)
        self._sent: dict[str, set[int]] = {}
        self._turn = 0

    def __enter__(self) -> None:
        self._recorder.start()
        self._recorder.switch_context(str(self._turn))

    def __exit__(self, *_: object) -> None:
        self._recorder.stop()

    def restart(self) -> None:
        """Forget what ran so far; much cheaper than a new recorder."""
        self._turn += 1
        self._sent.clear()

    def take(self) -> list[tuple[int, str, list[int]]]:
        """Lines that ran and were not taken yet: (number of the folder, path inside it, line numbers)."""
        data = self._recorder.get_data()
        data.set_query_context(str(self._turn))
        found = []
        for file in sorted(data.measured_files()):
            sent = self._sent.setdefault(file, set())
            new = set(data.lines(file) or ()) - sent
            sent |= new
            for number, folder in enumerate(self._folders):
                if new and file.startswith(f"{folder}/"):
                    found.append((number, Path(file).relative_to(folder).as_posix(), sorted(new)))
        return found
