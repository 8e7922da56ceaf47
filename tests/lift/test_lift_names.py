"""A lifted function finds every name that it would find when its module were imported, and no code but that runs."""

# ruff: noqa: E501 (a row of a table stays on its line)
from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest
from small_trees import arm_of, closure_of, get, names

from difftest.errors import LiftError

BOOM = "raise RuntimeError('this must not be executed')\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def helper(): return 1\ndef f(): return helper()", 1),
        ("K = 2\ndef f(): return K", 2),
        ("K = 3\ndef f(x=K): return x", 3),
        ("K = 4\ndef f(*, x=K): return x", 4),
        ("K = 5\ndef f(): return [i + K for i in range(1)][0]", 5),
        ("i = [6]\ndef f(): return [i for i in i][0]", 6),
        ("K = 7\nf = lambda: K", 7),
        ("def twice(g): return lambda: 2 * g()\n@twice\ndef f(): return 4", 8),
        ("def times(n):\n    return lambda g: lambda: n * g()\nN = 3\n@times(N)\ndef f(): return 3", 9),
        ("class B:\n    x = 10\nclass A(B): pass\ndef f(): return A.x", 10),
        ("K = 11\nclass A:\n    x = K\ndef f(): return A().x", 11),
        ("def g(): return 12\nclass A:\n    def m(self): return g()\ndef f(): return A().m()", 12),
        ("K = 13\ndef f():\n    def inner(): return K\n    return inner()", 13),
        ("COUNT = 13\ndef bump():\n    global COUNT\n    COUNT += 1\ndef f():\n    bump()\n    return COUNT", 14),
        ("def start():\n    global LATE\n    LATE = 15\ndef f():\n    start()\n    return LATE", 15),
        ("K = 1\nK = 16\ndef f(): return K", 16),
        ("K = 1\nK += 16\ndef f(): return K", 17),
        ("def f(): return 0\ndef f(): return 18", 18),
        ("a, (b, *c) = 1, (2, 19)\ndef f(): return c[0]", 19),
        ("K = L = 20\ndef f(): return L", 20),
        ("if (n := 21) > 1:\n    pass\ndef f(): return n", 21),
        ("for K in (1, 22): pass\ndef f(): return K", 22),
        ("with open(__file__) as handle: K = 23\ndef f(): return K", 23),
        ("match (24,):\n    case (K,): pass\ndef f(): return K", 24),
        ("R = {}\nR['x'] = 25\ndef f(): return R['x']", 25),
        ("R = []\nR.append(26)\ndef f(): return R[0]", 26),
        ("class A: pass\nA.x = 27\ndef f(): return A.x", 27),
        ("class A: pass\nsetattr(A, 'x', 28)\ndef f(): return A.x", 28),
        ("import heapq\nR = []\nheapq.heappush(R, 29)\ndef f(): return R[0]", 29),
        ("R = {}\nfor k in (1, 2):\n    R[k] = 15 * k\ndef f(): return R[2]", 30),
        ("R = {}\ndef reg(g):\n    R[g.__name__] = g\n    return g\n@reg\ndef a(): return 31\ndef f(): return R['a']()", 31),
        (
            "R = {}\ndef reg(n):\n    def put(g):\n        R[n] = g\n        return g\n    return put\n"
            "@reg('b')\ndef a(): return 32\ndef f(): return R['b']()",
            32,
        ),
        ("R = []\ndef reg(v): R.append(v)\nreg(33)\ndef f(): return R[0]", 33),
        (
            "class B:\n    made = []\n    def __init_subclass__(cls): B.made.append(cls)\n"
            "class C(B):\n    x = 34\ndef f(): return B.made[0].x",
            34,
        ),
        ("class Reg(dict):\n    def reg(self, g):\n        self['g'] = g\n        return g\n"
         "r = Reg()\n@r.reg\ndef a(): return 35\ndef f(): return r['g']()", 35),
        ("K = 36\ndef f(): return globals()['K']", 36),
        ("K = 37\ndef f(name='K'): return globals()[name]", 37),
        ("import sys\nK = 38\ndef f(): return getattr(sys.modules[__name__], 'K')", 38),
        ("K = 39\ndel K\nK = 40\ndef f(): return K", 40),
        ("T = 1\nif True:\n    def f(): return 41\nelse:\n    def f(): return 0", 41),
        ("x = [1]\nx *= 42\ndef f(): return len(x)", 42),
        ("f = (lambda k: lambda: k)(43)", 43),
        ("from functools import partial\ndef g(a): return a\nf = partial(g, 44)", 44),
    ],
)  # fmt: skip
def test_a_name_is_found(tmp_path: Path, text: str, expected: int) -> None:
    assert get(tmp_path, {"pkg/__init__.py": "", "pkg/m.py": text}, "pkg.m:f")() == expected


