"""Products of two matrices on CPUs as loops over registers, for LLVM.

A tile of the result stays in registers while the products that make it are added up: at each step some
numbers of one matrix times vectors of the other. Both are copied together before, in the order in which
they are read, the first once for many columns and the second once for many tiles: where matrices
lie in memory, numbers of rows that follow one another would push each other out of a core's cache.
"""

from typing import Any

from llvmlite import ir

from jfluid.machine_code import processor, xla_tasks
from jfluid.machine_code.llvm_writer import FLOAT, I1, I32, I64, POINTER, VOID, Function, Module

NAME = "jfluid_direct_product"
TILE, LANES = 14, 16  # rows of the result that are computed at a time, numbers in a vector
WIDTH = 2 * LANES  # columns that are
BLOCK = 256  # of how many rows products are added up before they are added to those of others
# The numbers of a call, see `xla_tasks.py` for the first two. x is [depth, rows], y [depth, columns], or
# the other way round if `x_turned`, `y_turned`. A chunk is `tiles` tiles of rows and `panels` panels of
# columns, each of `WIDTH` or the last of `LANES`, or of fewer if there are no more. Those of the same
# tiles follow one another, `groups` of them.
GEOMETRY = "chunks memory depth rows columns x_turned y_turned tiles panels groups".split()
_LINE = 64  # bytes


def _apart(width: int) -> int:
    """How many float32 lie from one copied part to the next: rows of parts side by side are copied together,
    so three lines more than the rows need keep these from the same places of a cache.
    """
    return BLOCK * width + 3 * LANES


def memory(tiles: int, panels: int) -> int:
    """Return how many float32 a thread needs for chunks of so many tiles and panels."""
    return _apart(TILE) * tiles + _apart(WIDTH) * panels + TILE * tiles * WIDTH * panels + LANES


def names() -> list[str]:
    """Return the names of the functions; none where this code is not known to be faster than XLA's."""
    return [NAME] if processor.has_wide_vectors() else []


def write(module: Module) -> None:
    """Write down the functions of all names."""
    xla_tasks.define(module, NAME, _chunk(module))


def _tile(module: Module, width: int) -> Any:
    """Adds to `sums` [TILE, width], or sets it unless `adds`, `numbers` [depth, TILE] times `others`
    [depth, width].
    """
    pointers = dict.fromkeys(("numbers", "others", "sums"), POINTER)
    f = Function(module, f"product_tile_{width}", VOID, **pointers, depth=I64, adds=I1)
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
        f.b.store(f.at(numbers, I64(TILE)), places[0])
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


def _copy(f: Function, target: Any, source: Any, width: int, size: Any) -> None:
    """Copy numbers that follow one another: `width` of them, or `size` where that is less than a vector."""
    vector = ir.VectorType(FLOAT, min(width, LANES))
    if width == LANES:
        lanes = f.lanes(vector, size)
        f.store_lanes(f.load_lanes(source, vector, lanes), target, lanes)
        return
    for j in range(0, width, LANES):
        f.b.store(f.load(f.at(source, I64(j)), vector), f.at(target, I64(j)), align=4)


def _start(f: Function, i: Any, size: Any, width: int) -> Any:
    """Where a part begins. The last one overlaps with the one before."""
    last = f.greatest(f.b.sub(size, I64(width)), I64(0))
    return f.least(f.product(i, I64(width)), last)


def _parts(module: Module, name: str, width: int) -> Any:
    """Copies parts of a matrix [depth, size], from the part `first` to before `end`, each of `width` columns, to
    `parts` [parts, _apart(width)], where the rows of a part follow one another. From one row of the matrix
    to the next are `pitch` numbers.
    """
    f = _copies(module, name)
    v = f.v
    with f.loop(v["depth"]) as row:
        source = f.at(v["matrix"], f.product(row, v["pitch"]))
        target = f.at(v["parts"], f.product(row, I64(width)))
        with f.loop(v["end"], v["first"]) as i:
            to = f.at(target, f.product(f.b.sub(i, v["first"]), I64(_apart(width))))
            _copy(f, to, f.at(source, _start(f, i, v["size"], width)), width, v["size"])
    return f.end()


