"""Wording that several reports share. It is plain text; each report escapes it for its own format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from difftest.lift.lines import ranges
from difftest.result import NOT_EXECUTED as NOT_EXECUTED
from difftest.result import CaseCounts, Identity, Kind, Mismatch, RunResult, TargetResult, Unexecuted, Verdict

_NOT_MEASURED = re.compile(r"(\d+) cases? not measured: (.*)", re.DOTALL)
INTERPRETER = "triton-interpreter"
INTERPRETER_LIMIT = "says nothing about races or GPU numerics"
ORDER = (Verdict.DIFFERENT, Verdict.UNMEASURED, Verdict.EXPECTED, Verdict.IDENTICAL)
"""Verdicts, the one that needs a reader most first."""

AXES_SAID = 12
UNREACHED_FILES = 8
UNEXECUTED = 8
IDENTITY_FACTS = ("commit", "tree", "dirty", "sha256", "file", "version", "subject")
"""Details of an identity in the order shown; others follow by name."""


_CUT = re.compile(r"… \((\d+) characters\)\Z")


def plain(text: object, limit: int | None = None) -> str:
    """`text` on one line, with everything that cannot be printed as a backslash escape.

    Control characters, line ends, bidirectional marks and lone surrogates change what a reader sees, or break
    the format around them. Beyond `limit` characters the text is cut and its length said.
    """
    full = str(text)
    shown = full if limit is None or len(full) <= limit else full[:limit]
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    if len(shown) == len(full):
        return line
    before = _CUT.search(full)  # it was cut before, and says from what
    return f"{line}… ({before[1] if before else len(full)} characters)"


def plural(count: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('ch') else 's'}"


def share(count: int, size: int) -> str:
    """Percentage that is neither rounded down to nothing nor up to everything."""
    percent = 100 * count / size
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    return f"{percent:.3g} %"


def total(cases: CaseCounts) -> int:
    """How many cases were asked for: those that ran and those that have no answer."""
    answered = cases.identical + cases.different + cases.expected
    return max(cases.executed, answered + cases.unmeasured)


def identity_words(identity: Identity) -> str:
    """The identity in a sentence: `main (1a2b3c4d5e6f)`, `WORKTREE (6f5e4d3c2b1a, dirty)`."""
    spec = plain(identity.spec, 80)
    if identity.kind in ("directory", "wheel", "sdist"):
        spec = spec.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or spec
    resolved = plain(identity.resolved)
    known = resolved[:12] if identity.kind in ("git", "worktree") else _short_digest(resolved)
    if identity.kind == "git" and identity.resolved.startswith(identity.spec):
        spec = ""
    facts = [known] if known not in ("", spec) else []
    if identity.details.get("dirty"):
        facts.append("dirty")
    return f"{spec} ({', '.join(facts)})" if spec and facts else spec or ", ".join(facts)


def _short_digest(resolved: str) -> str:
    name, colon, digest = resolved.rpartition(":")
    if len(digest) == 64 and set(digest) <= set("0123456789abcdef"):
        return f"{name or 'sha256'}{colon or ' '}{digest[:12]}"
    return plain(resolved, 80)


def identity_facts(identity: Identity) -> list[tuple[str, str]]:
    """Everything known about the identity, as (name, value)."""
    facts = [("spec", identity.spec), ("kind", identity.kind)]
    if identity.resolved not in identity.details.values():
        facts.append(("resolved", identity.resolved))
    names = [n for n in IDENTITY_FACTS if n in identity.details]
    names += sorted(set(identity.details) - set(names))
    for name in names:
        value = identity.details[name]
        facts.append((name, {True: "yes", False: "no"}[value] if isinstance(value, bool) else value))
    return facts


def label(target: TargetResult, result: RunResult) -> str:
    """The target's name, with the head when there are several."""
    return f"{target.name} against {target.head}" if len(result.heads) > 1 else target.name


def by_weight(targets: Sequence[TargetResult]) -> list[TargetResult]:
    """The targets, different ones first, otherwise in the order of the run."""
    return sorted(targets, key=lambda t: ORDER.index(Verdict(t.verdict)))


def counts_words(target: TargetResult) -> str:
    """`2560 cases: 2548 identical, 12 different`, without the counts that are zero."""
    cases = target.cases
    if not total(cases):
        return "same code, not executed" if target.code == "same" else "no case compared"
    parts = [
        f"{count} {word}"
        for count, word in (
            (cases.different, "different"),
            (cases.expected, "expected"),
            (cases.identical, "identical"),
            (cases.unmeasured, "not measured"),
        )
        if count
    ]
    return f"{plural(total(cases), 'case')}: {', '.join(parts)}"


