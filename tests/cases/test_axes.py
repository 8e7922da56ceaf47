"""The axes of inputs: bytes that never change, layouts that keep values, and rows that cover every pair."""

import gc
import hashlib
import itertools
import weakref

import numpy as np
import pytest
import torch

from difftest.cases import axes
from difftest.target import Seeded


def digest(*tensors: torch.Tensor) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(axes.as_bytes(tensor).numpy().tobytes())
    return sha.hexdigest()[:16]


# Recorded cases are found again by the hash of their content, so these bytes are a promise.
GOLD = {
    "bits": "4267887895995898",
    "uniform": "2dc127fcc1c79cc8",
    "integers": "e0543df295a7f961",
    "normal_like": "c2b173ce25a04824",
    "logits float32": "b493a53c24569d6e",
    "logits bfloat16": "af92313c09e3402e",
    "logits float16": "067d9d39b04d568d",
    "logits float64": "d562ebb4a8ce8eee",
    "probabilities": "76c1ad89ce9d0ddd",
    "drafts": "563c3e8f400d993c",
}


def generated(name: str) -> str:
    s = axes.stream("gold", name)
    if name == "bits":
        return hashlib.sha256(s.bits(100).tobytes()).hexdigest()[:16]
    if name == "uniform":
        return digest(*[s.uniform(3, 5, dtype=dtype) for dtype in axes.FLOATS.values()])
    if name == "integers":
        return digest(s.integers(-5, 70000, (40,)), s.permutation(33), s.integers(0, 9, (4, 2), torch.int32))
    if name == "normal_like":
        return digest(*[s.normal_like(4, 9, scale=2.5, dtype=dtype) for dtype in axes.FLOATS.values()])
    if name == "probabilities":
        return digest(*[axes.probabilities(pattern, 3, 17, s) for pattern in axes.PROBABILITIES])
    if name == "drafts":
        counts = [axes.draft_counts(pattern, 5) for pattern in axes.DRAFT_COUNTS]
        return digest(*[axes.draft_ids(p, c, 50, s) for p in axes.DRAFT_IDS for c in counts])
    dtype = axes.FLOATS[name.split()[1]]
    return digest(*[axes.logits(pattern, 3, 17, s, dtype) for pattern in axes.LOGITS])


@pytest.mark.parametrize("name", GOLD)
def test_generated_bytes_never_change(name: str) -> None:
    assert generated(name) == GOLD[name]


def test_splitmix64_is_the_published_sequence() -> None:
    # First outputs for the seed 1234567, as listed with other implementations of the algorithm.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert axes.splitmix64(1234567, 0, 4).tolist() == expected


def test_a_stream_goes_on_where_it_stopped_and_depends_on_its_key() -> None:
    whole = axes.stream("a", 1).bits(10)
    parts = axes.stream("a", 1)
    assert np.array_equal(np.concatenate([parts.bits(4), parts.bits(6)]), whole)
    assert not np.array_equal(axes.stream("a", 2).bits(10), whole)
    assert not np.array_equal(axes.stream("a1").bits(10), whole)


@pytest.mark.parametrize("dtype", axes.FLOATS.values())
def test_uniform_numbers_stay_below_one_in_every_dtype(dtype: torch.dtype) -> None:
    drawn = axes.stream("u").uniform(20000, dtype=dtype)
    assert drawn.dtype == dtype
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(drawn.double().mean() - 0.5) < 0.01


def test_bell_shaped_numbers_have_their_deviation_and_hardly_a_tie() -> None:
    drawn = axes.stream("n").normal_like(20000, scale=2.0)
    assert abs(drawn.mean()) < 0.05 and abs(drawn.std() - 2.0) < 0.05
    assert len(drawn[:1500].unique()) == 1500


def test_integers_reach_both_ends_and_a_permutation_holds_each_number_once() -> None:
    s = axes.stream("i")
    other = axes.stream("i")
    assert [other.integer(-1, 70000) for _ in range(30)] == axes.stream("i").integers(-1, 70000, (30,)).tolist()
    assert s.integers(-1, 3, (200,)).unique().tolist() == [-1, 0, 1, 2]
    assert sorted(s.permutation(50).tolist()) == list(range(50))
    with pytest.raises(ValueError, match="positive"):
        s.integers(3, 3)


