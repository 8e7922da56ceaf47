"""What is said of versions that draw other numbers, of those that follow another law, and that no bias is `same`.

All pairs are compared in one run, with so much time that what is tried is bounded by its number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from difftest import api
from difftest.result import TargetResult

CASES = """
import torch
from difftest.target import Case, Sampling, Seeded, Target

LAW = torch.tensor([0.1, 0.2, 0.05, 0.15, 0.3, 0.2])
CHANCES = torch.tensor([0.0, 0.25, 0.5, 0.625, 0.0, 0.75])


def sample_cases():
    for rows in (2, 5, 40):
        for seeds in ("none", "first"):
            def build(rows=rows, seeds=seeds):
                generators = {} if seeds == "none" else {0: Seeded(rows)}
                return {"probs": LAW.repeat(rows, 1), "generators": generators}
            yield Case(f"{rows} rows, seeds {seeds}", build, axes={"rows": str(rows), "seeds": seeds})


def accept_cases():
    for rows in (6, 12, 24):
        yield Case(f"{rows} rows", lambda rows=rows: {"p": CHANCES.repeat(rows // 6)}, axes={"rows": str(rows)})


def far_cases():
    for rows in (4000, 8000):
        yield Case(f"{rows} rows", lambda rows=rows: {"p": torch.linspace(0, 1, rows)}, axes={"rows": str(rows)})


def rare_cases():
    for rows in (1000, 2000):
        yield Case(f"{rows} rows", lambda rows=rows: {"p": torch.full((rows,), 0.4)}, axes={"rows": str(rows)})


SAMPLE = Sampling(lambda number: {"probs": LAW.repeat(1000, 1), "generators": {}}, lambda ids: ids.numpy(), 6)
RARE = Sampling(lambda number: {"p": torch.full((1200,), 0.4)}, lambda taken: taken.numpy(), 2)
ACCEPT = Sampling(lambda number: {"p": CHANCES.repeat(200)}, lambda taken: taken.numpy(), 2)
PAIR = Sampling(SAMPLE.build, lambda pair: pair[0].numpy(), 6, ("return[0]",))
TARGETS = tuple(
    Target(
        f"user.{name}",
        (f"pack.{name}:sample",),
        {"accept": accept_cases, "rare": rare_cases, "far": far_cases}.get(kind, sample_cases),
        sampling={"accept": ACCEPT, "rare": RARE, "far": ACCEPT, "sample": SAMPLE, "pair": PAIR}[kind],
    )
    for name, kind in NAMES
)
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
CDF = """
import torch


def sample(probs, generators):
    u = torch.rand(len(probs), 1)
    for i, generator in generators.items():
        u[i].uniform_(generator=generator)
    return (probs.cumsum(-1) <= u * probs.sum(-1, keepdim=True)).sum(-1)
"""
BIASED = SAMPLE.replace("(probs / q)", "(probs / q ** 1.3)")
SHARED_ROWS = SAMPLE.replace("return (probs", "q[1::2] = q[0 : len(q) // 2 * 2 : 2]\n    return (probs")
DRAWN_AGAIN = SAMPLE.replace(
    "    q.exponential_()\n",
    "    again = torch.Generator()\n    again.set_state(torch.get_rng_state())\n"
    "    torch.rand(3, generator=again)\n    q.exponential_(generator=again)\n",
).replace("generator=generator", "generator=again")
SEEDED_ANEW = SAMPLE.replace("    q.exponential_()", "    torch.manual_seed(0)\n    q.exponential_()")
RAISES_UNDER_A_MODE = BIASED.replace(
    "    q = torch",
    "    from torch.utils._python_dispatch import _len_torch_dispatch_stack as modes\n"
    "    if modes():\n        raise RuntimeError('not here')\n    q = torch",
)
ACCEPT = """
import torch


def sample(p):
    return (torch.rand(len(p)) < p).long()
"""
COARSE = ACCEPT.replace("torch.rand(len(p))", "torch.rand(len(p)).mul(8).floor().div(8)")
FORWARDS = ACCEPT.replace(
    "    return (torch.rand(len(p)) < p)",
    "    u = torch.empty(len(p))\n    for i in range(len(p)):\n        u[i : i + 1].uniform_()\n    return (u < p)",
)
BACKWARDS = FORWARDS.replace("range(len(p))", "reversed(range(len(p)))")
SMALL_DTYPE = ACCEPT.replace("torch.rand(len(p))", "torch.rand(len(p), dtype=torch.bfloat16)").replace(
    "< p", "< p / 400"
)
NO_DRAW = ACCEPT.replace("torch.rand(len(p)) < p", "p > 0.3")
PAIR = SAMPLE.replace("return (probs / q).argmax(-1)", "return (probs / q).argmax(-1), probs * 2")
IN_BOTH_RETURN = ("return (probs / q).argmax(-1)", "return (probs / q).argmax(-1), probs + q * (len(probs) == 40)")
IN_BOTH = SAMPLE.replace(*IN_BOTH_RETURN)
NO_USE = """
import torch


def sample(probs, generators):
    noise = torch.empty_like(probs).exponential_()
    for i, generator in generators.items():
        noise[i].exponential_(generator=generator)
    return (probs + 0 * noise).argmax(-1)
"""
NO_USE_OF_SEEDS = """
import torch


def sample(probs, generators):
    seeds = torch.randint(0, 2**31, (len(probs),))
    for i, generator in generators.items():
        seeds[i].random_(generator=generator)
    return (probs + 0 * seeds[:, None]).argmax(-1)
"""


class Pair(NamedTuple):
    base: str
    head: str
    kind: str = "sample"


PAIRS = {
    "draw_order": Pair(SAMPLE, LAST_ROW_FIRST),
    "fp64_noise": Pair(GUMBEL, GUMBEL.replace("float32", "float64")),
    "other_way": Pair(SAMPLE, CDF),
    "biased": Pair(SAMPLE, BIASED),
    "shared_rows": Pair(SAMPLE, SHARED_ROWS),
    "drawn_again": Pair(SAMPLE, DRAWN_AGAIN),
    "same_draws": Pair(ACCEPT, ACCEPT.replace("torch.rand(len(p)) < p", "torch.rand(len(p)) * 1.01 < p"), "far"),
    "seeded_anew": Pair(SAMPLE, SEEDED_ANEW),
    "raises_under_a_mode": Pair(SAMPLE, RAISES_UNDER_A_MODE),
    "small_dtype": Pair(ACCEPT.replace("< p", "< p / 400"), SMALL_DTYPE, "rare"),
    "coarse_accept": Pair(COARSE, COARSE.replace(" < p", " <= p"), "accept"),
    "accept_at_the_ends": Pair(FORWARDS, BACKWARDS.replace("<", "<="), "accept"),
    "accept_backwards": Pair(FORWARDS, BACKWARDS, "accept"),
    "no_draw": Pair(NO_DRAW, NO_DRAW.replace("0.3", "0.6"), "accept"),
    "states_alone": Pair(NO_USE, NO_USE_OF_SEEDS),
    "dtype_alone": Pair(SAMPLE, SAMPLE.replace("argmax(-1)", "argmax(-1).int()")),
    "two_groups": Pair(IN_BOTH, LAST_ROW_FIRST.replace(*IN_BOTH_RETURN), "pair"),
    "another_output": Pair(PAIR, PAIR.replace("probs * 2", "probs * q.sum()"), "pair"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], TargetResult]]:
    """The result of a pair."""
    folder = tmp_path_factory.mktemp("chance")
    for arm in ("base", "head"):
        package = folder / arm / "pack"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        for name, pair in PAIRS.items():
            (package / f"{name}.py").write_text(getattr(pair, arm))
    cases = folder / "drawn_cases.py"
    cases.write_text(f"NAMES = {[(name, pair.kind) for name, pair in PAIRS.items()]}\n{CASES}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "EXPLAIN_SECONDS", 600.0)
        results = api.run(
            api.RunOptions(
                base=str(folder / "base"),
                heads=(str(folder / "head"),),
                targets=("user.*",),
                cases_from=(cases,),
                jobs=2,
            )
        ).targets
    by_name = {target.name.removeprefix("user."): target for target in results}
    assert set(by_name) == set(PAIRS)
    # Whatever the class: it is information, never a pass.
    assert {target.verdict for target in results} == {"different"}
    yield by_name.__getitem__


def classes(target: TargetResult) -> set[str]:
    return {m.likeness for m in target.mismatches if m.kind == "value"}


Found = Callable[[str], TargetResult]


@pytest.mark.parametrize("name", ["draw_order", "fp64_noise"])
def test_only_the_numbers_drawn_are_others(found: Found, name: str) -> None:
    target = found(name)
    assert classes(target) == {"same under fixed noise"}
    assert {group.likeness for group in target.groups if group.kinds != ("rng",)} == {"same under fixed noise"}
    noise = target.fixed_noise
    assert noise["equal"] == noise["cases"] > 0
    assert noise["base_draws"]
    assert (noise["samples"], noise["samples_apart"]) == (2000, 0)
    assert "base draws" in noise["said"]


def test_another_way_to_draw_from_the_same_law(found: Found) -> None:
    target = found("other_way")
    assert classes(target) == {"same distribution"}
    law = target.distribution
    assert law["likeness"] == "same distribution"
    assert law["samples"] == 20_000
    assert 0 < law["smallest_effect"] < 0.1
    assert all(test["adjusted"] >= test["p"] for test in law["tests"])
    assert "80 % power" in law["said"]


@pytest.mark.parametrize("name", ["biased", "shared_rows", "coarse_accept"])
def test_another_law_is_named(found: Found, name: str) -> None:
    assert classes(found(name)) == {"different distribution"}
    assert found(name).distribution["likeness"] == "different distribution"


def test_a_stream_that_is_used_twice_shows_only_jointly(found: Found) -> None:
    tests = {test["name"]: test["adjusted"] for test in found("shared_rows").distribution["tests"]}
    assert tests["position 0"] > 0.001 > tests["adjacent rows together"]


@pytest.mark.parametrize("name", ["drawn_again", "seeded_anew"])
def test_noise_that_every_call_draws_again_is_not_the_same(found: Found, name: str) -> None:
    assert not {name for name in classes(found(name)) if name.startswith("same")}
    assert "the same numbers at every call" in found(name).fixed_noise["said"]


def test_a_call_that_cannot_be_made_with_the_noise_replaced_agrees_with_nothing(found: Found) -> None:
    noise = found("raises_under_a_mode").fixed_noise
    assert noise["equal"] == 0 < noise["cases"]


def test_versions_that_draw_the_same_numbers_do_not_differ_in_what_they_draw(found: Found) -> None:
    """Whatever a replaced noise would show: a difference that few numbers make may be gone with it."""
    target = found("same_draws")
    assert "same under fixed noise" not in classes(target)
    assert target.fixed_noise["said"].startswith("both versions draw the same numbers for the same places")


def test_noise_of_a_small_dtype_is_as_coarse_as_it_is(found: Found) -> None:
    """Uniform numbers of bfloat16 are multiples of 1/256: 0.001 accepts four times as many as it should."""
    assert "same under fixed noise" not in classes(found("small_dtype"))


def test_a_biased_accept_test_that_shows_at_the_ends_only(found: Found) -> None:
    """A uniform number is exactly 0 once in 2^24: no number of samples would show it."""
    target = found("accept_at_the_ends")
    assert not {name for name in classes(target) if name.startswith("same")}
    assert "they part only where single uniform numbers are exactly 0 or just below 1" in target.fixed_noise["said"]


def test_the_same_accept_test_in_another_order_is_the_same(found: Found) -> None:
    assert classes(found("accept_backwards")) == {"same under fixed noise"}


def test_code_that_draws_nothing_is_not_tried(found: Found) -> None:
    target = found("no_draw")
    assert (target.fixed_noise, target.distribution, classes(target)) == ({}, {}, {"different"})


def test_what_is_drawn_is_named_when_only_the_generators_states_differ(found: Found) -> None:
    """The tokens are the same whatever is drawn; exponential noise in base, seeds of other noise in head."""
    target = found("states_alone")
    assert set(target.kinds) == {"rng"}
    assert {source.partition(",")[0] for source in target.fixed_noise["base_draws"]} == {"exponential float32"}
    assert {source.partition(",")[0] for source in target.fixed_noise["head_draws"]} == {"integer int64"}
    assert "base draws " in target.fixed_noise["said"] and "head draws " in target.fixed_noise["said"]
    assert "likeness" not in target.fixed_noise


def test_noise_is_not_tried_on_a_dtype(found: Found) -> None:
    target = found("dtype_alone")
    assert (set(target.kinds), target.fixed_noise, target.distribution) == ({"dtype"}, {}, {})


def test_the_law_of_one_output_says_nothing_of_another(found: Found) -> None:
    target = found("another_output")
    assert {group.leaves for group in target.groups} == {("return[1]",)}
    assert not {name for name in classes(target) if name.startswith("same")}


def test_a_case_of_two_groups_is_one_case_tried(found: Found) -> None:
    target = found("two_groups")
    assert sum(group.cases for group in target.groups) > target.cases.different
    assert 0 < target.fixed_noise["cases"] <= target.cases.different
