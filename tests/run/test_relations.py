"""Invariants and relations within one arm: head-only breaks are mismatches, shared ones are said and do not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest import api
from difftest.result import TargetResult

CASES = """
import torch
from difftest.target import Case, Invariant, Relation, Target


def cases():
    for number in range(1, 9):
        def build(number=number):
            return {"values": torch.arange(number, dtype=torch.float32) - 2}
        yield Case(f"{number} values", build, contract=number != 8, axes={"length": str(number)})


def reverse(pool):
    return {"values": pool["values"].flip(0)} if len(pool["values"]) > 1 else None


def reversed_alike(pool, result, other_pool, other_result):
    same = torch.equal(result.flip(0), other_result)
    return None if same else f"{result.tolist()} against {other_result.tolist()}"


TARGETS = (
    Target(
        "user.scale",
        ("pack.scale:scale",),
        cases,
        invariants=(Invariant("no result is negative", lambda given, after, result:
            None if (result >= 0).all() else f"{result.min().item()}"),),
        relations=(Relation("reversing the values reverses the result", reverse, reversed_alike, limit=5),),
    ),
)
"""


def run(tmp_path: Path, base: str, head: str, case_text: str = CASES) -> TargetResult:
    for name, body in (("base", base), ("head", head)):
        package = tmp_path / name / "pack"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "scale.py").write_text(f"import torch\n\n\ndef scale(values):\n    {body}\n")
    cases = tmp_path / "scale_cases.py"
    cases.write_text(case_text)
    (target,) = api.run(
        api.RunOptions(
            base=str(tmp_path / "base"),
            heads=(str(tmp_path / "head"),),
            targets=("user.scale",),
            cases_from=(cases,),
            jobs=1,  # limits hold for each process
        )
    ).targets
    return target


GOOD = "return values.abs()"
POSITION = "return values.abs() + torch.arange(len(values))"
NEGATIVE = "return values * 2"


def test_what_holds_in_both_arms_is_counted(tmp_path: Path) -> None:
    target = run(tmp_path, GOOD, "out = values.clone()\n    return out.abs_()")
    assert target.verdict == "identical"
    assert target.relations["no result is negative"] == {"checked": 7, "base": 0, "head": 0}
    assert target.relations["reversing the values reverses the result"] == {"checked": 5, "base": 0, "head": 0}
    assert target.sources == {"grid": 8}
    assert target.axes["length"]["3"] == {"identical": 1}


def test_what_only_head_breaks_is_a_mismatch(tmp_path: Path) -> None:
    target = run(tmp_path, GOOD, NEGATIVE)
    assert target.verdict == "different"
    assert target.kinds["invariant"] > 0
    broken = next(m for m in target.mismatches if m.kind == "invariant")
    assert (broken.leaf, broken.base, broken.head) == ("no result is negative", "holds", "-4.0")


def test_what_base_breaks_too_is_said_and_does_not_count(tmp_path: Path) -> None:
    target = run(tmp_path, POSITION, POSITION.replace("abs()", "abs().clone()"))
    assert target.verdict == "identical"
    counts = target.relations["reversing the values reverses the result"]
    assert counts["base"] == counts["head"] > 0


def test_what_head_mends_is_no_mismatch_of_its_own(tmp_path: Path) -> None:
    target = run(tmp_path, POSITION, GOOD)
    assert target.verdict == "different"
    assert "invariant" not in target.kinds
    counts = target.relations["reversing the values reverses the result"]
    assert counts["base"] > counts["head"] == 0


@pytest.mark.parametrize("head", ["return values.tolist()", "return None"])
def test_a_result_that_a_check_cannot_read_is_broken_not_a_crash(tmp_path: Path, head: str) -> None:
    target = run(tmp_path, GOOD, head)
    assert target.verdict == "different"
    assert "cannot be checked" in next(m.head for m in target.mismatches if m.kind == "invariant")


def test_what_only_one_version_comes_to_is_not_checked(tmp_path: Path) -> None:
    base = "if len(values) < 3:\n        raise ValueError('short')\n    return values.abs()"
    target = run(tmp_path, base, NEGATIVE)
    assert target.relations["no result is negative"] == {"checked": 5, "base": 0, "head": 5}


def test_a_relation_rests_between_two_checks(tmp_path: Path) -> None:
    target = run(tmp_path, GOOD, GOOD.replace("abs()", "abs().clone()"), CASES.replace("limit=5", "limit=5, every=3"))
    checked = target.relations["reversing the values reverses the result"]["checked"]
    assert checked == 2  # of the six cases that it applies to
