"""Activations and further elementwise functions of a tensor.

Results have the shape and dtype of `x`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jfluid.initializer import Constant
from jfluid.ir.types import var_type
from jfluid.ir.variable import Variable
from jfluid.layers.creation import assign, into
from jfluid.layers.dtypes import FLOATS, NUMBERS, hold
from jfluid.layers.helper import LayerHelper, emit

__all__ = [
    "abs",
    "acos",
    "asin",
    "atan",
    "brelu",
    "ceil",
    "cos",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log",
    "log1p",
    "log_softmax",
    "logsigmoid",
    "maxout",
    "mish",
    "pow",
    "prelu",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "sign",
    "sin",
    "soft_relu",
    "softmax",
    "softplus",
    "softshrink",
    "softsign",
    "sqrt",
    "square",
    "stanh",
    "swish",
    "tanh",
    "tanh_shrink",
    "thresholded_relu",
]


def _function(op_type: str, formula: str, kinds: tuple[Any, ...] = FLOATS) -> Callable[..., Variable]:
    def layer(x: Variable, name: str | None = None) -> Variable:
        return emit(op_type, {"X": hold(x, kinds, op_type, "x")}, name=name)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""Return {formula}, element by element.

    Args:
        x: a tensor of any shape.
        name: prefix of the name of the result.

    Raises:
        TypeError: `x` is no Variable or has a dtype that the function is not defined for.
    """
    return layer


acos = _function("acos", "the arc cosine of x, in 0..pi")
asin = _function("asin", "the arc sine of x, in -pi/2..pi/2")
atan = _function("atan", "the arc tangent of x, in -pi/2..pi/2")
ceil = _function("ceil", "the smallest integer not below x")
cos = _function("cos", "the cosine of x, in radians")
exp = _function("exp", "e to the power of x")
floor = _function("floor", "the largest integer not above x")
log = _function("log", "the natural logarithm of x")
logsigmoid = _function("logsigmoid", "log(1 / (1 + exp(-x)))")
reciprocal = _function("reciprocal", "1 / x")
relu = _function("relu", "max(x, 0)")
round = _function("round", "the integer nearest to x; halves go away from zero")
rsqrt = _function("rsqrt", "1 / sqrt(x)")
sigmoid = _function("sigmoid", "1 / (1 + exp(-x))")
sin = _function("sin", "the sine of x, in radians")
softplus = _function("softplus", "log(1 + exp(x))")
softsign = _function("softsign", "x / (1 + |x|)")
sqrt = _function("sqrt", "the square root of x; x must not be negative")
tanh = _function("tanh", "the hyperbolic tangent of x")
tanh_shrink = _function("tanh_shrink", "x - tanh(x)")
abs = _function("abs", "the magnitude of x", NUMBERS)
square = _function("square", "x * x", NUMBERS)


def erf(x: Variable) -> Variable:
    """Apply the error function: 2 / sqrt(pi) times the integral of exp(-t²) from 0 to x."""
    return emit("erf", {"X": hold(x, FLOATS, "erf", "x")})


def sign(x: Variable | np.ndarray) -> Variable:
    """Return the sign of x: -1, 0 or 1.

    An array becomes a constant of the program.
    """
    return emit("sign", {"X": hold(assign(x) if isinstance(x, np.ndarray) else x, FLOATS, "sign", "x")})