def _turned_parts(module: Module, name: str, width: int) -> Any:
    """As `_parts`, of a matrix [size, depth]."""
    f = _copies(module, name)
    v, vector = f.v, ir.VectorType(FLOAT, LANES)
    zero = ir.Constant(vector, [0.0] * LANES)
    with f.loop(v["end"], v["first"]) as i:
        source = f.at(v["matrix"], f.product(_start(f, i, v["size"], width), v["pitch"]))
        target = f.at(v["parts"], f.product(f.b.sub(i, v["first"]), I64(_apart(width))))
        squares = f.b.sdiv(v["depth"], I64(LANES))
        last = f.b.sub(v["size"], I64(1))
        rows = [f.at(source, f.product(f.least(I64(j), last), v["pitch"])) for j in range(width)]
        for first in range(0, width, LANES):
            held = rows[first : first + LANES]
            with f.loop(squares) as square:
                done = f.product(square, I64(LANES))
                square_rows = [f.load(f.at(row, done), vector) for row in held]
                square_rows += [zero] * (LANES - len(held))
                # What a vector has beyond a row of a narrow part is where the next one is written.
                for j, turned in enumerate(_turned(f, square_rows)):
                    at = f.product(f.sum(done, I64(j)), I64(width))
                    f.b.store(turned, f.at(target, at, I64(first)), align=4)
        with f.loop(v["depth"], f.product(squares, I64(LANES))) as step:
            for j, row in enumerate(rows):
                at = f.at(target, f.product(step, I64(width)), I64(j))
                f.b.store(f.load(f.at(row, step), FLOAT), at)
    return f.end()


def _copies(module: Module, name: str) -> Function:
    sizes = dict.fromkeys(("depth", "pitch", "size", "first", "end"), I64)
    return Function(module, name, VOID, matrix=POINTER, parts=POINTER, **sizes)


def _turned(f: Function, rows: list[Any]) -> list[Any]:
    """The columns of a square, by swapping ever smaller squares beside its diagonal."""
    count = len(rows)
    size = count // 2
    while size:
        inside = [bool(column & size) for column in range(count)]
        upper = [count + c - size if i else c for c, i in enumerate(inside)]
        lower = [count + c if i else c + size for c, i in enumerate(inside)]
        orders = [ir.Constant(ir.VectorType(I32, count), order) for order in (upper, lower)]
        for i in (row for row in range(count) if not row & size):
            pair = rows[i], rows[i + size]
            rows[i], rows[i + size] = (f.b.shuffle_vector(*pair, order) for order in orders)
        size //= 2
    return rows


def _scatter(module: Module, width: int) -> Any:
    """Copies `sums` [tiles, TILE, width] to the tiles from `first` to before `end` of out [rows, columns].

    Another thread may write the rows and columns that two chunks have in common: the same numbers.
    """
    sizes = dict.fromkeys(("rows", "columns", "first", "end"), I64)
    f = Function(module, f"product_scatter_{width}", VOID, sums=POINTER, out=POINTER, **sizes)
    v = f.v
    with f.loop(v["end"], v["first"]) as i:
        out = f.at(v["out"], f.product(_start(f, i, v["rows"], TILE), v["columns"]))
        sums = f.at(v["sums"], f.product(f.b.sub(i, v["first"]), I64(TILE * width)))
        for j in range(TILE):
            row = f.at(out, f.product(I64(j), v["columns"]))
            _copy(f, row, f.at(sums, I64(width * j)), width, v["columns"])
    return f.end()


def _tiles(module: Module, width: int) -> Any:
    """Adds to `sums` [tiles, TILE, width] the products of a block: of `numbers`, the tiles, with a panel."""
    tile, pointers = _tile(module, width), dict.fromkeys(("numbers", "panel", "sums"), POINTER)
    f = Function(module, f"product_tiles_{width}", VOID, **pointers, depth=I64, tiles=I64, adds=I1)
    v = f.v
    with f.loop(v["tiles"]) as i:
        numbers = f.at(v["numbers"], f.product(i, I64(_apart(TILE))))
        sums = f.at(v["sums"], f.product(i, I64(TILE * width)))
        f.call(tile, numbers, v["panel"], sums, v["depth"], v["adds"])
    return f.end()


