"""What is said of versions that draw other numbers, of those that follow another law, and that no bias is `same`."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest import api
from difftest.result import TargetResult

SAMPLE_CASES = """
import torch
from difftest.target import Case, Sampling, Seeded, Target

LAW = torch.tensor([0.1, 0.2, 0.05, 0.15, 0.3, 0.2])


def cases():
    for rows in (2, 5, 40):
        for seeds in ("none", "first"):
            def build(rows=rows, seeds=seeds):
                generators = {} if seeds == "none" else {0: Seeded(rows)}
                return {"probs": LAW.repeat(rows, 1), "generators": generators}
            yield Case(f"{rows} rows, seeds {seeds}", build, axes={"rows": str(rows), "seeds": seeds})


SAMPLING = Sampling(lambda number: {"probs": LAW.repeat(4000, 1), "generators": {}}, lambda ids: ids.numpy(), 6)
TARGETS = (Target("user.drawn", ("pack.drawn:sample",), cases, sampling=SAMPLING),)
"""
SAMPLE = """
import torch


def sample(probs, generators):
    q = torch.empty_like(probs)
    q.exponential_()
    for i, generator in generators.items():
        q[i].exponential_(generator=generator)
    return (probs / q).argmax(-1)
"""
ACCEPT_CASES = """
import torch
from difftest.target import Case, Sampling, Target

CHANCES = torch.tensor([0.0, 0.25, 0.5, 0.625, 0.0, 0.75])


