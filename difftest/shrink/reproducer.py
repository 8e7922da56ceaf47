"""The folder of a reduced case: `original.safetensors`, `case.safetensors` and `reproduce.py`. No torch."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from difftest.errors import UsageError
from difftest.record.casefile import read_case
from difftest.result import Identity
from difftest.trees.cache import write_atomic

CASE, ORIGINAL, SCRIPT = "case.safetensors", "original.safetensors", "reproduce.py"

_TEMPLATE = '''"""{title}

Found by difftest {version}. Needs that package (difftest-sampler) and torch, and triton where a kernel is Triton's.
Exit code: 1 while the versions differ, 0 when they do not, 2 when this cannot be told, 3 when nothing was compared.

    python reproduce.py [--repo DIR] [--base TREE] [--head TREE]
"""

import argparse
import hashlib
import sys
from pathlib import Path

from difftest import api
from difftest.errors import DifftestError
from difftest.record.casefile import read_case

TARGET = {target!r}
KIND, LEAF = {kind!r}, {leaf!r}
CASE = {case!r}  # hash of the case's content
CASE_FILE_SHA256 = {case_sha256!r}
BASE = {base!r}  # tree, and what it was
HEAD = {head!r}
CODE = {code!r}  # digests of what the target reaches
OPTIONS = {options!r}
VERSIONS = {versions!r}


def hexadecimal(text):
    try:
        return f"{{text}} ({{int(text):#x}})"
    except ValueError:
        pass
    try:
        return f"{{text}} ({{float(text).hex()}})"
    except ValueError:
        return text


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repo", type=Path, default={repo!r}, help="git repository of the revisions")
    arguments.add_argument("--base", default=BASE[0])
    arguments.add_argument("--head", default=HEAD[0])
    given = arguments.parse_args()
    file = Path(__file__).resolve().with_name({file!r})
    if hashlib.sha256(file.read_bytes()).hexdigest() != CASE_FILE_SHA256 or read_case(file).id != CASE:
        print(f"{{file.name}} is not the case that this script was written for: its hash is another one")
        return 2
    request = api.RunOptions(
        base=given.base,
        heads=(given.head,),
        repo=Path(given.repo) if given.repo else None,
        targets=(TARGET,),
        case=str(file),
        execute_same=True,
        jobs=1,
        cases_from=tuple(map(Path, OPTIONS["cases_from"])),
        **{{name: OPTIONS[name] for name in ("device", "host", "exceptions", "seed")}},
    )
    result = api.run(request)
    (target,) = result.targets
    for arm, identity, pinned in (("base", result.base, BASE), ("head", result.heads[0], HEAD)):
        print(f"{{arm}}: {{', '.join(dict.fromkeys((identity.spec, identity.resolved)))}}")
        if identity.resolved != pinned[1]:
            print(f"  NOT the version that this was found on, which is {{pinned[1]}}")
        if target.closure.get(arm, {{}}).get("digest") != CODE[arm]:
            print("  the code that the target reaches is not the same as then")
    for name, version in VERSIONS.items():
        if result.environment.get(name) != version:
            print(f"{{name}} is {{result.environment.get(name)}} here; it was {{version}}")
    print(f"{{TARGET}}, case {{CASE}}: {{target.verdict}}{{target.reason and '; ' + target.reason}}")
    shown = sorted(target.mismatches, key=lambda m: (m.kind, m.leaf) != (KIND, LEAF))
    for number, mismatch in enumerate(shown):
        index = str(list(mismatch.index)) if mismatch.index else ""
        print(f"{{mismatch.kind}} at {{mismatch.leaf}}{{index}}")
        print(f"  base {{hexadecimal(mismatch.base)}}")
        print(f"  head {{hexadecimal(mismatch.head)}}")
        for line in mismatch.detail if number == 0 else ():
            print(f"  {{line}}")
    return result.exit_code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DifftestError, OSError) as error:
        print(f"reproduce.py: {{error}}", file=sys.stderr)
        sys.exit(2)
'''


def pin(identity: Identity) -> tuple[str, str]:
    """A tree as it can be opened again, and its full identity."""
    if identity.kind == "git":
        return identity.resolved, identity.resolved
    path = Path(identity.spec)
    named = identity.spec != "WORKTREE" and identity.kind != "pypi" and path.exists()
    return str(path.resolve()) if named else identity.spec, identity.resolved


def script(
    record: Mapping[str, Any], target: str, base: Identity, head: Identity, code: Mapping[str, str],
    options: Mapping[str, Any], environment: Mapping[str, Any], repo: Path | None, case_sha256: str,
) -> str:  # fmt: skip
    """The reproducer's text.

    Args:
        record: what the reduction reports; `case` and `mismatch`.
        code: digest of the target's closure, by arm.
        options: `device`, `host`, `exceptions`, `seed`, `cases_from`.
        environment: of the run; versions are pinned.
    """
    mismatch = record["mismatch"]
    return _TEMPLATE.format(
        title=f"{target}: {mismatch['kind']} at {_one_line(mismatch['leaf'])}",
        version=environment.get("difftest", ""),
        target=target,
        kind=mismatch["kind"],
        leaf=mismatch["leaf"],
        case=record["case"],
        case_sha256=case_sha256,
        base=pin(base),
        head=pin(head),
        code=dict(code),
        options=json.loads(json.dumps(options, default=str)),
        versions={name: environment[name] for name in ("torch", "triton", "numpy") if name in environment},
        repo=str(repo.resolve()) if repo is not None else "",
        file=CASE,
    )


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "\\\"'" else " " for c in text)[:100]


def write_folder(folder: Path, made: Path, text: Mapping[str, Any]) -> None:
    """Write a reproducer's folder.

    Args:
        folder: it; made when it is not there.
        made: where the child left `original.safetensors` and `reduced.safetensors`; read and checked here.
        text: what :func:`script` takes but for the hash.

    Raises:
        UsageError: it cannot be written.
        CaptureError: what the child left is no case file.
    """
    for name in ("original.safetensors", "reduced.safetensors"):
        read_case(made / name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made / "original.safetensors", folder / ORIGINAL)
        shutil.copyfile(made / "reduced.safetensors", folder / CASE)
        digest = hashlib.sha256((folder / CASE).read_bytes()).hexdigest()
        write_atomic(folder / SCRIPT, script(**text, case_sha256=digest).encode())
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}; name another --out") from None
