"""Calls of a made-up engine, for the tests of recording and reading."""

from __future__ import annotations

import collections
import dataclasses
import enum
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from difftest.record.capture import Recorder


class Mode(enum.Enum):
    RAW = "raw"


@dataclasses.dataclass
class Metadata:
    temperature: Any
    generators: dict[int, torch.Generator]
    output_token_ids: list[list[int]]
    mode: Mode = Mode.RAW

    def __post_init__(self) -> None:
        self.longest = max(map(len, self.output_token_ids), default=0)


Pair = collections.namedtuple("Pair", "ids ranks")


class Slotted:
    __slots__ = ("seeds",)

    def __init__(self, seeds: Any) -> None:
        self.seeds = seeds


class TinySampler(torch.nn.Module):
    """Samples a token a row, with the rows' own generators where they have one; changes the logits in place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((1,), 2.0), requires_grad=False)
        self.inner = torch.nn.Identity()
        self.select = self.greedy
        self.states = Slotted(torch.arange(3))

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    def sample(self, logits: torch.Tensor, metadata: Metadata) -> torch.Tensor:
        logits.div_(metadata.temperature)
        noise = torch.rand_like(logits)
        for row, generator in metadata.generators.items():
            noise[row] = torch.rand(logits.shape[1], generator=generator)
        np.random.random()
        random.random()
        return (logits + noise).argmax(-1)

    def forward(self, logits: torch.Tensor, metadata: Metadata, top: int = 0) -> Pair:
        ids = self.sample(logits, metadata)
        if top < 0:
            raise ValueError(f"top is {top}")
        return Pair(ids, logits)


class Engine:
    """Calls TinySampler, with forward and the sample inside it recorded when there is a recorder."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        class Sampler(TinySampler):
            pass

        if recorder is not None:
            Sampler.sample = recorder.wrap(Sampler.sample, "recorded_calls:Sampler.sample")
            Sampler.forward = recorder.wrap(Sampler.forward, "recorded_calls:Sampler.forward")
        self.recorder = recorder
        self.sampler = Sampler()

    def run(self, steps: int, rows: int = 3, vocabulary: int = 40, top: int = 0) -> list[bytes]:
        """Tokens of each step, and the generators' and process-wide states at the end, as bytes."""
        torch.manual_seed(1)
        np.random.seed(2)
        random.seed(3)
        generators = {row: torch.Generator().manual_seed(10 + row) for row in range(0, rows, 2)}
        found = []
        for step in range(steps):
            logits = torch.arange(rows * vocabulary, dtype=torch.float32).reshape(rows, vocabulary).sin()
            metadata = Metadata(torch.full((rows, 1), 0.7), generators, [[step] * step for _ in range(rows)])
            if self.recorder is None:
                pair = self.sampler(logits, metadata, top=top)
            else:
                with self.recorder.step():
                    self.recorder.requests([f"request {row}" for row in range(rows)])
                    pair = self.sampler(logits, metadata, top=top)
            found.append(pair.ids.numpy().tobytes() + pair.ranks.numpy().tobytes())
        found += [g.get_state().numpy().tobytes() for g in generators.values()]
        found.append(torch.get_rng_state().numpy().tobytes())
        found.append(np.random.get_state()[1].tobytes())
        found.append(repr(random.getstate()).encode())
        return found


def tiny_capture(path: Path, steps: int = 2, **options: Any) -> Path:
    """A capture of some steps: two calls a step, one inside the other."""
    recorder = Recorder(path, **options)
    Engine(recorder).run(steps)
    recorder.close()
    return path
