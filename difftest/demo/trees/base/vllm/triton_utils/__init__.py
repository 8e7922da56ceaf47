"""Triton where it is installed; where it is not, names with which a module with kernels still imports."""

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None

if HAS_TRITON:
    import triton
    import triton.language as tl
else:

    class _Kernel:
        def __init__(self, function):
            self.function = function

        def __getitem__(self, grid):
            raise RuntimeError(f"{self.function.__name__} cannot be launched: Triton is not installed")

    class triton:
        jit = _Kernel

    class tl:
        constexpr = staticmethod(lambda value: value)
