"""For targets that draw random numbers: is the difference only in which numbers are drawn, and is the law the same?"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from difftest.call.outcome import NotCalled, Outcome
from difftest.compare.outcomes import compare
from difftest.explain import kernel_noise
from difftest.explain.kernel_noise import KernelNoise, total
from difftest.explain.law import ALPHA, Law, Tokens, compare_laws, smallest_effect
from difftest.explain.noise import SCHEMES, FixedNoise, Noise
from difftest.profiles import noise_functions
from difftest.result import Kind, Likeness
from difftest.run.protocol import ARM_NAMES, BASE, HEAD
from difftest.target import Case, Pool

if TYPE_CHECKING:
    from difftest.run.explaining import Explanation

GROUPS = 4
CASES = 6
FIRST_CASES = 3
"""Groups, and cases of each, that are run on fixed noise while there is time; so many of the largest group first."""
NOISES = 4
ENDS = 2
"""Noises a case is run on, and further ones in which single uniform numbers are often exactly 0 or just below 1. A
group's later cases are run on one of each."""
MOST_SAMPLES = 20_000
MOST_CALLS = 500
LAW_SECONDS = 2.5
"""The least that sampling is given, when there is so much time."""
TELLING_EFFECT = 0.25
"""Samples that would not even show a total variation of this do not make two laws the same."""

LAW_SHARE = 0.4
"""Of the time allowed, kept for sampling where a target declares how that is done."""

_ENDED = (Kind.EXCEPTION, Kind.CRASH, Kind.TIMEOUT)
_NOT_BY_NOISE = (Kind.RNG, Kind.DTYPE, Kind.STRIDE, Kind.TYPE, Kind.ALIAS, *_ENDED)

Schemes = tuple[str, str]
_SCHEMES: tuple[Schemes, ...] = tuple(itertools.product(SCHEMES, kernel_noise.SCHEMES))


class _Run(NamedTuple):
    """One arm's call on one noise; `real`: a hash of what it drew in truth."""

    outcome: Outcome | NotCalled
    draws: dict[str, int]
    unknown: set[str]
    torch_draws: int
    real: bytes


class _Tried(NamedTuple):
    """What came of one case: whether the arms agree, on all noises and on those without ends; whether noise matters;
    how draws found their numbers where they agree on a first noise."""

    equal: bool
    equal_inside: bool
    matters: bool
    schemes: Schemes | None = None


class _Apart(NamedTuple):
    """On the sampling pool and the same noise: rows that differ, of how many; seconds that a call of each arm took."""

    apart: int
    rows: int
    seconds: float


