"""Products of matrices and vectors."""

import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check

RNG = np.random.RandomState(9)


def rand(*shape):
    return RNG.uniform(-1, 1, shape).astype("float32")


def call(name, *values, **attrs):
    return registry.get(name).fn(*values, **attrs)


@pytest.mark.parametrize(
    ("x", "y", "xn", "yn"),
    [
        ((2, 3), (3, 4), 1, 1),
        ((2, 3, 2), (6, 2), 1, 1),
        ((2, 3, 2), (2, 3), 2, 1),
        ((2, 6), (3, 2, 2), 1, 2),
        ((2, 2), (2, 2, 3), 1, 1),
    ],
)
def test_mul(x, y, xn, yn):
    x, y = rand(*x), rand(*y)
    expected = x.reshape(int(np.prod(x.shape[:xn])), -1) @ y.reshape(int(np.prod(y.shape[:yn])), -1)
    check(
        "mul",
        {"X": x, "Y": y},
        {"x_num_col_dims": xn, "y_num_col_dims": yn},
        expect={"Out": expected.reshape(x.shape[:xn] + y.shape[yn:])},
        grad=("X", "Y"),
    )


def test_mul_refuses():
    with pytest.raises(errors.ShapeError, match="found 3 and 2"):
        call("mul", rand(2, 3), rand(2, 2))
    with pytest.raises(errors.ShapeError, match="num_col_dims"):
        call("mul", rand(2, 3), rand(3, 2), x_num_col_dims=2)


def expected_matmul(x, y, tx, ty):
    x = x[None, :] if x.ndim == 1 else x
    y = y[:, None] if y.ndim == 1 else y
    return np.matmul(np.swapaxes(x, -1, -2) if tx else x, np.swapaxes(y, -1, -2) if ty else y)


@pytest.mark.parametrize(
    ("x", "y", "tx", "ty", "shape"),
    [
        ((2, 3), (3, 2), False, False, (2, 2)),
        ((3, 2), (4, 3), True, True, (2, 4)),
        ((3,), (3,), False, False, (1,)),
        ((3,), (2,), True, True, (3, 2)),
        ((3,), (1,), True, False, (3,)),
        ((3,), (3, 2), False, False, (2,)),
        ((2, 3), (3,), False, False, (2,)),
        ((2, 2, 3), (3,), False, False, (2, 2)),
        ((3,), (2, 3, 2), False, False, (2, 2)),
        ((2, 2, 3), (3, 2), False, False, (2, 2, 2)),
        ((2, 3), (2, 3, 2), False, False, (2, 2, 2)),
        ((2, 2, 3), (2, 3, 2), False, False, (2, 2, 2)),
        ((2, 2, 3), (2, 2, 3), False, True, (2, 2, 2)),
        ((2, 3, 1), (1,), False, False, (2, 3)),
    ],
)
def test_matmul(x, y, tx, ty, shape):
    x, y = rand(*x), rand(*y)
    check(
        "matmul",
        {"X": x, "Y": y},
        {"transpose_X": tx, "transpose_Y": ty},
        expect={"Out": expected_matmul(x, y, tx, ty).reshape(shape)},
        grad=("X", "Y"),
    )


def test_matmul_pairs_batches_by_their_number():
    x, y = rand(2, 1, 2, 3), rand(2, 3, 2)
    check("matmul", {"X": x, "Y": y}, expect={"Out": x @ y[:, None]}, grad=("X",))
    x, y = rand(2, 1, 2, 3), rand(1, 2, 3, 2)
    check("matmul", {"X": x, "Y": y}, expect={"Out": x @ y.reshape(2, 1, 3, 2)})


def test_matmul_drops_the_only_row_of_a_transposed_vector():
    x, y = rand(1), rand(1, 3)
    check("matmul", {"X": x, "Y": y}, {"transpose_X": True}, expect={"Out": x[0] * y[0]}, infer=False)


def test_matmul_alpha_and_what_passes_fold_into_it():
    x, y = rand(2, 3), rand(3, 4)
    check("matmul", {"X": x, "Y": y}, {"alpha": 2.5}, expect={"Out": 2.5 * (x @ y)}, grad=("X", "Y"))
    check(
        "matmul",
        {"X": x, "Y": y},
        {"fused_reshape_Out": [0, 2, 2], "fused_transpose_Out": [1, 0, 2]},
        expect={"Out": (x @ y).reshape(2, 2, 2).transpose(1, 0, 2)},
    )


def test_matmul_refuses():
    with pytest.raises(errors.ShapeError, match="found 3 and 4"):
        call("matmul", rand(2, 3), rand(4))
    with pytest.raises(errors.ShapeError, match="found 2 and 1"):
        call("matmul", rand(2, 2, 3), rand(1, 3, 2))


@pytest.mark.parametrize(
    "x, y, transposed",
    [
        ((2, 3, 8), (2, 8, 5), ()),
        ((2, 3, 8), (2, 4, 6), ()),
        ((2, 8, 3), (2, 8, 5), ("X",)),
        ((2, 3, 8), (2, 6, 4), ("Y",)),
    ],
)
def test_matmul_of_heads(x, y, transposed):
    x, y = rand(*x), rand(*y)
    left = np.swapaxes(x, -1, -2) if "X" in transposed else x
    right = np.swapaxes(y, -1, -2) if "Y" in transposed else y
    if right.shape[-2] == 8:  # a head takes its rows of y
        parts = [left[..., :4] @ right[..., :4, :], left[..., 4:] @ right[..., 4:, :]]
    else:  # and here its columns
        half = right.shape[-1] // 2
        parts = [left[..., :4] @ right[..., :half], left[..., 4:] @ right[..., half:]]
    attrs = {"head_number": 2, "alpha": 2.0, **{f"transpose_{slot}": True for slot in transposed}}
    check("matmul", {"X": x, "Y": y}, attrs, expect={"Out": 2 * np.concatenate(parts, -1)}, grad=("X", "Y"))


