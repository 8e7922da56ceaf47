"""What `difftest run` says about the demonstration trees, end to end: verdicts, exit codes, the JSON result."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from difftest import api
from difftest.demo import make_repository
from difftest.errors import NotWritten, UsageError
from difftest.reports.sentence import sentence
from difftest.reports.words import exercise_lines
from difftest.result import RunResult, TargetResult
from difftest.run import found as found_cases
from difftest.shrink import reproducer

PARSE_OUTPUT = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "sampler"
    make_repository(folder)
    return folder


@pytest.fixture(scope="module")
def options(repository: Path) -> api.RunOptions:
    return api.RunOptions(
        base="base", heads=("faster",), repo=repository, targets=("v1.parse_output",), examples=300, explain=False
    )


def only(result: RunResult) -> TargetResult:
    (target,) = result.targets
    return target


def test_an_equivalent_head_is_identical_because_it_was_executed(options: api.RunOptions) -> None:
    result = api.run(options)
    target = only(result)
    assert (result.verdict, result.exit_code, target.code) == ("identical", 0, "changed")
    assert target.cases.executed == target.cases.identical == 300
    assert "--examples 300: 2260 further cases of the grid left out" in target.notes
    assert ", further cases left out by --examples 300; base" in sentence(result)
    assert target.aa == {"cases": 300, "differences": 0}
    assert target.symbol == {"base": PARSE_OUTPUT, "head": PARSE_OUTPUT}


def test_the_same_code_is_not_executed(options: api.RunOptions) -> None:
    target = only(api.run(replace(options, heads=("extra-draw",))))
    assert (target.verdict, target.code, target.mode, target.cases.executed) == ("identical", "same", "not executed", 0)


def test_the_same_code_is_executed_on_request(options: api.RunOptions) -> None:
    target = only(api.run(replace(options, heads=("extra-draw",), execute_same=True)))
    assert (target.verdict, target.code, target.cases.executed) == ("identical", "same", 300)


UNBUILDABLE = """
import torch
from difftest.target import Case, Target

def cases():
    for number in range(12):
        def build(number=number):
            if number == 3:
                raise OSError("no such file: weights")
            return {"output_token_ids": torch.full((2, 2), number), "vocab_size": 8}
        yield Case(f"{number} ids", build)

