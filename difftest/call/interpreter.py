"""Bridges for what Triton's CPU interpreter (TRITON_INTERPRET=1) cannot run of sampler kernels.

Each bridge gives a construct that compiles on a GPU, but raises under the interpreter of Triton 3.9 (or, for
bfloat16 and range indices, computes something else), the meaning it has there. Nothing that is right without the
bridges gives another result with them. They serve both arms alike.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

_bridged: tuple[str, ...] | None = None


def bridge() -> tuple[str, ...]:
    """Install every bridge, once a process. Call after `triton` is imported and before a kernel runs.

    Kernels that run here are launched from code written for an accelerator, so what that asks of a host is bridged
    too (:mod:`difftest.call.host`).

    Returns:
        What was bridged, in words; empty when Triton compiles, which is left as it is.
    """
    global _bridged
    if _bridged is None:
        _bridged = _install() if interpreting() else ()
    return _bridged


def interpreting() -> bool:
    """Whether kernels run in Triton's CPU interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def _install() -> tuple[str, ...]:
    from triton.runtime import interpreter

    from difftest.call.bounds import keep_to_tensors
    from difftest.call.host import bridge_host
    from difftest.call.interpreter_speed import hasten

    _libdevice(interpreter)
    _masks(interpreter)
    _range_indices(interpreter)
    _range_ends(interpreter)
    _not_a_number(interpreter)
    _bfloat16(interpreter)
    hasten(interpreter)
    keep_to_tensors(interpreter)
    return (
        "libdevice functions are numpy's",
        "a mask joining a block and a scalar is a mask",
        "a range index has .to(), and 32 bits unless its bounds have more",
        "the end of a range may have been loaded",
        "the argmax of nothing but NaN is its first element",
        "bfloat16 compares and computes as numbers, rounded to nearest",
        *bridge_host(),
    )


# -- libdevice: its Python functions are placeholders that return None ---------------------------------------------

LIBDEVICE: dict[str, Callable[[Any], Any]] = {
    "log1p": np.log1p,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "exp": np.exp,
    "exp2": np.exp2,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
}
"""libdevice functions of one float argument, and the numpy function that gives their value in the same dtype."""

LIBDEVICE_TESTS: dict[str, Callable[[Any], Any]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "signbit": np.signbit,
}
"""libdevice functions of one float argument whose result is a boolean (int1)."""


def _libdevice(interpreter: Any) -> None:
    import triton.language as tl
    from triton.language.extra import libdevice

    def elementwise(name: str, function: Callable[[Any], Any], boolean: bool) -> Callable[..., Any]:
        def call(value: Any, **_: Any) -> Any:
            value = interpreter.interpreter_semantic.to_tensor(value)
            scalar = value.type.scalar
            if scalar not in (tl.float32, tl.float64):
                raise TypeError(f"libdevice.{name} takes float32 or float64, not {scalar}")
            with np.errstate(all="ignore"):
                data = function(value.handle.data)
            result = tl.int1 if boolean else scalar
            shape = value.type.shape if value.type.is_block() else None
            kind = result if shape is None else tl.block_type(result, shape)
            return tl.tensor(interpreter.TensorHandle(data, result), kind)

        call.__name__ = name
        return call

    for boolean, functions in ((False, LIBDEVICE), (True, LIBDEVICE_TESTS)):
        for name, function in functions.items():
            setattr(libdevice, name, elementwise(name, function, boolean))


# -- masks: a comparison of scalars that is spread over a block takes their dtype -----------------


def _masks(interpreter: Any) -> None:
    import triton.language as tl

    builder = interpreter.InterpreterBuilder

    def boolean(mask: Any) -> Any:
        if mask.data.dtype == np.bool_ or mask.data.dtype.kind not in "iu":  # any other is refused, in Triton's words
            return mask
        return interpreter.TensorHandle((mask.data & 1).astype(np.bool_), tl.int1)

    load, store, update = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        return load(self, ptrs, boolean(mask), *rest, **named)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        return store(self, ptrs, value, boolean(mask), *rest, **named)

    def create_atomic_rmw(self: Any, operation: Any, ptr: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        return update(self, operation, ptr, value, boolean(mask), *rest, **named)

    splat = builder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        """Spread a scalar over a block; what a comparison gave stays boolean, to be joined with another."""
        if arg.data.dtype != np.bool_:
            return splat(self, ret_ty, arg)
        return interpreter.TensorHandle(np.full(ret_ty.shape, arg.data), tl.int1)

    builder.create_splat = create_splat
    builder.create_masked_load = create_masked_load
    builder.create_masked_store = create_masked_store
    builder.create_atomic_rmw = create_atomic_rmw


# -- range indices: the interpreter hands out plain ints -----------------------------------------------------------


class RangeIndex(int):
    """An index of a loop in a kernel: an int that has the `.to(dtype)` of the scalar it is on a GPU.

    Sums, differences and products with ints stay indices, so `(i * BLOCK).to(tl.int64)` works too. This one has no
    width: it is unrolled, and so a constant, or its bounds are wider than 32 bits.
    """

    def to(self, dtype: Any, **options: Any) -> Any:
        from triton.runtime import interpreter

        return interpreter.interpreter_semantic.to_tensor(int(self)).to(dtype, **options)

    @classmethod
    def _like(cls, value: Any, other: Any) -> Any:
        """The value of an operation as an index, if it is a number."""
        return RangeIndex(value) if type(value) is int else value


class ShortIndex(RangeIndex):
    """An index of 32 bits, as most are: what is computed of it and of numbers of 32 bits wraps around there."""

    @classmethod
    def _like(cls, value: Any, other: Any) -> Any:
        if type(value) is not int:
            return value
        if not _LEAST <= other <= _LARGEST or type(other) is RangeIndex:
            return RangeIndex(value)
        return ShortIndex(value if _LEAST <= value <= _LARGEST else (value - _LEAST) % (1 << 32) + _LEAST)

    def __floordiv__(self, other: int) -> Any:
        """Rounded towards zero."""
        found = int.__floordiv__(self, other)
        inexact = type(found) is int and found < 0 and found * other != self
        return self._like(found + 1 if inexact else found, other)

    def __mod__(self, other: int) -> Any:
        """With the sign of the index."""
        found = int.__mod__(self, other)
        opposite = type(found) is int and found != 0 and (self < 0) != (other < 0)
        return self._like(found - other if opposite else found, other)


_LEAST, _LARGEST = -(1 << 31), (1 << 31) - 1


def _operation(name: str) -> Callable[[RangeIndex, int], Any]:
    compute = getattr(int, name)

    def operate(self: RangeIndex, other: int) -> Any:
        return self._like(compute(self, other), other)

    return operate


_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "lshift", "rshift", "and", "or", "xor")

