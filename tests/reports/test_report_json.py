"""The JSON form keeps to its published schema and can be read back."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report_results import DIFFERENT, RESULTS, hostile, large, run

import difftest
from difftest.errors import DifftestError
from difftest.reports.json import load, render
from difftest.result import MISMATCHES_SHOWN, SCHEMA, Kind, RunResult, Verdict

SCHEMA_FILE = Path(difftest.__file__).parent / "schema" / "run.json"
PUBLISHED: dict[str, Any] = json.loads(SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(PUBLISHED)


def test_the_schema_is_itself_valid_and_agrees_with_the_code() -> None:
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["properties"]["schema"]["const"] == SCHEMA
    assert PUBLISHED["$defs"]["verdict"]["enum"] == list(Verdict)
    assert PUBLISHED["$defs"]["kind"]["enum"] == list(Kind)
    assert PUBLISHED["$defs"]["target"]["properties"]["mismatches"]["maxItems"] == MISMATCHES_SHOWN
    assert set(PUBLISHED["properties"]) == {f.name for f in fields(RunResult)}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_valid_and_comes_back_equal(name: str) -> None:
    text = render(RESULTS[name])
    VALIDATOR.validate(json.loads(text))
    assert load(text) == RESULTS[name]


def test_text_that_is_not_plain_survives() -> None:
    text = render(hostile())
    assert text.isascii()
    VALIDATOR.validate(json.loads(text))
    assert load(text) == hostile()


def test_a_large_result_is_valid() -> None:
    VALIDATOR.validate(json.loads(render(large())))


PLACES: dict[str, Callable[[Any], Any]] = {
    "run": lambda d: d,
    "base": lambda d: d["base"],
    "head": lambda d: d["heads"][0],
    "target": lambda d: d["targets"][0],
    "symbol": lambda d: d["targets"][0]["symbol"],
    "cases": lambda d: d["targets"][0]["cases"],
    "mismatch": lambda d: d["targets"][0]["mismatches"][0],
    "aa": lambda d: d["targets"][0]["aa"],
    "kinds": lambda d: d["targets"][0]["kinds"],
}


@pytest.mark.parametrize("place", PLACES)
def test_the_schema_has_no_room_for_what_it_does_not_name(place: str) -> None:
    document = json.loads(render(RESULTS["different"]))
    PLACES[place](document)["surprise"] = 1
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize("place", ["run", "base", "head", "target", "cases", "mismatch"])
def test_load_names_a_field_that_is_unknown_or_missing(place: str) -> None:
    document = json.loads(render(RESULTS["different"]))
    PLACES[place](document)["surprise"] = 1
    with pytest.raises(DifftestError, match="unknown field 'surprise'"):
        load(json.dumps(document))
    del PLACES[place](document)["surprise"]
    name = next(name for name in PLACES[place](document) if name != "schema")
    del PLACES[place](document)[name]
    with pytest.raises(DifftestError, match=f"missing field '{name}'"):
        load(json.dumps(document))
    assert not VALIDATOR.is_valid(document)


def test_an_unmeasured_target_needs_a_reason() -> None:
    document = json.loads(render(RESULTS["unmeasured"]))
    document["targets"][0]["reason"] = ""
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        ("[]", "schema is None"),
        ('{"schema": "difftest.run/2"}', "'difftest.run/2'"),
        ('{"schema": "difftest.run/1", "schema": "x"}', "occurs twice"),
        ('{"schema": NaN}', "NaN is not a JSON number"),
    ],
)
def test_what_is_not_a_result_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(DifftestError, match=message) as caught:
        load(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("path", "value"), [("count", True), ("count", "3"), ("index", {}), ("request", 1.5)])
def test_load_refuses_a_value_of_the_wrong_type(path: str, value: object) -> None:
    document = json.loads(render(RESULTS["different"]))
    document["targets"][0]["mismatches"][0][path] = value
    with pytest.raises(DifftestError, match=rf"result\.targets\[0\]\.mismatches\[0\]\.{path}"):
        load(json.dumps(document))


def test_no_nan_or_infinity_is_written() -> None:
    text = render(run(DIFFERENT, environment={"load": float("nan"), "limits": (float("inf"), -float("inf"))}))
    assert load(text).environment == {"load": "NaN", "limits": ["Infinity", "-Infinity"]}
    with pytest.raises(DifftestError, match="no JSON form"):
        render(replace(run(DIFFERENT), seconds={"total": float("nan")}))


def test_a_value_without_a_json_form_is_one_clear_line() -> None:
    with pytest.raises(DifftestError, match=r"no JSON form.*Path"):
        render(run(DIFFERENT, environment={"folder": Path()}))
