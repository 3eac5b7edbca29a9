"""Operators that repeat are traced once, and nothing else changes by that."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime.specialize import Specialized
from jfluid.ops import ragged_dispatch, repeated


@pytest.fixture
def traced(monkeypatch):
    """Returns the types of operators whose functions were called since it was called last."""
    calls = []
    call = ragged_dispatch.call

    def counted(definition, inputs, kwargs):
        calls.append(definition.type)
        return call(definition, inputs, kwargs)

    monkeypatch.setattr(ragged_dispatch, "call", counted)

    def since():
        found, calls[:] = list(calls), []
        return found

    return since


def _layers(count=6):
    hidden = fluid.data("x", [4, 8])
    for _ in range(count):
        hidden = fluid.layers.fc(hidden, 8, act="tanh")
    loss = fluid.layers.mean(hidden)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return loss


def _text(feeds, monkeypatch):
    """What the program's step is for XLA, by a new executor."""
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    texts = []
    with monkeypatch.context() as patch:
        call = Specialized.__call__

        def kept(self, *arguments):
            texts.append(self.lower(*arguments).as_text())
            return call(self, *arguments)

        patch.setattr(Specialized, "__call__", kept)
        exe.run(feed=feeds)
    (text,) = texts
    return text


def test_operators_of_equal_layers_are_traced_once(traced):
    _layers()
    traced()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    traced()
    exe.run(feed={"x": np.ones((4, 8), "float32")})
    found = traced()
    # the first layer's input needs no gradient
    assert {t: found.count(t) for t in ("mul", "tanh")} == {"mul": 2, "tanh": 1}
    assert found.count("momentum") == 2  # of weights, and of biases


def test_the_program_is_the_same(monkeypatch):
    _layers()
    feeds = {"x": np.ones((4, 8), "float32")}
    once = _text(feeds, monkeypatch)
    assert once.count("stablehlo.tanh") == 6
    monkeypatch.setattr(repeated.Repeated, "_key", lambda self, *given: None)
    assert _text(feeds, monkeypatch) == once


def test_attributes_and_shapes_tell_operators_apart(traced):
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [2, 4])
    outs = [fluid.layers.scale(v, s) for s in (2.0, 3.0) for v in (x, y, x)]
    outs += [fluid.layers.scale(x, float(s)) for s in (1, True)]
    feeds = {"x": np.ones((2, 3), "float32"), "y": np.ones((2, 4), "float32")}
    traced()
    found = fluid.Executor(fluid.CPUPlace()).run(feed=feeds, fetch_list=outs)
    assert [v[0, 0] for v in found] == [2, 2, 2, 3, 3, 3, 1, 1]
    assert [v.shape[1] for v in found] == [3, 4, 3, 3, 4, 3, 3, 3]
    assert traced().count("scale") == 5


def test_random_operators_draw_for_themselves():
    x = fluid.data("x", [64])
    drawn = [fluid.layers.dropout(x, 0.5) for _ in range(3)]
    found = fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones(64, "float32")}, fetch_list=drawn)
    assert len({v.tobytes() for v in found}) == 3


def test_what_is_known_stays_known():
    x = fluid.data("x", [2, 6])
    shapes = [fluid.layers.shape(v) for v in (x, fluid.layers.relu(x))]
    outs = [fluid.layers.reshape(x, [fluid.layers.slice(s, [0], [1], [2]), -1]) for s in shapes]
    found = fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones((2, 6), "float32")}, fetch_list=outs)
    assert [v.shape for v in found] == [(6, 2), (6, 2)]


def test_an_error_names_the_operator_that_failed_and_its_values():
    x = fluid.data("x", [-1, 4])
    for _ in range(2):
        fluid.layers.reshape(x, [3, 4])
    with pytest.raises(fluid.core.EnforceNotMet, match="reshape2"):
        fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones((5, 4), "float32")})


def test_attributes_that_are_no_numbers_or_names_are_not_compared():
    assert repeated._frozen([1, (2.0, "a")]) == repeated._frozen([1, (2.0, "a")])
    assert repeated._frozen([1]) != repeated._frozen([True])
    assert repeated._frozen([np.ones(3)]) is repeated._OTHER
    assert repeated._frozen(jax.numpy.float32) is repeated._OTHER
