"""Replicas on the CPU: losses against the real Fluid's (tests/golden/parallel.json) and against one
device.
"""

import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.parity import parallel as cases
from tests.parity.parallel import CASES

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "parallel.json").read_text())
# Fluid cannot sort the operators of a global clip in Reduce mode; one device is the measure there.
# Each case in one mode, the modes in turn, then each case in the other mode.
_FOUR = [
    (case, mode)
    for at, case in enumerate(CASES)
    for mode in (("allreduce", "reduce") if at % 2 else ("reduce", "allreduce"))
]


# Before each change each case once, but for one of three with sparse rows, on two replicas of one program. On four
# devices three cases: statistics of a batch, sparse rows, and a clip by all gradients.
_TWO = {
    *("attention_adam_allreduce", "conv_momentum_reduce", "ctr_adagrad_reduce", "ctr_lazy_adam_allreduce"),
    *("mlp_adam_reduce", "mlp_clip_allreduce", "mlp_lamb_allreduce", "mlp_lars_reduce"),
    *("mlp_momentum_allreduce", "mlp_sgd_reduce"),
}
_ON_DEVICES = ("conv_momentum", "ctr_lazy_adam", "mlp_clip")


def nightly(chosen):
    return [pytest.mark.nightly] if chosen else []


# A case is built once, and its startup program compiled once.
train = functools.partial(cases.train, fluid, build=functools.cache(cases.built))


@pytest.fixture(autouse=True)
def cpu_num(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    yield
    fluid.set_flags({"FLAGS_cpu_replicas_joined": True})


@pytest.mark.parametrize("name", [pytest.param(n, marks=nightly(n not in _TWO)) for n in GOLDEN])
def test_losses_of_two_replicas_are_fluids(name):
    case, _, mode = name.rpartition("_")
    losses, _ = train(case, 2, mode == "reduce")
    np.testing.assert_allclose(losses, GOLDEN[name], rtol=1e-4)


class Alone(dict):
    """The losses and the state of each case on one device."""

    def __missing__(self, case):
        self[case] = train(case, 0)
        return self[case]


@pytest.fixture(scope="module")
def alone():
    return Alone()


@pytest.mark.parametrize(
    "mode, joined",
    [
        ("allreduce", True),
        ("reduce", False),
        pytest.param("allreduce", False, marks=pytest.mark.nightly),
        pytest.param("reduce", True, marks=pytest.mark.nightly),
    ],
)
def test_more_replicas_than_jax_has_devices_equal_one_device(mode, joined, alone):
    fluid.set_flags({"FLAGS_cpu_replicas_joined": joined})
    assert len(jax.local_devices(backend="cpu")) == 4
    losses, state = train("mlp_adam", 8, mode == "reduce")
    expected, other = alone["mlp_adam"]
    assert len(losses[0]) == 8
    np.testing.assert_allclose(np.mean(losses, 1), np.mean(expected, 1), rtol=1e-4)
    for name, value in other.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "case, mode, replicas",
    [
        ("mlp_adam", "allreduce", 1),
        ("mlp_adam", "reduce", 1),
        ("conv_momentum", "allreduce", 2),
        *(pytest.param(*own, 4, marks=nightly(at % 2 or own[0] not in _ON_DEVICES)) for at, own in enumerate(_FOUR)),
    ],
)
def test_replicas_equal_one_device(case, mode, replicas, alone):
    """Four replicas are on separate devices, fewer are one program; losses of two are held against Fluid's."""
    fluid.set_flags({"FLAGS_cpu_replicas_joined": replicas < 4})
    losses, state = train(case, replicas, mode == "reduce", sync=True)
    assert len(losses[0]) == replicas
    np.testing.assert_allclose(np.mean(losses, 1), np.mean(alone[case][0], 1), rtol=1e-4)
    assert list(state) == list(alone[case][1])
    for name, value in alone[case][1].items():
        np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=2e-3, err_msg=name)


