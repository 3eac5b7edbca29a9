"""LLVM kernels of GEMMs.

A tile of the result stays in registers while its products are summed: each step multiplies numbers of the first
matrix by vectors of the second matrix. Both matrices are packed in the order in which the tiles read numbers: the
first matrix tile by tile, the second once for many tiles. Unpacked, consecutive rows would evict each other from a
core's cache. The first tile that reads numbers packs these numbers while it computes. Transposed rows of the first
matrix stay in place, unless they would evict each other.
"""

import math
from typing import Any

from llvmlite import ir

from jfluid.machine_code import ffi_runtime, processor
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

NAME = "jfluid_product"  # of the function for XLA
TILE, LANES = 14, 16  # rows of the result that are computed at a time, numbers in a vector
WIDTH = 2 * LANES  # columns that are
LOWEST = TILE - 2
_HEIGHTS = tuple(range(TILE, LOWEST - 1, -1))  # of tiles: few rows are computed twice
BLOCK = 408  # rows, at most, whose products are added up before they are added to those of others
# The numbers of a call, see `ffi_runtime.py` for the first two. x is [depth, rows], y [depth, columns], or
# the other way round if `x_turned`, `y_turned`. A chunk is the tiles of one of `parts` parts of the rows, and the
# panels of one of `groups` parts of the columns, each of `WIDTH` or the last of `LANES`, or of fewer if
# there are no more. `held` rows of y are copied at once: of all of them, a thread's next chunk of the same columns
# has them, too.
GEOMETRY = "chunks memory depth rows columns x_turned y_turned x_copied parts groups held".split()
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
    x, y, out = (
        Array(first * second) for first, second in ((n.depth, n.rows), (n.depth, n.columns), (n.rows, n.columns))
    )
    divided = min(n.parts, n.groups, n.held) > 0
    holds = [
        ("rows for a tile", n.rows >= TILE),
        ("columns for vectors", n.columns > 0 and not LANES < n.columns < WIDTH),
        ("a sum of numbers", n.depth > 0),
        ("parts of rows and columns", divided and n.chunks == n.parts * n.groups),
    ]
    largest_ = largest(n.rows, n.columns, n.parts, n.groups) if divided else (0, 0)
    return Extents([x, y], [out], memory(*largest_, n.depth, n.held), holds)


def write(module: Module) -> None:
    """Write the kernel."""
    ffi_runtime.define(module, NAME, _Chunk(module).write())


KERNELS = KernelGroup((NAME,), GEOMETRY, write, extents, bits=processor.AVX512)


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


def _stores(module: Module) -> Any:
    """Write the store of `sums` [rows, WIDTH] to out.

    Rows of out are `pitch` numbers apart; only columns from `first` to before `end` are stored.
    """
    numbers = dict.fromkeys(("pitch", "rows", "first", "end"), I64)
    f = Function(module, "product_stores", VOID, sums=POINTER, out=POINTER, **numbers)
    v, b, vector = f.v, f.b, ir.VectorType(FLOAT, LANES)
    lanes = []
    for j in range(0, WIDTH, LANES):
        from_first = b.not_(f.lanes(vector, b.sub(v["first"], I64(j))))
        lanes.append(b.and_(from_first, f.lanes(vector, b.sub(v["end"], I64(j)))))
    with f.loop(v["rows"]) as i:
        here = f.product(i, v["pitch"])
        for j, some in enumerate(lanes):
            found = f.load(f.at(v["sums"], f.product(i, I64(WIDTH)), I64(LANES * j)), vector)
            f.store_lanes(found, f.at(v["out"], here, I64(LANES * j)), some)
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


