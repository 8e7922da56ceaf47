"""The recorder changes nothing: not outputs, not generators, not what is raised, not the engine when it fails."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_calls import Engine, tiny_capture

from difftest import processes
from difftest.record import capture as recording
from difftest.record import generators
from difftest.record.capture import Recorder
from difftest.record.command import settle
from difftest.record.environment import environment
from difftest.record.format import open_capture


@pytest.mark.parametrize("top", [0, 5])
def test_outputs_and_every_generator_are_the_same_with_and_without(tmp_path: Path, top: int) -> None:
    recorder = Recorder(tmp_path)
    with_capture = Engine(recorder).run(5, top=top)
    recorder.close()
    assert with_capture == Engine().run(5, top=top)
    assert len(list(open_capture(tmp_path).calls(0))) == 10


def test_inputs_are_as_they_were_before_the_call_changed_them(tmp_path: Path) -> None:
    tiny_capture(tmp_path, steps=1)
    outer, inner = open_capture(tmp_path).calls(0)
    logits = torch.arange(120, dtype=torch.float32).reshape(3, 40).sin()
    assert torch.equal(outer.inputs().args[1], logits)
    assert torch.equal(inner.inputs().args[1], logits)
    assert torch.equal(outer.output().fields["ranks"], logits / 0.7)


def test_inputs_as_the_call_left_them_are_recorded_where_it_changed_them(tmp_path: Path) -> None:
    tiny_capture(tmp_path, steps=1)
    outer, inner = open_capture(tmp_path).calls(0)
    for call in (outer, inner):
        before, after = call.inputs(), call.inputs_after()
        assert after is not None and call.changed_inputs is not None and len(call.changed_inputs) == 1
        assert torch.equal(after.args[1], before.args[1] / 0.7)
        assert torch.equal(after.args[2].fields["temperature"], before.args[2].fields["temperature"])


@pytest.mark.parametrize("size", [3, 1_000, 130_000])
def test_small_and_large_memory_that_a_call_changes(tmp_path: Path, size: int) -> None:
    def change(kept: torch.Tensor, changed: torch.Tensor, array: Any, resized: torch.Tensor) -> None:
        changed[-1] = 7
        array[1] = 8
        resized.resize_(2 * size)

    recorder = Recorder(tmp_path)
    wrapped = recorder.wrap(change, "m:f")
    for _ in range(3):  # large memory for copies is used again
        wrapped(torch.ones(size), torch.ones(size), np.zeros(size), torch.ones(size))
        recorder.flush()
    recorder.close()
    for call in open_capture(tmp_path).calls(0):
        assert [value.sum() for value in call.args] == [size, size, 0, size]
        after = call.inputs_after()
        assert after is not None and call.changed_inputs == (1, 2)
        assert [value.sum() for value in after.args] == [size, size + 6, 8, size]


def test_large_memory_is_copied_to_its_last_byte(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    value = torch.arange(1_200_003).remainder(251).to(torch.uint8)
    recorder.wrap(lambda *_: None, "m:f")(value[100:], value.clone())
    recorder.close()
    (call,) = open_capture(tmp_path).calls(0)
    assert torch.equal(call.args[0], value[100:]) and torch.equal(call.args[1], value)


ROWS = ([[1, 2], []], [[True], [2]], [[2**40], [1]], [[1.5, None], [3]], [[[]], [1]], [[1], (2,)], [[-1], [2**31 - 1]])


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_lists_of_lists_are_recorded_as_they_are(tmp_path: Path, rows: list[Any]) -> None:
    recorder = Recorder(tmp_path)
    again = [3]
    recorder.wrap(lambda *_: None, "m:f")(rows, rows[0], [again, again], again)
    recorder.close()
    (call,) = open_capture(tmp_path).calls(0)
    first, row, twice, alone = call.args
    assert repr(first) == repr(rows) and row is first[0]
    assert twice == [[3], [3]] and twice[0] is twice[1] and twice[0] is alone


def test_lists_are_copied_deeply_before_the_call(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.wrap(lambda rows: rows[0].append(9), "m:f")([[1], [2]])
    recorder.close()
    (call,) = open_capture(tmp_path).calls(0)
    assert call.args == ([[1], [2]],)


def test_an_exception_is_recorded_and_raised_again(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with pytest.raises(ValueError, match="top is -1") as caught:
        Engine(recorder).run(1, top=-1)
    assert caught.traceback[-1].name == "forward"
    recorder.close()
    outer, inner = open_capture(tmp_path).calls(0)
    assert outer.complete and outer.raised == ("builtins:ValueError", "top is -1")
    assert inner.raised is None and inner.parent == outer.number
    assert outer.rng_after is not None


def test_an_interrupt_is_passed_on(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    recorder = Recorder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        recorder.wrap(interrupted, "m:f")()
    recorder.close()
    (call,) = open_capture(tmp_path).calls(0)
    assert call.raised == ("builtins:KeyboardInterrupt", "")


def files_of_at_most(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writers that are started from now on make no larger file: to them the disk is full."""
    limit = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({size}, {size})); "
    start = "import signal as s; s.signal(s.SIGXFSZ, s.SIG_IGN); " + limit + processes._START
    monkeypatch.setattr(processes, "_START", start)


