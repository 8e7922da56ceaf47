"""A run with `--out` leaves small cases and scripts that show the difference; crashes and hangs are reduced, too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from difftest import api
from difftest.record.casefile import read_case
from difftest.result import Reduced, RunResult
from difftest.run.shrinking import ALONE, ShrinkRun
from difftest.target import Case

CASES = """
import torch
from difftest.target import Case, Relation, Target


def cases():
    for rows in (1, 40, 64):
        yield Case(
            f"{rows} rows",
            lambda rows=rows: {"values": torch.arange(rows * 50, dtype=torch.float64).reshape(rows, 50), "scale": 2.5},
        )


def reserved():
    memory = torch.empty(1 << 30, dtype=torch.uint8)
    memory[:2] = 1
    yield Case("reserved", lambda: {"values": memory[:2]})


def looks(pool):
    assert pool["values"].shape == (5, 2), "the oracle knows the whole case only"
    return pool["values"] * pool["scale"]


def drawn():
    from hypothesis import strategies as st

    def case(rows):
        values = torch.arange(rows * 30.0).reshape(rows, 30)
        return Case(f"{rows} rows", lambda: {"values": values, "scale": 2.0}, source="fuzz")

    return st.integers(3, 60).map(case)


def turned(pool):
    assert pool["scale"] > 0, "the relation knows whole cases only"
    return {**pool, "values": pool["values"].flip(0)} if len(pool["values"]) > 1 else None


def alike(pool, result, other_pool, other_result):
    return None if torch.equal(result.flip(0), other_result) else "not the same rows"


TARGETS = (
    Target("user.turned", ("pack.scaled:twice",), cases, relations=(Relation("turned", turned, alike, every=20),)),
    Target("user.drawn", ("pack.scaled:scaled",), list, fuzz=drawn),
    Target("user.twice", ("pack.scaled:twice",), cases),
    Target("user.launched", ("pack.scaled:twice",), cases, triton=True),
    Target("user.scaled", ("pack.scaled:scaled",), cases, timeout=0.5),
    Target("user.reserved", ("pack.scaled:twice",), reserved),
    Target(
        "user.looked",
        ("pack.scaled:scaled",),
        lambda: [Case("five", lambda: {"values": torch.ones(5, 2), "scale": 3.0})],
        oracle=looks,
    ),
)
"""

BASE = """
def scaled(values, scale):
    return values * scale


def twice(values):
    return values * 2
"""

HEADS = {
    "value": "    if len(values) > 2 and values.shape[1] > 3:\n        return values * scale + 1\n",
    "crash": "    if len(values) > 1:\n        import ctypes; ctypes.string_at(0)\n",
    "hang": "    while len(values) > 1:\n        pass\n",
}


MEMORIES = """
import torch

CALLS = 0


def scaled(values, scale):
    global CALLS
    CALLS += 1
    return values * scale + ((torch.arange(len(values)) + CALLS) % 5 == 0)[:, None]


def twice(values):
    global CALLS
    CALLS += 1
    return values * 2 + (CALLS > 40 or len(values) > 5)
"""
"""`scaled` is another function at each call, and does what base does for some rows; `twice` becomes another one."""


def reproduced(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, folder / "reproduce.py"], cwd="/", capture_output=True, text=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "cases.py").write_text(CASES)
    for name in ("base", *HEADS):
        (folder / name / "pack").mkdir(parents=True)
        (folder / name / "pack" / "__init__.py").write_text("")
        lines = BASE.splitlines(keepends=True)
        text = "".join([*lines[:2], HEADS.get(name, ""), *lines[2:]])
        (folder / name / "pack" / "scaled.py").write_text(text)
    request = api.RunOptions(
        base=str(folder / "base"),
        heads=tuple(str(folder / name) for name in HEADS),
        targets=("user.scaled",),
        cases_from=(folder / "cases.py",),
        out=folder / "out",
        shrink=6.0,
        jobs=2,
    )
    return api.run(request), folder / "out"


def reduced(found: tuple[RunResult, Path], head: str) -> tuple[Reduced, Path]:
    (target,) = [t for t in found[0].targets if Path(t.head).name == head]
    (record,) = target.reduced
    assert found[1] in Path(record.path).parents
    return record, Path(record.path)


def test_a_value_is_reduced_to_what_it_takes(found: tuple[RunResult, Path]) -> None:
    record, folder = reduced(found, "value")
    assert (record.kind, record.leaf, record.reason) == ("value", "return", "")
    assert record.requests == (40, 3)
    assert record.largest_axis == (50, 4)
    assert record.bytes == (40 * 50 * 8 + 8, 3 * 4 * 4 + 8)  # float32 now
    assert (record.base, record.head) == ("0", "1")
    original, small = read_case(folder / "original.safetensors"), read_case(folder / "case.safetensors")
    assert (original.id, small.id) == (record.original, record.case)
    assert original.label == "40 rows"


@pytest.mark.parametrize(("head", "kind"), [("crash", "crash"), ("hang", "timeout")])
def test_what_ends_the_process_is_reduced_as_well(found: tuple[RunResult, Path], head: str, kind: str) -> None:
    record, folder = reduced(found, head)
    assert (record.kind, record.leaf, record.reason) == (kind, "call", "")
    assert record.requests[1] < record.requests[0]
    assert read_case(folder / "case.safetensors").id == record.case


MASKS = """
import torch
from difftest.target import Case, Target


