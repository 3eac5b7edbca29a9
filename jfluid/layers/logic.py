"""Comparisons, logic and tests of tensors. The results are boolean and carry no gradient."""

from collections.abc import Callable

from jfluid.ir.variable import Variable
from jfluid.layers.creation import into
from jfluid.layers.dtypes import BOOLS, FLOATS, NUMBERS, hold
from jfluid.layers.helper import emit

__all__ = [
    "allclose",
    "elementwise_equal",
    "equal",
    "greater_equal",
    "greater_than",
    "has_inf",
    "has_nan",
    "is_empty",
    "isfinite",
    "less_equal",
    "less_than",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]


def _comparison(op_type: str, symbol: str) -> Callable[..., Variable]:
    def layer(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
        hold([x, y], (*NUMBERS, *BOOLS), op_type, "x, y")
        return into(cond, op_type, {"X": x, "Y": y}, stop_gradient=True)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""Return x {symbol} y, element by element.

    Args:
        x, y: tensors of one dtype, broadcast against each other.
        cond: the boolean variable to write; a new one when None.

    Raises:
        TypeError: an argument is no Variable.
        ShapeError: the shapes or dtypes do not fit.
    """
    return layer


def _logical(op_type: str, meaning: str) -> Callable[..., Variable]:
    def layer(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
        hold([x, y], BOOLS, op_type, "x, y")
        return into(out, op_type, {"X": x, "Y": y}, name=name)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""Return {meaning}, element by element.

    Args:
        x, y: boolean tensors with the same number of elements.
        out: the variable to write; a new one when None.

    Raises:
        TypeError: an argument is no boolean Variable.
        ShapeError: the numbers of elements differ.
    """
    return layer


equal = _comparison("equal", "==")
not_equal = _comparison("not_equal", "!=")
less_equal = _comparison("less_equal", "<=")
greater_than = _comparison("greater_than", ">")
greater_equal = _comparison("greater_equal", ">=")
logical_and = _logical("logical_and", "x and y")
logical_or = _logical("logical_or", "x or y")
logical_xor = _logical("logical_xor", "either x or y, not both")


def less_than(x: Variable, y: Variable, force_cpu: bool | None = None, cond: Variable | None = None) -> Variable:
    """Return x < y, element by element.

    Args:
        x: tensors of one dtype, broadcast against each other.
        y: see `x`.
        force_cpu: stays in the program without effect: XLA compares where the tensors are.
        cond: the boolean variable to write; a new variable when None.
    """
    hold([x, y], (*NUMBERS, *BOOLS), "less_than", "x, y")
    attrs = {} if force_cpu is None else {"force_cpu": force_cpu}
    return into(cond, "less_than", {"X": x, "Y": y}, attrs, stop_gradient=True)


def elementwise_equal(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return x == y, element by element. Both are broadcast against each other."""
    hold([x, y], (*NUMBERS, *BOOLS), "elementwise_equal", "x, y")
    return emit("equal", {"X": x, "Y": y}, layer="elementwise_equal", name=name, stop_gradient=True)


def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Return not x, element by element.

    Args:
        x: a boolean tensor.
        out: the variable to write; a new variable when None.
        name: see `jfluid.layers`.
    """
    return into(out, "logical_not", {"X": hold(x, BOOLS, "logical_not", "x")}, name=name)


def isfinite(x: Variable) -> Variable:
    """Return True if all elements are finite: bool [1]."""
    return emit("isfinite", {"X": hold(x, NUMBERS, "isfinite", "x")})


def has_inf(x: Variable) -> Variable:
    """Return True if an element is infinite: bool [1]."""
    return emit("isinf", {"X": hold(x, NUMBERS, "has_inf", "x")})


def has_nan(x: Variable) -> Variable:
    """Return True if an element is not a number: bool [1]."""
    return emit("isnan", {"X": hold(x, NUMBERS, "has_nan", "x")})


def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Return True if the tensor has no elements: bool [1].

    Args:
        x: tensor.
        cond: the boolean variable to write; a new variable when None.
    """
    return into(cond, "is_empty", {"X": x}, stop_gradient=True)


def allclose(
    input: Variable,
    other: Variable,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    name: str | None = None,
) -> Variable:
    """Return True if |input - other| <= atol + rtol * |other| everywhere: bool [1].

    Args:
        input: float tensors of the same shape.
        other: see `input`.
        rtol: relative tolerance.
        atol: absolute tolerance.
        equal_nan: True if two elements that are not numbers count as close.
        name: see `jfluid.layers`.

    Raises ShapeError if the shapes differ.
    """
    hold([input, other], FLOATS, "allclose", "input, other")
    return emit(
        "allclose", {"Input": input, "Other": other}, {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}, name=name
    )