def log1p(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Return log(1 + x), exact for small x.

    Args:
        x: float tensor.
        out: the variable to write; a new variable when None.
        name: see `jfluid.layers`.
    """
    return into(out, "log1p", {"X": hold(x, FLOATS, "log1p", "x")}, name=name)


def pow(x: Variable, factor: float | Variable = 1.0, name: str | None = None) -> Variable:
    """Return x ** factor.

    Args:
        x: float tensor.
        factor: a number, or a Variable of one element, which gets no gradient.
        name: see `jfluid.layers`.
    """
    hold(x, NUMBERS, "pow", "x")
    if isinstance(factor, Variable):
        return emit("pow", {"X": x, "FactorTensor": factor}, name=name)
    return emit("pow", {"X": x}, {"factor": float(factor)}, name=name)


def _parametrised(op_type: str, x: Variable, name: str | None = None, **attrs: float | bool | None) -> Variable:
    given = {attr.rstrip("_"): value for attr, value in attrs.items()}
    return emit(op_type, {"X": hold(x, FLOATS, op_type, "x")}, given, name=name)


def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """Return min(max(x, 0), threshold)."""
    return _parametrised("relu6", x, name, threshold=threshold)


def brelu(x: Variable, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None) -> Variable:
    """Return min(max(x, t_min), t_max)."""
    return _parametrised("brelu", x, name, t_min=t_min, t_max=t_max)


def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """Return max(x, alpha * x)."""
    return _parametrised("leaky_relu", x, name, alpha=alpha)


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """Return x if positive, else alpha * (exp(x) - 1) (Clevert et al., arXiv:1511.07289)."""
    return _parametrised("elu", x, name, alpha=alpha)


def selu(x: Variable, scale: float | None = None, alpha: float | None = None, name: str | None = None) -> Variable:
    """Return scale * elu(x, alpha) (Klambauer et al., arXiv:1706.02515).

    Args:
        x: float tensor.
        scale: 1.0507... when None.
        alpha: 1.6732... when None.
        name: see `jfluid.layers`.
    """
    return _parametrised("selu", x, name, scale=scale, alpha=alpha)


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """Return x times the standard normal distribution function of x (Hendrycks & Gimpel, arXiv:1606.08415).

    Args:
        x: float tensor.
        approximate: use 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) instead.
    """
    return _parametrised("gelu", x, approximate=approximate)


def soft_relu(x: Variable, threshold: float = 40.0, name: str | None = None) -> Variable:
    """Return log(1 + exp(max(min(x, threshold), -threshold)))."""
    return _parametrised("soft_relu", x, name, threshold=threshold)


def softshrink(x: Variable, alpha: float | None = None) -> Variable:
    """Return x - alpha for x > alpha, x + alpha for x < -alpha, else 0.

    `alpha` is 0.5 when None.
    """
    return _parametrised("softshrink", x, lambda_=alpha)


def hard_shrink(x: Variable, threshold: float | None = None) -> Variable:
    """Return x for |x| > threshold, else 0. `threshold` is 0.5 when None."""
    return _parametrised("hard_shrink", x, threshold=threshold)


def thresholded_relu(x: Variable, threshold: float | None = None) -> Variable:
    """Return x for x > threshold, else 0. `threshold` is 1 when None."""
    return _parametrised("thresholded_relu", x, threshold=threshold)


def hard_sigmoid(x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Variable:
    """Return max(0, min(1, slope * x + offset)) (arXiv:1603.00391)."""
    return _parametrised("hard_sigmoid", x, name, slope=slope, offset=offset)


def hard_swish(
    x: Variable, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0, name: str | None = None
) -> Variable:
    """Return x * min(max(0, x + offset), threshold) / scale (Howard et al., arXiv:1905.02244)."""
    return _parametrised("hard_swish", x, name, threshold=threshold, scale=scale, offset=offset)


def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """Return x / (1 + exp(-beta * x)) (Ramachandran et al., arXiv:1710.05941)."""
    return _parametrised("swish", x, name, beta=beta)


def mish(x: Variable, threshold: float = 20, name: str | None = None) -> Variable:
    """Return x * tanh(log(1 + exp(x))) (Misra, arXiv:1908.08681).

    Args:
        x: float tensor.
        threshold: where x is above it the logarithm is taken as x, where x is below its negative as exp(x).
        name: see `jfluid.layers`.

    Raises ValueError if the threshold is not positive.
    """
    if threshold <= 0:
        raise ValueError(f"layers.mish, threshold: expected a positive number, found {threshold}")
    return _parametrised("mish", x, name, threshold=threshold)


def stanh(x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Variable:
    """Return scale_b * tanh(scale_a * x)."""
    return _parametrised("stanh", x, name, scale_a=scale_a, scale_b=scale_b)


def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """Return the largest of each `groups` neighbouring channels (Goodfellow et al., arXiv:1302.4389).

    Args:
        x: a tensor of four dimensions.
        groups: how many channels become one; it must divide their number.
        name: see `jfluid.layers`.
        axis: the dimension of the channels: 1, or 3 (also given as -1).

    Raises ValueError for another axis, ShapeError where `groups` does not divide the channels.
    """
    if axis not in (1, -1, 3):
        raise ValueError(f"layers.maxout, axis: expected 1, 3 or -1, found {axis}")
    return emit(
        "maxout",
        {"X": hold(x, FLOATS, "maxout", "x")},
        {"groups": groups, "axis": 3 if axis == -1 else axis},
        name=name,
    )


def prelu(x: Variable, mode: str, param_attr: object = None, name: str | None = None) -> Variable:
    """Return x if positive, else alpha * x, with a trained alpha (He et al., arXiv:1502.01852).

    Args:
        x: [N, ...]; channels are dimension 1.
        mode: "all" (one alpha), "channel" (one for each channel) or "element" (one for each element of a sample).
        param_attr: ParamAttr of alpha, which begins with 0.25 by default.
        name: see `jfluid.layers`.

    Raises ValueError for another mode.
    """
    if mode not in ("all", "channel", "element"):
        raise ValueError(f"layers.prelu, mode: expected 'all', 'channel' or 'element', found {mode!r}")
    hold(x, FLOATS, "prelu", "x")
    shape = {"all": [1], "channel": [1, *x.shape[1:2], 1, 1], "element": [1, *x.shape[1:]]}[mode]
    helper = LayerHelper("prelu", param_attr=param_attr, name=name)
    alpha = helper.create_parameter(helper.param_attr, shape, "float32", default_initializer=Constant(0.25))
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type="prelu", inputs={"X": x, "Alpha": alpha}, outputs={"Out": out}, attrs={"mode": mode})
    return out


def softmax(input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Variable:
    """Return exp(x) divided by its sum along `axis`. `use_cudnn` has no effect."""
    return emit(
        "softmax", {"X": hold(input, FLOATS, "softmax", "input")}, {"axis": axis, "use_cudnn": use_cudnn}, name=name
    )


def log_softmax(
    input: Variable, axis: int | None = None, dtype: str | None = None, name: str | None = None
) -> Variable:
    """Return the logarithm of softmax along a dimension; as in Fluid it is never less than about -64.

    Args:
        input: float tensor.
        axis: the dimension; the last when None.
        dtype: dtype that the input is converted to first; None keeps its dtype.
        name: see `jfluid.layers`.
    """
    helper = LayerHelper("log_softmax", name=name)
    x: Variable = hold(input, FLOATS, "log_softmax", "input")
    steps = [("softmax", {"axis": -1 if axis is None else axis}), ("log", {})]
    if dtype is not None:
        kinds = {"in_dtype": int(x.dtype), "out_dtype": int(var_type(dtype))}
        steps.insert(0, ("cast", kinds))
    for op_type, attrs in steps:
        out = helper.create_variable_for_type_inference(None)
        helper.append_op(type=op_type, inputs={"X": x}, outputs={"Out": out}, attrs=attrs)
        x = out
    return x
