"""Makes the recordings of this folder again: a tiny model in a real engine, captured by `difftest capture`.

    python oracles/recordings/make_recordings.py --out NEW_FOLDER [--ranks N] [--calls N] [NAME ...]

Run it in an environment with vLLM for CPUs and difftest. The model is made here from a seed; nothing is downloaded.
Known faults of the engine on a CPU are worked around (DIFFTEST_ENGINE_FIXES), and each capture says so. Model Runner
V2 asks for Triton: for its runs alone, a stand-in backend is put on the path and kernels run in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

VOCABULARY = 96
PROMPT_TOKENS = 12
DRAFT_TOKENS = 3
TEMPERATURES = (0.7, 0.3, 0.0, 1.0)
"""Of the four requests."""


@dataclass(frozen=True)
class Recording:
    """One run of the engine.

    Attributes:
        name: its folder.
        runner: 1 for the V1 model runner, 2 for Model Runner V2.
        speculation: `ngram`, `draft` or empty.
        seeded: which of the four requests carry a seed.
        logprobs: log probabilities to return for each token, None for none.
        penalties: the requests carry presence and repetition penalties.
        grammar: half of the requests must match a pattern; the masks that see to it are recorded too.
        tokens: tokens to generate for each request.
        calls: at most so many recorded calls for each rank.
        ranks: tensor-parallel ranks.
    """

    name: str
    runner: int
    speculation: str
    seeded: tuple[bool, bool, bool, bool]
    logprobs: int | None = None
    penalties: bool = False
    grammar: bool = False
    tokens: int = 16
    calls: int = 18
    ranks: int = 2


ALL = (True, True, True, True)
NONE = (False, False, False, False)
MIXED = (True, False, True, False)

RECORDINGS = (
    Recording("v1-ngram-seeded", 1, "ngram", ALL),
    Recording("v1-ngram-mixed-logprobs", 1, "ngram", MIXED, logprobs=3),
    Recording("v1-ngram-unseeded-penalties", 1, "ngram", NONE, penalties=True),
    Recording("v1-draft-seeded-logprobs", 1, "draft", ALL, logprobs=2),
    Recording("v1-draft-unseeded", 1, "draft", NONE),
    Recording("v1-plain-mixed", 1, "", MIXED, logprobs=1),
    Recording("v1-ngram-grammar", 1, "ngram", MIXED, grammar=True),
    Recording("v2-ngram-mixed-logprobs", 2, "ngram", MIXED, logprobs=3),
    Recording("v2-draft-seeded", 2, "draft", ALL),
    Recording("v2-plain-mixed", 2, "", MIXED, logprobs=1),
    Recording("v2-ngram-grammar", 2, "ngram", MIXED, grammar=True),
)


def make_model(folder: Path, seed: int, layers: int, noise: float) -> None:
    """A Llama of a few thousand weights drawn from seeds. All share the embedding, and so what they mostly say next.

    Args:
        folder: made here.
        seed: of all other weights.
        layers: how many.
        noise: scale of what the models do not share of their last layer.
    """
    import torch
    from safetensors.torch import save_file

    hidden, inner = 64, 128
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": hidden // 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    embedding = torch.randn(VOCABULARY, hidden, generator=torch.Generator().manual_seed(0))
    # Each token asks for the next of its group of four, so that generation goes round and drafts are often right.
    tokens = torch.arange(VOCABULARY)
    following = tokens // 4 * 4 + (tokens + 1) % 4
    head = drawn(VOCABULARY, hidden, scale=noise)
    head[following] += 0.12 * embedding
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": head,
    }
    for layer in range(layers):
        place = f"model.layers.{layer}."
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden, hidden),
            "self_attn.v_proj": (hidden, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            weights[f"{place}{name}.weight"] = drawn(*shape, scale=0.3 * shape[1] ** -0.5)
        weights[f"{place}input_layernorm.weight"] = torch.ones(hidden)
        weights[f"{place}post_attention_layernorm.weight"] = torch.ones(hidden)
    save_file(weights, folder / "model.safetensors")


def make_tokenizer(folder: Path) -> None:
    """One printable character a token, from `!` = 2 on; grammars are written in characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<s>", "</s>", *map(chr, range(0x21, 0x21 + VOCABULARY - 2))]
    tokenizer = Tokenizer(models.WordLevel({name: token for token, name in enumerate(names)}, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="!")
    fast.save_pretrained(folder)


def make_triton_backend(folder: Path) -> None:
    """A Triton backend `cpu` that is never compiled for; on the path of one run only, never installed."""
    package = folder / "interpreter_only_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "compiler.py").write_text(
        "from triton.backends.compiler import BaseBackend as _Base\n"
        "class InterpreterOnlyBackend(_Base):\n"
        "    @staticmethod\n"
        "    def supports_target(target): return target.backend == 'cpu'\n"
        "    def hash(self): return 'interpreter'\n"
        "    def parse_options(self, options): raise NotImplementedError('only the interpreter runs here')\n"
        "    def add_stages(self, stages, options, *_): raise NotImplementedError('only the interpreter runs here')\n"
        "    def load_dialects(self, context): pass\n"
        "    def get_module_map(self): return {}\n"
    )
    (package / "driver.py").write_text(
        "from triton.backends.compiler import GPUTarget as _Target\n"
        "from triton.backends.driver import DriverBase as _Base\n"
        "class InterpreterOnlyDriver(_Base):\n"
        "    def __init__(self): pass\n"
        "    @classmethod\n"
        "    def is_active(cls): return True\n"
        "    def map_python_to_cpp_type(self, kind): return kind\n"
        "    def get_current_target(self): return _Target('cpu', 0, 1)\n"
        "    def get_active_torch_device(self):\n"
        "        import torch\n"
        "        return torch.device('cpu')\n"
        "    def get_benchmarker(self): raise NotImplementedError('nothing is tuned')\n"
        "    def get_current_device(self): return 0\n"
        "    def set_current_device(self, device): pass\n"
        "    def get_current_stream(self, device): return 0\n"
        "    def get_device_interface(self): raise NotImplementedError('there is no device')\n"
        "    def get_empty_cache_for_benchmark(self): raise NotImplementedError('nothing is tuned')\n"
        "    def clear_cache(self, cache): pass\n"
    )
    information = folder / "interpreter_only_backend-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreter-only-backend\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[triton.backends]\ncpu = interpreter_only_backend\n")


