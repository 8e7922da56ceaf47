"""What the terminal and the markdown report say of causes: groups, noise, laws, changed lines and who ran them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_results import DIFFERENT, run
from rich.console import Console

from difftest.reports import markdown, terminal
from difftest.reports.causes import (
    both_values,
    cause_words,
    class_words,
    differ_words,
    further_detail,
    group_facts,
    group_title,
    ulp_words,
)
from difftest.reports.changes import change_lines, change_title, legend, line_ranges, telling_changes
from difftest.result import Change, ChangedLine, Group, Mismatch, TargetResult, Way

FIRST = Mismatch(
    case="5d41402abc4b2a76",
    kind="value",
    leaf="return[3]",
    index=(1, 0),
    base="0.5",
    head="0.25",
    count=3,
    contract=True,
    size=64,
    label="batch 4, temperature 0",
    request=1,
    detail=(
        "bits 0x3f000000 against 0x3e800000",
        "8388608 ulp apart",
        "base ... 1  0.5",
        "the oracle agrees with base",
    ),
    byte=16,
    base_hex="0x3f000000",
    head_hex="0x3e800000",
    ulp=8388608.0,
    ulp_largest=8388609.0,
    place="return[*]",
)
GROUP = Group(
    kinds=("value", "rng"),
    leaves=("return[*]", "rng.torch"),
    likeness="same under fixed noise",
    cases=12,
    mismatches=20,
    example="5d41402abc4b2a76",
    label="batch 4, temperature 0",
    outside_contract=3,
    rules=('all 12 differing cases, but none of the 386 identical cases, have temperature "0"',),
    condition='temperature "0"',
    lines=("vllm/a.py:12",),
    ways=(Way("value", "return[*]", "different", "", 12, 12), Way("rng", "rng.torch", "different", "", 8, 8)),
    first=FIRST,
)
CHANGE = Change(
    symbol="vllm.a:f",
    status="changed",
    base_path="vllm/a.py",
    head_path="vllm/a.py",
    lines=(
        ChangedLine(" ", 10, 11, "    x = 1", "both"),
        ChangedLine("-", 11, None, "    return x", "differing"),
        ChangedLine("+", None, 12, "    return -x  # `code` <b> @me", "differing"),
        ChangedLine(" ", 40, 41, "    y = 2", "none"),
    ),
    cut=7,
)
FOUND = replace(
    DIFFERENT,
    groups=(GROUP,),
    changes=(CHANGE,),
    traced={"differing": 2, "identical": 5},
    fixed_noise={"likeness": "same under fixed noise", "said": "all cases agree; base draws 8 numbers"},
    distribution={"likeness": "same distribution", "said": "least p 0.4"},
)


def shown(target: TargetResult, kind: str) -> str:
    result = run(target)
    if kind == "markdown":
        return markdown.render(result)
    console = Console(file=io.StringIO(), width=200)
    terminal.render(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", ["markdown", "terminal"])
def test_a_reader_finds_cause_group_example_lines_noise_and_law(kind: str) -> None:
    text = " ".join(shown(FOUND, kind).replace("`", "").split())
    for said in (
        'Cases with temperature "0" differ, and no identical case is like that: return[*]: values differ but agree',
        "looked at only differing ones run line 12 of vllm/a.py",
        "12 cases: return[*]: values differ but agree when both versions draw the same noise; in 8 of them also",
        "3 of the 12 cases are outside the contract",
        'all 12 differing cases, but none of the 386 identical cases, have temperature "0"',
        "for example return[3][1, 0], request 1",
        "0.5 (0x3f000000)",
        "8.4e06 ulp apart, largest 8.4e06; 3 of 64 elements differ (4.69 %), the first at byte 16",
        "the oracle agrees with base",
        "5d41402abc4b2a76, batch 4, temperature 0, inside the contract",
        "all cases agree; base draws 8 numbers",
        "least p 0.4",
        "f, vllm/a.py",
        "and 7 more lines",
        "2 differing cases and 5 identical cases",
    ):
        assert said in text, said


def test_in_markdown_the_cause_and_the_example_are_not_folded_away() -> None:
    text = shown(FOUND, "markdown")
    openly = text[: text.index("<details>")]
    for said in ("**Likely cause.**", "**1. 12 cases", "0x3f000000", "+! 12", "**Fixed noise.**"):
        assert said in openly
    assert "**1. value** at" not in openly


def test_changed_lines_are_a_diff_with_marks_numbers_and_gaps() -> None:
    assert list(change_lines(CHANGE, 100)) == [
        "   11  x = 1",
        "-! 11  return x",
        "+! 12  return -x  # `code` <b> @me",
        "  ...",
        "   41  y = 2",
        "  and 7 more lines",
    ]
    assert list(change_lines(CHANGE, 1))[-1] == "  and 10 more lines"


def changed(symbol: str, *lines: ChangedLine) -> Change:
    return Change(f"vllm.a:{symbol}", "changed", "vllm/a.py", "vllm/a.py", lines)


def added(number: int, ran: str, text: str = "x") -> ChangedLine:
    return ChangedLine("+", None, number, text, ran)


def test_of_long_changes_the_lines_that_only_differing_cases_ran_come_first() -> None:
    long = changed("f", *(added(n, "both") for n in range(1, 60)))
    telling = changed("g", *(added(n, "differing" if n == 150 else "both") for n in range(100, 200)))
    target = replace(FOUND, groups=(replace(GROUP, lines=("vllm/a.py:150",)),), changes=(long, telling))
    (shown,) = telling_changes(target, 20)
    assert (shown.symbol, [line.head for line in shown.lines], shown.cut) == ("vllm.a:g", [148, 149, 150, 151, 152], 95)
    assert telling_changes(target, 1_000) == [telling, long]
    plain_lines = replace(long, lines=tuple(added(n, "") for n in range(1, 60)))
    unmarked = replace(FOUND, groups=(replace(GROUP, lines=()),), changes=(plain_lines,))
    assert [len(change.lines) for change in telling_changes(unmarked, 20)] == [20]


def test_of_long_changes_each_has_a_share_and_new_words_come_before_what_is_indented_otherwise() -> None:
    old = tuple(ChangedLine("-", n, None, f"step_{n}()", "both") for n in range(1, 50))
    moved = tuple(ChangedLine("+", None, n, f"    step_{n}()", "both") for n in range(1, 50))
    long = Change("vllm.a:long", "changed", "vllm/a.py", "vllm/a.py", (*old, *moved, added(50, "both", "x = 1 / y")))
    helper = Change("vllm.a:helper", "added", "", "vllm/a.py", tuple(added(n, "both") for n in range(90, 98)))
    shown = telling_changes(replace(FOUND, changes=(long, helper), groups=()), 40)
    assert [change.symbol for change in shown] == ["vllm.a:long", "vllm.a:helper"]
    assert shown[0].lines[-1].text == "x = 1 / y"
    assert shown[0].cut == len(long.lines) - len(shown[0].lines)
    assert shown[1] == helper


def test_a_gap_is_shown_between_lines_of_either_version() -> None:
    lines = (ChangedLine("-", 69, None, "old"), ChangedLine("+", None, 70, "new"), ChangedLine("+", None, 82, "other"))
    shown = list(change_lines(Change("vllm.a:f", "changed", "vllm/a.py", "vllm/a.py", lines), 9))
    assert shown == ["-  69  old", "+  70  new", "  ...", "+  82  other"]


def test_what_is_exchanged_behind_a_gap_has_one_gap() -> None:
    lines = (
        *(ChangedLine(" ", n, n, "same") for n in (16, 17)),
        *(ChangedLine("-", n, None, "old") for n in (23, 24)),
        *(ChangedLine("+", None, n, "new") for n in (23, 24)),
        ChangedLine(" ", 26, 26, "same"),
    )
    shown = [line.split() for line in change_lines(Change("vllm.a:f", "changed", "vllm/a.py", "vllm/a.py", lines), 9)]
    assert [line[0] for line in shown] == ["16", "17", "...", "-", "-", "+", "+", "...", "26"]


def test_what_one_version_alone_breaks_stands_beside_the_cause() -> None:
    broken = {"a row keeps its largest": {"checked": 48, "base": 0, "head": 1}}
    broken |= {
        "order does not matter": {"checked": 9, "base": 6, "head": 0},
        "both": {"checked": 9, "base": 1, "head": 1},
    }
    said = cause_words(replace(DIFFERENT, relations=broken))
    assert 'Only head breaks "a row keeps its largest" (1 of 48 cases).' in said
    assert 'Only base breaks "order does not matter" (6 of 9 cases).' in said
    assert '"both"' not in said


def test_the_cause_names_no_more_than_was_seen() -> None:
    group = replace(GROUP, condition="", rules=(), likeness="different", lines=())
    one = changed("f", added(5, "both"), added(6, "both"))
    plainly = replace(FOUND, groups=(group,), fixed_noise={}, distribution={}, changes=(one,))
    assert cause_words(plainly) == (
        "In all 12 differing cases: return[*]: values differ; "
        "in 8 of them also rng.torch: the generator is left in another state. "
        "The only changed definition is f (lines 5-6 of vllm/a.py)."
    )
    other = changed("g", added(50, "none"))
    assert cause_words(replace(plainly, changes=(one, other))).endswith(
        "Differing cases run 1 of the 2 changed definitions, as identical ones do: f (lines 5-6 of vllm/a.py)."
    )
    untraced = replace(plainly, traced={}, changes=(changed("f", added(5, "")), changed("g", added(50, ""))))
    assert cause_words(untraced).endswith("2 definitions changed: f (line 5 of vllm/a.py); g (line 50 of vllm/a.py).")
    assert "12 of the 20 differing cases" in cause_words(
        replace(plainly, cases=replace(plainly.cases, different=20), groups=(group, group))
    )


def test_lines_that_all_traced_cases_ran_are_not_said_to_be_run_by_differing_cases_only() -> None:
    target = replace(FOUND, traced={"differing": 2}, changes=(changed("f", added(5, "run")),))
    assert "only differing cases" not in cause_words(target)
    assert legend(target) == ""


def test_neighbouring_lines_are_one_range() -> None:
    assert line_ranges(["b.py:9", "a.py:3", "a.py:1", "a.py:2", "a.py:7"]) == ["b.py:9", "a.py:1-3, 7"]
    assert line_ranges([f"a.py:{2 * n}" for n in range(1, 9)]) == ["a.py:2, 4, 6, 8, 10, 12 and 2 more"]


def test_numbers_are_said_with_their_bits_and_texts_are_not() -> None:
    assert both_values(FIRST, 100) == ("0.5 (0x3f000000)", "0.25 (0x3e800000)")
    assert both_values(replace(FIRST, base_hex="", head_hex=""), 100) == ("0.5", "0.25")
    assert ulp_words(replace(FIRST, ulp=None)) == ""
    assert ulp_words(replace(FIRST, ulp=2.0, count=1)) == "2 ulp apart"
    assert further_detail(FIRST) == ["around it in base: 1  0.5", "the oracle agrees with base"]
    assert further_detail(replace(FIRST, ulp=None, base_hex=""), neighbours=False) == [
        "bits 0x3f000000 against 0x3e800000", "8388608 ulp apart", "the oracle agrees with base",
    ]  # fmt: skip


def test_how_many_cases_differ_of_how_many() -> None:
    assert differ_words(DIFFERENT) == "12 of 400 cases differ, 9 cases inside the contract, 3 outside"


def test_code_in_markdown_stays_inside_its_fence() -> None:
    hostile = replace(CHANGE, lines=(ChangedLine("+", None, 1, "```` ```\n</details>"),), cut=0)
    text = shown(replace(FOUND, changes=(hostile,)), "markdown")
    fence = next(line for line in text.splitlines() if line.endswith("diff") and line.startswith("`"))
    assert len(fence) - len("diff") > 4
    assert "\\n</details>" in text


def test_the_class_is_said_where_it_says_more_than_the_kind() -> None:
    mismatch = replace(DIFFERENT.mismatches[0], kind="value")
    assert class_words(mismatch) == "value"
    assert class_words(replace(mismatch, likeness="ulp", ulp_largest=3.0)) == "value, at most 3 ulp apart"
    assert class_words(replace(mismatch, likeness="set-equal")) == "value, set-equal"
    assert class_words(replace(mismatch, kind="sign-of-zero", likeness="sign of zero")) == "sign-of-zero"


def test_many_ways_are_counted() -> None:
    ways = tuple(Way("value", name, "ulp", "", 12, 12) for name in "abcdefg")
    title = group_title(replace(GROUP, ways=ways, likeness="ulp", outside_contract=12))
    few = "by a few units in the last place"
    assert title == (
        f"12 cases: a: values differ {few}; b: values differ {few}; c: values differ {few}; and 4 more ways; "
        "all outside the contract"
    )


def test_where_only_the_draws_differ_the_lines_that_draw_are_the_cause() -> None:
    draw = changed(
        "noised",
        ChangedLine("-", 9, None, "u = old_rand(seed, keys)", "both"),
        added(9, "both", "u = new_uniform(seed, pos, keys)"),
        added(10, "both", "other = 1"),
    )
    cache = changed("keep", added(30, "differing"))
    defined = changed("new_uniform", added(50, "both", "def new_uniform(seed, pos, offset):"))
    draws = {"base_draws": {"old_rand": 8, "rand": 2}, "head_draws": {"new_uniform": 8, "rand": 2}}
    small = replace(GROUP, cases=2, likeness="different", lines=("vllm/a.py:30",))
    largest = replace(GROUP, condition="", rules=(), lines=())
    target = replace(FOUND, groups=(largest, small), changes=(cache, defined, draw), fixed_noise=draws)
    assert "Base draws with old_rand, head with new_uniform: noised (line 9 of vllm/a.py)." in cause_words(target)
    assert [change.symbol for change in telling_changes(target, 4)] == ["vllm.a:noised", "vllm.a:keep"]
    elsewhere = replace(draw, symbol="vllm.b:helper")
    own = replace(target, changes=(elsewhere, draw), symbol={"base": "vllm.a:f", "head": "vllm.a:f"})
    assert "head with new_uniform: noised (line 9 of vllm/a.py); helper (line 9" in cause_words(own)
    more = replace(target, fixed_noise={"base_draws": {"rand": 2}, "head_draws": draws["head_draws"]})
    assert "Head draws with new_uniform, which base does not: noised (line 9 of" in cause_words(more)
    torch = {
        "base_draws": {"exponential float32, the default generator": 8},
        "head_draws": {"uniform float32, the default generator": 8},
    }
    drawn = changed(
        "f", ChangedLine("-", 3, None, "q.exponential_()", "both"), added(3, "both", "q.uniform_().log_().neg_()")
    )
    said = cause_words(replace(target, changes=(drawn, cache), fixed_noise=torch))
    assert "Base draws with exponential, head with uniform: f (line 3 of vllm/a.py)." in said


def test_lines_that_only_a_smaller_group_runs_are_not_the_cause_of_the_largest() -> None:
    largest = replace(GROUP, condition="", rules=(), likeness="different", lines=(), shared_lines=("vllm/a.py:5",))
    small = replace(largest, cases=2, lines=("vllm/a.py:30",), shared_lines=())
    changes = (changed("f", added(5, "both")), changed("g", added(30, "differing")))
    target = replace(FOUND, groups=(largest, small), changes=changes, fixed_noise={})
    assert "as identical ones do: f (line 5 of vllm/a.py)" in cause_words(target)
    assert "g (line 30" not in cause_words(target)
    assert ("run changed", "vllm/a.py:5", "") in group_facts(largest)
    own = replace(target, groups=(replace(largest, lines=("vllm/a.py:30",)), small))
    assert "looked at only differing ones run the changed lines in g (line 30 of vllm/a.py)." in cause_words(own)


def test_what_holds_for_the_largest_group_is_not_said_of_all() -> None:
    noise = {"likeness": "same under fixed noise", "equal": 3, "cases": 3, "base_draws": {}, "head_draws": {"rand": 2}}
    alike = replace(GROUP, condition="", rules=(), lines=())
    other = replace(alike, cases=2, kinds=("exception",), likeness="different")
    states = replace(alike, cases=2, kinds=("rng",), likeness="different")
    said = "Only which random numbers are drawn seems to differ: 3 of 3 cases tried agree"
    assert said in cause_words(replace(FOUND, groups=(alike, states), fixed_noise=noise))
    assert said not in cause_words(replace(FOUND, groups=(alike, other), fixed_noise=noise))
    drawn = {"base_draws": {"rand": 2}, "head_draws": {}}
    only_states = replace(FOUND, groups=(states,), fixed_noise=drawn, distribution={}, kinds={"rng": 2})
    assert "only the states in which" in cause_words(only_states)
    assert "only the states in which" not in cause_words(replace(only_states, kinds={"rng": 2, "value": 1}))


def test_what_one_version_alone_reaches_is_not_said_to_be_new() -> None:
    change = changed("f", added(5, "both"))
    assert change_title(change) == "f, vllm/a.py"
    assert change_title(replace(change, status="added")) == "f, reached by head alone, vllm/a.py"
    assert change_title(replace(change, status="removed")) == "f, reached by base alone, vllm/a.py"


def test_only_lines_that_all_cases_of_the_group_run_are_its_cause() -> None:
    lines = changed("f", added(5, "differing"), added(6, "differing"), ChangedLine("-", 9, None, "x", "differing"))
    target = replace(FOUND, groups=(replace(GROUP, lines=("vllm/a.py:6",)),), changes=(lines,))
    assert "only differing ones run line 6 of vllm/a.py." in cause_words(target)
    some = replace(FOUND, groups=(replace(GROUP, lines=()),), changes=(changed("f", added(5, "differing")),))
    assert "only differing ones run" not in cause_words(some)


def test_a_changed_constant_is_named_beside_the_lines_that_only_differing_cases_run() -> None:
    constant = replace(changed("SCALE", added(2, "both", "SCALE = 3")), runs="load")
    group = replace(GROUP, lines=("vllm/a.py:5",))
    target = replace(FOUND, groups=(group,), changes=(constant, changed("f", added(5, "differing"))))
    assert "Changed, too, and run when they are loaded: SCALE (line 2 of vllm/a.py)." in cause_words(target)


def test_where_a_version_raises_the_line_is_the_cause() -> None:
    check = changed("check", added(81, "differing", "assert logits.dtype == torch.float32"))
    kernel = changed("kernel", *(added(n, "differing") for n in range(200, 240)))
    ways = (Way("exception", "raised", "different", "base returns, head raises AssertionError", 12, 12),)
    group = replace(GROUP, condition="", rules=(), kinds=("exception",), ways=ways, raised=("head vllm/a.py:81",))
    target = replace(FOUND, groups=(group,), changes=(kernel, check), fixed_noise={}, distribution={})
    assert "The changed line that raises is in check (line 81 of vllm/a.py)." in cause_words(target)
    assert telling_changes(target, 10)[0].symbol == "vllm.a:check"
    assert ("head raises", "at head's vllm/a.py:81", "") in group_facts(group)
    told = group_facts(replace(group, raising=("assert logits.dtype == torch.float32",)))
    assert ("head raises", "at head's vllm/a.py:81", "assert logits.dtype == torch.float32") in told
    assert [fact.whole for fact in told if fact.line] == [
        "at head's vllm/a.py:81: assert logits.dtype == torch.float32"
    ]
    unchanged = replace(target, groups=(replace(group, raised=("head vllm/b.py:81",)),))
    assert "that raises" not in cause_words(unchanged)


def test_a_group_inside_the_largest_is_no_other_difference() -> None:
    group = replace(GROUP, condition="", rules=(), lines=())
    inner, other = replace(group, cases=2, within=1), replace(group, cases=3)
    target = replace(FOUND, groups=(group, other, inner))
    said = cause_words(target)
    assert "1 other group differs otherwise. Some of these cases differ in other ways, too." in said
    assert group_title(inner).startswith("2 cases of group 1: ")
