"""Operators that make tensors."""

import jax
import numpy as np
import pytest

from jfluid import errors
from jfluid.ir.types import VarType
from jfluid.ops import registry
from tests.op_case import check

RNG = np.random.RandomState(0)
INT32, INT64, FLOAT, BOOL = (int(VarType[n]) for n in ("INT32", "INT64", "FP32", "BOOL"))


def floats(*shape):
    return RNG.randn(*shape).astype("float32")


def call(op_type, *inputs, **attrs):
    with jax.enable_x64(True):
        return registry.get(op_type).fn(*inputs, **attrs)


@pytest.mark.parametrize(
    "attrs, expected",
    [
        ({"shape": [2, 3], "value": 1.5}, np.full((2, 3), 1.5, "float32")),
        (
            {"shape": [2], "dtype": INT64, "str_value": "9007199254740993"},
            np.full(2, 9007199254740993),
        ),
        ({"shape": [2], "dtype": INT64, "value": 2.7}, np.full(2, 2)),
        ({"shape": [1], "dtype": BOOL, "value": 1.0}, np.array([True])),
        ({"shape": [1], "str_value": "inf"}, np.array([np.inf], "float32")),
        ({"shape": [9, 9], "value": 1.0}, np.ones((9, 9), "float32")),
    ],
)
def test_fill_constant(attrs, expected):
    check("fill_constant", {}, attrs, expect={"Out": expected})


def test_fill_constant_by_tensors():
    assert call("fill_constant", None, np.array([2, 3]), []).shape == (2, 3)
    assert call("fill_constant", None, None, [np.array([2]), np.array([1])], shape=(-1, 1)).shape == (2, 1)
    np.testing.assert_array_equal(call("fill_constant", np.array([3.0]), None, [], shape=(2,)), [3, 3])
    with pytest.raises(errors.ShapeError, match="expected no negative number"):
        call("fill_constant", None, None, [], shape=(-1, 2))


def test_small_constants_are_known_and_large_ones_are_not_kept():
    assert isinstance(call("fill_constant", None, None, [], shape=(64,)), np.ndarray)
    assert not isinstance(call("fill_constant", None, None, [], shape=(65,)), np.ndarray)


def test_constants_like_another_tensor():
    x = floats(3, 2)
    check(
        "fill_constant_batch_size_like",
        {"Input": x},
        {"shape": [5, -1], "value": 2.5, "output_dim_idx": 1},
        expect={"Out": np.full((5, 3), 2.5, "float32")},
    )
    check("fill_zeros_like", {"X": x}, expect={"Out": np.zeros_like(x)})
    check("fill_zeros_like2", {"X": x}, {"dtype": INT32}, expect={"Out": np.zeros((3, 2), "int32")})
    check("fill_any_like", {"X": x}, {"value": 2.0}, expect={"Out": np.full_like(x, 2)})
    check(
        "fill_any_like",
        {"X": x},
        {"value": 2.5, "dtype": INT64},
        expect={"Out": np.full((3, 2), 2)},
    )


def test_given_values():
    check(
        "fill",
        {},
        {"value": [1, 2, 3, 4], "shape": [2, 2]},
        expect={"Out": np.array([[1, 2], [3, 4]], "float32")},
    )
    for slot, kind, dtype in (
        ("bool_values", BOOL, "bool"),
        ("fp32_values", FLOAT, "float32"),
        ("int32_values", INT32, "int32"),
        ("int64_values", INT64, "int64"),
    ):
        values = np.array([[1, 0], [0, 1]], dtype)
        attrs = {slot: values.ravel().tolist(), "shape": [2, 2], "dtype": kind}
        check("assign_value", {}, attrs, expect={"Out": values})
    with pytest.raises(errors.ShapeError, match="3 values cannot have shape"):
        call("assign_value", shape=(2, 2), dtype=FLOAT, fp32_values=(1.0, 2.0, 3.0))


