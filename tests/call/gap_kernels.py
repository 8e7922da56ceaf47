"""Kernels, one for each gap of Triton's interpreter; run as a script without the bridges, or with them.

Usage: gap_kernels.py bridged|plain. Prints the result of each, or its error in one line, as one JSON object.
"""

import json
import sys

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

FLOATS = [-0.5, -1.0, 0.0, 1e-9, 3.0, float("inf"), float("nan"), 2.0]


@triton.jit
def apply_log1p(values, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, libdevice.log1p(tl.load(values + i)))


@triton.jit
def apply_isnan(values, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, libdevice.isnan(tl.load(values + i)).to(tl.int32))


@triton.jit
def store_masked(row, out, size, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    valid = tl.load(row).to(tl.int64) >= 0
    tl.store(out + i, i, mask=(i < size) & valid)


@triton.jit
def load_masked(row, out, size, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    valid = tl.load(row).to(tl.int64) >= 0
    tl.store(out + i, tl.load(out + i, mask=(i < size) & valid, other=-7.0))


@triton.jit
def add_masked(row, out, size, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    valid = tl.load(row).to(tl.int64) >= 0
    tl.atomic_add(out + i, 1.0, mask=(i < size) & valid)


@triton.jit
def count_kept(values, row, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    loaded = tl.load(values + i)
    active = tl.load(row) > 0
    keep = (loaded > -float("inf")) & (loaded < float("inf")) & active & (i < 7)
    tl.store(out + i, keep.to(tl.float32))


@triton.jit
def convert_index(out, size):
    for i in range(size):
        tl.store(out + i.to(tl.int64), (2 * i + 1).to(tl.float32))


@triton.jit
def wrap_index(out, size, wide, low, STRIDE: tl.constexpr):
    for i in range(size):
        tl.store(out + i, (STRIDE * i).to(tl.float32))
    for i in tl.range(wide, wide + 2):
        tl.store(out + 3 + (i - wide), (2 * STRIDE * (i - wide)).to(tl.float32))
    for i in range(low, low + 3):
        tl.store(out + 5 + (i - low), (i // 2).to(tl.float32) * 8 + (i % 2).to(tl.float32))


@triton.jit
def argmax(values, out, BLOCK: tl.constexpr):
    value, index = tl.max(tl.load(values + tl.arange(0, BLOCK)), axis=0, return_indices=True)
    tl.store(out, value)
    tl.store(out + 1, index)


@triton.jit
def compute_narrow(values, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    loaded = tl.load(values + i)
    tl.store(out + i, (loaded + loaded * loaded).to(tl.float32))


def run(gap: str) -> list[float]:
    out = torch.full((8,), -3.0)
    floats = torch.tensor(FLOATS)
    if gap == "log1p":
        apply_log1p[(1,)](floats, out, BLOCK=8)
    elif gap == "isnan":
        apply_isnan[(1,)](floats, out, BLOCK=8)
    elif gap in ("store", "load", "add"):
        kernel = {"store": store_masked, "load": load_masked, "add": add_masked}[gap]
        kernel[(1,)](torch.tensor([4]), out, 6, BLOCK=8)
    elif gap == "join":
        count_kept[(1,)](floats.half(), torch.tensor([2]), out, BLOCK=8)
    elif gap == "narrow-kept":
        count_kept[(1,)](floats.bfloat16(), torch.tensor([2]), out, BLOCK=8)
    elif gap == "narrow-sum":
        compute_narrow[(1,)](torch.tensor([-0.5, -1.0, 0.0, 3.0, 1.0, -2.0, 0.1, 300.0]).bfloat16(), out, BLOCK=8)
    elif gap == "no-row":
        store_masked[(1,)](torch.tensor([-1]), out, 6, BLOCK=8)
    elif gap == "index":
        convert_index[(1,)](out, 5)
    elif gap == "wrap":
        wrap_index[(1,)](out, 3, 2**33, -3, STRIDE=1 << 30)
    elif gap == "argmax":
        argmax[(1,)](torch.full((8,), float("nan")), out, BLOCK=8)
    elif gap == "argmax-some":
        argmax[(1,)](floats, out, BLOCK=8)
    return [float(x) for x in out]


GAPS = ("log1p", "isnan", "join", "store", "load", "add", "no-row", "index", "wrap", "argmax", "argmax-some")
GAPS += ("narrow-kept", "narrow-sum")


def outcome(gap: str) -> list[float] | str:
    try:
        return run(gap)
    except Exception as error:
        return str(error).splitlines()[0]


if __name__ == "__main__":
    if sys.argv[1] == "bridged":
        from difftest.call.interpreter import bridge

        bridge()
    print(json.dumps({gap: outcome(gap) for gap in GAPS}))
