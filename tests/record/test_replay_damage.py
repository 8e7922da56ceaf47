"""Two thousand damaged copies of a shipped recording, given to `replay`: refused in one line, or replayed right."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import BLIND, Victim, forge, forge_inputs_after

from difftest import api
from difftest.errors import ApiChange, DifftestError, LiftError
from difftest.lift.load import load_arms
from difftest.record import cases
from difftest.record.lines import seal
from difftest.record.replay import replay
from difftest.result import RunResult
from difftest.target import Arm

RECORDING = Path(__file__).parents[2] / "oracles/recordings/v1-ngram-seeded"
SITE = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"
TREE = Path(api.__file__).parent / "demo/trees/base"
DAMAGED = 2000
WHOLE_WAY = 40
PROCESSES = 30


def cut(source: Path, path: Path, site: str, calls: int) -> Path:
    """The first calls of a site on each rank of a recording, as a capture of its own that also says `inputs`."""
    (path / "blobs").mkdir(parents=True)
    manifests = []
    for rank in sorted(source.glob("rank-*")):
        kept: list[bytes] = []
        taken: list[int] = []
        for line in (rank / "manifest.jsonl").read_bytes().splitlines():
            record = json.loads(line)
            del record["sha256"]
            if record["record"] == "begin":
                if record["site"] != site or len(taken) == calls:
                    continue
                taken.append(record["call"])
                record["parent"] = None
            elif record["record"] == "end":
                if record["call"] not in taken:
                    continue
                record["inputs"] = []
            elif record["record"] == "close":
                continue
            kept.append(seal(record | {"n": len(kept)}))
            if record["record"] == "end" and len(taken) == calls:
                break
        assert len(taken) == calls
        kept.append(seal({"record": "close", "n": len(kept), "reason": "finished", "calls": calls}))
        (path / rank.name).mkdir()
        (path / rank.name / "manifest.jsonl").write_bytes(b"".join(kept))
        manifests.append(b"".join(kept).decode())
    for blob in (source / "blobs").iterdir():
        if any(blob.stem in text for text in manifests):
            shutil.copyfile(blob, path / "blobs" / blob.name)
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut(RECORDING, tmp_path_factory.mktemp("damage") / "original", SITE, 2)


def replayed(path: Path) -> RunResult:
    return replay([path], str(TREE), [str(TREE)], repeat=1, jobs=1)


@pytest.fixture(scope="module")
def whole(original: Path) -> RunResult:
    result = replayed(original)
    (target,) = result.targets
    assert (result.verdict, sum(counts["as_recorded"] for counts in target.recorded.values())) == ("identical", 4)
    return result


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arm]:
    with load_arms([str(TREE)], tmp_path_factory.mktemp("arm"), labels=("base",)) as (base,):
        yield base


def damage(seed: int, path: Path) -> bool:
    """Damage a capture; whether the damage knows the format."""
    rng = random.Random(seed)
    if seed % 2:
        rng.choice(BLIND)(rng, path)
        return False
    (forge_inputs_after if seed % 8 == 0 else forge)(rng, path)
    return True


def content(folder: Path) -> dict[str, str]:
    """What lies in a folder: type, and content of regular files."""
    found = {}
    for entry in sorted(folder.rglob("*")):
        plain = entry.is_file() and not entry.is_symlink()
        found[str(entry.relative_to(folder))] = hashlib.sha256(entry.read_bytes()).hexdigest() if plain else "other"
    return found


def one_line(error: DifftestError) -> str:
    text = str(error)
    assert text and "\n" not in text and len(text) < 1000, text
    return text


def right(result: RunResult, forged: bool) -> None:
    """A replay of a damaged capture that was not refused: blind damage changes nothing of what is still there."""
    assert result.exit_code in (0, 1, 3)
    if not forged:
        assert result.verdict == "identical", result
        counts = [counts for target in result.targets for counts in target.recorded.values()]
        calls = sum(each["calls"] for each in counts)
        assert 0 < calls == sum(each["as_recorded"] for each in counts) <= 4
        assert calls == 4 or any("incomplete" in note for note in result.notes)


def test_each_is_refused_in_one_line_or_its_calls_are_what_was_recorded(
    original: Path, whole: RunResult, arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 2,000 are given to `replay`. Up to the start of the worker process it is the real one: the capture opened,
    its notes, its outline. In the place of the worker, which takes seconds to start, what the worker does with a
    capture runs here: targets, every call's inputs, the call prepared in a real arm, what was recorded of its end.
    Calling the arm's function, the sandbox and the comparison are left to the tests below, which take a sample.
    """
    took: Counter[str] = Counter()

    def run(request: api.RunOptions, *_: object) -> RunResult:
        captures, kept = cases.given(request.recorded)
        outlines = cases.outlines(captures, kept)
        targets = cases.targets(request.recorded, "cpu", {}, True)
        assert {outline.name for outline in outlines} == set(targets)
        for target in targets.values():
            for case in target.cases():
                assert case.recorded is not None
                try:
                    assert case.recorded.rng is not None
                    target.prepare(arm, case.build())
                    for after in (case.recorded.after(arm), case.recorded.twin(arm)):
                        if after is not None and after.changes is not None:
                            after.inputs()
                except (ApiChange, LiftError):
                    took["not measured"] += 1
        took["read"] += 1
        return whole

    monkeypatch.setattr(api, "run", run)
    victim = Victim(original, original.parent / "swept")
    beside = content(original)
    for seed in range(DAMAGED):
        damage(seed, victim.path)
        before, started = content(victim.path), time.process_time()
        try:
            replayed(victim.path)
        except DifftestError as error:
            assert one_line(error)
            took["refused"] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        assert time.process_time() - started < 20, seed
        assert content(victim.path) == before, seed
        victim.mend()
    assert content(original) == beside
    assert {entry.name for entry in original.parent.iterdir()} <= {"original", "swept", "outside"}
    assert took["refused"] > DAMAGED // 2 and took["read"] > DAMAGED // 20, took


