"""Convolutions on CPUs and the gradients of their filters as loops over registers, for LLVM.

All arithmetic is in tiles: functions that add up products of some numbers of one array and vectors of
another. In a convolution the numbers are of neighbouring columns and the vectors are filters; in a
filter's gradient the numbers are of a window and the vectors are gradients. Around a tile are loops
over the rows of an image.
"""

from typing import Any

from llvmlite import ir

from jfluid.machine_code import llvm_writer, xla_tasks
from jfluid.machine_code.llvm_writer import FLOAT, I1, I32, I64, POINTER, VOID, Function, Module

# Columns of a convolution, and numbers of a window in its gradient, that are computed at a time, by
# how many filters are: sums that a core's registers hold and enough to wait for none of them.
COLUMNS = {16: 16, 32: 8}
NUMBERS = {16: 16, 32: 12}
TILE = min(COLUMNS.values())  # columns that a convolution has at least
_FEW = 4  # numbers of what is left of a window
_UNROLLED = 4  # steps of a loop between two jumps
KINDS = ("forward", "gradient")
# The numbers of a call, see `xla_tasks.py` for the first two. Images are read in bands of `band` rows of
# the result: where they are if `direct`, otherwise from a copy with borders of zeros.
GEOMETRY = (
    "chunks memory images height width channels rows columns filters window_height window_width "
    "down across top left band bands direct"
).split()


def widths() -> dict[int, int]:
    """Return how many filters may be computed at a time on this machine, the most first, with how
    many of them are in a vector; empty where this code is not known to be faster than XLA's.
    """
    return {32: 16, 16: 16} if llvm_writer.has_wide_vectors() else {}


def name(kind: str, width: int) -> str:
    """Return the name of the function of a kind for `width` filters at a time."""
    return f"jfluid_direct_convolution_{kind}_{width}"


def names() -> list[str]:
    """Return the names of the functions of all kinds and widths."""
    return [name(kind, width) for kind in KINDS for width in widths()]


def write(module: Module) -> None:
    """Write down the functions of all names."""
    for width, lanes in widths().items():
        columns = {n: _tile(module, "columns", n, width, lanes) for n in {TILE, COLUMNS[width]}}
        numbers = {n: _tile(module, "numbers", n, width, lanes) for n in (NUMBERS[width], _FEW, 1)}
        for kind, chunk, tiles in zip(KINDS, (_forward, _gradient), (columns, numbers)):
            xla_tasks.define(module, name(kind, width), chunk(module, tiles, width))


