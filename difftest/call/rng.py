"""Random number generators as input and output of a call: the process-wide ones of torch, numpy and `random`.

States are restored whole before each call and read whole after it; never by offset arithmetic, which is not the
inverse of a draw on every device.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable

import numpy as np
import torch

from difftest.target import GeneratorStates

_SEED = 20_011


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous CPU tensor."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def generator_state(generator: torch.Generator) -> bytes:
    """The whole state of a torch generator (for CUDA: seed and offset)."""
    return tensor_bytes(generator.get_state())


def held_state(value: object) -> tuple[str, bytes] | None:
    """(kind of generator, its whole state) of a generator of torch, numpy or `random`; None of anything else."""
    if isinstance(value, torch.Generator):
        return value.device.type, generator_state(value)
    if isinstance(value, np.random.Generator):
        return held_state(value.bit_generator)
    if isinstance(value, np.random.RandomState):
        return "numpy RandomState", _state_bytes(value.get_state(legacy=False))
    if isinstance(value, np.random.BitGenerator):
        return f"numpy {type(value).__name__}", _state_bytes(value.state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return "random.Random", repr(value.getstate()).encode()
    return None


def _state_bytes(state: object) -> bytes:
    """A state of numpy's as bytes: dicts of numbers, text and arrays."""
    if isinstance(state, dict):
        return repr(sorted((name, _state_bytes(item)) for name, item in state.items())).encode()
    return state.tobytes() if isinstance(state, np.ndarray) else repr(state).encode()


def _random_reader() -> Callable[[], object]:
    """Reads the state of the `random` module; straight from memory (0.3 µs against 8) where that is proven to work."""
    instance = random._inst
    address, size = id(instance) + object.__basicsize__, 4 * 625

    def state() -> bytes:
        return ctypes.string_at(address, size)

    version, words, _ = random.getstate()
    if version == 3 and np.frombuffer(state(), np.uint32).tolist() == [words[-1], *words[:-1]]:
        before = state()
        random.random()
        changed = state() != before
        random.setstate((version, words, None))
        if changed and state() == before:
            return state
    return random.getstate


class GlobalStates:
    """The process-wide generators, with a state that calls start from: a fixed one, or a recorded one.

    Args:
        device: `cpu`, or `cuda` to include the default CUDA generator.

    Attributes:
        start: the states that calls start from, as :meth:`read` gives them.
    """

    NAMES = ("rng.torch", "rng.numpy", "rng.random", "rng.cuda")

    def __init__(self, device: str = "cpu") -> None:
        torch.manual_seed(_SEED)
        np.random.seed(_SEED)
        random.seed(_SEED)
        self._torch = torch.default_generator
        self._torch_start = self._torch.get_state().clone()
        self._numpy_start = np.random.get_state()
        self._numpy_address = np.random.mtrand._rand._bit_generator.ctypes.state_address
        self._random_start = random.getstate()
        self._random = _random_reader()
        if device == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
        self._cuda = torch.cuda.default_generators[torch.cuda.current_device()] if device == "cuda" else None
        self._cuda_start = self._cuda.get_state().clone() if self._cuda is not None else None
        self.start = self.read()
        self._adopted: GeneratorStates | None = None
        self._fixed = (self._torch_start, self._numpy_start, self._random_start, self._cuda_start, self.start)

    def adopt(self, states: GeneratorStates | None) -> None:
        """Let the calls that follow start from recorded states; None: from the fixed ones again."""
        if states is self._adopted:
            return
        self._adopted = states
        self._torch_start, self._numpy_start, self._random_start, self._cuda_start, self.start = self._fixed
        if states is not None:
            self._torch_start = torch.frombuffer(bytearray(states.torch_cpu), dtype=torch.uint8)
            self._numpy_start, self._random_start = states.numpy_state, states.random_state
            if self._cuda is not None and (recorded := states.torch_cuda.get(self._cuda.device.index)) is not None:
                self._cuda_start = torch.frombuffer(bytearray(recorded.state), dtype=torch.uint8)
        self.restore()
        self.start = self.read()

    def as_read(self, states: GeneratorStates) -> tuple[object, ...]:
        """Recorded states as :meth:`read` gives them; the calls that follow start where they did before."""
        before = self._adopted
        self.adopt(states)
        found = self.start
        self.adopt(before)
        return found

    def read(self) -> tuple[object, ...]:
        """The states now; equal tuples mean equal states. A CUDA state is last, when there is one."""
        states = (
            generator_state(self._torch),
            ctypes.string_at(self._numpy_address, 4 * 625),
            self._random(),
        )
        return states if self._cuda is None else (*states, generator_state(self._cuda))

    def restore(self) -> None:
        """Put every generator back to the starting state."""
        self._torch.set_state(self._torch_start)
        np.random.set_state(self._numpy_start)
        random.setstate(self._random_start)
        if self._cuda is not None and self._cuda_start is not None:
            self._cuda.set_state(self._cuda_start)

    def after(self) -> tuple[object, ...] | None:
        """The states after a call, None when the call left them as they were; restored either way."""
        states = self.read()
        if states == self.start:
            return None
        self.restore()
        return states
