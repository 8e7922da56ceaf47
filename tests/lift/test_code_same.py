"""`code: same` is sound: what can change behaviour changes the digest. And useful: what cannot, does not."""

# ruff: noqa: E501 (a row of a table stays on its line)
from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_trees import closure_of, names

from difftest.demo import TREES
from difftest.profiles import standins_for

BASE = {
    "pkg/__init__.py": "",
    "pkg/m.py": '''
        """Module."""
        import functools
        from dataclasses import dataclass
        from enum import Enum
        from pkg import envs, far
        from pkg.star import *
        from pkg.consts import K as K1
        LIMIT = 3
        TABLE = {"a": 1, "b": 2}
        REG = {}
        def deco(n=1):
            return lambda g: g
        class Up:
            base_value = 1
            def up(self): return self.base_value
        class Kind(Enum):
            A = 1
            B = 2
        @dataclass
        class Data:
            x: int = 1
            y: list = None
            def size(self): return self.x
        class A(Up):
            """Doc."""
            attr = LIMIT
            def __init__(self, v=1): self.v = v
            @deco(1)
            def go(self, x, *, flag=False) -> int:
                """Doc."""
                # comment
                return self.up() + self.plain(x) + helper(x)
            def plain(self, x, *, flag=None) -> int:
                y: int = x + self.v
                return y
            def other(self): return 1
            def __len__(self): return 5
        def helper(x: int, k=LIMIT) -> int:
            "Doc."
            return x * k + TABLE["a"] + starred() + far.away() + K1
        def register(g):
            REG[g.__name__] = g
            return g
        @register
        def entry(): return 1
        def unreached(): return 99
        def f(x):
            from pkg.backend import run
            return A().go(x), envs.ONE, run(x), Kind.A, Data().size(), REG["entry"](), isinstance(x, A), len(A())
        ''',
    "pkg/star.py": "from pkg.star2 import *\ndef unstarred(): return 1\n",
    "pkg/star2.py": "def starred(): return 1\ndef _no(): return 1\n",
    "pkg/far.py": "def away(): return 1\ndef nobody(): return 1\n",
    "pkg/consts.py": "K = 1\nL = 2\n",
    "pkg/backend.py": "def run(x): return step(x)\ndef step(x): return x + 1\ndef spare(): return 1\n",
    "pkg/envs.py": '''
        import os
        table = {"ONE": lambda: os.getenv("ONE", "1"), "TWO": lambda: os.getenv("TWO", "2")}
        def __getattr__(name):
            if name in table:
                return table[name]()
            raise AttributeError(name)
        ''',
}  # fmt: skip


def _digest(files: dict[str, str]) -> str:
    return closure_of(files, "pkg.m:f").digest


