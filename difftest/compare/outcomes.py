"""What differs between two outcomes, and where, in a person's words. Pure: frozen data in, differences out."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difftest.compare.arrays import Elements, covered_bytes, differing, elements_of, kinds_of, scalar_elements, ulps
from difftest.result import Kind

Frozen = tuple[Any, ...]
Part = NDArray[np.bool_] | str | frozenset[Any] | None
Undefined = Mapping[str, Part]
"""Leaf -> what of it is undefined: which bytes of an array, a number or a bytes object (as they are frozen), and which
ints of a list, as a mask; of a text, and of the message of an exception, the text with `…` for the words that are; the
pages of a very large input; of the leaf `path names` the keys or attributes of `path`. None when the leaf as a whole
is."""

_ARRAYS = ("tensor", "ndarray", "storage")
_BYTES = ("bytes", "bytearray", "memoryview")
_SEQUENCES = ("ints", "items")
_NOTHING: Undefined = {}
_NO_INPUTS: Mapping[str, Frozen] = {}
BEYOND, WRITTEN = "memory outside of the kernels' tensors", "written"
"""A leaf, and what is said of the version whose kernels write there."""
OUTSIDE_THE_VIEW = "outside the view"
"""How the detail of a difference in memory that an input's view does not show begins."""
_NAMES, _RAISED = " names", " raised"  # no class has such a name
_POSITION = re.compile(r"\[\d+\]")
_RETURNED = re.compile(r"return(?!\w)")
_RETURNED_PART = re.compile(r"return\[\d+\]")
_TUPLE_SHOWN = 16
"""A longer tuple is a list of things that are alike."""
_WORD = re.compile(r"-?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)|[^\W\d]\w*|\S")
_GENERATORS = ("rng.torch", "rng.numpy", "rng.random", "rng.cuda")
Hidden = tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None]
_NONE: Frozen = ("NoneType", None)
_DEFINED = np.zeros(0, bool)


@dataclass(frozen=True)
class Difference:
    """One leaf that differs in one way. Fields as in :class:`difftest.result.Mismatch`.

    Attributes:
        general: see :attr:`place`.
        pair, at: the elements of the leaf in base and in head, and which of them differ, where it has elements.
    """

    kind: Kind
    leaf: str
    base: str
    head: str
    index: tuple[int, ...] = ()
    count: int = 1
    size: int = 0
    detail: tuple[str, ...] = ()
    general: str = field(default="", compare=False)
    pair: tuple[Elements, Elements] | None = field(default=None, compare=False, repr=False)
    at: NDArray[np.intp] | None = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> str:
        """The leaf without its position in lists, which is another one in each case: `return[1][*]`.

        Positions in a tuple stay, since each has its own meaning.
        """
        return self.general or _POSITION.sub("[*]", self.leaf)

    def noted(self, note: str) -> Difference:
        """The same with a further line of detail."""
        return replace(self, detail=(*self.detail, note))


def undefined_leaves(first: Any, second: Any, fills: tuple[int, int], start: tuple[Any, ...] = ()) -> dict[str, Part]:
    """What follows the poison: where one arm's outcomes under these two fills differ.

    Bytes that are the fill in each were never written, and others beside them in the same element may have been. An
    element that differs otherwise was computed from undefined bytes, and is undefined as a whole.

    Args:
        start: the process-wide generators' states before both calls; without it, they are undefined together when only
            one of the calls moved any.
    """
    if start:
        first, second = (outcome._replace(rng=outcome.rng or start) for outcome in (first, second))
    return {
        leaf: _undefined(a, b, fills)
        for path, left, right in _outcome_leaves(first, second)
        for leaf, a, b in _differing_leaves(left, right, path)
    }


def _undefined(a: Frozen | None, b: Frozen | None, fills: tuple[int, int]) -> Part:
    """What of a leaf is undefined, where it is `a` under one fill and `b` under the other."""
    if a is None or b is None or a[0] != b[0]:
        return None
    if a[0] == _NAMES:
        return frozenset(a[1]).symmetric_difference(b[1])
    if a[0] == "str":
        return _defined_words(a[1], b[1])
    if a[0] == _RAISED and None not in (a[1], b[1]) and a[1][0] == b[1][0]:
        return _defined_words(a[1][1], b[1][1])
    if a[0] == "ints" and len(a[2]) == len(b[2]):
        return np.array([x != y for x, y in zip(a[2], b[2], strict=True)])
    if a[0] == "pages" and a[1:5] == b[1:5]:
        return frozenset(page for page, _ in set(a[5]).symmetric_difference(b[5]))
    one, other = _bytes_of(a), _bytes_of(b)
    if one is None or other is None or len(one) != len(other) or (a[0] in _ARRAYS and a[:5] != b[:5]):
        return None
    apart: NDArray[np.bool_] = one != other
    computed = apart & ((one != fills[0]) | (other != fills[1]))
    size = 1 if a[0] in _BYTES else elements_of(a).words.shape[1] if a[0] in _ARRAYS else len(one)
    whole = len(one) // size * size
    apart[:whole] |= computed[:whole].reshape(-1, size).any(axis=1).repeat(size)
    return apart