TENSORS = {
    "float32": torch.arange(12, dtype=torch.float32).view(4, 3),
    "bfloat16": torch.arange(12).view(4, 3).to(torch.bfloat16),
    "float16": torch.arange(12).view(4, 3).to(torch.float16),
    "int32": torch.arange(12, dtype=torch.int32).view(4, 3),
    "bool": torch.arange(12).view(4, 3) % 3 == 0,
    "three axes": torch.arange(24, dtype=torch.float32).view(4, 3, 2),
    "no rows": torch.zeros(0, 3),
}


@pytest.mark.parametrize("layout", axes.LAYOUTS)
@pytest.mark.parametrize("name", TENSORS)
def test_layouts_keep_values_and_only_the_values(name: str, layout: str) -> None:
    tensor = axes.same_rows(TENSORS[name], layout)
    laid_out = axes.lay_out(tensor, layout)
    assert torch.equal(laid_out, tensor) and laid_out.dtype == tensor.dtype
    if tensor.numel():
        assert laid_out.untyped_storage().data_ptr() != TENSORS[name].untyped_storage().data_ptr() or (
            layout == "contiguous"
        )


@pytest.mark.parametrize("layout", ["padded rows", "sliced columns", "offset storage", "every other row"])
def test_gaps_hold_poison_that_shows_when_it_is_read(layout: str) -> None:
    laid_out = axes.lay_out(torch.zeros(4, 5), layout)
    whole = torch.tensor([]).set_(laid_out.untyped_storage())  # type: ignore[call-overload]
    gaps = whole[whole != 0]
    assert len(gaps) == len(whole) - 20 > 0
    assert gaps.isnan().any() and (gaps == 1e30).any()


def test_layouts_differ_in_strides_and_offset() -> None:
    seen = {}
    for layout in axes.LAYOUTS:
        laid_out = axes.lay_out(torch.zeros(4, 3), layout)
        seen[layout] = (laid_out.stride(), laid_out.storage_offset())
    assert len(set(seen.values())) == len(axes.LAYOUTS)
    assert seen["expanded"][0] == (0, 1) and seen["transposed"][0] == (1, 4)


def test_an_expanded_tensor_needs_equal_rows() -> None:
    with pytest.raises(ValueError, match="equal rows"):
        axes.lay_out(torch.arange(4.0).view(2, 2), "expanded")
    with pytest.raises(ValueError, match="no layout"):
        axes.lay_out(torch.zeros(2, 2), "sideways")


@pytest.mark.parametrize("layout", axes.VECTOR_LAYOUTS)
def test_vectors_have_layouts_too(layout: str) -> None:
    vector = axes.same_rows(torch.arange(5, dtype=torch.int64), layout)
    laid_out = axes.lay_out(vector, layout)
    assert torch.equal(laid_out, vector)
    assert (laid_out.stride() == (1,)) == (layout in ("contiguous", "offset storage"))


def test_indexes_past_a_guarded_tensor_land_on_guard_rows() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    guarded = axes.guarded(rows, before=1, after=2, fill=-7.0)
    assert torch.equal(guarded, rows)
    below = guarded.as_strided((1, 2), (2, 1), guarded.storage_offset() - 2)
    above = guarded.as_strided((2, 2), (2, 1), guarded.storage_offset() + 4)
    assert (below == -7).all() and (above == -7).all()
    assert axes.guarded(rows).as_strided((1,), (1,), 0).item() == pytest.approx(1e30)


def test_lazy_memory_reaches_past_2_to_the_31_and_takes_almost_none() -> None:
    rows = axes.lazy((20_000, 250_880), torch.float32)
    assert rows.numel() > 2**31 and rows.untyped_storage().nbytes() > 1 << 30
    rows[8560, 250_879] = 3.0
    assert rows.view(-1)[8560 * 250_880 + 250_879] == 3.0 and rows[8560, 0] == 0
    assert axes.lazy((3,), torch.bfloat16).tolist() == [0, 0, 0]


