"""Every test starts with empty default programs, an empty scope and names counted from 0.

XLA leaves out optimisations, and keeps what it compiles for one run of the tests, in all processes:
CONTRIBUTING.md says why. Two functions of private modules of JAX are replaced; `test_conftest.py` fails with a version
of JAX that does not call them.
"""

import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir

import jfluid as fluid
from jfluid import flags, processes
from tests import executed_operators, file_order, renewed_tables, slow_tests
from tests.dynamic_shapes.interpreted import interpreting

# XLA has not read its flags yet, and ends the process where it does not know one. Processes of tests, and workers,
# have them too.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    QUICK += " --xla_cpu_use_fusion_emitters=false"
FLAGS = os.environ.get("XLA_FLAGS", "").removeprefix(QUICK).strip()
os.environ["XLA_FLAGS"] = f"{QUICK} {FLAGS}"
# Tests hold what is compiled, and its numbers must not depend on the clock. tests/numpy_steps interprets the same
# steps.
os.environ.setdefault("FLAGS_interpret_first_steps", "0")
# Processes share the processors: XLA's threads may run on any of them.
os.environ.setdefault("JFLUID_BIND_THREADS", "0")
# Without kept bytecode each process compiles all modules of jfluid: a second of processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Options of XLA, for tests marked `optimised`.
OPTIMISED = {"xla_backend_optimization_level": "3", "xla_cpu_parallel_codegen_split_count": "32"}
if jax.__version_info__ < (0, 11):
    OPTIMISED["xla_cpu_use_fusion_emitters"] = "True"
jax.config.update("jax_num_cpu_devices", 4)  # what CPU_NUM may ask for in a test
# Processes are killed in tests, and machines are not. A disk takes up to 15 ms for each file.
os.fsync = lambda handle: None
# Shells have what they start in the background ignore it, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Contexts(threading.local):
    """Contexts of MLIR, of which JAX makes one for each program that it passes to XLA: a sixth of
    the time that a small program takes. Here several programs of a thread share one; not all of
    them, since it keeps their constants.
    """

    left, context = 0, None

    def __call__(self, make):
        if not self.left:
            self.left, self.context = 50, make()
        self.left -= 1
        return self.context


mlir.make_ir_context = functools.partial(Contexts(), mlir.make_ir_context)


def pytest_configure(config):
    config.pluginmanager.register(executed_operators.Plugin(config))
    config.pluginmanager.register(file_order)
    config.pluginmanager.register(slow_tests)
    # workers have the environment of the process that starts them
    if "PYTEST_XDIST_WORKER" not in os.environ:
        if os.environ.get("JFLUID_RENEW"):
            config.pluginmanager.register(renewed_tables.Plugin(config))
        folder = tempfile.mkdtemp(prefix="jfluid-tests-xla-")
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
        }
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def pytest_sessionstart():
    gc.disable()  # what is collected lives until the end


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    # JAX makes very many objects, of which few are in circles: to look at them more often takes an
    # eighth of the processor time of a test.
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True)
def optimisations(request):
    """A test marked `optimised` has its programs, and those of its processes, compiled as users'
    are; one marked `partly_optimised` has those of its processes compiled with a little more care.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("optimised"):
            patch.setenv("XLA_FLAGS", FLAGS)
            patch.setattr(
                compiler,
                "get_compile_options",
                functools.partial(_all_optimisations, compiler.get_compile_options),
            )
        elif request.node.get_closest_marker("partly_optimised"):
            patch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("level=0", "level=1", 1))
        yield


def _all_optimisations(options, *, env_options_overrides, **others):
    return options(env_options_overrides=OPTIMISED | env_options_overrides, **others)


@pytest.fixture(autouse=True)
def fresh_programs():
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield


@pytest.fixture(autouse=True, scope="module")
def process_as_before():
    """Flags that a module sets, and a job that it joins, are not those of later modules in the same process."""
    before, joined = dict(flags._values), processes._joined
    yield
    processes._joined = joined
    flags._values.clear()
    flags._values.update(before)
    flags.change_count += 1


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect():
    """In an old process a collection of all objects takes seconds: each leaves out those of earlier modules."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def no_heartbeats_left():
    """A client that a module leaves open warns for hours of servers that have ended."""

    def beating():
        return {thread for thread in threading.enumerate() if thread.name == "jfluid-ps-heartbeat"}

    before, end = beating(), None
    yield
    while left := beating() - before:
        end = end or time.monotonic() + 5
        assert time.monotonic() < end, f"{len(left)} heartbeats run: close or leave the clients of parameter servers"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def interpreted_module():
    """As `interpreted_steps`, for a module and its fixtures."""
    with interpreting():
        yield


@pytest.fixture
def interpreted_steps():
    """NumPy runs the steps of the test, which are traced and not compiled: for what an operator or a program computes.
    `tests/compile/test_recorded_cases.py` holds what NumPy gives against what XLA's code gives.
    """
    with interpreting():
        yield


@pytest.fixture
def nothing_kept():
    """Steps are traced, whatever is on disk."""
    before = fluid.get_flags("FLAGS_compilation_cache_dir")
    fluid.set_flags({"FLAGS_compilation_cache_dir": ""})
    yield
    fluid.set_flags(before)
