"""A trainer of parameter servers with several devices equals one with one device."""

import functools

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.distributed.wire import connections
from tests.distributed.job import click_model, clicks, parameters, trainer_of

ADAM = functools.partial(fluid.optimizer.Adam, 0.02)
MOMENTUM = functools.partial(fluid.optimizer.Momentum, 0.1, 0.9)
STEPS = 3


def in_replicas(program, loss, count, **settings):
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    for name, value in settings.items():
        setattr(execution if name == "num_iteration_per_run" else build, name, value)
    return fluid.CompiledProgram(program).with_data_parallel(
        loss.name, build, execution, places=fluid.cpu_places(count)
    )


def trained(build, replicas, feeds, sync=True, **settings):
    """The mean loss of each batch, and the parameters at the end."""
    with trainer_of(build, sync) as (executor, program, (loss, *_)):
        run = program if replicas is None else in_replicas(program, loss, replicas, **settings)
        losses = [np.mean(executor.run(run, feed=feed, fetch_list=[loss])[0]) for feed in feeds]
        return losses, parameters(program)


@functools.cache
def alone(optimizer, distributed=True, ragged=True, sync=True):
    """What `trained` returns for batches of a model on one device."""
    return trained(
        functools.partial(click_model, optimizer, distributed, ragged),
        None,
        [clicks(step, ragged=ragged) for step in range(STEPS)],
        sync,
    )


def assert_same(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance)
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    "optimizer, sync, ragged, distributed",
    [
        pytest.param(ADAM, True, True, False, marks=pytest.mark.nightly),
        (ADAM, True, True, True),
        (MOMENTUM, True, False, False),
        (MOMENTUM, False, True, True),
    ],
)
def test_two_devices_equal_one(optimizer, sync, ragged, distributed):
    build = functools.partial(click_model, optimizer, distributed, ragged)
    feeds = [clicks(step, ragged=ragged) for step in range(STEPS)]
    expected = alone(optimizer, distributed, ragged, sync)
    assert expected[0][-1] != pytest.approx(expected[0][0], rel=1e-3)
    assert_same(trained(build, 2, feeds, sync), expected)


def test_async_mode_trains_on_servers_as_one_device():
    build = functools.partial(click_model, MOMENTUM, True)
    feeds = [clicks(step) for step in range(STEPS)]
    assert_same(trained(build, 2, feeds, sync=False, async_mode=True), alone(MOMENTUM, sync=False))


def test_one_device_does_what_the_program_does():
    build = functools.partial(click_model, ADAM, True)
    feeds = [clicks(step) for step in range(STEPS)]
    assert_same(trained(build, 1, feeds), alone(ADAM), tolerance=0)


def test_a_feed_for_each_device():
    build = functools.partial(click_model, ADAM, True)
    parts = [[clicks(2 * step, 4), clicks(2 * step + 1, 4)] for step in range(3)]
    whole = [{n: joined([p[n] for p in pair]) for n in pair[0]} for pair in parts]
    assert_same(trained(build, 2, parts), trained(build, None, whole))


def joined(parts):
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    lengths = [n for p in parts for n in p.recursive_sequence_lengths()[0]]
    return fluid.create_lod_tensor(np.concatenate([np.array(p) for p in parts]), [lengths])


def test_closing_the_executor_leaves_the_servers_of_a_parallel_executor():
    others = set(connections._connections)
    with trainer_of(functools.partial(click_model, ADAM, True)) as (
        executor,
        program,
        (loss, *_),
    ):
        trains = fluid.ParallelExecutor(False, loss.name, main_program=program)
        trains.run([loss.name], feed=clicks(0))
        executor.close()
        assert set(connections._connections) <= others


def test_reduce_mode_equals_one_device():
    build = functools.partial(click_model, ADAM, True)
    feeds = [clicks(step) for step in range(STEPS)]
    reduced = trained(build, 2, feeds, reduce_strategy=fluid.BuildStrategy.ReduceStrategy.Reduce)
    assert_same(reduced, alone(ADAM))


def test_each_run_is_as_many_steps_as_the_settings_say():
    build = functools.partial(click_model, MOMENTUM, True)
    feeds = [clicks(step) for step in range(2)]
    expected = trained(build, None, [feed for feed in feeds for _ in range(3)])
    for count in (1, 2):
        losses, moved = trained(build, count, feeds, num_iteration_per_run=3)
        assert_same((losses, moved), (expected[0][2::3], expected[1]))


