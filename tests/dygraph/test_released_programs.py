"""Programs of declared functions go: with what they were made for, and where there are too many. What they have
computed still has gradients.
"""

import gc
import weakref

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.dygraph import (
    Layer,
    Linear,
    ProgramTranslator,
    calls,
    declarative,
    guard,
    released_ops,
    to_variable,
)
from jfluid.dygraph.dygraph_to_static import program_translator
from jfluid.dygraph.lazy_graph import graph_on
from jfluid.ops import registry

X = np.array([1.0, 2.0], "float32")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(program_translator, "_MOST", 2)
    ProgramTranslator.reset()
    with guard(fluid.CPUPlace()):
        yield
    monkeypatch.undo()
    ProgramTranslator.reset()


@declarative
def function(x, number):
    return layers.reduce_sum(x * x * number)


def last():
    """The Program that was called last; it may go."""
    return weakref.ref(ProgramTranslator().get_program_cache().last().main_program)


def run_something():
    """A step, after which what was released is forgotten."""
    gc.collect()
    (to_variable(X) + 1.0).numpy()
    gc.collect()


def alive(found):
    return sum(one() is not None for one in found)


def kept():
    """What is kept of calls, Programs and their operators."""
    pending = graph_on(fluid.CPUPlace().device())
    return (
        len(ProgramTranslator().get_program_cache()._objects),
        len(registry._LOCAL),
        sum(call.definition.type.startswith("run_program") for call in calls._calls.values()),
        len(released_ops._types),
        len(pending._whole),
        len(pending._single),
    )


@pytest.mark.parametrize("waits", [False, True], ids=["pending", "ran"])
def test_a_backward_pass_goes_through_more_programs_than_are_kept(waits):
    x, found, total = to_variable(X), [], None
    x.stop_gradient = False
    for number in range(1, 6):
        part = function(x, float(number))
        found.append(last())
        if waits:
            part.numpy()
        total = part if total is None else total + part
    run_something()
    assert len(ProgramTranslator().get_program_cache()) == 2
    assert alive(found) == 5  # the gradients need them
    total.backward()
    np.testing.assert_allclose(x.gradient(), 2 * sum(range(1, 6)) * X, rtol=1e-6)
    del part, total
    run_something()
    assert alive(found) == 2


def test_what_is_kept_does_not_grow_with_the_signatures():
    def some(first):
        for number in range(first, first + 3):
            x = to_variable(X)
            x.stop_gradient = False
            loss = function(x, float(number))
            loss.backward()
            np.testing.assert_allclose(x.gradient(), 2 * number * X, rtol=1e-6)
        del loss, x
        run_something()
        return kept()

    some(1)
    before = some(100)
    assert some(200) == before and before[0] == 2


def test_programs_of_other_sizes_share_an_operator_that_goes_with_the_last_of_them():
    types, found = set(), []
    for size in range(2, 8):
        x = to_variable(np.arange(size, dtype="float32"))
        x.stop_gradient = False
        function(x, 3.0).backward()
        np.testing.assert_allclose(x.gradient(), 6 * np.arange(size), rtol=1e-6)
        types |= set(ProgramTranslator().get_program_cache().last().layer._types.values())
        found.append(last())
    del x
    run_something()
    assert len(types) == 2  # with gradients, and without
    assert len(ProgramTranslator().get_program_cache()) == 2
    assert alive(found) == 3  # two, and that of the operator
    assert types <= set(registry._LOCAL)
    ProgramTranslator.reset()
    run_something()
    assert alive(found) == 0
    assert not types & set(registry._LOCAL)


def test_the_programs_that_were_used_last_stay():
    for number in (1.0, 2.0, 1.0, 3.0):
        function(to_variable(X), number).numpy()
        if number == 1.0:
            program = last()
    function(to_variable(X), 1.0).numpy()
    assert last()() is program() is not None


def test_programs_of_large_functions_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(program_translator, "most_bytes", lambda: 1)
    ProgramTranslator.reset()
    for number in (1.0, 2.0):
        function(to_variable(X), number)
    assert len(ProgramTranslator().get_program_cache()) == 1


class Net(Layer):
    def __init__(self):
        super().__init__()
        self.inner = Linear(2, 2)

    @declarative
    def forward(self, x):
        return layers.reduce_sum(self.inner(x))


def test_programs_and_parameters_go_with_their_layers():
    net = Net()
    net(to_variable(X[None])).backward()
    found = [weakref.ref(net), weakref.ref(net.inner.weight), last()]
    del net
    function(to_variable(X), 1.0).numpy()  # what was used last stays until now
    run_something()
    assert alive(found) == 0
    assert len(ProgramTranslator().get_program_cache()) == 1


def test_a_layer_that_has_gone_can_still_be_saved(tmp_path):
    net = Net()
    weight = net.inner.weight.numpy()
    net(to_variable(X[None]))
    del net
    gc.collect()
    ProgramTranslator().save_inference_model(str(tmp_path))
    executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    with fluid.scope_guard(scope):
        program, names, fetches = fluid.io.load_inference_model(str(tmp_path), executor)
        (found,) = executor.run(program, {names[0]: X[None]}, fetches)
    np.testing.assert_allclose(found, (X @ weight).sum(), rtol=1e-5)
