"""Products of two matrices by machine code of our own (`product_kernels.py`), for the shapes that it is
faster for than XLA's library.
"""

import functools
import itertools
import os

import jax
import numpy as np
from jax import Array

from jfluid.machine_code import functions, processor, product_kernels
from jfluid.machine_code.product_kernels import LANES, TILE, WIDTH

_MOST_TILES, _MOST_PANELS = 24, 8  # of a chunk: what is copied for it stays in a core's cache
# What copying a row of a tile and of a panel takes, where a row of a tile times one of a panel takes 14.
_COPY_X, _COPY_Y = 12, 20
# The library turns the first matrix round for sums over the rows of both, which pays where both sides of the
# result are longer. Other products it reads as they are: it is as fast for larger results than these,
# and where much of a tile would lie outside of the result.
_SHORT_SIDE = 448
_LARGEST = 1 << 19
_MOST_OUTSIDE = 0.2
_MOST_ROWS = 4096  # where some processors would have nothing to do


def product(x: Array, y: Array, over: tuple[int, int]) -> Array:
    """Return the product of two matrices, summed over dimension `over[0]` of x and `over[1]` of y."""
    depth, rows, columns = _sizes(x, y, over)
    tiles, panels = _divided(-(-rows // TILE), -(-columns // WIDTH), os.cpu_count() or 1)
    groups = -(-columns // (WIDTH * panels))
    geometry = {
        "chunks": groups * -(-rows // (TILE * tiles)),
        "memory": product_kernels.memory(tiles, panels),
        "depth": depth,
        "rows": rows,
        "columns": columns,
        "x_turned": over[0],
        "y_turned": over[1],
        "tiles": tiles,
        "panels": panels,
        "groups": groups,
    }
    numbers = np.array([geometry[name] for name in product_kernels.GEOMETRY], np.int32)
    shape = jax.ShapeDtypeStruct((rows, columns), np.float32)
    out: Array = jax.ffi.ffi_call(product_kernels.NAME, shape)(x, y, numbers)
    return out


def _sizes(x: Array, y: Array, over: tuple[int, int]) -> tuple[int, int, int]:
    return x.shape[over[0]], x.shape[1 - over[0]], y.shape[1 - over[1]]


def _parts(rows: int, columns: int) -> int:
    """Into how many chunks the work can be divided."""
    return -(-rows // TILE) * -(-columns // WIDTH)


@functools.cache
def _divided(tiles: int, panels: int, processors: int) -> tuple[int, int]:
    """How many tiles and panels a chunk has: so that the processor that has most to do is soonest ready."""

    def cost(sizes: tuple[int, int]) -> tuple[bool, int]:
        some, others = sizes
        chunks = -(-tiles // some) * -(-panels // others)
        one = TILE * some * others + _COPY_X * some + _COPY_Y * others
        return chunks < processors, -(-chunks // processors) * one

    held = range(1, min(tiles, _MOST_TILES) + 1), range(1, min(panels, _MOST_PANELS) + 1)
    return min(itertools.product(*held), key=cost)


def suits(x: Array, y: Array, over: tuple[int, int]) -> bool:
    """Return whether a product of matrices in single precision should be computed here."""
    depth, rows, columns = _sizes(x, y, over)
    if over == (0, 0):
        faster = min(rows, columns) <= _SHORT_SIDE and not LANES < columns < WIDTH
    else:
        outside = -rows % TILE
        faster = rows * columns < _LARGEST and outside <= _MOST_OUTSIDE * rows
        faster = faster and (columns >= WIDTH or columns == LANES)
    return (
        faster
        and rows >= TILE
        and (depth <= _MOST_ROWS or _parts(rows, columns) >= (os.cpu_count() or 1))
        and processor.has_wide_vectors()
        and functions.registered()
    )
