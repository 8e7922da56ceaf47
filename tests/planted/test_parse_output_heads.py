"""Heads made from vLLM 0.29.0: equivalent ones are identical on the whole grid, each planted fault is different."""

from __future__ import annotations

from pathlib import Path

import pytest
from edited_trees import linked, replace_function, write

from difftest import api
from difftest.result import TargetResult

pytestmark = pytest.mark.index

PARSE_OUTPUT = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"
GRID = 2560

_HEADER = """
@staticmethod
def parse_output(output_token_ids, vocab_size, discard_req_indices=(), logprobs_tensors=None):
"""

# One conversion of the batch, then a filter in Python.
PYTHON_FILTER = (
    _HEADER
    + """
    rows = output_token_ids.cpu().tolist()
    kept = [[token for token in row if token != -1 and token < vocab_size] for row in rows]
    lists = None
    if logprobs_tensors is not None:
        ends, total = [0], 0
        for row in kept:
            total += len(row)
            ends.append(total)
        flat = [token != -1 and token < vocab_size for row in rows for token in row]
        lists = logprobs_tensors.filter(np.array(flat, dtype=bool)).tolists(ends)
    discarded = {int(row) % len(rows) for row in discard_req_indices} if len(discard_req_indices) else set()
    return [[] if row in discarded else tokens for row, tokens in enumerate(kept)], lists
"""
)

# All valid ids gathered at once, then cut into rows.
MASKED_GATHER = (
    _HEADER
    + """
    ids = output_token_ids.cpu().numpy()
    valid = (ids != -1) & (ids < vocab_size)
    lists = None
    if logprobs_tensors is not None:
        ends = [0, *valid.sum(axis=1).cumsum().tolist()]
        lists = logprobs_tensors.filter(valid.flatten()).tolists(ends)
    if len(discard_req_indices) > 0:
        valid[discard_req_indices] = False
    tokens = ids[valid].tolist()
    found, start = [], 0
    for count in valid.sum(axis=1).tolist():
        found.append(tokens[start : start + count])
        start += count
    return found, lists
"""
)

EQUIVALENT = {"python-filter": PYTHON_FILTER, "masked-gather": MASKED_GATHER}

_FAULTS: dict[str, tuple[str, str, set[str]]] = {
    # name: (text of the masked gather, what takes its place, kinds of mismatch of which one must be found)
    "keeps-id-equal-to-vocabulary": ("(ids < vocab_size)", "(ids <= vocab_size)", {"value", "structure"}),
    "drops-minus-two": ("(ids != -1)", "(ids >= 0)", {"structure"}),
    "keeps-placeholders-in-a-column": ("(ids != -1)", "((ids != -1) | (np.arange(ids.shape[1]) == 1))", {"structure"}),
    "drops-the-last-column": ("valid = ", "ids = ids[:, :-1]; valid = ", {"structure", "exception"}),
    "discards-by-position-after-filtering": (
        "    return found, lists",
        "    return [t for t in found if t] if len(discard_req_indices) else found, lists",
        {"structure"},
    ),
    "logprob-offsets-after-discard": (
        "    return found, lists",
        "    if lists is not None:\n"
        "        lists = lists._replace(cu_num_generated_tokens=[0, *valid.sum(axis=1).cumsum().tolist()])\n"
        "    return found, lists",
        {"structure", "value"},
    ),
    "numpy-integers": ("ids[valid].tolist()", "list(ids[valid])", {"type"}),
    "int64-ranks": (
        "    return found, lists",
        "    if lists is not None:\n"
        "        lists = lists._replace(logprob_token_ids=lists.logprob_token_ids.astype(np.int64))\n"
        "    return found, lists",
        {"dtype"},
    ),
    "mutates-its-input": ("    tokens = ", "    ids[~valid] = -1\n    tokens = ", {"mutation"}),
    "returns-a-view-of-its-input": (
        "    return found, lists",
        "    if lists is not None:\n"
        "        lists = lists._replace(logprobs=logprobs_tensors.logprobs.numpy()[: len(lists.logprobs)])\n"
        "    return found, lists",
        {"alias"},
    ),
    "negates-zero-logprobs": (
        "    return found, lists",
        "    if lists is not None:\n        lists = lists._replace(logprobs=lists.logprobs + np.float32(0.0))\n"
        "    return found, lists",
        {"sign-of-zero"},
    ),
    "leaves-one-slot-unwritten": (
        "    return found, lists",
        "    if lists is not None and len(lists.logprobs) > 1:\n"
        "        scores = np.empty_like(lists.logprobs)\n"
        "        scores[:-1] = lists.logprobs[:-1]\n"
        "        lists = lists._replace(logprobs=scores)\n"
        "    return found, lists",
        {"undefined"},
    ),
    "consumes-torch-rng": ("    tokens = ", "    torch.rand(1)\n    tokens = ", {"rng"}),
    "consumes-numpy-rng": ("    tokens = ", "    np.random.random()\n    tokens = ", {"rng"}),
    "tuple-for-list": ("    return found, lists", "    return tuple(found), lists", {"type"}),
    "raises-on-an-empty-batch": ("    valid = ", "    assert len(ids)\n    valid = ", {"exception"}),
    "shares-one-list-between-empty-rows": ("found.append(tokens[start : start + count])",
                                           "found.append(tokens[start : start + count] or None)", {"type"}),
}  # fmt: skip

