"""The demonstration's repository, and that its trees do what the demonstration says of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from difftest import demo
from difftest.errors import DifftestError, UsageError
from difftest.result import EXIT_CODES, Verdict

BRANCHES = ("base", "faster", "subtle-bug", "extra-draw", "signature")
PROBE = Path(__file__).with_name("tree_probe.py")
VOCAB = 21

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "repository"
    demo.make_repository(folder)
    return folder


@pytest.fixture(scope="module")
def answers(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every branch's code answers in a process of its own, with nothing but its checkout on the path."""
    processes = {}
    for branch in BRANCHES:
        checkout = tmp_path_factory.mktemp("checkouts") / branch
        git(repository, "worktree", "add", "--quiet", "--detach", str(checkout), branch)
        environment = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "TRITON_INTERPRET": "1",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        processes[branch] = subprocess.Popen(
            [sys.executable, "-W", "error", str(PROBE), str(checkout)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    outputs = {branch: process.communicate(timeout=60) for branch, process in processes.items()}
    for branch, process in processes.items():
        assert process.returncode == 0, f"{branch}: {outputs[branch][1]}"
    return {branch: json.loads(output) for branch, (output, _) in outputs.items()}


# --- the repository


def test_branches_are_one_commit_each_on_top_of_the_base(repository: Path) -> None:
    commits = {branch: git(repository, "rev-parse", branch).strip() for branch in BRANCHES}
    assert BRANCHES[0] == demo.BASE
    assert tuple(head.branch for head in demo.HEADS) == BRANCHES[1:]
    for branch in BRANCHES[1:]:
        assert git(repository, "rev-list", "--parents", "-1", branch).split() == [
            commits[branch],
            commits["base"],
        ]
    assert git(repository, "rev-list", "--parents", "-1", "base").split() == [commits["base"]]


def test_the_base_is_checked_out_and_clean(repository: Path) -> None:
    assert git(repository, "symbolic-ref", "--short", "HEAD").strip() == "base"
    assert git(repository, "status", "--porcelain") == ""
    assert (repository / "vllm/v1/sample/rejection_sampler.py").is_file()


def test_a_head_is_the_base_with_its_own_files_laid_over_it(repository: Path) -> None:
    base = set(git(repository, "ls-tree", "-r", "--name-only", "base").split())
    for head in demo.HEADS:
        overlay = {p.relative_to(demo.TREES / head.branch).as_posix() for p in (demo.TREES / head.branch).rglob("*.py")}
        assert set(git(repository, "diff", "--name-only", "base", head.branch).split()) == overlay
        assert set(git(repository, "ls-tree", "-r", "--name-only", head.branch).split()) == base | overlay
        for path in overlay:
            assert git(repository, "show", f"{head.branch}:{path}") == (demo.TREES / head.branch / path).read_text()


def test_commit_ids_do_not_depend_on_the_machine_or_its_git_settings(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "post-checkout", "reference-transaction"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    settings = tmp_path / ".gitconfig"
    settings.write_text(
        f"[core]\nautocrlf = true\nhooksPath = {hooks}\n[commit]\ngpgSign = true\n[init]\n"
        "defaultBranch = trunk\n"
        f"templateDir = {tmp_path}\n[user]\nname = Somebody\nemail = somebody@example.org\n"
    )
    for name, value in {
        "HOME": str(tmp_path),
        "TZ": "Asia/Kathmandu",
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_AUTHOR_NAME": "Somebody",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.autocrlf",
        "GIT_CONFIG_VALUE_0": "true",
    }.items():
        monkeypatch.setenv(name, value)
    made = demo.make_repository(tmp_path / "again")
    monkeypatch.undo()
    assert made == {branch: git(repository, "rev-parse", branch).strip() for branch in BRANCHES}
    assert b"\r" not in (tmp_path / "again/vllm/v1/outputs.py").read_bytes()
    assert not (tmp_path / "elsewhere").exists()


def test_compiled_files_that_an_installer_left_are_not_committed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "trees"
    for path in demo.TREES.rglob("*.py"):
        copy = installed / path.relative_to(demo.TREES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        (copy.parent / "__pycache__").mkdir(exist_ok=True)
        (copy.parent / "__pycache__" / f"{copy.stem}.pyc").write_bytes(b"compiled")
    monkeypatch.setattr(demo, "TREES", installed)
    made = demo.make_repository(tmp_path / "repository")
    assert made["base"] == git(repository, "rev-parse", "base").strip()


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        demo.make_repository(tmp_path)
    with pytest.raises(UsageError, match="no repository can be written"):
        demo.make_repository(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_missing_git_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DifftestError, match=r"^git is not installed.*install git$"):
        demo.make_repository(tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_failing_git_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin" / "git"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'fatal: no space left on device' >&2\necho more >&2\nexit 128\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    with pytest.raises(
        DifftestError, match=r"^git init failed in .*: fatal: no space left on device; name another folder$"
    ):
        demo.make_repository(tmp_path / "repository")


def test_expected_verdicts_and_exit_codes_agree() -> None:
    assert {head.branch: head.exit_code for head in demo.HEADS} == {
        head.branch: EXIT_CODES[Verdict(head.verdict)] for head in demo.HEADS
    }


def test_every_changed_symbol_lies_in_a_changed_file() -> None:
    for head in demo.HEADS:
        changed = {symbol.partition(":")[0].replace(".", "/") + ".py" for symbol in head.symbols}
        assert all((demo.TREES / head.branch / path).is_file() for path in changed)


# --- the trees


def test_every_tree_runs_from_its_own_checkout(answers: dict[str, Any]) -> None:
    for branch in BRANCHES:
        assert Path(answers[branch]["file"]).parts[-5:-3] == (branch, "vllm")


def test_the_base_follows_the_definitions(answers: dict[str, Any]) -> None:
    sampler = answers["base"]["sampler"]
    assert sampler["sampled"][:2] == sampler["largest"][:2]
    ids, _, ranks = sampler["logprobs"][:3]
    assert [row[:2] for row in ids[2]] == [[token, token] for token in sampler["largest"]]
    assert ranks == ["Tensor", "torch.int64", [1, 1, 1]]
    for types, (tokens, _) in answers["base"]["parse_output"]:
        assert types in ([], ["int"])
        assert all(token != -1 and token < VOCAB for row in tokens for token in row)


@needs_triton
@pytest.mark.parametrize("branch", ["base", "faster", "extra-draw", "signature"])
def test_masks_hold_exactly_the_open_tokens(answers: dict[str, Any], branch: str) -> None:
    assert len(answers[branch]["masks"]) == 3
    for found in answers[branch]["masks"].values():
        assert found["lists"] == found["bitmask"] == found["definition"]
        assert found["boundaries"] == [0, 2, 2, 3]


@needs_triton
def test_gumbel_noise_leaves_greedy_rows_alone_and_differs_between_streams(answers: dict[str, Any]) -> None:
    gumbel = answers["base"]["gumbel"]
    for stream in ("sampled", "drafted"):
        assert [gumbel[stream][row] for row in (0, 1, 5)] == [gumbel["largest"][row] for row in (0, 1, 5)]
    assert gumbel["sampled"][2:5] != gumbel["drafted"][2:5]
    assert gumbel["sampled"][2:5] != gumbel["largest"][2:5]


def test_the_faster_head_equals_the_base_on_200_random_inputs(answers: dict[str, Any]) -> None:
    base, faster = answers["base"]["parse_output"], answers["faster"]["parse_output"]
    assert len(base) == 200
    assert faster == base
    assert answers["faster"]["random_sample"] == answers["base"]["random_sample"]


def test_the_buggy_head_keeps_an_id_equal_to_the_vocabulary_size_and_no_other(
    answers: dict[str, Any],
) -> None:
    base = [tokens for _, (tokens, _) in answers["base"]["parse_output"]]
    buggy = [tokens for _, (tokens, _) in answers["subtle-bug"]["parse_output"]]
    assert any(VOCAB in row for batch in buggy for row in batch)
    without = [[[token for token in row if token != VOCAB] for row in batch] for batch in buggy]
    assert without == base


@needs_triton
def test_the_buggy_head_leaves_the_last_byte_of_the_mask_unwritten(answers: dict[str, Any]) -> None:
    masks = answers["subtle-bug"]["masks"]
    assert masks["16"]["bitmask"] == masks["16"]["definition"]
    for vocab in (VOCAB, 2 * 8192 + 5):
        found, true = masks[str(vocab)]["bitmask"], masks[str(vocab)]["definition"]
        whole_bytes = vocab // 8 * 8
        assert [[t for t in row if t < whole_bytes] for row in found] == [
            [t for t in row if t < whole_bytes] for row in true
        ]
        # The poison 0x5A, least significant bit first.
        assert {tuple(t - whole_bytes for t in row if t >= whole_bytes) for row in found} == {(1, 3, 4, 6)}


def test_the_extra_draw_leaves_the_tokens_and_moves_only_the_default_generator(
    answers: dict[str, Any],
) -> None:
    base, head = answers["base"]["random_sample"], answers["extra-draw"]["random_sample"]
    for (tokens, default, *own), (head_tokens, head_default, *head_own) in zip(base, head, strict=True):
        assert head_tokens == tokens
        assert head_own == own
        assert head_default != default


def test_the_signature_head_differs_in_nothing_but_what_was_renamed_or_added(answers: dict[str, Any]) -> None:
    for name in ("random_sample", "sampler", "masks", "gumbel"):
        assert answers["signature"].get(name) == answers["base"].get(name)


def test_without_triton_the_modules_import_and_a_launch_says_why_it_cannot(repository: Path) -> None:
    code = (
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else real(name, *rest)\n"
        "import torch\n"
        "from vllm.triton_utils import HAS_TRITON\n"
        "from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample\n"
        "from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors\n"
        "assert not HAS_TRITON\n"
        "n = torch.tensor([1], dtype=torch.int32)\n"
        "for launch in (lambda: SamplingMaskTensors.from_logits(torch.zeros(1, 8), n - 1, n, 8),\n"
        "               lambda: gumbel_sample(torch.zeros(1, 8), n - 1, n.float(), n, n, True)):\n"
        "    try: launch()\n"
        "    except RuntimeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{kernel} cannot be launched: Triton is not installed"
        for kernel in ("_compact_sampling_mask_kernel", "_gumbel_sample_kernel")
    ]
