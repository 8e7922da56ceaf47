"""What an arm's names and files are called in production."""

from __future__ import annotations

import re

_ARM = re.compile(
    r"(?:/[^\s'\"<>:]*)?/difftest-[^/\s'\"]+/arms/(?:base|head\d*)/"  # the arm's folder, before a file of the tree
    r"|\bdifftest_(?:base|head\d*)\.|_difftest_(?:base|head\d*)\b"  # before a module, behind operators' namespaces
)


def plain(text: str) -> str:
    """A text with the modules, files and operators of an arm as they are called without difftest.

    `<class 'difftest_base.vllm.v1.outputs.SamplerOutput'>` says `<class 'vllm.v1.outputs.SamplerOutput'>`.
    """
    return _ARM.sub("", text) if "difftest" in text else text
