"""Methods of a lifted class are compiled when they are first looked up, however that comes about."""

# ruff: noqa: E501 (a row of a table stays on its line)
from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import pytest
from small_trees import arm_of, closure_of, get, names

# Names that do not exist: a method is neither executed nor asked for its names before it is looked up.
UNREACHED = "    def unreached(self): return wrong(also_wrong)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A:\n    def m(self): return 1\ndef f(): return A().m()", 1),
        ("class A:\n    def m(self): return 2\ndef f(): return getattr(A(), 'm')()", 2),
        ("class A:\n    def m_x(self): return 3\ndef f(k='x'): return getattr(A(), f'm_{k}')()", 3),
        ("class A:\n    def m(self): return 4\ndef f(name='m'): return getattr(A(), name)()", 4),
        ("class B:\n    def m(self): return 2\nclass A(B):\n    def m(self): return super().m() + 3\ndef f(): return A().m()", 5),
        ("class B:\n    def m(self): return 2\nclass A(B):\n    def m(self): return super(A, self).m() + 4\ndef f(): return A().m()", 6),
        ("class A:\n    def m(self): return __class__.x\n    x = 7\ndef f(): return A().m()", 7),
        ("class A:\n    @property\n    def p(self): return 8\ndef f(): return A().p", 8),
        ("class A:\n    @property\n    def p(self): return self.v\n    @p.setter\n    def p(self, v): self.v = v + 1\n"
         "def f():\n    a = A()\n    a.p = 8\n    return a.p", 9),
        ("class A:\n    __slots__ = ('v',)\n    @property\n    def p(self): return self.v\n    @p.setter\n    def p(self, v): self.v = v\n"
         "def f():\n    a = A()\n    a.p = 10\n    return a.v", 10),
        ("class A:\n    @property\n    def p(self): return 0\n    @p.deleter\n    def p(self): self.gone = 11\n"
         "def f():\n    a = A()\n    del a.p\n    return a.gone", 11),
        ("class A:\n    @classmethod\n    def c(cls, n): return cls.x + n\n    x = 2\nclass C(A):\n    x = 10\ndef f(): return C.c(2)", 12),
        ("class A:\n    @staticmethod\n    def s(n): return n\ndef f(): return A.s(6) + A().s(7)", 13),
        ("class A:\n    def __call__(self): return 14\ndef f(): return A()()", 14),
        ("class A:\n    def __init__(self, v=15): self.v = v\ndef f(): return A().v", 15),
        ("class A:\n    def __new__(cls): return object.__new__(cls)\n    x = 16\ndef f(): return A().x", 16),
        ("class A:\n    def __len__(self): return 17\ndef f(): return len(A())", 17),
        ("class A:\n    def __eq__(self, other): return True\ndef f(): return 18 if A() == 5 else 0", 18),
        ("class A:\n    def __add__(self, other): return 19\ndef f(): return A() + 1", 19),
        ("class A:\n    def __enter__(self): return 20\n    def __exit__(self, *_): return False\ndef f():\n    with A() as v: return v", 20),
        ("class A:\n    def __iter__(self):\n        yield 21\ndef f(): return next(iter(A()))", 21),
        ("class A:\n    def __getattr__(self, name): return 22\ndef f(): return A().whatever", 22),
        ("class A:\n    def __getattribute__(self, name): return 23\ndef f(): return A().whatever", 23),
        ("class A:\n    def __setattr__(self, name, v): object.__setattr__(self, name, v + 1)\ndef f():\n    a = A()\n    a.x = 23\n    return a.x", 24),
        ("class A:\n    def __getitem__(self, k): return k\ndef f(): return A()[25]", 25),
        ("class A:\n    def __hash__(self): return 26\ndef f(): return hash(A())", 26),
        ("class D:\n    def __get__(self, i, o): return 27\nclass A:\n    d = D()\ndef f(): return A().d", 27),
        ("class D:\n    def __set_name__(self, o, n): self.n = n\n    def __get__(self, i, o): return {'dd': 28}[self.n]\nclass A:\n    dd = D()\ndef f(): return A().dd", 28),
        ("class A:\n    def __private(self): return 29\n    def m(self): return self.__private()\ndef f(): return A().m()", 29),
        ("class _A:\n    @property\n    def __p(self): return self.v\n    @__p.setter\n    def __p(self, v): self.v = v\n    def m(self):\n        self.__p = 30\n        return self.__p\ndef f(): return _A().m()", 30),
        ("import functools\nclass A:\n    @functools.cached_property\n    def p(self): return [31]\ndef f():\n    a = A()\n    assert a.p is a.p\n    return a.p[0]", 31),
        ("from functools import lru_cache\nclass A:\n    @lru_cache\n    def p(self): return 32\ndef f(): return A().p()", 32),
        ("import functools\n@functools.singledispatch\ndef g(x): return 0\n@g.register\ndef _(x: int): return 33\n@g.register(str)\ndef _(x): return 1\ndef f(): return g(1) + 0 * g('')", 33),
        ("import functools\nclass A:\n    @functools.singledispatchmethod\n    def g(self, x): return 0\n    @g.register\n    def _(self, x: int): return 34\ndef f(): return A().g(1)", 34),
        ("import functools\nclass A:\n    def g(self, x): return x\n    h = functools.partialmethod(g, 35)\ndef f(): return A().h()", 35),
        ("class A:\n    def g(self): return 36\n    TABLE = {'g': g}\ndef f(): return A.TABLE['g'](A())", 36),
        ("class A:\n    def g(self): return 37\n    h = g\ndef f(): return A().h()", 37),
        ("class A:\n    def _get(self): return 38\n    p = property(_get)\ndef f(): return A().p", 38),
        ("class A:\n    def deco(g): return lambda self: g(self) + 1\n    @deco\n    def m(self): return 38\ndef f(): return A().m()", 39),
        ("class A:\n    class B:\n        def m(self): return 40\ndef f(): return A.B().m()", 40),
        ("def f():\n    class A:\n        def m(self): return 41\n    return A().m()", 41),
        ("class M(type):\n    def __call__(cls): return 42\nclass A(metaclass=M): pass\ndef f(): return A()", 42),
        ("class M(type):\n    def __new__(m, n, b, d): return super().__new__(m, n, b, {**d, 'x': 43})\nclass A(metaclass=M): pass\ndef f(): return A.x", 43),
        ("class M(type):\n    @property\n    def size(cls): return 44\nclass A(metaclass=M): pass\ndef f(): return A.size", 44),
        ("from typing import Generic, TypeVar\nT = TypeVar('T')\nclass A(Generic[T]):\n    def m(self) -> T: return 45\ndef f(): return A[int]().m()", 45),
        ("import abc\nclass B(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\n    def n(self): return self.m() + 1\nclass A(B):\n    def m(self): return 45\ndef f(): return A().n()", 46),
        ("from abc import ABC, abstractmethod\nclass B(ABC):\n    @property\n    @abstractmethod\n    def m(self): ...\ndef f():\n    try:\n        B()\n    except TypeError:\n        return 47", 47),
        ("class A:\n    def m(self): return 0\ndef f():\n    a = A()\n    a.m = lambda: 48\n    return a.m()", 48),
        ("class A:\n    def m(self): return 0\ndef f():\n    A.m = lambda self: 49\n    return A().m()", 49),
        ("class A:\n    def m(self): return 50\ndef f(): return A.m(A())", 50),
        ("class A:\n    def m(self): return 51\ndef f(): return A.__dict__['m'](A())", 51),
        ("import operator\nclass A:\n    def m(self): return 52\ndef f(): return operator.methodcaller('m')(A())", 52),
        ("class A:\n    def __init_subclass__(cls, n=0): cls.n = n\nclass B(A, n=53): pass\ndef f(): return B.n", 53),
        ("class A:\n    def __class_getitem__(cls, n): return n\ndef f(): return A[54]", 54),
        ("class A:\n    async def m(self): return 55\ndef f():\n    import asyncio\n    return asyncio.run(A().m())", 55),
        ("def K(): return 56\nclass A:\n    def m(self, x=K()): return x\ndef f(): return A().m()", 56),
        ("if 1 < 2:\n    class A:\n        def m(self): return 57\nelse:\n    class A: pass\ndef f(): return A().m()", 57),
        ("try:\n    class A:\n        def m(self): return g()\nexcept Exception: raise\ndef g(): return 58\ndef f(): return A().m()", 58),
        ("import functools\n@functools.total_ordering\nclass A:\n    def __lt__(self, o): return True\n    def __eq__(self, o): return False\ndef f(): return 59 if A() <= A() else 0", 59),
        ("from collections import UserDict\nclass A(UserDict):\n    def __missing__(self, k): return k\ndef f(): return A()[60]", 60),
        ("class A:\n    if True:\n        def m(self): return 61\ndef f(): return A().m()", 61),
        ("A = type('A', (), {'m': lambda self: 62})\ndef f(): return A().m()", 62),
        ("class B:\n    def m(self): return 63\nA = B\ndef f(): return A().m()", 63),
        ("def same(c): return c\n@same\nclass A:\n    def m(self): return 64\ndef f(): return A().m()", 64),
        ("class A:\n    def m(self): return self.n()\n    def n(self): return 65\nclass C(A):\n    def n(self): return super().n()\ndef f(): return C().m()", 65),
        ("import copy\nclass A:\n    def __deepcopy__(self, memo): return 66\ndef f(): return copy.deepcopy(A())", 66),
        ("class A:\n    @staticmethod\n    def s(): return 67\n    t = staticmethod(lambda: 0)\ndef f(): return getattr(A, 's')()", 67),
    ],
)  # fmt: skip
def test_a_method_works_however_it_is_reached(tmp_path: Path, text: str, expected: int) -> None:
    lines = text.replace("class A:\n", f"class A:\n{UNREACHED}", 1) if "\nclass A:\n" in "\n" + text else text
    assert get(tmp_path, {"pkg/__init__.py": "", "pkg/m.py": lines}, "pkg.m:f")() == expected


