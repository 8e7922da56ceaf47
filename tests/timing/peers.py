"""The same functions measured by difftest, pytest-benchmark, pyperf and asv: false alarms, what is found, and time.

    pip install pytest-benchmark pyperf asv
    python tests/timing/peers.py --repetitions 5 --workers 4 --write docs/bench-peers.md

Each tool compares base with a copy of itself, and with heads that a calibrated loop makes 2 and 3 % slower, at batch 1
and 64 of `parse_output`, the way its own documentation compares two versions. The three peers are needed for
this script only.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import repetitions
import slowed_trees

from difftest.api import environment
from difftest.timing.bench import BenchOptions, bench

PERCENTS = (0, 2, 3)
BATCHES = (1, 64)
LIMIT = 0.01
"""Change beyond which a peer calls something faster or slower: half of the smaller slowdown."""

_CALL = """
import sys
sys.path[:0] = {paths}
import slowed_trees
from pathlib import Path
CALLS = {{}}
for batch in {batches}:
    call = slowed_trees.calls(slowed_trees.load(Path({tree!r}), "arm").RejectionSampler.parse_output, batch)(0)
    CALLS[batch] = call.fn, call.kwargs
"""
_PYTEST = """
import pytest
@pytest.mark.parametrize("batch", list(CALLS))
def test_parse_output(benchmark, batch):
    function, inputs = CALLS[batch]
    benchmark(function, **inputs)
"""
_PYPERF = """
import functools
import pyperf
runner = pyperf.Runner()
for batch in CALLS:
    function, inputs = CALLS[batch]
    runner.bench_func(str(batch), functools.partial(function, **inputs))
"""
_ASV = """
import sys
sys.path[:0] = {paths}
class Parse:
    params = ({arms}, {batches})
    param_names = ("arm", "batch")
    def setup(self, arm, batch):
        import slowed_trees
        from pathlib import Path
        module = slowed_trees.load(Path(arm), "arm")
        call = slowed_trees.calls(module.RejectionSampler.parse_output, batch)(0)
        self.function, self.inputs = call.fn, call.kwargs
    def time_parse_output(self, arm, batch):
        self.function(**self.inputs)