def test_a_full_disk_stops_the_recording_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files_of_at_most(8_000, monkeypatch)
    recorder = Recorder(tmp_path)
    engine = Engine(recorder)
    assert engine.run(6) == Engine().run(6)
    assert not recorder.flush()
    assert engine.run(3) == Engine().run(3)
    recorder.close()
    said = capfd.readouterr().err
    assert said.count("the disk is full") == 1 and said.count("\n") == 1
    (rank,) = open_capture(tmp_path).ranks
    assert rank.torn and rank.calls < 12 and "the recording was cut off" in rank.incomplete
    for call in open_capture(tmp_path).calls(0):
        assert call.inputs().args[1].shape == (3, 40)


def test_killed_in_a_call_leaves_what_was_written_readable(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from recorded_calls import Engine\n"
        "from difftest.record.capture import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]), wait=True)\n"
        "Engine(recorder).run(2)\n"
        "recorder.wrap(lambda x: os.kill(os.getpid(), signal.SIGKILL), 'm:f')([1, 2])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL
    capture = open_capture(tmp_path)
    assert capture.ranks[0].incomplete == "the recording was cut off; 1 of 5 calls did not end"
    calls = list(capture.calls(0))
    assert [call.complete for call in calls] == [True, True, True, True, False]
    assert calls[-1].inputs().args == ([1, 2],)


def test_a_folder_that_cannot_be_made_stops_the_recording(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    recorder = Recorder(tmp_path / "file")
    assert Engine(recorder).run(2) == Engine().run(2)
    recorder.flush()
    recorder.close()
    assert "recording stopped, the engine goes on" in capfd.readouterr().err


def test_a_fault_in_the_recorder_never_reaches_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise MemoryError("no memory")

    recorder = Recorder(tmp_path)
    engine = Engine(recorder)
    engine.run(1)
    monkeypatch.setattr(recording, "process_states", broken)
    assert engine.run(2) == Engine().run(2)
    recorder.close()
    (rank,) = open_capture(tmp_path).ranks
    assert (rank.calls, rank.closed) == (2, "fault")
    assert any("MemoryError: no memory" in note for note in rank.notes)
    assert capfd.readouterr().err.count("recording stopped") == 1


def test_limits_on_calls(tmp_path: Path) -> None:
    tiny_capture(tmp_path, steps=5, max_calls=3)
    (rank,) = open_capture(tmp_path).ranks
    assert (rank.calls, rank.complete, rank.closed) == (4, 4, "limit"), "a call is recorded with those inside it"
    assert rank.notes == ("stopped after 3 calls, as asked",)


def test_limits_on_bytes(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, max_bytes=40_000)
    engine = Engine(recorder)
    for _ in range(10):
        engine.run(1)
        recorder.flush()
    recorder.close()
    (rank,) = open_capture(tmp_path).ranks
    assert 2 <= rank.calls < 20 and rank.closed == "limit"
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 120_000


def test_one_step_in_three(tmp_path: Path) -> None:
    tiny_capture(tmp_path, steps=7, one_in=3)
    assert [call.step for call in open_capture(tmp_path).calls(0)] == [0, 0, 3, 3, 6, 6]


def test_calls_in_a_pause_are_counted_and_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    double = recorder.wrap(lambda x: 2 * x, "m:f")
    with recorder.paused("warm-up"):
        assert [double(1), double(2)] == [2, 4]
    assert double(3) == 6
    recorder.close()
    (rank,) = open_capture(tmp_path).ranks
    assert (rank.calls, rank.notes) == (1, ("warm-up (2 times)",))


def test_graph_capture_is_skipped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = True
    monkeypatch.setattr(recording, "cuda_in_use", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    recorder = Recorder(tmp_path)
    double = recorder.wrap(lambda x: 2 * x, "m:f")
    assert double(2) == 4
    capturing = False
    double(3)
    recorder.close()
    (rank,) = open_capture(tmp_path).ranks
    assert rank.notes == ("calls during CUDA graph capture are not recorded",)
    assert [call.args for call in open_capture(tmp_path).calls(0)] == [(3,)]


def writer_of(capture: Path) -> int:
    """The process that holds the manifest."""
    manifest = str(capture / "rank-0" / "manifest.jsonl")
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(file.readlink()) == manifest for file in (entry / "fd").iterdir()):
                return int(entry.name)
    raise AssertionError("no writer")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for the writer in /proc")
def test_a_slow_disk_leaves_whole_calls_out_and_says_so(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, max_queue=100_000)
    add = recorder.wrap(lambda x: x + 1, "m:f")
    add(0)
    recorder.flush()
    writer = writer_of(tmp_path)
    os.kill(writer, signal.SIGSTOP)
    started = time.perf_counter()
    for value in range(6):
        assert add(torch.full((10_000,), value)).max() == value + 1
    assert time.perf_counter() - started < 5, "the engine does not wait for the disk"
    os.kill(writer, signal.SIGCONT)
    recorder.close()
    (rank,) = open_capture(tmp_path).ranks
    assert 1 < rank.calls == rank.complete < 7
    assert any("the disk is slower than the engine" in note for note in rank.notes)


def test_what_was_recorded_is_written_after_the_process_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from recorded_calls import Engine\n"
        "from difftest.record.capture import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1])); engine = Engine(recorder)\n"
        "engine.run(20)\n"
        "recorder.wrap(lambda x: os.kill(os.getpid(), signal.SIGKILL), 'm:f')([1, 2])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL
    settle(tmp_path, 30)
    (rank,) = open_capture(tmp_path).ranks
    assert rank.incomplete == "the recording was cut off; 1 of 41 calls did not end"
    *_, last = open_capture(tmp_path).calls(0)
    assert last.inputs().args == ([1, 2],)


def test_large_memory_in_which_nothing_is_seen_to_change_is_not_said_to_be_unchanged(tmp_path: Path) -> None:
    def change(value: torch.Tensor, small: torch.Tensor, places: slice) -> None:
        value[places] = 7
        small[0] = 7

    recorder = Recorder(tmp_path)
    wrapped = recorder.wrap(change, "m:f")
    for places in (slice(5000, 5001), slice(None)):
        wrapped(torch.zeros(1_000_000), torch.zeros(3), places)
    recorder.close()
    sparse, whole = open_capture(tmp_path).calls(0)
    assert sparse.inputs_after() is None and sparse.changed_inputs is None
    after = whole.inputs_after()
    assert whole.changed_inputs == (0, 1) and after is not None and after.args[0].sum() == 7_000_000


def test_request_ids_are_redacted_wherever_they_stand(tmp_path: Path) -> None:
    for name in ("first", "second"):
        recorder = Recorder(tmp_path, redact=b"key")
        with recorder.step():
            recorder.requests(["cmpl-secret", "cmpl-other"])
            recorder.wrap(lambda ids: ids, "m:f")(["cmpl-secret", {"cmpl-other": name}])
        recorder.close()
    text = "".join(path.read_text() for path in tmp_path.rglob("manifest.jsonl"))
    assert "secret" not in text and "cmpl" not in text
    capture = open_capture(tmp_path)
    ids = [next(iter(capture.calls(rank))).request_ids for rank in capture.ranks]
    assert ids[0] == ids[1], "the same id has the same hash in every process"
    (call,) = capture.calls("rank-0")
    assert call.request_ids is not None
    assert call.args == ([call.request_ids[0], {call.request_ids[1]: "first"}],)


def test_a_second_process_of_a_rank_has_its_own_manifest(tmp_path: Path) -> None:
    tiny_capture(tmp_path, steps=1)
    tiny_capture(tmp_path, steps=1)
    assert [rank.name for rank in open_capture(tmp_path).ranks] == ["rank-0", "rank-0.2"]
    names = [path.name for path in (tmp_path / "blobs").iterdir()]
    assert len(names) == len(set(names)) and not any(name.startswith(".") for name in names)


def test_a_forked_child_records_on_its_own_and_closes_it(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, sys; from pathlib import Path; from difftest.record.capture import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1])); double = recorder.wrap(lambda x: 2 * x, 'm:f'); double(1)\n"
        "child = multiprocessing.get_context('fork').Process(target=double, args=(2,))\n"
        "child.start(); child.join(); assert child.exitcode == 0; double(3)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], check=True)
    capture = open_capture(tmp_path)
    read = {rank.name: [call.args[0] for call in capture.calls(rank)] for rank in capture.ranks}
    assert read == {"rank-0": [1, 3], "rank-0.2": [2]}
    assert [rank.incomplete for rank in capture.ranks] == ["", ""]


