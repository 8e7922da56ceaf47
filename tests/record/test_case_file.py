"""A case file holds the case to the byte, refuses damage in one line, and is run like any other case."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from difftest import api
from difftest.call.freeze import Freezer
from difftest.call.values import case_id, has_large
from difftest.catalog import case_modules, load_targets
from difftest.demo import make_repository
from difftest.errors import CaptureError, DifftestError, UsageError
from difftest.record import cases
from difftest.record.casefile import case_files, read_case, write_case
from difftest.target import Case, Made, Pool, Seeded

RECORDING = Path(__file__).parents[2] / "oracles" / "recordings" / "v1-ngram-mixed-logprobs"


def kept(path: Path, pool: Pool, target: str = "t") -> Pool:
    return write_case(path / "case.safetensors", target, Case("a case", lambda: pool), pool).pool()


def full_pool() -> Pool:
    memory = torch.arange(40, dtype=torch.float32)
    memory[3] = torch.tensor([0x7FC00ABC], dtype=torch.int32).view(torch.float32)[0]
    array = np.arange(24, dtype=np.int64).reshape(4, 6)
    shared = [1, 2, 3]
    return {
        "padded": memory.as_strided((3, 4), (10, 1), 2),
        "same memory": memory[4:9],
        "bfloat16": torch.tensor([[1.0, -0.0], [float("nan"), float("inf")]], dtype=torch.bfloat16).T,
        "empty": torch.zeros((3, 0), dtype=torch.int32),
        "empty in memory": memory[5:5],
        "array": array[::2, ::-1],
        "view of it": array[2],
        "scalar": np.float32(-0.0),
        "numbers": [0.1, -0.0, 5e-324, float("-inf"), 2**70, True, None, "café", b"\x00\xff", 1 + 2j],
        "nested": ({"a": (), 3: [[]]}, shared, shared, {1, 2}, frozenset({"x"})),
        "generator": Seeded(1234),
        "metadata": Made(("m:New", "m:Old"), {"top_k": None, "logits": memory[:4]}, frozenset({"top_k"})),
        "kinds": [torch.bool, torch.device("cpu"), torch.Size([2, 3]), range(1, 9, 2), slice(None, 2)],
    }


def test_a_pool_comes_back_as_it_was_with_gaps_and_shared_memory(tmp_path: Path) -> None:
    pool = full_pool()
    read = kept(tmp_path, pool)
    assert case_id("t", read) == case_id("t", pool)
    assert Freezer(whole=True)(read) == Freezer(whole=True)(pool)
    assert read["padded"].untyped_storage().data_ptr() == read["same memory"].untyped_storage().data_ptr()
    assert read["metadata"].fields["logits"].untyped_storage().data_ptr() == read["padded"].untyped_storage().data_ptr()
    assert np.shares_memory(read["array"], read["view of it"])
    assert read["array"].strides == pool["array"].strides
    assert read["nested"][1] is read["nested"][2]
    assert read["metadata"] == replace(pool["metadata"], fields=read["metadata"].fields)


def test_each_reading_has_memory_of_its_own(tmp_path: Path) -> None:
    file = write_case(tmp_path / "case.safetensors", "t", Case("a case", full_pool))
    file.pool()["padded"].zero_()
    assert case_id("t", file.pool()) == file.id


def test_the_same_case_makes_the_same_bytes(tmp_path: Path) -> None:
    case = Case("a case", full_pool, contract=False, source="fuzz", axes={"vocab": "8"})
    for name in ("one", "two"):
        write_case(tmp_path / name / "case.safetensors", "t", case)
    assert (tmp_path / "one" / "case.safetensors").read_bytes() == (tmp_path / "two" / "case.safetensors").read_bytes()
    found = read_case(tmp_path / "one" / "case.safetensors")
    assert (found.target, found.label, found.source, found.contract) == ("t", "a case", "fuzz", False)
    assert found.case().axes == {"vocab": "8"}


def test_cases_of_every_target_keep_their_id(tmp_path: Path) -> None:
    for name, target in load_targets(case_modules()).items():
        every = list(target.cases())
        for case in (every[0], every[len(every) // 2]):
            pool = case.build()
            if has_large(pool):
                continue  # lazily reserved memory, refused by name
            assert case_id(name, kept(tmp_path, pool, name)) == case_id(name, pool), (name, case.label)


def test_a_recorded_call_keeps_its_values_and_the_generators_before_it(tmp_path: Path) -> None:
    for name, target in cases.targets([RECORDING], "cpu").items():
        case = next(iter(target.cases()))
        file = write_case(tmp_path / "case.safetensors", name, case)
        assert case.recorded is not None
        assert file.id == case_id(name, case.build()) == case_id(name, file.pool())
        recorded = file.case().recorded
        assert recorded is not None
        assert Freezer()(recorded.rng) == Freezer()(case.recorded.rng)


@pytest.mark.parametrize("value", [OrderedDict(a=1), object(), np.array([None]), lambda: None, torch.Generator()])
def test_what_is_no_bytes_is_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(UsageError, match=f"'a case' of t cannot be kept as bytes: a {type(value).__qualname__}"):
        kept(tmp_path, {"value": value})
    assert not list(tmp_path.iterdir())


def test_damage_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "case.safetensors"
    whole = Freezer(whole=True)(write_case(path, "t", Case("a case", full_pool)).pool())
    data = path.read_bytes()
    chance = random.Random(1)
    refused = 0
    for number in range(400):
        damaged = bytearray(data)
        at = chance.randrange(len(data))
        if number % 4 == 0:
            damaged = damaged[:at]
        elif number % 4 == 1:
            damaged[at:at] = bytes([chance.randrange(256)])
        else:
            damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            found = read_case(path).pool()
        except CaptureError as error:
            refused += 1
            assert "\n" not in str(error)
            assert str(path) in str(error)
        else:
            assert Freezer(whole=True)(found) == whole
    assert refused > 380


def test_opening_a_case_file_needs_no_torch(tmp_path: Path) -> None:
    write_case(tmp_path / "case.safetensors", "t", Case("a case", full_pool))
    code = (
        "import pathlib, sys; from difftest.record.casefile import read_case;"
        f"read_case(pathlib.Path({str(tmp_path / 'case.safetensors')!r})).pool(None); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_capture_holds_no_case_files_and_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert case_files(RECORDING) is None
    with pytest.raises(CaptureError, match=str(tmp_path)):
        cases.given([tmp_path])


# -- in a run --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> api.RunOptions:
    folder = tmp_path_factory.mktemp("run") / "sampler"
    make_repository(folder)
    return api.RunOptions(base="base", heads=("subtle-bug",), repo=folder, jobs=1)


@pytest.fixture(scope="module")
def differing(options: api.RunOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file of the first case that differs."""
    (found,) = api.run(replace(options, targets=("v1.parse_output",))).targets
    wanted = found.mismatches[0].case
    for case in load_targets(["difftest.cases.v1_parse_output"])["v1.parse_output"].cases():
        pool = case.build()
        if case_id("v1.parse_output", pool) == wanted:
            folder = tmp_path_factory.mktemp("kept")
            kept_case = replace(case, source="fuzz")
            return write_case(folder / "a" / f"{wanted}.safetensors", "v1.parse_output", kept_case, pool).path
    raise AssertionError(wanted)


