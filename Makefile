# Every target sets up what it needs in .venv, from the lock file; python3 (3.11 or newer, with venv) is all it asks for.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes; each would compile the whole package anew

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements/dev.txt
WORKERS ?= 4
ARGS ?=
CHECKED := src tests tools $(wildcard bench examples)

.PHONY: help run test check format bench soak chaos servers lock wheel clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(STAMP) ## shows the product at work until Ctrl-C: worker, schedules, sample tasks; ARGS="--once" ends by itself
	@$(BIN)/python examples/tour $(ARGS)

test: $(STAMP) servers ## all tests but soak and chaos; ARGS="-k name" narrows, WORKERS=4 widens
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not soak and not chaos" $(ARGS)

check: $(STAMP) ## lint, format, types, imports, lengths, tracked files
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/mypy $(CHECKED)
	@$(BIN)/lint-imports
	@$(BIN)/python tools/check_lengths.py $(CHECKED)
	@$(BIN)/python tools/check_tracked.py

format: $(STAMP) ## puts the code into the one format
	@$(BIN)/ruff check --fix $(CHECKED)
	@$(BIN)/ruff format $(CHECKED)

bench: $(STAMP) ## engine, executor, peers and idle costs, as ratios of one run; ARGS="--quick" a short form
	@$(BIN)/python bench/all.py $(ARGS)

soak: $(STAMP) servers ## the tests that run for minutes
	@$(BIN)/python -m pytest -m soak $(ARGS)

chaos: $(STAMP) servers ## the tests that kill, pause and fill things
	@$(BIN)/python -m pytest -m chaos $(ARGS)

servers: ## installs the servers that tests need, where that is possible: root on Debian
	@$(PYTHON) tools/servers.py

lock: $(STAMP) ## writes the lock file anew, with the newest releases
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header \
		pyproject.toml requirements/dev.in --output-file $(LOCK)

wheel: $(STAMP) ## builds dist/*.whl
	@$(BIN)/python -m hatchling build -t wheel

clean: ## removes what checks, tests and builds left behind
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find src tests tools $(wildcard bench examples) -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## the same, and .venv
	@rm -rf $(VENV)

$(STAMP): $(LOCK) pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is not installed; Taskmill needs Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old; name a newer one: make PYTHON=python3.11 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
