"""From measured layouts to results: verdicts, grids, the gate, and the published schema."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import bench_results
import jsonschema
import pytest
from bench_results import bench, measured, shape

from difftest.reports.bench_words import bench_sentence, change_words, remark_lines
from difftest.timing.judge import Measured, corrected, judge_grids, judge_shape, regressions, settled
from difftest.timing.result import BenchResult, ShapeResult, Untimed
from difftest.timing.statistics import Rule, SpeedVerdict


def validate(result: BenchResult) -> dict[str, object]:
    schema = json.loads((resources.files("difftest") / "schema" / "bench.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    jsonschema.validate(data, schema)
    return dict(data)


def test_a_shape_says_what_was_measured() -> None:
    found = shape(16, 10.0, 0.05)
    assert found.verdict == SpeedVerdict.SLOWER
    assert found.interval[0] < 5 < found.interval[1] and found.delta_percent == pytest.approx(5, abs=0.5)
    assert found.words == f"slower by {found.delta_percent:.1f} %"
    assert found.base_us == min(pair.base_us for pair in found.pairs) <= found.base.median <= found.base.p95
    assert found.base.first_call == 900 and found.head_times.first_call == 52_000
    assert len(found.pairs) == 240 and len(found.layouts) == 12
    assert found.floor_percent is not None and abs(found.floor_percent) < 0.5
    assert found.spread_percent == max(found.base.spread_percent, found.head_times.spread_percent) > 0


def test_a_shape_is_settled_only_after_several_layouts() -> None:
    data = measured(10.0, 0.4, layouts=8)
    assert settled(data[:2], Rule()) is None
    decision = settled(data, Rule())
    assert decision is not None and decision.verdict is SpeedVerdict.SLOWER


def test_faster_with_other_results_is_not_faster() -> None:
    wrong = [replace(layout, conditions=replace(layout.conditions, disagreements=3)) for layout in measured(10.0, -0.5)]
    found = judge_shape("t", "batch 1", "head", {"batch": 1}, wrong)
    assert found.verdict == SpeedVerdict.INCONCLUSIVE
    assert "results differed in 36 of 240 pairs" in found.notes[0]


def test_results_that_base_itself_gives_anew_stand_against_nothing() -> None:
    def differing(data: list[Measured]) -> list[Measured]:
        return [replace(layout, conditions=replace(layout.conditions, disagreements=3)) for layout in data]

    head, floor = differing(measured(10.0, -0.5)), measured(10.0, 0.0, seed=1)
    assert judge_shape("t", "s", "h", {}, head, floor=floor).verdict == SpeedVerdict.INCONCLUSIVE
    found = judge_shape("t", "s", "h", {}, head, floor=differing(floor))
    assert found.verdict == SpeedVerdict.FASTER
    assert found.notes[0] == "base's results differ from base's own, too (36 of 240 pairs)"


def test_a_change_that_base_against_base_shows_too_is_no_change() -> None:
    found = judge_shape("t", "s", "h", {}, measured(10.0, 0.02), floor=measured(10.0, 0.03, seed=1))
    assert found.verdict == SpeedVerdict.NO_CHANGE
    assert found.floor_percent == pytest.approx(3, abs=0.5)


def test_one_disturbed_layout_of_base_against_base_hides_no_change() -> None:
    floor = measured(10.0, 0.0, layouts=3, seed=1) + measured(10.0, 0.12, layouts=1, seed=2)
    found = judge_shape("t", "s", "h", {}, measured(10.0, 0.02), floor=floor)
    assert found.floor_percent is not None and found.floor_percent > 2.5
    assert found.verdict == SpeedVerdict.SLOWER


def test_garbage_and_recycled_inputs_are_said() -> None:
    layouts = [
        replace(layout, conditions=replace(layout.conditions, head_garbage=20.0, recycled=True))
        for layout in measured(10.0, 0.0)
    ]
    notes = judge_shape("t", "s", "h", {}, layouts).notes
    assert any("head leaves 20 objects a call" in note for note in notes)
    assert any("addresses may have come twice" in note for note in notes)


def test_a_machine_that_interrupts_most_of_it_is_said() -> None:
    def notes(kept: int) -> tuple[str, ...]:
        layouts = [
            replace(layout, conditions=replace(layout.conditions, kept_interrupted=kept))
            for layout in measured(10.0, 0.0)
        ]
        return judge_shape("t", "s", "h", {}, layouts).notes

    assert notes(1) == ()
    assert notes(5)[0].startswith("the scheduler interrupted 60 of 120 quads that were kept")


def test_a_grid_says_the_whole_in_words() -> None:
    first, second = bench_results.grid().grids
    assert first.verdicts == {"faster": 6, "slower": 2, "no-change": 0, "inconclusive": 0}
    assert first.words.startswith("6 faster, 2 slower of 8; median faster by ")
    assert first.median_percent == pytest.approx(-30, abs=1)
    assert "2 of 2 slower hold after correction for 8 shapes" in first.words
    assert first.crossing[0] == "better from batch 4 on, worse up to 1"
    assert first.crossing[1] == "against gather: better from batch 4 on, worse up to 1"
    assert first.growth[0].startswith("grows with the batch: 0.30 → 0.")
    assert second.crossing[0] == "worse at every batch"


def test_a_grid_in_which_nothing_is_slower_says_so() -> None:
    grid = judge_grids([shape(batch, 10.0, -0.2) for batch in (1, 2, 4)])[0]
    assert grid.words.endswith("none regresses")
    assert grid.crossing[0] == "better at every batch"


def test_a_batch_that_is_not_settled_is_not_called_alike() -> None:
    shapes = [shape(1, 10.0, 0.1, layouts=2), shape(2, 10.0, -0.1), shape(4, 10.0, -0.1), shape(8, 10.0, 0.0)]
    crossing = judge_grids(shapes)[0].crossing
    assert crossing == ("better or alike at every batch, alike at 1 of 3; not settled at 1",)
    assert judge_grids([shape(1, 10.0, 0.1, layouts=2), shape(2, 10.0, 0.1, layouts=2)])[0].crossing == ()


def test_shapes_of_too_few_loadings_are_neither_worst_nor_median() -> None:
    shapes = [shape(1, 10.0, 0.01), shape(2, 10.0, -0.1), shape(4, 10.0, 1.8, layouts=1)]
    grid = judge_grids(shapes)[0]
    assert grid.worst_shape == "batch 1, 3 drafts" and grid.median_percent == pytest.approx(-4.5, abs=1)
    assert change_words(shapes[2]).endswith("% (1 loading)")
    assert judge_grids(shapes[2:])[0].worst_percent > 100


def test_a_slower_shape_among_many_must_stand_the_correction() -> None:
    one = shape(1, 10.0, 0.02)
    shapes = [replace(one, shape=f"shape {n}", probability=0.9) for n in range(99)]
    shapes.append(replace(one, probability=0.001, verdict="slower"))
    grid = judge_grids(corrected(shapes))[0]
    assert grid.slower_corrected == 0
    assert judge_grids(corrected([*shapes[:9], shapes[-1]]))[0].slower_corrected == 1


def test_the_gate_names_what_is_beyond_it() -> None:
    shapes = [shape(1, 10.0, 0.1), shape(2, 10.0, 0.015), shape(4, 10.0, -0.1)]
    assert regressions(shapes, 2.0) == ["v1.parse_output, batch 1, 3 drafts, WORKTREE"]
    assert bench(shapes, limit=2.0).exit_code == 4
    assert bench(shapes, limit=20.0).exit_code == 0
    assert bench(shapes).exit_code == 0


def test_what_was_not_timed_is_never_green() -> None:
    missing = (Untimed("v1.parse_output", "WORKTREE", "outputs differ"),)
    assert bench([], untimed=missing).exit_code == 3
    assert bench([shape(1, 10.0, -0.1)], untimed=missing).exit_code == 3
    assert bench([shape(1, 10.0, 0.5)], limit=2.0, untimed=missing).exit_code == 4
    assert bench([]).exit_code == 3


def test_what_nobody_named_and_cannot_be_timed_here_is_said_and_not_missed() -> None:
    beside = (Untimed("v2.min_p", "WORKTREE", "it launches Triton kernels", asked=False),)
    timed = bench([shape(1, 10.0, -0.1)], untimed=beside)
    assert timed.exit_code == 0
    assert "not timed" not in bench_sentence(timed)
    assert ("Neither named nor timed", ["v2.min_p, WORKTREE: it launches Triton kernels"]) in remark_lines(timed)
    assert bench([], untimed=beside).exit_code == 3


@pytest.mark.parametrize(
    "shapes", [pytest.param([], id="nothing"), pytest.param([shape(1, 10.0, 0.0, floor=False)], id="no floor")]
)
def test_the_json_form_keeps_to_the_schema(shapes: list[ShapeResult]) -> None:
    validate(bench(shapes, limit=2.0, untimed=(Untimed("v1.topk", "WORKTREE", "no shapes"),)))


def test_the_json_form_keeps_raw_pairs_and_the_fields_that_others_read() -> None:
    data = validate(bench_results.grid())
    assert isinstance(data["shapes"], list)
    first = data["shapes"][0]
    assert first["base_us"] == min(pair["base_us"] for pair in first["pairs"])
    assert {"target", "shape", "head", "head_us", "delta_percent", "interval", "spread_percent", "verdict"} <= set(
        first
    )
    assert {pair["layout"] for pair in first["pairs"]} == set(range(len(first["layouts"])))
