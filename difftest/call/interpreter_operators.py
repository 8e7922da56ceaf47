"""Operators of Triton's CPU interpreter on operands that need no conversion, handed to NumPy at once.

An operator of the interpreter passes a dozen functions before NumPy computes it, which look for what to convert. Two
tensors of one dtype, and a tensor with a number that is one of its dtype, need no conversion, and NumPy broadcasts a
scalar by itself. Whatever is otherwise takes the interpreter's own way, so that results and errors are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

Operator = Callable[..., Any]

_INTEGERS = frozenset({"int32", "int64", "uint32", "uint64"})
_SIGNED = frozenset({"int32", "int64"})
_FLOATS = frozenset({"fp32", "fp64"})
_NUMBERS = _INTEGERS | _FLOATS
PLAIN = _NUMBERS | {"int1"}
"""dtypes whose operators take two of them as they are, divisions included."""
_BITS = _INTEGERS | {"int1"}
_CONSTANTS = 4096  # numbers of which the data are kept
_BITS_OF = struct.Struct("d").pack

_Table = tuple[tuple[str, Callable[[Any, Any], Any], frozenset[str]], ...]

_ARITHMETIC: _Table = (
    ("add", np.add, _NUMBERS),
    ("sub", np.subtract, _NUMBERS),
    ("mul", np.multiply, _NUMBERS),
    ("truediv", np.divide, _FLOATS),
    ("and", np.bitwise_and, _BITS),
    ("or", np.bitwise_or, _BITS),
    ("xor", np.bitwise_xor, _BITS),
)
_OF_ONE_DTYPE: _Table = (
    ("floordiv", lambda left, right: (left - np.fmod(left, right)) // right, _SIGNED),
    ("mod", np.fmod, _SIGNED | _FLOATS),
    ("lshift", np.left_shift, _INTEGERS),
    ("rshift", np.right_shift, _INTEGERS),
)
_COMPARISONS: _Table = (
    ("lt", np.less, _NUMBERS),
    ("le", np.less_equal, _NUMBERS),
    ("gt", np.greater, _NUMBERS),
    ("ge", np.greater_equal, _NUMBERS),
    ("eq", np.equal, _NUMBERS),
    ("ne", np.not_equal, _NUMBERS),
)


def shortcuts(interpreter: Any, tl: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What to put before the interpreter's operators.

    Returns:
        By name of a method of a tensor, and by name of a function of the language: a function that takes the
        interpreter's own and returns the one to call instead.
    """
    ways = _Ways(interpreter, tl)
    methods: dict[str, Any] = {"to": ways.cast}
    for name, compute, dtypes in _ARITHMETIC:
        methods[f"__{name}__"] = ways.binary(compute, dtypes, pointers=name == "add")
        methods[f"__r{name}__"] = ways.reflected(compute, dtypes)
    for name, compute, dtypes in _OF_ONE_DTYPE:
        methods[f"__{name}__"] = ways.binary(compute, dtypes, promoting=False)
    for name, compute, dtypes in _COMPARISONS:
        methods[f"__{name}__"] = ways.binary(compute, dtypes, comparing=True)
    return methods, {"where": ways.where, "load": ways.load, "store": ways.store}


