"""The machine-readable form of a result, and the way back. Its schema is `difftest/schema/run.json`."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from difftest.errors import DifftestError
from difftest.result import SCHEMA, RunResult


def render(result: RunResult) -> str:
    """The result as JSON text: ASCII, fields in the order of the schema.

    JSON has no NaN and no infinity. In the open maps (environment, closure) they become the words `NaN`,
    `Infinity` and `-Infinity`.

    Raises:
        DifftestError: a number that must be finite is not, or a value has no JSON form.
    """
    data = result.to_json()
    data["environment"] = _finite(data["environment"])
    for target in data["targets"]:
        target["closure"] = _finite(target["closure"])
    try:
        return json.dumps(data, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise DifftestError(f"the result has no JSON form: {error}") from error


def load(text: str) -> RunResult:
    """The result that :func:`render` wrote.

    Raises:
        DifftestError: the text is not JSON or not a `difftest.run/1` document; the message names the field.
    """
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise DifftestError(f"not a JSON document: {error}; give a file that --format json wrote") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise DifftestError(
            f"not a result that this version reads: schema is {found!r}, needed is {SCHEMA!r}; write it anew with it"
        )
    result = _build(RunResult, data, "result")
    assert isinstance(result, RunResult)
    return result


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        found[key] = value
    return found


def _build(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type `hint`; `where` names the field in errors."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        names = [f.name for f in fields(hint)]
        found = _expect(dict, value, where)
        for name in [*found, *names]:
            if name not in found or name not in hints:
                raise DifftestError(
                    f"{where}: {'missing' if name in hints else 'unknown'} field {name!r}; write it anew"
                )
        return hint(**{name: _build(hints[name], found[name], f"{where}.{name}") for name in names})
    if origin in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        if value is None and len(choices) < len(get_args(hint)):
            return None
        if len(choices) == 1:
            return _build(choices[0], value, where)
        for choice in choices:
            if isinstance(value, choice):
                return value
        raise DifftestError(f"{where}: {value!r} is not of a type it can have; write it anew")
    if origin is tuple:
        item = get_args(hint)[0]
        return tuple(_build(item, v, f"{where}[{n}]") for n, v in enumerate(_expect(list, value, where)))
    if origin is Mapping:
        item = get_args(hint)[1]
        return {key: _build(item, v, f"{where}.{key}") for key, v in _expect(dict, value, where).items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return value
    return _expect(hint, value, where)


def _expect(wanted: type, value: Any, where: str) -> Any:
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise DifftestError(f"{where}: {type(value).__name__} where {wanted.__name__} is needed; write it anew")
    return value
