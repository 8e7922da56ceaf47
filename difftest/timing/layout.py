"""Other addresses at every loading, so that a bench does not measure where code happens to lie.

Two identical functions differ by up to a percent because of their addresses, and a process that loads base and head in
the same way as the one before puts them at the same places again: measured in six fresh processes, the second loading
of a function of 3 µs was between 0.5 and 0.8 % faster than its twin in all but one. Several processes alone do not
average that out. Take memory in random pieces before each arm is loaded, and turn the order of loading round.
"""

from __future__ import annotations

import random

PIECES = 400
LARGEST = 700
"""Bytes; pieces above 512 leave Python's own pools and move the system's heap."""


def scatter(rng: random.Random) -> list[bytearray]:
    """Take up to :data:`PIECES` pieces of memory and give every second one back.

    What is allocated next falls into the gaps. Keep the result as long as what is loaded after it.
    """
    pieces = [bytearray(rng.randrange(1, LARGEST)) for _ in range(rng.randrange(2, PIECES))]
    return pieces[::2]
