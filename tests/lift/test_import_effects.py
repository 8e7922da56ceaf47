"""What importing does counts: registrations, patches, settings, files beside the code, and failures to load."""

# ruff: noqa: E501 (a row of a table stays on its line)
from __future__ import annotations

import gc
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from small_trees import arm_of, sources_of

from difftest.api import RunOptions, run
from difftest.lift.closure import Closure, find_closure
from difftest.lift.standins import StandIns
from difftest.result import RunResult, TargetResult

USES = "from . import h\ndef f(x): return h.q(x)\n"
PLAIN_H = "def q(x): return x\n"
TABLE = "R = {}\ndef reg(g):\n    R[g.__name__] = g\n    return g\n"
READS_TABLE = "from .r import R\nfrom . import ops\ndef f(x): return R['q'](x)\n"
BASES = "class B: pass\ndef f(x): return x + B.__subclasses__()[0].v\nfrom . import c\n"
TOLD = "class B:\n    S = []\n    def __init_subclass__(cls): B.S.append(cls)\n"
META = "class M(type):\n    S = []\n    def __init__(c, *a): M.S.append(c)\nclass B(metaclass=M): pass\n"
READ_JSON = (
    "import json, pathlib\ndef f(x): return x * json.loads((pathlib.Path(__file__).parent / 'k.json').read_text())\n"
)
RESOURCES = (
    "from importlib import resources\ndef f(x): return x * int((resources.files('pkg') / 'k.json').read_text())\n"
)
GET_DATA = "import pkgutil\ndef f(x): return x * int(pkgutil.get_data('pkg', 'k.json'))\n"
HERE = "import os, pathlib\nHERE = os.path.dirname(__file__)\ndef f(x): return x * int(pathlib.Path(HERE + '/k.json').read_text())\n"
PLUGINS = "import importlib\ndef f(x, n='a'): return importlib.import_module(f'pkg.p_{n}').q(x)\n"
DISPATCH = "import functools\n@functools.singledispatch\ndef q(x): return x\n"
DISPATCHED = "from .h import q\n@q.register(int)\ndef _(x): return x + {}\n"

LATER = "import os\ndef late(v):\n    def set(): os.environ['A'] = v\n    return set\nTABLE = {{'a': late('{}'), 'b': lambda: os.putenv('B', '1')}}\n"

