"""Normalisation: batch, layer, instance, group, local response, spectral."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import collective, dependency, row_rules, unrolled, windows
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import Int, op


def _working(dtype: Any) -> jnp.dtype:
    """Return the dtype to compute in: half precision is normalised in float32."""
    return jnp.promote_types(dtype, jnp.float32)


def _channel_axis(x: jax.Array, data_layout: str) -> int:
    return x.ndim - 1 if windows.channels_last(data_layout) else 1


def _along(vector: jax.Array, ndim: int, axis: int) -> jax.Array:
    """Reshape a vector to broadcast along `axis`."""
    return vector.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _check_parameters(op_type: str, channels: int, **vectors: jax.Array | None) -> None:
    for name, value in vectors.items():
        if value is not None and math.prod(value.shape) != channels:
            raise errors.ShapeError(f"{op_type}: {name} needs {channels} elements, found shape {list(value.shape)}")


def _spread(vector: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """Reshape per-channel values [C], or [groups, C] for groups of rows, to broadcast against x."""
    if vector.ndim == 1:
        return _along(vector, x.ndim, axis)
    groups, channels = vector.shape
    by_row = jnp.broadcast_to(vector[:, None], (groups, x.shape[0] // groups, channels))
    return by_row.reshape([x.shape[0], *_along(vector[0], x.ndim, axis).shape[1:]])


def _by_channel(reduce: Any, x: jax.Array, axis: int, groups: int) -> Any:
    """Reduce all dimensions but the channels': [C], or [groups, C].

    With groups each row first: a shape that is divided keeps XLA's library from computing what it reduces
    while it reads it.
    """
    others = tuple(i for i in range(x.ndim) if i != axis)
    if groups == 1:
        return reduce(x, others)
    rows = reduce(x, others[1:]) if others[1:] else x
    return reduce(rows.reshape(groups, -1, rows.shape[1]), (1,))


def _of_all_groups(vector: jax.Array) -> jax.Array:
    """Add up [groups, C].

    Not by a reduction, which XLA would join with the one over rows, and then read these twice.
    """
    return vector if vector.ndim == 1 else functools.reduce(jnp.add, list(vector))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _batch_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, axis: int, groups: int
) -> tuple[Any, ...]:
    """Normalise by the statistics of the batch, or of each group of rows; also return the statistics.

    No gradient flows through the returned statistics.

    The gradient is the textbook formula: two reductions and one pass, about a fifth faster on CPUs
    than differentiating through mean and variance.
    """
    return _batch_norm_forward(x, scale, bias, epsilon, axis, groups)[0]


def _batch_norm_forward(
    x: Array, scale: Array, bias: Array, epsilon: float, axis: int, groups: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    along = functools.partial(_spread, x=x, axis=axis)
    wide = x.astype(scale.dtype)
    mean = _by_channel(jnp.mean, wide, axis, groups)
    variance = _by_channel(jnp.mean, jnp.square(wide - along(mean)), axis, groups)
    inverse = lax.rsqrt(variance + epsilon)
    slope = scale * inverse
    y = ((wide - along(mean)) * along(slope) + along(bias)).astype(x.dtype)
    return (y, mean, variance, inverse), (x, scale, mean, inverse)


def _batch_norm_backward(
    epsilon: float, axis: int, groups: int, kept: tuple[Any, ...], grads: tuple[Any, ...]
) -> tuple[Array, Array, Array]:
    x, scale, mean, inverse = kept
    along = functools.partial(_spread, x=x, axis=axis)
    grad = grads[0].astype(scale.dtype)
    count = x.size // x.shape[axis] // groups
    grad_bias = _by_channel(jnp.sum, grad, axis, groups)
    centred = x.astype(scale.dtype) - along(dependency.after(mean, grad_bias))
    grad_scale = _by_channel(jnp.sum, grad * centred, axis, groups) * inverse
    slope = scale * inverse
    grad_x = (
        along(slope) * grad - centred * along(slope * inverse * grad_scale / count) - along(slope * grad_bias / count)
    )
    return grad_x.astype(x.dtype), _of_all_groups(grad_scale), _of_all_groups(grad_bias)


_batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


def _masked_norm(x: Array, scale: Array, bias: Array, epsilon: float, axis: int, rows: RowMask) -> tuple[Any, ...]:
    """Compute `_batch_norm` with statistics of the rows that are not padding."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    along = functools.partial(_along, ndim=x.ndim, axis=axis)
    wide = x.astype(scale.dtype)
    count = jnp.maximum(rows.count, 1).astype(scale.dtype) * (x.size // (x.shape[axis] * x.shape[0]))
    mean = rows.zero(wide).sum(others) / count
    variance = rows.zero(jnp.square(wide - along(mean))).sum(others) / count
    inverse = lax.rsqrt(variance + epsilon)
    y = ((wide - along(mean)) * along(scale * inverse) + along(bias)).astype(x.dtype)
    return y, mean, variance, inverse


_STATISTICS: dict[str, Any] = {
    "ins": ("X", "Scale", "Bias", "Mean", "Variance", "MomentumTensor?"),
    "outs": ("Y", "MeanOut", "VarianceOut", "SavedMean~", "SavedVariance~", "ReserveSpace?"),
    "nograd": ("Mean", "Variance", "MomentumTensor"),
    "unsaved": ("Y",),
    "inplace": {"MeanOut": "Mean", "VarianceOut": "Variance"},
}


@op("batch_norm", **_STATISTICS, rows="mask", row_outs=("Y",))
def batch_norm(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    momentum_tensor: Array | None,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    data_layout: str = "NCHW",
    is_test: bool = False,
    use_global_stats: bool = False,
    trainable_statistics: bool = False,
    fuse_with_relu: bool = False,
    rows: RowMask | None = None,
    replicas: int = 1,
) -> tuple[Array, Array, Array, Array, Array, Array | None]:
    """Normalise each channel of x by the batch's statistics (in training) or the running ones, then scale and shift.

    SavedVariance is the inverse standard deviation; the running variance takes the biased one. Where
    rows are those of several `replicas`, each has statistics of its own: [replicas, C].
    """
    axis = _channel_axis(x, data_layout)
    _check_parameters("batch_norm", x.shape[axis], Scale=scale, Bias=bias)
    _check_parameters("batch_norm", x.shape[axis] * replicas, Mean=mean, Variance=variance)
    if use_global_stats or (is_test and not trainable_statistics):
        inverse = lax.rsqrt(variance + epsilon)
        along = functools.partial(_spread, x=x, axis=axis)
        y = (x - along(mean)) * along(scale * inverse) + along(bias)
        y = jnp.maximum(y, 0) if fuse_with_relu else y
        return y.astype(x.dtype), mean, variance, mean, inverse, None
    if fuse_with_relu:
        raise errors.AttributeTypeError("batch_norm: fuse_with_relu is for inference (is_test) only")
    if x.size == x.shape[axis] * replicas:  # Fluid leaves a single element as it is
        return x, mean, variance, mean, variance, None
    keep = momentum if momentum_tensor is None else momentum_tensor.reshape(()).astype(mean.dtype)
    found = (
        _batch_norm(x, scale, bias, epsilon, axis, replicas)
        if rows is None
        else _masked_norm(x, scale, bias, epsilon, axis, rows)
    )
    y, batch_mean, batch_variance, inverse = found[0], *map(lax.stop_gradient, found[1:])
    outs = (
        y,
        mean * keep + batch_mean * (1 - keep),
        variance * keep + batch_variance * (1 - keep),
        batch_mean,
        inverse,
    )
    if rows is not None and x.size == x.shape[axis] * x.shape[0]:
        one = rows.count == 1
        y, new_mean, new_variance, saved_mean, saved_variance = (
            jnp.where(one, v, w) for v, w in zip((x, mean, variance, mean, variance), outs)
        )
        return y, new_mean, new_variance, saved_mean, saved_variance, None
    return (*outs, None)


@op("sync_batch_norm", **_STATISTICS, rows="mask", row_outs=("Y",))
def sync_batch_norm(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    momentum_tensor: Array | None,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    data_layout: str = "NCHW",
    is_test: bool = False,
    use_global_stats: bool = False,
    trainable_statistics: bool = False,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array, Array, Array, Array | None]:
    """Compute batch_norm with the statistics of the batch of all replicas."""
    if use_global_stats or (is_test and not trainable_statistics) or not collective.among_replicas():
        return batch_norm(
            x,
            scale,
            bias,
            mean,
            variance,
            momentum_tensor,
            momentum=momentum,
            epsilon=epsilon,
            data_layout=data_layout,
            is_test=is_test,
            use_global_stats=use_global_stats,
            trainable_statistics=trainable_statistics,
            rows=rows,
        )
    axis = _channel_axis(x, data_layout)
    _check_parameters("sync_batch_norm", x.shape[axis], Scale=scale, Bias=bias, Mean=mean, Variance=variance)
    others = tuple(a for a in range(x.ndim) if a != axis)
    along = functools.partial(_along, ndim=x.ndim, axis=axis)
    wide = x.astype(mean.dtype)
    own = x.shape[0] if rows is None else rows.count
    count = collective.total(jnp.asarray(own, mean.dtype)) * (x.size // (x.shape[axis] * x.shape[0]))

    def sums(values: Array) -> Array:
        return (values if rows is None else rows.zero(values)).sum(others)

    batch_mean = collective.total(sums(wide)) / count
    batch_variance = collective.total(sums(jnp.square(wide - along(batch_mean)))) / count
    inverse = lax.rsqrt(batch_variance + epsilon)
    y = ((wide - along(batch_mean)) * along(scale * inverse) + along(bias)).astype(x.dtype)
    keep = momentum if momentum_tensor is None else momentum_tensor.reshape(()).astype(mean.dtype)
    batch_mean, batch_variance, inverse = map(lax.stop_gradient, (batch_mean, batch_variance, inverse))
    return (
        y,
        mean * keep + batch_mean * (1 - keep),
        variance * keep + batch_variance * (1 - keep),
        batch_mean,
        inverse,
        None,
    )


@op("inplace_abn", **_STATISTICS, rows="mask", row_outs=("Y",))
def inplace_abn(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    momentum_tensor: Array | None,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    data_layout: str = "NCHW",
    is_test: bool = False,
    use_global_stats: bool = False,
    trainable_statistics: bool = False,
    activation: str = "",
    alpha: float = 0.1,
    use_sync_bn: bool = False,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array, Array, Array, Array | None]:
    """Compute batch_norm and apply an activation: none, leaky_relu or elu."""
    if use_sync_bn:
        raise errors.UnsupportedError(
            "inplace_abn: use_sync_bn is not provided; use batch_norm with "
            "BuildStrategy.sync_batch_norm, followed by the activation"
        )
    outs = batch_norm(
        x,
        scale,
        bias,
        mean,
        variance,
        momentum_tensor,
        momentum=momentum,
        epsilon=epsilon,
        data_layout=data_layout,
        is_test=is_test,
        use_global_stats=use_global_stats,
        trainable_statistics=trainable_statistics,
        rows=rows,
    )
    y = outs[0]
    if activation == "leaky_relu":
        y = jnp.where(y > 0, y, alpha * y)
    elif activation == "elu":
        y = jnp.where(y > 0, y, alpha * jnp.expm1(jnp.minimum(y, 0)))
    elif activation not in ("", "identity"):
        raise errors.ProgramError(f"inplace_abn: activation {activation!r}, expected identity, leaky_relu or elu")
    return y, *outs[1:]


def _moments(x: jax.Array, axes: tuple[int, ...], epsilon: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return x normalised over `axes`, its mean and its biased variance (both with the axes kept)."""
    mean = jnp.mean(x, axes, keepdims=True)
    centred = x - mean
    variance = jnp.mean(jnp.square(centred), axes, keepdims=True)
    return centred * lax.rsqrt(variance + epsilon), mean, variance


@op(
    "layer_norm",
    ins=("X", "Scale?", "Bias?"),
    outs=("Y", "Mean~", "Variance~"),
    rows=row_rules.by_axis("begin_norm_axis", 1),
)
def layer_norm(
    x: Array, scale: Array | None, bias: Array | None, *, begin_norm_axis: int = 1, epsilon: float = 1e-5
) -> tuple[Array, Array, Array]:
    """Normalise x over its dimensions from begin_norm_axis on, then scale and shift element by element."""
    if not 0 < begin_norm_axis < x.ndim:
        raise errors.ShapeError(
            f"layer_norm: begin_norm_axis {begin_norm_axis} for an input of shape "
            f"{list(x.shape)}, expected a number from 1 to {x.ndim - 1}"
        )
    inner = x.shape[begin_norm_axis:]
    _check_parameters("layer_norm", math.prod(inner), Scale=scale, Bias=bias)
    axes = tuple(range(begin_norm_axis, x.ndim))

    def normalised(x: Array, *parameters: Array) -> tuple[Array, Array, Array]:
        y, mean, variance = _moments(x.astype(_working(x.dtype)), axes, epsilon)
        given = iter(parameters)
        y = y if scale is None else y * next(given).reshape(inner)
        y = y if bias is None else y + next(given).reshape(inner)
        return y.astype(x.dtype), mean.reshape(-1), variance.reshape(-1)

    parameters = [p for p in (scale, bias) if p is not None]
    return dependency.from_arguments(normalised)(x, *parameters)


@op("instance_norm", ins=("X", "Scale", "Bias"), outs=("Y", "SavedMean~", "SavedVariance~"), rows="map")
def instance_norm(x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> tuple[Array, Array, Array]:
    """Normalise each channel of each sample over its plane; SavedVariance is the inverse standard deviation."""
    if x.ndim < 2:
        raise errors.ShapeError(f"instance_norm: expected an input of at least 2 dimensions, found {list(x.shape)}")
    _check_parameters("instance_norm", x.shape[1], Scale=scale, Bias=bias)
    y, mean, variance = _moments(x.astype(_working(x.dtype)), tuple(range(2, x.ndim)), epsilon)
    y = y * _along(scale, x.ndim, 1) + _along(bias, x.ndim, 1)
    return y.astype(x.dtype), mean.reshape(-1), lax.rsqrt(variance + epsilon).reshape(-1)


@op("group_norm", ins=("X", "Scale?", "Bias?"), outs=("Y", "Mean~", "Variance~"), rows="map")
def group_norm(
    x: Array, scale: Array | None, bias: Array | None, *, groups: Int, epsilon: float = 1e-5, data_layout: str = "NCHW"
) -> tuple[Array, Array, Array]:
    """Normalise each group of channels of each sample, then scale and shift each channel."""
    axis = _channel_axis(x, data_layout)
    channels = x.shape[axis]
    if groups < 1 or channels % groups:
        raise errors.ShapeError(f"group_norm: {channels} channels cannot be divided into {groups} groups")
    _check_parameters("group_norm", channels, Scale=scale, Bias=bias)
    split = x.astype(_working(x.dtype)).reshape(*x.shape[:axis], groups, channels // groups, *x.shape[axis + 1 :])
    y, mean, variance = _moments(split, tuple(i for i in range(1, split.ndim) if i != axis), epsilon)
    y = y.reshape(x.shape)
    y = y if scale is None else y * _along(scale, x.ndim, axis)
    y = y if bias is None else y + _along(bias, x.ndim, axis)
    return y.astype(x.dtype), mean.reshape(-1, groups), variance.reshape(-1, groups)


@op("lrn", ins=("X",), outs=("Out", "MidOut"), rows="map")
def lrn(
    x: Array, *, n: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75, data_format: str = "AnyLayout"
) -> tuple[Array, Array]:
    """Divide x by (k + alpha * sum of squares over n neighbouring channels) ** beta."""
    if n < 1 or n % 2 == 0:
        raise errors.ProgramError(f"lrn: n is {n}, expected an odd number of channels")
    axis = _channel_axis(x, data_format)
    before = min((n - 1) // 2, x.shape[axis])  # beyond there are no channels
    n = 2 * before + 1
    squares = windows.pad(jnp.square(x), (axis,), ((before, before),), 0)
    middle = k + alpha * windows.window_sum(squares, (axis,), (n,), (1,), (x.shape[axis],))
    return x * middle**-beta, middle


@op("affine_channel", ins=("X", "Scale", "Bias"), outs=("Out",), rows="map")
def affine_channel(x: Array, scale: Array, bias: Array, *, data_layout: str = "AnyLayout") -> Array:
    """Scale and shift each channel of x: the second dimension in NCHW, else the last."""
    axis = 1 if data_layout == "NCHW" else x.ndim - 1
    _check_parameters("affine_channel", x.shape[axis], Scale=scale, Bias=bias)
    return x * _along(scale, x.ndim, axis) + _along(bias, x.ndim, axis)


@op("spectral_norm", ins=("Weight", "U", "V"), outs=("Out",), nograd=("U", "V"))
def spectral_norm(
    weight: Array, u: Array, v: Array, *, dim: int = 0, power_iters: int = 1, eps: float = 1e-12
) -> Array:
    """Divide weight by its largest singular value, estimated by power_iters steps from u and v."""
    matrix = jnp.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1)
    fixed = lax.stop_gradient(matrix)

    def step(_: Any, vectors: tuple[Array, Array]) -> tuple[Array, Array]:
        u, v = vectors
        v = fixed.T @ u
        v = v / (jnp.linalg.norm(v) + eps)
        u = fixed @ v
        return u / (jnp.linalg.norm(u) + eps), v

    u, v = unrolled.repeat(unrolled.times("spectral_norm", "power_iters", power_iters), step, (u, v))
    return weight / jnp.vdot(u, matrix @ v)
