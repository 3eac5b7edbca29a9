"""Arithmetic of tensors, reductions, norms and products."""

from collections.abc import Callable, Sequence

from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers import activation
from jfluid.layers.dtypes import BOOLS, FLOATS, NUMBERS, hold
from jfluid.layers.helper import emit
from jfluid.layers.tensor import assign, into

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
    def layer(
        x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
    ) -> Variable:
        hold([x, y], NUMBERS, op_type, "x, y")
        return emit(op_type, {"X": x, "Y": y}, {"axis": axis}, act=act, name=name)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""{formula[0].upper()}{formula[1:]}, element by element.

    Args:
        x, y: tensors of one dtype. Where one has fewer dimensions it is repeated along those that it lacks; where a
            dimension of one is 1 it is repeated too. Integers are divided as in C.
        axis: the dimension of the larger tensor where the dimensions of the smaller begin; -1 aligns the last ones.
        act: an activation applied to the result.

    Raises:
        TypeError: an argument is no Variable or holds no numbers.
        ShapeError: the shapes or dtypes do not go together.
    """
    return layer


def _reduction(op_type: str, meaning: str, kinds: tuple[VarType, ...]) -> Callable[..., Variable]:
    def layer(
        input: Variable, dim: Dimensions = None, keep_dim: bool = False, name: str | None = None
    ) -> Variable:
        hold(input, kinds, op_type, "input")
        return emit(op_type, {"X": input}, _dimensions(dim, keep_dim), name=name)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""The {meaning} of the elements along some dimensions.

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
    """The mean of all elements, of shape [1]."""
    return emit("mean", {"X": hold(x, FLOATS, "mean", "x")}, name=name)


def logsumexp(
    x: Variable,
    dim: Dimensions = None,
    keepdim: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """log(sum(exp(x))) along the dimensions `dim`, or along all of them.

    The exponentials are summed as they are: elements above 88 (float32) overflow, as in Fluid.

    Args:
        out: the variable to write; a new one by default.
    """
    powers = activation.exp(hold(x, FLOATS, "logsumexp", "x"), name)
    total = emit("reduce_sum", {"X": powers}, _dimensions(dim, keepdim), name=name)
    return into(out, "log", {"X": total}, name=name)


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """The sum of tensors of one shape and dtype.

    Raises:
        ShapeError: their shapes or dtypes differ.
    """
    return sums([x] if isinstance(x, Variable) else x)


def sums(input: Variable | Sequence[Variable], out: Variable | None = None) -> Variable:
    """The sum of tensors of one shape and dtype.

    Args:
        out: the variable to write, which may be one of the inputs; a new one by default.

    Raises:
        ShapeError: their shapes or dtypes differ.
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
    """scale * x + bias, or scale * (x + bias) unless `bias_after_scale`.

    Args:
        x: numbers; of integers the whole parts of scale and bias are used.
        scale: a number, or a tensor of one element, which gets no gradient.
        act: an activation applied to the result.
    """
    hold(x, (*NUMBERS, VarType.INT8, VarType.INT16, VarType.UINT8), "scale", "x")
    attrs = {"bias": float(bias), "bias_after_scale": bias_after_scale}
    if isinstance(scale, Variable):
        return emit("scale", {"X": x, "ScaleTensor": scale}, attrs, act=act, name=name)
    return emit("scale", {"X": x}, {"scale": float(scale), **attrs}, act=act, name=name)


def cumsum(
    x: Variable, axis: int | None = None, exclusive: bool | None = None, reverse: bool | None = None
) -> Variable:
    """Running sums along `axis`, the last by default.

    Args:
        exclusive: leave the element itself out of its sum, so that the first is 0.
        reverse: sum from the end.
    """
    return emit(
        "cumsum",
        {"X": hold(x, NUMBERS, "cumsum", "x")},
        {"axis": axis, "exclusive": exclusive, "reverse": reverse},
    )


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """min(max(x, lower), upper), `min` being the lower bound and `max` the upper.

    Raises:
        ShapeError: min is not less than max.
    """
    return emit(
        "clip",
        {"X": hold(x, FLOATS, "clip", "x")},
        {"min": float(min), "max": float(max)},
        name=name,
    )