FIELDS = """
    from dataclasses import InitVar, KW_ONLY, dataclass, field
    import typing as t
    from typing import ClassVar, NamedTuple
    from enum import Enum, IntEnum, auto
    def size(self): return len(self.items)

    @dataclass
    class Data:
        limit: ClassVar[int] = 3
        also: "t.ClassVar[int]" = 4
        items: list = field(default_factory=list)
        start: InitVar[int] = 0
        _: KW_ONLY
        last: int = 0
        def __post_init__(self, start): self.items = [start]
        def size(self): return size(self)
        @property
        def first(self): return self.items[0]

    @dataclass(frozen=True, slots=True)
    class Slotted:
        a: int
        def twice(self): return 2 * self.a
        def via_class(self): return __class__.__name__

    class Pair(NamedTuple):
        a: int
        b: int = 2
        def total(self): return helper(self)
        @property
        def half(self): return self.total() / 2
        @classmethod
        def make(cls): return cls(5)

    def helper(pair): return pair.a + pair.b

    class Kind(Enum):
        def _generate_next_value_(name, start, count, last): return name.lower()
        GREEDY = auto()
        RANDOM = auto()
        @property
        def is_greedy(self): return self is Kind.GREEDY
        @classmethod
        def _missing_(cls, value): return cls.RANDOM
        def describe(self): return f"{self.name}:{helper2()}"
        def __str__(self): return "kind"

    def helper2(): return 7

    class Level(IntEnum):
        LOW = 1
        def __init__(self, value): self.double = 2 * value
        def up(self): return Level(self.value)
    """


