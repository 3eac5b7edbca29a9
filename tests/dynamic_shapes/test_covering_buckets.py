"""Batches that run in a compiled bucket which holds them: compilations of a stream, and a second start."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.dynamic_shapes.buckets import Buckets
from jfluid.compile.dynamic_shapes.dims import NoRule
from jfluid.compile.dynamic_shapes.segment import StreamSegment
from jfluid.compile.dynamic_shapes.stream import ShapeStream
from jfluid.compile.dynamic_shapes.traced import Traced
from jfluid.compile.numpy_steps import beside
from jfluid.compile.runtime import executables, library_fusions
from tests.kept_steps import calls_of, finish, folder

__all__ = ["folder"]

SIZES = [(20, 17), (15, 30), *[tuple(np.random.RandomState(at).randint(18, 40, 2).tolist()) for at in range(24)]]


@pytest.fixture
def work(monkeypatch):
    """The names of what is done for steps: a compilation, an interpreted step, a trace at samples, any trace."""
    return calls_of(
        monkeypatch,
        [
            (library_fusions, "compiled"),
            (executables.Executables, "interpret"),
            (StreamSegment, "recorded"),
            (executables.Executables, "trace"),
        ],
    )


def sentences():
    """The loss of a model with dropout and drawn noise."""
    x = fluid.data("x", [None, None, 4])
    noise = layers.gaussian_random_batch_size_like(x, [-1, 8])
    hidden = layers.dropout(layers.fc(x, 8, num_flatten_dims=2, act="tanh"), 0.2)
    return layers.mean(layers.square(layers.reduce_mean(hidden, dim=1) + noise))


def images():
    """The loss of a model with filters, which have another layout between steps; each row is a row of an image."""
    x = layers.unsqueeze(fluid.data("x", [None, None, 4]), [1])
    x = layers.conv2d(layers.conv2d(x, 6, 3, padding=1, act="relu"), 2, 3, padding=1)
    return layers.mean(layers.square(layers.reduce_mean(x, dim=[2, 3]) - 0.5))


def sorted_values():
    """The loss of a model with a sort."""
    x = fluid.data("x", [None, None, 4])
    ordered, _ = layers.argsort(layers.fc(x, 8, num_flatten_dims=2), axis=1)
    return layers.mean(layers.square(layers.reduce_mean(ordered, dim=1)))


def losses(interpreted, sizes=SIZES, model=sentences):
    """The losses of a model, for batches of sizes."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        main.random_seed = startup.random_seed = 5
        loss = model()
        fluid.optimizer.Adam(0.05).minimize(loss)
    old = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": interpreted})
    random, found = np.random.RandomState(0), []
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        for size in sizes:
            feed = {"x": random.rand(*size, 4).astype("float32")}
            found.append(float(np.ravel(executor.run(main, feed, [loss])[0])[0]))
            finish()
    fluid.set_flags(old)
    (step,) = [s for s in executor.engine._steps.values() if isinstance(s.segments[-1].call, ShapeStream)][-1:]
    return found, step.segments[-1].call._traces[-1]


def test_one_bucket_serves_a_stream(work, monkeypatch):
    expected, _ = losses(False)

    monkeypatch.setattr(Traced, "pays", lambda self, seconds: work.count("interpret") % 5 == 4)
    monkeypatch.setattr(Buckets, "refine", lambda self: False)
    work.clear()
    found, traced = losses(True)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert work.count("compiled") <= 5  # with the startup program
    assert work.count("interpret") < len(SIZES) / 2
    assert len(traced.compiled) <= 3
    for size in SIZES[-4:]:
        assert traced.compiled_bucket(dict(zip(traced.symbols.names, size))) is not None


def test_a_bucket_of_its_own_pays_by_measured_padding(work, monkeypatch):
    _, traced = losses(True, SIZES[:5])
    traced.tracing = 10.0
    names = traced.symbols.names
    wide, narrow = dict.fromkeys(names, 40), dict.fromkeys(names, 20)
    traced.runs[tuple(wide.items())] = [1.0, 2.0]
    for _ in range(13):
        assert not traced.pays(traced.padding)
        traced.note_padding(narrow, wide)  # 0.75 s
    traced.note_padding(narrow, wide)
    assert traced.pays(traced.padding)


def test_a_second_start_runs_in_the_buckets_on_disk(folder, work, monkeypatch):
    pays_at_once(monkeypatch)
    expected, _ = losses(True, SIZES[:5])
    work.clear()
    found, _ = losses(True, SIZES[:5])
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert not work  # not even for the first two shapes