# name: (files that both have, of base, of head, f(2) in base, in head)
CASES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str], object, object]] = {
    "registered elsewhere": (
        {"m": READS_TABLE, "r": TABLE},
        {"ops": "from .r import reg\n@reg\ndef q(x): return x\n"},
        {"ops": "from .r import reg\n@reg\ndef q(x): return x + 1\n"},
        2,
        3,
    ),
    "registered by a call": (
        {"m": READS_TABLE, "r": TABLE},
        {"ops": "from . import r\ndef q(x): return x\nr.reg(q)\n"},
        {"ops": "from . import r\ndef q(x): return x + 1\nr.reg(q)\n"},
        2,
        3,
    ),
    "registered by an import in a function": (
        {"m": "from .r import R\ndef f(x):\n    from . import ops\n    return R['q'](x)\n", "r": TABLE},
        {"ops": "from .r import R\nR['q'] = lambda x: x\n"},
        {"ops": "from .r import R\nR['q'] = lambda x: x + 1\n"},
        2,
        3,
    ),
    "the name of a star import used before it is bound anew": (
        {"m": "from .k import *\ntry: C\nexcept NameError: C = 1\ndef f(x): return x * C\n"},
        {"k": "__all__ = []\nC = 3\n"},
        {"k": "__all__ = ['C']\nC = 3\n"},
        2,
        6,
    ),
    "the value of a star import, bound anew in some cases": (
        {"m": "from .k import *\nif not C: C = 1\ndef f(x): return x * C\n"},
        {"k": "C = 2\n"},
        {"k": "C = 3\n"},
        4,
        6,
    ),
    "what a star import brings, in the namespace as a whole": (
        {"m": "from .k import *\ndef f(x): return x * globals().get('C', 2)\n"},
        {"k": "C = 3\ndel C\n"},
        {"k": "C = 3\n"},
        4,
        6,
    ),
    "dispatch": (
        {"m": "from .h import q\nfrom . import o\ndef f(x): return q(x)\n", "h": DISPATCH},
        {"o": DISPATCHED.format(1)},
        {"o": DISPATCHED.format(2)},
        3,
        4,
    ),
    "patched by a third module": (
        {"m": USES + "from . import patch\n", "h": PLAIN_H},
        {"patch": ""},
        {"patch": "from . import h\nh.q = lambda x: x + 1\n"},
        2,
        3,
    ),
    "a method patched": (
        {"m": "from .h import K\nfrom . import patch\ndef f(x): return K().go(x)\n", "h": "class K:\n    go = None\n"},
        {"patch": "from .h import K\nK.go = lambda self, x: x\n"},
        {"patch": "from .h import K\nK.go = lambda self, x: x + 1\n"},
        2,
        3,
    ),
    "patched by the package": (
        {"m": USES, "h": PLAIN_H},
        {"__init__": ""},
        {"__init__": "from . import h\nh.q = lambda x: x + 1\n"},
        2,
        3,
    ),
    "changed by what the package imports": (
        {"m": "from .h import K\ndef f(x): return K['v']\n", "h": "K = {'v': 1}\n", "z": "from .h import K\nK['v'] = 2\n"},
        {"__init__": ""},
        {"__init__": "from . import z\n"},
        1,
        2,
    ),
    "changed by a function that is called": (
        {"m": "from .h import K\nfrom . import z\ndef f(x): return K['v']\n", "h": "K = {'v': 1}\n"},
        {"z": "from .h import K\ndef _go(): K['v'] = 2\n_go()\n"},
        {"z": "from .h import K\ndef _go(): K['v'] = 3\n_go()\n"},
        2,
        3,
    ),
    "subclasses": (
        {"m": BASES},
        {"c": "from .m import B\nclass C(B): v = 1\n"},
        {"c": "from .m import B\nclass C(B): v = 2\n"},
        3,
        4,
    ),
    "subclasses that are told": (
        {"m": "from .h import B\nfrom . import c\ndef f(x): return B.S[0].v\n", "h": TOLD},
        {"c": "from .h import B\nclass C(B): v = 1\n"},
        {"c": "from .h import B\nclass C(B): v = 2\n"},
        1,
        2,
    ),
    "a metaclass that keeps account": (
        {"m": "from .h import B, M\nfrom . import c\ndef f(x): return M.S[-1].v\n", "h": META},
        {"c": "from .h import B\nclass C(B): v = 1\n"},
        {"c": "from .h import B\nclass C(B): v = 2\n"},
        1,
        2,
    ),
    "a class that is told of grandchildren": (
        {"m": "from .h import A\nfrom . import c\ndef f(x): return A.S[-1].v\n", "h": TOLD.replace("B", "A"), "b": "from .h import A\nclass B(A): v = 0\n"},
        {"c": "from .b import B\nclass C(B): v = 1\n"},
        {"c": "from .b import B\nclass C(B): v = 2\n"},
        1,
        2,
    ),
    "setattr on the module": (
        {"m": USES},
        {"h": PLAIN_H},
        {"h": PLAIN_H + "import sys\nsetattr(sys.modules[__name__], 'q', lambda x: x + 1)\n"},
        2,
        3,
    ),
    "globals()": (
        {},
        {"m": "def f(x): return x\n"},
        {"m": "def f(x): return x\nglobals()['f'] = lambda x: x + 1\n"},
        2,
        3,
    ),
    "globals() with computed names": (
        {"m": USES},
        {"h": "for n in ['q']:\n    globals()[n] = lambda x: x\n"},
        {"h": "for n in ['q']:\n    globals()[n] = lambda x: x + 1\n"},
        2,
        3,
    ),
    "vars().update": (
        {"m": USES},
        {"h": "vars().update(q=lambda x: x)\n"},
        {"h": "vars().update(q=lambda x: x + 1)\n"},
        2,
        3,
    ),
    "eval": (
        {"m": "from .h import q\ndef f(x): return eval('q(x)')\n"},
        {"h": PLAIN_H},
        {"h": "def q(x): return x + 1\n"},
        2,
        3,
    ),
    "a module whose name is computed": (
        {"m": PLUGINS},
        {"p_a": PLAIN_H},
        {"p_a": "def q(x): return x + 1\n"},
        2,
        3,
    ),
    "a file beside __file__": ({"m": READ_JSON}, {"k.json": "2"}, {"k.json": "3"}, 4, 6),
    "a file beside the folder of the module": ({"m": HERE}, {"k.json": "2"}, {"k.json": "3"}, 4, 6),
    "pkgutil.get_data": ({"m": GET_DATA}, {"k.json": "2"}, {"k.json": "3"}, 4, 6),
    "importlib.resources": ({"m": RESOURCES}, {"k.json": "2"}, {"k.json": "3"}, 4, 6),
    "a docstring": (
        {},
        {"m": "def f(x):\n    'a'\n    return f.__doc__\n"},
        {"m": "def f(x):\n    'b'\n    return f.__doc__\n"},
        "a",
        "b",
    ),
    "source text": (
        {},
        {"m": "import inspect\ndef q(): return 1\ndef f(x): return len(inspect.getsource(q))\n"},
        {"m": "import inspect\ndef q(): return  1\ndef f(x): return len(inspect.getsource(q))\n"},
        18,
        19,
    ),
    "a line": (
        {},
        {"m": "def f(x): return f.__code__.co_firstlineno\n"},
        {"m": "#\ndef f(x): return f.__code__.co_firstlineno\n"},
        1,
        2,
    ),
}  # fmt: skip


