"""Steps that begin before their operators are called give what they give when they begin afterwards."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.dygraph import ahead, pending, step
from jfluid.dygraph.base import guard, to_variable

RNG = np.random.RandomState(0)
BATCHES = [(RNG.rand(4, 3, 6, 6).astype("float32"), RNG.randint(0, 3, (4, 1))) for _ in range(14)]
LAST = 11  # the step that differs


class Count:
    """How many steps began, and how many of them were taken."""

    def __init__(self, monkeypatch):
        self.begun = self.taken = 0
        begin, take = ahead.Ahead.begin, ahead.Ahead.take

        def begins(self_, *given):
            begin(self_, *given)
            self.begun += self_._begun is not None

        def takes(self_, *given):
            found = take(self_, *given)
            self.taken += found is not None
            return found

        monkeypatch.setattr(ahead.Ahead, "begin", begins)
        monkeypatch.setattr(ahead.Ahead, "take", takes)


@pytest.fixture
def count(monkeypatch):
    monkeypatch.setattr(pending, "_pending", {})  # nothing is expected yet
    return Count(monkeypatch)


class Net(fluid.dygraph.Layer):
    def __init__(self):
        super().__init__()
        self.conv = fluid.dygraph.Conv2D(3, 4, 3)
        self.norm = fluid.dygraph.BatchNorm(4, act="relu")
        self.out = fluid.dygraph.Linear(64, 3)

    def forward(self, x):
        hidden = layers.dropout(self.norm(self.conv(x)), 0.2)
        return self.out(layers.reshape(hidden, [-1, 64]))


class Loop:
    """A training loop whose steps a test changes by overriding."""

    rate = 0.05

    def __init__(self):
        fluid.default_main_program().random_seed = 7
        self.net = Net()
        parameters = self.net.parameters()
        self.optimizer = fluid.optimizer.Adam(self.rate, parameter_list=parameters)

    def forward(self, at, x, y):
        return layers.mean(layers.softmax_with_cross_entropy(self.net(x), y))

    def update(self, at, loss):
        loss.backward()
        self.optimizer.minimize(loss)
        self.net.clear_gradients()

    def step(self, at, batch):
        x, y = to_variable(batch[0]), to_variable(batch[1])
        loss = self.forward(at, x, y)
        self.update(at, loss)
        return loss.numpy()

    def history(self):
        seen = [self.step(at, batch) for at, batch in enumerate(BATCHES)]
        return seen + [v.numpy() for v in self.net.state_dict().values()]


class Printing(Loop):
    def forward(self, at, x, y):
        if at == LAST:
            self.seen = layers.reduce_mean(self.net(x)).numpy()
        return super().forward(at, x, y)


class Setting(Loop):
    """The script sets a parameter when the batch is there."""

    def forward(self, at, x, y):
        if at == LAST:
            self.net.out.weight.set_value(self.net.out.weight.numpy() * 0.5)
        return super().forward(at, x, y)


class Evaluating(Loop):
    def step(self, at, batch):
        if at != LAST:
            return super().step(at, batch)
        self.net.eval()
        found = self.forward(at, to_variable(batch[0]), to_variable(batch[1])).numpy()
        self.net.train()
        return found


class Drawing(Loop):
    """Another operator draws numbers before those of the step."""

    def forward(self, at, x, y):
        if at == LAST:
            x = x + layers.uniform_random([4, 3, 6, 6]) * 0.0
        return super().forward(at, x, y)


class Failing(Loop):
    """A step fails after its forward operators, and the script goes on with the next."""

    def step(self, at, batch):
        try:
            return super().step(at, batch)
        except KeyError:
            return np.zeros(1)

    def update(self, at, loss):
        if at == LAST:
            raise KeyError(at)
        super().update(at, loss)


class Gathering(Loop):
    """Gradients of one step are read before the update, and changed."""

    def update(self, at, loss):
        if at != LAST:
            super().update(at, loss)
            return
        loss.backward()
        weight = self.net.conv.weight
        self.seen = weight.gradient()
        weight.set_value(weight.numpy() + self.seen)


class Scheduled(Loop):
    """The learning rate changes at the step."""

    @property
    def rate(self):
        return fluid.dygraph.PiecewiseDecay([LAST], [0.05, 0.01], 0)


class Hooked(Loop):
    def forward(self, at, x, y):
        if at == LAST:
            self.net.register_forward_post_hook(lambda layer, inputs, out: out * 2.0)
        return super().forward(at, x, y)


WAYS = [Printing, Setting, Evaluating, Drawing, Failing, Gathering, Scheduled, Hooked]


def history(kind):
    with guard(fluid.CPUPlace()):
        return kind().history()


@pytest.mark.parametrize("kind", [Loop, *WAYS])
def test_what_begins_early_gives_the_same_numbers(kind, count, monkeypatch):
    found = history(kind)
    assert count.taken >= 3
    assert (count.begun == count.taken) == (kind is Loop)  # in all others one began in vain
    count.begun = 0
    monkeypatch.setattr(ahead, "_SURE", 1000)
    expected = history(kind)
    assert count.begun == 0
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len({a.tobytes() for a in found}) >= len(BATCHES)


def test_what_is_not_sure_does_not_begin(count):
    """Every third step is one of evaluation."""

    class Alternating(Loop):
        def step(self, at, batch):
            for _ in range(2):
                found = super().step(at, batch)
            self.net.eval()
            self.forward(at, to_variable(batch[0]), to_variable(batch[1])).numpy()
            self.net.train()
            return found

    history(Alternating)
    assert count.begun <= len(BATCHES)  # what follows an evaluation is always the same
    assert count.begun - count.taken <= 1


def test_two_nets_that_are_trained_in_turn(count):
    class Two(Loop):
        def __init__(self):
            super().__init__()
            self.other = fluid.dygraph.Linear(3, 1)
            self.second = fluid.optimizer.SGD(0.1, parameter_list=self.other.parameters())

        def step(self, at, batch):
            found = super().step(at, batch)
            x = to_variable(batch[0])
            loss = layers.mean(self.other(self.net(x)))
            loss.backward()
            self.second.minimize(loss)
            for net in (self.net, self.other):
                net.clear_gradients()
            return found + loss.numpy()

    history(Two)
    assert count.begun == count.taken >= 8


def test_a_batch_that_comes_late_and_a_loss_that_is_seldom_read(count):
    class Late(Loop):
        def step(self, at, batch):
            predicted = self.net(to_variable(batch[0]))
            loss = layers.softmax_with_cross_entropy(predicted, to_variable(batch[1]))
            self.held = predicted, loss  # until the next step, whether the loss is read or not
            self.update(at, layers.mean(loss))
            return loss.numpy() if at % 3 == 2 else np.full(1, at)

    history(Late)
    assert count.begun == count.taken >= 2


def test_batches_of_a_loader(count):
    with guard(fluid.CPUPlace()):
        loop = Loop()
        loader = fluid.io.DataLoader.from_generator(capacity=2)
        loader.set_batch_generator(lambda: iter(BATCHES))
        for at, (x, y) in enumerate(loader):
            loss = loop.forward(at, x, y)
            loop.update(at, loss)
            loss.numpy()
    assert count.begun == count.taken >= 3


def test_large_states_and_tables_of_sparse_rows_are_overwritten(count, monkeypatch):
    class Sparse(Loop):
        def __init__(self):
            super().__init__()
            self.table = fluid.dygraph.Embedding([50, 3], is_sparse=True)
            self.optimizer = fluid.optimizer.SGD(0.1, parameter_list=self.table.parameters())

        def forward(self, at, x, y):
            return layers.mean(layers.square(self.table(y)))

    history(Sparse)
    assert count.begun == 0
    monkeypatch.setattr(pending, "_pending", {})
    monkeypatch.setattr(step, "_SMALL_STATE", 500)
    history(Loop)
    assert count.begun == 0


def test_what_began_is_dropped_at_the_end(count):
    with guard(fluid.CPUPlace()):
        loop = Loop()
        loop.history()
        waiting = fluid.default_main_program().tracer.pending
        batch = [to_variable(array) for array in BATCHES[0]]
        assert len(batch) == 2 and waiting._ahead._begun is not None
    assert waiting._ahead._begun is None
