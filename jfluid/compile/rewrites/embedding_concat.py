"""Rewrite a concatenation of looked-up rows of a table as one gather into the concatenated matrix.

Each slot looks up its rows alone, and XLA copies the rows of all slots into the matrix that a layer reads. Here
machine code (`direct_rows.py`) writes the rows into that matrix.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jfluid.compile.rewrites.concat_of_slices import FEWEST, keeps_columns
from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import TracedValue
from jfluid.machine_code.row_functions import TAKE


class Gathered(NamedTuple):
    """Rows of a table, by int64 indices `rows`; the value may have further dimensions of 1."""

    table: Array
    rows: Array


class EmbeddingConcat(Rewrite):
    """Rewrite of concatenations of rows that machine code has looked up."""

    def __init__(self) -> None:
        self._gathered: dict[TracedValue, Gathered] = {}

    def follow(self, equation: Any, values: Sequence[TracedValue], results: Sequence[TracedValue]) -> None:
        """Record a lookup of rows, or a reshape that keeps their columns."""
        if equation.primitive.name == "ffi_call":
            if equation.params["target_name"] == TAKE:
                self._gathered[results[0]] = Gathered(values[0].given(), values[1].given())
        elif values and (found := self._gathered.get(values[0])) is not None and keeps_columns(equation):
            self._gathered[results[0]] = found

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return matrices side by side, with rows of one table gathered in place; None if too few are rows."""
        shapes = [v.aval.shape for v in equation.invars]
        if equation.primitive.name != "concatenate" or len(shapes[0]) != 2 or equation.params["dimension"] != 1:
            return None
        parts = [self._gathered.get(v) for v in values]
        known = [i for i, part in enumerate(parts) if part is not None]
        if len(known) < FEWEST or known != list(range(known[0], known[-1] + 1)):
            return None
        gathered = [part for part in parts if part is not None]
        table, shape = gathered[0].table, (gathered[0].rows.shape[0], gathered[0].table.shape[1])
        if any(p.table is not table or shapes[i] != shape for i, p in zip(known, gathered)):
            return None
        from jfluid.machine_code import direct_rows  # LLVM, which few programs need

        widths = [width for _, width in shapes]
        rows = jnp.concatenate([p.rows for p in gathered])
        found = direct_rows.take_strips(table, rows, len(gathered), sum(widths[: known[0]]), sum(widths))
        for i, part in enumerate(parts):
            if part is None:
                found = lax.dynamic_update_slice(found, values[i].given(), (0, sum(widths[:i])))
        return [TracedValue(found)]
