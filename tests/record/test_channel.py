"""What was handed to the writer: memory is never given twice, and outlives the process that recorded."""

from __future__ import annotations

import random

import pytest

from difftest.record.channel import Room


@pytest.mark.parametrize("seed", range(20))
def test_memory_that_waits_is_not_given_again(seed: int) -> None:
    draw = random.Random(seed)
    room = Room(128, 128 + 64 * 40)
    held: list[int] = []
    sent = consumed = refused = 0
    for _ in range(3000):
        if draw.random() < 0.55:
            size, hold = draw.randrange(1, 64 * draw.choice((2, 6, 14))), draw.random() < 0.2
            at = room.reserve(size, hold)
            if at is None:
                refused += 1
            else:
                assert at % 64 == 0 and at >= 128 and at + size <= 128 + 64 * 40
                for other in room.pieces:
                    if other is not room.pieces[-1]:
                        assert at + size <= other.start or other.end <= at
                sent += 1
                if hold:
                    held.append(at)
        if held and draw.random() < 0.6:
            room.release(held.pop(draw.randrange(min(2, len(held)))))
        if consumed < sent and draw.random() < 0.5:
            consumed += draw.randrange(1, sent - consumed + 1)
            room.free(consumed)
    assert 0 < refused < 3000 and sent > 300
    for at in held:
        room.release(at)
    room.free(sent + 1)
    assert not room.pieces and room.held == 0


def test_memory_is_used_again_from_the_start() -> None:
    room = Room(0, 1 << 30)
    for number in range(1000):
        assert room.reserve(10_000) is not None
        room.free(number)
    assert room.used < 60_000