def trained(reduce, replicas=4):
    """The scope after a step of Adam with Reduce or AllReduce, and what it fetched."""
    x = fluid.data("x", [None, 64], "float32")
    hidden = layers.fc(x, 32, act="relu")
    loss = layers.mean(layers.fc(hidden, 8))
    fluid.optimizer.Adam(0.01).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    strategy = fluid.BuildStrategy()
    if reduce:
        strategy.reduce_strategy = strategy.ReduceStrategy.Reduce
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss.name, strategy, places=fluid.cpu_places(replicas)
    )
    exe.run(program, feed={"x": np.ones((8, 64), "float32")}, fetch_list=[loss])
    return exe, program, loss


@pytest.mark.parametrize("reduce", [False, True])
def test_reduce_divides_the_optimizers_state(reduce):
    fluid.set_flags({"FLAGS_cpu_replicas_joined": False})
    trained(reduce)
    scope, held, whole = fluid.global_scope(), 0, 0
    for var in fluid.default_main_program().list_vars():
        if "moment" in var.name and var.persistable:
            value = scope.find_var(var.name).get_tensor().value
            held += sum(shard.data.nbytes for shard in value.addressable_shards)
            whole += value.nbytes
    assert held == (whole if reduce else 4 * whole)


def test_programs_share_the_scope_and_go_from_mode_to_mode(tmp_path):
    exe, program, loss = trained(True)
    test = fluid.default_main_program().clone(for_test=True)
    feed = {"x": np.ones((8, 64), "float32")}
    (plain,) = exe.run(test, feed=feed, fetch_list=[loss.name])
    shared = fluid.CompiledProgram(test).with_data_parallel(share_vars_from=program, places=fluid.cpu_places(2))
    np.testing.assert_allclose(exe.run(shared, feed=feed, fetch_list=[loss.name])[0], [plain[0]] * 2, rtol=1e-4)
    fluid.io.save_persistables(exe, str(tmp_path), fluid.default_main_program())
    losses = [exe.run(program, feed=feed, fetch_list=[loss])[0].mean() for _ in range(3)]
    fluid.io.load_persistables(exe, str(tmp_path), fluid.default_main_program())
    other = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss.name, places=fluid.cpu_places(2)
    )
    again = [exe.run(p, feed=feed, fetch_list=[loss])[0].mean() for p in (other, fluid.default_main_program(), program)]
    np.testing.assert_allclose(again, losses, rtol=1e-4)


def net(optimize=True):
    x = fluid.data("x", [None, 2], "float32")
    init = fluid.initializer.NumpyArrayInitializer(np.arange(6).reshape(2, 3).astype("float32") / 10)
    hidden = layers.fc(x, 3, param_attr=fluid.ParamAttr(name="w", initializer=init), bias_attr=False)
    loss = layers.mean(hidden)
    if optimize:
        fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe, hidden, loss


def parallel(loss, **options):
    return fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name, **options)


def rows(n):
    return np.arange(2 * n).reshape(n, 2).astype("float32")


def weights():
    return np.array(fluid.global_scope().find_var("w").get_tensor())


# What Fluid 1.8.5 gives for the same program and feeds.
AFTER_5 = [[-0.15, -0.05, 0.05], [0.1166667, 0.2166667, 0.3166667]]


def test_the_first_replicas_get_what_is_over():
    exe, hidden, loss = net()
    found = exe.run(parallel(loss), feed={"x": rows(5)}, fetch_list=[loss, hidden, "w", "w@GRAD"])
    np.testing.assert_allclose(found[0], [1.4, 3.9], rtol=1e-6)
    np.testing.assert_allclose(found[1][3:], [[2.1, 3.4, 4.7], [2.7, 4.4, 6.1]], rtol=1e-6)
    np.testing.assert_allclose(found[2], AFTER_5 * 2, rtol=1e-5)
    np.testing.assert_allclose(weights(), AFTER_5, rtol=1e-5)
    assert found[3].shape == (4, 3) and (found[3][:2] == found[3][2:]).all()


