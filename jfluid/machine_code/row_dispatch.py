"""Dispatch of gathers, scatters and merges of table rows to LLVM kernels (`row_kernels.py`).

XLA on CPUs computes the place of each number, updates rows in one thread, and merges equal rows by a sort.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid.machine_code import calls, kernel_registry, row_kernels
from jfluid.machine_code.row_kernels import ADD, MERGE, PUT, TAKE

_HIGHEST = 2**31  # numbers of a call are int32
_FEWEST = 256  # rows; XLA's code for fewer costs next to nothing
_MOST = 2**28  # places of a hash table have to be counted, too
_CHUNK = 1 << 15  # numbers: to copy these takes longer than to wake a thread
# Numbers of rows that are updated together. XLA computes as many as there might be: all that are given.
_BLOCK = 1 << 15


def suits(table: Array, rows: Array) -> bool:
    """Return True if these rows of a table, or merged rows, should be accessed here."""
    return (
        table.ndim == 2
        and table.dtype == np.float32
        and rows.ndim == 1
        and _FEWEST <= rows.shape[0] < _MOST
        and jax.dtypes.canonicalize_dtype(np.int64) == np.int64  # numbers of rows are int64
        and 0 < min(table.shape)
        and max(table.shape) < _HIGHEST
        and kernel_registry.is_on("row")
    )


def take(table: Array, rows: Array) -> Array:
    """Gather rows; see `TableRows.take`."""
    return _taken(table, rows.astype(np.int64))


@jax.custom_jvp
def _taken(table: Array, rows: Array) -> Array:
    return _read(table, rows)  # type: ignore[no-any-return]


@jax.custom_batching.custom_vmap
def _read(table: Array, rows: Array) -> Array:
    numbers = _numbers(rows, table, _divided(rows, table))
    shape = (rows.shape[0], table.shape[1])
    return _call(TAKE, [(shape, np.float32)], (table, rows), numbers)[0]


@_read.def_vmap
def _read_all(size: int, batched: Sequence[bool], table: Array, rows: Array) -> tuple[Array, bool]:
    """Gather batches of rows of one table in a single call."""
    if not batched[0]:
        found = _read(table, rows.reshape(-1))
        return found.reshape(*rows.shape, -1), True
    if not batched[1]:
        rows = jnp.broadcast_to(rows, (size, *rows.shape))
    return lax.map(lambda own: _read(*own), (table, rows)), True


@_taken.defjvp
def _tangent(arrays: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    table, rows = arrays
    height = table.shape[0]
    known = jnp.where((rows >= 0) & (rows < height), rows, height)
    return _taken(table, rows), jnp.take(tangents[0], known, axis=0, mode="fill")


def add(table: Array, rows: Array, values: Array, scale: Array) -> Array:
    """Add to rows; see `TableRows.add`."""
    count, chunks = rows.shape[0], -(-values.size // _CHUNK)
    given = {"chunks": min(chunks, os.cpu_count() or 1), "memory": count + 1}  # each looks at all
    factor = scale.reshape(1).astype(np.float32)
    return _replaced(ADD, _numbers(rows, table, given), table, rows, values, factor)


def update(
    function: Callable[..., Sequence[Array]], rows: Array, values: Array, tables: Sequence[Array]
) -> tuple[Array, ...]:
    """Update rows; see `TableRows.update`."""
    height, width = tables[0].shape
    size = max(1, _BLOCK // width)
    once, sums, found = merge(rows, values, height, size)

    def block(i: Array, before: tuple[Array, ...]) -> tuple[Array, ...]:
        own = lax.dynamic_slice(once, (i * size,), (size,))
        grad = lax.dynamic_slice(sums, (i * size, jnp.zeros_like(i)), (size, width))
        first, *rest = (take(t, own) for t in before)
        return tuple(put(t, own, new) for t, new in zip(before, function(first, grad, *rest)))

    blocks = (found[0] + size - 1) // size
    after: tuple[Array, ...] = lax.fori_loop(0, blocks, block, tuple(tables))
    return after


def merge(rows: Array, values: Array, height: int, multiple: int) -> tuple[Array, Array, Array]:
    """Sum values of equal rows; return the distinct rows, the sums, and the number of distinct rows [1].

    Rows outside the table are left out. The rest of the distinct rows is `height`; the rest of the sums is undefined.

    Args:
        rows: rows of a table with this height.
        values: [count, width].
        height: height of the table.
        multiple: the length of the results is a multiple of it.
    """
    count, width = values.shape
    room, places = -(-count // multiple) * multiple, 1 << (2 * count - 1).bit_length()
    given = {"chunks": 1, "memory": places, "room": room, "places": places}
    kinds = [((room,), np.int64), ((room, width), np.float32), ((1,), np.int64)]
    numbers = _numbers(rows, jax.ShapeDtypeStruct((height, width), np.float32), given)
    once, sums, found = _call(MERGE, kinds, (rows.astype(np.int64), values), numbers)
    return once, sums, found


def put(table: Array, rows: Array, values: Array) -> Array:
    """Return the table with distinct rows replaced by values [n, width]; rows outside the table are ignored."""
    numbers = _numbers(rows, table, _divided(rows, table))
    return _replaced(PUT, numbers, table, rows, values)


def _replaced(name: str, numbers: Mapping[str, int], table: Array, rows: Array, values: Array, *others: Array) -> Array:
    arrays = (table, rows.astype(np.int64), values.astype(np.float32), *others)
    return _call(name, [(table.shape, np.float32)], arrays, numbers, {0: 0})[0]


def _call(
    name: str,
    made: Any,
    given: Sequence[Array],
    numbers: Mapping[str, int],
    aliases: Mapping[int, int] | None = None,
) -> Sequence[Array]:
    options = {"input_output_aliases": aliases, "vmap_method": "sequential"}
    return calls.call(name, given, numbers, made, **options)


def _divided(rows: Array, table: Array) -> dict[str, int]:
    """Return the geometry of chunks of consecutive rows."""
    group = max(1, _CHUNK // table.shape[1])
    return {"chunks": -(-rows.shape[0] // group), "group": group}


def _numbers(rows: Array, table: Any, given: Mapping[str, int]) -> dict[str, int]:
    height, width = table.shape
    count = rows.shape[0]
    return {
        **dict.fromkeys(row_kernels.GEOMETRY, 0),
        "count": count,
        "height": height,
        "width": width,
        **given,
    }
