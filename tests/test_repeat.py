"""A step that is run again as it was takes a short way through the Executor; whatever differs takes
the long one.
"""

import gc
import weakref

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile import feeds

X = np.arange(12, dtype="float32").reshape(3, 4)


class Counted:
    """An Executor that trains w by the mean of x @ w, and how many of its runs took the long
    way.
    """

    def __init__(self, monkeypatch):
        self.long = 0
        self.exe = fluid.Executor(fluid.CPUPlace())
        x = fluid.data("x", [None, 4])
        weight = fluid.ParamAttr("w", fluid.initializer.Constant(0.5))
        self.hidden = fluid.layers.fc(x, 2, param_attr=weight, bias_attr=False)
        self.loss = fluid.layers.mean(self.hidden)
        fluid.optimizer.SGD(0.1).minimize(self.loss)
        self.exe.run(fluid.default_startup_program())
        check = feeds.checked

        def counted(program, feed):
            self.long += 1
            return check(program, feed)

        monkeypatch.setattr(feeds, "checked", counted)

    def run(self, x=X, fetch=None, **options):
        """(the first fetch, whether the run took the long way)."""
        before = self.long
        value, *_ = self.exe.run(
            feed={"x": x}, fetch_list=[self.loss] if fetch is None else fetch, **options
        )
        return np.asarray(value), self.long > before


@pytest.fixture
def net(monkeypatch):
    net = Counted(monkeypatch)
    assert net.run()[1]
    return net


def weight():
    return fluid.global_scope().find_var("w").get_tensor()


def test_the_short_way_trains_as_the_long_one(net):
    step = 0.1 * np.repeat(X.sum(0)[:, None], 2, 1) / 6
    for i in range(1, 4):
        loss, long = net.run()
        assert not long
        np.testing.assert_allclose(loss, [(X @ (0.5 - i * step)).mean()], rtol=1e-5)
    np.testing.assert_allclose(np.array(weight()), 0.5 - 4 * step, rtol=1e-5)


def test_other_batches_take_the_long_way(net):
    assert not net.run(X + 1)[1]
    assert net.run(X[:2])[1] and not net.run(X[:2])[1] and net.run(X)[1]
    with pytest.raises(errors.FeedError, match="feed x: expected dtype float32, found float64"):
        net.run(X.astype("float64"))
    with pytest.raises(errors.FeedError, match="x: expected rank 2"):
        net.run(X[0])
    with pytest.raises(errors.FeedError, match="the program reads x"):
        net.exe.run(feed={}, fetch_list=[net.loss])
    with pytest.raises(errors.FeedError, match="feed y: the program has no such variable"):
        net.exe.run(feed={"x": X, "y": X}, fetch_list=[net.loss])
    assert net.exe.run(feed=[{"x": X}], fetch_list=[net.loss])[0].shape == (1,)
    assert not net.run()[1]


def test_what_was_set_in_between_is_seen(net):
    weight().set(np.ones((4, 2), "float32"))
    loss, long = net.run()
    assert not long
    np.testing.assert_allclose(loss, [X.sum(1).mean()], rtol=1e-6)
    weight().set(np.ones((5, 2), "float32"))
    with pytest.raises(errors.ProgramError, match=r"w: the scope holds shape \[5, 2\]"):
        net.run()


def test_other_fetches_programs_and_scopes_take_the_long_way(net):
    assert net.run(fetch=["x"])[1] and net.run(fetch=[net.hidden])[1] and net.run()[1]
    assert net.run(return_numpy=False)[1] and not net.run()[1]
    scope = fluid.Scope()
    net.exe.run(fluid.default_startup_program(), scope=scope)
    loss, long = net.run(scope=scope)
    assert long
    np.testing.assert_allclose(loss, [(X.sum(1) * 0.5).mean()], rtol=1e-6)
    net.run()
    more = fluid.layers.scale(net.loss, 3.0)
    loss, long = net.run()
    assert long
    np.testing.assert_allclose(net.run(fetch=[more])[0] < loss * 3, [True])


def test_a_flag_that_was_set_is_seen(net):
    weight().set(np.full((4, 2), np.inf, "float32"))
    assert not np.isfinite(net.run()[0])
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(errors.OpError, match="FLAGS_check_nan_inf"):
            net.run()
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": False})


def test_programs_that_draw_take_the_long_way(net):
    drawn = fluid.layers.uniform_random([2])
    found = [tuple(net.run(fetch=[drawn])[0]) for _ in range(3)]
    assert len(set(found)) == 3


def test_a_closed_executor_says_so(net):
    net.exe.close()
    with pytest.raises(errors.JFluidError, match="closed"):
        net.run()


def test_a_dropped_scope_is_let_go(net):
    scope = fluid.Scope()
    net.exe.run(fluid.default_startup_program(), scope=scope)
    assert net.run(scope=scope)[1] and not net.run(scope=scope)[1]
    tensor = weakref.ref(scope.find_var("w").get_tensor())
    del scope
    gc.collect()
    assert tensor() is None
    assert net.run()[1]
