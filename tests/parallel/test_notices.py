"""What is said once of settings of replicas that have another effect here."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.parallel import notices


@pytest.fixture
def run():
    """Return a function that runs a program in replicas, with fields of its ExecutionStrategy."""
    loss = layers.mean(fluid.data("x", [None, 2]))
    exe = fluid.Executor(fluid.CPUPlace())

    def run(**fields):
        execution = fluid.ExecutionStrategy()
        for name, value in fields.items():
            setattr(execution, name, value)
        compiled = fluid.CompiledProgram(fluid.default_main_program())
        program = compiled.with_data_parallel(loss.name, exec_strategy=execution)
        (found,) = exe.run(program, feed={"x": np.ones((4, 2), "float32")}, fetch_list=[loss])
        return found.shape

    return run


def test_one_replica_without_a_number_is_said_once(run, monkeypatch, caplog):
    monkeypatch.delenv("CPU_NUM", raising=False)
    monkeypatch.setenv("PJRT_NPROC", "6")
    notices.of_one_replica.cache_clear()
    assert [run(), run()] == [(1,), (1,)]
    assert [record.getMessage() for record in caplog.records] == [
        "CPU_NUM is not set: the program runs in one replica. XLA spreads its steps over all 6 "
        "processors that the process may use, with the results of one device, as Fluid 1.8 does. "
        "CPU_NUM=6 divides each batch among 6 replicas"
    ]
    monkeypatch.setenv("PJRT_NPROC", "1")
    notices.of_one_replica.cache_clear()
    run()
    assert len(caplog.records) == 1, "one processor is all that there is"


def test_settings_that_xla_does_not_know_are_named_once(run, monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    monkeypatch.setenv("PJRT_NPROC", "4")
    notices._warn.cache_clear()
    with pytest.warns(RuntimeWarning, match="num_threads=2: XLA runs steps on 4 .* PJRT_NPROC=2"):
        run(num_threads=2)
    with pytest.warns(RuntimeWarning, match="num_iteration_per_drop_scope=1: .* use BuildStrategy"):
        run(num_iteration_per_drop_scope=1)
    run(num_threads=2, num_iteration_per_drop_scope=1)  # a second time nothing: warnings are errors
    run(num_threads=8)
    assert run() == (2,)
    with pytest.raises(errors.PlaceError, match="PJRT_NPROC: expected an integer from 1 on"):
        monkeypatch.setenv("PJRT_NPROC", "many")
        run(num_threads=3)