class Chance:
    """Part of an :class:`Explanation`: fixed noise, then the law of the emitted tokens."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation
        self.unit = explanation.unit
        self.target = explanation.target
        self.asked = explanation.asked
        self.draws: dict[int, dict[str, int]] = {BASE: {}, HEAD: {}}
        self.unknown: set[str] = set()
        self.repeats = False
        self.calls = 0
        self.alike: dict[int, bool] = {}  # of each case tried, in whichever groups it is: whether the versions agree
        self.same_draws: set[int] = set()
        package = self.unit.child.setup["arms"][self.unit.unit["arms"][BASE]]["package"]
        self.noise = (*self.target.noise, *(noise_functions(package) if self.target.triton else ()))
        self.pool_index = len(explanation.cases)  # the sampling pool is none of them
        self.kept = LAW_SHARE * self.asked["seconds"] if self.target.sampling is not None else 0.0

    def run(self) -> None:
        """Send `fixed_noise`, `distribution` and the class of each group, None where nothing is to be said."""
        groups: list[str | None] = [None] * len(self.explanation.groups)
        tried: dict[int, list[_Tried]] = {}
        noisy = self._noisy_groups()
        # A few cases of the largest group, which the headline is about, then one of each other group, then the rest.
        turns = [(number, turn) for turn in range(CASES) for number in noisy]
        turns.sort(key=lambda each: (each[1] >= FIRST_CASES, each[0] != noisy[0] and each[1] + 1, each))
        for number, turn in turns:
            earlier = tried.setdefault(number, [])
            if (found := self._try_case(number, turn, earlier[0] if earlier else None)) is not None:
                earlier.append(found)
        tried = {number: each for number, each in tried.items() if each}
        only_states = self.asked["only_states"]
        if only_states:
            self._look_at_draws()
        drew = bool(self.draws[BASE] or self.draws[HEAD])
        if not drew and not self.unknown:
            if noisy and not self.calls and self.target.sampling is not None:
                self.explanation.send({"fixed_noise": {"said": "not tried: looking for the cause was out of time"}})
            return  # nothing is drawn in the call: noise, if there is any, is among the inputs
        if not tried and not only_states:
            return  # no case came to a call
        if not tried:
            said = f"only the states in which generators are left differ; {'; '.join(self._draws_said())}"
            draws = {"base_draws": self.draws[BASE], "head_draws": self.draws[HEAD]}
            self.explanation.send({"fixed_noise": {**draws, "said": said}})
            return
        apart = self._pool_apart()
        same_noise = not (self.repeats or self.unknown) and all(t.equal for each in tried.values() for t in each)
        law = self._law(apart, bool(same_noise and not apart.apart)) if apart is not None else None
        for number, each in tried.items():
            groups[number] = self._class_of(number, each, apart, law)
        all_alike = bool(self.alike) and all(self.alike.values())
        same = all_alike and not (self.repeats or self.unknown or (apart and apart.apart))
        noise_class = Likeness.SAME_NOISE if same else Likeness.DIFFERENT
        every = [t for each in tried.values() for t in each]
        parts: dict[str, Any] = {"classes": groups, "tried": [len(tried.get(n, ())) for n in range(len(groups))]}
        parts["fixed_noise"] = {
            "likeness": noise_class,
            "cases": len(self.alike),
            "equal": sum(self.alike.values()),
            "noises": NOISES + ENDS,
            "base_draws": self.draws[BASE],
            "head_draws": self.draws[HEAD],
            **({} if apart is None else {"samples": apart.rows, "samples_apart": apart.apart}),
            "said": self._noise_said(every, apart, law),
        }
        if law is not None and self.target.sampling is not None:
            parts["distribution"] = {
                "likeness": _likeness(law),
                "samples": law.samples,
                "vocabulary": self.target.sampling.vocabulary,
                "smallest_effect": law.smallest_effect,
                "tests": [asdict(test) for test in law.tests],
                "said": _law_said(law),
            }
        self.explanation.send(parts)

    # -- fixed noise ----------------------------------------------------------------------------------------------

    def _noisy_groups(self) -> list[int]:
        """Groups in which something differs that noise may bear on, and not because one call was ended early."""
        noisy = []
        for number, places in enumerate(self.asked["places"]):
            if places[0][0] not in _ENDED and any(kind not in _NOT_BY_NOISE for kind, _ in places):
                noisy.append(number)
        return noisy[:GROUPS]

    def _look_at_draws(self) -> None:
        """What each arm draws in a case, when generators' states are all that differs."""
        for group in self.explanation.groups:
            for index in group[:CASES]:
                if self.explanation.clock() > self.explanation.ends - self.kept:
                    return
                case = self.explanation.cases[index]
                runs = [self._call(index, arm, case, case.build(), Noise(0), _SCHEMES[0]) for arm in (BASE, HEAD)]
                if any(isinstance(run.outcome, NotCalled) for run in runs):
                    continue
                self.unknown |= runs[BASE].unknown | runs[HEAD].unknown
                # The case with the most sources: a batch without seeded requests shows only half of it.
                if sum(len(run.draws) for run in runs) > sum(map(len, self.draws.values())):
                    self.draws = {arm: run.draws for arm, run in enumerate(runs)}

    def _try_case(self, number: int, turn: int, earlier: _Tried | None) -> _Tried | None:
        """What comes of one case of a group, when it has one for this turn and there is time."""
        group = self.explanation.groups[number]
        if turn >= len(group) or self.explanation.clock() > self.explanation.ends - self.kept:
            return None
        places = {leaf for kind, leaf in self.asked["places"][number] if kind != Kind.RNG}
        case = self.explanation.cases[group[turn]]
        found = self._try(group[turn], case, case.build(), places, earlier)
        if found is not None:
            self.alike[group[turn]] = found.equal and self.alike.get(group[turn], True)
        return found

    def _try(self, index: int, case: Case, pool: Pool, places: set[str], earlier: _Tried | None) -> _Tried | None:
        """Args: earlier: what came of another case of the group; then fewer calls are made."""
        chosen: Schemes | None = None
        first: Outcome | NotCalled | None = None
        for schemes in self._to_try(earlier):
            runs = [self._call(index, arm, case, pool, Noise(0), schemes) for arm in (BASE, HEAD)]
            for arm, run in enumerate(runs):
                if isinstance(run.outcome, NotCalled):
                    return None
                self.draws[arm] = self.draws[arm] or run.draws
                self.unknown |= run.unknown
            if not any(run.draws for run in runs):
                return None if not self.unknown else _Tried(False, False, True)
            if runs[BASE].real == runs[HEAD].real:
                self.same_draws.add(index)
                return _Tried(False, False, True)
            first = first or runs[BASE].outcome
            self.repeats = self.repeats or _repeats(runs)
            if earlier is None and schemes == _SCHEMES[0] and runs[HEAD].torch_draws:
                self.repeats = self.repeats or self._same_each_time(index, case, pool)
            if self._agree(runs, places):
                chosen = schemes
                break
        usual = self._to_try(earlier)[0]
        another = Noise(1)
        other = self._call(index, BASE, case, pool, another, usual)
        matters = isinstance(other.outcome, Outcome) and isinstance(first, Outcome) and other.outcome[:4] != first[:4]
        if chosen is None or self.unknown:
            return _Tried(False, False, matters)
        noises = [another, *(Noise(n) for n in range(2, NOISES))] + [
            Noise(n, ends=True) for n in range(NOISES, NOISES + ENDS)
        ]
        inside = True
        for noise in noises if earlier is None else noises[-1:]:
            known = noise is another and chosen == usual
            base = other if known else self._call(index, BASE, case, pool, noise, chosen)
            runs = [base, self._call(index, HEAD, case, pool, noise, chosen)]
            if not self._agree(runs, places):
                return _Tried(False, inside and noise.ends, matters, chosen)
        return _Tried(True, True, matters, chosen)

    def _same_each_time(self, index: int, case: Case, pool: Pool) -> bool:
        """Whether head does not care how the generators of the process are seeded, and base does."""
        moved = []
        for arm in (BASE, HEAD):
            one, other = (self._seeded(index, arm, case, pool, seed) for seed in (1, 2))
            if isinstance(one, NotCalled) or isinstance(other, NotCalled):
                return False
            moved.append(one[:4] != other[:4])
        return moved[BASE] and not moved[HEAD]

    @staticmethod
    def _to_try(earlier: _Tried | None) -> Sequence[Schemes]:
        """How draws may find their numbers: first as in an earlier case of the group, once where that never agreed."""
        if earlier is None:
            return _SCHEMES
        if earlier.schemes is None:
            return _SCHEMES[:1]
        return (earlier.schemes, *(each for each in _SCHEMES if each != earlier.schemes))

    def _call(self, index: int, arm: int, case: Case, pool: Pool, noise: Noise, schemes: Schemes) -> _Run:
        self.calls += 1
        lifted = self.unit.arms_of(case.host)[arm]
        functions = [lifted.get(symbol) for symbol in self.noise if lifted.has(symbol)]
        drawn = FixedNoise(noise, schemes[0])
        in_kernels = KernelNoise(noise, schemes[1], functions, lifted.loader.modules)

        def around(function: Callable[..., Any]) -> Callable[..., Any]:
            def noisy(*args: Any, **kwargs: Any) -> Any:
                with in_kernels, drawn:
                    return function(*args, **kwargs)

            return noisy

        outcome = self.explanation.call_pool(index, arm, case, pool, around)
        unknown = drawn.unknown | in_kernels.unknown
        real = drawn.real.digest() + in_kernels.real.digest()
        return _Run(outcome, total((drawn.draws, in_kernels.draws)), unknown, sum(drawn.draws.values()), real)

    def _agree(self, runs: list[_Run], places: set[str]) -> bool:
        """Whether two arms have the same at some places. A call that raises, as none of these cases does without the
        noise, agrees with nothing."""
        base, head = (run.outcome for run in runs)
        if not isinstance(base, Outcome) or not isinstance(head, Outcome) or base.raised or head.raised:
            return False
        found = compare(base, head, exceptions=self.unit.options.get("exceptions", "message"))
        return places.isdisjoint(item.place for item in found if item.kind != Kind.RNG)

    # -- the law --------------------------------------------------------------------------------------------------

    def _pool_case(self, number: int) -> tuple[Case, Pool]:
        sampling = self.target.sampling
        assert sampling is not None
        case = Case("sampling", lambda: sampling.build(number))
        return case, case.build()

    def _tokens(self, outcome: Outcome | NotCalled) -> Tokens | None:
        sampling, live = self.target.sampling, self.unit.caller.live
        if isinstance(outcome, NotCalled) or live is None or sampling is None:
            return None
        found = np.asarray(sampling.tokens(live[1]), np.int64)
        return found[:, None] if found.ndim == 1 else found

    def _sample(self, arm: int, number: int, seed: int) -> Tokens | None:
        """Tokens of one call on the sampling pool, every generator of the process seeded."""
        case, pool = self._pool_case(number)
        return self._tokens(self._seeded(self.pool_index, arm, case, pool, seed))

    def _seeded(self, index: int, arm: int, case: Case, pool: Pool, seed: int) -> Outcome | NotCalled:
        """One call with every generator of the process seeded."""

        def around(function: Callable[..., Any]) -> Callable[..., Any]:
            def seeded(*args: Any, **kwargs: Any) -> Any:
                torch.manual_seed(seed)
                np.random.seed(seed)
                random.seed(seed)
                return function(*args, **kwargs)

            return seeded

        return self.explanation.call_pool(index, arm, case, pool, around)

    def _pool_apart(self) -> _Apart | None:
        """On the sampling pool and the same noise, how many emitted rows differ; None without a pool.

        The pool must show the difference: with the same seed the arms emit other tokens.
        """
        began = self.explanation.clock()
        if self.target.sampling is None or began > self.explanation.ends:
            return None
        base, head = (self._sample(arm, 0, 0) for arm in (BASE, HEAD))
        seconds = self.explanation.clock() - began
        if base is None or head is None or _rows_apart(base, head) == 0:
            return None
        case, pool = self._pool_case(0)
        best: _Apart | None = None
        for schemes in _SCHEMES:
            apart = rows = 0
            for noise in (Noise(0), Noise(1, ends=True)):
                base, head = (
                    self._tokens(self._call(self.pool_index, arm, case, pool, noise, schemes).outcome)
                    for arm in (BASE, HEAD)
                )
                if base is None or head is None:
                    return best
                apart += _rows_apart(base, head)
                rows += len(base)
            best = min(best or _Apart(apart, rows, seconds), _Apart(apart, rows, seconds))
            if not best.apart:
                break
        return best

    def _law(self, pool: _Apart, settled: bool) -> Law | None:
        """Independent samples of both arms, as many as there is time for.

        Args:
            settled: the same noise gives the same tokens. Then samples are taken only if they will be enough to show
                that a call uses the noise of another one.
        """
        sampling = self.target.sampling
        assert sampling is not None
        now = self.explanation.clock()
        ends = min(now + max(LAW_SECONDS, self.kept), max(self.explanation.ends, now + 0.5))
        if settled and ends - now < MOST_CALLS * pool.seconds:
            most = int(pool.rows / 2 * (ends - now) / max(pool.seconds, 1e-6))
            if smallest_effect(max(most, 1), sampling.vocabulary, ALPHA) > TELLING_EFFECT:
                return None
        found: tuple[list[Tokens], list[Tokens]] = ([], [])
        rows = 0
        for call in range(MOST_CALLS):
            for arm in (BASE, HEAD):
                tokens = self._sample(arm, 2 * call + arm, 2 * call + arm)
                if tokens is None:
                    return None
                found[arm].append(tokens)
            rows += len(found[BASE][-1])
            if rows >= MOST_SAMPLES or self.explanation.clock() > ends:
                break
        shapes = {tokens.shape[1:] for side in found for tokens in side}
        if len(shapes) != 1:
            return None
        base, head = (np.concatenate(side) for side in found)
        return compare_laws(base, head, sampling.vocabulary) if base.shape == head.shape else None

    # -- what it adds up to ---------------------------------------------------------------------------------------

    def _class_of(self, number: int, tried: list[_Tried], apart: _Apart | None, law: Law | None) -> str | None:
        """The class of a group; None leaves what its values say."""
        if not tried:
            return None
        by_law = self.target.sampling is not None and all(
            kind == Kind.RNG or (kind == Kind.VALUE and _within(place, self.target.sampling.leaves))
            for kind, place in self.asked["places"][number]
        )
        matters = any(each.matters for each in tried)
        if law is not None and law.different and matters:
            return Likeness.OTHER_LAW
        if all(each.equal for each in tried) and not self.repeats and not self.unknown:
            return Likeness.SAME_NOISE if apart is None or apart.apart == 0 else None
        if any(each.equal_inside and not each.equal for each in tried):
            return None  # they part at the ends of the noise: too rare for any number of samples
        if law is not None and by_law and all(each.matters for each in tried) and not self.repeats:
            return _likeness(law)
        return None

    def _noise_said(self, tried: list[_Tried], apart: _Apart | None, law: Law | None) -> str:
        equal = sum(self.alike.values())
        if len(self.same_draws) == len(self.alike):
            return (
                "both versions draw the same numbers for the same places; the cause is not which ones, but may be what "
                "is made of them"
            )
        said = [f"with the same noise in both arms {equal} of {len(self.alike)} cases tried agree"]
        if equal:
            said[0] += (
                f", each on up to {NOISES + ENDS} noises, {ENDS} of them with uniform numbers that are exactly 0 or "
                "just below 1"
            )
        if self.same_draws:
            said.append(f"in {len(self.same_draws)} both versions draw the same numbers for the same places")
        if all(each.equal_inside and not each.equal for each in tried):
            said.append("they part only where single uniform numbers are exactly 0 or just below 1")
        if apart is not None:
            said.append(f"of {apart.rows} rows sampled on the same noise {apart.apart} differ")
        if self.repeats:
            said.append("head draws, but the same numbers at every call")
        if self.unknown:
            said.append(f"not replaced: {', '.join(sorted(self.unknown))}")
        if any(self.alike.values()) and any("," not in source for arm in self.draws.values() for source in arm):
            said.append("a kernel's noise is taken as ideal: different arguments, independent numbers")
            if law is None:
                said.append("whether two calls use the same stream was not looked into")
        return "; ".join([*said, *self._draws_said()])

    def _draws_said(self) -> list[str]:
        """What each arm draws in one call, and compiled operators that it alone calls: they may make noise of seeds.

        `base draws 96 exponential float32, the default generator`
        """
        called: dict[str, set[str]] = {name: set() for name in ARM_NAMES}
        for name, lifted in self.unit.both():
            called[name].update(lifted.loader.operators)
        said = []
        for arm, name in enumerate(ARM_NAMES):
            drawn = ", ".join(f"{n} {source}" for source, n in self.draws[arm].items()) or "nothing"
            alone = sorted(called[name] - called[ARM_NAMES[1 - arm]])
            said.append(f"{name} draws {drawn}" + f" and alone calls {', '.join(alone)}" * bool(alone))
        return said


