"""Streams of shapes wherever a program runs: values are those of exact shapes, compilations are few."""

import contextlib
import functools
import threading

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compat.inference import AnalysisConfig, create_paddle_predictor
from tests.dynamic_shapes.interpreted import interpreted

layers = fluid.layers

MOST = 12  # compilations of a stream
# Rows and lengths of forty batches, all different; two replicas have unequal shares of some.
SIZES = [(4 + (5 * at) % 7, 9 + (11 * at) % 29) for at in range(40)]
# The first steps, whose values and state are compared: exact shapes compile a program for each size.
COMPARED = 40


@pytest.fixture(autouse=True, params=[(9, 4), pytest.param((40, 40), marks=pytest.mark.nightly)], ids=["9", "40"])
def flag(request, monkeypatch):
    """Streams of the first sizes: most of nine fit few buckets, and at night forty do not exceed the bound."""
    count, compared = request.param
    monkeypatch.setattr(f"{__name__}.SIZES", SIZES[:count])
    monkeypatch.setattr(f"{__name__}.COMPARED", compared)
    yield
    fluid.set_flags({"FLAGS_dynamic_shapes": True, "FLAGS_shape_buckets": ""})


@contextlib.contextmanager
def compilations():
    """A list that grows with each program that XLA compiles, or reads from its cache."""
    found = []

    def note(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def most():
    """Return the compilations that a stream may take: fewer than it has sizes."""
    return min(MOST, len(SIZES) - 3)


def feeds():
    random = np.random.RandomState(0)
    return [
        {
            "x": random.randn(count, length, 4).astype("float32"),
            "label": random.randint(0, 3, (count, 1)),
        }
        for count, length in SIZES
    ]


def network():
    """A loss over sequences of any number and length; batch norm has statistics of the batch."""
    x, label = fluid.data("x", [None, None, 4]), fluid.data("label", [None, 1], "int64")
    hidden = layers.fc(x, 4, num_flatten_dims=2, act="relu", bias_attr=False)
    whole = layers.batch_norm(layers.reduce_mean(hidden, dim=1))
    given = layers.softmax(layers.fc(whole, 3, bias_attr=False))
    loss = layers.mean(layers.cross_entropy(given, label))
    return loss, given, hidden


def trained(run, padded):
    """Return the first values that `run(program, test clone, executor, variables)` yields with the state after these
    values, and the number of programs that were compiled.
    """
    fluid.set_flags({"FLAGS_dynamic_shapes": padded})
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 7
    with (
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(scope),
    ):
        variables = network()
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(variables[0])
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        names, found = sorted(v.name for v in main.list_vars() if v.persistable), []
        with compilations() as compiled:
            for values in run(main, test, executor, variables):
                if len(found) < COMPARED:
                    found.append(values)
                    state = [np.array(scope.find_var(n).get_tensor()) for n in names if scope.find_var(n)]
    return [*found, state], len(compiled)


def alone(main, test, executor, variables):
    for feed in feeds():
        yield executor.run(main, feed=feed, fetch_list=variables)


def in_replicas(main, test, executor, variables, settings=lambda build: None, given=None):
    build = fluid.BuildStrategy()
    settings(build)
    program = fluid.CompiledProgram(main).with_data_parallel(
        variables[0].name, build_strategy=build, places=fluid.cpu_places(2)
    )
    for feed in given or feeds():
        yield executor.run(program, feed=feed, fetch_list=variables[:2])


def exactly(run):
    """Return the values and the state of the compared steps with exact shapes; of one device, by NumPy."""
    with fewer_sizes():
        return _exactly(run, COMPARED)


@functools.cache
def _exactly(run, count):
    if run is alone:
        return interpreted(trained, run, False)[0]
    found, compiled = trained(run, False)
    assert compiled >= count
    return found


@contextlib.contextmanager
def fewer_sizes():
    """Have streams end after the compared steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.SIZES", SIZES[:COMPARED])
        yield


def hold(found, expected):
    assert len(found) == len(expected)
    for step, (values, others) in enumerate(zip(found, expected)):
        for value, other in zip(values, others, strict=True):
            assert np.shape(value) == np.shape(other)
            np.testing.assert_allclose(value, other, 5e-4, 1e-4, err_msg=f"step {step}")


def test_replicas_with_unequal_shares():
    found, compiled = trained(in_replicas, True)
    assert compiled <= most()
    hold(found, exactly(in_replicas))


def reduced(*given):
    def settings(build):
        build.reduce_strategy = build.ReduceStrategy.Reduce
        build.sync_batch_norm = True

    return in_replicas(*given, settings)


@pytest.mark.nightly  # before each change on devices of their own, below
def test_replicas_that_reduce_and_share_the_statistics_of_the_batch():
    found, compiled = trained(reduced, True)
    assert compiled <= most()
    hold(found, exactly(reduced))


def test_replicas_whose_own_batches_have_other_lengths():
    def run(main, test, executor, variables):
        program = fluid.CompiledProgram(test).with_data_parallel(places=fluid.cpu_places(2))
        every = feeds()
        for pair in zip(every[::2], every[1::2]):
            (found,) = executor.run(program, feed=list(pair), fetch_list=variables[1:2])
            own = [executor.run(test, feed=feed, fetch_list=variables[1:2])[0] for feed in pair]
            np.testing.assert_allclose(found, np.concatenate(own), 5e-4, 1e-5)
        yield []

    _, compiled = trained(run, True)
    assert compiled <= 2 * most()


def test_a_compiled_program_beside_a_test_clone():
    def run(main, test, executor, variables):
        program = fluid.CompiledProgram(main)
        for feed in feeds():
            (tested,) = executor.run(test, feed=feed, fetch_list=variables[1:2])
            assert tested.shape == (len(feed["label"]), 3)
            yield executor.run(program, feed=feed, fetch_list=variables)

    found, compiled = trained(run, True)
    assert compiled <= 2 * most()
    hold(found, exactly(alone))


@pytest.mark.parametrize("iterable", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_loaders(iterable):
    def run(main, test, executor, variables):
        block = main.global_block()
        loader = fluid.io.DataLoader.from_generator(
            feed_list=[block.var("x"), block.var("label")], capacity=4, iterable=iterable
        )
        loader.set_batch_generator(lambda: ([f["x"], f["label"]] for f in feeds()), fluid.cpu_places(1))
        if iterable:
            for feed in loader():
                yield executor.run(main, feed=feed, fetch_list=variables)
            return
        loader.start()
        with pytest.raises(fluid.core.EOFException):
            while True:
                yield executor.run(main, fetch_list=variables)
        loader.reset()

    found, compiled = trained(run, True)
    assert compiled <= most()
    hold(found, exactly(alone))


def test_a_dataset(tmp_path):
    """`train_from_dataset` on dense slots: each pass has batches of a different size."""

    def run(main, test, executor, variables):
        for at, (count, length) in enumerate(SIZES):
            random = np.random.RandomState(at)
            rows = [[*random.randn(4).round(3), random.randint(3)] for _ in range(count * length)]
            path = tmp_path / f"{at}.txt"
            path.write_text("".join(f"4 {' '.join(map(str, row[:4]))} 1 {row[4]}\n" for row in rows))
            dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
            dataset.set_use_var(given)
            dataset.set_batch_size(count * length)
            dataset.set_filelist([str(path)])
            executor.train_from_dataset(own, dataset)
            yield [np.array(fluid.global_scope().find_var(name).get_tensor()) for name in names]

    def program(padded):
        nonlocal own, given, names
        own, startup = fluid.Program(), fluid.Program()
        own.random_seed = startup.random_seed = 3
        with fluid.program_guard(own, startup), fluid.unique_name.guard("dataset"):
            given = [fluid.data("features", [None, 4]), fluid.data("category", [None, 1], "int64")]
            probable = layers.fc(layers.batch_norm(given[0]), 3, act="softmax")
            fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.cross_entropy(probable, given[1])))
        names = sorted(v.name for v in own.list_vars() if v.persistable)

        def started(main, test, executor, variables):
            executor.run(startup)
            yield from run(main, test, executor, variables)

        return trained(started, padded)

    own, given, names = None, [], []
    found, compiled = program(True)
    assert compiled <= most()
    with fewer_sizes():
        expected, _ = interpreted(program, False)
    hold(found, expected)


def test_a_saved_model_that_threads_run(tmp_path):
    def run(main, test, executor, variables):
        fluid.io.save_inference_model(str(tmp_path), ["x"], [variables[1]], executor, main_program=test)
        program, names, fetches = fluid.io.load_inference_model(str(tmp_path), executor)
        config = AnalysisConfig(str(tmp_path))
        config.disable_gpu()
        predictor = create_paddle_predictor(config)
        inputs = [feed["x"] for feed in feeds()]
        expected = [executor.run(program, feed={names[0]: x}, fetch_list=fetches) for x in inputs]
        found = {}

        def predict(own, at):
            for i in at:
                own.get_input_tensor("x").copy_from_cpu(inputs[i])
                own.zero_copy_run()
                output = own.get_output_tensor(own.get_output_names()[0])
                found[i] = output.copy_to_cpu()

        each = [predictor.clone(), predictor.clone()]
        shares = [range(0, len(inputs), 2), range(1, len(inputs), 2)]
        threads = [threading.Thread(target=predict, args=a) for a in zip(each, shares)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, (value,) in enumerate(expected):
            np.testing.assert_allclose(found[i], value, 5e-4, 1e-5)
        yield [value for (value,) in expected]

    found, compiled = trained(run, True)
    assert compiled <= 2 * most()
    assert [v.shape for v in found[0]] == [(count, 3) for count, _ in SIZES]


def test_sizes_that_the_script_says():
    fluid.shape_buckets({"x": {1: [16, 24, 40]}})

    def run(main, test, executor, variables):
        yield from alone(main, test, executor, variables)
        *_, step = executor.engine._steps.values()
        buckets = step.segments[-1].call._traces[-1].buckets._known
        lengths = {SIZES[0][1], SIZES[1][1]}
        assert {16, 24, 40} == {size for b in buckets for size in b.values()} & {16, 24, 40}
        assert all({16, 24, 40} & set(b.values()) for b in buckets), lengths

    found, compiled = trained(run, True)
    assert compiled <= most()
    hold(found, exactly(alone))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([32], "a mapping of the names of feeds"),
        ({"x": [32]}, "x: expected a mapping of dimensions to sizes"),
        ({"x": {"one": [32]}}, "x: expected the number of a dimension"),
        ({"x": {1: [32, 0]}}, "x, dimension 1: expected sizes, whole numbers from 1 on, found 0"),
    ],
)
def test_sizes_that_are_none(sizes, expected):
    with pytest.raises(fluid.errors.AttributeTypeError, match=expected):
        fluid.shape_buckets(sizes)


@pytest.mark.parametrize(
    "run", [pytest.param(in_replicas, marks=pytest.mark.nightly), reduced], ids=["all-reduce", "reduce"]
)
def test_replicas_on_devices_of_their_own(run):
    expected = exactly(run)
    fluid.set_flags({"FLAGS_cpu_replicas_joined": False})
    try:
        found, compiled = trained(run, True)
    finally:
        fluid.set_flags({"FLAGS_cpu_replicas_joined": True})
    assert compiled <= most()
    hold(found, expected)


def test_a_placement_without_padding_says_so():
    def run(main, test, executor, variables):
        def settings(build):
            build._passes.append_pass("multi_batch_merge_pass").set("num_repeats", 2)

        sizes = [(4, 9), (8, 7), (4, 8)]
        given = [
            {"x": np.zeros((count, length, 4), "float32"), "label": np.zeros((count, 1), "int64")}
            for count, length in sizes
        ]
        with pytest.warns(RuntimeWarning, match="parts of a batch run in turn") as said:
            yield from in_replicas(main, test, executor, variables, settings, given)
        assert len([w for w in said if "each new shape" in str(w.message)]) == 1

    trained(run, True)
