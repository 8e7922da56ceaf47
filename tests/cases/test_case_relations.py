"""What targets have in common: each relation and invariant holds for sound code and says what unsound code breaks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from difftest.cases import axes, relations
from difftest.target import Invariant, Pool, Relation, Seeded

INF = float("inf")


def checked(relation: Relation, function: Callable[..., Any], pool: Pool) -> str | None:
    """What a function of a pool's values breaks; fails when the relation says nothing of the pool."""

    def run(given: Pool) -> tuple[Pool, Any]:
        private = copy.deepcopy(given)  # gaps and all
        return private, function(**private)

    other = relation.other(pool)
    assert other is not None
    return relation.broken(*run(pool), *run(other))


def logits() -> torch.Tensor:
    return axes.logits("random", 3, 5, axes.stream("relations"))


ROWS = {relation.name: relation for relation in relations.of_rows(("logits", "k"))}


@pytest.mark.parametrize("name", ROWS)
def test_a_result_of_each_row_alone_holds(name: str) -> None:
    pool = {"logits": logits(), "k": torch.tensor([1, 2, 3])}
    assert checked(ROWS[name], lambda logits, k: logits.softmax(-1) * k[:, None], pool) is None


UNSOUND = {
    "requests in another order have the same results": lambda x: torch.arange(3),
    "a request alone has the same result": lambda x: torch.full((len(x),), len(x)),
    "a chunk of the batch has the same results": lambda x: torch.full((len(x),), len(x)),
    "a request among other neighbours has the same result": lambda x: x + x.sum(0),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_result_that_depends_on_the_batch_is_said(name: str) -> None:
    said = checked(ROWS[name], lambda logits, k: UNSOUND[name](logits), {"logits": logits(), "k": torch.ones(3)})
    assert said is not None and "differ" in said


def test_a_tensor_laid_out_otherwise() -> None:
    relation = relations.relaid("logits", ("return", "logits"))
    assert checked(relation, lambda logits: logits.add_(1).sum(-1), {"logits": logits()}) is None
    dense = checked(relation, lambda logits: logits.as_strided((3, 5), (5, 1)).clone(), {"logits": logits()})
    assert dense is not None and dense.startswith("return[1, 0]")
    padded = axes.lay_out(logits(), "padded rows")
    other = relation.other({"logits": padded})
    assert other is not None and other["logits"].is_contiguous() and torch.equal(other["logits"], padded)
    assert relation.other({"logits": None}) is None


def test_filters_near_their_off_values() -> None:
    whole, almost = relations.no_filter()
    pool = {"logits": logits(), "k": None, "p": None}
    assert checked(whole, lambda logits, k, p: logits, pool) is None
    assert checked(almost, lambda logits, k, p: logits if p is None else logits - 1, pool) is not None
    assert whole.other({**pool, "k": torch.ones(3)}) is None
    assert almost.other({**pool, "logits": logits() * 40}) is None  # some id is so unlikely that the filter acts


def test_other_seeds_are_others() -> None:
    assert relations.other_seeds({2: Seeded(5)}) == {2: Seeded(82)}


def test_rows_are_taken_from_whatever_holds_them() -> None:
    class Pair(NamedTuple):
        ids: torch.Tensor
        ranks: list[int]

    taken = relations.take(Pair(torch.tensor([4, 5, 6]), [1, 2, 3]), [2, 0])
    assert relations.unlike(taken, Pair(torch.tensor([6, 4]), [3, 1])) is None
    assert relations.take({0: "a", 2: "c"}, [2, 1]) == {0: "c"}
    assert relations.take({"ids": np.array([1, 2])}, [1])["ids"].tolist() == [2]
    assert relations.take(None, [0]) is None and relations.take(torch.tensor(3), [1]).item() == 3


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "it[0] is 0.0 and -0.0, 1 differ"),
        (torch.tensor([1]), torch.tensor([1.0]), "it is torch.int64[1] and torch.float32[1]"),
        (torch.tensor([INF - INF]), torch.tensor([INF - INF]), None),
        ([1, [2]], [1, [3]], "[1][0] is 2 and 3"),
        ({"a": 1}, {"b": 1}, "it has ['a'] and ['b']"),
        ([1], [1, 2], "it has 1 item and 2"),
        (torch.zeros(0, 3), torch.zeros(0, 3), None),
    ],
)
def test_values_are_compared_by_their_bits(one: Any, other: Any, said: str | None) -> None:
    assert relations.unlike(one, other) == said


MASKED = torch.tensor([[1.0, -INF, 3.0], [-INF, 5.0, -INF]])


@pytest.mark.parametrize(
    ("invariant", "given", "after", "result", "said"),
    [
        (relations.unchanged("k"), {"k": torch.ones(2)}, {"k": torch.ones(2)}, None, None),
        (relations.unchanged("k"), {"k": torch.ones(2)}, {"k": torch.zeros(2)}, None, "k[0] is 1.0 and 0.0"),
        (relations.filters("return"), {"logits": logits()}, {}, logits(), None),
        (relations.filters("return"), {"logits": MASKED}, {}, MASKED + 1, "return[0, 0] is 1.0 and 2.0"),
        (relations.keeps_the_likeliest("return"), {"logits": MASKED}, {}, MASKED, None),
        (relations.keeps_the_likeliest("return"), {"logits": MASKED}, {}, MASKED.clamp(max=2), "in row 0"),
        (relations.emitted("logits", -INF), {"logits": MASKED}, {}, torch.tensor([2, 1]), None),
        (relations.emitted("logits", -INF), {"logits": MASKED}, {}, torch.tensor([1, 1]), "row 0 emits id 1, which"),
        (relations.emitted("logits", -INF), {"logits": MASKED}, {}, torch.tensor([0, 3]), "row 1 emits id 3 of 3"),
        (
            relations.off_rows("return", lambda pool: pool["k"] == 0, "k of 0"),
            {"logits": MASKED, "k": torch.tensor([0, 1])},
            {},
            torch.zeros(2, 3),
            "return[0, 0] is 1.0 and 0.0",
        ),
    ],
)
def test_invariants(invariant: Invariant, given: Pool, after: Pool, result: Any, said: str | None) -> None:
    found = invariant.broken(given, after, result)
    assert found == said if said is None else found is not None and found.startswith(said)
