"""One case in one arm: state restored, called, and everything that came of it taken down."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from difftest.call.addresses import without_addresses
from difftest.call.bounds import BOUNDS, WRITE
from difftest.call.freeze import Freezer, Frozen
from difftest.call.poison import POISON
from difftest.call.process import ProcessState
from difftest.call.rng import GlobalStates
from difftest.call.values import has_large, is_plain, own_copy
from difftest.errors import ApiChange, LiftError, MissingSymbol
from difftest.lift.failures import is_load_failure
from difftest.target import Arm, Call, Case, Pool, Target


class Outcome(NamedTuple):
    """What a call did. Two outcomes are identical when these are equal.

    Attributes:
        returned: the return value, frozen; None when it raised.
        raised: (class, normalised message), or None.
        changed: inputs that are not as they were, frozen whole, by name; generators among them.
        watched: state of further objects after the call, by name.
        rng: process-wide generator states after the call when they moved, by position in GlobalStates.NAMES.
        aliases: which arrays of the return value share memory: (number of the array, with what, byte offset); and
            which lists, dicts and objects of it are an input's: (number, what it is, -1).
        process: settings of the process that the call left changed: (name, value); put back afterwards.
        unread: what could not be read of all this, in words: nothing can be said of it.
        beyond: whether kernels wrote outside of their tensors; None when that is not known.
    """

    returned: Frozen | None
    raised: tuple[str, str] | None
    changed: tuple[tuple[str, Frozen], ...]
    watched: tuple[tuple[str, Frozen], ...]
    rng: tuple[Any, ...] | None
    aliases: tuple[tuple[int, str, int], ...]
    process: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()
    beyond: bool | None = False


@dataclass(frozen=True)
class NotCalled:
    """The case did not come to a call in this arm.

    Attributes:
        reason: begins `api-change:` when the arm asks for what the case lacks.
    """

    reason: str


def _made_by_case(module: str) -> bool:
    return module.startswith(("difftest.cases.", "difftest_user_cases_"))


def _names(kind: type) -> set[str]:
    """Names that a class and its bases have, or use in their methods."""
    found: set[str] = set()
    for cls in kind.__mro__:
        found |= {*vars(cls), *vars(cls).get("__annotations__", ())}
        values = [getattr(value, "__func__", getattr(value, "fget", value)) for value in vars(cls).values()]
        codes = [f.__code__ for f in map(inspect.unwrap, filter(callable, values)) if isinstance(f, FunctionType)]
        while codes:
            code = codes.pop()
            found.update(code.co_names)
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


_ENVIRONMENT = (ImportError, LiftError)
_ENVIRONMENT_MESSAGE = re.compile(
    r"pin(ned)?[ _]memory|CUDA driver|NVIDIA driver|not compiled with CUDA|no active drivers|stand-in|"
    r"No CUDA GPUs|cudaGetDeviceCount|"
    r"interpreter builder|Cannot call @triton.jit'd outside|AITER is not there|"
    r"'_OpNamespace' '\w+' object has no attribute",  # an operator compiled from sources that no tree holds
    re.IGNORECASE,
)


class Caller:
    """Calls targets in one worker process.

    Args:
        device: `cpu` or `cuda`.
        states: the process-wide generators, restored before every call.
        scrub: takes what differs between arms by name only (module prefixes, folders) out of a message.
        in_tree: whether a module is in the tree of either arm; failing to import such a one is what the code does.
    """

    def __init__(
        self,
        device: str,
        states: GlobalStates,
        scrub: Callable[[str], str],
        in_tree: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.device = device
        self.states = states
        self.scrub = scrub
        self.process = ProcessState()
        self.recorder: AbstractContextManager[None] = nullcontext()
        self.in_tree = in_tree
        self.environment_errors: dict[str, None] = {}
        self.live: tuple[Pool, Any] | None = None
        self.prepared = Call(lambda: None)
        self._pool: Pool | None = None
        self._large = False
        self._plain: Pool = {}
        self._before: dict[str, Frozen] = {}
        self.output = Freezer()
        self.inputs: dict[str, Frozen] = {}

    # `recorder` is entered for each call, to see which lines run. `prepared` is the last call as it was made. `live`
    # holds the arm's own pool and return value of the last call, for checks on live values; None if it raised. `output`
    # is what froze the return value: it knows its memory. `inputs` are those of the last call after it, frozen whole.

    def call(self, target: Target, symbol: str, arm: Arm, case: Case, pool: Pool, fill: int) -> Outcome | NotCalled:
        """Run one case in one arm under one poison fill.

        `pool` is the case's pristine pool: it is copied, never given to the arm. An exception is part of the
        outcome, SystemExit included.
        """
        self.live = None
        BOUNDS.outside, BOUNDS.followed = set(), True
        self.states.adopt(None if case.recorded is None else case.recorded.rng)
        try:
            if pool is not self._pool:
                self._pool, self._large, self._before = pool, has_large(pool), {}
                self._plain = {name: value for name, value in pool.items() if is_plain(value)}
            private = own_pool(arm, case, pool, self._large)
            POISON.allocations = 0
            POISON.fill = fill  # what the tree's own code makes for the call and leaves unwritten is undefined, too
            with self.recorder:
                prepared = self.prepared = self.prepare(target, symbol, arm, private)
        except (ApiChange, MissingSymbol) as error:
            return NotCalled(f"api-change: {error}")
        except LiftError as error:
            return NotCalled(str(error))
        except BaseException as error:
            if is_load_failure(error):
                return self._not_loaded(arm, error)
            if isinstance(error, _ENVIRONMENT):
                return NotCalled(f"not exercised: {type(error).__name__}: {self.scrub(str(error))}")
            return NotCalled(
                f"inputs could not be made in {arm.label}: {type(error).__name__}: {self.scrub(str(error))}"
            )
        finally:
            POISON.fill = None
        if not self._before:  # copies of plain data are all the same; objects of an arm's own classes need not be
            self._before = _take_each(self._freezer(), {n: v for n, v in private.items() if n in self._plain})
        made = {name: value for name, value in private.items() if name not in self._plain}
        before = {**self._before, **_take_each(self._freezer(), made)} if made else self._before
        self.states.after()
        for name, text in self.process.loaded():
            arm.note(f"loading it or making its inputs changes {name} to {text}; put back before the call")
        result: Any = None
        raised: tuple[str, str] | None = None
        POISON.fill = fill
        try:
            with self.recorder:
                result = prepared.fn(*prepared.args, **prepared.kwargs)
            if self.device == "cuda":
                torch.cuda.synchronize()
        except ApiChange as error:  # a recorded object lacks what this version's code asks of it
            POISON.fill = None
            self.states.after()
            self.process.settle()
            return NotCalled(f"api-change: {error}")
        except BaseException as error:
            POISON.fill = None
            if isinstance(error, AttributeError) and (lacks := self._lacking(error)):
                self.states.after()
                self.process.settle()
                return NotCalled(f"api-change: {lacks}")
            raised = self._exception(error)
        finally:
            POISON.fill = None
        rng = self.states.after()
        self.live = (private, result) if raised is None else None
        process = self.process.settle()
        output = self.output = Freezer(scrub=self.scrub)
        returned = output.root("return", result) if raised is None else None
        output.strict = False
        watched = tuple([(name, output.root(name, value)) for name, value in prepared.watch.items()])
        inputs = self._freezer()
        after = self.inputs = _take_each(inputs, private)
        changed = [(name, now) for name, now in after.items() if name not in before or now != before[name]]
        aliases = _aliases(output.memory, inputs.memory)
        if shared := _shared_objects(output, inputs):
            aliases += shared
        unread = (*output.unread, *inputs.unread)
        beyond = WRITE in BOUNDS.outside if BOUNDS.followed else None
        return Outcome(returned, raised, tuple(changed), watched, rng, aliases, process, unread, beyond)

    def frozen_result(self, result: Any) -> Frozen:
        """A return value of an earlier call as it is now."""
        return Freezer(scrub=self.scrub).root("return", result)

    def frozen_inputs(self, pool: Pool) -> dict[str, Frozen]:
        """Inputs of an earlier call as they are now."""
        return _take_each(self._freezer(), pool)

    def _freezer(self) -> Freezer:
        return Freezer(whole=True, scrub=self.scrub)

    def _not_loaded(self, arm: Arm, error: BaseException) -> Outcome | NotCalled:
        """The arm's own code raised while its modules were loaded. In head that is what head does."""
        self.states.after()
        self.process.settle()
        name, message = self._exception(error)
        if name == "environment":
            return NotCalled(f"not exercised: {arm.label} cannot be loaded here: {message}")
        text = f"{arm.label} cannot be loaded: {name}: {message}"
        if arm.label == "base":
            return NotCalled(text)
        return Outcome(None, (name, text), (), (), None, ())

    def prepare(self, target: Target, symbol: str, arm: Arm, pool: Pool) -> Call:
        """The call of one arm on its private pool, which then holds the call's inputs."""
        if target.prepare is not None:
            return target.prepare(arm, pool)
        function = arm.get(symbol)
        return Call(function, kwargs=arm.bind(function, pool))

    def _lacking(self, error: AttributeError) -> str:
        """What an object that a case file made lacks of what the code asks of it, or an object of the tree of what the
        case file reads in it: neither is what the code does. Empty when it is the code's own."""
        kind = type(error.obj)
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        reads = trace is not None and _made_by_case(trace.tb_frame.f_globals.get("__name__", ""))
        # A name that its class has somewhere may have been forgotten for just these inputs.
        if reads and self.in_tree(self.scrub(kind.__module__)) and error.name not in _names(kind):
            return f"its {kind.__qualname__} has no {error.name}, which the case reads"
        if kind is SimpleNamespace or _made_by_case(kind.__module__):
            return f"it asks for {error.name}, which the case's {kind.__qualname__} lacks"
        return ""

    def _exception(self, error: BaseException) -> tuple[str, str]:
        name = type(error).__qualname__
        message = without_addresses(self.scrub(_message(error)))
        here = isinstance(error, ImportError) and error.name is not None and self.in_tree(self.scrub(error.name))
        if not here and (isinstance(error, _ENVIRONMENT) or _ENVIRONMENT_MESSAGE.search(message)):
            self.environment_errors[f"{name}: {message[:300]}"] = None
            return ("environment", f"{name}: {message}")
        return name, message


