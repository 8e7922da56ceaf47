"""What the terminal and the markdown report say of causes: groups, noise, laws, changed lines and who ran them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_results import DIFFERENT, run
from rich.console import Console

from difftest.reports import markdown, terminal
from difftest.reports.causes import change_lines, class_words, group_title
from difftest.result import Change, ChangedLine, Group, TargetResult

GROUP = Group(
    kinds=("value",),
    leaves=("return[]",),
    likeness="same under fixed noise",
    cases=12,
    mismatches=12,
    example="5d41402abc4b2a76",
    label="batch 4, temperature 0",
    outside_contract=3,
    rules=("all 12 differing cases have temperature: 0; none of the 386 identical cases has",),
    lines=("vllm/a.py:12",),
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
def test_a_reader_finds_group_rule_lines_noise_and_law(kind: str) -> None:
    text = shown(FOUND, kind).replace("`", "")
    for said in (
        "12 cases: value at return[] (same under fixed noise), 3 outside the contract",
        "all 12 differing cases have temperature: 0; none of the 386 identical cases has",
        "vllm/a.py:12",
        "case 5d41402abc4b2a76, batch 4, temperature 0",
        "all cases agree; base draws 8 numbers",
        "least p 0.4",
        "changed vllm.a:f, vllm/a.py",
        "and 7 more lines",
        "2 differing and 5 identical ones",
    ):
        assert said in text


def test_changed_lines_are_a_diff_with_marks_numbers_and_gaps() -> None:
    assert list(change_lines(CHANGE, 100)) == [
        "     11      x = 1",
        "-!   11      return x",
        "+!   12      return -x  # `code` <b> @me",
        "  ...",
        " x   41      y = 2",
        "  and 7 more lines",
    ]
    assert list(change_lines(CHANGE, 1))[-1] == "  and 10 more lines"


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


def test_many_leaves_are_counted() -> None:
    title = group_title(replace(GROUP, leaves=tuple("abcdefg"), outside_contract=12))
    assert title == "12 cases: value at a, b, c, d and 3 more (same under fixed noise), all outside the contract"