class _Chunk:
    """Writer of the kernel of a chunk: it packs parts of x and y, and calls tiles."""

    def __init__(self, module: Module):
        widths = (WIDTH, LANES)
        self._packings = {
            width: [
                _turned_parts(module, f"product_turned_parts_{width}", width),
                _parts(module, f"product_parts_{width}", width),
            ]
            for width in (TILE, *widths)
        }
        self._tiles = {
            (along, width): [_tile(module, height, width, along) for height in _HEIGHTS]
            for along in (False, True)
            for width in widths
        }
        self._packing_y = [_tile(module, TILE, WIDTH, along, "others") for along in (False, True)]
        self._packing_x = _tile(module, TILE, WIDTH, copies="numbers")
        self._stores = _stores(module)
        self._f = f = ffi_runtime.begin_chunk(module, NAME, ("x", "y", "out"), GEOMETRY)
        self._v, self._b = v, b = f.v, f.b
        self._times = b.sdiv(f.sum(v["depth"], b.sub(v["held"], I64(1))), v["held"])  # packings of y
        i = b.srem(v["chunk"], v["parts"])
        self._first, end = (self._part(n, v["rows"], v["parts"]) for n in (i, f.sum(i, I64(1))))
        self._rows = b.sub(end, self._first)
        self._high = self._parts_of(self._rows, TILE)  # tiles
        # Part of the columns overlap with those before, unless they are a multiple of a vector.
        self._wide = b.sdiv(f.sum(v["columns"], I64(WIDTH - LANES - 1)), I64(WIDTH))
        group, panels = b.sdiv(v["chunk"], v["parts"]), self._parts_of(v["columns"], WIDTH)
        self._start, self._stop = (self._part(n, panels, v["groups"]) for n in (group, f.sum(group, I64(1))))
        # Packed rows of y serve all chunks of a thread with the same group.
        noted = ffi_runtime.holds(f, v["scratch"])
        self._known = b.icmp_signed("==", f.load(noted, I64), f.sum(group, I64(1)))
        self._several = b.icmp_signed(">", self._times, I64(1))
        b.store(b.select(self._several, I64(0), f.sum(group, I64(1))), noted)
        scratch = b.ptrtoint(v["scratch"], I64)
        self._others = b.inttoptr(b.and_(f.sum(scratch, I64(LINE - 1)), I64(-LINE)), POINTER)
        self._apart = f.sum(f.product(v["held"], I64(WIDTH)), I64(_BETWEEN))
        self._numbers = f.at(self._others, f.product(b.sub(self._stop, self._start), self._apart))
        self._sums = f.at(self._numbers, I64(BLOCK * TILE + _BETWEEN))
        # Sums are kept until the last rows: of a tile, or of all tiles while y is packed again.
        self._kept = b.select(self._several, self._high, I64(1))
        self._turned = {name: b.icmp_signed("!=", v[f"{name}_turned"], I64(0)) for name in "xy"}
        self._along = b.and_(self._turned["x"], b.icmp_signed("==", v["x_copied"], I64(0)))

    def write(self) -> Any:
        """Write the kernel's loops, and return its function."""
        f, b = self._f, self._b
        with f.loop(self._times) as time:
            copied = self._bounds(time, self._v["depth"], self._times)
            with b.if_then(b.not_(self._known)):
                self._pack_y(copied)
            blocks = self._parts_of(b.sub(copied[1], copied[0]), BLOCK)
            with f.loop(self._high) as i, f.loop(blocks) as block:
                self._block(i, copied, self._bounds(block, b.sub(copied[1], copied[0]), blocks))
        return f.end()

    def _part(self, i: Any, size: Any, count: Any) -> Any:
        """Return the beginning of part `i` of `count`."""
        return self._b.sdiv(self._f.product(i, size), count)

    def _bounds(self, i: Any, size: Any, count: Any) -> tuple[Any, Any]:
        """Return beginning and end of part `i` of `count`."""
        return self._part(i, size, count), self._part(self._f.sum(i, I64(1)), size, count)

    def _parts_of(self, size: Any, most: int) -> Any:
        return self._b.sdiv(self._f.sum(size, I64(most - 1)), I64(most))

    def _pack(
        self, name: str, width: int, rows: tuple[Any, Any], at: Any, to: Any, size: Any, first: Any, end: Any
    ) -> None:
        """Write the packing of parts of rows from `rows[0]` to before `rows[1]`, from column `at` on.

        Where the matrix is transposed, `at` is a row.
        """
        f, v, b = self._f, self._v, self._b
        pitch = v["rows" if name == "x" else "columns"]
        done, depth = rows[0], b.sub(rows[1], rows[0])
        places = [f.at(v[name], done, f.product(at, v["depth"])), f.at(v[name], at, f.product(done, pitch))]
        with b.if_else(self._turned[name]) as cases:
            for case, packing, place, distance in zip(cases, self._packings[width], places, (v["depth"], pitch)):
                with case:
                    f.call(packing, place, to, depth, distance, size, first, end, self._apart)

    def _pack_y(self, rows: tuple[Any, Any]) -> None:
        """Write the packing of rows of y, except for rows that the first tile packs."""
        f, b, size = self._f, self._b, self._v["columns"]
        with b.if_then(self._turned["y"]):
            self._pack("y", WIDTH, rows, I64(0), self._others, size, self._start, f.least(self._stop, self._wide))
        with b.if_then(b.icmp_signed(">", self._stop, self._wide)):
            last = f.at(self._others, f.product(b.sub(self._wide, self._start), self._apart))
            self._pack("y", LANES, rows, I64(0), last, size, size, f.sum(size, I64(1)))

    def _block(self, i: Any, copied: tuple[Any, Any], inside: tuple[Any, Any]) -> None:
        """Write the products of tile row `i` and a block of rows: `inside` counts from `copied[0]`."""
        f, v, b = self._f, self._v, self._b
        copies_y = b.and_(b.icmp_signed("==", i, I64(0)), b.not_(b.or_(self._known, self._turned["y"])))
        these = (f.sum(copied[0], inside[0]), f.sum(copied[0], inside[1]))
        row, after = (f.sum(self._first, n) for n in self._bounds(i, self._rows, self._high))
        count = b.sub(after, row)
        left = f.least(row, b.sub(v["rows"], I64(TILE)))
        # Otherwise the tile of the first panel packs x.
        copies_x = b.and_(b.icmp_signed("<", self._start, self._wide), b.not_(copies_y))
        copies_x = b.and_(copies_x, b.not_(self._turned["x"]))
        with b.if_then(b.not_(b.or_(self._along, copies_x))):
            self._pack("x", TILE, these, left, self._numbers, I64(TILE), I64(0), I64(1))
        height = f.greatest(count, I64(_HEIGHTS[-1]))
        lowest = f.least(row, b.sub(v["rows"], height))
        with f.loop(self._stop, self._start) as panel:
            narrow = b.icmp_signed(">=", panel, self._wide)
            copies = b.and_(copies_y, b.not_(narrow))
            copies_here = b.and_(copies_x, b.icmp_signed("==", panel, self._start))
            begin = b.select(b.or_(copies, copies_here), left, lowest)
            given, pitch = self._rows_of_x(these[0], begin, left, copies_here)
            place = f.product(b.sub(panel, self._start), self._kept)
            place = f.sum(place, b.select(self._several, i, I64(0)))
            place = f.at(self._sums, f.product(place, I64(_SUMS)))
            held = f.at(self._others, f.product(b.sub(panel, self._start), self._apart))
            with b.if_else(narrow) as cases:
                for case, width in zip(cases, (LANES, WIDTH)):
                    with case:
                        column, skipped = self._of_panel(panel, width)
                        tile = self._tile_of(width, height, copies, copies_here)
                        of_y = f.at(v["y"], f.product(these[0], v["columns"]), column)
                        beside = b.select(copies_here, self._numbers, of_y)
                        of_held = f.at(held, f.product(inside[0], I64(width)))
                        depth, adds = b.sub(inside[1], inside[0]), b.icmp_signed(">", these[0], I64(0))
                        f.call(tile, given, of_held, place, beside, depth, pitch, v["columns"], adds)
                        with b.if_then(b.icmp_signed("==", these[1], v["depth"])):
                            sums = f.at(place, f.product(b.sub(row, begin), I64(WIDTH)))
                            self._store(sums, row, count, column, skipped, width)

    def _rows_of_x(self, depth: Any, begin: Any, left: Any, copies_here: Any) -> tuple[Any, Any]:
        """Return the pointer to a tile's rows of x, from `begin` on, and the distance between rows."""
        f, v, b = self._f, self._v, self._b
        plain = f.at(v["x"], f.product(depth, v["rows"]), begin)
        turned = f.at(v["x"], depth, f.product(begin, v["depth"]))
        in_place = b.or_(self._along, copies_here)
        given = b.select(self._along, turned, plain)
        given = b.select(in_place, given, f.at(self._numbers, b.sub(begin, left)))
        return given, b.select(in_place, b.select(self._along, v["depth"], v["rows"]), I64(TILE))

    def _of_panel(self, panel: Any, width: int) -> tuple[Any, Any]:
        """Return the first column of a panel, and how many of the panel's columns the panel before has."""
        f, b = self._f, self._b
        column = f.product(panel, I64(WIDTH))
        inside = f.least(column, f.greatest(b.sub(self._v["columns"], I64(width)), I64(0)))
        return inside, b.sub(column, inside)

    def _tile_of(self, width: int, height: Any, copies: Any, copies_here: Any) -> Any:
        """Return the tile's function for `height` rows, which packs y if `copies`, x if `copies_here`."""
        b, tile = self._b, None
        for n, plain, along in zip(_HEIGHTS, self._tiles[False, width], self._tiles[True, width]):
            found = b.select(self._along, along, plain)
            tile = b.select(b.icmp_signed("==", height, I64(n)), found, tile) if tile else found
        if width == WIDTH:
            tile = b.select(copies, b.select(self._along, self._packing_y[1], self._packing_y[0]), tile)
            tile = b.select(copies_here, self._packing_x, tile)
        return tile

    def _store(self, sums: Any, row: Any, count: Any, column: Any, skipped: Any, width: int) -> None:
        """Write the store of the sums of `count` rows from `row`, of columns from `column`."""
        f, v, b = self._f, self._v, self._b
        out = f.at(v["out"], f.sum(f.product(row, v["columns"]), column))
        stop = f.least(I64(width), b.sub(v["columns"], column))
        f.call(self._stores, sums, out, v["columns"], count, skipped, stop)