@pytest.mark.parametrize(
    "unreached",
    [
        "boom()",
        "X = boom()",
        "@boom\ndef other(): ...",
        "import not_there",
        "from .not_there import thing",
        "class Other(boom()): ...",
        "if boom(): pass",
    ],
)
def test_what_is_not_reached_is_not_executed(tmp_path: Path, unreached: str) -> None:
    text = f"def boom(*_):\n    {BOOM}\n{unreached}\ndef f(): return 1\n"
    assert get(tmp_path, {"pkg/__init__.py": BOOM, "pkg/m.py": text}, "pkg.m:f")() == 1


def test_annotations_are_not_evaluated(tmp_path: Path) -> None:
    text = """
        from .not_there import Thing
        def f(x: Thing, *rest: Missing[int]) -> Thing:
            y: Thing = x
            return y
        """
    files = {"pkg/__init__.py": "", "pkg/m.py": text}
    assert get(tmp_path, files, "pkg.m:f")(1) == 1
    assert names(closure_of(files, "pkg.m:f")) == {"pkg.m:f"}


IMPORTS = {
    "pkg/__init__.py": "from .a import helper as shown\nfrom . import a as renamed\n",
    "pkg/a.py": "K = 1\ndef helper(): return K\n_hidden = 5\n",
    "pkg/sub/__init__.py": "from ..a import *\n",
    "pkg/sub/deep.py": "from .. import a\nfrom ..a import helper\nfrom . import other\nfrom .other import K as L\n",
    "pkg/sub/other.py": "K = 2\n",
    "pkg/listed.py": "__all__ = ['_hidden']\n__all__ += ['K']\nfrom .a import K, _hidden, helper\n",
    "pkg/computed.py": "__all__ = [n for n in ('_hidden',)]\nfrom .a import _hidden\n",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from pkg import shown\ndef f(): return shown()", 1),
        ("from pkg import renamed\ndef f(): return renamed.helper()", 1),
        ("import pkg\ndef f(): return pkg.shown()", 1),
        ("import pkg.a\ndef f(): return pkg.a.helper()", 1),
        ("import pkg.sub.other\ndef f(): return pkg.sub.other.K", 2),
        ("import pkg.sub.other as x\ndef f(): return x.K", 2),
        ("import pkg.a as x\nTABLE = {'x': x}\ndef f(): return TABLE['x'].helper()", 1),
        ("from pkg.sub import deep\ndef f(): return deep.a.helper() + deep.other.K", 3),
        ("from pkg.sub.deep import L, helper\ndef f(): return L + helper()", 3),
        ("from pkg.sub import K\ndef f(): return K", 1),
        ("from pkg.sub import *\ndef f(): return helper()", 1),
        ("from pkg.listed import *\ndef f(): return _hidden", 5),
        ("from pkg.computed import *\ndef f(): return _hidden", 5),
        ("K = 9\nfrom pkg.a import *\ndef f(): return K", 1),
        ("from pkg.a import *\nK = 9\ndef f(): return K", 9),
        ("from pkg.a import *\nfrom pkg.sub.other import *\ndef f(): return K", 2),
        ("from math import *\ndef f(): return int(floor(3.5))", 3),
        ("try:\n    from pkg.a import helper\nexcept ImportError:\n    helper = None\ndef f(): return helper()", 1),
        ("try:\n    import nope_nope\n    K = 1\nexcept ImportError:\n    K = 7\ndef f(): return K", 7),
        ("try:\n    from pkg.a import nope\nexcept ImportError:\n    nope = 8\ndef f(): return nope", 8),
        ("try:\n    from pkg.nope import x\nexcept ModuleNotFoundError:\n    x = 9\ndef f(): return x", 9),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.a import K\nelse:\n    K = 6\n"
         "def f(): return K", 6),
        ("import typing as t\nif not t.TYPE_CHECKING:\n    from pkg.a import K\nelse:\n    K = 6\ndef f(): return K", 1),
        ("import sys\nif sys.version_info >= (3, 0):\n    from pkg.a import K\nelse:\n    from pkg.nope import K\n"
         "def f(): return K", 1),
        ("def f():\n    from pkg.a import helper\n    return helper()", 1),
        ("def f():\n    import pkg.sub.other\n    return pkg.sub.other.K", 2),
        ("def f():\n    import pkg.sub.other as o\n    return o.K", 2),
        ("def f():\n    from .sub import deep\n    return deep.L", 2),
        ("import importlib\ndef f(): return importlib.import_module('pkg.a').helper()", 1),
        ("from importlib import import_module\ndef f(): return import_module('.a', __package__).helper()", 1),
        ("from importlib import import_module\ndef f(): return import_module(f'{__package__}.a').helper()", 1),
        ("def f(): return __import__('pkg.a').a.helper()", 1),
    ],
)  # fmt: skip
def test_an_import_resolves_inside_the_arm(tmp_path: Path, text: str, expected: int) -> None:
    files = {**IMPORTS, "pkg/m.py": text}
    assert get(tmp_path, files, "pkg.m:f")() == expected
    assert "pkg" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "import pkg.a as x\nTABLE = {'x': x}\ndef f(): return TABLE['x'].helper()",
        "def f():\n    import pkg.a as x\n    return x.helper()",
        "def f():\n    import pkg.a\n    return pkg.a.helper()",
        "def f():\n    from pkg import a\n    return a.helper()",
        "import importlib\ndef f(): return importlib.import_module('pkg.a').helper()",
        "from importlib import import_module\ndef f(): return import_module('.a', __package__).helper()",
        "from pkg.sub import *\ndef f(): return helper()",
        "import pkg\ndef f(): return getattr(pkg.a, 'helper')()",
        "import pkg.a\ndef f(kind='er'): return getattr(pkg.a, f'help{kind}')()",
        "from pkg import shown\ndef f(): return shown()",
    ],
)
def test_the_closure_holds_what_an_import_leads_to(tmp_path: Path, text: str) -> None:
    files = {**IMPORTS, "pkg/m.py": text}
    assert {"pkg.a:helper", "pkg.a:K"} <= names(closure_of(files, "pkg.m:f"))
    assert get(tmp_path, files, "pkg.m:f")() == 1


