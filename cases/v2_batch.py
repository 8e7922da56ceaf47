"""What the Model Runner V2 cases share: the rows of a step, state slots with guard rows, and launches of raw kernels.

In V2 a request owns a *slot* of the state tensors; a step maps its rows to slots. A row is a logits row: a request
has one, and one more for each of its draft tokens. Slots that no row maps to hold values that a wrong index would
show, and so do the guard rows before the first slot, where an index of -1 lands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from difftest.cases.axes import FAR_ROWS, LOGITS, Stream, Tensor, guarded, lay_out
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Pool, Prepare

GPU = "vllm.v1.worker.gpu"
SLOTS = 6
"""State slots of ordinary cases; a batch maps to some of them."""

MAPPINGS = ("permuted", "identity", "two rows of one slot", "-1 at the end", "-1 in the middle", "-1 everywhere")
"""How rows map to slots; -1 marks rows that pad a captured graph."""


def slots_for(count: int) -> int:
    """State slots of a batch: a few that rows share, or one for each request of a batch as large as a server's."""
    return max(SLOTS, count) if count < 32 else count + 1


def block_of(vocab: int) -> int:
    """Ids a block of a kernel that is launched as it is: small ones in cases, those of a server in timing shapes."""
    return 16 if vocab < 32_000 else 1024


