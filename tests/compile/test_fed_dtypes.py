"""Feeds of another dtype than `layers.data` declares: the results are those of Fluid, on each way that a step runs."""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime.fast_path import FastPath
from tests.parity import fed_dtypes

pytestmark = pytest.mark.usefixtures("interpreted_steps")

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "fed_dtypes.json").read_text())
L = fluid.layers


@pytest.mark.parametrize("case", sorted(fed_dtypes.CASES))
def test_dtypes_and_values_are_fluids(case):
    for dtype in fed_dtypes.DTYPES:
        wanted, found = GOLDEN[f"{case}, {dtype}"], fed_dtypes.run(fluid, case, dtype)
        if wanted is None:
            assert found[1]  # Fluid fails
            continue
        assert found[0] == wanted[0], dtype
        tolerance = 1e-6 if wanted[0] == "float32" else 1e-14
        # e to the power of 27 and more is beyond int32, and then any number in C++
        values = [(a, b) for a, b in zip(*(v[1] for v in (found, wanted)), strict=True) if b != -(2**31)]
        np.testing.assert_allclose(*zip(*values, strict=True), rtol=tolerance, atol=1e-18, err_msg=dtype)


@pytest.mark.parametrize(("case", "dtype"), [("fc", "float64"), ("fc", "int32"), ("concat with float32", "float64")])
def test_feeds_that_no_kernel_takes_are_converted_and_named(case, dtype, caplog):
    from jfluid.compile.runtime import feeds

    feeds._tell_of_dtype.cache_clear()
    assert fed_dtypes.run(fluid, case, dtype)[0] == "float32"
    assert f"feed x: {dtype} is converted to the declared float32 in every run; feed float32" in caplog.messages


def test_fractions_for_integers():
    """They are never cut off: an operator of the feed's dtype runs, any other is refused."""
    ids = L.data("ids", [1], dtype="int64")
    executor = fluid.Executor(fluid.CPUPlace())
    (found,) = executor.run(feed={"ids": np.array([[1.5]])}, fetch_list=[L.cast(ids, "float32")])
    assert found.dtype == np.float32 and found == [[1.5]]
    row = L.embedding(ids, [4, 2])
    executor.run(fluid.default_startup_program())
    with pytest.raises(errors.FeedError, match="feed ids: expected dtype int64, found float64"):
        executor.run(feed={"ids": np.array([[1.5]])}, fetch_list=[row])


def net():
    """Return the loss of a net that scales its data, casts these and trains."""
    x, y = L.data("x", [3]), L.data("y", [1])
    loss = L.mean(L.square_error_cost(L.fc(L.cast(L.scale(x, 2.0), "float32"), 1), y))
    fluid.optimizer.SGD(0.01).minimize(loss)
    return loss


def batch(rows, dtype):
    random = np.random.RandomState(rows)
    return {"x": random.rand(rows, 3).astype(dtype), "y": random.rand(rows, 1).astype("float32")}


SIZES = (4, 4, 5, 7, 4)


def losses(program, loss, dtype):
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        return [executor.run(program, feed=batch(rows, dtype), fetch_list=[loss])[0].mean() for rows in SIZES]


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_of_many_sizes_train_alike(replicas):
    fluid.default_startup_program().random_seed = 3
    loss, program = net(), fluid.default_main_program()
    if replicas > 1:
        places = [fluid.CPUPlace()] * replicas
        program = fluid.CompiledProgram(program).with_data_parallel(loss_name=loss.name, places=places)
    np.testing.assert_allclose(losses(program, loss, "float64"), losses(program, loss, "float32"), rtol=1e-5)


def test_a_repeated_step_takes_the_fast_path_until_the_dtype_changes(monkeypatch):
    loss, taken, run = net(), [], FastPath.run

    def noted(*args):
        taken.append(run(*args))
        return taken[-1]

    monkeypatch.setattr(FastPath, "run", noted)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    for dtype in ("float64", "float64", "float64", "float32", "float32"):
        executor.run(feed=batch(4, dtype), fetch_list=[loss])
    assert [values is not None for values in taken] == [True, True, False, True]


def test_data_that_a_host_operator_or_a_loop_reads_are_converted():
    x = L.data("x", [3])
    doubled = L.Print(L.scale(x, 2.0))
    (found,) = fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones((2, 3))}, fetch_list=[doubled])
    assert found.dtype == np.float32