def prompts() -> list[list[int]]:
    """Four prompts of tokens in which pieces come again, so that ngram speculation finds drafts."""
    return [[8 * row + 4 + i % (3 + row) for i in range(PROMPT_TOKENS)] for row in range(4)]


def run_engine(recording: Recording, models: Path, rounds: int = 1) -> None:
    """Start the engine in this process, generate `rounds` times from other seeds, print the tokens as JSON."""
    from vllm import LLM, SamplingParams

    speculation: dict[str, Any] | None = None
    if recording.speculation == "ngram":
        method = "ngram_gpu" if recording.runner == 2 else "ngram"
        speculation = {
            "method": method,
            "num_speculative_tokens": DRAFT_TOKENS,
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        }
    elif recording.speculation == "draft":
        speculation = {
            "model": str(models / "draft"),
            "method": "draft_model",
            "num_speculative_tokens": DRAFT_TOKENS,
        }
    engine = LLM(
        model=str(models / "target"),
        skip_tokenizer_init=not recording.grammar,
        enforce_eager=True,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        tensor_parallel_size=recording.ranks,
        speculative_config=speculation,
        seed=0,
    )
    more: dict[str, Any] = {}
    if recording.grammar:
        from vllm.sampling_params import StructuredOutputsParams
    if recording.penalties:
        more = {"presence_penalty": 0.5, "repetition_penalty": 1.2}
    found = []
    for turn in range(rounds):
        parameters = [
            SamplingParams(
                temperature=TEMPERATURES[row],
                # Never top-k without top-p: with no drafts in a batch, 0.32.0 then fails on a CPU.
                top_k=(20, 12, 0, 24)[row] or -1,
                top_p=(0.95, 0.9, 1.0, 0.97)[row],
                seed=1000 + 10 * turn + row if recording.seeded[row] else None,
                logprobs=recording.logprobs,
                max_tokens=recording.tokens,
                ignore_eos=True,
                detokenize=False,
                structured_outputs=(
                    StructuredOutputsParams(regex="([!-,]{3}[0-9])+") if recording.grammar and row % 2 == 0 else None
                ),
                **more,
            )
            for row in range(4)
        ]
        outputs = engine.generate([{"prompt_token_ids": tokens} for tokens in prompts()], parameters)
        found += [list(output.outputs[0].token_ids) for output in outputs]
    print(json.dumps(found))


