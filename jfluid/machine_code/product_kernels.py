"""LLVM kernels of GEMMs.

A tile of the result stays in registers while its products are summed: each step multiplies numbers of the first
matrix by vectors of the second matrix. Both matrices are packed in the order in which the tiles read numbers: the
first matrix tile by tile, the second once for many tiles. Unpacked, consecutive rows would evict each other from a
core's cache. The first tile that reads numbers packs these numbers while it computes. Transposed rows of the first
matrix stay in place, unless they would evict each other. The epilogue, such as a layer's activation, runs while the
result is in the cache.
"""

import math
from typing import Any

from llvmlite import ir

from jfluid.machine_code import processor, xla_tasks
from jfluid.machine_code.extents import Array, Extents, KernelGroup
from jfluid.machine_code.llvm_writer import (
    FLOAT,
    I1,
    I8,
    I32,
    I64,
    POINTER,
    VOID,
    Function,
    Module,
    constants,
)
from jfluid.machine_code.vector_functions import KINDS, Vectors

# Functions for XLA: of x and y; also of a layer's bias [columns], or an array of the result's shape; and of a
# parameter, which the result takes the place of, and a rate [1].
NAME, FINISHED, UPDATE = (
    "jfluid_product",
    "jfluid_product_finished",
    "jfluid_product_update",
)
TILE, LANES = 14, 16  # rows of the result that are computed at a time, numbers in a vector
WIDTH = 2 * LANES  # columns that are
LOWEST = TILE - 2
_HEIGHTS = tuple(range(TILE, LOWEST - 1, -1))  # of tiles: few rows are computed twice
BLOCK = 408  # rows, at most, whose products are added up before they are added to those of others
# The numbers of a call, see `xla_tasks.py` for the first two. x is [depth, rows], y [depth, columns], or
# the other way round if `x_turned`, `y_turned`. A chunk is the tiles of one of `parts` parts of the rows, and the
# panels of one of `groups` parts of the columns, each of `WIDTH` or the last of `LANES`, or of fewer if
# there are no more. `held` rows of y are copied at once: of all of them, a thread's next chunk of the same columns
# has them, too. What is done to the sums has a number, `finish`.
GEOMETRY = "chunks memory depth rows columns x_turned y_turned x_copied parts groups held finish".split()
_ARRAYS = ("x", "y", "e", "r", "out")  # that a chunk is given, or some of them
# Those numbers: nothing, an activation of the sum and a bias, the sum times the slope of an activation
# of which the output is given, a parameter less the sum times a rate.
PLAIN, ACTIVATION, SLOPE, RATE = 0, 1, 1 + len(KINDS), 1 + 2 * len(KINDS)
_AHEAD = 24  # rows, which are prefetched while they are copied
_SUMS = TILE * WIDTH  # numbers of a tile
# Rows of a tile that a register points to: each of the others is one of so many rows behind one of them.
_BASES, _TIMES = (0, 3, 5, 10), (0, 1, 2, 4, 8)
LINE = 64  # bytes


_BETWEEN = 3 * LANES  # numbers from the end of a copied part to the next: see `_apart`


def _apart(depth: int) -> int:
    """Return the distance in float32 between packed panels of y.

    Panels are packed together: three extra cache lines keep rows of adjacent panels from the same cache sets.
    """
    return depth * WIDTH + _BETWEEN


def largest(rows: int, columns: int, parts: int, groups: int) -> tuple[int, int]:
    """Return the most tiles and panels that a chunk has."""
    high, panels = math.ceil(rows / parts), math.ceil(columns / WIDTH)
    return math.ceil(high / TILE), math.ceil(panels / groups)


def memory(tiles: int, panels: int, depth: int, held: int) -> int:
    """Return the float32 of scratch memory that a thread needs for chunks of `tiles` and `panels`."""
    sums = tiles * panels if depth > held else panels
    return BLOCK * TILE + _BETWEEN + _apart(held) * panels + _SUMS * sums + LANES


