"""V1's persistent batch: requests come, leave and change places, and each step's SamplingMetadata is made of them.

A case is a short run of the engine. After each step the metadata that a sampler would get is taken down, row by row, so
that a parameter which stays behind in a row, or moves to another one, shows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from difftest.cases import axes, shapes
from difftest.cases import v1_metadata as metadata
from difftest.cases.axes import Row, Stream
from difftest.cases.versions import takes
from difftest.errors import ApiChange
from difftest.target import Arm, Call, Case, Pool, Seeded, Target

BATCH = "vllm.v1.worker.gpu_input_batch:InputBatch"
KINDS = "vllm.sampling_params:SamplingType"
REQUEST = "vllm.v1.worker.gpu_input_batch:CachedRequestState"
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_READS_OUTPUTS = frozenset(("bad_words", "thinking_token_budget", *_PENALTIES))
"""What a request asks for that looks at its output tokens; those of others are nobody's affair."""
_NO_IMAGES = ("mm_features", "mm_inputs", "mm_kwargs", "mm_positions", "mm_hashes")
REFRESH = ("refresh_metadata", "refresh_sampling_metadata")

_GREEDY_BELOW = 1e-5
_MOST, _LONGEST, _VOCABULARY = 6, 40, 16

REQUESTS: dict[str, tuple[dict[str, Any], ...]] = {
    "mixed": (
        {"temperature": 0.7, "top_p": 0.9, "seed": 5},
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 4, "presence_penalty": 0.5, "logprobs": 2},
        {"temperature": 0.5, "allowed_token_ids": [1, 3, 15], "seed": 6},
        {"temperature": 0.9, "bad_words": [[2, 3], [4]], "frequency_penalty": 0.3},
    ),
    "greedy": ({"temperature": 0.0},),
    "random": ({"temperature": 0.8}, {"temperature": 1.3, "seed": 9}),
    "tiny temperature": ({"temperature": 1e-6}, {"temperature": 1e-5, "seed": 1}),
    "top-k": ({"top_k": 3}, {"top_k": 0}, {"top_k": -1}, {"top_k": _VOCABULARY}, {"top_k": _VOCABULARY - 1}),
    "top-p": ({"top_p": 0.5}, {"top_p": 1.0}, {"top_p": axes.JUST_BELOW_1}),
    "penalties": (
        {"repetition_penalty": 1.3},
        {},
        {"frequency_penalty": -0.5},
        {"presence_penalty": 0.7, "repetition_penalty": 0.9},
    ),
    "logprobs": ({"logprobs": 3}, {}, {"logprobs": 0}, {"logprobs": -1}),
    "allowed ids": ({"allowed_token_ids": [0]}, {}, {"allowed_token_ids": [5, 15]}),
    "bad words": ({"bad_words": [[1]]}, {}, {"bad_words": [[2, 3], [_VOCABULARY - 1]]}),
    "seeds": ({"seed": 0}, {}, {"seed": 7}, {"seed": 7}),
}
"""What requests ask for, by turns."""
LATER_REQUESTS: dict[str, tuple[dict[str, Any], ...]] = {
    "ids of logprobs": ({"logprob_token_ids": [1, 5]}, {}, {"logprob_token_ids": [2]}),
    "thinking budgets": ({"thinking_token_budget": 4}, {}, {"thinking_token_budget": 0}),
}
"""What not every version knows."""

CHANGES = (
    "lifelike",
    "one after the other",
    "all leave",
    "the first leaves",
    "the last leaves",
    "swapped",
    "replaced",
    "preempted",
    "none",
)
AXES: axes.Axes = {
    "requests": tuple(REQUESTS),
    "changes": CHANGES,
    "batch": (3, 1, 5),
    "steps": (7, 3),
    "tokens": ("at once", "a step later", "several a step later"),
    "resumed": (False, True),
    "observed": ("metadata", "what processors see", "drafts"),
}


