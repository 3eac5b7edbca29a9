"""LLVM kernels of convolutions and their gradients.

All arithmetic is in register tiles: functions that add up products of numbers of one array and vectors of
the second array. In a convolution the numbers are of neighbouring columns and the vectors are filters; in a
filter's gradient the numbers are of a window and the vectors are gradients. Around a tile are loops
over the rows of an image.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from jfluid.machine_code import ffi_runtime, processor
from jfluid.machine_code.extents import Array, Extents, KernelGroup, parts
from jfluid.machine_code.llvm_writer import FLOAT, I1, I32, I64, POINTER, VOID, Function, Module
from jfluid.machine_code.processor import LANES, REGISTERS

TILE = REGISTERS // 4  # columns that a convolution has at least
# The vectors of filters that are computed at a time. Filters are divided into pairs of vectors, after one
# alone if that is left over. The very last vector ends where the filters do: it overlaps with its pair's
# first, and is a short one if that is enough.
_ALONE, _PAIR, _SHORT = (LANES,), (LANES, LANES), (LANES, LANES // 2)
_VECTORS = (_ALONE, _PAIR, _SHORT)
# Columns of a convolution, and numbers of a window in its gradient, that are computed at a time: sums that
# a core's registers hold and enough to wait for none of them, then those for what is left.
_COLUMNS = {_ALONE: (2 * TILE, TILE), _PAIR: (TILE, TILE), _SHORT: (TILE, TILE)}
_NUMBERS = (
    {_ALONE: (16, 4, 1), _PAIR: (10, 5, 1), _SHORT: (10, 5, 1)}
    if REGISTERS == 32
    else {_ALONE: (12, 4, 1), _PAIR: (6, 3, 1), _SHORT: (6, 3, 1)}
)
_UNROLLED = 4  # steps of a loop between two jumps
KINDS = ("forward", "gradient", "images")
# The numbers of a call, see `ffi_runtime.py` for the first two. Images are read in bands of `band` rows of
# the result: where they are if `direct`, otherwise from a copy with borders of zeros.
GEOMETRY = (
    "chunks memory images height width channels rows columns filters window_height window_width "
    "down across top left band bands direct"
).split()


def name(kind: str) -> str:
    """Return the name of the kernel of a kind."""
    return f"jfluid_convolution_{kind}"


def write(module: Module) -> None:
    """Write all kernels."""
    columns, numbers = (
        {
            (count, lanes): _tile(module, kind, count, lanes)
            for lanes in _VECTORS
            for count in dict.fromkeys(counts[lanes])
        }
        for kind, counts in (("columns", _COLUMNS), ("numbers", _NUMBERS))
    )
    for kind, chunk, tiles in zip(KINDS, (_forward, _gradient, _images), (columns, numbers, columns)):
        ffi_runtime.define(module, name(kind), chunk(module, tiles))


def extents(name_: str, n: Any) -> Extents:
    """Return the extents of a kernel for the geometry `n`."""
    kind = next(k for k in KINDS if name(k) == name_)
    images = Array(n.images * n.height * n.width * n.channels)
    filters = Array(n.window_height * n.window_width * n.channels * n.filters)
    out = Array(n.images * n.rows * n.columns * n.filters)
    holds = [
        ("filters for a vector", n.filters >= LANES),
        ("windows", n.window_height > 0 and n.window_width > 0 and n.channels > 0),
    ]
    if kind == "images":
        columns = parts(n.width, TILE) * TILE
        reach = columns + n.window_width - 1
        holds += [
            ("an image inside of its windows", n.left + n.columns <= reach),
            ("a chunk for each image", n.chunks == n.images),
        ]
        memory = n.height * columns * n.channels + reach * n.filters
        return Extents([images, filters], [out], memory, holds)
    down = (n.band - 1) * n.down + n.window_height
    read = (n.columns - 1) * n.across + n.window_width
    inside = (n.rows - 1) * n.down + n.window_height <= n.height and read <= n.width
    holds += [
        ("columns for a tile", n.columns >= TILE),
        ("bands of rows", n.band > 0 and n.bands == parts(n.rows, n.band)),
        ("windows inside of images that are read in place", not n.direct or inside),
        ("a border inside of what is read", n.direct or n.left <= read),
    ]
    memory = 0 if n.direct else down * read * n.channels
    if kind == "forward":
        holds.append(("a chunk for each band", n.chunks == n.images * n.bands))
        return Extents([images, filters], [out], memory, holds)
    made = Array(n.chunks * filters.size)
    return Extents([images, out], [made], memory, holds)


KERNELS = KernelGroup(tuple(map(name, KINDS)), GEOMETRY, write, extents, bits=processor.AVX2)


def _tile(module: Module, kind: str, count: int, lanes: tuple[int, ...]) -> Any:
    """Write the register tile: `count` numbers times several vectors of columns, summed over two loops.

    The loops are `outer` and `inner`; the factors are `numbers` and vectors of `others`. The tile adds the sums to
    `out` [count], or stores the sums unless `adds`. Vectors lie side by side; only the last vector begins at `last`.

    `apart` is the distance between rows of the tile in `numbers`, `step` the distance between iterations of `inner`.
    Tiles of kind `columns` have step 1, tiles of kind `numbers` have apart 1: constants need no arithmetic.
    """
    lengths = "apart step outer numbers_outer others_outer inner others_inner pitch last".split()
    pointers = dict.fromkeys(("numbers", "others", "out"), POINTER)
    f = Function(
        module,
        f"tile_{kind}_{count}_{sum(lanes)}",
        VOID,
        **pointers,
        **dict.fromkeys(lengths, I64),
        adds=I1,
    )
    f.function.attributes.add("noinline")  # so that the loops have all registers
    vectors = [ir.VectorType(FLOAT, n) for n in lanes]
    fmas = [module.declare(f"llvm.fma.v{n}f32", vector, [vector] * 3) for n, vector in zip(lanes, vectors)]
    v, starts = f.v, [*(I64(i * LANES) for i in range(len(lanes) - 1)), f.v["last"]]
    step, apart = (I64(1), v["apart"]) if kind == "columns" else (v["step"], I64(1))
    offsets = [f.product(I64(i), apart) for i in range(count)]
    sums = [[f.variable(vector, ir.Constant(vector, [0.0] * vector.count)) for vector in vectors] for _ in range(count)]
    everywhere = [
        (place, f.at(v["out"], f.product(I64(i), v["pitch"]), start), vector)
        for i, of_number in enumerate(sums)
        for place, start, vector in zip(of_number, starts, vectors)
    ]
    with f.b.if_then(v["adds"]):
        for place, out, vector in everywhere:
            f.b.store(f.load(out, vector), place)
    rows = [f.variable(POINTER, v[n]) for n in ("numbers", "others")]

    def add(places: list[Any]) -> None:
        numbers, others = (f.load(place, POINTER) for place in places)
        loaded = [f.load(f.at(others, start), vector) for start, vector in zip(starts, vectors)]
        for offset, of_number in zip(offsets, sums):
            number = f.load(f.at(numbers, offset), FLOAT)
            for place, other, fma in zip(of_number, loaded, fmas):
                spread = f.spread(number, other.type)
                f.b.store(f.call(fma, spread, other, f.load(place, other.type)), place)
        f.b.store(f.at(numbers, step), places[0])
        f.b.store(f.at(others, v["others_inner"]), places[1])

    unrolled = f.b.sdiv(v["inner"], I64(_UNROLLED))
    with f.loop(v["outer"]):
        begins = [f.load(row, POINTER) for row in rows]
        places = [f.variable(POINTER, begin) for begin in begins]
        with f.loop(unrolled):
            for _ in range(_UNROLLED):
                add(places)
        with f.loop(v["inner"], f.product(unrolled, I64(_UNROLLED))):
            add(places)
        f.b.store(f.at(begins[0], v["numbers_outer"]), rows[0])
        f.b.store(f.at(begins[1], v["others_outer"]), rows[1])
    for place, out, vector in everywhere:
        f.b.store(f.load(place, vector), out, align=4)
    return f.end()


def _chunk(module: Module, kind: str) -> tuple[Function, dict[str, Any]]:
    """Begin the kernel of a chunk of the result; return the kernel and its values: arguments and derived sizes."""
    f = ffi_runtime.begin_chunk(module, name(kind), ("x", "y", "out"), GEOMETRY)
    v = f.v
    v["window"] = f.product(v["window_width"], v["channels"])  # numbers in a row of it
    v["step"] = f.product(v["across"], v["channels"])
    columns = f.sum(f.product(f.b.sub(v["columns"], I64(1)), v["across"]), v["window_width"])
    v["read"] = f.b.select(f.b.icmp_signed("!=", v["direct"], I64(0)), v["width"], columns)
    v["pitch"] = f.product(v["read"], v["channels"])
    return f, v


def _bordered(f: Function, image: Any, first: Any, rows: Any) -> Any:
    """Return a pointer to the input rows, of `pitch` numbers each, that output rows from `first` on need.

    Unless `direct`, the rows are copied to scratch memory with a border of zeros.
    """
    v, b, bytes_ = f.v, f.b, I64(4)
    x = f.at(v["x"], f.product(image, v["height"], v["width"], v["channels"]))
    above = f.product(first, v["down"])
    found = f.variable(POINTER, f.at(x, f.product(above, v["width"], v["channels"])))
    with b.if_then(b.icmp_signed("==", v["direct"], I64(0))):
        b.store(v["scratch"], found)
        left = f.product(v["left"], v["channels"])
        held = f.least(v["width"], b.sub(v["read"], v["left"]))
        middle = f.product(held, v["channels"])
        right = b.sub(b.sub(v["pitch"], left), middle)
        count = f.sum(f.product(b.sub(rows, I64(1)), v["down"]), v["window_height"])
        with f.loop(count) as i:
            row = f.at(v["scratch"], f.product(i, v["pitch"]))
            source = b.sub(f.sum(i, above), v["top"])
            inside = b.icmp_unsigned("<", source, v["height"])
            with b.if_else(inside) as (then, otherwise):
                with then:
                    f.c("memset", row, I32(0), f.product(left, bytes_))
                    start = f.at(x, f.product(source, v["width"], v["channels"]))
                    f.c("memcpy", f.at(row, left), start, f.product(middle, bytes_))
                    f.c("memset", f.at(row, left, middle), I32(0), f.product(right, bytes_))
                with otherwise:
                    f.c("memset", row, I32(0), f.product(v["pitch"], bytes_))
    return f.load(found, POINTER)


@contextlib.contextmanager
def _parts(f: Function, counts: Any, tiles: Any) -> Iterator[Any]:
    """Loop over blocks of the filters; yield the first filter, the offset of the last vector, and the tiles by size.

    A tile comes with its count: how many rows it computes.
    """
    v, b, lanes = f.v, f.b, I64(LANES)
    vectors = b.sdiv(f.sum(v["filters"], I64(LANES - 1)), lanes)
    odd = b.srem(vectors, I64(2))
    parts = b.sdiv(f.sum(vectors, odd), I64(2))
    with f.loop(parts) as part:
        first = f.product(b.sub(f.product(part, I64(2)), odd), lanes)
        alone = b.icmp_signed("<", first, I64(0))
        first = f.greatest(first, I64(0))
        left = b.sub(v["filters"], first)
        short = b.icmp_signed("<=", left, I64(sum(_SHORT)))

        def chosen(of_alone: Any, of_short: Any, of_pair: Any) -> Any:
            return b.select(alone, of_alone, b.select(short, of_short, of_pair))

        last = chosen(I64(0), b.sub(left, I64(_SHORT[1])), f.least(lanes, b.sub(left, lanes)))
        sizes = range(len(counts[_PAIR]))
        order = (_ALONE, _SHORT, _PAIR)
        yield (
            first,
            last,
            [
                (
                    chosen(*(tiles[counts[kind][i], kind] for kind in order)),
                    chosen(*(I64(counts[kind][i]) for kind in order)),
                )
                for i in sizes
            ],
        )


def _forward(module: Module, tiles: Any) -> Any:
    """Write the forward kernel; a chunk is a band of an image's rows.

    Arrays: x [images, height, width, channels], y [window_height, window_width, channels, filters],
    out [images, rows, columns, filters].
    """
    f, v = _chunk(module, "forward")
    b = f.b
    image, band = b.sdiv(v["chunk"], v["bands"]), b.srem(v["chunk"], v["bands"])
    first = f.product(band, v["band"])
    rows = f.least(v["band"], b.sub(v["rows"], first))
    x = _bordered(f, image, first, rows)
    others_outer = f.product(v["window"], v["filters"])
    with f.loop(rows) as row, _parts(f, _COLUMNS, tiles) as (filters, last, sizes):
        (large, most), (small, few) = sizes
        fits = b.icmp_signed(">=", v["columns"], most)
        tile, count = b.select(fits, large, small), b.select(fits, most, few)
        with f.loop(_blocks(f, v["columns"], count)) as block:
            # The last overlaps with the one before.
            column = f.least(f.product(block, count), b.sub(v["columns"], count))
            numbers = f.at(x, f.product(row, v["down"], v["pitch"]), f.product(column, v["step"]))
            at = f.sum(f.product(f.sum(f.product(image, v["rows"]), first, row), v["columns"]), column)
            out = f.at(v["out"], f.product(at, v["filters"]), filters)
            outer = (v["window_height"], v["pitch"], others_outer)
            inner = (v["window"], v["filters"], v["filters"])
            others = f.at(v["y"], filters)
            f.call(tile, numbers, others, out, v["step"], I64(1), *outer, *inner, last, I1(0))
    return f.end()


def _gradient(module: Module, tiles: Any) -> Any:
    """Write the kernel of the filter's gradient; a chunk is a part of the images.

    Arrays: x as in `_forward`, y [images, rows, columns, filters],
    out [chunks, window_height, window_width, channels, filters].
    """
    f, v = _chunk(module, "gradient")
    b, one = f.b, I64(1)
    size = f.product(v["window_height"], v["window"], v["filters"])
    out = f.at(v["out"], f.product(v["chunk"], size))
    f.c("memset", out, I32(0), f.product(size, I64(4)))
    ends = [b.sdiv(f.product(c, v["images"]), v["chunks"]) for c in (v["chunk"], f.sum(v["chunk"], one))]
    with f.loop(ends[1], ends[0]) as image, f.loop(v["bands"]) as band:
        first = f.product(band, v["band"])
        rows = f.least(v["band"], b.sub(v["rows"], first))
        x = _bordered(f, image, first, rows)
        at = f.product(f.sum(f.product(image, v["rows"]), first), v["columns"], v["filters"])
        outer = (rows, f.product(v["down"], v["pitch"]), f.product(v["columns"], v["filters"]))
        inner = (v["columns"], v["filters"], v["filters"])
        with (
            f.loop(v["window_height"]) as row,
            _parts(f, _NUMBERS, tiles) as (filters, last, sizes),
        ):
            others, done = f.at(v["y"], at, filters), I64(0)
            for tile, count in sizes:
                times = b.sdiv(b.sub(v["window"], done), count)
                with f.loop(times) as block:
                    number = f.sum(done, f.product(block, count))
                    place = f.product(f.sum(f.product(row, v["window"]), number), v["filters"])
                    numbers, target = (
                        f.at(x, f.product(row, v["pitch"]), number),
                        f.at(out, place, filters),
                    )
                    f.call(tile, numbers, others, target, one, v["step"], *outer, *inner, last, I1(1))
                done = f.sum(done, f.product(times, count))
    return f.end()


def _images(module: Module, tiles: Any) -> Any:
    """Write the kernel of the image's gradient; a chunk is an image.

    Arrays: x [images, height, width, channels], the gradient of the convolution's result;
    y [window_height, window_width, channels, filters], where channels are the convolution's filters;
    out [images, rows, columns, filters].

    The kernel scatters the product of a row of x and a row of the window to the output. It multiplies no zero border.
    """
    f, v = _chunk(module, "images")
    b, one, bytes_ = f.b, I64(1), I64(4)
    blocks = _blocks(f, v["width"], I64(TILE))
    pitch = f.product(blocks, I64(TILE), v["channels"])
    given, row_of_x = v["scratch"], f.product(v["width"], v["channels"])
    with f.loop(v["height"]) as row:  # with zeros behind, for whole tiles
        target, at = (
            f.at(given, f.product(row, pitch)),
            f.sum(f.product(v["chunk"], v["height"]), row),
        )
        f.c("memcpy", target, f.at(v["x"], f.product(at, row_of_x)), f.product(row_of_x, bytes_))
        f.c("memset", f.at(target, row_of_x), I32(0), f.product(b.sub(pitch, row_of_x), bytes_))
    made = f.at(given, f.product(v["height"], pitch))
    reach = f.sum(f.product(blocks, I64(TILE)), b.sub(v["window_width"], one))
    others_outer = f.product(v["window"], v["filters"])
    with f.loop(v["rows"]) as row:
        f.c("memset", made, I32(0), f.product(reach, v["filters"], bytes_))
        place = f.sum(row, v["top"])
        first = f.greatest(b.sub(place, b.sub(v["height"], one)), I64(0))
        times = b.sub(f.least(f.sum(place, one), v["window_height"]), first)
        numbers = f.at(given, f.product(b.sub(place, first), pitch))
        others = f.at(v["y"], f.product(first, others_outer))
        with (
            f.loop(v["window_width"]) as across,
            _parts(f, _COLUMNS, tiles) as (filters, last, sizes),
        ):
            tile, count = sizes[-1]
            at = f.at(others, f.product(across, v["channels"], v["filters"]), filters)
            with f.loop(blocks) as block:
                column = f.product(block, count)
                from_ = f.at(numbers, f.product(column, v["channels"]))
                out = f.at(made, f.product(f.sum(column, across), v["filters"]), filters)
                outer = (times, b.sub(I64(0), pitch), others_outer)
                inner = (v["channels"], v["filters"], v["filters"])
                f.call(tile, from_, at, out, v["channels"], one, *outer, *inner, last, I1(1))
        size = f.product(v["columns"], v["filters"])
        at = f.product(f.sum(f.product(v["chunk"], v["rows"]), row), size)
        source = f.at(made, f.product(v["left"], v["filters"]))
        f.c("memcpy", f.at(v["out"], at), source, f.product(size, bytes_))
    return f.end()


def _blocks(f: Function, size: Any, count: Any) -> Any:
    return f.b.sdiv(f.sum(size, f.b.sub(count, I64(1))), count)
