"""A case's id is a hash of its content, the same everywhere; a copy of its pool keeps what a caller can notice."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from difftest.call.values import case_id, own_copy
from difftest.target import Made, Pool, Seeded


def pool() -> Pool:
    block = torch.arange(20, dtype=torch.float32).view(4, 5)
    return {
        "logits": block[1:3, :4],
        "same_rows": block[1:3],
        "ids": [[1, 2], [], [3]],
        "array": np.arange(6, dtype=np.int64)[::-2],
        "options": {"seed": Seeded(3), "p": -0.0, "k": None, 4: (True, 1, 1.0, "x", b"x")},
        "made": Made("pack.mod:State", {"counts": torch.tensor([1, 2], dtype=torch.int32)}),
        "dtype": torch.bfloat16,
        "scalar": np.float32(-0.0),
    }


def test_an_id_is_the_same_on_every_machine_and_in_every_process() -> None:
    """The literal was written down once: a change to it makes every recorded id worthless."""
    assert case_id("user.target", pool()) == "a7bfb243c525f844"


def test_an_id_does_not_depend_on_addresses_or_the_hash_seed() -> None:
    code = "import test_call_values as t; print(t.case_id('user.target', t.pool()))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join([*sys.path, str(__file__).rpartition("/")[0]])},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == case_id("user.target", pool())


BLOCK = torch.arange(12.0)
SQUARE = torch.arange(9.0).view(3, 3)
EQUAL_PAIRS: list[tuple[Any, Any]] = [
    (torch.zeros(2, 3), torch.zeros(2, 3)),
    (np.arange(6)[::2], np.array([0, 9, 2, 9, 4, 9])[::2]),
    ({"a": [1.5]}, {"a": [1.5]}),
]
DIFFERENT_PAIRS: list[tuple[Any, Any]] = [
    (torch.zeros(1), torch.zeros(1, dtype=torch.int32)),
    (torch.zeros(1), -torch.zeros(1)),
    (SQUARE, SQUARE.T),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (BLOCK[:3], BLOCK[:3].clone()),
    (BLOCK[0:3].clone(), BLOCK[1:4].clone()),
    ([BLOCK, BLOCK], [BLOCK, BLOCK.clone()]),
    (torch.zeros(1, 4).expand(3, 4), torch.zeros(3, 4)),
    (np.zeros(2), np.zeros(2, np.float32)),
    (np.arange(6)[::2], np.array([0, 2, 4])),
    (np.array([1, 2]), torch.tensor([1, 2])),
    (0.0, -0.0),
    (1, 1.0),
    (1, True),
    (1, np.int64(1)),
    ("1", b"1"),
    ([1], (1,)),
    ([[1], [2]], [[1, 2]]),
    ([[], [1]], [[1], []]),
    ({"a": 1}, {"b": 1}),
    ({1: 1}, {"1": 1}),
    (None, []),
    (Seeded(1), Seeded(2)),
    (Made("a:B", {"x": 1}), Made("a:C", {"x": 1})),
    (Made("a:B", {"x": Seeded(1)}), Made("a:B", {"x": Seeded(2)})),
    (Made("a:B", {"x": Made("a:D", {"y": 1})}), Made("a:B", {"x": Made("a:D", {"y": 2})})),
    (torch.float32, torch.float16),
]


@pytest.mark.parametrize(("one", "other"), EQUAL_PAIRS)
def test_equal_content_has_one_id(one: Any, other: Any) -> None:
    assert case_id("t", {"x": one}) == case_id("t", {"x": other})


@pytest.mark.parametrize(("one", "other"), DIFFERENT_PAIRS)
def test_other_content_has_another_id(one: Any, other: Any) -> None:
    assert case_id("t", {"x": one}) != case_id("t", {"x": other})


def test_the_target_is_part_of_the_id() -> None:
    assert case_id("v1.one", {"x": 1}) != case_id("v1.two", {"x": 1})


@pytest.mark.parametrize("value", [object(), np.array([None]), len, (x for x in ())])
def test_what_a_case_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match="a case cannot hold"):
        case_id("t", {"x": value})


# -- copies -----------------------------------------------------------------------------------------------------------


class MakingArm:
    label, device = "base", "cpu"

    def make(self, symbol: Any, fields: Any, optional: Any = ()) -> Any:
        return (symbol, dict(fields))


def copied(value: Pool) -> Pool:
    return own_copy(MakingArm(), value)  # type: ignore[arg-type]


def test_a_copy_has_the_content_of_the_original_and_none_of_its_memory() -> None:
    original = pool()
    copy = copied({name: value for name, value in original.items() if name not in ("options", "made")})
    reduced = {name: value for name, value in pool().items() if name not in ("options", "made")}
    assert case_id("t", copy) == case_id("t", reduced)
    copy["logits"].fill_(9)
    copy["ids"][0].append(9)
    copy["array"][:] = 9
    assert case_id("user.target", original) == case_id("user.target", pool())


def test_tensors_that_share_memory_still_do() -> None:
    copy = copied(pool())
    copy["same_rows"][0, 0] = 77
    assert copy["logits"][0, 0] == 77


def test_an_array_and_a_tensor_of_one_memory_still_share_it() -> None:
    """Whichever comes first, and though neither may hold all of it."""
    memory = np.arange(12, dtype=np.int32).reshape(3, 4)
    given: dict[str, object] = {"late": torch.from_numpy(memory[1:]), "all": memory, "turned": memory[::-1, 1:]}
    tensor = torch.arange(6.0)
    given |= {"tensor": tensor[1:4], "nested": [{"view": tensor.numpy()[2:]}], "apart": np.arange(3)}
    copy = copied(given)
    copy["late"][0, 1] = 77
    assert copy["all"][1, 1] == copy["turned"][1, 0] == 77
    copy["all"][2, 3] = 78
    assert copy["late"][1, 3] == 78
    copy["tensor"][1] = 79.0
    assert copy["nested"][0]["view"].tolist() == [79.0, 3.0, 4.0, 5.0]
    assert memory.max() == 11 and tensor.max() == 5
    assert copy["apart"].base is None


def test_empty_tensors_share_nothing() -> None:
    copy = copied({"x": torch.zeros(0), "y": torch.zeros(0)})
    copy["x"].resize_(2).fill_(1)
    assert copy["y"].untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).view(3, 4).T,
        lambda: torch.arange(12.0)[3:9:2],
        lambda: torch.arange(3.0).expand(2, 3),
        lambda: torch.arange(20.0).view(4, 5)[1:3, 1:3],
        lambda: torch.arange(4, dtype=torch.int16).view(torch.uint8)[1:],
    ],
)
def test_layouts_of_tensors_are_kept(make: Any) -> None:
    original = make()
    copy = copied({"x": original})["x"]
    assert (copy.stride(), copy.storage_offset(), copy.shape) == (
        original.stride(),
        original.storage_offset(),
        original.shape,
    )
    assert copy.untyped_storage().tolist() == original.untyped_storage().tolist()
    assert copy.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()


def _frozen_array() -> Any:
    array = np.arange(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(6)[::-1],
        lambda: np.arange(6)[::-2],
        lambda: np.arange(6).reshape(2, 3)[:, ::-1],
        lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
        lambda: np.asfortranarray(np.arange(6).reshape(2, 3))[:, 1:],
        lambda: np.broadcast_to(np.arange(3), (2, 3)),
        lambda: np.lib.stride_tricks.as_strided(np.arange(5), (3, 3), (8, 8)),
        lambda: np.arange(12, dtype=np.int16)[1:].view(np.uint8)[1:-1],
        lambda: torch.arange(6).view(2, 3).T.numpy()[::-1],
        lambda: np.array(3.5),
        lambda: np.zeros((0, 3)),
        lambda: np.array(["a", "bc"]),
        _frozen_array,
    ],
)
def test_layouts_of_arrays_are_kept(make: Any) -> None:
    original = make()
    copy = copied({"x": original})["x"]
    assert copy.tobytes() == original.tobytes()
    assert (copy.shape, copy.dtype, copy.strides) == (original.shape, original.dtype, original.strides)
    assert copy.flags.writeable == original.flags.writeable
    assert not np.shares_memory(copy, original)


def test_views_of_one_array_still_are() -> None:
    rows = np.arange(12).reshape(3, 4)
    copy = copied({"rows": rows, "column": rows[:, 1], "backwards": rows[::-1]})
    copy["rows"][2, 1] = 99
    assert copy["column"][2] == 99
    assert copy["backwards"][0, 1] == 99
    assert rows[2, 1] == 9


def test_generators_are_new_and_objects_are_the_arm_s_own() -> None:
    original: Pool = {"g": Seeded(5), "made": Made(("a:B", "a:C"), {"g": Seeded(6), "n": [1]})}
    one, two = copied(original), copied(original)
    torch.rand(1, generator=one["g"])
    assert torch.equal(two["g"].get_state(), torch.Generator().manual_seed(5).get_state())
    symbol, fields = one["made"]
    assert symbol == ("a:B", "a:C")
    assert fields["n"] == [1] and fields["n"] is not two["made"][1]["n"]
    assert fields["g"].initial_seed() == 6
