"""Filters that steps hold in the order of products: users see Fluid's."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime import filter_layouts
from jfluid.dygraph import lazy_graph
from jfluid.dygraph.base import guard, to_variable

pytestmark = pytest.mark.usefixtures("interpreted_steps")

X = np.random.RandomState(0).randn(2, 3, 8, 8).astype("float32")


def _history(dtype="float32"):
    """What a user sees who trains, reads and sets; the orders of the filters after steps, and how many
    steps were compiled for those that begin after the filter was read or set.
    """
    with guard(fluid.CPUPlace()):
        program = fluid.default_main_program()
        program.random_seed = 5
        net = fluid.dygraph.Sequential(
            fluid.dygraph.Conv2D(3, 4, 3, act="relu", dtype=dtype),
            fluid.dygraph.Conv2D(4, 40, 3, dtype=dtype),
        )
        optimizer = fluid.optimizer.Momentum(0.1, 0.9, parameter_list=net.parameters())
        seen = []

        def step():
            loss = fluid.layers.mean(fluid.layers.square(net(to_variable(X.astype(dtype)))))
            loss.backward()
            optimizer.minimize(loss)
            seen.append(loss.numpy())

        for _ in range(3):
            step()
        weight = net[1].weight
        orders = [p.held.order for p in net.parameters()]
        compiled = program.tracer.graph.compiled
        seen += [weight.numpy(), weight.gradient(), fluid.layers.reduce_sum(weight, dim=1).numpy()]
        step()
        weight.set_value(weight.numpy() * 0.5)
        step()
        net[0].weight.set_value(net[0].weight)
        step()
        # the sum
        assert program.tracer.graph.compiled == compiled + 1
        seen += [p.numpy() for p in net.parameters()]
        return seen, orders


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_those_of_fluids_order_whoever_reads_and_sets_them(monkeypatch, dtype):
    found, orders = _history(dtype)
    assert orders == [(2, 3, 1, 0), None, (2, 3, 1, 0), None]
    monkeypatch.setattr(filter_layouts, "wanted", lambda ops, shape, device: {})
    monkeypatch.setattr(lazy_graph, "_graphs", {})  # nothing is compiled yet
    expected, orders = _history(dtype)
    assert orders == [None] * 4
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_operators_that_run_one_by_one_read_held_filters(monkeypatch):
    with guard(fluid.CPUPlace()):
        conv = fluid.dygraph.Conv2D(3, 4, 3)
        optimizer = fluid.optimizer.SGD(0.1, parameter_list=conv.parameters())
        loss = fluid.layers.mean(conv(to_variable(X)))
        loss.backward()
        optimizer.minimize(loss)
        loss.numpy()
        assert conv.weight.held.order is not None
        expected = conv(to_variable(X)).numpy()
        waiting = fluid.default_main_program().tracer.graph
        monkeypatch.setattr(waiting, "_goes_one_by_one", lambda *_: True)
        found = conv(to_variable(X)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
