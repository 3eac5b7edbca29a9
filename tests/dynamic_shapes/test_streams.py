"""Programs whose feeds change shape: what they compute, what is compiled, what is said."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.dynamic_shapes.dims import NoRule
from jfluid.compile.dynamic_shapes.feed_symbols import FeedSymbols, ranges, samples_between
from jfluid.compile.dynamic_shapes.interpreter import compare
from tests.dynamic_shapes.interpreted import interpreted

layers = fluid.layers


@pytest.fixture(autouse=True)
def flag():
    yield
    fluid.set_flags({"FLAGS_dynamic_shapes": True})


def stream_of(executor):
    """The stream of the program that an Executor compiled last."""
    *_, step = executor.engine._steps.values()
    return step.segments[-1].call


def train(build, feeds, padded):
    """Fetches of each step, parameters at the end, and the stream of the program."""
    fluid.set_flags({"FLAGS_dynamic_shapes": padded})
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    scope = fluid.Scope()
    with (
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(scope),
    ):
        fetches = build()
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        found = [executor.run(main, feed=feed, fetch_list=fetches) for feed in feeds]
        names = sorted(p.name for p in main.all_parameters())
        found.append([np.array(scope.find_var(name).get_tensor()) for name in names])
    return found, stream_of(executor) if padded else None


def same(build, feeds, rtol=5e-4, atol=1e-4, exact=2):
    """Hold padded training against exact shapes; returns the stream, which has compiled the first shapes as they are.

    Args:
        exact: number of these shapes. One more takes as long as all padded ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jfluid.compile.dynamic_shapes.stream.EXACT_FIRST", exact)
        found, stream = train(build, feeds, True)
    expected, _ = interpreted(train, build, feeds, False)
    for step, (values, others) in enumerate(zip(found, expected, strict=True)):
        for value, other in zip(values, others, strict=True):
            assert value.shape == other.shape
            np.testing.assert_allclose(value, other, rtol, atol, err_msg=f"step {step}")
    return stream


def rows(random, count):
    return {
        "x": random.randn(count, 6).astype("float32"),
        "y": random.randint(0, 3, (count, 1)),
    }


def classifier():
    x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 1], "int64")
    hidden = layers.batch_norm(layers.fc(x, 8, act="relu"))
    given = layers.softmax(layers.fc(hidden, 3))
    loss = layers.mean(layers.cross_entropy(given, y))
    best, order = layers.argsort(given, axis=0)
    values, _ = layers.topk(layers.transpose(given, [1, 0]), 1)
    fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0)).minimize(loss)
    return [
        loss,
        given,
        layers.accuracy(given, y),
        best,
        order,
        values,
        layers.argmax(given, 0),
        layers.cumsum(given, axis=0),
        layers.reduce_max(given, dim=0),
        layers.reverse(given, 0),
    ]


def test_batches_of_every_size():
    random = np.random.RandomState(0)
    stream = same(classifier, [rows(random, n) for n in [8, 9, 12, 5, 1, 31, 2, 1]])
    assert len(stream._exact) == 3  # a batch of one is compiled by itself
    assert not stream._refused
    print(stream._traces[-1].buckets._known)
    assert len(stream._traces[-1].buckets._known) <= 6


def attention():
    """A layer of attention over sentences, of which some words are looked up by their flat positions."""
    words, places = fluid.data("words", [None, None], "int64"), fluid.data("at", [None, 1], "int64")
    there = fluid.data("there", [None, None, 1])
    label = fluid.data("label", [None, 1], "int64")
    x = layers.layer_norm(fluid.embedding(words, [40, 8]), begin_norm_axis=2)
    bias = layers.scale(layers.matmul(there, there, transpose_y=True), 1e4, bias=-1.0, bias_after_scale=False)
    bias = layers.stack([bias, bias], axis=1)
    bias.stop_gradient = True

    def heads(value):
        return layers.transpose(layers.reshape(value, [0, 0, 2, 4]), [0, 2, 1, 3])

    q, k, v = (heads(layers.fc(x, 8, num_flatten_dims=2, bias_attr=False)) for _ in range(3))
    weights = layers.softmax(layers.matmul(q, k, transpose_y=True, alpha=0.5) + bias)
    out = layers.transpose(layers.matmul(weights, v), [0, 2, 1, 3])
    x = x + layers.fc(layers.reshape(out, [0, 0, 8]), 8, num_flatten_dims=2)
    first = layers.fc(layers.slice(x, [1], [0], [1]), 4, act="tanh", num_flatten_dims=2)
    last = layers.slice(x, [1], [-1], [1000])
    picked = layers.gather(layers.reshape(x, [-1, 8]), places)
    costs = layers.softmax_with_cross_entropy(layers.fc(picked, 40), label)
    loss = layers.mean(costs) + layers.mean(first) + layers.mean(last)
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, x, picked, last]


