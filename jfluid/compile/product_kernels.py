"""Products of two matrices over their rows, x.T @ y, on CPUs as loops over registers, for LLVM.

A tile of the result stays in registers while all rows are read: of each row some numbers of x times
vectors of y, which are copied together once for many tiles.
"""

from typing import Any

from llvmlite import ir

from jfluid.compile import llvm_writer, xla_tasks
from jfluid.compile.llvm_writer import FLOAT, I1, I32, I64, POINTER, VOID, Function, Module

NAME = "jfluid_direct_product"
TILE, LANES = 14, 16  # rows of the result that are computed at a time, numbers in a vector
WIDTH = 2 * LANES  # columns that are
BLOCK = 256  # of how many rows products are added up before they are added to those of others
# The numbers of a call, see `xla_tasks.py` for the first two. x is [depth, rows], y [depth, columns].
# A chunk is a panel of the columns, `WIDTH` or the last `LANES`, of `tiles` tiles. Those of the same tiles
# follow one another.
GEOMETRY = "chunks memory depth rows columns panels tiles".split()
_LINE = 64  # bytes


def names() -> list[str]:
    """Return the names of the functions; none where this code is not known to be faster than XLA's."""
    return [NAME] if llvm_writer.has_wide_vectors() else []


def write(module: Module) -> None:
    """Write down the functions of all names."""
    xla_tasks.define(module, NAME, _chunk(module))


def _tile(module: Module, width: int) -> Any:
    """Adds to `sums` [TILE, width], or sets it unless `adds`, `numbers` [depth, TILE], which are `rows`
    apart, times `others` [depth, width].
    """
    pointers = dict.fromkeys(("numbers", "others", "sums"), POINTER)
    f = Function(module, f"product_tile_{width}", VOID, **pointers, depth=I64, rows=I64, adds=I1)
    f.function.attributes.add("noinline")  # so that the loop has all registers
    vector = ir.VectorType(FLOAT, LANES)
    fma = module.declare(f"llvm.fma.v{LANES}f32", vector, [vector] * 3)
    v, parts = f.v, range(width // LANES)
    zero = ir.Constant(vector, [0.0] * LANES)
    sums = [[f.variable(vector, zero) for _ in parts] for _ in range(TILE)]
    places = [f.variable(POINTER, v[name]) for name in ("numbers", "others")]
    with f.loop(v["depth"]):
        numbers, others = (f.load(place, POINTER) for place in places)
        loaded = [f.load(f.at(others, I64(LANES * j)), vector) for j in parts]
        for i, of_number in enumerate(sums):
            number = f.spread(f.load(f.at(numbers, I64(i)), FLOAT), vector)
            for place, other in zip(of_number, loaded):
                f.b.store(f.call(fma, number, other, f.load(place, vector)), place)
        f.b.store(f.at(numbers, v["rows"]), places[0])
        f.b.store(f.at(others, I64(width)), places[1])
    everywhere = [
        (sums[i][j], f.at(v["sums"], I64(width * i + LANES * j)))
        for i in range(TILE)
        for j in parts
    ]
    with f.b.if_then(v["adds"]):
        for place, before in everywhere:
            f.b.store(f.b.fadd(f.load(before, vector), f.load(place, vector)), place)
    for place, after in everywhere:
        f.b.store(f.load(place, vector), after, align=4)
    return f.end()


def _part(module: Module, width: int) -> Any:
    """Some tiles of `width` columns from `column` on: of x and y, into out [rows, columns].

    Another thread may write the columns that two parts have in common: only sums that are complete
    are written there.
    """
    tile, vector = _tile(module, width), ir.VectorType(FLOAT, LANES)
    numbers = ("depth", "rows", "columns", "column", "first", "end")
    pointers = dict.fromkeys(("x", "y", "out", "copied"), POINTER)
    f = Function(module, f"product_part_{width}", VOID, **pointers, **dict.fromkeys(numbers, I64))
    v, b = f.v, f.b

    def copy(target: Any, source: Any) -> None:
        for j in range(0, width, LANES):
            b.store(f.load(f.at(source, I64(j)), vector), f.at(target, I64(j)), align=4)

    def start(i: Any) -> Any:
        """The first row of a tile. The last tile overlaps with the one before."""
        return f.least(f.product(i, I64(TILE)), b.sub(v["rows"], I64(TILE)))

    def place(sums: Any, i: Any) -> Any:
        return f.at(sums, f.product(b.sub(i, v["first"]), I64(TILE * width)))

    sums = f.at(v["copied"], I64(BLOCK * width))
    blocks = b.sdiv(f.sum(v["depth"], I64(BLOCK - 1)), I64(BLOCK))
    with f.loop(blocks) as block:
        done = f.product(block, I64(BLOCK))
        depth = f.least(I64(BLOCK), b.sub(v["depth"], done))
        with f.loop(depth) as row:
            source = f.at(v["y"], f.product(f.sum(done, row), v["columns"]), v["column"])
            copy(f.at(v["copied"], f.product(row, I64(width))), source)
        with f.loop(v["end"], v["first"]) as i:
            x = f.at(v["x"], f.product(done, v["rows"]), start(i))
            adds = b.icmp_signed(">", block, I64(0))
            f.call(tile, x, v["copied"], place(sums, i), depth, v["rows"], adds)
    with f.loop(v["end"], v["first"]) as i:
        out = f.at(v["out"], f.product(start(i), v["columns"]), v["column"])
        for j in range(TILE):
            row = f.at(out, f.product(I64(j), v["columns"]))
            copy(row, f.at(place(sums, i), I64(width * j)))
    return f.end()


def _chunk(module: Module) -> Any:
    parts = [_part(module, width) for width in (WIDTH, LANES)]
    pointers = dict.fromkeys(("x", "y", "out", "geometry", "scratch"), POINTER)
    f = Function(module, "product_chunk", VOID, **pointers, chunk=I64)
    v, b = f.v, f.b
    for i, name in enumerate(GEOMETRY):
        place = f.at(v["geometry"], I64(i), kind=I32)
        v[name] = b.sext(f.load(place, I32), I64)
    scratch = b.ptrtoint(v["scratch"], I64)
    copied = b.inttoptr(b.and_(f.sum(scratch, I64(_LINE - 1)), I64(-_LINE)), POINTER)
    block, panel = b.sdiv(v["chunk"], v["panels"]), b.srem(v["chunk"], v["panels"])
    tiles = b.sdiv(f.sum(v["rows"], I64(TILE - 1)), I64(TILE))
    first = f.product(block, v["tiles"])
    end = f.least(f.sum(first, v["tiles"]), tiles)
    # Part of the columns overlap with those before, unless they are a multiple of a vector.
    wide = b.sdiv(f.sum(v["columns"], I64(WIDTH - LANES - 1)), I64(WIDTH))
    arrays = (v["x"], v["y"], v["out"], copied, v["depth"], v["rows"], v["columns"])
    with b.if_else(b.icmp_signed("<", panel, wide)) as (then, otherwise):
        for case, part, width in zip((then, otherwise), parts, (WIDTH, LANES)):
            with case:
                column = f.product(panel, I64(WIDTH))
                column = f.least(column, b.sub(v["columns"], I64(width)))
                f.call(part, *arrays, column, first, end)
    return f.end()
