"""`paddle.complex`, against NumPy's complex numbers."""

import importlib

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors

cx = importlib.import_module("jfluid.complex")

RANDOM = np.random.default_rng(0)


def numbers(*shape):
    return RANDOM.normal(size=shape) + 1j * RANDOM.normal(size=shape)


X, Y, REAL, ROW = numbers(3, 3), numbers(3, 3), RANDOM.normal(size=(3, 3)) + 3, numbers(3)
TWO = {
    "elementwise_add": np.add,
    "elementwise_sub": np.subtract,
    "elementwise_mul": np.multiply,
    "elementwise_div": np.divide,
    "matmul": np.matmul,
    "kron": np.kron,
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("x, y", [(X, Y), (X, REAL), (REAL, X)], ids=["both", "left", "right"])
def test_two_operands(name, x, y):
    with fluid.dygraph.guard():
        out = getattr(cx, name)(*map(fluid.dygraph.to_variable, (x, y)))
        assert out.dtype == "complex128" and list(out.shape) == list(TWO[name](x, y).shape)
        np.testing.assert_allclose(out.numpy(), TWO[name](x, y))


def test_operands_of_other_shapes():
    with fluid.dygraph.guard():
        real, row, x = map(fluid.dygraph.to_variable, (REAL, ROW, X))
        np.testing.assert_allclose(cx.elementwise_sub(real, row).numpy(), REAL - ROW)
        np.testing.assert_allclose(cx.elementwise_add(x, row).numpy(), X + ROW)
        column = cx.elementwise_div(x, row, axis=0)
        np.testing.assert_allclose(column.numpy(), X / ROW[:, None])
        out = cx.matmul(x, real, transpose_x=True, transpose_y=True, alpha=2.0)
        np.testing.assert_allclose(out.numpy(), 2 * X.T @ REAL.T)


def test_one_operand():
    with fluid.dygraph.guard():
        x = fluid.dygraph.to_variable(X)
        np.testing.assert_allclose(cx.sum(x).numpy(), [X.sum()])
        np.testing.assert_allclose(cx.sum(x, 1, True).numpy(), X.sum(1, keepdims=True))
        np.testing.assert_allclose(cx.trace(x, offset=1).numpy(), [np.trace(X, 1)])
        np.testing.assert_array_equal(cx.transpose(x, [1, 0]).numpy(), X.T)
        np.testing.assert_array_equal(cx.reshape(x, [9]).numpy(), X.ravel())
        assert list(x.shape) == [3, 3]
        cx.reshape(x, [-1], inplace=True)
        assert list(x.shape) == [9]


def test_gradients_flow_through_the_parts():
    with fluid.dygraph.guard():
        x = fluid.dygraph.to_variable(X.astype("complex64"))
        assert x.dtype == "complex64" and x.real.dtype == fluid.core.VarDesc.VarType.FP32
        x.real.stop_gradient = False
        square = cx.sum(cx.elementwise_mul(x, x))
        square.real.backward()  # the real part of (a + bi)^2 is a^2 - b^2
        np.testing.assert_allclose(x.real.gradient(), 2 * X.real, rtol=1e-5)


def test_in_a_program():
    parts = [fluid.data(n, [3, 3], "float64") for n in ("real", "imag")]
    x = fluid.ComplexVariable(*parts)
    out = cx.elementwise_div(cx.matmul(x, x), x)
    with pytest.raises(errors.DygraphError, match="is a variable of a program"):
        out.numpy()
    real, imag = fluid.Executor(fluid.CPUPlace()).run(
        feed={"real": X.real, "imag": X.imag}, fetch_list=[out.real, out.imag]
    )
    np.testing.assert_allclose(real + 1j * imag, X @ X / X)


def test_real_operands_are_refused():
    x = fluid.data("x", [3, 3])
    for name in TWO:
        with pytest.raises(TypeError, match=f"complex.{name}: expected a ComplexVariable, found Var"):
            getattr(cx, name)(x, x)
    for call in (cx.sum, cx.trace, lambda v: cx.reshape(v, [9]), lambda v: cx.transpose(v, [1, 0])):
        with pytest.raises(TypeError, match="expected a ComplexVariable, found Variable"):
            call(x)
