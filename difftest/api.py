"""What the command line does, as plain functions. No torch in this process.

result = run(RunOptions(base="main", heads=("my-branch",)))
print(result.verdict, result.exit_code)
"""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import difftest
from difftest import catalog
from difftest.errors import NothingCompared, NotWritten, TreeError, UsageError
from difftest.expect import Expectation, unused
from difftest.expect import load as load_expectations
from difftest.lift.lines import exercise
from difftest.lift.numbers import code_numbers
from difftest.record import cases as recordings
from difftest.record.casefile import SUFFIX, CaseFile, read_case
from difftest.result import (
    BUDGET_CUT,
    EXAMPLES_CUT,
    MISMATCHES_SHOWN,
    NOT_EXECUTED,
    UNUSED_ENTRY,
    CaseCounts,
    Identity,
    RunResult,
    TargetResult,
    Unexecuted,
    Verdict,
    is_outside_note,
    overall,
)
from difftest.run import found as found_cases
from difftest.run.causes import Compared, find_causes, look_ahead, mismatch_of
from difftest.run.plan import (
    ArmSource,
    Planned,
    Planner,
    arm_setup,
    arm_sources,
    refuse_without_package,
    without_helpers,
    write_closures,
)
from difftest.run.reduction import Found, Request, reduce_found
from difftest.run.supervisor import Supervisor, Unit, started
from difftest.run.unexecuted import unexecuted
from difftest.run.unreached import unreached
from difftest.shrink.reproducer import CASE as CASE_FILE
from difftest.trees import Tree, open_tree
from difftest.trees.cache import cache_folder, using
from difftest.trees.git import Repository, merge_base

RECORDED_COUNTS = (
    "calls", "exact", "repeats", "repeats_exact", "as_recorded", "not_as_recorded", "not_compared", "twins",
    "twins_apart",
)  # fmt: skip
EXPLAIN_SECONDS = 1.5
EXPLAIN_SHARE = 0.15
"""Looking for causes takes at most so much processor time, or that share of the run before it, for all targets."""
CASE_KINDS = ("grid", "fuzz", "recorded")


@dataclass(frozen=True)
class RunOptions:
    """A request to compare. Names follow the command line of `difftest run`.

    Attributes:
        base, heads: trees, as :func:`difftest.trees.open_tree` takes them.
        repo: git repository for revisions; the one around the current folder when None.
        targets: names, globs or raw symbols; all targets when empty.
        cases: kinds of cases to run, of :data:`CASE_KINDS`; grid and recorded ones when empty.
        case: run only the case with this id (or a prefix of it), whichever target has it, or that of this case file;
            ids of what earlier fuzzes drew are known where `out` is the folder that they were kept in.
        budget: seconds for the whole run, examples: cases per target; no limit when None.
        execute_same: run targets whose code is the same in both arms too (`--all`).
        contract: which cases to run: `all`, those `inside` the target's contract (`--contract-only`), or `outside`.
        exceptions: `type`, `message` or `any`.
        jobs: children at work; as many as cores when None.
        recorded: captures whose calls are cases, too, and case files, alone or in folders (`--recorded`).
        repeat: how often each recorded call is made in each arm; every time must be exact.
        lines: count which lines of each closure the cases execute (`--lines`); slower.
        expect: manifest of expected differences (:mod:`difftest.expect`).
        explain: look for the cause of what differs, in at most :data:`EXPLAIN_SECONDS` in all.
        out: folder for what is found: the differing cases, made small, each with a script that shows the difference.
        shrink: seconds for making one differing case small; at most three of a target are.
        command: the command line, for the report.
    """

    base: str
    heads: tuple[str, ...]
    repo: Path | None = None
    targets: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    case: str | None = None
    budget: float | None = None
    examples: int | None = None
    seed: int = 0
    device: str = "cpu"
    host: str | None = None
    exceptions: str = "message"
    cases_from: tuple[Path, ...] = ()
    execute_same: bool = False
    contract: str = "all"
    jobs: int | None = None
    timeout: float | None = None
    recorded: tuple[Path, ...] = ()
    repeat: int = 1
    lines: bool = False
    expect: Path | None = None
    explain: bool = True
    out: Path | None = None
    shrink: float = 10.0
    cache: Path | None = None
    command: str = ""


class Observer(Protocol):
    """Is told how a run goes. The terminal's progress display is one."""

    def begin(self, targets: int) -> None: ...

    def target(self, name: str, total_cases: int) -> None: ...

    def advance(self, name: str, done: int) -> None: ...

    def finish(self, result: TargetResult) -> None: ...


