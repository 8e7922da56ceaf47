"""What a case asks of one version alone is no difference between them, and is not passed over either."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest import api
from difftest.reports.sentence import sentence
from difftest.result import RunResult, TargetResult

CASES = """
from types import SimpleNamespace
import torch
from difftest.target import Call, Case, Target


def cases():
    for number in range(20):
        def build(number=number):
            factor = None if number < 15 else torch.tensor(3.0)
            return {"x": torch.arange(4.0) + number, "factor": factor, "limit": 2 if number == 19 else 1}
        yield Case(f"number {number}", build, contract=number != 3)


class Metadata:
    scale = 2.0


def with_class(arm, pool):
    return Call(arm.get("pack.m:scaled"), args=(pool["x"], Metadata()))


def with_metadata(arm, pool):
    metadata = SimpleNamespace(scale=2.0)
    return Call(arm.get("pack.m:scaled"), args=(pool["x"], metadata))


def with_state(method):
    def prepare(arm, pool):
        state = arm.get("pack.m:State")()
        return Call(lambda: state.more + pool["x"] if method is None else getattr(state, method)(pool["x"]))

    return prepare


def with_counter(arm, pool):
    counter = arm.get("pack.m:Counter")(pool["x"])
    return Call(lambda: counter.more + pool["x"])


TARGETS = (
    Target("own.state", ("pack.m:State",), cases, prepare=with_state(None)),
    Target("own.broken_state", ("pack.m:State",), cases, prepare=with_state("step")),
    Target("own.forgotten", ("pack.m:Counter",), cases, prepare=with_counter),
    Target("own.optional", ("pack.m:optional",), cases),
    Target("own.optional_and_wrong", ("pack.m:optional_and_wrong",), cases),
    Target("own.removed", ("pack.m:removed",), cases),
    Target("own.scaled", ("pack.m:scaled",), cases, prepare=with_metadata),
    Target("own.classed", ("pack.m:scaled",), cases, prepare=with_class),
    Target("own.pinned", ("pack.m:pinned",), cases),
    Target("own.raises", ("pack.m:raises",), cases),
    Target("own.caller", ("pack.m:caller",), cases),
    Target("own.helper", ("pack.m:helper",), cases),
    Target("own.added", ("pack.m:added",), cases),
)
"""

BASE = """
import torch

def optional(x): return x + 1
def optional_and_wrong(x): return x + 1
def removed(x, factor=None): return x + 1 if factor is None else (x + 1) * factor
def scaled(x, metadata): return x * metadata.scale
def pinned(x): return torch.zeros(3) + x[0]
def raises(x):
    if x[0] in (3, 4): raise ValueError("no")
    return x * 2
def caller(x): return x + 1
class State:
    def step(self, x): return x
class Counter:
    def __init__(self, x): self.more = 1
"""

HEAD = """
import torch

def optional(x, factor=None, limit=1): return (x + 1) * limit if factor is None else (x + 1) * factor
def optional_and_wrong(x, factor=None): return x + 2
def removed(x): return x + 1
def scaled(x, metadata): return x * metadata.scale * metadata.more
def pinned(x): return torch.zeros(3, pin_memory=True) + x[0]
def raises(x):
    if x[0] in (3, 4): raise ValueError("no")
    return 2 * x
def helper(x): return x + 1
def caller(x): return helper(x)
def added(x): return x
class State:
    more = 1
    def step(self, x): return x + self.most
class Counter:
    def __init__(self, x):
        if x[0] < 17: self.more = 1
