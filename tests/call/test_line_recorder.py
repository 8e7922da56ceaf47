"""Lines that run are told call by call, by one recorder."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from difftest.call.lines import LineRecorder


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "arm.py"
    path.write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    spec = importlib.util.spec_from_file_location("arm", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_restarted_recorder_tells_only_what_ran_since(module: ModuleType, tmp_path: Path) -> None:
    recorder = LineRecorder([str(tmp_path)])
    for value, lines in ((True, [2, 3]), (False, [2, 4]), (True, [2, 3])):
        recorder.restart()
        with recorder:
            module.f(value)
        assert recorder.take() == [(0, "arm.py", lines)]


def test_without_a_restart_lines_are_told_once(module: ModuleType, tmp_path: Path) -> None:
    recorder = LineRecorder([str(tmp_path)])
    told = []
    for value in (True, True, False):
        with recorder:
            module.f(value)
        told.append(recorder.take())
    assert told == [[(0, "arm.py", [2, 3])], [], [(0, "arm.py", [4])]]
