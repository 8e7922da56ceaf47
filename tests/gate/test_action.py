"""The steps of the action, run as GitHub runs them: a clean folder, a repository with a base and a branch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from difftest.demo import make_repository

ACTION = Path(__file__).resolve().parents[2] / "action.yml"


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    action = yaml.safe_load(ACTION.read_text())
    assert action["runs"]["using"] == "composite"
    return {step["name"]: step for step in action["runs"]["steps"]}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("action") / "sampler"
    make_repository(folder)
    return folder


def run_step(step: dict[str, Any], folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """One `run` step under the shell that GitHub gives it, with the environment that the step asks for."""
    assert step["shell"] == "bash"
    assert set(step.get("env", {})) <= set(values), "the step reads something that the test does not set"
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        **values,
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def gate(
    steps: dict[str, dict[str, Any]], folder: Path, repository: Path, head: str, **inputs: str
) -> tuple[int, str, str]:
    """(exit status of the job's last step, what was printed, the summary) of comparing the branch `head`."""
    values = {
        "BASE": "base",
        "HEAD": head,
        "REPOSITORY": str(repository),
        "TARGETS": "v1.parse_output\n",
        "BUDGET": "",
        "EXPECT": "",
        "DIFFTEST_CACHE": str(folder / "cache"),
        "REPORT": str(folder / "report"),
        **inputs,
    }
    compared = run_step(steps["Compare"], folder, **{k: v for k, v in values.items() if k != "UNMEASURED"})
    assert compared.returncode == 0, compared.stderr
    output = dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())
    run_step(steps["Summary"], folder, REPORT=output["report"])
    verdict = run_step(
        steps["Verdict"], folder, CODE=output["exit-code"], SPEED="", UNMEASURED=values.get("UNMEASURED", "fail")
    )
    summary = folder / "summary"
    said = compared.stdout + verdict.stdout
    return verdict.returncode, said, summary.read_text() if summary.exists() else ""


def test_an_equivalent_branch_passes(steps: dict[str, Any], repository: Path, tmp_path: Path) -> None:
    code, said, summary = gate(steps, tmp_path, repository, "faster")
    assert code == 0
    assert "::error" not in said
    assert "identical" in summary
    assert {p.name for p in (tmp_path / "report").iterdir()} >= {"difftest.json", "difftest.html", "difftest.junit"}


def test_a_bug_fails_the_job_with_an_annotation(steps: dict[str, Any], repository: Path, tmp_path: Path) -> None:
    code, said, summary = gate(steps, tmp_path, repository, "subtle-bug")
    assert code == 1
    assert "::error" in said
    assert "v1.parse_output" in summary


@pytest.mark.parametrize(("base", "code"), [("", 0), ("origin/subtle-bug", 1)])
def test_a_branch_does_not_answer_for_what_its_base_gained_meanwhile(
    steps: dict[str, Any], repository: Path, tmp_path: Path, base: str, code: int
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", repository, clone], check=True)
    got, _, summary = gate(steps, tmp_path, clone, "origin/faster", BASE=base, GITHUB_BASE_REF="subtle-bug")
    assert got == code
    assert ("what these change counts as different, too" in summary) == bool(code)


@pytest.mark.parametrize(("asked", "installed"), [("", "/action[triton,html]"), ("difftest-sampler==1", None)])
def test_it_installs_its_own_checkout_unless_told_otherwise(
    steps: dict[str, Any], tmp_path: Path, asked: str, installed: str | None
) -> None:
    pip = tmp_path / "python"
    pip.write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
    pip.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run_step(steps["Install"], tmp_path, REQUIREMENT=asked, GITHUB_ACTION_PATH="/action", PATH=path)
    assert done.stdout.strip() == (installed or asked)


@pytest.mark.parametrize(("policy", "code", "level"), [("fail", 3, "::error"), ("warn", 0, "::warning")])
def test_unmeasured_fails_unless_told_otherwise(
    steps: dict[str, Any], repository: Path, tmp_path: Path, policy: str, code: int, level: str
) -> None:
    got, said, _ = gate(steps, tmp_path, repository, "signature", UNMEASURED=policy)
    assert got == code
    assert level in said


def test_a_request_that_cannot_be_carried_out_is_exit_code_2(
    steps: dict[str, Any], repository: Path, tmp_path: Path
) -> None:
    code, said, _ = gate(steps, tmp_path, repository, "no-such-branch")
    assert code == 2
    assert "exit code 2" in said


@pytest.mark.parametrize(("code", "words"), [("4", "speed gate"), ("130", "interrupted"), ("0", "identical")])
def test_every_exit_code_has_its_words(steps: dict[str, Any], tmp_path: Path, code: str, words: str) -> None:
    done = run_step(steps["Verdict"], tmp_path, CODE=code, SPEED="", UNMEASURED="fail")
    assert (str(done.returncode), words in done.stdout) == (code, True)


def test_inputs_cannot_run_commands(steps: dict[str, Any], repository: Path, tmp_path: Path) -> None:
    """Values reach the shell through the environment only, so a branch's name is never read as shell."""
    for step in steps.values():
        assert "${{" not in step.get("run", "")
    gate(steps, tmp_path, repository, "$(touch pwned)")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("path", ["docs/ci/github-workflow.yml", "docs/ci/buildkite.yml", ".pre-commit-hooks.yaml"])
def test_the_examples_are_sound_yaml(path: str) -> None:
    assert yaml.safe_load((ACTION.parent / path).read_text())


def test_a_speed_threshold_times_the_branch_and_its_report_joins_the_summary(
    steps: dict[str, Any], repository: Path, tmp_path: Path
) -> None:
    assert steps["Time"]["if"] == "inputs.speed-threshold != ''"
    report = tmp_path / "report"
    report.mkdir()
    values = {"BASE": "base", "HEAD": "faster", "REPOSITORY": str(repository), "TARGETS": "v1.parse_output\n"}
    values |= {"THRESHOLD": "300", "DIFFTEST_CACHE": str(tmp_path / "cache"), "REPORT": str(report)}
    timed = run_step(steps["Time"], tmp_path, **values)
    assert timed.returncode == 0, timed.stderr
    assert (tmp_path / "output").read_text() == "exit-code=0\n", timed.stdout
    assert {path.suffix for path in report.iterdir()} >= {".json", ".markdown", ".html"}
    run_step(steps["Summary"], tmp_path, REPORT=str(report))
    assert "the gate holds" in (tmp_path / "summary").read_text()


@pytest.mark.parametrize(
    "code, speed, status, said",
    [
        ("0", "0", 0, "identical"),
        ("0", "4", 4, "the speed gate failed"),
        ("0", "3", 0, "::warning title=difftest bench"),
        ("0", "2", 2, "could not run"),
        ("1", "4", 1, "the speed gate failed"),
        ("3", "4", 4, "::warning title=difftest::"),
    ],
)
def test_a_failed_speed_gate_fails_the_job(
    steps: dict[str, Any], tmp_path: Path, code: str, speed: str, status: int, said: str
) -> None:
    done = run_step(steps["Verdict"], tmp_path, CODE=code, SPEED=speed, UNMEASURED="warn")
    assert done.returncode == status
    assert said in done.stdout
