"""`difftest demo`: the whole job on trees that the package carries. Checks its own expectations."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from difftest import api
from difftest.demo import BASE, HEADS, Head, make_repository
from difftest.result import RunResult


def demo(console: Console, keep: Path | None = None) -> int:
    """Compare the base with each head of the demonstration repository and say what was found.

    Args:
        keep: make the repository here and leave it there.

    Returns:
        0 when each head got the verdict it should, else 2.
    """
    with tempfile.TemporaryDirectory(prefix="difftest-demo-") as scratch:
        folder = keep or Path(scratch) / "sampler"
        make_repository(folder)
        console.print(
            "A small sampler in vLLM's layout, and four pull requests against it. "
            "Each is compared with `difftest run --base base --head BRANCH`.\n",
            markup=False,
        )
        wrong = [head.branch for head in HEADS if not _show(head, folder, console)]
    if wrong:
        console.print(f"the demonstration itself failed on: {', '.join(wrong)}", style="bold red", markup=False)
        return 2
    if importlib.util.find_spec("triton") is None:
        console.print(
            "Triton is not installed: the targets that launch Triton kernels were not executed.", markup=False
        )
    console.print("Each of the four got the verdict that it should.", markup=False)
    if keep is not None:
        branches = ", ".join(head.branch for head in HEADS)
        console.print(
            f"{keep} is a git repository with the branches {BASE}, {branches}. For example:\n"
            f"  difftest run --repo {shlex.quote(str(keep))} --base {BASE} --head {HEADS[1].branch}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return 0


def _show(head: Head, folder: Path, console: Console) -> bool:
    options = api.RunOptions(base=BASE, heads=(head.branch,), repo=folder)
    result = api.run(options)
    right = (result.verdict, result.exit_code) == (head.verdict, head.exit_code)
    console.print(f"[bold]{escape(head.branch)}[/]: {escape(head.description)}")
    _findings(result, console)
    sentence = importlib.import_module("difftest.reports.sentence").sentence(result)
    console.print(f"  {escape(sentence)}", style="green" if right else "red", highlight=False)
    if not right:
        console.print(f"  expected {head.verdict}, exit code {head.exit_code}", style="red", markup=False)
    console.print()
    return right


def _findings(result: RunResult, console: Console) -> None:
    for target in result.targets:
        for mismatch in target.mismatches[:1]:
            index = f"[{', '.join(map(str, mismatch.index))}]" if mismatch.index else ""
            # What follows from memory that nobody wrote is another value each time that the demonstration is shown.
            unsteady = any(line.startswith("head is not deterministic") for line in mismatch.detail)
            head = "not the same each time" if unsteady else mismatch.head
            text = f"{target.name}: {mismatch.kind} at {mismatch.leaf}{index}: base {mismatch.base}, head {head}"
            console.print(f"  {text} ({mismatch.label})", markup=False, highlight=False)
