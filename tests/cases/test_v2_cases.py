"""V2 case files: their cases build and are named apart; rows, guard rows and adapters are what they say they are."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from difftest.call.values import case_id
from difftest.cases import axes, v2_batch, v2_rejection, v2_state
from difftest.catalog import case_modules
from difftest.errors import ApiChange
from difftest.target import Case, Target

MODULES = [importlib.import_module(name) for name in case_modules() if ".v2_" in name]
TARGETS = [target for module in MODULES for target in getattr(module, "TARGETS", ())]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_cases_have_labels_of_their_own_and_the_same_content_each_time(target: Target) -> None:
    made: list[Case] = list(target.cases())
    assert len({case.label for case in made}) == len(made) >= 15
    assert [case.label for case in target.cases()] == [case.label for case in made]
    assert made[0].contract
    some = made[:: max(1, len(made) // 20)]
    first = [case_id(target.name, case.build()) for case in some]
    assert first == [case_id(target.name, case.build()) for case in some]
    assert len(set(first)) > 0.9 * len(first)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_most_cases_are_what_production_sends(target: Target) -> None:
    inside = [case.contract for case in target.cases()]
    assert sum(inside) >= 0.3 * len(inside)


def test_a_kernel_target_runs_under_the_interpreter() -> None:
    plain = {target.name for target in TARGETS if not target.triton}
    assert plain <= {"v2.repeated_contexts", "v2.draft_watermarks", "v2.grammar_invalid_drafts"}


@pytest.mark.parametrize("pattern", v2_batch.MAPPINGS)
def test_rows_map_to_slots_that_exist(pattern: str) -> None:
    for count in range(6):
        slots = v2_batch.map_rows(pattern, count)
        assert len(slots) == count
        assert all(-1 <= slot < v2_batch.SLOTS for slot in slots)
        assert (-1 in slots) == (pattern.startswith("-1") and count > ("middle" in pattern or "end" in pattern))


def test_requests_of_one_batch_have_slots_of_their_own() -> None:
    for count in range(1, 12):
        slots = v2_batch.map_rows("permuted", count, max(v2_batch.SLOTS, count + 1))
        assert len(set(slots)) == count


def test_rows_of_requests_with_drafts() -> None:
    rows = v2_batch.Rows((2, 0, 1), (4, 1, 0))
    assert (rows.first, rows.count) == ([0, 3, 4, 6], 6)
    assert rows.expand(rows.slots) == [4, 4, 4, 1, 0, 0]
    assert rows.local == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize("layout", axes.LAYOUTS[:-1])
def test_an_id_beyond_either_end_lands_on_a_guard_row(layout: str) -> None:
    logits = v2_batch.guarded_logits("random", 3, 9, axes.stream(layout), layout=layout)
    start = logits.untyped_storage().data_ptr()
    end = start + logits.untyped_storage().nbytes()
    first = logits.data_ptr()
    for place in (-1, 2 * logits.stride(0) + 9):  # kernels take the ids of a row to lie side by side
        assert start <= first + 4 * place < end, place


def test_state_tensors_hold_stale_values_wherever_no_request_is() -> None:
    state = v2_batch.per_slot([0.5, 0.9], [4, -1], 0.7, torch.float32)
    assert state.tolist() == pytest.approx([0.7, 0.7, 0.7, 0.7, 0.5, 0.7])
    assert state.storage_offset() == 1
    assert state.as_strided((1,), (1,), 0).item() == pytest.approx(0.7)


def test_placeholders_are_judged_where_the_row_before_ends_with_a_likely_id() -> None:
    row = {**axes.plain(v2_rejection.AXES), "draft ids": "-1 everywhere"}
    pool = v2_rejection.step_pool(row, axes.stream("placeholders"))
    assert (pool["draft_sampled"] == -1).sum() == sum(row["drafts"])
    assert (pool["target_logits"].argmax(-1) == row["vocab"] - 1).all()


def test_older_functions_get_one_slot_a_row_under_the_older_name() -> None:
    def old(logits: Any, idx_mapping: Any) -> None: ...

    def new(logits: Any, idx_mapping: Any, expanded_idx_mapping: Any) -> None: ...

    values = {"idx_mapping": [1], "expanded_idx_mapping": [1, 1]}
    notes: list[str] = []
    arm = SimpleNamespace(note=notes.append)
    assert v2_batch.expanded_only(arm, new, values)["idx_mapping"] == [1]
    assert not notes
    assert v2_batch.expanded_only(arm, old, values)["idx_mapping"] == [1, 1]
    assert notes == ["idx_mapping is expanded_idx_mapping of the case"]


class _Kernel:
    """A kernel that writes down what it is launched with."""

    def __init__(self) -> None:
        self.launched: list[Any] = []

    @staticmethod
    def fn(logits_ptr: Any, idx_mapping_ptr: Any, BLOCK_SIZE: Any, FLAG: Any = False) -> None: ...

    def __getitem__(self, grid: Any) -> Any:
        return lambda **arguments: self.launched.append((grid, arguments))


def test_a_launch_takes_what_the_kernel_knows_by_any_of_its_names() -> None:
    kernel: Any = _Kernel()
    values = {"logits_ptr": 1, "expanded_idx_mapping_ptr": 2, "BLOCK_SIZE": 16, "cache_ptr": 3}
    names = {"expanded_idx_mapping_ptr": ("idx_mapping_ptr",)}
    call = v2_batch.launch(None, kernel, (2, 3), values, names)  # type: ignore[arg-type]
    call.fn(**call.kwargs)
    assert kernel.launched == [((2, 3), {"logits_ptr": 1, "idx_mapping_ptr": 2, "BLOCK_SIZE": 16})]


def test_a_launch_refuses_by_name_what_the_case_lacks() -> None:
    kernel: Any = _Kernel()
    with pytest.raises(ApiChange, match="requires idx_mapping_ptr, BLOCK_SIZE"):
        v2_batch.launch(None, kernel, (1,), {"logits_ptr": 1})  # type: ignore[arg-type]


def test_a_state_that_processes_under_another_name_is_an_api_change() -> None:
    with pytest.raises(ApiChange, match="has none of apply"):
        v2_state.process(None, SimpleNamespace(), ("apply",), torch.zeros(1, 2), {})  # type: ignore[arg-type]


def test_request_states_share_the_memory_of_the_case() -> None:
    pool = v2_state.token_state(axes.stream("states"), 9, [2, 1], [3, 3], [4, 4])
    states = v2_state.request_states(pool, 9)
    states.prompt_len.np[1] = 7
    assert pool["prompt_len"][1] == 7
    assert isinstance(states.total_len.np, np.ndarray)
    assert states.max_num_reqs == v2_batch.SLOTS
