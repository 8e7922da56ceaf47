"""JUnit XML: what CI systems show as a list of tests.

A suite per head; in it a test case per target, or one per kind of mismatch where a target differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from difftest.result import Mismatch, RunResult, TargetResult, Verdict

from .causes import cause_words
from .sentence import sentence
from .words import (
    aa_words,
    contract_split,
    contract_words,
    counts_words,
    extent,
    host_words,
    identity_facts,
    identity_words,
    mode_words,
    place,
    plain,
    plural,
    symbol_words,
    unexecuted_lines,
    why_unmeasured,
)

VALUE_SHOWN = 400


def render(result: RunResult) -> str:
    """The result as JUnit XML. Different is a failure, unmeasured is skipped, nothing compared is an error."""
    root = Element("testsuites", name="difftest")
    for head in result.heads:
        facts = [("base", result.base), ("head", head)]
        properties = [(f"{arm}.{name}", value) for arm, identity in facts for name, value in identity_facts(identity)]
        targets = [t for t in result.targets if t.head == head.spec]
        _suite(root, f"difftest {identity_words(head)}", targets, properties, result)
    known = {head.spec for head in result.heads}
    for spec in dict.fromkeys(t.head for t in result.targets if t.head not in known):
        targets = [t for t in result.targets if t.head == spec]
        _suite(root, f"difftest {plain(spec, VALUE_SHOWN)}", targets, [], result)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(t.seconds for t in result.targets):.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(
    root: Element, name: str, targets: list[TargetResult], properties: list[tuple[str, str]], result: RunResult
) -> None:
    suite = SubElement(root, "testsuite", name=name, time=f"{sum(t.seconds for t in targets):.3f}")
    listed = SubElement(suite, "properties")
    environment = [(f"environment.{key}", value) for key, value in result.environment.items()]
    command = [("command", result.command)] if result.command else []
    for key, value in [*properties, *environment, *command]:
        SubElement(listed, "property", name=plain(key, 80), value=plain(value, VALUE_SHOWN))
    for target in targets:
        unrun = [i for i in result.unexecuted if target.name in i.targets and target.head == i.head]
        _target(suite, target, unexecuted_lines(unrun))
    if not targets:
        case = SubElement(suite, "testcase", name="run", classname="difftest", time="0.000")
        SubElement(case, "error", message="nothing was compared", type=Verdict.UNMEASURED).text = sentence(result)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for plural_name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural_name, str(sum(case.find(tag) is not None for case in cases)))


def _target(suite: Element, target: TargetResult, unrun: list[str]) -> None:
    name = plain(target.name, VALUE_SHOWN)
    if target.verdict == Verdict.DIFFERENT:
        kinds = dict(target.kinds) or {"": target.mismatches_total}
        for number, (kind, count) in enumerate(kinds.items()):
            # The time belongs to the target; it is counted once.
            case = _case(suite, f"{name} [{kind}]" if kind else name, 0.0 if number else target.seconds)
            shown = [m for m in target.mismatches if m.kind == kind or not kind]
            first = f", first at {plain(place(shown[0]), VALUE_SHOWN)}" if shown else ""
            message = f"{plural(count, 'mismatch')}{' of kind ' * bool(kind)}{kind}{first}"
            failure = SubElement(case, "failure", message=message, type=kind or Verdict.DIFFERENT)
            failure.text = "\n".join(_failure(target, shown, count))
            _output(case, target)
        return
    case = _case(suite, name, target.seconds)
    if target.verdict == Verdict.UNMEASURED:
        SubElement(case, "skipped", message=plain(why_unmeasured(target), VALUE_SHOWN))
    _output(case, target, unrun)


def _case(suite: Element, name: str, seconds: float) -> Element:
    return SubElement(suite, "testcase", name=name, classname="difftest", time=f"{seconds:.3f}")


def _output(case: Element, target: TargetResult, unrun: Sequence[str] = ()) -> None:
    lines = [
        f"{target.verdict}; code {target.code}; {counts_words(target)}; {mode_words(target.mode)}",
        aa_words(target),
        target.reason if target.verdict == Verdict.EXPECTED else "",
        contract_split(target),
        f"both arms raised the same exception in {plural(target.both_raised, 'case')}" * bool(target.both_raised),
        f"stand-ins: {', '.join(target.standins)}" if target.standins else "",
        f"host of the capture: {host_words(target)}" if target.host else "",
        *(f"adapter: {text}" for text in target.adapters),
        *(f"note: {text}" for text in target.notes),
        *(f"not run: {text}" for text in unrun),
    ]
    SubElement(case, "system-out").text = "\n".join(plain(line, 2 * VALUE_SHOWN) for line in lines if line)


def _failure(target: TargetResult, shown: list[Mismatch], count: int) -> list[str]:
    lines = [f"symbol {symbol_words(target)}"]
    lines += [plain(cause, 3 * VALUE_SHOWN)] if (cause := cause_words(target)) else []
    for mismatch in shown:
        named = f" ({plain(mismatch.label, VALUE_SHOWN)})" if mismatch.label else ""
        lines += [
            "",
            f"{plain(place(mismatch), VALUE_SHOWN)}: {mismatch.kind}, {contract_words(mismatch)}",
            f"  base {plain(mismatch.base, VALUE_SHOWN)}",
            f"  head {plain(mismatch.head, VALUE_SHOWN)}",
            *([f"  {extent(mismatch)}"] if extent(mismatch) else []),
            f"  case {plain(mismatch.case, 64)}{named}",
            *(f"  {plain(line, VALUE_SHOWN)}" for line in mismatch.detail),
        ]
    rest = count - len(shown)
    return [*lines, "", f"and {plural(rest, 'more mismatch')}"] if rest > 0 else lines
