"""A head that hands out the same memory at every call gives an earlier caller what a later one asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_relations import CASES, run

PLAIN_CASES = CASES[: CASES.index("TARGETS")] + 'TARGETS = (Target("user.scale", ("pack.scale:scale",), cases),)\n'
BUFFER = """global BUFFER
    BUFFER = globals().get("BUFFER", torch.zeros(64))
    BUFFER[: len(values)].copy_(values * 2)
    return BUFFER[: len(values)]"""
LAZY = "return (v for v in values.tolist())"


def test_a_result_that_the_next_call_overwrites_is_an_alias(tmp_path: Path) -> None:
    target = run(tmp_path, "return values * len(values)", BUFFER.replace("* 2", "* len(values)"), PLAIN_CASES)
    assert target.verdict == "different"
    assert "alias" in target.kinds


def test_an_arm_that_always_did_so_is_no_finding(tmp_path: Path) -> None:
    target = run(tmp_path, BUFFER, BUFFER.replace("values * 2", "2 * values"), PLAIN_CASES)
    assert "alias" not in target.kinds


@pytest.mark.parametrize("head", [LAZY, LAZY.replace("v for", "v + 1 for")])
def test_a_lazy_result_is_never_identical(tmp_path: Path, head: str) -> None:
    target = run(tmp_path, LAZY.replace("(v for v", "(w for w").replace("v for v", "w for w"), head, PLAIN_CASES)
    assert target.verdict == "unmeasured"
    assert "generator" in target.reason


KEEPS = """global KEPT
    if (kept := globals().get("KEPT")) is not None:
        kept.zero_()
    KEPT = values
    return values * 2"""


def test_an_input_that_is_kept_and_changed_by_the_next_call_is_a_mutation(tmp_path: Path) -> None:
    target = run(tmp_path, "return 2 * values", KEEPS, PLAIN_CASES)
    assert target.verdict == "different"
    assert "mutation" in target.kinds
    assert {m.leaf for m in target.mismatches} == {"values"}


def test_an_arm_that_always_changed_what_it_kept_is_no_finding(tmp_path: Path) -> None:
    target = run(tmp_path, KEEPS, KEEPS.replace("values * 2", "2 * values"), PLAIN_CASES)
    assert "mutation" not in target.kinds
