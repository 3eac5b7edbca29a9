"""State of one element each, such as the powers of Adam's betas, read as one array."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

FEWEST = 4


def read_together(env: dict[str, Any], names: Iterable[str]) -> None:
    """Replace those of the named values that have one element by parts of one array, for each dtype.

    On a GPU an update of one element is a kernel of its own, and each value that others read
    while it is overwritten is copied before: two to four kernels for each parameter. XLA makes
    one of all updates that read parts of the same array, which is a copy already.
    """
    by_dtype: dict[Any, list[str]] = {}
    for name in names:
        value = env.get(name)
        if isinstance(value, jax.Array) and value.shape == (1,):
            by_dtype.setdefault(value.dtype, []).append(name)
    for alike in by_dtype.values():
        if len(alike) >= FEWEST:
            # without the barrier XLA would read each value by itself again
            whole = jax.lax.optimization_barrier(jnp.concatenate([env[n] for n in alike]))
            env.update((n, whole[i : i + 1]) for i, n in enumerate(alike))
