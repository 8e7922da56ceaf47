"""End-to-end pairs made elsewhere: four sets whose truth is known, and files that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from difftest.errors import DifftestError, NothingCompared, UsageError
from difftest.timing.pairs import MetricResult, PairsResult, judge_pairs, read_runs


def table(folder: Path, base: list[float], head: list[float], metric: str = "output_throughput") -> Path:
    """A CSV of interleaved runs, the order alternated."""
    lines = [f"arm,pair,{metric}"]
    for pair, (one, two) in enumerate(zip(base, head, strict=True), start=1):
        both = [f"base,{pair},{one}", f"head,{pair},{two}"]
        lines += both if pair % 2 else both[::-1]
    path = folder / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def judged(path: Path, drop_first: bool = False) -> tuple[PairsResult, MetricResult]:
    result = judge_pairs(read_runs([path]), drop_first=drop_first)
    return result, result.metrics[0]


def noise(spread: float, count: int, seed: int) -> np.ndarray:
    return 1 + np.random.default_rng(seed).uniform(-spread / 2, spread / 2, count)


def test_a_true_effect_of_five_percent_is_a_win(tmp_path: Path) -> None:
    base, head = 1000 * noise(0.01, 6, 1), 1050 * noise(0.01, 6, 2)
    result, metric = judged(table(tmp_path, list(base), list(head)))
    assert metric.verdict == "better" and metric.delta_percent == pytest.approx(5, abs=0.7)
    assert "outside the within-arm spread of 0." in metric.sentence and metric.sentence.endswith(": better")
    assert result.order == "interleaved, order alternated"


def test_the_same_effect_on_a_latency_is_a_loss(tmp_path: Path) -> None:
    path = table(tmp_path, list(20 * noise(0.01, 6, 1)), list(21 * noise(0.01, 6, 2)), "mean_ttft_ms")
    assert judged(path)[1].verdict == "worse"


def test_an_effect_inside_the_spread_is_flat(tmp_path: Path) -> None:
    base, head = 1000 * noise(0.08, 6, 3), 1020 * noise(0.08, 6, 4)
    _, metric = judged(table(tmp_path, list(base), list(head)))
    assert metric.verdict == "flat"
    assert "an effect inside the spread is flat, not a win" in metric.sentence
    assert not metric.drift_percent and not metric.outliers


def test_drift_over_time_is_said_and_is_no_effect(tmp_path: Path) -> None:
    slowing = np.linspace(1, 0.9, 8)
    base, head = 1000 * slowing * noise(0.004, 8, 5), 1002 * slowing * noise(0.004, 8, 6)
    _, metric = judged(table(tmp_path, list(base), list(head)))
    assert metric.verdict == "flat"
    assert metric.drift_percent == pytest.approx(-10.5, abs=1)
    assert "both arms drift, -10." in metric.sentence


def test_one_outlier_is_named_and_is_no_effect(tmp_path: Path) -> None:
    base, head = 1000 * noise(0.006, 6, 7), 1000 * noise(0.006, 6, 8)
    base[3] = 800
    _, metric = judged(table(tmp_path, list(base), list(head)))
    assert metric.verdict == "flat" and abs(metric.delta_percent) < 0.5
    assert "pair 4 stands out: its base is -20" in metric.sentence


def test_the_first_pair_is_dropped_on_request_only(tmp_path: Path) -> None:
    path = table(tmp_path, [500, 1000, 1001, 1002], [900, 1050, 1051, 1052])
    assert judged(path)[1].verdict == "flat"
    result, metric = judged(path, drop_first=True)
    assert metric.verdict == "better" and result.pairs == (2, 3, 4)
    assert result.dropped == ("pair 1 left out: the first, as asked for",)


def test_the_order_of_the_runs_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [("base", n, 1000 + n) for n in (1, 2, 3)] + [("head", n, 1100 + n) for n in (1, 2, 3)]
    path.write_text("arm,pair,tps\n" + "".join(f"{arm},{pair},{value}\n" for arm, pair, value in rows))
    result, _ = judged(path)
    assert not result.interleaved and result.order.startswith("not interleaved: the arms ran in 2 blocks")
    rows.sort(key=lambda row: row[1])
    path.write_text("arm,pair,tps\n" + "".join(f"{arm},{pair},{value}\n" for arm, pair, value in rows))
    assert judged(path)[0].order.startswith("interleaved, base always first")


def test_without_turns_an_effect_may_be_drift(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [("base", n, 1000 + n) for n in range(4)] + [("head", n, 1100 + n) for n in range(4)]
    path.write_text("arm,pair,tps\n" + "".join(f"{arm},{pair},{value}\n" for arm, pair, value in rows))
    _, metric = judged(path)
    assert metric.verdict == "cannot tell"
    assert metric.sentence.endswith("but the arms did not take turns: cannot tell")


@pytest.mark.parametrize("head", [[1500, 1501, 1502], [1000, 1001, 1002]])
def test_of_too_few_pairs_nothing_is_said(tmp_path: Path, head: list[float]) -> None:
    path = table(tmp_path, [1000, 1001, 1002], head)
    assert judged(path)[1].verdict == ("better" if head[0] == 1500 else "flat")
    _, metric = judged(path, drop_first=True)
    assert metric.verdict == "cannot tell"
    assert "2 pairs are too few" in metric.sentence and "3 or more are needed: cannot tell" in metric.sentence
    _, metric = judged(table(tmp_path, [1000, 1001], head[:2]), drop_first=True)
    assert metric.verdict == "cannot tell" and "1 pair is too few" in metric.sentence


def serve(folder: Path, name: str, throughput: float, date: str, **more: object) -> Path:
    """A result as `vllm bench serve --save-result` writes it, shortened."""
    result = {
        "date": date,
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": "m",
        "num_prompts": 100,
        "request_rate": "inf",
        "duration": 12.5,
        "completed": 100,
        "failed": 0,
        "request_throughput": 8.0,
        "request_goodput": None,
        "output_throughput": throughput,
        "mean_ttft_ms": 31.5,
        "std_ttft_ms": 3.5,
        "p99_ttft_ms": 80.25,
        "max_concurrent_requests": 60,
        **more,
    }
    path = folder / name
    path.write_text(json.dumps(result))
    return path


def test_results_of_vllm_bench_serve_are_read_by_name_and_date(tmp_path: Path) -> None:
    paths = [
        serve(tmp_path, f"{arm}-infqps-m-{n}.json", (1000 if arm == "base" else 1100) + n, f"20260101-1{n}{second}000")
        for second, arm in enumerate(("base", "head"))
        for n in range(4)
    ]
    result = judge_pairs(read_runs(paths))
    assert [metric.name for metric in result.metrics] == [
        "duration",
        "request_throughput",
        "output_throughput",
        "mean_ttft_ms",
        "p99_ttft_ms",
    ]
    by_name = {metric.name: metric for metric in result.metrics}
    assert by_name["output_throughput"].verdict == "better" and by_name["mean_ttft_ms"].verdict == "flat"
    assert result.interleaved and result.pairs == (1, 2, 3, 4)


def test_metadata_says_arm_and_pair_and_failed_requests_are_said(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    texts = []
    for pair in (1, 2, 3):
        for arm in ("base", "head"):
            one = serve(
                tmp_path, "x.json", 1000, f"20260101-10{pair}0{arm == 'head':d}0", arm=arm, pair=str(pair), failed=2
            )
            texts.append(one.read_text())
    path.write_text("\n".join(texts))  # as --append-result leaves them
    result = judge_pairs(read_runs([path]), metrics=["output_throughput"])
    assert result.pairs == (1, 2, 3) and len(result.notes) == 6
    assert "2 requests failed in" in result.notes[0] and "(base, pair 1)" in result.notes[0]


def test_pairs_that_lack_an_arm_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("arm,pair,tps\nbase,1,10\nhead,1,11\nbase,2,10\n")
    result, _ = judged(path)
    assert result.pairs == (1,) and result.dropped == ("pair 2 left out: it has only base",)


def test_the_result_can_be_written_as_json(tmp_path: Path) -> None:
    data = judged(table(tmp_path, [1, 2, 3], [1, 2, 3]))[0].to_json()
    assert data["schema"] == "difftest.pairs/1" and data["metrics"][0]["deltas_percent"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "arm,metric\nbase,1\n", "no column pair"),
        ("a.csv", "arm,pair\nbase,1\n", "no column with a metric"),
        ("a.csv", "arm,pair,x,x\nbase,1,1,1\n", "column x more than once"),
        ("a.csv", "arm,pair,x\nold,1,3\n", "line 2: arm 'old' should be base or head"),
        ("a.csv", "arm,pair,x\nbase,one,3\n", "line 2: pair 'one' should be a whole number"),
        ("a.csv", "arm,pair,x\nbase,1,fast\n", "line 2: x is 'fast', not a number"),
        ("a.csv", "arm,pair,x\nbase,1,nan\n", "line 2: x is 'nan', not a number"),
        ("a.csv", "arm,pair,x\nbase,1,0\nhead,1,2\n", "x is 0; ratios need values above 0"),
        ("a.csv", "arm,pair,x\nbase,1\n", "line 2 has 2 columns, the header 3"),
        ("a.csv", "arm,pair,x\nbase,1,3\nbase,1,4\n", "pair 1 already has a base"),
        ("a.csv", "arm,pair,x\nbase,1,3\n", "no run of head"),
        ("a.csv", "arm,pair,x\n", "no run"),
        ("base.json", '{"output_throughput": 3', "not valid JSON"),
        ("base.json", "[3]", "is not a result"),
        ("base.json", '{"backend": "vllm"}', "has no metric"),
        ("base.json", '{"output_throughput": NaN}', "output_throughput is nan, not a number"),
        ("run.json", '{"output_throughput": 3}', "does not say whether it is base or head"),
        ("base_head.json", '{"output_throughput": 3}', "does not say whether it is base or head"),
        ("base.json", '{"output_throughput": 3, "arm": "c"}', "arm 'c' should be base or head"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_gives_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DifftestError, match=said) as caught:
        judge_pairs(read_runs([path]))
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_runs([tmp_path / "none.csv"])
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="is not text"):
        read_runs([tmp_path / "b.csv"])
    with pytest.raises(NothingCompared):
        read_runs([])


def test_an_unknown_metric_is_named_with_those_there_are(tmp_path: Path) -> None:
    runs = read_runs([table(tmp_path, [1, 2], [1, 2])])
    with pytest.raises(UsageError, match="no metric speed in every run; there are output_throughput"):
        judge_pairs(runs, metrics=["speed"])
