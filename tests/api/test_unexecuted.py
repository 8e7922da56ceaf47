"""Changed lines that no case of an identical target runs are named: that the cases agree says nothing of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest.api import RunOptions, run
from difftest.reports.junit import render as junit
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


def compared(folder: Path, *head: tuple[str, str], base: tuple[tuple[str, str], ...] = (), **more: object) -> RunResult:
    (folder / "cases.py").write_text(CASES)
    for name, edits in (("base", base), ("head", head)):
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
    assert (found.lines, found.changed, found.targets) == ((4,), 1, ("user.one", "user.two"))
    assert found.cases == found.of == 6
    assert "; changed, or reached by one version alone, and run by no case: pack.one:scaled; base" in sentence(result)
    said = "what changed or is reached by head alone (line 4 of pack/one.py): run by none of the 6 identical cases of "
    said += "user.one, user.two"
    assert unexecuted_lines(result.unexecuted) == [f"pack.one:scaled: {said}"]
    assert junit(result).count(f"not run: pack.one:scaled: {said}") == 2  # in each target that reaches it


def test_lines_that_were_left_out_are_lines_of_base(tmp_path: Path) -> None:
    result = compared(tmp_path, ("    if wide:\n        return x * 2\n", ""))
    assert result.verdict == "identical"
    (found,) = result.unexecuted
    assert (found.arm, found.lines, found.changed) == ("base", (4,), 2)
    assert (
        "; changed, or reached by one version alone, and run by no case: pack.one:scaled (1 of 2 lines); base"
        in sentence(result)
    )
    assert unexecuted_lines(result.unexecuted)[0].startswith(
        "pack.one:scaled: 1 of 2 lines that changed or are reached by base alone (line 4 of pack/one.py in base): "
        "run by none of the 6 identical cases"
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


@pytest.mark.parametrize(
    "once",
    [
        "import functools\n\n\n@functools.cache\ndef once():\n    return 4\n\nx4 = lambda: once()\n",
        "MADE = None\n\n\ndef x4():\n    global MADE\n    if MADE is None:\n        MADE = 4\n    return MADE\n",
        "def made():\n    return 4\n\n\nX4 = made()\n\n\ndef x4():\n    return X4\n",
        "FOUND = {}\n\n\ndef kept(f):\n    FOUND[1] = 4\n    return f\n\n\n@kept\ndef x4():\n    return FOUND[1]\n",
    ],
    ids=["cached", "kept", "at import", "by a decorator"],
)
def test_what_runs_once_in_a_process_is_not_named(tmp_path: Path, once: str) -> None:
    other = once.replace("4\n", "int(4)\n", 1) if "return 4" in once else once.replace("= 4", "= int(4)")
    assert other != once
    for name, text in (("base", once), ("head", other)):
        write(tmp_path / name / "pack/once.py", text)
    uses = ("def scaled(x, wide):", "from pack.once import x4\n\n\ndef scaled(x, wide):"), ("x * 4", "x * x4()")
    result = compared(tmp_path, *uses, base=uses)
    assert result.verdict == "identical" and result.targets[0].code == "changed"
    assert result.unexecuted == ()


def test_a_change_that_is_too_long_to_be_known_whole_is_not_named(tmp_path: Path) -> None:
    branch = "".join(f"        x = x + {n}\n" for n in range(200))
    result = compared(tmp_path, ("        return x * 2\n", f"{branch}        return x * 2\n"))
    assert result.verdict == "identical" and result.unexecuted == ()


def test_a_difference_that_is_expected_shows_what_changed(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('[[expect]]\ntarget = "user.*"\nreason = "meant"\n')
    result = compared(tmp_path, ("return x * 4", "return x * 5"), expect=tmp_path / "e.toml")
    assert result.verdict == "expected" and result.unexecuted == ()


def test_a_folder_whose_name_is_a_pattern_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "odd[1]*").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert compared(tmp_path, ("return x * 4", "return 4 * x")).unexecuted == ()


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
