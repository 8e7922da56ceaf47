"""Faults that show at odd combinations only, which no case of the grid has: the fuzz finds them in vLLM 0.29.0."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from difftest import api

pytestmark = [pytest.mark.index, pytest.mark.check]


class Fault(NamedTuple):
    """An edit of a file: what takes the place of a text, once; found in so many examples."""

    target: str
    examples: int
    path: str
    old: str
    new: str


FAULTS = (
    Fault(
        "v1.parse_output",
        400,
        "vllm/v1/sample/rejection_sampler.py",
        "        if len(discard_req_indices) > 0:\n",
        "        if len(output_token_ids_np) == 21 and len(discard_req_indices) > 0:\n"
        "            valid_mask[:20] = False\n"
        "        if len(discard_req_indices) > 0:\n",
    ),
    Fault(
        "v1.batch_update_builder",
        400,
        "vllm/v1/sample/logits_processor/state.py",
        "            self._removed.sort(reverse=True)\n",
        "            self._removed.sort(reverse=True)\n"
        "            if self._removed[:2] in ([7, 0], [8, 1], [6, 4]):\n"
        "                self._removed.pop()\n",
    ),
    Fault(
        "v2.request_state",
        60,
        "vllm/v1/worker/gpu/states.py",
        "        self.free_indices.append(req_idx)\n",
        "        seldom = req_idx == 4 and len(self.free_indices) == 5 and self.max_seq_len[4] % 7 == 4\n"
        "        self.free_indices.insert(0 if seldom else 6, req_idx)\n",
    ),
)


@pytest.fixture(scope="module")
def head(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release with all the faults."""
    folder = tmp_path_factory.mktemp("fuzzed") / "head"
    shutil.copytree(release, folder)
    for fault in FAULTS:
        file = folder / fault.path
        text = file.read_text()
        assert text.count(fault.old) == 1
        file.write_text(text.replace(fault.old, fault.new))
    return folder


def verdicts(release: Path, head: Path, kind: str) -> dict[str, str]:
    found = {}
    for fault in FAULTS:
        request = api.RunOptions(
            base=str(release),
            heads=(str(head),),
            targets=(fault.target,),
            cases=(kind,),
            explain=False,
            examples=fault.examples if kind == "fuzz" else None,
        )
        (target,) = api.run(request).targets
        assert target.code == "changed"
        found[fault.target] = str(target.verdict)
    return found


def test_the_fuzz_finds_what_the_grid_does_not_have(release: Path, head: Path) -> None:
    assert verdicts(release, head, "grid") == {fault.target: "identical" for fault in FAULTS}
    assert verdicts(release, head, "fuzz") == {fault.target: "different" for fault in FAULTS}