def clamp(
    input: Variable,
    min: float | Variable | None = None,
    max: float | Variable | None = None,
    output: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Elements limited to the range from `min` to `max`, each a number or a tensor of one element.

    A missing `max` is infinity. A missing `min` is 0 and not minus infinity, because that is what
    Fluid 1.8 does.

    Args:
        output: the variable to write; a new one by default.

    Raises:
        ValueError: neither bound is given.
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
    """x, scaled to the Euclidean norm `max_norm` where its own is larger."""
    return emit(
        "clip_by_norm",
        {"X": hold(x, FLOATS, "clip_by_norm", "x")},
        {"max_norm": float(max_norm)},
        name=name,
    )


def addcmul(
    input: Variable,
    tensor1: Variable,
    tensor2: Variable,
    value: float = 1.0,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """input + value * tensor1 * tensor2.

    Args:
        out: the variable to write; a new one by default.
    """
    hold([input, tensor1, tensor2], NUMBERS, "addcmul", "input, tensor1, tensor2")
    product = emit("elementwise_mul", {"X": tensor1, "Y": tensor2}, name=name)
    result = emit("elementwise_add", {"X": input, "Y": scale(product, value)}, name=name)
    return result if out is None else assign(result, out)


def mul(
    x: Variable,
    y: Variable,
    x_num_col_dims: int = 1,
    y_num_col_dims: int = 1,
    name: str | None = None,
) -> Variable:
    """The product of x and y as matrices.

    Args:
        x_num_col_dims: how many dimensions of x make its rows; the others make its columns.
        y_num_col_dims: the same for y.

    Returns:
        A tensor with the row dimensions of x and the column dimensions of y.

    Raises:
        ShapeError: the columns of x are not as many as the rows of y.
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
    """alpha * x @ y over the last two dimensions.

    A vector counts as one row of x or one column of y. A matrix goes with every matrix of a batch;
    two batches need equally many matrices.

    Args:
        transpose_x, transpose_y: exchange the last two dimensions first.

    Raises:
        ShapeError: the shapes do not go together.
    """
    hold([x, y], FLOATS, "matmul", "x, y")
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": float(alpha)}
    return emit("matmul", {"X": x, "Y": y}, attrs, name=name)


def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The product of each matrix of x, [batch, m, k], with that of y, [batch, k, n].

    Raises:
        ShapeError: the shapes are not such.
    """
    return emit(
        "bmm", {"X": hold(x, FLOATS, "bmm", "x"), "Y": hold(y, FLOATS, "bmm", "y")}, name=name
    )


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The inner product of two vectors, of shape [1], or of the rows of two matrices, of shape
    [rows, 1].

    Raises:
        ShapeError: the shapes differ, or have more than two dimensions.
    """
    hold([x, y], NUMBERS, "dot", "x, y")
    return emit("dot", {"X": x, "Y": y}, name=name)


def addmm(
    input: Variable,
    x: Variable,
    y: Variable,
    alpha: float = 1.0,
    beta: float = 1.0,
    name: str | None = None,
) -> Variable:
    """beta * input + alpha * x @ y for three matrices.

    Raises:
        ShapeError: the shapes do not go together.
    """
    hold([input, x, y], FLOATS, "addmm", "input, x, y")
    return emit(
        "addmm",
        {"Input": input, "X": x, "Y": y},
        {"Alpha": float(alpha), "Beta": float(beta)},
        name=name,
    )


def kron(
    x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
) -> Variable:
    """The Kronecker product: each element of x times the whole of y.

    Args:
        out: the variable to write; a new one by default.
    """
    hold([x, y], NUMBERS, "kron", "x, y")
    return into(out, "kron", {"X": x, "Y": y}, name=name)


def cross(input: Variable, other: Variable, dim: int | None = None) -> Variable:
    """Cross products of the vectors along `dim`, the first dimension of size 3 by default.

    Raises:
        ShapeError: the shapes differ, or the dimension is not of size 3.
    """
    hold([input, other], NUMBERS, "cross", "input, other")
    return emit("cross", {"X": input, "Y": other}, {"dim": dim})


def trace(
    input: Variable,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """The sum of a diagonal of each matrix that dimensions `dim1` and `dim2` make.

    Args:
        offset: which diagonal: 0 the main one, positive above it, negative below.
        out: the variable to write; a new one by default.
    """
    hold(input, NUMBERS, "trace", "input")
    return into(
        out, "trace", {"Input": input}, {"offset": offset, "dim1": dim1, "dim2": dim2}, name=name
    )


def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """The norm of order p (also 0 and infinity) of x - y, which are broadcast against each other,
    of shape [1].
    """
    return emit(
        "dist",
        {"X": hold(x, FLOATS, "dist", "x"), "Y": hold(y, FLOATS, "dist", "y")},
        {"p": float(p)},
    )


def l2_normalize(
    x: Variable, axis: int | None, epsilon: float = 1e-12, name: str | None = None
) -> Variable:
    """x / sqrt(sum(x^2) + epsilon) along `axis` (1 where it is None; a vector along itself)."""
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
    """The cosine of the angle between each row of X and that of Y, of shape [rows, 1]; Y may have
    one row for all.
    """
    hold([X, Y], FLOATS, "cos_sim", "X, Y")
    out, _, _ = emit("cos_sim", {"X": X, "Y": Y}, outs=("Out", "XNorm", "YNorm"))
    return out