def _chunk(module: Module) -> Any:
    widths = (WIDTH, LANES)
    copies = {
        n: [
            write(module, f"product_{name}_{n}", n)
            for name, write in (("turned_parts", _turned_parts), ("parts", _parts))
        ]
        for n in (TILE, *widths)
    }
    multiply = [_tiles(module, width) for width in widths]
    scatter = [_scatter(module, width) for width in widths]
    pointers = dict.fromkeys(("x", "y", "out", "geometry", "scratch"), POINTER)
    f = Function(module, "product_chunk", VOID, **pointers, chunk=I64)
    v, b = f.v, f.b
    for i, name in enumerate(GEOMETRY):
        place = f.at(v["geometry"], I64(i), kind=I32)
        v[name] = b.sext(f.load(place, I32), I64)
    scratch = b.ptrtoint(v["scratch"], I64)
    others = b.inttoptr(b.and_(f.sum(scratch, I64(_LINE - 1)), I64(-_LINE)), POINTER)
    numbers = f.at(others, f.product(v["panels"], I64(_apart(WIDTH))))
    sums = f.at(numbers, f.product(v["tiles"], I64(_apart(TILE))))
    every = b.sdiv(f.sum(v["rows"], I64(TILE - 1)), I64(TILE))
    first = f.product(b.sdiv(v["chunk"], v["groups"]), v["tiles"])
    end = f.least(f.sum(first, v["tiles"]), every)
    # Part of the columns overlap with those before, unless they are a multiple of a vector.
    wide = b.sdiv(f.sum(v["columns"], I64(WIDTH - LANES - 1)), I64(WIDTH))
    every = b.sdiv(f.sum(v["columns"], I64(WIDTH - 1)), I64(WIDTH))
    start = f.product(b.srem(v["chunk"], v["groups"]), v["panels"])
    stop = f.least(f.sum(start, v["panels"]), every)

    turned = {name: b.icmp_signed("!=", v[f"{name}_turned"], I64(0)) for name in "xy"}

    def copy(name: str, width: int, done: Any, to: Any, first: Any, end: Any) -> None:
        """Write down the copying of parts of a block, which begins at `done`."""
        size = v["rows" if name == "x" else "columns"]
        places = [f.at(v[name], start) for start in (done, f.product(done, size))]
        with b.if_else(turned[name]) as cases:
            for case, copying, place, pitch in zip(
                cases, copies[width], places, (v["depth"], size)
            ):
                with case:
                    f.call(copying, place, to, depth, pitch, size, first, end)

    def each_panel(work: Any) -> None:
        """Write down what is done for a panel of either width, its column and number among the chunk's."""
        with f.loop(stop, start) as panel:
            with b.if_else(b.icmp_signed("<", panel, wide)) as cases:
                for which, case in enumerate(cases):
                    with case:
                        column = f.product(panel, I64(WIDTH))
                        last = f.greatest(b.sub(v["columns"], I64(widths[which])), I64(0))
                        column = f.least(column, last)
                        work(which, column, b.sub(panel, start))

    def of_panel(array: Any, i: Any, apart: Any) -> Any:
        return f.at(array, f.product(i, apart))

    def sums_of(i: Any) -> Any:
        return of_panel(sums, i, f.product(v["tiles"], I64(TILE * WIDTH)))

    with f.loop(b.sdiv(f.sum(v["depth"], I64(BLOCK - 1)), I64(BLOCK))) as block:
        done = f.product(block, I64(BLOCK))
        depth = f.least(I64(BLOCK), b.sub(v["depth"], done))
        copy("x", TILE, done, numbers, first, end)
        copy("y", WIDTH, done, others, start, f.least(stop, wide))
        with b.if_then(b.icmp_signed(">", stop, wide)):
            last = of_panel(others, b.sub(wide, start), I64(_apart(WIDTH)))
            copy("y", LANES, done, last, v["columns"], f.sum(v["columns"], I64(1)))
        adds, tiles = b.icmp_signed(">", block, I64(0)), b.sub(end, first)

        def products(which: Any, column: Any, i: Any) -> None:
            panel = of_panel(others, i, I64(_apart(WIDTH)))
            f.call(multiply[which], numbers, panel, sums_of(i), depth, tiles, adds)

        each_panel(products)

    def results(which: Any, column: Any, i: Any) -> None:
        out = f.at(v["out"], column)
        f.call(scatter[which], sums_of(i), out, v["rows"], v["columns"], first, end)

    each_panel(results)
    return f.end()
