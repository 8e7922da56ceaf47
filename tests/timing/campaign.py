"""How often a bench is right: base against base, and against heads that are slower by a known amount.

    python tests/timing/campaign.py --workers 4 --write docs/bench-accuracy.md

In parts, one after the other, and put together afterwards, on any machine:

    python tests/timing/campaign.py --workers 4 --part 1/2 --json first.jsonl
    python tests/timing/campaign.py --workers 4 --part 2/2 --json second.jsonl
    python tests/timing/campaign.py --join first.jsonl --join second.jsonl --write docs/bench-accuracy.md

Every repetition is a whole `difftest bench` of four shapes (`v1.parse_output`, batch 1, 16, 64, 256) with processes of
its own. Part of those of base against base have a process that never rests on the other core. The machine should have
nothing else to do, and twice as many cores as repetitions run at a time. What a lap of the slower heads' loop costs is
calibrated before, and again and again between the benches.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __name__ == "__main__":  # beside the checkout's difftest, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import repetitions
import slowed_trees

from difftest.api import environment
from difftest.timing.bench import BenchOptions, bench
from difftest.timing.statistics import SpeedVerdict

PERCENTS = (1, 2, 3, 5)
SAME, BUSY = 250, 60
"""Repetitions of base against base, and how many of them have a busy neighbour."""

SLOWER = 100
"""Repetitions of each slowdown."""


BENCHES_A_CALIBRATION = 25

Shares = dict[int, float]
"""What a lap adds to base's time, as a fraction of it, by batch."""


class Job(NamedTuple):
    """One bench. `percent` 0 is base against base; `laps` are those that head has more, by batch."""

    percent: float
    repetition: int
    busy: bool
    base: str
    head: str
    shapes: str
    laps: dict[int, int]


class Shape(NamedTuple):
    """What one bench said of one shape."""

    percent: float
    repetition: int
    busy: bool
    batch: int
    verdict: str
    words: str
    delta: float
    low: float
    high: float
    base_us: float
    layouts: int
    pairs: int
    seconds: float
    """Of the whole command, for each of its shapes."""
    laps: int
    truth: float
    """True slowdown in percent; known when all calibrations are."""


class Run(NamedTuple):
    """What one campaign, or one part of it, measured on one machine.

    Attributes:
        facts: the machine and what ran on it, in words.
        shares: every calibration.
    """

    facts: dict[str, str]
    shares: list[Shares]
    shapes: list[Shape]

    def judged(self) -> list[Shape]:
        """The shapes with what is true, by the middle one of the calibrations."""
        middle = {
            batch: statistics.median(s[batch] for s in self.shares) for batch in slowed_trees.BATCHES if self.shares
        }
        return [s._replace(truth=100 * s.laps * middle[s.batch]) if s.laps else s for s in self.shapes]


def measure(job: Job) -> list[Shape]:
    """One whole bench, as the command makes it."""
    options = BenchOptions(
        job.base, (job.head,), targets=(slowed_trees.TARGET,), shapes=job.shapes, execute_same=True
    )  # fmt: skip
    began = time.monotonic()
    if job.busy:
        with repetitions.busy_neighbour():
            result = bench(options)
    else:
        result = bench(options)
    if result.untimed or len(result.shapes) != len(slowed_trees.BATCHES):
        raise RuntimeError(f"not timed: {result.untimed}")
    seconds = (time.monotonic() - began) / len(result.shapes)
    return [
        Shape(
            *(job.percent, job.repetition, job.busy, int(shape.axes["batch"]), str(shape.verdict), shape.words),
            *(shape.delta_percent, *shape.interval, shape.base.median, len(shape.layouts), len(shape.pairs), seconds),
            *(job.laps.get(int(shape.axes["batch"]), 0), 0.0),
        )
        for shape in result.shapes
    ]


def calibrate(scratch: Path, workers: int, again: int = 0) -> list[Shares]:
    """What a lap costs, measured while as many others do the same, as they will while benches run."""
    folders = [scratch / f"calibrate-{again}-{n}" for n in range(workers)]
    for folder in folders:
        folder.mkdir()
    return list(repetitions.repeated(slowed_trees.lap_shares, [(folder,) for folder in folders], workers))


