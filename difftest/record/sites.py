"""What can be captured in a vLLM engine, and the environment that carries the request into its processes. No torch.

A site is `module:qualname`. A pattern without `:` is matched against the names below; a raw symbol is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from difftest.errors import UsageError

ON = "DIFFTEST_CAPTURE"
"""Names the capture folder; without it the plugin does nothing."""

FIXES = "DIFFTEST_ENGINE_FIXES"
"""`1` works around known faults of the engine on a CPU while it is captured; the capture says so."""

_V1 = "vllm.v1.sample"
_V2 = "vllm.v1.worker.gpu"

KNOWN: Mapping[str, str] = {
    "v1.rejection_sampler": f"{_V1}.rejection_sampler:RejectionSampler.forward",
    "v1.sampler": f"{_V1}.sampler:Sampler.forward",
    "v1.parse_output": f"{_V1}.rejection_sampler:RejectionSampler.parse_output",
    "v2.sampler": f"{_V2}.sample.sampler:Sampler.__call__",
    "v2.rejection_sampler": f"{_V2}.spec_decode.rejection_sampler:RejectionSampler.__call__",
    "v1.rejection_sample": f"{_V1}.rejection_sampler:rejection_sample",
    "v1.apply_sampling_constraints": f"{_V1}.rejection_sampler:apply_sampling_constraints",
    "v1.sample_recovered_tokens": f"{_V1}.rejection_sampler:sample_recovered_tokens",
    "v1.apply_top_k_top_p": f"{_V1}.ops.topk_topp_sampler:apply_top_k_top_p",
    "v1.apply_all_penalties": f"{_V1}.ops.penalties:apply_all_penalties",
    "v1.apply_grammar_bitmask": "vllm.v1.structured_output.utils:apply_grammar_bitmask",
    "v2.apply_grammar_bitmask": f"{_V2}.structured_outputs:StructuredOutputsWorker.apply_grammar_bitmask",
    "v2.rejection_sample": f"{_V2}.spec_decode.rejection_sampler_utils:rejection_sample",
    "v2.gumbel_sample": f"{_V2}.sample.gumbel:gumbel_sample",
}

DEFAULT = ("v1.rejection_sampler", "v1.sampler", "v1.parse_output", "v2.sampler", "v2.rejection_sampler")


def chosen(patterns: Iterable[str]) -> tuple[str, ...]:
    """The symbols that patterns name; those of :data:`DEFAULT` when there is no pattern.

    Args:
        patterns: names or globs over :data:`KNOWN` (`v1.*`) or over its symbols, or raw symbols `module:qualname`.

    Raises:
        UsageError: a pattern that names nothing.
    """
    found: dict[str, None] = {}
    patterns = list(patterns)
    for pattern in patterns or DEFAULT:
        if ":" in pattern and not set(pattern) & set("*?["):
            module, _, qualname = pattern.partition(":")
            if not all(part.isidentifier() for part in [*module.split("."), *qualname.split(".")]):
                raise UsageError(f"--site {pattern}: not of the form module:qualname; write it so")
            found[pattern] = None
            continue
        matched = [s for name, s in KNOWN.items() if fnmatchcase(name, pattern) or fnmatchcase(s, pattern)]
        if not matched:
            raise UsageError(f"--site {pattern}: no known site; known are {', '.join(KNOWN)}, or give module:qualname")
        found |= dict.fromkeys(matched)
    return tuple(found)


@dataclass(frozen=True)
class Settings:
    """What to capture, as it travels in environment variables.

    Attributes:
        out: the capture folder.
        sites: symbols.
        max_calls, max_bytes: limits for each process, None for none.
        one_in: record one step in so many.
        key: hexadecimal key for hashing request ids; empty to keep them.
        wait: inputs are on disk before each call goes on.
        fixes: work around known faults of the engine.
    """

    out: str
    sites: tuple[str, ...]
    max_calls: int | None = None
    max_bytes: int | None = None
    one_in: int = 1
    key: str = ""
    wait: bool = False
    fixes: bool = False

    def to_environment(self) -> dict[str, str]:
        """The variables for the processes of the engine. `fixes` is not among them: it is the user's own choice."""
        return {
            ON: self.out,
            f"{ON}_SITES": ",".join(self.sites),
            f"{ON}_MAX_CALLS": "" if self.max_calls is None else str(self.max_calls),
            f"{ON}_MAX_BYTES": "" if self.max_bytes is None else str(self.max_bytes),
            f"{ON}_ONE_IN": str(self.one_in),
            f"{ON}_KEY": self.key,
            f"{ON}_WAIT": "1" if self.wait else "",
        }

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Settings:
        """The request in these variables.

        Raises:
            UsageError: a value that is no number, or a site that does not exist.
        """

        def number(name: str) -> int | None:
            text = variables.get(f"{ON}_{name}", "")
            if text and not text.isdecimal():
                raise UsageError(f"{ON}_{name}={text}: not a number; set a whole number")
            return int(text) if text else None

        names = variables.get(f"{ON}_SITES", "")
        return cls(
            variables[ON],
            chosen(name for name in names.split(",") if name),
            number("MAX_CALLS"),
            number("MAX_BYTES"),
            number("ONE_IN") or 1,
            variables.get(f"{ON}_KEY", ""),
            bool(variables.get(f"{ON}_WAIT")),
            variables.get(FIXES, "") not in ("", "0"),
        )
