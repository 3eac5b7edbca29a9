"""Data dependencies of updates: a parameter is updated after all its readers, so that XLA updates it in place.

A gradient operator reads a parameter for the gradient of its input, and the parameter's update does not wait for that
gradient. Nor does the update of a table wait for the look-up where the loss is linear in the rows. XLA does not know
which comes first, and copies each parameter in each step. Here the learning rate of the update depends on these values.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid.compile.lowering.plan import Item
from jfluid.ir.variable import EMPTY_NAME
from jfluid.ops import dependency
from jfluid.ops.gradients import GRAD
from jfluid.ops.ragged import rows_of

RATE = "LearningRate"
# Gradients that an update waits for: for hundreds, as where all steps of an unrolled network share a
# parameter, XLA takes longer to compile than all else; there the parameter is copied.
MOST = 16
# Least elements of a table whose update waits for rows that were looked up: its copy costs more than to hold the rows.
# The number of rows decides nothing: the operations of a program are the same for batches of all sizes.
_LARGE = 1 << 20


class Awaited(NamedTuple):
    """Names of the values that an update waits for: gradients, and rows that were looked up in the parameter."""

    gradients: Sequence[str] = ()
    rows: Sequence[str] = ()

    def values(self, parameter: Any, env: Mapping[str, Any]) -> list[Any]:
        """Return the values in `env` that the update of a parameter waits for."""
        # A copy of a vector costs less than kernels that compute the awaited gradients again.
        gradients = [env[n] for n in self.gradients if n in env and np.ndim(parameter) > 1]
        rows = [rows_of(env[n]) for n in self.rows if n in env and np.size(parameter) >= _LARGE]
        return gradients + rows


def awaited(items: Iterable[Item], of_filters: bool = False) -> dict[int, Awaited]:
    """Return the values computed from the parameter of each update, by the update's place.

    The gradients are those of other variables.

    Args:
        of_filters: only gradients of convolutions, which are arrays in any case. XLA:GPU copies few other
            parameters, and a gradient with a second reader does not become part of a kernel.
    """
    found: dict[int, Awaited] = {}
    gradients: dict[str, list[str]] = {}  # of each parameter's readers so far
    rows: dict[str, list[str]] = {}
    for at, (_, op, definition) in enumerate(items):
        if definition.forward is not None:
            if of_filters and not definition.forward.convolves:
                continue
            pairs = [
                (name, grad)
                for slot in definition.forward.reads
                for name, grad in zip(op.inputs.get(slot.name, ()), op.outputs.get(slot.name + GRAD, ()))
                if grad != EMPTY_NAME
            ]
            for read in op.input_arg_names:
                gradients.setdefault(read, []).extend(grad for name, grad in pairs if name != read)
        elif "Param" in op.inputs and len(op.inputs.get(RATE, ())) == 1:
            name = op.input("Param")[0]
            lists = [given.get(name, ()) for given in (gradients, rows)]
            one = Awaited(*[names if len(names) <= MOST else () for names in lists])
            if any(one):
                found[at] = one
        elif not of_filters and "W" in op.inputs and "Ids" in op.inputs:
            rows.setdefault(op.input("W")[0], []).extend(op.output("Out"))
    return found


def after(rate: Array, values: Iterable[Any]) -> Array:
    """Return the same learning rate, with a data dependency on `values`: XLA computes the values first."""
    for leaf in jax.tree.leaves(list(values)):
        if isinstance(leaf, jax.core.Tracer) and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            rate = rate + dependency.zero_of(leaf).astype(rate.dtype)
    return rate
