"""The reference implementations against what their definitions imply, on generated inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from difftest.oracles import mask_replay, rejection, supports
from difftest.oracles.agreement import agrees, opinion
from difftest.oracles.parse_output import Logprobs, parse_output

VOCABULARY = 8
quick = settings(max_examples=60, deadline=None)
masks = arrays.arrays(bool, st.tuples(st.integers(0, 4), st.integers(1, 40)))
logit_rows = arrays.arrays(
    np.float32, st.integers(1, 20), elements=st.floats(-20, 20, width=32) | st.just(-np.inf)
).filter(lambda row: np.isfinite(row).any())


def distributions(rows: int, seed: int) -> np.ndarray:
    weights = np.random.default_rng(seed).exponential(size=(rows, VOCABULARY)).astype(np.float32)
    return weights / weights.sum(axis=1, keepdims=True)


def test_ids_of_rows_placeholders_strangers_and_discarded_requests() -> None:
    sampled = np.array([[5, 7, -1], [9, -1, 3], [-1, -1, -1], [2, 2, 2]], dtype=np.int32)
    rows = np.arange(12)
    logprobs = Logprobs(rows[:, None], -rows[:, None].astype(np.float32), rows)
    found = parse_output(sampled, 8, [-1], logprobs)
    assert found.tokens == [[5, 7], [3], [], []]
    assert found.starts == [0, 2, 3, 3, 6]
    assert found.logprobs is not None and found.logprobs.ranks.tolist() == [0, 1, 5, 9, 10, 11]
    assert parse_output(sampled, 10).tokens == [[5, 7], [9, 3], [], [2, 2, 2]]


@quick
@given(masks)
def test_packing_is_undone_and_is_what_numpy_packs(kept: np.ndarray) -> None:
    packed = supports.pack(kept)
    assert np.array_equal(packed, np.packbits(kept, axis=1, bitorder="little"))
    assert np.array_equal(supports.unpack(packed, kept.shape[1]), kept)
    padded = np.pad(packed, [(0, 0), (0, -packed.shape[1] % 4)])
    assert np.array_equal(supports.unpack_words(padded.view("<i4"), kept.shape[1]), kept)
    lists = supports.compact(kept)
    assert [np.flatnonzero(row).tolist() for row in kept] == [row.tolist() for row in lists.rows()]


@quick
@given(logit_rows, st.integers(1, 20))
def test_top_k_keeps_the_largest_and_their_ties(logits: np.ndarray, k: int) -> None:
    kept = supports.top_k(logits, k)
    finite = int((logits > -np.inf).sum())
    assert kept.sum() >= min(k, finite) and not kept[logits == -np.inf].any()
    assert not kept.any() or logits[kept].min() >= max(logits[~kept], default=-np.inf)
    smaller = logits[kept] > logits[kept].min()
    assert smaller.sum() < k  # nothing is kept beyond ties with the last


@quick
@given(logit_rows, st.floats(0.01, 1.0))
def test_top_p_is_the_smallest_set_that_reaches_p(logits: np.ndarray, p: float) -> None:
    kept = supports.top_p(logits, p)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    weights /= weights.sum()
    assert kept.any() and weights[kept].sum() >= p - 1e-12
    assert kept.sum() == 1 or p == 1 or weights[kept].sum() - weights[kept].min() < p + 1e-12


def test_top_k_comes_before_top_p() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    assert supports.support(logits, 2, 0.5).tolist() == [True, False, False, False]  # 0.4 of 0.7 is more than a half
    assert supports.support(logits, None, 0.5).tolist() == [True, True, False, False]


def test_greedy_requests_stop_at_the_first_draft_that_is_not_the_argmax() -> None:
    counts = [2, 0, 3]
    drafts, argmax = np.array([1, 2, 3, 4, 5]), np.array([1, 9, 3, 4, 5])
    found = rejection.greedy(counts, drafts, argmax, np.array([10, 11, 12]))
    assert found.tolist() == [[1, 9, -1, -1], [11, -1, -1, -1], [3, 4, 5, 12]]


@pytest.mark.parametrize("ngram", [False, True])
def test_accepted_and_recovered_tokens_follow_the_target(ngram: bool) -> None:
    """The point of rejection sampling: whatever the draft, the first token is distributed as the target says."""
    draws, random = 60_000, np.random.default_rng(7)
    target = np.repeat(distributions(1, 1), draws, axis=0)
    draft = np.repeat(distributions(1, 2), draws, axis=0)
    drafts = np.full(draws, 3) if ngram else random.choice(VOCABULARY, size=draws, p=draft[0] / draft[0].sum())
    probabilities = None if ngram else draft
    counts = [1] * draws
    exponential = random.exponential(size=(draws, VOCABULARY))
    recovered = rejection.recovered(counts, drafts, probabilities, target, exponential)
    found = rejection.random(
        counts, drafts, probabilities, target, np.zeros(draws, int), recovered, random.random(draws)
    )
    frequencies = np.bincount(found[:, 0], minlength=VOCABULARY) / draws
    assert np.abs(frequencies - target[0]).max() < 0.01


def test_no_draft_and_drafts_without_probability_are_never_accepted() -> None:
    target = distributions(1, 3)[0]
    assert not rejection.accepts(-1, target, None, 0.0)
    assert not rejection.accepts(2, target, np.zeros(VOCABULARY, np.float32), 0.0)
    assert rejection.accepts(2, target, target, 0.999)


def replayed(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Processed and unmasked logits of 3 requests, their masks and tokens, requests' counts, rows of the tokens."""
    random = np.random.default_rng(seed)
    first, committed = np.array([0, 3, 4, 6]), np.array([2, 1, 2])
    unmasked = random.normal(size=(6, VOCABULARY)).astype(np.float32)
    kept = np.array([supports.support(row, 4, 0.9) for row in unmasked])
    processed = np.where(kept, unmasked, np.float32(-np.inf))
    rows = supports.committed_rows(first, committed)
    tokens = np.array([random.choice(np.flatnonzero(kept[row])) for row in rows])
    return processed, unmasked, kept[rows], tokens, committed, rows


