"""What the host decided in the engine is recorded, and the path that was recorded is the path that is replayed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch

from difftest import api
from difftest.errors import CaptureError
from difftest.profiles.vllm import STANDINS
from difftest.record.capture import Recorder
from difftest.record.casefile import read_case, write_case
from difftest.record.cases import targets
from difftest.record.format import open_capture
from difftest.record.host import FACTS, facts_for, fault_of, host_facts
from difftest.record.lines import seal
from difftest.record.replay import replay
from difftest.result import RunResult, Verdict
from reports import words
from reports.sentence import sentence

SITE = "vllm.v1.sample.small:mask"
HAS_TRITON = "vllm.triton_utils:HAS_TRITON"
SOURCE = """
import torch
from vllm.platforms import CpuArchEnum, current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.utils.platform_utils import is_uva_available

if HAS_TRITON:
    FILL = -1.0
else:
    FILL = float("-inf")


def mask(logits, k):
    if current_platform.get_cpu_architecture() == CpuArchEnum.POWERPC:
        logits = logits + 100.0 * current_platform.num_compute_units() + 1000.0 * is_uva_available()
    kept = logits.topk(k).values[:, -1:]
    if HAS_TRITON:
        return logits.masked_fill_(logits < kept, FILL)
    return logits.where(logits >= kept, FILL)
"""


def tree(folder: Path) -> Path:
    package = folder / "vllm/v1/sample"
    package.mkdir(parents=True)
    for each in (package, package.parent, package.parent.parent):
        (each / "__init__.py").write_text("")
    (package / "small.py").write_text(SOURCE)
    utils = folder / "vllm/utils"
    utils.mkdir()
    (utils / "__init__.py").write_text("")
    (utils / "platform_utils.py").write_text("def is_uva_available():\n    return False\n")
    return folder


def host(
    has_triton: bool, architecture: str = "X86", units: int = 1, uva: bool = True, device_type: str = "cpu"
) -> dict[str, Any]:
    """The modules of an engine that decide by the host."""
    architectures = SimpleNamespace(POWERPC=SimpleNamespace(name="POWERPC"), X86=SimpleNamespace(name="X86"))
    platform = SimpleNamespace(
        device_type=device_type,
        get_cpu_architecture=lambda: getattr(architectures, architecture),
        num_compute_units=lambda: units,
    )
    return {
        "vllm.triton_utils": SimpleNamespace(HAS_TRITON=has_triton),
        "vllm.platforms": SimpleNamespace(current_platform=platform, CpuArchEnum=architectures),
        "vllm.utils.platform_utils": SimpleNamespace(is_uva_available=lambda: uva),
    }


def record(folder: Path, modules: dict[str, Any]) -> Path:
    """A capture of the small tree in an engine with these modules."""
    spec = importlib.util.spec_from_file_location(
        "vllm.v1.sample.small", tree(folder / "tree") / "vllm/v1/sample/small.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        parents = ("vllm", "vllm.v1", "vllm.v1.sample", "vllm.utils")
        for name, there in ({name: ModuleType(name) for name in parents} | modules).items():
            patch.setitem(sys.modules, name, there)
        spec.loader.exec_module(module)
        recorder = Recorder(folder / "capture")
        mask = recorder.wrap(module.mask, SITE)
        for k in (1, 3):
            mask(torch.arange(24, dtype=torch.float32).reshape(3, 8).sin(), k)
        recorder.close()
    return folder / "capture"


def changed(capture: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The capture with its first record changed, and a checksum under it that is right."""
    manifest = capture / "rank-0/manifest.jsonl"
    first, rest = manifest.read_bytes().split(b"\n", 1)
    opening = json.loads(first)
    del opening["sha256"]
    change(opening["environment"])
    manifest.write_bytes(seal(opening) + rest)
    return capture


def replayed(captures: list[Path], base: Path) -> RunResult:
    return replay(captures, str(base), [str(base)], jobs=1)


def counts(result: RunResult) -> list[tuple[int, int, int]]:
    (target,) = result.targets
    return [(each["calls"], each["exact"], each["as_recorded"]) for each in target.recorded.values()]


def test_the_recorded_path_is_the_replayed_path_for_each_host(tmp_path: Path) -> None:
    without = record(tmp_path / "without", host(False))
    other = record(tmp_path / "other", host(True, "POWERPC", 7, uva=False))
    base = tree(tmp_path / "base")
    result = replayed([without], base)
    assert counts(result) == [(2, 2, 2)]
    (target,) = result.targets
    assert target.verdict is Verdict.IDENTICAL
    assert dict(target.host) == {
        HAS_TRITON: "False",
        "vllm.platforms:device_type": "cpu",
        "vllm.platforms:get_cpu_architecture": "X86",
        "vllm.platforms:num_compute_units": "1",
        "vllm.utils.platform_utils:is_uva_available": "True",
    }
    assert any("HAS_TRITON False" in line for line in words.standin_lines(result))
    assert "5 host facts of the capture" in sentence(result)
    other = other.rename(tmp_path / "other capture")
    result = replayed([without, other], base)
    assert counts(result) == [(2, 2, 2), (2, 2, 2)]
    assert result.targets[0].host[HAS_TRITON] == "False or True"


