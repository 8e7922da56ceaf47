"""The report for a pull request: complete, safe to paste, and never too long."""

import re
from dataclasses import replace

import gold
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_results import DIFFERENT, EXECUTED, HOSTILE, RESULTS, hostile, large, run

from difftest.reports.markdown import LIMIT, code, html_code, render, text
from difftest.result import RunResult

OWN_TAGS = {"<code>", "</code>", "<br>"}
REFERENCES = re.compile(r"(?<!\w)@\w|#\d|\bGH-\d|https?:|www\.|:\w+:")


def tokens(markdown: str) -> list[Token]:
    found: list[Token] = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        found += [token, *(token.children or [])]
    return found


def loose_text(markdown: str) -> str:
    """What a reader sees outside code, where GitHub looks for mentions and references."""
    out: list[str] = []
    inside = False
    for token in tokens(markdown):
        if token.type == "html_inline":
            assert token.content in OWN_TAGS, token.content
            inside = token.content == "<code>" if "code" in token.content else inside
        elif token.type in ("text", "text_special") and not inside:
            out.append(token.content)
        elif token.type == "html_block":
            assert re.fullmatch(r"</details>\n?|<details><summary>\d+ [a-z0-9 ,]+</summary>\n?", token.content), (
                token.content
            )
    return "".join(out)


@pytest.mark.parametrize("name", ["different", "two heads", "unmeasured"])
def test_gold(name: str) -> None:
    gold.compare(f"markdown-{name.replace(' ', '-')}.md", render(RESULTS[name]))


@pytest.mark.parametrize("result", [*RESULTS.values(), hostile()], ids=[*RESULTS, "hostile"])
def test_it_parses_and_carries_no_markup_but_its_own(result: RunResult) -> None:
    markdown = render(result)
    kinds = {token.type for token in tokens(markdown)}
    assert not kinds & {"link_open", "image", "em_open", "s_open", "code_block"}
    assert not REFERENCES.search(loose_text(markdown))
    assert all(c == "\n" or c.isprintable() for c in markdown)


@pytest.mark.parametrize("result", [RESULTS["different"], hostile()], ids=["different", "hostile"])
def test_every_table_row_has_the_cells_of_its_head(result: RunResult) -> None:
    width = 0
    rows = 0
    for line in render(result).splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        rows += 1
        assert cells == width, line
    assert rows > 6


@pytest.mark.parametrize(
    "value",
    [
        HOSTILE,
        "a|b",
        "a\\|b",
        "`",
        "``x``",
        " lead",
        "trail ",
        "",
        "  ",
        "@user",
        "x@y.org",
        "#123",
        "org/repo#1",
        "GH-12",
        "https://example.org",
        "www.example.org",
        "<b>&amp;</b>",
        "*a* _b_ ~~c~~ [d](e) ![f](g)",
        "- item",
        "1. item",
        "# head",
        "> quote",
        "+ plus",
        "===",
        "---",
        "$x$",
        ":tada:",
        "line\nline",
        "\\",
        "a\\",
        "é ü 漢字 🎲",
    ],
)
def test_a_value_stays_a_value(value: str) -> None:
    for form in (code(value), html_code(value), text(value)):
        for place in (f"x {form} y", form, f"- {form}", f"| a |\n| --- |\n| {form} |"):
            kinds = [t.type for t in tokens(place)]
            own = {"- ": "bullet_list_open", "| ": "table_open"}.get(place[:2] if place is not form else "")
            blocks = {k for k in kinds if k.endswith("_open")} - {"paragraph_open", "list_item_open"}
            allowed = {own, "thead_open", "tbody_open", "tr_open", "th_open", "td_open"}
            assert blocks <= allowed, (place, blocks)
            assert kinds.count("td_open") == (1 if own == "table_open" else 0)
            assert not REFERENCES.search(loose_text(place))


def test_a_list_of_values_is_one_code_span() -> None:
    assert text("base [0, 1], head 2 items [32, 33]") == "base `[0, 1]`, head 2 items `[32, 33]`"
    assert text("return[0] [a](b c)") == "`return[0]` `[a](b` c)"


def test_it_has_what_a_reviewer_asks_for() -> None:
    markdown = render(RESULTS["different"])
    for wanted in (
        "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d",
        "dirty `yes`",
        "### What was compared",
        "### Not measured",
        "### How it ran",
        "**Stand-ins**",
        "**Adapters**",
        "**Modes**",
        "**A/A control**",
        "**Both raise alike**",
        "says nothing about races or GPU numerics",
        "```sh\ndifftest run --base main --head WORKTREE\n```",
        "base bytes 00 00 c0 bf, head bytes ff ff bf bf",
        "and 28 more mismatches",
        "9 cases inside the contract, 3 outside",
    ):
        assert wanted in markdown, wanted


@pytest.mark.parametrize(
    ("targets", "length"),
    [(60, 40), (60, 5_000), (400, 3_000)],
    ids=["usual", "long values", "many targets"],
)
def test_it_is_cut_by_whole_entries_with_a_count(targets: int, length: int) -> None:
    markdown = render(large(targets=targets, cases=100_000, text=length))
    assert len(markdown.encode()) <= LIMIT
    assert markdown.count("<details>") == markdown.count("</details>")
    assert markdown.count("```") % 2 == 0
    assert markdown.rstrip().endswith("```")
    shown = markdown.count("\n#### ")
    assert shown > 5
    if shown < targets:
        assert f"and {targets - shown} more targets with mismatches" in markdown
    each = re.findall(r"and (\d+) more mismatches|^(\d+) mismatches: ", markdown, re.M)
    entries = len(re.findall(r"^\*\*\d+\. ", markdown, re.M))
    assert entries + sum(int(more or every) for more, every in each) == 500 * shown
    assert "### How to repeat it" in markdown


def test_it_fits_whatever_is_long() -> None:
    wide = "@" * 50_000
    target = replace(DIFFERENT, name=wide, notes=(wide,) * 50, adapters=(wide,) * 50, standins=(wide,) * 50, mode=wide)
    other = replace(EXECUTED, verdict="unmeasured", reason=wide, name=wide)
    environment = {f"{wide}{n}": wide for n in range(50)}
    heads = tuple(replace(RESULTS["different"].heads[0], spec=f"{n}{wide}") for n in range(40))
    result = run(*[target] * 40, *[other] * 40, environment=environment, command=wide, notes=(wide,) * 50, heads=heads)
    assert len(render(result).encode()) <= LIMIT
    assert len(render(replace(result, heads=heads[:1])).encode()) <= LIMIT
