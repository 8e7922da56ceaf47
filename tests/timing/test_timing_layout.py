"""Loading again lands elsewhere."""

import random

from difftest.timing.layout import scatter


def addresses(seeds: list[int]) -> set[int]:
    """Where functions lie, relative to the first loading, when memory is scattered before each."""
    kept: list[object] = []
    found = []
    for seed in seeds:
        kept.append(scatter(random.Random(seed)))
        space: dict[str, object] = {}
        exec("def f(a):\n    return [b for b in a if b]\n", space)
        kept.append(space)
        found.append(id(space["f"]))
    return {address - found[0] for address in found}


def test_functions_land_at_other_places() -> None:
    places = addresses(list(range(24)))
    steps = {two - one for one, two in zip(sorted(places)[:-1], sorted(places)[1:], strict=True)}
    assert len(places) == 24 and len(steps) > 6


def test_the_same_seed_takes_the_same_memory() -> None:
    assert scatter(random.Random(3)) == scatter(random.Random(3))
    assert scatter(random.Random(3)) != scatter(random.Random(4))
