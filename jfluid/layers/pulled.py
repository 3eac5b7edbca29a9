"""Lookups in distributed tables with any 64-bit ids: Fluid's layers for PSLib and BoxPS.

PSLib and BoxPS were never published; here the layers run on this package's parameter servers.

A table is a distributed parameter (see `embedding`): the servers create a row when its id is first
pulled, and the program's optimizer updates it. Such a program runs after DistributeTranspiler.
"""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.initializer import Uniform
from jfluid.ir.variable import Variable
from jfluid.layers.embedding import look_up
from jfluid.layers.helper import check_variable
from jfluid.param_attr import ParamAttr

Ids = Variable | Sequence[Variable]
_ROWS = 2**63 - 1  # the number of distinct ids
_RANGE = 1e-4  # rows begin between minus and plus this, as PSLib's


def _pulled(op_type: str, layer: str, ids: Ids, size: int, name: str, padding: int | None) -> Any:
    """Look up one tensor of ids, or each of a list, in the table `name`."""
    check_variable(ids, layer, "input")
    table = ParamAttr(name=name, initializer=Uniform(-_RANGE, _RANGE))
    several = [ids] if isinstance(ids, Variable) else list(ids)
    found = [look_up(op_type, one, [_ROWS, size], True, True, padding, table, "float32") for one in several]
    return found[0] if isinstance(ids, Variable) else found


def _check_fields(layer: str, dtype: Any, ctr_label_name: str) -> None:
    if dtype != "float32":
        raise ValueError(f"{layer}, dtype: expected 'float32', found {dtype!r}")
    if ctr_label_name:
        raise errors.UnsupportedError(
            f"{layer}, ctr_label_name: tables here keep no counts of shows and clicks; feed the counts "
            "to layers.continuous_value_model"
        )


def _pull_sparse(
    input: Ids,
    size: int,
    table_id: int,
    accessor_class: str,
    name: str = "embedding",
    ctr_label_name: str = "",
    padding_id: int = 0,
    dtype: str = "float32",
    scale_sparse_grad: bool = True,
) -> Any:
    """Look up rows of a table on parameter servers.

    Args:
        input: int64 ids [..., 1], or a list of these.
        size: the width of a row.
        table_id: which table: look-ups with the same one share it, the parameter "table_<table_id>".
        accessor_class: no effect. They say how PSLib's servers update rows; here the program's optimizer does,
            with the gradient of its loss.
        name: no effect: Fluid names the layer's variables by it.
        ctr_label_name: "".
        padding_id: an id that reads as zeros.
        dtype: "float32".
        scale_sparse_grad: see `accessor_class`.

    Returns:
        The rows: the shape of `input` with `size` in place of the last 1; a list for a list.

    Raises UnsupportedError for a ctr_label_name, ValueError for a different dtype.
    """
    _check_fields("_pull_sparse", dtype, ctr_label_name)
    return _pulled("lookup_table", "_pull_sparse", input, size, f"table_{table_id}", padding_id)


def _pull_sparse_v2(
    input: Ids,
    size: int,
    table_id: int,
    accessor_class: str,
    name: str = "embedding",
    ctr_label_name: str = "",
    padding_id: int = 0,
    dtype: str = "float32",
    scale_sparse_grad: bool = True,
) -> Any:
    """Look up ids of any shape like `_pull_sparse`; the result appends `size` to the shape."""
    _check_fields("_pull_sparse_v2", dtype, ctr_label_name)
    table = f"table_{table_id}"
    return _pulled("lookup_table_v2", "_pull_sparse_v2", input, size, table, padding_id)


def _pull_box_sparse(input: Ids, size: int, dtype: str = "float32") -> Any:
    """Look up rows of width `size` of the one table that all calls share.

    For arguments and result see `_pull_sparse`; there is no padding id.

    Raises ValueError for a different dtype.
    """
    _check_fields("_pull_box_sparse", dtype, "")
    return _pulled("lookup_table", "_pull_box_sparse", input, size, "table_box", None)