# What reads the namespace of a module as a whole, or whether a name is in it.
LOOKS = {
    "in": "'T' in globals()",
    "a computed name in": "'t'.upper() in globals()",
    "not in": "'T' not in globals()",
    "a loop": "[n for n in globals() if n == 'T']",
    "as a list": "sorted(globals()).count('T')",
    "unpacked": "dict(**globals()).get('T')",
    "starred": "[*globals()].count('T')",
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_reads_its_own_namespace_depends_on_it(name: str, tmp_path: Path) -> None:
    text = f"T = 1\n@@def f(x): return {LOOKS[name]}\n"
    trees = _tree({"m": text.replace("@@", "")}), _tree({"m": text.replace("@@", "del T\n")})
    assert _closure(trees[0]).digest != _closure(trees[1]).digest
    values = [arm_of(tmp_path, files).get("pkg.m:f")(1) for files in trees]
    assert values[0] != values[1]


HINTS = "import typing\nfrom .h import T\ndef g(a: T): pass\ndef f(x): return typing.get_type_hints(g)\n"


@pytest.mark.parametrize(
    ("common", "base", "head"),
    [
        ({"m": HINTS}, {"h": "T = int\n"}, {"h": "T = float\n"}),
        (
            {"m": "from . import h\ndef f(x, n='q'): return h.__dict__[n](x)\n"},
            {"h": PLAIN_H},
            {"h": "def q(x): return -x\n"},
        ),
        (
            {"m": "from .h import q\nexec('def g(x): return q(x)')\ndef f(x): return g(x)\n"},
            {"h": PLAIN_H},
            {"h": "def q(x): return -x\n"},
        ),
        (
            {"m": READS_TABLE, "r": "R = {}\n"},
            {"ops": "from .r import R\n[R.setdefault(n, abs) for n in 'pq']\n"},
            {"ops": "from .r import R\n[R.setdefault(n, int) for n in 'pq']\n"},
        ),
    ],
)
def test_what_cannot_be_followed_is_not_called_same(
    common: dict[str, str], base: dict[str, str], head: dict[str, str]
) -> None:
    assert _closure(_tree(common, base)).digest != _closure(_tree(common, head)).digest


def _tree(*parts: Mapping[str, str]) -> dict[str, str]:
    files = {"__init__": ""}
    for part in parts:
        files.update(part)
    return {f"pkg/{name}" if "." in name else f"pkg/{name}.py": text for name, text in files.items()}


def _closure(files: Mapping[str, str]) -> Closure:
    sources = sources_of(files)
    sources._paths = lambda folder: sorted(path for path in files if path.startswith(folder + "/"))
    return find_closure(sources, ["pkg.m:f"], StandIns())


@pytest.mark.parametrize("name", CASES)
def test_what_importing_does_counts_and_is_done(name: str, tmp_path: Path) -> None:
    common, base, head, in_base, in_head = CASES[name]
    trees = _tree(common, base), _tree(common, head)
    closures = [_closure(files) for files in trees]
    assert closures[0].digest != closures[1].digest
    for files, closure, expected in zip(trees, closures, (in_base, in_head), strict=True):
        arm = arm_of(tmp_path, files)
        for path in closure.data:
            file = tmp_path / arm.label / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(files[path])
        arm.loader.expect_effects((module, key, lazy) for (module, key), lazy in closure.effects.items())
        assert arm.get("pkg.m:f")(2) == expected


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ({"r": TABLE, "ops": "x = 1\n"}, {"r": TABLE, "ops": "from .r import R\nR['q'] = 1\n"}),  # reached by nobody
        ({"ops": "import logging\nlogging.captureWarnings(True)\n"}, {"ops": ""}),
        ({"ops": "print(1)\n"}, {"ops": "def unused():\n    import os\n    os.environ['A'] = '1'\n"}),
        ({"ops": ""}, {"ops": "import os\nos.environ['A'] = '1'\n"}),  # set up in a file that holds none of the code
        (
            {"m": "from . import h\ndef f(x): return h.q(x)\n"},
            {"m": "import torch\ntorch.cuda.set_stream = None\nfrom . import h\ndef f(x): return h.q(x)\n"},
        ),
        ({"ops": ""}, {"ops": "import torch\ndef warm(x): torch.add(x, 1, out=x)\nwarm(torch.zeros(1))\n"}),  # warm-up
        (
            {"h": PLAIN_H + LATER.format(1)},
            {"h": PLAIN_H + LATER.format(2)},
        ),  # a function that is made, and called later
        ({"k.json": "1"}, {"k.json": "2"}),
    ],
)
def test_what_importing_does_to_others_does_not_count(base: dict[str, str], head: dict[str, str]) -> None:
    common = {"m": "from . import ops, h\ndef f(x): return h.q(x)\n", "h": PLAIN_H, "ops": ""}
    one, other = _closure(_tree(common, base)), _closure(_tree(common, head))
    assert one.digest == other.digest
    assert one.lines == other.lines == 3


