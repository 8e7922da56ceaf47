"""Relations and invariants that targets have in common, so that a case file declares them in a line.

They state what a sampler promises by definition, bit for bit: a request's result does not depend on its neighbours,
on its place in the batch, or on how its logits lie in memory; a filter that shuts nothing out is no filter; a greedy
request has no use for a seed. Where a version does not keep such a promise, the report says so of both arms.

Names of values are those of the pool; `return` is the result, `return.0` its first item, `return.ranks` a field of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from difftest.cases import axes
from difftest.target import Invariant, Pool, Relation, Seeded

EVERY = 12
"""A relation costs a call in each arm, so it is checked in one case in so many."""

When = Callable[[Pool], bool]


def _always(pool: Pool) -> bool:
    return True


# --- values -----------------------------------------------------------------------------------------------------------


def take(value: Any, order: Sequence[int]) -> Any:
    """Rows of a value in another order, or some of them.

    A tensor or an array is taken along its first axis, a list by its items, a mapping by its keys where they are row
    numbers; mappings from names, named tuples and data classes field by field. None stays None.
    """
    if isinstance(value, torch.Tensor):
        return value[torch.tensor(order, dtype=torch.int64)] if value.dim() else value
    if isinstance(value, np.ndarray):
        return value[np.array(order, dtype=np.int64)]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and value:
            return {key: take(item, order) for key, item in value.items()}
        return {new: value[old] for new, old in enumerate(order) if old in value}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[take(item, order) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: take(getattr(value, f.name), order) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [value[row] for row in order]
    return value


def unlike(one: Any, other: Any, at: str = "") -> str | None:
    """Where two values differ, in a line, or None. Numbers by their bits; classes do not count."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{at or 'it'} is {one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}"
        if not one.numel():
            return None
        width = one.element_size()
        apart = (axes.as_bytes(one) != axes.as_bytes(other)).view(-1, width).any(1).nonzero().flatten()
        if not len(apart):
            return None
        index = int(apart[0])
        where = [int(i) for i in np.unravel_index(index, tuple(one.shape))] if one.dim() else []
        values = one.reshape(-1)[index].item(), other.reshape(-1)[index].item()
        return f"{at or 'it'}{where} is {values[0]!r} and {values[1]!r}, {len(apart)} differ"
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return unlike(torch.from_numpy(np.ascontiguousarray(one)), torch.from_numpy(np.ascontiguousarray(other)), at)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        one = {f.name: getattr(one, f.name) for f in dataclasses.fields(one)}
    if dataclasses.is_dataclass(other) and not isinstance(other, type):
        other = {f.name: getattr(other, f.name) for f in dataclasses.fields(other)}
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return f"{at or 'it'} has {sorted(map(str, one))} and {sorted(map(str, other))}"
        pairs = [(one[key], other[key], f"{at}.{key}" if at else str(key)) for key in one]
        return next((said for a, b, name in pairs if (said := unlike(a, b, name))), None)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{at or 'it'} has {len(one)} {'item' if len(one) == 1 else 'items'} and {len(other)}"
        pairs = [(a, b, f"{at}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True))]
        return next((said for a, b, name in pairs if (said := unlike(a, b, name))), None)
    return None if one == other or (one != one and other != other) else f"{at or 'it'} is {one!r} and {other!r}"


def _output(name: str, pool: Pool, result: Any) -> Any:
    root, *path = name.split(".")
    value = result if root == "return" else pool[root]
    for step in path:
        if isinstance(value, Mapping):
            value = value[step]
        else:
            value = value[int(step)] if step.isdigit() else getattr(value, step)
    return value


def _size(pool: Pool, names: Sequence[str]) -> int:
    return len(pool[next(name for name in names if isinstance(pool.get(name), torch.Tensor | np.ndarray))])


# --- relations --------------------------------------------------------------------------------------------------------


def _reordered(
    name: str, choose: Callable[[int], list[int]], rows: Sequence[str], outputs: Sequence[str], when: When, every: int
) -> Relation:
    def other(pool: Pool) -> Pool | None:
        size = _size(pool, rows)
        if size < 2 or not when(pool):
            return None
        order = choose(size)
        return {key: take(value, order) if key in rows else value for key, value in pool.items()}

    def broken(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
        order = choose(_size(pool, rows))
        pairs = [(take(_output(n, pool, result), order), _output(n, other_pool, other_result), n) for n in outputs]
        return next((said for whole, part, n in pairs if (said := unlike(whole, part, n))), None)

    return Relation(name, other, broken, every=every)


def permuted(
    rows: Sequence[str], outputs: Sequence[str] = ("return",), when: When = _always, every: int = EVERY
) -> Relation:
    """Requests in reverse.

    Args:
        rows: names of what has one row, item or key a request.
        outputs: names of what comes out with one row a request.
        when: says to which pools it applies.
    """
    name = "requests in another order have the same results"
    return _reordered(name, lambda n: list(reversed(range(n))), rows, outputs, when, every)


def alone(
    rows: Sequence[str], outputs: Sequence[str] = ("return",), when: When = _always, every: int = EVERY
) -> Relation:
    """The last request without the others. Arguments as those of :func:`permuted`."""
    return _reordered("a request alone has the same result", lambda n: [n - 1], rows, outputs, when, every)


def halved(
    rows: Sequence[str], outputs: Sequence[str] = ("return",), when: When = _always, every: int = EVERY
) -> Relation:
    """The first half of the batch, as a chunk of it. Arguments as those of :func:`permuted`."""
    name = "a chunk of the batch has the same results"
    return _reordered(name, lambda n: list(range((n + 1) // 2)), rows, outputs, when, every)


def neighbours(
    rows: Sequence[str], outputs: Sequence[str] = ("return",), when: When = _always, every: int = EVERY
) -> Relation:
    """The first request among copies of the last one. Arguments as those of :func:`permuted`."""
    name = "a request among other neighbours has the same result"
    return _reordered(name, lambda n: [0] + [n - 1] * (n - 1), rows, outputs, when, every)


def of_rows(rows: Sequence[str], outputs: Sequence[str] = ("return",), when: When = _always) -> tuple[Relation, ...]:
    """What holds where each request's result depends on its own row only. Arguments as those of :func:`permuted`."""
    return tuple(make(rows, outputs, when, 2 * EVERY) for make in (permuted, alone, halved, neighbours))


def relaid(name: str, outputs: Sequence[str] = ("return",), when: When = _always, every: int = EVERY) -> Relation:
    """A tensor of at least two axes with gaps after its rows, or dense when it has gaps already."""

    def other(pool: Pool) -> Pool | None:
        tensor = pool.get(name)
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or not tensor.numel() or not when(pool):
            return None
        return {**pool, name: axes.lay_out(tensor, "padded rows" if tensor.is_contiguous() else "contiguous")}

    def broken(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
        pairs = [(_output(n, pool, result), _output(n, other_pool, other_result), n) for n in outputs]
        return next((said for one, two, n in pairs if (said := unlike(one, two, n))), None)

    return Relation(f"{name} laid out otherwise have the same results", other, broken, every=every)


def same_with(
    name: str, change: Callable[[Pool], Pool | None], outputs: Sequence[str] = ("return",), every: int = EVERY
) -> Relation:
    """The same results with some inputs replaced.

    Args:
        name: in words that are true when it holds.
        change: the inputs that are replaced, or None where the relation says nothing.
    """

    def other(pool: Pool) -> Pool | None:
        replaced = change(pool)
        return None if replaced is None else {**pool, **replaced}

    def broken(pool: Pool, result: Any, other_pool: Pool, other_result: Any) -> str | None:
        pairs = [(_output(n, pool, result), _output(n, other_pool, other_result), n) for n in outputs]
        return next((said for one, two, n in pairs if (said := unlike(one, two, n))), None)

    return Relation(name, other, broken, every=every)


def other_seeds(generators: Mapping[int, Any]) -> dict[int, Seeded]:
    """Generators by request with other seeds."""
    return {row: Seeded(given.seed + 77) for row, given in generators.items()}


def likely(logits: torch.Tensor, least: float = 2.0**-20) -> bool:
    """Whether each id of each row has at least so much probability, so that no filter near its off value acts."""
    return bool(logits.numel()) and bool((logits.double().softmax(-1) > least).all())


def no_filter(k: str = "k", p: str = "p", logits: str = "logits") -> tuple[Relation, ...]:
    """Top-k of the whole vocabulary, and top-p just below 1, are no filter."""

    def all_ids(pool: Pool) -> Pool | None:
        rows, vocab = pool[logits].shape
        if pool.get(k) is not None or not rows:
            return None
        return {k: torch.full((rows,), vocab, dtype=torch.int32)}

    def almost_one(pool: Pool) -> Pool | None:
        if pool.get(p) is not None or not likely(pool[logits]):
            return None
        return {p: torch.full((len(pool[logits]),), axes.JUST_BELOW_1)}

    return (
        same_with("top-k of the whole vocabulary is none", all_ids),
        same_with("top-p just below 1 is none where every id is likely", almost_one),
    )


# --- invariants -------------------------------------------------------------------------------------------------------


def unchanged(*names: str) -> Invariant:
    """Inputs that are read only."""

    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        pairs = [(given[n], after[n], n) for n in names if n in given and isinstance(given[n], torch.Tensor)]
        return next((f"{said} after the call" for one, two, n in pairs if (said := unlike(one, two, n))), None)

    return Invariant(f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} only read", broken)


def filters(output: str, logits: str = "logits") -> Invariant:
    """What a mask or a filter makes of logits: each as it was, or minus infinity."""

    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        before, now = given[logits], _output(output, after, result)
        shut = now == float("-inf")
        return unlike(torch.where(shut, now, before.to(now.dtype)), now, output)

    return Invariant("a logit is kept as it is or becomes -inf", broken)


def keeps_the_likeliest(output: str, logits: str = "logits") -> Invariant:
    """No filter of probabilities shuts out a row's maximum."""

    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        before, now = given[logits], _output(output, after, result)
        if not before.numel():
            return None
        apart = (before.amax(-1) != now.amax(-1)).nonzero().flatten().tolist()
        return f"in row {apart[0]} it is shut out" if apart else None

    return Invariant("a row's largest logit is kept", broken)


def emitted(weights: str, lowest: float, output: Callable[[Any], torch.Tensor] = lambda result: result) -> Invariant:
    """Ids that are drawn, one a row, are possible ones.

    Args:
        weights: logits or probabilities [rows, V].
        lowest: the weight of an impossible id: -inf or 0. A row in which all are impossible does not count.
        output: the ids [rows] of a result.
    """

    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        ids = output(result).reshape(-1).long()
        table = given[weights]
        beyond = ((ids < 0) | (ids >= table.shape[-1])).nonzero().flatten().tolist()
        if beyond:
            return f"row {beyond[0]} emits id {int(ids[beyond[0]])} of {table.shape[-1]}"
        some = (table > lowest).any(-1)
        found = table.gather(1, ids[:, None]).reshape(-1) <= lowest
        impossible = (some & found).nonzero().flatten().tolist()
        return f"row {impossible[0]} emits id {int(ids[impossible[0]])}, which is impossible" if impossible else None

    return Invariant("an emitted id is in the vocabulary and possible", broken)


def off_rows(output: str, off: Callable[[Pool], torch.Tensor], what: str, logits: str = "logits") -> Invariant:
    """Rows whose parameters are at their off values come out as they went in.

    Args:
        off: which rows of a pool, bool [rows].
        what: the off values in words.
    """

    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        rows = off(given)
        return unlike(given[logits][rows], _output(output, after, result)[rows].to(given[logits].dtype), output)

    return Invariant(f"{what} leaves a row as it is", broken)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def emitted_ids(ids: str, logits: str = "logits") -> Invariant:
    """Ids that a sampler emits are those of the vocabulary, or -1 where a request emits none.

    Args:
        ids: the output that holds them, ids [rows, positions].
        logits: the values of the pool with one number for each id, along the last axis.
    """

    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        vocab = given[logits].shape[-1]
        for step, each in enumerate(result if isinstance(result, list) else [result]):
            emitted = _output(ids, after, each).long()
            beyond = ((emitted < -1) | (emitted >= vocab)).nonzero()
            if len(beyond):
                row, place = beyond[0].tolist()
                where = f"step {step}, " if isinstance(result, list) else ""
                return f"{where}row {row}, position {place} emits id {int(emitted[row, place])} of {vocab}"
        return None

    return Invariant("an emitted id is -1 or in the vocabulary", broken)


def logprobs_of_emitted(ids: str, logprobs: str) -> Invariant:
    """Logprobs go with the ids: one row for each id that is emitted (or for each position), whose first id is that one.

    Args:
        ids: the output that holds the ids [rows, positions], -1 where there is none.
        logprobs: the output that holds the logprobs, None or absent when they were not asked for.
    """

    def broken(given: Pool, after: Pool, result: Any) -> str | None:
        for each in result if isinstance(result, list) else [result]:
            *path, last = logprobs.split(".")
            tensors = _field(_output(".".join(path), after, each) if path else each, last)
            first = None if tensors is None else _field(tensors, "logprob_token_ids")
            if first is None or first.dim() != 2 or not first.shape[1]:
                continue  # none, or those of the whole vocabulary in its order
            emitted = _output(ids, after, each).long()
            wanted = emitted[emitted >= 0]
            held = first[:, 0].long()
            if len(held) == emitted.numel():
                held = held[(emitted >= 0).flatten()]
            if len(held) != len(wanted):
                return f"{len(held)} rows for {len(wanted)} ids"
            apart = (held != wanted).nonzero().flatten().tolist()
            if apart:
                return f"row {apart[0]} begins with id {int(held[apart[0]])}, but {int(wanted[apart[0]])} is emitted"
        return None

    return Invariant("each emitted id has a row of logprobs that begins with it", broken)
