"""What Triton's CPU interpreter does again at every launch and operator, done once. Results are the same bit for bit.

A launch looks through all of `triton.language` for what it has to patch, an operator passes two wrappers before it
comes to its work, a result makes its shape out of objects anew, and a random number takes a hundred operators.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch

from difftest.call.interpreter_operators import PLAIN, shortcuts
from difftest.lift.statements import inner_nodes


def hasten(interpreter: Any) -> None:
    """Install all of it, once a process. A Triton whose interpreter is built otherwise keeps what it has."""
    import triton.language as tl

    _dtypes(interpreter, tl)
    _types(tl)
    _shapes(tl)
    _launches(interpreter, tl)
    _arguments(interpreter)
    _rewriting(interpreter)
    _blocks()
    if hasattr(interpreter, "_LangPatchScope"):
        _operators(interpreter, tl)
    _operands(interpreter, tl)
    _philox(interpreter, tl)
    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # overflow is computed at every operator, to be asserted only when debugging
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _dtypes(interpreter: Any, tl: Any) -> None:
    """The interpreter's own makes its table of NumPy's dtypes at every call."""
    find = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def numpy_dtype(kind: Any) -> Any:
        if type(kind) is not tl.dtype:
            return find(kind)
        if kind.name not in known:
            known[kind.name] = find(kind)
        return known[kind.name]

    interpreter._get_np_dtype = numpy_dtype


def _types(tl: Any) -> None:
    """The type of a block is worked out once a scalar type and shape; what is plainly no constexpr is left as it is."""
    block, core = tl.block_type, tl.core
    original, unwrap, equal = block.__init__, core._unwrap_if_constexpr, tl.dtype.__eq__
    known: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    plain = frozenset({tl.tensor, tl.dtype, int, float, bool, str, type(None)})

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(shape) if isinstance(shape, list) else getattr(shape, "values", shape)
        key = (element_ty.name, tuple(sizes))
        plainly = getattr(element_ty, "address_space", "global") == "global" and all(type(n) is int for n in key[1])
        if not plainly:
            original(self, element_ty, shape)
            return
        if key not in known:
            original(self, element_ty, shape)
            known[key] = dict(self.__dict__)
            return
        self.__dict__.update(known[key])

    def unwrap_if_constexpr(value: Any) -> Any:
        return value if type(value) in plain else unwrap(value)

    def same(self: Any, other: Any) -> bool:
        return self.name == other.name if type(other) is tl.dtype else bool(equal(self, other))

    block.__init__ = init
    core._unwrap_if_constexpr = unwrap_if_constexpr
    tl.dtype.__eq__ = same


def _launches(interpreter: Any, tl: Any) -> None:
    """Patch a language module once a launch; a device function called in it finds it patched already.

    The first launch finds what has to be patched, later ones take its word. What is found by looking at a kernel's
    signature is found once a kernel.
    """
    original = interpreter._patch_lang
    launch = interpreter.GridExecutor.__call__
    patched: set[int] = set()
    seen: set[int] = set()  # globals of the functions called in the launch
    found: dict[tuple[frozenset[int], frozenset[int]], _Patches] = {}

    def patch_lang(function: Any) -> Any:
        if id(function.__globals__) in seen:
            return _NOTHING
        languages = frozenset([id(v) for v in function.__globals__.values() if v is tl or v is tl.core])
        if languages:
            seen.add(id(function.__globals__))
            if languages <= patched:
                return _NOTHING
        key = (languages, frozenset(patched))
        patched.update(languages)
        if key in found:
            return found[key].apply()
        scope = original(function)
        if languages:
            found[key] = _Patches([(owner, name, getattr(owner, name)) for owner, name, _ in scope._changes])
        return scope

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        seen.clear()
        try:
            with np.errstate(all="ignore"):  # a GPU computes infinities and NaN without a warning
                return launch(self, *args, **kwargs)
        finally:  # a device function may be called from outside a launch, too
            patched.clear()
            seen.clear()

    interpreter._patch_lang = patch_lang
    interpreter.GridExecutor.__call__ = call
    interpreter.inspect = _Signatures()
    tl.str_to_ty = functools.cache(tl.str_to_ty)


_ASKED = {*("ast", "parse", "ast_transformer", "visit", "fix_missing_locations", "def_file_lineno", "increment_lineno")}
"""Names in the method that places nodes; a version that asks for others does something else."""


def _rewriting(interpreter: Any) -> None:
    """A rewritten kernel's nodes are given their places in the file in one go over its tree, and not in four."""

    def transform_ast(self: Any, source: str) -> ast.AST:
        tree = self.ast_transformer.visit(ast.parse(source))
        _place(tree, self.def_file_lineno - 1)
        return cast(ast.AST, tree)

    rewriter = interpreter.FunctionRewriter
    if set(rewriter._transform_ast.__code__.co_names) == _ASKED:
        rewriter._transform_ast = transform_ast


