"""Reduce on the CPU devices of one process: what exists once, and what replicas do with it."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.parallel.replicas import Replicas
from jfluid.parallel.shared_replicas import SharedReplicas

REPLICAS = 4
# The first parameter's rows divide by 4, and it is larger than the batch: a product in shares. The
# size of the second divides by nothing that there is, and the others are too small to be divided.
WIDTHS = 1101, 1021, 4


@pytest.fixture(autouse=True)
def on_devices_of_their_own():
    fluid.set_flags({"FLAGS_cpu_replicas_joined": False})
    yield
    fluid.set_flags({"FLAGS_cpu_replicas_joined": True})


def trained(reduce, steps=3):
    """(the tensors of what the program keeps, by name; the last loss)."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        hidden = fluid.data("x", [None, 64])
        for number, width in enumerate(WIDTHS):
            attribute = fluid.ParamAttr(initializer=fluid.initializer.NormalInitializer(seed=5 + number))
            hidden = layers.fc(hidden, width, act="tanh", param_attr=attribute)
        loss = layers.mean(layers.square(hidden - 1.0))
        clip = fluid.clip.GradientClipByGlobalNorm(0.05)
        fluid.optimizer.Momentum(0.1, 0.9, grad_clip=clip).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program = main
        if reduce:
            build = fluid.BuildStrategy()
            build.reduce_strategy = build.ReduceStrategy.Reduce
            program = fluid.CompiledProgram(main).with_data_parallel(
                loss.name, build, places=fluid.cpu_places(REPLICAS)
            )
        random = np.random.RandomState(0)
        for _ in range(steps):
            feed = {"x": random.randn(12, 64).astype("float32")}
            (value,) = exe.run(program, feed=feed, fetch_list=[loss])
        names = [v.name for v in main.list_vars() if v.persistable and scope.find_var(v.name)]
        tensors = {n: scope.find_var(n).get_tensor() for n in names}
    return tensors, float(np.mean(value))


def test_everything_is_there_once_and_equals_one_device(monkeypatch):
    called, call = [], Replicas.call

    def recorded(self, segment, donated, kept, key):
        shapes = jax.tree.map(
            lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=getattr(v, "sharding", None)),
            (donated, kept, key),
        )
        called.append((self, segment, shapes))
        return call(self, segment, donated, kept, key)

    monkeypatch.setattr(Replicas, "call", recorded)
    found, loss = trained(True)
    assert called and all(isinstance(placement, SharedReplicas) for placement, _, _ in called)
    assert len(found) == 2 * 6 + 1  # parameters, their velocities, the learning rate
    for name, tensor in found.items():
        assert len(tensor.value.sharding.device_set) == 1, name
    addresses = {name: t.value.unsafe_buffer_pointer() for name, t in found.items()}
    assert len(set(addresses.values())) == len(found)
    parameters = sum(t.value.nbytes for n, t in found.items() if "velocity" not in n)
    # What the replicas' program takes beside them: their shares of the gradients, and little else.
    placement, segment, shapes = called[0]
    assert sorted(placement._divided) == ["fc_0.w_0@GRAD", "fc_1.w_0@GRAD"]
    assert list(placement._products) == ["fc_0.w_0@GRAD"]
    with jax.enable_x64(True):
        memory = segment.exact.lower(*shapes).compile().memory_analysis()
    assert memory.output_size_in_bytes * REPLICAS < 1.1 * parameters
    assert memory.temp_size_in_bytes < 3 * max(t.value.nbytes for t in found.values())
    lent = {n: shared for n, (_, shared) in placement._lent.items()}
    assert len(lent) == 6, "replicas read parameters"
    for name, shared in lent.items():
        parts = [shard.data.unsafe_buffer_pointer() for shard in shared.addressable_shards]
        assert parts == [addresses[name]] * REPLICAS, "each where the first device holds it"
    # The same numbers as on one device.
    alone, alone_loss = trained(False)
    assert loss == pytest.approx(alone_loss, rel=1e-5)
    for name, tensor in alone.items():
        np.testing.assert_allclose(np.array(found[name]), np.array(tensor), rtol=1e-4, atol=1e-6)


def test_values_that_users_hold_stay_and_steps_go_on():
    """A view keeps its numbers, from one scope to the other, and where the check for finite values
    has replicas hold parameters of their own.
    """
    loss = layers.mean(layers.fc(fluid.data("x", [None, 4]), 3, bias_attr=False))
    fluid.optimizer.SGD(0.3).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    build = fluid.BuildStrategy()
    build.reduce_strategy = build.ReduceStrategy.Reduce
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss.name, build, places=fluid.cpu_places(2)
    )
    feed = {"x": np.ones((4, 4), "float32")}
    scopes, expected, held = [fluid.Scope(), fluid.Scope()], [], []
    for scope in scopes:
        exe.run(fluid.default_startup_program(), scope=scope)
        expected.append(np.array(scope.find_var("fc_0.w_0").get_tensor()))
    for step in range(6):
        fluid.set_flags({"FLAGS_check_nan_inf": step == 3})
        for number, scope in enumerate(scopes):
            tensor = scope.find_var("fc_0.w_0").get_tensor()
            held.append((np.asarray(tensor.value), expected[number]))
            (found,) = exe.run(program, feed=feed, fetch_list=[loss], scope=scope)
            np.testing.assert_allclose(found, [expected[number].sum() / 3] * 2, rtol=1e-4)
            expected[number] = expected[number] - np.float32(0.1)
            np.testing.assert_allclose(np.array(tensor), expected[number], rtol=1e-4, atol=1e-6)
    for view, was in held:
        np.testing.assert_allclose(view, was, rtol=1e-4, atol=1e-6)