def cases():
    for rows in (8, 30):
        values = torch.linspace(-7, 7, rows * 40).reshape(rows, 40)
        yield Case(f"{rows} rows", lambda values=values: {"values": values, "p": 0.7})


TARGETS = (Target("user.masked", ("pack.masks:masked",), cases, rows=("return",)),)
"""


@pytest.mark.parametrize(("base", "head"), [("==", "!="), ("!=", "==")])
def test_what_becomes_what_stays_as_it_was(tmp_path: Path, base: str, head: str) -> None:
    """Which version masks what the other one keeps is what a reader takes the cause from."""
    (tmp_path / "cases.py").write_text(MASKS)
    for name, compared in (("base", base), ("head", head)):
        (tmp_path / name / "pack").mkdir(parents=True)
        (tmp_path / name / "pack" / "__init__.py").write_text("")
        masked = f"values.masked_fill(torch.tensor(p {compared} 0.7), -float('inf'))"
        text = f"import torch\n\n\ndef masked(values, p):\n    return {masked}\n"
        (tmp_path / name / "pack" / "masks.py").write_text(text)
    arms = {"base": str(tmp_path / "base"), "heads": (str(tmp_path / "head"),)}
    request = api.RunOptions(
        **arms, targets=("user.masked",), cases_from=(tmp_path / "cases.py",), out=tmp_path / "out", explain=False
    )
    (target,) = api.run(request).targets
    (record,) = target.reduced
    first = next(m for m in target.mismatches if m.case == record.original)
    assert record.requests[1] == 1
    assert (record.base == "-inf", record.head == "-inf") == (first.base == "-inf", first.head == "-inf")


def test_what_is_lost_with_what_becomes_what_is_not_large_again(tmp_path: Path) -> None:
    """What shows the difference as the original does cannot be made smaller here, and what shows another one can."""
    (tmp_path / "cases.py").write_text(MASKS)
    head = """    out = values + 0.0
    if values.numel() >= 1200:
        out[0, 0] = -float("inf")
    elif min(values.shape) >= 12:
        out[-1, -1] += 5
    return out