# -- whole runs -------------------------------------------------------------------------------------------------------

CASE_FILE = """
from difftest.target import Case, Target

def cases():
    for number in range(3):
        yield Case(f"{number}", lambda number=number: {"x": number})

TARGETS = tuple(Target(f"small.{name}", (f"{name}.m:f",), cases) for name in NAMES)
"""

F = "def f(x): return x\n"
NUMBERED = "import os\nos.environ.setdefault('QQ', '1')\n" + F
TRIES = "try:\n    from .h import q\nexcept ImportError:\n    def q(x): return -x\ndef f(x): return q(x)\n"
TRIES_LATE = (
    "def f(x):\n    try:\n        from . import h\n    except ImportError:\n        return -x\n    return h.q(x)\n"
)
MISSING = "from .h import gone\ndef f(x): return gone(x)\n"
# name: (base, head, verdict, part of the reason or of the mismatch)
RUNS: dict[str, tuple[dict[str, str], dict[str, str], str, str]] = {
    "undefined": ({"m": F}, {"m": "k = nowhere\ndef f(x): return x + k\n"}, "different", "head cannot be loaded: NameError"),
    "inner": (
        {"m": USES, "h": PLAIN_H},
        {"m": USES, "h": "def q(x): return x * k\nk = 1 // 0\n"},
        "different",
        "ZeroDivisionError",
    ),
    "gone": ({"m": MISSING, "h": "def gone(x): return x\n"}, {"m": MISSING, "h": "x = 1\n"}, "different", "gone"),
    "lazily": (
        {"m": "def f(x):\n    from .h import q\n    return q(x)\n", "h": PLAIN_H},
        {"m": "def f(x):\n    from .h import q\n    return q(x)\n", "h": ""},
        "different",
        "cannot import name",
    ),
    "typo": ({"m": F}, {"m": "from .helpr import k\ndef f(x): return x + k\n"}, "different", "helpr"),
    "third": ({"m": F}, {"m": "import no_such_package as n\ndef f(x): return n.k(x)\n"}, "unmeasured", "no_such_package"),
    "compiled": ({"m": F}, {"m": "from ._C import k\ndef f(x): return x + k\n"}, "unmeasured", "_C"),
    "settings": ({"m": F}, {"m": NUMBERED}, "unmeasured", "os.environ.setdefault('QQ', '1')"),
    "tried": ({"m": TRIES, "h": PLAIN_H}, {"m": TRIES, "h": PLAIN_H + "raise ImportError('no')\n"}, "unmeasured", "head tried/h.py:2 raise ImportError('no')"),
    "tried_late": ({"m": TRIES_LATE, "h": PLAIN_H}, {"m": TRIES_LATE, "h": "import no_such_package\n" + PLAIN_H}, "unmeasured", "import no_such_package"),
    "tried_well": ({"m": TRIES, "h": PLAIN_H}, {"m": TRIES, "h": "import json\nfrom . import m\n" + PLAIN_H}, "identical", ""),
    "names": (
        {"m": "import pathlib\nclass K: pass\ndef f(x): return pathlib.Path(__file__), __name__, str(K), K.__module__, __file__, {K.__module__: 1}\n"},
        {"m": "import pathlib\nclass K: pass\ndef f(x): return pathlib.Path(__file__), __name__, str(K) + '', K.__module__, __file__, {K.__module__: 1}\n"},
        "identical",
        "",
    ),
    "data": ({"m": READ_JSON, "k.json": "2"}, {"m": READ_JSON, "k.json": "3"}, "different", "value"),
    "broken": ({"m": "k = nowhere\ndef f(x): return x + k\n"}, {"m": F}, "unmeasured", "base cannot be loaded"),
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    root = tmp_path_factory.mktemp("runs")
    for name, (base, head, _, _) in RUNS.items():
        for arm, files in (("base", base), ("head", head)):
            for path, text in _tree(files).items():
                file = root / arm / name / path.removeprefix("pkg/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(textwrap.dedent(text))
    (root / "cases.py").write_text(f"NAMES = {list(RUNS)!r}\n{CASE_FILE}")
    return run(
        RunOptions(
            str(root / "base"),
            (str(root / "head"),),
            cases_from=(root / "cases.py",),
            targets=("small.*",),
            cache=root / "cache",
            jobs=1,
        )
    )


@pytest.mark.parametrize("name", RUNS)
def test_loading_is_told_right(name: str, result: RunResult) -> None:
    found: TargetResult = next(t for t in result.targets if t.name == f"small.{name}")
    *_, verdict, text = RUNS[name]
    said = [found.reason, *(f"{m.kind} {m.base} {m.head}" for m in found.mismatches)]
    assert found.verdict == verdict, said
    assert any(text in line for line in said), said


def test_facts_are_kept_where_the_run_was_told(tmp_path: Path) -> None:
    (tmp_path / "base/pkg").mkdir(parents=True)
    (tmp_path / "base/pkg/__init__.py").write_text("")
    (tmp_path / "base/pkg/m.py").write_text(F)
    (tmp_path / "cases.py").write_text("NAMES = ['pkg']\n" + CASE_FILE)
    same = str(tmp_path / "base")
    run(RunOptions(same, (same,), cases_from=(tmp_path / "cases.py",), targets=("small.pkg",), cache=tmp_path / "c"))
    gc.collect()  # they are written when nothing uses them any more
    assert list((tmp_path / "c/facts").rglob("*pkg.m.json"))