"""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("one-sided")
    for name, text in (("base", BASE), ("head", HEAD)):
        (folder / name / "pack").mkdir(parents=True)
        (folder / name / "pack" / "__init__.py").write_text("")
        (folder / name / "pack" / "m.py").write_text(text)
    (folder / "cases.py").write_text(CASES)
    return {name: str(folder / name) for name in ("base", "head", "cases.py")}


def compared(trees: dict[str, str], *targets: str) -> RunResult:
    return api.run(
        api.RunOptions(trees["base"], (trees["head"],), targets=targets, cases_from=(Path(trees["cases.py"]),))
    )


@pytest.fixture(scope="module")
def found(trees: dict[str, str]) -> RunResult:
    return compared(trees, "own.*")


def of(result: RunResult, name: str) -> TargetResult:
    (target,) = [t for t in result.targets if t.name == name]
    return target


def test_an_argument_that_one_version_alone_takes_is_not_compared(found: RunResult) -> None:
    target = of(found, "own.optional")
    assert target.verdict == "identical" and target.cases.identical == 15 and target.cases.unmeasured == 5
    assert any("api-change: head alone takes factor, which this case gives" in note for note in target.notes)


def test_what_differs_without_it_is_a_difference(found: RunResult) -> None:
    target = of(found, "own.optional_and_wrong")
    assert target.verdict == "different" and (target.cases.different, target.cases.unmeasured) == (15, 5)


def test_what_head_no_longer_takes_is_a_difference(found: RunResult) -> None:
    target = of(found, "own.removed")
    assert target.verdict == "different" and (target.cases.different, target.cases.identical) == (5, 15)
    assert "head takes no factor, which base takes" in target.notes


def test_what_a_case_files_own_object_lacks_is_an_api_change(found: RunResult) -> None:
    for name, kind in (("own.scaled", "SimpleNamespace"), ("own.classed", "Metadata")):
        target = of(found, name)
        assert target.verdict == "unmeasured"
        assert target.reason.startswith(f"api-change: it asks for more, which the case's {kind} lacks")


@pytest.mark.parametrize(("name", "cases"), [("own.broken_state", 20), ("own.forgotten", 3)])
def test_what_a_versions_own_object_lacks_is_a_difference(found: RunResult, name: str, cases: int) -> None:
    """Its own code asks for it, or head has forgotten it for just these inputs."""
    target = of(found, name)
    assert (target.verdict, target.kinds) == ("different", {"exception": cases})


def test_what_a_versions_own_class_never_names_is_an_api_change_where_the_case_asks_for_it(found: RunResult) -> None:
    target = of(found, "own.state")
    assert target.verdict == "unmeasured"
    assert target.reason.startswith("api-change: its State has no more, which the case reads (in base)")


def test_pinned_memory_that_one_version_asks_for_is_said(found: RunResult) -> None:
    target = of(found, "own.pinned")
    assert target.verdict == "identical"
    assert [
        note for note in target.notes if note.startswith("head alone asks for pinned memory, which PyTorch refuses")
    ]
    assert "head alone asks for pinned memory, which PyTorch refuses where there is no accelerator" in sentence(
        RunResult(**{**vars(found), "targets": (target,)})
    )


def test_only_identical_cases_are_said_to_raise_alike(found: RunResult) -> None:
    target = of(found, "own.raises")
    assert (target.cases.identical, target.cases.unmeasured, target.both_raised) == (19, 1, 1)


def test_a_helper_that_head_adds_is_a_note_of_what_runs_it(found: RunResult) -> None:
    assert "own.helper" not in [t.name for t in found.targets]
    said = "own.helper: added in head (pack.m:helper), so base has nothing to compare it with; this target reaches it"
    assert said in of(found, "own.caller").notes
    added = of(found, "own.added")
    assert added.verdict == "unmeasured" and added.reason.startswith("api-change: added in head (pack.m:added)")


@pytest.mark.parametrize("asked", ["own.helper", "pack.m:helper"])
def test_a_helper_that_was_asked_for_is_not_compared(trees: dict[str, str], asked: str) -> None:
    result = compared(trees, "own.caller", asked)
    assert of(result, "own.helper").reason.startswith("api-change: added in head (pack.m:helper)")


def test_a_symbol_of_one_version_that_others_reach_is_said_to_be(trees: dict[str, str]) -> None:
    text = Path(trees["cases.py"]).read_text().replace('    Target("own.helper", ("pack.m:helper",), cases),\n', "")
    path = Path(trees["cases.py"]).with_name("without.py")
    path.write_text(text)
    asked = api.RunOptions(trees["base"], (trees["head"],), targets=("pack.m:helper",), cases_from=(path,))
    (target,) = api.run(asked).targets
    said = "pack.m:helper is in head alone, so there is nothing to compare it with; this target reaches it"
    assert target.name == "own.caller" and said in target.notes
