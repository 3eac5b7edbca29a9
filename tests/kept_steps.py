"""Steps whose executables are kept in a folder of the test, and notes of what is done for steps."""

import threading

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jfluid as fluid
from jfluid.compile.numpy_steps import beside
from jfluid.compile.runtime import executable_cache


def finish():
    """Wait for compilations and for files."""
    for name in (beside.THREAD, executable_cache.THREAD):
        for thread in threading.enumerate():
            if thread.name == name:
                thread.join()


@pytest.fixture
def folder(tmp_path):
    """The folder of kept executables, empty at first; JAX keeps nothing itself."""
    before, old = jax.config.jax_compilation_cache_dir, fluid.get_flags("FLAGS_compilation_cache_dir")
    jax.config.update("jax_compilation_cache_dir", None)
    fluid.set_flags({"FLAGS_compilation_cache_dir": str(tmp_path)})
    yield tmp_path
    finish()
    fluid.set_flags(old)
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def calls_of(monkeypatch, functions):
    """The names of functions, (owner, name) each, in the order in which they are called from now on."""
    done = []

    def noting(owner, name):
        old = getattr(owner, name)

        def noted(*args, **more):
            done.append(name)
            return old(*args, **more)

        monkeypatch.setattr(owner, name, noted)

    for owner, name in functions:
        noting(owner, name)
    return done
