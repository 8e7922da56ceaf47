"""`difftest sweep`: every commit of a range that touches a target, compared with its parent. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from difftest import api, catalog
from difftest.errors import DifftestError, NothingCompared, UsageError
from difftest.result import RunResult, Verdict
from difftest.run import forkserver
from difftest.trees.cache import cache_folder
from difftest.trees.git import Repository, commits

SCHEMA = "difftest.sweep/1"
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class SweptCommit:
    """What one commit does to the targets that it touches.

    Attributes:
        commit, parent: full object names; subject: first line of the message.
        verdict: of the run parent against commit; `unmeasured` with `error` when there was no run.
        result: the run; None when it could not be made.
    """

    commit: str
    parent: str
    subject: str
    verdict: str
    error: str = ""
    result: RunResult | None = None

    def targets(self, verdict: str) -> list[str]:
        """Names of the targets with a verdict."""
        return [t.name for t in self.result.targets if t.verdict == verdict] if self.result else []

    def to_json(self) -> dict[str, Any]:
        return {
            "commit": self.commit,
            "parent": self.parent,
            "subject": self.subject,
            "verdict": str(self.verdict),
            "error": self.error,
            "result": self.result.to_json() if self.result else None,
        }


def watched_paths(outlines: Sequence[catalog.Outline]) -> list[str]:
    """Paths in a repository whose change can touch a target: the folders of the modules that targets are bound to."""
    found = set()
    for outline in outlines:
        for symbol in (*outline.symbols, *outline.uses):
            module = symbol.partition(":")[0].split(".")
            path = "/".join(module)
            # a module in a folder of its own kind is watched with its neighbours: helpers move between them
            found.add("/".join(module[:-1]) if len(module) > 3 else f"{path}.py")
    return sorted(found)


def sweep(options: api.RunOptions, revisions: str, engine: str = "local") -> Iterator[SweptCommit]:
    """Compare each commit of `A..B` that touches a target with its first parent, oldest first.

    Args:
        options: what each run is like; its base and heads are replaced.
        revisions: `A..B`, as git understands it.
        engine: `local`, one commit after the other, or `ray`, spread over a Ray cluster.

    Raises:
        UsageError: the range is unknown or the engine is not there.
        NothingCompared: no commit of the range touches a target.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine} is none of {', '.join(ENGINES)}")
    if options.repo is None:
        options = replace(options, repo=Path.cwd())
    assert options.repo is not None
    outlines = catalog.outline(cache_folder(options.cache), [str(p) for p in options.cases_from])
    found = commits(options.repo, revisions, paths=watched_paths(outlines))
    if not found:
        raise NothingCompared(f"no commit in {revisions} touches a target of the catalog; name a longer range")
    jobs = [(options, commit) for commit in found]
    if engine == "ray":
        yield from _on_ray(jobs)
    else:
        with forkserver.kept():
            for job in jobs:
                yield one(*job)


def one(options: api.RunOptions, commit: str) -> SweptCommit:
    """Compare one commit with its first parent."""
    said = Repository.find(options.repo).run("log", "-1", "--format=%P%n%s", commit).decode("utf-8", "replace")
    parents, _, subject = said.strip("\n").partition("\n")
    parent = parents.split(" ")[0]
    if not parent:
        return SweptCommit(commit, "", subject, Verdict.UNMEASURED, "no parent to compare with")
    try:
        result = api.run(replace(options, base=parent, heads=(commit,), command="", explain=False))
    except DifftestError as error:
        return SweptCommit(commit, parent, subject, Verdict.UNMEASURED, str(error))
    return SweptCommit(commit, parent, subject, result.verdict, result=result)


def _on_ray(jobs: Sequence[tuple[api.RunOptions, str]]) -> Iterator[SweptCommit]:
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray: pip install 'difftest-sampler[ray]'") from None
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    remote: Callable[..., Any] = ray.remote(one).remote
    for reference in [remote(*job) for job in jobs]:
        yield ray.get(reference)


def overall(found: Sequence[SweptCommit]) -> Verdict:
    """different when any commit is, else unmeasured when any is, else identical."""
    verdicts = {item.verdict for item in found}
    for verdict in (Verdict.DIFFERENT, Verdict.UNMEASURED):
        if verdict in verdicts:
            return verdict
    return Verdict.IDENTICAL if verdicts else Verdict.UNMEASURED