@pytest.mark.parametrize("seed", range(5))
def test_a_right_mask_passes_every_check_and_a_wrong_one_does_not(seed: int) -> None:
    processed, unmasked, right, tokens, committed, rows = replayed(seed)
    assert rows == [0, 1, 3, 4, 5]
    assert mask_replay.membership(tokens, right) == []
    assert mask_replay.row_alignment(committed, committed) == []
    assert mask_replay.support_alignment(right, processed, rows) == []
    assert mask_replay.reconstruction(right, unmasked, processed, rows) == []
    without = right.copy()
    without[1, tokens[1]] = False
    assert mask_replay.membership(tokens, without)[0].startswith(f"token 1: id {tokens[1]} is not in its mask")
    assert "differ in 1 ids" in mask_replay.support_alignment(without, processed, rows)[0]
    assert len(mask_replay.reconstruction(without, unmasked, processed, rows)) == 1
    shifted = np.roll(right, 1, axis=0)
    assert any("it is that of row" in line for line in mask_replay.support_alignment(shifted, processed, rows))
    assert mask_replay.row_alignment(committed[::-1] + 1, committed) != []


def test_agreement_looks_through_the_classes_of_a_version() -> None:
    class Lists:
        ids, more = np.array([1, 2]), "anything"

    expected = ([[1], []], {"ids": np.array([1, 2])})
    assert agrees(expected, ([[1], []], Lists()))
    assert not agrees(expected, ([[1], [2]], Lists()))
    assert not agrees(expected, ([[1], []], None))
    assert not agrees(np.array([0.0]), np.array([-0.0])) and not agrees(np.array([1]), np.array([1.0]))
    assert opinion([1], [1], [2]) == "the oracle agrees with base"
    assert opinion([1], [3], [2]) == "the oracle agrees with neither"
