"""What a case file reads of the tree's own objects, and a version lacks, is no difference of behaviour: it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest.api import RunOptions, run
from difftest.result import TargetResult
from tests.planted.edited_trees import write

CASES = """
from difftest.target import Call, Case, Target


def prepare(arm, pool):
    counter = arm.get("pack.counter:Counter")()

    def life():
        for number in range(pool["times"]):
            counter.add(number)
        return counter.last().total, counter.total

    return Call(life)


def cases():
    for times in (1, 2, 3):
        yield Case(f"{times}", lambda times=times: {"times": times})


TARGETS = (
    Target(
        "user.counter", ("pack.counter:Counter",), cases, prepare,
        uses=("pack.counter:Counter.add", "pack.counter:Counter.last"),
    ),
)
"""

TEXT = """
class Counter:
    def __init__(self):
        self.total = 0

    def add(self, number):
        self.total += number

    def last(self):
        return self
"""


def compared(folder: Path, head: str) -> TargetResult:
    write(folder / "cases.py", CASES)
    for name, text in (("base", TEXT), ("head", head)):
        write(folder / name / "pack/__init__.py", "")
        write(folder / name / "pack/counter.py", text)
    options = RunOptions(
        str(folder / "base"), (str(folder / "head"),), targets=("user.*",), cases_from=(folder / "cases.py",), jobs=2
    )
    (target,) = run(options).targets
    return target


def test_an_attribute_of_another_name_is_an_api_change(tmp_path: Path) -> None:
    target = compared(tmp_path, TEXT.replace("total", "sum"))
    assert (target.verdict, target.cases.executed) == ("unmeasured", 3)
    assert "api-change: its Counter has no total, which the case reads (in head)" in target.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self\n", "return None\n"),  # what it reads is not of the tree
        ("self.total += number", "self.sum += number"),  # the tree's own code reads it
        ("self.total = 0", "self.kept = 0\n\n    @property\n    def total(self):\n        return self.missing"),
    ],
)
def test_what_the_code_itself_lacks_is_a_difference(tmp_path: Path, old: str, new: str) -> None:
    target = compared(tmp_path, TEXT.replace(old, new))
    assert (target.verdict, target.kinds) == ("different", {"exception": 3})
