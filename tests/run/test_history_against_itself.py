"""A version against itself, at ten revisions of a real history, mid 2025 to mid 2026: nothing differs.

DIFFTEST_HISTORY=/path/to/a/vllm/clone pytest -m check tests/run/test_history_against_itself.py -s
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from difftest import api

pytestmark = pytest.mark.check

VARIABLE = "DIFFTEST_HISTORY"
DATES = (
    *("2025-06-15", "2025-08-01", "2025-09-12", "2025-10-25", "2025-12-07"),
    *("2026-01-20", "2026-03-04", "2026-04-16", "2026-05-30", "2026-07-15"),
)


@pytest.mark.parametrize("date", DATES)
def test_nothing_differs(date: str) -> None:
    if not os.environ.get(VARIABLE):
        pytest.skip(f"{VARIABLE} names no clone of vLLM")
    repo = Path(os.environ[VARIABLE])
    command = ["git", "-C", str(repo), "log", "-1", "--first-parent", f"--before={date}", "--format=%h", "HEAD"]
    revision = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    result = api.run(api.RunOptions(base=revision, heads=(revision,), repo=repo, execute_same=True, explain=False))
    targets = result.targets
    measured = [one for one in targets if one.cases.executed]
    cases = sum(one.cases.executed for one in measured)
    refused = [one.name for one in targets if not one.cases.executed]
    print(
        f"{date} {revision}: {len(measured)} targets measured, {len(refused)} refused, {cases} cases, "
        f"{sum(one.cases.different for one in targets)} differences, {result.seconds['total']:.0f} s"
    )
    assert [one.name for one in targets if one.verdict == "different"] == []
    assert {one.name: dict(one.aa) for one in targets if one.aa.get("differences")} == {}
    assert len(measured) >= 28 and cases > 5000
