"""Operators on sparse rows."""

from jax import Array

from jfluid.ops.registry import op
from jfluid.ops.selected_rows import SelectedRows


@op("merge_selected_rows", ins=("X",), outs=("Out",), grad=False, sparse=True)
def merge_selected_rows(x: Array) -> SelectedRows | Array:
    """Merge duplicate rows of x by summing their values."""
    return x.merged() if isinstance(x, SelectedRows) else x


@op("get_tensor_from_selected_rows", ins=("X",), outs=("Out",), grad=False, sparse=True)
def get_tensor_from_selected_rows(x: Array) -> Array:
    """Return the values of the rows as a tensor [n, ...]."""
    return x.settled().tensor() if isinstance(x, SelectedRows) else x
