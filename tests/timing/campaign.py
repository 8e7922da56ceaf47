"""How often a bench is right: base against base, and against heads that are slower by a known amount.

    python tests/timing/campaign.py --workers 4 --write docs/bench-accuracy.md

Every repetition is a whole `difftest bench` of four shapes (`v1.parse_output`, batch 1, 16, 64, 256) with processes of
its own. Part of those of base against base have a process that never rests on the other core. The machine should have
nothing else to do, and twice as many cores as the repetitions that run at a time take.
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
from typing import NamedTuple

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


Truths = dict[float, dict[int, float]]
"""True slowdown in percent, by the slowdown that was wanted and the batch."""


class Job(NamedTuple):
    """One bench. `percent` 0 is base against base."""

    percent: float
    repetition: int
    busy: bool
    base: str
    head: str
    shapes: str


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
        )
        for shape in result.shapes
    ]


def plan(scratch: Path, same: int, busy: int, slower: int, shares: dict[int, float]) -> tuple[list[Job], Truths]:
    """All jobs in random order, so that what the machine does in between hits all kinds alike; and what is true."""
    shapes = slowed_trees.write_shapes(scratch / "shapes.txt")
    base, copy = (str(slowed_trees.write_tree(scratch / name)) for name in ("base", "copy"))
    jobs = [Job(0, n, n < busy, base, copy, shapes) for n in range(same)]
    truths: Truths = {}
    for percent in PERCENTS if slower else ():
        laps, truths[percent] = slowed_trees.laps_for(percent, shares)
        head = str(slowed_trees.write_tree(scratch / f"slower-{percent}", laps))
        jobs += [Job(percent, n, False, base, head, shapes) for n in range(slower)]
    random.Random(len(jobs)).shuffle(jobs)
    return jobs, truths


def table(found: Sequence[Shape], truths: Truths) -> str:
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
    if truths:
        lines += [
            "",
            "Heads that are slower by a calibrated loop. *Found* is a verdict of *slower*. An error is the estimate",
            "less the truth, in percentage points of base's time.",
            "",
            "| slower by | batch | base µs | truth | found | 95 % bound | no change | faster | median error "
            "| median distance | seconds a shape |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
    for percent, truth in truths.items():
        for batch in slowed_trees.BATCHES:
            some = [shape for shape in found if (shape.percent, shape.batch) == (percent, batch)]
            if some:
                lines.append(_slower_row(percent, batch, some, truth[batch]))
    return "\n".join(lines) + "\n"


def _slower_row(percent: float, batch: int, some: Sequence[Shape], truth: float) -> str:
    hits = _count(some, SpeedVerdict.SLOWER)
    errors = [shape.delta - truth for shape in some]
    cells = [
        f"{percent:g} %",
        str(batch),
        f"{statistics.median(shape.base_us for shape in some):.1f}",
        f"{truth:.2f} %",
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--same", type=int, default=SAME, help="benches of base against base [%(default)s]")
    parser.add_argument("--busy", type=int, default=BUSY, help="of these, with the other core busy [%(default)s]")
    parser.add_argument("--slower", type=int, default=SLOWER, help="benches of each slowdown [%(default)s]")
    parser.add_argument("--workers", type=int, default=1, help="benches at a time, two cores each [%(default)s]")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no bench begins later")
    parser.add_argument("--json", type=Path, help="every verdict, a line each, written as it comes")
    parser.add_argument("--write", type=Path, help="file for the report, in markdown")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (shares,) = repetitions.repeated(slowed_trees.lap_shares, [(scratch,)], 1) if chosen.slower else ({},)
        jobs, truths = plan(scratch, chosen.same, chosen.busy, chosen.slower, shares)
        print(f"{len(jobs)} benches, {chosen.workers} at a time; laps: {shares}", flush=True)
        found: list[Shape] = []
        for shapes in repetitions.repeated(measure, [(job,) for job in jobs], chosen.workers, deadline):
            found += shapes
            if chosen.json:
                with chosen.json.open("a") as file:
                    file.writelines(json.dumps(shape._asdict()) + "\n" for shape in shapes)
    report = table(found, truths)
    print(report)
    if chosen.write:
        chosen.write.write_text(document(report, chosen.workers))
    return 0


def document(report: str, workers: int) -> str:
    """The report as a page that says what it rests on."""
    facts = environment("cpu", None)
    at_a_time = "one bench" if workers == 1 else f"{workers} benches"
    return f"""# How often a bench is right

Written by `tests/timing/campaign.py`. Every repetition is a whole `difftest bench` of four shapes of `v1.parse_output`
(batch 1, 16, 64, 256; 3 drafts, acceptance 0.6, vocabulary 151,936) with default settings and processes of its own.
Measured on {repetitions.machine()}, Python {facts["python"]}, torch {facts["torch"]}; {at_a_time} at a time, each on
two cores of its own. *Busy* means that a process which never rests shares the second of them. Bounds are exact
(Clopper and Pearson), one-sided, 95 %.

{report}"""


if __name__ == "__main__":
    raise SystemExit(main())
