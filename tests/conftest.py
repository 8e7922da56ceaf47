"""What holds of all tests: few of their runs import torch, what a module's tests share is made once, and with CI set a
skipped test fails, unless this machine really lacks what it needs."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

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


class Scheduling(LoadScopeScheduling):
    """Tests go to the process that is free, those of a module that makes something for all of them to one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _shares(self.config.rootpath / file) else nodeid


@functools.cache
def _shares(file: Path) -> bool:
    return 'fixture(scope="module")' in file.read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """From the second run made in a process, torch is there already; tests of the command start as users do."""
    with forkserver.kept():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged((yield))
