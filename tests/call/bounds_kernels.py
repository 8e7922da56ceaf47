"""Launches that keep to their tensors, and launches that do not. Prints what is seen of each, in a line."""

import os
import sys
from typing import NamedTuple

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl

from difftest.call.bounds import BOUNDS
from difftest.call.interpreter import bridge
from difftest.call.poison import POISON

bridge()


@triton.jit
def copy(source, out, start, size, BLOCK: tl.constexpr):
    i = start + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(source + i, mask=i < size, other=0.0), mask=i < size)


@triton.jit
def read(source, at):
    tl.load(source + at)


@triton.jit
def write(out, at):
    tl.store(out + at, 1.0)


@triton.jit
def write_and_read(out, at, source):
    tl.store(out + at, 1.0)
    tl.load(source)


@triton.jit
def add(out, at, found):
    tl.store(found, tl.atomic_add(out + at, 1.0))


@triton.jit
def exchange(out, at, found):
    tl.store(found, tl.atomic_cas(out + at, 0, 1))


@triton.jit
def loaded(source, at):
    return tl.load(source + at)


@triton.jit
def copy_one(source, out, at):
    tl.store(out, loaded(source, at))


@triton.jit
def follow(addresses, out):
    tl.store(out, tl.load(tl.load(addresses).to(tl.pointer_type(tl.float32))))


@triton.jit
def follow_number(address, out):
    tl.store(out, tl.load(address.to(tl.pointer_type(tl.float32))))


@triton.jit
def follow_at(addresses, at, out):
    tl.store(out, tl.load(tl.load(addresses + at).to(tl.pointer_type(tl.float32))))


@triton.jit
def follow_bytes(packed, out):
    address = tl.load(packed.to(tl.pointer_type(tl.int64)))
    tl.store(out, tl.load(address.to(tl.pointer_type(tl.float32))))


@triton.jit
def take(addresses, out):
    address = tl.load(addresses)
    tl.store(addresses, 0)
    tl.store(out, tl.load(address.to(tl.pointer_type(tl.float32))))


@triton.jit
def copy_named(named, size):
    for i in range(size):
        tl.store(named.base + i, tl.load(named.source + i))


class Named(NamedTuple):
    base: torch.Tensor
    source: torch.Tensor


class WithBase(torch.Tensor):
    base = property(lambda self: torch.zeros(1))


def launch(what, kernel, *args, **options):
    BOUNDS.outside, POISON.allocations = set(), 0
    kernel[(1,)](*args, **options)
    assert ("reads" in BOUNDS.outside) == (POISON.allocations > 0)
    print(f"{what}: {' '.join(sorted(BOUNDS.outside))}")


def bits(value):
    return hex(value.view(torch.int32).item())


POISON.fill = 0x5A
memory = np.arange(64, dtype=np.float32)
ten, other = torch.from_numpy(memory[:10]), torch.zeros(10)  # what lies beyond the ten is known, and not theirs
launch("inside", copy, ten, other, 0, 8, BLOCK=8)
launch("a view of a longer row", read, torch.from_numpy(memory).view(8, 8)[:, :2], 9)
launch("masked beyond the end", copy, ten, other, 0, 10, BLOCK=16)
launch("another tensor of the launch", copy, other, ten, 2, 10, BLOCK=8)
launch("read before the start", read, ten, -1)
pair = np.arange(20, dtype=np.float32)
first, beside = torch.from_numpy(pair[:10]), torch.from_numpy(pair[10:])
launch("read in the tensor beside", copy_one, first, beside, 10)
print(" ", bits(beside[:1]))
launch("written into the tensor beside", write_and_read, first, 12, beside)
print(" ", pair[12])
launch("a part of a tensor, and all of it", write_and_read, first, 12, torch.from_numpy(pair))
print(" ", pair[12])
BOUNDS.ending = True
try:
    launch("ending", read, ten, 1 << 50)
except Exception as error:
    print("ended:", "outside of the kernel's tensors" in str(error), sorted(BOUNDS.outside))
BOUNDS.ending = False
bytes_ = torch.zeros(7, dtype=torch.uint8).untyped_storage()
launch("the last element sticks out", read, torch.empty(0, dtype=torch.int16).set_(bytes_, 0, (3,), (1,)), 3)

launch("in a device function", copy_one, ten, out := torch.zeros(1), 11)
print(" ", bits(out))
launch("written beyond the end", write, ten, 10)
launch("added beyond the end", add, ten, 10, out)
print(" ", bits(out))
numbers, found = torch.from_numpy(memory[:10]).view(torch.int32), torch.zeros(1, dtype=torch.int32)
launch("exchanged inside", exchange, numbers, 0, found)
print(" ", numbers[0].item(), found.item())
launch("exchanged beyond the end", exchange, numbers, 10, found)
print(" ", bits(found), "untouched" if memory[10] == 10 else "changed")

launch("through an address in a tensor", follow, torch.tensor([memory.ctypes.data + 4 * 40]), out)
print(" ", out.item())
launch("through an address that is an argument", follow_number, memory.ctypes.data + 4 * 41, out)
print(" ", out.item())

launch(
    "through a table of which a view is given", follow_at, torch.tensor([0, memory.ctypes.data + 4 * 42])[:1], 1, out
)
print(" ", out.item())
table = torch.tensor([memory.ctypes.data + 4 * 43])
launch("through a table of bytes", follow_bytes, table.view(torch.uint8), out)
print(" ", out.item())
launch("through an address that is taken out", take, table, out)
print(" ", out.item(), table.item())
launch("a number that may be an address", read, torch.tensor([memory.ctypes.data]), 1)
launch("a tuple with a field named base", copy_named, Named(zeros := torch.zeros(4), ten), 4)
print(" ", zeros.tolist())
launch("a tensor with a property named base", read, zeros.as_subclass(WithBase), 3)
launch("what stands for a tensor", read, triton.reinterpret(zeros, tl.int32), 4)

for POISON.fill in (0x5A, 0xA5):  # a block of which a part lies beyond the end
    out, zeros = torch.zeros(16), torch.zeros(10)
    launch("a block beyond the end", copy, zeros, out, 0, 16, BLOCK=16)
    print(" ", out[:10].unique().tolist(), {hex(word & 0xFFFFFFFF) for word in out[10:].view(torch.int32).tolist()})

if sys.argv[1:]:
    launch("far away", read, ten, int(sys.argv[1]))
POISON.fill = None
launch("not in a call", write, ten, 10)
print(" ", "untouched" if memory[10] == 10 else "changed")
