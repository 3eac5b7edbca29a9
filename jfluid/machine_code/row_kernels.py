"""LLVM kernels that gather, scatter, add to and merge rows of tables.

Additions are divided among chunks by row, not by place: each row belongs to one chunk. The chunk adds the row's
values in the order in which they are given, so threads do not change the result.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from jfluid.machine_code import ffi_runtime, processor
from jfluid.machine_code.extents import Array, Extents, KernelGroup
from jfluid.machine_code.llvm_writer import FLOAT, I1, I32, I64, POINTER, VOID, Function, Module

TAKE, PUT, ADD, MERGE = (f"jfluid_row_{name}" for name in ("take", "put", "add", "merge"))
# The numbers of a call, see `ffi_runtime.py` for the first two. There are `count` rows of tables [height, width].
# A chunk is `group` of them, or those that belong to it by their hash. `MERGE`, which has one chunk, makes
# `room` rows with a hash table of `places`, a power of 2 and more than `count`.
GEOMETRY = "chunks memory count height width group room places".split()
LANES = 16
_VECTOR, _LANES = ir.VectorType(FLOAT, LANES), ir.VectorType(I1, LANES)
_AHEAD = 16  # rows that are on their way to the cache while one is worked on
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio: neighbours get far apart


def write(module: Module) -> None:
    """Write all kernels."""
    ffi_runtime.define(module, TAKE, _take(module), given=2)
    ffi_runtime.define(module, PUT, _put(module), given=3)
    ffi_runtime.define(module, ADD, _add(module), given=4)
    ffi_runtime.define(module, MERGE, _merge(module), given=2, made=3)


def extents(name: str, n: Any) -> Extents:
    """Return the extents of a kernel for the geometry `n`."""
    table, rows, values = (
        Array(n.height * n.width),
        Array(n.count, np.int64),
        Array(n.count * n.width),
    )
    holds = [("rows of a table", n.width > 0), ("rows whose places are int32", n.count < 2**31)]
    if name in (TAKE, PUT):
        holds.append(("a chunk for each row", n.chunks * n.group >= n.count))
        if name == TAKE:
            return Extents([table, rows], [values], 0, holds)
        return Extents([table, rows, values], [table], 0, holds)
    if name == ADD:
        holds.append(("a chunk", n.chunks > 0))
        return Extents([table, rows, values, Array(1)], [table], n.count, holds)
    holds += [
        ("one chunk", n.chunks == 1),
        ("room for each row", n.room >= n.count),
        ("a hash table with a place left", n.places > n.count and not n.places & (n.places - 1)),
    ]
    made = [Array(n.room, np.int64), Array(n.room * n.width), Array(1, np.int64)]
    return Extents([rows, values], made, n.places, holds)


KERNELS = KernelGroup((TAKE, PUT, ADD, MERGE), GEOMETRY, write, extents, bits=processor.AVX512)


def _begin(module: Module, name: str, arrays: str) -> Function:
    return ffi_runtime.begin_chunk(module, name, arrays.split(), GEOMETRY)


def _row(f: Function, i: Any) -> Any:
    return f.load(f.at(f.v["rows"], i, kind=I64), I64)


def _exists(f: Function, row: Any) -> Any:
    return f.b.icmp_unsigned("<", row, f.v["height"])  # negative ones are large


def _line(f: Function, array: str, row: Any) -> Any:
    """Return a pointer to a row of an array [rows, width]."""
    return f.at(f.v[array], f.product(row, f.v["width"]))


def _each_vector(f: Function, work: Any) -> None:
    """Loop over the vectors of a row; `work` takes the vector's first column and lane mask."""
    b = f.b
    parts = b.sdiv(f.sum(f.v["width"], I64(LANES - 1)), I64(LANES))
    with f.loop(parts) as part:
        start = f.product(part, I64(LANES))
        work(start, f.lanes(_VECTOR, b.sub(f.v["width"], start)))


def _fetch(f: Function, array: str, row: Any) -> None:
    """Prefetch the beginning of a row; an invalid row does nothing."""
    fetch = f.module.declare("llvm.prefetch.p0", VOID, [POINTER, I32, I32, I32])
    f.call(fetch, _line(f, array, row), I32(0), I32(3), I32(1))


def _part(f: Function) -> tuple[Any, Any]:
    first = f.product(f.v["chunk"], f.v["group"])
    return first, f.least(f.sum(first, f.v["group"]), f.v["count"])


def _next(f: Function, i: Any, end: Any) -> Any:
    return f.least(f.sum(i, I64(_AHEAD)), f.b.sub(end, I64(1)))


def _copy(f: Function, source: Any, target: Any) -> None:
    def work(start: Any, lanes: Any) -> None:
        f.store_lanes(f.load_lanes(f.at(source, start), _VECTOR, lanes), f.at(target, start), lanes)

    _each_vector(f, work)


def _plus(f: Function, source: Any, target: Any, scale: Any = None) -> None:
    def work(start: Any, lanes: Any) -> None:
        place, value = f.at(target, start), f.load_lanes(f.at(source, start), _VECTOR, lanes)
        value = value if scale is None else f.b.fmul(value, scale)
        f.store_lanes(f.b.fadd(f.load_lanes(place, _VECTOR, lanes), value), place, lanes)

    _each_vector(f, work)