def extents(name: str, n: Any) -> Extents:
    """Return the extents of a kernel for the geometry `n`."""
    finishes = {NAME: (PLAIN,), FINISHED: range(ACTIVATION, RATE), UPDATE: (RATE,)}[name]
    x, y, out = (
        Array(first * second) for first, second in ((n.depth, n.rows), (n.depth, n.columns), (n.rows, n.columns))
    )
    divided = min(n.parts, n.groups, n.held) > 0
    holds = [
        ("rows for a tile", n.rows >= TILE),
        ("columns for vectors", n.columns > 0 and not LANES < n.columns < WIDTH),
        ("a sum of numbers", n.depth > 0),
        ("parts of rows and columns", divided and n.chunks == n.parts * n.groups),
        ("a finish of its own", n.finish in finishes),
    ]
    largest_ = largest(n.rows, n.columns, n.parts, n.groups) if divided else (0, 0)
    given = [x, y, out if n.finish >= SLOPE else Array(n.columns), Array(1)]
    given = given[: {NAME: 2, FINISHED: 3, UPDATE: 4}[name]]
    return Extents(given, [out], memory(*largest_, n.depth, n.held), holds)


def write(module: Module) -> None:
    """Write all kernels."""
    chunk = _chunk(module)
    for name, given in ((NAME, 2), (FINISHED, 3), (UPDATE, 4)):
        xla_tasks.define(module, name, _with_all(module, name, chunk, given), given)


KERNELS = KernelGroup((NAME, FINISHED, UPDATE), GEOMETRY, write, extents, bits=processor.AVX512)


def _with_all(module: Module, name: str, chunk: Any, given: int) -> Any:
    """Write a wrapper that calls the chunk's kernel with null pointers for absent arrays."""
    f = xla_tasks.begin_chunk(module, name, (*"xyer"[:given], "out"), ())
    nothing = ir.Constant(POINTER, None)
    pointers = (*_ARRAYS, "geometry", "scratch")
    f.call(chunk, *(f.v.get(argument, nothing) for argument in pointers), f.v["chunk"])
    return f.end()


