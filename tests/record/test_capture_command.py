"""`difftest capture` around an engine that looks like vLLM: what is patched, when, and what is said."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from difftest.errors import UsageError
from difftest.record.command import capture, show
from difftest.record.format import open_capture
from difftest.record.sites import DEFAULT, KNOWN, Settings, chosen

ENGINE = {
    "vllm/__init__.py": "",
    "vllm/v1/__init__.py": "",
    "vllm/v1/sample/__init__.py": "",
    "vllm/v1/worker/__init__.py": "",
    "vllm/v1/sample/sampler.py": """
import torch
from vllm.v1.sample.ops import noise
class Sampler(torch.nn.Module):
    def forward(self, logits):
        return (logits + noise(logits)).argmax(-1)
""",
    "vllm/v1/sample/ops.py": """
import torch
def noise(logits):
    return torch.rand_like(logits)
""",
    "vllm/v1/sample/rejection_sampler.py": """
import torch
from vllm.v1.sample.sampler import Sampler
class RejectionSampler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sampler = Sampler()
    def forward(self, drafts, logits):
        return self.sampler(logits)
    @staticmethod
    def parse_output(token_ids, vocab_size):
        return token_ids.tolist()
""",
    "vllm/v1/worker/gpu_model_runner.py": """
import types, torch
from vllm.v1.sample.rejection_sampler import RejectionSampler
class GPUModelRunner:
    def __init__(self):
        self.rejection_sampler = RejectionSampler()
        self.input_batch = types.SimpleNamespace(req_ids=['cmpl-1', 'cmpl-2', None])
    def _dummy_sampler_run(self):
        self.rejection_sampler(None, torch.zeros(2, 9))
    def _sample(self, logits):
        return self.rejection_sampler(None, logits)
    def sample_tokens(self):
        tokens = self._sample(torch.arange(18.0).reshape(2, 9))
        return RejectionSampler.parse_output(tokens, 9)
""",
    "serve.py": """
import sys, torch
from difftest.record.plugin import register
register()
assert 'vllm' not in sys.modules, 'nothing is imported for the sake of recording'
torch.manual_seed(1)
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
runner = GPUModelRunner()
runner._dummy_sampler_run()
print([runner.sample_tokens() for _ in range(3)])
sys.exit(int(sys.argv[1]))
""",
}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in ENGINE.items():
        path = tmp_path / "engine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "engine"))
    return tmp_path / "engine" / "serve.py"


def test_the_calls_of_an_engine_with_its_steps_and_requests(
    engine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, str(engine), "0"], check=True)
    tokens = capfd.readouterr().out
    out = tmp_path / "capture"
    assert capture(out, [sys.executable, str(engine), "7"]) == 7
    said = capfd.readouterr().out
    assert said.startswith(tokens), "the tokens are the same with capture on"
    assert f"9 calls of 1 process recorded in {out}" in said
    assert "calls of a warm-up are not recorded" in said
    calls = list(open_capture(out).calls(0))
    names = [call.site.partition(":")[2] for call in calls]
    assert names == ["RejectionSampler.forward", "Sampler.forward", "RejectionSampler.parse_output"] * 3
    assert [call.parent for call in calls[:3]] == [None, 0, None]
    assert [call.step for call in calls] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert {call.request_ids for call in calls} == {("cmpl-1", "cmpl-2")}
    assert calls[0].args[0].symbol == "vllm.v1.sample.rejection_sampler:RejectionSampler"
    assert calls[0].args[0].fields["sampler"].symbol == "vllm.v1.sample.sampler:Sampler"
    assert calls[2].args[1] == 9, "a static method has no self"
    assert calls[2].result == calls[1].result.tolist()


def test_a_function_that_was_imported_by_name_is_recorded_too(engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "capture"
    capture(out, [sys.executable, str(engine), "0"], site=["vllm.v1.sample.ops:noise", "v1.sampler"], redact=True)
    calls = list(open_capture(out).calls(0))
    assert [call.site for call in calls[:2]] == ["vllm.v1.sample.sampler:Sampler.forward", "vllm.v1.sample.ops:noise"]
    assert calls[1].parent == calls[0].number
    ids = {call.request_ids for call in calls}
    assert len(ids) == 1 and "cmpl" not in repr(ids)


def test_tests_that_use_a_sampler_without_an_engine_are_recorded_once(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "test_sampler.py").write_text("""
import torch
from vllm.v1.sample.sampler import Sampler
def test_sampler():
    from difftest.record.plugin import register
    register()  # an engine that the test starts in its own process loads the vLLM plugin, too
    assert Sampler()(torch.tensor([[0.0, 9.0]])).tolist() == [1]
