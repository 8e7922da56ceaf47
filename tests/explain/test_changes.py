"""Which lines two closures are said to differ in."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import pytest

from difftest.explain.changes import closure_changes, lines_to_trace, marked
from difftest.lift.closure import Closure, Sources, find_closure
from difftest.lift.standins import StandIns
from difftest.result import Change, ChangedLine

Files = Mapping[str, str]


def closure(files: Files, symbol: str) -> tuple[Closure, Mapping[str, bytes]]:
    texts = {path: textwrap.dedent(text).lstrip("\n").encode() for path, text in files.items()}

    def find(name: str) -> tuple[str | None, bool] | None:
        path = f"{name.replace('.', '/')}.py"
        return (path, False) if path in texts else (None, True) if name == "pack" else None

    return find_closure(Sources(find, texts.get), [symbol], StandIns({})), texts


def changes(base: Files, head: Files, symbol: str = "pack.a:f") -> tuple[Change, ...]:
    (left, left_texts), (right, right_texts) = closure(base, symbol), closure(head, symbol)
    return closure_changes(left, right, left_texts.get, right_texts.get)


def shown(change: Change) -> list[str]:
    return [f"{line.sign}{line.base or ''}/{line.head or ''} {line.text}" for line in change.lines]


BASE = {
    "pack/a.py": """
    import math

    LIMIT = 4

    def helper(x):
        return x + 1

    def unused(x):
        return 0

    def f(x):
        y = helper(x)
        return min(y, LIMIT)
    """
}


def edited(old: str, new: str) -> Files:
    assert old in BASE["pack/a.py"]
    return {"pack/a.py": BASE["pack/a.py"].replace(old, new)}


def test_a_changed_line_has_its_true_numbers_in_both_files() -> None:
    head = edited("import math\n", "import math\n    import os\n    import sys\n")
    head = {"pack/a.py": head["pack/a.py"].replace("x + 1", "x + 2")}
    (change,) = changes(BASE, head)
    assert (change.symbol, change.status, change.head_path) == ("pack.a:helper", "changed", "pack/a.py")
    assert shown(change) == [" 5/7 def helper(x):", "-6/     return x + 1", "+/8     return x + 2"]


def test_code_that_the_target_does_not_reach_is_no_change() -> None:
    assert changes(BASE, edited("return 0", "return 1")) == ()


def test_added_and_removed_definitions() -> None:
    head = edited("def helper(x):\n        return x + 1", "def other(x):\n        return x - 1")
    head = {"pack/a.py": head["pack/a.py"].replace("helper(x)\n", "other(x)\n")}
    found = {change.symbol: change.status for change in changes(BASE, head)}
    assert found == {"pack.a:f": "changed", "pack.a:other": "added", "pack.a:helper": "removed"}


def test_a_definition_that_only_moved_is_not_listed() -> None:
    head = {
        "pack/b.py": "def helper(x):\n    return x + 1\n",
        "pack/a.py": BASE["pack/a.py"].replace("def helper(x):\n        return x + 1", "from pack.b import helper"),
    }
    assert [change.symbol for change in changes(BASE, head)] == []
    moved = {**head, "pack/b.py": "def helper(x):\n    return x + 9\n"}
    symbols = [change for change in changes(BASE, moved) if "+ 9" in " ".join(shown(change))]
    assert [(c.base_path, c.head_path) for c in symbols] == [("pack/a.py", "pack/b.py")]


def test_a_class_does_not_repeat_the_lines_of_its_methods() -> None:
    base = {"pack/a.py": "class f:\n    limit = 3\n\n    def __init__(self):\n        self.x = 1\n"}
    head = {"pack/a.py": "class f:\n    limit = 4\n\n    def __init__(self):\n        self.x = 2\n"}
    found = {change.symbol: shown(change) for change in changes(base, head)}
    assert "-2/     limit = 3" in found["pack.a:f"]
    assert not any("self.x" in line for line in found["pack.a:f"])
    assert "+/5         self.x = 2" in found["pack.a:f.__init__"]


def test_lines_are_marked_by_who_ran_them() -> None:
    found = changes(BASE, edited("y = helper(x)", "y = helper(x)\n        if y > 2:\n            y = 9"))
    watched = lines_to_trace(found)
    assert set(watched["head"]["pack/a.py"]) >= {13, 14}
    ran = {"head": {"pack/a.py": {12: "both", 13: "both", 14: "differing"}}, "base": {}}
    (change,) = marked(found, ran, {"head": {"pack/a.py": {12, 13, 14}}})
    assert [(line.head, line.ran) for line in change.lines if line.sign == "+"] == [(13, "both"), (14, "differing")]
    (change,) = marked(found, ran, {"head": {"pack/a.py": {13}}})  # the other ran when the function was made, say
    assert [(line.head, line.ran) for line in change.lines if line.sign == "+"] == [(13, "both"), (14, "")]


def test_very_long_changes_are_cut_and_counted() -> None:
    body = "\n".join(f"        x += {n}" for n in range(1000))
    found = changes(BASE, edited("y = helper(x)", f"y = helper(x)\n{body}"))
    (change,) = found
    assert change.cut > 800
    assert len(change.lines) + change.cut >= 1000


def test_lines_of_an_arm_that_was_not_traced_carry_no_mark() -> None:
    lines = (ChangedLine("-", 3, None, "x = 1"), ChangedLine("+", None, 3, "x = 2"))
    (change,) = marked(
        [Change("m:f", "changed", "m.py", "m.py", lines)],
        {"head": {"m.py": {3: "differing"}}, "base": {}},
        {"base": {"m.py": {3}}, "head": {"m.py": {3}}},
    )
    assert [line.ran for line in change.lines] == ["", "differing"]


def test_what_is_loaded_imported_and_called_is_told_apart() -> None:
    text = BASE["pack/a.py"]
    head = {"pack/a.py": text.replace("LIMIT = 4", "LIMIT = 5").replace("x + 1", "x + 2").replace("math", "cmath")}
    base = {"pack/a.py": text.replace("y, LIMIT", "y, LIMIT, math.inf")}
    head["pack/a.py"] = head["pack/a.py"].replace("y, LIMIT", "y, LIMIT, cmath.inf")
    runs = {change.symbol.partition(":")[2]: change.runs for change in changes(base, head)}
    assert (runs["LIMIT"], runs["helper"], runs["f"]) == ("load", "call", "call")
    assert {runs[name] for name in runs if "math" in name} <= {"import"}


@pytest.mark.parametrize(
    ("base", "head", "runs"),
    [
        ("@lru_cache(1)\ndef helper(x):\n    return x", "@lru_cache(2)\ndef helper(x):\n    return x", "load"),
        ("def helper(x):\n    return x", "@lru_cache\ndef helper(x):\n    return x", "load"),
        ("def helper(x, y=1):\n    return x", "def helper(\n    x,\n    y=2,\n):\n    return x", "load"),
        ("def helper(x, y=1): return x", "def helper(x, y=2): return x", "call"),
        ("def helper(x, y=1):\n    return x", "def helper(x, y=2):\n    return y", "call"),
        ("def helper(x):\n    return x", "def helper(x):\n    return -x", "call"),
    ],
)  # fmt: skip
def test_decorators_and_defaults_run_when_a_function_is_loaded(base: str, head: str, runs: str) -> None:
    files = [
        {"pack/a.py": f"from functools import lru_cache\n\n{helper}\n\ndef f(x):\n    return helper(x)\n"}
        for helper in (base, head)
    ]
    (change,) = [change for change in changes(*files) if change.symbol == "pack.a:helper"]
    assert change.runs == runs


def test_a_constant_is_run_by_every_case() -> None:
    found = changes(BASE, edited("LIMIT = 4", "LIMIT = 5"))
    (change,) = marked(found, {"head": {"pack/a.py": {1: "differing"}}, "base": {"pack/a.py": {1: "differing"}}}, {})
    assert {line.ran for line in change.lines if line.sign != " "} == {"both"}


def test_what_no_call_can_run_carries_no_mark() -> None:
    lines = tuple(
        ChangedLine("+", None, n, text) for n, text in ((3, "else:"), (4, "    x = 2"), (5, "    limit: int,"))
    )
    change = Change("m:f", "changed", "m.py", "m.py", lines)
    (change,) = marked([change], {"head": {"m.py": {9: "both"}}}, {"head": {"m.py": {4}}})
    assert [line.ran for line in change.lines] == ["", "none", ""]


def test_lines_are_counted_as_python_counts_them() -> None:
    old = "import math\n\f\n# a page, \u2028 and \x85 in a comment\ndef f(x):\n    return x\n"
    (change,) = changes({"pack/a.py": old}, {"pack/a.py": old.replace("return x", "return -x")})
    assert shown(change)[-2:] == ["-5/     return x", "+/5     return -x"]
