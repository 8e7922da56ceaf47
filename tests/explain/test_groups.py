"""Which mismatches belong together, and what their cases are said to have in common."""

from __future__ import annotations

from difftest.explain.groups import case_groups, farthest, in_common, signatures


def test_mismatches_of_the_same_cases_are_one_group_and_the_largest_is_first() -> None:
    told = [
        ("value", "return[*]", "ulp", "", 1, 2, True),
        ("value", "return[*]", "ulp", "", 2, 2, True),
        ("rng", "rng.torch", "different", "", 3, 1, True),
        ("value", "logprobs", "different", "", 1, 1, True),
        ("value", "logprobs", "different", "", 2, 5, False),
    ]
    first, second = case_groups(signatures(told))
    assert [(s.place, s.mismatches) for s in first.signatures] == [("logprobs", 6), ("return[*]", 4)]
    assert (first.cases, first.outside, first.likeness) == ({1, 2}, {2}, "different")
    assert (second.cases, second.likeness) == ({3}, "different")


RAISES = ("exception", "raised", "different", "base raises IndexError, head returns")


def test_what_a_call_that_raised_left_behind_follows_from_the_exception() -> None:
    told = [
        (*RAISES, 1, 1, True),
        (*RAISES, 2, 1, True),
        ("mutation", "logits", "different", "", 1, 1, True),
        ("mutation", "logits", "ulp", "", 2, 1, True),
        ("rng", "rng.torch", "different", "", 2, 1, True),
    ]
    (group,) = case_groups(signatures(told))
    assert [(s.kind, len(s.cases), s.mismatches) for s in group.signatures] == [
        ("exception", 2, 2),
        ("mutation", 2, 2),
        ("rng", 1, 1),
    ]


def test_the_same_change_where_nothing_was_raised_is_a_group_of_its_own() -> None:
    told = [
        (*RAISES, 1, 1, True),
        ("mutation", "logits", "different", "", 1, 1, True),
        ("mutation", "logits", "different", "", 2, 1, True),
    ]
    first, second = case_groups(signatures(told))
    assert ([s.kind for s in first.signatures], first.cases) == (["exception", "mutation"], {1})
    assert ([s.kind for s in second.signatures], second.cases) == (["mutation"], {2})


def test_other_exceptions_and_other_dtypes_are_other_groups() -> None:
    told = [
        (*RAISES, 1, 1, True),
        ("exception", "raised", "different", "base raises ValueError, head returns", 2, 1, True),
        ("mutation", "logits", "different", "", 2, 1, True),
        ("dtype", "return[1]", "different", "int64 in base, int32 in head", 3, 1, True),
        ("dtype", "return[1]", "different", "int32 in base, int64 in head", 4, 1, True),
    ]
    groups = case_groups(signatures(told))
    assert [group.cases for group in groups] == [{1}, {2}, {3}, {4}]
    assert [len(group.signatures) for group in groups] == [1, 2, 1, 1]


def test_the_farthest_class_stands_for_a_group() -> None:
    assert farthest(["ulp", "sign of zero"]) == "ulp"
    assert farthest(["same distribution", "ulp", "set-equal"]) == "same distribution"
    assert farthest(["same distribution", "different"]) == "different"


def axes(**values: str) -> dict[str, str]:
    return values


def test_one_axis_value_that_only_differing_cases_have() -> None:
    differing = [axes(temperature="0", batch=str(n)) for n in range(4)]
    identical = [axes(temperature="1", batch=str(n)) for n in range(6)]
    condition, (rule,) = in_common(differing, identical)
    assert condition == 'temperature "0"'
    assert rule == 'all 4 cases, but none of the 6 identical cases, have temperature "0"'


def test_several_values_of_one_axis_and_the_value_that_never_differs() -> None:
    differing = [axes(dtype=each) for each in ("half", "bf16", "float")]
    identical = [axes(dtype="double")] * 3
    assert in_common(differing, identical).condition == 'dtype other than "double"'
    assert in_common(differing[:2], [*identical, axes(dtype="float")]).condition == 'dtype "bf16" or "half"'


