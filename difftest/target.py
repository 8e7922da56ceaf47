"""What a case file declares: targets, their cases, and how a case becomes a call. No torch here.

A *target* is one observable piece of sampler code. A *case* is a pool of named values; each arm's callable takes
from the pool, by name, what it asks for, so signatures may drift between the arms.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Pool = dict[str, Any]
"""Named values: torch tensors, numpy arrays, scalars, lists, dicts, None, :class:`Seeded` and :class:`Made`."""


@dataclass(frozen=True)
class Seeded:
    """Stands in a pool for a `torch.Generator` with this seed; every run gets its own, its state is compared after."""

    seed: int


@dataclass(frozen=True)
class Made:
    """Stands in a pool for an instance of an arm's own class, built from the fields that the arm's class takes.

    Attributes:
        symbol: `module:qualname` of the class, the same in both arms, or several to try in order.
        fields: constructor arguments by name. One that the class does not take is dropped when it is in `optional`,
            else the case is `unmeasured: api-change`.
    """

    symbol: str | tuple[str, ...]
    fields: Mapping[str, Any]
    optional: frozenset[str] = frozenset()


class GeneratorStates(Protocol):
    """The process-wide generators at one moment of a recorded engine; :class:`difftest.record.decode.RngStates`.

    `torch_cpu` is for `torch.set_rng_state`, `torch_cuda` has an object with `state` for each CUDA device, the others
    are for `numpy.random.set_state` and `random.setstate`.
    """

    @property
    def torch_cpu(self) -> bytes: ...

    @property
    def torch_cuda(self) -> Mapping[int, Any]: ...

    @property
    def numpy_state(self) -> Any: ...

    @property
    def random_state(self) -> Any: ...


class After(NamedTuple):
    """What a recorded call did.

    Attributes:
        returned: the return value, made of an arm's own classes; None when it raised.
        raised: name of the exception's class and message, or None.
        rng: the process-wide generators after it, None when they cannot be compared here.
        generators: states of the generators among its inputs, by their number in the recording.
        changes: whether it changed memory of its inputs; None when the recording does not say.
        inputs: makes its inputs, by name, as they were before it, and with the memory that they had after it.
    """

    returned: Any
    raised: tuple[str, str] | None
    rng: GeneratorStates | None
    generators: Mapping[int, bytes]
    changes: bool | None = None
    inputs: Callable[[], tuple[Pool, Pool]] = lambda: ({}, {})


class Recorded(Protocol):
    """What is known of a recorded call beyond its inputs."""

    @property
    def process(self) -> str:
        """Which process of which capture made it, in words."""

    @property
    def rng(self) -> GeneratorStates:
        """The process-wide generators before it; the same object each time."""

    def after(self, arm: Arm) -> After:
        """What it did, in an arm's own classes.

        Raises:
            ApiChange: the arm's classes cannot hold it.
            LiftError: part of it was not recorded, or it was recorded on another device.
        """

    def twin(self, arm: Arm) -> After | None:
        """What the same call of the lowest rank did; None when this is that call, or there is none."""


@dataclass(frozen=True)
class Family:
    """What cases of one kind are made from, so that a fuzz can draw further ones.

    Attributes:
        name: keys the streams of numbers; the target's name.
        axes: values by axis, the plain one first.
        build: makes the pool of a row (a value by axis) out of a stream of numbers.
        contract: whether a row is inside the target's contract.
        allowed: which rows make sense.
    """

    name: str
    axes: Mapping[str, Sequence[Any]]
    build: Callable[[dict[str, Any], Any], Pool]
    contract: Callable[[dict[str, Any]], bool]
    allowed: Callable[[dict[str, Any]], bool]


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        label: the case in words, unique within the target (`batch 4, 3 drafts, row 1 all placeholders`).
        build: makes the pool. Deterministic, the same bytes on every machine, new objects at every call; cheap
            until called, so that a list of many cases costs nothing.
        contract: inside the target's contract; False for inputs that production never sends.
        source: `grid`, `fuzz` or `recorded`.
        axes: the values of the axes it was made from, for coverage reports.
        recorded: of a recorded call, what else is known of it. Its pool is made anew for each call instead of copied,
            since memory may be shared between tensors and arrays.
        family: of a case made from axes, what it was made from.
        host: of a recorded call, what the engine's host had decided (:mod:`difftest.record.host`); the arms are lifted
            with it.
    """

    label: str
    build: Callable[[], Pool]
    contract: bool = True
    source: str = "grid"
    axes: Mapping[str, str] = field(default_factory=dict)
    recorded: Recorded | None = None
    family: Family | None = None
    host: Mapping[str, Any] = field(default_factory=dict)