"""
    for name, body in (("base", "    return values + 0.0\n"), ("head", head)):
        (tmp_path / name / "pack").mkdir(parents=True)
        (tmp_path / name / "pack" / "__init__.py").write_text("")
        (tmp_path / name / "pack" / "masks.py").write_text(f"def masked(values, p):\n{body}")
    arms = {"base": str(tmp_path / "base"), "heads": (str(tmp_path / "head"),)}
    request = api.RunOptions(
        **arms, targets=("user.masked",), cases_from=(tmp_path / "cases.py",), out=tmp_path / "out", explain=False
    )
    (target,) = api.run(request).targets
    (record,) = target.reduced
    assert (record.requests[1], record.largest_axis[1]) == (12, 12)


def test_what_cannot_be_reduced_says_why_and_ends_nothing(found: tuple[RunResult, Path], tmp_path: Path) -> None:
    folder = found[1].parent
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    text = BASE.replace("* 2", "* 3").replace("* scale", "* scale * scale")
    (tmp_path / "pack" / "scaled.py").write_text(text)
    request = api.RunOptions(
        base=str(folder / "base"),
        heads=(str(tmp_path),),
        targets=("user.reserved", "user.looked"),
        cases_from=(folder / "cases.py",),
        out=tmp_path / "out",
        explain=False,
        jobs=1,
    )
    reserved, looked = api.run(request).targets
    assert reproduced(Path(looked.reduced[0].path)).returncode == 1  # the oracle cannot be asked there
    (item,) = reserved.reduced
    command = f"difftest run --base {folder / 'base'} --head {tmp_path} --target user.reserved --case {item.original}"
    assert "reserves more memory than a file may hold; it is shown by: " + command in item.reason
    assert (looked.reduced[0].reason, looked.reduced[0].requests) == ("", (5, 1))  # though its oracle fails on it


def test_a_relation_is_checked_on_every_candidate(found: tuple[RunResult, Path], tmp_path: Path) -> None:
    folder = found[1].parent
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    added = "* 2 + (values[:, :1] * 0).cumsum(0).add(1).cumsum(0)"
    (tmp_path / "pack" / "scaled.py").write_text(BASE.replace("* 2", added))
    request = api.RunOptions(
        base=str(folder / "base"),
        heads=(str(tmp_path),),
        targets=("user.turned",),
        cases_from=(folder / "cases.py",),
        out=tmp_path / "out",
        explain=False,
        jobs=1,
    )
    (target,) = api.run(request).targets
    (record,) = [item for item in target.reduced if item.kind == "invariant"]
    assert (record.requests, record.largest_axis) == ((40, 2), (50, 2))
    for item in target.reduced:  # what the relation cannot take is no smaller case
        assert read_case(Path(item.path) / "case.safetensors").pool()["scale"] > 0


def test_a_case_lasts_in_another_process_and_against_chance(found: tuple[RunResult, Path], tmp_path: Path) -> None:
    folder = found[1].parent
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "scaled.py").write_text(MEMORIES)
    request = api.RunOptions(
        base=str(folder / "base"),
        heads=(str(tmp_path),),
        targets=("user.scaled", "user.twice"),
        cases_from=(folder / "cases.py",),
        out=tmp_path / "out",
        explain=False,
        jobs=1,
    )
    targets = {target.name: target.reduced for target in api.run(request).targets}
    (unsteady,) = targets["user.scaled"]
    (grown,) = targets["user.twice"]
    assert (unsteady.reason, unsteady.requests) == ("", (40, 5))  # of fewer, a call may agree
    assert (grown.reason, grown.requests) == ("", (40, 6))  # of fewer, a first call agrees
    assert [reproduced(Path(item.path)).returncode for item in (unsteady, grown)] == [1, 1]


KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def _scaled(values, scales, places, out, size, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    place = tl.load(places).to(tl.int32)
    kept = tl.load(scales + place) != 0.5
    value = tl.where(kept, tl.load(values + i, mask=i < size, other=0.0) * 2, 0.0)
    tl.store(out + i, value + MORE, mask=i < size)


def scaled(values, scales, places):
    out = torch.empty_like(values)
    _scaled[(1,)](values, scales, places, out, values.numel(), BLOCK=64)
    return out
"""
"""A kernel that follows a number of which nobody can tell that it is an index; what it finds there hardly matters."""

KERNEL_CASES = """
import torch
from difftest.target import Case, Target

CASES = [Case("nine", lambda: {"values": torch.ones(9), "scales": torch.ones(6), "places": torch.tensor([5.0])})]
TARGETS = (Target("user.kernel", ("pack.scaled:scaled",), lambda: CASES, triton=True),)
"""