def test_a_name_of_a_package_wins_over_its_submodule_of_the_same_name(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from .gumbel import gumbel\n",
        "pkg/gumbel.py": "def gumbel(): return 1\nK = 2\n",
        "pkg/m.py": "from pkg.gumbel import K\nfrom pkg import gumbel\ndef f(): return gumbel() + K\n",
    }
    assert get(tmp_path, files, "pkg.m:f")() == 3


@pytest.mark.parametrize(
    "files",
    [
        {"pkg/m.py": "import pkg.b\nK = 1\ndef f(): return pkg.b.g()", "pkg/b.py": "import pkg.m\ndef g(): return pkg.m.K"},
        {"pkg/m.py": "from pkg import b\nK = 1\ndef f(): return b.g()", "pkg/b.py": "from pkg import m\ndef g(): return m.K"},
        {"pkg/m.py": "K = 1\nfrom .b import g\ndef f(): return g()", "pkg/b.py": "from .m import K\ndef g(): return K"},
        {"pkg/m.py": "from .b import g\ndef f(n=1): return g(n)", "pkg/b.py": "def g(n): return n and f(0) or 1\nfrom .m import f"},
        {"pkg/m.py": "def f(): return A().go()\nfrom .b import B\nclass A(B):\n    def go(self): return self.up()",
         "pkg/b.py": "class B:\n    def up(self):\n        from .m import A\n        return int(isinstance(self, A))"},
    ],
)  # fmt: skip
def test_circular_imports(tmp_path: Path, files: dict[str, str]) -> None:
    assert get(tmp_path, {"pkg/__init__.py": "", **files}, "pkg.m:f")() == 1


LAZY_TABLE = {
    "pkg/__init__.py": """
        import importlib
        TABLE = {"good": ".good:helper", "bad": ".broken:helper"}
        def __getattr__(name):
            if name in TABLE:
                module, attribute = TABLE[name].split(":")
                return getattr(importlib.import_module(module, __package__), attribute)
            raise AttributeError(name)
        """,
    "pkg/good.py": "K = 1\ndef helper(): return K\n",
    "pkg/broken.py": "this is not python\n",
    "pkg/envs.py": """
        import os
        table = {"A": lambda: int(os.environ.get("DIFFTEST_NOT_SET", "1")), "B": lambda: wrong()}
        def wrong(): return 5
        def __getattr__(name):
            if name in table:
                return table[name]()
            raise AttributeError(name)
        """,
    "pkg/m.py": "from pkg import good as g, envs\nimport pkg\ndef f(): return pkg.good() + envs.A\ndef h(): return envs.C\n",
}


def test_getattr_of_a_module_looks_its_names_up_in_a_table(tmp_path: Path) -> None:
    files = {**LAZY_TABLE, "pkg/m.py": "from pkg import envs\nimport pkg.envs as e\ndef f(): return envs.A + e.A\n"}
    assert get(tmp_path, files, "pkg.m:f")() == 2
    found = names(closure_of(files, "pkg.m:f"))
    assert "pkg.envs:table['A']" in found and "pkg.envs:wrong" not in found


