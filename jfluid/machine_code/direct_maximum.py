"""Dispatch of max-pooling over sequences to an LLVM kernel (`pool_kernels.py`).

The kernel reads each row once, in place. XLA pads the rows, searches the maximum and then its row.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jfluid.machine_code import calls, direct_loops, kernel_registry, pool_kernels
from jfluid.machine_code.processor import LANES
from jfluid.ops.ragged import Level

_GROUPS = 8


def suits(x: Array, level: Level) -> bool:
    """Return True if the maximum of x [rows, columns] should be computed here."""
    return (
        x.ndim == 2
        and x.dtype == np.float32
        and x.shape[1] >= LANES
        and min(x.shape[0], level.number) > 0
        and kernel_registry.is_on("pool")
    )


def over_sequences(x: Array, level: Level) -> tuple[Array, Array]:
    """Return the maximum of each column of each sequence and its first row in int32: two arrays [number, columns].

    The results of a sequence without rows are 0 and -1.
    """
    return _over_offsets(x.shape[0], x, direct_loops.offsets(level, x.shape[0]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_offsets(rows: int, x: Array, offsets: Array) -> tuple[Array, Array]:
    return _kept(rows, x, offsets)[0]


def _kept(rows: int, x: Array, offsets: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    best, where = direct_loops.mapped(_forward, rows, 0)(x, offsets)
    return (best, where), (where, offsets)


def _gradient(rows: int, kept: tuple[Array, ...], grads: tuple[Array, Any]) -> tuple[Array, None]:
    where, offsets = kept
    return direct_loops.mapped(_backward, rows, 0)(grads[0], where, offsets)[0], None


_over_offsets.defvjp(_kept, _gradient)


def _numbers(rows: int, of_sequences: Sequence[int]) -> dict[str, int]:
    *batches, number, columns = of_sequences
    group = -(-number // _GROUPS)
    count = math.prod(batches)
    return {
        "chunks": count * -(-number // group),
        "memory": 1,
        "batches": count,
        "rows": rows,
        "number": number,
        "columns": columns,
        "group": group,
    }


def _forward(rows: int, x: Array, offsets: Array) -> Sequence[Array]:
    shape = (*x.shape[:-2], offsets.shape[-1] - 1, x.shape[-1])
    made = [(shape, np.float32), (shape, np.int32)]
    return calls.call(pool_kernels.FORWARD, (x, offsets), _numbers(rows, shape), made)


def _backward(rows: int, grad: Array, where: Array, offsets: Array) -> Sequence[Array]:
    shape = (*grad.shape[:-2], rows, grad.shape[-1])
    made, numbers = [(shape, np.float32)], _numbers(rows, grad.shape)
    return calls.call(pool_kernels.BACKWARD, (grad, where, offsets), numbers, made)