def _bytes_of(frozen: Frozen) -> NDArray[np.uint8] | None:
    """The bytes of an array, of a number or of a bytes object; None of anything else."""
    if frozen[0] in _ARRAYS:
        return np.frombuffer(frozen[5], np.uint8)
    number = frozen[0] in ("float", "complex", *_BYTES) or frozen[0].startswith("numpy.")
    return np.frombuffer(frozen[1], np.uint8) if number and isinstance(frozen[1], bytes) else None


def _defined_words(one: str, other: str) -> str:
    """The words that two texts share, place by place, with `…` for those that differ: of texts with as many words for
    each, else for all between the first and the last that differ."""
    left, right = _WORD.findall(one), _WORD.findall(other)
    if len(left) == len(right):
        return " ".join([x if x == y else "…" for x, y in zip(left, right, strict=True)])
    start = _alike(left, right)
    end = _alike(left[start:][::-1], right[start:][::-1])
    return " ".join([*left[:start], "…", *left[len(left) - end :]])


def _alike(left: list[str], right: list[str]) -> int:
    """How many words two texts begin with alike."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(left), len(right)))


def only_poison(first: Any, second: Any, fills: tuple[int, int]) -> bool:
    """Whether the outcomes of one arm under two fills differ in nothing but bytes that are the fill in each: memory
    that was never written. Whatever else decided them would not come to just these bytes, so no third run is needed to
    tell it from chance."""
    for path, left, right in _outcome_leaves(first, second):
        for _, a, b in _differing_leaves(left, right, path):
            if a is None or b is None or a[0] not in _ARRAYS or a[:5] != b[:5] or len(a[5]) != len(b[5]):
                return False
            one, other = np.frombuffer(a[5], np.uint8), np.frombuffer(b[5], np.uint8)
            apart = one != other
            if (one[apart] != fills[0]).any() or (other[apart] != fills[1]).any():
                return False
    return True


def unstable_leaves(first: Any, second: Any) -> list[str]:
    """Leaves that differ between two runs of the same arm from the same state: it is not deterministic there."""
    return [leaf for path, a, b in _outcome_leaves(first, second) for leaf, _, _ in _differing_leaves(a, b, path)]


def compare(
    base: Any,
    head: Any,
    base_undefined: Undefined = _NOTHING,
    head_undefined: Undefined = _NOTHING,
    initial: Mapping[str, Frozen] | None = None,
    exceptions: str = "message",
    start: tuple[Any, ...] = (),
    as_recorded: bool = False,
) -> list[Difference]:
    """All differences between the outcomes of the two arms (:class:`difftest.call.outcome.Outcome`).

    Args:
        base_undefined, head_undefined: what :func:`undefined_leaves` says of each arm.
        initial: the inputs before the call, by name, so that "changed in one arm only" can be shown.
        exceptions: how exceptions are compared: `type`, `message` (type and message) or `any`.
        start: the process-wide generators' states before both calls (:attr:`GlobalStates.start`).
        as_recorded: one outcome was recorded. What no recording holds is left out: which objects are one and the same,
            and what tensors are beyond their elements.
    """
    unsteady = {leaf for side in (base_undefined, head_undefined) for leaf, part in side.items() if part is None}
    found: list[Difference] = []
    if "raised" not in unsteady:
        left, right = (_defined_exception(o.raised, u) for o, u in ((base, base_undefined), (head, head_undefined)))
        found += _exceptions(left, right, exceptions)
    walker = _Walker(base_undefined, head_undefined, as_recorded, initial or {})
    if base.raised is None and head.raised is None:
        walker.walk(base.returned, head.returned, "return")
    found += walker.take()
    found += _inputs(base, head, walker, initial or {})
    before, after = dict(base.watched), dict(head.watched)
    for name in [*before, *[n for n in after if n not in before]]:
        if name in before and name in after:
            walker.walk(before[name], after[name], name)
    found += walker.take()
    if "rng" not in unsteady:
        found += [item for item in _rng(base.rng, head.rng, start) if item.leaf not in unsteady]
    found += _process(base.process, head.process)
    named = None not in (base.returned, head.returned) and _is_named(base.returned, head.returned)
    both_return = base.raised is None and head.raised is None
    if not both_return:  # what one arm alone returns is compared with nothing
        base_undefined, head_undefined = (
            {leaf: part for leaf, part in each.items() if not _RETURNED.match(leaf)}
            for each in (base_undefined, head_undefined)
        )
    found += _undefined_apart(base_undefined, head_undefined, found, named)
    if both_return and "aliases" not in unsteady and base.aliases != head.aliases:
        found.append(Difference(Kind.ALIAS, "return", _aliases_text(base.aliases), _aliases_text(head.aliases)))
    known = both_return and not as_recorded and None not in (base.beyond, head.beyond)
    if known and base.beyond != head.beyond:
        said = [WRITTEN if outcome.beyond else "kept" for outcome in (base, head)]
        found.append(Difference(Kind.MUTATION, BEYOND, said[0], said[1]))
    return found


def uncompared(base: Any, head: Any) -> str:
    """What of two outcomes that differ in nothing else could not be compared, in words; empty when all was.

    That is what nobody can read (:attr:`difftest.call.outcome.Outcome.unread`), and functions that were returned and
    whose code differs: they were not called, and code that differs may well do the same.
    """
    for outcome in (base, head):
        if outcome.unread:
            return f"the result holds {_article(outcome.unread[0])}"
    walker = _Walker(_NOTHING, _NOTHING)
    if base.returned is not None and head.returned is not None:
        walker.walk(base.returned, head.returned, "return")
    if not walker.functions:
        return ""
    leaf, name = walker.functions[0]
    return (
        f"the result holds a function ({name}, at {leaf}) whose code differs between the arms and which nobody called"
    )


def _article(words: str) -> str:
    if words.startswith("something"):
        return words
    return f"{'an' if words[0].lower() in 'aeiou' else 'a'} {words}"


def _defined_exception(raised: tuple[str, str] | None, undefined: Undefined) -> tuple[str, str] | None:
    """An exception without the words of its message that are undefined."""
    words = undefined.get("raised")
    return (raised[0], words) if raised is not None and isinstance(words, str) else raised


def _exceptions(left: tuple[str, str] | None, right: tuple[str, str] | None, mode: str) -> Iterator[Difference]:
    if left == right:
        return
    if left is None or right is None:
        yield Difference(Kind.EXCEPTION, "raised", _raised_text(left), _raised_text(right))
    elif mode == "any" or (mode == "type" and left[0] == right[0]):
        return
    else:
        yield Difference(Kind.EXCEPTION, "raised", _raised_text(left), _raised_text(right))


def _undefined_apart(base: Undefined, head: Undefined, found: list[Difference], named: bool) -> Iterator[Difference]:
    """Leaves that are undefined in one arm only and differ in nothing else: by chance the bytes are the same.

    `named`: what is returned is a tuple, so that the position of a part of it stays in its place.
    """
    told = {item.leaf for item in found}
    for leaf in {**base, **head}:
        if leaf in told or any(leaf.startswith((f"{other}[", f"{other}.", f"{other} ")) for other in told):
            continue
        left, right = base.get(leaf, _DEFINED), head.get(leaf, _DEFINED)
        if _equal(left, right) or (leaf.endswith(_NAMES) and leaf in base and leaf in head):
            continue
        in_base, in_head = ("defined" if side is _DEFINED else "undefined" for side in (left, right))
        first = _RETURNED_PART.match(leaf) if named else None
        place = first[0] + _POSITION.sub("[*]", leaf[first.end() :]) if first else ""
        note = "it follows memory that nobody wrote"
        yield Difference(Kind.UNDEFINED, leaf, in_base, in_head, detail=(note,), general=place)


def _equal(left: Part, right: Part) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return np.array_equal(left, right)
    return type(left) is type(right) and left == right


def _raised_text(raised: tuple[str, str] | None) -> str:
    return "returns" if raised is None else f"raises {raised[0]}: {raised[1]}".rstrip(": ")


def _inputs(base: Any, head: Any, walker: _Walker, initial: Mapping[str, Frozen]) -> list[Difference]:
    left, right = dict(base.changed), dict(head.changed)
    found: list[Difference] = []
    for name in [*left, *[n for n in right if n not in left]]:
        if name in left and name in right:
            walker.walk(left[name], right[name], name)
            found += walker.take()
            continue
        before = initial.get(name)
        if before is None:
            sides = ("changed", "unchanged") if name in left else ("unchanged", "changed")
            found.append(Difference(Kind.MUTATION, name, *sides))
            continue
        # The arm that left the input alone holds it as it was.
        walker.walk(left.get(name, before), right.get(name, before), name)
        for item in walker.take():
            kind = item.kind if item.kind in (Kind.RNG, Kind.UNDEFINED) else Kind.MUTATION
            who = "head leaves it unchanged" if name in left else "base leaves it unchanged"
            found.append(replace(item, kind=kind, detail=(*item.detail, who)))
    return found


def _rng(base: tuple[Any, ...] | None, head: tuple[Any, ...] | None, start: tuple[Any, ...]) -> Iterator[Difference]:
    for name, left, right, before in zip(_GENERATORS, base or start, head or start, start, strict=False):
        if left != right:
            base_text, head_text = ("not used" if state == before else _state_text(state) for state in (left, right))
            yield Difference(
                Kind.RNG,
                name,
                base_text,
                head_text,
                detail=("the process-wide generator's state after the call differs",),
            )


def _process(base: tuple[tuple[str, str], ...], head: tuple[tuple[str, str], ...]) -> Iterator[Difference]:
    left, right = dict(base), dict(head)
    for name in {**left, **right}:
        if left.get(name) != right.get(name):
            yield Difference(
                Kind.MUTATION, f"process.{name}", left.get(name, "unchanged"), right.get(name, "unchanged"),
                detail=("a setting of the whole process after the call; put back before the next",),
            )  # fmt: skip


def _state_text(state: Any) -> str:
    return "state " + hashlib.sha256(state if isinstance(state, bytes) else repr(state).encode()).hexdigest()[:12]


def _aliases_text(aliases: tuple[tuple[int, str, int], ...]) -> str:
    if not aliases:
        return "owns all its memory"
    return "; ".join(
        f"array {number} shares memory with {name} at byte {offset}" if offset >= 0 else name
        for number, name, offset in aliases[:6]
    )


class _Walker:
    def __init__(
        self,
        base_undefined: Undefined,
        head_undefined: Undefined,
        as_recorded: bool = False,
        initial: Mapping[str, Frozen] = _NO_INPUTS,
    ) -> None:
        self.base_undefined = base_undefined
        self.head_undefined = head_undefined
        self.as_recorded = as_recorded
        self.initial = initial
        self.found: list[Difference] = []
        self.places: dict[str, str] = {}  # leaf -> place, of what is inside something
        self.functions: list[tuple[str, str]] = []  # (leaf, name) of functions that cannot be told apart without a call

    def take(self) -> list[Difference]:
        found, self.found = self.found, []
        return found

    def add(self, kind: Kind, leaf: str, base: str, head: str, **more: Any) -> None:
        self.found.append(Difference(kind, leaf, base, head, general=self.places.get(leaf, ""), **more))

    def inside(self, path: str, step: str, general: str) -> str:
        """The path of a part, whose place is that of the whole and `general`."""
        leaf = f"{path}{step}"
        self.places[leaf] = f"{self.places.get(path, path)}{general}"
        return leaf

    def walk(self, a: Frozen, b: Frozen, path: str) -> None:
        if a == b:
            return
        parts = [side.get(path, _DEFINED) for side in (self.base_undefined, self.head_undefined)]
        in_base, in_head = (part is None or isinstance(part, str) for part in parts)
        if in_base or in_head:
            if in_base != in_head:
                texts = ("undefined" if in_base else short(a), "undefined" if in_head else short(b))
                self.add(Kind.UNDEFINED, path, *texts)
            elif None not in parts and parts[0] != parts[1]:
                self.add(Kind.VALUE, path, *map(repr, parts))
            return
        if a[0] in _ARRAYS and b[0] == a[0]:
            self.arrays(a, b, path)
            self.marks(a, b, path)
        elif a[0] == b[0] == "pages":
            self.pages(a, b, path)
            self.marks(a, b, path)
        elif "again" in (a[0], b[0]):
            if not self.as_recorded:
                self.add(Kind.ALIAS, path, *(_own(side) for side in (a, b)))
        elif a[0] in _SEQUENCES and b[0] in _SEQUENCES:
            self.sequences(a, b, path)
        elif a[0] == b[0] == "fields":
            self.fields(a, b, path)
        elif a[0] == b[0] == "dict":
            self.keys(a, b, path)
        elif a[0] == b[0] == "function":
            if a[2] != b[2]:
                self.functions.append((path, b[1]))
            else:
                self.members(dict(a[3]), dict(b[3]), path, "{path}.{name}")
        elif a[0] == b[0] == "generator":
            self.add(
                Kind.RNG,
                path,
                _state_text(a[2]),
                _state_text(b[2]),
                detail=("the generator's state after the call differs",),
            )
        elif a[0] != b[0] or a[0] in ("reference", "opaque", "deep"):
            self.add(Kind.TYPE, path, short(a), short(b))
        elif self.bytes_differ(a, b, path):
            numbers = (_number(a), _number(b))
            one = None if None in numbers else np.zeros(1, np.intp)
            self.add(
                _scalar_kind(a, b), path, short(a), short(b), detail=_scalar_detail(a, b),
                pair=numbers if one is not None else None, at=one,
            )  # fmt: skip

    def sequences(self, a: Frozen, b: Frozen, path: str) -> None:
        if a[1] != b[1]:
            self.add(Kind.TYPE, path, a[1], b[1])
        left, right = a[2], b[2]
        if len(left) != len(right):
            self.add(Kind.STRUCTURE, path, _sized(a), _sized(b))
            return
        if a[0] == b[0] == "ints":
            base_mask, head_mask = self.masks(path, len(left), len(right))
            at = [
                i
                for i, (x, y) in enumerate(zip(left, right, strict=True))
                if x != y and not base_mask[i] and not head_mask[i]
            ]
            if (one_sided := np.flatnonzero(base_mask != head_mask)).size:
                first = int(one_sided[0])
                self.add(
                    Kind.UNDEFINED, path,
                    "undefined" if base_mask[first] else str(left[first]),
                    "undefined" if head_mask[first] else str(right[first]),
                    index=(first,), count=len(one_sided), size=len(left),
                )  # fmt: skip
            if at:
                first = at[0]
                self.add(
                    Kind.VALUE, path, str(left[first]), str(right[first]),
                    index=(first,), count=len(at), size=len(left),
                    detail=(f"base {_some(a)}", f"head {_some(b)}"), pair=_integers(left, right), at=np.array(at),
                )  # fmt: skip
            return
        named = _is_named(a, b)
        for i, (x, y) in enumerate(zip(_items(a), _items(b), strict=True)):
            if x != y:
                self.walk(x, y, self.inside(path, f"[{i}]", f"[{i}]" if named else "[*]"))

    def masks(self, path: str, base: int, head: int) -> list[NDArray[np.bool_]]:
        """What of a leaf is undefined in base and in head, where it has so many bytes, or ints."""
        found = []
        for undefined, count in ((self.base_undefined, base), (self.head_undefined, head)):
            part = undefined.get(path)
            found.append(part if isinstance(part, np.ndarray) and len(part) == count else np.zeros(count, bool))
        return found

    def bytes_differ(self, a: Frozen, b: Frozen, path: str) -> bool:
        """Whether two numbers or bytes objects differ where both are defined. What is undefined in one arm only is
        said here."""
        left, right = _bytes_of(a), _bytes_of(b)
        if left is None or right is None or len(left) != len(right):
            return True
        base_mask, head_mask = self.masks(path, len(left), len(right))
        if (base_mask != head_mask).any():
            sides = ("undefined" if mask.any() else short(side) for mask, side in ((base_mask, a), (head_mask, b)))
            self.add(Kind.UNDEFINED, path, *sides)
        return bool(((left != right) & ~base_mask & ~head_mask).any())

    def fields(self, a: Frozen, b: Frozen, path: str) -> None:
        if a[1] != b[1]:
            self.add(Kind.TYPE, path, a[1], b[1])
        left, right = ([name for name, _ in side[2]] for side in (a, b))
        shared = [name for name in left if name in right]
        if (other := [name for name in right if name in left]) != shared:
            self.add(Kind.STRUCTURE, path, f"fields {', '.join(shared)}", f"fields {', '.join(other)}")
        self.members(dict(a[2]), dict(b[2]), path, "{path}.{name}")

    def keys(self, a: Frozen, b: Frozen, path: str) -> None:
        if a[1] != b[1]:
            self.add(Kind.TYPE, path, a[1], b[1])
        self.members(dict(a[2]), dict(b[2]), path, "{path}[{name}]")

    def members(self, left: dict[str, Frozen], right: dict[str, Frozen], path: str, form: str) -> None:
        for side, undefined in ((left, self.base_undefined), (right, self.head_undefined)):
            names = undefined.get(f"{path}{_NAMES}")
            for name in names if isinstance(names, frozenset) else ():
                side.pop(name, None)
        for name in [*left, *[n for n in right if n not in left]]:
            step = form.format(path="", name=name)
            leaf = self.inside(path, step, "[*]" if _POSITION.fullmatch(step) else step)
            if name in left and name in right:
                self.walk(left[name], right[name], leaf)
            elif left.get(name, _NONE) != right.get(name, _NONE) or form.endswith("]"):
                self.add(
                    Kind.STRUCTURE, leaf,
                    short(left[name]) if name in left else "absent",
                    short(right[name]) if name in right else "absent",
                )  # fmt: skip

    def arrays(self, a: Frozen, b: Frozen, path: str) -> None:
        tag = a[0]
        if a[1] != b[1]:
            self.add(Kind.DTYPE, path, _plain_dtype(a[1]), _plain_dtype(b[1]), size=int(np.prod(a[2])))
        if a[2] != b[2]:
            self.add(Kind.SHAPE, path, str(list(a[2])), str(list(b[2])))
            return
        if tag == "storage":
            if a[3:5] != b[3:5]:
                self.add(Kind.STRIDE, path, f"{list(a[3])} offset {a[4]}", f"{list(b[3])} offset {b[4]}")
        elif a[3] != b[3] and a[1] == b[1]:
            self.add(Kind.STRIDE, path, str(list(a[3])), str(list(b[3])))
        if a[4] != b[4] and tag == "tensor":
            self.add(Kind.TYPE, path, f"on {a[4]}", f"on {b[4]}")
        left, right = elements_of(a), elements_of(b)
        if a[1] != b[1]:
            self.values_across_dtypes(left, right, path)
            return
        different = differing(left, right)
        hidden: Hidden = (None, None)
        masks = self.masks(path, len(a[5]), len(b[5]))
        if masks[0].any() or masks[1].any():
            base_mask, head_mask = (
                elements_of((*side[:5], mask.tobytes())).words.astype(bool)
                for side, mask in zip((a, b), masks, strict=True)
            )
            different = ((left.words != right.words) & ~base_mask & ~head_mask).any(axis=1)
            hidden = np.asarray(base_mask.any(axis=1)), np.asarray(head_mask.any(axis=1))
            one_sided = np.flatnonzero((base_mask != head_mask).any(axis=1))
            if len(one_sided):
                at = int(one_sided[0])
                self.add(
                    Kind.UNDEFINED, path,
                    "undefined" if base_mask[at].any() else left.text(at),
                    "undefined" if head_mask[at].any() else right.text(at),
                    index=left.index(at), count=len(one_sided), size=len(different),
                )  # fmt: skip
        at_all = np.flatnonzero(different)
        if len(at_all):
            for kind, where in kinds_of(left, right, at_all).items():
                self.element(kind, left, right, where, path, hidden)
        if tag == "storage" and a[3:5] == b[3:5]:
            self.gaps(a, b, path, masks)

    def marks(self, a: Frozen, b: Frozen, path: str) -> None:
        """What the arrays are beyond their elements, which most are not."""
        if (len(a) > 6 or len(b) > 6) and not self.as_recorded:
            self.members(_marks(a), _marks(b), path, "{path}.{name}")

    def pages(self, a: Frozen, b: Frozen, path: str) -> None:
        """Inputs of 1 GiB and more, of which only the pages are known."""
        if a[1:5] != b[1:5]:
            self.add(Kind.STRIDE, path, *(f"{_plain_dtype(x[1])} {list(x[2])} by {list(x[3])}" for x in (a, b)))
        left, right = dict(a[5]), dict(b[5])
        at = sorted(page for page in {**left, **right} if left.get(page) != right.get(page))
        if at:
            sides = ["all zero" if at[0] not in side else "some bytes" for side in (left, right)]
            if sides[0] == sides[1]:
                sides[1] = "other bytes"
            more = f" and {len(at) - 1} more" if len(at) > 1 else ""
            detail = (f"page {at[0]} of its storage{more}; of so large an input only hashes of the pages are kept",)
            self.add(Kind.MUTATION, path, *sides, count=len(at), detail=detail)

    def element(
        self,
        kind: Kind,
        left: Elements,
        right: Elements,
        at: NDArray[np.intp],
        path: str,
        hidden: Hidden = (None, None),
    ) -> None:
        """Args: hidden: which elements of base and head are undefined, where any is."""
        first = int(at[0])
        detail = [f"bits {left.hex(first)} against {right.hex(first)}"]
        if kind is Kind.VALUE and (distance := ulps(left, right, at)) is not None:
            largest = f", largest {distance.max():.0f}" if len(distance) > 1 else ""
            detail.append(f"{distance[0]:.0f} ulp apart{largest}")
        detail += _neighbours(left, right, first, hidden)
        self.add(
            kind, path, left.text(first), right.text(first), index=left.index(first), count=len(at),
            size=len(left.words), detail=tuple(detail), pair=(left, right), at=at,
        )  # fmt: skip

    def values_across_dtypes(self, left: Elements, right: Elements, path: str) -> None:
        every = np.arange(len(left.words))
        x, y = left.values(every), right.values(every)
        if not (left.is_number and right.is_number):
            return
        with np.errstate(all="ignore"):
            at = np.flatnonzero(~((x == y) | ((x != x) & (y != y))))
        if len(at):
            first = int(at[0])
            self.add(
                Kind.VALUE,
                path,
                left.text(first),
                right.text(first),
                index=left.index(first),
                count=len(at),
                size=len(every),
            )

    def gaps(self, a: Frozen, b: Frozen, path: str, masks: list[NDArray[np.bool_]]) -> None:
        """Bytes of an input's storage that the view does not show: gaps between rows, guard rows."""
        x, y = np.frombuffer(a[5], np.uint8), np.frombuffer(b[5], np.uint8)
        if len(x) != len(y):
            self.add(Kind.SHAPE, path, f"storage of {len(x)} bytes", f"storage of {len(y)} bytes")
            return
        at = np.flatnonzero((x != y) & ~covered_bytes(a) & ~masks[0] & ~masks[1])
        if not len(at):
            return
        first = int(at[0])
        said = f"byte {first} of its storage was written"
        before = self.initial.get(path)
        if before is not None and before[0] == a[0] and len(before[5]) == len(x):
            wrote = [arm for arm, side in (("base", x), ("head", y)) if side[first] != before[5][first]]
            said += f" by {' and '.join(wrote)}"
        self.add(
            Kind.MUTATION, path, x[first : first + 8].tobytes().hex(), y[first : first + 8].tobytes().hex(),
            count=len(at),
            detail=(f"{OUTSIDE_THE_VIEW}: {said}", f"{len(at)} byte{'' if len(at) == 1 else 's'} there differ"),
        )  # fmt: skip


