"""`difftest bisect`: the first commit at which a kept case's outcome differs from the good revision's. No torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from difftest import api, catalog
from difftest.errors import NothingCompared, UsageError
from difftest.lift.facts import Facts
from difftest.record import cases as recordings
from difftest.record.casefile import CaseFile, read_case
from difftest.result import Mismatch, Verdict
from difftest.run import forkserver
from difftest.run.plan import ArmSource, Bound, Planner
from difftest.survey import changed_names
from difftest.sweep import watched_paths
from difftest.trees import open_tree
from difftest.trees.cache import cache_folder, using
from difftest.trees.git import Repository, commits

_ALIKE = ("not exercised: both arms raise", "both arms end alike")


@dataclass(frozen=True)
class Bisection:
    """What was found.

    Attributes:
        commit, parent, subject, author, date: the first commit that differs; its first parent; `YYYY-MM-DD`.
        target: that the case is for.
        changed: what of the closure the commit changed: `module:qualname`, with `+` added and `-` removed in front.
        mismatch: the first one, good against the commit.
        listed: commits of the range that may touch the target; executed: those whose outcome was looked at.
        skipped: commits at which the target could not be compared, with the reason.
        suspects: when skipped ones stand before it: all commits of which one is the first, oldest first.
    """

    commit: str
    parent: str
    subject: str
    author: str
    date: str
    target: str
    changed: tuple[str, ...]
    mismatch: Mismatch | None
    listed: int
    executed: int
    skipped: tuple[tuple[str, str], ...] = ()
    suspects: tuple[str, ...] = ()


class _Search:
    """Digests and outcomes of one target at commits, each found out once."""

    def __init__(self, options: api.RunOptions, file: CaseFile, good: str, scratch: Path) -> None:
        self.options = options
        self.good = good
        self.scratch = scratch
        self.target = (options.targets or (file.target,))[0]
        self.cache = cache_folder(options.cache)
        self.outline = _outline(self.target, file, options, self.cache)
        self.planner = Planner(options.host)
        self.facts: dict[tuple[str, str], Facts] = {}
        self.digests: dict[str, str] = {}
        self.bound: dict[str, Bound] = {}
        self.files: set[str] = set()
        self.known: dict[str, tuple[bool | None, str, Mismatch | None]] = {}
        self.executed = 0

    def digest(self, commit: str) -> str:
        """The digest of the target's closure at a commit; empty when it is not there or cannot be lifted."""
        if commit not in self.digests:
            with open_tree(commit, self.options.repo, self.cache) as tree:
                arm = ArmSource(commit, tree, self.scratch / commit, self.facts, self.cache)
                self.bound[commit] = self.planner.bind(self.outline, arm)
            closure = self.bound[commit].closure
            self.digests[commit] = closure.digest if closure else ""
            if closure:
                self.files.update(piece.path for piece in closure.pieces.values() if not piece.lazy)
        return self.digests[commit]

    def outcome(self, commit: str) -> tuple[bool | None, str, Mismatch | None]:
        """Whether the case differs from good at a commit, None when that cannot be told, with the reason."""
        digest = self.digest(commit)
        if digest and digest == self.digest(self.good):
            return False, "", None
        if not digest:
            return None, self.bound[commit].reason or f"it has no {' or '.join(self.outline.symbols)}", None
        if digest not in self.known:
            self.known[digest] = self._run(commit)
        return self.known[digest]

    def _run(self, commit: str) -> tuple[bool | None, str, Mismatch | None]:
        self.executed += 1
        result = api.run(replace(self.options, base=self.good, heads=(commit,), targets=(self.target,)))
        (found,) = result.targets
        if found.verdict == Verdict.DIFFERENT:
            return True, "", found.mismatches[0] if found.mismatches else None
        # What a run does not call exercised, raising the same in both arms, is the same outcome all the same.
        alike = found.cases.identical or found.reason.startswith(_ALIKE)
        return (False if alike or found.verdict != Verdict.UNMEASURED else None), found.reason, None


