"""The quick walk of the recorder takes the same as the slow one, calls no code of the values, and never raises."""

from __future__ import annotations

import collections
import dataclasses
import marshal
from typing import Any

import numpy as np
import pytest
import torch
from recorded_calls import Metadata, Mode, Pair, Slotted, TinySampler
from torch.nested import nested_tensor

from difftest.record.encode import Encoder
from difftest.record.forms import Nodes, unpickled
from difftest.record.walk import take

PACKAGE, HIDDEN = "recorded_calls", ("collections",)


class Refusing:
    """Cannot be pickled, copied or shown."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __reduce_ex__(self, _: Any) -> Any:
        self.calls.append("reduce")
        raise TypeError("not me")

    def __getstate__(self) -> Any:
        self.calls.append("state")
        raise TypeError("not me")

    __reduce__ = __copy__ = __getstate__


Refusing.__module__ = "recorded_calls"


class Broken:
    __slots__ = ("value",)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no state today")


Broken.__module__ = "recorded_calls"


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("not to be called")


class Flags(int):
    pass


@dataclasses.dataclass(slots=True)
class Compact:
    ids: Any
    rows: Any = None


def cyclic() -> list[Any]:
    value: list[Any] = [1]
    holder = Metadata(value, {}, [])
    value += [value, {"holder": holder, "self": value}]
    return value


def inside(lists: int, value: Any) -> Any:
    for _ in range(lists):
        value = [value]
    return value


def values() -> dict[str, Any]:
    base = torch.arange(1000, dtype=torch.int32)
    row = [1, 2]
    generator = torch.Generator().manual_seed(3)
    module = TinySampler()
    return {
        "atoms": (None, True, -1, 2**80, 1.5, float("nan"), float("-inf"), "a", "\udc80", b"\0", bytearray(b"x"), 2j),
        "containers": [[], (), {}, set(), [[1], [True, None]], {(1, 2): {"a"}}, {3, 1, 2}, frozenset({"b", "a"})],
        "the same again": [row, row, (row, [row]), {"row": row}],
        "cyclic": cyclic(),
        "objects": [Pair(1, row), Mode.RAW, Slotted([row]), Compact(base, row), module, module, module.select],
        "code": [len, Pair, Slotted, torch.argmax, np, torch.Tensor.add, [].append, generator.seed],
        "dicts": [collections.OrderedDict(a=row), collections.Counter("aab"), collections.defaultdict(list, {1: row})],
        "own ways": [collections.deque([1]), Flags(3), np.float64(2.0), np.datetime64("2020"), Ellipsis, range(3)],
        "parts": [slice(1, None), slice("a"), torch.Size([2]), torch.float16, np.dtype("<u2"), torch.device("cpu")],
        "views": [base[10:20], base, base[::3], base.view(10, 100).T, base[5:5], base.numpy()[7:]],
        "apart": [torch.zeros(3), torch.zeros(0), torch.zeros(0), torch.tensor(2.0), torch.ones(2, 0).bool()],
        "late in memory": [torch.zeros(1000)[500:510], torch.zeros(8)[3:]],
        "odd": [
            torch.ones(2, 2).to_sparse(),
            torch.empty(3, device="meta"),
            nested_tensor([torch.ones(1), torch.ones(2)]),
            torch.nn.Parameter(torch.ones(3)),
            torch.nn.Buffer(torch.ones(3)),
            torch.ones(2).as_subclass(Dispatching),
        ],
        "arrays": [np.arange(6).reshape(2, 3).T, np.zeros(0), np.array([{}], object), np.matrix([[1]])],
        "generators": [generator, {0: generator}, torch.Generator().manual_seed(4)],
        "broken": [Broken(), [1, row], object(), iter([])],
        "nested": [inside(34, [1, generator, base]), row, base],
        "renamed": ["request", {"request": Slotted("request")}, Pair("request", "other")],
    }


RENAMED = {"request": "hash"}


def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """What the quick and the slow walk make of values: JSON, and storages and generators as they are numbered in it."""
    quick = take(args, kwargs, PACKAGE, HIDDEN, RENAMED)
    data, tensors, arrays = marshal.loads(marshal.dumps(quick.value, 2))
    node = Nodes(tensors, arrays, quick.described, RENAMED)
    read, named = unpickled(data)
    nodes = [node(value) for value in read], {name: node(value) for name, value in named.items()}
    pieces = quick.storages.pieces()
    columns = list(zip(pieces.starts, pieces.sizes, pieces.wholes, pieces.devices, pieces.addresses, strict=True))
    slow = Encoder(PACKAGE, HIDDEN, RENAMED)
    expected = [slow(value) for value in args], {name: slow(value) for name, value in kwargs.items()}
    other = slow.storages.pieces()
    rows = list(zip(other.starts, other.sizes, other.wholes, other.devices, other.addresses, strict=True))
    found = [columns[n] for n in node.storages], [quick.generators[n] for n in node.generators_met]
    return (nodes, *found), (expected, rows, slow.generators)


@pytest.mark.filterwarnings("ignore:the matrix subclass", "ignore:The PyTorch API of nested tensors")
def test_the_quick_walk_takes_what_the_slow_one_takes() -> None:
    for name, value in values().items():
        found, expected = both(value, *value, keyword=value)
        assert repr(found) == repr(expected), name


def test_memory_that_is_not_what_a_tensor_says_is_resolved() -> None:
    conjugated = torch.complex(torch.ones(2), torch.ones(2)).conj()
    found, expected = both(conjugated, [torch.zeros(2)], conjugated.imag)
    assert found[0] == expected[0]
    assert [row[:-1] for row in found[1]] == [row[:-1] for row in expected[1]]


def test_no_code_of_a_value_is_called() -> None:
    value = Refusing()
    found, expected = both([value])
    assert repr(found) == repr(expected)
    assert value.calls == []


def test_what_pickle_does_not_bear_is_walked_slowly() -> None:
    row = [1]
    taken = take((inside(20_000, row), row), {"row": row}, PACKAGE, HIDDEN, {})
    args, kwargs = taken.value
    assert args[1] == [1] and "again" in kwargs["row"]
    assert "nested too deeply" in repr(args[0])
