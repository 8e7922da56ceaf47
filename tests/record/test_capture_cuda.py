"""Recording on a GPU: copies in stream order, generators with offsets, no part in graph capture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from difftest.record.capture import Recorder
from difftest.record.format import open_capture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def sample(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    logits.div_(0.7)
    noise = torch.rand(logits.shape, device="cuda", generator=generator) + torch.rand_like(logits)
    return (logits + noise).argmax(-1)


def run(recorder: Recorder | None, steps: int) -> list[torch.Tensor]:
    function = sample if recorder is None else recorder.wrap(sample, "m:sample")
    torch.cuda.manual_seed(3)
    generator = torch.Generator("cuda").manual_seed(4)
    found = [function(torch.arange(40_000.0, device="cuda").view(8, 5000).sin(), generator) for _ in range(steps)]
    return [*found, generator.get_state(), torch.cuda.get_rng_state()]


def test_outputs_and_generators_are_the_same_and_inputs_are_those_before_the_call(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    found = run(recorder, 4)
    recorder.close()
    plain = run(None, 4)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    torch.cuda.manual_seed(3)
    (rank,) = open_capture(tmp_path).ranks
    assert rank.environment["device"] == torch.cuda.get_device_name()
    for call, tokens in zip(open_capture(tmp_path).calls(0), found, strict=False):
        (device,) = call.rng_before.torch_cuda
        state = call.rng_before.torch_cuda[device]
        assert state.state == torch.cuda.get_rng_state().cpu().numpy().tobytes()
        assert state.offset is not None
        on_cpu, recorded = call.inputs().args
        assert on_cpu.device.type == "cpu"
        assert torch.equal(on_cpu, torch.arange(40_000.0, device="cuda").view(8, 5000).sin().cpu())
        logits = call.inputs("cuda").args[0]
        generator = recorded.make()
        assert generator.get_offset() == recorded.offset
        assert torch.equal(sample(logits, generator), tokens)
        assert torch.equal(call.output(), tokens.cpu())
        assert call.generators_after is not None and call.rng_after is not None
        assert call.generators_after[0].state == generator.get_state().numpy().tobytes()
        assert call.rng_after.torch_cuda[device].state == torch.cuda.get_rng_state().cpu().numpy().tobytes()


def test_a_copy_waits_for_the_work_before_it_and_not_for_the_work_after(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    function = recorder.wrap(lambda x: x.fill_(-1.0), "m:f")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            value = torch.zeros(20_000_000, device="cuda")
            for _ in range(200):
                value += 1
            function(value)
    recorder.close()
    for call in open_capture(tmp_path).calls(0):
        assert call.inputs().args[0].unique().tolist() == [200.0]
        assert call.output().unique().tolist() == [-1.0]


def test_graph_capture_goes_on_without_a_record(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    function = recorder.wrap(lambda x: x * 2, "m:f")
    value = torch.ones(1000, device="cuda")
    function(value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = function(value)
    value.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert doubled.unique().tolist() == [10.0]
    recorder.close()
    (rank,) = open_capture(tmp_path).ranks
    assert rank.calls == 1
    assert rank.notes == ("calls during CUDA graph capture are not recorded",)
