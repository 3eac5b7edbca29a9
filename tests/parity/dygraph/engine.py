"""The engine that the programs of this package run on, and what they share."""

import collections
import importlib
import os

import numpy as np

fluid = importlib.import_module(os.environ.get("FLUID", "jfluid"))
layers, dygraph = fluid.layers, fluid.dygraph

# layers, optimizers: by name. step(r): trains on a batch drawn from r and returns the losses.
Case = collections.namedtuple("Case", "layers optimizers step")


def variables(*arrays):
    return [dygraph.to_variable(np.asarray(array)) for array in arrays]


def floats(r, *shape):
    return r.randn(*shape).astype("float32")


def integers(r, below, *shape):
    return r.randint(0, below, shape).astype("int64")


def minimized(loss, optimizer):
    """Train on the loss, and return it."""
    loss.backward()
    optimizer.minimize(loss)
    optimizer.clear_gradients()
    return loss
