"""V1 case files: their cases build, are named apart and stay inside their time; adapters make what a version takes."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from difftest.call.values import case_id
from difftest.cases import (
    v1_bad_words,
    v1_logits_processors,
    v1_logprobs,
    v1_metadata,
    v1_penalties,
    v1_sampler,
    v1_sampler_parts,
    v1_thinking_budget,
    v1_top_p_split,
    v1_topk_topp,
)
from difftest.errors import ApiChange
from difftest.lift.arm import LiftedArm
from difftest.lift.loader import Loader
from difftest.lift.sources import Sources
from difftest.lift.standins import StandIns
from difftest.profiles.vllm import Platform, SamplingParams
from difftest.target import Case, Pool, Target

MODULES = (
    v1_bad_words,
    v1_logits_processors,
    v1_logprobs,
    v1_penalties,
    v1_sampler,
    v1_sampler_parts,
    v1_thinking_budget,
    v1_top_p_split,
    v1_topk_topp,
)
TARGETS = [target for module in MODULES for target in module.TARGETS]


def cases(target: Target) -> list[Case]:
    return list(target.cases())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_cases_have_labels_of_their_own_and_the_same_content_each_time(target: Target) -> None:
    made = cases(target)
    assert len({case.label for case in made}) == len(made) >= 40
    assert [case.label for case in cases(target)] == [case.label for case in made]
    assert made[0].contract
    some = made[:: max(1, len(made) // 60)]
    first = [case_id(target.name, case.build()) for case in some]
    assert first == [case_id(target.name, case.build()) for case in some]
    # Where a batch is empty, a few axes make no difference.
    assert len(set(first)) > 0.9 * len(first)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_targets_name_the_symbols_they_bind(target: Target) -> None:
    assert target.name.startswith("v1.")
    assert all(symbol.startswith("vllm.") and symbol.count(":") == 1 for symbol in target.symbols + target.uses)
    assert not target.triton or len(cases(target)) < 400


def test_raw_symbols_that_histories_of_changes_name_are_bound() -> None:
    bound = {symbol for target in TARGETS for symbol in (*target.symbols, *target.uses)}
    for symbol in (
        "vllm.v1.sample.sampler:Sampler.forward",
        "vllm.v1.sample.sampler:Sampler.apply_temperature",
        "vllm.v1.sample.sampler:Sampler.gather_logprobs",
        "vllm.v1.sample.logits_processor:MinPLogitsProcessor",
        "vllm.v1.sample.logits_processor.builtin:MinPLogitsProcessor.update_state",
        "vllm.v1.sample.ops.penalties:apply_all_penalties",
        "vllm.v1.sample.ops.bad_words:apply_bad_words",
        "vllm.v1.sample.ops.bad_words:_apply_bad_words_single_batch",
        "vllm.v1.sample.ops.logprobs:batched_count_greater_than",
        "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p",
        "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p_pytorch",
        "vllm.v1.sample.ops.topk_topp_sampler:random_sample",
        "vllm.v1.sample.ops.topk_topp_triton:apply_top_k_top_p_triton",
    ):
        assert symbol in bound


# --- a version of our own ---------------------------------------------------------------------------------------------


class Direction(enum.Enum):
    UNIDIRECTIONAL = 0
    SWAP = 1


@dataclasses.dataclass
class Update:
    batch_size: int
    removed: list[int]
    added: list[Any]
    moved: list[Any]


class Processor:
    """Notes its updates and leaves logits alone."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.most = vllm_config.scheduler_config.max_num_seqs
        self.updates: list[Any] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, update: Any) -> None:
        self.updates.append(update)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class OldProcessor(Processor):
    def __init__(self, max_num_reqs: int, pin_memory: bool, device: torch.device) -> None:
        self.most = max_num_reqs
        self.updates = []


class Processors:
    def __init__(self, logitsprocs: Iterable[Any] | None = None) -> None:
        self.all = list(logitsprocs or ())


@dataclasses.dataclass
class Manager:
    argmax_invariant: list[Any]
    non_argmax_invariant: list[Any]


@dataclasses.dataclass
class Metadata:
    temperature: torch.Tensor | None
    all_greedy: bool
    output_token_ids: list[list[int]]
    logitsprocs: Any
    spec_token_ids: list[list[int]] | None = None


