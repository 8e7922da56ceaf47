"""difftest: does a change to LLM sampler code change what the sampler does?

Two versions of the sampler and mask code are lifted out of git trees, loaded in one interpreter and given the
same cases; every byte that differs is reported. The functions of :mod:`difftest.api` are what the command line calls.
"""

from pathlib import Path

__version__ = "0.1.0"

# `cases/`, `oracles/` and `reports/` stand at the top level of the repository and inside this package in a wheel.
# Either way they are imported as `difftest.cases`, `difftest.oracles` and `difftest.reports`.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "cases").is_dir():
    __path__.append(str(_checkout))