class _Run:
    """The steps of a run, in plain values: who leaves, who comes, which rows are swapped, what is sampled."""

    def __init__(self, row: Row, s: Stream) -> None:
        self.row, self.s = row, s
        self.held: list[str] = []
        self.gone: list[str] = []
        self.count = 0
        self.steps: list[dict[str, Any]] = []

    def request(self) -> dict[str, Any]:
        number, self.count = self.count, self.count + 1
        asked = (REQUESTS | LATER_REQUESTS)[self.row["requests"]]
        name = f"request {number}"
        self.held.append(name)
        before = self.s.integer(1, 4) if self.row["resumed"] and number % 2 else 0
        return {
            "name": name,
            "prompt": self.s.integers(0, _VOCABULARY, (self.s.integer(1, 6),)).tolist(),
            "outputs": self.s.integers(0, _VOCABULARY, (before,)).tolist(),
            "asks": dict(asked[number % len(asked)]),
        }

    def step(
        self, leave: Sequence[str] = (), come: int = 0, swap: tuple[int, int] | None = None, back: Sequence[str] = ()
    ) -> None:
        """One step. Those who come `back` were preempted: they had left, and bring the tokens that they had."""
        for name in leave:
            self.held.remove(name)
        self.held += back
        self.gone = [*[name for name in self.gone if name not in back], *leave]
        come = min(come, _most(self.row) - len(self.held))
        added = [self.request() for _ in range(come)]
        drafts = {name: self.s.integers(0, _VOCABULARY, (self.s.integer(0, 3),)).tolist() for name in self.held}
        longest = 3 if self.row["tokens"].startswith("several") else 1
        sampled = {name: self.s.integers(0, _VOCABULARY, (self.s.integer(1, longest + 1),)) for name in self.held}
        self.steps.append(
            {
                "leave": list(leave),
                "back": list(back),
                "come": added,
                "drafts": drafts,
                "swap": list(swap) if swap and max(swap) < len(self.held) else [],
                "sampled": {name: ids.tolist() for name, ids in sampled.items()},
            }
        )

    def lifelike(self) -> None:
        leave = [name for name in self.held if self.s.integer(0, 4) == 0]
        left = len(self.held) - len(leave)
        come = self.s.integer(0 if left else 1, 3)
        swap = (self.s.integer(0, 2), self.s.integer(2, 5)) if self.s.integer(0, 2) else None
        self.step(leave, come, swap)


def _most(row: Row) -> int:
    count: int = max(_MOST, axes.sized(row, 0, 0)[0])
    return count


def _pool(row: Row, s: Stream) -> Pool:
    run = _Run(row, s)
    run.step(come=axes.sized(row, row["batch"], 0)[0])
    for number in range(1, row["steps"]):
        match row["changes"]:
            case "lifelike":
                run.lifelike()
            case "one after the other":
                run.step(run.held[:1], 1)
            case "all leave":
                run.step(list(run.held) if number == 2 else (), 2 if number == 3 else 0)
            case "the first leaves":
                run.step(run.held[:1] if len(run.held) > 1 else ())
            case "the last leaves":
                run.step(run.held[-1:] if len(run.held) > 1 else (), number % 2)
            case "swapped":
                run.step(swap=(0, number % 2 + 1))
            case "preempted":
                run.step(run.held[-2:-1] if number % 3 == 1 else (), back=run.gone[:1] if number % 3 == 0 else ())
            case "replaced":
                run.step(run.held[: number % 3], number % 3)
            case _:
                run.step()
    seeds = {request["name"]: request["asks"].get("seed") for step in run.steps for request in step["come"]}
    return {
        "steps": run.steps,
        "later": row["tokens"] != "at once",
        "several": row["tokens"].startswith("several"),
        "observed": row["observed"],
        "most": _most(row),
        "generators": {name: Seeded(seed) for name, seed in seeds.items() if seed is not None},
    }