def test_classes_made_of_fields(tmp_path: Path) -> None:
    arm = arm_of(tmp_path, {"pkg/__init__.py": "", "pkg/m.py": FIELDS})
    data = arm.get("pkg.m:Data")(start=7, last=1)
    assert (data.size(), data.first, data.limit, data.also, data.last) == (1, 7, 3, 4, 1)
    assert [p.name for p in arm.parameters(arm.get("pkg.m:Data"))] == ["items", "start", "last"]
    slotted = arm.get("pkg.m:Slotted")(4)
    assert (slotted.twice(), slotted == arm.get("pkg.m:Slotted")(4), hasattr(slotted, "__dict__")) == (8, True, False)
    pair = arm.get("pkg.m:Pair")
    assert (pair(1).total(), pair(1).half, pair.make(), pair._fields) == (3, 1.5, (5, 2), ("a", "b"))
    kind = arm.get("pkg.m:Kind")
    assert kind.GREEDY.is_greedy and not kind.RANDOM.is_greedy and kind("other") is kind.RANDOM
    assert (kind.GREEDY.describe(), str(kind.GREEDY), kind.GREEDY.value) == ("GREEDY:7", "kind", "greedy")
    level = arm.get("pkg.m:Level")
    assert (level.LOW.double, level.LOW.up()) == (2, level.LOW)


def test_a_module_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    text = """
        import torch
        from torch import nn
        SCALE = 2
        class Base(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(2))
            def forward_native(self, x): return x * self.weight * SCALE
            def forward_other(self, x): return wrong
        class Sampler(Base):
            def __init__(self, kind="native"):
                super().__init__()
                self.forward = getattr(self, f"forward_{kind}")
        class Plain(Base):
            def forward(self, x): return self.forward_native(x) + 1
        """
    files = {"pkg/__init__.py": "", "pkg/m.py": text}
    arm = arm_of(tmp_path, files)
    x = torch.ones(2)
    assert arm.get("pkg.m:Sampler")()(x).tolist() == [2, 2]
    assert arm.get("pkg.m:Plain")()(x).tolist() == [3, 3]
    assert {"pkg.m:Base.forward_native", "pkg.m:SCALE"} <= names(closure_of(files, "pkg.m:Sampler"))
    assert "pkg.m:Plain.forward" in names(closure_of(files, "pkg.m:Plain"))


