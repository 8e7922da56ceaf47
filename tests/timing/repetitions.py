"""Many repetitions of one experiment, several at a time, each on cores of its own; and what their counts prove."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Cores = tuple[int, ...]


def slots(workers: int, cores: Sequence[int] | None = None, threads: Mapping[int, int] | None = None) -> list[Cores]:
    """Two cores for each worker: one measures, the other is there for the supervisor and for a busy neighbour.

    Where there are enough physical cores, no two of the cores are threads of the same one.

    Args:
        cores: numbers of the logical cores to use; those of this process by default.
        threads: the physical core of each; as the kernel says by default.

    Raises:
        ValueError: there are not two cores for each.
    """
    available = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
    if not 0 < 2 * workers <= len(available):
        raise ValueError(f"{workers} repetitions at a time need {2 * workers} cores, and there are {len(available)}")
    threads = {core: physical_core(core) for core in available} if threads is None else threads
    apart = [core for n, core in enumerate(available) if threads[core] not in {threads[c] for c in available[:n]}]
    chosen = apart if len(apart) >= 2 * workers else available
    return [tuple(chosen[2 * n : 2 * n + 2]) for n in range(workers)]


def physical_core(core: int) -> int:
    """The first of the threads that share the logical core's physical one; the core itself where nothing says so."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return core
    return int(re.split("[,-]", text)[0])


def repeated(
    do: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], workers: int, deadline: float = math.inf
) -> Iterator[Any]:
    """`do(*job)` of every job, as they end, in processes of their own; none begins after `deadline` (monotonic)."""
    context = multiprocessing.get_context("spawn")
    free = context.Queue()
    for cores in slots(workers):
        free.put(cores)
    with ProcessPoolExecutor(workers, context, initializer=_pin, initargs=(free,)) as pool:
        waiting = [pool.submit(_before, deadline, do, job) for job in jobs]
        for done in as_completed(waiting):
            begun, found = done.result()
            if begun:
                yield found


def _pin(free: Any) -> None:
    os.sched_setaffinity(0, free.get())


def _before(deadline: float, do: Callable[..., Any], job: tuple[Any, ...]) -> tuple[bool, Any]:
    return (True, do(*job)) if time.monotonic() < deadline else (False, None)


@contextlib.contextmanager
def busy_neighbour() -> Iterator[None]:
    """A process that never rests on the last of this process' cores."""
    spin = f"import os\nos.sched_setaffinity(0, {{{max(os.sched_getaffinity(0))}}})\nwhile True: pass"
    neighbour = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def machine() -> str:
    """The processor and its cores in words; no name of the machine."""
    model = "an unknown processor"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{os.cpu_count()} cores of {model}"


def at_most(count: int, of: int, confidence: float = 0.95) -> float:
    """Exact upper bound of a share that was seen `count` times (Clopper and Pearson 1934), one-sided."""
    return 1.0 if count >= of else _solve(lambda p: _binomial(count, of, p) - (1 - confidence))


def at_least(count: int, of: int, confidence: float = 0.95) -> float:
    """Exact lower bound of a share that was seen `count` times, one-sided."""
    return 1 - at_most(of - count, of, confidence)


def _binomial(most: int, of: int, share: float) -> float:
    """Probability of at most so many hits."""
    return math.fsum(math.comb(of, hits) * share**hits * (1 - share) ** (of - hits) for hits in range(most + 1))


def _solve(falling: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high
