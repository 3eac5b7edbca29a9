"""`fluid.op.Operator`: one operator on the variables of a scope."""

import importlib

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compat.fluid.op import Operator

PLACE = fluid.CPUPlace()


@pytest.fixture
def scope():
    return fluid.core.Scope()


def _set(scope, name, value, lod=None):
    tensor = scope.var(name).get_tensor()
    tensor.set(np.array(value, "float32"), PLACE)
    if lod:
        tensor.set_lod(lod)


def _get(scope, name):
    return np.array(scope.find_var(name).get_tensor())


def test_an_update_with_sparse_rows_adds_up_rows_that_come_twice(scope):
    _set(scope, "w", np.ones((4, 2)))
    _set(scope, "rate", [0.1])
    grad = scope.var("g").get_selected_rows()
    grad.set_height(4)
    grad.set_rows([1, 1, 3])
    grad.get_tensor().set(np.ones((3, 2), "float32"), PLACE)
    sgd = Operator("sgd", Param="w", Grad="g", LearningRate="rate", ParamOut="w")
    assert sgd.input_vars() == ["w", "g", "rate"] and sgd.outputs() == {"ParamOut": ["w"]}
    sgd.run(scope, PLACE)
    np.testing.assert_allclose(_get(scope, "w")[:, 0], [1, 0.8, 1, 0.9], rtol=1e-6)
    Operator("merge_selected_rows", X="g", Out="merged").run(scope, PLACE)
    merged = scope.find_var("merged").get_selected_rows()
    assert (merged.rows(), merged.height()) == ([1, 3], 4)


def test_sequences_host_operators_and_random_numbers(scope):
    _set(scope, "x", np.ones((3, 2)), [[0, 1, 3]])
    Operator("sequence_pool", X="x", Out="o", MaxIndex="i", pooltype="SUM").run(scope, PLACE)
    assert _get(scope, "o").tolist() == [[1, 1], [2, 2]]
    scope.var("c").get_tensor().set(np.array([False, True]))
    Operator("where_index", Condition="c", Out="found").run(scope, PLACE)
    assert _get(scope, "found").tolist() == [[1]]
    draw = Operator("uniform_random", Out="r", shape=[4], min=0.0, max=1.0)
    draw.run(scope, PLACE)
    first = _get(scope, "r")
    draw.run(scope, PLACE)
    assert ((first >= 0) & (first < 1)).all() and (first != _get(scope, "r")).any()


def test_what_cannot_run_is_named(scope):
    assert importlib.import_module("jfluid.op").Operator is Operator
    with pytest.raises(ValueError, match="no operator of type 'scal'"):
        Operator("scal", X="x", Out="o")
    with pytest.warns(RuntimeWarning, match="operator scale has no attribute factor"):
        Operator("scale", X="x", Out="o", factor=2.0)
    with pytest.raises(errors.UnsupportedError, match="operator while"):
        Operator("while", Condition="c")
    scale = Operator("scale", X="x", Out="o", scale=2.0)
    with pytest.raises(errors.UninitializedError, match="variable x: the scope has none"):
        scale.run(scope, PLACE)
    scope.var("x")
    with pytest.raises(errors.UninitializedError, match="variable x: the scope has no value"):
        scale.run(scope, PLACE)


def _rows(scope, name, rows, values, height=10):
    held = scope.var(name).get_selected_rows()
    held.set_height(height)
    held.set_rows(rows)
    held.sync_index()
    held.get_tensor().set(np.array(values, "float32"), PLACE)


def test_sgd_updates_a_parameter_that_holds_some_rows(scope):
    _rows(scope, "w", [7, 2, 5], np.ones((3, 2)))
    _rows(scope, "g", [5, 7, 5], [[1, 1], [2, 2], [3, 3]])
    _set(scope, "rate", [0.5])
    sgd = Operator("sgd", Param="w", Grad="g", LearningRate="rate", ParamOut="w")
    sgd.run(scope, PLACE)
    found = scope.find_var("w").get_selected_rows()
    assert found.rows() == [7, 2, 5]
    assert np.array(found.get_tensor())[:, 0].tolist() == [0, 1, -1]
    _rows(scope, "g", [6], [[1, 1]])
    with pytest.raises(errors.JFluidError, match="sgd: Grad: the table has no row 6"):
        sgd.run(scope, PLACE)


@pytest.mark.parametrize(("op", "shape"), [("lookup_table", (2, 2, 1)), ("lookup_table_v2", (2, 2))])
def test_look_ups_in_a_table_that_holds_some_rows(scope, op, shape):
    _rows(scope, "w", [7, 2, 5], [[1, 2], [3, 4], [5, 6]])
    scope.var("ids").get_tensor().set(np.array([5, 2, 2, 7], "int64").reshape(shape), PLACE)
    Operator(op, W="w", Ids="ids", Out="o", padding_idx=2).run(scope, PLACE)
    assert _get(scope, "o").tolist() == [[[5, 6], [0, 0]], [[0, 0], [1, 2]]]
    scope.var("ids").get_tensor().set(np.array([4], "int64"), PLACE)
    with pytest.raises(errors.JFluidError, match="look-up: Ids: the table has no row 4"):
        Operator("lookup_table_v2", W="w", Ids="ids", Out="o").run(scope, PLACE)


def test_operators_that_fill_selected_rows(scope):
    values = scope.var("x").get_selected_rows().get_tensor()
    Operator("fill_constant", Out="x", shape=[3, 2], value=3.5).run(scope, PLACE)
    assert np.array(values).tolist() == [[3.5] * 2] * 3
    Operator("uniform_random", Out="x", shape=[50, 4], min=-5.0, max=10.0, seed=1).run(scope, PLACE)
    assert np.array(values).shape == (50, 4) and -5 <= np.array(values).min() < 0
