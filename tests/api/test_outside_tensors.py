"""A kernel of head that reads beyond its tensors is said to, though what comes out may be the same; that one version's
writes there is a difference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from difftest.api import RunOptions, run
from difftest.compare.outcomes import BEYOND
from difftest.reports.causes import ways_words
from difftest.reports.sentence import sentence
from difftest.result import RunResult, is_outside_note
from tests.planted.edited_trees import write

pytest.importorskip("triton")

CASES = """
import torch
from difftest.target import Case, Target


def cases():
    for size in (16, 12, 11, 10, 9):
        yield Case(f"{size}", lambda size=size: {"values": torch.arange(float(size)), "flags": torch.ones(3)})


TARGETS = (Target("user.kernel", ("pack.doubled:doubled",), cases, triton=True),)
"""

TEXT = """
import torch
import triton
import triton.language as tl


@triton.jit
def _doubled(values, flags, out, size, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < size
    value = tl.load(values + i, mask=inside, other=0.0)
    EXTRA
    tl.store(out + i, value * 2, mask=inside)


def doubled(values, flags):
    out = torch.empty_like(values)
    _doubled[(1,)](values, flags, out, values.numel(), BLOCK=16)
    return out
"""

READS = "value = tl.where(inside, tl.load(values + i), 0.0)"
WRITES = "tl.store(flags + 3, 1.0)"
USES = "value += tl.load(flags + 3)"


def compared(folder: Path, base: str, head: str, text: str = TEXT, **more: Any) -> RunResult:
    write(folder / "cases.py", CASES)
    for name, extra in (("base", base), ("head", head)):
        write(folder / name / "pack/__init__.py", "")
        write(folder / name / "pack/doubled.py", text.replace("EXTRA", extra))
    options = {"targets": ("user.*",), "cases_from": (folder / "cases.py",), "jobs": 2, **more}
    return run(RunOptions(str(folder / "base"), (str(folder / "head"),), **options))  # type: ignore[arg-type]


def notes(result: RunResult) -> list[str]:
    return [note for target in result.targets for note in target.notes if is_outside_note(note)]


def test_a_read_beyond_the_tensors_is_named_with_a_case(tmp_path: Path) -> None:
    result = compared(tmp_path, "pass", READS)
    assert result.verdict == "identical"
    (note,) = notes(result)
    assert note.startswith("head reads outside of its kernels' tensors where base does not, as in case ")
    assert note.endswith("; what it finds there is another thing in each process")
    assert ", head reads outside of its kernels' tensors where base does not" in sentence(result)
    case = note.split("case ")[1].split(";")[0]
    again = run(
        RunOptions(
            *(str(tmp_path / "base"), (str(tmp_path / "head"),)),
            targets=("user.kernel",), case=case, cases_from=(tmp_path / "cases.py",),
        )
    )  # fmt: skip
    assert notes(again) == [note]


@pytest.mark.parametrize(
    ("base", "head", "values", "said"),
    [
        ("pass", WRITES, ("kept", "written"), "head writes there, base does not"),
        (WRITES, "pass", ("written", "kept"), "base writes there, head does not"),
        (READS, f"{READS}\n    {WRITES}", ("kept", "written"), "head writes there, base does not"),
    ],
)
def test_a_write_of_one_version_beyond_the_tensors_is_a_difference(
    tmp_path: Path, base: str, head: str, values: tuple[str, str], said: str
) -> None:
    result = compared(tmp_path, base, head, out=tmp_path / "out")
    (target,) = result.targets
    assert (target.verdict, target.cases.different, target.kinds) == ("different", 5, {"mutation": 5})
    (mismatch, *_) = target.mismatches
    assert (mismatch.leaf, mismatch.base, mismatch.head) == (BEYOND, *values)
    assert not [note for note in notes(result) if "writes" in note] and not mismatch.detail
    assert f"{BEYOND}: {said}" in ways_words(target.groups[0])
    (reduced,) = target.reduced
    assert not reduced.reason
    script = [sys.executable, str(Path(reduced.path) / "reproduce.py")]
    done = subprocess.run(script, capture_output=True, text=True, cwd="/")
    assert (done.returncode, f"mutation at {BEYOND}" in done.stdout) == (1, True), done.stdout + done.stderr


def test_what_both_versions_write_beyond_the_tensors_is_no_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, WRITES, WRITES.replace("1.0", "2.0"))
    assert result.verdict == "identical"
    (note,) = notes(result)
    assert note.startswith("both versions write outside of their kernels' tensors")


def test_a_write_that_undefined_memory_decides_on_is_no_difference_but_named(tmp_path: Path) -> None:
    """Whether it is beyond the tensors depends on the fill, so one call cannot tell."""
    extra = "tl.store(flags + tl.where(tl.load(out).to(tl.int32, bitcast=True) < 0, 3, 0), 1.0)"
    result = compared(tmp_path, "tl.store(flags, 1.0)", extra)
    assert BEYOND not in {mismatch.leaf for target in result.targets for mismatch in target.mismatches}
    assert any(note.startswith("head writes outside") for note in notes(result))


def test_what_is_read_beyond_the_tensors_is_undefined_in_each_process(tmp_path: Path) -> None:
    result = compared(tmp_path, "pass", USES, out=tmp_path / "out", explain=False)
    (target,) = result.targets
    assert (target.verdict, target.cases.different, set(target.kinds)) == ("different", 5, {"undefined"})
    assert notes(result)
    (reduced,) = target.reduced
    assert (reduced.reason, reduced.largest_axis[1]) == ("", 1)
    for _ in range(2):
        script = [sys.executable, str(Path(reduced.path) / "reproduce.py")]
        done = subprocess.run(script, capture_output=True, text=True, cwd="/")
        assert (done.returncode, "undefined at return[0]" in done.stdout) == (1, True), done.stdout + done.stderr


def test_what_is_undefined_in_both_is_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, USES, "value += tl.load(flags + 4)").verdict == "identical"


@pytest.mark.parametrize(("base", "head"), [(READS, "pass"), ("pass", "value = value + 0.0")])
def test_what_base_does_alone_is_not_named(tmp_path: Path, base: str, head: str) -> None:
    result = compared(tmp_path, base, head)
    assert result.verdict == "identical" and not notes(result)
    assert "outside" not in sentence(result)


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        (READS, "value += 1.0", "in this case base reads outside of its kernels' tensors, head does not"),
        ("value += 1.0", WRITES, ""),  # that is a difference of its own
        (READS, f"{READS}\n    value += 1.0", ""),
    ],
)
def test_a_difference_says_which_version_alone_reaches_outside(tmp_path: Path, base: str, head: str, said: str) -> None:
    (target,) = compared(tmp_path, base, head).targets
    told = [line for mismatch in target.mismatches for line in mismatch.detail if "outside" in line]
    assert set(told) == ({said} if said else set())


def test_what_both_versions_reach_is_said_not_to_be_compared(tmp_path: Path) -> None:
    result = compared(tmp_path, READS, READS + " + 0.0")
    (note,) = notes(result)
    assert note.startswith("both versions read outside of their kernels' tensors, as in case ")
    assert note.endswith("; what is there was not compared")
    assert ", both versions read outside of their kernels' tensors" in sentence(result)


MADE_OF_A_NUMBER = f"values = values.to(tl.int64).to(tl.pointer_type(tl.float32))\n    {READS}"


def test_what_is_not_looked_at_is_not_said_to_keep_to_its_tensors(tmp_path: Path) -> None:
    (target,) = compared(tmp_path, READS, f"{MADE_OF_A_NUMBER}\n    value += 1.0").targets
    assert target.verdict == "different"
    assert not [line for mismatch in target.mismatches for line in mismatch.detail if "outside" in line]
    result = compared(tmp_path / "turned", f"{MADE_OF_A_NUMBER}\n    value += 1.0", READS)
    (note,) = notes(result)
    assert "(those of base make pointers of numbers and were not looked at), as in case" in note
    assert "make pointers of numbers and were not looked at)" in sentence(result)


@pytest.mark.parametrize("base", ["pass", READS])
@pytest.mark.parametrize(
    ("access", "does"), [("tl.store(out + i + (1 << 40), 7.0)", "writes"), ("tl.load(values + i - (1 << 33))", "reads")]
)
def test_what_is_far_beyond_the_tensors_ends_the_process(tmp_path: Path, base: str, access: str, does: str) -> None:
    (target,) = compared(tmp_path, base, f"{base}\n    {access}").targets
    assert (target.verdict, set(target.kinds), target.cases.identical) == ("different", {"crash"}, 0)
    said = f"head {does} 1 GiB or more outside of its kernels' tensors, which ends the process (SIGSEGV)"
    assert [note for note in target.notes if "GiB" in note] == [said]


def test_a_table_of_addresses_is_followed(tmp_path: Path) -> None:
    """Memory of tensors that the kernel is not launched with, but finds by their addresses."""
    launch = "_doubled[(1,)](values, flags, out, values.numel(), BLOCK=16)"
    table = "_doubled[(1,)](values, torch.tensor([0, out.data_ptr()])[:1], out.new_empty(0), values.numel(), BLOCK=16)"
    text = TEXT.replace(launch, table).replace("tl.store(out +", "tl.store(found +")
    extra = "found = tl.load(flags + 1).to(tl.pointer_type(tl.float32))"
    result = compared(tmp_path, extra, extra + "\n    value = value * 1.5", text=text)
    assert result.verdict == "different" and not notes(result)
