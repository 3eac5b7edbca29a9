"""Training with `is_sparse=True`: each optimizer as in the real Fluid, and no cost by the table's
height.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.ir.types import VarType
from jfluid.ops.selected_rows import SelectedRows
from tests.parity.sparse import OPTIMIZERS, VARIANTS, table, train

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "sparse.json").read_text())


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_and_table_are_fluids(name):
    losses, values = train(fluid, name)
    np.testing.assert_allclose(losses, GOLDEN[name]["losses"], rtol=1e-5)
    np.testing.assert_allclose(values, GOLDEN[name]["table"], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - set(VARIANTS)))
def test_optimizers_without_a_sparse_form_refuse(name):
    with pytest.raises(
        errors.UnsupportedError,
        match=r"does not take sparse rows \(input Grad\): build the embedding with",
    ):
        train(fluid, name)


def test_the_gradient_is_declared_and_fetched_as_rows():
    ids = fluid.data("ids", [None, 1], dtype="int64")
    rows = layers.embedding(ids, [5, 2], is_sparse=True, param_attr="table")
    grad = fluid.append_backward(layers.reduce_sum(rows))[0][1]
    assert grad.type == VarType.SELECTED_ROWS and grad.shape == (5, 2)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"ids": np.array([[1], [3], [1]])}
    (found,) = exe.run(feed=feed, fetch_list=[grad], return_numpy=False)
    assert (found.rows(), found.height()) == ([1, 3, 1], 5)
    np.testing.assert_array_equal(np.array(found.get_tensor()), np.ones((3, 2)))
    (found,) = exe.run(feed=feed, fetch_list=[grad])
    np.testing.assert_array_equal(found, [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]])


def test_merged_rows_and_their_tensor():
    ids = fluid.data("ids", [None, 1], dtype="int64")
    rows = layers.embedding(ids, [5, 2], is_sparse=True, param_attr="table")
    grad = fluid.append_backward(layers.reduce_sum(rows))[0][1]
    merged = layers.merge_selected_rows(grad)
    tensor = layers.get_tensor_from_selected_rows(merged)
    fetches = [
        merged,
        tensor,
        layers.reduce_mean(tensor),
        layers.get_tensor_from_selected_rows(grad),
    ]
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    found = exe.run(feed={"ids": np.array([[3], [1], [3]])}, fetch_list=fetches, return_numpy=False)
    assert found[0].rows() == [1, 3]
    np.testing.assert_array_equal(np.array(found[0].get_tensor()), [[1, 1], [2, 2]])
    np.testing.assert_array_equal(np.array(found[1]), [[1, 1], [2, 2]])
    np.testing.assert_array_equal(np.array(found[2]), [1.5])
    np.testing.assert_array_equal(np.array(found[3]), np.ones((3, 2)))
    with pytest.raises(errors.UnsupportedError, match="operator relu does not take sparse rows"):
        layers.relu(grad)


def test_sums_and_numbers_of_rows():
    """A sum has each row once; what is no linear map takes the rows as they are, twice or not."""
    ids = fluid.data("ids", [None, 1], dtype="int64")
    rows = layers.embedding(ids, [5, 2], is_sparse=True, param_attr="table")
    grad = fluid.append_backward(layers.reduce_sum(rows) * 3.0)[0][1]
    dense = layers.fill_constant([5, 2], "float32", 1.0)
    twice = layers.sums([grad, grad])
    fetches = [
        twice,
        layers.sums([grad, dense]),
        layers.square(grad),
        layers.square(twice),
        layers.isfinite(grad),
        layers.has_nan(grad),
        layers.has_inf(grad),
    ]
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    total, mixed, squares, merged_squares, finite, nan, inf = exe.run(
        feed={"ids": np.array([[3], [1], [3]])}, fetch_list=fetches, return_numpy=False
    )
    assert total.rows() == merged_squares.rows() == [1, 3] and squares.rows() == [3, 1, 3]
    np.testing.assert_array_equal(np.array(total.get_tensor()), [[6, 6], [12, 12]])
    np.testing.assert_array_equal(np.array(mixed), [[1, 1], [4, 4], [1, 1], [7, 7], [1, 1]])
    np.testing.assert_array_equal(np.array(squares.get_tensor()), np.full((3, 2), 9))
    np.testing.assert_array_equal(np.array(merged_squares.get_tensor()), [[36, 36], [144, 144]])
    assert np.array(finite) and not np.array(nan) and not np.array(inf)


def test_a_penalty_goes_beside_the_sparse_gradient():
    ids = fluid.data("ids", [None, 1], dtype="int64")
    rows = layers.embedding(ids, [5, 2], is_sparse=True, param_attr="table")
    optimizer = fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.1))
    optimizer.minimize(layers.reduce_sum(rows))
    block = fluid.default_main_program().global_block()
    sums = [op for op in block.ops if op.type == "sum"]
    assert [op.output("Out") for op in sums] == [["table@GRAD@NEWGRAD@"]]
    assert block.var("table@GRAD").type == VarType.SELECTED_ROWS
    assert block.var("table@GRAD@NEWGRAD@").type == VarType.LOD_TENSOR


def test_merging_adds_up_what_occurs_twice():
    rng = np.random.RandomState(0)
    rows, values = rng.randint(0, 9, 50), rng.randn(50, 3)
    with jax.enable_x64(True):
        # row 8 is to be ignored
        grad = SelectedRows(jax.numpy.asarray(rows), jax.numpy.asarray(values), 8)
        merged = grad.merged()
        np.testing.assert_allclose(np.asarray(merged.dense()), np.asarray(grad.dense()), atol=1e-12)
    kept = np.asarray(merged.rows)
    assert sorted(kept[kept < 8]) == sorted(set(rows[rows < 8]))


@pytest.mark.parametrize("name", ["sgd", "adagrad", "lazy_adam"])
def test_a_step_makes_no_copy_of_the_table(name):
    height, width = 10_000, 8
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        ids = fluid.data("ids", [64, 1], dtype="int64")
        loss = layers.mean(layers.square(layers.embedding(ids, [height, width], is_sparse=True, param_attr="table")))
        OPTIMIZERS[name](fluid).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(main, feed={"ids": np.arange(64).reshape(-1, 1)}, fetch_list=[loss])
    step = next(reversed(exe.engine._steps.values()))
    state = step._states[fluid.global_scope()]
    segment = step.segments[0]
    values = dict(state.reads)
    with jax.enable_x64(True):
        arguments = [
            tuple(values[n].value for n in segment.donated),
            tuple(values[n].value if n in values else np.zeros((64, 1), np.int64) for n in segment.kept),
            None,
        ]
        memory = segment.exact.lower(*arguments).compile().memory_analysis()
    assert memory.temp_size_in_bytes < table(height, width).nbytes / 10
    assert memory.alias_size_in_bytes >= table(height, width).nbytes


@pytest.mark.parametrize("op_type", ["nce_grad", "hierarchical_sigmoid_grad"])
def test_losses_over_many_classes_train_the_rows_they_used(op_type):
    found = []
    for is_sparse in (True, False):
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with (
            fluid.program_guard(main, startup),
            fluid.unique_name.guard(),
            fluid.scope_guard(fluid.Scope()),
        ):
            x, label = layers.data("x", [4]), layers.data("label", [1], dtype="int64")
            attr = fluid.ParamAttr(name="classes")
            if op_type == "nce_grad":
                cost = layers.nce(x, label, 50, param_attr=attr, num_neg_samples=3, is_sparse=is_sparse)
            else:
                cost = layers.hsigmoid(x, label, 50, param_attr=attr, is_sparse=is_sparse)
            fluid.optimizer.Adagrad(0.1).minimize(layers.mean(cost))
            grad = main.global_block().var("classes@GRAD")
            assert (grad.type == VarType.SELECTED_ROWS) == is_sparse
            assert op_type in [op.type for op in main.global_block().ops]
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            feed = {"x": np.ones((2, 4), "float32"), "label": np.array([[1], [40]])}
            values = [exe.run(main, feed=feed, fetch_list=[cost, grad]) for _ in range(2)]
            found.append(values[-1] + [np.array(fluid.global_scope().find_var("classes").get_tensor())])
            if is_sparse:
                (rows,) = exe.run(main, feed=feed, fetch_list=[grad], return_numpy=False)
                assert 0 < len(set(rows.rows())) <= 14
    for sparse, dense in zip(*found):
        np.testing.assert_allclose(sparse, dense, rtol=1e-5, atol=1e-7)