def own_pool(arm: Arm, case: Case, pool: Pool, large: bool = False) -> Pool:
    """A private pool for one call in one arm: a copy of the case's, or the case's made anew."""
    if case.recorded is not None:
        return case.build()
    return own_copy(arm, case.build() if large else pool)


def _message(error: BaseException, depth: int = 0) -> str:
    """What an exception says; of a group, what its members say too. Code under test may have written `__str__`."""
    try:
        text = str(error)
    except BaseException as failure:
        return f"a message that cannot be had: {type(failure).__qualname__}"
    if isinstance(error, BaseExceptionGroup) and depth < 8:
        members = [f"{type(e).__qualname__}: {_message(e, depth + 1)}" for e in error.exceptions[:20]]
        return f"{text}: [{'; '.join(members)}]"
    return text


def _take_each(freezer: Freezer, values: Pool) -> dict[str, Frozen]:
    return {name: freezer.root(name, value) for name, value in values.items()}


def is_environment(outcome: Outcome) -> bool:
    """Whether a call failed because of where it ran, not because of what it computes."""
    return outcome.raised is not None and outcome.raised[0] == "environment"


def _aliases(
    outputs: list[tuple[str, int, int, int]], inputs: list[tuple[str, int, int, int]]
) -> tuple[tuple[int, str, int], ...]:
    if not outputs:
        return ()
    found = []
    for number, (_, address, storage, _) in enumerate(outputs):
        for name, _, start, size in inputs:
            if start <= storage < start + size:
                found.append((number, name, address - start))
                break
        else:
            for earlier in range(number):
                if outputs[earlier][2] <= address < outputs[earlier][2] + outputs[earlier][3]:
                    found.append((number, f"output {earlier}", address - outputs[earlier][1]))
                    break
    return tuple(found)


def _shared_objects(output: Freezer, inputs: Freezer) -> tuple[tuple[int, str, int], ...]:
    """Lists, dicts, sets and objects of the outcome that are an input's, or met under another name of the outcome."""
    roots = [(name, seen) for name, seen in output.objects if seen]
    if not roots:
        return ()
    given = set[int]().union(*[seen for _, seen in inputs.objects])
    if len(roots) == 1 and given.isdisjoint(roots[0][1]):
        return ()
    found = []
    for position, (root, seen) in enumerate(roots):
        others = [(name, known) for name, known in inputs.objects if name != root] + roots[:position]
        for key, number in seen.items():
            for name, known in others:
                if key in known:
                    which = f"object {known[key]} of {name}" if known[key] else name
                    found.append((number, f"{root}: its object {number} is {which}", -1))
                    break
    return tuple(found)
