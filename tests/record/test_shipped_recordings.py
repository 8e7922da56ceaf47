"""The recordings that come with difftest: small, whole, and agreed on by both ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from difftest.record.format import RecordedCall, open_capture

FOLDER = Path(__file__).parents[2] / "oracles/recordings"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/rank-0"))


def tokens(call: RecordedCall) -> list[list[int]] | None:
    """The tokens that a sampler call committed, row by row; what a V2 sampler leaves undefined is left out."""
    output = call.output()
    sampled = getattr(output, "fields", {}).get("sampled_token_ids")
    if not isinstance(sampled, torch.Tensor):
        return None
    counts = output.fields.get("num_sampled")
    if counts is None:
        return sampled.tolist()
    return [row[:count] for row, count in zip(sampled.tolist(), counts.tolist(), strict=True)]


def test_they_are_there_and_small() -> None:
    assert {name[:2] for name in NAMES} == {"v1", "v2"}
    assert {name.split("-")[1] for name in NAMES} >= {"ngram", "draft"}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 5_000_000


@pytest.mark.parametrize("name", NAMES)
def test_both_ranks_are_whole_and_agree(name: str) -> None:
    capture = open_capture(FOLDER / name)
    assert [(rank.name, rank.world_size, rank.incomplete) for rank in capture.ranks] == [
        ("rank-0", 2, ""),
        ("rank-1", 2, ""),
    ]
    calls = [list(capture.calls(rank)) for rank in capture.ranks]
    sampled = 0
    for first, second in zip(*calls, strict=True):
        assert (first.site, first.step, first.request_ids) == (second.site, second.step, second.request_ids)
        assert first.opaque == () and first.raised is None
        assert first.rng_before.torch_cpu == second.rng_before.torch_cpu
        committed = tokens(first)
        assert committed == tokens(second)
        sampled += committed is not None
    assert sampled >= 4
    assert first.environment["versions"]["vllm"]


@pytest.mark.parametrize("name", NAMES)
def test_they_name_no_machine_and_no_request(name: str) -> None:
    for manifest in (FOLDER / name).glob("*/manifest.jsonl"):
        text = manifest.read_text()
        assert not any(word in text for word in ("/tmp", "/home", "/root", "cmpl-"))
    for call in open_capture(FOLDER / name).calls(0):
        assert call.request_ids and all(request.startswith("request-") for request in call.request_ids)