def test_a_case_file_alone_is_run_on_its_target(options: api.RunOptions, differing: Path) -> None:
    (found,) = api.run(replace(options, case=str(differing))).targets
    assert (found.name, found.cases.executed, found.cases.different) == ("v1.parse_output", 1, 1)
    assert found.mismatches[0].case == differing.stem
    assert found.sources == {"recorded": 1}


def test_a_folder_of_case_files_adds_their_cases(options: api.RunOptions, differing: Path) -> None:
    request = replace(options, recorded=(differing.parent.parent,), targets=("v1.parse_output",))
    (alone,) = api.run(replace(request, cases=("recorded",))).targets
    assert alone.sources == {"recorded": 1}
    (both,) = api.run(request).targets
    assert both.sources["recorded"] == 1
    assert both.sources["grid"] > 1


def test_a_case_of_no_known_target_is_refused(options: api.RunOptions, tmp_path: Path) -> None:
    file = write_case(tmp_path / "case.safetensors", "mine.target", Case("a case", full_pool))
    with pytest.raises(DifftestError, match=r"is a case of mine\.target, which no case file declares"):
        api.run(replace(options, case=str(file.path)))


def test_a_recorded_call_in_a_case_file_is_replayed(options: api.RunOptions, tmp_path: Path) -> None:
    name, target = next(iter(cases.targets([RECORDING], "cpu").items()))
    file = write_case(tmp_path / "case.safetensors", name, next(iter(target.cases())))
    outlines = cases.outlines(*cases.given([file.path]))
    assert [(o.name, o.symbols) for o in outlines] == [(name, target.symbols)]
    assert next(iter(cases.targets([file.path], "cpu")[name].cases())).recorded is not None


def test_views_of_one_memory_that_begin_alike_are_kept(tmp_path: Path) -> None:
    memory = np.arange(20, dtype=np.float32)
    pool = {"first": torch.from_numpy(memory[:4]), "all": torch.from_numpy(memory)}  # the shorter one first
    path = tmp_path / "case.safetensors"
    write_case(path, "t", Case("shared", lambda: pool), pool)
    again = read_case(path).case().build()
    again["all"][0] = 7
    assert again["first"].tolist() == [7, 1, 2, 3]
    assert again["all"].tolist()[1:] == memory[1:].tolist()