def test_fetches_of_each_replica():
    exe, hidden, loss = net()
    found = exe.run(parallel(loss), feed={"x": rows(5)}, fetch_list=[loss, hidden, "w"], return_merged=False)
    assert [[part.shape for part in parts] for parts in found] == [
        [(1,), (1,)],
        [(3, 3), (2, 3)],
        [(2, 3), (2, 3)],
    ]
    assert exe.run(parallel(loss), feed={"x": rows(4)}, fetch_list=[]) == []


def test_a_feed_for_each_replica():
    exe, hidden, loss = net()
    program = parallel(loss)
    found = exe.run(program, feed=[{"x": rows(1)}, {"x": rows(3)}], fetch_list=[loss, hidden])
    np.testing.assert_allclose(found[0], [0.4, 1.4], rtol=1e-6)
    assert found[1].shape == (4, 3)
    with pytest.raises(errors.FeedError, match="a list of 1 feeds for 2 replicas"):
        exe.run(program, feed=[{"x": rows(1)}], fetch_list=[loss])
    with pytest.raises(errors.FeedError, match="feed x: 1 rows for 2 replicas"):
        exe.run(program, feed={"x": rows(1)}, fetch_list=[loss])
    with pytest.raises(errors.FeedError, match="hold different names"):
        exe.run(program, feed=[{"x": rows(1)}, {}], fetch_list=[loss])


@pytest.mark.parametrize("lengths, losses", [([1, 2, 3], [2.1, 13.2]), ([1, 2, 3, 1], [2.1, 9.8])])
def test_sequences_are_divided_whole(lengths, losses):
    x = fluid.data("x", [None, 2], "float32", lod_level=1)
    init = fluid.initializer.NumpyArrayInitializer(np.arange(6).reshape(2, 3).astype("float32") / 10)
    hidden = layers.fc(x, 3, param_attr=fluid.ParamAttr(name="w", initializer=init), bias_attr=False)
    pooled = layers.sequence_pool(hidden, "sum")
    loss = layers.mean(pooled)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(rows(sum(lengths)), [lengths], fluid.CPUPlace())}
    found = exe.run(parallel(loss), feed=feed, fetch_list=[loss, pooled, x], return_numpy=False)
    np.testing.assert_allclose(np.array(found[0]), losses, rtol=1e-6)
    assert np.array(found[1]).shape == (len(lengths), 3)
    assert found[2].recursive_sequence_lengths() == [lengths]
    np.testing.assert_array_equal(np.array(found[2]), rows(sum(lengths)))
    with pytest.raises(errors.FeedError, match="1 sequences for 2 replicas"):
        exe.run(
            parallel(loss),
            feed={"x": fluid.create_lod_tensor(rows(3), [[3]], fluid.CPUPlace())},
            fetch_list=[loss],
        )


@pytest.mark.parametrize(
    "strategy, seed, after",
    [
        ("One", None, [[-0.2, -0.1, 0], [0.0333333, 0.1333333, 0.2333333]]),
        ("Customized", [0.3, 0.7], [[-0.1266667, -0.0266667, 0.0733333], [0.14, 0.24, 0.34]]),
    ],
)
def test_the_gradient_of_the_loss(strategy, seed, after):
    exe, _, loss = net()
    build = fluid.BuildStrategy()
    build.gradient_scale_strategy = getattr(build.GradientScaleStrategy, strategy)
    program = parallel(loss, build_strategy=build)
    feed = {"x": rows(4)}
    if seed:
        with pytest.raises(errors.FeedError, match=r"mean_0.tmp_0@GRAD: with GradientScaleStrategy.Customized"):
            exe.run(program, feed=feed, fetch_list=[loss])
        feed[loss.name + "@GRAD"] = np.array(seed, "float32")
    exe.run(program, feed=feed, fetch_list=[loss])
    np.testing.assert_allclose(weights(), after, rtol=1e-5, atol=1e-7)


