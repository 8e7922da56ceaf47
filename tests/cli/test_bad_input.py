"""Bad input gives one clear line, the exit code that says so, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from difftest.demo import make_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-input") / "sampler"
    make_repository(folder)
    return folder


def difftest(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "difftest", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith(("Usage:", "Try "))]
    lines = [line for line in lines if line.strip()]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], (word, lines[0])


REJECTION = "vllm.v1.sample.rejection_sampler"
RUN = ("run", "--base", "base", "--head", "faster", "--target", "v1.parse_output")


def test_unknown_revision(repository: Path) -> None:
    done = difftest("run", "--base", "base", "--head", "no-such-branch", cwd=repository)
    one_line(done, 2, "no-such-branch")


@pytest.mark.parametrize("option", ["--out", "--write-expect"])
def test_what_cannot_be_written_is_said_before_anything_runs(repository: Path, option: str) -> None:
    place = repository / ".git" / "HEAD" / "below" / "a-file"
    one_line(difftest(*RUN, option, str(place), cwd=repository), 2, str(place))


def commands(tree: str) -> Iterator[tuple[str, ...]]:
    """Each command that takes a tree, with one that is not of the package that its targets observe."""
    yield "run", "--base", "base", "--head", tree
    yield "run", "--base", tree, "--head", "base", "--target", "v1.parse_output"
    yield "bench", "--base", "base", "--head", tree, "--target", "v1.parse_output"
    yield "targets", "--base", tree
    yield "targets", "--base", "base", "--head", tree
    yield "extract", "--tree", tree, "--target", "v1.parse_output"


@pytest.mark.parametrize("number", range(6))
def test_a_folder_that_holds_no_package_is_refused(repository: Path, tmp_path: Path, number: int) -> None:
    command = list(commands(str(tmp_path)))[number]
    done = difftest(*command, cwd=repository)
    option = command[command.index(str(tmp_path)) - 1]
    one_line(done, 2, f"{option} {tmp_path}: holds no package 'vllm'; name a folder that holds vllm/")
    assert not done.stdout


def test_a_folder_above_the_one_that_holds_the_package_is_refused(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "vllm" / "vllm").mkdir(parents=True)
    (tmp_path / "vllm" / "vllm" / "__init__.py").touch()
    done = difftest("run", "--base", "base", "--head", str(tmp_path), cwd=repository)
    one_line(done, 2, f"--head {tmp_path}: holds no package 'vllm'; name the folder vllm/ in it")


def test_a_revision_and_a_wheel_that_hold_no_package_are_refused(repository: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(tmp_path), *identity, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    one_line(difftest("run", "--base", "HEAD", "--head", "WORKTREE", cwd=tmp_path), 2, "--base HEAD", "name a revision")
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", "")
        archive.writestr("other-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        archive.writestr("other-1.0.dist-info/RECORD", "")
    done = difftest("run", "--base", "base", "--head", str(wheel), cwd=repository)
    one_line(done, 2, f"--head {wheel}: holds no package 'vllm'; name a release")


def test_a_function_of_a_tree_without_the_package_of_the_catalog(tmp_path: Path) -> None:
    for name, value in (("left", 1), ("right", 2)):
        (tmp_path / name / "own").mkdir(parents=True)
        (tmp_path / name / "own" / "__init__.py").write_text(f"def add(n: int) -> int:\n    return n + {value}\n")
    asked = ("run", "--base", "./left", "--head", "./right", "--target", "own:add", "--examples", "3")
    done = difftest(*asked, cwd=tmp_path)
    assert done.returncode == 1, done.stderr + done.stdout


def test_not_a_repository(tmp_path: Path) -> None:
    one_line(difftest(*RUN, "--repo", str(tmp_path), cwd=tmp_path), 2, str(tmp_path))


def test_missing_repository(tmp_path: Path) -> None:
    one_line(difftest(*RUN, "--repo", str(tmp_path / "nowhere"), cwd=tmp_path), 2, "nowhere")


def test_no_such_symbol(repository: Path) -> None:
    symbol = "vllm.v1.sample.rejection_sampler:RejectionSampler.no_such_method"
    one_line(difftest("run", "--base", "base", "--head", "faster", "--target", symbol, cwd=repository), 2, symbol)


def test_target_name_that_matches_nothing(repository: Path) -> None:
    done = difftest("run", "--base", "base", "--head", "faster", "--target", "v1.parse_outptu", cwd=repository)
    one_line(done, 2, "v1.parse_outptu", "v1.parse_output")


def test_corrupt_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "sampler-1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK\x03\x04 this is no wheel")
    one_line(difftest("run", "--base", str(wheel), "--head", str(wheel), cwd=tmp_path), 2, wheel.name)


def test_unusable_cache_folder(repository: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    one_line(difftest(*RUN, cwd=repository, DIFFTEST_CACHE=str(blocked / "cache")), 2, "cache", "DIFFTEST_CACHE")


def test_empty_case_list(repository: Path, tmp_path: Path) -> None:
    cases = tmp_path / "empty_cases.py"
    cases.write_text(
        "from difftest.target import Target\n"
        "SYMBOL = 'vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output'\n"
        "TARGETS = (Target('user.empty', (SYMBOL,), cases=lambda: []),)\n"
    )
    done = difftest(
        "run",
        "--base",
        "base",
        "--head",
        "faster",
        "--target",
        "user.empty",
        "--cases-from",
        str(cases),
        cwd=repository,
    )
    assert done.returncode == 3, done.stderr
    assert "zero cases" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_kind_of_case_that_the_target_lacks(repository: Path) -> None:
    done = difftest(*RUN, "--cases", "recorded", cwd=repository)
    assert done.returncode == 3, done.stderr
    assert "recorded" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_a_device_that_is_not_there(repository: Path) -> None:
    one_line(difftest(*RUN, "--device", "cuda", cwd=repository), 2, "--device cuda", "finds no GPU")


def test_unknown_kind_of_case(repository: Path) -> None:
    one_line(difftest(*RUN, "--cases", "gird", cwd=repository), 2, "gird", "grid")


@pytest.mark.parametrize("arms", [("base", "faster"), ("base", "base"), ("base", "extra-draw")])
@pytest.mark.parametrize("targets", [(), ("--target", "v1.parse_output", "--target", "v1.random_sample")])
def test_unknown_case_id(repository: Path, arms: tuple[str, str], targets: tuple[str, ...]) -> None:
    base, head = arms
    done = difftest("run", "--base", base, "--head", head, *targets, "--case", "ffffffffffffffff0", cwd=repository)
    one_line(done, 2, "--case ffffffffffffffff0: no such case of v1.", "take an id from a report")
    assert not done.stdout


def test_unknown_id_of_a_drawn_case(repository: Path, tmp_path: Path) -> None:
    asked = (*RUN, "--cases", "fuzz", "--case", "e3b2a3900398ad72")
    one_line(difftest(*asked, cwd=repository), 2, "--case e3b2a3900398ad72", "--out DIR")
    place = str(tmp_path / "found")
    one_line(difftest(*asked, "--out", place, cwd=repository), 2, f"{place} holds no such case")


def test_a_head_that_is_given_twice(repository: Path) -> None:
    one_line(difftest(*RUN, "--head", "faster", cwd=repository), 2, "--head faster", "twice")


def test_an_option_of_one_value_that_is_given_twice(repository: Path) -> None:
    done = difftest(*RUN, "--base", "faster", cwd=repository)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "Error: --base is given 2 times; it takes one value"
    assert difftest("targets", "--target", "v1.*", "--target", "v2.*", cwd=repository).returncode == 0


def test_a_case_id_leaves_out_targets_that_do_not_have_it(repository: Path) -> None:
    asked = ("run", "--base", "base", "--head", "faster", "--case", "e3b2a3900398ad72", "--jobs", "1")
    several = ("--target", "v1.parse_output", "--target", "v1.random_sample")
    for done in (difftest(*asked, cwd=repository), difftest(*asked, *several, cwd=repository)):
        assert done.returncode == 0, done.stderr + done.stdout
        assert "v1.parse_output: 1 of 1 case byte-identical" in done.stdout
        assert "no case has the id" not in done.stdout


def test_a_case_id_is_found_where_the_code_is_the_same(repository: Path) -> None:
    asked = ("run", "--base", "base", "--head", "extra-draw", "--case", "e3b2a3900398ad72", "--jobs", "1")
    done = difftest(*asked, cwd=repository)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "v1.parse_output: 1 of 1 case byte-identical" in done.stdout


def test_a_target_that_a_stand_in_replaces_is_not_called_the_same(repository: Path) -> None:
    done = difftest("run", "--base", "base", "--head", "faster", "--target", "vllm.logger:init_logger", cwd=repository)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "vllm.logger has a stand-in" in done.stdout


def test_a_glob_of_targets_that_neither_tree_has(repository: Path) -> None:
    one_line(difftest(*RUN[:5], "--target", "v1.bad*", cwd=repository), 3, "share no target", "v1.bad*")


def test_the_list_of_targets_keeps_names_and_symbols_whole(repository: Path) -> None:
    done = difftest("targets", "--base", "base", "--head", "subtle-bug", cwd=repository, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("v1.parse_output ")]
    assert line.split() == ["v1.parse_output", "changed", "74", f"{REJECTION}:RejectionSampler.parse_output"]
    assert "absent: " in done.stdout and "--target '*' names them" in done.stdout
    assert "v1.bad_words" not in done.stdout
    named = difftest("targets", "--base", "base", "--target", "*", cwd=repository)
    assert "absent: v1.bad_words, " in named.stdout
    one = difftest("targets", "--base", "base", "--target", "v1.logprobs_filter", cwd=repository, COLUMNS="40")
    assert "vllm.v1.outputs:LogprobsTensors.filter" in one.stdout


def test_base_and_head_of_another_project(tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / name / "other").mkdir(parents=True)
        (tmp_path / name / "other" / "__init__.py").write_text(f"NAME = {name!r}\n")
    done = difftest("run", "--base", "./left", "--head", "./right", cwd=tmp_path)
    one_line(done, 2, "--base ./left: holds no package 'vllm'")


@pytest.mark.parametrize("kind", ["json", "markdown", "junit", "github"])
def test_output_path_that_cannot_be_written(repository: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "missing" / "report"
    one_line(difftest(*RUN, "--format", f"{kind}:{path}", cwd=repository), 2, str(path))


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("kind", ["json", "markdown", "html", "junit", "github"])
def test_a_report_on_a_full_disk_leaves_the_others(repository: Path, tmp_path: Path, kind: str) -> None:
    kept = tmp_path / "kept.json"
    done = difftest(*RUN, "--examples", "9", "--format", f"{kind}:{FULL}", "--format", f"json:{kept}", cwd=repository)
    assert done.returncode == 2, done.stderr
    said = f"difftest: the {kind} report is missing: cannot write '{FULL}': No space left on device; name another file"
    assert done.stderr.splitlines()[-1] == said
    assert done.stdout.splitlines()[-1].startswith("difftest: identical. ")
    assert json.loads(kept.read_text())["verdict"] == "identical"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_what_is_printed_on_a_full_disk_leaves_the_reports(repository: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    command = [sys.executable, "-m", "difftest", *RUN, "--examples", "9", "--format", f"json:{kept}"]
    with FULL.open("w") as stream:
        done = subprocess.run(command, cwd=repository, stdout=stream, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("difftest: standard output cannot be written: No space left")
    assert json.loads(kept.read_text())["verdict"] == "identical"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", [("targets",), ("sweep", "--range", "base..faster", "--examples", "3")])
def test_a_list_on_a_full_disk_is_printed_all_the_same(repository: Path, command: tuple[str, ...]) -> None:
    done = difftest(*command, "--format", f"json:{FULL}", cwd=repository)
    one_line(done, 2, f"cannot write '{FULL}'")
    assert len(done.stdout.splitlines()) > 1


def test_unknown_format(repository: Path) -> None:
    one_line(difftest(*RUN, "--format", "pdf:report.pdf", cwd=repository), 2, "pdf", "json")


def test_format_without_a_path(repository: Path) -> None:
    one_line(difftest(*RUN, "--format", "json", cwd=repository), 2, "KIND:PATH")


def test_no_head(repository: Path) -> None:
    one_line(difftest("run", "--base", "base", cwd=repository), 2, "--head")


@pytest.mark.parametrize(("option", "value"), [("--budget", "0"), ("--examples", "-1"), ("--jobs", "0")])
def test_numbers_out_of_range(repository: Path, option: str, value: str) -> None:
    one_line(difftest(*RUN, option, value, cwd=repository), 2, option)


def test_case_file_that_does_not_exist(repository: Path) -> None:
    one_line(difftest(*RUN, "--cases-from", "nowhere.py", cwd=repository), 2, "nowhere.py")


def test_case_file_that_cannot_be_imported(repository: Path, tmp_path: Path) -> None:
    cases = tmp_path / "broken_cases.py"
    cases.write_text("raise ValueError('broken on purpose')\n")
    one_line(difftest(*RUN, "--cases-from", str(cases), cwd=repository), 2, "broken on purpose")


def test_extract_of_an_unknown_target(repository: Path) -> None:
    one_line(difftest("extract", "--tree", "base", "--target", "v9.nothing", cwd=repository), 2, "v9.nothing")


def test_syntax_error_in_head_is_unmeasured_not_a_crash(repository: Path, tmp_path: Path) -> None:
    head = tmp_path / "head"
    subprocess.run(["git", "-C", str(repository), "worktree", "add", "-q", str(head), "faster"], check=True)
    (head / "vllm/v1/sample/rejection_sampler.py").write_text("def broken(:\n")
    done = difftest(*RUN[:4], str(head), *RUN[5:], "--repo", str(repository), cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cannot be parsed" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_case_file_may_be_named_relative_to_the_current_folder(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "relative_cases.py").write_text(
        "import torch\nfrom difftest.target import Case, Target\n"
        "SYMBOL = 'vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output'\n"
        "POOL = lambda: {'output_token_ids': torch.tensor([[1, 2, -1]]), 'vocab_size': 9}\n"
        "TARGETS = (Target('user.relative', (SYMBOL,), lambda: [Case('one', POOL)]),)\n"
    )
    arguments = ("--target", "user.relative", "--cases-from", "relative_cases.py", "--repo", str(repository))
    done = difftest(*RUN[:5], *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_case_is_an_id_or_a_file(repository: Path) -> None:
    arms = ("--base", "base", "--head", "faster")
    one_line(difftest("run", *arms, "--case", "no-such.json", cwd=repository), 2, "--case no-such.json", ".safetensors")