def _place(tree: ast.AST, lines: int) -> None:
    """Move a tree down by `lines`; a node without a place has that of the node above it."""
    todo: list[tuple[Any, tuple[int, int, int, int]]] = [(tree, (1, 0, 1, 0))]
    for node, above in todo:  # grows
        at = above
        if node._attributes:
            first, column, last, end = above
            own = vars(node)
            first, column = own.get("lineno", first), own.get("col_offset", column)
            last = last if own.get("end_lineno") is None else own["end_lineno"]
            end = end if own.get("end_col_offset") is None else own["end_col_offset"]
            at = first, column, last, end
            node.lineno, node.end_lineno = first + lines, last + lines
            node.col_offset, node.end_col_offset = column, end
        todo += [(inner, at) for inner in inner_nodes(node)]


def _blocks() -> None:
    """A kernel's text is looked for twice when it is rewritten, and in both arms: token by token, so once a text."""
    find = inspect.getblock
    known = functools.lru_cache(256)(lambda lines: len(find(list(lines))))

    def getblock(lines: list[str]) -> list[str]:
        return lines[: known(tuple(lines))]

    inspect.getblock = getblock  # type: ignore[assignment]


def _arguments(interpreter: Any) -> None:
    """Tensors that lie in the host's memory are not wrapped anew at a launch, nor copied onto themselves after it."""
    executor = interpreter.GridExecutor
    to_host, from_host = executor._init_args_hst, executor._restore_args_dev

    def on_host(value: Any) -> bool:
        return value.is_cpu if type(value) is torch.Tensor else type(value) in _NUMBERS

    def arguments(self: Any, values: Sequence[Any], named: dict[str, Any]) -> Any:
        if all(map(on_host, values)) and all(map(on_host, named.values())):
            return values, named
        return to_host(self, values, named)

    def restore(self: Any, values: Sequence[Any], host: Sequence[Any], named: Any, named_host: Any) -> None:
        if host is not values:
            from_host(self, values, host, named, named_host)

    executor._init_args_hst, executor._restore_args_dev = arguments, restore


_NUMBERS = frozenset({int, float, bool, str, type(None)})
_MISSING = object()


class _Patches:
    """Attributes set for a launch. Those of a module are put back by `restore`, all at once; those of a class stay as
    they are, since its objects are there in launches alone.

    Args:
        changes: owner, name and value of each; None changes nothing.
    """

    def __init__(self, changes: Iterable[tuple[Any, str, Any]] = ()) -> None:
        self.modules: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.classes: list[tuple[type, str, Any]] = []
        for owner, name, value in changes:
            if inspect.ismodule(owner):
                self.modules.setdefault(id(owner), (owner, {}))[1][name] = value
            else:
                assert isinstance(owner, type)
                self.classes.append((owner, name, value))

    def apply(self) -> _Patches:
        """A copy of these, set."""
        scope = _Patches()
        for module, values in self.modules.values():
            members = vars(module)
            scope.modules[id(module)] = (module, {name: members.get(name, _MISSING) for name in values})
            members.update(values)
        for owner, name, value in self.classes:
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
        return scope

    def restore(self) -> None:
        """Put back what `apply` replaced."""
        for module, values in self.modules.values():
            vars(module).update(values)
            for name in [name for name, value in values.items() if value is _MISSING]:
                delattr(module, name)
        self.modules = {}


_NOTHING = _Patches()


class _Signatures:
    """The module `inspect` for the interpreter, which looks at a kernel's signature three times a launch."""

    def __init__(self) -> None:
        self.getfullargspec = functools.cache(inspect.getfullargspec)
        self.get_annotations = functools.cache(inspect.get_annotations)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def getcallargs(self, function: Any, *positional: Any, **named: Any) -> dict[str, Any]:
        spec = self.getfullargspec(function)
        names = spec.args
        values = dict(zip(names, positional, strict=False))
        plain = not (spec.varargs or spec.varkw or spec.kwonlyargs) and len(positional) <= len(names)
        if plain and values.keys().isdisjoint(named) and named.keys() <= set(names):
            values.update(named)
            defaults = spec.defaults or ()
            for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
                values.setdefault(name, default)
            if len(values) == len(names):
                return values
        return inspect.getcallargs(function, *positional, **named)  # which says what is wrong with them