"""


class Verdict(NamedTuple):
    """What a tool said of one shape: -1 faster, 0 neither, 1 slower; and what the comparison took."""

    tool: str
    percent: float
    batch: int
    says: int
    change: float
    seconds: float


def difftest(base: str, head: str, scratch: Path) -> dict[int, tuple[int, float]]:
    """`difftest bench` with default settings."""
    shapes = slowed_trees.write_shapes(scratch / "shapes.txt", BATCHES)
    found = bench(BenchOptions(base, (head,), targets=(slowed_trees.TARGET,), shapes=shapes, execute_same=True))
    signs = {"slower": 1, "faster": -1}
    return {int(s.axes["batch"]): (signs.get(str(s.verdict), 0), s.delta_percent / 100) for s in found.shapes}


def pytest_benchmark(base: str, head: str, scratch: Path, of: str = "mean") -> dict[int, tuple[int, float]]:
    """Two sessions, base's and head's; the `mean` or `min` of each function compared, as `--benchmark-compare-fail`."""
    times = []
    for name, tree in (("base", base), ("head", head)):
        folder = scratch / name
        folder.mkdir()
        (folder / "test_parse_output.py").write_text(_imports(tree) + _PYTEST)
        command = ["pytest", "-q", "-p", "no:cacheprovider", "--benchmark-json=out"]
        _run(folder, *command)
        found = json.loads((folder / "out").read_text())["benchmarks"]
        times.append({int(entry["params"]["batch"]): entry["stats"][of] for entry in found})
    return {batch: _beyond(times[1][batch] / times[0][batch] - 1) for batch in times[0]}


def pytest_benchmark_min(base: str, head: str, scratch: Path) -> dict[int, tuple[int, float]]:
    return pytest_benchmark(base, head, scratch, "min")


def pyperf(base: str, head: str, scratch: Path) -> dict[int, tuple[int, float]]:
    """Two runs, then as `compare_to --min-speed`: means that differ by more than the limit, and by its t test."""
    import pyperf as library
    from pyperf._utils import is_significant

    suites = []
    for name, tree in (("base", base), ("head", head)):
        script, out = scratch / f"{name}.py", scratch / f"{name}.json"
        script.write_text(_imports(tree) + _PYPERF)
        subprocess.run(
            [sys.executable, str(script), "--fast", "--quiet", "-o", str(out)], check=True, capture_output=True
        )
        suites.append(library.BenchmarkSuite.load(str(out)))
    found = {}
    for batch in BATCHES:
        one, two = (suite.get_benchmark(str(batch)) for suite in suites)
        significant = is_significant(one.get_values(), two.get_values())[0]
        says, change = _beyond(two.mean() / one.mean() - 1)
        found[batch] = (says if significant else 0, change)
    return found


def asv(base: str, head: str, scratch: Path) -> dict[int, tuple[int, float]]:
    """One run of both versions, then what `asv compare` does: medians beyond the factor, and its own test of whether
    samples differ. (asv interleaves rounds only in environments that it builds itself.)"""
    from asv._stats import is_different

    (scratch / "benchmarks").mkdir()
    (scratch / "benchmarks" / "__init__.py").touch()
    program = _ASV.format(paths=_paths(), arms=[base, head], batches=list(BATCHES))
    (scratch / "benchmarks" / "parse.py").write_text(program)
    (scratch / "asv.conf.json").write_text(
        json.dumps({"version": 1, "project": "p", "repo": ".", "branches": ["main"], "environment_type": "existing"})
    )
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], _COMMIT):
        subprocess.run(["git", *command], cwd=scratch, check=True, capture_output=True)
    _run(scratch, "asv", "machine", "--yes", "--machine", "here")
    _run(
        *(scratch, "asv", "run", "--environment", f"existing:{sys.executable}"),
        *("--record-samples", "--set-commit-hash", "HEAD", "--machine", "here"),
    )
    (results,) = [path for path in (scratch / "results" / "here").glob("*.json") if path.name != "machine.json"]
    return _asv_verdicts(results, is_different)


def _asv_verdicts(results: Path, is_different: Callable[..., bool]) -> dict[int, tuple[int, float]]:
    from asv.results import Results

    loaded = Results.load(str(results))
    (name,) = loaded.get_all_result_keys()
    values = loaded.get_result_value(name, loaded.get_result_params(name))
    stats = loaded.get_result_stats(name, loaded.get_result_params(name))
    samples = loaded.get_result_samples(name, loaded.get_result_params(name))
    found, count = {}, len(BATCHES)
    for place, batch in enumerate(BATCHES):
        one, two = place, place + count
        says, change = _beyond(values[two] / values[one] - 1)
        different = is_different(samples[one], samples[two], stats[one], stats[two])
        found[batch] = (says if different else 0, change)
    return found


_COMMIT = ["-c", "user.name=peers", "-c", "user.email=peers@example.org", "commit", "-q", "-m", "both versions"]

TOOLS: dict[str, tuple[Callable[[str, str, Path], dict[int, tuple[int, float]]], str, str]] = {
    "difftest": (difftest, "difftest-sampler", "default settings"),
    "pytest-benchmark, mean": (pytest_benchmark, "pytest-benchmark", "as `--benchmark-compare-fail=mean:1%`"),
    "pytest-benchmark, min": (pytest_benchmark_min, "pytest-benchmark", "as `--benchmark-compare-fail=min:1%`"),
    "pyperf": (pyperf, "pyperf", "`--fast`: 10 processes, as `compare_to --min-speed=1`"),
    "asv": (asv, "asv", "2 rounds, as `compare --factor 1.01`"),
}
"""How each compares, the distribution whose version counts, and its settings in words."""


def compare(tool: str, percent: float, base: str, head: str) -> list[Verdict]:
    """One comparison of all batches by one tool."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found = TOOLS[tool][0](base, head, Path(folder))
        seconds = (time.monotonic() - began) / len(found)
    return [Verdict(tool, percent, batch, says, change, seconds) for batch, (says, change) in found.items()]


