"""layers.embedding, fluid.embedding and both one_hot."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers

IDS = np.array([[1], [3], [1]])


def start(build, ids):
    """(program, scope, executor, what `build` returned) after the startup program ran."""
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        variable = program.global_block().create_var(
            name="ids", shape=[-1, *ids.shape[1:]], dtype="int64", is_data=True, stop_gradient=True
        )
        built = build(variable)
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    return program, scope, exe, built


@pytest.mark.parametrize(
    ("embedding", "ids", "rows"),
    [
        (layers.embedding, IDS, IDS[:, 0]),
        (fluid.embedding, IDS, IDS),
        (fluid.embedding, IDS[:, 0], IDS[:, 0]),
    ],
)
def test_embedding(embedding, ids, rows):
    program, scope, exe, out = start(lambda v: embedding(v, size=[10, 3]), ids)
    assert out.name == "embedding_0.tmp_0" and out.shape == (-1, *rows.shape[1:], 3)
    table, value = exe.run(program, feed={"ids": ids}, fetch_list=["embedding_0.w_0", out], scope=scope)
    np.testing.assert_array_equal(value, table[rows])
    assert table.shape == (10, 3) and np.ptp(table) > 0


@pytest.mark.parametrize(("embedding", "sparse"), [(layers.embedding, True), (fluid.embedding, False)])
def test_gradient_and_padding(embedding, sparse):
    def net(ids):
        rows = embedding(ids, [4, 2], is_sparse=sparse, padding_idx=-1, dtype="float64", param_attr="table")
        loss = ids.block.create_var(name="loss")
        ids.block.append_op("mean", {"X": rows}, {"Out": loss})
        return rows, fluid.append_backward(loss)[0][1]

    program, scope, exe, (rows, grad) = start(net, IDS)
    rows, grad = exe.run(program, feed={"ids": IDS}, fetch_list=[rows, grad], scope=scope)
    np.testing.assert_array_equal(rows.reshape(3, 2)[1], [0, 0])
    trained = 1 if sparse else 0  # Fluid's sparse gradient trains the padding row all the same
    np.testing.assert_allclose(grad, np.array([[0], [2], [0], [trained]]) / 6 * np.ones(2))
    lookup = program.global_block().ops[0]
    assert lookup.attr("padding_idx") == 3 and lookup.attr("remote_prefetch") is sparse


def test_tables_are_shared_by_name():
    def net(ids):
        return [fluid.embedding(ids, [4, 2], param_attr=fluid.ParamAttr(name="shared")) for _ in range(2)]

    program, scope, exe, pair = start(net, IDS)
    assert [p.name for p in program.all_parameters()] == ["shared"]
    first, second = exe.run(program, feed={"ids": IDS}, fetch_list=pair, scope=scope)
    np.testing.assert_array_equal(first, second)


def test_wrong_arguments_raise():
    for build, error, message in (
        (
            lambda v: layers.embedding(v, [4]),
            errors.ShapeError,
            r"expected \[rows, width\], found \[4\]",
        ),
        (
            lambda v: layers.embedding(v, [4, 2], padding_idx=4),
            ValueError,
            "padding_idx: expected a number",
        ),
        (
            lambda v: layers.embedding(v, [4, 2]),
            errors.ShapeError,
            "expected ids of shape",
        ),
        (lambda v: layers.one_hot(v, 4), errors.ShapeError, "expected ids of shape"),
    ):
        with pytest.raises(error, match=message):
            start(build, np.zeros((3, 2), "int64"))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_distributed_table_is_an_ordinary_one_in_a_local_run(sparse):
    constant = fluid.ParamAttr(initializer=fluid.initializer.Constant(2.0))
    program, scope, exe, out = start(
        lambda v: fluid.embedding(v, [4, 2], is_sparse=sparse, is_distributed=True, param_attr=constant), IDS
    )
    (found,) = exe.run(program, feed={"ids": IDS}, fetch_list=[out], scope=scope)
    np.testing.assert_array_equal(found, np.full((*IDS.shape, 2), 2))


def test_one_hot():
    def net(ids):
        depth = layers.fill_constant([1], "int32", 4)
        return [
            layers.one_hot(ids, 4),
            fluid.one_hot(ids, depth),
            layers.one_hot(ids, 3, allow_out_of_range=True),
        ]

    program, scope, exe, built = start(net, IDS)
    assert [v.name for v in built] == ["one_hot_0.tmp_0", "one_hot_v2_0.tmp_0", "one_hot_1.tmp_0"]
    assert built[0].stop_gradient and built[0].shape == (-1, 4) and built[1].shape == (-1, 1, -1)
    flat, deep, narrow = exe.run(program, feed={"ids": IDS}, fetch_list=built, scope=scope)
    np.testing.assert_array_equal(flat, np.eye(4)[[1, 3, 1]])
    np.testing.assert_array_equal(deep[:, 0], flat)
    np.testing.assert_array_equal(narrow, flat[:, :3])
