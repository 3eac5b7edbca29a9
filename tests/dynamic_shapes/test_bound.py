"""At most a dozen executables for the shapes of a program, in streams that are made to need more."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfluid as fluid
from jfluid import dygraph, layers
from jfluid.compat.inference import AnalysisConfig, create_paddle_predictor
from jfluid.compile.dynamic_shapes.buckets import MOST, Buckets
from jfluid.compile.dynamic_shapes.traced import Traced
from jfluid.initializer import NumpyArrayInitializer
from tests.dynamic_shapes.test_placements import compilations
from tests.kept_steps import finish
from tests.slow_tests import nightly_but

RATE = 1e-3
WEIGHT = np.random.RandomState(3).randn(4, 3).astype("float32") * 0.1


def drawn(seed, most, count):
    """Sizes from 2 on: all magnitudes are alike."""
    exponents = np.random.RandomState(seed).uniform(np.log(2), np.log(most), (count, 3))
    return [tuple(map(int, own)) for own in np.exp(exponents).round()]


# Rows and lengths of one feed, and rows of a second feed.
STREAMS = {
    "three sizes": drawn(0, 40, 40),
    "wide ranges": drawn(1, [300, 300, 60], 40),
    "sizes that grow": [(4 + at // 3, int(5 * 1.25**at), int(3 * 1.1**at)) for at in range(26)],
    "one row": [(1 if at % 3 == 0 else 4 + at % 7, 5 + (7 * at) % 23, 6) for at in range(30)],
    "one row or one word": [
        (1 if at % 3 == 0 else 4 + at % 7, 1 if at % 4 == 0 else 5 + (7 * at) % 23, 6) for at in range(36)
    ],
    "no row": [(0 if at % 3 == 0 else 4 + at % 7, 5 + (7 * at) % 23, 6) for at in range(30)],
    "sizes begin to vary": [
        *[(8, 5 + at, 6) for at in range(8)],
        *[(8 - at, 30 - at, 6) for at in range(5)],
        *[(3 + at % 5, 7 + (3 * at) % 40, 9 + at) for at in range(16)],
    ],
    "multiples, then all sizes": [
        *[(4, 32 * (1 + at % 5), 6) for at in range(6)],
        *[(4, 33 + at, 6) for at in range(12)],
    ],
}


def feeds(sizes):
    random = np.random.RandomState(0)
    return [
        {"x": random.rand(rows, length, 4).astype("float32") / length, "y": random.rand(more, 4).astype("float32")}
        for rows, length, more in sizes
    ]


def expected(given, trains=lambda at: True):
    """What NumPy computes: the loss of each batch, with a step of SGD after it."""
    weight, found = WEIGHT.astype("float64"), []
    for at, feed in enumerate(given):
        rows = np.concatenate([feed["x"].sum(1), feed["y"]])
        out = rows @ weight
        found.append(np.square(out).sum())
        if trains(at):
            weight = weight - RATE * 2 * rows.T @ out
    return found


def network():
    x, y = fluid.data("x", [None, None, 4]), fluid.data("y", [None, 4])
    attr = fluid.ParamAttr("weight", initializer=NumpyArrayInitializer(WEIGHT))
    summed = layers.fc(layers.reduce_sum(x, dim=1), 3, param_attr=attr, bias_attr=False)
    whole = layers.concat([summed, layers.fc(y, 3, param_attr=attr, bias_attr=False)])
    return layers.reduce_sum(layers.square(whole)), summed


@contextlib.contextmanager
def program(interprets=False):
    """The program, its clone for tests, an executor, and the loss with the output of the first feed."""
    main, startup = fluid.Program(), fluid.Program()
    old = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": interprets})
    with (
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        variables = network()
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(RATE).minimize(variables[0])
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        finish()
        yield main, test, executor, variables
    fluid.set_flags(old)


def hold(found, others):
    np.testing.assert_allclose(np.ravel(found), others, 2e-4, 1e-6)


@pytest.mark.parametrize("stream", nightly_but(set(STREAMS) - {"wide ranges", "one row"}, STREAMS))
def test_one_device(stream):
    batches = feeds(STREAMS[stream])
    with program() as (main, _, executor, (loss, _)), compilations() as compiled:
        found = [executor.run(main, feed=feed, fetch_list=[loss])[0] for feed in batches]
    assert len(compiled) <= MOST < len(set(STREAMS[stream]))
    hold(found, expected(batches))


@pytest.mark.filterwarnings("ignore:this program has 12 executables:RuntimeWarning")
@pytest.mark.parametrize("stream", nightly_but(("one row", "sizes begin to vary"), STREAMS))
def test_interpreted_steps(stream, monkeypatch):
    """Each bucket is compiled as soon as a batch needs it; `test_one_device` has the other streams."""
    monkeypatch.setattr(Traced, "pays", lambda self, seconds: True)
    batches, found = feeds(STREAMS[stream]), []
    with program(True) as (main, _, executor, (loss, _)), compilations() as compiled:
        for feed in batches:
            found.append(executor.run(main, feed=feed, fetch_list=[loss])[0])
            finish()
    assert len(compiled) <= MOST
    hold(found, expected(batches))


def test_training_and_evaluation_in_turn():
    """The program and its clone have executables of their own."""
    batches = feeds(STREAMS["one row"])
    with program() as (main, test, executor, (loss, _)), compilations() as compiled:
        found = [
            executor.run(test if at % 2 else main, feed=feed, fetch_list=[loss])[0] for at, feed in enumerate(batches)
        ]
    assert len(compiled) <= 2 * MOST
    hold(found, expected(batches, lambda at: at % 2 == 0))


@pytest.mark.parametrize("stream", nightly_but(["three sizes"], ["three sizes", "sizes begin to vary"]))
def test_two_devices(stream):
    batches = feeds([(2 * rows, length, 2 * more) for rows, length, more in STREAMS[stream]])
    with program() as (main, _, executor, (loss, _)), compilations() as compiled:
        build = fluid.BuildStrategy()
        build.gradient_scale_strategy = build.GradientScaleStrategy.One
        both = fluid.CompiledProgram(main).with_data_parallel(
            loss.name, build_strategy=build, places=fluid.cpu_places(2)
        )
        found = [executor.run(both, feed=feed, fetch_list=[loss])[0].sum() for feed in batches]
    assert len(compiled) <= MOST < len(set(STREAMS[stream]))
    hold(found, expected(batches))


@pytest.mark.parametrize("stream", nightly_but(["wide ranges"], ["wide ranges", "one row or one word"]))
def test_inference(stream, tmp_path):
    batches = [feed["x"] for feed in feeds(STREAMS[stream])]
    with program() as (_, test, executor, (_, summed)):
        fluid.io.save_inference_model(str(tmp_path), ["x"], [summed], executor, main_program=test)
        config = AnalysisConfig(str(tmp_path))
        config.disable_gpu()
        predictor = create_paddle_predictor(config)
        with compilations() as compiled:
            for x in batches:
                predictor.get_input_tensor("x").copy_from_cpu(x)
                predictor.zero_copy_run()
                output = predictor.get_output_tensor(predictor.get_output_names()[0])
                np.testing.assert_allclose(output.copy_to_cpu(), x.sum(1) @ WEIGHT, 2e-4, 1e-6)
    assert len(compiled) <= MOST < len({x.shape for x in batches})


@pytest.mark.parametrize(
    "counts",
    [pytest.param([*range(1, 26)], marks=pytest.mark.nightly), [int(3 * 1.35**at) for at in range(16)]],
    ids=["all", "growing"],
)
def test_a_dataset(counts, tmp_path):
    """Each pass of `train_from_dataset` has one batch of another size."""
    path, random = tmp_path / "rows.txt", np.random.RandomState(0)
    with program() as (_, _, executor, _):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            y = fluid.data("y", [None, 4])
            attr = fluid.ParamAttr("own", initializer=NumpyArrayInitializer(WEIGHT))
            loss = layers.reduce_sum(layers.square(layers.fc(y, 3, param_attr=attr, bias_attr=False)))
            fluid.optimizer.SGD(RATE).minimize(loss)
        executor.run(startup)
        weight = WEIGHT.astype("float64")
        with compilations() as compiled:
            for count in counts:
                rows = random.rand(count, 4).round(3)
                path.write_text("".join(f"4 {' '.join(map(str, row))}\n" for row in rows))
                dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
                dataset.set_use_var([y])
                dataset.set_batch_size(count)
                dataset.set_filelist([str(path)])
                executor.train_from_dataset(main, dataset)
                weight = weight - RATE * 2 * rows.T @ (rows @ weight)
                np.testing.assert_allclose(fluid.global_scope().find_var("own").get_tensor(), weight, 2e-4, 1e-5)
    assert len(compiled) <= MOST < len(counts)


@pytest.mark.filterwarnings("ignore:this program has 12 executables:RuntimeWarning")
@pytest.mark.parametrize("stream", nightly_but(["three sizes", "no row"], STREAMS))
def test_imperative_mode(stream, monkeypatch):
    monkeypatch.setattr(Traced, "pays", lambda self, seconds: True)
    batches, found = feeds(STREAMS[stream]), []
    with dygraph.guard(fluid.CPUPlace()), compilations() as compiled:
        linear = dygraph.Linear(4, 3, param_attr=NumpyArrayInitializer(WEIGHT), bias_attr=False)
        optimizer = fluid.optimizer.SGD(RATE, parameter_list=linear.parameters())
        for feed in batches:
            x, y = (dygraph.to_variable(feed[name]) for name in ("x", "y"))
            both = layers.concat([linear(layers.reduce_sum(x, dim=1)), linear(y)])
            loss = layers.reduce_sum(layers.square(both))
            loss.backward()
            optimizer.minimize(loss)
            linear.clear_gradients()
            found.append(loss.numpy())
            finish()
    assert len(compiled) <= MOST
    hold(found, expected(batches))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(*[st.integers(2, 200)] * 3), min_size=20, max_size=60), st.integers(0, 2))
def test_buckets_of_any_sizes(sizes, exact):
    buckets = Buckets(lambda own: own["a"] * own["b"] + own["c"], dict.fromkeys("abc", 1), {}, lambda: exact)
    for own in sizes:
        need = dict(zip("abc", own))
        found = buckets.choose(need)
        assert all(found[name] >= size for name, size in need.items())
    assert len(buckets) + exact <= MOST


@pytest.mark.parametrize("interprets", [False, True])
def test_a_stream_beyond_the_bound_says_so(interprets, monkeypatch):
    monkeypatch.setattr(Traced, "pays", lambda self, seconds: True)
    monkeypatch.setattr("jfluid.compile.dynamic_shapes.stream.MOST", 3)
    batches, found = feeds(STREAMS["three sizes"]), []
    with (
        program(interprets) as (main, _, executor, (loss, _)),
        pytest.warns(RuntimeWarning, match="has 3 executables for the shapes of its feeds") as said,
        compilations() as compiled,
    ):
        for feed in batches:
            found.append(executor.run(main, feed=feed, fetch_list=[loss])[0])
            finish()
    assert len(said) == 1
    assert (len(compiled) <= 3) is interprets
    hold(found, expected(batches))


def test_given_sizes_are_not_counted(monkeypatch):
    monkeypatch.setattr("jfluid.compile.dynamic_shapes.buckets.MOST", 4)
    monkeypatch.setattr("jfluid.compile.dynamic_shapes.stream.MOST", 4)
    fluid.shape_buckets({"x": {1: [*range(8, 32, 4)]}})
    batches = feeds([(4, length, 6) for length in range(4, 32)])
    with program() as (main, _, executor, (loss, _)), compilations() as compiled:
        found = [executor.run(main, feed=feed, fetch_list=[loss])[0] for feed in batches]
    fluid.set_flags({"FLAGS_shape_buckets": ""})
    assert 4 < len(compiled) <= 10  # each given size, a larger size, and two exact shapes
    hold(found, expected(batches))
