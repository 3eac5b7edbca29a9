"""LLVM kernel of a convolution's image gradient where the filters of one place fill no vectors.

A number of the result's gradient contributes to all places of a window. The places of a window's row lie side by
side, and fill vectors together: 20 channels of five places are seven vectors of 16, where each place by itself takes
two. A tile sums several rows of images at once; their windows do not overlap within the tile.
"""

from typing import Any

from jfluid.machine_code import processor, xla_tasks
from jfluid.machine_code.convolution_kernels import tile
from jfluid.machine_code.extents import Array, Extents, KernelGroup, parts
from jfluid.machine_code.llvm_writer import I1, I32, I64, Module
from jfluid.machine_code.processor import LANES, REGISTERS

NAME = "jfluid_window"
# By how many vectors the places in a row of a window fill: the rows that are computed at a time, as many sums as
# registers hold beside what they are made of, and one less, so that any number is made of them.
ROWS = {4: (5, 4), 5: (4, 3), 6: (4, 3), 7: (3, 2)} if REGISTERS == 32 else {}
# The numbers of a call, see `xla_tasks.py` for the first two. x is the gradient of the convolution's result,
# [images, height, width, channels], y the filter, [window_height, channels, window_width * filters and zeros up
# to whole vectors, so that few of them lie in two lines of the cache]; its filters are the channels of the
# images: out is [images, rows, columns, filters]. A chunk is an image.
GEOMETRY = ("chunks memory height width channels rows columns filters window_height window_width top left").split()


def write(module: Module) -> None:
    """Write all kernels."""
    tiles = {
        (count, vectors): tile(module, "columns", count, (LANES,) * vectors)
        for vectors, counts in ROWS.items()
        for count in counts
    }
    xla_tasks.define(module, NAME, _chunk(module, tiles))


def extents(name: str, n: Any) -> Extents:
    """Return the extents of the kernel for the geometry `n`."""
    vectors = parts(n.window_width * n.filters, LANES)
    most, less = ROWS.get(vectors, (0, 0))
    rows, columns = n.height + n.window_height - 1, n.width + n.window_width - 1
    given = [
        Array(n.chunks * n.height * n.width * n.channels),
        Array(n.window_height * n.channels * vectors * LANES),
    ]
    holds = [
        ("windows that fill vectors", most > 0),
        ("rows for tiles", n.height >= (most - 1) * (less - 1)),
        (
            "an image inside of its windows",
            n.top + n.rows <= rows and n.left + n.columns <= columns,
        ),
    ]
    made = Array(n.chunks * n.rows * n.columns * n.filters)
    return Extents(given, [made], rows * columns * n.filters, holds)


KERNELS = KernelGroup((NAME,), GEOMETRY, write, extents, bits=processor.AVX512)


def _chunk(module: Module, tiles: Any) -> Any:
    f = xla_tasks.begin_chunk(module, NAME, ("x", "y", "out"), GEOMETRY)
    v, b, made, bytes_ = f.v, f.b, f.v["scratch"], I64(4)
    row_of_window = f.product(v["window_width"], v["filters"])
    vectors = b.sdiv(f.sum(row_of_window, I64(LANES - 1)), I64(LANES))

    def chosen(of: Any) -> Any:
        first, *others = ROWS
        found = of(first)
        for count in others:
            found = b.select(b.icmp_signed("==", vectors, I64(count)), of(count), found)
        return found

    most, less = (chosen(lambda n, i=i: I64(ROWS[n][i])) for i in (0, 1))
    large, small = (chosen(lambda n, i=i: tiles[ROWS[n][i], n]) for i in (0, 1))
    few = b.srem(b.sub(most, b.srem(v["height"], most)), most)
    many = b.sdiv(b.sub(v["height"], f.product(few, less)), most)
    row_of_y = f.product(vectors, I64(LANES))
    row_of_x = f.product(v["width"], v["channels"])
    pitch = f.product(f.sum(v["width"], v["window_width"], I64(-1)), v["filters"])
    x = f.at(v["x"], f.product(v["chunk"], v["height"], row_of_x))
    rows = f.sum(v["height"], v["window_height"], I64(-1))
    f.c("memset", made, I32(0), f.product(rows, pitch, bytes_))
    outer, inner = (I64(1), I64(0), I64(0)), (v["channels"], row_of_y, pitch)
    # the last vector overlaps with the one before: what is behind them belongs to other places
    last = b.sub(row_of_window, I64(LANES))
    with f.loop(v["window_height"]) as down, f.loop(f.sum(many, few)) as block:
        behind = f.sum(f.product(many, most), f.product(b.sub(block, many), less))
        is_large = b.icmp_signed("<", block, many)
        row = b.select(is_large, f.product(block, most), behind)
        of_rows = b.select(is_large, large, small)
        others = f.at(v["y"], f.product(down, v["channels"], row_of_y))
        with f.loop(v["width"]) as column:
            numbers = f.at(x, f.product(row, row_of_x), f.product(column, v["channels"]))
            out = f.at(made, f.product(f.sum(row, down), pitch), f.product(column, v["filters"]))
            f.call(of_rows, numbers, others, out, row_of_x, I64(1), *outer, *inner, last, I1(1))
    size = f.product(v["columns"], v["filters"])
    with f.loop(v["rows"]) as row:
        source = f.at(made, f.product(f.sum(row, v["top"]), pitch), f.product(v["left"], v["filters"]))
        at = f.product(f.sum(f.product(v["chunk"], v["rows"]), row), size)
        f.c("memcpy", f.at(v["out"], at), source, f.product(size, bytes_))
    return f.end()
