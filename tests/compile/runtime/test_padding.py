"""Buckets: padding never leaks, streams of different lengths compile few times, and what does not
support padding says so.
"""

import sys
import warnings

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.compile.runtime import padding
from jfluid.lod_tensor import LoDTensor, LoDTensorArray
from jfluid.ops import registry
from jfluid.parallel.replica_feeds import Stacker
from tests.parity.programs import set_parameters
from tests.parity.ragged import PROGRAMS
from tests.slow_tests import nightly_but


def _everything(build):
    """Names to fetch of a program: its loss, gradients of parameters, metrics, and all rows in
    sequences.
    """
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = build(fluid)
    block, names = main.global_block(), {loss.name: None}
    for op in block.ops:
        definition = registry.get(op.type)
        if definition.forward is not None:
            continue
        metric = op.type in ("accuracy", "auc", "chunk_eval")
        for slot in definition.outs:
            for name in op.output(slot.name):
                var = block.var(name)
                if not slot.intermediate and not var.persistable and (metric or var.lod_level):
                    names[name] = None
    names |= {p.name + "@GRAD": None for p in main.all_parameters() if block.has_var(p.name + "@GRAD")}
    return main, startup, feed, list(names)


def _run(build):
    main, startup, feed, names = _everything(build)
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        set_parameters(fluid, main, scope)
        return names, exe.run(main, feed=feed(np.random.RandomState(3)), fetch_list=names, return_numpy=False)


@pytest.mark.parametrize(
    "build",
    # one step shows nothing of an optimizer: its state is not fetched
    nightly_but(
        ("ctr_ragged", "documents"),
        [b for b in PROGRAMS if not b.__name__.startswith(("word2vec", "ctr_ragged_"))],
    ),
    ids=lambda b: b.__name__,
)
def test_padding_never_leaks(build, monkeypatch):
    rounded = padding.ladder
    names, small = _run(build)
    monkeypatch.setattr(padding, "ladder", lambda n, rungs=4: 2 * rounded(n, rungs) + 5)
    _, large = _run(build)
    for name, a, b in zip(names, small, large):
        if isinstance(a, LoDTensorArray):
            continue
        if isinstance(a, LoDTensor):
            assert a.lod() == b.lod(), name
        np.testing.assert_allclose(np.array(b), np.array(a), rtol=2e-5, atol=1e-6, err_msg=name)


def _batches(count, batch=32, low=20, high=120):
    rng = np.random.RandomState(0)
    for _ in range(count):
        lengths = rng.randint(low, high, batch)
        yield fluid.create_lod_tensor(rng.randint(0, 50, (lengths.sum(), 1)), [lengths.tolist()], fluid.CPUPlace())


def test_a_stream_of_lengths_compiles_a_handful_of_times():
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    hidden, _ = layers.dynamic_lstm(layers.fc(layers.embedding(words, [50, 4]), 8), 8)
    loss = layers.mean(layers.sequence_pool(hidden, "max"))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    real, padded = 0, 0
    for words in _batches(60):
        exe.run(feed={"words": words}, fetch_list=[loss])
        step = next(reversed(exe.engine._steps.values()))
        real += len(words)
        padded += step.placement._buckets.pad({"words": words})["words"].capacity
    assert 1 < step.segments[0].exact.plain.count() <= 8
    assert padded <= 1.3 * real


def test_many_ragged_feeds_do_not_multiply_the_compilations():
    rng, sizes = np.random.RandomState(0), padding.SequenceBuckets()
    seen = set()
    for _ in range(300):
        feeds = {}
        for slot in range(20):
            lengths = rng.randint(0, 30, 64)
            feeds[f"slot_{slot}"] = fluid.create_lod_tensor(
                np.zeros((lengths.sum(), 1), "int64"), [lengths.tolist()], None
            )
        found = sizes.pad(feeds)
        seen.add(tuple((v.capacity, v.last.longest) for v in found.values()))
    assert len(seen) <= 8


