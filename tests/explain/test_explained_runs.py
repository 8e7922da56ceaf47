"""What a run says of the cause of a difference, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest import api
from difftest.result import RunResult, TargetResult

CASES = """
import torch
from difftest.target import Case, Target


def cases():
    for rows in (1, 2, 3):
        for scale in ("none", "half"):
            def build(rows=rows, scale=scale):
                return {"values": torch.arange(rows * 4.0).reshape(rows, 4), "scale": scale}
            yield Case(f"{rows} rows, {scale}", build, axes={"rows": str(rows), "scale": scale})


TARGETS = (Target("user.scale", ("pack.scale:scale",), cases, rows=("return",)),)
"""
BASE = """
def halved(values):
    return values * 0.5


def scale(values, scale):
    if scale == "half":
        return halved(values)
    return values + 0.0
"""


def run(tmp_path: Path, head: str, base: str = BASE, cases: str = CASES, **options: object) -> TargetResult:
    (target,) = whole_run(tmp_path, head, base, cases, **options).targets
    return target


def whole_run(tmp_path: Path, head: str, base: str = BASE, cases: str = CASES, **options: object) -> RunResult:
    for name, text in (("base", base), ("head", head)):
        package = tmp_path / name / "pack"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "scale.py").write_text(text)
    path = tmp_path / "scale_cases.py"
    path.write_text(cases)
    return api.run(
        api.RunOptions(
            base=str(tmp_path / "base"),
            heads=(str(tmp_path / "head"),),
            targets=("user.scale",),
            cases_from=(path,),
            **options,  # type: ignore[arg-type]
        )
    )


def test_the_differing_cases_their_axes_and_the_lines_that_only_they_ran(tmp_path: Path) -> None:
    found = run(tmp_path, BASE.replace("values * 0.5", "values * 0.25"))
    assert found.verdict == "different"
    (group,) = found.groups
    assert (group.cases, group.leaves, group.likeness) == (3, ("return",), "different")
    assert group.condition == 'scale "half"'
    assert group.rules == ('all 3 cases, but none of the 3 identical cases, have scale "half"',)
    assert [(way.kind, way.place, way.cases) for way in group.ways] == [("value", "return", 3)]
    assert group.first == found.mismatches[0]
    assert (group.first.base_hex, group.first.head_hex, group.first.request) == ("0x3f000000", "0x3e800000", 0)
    assert group.lines == ("pack/scale.py:3",)
    assert group.label == "1 rows, half"
    (change,) = found.changes
    marks = {line.sign: line.ran for line in change.lines if line.sign != " "}
    assert marks == {"-": "differing", "+": "differing"}
    assert found.traced == {"differing": 2, "identical": 3}


def test_without_the_pass_groups_and_changes_are_there_and_nothing_is_run_again(tmp_path: Path) -> None:
    found = run(tmp_path, BASE.replace("values * 0.5", "values * 0.25"), explain=False)
    (group,) = found.groups
    assert (group.cases, group.rules, group.lines, found.traced) == (3, (), (), {})
    assert {line.ran for change in found.changes for line in change.lines} == {""}


def test_an_identical_target_is_not_explained(tmp_path: Path) -> None:
    found = run(tmp_path, BASE.replace("values * 0.5", "values / 2"))
    assert (found.verdict, found.groups, found.changes, found.traced) == ("identical", (), (), {})


def test_two_causes_are_two_groups_and_each_has_its_own_rule_and_lines(tmp_path: Path) -> None:
    head = BASE.replace("values * 0.5", "values * 0.25").replace(
        "values + 0.0", "values.double() if len(values) > 2 else values + 0.0"
    )
    first, second = run(tmp_path, head).groups
    assert (first.cases, first.kinds, first.lines) == (3, ("value",), ("pack/scale.py:3",))
    assert (second.cases, second.kinds) == (1, ("dtype",))
    assert (first.condition, second.condition) == ('scale "half"', "")
    assert [rule.endswith('has rows "3"') for rule in second.rules] == [True]


def test_where_a_version_raises_is_named_with_the_text_of_the_line(tmp_path: Path) -> None:
    head = BASE.replace("    return values * 0.5", "    assert len(values) < 3, 'many'\n    return values * 0.5")
    (group,) = run(tmp_path, head).groups
    assert group.kinds == ("exception",)
    assert (group.raised, group.raising) == (("head pack/scale.py:3",), ("assert len(values) < 3, 'many'",))


UNDER_A_TRACER = "    if sys.gettrace() is not None:\n        "


@pytest.mark.parametrize(
    ("death", "said"),
    [("import os; os._exit(3)", "leaves out where"), ("import time; time.sleep(60)", "ended early")],
)
def test_a_call_that_ends_the_process_in_the_look_for_causes_ends_no_more(
    tmp_path: Path, death: str, said: str
) -> None:
    head = f"import sys\n{BASE.replace('values * 0.5', 'values * 0.25')}"
    head = head.replace("def halved(values):\n", f"def halved(values):\n{UNDER_A_TRACER}{death}\n")
    found = run(tmp_path, head, timeout=2.0)
    assert (found.verdict, found.cases.different) == ("different", 3)
    assert len(found.groups) == 1
    assert any(f"looking for the cause {said}" in note for note in found.notes)


def test_the_look_for_causes_ends_where_every_call_ends_the_process(tmp_path: Path) -> None:
    head = f"import sys\n{BASE.replace('values * 0.5', 'values * 0.25')}"
    head = head.replace(
        "def scale(values, scale):\n", f"def scale(values, scale):\n{UNDER_A_TRACER}import os; os._exit(3)\n"
    )
    found = run(tmp_path, head)
    assert (found.verdict, found.cases.different, found.traced) == ("different", 3, {})
    assert any("looking for the cause ended early" in note for note in found.notes)


def test_where_one_case_ends_the_process_the_others_are_looked_into(tmp_path: Path) -> None:
    head = f"import os\n{BASE.replace('values * 0.5', 'values * 0.25')}".replace(
        "values + 0.0", "values + 0.0 if len(values) < 3 else os.abort()"
    )
    first, second = run(tmp_path, head).groups
    assert (first.kinds, first.cases, first.lines) == (("value",), 3, ("pack/scale.py:4",))
    assert (first.condition, second.kinds, second.cases) == ('scale "half"', ("crash",), 1)


DRAWN = """
import torch
from difftest.target import Case, Sampling, Target


