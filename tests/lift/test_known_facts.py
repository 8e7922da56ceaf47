"""Files of which enough is known are not parsed again, and what is known of them is what parsing them shows."""

from __future__ import annotations

import ast
import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import difftest
from difftest.errors import LiftError
from difftest.lift import source, syntax
from difftest.lift.facts import Facts
from difftest.lift.loader import Loader
from difftest.lift.source import ANY, SourceModule
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIn, StandIns
from difftest.lift.statements import all_nodes, copied
from tests.lift.small_trees import sources_of

FILES = {
    "pkg/__init__.py": "",
    "pkg/used.py": "from pkg import idle\nfrom pkg.renamed import *\n\ndef f():\n    return TWO\n",
    "pkg/renamed.py": "from pkg.deep import TWO\n",
    "pkg/deep.py": "TWO = 1\nTWO += 1\n",
    "pkg/idle.py": "def g():\n    return 1\n",
}
OWN = sorted(Path(difftest.__file__).parent.rglob("*.py"))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that are parsed from here on."""
    paths: list[str] = []

    def parse(data: bytes, path: str = "") -> ast.Module:
        paths.append(path)
        return syntax.parse(data, path)

    monkeypatch.setattr(source, "parse", parse)
    return paths


def loader_of(
    files: dict[str, str], known: dict[str, dict[str, Any]], label: str, folder: Path, *standins: StandIn
) -> Loader:
    plain = sources_of(files)
    sources = Sources(plain._find, plain._read, known=known)
    sources._blob = lambda path: path  # files are loaded when they are asked for, as in a child
    return Loader(label, sources, StandIns({s.name: s for s in standins}), lambda module: str(folder / module.path))


def test_only_files_that_run_lines_are_parsed_again(tmp_path: Path, parsed: list[str]) -> None:
    planned = sources_of(FILES)
    for name in ("pkg", "pkg.used", "pkg.renamed", "pkg.deep", "pkg.idle"):
        facts = planned.facts(name)
        assert facts is not None
        assert facts.bindings is not None and facts.stars is not None and not facts.computed
    known = planned.known(("file", "imports", "member", "replaces"))
    parsed.clear()
    module: Any = loader_of(FILES, known, "known", tmp_path).module("pkg.used")
    assert module.f() == 2
    assert sorted(parsed) == ["pkg/deep.py", "pkg/renamed.py", "pkg/used.py"]
    parsed.clear()
    unknown: Any = loader_of(FILES, {}, "unknown", tmp_path).module("pkg.used")
    assert unknown.f() == 2 and set(parsed) == {"pkg/__init__.py", "pkg/deep.py", "pkg/renamed.py", "pkg/used.py"}


def test_a_file_that_a_stand_in_replaces_need_not_be_python(tmp_path: Path, parsed: list[str]) -> None:
    files = FILES | {
        "pkg/idle.py": "def g(:\n",
        "pkg/used.py": "from pkg import idle\n\ndef f():\n    return idle.g()\n",
    }
    standin = StandIn("pkg.idle", lambda: {"g": lambda: 3})
    module: Any = loader_of(files, {}, "whole", tmp_path, standin).module("pkg.used")
    assert module.f() == 3 and "pkg/idle.py" not in parsed
    with pytest.raises(LiftError, match=r"pkg/idle\.py cannot be parsed"):
        loader_of(files, {}, "broken", tmp_path).module("pkg.idle")


@pytest.mark.parametrize("at", [[], ["1"], 3, None, {"a": 1}])
def test_damaged_bindings_are_found_again(at: object) -> None:
    module = SourceModule("m", "m.py", b"x = 1\ny = 2\n", False)
    facts = Facts("m", "m.py", False, lambda lazy: module, {"file": {"bindings": {"x": at}}})
    assert facts.last_binding("y") == 1 and facts.source.bindings == {"x": [0], "y": [1]}


def test_names_of_a_statement_are_those_that_it_binds_or_changes() -> None:
    statements = 0
    for path in OWN:
        module = SourceModule("m", str(path), path.read_bytes(), False)
        for index, node in enumerate(module.statements):
            known = module.bindings.keys() | {ANY}
            assert module.names_of(index) == (module.binds(node) | module.effects(node)) & known, (path, index)
            statements += 1
    assert statements > 1000


SYNTAX = """
def f(a, /, b: "int" = 1, *args: int, c=2, d, **rest) -> "str":
    global g
    match a:
        case {"k": None, **others} | [1, *_] | Point(x=0, y=True) | (Kind.VALUE as name) if name:
            return {**a, "k": lambda *, x, y=1: (x, y)}
    async with b as (c, d), e: ...
    return f"{a!r:>{b}} {c}", [i async for i in a if i], not -a ** b, a < b <= c, a if b else c, a[1:2, ...], (w := 1)
try: pass
except* (A, B) as error: raise C from error
"""


def texts() -> list[str]:
    return [SYNTAX.replace("async with", "with").replace("i async for", "i for"), *(p.read_text() for p in OWN)]


def test_all_nodes_are_those_that_ast_walks() -> None:
    left_out = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
    for text in texts():
        tree = ast.parse(text)
        walked = [node for node in ast.walk(tree) if not isinstance(node, left_out)]
        assert {id(node) for node in walked} == {id(node) for node in all_nodes(tree)}
        assert len(walked) == len(all_nodes(tree))


def test_a_copy_of_a_node_is_what_copy_makes() -> None:
    for text in texts():
        tree = ast.parse(text)
        new = copied(tree)
        dumped = [ast.dump(each, include_attributes=True) for each in (tree, new, copy.deepcopy(tree))]
        assert len(set(dumped)) == 1
        assert not {id(node) for node in all_nodes(tree)} & {id(node) for node in all_nodes(new)}


def test_kept_trees_are_no_work_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    syntax.parse(b"x = [1, 2]")
    assert gc.get_freeze_count() == before and gc.isenabled()
    monkeypatch.setattr(syntax, "_kept", True)
    try:
        tree = syntax.parse(b"x = [1, 2]")
        assert gc.get_freeze_count() > before and gc.isenabled()
        assert not any(found is tree for found in gc.get_objects())
        with pytest.raises(SyntaxError):
            syntax.parse(b"x = [1, 2")
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def of_kernel(text: str, path: Path) -> Callable[..., Any]:
    path.write_text(text)
    namespace: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), namespace)
    found: Callable[..., Any] = namespace["kernel"]
    return found


def test_what_inspect_finds_is_found_once_a_text(tmp_path: Path) -> None:
    import inspect

    from difftest.call.interpreter_speed import _blocks

    plain = inspect.getblock
    text = "def kernel(a):\n    if a:\n        return 1\n    # said\n    return 2\n\n\nx = 3\n"
    one, other = (of_kernel(t, tmp_path / f"{n}.py") for n, t in enumerate((text, text.replace("return 2", "pass"))))
    expected = [inspect.getsource(each) for each in (one, other)]
    try:
        _blocks()
        for _ in range(2):
            lines, first = inspect.getsourcelines(one)
            assert first == 1
            lines.clear()  # the caller's own
            assert [inspect.getsource(each) for each in (one, other)] == expected
    finally:
        inspect.getblock = plain