def test_lazy_memory_that_only_a_cycle_holds_is_given_back_before_it_fills_the_address_space() -> None:
    held = []
    for _ in range(8):
        rows = axes.lazy((4_000, 250_880), torch.float64)  # 8 GB
        cycle: list[object] = [rows]
        cycle.append(cycle)
        held.append(weakref.ref(rows))
        del rows, cycle
    assert sum(ref() is not None for ref in held) <= 4


def test_so_is_memory_of_a_cycle_that_is_kept_from_the_collector() -> None:
    held = []
    try:
        for _ in range(8):
            rows = axes.lazy((4_000, 250_880), torch.float64)  # 8 GB
            cycle: list[object] = [rows]
            cycle.append(cycle)
            held.append(weakref.ref(rows))
            gc.freeze()  # as when a file is parsed
            del rows, cycle
        assert sum(ref() is not None for ref in held) <= 6
    finally:
        gc.unfreeze()


def test_far_rows_begin_past_2_to_the_31_and_hold_the_values() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    far = axes.lay_out(tensor, axes.FAR_ROWS)
    assert torch.equal(far, tensor) and far.stride(1) == 1
    assert far.stride(0) < 2**31 < 2 * far.stride(0)
    assert far.untyped_storage().nbytes() > 8 << 30
    with pytest.raises(ValueError, match="two or more"):
        axes.lay_out(tensor[:1], axes.FAR_ROWS)


@pytest.mark.parametrize("dtype", axes.FLOATS.values())
@pytest.mark.parametrize("pattern", axes.LOGITS)
def test_every_pattern_of_logits_takes_any_size(pattern: str, dtype: torch.dtype) -> None:
    for rows, vocab in itertools.product((0, 1, 3), (1, 2, 33)):
        made = axes.logits(pattern, rows, vocab, axes.stream(pattern), dtype)
        assert made.shape == (rows, vocab) and made.dtype == dtype
        if pattern in axes.FINITE_LOGITS:
            assert made.isfinite().all()


@pytest.mark.parametrize("dtype", axes.FLOATS.values())
def test_patterns_are_what_their_names_say(dtype: torch.dtype) -> None:
    def made(pattern: str, vocab: int = 40) -> torch.Tensor:
        return axes.logits(pattern, 4, vocab, axes.stream(pattern), dtype)

    assert len(made("integer grid").unique()) <= 7
    assert (made("bf16 grid").to(torch.bfloat16).to(dtype) == made("bf16 grid")).all() or dtype is torch.float16
    near = made("near ties").unique()
    assert (axes.next_up(near[:-1]) == near[1:]).any()
    zeros = made("-0.0")
    assert (zeros == 0).all() and 0 < zeros.signbit().sum() < zeros.numel()
    tiny = made("denormals")
    assert (tiny.double().abs() < torch.finfo(dtype).tiny).all() and (tiny != 0).any()
    assert made("huge").double().abs().min() > torch.finfo(dtype).max / 4
    assert all(len(row.unique()) == 14 and row.unique(return_counts=True)[1].max() == 3 for row in made("plateaus"))
    maxima = (made("two maxima") == made("two maxima").amax(1, keepdim=True)).sum(1)
    assert (maxima >= 2).all()
    assert made("-inf first row")[0].isneginf().all() and made("-inf first row")[1].isfinite().all()
    assert ((~made("-inf all but one").isneginf()).sum(1) == 1).all()
    assert (made("+inf once").isposinf().sum(1) == 1).all()
    assert made("NaN at the end")[:, -1].isnan().all() and made("NaN at the end")[:, :-1].isfinite().all()
    assert made("NaN last row")[-1].isnan().all() and made("NaN last row")[0].isfinite().all()