TARGETS = (Target("user.parse", ("vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output",), cases),)
"""


def test_a_case_that_cannot_be_built_is_not_measured_and_the_others_are(
    options: api.RunOptions, tmp_path: Path
) -> None:
    file = tmp_path / "cases.py"
    file.write_text(UNBUILDABLE)
    target = only(api.run(replace(options, targets=("user.parse",), cases_from=(file,), examples=None)))
    assert target.verdict == "unmeasured"
    assert target.reason == "1 of 12 cases: the case '3 ids' cannot be built: OSError: no such file: weights"
    assert target.cases.identical == 11


def test_a_bug_is_different_and_shown(options: api.RunOptions) -> None:
    result = api.run(replace(options, heads=("subtle-bug",), examples=None))
    target = only(result)
    assert (result.verdict, result.exit_code) == ("different", 1)
    first = target.mismatches[0]
    assert first.leaf.startswith("return[0]")
    assert target.cases.different + target.cases.identical + target.cases.unmeasured == target.cases.executed
    assert target.mismatches_total >= len(target.mismatches)
    assert sum(target.kinds.values()) == target.mismatches_total


@pytest.mark.parametrize(
    ("base", "head", "said"), [("subtle-bug", "faster", 1), ("base", "subtle-bug", 0), ("subtle-bug", "base", 0)]
)
def test_what_base_gained_since_the_two_parted_is_said_to_count(
    options: api.RunOptions, base: str, head: str, said: int
) -> None:
    result = api.run(replace(options, base=base, heads=(head,), examples=None))
    assert result.verdict == "different"
    assert len([note for note in result.notes if f"{base} has commits that {head} lacks" in note]) == said


def test_one_case_can_be_run_again_by_its_id(options: api.RunOptions) -> None:
    found = only(api.run(replace(options, heads=("subtle-bug",), examples=None))).mismatches[0]
    target = only(api.run(replace(options, heads=("subtle-bug",), examples=None, case=found.case)))
    assert target.cases.executed == target.cases.different == 1
    assert target.mismatches[0] == found


def test_a_full_output_folder_leaves_the_result(
    options: api.RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reproducer.shutil, "copyfile", full)
    monkeypatch.setattr(found_cases, "write_atomic", full)
    asked = replace(options, heads=("subtle-bug",), cases=("grid", "fuzz"), out=tmp_path / "out", shrink=1.0)
    with pytest.raises(NotWritten, match="No space left on device; name another --out") as caught:
        api.run(asked)
    result = caught.value.result
    assert caught.value.exit_code == 2
    assert (result.verdict, only(result).cases.different > 0) == ("different", True)
    (target,) = result.targets
    assert all("cannot be written" in reduced.reason for reduced in target.reduced) and target.reduced
    assert any("not kept as a file" in note for note in target.notes)
    assert any("/fuzz/" in note for note in result.notes) and len(result.notes) == len(set(result.notes))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nope", "--target nope matches nothing; `difftest targets` lists the catalog"),
        ("v1.parseoutput", "--target v1.parseoutput matches nothing; close: v1.parse_output"),
        ("parse_output", "--target parse_output matches nothing; close: v1.parse_output"),
        ("sample", "--target sample matches nothing; close: v1.rejection_sample, v1.sample"),
        ("", "--target  matches nothing; `difftest targets` lists the catalog"),
        ("from_logits", "--target from_logits matches nothing; close: v2.sampling_mask"),
    ],
)
def test_a_target_that_is_none_is_answered_with_what_may_be_meant(
    options: api.RunOptions, target: str, said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        api.run(replace(options, targets=(target,)))


def test_an_unknown_case_of_a_named_target_is_refused_though_the_code_is_the_same(options: api.RunOptions) -> None:
    with pytest.raises(UsageError, match="no such case"):
        api.run(replace(options, heads=(options.base,), case="0000000000000000"))


def test_a_host_that_is_not_installed_is_refused(options: api.RunOptions) -> None:
    with pytest.raises(UsageError, match="--host absent_package: no package absent_package is installed here"):
        api.run(replace(options, host="absent_package"))


def test_a_new_required_argument_is_unmeasured_and_named(options: api.RunOptions) -> None:
    result = api.run(replace(options, heads=("signature",)))
    target = only(result)
    assert (result.verdict, result.exit_code) == ("unmeasured", 3)
    assert target.reason.startswith("api-change:")
    assert "eos_token_ids" in target.reason


def test_several_heads_give_one_entry_each(options: api.RunOptions) -> None:
    result = api.run(replace(options, heads=("faster", "subtle-bug", "signature"), examples=None))
    assert [(t.head, t.verdict) for t in result.targets] == [
        ("faster", "identical"),
        ("subtle-bug", "different"),
        ("signature", "unmeasured"),
    ]
    assert result.verdict == "different"


def test_a_raw_symbol_selects_the_target_that_observes_it(options: api.RunOptions) -> None:
    method = only(api.run(replace(options, targets=(PARSE_OUTPUT,))))
    helper = api.run(replace(options, targets=("vllm.v1.sample.rejection_sampler:PLACEHOLDER_TOKEN_ID",)))
    assert method.name == "v1.parse_output"
    assert "v1.parse_output" in {t.name for t in helper.targets}


def test_inputs_outside_the_contract_can_be_left_out(options: api.RunOptions) -> None:
    everything = only(api.run(replace(options, heads=("subtle-bug",), examples=None)))
    inside = only(api.run(replace(options, heads=("subtle-bug",), examples=None, contract="inside")))
    outside = only(api.run(replace(options, heads=("subtle-bug",), examples=None, contract="outside")))
    assert everything.outside_contract == outside.outside_contract > 0
    assert inside.cases.executed + outside.cases.executed == everything.cases.executed
    assert 0 < inside.cases.executed < everything.cases.executed
    assert all(m.contract for m in inside.mismatches)


def test_the_worktree_is_compared_as_it_is_on_disk(repository: Path, options: api.RunOptions) -> None:
    path = repository / "vllm/v1/sample/rejection_sampler.py"
    text = path.read_text()
    try:
        path.write_text(text.replace("< vocab_size", "<= vocab_size"))
        result = api.run(replace(options, heads=("WORKTREE",), examples=None))
    finally:
        path.write_text(text)
    assert result.heads[0].kind == "worktree"
    assert result.heads[0].details["dirty"] is True
    assert result.verdict == "different"


def test_the_json_result_follows_the_schema(options: api.RunOptions, tmp_path: Path) -> None:
    result = api.run(replace(options, heads=("subtle-bug", "signature"), examples=None))
    reports = importlib.import_module("difftest.reports")
    path = tmp_path / "result.json"
    reports.write(result, "json", path)
    data = json.loads(path.read_text())
    jsonschema.validate(data, json.loads((resources.files("difftest") / "schema" / "run.json").read_text()))
    assert data["schema"] == "difftest.run/1"
    assert data["base"]["kind"] == "git"


def test_the_job_count_does_not_change_what_is_found(options: api.RunOptions) -> None:
    one, two = (only(api.run(replace(options, heads=("subtle-bug",), examples=None, jobs=jobs))) for jobs in (1, 2))
    assert one.cases == two.cases
    assert one.kinds == two.kinds
    assert {m.case for m in one.mismatches} == {m.case for m in two.mismatches}


@pytest.mark.parametrize("field", [{"exceptions": "loosely"}, {"budget": 0.0}, {"heads": ()}])
def test_a_request_that_makes_no_sense_is_refused(options: api.RunOptions, field: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        api.run(replace(options, **field))  # type: ignore[arg-type]


RAISING_CASES = """
import torch
from difftest.target import Case, Target