@pytest.mark.parametrize("loops", [False, True])  # as often as a number says that may be read outside
def test_a_kernel_that_keeps_to_its_tensors_does_so_on_the_small_case(tmp_path: Path, loops: bool) -> None:
    pytest.importorskip("triton")
    (tmp_path / "cases.py").write_text(KERNEL_CASES)
    for name, more in (("base", "0"), ("head", "(place >= 3)")):
        (tmp_path / name / "pack").mkdir(parents=True)
        (tmp_path / name / "pack" / "__init__.py").write_text("")
        text = KERNELS.replace("MORE", more)
        if loops:
            text = text.replace(
                "    tl.store(",
                "    for _ in range(tl.load(scales + place).to(tl.int32)):\n        i += 0\n    tl.store(",
            )
        (tmp_path / name / "pack" / "scaled.py").write_text(text)
    request = api.RunOptions(
        base=str(tmp_path / "base"),
        heads=(str(tmp_path / "head"),),
        targets=("user.kernel",),
        cases_from=(tmp_path / "cases.py",),
        out=tmp_path / "out",
        explain=False,
        jobs=1,
    )
    (target,) = api.run(request).targets
    (record,) = target.reduced
    assert record.reason == "" and record.seconds < 5
    pool = read_case(Path(record.path) / "case.safetensors").pool()
    assert len(pool["values"]) == 1
    assert len(pool["scales"]) > pool["places"].item() >= 3


@pytest.mark.parametrize(("kind", "seen"), [("value", "undefined"), ("undefined", "value"), ("shape", "undefined")])
def test_a_value_that_is_undefined_when_its_case_is_run_alone_is_reduced_as_that(kind: str, seen: str) -> None:
    sent = []

    class Run(ShrinkRun):
        def __init__(self) -> None:
            self.task = {"kind": kind, "choices": [{}], "seconds": 1.0}

        def use(self, number: int, original: Case) -> dict[str, Any]:
            alike = self.task["kind"] == seen
            sizes = {"bytes": [90, 3], "requests": [9, 1], "largest_axis": [9, 1]}
            return {"reason": "", **sizes} if alike else {"reason": f"{ALONE}, but in {seen} at return"}

        def decided(self, question: Callable[[], bool]) -> bool:
            return True

        def send(self, record: dict[str, Any], leaving: bool = True) -> None:
            sent.append(record)

    Run().reduce([Case("", dict)])
    assert [bool(record["reason"]) for record in sent] == [kind == "shape"]


def test_a_case_that_a_fuzz_drew_is_reduced_from_its_bytes(
    found: tuple[RunResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = found[1].parent
    monkeypatch.chdir(tmp_path)
    request = api.RunOptions(
        base=str(folder / "base"),
        heads=(str(folder / "value"),),
        targets=("user.drawn",),
        cases=("fuzz",),
        cases_from=(folder / "cases.py",),
        examples=30,
        out=Path("out"),
        explain=False,
        jobs=1,
    )
    (target,) = api.run(request).targets
    (record,) = target.reduced
    assert (record.reason, record.largest_axis) == ("", (30, 4))
    monkeypatch.chdir("/")  # the folder is named for a reader who is elsewhere
    assert tmp_path / "out" in Path(record.path).parents
    assert read_case(Path(record.path) / "original.safetensors").source == "fuzz"


def test_the_script_shows_the_difference_in_a_process_of_its_own(found: tuple[RunResult, Path], tmp_path: Path) -> None:
    record, folder = reduced(found, "value")
    done = subprocess.run([sys.executable, folder / "reproduce.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "value at return[0, 0]\n  base 0 (0x0)\n  head 1 (0x1)\n  bits 0x00000000 against 0x3f800000" in done.stdout
    assert record.case in done.stdout
    assert "NOT the version" not in done.stdout
    same = subprocess.run(
        [sys.executable, folder / "reproduce.py", "--head", found[0].base.spec], capture_output=True, text=True
    )
    assert same.returncode == 0, same.stderr
    assert "NOT the version that this was found on" in same.stdout
    assert "the code that the target reaches is not the same as then" in same.stdout


def test_the_script_refuses_another_case(found: tuple[RunResult, Path], tmp_path: Path) -> None:
    _, folder = reduced(found, "value")
    (tmp_path / "reproduce.py").write_text((folder / "reproduce.py").read_text())
    (tmp_path / "case.safetensors").write_bytes((folder / "original.safetensors").read_bytes())
    done = subprocess.run([sys.executable, tmp_path / "reproduce.py"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "its hash is another one" in done.stdout


def test_the_result_keeps_to_its_schema(found: tuple[RunResult, Path]) -> None:
    schema = json.loads((resources.files("difftest") / "schema" / "run.json").read_text())
    jsonschema.validate(json.loads(json.dumps(found[0].to_json())), schema)
