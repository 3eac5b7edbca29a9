"""Every test starts with empty default programs, an empty scope and names counted from 0.

What XLA compiles is kept for one run of the tests, for all its processes: CONTRIBUTING.md says why.
"""

import functools
import os
import shutil
import tempfile

import jax
import pytest
from jax._src import compiler

import jfluid as fluid
from tests import executed_operators

jax.config.update("jax_num_cpu_devices", 4)  # what CPU_NUM may ask for in a test


def pytest_configure(config):
    config.pluginmanager.register(executed_operators.Plugin(config))
    # workers have the environment of the process that starts them
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="jfluid-tests-xla-")
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        }
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


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
    """Tests of operators and layers have XLA leave out optimisations, which halves its time: they
    hold what operators mean.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in ("ops", "layers"):
            patch.setattr(
                compiler,
                "get_compile_options",
                functools.partial(_few_optimisations, compiler.get_compile_options),
            )
        yield


def _few_optimisations(options, *, env_options_overrides, **others):
    few = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": "False"}
    return options(env_options_overrides=env_options_overrides | few, **others)


@pytest.fixture(autouse=True)
def fresh_programs():
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield
