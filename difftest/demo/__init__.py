"""The demonstration: a small sampler in five versions, which `difftest demo` compares without any network.

The versions are files under `trees/`, written for this purpose: vLLM's layout and names, none of its text.
`base` is whole; the folder of a head holds only what it changes. :func:`make_repository` turns them into a
git repository, so that the demonstration goes the way that a real pull request goes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from difftest.errors import DifftestError, UsageError

BASE = "base"
"""The branch that every head branches off from."""

TREES = Path(__file__).parent / "trees"


class Head(NamedTuple):
    """A head and what difftest must say about it. The demonstration checks itself against this.

    Attributes:
        branch: branch of the repository, and folder under `trees/`.
        description: what its author did, in one line.
        verdict: expected verdict of the run.
        exit_code: expected exit code of the run.
        symbols: what it changes. Targets that observe these must be among those compared, or the expectation
            is empty.
        triton: those of `symbols` that need Triton. Without it they are unmeasured; the run's verdict stays.
    """

    branch: str
    description: str
    verdict: str
    exit_code: int
    symbols: tuple[str, ...]
    triton: tuple[str, ...] = ()


_PARSE_OUTPUT = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"
_RANDOM_SAMPLE = "vllm.v1.sample.ops.topk_topp_sampler:random_sample"
_SAMPLING_MASK = "vllm.v1.worker.gpu.sample.output:SamplingMaskTensors"
_GUMBEL_SAMPLE = "vllm.v1.worker.gpu.sample.gumbel:gumbel_sample"

HEADS: tuple[Head, ...] = (
    Head(
        "faster",
        "parse_output converts once and filters in Python; random_sample's noise moves to another file",
        "identical",
        0,
        (_PARSE_OUTPUT, _RANDOM_SAMPLE),
    ),
    Head(
        "subtle-bug",
        "parse_output keeps an id equal to the vocabulary size; "
        "the mask packer leaves the last byte unwritten when the vocabulary does not fill it",
        "different",
        1,
        (_PARSE_OUTPUT, _SAMPLING_MASK),
        triton=(_SAMPLING_MASK,),
    ),
    Head(
        "extra-draw",
        "random_sample logs one call in a thousand, and draws a random number to choose which: "
        "the tokens of the call stay, the generator moves on",
        "different",
        1,
        (_RANDOM_SAMPLE,),
    ),
    Head(
        "signature",
        "parse_output requires eos_token_ids; gumbel_sample calls its seed request_seeds",
        "unmeasured",
        3,
        (_PARSE_OUTPUT, _GUMBEL_SAMPLE),
        triton=(_GUMBEL_SAMPLE,),
    ),
)
"""The heads, in the order in which the demonstration tells its story."""


def make_repository(folder: Path) -> dict[str, str]:
    """Write the demonstration's versions as a git repository.

    One commit a branch, each head's on top of the base's; the base is checked out. Neither time nor the
    user's git configuration enters, so the commits have the same ids everywhere.

    Args:
        folder: made when it does not exist; must be empty when it does.

    Returns:
        Branch to commit id, the base first.

    Raises:
        UsageError: the folder is not empty or cannot be made.
        DifftestError: git is missing or fails.
    """
    git = shutil.which("git")
    if git is None:
        raise DifftestError("git is not installed, and the demo needs it to write its repository: install git")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"no repository can be written to {folder}: {error.strerror}; name another folder") from error
    if occupied:
        raise UsageError(f"no repository can be written to {folder}: it is not empty; name a new folder")

    _run(git, folder, "init", "--quiet", "--template=")
    # Objects and branches go in through one stream: no index, no hooks, no signing.
    _run(git, folder, "fast-import", "--quiet", stdin=b"".join(_stream()))
    _run(git, folder, "symbolic-ref", "HEAD", f"refs/heads/{BASE}")
    _run(git, folder, "reset", "--quiet", "--hard")
    branches = (BASE, *(head.branch for head in HEADS))
    return dict(zip(branches, _run(git, folder, "rev-parse", *branches).split(), strict=True))


def _stream() -> Iterator[bytes]:
    """The repository in the format of `git fast-import`."""
    whose = b"difftest demo <demo@difftest.invalid>"
    messages = {BASE: "A small sampler"} | {head.branch: head.description for head in HEADS}
    for hour, (branch, message) in enumerate(messages.items()):
        when = b"%d +0000" % (1_767_225_600 + 3600 * hour)
        yield b"commit refs/heads/%s\nmark :%d\n" % (branch.encode(), hour + 1)
        yield b"author %s %s\ncommitter %s %s\n%s" % (
            whose,
            when,
            whose,
            when,
            _data(message.encode() + b"\n"),
        )
        if branch != BASE:
            yield b"from :1\n"
        for path, content in _files(TREES / branch).items():
            yield b"M 100644 inline %s\n%s" % (path.encode(), _data(content))


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def _files(tree: Path) -> dict[str, bytes]:
    """Content by path. Only sources: an installer may have left compiled files beside them."""
    return {
        path.relative_to(tree).as_posix(): path.read_bytes().replace(b"\r\n", b"\n")
        for path in sorted(tree.rglob("*.py"))
    }


def _run(git: str, folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    # Variables such as GIT_DIR (set while a hook runs) and the user's settings change what is written where.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        # For git before 2.32, which does not know GIT_CONFIG_GLOBAL.
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "LC_ALL": "C",
    }
    settings = (
        "-c",
        "core.autocrlf=false",
        "-c",
        f"core.hooksPath={os.devnull}",
        "-c",
        "init.defaultBranch=base",
    )
    done = subprocess.run([git, *settings, *arguments], cwd=folder, env=environment, input=stdin, capture_output=True)
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise DifftestError(f"git {arguments[0]} failed in {folder}: {reason}; name another folder")
    return done.stdout.decode()
