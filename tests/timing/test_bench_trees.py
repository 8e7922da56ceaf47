"""Whole benches on edited copies of the demonstration's tree: what is slower is said to be, and nothing else is."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from difftest.demo import TREES
from difftest.errors import NothingCompared, UsageError
from difftest.timing.bench import BenchOptions, bench
from difftest.timing.result import BenchResult
from difftest.timing.statistics import FEWEST_LAYOUTS, SpeedVerdict

_FILE = "vllm/v1/sample/rejection_sampler.py"
_TARGET = "v1.parse_output"
_BASE = """
import gc
import time

import torch.nn as nn

_SPIN = range(2_000)


class RejectionSampler(nn.Module):
    @staticmethod
    def parse_output(output_token_ids, vocab_size, discard_req_indices=(), logprobs_tensors=None):
        return _parse(output_token_ids, vocab_size), None


def _parse(ids, vocab_size):
    for _ in _SPIN:
        pass
    return [[token for token in row if -1 < token < vocab_size] for row in ids.tolist()]
"""
_CALL = "return _parse(output_token_ids, vocab_size), None"

# Heads that do base's work, yet would look faster to a careless clock.
_CHEATS = {
    "first-call-compiles": (
        "global _ready\n        if not _ready:\n            time.sleep(0.05)\n            _ready = True\n        "
        + _CALL,
        "_ready = False",
    ),
    "caches-by-identity": (
        "if id(output_token_ids) not in _seen:\n"
        "            _seen[id(output_token_ids)] = output_token_ids, _parse(output_token_ids, vocab_size)\n"
        "        return _seen[id(output_token_ids)][1], None",
        "_seen = {}",
    ),
    "caches-by-content": (
        "key = output_token_ids.numpy().tobytes()\n"
        "        if key not in _seen:\n"
        "            _seen[key] = _parse(output_token_ids, vocab_size)\n"
        "        return _seen[key], None",
        "_seen = {}",
    ),
    "fast-on-a-buffer-it-knows": (
        "key = output_token_ids.data_ptr()\n"
        "        if key in _seen:\n"
        "            return [[t for t in row if -1 < t < vocab_size] for row in output_token_ids.tolist()], None\n"
        "        _seen.add(key)\n        " + _CALL,
        "_seen = set()",
    ),
    "leaves-garbage": ("for _ in range(20):\n            a = []\n            a.append(a)\n        " + _CALL, ""),
}
_LAZY = (
    "return _Later(lambda: _parse(output_token_ids, vocab_size)), None",
    "class _Later:\n    def __init__(self, work):\n        self.work = work\n\n"
    "    def __iter__(self):\n        return iter(self.work())",
)


def _tree(folder: Path, call: str = _CALL, state: str = "", spin: int = 2_000) -> str:
    shutil.copytree(TREES / "base", folder)
    text = _BASE.replace(_CALL, call).replace("range(2_000)", f"range({spin})")
    (folder / _FILE).write_text(f"{text}\n\n{state}\n")
    return str(folder)


@pytest.fixture
def shapes(tmp_path: Path) -> str:
    path = tmp_path / "shapes.txt"
    path.write_text("# two small ones\n  # indented\nbatch 1, 3 drafts, acceptance 0.6\nbatch 8, 3 *0.6\n")
    return str(path)


def _run(base: str, *heads: str, shapes: str, **options: object) -> BenchResult:
    request = BenchOptions(base, heads, targets=(_TARGET,), shapes=shapes, budget=45.0, **options)  # type: ignore[arg-type]
    return bench(request)


def _verdicts(result: BenchResult) -> set[str]:
    return {str(shape.verdict) for shape in result.shapes}


def test_a_slower_head_is_found_and_fails_the_gate(tmp_path: Path, shapes: str) -> None:
    base, slow = _tree(tmp_path / "base"), _tree(tmp_path / "slow", spin=2_500)
    result = _run(base, slow, shapes=shapes, max_regression=2.0)
    assert _verdicts(result) == {SpeedVerdict.SLOWER}
    assert result.exit_code == 4
    assert len(result.regressions) == len(result.shapes) == 2
    for shape in result.shapes:
        assert 10 < shape.delta_percent < 30
        assert shape.interval[0] < shape.delta_percent < shape.interval[1]
        assert shape.floor_percent is not None
        assert len({layout.process for layout in shape.layouts}) == len(shape.layouts) >= 4
        assert {layout.loaded_first for layout in shape.layouts} == {"base", "head"}
    schema = json.loads((resources.files("difftest") / "schema" / "bench.json").read_text())
    jsonschema.validate(json.loads(json.dumps(result.to_json())), schema)


def test_the_same_code_is_neither_faster_nor_slower(tmp_path: Path, shapes: str) -> None:
    base, copy = _tree(tmp_path / "base"), _tree(tmp_path / "copy")
    result = _run(base, copy, shapes=shapes, execute_same=True, max_regression=0.0)
    assert len(result.shapes) == 2
    assert _verdicts(result) <= {SpeedVerdict.NO_CHANGE, SpeedVerdict.INCONCLUSIVE}
    assert result.exit_code == 0


def test_the_same_code_is_not_timed_unless_asked_for(tmp_path: Path, shapes: str) -> None:
    result = _run(_tree(tmp_path / "base"), _tree(tmp_path / "copy"), shapes=shapes)
    assert not result.shapes
    assert any("same code in both versions" in note for note in result.notes)


@pytest.mark.check
def test_no_cheat_is_called_faster(tmp_path: Path, shapes: str) -> None:
    base = _tree(tmp_path / "base")
    heads = [_tree(tmp_path / name, call, state) for name, (call, state) in _CHEATS.items()]
    result = _run(base, *heads, shapes=shapes)
    assert not result.untimed
    assert len(result.shapes) == 2 * len(heads)
    print(*(f"{Path(s.head).name}, {s.shape}: {s.words}, {len(s.layouts)} loadings" for s in result.shapes), sep="\n")
    assert min(len(shape.layouts) for shape in result.shapes) >= FEWEST_LAYOUTS, "too few for any verdict"
    faster = [(shape.head, shape.words) for shape in result.shapes if shape.verdict == SpeedVerdict.FASTER]
    assert not faster
    compiling = [shape for shape in result.shapes if shape.head == heads[0]]
    assert all(shape.head_times.first_call > 50_000 > shape.head_times.p95 for shape in compiling)
    littering = [shape for shape in result.shapes if shape.head == heads[-1]]
    assert all(shape.head_times.garbage >= 15 for shape in littering)


def test_outputs_that_differ_are_not_timed_unless_forced(tmp_path: Path, shapes: str) -> None:
    base, lazy = _tree(tmp_path / "base"), _tree(tmp_path / "lazy", *_LAZY)
    result = _run(base, lazy, shapes=shapes)
    assert not result.shapes
    assert result.exit_code == 3
    assert "outputs differ" in result.untimed[0].reason
    forced = _run(base, lazy, shapes=shapes, force=True)
    assert len(forced.shapes) == 2
    assert all(shape.differs and shape.verdict != SpeedVerdict.FASTER for shape in forced.shapes)


def test_shapes_that_are_not_compared_in_time_are_never_timed(tmp_path: Path) -> None:
    base = _tree(tmp_path / "base", "time.sleep(0.3)\n        " + _CALL)
    slow = _tree(tmp_path / "slow", "time.sleep(0.3)\n        " + _CALL, spin=2_500)
    request = BenchOptions(base, (slow,), targets=(_TARGET,), shapes="grid", budget=8.0, force=True)
    result = bench(request)
    late = [item for item in result.untimed if "out of time" in item.reason]
    assert len(late) > 60 or late[0].reason.startswith("every shape")
    assert not {shape.label for shape in result.shapes} & {item.shape for item in late}
    assert len(result.shapes) < 30
    assert result.exit_code == 3


@pytest.mark.check
def test_a_budget_that_is_short_ends_in_a_few_verdicts_and_not_in_none(tmp_path: Path) -> None:
    base = _tree(tmp_path / "base", "time.sleep(0.02)\n        " + _CALL)
    slow = _tree(tmp_path / "slow", "time.sleep(0.03)\n        " + _CALL)
    request = BenchOptions(base, (slow,), targets=(_TARGET,), shapes="quick", budget=14.0)
    result = bench(request)
    settled = [shape for shape in result.shapes if shape.verdict == SpeedVerdict.SLOWER]
    assert settled, [(shape.shape, len(shape.layouts)) for shape in result.shapes]
    assert len(settled) < len(result.shapes) + len(result.untimed) == 4


def test_a_bench_says_what_it_cannot_do(tmp_path: Path, shapes: str) -> None:
    base, slow = _tree(tmp_path / "base"), _tree(tmp_path / "slow", spin=2_500)
    with pytest.raises(UsageError, match="no head"):
        bench(BenchOptions(base, ()))
    with pytest.raises(UsageError, match="is given twice"):
        _run(base, slow, slow, shapes=shapes)
    for budget in (0.0, float("nan")):
        with pytest.raises(UsageError, match="--budget must be more than 0"):
            bench(BenchOptions(base, (slow,), budget=budget))
    with pytest.raises(UsageError, match="none of grid, quick"):
        _run(base, slow, shapes="small")
    with pytest.raises(UsageError, match="no shape is called batch 3"):
        (tmp_path / "other.txt").write_text("batch 3\n")
        _run(base, slow, shapes=str(tmp_path / "other.txt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no package 'vllm'"):
        bench(BenchOptions(base, (str(tmp_path / "empty"),)))
    with pytest.raises(NothingCompared):
        bench(BenchOptions(base, (slow,), targets=("v1.bad*",)))


def test_kernels_are_untimed_on_a_cpu_with_a_reason(tmp_path: Path) -> None:
    base, copy = _tree(tmp_path / "base"), _tree(tmp_path / "copy")
    result = bench(BenchOptions(base, (copy,), targets=("v2.*",), execute_same=True))
    assert result.exit_code == 3
    assert not result.shapes
    reasons = {item.reason for item in result.untimed}
    assert reasons == {"it launches Triton kernels, which a CPU only interprets; time it with --device cuda"}


def test_without_a_named_target_what_can_be_timed_decides(tmp_path: Path) -> None:
    base, slow = _tree(tmp_path / "base"), _tree(tmp_path / "slow", spin=2_500)
    result = bench(BenchOptions(base, (slow,), shapes="quick", budget=45.0))
    assert {shape.target for shape in result.shapes} >= {_TARGET}
    assert result.exit_code == 0, result.missed


def test_a_head_that_breaks_the_measurement_is_untimed_and_the_others_are_timed(tmp_path: Path, shapes: str) -> None:
    base = _tree(tmp_path / "base")
    dies = _tree(
        tmp_path / "dies",
        "_calls.append(1)\n        if len(_calls) > 60:\n            import os\n\n            os._exit(3)\n        "
        + _CALL,
        "_calls = []",
    )
    clock = _tree(tmp_path / "clock", "time.perf_counter_ns = lambda: 0\n        " + _CALL)
    collector = _tree(tmp_path / "collector", "gc.enable()\n        " + _CALL)
    slow = _tree(tmp_path / "slow", spin=2_500)
    result = _run(base, dies, clock, collector, slow, shapes=shapes)
    assert {shape.head for shape in result.shapes} == {slow}
    assert _verdicts(result) == {SpeedVerdict.SLOWER}
    assert result.exit_code == 3
    reasons = {head: next(u.reason for u in result.untimed if u.head == head) for head in (dies, clock, collector)}
    assert "exit status 3" in reasons[dies]
    assert "replaced time.perf_counter_ns" in reasons[clock]
    assert "garbage collector on" in reasons[collector]
