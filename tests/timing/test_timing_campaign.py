"""The campaign's own parts: its bounds, its trees, its table; and, as a check, a small campaign."""

from __future__ import annotations

import filecmp
from pathlib import Path

import campaign
import pytest
import repetitions
import slowed_trees
from campaign import Shape

from difftest.timing.statistics import SpeedVerdict


def test_bounds_are_those_of_the_textbook() -> None:
    assert repetitions.at_most(0, 1000) == pytest.approx(1 - 0.05 ** (1 / 1000), abs=1e-9)  # about 3 of n
    assert repetitions.at_most(3, 3) == 1 and repetitions.at_least(0, 3) == 0
    assert repetitions.at_least(100, 100) == pytest.approx(0.05 ** (1 / 100), abs=1e-9)
    # Two-sided 95 % for 8 of 10: 0.4439 to 0.9748 (Clopper and Pearson 1934)
    assert repetitions.at_least(8, 10, 0.975) == pytest.approx(0.4439, abs=1e-4)
    assert repetitions.at_most(8, 10, 0.975) == pytest.approx(0.9748, abs=1e-4)


def test_every_worker_has_two_cores_of_its_own() -> None:
    alone = {core: core for core in range(10)}
    assert repetitions.slots(2, [3, 4, 5, 8, 9], alone) == [(3, 4), (5, 8)]
    threads = {core: core // 2 for core in range(8)}
    assert repetitions.slots(2, list(range(8)), threads) == [(0, 2), (4, 6)]
    assert repetitions.slots(3, list(range(8)), threads) == [(0, 1), (2, 3), (4, 5)]
    for workers in (0, 3):
        with pytest.raises(ValueError, match="cores"):
            repetitions.slots(workers, [0, 1, 2, 3], alone)


def test_a_slower_tree_differs_from_base_in_its_laps_only(tmp_path: Path) -> None:
    shares = {1: 0.001, 16: 0.0004, 64: 0.00015, 256: 0.00004}
    laps, truth = slowed_trees.laps_for(1, shares)
    assert laps == {1: 10, 16: 25, 64: 67, 256: 250}
    assert truth[64] == pytest.approx(1.005)
    base, slow = slowed_trees.write_tree(tmp_path / "base"), slowed_trees.write_tree(tmp_path / "slow", laps)
    compared = filecmp.dircmp(base / "vllm/v1/sample", slow / "vllm/v1/sample")
    assert compared.diff_files == ["rejection_sampler.py"]
    one, two = ((tree / "vllm/v1/sample/rejection_sampler.py").read_text().splitlines() for tree in (base, slow))
    assert [(b, h) for b, h in zip(one, two, strict=True) if b != h] == [
        (
            f"_LAPS = {dict.fromkeys(slowed_trees.BATCHES, slowed_trees.LAPS)}",
            "_LAPS = {1: 50, 16: 65, 64: 107, 256: 290}",
        )
    ]


def _shape(percent: float, verdict: SpeedVerdict, delta: float, busy: bool = False) -> Shape:
    return Shape(
        percent,
        0,
        busy,
        1,
        str(verdict),
        "",
        delta,
        delta - 0.1,
        delta + 0.1,
        5.0,
        6,
        80,
        0.7,
        10 if percent else 0,
        0.0,
    )


def test_the_table_counts_what_was_said(tmp_path: Path) -> None:
    found = [_shape(0, SpeedVerdict.NO_CHANGE, 0.0, busy=n < 3) for n in range(9)]
    found.append(_shape(0, SpeedVerdict.FASTER, -0.9))
    found += [_shape(1, SpeedVerdict.SLOWER, 1.1), _shape(1, SpeedVerdict.INCONCLUSIVE, 0.6)]
    shares = [dict.fromkeys(slowed_trees.BATCHES, share) for share in (0.0008, 0.0009, 0.0012)]
    facts = {"machine": "2 cores", "python": "3.12", "torch": "2.11", "at a time": "1"}
    run = campaign.Run(facts, shares, found)
    kept = tmp_path / "kept.jsonl"
    campaign.keep(kept, {"facts": facts}, *({"shares": s} for s in shares), *(shape._asdict() for shape in found))
    assert campaign.read_run(kept) == run
    other = run._replace(facts={**facts, "machine": "32 cores"})
    page = campaign.document(campaign.sections([run, other, run]))
    assert [line for line in page.splitlines() if line.startswith("## ")] == ["## On 2 cores", "## On 32 cores"]
    assert page.index("calibrated 6 times") < page.index("| both | 20 |") < page.index("calibrated 3 times")
    lines = campaign.table(run.judged()).splitlines()
    bound = 100 * repetitions.at_most(1, 7)
    assert f"| idle | 7 | 1 | 0 | 6 | 0 | at most {bound:.2f} % | 0.7 (95 % within 0.7) |" in lines
    assert any(line.startswith("| busy | 3 | 0 | 0 | 3 | 0 |") for line in lines)
    assert any(line.startswith("| both | 10 | 1 | 0 | 9 | 0 |") for line in lines)
    (row,) = (line for line in lines if line.startswith("| 1 % |"))
    assert row.startswith("| 1 % | 1 | 5.0 | 0.90 % | 1 of 2 | at least 2.5 % | 0 | 0 | -0.05 | 0.25 | 0.7 ")


@pytest.mark.check
def test_a_small_campaign_raises_no_false_alarm_and_finds_what_is_slower(tmp_path: Path) -> None:
    shares = campaign.calibrate(tmp_path, 1)
    jobs = campaign.plan(tmp_path, 6, 2, 2, shares[0])
    shapes = [s for found in repetitions.repeated(campaign.measure, [(job,) for job in jobs], 1) for s in found]
    found = campaign.Run({}, shares, shapes).judged()
    assert len(found) == 4 * (6 + 2 * 4)
    print(campaign.table(found))
    for shape in found:
        if shape.percent == 0:
            assert shape.verdict not in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER), shape
        elif shape.percent >= 2:
            assert shape.verdict == SpeedVerdict.SLOWER, shape
            assert abs(shape.delta - shape.truth) < 1