for _name in _OPERATORS:
    setattr(RangeIndex, f"__{_name}__", _operation(f"__{_name}__"))


def _indices(make: Callable[..., Iterable[Any]], *bounds: Any, **options: Any) -> Iterator[Any]:
    """The indices of `range(...)` or a range of the language, of the type that they have on a GPU."""
    made = make(*bounds, **options)
    given = (*bounds, *(options[name] for name in ("arg1", "arg2", "step") if name in options))
    kind = ShortIndex if all(map(_is_short, given)) else RangeIndex
    for item in made:
        yield kind(item) if type(item) is int else item


def _unrolled(indices: Iterable[Any]) -> Iterator[Any]:
    """The indices of a range that is unrolled: constants, which have no width."""
    return (RangeIndex(item) if type(item) is int else item for item in indices)


def _is_short(bound: Any) -> bool:
    """Whether a bound of a range leaves its index at 32 bits with a sign."""
    if type(bound) is RangeIndex:
        return False
    number = getattr(bound, "value", bound)  # of a constexpr
    if number is None or isinstance(number, int):
        return number is None or _LEAST <= number <= _LARGEST
    return str(getattr(bound, "dtype", "")) in ("int1", "int8", "int16", "int32")


def _range_indices(interpreter: Any) -> None:
    transformer = interpreter.ASTTransformer

    class WithIndices(transformer):  # type: ignore[misc, valid-type]
        def visit_For(self, node: ast.For) -> ast.AST:
            self.generic_visit(node)
            ranges, function = node.iter, getattr(node.iter, "func", None)
            name = getattr(function, "attr", getattr(function, "id", ""))
            if isinstance(ranges, ast.Call) and name == "range":
                called = ast.Name("_difftest_indices", ast.Load())
                node.iter = ast.Call(called, [ranges.func, *ranges.args], ranges.keywords)
            else:
                node.iter = ast.Call(ast.Name("_difftest_unrolled", ast.Load()), [ranges], [])
            return node

    # The rewritten kernel sees the names of the interpreter's own module.
    interpreter._difftest_indices = _indices
    interpreter._difftest_unrolled = _unrolled
    interpreter.FunctionRewriter.ast_transformer = WithIndices()


# -- range ends: Triton before 3.9 converts an array of one element, which NumPy refuses from 2.5 on ------------------


def _range_ends(interpreter: Any) -> None:
    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


# -- NaN: the argmax of a block without a number raises ------------------------------------------------------------


def _not_a_number(interpreter: Any) -> None:
    reduce = interpreter.ReduceOps
    original = reduce.min_max

    def min_max(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        data = (input[0] if isinstance(input, tuple) else input).handle.data
        if data.dtype.kind != "f":
            return original(self, input, val_reduce_op, idx_reduce_op)
        lost = np.isnan(data).all(axis=self.axis, keepdims=True)
        if not lost.any():
            return original(self, input, val_reduce_op, idx_reduce_op)

        def index_of(values: Any, **options: Any) -> Any:
            return idx_reduce_op(np.where(lost, values.dtype.type(0), values), **options)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # "All-NaN slice", whose maximum is NaN
            return original(self, input, val_reduce_op, index_of if idx_reduce_op is not None else None)

    reduce.min_max = min_max


# -- bfloat16: stored as uint16, and compared and added up as such -------------------------------------------------


def widened(bits: Any) -> Any:
    """The float32 numbers of bfloat16 bits (uint16)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrowed(numbers: Any) -> Any:
    """bfloat16 bits (uint16) of float32 numbers, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16).reshape(np.shape(numbers))


def _bfloat16(interpreter: Any) -> None:
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    binary, unary = builder.binary_op, builder.unary_op

    def is_narrow(handle: Any) -> bool:
        return bool(handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16)

    def computed(output: Any) -> Any:
        if output.dtype == np.bool_:
            return interpreter.TensorHandle(output, tl.int1)
        return interpreter.TensorHandle(narrowed(output), tl.bfloat16)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if not is_narrow(lhs) or not is_narrow(rhs):
            return binary(self, lhs, rhs, op)
        return computed(op(widened(lhs.data), widened(rhs.data)))

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        if not is_narrow(arg):
            return unary(self, arg, op)
        return computed(op(widened(arg.data)))

    builder.binary_op, builder.unary_op = binary_op, unary_op
