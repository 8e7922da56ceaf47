"""Operators of Triton's CPU interpreter on operands that need no conversion, handed to NumPy at once.

An operator of the interpreter passes a dozen functions before NumPy computes it, which look for what to convert. Two
tensors of one dtype, and a tensor with a number that is one of its dtype, need no conversion, and NumPy broadcasts a
scalar by itself. Whatever is otherwise takes the interpreter's own way, so that results and errors are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Operator = Callable[..., Any]

_NUMBERS = frozenset({"int32", "int64", "uint32", "uint64", "fp32", "fp64"})
_SIGNED = frozenset({"int32", "int64"})
_FLOATS = frozenset({"fp32", "fp64"})
_CONSTANTS = 4096  # numbers of which the tensor is kept

_ARITHMETIC = (
    ("add", np.add, _NUMBERS),
    ("sub", np.subtract, _NUMBERS),
    ("mul", np.multiply, _NUMBERS),
    ("truediv", np.divide, _FLOATS),
    ("floordiv", lambda left, right: (left - np.fmod(left, right)) // right, _SIGNED),
    ("mod", np.fmod, _SIGNED | _FLOATS),
    ("and", np.bitwise_and, _SIGNED | {"int1"}),
    ("or", np.bitwise_or, _SIGNED | {"int1"}),
    ("xor", np.bitwise_xor, _SIGNED | {"int1"}),
)
_COMPARISONS = (
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
    methods: dict[str, Any] = {}
    for comparing, table in ((False, _ARITHMETIC), (True, _COMPARISONS)):
        for name, compute, dtypes in table:
            methods[f"__{name}__"] = ways.binary(compute, dtypes, comparing, pointers=name == "add")
            if not comparing:
                methods[f"__r{name}__"] = ways.reflected(compute, dtypes)
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
        self.types: dict[tuple[str, int], Any] = {}
        self.everywhere: dict[tuple[int, ...], Any] = {}

    # -- parts ----------------------------------------------------------------------------------------------------

    def made(self, data: Any, kind: Any, like: Any, handle_dtype: Any) -> Any:
        """A tensor of `data`, of scalar type `kind` and of the shape of `like`."""
        handle = self.handle.__new__(self.handle)  # its own __init__ looks for data of another width than the dtype's
        handle.data, handle.dtype, handle.attr = data, handle_dtype, {}
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
        """A number as an array [1] of the dtype that `like` has with it, or None when that is another than its own."""
        key = _key(number, like.dtype)
        if key in self.constants:
            return self.constants[key]
        data = None
        with_like = self.tensor(like.handle, like.dtype)  # as if it were a scalar, so that nothing is spread
        try:
            left, right = self.semantic.binary_op_type_checking_impl(with_like, number)
        except (TypeError, ValueError):
            return None  # the interpreter's own way raises it
        if left.dtype.name == like.dtype.name and right.handle.data.shape == (1,):
            data = right.handle.data
        if len(self.constants) < _CONSTANTS:
            self.constants[key] = data
        return data

    def scalar(self, number: Any, kind: Any) -> Any:
        """A number as an array [1] of scalar type `kind`, as it is stored; None when it is no number."""
        if type(number) is self.constexpr:
            number = number.value
        if not isinstance(number, (int, float)):
            return None
        key = _key(number, kind)
        if key in self.scalars:
            return self.scalars[key]
        data = self.semantic.cast(self.semantic.to_tensor(number), kind).handle.data
        if len(self.scalars) < _CONSTANTS:
            self.scalars[key] = data
        return data

    def operand(self, value: Any, like: Any) -> Any:
        """The data of what meets `like` in an operator, and the tensor of the larger shape; None for what has to be
        converted or given another shape than by spreading a scalar."""
        kind = type(value)
        if kind is self.tensor:
            if value.dtype.name != like.dtype.name:
                return None
            data = value.handle.data
            if data.dtype is not like.handle.data.dtype:
                return None
            if value.shape is like.shape or value.shape is self.flat:
                return data, like
            return (data, value) if like.shape is self.flat else None
        if kind is self.constexpr:
            value = value.value
        if isinstance(value, (int, float)):
            data = self.constant(value, like)
            if data is not None and data.dtype is like.handle.data.dtype:
                return data, like
        return None

    # -- operators ------------------------------------------------------------------------------------------------

    def binary(self, compute: Any, dtypes: Any, comparing: bool, pointers: bool) -> Any:
        """The shortcut of `tensor operator other`."""
        truth = self.tl.int1

        def shortcut(own: Operator) -> Operator:
            def operate(left: Any, right: Any) -> Any:
                if left.dtype.name in dtypes:
                    found = self.operand(right, left)
                    if found is not None:
                        handle = left.handle
                        kind = truth if comparing else left.dtype
                        return self.made(compute(handle.data, found[0]), kind, found[1], handle.dtype.scalar)
                elif pointers and type(left.dtype) is self.tl.pointer_type:
                    moved = self.moved(left, right)
                    if moved is not None:
                        return moved
                return own(left, right)

            return operate

        return shortcut

    def reflected(self, compute: Any, dtypes: Any) -> Any:
        """The shortcut of `number operator tensor`."""

        def shortcut(own: Operator) -> Operator:
            def operate(right: Any, left: Any) -> Any:
                if right.dtype.name in dtypes and type(left) is not self.tensor:
                    found = self.operand(left, right)
                    if found is not None:
                        return self.made(compute(found[0], right.handle.data), right.dtype, right, right.dtype)
                return own(right, left)

            return operate

        return shortcut

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
        handle = pointer.handle
        moved = self.semantic.builder.create_addptr(handle, offset.handle)
        return self.made(moved.data, pointer.dtype, like, handle.dtype)

    def where(self, own: Operator) -> Operator:
        """The shortcut of `where(condition, x, y)`."""

        def where(condition: Any, x: Any, y: Any) -> Any:
            like = x if type(x) is self.tensor else y
            if type(condition) is not self.tensor or type(like) is not self.tensor:
                return own(condition, x, y)
            if condition.handle.data.dtype != np.bool_ or condition.dtype.name != "int1":
                return own(condition, x, y)
            if like.dtype.name not in _NUMBERS:
                return own(condition, x, y)
            found = self.operand(y if like is x else x, like)
            if found is None:
                return own(condition, x, y)
            data, largest = found
            if condition.shape is not self.flat and condition.shape is not largest.shape:
                if largest.shape is not self.flat:
                    return own(condition, x, y)
                largest = condition
            first, second = (like.handle.data, data) if like is x else (data, like.handle.data)
            return self.made(np.where(condition.handle.data, first, second), like.dtype, largest, like.dtype)

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
        if type(mask) is not self.tensor or mask.dtype.name != "int1" or mask.handle.data.dtype != np.bool_:
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
        load = self.interpreter._interpreter.load
        numpy_dtype = self.interpreter._get_np_dtype

        def loaded(pointer: Any, mask: Any = None, other: Any = None, **more: Any) -> Any:
            reach = None if more or (mask is None and other is not None) else self.reach(pointer, mask)
            if reach is None:
                return own(pointer, mask, other, **more)
            kind = pointer.dtype.element_ty
            dtype = numpy_dtype(kind)
            fallback = self.stored(0 if other is None else other, pointer, kind, dtype)
            if fallback is None:
                return own(pointer, mask, other)
            data = load(pointer.handle.data, reach, fallback, dtype)
            return self.made(data, kind, pointer, kind)

        return loaded

    def store(self, own: Operator) -> Operator:
        """The shortcut of `store(pointer, value, mask)`."""
        store = self.interpreter._interpreter.store
        numpy_dtype = self.interpreter._get_np_dtype

        def stored(pointer: Any, value: Any, mask: Any = None, **more: Any) -> Any:
            reach = None if more else self.reach(pointer, mask)
            if reach is None or pointer.dtype.const:
                return own(pointer, value, mask, **more)
            kind = pointer.dtype.element_ty
            data = self.stored(value, pointer, kind, numpy_dtype(kind))
            if data is None:
                return own(pointer, value, mask)
            store(pointer.handle.data, data, reach)
            return self.tensor(None, self.tl.void)

        return stored


def _key(number: int | float, kind: Any) -> tuple[Any, ...]:
    """What tells a number of a scalar type from others: -0.0 from 0.0, True from 1."""
    return kind.name, number if isinstance(number, int) else str(number), type(number) is bool
