"""What belongs to the outcome of a call: everything a caller could notice, and nothing of the call before."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from difftest.call.freeze import Freezer
from difftest.call.outcome import Caller, NotCalled, Outcome, is_environment
from difftest.call.poison import FILLS, POISON
from difftest.call.process import ProcessState
from difftest.call.rng import GlobalStates
from difftest.errors import ApiChange, LiftError, MissingSymbol
from difftest.target import Call, Case, Made, Pool, Seeded, Target


class PlainArm:
    """An arm of functions that are simply there."""

    label = "base"
    device = "cpu"

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def make(self, symbol: Any, fields: Any, optional: Any = ()) -> Any:
        return {"made": symbol, **fields}


@pytest.fixture
def caller() -> Iterator[Caller]:
    process = ProcessState()
    yield Caller("cpu", GlobalStates(), lambda text: text.replace("difftest_base.", ""))
    process.settle()


def called(caller: Caller, function: Callable[..., Any], pool: Pool | None = None, **watch: Any) -> Outcome:
    given = pool or {}

    def prepare(arm: Any, private: Pool) -> Call:
        return Call(function, kwargs=private, watch=watch)

    target, case = Target("t", (), list, prepare), Case("c", lambda: given)
    caller.process = ProcessState()  # pytest sets an environment variable between the phases of a test
    outcome = caller.call(target, "", PlainArm(), case, given, FILLS[0])  # type: ignore[arg-type]
    assert isinstance(outcome, Outcome), outcome
    return outcome


def freeze(value: Any) -> Any:
    return Freezer()(value)


# -- return and exception ---------------------------------------------------------------------------------------------


def test_a_return_is_frozen(caller: Caller) -> None:
    outcome = called(caller, lambda: ([1, 2], torch.tensor([1.5])))
    assert outcome.returned == freeze(([1, 2], torch.tensor([1.5])))
    assert (outcome.raised, outcome.changed, outcome.rng, outcome.aliases, outcome.process) == (None, (), None, (), ())


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("even here")


def _raise(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("no tokens"), ("ValueError", "no tokens")),
        (SystemExit(3), ("SystemExit", "3")),
        (KeyboardInterrupt(), ("KeyboardInterrupt", "")),
        (GeneratorExit(), ("GeneratorExit", "")),
        (MemoryError(), ("MemoryError", "")),
        (Mute(), ("Mute", "a message that cannot be had: SystemExit")),
        (
            ExceptionGroup("two", [ValueError("a"), ExceptionGroup("one", [KeyError("b")])]),
            (
                "ExceptionGroup",
                "two (2 sub-exceptions): [ValueError: a; ExceptionGroup: one (1 sub-exception): [KeyError: 'b']]",
            ),
        ),
        (ValueError("<Thing at 0x7f00deadbeef>"), ("ValueError", "<Thing at 0x...>")),
        (TypeError("difftest_base.pack.f() takes 1"), ("TypeError", "pack.f() takes 1")),
    ],
)
def test_whatever_is_raised_is_an_outcome(caller: Caller, error: BaseException, raised: tuple[str, str]) -> None:
    outcome = called(caller, _raise(error))
    assert (outcome.raised, outcome.returned) == (raised, None)
    assert not is_environment(outcome)


def test_what_cannot_run_here_is_no_outcome_of_the_code(caller: Caller) -> None:
    assert is_environment(called(caller, _raise(ImportError("No module named 'flashinfer'"))))
    assert is_environment(called(caller, _raise(RuntimeError("Found no NVIDIA driver on your system"))))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiChange("f requires k"), "api-change: f requires k"),
        (LiftError("a.py cannot be parsed"), "a.py cannot be parsed"),
        (MissingSymbol("no symbol a:b"), "api-change: no symbol a:b"),
        (ValueError("odd"), "inputs could not be made in base: ValueError: odd"),
        (SystemExit(1), "inputs could not be made in base: SystemExit: 1"),
    ],
)
def test_a_case_that_does_not_come_to_a_call(caller: Caller, error: BaseException, reason: str) -> None:
    def prepare(arm: Any, pool: Pool) -> Call:
        raise error

    target = Target("t", (), list, prepare)
    found = caller.call(target, "", PlainArm(), Case("c", dict), {}, FILLS[0])  # type: ignore[arg-type]
    assert found == NotCalled(reason)


class Unreadable:
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


def test_a_return_that_cannot_be_read_is_an_outcome(caller: Caller) -> None:
    assert called(caller, Unreadable).returned == (
        "opaque",
        "Unreadable that cannot be read: KeyboardInterrupt",
    )


# -- inputs after the call --------------------------------------------------------------------------------------------


def test_inputs_are_compared_whole_and_the_case_stays_as_it_was(caller: Caller) -> None:
    rows = torch.zeros(3, 5)
    pool: Pool = {"view": rows[:2, :3], "ids": [1, 2], "array": np.zeros(3), "same": torch.ones(1)}

    def function(view: Any, ids: Any, array: Any, same: Any) -> None:
        torch.as_strided(view, (1,), (1,), 14).fill_(7)  # the guard row's last element
        ids.append(3)
        array[1] = 2

    outcome = called(caller, function, pool)
    changed = dict(outcome.changed)
    assert list(changed) == ["view", "ids", "array"]
    assert np.frombuffer(changed["view"][5], np.float32)[14] == 7
    assert changed["ids"] == ("ints", "list", (1, 2, 3))
    assert not rows.any() and pool["ids"] == [1, 2] and not pool["array"].any()


def test_objects_made_for_the_call_and_watched_ones_are_observed(caller: Caller) -> None:
    def function(state: Any) -> None:
        state["history"].append(1)

    outcome = called(caller, function, {"state": Made("m:C", {"history": []})}, processor={"steps": 2})
    assert dict(outcome.changed)["state"] == freeze({"made": "m:C", "history": [1]})
    assert outcome.watched == (("processor", freeze({"steps": 2})),)


def test_an_object_that_each_copy_numbers_anew_is_not_a_change(caller: Caller) -> None:
    class Numbered(PlainArm):
        made = 0

        def make(self, symbol: Any, fields: Any, optional: Any = ()) -> Any:
            self.made += 1
            return {"number": self.made}

    pool: Pool = {"state": Made("m:C", {}), "ids": [1]}
    target, case, arm = Target("t", (), list, lambda _, own: Call(lambda: own["ids"])), Case("c", dict), Numbered()
    for _ in range(2):
        outcome = caller.call(target, "", arm, case, pool, FILLS[0])  # type: ignore[arg-type]
        assert isinstance(outcome, Outcome)
        assert outcome.changed == ()


# -- generators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "position"),
    [(lambda: torch.rand(1), 0), (lambda: np.random.rand(), 1), (lambda: random.random(), 2)],
)
def test_a_draw_from_a_process_wide_generator_is_seen(caller: Caller, draw: Any, position: int) -> None:
    outcome = called(caller, lambda: [draw() * 0, None][1])
    assert outcome.rng is not None
    assert [a != b for a, b in zip(outcome.rng, caller.states.start, strict=True)] == [n == position for n in range(3)]


def test_every_call_starts_from_the_same_states(caller: Caller) -> None:
    def draws() -> Any:
        return torch.rand(2), np.random.rand(2), random.random(), np.random.standard_normal()

    first = called(caller, draws)
    assert called(caller, draws) == first
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    assert called(caller, draws) == first


def test_a_generator_of_a_request_is_an_input(caller: Caller) -> None:
    pool: Pool = {"generators": {0: Seeded(7), 1: Seeded(8)}}
    outcome = called(caller, lambda generators: torch.rand(1, generator=generators[1]), pool)
    state = dict(dict(outcome.changed)["generators"][2])
    assert state["0"] == freeze(torch.Generator().manual_seed(7))
    assert state["1"] != freeze(torch.Generator().manual_seed(8))
    assert outcome.rng is None
    assert called(caller, lambda generators: None, pool).changed == ()


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "aliases"),
    [
        (lambda x, y: x.clone(), ()),
        (lambda x, y: x, ((0, "x", 0),)),
        (lambda x, y: [y, x[1:]], ((0, "y", 0), (1, "x", 8))),
        (lambda x, y: y.numpy()[2:], ((0, "y", 16),)),
        (lambda x, y: x.view(torch.uint8)[3:], ((0, "x", 3),)),
        (lambda x, y: [z := x + 1, z[1:]], ((1, "output 0", 8),)),
        (lambda x, y: [z := x.numpy() + 1, z[::-1]], ((1, "output 0", 24),)),
        (lambda x, y: [z := x + 1, z.numpy()[1:]], ((1, "output 0", 8),)),
    ],
)
def test_what_shares_memory_is_seen(caller: Caller, function: Any, aliases: Any) -> None:
    pool: Pool = {"x": torch.arange(4), "y": torch.arange(4)}
    assert called(caller, function, pool).aliases == aliases


def test_a_buffer_that_is_used_again_does_not_change_an_outcome_taken_before(caller: Caller) -> None:
    buffer = torch.zeros(3)
    first = called(caller, lambda v: buffer.fill_(v), {"v": 1.0})
    second = called(caller, lambda v: buffer.fill_(v), {"v": 2.0})
    assert first.returned == freeze(torch.full((3,), 1.0))
    assert second.returned == freeze(torch.full((3,), 2.0))


# -- the process ------------------------------------------------------------------------------------------------------


def test_a_setting_left_changed_is_said_and_put_back(caller: Caller) -> None:
    outcome = called(caller, lambda: torch.set_default_dtype(torch.float64))
    assert outcome.process == (("torch default dtype", "torch.float64"),)
    assert torch.get_default_dtype() is torch.float32
    assert called(caller, lambda: torch.ones(1)).returned == freeze(torch.ones(1, dtype=torch.float32))


def test_warning_filters_are_said_and_put_back(caller: Caller) -> None:
    before = list(warnings.filters)
    ((name, _),) = called(caller, lambda: warnings.simplefilter("error", DeprecationWarning)).process
    assert name == "warning filters"
    assert list(warnings.filters) == before


def test_environment_variables_are_said_and_put_back(caller: Caller) -> None:
    def change() -> None:
        os.environ["DIFFTEST_TEST_SET"] = "1"
        del os.environ["HOME"]

    home = os.environ["HOME"]
    assert called(caller, change).process == (("environment variables", "DIFFTEST_TEST_SET=1; no HOME"),)
    assert ("DIFFTEST_TEST_SET" in os.environ, os.environ["HOME"]) == (False, home)


def test_a_standard_descriptor_that_is_closed_is_opened_again(caller: Caller) -> None:
    ((name, _),) = called(caller, lambda: os.close(0)).process
    assert name == "standard descriptors"
    assert os.get_inheritable(0)


def test_a_setting_changed_while_loading_is_noted_and_not_there_in_the_call(caller: Caller) -> None:
    arm = PlainArm()

    def prepare(_: Any, pool: Pool) -> Call:
        torch.set_default_dtype(torch.float64)
        return Call(lambda: torch.ones(1))

    outcome = caller.call(Target("t", (), list, prepare), "", arm, Case("c", dict), {}, FILLS[0])  # type: ignore[arg-type]
    assert isinstance(outcome, Outcome)
    assert outcome.returned == freeze(torch.ones(1, dtype=torch.float32))
    assert "torch default dtype" in arm.notes[0]


def test_memory_that_making_the_call_leaves_unwritten_follows_the_fill(caller: Caller) -> None:
    """A constructor of the tree allocates, and the call reads what nobody wrote."""
    POISON.install()

    def prepare(arm: Any, private: Pool) -> Call:
        buffer = torch.empty(64, dtype=torch.uint8)
        return Call(lambda: buffer[:8].clone())

    target, case = Target("t", (), list, prepare), Case("c", dict)
    for fill in FILLS:
        outcome = caller.call(target, "", PlainArm(), case, {}, fill)  # type: ignore[arg-type]
        assert isinstance(outcome, Outcome)
        assert bytes([fill]) * 8 in data_of(outcome.returned)
    assert POISON.allocations > 0 and POISON.fill is None


def test_memory_of_tensor_new_is_counted_and_what_it_is_given_stays(caller: Caller) -> None:
    POISON.install()

    def prepare(arm: Any, private: Pool) -> Call:
        return Call(lambda: (torch.zeros(1).new(4) < 0, torch.zeros(1).new([1, 2]))[1])

    outcome = caller.call(Target("t", (), list, prepare), "", PlainArm(), Case("c", dict), {}, FILLS[0])  # type: ignore[arg-type]
    assert isinstance(outcome, Outcome)
    assert outcome.returned == freeze(torch.tensor([1.0, 2.0]))
    assert POISON.allocations > 0


def data_of(frozen: Any) -> bytes:
    """The bytes of the tensors in a frozen value."""
    if isinstance(frozen, bytes):
        return frozen
    return b"".join([data_of(part) for part in frozen]) if isinstance(frozen, tuple) else b""
