"""Values and sizes at the edges, as `docs/cpu_kernels.md` says of each kernel: NaN, infinities, sizes of 0 and 1, and
rows that do not begin at the boundary of a vector. XLA computes the same, kernels turned off.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.machine_code import kernel_registry
from tests.machine_code.test_both_ways import L, array, called, data, hold_each, watched

__all__ = ["watched"]  # a fixture
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NaN
VALUES = ["plain", "nan", "inf", "huge", "tiny", "zero"]


def needs(group):
    return pytest.mark.skipif(not kernel_registry.supports(group), reason=f"the processor has no {group} kernels")


def hold(net, feed, group, calls=True):
    """Hold a step with kernels against the step without; the group has been called or not."""
    hold_all(net, {"plain": feed}, group, calls)


def hold_all(net, feeds, group, calls=True):
    """Hold a step with feeds by the kind of their values."""
    called.clear()
    hold_each(net, feeds)
    assert any(name.startswith(f"jfluid_{group}_") or name == f"jfluid_{group}" for name in called) == calls


@needs("convolution")
def test_values_in_images():
    images = {kind: array(np.random.RandomState(1), (3, 3, 12, 17), kind) for kind in VALUES}

    def net():
        y = L.conv2d(data("x", images["plain"]), 17, 3, padding=1, bias_attr=False)
        return [L.conv2d(y, 16, 3, bias_attr=False), y]

    hold_all(net, {kind: {"x": x} for kind, x in images.items()}, "convolution")


@needs("convolution")
@pytest.mark.parametrize(
    ("shape", "filters", "kernel", "calls"),
    [
        ((1, 1, 1, 16), 16, 1, True),
        ((1, 1, 3, 19), 16, (3, 1), True),
        ((1, 16, 8, 8), 17, 1, True),
        ((2, 5, 9, 23), 33, (2, 5), True),
        ((0, 3, 12, 16), 16, 3, False),
        ((1, 3, 12, 1), 16, (3, 1), False),
    ],
    ids=["ones", "one row", "few columns", "unaligned", "no image", "one column"],
)
def test_sizes_of_images(shape, filters, kernel, calls):
    x = array(np.random.RandomState(2), shape, "plain")
    hold(lambda: [L.conv2d(data("x", x), filters, kernel, bias_attr=False)], {"x": x}, "convolution", calls)


def loop(group, lengths, width, kind="plain"):
    """The step of an LSTM or a GRU over sequences, and the feed."""
    count = {"lstm": 4, "gru": 3}[group]
    rows = array(np.random.RandomState(3), (sum(lengths), count * width), kind)
    feed = {"x": fluid.create_lod_tensor(rows, [list(lengths)], fluid.CPUPlace())}

    def net():
        x = fluid.data("x", [None, count * width], lod_level=1)
        y = L.dynamic_lstm(x, 4 * width)[0] if group == "lstm" else L.dynamic_gru(x, width)
        return [L.sequence_pool(y, "sum"), y]

    return net, feed


@pytest.mark.parametrize("group", [pytest.param(name, marks=needs(name)) for name in ("lstm", "gru")])
def test_values_in_sequences(group):
    net, _ = loop(group, (5, 0, 1, 9), 16)
    hold_all(net, {kind: loop(group, (5, 0, 1, 9), 16, kind)[1] for kind in VALUES}, group)


SEQUENCES = {
    "one row": ((1,), 16, True),
    "empty sequences": ((0, 1, 0), 16, True),
    "several vectors": ((3, 2, 1), 80, True),
    "unaligned": ((2, 3), 17, False),
    "one number": ((2, 3), 1, False),
}


@pytest.mark.parametrize(
    ("group", "lengths", "width", "calls"),
    [  # both loops choose their sequences by the same rules, so at night the other loop of each
        pytest.param(
            group, *own, marks=[needs(group), *[pytest.mark.nightly] * (at % 2 == is_gru)], id=f"{name}-{group}"
        )
        for at, (name, own) in enumerate(SEQUENCES.items())
        for is_gru, group in enumerate(("gru", "lstm"))
    ],
)
def test_sizes_of_sequences(group, lengths, width, calls):
    hold(*loop(group, lengths, width), group, calls)


def product(rows, depth, columns, kind="plain"):
    """The step of a layer, and the feed."""
    x = array(np.random.RandomState(4), (rows, depth), kind)
    return lambda: [L.fc(data("x", x), columns, act="tanh")], {"x": x}


@needs("product")
def test_values_in_products():
    net, _ = product(57, 300, 65)
    hold_all(net, {kind: product(57, 300, 65, kind)[1] for kind in VALUES}, "product")


@needs("product")
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "calls"),
    [
        (14, 600, 37, True),
        (57, 301, 35, True),
        (4100, 70, 1, True),
        (4100, 1, 70, True),
        (0, 300, 64, False),
        (1, 5000, 64, False),
    ],
    ids=["one tile", "unaligned", "one column", "one product", "no row", "one row"],
)
def test_sizes_of_products(rows, depth, columns, calls):
    hold(*product(rows, depth, columns), "product", calls)


def rows_of(count, height, width, kind="plain"):
    """The step of a sparse table that some ids are outside of, and the feed."""
    random = np.random.RandomState(5)
    ids = random.randint(-1, height + 1, (count, 1)).astype("int64")
    values = array(random, (height, width), kind)
    start = fluid.initializer.NumpyArrayInitializer(values)

    def net():
        own = fluid.ParamAttr("table", initializer=start)
        return [L.embedding(fluid.data("ids", [None, 1], "int64"), [height, width], is_sparse=True, param_attr=own)]

    return net, {"ids": ids}


@needs("row")
@pytest.mark.parametrize("kind", ["nan", "inf", "huge"])  # a table is a parameter, so each kind is a program
def test_values_in_tables(kind):
    net, feed = rows_of(600, 40, 19, kind)
    hold_all(net, {kind: feed}, "row")


@needs("row")
@pytest.mark.parametrize(
    ("count", "height", "width", "calls"),
    [(300, 1, 1, True), (300, 7, 16, True), (300, 7, 17, True), (1, 7, 16, False), (0, 7, 16, False)],
    ids=["one number", "a vector", "unaligned", "one id", "no id"],
)
def test_sizes_of_tables(count, height, width, calls):
    hold(*rows_of(count, height, width), "row", calls)
