"""Operators that change shapes or the order of elements."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.lod_tensor import LoDTensor
from jfluid.ops import registry, static_values
from tests.op_case import check

RNG = np.random.RandomState(0)


def floats(*shape):
    return RNG.randn(*shape).astype("float32")


def marker(x):
    return np.zeros((0, *x.shape), x.dtype)


def call(op_type, *inputs, **attrs):
    with jax.enable_x64(True):
        return registry.get(op_type).fn(*inputs, **attrs)


@pytest.mark.parametrize(
    "target, result",
    [([0, -1, 2], (2, 6, 2)), ([-1], (24,)), ([4, 6], (4, 6)), ([0, 0, 4, 1], (2, 3, 4, 1))],
)
def test_reshape(target, result):
    x = floats(2, 3, 4)
    check("reshape", {"X": x}, {"shape": target}, expect={"Out": x.reshape(result)}, grad=("X",))
    check(
        "reshape2",
        {"X": x},
        {"shape": target},
        expect={"Out": x.reshape(result), "XShape": marker(x)},
        grad=("X",),
    )


@pytest.mark.parametrize("target", [[-1, -1], [5, -1], [2, 2], [1, 1, 1, 0], [-2, 3]])
def test_reshape_refuses_shapes_that_do_not_fit(target):
    with pytest.raises(errors.ShapeError, match="reshape"):
        call("reshape", floats(2, 3, 4), None, [], shape=target)


def test_reshape_by_tensors_that_are_known():
    x = floats(2, 6)
    out = call("reshape", x, None, [np.array([3], "int32"), np.array([-1], "int32")], shape=(-1, -1))
    np.testing.assert_array_equal(out, x.reshape(3, 4))
    np.testing.assert_array_equal(call("reshape", x, np.array([4, 3], "int32"), [], shape=(1,)), x.reshape(4, 3))


def test_reshape_by_fed_numbers_says_what_to_do():
    def traced(shape):
        return call("reshape", floats(2, 6), shape, [], shape=())

    with pytest.raises(errors.OpError, match="shape of reshape depends on data"):
        jax.jit(traced)(np.array([3, 4], "int32"))


@pytest.mark.parametrize(
    "x_shape, target, result",
    [
        ((-1, 4), [-1, 2, 2], (-1, 2, 2)),
        ((-1, 4), [0, -1, 2], (-1, 2, 2)),
        ((-1, 4), [6, 4], (6, 4)),
        ((-1, 7), [-1, 11], (-1, 11)),
        ((-1, 4), [2, -1], (2, -1)),
        ((-1, -1, 4), [0, 0, 2, 2], (-1, -1, 2, 2)),
    ],
)
def test_reshape_infers_unknown_dimensions(x_shape, target, result):
    assert inferred("reshape", x_shape, shape=target) == result


def inferred(op_type, x_shape, *rest, **attrs):
    found = []
    for p in static_values.PLACEHOLDERS:
        x = jax.ShapeDtypeStruct([p if d == -1 else d for d in x_shape], "float32")
        ins = [x] + [None] * (len(registry.get(op_type).ins) - 1 - len(rest)) + list(rest)
        with static_values.inferring(p):
            found.append(jax.eval_shape(lambda *v: registry.get(op_type).fn(*v, **attrs), *ins).shape)
    return tuple(a if a == b else -1 for a, b in zip(*found, strict=True))


def test_transpose():
    x = floats(2, 3, 4)
    out = x.transpose(2, 0, 1)
    check("transpose", {"X": x}, {"axis": [2, 0, 1]}, expect={"Out": out}, grad=("X",))
    check(
        "transpose2",
        {"X": x},
        {"axis": [2, 0, 1]},
        expect={"Out": out, "XShape": marker(x)},
        grad=("X",),
    )
    with pytest.raises(errors.ShapeError, match="permute the 3 dimensions"):
        call("transpose", x, axis=(0, 1))


@pytest.mark.parametrize(
    "given, axes, result",
    [
        ((2, 1, 3, 1), [], (2, 3)),
        ((1, 3, 1), [0], (3, 1)),
        ((1, 3, 1), [-1], (1, 3)),
        ((1, 3, 1), [0, 2], (3,)),
    ],
)
def test_squeeze(given, axes, result):
    x = floats(*given)
    check("squeeze", {"X": x}, {"axes": axes}, expect={"Out": x.reshape(result)}, grad=("X",))
    check(
        "squeeze2",
        {"X": x},
        {"axes": axes},
        expect={"Out": x.reshape(result), "XShape": marker(x)},
        grad=("X",),
    )


def test_squeeze_refuses_a_larger_dimension():
    with pytest.raises(errors.ShapeError, match="size 1"):
        call("squeeze", floats(1, 3), axes=(1,))


@pytest.mark.parametrize(
    "axes, result",
    [([0, -1], (1, 2, 3, 1)), ([1], (2, 1, 3)), ([0, 1], (1, 1, 2, 3)), ([2, 0], (1, 2, 3, 1))],
)
def test_unsqueeze(axes, result):
    x = floats(2, 3)
    check("unsqueeze", {"X": x}, {"axes": axes}, expect={"Out": x.reshape(result)}, grad=("X",))
    check(
        "unsqueeze2",
        {"X": x},
        {"axes": axes},
        expect={"Out": x.reshape(result), "XShape": marker(x)},
        grad=("X",),
    )


def test_unsqueeze_by_tensors():
    assert call("unsqueeze", floats(2, 3), None, [np.array([1]), np.array([0])], axes=()).shape == (
        1,
        2,
        1,
        3,
    )
    with pytest.raises(errors.ShapeError, match="axis 5"):
        call("unsqueeze", floats(2, 3), None, [], axes=(5,))


@pytest.mark.parametrize("axis, result", [(0, (1, 24)), (1, (2, 12)), (3, (24, 1))])
def test_flatten(axis, result):
    x = floats(2, 3, 4)
    check("flatten", {"X": x}, {"axis": axis}, expect={"Out": x.reshape(result)}, grad=("X",))
    check(
        "flatten2",
        {"X": x},
        {"axis": axis},
        expect={"Out": x.reshape(result), "XShape": marker(x)},
        grad=("X",),
    )


def test_concat():
    x, y = floats(2, 3), floats(2, 1)
    check(
        "concat",
        {"X": [x, y]},
        {"axis": -1},
        expect={"Out": np.concatenate([x, y], 1)},
        grad=("X",),
    )
    np.testing.assert_array_equal(call("concat", [x, x], np.array([1], "int32"), axis=0), np.concatenate([x, x], 1))
    with pytest.raises(errors.ShapeError, match="concat: expected inputs of one shape"):
        call("concat", [x, y], None, axis=0)


def test_concat_infers_from_the_known_dimension():
    def concat(p):
        xs = [jax.ShapeDtypeStruct((p, 4), "float32"), jax.ShapeDtypeStruct((3, 2), "float32")]
        with static_values.inferring(p):
            return jax.eval_shape(lambda a, b: registry.get("concat").fn([a, b], None, axis=1), *xs).shape

    assert [concat(p) for p in static_values.PLACEHOLDERS] == [(3, 6), (3, 6)]


@pytest.mark.parametrize(
    "attrs, sizes",
    [
        ({"num": 2, "axis": 1}, (3, 3)),
        ({"sections": [1, -1, 2], "axis": -1}, (1, 3, 2)),
        ({"sections": [2, 4], "axis": 1}, (2, 4)),
    ],
)
def test_split(attrs, sizes):
    x = floats(2, 6)
    check("split", {"X": x}, attrs, expect={"Out": np.split(x, np.cumsum(sizes)[:-1], 1)}, grad=("X",))


def test_split_by_tensors_and_its_errors():
    x = floats(2, 6)
    parts = call("split", x, np.array([1], "int32"), [np.array([2]), np.array([4])], sections=(2, -1))
    assert [p.shape for p in parts] == [(2, 2), (2, 4)]
    for attrs in ({"num": 4, "axis": 1}, {"sections": (2, 2), "axis": 1}):
        with pytest.raises(errors.ShapeError, match="split: dimension 1 of size 6"):
            call("split", x, None, [], **attrs)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack_and_its_inverses(axis):
    x, y = floats(2, 3), floats(2, 3)
    out = np.stack([x, y], axis)
    check("stack", {"X": [x, y]}, {"axis": axis}, expect={"Y": out}, grad=("X",))
    check("unstack", {"X": out}, {"axis": axis, "num": 2}, expect={"Y": [x, y]}, grad=("X",))
    check("unbind", {"X": out}, {"axis": axis}, expect={"Out": [x, y]}, grad=("X",))


def test_stack_refuses_different_shapes():
    with pytest.raises(errors.ShapeError, match="stack: expected inputs of one shape"):
        call("stack", [floats(2, 3), floats(3, 2)], axis=0)
    with pytest.raises(errors.ShapeError, match="num = 3"):
        call("unstack", floats(2, 3), axis=0, num=3)


def test_expand():
    x = floats(2, 3)
    check(
        "expand",
        {"X": x},
        {"expand_times": [2, 1]},
        expect={"Out": np.tile(x, (2, 1))},
        grad=("X",),
    )
    assert call("expand", x, np.array([1, 2]), [], expand_times=()).shape == (2, 6)
    assert call("expand", x, None, [np.array([2]), np.array([2])], expand_times=(2, -1)).shape == (
        4,
        6,
    )
    with pytest.raises(errors.ShapeError, match="expected 2 positive numbers"):
        call("expand", x, None, [], expand_times=(1, 2, 3))


def test_expand_as():
    x, target = floats(1, 2), floats(3, 4)
    check(
        "expand_as",
        {"X": x, "target_tensor": target},
        expect={"Out": np.tile(x, (3, 2))},
        grad=("X",),
    )
    with pytest.raises(errors.ShapeError, match="no multiple"):
        call("expand_as", floats(2, 3), floats(3, 3))


def test_reverse_flip_roll():
    x = floats(3, 4)
    check("reverse", {"X": x}, {"axis": [-1]}, expect={"Out": x[:, ::-1]}, grad=("X",))
    check("flip", {"X": x}, {"dims": [0, 1]}, expect={"Out": x[::-1, ::-1]}, grad=("X",))
    out = np.roll(x, (1, -2), (0, 1))
    check("roll", {"X": x}, {"shifts": [1, -2], "dims": [0, 1]}, expect={"Out": out}, grad=("X",))
    check("roll", {"X": x}, {"shifts": [1]}, expect={"Out": np.roll(x, 1)}, grad=("X",))


def test_meshgrid():
    x, y = floats(2), floats(3)
    check(
        "meshgrid",
        {"X": [x, y]},
        expect={"Out": list(np.meshgrid(x, y, indexing="ij"))},
        grad=("X",),
    )


def test_shape_and_size_are_known_values():
    x = floats(2, 3)
    check("shape", {"Input": x}, expect={"Out": np.array([2, 3], "int32")})
    check("size", {"Input": x}, expect={"Out": np.array([6], "int64")})
    assert isinstance(call("shape", x), np.ndarray)


@pytest.mark.parametrize(
    "op_type, attrs",
    [
        ("reshape", {"shape": (-1,)}),
        ("squeeze", {}),
        ("transpose", {"axis": (1, 0)}),
        ("slice", {"axes": (0,), "starts": (0,), "ends": (1,)}),
        ("cast", {"in_dtype": 2, "out_dtype": 3}),
        ("increment", {"step": 1.0}),
        ("split", {"num": 1}),
    ],
)
def test_known_values_stay_known(op_type, attrs):
    x = np.array([[1, 2]], "int32")
    definition = registry.get(op_type)
    ins = [x] + [[] if s.many else None for s in definition.ins[1:]]
    result = definition.fn(*ins, **attrs)
    assert isinstance(result[0] if isinstance(result, list) else result, np.ndarray)


def test_channel_moves():
    x = np.arange(8, dtype="float32").reshape(1, 4, 1, 2)
    shuffled = np.array([[[0, 2, 1, 3], [4, 6, 5, 7]]], "float32").reshape(1, 1, 2, 4)
    check("pixel_shuffle", {"X": x}, {"upscale_factor": 2}, expect={"Out": shuffled}, grad=("X",))
    check("shuffle_channel", {"X": x}, {"group": 2}, expect={"Out": x[:, [0, 2, 1, 3]]}, grad=("X",))


def test_temporal_shift():
    x = np.arange(16, dtype="float32").reshape(4, 4, 1, 1)
    out = x.copy().reshape(2, 2, 4)
    out[:, 0, 0], out[:, 1, 0] = 0, x.reshape(2, 2, 4)[:, 0, 0]
    out[:, 1, 1], out[:, 0, 1] = 0, x.reshape(2, 2, 4)[:, 1, 1]
    check(
        "temporal_shift",
        {"X": x},
        {"seg_num": 2, "shift_ratio": 0.25},
        expect={"Out": out.reshape(x.shape)},
        grad=("X",),
    )


def test_concat_joins_ragged_rows_without_padding():
    x = np.arange(6, dtype="float32").reshape(3, 2)
    y = x[:2] + 9
    a, b = LoDTensor(x, [[0, 2, 3]]), LoDTensor(y, [[0, 0, 2]])
    both = LoDTensor(np.concatenate([x, y]), [[0, 2, 3, 3, 5]])
    check("concat", {"X": [a, b]}, {"axis": 0}, expect={"Out": both}, grad=("X",))


def test_shape_and_size_of_ragged_rows():
    x = LoDTensor(np.ones((3, 2), "float32"), [[0, 2, 3]])
    check("shape", {"Input": x}, expect={"Out": np.array([3, 2], "int32")})
    check("size", {"Input": x}, expect={"Out": np.array([6], "int64")})


@pytest.mark.parametrize(
    "op_type, inputs, attrs",
    [
        ("concat", {"X": ["a", "b"]}, {"axis": 1}),
        ("split", {"X": ["a"]}, {"axis": -2, "num": 2}),
        ("squeeze", {"X": ["a"]}, {"axes": [2]}),
        ("index_select", {"X": ["a"], "Index": ["ids"]}, {"dim": 1}),
        ("slice", {"Input": ["a"]}, {"axes": [1], "starts": [0], "ends": [1]}),
        (
            "strided_slice",
            {"Input": ["a"]},
            {"axes": [-2], "starts": [0], "ends": [1], "strides": [1]},
        ),
        ("cumsum", {"X": ["a"]}, {"axis": 3}),
        ("maxout", {"X": ["a"]}, {"axis": 1, "groups": 2}),
    ],
)
def test_an_axis_that_a_tensor_lacks_is_refused(op_type, inputs, attrs):
    block = fluid.default_main_program().global_block()
    for name, dtype in {"a": "float32", "b": "float32", "ids": "int64"}.items():
        block.create_var(name=name, shape=[4], dtype=dtype)
    with pytest.raises(errors.ShapeError, match=f"{op_type}: axis .* of a tensor of 1 dimensions"):
        block.append_op(op_type, inputs, {"Out": [block.create_var(name="out")]}, attrs)
