"""Functions of imperative mode that run as Programs, called with arguments of other shapes."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import dygraph, layers
from jfluid.dygraph import ProgramTranslator, declarative
from jfluid.dygraph.lazy_graph import graph_on
from jfluid.initializer import NumpyArrayInitializer
from tests.dynamic_shapes.interpreted import interpreted
from tests.dynamic_shapes.test_placements import MOST, compilations

LENGTHS = [7, 9, 12, 5]


@pytest.fixture(autouse=True)
def fresh():
    ProgramTranslator.reset()
    yield
    ProgramTranslator.reset()
    fluid.set_flags({"FLAGS_dynamic_shapes": True})


def weights(*shape):
    values = np.random.RandomState(len(shape)).randn(*shape).astype("float32") * 0.3
    return NumpyArrayInitializer(values)


class Net(dygraph.Layer):
    def __init__(self):
        super().__init__()
        self.inner = dygraph.Linear(4, 8, param_attr=weights(4, 8), act="tanh")
        self.outer = dygraph.Linear(8, 2, param_attr=weights(8, 2))

    @declarative
    def forward(self, x):
        hidden = self.inner(x)
        if layers.mean(x) > 100.0:
            hidden = hidden * 2.0
        hidden = layers.softmax(layers.matmul(hidden, hidden, transpose_y=True))
        return self.outer(layers.matmul(hidden, self.inner(x)))


def batches(lengths=LENGTHS):
    random = np.random.RandomState(0)
    return [random.randn(3, length, 4).astype("float32") for length in lengths]


def compiled():
    """How many steps were compiled for exact shapes, and for buckets."""
    pending = graph_on(fluid.CPUPlace().device())
    streams = [stream for _, stream in pending._streams._streams.values()]
    return pending.compiled, sum(len(t.executables) for s in streams for t in s._traces)


def trained(padded):
    fluid.set_flags({"FLAGS_dynamic_shapes": padded})
    losses = []
    with dygraph.guard(fluid.CPUPlace()):
        net = Net()
        optimizer = fluid.optimizer.SGD(0.1, parameter_list=net.parameters())
        for x in batches():
            loss = layers.mean(layers.square(net(dygraph.to_variable(x)) - 1.0))
            loss.backward()
            optimizer.minimize(loss)
            net.clear_gradients()
            losses.append(float(loss.numpy()[0]))
        return losses, [p.numpy() for p in net.parameters()]


def test_a_declared_layer_compiles_a_few_shapes():
    exact, padded = compiled()
    losses, parameters = trained(True)
    found_exact, found_padded = compiled()
    # first values, a first step, which makes a learning rate, and two shapes
    assert found_exact - exact <= 4
    assert 1 <= found_padded - padded <= 4
    expected, exactly = interpreted(trained, False)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for a, b in zip(parameters, exactly, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_declared_function_alone():
    @declarative
    def function(x):
        return layers.reduce_sum(layers.softmax(x) * x, dim=[1, 2])

    exact, padded = compiled()
    with dygraph.guard(fluid.CPUPlace()):
        for x in batches():
            value = np.exp(x - x.max(-1, keepdims=True))
            expected = (value / value.sum(-1, keepdims=True) * x).sum((1, 2))
            np.testing.assert_allclose(function(x).numpy(), expected, rtol=1e-4)
    found_exact, found_padded = compiled()
    assert found_exact - exact == 2 and 1 <= found_padded - padded <= 4


def test_forty_lengths_of_a_declared_function_take_a_dozen_compilations():
    @declarative
    def function(x):
        return layers.reduce_sum(layers.softmax(x) * x, dim=[1, 2])

    lengths = np.random.RandomState(1).permutation(np.arange(5, 45)).tolist()
    with dygraph.guard(fluid.CPUPlace()), compilations() as count:
        for x in batches(lengths):
            value = np.exp(x - x.max(-1, keepdims=True))
            expected = (value / value.sum(-1, keepdims=True) * x).sum((1, 2))
            np.testing.assert_allclose(function(x).numpy(), expected, rtol=1e-4)
    assert len(count) <= MOST


def test_a_number_that_follows_from_a_size_is_the_size_of_each_call():
    @declarative
    def function(x):
        if x.shape[1] > 10:
            x = x * 2.0
        return x * float(x.shape[1])

    with dygraph.guard(fluid.CPUPlace()):
        for x in batches():
            expected = x * x.shape[1] * (2.0 if x.shape[1] > 10 else 1.0)
            np.testing.assert_allclose(function(x).numpy(), expected, rtol=1e-5)
