"""What a captured call costs: the time that is added to it, against a `torch.clone` of each piece that is copied.

    pytest -m check -s tests/record/test_capture_cost.py

Prints all sizes, with calls in a row and with an engine's load between calls, after which nothing of the recorder is in
the processor's caches. Both times are taken in turn, in the same run, of this thread alone.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from difftest.record.capture import Recorder

SIZES = ((1, 96), (4, 1_000), (4, 16_000), (16, 32_000), (16, 64_000), (16, 151_936))
"""Requests, each with three draft tokens, and vocabulary."""

LIMIT, FROM = 1.5, 16e6
"""The ratio that is kept to, and from how many bytes on: below, it is a fixed time of Python that counts."""

ROUNDS = 30


class TopK(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logprobs_mode, self.use_fp64_gumbel = "raw_logprobs", False
        self.forward = self.forward_cpu

    def forward_cpu(self) -> None: ...


class Sampler(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.topk_topp_sampler = TopK()
        self.pin_memory, self.logprobs_mode, self.use_fp64_gumbel = False, "raw_logprobs", False


class RejectionSampler(torch.nn.Module):
    """Shaped as V1's; its forward only returns an output that is there."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.sampler = Sampler()
        self.synthetic_mode, self.use_fp64_gumbel, self.is_processed_logprobs_mode = False, False, False
        self._output = (output,)

    def forward(self, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        return self._output[0]


@dataclasses.dataclass
class SpecDecodeMetadata:
    draft_token_ids: torch.Tensor
    num_draft_tokens: list[int]
    cu_num_draft_tokens: torch.Tensor
    cu_num_sampled_tokens: torch.Tensor
    target_logits_indices: torch.Tensor
    bonus_logits_indices: torch.Tensor
    logits_indices: torch.Tensor
    max_spec_len: int = 3


class MinTokens:
    def __init__(self) -> None:
        self.device, self.min_toks = torch.device("cpu"), dict[int, Any]()
        self.logits_slice = torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
        self.neg_inf_tensor = torch.tensor(float("-inf"))


@dataclasses.dataclass
class SamplingMetadata:
    temperature: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    frequency_penalties: torch.Tensor
    presence_penalties: torch.Tensor
    repetition_penalties: torch.Tensor
    generators: dict[int, torch.Generator]
    logitsprocs: list[MinTokens]
    spec_token_ids: list[list[int]]
    output_token_ids: list[list[int]]
    all_greedy: bool = False
    all_random: bool = False
    no_penalties: bool = True
    max_num_logprobs: int | None = None
    prompt_token_ids: torch.Tensor | None = None
    allowed_token_ids_mask: torch.Tensor | None = None
    bad_words_token_ids: dict[int, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Output:
    sampled_token_ids: torch.Tensor
    logprobs_tensors: Any = None


def call(rows: int, vocabulary: int, generators: dict[int, torch.Generator]) -> tuple[tuple[Any, ...], Any]:
    """Arguments of `forward`, as new as an engine's, and its output."""
    ids = torch.int32
    metadata = SpecDecodeMetadata(
        torch.zeros(3 * rows, dtype=ids),
        [3] * rows,
        torch.zeros(rows, dtype=ids),
        torch.zeros(rows, dtype=ids),
        torch.zeros(3 * rows, dtype=ids),
        torch.zeros(rows, dtype=ids),
        torch.arange(4 * rows),
    )
    floats = [torch.rand(64)[:rows] for _ in range(5)]
    sampling = SamplingMetadata(
        *floats[:2],
        torch.zeros(64, dtype=ids)[:rows],
        *floats[2:],
        generators,
        [MinTokens()],
        [[n, n, n] for n in range(rows)],
        [],
    )
    return (metadata, None, torch.rand(4 * rows, vocabulary), sampling), Output(torch.zeros(rows, 4, dtype=ids))


def pieces(value: Any) -> list[torch.Tensor]:
    """All tensors in there."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, list | tuple):
        value = list(getattr(value, "__dict__", {}).values())
    return [tensor for item in value for tensor in pieces(item)]


class Load:
    """What an engine does between two calls: more memory than caches hold, and other code."""

    def __init__(self) -> None:
        self.weights, self.state = torch.rand(1024, 16 * 1024), torch.rand(1, 1024)
        self.requests = [{"id": str(n), "tokens": [n, n], "parameters": {"seed": n}} for n in range(3000)]

    def __call__(self) -> None:
        torch.mm(self.state, self.weights).softmax(-1)
        json.dumps(self.requests)
        self.weights.sum()


def measured(rows: int, vocabulary: int, load: Load | None, out: Path) -> tuple[int, float, float]:
    """Bytes copied, seconds added to a call, and seconds of cloning each piece."""
    generators = {n: torch.Generator().manual_seed(n) for n in range(min(rows, 3))}
    recorder = Recorder(out)
    wrapped = recorder.wrap(RejectionSampler.forward, f"{__name__}:RejectionSampler.forward")
    plain: Any = RejectionSampler.forward
    clock = time.thread_time
    times: dict[str, list[float]] = {"clones": [], "plain": [], "recorded": []}
    size = 0
    for _ in range(ROUNDS):
        args, output = call(rows, vocabulary, generators)
        sampler = RejectionSampler(output)
        states = [torch.get_rng_state(), torch.zeros(2500, dtype=torch.uint8), torch.zeros(2500, dtype=torch.uint8)]
        states += [generator.get_state() for generator in generators.values()]
        parts = [*pieces((args, output)), *states, *states]
        size = sum(part.nbytes for part in parts)
        for name, function in (("clones", None), ("plain", plain), ("recorded", wrapped)):
            if load is not None:
                load()
            start = clock()
            kept = [part.clone() for part in parts] if function is None else function(sampler, *args)
            times[name].append(clock() - start)
            del kept
        assert recorder.flush()
    recorder.close()
    middle = {name: statistics.median(found[3:]) for name, found in times.items()}
    return size, middle["recorded"] - middle["plain"], middle["clones"]


@pytest.mark.check
def test_a_large_call_costs_little_more_than_a_clone_of_it(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        failed = []
        for load in (None, Load()):
            for rows, vocabulary in SIZES:
                out = tmp_path / f"{rows}-{vocabulary}-{load is None}"
                size, added, clones = measured(rows, vocabulary, load, out)
                said = "calls in a row" if load is None else "load between calls"
                line = f"{size / 1e6:8.3f} MB, {said}: {1e6 * added:7.0f} µs added, {1e6 * clones:7.0f} µs to clone"
                print(f"{line}, ratio {added / clones:.2f}")
                if size >= FROM and added > LIMIT * clones:
                    failed.append(line)
        assert not failed
    finally:
        torch.set_num_threads(threads)
