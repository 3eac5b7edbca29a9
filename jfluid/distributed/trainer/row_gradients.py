"""Gradients of a table's rows from the results of a step: each row once."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid import errors
from jfluid.distributed.programs.trainer_program import SentRows
from jfluid.lod_tensor import LoDTensor, SelectedRows
from jfluid.ops import selected_rows
from jfluid.ops.ragged import Ragged

if TYPE_CHECKING:
    from jfluid.ps_server.client import PulledRows

Array = np.ndarray[Any, Any]


def inner(value: Any) -> Any:
    """Return the array of a value of a step, with the rows that pad it where it is as the step left it."""
    if isinstance(value, LoDTensor):
        return value.value
    return value.values if isinstance(value, (Ragged, selected_rows.SelectedRows)) else value


def array_of(value: Any) -> Array:
    """Return a value of a step as NumPy, without a copy where it lies on the host."""
    return np.asarray(inner(value))


def merged(
    sent: SentRows, values: Mapping[str, list[Any]], rows: "PulledRows | None", inverse: Mapping[str, list[Array]]
) -> tuple[Array, Array]:
    """Return (ids, gradients) of one table, each id once.

    Args:
        values: of the step.
        rows: the looked-up rows; None if the trainer has the whole parameter.
        inverse: positions of the ids of each look-up among the rows.
    """
    from jfluid.ps_server import kernels

    if sent.grad in values:
        at, grads = _occurring(sent.grad, values[sent.grad][0])
        if rows is None:
            once, where = kernels.distinct(at)
            return once, kernels.summed(grads, where, len(once))
    else:
        assert rows is not None  # parts are gradients of rows that were looked up
        width = rows.values.shape[1]
        at = np.concatenate([part for p, _ in sent.parts for part in inverse[p]])
        grads = np.concatenate([array_of(v).reshape(-1, width) for _, g in sent.parts for v in values[g]])
    where = at.astype(np.int32, copy=False)
    total = kernels.summed(grads, where, len(rows.ids))
    # ids of the padding are always requested
    if sent.parts and sent.look_up is not None and sent.look_up.paddings:
        used = np.bincount(where, minlength=len(rows.ids)) > 0
        return rows.ids[used], total[used]
    return rows.ids, total


def _occurring(name: str, sparse: Any) -> tuple[Array, Array]:
    """Return (rows int64 [n], gradients float32 [n, width]) of sparse rows, with repetitions."""
    if isinstance(sparse, selected_rows.SelectedRows):
        at, grads = np.asarray(sparse.rows, np.int64), np.asarray(sparse.values)
        if not sparse.full and not (kept := at < sparse.height).all():
            at, grads = at[kept], grads[kept]
    elif isinstance(sparse, SelectedRows):
        at, grads = np.asarray(sparse.rows(), np.int64), np.asarray(sparse.get_tensor().value)
    else:
        raise errors.UnsupportedError(f"{name}: expected sparse rows, found {type(sparse).__name__}")
    return at, np.ascontiguousarray(grads, np.float32).reshape(len(at), -1)