def map_rows(pattern: str, count: int, slots: int = 0) -> list[int]:
    """One slot for each of `count` requests; the highest slot stays unused when there is room."""
    slots = slots or (SLOTS if count < 32 else slots_for(count))
    room = max(1, slots - 1)
    plain = list(range(count)) if pattern == "identity" else [(2 - row) % room for row in range(count)]
    if pattern == "two rows of one slot" and count > 1:
        plain[1] = plain[0]
    elif pattern == "-1 at the end":
        plain[count - count // 2 :] = [-1] * (count // 2)
    elif pattern == "-1 in the middle" and count > 1:
        plain[count // 2] = -1
    elif pattern == "-1 everywhere":
        plain = [-1] * count
    return [slot % slots if slot >= 0 else slot for slot in plain]


@dataclass(frozen=True)
class Rows:
    """The rows of a step.

    Attributes:
        drafts: draft tokens of each request.
        slots: state slot of each request.
        first: index of each request's first row, and the number of rows at the end.
    """

    drafts: tuple[int, ...]
    slots: tuple[int, ...]

    @property
    def first(self) -> list[int]:
        ends = [0]
        for count in self.drafts:
            ends.append(ends[-1] + count + 1)
        return ends

    @property
    def count(self) -> int:
        return self.first[-1]

    def expand(self, values: Sequence[int]) -> list[int]:
        """One value a row from one value a request."""
        return [value for value, drafts in zip(values, self.drafts, strict=True) for _ in range(drafts + 1)]

    @property
    def local(self) -> list[int]:
        """Position of each row among those of its request."""
        return [position for drafts in self.drafts for position in range(drafts + 1)]

    def pool(self) -> Pool:
        """`idx_mapping` [requests], `expanded_idx_mapping` and `expanded_local_pos` [rows], `cu_num_logits`
        [requests + 1]; all int32, as the runner makes them."""
        return {
            "idx_mapping": torch.tensor(self.slots, dtype=torch.int32),
            "expanded_idx_mapping": torch.tensor(self.expand(self.slots), dtype=torch.int32),
            "expanded_local_pos": torch.tensor(self.local, dtype=torch.int32),
            "cu_num_logits": torch.tensor(self.first, dtype=torch.int32),
        }


def rows_of(drafts: Sequence[int], mapping: str = "permuted", slots: int = 0) -> Rows:
    """The rows of requests with so many draft tokens each."""
    return Rows(tuple(drafts), tuple(map_rows(mapping, len(drafts), slots)))


def guarded_logits(
    pattern: str, rows: int, vocab: int, s: Stream, dtype: torch.dtype = torch.float32, layout: str = "contiguous"
) -> Tensor:
    """Logits [rows, vocab] as :func:`axes.logits`, between two more rows of their storage.

    For code that writes to logits by token id: an id of -1 or V in the first or last row lands on a guard row. Rows
    past 2^31 have none, so that the last of them does begin there.
    """
    values = LOGITS[pattern](s, rows, vocab, dtype)
    if layout == FAR_ROWS:
        return lay_out(values, layout)
    guard = torch.full((1, vocab), 7.0, dtype=dtype)
    return lay_out(torch.cat((guard, values, guard)), layout)[1:-1]


def per_slot(values: Sequence[float], row_slots: Sequence[int], stale: float, dtype: torch.dtype) -> Tensor:
    """A state tensor [slots] between guard slots: `values[i]` in the slot of request i, `stale` everywhere else."""
    state = torch.full((slots_for(len(values)),), stale, dtype=dtype)
    for slot, value in zip(row_slots, values, strict=True):
        if slot >= 0:
            state[slot] = value
    return guarded(state, fill=stale)


SEED_VALUES = ("plain", "zero", "equal", "negative", "ends of int64", "above 2^32")


def seed_values(pattern: str, count: int, s: Stream) -> list[int]:
    """One int64 seed a request."""
    plain = [s.integer(1, 1 << 30) for _ in range(count)]
    return {
        "plain": plain,
        "zero": [0] * count,
        "equal": [7] * count,
        "negative": [-seed for seed in plain],
        "ends of int64": [(-(2**63), 2**63 - 1, -1)[row % 3] for row in range(count)],
        "above 2^32": [(seed << 33) + 5 for seed in plain],
    }[pattern]


def slot_seeds(pattern: str, slots: Sequence[int], s: Stream) -> Tensor:
    """Seeds [slots] between guard slots, int64."""
    state = torch.full((slots_for(len(slots)),), 4242, dtype=torch.int64)
    for slot, seed in zip(slots, seed_values(pattern, len(slots), s), strict=True):
        if slot >= 0:
            state[slot] = seed
    return guarded(state, fill=4242)


POSITIONS = ("plain", "zero", "equal", "above 2^30")


def row_positions(pattern: str, rows: int, s: Stream) -> Tensor:
    """Sequence position of each row, int64 [rows]."""
    plain = s.integers(1, 5000, (rows,))
    if pattern == "zero":
        return torch.zeros_like(plain)
    if pattern == "equal":
        return torch.full_like(plain, 17)
    return plain + (1 << 30) if pattern == "above 2^30" else plain


# -- calls ---------------------------------------------------------------------------------------------------------


def expanded_only(arm: Arm, function: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values in which `idx_mapping` is one slot a row where the arm's function knows no other mapping.

    Until March 2026 that was the name of what is `expanded_idx_mapping` since.
    """
    if "idx_mapping" in takes(function) and "expanded_idx_mapping" not in takes(function):
        arm.note("idx_mapping is expanded_idx_mapping of the case")
        return {**values, "idx_mapping": values["expanded_idx_mapping"]}
    return dict(values)


def by_name(*symbols: str, **renamed: str) -> Prepare:
    """Calls the first symbol that the arm has with what it asks for by name; `renamed` as in :meth:`Arm.bind`."""

    def prepare(arm: Arm, pool: Pool) -> Call:
        function = arm.first(*symbols)
        return Call(function, kwargs=arm.bind(function, pool, **renamed))

    return prepare


def launch(
    arm: Arm,
    kernel: Any,
    grid: tuple[int, ...],
    values: Mapping[str, Any],
    others: Mapping[str, Sequence[str]] | None = None,
) -> Call:
    """A launch of a raw kernel.

    Args:
        kernel: the arm's kernel.
        values: arguments by the kernel's names; what the kernel does not take is left out.
        others: further names that versions use for an argument, by its name in `values`.

    Raises:
        ApiChange: the kernel asks for something that `values` lacks.
    """
    known = dict(values)
    for name, alternatives in (others or {}).items():
        if name in known:
            for alternative in alternatives:
                known.setdefault(alternative, known[name])
    parameters = inspect.signature(kernel.fn).parameters
    lacking = [name for name, p in parameters.items() if name not in known and p.default is p.empty]
    if lacking:
        raise ApiChange(f"kernel {kernel.fn.__qualname__} requires {', '.join(lacking)}")
    kwargs = {name: known[name] for name in parameters if name in known}
    return Call(lambda **arguments: kernel[grid](**arguments), kwargs=kwargs)


def strides(**tensors: Tensor) -> dict[str, int]:
    """`<name>_stride` of each tensor's first axis, as kernels take them; 0 for None."""
    return {f"{name}_stride": t.stride(0) if t is not None else 0 for name, t in tensors.items()}


def one_of(row: Mapping[str, Any], axis: str, values: Sequence[Any]) -> bool:
    """Whether the row's value of the axis is one of these."""
    return any(row[axis] is value or row[axis] == value for value in values)


Build = Callable[[Mapping[str, Any], Stream], Pool]
