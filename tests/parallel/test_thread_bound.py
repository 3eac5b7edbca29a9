"""`ExecutionStrategy.num_threads` bounds the threads of XLA's pool where JAX has not started."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import warnings
from pathlib import Path
import jfluid as fluid

warnings.simplefilter("error")
loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [4]), 3))
fluid.optimizer.SGD(0.1).minimize(loss)
execution = fluid.ExecutionStrategy()
execution.num_threads = {wanted}
program = fluid.CompiledProgram(fluid.default_main_program())
executor = fluid.Executor(fluid.CPUPlace())
if {late}:
    executor.run(fluid.default_startup_program())
program.with_data_parallel(loss_name=loss.name, exec_strategy=execution, places=[fluid.CPUPlace()])
executor.run(fluid.default_startup_program())
import numpy as np
executor.run(program, feed={{"x": np.ones((4, 4), "float32")}}, fetch_list=[loss])
names = [comm.read_text().strip() for comm in Path("/proc/self/task").glob("*/comm")]
print(names.count("tf_XLAEigen"))
"""


def run(wanted: int, late: bool, nproc: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PJRT_NPROC": nproc}
    script = SCRIPT.format(wanted=wanted, late=late)
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="this system does not list threads")
@pytest.mark.parametrize(("wanted", "threads"), [(2, "2"), pytest.param(8, "4", marks=pytest.mark.nightly)])
def test_a_strategy_before_the_first_run_bounds_the_pool(wanted, threads):
    done = run(wanted, late=False, nproc="4")
    assert done.stdout.strip() == threads, done.stderr


@pytest.mark.process
def test_a_strategy_after_the_first_run_names_the_remedy():
    done = run(2, late=True, nproc="4")
    assert done.returncode
    assert "num_threads=2: XLA runs steps on 4 threads" in done.stderr
    assert "call with_data_parallel before the first run of an Executor" in done.stderr
