"""Arithmetic of tensors: element by element, reductions, norms and products."""

from collections.abc import Callable, Sequence

from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers import activation
from jfluid.layers.creation import assign, into
from jfluid.layers.dtypes import BOOLS, FLOATS, NUMBERS, hold
from jfluid.layers.helper import check_variable, emit

__all__ = [
    "addcmul",
    "addmm",
    "bmm",
    "clamp",
    "clip",
    "clip_by_norm",
    "cos_sim",
    "cross",
    "cumsum",
    "dist",
    "dot",
    "elementwise_add",
    "elementwise_div",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "kron",
    "l2_normalize",
    "logsumexp",
    "matmul",
    "mean",
    "mul",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "scale",
    "sum",
    "sums",
    "trace",
]

Dimensions = int | Sequence[int] | None


def _elementwise(op_type: str, formula: str) -> Callable[..., Variable]:
    def layer(x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None) -> Variable:
        hold([x, y], NUMBERS, op_type, "x, y")
        return emit(op_type, {"X": x, "Y": y}, {"axis": axis}, act=act, name=name)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""Return {formula}, element by element.

    Args:
        x, y: tensors of one dtype. The one with fewer dimensions is repeated along those that it lacks; a dimension
            of size 1 is repeated, too. Integers are divided as in C.
        axis: the dimension of the larger tensor where the dimensions of the smaller begin; -1 aligns the last ones.
        act: the name of an activation of the result; None for none.

    Raises:
        TypeError: an argument is no Variable or holds no numbers.
        ShapeError: the shapes or dtypes do not fit.
    """
    return layer


def _reduction(op_type: str, meaning: str, kinds: tuple[VarType, ...]) -> Callable[..., Variable]:
    def layer(input: Variable, dim: Dimensions = None, keep_dim: bool = False, name: str | None = None) -> Variable:
        hold(input, kinds, op_type, "input")
        return emit(op_type, {"X": input}, _dimensions(dim, keep_dim), name=name)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""Return the {meaning} of the elements along some dimensions.

    Args:
        dim: one dimension or several, negative ones counted from the end; None or an empty list means all of them.
        keep_dim: keep the reduced dimensions with size 1. Without it a full reduction has shape [1].

    Raises:
        TypeError: `input` is no Variable or has another dtype than {", ".join(k.name for k in kinds)}.
        ShapeError: the tensor does not have such a dimension.
    """
    return layer


def _dimensions(dim: Dimensions, keep_dim: bool) -> dict[str, object]:
    dims = [dim] if isinstance(dim, int) else list(dim or [])
    return {"dim": dims or [0], "keep_dim": keep_dim, "reduce_all": not dims}


elementwise_add = _elementwise("elementwise_add", "x + y")
elementwise_sub = _elementwise("elementwise_sub", "x - y")
elementwise_mul = _elementwise("elementwise_mul", "x * y")
elementwise_div = _elementwise("elementwise_div", "x / y")
elementwise_max = _elementwise("elementwise_max", "max(x, y)")
elementwise_min = _elementwise("elementwise_min", "min(x, y)")
elementwise_pow = _elementwise("elementwise_pow", "x ** y")
elementwise_mod = _elementwise("elementwise_mod", "the remainder of x / y")
elementwise_floordiv = _elementwise("elementwise_floordiv", "x / y without its fraction")
reduce_sum = _reduction("reduce_sum", "sum", NUMBERS)
reduce_mean = _reduction("reduce_mean", "mean", NUMBERS)
reduce_max = _reduction("reduce_max", "largest", NUMBERS)
reduce_min = _reduction("reduce_min", "smallest", NUMBERS)
reduce_prod = _reduction("reduce_prod", "product", NUMBERS)
reduce_all = _reduction("reduce_all", "logical and", BOOLS)
reduce_any = _reduction("reduce_any", "logical or", BOOLS)


def mean(x: Variable, name: str | None = None) -> Variable:
    """Return the mean of all elements: [1]."""
    return emit("mean", {"X": hold(x, FLOATS, "mean", "x")}, name=name)


def logsumexp(
    x: Variable, dim: Dimensions = None, keepdim: bool = False, out: Variable | None = None, name: str | None = None
) -> Variable:
    """Return log(sum(exp(x))) along the dimensions `dim`, or along all dimensions.

    There is no shift by the maximum: elements above 88 (float32) overflow, as in Fluid.

    Args:
        x: float tensor.
        dim: one dimension or several; None is all.
        keepdim: keep the reduced dimensions with size 1.
        out: the variable to write; a new variable when None.
        name: see `jfluid.layers`.
    """
    powers = activation.exp(hold(x, FLOATS, "logsumexp", "x"), name)
    total = emit("reduce_sum", {"X": powers}, _dimensions(dim, keepdim), name=name)
    return into(out, "log", {"X": total}, name=name)


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """Add up tensors of one shape and dtype.

    Raises ShapeError if shapes or dtypes differ.
    """
    return sums([x] if isinstance(x, Variable) else x)


