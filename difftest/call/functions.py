"""Functions, methods and classes that a call returns: what they do as far as it can be read, whichever arm made them.

A function of an arm's own tree is frozen as its bytecode and constants, its defaults, what it closes over, and the
functions and values that it uses by name. Names of files, lines, docstrings, names of locals and the arm's prefix do
not count. Functions whose code differs may well do the same, and nobody called them: the comparison says that they were
not compared (:func:`difftest.compare.outcomes.uncompared`), never that they are identical. What comes from a library is
the same for both arms and goes by its name.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from difftest.call.freeze import Freezer, Frozen

_LRU_CACHE = type(functools.lru_cache(len))
_SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_WRAPPERS = (staticmethod, classmethod, _LRU_CACHE)
_KINDS = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.CodeType,
    types.MethodDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType, property,
    functools.cached_property, *_SLOT_TYPES, *_WRAPPERS,
)  # fmt: skip
_DATA = (
    int, float, complex, str, bytes, type(None), tuple, list, dict, set, frozenset, torch.Tensor, torch.dtype,
    torch.device, np.ndarray, np.generic, np.dtype, enum.Enum,
)  # fmt: skip
_OPTIMIZED = 0x1  # of a function's own code, as opposed to that of a class or a module
_FLAGS = 0x2F  # what the compiler derives from the code itself, without the `from __future__` of its module
_OF_EVERY_CLASS = frozenset(
    {
        "__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "__annotations__", "__orig_bases__",
        "__parameters__", "__abstractmethods__", "_abc_impl", "__dataclass_params__", "__dataclass_fields__",
        "__match_args__", "__static_attributes__", "__firstlineno__", "__hash__", "__slots__", "__annotate_func__",
        "__annotate__", "__annotations_cache__",
    }
)  # fmt: skip


def is_function(value: Any) -> bool:
    """Whether a value is a function, a method, a class, a module, code, or what wraps one of these in a class."""
    return isinstance(value, _KINDS)


def freeze(freezer: Freezer, value: Any) -> Frozen:
    """A function or class by what it does where the freezer asks for that, else by its name."""
    reference = ("reference", freezer.scrub(_name(value)))
    if not freezer.strict:
        return reference
    if isinstance(value, types.CodeType):
        return ("function", value.co_name, code_digest(value), ())
    if isinstance(value, types.MethodType):
        if freezer.met(value.__self__):  # an object's own method, held by the object
            return reference
        return ("fields", "method", (("function", freezer(value.__func__)), ("self", freezer(value.__self__))))
    if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | None):
        return ("fields", "builtin method", (("function", reference), ("self", freezer(value.__self__))))
    if isinstance(value, property):
        return ("fields", "property", tuple([(n, freezer(getattr(value, n))) for n in ("fget", "fset", "fdel")]))
    if isinstance(value, functools.cached_property):
        return ("fields", "cached_property", (("func", freezer(value.func)),))
    inner = getattr(value, "__wrapped__", None)
    if isinstance(value, _WRAPPERS):
        return ("fields", type(value).__name__, (("function", freezer(inner)),))
    if isinstance(value, types.FunctionType) and _is_own(freezer, value.__globals__.get("__name__")):
        return freezer.function_once(value, _function)
    if isinstance(value, type) and _is_own(freezer, value.__module__):
        return freezer.function_once(value, _class)
    if isinstance(value, types.FunctionType) and inner is not None:
        return ("fields", reference[1], (("function", freezer(inner)),))
    return reference


def _name(value: Any) -> str:
    found = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__
    return str(found)


def _is_own(freezer: Freezer, module: Any) -> bool:
    """Whether a module is one of an arm's own: its name differs between the arms."""
    return isinstance(module, str) and freezer.scrub(module) != module


def _function(freezer: Freezer, value: types.FunctionType) -> Frozen:
    parts: dict[str, Frozen] = {}
    if value.__defaults__:
        parts["defaults"] = freezer(value.__defaults__)
    if value.__kwdefaults__:
        parts["kwdefaults"] = freezer(value.__kwdefaults__)
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            parts[f"closure.{name}"] = freezer(cell.cell_contents)
        except ValueError:  # not filled yet
            parts[f"closure.{name}"] = ("opaque", "empty cell")
    parts |= {name: freezer(item) for name, item in sorted(vars(value).items()) if not name.startswith("__difftest")}
    names = set(_names(value.__code__))
    for name in sorted(names & value.__globals__.keys()):
        used = value.__globals__[name]
        if not isinstance(used, types.ModuleType):
            parts[f"globals.{name}"] = _held(freezer, used)
        elif _is_own(freezer, used.__name__):
            inner = vars(used)
            parts |= {f"globals.{name}.{n}": _held(freezer, inner[n]) for n in sorted(names & inner.keys())}
    return ("function", freezer.scrub(value.__qualname__), code_digest(value.__code__), tuple(parts.items()))


def _class(freezer: Freezer, value: type) -> Frozen:
    parts = [("bases", freezer(value.__bases__))]
    for name in sorted(set(vars(value)) - _OF_EVERY_CLASS):
        getattr(value, name, None)  # methods are compiled when they are first looked up
        held = vars(value)[name]
        if not isinstance(held, _SLOT_TYPES):
            parts.append((name, _held(freezer, held)))
    return ("fields", f"class {freezer.scrub(value.__qualname__)}", tuple(parts))


def _held(freezer: Freezer, value: Any) -> Frozen:
    """What a class or a module holds: functions and plain data; of anything else only the class."""
    if is_function(value) or isinstance(value, _DATA):
        return freezer(value)
    return ("opaque", type(value).__name__)


def _names(code: types.CodeType) -> Iterator[str]:
    """Every name that code, or code in it, looks up outside itself."""
    yield from code.co_names
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from _names(item)


def code_digest(code: types.CodeType) -> str:
    """A hash of what code does: equal for code that was only reformatted, moved or documented otherwise."""
    digest = hashlib.blake2b(digest_size=16)
    _hash_code(digest, code)
    return digest.hexdigest()


def _hash_code(digest: Any, code: types.CodeType) -> None:
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
    named = (code.co_names, code.co_varnames[:arguments], len(code.co_freevars), len(code.co_cellvars))
    digest.update(repr((code.co_code, code.co_exceptiontable, counts, named)).encode())
    for number, item in enumerate(code.co_consts):
        documents = number == 0 and code.co_flags & _OPTIMIZED and not code.co_name.startswith("<")
        if isinstance(item, types.CodeType):
            _hash_code(digest, item)
        elif isinstance(item, frozenset):
            digest.update(repr(sorted(map(repr, item))).encode())
        elif not (documents and isinstance(item, str)):
            digest.update(f"{type(item).__name__}{item!r};".encode())
        else:
            digest.update(b"NoneTypeNone;")  # a docstring, in whose place is None where there is none
