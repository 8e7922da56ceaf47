"""The manifest of expected differences (`--expect FILE`): what a change is meant to do, written down. No torch.

A TOML file of entries:

    [[expect]]
    target = "v1.rejection_sample"        # name or glob
    leaf = "return*"                      # optional glob over the place: `return[0]`, `logits`, `rng.torch`
    kind = ["value", "structure"]         # optional: kinds of mismatch
    case = "*-1 draft*"                   # optional glob over the case's label, or its id
    contract = false                      # optional: only cases inside (true) or outside (false) the contract
    reason = "placeholders are rejected instead of read as the last id (#46533)"
    expires = "v0.33.0"                   # optional: fails once head contains this revision

A case is `expected` when every one of its mismatches is matched by some entry; one that no entry matches keeps the
case `different`. An entry that matched nothing, or has expired, fails the run: it says something that is not so.
"""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from difftest.errors import UsageError
from difftest.result import UNUSED_ENTRY, Kind, RunResult, TargetResult


@dataclass(frozen=True)
class Expectation:
    """One entry of a manifest; see the module's docstring."""

    target: str
    reason: str
    leaf: str = "*"
    kind: tuple[str, ...] = ()
    case: str = "*"
    contract: bool | None = None
    expires: str | None = None

    def covers_target(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.target)

    def matches(self, label: str, identity: str, contract: bool, kind: str, leaf: str) -> bool:
        """Whether the entry expects this mismatch of a target that it covers."""
        return (
            (not self.kind or kind in self.kind)
            and _glob(leaf, self.leaf)
            and (_glob(label, self.case) or identity == self.case)
            and (self.contract is None or self.contract is contract)
        )

    def words(self) -> str:
        """The entry in a line, for messages."""
        parts = [self.target]
        parts += [f"{name} {value}" for name, value in (("leaf", self.leaf), ("case", self.case)) if value != "*"]
        parts += [f"kind {', '.join(self.kind)}"] if self.kind else []
        return ", ".join(parts)


def _glob(text: str, pattern: str) -> bool:
    """Like fnmatch, but brackets stand for themselves: places are written `return[0]`."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


_FIELDS: Mapping[str, type] = {
    "target": str,
    "reason": str,
    "leaf": str,
    "case": str,
    "contract": bool,
    "expires": str,
}


def load(path: Path) -> tuple[Expectation, ...]:
    """Read a manifest.

    Raises:
        UsageError: it cannot be read, is not TOML, or an entry is malformed; the line names the entry.
    """
    return _parse(read(path, "--expect"), f"--expect {path}")


def read(path: Path, option: str) -> str:
    """The text of a manifest.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{option} {path} cannot be read: {getattr(error, 'strerror', None) or error}; name a TOML file"
        ) from None


def check_draft(path: Path) -> str:
    """What `--write-expect` finds at its path, before the run; empty when there is no such file.

    Raises:
        UsageError: there is something else than a manifest.
    """
    if not path.exists():
        return ""
    text = read(path, "--write-expect")
    _parse(text, f"--write-expect {path}", drafts=True)
    try:
        tomllib.loads(f"{text}\n[[expect]]\n")
    except tomllib.TOMLDecodeError:
        raise UsageError(
            f"--write-expect {path}: nothing can be added to an array in brackets; write each entry as [[expect]]"
        ) from None
    return text


def _parse(text: str, where: str, drafts: bool = False) -> tuple[Expectation, ...]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is not TOML: {error}; mend it there") from None
    unknown = [name for name in data if name != "expect"]
    if unknown or not isinstance(data.get("expect", []), list):
        raise UsageError(
            f"{where}: only [[expect]] entries are allowed, not {', '.join(unknown) or 'a table'}; take it out"
        )
    entries = tuple(_entry(item, f"{where}, entry {n}") for n, item in enumerate(data.get("expect", []), 1))
    if not drafts and (lacking := [str(n) for n, entry in enumerate(entries, 1) if not entry.reason.strip()]):
        if len(lacking) == 1:
            raise UsageError(f"{where}, entry {lacking[0]} has no reason; add one")
        raise UsageError(f"{where}, entries {', '.join(lacking)} have no reason; add one to each")
    return entries