def _outcome_leaves(first: Any, second: Any) -> Iterator[tuple[str, Frozen | None, Frozen | None]]:
    if first.raised != second.raised:
        yield "raised", (_RAISED, first.raised), (_RAISED, second.raised)
    if first.returned != second.returned:
        yield "return", first.returned, second.returned
    for which in ("changed", "watched"):
        left, right = dict(getattr(first, which)), dict(getattr(second, which))
        for name in {**left, **right}:
            if left.get(name) != right.get(name):
                yield name, left.get(name), right.get(name)
    if first.rng is not None and second.rng is not None:
        for name, one, other in zip(_GENERATORS, first.rng, second.rng, strict=False):
            if one != other:
                yield name, ("rng", one), ("rng", other)
    elif first.rng != second.rng:
        yield "rng", ("rng", first.rng), ("rng", second.rng)
    if first.aliases != second.aliases:
        yield "aliases", ("aliases", first.aliases), ("aliases", second.aliases)


def _differing_leaves(
    a: Frozen | None, b: Frozen | None, path: str
) -> Iterator[tuple[str, Frozen | None, Frozen | None]]:
    """The innermost places where two frozen values of the same structure differ."""
    if a == b:
        return
    if a is not None and b is not None and a[0] == b[0] and a[0] in (*_ARRAYS, "pages"):
        if a[:6] != b[:6]:
            yield path, a, b
        yield from _differing_members(_marks(a), _marks(b), path, "{}.{}")
        return
    if a is not None and b is not None and a[1] == b[1]:
        if a[0] == b[0] == "fields" or a[0] == b[0] == "dict":
            form = "{}.{}" if a[0] == "fields" else "{}[{}]"
            yield from _differing_members(dict(a[2]), dict(b[2]), path, form)
            return
        if a[0] in _SEQUENCES and b[0] in _SEQUENCES and len(a[2]) == len(b[2]) and "items" in (a[0], b[0]):
            for i, (x, y) in enumerate(zip(_items(a), _items(b), strict=True)):
                yield from _differing_leaves(x, y, f"{path}[{i}]")
            return
    yield path, a, b


