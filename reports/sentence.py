"""The sentence that an author pastes into a pull request. It claims what was compared and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from difftest.result import (
    BUDGET_CUT,
    EXAMPLES_CUT,
    NEEDS_ACCELERATOR,
    UNUSED_ENTRY,
    CaseCounts,
    Identity,
    RunResult,
    TargetResult,
    Verdict,
    is_outside_note,
)

from .words import (
    INTERPRETER,
    INTERPRETER_LIMIT,
    NOT_EXECUTED,
    ORDER,
    identity_words,
    kinds_words,
    plain,
    plural,
    total,
)

NAMED = 3
"""A group of at most so many targets is named one by one; a larger one is counted."""

EXCEPTIONS = {"type": "exception type", "message": "exception type and message", "any": "raised or not"}


def sentence(result: RunResult) -> str:
    """One line: the verdict, what was compared per target, both identities, how it ran.

    The environment keys `device`, `torch` and `exceptions` (the comparison policy) are read where present.
    """
    compared = _compared(result)
    parts: list[str] = []
    heads = {head.spec: identity_words(head) for head in result.heads}
    heads |= {t.head: plain(t.head, 80) for t in result.targets if t.head not in heads}
    for spec, words in heads.items():
        targets = [t for t in result.targets if t.head == spec]
        clauses = [clause for verdict in ORDER for clause in _clauses(targets, verdict)]
        several = f"head {words}: " if len(heads) > 1 else ""
        parts.append(several + ("; ".join(clauses) or "nothing was compared"))
    said = "; ".join(parts)
    mark = "\0"
    before, found, after = said.partition(mark)
    said = before + f" ({compared})" * bool(found) + after.replace(mark, "")
    said += _unexecuted(result) + _unreached(result) + _unused(result)
    return f"difftest: {result.verdict}. {said}; {_where(result.base, result.heads)}{_how(result)}."


def _unexecuted(result: RunResult) -> str:
    """Definitions with lines that changed, or that one version alone reaches, and no case ran; whole ones first."""
    found = sorted(result.unexecuted, key=lambda item: not item.whole)
    if not found:
        return ""
    first, looked, every = found[0], sum(i.cases for i in found), sum(i.of for i in found)
    who = "by no case" if looked == every else "by none of the cases looked at, which are not all"
    part = "" if first.whole else f" ({len(first.lines)} of {first.changed} lines)"
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"; changed, or reached by one version alone, and run {who}: {plain(first.symbol, 120)}{part}{more}"


def _unreached(result: RunResult) -> str:
    """Changed code of which nothing is claimed."""
    if not result.unreached:
        return ""
    first = plain(result.unreached[0], 120)
    more = f" and {len(result.unreached) - 1} more" if len(result.unreached) > 1 else ""
    return f"; changed and reached by no target: {first}{more}"


def _unused(result: RunResult) -> str:
    """Entries of the expect file that matched nothing, which fail a run that is all right but for them."""
    count = sum(note.startswith(UNUSED_ENTRY) for note in result.notes)
    if not count:
        return ""
    return f"; {count} {'entry' if count == 1 else 'entries'} of the expect file matched nothing"


def _compared(result: RunResult) -> str:
    exception = EXCEPTIONS.get(str(result.environment.get("exceptions", "")), "exception")
    return f"return, {exception}, inputs after, RNG, aliasing"


def _clauses(targets: Sequence[TargetResult], verdict: Verdict) -> list[str]:
    """One clause for each target of this verdict, or one for all of them when they are many."""
    groups: dict[str, list[TargetResult]] = {}
    for target in targets:
        if target.verdict == verdict:
            executed = bool(total(target.cases))
            groups.setdefault(f"{target.mode if executed else target.code}/{executed}", []).append(target)
    found = []
    for group in groups.values():
        if len(group) <= NAMED:
            found += [_clause(plain(t.name, 120), [t]) for t in group]
        else:
            names = f" (first {plain(group[0].name, 120)})" if verdict != Verdict.IDENTICAL else ""
            found.append(_clause(f"{len(group)} targets{names}", group))
    return found


def _clause(name: str, group: Sequence[TargetResult]) -> str:
    """What a group of targets of one verdict and mode came to. A NUL marks where fields may be listed."""
    first = group[0]
    cases = CaseCounts(
        *(
            sum(getattr(t.cases, field) for t in group)
            for field in ("executed", "identical", "different", "expected", "unmeasured")
        )
    )
    count = sum(total(t.cases) for t in group)
    if first.verdict == Verdict.UNMEASURED:
        reason = plain(first.reason or "no reason was recorded", 200)
        if not cases.identical + cases.expected:
            return f"{name}: not compared, {reason}"
    elif not count:
        return f"{name}: same code, not executed" if first.code == "same" else f"{name}: no case was compared"

    parts = []
    if cases.different:
        kinds: Counter[str] = Counter()
        for target in group:
            kinds.update(target.kinds)
        outside = sum(t.outside_contract for t in group)
        inside = cases.different - outside
        split = ""
        if outside:
            split = f", {inside} inside the contract and {outside} outside" if inside > 0 else ""
            split = split or ", all outside the contract"
        by_kind = f" (mismatches: {kinds_words(kinds)})" if kinds else ""
        parts.append(f"{cases.different} of {_differ(cases.different, count)}{by_kind}{split}")
    if cases.expected:
        said = f"of {_differ(cases.expected, count)}" if not parts else "differs" if cases.expected == 1 else "differ"
        parts.append(f"{cases.expected} {said} as the expect file says")
    raised = sum(t.both_raised for t in group)
    raised_words = f", both arms raising the same exception in {raised} of them" if raised else ""
    if cases.identical or not parts:
        parts.append(_same(cases.identical, 0 if parts else count, first.mode) + raised_words)
    elif first.mode == INTERPRETER:
        parts.append(f"under Triton's interpreter, which {INTERPRETER_LIMIT}")
    if first.verdict == Verdict.UNMEASURED:
        parts.append(f"{cases.unmeasured} not compared, {reason}" if cases.unmeasured else reason)
    elif cases.unmeasured:
        parts.append(f"{cases.unmeasured} not measured")
    if any(note.startswith("cases from the signature of ") for note in first.notes):
        parts.append("cases from its signature")
    parts += dict.fromkeys(note.partition(";")[0] for t in group for note in t.notes if NEEDS_ACCELERATOR in note)
    parts += dict.fromkeys(note.partition(",")[0] for t in group for note in t.notes if is_outside_note(note))
    cuts = [note for t in group for note in t.notes if note.startswith((EXAMPLES_CUT, BUDGET_CUT))]
    parts += dict.fromkeys(f"further cases left out{_limit(note)}" for note in cuts)
    for where in ("inside", "outside"):
        if any(note.endswith(f"left out: only those {where} the contract were run") for t in group for note in t.notes):
            parts.append(f"only cases {where} the contract run")
    return f"{name}: {', '.join(parts)}"


def _limit(note: str) -> str:
    """By which limit cases were left out, of the note that says so."""
    return f" by {note.partition(':')[0]}" if note.startswith(EXAMPLES_CUT) else f", {BUDGET_CUT}"


def _differ(differing: int, count: int) -> str:
    return f"{plural(count, 'case')} {'differs' if differing == 1 else 'differ'}"


def _same(identical: int, count: int, mode: str) -> str:
    amount = f"{identical} of {plural(count, 'case')}" if count else str(identical)
    if mode == INTERPRETER:
        return f"{amount} equal under Triton's interpreter\0, which {INTERPRETER_LIMIT}"
    return f"{amount} byte-identical\0"


def _where(base: Identity, heads: Sequence[Identity]) -> str:
    named = f", head {identity_words(heads[0])}" if len(heads) == 1 else ""
    return f"base {identity_words(base)}{named}"


def _how(result: RunResult) -> str:
    """Device, modes, stand-ins and torch version; the first three only for what ran."""
    ran = [t for t in result.targets if total(t.cases) > t.cases.unmeasured or t.cases.different]
    modes = list(dict.fromkeys(plain(t.mode, 40) for t in ran if t.mode != NOT_EXECUTED))
    device = plain(result.environment.get("device", ""), 40)
    device = device.upper() if device in ("cpu", "cuda") else device
    parts = [f"{device} {' and '.join(modes)}".strip()] if modes else []
    standins = {name for t in ran for name in t.standins}
    if standins:
        parts.append(plural(len(standins), "stand-in"))
    if host := {name for t in ran for name in t.host}:
        parts.append(f"{plural(len(host), 'host fact')} of the capture")
    adapters = {text for t in ran for text in t.adapters}
    if adapters:
        alone = {text for t in ran for text in t.adapters if text.partition(": ")[2] not in _of_both(t.adapters)}
        parts.append(plural(len(adapters), "adapter") + f" ({len(alone)} for one version alone)" * bool(alone))
    if ran and result.environment.get("torch"):
        parts.append(f"torch {plain(result.environment['torch'], 40)}")
    return "".join(f", {part}" for part in parts)


def _of_both(adapters: Iterable[str]) -> set[str]:
    """The adapters that both versions have."""
    base, head = (
        {said for arm, _, said in (text.partition(": ") for text in adapters) if (arm == "base") is of_base}
        for of_base in (True, False)
    )
    return base & head
