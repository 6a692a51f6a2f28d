# The only entry for work on MindRoom; `make` alone prints this list. Whatever needs .venv makes it first.

.DEFAULT_GOAL := help
.PHONY: help demo test check faults faults-long bench docs clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
# `pytest -n`: tests wait for servers more than they compute.
WORKERS ?= 2
# Further arguments for pytest, for the fault driver and for the benches.
ARGS ?=

quoted = '$(subst ','\'',$(value $(1)))'

help: ## print this list
	@echo 'MindRoom: make TARGET [VARIABLE=value]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: $(READY) ## a team to talk to, nothing needed; SAY=hello does one exchange and prints the answer
	@$(BIN)/mindroom demo $(if $(value SAY),--say $(call quoted,SAY))

test: check ## the whole test suite; PG=FOLDER takes the PostgreSQL binaries there, ARGS='-k words' selects
	@$(PYTEST) -n $(WORKERS) -m 'not fault and not long' $(ARGS)

check: $(READY) ## style, types and layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

faults: $(READY) ## kill and cut the running program at every fault point; ARGS=--help tells how to select
	@$(BIN)/python -m tests.faults $(ARGS)

faults-long: $(READY) ## every repeated hit everywhere, long random histories, and twenty minutes of chaos
	@$(BIN)/python -m tests.faults --long $(ARGS)
	@$(PYTEST) -m long
	@$(BIN)/python -m tests.faults.chaos

bench: $(READY) ## measure, into build/bench.json
	@mkdir -p build
	@$(BIN)/python -m tests.bench $(ARGS)

docs: $(READY) ## check that the documentation says what the code does
	@$(PYTEST) tests/docs $(ARGS)

clean: ## remove .venv, caches and build products; never a data folder
	@rm -rf $(VENV) .venv.lock build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +

# An existing interpreter must be new enough and able to make environments; the first one that is wins.
$(READY): pyproject.toml requirements.lock
	@for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    exec "$$candidate" .ci/environment.py; \
	  fi; \
	done; \
	echo 'MindRoom needs Python 3.11 or newer with pip and venv; none of $(or $(PYTHON),python3.11 python3.12 python3.13 python3) is. Install one, or name it: make PYTHON=/path/to/python3' >&2; \
	exit 1