""")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_sampler.py")]
    assert capture(tmp_path / "capture", command) == 0
    (call,) = open_capture(tmp_path / "capture").calls(0)
    assert call.site == "vllm.v1.sample.sampler:Sampler.forward" and call.result.tolist() == [1]


def test_limits_travel_to_the_engine(engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "capture"
    capture(out, [sys.executable, str(engine), "0"], site=["*:Sampler.forward"], max_calls=2)
    shown = show(out)
    assert [line.step for line in shown.calls] == [0, 1]
    assert [(line.site, line.calls, line.complete, line.steps) for line in shown.sites] == [
        ("vllm.v1.sample.sampler:Sampler.forward", 2, 2, (0, 1))
    ]
    assert shown.disk_bytes > shown.sites[0].size > 0
    assert shown.environments["rank-0"]["engine_fixes"] == []


def test_a_command_that_records_nothing_is_not_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(tmp_path / "out", [sys.executable, "-c", ""]) == 3
    assert "nothing was recorded" in capsys.readouterr().err
    assert capture(tmp_path / "out", [sys.executable, "-c", "raise SystemExit(5)"]) == 5


def test_a_site_that_is_never_called_is_said(engine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sites = ["v1.sampler", "vllm.v1.nowhere:function"]
    assert capture(tmp_path / "out", [sys.executable, str(engine), "0"], site=sites) == 0
    assert capfd.readouterr().out.count("no call of vllm.v1.nowhere:function was recorded") == 1


def test_what_stops_a_recording_is_said_once(engine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sites = ["vllm.v1.sample.sampler:nothing"]
    assert capture(tmp_path / "out", [sys.executable, str(engine), "0"], site=sites) == 3, "no call was recorded"
    said = capfd.readouterr()
    assert (said.err + said.out).count("AttributeError: nothing") == 1
    assert said.out.count("rank-0: the recording stopped, for the reason above") == 1
    assert show(tmp_path / "out").notes == ("rank-0: patching vllm.v1.sample.sampler: AttributeError: nothing",)


def test_a_capture_that_cannot_begin_is_said_and_the_command_runs(
    engine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (400, 400)); "  # to its writer the disk is full
    start = f"from difftest import processes\nprocesses._START = {limit!r} + processes._START\n"
    engine.write_text(start + engine.read_text())
    assert capture(tmp_path / "out", [sys.executable, str(engine), "0"]) == 3
    said = capfd.readouterr()
    assert "[[8, 8], [8, 8], [8, 8]]" in said.out
    assert said.err.count("the disk is full") == 1
    assert said.err.count(f"nothing was recorded in {tmp_path / 'out'}") == 1


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UsageError, match="something in it already"):
        capture(tmp_path, [sys.executable, "-c", ""])
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": []}, "needs a command"),
        ({"site": ["v3.*"]}, "no known site"),
        ({"site": ["os.path:join;x"]}, "not of the form"),
        ({"max_calls": -1}, "at least 0"),
        ({"one_in": 0}, "at least 1"),
        ({"command": ["/nowhere/engine"]}, "No such file"),
    ],
)
def test_a_wrong_request_is_one_line(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    options: dict[str, object] = {"command": [sys.executable, "-c", ""], **arguments}
    with pytest.raises(UsageError, match=message):
        capture(tmp_path / "out", **options)  # type: ignore[arg-type]


def test_settings_survive_the_environment() -> None:
    settings = Settings("/out", chosen(["v1.*"]), 5, None, 3, "ab", True)
    assert Settings.from_environment(settings.to_environment()) == settings
    assert chosen([]) == tuple(KNOWN[name] for name in DEFAULT)
    with pytest.raises(UsageError, match="MAX_CALLS=many: not a number"):
        Settings.from_environment({"DIFFTEST_CAPTURE": "x", "DIFFTEST_CAPTURE_MAX_CALLS": "many"})


def test_a_wrong_setting_does_not_stop_the_engine(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFTEST_CAPTURE", "out")
    monkeypatch.setenv("DIFFTEST_CAPTURE_SITES", "v3.*")
    done = subprocess.run([sys.executable, str(engine), "0"], capture_output=True, text=True, check=True)
    assert done.stderr.count("difftest: nothing is recorded") == 1


def test_off_it_imports_and_patches_nothing() -> None:
    code = (
        "import sys; before = list(sys.meta_path)\n"
        "from difftest.record.plugin import register\n"
        "loaded = set(sys.modules); register()\n"
        "assert set(sys.modules) == loaded and sys.meta_path == before\n"
        "assert not {'torch', 'numpy', 'difftest.record.install', 'difftest.record.capture'} & loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plugin_is_declared_for_vllm() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["vllm.general_plugins"]
    assert declared == {"difftest": "difftest.record.plugin:register"}