def test_fed_parameters_are_every_replicas():
    exe, _, loss = net()
    found = exe.run(parallel(loss), feed={"x": rows(4), "w": np.ones((2, 3), "float32")}, fetch_list=[loss, "w"])
    np.testing.assert_allclose(found[0], [3, 11], rtol=1e-6)
    np.testing.assert_allclose(weights(), [[0.9] * 3, [0.8666667] * 3], rtol=1e-6)


def test_several_iterations_in_one_run():
    exe, _, loss = net()
    execution = fluid.ExecutionStrategy()
    execution.num_iteration_per_run = 3
    (many,) = exe.run(parallel(loss, exec_strategy=execution), feed={"x": rows(4)}, fetch_list=[loss])
    after = weights()
    fluid.global_scope().find_var("w").get_tensor().set(
        np.arange(6).reshape(2, 3).astype("float32") / 10, fluid.CPUPlace()
    )
    program = parallel(loss)
    for _ in range(3):
        (one,) = exe.run(program, feed={"x": rows(4)}, fetch_list=[loss])
    np.testing.assert_allclose(many, one, rtol=1e-6)
    np.testing.assert_allclose(after, weights(), rtol=1e-6)


def test_running_statistics_are_the_first_replicas():
    x = fluid.data("x", [None, 2], "float32")
    loss = layers.mean(layers.square(layers.batch_norm(x, moving_mean_name="mean", moving_variance_name="variance")))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.run(parallel(loss), feed={"x": rows(4)}, fetch_list=[loss])
    np.testing.assert_allclose(np.array(fluid.global_scope().find_var("mean").get_tensor()), [0.1, 0.2], rtol=1e-6)
    build = fluid.BuildStrategy()
    build.sync_batch_norm = True
    exe.run(parallel(loss, build_strategy=build), feed={"x": rows(4)}, fetch_list=[loss])
    np.testing.assert_allclose(
        np.array(fluid.global_scope().find_var("mean").get_tensor()),
        [0.1 * 0.9 + 0.3, 0.18 + 0.4],
        rtol=1e-6,
    )


def test_counters_count_once_a_run():
    exe, _, loss = net()
    counter = layers.autoincreased_step_counter()
    exe.run(fluid.default_startup_program())
    program = parallel(loss)
    assert [exe.run(program, feed={"x": rows(4)}, fetch_list=[counter])[0].tolist() for _ in range(2)] == [
        [1, 1],
        [2, 2],
    ]


def test_replicas_draw_different_numbers():
    x = fluid.data("x", [None, 100], "float32")
    dropped = layers.dropout(x, 0.5)
    exe = fluid.Executor(fluid.CPUPlace())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    (found,) = exe.run(program, feed={"x": np.ones((2, 100), "float32")}, fetch_list=[dropped])
    assert 20 < (found[0] != found[1]).sum() < 80


def test_the_older_executor():
    _, _, loss = net()
    executor = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, main_program=fluid.default_main_program())
    assert executor.device_count == 2 and executor.drop_local_exe_scopes() is None
    np.testing.assert_allclose(executor.run([loss.name], feed={"x": rows(4)})[0], [0.9, 2.9], rtol=1e-6)
    np.testing.assert_allclose(
        np.array(executor.run([loss.name], feed_dict={"x": rows(4)}, return_numpy=False)[0]),
        [0.5333333, 1.6],
        rtol=1e-5,
    )
    with pytest.raises(errors.FeedError, match="two names of one argument"):
        executor.run([loss.name], feed={}, feed_dict={})
    program = fluid.default_main_program().clone(for_test=True)
    test = fluid.ParallelExecutor(False, main_program=program, share_vars_from=executor)
    assert test.run([loss.name], feed={"x": rows(2)})[0].shape == (2,)


