# `make demo` trains a click model with two parameter servers and two trainers, `make test` runs the tests, `make lint` reads the code,
# `make check-gpu` says what works on this machine's GPUs, `make bench` measures,
# `make chaos` does harm to jobs, `make soak` looks whether a process grows, `make site` makes the documentation's site in build/site. Each first makes a virtual environment in $(VENV) with the pinned versions of constraints.txt.
VENV ?= .venv
# twice as many as two cores: some of them run tests that start processes, which mostly wait (tests/file_order.py)
WORKERS ?= 4
PYTEST_ARGS ?=
CUDA ?= cuda13
CHECK_ARGS ?=
SEED ?= 1
MINUTES ?= 10
CASES ?= 10000
CHAOS_OUT ?= build/chaos
BENCH_OUT ?= build/bench.json
BENCH_ARGS ?=
BIN := $(VENV)/bin
PYTHONS := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

.PHONY: bench demo test times quick nightly check-gpu check-compiled coverage lint chaos fuzz soak site clean

demo: $(VENV)/.demo
	$(BIN)/jfluid-launch configs/ctr_dnn.yaml

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

# Renews tests/file_seconds.json and tests/slow_tests.txt; of some files only with PYTEST_ARGS="tests/ops".
times: $(VENV)/.test
	JFLUID_RENEW=1 $(MAKE) test

# While you write: without the tests that start processes and those that take more than 0.25 s of processor time.
quick: $(VENV)/.test
	$(MAKE) test PYTEST_ARGS='-m "not process and not slow" $(PYTEST_ARGS)'

# Tests that repeat at length what shorter ones prove; nightly.
nightly: $(VENV)/.test
	$(MAKE) test PYTEST_ARGS='-m nightly $(PYTEST_ARGS)'

# What works on this machine's GPUs, and how fast; on the CPU where there is none. CUDA=cuda12 is for older drivers.
check-gpu: $(VENV)/.$(CUDA)
	@mkdir -p build
	$(BIN)/python -m jfluid.check_device --json build/check_device.json $(CHECK_ARGS)

# What XLA makes for GPUs, on a machine without one. The compiler (257 MB) is installed beside the environment: in it, JAX would look for a
# driver each time. Where it cannot be installed, the tests are skipped and say so.
check-compiled: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/cuda-compiler -r tests/gpu/compiler.txt \
	    || echo "the CUDA compiler cannot be installed here: what needs it is skipped" >&2
	JAX_PLATFORMS=cpu PYTHONPATH=build/cuda-compiler $(BIN)/python -m pytest -m cuda_compiler -rs tests/gpu

# Twice the time of the tests.
coverage: $(VENV)/.test
	$(MAKE) test PYTEST_ARGS="--cov --cov-report=term $(PYTEST_ARGS)"

# Jobs of real processes that are killed, stopped, cut off and more, by plans drawn from SEED; see tests/chaos.
chaos: $(VENV)/.test
	$(BIN)/python -m tests.chaos --seed $(SEED) --minutes $(MINUTES) --out $(CHAOS_OUT)

# Machine code between guards, and operators of sequences with it and without it, over some CASES shapes and values that are drawn anew;
# nightly, an hour.
fuzz: $(VENV)/.test
	JFLUID_FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -p no:cacheprovider tests/machine_code tests/numpy_steps tests/fuzz/test_lod.py $(PYTEST_ARGS)

# One process that makes and drops everything in turn, and must not grow; see tests/chaos/growth.py.
soak: $(VENV)/.test
	$(BIN)/python -m tests.chaos.growth --minutes $(MINUTES)

# Figures of docs/performance.md into one file, and its ratios against those that were committed; hours on a quiet machine, half an hour
# with BENCH_ARGS=--short. Interpreters of other engines: BENCH_ARGS="--torch PYTHON --paddle PYTHON --fluid PYTHON"; some figures only:
# BENCH_ARGS="host replicas". `benchmarks/bench.py --keep FILE` then makes the page's tables of it.
bench: $(VENV)/.test
	$(BIN)/python benchmarks/bench.py --out $(BENCH_OUT) $(BENCH_ARGS)
	$(BIN)/python benchmarks/bench.py --check $(BENCH_OUT)

# mkdocs-material says of itself that it has a successor; the version is pinned.
site: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

# One rule for every set of extras: .venv/.demo holds jfluid[demo], .venv/.test holds jfluid[test].
$(VENV)/.demo $(VENV)/.test $(VENV)/.cuda12 $(VENV)/.cuda13: $(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
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