def _repeats(runs: list[_Run]) -> bool:
    """Whether head draws from torch without moving a generator, and base does not do that."""
    still = [
        isinstance(run.outcome, Outcome) and run.torch_draws > 0 and run.outcome.rng is None and not run.outcome.changed
        for run in runs
    ]
    return still[HEAD] and not still[BASE]


def _within(place: str, leaves: Collection[str]) -> bool:
    """Whether a place is one of the leaves, or part of one."""
    return any(place == leaf or place.startswith((f"{leaf}[", f"{leaf}.")) for leaf in leaves)


def _rows_apart(base: Tokens, head: Tokens) -> int:
    return len(base) if base.shape != head.shape else int((base != head).any(axis=1).sum())


def _likeness(law: Law) -> Likeness:
    """What the samples say; too few of them say nothing, least of all that the laws are the same."""
    if law.different:
        return Likeness.OTHER_LAW
    return Likeness.SAME_LAW if law.smallest_effect <= TELLING_EFFECT else Likeness.DIFFERENT


def _law_said(law: Law) -> str:
    worst = min(law.tests, key=lambda test: test.adjusted)
    apart = "differs" if law.different else "shows no difference"
    return (
        f"the law of the emitted tokens {apart} in {law.samples} samples of each arm: {len(law.tests)} chi-square "
        f"tests, the least p {worst.adjusted:.2g} after Holm ({worst.name}); a total variation of "
        f"{law.smallest_effect:.3f} would be seen with 80 % power"
        f"{'' if law.different or law.smallest_effect <= TELLING_EFFECT else ': too few to call them the same'}"
    )