def sentences(random, count, length, picked):
    return {
        "words": random.randint(0, 40, (count, length)),
        "at": random.randint(0, count * length, (picked, 1)),
        "there": (random.rand(count, length, 1) > 0.2).astype("float32"),
        "label": random.randint(0, 40, (picked, 1)),
    }


def test_sentences_of_every_length():
    random = np.random.RandomState(0)
    sizes = [(4, 20, 7), (5, 12, 5)]
    stream = same(attention, [sentences(random, *size) for size in sizes], exact=1)
    assert len(stream._exact) == 1
    assert not stream._refused


def test_tables_that_kernels_read():
    """With 256 ids and more, machine code looks rows up, whose calls have sizes in them."""

    def build():
        words = fluid.data("words", [None, None], "int64")
        x = layers.reduce_mean(fluid.embedding(words, [50, 8]), dim=1)
        loss = layers.mean(layers.square(layers.fc(x, 3)))
        fluid.optimizer.SGD(0.5).minimize(loss)
        return [loss, x]

    random = np.random.RandomState(0)
    sizes = [(8, 34), (8, 68), (9, 97)]
    stream = same(build, [{"words": random.randint(0, 50, size)} for size in sizes])
    assert not stream._refused


def test_dropout_keeps_its_distribution_and_its_scale():
    def build():
        x = fluid.data("x", [None, 200])
        return [layers.dropout(x, 0.25, dropout_implementation="upscale_in_train")]

    feeds = [{"x": np.ones((n, 200), "float32")} for n in (50, 40, 47, 33, 49)]
    found, stream = train(build, feeds, True)
    assert len(stream._exact) == 2
    for (value,) in found[:5]:
        assert set(np.unique(value.round(5))) == {np.float32(0), np.float32(1.33333)}
        assert abs((value == 0).mean() - 0.25) < 0.03
    assert not np.array_equal(found[2][0][:33], found[3][0][:33])


def test_sizes_that_data_does_not_keep():
    """Sizes that a program declares with layers.data, and batches do not have."""

    def build():
        x = layers.data("x", [10, 4])
        return [layers.reduce_sum(layers.fc(x, 3, num_flatten_dims=2), dim=[0, 1])]

    random = np.random.RandomState(0)
    feeds = [{"x": random.randn(2, n, 4).astype("float32")} for n in (10, 7, 13, 9, 14, 8)]
    assert len(same(build, feeds)._exact) == 2


def images(random, height, width):
    return {"image": random.randn(2, 3, height, width).astype("float32")}


def detector():
    """A net of windows with strides, whose coarse features are enlarged beside finer ones."""
    image = fluid.data("image", [None, 3, None, None])
    image.stop_gradient = False
    fine = layers.batch_norm(layers.conv2d(image, 4, 3, 2, 1), act="relu")
    coarse = layers.pool2d(layers.conv2d(fine, 4, 3, 1, 1), 2, "max", 2)
    both = layers.concat([layers.resize_nearest(coarse, scale=2.0), fine], axis=1)
    out = layers.conv2d(both, 5, 1)
    loss = layers.reduce_mean(layers.square(out))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss, out, "image@GRAD"]


def test_images_whose_height_and_width_vary():
    random = np.random.RandomState(0)
    sizes = [(16, 24), (24, 40)]
    stream = same(detector, [images(random, *size) for size in sizes], exact=1)
    assert len(stream._exact) == 1
    assert not stream._refused


def test_strides_do_not_divide_the_sizes_of_samples_down_to_one():
    """A map of one pixel is broadcast: the lowest sample has the operations of one size alone."""
    symbols = FeedSymbols.of([((n, 3, size, size),) for n, size in [(64, 160), (16, 352), (48, 416), (32, 192)]])
    lowest = {name: samples_between(symbols, *next(ranges(symbols)))[name][0] for name in symbols.names}
    assert lowest == {"n0": 16, "n1": 64}  # the first one is the number of images


def test_sums_over_other_dimensions_are_other_operations():
    """The gradient of an array that is broadcast sums over no dimension of size 1."""

    def trace(size):
        gradient = jax.grad(lambda y: jnp.sum(jnp.sin(np.ones((3, size), np.float32) * y[:, None])))
        return jax.make_jaxpr(gradient)(np.ones(3, np.float32)).jaxpr

    compare(trace(2), trace(5))
    with pytest.raises(NoRule, match="other operations"):
        compare(trace(1), trace(5))