def test_wrong_settings(monkeypatch):
    _, _, loss = net()
    program = parallel(loss)
    with pytest.raises(errors.ProgramError, match="has data parallelism already"):
        program.with_data_parallel(loss.name)
    with pytest.raises(errors.ProgramError, match=r"no variable mean_0.tmp_1 \(did you mean"):
        fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel("mean_0.tmp_1")
    with pytest.raises(TypeError, match="expected a BuildStrategy, found dict"):
        parallel(loss, build_strategy={})
    with pytest.raises(errors.ProgramError, match="share_vars_from"):
        parallel(loss, share_vars_from=fluid.CompiledProgram(fluid.Program()))
    for wrong in ("0", "two", "-1"):
        monkeypatch.setenv("CPU_NUM", wrong)
        with pytest.raises(errors.PlaceError, match="CPU_NUM: expected an integer from 1 on"):
            fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())


def test_replicas_leave_out_what_is_not_fetched():
    exe, hidden, loss = net()
    program, before = parallel(loss), np.array(fluid.global_scope().find_var("w").get_tensor())
    (found,) = exe.run(program, feed={"x": rows(4)}, fetch_list=[hidden], use_prune=True)
    np.testing.assert_allclose(found, rows(4) @ before, rtol=1e-6)
    # it is not updated
    np.testing.assert_array_equal(fluid.global_scope().find_var("w").get_tensor(), before)
    exe.run(program, feed={"x": rows(4)}, fetch_list=[loss])
    assert (np.array(fluid.global_scope().find_var("w").get_tensor()) != before).all()


@pytest.mark.parametrize("passes", [1, 2])
def test_replicas_are_checked_for_what_is_not_finite(passes):
    exe, _, loss = net()
    build = fluid.BuildStrategy()
    if passes > 1:
        build._finalize_strategy_and_create_passes().append_pass("multi_batch_merge_pass").set("num_repeats", passes)
    program, bad = parallel(loss, build_strategy=build), rows(8)
    bad[7] = np.inf  # of the last replica
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        before = np.array(fluid.global_scope().find_var("w").get_tensor())
        with pytest.raises(errors.OpError, match="operator mul gave a value that is not finite: fc_0.tmp_0"):
            exe.run(program, feed={"x": bad}, fetch_list=[loss])
        np.testing.assert_array_equal(fluid.global_scope().find_var("w").get_tensor(), before)
        exe.run(program, feed={"x": rows(8)}, fetch_list=[loss])
        assert (np.array(fluid.global_scope().find_var("w").get_tensor()) != before).all()
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": False})


def with_host_operator(backward):
    """A loss whose hidden rows, which depend on replicas' rows, pass through NumPy."""
    x = fluid.data("x", [None, 2], "float32")
    init = fluid.initializer.NumpyArrayInitializer(np.arange(6).reshape(2, 3).astype("float32") / 10)
    weight = fluid.layers.create_parameter([2, 3], "float32", attr=fluid.ParamAttr(name="w", initializer=init))
    given = weight if backward == "of a parameter" else layers.matmul(x, weight)
    block = fluid.default_main_program().current_block()
    out = block.create_var(name="host_out", shape=given.shape, dtype="float32")
    layers.py_func(lambda v: v * v, given, out, backward_func=lambda v, made, grad: 2 * v * grad)
    loss = layers.mean(layers.matmul(x, out) if backward == "of a parameter" else out)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return loss


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize("backward", ["of rows", "of a parameter"])
def test_operators_of_the_host_run_in_each_replica(backward, reduce):
    found = []
    for replicas in (None, 2, 4):
        with (
            fluid.program_guard(fluid.Program(), fluid.Program()),
            fluid.scope_guard(fluid.Scope()),
            fluid.unique_name.guard(),
        ):
            loss = with_host_operator(backward)
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(fluid.default_startup_program())
            program = fluid.default_main_program()
            if replicas:
                build = fluid.BuildStrategy()
                if reduce:
                    build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
                program = fluid.CompiledProgram(program).with_data_parallel(
                    loss.name, build_strategy=build, places=fluid.cpu_places(replicas)
                )
            losses = [np.mean(exe.run(program, feed={"x": rows(8) + step}, fetch_list=[loss])[0]) for step in range(4)]
            found.append((losses, np.array(fluid.global_scope().find_var("w").get_tensor())))
    for losses, weight in found[1:]:
        np.testing.assert_allclose(losses, found[0][0], rtol=1e-5)
        np.testing.assert_allclose(weight, found[0][1], rtol=1e-5)


