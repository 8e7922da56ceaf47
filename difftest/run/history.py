"""Whether head's outcome of a case depends on the calls before it, where base's does not.

After the last case, a sample of the identical cases is run again in head, in the opposite order and after all others. A
cache under too small a key, a maximum kept from an earlier call, a result that is the same object at every call: each
goes unseen as long as every case is run once and in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from difftest.call.freeze import Freezer
from difftest.call.outcome import NotCalled, Outcome
from difftest.compare.outcomes import Difference, compare
from difftest.result import Kind
from difftest.run.protocol import BASE, HEAD
from difftest.target import Case

LARGEST = 16 << 20
"""Outcomes with more bytes of arrays than this are not kept for a second look."""
FEWEST = 2
SHARE = 0.03
"""The second look is at so many of the identical cases, but not at fewer than this. Their number and not the time that
they take is what counts, or what is found would depend on how loaded the machine is."""


class Kept(NamedTuple):
    """A case that was identical, and its outcome."""

    number: int
    case: Case
    identity: str
    outcome: Outcome


Again = Callable[[int, Kept], tuple[Outcome | NotCalled, Freezer]]
"""Runs a case in an arm once more: (arm, case) -> what came of it, and what froze its return value."""


class History:
    """The sample of one unit: the first cases, then ever fewer, so that it costs nothing to speak of."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self._count = 0

    def due(self) -> bool:
        """Count an identical case; whether it belongs to the sample: the 1st, 2nd, 3rd, 4th, 6th, 8th, 12th, ..."""
        self._count += 1
        odd = self._count // (self._count & -self._count)
        return odd in (1, 3)

    def keep(self, kept: Kept, output: Freezer) -> None:
        if sum(size for _, _, _, size in output.memory) <= LARGEST:
            self.kept.append(kept)

    def forget(self, index: int) -> None:
        """A case turned out not to be identical."""
        self.kept = [kept for kept in self.kept if kept.number != index]

    def second_look(
        self, again: Again, same: Callable[[Outcome | NotCalled, Outcome], bool]
    ) -> Iterator[tuple[Kept, list[Difference]]]:
        """The cases whose outcome head does not give again, or gives in the same objects, while base does neither."""
        allowed = max(FEWEST, int(SHARE * self._count))
        for kept in self.kept[: -allowed - 1 : -1]:
            head, first = again(HEAD, kept)
            if isinstance(head, NotCalled):
                continue
            if same(head, kept.outcome):
                _, second = again(HEAD, kept)
                if not _shares(first, second):
                    continue
                _, third = again(HEAD, kept)
                if _shares(second, third) and not _shares(*(again(BASE, kept)[1] for _ in range(2))):
                    text = "the same object or memory at every call"
                    yield kept, [Difference(Kind.ALIAS, "return", "new at every call", text)]
                continue
            once_more, _ = again(HEAD, kept)
            if same(once_more, kept.outcome):
                continue  # what happens once is no property of the code
            base, _ = again(BASE, kept)
            if isinstance(base, NotCalled) or not same(base, kept.outcome):
                continue  # base depends on it as well
            if found := compare(base, head):
                note = f"only after other calls: {self._count} identical cases were run before this second run of it"
                yield kept, [item.noted(note) for item in found]


def _shares(first: Freezer, second: Freezer) -> bool:
    """Whether two return values, both alive, have objects or memory in common."""
    known = {storage for name, _, storage, _ in first.memory if name == "return"}
    if any(name == "return" and storage in known for name, _, storage, _ in second.memory):
        return True
    held = [{**seen} for side in (first, second) for name, seen in side.objects if name == "return"]
    return len(held) == 2 and not held[0].keys().isdisjoint(held[1])