def test_getattr_of_a_package_imports_what_its_table_names(tmp_path: Path) -> None:
    files = {
        **LAZY_TABLE,
        "pkg/good_.py": LAZY_TABLE["pkg/good.py"],
        "pkg/m.py": "from pkg import late\ndef f(): return late()\n",
    }
    files["pkg/__init__.py"] = files["pkg/__init__.py"].replace('"good": ".good:', '"late": ".good_:')
    assert {"pkg.good_:helper", "pkg.good_:K"} <= names(closure_of(files, "pkg.m:f"))
    assert get(tmp_path, files, "pkg.m:f")() == 1


def test_getattr_of_a_module_raises_for_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="C"):
        get(tmp_path, LAZY_TABLE, "pkg.m:h")()


def test_a_broken_backend_does_not_matter_until_it_runs(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/broken.py": "def run(:\n",
        "pkg/absent_dependency.py": "import not_a_package_at_all as n\ndef run(): return n\n",
        "pkg/m.py": """
            def f(backend=""):
                if backend == "broken":
                    from pkg.broken import run
                elif backend == "absent":
                    from pkg.absent_dependency import run
                else:
                    return 1
                return run()
            """,
    }
    f = get(tmp_path, files, "pkg.m:f")
    assert f() == 1
    with pytest.raises(LiftError, match=r"broken\.py cannot be parsed"):
        f("broken")
    for _ in range(2):  # the same error each time, not another one later
        with pytest.raises(ModuleNotFoundError, match="not_a_package_at_all"):
            f("absent")
    assert closure_of(files, "pkg.m:f").broken


def test_a_file_that_cannot_be_parsed_refuses_with_the_chain_of_names_that_led_there() -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/a.py": "from .b import x\ndef g(): return x\n",
        "pkg/b.py": "x = (\n",
        "pkg/m.py": "from .a import g\ndef f(): return g()\n",
    }
    with pytest.raises(LiftError, match=r"pkg/b\.py cannot be parsed.*reached by pkg\.m:f -> .*pkg\.a:g"):
        closure_of(files, "pkg.m:f")


def test_a_helper_that_head_deleted_raises_in_head_only(tmp_path: Path) -> None:
    text = "from .a import helper\ndef f(): return helper()\n"
    base = {"pkg/__init__.py": "", "pkg/m.py": text, "pkg/a.py": "def helper(): return 1\n"}
    head = {**base, "pkg/a.py": "def other(): return 1\n"}
    assert get(tmp_path, base, "pkg.m:f")() == 1
    with pytest.raises(ImportError, match="helper"):
        get(tmp_path, head, "pkg.m:f")
    assert [what for what, _ in closure_of(head, "pkg.m:f").missing] == ["pkg.a:helper"]


def test_two_arms_share_nothing_of_the_tree(tmp_path: Path) -> None:
    text = "STATE = []\ndef helper(): return {0}\ndef f():\n    STATE.append(1)\n    return helper(), len(STATE)\n"
    arms = [
        arm_of(tmp_path, {"pkg/__init__.py": "", "pkg/m.py": text.format(n)}, label=label)
        for n, label in enumerate(("isolated-base", "isolated-head"))
    ]
    base, head = (arm.get("pkg.m:f") for arm in arms)
    assert [base(), base(), head()] == [(0, 1), (0, 2), (1, 1)]
    assert base.__module__ == "difftest_isolated_base.pkg.m" and head.__module__ == "difftest_isolated_head.pkg.m"
    assert base.__globals__ is not head.__globals__
    assert sys.modules[base.__module__].f is base and "pkg.m" not in sys.modules
    assert [arm.loader.strangers() for arm in arms] == [[], []]
    assert base.__code__.co_filename != head.__code__.co_filename


def test_tracebacks_show_the_file_and_line_of_the_tree(tmp_path: Path) -> None:
    text = "\n\nclass A:\n    def go(self):\n        return 1 / 0\n\n\ndef f():\n    return A().go()\n"
    f = get(tmp_path, {"pkg/__init__.py": "", "pkg/m.py": "'''doc'''\n" + text}, "pkg.m:f")
    with pytest.raises(ZeroDivisionError) as caught:
        f()
    frames = traceback.extract_tb(caught.value.__traceback__)[-2:]
    assert [(Path(frame.filename).name, frame.lineno, frame.name, frame.line) for frame in frames] == [
        ("m.py", 10, "f", "return A().go()"),
        ("m.py", 6, "go", "return 1 / 0"),
    ]


def test_dunder_names_of_a_module(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from .version import __version__\n",
        "pkg/version.py": "__version__ = '1.2'\n",
        "pkg/m.py": "from pkg import __version__ as v\nimport pkg\ndef f(): return v, pkg.__version__, __name__, __file__\n",
    }
    arm = arm_of(tmp_path, files)
    *versions, name, file = arm.get("pkg.m:f")()
    assert versions == ["1.2", "1.2"]
    assert name == "pkg.m" and Path(file) == tmp_path / arm.label / "pkg/m.py"
