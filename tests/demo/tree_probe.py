"""Run as a script with PYTHONPATH at one of the demo's trees: what its functions answer, as one JSON object.

It imports no difftest, so that the trees are shown to stand on their own.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

ROUNDS = 200
VOCAB = 21


def lists(value):
    """Tensors and arrays, at any depth, as [type, dtype, elements]."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return [type(value).__name__, str(value.dtype), value.tolist()]
    if isinstance(value, tuple | list):
        return [lists(item) for item in value]
    return value


def parse_outputs(parse_output, extra):
    """Ids run from -2 to two beyond the vocabulary; discards come as a list, an array and a tensor."""
    answers = []
    for seed in range(ROUNDS):
        torch.manual_seed(seed)
        batch, columns = seed % 7, 1 + seed % 5
        ids = torch.randint(-2, VOCAB + 2, (batch, columns), dtype=(torch.int32, torch.int64)[seed % 2])
        rows = torch.arange(batch)[torch.rand(batch) < 0.4]
        discard = (rows.tolist(), rows.numpy(), rows)[seed % 3]
        logprobs = None
        if seed % 4:
            n = ids.numel()
            fields = torch.randint(VOCAB, (n, 3), dtype=torch.int32), torch.randn(n, 3), torch.arange(n)
            logprobs = importlib.import_module("vllm.v1.outputs").LogprobsTensors(*fields)
        answer = parse_output(ids, VOCAB, *extra, discard_req_indices=discard, logprobs_tensors=logprobs)
        types = sorted({type(token).__name__ for row in answer[0] for token in row})
        answers.append([types, lists(answer)])
    return answers


def random_samples(random_sample):
    """Tokens, and the states of the default generator and of the requests' own after the call."""
    answers = []
    for seed in range(20):
        torch.manual_seed(seed)
        probs = torch.randn(4, VOCAB).softmax(-1)
        generators = {request: torch.Generator().manual_seed(request) for request in range(seed % 5)}
        tokens = random_sample(probs, generators)
        states = [generator.get_state() for generator in (torch.default_generator, *generators.values())]
        answers.append([tokens.tolist(), *(hash(bytes(state.numpy())) for state in states)])
    return answers


def masks(packer):
    """Per vocabulary size: the open tokens by definition, by the lists, and by the poisoned bitmask."""
    answers = {}
    empty = torch.empty
    for vocab, room in ((16, 16), (21, 21), (2 * 8192 + 5, 100)):
        torch.manual_seed(vocab)
        logits = torch.randn(4, vocab)
        logits[torch.rand(4, vocab) < 0.3] = float("-inf")
        logits[0, 0], logits[0, 1], logits[0, -1] = float("nan"), float("inf"), 0.5
        sampled = torch.tensor([2, 0, 1], dtype=torch.int32)
        starts = torch.tensor([0, 2, 3, 4], dtype=torch.int32)

        torch.empty = lambda *args, **kwargs: empty(*args, **kwargs).fill_(0x5A)
        try:
            chunks = [
                packer.from_logits(logits, starts[first:], sampled[first : first + size], room, 2)
                for first, size in ((0, 2), (2, 1))
            ]
        finally:
            torch.empty = empty
        packed = packer.cat(chunks)
        found = packed.tolists(sampled.numpy())
        bits = np.unpackbits(packed.packed_mask.numpy()[[0, 1, 4]], axis=1, bitorder="little")
        answers[vocab] = {
            "definition": [logits[row].isfinite().nonzero().flatten().tolist() for row in (0, 1, 3)],
            "lists": [part.tolist() for part in np.split(found.token_ids, found.offsets[1:-1])],
            "bitmask": [row.nonzero()[0].tolist() for row in bits],
            "boundaries": found.cu_num_generated_tokens,
        }
    return answers


def gumbel_samples(gumbel_sample):
    """Six rows of three requests (one of them greedy) and of padding."""
    torch.manual_seed(0)
    logits = torch.randn(6, 5000)
    requests = torch.tensor([0, 0, 1, 1, 2, -1], dtype=torch.int32)
    temperature, seeds = torch.tensor([0.0, 0.7, 1.0]), torch.tensor([5, 2**40 + 1, -3])
    drafting = [
        gumbel_sample(logits, requests, temperature, seeds, torch.arange(6), True, is_drafting).tolist()
        for is_drafting in (False, True)
    ]
    return {"largest": logits.argmax(-1).tolist(), "sampled": drafting[0], "drafted": drafting[1]}


def sampler_samples(sampler, metadata):
    """A mixed batch: greedy, top-k 1, and seeded."""
    torch.manual_seed(0)
    logits = torch.randn(3, VOCAB)
    largest = logits.argmax(-1).tolist()
    asked = metadata(
        temperature=torch.tensor([0.0, 1.0, 1.0]),
        all_greedy=False,
        all_random=False,
        top_k=torch.tensor([5, 1, VOCAB], dtype=torch.int32),
        top_p=torch.tensor([0.5, 0.9, 0.9]),
        generators={2: torch.Generator().manual_seed(3)},
    )
    logprobs = sampler.gather_logprobs(sampler.compute_logprobs(logits), 2, torch.tensor(largest))
    return {
        "largest": largest,
        "sampled": sampler().sample(logits, asked).tolist(),
        "logprobs": lists(logprobs),
    }


def main():
    root = Path(sys.argv[1])
    for path in sorted(root.rglob("*.py")):
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
    module = sys.modules
    rejection = module["vllm.v1.sample.rejection_sampler"].RejectionSampler
    names = rejection.parse_output.__code__.co_varnames
    answers = {
        "file": rejection.parse_output.__code__.co_filename,
        "parse_output": parse_outputs(rejection.parse_output, [[3]] if "eos_token_ids" in names else []),
        "random_sample": random_samples(module["vllm.v1.sample.ops.topk_topp_sampler"].random_sample),
        "sampler": sampler_samples(
            module["vllm.v1.sample.sampler"].Sampler, module["vllm.v1.sample.metadata"].SamplingMetadata
        ),
    }
    if module["vllm.triton_utils"].HAS_TRITON:
        answers["masks"] = masks(module["vllm.v1.worker.gpu.sample.output"].SamplingMaskTensors)
        answers["gumbel"] = gumbel_samples(module["vllm.v1.worker.gpu.sample.gumbel"].gumbel_sample)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