SYMBOL = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"


def cases():
    for number in range(8):
        broken = number < {broken}
        def build(number=number, broken=broken):
            ids = torch.full((2, 3), number, dtype=torch.int32)
            return {{"output_token_ids": ids, "vocab_size": 10, "discard_req_indices": [99] if broken else []}}
        yield Case(f"case {{number}}", build, contract={contract})


TARGETS = (Target("user.raising", (SYMBOL,), cases),)
"""


@pytest.mark.parametrize(
    ("broken", "contract", "verdict", "identical"),
    [(8, True, "unmeasured", 0), (8, False, "unmeasured", 8), (2, True, "identical", 6), (6, True, "unmeasured", 2)],
)
def test_cases_in_which_both_arms_raise_alike_prove_nothing(
    options: api.RunOptions, tmp_path: Path, broken: int, contract: bool, verdict: str, identical: int
) -> None:
    path = tmp_path / "raising_cases.py"
    path.write_text(RAISING_CASES.format(broken=broken, contract=contract))
    target = only(api.run(replace(options, targets=("user.raising",), cases_from=(path,))))
    alike = 0 if contract else broken  # what production sends does not raise, so that it counts as nothing
    assert (target.verdict, target.cases.identical, target.both_raised) == (verdict, identical, alike)
    if verdict == "unmeasured":
        assert "not exercised" in target.reason


def test_the_lines_that_no_case_executes_are_told(options: api.RunOptions) -> None:
    result = api.run(replace(options, lines=True))
    closure = only(result).closure
    for arm in ("base", "head"):
        seen = closure[arm]["exercise"]
        assert 0 < seen["executed"] <= seen["lines"]
        assert bool(seen["missed"]) == (seen["executed"] < seen["lines"])
    assert only(result).cases.identical == 300
    (said,) = exercise_lines(result)
    assert said.startswith("v1.parse_output: 300 cases over ")


COMPILED = """
import torch


@torch.compile(dynamic={dynamic})
def twice(logits: torch.Tensor) -> torch.Tensor:
    return logits * {factor}
