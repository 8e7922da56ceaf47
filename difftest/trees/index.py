"""Trees from a package index: `pypi:NAME==VERSION`, fetched by pip and kept in the cache folder.

pip is asked for a wheel that this Python could install. When the index has none, the files that pip has
passed over are taken instead: a wheel for another platform reads just as well, and so does a source archive.
pip itself is not used for source archives, because it runs their build code even for a download.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from difftest.errors import TreeError
from difftest.result import Identity
from difftest.trees.archive import ArchiveTree
from difftest.trees.cache import file_sha256, using, write_atomic

PREFIX = "pypi:"
RECORD = "fetched.json"
"""Beside the fetched file: its name and SHA-256."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z.!+_-]*[0-9A-Za-z])?")
_SKIPPED = re.compile(r"Skipping link: .*?((?:https?|file)://\S+)")


class Link(NamedTuple):
    """A file that the index offers."""

    url: str
    file: str
    algorithm: str
    """Hash in the link's fragment, or empty."""
    digest: str


class IndexTree(ArchiveTree):
    """A released version.

    Args:
        spec: `pypi:NAME==VERSION`.
        cache: the cache folder; a version that is there is taken from there, without running pip.

    Raises:
        TreeError: malformed spec, no such version, nothing that can be read, no connection, a damaged cached
            file.
    """

    def __init__(self, spec: str, cache: Path) -> None:
        name, version = parse_spec(spec)
        folder = cache / "index" / name / version
        file, digest = _recorded(folder) or _fetch(spec, name, version, folder, cache)
        super().__init__(spec, file, cache)
        found = self._identity.details["sha256"]
        if found != digest:
            self.close()
            raise TreeError(f"{file} is not the file that was fetched (sha256 {found}); delete {folder}")
        details = {**self._identity.details, "name": name, "version": version}
        self._identity = replace(self._identity, kind="pypi", details=details)

    @property
    def identity(self) -> Identity:
        return self._identity


def parse_spec(spec: str) -> tuple[str, str]:
    """Normalised name, and version, of `pypi:NAME==VERSION`.

    Raises:
        TreeError: it is anything else.
    """
    name, equals, version = spec.removeprefix(PREFIX).partition("==")
    name, version = name.strip(), version.strip()
    if not (equals and _NAME.fullmatch(name) and _VERSION.fullmatch(version)):
        raise TreeError(f"{spec!r} does not name a release; write pypi:NAME==VERSION, as in pypi:vllm==0.11.0")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def _recorded(folder: Path) -> tuple[Path, str] | None:
    """The fetched file and its SHA-256; None when this version has not been fetched."""
    with using(folder):
        try:
            text = (folder / RECORD).read_bytes()
        except FileNotFoundError:
            return None
    try:
        record = json.loads(text)
        return folder / str(record["file"]), str(record["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise TreeError(f"{folder / RECORD} is damaged; delete {folder}") from error


def _fetch(spec: str, name: str, version: str, folder: Path, cache: Path) -> tuple[Path, str]:
    with using(cache):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that a rename puts the complete download in place.
        work = Path(tempfile.mkdtemp(prefix=f".{version}.", dir=folder.parent))
    try:
        reason, skipped = _pip_download(name, version, work)
        if reason:
            link = choose(skipped, name, version)
            if link is None:
                raise TreeError(f"cannot fetch {spec}: {reason}")
            _download(spec, link, work)
        with using(cache):
            files = sorted(work.iterdir())
            if len(files) != 1:
                raise TreeError(
                    f"cannot fetch {spec}: pip left {len(files)} files where one was asked for; give the file itself"
                )
            digest = file_sha256(files[0], cache)
            record = json.dumps({"file": files[0].name, "sha256": digest}) + "\n"
            write_atomic(work / RECORD, record.encode())
            try:
                work.rename(folder)
            except OSError:
                # Another process was faster; its download is as good.
                if not (folder / RECORD).is_file():
                    raise
        fetched = _recorded(folder)
        assert fetched is not None
        return fetched
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _pip_download(name: str, version: str, into: Path) -> tuple[str, list[str]]:
    """Let pip fetch a wheel. Returns pip's reason when it did not, and the links that it passed over."""
    # -P: no package of the current folder may stand in for pip or for what it imports.
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "-vv",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
    ]
    command += ["--disable-pip-version-check", "--no-color", "--dest", os.fspath(into), f"{name}=={version}"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUTF8": "1"}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode == 0:
        return "", []
    if "No module named pip" in done.stderr:
        return "this Python has no pip; run: python -m ensurepip", []
    errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    said = [line.removeprefix("ERROR: ") for line in errors if line.startswith("ERROR:")]
    reason = (said or errors[-1:] or [f"pip ended with code {done.returncode}"])[0]
    connection = [line for line in done.stdout.splitlines() + errors if "Retrying (" in line]
    if connection:
        reason = f"{reason} (the package index did not answer; see pip config list)"
    return reason, _SKIPPED.findall(done.stdout)


def choose(urls: list[str], name: str, version: str) -> Link | None:
    """The file to read out of those that pip passed over: a wheel if there is one, else a source archive."""
    links = [link for link in map(_parse_link, urls) if _is_release(link.file, name, version)]
    links.sort(key=lambda link: (not link.file.endswith(".whl"), link.file))
    return links[0] if links else None


def _parse_link(url: str) -> Link:
    parts = urllib.parse.urlsplit(url)
    algorithm, _, digest = parts.fragment.partition("&")[0].partition("=")
    file = urllib.parse.unquote(parts.path.rsplit("/", 1)[-1])
    plain = urllib.parse.urlunsplit(parts._replace(fragment=""))
    known = algorithm in hashlib.algorithms_guaranteed
    return Link(plain, file, algorithm if known else "", digest if known else "")


def _is_release(file: str, name: str, version: str) -> bool:
    """Whether a file is of the release: `NAME-VERSION-TAGS.whl`, `NAME-VERSION.tar.gz` or `.zip`."""
    stem = next((file[: -len(end)] for end in (".whl", ".tar.gz", ".zip") if file.endswith(end)), None)
    if stem is None:
        return False
    if file.endswith(".whl"):
        stem = "-".join(stem.split("-")[:2])
    title, _, number = stem.rpartition("-")
    return re.sub(r"[-_.]+", "-", title).lower() == name and number.lower() == version.lower().replace("-", "_")


def _download(spec: str, link: Link, into: Path) -> None:
    # Here, because these two are slow to import and seldom needed.
    import http.client
    import urllib.request

    target = into / link.file
    try:
        with urllib.request.urlopen(link.url) as answer, target.open("wb") as stream:
            shutil.copyfileobj(answer, stream, 2**20)
            length = answer.headers.get("Content-Length")
        damaged = length is not None and int(length) != target.stat().st_size
        if link.digest:
            with target.open("rb") as stream:
                damaged |= hashlib.file_digest(stream, link.algorithm).hexdigest() != link.digest
    except (OSError, http.client.HTTPException) as error:
        # A URLError says why in `reason`, an OSError in `strerror`.
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise TreeError(f"cannot fetch {spec}: {link.file}: {reason}") from error
    if damaged:
        raise TreeError(f"cannot fetch {spec}: {link.file} arrived damaged; try again")
