"""Every planted fault, and every difference of a labelled history, is made small and shown by a script of its own.

DIFFTEST_REDUCED=FOLDER keeps what was measured, so that a check that was ended goes on where it was; `-s` prints the
figures as they come. `python tests/planted/reduced_faults.py` does the same by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import reduced_faults
from reduced_faults import FAR, Row

MADE = Row("hazards", "H1", "v1.sampler", "value", "return", (2000, 90), (8, 1), (40, 2), 2.0, 50, True)


def test_what_falls_short_is_told() -> None:
    wide = {"bytes": (400, 90), "largest_axis": (40, 17)}
    many = {"bytes": (400, 90), "requests": (8, 4)}
    fine = [MADE, MADE._replace(bytes=(400, 90)), MADE._replace(**many, needs="4 requests")]
    fine.append(MADE._replace(reason="reserves too much", needs=FAR))
    assert reduced_faults.shortfalls(fine, []) == []
    short = [
        MADE._replace(**wide),
        MADE._replace(**many),
        MADE._replace(reproduces=False),
        MADE._replace(reason="does not differ when it is run alone"),
        MADE._replace(reason="reserves too much", needs=FAR, reproduces=False),
    ]
    for row in short:
        assert [words for words in reduced_faults.shortfalls([*fine, row], []) if "falls short" in words], row
    slow = MADE._replace(seconds=10.5)
    assert reduced_faults.shortfalls([MADE, slow, slow], []) == ["the median is above 10.0 s"]
    assert reduced_faults.shortfalls([MADE], ["a job: it failed"]) == ["not measured: a job: it failed"]
    assert reduced_faults.shortfalls([], []) == ["the median is above 10.0 s"]


def test_every_fault_is_in_one_job() -> None:
    planted = [number for job in reduced_faults.every_job() if job.kind == "hazards" for number in job.faults]
    assert sorted(map(int, planted)) == list(range(len(reduced_faults.HAZARDS)))


@pytest.mark.check
@pytest.mark.index
def test_every_fault_is_made_small(tmp_path: Path) -> None:
    assert reduced_faults.main(["--out", os.environ.get("DIFFTEST_REDUCED", str(tmp_path))]) == 0
