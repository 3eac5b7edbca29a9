"""Training of the programs: the same on every engine."""

import os
import zlib

import numpy as np

from tests.parity.dygraph import images, policy, text
from tests.parity.dygraph.engine import dygraph, fluid

# State that stays at zero where sums of equal numbers cancel to the last bit: Adam makes steps of its whole rate of
# what rounding leaves.
CANCELS = ("critic.out.bias",)
PROGRAMS = images.PROGRAMS + text.PROGRAMS + policy.PROGRAMS
STEPS, SAVED_AT = 10, 5


def eager(layer):
    return layer


def declared(layer):
    """The layer with a forward that is translated to a Program."""
    forward = dygraph.declarative(layer.forward)
    return type(layer.__name__, (layer,), {"forward": forward})


def set_parameters(layer):
    """Give the parameters values that depend on their places alone."""
    for name, parameter in layer.state_dict().items():
        shape = parameter.shape
        if len(shape) > 1:
            r = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
            fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
            value = r.randn(*shape) * (1.0 / fan_in) ** 0.5
            parameter.set_value(value.astype("float32"))


def losses(case, steps):
    """Of the steps of these numbers, one row each."""
    found = []
    for number in steps:
        values = case.step(np.random.RandomState(number))
        found.append([float(np.ravel(value.numpy())[0]) for value in values])
    return found


def norms(case):
    """Of all that a case keeps from step to step."""
    found = {}
    for name in sorted(case.layers):
        for key, value in case.layers[name].state_dict().items():
            found["%s.%s" % (name, key)] = value
    for name in sorted(case.optimizers):
        for key, value in case.optimizers[name].state_dict().items():
            if key != "LR_Scheduler":
                found["%s.%s" % (name, key)] = value
    return {name: float("%.7g" % np.linalg.norm(value.numpy().astype("float64"))) for name, value in found.items()}


def save(case, folder):
    for name, layer in case.layers.items():
        dygraph.save_dygraph(layer.state_dict(), os.path.join(folder, name))
        state = case.optimizers[name].state_dict()
        if state:
            dygraph.save_dygraph(state, os.path.join(folder, name))


def load(case, folder):
    for name, layer in case.layers.items():
        parameters, state = dygraph.load_dygraph(os.path.join(folder, name))
        layer.set_dict(parameters)
        if state:
            case.optimizers[name].set_dict(state)


def train(build, of=eager, folder=None, place=None):
    """Train from parameters that depend on their names alone: (losses by step, norms of the state).

    With a folder, what is there halfway is saved in it. The place is the CPU unless another one is given.
    """
    with dygraph.guard(place or fluid.CPUPlace()):
        case = build(of)
        for layer in case.layers.values():
            set_parameters(layer)
        found = losses(case, range(SAVED_AT))
        if folder:
            save(case, folder)
        return found + losses(case, range(SAVED_AT, STEPS)), norms(case)


def resume(build, folder, of=eager):
    """Train on from what was saved halfway: (losses of the second half, norms of the state)."""
    with dygraph.guard(fluid.CPUPlace()):
        case = build(of)
        load(case, folder)
        return losses(case, range(SAVED_AT, STEPS)), norms(case)