def plan(scratch: Path, same: int, busy: int, slower: int, shares: Shares) -> list[Job]:
    """All jobs in random order, so that what the machine does in between hits all kinds alike."""
    shapes = slowed_trees.write_shapes(scratch / "shapes.txt")
    base, copy = (str(slowed_trees.write_tree(scratch / name)) for name in ("base", "copy"))
    jobs = [Job(0, n, n < busy, base, copy, shapes, {}) for n in range(same)]
    for percent in PERCENTS if slower else ():
        laps, _ = slowed_trees.laps_for(percent, shares)
        head = str(slowed_trees.write_tree(scratch / f"slower-{percent}", laps))
        jobs += [Job(percent, n, False, base, head, shapes, laps) for n in range(slower)]
    random.Random(len(jobs)).shuffle(jobs)
    return jobs


def measure_or_calibrate(job: Job | Path) -> list[Shape] | Shares:
    """A bench, or, for a folder, what a lap costs now."""
    return measure(job) if isinstance(job, Job) else slowed_trees.lap_shares(job)


def table(found: Sequence[Shape]) -> str:
    """What was found, in GitHub's markdown."""
    lines = [
        "Base against itself, two loadings of the same code. A verdict of *faster* or *slower* is a false alarm.",
        "",
        "| other core | shapes | faster | slower | no change | inconclusive | false alarms, 95 % bound "
        "| seconds a shape |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    same = [shape for shape in found if not shape.percent]
    for name, some in (
        ("idle", [s for s in same if not s.busy]),
        ("busy", [s for s in same if s.busy]),
        ("both", same),
    ):
        if some:
            alarms = _count(some, SpeedVerdict.FASTER, SpeedVerdict.SLOWER)
            counts = " | ".join(str(_count(some, verdict)) for verdict in SpeedVerdict)
            bound = 100 * repetitions.at_most(alarms, len(some))
            lines.append(f"| {name} | {len(some)} | {counts} | at most {bound:.2f} % | {_seconds(some)} |")
    if len(same) < len(found):
        lines += [
            "",
            "Heads that are slower by a calibrated loop. *Found* is a verdict of *slower*. An error is the estimate",
            "less the truth, in percentage points of base's time.",
            "",
            "| slower by | batch | base µs | truth | found | 95 % bound | no change | faster | median error "
            "| median distance | seconds a shape |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
    for percent in PERCENTS:
        for batch in slowed_trees.BATCHES:
            some = [shape for shape in found if (shape.percent, shape.batch) == (percent, batch)]
            if some:
                lines.append(_slower_row(percent, batch, some))
    return "\n".join(lines) + "\n"


def _slower_row(percent: float, batch: int, some: Sequence[Shape]) -> str:
    hits = _count(some, SpeedVerdict.SLOWER)
    errors = [shape.delta - shape.truth for shape in some]
    cells = [
        f"{percent:g} %",
        str(batch),
        f"{statistics.median(shape.base_us for shape in some):.1f}",
        f"{statistics.median(shape.truth for shape in some):.2f} %",
        f"{hits} of {len(some)}",
        f"at least {100 * repetitions.at_least(hits, len(some)):.1f} %",
        str(_count(some, SpeedVerdict.NO_CHANGE)),
        str(_count(some, SpeedVerdict.FASTER)),
        f"{statistics.median(errors):+.2f}",
        f"{statistics.median(map(abs, errors)):.2f}",
        _seconds(some),
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(some: Sequence[Shape]) -> str:
    values = [shape.seconds for shape in some]
    return f"{statistics.median(values):.1f} (95 % within {float(np.percentile(values, 95)):.1f})"


def _count(some: Iterable[Shape], *verdicts: SpeedVerdict) -> int:
    return sum(shape.verdict in verdicts for shape in some)


def campaign(chosen: argparse.Namespace) -> Run:
    """Measure, and write every verdict to a file as it comes, if one is given."""
    deadline = time.monotonic() + chosen.seconds
    part, parts = (int(number) for number in chosen.part.split("/"))
    facts = environment("cpu", None)
    run = Run(
        {
            "machine": repetitions.machine(),
            "python": str(facts["python"]),
            "torch": str(facts["torch"]),
            "at a time": str(chosen.workers),
        },
        [],
        [],
    )
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        run.shares.extend(calibrate(scratch, chosen.workers) if chosen.slower else [])
        middle = {b: statistics.median(s[b] for s in run.shares) for b in slowed_trees.BATCHES if run.shares}
        benches = plan(scratch, chosen.same, chosen.busy, chosen.slower, middle)[part - 1 :: parts]
        jobs: list[Job | Path] = []
        for number, job in enumerate(benches, 1):
            jobs.append(job)
            if chosen.slower and number % BENCHES_A_CALIBRATION == 0:
                (scratch / f"again-{number}").mkdir()
                jobs.append(scratch / f"again-{number}")
        print(f"{len(benches)} benches, {chosen.workers} at a time; laps: {middle}", flush=True)
        keep(chosen.json, {"facts": run.facts}, *({"shares": shares} for shares in run.shares))
        for found in repetitions.repeated(measure_or_calibrate, [(job,) for job in jobs], chosen.workers, deadline):
            if isinstance(found, dict):
                run.shares.append(found)
                keep(chosen.json, {"shares": found})
            else:
                run.shapes.extend(found)
                keep(chosen.json, *(shape._asdict() for shape in found))
    return run


def keep(path: Path | None, *lines: dict[str, Any]) -> None:
    if path:
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def read_run(path: Path) -> Run:
    """What :func:`campaign` wrote to a file."""
    run = Run({}, [], [])
    for line in map(json.loads, path.read_text().splitlines()):
        if "facts" in line:
            run.facts.update(line["facts"])
        elif "shares" in line:
            run.shares.append({int(batch): share for batch, share in line["shares"].items()})
        else:
            run.shapes.append(Shape(**line))
    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--same", type=int, default=SAME, help="benches of base against base [%(default)s]")
    parser.add_argument("--busy", type=int, default=BUSY, help="of these, with the other core busy [%(default)s]")
    parser.add_argument("--slower", type=int, default=SLOWER, help="benches of each slowdown [%(default)s]")
    parser.add_argument("--workers", type=int, default=1, help="benches at a time, two cores each [%(default)s]")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no bench begins later")
    parser.add_argument("--part", default="1/1", metavar="N/OF", help="only every so manieth bench [%(default)s]")
    parser.add_argument("--json", type=Path, help="every verdict, a line each, written as it comes")
    parser.add_argument("--join", type=Path, action="append", help="measure nothing; take what such a file holds")
    parser.add_argument("--write", type=Path, help="file for the report, in markdown")
    chosen = parser.parse_args()
    runs = [read_run(path) for path in chosen.join] if chosen.join else [campaign(chosen)]
    report = sections(runs)
    print(report)
    if chosen.write:
        chosen.write.write_text(document(report))
    return 0


def sections(runs: Sequence[Run]) -> str:
    """A table for each machine; parts of one machine go into one."""
    return "\n".join(
        section([run for run in runs if run.facts == facts])
        for n, facts in enumerate(run.facts for run in runs)
        if facts not in [run.facts for run in runs[:n]]
    )


def section(runs: Sequence[Run]) -> str:
    """What was found on one machine, and what it rests on."""
    facts = runs[0].facts
    at_a_time = "one bench" if facts["at a time"] == "1" else f"{facts['at a time']} benches"
    calibrations = sum(len(run.shares) for run in runs)
    return f"""## On {facts["machine"]}

Python {facts["python"]}, torch {facts["torch"]}; {at_a_time} at a time, each on two cores of its own. The slower heads'
loop was calibrated {calibrations} times.

{table([shape for run in runs for shape in run.judged()])}"""


def document(report: str) -> str:
    """The report as a page that says what it rests on."""
    return f"""# How often a bench is right

Written by `tests/timing/campaign.py`. Every repetition is a whole `difftest bench` of four shapes of `v1.parse_output`
(batch 1, 16, 64, 256; 3 drafts, acceptance 0.6, vocabulary 151,936) with default settings and processes of its own.
*Busy* means that a process which never rests has the second of its two cores. Seconds are those of the whole command,
imports of torch included. Bounds are exact (Clopper and Pearson), one-sided, 95 %.

{report}"""


if __name__ == "__main__":
    raise SystemExit(main())