@forkserver.kept()
def bisect(options: api.RunOptions, good: str, bad: str, said: Callable[[str], None] = lambda line: None) -> Bisection:
    """Find the first commit between two revisions at which a case's outcome is not what it is at the good one.

    Commits that leave the target's closure as it is are not executed. The range is followed along first parents, so a
    merged branch counts as its merge.

    Args:
        options: `case` is a case file; base and heads are replaced.
        said: is told what is looked at, a line each.

    Raises:
        NothingCompared: good and bad do not differ, or cannot be compared there.
        UsageError: bad does not come after good, or the case is no file.
        DifftestError: what a run raises.
    """
    if options.case is None or not Path(options.case).suffix:
        given = "" if options.case is None else f"--case {options.case} is no file; "
        raise UsageError(f"{given}bisect needs a case file: --case FILE; difftest run --out DIR writes them")
    file = read_case(Path(options.case).resolve())
    repository = Repository.find(options.repo)
    first, last = repository.commit(good).sha, repository.commit(bad).sha
    if first == last or not repository.contains(last, first):
        raise UsageError(f"{bad} does not come after {good}; bisect needs a good revision and a later bad one")
    options = replace(options, case=str(file.path), explain=False, jobs=1)
    cache = cache_folder(options.cache)
    with using(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="difftest-") as scratch:
        search = _Search(options, file, first, Path(scratch))
        differs, reason, mismatch = search.outcome(last)
        if differs is None:
            raise NothingCompared(f"{search.target} cannot be compared at {bad}: {reason}; name another --bad")
        if not differs:
            same = search.digest(first) == search.digest(last)
            why = "the code is the same" if same else "the outcomes are identical"
            raise NothingCompared(
                f"the case does not differ between {good} and {bad}: {why}; name revisions between which it does"
            )
        search.digest(first)
        watched = sorted({*watched_paths([search.outline]), *search.files})
        listed = commits(options.repo, f"{first}..{last}", watched, first_parent=True)
        listed = [c for c in listed if c != last] + [last]
        skipped: dict[str, str] = {}
        low, high = _narrow(search, listed, skipped, said)
        before = listed[low] if low >= 0 else first
        between = commits(options.repo, f"{before}..{listed[high]}", first_parent=True)
        if high - low == 1 and len(between) > 1 and search.digest(between[-2]) != search.digest(before):
            listed = between  # the closure came to reach files that neither end has
            low, high = _narrow(search, listed, skipped, said)
        commit = listed[high]
        _, _, mismatch = search.outcome(commit)
        told = repository.run("log", "-1", "--format=%P%x00%s%x00%an%x00%as", commit).decode("utf-8", "replace")
        parents, subject, author, date = told.strip("\n").split("\0")
        parent = parents.split(" ")[0]
        search.digest(parent)
        return Bisection(
            commit=commit,
            parent=parent,
            subject=subject,
            author=author,
            date=date,
            target=search.target,
            changed=changed_names(search.bound[parent].closure, search.bound[commit].closure),
            mismatch=mismatch,
            listed=len(listed),
            executed=search.executed,
            skipped=tuple(skipped.items()),
            suspects=tuple(listed[low + 1 : high + 1]) if high - low > 1 else (),
        )


def _narrow(
    search: _Search, listed: Sequence[str], skipped: dict[str, str], said: Callable[[str], None]
) -> tuple[int, int]:
    """Places of the last commit known not to differ (-1: good itself) and of the first known to."""
    low, high = -1, len(listed) - 1
    while True:
        middle = (low + high) / 2
        open_ones = [i for i in range(low + 1, high) if listed[i] not in skipped]
        if not open_ones:
            return low, high
        at = min(open_ones, key=lambda i: (abs(i - middle), i))
        differs, reason, _ = search.outcome(listed[at])
        word = "differs" if differs else f"skipped: {reason}" if differs is None else "as good"
        said(f"{listed[at][:12]}  {word}")
        if differs is None:
            skipped[listed[at]] = reason
        elif differs:
            high = at
        else:
            low = at


def _outline(target: str, file: CaseFile, options: api.RunOptions, cache: Path) -> catalog.Outline:
    known = [*recordings.outlines([], [file]), *catalog.outline(cache, [str(p) for p in options.cases_from])]
    found = catalog.direct_matches(known, target)
    if len(found) != 1:
        raise UsageError(f"--target {target} is not one target; the case is of {file.target}; leave --target out")
    return found[0]
