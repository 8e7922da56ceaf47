"""What an operator, a cast, a load or a store gives, for every pair of dtypes and for numbers at the edges.

Kernels in the interpreter are Python, so one launch goes through a whole table; an entry is the result's dtype, type
and bytes, or what was raised.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton import language
from triton.tools.tensor_descriptor import TensorDescriptor

OPERATORS = [
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "lshift", "rshift", "and_", "or_", "xor"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
]
INTEGERS = ["int8", "int32", "int64", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
NAN, INFINITY = float("nan"), float("inf")
NUMBERS: list[Any] = [
    *(0, 1, -1, 3, 33, 64, -3, 2**31 - 1, 2**31, -(2**31) - 1, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), 2**64 - 1, 2**64),
    *(0.0, -0.0, 0.1, 1.5, -2.5, 1e-45, 1e10, 3e38, 1e39, NAN, -NAN, INFINITY, -INFINITY),
    *(True, False, None, np.float64(0.1), np.int64(3)),
    *(tl.constexpr(3), tl.constexpr(0.5), tl.constexpr(-1), tl.constexpr(True)),
]
table: dict[str, str] = {}
_case: list[Any] = ["", None]  # what is tabled, and where stores go


def note(name: str, function: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Enter what `function` gives for these arguments, and what it leaves in memory."""
    memory = _case[1]
    if memory is not None:
        memory.fill_(0)
    try:
        result = function(*args, **named)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    else:
        found = "nothing"
        if isinstance(result, tl.tensor):
            found = str(result.type)
            if result.handle is not None:
                data = result.handle.data
                if isinstance(result.dtype, tl.pointer_type):
                    data = data - np.uint64(memory.data_ptr())
                found += f" {data.dtype} {data.shape} {np.ascontiguousarray(data).tobytes().hex()}"
        if memory is not None:
            found += f" {memory.view(torch.uint8).numpy().tobytes().hex()}"
    key = f"{_case[0]}: {name}"
    assert key not in table, key
    table[key] = found


