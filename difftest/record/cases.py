"""Captures and case files as a source of cases: a target for each recorded site, a case for each call that ended.

The supervisor's half (:func:`outlines`) makes no tensor and needs no torch; the worker's half (:func:`targets`) does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difftest.catalog import Outline
from difftest.errors import ApiChange, LiftError, UsageError
from difftest.record.casefile import CaseFile, case_files
from difftest.record.format import Capture, RecordedCall, open_capture, symbols_of
from difftest.record.host import DEVICE_TYPE, facts_for
from difftest.record.sites import KNOWN
from difftest.target import After, Arm, Call, Case, GeneratorStates, Pool, Prepare, Target

if TYPE_CHECKING:
    from difftest.record.rebuild import Rebuilder

TIMEOUT = 120.0
"""Seconds a replayed call may take: production batches in Triton's interpreter are slow."""

_NAMES = {symbol: name for name, symbol in KNOWN.items()}


def target_name(site: str) -> str:
    """`recorded.v1.sampler`, or `recorded.` and the symbol of a site without a name."""
    return f"recorded.{_NAMES.get(site, site)}"


def given(paths: Sequence[Path]) -> tuple[list[Capture], list[CaseFile]]:
    """What `--recorded` names: captures, and case files, alone or below folders.

    Raises:
        UsageError: a capture is given twice.
        CaptureError: neither, or damaged.
    """
    files = {path: case_files(path) for path in paths}
    captures = open_captures([path for path in paths if files[path] is None])
    return captures, [file for path in paths for file in files[path] or ()]


def open_captures(paths: Sequence[Path]) -> list[Capture]:
    """The captures of some folders.

    Raises:
        UsageError: a folder is given twice.
        CaptureError: no capture, or damaged.
    """
    seen = [path.resolve() for path in paths]
    if twice := [path for path, place in zip(paths, seen, strict=True) if seen.count(place) > 1]:
        raise UsageError(f"the capture {twice[0]} is given twice; give it once")
    return [open_capture(path) for path in paths]


def complete_calls(captures: Sequence[Capture]) -> dict[str, list[Located]]:
    """The calls that ended, by site, in the order of captures, processes and calls."""
    found: dict[str, list[Located]] = {}
    named = len(captures) > 1
    for capture in captures:
        twins: dict[tuple[object, ...], RecordedCall] = {}
        for rank in capture.ranks:
            process = f"{capture.path.resolve().name} {rank.name}" if named else rank.name
            seen: Counter[tuple[object, ...]] = Counter()
            for call in capture.calls(rank):
                step = (call.site, call.step)
                seen[step] += 1
                key = (*step, seen[step])
                if call.complete:
                    twin = twins.setdefault(key, call)
                    located = Located(call, process, twin if twin.rank.rank != rank.rank else None)
                    found.setdefault(call.site, []).append(located)
    return found


@dataclass(frozen=True)
class Located:
    """A recorded call.

    Attributes:
        call: the call.
        process: the process that made it, in words.
        twin: the same call of the lowest rank: same site, step, and place among the step's calls.
    """

    call: RecordedCall
    process: str
    twin: RecordedCall | None


def outlines(captures: Sequence[Capture], files: Sequence[CaseFile] = ()) -> list[Outline]:
    """What the supervisor knows of the recorded targets: their code is the site and what its recorded inputs are of."""
    uses: dict[str, dict[str, None]] = {}
    for site, calls in complete_calls(captures).items():
        for located in calls:
            uses.setdefault(site, {}).update(dict.fromkeys(located.call.symbols))
    for file in files:
        if site_of_file := _site(file.target):
            uses.setdefault(site_of_file, {}).update(dict.fromkeys(symbols_of(file.pool(None).values())))
    return [
        Outline(target_name(site), (site,), tuple(used), (), True, (), TIMEOUT, "", False)
        for site, used in uses.items()
    ]


def targets(
    paths: Sequence[Path], device: str, known: Mapping[str, Target] | None = None, alone: bool = False
) -> dict[str, Target]:
    """The recorded targets by name, with a case for each call that ended, and the targets that case files are for.

    Args:
        device: `cpu` or `cuda`: where what was not in CPU memory goes.
        known: targets of the catalog; case files add cases to them.
        alone: the cases of case files take the place of their target's own.
    """
    captures, files = given(paths)
    found = {target_name(site): _target(site, calls, device) for site, calls in complete_calls(captures).items()}
    kept: dict[str, list[Case]] = {}
    for file in files:
        # Whatever it was when it was kept, a fuzz's find included: it is in a list now, and runs as such.
        case = file.case()
        host = facts_for(case.host, str(case.host.get(DEVICE_TYPE, device)), device)
        kept.setdefault(file.target, []).append(replace(case, source="recorded", host=host))
    for name, cases in kept.items():
        target = found.get(name) or (known or {}).get(name)
        if target is None and (site := _site(name)) is not None:
            target = _target(site, [], device)
        if target is not None:
            found[name] = replace(target, cases=_joined(() if alone else target.cases, cases))
    return found


def _joined(own: Callable[[], Iterable[Case]] | tuple[()], kept: Sequence[Case]) -> Callable[[], list[Case]]:
    return lambda: [*(own() if callable(own) else own), *kept]


def _site(name: str) -> str | None:
    """The symbol of a recorded target; None of any other target."""
    site = name.removeprefix("recorded.")
    return None if site == name else KNOWN.get(site, site)


def _target(site: str, calls: Sequence[Located], device: str) -> Target:
    names: list[str] = []
    return Target(
        name=target_name(site),
        symbols=(site,),
        cases=lambda: _cases(calls, device, names),
        prepare=_preparing(site, names),
        triton=True,
        timeout=TIMEOUT,
    )