def _feed(*lengths):
    """Slots of ids whose sequences have these lengths."""
    return {
        str(i): fluid.create_lod_tensor(np.arange(sum(own))[:, None], [own], fluid.CPUPlace())
        for i, own in enumerate(lengths)
    }


@pytest.mark.parametrize("replicas, most", ((1, 88), (2, 200)))
def test_a_batch_is_padded_in_few_calls(replicas, most):
    """Every step pads its batch, and behind a step of XLA each call's code comes from memory."""
    feed = _feed([3, 5, 2, 6, 4, 8, 7, 5], [3, 5, 2, 6, 4, 8, 4, 5])
    buckets, stacker, calls = padding.SequenceBuckets(), Stacker(), []

    def work():
        return buckets.pad(feed) if replicas == 1 else stacker.divided(feed, replicas)

    work()
    sys.setprofile(lambda frame, event, _: calls.append(event))
    try:
        work()
    finally:
        sys.setprofile(None)
    assert 0 < sum(event in ("call", "c_call") for event in calls) <= most


def test_the_size_with_the_fewest_rows_is_taken():
    buckets = padding.SequenceBuckets()
    for rows in (100, 10, 40):
        buckets.pad(_feed([1, rows - 1]))
    assert buckets.pad(_feed([1, 37]))["0"].capacity == 40
    assert buckets.pad(_feed([2, 7]))["0"].capacity == 10


def test_sequences_of_one_length_are_not_padded():
    tensor = fluid.create_lod_tensor(np.zeros((24, 1), "int64"), [[3] * 8], None)
    found = padding.SequenceBuckets().pad({"x": tensor})["x"]
    assert found.exact and found.capacity == 24 and found.last.uniform == 8


@pytest.mark.parametrize("n", [1, 8, 9, 63, 64, 65, 1000, 2049])
def test_ladder(n):
    size = padding.ladder(n)
    assert n <= size <= max(1.34 * n, 8) and padding.ladder(size) == size


def test_what_does_not_bear_padding_says_so_once():
    x = layers.data("x", [2], lod_level=1)
    turned = layers.reverse(x, axis=0)  # the last row first
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.warns(RuntimeWarning, match="compiled anew for each batch of other lengths.*operator reverse") as seen:
        for n in (3, 5, 6):
            rows = np.arange(2.0 * n, dtype="float32").reshape(n, 2)
            feed = {"x": fluid.create_lod_tensor(rows, [[1, n - 1]], None)}
            (found,) = exe.run(feed=feed, fetch_list=[turned], return_numpy=False)
            np.testing.assert_array_equal(np.array(found), rows[::-1])
    assert len(seen) == 1


def test_a_gradient_that_is_fed_has_no_padding():
    x = layers.data("x", [2], lod_level=1)
    weight = layers.create_parameter(
        [2, 2], "float32", attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    )
    (grad,) = fluid.gradients(layers.mul(x, weight), [weight])
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(np.ones((3, 2), "float32"), [[1, 2]], None)}
    np.testing.assert_array_equal(exe.run(feed=feed, fetch_list=[grad])[0], np.full((2, 2), 3))


def test_rows_that_do_not_fit_together():
    x, y = layers.data("x", [2], lod_level=1), layers.data("y", [2], lod_level=1)
    total = layers.elementwise_add(x, y)
    feed = {
        n: fluid.create_lod_tensor(np.ones((rows, 2), "float32"), [[rows]], None) for n, rows in (("x", 30), ("y", 9))
    }
    with (
        warnings.catch_warnings(),
        pytest.raises(errors.ShapeError, match="inputs of different numbers of rows"),
    ):
        warnings.simplefilter("ignore")
        fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[total])


def test_a_sequence_operator_needs_sequences():
    x = layers.data("x", [2], lod_level=1)
    pooled = layers.sequence_pool(x, "sum")
    with pytest.raises(errors.OpError, match="X needs a LoD of 1 level, found none.*create_lod_tensor"):
        fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones((3, 2), "float32")}, fetch_list=[pooled])
