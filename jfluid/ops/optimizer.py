"""Optimizer operators: each is one update of one parameter.

Attributes are 32-bit floats, and Fluid computes `1 - beta` from the rounded value; `_single` does
the same, because for beta2 = 0.999 the difference is 1e-5 of the second moment.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops import table_rows
from jfluid.ops.random import key_of
from jfluid.ops.registry import Float, Function, Long, op
from jfluid.ops.selected_rows import SelectedRows, densified


def _update(type_: str, ins: str, state: str, **options: Any) -> Callable[[Function], Function]:
    """Return a decorator that registers an update: output `<slot>Out` overwrites each input slot of `state`."""
    outs = {f"{slot.replace('Accumulator', 'Accum')}Out": slot for slot in state.split()}
    register = op(type_, ins=tuple(ins.split()), outs=tuple(outs), grad=False, inplace=outs, **options)
    if type_ == "sgd":
        return register

    def registered(function: Function) -> Function:
        register(_of_dense(type_, function))
        return function

    return registered


def _of_dense(type_: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the update, which refuses a parameter of SelectedRows as in Fluid."""

    @functools.wraps(function)
    def checked(param: Any, *others: Any, **attributes: Any) -> Any:
        if isinstance(param, SelectedRows):
            raise errors.UnsupportedError(f"{type_}: a parameter of SelectedRows is updated by sgd alone, as in Fluid")
        return function(param, *others, **attributes)

    return checked


def _single(value: float) -> float:
    """Return the attribute as Fluid stores it, in 32 bits."""
    return float(np.float32(value))


def _scalar(value: Array, like: Array) -> Array:
    """Return a tensor of one element as a scalar of the dtype of `like`."""
    return jnp.reshape(value, ()).astype(like.dtype)


def _norm(value: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(value)))


def _by_rows(update: Callable[..., Any], grad: SelectedRows, *tables: Array) -> tuple[Any, ...]:
    """Apply `update(parameter, gradient, state, ...)` to the rows of a sparse gradient, each row once."""
    if not grad.unique:
        found = table_rows.current().update(update, grad.rows, grad.values, tables)
        if found is not None:
            return found
    grad = grad.merged()
    first, *rest = (grad.of(t) for t in tables)
    return tuple(grad.put(t, new) for t, new in zip(tables, update(first, grad.values, *rest)))


def _descended_rows(param: SelectedRows, rate: Array, grad: Array | SelectedRows) -> SelectedRows:
    """Return the rows of a parameter, less the rate times their gradient."""
    if not isinstance(grad, SelectedRows):
        raise errors.ShapeError("sgd: a Param of SelectedRows is updated by a Grad of SelectedRows alone")
    step = _scalar(rate, param.values) * grad.values
    values = param.values.at[param.places(grad.rows, "sgd: Grad")].add(-step)
    return replace(param, values=values)


@_update("sgd", "Param LearningRate Grad", "Param", sparse=True)
def sgd(param: Array | SelectedRows, learning_rate: Array, grad: Array | SelectedRows) -> Array | SelectedRows:
    """Return param - learning_rate * grad.

    A parameter that holds some rows of a table must have the gradient's rows.
    """
    if isinstance(param, SelectedRows):
        return _descended_rows(param, learning_rate, grad)
    if isinstance(grad, SelectedRows):
        return grad.added_to(param, -_scalar(learning_rate, param))
    return param - _scalar(learning_rate, param) * grad


@_update("momentum", "Param Grad Velocity LearningRate", "Param Velocity", sparse=True)
def momentum(
    param: Array, grad: Array, velocity: Array, learning_rate: Array, *, mu: Float, use_nesterov: bool = False
) -> tuple[Array, Array]:
    """Apply SGD with momentum.

    As in Fluid, a sparse gradient updates all rows.
    """
    grad = densified(grad)
    rate = _scalar(learning_rate, param)
    velocity = _single(mu) * velocity + grad
    step = grad + _single(mu) * velocity if use_nesterov else velocity
    return param - rate * step, velocity


