"""The fuzz finds what the grid does not, the same on every machine, keeps it as bytes, and survives what it finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from difftest import api
from difftest.errors import DifftestError
from difftest.result import RunResult, TargetResult
from difftest.run.found import file_name

CASES = """
import torch
from difftest.cases import axes
from difftest.target import Case, Target

AXES = {
    "temperature": axes.TEMPERATURES,
    "vocab": (33, 7, 128, 1500),
    "batch": (2, 1, 3),
    "sequence": (4, 12),
}


def pool(row, s):
    return {
        "logits": axes.logits("random", row["batch"], row["vocab"], s),
        "temperature": row["temperature"].tensor(row["batch"]),
        "steps": [(s.choice(("add", "remove", "move")), s.integer(0, 10)) for _ in range(row["sequence"])],
    }


def cases():
    yield from axes.cases_from(AXES, pool, name="user.sample", contract=lambda row: row["batch"] < 3, limit=4)


def plain():
    yield Case("one", lambda: {"logits": torch.zeros(1, 2), "temperature": torch.ones(1), "steps": []})


TARGETS = (
    Target("user.sample", ("pack.sample:sample",), cases, timeout=2.0),
    Target("user.plain", ("pack.sample:sample",), plain),
)
"""

SAMPLE = """
import torch


def sample(logits, temperature, steps):
    slots = {}
    vocab = logits.shape[1]
    for step, (rule, slot) in enumerate(steps):
        if rule == "add":
            slots[slot] = step
        elif rule == "remove":
            slots.pop(slot, None)
        else:
            slots[slot + 1] = slots.get(slot)
    FAULT
    return logits / temperature.unsqueeze(1), slots
