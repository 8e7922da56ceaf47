"""The catalog: every target that the case files declare.

Case files need torch; the supervisor must not. It reads the catalog's outline (names, symbols, what is used), which a
short-lived process writes once for each state of the case files.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import difftest
from difftest.errors import DifftestError, UsageError
from difftest.made import made_symbols
from difftest.processes import python_command
from difftest.target import Target

_TARGETS = re.compile(r"^TARGETS\b", re.MULTILINE)


@dataclass(frozen=True)
class Outline:
    """What the supervisor knows of a target; fields as in :class:`difftest.target.Target`.

    Attributes:
        signature: of a function that no case file knows, what its cases are made from, as JSON.
        refusal: why no case can be made from it.
    """

    name: str
    symbols: tuple[str, ...]
    uses: tuple[str, ...]
    needs: tuple[str, ...]
    triton: bool
    rows: tuple[str, ...]
    timeout: float
    module: str
    has_shapes: bool
    signature: str = ""
    refusal: str = ""

    @property
    def recorded(self) -> bool:
        """Whether its cases are recorded calls."""
        return self.name != _plain(self.name)

    @property
    def package(self) -> str:
        """Top-level package of the code it observes."""
        return self.symbols[0].partition(".")[0].partition(":")[0]


def case_folder() -> Path:
    """Where the case files are, in a checkout and in an installed package."""
    for place in map(Path, difftest.__path__):
        if (place / "cases" / "__init__.py").is_file():
            return place / "cases"
    raise DifftestError("the case files are missing from this installation of difftest; install it again")


def case_modules() -> list[str]:
    """Import names of the case files that declare targets, sorted. What they share is imported by those that use it:
    the strategies of a fuzz need Hypothesis, which nothing else does."""
    files = (path for path in case_folder().glob("*.py") if _TARGETS.search(path.read_text()))
    return sorted(f"difftest.cases.{path.stem}" for path in files)


def load_targets(modules: Iterable[str]) -> dict[str, Target]:
    """Targets by name out of case files, given by import name or as a path to a `.py` file. Imports torch.

    Raises:
        UsageError: a file cannot be imported, declares no TARGETS, or two targets share a name.
    """
    found: dict[str, Target] = {}
    for name in modules:
        targets = getattr(_import(name), "TARGETS", ())
        for target in targets:
            if target.name in found:
                raise UsageError(f"two targets are named {target.name}; rename the one in {name}")
            found[target.name] = target
    return found


def _import(name: str) -> object:
    path = Path(name)
    if not name.endswith(".py") and not path.is_absolute():
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"difftest_user_cases_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"no case file {name}; give --cases-from a Python file (.py) that is there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"case file {name} cannot be imported: {type(error).__name__}: {error}; mend it") from None
    if not getattr(module, "TARGETS", None):
        raise UsageError(f"case file {name} declares no TARGETS; add TARGETS = (Target(...),)")
    return module


def outline(cache: Path, extra: Sequence[str] = ()) -> list[Outline]:
    """The targets of the package's case files and of extra ones, without importing torch.

    Args:
        cache: folder in which the outline is kept between runs.
        extra: further case files (`--cases-from`).
    """
    modules = case_modules()
    digest = hashlib.sha256(difftest.__version__.encode())
    own = (Path(__file__), Path(__file__).with_name("made.py"))
    for path in [*sorted(case_folder().glob("*.py")), *own, *map(Path, extra)]:
        try:
            digest.update(f"{path}\n".encode() + path.read_bytes())  # the outline names the file
        except OSError as error:
            raise UsageError(f"case file {path} cannot be read: {error.strerror}; name one that can be") from None
    kept = cache / "catalog" / f"{digest.hexdigest()[:32]}.json"
    try:
        return [_outline_from(item) for item in json.loads(kept.read_text())]
    except (OSError, ValueError, TypeError, KeyError):
        pass
    command = python_command("difftest.catalog", *modules, *map(str, extra))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(last.removeprefix("error: "))
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f"{kept.name}.{id(done)}.part")
        partial.write_text(done.stdout)
        partial.replace(kept)
    except OSError:
        pass  # the outline is only slower to get next time
    return [_outline_from(item) for item in json.loads(done.stdout)]


def _outline_from(item: dict[str, object]) -> Outline:
    return Outline(**{k: tuple(v) if isinstance(v, list) else v for k, v in item.items()})  # type: ignore[arg-type]


def direct_matches(outlines: Sequence[Outline], pattern: str) -> list[Outline]:
    """Targets that a `--target` value names: by name, glob or symbol, or by the class whose method their symbol is."""
    if ":" in pattern and not any(c in pattern for c in "*?["):
        return [
            o
            for o in outlines
            if o.name == pattern or any(s == pattern or s.startswith(pattern + ".") for s in o.symbols)
        ]
    exact = [o for o in outlines if _plain(o.name) == pattern or o.name == pattern]
    return exact or [
        o
        for o in outlines
        if fnmatch.fnmatchcase(o.name, pattern)
        or fnmatch.fnmatchcase(_plain(o.name), pattern)
        or any(fnmatch.fnmatchcase(s, pattern) for s in o.symbols)
    ]


def _plain(name: str) -> str:
    """A target of recorded calls goes by the name of what was recorded, too."""
    return name.removeprefix("recorded.")


def main(modules: Sequence[str]) -> int:
    """Print the outline of some case files as JSON."""
    items = []
    try:
        for module in modules:
            for target in load_targets([module]).values():
                items.append(
                    dataclasses.asdict(
                        Outline(
                            target.name,
                            target.symbols,
                            tuple(dict.fromkeys((*target.uses, *made_symbols(target)))),
                            target.needs,
                            target.triton,
                            target.rows,
                            target.timeout,
                            module,
                            target.shapes is not None,
                        )
                    )
                )
    except DifftestError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(items))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
