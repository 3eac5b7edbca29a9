"""Operators that pick, place, pad or order elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import registry, static_values
from tests.op_case import check

RNG = np.random.RandomState(0)


def floats(*shape):
    return RNG.randn(*shape).astype("float32")


def call(op_type, *inputs, **attrs):
    with jax.enable_x64(True):
        return registry.get(op_type).fn(*inputs, **attrs)


def gradient_of(op_type, x, *rest, wrt=0, **attrs):
    """The gradient of sum(out * (1, 2, 3, ...)) in one input."""

    def loss(*values):
        out = registry.get(op_type).fn(*values, **attrs)
        return (out * jnp.arange(1.0, out.size + 1).reshape(out.shape)).sum()

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.grad(loss, wrt))(x, *rest))


@pytest.mark.parametrize("index", [np.array([2, 0]), np.array([[1], [2]], "int32")])
@pytest.mark.parametrize("overwrite", [True, False])
def test_gather(index, overwrite):
    x = floats(3, 4)
    check(
        "gather",
        {"X": x, "Index": index},
        {"overwrite": overwrite},
        expect={"Out": x[index.reshape(-1)]},
        grad=("X",),
    )


def test_gather_gradient_of_equal_indices():
    x, index = jnp.ones((3, 2)), np.array([1, 1, 0])
    np.testing.assert_array_equal(gradient_of("gather", x, index, overwrite=True), [[5, 6], [3, 4], [0, 0]])
    np.testing.assert_array_equal(gradient_of("gather", x, index, overwrite=False), [[5, 6], [4, 6], [0, 0]])


def test_reads_outside_show():
    x = jnp.ones((3, 2), "float32")
    out = np.asarray(call("gather", x, np.array([0, 3, -1])))
    np.testing.assert_array_equal(np.isnan(out), [[False] * 2, [True] * 2, [True] * 2])
    assert np.asarray(call("index_select", x.astype("int32"), np.array([2]), dim=1))[0, 0] == np.iinfo("int32").min


def test_gather_refuses_a_matrix_of_indices():
    with pytest.raises(errors.ShapeError, match=r"gather: expected indices of shape \[n\]"):
        call("gather", floats(3, 2), np.zeros((2, 2), "int32"))


def test_gather_nd():
    x = floats(2, 3, 4)
    pairs = np.array([[1, 2], [0, 0], [1, 2]])
    check(
        "gather_nd",
        {"X": x, "Index": pairs},
        expect={"Out": x[pairs[:, 0], pairs[:, 1]]},
        grad=("X",),
    )
    rows = np.array([[[1], [0]]])
    check("gather_nd", {"X": x, "Index": rows}, expect={"Out": x[rows[..., 0]]}, grad=("X",))
    with pytest.raises(errors.ShapeError, match="4 coordinates"):
        call("gather_nd", x, np.zeros((1, 4), "int64"))


def test_scatter_replaces_rows_by_the_last_of_equal_ones():
    x, updates = floats(3, 2), floats(3, 2)
    ids = np.array([1, 1, 0])
    out = x.copy()
    out[1], out[0] = updates[1], updates[2]
    check("scatter", {"X": x, "Ids": ids, "Updates": updates}, expect={"Out": out})


def test_scatter_adds_equal_rows():
    x, updates = floats(3, 2), floats(3, 2)
    out = x.copy()
    out[1], out[0] = updates[0] + updates[1], updates[2]
    check(
        "scatter",
        {"X": x, "Ids": np.array([1, 1, 0]), "Updates": updates},
        {"overwrite": False},
        expect={"Out": out},
    )


@pytest.mark.parametrize("overwrite", [True, False])
def test_scatter_gradients_are_those_of_fluid(overwrite):
    x, ids, updates = jnp.ones((3, 2)), np.array([1, 1]), jnp.ones((2, 2))
    whole = np.arange(1, 7).reshape(3, 2)
    np.testing.assert_array_equal(gradient_of("scatter", x, ids, updates, overwrite=overwrite), whole)
    np.testing.assert_array_equal(gradient_of("scatter", x, ids, updates, wrt=2, overwrite=overwrite), whole[[1, 1]])


def test_scatter_ignores_rows_outside_and_checks_shapes():
    x = floats(3, 2)
    np.testing.assert_array_equal(call("scatter", x, np.array([7]), floats(1, 2)), x)
    with pytest.raises(errors.ShapeError, match=r"scatter: expected updates of shape \(1, 2\)"):
        call("scatter", x, np.array([1]), floats(1, 3))


def test_scatter_nd_add():
    x, updates = floats(3, 4), floats(3)
    index = np.array([[1, 1], [1, 1], [0, 2]])
    out = x.copy()
    np.add.at(out, (index[:, 0], index[:, 1]), updates)
    check(
        "scatter_nd_add",
        {"X": x, "Index": index, "Updates": updates},
        expect={"Out": out},
        grad=("X", "Updates"),
    )
    with pytest.raises(errors.ShapeError, match="scatter_nd_add"):
        call("scatter_nd_add", x, index, floats(2))


def test_index_select_and_sample():
    x = floats(3, 4)
    check(
        "index_select",
        {"X": x, "Index": np.array([3, 1, 3])},
        {"dim": 1},
        expect={"Out": x[:, [3, 1, 3]]},
        grad=("X",),
    )
    index = np.array([[1, 3], [0, 0], [2, 1]])
    check(
        "index_sample",
        {"X": x, "Index": index},
        expect={"Out": np.take_along_axis(x, index, 1)},
        grad=("X",),
    )


def test_multiplex():
    x, y = floats(3, 2), floats(3, 2)
    ids = np.array([[1], [0], [1]], "int32")
    check("multiplex", {"Ids": ids, "X": [x, y]}, expect={"Out": np.where(ids, y, x)}, grad=("X",))


@pytest.mark.parametrize(
    "attrs, expected",
    [
        ({"axes": [0, 1], "starts": [0, -3], "ends": [2, 100]}, (slice(0, 2), slice(1, 4))),
        ({"axes": [1], "starts": [-10], "ends": [-1]}, (slice(None), slice(0, 3))),
        ({"axes": [0], "starts": [1], "ends": [2], "decrease_axis": [0]}, (1,)),
        (
            {"axes": [1], "starts": [-1], "ends": [10000000], "decrease_axis": [1]},
            (slice(None), -1),
        ),
    ],
)
def test_slice(attrs, expected):
    x = floats(3, 4)
    check("slice", {"Input": x}, attrs, expect={"Out": x[expected]}, grad=("Input",))


def test_slice_never_gives_rank_0():
    x = floats(3)
    attrs = {"axes": [0], "starts": [1], "ends": [2], "decrease_axis": [0]}
    check("slice", {"Input": x}, attrs, expect={"Out": x[1:2]})


@pytest.mark.parametrize("start, end", [(2, 1), (5, 10)])
def test_an_empty_slice_is_an_error(start, end):
    with pytest.raises(errors.ShapeError, match=r"slice: \[\d+:\d+\] of dimension 0 is empty"):
        call("slice", floats(3, 4), None, None, [], [], axes=(0,), starts=(start,), ends=(end,))


def test_slice_by_tensors():
    x = floats(3, 4)
    out = call(
        "slice",
        x,
        np.array([1, 0]),
        None,
        [],
        [np.array([3]), np.array([2])],
        axes=(0, 1),
        ends=(-1, -1),
    )
    np.testing.assert_array_equal(out, x[1:3, :2])


def test_slice_at_a_position_of_the_run():
    x = floats(3, 4)

    def at(i):
        return registry.get("slice").fn(
            x,
            None,
            None,
            [i],
            [i + 1],
            axes=(0,),
            starts=(-1,),
            ends=(-1,),
            infer_flags=(-1,),
            decrease_axis=(0,),
        )

    for i in (0, 2, -1):
        np.testing.assert_array_equal(jax.jit(at)(np.array([i], "int32")), x[i])


@pytest.mark.parametrize(
    "attrs, result",
    [
        ({"starts": (1,), "ends": (3,)}, (-1, 4)),
        ({"starts": (0,), "ends": (-1,)}, (-1, 4)),
        ({"starts": (0,), "ends": (1,), "decrease_axis": (0,)}, (4,)),
    ],
)
def test_slice_of_an_unknown_dimension(attrs, result):
    shapes = []
    for p in static_values.PLACEHOLDERS:
        with static_values.inferring(p):
            shapes.append(
                jax.eval_shape(
                    lambda x: registry.get("slice").fn(x, None, None, [], [], axes=(0,), **attrs),
                    jax.ShapeDtypeStruct((p, 4), "float32"),
                ).shape
            )
    assert tuple(a if a == b else -1 for a, b in zip(*shapes, strict=True)) == result


# (start, end, stride) of a vector of 5 -> the elements that Fluid 1.8.5 reads
STRIDED = {
    (0, 5, 2): [0, 2, 4],
    (-7, 7, 3): [0, 3],
    (1, -1, 2): [1, 3],
    (3, 0, -2): [3, 1],
    (4, 0, -2): [3, 1],
    (-1, -7, -1): [4, 3, 2, 1, 0],
    (3, -1, -2): [2, 0],
    (3, -5, -3): [1],
}


@pytest.mark.parametrize("bounds, elements", STRIDED.items())
def test_strided_slice(bounds, elements):
    x = floats(2, 5)
    start, end, stride = bounds
    check(
        "strided_slice",
        {"Input": x},
        {"axes": [1], "starts": [start], "ends": [end], "strides": [stride]},
        expect={"Out": x[:, elements]},
        grad=("Input",),
    )


def test_strided_slice_by_tensors():
    x = floats(5, 2)
    out = call(
        "strided_slice",
        x,
        None,
        None,
        np.array([2]),
        [np.array([1])],
        [],
        [],
        axes=(0,),
        ends=(5,),
        decrease_axis=(),
    )
    np.testing.assert_array_equal(out, x[1:5:2])
    with pytest.raises(errors.ShapeError, match=r"strided_slice: .* is empty"):
        call(
            "strided_slice",
            x,
            None,
            None,
            None,
            [],
            [],
            [],
            axes=(0,),
            starts=(3,),
            ends=(1,),
            strides=(1,),
        )


def test_pad():
    x = floats(2, 3)
    out = np.pad(x, ((0, 1), (2, 0)), constant_values=1.5)
    check(
        "pad",
        {"X": x},
        {"paddings": [0, 1, 2, 0], "pad_value": 1.5},
        expect={"Out": out},
        grad=("X",),
    )
    with pytest.raises(errors.ShapeError, match="expected 4 paddings"):
        call("pad", x, paddings=(1, 2))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pad2d(mode, layout):
    x = floats(1, 3, 3, 2) if layout == "NHWC" else floats(1, 2, 3, 3)
    pairs = [(0, 0), (1, 2), (2, 0)]
    pairs.insert(3 if layout == "NHWC" else 1, (0, 0))
    out = np.pad(x, pairs, constant_values=0.5) if mode == "constant" else np.pad(x, pairs, mode=mode)
    check(
        "pad2d",
        {"X": x},
        {"paddings": [1, 2, 2, 0], "mode": mode, "pad_value": 0.5, "data_format": layout},
        expect={"Out": out},
        grad=("X",),
    )
    np.testing.assert_array_equal(
        call(
            "pad2d",
            x,
            np.array([1, 2, 2, 0]),
            paddings=(),
            mode=mode,
            pad_value=0.5,
            data_format=layout,
        ),
        out,
    )


def test_pad_constant_like():
    x, y = floats(3, 4), floats(2, 3)
    check(
        "pad_constant_like",
        {"X": x, "Y": y},
        {"pad_value": 9.0},
        expect={"Out": np.pad(y, ((0, 1), (0, 1)), constant_values=9)},
        grad=("Y",),
    )
    with pytest.raises(errors.ShapeError, match="is larger than X"):
        call("pad_constant_like", y, x)


def test_crop():
    x = floats(3, 4)
    check(
        "crop",
        {"X": x},
        {"shape": [2, 2], "offsets": [1, 1]},
        expect={"Out": x[1:3, 1:3]},
        grad=("X",),
    )
    check("crop", {"X": x, "Y": floats(3, 2)}, expect={"Out": x[:3, :2]}, grad=("X",))
    check(
        "crop_tensor",
        {"X": x},
        {"shape": [-1, 2], "offsets": [1, 1]},
        expect={"Out": x[1:3, 1:3]},
        grad=("X",),
    )
    with pytest.raises(errors.ShapeError, match=r"crop: .* is not inside"):
        call("crop", x, None, None, shape=(2, 4), offsets=(1, 1))


def test_crop_by_tensors():
    x = floats(3, 4)
    out = call(
        "crop_tensor",
        x,
        None,
        None,
        [np.array([2]), np.array([-1])],
        [np.array([1]), np.array([2])],
        shape=(0, -1),
    )
    np.testing.assert_array_equal(out, x[1:3, 2:])
    moved = jax.jit(lambda at: registry.get("crop").fn(x, None, at, shape=(2, 2)))(np.array([1, 2], "int32"))
    np.testing.assert_array_equal(moved, x[1:3, 2:4])


def test_top_k():
    x = np.array([[1, 5, 3, 5], [4, 2, 9, 0]], "float32")
    check(
        "top_k",
        {"X": x},
        {"k": 2},
        expect={
            "Out": np.array([[5, 5], [9, 4]], "float32"),
            "Indices": np.array([[1, 3], [2, 0]]),
        },
    )
    check(
        "top_k",
        {"X": x[1:]},
        {"k": 2},
        expect={"Out": np.array([[9, 4]], "float32"), "Indices": None},
        grad=("X",),
    )
    assert call("top_k", x, np.array([3], "int32"))[0].shape == (2, 3)
    with pytest.raises(errors.ShapeError, match="k from 1 to 4"):
        call("top_k", x, None, k=5)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_argsort(axis, descending):
    x = floats(3, 4)
    indices = np.argsort(-x if descending else x, axis)
    check(
        "argsort",
        {"X": x},
        {"axis": axis, "descending": descending},
        expect={"Out": np.take_along_axis(x, indices, axis), "Indices": indices},
        grad=("X",),
    )


def test_arg_max_and_min():
    x = np.array([[1, 2, 2], [0, 3, -1]], "float32")
    check("arg_max", {"X": x}, {"axis": 1}, expect={"Out": np.array([1, 1])})
    check("arg_min", {"X": x}, {"axis": -1}, expect={"Out": np.array([0, 2])})
    check(
        "arg_max",
        {"X": x},
        {"axis": 0, "keepdims": True, "dtype": 2},
        expect={"Out": np.array([[0, 1, 0]], "int32")},
    )


def test_where():
    x, y = floats(2, 3), floats(2, 3)
    condition = x > 0
    check(
        "where",
        {"Condition": condition, "X": x, "Y": y},
        expect={"Out": np.where(condition, x, y)},
        grad=("X", "Y"),
    )
    with pytest.raises(errors.ShapeError, match="where: expected inputs of one shape"):
        call("where", condition[:, :1], x, y)


def test_where_index():
    x = np.array([[True, False], [True, True]])
    check(
        "where_index",
        {"Condition": x},
        expect={"Out": np.array([[0, 0], [1, 0], [1, 1]])},
        infer=False,
    )
    check(
        "where_index",
        {"Condition": np.zeros(3, bool)},
        expect={"Out": np.zeros((0, 1), "int64")},
        infer=False,
    )


def test_unique():
    x = np.array([2, 3, 3, 1, 5, 3])
    places = np.array([0, 1, 1, 2, 3, 1], "int32")
    values = np.array([2, 3, 1, 5])
    check("unique", {"X": x}, {"dtype": 2}, expect={"Out": values, "Index": places}, infer=False)
    check(
        "unique_with_counts",
        {"X": x},
        {"dtype": 3},
        expect={"Out": values, "Index": places.astype("int64"), "Count": np.array([1, 3, 1, 1])},
        infer=False,
    )


@pytest.mark.parametrize(
    "nshards, shard_id, ignore, expected",
    [(2, 0, -1, [1, 6, -1, -1]), (2, 1, -1, [-1, -1, 2, 9]), (3, 1, -5, [-5, -5, 5, -5])],
)
def test_shard_index(nshards, shard_id, ignore, expected):
    x = np.array([[1], [6], [12], [19]])
    check(
        "shard_index",
        {"X": x},
        {"index_num": 20, "nshards": nshards, "shard_id": shard_id, "ignore_value": ignore},
        expect={"Out": np.array(expected)[:, None]},
    )
