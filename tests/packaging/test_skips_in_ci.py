"""A new machine must not be green because it ran less."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = {
    "test_whole_module.py": "import pytest\npytest.importorskip('no_such_module')\n",
    "test_single.py": (
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='needs a CUDA device')\n"
        "def test_lacks_a_device(): pass\n"
        "@pytest.mark.skip(reason='too slow today')\n"
        "def test_marked(): pass\n"
        "def test_inside(): pytest.skip('no time')\n"
        "@pytest.mark.xfail(reason='known', strict=True)\n"
        "def test_known_fault(): assert False\n"
        "def test_runs(): pass\n"
    ),
}


def outcome(folder: Path, ci: str | None, *options: str) -> str:
    """pytest's last line on the suite, the project's conftest beside it."""
    for name, text in SUITE.items():
        (folder / name).write_text(text)
    shutil.copy(Path(__file__).parents[1] / "conftest.py", folder)
    environment = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")}
    environment |= {"CI": ci} if ci else {}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1]


def test_a_skip_passes_at_home(tmp_path: Path) -> None:
    assert outcome(tmp_path, None).startswith("1 passed, 4 skipped, 1 xfailed")


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_skip_fails_in_ci_unless_the_machine_lacks_something(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert outcome(tmp_path, "true", *options).startswith("1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors")
