"""Every test starts with empty default programs, an empty scope and names counted from 0.

XLA leaves out optimisations, and keeps what it compiles for one run of the tests, in all processes:
CONTRIBUTING.md says why.
"""

import functools
import os
import shutil
import sys
import tempfile

import jax
import pytest
from jax._src import compiler

import jfluid as fluid
from tests import executed_operators

# XLA has not read its flags yet. Processes of tests, and workers, have them too.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
FLAGS = os.environ.get("XLA_FLAGS", "").removeprefix(QUICK).strip()
os.environ["XLA_FLAGS"] = f"{QUICK} {FLAGS}"
# Without kept bytecode each process compiles all modules of jfluid: a second of processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
jax.config.update("jax_num_cpu_devices", 4)  # what CPU_NUM may ask for in a test


def pytest_configure(config):
    config.pluginmanager.register(executed_operators.Plugin(config))
    # workers have the environment of the process that starts them
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="jfluid-tests-xla-")
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
        }
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, then those with tests that start processes: short ones fill
    the gap at the end.
    """
    marked = {
        mark: {item.path for item in items if item.get_closest_marker(mark)}
        for mark in ("slow", "process")
    }
    items.sort(key=lambda item: [item.path not in paths for paths in marked.values()])


@pytest.fixture(autouse=True)
def optimisations(request):
    """A test marked `optimised` has its programs, and those of its processes, compiled as users'
    are.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("optimised"):
            patch.setenv("XLA_FLAGS", FLAGS)
            patch.setattr(
                compiler,
                "get_compile_options",
                functools.partial(_all_optimisations, compiler.get_compile_options),
            )
        yield


def _all_optimisations(options, *, env_options_overrides, **others):
    every = {"xla_backend_optimization_level": "3", "xla_cpu_use_fusion_emitters": "True"}
    return options(env_options_overrides=every | env_options_overrides, **others)


@pytest.fixture(autouse=True)
def fresh_programs():
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield
