"""Data dependencies of updates: a parameter is updated after all its readers, so that XLA updates it in place.

A gradient operator reads a parameter for the gradient of its input, and the parameter's update does not wait for that
gradient. XLA does not know which comes first, and copies each parameter in each step. Here the learning rate of the
update depends on that gradient.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid.compile.plan import Item
from jfluid.ir.variable import EMPTY_NAME
from jfluid.ops import dependency
from jfluid.ops.gradients import GRAD

RATE = "LearningRate"
# Gradients that an update waits for: for hundreds, as where all steps of an unrolled network share a
# parameter, XLA takes longer to compile than all else; there the parameter is copied.
MOST = 16


def awaited(items: Iterable[Item], of_filters: bool = False) -> dict[int, list[str]]:
    """Return the gradients computed from the parameter of each update, by the update's place.

    The gradients are those of other variables.

    Args:
        of_filters: only gradients of convolutions, which are arrays in any case. XLA:GPU copies few other
            parameters, and a gradient with a second reader does not become part of a kernel.
    """
    found: dict[int, list[str]] = {}
    beside: dict[str, list[str]] = {}  # parameter -> the gradients found so far
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
                beside.setdefault(read, []).extend(grad for name, grad in pairs if name != read)
        elif "Param" in op.inputs and len(op.inputs.get(RATE, ())) == 1:
            names = beside.get(op.input("Param")[0])
            if names and len(names) <= MOST:
                found[at] = names
    return found


def after(rate: Array, values: Iterable[Any]) -> Array:
    """Return a learning rate as it is, which depends on other values."""
    for leaf in jax.tree.leaves(list(values)):
        if isinstance(leaf, jax.core.Tracer) and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            rate = rate + dependency.zero_of(leaf).astype(rate.dtype)
    return rate
