"""Order of computations: values that XLA computes with only once other values are there."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

AWAITED = "awaited"  # name of the jitted function that makes a value wait for another


def _zero(value: Array) -> Array:
    """Return a zero that XLA cannot simplify: it depends on an element of the value."""
    first = lax.slice(value, (0,) * value.ndim, (1,) * value.ndim).reshape(())
    half = first.dtype.itemsize * 4
    bits = lax.bitcast_convert_type(first, jnp.dtype(f"uint{2 * half}"))
    return (bits >> half) >> half


_zero.__name__ = AWAITED
zero_of = jax.jit(_zero)


def after(x: Array, earlier: Array) -> Array:
    """Return x as it is, which XLA on CPUs computes with only once `earlier` is there.

    In the gradient of an operator this keeps XLA from computing with x in the forward pass already, and from holding
    the result until the backward pass. XLA on CPUs drops barriers of optimization before it orders computations; on
    GPUs it fuses what it computes again.
    """
    if not isinstance(earlier, jax.core.Tracer) or not earlier.size:
        return x

    def waiting(x: Array, earlier: Array) -> Array:
        return x + zero_of(earlier).astype(x.dtype)

    return lax.platform_dependent(x, earlier, cpu=waiting, default=lambda x, _: x)


def from_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays whose gradient holds the arguments alone, and computes the function again.

    For functions that cost little beside the memory of their intermediate results.
    """

    @jax.custom_vjp
    @functools.wraps(function)
    def outer(*values: Array) -> Any:
        return function(*values)

    def forward(*values: Array) -> tuple[Any, tuple[Array, ...]]:
        return function(*values), values

    def backward(values: tuple[Array, ...], grads: Any) -> Any:
        earlier = next(leaf for leaf in jax.tree.leaves(grads) if jnp.issubdtype(leaf.dtype, jnp.floating))
        return jax.vjp(function, after(values[0], earlier), *values[1:])[1](grads)

    outer.defvjp(forward, backward)
    return outer
