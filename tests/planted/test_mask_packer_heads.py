"""Heads made from vLLM 0.29.0 with a mask packer in plain torch: one equivalent, the others with a fault each."""

from __future__ import annotations

from pathlib import Path

import pytest
from edited_trees import linked, replace_function

from difftest import api
from difftest.result import TargetResult

pytestmark = pytest.mark.index

FROM_LOGITS = "vllm.v1.worker.gpu.sample.output:SamplingMaskTensors.from_logits"

# Bits of the finite logits of requests that sampled something, eight to a byte, the lowest first.
PACKER = """
@classmethod
def from_logits(cls, logits, num_sampled_tokens):
    rows, vocabulary = logits.shape
    width = (vocabulary + 7) // 8
    kept = torch.isfinite(logits) & (num_sampled_tokens > 0)[:, None]
    padded = torch.zeros((rows, width * 8), dtype=torch.int32)
    padded[:, :vocabulary] = kept
    weights = 2 ** torch.arange(8, dtype=torch.int32)
    packed = torch.empty((rows, width), dtype=torch.uint8)
    packed[:] = (padded.reshape(rows, width, 8) * weights).sum(2).to(torch.uint8)
    counts = kept.sum(1).to(torch.int32)
    return cls(packed, counts, vocabulary)
"""

FAULTS = {
    "keeps-plus-infinity": ("torch.isfinite(logits)", "(logits > -float('inf'))"),
    "drops-the-last-id": ("    padded = ", "    kept[:, -1:] = False\n    padded = "),
    "highest-bit-first": ("2 ** torch.arange(8,", "2 ** torch.arange(7, -1, -1,"),
    "leaves-the-last-byte-unwritten": ("    packed[:] = (", "    packed[:, : width - 1] = ("),
    "counts-of-int64": (".to(torch.int32)\n    return", "\n    return"),
    "row-of-the-next-request": ("    counts = ", "    packed = packed.roll(1, 0)\n    counts = "),
    "counts-requests-that-sampled-nothing": ("kept.sum(1)", "torch.isfinite(logits).sum(1)"),
    "changes-its-logits": ("    padded = ", "    logits[~kept] = -float('inf')\n    padded = "),
    "consumes-random-numbers": ("    padded = ", "    torch.rand(1)\n    padded = "),
}


def _compare(release: Path, heads: dict[str, str], folder: Path) -> dict[str, TargetResult]:
    specs = []
    for name, source in heads.items():
        head = linked(release, folder / name)
        replace_function(head, FROM_LOGITS, source)
        specs.append(str(head))
    options = api.RunOptions(base=str(release), heads=tuple(specs), targets=("v2.sampling_mask",), explain=False)
    return {Path(target.head).name: target for target in api.run(options).targets}


def test_the_packer_in_plain_torch_is_equivalent_and_each_fault_in_it_is_found(release: Path, tmp_path: Path) -> None:
    heads = {"plain-torch": PACKER}
    for name, (old, new) in FAULTS.items():
        assert old in PACKER, name
        heads[name] = PACKER.replace(old, new, 1)
    found = _compare(release, heads, tmp_path)
    equivalent = found.pop("plain-torch")
    assert (equivalent.verdict, equivalent.cases.identical) == ("identical", equivalent.cases.executed)
    assert {name: t.verdict for name, t in found.items()} == dict.fromkeys(FAULTS, "different")
