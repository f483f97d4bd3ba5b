# One command each: `make demo` and `make test` set up what they need on a fresh machine.

PYTHON ?= python3
VENV   ?= .venv
# The torch to install. On PyPI this version's Linux wheel may be a CUDA build; any torch >= 2.13 will do.
TORCH  ?= torch==2.13.0
# Further arguments, for example: make demo ARGS='--prompt "Why is the sky blue?"'
ARGS   ?=

BIN  := $(VENV)/bin
JOBS ?= 2
# Collecting only these saves a minute.
SERIAL = $(shell grep -rl mark.serial tests --include='*.py')
# Tests start hundreds of processes, which need not compile our sources each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint bench nightly portable chaos fuzz device-check clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# torch first and by name: a range would let pip fetch another build.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[cuda13,test]"
	@touch $(VENV)/.installed $@

demo: $(VENV)/.installed ## a language model on our operators, beside PyTorch
	$(BIN)/tileops demo $(ARGS)

# Types first: a test checks typed calls with what mypy keeps.
test: $(VENV)/.installed-test lint ## everything CI checks
	$(BIN)/tileops validate
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --max-worker-restart 0 -m "not serial and not nightly" --durations 25 $(ARGS)
	$(BIN)/python -m pytest -m "serial and not nightly" --durations 5 $(ARGS) $(SERIAL)

lint: $(VENV)/.installed-test ## formatting, lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-test ## every operator against PyTorch (quiet machine, about 20 minutes)
	$(BIN)/tileops bench --against torch,torch-compile $(ARGS)
	$(BIN)/python scripts/bench_overhead.py

nightly: $(VENV)/.installed-test ## tests too slow for `make test`
	$(BIN)/python -m pytest -m nightly $(ARGS)

portable: $(VENV)/.installed-test ## the CPU tests with the instructions of older machines (half an hour)
	for cpu in x86-64-v3 generic; do \
		TILEOPS_CPU=$$cpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not serial and not nightly" \
			--ignore tests/cuda --ignore tests/ptx --ignore tests/packaging $(ARGS) || exit 1; \
		TILEOPS_CPU=$$cpu $(BIN)/python -m pytest -m "serial and not nightly" $(ARGS) $(SERIAL) || exit 1; \
	done

chaos: $(VENV)/.installed-test ## the kernel cache among killed processes, full disks and damaged files (some minutes)
	TILEOPS_CHAOS_ROUNDS=500 $(BIN)/python -m pytest tests/chaos $(ARGS)

fuzz: $(VENV)/.installed-test ## 20,000 random calls of every operator
	TILEOPS_FUZZ=20000 $(BIN)/python -m pytest -n $(JOBS) -m nightly tests/ops_runtime/test_random_calls.py $(ARGS)

device-check: ## on a machine with a CUDA GPU: confirm the kernels there
	$(PYTHON) scripts/device_check.py $(ARGS)

clean: ## remove the environment and build outputs
	rm -rf $(VENV) build dist *.egg-info
