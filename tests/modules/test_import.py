"""Importing jfluid: what it imports when, and that it leaves JAX and the process as they were."""

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
for name in jfluid.__all__:
    getattr(jfluid, name)
print(json.dumps({
    "changed": [name for name, value in jax.config.values.items() if before.get(name) != value],
    "backends": list(xla_bridge._backends),
    "x64": bool(jax.config.jax_enable_x64),
    "filters": warnings.filters != filters,
    "threads": threading.active_count(),
    "handlers": len(logging.getLogger().handlers),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "heavy": [m for m in ("flax", "numba", "grpc", "matplotlib", "pydantic", "sklearn", "torch") if m in sys.modules],
}))
"""


def run(code, **variables):
    # Without what makes coverage measure processes that tests start.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")} | variables
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "FLAGS_interpret_first_steps": "1"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
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


SEEDED = """
import numpy as np
import jfluid as fluid
np.random.seed(1)
x = fluid.data("x", [None, 2])
loss = fluid.layers.mean(fluid.layers.fc(x, 2))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
exe.run(feed={"x": np.ones((2, 2), "float32")}, fetch_list=[loss])
print(np.random.rand())
"""


def test_the_first_use_draws_no_random_numbers_of_the_script():
    assert float(run(SEEDED)) == 0.417022004702574  # what Fluid's script gets


LIGHT = """
import sys
import {}
print(*(name for name in ("jax", "numpy", "jfluid.layers", "jfluid.ops") if name in sys.modules))
"""


@pytest.mark.parametrize("module", ["jfluid", "jfluid.launch"])
def test_import_leaves_out_what_runs_programs(module):
    # The launcher has no use for it, and scripts import it when they first ask for a name.
    assert run(LIGHT.format(module)).split() == []


FIRST_USES = """
from jfluid.ir.program import Program, program_guard
program = Program()
block = program.global_block()
two = block.create_var(name="two", shape=[2], dtype="float32")
block.append_op("scale", {"X": two}, {"Out": block.create_var(name="twice")}, {"scale": 2.0})
with program_guard(program):
    print(block.var("twice").shape, (two + two).shape)
import jfluid
import jfluid.layers.rnn, jfluid.data
print(callable(jfluid.data), callable(jfluid.layers.rnn), jfluid.Program is Program)
print(jfluid.unique_name.__name__, jfluid.errors.__name__, jfluid.io.DataLoader.__name__)
"""


def test_what_is_used_first_is_imported_then():
    assert run(FIRST_USES).splitlines() == [
        "(2,) (2,)",
        "True True True",
        "jfluid.ir.unique_name jfluid.errors DataLoader",
    ]


@pytest.mark.parametrize("name", [pytest.param("io", marks=pytest.mark.nightly), "executor"])
def test_whatever_is_used_first_comes_after_the_layers(name):
    """So threads that are the first to use names at one time import in one order: from two ends each
    would find a module that the other has half imported.
    """
    code = f"import sys, jfluid; jfluid.{name}; print(*sys.modules)"
    modules = run(code).split()
    assert modules.index("jfluid.layers") < modules.index(f"jfluid.{name}")
