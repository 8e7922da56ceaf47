"""Faults as edits of a real release, and a git repository that has a branch for each."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from difftest.trees import Tree


class Fault(NamedTuple):
    """An edit that makes one mistake of a hazard's kind.

    Attributes:
        hazard: its number in the list of hazards, `H4`.
        what: the mistake in words, unique among those of its target.
        path: the file that is edited.
        old, new: text of the file, and what takes its place, wherever it stands in the file.
        target: the catalog target that must notice.
        kinds: kinds of mismatch of which one must be found, separated by spaces.
    """

    hazard: str
    what: str
    path: str
    old: str
    new: str
    target: str
    kinds: str = "value"


def branch(fault: Fault) -> str:
    """A name for git that says which fault it is."""
    words = "".join(c if c.isalnum() else "-" for c in fault.what)
    return f"{fault.target}/{fault.hazard}-{words}"


def plant(release: Tree, faults: Iterable[Fault], folder: Path, prefix: str = "vllm") -> Path:
    """A repository whose branch `base` has the release's Python files; the branch of a fault has its edit as well.

    Raises:
        LookupError: the release does not have the text that a fault replaces.
    """
    folder.mkdir(parents=True)
    stream: list[bytes] = []

    def commit(name: str, mark: str, files: dict[str, bytes]) -> None:
        stream.append(f"commit refs/heads/{name}\n{mark}committer t <t@t> 0 +0000\ndata 0\n".encode())
        if name != "base":
            stream.append(b"from :1\n")
        for path, data in files.items():
            stream.append(f"M 100644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n")

    base = {path: release.read(path) or b"" for path in release.paths(prefix) if path.endswith(".py")}
    commit("base", "mark :1\n", base)
    for fault in faults:
        text = base.get(fault.path, b"").decode()
        if fault.old not in text:
            raise LookupError(f"{fault.path} does not have what {fault.what!r} replaces")
        commit(branch(fault), "", {fault.path: text.replace(fault.old, fault.new).encode()})
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(
        ["git", "-C", str(folder), "fast-import", "--quiet"], input=b"".join(stream), check=True, capture_output=True
    )
    return folder
