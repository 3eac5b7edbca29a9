"""Deep gradient compression: replicas exchange only the largest elements of each gradient.

The rest is kept for later steps.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training", 2018: momentum correction, momentum factor masking and warm-up. Steps are counted from 0.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jfluid.ops.collective import AXIS, in_group, total
from jfluid.ops.registry import Float, Floats, op

# The attribute `regular_type`: the penalty that is added to a gradient; 0 is none.
_L1, _L2 = 1, 2


@op("replica_count", outs=("Out",), grad=False, collective=True)
def replica_count() -> Array:
    """Return how many replicas run the step: float32 [1]."""
    return jnp.full(1, lax.axis_size(AXIS) if in_group("replica_count") else 1, jnp.float32)


@op(
    "dgc",
    ins=("U", "V", "Grad", "Param", "current_step", "nranks"),
    outs=("U_out", "V_out", "EncodeGrad~", "Grad_out", "k", "GatherBuff~"),
    grad=False,
    collective=True,
    sums=("Grad_out",),
    inplace={"U_out": "U", "V_out": "V", "Grad_out": "Grad"},
)
def dgc(
    u: Array,
    v: Array,
    grad: Array,
    param: Array,
    step: Array,
    nranks: Array,
    *,
    m: float = 0.9,
    use_nesterov: bool = True,
    sparsity: Floats,
    rampup_begin_step: float = 0.0,
    rampup_step: float = 0.0,
    regular_coeff: float = 0.0,
    regular_type: int = 0,
) -> tuple[Array, Array, None, Array, Array, None]:
    """Return momentum, residual, the sum over replicas of the largest gradient elements, and their count.

    Before `rampup_begin_step` the sum is of whole gradients. A gradient is multiplied by `nranks`, since it is
    the gradient of the replica's share of the loss.
    """
    grad = grad * nranks.reshape(()).astype(grad.dtype)
    if regular_type:
        grad = grad + regular_coeff * {_L1: jnp.sign(param), _L2: param}[regular_type]
    group = in_group("dgc")

    def dense() -> tuple[Array, ...]:
        return u, v, total(grad) if group else grad, jnp.zeros(1, jnp.float32)

    def sparse(k: int) -> tuple[Array, ...]:
        momentum = m * (u + grad) if use_nesterov else m * u + grad
        rest = (v + momentum + grad if use_nesterov else v + momentum).reshape(-1)
        index = lax.top_k(jnp.abs(rest), k)[1]
        chosen = rest[index]
        if group:
            every = lax.all_gather((index, chosen), AXIS, tiled=True)
        else:
            every = index, chosen
        summed = jnp.zeros_like(rest).at[every[0]].add(every[1])
        return (
            momentum.reshape(-1).at[index].set(0).reshape(u.shape),
            rest.at[index].set(0).reshape(v.shape),
            summed.reshape(grad.shape),
            jnp.full(1, k, jnp.float32),
        )

    counts = [max(int(grad.size * (1 - s)), 1) for s in sparsity]
    since = step.reshape(()) - rampup_begin_step
    part = jnp.floor(since * len(counts) / rampup_step) if rampup_step else since * 0
    branch = jnp.where(since < 0, 0, 1 + jnp.clip(part, 0, len(counts) - 1)).astype(jnp.int32)
    branches: list[Any] = [dense, *(functools.partial(sparse, k) for k in counts)]
    new_u, new_v, summed, k = lax.switch(branch, branches)
    return new_u, new_v, None, summed, k, None


@op("dgc_clip_by_norm", ins=("current_step", "X"), outs=("Out",), grad=False, inplace={"Out": "X"})
def dgc_clip_by_norm(step: Array, x: Array, *, max_norm: Float, rampup_begin_step: Float = -1.0) -> Array:
    """Clip x to the norm `max_norm` from step `rampup_begin_step` on; never if that step is negative."""
    if rampup_begin_step < 0:
        return x
    norm = jnp.sqrt(jnp.sum(jnp.square(x)))
    clipped = jnp.where(norm > max_norm, x * (max_norm / jnp.maximum(norm, 1e-30)), x)
    return jnp.where(step.reshape(()) < rampup_begin_step, x, clipped.astype(x.dtype))


@op(
    "dgc_momentum",
    ins=("current_step", "nranks", "Param", "Grad", "Velocity", "LearningRate"),
    outs=("Grad_out", "ParamOut", "VelocityOut"),
    grad=False,
    inplace={"Grad_out": "Grad", "ParamOut": "Param", "VelocityOut": "Velocity"},
)
def dgc_momentum(
    step: Array,
    nranks: Array,
    param: Array,
    grad: Array,
    velocity: Array,
    rate: Array,
    *,
    mu: Float,
    use_nesterov: bool = False,
    rampup_begin_step: Float = -1.0,
) -> tuple[Array, Array, Array]:
    """Divide the gradient by `nranks` and update the parameter, with momentum before `rampup_begin_step`.

    From that step on `dgc` has applied the momentum. A negative `rampup_begin_step` changes nothing.
    """
    if rampup_begin_step < 0:
        return grad, param, velocity
    count, rate = (jnp.reshape(x, ()).astype(grad.dtype) for x in (nranks, rate))
    grad = grad / count
    moved = mu * velocity + grad
    before = step.reshape(()) < rampup_begin_step
    along = jnp.where(before, grad + mu * moved if use_nesterov else moved, grad)
    return grad, param - rate * along, jnp.where(before, moved, velocity)