def boxes_of_two_scales():
    """A head of YOLOv3 on a map that joins two scales."""
    image, truths = fluid.data("image", [None, 3, None, None]), 3
    box, label = fluid.data("box", [None, truths, 4]), fluid.data("label", [None, truths], "int32")
    small = layers.conv2d(layers.conv2d(image, 4, 3, 2, 1), 4, 3, 2, 1)
    x = layers.concat(
        [layers.resize_nearest(small, scale=2.0, align_corners=False), layers.conv2d(image, 4, 3, 2, 1)], 1
    )
    found = layers.conv2d(x, 2 * (5 + 3), 1)
    losses = layers.yolov3_loss(found, box, label, [4, 6, 9, 7, 20, 30], [0, 1], 3, 0.7, 2)
    fluid.optimizer.SGD(1e-3).minimize(layers.reduce_mean(losses))
    return [losses]


@pytest.mark.nightly  # before each change `test_images_whose_height_and_width_vary` has such layers, without this loss
def test_detection_in_images_of_every_size():
    random = np.random.RandomState(0)

    def feed(count, size):
        boxes = np.concatenate([random.rand(count, 3, 2), 0.05 + 0.4 * random.rand(count, 3, 2)], -1)
        return {
            "image": random.rand(count, 3, size, size).astype("float32"),
            "box": boxes.astype("float32"),
            "label": random.randint(0, 3, (count, 3)).astype("int32"),
        }

    stream = same(boxes_of_two_scales, [feed(2, size) for size in [32, 48]], atol=1e-3, exact=1)
    assert len(stream._exact) == 1 and not stream._refused


def test_a_threshold_of_the_program_is_kept():
    """A slice that is longer than some batches, and not than others."""

    def build():
        x = fluid.data("x", [None, 4])
        return [layers.reduce_sum(layers.slice(x, [0], [0], [10]), dim=0)]

    random = np.random.RandomState(0)
    feeds = [{"x": random.randn(n, 4).astype("float32")} for n in (30, 24, 21, 7, 28, 5, 9, 12, 8, 40)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        same(build, feeds)


def test_an_operator_without_a_rule_is_named_with_its_line():
    def build():
        x = fluid.data("x", [None, 4, 6, 6])
        y = fluid.data("size", [None, None])
        return [layers.resize_bilinear(x, out_shape=[9, 9]), layers.reduce_sum(y)]

    random = np.random.RandomState(0)

    def feed(n):
        return {
            "x": random.randn(2, 4, n, n).astype("float32"),
            "size": np.ones((n, n), "float32"),
        }

    def unchecked():
        fetches = build()
        fluid.default_main_program().global_block().var("x").need_check_feed = False
        return fetches

    with pytest.warns(RuntimeWarning, match=r"bilinear_interp, made at .*test_streams"):
        found, stream = train(unchecked, [feed(n) for n in (6, 8, 9, 11)], True)
    assert not stream._refused  # of the sum, behind the operator
    assert found[3][0].shape == (2, 4, 9, 9)


def test_evaluation_between_training_steps():
    random = np.random.RandomState(0)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        loss, given, *_ = classifier()
        test = main.clone(for_test=True)
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        for n in (8, 9, 12, 5):
            feed = rows(random, n)
            (before,) = executor.run(test, feed=feed, fetch_list=[given.name])
            assert before.shape == (n, 3)
            np.testing.assert_allclose(before.sum(1), 1, 1e-5)
            (value,) = executor.run(main, feed=feed, fetch_list=[loss])
            assert np.isfinite(value).all()


@pytest.mark.parametrize("bias", [False, True])
def test_windows_give_sizes_of_their_own(bias):
    def convolved():
        x = fluid.data("x", [2, 3, None, 4])
        own = None if bias else False
        hidden = layers.conv2d(x, 4, (3, 1), stride=(2, 1), bias_attr=own, act="tanh")
        fluid.optimizer.SGD(0.1).minimize(layers.mean(hidden))
        return [hidden]

    random = np.random.RandomState(0)
    lengths = (9, 14, 21, 17)
    feeds = [{"x": random.randn(2, 3, n, 4).astype("float32")} for n in lengths]
    stream = same(convolved, feeds)
    # Of samples that XLA does not take for the gradient of the bias there are others.
    assert stream._traces and len(stream._exact) == 2
    assert bias or not stream._refused