def prepare(scratch: Path) -> tuple[Path, Path]:
    """The models, and a Triton backend for the runs that need one: (folder of models, folder for the path)."""
    models, backend = scratch / "models", scratch / "backend"
    make_model(models / "target", seed=1, layers=2, noise=0.05)
    make_model(models / "draft", seed=2, layers=1, noise=0.2)
    make_tokenizer(models / "target")
    make_triton_backend(backend)
    return models, backend


def set_environment(recording: Recording, backend: Path) -> None:
    """What the engine's processes need to find in their environment."""
    from difftest.record.sites import FIXES

    os.environ |= {
        FIXES: "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": str(int(recording.runner == 2)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if recording.runner == 2:
        path = os.environ.get("PYTHONPATH", "")
        os.environ |= {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, [str(backend), path]))}


def engine_command(recording: Recording, models: Path, rounds: int = 1) -> list[str]:
    """What starts the engine's run of a recording."""
    return [
        sys.executable,
        str(Path(__file__).resolve()),
        "--engine",
        recording.name,
        "--ranks",
        str(recording.ranks),
        "--models",
        str(models),
        "--rounds",
        str(rounds),
    ]


def make(recording: Recording, folder: Path, models: Path, backend: Path) -> int:
    """Capture one recording into a new folder; the exit code of the engine's run."""
    from difftest.record.command import capture
    from difftest.record.sites import DEFAULT

    before = dict(os.environ)
    set_environment(recording, backend)
    try:
        return capture(
            folder,
            engine_command(recording, models),
            site=[*DEFAULT, "v1.apply_grammar_bitmask", "v2.apply_grammar_bitmask"] if recording.grammar else (),
            max_calls=recording.calls,
            redact=True,
        )
    finally:
        os.environ.clear()
        os.environ |= before


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="recordings to make; all of them by default")
    parser.add_argument("--out", type=Path, help="folder for the recordings")
    parser.add_argument("--ranks", type=int, metavar="N", help="tensor-parallel ranks; the folder is then NAME-tpN")
    parser.add_argument("--calls", type=int, metavar="N", help="record at most so many calls for each rank")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = {recording.name: recording for recording in RECORDINGS}
    if options.engine:
        run_engine(replace(known[options.engine], ranks=options.ranks), options.models, options.rounds)
        return 0
    unknown = sorted(set(options.names) - set(known))
    if unknown or options.out is None:
        parser.error(f"no recording {unknown[0]}" if unknown else "--out is needed")
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        models, backend = prepare(Path(scratch))
        for name in options.names or known:
            folder = name if options.ranks is None else f"{name}-tp{options.ranks}"
            recording = known[name]
            recording = replace(
                recording, ranks=options.ranks or recording.ranks, calls=options.calls or recording.calls
            )
            if make(recording, options.out / folder, models, backend) != 0:
                failed.append(folder)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
