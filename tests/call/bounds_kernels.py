"""Launches that keep to their tensors, and launches that do not. Prints what is seen of each, in a line."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

from difftest.call.bounds import watched
from difftest.call.interpreter import bridge

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
def add(out, at):
    tl.atomic_add(out + at, 1.0)


@triton.jit
def loaded(source, at):
    return tl.load(source + at)


@triton.jit
def copy_one(source, out, at):
    tl.store(out, loaded(source, at))


@triton.jit
def follow(addresses):
    tl.load(tl.load(addresses).to(tl.pointer_type(tl.float32)))


def launch(what, kernel, *args, **options):
    with watched() as reach:
        try:
            kernel[(1,)](*args, **options)
        except Exception as error:
            assert reach.outside, error
    print(f"{what}: {reach.outside}")


memory = torch.zeros(64)
ten, other = torch.arange(10.0), torch.zeros(10)
launch("inside", copy, ten, other, 0, 8, BLOCK=8)
launch("a view of a longer row", read, memory.view(8, 8)[:, :2], 9)
launch("masked beyond the end", copy, ten, other, 0, 10, BLOCK=16)
launch("another tensor of the launch", copy, other, ten, 2, 10, BLOCK=8)
launch("read beyond the end", read, ten, 10)
launch("read before the start", read, ten, -1)
launch("written beyond the end", write, other, 10)
bytes_ = torch.zeros(7, dtype=torch.uint8).untyped_storage()
launch("the last element sticks out", read, torch.empty(0, dtype=torch.int16).set_(bytes_, 0, (3,), (1,)), 3)
launch("added beyond the end", add, other, 10)
with watched() as reach:
    for at in (12, 2):
        try:
            write[(1,)](other, at)
        except Exception as error:
            assert "outside" in str(error), error
print(f"swallowed by the caller: {reach.outside}")
launch("in a device function", copy_one, ten, other, 11)
launch("through an address in a tensor", follow, torch.tensor([memory.data_ptr()]))
launch("through what is no address", follow, torch.tensor([4096]))
before = ten.clone()
copy[(1,)](other, ten, 0, 0, BLOCK=8)
print("not watched:", "untouched" if torch.equal(before, ten) else "changed")
