"""The helpers for kernels that torch's compiler comes with, loaded without the compiler.

They stand on Triton alone, and kernels take `libdevice` from them, but importing them by name imports their package
first: all of the compiler, which takes longer than torch itself and is not used by the code under test.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types

KERNEL_HELPERS = "torch._inductor.runtime.triton_helpers"


@functools.cache
def kernel_helpers() -> types.ModuleType | None:
    """The module :data:`KERNEL_HELPERS`, out of `sys.modules`; None where it cannot be had without its package."""
    before = {name: module for name, module in sys.modules.items() if _inside(name)}
    try:
        root = importlib.util.find_spec("torch")
        assert root is not None and root.submodule_search_locations is not None
        place = root.submodule_search_locations[0]
        for name in ("torch._inductor", "torch._inductor.runtime"):
            place = f"{place}/{name.rpartition('.')[2]}"
            package = sys.modules[name] = types.ModuleType(name)
            package.__path__ = [place]
        return importlib.import_module(KERNEL_HELPERS)
    except Exception:  # another torch keeps its helpers elsewhere; the kernel's own import finds them or says so
        return None
    finally:
        for name in [name for name in sys.modules if _inside(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _inside(name: str) -> bool:
    return name == "torch._inductor" or name.startswith("torch._inductor.")