def test_each_replica_prints_and_may_find_another_number_of_rows(capfd):
    exe, hidden, loss = net(optimize=False)
    layers.Print(hidden, message="the hidden rows")
    large = layers.where(layers.greater_than(hidden, layers.fill_constant([1], "float32", 1.0)))
    values = np.array([[0, 0], [1, 2], [9, 9], [9, 9]], "float32")
    found, count = exe.run(parallel(loss), feed={"x": values}, fetch_list=[large, layers.reduce_sum(large)])
    expected = values @ (np.arange(6).reshape(2, 3).astype("float32") / 10)
    parts = [np.argwhere(part > 1) for part in (expected[:2], expected[2:])]
    assert len(parts[0]) != len(parts[1])
    np.testing.assert_array_equal(found, np.concatenate(parts))
    np.testing.assert_array_equal(count, [part.sum() for part in parts])
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count("the hidden rows") == 2


def test_updates_by_what_differs_are_refused():
    x = fluid.data("x", [None, 2], "float32")
    loss = layers.mean(layers.fc(x, 3))
    fluid.optimizer.SGD(layers.mean(x) * 0.01).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    with pytest.raises(
        errors.UnsupportedError,
        match="operator sgd updates by .*, which each replica has for itself",
    ):
        exe.run(parallel(loss), feed={"x": rows(4)}, fetch_list=[loss])


def test_sparse_gradients_stay_rows():
    ids = fluid.data("ids", [None, 1], "int64")
    loss = layers.mean(layers.embedding(ids, [100000, 8], is_sparse=True, param_attr="table"))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = parallel(loss)
    exe.run(program, feed={"ids": np.arange(8).reshape(8, 1)}, fetch_list=[loss])
    before = np.array(fluid.global_scope().find_var("table").get_tensor())
    exe.run(program, feed={"ids": np.arange(8).reshape(8, 1)}, fetch_list=[loss])
    moved = np.flatnonzero((np.array(fluid.global_scope().find_var("table").get_tensor()) != before).any(1))
    assert moved.tolist() == list(range(8))


def test_a_failing_step_leaves_the_others_running():
    exe, _, loss = net()
    program = parallel(loss)
    for _ in range(20):
        exe.run(program, feed={"x": rows(4)}, fetch_list=[])
    with pytest.raises(errors.FetchError):
        exe.run(program, feed={"x": rows(4)}, fetch_list=["no_such"])
    with pytest.raises(errors.FeedError):
        exe.run(program, feed={"x": rows(4).astype("float64")}, fetch_list=[loss])
    assert exe.run(program, feed={"x": rows(4)}, fetch_list=[loss])[0].shape == (2,)
    assert jax.device_count() == 4


def test_settings_that_have_an_effect(tmp_path):
    exe, _, loss = net()
    build = fluid.BuildStrategy()
    build.debug_graphviz_path = str(tmp_path / "graph.dot")
    build.fuse_all_reduce_ops = False
    exe.run(parallel(loss, build_strategy=build), feed={"x": rows(5)}, fetch_list=[loss])
    np.testing.assert_allclose(weights(), AFTER_5, rtol=1e-5)
    assert "sgd" in (tmp_path / "graph.dot").read_text()
    build.async_mode = True
    with pytest.raises(errors.UnsupportedError, match="async_mode"):
        parallel(loss, build_strategy=build)
    execution = fluid.ExecutionStrategy()
    execution.num_iteration_per_run = 0
    with pytest.raises(errors.ProgramError, match="num_iteration_per_run: expected 1 or more, found 0"):
        parallel(loss, exec_strategy=execution)


