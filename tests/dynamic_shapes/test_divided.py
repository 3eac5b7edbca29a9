"""A program with an operator that has no rule for padded sizes: the operators before and after it are padded."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.dynamic_shapes.stream import ShapeStream
from jfluid.compile.runtime import step
from tests.dynamic_shapes.test_streams import same, train
from tests.kept_steps import finish, folder

layers = fluid.layers

__all__ = ["folder"]
LENGTHS = [8, 9, 11, 7, 13, 10, 12]
ANEW = "compiled anew for each new shape"


@pytest.fixture(autouse=True)
def flags():
    before = fluid.get_flags(["FLAGS_dynamic_shapes", "FLAGS_interpret_first_steps"])
    yield
    fluid.set_flags(before)


@pytest.fixture
def steps(monkeypatch):
    """The steps of programs with feeds, in the order of their first runs."""
    found = []
    run = step.Step.run

    def noting(self, *args, **more):
        if self.plan.feeds and self not in found:
            found.append(self)
        return run(self, *args, **more)

    monkeypatch.setattr(step.Step, "run", noting)
    return found


def rows(lengths=LENGTHS):
    random = np.random.RandomState(3)
    return [{"x": random.randn(2, 1, length, 4).astype("float32")} for length in lengths]


def windows():
    """A network with an adaptive pooling, whose windows differ by length."""
    x = fluid.data("x", [None, 1, None, 4])
    hidden = layers.dropout(layers.fc(x, 4, num_flatten_dims=3, act="relu"), 0.3)
    pooled = layers.adaptive_pool2d(hidden, [2, 4], pool_type="avg")
    others = layers.softmax(layers.fc(hidden, 4, num_flatten_dims=3))
    loss = layers.reduce_mean(pooled * pooled) + layers.reduce_max(others)
    fluid.optimizer.Adam(0.01).minimize(loss)
    return loss, pooled, others


def parts(found):
    """The operators of the parts of a step that keep exact shapes."""
    return [[op.type for _, op, _ in s.ops] for s in found.plan.segments if s.exact]


def streams(found):
    return [s.call for s in found.segments if isinstance(s.call, ShapeStream)]


def said(caught):
    return [str(w.message) for w in caught if ANEW in str(w.message)]


@pytest.mark.parametrize("interprets", [False, True])
def test_only_the_operator_without_a_rule_is_compiled_for_each_shape(interprets, steps):
    fluid.set_flags({"FLAGS_interpret_first_steps": interprets})
    with pytest.warns(RuntimeWarning) as caught:
        same(windows, rows())
    (text,) = said(caught)
    assert text.startswith("one operator of this program is compiled anew")
    assert "(operator pool2d, made at File" in text and "test_divided.py" in text
    divided = steps[0]
    assert [s.exact for s in divided.plan.segments] == [False, True, False, True, False]
    assert parts(divided) == [["pool2d"], ["pool2d_grad"]]
    for stream in streams(divided):
        assert stream._traces and not stream._refused
        assert len(stream._exact) + sum(len(t.buckets) for t in stream._traces) <= 5


def test_a_second_process_divides_the_program_at_its_first_step(folder, steps):
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    with pytest.warns(RuntimeWarning, match=ANEW):
        train(windows, rows(), True)
        finish()
        train(windows, rows()[:1], True)
    first, second = steps
    assert parts(second) == parts(first)


def test_a_program_with_many_such_operators_stays_whole(steps, monkeypatch):
    def several():
        x = fluid.data("x", [None, 1, None, 4])
        return [layers.reduce_sum(layers.adaptive_pool2d(x, [i, 4], pool_type="avg")) for i in (2, 3, 4)]

    monkeypatch.setattr(step, "_MOST_EXACT", 2)
    with pytest.warns(RuntimeWarning) as caught:
        same(several, rows())
    assert parts(steps[0]) == [["pool2d"]] * 2
    assert [text.split(" is ")[0] for text in said(caught)] == ["one operator of this program", "this program"]


def test_a_history_that_names_no_operator_of_the_program_is_refused(steps):
    with pytest.warns(RuntimeWarning, match=ANEW):
        train(windows, rows(), True)
    history = steps[0].size_history()
    history.segments["0 of 1"].refused_at = 10_000
    train(windows, rows()[:1], True)
    with pytest.raises(errors.FeedError, match="name operator 10000, which is none here"):
        steps[1].recall(history)