def _differing_members(
    left: dict[str, Frozen], right: dict[str, Frozen], path: str, form: str
) -> Iterator[tuple[str, Frozen | None, Frozen | None]]:
    if list(left) != list(right):
        yield f"{path}{_NAMES}", (_NAMES, tuple(left)), (_NAMES, tuple(right))
    for name in left:
        if name in right:
            yield from _differing_leaves(left[name], right[name], form.format(path, name))


def _marks(frozen: Frozen) -> dict[str, Frozen]:
    """What an array is beyond its elements."""
    return dict(frozen[6]) if len(frozen) > 6 else {}


def _integers(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Elements, Elements] | None:
    """Two lists of ints as arrays; None when one of them is beyond 64 bits."""
    try:
        pair = [np.array(side, np.int64).view(np.uint8).reshape(-1, 8) for side in (left, right)]
    except OverflowError:
        return None
    return Elements(pair[0], "<i8", (len(left),)), Elements(pair[1], "<i8", (len(right),))


def _is_named(a: Frozen, b: Frozen) -> bool:
    """Whether each position of two sequences of the same length has a meaning of its own, as in a tuple."""
    return len(a) > 2 and a[1] == b[1] == "tuple" and len(a[2]) <= _TUPLE_SHOWN


def _items(frozen: Frozen) -> tuple[Frozen, ...]:
    return tuple(("int", value) for value in frozen[2]) if frozen[0] == "ints" else frozen[2]