def test_threads_do_not_take_each_other_for_parents(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    barrier = threading.Barrier(4)
    outer = recorder.wrap(lambda x: (barrier.wait(10), inner(x)), "m:outer")
    inner = recorder.wrap(lambda x: x, "m:inner")
    threads = [threading.Thread(target=outer, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    calls = list(open_capture(tmp_path).calls(0))
    argument = {call.number: call.args[0] for call in calls}
    assert sorted(argument.values()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(argument[call.number] == argument[call.parent] for call in calls if call.parent is not None)


def test_reading_states_draws_nothing() -> None:

    states = (torch.get_rng_state(), repr(np.random.get_state()), random.getstate())
    generators.process_states(generators.States(), generators.twisters())
    assert torch.equal(states[0], torch.get_rng_state())
    assert (repr(np.random.get_state()), random.getstate()) == states[1:]


def test_a_state_is_read_anew_whenever_it_moved() -> None:
    numpy_twister, random_twister = generators.twisters()
    assert numpy_twister._address and random_twister._address
    draws: list[Any] = [np.random.random, np.random.normal, np.random.normal, np.random.normal, lambda: None]
    for draw in [*draws, lambda: np.random.seed(5), lambda: np.random.seed(5), *draws]:
        draw()
        assert numpy_twister.read() == generators._numpy_full()
    calls: list[Any] = [random.random, *[lambda: random.gauss(0, 1)] * 3, lambda: None, lambda: random.seed(5)]
    for draw in calls * 2:
        draw()
        assert random_twister.read() == generators._random_full()


def test_the_environment_names_no_folder_and_no_machine() -> None:
    text = repr(environment())
    assert os.uname().nodename not in text and str(Path.home()) not in text and str(Path.cwd()) not in text
