"""A kernel's noise is replaced by one number for each set of whole-number arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from difftest.explain.kernel_noise import KernelNoise
from difftest.explain.noise import Noise

pytest.importorskip("triton")


def drawn(noise: KernelNoise, lanes: int, *arguments: Any) -> list[float]:
    """What an arm's own noise function gives, of which only the shape and the dtype of the result count."""

    def own(*_: Any) -> Any:
        return SimpleNamespace(handle=SimpleNamespace(data=np.zeros(lanes, np.float32)))

    given = [SimpleNamespace(handle=SimpleNamespace(data=a)) if isinstance(a, np.ndarray) else a for a in arguments]
    values: list[float] = noise._noise("own", own)(*given).handle.data.tolist()
    return values


def test_the_same_arguments_give_the_same_number_and_others_another() -> None:
    noise = KernelNoise(Noise(0), "arguments", [], {})
    lanes = np.arange(8, dtype=np.int32)
    assert drawn(noise, 8, 3, lanes) == drawn(noise, 8, 3, lanes)
    assert not set(drawn(noise, 8, 3, lanes)) & set(drawn(noise, 8, 4, lanes))
    assert drawn(noise, 8, 3, lanes)[::-1] == drawn(noise, 8, 3, lanes[::-1])


def test_a_function_that_makes_its_offsets_itself_draws_a_number_for_each() -> None:
    assert len(set(drawn(KernelNoise(Noise(0), "arguments", [], {}), 64, 3))) == 64


def test_a_single_number_is_none_of_a_block() -> None:
    noise = KernelNoise(Noise(0), "arguments", [], {})
    block = drawn(noise, 8, 3, 5, np.arange(8, dtype=np.int32))
    assert drawn(noise, 1, 3, 5)[0] not in block


@pytest.mark.parametrize("seed", [-1, 0x9E3779B97F4A7C15, 2**63 - 1])
def test_a_seed_of_64_bits_is_taken(seed: int) -> None:
    noise = KernelNoise(Noise(0), "arguments", [], {})
    assert drawn(noise, 1, seed) == drawn(noise, 1, seed)


def test_what_is_no_tensor_cannot_be_replaced() -> None:
    noise = KernelNoise(Noise(0), "place", [], {})
    assert noise._noise("own", lambda seed: (seed, seed))(3) == (3, 3)
    assert noise.unknown == {"own"}