def test_assign():
    x = floats(2, 3)
    check("assign", {"X": x}, expect={"Out": x}, grad=("X",))


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "bool", "float16"])
def test_cast(dtype):
    x = np.array([0.0, 1.5, -2.5], "float32")
    attrs = {
        "in_dtype": FLOAT,
        "out_dtype": int(
            VarType[
                {
                    "int32": "INT32",
                    "int64": "INT64",
                    "float64": "FP64",
                    "bool": "BOOL",
                    "float16": "FP16",
                }[dtype]
            ]
        ),
    }
    check(
        "cast",
        {"X": x},
        attrs,
        expect={"Out": x.astype(dtype)},
        grad=("X",) if dtype == "float64" else (),
    )


def test_decimals_beyond_a_byte_keep_their_low_bits():
    x = np.array([-2.5, 300.7, 254.9, 70000.0], "float32")
    for type, expected in ((VarType.UINT8, [254, 44, 254, 112]), (VarType.INT8, [-2, 44, -2, 112])):
        out = call("cast", x, in_dtype=FLOAT, out_dtype=int(type))
        assert np.asarray(out).tolist() == expected


def test_increment_cuts_the_step_to_the_type():
    check("increment", {"X": np.array([3])}, {"step": 2.7}, expect={"Out": np.array([5])})
    check(
        "increment",
        {"X": np.array([3.0], "float32")},
        {"step": 0.5},
        expect={"Out": np.array([3.5], "float32")},
        grad=("X",),
    )


@pytest.mark.parametrize(
    "start, end, step, dtype",
    [(0, 10, 3, "int64"), (5, 0, -2, "int32"), (0, 1, 0.3, "float32"), (5, 5, 1, "int64")],
)
def test_range(start, end, step, dtype):
    numbers = [np.array([n], dtype) for n in (start, end, step)]
    out = call("range", *numbers)
    assert out.dtype == dtype
    np.testing.assert_allclose(out, np.arange(start, end, step, dtype), rtol=1e-6)


def test_range_needs_known_and_reachable_bounds():
    one = np.array([1], "int32")
    with pytest.raises(errors.OpError, match="not reached by steps of 1"):
        call("range", 3 * one, one, one)
    with pytest.raises(errors.OpError, match="bound of range depends on data"):
        jax.jit(lambda n: call("range", one, n, one))(one)


@pytest.mark.parametrize("start, stop, count", [(0.0, 10.0, 5), (1.0, 0.0, 4), (2.0, 3.0, 1)])
def test_linspace(start, stop, count):
    out = call(
        "linspace",
        np.array([start], "float32"),
        np.array([stop], "float32"),
        np.array([count], "int32"),
    )
    np.testing.assert_allclose(out, np.linspace(start, stop, count, dtype="float32"), rtol=1e-6)
    assert out.dtype == np.float32
    with pytest.raises(errors.OpError, match="positive number"):
        call("linspace", np.zeros(1), np.zeros(1), np.array([0]))


def test_diagonals():
    check("eye", {}, {"num_rows": 2, "num_columns": 3}, expect={"Out": np.eye(2, 3, dtype="float32")})
    check("eye", {}, {"num_rows": 2, "dtype": INT32}, expect={"Out": np.eye(2, dtype="int32")})
    check("diag", {"Diagonal": np.array([3, 4])}, expect={"Out": np.diag([3, 4])})
    x = floats(2, 3)
    out = np.zeros((2, 4, 4), "float32")
    for i in range(2):
        out[i] = np.diag(x[i], 1)
    check("diag_embed", {"Input": x}, {"offset": 1}, expect={"Out": out})
    check(
        "diag_embed",
        {"Input": x},
        {"offset": -1, "dim1": 0, "dim2": 2},
        expect={"Out": out.transpose(0, 2, 1).transpose(1, 0, 2)},
    )


@pytest.mark.parametrize("lower, diagonal", [(True, 0), (True, 1), (False, -1)])
def test_tril_triu(lower, diagonal):
    x = floats(2, 3, 4)
    out = (np.tril if lower else np.triu)(x, diagonal)
    check(
        "tril_triu",
        {"X": x},
        {"lower": lower, "diagonal": diagonal},
        expect={"Out": out},
        grad=("X",),
    )
