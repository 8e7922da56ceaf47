"""Each bridge: the gap is still there without it, and the result with it is numpy's."""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from difftest.call.interpreter import RangeIndex, ShortIndex, _range_ends, bridge, narrowed, widened

pytest.importorskip("triton")

INTERPRETING = {**os.environ, "TRITON_INTERPRET": "1"}
SCRIPT = Path(__file__).with_name("gap_kernels.py")
FLOATS = np.array([-0.5, -1.0, 0.0, 1e-9, 3.0, np.inf, np.nan, 2.0], np.float32)
GAPS = {
    "log1p": "cannot convert None",
    "isnan": "'NoneType' object has no attribute",
    "join": "ufunc 'bitwise_and' not supported",
    "store": "mask has unsupported dtype",
    "load": "mask has unsupported dtype",
    "add": "mask has unsupported dtype",
    "index": "'int' object has no attribute 'to'",
    "argmax": "All-NaN slice",
}


@cache
def outcomes(mode: str) -> dict[str, list[float] | str]:
    """What each kernel gives, or its error, in a process with or without the bridges."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), mode]
    done = subprocess.run(command, capture_output=True, text=True, env=INTERPRETING, check=True)
    found: dict[str, list[float] | str] = json.loads(done.stdout)
    return found


def bridged(gap: str) -> np.ndarray:
    result = outcomes("bridged")[gap]
    assert isinstance(result, list), result
    return np.array(result)


@pytest.mark.parametrize("gap", GAPS)
def test_the_interpreter_still_has_the_gap(gap: str) -> None:
    result = outcomes("plain")[gap]
    assert isinstance(result, str), f"Triton has closed the gap {gap}: remove its bridge; it gave {result}"
    assert GAPS[gap] in result


def test_log1p_is_that_of_float32() -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bridged("log1p"), np.log1p(FLOATS).astype(np.float64))


def test_isnan_is_a_boolean() -> None:
    np.testing.assert_array_equal(bridged("isnan"), np.isnan(FLOATS))


def test_store_through_a_mask_of_a_block_and_a_scalar() -> None:
    assert bridged("store").tolist() == [0, 1, 2, 3, 4, 5, -3, -3]


def test_store_through_a_mask_that_the_scalar_closes() -> None:
    assert bridged("no-row").tolist() == [-3.0] * 8


def test_a_comparison_of_narrow_floats_joined_with_that_of_a_scalar() -> None:
    assert bridged("join").tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


NARROW = {
    "narrow-kept": [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
    "narrow-sum": [-0.25, 0.0, 0.0, 12.0, 2.0, 2.0, 0.110352, 90624.0],
}


@pytest.mark.parametrize("gap", NARROW)
def test_bfloat16_compares_and_computes_as_numbers(gap: str) -> None:
    plain = outcomes("plain")[gap]
    assert plain != NARROW[gap], f"Triton computes with bfloat16 now: remove its bridge; it gave {plain}"
    np.testing.assert_allclose(bridged(gap), NARROW[gap], rtol=4e-3)


def test_bfloat16_is_rounded_as_torch_does() -> None:
    import torch

    numbers = torch.linspace(-3, 3, 4001)
    assert narrowed(numbers.numpy()).tolist() == numbers.bfloat16().view(torch.uint16).tolist()
    assert widened(narrowed(numbers.numpy())).tolist() == numbers.bfloat16().float().tolist()
    assert np.isnan(widened(narrowed(np.array([np.nan, -np.nan], np.float32)))).all()


def test_load_through_a_mask_of_a_block_and_a_scalar() -> None:
    assert bridged("load").tolist() == [-3.0] * 6 + [-7.0] * 2


def test_atomic_through_a_mask_of_a_block_and_a_scalar() -> None:
    assert bridged("add").tolist() == [-2.0] * 6 + [-3.0] * 2


def test_an_index_converts() -> None:
    assert bridged("index").tolist() == [1, 3, 5, 7, 9, -3, -3, -3]


def test_the_end_of_a_range_may_have_been_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter

    class Loaded:
        handle = SimpleNamespace(data=np.array([3]))

    class Scope:
        set_attr = staticmethod(setattr)

    def converting(
        tensor: type, scope: type[Scope]
    ) -> None:  # as Triton did before 3.9; NumPy warns, and raises from 2.5
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", converting)
    interpreter._patch_lang_tensor(Loaded, Scope)
    with pytest.raises((DeprecationWarning, TypeError)):
        operator.index(Loaded())
    _range_ends(interpreter)
    interpreter._patch_lang_tensor(Loaded, Scope)
    assert operator.index(Loaded()) == 3


def test_argmax_of_nan_alone_is_the_first() -> None:
    value, index, *_ = bridged("argmax")
    assert np.isnan(value)
    assert index == 0


def test_argmax_beside_nan_is_as_without_the_bridge() -> None:
    assert bridged("argmax-some").tolist() == outcomes("plain")["argmax-some"]
    assert bridged("argmax-some")[:2].tolist() == [np.inf, 5]


def test_an_index_is_an_int_in_every_other_way() -> None:
    index = RangeIndex(6)
    assert (index, hash(index), index / 4, -index) == (6, hash(6), 1.5, -6)
    assert isinstance(3 * index - 1 + index, RangeIndex)
    assert isinstance(20 - index, RangeIndex)
    assert isinstance(index // 4 + index % 4, RangeIndex)
    assert type(index * 0.5) is float
    assert [10, 11, 12, 13, 14, 15, 16][index] == 16


def test_an_index_is_as_wide_as_its_bounds() -> None:
    # As a GPU computes it: 32 bits, 64 bits where a bound has them, division towards zero.
    assert bridged("wrap").tolist() == [0, 2**30, -(2**31), 0, 2**31, -9, -8, -1]


def test_an_index_of_32_bits_wraps_around() -> None:
    index = ShortIndex(100_000)
    assert index * 40_000 == 40_000 * index == 4_000_000_000 - 2**32
    assert index * 40_000 + 1 == 4_000_000_001 - 2**32
    assert (index << 20) == np.int32(100_000) << np.int32(20)
    assert index * 2**32 == 100_000 * 2**32  # a number of 64 bits makes it one of these
    assert index * RangeIndex(40_000) == RangeIndex(100_000) * 40_000 == 4_000_000_000
    assert (ShortIndex(-7) // 2, ShortIndex(-7) % 2, ShortIndex(7) // -2, ShortIndex(7) % -2) == (-3, -1, -3, 1)
    assert (RangeIndex(-7) // 2, RangeIndex(-7) % 2) == (-4, 1)


def test_compiled_triton_is_left_alone() -> None:
    code = (
        "from triton.language.extra import libdevice; before = libdevice.log1p;"
        "from difftest.call.interpreter import bridge; assert bridge() == () == bridge();"
        "assert libdevice.log1p is before"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_bridging_twice_is_bridging_once_and_each_libdevice_function_is_numpys() -> None:
    code = """