def _tile(module: Module, kind: str, count: int, width: int, lanes: int) -> Any:
    """Adds to `out` [count, width], or sets it unless `adds`, the sums over two loops, `outer` and
    `inner`, of `numbers` times vectors of `others`, [width].

    The numbers of a sum are `apart` from those of the next and `step` from one to the next in `inner`. Of
    `columns` the step is 1, of `numbers` they are 1 apart: places that are known need no arithmetic.
    """
    lengths = "apart step outer numbers_outer others_outer inner others_inner pitch".split()
    pointers = dict.fromkeys(("numbers", "others", "out"), POINTER)
    f = Function(
        module,
        f"tile_{kind}_{count}_{width}",
        VOID,
        **pointers,
        **dict.fromkeys(lengths, I64),
        adds=I1,
    )
    f.function.attributes.add("noinline")  # so that the loops have all registers
    vector = ir.VectorType(FLOAT, lanes)
    fma = module.declare(f"llvm.fma.v{lanes}f32", vector, [vector] * 3)
    v, parts = f.v, range(width // lanes)
    step, apart = (I64(1), v["apart"]) if kind == "columns" else (v["step"], I64(1))
    offsets = [f.product(I64(i), apart) for i in range(count)]
    outs = [
        [f.at(v["out"], f.product(I64(i), v["pitch"]), I64(lanes * j)) for j in parts]
        for i in range(count)
    ]
    zero = ir.Constant(vector, [0.0] * lanes)
    sums = [[f.variable(vector, zero) for _ in parts] for _ in range(count)]
    everywhere = [(sums[i][j], outs[i][j]) for i in range(count) for j in parts]
    with f.b.if_then(v["adds"]):
        for place, out in everywhere:
            f.b.store(f.load(out, vector), place)
    rows = [f.variable(POINTER, v[n]) for n in ("numbers", "others")]

    def add(places: list[Any]) -> None:
        numbers, others = (f.load(place, POINTER) for place in places)
        loaded = [f.load(f.at(others, I64(lanes * j)), vector) for j in parts]
        for offset, of_number in zip(offsets, sums):
            number = f.spread(f.load(f.at(numbers, offset), FLOAT), vector)
            for place, other in zip(of_number, loaded):
                f.b.store(f.call(fma, number, other, f.load(place, vector)), place)
        f.b.store(f.at(numbers, step), places[0])
        f.b.store(f.at(others, v["others_inner"]), places[1])

    unrolled = f.b.sdiv(v["inner"], I64(_UNROLLED))
    with f.loop(v["outer"]):
        starts = [f.load(row, POINTER) for row in rows]
        places = [f.variable(POINTER, start) for start in starts]
        with f.loop(unrolled):
            for _ in range(_UNROLLED):
                add(places)
        with f.loop(v["inner"], f.product(unrolled, I64(_UNROLLED))):
            add(places)
        f.b.store(f.at(starts[0], v["numbers_outer"]), rows[0])
        f.b.store(f.at(starts[1], v["others_outer"]), rows[1])
    for place, out in everywhere:
        f.b.store(f.load(place, vector), out, align=4)
    return f.end()


def _chunk(module: Module, name: str) -> tuple[Function, dict[str, Any]]:
    """A function that computes a part of the result, and what it is given: the geometry too."""
    pointers = dict.fromkeys(("x", "y", "out", "geometry", "scratch"), POINTER)
    f = Function(module, name, VOID, **pointers, chunk=I64)
    v = f.v
    for i, name in enumerate(GEOMETRY):
        v[name] = f.b.sext(f.load(f.at(v["geometry"], I64(i), kind=I32), I32), I64)
    v["window"] = f.product(v["window_width"], v["channels"])  # numbers in a row of it
    v["step"] = f.product(v["across"], v["channels"])
    columns = f.sum(f.product(f.b.sub(v["columns"], I64(1)), v["across"]), v["window_width"])
    v["read"] = f.b.select(f.b.icmp_signed("!=", v["direct"], I64(0)), v["width"], columns)
    v["pitch"] = f.product(v["read"], v["channels"])
    return f, v


def _bordered(f: Function, image: Any, first: Any, rows: Any) -> Any:
    """A pointer to the rows of an image, `pitch` numbers each, that output rows from `first` need."""
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


def _parts(f: Function, width: int) -> Any:
    """How many times `width` filters there are, the last of which overlap with those before."""
    return f.b.sdiv(f.sum(f.v["filters"], I64(width - 1)), I64(width))


def _part(f: Function, part: Any, width: int) -> Any:
    """The first filter of a part."""
    return f.least(f.product(part, I64(width)), f.b.sub(f.v["filters"], I64(width)))


def _forward(module: Module, tiles: dict[int, Any], width: int) -> Any:
    """A band of an image's rows: x [images, height, width, channels], y [window_height, window_width,
    channels, filters], out [images, rows, columns, filters].
    """
    f, v = _chunk(module, f"forward_{width}_chunk")
    b = f.b
    image, band = b.sdiv(v["chunk"], v["bands"]), b.srem(v["chunk"], v["bands"])
    first = f.product(band, v["band"])
    rows = f.least(v["band"], b.sub(v["rows"], first))
    x = _bordered(f, image, first, rows)
    others_outer = f.product(v["window"], v["filters"])

    def row_of(tile: int) -> None:
        blocks = b.sdiv(f.sum(v["columns"], I64(tile - 1)), I64(tile))
        with f.loop(rows) as row, f.loop(_parts(f, width)) as part:
            filters = _part(f, part, width)
            with f.loop(blocks) as block:
                # The last overlaps with the one before.
                column = f.least(f.product(block, I64(tile)), b.sub(v["columns"], I64(tile)))
                numbers = f.at(
                    x, f.product(row, v["down"], v["pitch"]), f.product(column, v["step"])
                )
                at = f.sum(
                    f.product(f.sum(f.product(image, v["rows"]), first, row), v["columns"]), column
                )
                out = f.at(v["out"], f.product(at, v["filters"]), filters)
                outer = (v["window_height"], v["pitch"], others_outer)
                inner = (v["window"], v["filters"], v["filters"])
                others = f.at(v["y"], filters)
                f.call(tiles[tile], numbers, others, out, v["step"], I64(1), *outer, *inner, I1(0))

    largest = max(tiles)
    if largest == TILE:
        row_of(TILE)
    else:
        with b.if_else(b.icmp_signed(">=", v["columns"], I64(largest))) as (then, otherwise):
            for case, tile in zip((then, otherwise), (largest, TILE)):
                with case:
                    row_of(tile)
    return f.end()


def _gradient(module: Module, tiles: dict[int, Any], width: int) -> Any:
    """The gradient of a filter from a part of the images: x as above, y [images, rows, columns,
    filters], out [chunks, window_height, window_width, channels, parts of the filters, width].
    """
    f, v = _chunk(module, f"gradient_{width}_chunk")
    b, one = f.b, I64(1)
    parts = _parts(f, width)
    held = f.product(parts, I64(width))
    size = f.product(v["window_height"], v["window"], held)
    out = f.at(v["out"], f.product(v["chunk"], size))
    f.c("memset", out, I32(0), f.product(size, I64(4)))
    ends = [
        b.sdiv(f.product(c, v["images"]), v["chunks"]) for c in (v["chunk"], f.sum(v["chunk"], one))
    ]
    with f.loop(ends[1], ends[0]) as image, f.loop(v["bands"]) as band:
        first = f.product(band, v["band"])
        rows = f.least(v["band"], b.sub(v["rows"], first))
        x = _bordered(f, image, first, rows)
        at = f.product(f.sum(f.product(image, v["rows"]), first), v["columns"], v["filters"])
        with f.loop(v["window_height"]) as row, f.loop(parts) as part:
            others = f.at(v["y"], at, _part(f, part, width))
            done = I64(0)
            for count in sorted(tiles, reverse=True):
                times = b.sdiv(b.sub(v["window"], done), I64(count))
                with f.loop(times) as block:
                    number = f.sum(done, f.product(block, I64(count)))
                    place = f.product(f.sum(f.product(row, v["window"]), number), held)
                    numbers = f.at(x, f.product(row, v["pitch"]), number)
                    outer = (
                        rows,
                        f.product(v["down"], v["pitch"]),
                        f.product(v["columns"], v["filters"]),
                    )
                    inner = (v["columns"], v["filters"], held)
                    target = f.at(out, place, f.product(part, I64(width)))
                    f.call(
                        tiles[count], numbers, others, target, one, v["step"], *outer, *inner, I1(1)
                    )
                done = f.sum(done, f.product(times, I64(count)))
    return f.end()