def test_only_reached_methods_are_in_the_closure() -> None:
    text = "class A:\n    def m(self): return self.n()\n    def n(self): return 1\n    def other(self): return far()\ndef far(): ...\n"
    found = names(closure_of({"pkg/__init__.py": "", "pkg/m.py": text}, "pkg.m:A.m"))
    assert found == {"pkg.m:A", "pkg.m:A.m", "pkg.m:A.n"}


@pytest.mark.parametrize(
    "symbol", ["f", "A", "A.m", "A.s", "A.c", "A.p.fget", "A.Inner", "A.Inner.deep", "wrapped", "A.own"]
)
def test_getsource_is_the_slice_of_the_file(tmp_path: Path, symbol: str) -> None:
    text = textwrap.dedent('''
        """Module."""
        import functools

        def keep(g):
            @functools.wraps(g)
            def inner(*a): return g(*a)
            return inner

        def f(a,
              b=(1,
                 2)):
            return a  # comment

        @keep
        def wrapped(x):
            return x

        class A:
            """Doc."""
            def m(self):
                """Doc."""
                return 1

            @staticmethod
            def s(): return 2

            @classmethod
            def c(cls):
                return 3

            @property
            def p(self):
                return 4

            @keep
            def own(self): return 5

            class Inner:
                def deep(self): return 6
        ''')  # fmt: skip
    arm = arm_of(tmp_path, {"pkg/__init__.py": "", "pkg/m.py": text})
    plain: dict[str, Any] = {"__name__": "not_lifted"}
    path = tmp_path / "plain.py"
    path.write_text(text.lstrip("\n"))
    exec(compile(path.read_text(), str(path), "exec"), plain)
    found = arm.loader.module("pkg.m")
    expected: Any = None
    for number, part in enumerate(symbol.split(".")):
        found = getattr(found, part)
        expected = getattr(expected, part) if number else plain[part]
    if inspect.isclass(expected):
        start = path.read_text().index(f"class {symbol.rpartition('.')[2]}:")
        assert path.read_text()[start:].startswith(inspect.getsource(found).strip().splitlines()[0])
        return
    assert inspect.getsource(found) == inspect.getsource(expected)


@pytest.mark.parametrize(
    ("symbol", "there"),
    [("m:A.m", True), ("m:A.up", True), ("m:A.no", False), ("m:Alias.m", True), ("m:Alias.no", False), ("m:A.x", True),
     ("m:A.In.m", True), ("m:A.In.no", False), ("m:no", False), ("no:A", False), ("m:Typing", False), ("m:A", True),
     ("m:B2.far", True), ("m:shown", True), ("m:Generic_.g", True)],
)  # fmt: skip
def test_whether_a_tree_has_a_symbol(tmp_path: Path, symbol: str, there: bool) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/far.py": "class Far:\n    def far(self): ...\ndef shown(): ...\n",
        "pkg/m.py": """
            from typing import TYPE_CHECKING, Generic, TypeVar
            from pkg import far
            from .far import shown
            if TYPE_CHECKING:
                from .far import Typing
            class Up:
                def up(self): ...
            class A(Up):
                x: int
                def m(self): ...
                class In:
                    def m(self): ...
            Alias = A
            class B2(far.Far): ...
            T = TypeVar("T")
            class G(Generic[T]):
                def g(self): ...
            class Generic_(G[int]): ...
            """,
    }
    arm = arm_of(tmp_path, files)
    assert arm.has(f"pkg.{symbol}") is there
    if there and symbol not in ("m:A.x",):
        assert arm.get(f"pkg.{symbol}") is not None


def test_a_method_is_found_when_inspect_binds_it_to_its_class_and_when_somebody_kept_what_stood_for_it(
    tmp_path: Path,
) -> None:
    text = "class A:\n    def __init__(self, v=3): self.v = v\n    def m(self): return self.v\n"
    kind = get(tmp_path, {"pkg/__init__.py": "", "pkg/m.py": text}, "pkg.m:A")
    waiting = inspect.getattr_static(kind, "__init__")
    assert waiting.__get__(kind, type(kind)).__func__ is kind.__init__  # as Python 3.12's inspect.signature does
    kept = inspect.getattr_static(kind, "m")
    assert kind(5).m() == 5
    assert kept.__get__(kind(6), kind)() == 6
