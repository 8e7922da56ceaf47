"""A change of a class whose instances the cases make is a change of what the target runs."""

from __future__ import annotations

import pytest

from difftest import api
from difftest.result import TargetResult

CASES = """
from difftest.target import Call, Case, Made, Target

CANDIDATES = ("pack.gone:K", "pack.m:Candidate")
STATE = "State"


def case(*values):
    return lambda: [Case(f"number {n}", lambda n=n: {"k": values[n % len(values)], "n": n}) for n in range(3)]


def computed(name):
    return Made(f"pack.m:{name.title()}", {})


def made_late():
    for n in range(3):
        yield Case(f"number {n}", lambda n=n: {"k": Made("pack.m:Late", {"n": n}), "n": n})


def prepared(arm, pool):
    return Call(arm.get("pack.m:f"), args=(arm.make("pack.m:Prepared", {}), pool["n"]))


def plain():
    for n in range(3):
        yield Case(f"number {n}", lambda n=n: {"k": n, "n": n})


def target(name, cases, prepare=None):
    return Target(f"made.{name}", ("pack.m:f",), cases, prepare)


TARGETS = (
    target("constant", case(Made("pack.m:Constant", {}))),
    target("candidate", case(Made(CANDIDATES, {}))),
    target("computed", case(computed("computed"))),
    target("nested", case([{"x": (Made("pack.m:Outer", {"inner": Made("pack.m:Nested", {})}),)}])),
    target("in_a_function", made_late),
    target("prepared", plain, prepared),
    target("none", plain),
)
"""

MODULE = """
class Base:
    def __init__(self, n=0): self.n = n
    def go(self): return VALUE
class Constant(Base): pass
class Candidate(Base): pass
class Computed(Base): pass
class Late(Base): pass
class Nested(Base): pass
class Prepared(Base): pass
class Outer:
    def __init__(self, inner): self.inner = inner
    def go(self): return self.inner.go()
def f(k, n):
    while isinstance(k, (list, tuple, dict)):
        k = k["x"] if isinstance(k, dict) else k[0]
    return k.go() + n if hasattr(k, "go") else n
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TargetResult]:
    folder = tmp_path_factory.mktemp("made")
    for arm, value in (("base", "1"), ("head", "2")):
        (folder / arm / "pack").mkdir(parents=True)
        (folder / arm / "pack/__init__.py").write_text("")
        (folder / arm / "pack/m.py").write_text(MODULE.replace("VALUE", value))
    (folder / "made_cases.py").write_text(CASES)
    options = api.RunOptions(
        base=str(folder / "base"),
        heads=(str(folder / "head"),),
        targets=("made.*",),
        cases_from=(folder / "made_cases.py",),
        jobs=1,
    )
    return {target.name.removeprefix("made."): target for target in api.run(options).targets}


@pytest.mark.parametrize("name", ["constant", "candidate", "computed", "nested", "in_a_function", "prepared"])
def test_what_the_cases_make_counts(results: dict[str, TargetResult], name: str) -> None:
    assert (results[name].code, results[name].verdict) == ("changed", "different")


def test_what_they_do_not_make_does_not_count(results: dict[str, TargetResult]) -> None:
    assert (results["none"].code, results["none"].verdict) == ("same", "identical")