"""


@pytest.mark.parametrize(("dynamic", "factor", "said"), [("False", "2", True), ("True", "2.0", False)])
def test_a_changed_decorator_that_compiles_is_said_not_to_be_exercised(
    tmp_path: Path, dynamic: str, factor: str, said: bool
) -> None:
    for arm, text in (("base", ("True", "2")), ("head", (dynamic, factor))):
        (tmp_path / arm / "own").mkdir(parents=True)
        code = COMPILED.format(dynamic=text[0], factor=text[1])
        (tmp_path / arm / "own" / "__init__.py").write_text(code)
    arms = str(tmp_path / "base"), (str(tmp_path / "head"),)
    target = only(api.run(api.RunOptions(*arms, targets=("own:twice",), examples=5, explain=False, jobs=1)))
    assert (target.code, target.verdict) == ("changed", "identical")
    assert "torch.compile'd functions ran eagerly: twice" in target.notes
    assert any("how torch.compile is told to compile twice was not exercised" in note for note in target.notes) is said


def test_lines_without_coverage_py_is_refused(options: api.RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "coverage" else find(name, *a))
    with pytest.raises(UsageError, match=r"needs coverage\.py"):
        api.run(replace(options, lines=True))


def test_each_kind_and_place_is_shown_before_a_second_of_any() -> None:
    many = [{"kind": "value", "leaf": f"logits[{n}]", "place": "logits[*]", "number": n} for n in range(40)]
    rare = {"kind": "rng", "leaf": "rng.torch", "place": "rng.torch", "number": 40}
    shown = api._shown([*many, rare])
    assert len(shown) == 20
    assert shown[0] == many[0] and shown[-1] == rare


def test_a_target_is_where_what_it_needs_is(options: api.RunOptions, tmp_path: Path) -> None:
    sampler = "vllm.v1.sample.rejection_sampler"
    (tmp_path / "parts.py").write_text(f"""
from difftest.cases.v1_parse_output import TARGETS as ALL
from dataclasses import replace

whole = next(target for target in ALL if target.name == "v1.parse_output")
TARGETS = (
    replace(whole, name="user.there", needs=("{sampler}:Nothing", "{sampler}:RejectionSampler")),
    replace(whole, name="user.not_there", needs=("{sampler}:Nothing",)),
)
""")
    found = api.run(replace(options, targets=("user.*",), cases_from=(tmp_path / "parts.py",), examples=50))
    assert [target.name for target in found.targets] == ["user.there"]
    (asked,) = api.run(replace(options, targets=("user.not_there",), cases_from=(tmp_path / "parts.py",))).targets
    assert (asked.verdict, asked.reason) == ("unmeasured", f"neither tree defines {sampler}:Nothing")


LATER_CASES = """
import torch
from difftest.errors import ApiChange
from difftest.target import Call, Case, Target

SYMBOL = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"


def cases():
    for number in range(20):
        def build(number=number):
            ids = torch.full((2, 3), number, dtype=torch.int32)
            return {{"output_token_ids": ids, "vocab_size": 10, "later": number < {later}}}
        yield Case(f"case {{number}}", build)


def prepare(arm, pool):
    if pool["later"] and {where}:
        raise ApiChange("the sampler has no later feature")
    function = arm.get(SYMBOL)
    return Call(lambda: function(pool["output_token_ids"], pool["vocab_size"]))


TARGETS = (Target("user.later", (SYMBOL,), cases, prepare),)
"""


@pytest.mark.parametrize(
    ("later", "where", "verdict"),
    [(15, "True", "identical"), (19, "True", "unmeasured"), (15, "arm.label == 'base'", "unmeasured")],
)
def test_cases_of_a_feature_that_neither_version_has_do_not_stain_the_rest(
    options: api.RunOptions, tmp_path: Path, later: int, where: str, verdict: str
) -> None:
    path = tmp_path / "later_cases.py"
    path.write_text(LATER_CASES.format(later=later, where=where))
    target = only(api.run(replace(options, targets=("user.later",), cases_from=(path,))))
    assert (target.verdict, target.cases.identical, target.cases.unmeasured) == (verdict, 20 - later, later)
    assert all("no later feature" in note for note in target.notes)