def _entry(item: Any, where: str) -> Expectation:
    if not isinstance(item, dict):
        raise UsageError(f"{where} is not a table; write [[expect]]")
    kinds = item.get("kind", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    known = [str(kind) for kind in Kind]
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        raise UsageError(f"{where}: kind {kinds} is none of {', '.join(known)}")
    for name, value in item.items():
        if name != "kind" and name not in _FIELDS:
            raise UsageError(f"{where}: unknown field {name}; fields: kind, {', '.join(_FIELDS)}")
        if name in _FIELDS and type(value) is not _FIELDS[name]:
            raise UsageError(f"{where}: {name} must be a {_FIELDS[name].__name__}, not {value!r}")
    if not item.get("target", "").strip():
        raise UsageError(f"{where} has no target; add one")
    return Expectation(**{"reason": "", **item, "kind": tuple(kinds)})


def unused(entries: Sequence[Expectation], used: set[int], targets: Sequence[TargetResult]) -> list[Expectation]:
    """Entries that matched nothing although all cases of a target that they cover were executed, those on their side of
    the contract at least."""
    return [
        entry
        for number, entry in enumerate(entries)
        if number not in used and any(_is_tried(entry, target) for target in targets)
    ]


def _is_tried(entry: Expectation, target: TargetResult) -> bool:
    """Whether a target has run what an entry is about, and no limit left out cases that may show it."""
    outside = target.outside_executed
    of = {None: target.cases.executed, True: target.cases.executed - outside, False: outside}
    return entry.covers_target(target.name) and bool(of[entry.contract]) and not target.cut


class Draft(NamedTuple):
    """A manifest to be written.

    Attributes:
        text: the whole file: what it held, untouched, and the new entries.
        added: how many entries are new.
        kept: how many there were.
        stale: those of them that match nothing of what this run shows, though a target that they cover was run.
    """

    text: str
    added: int
    kept: int
    stale: tuple[str, ...]


def draft(result: RunResult, before: str = "", where: str = "the manifest") -> Draft:
    """A manifest that expects what a run found, to be narrowed and given reasons by its author.

    Args:
        before: the manifest as it is; nothing of it is changed, and what it covers is not drafted again.
        where: its name, for errors.

    Raises:
        UsageError: `before` is no manifest. Entries without a reason are fine: a draft has them.
    """
    entries = _parse(before, where, drafts=True)
    found = drafted(result)
    touching = {number for number, entry in enumerate(entries) for item in found if _touches(entry, item)}
    new = [item for item in found if not any(_covers(entry, item) for entry in entries)]
    parts = [before.rstrip("\n")] if before.strip() else []
    if not entries:
        parts += ["# Drafted from a run. Say why in each reason, narrow `case`, and delete what is not meant."]
    parts += ["\n".join(_lines(item)) for item in new]
    # What a run with --expect has matched is not among what it found different.
    said = {note.partition(": ")[2] for note in result.notes if note.startswith(UNUSED_ENTRY)}
    expected = any(target.cases.expected for target in result.targets)
    stale = [
        entry
        for entry in unused(entries, touching, result.targets)
        if not expected or any(text.startswith(f"{entry.words()} (") for text in said)
    ]
    return Draft("\n\n".join(parts) + "\n", len(new), len(entries), tuple(entry.words() for entry in stale))


def _lines(item: Drafted) -> list[str]:
    return [
        "[[expect]]",
        f"target = {_quoted(item.target)}",
        f"leaf = {_quoted(item.place)}",
        f"kind = {_quoted(item.kind)}",
        *([f"contract = {str(item.contract).lower()}"] if item.contract is not None else []),
        f'reason = ""  # {item.said}',
    ]


def _touches(entry: Expectation, item: Drafted) -> bool:
    """Whether an entry may expect some of what a drafted one would."""
    return (
        entry.covers_target(item.target)
        and (not entry.kind or item.kind in entry.kind)
        and _glob(item.place, entry.leaf)
        and (entry.contract is None or item.contract is None or entry.contract is item.contract)
    )


def _covers(entry: Expectation, item: Drafted) -> bool:
    """Whether an entry expects all that a drafted one would, as far as the mismatches shown tell."""
    return (
        _touches(entry, item)
        and (entry.contract is None or entry.contract is item.contract)
        and (entry.case == "*" or bool(item.cases))
        and all(_glob(label, entry.case) or identity == entry.case for label, identity in item.cases)
    )


class Drafted(NamedTuple):
    """One way to differ that a run found.

    Attributes:
        contract: whether all its cases are inside the contract, or all outside; None when some are.
        said: in which cases it was found, in words.
        cases: label and id of those that are shown.
    """

    target: str
    place: str
    kind: str
    contract: bool | None
    said: str
    cases: tuple[tuple[str, str], ...] = ()


def drafted(result: RunResult) -> list[Drafted]:
    """What a draft expects; of each target what the most cases have comes first."""
    words: dict[tuple[str, str, str], list[str]] = {}
    sides: dict[tuple[str, str, str], set[bool]] = {}
    cases: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for target in result.targets:
        for group in target.groups:
            where = f" with {group.condition}" if group.condition else ""
            found = {True} if group.outside_contract < group.cases else set()
            found |= {False} if group.outside_contract else set()
            for way in group.ways:
                key = (target.name, way.place, way.kind)
                words.setdefault(key, []).append(f"{way.cases} case{'s' * (way.cases != 1)}{where}")
                sides.setdefault(key, set()).update(found)
        for item in target.mismatches:
            key = (target.name, item.place or item.leaf, item.kind)
            words.setdefault(key, [])
            sides.setdefault(key, set()).add(item.contract)
            cases.setdefault(key, []).append((item.label, item.case))
    return [
        Drafted(
            *key,
            contract=next(iter(sides[key])) if len(sides[key]) == 1 else None,
            said=" ".join("; ".join(said).split()),
            cases=tuple(cases.get(key, ())),
        )
        for key, said in words.items()
    ]


def _quoted(text: str) -> str:
    """`text` as a TOML string: as in JSON, which escapes what TOML does, except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