def _edited(path: str, old: str, new: str) -> dict[str, str]:
    assert BASE[path].count(old) == 1, f"{path} holds {old!r} {BASE[path].count(old)} times"
    return {**BASE, path: BASE[path].replace(old, new)}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("pkg/m.py", "LIMIT = 3", "LIMIT = 4"),
        ("pkg/m.py", "LIMIT = 3", "LIMIT = 3.0"),
        ("pkg/m.py", "LIMIT = 3", "LIMIT = True"),
        ("pkg/m.py", "LIMIT = 3", "LIMIT = 3\n        LIMIT += 1"),
        ("pkg/m.py", '"a": 1, "b": 2', '"a": 1, "b": 3'),
        ("pkg/m.py", '"a": 1, "b": 2', '"b": 2, "a": 1'),
        ("pkg/m.py", "REG = {}", 'REG = {}\n        REG["z"] = 1'),
        ("pkg/m.py", "REG = {}", "REG = {}\n        REG.update(a=1)"),
        ("pkg/m.py", "deco(n=1)", "deco(n=2)"),
        ("pkg/m.py", "lambda g: g", "lambda g: functools.lru_cache(g)"),
        ("pkg/m.py", "@deco(1)", "@deco(2)"),
        ("pkg/m.py", "@deco(1)\n", "\n"),
        ("pkg/m.py", "class A(Up)", "class A(Up, dict)"),
        ("pkg/m.py", "class A(Up)", "class A"),
        ("pkg/m.py", "base_value = 1", "base_value = 2"),
        ("pkg/m.py", "return self.base_value", "return -self.base_value"),
        ("pkg/m.py", "attr = LIMIT", "attr = LIMIT + 1"),
        ("pkg/m.py", "attr = LIMIT", "attr = LIMIT\n            __slots__ = ()"),
        ("pkg/m.py", "self, v=1", "self, v=2"),
        ("pkg/m.py", "flag=False", "flag=None"),
        ("pkg/m.py", "x, *, flag=False", "x, flag=False"),
        ("pkg/m.py", "def other(self): return 1", "def up(self): return 1"),
        ("pkg/m.py", "def other(self): return 1", "def __getattr__(self, n): return 1"),
        ("pkg/m.py", "def other(self): return 1", "def __bool__(self): return False"),
        ("pkg/m.py", "def __len__(self): return 5", "def __len__(self): return 6"),
        ("pkg/m.py", "def __len__(self): return 5\n", "\n"),
        ("pkg/m.py", "k=LIMIT", "k=2"),
        ("pkg/m.py", "x * k +", "x ** k +"),
        ("pkg/m.py", "x * k +", "k * x +"),
        ("pkg/m.py", 'TABLE["a"]', 'TABLE["b"]'),
        ("pkg/m.py", "import K as K1", "import L as K1"),
        ("pkg/m.py", "A = 1", "A = 3"),
        ("pkg/m.py", "x: int = 1", "x: int = 2"),
        ("pkg/m.py", "x: int = 1", "x: ClassVar[int] = 1"),
        ("pkg/m.py", "y: list = None", "y: list = None\n            z: int = 0"),
        ("pkg/m.py", "@dataclass\n", "@dataclass(frozen=True)\n"),
        ("pkg/m.py", "def entry(): return 1", "def entry(): return 2"),
        ("pkg/m.py", "REG[g.__name__] = g", "REG[g.__name__] = None"),
        ("pkg/m.py", "@register\n", "@register\n        @functools.lru_cache\n"),
        ("pkg/m.py", "from pkg.backend import run", "from pkg.backend import step as run"),
        ("pkg/m.py", "isinstance(x, A)", "isinstance(x, Up)"),
        ("pkg/m.py", "from pkg.star import *", "from pkg.star import *\n        def starred(): return 2"),
        ("pkg/star2.py", "def starred(): return 1", "def starred(): return 2"),
        ("pkg/star.py", "def unstarred(): return 1", "def starred(): return 1"),
        ("pkg/star2.py", "def starred(): return 1", "starred = lambda: 1"),
        ("pkg/far.py", "def away(): return 1", "def away(): return 2"),
        ("pkg/consts.py", "K = 1", "K = 7"),
        ("pkg/backend.py", "return x + 1", "return x + 2"),
        ("pkg/backend.py", "return step(x)", "return step(-x)"),
        ("pkg/backend.py", "def step(x): return x + 1", "def stop(x): return x + 1"),
        ("pkg/envs.py", 'os.getenv("ONE", "1")', 'os.getenv("ONE", "0")'),
        ("pkg/envs.py", "return table[name]()", "return int(table[name]())"),
    ],
)  # fmt: skip
def test_what_changes_behaviour_changes_the_digest(path: str, old: str, new: str) -> None:
    assert _digest(_edited(path, old, new)) != _digest(BASE)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("pkg/m.py", '"""Module."""', '"""Another."""'),
        ("pkg/m.py", '"""Doc."""\n            attr', "attr"),
        ("pkg/m.py", '"""Doc."""\n                # comment', '"""Else."""'),
        ("pkg/m.py", "# comment", "# another\n                # and more"),
        ("pkg/m.py", "self, x, *, flag=None) -> int", "self, x: 'int', *,\n                   flag: bool = None)"),
        ("pkg/m.py", "y: int = x", "y = x"),
        ("pkg/m.py", "y: int = x", "y: int\n                y = x"),
        ("pkg/m.py", "helper(x: int, k=LIMIT) -> int", "helper(x, k: 'Any' = (LIMIT))"),
        ("pkg/m.py", "LIMIT = 3", "LIMIT: int = 0x3"),
        ("pkg/m.py", '"a": 1, "b": 2}', "'a': 1,\n                 'b': 2,  # two\n                 }"),
        ("pkg/m.py", "def unreached(): return 99", "def unreached(): return LIMIT + 1"),
        ("pkg/m.py", "def unreached(): return 99", ""),
        ("pkg/m.py", "def unreached(): return 99", "def unreached(): return 99\n        class More: x = 1\n        print('loaded')"),
        ("pkg/m.py", "def other(self): return 1", "def other(self): return 2"),
        ("pkg/m.py", "def other(self): return 1", ""),
        ("pkg/m.py", "import functools", "import functools, os, sys"),
        ("pkg/star.py", "def unstarred(): return 1", "def unstarred(): return 2"),
        ("pkg/star2.py", "def _no(): return 1", "def _no(): return 2"),
        ("pkg/far.py", "def nobody(): return 1", "def nobody(): return 2"),
        ("pkg/consts.py", "L = 2", "L = 3"),
        ("pkg/backend.py", "def spare(): return 1", "def spare(): return 2"),
        ("pkg/envs.py", 'os.getenv("TWO", "2")', 'os.getenv("TWO", "3")'),
        ("pkg/envs.py", '"TWO": lambda: os.getenv("TWO", "2")', ""),
        ("pkg/__init__.py", "", ""),
    ],
)  # fmt: skip
def test_what_cannot_change_behaviour_does_not_change_the_digest(path: str, old: str, new: str) -> None:
    edited = _edited(path, old, new) if old else {**BASE, path: "import os\nX = 1\n"}
    assert _digest(edited) == _digest(BASE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@other\ndef f(x: int): return x", "@other\ndef f(x: float): return x"),  # a decorator may read it
        ("@jit\ndef f(x, n: tl.constexpr): return x", "@jit\ndef f(x, n): return x"),
        ("def f(x, n: tl.constexpr): return x", "def f(x, n): return x"),  # called by a kernel
        ("def f():\n    return g(x)\nx = 1\ng = abs\nx = 2\n", "def f():\n    return g(x)\nx = 2\ng = abs\nx = 1\n"),
        ("a = 1\nb = a\na = 2\ndef f(): return b", "a = 1\na = 2\nb = a\ndef f(): return b"),
        ("def f(): return -0.0", "def f(): return 0.0"),
        ("def f(): return 1", "def f(): return 1.0"),
        ("def f(): return 'a'", "def f(): return b'a'"),
        ("def f(): return (1,)", "def f(): return 1"),
        ("def f(): return [1]", "def f(): return (1,)"),
        ("def f(x): return x[1:]", "def f(x): return x[:1]"),
        ("def f(x): return x[:]", "def f(x): return x[...]"),
        ("def f(*x): return x", "def f(**x): return x"),
        ("def f(a, /): return a", "def f(a): return a"),
        ("def f(x): return not x", "def f(x): return ~x"),
        ("def f(x): return x < 1 < 2", "def f(x): return (x < 1) < 2"),
        ("def f(): yield 1", "def f(): return 1"),
        ("async def f(): return 1", "def f(): return 1"),
        ("def f(x):\n    x.a = 1", "def f(x):\n    x.b = 1"),
        (
            "def f(x):\n    if x:\n        return 1\n    return 2",
            "def f(x):\n    if x:\n        return 1\n        return 2",
        ),
        (
            "def f(x):\n    for i in x:\n        pass\n    else:\n        return 1",
            "def f(x):\n    for i in x:\n        pass\n    return 1",
        ),
        (
            "def f(x):\n    try:\n        x()\n    except ValueError:\n        pass",
            "def f(x):\n    try:\n        x()\n    except TypeError:\n        pass",
        ),
        ("def f(x): return f'{x}'", "def f(x): return f'{x!r}'"),
        ("def f(x): return f'{x:.1f}'", "def f(x): return f'{x:.2f}'"),
        ("def f(x):\n    assert x", "def f(x):\n    x"),
        ("def f(x):\n    global y\n    y = x", "def f(x):\n    y = x"),
        ("def f(x):\n    'doc'\n    'not doc'\n    return x", "def f(x):\n    'doc'\n    return x"),
        (
            "class A:\n    @classmethod\n    def m(c): return 1\ndef f(): return A.m()",
            "class A:\n    @staticmethod\n    def m(c): return 1\ndef f(): return A.m()",
        ),
        ("from math import sin as g\ndef f(): return g(1)", "from math import cos as g\ndef f(): return g(1)"),
        ("import math as g\ndef f(): return g.e", "import cmath as g\ndef f(): return g.e"),
    ],
)
def test_a_small_difference_is_a_difference(before: str, after: str) -> None:
    digests = {closure_of({"pkg/__init__.py": "", "pkg/m.py": text}, "pkg.m:f").digest for text in (before, after)}
    assert len(digests) == 2


