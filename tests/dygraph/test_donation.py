"""A step's results are written over what they replace, and nothing is copied for that."""

import re

import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.lowering import update_dependencies
from jfluid.dygraph import compiled_trace, donation, lazy_graph


def test_results_stand_where_the_inputs_that_they_replace_stand():
    given = [("weight", 7), ("bias", 3), ("moment", 7)]
    made = [("loss", 1), ("moment'", 7), ("bias'", 3), ("weight'", 7)]
    replaced = {"weight": "weight'", "bias": "bias'", "moment": "moment'"}
    assert donation.match_outputs(given, made, replaced) == [3, 2, 1, 0]


def test_an_input_that_nothing_replaces_leaves_the_others_their_places():
    given = [("batch", 7), ("weight", 7)]
    made = [("weight'", 7), ("hidden", 7), ("weight''", 3)]
    order = donation.match_outputs(given, made, {"weight": "weight'"})
    assert order == [1, 0, 2]  # the batch's memory is for what replaces nothing
    # one that is replaced by another kind, and two that the same result replaces
    assert donation.match_outputs(given, made, {"weight": "weight''"}) == [0, 1, 2]
    assert donation.match_outputs(given, made, {"batch": "hidden", "weight": "hidden"}) == [1, 0, 2]


class _Net(fluid.dygraph.Layer):
    """Layers of one shape, which the optimizer updates in the order of their names: 10 before 2."""

    def __init__(self):
        super().__init__()
        layers = [fluid.dygraph.Linear(12, 12, act="tanh") for _ in range(11)]
        self.layers = fluid.dygraph.Sequential(*layers)

    def forward(self, x):
        return fluid.layers.mean(fluid.layers.square(self.layers(x)))


def _steps(optimizer, reads_loss):
    """The compiled texts of a training loop, and its losses."""
    compiled = []
    jitted = compiled_trace.jitted

    class Noted:
        def __init__(self, *arguments, **wishes):
            self._made = jitted(*arguments, **wishes)

        def trace(self, *arguments):
            traced = self._made.trace(*arguments)
            compiled.append(traced.lower().compile().as_text())
            return traced

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiled_trace, "jitted", Noted)
        patched.setattr(lazy_graph, "_graphs", {})  # nothing is compiled yet
        losses = _losses(optimizer, reads_loss)
        return compiled, losses


def _losses(optimizer, reads_loss):
    with fluid.dygraph.guard(fluid.CPUPlace()):
        fluid.default_main_program().random_seed = 5
        net = _Net()
        minimizer = optimizer(net.parameters())
        x = np.random.RandomState(0).randn(4, 12).astype("float32")
        losses = []
        for _ in range(4):
            loss = net(fluid.dygraph.to_variable(x))
            loss.backward()
            minimizer.minimize(loss)
            net.clear_gradients()
            if reads_loss:
                losses.append(loss.numpy())
        losses.append(loss.numpy())
        return losses


def _copies(texts):
    """The shapes of matrices that programs copy."""
    return [
        shape
        for text in texts
        for shape in re.findall(r"= (\w+\[[\d,]+\])\S* copy\(", text[text.index("\nENTRY") :])
        if "," in shape
    ]


@pytest.mark.parametrize("reads_loss", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_no_parameter_is_copied(reads_loss, monkeypatch):
    def momentum(parameters):
        return fluid.optimizer.Momentum(0.1, 0.9, parameter_list=parameters)

    texts, losses = _steps(momentum, reads_loss)
    assert not _copies(texts)
    for module, name, other in (
        (donation, "match_outputs", lambda given, made, _: list(range(len(made)))),
        (update_dependencies, "awaited", lambda items: {}),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, other)
            texts, expected = _steps(momentum, reads_loss)
        assert _copies(texts)  # otherwise XLA has learned it, and this can go
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