"""

FAULTS = {
    "vocab": "if vocab == 977: logits = logits + 1",
    "temperature": "if ((temperature > 0.3) & (temperature < 0.31)).any(): logits = logits * 2",
    "sequence": 'if any(a == ("remove", a[1]) and b == ("move", a[1]) for a, b in zip(steps, steps[1:])): '
    "slots[0] = -1",
    "crash": "if vocab == 977: import ctypes; ctypes.string_at(0)",
    "hang": "while vocab == 977: pass",
    "none": "pass",
}


def tree(folder: Path, fault: str) -> str:
    (folder / "pack").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "sample.py").write_text(SAMPLE.replace("FAULT", fault))
    return str(folder)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "user.py").write_text(CASES)
    tree(folder / "base", "pass  # nothing")
    for name, fault in FAULTS.items():
        tree(folder / name, fault)
    return folder


def fuzz(places: Path, *heads: str, target: str = "user.sample", kinds: str = "fuzz", **more: object) -> RunResult:
    options: dict[str, object] = {
        "base": str(places / "base"),
        "heads": tuple(str(places / head) for head in heads),
        "targets": (target,),
        "cases": tuple(kinds.split(",")),
        "cases_from": (places / "user.py",),
        "execute_same": True,
        "cache": places / "cache",
        "jobs": 2,
        **more,
    }
    return api.run(api.RunOptions(**options))  # type: ignore[arg-type]


def label(result: TargetResult) -> str:
    return result.mismatches[0].label


@pytest.fixture(scope="module")
def found(places: Path) -> RunResult:
    return fuzz(places, "vocab", "temperature", "sequence", "none", examples=600)


def test_the_grid_misses_faults_that_the_fuzz_finds(places: Path, found: RunResult) -> None:
    grid = fuzz(places, "vocab", "temperature", "sequence", kinds="grid")
    assert [str(t.verdict) for t in grid.targets] == ["identical"] * 3
    assert [str(t.verdict) for t in found.targets] == ["different"] * 3 + ["identical"]


def test_what_is_found_is_made_small(found: RunResult) -> None:
    vocab, temperature, sequence, _ = found.targets
    assert label(vocab) == "fuzz: vocab 977, key 0"
    assert "temperature drawn 0.30" in label(temperature) and "vocab" not in label(temperature)
    assert label(sequence).startswith("fuzz: plain: ") and "logits" not in label(sequence)
    assert all(t.cases.executed >= 600 and t.mismatches[0].contract for t in (vocab, temperature, sequence))


def test_every_differing_case_has_its_mismatches_counted(found: RunResult) -> None:
    for target in found.targets[:3]:
        assert target.mismatches_total == sum(target.kinds.values()) >= target.cases.different


def test_each_case_is_counted_once_whatever_was_made_small_meanwhile(found: RunResult) -> None:
    for target in found.targets:
        counts = target.cases
        assert counts.executed == counts.identical + counts.different == target.sources["fuzz"] == 600


def test_the_same_seed_draws_the_same_cases(places: Path, found: RunResult) -> None:
    again = fuzz(places, "none", "vocab", "sequence", jobs=1, examples=600)
    assert again.targets[0].axes == found.targets[3].axes
    assert [m.case for m in again.targets[1].mismatches] == [m.case for m in found.targets[0].mismatches]
    assert [m.case for m in again.targets[2].mismatches] == [m.case for m in found.targets[2].mismatches]
    other = fuzz(places, "none", seed=1, examples=600)
    assert other.targets[0].axes != found.targets[3].axes


def test_a_found_case_is_repeated_from_its_bytes_in_a_new_process(places: Path) -> None:
    assert str(fuzz(places, "vocab", out=places / "out", shrink=1.0).verdict) == "different"
    path = min((places / "out").rglob("*.safetensors"))
    command = [sys.executable, "-m", "difftest", "run", "--base", str(places / "base"), "--head", str(places / "vocab")]
    command += ["--cases-from", str(places / "user.py"), "--case", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    command[command.index(str(places / "vocab"))] = str(places / "none")
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


def test_the_printed_id_of_a_drawn_case_runs_it_in_a_new_process(places: Path) -> None:
    out = places / "by-id"
    arms = ["--base", str(places / "base"), "--head", str(places / "vocab"), "--cases-from", str(places / "user.py")]
    command = [sys.executable, "-m", "difftest", "run", *arms, "--target", "user.sample", "--cases", "fuzz"]
    command += ["--out", str(out), "--shrink", "1"]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 1, first.stderr
    (said,) = [line for line in first.stdout.splitlines() if "the same command with --case" in line]
    (case,) = [path.stem for path in (out / "fuzz" / "user.sample").iterdir()]
    assert f"fuzz: {case}: " in said
    again = subprocess.run([*command, "--case", case], capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr
    assert "user.sample: 1 of 1 case differs" in again.stdout and case in again.stdout


def test_without_a_folder_the_report_says_what_keeps_a_drawn_case(found: RunResult) -> None:
    assert any("--out DIR keeps what differs" in note for note in found.targets[0].notes)
    assert not any("--out DIR" in note for note in found.targets[3].notes)


def test_a_second_run_into_the_same_folder_begins_with_what_was_found(places: Path) -> None:
    out = places / "again"
    first = fuzz(places, "vocab", "crash", out=out, shrink=1.0).targets
    ids = {m.case for target in first for m in target.mismatches}
    kept = sorted((out / "fuzz" / "user.sample").iterdir())
    assert {path.stem for path in kept} == {file_name(case) for case in ids}
    # So few are drawn that nothing is found anew.
    vocab, crash, none = fuzz(places, "vocab", "crash", "none", out=out, examples=1, seed=5).targets
    assert vocab.mismatches and {m.case for m in vocab.mismatches} <= ids
    assert [m.kind for m in crash.mismatches] == ["crash"] and crash.mismatches[0].case in ids
    assert (str(none.verdict), none.cases.executed) == ("identical", len(kept) + 1)
    listed = fuzz(places, "vocab", kinds="recorded", recorded=(out / "fuzz",))
    assert listed.exit_code == 1 and listed.targets[0].cases.executed == len(kept)


def test_a_damaged_found_case_is_named(places: Path, tmp_path: Path) -> None:
    file = tmp_path / "fuzz" / "user.sample" / "x.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x08" + bytes(20))
    with pytest.raises(DifftestError, match=r"x\.safetensors.*damaged"):
        fuzz(places, "none", out=tmp_path, examples=1)


def test_crashes_and_hangs_are_found_and_the_fuzz_goes_on(places: Path) -> None:
    crash, hang = fuzz(places, "crash", "hang", timeout=1.0).targets
    assert [m.kind for m in crash.mismatches] == ["crash"]
    assert [m.kind for m in hang.mismatches] == ["timeout"]
    assert "vocab 977" in label(crash) and "vocab 977" in label(hang)
    assert crash.cases.identical > 20


def test_the_budget_is_kept(places: Path) -> None:
    result = fuzz(places, "none", budget=5.0)
    assert result.targets[0].seconds < 12.0
    assert result.targets[0].cases.executed > 20
    assert fuzz(places, "none", examples=17).targets[0].cases.executed == 17


def test_without_a_strategy_nothing_is_compared(places: Path) -> None:
    result = fuzz(places, "none", target="user.plain")
    assert result.exit_code == 3
    assert "nothing to draw cases from" in result.targets[0].reason
    both = fuzz(places, "none", target="user.plain", kinds="grid,fuzz")
    assert both.exit_code == 0
    assert any("not fuzzed" in note for note in both.targets[0].notes)
