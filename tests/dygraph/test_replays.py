"""Operators of layers and updates of optimizers that repeat give what they give when each is called."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.dygraph import nn
from jfluid.dygraph.base import grad, guard, no_grad, to_variable
from tests.dygraph.used_replays import used

pytestmark = pytest.mark.usefixtures("interpreted_steps")

RNG = np.random.RandomState(0)
BATCHES = [RNG.rand(4, 3).astype("float32") for _ in range(4)] + [RNG.rand(2, 3).astype("float32") for _ in range(2)]


@pytest.fixture
def repeated(monkeypatch):
    """Class names of the replays that were used."""
    return used(monkeypatch, "LayerReplay", "OptimizerReplay")


def run(step, batches=BATCHES, anew=False, optimizer=fluid.optimizer.SGDOptimizer, **options):
    """What each step returns, and the parameters at the end.

    Args:
        step: gets a layer, an optimizer and a batch.
        anew: forget before each step what was called before.
    """
    with guard(), fluid.unique_name.guard():
        fluid.default_main_program().random_seed = 3
        net = nn.Linear(3, 2, act="tanh")
        net.bias.set_value(np.array([0.5, -0.25], "float32"))
        train = optimizer(0.1, parameter_list=net.parameters(), **options)
        found = []
        for i, batch in enumerate(batches):
            if anew:
                fluid.default_main_program().tracer.graph._root.forget()
            found.append(step(net, train, batch, i))
        return [*found, *[p.numpy() for p in net.parameters()]]


def same(step, **options):
    found, right = run(step, **options), run(step, anew=True, **options)
    assert len(found) == len(right)
    for mine, other in zip(found, right):
        np.testing.assert_array_equal(mine, other)


def _update(net, train, loss):
    loss.backward()
    train.minimize(loss)
    net.clear_gradients()
    return loss.numpy()


def _train(net, train, batch, i):
    return _update(net, train, layers.reduce_mean(net(to_variable(batch))))


def test_steps_repeat_both(repeated):
    same(_train)
    assert repeated.count("LayerReplay") == repeated.count("OptimizerReplay") == 4  # of six, two of other shapes


@pytest.mark.parametrize(
    "optimizer, options",
    [
        (fluid.optimizer.MomentumOptimizer, {"momentum": 0.9}),
        (fluid.optimizer.AdamOptimizer, {}),
        (fluid.optimizer.AdamaxOptimizer, {}),
        (fluid.optimizer.LambOptimizer, {}),
        (fluid.optimizer.SGDOptimizer, {"regularization": fluid.regularizer.L2Decay(0.1)}),
        (fluid.optimizer.SGDOptimizer, {"grad_clip": fluid.clip.GradientClipByGlobalNorm(0.1)}),
    ],
    ids=["momentum", "adam", "adamax", "lamb", "decay", "clip"],
)
def test_optimizers_update_as_alone(repeated, optimizer, options):
    same(_train, optimizer=optimizer, **options)
    assert "OptimizerReplay" in repeated


def test_a_parameter_s_own_rate_counts(repeated):
    def step(net, train, batch, i):
        net.bias.optimize_attr["learning_rate"] = 0.5 if i > 1 else 1.0
        return _train(net, train, batch, i)

    same(step)


def test_another_activation_is_another_chain(repeated):
    def step(net, train, batch, i):
        net._act = "relu" if i == 2 else None if i == 3 else "tanh"
        return _train(net, train, batch, i)

    same(step)
    assert "LayerReplay" in repeated


@pytest.mark.parametrize("which", ["weight", "bias", "both"])
def test_what_is_frozen_gets_no_gradient(repeated, which):
    def step(net, train, batch, i):
        for name in ("weight", "bias"):
            getattr(net, name).stop_gradient = i in (2, 3) and which in (name, "both")
        x = to_variable(batch)
        x.stop_gradient = False
        loss = layers.reduce_mean(net(x))
        loss.backward()
        found = [x.gradient()] + [np.zeros(1) if p.gradient() is None else p.gradient() for p in net.parameters()]
        train.minimize(loss)
        for p in net.parameters():
            p.hold_gradient(None)
        return np.concatenate([np.ravel(v) for v in found])

    same(step)


def test_one_value_in_two_variables(repeated):
    """The gradient goes to the one that wants it."""

    def step(net, train, batch, i):
        x = to_variable(batch)
        x.stop_gradient = False
        hidden = x * 2.0
        loss = layers.reduce_mean(net(hidden) * net(hidden.detach() if i % 2 else hidden))
        loss.backward()
        return x.gradient()

    same(step)


def test_gradients_of_gradients(repeated):
    def step(net, train, batch, i):
        x = to_variable(batch)
        x.stop_gradient = False
        (slope,) = grad([net(x)], [x], create_graph=True)
        return _update(net, train, layers.reduce_mean(slope * slope))

    same(step)
    assert "LayerReplay" in repeated


def test_what_is_read_in_between(repeated):
    """The values between the operators are computed though nobody but the gradient needs them."""

    def step(net, train, batch, i):
        loss = layers.reduce_mean(net(to_variable(batch)))
        loss.numpy()
        return _update(net, train, loss)

    same(step)


def test_without_gradients(repeated):
    def step(net, train, batch, i):
        if i % 2:
            with no_grad():
                out = net(to_variable(batch))
                assert out.stop_gradient
                return out.numpy()
        return _train(net, train, batch, i)

    same(step)


def test_convolutions_repeat(repeated):
    images = RNG.rand(2, 3, 8, 8).astype("float32")

    def losses(anew):
        with guard(), fluid.unique_name.guard():
            fluid.default_main_program().random_seed = 3
            net = nn.Conv2D(3, 4, 3, padding=1, act="relu")
            train = fluid.optimizer.SGDOptimizer(0.1, parameter_list=net.parameters())
            found = []
            for _ in range(3):
                if anew:
                    fluid.default_main_program().tracer.graph._root.forget()
                found.append(_update(net, train, layers.reduce_mean(net(to_variable(images)) ** 2)))
            return found

    right = losses(anew=True)
    assert repeated == []
    np.testing.assert_array_equal(losses(anew=False), right)
    assert repeated.count("LayerReplay") == 3  # the pass before has left its own


def test_an_update_that_reads_what_another_writes_comes_after_it(repeated):
    def step(second_reads_first):
        with guard():
            first, second, rate = (to_variable(np.full(3, v, "float32")) for v in (1.0, 2.0, 0.5))
            rate = to_variable(np.array([0.5], "float32"))
            for v in (first, second):
                v.persistable = True
            other = to_variable(np.full(3, 1.0, "float32"))
            block = fluid.default_main_program().global_block()
            with no_grad():
                block.append_updates(
                    "sgd",
                    [
                        (
                            {"Param": p, "Grad": g, "LearningRate": rate},
                            {"ParamOut": p},
                            {},
                        )
                        for p, g in (
                            (first, other),
                            (second, first if second_reads_first else other),
                        )
                    ],
                )
            return first.numpy()[0], second.numpy()[0]

    for _ in range(2):
        assert step(False) == (0.5, 1.5)
        assert step(True) == (0.5, 1.75)
    assert repeated == ["OptimizerReplay"]


def test_a_layer_says_what_it_cannot_take():
    with guard():
        net = nn.Linear(3, 2)
        with pytest.raises(TypeError, match="expected a Variable, found ndarray"):
            net(np.zeros((2, 3), "float32"))
        net._act = {"type": "relu"}
        with pytest.raises(TypeError, match="act is the name of an activation"):
            net(to_variable(np.zeros((2, 3), "float32")))
