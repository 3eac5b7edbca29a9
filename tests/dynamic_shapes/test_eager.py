"""Imperative steps whose arrays change shape."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import dygraph, layers
from jfluid.dygraph.lazy_graph import graph_on
from jfluid.initializer import NumpyArrayInitializer
from tests.dynamic_shapes.interpreted import interpreted
from tests.dynamic_shapes.test_placements import MOST, compilations

WIDTH = 8


@pytest.fixture(autouse=True)
def flag():
    yield
    fluid.set_flags({"FLAGS_dynamic_shapes": True})


def linear(random, rows, columns):
    weight = random.randn(rows, columns).astype("float32") * 0.3
    return dygraph.Linear(rows, columns, param_attr=NumpyArrayInitializer(weight))


def train(lengths, padded, dropout=0.0):
    """Losses and outputs of steps of attention over sentences of these lengths."""
    fluid.set_flags({"FLAGS_dynamic_shapes": padded})
    random, found = np.random.RandomState(0), []
    with dygraph.guard(fluid.CPUPlace()):
        table = random.randn(30, WIDTH).astype("float32")
        table = dygraph.Embedding([30, WIDTH], param_attr=NumpyArrayInitializer(table))
        parts = [linear(random, WIDTH, WIDTH) for _ in range(3)]
        out = linear(random, WIDTH, 30)
        parameters = [p for part in (table, *parts, out) for p in part.parameters()]
        optimizer = fluid.optimizer.Adam(0.01, parameter_list=parameters)
        for length in lengths:
            words = random.randint(0, 30, (3, length))
            x = table(dygraph.to_variable(words))
            query, key, value = (part(x) for part in parts)
            weights = layers.softmax(layers.matmul(query, key, transpose_y=True))
            x = layers.dropout(x + layers.matmul(weights, value), dropout)
            label = dygraph.to_variable(words[:, :, None])
            loss = layers.mean(layers.softmax_with_cross_entropy(out(x), label))
            loss.backward()
            optimizer.minimize(loss)
            for parameter in parameters:
                parameter.clear_gradient()
            found.append((loss.numpy(), x.numpy()))
    return found


LENGTHS = [7, 9, 12, 16]


def streams():
    (device,) = {fluid.CPUPlace().device()}
    return list(graph_on(device)._streams._streams.values())


@pytest.mark.nightly
def test_forty_lengths_take_a_dozen_compilations():
    lengths = np.random.RandomState(1).permutation(np.arange(5, 45)).tolist()
    with compilations() as compiled:
        found = train(lengths, True)
    assert len(compiled) <= MOST
    expected = interpreted(train, lengths, False)
    for (loss, x), (other, y) in zip(found, expected, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(loss, other, 1e-3)
        np.testing.assert_allclose(x, y, 2e-2, 2e-3)


def test_steps_of_every_length():
    found = train(LENGTHS, True)
    _, stream = streams()[-1]
    assert not stream._refused
    assert len(stream._exact) == 2
    expected = interpreted(train, LENGTHS, False)
    for (loss, x), (other, y) in zip(found, expected, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(loss, other, 1e-4)
        np.testing.assert_allclose(x, y, 1e-3, 1e-4)


def test_random_numbers_keep_their_distribution():
    train(LENGTHS[:3], True, dropout=0.5)
    with dygraph.guard(fluid.CPUPlace()):
        shares = []
        for length in (100, 120, 90, 110, 130):
            x = dygraph.to_variable(np.ones((length, 50), "float32"))
            for _ in range(4):
                x = layers.scale(x, 1.0)
            y = layers.dropout(x, 0.25, dropout_implementation="upscale_in_train")
            shares.append((y.numpy() == 0).mean())
            assert y.shape == [length, 50]
    assert all(abs(share - 0.25) < 0.03 for share in shares)


def test_attributes_that_follow_from_a_length_are_other_calls():
    fluid.set_flags({"FLAGS_dynamic_shapes": True})
    with dygraph.guard(fluid.CPUPlace()):
        for length in (4, 5, 6, 7, 9):
            x = dygraph.to_variable(np.arange(length * 6, dtype="float32").reshape(2, length, 3))
            y = layers.reshape(layers.scale(layers.scale(layers.scale(x, 2.0), 0.5), 3.0), [2, -1])
            z = layers.reshape(y, [length * 6])
            np.testing.assert_array_equal(z.numpy(), np.arange(length * 6) * 3.0)