def _plain_dtype(name: str) -> str:
    """`float32` of `torch.float32` and of numpy's `<f4`; what has another byte order, or is a record, stays."""
    return np.dtype(name).name if re.fullmatch(r"[<|=][a-zA-Z]\d+", name) else name.removeprefix("torch.")


def _own(frozen: Frozen) -> str:
    return f"object {frozen[2]} of it again" if frozen[0] == "again" else "an object of its own"


def _scalar_kind(a: Frozen, b: Frozen) -> Kind:
    left, right = _number(a), _number(b)
    if left is None or right is None:
        return Kind.VALUE
    return next(iter(kinds_of(left, right, np.zeros(1, np.intp))))


def _number(frozen: Frozen) -> Elements | None:
    """A float, a complex or a numpy number as an array of one element."""
    tag = frozen[0]
    if tag in ("float", "complex"):
        return scalar_elements(tag, frozen[1])
    return scalar_elements(tag.removeprefix("numpy."), frozen[1]) if tag.startswith("numpy.") else None


def _scalar_detail(a: Frozen, b: Frozen) -> tuple[str, ...]:
    left, right = _number(a), _number(b)
    if left is None or right is None:
        return ()
    detail = [f"bits {left.hex(0)} against {right.hex(0)}"]
    if (distance := ulps(left, right, np.zeros(1, np.intp))) is not None:
        detail.append(f"{distance[0]:.0f} ulp apart")
    return tuple(detail)


