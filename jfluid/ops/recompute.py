"""The operator that keeps recomputed values from being merged with the first ones."""

import functools

import jax
from jax import Array

from jfluid.ops import dependency
from jfluid.ops.gradients import differentiable
from jfluid.ops.ragged import Value
from jfluid.ops.registry import op


@op("recompute_barrier", ins=("X*", "After*?"), outs=("Out*",), grad=False, rows="sequence", counts=True)
def recompute_barrier(x: list[Value], after: list[Value] | None) -> list[Value]:
    """Return x itself, available only once every value of `after` is."""
    found, others = jax.lax.optimization_barrier((x, after))
    earlier = [leaf for leaf in jax.tree.leaves(others) if differentiable(leaf)]

    def later(leaf: Array) -> Array:
        """Return the leaf, which waits also on CPUs: XLA drops the barrier there before it merges equal operations."""
        return functools.reduce(dependency.after, earlier, leaf) if differentiable(leaf) else leaf

    return jax.tree.map(later, found)