def test_a_softmax_cannot_tell_the_two_top_logits_that_argmax_tells() -> None:
    made = axes.logits("softmax tie", 6, 50, axes.stream("tie"))
    probs = made.softmax(-1)
    assert ((probs == probs.amax(1, keepdim=True)).sum(1) == 2).all()
    assert ((made == made.amax(1, keepdim=True)).sum(1) == 1).all()
    assert (made.argmax(1) != probs.argmax(1)).any()


def test_a_pattern_can_be_on_one_request_alone() -> None:
    made = axes.logits("-inf everywhere", 3, 9, axes.stream("one"), only=1)
    assert made[1].isneginf().all() and made[[0, 2]].isfinite().all()


def test_probabilities_sum_to_one_and_have_their_zeros() -> None:
    s = axes.stream("p")
    for pattern in axes.PROBABILITIES.keys() - axes.UNUSUAL_PROBABILITIES:
        for rows, vocab in itertools.product((0, 3), (1, 2, 33)):
            made = axes.probabilities(pattern, rows, vocab, s)
            assert made.shape == (rows, vocab) and (made >= 0).all()
            assert ((made.sum(-1) - 1).abs() < 1e-5).all()
    assert (axes.probabilities("id 0 has none", 3, 9, s)[:, 0] == 0).all()
    assert (axes.probabilities("tail has none", 3, 9, s)[:, 4:] == 0).all()
    assert (axes.probabilities("mostly the last id", 3, 9, s)[:, -1] > 0.99).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_noise_reaches_its_ends_and_never_one(dtype: torch.dtype) -> None:
    made = {name: axes.noise(name, (2, 3), axes.stream("n"), dtype) for name in axes.NOISE}
    assert all(t.min() >= 0 and t.max() < 1 and t.dtype == dtype for t in made.values())
    assert made["just below 1"].unique().item() == 1 - torch.finfo(dtype).eps / 2


def test_spreads_put_a_value_on_one_request_in_each_place() -> None:
    by_name = {str(spread): spread for spread in axes.TOP_K}
    assert by_name["V-1"].over(3, 10) == [9, 9, 9]
    assert by_name["3 on the middle"].over(3, 10) == [10, 3, 10]
    assert by_name["3 on the last"].tensor(3, torch.int32, 10).tolist() == [10, 10, 3]
    assert str(axes.TOP_K[0]) == "V" and axes.TOP_P[0].over(2) == [1.0, 1.0]
    assert all(spread.over(0, 5) == [] for spread in axes.TOP_K)
    assert all(len({str(s) for s in group}) == len(group) for group in (axes.TOP_K, axes.TOP_P, axes.TEMPERATURES))


def test_seeds_lie_on_all_none_or_some_requests() -> None:
    assert {name: sorted(axes.seeds(name, 3)) for name in axes.SEEDS} == {
        "none": [], "all": [0, 1, 2], "mixed": [0, 2], "first": [0], "last": [2], "equal": [0, 1, 2],
    }  # fmt: skip
    assert set(axes.seeds("equal", 3).values()) == {Seeded(1000)}
    assert len(set(axes.seeds("all", 3).values())) == 3 and axes.seeds("last", 0) == {}


def test_histories_hold_what_their_names_say() -> None:
    def made(pattern: str) -> list[list[int]]:
        return axes.histories(pattern, 4, 10, axes.stream(pattern))

    assert made("no list at all") == [] and made("empty") == [[], [], [], []]
    assert all(ids[-1] == -1 for ids in made("trailing -1"))
    assert [set(ids) == {-1} for ids in made("-1 only in one request")] == [False, False, True, False]
    assert all(10 in ids for ids in made("id V"))
    assert {len(ids) for ids in made("ragged")} == {0, 1, 3, 6}
    assert all(len(axes.histories(p, 0, 10, axes.stream())) == 0 for p in axes.HISTORIES)


