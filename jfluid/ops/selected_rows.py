"""SelectedRows: the gradient of a table of which a step touches few rows."""
import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows", "values"], meta_fields=["height"])
@dataclass(frozen=True)
class SelectedRows:
    """Some rows of a table [height, ...]; all others are zero. A row may occur several times: the occurrences add up.

    Attributes:
        rows: integers [n]: which row of the table each value belongs to; `height` for one to ignore.
        values: [n, ...].
        height: the rows of the table.
    """

    rows: Any
    values: Any
    height: int

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
        """The whole table [height, ...]."""
        return jnp.zeros(self.shape, self.values.dtype).at[self.rows].add(self.values, mode="drop")
