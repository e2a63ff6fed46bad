# `make` lists the targets. demo and test set up .venv by themselves; PYTHON=python3.12 names
# another Python, PIP_CONSTRAINT and pip's other variables reach pip as they are.

export PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-to-run
DEV_READY := $(VENV)/.ready-to-develop

# A machine whose own Python has all packages already (and perhaps no network) needs no .venv for
# the targets that run on a GPU.
GPU_READY := $(DEV_READY)
GPU_PYTHON := $(BIN)/python
NEEDED := torch cutlass_library jinja2 pybind11 pydantic pytest rich typer yaml
ifneq ($(filter gpu-test bench,$(MAKECMDGOALS)),)
ifeq ($(wildcard $(VENV)),)
OWN_PYTHON := PYTHONPATH=generator$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON)
ifeq ($(shell $(OWN_PYTHON) -c 'import importlib.util, sys; \
	print(all(map(importlib.util.find_spec, sys.argv[1:])))' $(NEEDED)),True)
GPU_READY :=
GPU_PYTHON := $(OWN_PYTHON)
endif
endif
endif

.DEFAULT_GOAL := help
.PHONY: help demo test sweep toolchains matrix lint format type golden gpu-test bench build

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: $(RUN_READY)  ## build the demo's kernels, show their cards, run SmolLM2 on them
	@$(BIN)/python -m gemmsmith demo

# Tests for sm_70 are skipped without its toolkit; .ci/run gets it and sets REQUIRE=sm_70.
test: $(DEV_READY)  ## all tests that need no GPU, real nvcc compiles among them
	@$(BIN)/python -m pytest -m "not gpu and not sweep" --require nvcc $(REQUIRE:%=--require %)

sweep: $(DEV_READY)  ## compile kernels drawn at random, accepted and refused (some 7 minutes)
	@$(BIN)/python -m pytest -m sweep --require nvcc $(REQUIRE:%=--require %)

toolchains:  ## CUDA 11.8 for sm_70, which CUDA 13 cannot target, into build/toolchains
	@bash build/toolchains/cuda-11.8.sh

matrix: $(RUN_READY)  ## compile what is missing; show architectures by data types by toolkits
	@$(BIN)/python -m gemmsmith matrix

lint: $(DEV_READY)  ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

format: $(DEV_READY)  ## ruff: mend what can be mended
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

type: $(DEV_READY)  ## mypy --strict for the package, less strict for tests and benchmarks
	@$(BIN)/mypy
	@$(BIN)/mypy --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls \
		--no-warn-unused-ignores tests benchmarks

golden: $(DEV_READY)  ## write what the templates render now into tests/golden
	@$(BIN)/python -m pytest tests/test_render.py --update-golden

gpu-test: $(GPU_READY)  ## the tests that need a GPU
	@$(GPU_PYTHON) -m pytest -m gpu --require gpu

bench: $(GPU_READY)  ## our kernels beside cuBLAS on the shapes of Llama 3 8B (needs a GPU)
	@$(GPU_PYTHON) -m gemmsmith bench --model llama3-8b

build: $(RUN_READY)  ## compile the default kernels of every architecture
	@$(BIN)/python -m gemmsmith build

$(RUN_READY): pyproject.toml build/setup-venv.sh
	@sh build/setup-venv.sh run
	@touch $@

$(DEV_READY): $(RUN_READY)
	@sh build/setup-venv.sh develop
	@touch $@
