"""The parts of the standard library that find things by a module's name, as an arm's code sees them.

`importlib.import_module("pkg.x")`, `importlib.resources.files("pkg")` and `pkgutil.get_data("pkg", "x.json")` in code
of the tree mean the arm's own modules and the files beside them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.resources
import importlib.util
import pkgutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FolderOf = Callable[[Any], Path | None]
"""A module, or its name -> the folder of the package in this arm; None when the tree has no such package."""


def hosted_modules(import_module: Callable[..., Any], folder_of: FolderOf) -> dict[str, types.ModuleType]:
    """The arm's own `importlib`, `importlib.resources` and `pkgutil`.

    Args:
        import_module: what takes the place of `importlib.import_module`.
    """
    resources = _copy(importlib.resources, **_resource_functions(folder_of))
    util = importlib.util
    own = _copy(importlib, import_module=import_module, resources=resources, util=util)
    return {
        "importlib": own,
        "importlib.resources": resources,
        "pkgutil": _copy(pkgutil, get_data=_get_data(folder_of)),
    }


def _copy(module: types.ModuleType, **changed: Any) -> types.ModuleType:
    found = types.ModuleType(module.__name__)
    found.__dict__.update({k: v for k, v in vars(module).items() if not k.startswith("__")})
    found.__dict__.update(changed)
    return found


def _get_data(folder_of: FolderOf) -> Callable[[str, str], bytes | None]:
    def get_data(package: str, resource: str) -> bytes | None:
        folder = folder_of(package)
        return pkgutil.get_data(package, resource) if folder is None else (folder / resource).read_bytes()

    return get_data


def _resource_functions(folder_of: FolderOf) -> dict[str, Callable[..., Any]]:
    def files(package: Any) -> Any:
        return folder_of(package) or importlib.resources.files(package)

    def open_binary(package: Any, resource: str) -> Any:
        return (files(package) / resource).open("rb")

    def open_text(package: Any, resource: str, encoding: str = "utf-8", errors: str = "strict") -> Any:
        return (files(package) / resource).open("r", encoding=encoding, errors=errors)

    def read_binary(package: Any, resource: str) -> Any:
        return (files(package) / resource).read_bytes()

    def read_text(package: Any, resource: str, encoding: str = "utf-8", errors: str = "strict") -> Any:
        with open_text(package, resource, encoding, errors) as file:
            return file.read()

    @contextlib.contextmanager
    def path(package: Any, resource: str) -> Iterator[Any]:
        with importlib.resources.as_file(files(package) / resource) as found:
            yield found

    def is_resource(package: Any, name: str) -> bool:
        return bool((files(package) / name).is_file())

    def contents(package: Any) -> list[str]:
        return [item.name for item in files(package).iterdir()]

    named = (files, open_binary, open_text, read_binary, read_text, path, is_resource, contents)
    return {function.__name__: function for function in named}
