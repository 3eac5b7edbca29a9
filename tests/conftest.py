"""Every test starts with empty default programs, an empty scope and names counted from 0.

What XLA compiles is kept for one run of the tests, for all its processes: CONTRIBUTING.md says why.
"""
import functools
import os
import shutil
import tempfile

import jax
import pytest

import jfluid as fluid

jax.config.update("jax_num_cpu_devices", 4)  # what CPU_NUM may ask for in a test


def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have the environment of the process that starts them
        folder = tempfile.mkdtemp(prefix="jfluid-tests-xla-")
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_collection_modifyitems(items):
    """Files with tests that start processes come first: they take longest, and the others fill the gap at the end."""
    started = {item.path for item in items if item.get_closest_marker("process")}
    items.sort(key=lambda item: item.path not in started)


@pytest.fixture(autouse=True)
def fresh_programs():
    with (fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()),
          fluid.unique_name.guard()):
        yield