class Arm(Protocol):
    """One loaded version, as a case file sees it. Implemented by :class:`difftest.lift.arm.LiftedArm`."""

    label: str
    """`base` or `head`."""
    device: str
    """Where the case's tensors are: `cpu` or `cuda`."""

    def get(self, symbol: str) -> Any:
        """The arm's own object of `module:qualname`, lifted on first use.

        Raises:
            LiftError: it does not exist in this tree or cannot be lifted.
        """

    def has(self, symbol: str) -> bool:
        """Whether this tree defines the symbol."""

    def first(self, *symbols: str) -> Any:
        """The first of several symbols that this tree defines; for functions that were renamed or moved."""

    def bind(self, function: Callable[..., Any], pool: Mapping[str, Any], **renamed: str) -> dict[str, Any]:
        """Arguments by name for `function` out of `pool`.

        A parameter is looked up under its own name, then under `renamed[parameter]`. One that has neither and no
        default raises ApiChange naming it. Names in the pool that the function does not take are left out.
        """

    def make(self, symbol: str | tuple[str, ...], fields: Mapping[str, Any], optional: Iterable[str] = ()) -> Any:
        """An instance of the arm's own class (or the result of its factory), built from the fields it takes."""

    def note(self, text: str) -> None:
        """Say in the report what was adapted for this arm; said once however often it is noted."""


@dataclass(frozen=True)
class Call:
    """What the harness runs, times and observes.

    Attributes:
        fn: called as `fn(*args, **kwargs)`; its return value or exception is observed.
        watch: further objects whose state after the call belongs to the outcome, by name (a processor, a state
            object). Everything in the pool is watched anyway.
        generators: of a recorded call, its own generators by their number in the recording.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    watch: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[int, Any] = field(default_factory=dict)


Prepare = Callable[[Arm, Pool], Call]
"""Turns one arm and its private copy of a case's pool into a call. Runs outside the observed and timed region.

What it puts into the pool is observed as an input, too."""


@dataclass(frozen=True)
class Left:
    """What an oracle says of values of the pool after the call, by name, when a call writes rather than returns."""

    values: Mapping[str, Any]


Oracle = Callable[[Pool], Any]
"""A reference implementation: what a call on this pool must return, from the definition and not from any version; or
:class:`Left`, what it must leave in the pool.

Compared by :func:`difftest.oracles.agreement.agrees`: a mapping stands for the object's fields of these names. None
where the definition says nothing of the case."""


@dataclass(frozen=True)
class Invariant:
    """What must hold of every call of one arm, whatever the other arm does.

    A case in which head breaks it and base does not is a mismatch of kind `invariant`; when both break it, the
    report says that base does too.

    Attributes:
        name: in words that are true when it holds: `an emitted id is -1 or in the vocabulary`.
        broken: given the pool before the call, the arm's pool after it and the return value, says in a line what
            breaks it, or None. Only called for cases inside the contract that return.
    """

    name: str
    broken: Callable[[Pool, Pool, Any], str | None]


@dataclass(frozen=True)
class Relation:
    """What two calls of one arm on related inputs must have in common: permuting the requests permutes the result.

    Attributes:
        name: in words that are true when it holds.
        other: makes the related inputs from a case's pool, or None where the relation says nothing about the case.
        broken: given the arm's pools after the two calls and the two return values (first pool, first result, other
            pool, other result), says in a line what breaks it, or None.
        limit: how many cases a child checks it on.
        every: after a check, so many cases go by before the next one that it applies to is checked.
    """

    name: str
    other: Callable[[Pool], Pool | None]
    broken: Callable[[Pool, Any, Pool, Any], str | None]
    limit: int = 24
    every: int = 1


@dataclass(frozen=True)
class Shape:
    """One input shape for timing.

    Attributes:
        label: the shape in words, unique within the target (`batch 64, 3 drafts, acceptance 0.6`).
        build: makes the pool, as in a case.
        axes: the shape's numbers.
        vary: makes a pool that takes as long, with other contents for other numbers; 0 gives those of `build`. Without
            it every call has the same contents, so a head that caches results by content is not seen.
    """

    label: str
    build: Callable[[], Pool]
    axes: Mapping[str, float] = field(default_factory=dict)
    vary: Callable[[int], Pool] | None = None


def labelled(label: str, pattern: str) -> bool:
    """Whether a shape's label is the one asked for, or matches the glob."""
    return label == pattern or fnmatch.fnmatchcase(label, pattern)


