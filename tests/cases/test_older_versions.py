"""Cases hand older versions what these took, and what older versions lack is refused, not skipped."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from difftest.cases import (
    v1_bad_words,
    v1_logits_processors,
    v1_outputs,
    v1_parse_output,
    v1_rejection,
    v1_rejection_helpers,
    v1_rejection_sampler,
    v2_bad_words,
    v2_logit_bias,
    v2_penalties,
    v2_rejection,
    v2_sampler,
    v2_states,
    v2_thinking_budget,
)
from difftest.errors import ApiChange
from difftest.lift.arm import LiftedArm
from difftest.lift.loader import Loader
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIns
from difftest.target import Case, Pool, Target


class Version(LiftedArm):
    """An arm over objects of this test file."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        super().__init__(
            "base", Loader("base", Sources(lambda name: None, lambda path: None), StandIns(), lambda m: "")
        )
        self._objects = dict(objects)

    def has(self, symbol: str) -> bool:
        return symbol in self._objects


def target(module: Any, name: str) -> Target:
    found: Target = next(each for each in module.TARGETS if each.name == name)
    return found


def cases_of(module: Any, name: str) -> list[Case]:
    return list(target(module, name).cases())


# -- penalties and their metadata --------------------------------------------------------------------------------------


def _before_slots(logits: Any, temperature: Any) -> None: ...


def _with_slots(logits: Any, idx_mapping: Any, temperature: Any) -> None: ...


def _fused(logits: Any, sampling_metadata: Any) -> None: ...


def fused_metadata(pool: Pool, gumbel_sample: Any) -> Any:
    arm = Version({v2_penalties.FUSED: _fused, v2_penalties.GUMBEL_SAMPLE[0]: gumbel_sample})
    return v2_penalties.prepare_fused(arm, pool).kwargs["sampling_metadata"]


def test_metadata_of_penalties_is_one_a_row_or_one_a_slot_as_its_version_reads_it() -> None:
    pool = cases_of(v2_penalties, "v2.penalties_and_temperature")[0].build()
    slots = pool["expanded_idx_mapping"].long()
    by_row, by_slot = fused_metadata(pool, _before_slots), fused_metadata(pool, _with_slots)
    for name in ("temperature", "repetition_penalty", "frequency_penalty", "presence_penalty"):
        assert torch.equal(getattr(by_row, name), pool[name][slots])
        assert torch.equal(getattr(by_slot, name), pool[name])