def cases() -> Iterator[Case]:
    """What not every version knows or takes is in blocks of its own, so that the rest is compared everywhere."""
    plain = {**AXES, "tokens": AXES["tokens"][:1], "observed": AXES["observed"][:1]}
    blocks: list[tuple[str, axes.Axes, int]] = [
        ("", plain, 180),
        *[(f"{tokens}: ", {**plain, "tokens": (tokens,)}, 40) for tokens in AXES["tokens"][1:]],
        ("processors: ", {**plain, "observed": ("what processors see",)}, 40),
        ("drafts: ", {**plain, "observed": ("drafts",)}, 30),
        ("drafts later: ", {**plain, "observed": ("drafts",), "tokens": AXES["tokens"][2:]}, 30),
        *[(f"{name}: ", {**plain, "requests": (name,)}, 20) for name in LATER_REQUESTS],
    ]
    for prefix, space, limit in blocks:
        yield from axes.cases_from(space, _pool, name="v1.input_batch", covers=2, prefix=prefix, limit=limit)


def _params(arm: Arm, asked: Mapping[str, Any]) -> Any:
    """A request's parameters; the ids of its bad words are what the engine finds with its tokenizer."""
    params = metadata.request_params(arm, {name: value for name, value in asked.items() if name != "bad_words"})
    kinds = arm.get(KINDS)
    if params.temperature < _GREEDY_BELOW:
        kind = kinds.GREEDY
    else:
        kind = kinds.RANDOM if params.seed is None else kinds.RANDOM_SEED
    for name, value in (("sampling_type", kind), ("bad_words_token_ids", asked.get("bad_words"))):
        own = isinstance(getattr(type(params), name, None), property)  # the package's own parameters know it
        if not own or name != "sampling_type":
            setattr(params, f"_{name}" if own else name, value)
    return params


