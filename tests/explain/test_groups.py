"""Which mismatches belong together, and what their cases are said to have in common."""

from __future__ import annotations

from difftest.explain.groups import case_groups, farthest, in_common, signatures


def test_mismatches_of_the_same_cases_are_one_group_and_the_largest_is_first() -> None:
    told = [
        ("value", "return[]", "ulp", 1, 2, True),
        ("value", "return[]", "ulp", 2, 2, True),
        ("rng", "rng.torch", "different", 3, 1, True),
        ("value", "logprobs", "different", 1, 1, True),
        ("value", "logprobs", "different", 2, 5, False),
    ]
    first, second = case_groups(signatures(told))
    assert [(s.leaf, s.mismatches) for s in first.signatures] == [("logprobs", 6), ("return[]", 4)]
    assert (first.cases, first.outside, first.likeness) == ({1, 2}, {2}, "different")
    assert (second.cases, second.likeness) == ({3}, "different")


def test_the_farthest_class_stands_for_a_group() -> None:
    assert farthest(["ulp", "sign of zero"]) == "ulp"
    assert farthest(["same distribution", "ulp", "set-equal"]) == "same distribution"
    assert farthest(["same distribution", "different"]) == "different"


def axes(**values: str) -> dict[str, str]:
    return values


def test_one_axis_value_that_only_differing_cases_have() -> None:
    differing = [axes(temperature="0", batch=str(n)) for n in range(4)]
    identical = [axes(temperature="1", batch=str(n)) for n in range(6)]
    (rule,) = in_common(differing, identical)
    assert rule == "all 4 differing cases have temperature: 0; none of the 6 identical cases has"


def test_several_values_of_one_axis_and_the_value_that_never_differs() -> None:
    differing = [axes(dtype=each) for each in ("half", "bf16", "float")]
    identical = [axes(dtype="double")] * 3
    assert in_common(differing, identical) == (
        "all 3 differing cases have dtype: not double; none of the 3 identical cases has",
    )


def test_two_axes_together() -> None:
    differing = [axes(temperature="0", seeds="all", batch=b) for b in "12"]
    identical = [
        axes(temperature="0", seeds="none", batch="1"),
        axes(temperature="1", seeds="all", batch="2"),
        axes(temperature="1", seeds="none", batch="1"),
    ]
    (rule,) = in_common(differing, identical)
    assert rule == ("all 2 differing cases have temperature: 0 and seeds: all; none of the 3 identical cases has both")


def test_what_is_necessary_and_what_is_sufficient_when_nothing_is_exact() -> None:
    differing = [axes(k="5", p="0.9")] * 3 + [axes(k="5", p="1")]
    identical = [axes(k="5", p="1")] + [axes(k="none", p="1")] * 5
    assert in_common(differing, identical) == (
        "all 4 differing cases have k: 5; so have 1 of 6 identical ones",
        "3 of 4 differing cases have p: 0.9; no identical case has",
    )


def test_nothing_is_claimed_without_identical_cases_or_without_axes() -> None:
    assert in_common([axes(k="5")] * 3, []) == ()
    assert in_common([{}, {}], [{}]) == ()
    assert in_common([axes(k="5"), axes(k="6")], [axes(k="5"), axes(k="6")]) == ()


def test_cases_without_axes_are_not_counted_as_if_they_had_them() -> None:
    differing = [axes(batch="0")] * 3 + [{}]
    (rule,) = in_common(differing, [axes(batch="1")] * 2)
    assert rule.startswith("all 3 differing cases that have axes have batch: 0;")


def test_one_differing_case_is_not_told_apart_by_two_axes() -> None:
    assert in_common([axes(k="5", p="1")], [axes(k="5", p="2"), axes(k="6", p="1")]) == (
        "the differing case has k: 5; so have 1 of 2 identical ones",
        "the differing case has p: 1; so have 1 of 2 identical ones",
    )
