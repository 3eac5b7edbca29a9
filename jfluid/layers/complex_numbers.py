"""Complex arithmetic of `paddle.complex`, in programs and in imperative mode.

A complex variable is a pair of real variables (`ComplexVariable`). Each function here is a few layers on
real numbers, and gradients flow through the parts. In functions of two operands, one operand may be real.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jfluid.ir.complex_variable import ComplexVariable
from jfluid.ir.variable import Variable
from jfluid.layers import creation, math
from jfluid.layers.shape import reshape as reshaped
from jfluid.layers.shape import transpose as transposed

__all__ = [
    "elementwise_add",
    "elementwise_div",
    "elementwise_mul",
    "elementwise_sub",
    "kron",
    "matmul",
    "reshape",
    "sum",
    "trace",
    "transpose",
]

Operand = Variable | ComplexVariable


def is_complex(x: Any) -> bool:
    """Return True if `x` is a complex variable."""
    return isinstance(x, ComplexVariable)


def is_real(x: Any) -> bool:
    """Return True if `x` is a variable of real numbers."""
    return isinstance(x, Variable)


def complex_variable_exists(inputs: Sequence[Any], layer_name: str) -> None:
    """Raise TypeError unless a variable in `inputs` is complex; the message names `layer_name`."""
    if not any(map(is_complex, inputs)):
        raise TypeError(
            f"complex.{layer_name}: expected a ComplexVariable, found "
            f"{' and '.join(type(x).__name__ for x in inputs)}; fluid.layers.{layer_name} takes real ones"
        )


def _of_one(name: str, x: Operand, part: Callable[[Variable], Variable]) -> ComplexVariable:
    """Apply a linear function of one operand to both parts."""
    complex_variable_exists([x], name)
    assert isinstance(x, ComplexVariable)
    return ComplexVariable(part(x.real), part(x.imag))


def _parts(x: Operand) -> tuple[Variable, Variable | None]:
    """Return the real and imaginary part of an operand; None for the imaginary part of a real variable."""
    return (x.real, x.imag) if isinstance(x, ComplexVariable) else (x, None)


def _sum(name: str, x: Operand, y: Operand, part: Callable[[Variable, Variable], Variable]) -> ComplexVariable:
    """Apply `part`, a sum or a difference, to both parts of two operands."""
    complex_variable_exists([x, y], name)
    (a, b), (c, d) = _parts(x), _parts(y)
    # zeros for a missing part: the operands may be broadcast against each other
    b = creation.zeros_like(a) if b is None else b
    d = creation.zeros_like(c) if d is None else d
    return ComplexVariable(part(a, c), part(b, d))


def _product(name: str, x: Operand, y: Operand, product: Callable[[Variable, Variable], Variable]) -> ComplexVariable:
    """Return a product that is linear in each operand: (a + bi)(c + di) = ac - bd + (ad + bc)i."""
    complex_variable_exists([x, y], name)
    (a, b), (c, d) = _parts(x), _parts(y)
    if b is None:
        assert d is not None
        return ComplexVariable(product(a, c), product(a, d))
    if d is None:
        return ComplexVariable(product(a, c), product(b, c))
    return ComplexVariable(
        math.elementwise_sub(product(a, c), product(b, d)), math.elementwise_add(product(a, d), product(b, c))
    )


def elementwise_add(x: Operand, y: Operand, axis: int = -1, name: str | None = None) -> ComplexVariable:
    """Add element by element.

    Args:
        x: a ComplexVariable or a Variable.
        y: see `x`.
        axis: the dimension of `x` at which the dimensions of `y` begin; -1 aligns the last dimensions.
        name: see `jfluid.layers`.

    Raises TypeError if both are real.
    """
    return _sum("elementwise_add", x, y, lambda p, q: math.elementwise_add(p, q, axis, name=name))


def elementwise_sub(x: Operand, y: Operand, axis: int = -1, name: str | None = None) -> ComplexVariable:
    """Subtract elementwise; for `axis` and errors see `elementwise_add`."""
    return _sum("elementwise_sub", x, y, lambda p, q: math.elementwise_sub(p, q, axis, name=name))


def elementwise_mul(x: Operand, y: Operand, axis: int = -1, name: str | None = None) -> ComplexVariable:
    """Multiply elementwise; for `axis` and errors see `elementwise_add`."""
    return _product("elementwise_mul", x, y, lambda p, q: math.elementwise_mul(p, q, axis, name=name))


def elementwise_div(x: Operand, y: Operand, axis: int = -1, name: str | None = None) -> ComplexVariable:
    """Divide elementwise, x / y = x conj(y) / |y|^2; for `axis` and errors see `elementwise_add`."""
    complex_variable_exists([x, y], "elementwise_div")
    if not isinstance(y, ComplexVariable):
        return _of_one("elementwise_div", x, lambda p: math.elementwise_div(p, y, axis, name=name))
    squared = math.elementwise_add(math.elementwise_mul(y.real, y.real), math.elementwise_mul(y.imag, y.imag))
    conjugate = ComplexVariable(y.real, math.scale(y.imag, -1.0))
    return elementwise_div(elementwise_mul(x, conjugate, axis), squared, axis, name)


def matmul(
    x: Operand,
    y: Operand,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> ComplexVariable:
    """Multiply matrices, with the arguments of `fluid.layers.matmul`; a transposed one is not conjugated.

    Raises TypeError if both are real.
    """
    return _product("matmul", x, y, lambda p, q: math.matmul(p, q, transpose_x, transpose_y, alpha, name))


def kron(x: Operand, y: Operand, name: str | None = None) -> ComplexVariable:
    """Return the Kronecker product. Raises TypeError if both are real."""
    return _product("kron", x, y, lambda p, q: math.kron(p, q, name=name))


def reshape(x: Operand, shape: Any, inplace: bool = False, name: str | None = None) -> ComplexVariable:
    """Reshape both parts of `x`; for the arguments see `fluid.layers.reshape`.

    Raises TypeError for a real `x`.
    """
    return _of_one("reshape", x, lambda part: reshaped(part, shape, inplace=inplace, name=name))


def transpose(x: Operand, perm: Sequence[int], name: str | None = None) -> ComplexVariable:
    """Bring the dimensions of `x` into the order `perm`. Raises TypeError if `x` is real."""
    return _of_one("transpose", x, lambda part: transposed(part, perm, name))


def sum(
    input: Operand, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> ComplexVariable:
    """Sum over dimensions, with the arguments of `fluid.layers.reduce_sum`.

    Raises TypeError if `input` is real.
    """
    return _of_one("sum", input, lambda part: math.reduce_sum(part, dim, keep_dim, name))


def trace(input: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1, name: str | None = None) -> ComplexVariable:
    """Return the sum of a diagonal, with the arguments of `fluid.layers.trace`.

    Raises TypeError if `input` is real.
    """
    return _of_one("trace", input, lambda part: math.trace(part, offset, dim1, dim2, name=name))
