"""What README and CONTRIBUTING show works as shown."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from difftest.cli import cli
from difftest.demo import make_repository
from difftest.errors import DifftestError
from difftest.result import EXIT_CODES

CHECKOUT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def blocks(document: str, language: str = "") -> list[str]:
    text = (CHECKOUT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """Arguments of every `difftest` command that a document shows."""
    found = []
    for block in (block for document in DOCUMENTS for block in blocks(document)):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ")
            if line.startswith("difftest ") and not line.startswith("difftest: "):
                found.append(shlex.split(line, comments=True)[1:])
    return found


def test_commands_are_shown() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("arguments", commands(), ids=shlex.join)
def test_a_shown_command_has_the_options_that_it_is_shown_with(arguments: list[str]) -> None:
    command = cli.commands[arguments[0]]
    context = command.make_context(arguments[0], arguments[1:])
    assert isinstance(context, click.Context)


def test_exit_codes_are_those_of_the_result() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (CHECKOUT / "README.md").read_text(), re.MULTILINE)
    assert {verdict: int(code) for code, verdict in rows} == {str(v): code for v, code in EXIT_CODES.items()}
    assert f"| {DifftestError.exit_code} | |" in (CHECKOUT / "README.md").read_text()


def test_named_files_exist() -> None:
    for document in DOCUMENTS:
        named = re.findall(
            r"`((?:difftest|cases|tests|docs)/[\w./]+|[\w.-]+\.(?:yml|yaml|txt|md))`", (CHECKOUT / document).read_text()
        )
        assert named
        assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_the_shown_target_tells_a_changed_tie_break(tmp_path: Path) -> None:
    (example,) = blocks("CONTRIBUTING.md", "python")
    case_file = tmp_path / "greedy.py"
    case_file.write_text(example)
    repository = tmp_path / "sampler"
    make_repository(repository)
    sampler = repository / "vllm/v1/sample/sampler.py"
    greedy = "return torch.argmax(logits, dim=1)"
    assert greedy in sampler.read_text()
    sampler.write_text(sampler.read_text().replace(greedy, "return logits.shape[1] - 1 - logits.flip(1).argmax(dim=1)"))
    report = tmp_path / "result.json"
    command = ("run", "--repo", repository, "--base", "base", "--head", "WORKTREE", "--cases-from", case_file)
    options = ("--target", "my.greedy_sample", "--format", f"json:{report}")
    done = subprocess.run(
        [sys.executable, "-m", "difftest", *command, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    (target,) = json.loads(report.read_text())["targets"]
    # Ties at batch 1 and 3: three equal, all -inf, and NaN, which argmax counts as largest.
    assert target["cases"]["executed"] == 12
    assert target["cases"]["different"] == 6
    assert target["mismatches"][0]["label"] == "three equal, batch 1"