@pytest.mark.parametrize("fuse", [True, False])
def test_gradients_are_summed_in_one_call(fuse):
    fluid.set_flags({"FLAGS_cpu_replicas_joined": False})
    x = fluid.data("x", [None, 4], "float32")
    loss = layers.mean(layers.fc(layers.fc(layers.fc(x, 3), 3), 3))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    build = fluid.BuildStrategy()
    build.fuse_all_reduce_ops = fuse
    program = parallel(loss, build_strategy=build)
    exe.run(program, feed={"x": np.ones((4, 4), "float32")}, fetch_list=[loss])
    (step,) = program._parallel.steps.values()
    with jax.enable_x64(True):
        compiled = step.placement.lowered().compile().as_text()
    assert len(re.findall(r" all-reduce\(", compiled)) == 1  # whatever is set: XLA combines them


def test_each_replica_reads_its_batch():
    x = fluid.data("x", [None, 2], "float32")
    loss = layers.mean(x)
    loader = fluid.io.DataLoader.from_generator([x], capacity=4, iterable=False)
    loader.set_batch_generator(lambda: ([np.full((2, 2), i, "float32")] for i in range(5)), fluid.cpu_places(2))
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    exe = fluid.Executor(fluid.CPUPlace())
    found = []
    loader.start()
    with pytest.raises(fluid.core.EOFException):
        while True:
            found.append(exe.run(program, fetch_list=[loss])[0].tolist())
    loader.reset()
    assert found == [[0, 1], [2, 3]]


def test_many_steps_of_more_replicas_than_cores_end():
    """Steps that pile up would block XLA's threads for good."""
    exe, _, loss = net()
    program = parallel(loss, places=fluid.cpu_places(4))
    feed = {"x": rows(4)}
    for i in range(2000):
        exe.run(program, feed=feed, fetch_list=[loss] if i % 3 == 0 else [])
    assert np.isfinite(weights()).all()


@pytest.mark.parametrize(
    "case, replicas",
    [
        ("mlp_clip", 1),
        ("mlp_adam", 2),
        *[pytest.param(c, n, marks=pytest.mark.nightly) for c, n in (("mlp_clip", 2), ("mlp_adam", 1))],
        *[pytest.param("attention_adam", n, marks=pytest.mark.nightly) for n in (1, 2)],
    ],
)
def test_merged_batches_equal_whole_ones(case, replicas, alone, monkeypatch):
    """Two parts of a batch, one after the other, train as the batch does."""
    strategy = fluid.BuildStrategy

    def merging():
        build = strategy()
        build._finalize_strategy_and_create_passes().append_pass("multi_batch_merge_pass").set("num_repeats", 2)
        return build

    monkeypatch.setattr(fluid, "BuildStrategy", merging)
    losses, state = train(case, replicas)
    assert len(losses[0]) == 2 * replicas
    np.testing.assert_allclose(np.mean(losses, 1), np.mean(alone[case][0], 1), rtol=1e-4)
    for name, value in alone[case][1].items():
        np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=2e-3, err_msg=name)


def test_merged_batches_of_sparse_rows_and_statistics():
    ids = fluid.data("ids", [None, 1], "int64")
    rows_ = layers.embedding(
        ids,
        [10, 4],
        is_sparse=True,
        param_attr=fluid.ParamAttr("table", initializer=fluid.initializer.Constant(1.0)),
    )
    normed = layers.batch_norm(rows_, moving_mean_name="mean")
    loss = layers.mean(normed + rows_)
    fluid.optimizer.SGD(1.0).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    build = fluid.BuildStrategy()
    passes = build._finalize_strategy_and_create_passes()
    passes.append_pass("multi_batch_merge_pass").set("num_repeats", 2)
    program = parallel(loss, build_strategy=build)
    exe.run(program, feed={"ids": np.array([[1], [2], [1], [3]] * 2)}, fetch_list=[loss])
    table = np.array(fluid.global_scope().find_var("table").get_tensor())
    np.testing.assert_allclose(table[:, 0], [1, 1 - 4 / 32, 1 - 2 / 32, 1 - 2 / 32] + [1] * 6, atol=1e-5)
    np.testing.assert_allclose(
        np.array(fluid.global_scope().find_var("mean").get_tensor()), [1 - 0.9**2] * 4, rtol=1e-5
    )
    with pytest.raises(
        errors.FeedError,
        match="feed ids: 3 rows in each replica, which multi_batch_merge_pass cannot divide",
    ):
        exe.run(program, feed={"ids": np.ones((6, 1), "int64")}, fetch_list=[loss])
    with pytest.raises(errors.UnsupportedError, match="pass fuse_relu_pass: XLA rewrites programs by itself"):
        passes.append_pass("fuse_relu_pass")
    with pytest.raises(errors.ProgramError, match="was added already"):
        passes.append_pass("multi_batch_merge_pass")
    with pytest.raises(
        errors.ProgramError,
        match="expected num_repeats, a whole number above 0, found num_repeats = 0",
    ):
        passes.all_passes()[0].set("num_repeats", 0)
    passes.remove_pass(0)
    assert passes.num_repeats == 1


