"""`fluid.layers.collective`, which scripts use that divide a layer among trainers."""

import importlib

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors

collective = importlib.import_module("jfluid.layers.collective")


def test_names_shapes_and_attributes_are_those_of_fluid():
    x = fluid.data("x", [8, 4])
    made = [
        collective._c_allgather(x, 2),
        collective._c_reducescatter(x, 2, use_calc_stream=True),
        collective._c_allreduce(x, reduce_type="max"),
        collective._allreduce(x, reduce_type="min"),
        collective._c_broadcast(x),
        collective._broadcast(x, 0),
        collective._c_sync_comm_stream(collective._c_sync_calc_stream(x), 0),
    ]
    assert [(v.name, v.shape) for v in made] == [
        ("x.c_allgather_0", (16, 4)),
        ("x.c_reducescatter_0", (4, 4)),
        ("x.c_allreduce_max_0", (8, 4)),
        ("x.tmp_0", (8, 4)),
        *[("x", (8, 4))] * 3,
    ]
    ops = fluid.default_main_program().global_block().ops
    assert ops[1].attr("nranks") == 2 and ops[1].attr("use_calc_stream")
    assert ops[3].attr("reduce_type") == 3
    with pytest.raises(errors.ProgramError, match="reduce_type: expected sum, .* found 'mean'"):
        collective._c_allreduce(x, reduce_type="mean")
    with pytest.raises(ValueError, match="8 rows do not divide among 3 trainers"):
        collective._c_reducescatter(x, 3)


def test_two_replicas_compute_a_softmax_whose_classes_are_divided():
    x = fluid.data("x", [None, 4])
    x.stop_gradient = False
    rows = collective._c_allgather(x, 2)
    most = collective._c_allreduce(fluid.layers.reduce_max(rows, 1, True), reduce_type="max")
    sums = collective._c_allreduce(fluid.layers.reduce_sum(fluid.layers.exp(rows - most), 1, True))
    share = collective._c_reducescatter(sums, 2)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=fluid.cpu_places(2))
    values = np.random.RandomState(0).rand(6, 4).astype("float32")
    exe = fluid.Executor(fluid.CPUPlace())
    (found,) = exe.run(program, feed={"x": values}, fetch_list=[share])
    # both replicas have all rows, each counts once, and the shares are summed over both
    exponents = np.exp(values - values.max(1, keepdims=True))
    np.testing.assert_allclose(found, 4 * exponents.sum(1, keepdims=True), rtol=1e-5)


def test_notes_of_a_script_on_a_variable():
    x = fluid.data("x", [8, 4])
    assert x._get_info("shard_dim") is None
    x._set_info("shard_dim", 3)
    assert x._get_info("shard_dim") == 3