@_update("lars_momentum", "Param Grad Velocity LearningRate", "Param Velocity", entire=True)
def lars_momentum(
    param: Array,
    grad: Array,
    velocity: Array,
    learning_rate: Array,
    *,
    mu: Float,
    lars_coeff: float = 0.001,
    lars_weight_decay: float = 0.0005,
) -> tuple[Array, Array]:
    """Apply momentum SGD with the layer-wise rate norm(param) / norm(grad) (LARS)."""
    rate, decay = _scalar(learning_rate, param), _single(lars_weight_decay)
    param_norm, grad_norm = _norm(param), _norm(grad)
    both = (param_norm > 0) & (grad_norm > 0)
    norms = jnp.where(both, grad_norm + decay * param_norm, 1)
    rate = jnp.where(both, rate * _single(lars_coeff) * param_norm / norms, rate)
    velocity = _single(mu) * velocity + rate * (grad + decay * param)
    return param - velocity, velocity


@_update(
    "adam",
    "Param Grad LearningRate Moment1 Moment2 Beta1Pow Beta2Pow Beta1Tensor? Beta2Tensor?",
    "Param Moment1 Moment2 Beta1Pow Beta2Pow",
    sparse=True,
)
def adam(
    param: Array,
    grad: Array,
    learning_rate: Array,
    moment1: Array,
    moment2: Array,
    beta1_pow: Array,
    beta2_pow: Array,
    beta1_tensor: Array | None,
    beta2_tensor: Array | None,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    lazy_mode: bool = False,
) -> tuple[Array, Array, Array, Array, Array]:
    """Update by Adam, and advance the powers of the betas.

    With a sparse gradient `lazy_mode` updates the rows that it has, otherwise all; and, as in
    Fluid, the step is corrected by the powers of the next one.
    """
    decay1 = _single(beta1) if beta1_tensor is None else _scalar(beta1_tensor, param)
    decay2 = _single(beta2) if beta2_tensor is None else _scalar(beta2_tensor, param)
    powers = beta1_pow * decay1, beta2_pow * decay2
    used = powers if isinstance(grad, SelectedRows) else (beta1_pow, beta2_pow)
    corrections = jnp.sqrt(1 - _scalar(used[1], param)) / (1 - _scalar(used[0], param))
    rate = _scalar(learning_rate, param) * corrections

    def update(p: Array, g: Array, first: Array, second: Array) -> tuple[Array, Array, Array]:
        first = decay1 * first + (1 - decay1) * g
        second = decay2 * second + (1 - decay2) * jnp.square(g)
        return p - rate * (first / (jnp.sqrt(second) + _single(epsilon))), first, second

    if isinstance(grad, SelectedRows) and lazy_mode:
        return (*_by_rows(update, grad, param, moment1, moment2), *powers)
    return (*update(param, densified(grad), moment1, moment2), *powers)


