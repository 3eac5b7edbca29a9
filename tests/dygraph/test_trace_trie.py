"""Calls that repeat are found where they were called before, and nothing that differs is taken for them."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.dygraph import lazy_graph, tracer
from jfluid.dygraph.base import guard, no_grad, to_variable
from jfluid.dygraph.trace_trie import TraceNode

X = np.arange(6, dtype="float32").reshape(2, 3)


def waiting():
    return fluid.default_main_program().tracer.graph


def variable(array=X):
    found = to_variable(array)
    found.stop_gradient = False
    return found


def test_the_same_calls_lead_to_the_same_point(monkeypatch):
    monkeypatch.setattr(lazy_graph, "_graphs", {})  # operators of other tests that are released make the trie anew
    with guard():
        found = []
        for scale in (2.0, 2.0, 3.0):
            layers.tanh(layers.scale(variable(), scale))
            found.append(waiting().node)
            waiting().run()
        assert found[0] is found[1] and found[1] != found[2]
        assert [record.call.definition.type for record in found[0].records()] == ["scale", "tanh"]


def test_nodes_are_bounded_and_those_made_anew_are_equal(monkeypatch):
    monkeypatch.setattr(lazy_graph, "_MOST_NODES", 8)
    monkeypatch.setattr(lazy_graph, "_graphs", {})
    with guard():
        program, nodes, compiled = waiting(), [], []
        for i in range(20):
            np.testing.assert_array_equal(layers.scale(variable(), 1.0 + i).numpy(), X * (1 + i))
            y = layers.relu(layers.scale(variable(), 0.5))
            nodes.append(program.node)
            np.testing.assert_array_equal(y.numpy(), X / 2)
            compiled.append(program.compiled)
            assert program._trie_size <= 8 + 2
        assert len({id(node) for node in nodes}) > 2 and len(set(nodes)) == 1
        assert compiled[-1] == 21  # that which repeats was compiled once
        assert sum(len(node.children) for node in nodes[:1]) == 0


def test_where_gradients_flow_is_part_of_a_point():
    with guard():
        x, other = variable(), variable(X + 1)
        same = to_variable(X)
        for stops, grad in ((False, True), (True, True), (False, False)) * 2:
            same.stop_gradient = stops
            if grad:
                y = layers.reduce_sum(same * x)
            else:
                with no_grad():
                    y = layers.reduce_sum(same * x)
            assert y.stop_gradient is not grad
            layers.reduce_sum(other * y).backward()
            np.testing.assert_allclose(other.gradient(), np.full_like(X, (X * X).sum()))
            if grad:
                np.testing.assert_allclose(x.gradient(), X * (X + 1).sum())
                assert stops or same.gradient() is not None
            for v in (x, same, other):
                v.clear_gradient()


def test_two_variables_of_one_value_get_gradients_of_their_own():
    with guard():
        for twice in (False, True, False, True):
            x = variable()
            y = x if twice else x.detach()
            y.stop_gradient = False
            layers.reduce_sum(x * (y * y)).backward()
            np.testing.assert_allclose(x.gradient(), (3 if twice else 1) * X * X)
            np.testing.assert_allclose(y.gradient(), (3 if twice else 2) * X * X)


def test_a_call_that_fails_leaves_no_inputs_behind():
    with guard():
        for _ in range(2):
            x = variable()
            y = layers.scale(x, 2.0)
            node, leaves = waiting().node, len(waiting().leaves)
            with pytest.raises(errors.JFluidError):
                layers.elementwise_add(y, variable(np.ones((5, 7), "float32")))
            with pytest.raises(errors.ProgramError, match="has no value"):
                layers.elementwise_add(variable(), fluid.dygraph.varbase.VarBase())
            assert waiting().node is node and len(waiting().leaves) == leaves
            layers.reduce_sum(y * variable(X + 1)).backward()
            np.testing.assert_allclose(x.gradient(), 2 * (X + 1))


def test_numbers_that_are_known_are_told_from_those_that_are_not():
    with guard():
        for width in (2, 3, 2, 3):
            shape = layers.concat([layers.shape(to_variable(np.ones((6 // width, 1), "float32")))[:1]])
            count = layers.cast(shape, "int32")
            assert layers.reshape(variable(), [6 // width, width]).shape == [6 // width, width]
            given = layers.elementwise_mul(count, to_variable(np.array([width], "int32")))
            found = layers.fill_constant(given, "float32", 1.5)
            np.testing.assert_array_equal(found.numpy(), np.full(6, 1.5, "float32"))


def test_an_update_in_place_is_told_from_one_that_is_not():
    def updated(in_place):
        param, state = variable(X + 1), [variable(X * 0 + 0.5) for _ in range(2)]
        outs = [param, *state] if in_place else [fluid.dygraph.varbase.VarBase() for _ in range(3)]
        fluid.default_main_program().global_block().append_op(
            "adadelta",
            {
                "Param": param,
                "Grad": to_variable(X + 1),
                "AvgSquaredGrad": state[0],
                "AvgSquaredUpdate": state[1],
            },
            dict(zip(("ParamOut", "AvgSquaredGradOut", "AvgSquaredUpdateOut"), outs)),
            {"rho": 0.9, "epsilon": 1e-6},
        )
        return outs[0].numpy()

    with guard():
        found = [updated(in_place) for in_place in (True, False, True, False)]
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])
    assert not np.allclose(found[0], found[1])


def test_a_point_forgets_what_follows_without_recursion():
    first = node = TraceNode()
    for _ in range(5000):
        following = TraceNode()
        node.children["next"] = following
        node = following
    first.forget()
    assert first.children == {}


def test_a_known_call_in_a_new_place_is_not_checked_anew(monkeypatch):
    """A loop with one more iteration makes new nodes of the trie, of calls that are known."""
    checked, own = [], tracer._call_of

    def counted(*args):
        checked.append(args[0])
        return own(*args)

    def step(count):
        x = to_variable(np.ones((2, 3), "float32"))
        for _ in range(count):
            x = layers.elementwise_add(layers.relu(x), x)
        return x.numpy()

    with guard(fluid.CPUPlace()):
        step(3)
        monkeypatch.setattr(tracer, "_call_of", counted)
        np.testing.assert_array_equal(step(6), np.full((2, 3), 64.0))
    assert checked == []