def kinds_words(kinds: Mapping[str, int]) -> str:
    """`value 27, exception 3`, most frequent first."""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items(), key=lambda k: (-k[1], k[0])))


def place(mismatch: Mismatch) -> str:
    """Where a mismatch is: `return[1, 3], request 1`."""
    index = f"[{', '.join(map(str, mismatch.index))}]" if mismatch.index else ""
    request = "" if mismatch.request is None else f", request {mismatch.request}"
    return f"{mismatch.leaf}{index}{request}"


def extent(mismatch: Mismatch) -> str:
    """How much of the leaf differs: `3 of 64 elements differ (4.69 %)`."""
    at = "" if mismatch.byte is None else f", the first at byte {mismatch.byte}"
    if mismatch.kind not in (Kind.VALUE, Kind.SIGN_OF_ZERO, Kind.NAN_PAYLOAD, Kind.MUTATION, Kind.UNDEFINED, Kind.RNG):
        return ""
    if mismatch.size:
        elements = plural(mismatch.size, "element")
        return f"{mismatch.count} of {elements} differ ({share(mismatch.count, mismatch.size)}){at}"
    return ""  # its detail says what there is of it


def contract_words(mismatch: Mismatch) -> str:
    return "inside the contract" if mismatch.contract else "outside the contract"


def contract_split(target: TargetResult) -> str:
    """How the different cases fall inside and outside the target's contract; empty when all are inside."""
    outside = target.outside_contract
    if not outside:
        return ""
    inside = target.cases.different - outside
    return (
        f"{plural(inside, 'case')} inside the contract, {outside} outside" if inside > 0 else "all outside the contract"
    )


def aa_words(target: TargetResult) -> str:
    """The A/A control in words; empty when it was not run."""
    if not target.aa:
        return ""
    return f"base against base: {target.aa.get('differences', 0)} of {target.aa.get('cases', 0)} differ"


def mode_words(mode: str) -> str:
    """How the code ran, with what that leaves open."""
    return f"{mode} ({INTERPRETER_LIMIT})" if mode == INTERPRETER else mode


def input_lines(targets: Sequence[TargetResult], result: RunResult) -> list[str]:
    """Over which inputs each target was compared: `v1.min_p: 187 grid cases over sequence, steps, vocab`. An axis of
    which the cases have one value is none that they were compared over."""
    lines = []
    for target in targets:
        kinds = " and ".join(f"{count} {source}" for source, count in target.sources.items()) or target.cases.executed
        cases = f"{kinds} {'case' if target.cases.executed == 1 else 'cases'}"
        varied = [axis for axis, values in target.axes.items() if len(values) > 1]
        axes = ", ".join(plain(axis, 40) for axis in varied[:AXES_SAID])
        more = f" and {len(varied) - AXES_SAID} more" if len(varied) > AXES_SAID else ""
        lines.append(f"{plain(label(target, result), 120)}: {cases}{f' over {axes}{more}' if axes else ''}")
    return lines


def symbol_words(target: TargetResult) -> str:
    """The bound symbol, once when both arms have the same."""
    base, head = (plain(target.symbol.get(arm) or "none", 300) for arm in ("base", "head"))
    return base if base == head else f"base {base}, head {head}"


def why_unmeasured(target: TargetResult) -> str:
    """What of this target was not measured and why; empty when everything was."""
    if target.verdict == Verdict.UNMEASURED:
        reason = target.reason or "no reason was recorded"
        share = f"{target.cases.unmeasured} of {total(target.cases)}"
        partly = target.cases.unmeasured and total(target.cases) > target.cases.unmeasured
        return f"{share} cases: {reason}" if partly and not reason.startswith(share) else reason
    if target.cases.unmeasured:
        cases = f"{target.cases.unmeasured} of {total(target.cases)} cases"
        found = [match for note in target.notes if (match := _NOT_MEASURED.fullmatch(note))]
        why = "; ".join(f"{each[2]} ({each[1]})" if len(found) > 1 else each[2] for each in found)
        return f"{cases}: {why or 'base was not deterministic, or both arms failed alike'}"
    return ""


def seconds_words(seconds: float) -> str:
    """`0.01 s`, `3.2 s`, `75 s`."""
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"


def left_out(target: TargetResult) -> int:
    """How many mismatches the result counts but does not carry."""
    return max(0, target.mismatches_total - len(target.mismatches))


def aa_lines(result: RunResult) -> list[str]:
    """The A/A control of the run in one line, and a line for each target whose base was not deterministic."""
    run = [t for t in result.targets if t.aa]
    if not run:
        return []
    cases, differences = (sum(t.aa.get(key, 0) for t in run) for key in ("cases", "differences"))
    unsteady = [t for t in run if t.aa.get("differences")]
    return [
        f"base against base: {differences} of {cases} differ",
        *(f"{plain(label(t, result), 120)}: {aa_words(t)}" for t in unsteady),
    ]


