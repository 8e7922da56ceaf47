"""What the host decided in a captured engine: whether Triton can be used, which platform it is. No torch.

A lifted arm has stand-ins that answer these questions by assumption. A capture holds the engine's own answers, and a
replay gives them to the stand-ins, so that the path that was recorded is the path that is replayed. A fact goes by
`module:name`, as the package under test has it; captures made before have no facts, and their replay assumes as before.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_]{1,40}")


@dataclass(frozen=True)
class Fact:
    """Something that a package decides by its host.

    Attributes:
        read: asks the package's own module for it.
        holds: whether a value is one that it can have.
        words: what it can be, in words.
    """

    read: Callable[[Any], Any]
    holds: Callable[[Any], bool]
    words: str


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 20


def _is_name(value: Any) -> bool:
    return type(value) is str and _NAME.fullmatch(value) is not None


DEVICE_TYPE = "vllm.platforms:device_type"

FACTS: Mapping[str, Fact] = {
    "vllm.triton_utils:HAS_TRITON": Fact(lambda module: module.HAS_TRITON, _is_bool, "true or false"),
    DEVICE_TYPE: Fact(lambda module: module.current_platform.device_type, _is_name, "a name"),
    "vllm.platforms:get_cpu_architecture": Fact(
        lambda module: module.current_platform.get_cpu_architecture().name, _is_name, "a name"
    ),
    "vllm.platforms:num_compute_units": Fact(
        lambda module: module.current_platform.num_compute_units(), _is_count, "a count"
    ),
    "vllm.utils.platform_utils:is_uva_available": Fact(
        lambda module: module.is_uva_available(), _is_bool, "true or false"
    ),
}  # fmt: skip


def host_facts(modules: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The facts of this process, of the modules that it has imported; what cannot be told is left out.

    Args:
        modules: by name; those of the process when None.
    """
    there = sys.modules if modules is None else modules
    found = {}
    for name, fact in FACTS.items():
        module = there.get(name.partition(":")[0])
        if module is not None:
            with contextlib.suppress(Exception):
                if fact.holds(value := fact.read(module)):
                    found[name] = value
    return found


def fault_of(facts: Any) -> str:
    """What is wrong with facts as a file has them, in words; empty when nothing is."""
    if not isinstance(facts, dict):
        return "the facts of the host are no object"
    for name, value in facts.items():
        if name not in FACTS:
            return f"{str(name)[:80]!r} is no fact of the host that this difftest knows"
        if not FACTS[name].holds(value):
            return f"{name} is {str(value)[:40]!r}, not {FACTS[name].words}"
    return ""


def facts_for(facts: Mapping[str, Any], recorded_on: str, device: str) -> dict[str, Any]:
    """The facts that a replay takes: all of them on the device that was recorded, none on another.

    Args:
        facts: of a capture or a case file.
        recorded_on: the device that the recording names, `cpu` or a model's name.
        device: of the replay, `cpu` or `cuda`.
    """
    same = (recorded_on == "cpu") == (device == "cpu") and facts.get(DEVICE_TYPE, device) == device
    return dict(facts) if same else {}