def test_matmul_refuses_heads_that_do_not_divide():
    with pytest.raises(errors.ShapeError, match="head_number 3 must divide the columns of X and the rows of Y"):
        call("matmul", rand(2, 2), rand(2, 2), head_number=3)


def test_bmm():
    x, y = rand(2, 2, 3), rand(2, 3, 2)
    check("bmm", {"X": x, "Y": y}, expect={"Out": x @ y}, grad=("X", "Y"))
    with pytest.raises(errors.ShapeError, match="3 dimensions"):
        call("bmm", x[0], y)
    with pytest.raises(errors.ShapeError, match="found 1 and 2"):
        call("bmm", x[:1], y)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_dot(shape):
    x, y = rand(*shape), rand(*shape)
    check("dot", {"X": x, "Y": y}, expect={"Out": (x * y).sum(-1, keepdims=True)}, grad=("X", "Y"))


def test_dot_refuses():
    with pytest.raises(errors.ShapeError, match="found 2 and 1"):
        call("dot", rand(2, 3), rand(1, 3))
    with pytest.raises(errors.ShapeError, match="1 or 2 dimensions"):
        call("dot", rand(2, 2, 3), rand(2, 2, 3))


@pytest.mark.parametrize("rows", [2, 1])
def test_addmm(rows):
    a, x, y = rand(rows, 2), rand(2, 3), rand(3, 2)
    check(
        "addmm",
        {"Input": a, "X": x, "Y": y},
        {"Alpha": 2.0, "Beta": 3.0},
        expect={"Out": 3 * a + 2 * (x @ y)},
        grad=("Input", "X", "Y"),
    )
    with pytest.raises(errors.ShapeError, match="three matrices"):
        call("addmm", a[0], x, y)


@pytest.mark.parametrize(("x", "y"), [((2, 2), (1, 3)), ((2,), (2, 2)), ((2,), (3,))])
def test_kron(x, y):
    x, y = rand(*x), rand(*y)
    check("kron", {"X": x, "Y": y}, expect={"Out": np.kron(x, y)}, grad=("X", "Y"))


@pytest.mark.parametrize(
    ("shape", "attrs", "axis"),
    [
        ((2, 3), {}, 1),
        ((3, 3), {}, 0),
        ((3, 3), {"dim": 1}, 1),
        ((3, 3), {"dim": -1}, 1),
    ],
)
def test_cross(shape, attrs, axis):
    x, y = rand(*shape), rand(*shape)
    check("cross", {"X": x, "Y": y}, attrs, expect={"Out": np.cross(x, y, axis=axis)}, grad=("X", "Y"))


def test_cross_refuses():
    with pytest.raises(errors.ShapeError, match="size 3"):
        call("cross", rand(2, 2), rand(2, 2))
    with pytest.raises(errors.ShapeError, match="equal"):
        call("cross", rand(2, 3), rand(1, 3))


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((3, 3), {}),
        ((3, 2), {"offset": 5}),
        ((2, 3, 3), {}),
        ((2, 3, 3), {"offset": 1, "dim1": 0, "dim2": 2}),
    ],
)
def test_trace(shape, attrs):
    x = rand(*shape)
    expected = np.trace(x, attrs.get("offset", 0), attrs.get("dim1", -2), attrs.get("dim2", -1))
    check("trace", {"Input": x}, attrs, expect={"Out": np.atleast_1d(expected)}, grad=("Input",))


def test_fsp():
    x, y = rand(2, 3, 2, 4), rand(2, 2, 2, 4)
    expected = x.reshape(2, 3, 8) @ y.reshape(2, 2, 8).swapaxes(1, 2) / 8
    check("fsp", {"X": x, "Y": y}, expect={"Out": expected}, grad=("X", "Y"))
    with pytest.raises(errors.ShapeError, match="same height and width"):
        call("fsp", x, rand(2, 3, 2, 5))


def test_bilinear_tensor_product():
    inputs = {"X": rand(3, 2), "Y": rand(3, 4), "Weight": rand(2, 2, 4), "Bias": rand(1, 2)}
    x, y, weight, bias = inputs.values()
    expected = np.stack([np.diag(x @ w @ y.T) for w in weight], 1) + bias
    check(
        "bilinear_tensor_product",
        inputs,
        expect={"Out": expected},
        grad=tuple(inputs),
        rows=("X", "Y"),
        ragged=("X", "Y"),
    )
    with pytest.raises(errors.ShapeError, match=r"Weight \[size, M, N\]"):
        call("bilinear_tensor_product", x, x, weight, None)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_conv_shift(width):
    x, y = rand(2, 5), rand(2, width)
    expected = np.zeros((2, 5), "float32")
    for row, i, j in np.ndindex(2, 5, width):
        expected[row, i] += x[row, (i + j - width // 2) % 5] * y[row, j]
    check("conv_shift", {"X": x, "Y": y}, expect={"Out": expected}, grad=("X", "Y"))


def test_conv_shift_refuses():
    for width in (2, 7):
        with pytest.raises(errors.ShapeError, match="N odd and not more than M"):
            call("conv_shift", rand(2, 5), rand(2, width))
