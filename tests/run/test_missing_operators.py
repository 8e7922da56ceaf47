"""An operator that head asks for and that was not compiled here: what head falls back on is not what it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_earlier_results import PLAIN_CASES
from test_relations import run

FALLS_BACK = """if hasattr(torch.ops._C, "fast_scale"):
        return torch.ops._C.fast_scale(values)
    return values * 2"""
TRIES = """try:
        return torch.ops._C.fast_scale(values)
    except AttributeError:
        return values * 2"""


@pytest.mark.parametrize("head", [FALLS_BACK, TRIES, "return torch.ops._C.fast_scale(values)"])
def test_an_operator_that_only_head_asks_for_is_named(tmp_path: Path, head: str) -> None:
    target = run(tmp_path, "return 2 * values", head, PLAIN_CASES)
    assert target.verdict == "unmeasured"
    assert "head" in target.reason and "fast_scale" in target.reason and "_C" in target.reason


def test_an_operator_that_both_ask_for_says_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, FALLS_BACK, FALLS_BACK.replace("values * 2", "2 * values"), PLAIN_CASES).verdict == "identical"