def test_many_values_of_one_axis_with_a_word_that_some_identical_cases_lack() -> None:
    differing = [axes(ids=f"-1 {where}") for where in ("first", "last", "in the middle", "everywhere")]
    identical = [axes(ids="plain"), axes(ids="none")]
    assert in_common(differing, identical).condition == 'ids with "-1"'
    rule = 'all 4 cases, and 1 of the 3 identical cases, have ids with "-1"'
    assert in_common(differing, [*identical, axes(ids="-1 nowhere")]).rules == (rule,)


def test_two_axes_together() -> None:
    differing = [axes(temperature="0", seeds="all", batch=b) for b in "12"]
    identical = [
        axes(temperature="0", seeds="none", batch="1"),
        axes(temperature="1", seeds="all", batch="2"),
        axes(temperature="1", seeds="none", batch="1"),
    ]
    assert in_common(differing, identical).condition == 'temperature "0", and seeds "all"'


def test_a_rule_that_is_not_exact_may_take_two_axes() -> None:
    differing = [axes(k="5", dtype="half", batch=b) for b in "1234"]
    some = [axes(k="5", dtype="float", batch="1")] * 4 + [axes(k="none", dtype="half", batch="1")] * 4
    identical = [*some, axes(k="5", dtype="half", batch="1"), *[axes(k="none", dtype="float", batch="2")] * 6]
    (rule,) = in_common(differing, identical).rules
    assert rule == 'all 4 cases, and 1 of the 15 identical cases, have k "5", and dtype "half"'


def test_what_is_necessary_and_what_is_sufficient_when_nothing_is_exact() -> None:
    differing = [axes(k="5", p="0.9")] * 3 + [axes(k="5", p="1")]
    identical = [axes(k="5", p="1")] + [axes(k="none", p="1")] * 5
    assert in_common(differing, identical) == (
        "",
        ('all 4 cases, and 1 of the 6 identical cases, have k "5"',),
    )


def test_cases_inside_the_contract_may_have_more_in_common_than_those_outside_share() -> None:
    differing = [axes(dtype=each, k="5") for each in ("half", "bf16", "double")]
    identical = [axes(dtype=each, k="5") for each in ("float", "float", "double")]
    identical += [axes(dtype=each, k="6") for each in ("half", "double", "double")]
    (rule,) = in_common(differing, identical).rules
    assert rule == 'all 3 cases, and 1 of the 6 identical cases, have k "5", and dtype other than "float"'
    condition, (rule,) = in_common(differing, identical, inside=2)
    assert condition == ""
    assert rule.startswith("both cases inside the contract, but none of the 6 identical cases, have ")
    assert in_common(differing, identical, inside=3) == in_common(differing, identical)


def test_nothing_is_claimed_without_identical_cases_or_without_axes() -> None:
    assert in_common([axes(k="5")] * 3, []) == ("", ())
    told = in_common([axes(k="5")] * 3, [axes(k="6")], [axes(k="7"), {}])
    assert told.condition == 'k "5"'
    assert in_common([axes(k="5")] * 3, [axes(k="6")], [axes(k="5")]) == ("", told.rules)
    assert in_common([{}, {}], [{}]) == ("", ())
    assert in_common([axes(k="5"), axes(k="6")], [axes(k="5"), axes(k="6")]) == ("", ())


def test_cases_without_axes_are_not_counted_as_if_they_had_them() -> None:
    differing = [axes(batch="0")] * 3 + [{}]
    condition, (rule,) = in_common(differing, [axes(batch="1")] * 2)
    assert rule.startswith("all 3 cases whose axes are known, but none of the 2 identical cases,")
    assert condition == ""


def test_of_one_differing_case_only_what_no_identical_one_has_is_said() -> None:
    assert in_common([axes(k="5", p="1")], [axes(k="5", p="2"), axes(k="6", p="1")]) == ("", ())
    found = in_common([axes(k="5", p="1")], [axes(k="6", p="2"), axes(k="6", p="1")])
    assert found == ("", ('the case, but none of the 2 identical cases, has k "5"',))