def cases():
    for rows in (6, 12, 24):
        yield Case(f"{rows} rows", lambda rows=rows: {"p": CHANCES.repeat(rows // 6)}, axes={"rows": str(rows)})


SAMPLING = Sampling(lambda number: {"p": CHANCES.repeat(1000)}, lambda taken: taken.numpy(), 2)
TARGETS = (Target("user.drawn", ("pack.drawn:sample",), cases, sampling=SAMPLING),)
"""
ACCEPT = """
import torch


def sample(p):
    return (torch.rand(len(p)) < p).long()
"""
COARSE = ACCEPT.replace("torch.rand(len(p))", "torch.rand(len(p)).mul(8).floor().div(8)")


def run(tmp_path: Path, base: str, head: str, cases: str = SAMPLE_CASES) -> TargetResult:
    assert base != head
    for name, text in (("base", base), ("head", head)):
        package = tmp_path / name / "pack"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "drawn.py").write_text(text)
    path = tmp_path / "drawn_cases.py"
    path.write_text(cases)
    (target,) = api.run(
        api.RunOptions(
            base=str(tmp_path / "base"),
            heads=(str(tmp_path / "head"),),
            targets=("user.drawn",),
            cases_from=(path,),
            jobs=1,
        )
    ).targets
    assert target.verdict == "different"  # whatever the class: it is information, never a pass
    return target


def classes(target: TargetResult) -> set[str]:
    return {m.likeness for m in target.mismatches if m.kind == "value"}


LAST_ROW_FIRST = SAMPLE.replace(
    "    q.exponential_()\n", "    for row in reversed(range(len(q))):\n        q[row].exponential_()\n"
)
GUMBEL = """
import torch


def sample(probs, generators):
    u = torch.rand(probs.shape, dtype=torch.float32)
    for i, generator in generators.items():
        u[i].uniform_(generator=generator)
    return (probs.to(u.dtype).log() - (-u.clamp(min=1e-9).log()).log()).argmax(-1)
"""


@pytest.mark.parametrize(
    ("base", "head"),
    [(SAMPLE, LAST_ROW_FIRST), (GUMBEL, GUMBEL.replace("float32", "float64"))],
    ids=["draw order", "fp64 noise"],
)
def test_only_the_numbers_drawn_are_others(tmp_path: Path, base: str, head: str) -> None:
    found = run(tmp_path, base, head)
    assert classes(found) == {"same under fixed noise"}
    assert {group.likeness for group in found.groups if group.kinds != ("rng",)} == {"same under fixed noise"}
    noise = found.fixed_noise
    assert noise["equal"] == noise["cases"] > 0
    assert noise["base_draws"]
    assert (noise["samples"], noise["samples_apart"]) == (8000, 0)
    assert "base draws" in noise["said"]


CDF = """
import torch


def sample(probs, generators):
    u = torch.rand(len(probs), 1)
    for i, generator in generators.items():
        u[i].uniform_(generator=generator)
    return (probs.cumsum(-1) <= u * probs.sum(-1, keepdim=True)).sum(-1)
"""


def test_another_way_to_draw_from_the_same_law(tmp_path: Path) -> None:
    found = run(tmp_path, SAMPLE, CDF)
    assert classes(found) == {"same distribution"}
    law = found.distribution
    assert law["likeness"] == "same distribution"
    assert law["samples"] >= 4000
    assert 0 < law["smallest_effect"] < 0.2
    assert all(test["adjusted"] >= test["p"] for test in law["tests"])
    assert "80 % power" in law["said"]


BIASED = SAMPLE.replace("(probs / q)", "(probs / q ** 1.3)")
SHARED_ROWS = SAMPLE.replace("return (probs", "q[1::2] = q[0 : len(q) // 2 * 2 : 2]\n    return (probs")


@pytest.mark.parametrize("head", [BIASED, SHARED_ROWS], ids=["biased", "noise of neighbours shared"])
def test_another_law_is_named(tmp_path: Path, head: str) -> None:
    found = run(tmp_path, SAMPLE, head)
    assert classes(found) == {"different distribution"}
    assert found.distribution["likeness"] == "different distribution"


def test_a_stream_that_is_used_twice_shows_only_jointly(tmp_path: Path) -> None:
    found = run(tmp_path, SAMPLE, SHARED_ROWS)
    tests = {test["name"]: test["adjusted"] for test in found.distribution["tests"]}
    assert tests["position 0"] > 0.001 > tests["adjacent rows together"]


def test_noise_that_every_call_draws_again_is_not_the_same(tmp_path: Path) -> None:
    head = SAMPLE.replace(
        "    q.exponential_()\n",
        "    again = torch.Generator()\n    again.set_state(torch.get_rng_state())\n"
        "    torch.rand(3, generator=again)\n    q.exponential_(generator=again)\n",
    ).replace("generator=generator", "generator=again")
    found = run(tmp_path, SAMPLE, head)
    assert not {name for name in classes(found) if name.startswith("same")}


def test_a_biased_accept_test_on_a_coarse_grid(tmp_path: Path) -> None:
    found = run(tmp_path, COARSE, COARSE.replace(" < p", " <= p"), ACCEPT_CASES)
    assert classes(found) == {"different distribution"}


def test_a_biased_accept_test_that_shows_at_the_ends_only(tmp_path: Path) -> None:
    """A uniform number is exactly 0 once in 2^24: no number of samples would show it."""
    other_order = ACCEPT.replace("torch.rand(len(p))", "torch.rand(len(p) + 1)[1:]")
    backwards = ACCEPT.replace(
        "    return (torch.rand(len(p)) < p)",
        "    u = torch.empty(len(p))\n    for i in reversed(range(len(p))):\n        u[i : i + 1].uniform_()\n"
        "    return (u <= p)",
    )
    forwards = backwards.replace("reversed(range(len(p)))", "range(len(p))").replace("<=", "<")
    assert other_order != backwards
    found = run(tmp_path, forwards, backwards, ACCEPT_CASES)
    assert not {name for name in classes(found) if name.startswith("same")}
    assert "they part only where a uniform number is at its end" in found.fixed_noise["said"]


def test_the_same_accept_test_in_another_order_is_the_same(tmp_path: Path) -> None:
    forwards = ACCEPT.replace(
        "    return (torch.rand(len(p)) < p)",
        "    u = torch.empty(len(p))\n    for i in range(len(p)):\n        u[i : i + 1].uniform_()\n    return (u < p)",
    )
    found = run(tmp_path, forwards, forwards.replace("range(len(p))", "reversed(range(len(p)))"), ACCEPT_CASES)
    assert classes(found) == {"same under fixed noise"}


def test_code_that_draws_nothing_is_not_tried(tmp_path: Path) -> None:
    base = ACCEPT.replace("torch.rand(len(p)) < p", "p > 0.3")
    found = run(tmp_path, base, base.replace("0.3", "0.6"), ACCEPT_CASES)
    assert (found.fixed_noise, found.distribution, classes(found)) == ({}, {}, {"different"})


def test_what_is_drawn_is_named_when_only_the_generators_states_differ(tmp_path: Path) -> None:
    """The tokens are the same whatever is drawn; exponential noise in base, seeds of other noise in head."""
    base = """
import torch


def sample(probs, generators):
    noise = torch.empty_like(probs).exponential_()
    for i, generator in generators.items():
        noise[i].exponential_(generator=generator)
    return (probs + 0 * noise).argmax(-1)
"""
    head = """
import torch


def sample(probs, generators):
    seeds = torch.randint(0, 2**31, (len(probs),))
    for i, generator in generators.items():
        seeds[i].random_(generator=generator)
    return (probs + 0 * seeds[:, None]).argmax(-1)
"""
    found = run(tmp_path, base, head)
    assert set(found.kinds) == {"rng"}
    assert {source.partition(",")[0] for source in found.fixed_noise["base_draws"]} == {"exponential float32"}
    assert {source.partition(",")[0] for source in found.fixed_noise["head_draws"]} == {"integer int64"}
    assert "base draws " in found.fixed_noise["said"] and "head draws " in found.fixed_noise["said"]
    assert "likeness" not in found.fixed_noise
