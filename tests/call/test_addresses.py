"""Which numbers of a message are addresses."""

from __future__ import annotations

import ctypes

import pytest
import torch

from difftest.call.addresses import without_addresses


class Thing:
    pass


@pytest.mark.parametrize(
    "text", ["0xdeadbeef", "mask 0xFFFFFFFF of 0x1000003", "0x7fffffffffffffff", "at 0x12345678", ""]
)
def test_computed_numbers_stay(text: str) -> None:
    assert without_addresses(text) == text


def test_addresses_go() -> None:
    thing, tensor, buffer = Thing(), torch.zeros(3), ctypes.create_string_buffer(8)
    assert without_addresses(f"{thing!r} is no tensor") == f"<{__name__}.Thing object at 0x...> is no tensor"
    assert without_addresses(f"{Thing.__call__} {print}").count("0x...") == str([Thing.__call__, print]).count("0x")
    for address in (id(thing), tensor.data_ptr(), ctypes.addressof(buffer)):
        assert without_addresses(f"at {address:#x}, {address:#X}") == "at 0x..., 0x..."
    assert without_addresses("<function f at 0x7f0012345678, freed>") == "<function f at 0x..., freed>"