def reaching_the_worker(original: Path, folder: Path, first: int, count: int) -> Iterator[tuple[int, bool, Path]]:
    """Damaged captures whose manifests can be read, so that a worker gets to see them: (seed, forged, capture)."""
    victim = Victim(original, folder / "capture")
    seed = first
    while count:
        forged = damage(seed, victim.path)
        try:
            cases.outlines(*cases.given([victim.path]))
        except DifftestError:
            pass
        else:
            count -= 1
            yield seed, forged, victim.path
        victim.mend()
        seed += 1


@pytest.mark.check
def test_a_sample_is_replayed_the_whole_way(original: Path, whole: RunResult, tmp_path: Path) -> None:
    """Of those that get as far as a worker process, a sample, by the function itself."""
    refused = 0
    for seed, forged, path in reaching_the_worker(original, tmp_path, DAMAGED, WHOLE_WAY):
        before = content(path)
        try:
            result = replayed(path)
        except DifftestError as error:
            assert one_line(error)
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        else:
            right(result, forged)
        assert content(path) == before, seed
    assert 0 < refused < WHOLE_WAY


@pytest.mark.check
def test_a_sample_is_replayed_by_processes_of_their_own(original: Path, tmp_path: Path) -> None:
    """`difftest replay` in an empty folder, with a home and a folder for temporary files of its own: half of the
    captures as the damage comes, half of those that get as far as a worker process.
    """
    places = {name: tmp_path / name for name in ("home", "temporary", "here", "captures")}
    for place in places.values():
        place.mkdir()
    environment = {**os.environ, "HOME": str(places["home"]), "TMPDIR": str(places["temporary"])}

    def check(seed: int, forged: bool, path: Path) -> int:
        command = [sys.executable, "-m", "difftest", "replay", str(path), "--base", str(TREE), "--head", str(TREE)]
        before = content(path)
        done = subprocess.run(
            [*command, "--repeat", "1"],
            cwd=places["here"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert "Traceback" not in done.stderr + done.stdout, (seed, done.stderr)
        assert done.returncode in ((0, 1, 2, 3) if forged else (0, 2)), (seed, done.stdout, done.stderr)
        if done.returncode == 2:
            said = [line for line in done.stderr.splitlines() if line.startswith("difftest: ")]
            assert len(said) == 1, (seed, done.stderr)
        assert content(path) == before, seed
        for name in ("here", "temporary"):
            assert not any(places[name].iterdir()), (seed, sorted(places[name].iterdir()))
        assert sorted(entry.name for entry in places["captures"].iterdir()) in (["capture"], ["capture", "outside"])
        return done.returncode

    victim = Victim(original, places["captures"] / "capture")
    codes: Counter[int] = Counter()
    for seed in range(PROCESSES // 2):
        codes[check(seed, damage(seed, victim.path), victim.path)] += 1
        victim.mend()
    for item in reaching_the_worker(original, places["captures"], 2 * DAMAGED, PROCESSES // 2):
        codes[check(*item)] += 1
    assert codes[2] and codes[0], codes