@dataclasses.dataclass
class OldMetadata:
    temperature: torch.Tensor | None
    min_p: torch.Tensor | None
    logit_bias: list[dict[int, float] | None]
    min_tokens: dict[int, tuple[int, set[int]]]
    output_token_ids: list[list[int]]


class Version(LiftedArm):
    """An arm over objects of this test file."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        nothing = Sources(lambda name: None, lambda path: None)
        super().__init__("base", Loader("base", nothing, StandIns(), lambda source: source.path))
        self._objects = dict(objects)

    def has(self, symbol: str) -> bool:
        return symbol in self._objects


def new_version(**changes: Any) -> Version:
    objects = {
        v1_metadata.METADATA: Metadata,
        v1_metadata.SAMPLING_PARAMS: SamplingParams,
        v1_metadata.PROCESSORS[0]: Processors,
        v1_metadata.BATCH_UPDATE[0]: Update,
        v1_metadata.ADDED_REQUEST[0]: tuple[int, SamplingParams, list[int] | None, list[int]],
        v1_metadata.MOVE_DIRECTIONALITY[0]: Direction,
        **{names[0]: Processor for names in (v1_metadata.MIN_P, v1_metadata.LOGIT_BIAS, v1_metadata.MIN_TOKENS)},
    }
    return Version({**objects, **changes})


def old_version() -> Version:
    return Version(
        {
            v1_metadata.SAMPLING_PARAMS: SamplingParams,
            v1_metadata.PROCESSORS[2]: Manager,
            v1_metadata.BATCH_UPDATE[1]: Update,
            v1_metadata.ADDED_REQUEST[1]: tuple[int, SamplingParams, list[int]],
            v1_metadata.MOVE_DIRECTIONALITY[1]: Direction,
            **{names[1]: OldProcessor for names in (v1_metadata.MIN_P, v1_metadata.LOGIT_BIAS, v1_metadata.MIN_TOKENS)},
        }
    )


STEP = {
    "size": 2,
    "removed": [3],
    "added": [(0, {"min_p": 0.5}, [1, 2], "a"), (1, {}, None, "b")],
    "moved": [(1, 0, True), (0, 2, False)],
}


def test_a_batch_update_is_what_each_version_calls_it() -> None:
    outputs: dict[str, list[int]] = {"a": [7], "b": []}
    new = v1_metadata.batch_update(new_version(), STEP, outputs)
    assert [request[0] for request in new.added] == [0, 1] and new.added[0][1].min_p == 0.5
    assert new.added[0][2] == [1, 2] and new.added[1][2] is None
    assert new.moved == [(1, 0, Direction.SWAP), (0, 2, Direction.UNIDIRECTIONAL)]
    old = v1_metadata.batch_update(old_version(), STEP, outputs)
    assert [len(request) for request in old.added] == [3, 3]
    for update in (new, old):
        assert update.added[0][-1] is outputs["a"], "processors follow the running list of output tokens"


def test_processors_are_made_as_each_version_makes_them() -> None:
    requests = [{"min_p": 0.5}, {}]
    new = v1_metadata.logits_processors(new_version(), 2, requests, [[1], []])
    assert [p.most for p in new.all] == [2, 2, 2]
    assert new.all[0].updates[0].added[0][1].min_p == 0.5
    old = v1_metadata.logits_processors(old_version(), 2, requests, [[1], []])
    assert len(old.non_argmax_invariant) == 3 and old.non_argmax_invariant[0].most == 2
    untouched = v1_metadata.logits_processors(new_version(), 2, [{}, {}], [[1], []])
    assert not untouched.all[0].updates


def pool(**changes: Any) -> Pool:
    fields: Pool = {
        "temperature": None,
        "all_greedy": True,
        "output_token_ids": [[1], [2, 3]],
        "requests": [{"min_p": 0.25, "logit_bias": {3: 1.0}}, {"min_tokens": 4, "stop_token_ids": [2]}],
        "thinking": [None, None],
        "spec_token_ids": None,
        "logprob_token_ids": None,
    }
    return {**fields, **changes}


def test_metadata_of_versions_before_processors_holds_their_parameters() -> None:
    arm = Version({v1_metadata.METADATA: OldMetadata})
    made = v1_metadata.sampling_metadata(arm, pool())
    assert made.min_p.tolist() == [0.25, 0.0] and made.logit_bias == [{3: 1.0}, None]
    assert made.min_tokens == {1: (4, {2})}
    assert v1_metadata.sampling_metadata(arm, pool(requests=[{}, {}])).min_p is None


@pytest.mark.parametrize(
    "feature", [{"logprob_token_ids": {0: [1]}}, {"thinking": [3, None]}], ids=["logprob ids", "thinking"]
)
def test_a_feature_that_a_version_lacks_is_refused_by_name(feature: Pool) -> None:
    with pytest.raises(ApiChange, match="SamplingMetadata has no"):
        v1_metadata.sampling_metadata(new_version(), pool(**feature))
    assert v1_metadata.sampling_metadata(new_version(), pool(spec_token_ids=[[1], []])).spec_token_ids == [
        [1],
        [],
    ]


def test_a_field_that_no_case_knows_is_an_api_change() -> None:
    @dataclasses.dataclass
    class Later(Metadata):
        temperature_of_the_room: float = dataclasses.field(kw_only=True)

    with pytest.raises(ApiChange, match="temperature_of_the_room"):
        v1_metadata.sampling_metadata(new_version(**{v1_metadata.METADATA: Later}), pool())


@pytest.mark.parametrize("real", ["cpu", "cuda"])
def test_the_platform_is_another_only_during_the_call(real: str) -> None:
    module = types.ModuleType("difftest_test_platform_user")
    module.current_platform = Platform(real, {})  # type: ignore[attr-defined]
    user = type("TopKTopPSampler", (), {"__module__": module.__name__})
    sys.modules[module.__name__] = module
    try:
        arm = Version({v1_metadata.PLATFORM_USER: user})
        asked: Callable[..., bool] = lambda: module.current_platform.is_cpu()  # noqa: E731
        assert v1_metadata.on_platform(arm, "cpu", asked)() is True
        assert v1_metadata.on_platform(arm, "accelerator", asked)() is False
        assert asked() is (real == "cpu")
    finally:
        del sys.modules[module.__name__]


def test_results_are_shown_by_field_so_that_fields_may_come_and_go() -> None:
    @dataclasses.dataclass
    class Output:
        tokens: list[int]
        later: Any = None

    assert v1_sampler.by_field(Output([1])) == {"tokens": [1]}
    assert v1_sampler.by_field((Output([1]), Output([2], 3))) == (
        {"tokens": [1]},
        {"tokens": [2], "later": 3},
    )


# --- what the cases hold ----------------------------------------------------------------------------------------------


def test_bad_words_match_across_the_boundary_between_committed_and_draft_tokens() -> None:
    made = [
        case.build()
        for case in v1_bad_words.TARGETS[1].cases()
        if case.axes["split"] == "1" and case.axes["length"] == "3" and case.axes["match"] == "at the end"
    ]
    assert made
    straddling = 0
    for one in made:
        for words in one["bad_words_token_ids"].values():
            prefixes = [word[:-1] for word in words if len(word) == 3]
            straddling += any(past[-2:] == prefix for past in one["past_tokens_ids"] for prefix in prefixes)
    assert straddling


def test_a_lifelike_batch_keeps_its_requests_without_holes() -> None:
    lifelike = [c for c in v1_logits_processors.TARGETS[0].cases() if c.axes["sequence"] == "lifelike"]
    assert len(lifelike) > 5
    for case in lifelike:
        held: set[int] = set()
        for step in case.build()["steps"]:
            held -= set(step["removed"])
            held |= {request[0] for request in step["added"]}
            for a, b, swap in step["moved"]:
                assert a in held
                if not swap:
                    held = (held - {a}) | {b}
            assert held == set(range(step["size"])), case.label


def test_removed_requests_of_a_lifelike_batch_are_told_from_the_last_to_the_first() -> None:
    for case in v1_logits_processors.TARGETS[0].cases():
        if case.axes["sequence"] == "lifelike":
            for step in case.build()["steps"]:
                assert step["removed"] == sorted(step["removed"], reverse=True)
