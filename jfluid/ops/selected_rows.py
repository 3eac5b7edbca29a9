"""SelectedRows: sparse gradient of a table for steps that touch few rows.

The cost of all operations grows with these rows, not with the table.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.ops import dependency, static_values, table_rows
from jfluid.ops.ragged import Ragged


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["rows", "values"], meta_fields=["height", "unique", "summed", "full"]
)
@dataclass(frozen=True)
class SelectedRows:
    """Sparse rows of a table [height, ...]; all rows that are not listed are zero.

    The values of a row that occurs several times are summed.

    Attributes:
        rows: integers [n]: the table row of each value; `height` marks a value to ignore.
        values: [n, ...].
        height: number of rows of the table.
        unique: True if no row occurs twice (except `height`, which then comes last).
        summed: True for the sum of several gradients. Fluid merges duplicate rows in such a sum. Here
            the merge is delayed until `settled`, because updates that are linear in the gradient need
            no sort.
        full: True if no row is to be ignored, known while tracing.
    """

    rows: Any
    values: Any
    height: int
    unique: bool = False
    summed: bool = False
    full: bool = False

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table."""
        return (self.height, *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        return self.values.ndim

    def dense(self) -> Any:
        """Return the whole table [height, ...]."""
        return self.added_to(dependency.after(jnp.zeros(self.shape, self.values.dtype), self.values))

    def map(self, function: Callable[[Any], Any]) -> "SelectedRows":
        """Apply `function` to the values.

        Where that is not linear, call it on a `settled` gradient.
        """
        return replace(self, values=function(self.values))

    def merged(self) -> "SelectedRows":
        """Merge duplicate rows by summing their values; further occurrences become rows to ignore.

        It is one sort of 64-bit keys that pack row and position: XLA:CPU sorts one array far faster than a pair of
        arrays.
        """
        if self.unique:
            return self
        n = self.rows.shape[0]
        places = jnp.arange(n, dtype=jnp.int64)
        key = jnp.sort((self.rows.astype(jnp.int64) << 32) | places)
        rows, order = key >> 32, (key & 0xFFFFFFFF).astype(jnp.int32)
        first = jnp.concatenate([jnp.ones(1, bool), rows[1:] != rows[:-1]]) if n else jnp.ones(0, bool)
        group = jnp.cumsum(first, dtype=jnp.int32) - 1
        values = jax.ops.segment_sum(self.values[order], group, n, indices_are_sorted=True)
        # each place once, which GPUs need no atomic instructions for
        places = jnp.where(first, group, n)
        kept = jnp.full(n, self.height, rows.dtype).at[places].set(rows, mode="drop", unique_indices=True)
        return SelectedRows(kept, values, self.height, unique=True)

    def settled(self) -> "SelectedRows":
        """Return the rows merged as in Fluid: a sum has each row once."""
        return self.merged() if self.summed else self

    def tensor(self) -> Any:
        """Return the values that are not ignored: an array, or `Ragged` if their number depends on data."""
        if self.full or not self.rows.shape[0]:
            return self.values
        real = self.rows < self.height
        count = jnp.sum(real, dtype=jnp.int32)
        places = jnp.arange(real.shape[0], dtype=jnp.int32)
        if not self.unique:
            places = jnp.searchsorted(jnp.cumsum(real, dtype=jnp.int32), places + 1, method="scan_unrolled").astype(
                jnp.int32
            )
        places = jnp.where(jnp.arange(real.shape[0]) < count, places, places[0])
        return Ragged(jnp.take(self.values, places, axis=0, mode="clip"), (), count)

    def places(self, ids: Any, what: str) -> Any:
        """Return the index of the value of each id [n], for a table that holds a subset of rows.

        Raises ShapeError for an id without a row; `what` names the ids.
        """
        held = np.asarray(static_values.ints(self.rows, "rows of a table"), np.int64)
        wanted = np.asarray(static_values.ints(ids, what), np.int64)
        order = np.argsort(held, kind="stable")
        at = np.minimum(np.searchsorted(held[order], wanted), max(len(held) - 1, 0))
        missing = wanted[held[order][at] != wanted] if len(held) else wanted
        if len(missing):
            raise errors.ShapeError(f"{what}: the table has no row {missing[0]}")
        return order[at] if len(held) else at

    def of(self, table: Any) -> Any:
        """Gather these rows of a table of the same height: [n, ...].

        An ignored row gathers any row.
        """
        return jnp.take(table, self.rows, axis=0, mode="clip")

    def added_to(self, table: Any, scale: Any = None) -> Any:
        """Return the table with the values, times a number, added to their rows."""
        one = jnp.ones((), table.dtype) if scale is None else scale
        found = table_rows.current().add(table, self.rows, self.values, one)
        if found is not None:
            return found
        values = (self.values if scale is None else scale * self.values).astype(table.dtype)
        return table.at[self.rows].add(values, mode="drop", unique_indices=self.unique)

    def put(self, table: Any, values: Any) -> Any:
        """Return the table with these rows replaced by `values`; each row must occur once (`merged`)."""
        return table.at[self.rows].set(values.astype(table.dtype), mode="drop", unique_indices=True)


def joined(parts: list[SelectedRows]) -> SelectedRows:
    """Return the sum of sparse gradients of a table, by concatenation."""
    if len({p.shape for p in parts}) > 1:
        raise errors.ShapeError(
            f"sum: sparse rows of tables of one shape are needed, found {[list(p.shape) for p in parts]}"
        )
    if len(parts) == 1:
        return parts[0]
    rows = jnp.concatenate([p.rows.astype(jnp.int64) for p in parts])
    return SelectedRows(
        rows, jnp.concatenate([p.values for p in parts]), parts[0].height, summed=True, full=all(p.full for p in parts)
    )


def densified(value: Any) -> Any:
    """Return a gradient as a dense table."""
    return value.dense() if isinstance(value, SelectedRows) else value