def _cases(calls: Sequence[Located], device: str, names: Sequence[str]) -> Iterator[Case]:
    for located in calls:
        call = located.call
        step = "" if call.step is None else f", step {call.step}"
        yield Case(
            f"{located.process}, call {call.number}{step}",
            lambda call=call: _pool(call, device),  # type: ignore[misc]
            source="recorded",
            axes={"process": located.process},
            recorded=Replayed(located, device, names),
            host=_host(call.environment, device),
        )


def _host(environment: Mapping[str, Any], device: str) -> dict[str, Any]:
    return facts_for(environment.get("host", {}), str(environment.get("device", "cpu")), device)


def _device_name(device: str) -> str:
    """The name of a device as a capture's environment has it: of a GPU its model's."""
    import torch

    return device if device == "cpu" else str(torch.cuda.get_device_name(device))


def _pool(call: RecordedCall, device: str) -> Pool:
    inputs = call.inputs(device)
    return {"args": inputs.args, "kwargs": inputs.kwargs}


# -- the call in an arm ----------------------------------------------------------------------------------------------


def _preparing(site: str, names: list[str]) -> Prepare:
    """How a call of the site is made. Both arms' inputs go by the names that the first arm's parameters have.

    Args:
        names: empty; receives these names.
    """

    def prepare(arm: Arm, pool: Pool) -> Call:
        from difftest.record.rebuild import Rebuilder

        function = arm.get(site)
        recorded, rebuild = dict(pool), Rebuilder(arm)
        if not names:
            names.extend(_positional(function, len(recorded["args"])))
        made = _by_name(rebuild, names, recorded["args"], recorded["kwargs"])
        pool.clear()
        pool.update(made)
        args = list(made.values())[: len(recorded["args"])]
        kwargs = {name: made[name] for name in recorded["kwargs"]}
        if isinstance(getattr(function, "__self__", None), type):
            args = args[1:]  # a class method is bound to the arm's own class
        call = _fitting(arm, function, args, kwargs)
        return Call(_refusing(rebuild, function), tuple(args), call, generators=rebuild.generators)

    return prepare


def _by_name(rebuild: Rebuilder, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pool:
    """Recorded inputs as an arm has them, positional ones first."""
    named = {name: rebuild(value, name) for name, value in zip(names, args, strict=False)}
    return named | {name: rebuild(value, name) for name, value in kwargs.items()}


def _positional(function: Any, count: int) -> list[str]:
    import inspect

    parameters = list(inspect.signature(getattr(function, "fn", function)).parameters.values())
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [named[i] if i < len(named) else f"args[{i}]" for i in range(count)]


def _fitting(arm: Arm, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords, once they fit the arm's function; one that it does not take is left out when it is None.

    Raises:
        ApiChange: the function does not take what was recorded, or needs more.
    """
    import inspect

    signature = inspect.signature(getattr(function, "fn", function))
    name = getattr(function, "__qualname__", str(function))
    free = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    unknown = [] if free else [key for key in kwargs if key not in signature.parameters]
    if refused := [key for key in unknown if kwargs[key] is not None]:
        raise ApiChange(f"{name} does not take {', '.join(refused)}, which was recorded")
    if unknown:
        arm.note(f"{name} of this version has no {', '.join(unknown)}; what was recorded is None")
    kept = {key: value for key, value in kwargs.items() if key not in unknown}
    try:
        signature.bind(*args, **kept)
    except TypeError as error:
        raise ApiChange(f"{name} cannot be called as recorded: {error}") from None
    return kept


def _refusing(rebuild: Rebuilder, function: Any) -> Any:
    """The function; that it asks a recorded object for what was not recorded is no outcome of it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except AttributeError as error:
            if lacking := rebuild.lacks(error):
                raise ApiChange(lacking) from None
            raise

    return call


# -- what else is known of it ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """Implements :class:`difftest.target.Recorded` over a recorded call.

    Attributes:
        located: the call.
        device: where what was not in CPU memory goes.
        names: of its positional arguments, once a call was prepared.
    """

    located: Located
    device: str
    names: Sequence[str]

    @property
    def process(self) -> str:
        return self.located.process

    @cached_property
    def _rng(self) -> GeneratorStates:
        return self.located.call.rng_before

    @property
    def rng(self) -> GeneratorStates:
        return self._rng

    def after(self, arm: Arm) -> After:
        return self._after(self.located.call, arm)

    def twin(self, arm: Arm) -> After | None:
        return None if self.located.twin is None else self._after(self.located.twin, arm)

    def _after(self, call: RecordedCall, arm: Arm) -> After:
        from difftest.record.rebuild import Rebuilder

        recorded_on, here = str(call.environment.get("device", "cpu")), _device_name(self.device)
        if recorded_on != here:
            raise LiftError(f"recorded on {recorded_on}, replayed on {here}")
        returned = None if call.raised else Rebuilder(arm)(call.output(self.device), "result")
        generators = {number: item.state for number, item in (call.generators_after or {}).items()}
        changed = call.changed_inputs
        changes = None if changed is None else bool(changed)
        return After(returned, call.raised, call.rng_after, generators, changes, lambda: self._inputs(call, arm))

    def _inputs(self, call: RecordedCall, arm: Arm) -> tuple[Pool, Pool]:
        from difftest.record.rebuild import Rebuilder

        before, after = call.inputs(self.device), call.inputs_after(self.device)
        assert after is not None
        made = [_by_name(Rebuilder(arm), self.names, inputs.args, inputs.kwargs) for inputs in (before, after)]
        return made[0], made[1]


__all__ = ["complete_calls", "given", "open_captures", "outlines", "target_name", "targets"]