def _operators(interpreter: Any, tl: Any) -> None:
    """Call what a builtin wraps, since all that its wrapper does is to refuse a call without `_semantic`."""
    wrapper = tl.core.builtin(lambda _semantic=None: None).__code__
    semantic = interpreter.interpreter_semantic
    debugging = interpreter.interpreter_builder.options.debug
    methods, functions = ({}, {}) if debugging else shortcuts(interpreter, tl)

    def patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function = member.__wrapped__ if getattr(member, "__code__", None) is wrapper else member

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        shortcut = methods.get(name) if owner is tl.tensor else functions.get(name) if inspect.ismodule(owner) else None
        if shortcut is None:
            scope.set_attr(owner, name, call)
            return
        short = shortcut(call)
        short.__qualname__ = function.__qualname__  # which Python names when a call lacks an argument
        scope.set_attr(owner, name, short)

    interpreter._patch_attr = patch_attr


def _shapes(tl: Any) -> None:
    """A tensor's shape and number of elements are the same objects for all tensors of the shape."""
    original = tl.tensor.__init__
    known: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        shape = tuple(type.shape) if type.is_block() else ()
        if shape not in known:
            original(self, handle, type)
            known[shape] = (self.shape, self.numel)
            return
        self.handle = handle
        self.type = type
        self.dtype = type.scalar
        self.shape, self.numel = known[shape]

    tl.tensor.__init__ = init


def _operands(interpreter: Any, tl: Any) -> None:
    """Two tensors of one shape and one such dtype need neither promotion nor broadcasting."""
    semantic = type(interpreter.interpreter_semantic)
    original = semantic.binary_op_type_checking_impl

    def operands(self: Any, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            type(lhs) is tl.tensor
            and type(rhs) is tl.tensor
            and lhs.shape is rhs.shape
            and type(lhs.dtype) is tl.dtype
            and lhs.dtype.name in PLAIN
            and lhs.dtype == rhs.dtype
        ):
            return lhs, rhs
        return original(self, lhs, rhs, *args, **kwargs)

    semantic.binary_op_type_checking_impl = operands


_KEYS = (0x9E3779B9, 0xBB67AE85)
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def _philox(interpreter: Any, tl: Any) -> None:
    """The rounds of Philox for a key of two numbers of 32 bits, in NumPy."""
    from triton.language import random

    original = random.philox_impl

    def philox_impl(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: Any = 10) -> Any:
        counters, key = (c0, c1, c2, c3), (k0, k1)
        alike = all(c.type == c0.type for c in counters) and all(k.type == tl.uint32 for k in key)
        if not alike or c0.dtype != tl.uint32:
            return original(c0, c1, c2, c3, k0, k1, n_rounds)
        data = [c.handle.data for c in counters], [k.handle.data for k in key]
        words = philox(*data, getattr(n_rounds, "value", n_rounds))
        return tuple([tl.tensor(interpreter.TensorHandle(word, tl.uint32), c0.type) for word in words])

    random.philox_impl = tl.philox_impl = philox_impl


def philox(counters: list[Any], key: list[Any], rounds: int) -> list[Any]:
    """Philox 4x32 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).

    Args:
        counters: four arrays uint32 of one shape.
        key: two arrays uint32 [1].
        rounds: how many.

    Returns:
        Four arrays uint32 of that shape.
    """
    a, b, c, d = [word.astype(np.uint64) for word in counters]
    first, second = [word.astype(np.uint64) for word in key]
    for _ in range(rounds):
        low, high = a * np.uint64(_FACTORS[0]), c * np.uint64(_FACTORS[1])
        a, b = (high >> _HALF) ^ b ^ first, high & _LOW
        c, d = (low >> _HALF) ^ d ^ second, low & _LOW
        first, second = (first + np.uint64(_KEYS[0])) & _LOW, (second + np.uint64(_KEYS[1])) & _LOW
    return [word.astype(np.uint32) for word in (a, b, c, d)]
