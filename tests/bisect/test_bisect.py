"""`difftest bisect` on a real repository: the culprit, what is not executed, what is skipped, what is refused."""

from __future__ import annotations

import io
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from difftest import api
from difftest.bisect import Bisection, bisect
from difftest.cli import cli
from difftest.errors import NothingCompared, UsageError
from difftest.output import show_bisection
from difftest.record.casefile import write_case
from difftest.target import Case

CASES = """
import torch
from difftest.target import Case, Target

TARGETS = (Target("user.scaled", ("pack.scaled:scaled",), lambda: [Case("one", lambda: {"values": torch.ones(2)})]),)
"""

SCALED = "def scaled(values):\n    return values * {}\n"
FACTOR = "def factor():\n    return {}\n"
REFUSES = "def scaled(values):\n    x = 1\n    raise ValueError(f'no, {x * 0}')\n"
HELPED = "from pack.other import factor\n\n\ndef scaled(values):\n    return values * factor()\n"

HISTORY = (
    ("first", {"pack/__init__.py": "", "pack/scaled.py": SCALED.format(2), "pack/other.py": FACTOR.format(2)}),
    ("elsewhere", {"pack/unrelated.py": "x = 1\n"}),
    ("refuses", {"pack/scaled.py": REFUSES}),
    ("refuses in another way", {"pack/scaled.py": REFUSES.replace("x = 1", "x = 2")}),
    ("reworded", {"pack/scaled.py": SCALED.format("(1 + 1)")}),
    ("asks for more", {"pack/scaled.py": "def scaled(values, more):\n    return values * more\n"}),
    ("takes the helper", {"pack/scaled.py": HELPED}),
    ("the bug, by @someone", {"pack/other.py": FACTOR.format(3)}),
    ("elsewhere again", {"pack/unrelated.py": "x = 2\n"}),
    ("inlined", {"pack/scaled.py": SCALED.format(3)}),
    ("mended", {"pack/scaled.py": SCALED.format(2)}),
)  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("history")
    shas = {}

    def git(*command: str) -> str:
        names = {f"GIT_{who}_{what}": "A" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", "-C", folder, *command], env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    for subject, files in HISTORY:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", subject)
        shas[subject] = git("rev-parse", "HEAD")
    (folder / "cases.py").write_text(CASES)
    return folder, shas


@pytest.fixture(scope="module")
def options(repository: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> api.RunOptions:
    case = Case("three", lambda: {"values": torch.arange(3.0)})
    file = write_case(tmp_path_factory.mktemp("case") / "case.safetensors", "user.scaled", case)
    folder = repository[0]
    return api.RunOptions("", ("",), repo=folder, case=str(file.path), cases_from=(folder / "cases.py",))


@pytest.fixture(scope="module")
def found(options: api.RunOptions, repository: tuple[Path, dict[str, str]]) -> tuple[Bisection, list[str]]:
    said: list[str] = []
    return bisect(options, repository[1]["first"], repository[1]["inlined"], said.append), said


def test_the_commit_that_changed_the_outcome_is_named(
    found: tuple[Bisection, list[str]], repository: tuple[Path, dict[str, str]]
) -> None:
    culprit, said = found
    shas = repository[1]
    assert (culprit.commit, culprit.subject) == (shas["the bug, by @someone"], "the bug, by @someone")
    assert culprit.parent == shas["takes the helper"]
    assert (culprit.author, culprit.changed, culprit.suspects) == ("A", ("pack.other:factor",), ())
    assert culprit.mismatch is not None
    assert (culprit.mismatch.kind, culprit.mismatch.base, culprit.mismatch.head) == ("value", "2", "3")
    assert culprit.executed <= 5
    assert len(said) >= 2


def test_a_commit_that_cannot_be_compared_is_skipped_and_may_be_the_first(
    options: api.RunOptions, repository: tuple[Path, dict[str, str]]
) -> None:
    folder, shas = repository
    git = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "checkout", "-q", "-b", "unclear", shas["asks for more"]], check=True)
    (folder / "pack" / "scaled.py").write_text(SCALED.format(5))
    subprocess.run([*git, "commit", "-q", "-a", "-m", "five"], check=True)
    unclear = bisect(options, shas["reworded"], "unclear")
    assert unclear.subject == "five"
    assert unclear.suspects == (shas["asks for more"], unclear.commit)
    assert unclear.skipped == ((shas["asks for more"], "api-change: scaled requires more (in head)"),)


def test_raising_the_same_is_the_same_outcome(options: api.RunOptions, repository: tuple[Path, dict[str, str]]) -> None:
    shas = repository[1]
    culprit = bisect(options, shas["refuses"], shas["reworded"])
    assert (culprit.subject, culprit.skipped) == ("reworded", ())
    assert culprit.mismatch is not None
    assert culprit.mismatch.kind == "exception"


def test_good_and_bad_have_to_differ(options: api.RunOptions, repository: tuple[Path, dict[str, str]]) -> None:
    shas = repository[1]
    with pytest.raises(NothingCompared, match=r"does not differ between .* the outcomes are identical") as raised:
        bisect(options, shas["first"], shas["takes the helper"])
    assert raised.value.exit_code == 3
    with pytest.raises(NothingCompared, match="the code is the same"):
        bisect(options, shas["first"], shas["mended"])
    with pytest.raises(NothingCompared, match=r"cannot be compared at .*api-change"):
        bisect(options, shas["first"], shas["asks for more"])


def test_the_order_and_the_case_are_checked(options: api.RunOptions, repository: tuple[Path, dict[str, str]]) -> None:
    shas = repository[1]
    with pytest.raises(UsageError, match="does not come after"):
        bisect(options, shas["inlined"], shas["first"])
    with pytest.raises(UsageError, match="--case 1234 is no file; bisect needs a case file"):
        bisect(replace(options, case="1234"), shas["first"], shas["inlined"])


def test_the_command_says_it_in_a_few_lines(
    found: tuple[Bisection, list[str]], repository: tuple[Path, dict[str, str]]
) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    assert show_bisection(found[0], console) == 1
    text = console.export_text()
    assert text.startswith(f"{repository[1]['the bug, by @someone']}\n  the bug, by @someone\n  A, ")
    assert "  changes pack.other:factor\n  value at return[1]\n    good 2\n    here 3\n" in text


def test_the_command_refuses_what_it_cannot_search(
    options: api.RunOptions, repository: tuple[Path, dict[str, str]]
) -> None:
    folder, shas = repository
    assert options.case is not None
    words = ["bisect", "--repo", str(folder), "--good", shas["inlined"], "--bad", shas["first"], "--case", options.case]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
