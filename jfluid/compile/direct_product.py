"""Products of two matrices over their rows, as of a weight's gradient, by machine code of our own
(`product_kernels.py`), for the shapes that it is faster for than XLA's library.

The library turns the first matrix round for such a product. Here both are read as they are.
"""

import os

import jax
import numpy as np
from jax import Array

from jfluid.compile import machine_code, product_kernels
from jfluid.compile.product_kernels import BLOCK, LANES, TILE, WIDTH

# Of the first matrix, so much is read for one part of the columns after the other: a core's cache holds it.
_READ_AGAIN = 1 << 20  # bytes
_FEWEST_TILES, _MOST_TILES = 4, 28
_CHUNKS = 2  # for each processor, if they are worth it
# Where both sides of the result are longer, it pays for the library to turn the matrix round.
_SHORT_SIDE = 256
# Beyond, numbers are read from far caches again and again: the library divides such matrices.
_MOST_ROWS = 4096
_MOST_NUMBERS = 1 << 20  # of the first matrix


def over_rows(x: Array, y: Array) -> Array:
    """Return x.T @ y, of matrices with equally many rows."""
    (depth, rows), columns = x.shape, y.shape[1]
    panels, tiles = -(-columns // WIDTH), _tiles(depth, rows, columns)
    geometry = {
        "chunks": panels * -(-rows // (TILE * tiles)),
        "memory": (BLOCK + tiles * TILE) * WIDTH + LANES,
        "depth": depth,
        "rows": rows,
        "columns": columns,
        "panels": panels,
        "tiles": tiles,
    }
    numbers = np.array([geometry[name] for name in product_kernels.GEOMETRY], np.int32)
    shape = jax.ShapeDtypeStruct((rows, columns), np.float32)
    out: Array = jax.ffi.ffi_call(product_kernels.NAME, shape)(x, y, numbers)
    return out


def _tiles(depth: int, rows: int, columns: int) -> int:
    """How many tiles share a copy of columns: as many as leave each thread a chunk or two."""
    every, panels = -(-rows // TILE), -(-columns // WIDTH)
    held = max(1, min(_MOST_TILES, _READ_AGAIN // (depth * TILE * 4)))
    wanted = -(-_CHUNKS * (os.cpu_count() or 1) // panels)
    blocks = max(-(-every // held), min(wanted, every // _FEWEST_TILES), 1)
    return -(-every // blocks)


def suits(x: Array, y: Array) -> bool:
    """Return whether x.T @ y should be computed here, of matrices in single precision."""
    (depth, rows), columns = x.shape, y.shape[1]
    return (
        rows >= TILE
        and (columns >= WIDTH or columns == LANES)
        and min(rows, columns) <= _SHORT_SIDE
        and depth <= _MOST_ROWS
        and x.size <= _MOST_NUMBERS
        and machine_code.registered()
    )
