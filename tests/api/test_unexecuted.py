"""Changed lines that no case of an identical target runs are named: that the cases agree says nothing of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest.api import RunOptions, run
from difftest.reports.sentence import sentence
from difftest.reports.words import unexecuted_lines
from difftest.result import RunResult
from difftest.run.explaining import varied
from tests.planted.edited_trees import write

CASES = """
import torch
from difftest.target import Case, Target


def cases():
    for rows in (1, 2, 3):
        yield Case(f"{rows} rows", lambda rows=rows: {"x": torch.arange(rows)}, axes={"rows": str(rows)})


TARGETS = (
    Target("user.one", ("pack.one:one",), cases),
    Target("user.two", ("pack.one:two",), cases),
)
"""

TEXT = """
def scaled(x, wide):
    if wide:
        return x * 2
    if len(x) > 2:
        return x * 4
    return x


def one(x):
    return scaled(x, wide=False)


def two(x):
    return scaled(x, wide=False) + 1
"""


def compared(folder: Path, *head: tuple[str, str], **more: object) -> RunResult:
    (folder / "cases.py").write_text(CASES)
    for name, edits in (("base", ()), ("head", head)):
        text = TEXT
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        write(folder / name / "pack/__init__.py", "")
        write(folder / name / "pack/one.py", text)
    options = {"targets": ("user.*",), "cases_from": (folder / "cases.py",), "jobs": 1, **more}
    return run(RunOptions(str(folder / "base"), (str(folder / "head"),), **options))  # type: ignore[arg-type]


UNUSED = ("return x * 2", "return x * 3")


def test_a_line_that_no_case_runs_is_named(tmp_path: Path) -> None:
    result = compared(tmp_path, UNUSED)
    assert result.verdict == "identical"
    (found,) = result.unexecuted
    assert (found.symbol, found.arm, found.path) == ("pack.one:scaled", "head", "pack/one.py")
    assert (found.lines, found.changed, found.targets, found.cases) == ((4,), 1, ("user.one", "user.two"), 6)
    assert "; changed and run by none of the cases looked at: pack.one:scaled; base" in sentence(result)
    said = "what changed (line 4 of pack/one.py): run by none of the 6 cases looked at of user.one, user.two"
    assert unexecuted_lines(result) == [f"pack.one:scaled: {said}"]


def test_lines_that_were_left_out_are_lines_of_base(tmp_path: Path) -> None:
    result = compared(tmp_path, ("    if wide:\n        return x * 2\n", ""))
    assert result.verdict == "identical"
    (found,) = result.unexecuted
    assert (found.arm, found.lines, found.changed) == ("base", (4,), 2)
    assert "run by none" not in sentence(result)  # one of the two is run
    assert unexecuted_lines(result)[0].startswith(
        "pack.one:scaled: 1 of 2 changed lines (line 4 of pack/one.py in base): run by none of the 6 cases looked at"
    )


def test_what_some_case_runs_is_not_named(tmp_path: Path) -> None:
    result = compared(tmp_path, ("return x * 4", "return 4 * x"))
    assert result.verdict == "identical" and result.unexecuted == ()


def test_what_shows_in_a_target_that_differs_is_not_named(tmp_path: Path) -> None:
    result = compared(tmp_path, UNUSED, ("wide=False) + 1", "wide=len(x) > 1) + 1"))
    assert [target.verdict for target in result.targets] == ["identical", "different"]
    assert result.unexecuted == ()


def test_nothing_is_said_without_a_look(tmp_path: Path) -> None:
    assert compared(tmp_path, UNUSED, explain=False).unexecuted == ()


def test_what_runs_when_a_file_is_loaded_is_not_named(tmp_path: Path) -> None:
    result = compared(tmp_path, ("def scaled(x, wide):", "def scaled(x, wide=False):"))
    assert result.verdict == "identical" and result.unexecuted == ()


def test_a_definition_that_head_adds_is_named(tmp_path: Path) -> None:
    result = compared(
        tmp_path,
        ("return x * 2", "return doubled(x)"),
        ("\ndef one", "\ndef doubled(x):\n    return x * 2\n\n\ndef one"),
    )
    assert {found.symbol for found in result.unexecuted} == {"pack.one:scaled", "pack.one:doubled"}
    assert ": pack.one:scaled and 1 more; base" in sentence(result)


@pytest.mark.parametrize("axes", [[{"a": 1}, {"a": 1}, {"a": 2, "b": 1}], [{}, {}, {}]])
def test_cases_come_in_an_order_in_which_each_is_unlike_those_before(axes: list[dict[str, int]]) -> None:
    assert list(varied([7, 8, 9], axes)) == ([9, 7, 8] if axes[0] else [7, 8, 9])