# -- edits by chance ----------------------------------------------------------------------------------------------------

Edit = tuple[int, Callable[[], None]]


def _edits(tree: ast.Module) -> Iterator[Edit]:
    """(line, how) of small semantic edits. Docstrings and annotations are left alone."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in annotations or id(node) in docstrings:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node.lineno, lambda n=node: setattr(n, "value", not n.value)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node.lineno, lambda n=node: setattr(n, "value", n.value + 1)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, lambda n=node: setattr(n, "value", n.value + "_")  # type: ignore[misc]
        elif isinstance(node, ast.Compare):
            yield (
                node.lineno,
                lambda n=node: n.ops.__setitem__(0, ast.IsNot() if isinstance(n.ops[0], ast.Is) else ast.Is()),
            )  # type: ignore[misc]
        elif isinstance(node, ast.BinOp):
            yield node.lineno, lambda n=node: setattr(n, "op", ast.Sub() if isinstance(n.op, ast.Add) else ast.Add())  # type: ignore[misc]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.lineno, lambda n=node: setattr(n, "attr", n.attr + "_")  # type: ignore[misc]
        elif isinstance(node, ast.Return) and node.value is not None:
            yield node.lineno, lambda n=node: setattr(n, "value", ast.Constant(None))  # type: ignore[misc]
        elif isinstance(node, ast.Call) and node.args:
            yield node.lineno, lambda n=node: n.args.pop()  # type: ignore[misc]
        elif isinstance(node, ast.arguments) and node.defaults:
            yield node.defaults[0].lineno, lambda n=node: n.defaults.__setitem__(0, ast.Constant("edited"))  # type: ignore[misc]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
            yield node.decorator_list[0].lineno, lambda n=node: n.decorator_list.pop(0)  # type: ignore[misc]


def _demo_files() -> dict[str, str]:
    root = TREES / "base"
    files = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    # no layout is left, so that a line belongs to one statement only, and text and syntax have the same lines
    return {path: ast.unparse(ast.parse(text)) + "\n" for path, text in files.items()}


@pytest.mark.parametrize(
    ("classes", "body"),
    [
        ("class Up:\n @classmethod\n def make(cls, v): return cls(v)\nclass K(Up):\n def __init__(self, v): self.v = v + 1", "K.make(1).v"),
        ("class K(dict):\n def __getitem__(self, k): return 1", "K.fromkeys([1])[1]"),
        ("import enum\nclass K(enum.Enum):\n A = 1\n def __str__(self): return '1'", "str(K.A)"),
        ("import enum\nclass Up(enum.Enum): pass\nclass K(Up):\n A = 1\n def __init__(self, v): self.w = v + 1\nX = K.A", "X.w"),
        ("import torch\nclass K(torch.autograd.Function):\n @staticmethod\n def forward(ctx, v): return v + 1", "K.apply(2)"),
    ],
)  # fmt: skip
def test_what_makes_instances_out_of_sight_counts(classes: str, body: str) -> None:
    text = f"{classes}\ndef f(): return {body}\n"
    head = text.replace("+ 1", "+ 2").replace("return 1", "return 2").replace("'1'", "'2'")
    one, other = (closure_of({"pkg/__init__.py": "", "pkg/m.py": code}, "pkg.m:f") for code in (text, head))
    assert one.digest != other.digest


def test_a_static_method_alone_makes_no_instance() -> None:
    text = "class Up: pass\nclass K(Up):\n def __init__(self): self.v = 1\n @staticmethod\n def g(): return 1\ndef f(): return K.g()\n"
    assert "pkg.m:K.__init__" not in names(closure_of({"pkg/__init__.py": "", "pkg/m.py": text}, "pkg.m:f"))


@pytest.mark.parametrize(
    "symbol",
    [
        "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output",
        "vllm.v1.sample.ops.topk_topp_sampler:random_sample",
        "vllm.v1.worker.gpu.sample.output:SamplingMaskTensors.from_logits",
        "vllm.v1.worker.gpu.sample.gumbel:gumbel_sample",
    ],
)
def test_edits_inside_the_closure_change_the_digest_and_edits_outside_do_not(symbol: str) -> None:
    files = _demo_files()
    standins = list(standins_for("vllm").items.values())
    closure = closure_of(files, symbol, standins=standins)
    inside = {(p.path, n) for p in closure.pieces.values() for n in range(p.first, p.last + 1)}
    order = random.Random(7)
    counts = {True: 0, False: 0}
    for path, text in sorted(files.items()):
        total = len(list(_edits(ast.parse(text))))
        for number in order.sample(range(total), min(total, 50)):
            tree = copy.deepcopy(ast.parse(text))
            line, edit = list(_edits(tree))[number]
            edit()
            edited = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
            if ast.dump(ast.parse(edited)) == ast.dump(ast.parse(text)):
                continue
            hit = (path, line) in inside
            counts[hit] += 1
            changed = closure_of({**files, path: edited}, symbol, standins=standins).digest != closure.digest
            assert changed == hit, (
                f"{path}:{line} {'inside' if hit else 'outside'}: {text.splitlines()[line - 1].strip()}"
            )
    assert counts[True] >= 15 and counts[False] >= 50


def test_facts_kept_between_runs_are_the_facts(tmp_path: Path) -> None:
    """A closure out of the cache folder equals one that was found; damage to the folder is repaired."""
    import gc

    from difftest.lift.closure import Sources, find_closure
    from difftest.lift.facts import FactsStore
    from difftest.trees.base import git_blob_id

    files = {path: text.encode() for path, text in _demo_files().items()}

    def find(name: str) -> tuple[str | None, bool] | None:
        stem = name.replace(".", "/")
        if f"{stem}/__init__.py" in files:
            return f"{stem}/__init__.py", True
        return (f"{stem}.py", False) if f"{stem}.py" in files else None

    symbol = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"
    read: list[str] = []

    def closure(store: FactsStore | None) -> tuple[object, ...]:
        sources = Sources(find, lambda p: (read.append(p), files.get(p))[1], lambda p: git_blob_id(files[p]), {}, store)
        found = find_closure(sources, [symbol], standins_for("vllm"))
        return found.digest, found.pieces, found.standins, found.external, found.missing, found.compiled

    plain = closure(None)
    assert closure(FactsStore(tmp_path)) == plain and read
    gc.collect()
    read.clear()
    assert closure(FactsStore(tmp_path)) == plain
    assert read == [], "files were parsed again"
    kept = sorted(tmp_path.rglob("*.json"))
    damage = ["", "{", "[]", "null", '{"name":"x"}', kept[0].read_text()]
    for number, file in enumerate(kept):
        text = file.read_text()
        file.write_text(
            text.replace('"parts":{', '"parts":{"f":3,').replace('"uses"', '"usss"').replace(":[0]", ":[]")
            if number % 2
            else damage[number % 6]
        )
    assert closure(FactsStore(tmp_path)) == plain
    gc.collect()
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert closure(FactsStore(blocked)) == plain  # a folder that cannot be made