def host_words(target: TargetResult) -> str:
    """What its stand-ins were told of the captured engine's host: `vllm.triton_utils:HAS_TRITON False`."""
    return ", ".join(f"{name} {value}" for name, value in target.host.items())


def standin_lines(result: RunResult) -> list[str]:
    """A line for each stand-in with the targets that touched it, and for what a capture told stand-ins of its host."""
    touched: dict[str, list[str]] = {}
    for target in result.targets:
        for name in target.standins if target.mode != NOT_EXECUTED else ():
            names = touched.setdefault(name, [])
            if target.name not in names:
                names.append(target.name)
    told: dict[str, list[str]] = {}
    for target in result.targets:
        if target.host:
            told.setdefault(host_words(target), []).append(label(target, result))
    return [
        *(f"{plain(name, 200)}: {_some(names)}" for name, names in sorted(touched.items())),
        *(f"host of the capture, {plain(text, 400)}: {_some(names)}" for text, names in told.items()),
    ]


def adapter_lines(result: RunResult) -> list[str]:
    """A line for each adapter with the targets that used it."""
    used: dict[str, list[str]] = {}
    for target in result.targets:
        for text in target.adapters:
            used.setdefault(text, []).append(label(target, result))
    return [f"{_some(names)}: {plain(text, 400)}" for text, names in used.items()]