def test_gradients_are_not_brought_together_twice():
    exe, _, loss = net()
    config = fluid.DistributeTranspilerConfig()
    config.mode, config.collective_mode = "collective", "grad_allreduce"
    fluid.DistributeTranspiler(config).transpile(0, trainers="127.0.0.1:1,127.0.0.1:2", current_endpoint="127.0.0.1:1")
    with pytest.raises(errors.UnsupportedError, match="operator c_allreduce_sum sums gradients"):
        exe.run(parallel(loss), feed={"x": rows(4)}, fetch_list=[loss])


def test_an_inference_program_takes_fewer_batches_than_replicas():
    x = fluid.data("x", [None, 2], "float32")
    out = layers.fc(x, 1, param_attr=fluid.initializer.Constant(1.0))
    loss = layers.mean(out)
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    trains = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    infers = fluid.CompiledProgram(test).with_data_parallel(share_vars_from=trains)
    rows = np.arange(8, dtype="float32").reshape(4, 2)

    def run(program, feed):
        return [v.tolist() for v in exe.run(program, feed=feed, fetch_list=[loss, out])]

    expected = [[3.0, 11.0], [[1.0], [5.0], [9.0], [13.0]]]
    for _ in range(2):  # the last batches of an epoch, then the next epoch
        assert run(infers, {"x": rows}) == expected
        assert run(infers, [{"x": rows[:2]}]) == [[3.0], [[1.0], [5.0]]]
        assert run(infers, {"x": rows[:1]}) == [[1.0], [[1.0]]]
    for feed, problem in (
        ([{"x": rows[:2]}], "a list of 1 feeds for 2 replicas"),
        ({"x": rows[:1]}, "1 rows for 2 replicas"),
    ):
        with pytest.raises(errors.FeedError, match=problem):
            run(trains, feed)
    with pytest.raises(errors.FeedError, match="a list of 3 feeds for 2 replicas"):
        run(infers, [{"x": rows}] * 3)
    with pytest.raises(errors.FeedError, match="0 rows for 2 replicas"):
        run(infers, {"x": rows[:0]})


@pytest.mark.parametrize("joined", [True, False])
def test_replicas_pad_to_their_longest_sequences(joined):
    fluid.set_flags({"FLAGS_cpu_replicas_joined": joined})
    x = fluid.data("x", [None, 1], "float32", lod_level=1)
    padded, _ = layers.sequence_pad(x, layers.fill_constant([1], "float32", 0.5))
    loss = layers.mean(padded)
    exe = fluid.Executor(fluid.CPUPlace())
    program = parallel(loss)

    def run(lengths):
        values = np.arange(sum(lengths), dtype="float32")[:, None]
        rows = fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())
        return exe.run(program, feed={"x": rows}, fetch_list=[loss])[0]

    np.testing.assert_allclose(run([3, 2, 1, 3]), [10.5 / 6, 27 / 6], rtol=1e-6)
    if joined:
        np.testing.assert_allclose(run([1, 4, 2, 2]), [11.5 / 8, 26 / 4], rtol=1e-6)
    else:
        with pytest.raises(errors.UnsupportedError, match=r"longest sequence of x.*\[4, 2\]"):
            run([1, 4, 2, 2])