@pytest.mark.parametrize(
    "model, padded",
    [
        (images, False),
        (sorted_values, True),
        pytest.param(images, True, marks=pytest.mark.nightly),
        pytest.param(sorted_values, False, marks=pytest.mark.nightly),
    ],
)
def test_a_second_start_after_a_few_steps(model, padded, folder, work, monkeypatch):
    """The history of a stream is written as soon as a compilation begins.

    With `padded`, NumPy interprets no step at its true sizes.
    """
    monkeypatch.setattr(Traced, "pays", lambda self, seconds: bool(self._unpadded))
    monkeypatch.setattr(Buckets, "refine", lambda self: False)
    monkeypatch.setattr(beside, "_FIRST_CALL", 0)
    monkeypatch.setattr(beside, "_PAYS", 0)
    if padded:
        monkeypatch.setattr(Traced, "listing", no_rule)
    sizes = [(6, 9), (6, 12), (6, 11), (6, 8), (6, 10)]
    first, _ = losses(True, sizes[: 3 if padded else 4], model)
    assert (work.count("interpret") > 1) is not padded  # the second shape is not padded
    assert any(path.name.startswith("sizes-") for path in folder.iterdir())
    work.clear()
    found, _ = losses(True, sizes, model)
    assert not work
    expected, _ = losses(False, sizes, model)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(first, expected[: len(first)], rtol=1e-4)


def no_rule(self, batch, shapes):
    raise NoRule("a step that NumPy cannot interpret")


def test_a_bucket_that_no_later_batch_fits_keeps_no_other_from_being_compiled(work, monkeypatch):
    """Sentences grow: the bucket of the last short batch is compiled, and no batch comes that runs in it."""
    finer = []

    def refine(self):
        finer.append(len(self))
        if len(self) == 1:
            self.know(dict.fromkeys(self._unit, 18))

    monkeypatch.setattr(Traced, "pays", lambda self, seconds: True)
    monkeypatch.setattr(Buckets, "refine", refine)
    losses(True, [(20, 17), (15, 30), (31, 26), (16, 18), (28, 25), (29, 27)])
    assert finer == [1, 2, 2]


def pays_at_once(monkeypatch):
    """Begin to compile a bucket for the first batch that is interpreted, and none that is finer."""
    monkeypatch.setattr(Traced, "pays", lambda self, seconds: True)
    monkeypatch.setattr(Buckets, "refine", lambda self: False)


def buckets_of(sizes):
    """The buckets of a stream whose batches have been interpreted."""
    buckets = Buckets(lambda sizes: sizes["a"] * sizes["b"], {"a": 1, "b": 1})
    for a, b in sizes:
        buckets.count({"a": a, "b": b})
    return buckets


def test_a_bucket_for_all_batches_so_far_is_known():
    need = {"a": 12, "b": 17}
    buckets = buckets_of([(10, 13), (12, 17), (14, 20)])
    held = buckets.worth_most(need)
    assert held["a"] >= 14 and held["b"] >= 20
    assert [held] == buckets.holding({"a": 10, "b": 20})


def test_few_long_and_many_short_sentences_have_a_bucket_each():
    short, long = {"a": 64, "b": 8}, {"a": 8, "b": 64}
    buckets = buckets_of([(64, 8), (8, 64), (60, 7), (7, 61)] * 3)
    assert buckets.worth_most(short) == short
    assert buckets.worth_most(long) == long


def test_batches_with_an_executable_do_not_count():
    buckets = buckets_of([(32, 32)] * 9 + [(8, 8)])
    assert buckets.worth_most({"a": 8, "b": 8}) == {"a": 32, "b": 32}
    assert buckets.worth_most({"a": 8, "b": 8}) == {"a": 8, "b": 8}


def test_batches_are_interpreted_in_no_known_bucket_until_it_pays():
    """A bucket that is not compiled would count among the few of a stream."""
    buckets = buckets_of([(20, 30), (12, 60), (60, 12), (30, 21)] * 9)
    assert len(buckets) == 0
    first = buckets.worth_most({"a": 12, "b": 60})
    while buckets.refine():
        pass
    assert 2 <= len(buckets) <= 9 and buckets.best({"a": 12, "b": 60}) is not None
    buckets.forget(first)
    assert first not in buckets.holding({"a": 12, "b": 60})


def test_a_short_last_batch_keeps_the_compiled_buckets(work, monkeypatch):
    """From the fourth batch on the number of rows varies, too: a symbol more, and traces of their own."""
    pays_at_once(monkeypatch)
    sizes = [(20, 17), (20, 9), (20, 30), (7, 19), (20, 25), (7, 11)]
    expected, _ = losses(False, sizes)
    work.clear()
    found, last = losses(True, sizes)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert len(last.symbols.names) == 2 and len(last.compiled) == 1
    assert work.count("compiled") <= 3  # the startup program, and a bucket for each number of rows
