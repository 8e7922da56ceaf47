"""End-to-end results made elsewhere, judged as pairs: an effect inside the within-arm spread is flat, not a win.

Two kinds of files are read:

- what `vllm bench serve --save-result` (or `--append-result`) writes, one result or several in a file. The arm is what
  `--metadata arm=base` says, else a label that is `base` or `head`, else the word `base` or `head` in the file's name.
  The pair is what `--metadata pair=3` says; without it, the n-th base is paired with the n-th head by date;
- a CSV with the columns `arm`, `pair` and one column a metric; its lines are in the order in which the runs were made.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from difftest.errors import NothingCompared, UsageError

SCHEMA = "difftest.pairs/1"
ARMS = ("base", "head")
FEWEST_PAIRS = 3
"""Of fewer nothing is said: two values do not show how far an arm's own runs are apart."""

_HIGHER_IS_BETTER = re.compile(r"throughput|goodput|per_s(ec(ond)?)?$|^tps$|^qps$|^rps$|acceptance")
_LOWER_IS_BETTER = re.compile(r"latency|duration|ttft|tpot|itl|e2el|_(ms|us|s|ns)$|^time|seconds")
_SERVE_METRIC = re.compile(r"(_throughput|request_goodput)$|^(mean|median|p[\d.]+)_.*_ms$|^duration$")


@dataclass(frozen=True)
class Run:
    """One end-to-end run.

    Attributes:
        arm: `base` or `head`.
        pair: which pair it belongs to.
        metrics: its numbers by name.
        source: file (and line) for messages.
        failed: requests that failed.
    """

    arm: str
    pair: int
    metrics: Mapping[str, float]
    source: str
    failed: int = 0


