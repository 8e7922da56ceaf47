"""Starting further Python processes that can import this difftest, wherever it is installed or checked out."""

from __future__ import annotations

import sys
from pathlib import Path

import difftest

_START = (
    "import runpy, sys; sys.path.append({root!r}); runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of difftest as a program, in any working folder and environment.

    The folder that holds the package is put last on the path, so it hides nothing.
    """
    root = str(Path(difftest.__file__).resolve().parent.parent)
    return [sys.executable, "-c", _START.format(root=root, module=module), *arguments]
