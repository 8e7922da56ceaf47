"""With CI set, a test that is skipped fails, unless this machine really lacks what the test needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import TypeVar

import pytest

from difftest.run import forkserver

LACKING = (
    "needs a CUDA device",
    "there is an accelerator",
    "permissions do not bind the superuser",
    "root may write everywhere",
    "no chromium on this machine",
    "no /dev/stdout here",
)
"""Reasons that say so. Triton has no build but for Linux."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _judged(report: Report) -> Report:
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if reason.removeprefix("Skipped: ") not in LACKING and not ("riton" in reason and sys.platform != "linux"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and CI is set: {reason}"
    return report


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a module's tests have in common is made once: pytest-xdist gives them to one process."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        if any(found[-1].scope == "module" for found in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Torch is imported once for all runs that tests make in this process; the command's tests start it as users do."""
    with forkserver.kept():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged((yield))