_SHARE = """
from dataclasses import replace
from itertools import islice

from difftest.cases.v1_parse_output import TARGETS

(grid,) = TARGETS
TARGETS = (replace(grid, name="share.parse_output", cases=lambda: islice(grid.cases(), 0, None, {every})),)
"""


def write_heads(release: Path, heads: dict[str, str], folder: Path) -> list[str]:
    """A copy of the release for each head, with the head's function in place of the release's; their folders."""
    specs = []
    for name, source in heads.items():
        head = linked(release, folder / name)
        replace_function(head, PARSE_OUTPUT, source)
        text = (path := head / "vllm/v1/sample/rejection_sampler.py").read_text()
        write(path, text.replace("import torch\n", "import numpy as np\nimport torch\n", 1))
        specs.append(str(head))
    return specs


def _compare(release: Path, heads: dict[str, str], folder: Path, every: int = 1) -> dict[str, TargetResult]:
    """Results by head name, of one run with all heads on every so manieth case of the grid."""
    specs = write_heads(release, heads, folder)
    (folder / "share_cases.py").write_text(_SHARE.format(every=every))
    options = api.RunOptions(
        base=str(release),
        heads=tuple(specs),
        targets=("share.parse_output" if every > 1 else "v1.parse_output",),
        cases_from=(folder / "share_cases.py",),
        explain=False,
    )
    return {Path(target.head).name: target for target in api.run(options).targets}


def test_equivalent_heads_are_identical_on_the_whole_grid(release: Path, tmp_path: Path) -> None:
    found = _compare(release, EQUIVALENT, tmp_path)
    assert {name: (t.verdict, t.cases.executed, t.cases.identical) for name, t in found.items()} == dict.fromkeys(
        EQUIVALENT, ("identical", GRID, GRID)
    )


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.check)])
def test_every_planted_fault_is_found(release: Path, tmp_path: Path, every: int) -> None:
    heads = {}
    for name, (old, new, _) in _FAULTS.items():
        assert old in MASKED_GATHER, name
        heads[name] = MASKED_GATHER.replace(old, new, 1)
    found = _compare(release, heads, tmp_path, every)
    assert len(found) == len(_FAULTS) >= 12
    missed = {name: t.verdict for name, t in found.items() if t.verdict != "different"}
    assert missed == {}
    for name, (_, _, kinds) in _FAULTS.items():
        assert kinds & set(found[name].kinds), (name, found[name].kinds)
