"""`--target module:qualname` for a function that no case file knows: cases come from its signature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from difftest import api
from difftest.errors import UsageError
from difftest.lift.signature import signature_of
from difftest.lift.sources import Sources
from difftest.result import TargetResult

MODULE = """
from __future__ import annotations

import dataclasses
from typing import NamedTuple, Optional

import numpy as np
import torch
import triton

@dataclasses.dataclass
class Limits:
    top_k: torch.Tensor | None
    stop: list[list[int]]
    name: str = "plain"

class Sampled(NamedTuple):
    token_ids: torch.Tensor
    counts: list[int]

class Scaler:
    def __init__(self, factor: float, most: Optional[int] = None):
        self.factor = factor
        if factor == 1000.0:
            raise ValueError("too much")

    def scale(self, logits: torch.Tensor) -> torch.Tensor:
        return logits * self.factor

    @staticmethod
    def halve(logits: torch.Tensor) -> torch.Tensor:
        return logits / 2

    @classmethod
    def named(cls, num_reqs: int, flag: bool = False) -> list[str]:
        return [f"{cls.__name__} {flag}"] * num_reqs

class Worker:
    def __init__(self, config):
        self.config = config

    def work(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

def greedy(logits: torch.Tensor, vocab_size: int, temperature: torch.Tensor) -> torch.Tensor:
    assert logits.shape[1] == vocab_size
    scaled = logits / temperature.clamp(min=1e-5).unsqueeze(1)
    return scaled.argmax(-1)

def capped(logits: torch.Tensor, limits: Limits) -> tuple[torch.Tensor, int]:
    longest = max((len(ids) for ids in limits.stop), default=0)
    return (logits if limits.top_k is None else logits + limits.top_k.unsqueeze(1)), longest

def total(sampled: Sampled, seen: dict[int, int], mask: np.ndarray) -> int:
    return sum(sampled.counts) + sum(seen.values()) + int(mask.sum())

def draw(generators: dict[int, torch.Generator], num_reqs: int, device: torch.device) -> torch.Tensor:
    rows = [torch.rand(3, generator=generators.get(row), device=device) for row in range(num_reqs)]
    return torch.stack(rows) if rows else torch.empty(0, 3)

def flat(
    # [num_tokens]
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,  # [batch_size]
    num_draft_tokens: list[int],
    scale: int = 1,
) -> torch.Tensor:
    assert draft_token_ids.shape == (sum(num_draft_tokens),)
    assert cu_num_draft_tokens.tolist()[-1:] == [sum(num_draft_tokens)][: len(num_draft_tokens)]
    return draft_token_ids * scale

def never(logits: torch.Tensor) -> torch.Tensor:
    raise ValueError("not for you")

def opaque(logits: torch.Tensor, engine: "EngineCore") -> torch.Tensor:
    return logits

@triton.jit
def kernel(logits_ptr, BLOCK: int):
    pass
"""


def read(tmp_path: Path, text: str, symbol: str) -> Any:
    (tmp_path / "m.py").write_text(text)
    sources = Sources(lambda name: ("m.py", False) if name == "m" else None, lambda path: text.encode())
    return signature_of(sources, f"m:{symbol}")


def test_a_signature_is_read_from_source(tmp_path: Path) -> None:
    signature = read(tmp_path, MODULE, "flat")
    assert [p["name"] for p in signature["parameters"]] == [
        "draft_token_ids", "cu_num_draft_tokens", "num_draft_tokens", "scale",
    ]  # fmt: skip
    assert signature["parameters"][0]["dims"] == ["num_tokens"]
    assert signature["parameters"][1]["dims"] == ["batch_size"]
    assert "dims" not in signature["parameters"][2]
    assert signature["parameters"][3]["default"]
    (_, limits) = read(tmp_path, MODULE, "capped")["parameters"]
    assert limits["kinds"][0]["symbol"] == "m:Limits"
    assert [field["name"] for field in limits["kinds"][0]["fields"]] == ["top_k", "stop"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("base"), MODULE)


def tree(folder: Path, text: str) -> Path:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "m.py").write_text(text)
    return folder


def run(base: Path, head: Path, *symbols: str, **options: Any) -> list[TargetResult]:
    targets = tuple(f"pack.m:{symbol}" for symbol in symbols)
    request = api.RunOptions(str(base), (str(head),), targets=targets, execute_same=True, explain=False, **options)
    return list(api.run(request).targets)


FAULTS = {
    "greedy": ("scaled.argmax(-1)", "scaled.flip(-1).argmax(-1)"),
    "capped": ("default=0)", "default=0) or 1"),
    "total": ("sum(seen.values())", "len(seen)"),
    "draw": ("torch.stack(rows)", "torch.stack(rows[::-1])"),
    "flat": ("draft_token_ids * scale", "draft_token_ids.clamp(min=0) * scale"),
    "Scaler.scale": ("logits * self.factor", "logits * abs(self.factor)"),
    "Scaler.halve": ("logits / 2", "logits / 2 + 0.0"),
    "Scaler.named": ("{flag}", "{flag or 1}"),
}


def test_planted_faults_are_found_and_equal_code_is_identical(base: Path, tmp_path: Path) -> None:
    text = MODULE
    for before, after in FAULTS.values():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    head = tree(tmp_path, text)
    same = run(base, base, *FAULTS, examples=25)
    assert {r.name: r.verdict for r in same} == {f"pack.m:{name}": "identical" for name in FAULTS}
    found = run(base, head, *FAULTS)
    assert {r.name: r.verdict for r in found} == {f"pack.m:{name}": "different" for name in FAULTS}
    assert all(any("cases from the signature of" in note for note in r.notes) for r in found)


def test_what_cannot_be_called_is_refused_by_name(base: Path) -> None:
    never, opaque, kernel, method, cls = run(base, base, "never", "opaque", "kernel", "Worker.work", "Limits")
    assert {r.verdict for r in (never, opaque, kernel, method, cls)} == {"unmeasured"}
    assert "both arms raise ValueError: not for you" in never.reason
    assert "the parameter engine, which is annotated EngineCore" in opaque.reason
    assert "--cases-from FILE" in opaque.reason
    assert "raw Triton kernel" in kernel.reason
    assert "Worker cannot be made from annotations" in method.reason
    assert "name one of its methods" in cls.reason


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("(logits: torch.Tensor, vocab_size: int,", "(logits: torch.Tensor,", "head does not take vocab_size"),
        ("vocab_size: int, temp", "vocab_size: int, top_p: float, temp", "head requires top_p"),
        ("vocab_size: int, temp", "vocab_size: list[int], temp", "vocab_size is int in base and list[int] in head"),
    ],
)
def test_a_changed_signature_is_an_api_change(base: Path, tmp_path: Path, before: str, after: str, said: str) -> None:
    assert MODULE.count(before) == 1
    (result,) = run(base, tree(tmp_path, MODULE.replace(before, after)), "greedy")
    assert result.verdict == "unmeasured"
    assert "api-change" in result.reason
    assert said in result.reason


def test_it_can_be_fuzzed(base: Path, tmp_path: Path) -> None:
    head = tree(tmp_path, MODULE.replace("draft_token_ids * scale", "draft_token_ids * (scale if scale != 5 else 4)"))
    (result,) = run(base, head, "flat", cases=("fuzz",), examples=150)
    assert result.verdict == "different"


def test_an_own_case_file_comes_first(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\nfrom difftest.target import Case, Target\n"
        "CASES = [Case('one', lambda: {'logits': torch.ones(2, 3), 'engine': None})]\n"
        "TARGETS = (Target('my.opaque', ('pack.m:opaque',), lambda: CASES),)\n"
    )
    (result,) = run(base, base, "opaque", cases_from=(file,))
    assert (result.name, result.verdict, result.cases.executed) == ("my.opaque", "identical", 1)


def test_a_symbol_that_no_tree_has_is_a_usage_error(base: Path) -> None:
    with pytest.raises(UsageError, match=r"no symbol pack\.m:nothing"):
        run(base, base, "nothing")


def test_an_object_that_its_class_refuses_is_not_exercised(base: Path) -> None:
    (result,) = run(base, base, "Scaler.scale")
    assert result.verdict == "identical"
    assert any("not exercised: inputs could not be made" in note for note in result.notes)
