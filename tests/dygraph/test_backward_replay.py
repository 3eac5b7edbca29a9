"""Backward passes that repeat give the gradients that they give when they are walked anew."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.dygraph.base import guard, to_variable
from tests.dygraph.used_replays import used

pytestmark = pytest.mark.usefixtures("interpreted_steps")

RNG = np.random.RandomState(0)
BATCHES = [RNG.rand(4, 3).astype("float32") for _ in range(4)] + [RNG.rand(2, 3).astype("float32") for _ in range(2)]


@pytest.fixture
def repeats(monkeypatch):
    """Class names of the replays of backward passes that were used."""
    return used(monkeypatch, "BackwardReplay")


def gradients(batches, anew, stops=lambda step: False, looks=lambda step: True):
    """Of each step: those of a weight, and of a hidden value that is used twice."""
    found = []
    with guard():
        program = fluid.default_main_program()
        program.random_seed = 3
        weight = to_variable(np.arange(9, dtype="float32").reshape(3, 3) / 9)
        weight.stop_gradient = False
        for step, batch in enumerate(batches):
            if anew:
                program.tracer.graph._root.forget()
            hidden = layers.dropout(layers.matmul(to_variable(batch), weight), 0.3)
            other = hidden.detach() if stops(step) else hidden
            loss = layers.reduce_sum(layers.tanh(hidden) * other)
            if not looks(step):
                del hidden, other
            loss.backward()
            found.append([weight.gradient()] + ([hidden.gradient()] if looks(step) else []))
    return found


def same(found, right):
    assert len(found) == len(right)
    for mine, others in zip(found, right):
        for value, other in zip(mine, others, strict=True):
            np.testing.assert_array_equal(value, other)


def test_repeated_passes_draw_and_sum_as_the_first(repeats):
    right = gradients(BATCHES, anew=True)
    assert repeats == []
    same(gradients(BATCHES, anew=False), right)
    # another batch size is another kind; the last anew pass has left its own
    assert len(repeats) >= 4


def test_where_gradients_stop_is_part_of_the_kind(repeats):
    ways = {"stops": lambda step: step % 2 == 1, "looks": lambda step: step < 3}
    right = gradients(BATCHES[:4] * 2, anew=True, **ways)
    same(gradients(BATCHES[:4] * 2, anew=False, **ways), right)
    assert len(repeats) >= 5
    assert not np.array_equal(right[0][0], right[1][0])


def test_another_pass_through_what_a_repeated_one_has_released_is_refused(repeats):
    with guard():
        x = to_variable(BATCHES[0])
        x.stop_gradient = False
        for _ in range(2):
            square = x * x
            layers.reduce_sum(square).backward()
            np.testing.assert_allclose(x.gradient(), 2 * BATCHES[0], rtol=1e-6)
        assert repeats
        with pytest.raises(errors.DygraphError, match="retain_graph"):
            layers.reduce_sum(square * 2.0).backward()


def test_what_has_run_before_is_walked_anew(repeats):
    with guard():
        x = to_variable(BATCHES[0])
        x.stop_gradient = False
        for scale in (1.0, 2.0, 3.0):
            loss = layers.reduce_sum(layers.scale(x * x, scale))
            assert loss.numpy() > 0  # runs it
            loss.backward()
            np.testing.assert_allclose(x.gradient(), 2 * scale * BATCHES[0], rtol=1e-6)
    assert repeats == []


class Own(fluid.dygraph.Layer):
    """A user's layer, whose `forward` calls functions of `fluid.layers`."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([3, 3])

    def forward(self, x):
        return layers.relu(layers.matmul(x, self.weight) * 0.5)


def test_layers_of_users_repeat_their_backward_passes_and_updates(monkeypatch):
    repeats = used(monkeypatch)
    with guard():
        net = Own()
        sgd = fluid.optimizer.SGD(0.1, parameter_list=net.parameters())
        for batch in BATCHES[:4]:
            loss = layers.reduce_sum(net(to_variable(batch)))
            loss.backward()
            sgd.minimize(loss)
            net.clear_gradients()
    assert repeats.count("BackwardReplay") == repeats.count("OptimizerReplay") >= 2
    assert "LayerReplay" not in repeats  # `forward` may read any Python object