def test_fetches_follow_the_rules_of_data_parallelism():
    build = functools.partial(click_model, MOMENTUM, True)
    with trainer_of(build) as (executor, program, (loss, predict, *_)):
        weight = next(p.name for p in program.all_parameters() if p.name != "table")
        for count in (1, 2):
            run = in_replicas(program, loss, count)
            found = executor.run(run, feed=clicks(0), fetch_list=[loss, predict, f"{weight}@GRAD.trainer_0"])
            assert [v.shape[0] for v in found] == [count, 8, 11 * count]
            apart = executor.run(run, feed=clicks(0), fetch_list=[predict, weight], return_merged=False)
            assert [[v.shape for v in values] for values in apart] == [
                [(8 // count, 2)] * count,
                [(11, 8)] * count,
            ]
            now = np.array(fluid.global_scope().find_var(weight).get_tensor())
            for value in apart[1]:
                # what was received, and not what the step began with
                np.testing.assert_array_equal(value, now)


def test_a_program_that_only_predicts_sends_nothing():
    with trainer_of(functools.partial(click_model, ADAM, True)) as (
        executor,
        program,
        (_, predict, *_),
    ):
        executor.run(program, feed=clicks(0))
        before = parameters(program)
        only = program.clone(for_test=True)
        (alone,) = executor.run(only, feed=clicks(1), fetch_list=[predict])
        for count in (1, 2):
            run = fluid.CompiledProgram(only).with_data_parallel(places=fluid.cpu_places(count))
            (found,) = executor.run(run, feed=clicks(1), fetch_list=[predict])
            np.testing.assert_allclose(found, alone, rtol=1e-6)
        assert_same(([0], parameters(program)), ([0], before), tolerance=0)
        executor.run(program, feed=clicks(1))  # no round was waited for


def test_ids_that_the_program_computes():
    def build():
        number = fluid.data("number", [None, 1], "int64")
        ids = layers.elementwise_mod(number, layers.fill_constant([1], "int64", 50))
        rows = layers.embedding(
            ids,
            [50, 4],
            is_sparse=True,
            is_distributed=True,
            padding_idx=0,
            param_attr=fluid.ParamAttr(name="table", initializer=fluid.initializer.Constant(0.5)),
        )
        loss = layers.mean(layers.square(layers.fc(rows, 1, param_attr=fluid.initializer.Constant(0.1))))
        fluid.optimizer.SGD(0.5).minimize(loss)
        return (loss,)

    feeds = [{"number": np.arange(step, 8 * step + 8, step + 1)[:8, None]} for step in range(4)]
    assert_same(trained(build, 2, feeds), trained(build, None, feeds))


def test_errors():
    with trainer_of(functools.partial(click_model, MOMENTUM, True)) as (
        executor,
        program,
        (loss, *_),
    ):
        run = in_replicas(program, loss, 2)
        with pytest.raises(errors.FeedError, match="a list of 3 feeds for 2 replicas"):
            executor.run(run, feed=[clicks(i) for i in range(3)], fetch_list=[loss])
        with pytest.raises(errors.FeedError, match="1 rows for 2 replicas"):
            executor.run(run, feed=clicks(0, 1), fetch_list=[loss])
        with pytest.raises(errors.FeedError, match="label"):
            executor.run(run, feed={n: v for n, v in clicks(0).items() if n != "label"}, fetch_list=[loss])
        with pytest.raises(errors.FeedError, match=r"feed slot0: expected ids of dtype int64"):
            executor.run(run, feed=clicks(0) | {"slot0": np.zeros((8, 1), np.float32)}, fetch_list=[loss])
        with pytest.raises(errors.UnsupportedError, match="use_prune"):
            executor.run(program, feed=clicks(0), fetch_list=[loss], use_prune=True)
        with pytest.raises(errors.UnsupportedError, match="num_trainers"):
            in_replicas(program, loss, 2, num_trainers=2)


def test_a_servers_program_cannot_be_divided():
    main = fluid.Program()
    with fluid.program_guard(main):
        click_model(MOMENTUM)
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, "127.0.0.1:6174", 1, True, fluid.default_startup_program())
    served = transpiler.get_pserver_program("127.0.0.1:6174")
    run = fluid.CompiledProgram(served).with_data_parallel(places=fluid.cpu_places(2))
    with pytest.raises(errors.UnsupportedError, match="nothing to divide"):
        fluid.Executor(fluid.CPUPlace()).run(run)
