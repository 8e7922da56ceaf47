"""Reports reach their file whole or not at all, and a bad request is one line before the run starts."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from report_results import RESULTS, hostile

from difftest.errors import UsageError
from difftest.reports import FORMATS, check_writable, write
from difftest.reports.json import load

RESULT = RESULTS["different"]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_written_and_nothing_is_left_beside_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "report"
    check_writable(kind, path)
    assert list(tmp_path.iterdir()) == []
    for result in (RESULT, hostile()):
        write(result, kind, path)
        assert path.stat().st_size > 500
    assert list(tmp_path.iterdir()) == [path]


def test_the_formats_are_those_of_the_command_line() -> None:
    assert set(FORMATS) == {"json", "markdown", "html", "junit", "github"}


@pytest.mark.parametrize("call", [lambda path: write(RESULT, "xml", path), lambda path: check_writable("xml", path)])
def test_an_unknown_format_names_the_known_ones(call: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'xml'; known are json, markdown, html, junit, github"):
        call(tmp_path / "x")


def bad_paths(folder: Path) -> dict[str, tuple[Path, str]]:
    (folder / "file").touch()
    return {
        "folder": (folder, "it is a folder"),
        "missing": (folder / "none" / "report.json", "its folder does not exist"),
        "below a file": (folder / "file" / "report.json", "its folder does not exist"),
        "too long": (folder / ("x" * 300), "File name too long"),
    }


@pytest.mark.parametrize("name", ["folder", "missing", "below a file", "too long"])
def test_a_path_that_cannot_be_written_is_one_line(name: str, tmp_path: Path) -> None:
    path, message = bad_paths(tmp_path)[name]
    before = sorted(tmp_path.iterdir())
    for call in (lambda: check_writable("json", path), lambda: write(RESULT, "json", path)):
        with pytest.raises(UsageError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        check_writable("json", tmp_path / "report")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("before")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write(RESULT, "json", path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "report.json", tmp_path / "link.json"
    path.touch()
    path.chmod(0o640)
    link.symlink_to(path)
    write(RESULT, "json", link)
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert load(path.read_text()) == RESULT


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
@pytest.mark.parametrize("where", ["pipe", "file"])
def test_dev_stdout_is_written_to_and_not_replaced(where: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from report_results import RESULTS\n"
        "from difftest.reports import write, check_writable\n"
        "print('before', flush=True); check_writable('github', '/dev/stdout')\n"
        "write(RESULTS['different'], 'github', '/dev/stdout')"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    out = tmp_path / "out"
    if where == "pipe":
        text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    else:
        with out.open("w") as stream:
            subprocess.run(command, stdout=stream, check=True)
        text = out.read_text()
    assert text.startswith("before\n::error ") and text.endswith(".\n")
