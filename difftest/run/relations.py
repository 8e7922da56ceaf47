"""Checks within one arm, made for both: invariants of single calls, and relations between calls on related inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from difftest.call.outcome import NotCalled
from difftest.compare.outcomes import Difference
from difftest.result import Kind
from difftest.run.protocol import BASE, HEAD
from difftest.target import Pool, Relation, Target

Live = tuple[Pool, Any] | None
"""An arm's pool after a call and the return value; None when there was no return."""


class RelationChecks:
    """Invariants and relations of one target, checked in both arms, counted.

    Args:
        call: runs the target in an arm on a pool and gives the outcome and the live values.
        always: check every relation on every case, though each costs a call in each arm.

    Attributes:
        counts: per name, `checked` and in how many cases each arm breaks it.
    """

    def __init__(self, target: Target, call: Callable[[int, Pool], tuple[Any, Live]], always: bool = False) -> None:
        self.target = target
        self.call = call
        self.always = always
        self.counts: dict[str, Counter[str]] = {}
        self._checked: Counter[str] = Counter()
        self._resting: Counter[str] = Counter()

    def check(self, pool: Pool, live: tuple[Live, Live]) -> list[Difference]:
        """What head breaks and base does not, for one case inside the contract.

        Args:
            pool: the case's pristine pool.
            live: live values of the case's call in base and in head.
        """
        found = []
        for invariant in self.target.invariants:
            said = [None if one is None else _safely(invariant.broken, pool, *one) for one in live]
            found += self._judge(invariant.name, [one is not None for one in live], said)
        for relation in self.target.relations:
            if live[BASE] is None or live[HEAD] is None or not (self.always or self._due(relation)):
                continue
            other = relation.other(pool)
            if other is None:
                continue
            self._checked[relation.name] += 1
            self._resting[relation.name] = relation.every
            said, measured = [], []
            for arm in (BASE, HEAD):
                outcome, after = self.call(arm, other)
                first = live[arm]
                assert first is not None
                if isinstance(outcome, NotCalled):
                    said.append(None)
                    measured.append(False)
                    continue
                measured.append(True)
                if after is None:
                    said.append(f"the related inputs raise {outcome.raised[0]}: {outcome.raised[1]}"[:200])
                else:
                    said.append(_safely(relation.broken, *first, *after))
            found += self._judge(relation.name, measured, said)
        return found

    def _due(self, relation: Relation) -> bool:
        self._resting[relation.name] -= 1
        return self._checked[relation.name] < relation.limit and self._resting[relation.name] <= 0

    def _judge(self, name: str, measured: list[bool], said: list[str | None]) -> list[Difference]:
        if not all(measured):  # how the arm that raised differs is told without it
            return []
        counts = self.counts.setdefault(name, Counter())
        counts["checked"] += 1
        counts["base"] += said[BASE] is not None
        counts["head"] += said[HEAD] is not None
        if said[HEAD] is not None and said[BASE] is None:
            return [Difference(Kind.INVARIANT, name, "holds", str(said[HEAD]))]
        return []


def _safely(broken: Callable[..., str | None], *values: Any) -> str | None:
    try:
        return broken(*values)
    except Exception as error:  # the check met a result of a form it does not know: that is a finding too
        return f"cannot be checked: {type(error).__name__}: {error}"