def cases():
    for rows in range(1, 9):
        def build(rows=rows):
            return {"probs": torch.full((rows, 4), 0.25), "kind": rows % 2}
        yield Case(f"{rows} rows", build, axes={"rows": str(rows)})


SAMPLE = Sampling(lambda number: {"probs": torch.full((4096, 4), 0.25), "kind": 1}, lambda ids: ids, 4)
TARGETS = (Target("user.scale", ("pack.scale:scale",), cases, rows=("return",), sampling=SAMPLE),)
"""
DRAWS = """
import os, sys
import torch

CALLS = 0


def scale(probs, kind):
    global CALLS
    if kind == 0:
        return torch.zeros(len(probs), dtype=torch.int64)
    MORE
    return (probs / torch.empty_like(probs).exponential_()).argmax(1)
"""
ANOTHER_LAW = """if len(probs) > 100:
        CALLS += 1
        if CALLS == 8:
            os.abort()
        return (probs / torch.empty_like(probs).exponential_()).argmax(1) * 0
    torch.empty(1).exponential_()"""
UNDER_NOISE = """torch.empty(1).exponential_()
    if any(frame.f_code.co_name == "noisy" for frame in frames()):
        os.abort()"""
FRAMES = """

def frames():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
"""


@pytest.mark.parametrize("jobs", [1, 4])
def test_what_ends_where_it_is_sampled_is_not_said_to_be_the_same(tmp_path: Path, jobs: int) -> None:
    base, head = DRAWS.replace("    MORE\n", ""), DRAWS.replace("MORE", ANOTHER_LAW)
    found = run(tmp_path, head, base, DRAWN, jobs=jobs)
    (group,) = found.groups
    assert (group.cases, group.likeness) == (4, "different")
    assert any("looking for the cause ended early" in note for note in found.notes)


@pytest.mark.parametrize("jobs", [1, 4])
def test_what_was_found_before_a_case_ended_the_process_stays(tmp_path: Path, jobs: int) -> None:
    base, head = DRAWS.replace("    MORE\n", ""), DRAWS.replace("MORE", UNDER_NOISE) + FRAMES
    found = run(tmp_path, head, base, DRAWN, jobs=jobs)
    assert found.traced["differing"] == 2 and found.groups[0].lines
    assert any("looking for the cause leaves out where a call ends" in note for note in found.notes)


def test_lines_that_ran_where_the_look_at_identical_cases_ended_are_not_said_to_be_run_by_none(tmp_path: Path) -> None:
    base = BASE.replace('if scale == "half":', 'if scale == "half" and len(values) == 2:')
    head = f"import sys\n{base.replace('values * 0.5', 'values / 2')}"
    head = head.replace("def halved(values):\n", f"def halved(values):\n{UNDER_A_TRACER}import os; os._exit(3)\n")
    found = whole_run(tmp_path, head, base)
    assert (found.verdict, found.unexecuted) == ("identical", ())


def test_positions_in_a_tuple_tell_groups_apart_and_those_in_a_list_do_not(tmp_path: Path) -> None:
    base = "def scale(values, scale):\n    return [0] * len(values), (values, values + 0.0)\n"
    head = base.replace("values + 0.0", "values + 1.0").replace("[0]", "[1 if scale == 'half' else 0]")
    first, second = run(tmp_path, head, base).groups
    assert (first.leaves, first.cases) == (("return[1][1]",), 6)
    assert (second.leaves, second.cases) == (("return[0]",), 3)


def test_each_group_has_an_example_however_many_cases_differ_before(tmp_path: Path) -> None:
    cases = CASES.replace("(1, 2, 3)", "range(1, 240)")
    head = BASE.replace("values * 0.5", "values * 0.25").replace(
        "values + 0.0", "values.double() if len(values) == 239 else values + 1.0"
    )
    groups = run(tmp_path, head, cases=cases, jobs=1, explain=False).groups
    assert all(group.first is not None and group.first.kind in group.kinds for group in groups)
    assert {kind for group in groups for kind in group.kinds} == {"value", "dtype"}