class _Processor:
    """A processor of the user's own that keeps what it is told of the batch, as the interface says to: who leaves, then
    who comes, then who moves."""

    def __init__(self, arm: Arm) -> None:
        self.swap = arm.first(*metadata.MOVE_DIRECTIONALITY).SWAP
        self.rows: dict[int, tuple[Any, ...]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, update: Any) -> None:
        if update is None:
            return
        for row in update.removed:
            self.rows.pop(row, None)
        for row, *request in update.added:
            self.rows[row] = tuple(request)
        for one, other, direction in update.moved:
            first, second = self.rows.pop(one, None), self.rows.pop(other, None)
            if first is not None:
                self.rows[other] = first
            if second is not None and direction == self.swap:
                self.rows[one] = second

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class _Engine:
    """What a runner does to its batch in a step."""

    def __init__(self, arm: Arm, pool: Pool) -> None:
        self.arm, self.pool = arm, pool
        device = torch.device(arm.device)
        cls = arm.get(BATCH)
        values = {
            "max_num_reqs": pool["most"],
            "max_model_len": _LONGEST,
            "max_num_batched_tokens": 64,
            "device": device,
            "pin_memory": False,
            "vocab_size": _VOCABULARY,
            "block_sizes": [16],
            "kernel_block_sizes": [16],
            "max_num_blocks_per_req": [4],
        }
        self.processor = _Processor(arm) if pool["observed"] == "what processors see" else None
        if self.processor is not None:
            values["logitsprocs"] = _with(arm, cls, self.processor)
        asked = {name for step in pool["steps"] for request in step["come"] for name in request["asks"]}
        if "thinking_token_budget" in asked:
            if "reasoning_config" not in takes(cls):
                raise ApiChange("this version's InputBatch knows no thinking budgets")
            markers = {"reasoning_start_token_ids": [2], "reasoning_end_token_ids": [5]}
            values["reasoning_config"] = SimpleNamespace(enabled=True, **markers)
        self.batch = cls(**arm.bind(cls, values))
        if pool["later"] and not hasattr(self.batch, "update_async_output_token_ids"):
            raise ApiChange("this version's InputBatch does not take tokens a step later")
        if pool["several"] and not hasattr(self.batch, "update_async_spec_token_ids"):
            raise ApiChange("this version's InputBatch takes one token of each request a step later, not several")
        if pool["observed"] == "drafts" and not hasattr(self.batch, "update_req_spec_token_ids"):
            raise ApiChange("this version's InputBatch is not given drafts")
        self.known: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.states: dict[str, Any] = {}
        self.requests: dict[str, Mapping[str, Any]] = {}
        self.drafts: list[list[int]] = []

    def do(self, name: str, **values: Any) -> Any:
        """Call a method of the batch with what it asks for by name."""
        method = getattr(self.batch, name)
        return method(**self.arm.bind(method, values))

    def step(self, step: Mapping[str, Any]) -> Any:
        """One step. A run that was made shorter may name requests that no longer come: they are passed over."""
        batch = self.batch
        leaving = [name for name in step["leave"] if name in batch.req_id_to_index]
        empty = sorted([batch.req_id_to_index[name] for name in leaving], reverse=True)
        for name in leaving:
            self.do("remove_request", req_id=name)
        back = [name for name in step["back"] if name in self.requests and name not in batch.req_id_to_index]
        for name in back:
            self.outputs[name] = list(self.known[name])
        for request in [*[self.requests[name] for name in back], *step["come"]]:
            state = self.states[request["name"]] = self.state(request)
            self.do("add_request", request=state, req_index=empty.pop() if empty else None)
        if self.pool["observed"] == "drafts":
            self.given(step["drafts"])
        if empty or "empty_req_indices" not in takes(batch.condense):
            self.do("condense", empty_req_indices=empty)
        if step["swap"] and max(step["swap"]) < batch.num_reqs:
            self.do("swap_states", **dict(zip(("i1", "i2"), step["swap"], strict=True)))
        refresh = next((name for name in REFRESH if hasattr(batch, name)), None)
        if refresh is None:
            raise ApiChange(f"InputBatch has none of {', '.join(REFRESH)}")
        self.do(refresh)
        if self.pool["later"]:
            self.do("update_async_output_token_ids")
            if self.pool["observed"] == "drafts":
                self.do("update_async_spec_token_ids", draft_token_ids=copy.deepcopy(self.drafts))
        seen = self.seen()
        self.sampled(step["sampled"])
        return seen

    def state(self, request: Mapping[str, Any]) -> Any:
        name = request["name"]
        if name not in self.requests:
            self.requests[name] = request
            self.known[name] = list(request["outputs"])
            self.outputs[name] = list(request["outputs"])
        nothing: dict[str, Any] = {key: [] for key in _NO_IMAGES}
        fields = {
            **nothing,
            "req_id": name,
            "prompt_token_ids": list(request["prompt"]),
            "sampling_params": _params(self.arm, request["asks"]),
            "pooling_params": None,
            "generator": self.pool["generators"].get(name),
            "block_ids": ([0, 1],),
            "num_computed_tokens": len(request["prompt"]) - 1,
            "output_token_ids": self.outputs[name],
            "lora_request": None,
        }
        known = takes(self.arm.get(REQUEST))
        return self.arm.make(REQUEST, {name: value for name, value in fields.items() if name in known})

    def given(self, drafts: Mapping[str, Sequence[int]]) -> None:
        """The step's drafts; those of tokens that come a step later are placeholders until then."""
        ids = {name: [-1] * len(each) if self.pool["later"] else list(each) for name, each in drafts.items()}
        for name in self.batch.req_id_to_index:
            scheduled = {name: ids[name]} if ids.get(name) else {}
            self.do("update_req_spec_token_ids", request=self.states[name], scheduled_spec_tokens=scheduled)
        if before := self.batch.prev_req_id_to_index:
            self.drafts = [[] for _ in range(max(before.values()) + 1)]
            for name, row in before.items():
                self.drafts[row] = list(drafts.get(name, ()))

    def sampled(self, sampled: Mapping[str, Sequence[int]]) -> None:
        """The step's tokens; those that come a step later are placeholders until then."""
        batch = self.batch
        for name, ids in sampled.items():
            if name not in batch.req_id_to_index:
                continue
            self.known[name] += ids
            row, known = batch.req_id_to_index[name], [-1] * len(ids) if self.pool["later"] else list(ids)
            start = int(batch.num_tokens_no_spec[row])
            batch.token_ids_cpu[row, start : start + len(known)] = known
            for count in ("num_tokens_no_spec", "num_tokens"):
                if hasattr(batch, count):
                    getattr(batch, count)[row] = start + len(known)
            self.outputs[name] += known
        if self.pool["later"]:
            rows = [list(sampled.get(name, ())) for name in batch.req_ids]
            longest = max(map(len, rows), default=0)
            padded = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows], dtype=torch.int32)
            batch.prev_req_id_to_index = dict(batch.req_id_to_index)
            at_once = {name: lambda: True for name in ("synchronize", "wait", "query")}
            self.do(
                "set_async_sampled_token_ids",
                sampled_token_ids_cpu=padded,
                async_copy_ready_event=SimpleNamespace(**at_once),
            )

    def seen(self) -> dict[str, Any]:
        """What a sampler gets, as far as it looks at it."""
        batch, made = self.batch, self.batch.sampling_metadata
        count, names = batch.num_reqs, list(batch.req_ids)
        penalties = ("frequency_penalties", "presence_penalties", "repetition_penalties")
        found: dict[str, Any] = {
            "requests": names,
            **{name: getattr(made, name) for name in ("all_greedy", "all_random", "no_penalties", "max_num_logprobs")},
            **{name: getattr(made, name) for name in ("top_p", "top_k", "allowed_token_ids_mask")},
            "temperature": None if made.all_greedy else made.temperature,
            **{name: None if made.no_penalties else getattr(made, name) for name in penalties},
            "prompt_token_ids": None if made.no_penalties else made.prompt_token_ids,
            "output_token_ids": {
                row: made.output_token_ids[row] if row < len(made.output_token_ids) else "not given"
                for row, name in enumerate(names)
                if _READS_OUTPUTS & set(self.requests[name]["asks"])
            },
            "bad_words_token_ids": made.bad_words_token_ids,
            "seeds": {row: made.generators[row].initial_seed() for row in sorted(made.generators)},
        }
        if self.processor is not None:
            found["what processors see"] = self.told(self.processor)
        if self.pool["observed"] == "drafts":
            found["spec_token_ids"] = made.spec_token_ids[:count]
        if any("logprob_token_ids" in request["asks"] for request in self.requests.values()):
            found["logprob_token_ids"] = made.logprob_token_ids or {}
        rows = {name: value[:count] if isinstance(value, torch.Tensor) else value for name, value in found.items()}
        return copy.deepcopy(rows)

    def told(self, processor: _Processor) -> dict[int, Any]:
        """Whose parameters and prompt a processor has for each row, and whether it has the list that tokens come to."""
        said = {}
        for row, (params, *prompt, outputs) in sorted(processor.rows.items()):
            name = next((n for n, state in self.states.items() if state.sampling_params is params), "nobody")
            live = next((n for n, known in self.outputs.items() if known is outputs), "nobody")
            said[row] = (name, prompt, live)
        return said


