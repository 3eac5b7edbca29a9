"""A seed gives eager layers the numbers of the same layers in a program, as in Fluid: Fluid's cases of GANs,
graph networks and policy gradients compare both.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.dygraph import Layer, Linear, to_variable
from tests.dynamic_shapes.interpreted import interpreted

SEED = 90


class Discriminator(Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = Linear(1, 32, act="elu"), Linear(32, 1)

    def forward(self, x):
        return self.outer(self.inner(x))


class Generator(Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = Linear(2, 64, act="elu"), Linear(64, 64, act="elu"), Linear(64, 1)

    def forward(self, x):
        return self.third(self.second(self.first(x)))


class Policy(Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = Linear(4, 128), Linear(128, 2)

    def forward(self, x):
        x = layers.relu(layers.dropout(self.inner(layers.reshape(x, [1, 4])), 0.6))
        return layers.softmax(self.outer(x), axis=1)


class GraphConvolution(Layer):
    def __init__(self, given, made):
        super().__init__()
        self.weight = self.create_parameter(attr=None, shape=[given, made], dtype="float32")
        self.bias = self.create_parameter(attr=None, shape=[made], dtype="float32")

    def forward(self, features, edges):
        return layers.matmul(edges, layers.matmul(features, self.weight)) + self.bias


class Graph(Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphConvolution(8, 16), GraphConvolution(16, 4)

    def forward(self, features, edges):
        return self.second(layers.relu(self.first(features, edges)), edges)


def crossed(scores, label):
    wanted = layers.fill_constant([2, 1], "float32", label)
    return layers.reduce_mean(layers.sigmoid_cross_entropy_with_logits(scores, wanted))


def discriminated(nets, image, noise):
    discriminator, generator = nets
    return crossed(discriminator(image), 1.0) + crossed(discriminator(generator(noise)), 0.0)


def generated(nets, image, noise):
    discriminator, generator = nets
    return crossed(discriminator(generator(noise)), 1.0)


def rewarded(nets, state, mask, reward):
    chosen = layers.elementwise_mul(layers.log(nets[0](state)), mask)
    return layers.reduce_sum(layers.elementwise_mul(reward, layers.reduce_sum(chosen, dim=-1)))


def classified(nets, features, edges):
    wanted = layers.fill_constant([20, 1], "int64", 2)
    return layers.reduce_sum(layers.softmax_with_cross_entropy(nets[0](features, edges), wanted))


GAN = {"image": np.ones((2, 1), "float32"), "noise": np.ones((2, 2), "float32")}
GAME = {
    "state": np.random.RandomState(0).normal(size=4).astype("float32"),
    "mask": np.array([[0, 1]], "float32"),
    "reward": np.array([0.417], "float32"),
}
GRAPH = {name: np.random.RandomState(1).rand(20, n).astype("float32") for name, n in (("features", 8), ("edges", 20))}
CASES = {
    "gan": (lambda: (Discriminator(), Generator()), (discriminated, generated), GAN),
    "policy": (lambda: (Policy(),), (rewarded,), GAME),
    "graph": (lambda: (Graph(),), (classified, classified), GRAPH),
}


def in_programs(make, losses, feed):
    """Return the first parameters, the losses of a step of each program, and the last parameters."""
    startup, scope, executor, steps = fluid.Program(), fluid.Scope(), fluid.Executor(fluid.CPUPlace()), []
    startup.random_seed = SEED
    with fluid.scope_guard(scope):
        for loss_of in losses:
            main = fluid.Program()
            main.random_seed = SEED
            with fluid.program_guard(main, startup), fluid.unique_name.guard():
                nets = make()
                given = [layers.data(n, list(v.shape), append_batch_size=False) for n, v in feed.items()]
                loss = loss_of(nets, *given)
                fluid.optimizer.SGD(1e-2).minimize(loss)
                steps.append((main, loss))
        names = [p.name for net in nets for p in net.parameters()]
        executor.run(startup)
        first = [np.array(scope.find_var(n).get_tensor()) for n in names]
        found = [executor.run(main, feed=feed, fetch_list=[loss])[0].item() for main, loss in steps]
        return first, found, [np.array(scope.find_var(n).get_tensor()) for n in names]


def in_eager_mode(make, losses, feed):
    with fluid.dygraph.guard(fluid.CPUPlace()):
        fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = SEED
        nets, found = make(), []
        parameters = [p for net in nets for p in net.parameters()]
        first = [p.numpy() for p in parameters]
        optimizer = fluid.optimizer.SGD(1e-2, parameter_list=parameters)
        for loss_of in losses:
            loss = loss_of(nets, *map(to_variable, feed.values()))
            loss.backward()
            optimizer.minimize(loss)
            for net in nets:
                net.clear_gradients()
            found.append(loss.numpy().item())
        return first, found, [p.numpy() for p in parameters]


@pytest.mark.parametrize("case", CASES)
def test_eager_layers_start_and_train_as_in_a_program(case):
    first, losses, last = interpreted(in_programs, *CASES[case])
    eager_first, eager_losses, eager_last = interpreted(in_eager_mode, *CASES[case])
    for one, other in zip(eager_first, first, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(eager_losses, losses, rtol=1e-6)
    for one, other in zip(eager_last, last, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert any((one != start).any() for one, start in zip(last, first))
