"""Kernels whose results, as one JSON object of bytes, must be the same with the interpreter as it is and hastened.

Usage: speed_kernels.py bridged|unhastened|plain. Plain is Triton's own, unhastened has the bridges alone; those two
give the table of operators too, which holds what the bridges change.
"""

import json
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def draw(seeds, offsets, out, N: tl.constexpr, BLOCK: tl.constexpr):
    seed = tl.load(seeds + tl.program_id(0))
    at = tl.arange(0, BLOCK)
    offset = tl.load(offsets + at)
    base = out + tl.program_id(0) * (N + 1) * BLOCK
    tl.store(base + at, tl.rand(seed, offset))
    a, b, c, d = tl.randint4x(seed, offset)
    tl.store(base + BLOCK + at, a.to(tl.float64))
    tl.store(base + 2 * BLOCK + at, b.to(tl.float64))
    tl.store(base + 3 * BLOCK + at, c.to(tl.float64))
    tl.store(base + 4 * BLOCK + at, d.to(tl.float64))
    tl.store(base + 5 * BLOCK + at, tl.rand(seed, offset, n_rounds=7))
    tl.store(base + 6 * BLOCK, tl.rand(seed, tl.load(offsets + 1)))
    tl.store(base + 6 * BLOCK + 1, tl.randn(seed, tl.load(offsets + 2)))


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def compute(values, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    block = tl.load(values + row * COLUMNS + column)
    total, best = tl.sum(block, axis=1), tl.max(block, axis=0)
    tl.store(out + tl.arange(0, ROWS), total)
    tl.store(out + ROWS + tl.arange(0, COLUMNS), best)
    base = out + ROWS + COLUMNS
    tl.store(base, tl.reduce(total, 0, larger))
    tl.store(base + 1, block.shape[0] * 10.0 + block.shape[1])
    tl.store(base + 2, block.numel * 1.0)
    tl.store(base + 3, tl.argmax(best, axis=0))
    flat = tl.reshape(block, (ROWS * COLUMNS,))
    tl.store(base + 4 + tl.arange(0, ROWS * COLUMNS), tl.cumsum(flat, axis=0) / 2 + tl.exp(-flat))


def drawn(dtype: torch.dtype) -> torch.Tensor:
    seeds = torch.tensor([0, 1, -1, 2**40 + 7, -(2**63)])
    offsets = torch.tensor([0, 1, 2**31 - 1, -1, 77, 5, 6, 2**30], dtype=torch.int64)
    if dtype == torch.int64:
        offsets = offsets * 2**20
    out = torch.zeros(len(seeds), 7, 8, dtype=torch.float64)
    draw[(len(seeds),)](seeds, offsets.to(dtype), out, 6, 8)
    return out


def computed() -> torch.Tensor:
    out = torch.zeros(4 + 8 + 4 + 32, dtype=torch.float32)
    compute[(1,)](torch.arange(32, dtype=torch.float32).sin(), out, 4, 8)
    return out


if sys.argv[1] != "plain":
    from difftest.call import interpreter_speed
    from difftest.call.interpreter import bridge

    if sys.argv[1] == "unhastened":
        interpreter_speed.hasten = lambda interpreter: None
    bridge()
results = {
    "draws of 32 bits": drawn(torch.int32),
    "draws of 64 bits": drawn(torch.int64),
    "operators": computed(),
    "operators again": computed(),
}
found = {name: result.numpy().tobytes().hex() for name, result in results.items()}
if sys.argv[1] != "plain":
    from speed_table import tabulate

    found |= tabulate()
print(json.dumps(found))