class _Ways:
    def __init__(self, interpreter: Any, tl: Any) -> None:
        self.interpreter = interpreter
        self.semantic = interpreter.interpreter_semantic
        self.tl = tl
        self.tensor = tl.tensor
        self.handle = interpreter.TensorHandle
        self.constexpr = tl.constexpr
        self.flat = tl.tensor(None, tl.int32).shape  # of every scalar
        self.constants: dict[tuple[Any, ...], Any] = {}
        self.scalars: dict[tuple[Any, ...], Any] = {}
        self.promoted: dict[tuple[str, str], Any] = {}
        self.types: dict[tuple[str, int], Any] = {}
        self.everywhere: dict[tuple[int, ...], Any] = {}
        self.dtypes = {name: np.dtype(name.replace("fp", "float")) for name in _NUMBERS} | {"int1": np.dtype(bool)}

    # -- parts ----------------------------------------------------------------------------------------------------

    def made(self, data: Any, kind: Any, like: Any) -> Any:
        """A tensor of `data`, of scalar type `kind` and of the shape of `like`."""
        handle = self.handle.__new__(self.handle)  # its own __init__ looks for data of another width than the dtype's
        handle.data, handle.dtype, handle.attr = data, kind, {}
        new = self.tensor.__new__(self.tensor)
        new.handle = handle
        new.shape, new.numel, new.dtype = like.shape, like.numel, kind
        new.type = self.type(kind, like)
        return new

    def type(self, kind: Any, like: Any) -> Any:
        """The type of a tensor of scalar type `kind` and of the shape of `like`; shapes are one object each."""
        if like.shape is self.flat:
            return kind
        key = (kind.name, id(like.shape))
        found = self.types.get(key)
        if found is None:
            found = self.types[key] = like.type.with_element_ty(kind)
        return found

    def constant(self, number: Any, like: Any) -> Any:
        """A number as `like` meets it: the scalar type that both get and the number's data [1]; None when it raises,
        or depends on the operator."""
        key = _key(number, like.dtype)
        if key in self.constants:
            return self.constants[key]
        with_like = self.tensor(like.handle, like.dtype)  # as if it were a scalar, so that nothing is spread
        meet, to_tensor = self.semantic.binary_op_type_checking_impl, self.semantic.to_tensor
        try:  # an operator makes a tensor of a number before or after it finds what both become, by Triton's version
            (left, right), (other_left, other_right) = meet(with_like, number), meet(with_like, to_tensor(number))
        except (TypeError, ValueError):
            return None  # the interpreter's own way raises it
        data, other = right.handle.data, other_right.handle.data
        same = (
            left.dtype == other_left.dtype and data.shape == other.shape == (1,) and data.tobytes() == other.tobytes()
        )
        known = (left.dtype, data) if same else None
        if len(self.constants) < _CONSTANTS:
            self.constants[key] = known
        return known

    def promotion(self, left: Any, right: Any) -> Any:
        """The scalar type in which two scalar types meet; None when it is not one of numbers."""
        key = (left.name, right.name)
        if key not in self.promoted:
            known = left.name in self.dtypes and right.name in self.dtypes
            self.promoted[key] = (
                self.semantic.computation_type_impl(left, False, right, False, False) if known else None
            )
        return self.promoted[key]

    def scalar(self, number: Any, kind: Any) -> Any:
        """A number as an array [1] of scalar type `kind`, as it is stored; None when it is no number."""
        if type(number) is self.constexpr:
            number = number.value
        if not isinstance(number, (int, float)) or (isinstance(number, float) and kind.name in _INTEGERS):
            return None  # NumPy converts a float out of range otherwise alone than in a block
        key = _key(number, kind)
        if key in self.scalars:
            return self.scalars[key]
        data = self.semantic.cast(self.semantic.to_tensor(number), kind).handle.data
        if len(self.scalars) < _CONSTANTS:
            self.scalars[key] = data
        return data

    def pair(self, left: Any, right: Any) -> Any:
        """What a tensor and what meets it come to: both data, their scalar type and the tensor whose shape the result
        has. None for what has to be converted otherwise, or shaped otherwise than by spreading a scalar."""
        kind, data, like = left.dtype, left.handle.data, left
        if data.dtype is not self.dtypes.get(kind.name):
            return None
        if type(right) is self.tensor:
            other = right.handle.data
            if other.dtype is not self.dtypes.get(right.dtype.name):
                return None
            if right.shape is not left.shape and right.shape is not self.flat:
                if left.shape is not self.flat:
                    return None
                like = right
            if other.dtype is not data.dtype:
                kind = self.promotion(kind, right.dtype)
        else:
            number = right.value if type(right) is self.constexpr else right
            known = self.constant(number, left) if isinstance(number, (int, float)) else None
            if known is None:
                return None
            kind, other = known
        dtype = self.dtypes.get(kind.name)
        if dtype is None:
            return None
        if data.dtype is not dtype:
            data = data.astype(dtype)
        if other.dtype is not dtype:
            other = other.astype(dtype)
        return data, other, kind, like

    def sound(self, value: Any) -> bool:
        """Whether a tensor's data are of the dtype that it says they are."""
        return value.handle.data.dtype is self.dtypes.get(value.dtype.name)

    def alike(self, left: Any, right: Any, kind: Any) -> bool:
        """Whether neither operand changes its scalar type, nor is a constexpr, which may have to be warned about."""
        if type(right) is self.constexpr:
            return False
        return bool(left.dtype.name == kind.name == getattr(right, "dtype", kind).name)

    # -- operators ------------------------------------------------------------------------------------------------

    def binary(
        self, compute: Any, dtypes: Any, *, comparing: bool = False, pointers: bool = False, promoting: bool = True
    ) -> Any:
        """The shortcut of `tensor operator other`."""
        truth, pointer_type, ways = self.tl.int1, self.tl.pointer_type, self

        def shortcut(own: Operator) -> Operator:
            def operate(self: Any, other: Any) -> Any:
                if pointers and type(self.dtype) is pointer_type:
                    moved = ways.moved(self, other)
                    return own(self, other) if moved is None else moved
                found = ways.pair(self, other)
                if found is None:
                    return own(self, other)
                left, right, kind, like = found
                if kind.name not in dtypes or not (promoting or ways.alike(self, other, kind)):
                    return own(self, other)
                if not comparing and _spreads_nan(left, right):
                    return own(self, other)
                return ways.made(compute(left, right), truth if comparing else kind, like)

            return operate

        return shortcut

    def reflected(self, compute: Any, dtypes: Any) -> Any:
        """The shortcut of `number operator tensor`."""
        ways = self

        def shortcut(own: Operator) -> Operator:
            def operate(self: Any, other: Any) -> Any:
                found = None if type(other) is ways.tensor else ways.pair(self, other)
                if found is None or found[2].name not in dtypes or _spreads_nan(found[0], found[1]):
                    return own(self, other)
                data, number, kind, like = found
                return ways.made(compute(number, data), kind, like)

            return operate

        return shortcut

    def cast(self, own: Operator) -> Operator:
        """The shortcut of `tensor.to(dtype)`."""
        ways = self

        def cast(self: Any, dtype: Any, *more: Any, **named: Any) -> Any:
            kind = dtype.value if type(dtype) is ways.constexpr else dtype
            if more or named or type(kind) is not ways.tl.dtype or kind.name not in _NUMBERS or not ways.sound(self):
                return own(self, dtype, *more, **named)
            if self.dtype.name == kind.name:
                return self
            return ways.made(self.handle.data.astype(ways.dtypes[kind.name]), kind, self)

        return cast

    def moved(self, pointer: Any, offset: Any) -> Any:
        """`pointer + offset` for a signed tensor of offsets; None for anything else."""
        if type(offset) is not self.tensor or offset.dtype.name not in _SIGNED:
            return None
        if offset.shape is pointer.shape or offset.shape is self.flat:
            like = pointer
        elif pointer.shape is self.flat:
            like = offset
        else:
            return None
        moved = self.semantic.builder.create_addptr(pointer.handle, offset.handle)
        return self.made(moved.data, pointer.dtype, like)

    def where(self, own: Operator) -> Operator:
        """The shortcut of `where(condition, x, y)`."""

        def where(condition: Any, x: Any, y: Any, *more: Any, **named: Any) -> Any:
            first = x if type(x) is self.tensor else y
            if more or named or not (type(condition) is type(first) is self.tensor and condition.dtype.name == "int1"):
                return own(condition, x, y, *more, **named)
            found = self.pair(first, y if first is x else x) if self.sound(condition) else None
            if found is None or found[2].name not in _NUMBERS:
                return own(condition, x, y)
            data, other, kind, like = found
            if condition.shape is not self.flat and condition.shape is not like.shape:
                if like.shape is not self.flat:
                    return own(condition, x, y)
                like = condition
            left, right = (data, other) if first is x else (other, data)
            return self.made(np.where(condition.handle.data, left, right), kind, like)

        return where

    # -- memory ---------------------------------------------------------------------------------------------------

    def reach(self, pointer: Any, mask: Any) -> Any:
        """The mask, of the pointers' shape, with which they are followed; None when that takes more than spreading."""
        if type(pointer) is not self.tensor or type(pointer.dtype) is not self.tl.pointer_type:
            return None
        if pointer.dtype.element_ty.name == "int1":
            return None  # stored in a byte
        shape = pointer.handle.data.shape
        if mask is None:
            if shape not in self.everywhere:
                self.everywhere[shape] = np.ones(shape, dtype=bool)
            return self.everywhere[shape]
        if type(mask) is not self.tensor or mask.dtype.name != "int1" or not self.sound(mask):
            return None
        if mask.shape is pointer.shape:
            return mask.handle.data
        return np.full(shape, mask.handle.data) if mask.shape is self.flat else None

    def stored(self, value: Any, pointer: Any, kind: Any, dtype: Any) -> Any:
        """The data of a value as it lies where `pointer` points, of its shape; None when it has to be converted."""
        shape = pointer.handle.data.shape
        if type(value) is not self.tensor:
            data = self.scalar(value, kind) if kind.name in _NUMBERS else None
            return data if data is None or data.shape == shape else np.full(shape, data)
        data = value.handle.data
        if value.dtype.name != kind.name or data.dtype != dtype:
            return None
        if value.shape is pointer.shape:
            return data
        return np.full(shape, data) if value.shape is self.flat else None

    def load(self, own: Operator) -> Operator:
        """The shortcut of `load(pointer, mask, other)`."""
        memory = self.interpreter._interpreter
        numpy_dtype = self.interpreter._get_np_dtype

        def loaded(pointer: Any, mask: Any = None, other: Any = None, *more: Any, **named: Any) -> Any:
            reach = None if more or named or (mask is None and other is not None) else self.reach(pointer, mask)
            if reach is None:
                return own(pointer, mask, other, *more, **named)
            kind = pointer.dtype.element_ty
            dtype = numpy_dtype(kind)
            fallback = self.stored(0 if other is None else other, pointer, kind, dtype)
            if fallback is None:
                return own(pointer, mask, other)
            if fallback.size == 1 and not fallback.item():
                fallback = np.zeros_like(fallback)  # the interpreter takes a single -0.0 for no `other`
            data = memory.load(pointer.handle.data, reach, fallback, dtype)
            return self.made(data, kind, pointer)

        return loaded

    def store(self, own: Operator) -> Operator:
        """The shortcut of `store(pointer, value, mask)`."""
        memory = self.interpreter._interpreter
        numpy_dtype = self.interpreter._get_np_dtype

        def stored(pointer: Any, value: Any, mask: Any = None, *more: Any, **named: Any) -> Any:
            reach = None if more or named else self.reach(pointer, mask)
            if reach is None or pointer.dtype.const:
                return own(pointer, value, mask, *more, **named)
            kind = pointer.dtype.element_ty
            data = self.stored(value, pointer, kind, numpy_dtype(kind))
            if data is None:
                return own(pointer, value, mask)
            memory.store(pointer.handle.data, data, reach)
            return self.tensor(None, self.tl.void)

        return stored


def _spreads_nan(left: Any, right: Any) -> bool:
    """Whether one of two operands is a NaN spread over the other. Which of two NaN comes out of NumPy depends on
    whether it computes with an array or with a number, as the interpreter never does."""
    if left.size == right.size or left.dtype.kind != "f":
        return False
    number = (right if right.size == 1 else left).item()
    return bool(number != number)


def _key(number: int | float, kind: Any) -> tuple[Any, ...]:
    """What tells a number of a scalar type from others: -0.0 from 0.0, one NaN from another, True from 1."""
    return kind.name, number if isinstance(number, int) else _BITS_OF(number), type(number) is bool
