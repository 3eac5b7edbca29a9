"""Importing jfluid: how long it takes, and that it leaves JAX and the process as they were."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import json, logging, signal, sys, threading, warnings
import jax
from jax._src import xla_bridge
before = dict(jax.config.values)
filters = list(warnings.filters)
import jfluid
print(json.dumps({
    "changed": [name for name, value in jax.config.values.items() if before.get(name) != value],
    "backends": list(xla_bridge._backends),
    "x64": bool(jax.config.jax_enable_x64),
    "filters": warnings.filters != filters,
    "threads": threading.active_count(),
    "handlers": len(logging.getLogger().handlers),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "heavy": [name for name in ("flax", "numba", "grpc", "matplotlib", "pydantic", "sklearn", "torch") if name in sys.modules],
}))
"""


def run(code, **variables):
    # Without what makes coverage measure processes that tests start.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COV")
    } | variables
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_import_leaves_everything_as_it_was():
    assert json.loads(run(SCRIPT)) == {
        "changed": [],
        "backends": [],
        "x64": False,
        "filters": False,
        "threads": 1,
        "handlers": 0,
        "interrupt": True,
        "heavy": [],
    }


def test_import_takes_at_most_twice_what_jax_takes():
    # Processor time, since other tests run at the same time, and against JAX at the same moment,
    # since a busy or slow machine takes longer for both; with bytecode kept (tests/conftest.py), as
    # an installed package has it.
    code = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
    pairs = [[float(run(code.format(name))) for name in ("jfluid", "jax")] for _ in range(4)]
    ours, jax = (min(column) for column in zip(*pairs, strict=True))
    assert ours <= 2 * jax, f"import jfluid took {ours:.2f} s, import jax {jax:.2f} s"