@dataclass(frozen=True)
class Sampling:
    """How a target's emitted tokens are sampled many times, so that their law in two arms can be compared.

    Attributes:
        build: makes a pool of many alike rows over a small vocabulary; seeds in it depend on the number that it is
            given. The generators of the process are seeded before each call.
        tokens: given what a call returned, the ids that it emitted: whole numbers [rows, positions] or [rows], -1
            where a row has none. Neighbouring rows are tested together, and so are neighbouring positions.
        vocabulary: every id is below it.
        leaves: places of the outputs whose law that is, `return` or `return[0]`.
    """

    build: Callable[[int], Pool]
    tokens: Callable[[Any], Any]
    vocabulary: int
    leaves: tuple[str, ...] = ("return",)


@dataclass(frozen=True)
class Target:
    """One observable piece of sampler code.

    Attributes:
        name: catalog name, `v1.parse_output`.
        symbols: `module:qualname` candidates in the order tried; the first that a tree defines is bound there.
        cases: makes the case list. Order matters: a budget cuts it off at the end.
        prepare: how a case becomes a call; without one, the bound symbol is called with what it asks for by name.
        uses: further symbols whose code takes part (classes that the case file builds, functions that `prepare`
            calls). They are part of the closure; one that a tree lacks is no fault. Classes of :class:`Made` and of
            `arm.make` that are seen in the case file are part of it by themselves.
        needs: symbols of what is observed where it has no symbol of its own: a tree that defines none of them does
            not have the target.
        triton: the target launches Triton kernels, so it runs under the interpreter on a CPU.
        shapes: timing shapes for `difftest bench`: `"grid"` or `"quick"` -> list.
        rows: names of outputs or inputs whose first axis is the request, for saying which request differs.
        invariants: what must hold of every call of one arm.
        relations: what must hold between calls of one arm on related inputs.
        noise: symbols of functions that kernels call for a uniform number, besides `tl.rand` and those of the profile.
        sampling: how its tokens are sampled, when two versions emit different ones.
        oracle: a third opinion: when the arms differ, it says which one is right.
        timeout: seconds one call may take before it counts as hanging.
        fuzz: a Hypothesis strategy of :class:`Case` for `--cases fuzz`. Without one, cases are drawn from the axes of
            the families that `cases` names.
        guessed: its inputs are guesses, so a case that raises alike in both arms is not exercised.
    """

    name: str
    symbols: tuple[str, ...]
    cases: Callable[[], Iterable[Case]]
    prepare: Prepare | None = None
    uses: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    triton: bool = False
    shapes: Callable[[str], Iterable[Shape]] | None = None
    rows: tuple[str, ...] = ()
    invariants: tuple[Invariant, ...] = ()
    relations: tuple[Relation, ...] = ()
    noise: tuple[str, ...] = ()
    sampling: Sampling | None = None
    oracle: Oracle | None = None
    timeout: float = 20.0
    fuzz: Callable[[], Any] | None = None
    guessed: bool = False