@dataclass(frozen=True)
class MetricResult:
    """One metric over all pairs.

    Attributes:
        better: `higher`, `lower`, or empty where the name does not say.
        base, head: values by pair, in the order of `PairsResult.pairs`.
        base_median, head_median: of those.
        deltas_percent: head over base by pair; `delta_percent` is their median.
        base_spread_percent, head_spread_percent: largest minus smallest value over the median, within an arm.
        verdict: `better`, `worse`, `higher`, `lower`, `flat`, or `cannot tell` where the pairs are fewer than
            :data:`FEWEST_PAIRS` or the runs did not take turns.
        drift_percent: how much both arms changed from the first pair to the last; 0 where they did not.
        outliers: pairs that stand out, in words.
        sentence: the whole in words.
    """

    name: str
    better: str
    base: tuple[float, ...]
    head: tuple[float, ...]
    base_median: float
    head_median: float
    deltas_percent: tuple[float, ...]
    delta_percent: float
    base_spread_percent: float
    head_spread_percent: float
    verdict: str
    drift_percent: float
    outliers: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class PairsResult:
    """What the pairs say.

    Attributes:
        pairs: numbers of the pairs that were judged, in the order of their runs.
        dropped: pairs that were left out, on request or for want of an arm, in words.
        order: whether the arms took turns, in words; `interleaved` says it as a value.
    """

    pairs: tuple[int, ...]
    dropped: tuple[str, ...]
    interleaved: bool
    order: str
    metrics: tuple[MetricResult, ...]
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"schema": data.pop("schema"), **data}

    def lines(self) -> list[str]:
        """The result for a person, a line each."""
        lines = [
            f"{len(self.pairs)} {'pair' if len(self.pairs) == 1 else 'pairs'}; {self.order}",
            *self.dropped,
            *self.notes,
        ]
        return lines + [metric.sentence for metric in self.metrics]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of all files, in the order in which they were made.

    Raises:
        UsageError: a file cannot be read or does not say what it should; the message names file and fault.
        NothingCompared: the files hold no run.
    """
    described: list[_Described] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}; name a file of results") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not text; a JSON or CSV file of results is needed") from None
        if not text.strip():
            raise UsageError(f"{path} is empty; give a JSON or CSV file of results")
        described += _serve_results(path, text) if text.lstrip()[0] in "{[" else _csv_runs(path, text)
    dated = [item for item in described if item.date]
    if dated and len(dated) == len(described):
        described.sort(key=lambda item: item.date)
    elif dated and len({item.file for item in described}) > 1:
        undated = next(item.source for item in described if not item.date)
        raise UsageError(
            f"{undated} has no date, the others have; without dates the order of the runs is not known; add its date"
        )
    return _numbered(described)


def judge_pairs(runs: Sequence[Run], *, drop_first: bool = False, metrics: Iterable[str] = ()) -> PairsResult:
    """What the runs say, metric by metric.

    Args:
        runs: in the order in which they were made.
        drop_first: leave the first pair out, as a warm-up.
        metrics: names to judge; all that every run has, if none are given.

    Raises:
        UsageError: a metric that the runs do not have.
        NothingCompared: no pair is left.
    """
    by_pair: dict[int, dict[str, Run]] = {}
    for run in runs:
        by_pair.setdefault(run.pair, {})[run.arm] = run
    dropped = []
    for pair in [pair for pair, arms in by_pair.items() if len(arms) < 2]:
        (arm,) = by_pair.pop(pair)
        dropped.append(f"pair {pair} left out: it has only {arm}")
    if drop_first and by_pair:
        first = next(iter(by_pair))
        del by_pair[first]
        dropped.append(f"pair {first} left out: the first, as asked for")
    if not by_pair:
        raise NothingCompared("no pair with both arms is left to judge; give more runs")
    kept = [run for run in runs if run.pair in by_pair]
    names = _names(kept, metrics)
    interleaved, order = _order([run.arm for run in kept])
    notes = [f"{run.failed} requests failed in {run.source} ({run.arm}, pair {run.pair})" for run in kept if run.failed]
    pairs = tuple(by_pair)
    judged = tuple(
        _metric(
            name,
            pairs,
            [by_pair[pair]["base"].metrics[name] for pair in pairs],
            [by_pair[pair]["head"].metrics[name] for pair in pairs],
            interleaved,
        )
        for name in names
    )
    return PairsResult(pairs, tuple(dropped), interleaved, order, judged, tuple(notes))


@dataclass(frozen=True)
class _Described:
    """A run before its pair is known."""

    arm: str
    pair: int | None
    metrics: Mapping[str, float]
    file: str
    source: str
    date: str = ""
    failed: int = 0


def _serve_results(path: Path, text: str) -> Iterator[_Described]:
    results = list(_json_values(path, text))
    for number, result in enumerate(results, start=1):
        source = str(path) if len(results) == 1 else f"{path} (result {number})"
        if not isinstance(result, dict):
            raise UsageError(
                f"{source} is not a result: an object was expected, {type(result).__name__} found; save it again"
            )
        metrics = {
            name: float(value)
            for name, value in result.items()
            if _SERVE_METRIC.search(name) and isinstance(value, int | float) and not isinstance(value, bool)
        }
        wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
        if wrong:
            raise UsageError(f"{source}: {wrong[0]} is {metrics[wrong[0]]}, not a number; leave this run out")
        if not metrics:
            raise UsageError(
                f"{source} has no metric of `vllm bench serve --save-result` (such as output_throughput); save it so"
            )
        failed = result.get("failed") or 0
        yield _Described(
            arm=_arm_of(result, path, source),
            pair=_pair_number(result.get("pair"), source),
            metrics=metrics,
            file=str(path),
            source=source,
            date=str(result.get("date") or ""),
            failed=failed if isinstance(failed, int) else 0,
        )


def _json_values(path: Path, text: str) -> Iterator[Any]:
    """The JSON values that stand one after the other in a file; of a list, its items."""
    decoder = json.JSONDecoder()
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path} is not valid JSON: {error.msg} at line {error.lineno}; save it again") from None
        yield from value if isinstance(value, list) else [value]


def _arm_of(result: Mapping[str, Any], path: Path, source: str) -> str:
    said = result.get("arm")
    if said is not None:
        if said not in ARMS:
            raise UsageError(f"{source}: arm {said!r} should be base or head")
        return str(said)
    if result.get("label") in ARMS:
        return str(result["label"])
    words = set(re.split(r"[^a-z]+", path.stem.lower())) & set(ARMS)
    if len(words) != 1:
        raise UsageError(
            f"{source} does not say whether it is base or head; use `--metadata arm=base` or name the file so"
        )
    return words.pop()


def _pair_number(value: object, source: str) -> int | None:
    if value is None:
        return None
    try:
        return int(str(value))
    except ValueError:
        raise UsageError(f"{source}: pair {value!r} should be a whole number") from None


def _csv_runs(path: Path, text: str) -> Iterator[_Described]:
    reader = csv.reader(io.StringIO(text))
    rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(cell.strip() for cell in row)]
    header = rows[0][1]
    missing = [name for name in ("arm", "pair") if name not in header]
    if missing:
        raise UsageError(f"{path} has no column {missing[0]}; the first line should be arm,pair,METRIC,...")
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise UsageError(f"{path} has the column {twice[0]} more than once; keep one of them")
    names = [name for name in header if name not in ("arm", "pair")]
    if not names:
        raise UsageError(f"{path} has no column with a metric; the first line should be arm,pair,METRIC,...")
    for line, row in rows[1:]:
        source = f"{path}, line {line}"
        if len(row) != len(header):
            raise UsageError(f"{source} has {len(row)} columns, the header {len(header)}; mend that line")
        cells = dict(zip(header, row, strict=True))
        if cells["arm"] not in ARMS:
            raise UsageError(f"{source}: arm {cells['arm']!r} should be base or head")
        metrics = {}
        for name in names:
            try:
                metrics[name] = float(cells[name])
            except ValueError:
                raise UsageError(f"{source}: {name} is {cells[name]!r}, not a number; mend that line") from None
            if not math.isfinite(metrics[name]):
                raise UsageError(f"{source}: {name} is {cells[name]!r}, not a number; mend that line")
        yield _Described(cells["arm"], _pair_number(cells["pair"], source), metrics, str(path), source)


def _numbered(described: Sequence[_Described]) -> list[Run]:
    if not described:
        raise NothingCompared("the files hold no run; give results of base and of head")
    numbered = [item.pair is not None for item in described]
    if any(numbered) and not all(numbered):
        raise UsageError(
            f"{described[numbered.index(False)].source} does not say its pair, though others do; number it, too"
        )
    counts: Counter[str] = Counter()
    seen: dict[tuple[str, int], str] = {}
    runs = []
    for item in described:
        counts[item.arm] += 1
        pair = counts[item.arm] if item.pair is None else item.pair
        if (item.arm, pair) in seen:
            raise UsageError(
                f"{item.source}: pair {pair} already has a {item.arm}, in {seen[item.arm, pair]}; number it anew"
            )
        seen[item.arm, pair] = item.source
        runs.append(Run(item.arm, pair, item.metrics, item.source, item.failed))
    for arm in ARMS:
        if not counts[arm]:
            raise NothingCompared(f"no run of {arm}; a pair needs base and head")
    return runs


def _names(runs: Sequence[Run], wanted: Iterable[str]) -> list[str]:
    common = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    for name in wanted:
        if name not in common:
            raise UsageError(f"no metric {name} in every run; there are {', '.join(common) or 'none'}")
    names = list(dict.fromkeys(wanted)) or common
    if not names:
        raise NothingCompared("no metric that every run has; give results of one benchmark")
    for run in runs:
        for name in names:
            if run.metrics[name] <= 0:
                raise UsageError(
                    f"{run.source}: {name} is {run.metrics[name]:g}; ratios need values above 0; drop it by --metric"
                )
    return names


def _order(arms: Sequence[str]) -> tuple[bool, str]:
    """Whether the arms took turns, so that no pair is more than a run apart."""
    pairs = [tuple(arms[n : n + 2]) for n in range(0, len(arms), 2)]
    if any(set(pair) != set(ARMS) for pair in pairs):
        blocks = 1 + sum(one != two for one, two in itertools.pairwise(arms))
        return False, f"not interleaved: the arms ran in {blocks} blocks, so drift cannot be told from an effect"
    first = Counter(pair[0] for pair in pairs)
    if len(pairs) > 1 and len(first) == 1:
        return True, f"interleaved, {pairs[0][0]} always first: what favours a place in the pair is not averaged out"
    return True, "interleaved, order alternated" if len(pairs) > 1 else "a single pair"


def _metric(name: str, pairs: Sequence[int], base: list[float], head: list[float], interleaved: bool) -> MetricResult:
    one, two = np.array(base), np.array(head)
    deltas = 100 * (two / one - 1)
    delta = float(np.median(deltas))
    spreads = [100 * float((v.max() - v.min()) / np.median(v)) for v in (one, two)]
    better = "higher" if _HIGHER_IS_BETTER.search(name) else "lower" if _LOWER_IS_BETTER.search(name) else ""
    drift = _drift(one, two)
    outliers = _outliers(pairs, one, two, deltas)
    agree = bool((deltas > 0).all() or (deltas < 0).all())
    verdict = "flat" if len(pairs) >= FEWEST_PAIRS else "cannot tell"
    if verdict == "flat" and abs(delta) > max(spreads) and agree:
        verdict = _direction(better, delta > 0) if interleaved else "cannot tell"
    found = MetricResult(
        name=name,
        better=better,
        base=tuple(base),
        head=tuple(head),
        base_median=float(np.median(one)),
        head_median=float(np.median(two)),
        deltas_percent=tuple(float(v) for v in deltas),
        delta_percent=delta,
        base_spread_percent=spreads[0],
        head_spread_percent=spreads[1],
        verdict=verdict,
        drift_percent=drift,
        outliers=tuple(outliers),
        sentence="",
    )
    return MetricResult(**{**asdict(found), "sentence": _sentence(found)})


def _direction(better: str, rises: bool) -> str:
    if not better:
        return "higher" if rises else "lower"
    return "better" if rises == (better == "higher") else "worse"


def _drift(base: np.ndarray[Any, np.dtype[np.float64]], head: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """How much both arms rise or fall together from the first pair to the last, in percent; 0 where they do not."""
    if base.size < 4:
        return 0.0
    changes = []
    for values in (base, head):
        places = np.arange(values.size)
        slope, start = np.polyfit(places, values, 1)
        left = values - (start + slope * places)
        explained = 1 - float(left @ left) / (float(((values - values.mean()) ** 2).sum()) or 1.0)
        if explained < 0.75:
            return 0.0
        changes.append(100 * float(slope) * (values.size - 1) / float(values.mean()))
    together = changes[0] * changes[1] > 0 and min(abs(change) for change in changes) > 1
    return sum(changes) / 2 if together else 0.0


def _outliers(
    pairs: Sequence[int],
    base: np.ndarray[Any, np.dtype[np.float64]],
    head: np.ndarray[Any, np.dtype[np.float64]],
    deltas: np.ndarray[Any, np.dtype[np.float64]],
) -> list[str]:
    """Pairs whose delta is far from all others', with the arm that is off."""
    if deltas.size < 4:
        return []
    said = []
    for n, pair in enumerate(pairs):
        others = np.delete(deltas, n)
        reach = max(float(others.max() - others.min()), 0.5)
        distance = max(others.min() - deltas[n], deltas[n] - others.max())
        if distance > 2 * reach:
            off = {arm: v[n] / np.median(np.delete(v, n)) - 1 for arm, v in (("base", base), ("head", head))}
            arm = max(off, key=lambda key: abs(off[key]))
            without = float(np.median(others))
            where = f"its {arm} is {100 * off[arm]:+.1f} % off the others"
            said.append(f"pair {pair} stands out: {where}; without it {without:+.1f} %")
    return said