def _tile(module: Module, height: int, width: int, along: bool = False, copies: str | None = None) -> Any:
    """Write the register tile: it adds a product over `depth` rows to `sums` [height, WIDTH].

    Unless `adds`, the tile overwrites `sums`. The factors are `others` [depth, width] and `numbers`, [depth, pitch],
    or [height, pitch] where `along`.

    Args:
        copies: "others": the tile reads `beside` [depth, between] and packs it into `others`; "numbers": the tile
            packs `numbers` into `beside` [depth, TILE].
    """
    pointers = dict.fromkeys(("numbers", "others", "sums", "beside"), POINTER)
    sizes = dict.fromkeys(("depth", "pitch", "between"), I64)
    name = f"product_tile_{'along_' * along}{f'copies_{copies}_' * bool(copies)}{height}_{width}"
    f = Function(module, name, VOID, **pointers, **sizes, adds=I1)
    f.function.attributes.add("noinline")  # so that the loop has all registers
    vector = ir.VectorType(FLOAT, LANES)
    fma = module.declare(f"llvm.fma.v{LANES}f32", vector, [vector] * 3)
    v, parts = f.v, range(width // LANES)
    zero = constants(vector, *[0.0] * LANES)
    sums = [[f.variable(vector, zero) for _ in parts] for _ in range(height)]
    others, beside = (f.variable(POINTER, v[name]) for name in ("others", "beside"))
    bases = {
        row: f.variable(POINTER, f.at(v["numbers"], f.product(I64(row), v["pitch"])))
        for row in (_BASES if along else (0,))
    }
    bytes_apart = f.opaque(f.product(v["pitch"], I64(4)))
    with f.loop(v["depth"]):
        here = {row: f.opaque(f.load(place, POINTER)) for row, place in bases.items()}
        to, copied = f.load(others, POINTER), f.load(beside, POINTER)
        of = copied if copies == "others" else to
        loaded = [f.load(f.at(of, I64(LANES * j)), vector) for j in parts]
        if copies == "others":
            for j, other in zip(parts, loaded):
                f.b.store(other, f.at(to, I64(LANES * j)), align=4)
                f.prefetch(f.at(of, f.product(I64(_AHEAD), v["between"]), I64(LANES * j)))
            f.b.store(f.at(of, v["between"]), beside)
        if copies == "numbers":
            # what a vector has beyond the row is where the next one is written
            lanes = f.lanes(vector, I64(TILE))
            f.b.store(f.load_lanes(here[0], vector, lanes), copied, align=4)
            for last in (0, TILE - 1):
                f.prefetch(f.at(here[0], f.product(I64(_AHEAD), v["pitch"]), I64(last)))
            f.b.store(f.at(copied, I64(TILE)), beside)
        for i, of_number in enumerate(sums):
            place = _row(f, here, i, bytes_apart) if along else f.at(here[0], I64(i))
            number = f.spread(f.load(place, FLOAT), vector)
            for place, other in zip(of_number, loaded):
                f.b.store(f.call(fma, number, other, f.load(place, vector)), place)
        for row, place in bases.items():
            f.b.store(f.at(here[row], I64(1) if along else v["pitch"]), place)
        f.b.store(f.at(to, I64(width)), others)
    everywhere = [(sums[i][j], f.at(v["sums"], I64(WIDTH * i + LANES * j))) for i in range(height) for j in parts]
    with f.b.if_then(v["adds"]):
        for place, before in everywhere:
            f.b.store(f.b.fadd(f.load(before, vector), f.load(place, vector)), place)
    for place, after in everywhere:
        f.b.store(f.load(place, vector), after, align=4)
    return f.end()


def _row(f: Function, bases: dict[int, Any], row: int, bytes_apart: Any) -> Any:
    """Return a pointer to a row: a base plus a multiple of the pitch that an x86 address can scale."""
    base = next(b for b in bases if row - b in _TIMES)
    return f.at(bases[base], f.product(I64(row - base), bytes_apart), kind=I8)


def _finish(module: Module) -> Any:
    """Write the GEMM epilogue: it applies `finish` to `sums` [rows, WIDTH] and stores the result in out.

    Rows of out are `pitch` numbers apart; only columns from `first` to before `end` are stored. `e` is a bias, or
    has the layout of out.
    """
    pointers = dict.fromkeys(("sums", "out", "e", "r"), POINTER)
    numbers = dict.fromkeys(("pitch", "rows", "first", "end", "finish"), I64)
    f = Function(module, "product_finish", VOID, **pointers, **numbers)
    v, b, vectors = f.v, f.b, Vectors(f)
    vector, finish = ir.VectorType(FLOAT, LANES), v["finish"]
    lanes = []
    for j in range(0, WIDTH, LANES):
        from_first = b.not_(f.lanes(vector, b.sub(v["first"], I64(j))))
        lanes.append(b.and_(from_first, f.lanes(vector, b.sub(v["end"], I64(j)))))

    def case(first: int, last: int) -> Any:
        inside = b.icmp_signed(">=", finish, I64(first))
        return b.if_then(b.and_(inside, b.icmp_signed("<=", finish, I64(last))))

    rate = f.variable(FLOAT, ir.Constant(FLOAT, 0.0))
    with case(RATE, RATE):
        b.store(f.load(v["r"], FLOAT), rate)
    rates = f.spread(f.load(rate, FLOAT), vector)
    with f.loop(v["rows"]) as i:
        here = f.product(i, v["pitch"])
        for j, some in enumerate(lanes):
            place = f.variable(vector, f.load(f.at(v["sums"], f.product(i, I64(WIDTH)), I64(LANES * j)), vector))
            x = f.load(place, vector)
            with case(ACTIVATION, SLOPE - 1):
                bias = f.load_lanes(f.at(v["e"], I64(LANES * j)), vector, some)
                kind = b.sub(finish, I64(ACTIVATION))
                b.store(vectors.activated(kind, b.fadd(x, bias)), place)
            with case(SLOPE, RATE):
                e = f.load_lanes(f.at(v["e"], here, I64(LANES * j)), vector, some)
                with b.if_else(b.icmp_signed("==", finish, I64(RATE))) as (update, sloped):
                    with update:
                        b.store(b.fsub(e, b.fmul(rates, x)), place)
                    with sloped:
                        # zero times what is not finite is zero, as where XLA selects
                        slope = vectors.slope(b.sub(finish, I64(SLOPE)), e)
                        none = b.fcmp_ordered("==", slope, vectors.number(0.0))
                        b.store(b.select(none, vectors.number(0.0), b.fmul(x, slope)), place)
            f.store_lanes(f.load(place, vector), f.at(v["out"], here, I64(LANES * j)), some)
    return f.end()


def _copy(f: Function, target: Any, source: Any, width: int, size: Any) -> None:
    """Copy `width` consecutive numbers, or `size` where it is less than a vector.

    A copied row of a tile may overwrite the place of the next row, which is written later.
    """
    vector = ir.VectorType(FLOAT, LANES)
    if width <= LANES:
        lanes = f.lanes(vector, size if width == LANES else I64(width))
        row = f.load_lanes(source, vector, lanes)
        if width == LANES:
            f.store_lanes(row, target, lanes)
        else:
            f.b.store(row, target, align=4)
            f.prefetch(f.at(source, I64(2 * width)))  # of the tile beside, where it ends
        return
    for j in range(0, width, LANES):
        f.b.store(f.load(f.at(source, I64(j)), vector), f.at(target, I64(j)), align=4)


def _start(f: Function, i: Any, size: Any, width: int) -> Any:
    """Return the first row or column of a part. The last part overlaps the part before."""
    last = f.greatest(f.b.sub(size, I64(width)), I64(0))
    return f.least(f.product(i, I64(width)), last)


def _parts(module: Module, name: str, width: int) -> Any:
    """Write the packing of parts of a matrix [depth, size], from part `first` to before `end`.

    A part is `width` columns. It is packed to `parts` [parts, apart] with consecutive rows. Rows of the matrix are
    `pitch` numbers apart.
    """
    f = _copies(module, name)
    v = f.v
    with f.loop(v["depth"]) as row:
        source = f.at(v["matrix"], f.product(row, v["pitch"]))
        target = f.at(v["parts"], f.product(row, I64(width)))
        with f.loop(v["end"], v["first"]) as i:
            to = f.at(target, f.product(f.b.sub(i, v["first"]), v["apart"]))
            _copy(f, to, f.at(source, _start(f, i, v["size"], width)), width, v["size"])
    return f.end()


def _turned_parts(module: Module, name: str, width: int) -> Any:
    """Write the packing of parts of a transposed matrix [size, depth]; the arguments are as in `_parts`."""
    f = _copies(module, name)
    v, vector = f.v, ir.VectorType(FLOAT, LANES)
    zero = ir.Constant(vector, [0.0] * LANES)
    with f.loop(v["end"], v["first"]) as i:
        source = f.at(v["matrix"], f.product(_start(f, i, v["size"], width), v["pitch"]))
        target = f.at(v["parts"], f.product(f.b.sub(i, v["first"]), v["apart"]))
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
    sizes = dict.fromkeys(("depth", "pitch", "size", "first", "end", "apart"), I64)
    return Function(module, name, VOID, matrix=POINTER, parts=POINTER, **sizes)


def _turned(f: Function, rows: list[Any]) -> list[Any]:
    """Transpose a square of vectors: swap ever smaller squares beside the diagonal."""
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


def _chunk(module: Module) -> Any:
    widths = (WIDTH, LANES)
    copies = {
        n: [
            write(module, f"product_{name}_{n}", n)
            for name, write in (("turned_parts", _turned_parts), ("parts", _parts))
        ]
        for n in (TILE, *widths)
    }
    tiles = {
        (along, width): [_tile(module, height, width, along) for height in _HEIGHTS]
        for along in (False, True)
        for width in widths
    }
    copying = [_tile(module, TILE, WIDTH, along, "others") for along in (False, True)]
    copying_x = _tile(module, TILE, WIDTH, copies="numbers")
    finish = _finish(module)
    f = xla_tasks.begin_chunk(module, "product", _ARRAYS, GEOMETRY)
    v, b = f.v, f.b

    def part(i: Any, size: Any, count: Any) -> Any:
        """Return the beginning of part `i` of `count`."""
        return b.sdiv(f.product(i, size), count)

    def parts_of(size: Any, most: int) -> Any:
        return b.sdiv(f.sum(size, I64(most - 1)), I64(most))

    whole = b.sdiv(f.sum(v["depth"], b.sub(v["held"], I64(1))), v["held"])  # times that y is copied
    i = b.srem(v["chunk"], v["parts"])
    first, end = (part(n, v["rows"], v["parts"]) for n in (i, f.sum(i, I64(1))))
    rows = b.sub(end, first)
    high = parts_of(rows, TILE)  # tiles
    # Part of the columns overlap with those before, unless they are a multiple of a vector.
    wide = b.sdiv(f.sum(v["columns"], I64(WIDTH - LANES - 1)), I64(WIDTH))
    group, panels = b.sdiv(v["chunk"], v["parts"]), parts_of(v["columns"], WIDTH)
    start, stop = (part(n, panels, v["groups"]) for n in (group, f.sum(group, I64(1))))
    # What is copied of all rows of y serves all chunks of a thread that are of one group.
    noted = xla_tasks.holds(f, v["scratch"])
    known = b.icmp_signed("==", f.load(noted, I64), f.sum(group, I64(1)))
    several = b.icmp_signed(">", whole, I64(1))
    b.store(b.select(several, I64(0), f.sum(group, I64(1))), noted)
    scratch = b.ptrtoint(v["scratch"], I64)
    others = b.inttoptr(b.and_(f.sum(scratch, I64(LINE - 1)), I64(-LINE)), POINTER)
    apart = f.sum(f.product(v["held"], I64(WIDTH)), I64(_BETWEEN))
    numbers = f.at(others, f.product(b.sub(stop, start), apart))
    sums = f.at(numbers, I64(BLOCK * TILE + _BETWEEN))
    # Sums are kept until the last rows: those of a tile, or of all of them while y is copied anew.
    kept = b.select(several, high, I64(1))
    turned = {name: b.icmp_signed("!=", v[f"{name}_turned"], I64(0)) for name in "xy"}
    along = b.and_(turned["x"], b.icmp_signed("==", v["x_copied"], I64(0)))

    def copy(
        name: str,
        width: int,
        rows: tuple[Any, Any],
        at: Any,
        to: Any,
        size: Any,
        first: Any,
        end: Any,
    ) -> None:
        """Write the packing of parts of rows from `rows[0]` to before `rows[1]`, from column `at` on.

        Where the matrix is transposed, `at` is a row.
        """
        pitch = v["rows" if name == "x" else "columns"]
        done, depth = rows[0], b.sub(rows[1], rows[0])
        places = [
            f.at(v[name], done, f.product(at, v["depth"])),
            f.at(v[name], at, f.product(done, pitch)),
        ]
        with b.if_else(turned[name]) as cases:
            for case, copying, place, distance in zip(cases, copies[width], places, (v["depth"], pitch)):
                with case:
                    f.call(copying, place, to, depth, distance, size, first, end, apart)

    def of_panel(panel: Any, width: int) -> tuple[Any, Any]:
        """Return the first column of a panel, and how many of the panel's columns the panel before has."""
        column = f.product(panel, I64(WIDTH))
        inside = f.least(column, f.greatest(b.sub(v["columns"], I64(width)), I64(0)))
        return inside, b.sub(column, inside)

    with f.loop(whole) as time:
        copied = tuple(part(n, v["depth"], whole) for n in (time, f.sum(time, I64(1))))
        with b.if_then(b.not_(known)):
            with b.if_then(turned["y"]):  # else the first tile copies what it reads
                copy("y", WIDTH, copied, I64(0), others, v["columns"], start, f.least(stop, wide))
            with b.if_then(b.icmp_signed(">", stop, wide)):
                last = f.at(others, f.product(b.sub(wide, start), apart))
                size = v["columns"]
                copy("y", LANES, copied, I64(0), last, size, size, f.sum(size, I64(1)))
        blocks = parts_of(b.sub(copied[1], copied[0]), BLOCK)
        with f.loop(high) as i, f.loop(blocks) as block:
            copies_y = b.and_(b.icmp_signed("==", i, I64(0)), b.not_(b.or_(known, turned["y"])))
            inside = tuple(part(n, b.sub(copied[1], copied[0]), blocks) for n in (block, f.sum(block, I64(1))))
            these = tuple(f.sum(copied[0], n) for n in inside)
            depth = b.sub(inside[1], inside[0])
            adds = b.icmp_signed(">", these[0], I64(0))
            is_last = b.icmp_signed("==", these[1], v["depth"])
            row, after = (f.sum(first, part(n, rows, high)) for n in (i, f.sum(i, I64(1))))
            count = b.sub(after, row)
            left = f.least(row, b.sub(v["rows"], I64(TILE)))
            # else the tile of the first panel copies what it reads
            copies_x = b.and_(b.icmp_signed("<", start, wide), b.not_(copies_y))
            copies_x = b.and_(copies_x, b.not_(turned["x"]))
            with b.if_then(b.not_(b.or_(along, copies_x))):
                copy("x", TILE, these, left, numbers, I64(TILE), I64(0), I64(1))
            height = f.greatest(count, I64(_HEIGHTS[-1]))
            lowest = f.least(row, b.sub(v["rows"], height))
            with f.loop(stop, start) as panel:
                narrow = b.icmp_signed(">=", panel, wide)
                copies = b.and_(copies_y, b.not_(narrow))
                copies_here = b.and_(copies_x, b.icmp_signed("==", panel, start))
                begin = b.select(b.or_(copies, copies_here), left, lowest)
                of_x = [
                    f.at(v["x"], f.product(these[0], v["rows"]), begin),
                    f.at(v["x"], these[0], f.product(begin, v["depth"])),
                ]
                in_place = b.or_(along, copies_here)
                given = b.select(along, of_x[1], of_x[0])
                given = b.select(in_place, given, f.at(numbers, b.sub(begin, left)))
                pitch = b.select(along, v["depth"], v["rows"])
                pitch = b.select(in_place, pitch, I64(TILE))
                place = f.product(b.sub(panel, start), kept)
                place = f.sum(place, b.select(several, i, I64(0)))
                place = f.at(sums, f.product(place, I64(_SUMS)))
                held = f.at(others, f.product(b.sub(panel, start), apart))
                with b.if_else(narrow) as cases:
                    for case, width in zip(cases, (LANES, WIDTH)):
                        with case:
                            column, skipped = of_panel(panel, width)
                            tile = None
                            for n, *both in zip(_HEIGHTS, tiles[False, width], tiles[True, width]):
                                other = b.select(along, both[1], both[0])
                                is_high = b.icmp_signed("==", height, I64(n))
                                tile = b.select(is_high, other, tile) if tile else other
                            of_y = f.at(v["y"], f.product(these[0], v["columns"]), column)
                            if width == WIDTH:
                                other = b.select(along, copying[1], copying[0])
                                tile = b.select(copies, other, tile)
                                tile = b.select(copies_here, copying_x, tile)
                            beside = b.select(copies_here, numbers, of_y)
                            f.call(
                                tile,
                                given,
                                f.at(held, f.product(inside[0], I64(width))),
                                place,
                                beside,
                                depth,
                                pitch,
                                v["columns"],
                                adds,
                            )
                            with b.if_then(is_last):
                                here = f.sum(f.product(row, v["columns"]), column)
                                of_rows = b.icmp_signed(">=", v["finish"], I64(SLOPE))
                                of_e = f.at(v["e"], b.select(of_rows, here, column))
                                before = f.at(place, f.product(b.sub(row, begin), I64(WIDTH)))
                                stop_at = f.least(I64(width), b.sub(v["columns"], column))
                                f.call(
                                    finish,
                                    before,
                                    f.at(v["out"], here),
                                    of_e,
                                    v["r"],
                                    v["columns"],
                                    count,
                                    skipped,
                                    stop_at,
                                    v["finish"],
                                )
    return f.end()
