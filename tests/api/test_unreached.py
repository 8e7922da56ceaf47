"""Changed code that no target reaches is named, and nothing is claimed of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from difftest.api import RunOptions, run
from difftest.demo import make_repository
from difftest.reports.sentence import sentence
from difftest.reports.words import unreached_lines
from tests.planted.edited_trees import write


def trees(folder: Path) -> tuple[Path, Path]:
    base, head = folder / "base", folder / "head"
    for tree in (base, head):
        make_repository(tree)
        shutil.rmtree(tree / ".git")
    for tree, number in ((base, 1), (head, 2)):
        write(tree / "vllm/v1/sample/other.py", f"LIMIT = {number}\n\ndef far():\n    return {number}\n")
    write(
        head / "vllm/v1/spec_decode/added.py",
        "class Added:\n    def one(self):\n        return 1\n\n\ndef same():  # said\n    return 1\n",
    )
    write(base / "vllm/v1/spec_decode/added.py", "def same():\n    return 1\n")
    write(head / "vllm/elsewhere.py", "def far():\n    return 2\n")
    return base, head


def test_changed_code_that_no_target_reaches_is_named(tmp_path: Path) -> None:
    base, head = trees(tmp_path)
    result = run(RunOptions(str(base), (str(head),)))
    assert result.verdict == "identical"
    sample, spec = "vllm.v1.sample.other", "vllm.v1.spec_decode.added"
    assert set(result.unreached) == {f"{sample}:LIMIT", f"{sample}:far", f"{spec}:Added"}
    assert "; changed and reached by no target: vllm.v1.sample.other:" in sentence(result)
    assert " and 2 more; base " in sentence(result)
    lines = unreached_lines(result)
    assert len(lines) == 2 and f"changed, and reached by no target: {spec}: Added" in lines


def test_a_choice_of_targets_says_nothing_of_others(tmp_path: Path) -> None:
    base, head = trees(tmp_path)
    result = run(RunOptions(str(base), (str(head),), targets=("v1.parse_output",)))
    assert result.unreached == () and "reached by no target" not in sentence(result)


def test_what_did_not_change_is_not_named(tmp_path: Path) -> None:
    base, _ = trees(tmp_path)
    assert run(RunOptions(str(base), (str(base),))).unreached == ()