def _with(arm: Arm, cls: Any, processor: _Processor) -> Any:
    """The arm's container of processors, with one in it."""
    if "logitsprocs" not in takes(cls) or not any(arm.has(symbol) for symbol in metadata.PROCESSORS):
        raise ApiChange("this version's InputBatch is given no logits processors")
    container = arm.first(*metadata.PROCESSORS)
    if "logitsprocs" in takes(container):
        return container([processor])
    return container(argmax_invariant=[], non_argmax_invariant=[processor])


def prepare(arm: Arm, pool: Pool) -> Call:
    """Steps of a runner, each with the metadata that it gives to the sampler."""
    engine = _Engine(arm, pool)
    return Call(lambda: [engine.step(step) for step in pool["steps"]])


TARGETS = (
    Target(
        "v1.input_batch",
        (BATCH,),
        cases,
        prepare,
        uses=(
            REQUEST,
            KINDS,
            metadata.METADATA,
            *metadata.PROCESSORS,
            *metadata.UPDATE,
            *metadata.methods(
                (BATCH,),
                "__init__",
                "add_request",
                "remove_request",
                "condense",
                "swap_states",
                *REFRESH,
                "update_req_spec_token_ids",
                "update_async_output_token_ids",
                "update_async_spec_token_ids",
                "set_async_sampled_token_ids",
            ),
        ),
        shapes=shapes.of_cases(cases, also=lambda size: {"changes": "none", "steps": 3}),
    ),
)