def note_lines(result: RunResult) -> list[str]:
    """The notes of the run, then those of the targets; a note that several targets share is one line."""
    shared: dict[str, list[str]] = {}
    for target in result.targets:
        for text in target.notes:
            if target.verdict != Verdict.UNMEASURED and _NOT_MEASURED.fullmatch(text):
                continue  # said where it is said what was not measured
            shared.setdefault(text, []).append(label(target, result))
    own = [f"{_some(names)}: {plain(text, 400)}" for text, names in shared.items()]
    return [plain(text, 400) for text in result.notes] + own


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(plain(name, 120) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def mode_lines(result: RunResult) -> list[str]:
    """Each mode that ran, with how many targets ran in it and what it leaves open."""
    counts: dict[str, int] = {}
    for target in result.targets:
        counts[target.mode] = counts.get(target.mode, 0) + 1
    return [f"{plain(mode_words(mode), 200)}: {plural(count, 'target')}" for mode, count in counts.items()]


def not_measured_lines(result: RunResult) -> list[str]:
    """A line for each target of which something was not measured."""
    found = ((label(t, result), why_unmeasured(t)) for t in by_weight(result.targets))
    return [f"{plain(name, 120)}: {plain(why, 400)}" for name, why in found if why]


def expected_lines(result: RunResult) -> list[str]:
    """A line for each target that differs as an expect file says, with the reason given there."""
    named = [t for t in result.targets if t.verdict == Verdict.EXPECTED]
    return [f"{plain(label(t, result), 120)}: {plain(t.reason or 'no reason given', 400)}" for t in named]


def both_raised_lines(result: RunResult) -> list[str]:
    """A line for each target with cases in which both arms raised the same exception."""
    raised = [t for t in result.targets if t.both_raised]
    return [f"{plain(label(t, result), 120)}: {plural(t.both_raised, 'case')}" for t in raised]


def relation_lines(result: RunResult) -> list[str]:
    """Invariants and relations: those that hold in one line, a line for each that an arm breaks."""
    held = checked = 0
    broken: list[str] = []
    for target in result.targets:
        for name, counts in target.relations.items():
            head, base, number = counts.get("head", 0), counts.get("base", 0), counts.get("checked", 0)
            checked += 1
            held += not head and not base
            if not head and not base:
                continue
            where = f"{plain(label(target, result), 120)}: {plain(name, 200)}"
            if head == base:
                said = f"base breaks it, too: both versions, in {base} of {number} cases each"
            elif head and base:
                said = f"base breaks it, too: base in {base} of {number} cases, head in {head}"
            else:
                said = f"broken in {head or base} of {number} cases in {'head' if head else 'base'} only"
            broken.append(f"{where}: {said}")
    return [f"{held} of {plural(checked, 'relation')} hold in both arms", *broken] if checked else []


def exercise_lines(result: RunResult, most: int = 4) -> list[str]:
    """With `--lines`, a line for each target: its cases and axes, how many lines of head's code ran, which did not."""
    found = []
    for target in result.targets:
        seen = target.closure.get("head", {}).get("exercise")
        if not seen:
            continue
        text = f"{plural(target.cases.executed, 'case')} over {len(target.axes) or 'no'} named axes"
        text += f", {seen['executed']} of {plural(seen['lines'], 'line')} of head's functions executed"
        missed = [f"{path} {numbers}" for path, numbers in seen["missed"].items()]
        if missed:
            text += f"; not executed: {_some(missed, most)}"
        if seen["unused"]:
            text += f"; never entered: {_some(seen['unused'], most)}"
        found.append(f"{plain(label(target, result), 120)}: {plain(text, 1200)}")
    return found


def environment_words(result: RunResult) -> list[tuple[str, str]]:
    """The environment as (name, value)."""
    return [(plain(key, 80), plain(value, 400)) for key, value in result.environment.items()]


def time_words(result: RunResult) -> str:
    """Wall time by phase: `total 15.5 s, lift 0.80 s`."""
    return ", ".join(f"{plain(phase, 80)} {seconds_words(value)}" for phase, value in result.seconds.items())


def reduced_lines(result: RunResult) -> list[str]:
    """The differing cases that were made small; how to have that, when there are none."""
    lines = []
    for target in result.targets:
        for item in target.reduced:
            what = f"{label(target, result)}: {item.kind} at {item.leaf}"
            if item.reason:
                lines.append(f"{what}: case {item.original} could not be made small: {item.reason}")
                continue
            folder = Path(*Path(item.path).parts[-3:])  # from beside the folder that was asked for
            sizes = ", ".join(
                f"{name} {before} to {after}" if before != after else f"{name} {after}"
                for name, (before, after) in (
                    ("bytes", item.bytes), ("requests", item.requests), ("longest axis", item.largest_axis),
                )
            )  # fmt: skip
            lines.append(f"{what}: {sizes}; base {item.base}, head {item.head}; {folder}/reproduce.py shows it")
    if not lines and result.command.startswith("difftest run ") and any(t.mismatches for t in result.targets):
        lines.append("--out DIR makes the first differing cases small and writes a script for each that shows it")
    return lines


def unreached_lines(result: RunResult) -> list[str]:
    """What changed and no target reaches, a file a line."""
    files: dict[str, list[str]] = {}
    for symbol in result.unreached:
        module, _, name = symbol.partition(":")
        files.setdefault(module, []).append(name)
    lines = [f"{plain(module, 120)}: {_some([plain(n, 80) for n in names], 6)}" for module, names in files.items()]
    more = [f"and {plural(len(lines) - UNREACHED_FILES, 'more file')}"] if len(lines) > UNREACHED_FILES else []
    return [f"changed, and reached by no target: {line}" for line in lines[:UNREACHED_FILES]] + more


def unexecuted_lines(items: Iterable[Unexecuted]) -> list[str]:
    """Changed lines of identical targets that no case ran, a definition a line."""
    found = sorted(items, key=lambda item: not item.whole)
    lines = []
    for item in found[:UNEXECUTED]:
        which = f"line{'s' * (len(item.lines) > 1)} {ranges(item.lines)} of {plain(item.path, 120)}"
        which += " in base" * (item.arm == "base")
        alone = f"reached by {item.arm} alone"
        part = f"{len(item.lines)} of {item.changed} lines that changed or are {alone}"
        part = f"what changed or is {alone}" if item.whole else part
        cases = f"the {plural(item.of, 'identical case')} of {_some(item.targets, 2)}"
        ran = f"run by none of {cases}"
        if item.cases < item.of:
            ran = f"run by none of those {item.cases} of {cases} that there was time to look at"
        lines.append(f"{plain(item.symbol, 160)}: {part} ({which}): {ran}")
    more = [f"and {plural(len(found) - UNEXECUTED, 'more definition')}"] if len(found) > UNEXECUTED else []
    return lines + more


def remarks(result: RunResult) -> list[tuple[str, list[str]]]:
    """What bears on the verdicts besides the mismatches: (title, lines), topics without lines left out."""
    topics = [
        ("Not measured", not_measured_lines(result)),
        ("Not run", unexecuted_lines(result.unexecuted)),
        ("Not reached", unreached_lines(result)),
        ("Expected", expected_lines(result)),
        ("Small cases", reduced_lines(result)),
        ("A/A control", aa_lines(result)),
        ("Both raise alike", both_raised_lines(result)),
        ("Relations", relation_lines(result)),
        ("Lines executed", exercise_lines(result)),
        ("Stand-ins", standin_lines(result)),
        ("Adapters", adapter_lines(result)),
        ("Modes", mode_lines(result)),
        ("Notes", note_lines(result)),
    ]
    return [(title, lines) for title, lines in topics if lines]
