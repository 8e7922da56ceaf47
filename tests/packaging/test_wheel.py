"""The wheel, installed in a clean environment and used from another folder than the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

import difftest

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "difftest": "difftest",
    "cases": "difftest/cases",
    "oracles": "difftest/oracles",
    "reports": "difftest/reports",
}
"""Where each folder of the checkout is in the wheel."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, in an environment that says nothing of the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def build(source: Path, folder: Path) -> Path:
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def content(wheel: Path) -> set[str]:
    """Paths in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}


def in_git() -> set[str]:
    """Where the checkout's files must be in the wheel; what git ignores is left out."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *FOLDERS)
    listed = run(*command, cwd=CHECKOUT).stdout.split("\0")
    paths = (path.partition("/") for path in listed if path and (CHECKOUT / path).is_file())
    return {f"{FOLDERS[folder]}/{rest}" for folder, _, rest in paths}


class Installed(NamedTuple):
    """A virtual environment with the wheel in it.

    Attributes:
        commands: folder of its programs.
        library: folder that the wheel was unpacked to.
        elsewhere: a folder outside of the checkout to work in.
    """

    commands: Path
    library: Path
    elsewhere: Path

    def python(self, code: str) -> str:
        return run(self.commands / "python", "-W", "error", "-c", code, cwd=self.elsewhere).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CHECKOUT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The environment sees the dependencies of the one that runs the tests, but not its checkout: `.pth` files of a
    folder that was itself added by a `.pth` file are not read.
    """
    home = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(home, symlinks=True)
    paths = sysconfig.get_paths(scheme="venv", vars={"base": str(home), "platbase": str(home)})
    python = Path(paths["scripts"]) / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=home)
    library = Path(paths["purelib"])
    names = {path.name for path in library.iterdir()}
    assert names == {"difftest", f"difftest_sampler-{difftest.__version__}.dist-info"}
    dependencies = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (library / "dependencies.pth").write_text("\n".join(dependencies))
    return Installed(python.parent, library, tmp_path_factory.mktemp("elsewhere"))


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    assert content(wheel) == in_git()
    assert {
        "difftest/schema/run.json",
        "difftest/reports/page.html.jinja",
        "difftest/demo/trees/base/vllm/v1/sample/rejection_sampler.py",
        "difftest/cases/v1_parse_output.py",
        "difftest/oracles/__init__.py",
    } <= content(wheel)


def test_a_wheel_made_from_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path, cwd=CHECKOUT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        assert {"Makefile", "constraints.txt", "LICENSE"} <= {name.split("/", 1)[1] for name in opened.getnames()}
    assert content(build(archive, tmp_path)) == content(wheel)


def test_no_common_name_is_taken(installed: Installed) -> None:
    found = installed.python(
        "import importlib.util, json\n"
        "names = ('cases', 'oracles', 'reports', 'tests')\n"
        "print(json.dumps([name for name in names if importlib.util.find_spec(name)]))"
    )
    assert json.loads(found) == []


def test_its_parts_are_imported_from_where_it_is_installed(installed: Installed) -> None:
    found = installed.python(
        "import json, difftest.cases, difftest.oracles, difftest.reports, difftest.catalog as catalog\n"
        "modules = (difftest, difftest.cases, difftest.oracles, difftest.reports)\n"
        "print(json.dumps([[m.__file__ for m in modules], list(catalog.load_targets(catalog.case_modules()))]))"
    )
    files, targets = json.loads(found)
    assert all(Path(file).is_relative_to(installed.library) for file in files), files
    assert "v1.parse_output" in targets


def test_the_catalog_needs_no_extra(installed: Installed) -> None:
    found = installed.python(
        "import sys\n"
        "for name in ('hypothesis', 'coverage', 'jinja2', 'triton', 'vllm', 'pytest', 'ray'):\n"
        "    sys.modules[name] = None\n"  # importing it fails
        "import difftest.catalog as catalog\n"
        "print(len(catalog.load_targets(catalog.case_modules())))"
    )
    assert int(found) > 100


def test_entry_points_load(installed: Installed) -> None:
    found = installed.python(
        "import importlib.metadata as metadata\n"
        "for point in metadata.distribution('difftest-sampler').entry_points:\n"
        "    point.load()\n"
        "    print(point.group, point.name)"
    )
    assert sorted(found.splitlines()) == [
        "console_scripts difftest",
        "pytest11 difftest",
        "vllm.general_plugins difftest",
    ]


def test_version_and_help(installed: Installed) -> None:
    command = installed.commands / "difftest"
    version = run(command, "--version", cwd=installed.elsewhere).stdout
    assert version == f"difftest, version {difftest.__version__}\n"
    assert (
        version.split()[-1]
        == installed.python("from importlib.metadata import version as v; print(v('difftest-sampler'))").strip()
    )
    assert "Exit codes" in run(command, "--help", cwd=installed.elsewhere).stdout


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("run", "--help"), ("targets", "--help")])
def test_help_imports_nothing_heavy(installed: Installed, arguments: tuple[str, ...]) -> None:
    found = installed.python(
        "import contextlib, io, json, sys\n"
        "from difftest.cli import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    cli.main({list(arguments)!r}, standalone_mode=False)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    loaded = set(json.loads(found))
    assert "click" in loaded
    assert not loaded & {"torch", "triton", "numpy", "rich", "safetensors", "hypothesis", "jinja2"}


def test_demo_from_any_folder(installed: Installed, tmp_path: Path) -> None:
    done = run("env", f"DIFFTEST_CACHE={tmp_path}", installed.commands / "difftest", "demo", cwd=installed.elsewhere)
    assert "Each of the four got the verdict that it should." in done.stdout
    assert not list(installed.elsewhere.iterdir())