import numpy as np
from difftest.call.interpreter import LIBDEVICE, LIBDEVICE_TESTS, bridge
first = bridge()
from triton.runtime import interpreter
launch = interpreter.GridExecutor.__call__
assert bridge() == first and len(first) >= 4 and interpreter.GridExecutor.__call__ is launch
from triton.language.extra import libdevice
import triton.language as tl
np.seterr(all="ignore")
for tl_dtype, dtype in ((tl.float32, np.float32), (tl.float64, np.float64)):
    data = np.array([-2.5, -0.0, 0.3, 1e-9, 7.0, np.inf, -np.inf, np.nan], dtype)
    value = tl.tensor(interpreter.TensorHandle(data, tl_dtype), tl.block_type(tl_dtype, [8]))
    for name, function in {**LIBDEVICE, **LIBDEVICE_TESTS}.items():
        got = getattr(libdevice, name)(value)
        expected = function(data)
        assert got.handle.data.dtype == expected.dtype, name
        assert got.handle.data.tobytes() == expected.tobytes(), name
        assert got.type.scalar == (tl.int1 if name in LIBDEVICE_TESTS else tl_dtype), name
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=INTERPRETING)


def test_this_process_compiles() -> None:
    if os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        assert bridge() == ()


def test_the_hastened_interpreter_gives_the_same_bytes() -> None:
    plain, unhastened, bridged = (
        json.loads(
            subprocess.run(
                [sys.executable, "-W", "ignore", str(SCRIPT.with_name("speed_kernels.py")), mode],
                capture_output=True,
                text=True,
                env=INTERPRETING,
                check=True,
            ).stdout
        )
        for mode in ("plain", "unhastened", "bridged")
    )
    assert len(plain) == 4
    assert {name: bridged[name] for name in plain} == plain
    assert bridged.keys() == unhastened.keys()
    assert len(bridged) > 50_000
    assert [(name, bridged[name], own) for name, own in unhastened.items() if bridged[name] != own][:20] == []
