"""Gradients of eager variables where operators are alike."""

import numpy as np
import pytest

import jfluid as fluid

pytestmark = pytest.mark.usefixtures("interpreted_steps")


def test_operators_that_differ_in_attributes_alone_keep_their_gradients_apart():
    """The walk back meets the parts of x in the order in which they were cut out, too."""
    with fluid.dygraph.guard():
        x = fluid.dygraph.to_variable(np.zeros((1, 3, 1), "float32"))
        x.stop_gradient = False
        y = x * 1.0
        state = y[:, 0] * 0.1
        state = y[:, 1] + state * 0.5
        state = y[:, 2] + state * 0.5
        fluid.layers.reduce_sum(state).backward()
        np.testing.assert_allclose(x.gradient().ravel(), [0.025, 0.5, 1.0], rtol=1e-6)


def test_gradients_flow_where_programs_stop_them():
    layers, weights = fluid.layers, np.array([[1.0, 2.0, 3.0]], "float32")
    for layer, expected in (
        (lambda x: layers.argsort(x)[0], [[3.0, 1.0, 2.0]]),
        (lambda x: layers.label_smooth(x, epsilon=0.5), weights / 2),
    ):
        with fluid.dygraph.guard():
            x = fluid.dygraph.to_variable(np.array([[0.9, 0.1, 0.5]], "float32"))
            x.stop_gradient = False
            layers.reduce_sum(layer(x) * fluid.dygraph.to_variable(weights)).backward()
            np.testing.assert_allclose(x.gradient(), expected, rtol=1e-6)
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            x = fluid.data("x", [1, 3])
            x.stop_gradient = False
            assert fluid.gradients(layers.reduce_sum(layer(x * 2.0)), x) == [None]
