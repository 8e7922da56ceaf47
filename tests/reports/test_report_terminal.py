"""What the terminal shows, at any width, with and without colour."""

import io
import re
from dataclasses import replace

import gold
import pytest
from report_results import DIFFERENT, EXECUTED, HOSTILE, RESULTS, SAME_CODE, hostile, large, run
from rich.console import Console

from difftest.reports.sentence import sentence
from difftest.reports.terminal import Progress, render
from difftest.reports.words import plain
from difftest.result import RunResult


def shown(result: RunResult, width: int = 100, **options: object) -> str:
    console = Console(file=io.StringIO(), width=width, **options)  # type: ignore[arg-type]
    render(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", ["different", "two heads", "unmeasured"])
def test_gold(name: str) -> None:
    gold.compare(f"terminal-{name.replace(' ', '-')}.txt", shown(RESULTS[name]))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("name", RESULTS)
def test_it_keeps_to_the_width_and_ends_with_the_sentence(name: str, width: int) -> None:
    lines = shown(RESULTS[name], width).splitlines()
    assert lines[-1] == sentence(RESULTS[name])
    whole = {RESULTS[name].command, lines[-1]}
    assert [line for line in lines if len(line) > width and line not in whole] == []


@pytest.mark.parametrize("width", [60, 200])
def test_nothing_that_matters_is_lost_by_width(width: int) -> None:
    words = re.sub(r"\s+", "", shown(RESULTS["different"], width))
    for text in (
        "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d",
        "77aa88bb99cc00dd11ee22ff33004455667788aa",
        "dirtyyes",
        "v1.penalties:12of400casesdiffer,9casesinsidethecontract,3outside",
        "return[1,3],request1:value",
        "-1.4999999",
        "basebytes0000c0bf,headbytesffffbfbf",
        "3of64elementsdiffer(4.69%)",
        "outsidethecontract",
        "baseagainstbase:2of3260differ",
        "vllm.platforms.current_platform:v1.penalties",
        "is_pin_memory",
        "torch.compilewastakenaway",
        "saysnothingaboutracesorGPUnumerics",
        "api-change:headasksfor`predict_bonus_token`",
        "and28moremismatches",
    ):
        assert text in words, text


def test_values_are_neither_markup_nor_control_sequences() -> None:
    text = shown(hostile(), 200, force_terminal=True, color_system="truecolor", _environ={})
    assert "[bold]a|b`c" in text
    assert "\x1b[31m[bold]" not in text
    assert "\\x1b[31m" in text
    assert "\u202e" not in text
    text.encode()


def test_colour_only_where_it_is_wanted() -> None:
    colour = re.compile("\x1b\\[[0-9;]*3[0-9]m")
    assert colour.search(shown(RESULTS["different"], force_terminal=True, color_system="standard", _environ={}))
    quiet = shown(RESULTS["different"], force_terminal=True, _environ={"NO_COLOR": "1", "TERM": "xterm"})
    assert not colour.search(quiet)
    assert "\x1b" not in shown(RESULTS["different"])


def test_long_values_are_cut_with_their_length() -> None:
    text = shown(large(targets=1, text=10_000))
    assert "(10000 characters)" in text
    assert len(text) < 20_000


def test_a_value_that_is_cut_twice_says_its_whole_length() -> None:
    assert plain(plain("a" * 1000, 400), 10) == f"{'a' * 10}… (1000 characters)"
    assert plain(f"{'a' * 10}… (7 characters)") == f"{'a' * 10}… (7 characters)"


def progress(terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, _environ={})
    with Progress(console, 3) as bars:
        bars.target(EXECUTED.name, 2560)
        bars.target("[red]" + HOSTILE, 10)
        bars.advance(EXECUTED.name, 1200)
        bars.finish(EXECUTED)
        bars.advance(EXECUTED.name, 2560)  # a late message from a worker
        bars.finish(SAME_CODE)
        bars.finish(replace(DIFFERENT, name="[red]" + HOSTILE))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_progress_is_a_plain_line_per_target_that_ran() -> None:
    lines = progress(terminal=False).splitlines()
    assert lines[0] == "[1/3] identical v1.parse_output against WORKTREE: 2560 cases: 2560 identical, 3.2 s"
    assert lines[1].startswith("[2/2] different [red]\\x1b[31m[bold]a|b`c")
    assert len(lines) == 2


def test_in_a_terminal_progress_shows_bars_and_leaves_nothing_behind() -> None:
    text = progress(terminal=True)
    assert "v1.parse_output" in text and "all targets" in text
    assert "byte" not in text and "2560 identical" not in text
    assert "\x1b[2K" in text[text.rindex("all targets") :]


def test_progress_ends_when_the_run_is_interrupted() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, _environ={})
    with pytest.raises(KeyboardInterrupt), Progress(console, 1) as bars:
        bars.target("a", 1)
        raise KeyboardInterrupt
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[?25h" in console.file.getvalue()  # the cursor is back


def test_one_line_tells_a_run_of_one_target() -> None:
    assert "v1.parse_output  2560 cases: 2560 identical\n" in shown(run(EXECUTED))