def table(found: Sequence[Verdict]) -> str:
    """A row for each tool, in GitHub's markdown."""
    lines = [
        "| tool | version | settings | false alarms | +2 % found | +3 % found | called faster | median error "
        "| seconds a shape |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for tool, (_, distribution, settings) in TOOLS.items():
        mine = [verdict for verdict in found if verdict.tool == tool]
        if not mine:
            continue
        same, two, three = ([v for v in mine if v.percent == percent] for percent in PERCENTS)
        slower = two + three
        cells = [
            tool,
            metadata.version(distribution)
            if distribution != "difftest-sampler"
            else environment("cpu", None)["difftest"],
            settings,
            f"{sum(v.says != 0 for v in same)} of {len(same)}",
            *(f"{sum(v.says == 1 for v in some)} of {len(some)}" for some in (two, three)),
            f"{sum(v.says == -1 for v in slower)} of {len(slower)}",
            f"{statistics.median(abs(100 * v.change - v.percent) for v in mine):.1f}",
            f"{statistics.median(v.seconds for v in mine):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def document(report: str, workers: int, beside: bool) -> str:
    """The table as a page that says what it rests on; `beside`: whether other benches ran at the same time."""
    facts = environment("cpu", None)
    at_a_time = "one comparison" if workers == 1 else f"{workers} comparisons"
    return f"""# difftest bench beside pytest-benchmark, pyperf and asv

Written by `tests/timing/peers.py`: every tool on the same functions in one run, in random order, each with its default
settings (pyperf with its `--fast`, which halves its processes) and the comparison that its documentation names. Base
against a copy of itself, and against heads that a calibrated loop makes 2 and 3 % slower: `parse_output` of the
demonstration's tree at batch 1 and 64. A peer says slower or faster where its estimate is beyond {100 * LIMIT:g} %
and, where it has a test, that test agrees; difftest by its own rule. Seconds are those of the whole comparison,
processes and imports of torch included, for each of the two shapes. The error is the estimate's distance from the
truth in percentage points. asv interleaves two versions only in environments that it builds itself; here they are two
values of a parameter in one run of it.

Measured on {repetitions.machine()}, Python {facts["python"]}, torch {facts["torch"]}; {at_a_time} at a time, each on
two cores of its own{", with other benches on the other cores" if beside else ""}.

{report}"""


def _beyond(change: float) -> tuple[int, float]:
    return (change > LIMIT) - (change < -LIMIT), change


def _paths() -> list[str]:
    here = Path(__file__).resolve()
    return [str(here.parent), str(here.parents[2])]


def _imports(tree: str) -> str:
    return _CALL.format(paths=_paths(), tree=tree, batches=BATCHES)


def _run(folder: Path, module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5, help="comparisons by each tool [%(default)s]")
    parser.add_argument("--workers", type=int, default=1, help="comparisons at a time, two cores each [%(default)s]")
    parser.add_argument("--tool", choices=[*TOOLS], action="append", help="only this one; may be given again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no comparison begins later")
    parser.add_argument("--beside", action="store_true", help="say that other benches run at the same time")
    parser.add_argument("--write", type=Path, help="file for the report, in markdown")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (shares,) = repetitions.repeated(slowed_trees.lap_shares, [(scratch,)], 1)
        base = slowed_trees.write_tree(scratch / "base")
        jobs: list[tuple[Any, ...]] = []
        for percent in PERCENTS:
            head = slowed_trees.write_tree(scratch / f"head-{percent}", slowed_trees.laps_for(percent, shares)[0])
            jobs += [(tool, percent, str(base), str(head)) for tool in chosen.tool or TOOLS]
        # Round after round, so that all tools have as many comparisons wherever it ends.
        order = random.Random(len(jobs))
        every = [job for _ in range(chosen.repetitions) for job in order.sample(jobs, len(jobs))]
        found: list[Verdict] = []
        for verdicts in repetitions.repeated(compare, every, chosen.workers, deadline):
            found += verdicts
    report = table(found)
    print(report)
    if chosen.write:
        chosen.write.write_text(document(report, chosen.workers, chosen.beside))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