def test_counts_of_prompt_tokens_say_what_the_mask_says() -> None:
    pool = cases_of(v2_penalties, "v2.penalties_and_temperature")[0].build()
    made = fused_metadata(pool, _before_slots)
    words, vocab = pool["prompt_bin_mask"], pool["logits"].shape[1]
    assert made.prompt_bin_counts.shape == pool["output_bin_counts"].shape == (len(words), vocab)
    for slot, token in itertools.product(range(len(words)), range(vocab)):
        said = bool(int(words[slot, token // 32]) >> token % 32 & 1)
        assert bool(made.prompt_bin_counts[slot, token]) == said


# -- stages of sampling states -----------------------------------------------------------------------------------------


def _sampling_states(**more: Any) -> SimpleNamespace:
    def held(values: list[float]) -> SimpleNamespace:
        return SimpleNamespace(np=np.array(values), gpu=torch.tensor(values))

    return SimpleNamespace(
        temperature=held([0.5, 1.0]),
        min_p=held([0.0, 0.0]),
        top_k=held([9, 9]),
        top_p=held([1.0, 1.0]),
        **{"do_min_p": lambda s: False, "do_top_k": lambda s: False, "do_top_p": lambda s: False, **more},
    )


def stages(arm: Version, state: Any) -> torch.Tensor:
    slots = torch.tensor([0, 1], dtype=torch.int32)
    made: torch.Tensor = v2_states.run_stages(arm, state, torch.ones(2, 9), slots, slots.numpy())
    return made


def _apply_temperature(logits: torch.Tensor, idx_mapping: torch.Tensor, temperature: torch.Tensor) -> None:
    logits /= temperature[idx_mapping.long()].unsqueeze(-1)


def _top_k_top_p(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
    assert k is not None and p is None
    return logits + k.unsqueeze(-1)


def test_a_stage_that_a_version_has_outside_is_run_as_its_sampler_did() -> None:
    functions = v2_states.STAGE_FUNCTIONS
    arm = Version({functions["apply_temperature"]: _apply_temperature, functions["apply_top_k_top_p"]: _top_k_top_p})
    assert stages(arm, _sampling_states()).tolist() == [[2.0] * 9, [1.0] * 9]
    assert list(arm.notes) == [
        "SamplingStates has no apply_temperature: the function is called, as the sampler of this version did"
    ]
    assert stages(arm, _sampling_states(do_top_k=lambda s: True)).tolist() == [[11.0] * 9, [10.0] * 9]


def test_a_stage_that_a_version_has_nowhere_is_refused_where_a_request_needs_it() -> None:
    with pytest.raises(ApiChange, match="no apply_temperature, neither"):
        stages(Version({}), _sampling_states())
    state = _sampling_states()
    state.temperature.np[:] = 1.0
    assert (stages(Version({}), state) == 1).all()
    del state.do_min_p
    with pytest.raises(ApiChange, match="neither apply_min_p nor do_min_p"):
        stages(Version({}), state)


# -- parse_output ------------------------------------------------------------------------------------------------------


class Lists(NamedTuple):
    logprob_token_ids: Any
    logprobs: Any
    sampled_token_ranks: Any
    cu_num_generated_tokens: list[int] | None = None


class Tensors(NamedTuple):
    logprob_token_ids: Any
    logprobs: Any
    selected_token_ranks: Any

    def tolists(self) -> Any:
        raise AssertionError("not part of parse_output")


def _bare(output_token_ids: torch.Tensor, vocab_size: int) -> list[list[int]]:
    return [[token for token in row if token != -1] for row in output_token_ids.tolist()]


def _with_starts(
    output_token_ids: torch.Tensor, vocab_size: int, discard_req_indices: Any = (), return_cu_num_tokens: bool = False
) -> tuple[list[list[int]], list[int] | None]:
    found = _bare(output_token_ids, vocab_size)
    return found, [0, *itertools.accumulate(map(len, found))] if return_cu_num_tokens else None


def parse(function: Any, pool: Pool) -> tuple[Any, Version]:
    arm = Version({v1_parse_output.PARSE_OUTPUT: function, v1_parse_output.LOGPROBS_LISTS: Lists})
    return v1_parse_output.prepare(arm, pool).fn(), arm


def parse_pools() -> dict[bool, Pool]:
    ids = torch.tensor([[3, 4, -1], [5, -1, -1]], dtype=torch.int32)
    plain: Pool = {"output_token_ids": ids, "vocab_size": 32}
    tensors = Tensors(torch.arange(6)[:, None], -torch.arange(6.0)[:, None], torch.arange(6))
    return {False: plain, True: {**plain, "logprobs_tensors": tensors}}


def test_parse_output_of_a_version_without_logprobs_is_refused_with_them_only() -> None:
    pools = parse_pools()
    found, arm = parse(_bare, pools[False])
    assert found == ([[3, 4], [5]], None)
    assert any(note.startswith("returns the ids alone; later versions return (ids, logprobs)") for note in arm.notes)
    with pytest.raises(ApiChange, match="nothing to do with logprobs"):
        parse(_bare, pools[True])


def test_rows_of_logprobs_are_put_beside_what_parse_output_says_of_them() -> None:
    (tokens, lists), _ = parse(_with_starts, parse_pools()[True])
    assert tokens == [[3, 4], [5]]
    assert lists.cu_num_generated_tokens == [0, 2, 3]
    assert lists.logprob_token_ids.tolist() == [[0], [1], [3]]


# -- targets of forms that came to an end ------------------------------------------------------------------------------


class Sliced(NamedTuple):
    logprob_token_ids: Any
    logprobs: Any
    sampled_token_ranks: Any
    cu_num_generated_tokens: list[int] | None = None

    def slice(self, start_req_idx: int, end_req_idx: int) -> Any:
        return start_req_idx, end_req_idx, self.cu_num_generated_tokens


def test_a_slice_of_lists_is_compared_with_its_boundaries_over_one_request_and_over_several() -> None:
    made = cases_of(v1_outputs, "v1.logprobs_lists_slice")
    arm = Version({v1_outputs.LISTS: Sliced})
    spans = set()
    for case in made:
        pool = case.build()
        call = v1_outputs.prepare_range(arm, pool)
        start, end, held = call.fn(*call.args)
        assert held == pool["fields"]["cu_num_generated_tokens"]
        if case.contract and held:
            spans.add((end - start, start > 0))
    assert {(1, True), (1, False), (2, True), (2, False), (4, False)} <= spans


def test_logits_and_probabilities_are_no_two_forms_of_one_target() -> None:
    logits = target(v1_rejection_helpers, "v1.apply_sampling_constraints")
    probabilities = target(v1_rejection_helpers, "v1.compute_probs")
    assert not set(logits.symbols) & set(probabilities.symbols)


# -- requests that the oldest samplers knew ----------------------------------------------------------------------------


def test_stages_that_do_not_commute_meet_in_requests_that_the_oldest_sampler_knew() -> None:
    known = {"temperature", "top_k", "top_p", "seed", "logprobs", *(f"{kind}_penalty" for kind in v2_sampler.PENALTIES)}
    met = set()
    for case in cases_of(v2_sampler, "v2.sampler"):
        pool = case.build()
        asked = [name for request in pool["requests"] for name in request]
        if not case.contract or not set(asked) <= known:
            continue
        for request in pool["requests"]:
            if any(name.endswith("_penalty") for name in request):
                met |= {name for name in ("temperature", "top_k", "top_p") if request.get(name, 1.0) not in (0.0, 1.0)}
                met |= {pool["logprobs_mode"]} if request.get("logprobs") else set()
    assert met >= {"temperature", "top_k", "top_p", "processed_logprobs"}


def test_features_of_rejection_sampling_are_met_without_logprobs() -> None:
    plain = [
        case.build()
        for case in cases_of(v1_rejection_sampler, "v1.rejection_sampler")
        if case.contract and case.axes["logprobs"] == "none" and case.axes["acceptance rates"] == "none"
    ]
    assert sum(not pool.get("no_penalties", True) for pool in plain) >= 10
    assert sum(bool(pool["bad_words_token_ids"]) for pool in plain) >= 4
    assert sum(pool["allowed_token_ids_mask"] is not None and bool(pool["output_token_ids"]) for pool in plain) >= 2


# -- inside and outside the contract -----------------------------------------------------------------------------------

EMPTY = (
    (v1_bad_words, "v1.bad_words"),
    (v1_bad_words, "v1.bad_words_with_drafts"),
    (v1_logits_processors, "v1.min_tokens_with_drafts"),
    (v1_rejection, "v1.rejection_sample"),
    (v1_rejection, "v1.sample_recovered_tokens"),
    (v2_bad_words, "v2.apply_bad_words"),
    (v2_bad_words, "v2.bad_words_state"),
    (v2_logit_bias, "v2.logit_bias_state"),
    (v2_penalties, "v2.apply_penalties"),
    (v2_penalties, "v2.penalties_state"),
    (v2_rejection, "v2.rejection_sample"),
    (v2_states, "v2.sampling_states"),
    (v2_thinking_budget, "v2.apply_thinking_budget"),
    (v2_thinking_budget, "v2.thinking_budget_state"),
)


@pytest.mark.parametrize(("module", "name"), EMPTY, ids=lambda each: each if isinstance(each, str) else "")
def test_a_batch_of_no_request_is_compared_outside_the_contract(module: Any, name: str) -> None:
    words = ("no request", "no row", "requests 0", "batch 0", "drafts ()")
    (case,) = [case for case in cases_of(module, name) if any(each in case.label for each in words)]
    assert not case.contract
    pool = case.build()
    rows = next(pool[key] for key in ("logits", "target_logits", "target_probs") if key in pool)
    assert rows.shape[0] == 0


@pytest.mark.parametrize("name", ["v1.min_p", "v1.logit_bias", "v1.min_tokens", "v1.min_tokens_with_drafts"])
def test_processors_get_float32_logits_in_production(name: str) -> None:
    made = cases_of(v1_logits_processors, name)
    assert all(case.axes["dtype"] == "float32" for case in made if case.contract)
    assert any(case.axes["dtype"] != "float32" for case in made)


# -- the runner's output tokens ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Metadata:
    output_token_ids: list[list[int]]
    spec_token_ids: list[list[int]] | None = None


def test_a_runner_that_always_passed_output_tokens_passes_a_list_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(v1_rejection_sampler, "sampling_metadata", lambda arm, pool: given.append(pool))
    monkeypatch.setattr(v1_rejection_sampler, "mark_greedy", lambda arm, pool: None)
    pool: Pool = {"output_token_ids": [], "num_draft_tokens": [2, 0, 1]}
    runner = {v1_rejection_sampler.METADATA: Metadata, v1_rejection_sampler.RUNNER_METADATA: object()}
    for later in ({}, {v1_rejection_sampler.RUNNER_LEAVES_OUT: object()}):
        v1_rejection_sampler.make_metadata(Version({**runner, **later}), dict(pool))
    assert [each["output_token_ids"] for each in given] == [[[], [], []], []]
