"""Puts the recorder into a vLLM process: each site is wrapped when its module is imported, none is imported for it."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from difftest.record.capture import Recorder
from difftest.record.sites import Settings

OPAQUE = ("vllm.config", "vllm.transformers_utils", "vllm.tokenizers", "vllm.model_executor", "transformers")
"""Configuration, tokenizers and models: reached from a sampler's state, not part of what it computes."""

_V1_RUNNER = "vllm.v1.worker.gpu_model_runner"
_V2_RUNNER = "vllm.v1.worker.gpu.model_runner"
_REJECTION_SAMPLER = "vllm.v1.sample.rejection_sampler"
_WARM_UP = "calls of a warm-up are not recorded"

Patch = Callable[[ModuleType], None]


def install(variables: Mapping[str, str]) -> Recorder:
    """Start recording in this process as the environment asks.

    Raises:
        UsageError: the environment asks for something that does not exist.
    """
    settings = Settings.from_environment(variables)
    recorder = Recorder(
        Path(settings.out),
        max_calls=settings.max_calls,
        max_bytes=settings.max_bytes,
        one_in=settings.one_in,
        redact=bytes.fromhex(settings.key) if settings.key else None,
        wait=settings.wait,
        opaque=OPAQUE,
    )
    patches: dict[str, list[Patch]] = {}
    if settings.fixes:
        patches.setdefault(_REJECTION_SAMPLER, []).append(functools.partial(fix_expand, recorder))
        patches.setdefault("vllm.triton_utils", []).append(functools.partial(fix_interpreter, recorder))
    for site in settings.sites:
        patches.setdefault(site.partition(":")[0], []).append(functools.partial(_wrap_site, recorder, site))
    patches.setdefault(_V1_RUNNER, []).append(functools.partial(_watch_v1_runner, recorder))
    patches.setdefault(_V2_RUNNER, []).append(functools.partial(_watch_v2_runner, recorder))
    when_imported(patches, recorder)
    return recorder


def when_imported(patches: Mapping[str, Sequence[Patch]], recorder: Recorder) -> None:
    """Run patches on modules right after they are imported, before anything else takes names out of them."""
    waiting = {}
    for name, todo in patches.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = list(todo)
        else:
            _apply(module, todo, recorder)
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting, recorder))


def _apply(module: ModuleType, patches: Sequence[Patch], recorder: Recorder) -> None:
    for patch in patches:
        try:
            patch(module)
        except Exception as error:
            recorder.fault(f"patching {module.__name__}", error)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the watched modules by the other finders and patches them once they are executed."""

    def __init__(self, waiting: dict[str, list[Patch]], recorder: Recorder) -> None:
        self._waiting = waiting
        self._recorder = recorder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patches = self._waiting.pop(name, None)
        if patches is None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._patch_after(spec.loader, patches)
                return spec
        return None

    def _patch_after(self, loader: Any, patches: list[Patch]) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _apply(module, patches, self._recorder)

        loader.exec_module = exec_module


def _wrap_site(recorder: Recorder, site: str, module: ModuleType) -> None:
    """Put the recording function in the place of the site's own; a static or class method stays one."""
    *path, name = site.partition(":")[2].split(".")
    owner: Any = functools.reduce(getattr, path, module)
    raw = inspect.getattr_static(owner, name)
    if isinstance(raw, staticmethod | classmethod):
        setattr(owner, name, type(raw)(recorder.wrap(raw.__func__, site)))
        return
    wrapped = recorder.wrap(raw, site)
    setattr(owner, name, wrapped)
    if owner is module:
        # Modules that were imported before hold the function under their own names.
        for other in list(sys.modules.values()):
            names = getattr(other, "__dict__", None) or {}
            for key in [key for key, value in list(names.items()) if value is raw]:
                setattr(other, key, wrapped)


def _watch_v1_runner(recorder: Recorder, module: ModuleType) -> None:
    """Steps, request ids and warm-ups of the V1 model runner."""
    runner: Any = module.GPUModelRunner

    def request_ids(self: Any, *_: Any, **__: Any) -> Sequence[str]:
        return [name for name in self.input_batch.req_ids if name is not None]

    # Before anything in the step: grammar masks are applied ahead of `_sample`, and their ids are to be redacted too.
    _before(runner, "sample_tokens", recorder, request_ids)
    _around(runner, "sample_tokens", lambda *_: recorder.step())
    _around(runner, "_dummy_sampler_run", lambda *_: recorder.paused(_WARM_UP))


def _watch_v2_runner(recorder: Recorder, module: ModuleType) -> None:
    """Steps, request ids and warm-ups of Model Runner V2."""
    runner: Any = module.GPUModelRunner

    def request_ids(_self: Any, _hidden_states: Any, input_batch: Any, *_: Any, **__: Any) -> Sequence[str]:
        return list(input_batch.req_ids)

    _around(runner, "sample_tokens", lambda *_: recorder.step())
    _before(runner, "sample", recorder, request_ids)
    _around(runner, "_dummy_sampler_run", lambda *_: recorder.paused(_WARM_UP))


def _around(owner: Any, name: str, context: Callable[..., Any]) -> None:
    """Call the method inside a context; an engine that has no such method is left as it is."""
    method = getattr(owner, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def around(*args: Any, **kwargs: Any) -> Any:
        with context():
            return method(*args, **kwargs)

    setattr(owner, name, around)


def _before(owner: Any, name: str, recorder: Recorder, request_ids: Callable[..., Sequence[str]]) -> None:
    """Tell the recorder the requests of the batch before the method is called."""
    method = getattr(owner, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def before(*args: Any, **kwargs: Any) -> Any:
        try:
            names = request_ids(*args, **kwargs)
        except Exception as error:
            recorder.fault(f"request ids in {name}", error)
        else:
            recorder.requests(names)
        return method(*args, **kwargs)

    setattr(owner, name, before)


def fix_expand(recorder: Recorder, module: ModuleType) -> None:
    """Put torch's definition in the place of `expand_batch_to_tokens`, whose CPU fallback does not write its output.

    The value of each request is repeated for each of its tokens, with `replace_from` replaced by `replace_to`.
    """
    import torch

    platform: Any = sys.modules["vllm.platforms"]
    if not platform.current_platform.is_cpu():
        return

    def expand_batch_to_tokens(
        x: torch.Tensor,
        cu_num_tokens: torch.Tensor,
        num_tokens: int,
        replace_from: int = 0,
        replace_to: int = 0,
    ) -> torch.Tensor:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
        return torch.repeat_interleave(values, counts.long(), output_size=num_tokens)

    recorder.engine_fixes.append("expand_batch_to_tokens")
    module.expand_batch_to_tokens = expand_batch_to_tokens  # type: ignore[attr-defined]


def fix_interpreter(recorder: Recorder, _module: ModuleType) -> None:
    """Where kernels run in Triton's interpreter, let them run what it lacks (:mod:`difftest.call.interpreter`)."""
    from difftest.call.interpreter import bridge

    recorder.engine_fixes += bridge()