def _some(frozen: Frozen) -> str:
    if frozen[0] == "ints":
        shown = ", ".join(map(str, frozen[2][:8]))
    else:
        shown = ", ".join(short(item) for item in frozen[2][:4])
    more = ", ..." if len(frozen[2]) > (8 if frozen[0] == "ints" else 4) else ""
    return f"[{shown}{more}]"


def _sized(frozen: Frozen) -> str:
    return f"{len(frozen[2])} {'item' if len(frozen[2]) == 1 else 'items'} {_some(frozen)}"


def _neighbours(left: Elements, right: Elements, at: int, hidden: Hidden) -> list[str]:
    lo, hi = max(0, at - 2), min(len(left.words), at + 3)
    if hi - lo < 2:
        return []
    sides = []
    for arm, elements, mask in (("base", left, hidden[0]), ("head", right, hidden[1])):
        texts = ["undefined" if mask is not None and mask[i] else elements.text(i) for i in range(lo, hi)]
        sides.append(f"{arm} ... {'  '.join(texts)}")
    return sides


def short(frozen: Frozen) -> str:
    """A frozen value in a few words."""
    tag = frozen[0]
    if tag in _ARRAYS:
        return f"{'ndarray' if tag == 'ndarray' else 'tensor'} {_plain_dtype(frozen[1])} {list(frozen[2])}"
    if tag in _SEQUENCES:
        return f"{frozen[1]} {_some(frozen)}"
    if tag == "fields" or tag == "dict":
        return f"{frozen[1]} of {len(frozen[2])} fields"
    if tag == "float":
        return repr(struct.unpack("<d", frozen[1])[0])
    if tag == "complex":
        return repr(complex(*struct.unpack("<dd", frozen[1])))
    if tag == "NoneType":
        return "None"
    if tag == "generator":
        return _state_text(frozen[2])
    if tag == "function":
        return f"function {frozen[1]}"
    if tag == "again":
        return _own(frozen)
    if tag == "pages":
        return f"tensor {_plain_dtype(frozen[1])} {list(frozen[2])} of many gigabytes"
    if tag.startswith("enum "):
        value = frozen[2] if isinstance(frozen[2], str) else short(frozen[2])
        return f"{tag.removeprefix('enum ')}.{frozen[1]} = {value}"
    if tag.startswith("numpy."):
        number = _number(frozen)
        return f"{tag}({number.text(0)})" if number is not None else f"{tag} {frozen[1][:16].hex()}"
    if len(frozen) > 1:
        text = repr(frozen[1]) if tag == "str" else str(frozen[1])
        return text if tag in ("int", "bool", "str") else f"{tag} {text}"
    return str(tag)
