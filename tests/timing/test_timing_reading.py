"""Lazy results are told from finished ones, and are read where the clock sees it."""

from __future__ import annotations

from collections import UserList, namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from difftest.target import Call
from difftest.timing.blocks import Hooks, PairedBlocks, Settings, quiet_collector
from difftest.timing.reading import may_be_lazy, read
from difftest.timing.statistics import ratios

Lists = namedtuple("Lists", "token_ids logprobs")


@dataclass
class Output:
    sampled: object
    logprobs: object = None


class Simple:
    def __init__(self, value: object) -> None:
        self.value = value


class Promise:
    """A list that is made when somebody looks at it."""

    def __init__(self, values: list[int]) -> None:
        self.values = values
        self.read = 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: int) -> int:
        self.read += 1
        return self.values[place] * 2


class LazyList(list[int]):
    looked = 0

    def __iter__(self) -> Iterator[int]:
        self.looked += 1
        return super().__iter__()


class ArrayLike:
    looked = 0

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.looked += 1
        return np.zeros(3)


FINISHED = [
    None,
    3,
    [[1, 2], [], [3]],
    (torch.zeros(3), np.zeros(3), np.float32(1)),
    Lists([1], torch.zeros(2)),
    Output([torch.zeros(1)], {"a": 1}),
    Simple([1, 2]),
    {1, 2},
    torch.float32,
]


@pytest.mark.parametrize("result", FINISHED, ids=lambda result: type(result).__name__)
def test_finished_results_need_no_reading(result: object) -> None:
    assert not may_be_lazy(result)


@pytest.mark.parametrize(
    "result",
    [
        Promise([1]),
        LazyList([1]),
        ArrayLike(),
        UserList([1]),
        (x for x in [1]),
        map(str, [1]),
        torch.zeros(1).as_subclass(type("Lazy", (torch.Tensor,), {})),
        lambda: 3,
    ],
    ids=lambda result: type(result).__name__,
)
def test_whatever_may_work_when_looked_at_is_suspect_at_any_depth(result: object) -> None:
    assert may_be_lazy(result)
    assert may_be_lazy([1, (2, {"a": Output(result)})])


def test_reading_reads_everything_once() -> None:
    promise, lazy, array = Promise([1, 2, 3]), LazyList([1]), ArrayLike()
    assert read([promise, {"a": Output(lazy, array)}])[0] is promise
    assert promise.read == 3 and lazy.looked and array.looked == 1
    assert read(x * 2 for x in [1, 2]) == [2, 4]
    with ThreadPoolExecutor(1) as pool:
        done: list[int] = []
        read(Output(pool.submit(done.append, 1)))
        assert done == [1]


def test_a_result_that_holds_itself_ends() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert not may_be_lazy(ring)
    assert read(ring) is ring


def rows(ids: torch.Tensor) -> list[list[int]]:
    return [[token for token in row if token >= 0] for row in ids.tolist()]


def change(head: object, hooks: Hooks) -> float:
    ids = torch.arange(400, dtype=torch.int32).reshape(100, 4)

    def fresh(function: object) -> object:
        return lambda number: Call(function, (ids.roll(number, 0),))  # type: ignore[arg-type]

    with quiet_collector():
        blocks = PairedBlocks(fresh(rows), fresh(head), Settings(max_calls=3), hooks)  # type: ignore[arg-type]
        pairs = blocks.take(20)
    return float(np.median(ratios([p.base_ns for p in pairs], [p.head_ns for p in pairs]))) - 1


def test_a_lazy_head_is_not_faster_once_it_is_read() -> None:
    def lazy(ids: torch.Tensor) -> Iterator[list[int]]:
        yield from rows(ids)

    assert change(lazy, Hooks()) < -0.5
    assert may_be_lazy(lazy(torch.zeros(1, 1)))
    assert change(lazy, Hooks(materialise=read)) > -0.03


def test_a_head_that_remembers_the_addresses_of_tensors_is_not_faster() -> None:
    known: dict[int, list[list[int]]] = {}

    def cached(ids: torch.Tensor) -> list[list[int]]:
        if ids.data_ptr() not in known:
            known[ids.data_ptr()] = rows(ids)
        return known[ids.data_ptr()]

    assert change(cached, Hooks()) > -0.03