def sums(input: Variable | Sequence[Variable], out: Variable | None = None) -> Variable:
    """Add up tensors of one shape and dtype.

    Args:
        input: tensors of one shape and dtype.
        out: the variable to write, which may be an input; a new variable when None.

    Raises ShapeError if shapes or dtypes differ.
    """
    tensors = [input] if isinstance(input, Variable) else list(input)
    return into(out, "sum", {"X": hold(tensors, NUMBERS, "sum", "input")})


def scale(
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return scale * x + bias, or scale * (x + bias) if `bias_after_scale` is False.

    Args:
        x: numbers; of integers only the whole parts of scale and bias are used.
        scale: a number, or a Variable of one element, which gets no gradient.
        bias: a number.
        bias_after_scale: True to add `bias` after the multiplication, False to add it before.
        act: the name of an activation of the result; None for none.
        name: see `jfluid.layers`.
    """
    hold(x, (*NUMBERS, VarType.INT8, VarType.INT16, VarType.UINT8), "scale", "x")
    attrs = {"bias": float(bias), "bias_after_scale": bias_after_scale}
    if isinstance(scale, Variable):
        return emit("scale", {"X": x, "ScaleTensor": scale}, attrs, act=act, name=name)
    return emit("scale", {"X": x}, {"scale": float(scale), **attrs}, act=act, name=name)


def cumsum(
    x: Variable, axis: int | None = None, exclusive: bool | None = None, reverse: bool | None = None
) -> Variable:
    """Return running sums along a dimension.

    Args:
        x: tensor.
        axis: the dimension; the last when None.
        exclusive: leave the element itself out of its sum, so that the first sum is 0.
        reverse: sum from the end.
    """
    return emit(
        "cumsum", {"X": hold(x, NUMBERS, "cumsum", "x")}, {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    )


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """Return min(max(x, lower), upper), element by element; `min` is the lower bound and `max` the upper.

    Raises ShapeError if `min` is not less than `max`.
    """
    return emit("clip", {"X": hold(x, FLOATS, "clip", "x")}, {"min": float(min), "max": float(max)}, name=name)


def clamp(
    input: Variable,
    min: float | Variable | None = None,
    max: float | Variable | None = None,
    output: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Limit elements to the range from `min` to `max`.

    Args:
        input: tensor.
        min: a number or a Variable of one element. Without it the bound is 0 and not minus infinity, as in Fluid
            1.8.
        max: a number or a Variable of one element. Without it there is no bound.
        output: the variable to write; a new variable when None.
        name: see `jfluid.layers`.

    Raises ValueError if neither bound is given.
    """
    if min is None and max is None:
        raise ValueError("layers.clamp: expected min, max or both, found neither")
    inputs, attrs = {"X": hold(input, NUMBERS, "clamp", "input")}, {"min": 0.0, "max": float("inf")}
    for bound, slot, attr in ((min, "Min", "min"), (max, "Max", "max")):
        if isinstance(bound, Variable):
            inputs[slot] = bound
        elif bound is not None:
            attrs[attr] = float(bound)
    return into(output, "clip", inputs, attrs, layer="clamp", name=name)


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """Scale `x` to the Euclidean norm `max_norm` if its norm is larger."""
    return emit("clip_by_norm", {"X": hold(x, FLOATS, "clip_by_norm", "x")}, {"max_norm": float(max_norm)}, name=name)


def addcmul(
    input: Variable,
    tensor1: Variable,
    tensor2: Variable,
    value: float = 1.0,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return input + value * tensor1 * tensor2, element by element.

    Args:
        input: tensor.
        tensor1: first factor.
        tensor2: second factor.
        value: factor of the product.
        out: the variable to write; a new variable when None.
        name: see `jfluid.layers`.
    """
    hold([input, tensor1, tensor2], NUMBERS, "addcmul", "input, tensor1, tensor2")
    product = emit("elementwise_mul", {"X": tensor1, "Y": tensor2}, name=name)
    result = emit("elementwise_add", {"X": input, "Y": scale(product, value)}, name=name)
    return result if out is None else assign(result, out)


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """Multiply `x` and `y` as matrices.

    Args:
        x: tensor, flattened to a matrix.
        y: tensor, flattened to a matrix.
        x_num_col_dims: how many leading dimensions of `x` make its rows; the others make its columns.
        y_num_col_dims: the same of `y`.
        name: see `jfluid.layers`.

    Returns:
        A tensor with the row dimensions of `x`, followed by the column dimensions of `y`.

    Raises ShapeError unless the columns of `x` match the rows of `y`.
    """
    hold([x, y], FLOATS, "mul", "x, y")
    attrs = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
    return emit("mul", {"X": x, "Y": y}, attrs, name=name)


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """Return alpha * x @ y over the last two dimensions.

    A vector counts as one row of `x` or one column of `y`. A single matrix is multiplied with every
    matrix of a batch; two batches need equally many matrices.

    Args:
        x: [..., m, k], or [k].
        y: [..., k, n], or [k].
        transpose_x: transpose the last two dimensions of `x` first.
        transpose_y: transpose the last two dimensions of `y` first.
        alpha: factor of the product.
        name: see `jfluid.layers`.

    Returns:
        [..., m, n].

    Raises ShapeError if the shapes do not match.
    """
    hold([x, y], FLOATS, "matmul", "x, y")
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": float(alpha)}
    return emit("matmul", {"X": x, "Y": y}, attrs, name=name)


def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Multiply batches of matrices `x` [batch, m, k] and `y` [batch, k, n]: [batch, m, n].

    Raises ShapeError for other shapes.
    """
    return emit("bmm", {"X": hold(x, FLOATS, "bmm", "x"), "Y": hold(y, FLOATS, "bmm", "y")}, name=name)


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the inner product of two vectors, [1], or of the rows of two matrices, [rows, 1].

    Raises ShapeError if the shapes differ, or have more than two dimensions.
    """
    hold([x, y], NUMBERS, "dot", "x, y")
    return emit("dot", {"X": x, "Y": y}, name=name)


def addmm(
    input: Variable, x: Variable, y: Variable, alpha: float = 1.0, beta: float = 1.0, name: str | None = None
) -> Variable:
    """Return beta * input + alpha * x @ y for matrices `x` [m, k] and `y` [k, n].

    `input` is broadcast to [m, n]. Raises ShapeError for shapes that do not match.
    """
    hold([input, x, y], FLOATS, "addmm", "input, x, y")
    return emit("addmm", {"Input": input, "X": x, "Y": y}, {"Alpha": float(alpha), "Beta": float(beta)}, name=name)


def kron(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Return the Kronecker product: each element of `x` times the whole of `y`.

    Args:
        x: tensor.
        y: tensor of the same rank.
        out: the variable to write; a new variable when None.
        name: see `jfluid.layers`.
    """
    hold([x, y], NUMBERS, "kron", "x, y")
    return into(out, "kron", {"X": x, "Y": y}, name=name)


def cross(input: Variable, other: Variable, dim: int | None = None) -> Variable:
    """Return the cross products of the vectors of `input` and `other` along a dimension.

    Args:
        input: tensor.
        other: tensor of the same shape.
        dim: the dimension, of size 3; the first such when None.

    Raises ShapeError if the shapes differ, or the dimension is not of size 3.
    """
    hold([input, other], NUMBERS, "cross", "input, other")
    return emit("cross", {"X": input, "Y": other}, {"dim": dim})


def trace(
    input: Variable, offset: int = 0, dim1: int = 0, dim2: int = 1, out: Variable | None = None, name: str | None = None
) -> Variable:
    """Return the sum of a diagonal of each matrix over the dimensions `dim1` and `dim2`.

    Args:
        input: tensor.
        offset: which diagonal: 0 is the main one, positive numbers lie above it, negative ones below.
        dim1: first dimension of the matrices.
        dim2: second dimension of the matrices.
        out: the variable to write; a new variable when None.
        name: see `jfluid.layers`.
    """
    hold(input, NUMBERS, "trace", "input")
    return into(out, "trace", {"Input": input}, {"offset": offset, "dim1": dim1, "dim2": dim2}, name=name)


def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """Return the norm of x - y, broadcast against each other: [1].

    Args:
        x: tensor.
        y: tensor that broadcasts against `x`.
        p: the order of the norm, which may be 0 or infinite.
    """
    return emit("dist", {"X": hold(x, FLOATS, "dist", "x"), "Y": hold(y, FLOATS, "dist", "y")}, {"p": float(p)})


def l2_normalize(x: Variable, axis: int | None, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Return x / sqrt(sum(x²) + epsilon), with the sum along `axis`.

    Args:
        x: tensor.
        axis: the dimension; when None, 1, or 0 of a vector.
        epsilon: keeps the divisor from 0.
        name: see `jfluid.layers`.
    """
    check_variable(x, "l2_normalize", "x")
    axis = 0 if len(x.shape) == 1 else 1 if axis is None else axis
    out, _ = emit(
        "norm",
        {"X": hold(x, FLOATS, "l2_normalize", "x")},
        {"axis": axis, "epsilon": epsilon},
        outs=("Out", "Norm"),
        layer="l2_normalize",
        name=name,
    )
    return out


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """Return the cosine similarity of rows of `X` and `Y`: [rows, 1].

    Args:
        X: [rows, width].
        Y: [rows, width], or [1, width] for all rows.
    """
    hold([X, Y], FLOATS, "cos_sim", "X, Y")
    out, _, _ = emit("cos_sim", {"X": X, "Y": Y}, outs=("Out", "XNorm", "YNorm"))
    return out
