"""Steps of all processes: what stands in them, and how values come in and out. Here with one
process.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.lowering.plan import live_ops, plan
from jfluid.compile.runtime import collective_jit
from jfluid.compile.runtime.placement import Processes, of_device
from jfluid.compile.runtime.step import CompiledSegment
from jfluid.ops.collective import AXIS
from tests.parallel.fleet_processes import _optimizer


@pytest.fixture
def device():
    return jax.devices("cpu")[0]


def test_values_come_in_and_out(device):
    traces = []

    def function(donated, kept, key):
        traces.append(1)
        state, scale = donated
        total = jax.lax.psum(state.sum(), AXIS)
        noise = None if key is None else jax.random.uniform(jax.random.wrap_key_data(key, impl="threefry2x32"), (2,))
        return (state * scale + kept["shift"], scale + 1), {"total": total, "noise": noise}

    call = collective_jit.CollectiveJit(function, device, collective_jit.mesh_with(device))
    state, scale = jnp.ones((3, 2)), np.float32(2)
    for i in range(3):
        (new, scale), out = call((state, scale), {"shift": np.float32(i)}, None)
        np.testing.assert_array_equal(new, np.full((3, 2), [2, 7, 30][i]))
        assert out["total"].shape == scale.shape == () and scale == 3 + i and out["noise"] is None
        assert new.sharding == jax.sharding.SingleDeviceSharding(device)
        assert i == 0 or state.is_deleted()  # it was donated
        state = new
    # what the user sets counts
    (state, _), _ = call((jnp.zeros((3, 2)), scale), {"shift": np.float32(9)}, None)
    assert (np.asarray(state) == 9).all() and len(traces) == 1
    noise = [
        call((jnp.ones((3, 2)), scale), {"shift": np.float32(0)}, np.array([0, seed], np.uint32))[1]["noise"]
        for seed in (1, 1, 2)
    ]
    assert (noise[0] == noise[1]).all() and (noise[0] != noise[2]).all()


def test_sums_are_done_at_once_where_they_are_needed():
    x = fluid.data("x", [None, 4])
    loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(x, 8), 1))
    _optimizer("clipped").minimize(loss)
    config = fluid.DistributeTranspilerConfig()
    config.mode, config.collective_mode = "collective", "grad_allreduce"
    fluid.DistributeTranspiler(config).transpile(0, trainers="a:1,b:1", current_endpoint="a:1")
    before = live_ops(fluid.default_main_program().global_block())
    types = [op.type for _, op, _ in collective_jit.fused(before)]
    assert "c_allreduce_sum" not in types and types.count("fused_allreduce_sum") == 1
    # the clip reads gradients
    assert types.index("mul_grad") < types.index("fused_allreduce_sum") < types.index("square")
    many = next(op for _, op, _ in collective_jit.fused(before) if op.type == "fused_allreduce_sum")
    assert (
        sorted(many.input("X"))
        == sorted(many.output("Out"))
        == ["fc_0.b_0@GRAD", "fc_0.w_0@GRAD", "fc_1.b_0@GRAD", "fc_1.w_0@GRAD"]
    )
    assert len(types) == len(before) - 3


def test_values_that_are_read_between_are_not_put_off():
    block = fluid.default_main_program().global_block()
    for name in ("a", "b", "c"):
        fluid.data(name, [4])
    block.append_op("c_allreduce_sum", {"X": "a"}, {"Out": "a"})
    block.append_op("scale", {"X": "b"}, {"Out": "b"}, {"scale": 2.0})
    block.append_op("c_allreduce_sum", {"X": "b"}, {"Out": "b"})
    block.append_op("elementwise_add", {"X": "a", "Y": "c"}, {"Out": "c"})
    block.append_op("c_allreduce_sum", {"X": "c"}, {"Out": "c"})
    block.append_op("c_allreduce_max", {"X": "c"}, {"Out": "c"})
    types = [op.type for _, op, _ in collective_jit.fused(live_ops(block))]
    assert types == [
        "scale",
        "fused_allreduce_sum",
        "elementwise_add",
        "c_allreduce_sum",
        "c_allreduce_max",
    ]


def test_only_parts_that_need_the_others_span_processes(device):
    x = fluid.data("x", [4])
    block = fluid.default_main_program().global_block()
    y = fluid.layers.scale(x, 2.0)
    z = fluid.layers.py_func(lambda v: v + 1, y, block.create_var(name="z", shape=[4], dtype="float32"))
    flag = fluid.layers.less_than(fluid.layers.reduce_sum(z), fluid.layers.fill_constant([1], "float32", 100.0))

    def inside():
        block.program.current_block().append_op("c_allreduce_sum", {"X": z}, {"Out": z})

    fluid.layers.cond(flag, inside)
    planned = plan(fluid.default_main_program(), ["x"], ["z"])
    assert [(s.host, s.collective) for s in planned.segments] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    alone = CompiledSegment(2, planned, of_device(planned, device), False, "alone")
    assert not isinstance(alone.exact.plain, collective_jit.CollectiveJit)
    together = CompiledSegment(2, planned, Processes(planned, device), False, "together")
    assert isinstance(together.exact.plain, collective_jit.CollectiveJit)
