"""The pytest plugin says what `difftest run` says: a test per target and group of cases, and the same exit codes.

All of it holds with -n 2, too, and beside the user's own tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import pytest

from difftest import api
from difftest.demo import make_repository

USERS_TEST = """
import torch

SYMBOL = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"


def test_both_arms_are_there_and_apart(difftest_arms):
    base, head = (arm.get(SYMBOL) for arm in difftest_arms)
    assert base is not head
    assert base(torch.tensor([[1, 2, -1]]), 9) == head(torch.tensor([[1, 2, -1]]), 9)
"""

TARGETS = "v1.*"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin") / "sampler"
    make_repository(folder)
    return folder


class Session(NamedTuple):
    """A finished pytest session: its exit status, the outcome and the target's verdict by test, what was printed."""

    code: int
    outcomes: dict[str, str]
    verdicts: dict[str, str]
    said: str


def session(folder: Path, repository: Path, head: str, *options: str) -> Session:
    """One session of pytest over the user's own test and the comparison of the V1 targets."""
    (folder / "test_users_own.py").write_text(USERS_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "--junitxml=junit.xml", "-p", "no:cacheprovider"]
    command += [f"--difftest-repo={repository}", "--difftest-base", "base", "--difftest-head", head]
    command += options if "--difftest-target" in options else ("--difftest-target", TARGETS, *options)
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, check=False
    )
    outcomes, verdicts = {}, {}
    for case in ET.parse(folder / "junit.xml").iter("testcase") if (folder / "junit.xml").exists() else ():
        children = {child.tag for child in case}
        outcomes[case.get("name", "")] = next((t for t in ("failure", "error", "skipped") if t in children), "passed")
        properties = {item.get("name"): item.get("value", "") for item in case.iter("property")}
        if "difftest.target" in properties:
            verdicts[properties["difftest.target"]] = properties["difftest.verdict"]
    return Session(done.returncode, outcomes, verdicts, done.stdout + done.stderr)


def assert_as_a_run_says(found: Session, repository: Path, head: str) -> None:
    run = api.run(api.RunOptions(base="base", heads=(head,), repo=repository, targets=(TARGETS,), explain=False))
    reasons = {target.name: target.reason for target in run.targets if target.reason}
    assert found.verdicts == {target.name: str(target.verdict) for target in run.targets}, reasons
    assert found.code == run.exit_code
    assert f"difftest: {run.verdict}. Targets: " in found.said


@pytest.mark.parametrize("head", ["faster", pytest.param("extra-draw", marks=pytest.mark.check)])
def test_verdicts_and_exit_status_are_those_of_a_run(repository: Path, tmp_path: Path, head: str) -> None:
    found = session(tmp_path, repository, head, "-n", "2")
    assert_as_a_run_says(found, repository, head)
    assert found.code == (0 if head == "faster" else 1)
    assert found.outcomes["test_both_arms_are_there_and_apart"] == "passed"


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_what_is_unmeasured_does_not_pass(repository: Path, tmp_path: Path, processes: tuple[str, ...]) -> None:
    own = "--deselect=test_users_own.py"  # it calls what this head has changed
    found = session(tmp_path, repository, "signature", own, *processes)
    assert_as_a_run_says(found, repository, "signature")
    assert found.code == 3
    assert "exit status 3: something asked for was not compared" in found.said


def test_a_bug_fails_in_the_group_it_is_in(repository: Path, tmp_path: Path) -> None:
    found = session(tmp_path, repository, "subtle-bug", "-n", "2")
    assert_as_a_run_says(found, repository, "subtle-bug")
    assert found.code == 1
    assert found.outcomes["v1.parse_output[inside]"] == "passed"
    assert found.outcomes["v1.parse_output[outside]"] == "failure"
    assert "695 of 1280 cases outside the contract differ" in found.said
    assert "return[0]" in found.said
    assert "Traceback" not in found.said


def test_what_cannot_be_compared_is_said_with_its_reason_and_a_failure_beside_it_stays_one(
    repository: Path, tmp_path: Path
) -> None:
    found = session(tmp_path, repository, "signature", "-rs", "--difftest-target", "v1.parse_output")
    assert found.outcomes["v1.parse_output[inside]"] == found.outcomes["v1.parse_output[outside]"] == "skipped"
    assert "not compared: v1.parse_output: api-change: RejectionSampler.parse_output requires eos_token_ids" in (
        found.said
    )
    assert found.outcomes["test_both_arms_are_there_and_apart"] == "failure"
    assert found.code == 1


@pytest.mark.parametrize(("target", "processes"), [("v1.bad_words", ()), ("v1.bad_w*", ("-n", "2"))])
def test_versions_without_the_target_do_not_pass(
    repository: Path, tmp_path: Path, target: str, processes: tuple[str, ...]
) -> None:
    found = session(tmp_path, repository, "faster", "--difftest-target", target, *processes)
    assert found.outcomes["test_both_arms_are_there_and_apart"] == "passed"
    assert found.code == 3
    assert "difftest: unmeasured." in found.said


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_a_tree_that_is_not_there_is_one_line(repository: Path, tmp_path: Path, processes: tuple[str, ...]) -> None:
    found = session(tmp_path, repository, "no-such-branch", *processes)
    assert found.code == pytest.ExitCode.USAGE_ERROR
    assert found.said.strip().startswith("ERROR: difftest: ")
    assert "no-such-branch" in found.said
    assert "Traceback" not in found.said


def test_one_option_without_the_other_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--difftest-base", "base"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "go together" in done.stderr


def test_without_its_options_the_plugin_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