def test_drafts_have_placeholders_in_each_position() -> None:
    counts = [3, 0, 3]
    s = axes.stream("d")
    for pattern, position in (("-1 first", 0), ("-1 middle", 1), ("-1 last", 2)):
        ids = axes.draft_ids(pattern, counts, 9, s).view(2, 3)
        assert (ids[:, position] == -1).all() and (ids == -1).sum() == 2
    assert (axes.draft_ids("-1 everywhere", counts, 9, s) == -1).all()
    assert (axes.draft_ids("id V", counts, 9, s).view(2, 3) == 9).any(1).all()
    assert axes.draft_ids("largest id", [1], 9, s).tolist() == [2**31 - 1]
    assert axes.draft_counts("ragged", 5) == [3, 0, 1, 2, 0] and axes.draft_counts("zero first", 3) == [
        0,
        3,
        3,
    ]


AXES = {
    "dtype": ["a", "b", "c"],
    "batch": [4, 0, 1, 2],
    "layout": ["x", "y"],
    "seed": [None, 1],
    "top k": list("pqrstu"),
}


def pairs(rows: list[axes.Row]) -> set[tuple[str, object, str, object]]:
    return {(one, row[one], other, row[other]) for row in rows for one, other in itertools.combinations(AXES, 2)}


def test_pairwise_covers_every_pair_with_far_fewer_rows_than_the_product() -> None:
    rows = axes.pairwise(AXES)
    assert pairs(rows) == pairs(axes.product(AXES))
    assert len(rows) < 40 < len(axes.product(AXES)) == 288
    assert rows[0] == axes.plain(AXES)
    assert rows == axes.pairwise(AXES)


def test_pairwise_does_not_repeat_what_is_given() -> None:
    given = axes.extremes(AXES)
    rows = axes.pairwise(AXES, given)
    assert pairs(rows + given) == pairs(axes.product(AXES))
    assert not [row for row in rows if row in given]


def test_further_covers_hold_all_pairs_too_and_meet_other_triples() -> None:
    def triples(rows: list[axes.Row]) -> set[tuple[object, ...]]:
        return {tuple((name, row[name]) for name in names) for row in rows for names in itertools.combinations(AXES, 3)}

    first, other = axes.pairwise(AXES), axes.pairwise(AXES, turn=1)
    assert pairs(other) == pairs(first) and other == axes.pairwise(AXES, turn=1)
    assert len(triples(first + other)) > 1.3 * len(triples(first))
    made = list(axes.cases_from(AXES, lambda row, s: {}, name="x", covers=3))
    assert len({case.label for case in made}) == len(made) > len(first) + len(other)


def test_values_that_stand_alone_meet_plain_values_only() -> None:
    made = list(axes.cases_from(AXES, lambda row, s: {}, name="x", alone={"batch": [-1], "seed": [2, 3]}))
    assert [case.label for case in made if "batch -1" in case.label] == ["batch -1"]
    assert [case.label for case in made if case.axes["seed"] in "23"] == ["seed 2", "seed 3"]


def test_extremes_change_one_axis_at_a_time() -> None:
    first, *others = axes.extremes(AXES)
    assert first == axes.plain(AXES) and len(others) == 2 + 3 + 1 + 1 + 5
    assert all(sum(row[name] != first[name] for name in AXES) == 1 for row in others)


def test_cases_come_plain_first_and_say_what_they_hold() -> None:
    made = list(
        axes.cases_from(
            AXES,
            lambda row, s: {"batch": row["batch"], "bits": s.bits(2).tolist()},
            name="some.target",
            contract=lambda row: row["batch"] != 0,
            allowed=lambda row: row["layout"] != "y" or row["batch"] != 1,
        )
    )
    labels = [case.label for case in made]
    assert labels[0].startswith("plain: ") and "dtype a" in labels[0] and labels[1:3] == ["dtype b", "dtype c"]
    assert "seed 1" in labels and len(set(labels)) == len(labels)
    assert [case.contract for case in made] == [case.axes["batch"] != "0" for case in made]
    assert not [c for c in made if c.axes["layout"] == "y" and c.axes["batch"] == "1"]
    assert made[0].axes["seed"] == "none"
    assert made[1].build() == made[1].build() != made[2].build()
    assert len(list(axes.cases_from(AXES, lambda row, s: {}, name="x", limit=7))) == 7
