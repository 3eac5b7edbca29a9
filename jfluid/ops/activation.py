"""Activation functions, with Fluid's subgradients at corners."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import dependency, row_rules, unrolled
from jfluid.ops.axes import dimension
from jfluid.ops.elementwise import aligned, between, unary
from jfluid.ops.registry import Int, op, table


@jax.custom_vjp
def _relu(x: Array) -> Array:
    """Return the maximum of x and 0. As in Fluid the gradient reads the result: x need not be held.

    XLA on CPUs would compute a maximum again in each loop that reads the result, and so hold x. It does not compute a
    selection again, which reads x twice.
    """
    return jnp.where(x <= 0, jnp.zeros((), x.dtype), x)


def _relu_forward(x: Array) -> tuple[Array, Array]:
    out = _relu(x)
    return out, out


def _relu_backward(out: Array, grad: Array) -> tuple[Array]:
    return (jnp.where(out > 0, grad, jnp.zeros((), grad.dtype)),)


_relu.defvjp(_relu_forward, _relu_backward)

_PLAIN: dict[str, Callable[..., Any]] = {
    "relu": _relu,
    "sigmoid": jax.nn.sigmoid,
    "logsigmoid": jax.nn.log_sigmoid,
    "tanh": jnp.tanh,
    "tanh_shrink": lambda x: x - jnp.tanh(x),
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
}
table({name: unary(compute) for name, compute in _PLAIN.items()}, ins=("X",), outs=("Out",), examples=("X",))


@op("relu6", ins=("X",), outs=("Out",), examples=("X",))
def relu6(x: Array, *, threshold: float = 6.0) -> Array:
    """Limit x to 0..threshold."""
    return between(x, 0.0, threshold)


@op("brelu", ins=("X",), outs=("Out",), examples=("X",))
def brelu(x: Array, *, t_min: float = 0.0, t_max: float = 24.0) -> Array:
    """Limit x to t_min..t_max."""
    return between(x, t_min, t_max)


@op("leaky_relu", ins=("X",), outs=("Out",), examples=("X",))
def leaky_relu(x: Array, *, alpha: float = 0.02) -> Array:
    """Return the larger of x and alpha * x."""
    positive, negative = (x, alpha * x) if alpha <= 1 else (alpha * x, x)
    return jnp.where(x > 0, positive, negative)


@op("elu", ins=("X",), outs=("Out",), examples=("X",))
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """Return x if positive, else alpha * (exp(x) - 1)."""
    return jax.nn.elu(x, alpha)


@op("selu", ins=("X",), outs=("Out",), examples=("X",))
def selu(x: Array, *, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772) -> Array:
    """Return scale * elu(x, alpha)."""
    return scale * jax.nn.elu(x, alpha)


@op("gelu", ins=("X",), outs=("Out",), examples=("X",))
def gelu(x: Array, *, approximate: bool = False) -> Array:
    """Return x times the normal distribution function of x, or its approximation by tanh."""
    return dependency.from_arguments(lambda x: jax.nn.gelu(x, approximate))(x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _soft_relu(x: Array, threshold: float) -> Array:
    return jax.nn.softplus(jnp.clip(x, -threshold, threshold))


@_soft_relu.defjvp
def _soft_relu_jvp(threshold: float, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    # Fluid takes the gradient from the output: it goes on below -threshold, and stops where the
    # output reaches it.
    out = _soft_relu(primals[0], threshold)
    return out, tangents[0] * jnp.where(out < threshold, -jnp.expm1(-out), 0.0)


@op("soft_relu", ins=("X",), outs=("Out",), examples=("X",))
def soft_relu(x: Array, *, threshold: float = 40.0) -> Array:
    """Return log(1 + exp(x)), with x limited to -threshold..threshold."""
    return _soft_relu(x, threshold)


@op("softshrink", ins=("X",), outs=("Out",), examples=("X",))
def softshrink(x: Array, *, lambda_: float = 0.5) -> Array:
    """Shrink x towards zero by lambda; return zero if |x| is below lambda."""
    return jnp.where(x > lambda_, x - lambda_, jnp.where(x < -lambda_, x + lambda_, 0.0))


@op("hard_shrink", ins=("X",), outs=("Out",), examples=("X",))
def hard_shrink(x: Array, *, threshold: float = 0.5) -> Array:
    """Return x, or zero if its magnitude is at most the threshold."""
    return jnp.where(jnp.abs(x) > threshold, x, 0.0)


@op("thresholded_relu", ins=("X",), outs=("Out",), examples=("X",))
def thresholded_relu(x: Array, *, threshold: float = 1.0) -> Array:
    """Return x, or zero if x is at most the threshold."""
    return jnp.where(x > threshold, x, 0.0)


@op("hard_sigmoid", ins=("X",), outs=("Out",), examples=("X",))
def hard_sigmoid(x: Array, *, slope: float = 0.2, offset: float = 0.5) -> Array:
    """Return slope * x + offset, limited to 0..1."""
    return between(slope * x + offset, 0.0, 1.0)


@op("hard_swish", ins=("X",), outs=("Out",), examples=("X",))
def hard_swish(x: Array, *, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> Array:
    """Return x times (x + offset limited to 0..threshold), divided by scale."""
    return x * between(x + offset, 0.0, threshold) / scale


@op("swish", ins=("X",), outs=("Out",), examples=("X",))
def swish(x: Array, *, beta: float = 1.0) -> Array:
    """Return x * sigmoid(beta * x)."""
    return x * jax.nn.sigmoid(beta * x)


@op("mish", ins=("X",), outs=("Out",), examples=("X",))
def mish(x: Array, *, threshold: float = 20.0) -> Array:
    """Return x * tanh(softplus(x)); above the threshold softplus is taken as x, below its negative as exp(x)."""
    low, high = x < -threshold, x > threshold
    # The inner selection keeps exp from overflowing where its result is not used, which would spoil
    # the gradient.
    soft = jnp.where(high, x, jnp.where(low, jnp.exp(jnp.where(low, x, 0.0)), jax.nn.softplus(x)))
    return x * jnp.tanh(soft)


@op("stanh", ins=("X",), outs=("Out",), examples=("X",))
def stanh(x: Array, *, scale_a: float = 0.67, scale_b: float = 1.7159) -> Array:
    """Return scale_b * tanh(scale_a * x)."""
    return scale_b * jnp.tanh(scale_a * x)


@op("maxout", ins=("X",), outs=("Out",), rows=row_rules.by_axis("axis", 1))
def maxout(x: Array, *, groups: Int, axis: Int = 1) -> Array:
    """Return the largest of each `groups` neighbouring channels; of equal ones the gradient goes to the first."""
    axis = dimension(axis, x.ndim, "maxout")
    if groups < 1 or x.shape[axis] % groups:
        raise errors.ShapeError(
            f"maxout: {x.shape[axis]} channels (axis {axis} of {x.shape}) cannot be split into groups of {groups}"
        )
    grouped = x.reshape(*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :])

    def member(i: Any) -> Array:
        return unrolled.part(grouped, i, 1, axis + 1).squeeze(axis + 1)

    def better(i: Any, best: Array) -> Array:
        return jnp.where(member(i + 1) > best, member(i + 1), best)

    return unrolled.repeat(groups - 1, better, member(0))


def _unless_by_element(attrs: Mapping[str, Any], ins: Mapping[str, Any]) -> str | None:
    return None if attrs.get("mode", "all") == "element" else "map"


@op("prelu", ins=("X", "Alpha"), outs=("Out",), rows=_unless_by_element)
def prelu(x: Array, alpha: Array, *, mode: str = "all") -> Array:
    """Return x if positive, else alpha * x; alpha is a scalar, per channel, or per element of a row."""
    if mode not in ("all", "channel", "element"):
        raise errors.ShapeError(f"prelu: mode must be all, channel or element, found {mode!r}")
    if mode == "element" and alpha.ndim != x.ndim:
        raise errors.ShapeError(f"prelu: mode element needs alpha with {x.ndim} dimensions, found shape {alpha.shape}")
    if mode == "all":
        alpha = alpha.ravel()[0]
    elif mode == "channel":
        x, alpha = aligned(x, alpha.reshape(1, -1, *[1] * (x.ndim - 2)), -1, "prelu")
    else:
        x, alpha = aligned(x, alpha[:1], -1, "prelu")
    return jnp.where(x > 0, x, alpha * x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Array, axis: int) -> Array:
    # As in Fluid no exponent is below -64, so that a logarithm of the result stays finite.
    # No `maximum`, of which XLA:CPU's reductions make a sum of finite numbers where one is none.
    exponents = x - x.max(axis, keepdims=True)
    powers = jnp.exp(jnp.where(exponents < -64, -64, exponents))
    return powers / powers.sum(axis, keepdims=True)


@_softmax.defjvp
def _softmax_jvp(axis: int, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    out = _softmax(primals[0], axis)
    weighted = out * tangents[0]
    return out, weighted - out * weighted.sum(axis, keepdims=True)


@op("softmax", ins=("X",), outs=("Out",), rows=row_rules.by_axis("axis"), examples=("X",))
def softmax(x: Array, *, axis: int = -1, data_format: str = "AnyLayout") -> Array:
    """Return exp(x) normalised to a sum of one along `axis`; the layout of the data makes no difference."""
    return _softmax(x, axis)
