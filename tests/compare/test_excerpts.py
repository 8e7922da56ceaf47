"""What is shown of long texts that differ."""

from __future__ import annotations

import pytest

from difftest.compare.excerpts import excerpts


@pytest.mark.parametrize(
    ("base", "head", "shown"),
    [
        ("raises A: b", "returns", ("raises A: b", "returns")),
        ("a" * 100, "b" * 100, ("a" * 100, "b" * 100)),
        ("a" * 101, "b", ("a" * 100 + "… (101 characters)", "b")),
    ],
)
def test_short_ones_are_whole_and_long_ones_say_their_length(base: str, head: str, shown: tuple[str, str]) -> None:
    assert excerpts(base, head, 100) == shown


def test_the_place_where_they_differ_is_shown() -> None:
    begin = "raises ValueError: " + "".join(chr(0x100 + n) for n in range(5000))
    base, head = excerpts(begin + "1 of 2" + "a" * 500, begin + "2", 400)
    assert base.startswith(begin[:40]) and f"{begin[-40:]}1 of 2aaa" in base and base.endswith(f"… ({5525} characters)")
    assert head == f"{begin[:40]} … {begin[-40:]}2"
    assert len(base) < 450


def test_the_longer_of_two_that_begin_alike() -> None:
    base, head = excerpts("a" * 1000, "a" * 999, 400)
    assert base != head