class Silent:
    """An observer that shows nothing."""

    def begin(self, targets: int) -> None:
        pass

    def target(self, name: str, total_cases: int) -> None:
        pass

    def advance(self, name: str, done: int) -> None:
        pass

    def finish(self, result: TargetResult) -> None:
        pass


@dataclass
class _Run:
    """The parts of one run while it is under way."""

    options: RunOptions
    observer: Observer
    scratch: Path
    base: ArmSource
    heads: list[ArmSource]
    planner: Planner
    planned: list[Planned] = field(default_factory=list)
    expected: tuple[Expectation, ...] = ()
    alone: bool = False
    expected_used: set[int] = field(default_factory=set)
    results: dict[int, TargetResult] = field(default_factory=dict)
    shares: dict[int, list[Unit]] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    unexecuted: tuple[Unexecuted, ...] = ()


def run(options: RunOptions, observer: Observer | None = None, supervisor: Supervisor | None = None) -> RunResult:
    """Compare base with each head and say what differs.

    Args:
        supervisor: one that has started and was not used yet, for the same device and jobs; else one is started.

    Raises:
        NotWritten: not all of what was found could be written below `out`; it holds the result.
        DifftestError: the request cannot be carried out; its `exit_code` is the process's.
    """
    began = time.monotonic()
    _check(options)
    options, alone = _with_case_file(options)
    expected = load_expectations(options.expect) if options.expect else ()
    cache = cache_folder(options.cache)
    with using(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        base_tree = stack.enter_context(open_tree(options.base, options.repo, cache))
        head_trees = [stack.enter_context(open_tree(head, options.repo, cache)) for head in options.heads]
        _refuse_expired(expected, head_trees, options.repo)
        # The worker imports torch while this process binds and lifts.
        supervisor = supervisor or stack.enter_context(started(options.device, options.jobs))
        scratch = supervisor.scratch
        outlines = _outlines(options, cache)
        state = _arms(options, observer or Silent(), scratch, base_tree, head_trees)
        state.expected, state.alone = expected, alone
        _refuse_unknown_targets(options, expected, cache)
        chosen = state.planner.select(outlines, options.targets, [state.base, *state.heads])
        _refuse_unrecorded_targets(options, outlines, chosen)
        refuse_without_package(chosen, [state.base, *state.heads])
        explicit = {o.name for o in chosen} if options.targets and not _has_glob(options.targets) else set()
        for outline in chosen:
            for index, head in enumerate(state.heads):
                item = state.planner.plan(outline, state.base, head, index)
                # What was recorded was asked for; of the catalog, what neither tree has was not.
                if item.code == "absent" and outline.name not in explicit and not outline.recorded:
                    continue
                state.planned.append(item)
        state.planned = without_helpers(state.planned, options.targets)
        if not any(item.code != "absent" or item.outline.name in explicit for item in state.planned):
            raise NothingCompared(no_target(options.targets, options.recorded))
        lifted = time.monotonic()
        state.observer.begin(len(state.planned))
        _execute(state, supervisor)
        if options.out is not None:
            _reduce(state, supervisor)
        results = tuple(state.results[i] for i in range(len(state.planned)))
        if options.case:
            _refuse_unknown_case(options, results)
            results = _of_one_case(results)
        compared = sum(r.cases.executed or (r.code == "same") for r in results)
        verdict = overall([r.verdict for r in results])
        notes = _unmet(state, results)
        if notes and verdict is not Verdict.DIFFERENT:
            verdict = Verdict.UNMEASURED
        if not compared and verdict is Verdict.IDENTICAL:
            verdict = Verdict.UNMEASURED
        if verdict is Verdict.DIFFERENT:
            notes += _went_on(base_tree.identity, [tree.identity for tree in head_trees], options.repo)
        result = RunResult(
            verdict=verdict,
            base=base_tree.identity,
            heads=tuple(tree.identity for tree in head_trees),
            environment={
                **environment(options.device, options.host),
                "exceptions": options.exceptions,
                "seed": options.seed,
                **({"sandbox": supervisor.sandbox} if supervisor.sandbox else {}),
            },
            targets=results,
            seconds={"total": round(time.monotonic() - began, 3), "lift": round(lifted - began, 3)},
            command=options.command or _command(options),
            notes=(*notes, *state.lost),
            unreached=_unreached(state),
            unexecuted=state.unexecuted,
        )
        if state.lost:
            raise NotWritten("; ".join(state.lost), result)
        return result


def _went_on(base: Identity, heads: Sequence[Identity], repo: Path | None) -> tuple[str, ...]:
    """That base has commits that a head lacks: what they change differs, too, and is none of the head's doing."""
    said = []
    for head in heads:
        if base.kind != "git" or head.kind not in ("git", "worktree"):
            continue
        tips = [str(identity.details["commit"]) for identity in (base, head)]
        common = Repository.find(repo).common(*tips)
        if common and common[0] not in tips:
            said.append(
                f"{base.spec} has commits that {head.spec} lacks, and what these change counts as different, too; "
                f"--base {common[0][:12]}, where the two parted, leaves it out"
            )
    return tuple(said)


def _unreached(state: _Run) -> tuple[str, ...]:
    """What no target of the whole catalog reaches of what changed; of a choice of targets, others may."""
    if state.options.targets or state.options.recorded or state.options.case:
        return ()
    return unreached(state.planned, state.base, state.heads)


def no_target(targets: Sequence[str], recorded: Sequence[Path] = ()) -> str:
    """What to say when neither tree has a symbol that was looked for."""
    whose = f"of {', '.join(targets)}" if targets else "that was recorded" if recorded else "of the catalog"
    return f"base and head share no target: neither tree has a symbol {whose}; difftest targets --base TREE lists them"


def merge_base_of(heads: Sequence[str], repo: Path | None = None) -> str:
    """The merge base of the first head with the default branch: what `difftest run` compares with unless told.

    Raises:
        TreeError: no repository, no default branch, or no common commit.
    """
    return merge_base(repo, "HEAD" if heads[0] == "WORKTREE" else heads[0])


def _refuse_unknown_targets(options: RunOptions, entries: Sequence[Expectation], cache: Path) -> None:
    """A manifest serves replays and other case files, too, whose targets have names of their own: only what looks like
    a target of the catalog has to be one."""
    if not entries:
        return
    known = [outline.name for outline in catalog.outline(cache, [str(path) for path in options.cases_from])]
    families = {name.partition(".")[0] for name in known}
    for entry in entries:
        if entry.target.partition(".")[0] in families and not any(map(entry.covers_target, known)):
            raise UsageError(f"--expect {options.expect}: no target is {entry.target}; difftest targets lists them")


def _refuse_unrecorded_targets(
    options: RunOptions, outlines: Sequence[catalog.Outline], chosen: Sequence[catalog.Outline]
) -> None:
    """Recorded calls that were named, of which none is of a chosen target, would be left out without a word."""
    sites = ", ".join(outline.name for outline in outlines if outline.recorded)  # none of a file of one case
    if sites and options.targets and not any(outline.recorded for outline in chosen):
        places = ", ".join(map(str, options.recorded))
        raise UsageError(
            f"--recorded {places}: no call in it is of --target {', '.join(options.targets)}; it has {sites}"
        )


def _refuse_expired(entries: Sequence[Expectation], heads: Sequence[Tree], repo: Path | None) -> None:
    for entry in entries:
        if entry.expires is None:
            continue
        repository = Repository.find(repo)
        try:
            end = repository.commit(entry.expires).sha
        except TreeError as error:
            raise UsageError(f"the expected difference {entry.words()} expires with a revision: {error}") from None
        for head in heads:
            commit = head.identity.details.get("commit")
            if isinstance(commit, str) and repository.contains(commit, end):
                raise UsageError(
                    f"the expected difference {entry.words()} ({entry.reason}) expired with {entry.expires}, "
                    f"which {head.identity.spec} contains; remove the entry"
                )


def _outlines(options: RunOptions, cache: Path) -> list[catalog.Outline]:
    """The catalog, and the targets that captures make; with `--cases recorded` those that have recorded cases alone."""
    captures, files = recordings.given(options.recorded)
    found = recordings.outlines(captures, files)
    if options.recorded and not found and not files:
        raise NothingCompared(
            f"no call in {', '.join(map(str, options.recorded))} ended, so there is nothing to replay; capture again"
        )
    # What goes by a symbol is a function that no case file knows; its target is made when it is selected.
    named = {file.target for file in files if ":" not in file.target} - {o.name for o in found}
    if options.cases == ("recorded",) and options.recorded and not named:
        return found
    known = catalog.outline(cache, [str(p) for p in options.cases_from])
    if unknown := named - {o.name for o in known}:
        file = next(file for file in files if file.target in unknown)
        raise UsageError(f"{file.path} is a case of {file.target}, which no case file declares; give it --cases-from")
    if options.cases == ("recorded",) and options.recorded:
        known = [o for o in known if o.name in named]
    return [*known, *found]


def _with_case_file(options: RunOptions) -> tuple[RunOptions, bool]:
    """The options with what `--case FILE` stands for, and whether it is given: its target, and no case but its own."""
    if options.case is None:
        return options, False
    if (folder := Path(options.case)).is_dir() and (folder / CASE_FILE).is_file():
        options = replace(options, case=str(folder / CASE_FILE))
    if not str(options.case).endswith(SUFFIX):
        if not re.fullmatch(r"[0-9a-fA-F]{1,64}", str(options.case)):
            raise UsageError(
                f"--case {options.case} is neither an id, which is hexadecimal, nor a case file, which ends in {SUFFIX}"
            )
        options = replace(options, case=str(options.case).lower())
        drawn = () if options.out is None else found_cases.with_id(options.out, str(options.case))
        if drawn:
            return _of_files(options, drawn), True
        if options.cases == ("fuzz",):
            where = f"; {options.out} holds no such case" if options.out is not None else ""
            raise UsageError(
                f"--case {options.case}: what a fuzz draws is in no list{where}; give the --out DIR of the run that "
                "found it, or the case's file"
            )
        return replace(options, cases=tuple(kind for kind in options.cases if kind != "fuzz")), False
    return _of_files(options, [read_case(Path(str(options.case)).resolve())]), True


def _of_files(options: RunOptions, files: Sequence[CaseFile]) -> RunOptions:
    """The options for the cases of some files alone. They are recorded ones, whatever they were when they were kept."""
    return replace(
        options,
        case=None,
        cases=(),
        recorded=(*options.recorded, *[file.path for file in files]),
        targets=options.targets or tuple(dict.fromkeys(file.target for file in files)),
    )


def _unmet(state: _Run, results: Sequence[TargetResult]) -> tuple[str, ...]:
    """What the manifest says that is not so: entries that matched nothing, and could not have in cases left out."""
    if state.alone or state.options.case is not None:
        return ()
    return tuple(
        f"{UNUSED_ENTRY}: {entry.words()} ({entry.reason}); remove the entry"
        for entry in unused(state.expected, state.expected_used, results)
        if state.options.contract == "all" or entry.contract is not None
    )


def _check(options: RunOptions) -> None:
    if not options.heads:
        raise UsageError("no head to compare with; give --head TREE")
    if twice := [head for head in options.heads if options.heads.count(head) > 1]:
        raise UsageError(f"--head {twice[0]} was given twice; give it once")
    unknown = [kind for kind in options.cases if kind not in CASE_KINDS]
    if unknown:
        raise UsageError(f"--cases {unknown[0]} is not a kind of case; kinds: {', '.join(CASE_KINDS)}")
    if options.contract not in ("all", "inside", "outside"):
        raise UsageError(f"contract {options.contract} is none of all, inside, outside")
    if options.exceptions not in ("type", "message", "any"):
        raise UsageError(f"--exceptions {options.exceptions} is none of type, message, any")
    for name, value in (
        ("--budget", options.budget),
        ("--examples", options.examples),
        ("--jobs", options.jobs),
        ("--repeat", options.repeat),
        ("--shrink", options.shrink),
        ("--timeout", options.timeout),
    ):
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be more than 0, not {value:g}")
    if options.out is not None:
        found_cases.check_out(options.out)
    if "fuzz" in options.cases and importlib.util.find_spec("hypothesis") is None:
        raise UsageError("--cases fuzz needs Hypothesis: pip install 'difftest-sampler[fuzz]'")
    if options.lines and importlib.util.find_spec("coverage") is None:
        raise UsageError("--lines needs coverage.py: pip install 'difftest-sampler[lines]'")


def _has_glob(patterns: Sequence[str]) -> bool:
    return any(c in p for p in patterns for c in "*?[")


def _arms(options: RunOptions, observer: Observer, scratch: Path, base: Tree, heads: Sequence[Tree]) -> _Run:
    return _Run(options, observer, scratch, *arm_sources(scratch, base, heads, options.cache), Planner(options.host))


def _execute(state: _Run, supervisor: Supervisor) -> None:
    """Run what has to be run, and make a result of each planned target."""
    began = time.monotonic()
    options = state.options
    units: list[Unit] = []
    shares = state.shares
    for position, item in enumerate(state.planned):
        asked = options.execute_same or options.case is not None  # nobody knows before which target a case is of
        executes = item.code == "changed" or (item.code == "same" and asked)
        if not executes:
            state.results[position] = _unexecuted(state, item)
            state.observer.finish(state.results[position])
    todo = [i for i in range(len(state.planned)) if i not in state.results]
    if not todo:
        return
    write_closures([state.planned[i] for i in todo], state.base, state.heads)
    slots = len(supervisor.children)
    # One target: its cases are shared out. Many: each child takes whole targets.
    single = options.case is not None or options.examples is not None or state.alone
    ways = slots if len(todo) < slots * 2 and not single else 1
    for position in todo:
        item = state.planned[position]
        jobs: list[tuple[int, int, dict[str, Any] | None]] = [(share, ways, None) for share in range(ways)]
        if options.cases == ("fuzz",):
            jobs = []
        if "fuzz" in options.cases:  # never shared out: what is drawn does not depend on how many cores there are
            jobs.append((0, 1, _fuzz_of(state, item)))
        for share, total, fuzz in jobs:
            symbols = (item.base.symbol or "", item.head.symbol or "")
            labels = ("base", state.heads[item.head_index].label)
            timeout = options.timeout or item.outline.timeout
            unit = Unit(len(units), item.outline.name, symbols, labels, (share, total), timeout, position, fuzz)
            units.append(unit)
            shares.setdefault(position, []).append(unit)
        state.observer.target(item.outline.name, 0)
    package = state.planned[todo[0]].outline.package
    arms = {arm.label: arm for arm in (state.base, *state.heads)}
    modules = sorted({module for i in todo if (module := state.planned[i].outline.module)})
    supervisor.setup(
        {label: arm_setup(arm, package, state.scratch) for label, arm in arms.items()},
        modules,
        any(state.planned[i].outline.triton for i in todo),
        options.host,
        readable=[found_cases.folder(options.out)] if "fuzz" in options.cases and options.out else (),
        recorded=[path.resolve() for path in options.recorded],
        alone=state.alone,
        fuzz="fuzz" in options.cases,
        signatures=[text for text in {state.planned[i].outline.signature: None for i in todo} if text],
    )

    known = look_ahead({i: state.planned[i] for i in todo}, state.base, state.heads, supervisor.starting)

    def finished(unit: Unit) -> None:
        position = unit.planned
        if all(u.finished for u in shares[position]):
            state.results[position] = _executed(state, state.planned[position], shares[position])
            state.observer.finish(state.results[position])

    unit_options = state.asked = {
        "kinds": list(options.cases),
        "case": options.case,
        "examples": options.examples,
        "seconds": options.budget / len(todo) * min(slots, len(todo)) if options.budget else None,
        "contract": options.contract,
        "exceptions": options.exceptions,
        "expect": [asdict(entry) for entry in state.expected],
        "seed": options.seed,
        "repeat": options.repeat,
        "lines": options.lines,
        "keep": options.out is not None,
    }
    supervisor.run(
        units,
        arms,
        unit_options,
        lambda unit, done: state.observer.advance(unit.target, done),
        finished,
        time.monotonic() + options.budget if options.budget else None,
    )
    compared = {
        i: Compared(item := state.planned[i], shares[i], (state.base, state.heads[item.head_index]), state.results[i])
        for i in todo
    }
    differing = {i: each for i, each in compared.items() if each.result.verdict == Verdict.DIFFERENT}
    allowed = max(EXPLAIN_SECONDS, EXPLAIN_SHARE * (time.monotonic() - began))
    seconds = min(allowed, options.budget or allowed) if options.explain else None
    state.results |= find_causes(differing, supervisor, unit_options, seconds, known)
    if options.explain:
        changed = {i: each for i, each in compared.items() if each.planned.code == "changed"}
        identical = {
            i: each
            for i, each in changed.items()
            if each.result.verdict == Verdict.IDENTICAL and not any(unit.fuzz for unit in each.units)
        }
        others = {i: each for i, each in changed.items() if i not in identical and each.result.cases.executed}
        state.unexecuted = unexecuted(identical, others, supervisor, unit_options, known, options.budget)


def _fuzz_of(state: _Run, item: Planned) -> dict[str, Any]:
    """What the fuzz of a target is given."""
    arms = ((state.base, item.base), (state.heads[item.head_index], item.head))
    fresh, common = code_numbers((arm.tree.read, bound.closure) for arm, bound in arms if bound.closure is not None)
    out = state.options.out
    return {"numbers": [fresh, common], "kept": [] if out is None else found_cases.kept(out, item.outline.name)}


def _reduce(state: _Run, supervisor: Supervisor) -> None:
    """Make the differing cases small, and write their folders."""
    options = state.options
    assert options.out is not None
    found = {}
    for position, units in state.shares.items():
        mismatches = _in_order([{**m, "drawn": unit.fuzz is not None} for unit in units for m in unit.mismatches])
        drawn = list(dict.fromkeys(m["case"] for m in mismatches if m["drawn"]))
        try:
            kept = found_cases.keep(options.out, units[0].target, supervisor.scratch / "home", drawn)
        except UsageError as error:
            state.lost.append(str(error))
            kept = [case for case in drawn if found_cases.with_id(options.out, case)]
        result = state.results[position]
        state.results[position] = replace(result, notes=(*result.notes, *_drawn_notes(drawn, kept)))
        if mismatches:
            head = state.heads[state.planned[position].head_index].tree.identity
            identities = (state.base.tree.identity, head)
            found[position] = Found(units[0], mismatches, state.results[position], *identities)
    request = Request(
        options.out,
        options.shrink,
        options.repo or Path.cwd(),
        options.repo is not None,
        {
            "device": options.device,
            "host": options.host,
            "exceptions": options.exceptions,
            "seed": options.seed,
            "cases_from": [str(path.resolve()) for path in options.cases_from],
        },
        environment(options.device, options.host),
    )
    arms = {arm.label: arm for arm in (state.base, *state.heads)}
    results, lost = reduce_found(supervisor, arms, state.asked, list(found.values()), request)
    state.results.update(zip(found, results, strict=True))
    state.lost += dict.fromkeys(lost)


def _drawn_notes(drawn: Sequence[str], kept: Sequence[str]) -> list[str]:
    """How to run differing cases again that were drawn, and so are in no list."""
    notes = []
    if kept:
        notes.append(f"fuzz: {', '.join(kept)}: the same command with --case and one of these ids runs it alone")
    if lost := [case for case in drawn if case not in kept]:
        notes.append(f"fuzz: {', '.join(lost)}: not kept as a file; the same --seed and --examples draw it again")
    return notes


def _in_order(mismatches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of cases inside the contract first, then by case."""
    return sorted(mismatches, key=lambda m: (not m["contract"], m["number"]))


def _mode(item: Planned, device: str) -> str:
    if not item.outline.triton or not _reaches_triton(item):
        return "eager"
    return "triton-compiled" if device == "cuda" else "triton-interpreter"


def _reaches_triton(item: Planned) -> bool:
    """Whether either arm's code names Triton: a target that may launch kernels does so in some versions only, and of
    recorded calls nobody says it."""
    closures = [bound.closure for bound in (item.base, item.head) if bound.closure is not None]
    return any("triton" in name for closure in closures for name in {*closure.standins, *closure.external})


def _closures(item: Planned) -> dict[str, dict[str, Any]]:
    found = {}
    for name, bound in (("base", item.base), ("head", item.head)):
        if bound.closure is not None:
            closure = bound.closure
            files = sorted({p.path for p in closure.pieces.values() if not p.lazy})
            found[name] = {
                "digest": closure.digest,
                "pieces": len(closure.pieces),
                "lines": closure.lines,
                "files": files,
            }
    return found


def _with_lines(state: _Run, item: Planned, units: Sequence[Unit]) -> dict[str, dict[str, Any]]:
    """The closures, and which of their lines the cases executed."""
    found = _closures(item)
    arms = (("base", item.base, state.base), ("head", item.head, state.heads[item.head_index]))
    for number, (name, bound, source) in enumerate(arms):
        if bound.closure is not None:
            executed: dict[str, set[int]] = {}
            for unit in units:
                for (arm, path), lines in unit.lines.items():
                    if arm == number:
                        executed.setdefault(path, set()).update(lines)
            seen = exercise(bound.closure, source.tree.read, executed)
            found[name]["exercise"] = {**asdict(seen), "unused": list(seen.unused)}
    return found


def _unexecuted(state: _Run, item: Planned) -> TargetResult:
    identical = item.code == "same"
    return TargetResult(
        name=item.outline.name,
        head=state.options.heads[item.head_index],
        symbol={"base": item.base.symbol, "head": item.head.symbol},
        verdict=Verdict.IDENTICAL if identical else Verdict.UNMEASURED,
        reason=item.reason,
        code=item.code if item.code != "refused" else "changed",
        standins=item.standins,
        mode=NOT_EXECUTED,
        notes=() if identical else tuple(item.notes),
        closure=_closures(item),
    )


def _host(item: Planned, units: Sequence[Unit]) -> dict[str, str]:
    """What the stand-ins that the target touches were told of the captured engine's host."""
    found: dict[str, set[str]] = {}
    for unit in units:
        for name, values in unit.host.items():
            if name in item.standins or name.partition(":")[0] in item.standins:
                found.setdefault(name, set()).update(values)
    return {name: " or ".join(sorted(values)) for name, values in sorted(found.items())}


def _executed(state: _Run, item: Planned, units: Sequence[Unit]) -> TargetResult:
    counts: Counter[str] = sum((u.counts for u in units), Counter())
    kinds: Counter[str] = sum((u.kinds for u in units), Counter())
    unmeasured: Counter[str] = sum((u.unmeasured for u in units), Counter())
    mismatches = _in_order([m for u in units for m in u.mismatches])
    verdict, reason = Verdict.IDENTICAL, ""
    used: Counter[int] = sum((u.expected for u in units), Counter())
    state.expected_used.update(used)
    if counts["different"]:
        verdict = Verdict.DIFFERENT
    elif not counts["identical"] + counts["expected"]:
        verdict = Verdict.UNMEASURED
        reason = _reason(unmeasured) or _no_cases(state.options, counts)
    elif counts["unmeasured"] and any(u.recorded for u in units):
        verdict = Verdict.UNMEASURED
        reason = f"{counts['unmeasured']} of {counts['executed']} recorded calls: {_reason(unmeasured)}"
    elif counts["unmeasured"]:
        verdict, reason = _partly(counts, unmeasured)
    elif counts["both_raised"] and counts["both_raised"] == counts["identical"]:
        verdict, reason = Verdict.UNMEASURED, "not exercised: every case raised the same exception in both arms"
    if verdict is Verdict.IDENTICAL and counts["expected"]:
        verdict = Verdict.EXPECTED
        reason = "; ".join(dict.fromkeys(state.expected[number].reason for number in used))
    if item.unseen and verdict in (Verdict.IDENTICAL, Verdict.EXPECTED):
        verdict, reason = Verdict.UNMEASURED, item.unseen
    recorded = _recorded(units)
    if apart := sum(counts["not_as_recorded"] for counts in recorded.values()):
        text = f"base does not do what was recorded in {apart} of {counts['executed']} calls"
        first = next((text for u in units for text in u.apart), "")
        finding = f"{text}: the tree you named is not the one that was captured ({first})"
        if verdict in (Verdict.IDENTICAL, Verdict.EXPECTED):
            verdict, reason = Verdict.UNMEASURED, finding
        item.notes.append(finding)
    options = state.options
    said: dict[str, str] = {}
    for note in [n for u in units for n in u.notes]:  # each share of the cases names the first that reaches outside
        said.setdefault(note.partition(",")[0] if is_outside_note(note) else note, note)
    notes = list(dict.fromkeys([*item.notes, *said.values()]))
    notes += [
        f"{count} {'case' if count == 1 else 'cases'} not measured: {text}" for text, count in unmeasured.most_common(5)
    ]
    if counts["left_out"]:
        cases = "1 case was" if counts["left_out"] == 1 else f"{counts['left_out']} cases were"
        notes.append(f"{cases} left out: only those {options.contract} the contract were run")
    if counts["beyond_examples"]:
        left = counts["beyond_examples"]
        grid = f"{left} further {'case' if left == 1 else 'cases'} of the grid"
        notes.append(f"{EXAMPLES_CUT} {options.examples}: {grid} left out")
    if counts["cut"] and not all(u.fuzz for u in units):
        left = counts["cut"]
        notes.append(f"{BUDGET_CUT} before {left} further {'case was' if left == 1 else 'cases were'} run")
    if counts["no_strategy"] and verdict is not Verdict.UNMEASURED:
        notes.append("not fuzzed: its cases are not made from axes, and it has no `fuzz` strategy")
    if options.out is None and any(u.fuzz is not None and u.mismatches for u in units):
        notes.append("fuzz: what was drawn is in no list of cases; --out DIR keeps what differs, for --case ID")
    return TargetResult(
        name=item.outline.name,
        head=state.options.heads[item.head_index],
        symbol={"base": item.base.symbol, "head": item.head.symbol},
        verdict=verdict,
        reason=reason,
        code=item.code,
        standins=item.standins,
        adapters=tuple(sorted({a for u in units for a in u.adapters})),
        host=_host(item, units),
        mode=_mode(item, state.options.device),
        cases=CaseCounts(
            executed=counts["executed"],
            identical=counts["identical"],
            different=counts["different"],
            expected=counts["expected"],
            unmeasured=min(counts["unmeasured"], counts["executed"]),
        ),
        mismatches=tuple(mismatch_of(m) for m in _shown(mismatches)),
        mismatches_total=counts["mismatches"],
        kinds=dict(kinds.most_common()),
        outside_contract=counts["outside_contract"],
        outside_executed=counts["outside"],
        aa={"cases": counts["aa_cases"], "differences": counts["aa_differences"]},
        both_raised=counts["both_raised"],
        sources=dict(sum((u.sources for u in units), Counter())),
        axes=_axes(units),
        relations=_relations(units),
        recorded=recorded,
        notes=tuple(notes),
        closure=_with_lines(state, item, units) if options.lines else _closures(item),
        seconds=round(max((u.seconds for u in units), default=0.0), 3),
    )


def _shown(mismatches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mismatches that a result carries: one of each kind and place before a second one of any, in their order."""
    seen: Counter[tuple[str, str]] = Counter()
    turns = []
    for number, item in enumerate(mismatches):
        key = (item["kind"], item["place"])
        turns.append((seen[key], number))
        seen[key] += 1
    chosen = sorted(number for _, number in sorted(turns)[:MISMATCHES_SHOWN])
    return [mismatches[number] for number in chosen]


def _axes(units: Sequence[Unit]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (axis, value, outcome), count in sorted(sum((u.axes for u in units), Counter()).items()):
        found.setdefault(axis, {}).setdefault(value, {})[outcome] = count
    return found


def _relations(units: Sequence[Unit]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for unit in units:
        for name, counts in unit.relations.items():
            found.setdefault(name, Counter()).update(counts)
    return {name: {key: counts[key] for key in ("checked", "base", "head")} for name, counts in found.items()}


def _recorded(units: Sequence[Unit]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for unit in units:
        for process, counts in unit.recorded.items():
            found.setdefault(process, Counter()).update(counts)
    return {process: {name: found[process][name] for name in RECORDED_COUNTS} for process in sorted(found)}


def _reason(unmeasured: Counter[str]) -> str:
    """The most frequent reason, an api-change first: it says what to do."""
    for text, _ in unmeasured.most_common():
        if text.startswith("api-change"):
            return text
    return unmeasured.most_common(1)[0][0] if unmeasured else ""


def _partly(counts: Counter[str], unmeasured: Counter[str]) -> tuple[Verdict, str]:
    """Some cases were compared and equal, some were not compared.

    Cases that neither arm can run, or that ask one arm for what it does not have, do not stain those that were
    compared as long as these are more; a base that is not deterministic, or a run cut short by crashes, does.
    Cases of a feature that neither version has are no part of either: a tenth of all is enough beside them.
    """
    harmless = ("api-change", "not exercised", "both arms end alike")
    compared = counts["identical"] + counts["expected"]
    few = counts["unmeasured"] - counts["in_neither"] > compared or 10 * compared < counts["executed"]
    if few or any(not text.startswith(harmless) for text in unmeasured):
        total = sum(counts[name] for name in ("identical", "expected", "unmeasured"))  # those not begun included
        return Verdict.UNMEASURED, f"{counts['unmeasured']} of {total} cases: {_reason(unmeasured)}"
    return Verdict.IDENTICAL, ""


def _refuse_unknown_case(options: RunOptions, results: Sequence[TargetResult]) -> None:
    """Raise when each target whose cases were made lacks the one that was asked for."""
    looked = [r for r in results if r.mode != NOT_EXECUTED]
    if not looked or any(r.reason != _no_cases(options, Counter()) for r in looked):
        return
    names = ", ".join(r.name for r in looked[:3]) + (f" and {len(looked) - 3} more" if len(looked) > 3 else "")
    whose = "" if options.contract == "all" else f" {options.contract} the contract"
    rest = len(results) - len(looked)
    others = "" if not rest else f"; {rest} further {'target' if rest == 1 else 'targets'} cannot be compared at all"
    raise UsageError(
        f"--case {options.case}: no such case{whose} of {names}{others}; take an id from a report, with the --out DIR "
        "of that run if a fuzz drew it, or give the file of a case that was kept"
    )


def _of_one_case(results: tuple[TargetResult, ...]) -> tuple[TargetResult, ...]:
    """With `--case ID`, the results of the targets that the case is of, when it was found."""
    found = {r.name for r in results if r.cases.executed}
    return tuple(r for r in results if r.name in found or not found)


def _no_cases(options: RunOptions, counts: Counter[str]) -> str:
    if options.case:
        return f"no case has the id {options.case}"
    if counts["left_out"]:
        return f"no case is {options.contract} the contract"
    if counts["no_strategy"]:
        return "nothing to draw cases from: the target's cases are not made from axes, and it has no `fuzz` strategy"
    kinds = f" of kind {', '.join(options.cases)}" if options.cases else ""
    return f"zero cases{kinds}: nothing was compared"


def environment(device: str, host: str | None) -> dict[str, Any]:
    """Versions, platform, device and host, for a report."""
    versions = {}
    for name in ("torch", "triton", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "difftest": difftest.__version__,
        "python": platform.python_version(),
        **versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "host": host or "stand-ins",
    }


def _command(options: RunOptions) -> str:
    words = ["difftest", "run", "--base", options.base]
    for head in options.heads:
        words += ["--head", head]
    for target in options.targets:
        words += ["--target", target]
    if options.execute_same:
        words.append("--all")
    return shlex.join(words)


__all__ = ["CASE_KINDS", "Observer", "RunOptions", "Silent", "merge_base_of", "run"]

if sys.platform == "win32":
    raise ImportError("difftest needs fork, which Windows lacks; use WSL or a container")
