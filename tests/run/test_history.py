"""Which cases get a second look does not depend on how fast the machine is."""

from __future__ import annotations

from difftest.call.freeze import Freezer
from difftest.call.outcome import NotCalled, Outcome
from difftest.run.history import History, Kept
from difftest.run.protocol import HEAD
from difftest.target import Case

OUTCOME = Outcome(("int", 1), None, (), (), None, ())


def looked_at(cases: int) -> list[int]:
    history = History()
    for number in range(cases):
        if history.due():
            history.keep(Kept(number, Case("case", dict), "", OUTCOME), Freezer())
    seen: list[int] = []

    def again(arm: int, kept: Kept) -> tuple[Outcome | NotCalled, Freezer]:
        assert arm == HEAD
        seen.append(kept.number)
        return OUTCOME, Freezer()

    assert list(history.second_look(again, lambda one, other: one == other)) == []
    return list(dict.fromkeys(seen))


def test_the_number_of_cases_says_which_are_looked_at_again() -> None:
    assert looked_at(8) == [7, 5]
    assert looked_at(100) == [95, 63, 47]
    assert looked_at(400) == [383, 255, 191, 127, 95, 63, 47, 31, 23, 15, 11, 7]
    assert looked_at(1) == [0]
