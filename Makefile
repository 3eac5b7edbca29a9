# `make demo` trains a click model with two parameter servers and two trainers, `make test` runs the tests, `make lint` reads the code,
# `make chaos` does harm to jobs, `make site` makes the documentation's site in build/site. Each first makes a virtual environment in $(VENV) with the pinned versions of constraints.txt.
VENV ?= .venv
WORKERS ?= 2
PYTEST_ARGS ?=
SEED ?= 1
MINUTES ?= 10
CHAOS_OUT ?= build/chaos
BIN := $(VENV)/bin
PYTHONS := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

.PHONY: demo test coverage lint chaos site clean

demo: $(VENV)/.demo
	$(BIN)/jfluid-launch configs/ctr_dnn.yaml

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Twice the time of the tests.
coverage: $(VENV)/.test
	$(MAKE) test PYTEST_ARGS="--cov --cov-report=term $(PYTEST_ARGS)"

# Jobs of real processes that are killed, stopped, cut off and more, by plans drawn from SEED; see tests/chaos.
chaos: $(VENV)/.test
	$(BIN)/python -m tests.chaos --seed $(SEED) --minutes $(MINUTES) --out $(CHAOS_OUT)

# mkdocs-material says of itself that it has a successor; the version is pinned.
site: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

# One rule for every set of extras: .venv/.demo holds jfluid[demo], .venv/.test holds jfluid[test].
$(VENV)/.demo $(VENV)/.test: $(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]' --constraint constraints.txt
	@touch $@

$(BIN)/python:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "making $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); \
	    fi; \
	done; \
	echo "jfluid needs Python 3.11 or newer with its venv module (on Debian: apt-get install python3-venv)." \
	     "Looked at: $(PYTHONS). Name yours with: make PYTHON=/path/to/python" >&2; exit 1

clean:
	rm -rf $(VENV) build *.egg-info
