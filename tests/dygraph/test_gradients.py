"""Gradients of eager variables where operators are alike."""

import numpy as np

import jfluid as fluid


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