def _take(module: Module) -> Any:
    """Write the gather kernel: it copies rows of a table, and writes NaN for rows outside the table."""
    f = _begin(module, TAKE, "table rows out")
    first, end = _part(f)
    with f.loop(end, first) as i:
        _fetch(f, "table", _row(f, _next(f, i, end)))
        row = _row(f, i)
        known = f.spread(_exists(f, row), _LANES)
        source, target = _line(f, "table", row), _line(f, "out", i)

        def copy(start: Any, lanes: Any) -> None:
            value = f.load_lanes(f.at(source, start), _VECTOR, f.b.and_(lanes, known), float("nan"))
            f.store_lanes(value, f.at(target, start), lanes)

        _each_vector(f, copy)
    return f.end()


def _put(module: Module) -> Any:
    """Write the scatter kernel: it replaces distinct rows of a table, in place, by values."""
    f = _begin(module, PUT, "table rows values out")
    first, end = _part(f)
    with f.loop(end, first) as i:
        _fetch(f, "out", _row(f, _next(f, i, end)))
        row = _row(f, i)
        with f.b.if_then(_exists(f, row)):
            _copy(f, _line(f, "values", i), _line(f, "out", row))
    return f.end()


def _hash(f: Function, row: Any) -> Any:
    """Compute a hash of 32 bits for a row number."""
    return f.b.lshr(f.product(row, I64(_FACTOR)), I64(32))


def _own(f: Function) -> tuple[Any, Any]:
    """Collect the places of the chunk's rows, in order; return the list and its length."""
    b, v = f.b, f.v
    own = v["scratch"]
    size = f.variable(I64, I64(0))
    with f.loop(v["count"]) as i:
        number = f.load(size, I64)
        b.store(b.trunc(i, I32), f.at(own, number, kind=I32))
        # the next one takes its place if it belongs to another: no branch that nobody can foresee
        chunk = b.lshr(f.product(_hash(f, _row(f, i)), v["chunks"]), I64(32))
        b.store(f.sum(number, b.zext(b.icmp_signed("==", chunk, v["chunk"]), I64)), size)
    return own, f.load(size, I64)


def _place(f: Function, own: Any, i: Any) -> Any:
    return f.b.sext(f.load(f.at(own, i, kind=I32), I32), I64)


def _add(module: Module) -> Any:
    """Write the scatter-add kernel: it adds scaled values to rows of a table, in place."""
    f = _begin(module, ADD, "table rows values scale out")
    scale = f.spread(f.load(f.v["scale"], FLOAT), _VECTOR)
    own, size = _own(f)
    with f.loop(size) as i:
        _fetch(f, "out", _row(f, _place(f, own, _next(f, i, size))))
        place = _place(f, own, i)
        row = _row(f, place)
        with f.b.if_then(_exists(f, row)):
            _plus(f, _line(f, "values", place), _line(f, "out", row), scale)
    return f.end()


def _merge(module: Module) -> Any:
    """Write the kernel that sums values of equal rows with a hash table.

    It reads rows and values; it writes each row of the table once, then the height, [room]; the sums; and the number
    of distinct rows in int64.
    """
    f = _begin(module, MERGE, "rows values once sums found")
    b, v = f.b, f.v
    f.c("memset", v["scratch"], I32(0), f.product(v["places"], I64(4)))
    size, at, known = (f.variable(I64, I64(0)) for _ in range(3))
    with f.loop(v["count"]) as i:
        row = _row(f, i)
        with b.if_then(_exists(f, row)):
            b.store(_hash(f, row), at)
            with f.repeat() as leave:
                b.store(b.and_(f.load(at, I64), b.sub(v["places"], I64(1))), at)
                # one more than where a row is among those that are made, or 0
                b.store(_place(f, v["scratch"], f.load(at, I64)), known)
                number = f.load(known, I64)
                empty = b.icmp_signed("==", number, I64(0))
                before = b.select(empty, number, b.sub(number, I64(1)))
                same = b.icmp_signed("==", f.load(f.at(v["once"], before, kind=I64), I64), row)
                leave(b.or_(empty, same))
                b.store(f.sum(f.load(at, I64), I64(1)), at)
            source, number = _line(f, "values", i), f.load(known, I64)
            with b.if_else(b.icmp_signed("==", number, I64(0))) as (new, again):
                with new:
                    last = f.load(size, I64)
                    b.store(f.sum(last, I64(1)), size)
                    place = f.at(v["scratch"], f.load(at, I64), kind=I32)
                    b.store(b.trunc(f.load(size, I64), I32), place)
                    b.store(row, f.at(v["once"], last, kind=I64))
                    _copy(f, source, _line(f, "sums", last))
                with again:
                    _plus(f, source, _line(f, "sums", b.sub(number, I64(1))))
    with f.loop(v["room"], f.load(size, I64)) as i:
        b.store(v["height"], f.at(v["once"], i, kind=I64))
    b.store(f.load(size, I64), v["found"])
    return f.end()
