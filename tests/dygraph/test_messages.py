"""A step sends its loss before it goes back."""

import sys

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.dygraph import messages, pending
from jfluid.dygraph.base import guard, to_variable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="steps send on Linux only")
BATCH = np.random.RandomState(0).rand(512, 600).astype("float32")


@pytest.fixture
def net(monkeypatch):
    monkeypatch.setattr(pending, "_pending", {})  # nothing is expected yet
    with guard(fluid.CPUPlace()):
        fluid.default_main_program().random_seed = 3
        yield fluid.dygraph.Linear(600, 600)


def _loss(net, batch=BATCH):
    loss = layers.mean(layers.square(net(to_variable(batch))))
    loss.backward()
    return loss


def _train(net, steps, read):
    optimizer = fluid.optimizer.SGD(0.05, parameter_list=net.parameters())
    found = []
    for _ in range(steps):
        loss = _loss(net)
        optimizer.minimize(loss)
        net.clear_gradients()
        found.append(read(loss))
    return found


def test_losses_are_those_that_the_step_gives(net):
    def read(loss):
        early = loss.numpy()
        assert loss.held.message.body is not None, "it has come"
        return early, np.asarray(loss.held.array)

    for early, result in _train(net, 8, read):
        assert early.dtype == result.dtype and early.shape == result.shape
        np.testing.assert_array_equal(early, result)


def test_it_comes_before_the_parameters_are_updated(net):
    def read(loss):
        loss.numpy()
        return net.weight.held.array.is_ready()

    # this thread may be late, but not each time
    assert not all(_train(net, 60, read))


def test_what_is_read_late_is_told_apart(net):
    losses = []
    for i in range(5):
        loss = _loss(net, BATCH * i)
        pending.array_of(loss.held)  # it runs
        losses.append(loss)
    for loss in reversed(losses):
        np.testing.assert_array_equal(loss.numpy(), np.asarray(loss.held.array))


def test_a_loss_is_a_copy(net):
    loss = _loss(net)
    first = loss.numpy()
    before = first.copy()
    first[...] = -1
    np.testing.assert_array_equal(loss.numpy(), before)


def test_a_message_that_is_not_sent_is_not_waited_for(net, monkeypatch):
    """There is no room in the socket, or the step has failed."""
    first = _train(net, 1, lambda loss: loss.numpy())
    monkeypatch.setattr(messages._inbox(), "_theirs", -1)
    after = _train(net, 3, lambda loss: (loss.numpy(), loss.held.message.body))
    assert all(found < first[0] and sent is None for found, sent in after)


def test_messages_that_nobody_reads_are_let_go(net):
    for _ in range(40):
        pending.array_of(_loss(net).held).block_until_ready()
    inbox = messages._inbox()
    assert sum(held is not None and held() is not None for held in inbox._open) <= 1
    left = 0
    while inbox._take():
        left += 1
    assert left <= 17


@pytest.mark.parametrize("rows, value", [(2, 1.0), (1, 2.0)], ids=["two numbers", "another gradient"])
def test_other_beginnings_send_nothing(net, rows, value):
    x = to_variable(np.ones((rows, 1), "float32"))
    x.stop_gradient = False
    y = x * 3.0
    seed = to_variable(np.full((rows, 1), value, "float32"))
    (gradient,) = fluid.dygraph.grad([y], [x], grad_outputs=[seed] if value != 1.0 else None)
    np.testing.assert_array_equal(gradient.numpy(), np.full((rows, 1), 3 * value, "float32"))
    y.numpy()
    assert y.held.message is None


def test_ones_of_another_type_are_of_that_type(net):
    y = to_variable(np.full((1,), 3.0, "float32")) * 2.0
    ones = layers.full_like(y, 1.0, dtype="int64")
    found = ones.numpy()
    assert found.dtype == np.int64 and found.tolist() == [1] and y.numpy().tolist() == [6.0]


def test_second_gradients_go_through_what_is_sent(net):
    x = to_variable(np.full((1,), 3.0, "float32"))
    x.stop_gradient = False
    y = x * x * x
    (first,) = fluid.dygraph.grad([y], [x], create_graph=True)
    first.backward()
    np.testing.assert_allclose(x.gradient(), [18.0])
    np.testing.assert_allclose(y.numpy(), [27.0])
