"""Annotations come out escaped and within what GitHub shows."""

import re
from dataclasses import replace

import pytest
from report_results import API_CHANGE, DIFFERENT, EXPECTED, REMOVED, RESULTS, hostile, large, run

from difftest.reports.github import render, summary
from difftest.reports.sentence import sentence
from difftest.result import Change, ChangedLine, Group, RunResult

COMMAND = re.compile(r"::(error|warning|notice) ((?:\w+=[^:,\n]*)(?:,\w+=[^:,\n]*)*)::(.*)")


def unescape(text: str) -> str:
    """What GitHub's runner makes of an escaped text."""
    for code, char in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, char)
    return text


def annotations(result: RunResult) -> list[tuple[str, dict[str, str], str]]:
    found = []
    for line in render(result).splitlines():
        match = COMMAND.fullmatch(line)
        assert match, line
        pairs = (pair.split("=", 1) for pair in match[2].split(","))
        found.append((match[1], {key: unescape(value) for key, value in pairs}, unescape(match[3])))
    return found


@pytest.mark.parametrize("name", RESULTS)
def test_each_line_is_a_command_and_the_last_one_the_sentence(name: str) -> None:
    level, properties, message = annotations(RESULTS[name])[-1]
    assert (level, message) == ("notice" if RESULTS[name].targets else "warning", sentence(RESULTS[name]))
    assert properties == {"title": f"difftest: {RESULTS[name].verdict}"}


def test_different_unmeasured_and_expected_have_their_levels_and_places() -> None:
    found = annotations(run(DIFFERENT, API_CHANGE, REMOVED, EXPECTED))
    levels = [(level, properties.get("file"), properties["title"]) for level, properties, _ in found[:-1]]
    assert levels == [
        ("error", "vllm/v1/sample/ops/penalties.py", "difftest: different: v1.penalties"),
        ("warning", "vllm/v1/sample/sampler.py", "difftest: unmeasured: v1.sampler"),
        ("warning", "vllm/v1/sample/logits_processor.py", "difftest: unmeasured: v1.min_p"),
        ("notice", "vllm/v1/sample/ops/bad_words.py", "difftest: expected: v1.bad_words"),
    ]
    assert "for example value at return[1, 3], request 1\nbase -1.5\nhead -1.4999999" in found[0][2]
    assert "9 cases inside the contract, 3 outside" in found[0][2]


def test_a_known_place_is_used() -> None:
    target = replace(DIFFERENT, closure={"head": {"file": "a,b/c:d.py", "line": 41}})
    assert "::error file=a%2Cb/c%3Ad.py,line=41,title=difftest%3A different%3A v1.penalties::" in render(run(target))


def test_an_annotation_stands_on_the_changed_line_that_only_differing_cases_ran() -> None:
    lines = [
        ChangedLine("-", 40, None, "    return max(row)", "both"),
        ChangedLine("+", None, 41, "    row = list(row)", "both"),
        ChangedLine("+", None, 42, "    return min(row)", "differing"),
    ]
    change = Change("pkg.sampler:pick", "changed", "pkg/sampler.py", "pkg/sampler.py", tuple(lines))
    (_, properties, _), *_ = annotations(run(replace(DIFFERENT, changes=(change,))))
    assert (properties["file"], properties["line"]) == ("pkg/sampler.py", "42")
    untraced = replace(change, lines=tuple(replace(line, ran="") for line in lines))
    (_, properties, _), *_ = annotations(run(replace(DIFFERENT, changes=(untraced,))))
    assert properties["line"] == "41"


def test_an_annotation_stands_on_the_line_that_the_cause_names() -> None:
    other = Change("pkg.a:f", "changed", "pkg/a.py", "pkg/a.py", (ChangedLine("+", None, 3, "    x = 1", "both"),))
    lines = [
        ChangedLine("+", None, 7, "    row = list(row)", "both"),
        ChangedLine("-", 8, None, "    check(row)", "both"),
        ChangedLine(" ", 9, 8, "    pick(row)", "both"),
        ChangedLine("+", None, 9, "    assert row", "both"),
    ]
    raising = Change("pkg.b:g", "changed", "pkg/b.py", "pkg/b.py", tuple(lines))
    group = Group(("exception",), ("raised",), "different", 3, 3, "0" * 16, raised=("head pkg/b.py:9",))
    target = replace(DIFFERENT, changes=(other, raising), groups=(group,))
    (_, properties, _), *_ = annotations(run(target))
    assert (properties["file"], properties["line"]) == ("pkg/b.py", "9")
    removed = replace(group, raised=("base pkg/b.py:8",))
    (_, properties, _), *_ = annotations(run(replace(target, groups=(removed,))))
    assert (properties["file"], properties["line"]) == ("pkg/b.py", "8")


def test_what_breaks_a_command_is_escaped() -> None:
    mismatch = replace(DIFFERENT.mismatches[0], base="50%, a: b\nnext ::error::x", head="\r\x1b[31m")
    target = replace(DIFFERENT, name="a%b,c:d\ne", mismatches=(mismatch,))
    text = render(run(target))
    assert "title=difftest%3A different%3A a%25b%2Cc%3Ad\\ne::" in text
    assert "%0Abase 50%25, a: b\\nnext ::error::x%0Ahead \\r\\x1b[31m%0A" in text
    assert len(text.splitlines()) == 2


def test_no_value_starts_a_line_or_hides_a_character() -> None:
    text = render(hostile())
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in text.splitlines())
    assert all(c == "\n" or c.isprintable() for c in text)
    annotations(hostile())


@pytest.mark.parametrize("count", [10, 11, 60])
def test_no_more_than_github_shows_and_the_rest_is_counted(count: int) -> None:
    targets = [replace(t, name=f"{t.name}_{n}") for t in (DIFFERENT, API_CHANGE, EXPECTED) for n in range(count)]
    found = annotations(run(*targets))
    for level, least in (("error", 10), ("warning", 10), ("notice", 10)):
        assert sum(each == level for each, _, _ in found) == least
    aggregated = [p["title"] for level, p, _ in found if level == "error" and "more" in p["title"]]
    assert aggregated == ([] if count == 10 else [f"difftest: {count - 9} more different targets"])


def test_a_long_reason_is_cut_with_its_length() -> None:
    reason = "50% of it: a, b\n" * 1_000
    for target in (replace(API_CHANGE, reason=reason), replace(EXPECTED, reason=reason)):
        (_, _, message), *_ = annotations(run(target))
        assert len(message) < 1_000
        assert message.startswith("50% of it: a, b\n50%") and message.endswith("(16000 characters)")


def test_nothing_compared_is_a_warning() -> None:
    ((level, properties, message),) = annotations(run())
    assert (level, properties["title"]) == ("warning", "difftest: unmeasured")
    assert "nothing was compared" in message


def test_a_changed_file_may_be_called_anything() -> None:
    path = "dir with space/100%,a:b\nc.py"
    change = Change("a:b", "changed", path, path, (ChangedLine("+", None, 3, "x", "differing"),))
    (_, properties, message), *_ = annotations(run(replace(DIFFERENT, changes=(change,))))
    assert (properties["file"], properties["line"]) == (path, "3")
    assert "line 3 of dir with space/100%,a:b\\nc.py" in message


def test_annotations_stay_short_and_the_summary_within_its_limit() -> None:
    result = large(targets=200, cases=100_000, text=20_000)
    assert max(map(len, render(result).splitlines())) < 10_000
    assert len(summary(result).encode()) < 2**20
    assert summary(result).startswith("## difftest: different")
