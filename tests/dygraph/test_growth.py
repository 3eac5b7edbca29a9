"""What imperative mode keeps of steps that differ has bounds."""

import gc

import numpy as np
import pytest

import jfluid as fluid
from jfluid.dygraph import calls, lazy_graph, lazy_values
from jfluid.dygraph.lazy_graph import graph_on


@pytest.fixture
def new(monkeypatch):
    """What is pending, nothing of which is known yet."""
    monkeypatch.setattr(lazy_graph, "_graphs", {})
    with fluid.dygraph.guard(fluid.CPUPlace()):
        yield graph_on(fluid.CPUPlace().device())


def train(rates, rows=lambda n: 2):
    """The loss after steps of which each has another learning rate, and multiplies by another number."""
    net = fluid.dygraph.Linear(2, 2, param_attr=fluid.initializer.Constant(0.5))
    for n, rate in enumerate(rates):
        optimizer = fluid.optimizer.Adam(rate, parameter_list=net.parameters())
        x = fluid.dygraph.to_variable(np.ones((rows(n), 2), "float32"))
        loss = fluid.layers.mean(fluid.layers.scale(fluid.layers.relu(net(x)), 1.0 + rate))
        loss.backward()
        optimizer.minimize(loss)
        net.clear_gradients()
    return loss.numpy().item()


def size_of(root):
    """How many nodes and replays a trie has."""
    left, count = [root], 0
    while left:
        node = left.pop()
        children = list({id(child): child for child in node.children.values()}.values())
        left += children
        count += len(children) + len(node.replays)
    return count


def test_a_large_trie_is_forgotten(new, monkeypatch):
    rates = [0.01 * n for n in range(1, 9)]
    expected = train(rates)
    most = size_of(new._root)
    assert most <= new._trie_size  # all are counted
    monkeypatch.setattr(lazy_graph, "_MOST_NODES", most // 3)
    for _ in range(3):
        assert train(rates) == expected
        assert size_of(new._root) <= most // 3 + most // 4  # the last step began before


def test_records_that_were_seen_are_not_kept_for_that(new):
    train([0.01, 0.02, 0.03])
    assert new._seen and all(type(key) is int for key in new._seen)


def test_kinds_of_arrays_go_with_the_arrays(new):
    def run(rows):
        x = fluid.dygraph.to_variable(np.ones((rows, 3), "float32"))
        assert lazy_values._avals[x.held.array.shape, x.held.array.dtype] is x.held.aval

    gc.collect()
    before = len(lazy_values._avals)
    for rows in range(100, 200):
        run(rows)
    gc.collect()
    assert len(lazy_values._avals) <= before + 2


def test_what_calls_give_is_kept_for_the_latest_inputs(new, monkeypatch):
    kept = type(calls._outputs)(4)
    monkeypatch.setattr(calls, "_outputs", kept)
    for rows in range(2, 12):
        x = fluid.dygraph.to_variable(np.ones((rows, 3), "float32"))
        assert list(fluid.layers.relu(x).shape) == [rows, 3]
    assert len(kept) == 4