def values(dtype: str) -> np.ndarray:
    """[8] of a dtype: its edges, and NaN of both signs."""
    if dtype == "bool":
        return np.array([0, 1, 0, 0, 1, 1, 0, 1], bool)
    if dtype in FLOATS:
        largest, least = float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
        return np.array([0.0, -0.0, NAN, -NAN, -INFINITY, 0.1, largest, -least], dtype)
    info = np.iinfo(dtype)
    return np.array([0, 1, 3, info.max, info.min, info.max // 2, info.max - 1, 7], dtype)


@triton.jit
def tabulate_pairs(left, right, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(left + at), tl.load(right + at)
    one, other = tl.load(left + 24), tl.load(right + 4)  # NaN where there is one
    last, first = tl.load(left + N - 1), tl.load(right + 3)
    row, column = tl.load(left + tl.arange(0, 8))[None, :], tl.load(right + tl.arange(0, 4))[:, None]
    single = tl.load(right + tl.arange(0, 1))
    shapes = {
        "blocks": (a, b),
        "scalar and block": (one, b),
        "block and scalar": (a, first),
        "block and another scalar": (a, other),
        "scalars": (last, other),
        "block of one": (a, single),
        "row and column": (row, column),
    }
    conditions = {"block": at % 3 == 1, "scalar": last == last, "integers": at % 2, "True": True}
    for shape, (x, y) in shapes.items():
        for name in OPERATORS:
            note(f"{name} of {shape}", getattr(operator, name), x, y)
        for kind, condition in conditions.items():
            note(f"where {kind} of {shape}", tl.where, condition, x, y)


@triton.jit
def tabulate_numbers(source, N: tl.constexpr):
    at = tl.arange(0, N)
    block, scalar = tl.load(source + at), tl.load(source + 2)
    for index, number in enumerate(NUMBERS):
        for shape, x in (("block", block), ("scalar", scalar)):
            for name in OPERATORS:
                note(f"{name} of {shape} and {index}: {number}", getattr(operator, name), x, number)
                if not isinstance(number, tl.constexpr):  # which takes the tensor for a value
                    note(f"{name} of {index}: {number} and {shape}", getattr(operator, name), number, x)
            note(f"where {shape} or {index}: {number}", tl.where, at % 3 == 1, x, number)
            note(f"where {index}: {number} or {shape}", tl.where, at % 3 == 1, y=x, x=number)
    for name in ("int1", *INTEGERS, *FLOATS, "bfloat16"):
        for shape, x in (("block", block), ("scalar", scalar)):
            note(f"{shape} to {name}", x.to, getattr(tl, name))
            note(f"{shape} to constexpr {name}", x.to, tl.constexpr(getattr(tl, name)))
            note(f"{shape} as {name}", x.to, dtype=getattr(tl, name), bitcast=True)
    note("to nothing", block.to)


@triton.jit
def tabulate_memory(memory, source):
    at = tl.arange(0, 8)
    block, scalar, zero = tl.load(source + at), tl.load(source + 2), tl.load(source + 1)
    even, never = at % 2 == 0, tl.program_id(0) == 1
    places = {
        "block": memory + at,
        "scalar": memory + 1,
        "one": memory + tl.arange(0, 1),
        "column": memory + at[:, None],
    }
    masks = {"none": None, "even": even, "never": never, "True": True, "integers": at % 2, "column": even[:, None]}
    fallbacks = {"none": None, "scalar": scalar, "zero": zero, "-0.0": -0.0, "1": 1}
    for place, pointer in places.items():
        for mask, where in masks.items():
            for name, other in fallbacks.items():
                note(f"load {place} {mask} {name}", tl.load, pointer, mask=where, other=other)
            for name, value in {"block": block, "scalar": scalar, "number": 2.5}.items():
                note(f"store {place} {mask} {name}", tl.store, pointer, value, mask=where)
        for name, offset in {"block": block, "scalar": scalar, "zero": zero, "-1": -1, "1": 1, "2**40": 2**40}.items():
            note(f"at {place} + {name}", operator.add, pointer, offset)
            note(f"at {place} - {name}", operator.sub, pointer, offset)
            note(f"{name} + at {place}", operator.add, offset, pointer)


@triton.jit
def tabulate_numbers_in_memory(memory):
    at = tl.arange(0, 8)
    even, never = at % 2 == 0, tl.program_id(0) == 1
    for index, number in enumerate(NUMBERS):
        note(f"load or {index}: {number}", tl.load, memory + at, mask=even, other=number)
        note(f"load no scalar or {index}: {number}", tl.load, memory + 1, mask=never, other=number)
        note(f"store {index}: {number}", tl.store, memory + at, number)
        note(f"store at one {index}: {number}", tl.store, memory + 1, number)
        note(f"masked with {index}: {number}", tl.load, memory + at, mask=number)


@triton.jit
def tabulate_wrong_calls(memory):
    at = tl.arange(0, 8)
    for name in ("load", "store", "where"):
        function = getattr(tl, name)
        note(f"{name} of nothing", function)
        note(f"{name} of one", function, memory + at)
        note(f"{name} of two", function, memory + at, at)
        note(f"{name} of three", function, at < 3, at, at)
        note(f"{name} of many", function, memory + at, at, at < 3, (), "", "", False, 1)
        note(f"{name} with what it has not", function, memory + at, at, at < 3, size=1)
        note(f"{name} of None", function, None, None, None)
    note("load by name", tl.load, pointer=memory + at, mask=at < 3, other=1)
    note("load with an option", tl.load, memory + at, cache_modifier=".ca")
    note("load of more than the pointers", tl.load, memory + tl.arange(0, 4), mask=at < 3)
    note("load at one with a block", tl.load, memory, mask=True, other=at)
    note("store by name", tl.store, pointer=memory + at, value=1, mask=None)
    note("store with an option by place", tl.store, memory + at, 1, None, ())
    note("store of more than the pointers", tl.store, memory + at, tl.arange(0, 4))
    note("a sum without the other", at.__add__)


@triton.jit
def of_language(x):
    return language.where(x > 1.5, x * 2.0, -x)


@triton.jit
def through_descriptors(argument, memory):
    made = tl.make_tensor_descriptor(memory, [4, 4], [4, 1], [4, 4])
    note("load of an argument", argument.load, [0, 0])
    note("load by name", argument.load, offsets=[0, 0])
    note("store", made.store, [0, 0], tl.full([4, 4], 2.0, tl.float32))


@triton.jit
def raises(memory):
    tl.store(memory, of_language(tl.load(memory)))
    tl.load(3)


def outside_a_launch() -> Any:
    from triton.runtime import interpreter

    data = np.array([1, 2, 3, NAN], np.float32)
    return of_language(tl.tensor(interpreter.TensorHandle(data, tl.float32), tl.block_type(tl.float32, [4])))


def patched() -> list[str]:
    """Names of Triton's language that are not its own functions."""
    owners = (tl, tl.core, tl.math, tl.tensor)
    return [f"{o.__name__}.{n}" for o in owners for n, v in vars(o).items() if getattr(v, "__name__", "") == "<lambda>"]


def tabulate() -> dict[str, str]:
    """The whole table."""
    dtypes = ["bool", *INTEGERS, *FLOATS]
    for left in dtypes:
        for right in dtypes:
            x, y = values(left), values(right)
            _case[:] = [f"{left} and {right}", None]
            tabulate_pairs[(1,)](torch.from_numpy(np.repeat(x, 8)), torch.from_numpy(np.tile(y, 8)), 64)
        _case[:] = [f"{left} and numbers", None]
        tabulate_numbers[(1,)](torch.from_numpy(values(left)), 8)
        memory = torch.from_numpy(values(left))
        _case[:] = [f"numbers in memory of {left}", memory]
        tabulate_numbers_in_memory[(1,)](memory)
        for right in sorted({left, "int32", "uint32", "int64", "float32"}):
            _case[:] = [f"memory of {left} with {right}", memory]
            tabulate_memory[(1,)](memory, torch.from_numpy(values(right)))
    memory = torch.zeros(16)
    _case[:] = ["calls", memory]
    tabulate_wrong_calls[(1,)](memory)
    _case[0] = "descriptors"
    through_descriptors[(1,)](TensorDescriptor(torch.arange(16.0), [4, 4], [4, 1], [4, 4]), memory)
    _case[0] = "launches"
    before = patched()
    note("one that raises", raises[(1,)], memory)
    table["still patched"] = str([name for name in patched() if name not in before])
    note("a function outside a launch", outside_a_launch)
    return table
