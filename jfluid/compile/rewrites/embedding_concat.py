"""Rows of a table that slots look up, side by side in the matrix that a layer reads, and their gradients.

Each slot looks up its rows alone, and XLA copies all of them into the matrix, or out of its gradient. Here
machine code (`direct_rows.py`) writes rows where they are wanted, and reads gradients where they are.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jfluid.compile.rewrites.concat_of_slices import FEWEST, Strips, keeps_columns
from jfluid.machine_code.row_functions import TAKE, VALUES

CALL = frozenset(("ffi_call",))  # the primitive that calls them
# Primitives that look rows up, or leave them as they are.
FOLLOWED = CALL | {"reshape", "broadcast_in_dim", "squeeze", "reduce_sum"}


class Taken(NamedTuple):
    """Rows of a table, int64 `rows`, whatever dimensions of 1 they have."""

    table: Array
    rows: Array


def of(equation: Any, arrays: Sequence[Array], taken: Taken | None) -> Taken | None:
    """Return which rows the result of a primitive is; None where it is no rows of a table.

    Args:
        arrays: what a function is called with.
        taken: which rows the first operand is.
    """
    if equation.primitive.name in CALL:
        called = equation.params["target_name"] == TAKE
        return Taken(arrays[0], arrays[1]) if called else None
    given, after = (v.aval.shape for v in (equation.invars[0], equation.outvars[0]))
    return taken if keeps_columns(equation.primitive.name, given, after) else None


def beside(parts: Sequence[Taken | None], array: Callable[[int], Array], equation: Any) -> Array | None:
    """Return matrices side by side, of which some are rows of one table, neighbours; None where too few are.

    Args:
        array: gives a matrix by its place.
        equation: puts them side by side.
    """
    known = [i for i, part in enumerate(parts) if part is not None]
    if len(known) < FEWEST or known != list(range(known[0], known[-1] + 1)):
        return None
    taken = [part for part in parts if part is not None]
    shapes = [v.aval.shape for v in equation.invars]
    shape = taken[0].rows.shape[0], taken[0].table.shape[1]
    if any(p.table is not taken[0].table or shapes[i] != shape for i, p in zip(known, taken)):
        return None
    from jfluid.machine_code import direct_rows  # LLVM, which few programs need

    widths = [width for _, width in shapes]
    rows = jnp.concatenate([p.rows for p in taken])
    start, total = sum(widths[: known[0]]), sum(widths)
    found = direct_rows.take_strips(taken[0].table, rows, len(taken), start, total)
    for i, part in enumerate(parts):
        if part is None:
            found = lax.dynamic_update_slice(found, array(i), (0, sum(widths[:i])))
    return found


def from_strips(equation: Any, strips: Sequence[Strips | None], arrays: Sequence[Array]) -> Sequence[Array] | None:
    """Call a function for values that are strips of a matrix; None where they are not."""
    name = equation.params["target_name"]
    if name not in VALUES:
        return None
    from jfluid.machine_code import direct_rows  # LLVM, which few programs need

    values = strips[VALUES[name]]
    if values is None:
        return None
    results = [(v.aval.shape, v.aval.dtype) for v in equation.outvars]
    return direct_rows.from_strips(name, arrays[:-1], arrays[-1], values.matrix, values.first, values.step, results)
