"""The operator that keeps recomputed values from being merged with the first ones."""

import jax

from jfluid.ops.ragged import Value
from jfluid.ops.registry import op


@op("recompute_barrier", ins=("X*", "After*?"), outs=("Out*",), grad=False, rows="sequence")
def recompute_barrier(x: list[Value], after: list[Value] | None) -> list[Value]:
    """Return x itself, available only once every value of `after` is."""
    return jax.lax.optimization_barrier((x, after))[0]
