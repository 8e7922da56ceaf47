# make demo    the whole job on trees that the package carries
# make test    lint, types and tests
# make capture-demo   installs a vLLM engine (about 4 GB), captures it at one and two ranks, replays what it captured
# Both make .venv first, from pinned versions; PYTHON=... names the interpreter, WORKERS=n the test processes.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
WORKERS ?= 2
PYTEST_ARGS ?=
bin := .venv/bin
pip = $(bin)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
ready := .venv/ready
engine := .venv-engine
engine_pip = $(engine)/bin/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo capture-demo test check wheel clean

demo: $(ready)
	$(bin)/difftest demo

capture-demo: $(ready) $(engine)/ready
	rm -rf build/capture-demo
	$(bin)/python oracles/recordings/capture_demo.py --engine $(engine)/bin/python --out build/capture-demo

test: $(ready)
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/python -m pytest -m "not check" --numprocesses $(WORKERS) --dist loadscope $(PYTEST_ARGS)

# What takes long, or measures time and so wants the machine to itself.
check: $(ready)
	$(bin)/python -m pytest -m check $(PYTEST_ARGS)

wheel: $(ready)
	$(bin)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

$(ready): pyproject.toml constraints.txt constraints-triton.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(pip) hatchling editables torch
	$(pip) --no-build-isolation --editable '.[dev]'
	$(bin)/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement constraints-triton.txt
	@touch $@

# The engine has requirements of its own, so it has an environment of its own. torch first, with what it requires.
$(engine)/ready: constraints-engine.txt constraints-triton.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(engine)
	$(engine_pip) --constraint constraints-engine.txt torch==2.13.0
	$(engine_pip) --no-deps --requirement constraints-engine.txt
	$(engine_pip) --no-deps --requirement constraints-triton.txt
	$(engine_pip) --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf .venv $(engine) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
