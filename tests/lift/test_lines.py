"""Which lines of a closure count as executed, and how those that did not are told."""

from __future__ import annotations

from difftest.lift.closure import Closure, Piece
from difftest.lift.lines import exercise, ranges

SOURCE = b'''LIMIT = 3


class Sampler:
    """Doc."""

    width = 2

    def sample(self, logits):
        """Doc."""
        if logits is None:
            return None

        def pick(row):
            return max(row)

        return [pick(row) for row in logits]

    def unused(self):
        return 1


def helper(): return 0
'''


def piece(qualname: str, first: int, last: int, lazy: bool = False) -> Piece:
    return Piece("m", qualname, "m.py", first, last, lazy, "")


def closure(*pieces: Piece) -> Closure:
    found = Closure.__new__(Closure)
    found.pieces = {(p.module, p.qualname): p for p in pieces}
    return found


def read(path: str) -> bytes:
    return SOURCE


def test_only_lines_inside_the_functions_of_the_closure_count() -> None:
    seen = exercise(
        closure(piece("Sampler", 4, 7), piece("Sampler.sample", 9, 17)), read, {"m.py": {1, 7, 11, 14, 15, 17}}
    )
    assert (seen.lines, seen.executed) == (5, 4)
    assert seen.missed == {"m.py": "12"}
    assert seen.unused == ()


def test_a_function_of_which_no_line_ran_is_named() -> None:
    seen = exercise(closure(piece("Sampler.sample", 9, 17), piece("Sampler.unused", 19, 20)), read, {"m.py": {11, 12}})
    assert seen.unused == ("m:Sampler.unused",)
    assert seen.missed == {"m.py": "14-15, 17, 20"}


def test_a_function_on_one_line_counts() -> None:
    seen = exercise(closure(piece("helper", 23, 23)), read, {"m.py": {23}})
    assert (seen.lines, seen.executed, seen.missed) == (1, 1, {})


def test_what_is_lifted_only_when_it_runs_does_not_count() -> None:
    assert exercise(closure(piece("helper", 23, 23, lazy=True)), read, {}).lines == 0


def test_ranges_are_written_as_a_person_would() -> None:
    assert ranges([9, 3, 7, 8, 20]) == "3, 7-9, 20"
    assert ranges([]) == ""
