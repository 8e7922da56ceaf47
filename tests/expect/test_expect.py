"""Expected differences: what the manifest covers passes, what goes beyond it fails, what it claims in vain fails."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from difftest import api
from difftest.demo import make_repository
from difftest.errors import UsageError
from difftest.expect import Expectation, check_draft, draft, load
from difftest.reports.sentence import sentence
from difftest.result import Identity, Mismatch, RunResult, TargetResult


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("expect") / "sampler"
    make_repository(folder)
    return folder


@pytest.fixture(scope="module")
def options(repository: Path) -> api.RunOptions:
    return api.RunOptions(base="base", heads=("subtle-bug",), repo=repository, targets=("v1.parse_output",))


def manifest(folder: Path, text: str) -> Path:
    path = folder / "expect.toml"
    path.write_text(text)
    return path


WHOLE = '[[expect]]\ntarget = "v1.parse_output"\nreason = "ids equal to the vocabulary size are kept"\n'


def test_a_difference_that_is_expected_passes(options: api.RunOptions, tmp_path: Path) -> None:
    result = api.run(replace(options, expect=manifest(tmp_path, WHOLE + 'leaf = "return*"\n')))
    (target,) = result.targets
    assert (result.verdict, result.exit_code) == ("expected", 0)
    assert target.cases.expected > 0
    assert target.cases.different == 0
    assert "vocabulary size" in target.reason


def test_what_goes_beyond_the_manifest_stays_different(options: api.RunOptions, tmp_path: Path) -> None:
    result = api.run(replace(options, expect=manifest(tmp_path, WHOLE + 'leaf = "return[1]*"\n')))
    (target,) = result.targets
    assert (result.verdict, result.exit_code) == ("different", 1)
    assert all(m.leaf.startswith("return[0]") for m in target.mismatches[:1])


def test_an_entry_that_matches_nothing_fails(options: api.RunOptions, tmp_path: Path) -> None:
    text = WHOLE + '\n[[expect]]\ntarget = "v1.parse_*"\nkind = "rng"\nreason = "one draw fewer"\n'
    result = api.run(replace(options, expect=manifest(tmp_path, text)))
    assert (result.verdict, result.exit_code) == ("unmeasured", 3)
    assert "one draw fewer" in result.notes[0]
    assert "; 1 entry of the expect file matched nothing;" in sentence(result)


def test_each_entry_that_matches_is_one_that_matched(options: api.RunOptions, tmp_path: Path) -> None:
    text = WHOLE + '\n[[expect]]\ntarget = "v1.*"\nleaf = "return*"\nreason = "the same, in other words"\n'
    result = api.run(replace(options, expect=manifest(tmp_path, text)))
    assert (result.verdict, result.exit_code, result.notes) == ("expected", 0, ())


def test_a_manifest_as_editors_on_windows_write_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "expect.toml"
    path.write_bytes(b"\xef\xbb\xbf" + WHOLE.replace("\n", "\r\n").encode())
    assert [entry.target for entry in load(path)] == ["v1.parse_output"]


@pytest.mark.parametrize("text", ["expect = []\n", 'expect = [{target = "v1.*", reason = "meant"}]\n'])
def test_a_manifest_to_which_nothing_can_be_added_is_refused_before_the_run(tmp_path: Path, text: str) -> None:
    path = manifest(tmp_path, text)
    assert len(load(path)) == text.count("target")
    with pytest.raises(UsageError, match="nothing can be added to an array in brackets"):
        check_draft(path)
    assert check_draft(manifest(tmp_path, WHOLE)) == WHOLE


def test_an_entry_for_a_target_that_was_not_asked_for_is_no_fault(options: api.RunOptions, tmp_path: Path) -> None:
    text = WHOLE + '\n[[expect]]\ntarget = "v2.gumbel_sample"\nreason = "other noise"\n'
    assert api.run(replace(options, expect=manifest(tmp_path, text))).exit_code == 0


def test_an_entry_for_cases_that_were_left_out_is_no_fault(options: api.RunOptions, tmp_path: Path) -> None:
    text = WHOLE + '\n[[expect]]\ntarget = "v1.parse_output"\ncontract = false\nkind = "rng"\nreason = "one draw"\n'
    asked = replace(options, expect=manifest(tmp_path, text))
    assert api.run(asked).exit_code == 3
    assert api.run(replace(asked, contract="inside")).exit_code == 0
    assert api.run(replace(asked, examples=3)).exit_code == 0
    (target,) = api.run(options).targets
    case = target.mismatches[0].case
    assert api.run(replace(asked, case=case)).exit_code == 0
    inside = manifest(tmp_path, text.replace("contract = false", "contract = true"))
    assert api.run(replace(asked, contract="inside", expect=inside)).exit_code == 3


def test_an_entry_for_a_target_that_is_none_is_refused(options: api.RunOptions, tmp_path: Path) -> None:
    text = WHOLE + '\n[[expect]]\ntarget = "v2.gumble_sample"\nreason = "other noise"\n'
    with pytest.raises(UsageError, match=r"no target is v2\.gumble_sample"):
        api.run(replace(options, expect=manifest(tmp_path, text)))


def test_an_entry_for_a_target_of_another_case_file_or_of_a_replay_is_no_fault(
    options: api.RunOptions, tmp_path: Path
) -> None:
    text = "".join(
        f'\n[[expect]]\ntarget = "{name}"\nreason = "x"\n' for name in ("user.mine", "vllm.a:Sampler.forward")
    )
    assert api.run(replace(options, expect=manifest(tmp_path, WHOLE + text))).exit_code == 0


def test_an_expired_entry_fails_before_the_run(options: api.RunOptions, tmp_path: Path) -> None:
    expect = manifest(tmp_path, WHOLE + 'expires = "base"\n')
    with pytest.raises(UsageError, match="expired with base"):
        api.run(replace(options, expect=expect))


def test_an_entry_is_good_until_head_contains_its_expiry(options: api.RunOptions, tmp_path: Path) -> None:
    expect = manifest(tmp_path, WHOLE + 'expires = "faster"\n')
    assert api.run(replace(options, expect=expect)).verdict == "expected"


def test_a_drafted_manifest_names_what_was_found(options: api.RunOptions, tmp_path: Path) -> None:
    text = draft(api.run(options)).text
    assert 'target = "v1.parse_output"' in text
    with pytest.raises(UsageError, match="entries 1, 2, 3, 4, 5 have no reason"):
        load(manifest(tmp_path, text))
    entries = load(manifest(tmp_path, text.replace('reason = ""', 'reason = "meant"')))
    assert all(entry.leaf.startswith("return") for entry in entries)


def test_what_was_drafted_and_given_reasons_covers_the_run_it_came_from(
    options: api.RunOptions, tmp_path: Path
) -> None:
    found = api.run(options)
    assert found.targets[0].outside_contract == found.targets[0].cases.different
    text = draft(found).text.replace('reason = ""', 'reason = "meant"')
    assert api.run(replace(options, expect=manifest(tmp_path, text))).verdict == "expected"
    # All that differs is outside the contract, so nothing inside it is expected.
    assert {entry.contract for entry in load(manifest(tmp_path, text))} == {False}


def test_a_manifest_keeps_every_word_when_it_is_drafted_again(options: api.RunOptions, tmp_path: Path) -> None:
    found = api.run(options)
    fresh = draft(found)
    assert fresh.added > 1 and not fresh.kept
    first, *others = fresh.text.split("\n\n[[expect]]")[1:]
    stale = '\n[[expect]]\ntarget = "v1.parse_output"\nleaf = "rng*"\nreason = "one draw fewer"\n'
    narrowed = first.replace('reason = ""', 'case = "*beyond the vocabulary*"\nreason = "meant, see the design"')
    before = "# Ours.\n[[expect]]" + narrowed + "\n" + stale
    again = draft(found, before)
    assert again.text.startswith(before)
    assert (again.added, again.kept) == (len(others), 2)
    assert again.stale == ("v1.parse_output, leaf rng*",)
    assert draft(found, again.text).added == 0
    assert draft(found, again.text).text == again.text


def test_a_drafted_manifest_is_toml_whatever_a_place_is_called(tmp_path: Path) -> None:
    place = "return['a\\nb\"\n\x00\x7f é']"
    mismatch = Mismatch("c", "value", place, (), "1", "2", 1, True)
    target = TargetResult("user.t", "h", {}, "different", mismatches=(mismatch,))
    identity = Identity("b", "git", "b")
    text = draft(RunResult("different", identity, (identity,), {}, (target,), {})).text.replace('= ""', '= "meant"')
    assert [entry.leaf for entry in load(manifest(tmp_path, text))] == [place]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[expect]\n", "not TOML"),
        ('[[expect]]\nreason = "x"\n', "has no target"),
        ('[[expect]]\ntarget = "a"\nreason = " "\n', "has no reason"),
        ('[[expect]]\ntarget = "a"\n' * 2, "entries 1, 2 have no reason; add one to each"),
        ('[[expect]]\ntarget = "a"\nreason = "x"\nkind = "valu"\n', "valu"),
        ('[[expect]]\ntarget = "a"\nreason = "x"\nleafs = "y"\n', "unknown field leafs"),
        ('[[expect]]\ntarget = "a"\nreason = "x"\ncontract = "no"\n', "contract must be a bool"),
        ("expected = 3\n", "only [[expect]] entries"),
    ],
)
def test_a_malformed_manifest_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(manifest(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_places_are_matched_as_they_are_written() -> None:
    entry = Expectation("t", "why", leaf="return[0]*")
    assert entry.matches("", "", True, "value", "return[0][3]")
    assert not entry.matches("", "", True, "value", "return[1]")


def test_without_base_the_merge_base_is_compared_with(repository: Path) -> None:
    git = ["git", "-C", str(repository)]
    subprocess.run([*git, "branch", "-f", "main", "base"], check=True)
    base = subprocess.run([*git, "rev-parse", "base"], check=True, capture_output=True, text=True).stdout.strip()
    assert api.merge_base_of(("subtle-bug",), repository) == base