def test_a_capture_without_facts_is_replayed_on_the_profiles_assumptions(tmp_path: Path) -> None:
    capture = changed(record(tmp_path / "old", host(False)), lambda environment: environment.pop("host"))
    result = replayed([capture], tree(tmp_path / "base"))
    assert counts(result) == [(2, 2, 0)]
    assert dict(result.targets[0].host) == {}
    assert "host" not in sentence(result)


def test_a_small_case_keeps_the_host(tmp_path: Path) -> None:
    capture = record(tmp_path / "capture", host(False))
    (target,) = targets([capture], "cpu").values()
    case = next(iter(target.cases()))
    assert case.host[HAS_TRITON] is False
    kept = write_case(tmp_path / "case.safetensors", target.name, case)
    assert dict(read_case(kept.path).case().host) == dict(case.host)
    (target,) = targets([kept.path], "cpu").values()
    assert [dict(each.host) for each in target.cases()] == [dict(case.host)]
    (target,) = targets([kept.path], "cuda").values()
    assert [dict(each.host) for each in target.cases()] == [{}]
    head = tree(tmp_path / "head")
    small = head / "vllm/v1/sample/small.py"
    small.write_text(SOURCE.replace("logits >= kept, FILL", "logits > kept, FILL"))  # where Triton is not there
    result = api.run(
        api.RunOptions(str(tree(tmp_path / "base")), (str(head),), targets=(target.name,), case=str(kept.path), jobs=1)
    )
    assert result.targets[0].verdict is Verdict.DIFFERENT
    assert result.targets[0].host[HAS_TRITON] == "False"
    plain = write_case(tmp_path / "plain.safetensors", target.name, replace(case, host={}))
    assert plain.case().host == {}
    bad = tmp_path / "bad.safetensors"
    with pytest.raises(CaptureError, match=r"^\S+: vllm.triton_utils:HAS_TRITON is '0', not true or false; "):
        write_case(bad, target.name, replace(case, host={HAS_TRITON: 0}))


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ([], "the facts of the host are no object"),
        ({HAS_TRITON: "no"}, f"{HAS_TRITON} is 'no', not true or false"),
        ({HAS_TRITON: None}, f"{HAS_TRITON} is 'None', not true or false"),
        ({"vllm.platforms:num_compute_units": True}, "vllm.platforms:num_compute_units is 'True', not a count"),
        ({"vllm.platforms:num_compute_units": 0}, "vllm.platforms:num_compute_units is '0', not a count"),
        ({"vllm.platforms:device_type": "c\npu"}, "vllm.platforms:device_type is 'c\\npu', not a name"),
        ({"vllm.platforms:get_cpu_architecture": {}}, "vllm.platforms:get_cpu_architecture is '{}', not a name"),
        ({"os:system": "x"}, "'os:system' is no fact of the host that this difftest knows"),
    ],
)  # fmt: skip
def test_damaged_facts_are_refused_in_one_line(tmp_path: Path, facts: Any, fault: str) -> None:
    capture = record(tmp_path, host(False))
    changed(capture, lambda environment: environment.update(host=facts))
    with pytest.raises(CaptureError) as caught:
        open_capture(capture)
    assert caught.value.fault == f"{capture}/rank-0/manifest.jsonl: line 1: `environment`: {fault}"
    (opening,) = [json.loads((capture / "rank-0/manifest.jsonl").read_bytes().split(b"\n", 1)[0])]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(opening, schema())


def schema() -> Any:
    return json.loads((Path(__file__).parents[2] / "difftest/schema/capture.json").read_text())


def test_schema_reader_and_profile_know_the_same_facts(tmp_path: Path) -> None:
    assert set(schema()["$defs"]["host"]["properties"]) == set(FACTS)
    assert {f"{item.name.partition(':')[0]}:{name}" for item in STANDINS for name in item.facts} == set(FACTS)
    capture = record(tmp_path, host(True))
    opening = json.loads((capture / "rank-0/manifest.jsonl").read_bytes().split(b"\n", 1)[0])
    jsonschema.validate(opening, schema())
    assert set(opening["environment"]["host"]) == set(FACTS)


def test_what_cannot_be_told_is_left_out_and_never_stops_a_recording() -> None:
    assert host_facts({}) == {}
    assert host_facts({"vllm.triton_utils": None, "vllm.platforms": SimpleNamespace(current_platform=None)}) == {}
    assert host_facts({"vllm.triton_utils": SimpleNamespace(HAS_TRITON=1)}) == {}
    assert host_facts({"vllm.triton_utils": SimpleNamespace(HAS_TRITON=False)}) == {HAS_TRITON: False}


def test_facts_count_on_the_kind_of_device_that_was_recorded() -> None:
    facts = host_facts(host(True))
    assert fault_of(facts) == ""
    assert facts_for(facts, "cpu", "cpu") == facts
    assert facts_for(facts, "cpu", "cuda") == facts_for(facts, "NVIDIA H200", "cpu") == {}
    assert facts_for(host_facts(host(True, device_type="xpu")), "cpu", "cpu") == {}
    on_gpu = host_facts(host(True, device_type="cuda"))
    assert facts_for(on_gpu, "NVIDIA H200", "cuda") == on_gpu
