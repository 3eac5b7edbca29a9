"""Dispatch of GEMMs to LLVM kernels (`product_kernels.py`), for the shapes where XLA's library is slower."""

import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jax import Array

from jfluid.machine_code import calls, kernel_registry, processor, product_kernels
from jfluid.machine_code.product_kernels import LANES, TILE, WIDTH

_MOST_MEMORY = 230_000  # float32 of a chunk: they stay in a core's cache
_MOST_HELD = 0.45  # of that cache, for all of x, or for a copy of all of y
_MOST_PARTS = 16  # of the rows, for each processor
# What copying a row of a tile and of a panel takes beside computing with it, where a row of a tile times one of
# a panel takes 14; and before that.
_COPY_X, _COPY_Y = 5, 10
_COPY_X_BEFORE, _COPY_Y_BEFORE = 7, 13
_READ_X = 2  # what reading a row of a tile takes that is not copied
_SETS = 64  # of a core's first cache
_MOST_OF_SET = 4  # rows of a tile that may be in one of them
_CHUNK = 11  # what a chunk takes beside that, as many
_FEWEST_OF_THREADS = 5 << 17  # multiplications: fewer are done before another thread wakes up
_UNEVEN = 0.15  # of a chunk, for which the other processors wait at the end
# The library is as fast for larger results than these, and where much of a tile would lie outside of them.
_LARGEST = 1 << 22
_MOST_OUTSIDE = 0.2
_MOST_ROWS = 4096  # where some processors would have nothing to do


def product(x: Array, y: Array, over: tuple[int, int]) -> Array:
    """Return the product of two matrices, summed over dimension `over[0]` of x and `over[1]` of y."""
    depth, rows, columns = _sizes(x, y, over)
    parts, groups, held = _divided(rows, columns, depth, over, os.cpu_count() or 1)
    largest = product_kernels.largest(rows, columns, parts, groups)
    geometry = {
        "chunks": parts * groups,
        "memory": product_kernels.memory(*largest, depth, held),
        "depth": depth,
        "rows": rows,
        "columns": columns,
        "x_turned": over[0],
        "y_turned": over[1],
        "x_copied": _is_copied(depth),
        "parts": parts,
        "groups": groups,
        "held": held,
    }
    return calls.call(product_kernels.NAME, (x, y), geometry, [((rows, columns), np.float32)])[0]


def _sizes(x: Array, y: Array, over: tuple[int, int]) -> tuple[int, int, int]:
    return x.shape[over[0]], x.shape[1 - over[0]], y.shape[1 - over[1]]


def _is_copied(depth: int) -> bool:
    """Return True if tiles of a transposed x must be packed: in place, rows would evict rows from the cache."""
    lines = [row * depth * 4 // product_kernels.LINE for row in range(TILE)]
    return max(Counter(line % _SETS for line in lines).values()) > _MOST_OF_SET


@functools.cache
def _divided(rows: int, columns: int, depth: int, over: tuple[int, int], processors: int) -> tuple[int, int, int]:
    """Return the number of parts of the rows, of groups of the columns, and of rows of y packed at once.

    The choice minimizes the cost of the processor with the most work.
    """
    some = min(depth, product_kernels.BLOCK)
    if rows * columns * depth < _FEWEST_OF_THREADS:
        return 1, 1, some
    x_turned, y_turned = over
    copy_x, copy_y = _COPY_X, _COPY_Y_BEFORE if y_turned else _COPY_Y
    if x_turned:
        copy_x = _COPY_X_BEFORE if _is_copied(depth) else _READ_X

    def cost(divided: tuple[int, int, int]) -> tuple[bool, bool, float]:
        parts, groups, held = divided
        chunks, largest = parts * groups, product_kernels.largest(rows, columns, parts, groups)
        tiles, panels = largest
        high = max(rows / parts, tiles * product_kernels.LOWEST)
        each = -(-chunks // processors) + _UNEVEN
        # a copy of all rows of y serves all chunks that a processor has of a group
        copied = each if depth > held else min(groups, each)
        large = product_kernels.memory(*largest, depth, held) > _MOST_MEMORY
        work = each * (high * panels + copy_x * tiles + _CHUNK) + copied * copy_y * panels
        return chunks < processors, large or (held > some and groups > 1), work

    most = min(-(-rows // TILE), _MOST_PARTS * processors), -(-columns // WIDTH)
    # tile after tile over all its depth, a processor reads rows of x again that lie side by side
    read = columns if x_turned else max(rows, columns)
    whole = 4 * depth * read <= _MOST_HELD * processor.cache_bytes()
    ways = itertools.product(range(1, most[0] + 1), range(1, most[1] + 1), {some, depth} if whole else {some})
    return min(ways, key=cost)


def expect(weights: Iterable[Sequence[int]]) -> None:
    """Register the GEMM kernels, if products with weights of these shapes may be dispatched here."""
    if any(min(shape) >= WIDTH for shape in weights):
        kernel_registry.is_on("product")


def suits(x: Array, y: Array, over: tuple[int, int]) -> bool:
    """Return True if a float32 product of matrices should be computed here."""
    depth, rows, columns = _sizes(x, y, over)
    outside = product_kernels.LOWEST * -(-rows // TILE) - rows
    return (
        rows * columns < _LARGEST
        and outside <= _MOST_OUTSIDE * rows
        and not LANES < columns < WIDTH
        and rows >= TILE
        and (depth <= _MOST_ROWS or -(-rows // TILE) * -(-columns // WIDTH) >= (os.cpu_count() or 1))
        and kernel_registry.is_on("product")
    )
