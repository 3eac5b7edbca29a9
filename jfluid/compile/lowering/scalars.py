"""Values of one element on GPUs, such as learning rates and the powers of Adam's betas: read as parts of an array."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jfluid.compile.lowering.plan import Item
from jfluid.compile.lowering.update_dependencies import RATE

FEWEST = 4
# Parts of one array: of updates of 255 XLA makes three kernels, of updates of 256 it makes 256.
MOST = 200


def read_together(env: dict[str, Any], names: Iterable[str]) -> None:
    """Replace named values of one element by slices of a few arrays, for each dtype.

    On a GPU an update of one element is a kernel. XLA also copies each value that is read while it is overwritten: two
    to four kernels for each parameter. XLA makes one kernel of all updates that read slices of the same array, which is
    a copy already.
    """
    by_dtype: dict[Any, list[str]] = {}
    for name in names:
        value = env.get(name)
        if isinstance(value, jax.Array) and value.shape == (1,):
            by_dtype.setdefault(value.dtype, []).append(name)
    for found in by_dtype.values():
        if len(found) < FEWEST:
            continue
        count = -(-len(found) // MOST)
        # Every second power, not the first half: updates read the same two arrays and become one.
        for alike in (found[first::count] for first in range(count)):
            # without the barrier XLA would read each value by itself again
            whole = jax.lax.optimization_barrier(jnp.concatenate([env[n] for n in alike]))
            env.update((n, whole[i : i + 1]) for i, n in enumerate(alike))


def shared_rates(items: Iterable[Item]) -> set[str]:
    """Return the learning rates of many updates of parameters of few shapes, which read no state of one element."""
    shapes: dict[str, list[Any]] = {}
    for _, op, _ in items:
        if len(op.inputs.get(RATE, ())) == 1 and "Beta1Pow" not in op.inputs:
            var = op.block.find_var_recursive(op.input("Param")[0])
            shapes.setdefault(op.input(RATE)[0], []).append(var and var._shape)
    return {name for name, found in shapes.items() if len(found) - len(set(found)) >= FEWEST}


def part(value: Any) -> Any:
    """Return an array of one element as a slice of a longer array.

    XLA makes one kernel of updates of one shape that read the same array, but does not count an array of one element.
    """
    if not isinstance(value, jax.Array) or value.shape != (1,):
        return value
    return jax.lax.optimization_barrier(jnp.concatenate([value, value]))[:1]
