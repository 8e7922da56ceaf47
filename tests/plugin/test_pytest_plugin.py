"""The pytest plugin says what `difftest run` says: a test per target and group of cases, also with -n 2."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from difftest.demo import make_repository

USERS_TEST = """
import torch

SYMBOL = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"


def test_both_arms_are_there_and_apart(difftest_arms):
    base, head = (arm.get(SYMBOL) for arm in difftest_arms)
    assert base is not head
    assert base(torch.tensor([[1, 2, -1]]), 9) == head(torch.tensor([[1, 2, -1]]), 9)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin") / "sampler"
    make_repository(folder)
    return folder


def outcomes(folder: Path, repository: Path, head: str, *options: str) -> tuple[int, dict[str, str], str]:
    """(exit status, outcome by test name, output) of pytest with the plugin."""
    (folder / "test_users_own.py").write_text(USERS_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "--junitxml=junit.xml", "-p", "no:cacheprovider"]
    command += ["--difftest-repo", str(repository), "--difftest-base", "base", "--difftest-head", head]
    command += ["--difftest-target", "v1.parse_output", *options]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, check=False
    )
    found = {}
    for case in ET.parse(folder / "junit.xml").iter("testcase"):
        children = {child.tag for child in case}
        found[case.get("name", "")] = next((t for t in ("failure", "error", "skipped") if t in children), "passed")
    return done.returncode, found, done.stdout


def test_a_bug_fails_in_the_group_it_is_in(repository: Path, tmp_path: Path) -> None:
    code, found, said = outcomes(tmp_path, repository, "subtle-bug", "-n", "2")
    assert code == 1
    assert found["v1.parse_output[outside]"] == "failure"
    assert found["test_both_arms_are_there_and_apart"] == "passed"
    assert "return[0]" in said
    assert "Traceback" not in said


def test_an_equivalent_head_passes(repository: Path, tmp_path: Path) -> None:
    code, found, _ = outcomes(tmp_path, repository, "faster")
    assert code == 0
    assert found["v1.parse_output[inside]"] == found["v1.parse_output[outside]"] == "passed"


def test_what_cannot_be_compared_is_skipped_with_its_reason(repository: Path, tmp_path: Path) -> None:
    _, found, said = outcomes(tmp_path, repository, "signature", "-rs", "--deselect", "test_users_own.py")
    assert found["v1.parse_output[inside]"] == "skipped"
    assert "eos_token_ids" in said


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
