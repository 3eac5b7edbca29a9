"""Parameters are updated in place: XLA copies none of them."""

import re

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.lowering import update_dependencies
from jfluid.compile.lowering.plan import live_ops
from jfluid.compile.runtime.step import CompiledSegment

OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "adam": lambda: fluid.optimizer.Adam(0.1),
}


def _net(optimizer):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3, 6, 6])
        y = fluid.layers.conv2d(x, 4, 3, act="relu")
        y = fluid.layers.conv2d(y, 5, 3, act="relu")
        y = fluid.layers.fc(y, 7, act="tanh")
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(y, 3)))
        OPTIMIZERS[optimizer]().minimize(loss)
    return main, startup, loss


def _trained(optimizer, replicas, monkeypatch):
    """The compiled step of a net, and its loss after some steps."""
    segments = []
    made = CompiledSegment.__init__

    def noted(self, *arguments):
        made(self, *arguments)
        segments.append(self)

    monkeypatch.setattr(CompiledSegment, "__init__", noted)
    main, startup, loss = _net(optimizer)
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name) if replicas else main
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.random.RandomState(0).randn(2, 3, 6, 6).astype("float32")}
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        exe.run(program, feed=feed, fetch_list=[loss])
        given, plain = [], segments[-1].exact.plain

        def noted_call(*arguments):
            given[:] = jax.tree.map(lambda v: jax.ShapeDtypeStruct(np.shape(v), v.dtype), arguments)
            return plain(*arguments)

        segments[-1].exact.plain = noted_call
        for _ in range(2):
            (found,) = exe.run(program, feed=feed, fetch_list=[loss])
        with jax.enable_x64(True):
            return plain.lower(*given).compile().as_text(), found


def _copies(text):
    """The shapes of arguments that a program copies."""
    entry = text[text.index("\nENTRY") :]
    return [m for m in re.findall(r"= (\w+\[[\d,]+\])\S* copy\(%donated", entry) if "," in m]


@pytest.mark.parametrize(
    "optimizer, replicas",
    [("sgd", False), ("adam", True)]
    + [
        pytest.param(*own, marks=pytest.mark.nightly)
        for own in (("sgd", True), ("adam", False), ("momentum", False), ("momentum", True))
    ],
)
def test_no_parameter_is_copied(optimizer, replicas, monkeypatch):
    text, loss = _trained(optimizer, replicas, monkeypatch)
    assert not _copies(text)
    monkeypatch.setattr(update_dependencies, "awaited", lambda items: {})
    text, expected = _trained(optimizer, replicas, monkeypatch)
    assert _copies(text)  # otherwise XLA has learned it, and update_dependencies can go
    np.testing.assert_array_equal(loss, expected)


def test_a_rate_stays_as_it_is_whatever_it_waits_for():
    rate = np.float32([0.1])
    for value in (np.float32([np.nan, 1]), np.float64(-np.inf), np.float16([[7]]), np.int32(3)):
        found = jax.jit(update_dependencies.after)(rate, [jax.numpy.asarray(value)])
        assert found.dtype == np.float32 and (np.asarray(found) == rate).all()
    empty = jax.jit(update_dependencies.after)(rate, [jax.numpy.zeros((0, 3))])
    assert (np.asarray(empty) == rate).all()


@pytest.mark.parametrize("times", [update_dependencies.MOST, update_dependencies.MOST + 2])
def test_an_update_waits_for_a_few_gradients_only(times):
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        y = fluid.data("x", [2, 3])
        for _ in range(times + 1):  # the first needs no gradient of its input
            y = fluid.layers.fc(y, 3, param_attr="shared", bias_attr=False)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(y))
    found = update_dependencies.awaited(live_ops(program.global_block()))
    assert [len(one.gradients) for one in found.values()] == ([times] if times <= update_dependencies.MOST else [])