def _sentence(found: MetricResult) -> str:
    count = len(found.base)
    spread = max(found.base_spread_percent, found.head_spread_percent)
    low, high = min(found.deltas_percent), max(found.deltas_percent)
    parts = [
        f"{found.name}: {_value(found.base_median)} → {_value(found.head_median)}, "
        f"{found.delta_percent:+.1f} % ({low:+.1f} to {high:+.1f} over {count} {'pair' if count == 1 else 'pairs'})"
    ]
    if count < FEWEST_PAIRS:
        few = "1 pair is" if count == 1 else f"{count} pairs are"
        parts.append(f"{few} too few to know the spread within an arm, {FEWEST_PAIRS} or more are needed: cannot tell")
    elif found.verdict == "cannot tell":
        parts.append(f"outside the within-arm spread of {spread:.1f} %, but the arms did not take turns: cannot tell")
    elif found.verdict != "flat":
        parts.append(f"outside the within-arm spread of {spread:.1f} %: {found.verdict}")
    elif abs(found.delta_percent) <= spread:
        parts.append(f"inside the within-arm spread of {spread:.1f} %: an effect inside the spread is flat, not a win")
    else:
        parts.append("flat: the pairs do not agree on the direction")
    if found.drift_percent:
        parts.append(f"both arms drift, {found.drift_percent:+.1f} % from the first pair to the last")
    return "; ".join([*parts, *found.outliers])


def _value(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"
