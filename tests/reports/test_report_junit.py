"""JUnit XML keeps to the schema that CI systems share, and never lists cases by the thousand."""

from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import gold
import pytest
from report_results import EXECUTED, RESULTS, hostile, large, run

from difftest.reports.junit import render
from difftest.result import Kind, RunResult

# The schema that Jenkins publishes (junit-10.xsd), as attributes (required, optional) and children in order.
NUMBERS = {"tests", "failures", "errors", "skipped"}
SHAPE: dict[str, tuple[set[str], set[str], tuple[str, ...]]] = {
    "testsuites": (set(), {"name", "time", "disabled"} | NUMBERS, ("testsuite",)),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"skipped", "time", "timestamp", "hostname", "id", "package", "file"},
        ("properties", "testcase", "system-out", "system-err"),
    ),
    "properties": (set(), set(), ("property",)),
    "property": ({"name", "value"}, set(), ()),
    "testcase": (
        {"name", "classname"},
        {"time", "assertions", "status", "file", "line"},
        ("skipped", "error", "failure", "system-out", "system-err"),
    ),
    "skipped": (set(), {"message", "type"}, ()),
    "error": (set(), {"message", "type"}, ()),
    "failure": (set(), {"message", "type"}, ()),
    "system-out": (set(), set(), ()),
}


def check(node: Element) -> None:
    required, optional, children = SHAPE[node.tag]
    assert required <= set(node.keys()) <= required | optional, node.tag
    order = [children.index(child.tag) for child in node]
    assert order == sorted(order), node.tag
    for name in NUMBERS & set(node.keys()):
        assert int(node.attrib[name]) >= 0
    assert float(node.get("time", "0")) >= 0
    for child in node:
        check(child)


def parsed(result: RunResult) -> Element:
    text = render(result)
    assert all(c in "\t\n" or c >= " " for c in text)
    root = ElementTree.fromstring(text.encode())
    check(root)
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[attribute]) == len(suite.findall(f"testcase/{tag}"))
        names = [case.attrib["name"] for case in cases]
        assert len(set(names)) == len(names)
    assert int(root.attrib["tests"]) == len(root.findall("testsuite/testcase"))
    return root


@pytest.mark.parametrize("name", ["different", "two heads"])
def test_gold(name: str) -> None:
    gold.compare(f"junit-{name.replace(' ', '-')}.xml", render(RESULTS[name]))


@pytest.mark.parametrize("name", RESULTS)
def test_it_keeps_to_the_common_schema(name: str) -> None:
    parsed(RESULTS[name])


def test_control_characters_are_taken_out() -> None:
    root = ElementTree.fromstring(render(hostile()).encode())
    check(root)
    text = "".join(root.itertext())
    assert "\\x1b[31m[bold]a|b`c</details><script>alert(1)</script>\\n@user" in text


def test_a_different_target_fails_once_for_each_kind() -> None:
    suite = parsed(RESULTS["different"])[0]
    failed = {c.attrib["name"]: c.find("failure") for c in suite.findall("testcase") if c.find("failure") is not None}
    assert set(failed) == {"v1.penalties [value]", "v1.penalties [exception]", "v1.penalties [rng]"}
    value = failed["v1.penalties [value]"]
    assert value is not None and value.text is not None
    assert value.attrib["message"] == "27 mismatches of kind value, first at return[1, 3], request 1"
    assert "base bytes 00 00 c0 bf" in value.text and "and 26 more mismatches" in value.text
    assert "IndexError" not in value.text


def test_unmeasured_is_skipped_with_its_reason() -> None:
    suite = parsed(RESULTS["unmeasured"])[0]
    reasons = {c.attrib["name"]: s.attrib["message"] for c in suite.findall("testcase") for s in c.findall("skipped")}
    assert reasons["v1.min_p"].startswith("head does not define")
    assert reasons["v1.sampler"].startswith("api-change: ")


def test_nothing_compared_is_an_error_and_not_an_empty_suite() -> None:
    root = parsed(RESULTS["nothing"])
    assert root.attrib["errors"] == "1"
    error = root.find("testsuite/testcase/error")
    assert error is not None and error.attrib["message"] == "nothing was compared"


def test_a_suite_for_each_head() -> None:
    root = parsed(RESULTS["two heads"])
    assert [(s.attrib["tests"], s.attrib["failures"]) for s in root] == [("2", "0"), ("4", "3")]
    stray = parsed(run(EXECUTED, replace(EXECUTED, head="unlisted")))
    assert [s.attrib["name"] for s in stray] == ["difftest WORKTREE (6f5e4d3c2b1a, dirty)", "difftest unlisted"]


def test_the_number_of_tests_does_not_grow_with_the_cases() -> None:
    root = parsed(large(cases=200_000))
    assert int(root.attrib["tests"]) <= 60 * len(Kind)
    assert len(render(large(cases=200_000, text=5_000))) < 3_000_000


def test_time_is_counted_once() -> None:
    root = parsed(RESULTS["different"])
    seconds = sum(float(case.attrib["time"]) for case in root.findall("testsuite/testcase"))
    assert seconds == pytest.approx(sum(t.seconds for t in RESULTS["different"].targets))