@_update("adamax", "Param Grad LearningRate Moment InfNorm Beta1Pow", "Param Moment InfNorm")
def adamax(
    param: Array,
    grad: Array,
    learning_rate: Array,
    moment: Array,
    inf_norm: Array,
    beta1_pow: Array,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[Array, Array, Array]:
    """Update by Adam with the decaying maximum of |grad| in place of the second moment."""
    rate = _scalar(learning_rate, param) / (1 - _scalar(beta1_pow, param))
    moment = _single(beta1) * moment + (1 - _single(beta1)) * grad
    inf_norm = jnp.maximum(jnp.abs(grad), _single(beta2) * inf_norm + _single(epsilon))
    return param - rate * (moment / inf_norm), moment, inf_norm


@_update("adagrad", "Param Grad Moment LearningRate", "Param Moment", sparse=True)
def adagrad(
    param: Array, grad: Array, moment: Array, learning_rate: Array, *, epsilon: float = 1e-6
) -> tuple[Array, Array]:
    """Update at rates that shrink with the sum of squared gradients."""

    def update(p: Array, g: Array, m: Array) -> tuple[Array, Array]:
        m = m + jnp.square(g)
        return p - _scalar(learning_rate, param) * g / (jnp.sqrt(m) + _single(epsilon)), m

    return _by_rows(update, grad, param, moment) if isinstance(grad, SelectedRows) else update(param, grad, moment)


@_update("decayed_adagrad", "Param Grad Moment LearningRate", "Param Moment")
def decayed_adagrad(
    param: Array, grad: Array, moment: Array, learning_rate: Array, *, decay: float = 0.95, epsilon: float = 1e-6
) -> tuple[Array, Array]:
    """Update by Adagrad with a decaying average of squared gradients."""
    moment = _single(decay) * moment + (1 - _single(decay)) * jnp.square(grad)
    return param - _scalar(learning_rate, param) * grad / (jnp.sqrt(moment) + _single(epsilon)), moment


@_update("adadelta", "Param Grad AvgSquaredGrad AvgSquaredUpdate", "Param AvgSquaredGrad AvgSquaredUpdate")
def adadelta(
    param: Array,
    grad: Array,
    squared_grad: Array,
    squared_update: Array,
    *,
    rho: float = 0.95,
    epsilon: float = 1e-6,
    shared: bool = False,
) -> tuple[Array, Array, Array]:
    """Update by steps of the size of earlier steps (Zeiler 2012); there is no learning rate.

    As in Fluid the step is taken with the average that already contains it where the output is the same
    variable as the input (`shared`), else with the old one, as in the paper.
    """
    rho, epsilon = _single(rho), _single(epsilon)
    squared_grad = rho * squared_grad + (1 - rho) * jnp.square(grad)
    ratio = jnp.square(grad) / (squared_grad + epsilon)
    average = rho * squared_update + (1 - rho) * (squared_update + epsilon) * ratio
    size = average if shared else squared_update
    update = -jnp.sqrt((size + epsilon) / (squared_grad + epsilon)) * grad
    return param + update, squared_grad, average


@_update(
    "rmsprop", "Param MeanSquare MeanGrad? LearningRate Grad Moment", "Param Moment MeanSquare MeanGrad", sparse=True
)
def rmsprop(
    param: Array,
    mean_square: Array,
    mean_grad: Array | None,
    learning_rate: Array,
    grad: Array,
    moment: Array,
    *,
    epsilon: float = 1e-10,
    decay: float = 0.9,
    momentum: float = 0.0,
    centered: bool = False,
) -> tuple[Array, Array, Array, Array | None]:
    """Update at rates that shrink with an average of squared gradients, less the squared average if `centered`.

    Sparse rows move all others, too, as in Fluid.
    """
    grad = densified(grad)
    decay = _single(decay)
    mean_square = decay * mean_square + (1 - decay) * jnp.square(grad)
    variance = mean_square
    if centered:
        if mean_grad is None:
            raise errors.ProgramError("rmsprop: centered needs the input MeanGrad")
        mean_grad = decay * mean_grad + (1 - decay) * grad
        variance = mean_square - jnp.square(mean_grad)
    step = _scalar(learning_rate, param) * grad / jnp.sqrt(variance + _single(epsilon))
    moment = _single(momentum) * moment + step
    return param - moment, moment, mean_square, mean_grad


@_update(
    "ftrl", "Param SquaredAccumulator LinearAccumulator Grad LearningRate", "Param SquaredAccumulator LinearAccumulator"
)
def ftrl(
    param: Array,
    squared: Array,
    linear: Array,
    grad: Array,
    learning_rate: Array,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    lr_power: float = -0.5,
) -> tuple[Array, Array, Array]:
    """Follow the regularized leader; Fluid adds 1e-10 to `l1` and `l2`."""
    rate, power = _scalar(learning_rate, param), -_single(lr_power)
    l1, l2 = _single(l1) + 1e-10, _single(l2) + 1e-10
    total = squared + jnp.square(grad)
    root, old_root = (jnp.sqrt(v) if power == 0.5 else jnp.power(v, power) for v in (total, squared))
    linear = linear + grad - (root - old_root) / rate * param
    shrunk = (l1 * jnp.sign(linear) - linear) / (root / rate + 2 * l2)
    return jnp.where(jnp.abs(linear) > l1, shrunk, 0), total, linear


@_update(
    "lamb",
    "Param Grad LearningRate Moment1 Moment2 Beta1Pow Beta2Pow",
    "Param Moment1 Moment2",
    sparse=True,
    entire=True,
)
def lamb(
    param: Array,
    grad: Array,
    learning_rate: Array,
    moment1: Array,
    moment2: Array,
    beta1_pow: Array,
    beta2_pow: Array,
    *,
    weight_decay: Float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
) -> tuple[Array, Array, Array]:
    """Update by Adam, from uncorrected moments, at a rate scaled by norm(param) / norm(step), layer by layer.

    Sparse rows move all others, too, as in Fluid.
    """
    grad = densified(grad)
    beta1, beta2 = _single(beta1), _single(beta2)
    moment1 = beta1 * moment1 + (1 - beta1) * grad
    moment2 = beta2 * moment2 + (1 - beta2) * jnp.square(grad)
    step = moment1 / (jnp.sqrt(moment2) + _single(epsilon)) + _single(weight_decay) * param
    param_norm, step_norm = _norm(param), _norm(step)
    both = (param_norm > 0) & (step_norm > 0)
    ratio = jnp.where(both, param_norm / jnp.where(both, step_norm, 1), 1)
    return param - _scalar(learning_rate, param) * ratio * step, moment1, moment2


@_update("dpsgd", "Param Grad LearningRate", "Param", rng=True)
def dpsgd(
    param: Array,
    grad: Array,
    learning_rate: Array,
    *,
    clip: float = 10.0,
    batch_size: float = 16.0,
    sigma: float = 1.0,
    seed: int = 0,
    key: Array,
) -> Array:
    """Apply differentially private SGD: a clipped gradient plus one Gaussian number for all elements."""
    scale = jnp.maximum(_norm(grad) / _single(clip), 1)
    noise = jax.random.normal(key_of(key, seed), (), param.dtype) * (_single(sigma) * _single(clip))
    return param - _scalar(learning_rate, param) * (grad / scale + noise / _single(batch_size))


def _proximal(point: Array, rate: Array, l1: float, l2: float) -> Array:
    """Return the proximal step of l1 * |x| + l2 / 2 * x²."""
    l1, l2 = _single(l1), _single(l2)
    if l1 > 0:
        point = jnp.sign(point) * jnp.maximum(jnp.abs(point) - rate * l1, 0)
    return point / (1 + rate * l2)


@_update("proximal_gd", "Param Grad LearningRate", "Param")
def proximal_gd(param: Array, grad: Array, learning_rate: Array, *, l1: float = 0.0, l2: float = 0.0) -> Array:
    """Descend along the gradient, then take the proximal step of the penalties."""
    rate = _scalar(learning_rate, param)
    return _proximal(param - rate * grad, rate, l1, l2)


@_update("proximal_adagrad", "Param Moment Grad LearningRate", "Param Moment")
def proximal_adagrad(
    param: Array, moment: Array, grad: Array, learning_rate: Array, *, l1: float = 0.0, l2: float = 0.0
) -> tuple[Array, Array]:
    """Update by Adagrad, then take the proximal step of the penalties."""
    rate = _scalar(learning_rate, param)
    moment = moment + jnp.square(grad)
    return _proximal(param - rate * grad / jnp.sqrt(moment), rate, l1, l2), moment


# Number of additions per partial sum, so that small numbers are not lost in a large sum.
_MAX_ACCUMULATES = 16384
_SUMS = {
    f"out_{n}": f"in_{n}" for n in ("sum_1", "sum_2", "sum_3", "num_accumulates", "old_num_accumulates", "num_updates")
}


@op("average_accumulates", ins=("param", *_SUMS.values()), outs=tuple(_SUMS), grad=False, inplace=_SUMS)
def average_accumulates(
    param: Array,
    sum_1: Array,
    sum_2: Array,
    sum_3: Array,
    num_accumulates: Array,
    old_num_accumulates: Array,
    num_updates: Array,
    *,
    average_window: float = 0.0,
    max_average_window: Long,
    min_average_window: Long = 10000,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Add a parameter to the sums that ModelAverage divides; a full window becomes sum_3."""
    num_updates, num_accumulates = num_updates + 1, num_accumulates + 1
    sum_1 = sum_1 + param
    full = (num_updates % _MAX_ACCUMULATES == 0).reshape(())
    sum_1, sum_2 = jnp.where(full, 0, sum_1), jnp.where(full, sum_2 + sum_1, sum_2)
    window = jnp.minimum(max_average_window, (num_updates * _single(average_window)).astype(num_updates.dtype))
    done = (num_accumulates >= min_average_window) & (num_accumulates >= window)
    closed = done.reshape(())
    return (
        jnp.where(closed, 0, sum_1),
        jnp.where(closed, 0, sum_2),
        jnp.where(closed, sum_1 + sum_2, sum_3),
        jnp.where(done, 0, num_accumulates),
        jnp.where(done, num_accumulates, old_num_accumulates),
        num_updates,
    )
